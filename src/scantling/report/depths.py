"""What a depth costs: one size at several depths, at equal tokens, FLOPs and wall-clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from scantling.costs.count import flops
from scantling.laws import law
from scantling.search import Budget, Candidate, Range, chosen, difference
from scantling.search.axes import ASPECT, LAYER_COST, is_given, limit
from scantling.units import count_text

BASES = ("tokens", "FLOPs", "wall-clock")
"""What two shapes may be given alike, in the order of ``DepthPrice.prices``."""


FIRST, STEP, RUNGS = 8, 1.5, 12
"""The ladder of depths: floor(8 × 1.5^k), 8 to 691 layers, as far apart as prices differ."""


class Price(NamedTuple):
    """A loss over that of the reference, with its 90 % interval, nats a token."""

    value: float
    low: float
    high: float


class DepthPrice(NamedTuple):
    """One depth: the shape chosen for it, its days, and its price on each basis."""

    candidate: Candidate
    prices: tuple[Price, Price, Price]

    @property
    def is_reference(self) -> bool:
        """Whether it is priced against itself."""
        return self.prices == (Price(0.0, 0.0, 0.0),) * 3


def ladder(b: Budget) -> tuple[int, ...]:
    """Depths worth naming for a budget: each half again deeper, 8 × 1.5^k, inside its space.

    What a budget does not let vary has no ladder: a fixed depth, a fixed width.

    Example:
        >>> from scantling.search.budget import budget
        >>> ladder(budget(params="1.7B"))
        (12, 18, 27, 40, 60, 91)
    """
    if is_given(b, "n_layer") or is_given(b, "d_model"):
        return ()
    low, high = _feasible(b)
    steps = (int(FIRST * STEP**k) for k in range(RUNGS))
    return tuple(n for n in steps if low <= n <= high)


def _feasible(b: Budget) -> tuple[float, float]:
    """The depths whose D/L keeps its bound at this size: L = (N / (12 (D/L)²))^(1/3).

    N is what a token passes: all of it at the narrow end and half at the wide one, where the table
    may be the other half; the user's own bound of the depth narrows it.
    """
    aspect, asked = limit(b, "aspect"), b.bounded.get("n_layer")
    passed = b.active or b.params
    wide, narrow = aspect.high or ASPECT[1], aspect.low or ASPECT[0]
    low = (passed / 2 / (12 * wide**2)) ** (1 / 3)
    high = (passed / (12 * narrow**2)) ** (1 / 3)
    return (low, high) if asked is None else (max(low, asked.low), min(high, asked.high))


def price_depths(
    b: Budget, layers: Sequence[int], reference: Candidate | None = None
) -> list[DepthPrice]:
    """The shape a search chooses at each depth, priced against a reference or the first one.

    At equal FLOPs or equal time the dearer shape sees fewer tokens: D times the ratio of the
    FLOPs a token, or of the days. The interval is that of the difference at equal tokens; for
    wall-clock the interval of the time moves the tokens too, and adds in quadrature.
    Beside a reference all are tied as it is, so that a rule of tying does not pass for a price of
    depth, and D/L keeps the bound that the reference was searched in.

    Args:
        b: The budget; what it says of the depth is replaced.
        layers: Depths; one that has no feasible shape is left out.
        reference: The shape to price against, a row among them; the first row otherwise.

    Example:
        >>> from scantling.search.budget import budget
        >>> one, other = price_depths(budget(params="350M", n_gpu=8), (20, 8))
        >>> one.prices[0].value, other.prices[0].value > 0.01
        (0.0, True)
    """
    found = [] if reference is None else [reference]
    for n in layers:
        if reference is not None and n == reference.spec.n_layer:
            continue
        one = chosen(_at_depth(b, n, reference))
        found += [] if one is None else [one]
    rows = [DepthPrice(c, _prices(c, found[0])) for c in found]
    return rows if reference is None else sorted(rows, key=lambda r: r.candidate.spec.n_layer)


def _at_depth(b: Budget, depth: int, reference: Candidate | None) -> Budget:
    """The budget at one depth; beside a reference also with its tying, D/L and possible widths.

    A layer is c D² parameters, so D² = N / (c L), with N from a third to all of what a token
    passes and c from the least to twice the most that ``axes`` reckons with.
    """
    listed = {k: v for k, v in b.listed.items() if k != "n_layer"}
    bounded = {k: v for k, v in b.bounded.items() if k != "n_layer"}
    fixed, tied = {**b.fixed, "n_layer": depth}, b.tied
    if reference is not None:
        tied, aspect = reference.spec.tied, limit(b, "aspect")
        if aspect.low is not None and aspect.high is not None:
            bounded["aspect"] = Range(aspect.low, aspect.high)
        if "d_model" not in {*fixed, *listed, *bounded}:
            least, most = LAYER_COST[b.moe]
            passed = (b.active or b.params) / depth
            low, high = math.sqrt(passed / (6 * most)), math.sqrt(passed / least)
            bounded["d_model"] = Range(low, high + b.multiple)
    return msgspec.structs.replace(b, fixed=fixed, listed=listed, bounded=bounded, tied=tied)


def _prices(c: Candidate, reference: Candidate) -> tuple[Price, Price, Price]:
    known = difference(c, reference)
    base = Price(known.value, _end(known.low), _end(known.high))
    work = _flops_a_token(reference) / _flops_a_token(c)
    time = float(reference.train.value_s / c.train.value_s)
    fast, slow = (float(reference.train.value_s / s) for s in (c.train.low_s, c.train.high_s))
    moved = [_moved(c, share) for share in (fast, slow)]
    spread = abs(moved[0] - moved[1]) / 2 if c is not reference else 0.0
    return base, _shifted(base, _moved(c, work), 0.0), _shifted(base, _moved(c, time), spread)


def _moved(c: Candidate, share: float) -> float:
    """By how much the loss moves when a shape sees a share of its tokens."""
    fewer = msgspec.structs.replace(c.features, tokens=c.features.tokens * share)
    one = law(c.budget.law)
    return float(one.loss(fewer) - one.loss(c.features))


def _shifted(base: Price, by: float, spread: float) -> Price:
    half = math.hypot((base.high - base.low) / 2, spread)
    return Price(base.value + by, base.value + by - half, base.value + by + half)


def _flops_a_token(c: Candidate) -> float:
    one = flops(c.spec, 1, c.budget.train_context)
    return float(one.train / one.tokens)


def depths_json(rows: Sequence[DepthPrice]) -> list[dict[str, Any]]:
    """The prices as ``design`` and ``laws depths`` print them with ``--json``."""
    return [
        {"n_layer": row.candidate.spec.n_layer, "name": row.candidate.name,
         "days": row.candidate.days, "reference": row.is_reference,
         **{b: p._asdict() for b, p in zip(BASES, row.prices, strict=True)}}
        for row in rows
    ]  # fmt: skip


def depth_lines(rows: Sequence[DepthPrice]) -> list[str]:
    """The prices as an aligned table, and which depth wins on each basis.

    A shape wins where it is below all others; where the interval of the next one holds zero
    distance it is said to tie.
    """
    b = rows[0].candidate.budget
    chips = f"{b.n_gpu} × {b.chip}"
    reference = next(row for row in rows if row.is_reference).candidate
    table = [("layers × width", "D/L", "body", "days", *(f"equal {basis}" for basis in BASES))]
    for row in rows:
        c = row.candidate
        table.append((
            f"{'▶ ' if row.is_reference else ''}{c.spec.n_layer} × {c.spec.d_model}",
            f"{float(c.features.aspect):.0f}", count_text(float(c.features.body)), f"{c.days:.3g}",
            *("0" if row.is_reference else _price_text(p) for p in row.prices),
        ))  # fmt: skip
    wide = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    title = (
        f"What depth costs at {count_text(b.params)}: loss over ▶ {reference.spec.n_layer} layers, "
        f"nats a token [90 % interval]; days on {chips}"
    )
    lines = [title, *(
        "  ".join(cell.rjust(n) for cell, n in zip(line, wide, strict=True)).rstrip()
        for line in table
    )]  # fmt: skip
    for i, basis in enumerate(BASES):
        order = sorted(rows, key=lambda row: row.prices[i].value)
        best = order[0].candidate.spec.n_layer
        gaps = [(row.prices[i].value - order[0].prices[i].value, row) for row in order[1:]]
        near = [_layers(row) for gap, row in gaps if gap <= _half(row, order[0], i)]
        tie = f", which the law cannot tell from {_listed(sorted(near))}" if near else ""
        where = f" on {chips}" if basis == "wall-clock" else ""
        lines.append(f"by {basis}{where}: {best} layers{tie}")
    return lines


def _layers(row: DepthPrice) -> int:
    depth = row.candidate.spec.n_layer
    assert isinstance(depth, int), "a candidate is one spec"
    return depth


def _price_text(p: Price) -> str:
    return f"{p.value:+.3f} [{p.low:+.3f}, {p.high:+.3f}]"


def _listed(numbers: Sequence[int]) -> str:
    """Numbers in words.

    Example:
        >>> _listed([12, 27, 60]), _listed([8])
        ('12, 27 or 60', '8')
    """
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}" if first else last


def _half(a: DepthPrice, b: DepthPrice, i: int) -> float:
    """The half-width of the difference of two rows: what each shares with the first cancels."""
    known = difference(a.candidate, b.candidate)
    own = (_end(known.high) - _end(known.low)) / 2
    spreads = [
        max(
            (r.prices[i].high - r.prices[i].low) ** 2 - (r.prices[0].high - r.prices[0].low) ** 2, 0
        )
        for r in (a, b)
    ]
    return math.hypot(own, math.sqrt(sum(spreads)) / 2)


def _end(value: float | None) -> float:
    assert value is not None, "a fitted difference has an interval"
    return float(value)
