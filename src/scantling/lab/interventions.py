"""What a trained model does without some of its parts: heads, layers, rank, windows.

An intervention is a value. Inside ``with applied(model, …)`` the model acts as if it had been
changed; after it every weight, module and setting is the one it was, also after an error.
``materialise(model, …)`` builds the changed model for real: less to store, less to compute, and a
spec whose counts are those of ``ops``.

Layers and heads are numbered from 0, as the model has them before any intervention; an
encoder stays as it is. Interventions act one after another in the order they are given.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias, cast

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import nn

from scantling.errors import FieldError
from scantling.formats.context import extend
from scantling.lab.anatomy import HeldLayer, known, put_together, spec_of, taken_apart
from scantling.lab.attention import Grouped, Latent
from scantling.lab.compressed import Compressed
from scantling.lab.feeds import LowRank, ShareFfn
from scantling.lab.grammar import buildable
from scantling.lab.masks import MaskHeads, merged
from scantling.lab.model import Decoder, Layered
from scantling.lab.stream import Branched, Side
from scantling.spec import (
    Chunk,
    CompressedAttention,
    GroupedAttention,
    LatentAttention,
    Rope,
    Spec,
    Window,
)
from scantling.spec.vary import nodes

__all__ = [
    "DropLayers", "Intervention", "LowRank", "MaskHeads", "Narrow", "ScaleRope", "ShareFfn",
    "applied", "materialise",
]  # fmt: skip

Attention: TypeAlias = GroupedAttention | LatentAttention | CompressedAttention
Change: TypeAlias = Callable[[int, Attention], Attention]
"""What becomes of the attention of a layer."""


class Intervention(Protocol):
    """A change of a model."""

    def acts(
        self, model: Decoder, layers: Sequence[Layered]
    ) -> contextlib.AbstractContextManager[None]:
        """The context in which a model acts so; ``layers`` are those before any intervention."""

    def cut(self, spec: Spec, layers: list[HeldLayer]) -> Spec:
        """Change what a model taken apart has and holds; returns its spec but for the layers."""


@contextlib.contextmanager
def applied(model: Decoder, *interventions: Intervention) -> Iterator[Decoder]:
    """A context in which a model acts as changed; afterwards it is what it was, bit for bit.

    Args:
        model: Any model of the lab, trained or loaded.
        interventions: What changes.

    Raises:
        FieldError: If it has no such layer or head, or cannot run what would be left.

    Example:
        >>> from scantling import catalog, vary
        >>> from scantling.lab.shrink import shrink
        >>> model = Decoder(vary(shrink(catalog.model("gpt2"), 200_000, 8), n_layer=2))
        >>> tokens = torch.arange(8)[None]
        >>> before = model(tokens)
        >>> with applied(model, DropLayers((0,))):
        ...     bool((model(tokens) == before).all()), len(model.layers)
        (False, 1)
        >>> bool((model(tokens) == before).all())
        True
    """
    layers = [cast("Layered", one) for one in model.layers]
    _runs(model, interventions)
    with contextlib.ExitStack() as stack:
        for one in interventions:
            stack.enter_context(one.acts(model, layers))
        yield model


def materialise(model: Decoder, *interventions: Intervention) -> Decoder:
    """The model that is left, built for real; the given one stays as it is.

    Its logits are those under ``applied``, up to rounding. Heads are sliced out of q, k, v and o
    (see ``heads``); a layer without heads has no attention at all, or one head of zeros where an
    output bias or norm must stay; feed-forwards of lower rank are products of two matrices, whose
    parameters are fewer only below rank D F / (D + F).

    Args:
        model: Any model of the lab, trained or loaded.
        interventions: What changes.

    Raises:
        FieldError: As ``applied``, or if no spec says what would be left.

    Example:
        >>> from scantling import catalog
        >>> from scantling.costs.count import parameters
        >>> from scantling.lab.shrink import shrink
        >>> model = Decoder(shrink(catalog.model("qwen3-0.6b"), 200_000, 8))
        >>> small = materialise(model, LowRank(8), MaskHeads(((0, 1),)))
        >>> sum(p.numel() for p in small.parameters()) == parameters(small.spec).total
        True
    """
    held = taken_apart(model)
    spec = model.spec
    masks = [one for one in interventions if isinstance(one, MaskHeads)]
    for one in (*(i for i in interventions if not isinstance(i, MaskHeads)), *merged(masks)):
        spec = one.cut(spec, held)
    found = put_together(model, held, spec)
    found.kernel = model.kernel
    return found


def _runs(model: Decoder, interventions: Sequence[Intervention]) -> None:
    """Refuse what would leave a model that cannot run; masks and ranks leave all in place."""
    held = taken_apart(model)
    spec = model.spec
    for one in interventions:
        if not isinstance(one, MaskHeads | LowRank):
            spec = one.cut(spec, held)
    for side in (s for layer in held for b in layer.blocks for s in b.sides):
        side.key = id(side)  # whether a spec can say what is shared is for building
    buildable(spec_of(spec, held))


# ---------------------------------------------------------------- layers


class DropLayers(Struct, frozen=True, tag="drop_layers"):
    """Some layers are not there."""

    layers: tuple[int, ...]

    @contextlib.contextmanager
    def acts(self, model: Decoder, layers: Sequence[Layered]) -> Iterator[None]:
        """Another list of layers."""
        before = model.decoder.layers
        gone = {id(layers[at]) for at in self.layers}
        model.decoder.layers = nn.ModuleList(one for one in before if id(one) not in gone)
        try:
            yield
        finally:
            model.decoder.layers = before

    def cut(self, spec: Spec, layers: list[HeldLayer]) -> Spec:
        """Take the layers out."""
        known("layer", set(self.layers), int(spec.n_layer), "the model")
        for layer in [one for one in layers if one.at in self.layers]:
            layers.remove(layer)
            for side in layer.sides("attention"):
                if {"relative_bias", "relative_table"} & side.tensors.keys():
                    raise FieldError("drop_layers", layer.at, "holds the relative positions of "
                                     "the whole stack", "keep it")  # fmt: skip
        return spec


# ---------------------------------------------------------------- positions and spans


class ScaleRope(Struct, frozen=True, tag="scale_rope"):
    """Rotary positions are stretched to a longer context, without any training.

    ``yarn``, ``linear``, ``ntk``, ``dynamic``, ``llama3`` or ``longrope``, as ``export --rope``
    writes them.
    """

    kind: str
    context: int
    original: int | None = None
    """Tokens it was trained on; by default what its spec says."""

    def stretched(self, spec: Spec) -> tuple[Spec, Change]:
        """The spec with the limit it then has, and what it makes of an attention."""
        longer = extend(spec, self.context, self.kind, self.original).spec
        pairs = zip(nodes(spec.decoder), nodes(longer.decoder), strict=True)
        turns = {old: new for (_, old), (_, new) in pairs if isinstance(old, Rope)}

        def change(at: int, a: Attention) -> Attention:
            if a.position not in turns:
                return a
            if isinstance(a, CompressedAttention):
                raise _compressed("rope", self.kind, at)
            return replace(a, position=turns[a.position])

        return replace(spec, max_context=longer.max_context), change

    @contextlib.contextmanager
    def acts(self, model: Decoder, layers: Sequence[Layered]) -> Iterator[None]:
        """Other settings of the same modules, and other tables of positions."""
        spec, places = model.spec, model.places
        limit, change = self.stretched(spec)
        try:
            with _reset(model, layers, change):
                model.spec, model.places = limit, {}
                yield
        finally:
            model.spec, model.places = spec, places

    def cut(self, spec: Spec, layers: list[HeldLayer]) -> Spec:
        """Other settings."""
        limit, change = self.stretched(spec)
        _rewritten(layers, change)
        return limit


class Narrow(Struct, frozen=True, tag="window"):
    """Attention sees at most the last so many tokens, itself included."""

    window: int
    layers: tuple[int, ...] | None = None
    """None is all."""

    def _change(self, n_layer: int) -> Change:
        chosen = range(n_layer) if self.layers is None else self.layers
        known("layer", chosen, n_layer, "the model")
        if self.window < 1:
            raise FieldError("window", self.window, "must be at least 1 token")

        def change(at: int, a: Attention) -> Attention:
            if at not in chosen or (isinstance(a, GroupedAttention) and a.cross):
                return a
            if isinstance(a, CompressedAttention):
                raise _compressed("window", self.window, at)
            if isinstance(a.span, Chunk):
                raise FieldError("window", self.window, f"cannot narrow the chunks of layer {at}")
            w = self.window
            if isinstance(a.span, Window):
                w = min(w, int(a.span.window))
            return replace(a, span=Window(w))

        return change

    @contextlib.contextmanager
    def acts(self, model: Decoder, layers: Sequence[Layered]) -> Iterator[None]:
        """Another mask."""
        with _reset(model, layers, self._change(len(layers))):
            yield

    def cut(self, spec: Spec, layers: list[HeldLayer]) -> Spec:
        """Another span."""
        _rewritten(layers, self._change(int(spec.n_layer)))
        return spec


@contextlib.contextmanager
def _reset(model: Decoder, layers: Sequence[Layered], change: Change) -> Iterator[None]:
    """Attention with other settings and the same weights: what a module derives is made anew."""
    kept: list[tuple[nn.Module, str, Any]] = []
    done: dict[int, tuple[Attention, Attention]] = {}
    try:
        for at, layer in enumerate(layers):
            for block in layer.blocks:
                for side in cast("Branched", block).sides:
                    module = cast("Side", side).module
                    if not isinstance(module, Grouped | Latent | Compressed):
                        continue
                    before, after = done.setdefault(id(module), (module.a, change(at, module.a)))
                    if change(at, before) != after:
                        raise FieldError("layer", at, "shares its attention with a layer that "
                                         "stays as it is", "change both")  # fmt: skip
                    if after == before:
                        continue
                    new = _like(after, model)
                    for name in ("a", "scale", "shared"):
                        if hasattr(module, name):
                            kept.append((module, name, getattr(module, name)))
                            setattr(module, name, getattr(new, name))
        yield
    finally:
        for module, name, value in reversed(kept):  # shared ones are set more than once
            setattr(module, name, value)


def _compressed(what: str, value: Any, at: int) -> FieldError:
    return FieldError(what, value, f"cannot change the compressed attention of layer {at}")


def _like(a: Attention, model: Decoder) -> Grouped | Latent:
    d_model = int(model.spec.d_model)
    with torch.device("meta"):
        if isinstance(a, GroupedAttention):
            return Grouped(a, d_model, model.numerics, first=False)
        assert isinstance(a, LatentAttention), "compressed attention is not changed"
        return Latent(a, d_model, model.numerics)


def _rewritten(layers: list[HeldLayer], change: Change) -> None:
    for layer in layers:
        for block in layer.blocks:
            for side in block.sides:
                if isinstance(side.branch.module, Attention):
                    changed = change(layer.at, side.branch.module)
                    side.branch = replace(side.branch, module=changed)
