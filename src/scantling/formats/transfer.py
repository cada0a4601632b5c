"""Which tensors of one model fill those of another: by their names, else by role and shape."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from scantling.formats.spelling import Place, Placed, Shape, Spelled, placed, spelled
from scantling.spec import Spec

Status = Literal["loads", "renames", "resizes", "cannot", "no place"]
STATUSES: tuple[Status, ...] = Status.__args__  # type: ignore[attr-defined]

GROWS = {"model.embedding", "model.lm_head", "model.lm_head_bias", "model.logits_bias",
         "model.position"}  # fmt: skip
"""Tensors with a row a token, or a position: a library cuts or adds rows (resize embeddings)."""

MATRIX_PARTS = {"attention", "mixer", "ffn", "shared_experts", "experts"}


class Line(Struct, frozen=True):
    """Tensors of the same role that fare alike, over all layers."""

    role: str
    status: Status
    shape: Shape
    """In the first model."""
    other: Shape | None
    """In the second; None where it has no such tensor."""
    tensors: int
    parameters: int
    name: str | None
    """In a checkpoint of the first, ``{i}`` a layer; None where its names are not known."""


class Transfer(Struct, frozen=True, kw_only=True):
    """What a checkpoint of one model gives another."""

    method: Literal["names", "roles"]
    lines: tuple[Line, ...]
    unfilled: tuple[Line, ...]
    """Tensors of the second, or rows of them, that nothing of the first fills: they start anew."""
    needed: int
    """Parameters of the second, tied ones once, buffers with them."""

    def counts(self) -> dict[str, dict[str, int]]:
        """Tensors and parameters by what becomes of them."""
        found: dict[str, dict[str, int]] = {s: {"tensors": 0, "parameters": 0} for s in STATUSES}
        for line in self.lines:
            found[line.status]["tensors"] += line.tensors
            found[line.status]["parameters"] += line.parameters
        return found

    @property
    def whole(self) -> bool:
        """Every tensor of both is the other's."""
        every = all(line.status in {"loads", "renames"} for line in self.lines)
        return every and not self.unfilled


def transfer(a: Spec, b: Spec, type_a: str = "", type_b: str = "") -> Transfer:
    """Look for each tensor of ``a`` in ``b``.

    A tensor *loads* where the name and the shape are the same, *renames* where shape and role are
    but the name is not (or one of the two is fused, stacked or transposed), *resizes* where only
    rows of a vocabulary or of positions differ, *cannot* where its like has another shape, and has
    *no place* where there is no like: layers past the last, biases the other leaves out. Where the
    names of a type are not known, role and shape alone decide and nothing is said of names.

    Args:
        a: What is loaded.
        b: What it is loaded into.
        type_a: Hugging Face's type of ``a``, whose names its checkpoint has.
        type_b: The same of ``b``.

    Example:
        >>> from scantling import catalog
        >>> from scantling.spec import vary
        >>> a = catalog.model("llama-3.1-8b")
        >>> found = transfer(a, vary(a, vocab_size=128320), "llama", "llama")
        >>> {line.role: line.status for line in found.lines if line.status != "loads"}
        {'model.embedding': 'resizes', 'model.lm_head': 'resizes'}
    """
    have, want = placed(a), placed(b)
    names_a, names_b = spelled(a, type_a), spelled(b, type_b)
    method: Literal["names", "roles"] = "names"
    if names_a is None or names_b is None:
        method, names_a, names_b = "roles", names_a or {}, names_b or {}
    called_a, called_b = _by_place(names_a), _by_place(names_b)
    tally, left = _Tally(), _Tally()
    filled: dict[Place, int] = {}
    for place, t in have.items():
        if t.alias:
            continue
        other = want.get(place)
        name = called_a.get(place)
        for status, n in _fate(place, t, other, name, called_b.get(place), method):
            tally.add(place, status, t, None if other is None else other.shape, n, name)
            if status in {"loads", "renames", "resizes"}:
                filled[place] = n
    for place, t in want.items():
        lacking = 0 if t.alias else t.copies - min(filled.get(place, 0), t.copies)
        like = have.get(place)
        if like is not None and place in filled and t.shape[0] > like.shape[0]:  # rows added
            fresh = replace(t, shape=(t.shape[0] - like.shape[0], *t.shape[1:]), copies=1)
            left.add(place, "resizes", fresh, like.shape, t.copies, called_b.get(place))
        elif lacking:
            left.add(place, "cannot", t, None if like is None else like.shape, lacking,
                     called_b.get(place))  # fmt: skip
    needed = sum(t.elements for t in want.values() if not t.alias)
    return Transfer(method=method, lines=tally.lines(), unfilled=left.lines(), needed=needed)


