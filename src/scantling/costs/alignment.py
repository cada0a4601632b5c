"""Alignment as money: what a dimension costs beside its neighbours, and why.

The gain of a neighbour rests on the factors of ``kernels.misaligned``, a declared prior, and on
the work that is added; ``costs.roofline`` shows why a product takes what it takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from msgspec import Struct

from scantling.arith import Num, round_up
from scantling.costs.count import parameters
from scantling.costs.kernels.gemm import crooked
from scantling.costs.kernels.misaligned import Penalty, misaligned
from scantling.costs.time import op_time, row_widths
from scantling.errors import FieldError, ScantlingError
from scantling.hardware import Chip
from scantling.ops import operators
from scantling.quantity import Quantity
from scantling.spec import (
    GroupedAttention,
    Spec,
    Workload,
    attention,
    check,
    dtype_bytes,
    read,
    vary,
)

MULTIPLES = (8, 16, 64, 128, 256)
HEAD_WIDTHS = (64, 128)
"""Head widths for which every attention kernel is written."""
NEAR = 0.2
"""How far a neighbour lies at most, as a share of the dimension."""
MEASURE = "reports differ, and newer cuBLAS handles misaligned shapes better: measure"


class Neighbour(Struct, frozen=True, kw_only=True):
    """A dimension at another value.

    Args:
        value: The dimension.
        multiple: The power of two it is a multiple of.
        parameters: Added.
        gain: Time now / time then: above 1 it is faster.
    """

    value: int
    multiple: int
    parameters: int
    gain: Quantity


class Nearby(Struct, frozen=True, kw_only=True):
    """A dimension and its neighbours.

    Args:
        field: ``vocab_size``.
        now: Its value.
        multiple: The power of two it is a multiple of.
        recommended: The multiple that fills a line of memory.
        neighbours: Other values, in order.
        guaranteed: Whether a larger neighbour is faster at the least of its interval.
        why: What stands behind the gains.
    """

    field: str
    now: int
    multiple: int
    recommended: int
    neighbours: tuple[Neighbour, ...]
    guaranteed: bool
    why: tuple[str, ...]


def recommended_multiple(chip: Chip, dtype: str) -> int:
    """The multiple that a width should be: a line of 128 bytes.

    A load of 16 bytes is the least for tensor cores and no promise: on RTX 4090 multiples of 8
    that are none of 16 were slower than odd widths.

    Example:
        >>> from scantling.hardware import chip
        >>> [recommended_multiple(chip("h100"), dtype) for dtype in ("bf16", "fp8")]
        [64, 128]
    """
    return int(chip.constants.alignment.line_bytes / dtype_bytes(dtype))


def nearby(
    spec: Spec, field: str, workload: Workload, chip: Chip, values: tuple[int, ...] = ()
) -> Nearby:
    """The time at values near a dimension's own.

    Kernels of the whole workload are timed at each value. Their fitted times err alike at both
    values, so the interval of the gain is that of the prior on alignment alone, and of it only
    what the dimension changes: a product as crooked as before costs as much as before.

    Args:
        spec: One model.
        field: ``vocab_size``, ``d_ff``, ``d_head``, ``d_model``, ``n_head``, …
        workload: What is run.
        chip: Where.
        values: Which; by default the next multiples of 8, 16, 64, 128 and 256, and the multiple of
            64 below, no farther than a fifth.

    Raises:
        FieldError: If the model has no such dimension.

    Example:
        >>> from scantling import catalog
        >>> from scantling.hardware import chip
        >>> from scantling.spec import Workload
        >>> work = Workload("train", 8, 1024)
        >>> found = nearby(catalog.model("gpt2"), "vocab_size", work, chip("a100"), (50304,))
        >>> 1.0 < found.neighbours[0].gain.value < 1.2, found.guaranteed
        (True, False)
    """
    now = read(spec, field)
    if not isinstance(now, int):
        raise FieldError("field", field, "is no single number of this model")
    around = {*(cast("int", round_up(now, m)) for m in MULTIPLES), now // 64 * 64} - {now}
    asked = values or tuple(v for v in sorted(around) if abs(v - now) <= NEAR * now)
    before = _factors(spec, workload, chip)
    size = parameters(spec).total
    found = []
    for value in asked:
        try:
            other = check(vary(spec, **{field: value}))
        except ScantlingError:
            continue  # a relation of the model forbids it: another value it is not
        ratio = _ratio(before, _factors(other, workload, chip))
        gain = Quantity(
            value=float(ratio.value), low=float(ratio.low), high=float(ratio.high), unit="ratio",
            kind="assumed", why=(f"time at {now} / time at {value}", *_sources(chip), MEASURE),
        )  # fmt: skip
        added = cast("int", parameters(other).total - size)
        found.append(Neighbour(value=value, multiple=power_of_two(value), parameters=added,
                               gain=gain))  # fmt: skip
    return Nearby(
        field=field, now=now, multiple=power_of_two(now),
        recommended=recommended_multiple(chip, workload.dtype), neighbours=tuple(found),
        guaranteed=any(n.value > now and float(n.gain.low or 0) > 1 for n in found),
        why=(*_sources(chip), MEASURE),
    )  # fmt: skip


def _factors(spec: Spec, workload: Workload, chip: Chip) -> list[tuple[Num, Penalty]]:
    """Seconds of each operator were its widths aligned, and the factor of those it has.

    Products of routed experts whose widths are no multiples of 16 were measured to be slower in
    one library; the least is that another loads them as it loads the rest.
    """
    found = []
    for op in operators(spec, workload):
        seconds = op_time(op, workload, chip).value_s
        factor = Penalty(1.0, 1.0, 1.0)
        if op.kind == "matmul" and op.experts is None:
            factor = misaligned(chip, workload.dtype, *row_widths(op))
        elif op.kind == "matmul":
            slow = crooked(chip, workload.dtype, op.n, op.k)
            factor = Penalty(slow, 1.0, slow)
        found.append((seconds / factor.value, factor))
    return found


def _ratio(before: list[tuple[Num, Penalty]], after: list[tuple[Num, Penalty]]) -> Penalty:
    """Time before over time after, with the least and the most that the prior allows.

    A factor that stays is the same on both sides, whatever it is: it is taken at its expected
    value. One that changes may be at its least on one side and at its most on the other, for
    reports disagree on which crooked width is the worse.
    """
    once = [0.0, 0.0, 0.0]
    then = [0.0, 0.0, 0.0]
    for (was, own), (now, other) in zip(before, after, strict=True):
        same = own == other
        for i, (f, g) in enumerate((
            (own.value, other.value),
            (own.value, other.value) if same else (own.low, other.high),
            (own.value, other.value) if same else (own.high, other.low),
        )):  # fmt: skip
            once[i] += float(was * f)
            then[i] += float(now * g)
    value, low, high = (x / y for x, y in zip(once, then, strict=True))
    return Penalty(value, low, high)


def power_of_two(value: int) -> int:
    """The largest power of two that divides a number.

    Example:
        >>> power_of_two(10922), power_of_two(50304), power_of_two(50257)
        (2, 128, 1)
    """
    return value & -value


class Heads(Struct, frozen=True):
    """Another split of the same query width into heads."""

    n_head: int
    n_kv_head: int
    d_head: int
    parameters: int


def head_splits(spec: Spec, widths: tuple[int, ...] = HEAD_WIDTHS) -> tuple[Heads, ...]:
    """Splits into heads of widths that kernels are written for, at the same parameters.

    The query width H h stays, and so does the width of keys and values K h.

    Example:
        >>> from scantling import catalog
        >>> [(s.n_head, s.d_head) for s in head_splits(catalog.model("gpt2"), (64, 128))]
        [(12, 64), (6, 128)]
    """
    one = attention(spec)
    if not isinstance(one, GroupedAttention):
        return ()
    heads, kv, width = (cast("int", x) for x in (one.n_head, one.n_kv_head, one.d_head))
    size = cast("int", parameters(spec).total)
    return tuple(
        Heads(heads * width // w, kv * width // w, w, size)
        for w in widths
        if heads * width % w == 0 and kv * width % w == 0
    )


def _sources(chip: Chip) -> tuple[str, ...]:
    return chip.constants.alignment.sources


def dimensions(spec: Spec) -> Iterator[tuple[str, int]]:
    """The dimensions of a model that a product's width follows, where it has one value of each."""
    for field in ("vocab_size", "d_model", "d_ff", "d_head", "d_expert", "n_head"):
        try:
            value = read(spec, field)
        except ScantlingError:
            continue
        if isinstance(value, int):
            yield field, value
