"""What a depth costs: one size at several depths, at equal tokens, FLOPs and wall-clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from scantling.costs.count import flops
from scantling.laws import law
from scantling.search import Budget, Candidate, design, difference
from scantling.units import count_text

BASES = ("tokens", "FLOPs", "wall-clock")
"""What two shapes may be given alike, in the order of ``DepthPrice.prices``."""


class Price(NamedTuple):
    """A loss over that of the reference, with its 90 % interval, nats a token."""

    value: float
    low: float
    high: float


class DepthPrice(NamedTuple):
    """One depth: the shape chosen for it, its days, and its price on each basis."""

    candidate: Candidate
    prices: tuple[Price, Price, Price]


def price_depths(b: Budget, layers: Sequence[int]) -> list[DepthPrice]:
    """The shape a search chooses at each depth, priced against the first one.

    At equal FLOPs or equal time the dearer shape sees fewer tokens: D times the ratio of the
    FLOPs a token, or of the days. The interval is that of the difference at equal tokens; for
    wall-clock the interval of the time moves the tokens too, and adds in quadrature.

    Args:
        b: The budget; its ``fixed`` depth is replaced.
        layers: Depths; one that has no feasible shape is left out.

    Example:
        >>> from scantling.search.budget import budget
        >>> one, other = price_depths(budget(params="350M", n_gpu=8), (20, 8))
        >>> one.prices[0].value, other.prices[0].value > 0.01
        (0.0, True)
    """
    found = []
    for n in layers:
        front = design(msgspec.structs.replace(b, fixed={**b.fixed, "n_layer": n}), baselines=())
        if front.feasible:
            found.append(front.chosen)
    return [DepthPrice(c, _prices(c, found[0])) for c in found]


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
         "days": row.candidate.days,
         **{b: p._asdict() for b, p in zip(BASES, row.prices, strict=True)}}
        for row in rows
    ]  # fmt: skip


def depth_lines(rows: Sequence[DepthPrice]) -> list[str]:
    """The prices as lines, and which depth wins on each basis.

    A shape wins where it is below all others; where the interval of the next one holds zero
    distance it is said to tie.
    """
    lines = []
    for row in rows:
        c = row.candidate
        parts = [
            f"{basis} {p.value:+.3f} [{p.low:+.3f}, {p.high:+.3f}]"
            for basis, p in zip(BASES, row.prices, strict=True)
        ]
        lines.append(
            f"{c.spec.n_layer} layers × {c.spec.d_model} (W/L {float(c.features.aspect):.0f}, body "
            f"{count_text(float(c.features.body))}, {c.days:.3g} days): at equal {', '.join(parts)}"
        )
    for i, basis in enumerate(BASES):
        order = sorted(rows, key=lambda row: row.prices[i].value)
        best = order[0].candidate.spec.n_layer
        gaps = [(row.prices[i].value - order[0].prices[i].value, row) for row in order[1:]]
        near = [str(row.candidate.spec.n_layer) for gap, row in gaps
                if gap <= _half(row, order[0], i)]  # fmt: skip
        tie = f", a tie with {' and '.join(near)}" if near else ""
        lines.append(f"by {basis}: {best} layers{tie}")
    return lines


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