def _by_place(names: dict[str, Spelled]) -> dict[Place, Spelled]:
    return {place: one for one in names.values() for place in one.holds}


def _fate(
    place: Place, t: Placed, other: Placed | None, name: Spelled | None, named: Spelled | None,
    method: str,
) -> Iterator[tuple[Status, int]]:  # fmt: skip
    """What becomes of a tensor's copies."""
    if other is None or other.alias:
        yield "no place", t.copies
        return
    if t.shape != other.shape:
        same_rows = t.shape[1:] == other.shape[1:] and place.role in GROWS
        yield ("resizes" if same_rows else "cannot"), t.copies
        return
    alike = method == "roles" or (
        name is not None and named is not None and name.name == named.name
        and name.holds == named.holds
    )  # fmt: skip
    n = min(t.copies, other.copies)
    if n < t.copies or n < other.copies:
        if alike and name is not None and "{e}" not in name.name:  # one tensor of all experts
            yield "cannot", t.copies
            return
        yield ("loads" if alike else "renames"), n
        if n < t.copies:
            yield "no place", t.copies - n
        return
    fused = alike and name is not None and named is not None and name.shape != named.shape
    yield ("cannot" if fused else "loads" if alike else "renames"), n


class _Tally:
    """Equal fates counted together."""

    def __init__(self) -> None:
        self.found: dict[tuple[Any, ...], list[int]] = {}

    def add(self, place: Place, status: Status, t: Placed, other: Shape | None, n: int,
            name: Spelled | None) -> None:  # fmt: skip
        pattern = None if name is None else re.sub(r"\.\d+\.", ".{i}.", name.name, count=1)
        role = f"encoder.{place.role}" if place.stack == "encoder" else place.role
        one = self.found.setdefault((role, status, t.shape, other, pattern), [0, 0])
        one[0] += n
        one[1] += n * (t.elements // t.copies)

    def lines(self) -> tuple[Line, ...]:
        return tuple(
            Line(role, status, shape, other, tensors, parameters, name)
            for (role, status, shape, other, name), (tensors, parameters) in self.found.items()
        )


class Target(Struct, frozen=True):
    """One kind of matrix that an adapter may sit on."""

    role: str
    name: str | None
    shape: Shape
    """In the first model: (out, in)."""
    layers: int
    """Of the first that have it."""
    fits: int
    """Layers of those where the second has the same shape at the same place."""
    other: Shape | None


def adapter_targets(a: Spec, b: Spec, type_a: str = "") -> tuple[Target, ...]:
    """Which matrices of ``a`` an adapter could carry over to ``b``, layer by layer.

    A low-rank adapter of a matrix (out, in) is (r, in) and (out, r): both fit another model where
    out and in are the same. Where a type stores several matrices as one (phi3, gpt2), its adapter
    sits on the one, and each of them must fit.

    Example:
        >>> from scantling import catalog
        >>> a, b = catalog.model("llama-3-8b"), catalog.model("mistral-7b-v0.1")
        >>> all(t.fits == t.layers for t in adapter_targets(a, b, "llama"))
        True
    """
    have, want = placed(a), placed(b)
    called = _by_place(spelled(a, type_a) or {})
    found: dict[tuple[Any, ...], list[int]] = {}
    for place, t in have.items():
        if place.layer < 0 or len(t.shape) != 2 or t.part not in MATRIX_PARTS:
            continue
        other = want.get(place)
        one = called.get(place)
        module = None if one is None else one.name.split(".", 3)[-1].removesuffix(".weight")
        shape = None if other is None else other.shape
        n = found.setdefault((place.role, module, t.shape, shape), [0, 0])
        n[0] += 1
        n[1] += shape == t.shape
    return tuple(Target(role, module, shape, n[0], n[1], other)
                 for (role, module, shape, other), n in found.items())  # fmt: skip


__all__ = ["STATUSES", "Line", "Target", "Transfer", "adapter_targets", "transfer"]
