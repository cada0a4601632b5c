"""A model taken apart into its layers, and put together again from layers that were changed.

What a layer is (its part of the spec) and what it holds (its weights) stay side by side, so a
change of one can be a change of both, and the spec of what comes out follows from its layers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, cast

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor

from scantling.errors import FieldError
from scantling.formats.hf.layout import squeeze
from scantling.lab.model import Decoder, Layered
from scantling.lab.stream import Branched, Side
from scantling.spec import Block, Branch, Layer, Spec, check

if TYPE_CHECKING:
    from scantling.spec.modules import FeedForward, Mixer

Tensors = dict[str, Tensor]
"""Weights by their last names in ``ops.tensors``."""


class HeldSide(Struct):
    """One branch: what it is, and its weights."""

    name: str
    branch: Branch
    tensors: Tensors
    key: Hashable
    """Branches with the same key have the same weights."""

    def become(self, module: Mixer | FeedForward, tensors: Tensors, change: Hashable) -> None:
        """Another module and other weights; what shared weights and changes alike still shares."""
        self.branch = replace(self.branch, module=module)
        own = {k: t for k, t in self.tensors.items() if k.startswith("own_")}
        self.tensors, self.key = {**tensors, **own}, (self.key, change)


class HeldBlock(Struct):
    """One residual block."""

    block: Block
    outer: Tensors
    """Of its norms and mixes, which belong to no branch."""
    added: Tensors
    """What this use of shared weights has of its own, by the number of its branch."""
    sides: list[HeldSide]


class HeldLayer(Struct):
    """One layer of the decoder by its number, counted from 0."""

    at: int
    name: str
    stored_scale: bool
    blocks: list[HeldBlock]
    outer: Tensors
    """Of what belongs to no block: AltUp's, and the factor behind the layer."""

    def sides(self, name: str) -> list[HeldSide]:
        """Its branches of a name: ``attention``, ``cross_attention``, ``mixer`` or ``ffn``."""
        return [s for b in self.blocks for s in b.sides if s.branch.name == name]

    def kind(self) -> Layer:
        """Its part of the spec, with no word on sharing."""
        blocks = tuple(
            replace(b.block, branches=tuple(replace(s.branch, copies=None) for s in b.sides))
            for b in self.blocks
        )
        return Layer(self.name, blocks, self.stored_scale)


def taken_apart(model: Decoder) -> list[HeldLayer]:
    """The layers of a model's decoder; the weights are the model's own, not copies."""
    stack = model.spec.decoder
    found = []
    for at, (name, layer) in enumerate(zip(stack.expand(), model.layers, strict=True)):
        kind = stack.kind(name)
        blocks = []
        for block, held in zip(cast("Layered", layer).blocks, kind.blocks, strict=True):
            made = cast("Branched", block)
            sides = [
                HeldSide(n, branch, _held(cast("Side", side)), id(side))
                for n, branch, side in zip(made.names, held.branches, made.sides, strict=True)
            ]
            blocks.append(HeldBlock(held, dict(made.outer()), _added(made), sides))
        outer = dict(cast("Layered", layer).outer())
        found.append(HeldLayer(at, name, kind.stored_scale, blocks, outer))
    return found


def _held(side: Side) -> Tensors:
    """A branch's weights, and what was worked out from where it stands, as a decay by depth."""
    return dict(side.module.named_buffers()) | dict(side.named())


def _added(block: Branched) -> Tensors:
    return {f"{i}.{name}": t for i, name, t in block.added()}


def spec_of(before: Spec, layers: Sequence[HeldLayer]) -> Spec:
    """The spec of a model whose decoder has these layers.

    Layers that became different get kinds of their own: ``layer``, ``layer_2``, …

    Raises:
        FieldError: If no layer is left, or weights are shared in a way a spec cannot say.
    """
    if not layers:
        raise FieldError("drop_layers", None, "leaves no layer", "keep at least one")
    groups: dict[tuple[Layer, Hashable], list[HeldLayer]] = {}
    for layer in layers:
        groups.setdefault((layer.kind(), None), []).append(layer)
    split: dict[tuple[Layer, Hashable], list[HeldLayer]] = {}
    for (kind, _), members in groups.items():
        if _copies(members) is not None:
            split[kind, None] = members
            continue
        shared = _shared(members)
        for layer in members:
            key = tuple(s.key for b in layer.blocks for s in b.sides if s.key in shared)
            split.setdefault((kind, key), []).append(layer)
    kinds: list[Layer] = []
    name_of: dict[int, str] = {}
    used: set[str] = set()
    for (kind, _), members in split.items():
        copies = _copies(members)
        keys = {s.key for m in members for b in m.blocks for s in b.sides}
        others = {s.key for k, ms in split.items() if ms is not members
                  for m in ms for b in m.blocks for s in b.sides}  # fmt: skip
        if copies is None or keys & others:
            raise FieldError("layers", [m.at for m in members], "share weights in a way that no "
                             "spec can say", "change layers that share weights alike")  # fmt: skip
        name, n = kind.name, 1
        while name in used:
            n += 1
            name = f"{kind.name}_{n}"
        used.add(name)
        kinds.append(_with_copies(replace(kind, name=name), copies))
        name_of |= {id(m): name for m in members}
    layout = squeeze([name_of[id(layer)] for layer in layers], len(layers))
    stack = replace(before.decoder, kinds=tuple(kinds), layout=layout)
    return check(replace(before, decoder=stack))


