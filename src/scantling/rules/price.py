"""What a fix is worth: time, memory or loss, from the costs and the laws, with intervals."""

from __future__ import annotations

import math
from typing import Any

from scantling.costs.alignment import nearby
from scantling.costs.count import parameters, width_line
from scantling.costs.features import features
from scantling.errors import ScantlingError
from scantling.hardware import Chip, chip
from scantling.laws import Features, law, prior_terms
from scantling.laws.optimum import TOKENS_A_PARAMETER
from scantling.quantity import Quantity
from scantling.rules.subject import Subject
from scantling.spec import Dense, Experts, Spec, Workload, check, vary
from scantling.spec.vary import nodes

USUAL_CHIP = "h100-sxm"
"""Where times are priced if no chip was named."""
PRICED_TOKENS = 4096
"""Tokens of the step that is priced if no context was."""
DEFAULT_LAW = "aspect"
WITHIN = 0.01
"""A fix that keeps the parameters keeps them within 1 %."""


def priced_on(s: Subject) -> tuple[Chip, Workload, str]:
    """The chip and the work a time is priced for, in words too."""
    where = s.setting.chip or chip(USUAL_CHIP)
    dtype = "bf16" if "bf16" in where.dtypes else "fp16" if "fp16" in where.dtypes else "fp32"
    context = min(s.setting.context or PRICED_TOKENS, s.context or PRICED_TOKENS)
    phase: Any = "prefill" if s.setting.phase == "serve" else "train"
    work = Workload(phase, s.setting.batch or 1, context, dtype=dtype)
    named = "" if s.setting.chip is not None else ", the usual chip where none is named"
    return where, work, f"{phase} on {where.key}{named}, {work.batch} × {context} tokens, {dtype}"


def faster(s: Subject, field: str, value: int) -> Quantity | None:
    """Time now over time with a dimension changed: above 1 the change is faster."""
    where, work, text = priced_on(s)
    try:
        found = nearby(s.legal, field, work, where, (value,)).neighbours
    except ScantlingError:
        return None
    if not found:
        return None
    q = found[0].gain
    return Quantity(value=q.value, low=q.low, high=q.high, unit="times as fast", kind=q.kind,
                    why=(text, *q.why))  # fmt: skip


def changed(spec: Spec, **changes: Any) -> Spec | None:
    """The spec with dimensions changed, or None where that is no legal model."""
    try:
        return check(vary(spec, **changes))
    except ScantlingError:
        return None


def held(spec: Spec, changes: dict[str, int], multiple: int = 128) -> dict[str, int]:
    """Changes with the feed-forward width that holds the parameters, where they would move.

    Nothing is added where the total stays within 1 %, or where no multiple, nor a half or a
    quarter of it, does it.

    Example:
        >>> from scantling import catalog
        >>> held(catalog.model("qwen2.5-7b"), {"n_head": 32}, 512)
        {'n_head': 32, 'd_ff': 18432}
    """
    total: Any = parameters(spec).total
    if "d_expert" in changes and "n_expert" not in changes:
        changes = _fewer_experts(spec, changes)
    new = changed(spec, **changes)
    widths = {int(n.d_ff) for _, n in nodes(spec) if isinstance(n, Dense)}
    if new is None or len(widths) != 1 or "d_ff" in changes:
        return changes
    moved: Any = parameters(new).total
    if abs(moved / total - 1) <= WITHIN:
        return changes
    line = width_line(new)
    for step in (multiple, multiple // 2, multiple // 4):
        width: Any = line.width(total, step)
        after: Any = line.total(width)
        if abs(after / total - 1) <= WITHIN and changed(new, d_ff=int(width)) is not None:
            return {**changes, "d_ff": int(width)}
    return changes


def _fewer_experts(spec: Spec, changes: dict[str, int]) -> dict[str, int]:
    """Wider experts and fewer of them, E F_e and k F_e kept; unchanged where that is no model."""
    sizes = {(int(e.n_expert), int(e.top_k), int(e.d_expert)) for _, e in nodes(spec)
             if isinstance(e, Experts)}  # fmt: skip
    if len(sizes) != 1:
        return changes
    ((n, k, width),) = sizes
    times = width / changes["d_expert"]
    fewer = {"n_expert": max(8, round(n * times / 8) * 8), "top_k": max(1, round(k * times))}
    new = changed(spec, **changes, **fewer)
    good = new is not None and abs(_total(new) / _total(spec) - 1) <= WITHIN
    return {**changes, **fewer} if good else changes


def keeps_parameters(spec: Spec, changes: dict[str, int]) -> bool:
    """Whether changes leave the total within 1 %."""
    new = changed(spec, **changes)
    return new is not None and bool(abs(_total(new) / _total(spec) - 1) <= WITHIN)


def _total(spec: Spec) -> Any:
    return parameters(spec).total


def exact(value: float, unit: str, *why: str) -> Quantity:
    """A number that follows from the shape alone."""
    return Quantity(value=value, unit=unit, kind="exact", why=why)


def prior_loss(f: Features) -> Quantity | None:
    """What the axes that no law prices are expected to cost a shape, nats a token."""
    one = law(DEFAULT_LAW)
    raw = one.loss(f)
    price = prior_terms(f, raw, one.reference_ratio)
    value, high = float(price.expected), float(price.upper)
    why = ("prior terms of KV groups and feed-forward ratio (laws.toml)",)
    return Quantity(value=value, low=0.0, high=high, unit="nats/token", kind="fitted", why=why)


def loss_of_change(before: Spec, after: Spec, was: Features | None = None) -> Quantity:
    """Loss after a change minus loss before at equal tokens, by the default law and the priors.

    Args:
        before: The model.
        after: The model, changed.
        was: Its features at 20 tokens a parameter, where they are known already.
    """
    one = law(DEFAULT_LAW)
    if was is None:
        was = features(before, TOKENS_A_PARAMETER * float(_total(before)))
    now = features(after, was.tokens)
    d = one.difference(now, was)
    a, b = (prior_terms(f, one.loss(f), one.reference_ratio) for f in (now, was))
    prior = float(a.expected - b.expected)
    extra = abs(float(a.upper - a.expected) - float(b.upper - b.expected))
    half = math.hypot(float(d.high - d.low) / 2, extra)
    value = float(d.value) + prior
    why = (f"law {one.name} at {TOKENS_A_PARAMETER} tokens a parameter", f"source {one.source}")
    return Quantity(value=value, low=value - half, high=value + half, unit="nats/token",
                    kind="fitted", why=why)  # fmt: skip


def loss_at_aspect(s: Subject, aspect: float) -> Quantity:
    """Loss of this shape minus that of the same body at another width over depth.

    N is about 12 L D² at equal proportions, so D/L = a at equal body has
    D' = D (a L / D)^(1/3), L' = D' / a.
    """
    one, f = law(DEFAULT_LAW), s.features
    width, depth = float(f.width), float(f.depth)
    other_width = width * (aspect * depth / width) ** (1 / 3)
    from msgspec.structs import replace

    other = replace(f, width=other_width, depth=other_width / aspect)
    return one.difference_quantity(f, other)
