"""Why nothing is feasible: which limits bind, what each would have to be, what comes nearest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from scantling.search.axes import bounded_axes
from scantling.search.objectives import limits
from scantling.search.space import space
from scantling.search.sweep import sweep

if TYPE_CHECKING:
    from scantling.search import Front
    from scantling.search.budget import Budget
    from scantling.search.tally import Near


def infeasible(front: Front) -> dict[str, Any]:
    """The part of ``design --json`` that says why no shape keeps every limit.

    ``binding`` lists limits with what is allowed and needed. A limit with ``alone`` would make a
    shape feasible if it alone were so: for costs the least that a shape needs which keeps all
    others. Where no single limit suffices, ``together`` is the smallest joint change: what the
    shape needs whose worst miss, as a ratio, is the least. ``closest`` are the shapes nearest to
    the limits, built, with what each needs. ``size`` is the nearest size tried at which every
    limit holds as it is, None where none was found.
    """
    swept, b = front.swept, front.budget
    found = _costs(front) or _sizes(front)
    together = []
    if swept.tally.near and not any(row["alone"] for row in found):
        together = [row for row in found if row["limit"] in swept.tally.near[0].needs]
    return {
        "binding": found, "together": together, "size": feasible_size(b),
        "removed": swept.removed,
        "closest": [_closest(c, near, b) for c, near in zip(front.closest, swept.nearest,
                                                           strict=True)],
    }  # fmt: skip


def _costs(front: Front) -> list[dict[str, Any]]:
    """Limits on costs that no shape keeps together, by the shapes of the right size and kind."""
    tally = front.swept.tally
    if not tally.near:
        return []
    joint = tally.near[0].needs
    found = []
    for one in limits(front.budget):
        alone = tally.least.get(one.name)
        needed = joint.get(one.name) if alone is None else alone
        if needed is not None and needed > one.most:
            found.append({
                "limit": one.name, "allowed": one.most, "needed": needed,
                "alone": alone is not None, "unit": one.unit, "option": one.option,
            })  # fmt: skip
    return found


SMALLER = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
LARGER = (1.05, 1.1, 1.2, 1.35, 1.5, 2.0)
"""Shares of the size asked for that are tried, the nearest first."""
FEW_SHAPES = 3_000_000
"""Larger spaces are not searched again at other sizes."""


def feasible_size(b: Budget) -> int | None:
    """The nearest size of a coarse ladder at which the other limits of a budget can be kept.

    Costs fall with the size and the loss with its growth, so a model to beat asks for a larger one.

    Example:
        >>> from scantling.search.budget import budget
        >>> b = budget(params="125M", vocab_size=50304, tokens="2.5B", days=0.02)
        >>> 0.1 * b.params < feasible_size(b) < b.params
        True
    """
    if not limits(b) or space(b).size > FEW_SHAPES:
        return None
    for share in LARGER if b.beat is not None else SMALLER:
        active = None if b.active is None else round(b.active * share)
        other = replace(b, params=round(b.params * share), active=active)
        if sweep(space(other), other).feasible:
            return other.params
    return None


def _sizes(front: Front) -> list[dict[str, Any]]:
    """Limits that no shape keeps before any cost is asked: its size, its axes, its splits."""
    swept, b = front.swept, front.budget
    tally = swept.tally
    found = []

    def add(limit: str, *, alone: bool, needed: int | None = None) -> None:
        size, name = needed is not None, limit.partition(" ")[0]
        bound = f"--bound {name}=low:high" if name in bounded_axes(b) else None
        found.append({
            "limit": limit, "allowed": b.params if size else None, "needed": needed,
            "alone": alone, "unit": "parameters" if size else None,
            "option": "--params" if size else bound,
        })  # fmt: skip

    for name, count in swept.removed.items():
        if name.startswith("params"):
            nearest = tally.sized or tally.closest
            if nearest and (tally.only.get(name) or count >= swept.evaluated):
                add(name, alone=bool(tally.sized), needed=nearest[0].row[-1])
        elif tally.only.get(name) or (count and not swept.evaluated):
            add(name, alone=bool(tally.only.get(name)))
    if not swept.considered:
        axes = ", ".join((*b.fixed, *b.bounded)) or "n_head"
        add(f"no shape has the axes asked for: {axes}", alone=False)
    return found


def _closest(c: Any, near: Near, b: Budget) -> dict[str, Any]:
    """A shape that keeps not every limit, with what it costs and needs."""
    from scantling.search.candidate import hf_config

    return {
        "name": c.name, "dims": c.dims(), **c.dims(), "tied": c.spec.tied,
        "total": int(c.counted.total), "needs": near.needs, "training_days": c.days,
        "loss": c.loss, "decode_s": float(c.decode.value_s), "hf_config": hf_config(c.spec),
        "kv_bytes_per_token": c.kv_growth, "tokens": b.tokens,
    }  # fmt: skip