def _branches(members: Iterable[HeldLayer]) -> list[list[Hashable]]:
    """For each branch of a kind, the keys of all its occurrences."""
    rows = [[s.key for b in m.blocks for s in b.sides] for m in members]
    return [list(column) for column in zip(*rows, strict=True)]


def _shared(members: Sequence[HeldLayer]) -> set[Hashable]:
    return {k for column in _branches(members) for k in column if column.count(k) > 1}


def _copies(members: Sequence[HeldLayer]) -> list[int | None] | None:
    """``copies`` of each branch: None for weights of its own; None in all if no spec says it.

    The lab's order: occurrence i of n uses set ⌊i · sets / n⌋.
    """
    found: list[int | None] = []
    for column in _branches(members):
        sets = list(dict.fromkeys(column))
        n, of = len(sets), len(column)
        if n == of and n > 1:
            found.append(None)
        elif column == [sets[i * n // of] for i in range(of)]:
            found.append(n if of > 1 else None)
        else:
            return None
    return found


def _with_copies(kind: Layer, copies: Sequence[int | None]) -> Layer:
    left = iter(copies)
    blocks = tuple(
        replace(b, branches=tuple(replace(one, copies=next(left)) for one in b.branches))
        for b in kind.blocks
    )
    return replace(kind, blocks=blocks)


def put_together(before: Decoder, layers: Sequence[HeldLayer], spec: Spec) -> Decoder:
    """A model of these layers, with all else as it was; its weights are copies.

    Multipliers stay those of the model it comes from, also where a parametrisation would give a
    model of its new depth others: what was trained with them needs them.
    """
    made = spec_of(spec, layers)
    if made.embeddings.per_layer is not None and made.n_layer != before.spec.n_layer:
        raise FieldError("drop_layers", None, "cannot be cut out of a model whose embeddings are "
                         "made for each layer", "drop them while it runs only")  # fmt: skip
    model = Decoder(made, "sp", seed=before.seed, numerics=before.numerics)
    model.param = before.param
    model.to(before.table.weight.device, before.table.weight.dtype)
    inside = "decoder.layers."
    rest = {k: v for k, v in before.state_dict().items() if not k.startswith(inside)}
    now = model.state_dict()
    odd = [k for k, v in rest.items() if k not in now or now[k].shape != v.shape]
    if odd:
        raise FieldError("layers", None, f"that are left do not read {min(odd)} as it is",
                         "change them while the model only runs")  # fmt: skip
    missing, _ = model.load_state_dict(rest, strict=False)
    assert all(name.startswith(inside) for name in missing), missing
    with torch.no_grad():
        for new, old in zip(model.layers, layers, strict=True):
            _fill(dict(cast("Layered", new).outer()), old.outer)
            for own, held in zip(cast("Layered", new).blocks, old.blocks, strict=True):
                block = cast("Branched", own)
                _fill(dict(block.outer()), held.outer)
                _fill(_added(block), held.added)
                for side, kept in zip(block.sides, held.sides, strict=True):
                    _fill(_held(cast("Side", side)), kept.tensors)
    return model.train(before.training)


def _fill(new: Tensors, old: Tensors) -> None:
    assert new.keys() == old.keys(), set(new) ^ set(old)
    for name, tensor in new.items():
        tensor.copy_(old[name].view_as(tensor))


def known(what: str, numbers: Iterable[int], n: int, where: str) -> None:
    """Refuse the number of a layer or head that is not there.

    Example:
        >>> known("layer", [4], 4, "the model")
        Traceback (most recent call last):
            ...
        scantling.errors.FieldError: layer 4 is not in the model, which has layers 0 to 3
    """
    for i in sorted(numbers):
        if not 0 <= i < n:
            has = f"{what}s 0 to {n - 1}" if n > 1 else f"{what} 0 only"
            raise FieldError(what, i, f"is not in {where}, which has {has}")
