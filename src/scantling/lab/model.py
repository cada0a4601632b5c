"""A spec as a plain model in torch, whose every stage can be watched.

Shapes ride on names: ``x_BTD`` is batch × tokens × width. H query heads, K key-value heads, h and
v widths of a key and of a value, S keys, E experts, F hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn import functional

from scantling.errors import FieldError
from scantling.lab.attention import one_kernel
from scantling.lab.augmented import Alternate, Streams
from scantling.lab.default_rate import Param
from scantling.lab.embedded import Embedded, Last
from scantling.lab.flow import Flow, Kernel, Places, Watch
from scantling.lab.grammar import buildable, learnable
from scantling.lab.hyper import Merge
from scantling.lab.made import Parts
from scantling.lab.numerics import Numerics
from scantling.lab.param import Parametrisation, initialise, optimizer_groups
from scantling.lab.parts import Fused, Named, maybe
from scantling.lab.stream import Branched, Side, streams
from scantling.spec import (
    Disentangled,
    Head,
    HyperConnections,
    Layer,
    PerLayerInput,
    RelativeBias,
    Spec,
    Stack,
)
from scantling.spec.vary import nodes

IGNORED = -100
"""A target that no loss counts."""


class Weight(Struct, frozen=True):
    """One weight of a model by its name in ``ops.tensors``, as a view of what is stored."""

    name: str
    """``decoder.<kind>.<module>.<weight>``."""
    layer: int | None
    """Number of its layer in the stack; None outside the layers."""
    tensor: Tensor


def cross_entropy(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Mean cross entropy in nats of the targets that count."""
    return functional.cross_entropy(
        logits_BTV.flatten(0, -2), targets_BT.flatten(), ignore_index=IGNORED
    )


class Layered(nn.Module):
    """One layer: its blocks in order, on one stream or on n streams around it (AltUp)."""

    def __init__(
        self, layer: Layer, path: str, at: int, blocks: list[Branched], altup: Alternate | None
    ) -> None:
        super().__init__()
        self.at = at
        """Its number in the stack, also where others are dropped for a while."""
        self.path, self.blocks, self.altup = path, nn.ModuleList(blocks), altup
        self.scale_1: Tensor | None
        scale = torch.ones(1) if layer.stored_scale else None
        self.register_buffer("scale_1", scale)
        last = layer.blocks[-1].branches[0].module
        self.own = altup is not None and isinstance(last, PerLayerInput)
        """Whether its last block adds to the streams that the layer does not work on."""

    def outer(self) -> Named:
        """Weights that belong to no block."""
        if self.altup is not None:
            yield from self.altup.named("")
        if self.scale_1 is not None:
            yield f"{cast('Branched', self.blocks[-1]).names[0]}.layer_scale", self.scale_1

    def forward(self, x_BTD: Tensor, flow: Flow) -> Tensor:
        """The stream after the layer, or its streams, B × T × n × D."""
        if self.altup is not None:
            return self.around(self.altup, x_BTD, flow)
        flow.entered_BTD = x_BTD if x_BTD.dim() == 3 else x_BTD.mean(-2)
        for block in self.blocks:
            x_BTD = block(x_BTD, flow, self.path)
        return x_BTD if self.scale_1 is None else x_BTD * self.scale_1

    def around(self, altup: Alternate, x_BTnD: Tensor, flow: Flow) -> Tensor:
        """All streams predicted, the first one worked on, all corrected."""
        predicted_BTnD = altup.predict(x_BTnD)
        x_BTD = flow.entered_BTD = predicted_BTnD[..., 0, :]
        for block in self.blocks[:-1] if self.own else self.blocks:
            x_BTD = block(x_BTD, flow, self.path)
        corrected_BTnD = altup.correct(predicted_BTnD, streams(x_BTD, 0))
        first_BT1D, others_BTnD = corrected_BTnD.tensor_split([1], -2)
        scaled_BT1D = first_BT1D * altup.scale_D
        if self.own:
            last = cast("Branched", self.blocks[-1])
            made_BTD = last.made(scaled_BT1D.squeeze(-2), flow, self.path)
            assert made_BTD is not None, "what is made of an embedding joins at once"
            others_BTnD = others_BTnD + last.add * made_BTD[..., None, :]
            scaled_BT1D = first_BT1D  # what the embedding reads is scaled, not the stream
        out = torch.cat((scaled_BT1D, others_BTnD), -2)
        return out if self.scale_1 is None else out * self.scale_1


