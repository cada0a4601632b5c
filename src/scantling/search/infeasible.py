"""Why nothing is feasible: which limits bind, what each would have to be, what comes nearest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scantling.search.objectives import limits

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
    the limits, built, with what each needs.
    """
    swept, b = front.swept, front.budget
    found = _costs(front) or _sizes(front)
    together = []
    if swept.tally.near and not any(row["alone"] for row in found):
        together = [row for row in found if row["limit"] in swept.tally.near[0].needs]
    return {
        "binding": found, "together": together, "removed": swept.removed,
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


def _sizes(front: Front) -> list[dict[str, Any]]:
    """Limits that no shape keeps before any cost is asked: its size, its axes, its splits."""
    swept, b = front.swept, front.budget
    tally = swept.tally
    found = []

    def add(limit: str, *, alone: bool, needed: int | None = None) -> None:
        size = needed is not None
        found.append({
            "limit": limit, "allowed": b.params if size else None, "needed": needed,
            "alone": alone, "unit": "parameters" if size else None,
            "option": "--params" if size else None,
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
        "kv_bytes_per_token": c.kv_bytes_per_token, "tokens": b.tokens,
    }  # fmt: skip
