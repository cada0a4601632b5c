"""A spec as a plain model in torch, whose every stage can be watched.

Shapes ride on names: ``x_BTD`` is batch × tokens × width. H query heads, K key-value heads, h and
v widths of a key and of a value, S keys, E experts, F hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn import functional

from scantling.errors import FieldError
from scantling.lab.attention import Grouped, Latent, one_kernel
from scantling.lab.feed import Feed, Routed
from scantling.lab.flow import Flow, Kernel, Places, Watch
from scantling.lab.grammar import buildable
from scantling.lab.numerics import Numerics
from scantling.lab.param import Kind, Parametrisation, initialise, optimizer_groups
from scantling.lab.parts import Fused, Named, maybe, waves
from scantling.lab.recurrent import Delta, StateSpace
from scantling.lab.stream import Branched, Side
from scantling.spec import (
    Dense,
    Embeddings,
    Experts,
    GatedDelta,
    GroupedAttention,
    HyperConnections,
    LatentAttention,
    Layer,
    Mamba2,
    RelativeBias,
    Spec,
    Stack,
)

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


def _module(module: Any, d_model: int, numerics: Numerics, *, first: bool) -> nn.Module:
    if isinstance(module, GroupedAttention):
        return Grouped(module, d_model, numerics, first=first)
    if isinstance(module, LatentAttention):
        return Latent(module, d_model, numerics)
    if isinstance(module, Mamba2):
        return StateSpace(module, d_model, numerics)
    if isinstance(module, GatedDelta):
        return Delta(module, d_model, numerics)
    if isinstance(module, Experts):
        return Routed(module, d_model, numerics)
    assert isinstance(module, Dense), "the grammar refuses others"
    return Feed(module, d_model, numerics.epsilon)


class Layered(nn.Module):
    """One layer: its blocks in order."""

    def __init__(self, path: str, blocks: list[Branched]) -> None:
        super().__init__()
        self.path, self.blocks = path, nn.ModuleList(blocks)

    def forward(self, x_BTD: Tensor, flow: Flow) -> Tensor:
        """The stream after the layer."""
        for block in self.blocks:
            x_BTD = block(x_BTD, flow, self.path)
        return x_BTD


class Layers(nn.Module):
    """A stack: its layers and the last norm.

    Where a branch has fewer weight sets than layers, neighbours share: layer i of n uses set
    ⌊i · sets / n⌋.
    """

    def __init__(self, stack: Stack, name: str, d_model: int, numerics: Numerics) -> None:
        super().__init__()
        self.path, self.d_model, self.numerics = name, d_model, numerics
        self.times = {k: int(n) for k, n in stack.occurrences().items()}
        self.sides: dict[Any, Side] = {}
        self.outer: dict[Any, Branched] = {}
        self.first = True
        residual = stack.kinds[0].blocks[0].residual
        self.n_stream = int(residual.n_stream) if isinstance(residual, HyperConnections) else 0
        done = dict.fromkeys(self.times, 0)
        place, layers = 0, []
        for kind in stack.expand():
            layers.append(self._layer(stack.kind(kind), done[kind], place))
            done[kind] += 1
            place += len(layers[-1].blocks)
        self.layers = nn.ModuleList(layers)
        self.final = maybe(stack.final_norm, d_model, numerics.epsilon)

    def _layer(self, layer: Layer, occurrence: int, place: int) -> Layered:
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
                    module = _module(branch.module, self.d_model, self.numerics, first=self.first)
                    self.sides[key] = Side(branch, module, self.d_model, self.numerics.epsilon)
                    a = branch.module
                    position = getattr(a, "position", None)
                    if isinstance(position, RelativeBias) and not position.each_layer:
                        self.first = False  # T5 keeps one table a stack
                sides.append(self.sides[key])
            made = Branched(block, names, sides, self.d_model, self.numerics, place + i)
            if len(sets) == len(sides):  # all is shared between layers, so are norms (ALBERT)
                made.share(self.outer.setdefault((layer.name, i, sets[0]), made))
            blocks.append(made)
        return Layered(f"{self.path}.{layer.name}", blocks)

    def named(self) -> Iterator[Weight]:
        """Its weights, each once."""
        seen: set[int] = set()
        for i, layer in enumerate(self.layers):
            for block in layer.blocks:  # type: ignore[union-attr]
                outer = block.outer() if self._new(block, seen) else iter(())
                yield from _weights(f"{layer.path}.{block.names[0]}", i, outer)
                for name, side in zip(block.names, block.sides, strict=True):
                    if id(side) not in seen:
                        seen.add(id(side))
                        yield from _weights(f"{layer.path}.{name}", i, side.named())
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
        if self.n_stream:
            x_BTD = x_BTD[..., None, :].expand(*x_BTD.shape[:-1], self.n_stream, -1)
        for layer in self.layers:
            x_BTD = layer(x_BTD, flow)
        if self.n_stream:
            x_BTD = x_BTD.sum(-2)
        if self.final is not None:
            x_BTD = self.final(x_BTD)
            if flow.watch is not None:
                flow.watch(f"{self.path}.norm", x_BTD)
        return x_BTD


class Embedded(nn.Module):
    """What comes before the first layer but for the table of tokens, which stacks share."""

    def __init__(self, e: Embeddings, d_model: int, epsilon: float) -> None:
        super().__init__()
        self.e, width = e, d_model if e.d_embed is None else int(e.d_embed)
        self.position = None
        if e.position is not None:
            wide = width if e.position.narrow else d_model
            self.position = nn.Embedding(int(e.position.rows), wide)
        self.norm = maybe(e.norm, d_model if e.norm_last else width, epsilon)
        self.project_in = None
        if e.d_embed is not None:
            self.project_in = Fused(width, {"project_in": d_model}, bias=e.project_bias)

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        if self.position is not None:
            yield "position", self.position.weight
        if self.norm is not None:
            yield from self.norm.named("embedding_norm")
        if self.project_in is not None:
            yield from self.project_in.named()

    def forward(self, x_BTw: Tensor) -> Tensor:
        """Scaled, with positions, normed and projected: B × T × D."""
        e = self.e
        if e.scale is not None:
            x_BTw = x_BTw * e.scale
        if self.position is not None and e.position is not None and e.position.narrow:
            x_BTw = x_BTw + self._positions(x_BTw.shape[-2])
        if self.norm is not None and not e.norm_last:
            x_BTw = self.norm(x_BTw)
        if self.project_in is not None:
            x_BTw = self.project_in(x_BTw)
        if self.norm is not None and e.norm_last:
            x_BTw = self.norm(x_BTw)
        if self.position is not None and e.position is not None and not e.position.narrow:
            x_BTw = x_BTw + self._positions(x_BTw.shape[-2])
        if e.sines:
            x_BTw = x_BTw + waves(x_BTw)
        return x_BTw

    def _positions(self, length: int) -> Tensor:
        assert self.position is not None
        rows = self.position.num_embeddings
        if length > rows:
            raise FieldError("context", length, f"exceeds the learned positions {rows}")
        return self.position.weight[:length]


class Decoder(nn.Module):
    """A spec as a model: token numbers in, logits out; with an encoder where the spec has one.

    Args:
        spec: The model.
        param: How initial sizes, rates and multipliers depend on the shape: ``sp``, ``mup`` or
            ``completep`` (see ``lab.param``).
        init_std: One deviation for all matrices instead of 1/√inputs, as 0.02 in GPT-2.
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
        self, spec: Spec, param: Kind | Parametrisation = "sp", init_std: float | None = None,
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
        self.embedded = Embedded(e, d, numerics.epsilon)
        self.decoder = Layers(spec.decoder, "decoder", d, numerics)
        self.encoder = self.encoder_embedded = None
        if spec.encoder is not None:
            own = spec.encoder_embeddings
            self.encoder = Layers(spec.encoder, "encoder", d, numerics)
            if own is not None:
                self.encoder_embedded = Embedded(own, d, numerics.epsilon)
        head = spec.head
        assert head is not None, "the grammar refuses a model without a head"
        self.project_out = Fused(d, {"project_out": width}) if head.project else None
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
        if self.project_out is not None:
            yield from _weights("model", None, self.project_out.named())
        for name, tensor in self.head.named():
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
        tokens = torch.zeros(1, length, dtype=torch.long, device=self.table.weight.device)
        with torch.no_grad():
            self(tokens, source=None if self.encoder is None else tokens)

    def encoded(self, source_BS: Tensor, watch: Watch | None = None) -> Tensor:
        """What the encoder makes of its tokens, B × S × D."""
        assert self.encoder is not None, "only called where there is one"
        flow = Flow(self.at(source_BS.shape[-1], source_BS.device), watch, kernel=self.kernel)
        embedded = self.encoder_embedded or self.embedded
        x_BSD: Tensor = self.encoder(embedded(self.table(source_BS)), flow)
        return x_BSD

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
        x_BTD = self.decoder(x_BTD, Flow(places, watch, source_BSD, kernel=self.kernel))
        return x_BTD if self.project_out is None else self.project_out(x_BTD)

    def forward(
        self, tokens_BT: Tensor, watch: Watch | None = None, source: Tensor | None = None
    ) -> Tensor:
        """Logits of every position.

        Args:
            tokens_BT: Token numbers.
            watch: Sees what comes out of each stage.
            source: Token numbers of the encoder, B × S.
        """
        logits_BTV: Tensor = self.head(self.hidden(tokens_BT, watch, source))
        head = self.spec.head
        assert head is not None, "checked when built"
        scale = (1.0 if head.scale is None else head.scale) * self.numerics.logits
        if scale != 1.0:
            logits_BTV = logits_BTV * scale
        if head.softcap is not None:
            logits_BTV = head.softcap * torch.tanh(logits_BTV / head.softcap)
        if watch is not None:
            watch("head", logits_BTV)
        return logits_BTV

    def loss(self, tokens_BT: Tensor, targets_BT: Tensor, source: Tensor | None = None) -> Tensor:
        """Mean cross entropy of the next token in nats; targets of −100 do not count."""
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