def plus(x_BTD: Tensor, more_BTD: Tensor) -> Tensor:
    """The stream, or each of its streams, with more added."""
    if more_BTD.dim() == 4:
        return streams(x_BTD, more_BTD.shape[-2]) + more_BTD
    return x_BTD + (more_BTD[..., None, :] if x_BTD.dim() == 4 else more_BTD)


class Layers(nn.Module):
    """A stack: its layers and the last norm.

    Where a branch has fewer weight sets than layers, neighbours share: layer i of n uses set
    ⌊i · sets / n⌋.
    """

    def __init__(
        self, stack: Stack, name: str, d_model: int, numerics: Numerics, vocab_size: int
    ) -> None:
        super().__init__()
        self.path, self.d_model, self.numerics = name, d_model, numerics
        causal = all(getattr(n, "causal", True) for _, n in nodes(stack))
        self.parts = Parts(d_model, numerics, vocab_size, int(stack.n_layer), causal)
        self.times = {k: int(n) for k, n in stack.occurrences().items()}
        self.sides: dict[Any, Side] = {}
        self.outer: dict[Any, Branched] = {}
        self.first = True
        residuals = [b.residual for k in self.times for b in stack.kind(k).blocks]
        hyper = [r for r in residuals if isinstance(r, HyperConnections) and r.constrained]
        self.merge = None
        if hyper:
            self.merge = Merge(int(hyper[0].n_stream), d_model, numerics.epsilon)
        self.altup = stack.altup
        self.streams = None if stack.altup is None else Streams(stack.altup, d_model)
        done = dict.fromkeys(self.times, 0)
        place, layers = 0, []
        for at, kind in enumerate(stack.expand()):
            layers.append(self._layer(stack.kind(kind), at, done[kind], place))
            done[kind] += 1
            place += len(layers[-1].blocks)
        self.layers = nn.ModuleList(layers)
        self.final = maybe(stack.final_norm, d_model, numerics.epsilon)

    def _layer(self, layer: Layer, at: int, occurrence: int, place: int) -> Layered:
        seen: dict[str, int] = {}
        blocks = []
        for i, block in enumerate(layer.blocks):
            names, sides, sets = [], [], []
            for j, branch in enumerate(block.branches):
                n = seen[branch.name] = seen.get(branch.name, 0) + 1
                names.append(branch.name if n == 1 else f"{branch.name}{n}")
                own = occurrence
                if branch.copies is not None:
                    n_set = min(int(branch.copies), self.times[layer.name])
                    own = occurrence * n_set // self.times[layer.name]
                    sets.append(own)
                key = (layer.name, i, j, own)
                if key not in self.sides:
                    module = self.parts.module(branch.module, at, first=self.first)
                    self.sides[key] = Side(branch, module, self.d_model, self.numerics.epsilon)
                    a = branch.module
                    position = getattr(a, "position", None)
                    if isinstance(position, Disentangled) or (
                        isinstance(position, RelativeBias) and not position.each_layer
                    ):
                        self.first = False  # DeBERTa and T5 keep one table a stack
                sides.append(self.sides[key])
            made = Branched(block, names, sides, self.d_model, self.numerics, place + i)
            if len(sets) == len(sides):  # all is shared between layers, so are norms (ALBERT)
                made.share(self.outer.setdefault((layer.name, i, sets[0]), made))
            blocks.append(made)
        altup = None
        if self.altup is not None:
            altup = Alternate(self.altup, self.d_model, self.numerics.epsilon)
        return Layered(layer, f"{self.path}.{layer.name}", at, blocks, altup)

    def named(self) -> Iterator[Weight]:
        """Its weights, each once."""
        seen: set[int] = set()
        for part in (self.streams, self.merge):
            if part is not None:
                yield from _weights(self.path, None, part.named())
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, Layered), "it holds nothing else"
            yield from _weights(layer.path, i, layer.outer())
            for block in cast("Iterable[Branched]", layer.blocks):
                for j, name, tensor in block.added():
                    yield Weight(f"{layer.path}.{block.names[j]}.{name}", i, tensor)
                outer = block.outer() if self._new(block, seen) else iter(())
                yield from _weights(f"{layer.path}.{block.names[0]}", i, outer)
                for name, side in zip(block.names, block.sides, strict=True):
                    if id(side) not in seen:
                        seen.add(id(side))
                        own = cast("Side", side).named()
                        yield from _weights(f"{layer.path}.{name}", i, own)
        if self.final is not None:
            yield from _weights(self.path, None, self.final.named("final_norm"))

    @staticmethod
    def _new(block: Branched, seen: set[int]) -> bool:
        """Whether a block's own parts have not been listed with another block."""
        parts = [getattr(block, n) for n in ("pre", "post", "after", "hyper", "depth_router")]
        known = {id(p) for p in parts if p is not None}
        new = not known & seen
        seen |= known
        return new

    def forward(self, x_BTD: Tensor, flow: Flow) -> Tensor:
        """The normed stream after the last layer."""
        if self.streams is not None:
            x_BTD = self.streams.made(x_BTD)
        for layer in self.layers:
            flow.layer = cast("Layered", layer).at
            x_BTD = self.joined(layer(x_BTD, flow), flow, last=layer is self.layers[-1])
        if flow.handed_BTD is not None:  # there is no next block to read it
            x_BTD = plus(x_BTD, flow.handed_BTD)
        if self.streams is not None:
            x_BTD = self.streams.merged(x_BTD)
        if self.merge is not None:
            x_BTD = self.merge(streams(x_BTD, self.merge.n))
        x_BTD = streams(x_BTD, 0)
        if self.final is not None:
            x_BTD = self.final(x_BTD)
            if flow.watch is not None:
                flow.watch(f"{self.path}.norm", x_BTD)
        return x_BTD

    def joined(self, x_BTD: Tensor, flow: Flow, *, last: bool) -> Tensor:
        """The stream with what was to join it behind this layer; all of it behind the last."""
        waiting = []
        for at, made_BTD in flow.late:
            if self.streams is not None:
                made_BTD = streams(made_BTD, 0)  # noqa: PLW2901 - they are others than AltUp's
            if at > flow.layer and not last:
                waiting.append((at, made_BTD))
            else:
                x_BTD = plus(x_BTD, made_BTD)
        flow.late = waiting
        return x_BTD


