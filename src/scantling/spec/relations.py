"""Relations between fields, one table, read two ways: an error for a spec, a mask for columns."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from scantling.errors import FieldError
from scantling.spec import modules as m
from scantling.spec.decode import decode
from scantling.spec.model import Run, Spec, Stack
from scantling.spec.positions import Rope
from scantling.spec.vary import nodes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Relation(Struct, frozen=True):
    """A rule between the fields of one struct.

    ``holds`` uses arithmetic and comparisons only, so it answers a bool for one spec and a mask
    for a column; it must not use ``and`` or ``or``.
    """

    of: type
    field: str
    name: str
    holds: Callable[[Any], Any]
    message: Callable[[Any], str]
    hint: Callable[[Any], str] = lambda _: ""


def divisors(n: int, below: int = 0) -> list[int]:
    """The divisors of n in order.

    Example:
        >>> divisors(12)
        [1, 2, 3, 4, 6, 12]
    """
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    both = sorted({*small, *(n // d for d in small)})
    return [d for d in both if not below or d <= below]


def near_divisors(n: int, wanted: int) -> str:
    """The divisors of n on both sides of a number: ``use 4 or 8``."""
    known = divisors(n)
    below = [d for d in known if d < wanted][-1:]
    above = [d for d in known if d > wanted][:1]
    return "use " + " or ".join(map(str, below + above)) if below + above else ""


class HeadFit(Struct, frozen=True):
    """A width that heads do not divide: what is lost if it is floored, and what is near."""

    floor: int
    """⌊D / H⌋, the width of a head that software takes which does not look."""
    lost: int
    """D − H × floor: dimensions that no head has."""
    heads: tuple[int, ...]
    """The divisors of D on both sides of H."""
    widths: tuple[int, ...]
    """The widths on both sides of D that give whole heads of a multiple of 8."""

    def hint(self, width: str) -> str:
        """In words, the width under its own name."""
        listed = [" or ".join(map(str, n)) for n in (self.heads, self.widths)]
        parts = [listed[0] and f"use {listed[0]}", listed[1] and f"{width} {listed[1]}"]
        near = ", or ".join(p for p in parts if p)
        return f"{near}; heads of {self.floor} would leave {self.lost} dimensions out"


def head_fit(d_model: int, n_head: int) -> HeadFit:
    """What is near to a width and a number of heads that do not divide.

    Example:
        >>> head_fit(1024, 12)
        HeadFit(floor=85, lost=4, heads=(8, 16), widths=(960, 1056))
    """
    known, step = divisors(d_model), 8 * n_head
    near = [d for d in known if d < n_head][-1:] + [d for d in known if d > n_head][:1]
    below = d_model // step * step
    widths = tuple(w for w in (below, below + step) if w)
    return HeadFit(d_model // n_head, d_model % n_head, tuple(near), widths)


def swapped(d_model: int, n_head: int, n_layer: int) -> dict[str, int]:
    """Heads and layers the other way round, where heads only divide the width like that.

    Heads must then be 32 to 256 wide, in eights; empty where nothing points to a slip.

    Example:
        >>> swapped(1600, 48, 25), swapped(1600, 48, 24)
        ({'n_head': 25, 'n_layer': 48, 'd_head': 64}, {})
    """
    each = d_model // n_layer
    if d_model % n_head == 0 or d_model % n_layer or each % 8 or not 32 <= each <= 256:
        return {}
    return {"n_head": n_layer, "n_layer": n_head, "d_head": each}


def _turns_whole(a: m.GroupedAttention) -> bool:
    """Whether rotary positions turn all of a head."""
    return isinstance(a.position, Rope) and a.position.fraction == 1.0


RELATIONS: tuple[Relation, ...] = (
    Relation(
        m.GroupedAttention, "n_kv_head", "K divides H",
        lambda a: a.n_head % a.n_kv_head == 0,
        lambda a: f"must divide n_head {a.n_head}",
        lambda a: near_divisors(a.n_head, a.n_kv_head),
    ),
    Relation(
        m.GroupedAttention, "d_head", "rotary heads are even",
        lambda a: a.d_head % 2 == 0 if _turns_whole(a) else True,
        lambda _: "must be even: rotary positions turn pairs",
        lambda a: f"use {a.d_head - 1} or {a.d_head + 1}",
    ),
    Relation(
        m.CompressedAttention, "n_out_group", "groups divide heads",
        lambda a: a.n_head % a.n_out_group == 0,
        lambda a: f"must divide n_head {a.n_head}",
        lambda a: near_divisors(a.n_head, a.n_out_group),
    ),
    Relation(
        m.Experts, "top_k", "top_k within experts",
        lambda e: e.top_k <= e.n_expert,
        lambda e: f"must be at most n_expert {e.n_expert}",
    ),
    Relation(
        m.Router, "top_k_group", "groups chosen within groups",
        lambda r: True if r.n_expert_group is None or r.top_k_group is None
        else r.top_k_group <= r.n_expert_group,
        lambda r: f"must be at most n_expert_group {r.n_expert_group}",
    ),
    Relation(
        m.Mamba2, "n_group", "groups divide SSM heads",
        lambda s: s.n_ssm_head % s.n_group == 0,
        lambda s: f"must divide n_ssm_head {s.n_ssm_head}",
        lambda s: near_divisors(s.n_ssm_head, s.n_group),
    ),
    Relation(
        m.Mamba2, "n_ssm_head", "SSM heads divide inner width",
        lambda s: s.d_inner % s.n_ssm_head == 0,
        lambda s: f"must divide d_inner {s.d_inner}",
        lambda s: near_divisors(s.d_inner, s.n_ssm_head),
    ),
    Relation(
        m.Mamba1, "n_select_head", "heads divide inner width",
        lambda s: True if s.n_select_head is None else s.d_inner % s.n_select_head == 0,
        lambda s: f"must divide d_inner {s.d_inner}",
        lambda s: near_divisors(s.d_inner, s.n_select_head),
    ),
    Relation(
        m.GatedDelta, "n_key_head", "key heads divide value heads",
        lambda g: g.n_value_head % g.n_key_head == 0,
        lambda g: f"must divide n_value_head {g.n_value_head}",
        lambda g: near_divisors(g.n_value_head, g.n_key_head),
    ),
    Relation(
        m.RgLru, "n_gate_block", "gate blocks divide width",
        lambda g: g.d_rnn % g.n_gate_block == 0,
        lambda g: f"must divide d_rnn {g.d_rnn}",
        lambda g: near_divisors(g.d_rnn, g.n_gate_block),
    ),
    Relation(
        m.MixtureOfDepths, "capacity_permille", "capacity within the context",
        lambda d: d.capacity_permille <= 1000,
        lambda _: "is in thousandths of the context and must be at most 1000",
    ),
)  # fmt: skip


@functools.cache
def _relations_of(kind: type) -> tuple[Relation, ...]:
    """The relations of a type of struct."""
    return tuple(one for one in RELATIONS if issubclass(kind, one.of))


def check(spec: Spec) -> Spec:
    """Validate a spec: types and bounds by msgspec, then every relation, then the layout.

    Raises:
        FieldError: With the path, the value, the relation and what would be right.

    Example:
        >>> from scantling import catalog
        >>> from scantling.spec import vary
        >>> check(vary(catalog.model("llama-3.1-8b"), n_kv_head=6))
        Traceback (most recent call last):
            ...
        scantling.errors.FieldError: decoder.layer.attention.n_kv_head 6 must divide n_head 32; use 4 or 8
    """  # noqa: E501 - the error is one line
    decode(msgspec.to_builtins(spec))
    for stack_name in ("decoder", "encoder"):
        stack = getattr(spec, stack_name)
        if stack is not None:
            _check_layout(stack, stack_name)
    for path, node in nodes(spec):
        if isinstance(node, m.PerLayerInput):
            _check_per_layer(spec, path, node)
        for relation in _relations_of(type(node)):
            if not relation.holds(node):
                field = f"{path}.{relation.field}"
                value = getattr(node, relation.field)
                raise FieldError(field, value, relation.message(node), relation.hint(node))
    return spec


def _check_layout(stack: Stack, name: str) -> None:
    known = [k.name for k in stack.kinds]
    if len(set(known)) != len(known):
        raise FieldError(f"{name}.kinds", known, "must have different names")
    if not stack.layout:
        raise FieldError(f"{name}.layout", None, "must hold at least one run of layers")
    for run in stack.layout:
        for kind in run.pattern:
            if kind not in known:
                raise FieldError(f"{name}.layout", kind, f"must be one of the kinds {known}")
        if not run.pattern:
            raise FieldError(f"{name}.layout", None, "has a run without a pattern")


def _check_per_layer(spec: Spec, path: str, node: m.PerLayerInput) -> None:
    """What a layer reads of the per-layer tables is as wide as they are."""
    tables = spec.embeddings.per_layer
    if tables is None:
        raise FieldError(path, None, "needs embeddings.per_layer")
    if node.d_per_layer != tables.d_per_layer:
        rule = f"must be {tables.d_per_layer} as in embeddings.per_layer"
        raise FieldError(f"{path}.d_per_layer", node.d_per_layer, rule)


def masks(spec: Spec) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """For a column spec: the name of each relation that applies and the mask of who keeps it."""
    for _, node in nodes(spec):
        for relation in _relations_of(type(node)):
            mask = relation.holds(node)
            if mask is not True:  # the relation has nothing to say of this structure
                yield relation.name, mask


__all__ = ["RELATIONS", "Relation", "Run", "check", "divisors", "masks"]
