"""From a budget to the shapes worth training: ``design``."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from scantling import catalog
from scantling.costs.count import parameters
from scantling.laws import law
from scantling.search.budget import OBJECTIVES, Budget, Range, budget
from scantling.search.candidate import (
    Candidate,
    axis_value,
    binding,
    candidate,
    difference,
    findings,
    to_json,
)
from scantling.search.explain import explain, explain_all, set_by_all
from scantling.search.front import epsilons, knee, thin
from scantling.search.space import Axis, Space, list_legal, space, unpriced
from scantling.search.sweep import Swept, sweep


class Front(Struct, frozen=True, kw_only=True):
    """The answer of ``design``: the shapes worth having, and the choice among them."""

    budget: Budget
    swept: Swept
    candidates: tuple[Candidate, ...]
    """Non-dominated, thinned to what is worth reading, best loss first."""
    choice: int
    equal: tuple[int, ...]
    """Candidates whose loss the law cannot tell from the best."""
    equal_within: float
    baselines: tuple[Candidate, ...]
    axes: tuple[Axis, ...]
    seconds: float

    @property
    def feasible(self) -> bool:
        """Whether any shape keeps every limit."""
        return bool(self.candidates)

    @property
    def chosen(self) -> Candidate:
        """The chosen shape."""
        return self.candidates[self.choice]


def design(
    b: Budget | None = None, *, baselines: tuple[str, ...] | None = None,
    progress: Callable[[int, int], None] | None = None, **limits: Any,
) -> Front:  # fmt: skip
    """Search all shapes of a budget.

    Args:
        b: A budget, or give its limits as keywords (see ``Budget``).
        baselines: Models to put beside the front; by default the three nearest known ones.
        progress: Called with (shapes done, shapes in all).
        **limits: The fields of ``Budget``; params or flops is needed.

    Returns:
        The front with a choice. It is empty when nothing keeps every limit; ``swept.removed``
        then says how many shapes each limit removed.

    The choice: see ``_choose``; the number of chips does not move it.

    Raises:
        FieldError: For contradictory or unreadable limits.

    Example:
        >>> front = design(params=125_000_000, vocab_size=50304, n_gpu=8)
        >>> abs(front.chosen.counted.total / 125e6 - 1) < 0.005
        True
    """
    started = time.perf_counter()
    b = budget(**limits) if b is None else b
    shapes = space(b)
    done = 0

    def report(n: int) -> None:
        nonlocal done
        done += n
        if progress is not None:
            progress(done, shapes.size)

    swept = sweep(shapes, b, progress=report)
    rows, values, choice, within = _choose(swept, shapes, b)
    found = [_candidate(row, shapes, b) for row in rows]
    best = values[:, 0].min(initial=math.inf)
    peers = _baselines(b, baselines)
    return Front(
        budget=b, swept=swept, candidates=tuple(found), choice=choice,
        equal=tuple(i for i, loss in enumerate(values[:, 0]) if loss <= best + within),
        equal_within=within, baselines=tuple(peers), axes=tuple(unpriced(b)),
        seconds=time.perf_counter() - started,
    )  # fmt: skip


def chosen(b: Budget) -> Candidate | None:
    """The choice of ``design`` alone, without the rest of its front; ``None`` where none fits.

    Example:
        >>> b = budget(params=125_000_000, vocab_size=50304, n_gpu=8)
        >>> chosen(b) == design(b, baselines=()).chosen
        True
    """
    shapes = space(b)
    swept = sweep(shapes, b)
    if not len(swept.rows):
        return None
    rows, _, choice, _ = _choose(swept, shapes, b)
    return _candidate(rows[choice], shapes, b)


def _candidate(row: Any, shapes: Space, b: Budget) -> Candidate:
    """A shape of the front, counted again exactly through the operators."""
    one = candidate(shapes.spec(row), b)
    assert one.counted.total == int(row[-1]), "the sweep and the operators must agree"
    return one


def _choose(swept: Swept, shapes: Space, b: Budget) -> tuple[Any, Any, int, float]:
    """Rows worth reading with their objectives, the choice among them, and the law's error.

    The choice is made on the whole front, so it does not depend on how the front is thinned or
    on how many chips there are. Shapes whose loss lies within the law's own error of the best
    count as equal; among them the knee of loss and all costs is chosen. With weights it is the
    knee of the whole front, each objective as weighed.
    """
    import numpy as np

    rows, values = swept.rows, swept.objectives
    if not len(rows):
        return rows, values, 0, 0.0
    best = _candidate(rows[int(values[:, 0].argmin())], shapes, b)
    gap = law(b.law).difference(best.features, best.features)
    within = (float(gap.high) - float(gap.low)) / 2
    weights = tuple(b.weights.get(name, 0.0 if b.weights else 1.0) for name in OBJECTIVES)
    pool = np.arange(len(rows))
    if not b.weights:
        pool = np.flatnonzero(values[:, 0] <= values[:, 0].min() + within)
    at = int(pool[knee(values[pool], weights)])
    kept = np.unique([*thin(values, epsilons(values)), at])
    order = kept[np.lexsort((values[kept, 1], values[kept, 0]))]
    return rows[order], values[order], int(np.flatnonzero(order == at)[0]), within


def _baselines(b: Budget, names: tuple[str, ...] | None) -> list[Candidate]:
    if names is None:
        models = catalog.nearest(b.params, b.vocab_size)
    else:
        models = [catalog.load(name) for name in names]
    return [candidate(m.spec, b, m.name) for m in models]


def binding_axes(front: Front) -> list[dict[str, Any]]:
    """The unpriced axes with their bounds, and whether the choice lies on one."""
    found = []
    for axis in front.axes:
        value = None
        if front.feasible:
            value = axis_value(front.chosen.dims(), front.chosen.features, axis.name)
        on = False
        if value is not None and not axis.opened:
            on = binding(axis.name, value, axis.low, axis.high)
            on = on or (axis.low is not None and value < axis.low)
        found.append({
            "axis": axis.name, "bounds": [axis.low, axis.high], "binding": on,
            "value": None if value is None else float(value), "why": axis.why,
            "opened": axis.opened,
        })  # fmt: skip
    return found


def front_json(front: Front, *, reasons: bool = True) -> dict[str, Any]:
    """The whole answer by the contract of ``design --json``."""
    import msgspec

    swept, b = front.swept, front.budget
    head: dict[str, Any] = {
        "schema": 1,
        "budget": msgspec.to_builtins(b),
        "search": {
            "considered": swept.considered, "evaluated": swept.evaluated,
            "feasible": swept.feasible,
            "seconds": round(front.seconds, 3),
            "shapes_per_second": round(swept.evaluated / max(front.seconds, 1e-9)),
        },
    }  # fmt: skip
    if not front.feasible:
        return {**head, "feasible": False, **infeasible(front)}
    reference = front.chosen
    rows = []
    for i, c in enumerate(front.candidates):
        row = to_json(c, reference)
        row["why"] = explain_all(c) if reasons and i == front.choice else set_by_all(c)
        rows.append(row)
    return {
        **head, "feasible": True, "front": rows, "choice": front.choice,
        "equal": [list(front.equal)], "equal_within_nats": front.equal_within,
        "unpriced": binding_axes(front),
        "baselines": [to_json(c, reference) for c in front.baselines],
    }  # fmt: skip


def infeasible(front: Front) -> dict[str, Any]:
    """Why nothing is feasible: the limits that bind, what each removed, and the closest shapes."""
    swept, b = front.swept, front.budget
    allowed = {
        "training days": b.days, "GPU-hours": b.gpu_hours, "time per token": b.tpot_s,
        "KV bytes per token": b.kv_bytes_per_token,
    }  # fmt: skip
    found = [
        {"limit": name, "allowed": allowed[name], "needed": least}
        for name, least in swept.least.items() if least > (allowed[name] or 0)
    ]  # fmt: skip
    for name, count in swept.removed.items():
        if not swept.evaluated and count:
            found.append({"limit": name, "allowed": None, "needed": None})
        elif name.startswith("params") and count >= swept.evaluated:
            needed = swept.closest[0]["total"] if swept.closest else None
            found.append({"limit": name, "allowed": b.params, "needed": needed})
    if not swept.considered:
        axes = ", ".join((*b.fixed, *b.bounded)) or "n_head"
        what = f"no shape has the axes asked for: {axes}"
        found.append({"limit": what, "allowed": None, "needed": None})
    return {"binding": found, "removed": swept.removed, "closest": swept.closest}


__all__ = [
    "Budget", "Candidate", "Front", "Range", "binding_axes", "budget", "candidate", "chosen",
    "design", "difference", "explain", "explain_all", "findings", "front_json", "infeasible",
    "list_legal", "parameters",
]  # fmt: skip
