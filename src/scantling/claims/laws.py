"""Claims of depth, width and vocabulary against the laws of the loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from scantling.claims.records import Claim
from scantling.claims.registry import Checked, check
from scantling.costs.depth import published_depths
from scantling.laws import Features, law
from scantling.laws.optimum import Spending, compute_optimal, shaped
from scantling.laws.vocabulary import TIE_ABOVE, best_for_compute

SHAPED_LAWS = ("aspect", "gemstones-2025", "gemstones-cooled-2025")
"""Laws of width and depth whose constants are settled: no refit moves a number of a record."""


def _spread(values: list[float], name: str) -> dict[str, float]:
    return {f"{name}_least": min(values), f"{name}_most": max(values)}


@check("critical-depth")
def critical_depth(_: Claim) -> Checked:
    """Wrong if by every law loss still falls past both depths, at narrow and wide models."""

    def gain(name: str, width: float, depth: float) -> float:
        """Nats saved by twice the depth, at 300 B tokens."""
        one = law(name)
        near, far = (12 * n * width**2 for n in (depth, 2 * depth))
        return float(
            one.loss(Features(body=near, total=near, width=width, depth=depth, tokens=3e11))
            - one.loss(Features(body=far, total=far, width=width, depth=2 * depth, tokens=3e11))
        )

    forms: dict[str, Callable[[int], float]] = {
        "long_form": lambda w: published_depths(w).log2,
        "short_form": lambda w: published_depths(w).ln,
    }
    gains = {
        (form, width): [gain(name, width, at(width)) for name in SHAPED_LAWS]
        for form, at in forms.items() for width in (256, 1024, 4096)
    }  # fmt: skip
    numbers = {form: at(256) for form, at in forms.items()}
    numbers |= {f"gpt3_{form}": at(12_288) for form, at in forms.items()}
    numbers |= {f"twice_{form}": min(gains[form, 256]) for form in forms}
    numbers |= {f"aspect_{a:g}": _excess("aspect", a) for a in (4.0, 8.0)}
    wrong = all(value > 0 for values in gains.values() for value in values)
    return Checked("wrong" if wrong else "unverifiable", numbers)


def _excess(name: str, aspect: float, body: float = 1e9) -> float:
    """Loss over the least of all aspect ratios, at one body and 20 tokens a parameter of it."""
    import numpy as np

    one = law(name)
    every = one.loss(shaped(body, 20 * body, np.geomspace(4, 400, 800)))  # type: ignore[arg-type]
    return float(one.loss(shaped(body, 20 * body, aspect))) - float(np.min(every))


@check("width-grows-faster")
def width_grows_faster(_: Claim) -> Checked:
    """Wrong if no law that sees width and depth comes near 2.8."""
    ends = (1e20, 4e21)
    span = math.log(ends[1] / ends[0])
    width, depth = [], []
    for name in SHAPED_LAWS:
        first, last = (_best_shape(name, flops) for flops in ends)
        width.append(math.log(last[0] / first[0]) / span)
        depth.append(math.log(last[1] / first[1]) / span)
    ratios = [w / d for w, d in zip(width, depth, strict=True)]
    numbers = _spread(width, "width") | _spread(depth, "depth") | _spread(ratios, "ratio")
    return Checked("wrong" if max(ratios) < 2.5 else "approximate", numbers)


def _best_shape(name: str, flops: float) -> tuple[float, float]:
    """Width and depth of the least loss for FLOPs, both free."""

    def least(aspect: float) -> float:
        found = compute_optimal(name, flops, aspect=aspect).loss
        assert found is not None
        return found

    low, high = math.log(4), math.log(400)
    while high - low > 1e-3:  # the loss has one minimum in ln(W/L)
        third = (high - low) / 3
        if least(math.exp(low + third)) < least(math.exp(high - third)):
            high -= third
        else:
            low += third
    aspect = math.exp((low + high) / 2)
    best = compute_optimal(name, flops, aspect=aspect)
    f = Spending(flops=flops, aspect=aspect).features(best.size)
    return float(f.width), float(f.depth)


@check("hundred")
def hundred(_: Claim) -> Checked:
    """Approximate if 100 costs something by every law, and 256 more than twice as much."""
    import numpy as np

    aspects = np.geomspace(4, 400, 800)
    best, at = [], {100: list[float](), 256: list[float]()}
    for name in SHAPED_LAWS:
        losses = law(name).loss(shaped(1e9, 2e10, aspects))  # type: ignore[arg-type]
        best.append(float(aspects[int(np.argmin(losses))]))
        for aspect, values in at.items():
            values.append(_excess(name, aspect))
    numbers = _spread(best, "best")
    numbers |= _spread(at[100], "at_100") | _spread(at[256], "at_256")
    costs = min(at[100]) > 0.002 and max(at[100]) < 0.02
    worse = all(b > 2 * a for a, b in zip(at[100], at[256], strict=True))
    return Checked("approximate" if costs and worse else "wrong", numbers)


@check("vocabulary-root")
def vocabulary_root(_: Claim) -> Checked:
    """Wrong if the exponent of V is far from a half."""
    ends = (1e19, 1e20)
    span = math.log(ends[1] / ends[0])
    widths = [_best_shape("aspect", flops)[0] for flops in ends]
    sizes = [best_for_compute(flops, 16.0, 1).best for flops in ends]
    table, width = (math.log(x[1] / x[0]) / span for x in (sizes, widths))
    numbers = {"table": table, "width": width, "vocabulary": table - width}
    return Checked("wrong" if abs(table - width - 0.5) > 0.1 else "approximate", numbers)


@check("depth-power")
def depth_power(_: Claim) -> Checked:
    """Wrong if 12 L W² is another number than P in both readings."""
    units, billions = 7e9, 7.0
    layers, width = (0.7 * units**0.2, 0.9 * units**0.4)
    few, narrow = (0.7 * billions**0.2, 0.9 * billions**0.4)
    body, small = 12 * layers * width**2, 12 * few * narrow**2
    numbers = {
        "units_layers": layers, "units_width": width, "units_body": body, "billions_layers": few,
        "billions_width": narrow,
        "right_body": 12 * 22.4 * billions**0.2 * (1929 * billions**0.4) ** 2,
    }  # fmt: skip
    far = all(abs(math.log(n / units)) > math.log(2) for n in (body, small))
    return Checked("wrong" if far else "approximate", numbers)


@check("tie-below")
def tie_below(one: Claim) -> Checked:
    """Approximate if 5 % is undecided by what was measured of tying, and the rule's share is not.

    At N in all and a share s the tied body is N (1 − s) and the untied one N (1 − 2 s).
    """

    def cost(share: float) -> float:
        known: Any = law("aspect")
        tied, untied = (shaped(1e9 * (1 - n * share), 2e10, 64.0) for n in (1, 2))
        return float(known.loss(untied) - known.loss(tied))

    low, high = 0.0, 0.4
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if cost(middle) < one.measured["largest"] else (low, middle)
    numbers = {"cost_5": cost(0.05), "cost_15": cost(TIE_ABOVE), "decided": high}
    decided = 0.05 < high < TIE_ABOVE
    return Checked("approximate" if decided else "wrong", numbers)