class Decoder(nn.Module):
    """A spec as a model: token numbers in, logits out; with an encoder where the spec has one.

    Args:
        spec: The model.
        param: How initial sizes, rates and multipliers depend on the shape: ``sp``, ``mup`` or
            ``completep`` (see ``lab.param``).
        init_std: One deviation for all matrices instead of 1/√inputs, as 0.02 in GPT-2; with
            muP and CompleteP that at the base width.
        seed: Of the weights.
        numerics: Small numbers of a class that are no part of a spec.

    Raises:
        FieldError: If the spec has a part this model does not run, by its name.

    Example:
        >>> from scantling import catalog
        >>> from scantling.lab.shrink import shrink
        >>> spec = shrink(catalog.model("qwen3-0.6b"))
        >>> model = Decoder(spec)
        >>> tuple(model(torch.zeros(1, 8, dtype=torch.long)).shape) == (1, 8, spec.vocab_size)
        True
    """

    def __init__(
        self, spec: Spec, param: Param | Parametrisation = "sp", init_std: float | None = None,
        seed: int = 0, numerics: Numerics | None = None,
    ) -> None:  # fmt: skip
        buildable(spec)
        super().__init__()
        self.param = param if isinstance(param, Parametrisation) else Parametrisation(param)
        numerics = self.param.numerics(spec, numerics or Numerics())
        e, d, v = spec.embeddings, int(spec.d_model), int(spec.vocab_size)
        width = d if e.d_embed is None else int(e.d_embed)
        self.spec, self.numerics, self.seed = spec, numerics, seed
        self.kernel: Kernel | None = one_kernel
        """Attention in one, where it has neither cap nor sinks; None writes it out."""
        self.places: dict[Any, Places] = {}
        self.table = nn.Embedding(v, width)
        n_layer = int(spec.n_layer)
        self.embedded = Embedded(e, d, numerics.epsilon, n_layer)
        self.decoder = Layers(spec.decoder, "decoder", d, numerics, v)
        self.encoder = self.encoder_embedded = None
        if spec.encoder is not None:
            own = spec.encoder_embeddings
            self.encoder = Layers(spec.encoder, "encoder", d, numerics, v)
            if own is not None:
                self.encoder_embedded = Embedded(own, d, numerics.epsilon, n_layer)
        head = spec.head or Head()
        self.last = Last(head, d, width, v, numerics.epsilon)
        self.head = None
        if spec.head is not None:
            self.head = Fused(width, {"lm_head": v}, bias=head.bias, role="head")
            if spec.tied:
                self.head.weight = self.table.weight
        initialise(self, init_std, seed)

    @property
    def layers(self) -> nn.ModuleList:
        """The decoder's layers."""
        return self.decoder.layers

    def named(self) -> Iterator[Weight]:
        """Every weight once, by its name in ``ops.tensors``; a tied head is the embedding.

        Example:
            >>> from scantling import catalog
            >>> from scantling.lab.shrink import shrink
            >>> spec = shrink(catalog.model("gpt2"), 100_000, 8)
            >>> [w.name for w in Decoder(spec).named()][:4]
            ['model.embedding', 'model.position', 'decoder.layer.attention.pre_norm_scale', \
'decoder.layer.attention.pre_norm_bias']
        """
        yield Weight("model.embedding", None, self.table.weight)
        yield from _weights("model", None, self.embedded.named())
        if self.encoder_embedded is not None:
            yield from _weights("encoder", None, self.encoder_embedded.named())
        if self.encoder is not None:
            yield from self.encoder.named()
        yield from self.decoder.named()
        yield from _weights("model", None, self.last.named())
        for name, tensor in () if self.head is None else self.head.named():
            if not (self.spec.tied and name == "lm_head"):
                yield Weight(f"model.{name}", None, tensor)

    def at(self, length: int, device: torch.device) -> Places:
        """Positions and their tables, kept from pass to pass."""
        key = (length, device)
        if key not in self.places:
            context = None if self.spec.max_context is None else int(self.spec.max_context)
            if torch.compiler.is_compiling():
                return Places(torch.arange(length, device=device), length, context)
            with torch.inference_mode(mode=False):
                at = torch.arange(length, device=device)
            self.places[key] = Places(at, length, context)
        return self.places[key]

    def warm(self, length: int) -> None:
        """Make the tables of a length before a compiler traces what reads them."""
        device = self.table.weight.device
        tokens = source = torch.zeros(1, length, dtype=torch.long, device=device)
        own = self.encoder_embedded
        if own is not None and own.stem is not None:
            source = torch.zeros(1, 2 * length, own.stem.n_mel, device=device)
        with torch.no_grad():
            self(tokens, source=None if self.encoder is None else source)

    def encoded(self, source_BS: Tensor, watch: Watch | None = None) -> Tensor:
        """What the encoder makes of its tokens, B × S × D."""
        assert self.encoder is not None, "only called where there is one"
        embedded = self.encoder_embedded or self.embedded
        sound = embedded.stem is not None
        x_BSD: Tensor = embedded(source_BS if sound else self.table(source_BS))
        places = self.at(x_BSD.shape[-2], x_BSD.device)
        flow = Flow(places, watch, kernel=self.kernel)
        flow.tokens_BT, flow.embedded_BTD = None if sound else source_BS, x_BSD
        found: Tensor = self.encoder(x_BSD, flow)
        return found

    def hidden(
        self, tokens_BT: Tensor, watch: Watch | None = None, source: Tensor | None = None
    ) -> Tensor:
        """The stream that the head reads, B × T × D."""
        source_BSD = None
        if self.encoder is not None:
            if source is None:
                raise FieldError("source", None, "is missing: this model reads an encoder's tokens")
            source_BSD = self.encoded(source, watch)
        x_BTD: Tensor = self.embedded(self.table(tokens_BT))
        if watch is not None:
            watch("embedding", x_BTD)
        places = self.at(tokens_BT.shape[-1], tokens_BT.device)
        flow = Flow(places, watch, source_BSD, kernel=self.kernel)
        if source_BSD is not None:
            flow.source = self.at(source_BSD.shape[-2], source_BSD.device)
        flow.tokens_BT, flow.embedded_BTD = tokens_BT, x_BTD
        if self.embedded.own is not None:
            flow.own_BTLp = self.embedded.own(tokens_BT, x_BTD)
        found: Tensor = self.last(self.decoder(x_BTD, flow))
        return found

    def forward(
        self, tokens_BT: Tensor, watch: Watch | None = None, source: Tensor | None = None
    ) -> Tensor:
        """Logits of every position; of a model without a head what its last norm makes.

        Args:
            tokens_BT: Token numbers.
            watch: Sees what comes out of each stage.
            source: Token numbers of the encoder, B × S.
        """
        hidden_BTD, head = self.hidden(tokens_BT, watch, source), self.spec.head
        if head is None or self.head is None:
            return hidden_BTD
        logits_BTV: Tensor = self.head(hidden_BTD)
        scale = (1.0 if head.scale is None else head.scale) * self.numerics.logits
        if scale != 1.0:
            logits_BTV = logits_BTV * scale
        if self.last.logits_bias is not None:
            logits_BTV = logits_BTV + self.last.logits_bias
        if head.softcap is not None:
            logits_BTV = head.softcap * torch.tanh(logits_BTV / head.softcap)
        if watch is not None:
            watch("head", logits_BTV)
        return logits_BTV

    def loss(self, tokens_BT: Tensor, targets_BT: Tensor, source: Tensor | None = None) -> Tensor:
        """Mean cross entropy of the next token in nats; targets of −100 do not count.

        Raises:
            FieldError: If the model has no head.
        """
        learnable(self.spec)
        return cross_entropy(self(tokens_BT, source=source), targets_BT)

    def groups(
        self, lr: float, weight_decay: float = 0.0, epsilon: float = 1e-8
    ) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer, with the rates of the parametrisation.

        Each has ``name``, ``params``, ``lr``, ``weight_decay`` and ``eps``; ``scale`` is its rate
        over ``lr``, for schedules that set rates anew.
        """
        return optimizer_groups(self, lr, weight_decay, epsilon)

    def with_numerics(self, **changes: Any) -> Numerics:
        """This model's small numbers with some changed."""
        return replace(self.numerics, **changes)


def _weights(path: str, layer: int | None, named: Named) -> Iterator[Weight]:
    for name, tensor in named:
        yield Weight(f"{path}.{name}", layer, tensor)
