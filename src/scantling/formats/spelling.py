"""The tensors of a model one by one, and what a checkpoint of its type calls them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec import Struct

from scantling.formats.checkpoint import names
from scantling.ops import Tensor, tensors
from scantling.spec import Spec

Shape = tuple[int, ...]


class Place(NamedTuple):
    """Where a tensor is: ``decoder``, its layer, and its role there; no stack and layer −1 outside.

    What several layers share (a relative bias, one set of weights for all) stands outside them.
    """

    stack: str
    layer: int
    role: str


class Placed(Struct, frozen=True):
    """The tensor at a place."""

    shape: Shape
    part: str
    copies: int = 1
    """Equal ones at this place: experts, and copies that no layer owns alone."""
    alias: bool = False
    """Another name of a tensor that is counted elsewhere (a tied head)."""
    buffer: bool = False

    @property
    def elements(self) -> int:
        """Elements of all copies."""
        found = self.copies
        for width in self.shape:
            found *= width
        return found


def placed(spec: Spec) -> dict[Place, Placed]:
    """Every tensor of one spec at its place, layer by layer.

    Example:
        >>> from scantling import catalog
        >>> found = placed(catalog.model("mixtral-8x7b"))
        >>> found[Place("decoder", 31, "ffn.experts_up")].copies
        8
        >>> sum(t.elements for t in found.values() if not t.alias)
        46702792704
    """
    found: dict[Place, Placed] = {}
    stacks = {"decoder": spec.decoder}
    if spec.encoder is not None:
        stacks["encoder"] = spec.encoder
    order = {name: stack.expand() for name, stack in stacks.items()}
    for t in tensors(spec):
        where, _, rest = t.name.partition(".")
        kind, _, role = rest.partition(".")
        at = [i for i, k in enumerate(order.get(where, ())) if role and k == kind]
        if at and len(at) == int(t.copies):
            found |= {Place(where, i, role): _placed(t, 1) for i in at}
        else:
            found[Place("", -1, t.name)] = _placed(t, int(t.copies))
    return found


def _placed(t: Tensor, copies: int) -> Placed:
    experts = 1 if t.experts is None else int(t.experts)
    shape = tuple(int(width) for width in t.shape)
    return Placed(shape, t.part, copies * experts, t.alias is not None, t.buffer)


class Spelled(Struct, frozen=True):
    """One tensor of a checkpoint; ``{e}`` in its name stands for an expert's number."""

    name: str
    shape: Shape
    """As the file keeps it: fused, stacked, transposed."""
    holds: tuple[Place, ...]


def spelled(spec: Spec, model_type: str) -> dict[str, Spelled] | None:
    """What a checkpoint of a model type calls each tensor.

    Args:
        spec: One spec, not a column.
        model_type: Hugging Face's name of the type.

    Returns:
        By name, or None where the names of the type are not known, or do not cover the spec.

    Example:
        >>> from scantling import catalog
        >>> found = spelled(catalog.model("gpt2"), "gpt2")
        >>> found["transformer.h.11.attn.c_attn.weight"].shape
        (768, 2304)
        >>> spelled(catalog.model("bloom-176b"), "bloom") is None
        True
    """
    style = next((s for s in names()["spelling"] if model_type in s["types"]), None)
    if style is None or spec.encoder is not None:
        return None
    have = placed(spec)
    found = {s.name: s for s in _walk(spec, style, have)}
    named = {place for s in found.values() for place in s.holds}
    left = [place for place, t in have.items() if place not in named and not t.alias]
    return None if left else found


def _walk(spec: Spec, style: dict[str, Any], have: dict[Place, Placed]) -> Iterator[Spelled]:
    taken: set[Place] = set()
    top = {n: v for n, v in names()["top"].items() if n.startswith(tuple(style["top"]))}
    for name, alternatives in top.items():
        yield from _choose(
            f"{style['prefix']}.{name}", name, alternatives, "", -1, style, have, taken
        )
    for name in ("lm_head.weight", "lm_head.bias"):
        yield from _choose(name, name, names()["top"][name], "", -1, style, have, taken)
    inside = {n: v for n, v in names()["layer"].items() if n.startswith(tuple(style["layer"]))}
    for i in range(int(spec.n_layer)):
        for name, alternatives in inside.items():
            full = f"{style['prefix']}.{style['layers']}.{i}.{name}"
            yield from _choose(full, name, alternatives, "decoder", i, style, have, taken)


def _choose(
    full: str, name: str, alternatives: list[str], stack: str, layer: int,
    style: dict[str, Any], have: dict[Place, Placed], taken: set[Place],
) -> Iterator[Spelled]:  # fmt: skip
    """The first alternative whose tensors the model has there, if they have no name yet."""
    for text in alternatives:
        holds = tuple(Place(stack, layer, role) for role in text.split(" + "))
        if not all(p in have and p not in taken and not have[p].alias for p in holds):
            continue
        taken.update(holds)
        first = have[holds[0]]
        shape: Shape = (sum(have[p].shape[0] for p in holds), *first.shape[1:])
        if name.startswith(tuple(style.get("transposed", ()))):
            shape = shape[::-1]
        elif first.copies > 1 and "{e}" not in name:  # stacked, and kept (experts, in, out)
            shape = (first.copies, *shape[::-1])
        yield Spelled(full, shape, holds)
        return


__all__ = ["Place", "Placed", "Spelled", "placed", "spelled"]
