"""From a budget to the shapes worth training: ``design``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from scantling import catalog
from scantling.costs.count import flops, parameters
from scantling.costs.estimate import DAY_S
from scantling.errors import UnknownNameError
from scantling.executor import ENGINES
from scantling.laws import law
from scantling.search.budget import Budget, Range, budget, least_days
from scantling.search.candidate import Candidate, candidate, difference, findings, to_json
from scantling.search.choice import Chosen, choose
from scantling.search.explain import explain, explain_all, set_by_all
from scantling.search.infeasible import infeasible
from scantling.search.peers import nearest_sparse
from scantling.search.plans import Plans
from scantling.search.shape_findings import axis_value, binding
from scantling.search.shape_priors import narrowed
from scantling.search.space import Axis, Space, list_legal, space, unpriced
from scantling.search.sweep import Swept, sweep
from scantling.search.trail import trail
from scantling.search.trained import plan_cell, plan_json, plan_text, planned, planned_alike

MANY_SHAPES = 30_000_000
"""Above this a sweep takes some ten seconds on one core, and ``auto`` takes all of them."""


ROWS = 12
"""Candidates of a front that are shown, and planned, unless more are asked for."""


class Front(Struct, frozen=True, kw_only=True):
    """The answer of ``design``: the shapes worth having, and the choice among them."""

    budget: Budget
    swept: Swept
    candidates: tuple[Candidate, ...]
    """Non-dominated, thinned to what is worth reading, best loss first."""
    choice: int
    equal: tuple[int, ...]
    """Candidates whose loss the law cannot tell from the best."""
    groups: tuple[tuple[int, ...], ...]
    """Candidates whose losses the law cannot tell apart, best group first, each ranked by cost."""
    equal_within: float
    baselines: tuple[Candidate, ...]
    axes: tuple[Axis, ...]
    seconds: float
    closest: tuple[Candidate, ...] = ()
    """The shapes nearest to the limits, where none keeps them all."""

    @property
    def feasible(self) -> bool:
        """Whether any shape keeps every limit."""
        return bool(self.candidates)

    @property
    def chosen(self) -> Candidate:
        """The chosen shape."""
        return self.candidates[self.choice]

    def spread(self, n: int = ROWS) -> list[int]:
        """Some candidates: the choice, both ends, and an even spread by loss between."""
        last = len(self.candidates) - 1
        n = min(n, last + 2)  # all of them
        return sorted({round(i * last / max(n - 2, 1)) for i in range(n - 1)} | {self.choice})


def design(
    b: Budget | None = None, *, baselines: tuple[str, ...] | None = None,
    progress: Callable[[int, int], None] | None = None, engine: str = "here",
    workers: int | None = None, **limits: Any,
) -> Front:  # fmt: skip
    """Search all shapes of a budget.

    Args:
        b: A budget, or give its limits as keywords (see ``Budget``).
        baselines: Models to put beside the front; by default the three nearest known ones.
        progress: Called with (shapes done, shapes in all).
        engine: Where the sweep runs: ``here``, ``pool`` or ``ray`` (``executor.run``), or ``auto``:
            a pool where there are so many shapes that it is worth starting.
        workers: Processes of the engine; all cores unless given.
        **limits: The fields of ``Budget``; params or flops is needed.

    Returns:
        The front with a choice. It is empty when nothing keeps every limit; ``swept.tally``
        then says what each limit removed and would have to be (``infeasible``).

    The choice: see ``choice.choose``; see there also what the number of chips moves.

    Raises:
        FieldError: For contradictory or unreadable limits, or an unknown engine.

    Example:
        >>> front = design(params=125_000_000, vocab_size=50304, n_gpu=8)
        >>> abs(front.chosen.counted.total / 125e6 - 1) < 0.005
        True
    """
    if engine not in {"auto", *ENGINES}:
        raise UnknownNameError("engine", engine, ("auto", *ENGINES))
    started = time.perf_counter()
    b = narrowed(budget(**limits) if b is None else b)
    shapes = space(b)
    if engine == "auto":
        engine = "pool" if shapes.size > MANY_SHAPES else "here"

    def search(one: Budget) -> Swept:
        done = 0

        def report(n: int) -> None:
            nonlocal done
            done += n
            if progress is not None:
                progress(done, shapes.size)

        return sweep(shapes, one, progress=report, engine=engine, workers=workers)

    b = _given_alike(b, shapes, search)
    swept = search(b)
    found, within = _choice(swept, shapes, b)
    rows = tuple(_candidate(row, shapes, b) for row in found.rows)
    return Front(
        budget=b, swept=swept, candidates=rows, choice=found.at, equal_within=within,
        equal=tuple(sorted(found.groups[0])) if rows else (), groups=found.groups,
        baselines=tuple(_baselines(b, baselines)), axes=tuple(unpriced(b)),
        closest=() if rows else tuple(_candidate(n.row, shapes, b) for n in swept.nearest),
        seconds=time.perf_counter() - started,
    )  # fmt: skip


def _given_alike(b: Budget, shapes: Space, search: Callable[[Budget], Swept]) -> Budget:
    """The budget with what it gives every shape: the time or FLOPs of a limit on them.

    Without such a limit, what the shape takes that is chosen at equal tokens.
    """
    days = least_days(b.days, b.gpu_hours, b.n_gpu)
    if b.equal == "tokens" or b.alike is not None:
        return b
    if b.equal == "wall-clock" and days:
        return replace(b, alike=days * DAY_S)
    if b.equal == "flops" and b.flops:
        return replace(b, alike=float(b.flops))
    plain = replace(b, equal="tokens")
    swept = search(plain)
    if swept.stopped:
        raise KeyboardInterrupt
    if not len(swept.rows):
        return plain
    found = _choice(swept, shapes, plain)[0]
    c = _candidate(found.rows[found.at], shapes, plain)
    if b.equal == "wall-clock":
        return replace(b, alike=float(c.train.value_s))
    one = flops(c.spec, 1, b.train_context)
    return replace(b, alike=float(one.train / one.tokens * b.tokens))


def _choice(swept: Swept, shapes: Space, b: Budget) -> tuple[Chosen, float]:
    """The shapes worth reading and the choice among them, and the error of the law."""
    if not len(swept.rows):
        return Chosen(swept.rows, swept.objectives, 0, ()), 0.0
    if b.kind != "decoder":
        return choose(swept.rows, swept.objectives, b, 0.0), 0.0
    best = _candidate(swept.rows[int(swept.objectives[:, 0].argmin())], shapes, b)
    gap = law(b.law).difference(best.features, best.features)
    within = (float(gap.high) - float(gap.low)) / 2
    return choose(swept.rows, swept.objectives, b, within), within


def chosen(b: Budget) -> Candidate | None:
    """The choice of ``design`` alone, without the rest of its front; ``None`` where none fits.

    Example:
        >>> b = budget(params=125_000_000, vocab_size=50304, n_gpu=8)
        >>> chosen(b) == design(b, baselines=()).chosen
        True
    """
    b = narrowed(b)
    shapes = space(b)
    b = _given_alike(b, shapes, lambda one: sweep(shapes, one))
    swept = sweep(shapes, b)
    if not len(swept.rows):
        return None
    found = _choice(swept, shapes, b)[0]
    return _candidate(found.rows[found.at], shapes, b)


def _candidate(row: Any, shapes: Space, b: Budget) -> Candidate:
    """A shape of the front, counted again exactly through the operators."""
    one = candidate(shapes.spec(row), b)
    assert one.counted.total == int(row[-1]), "the sweep and the operators must agree"
    return one


def _baselines(b: Budget, names: tuple[str, ...] | None) -> list[Candidate]:
    if names is None and b.kind != "decoder":
        names = ()
    if names is None:
        models = catalog.nearest(b.params, b.vocab_size)
        if b.active is not None:
            models = nearest_sparse(b.params, b.active)
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


def row_plans(
    front: Front, n: int = ROWS, progress: Callable[[int, int], None] | None = None
) -> dict[str, Plans | None]:
    """By name the best plan of the choice, and where chips were given of every row shown.

    A model that cannot read the context has None.

    Args:
        front: A front with a choice.
        n: Candidates that are shown (``Front.spread``), beside the baselines.
        progress: Called with (rows done, rows in all).
    """
    c = front.chosen
    plan = planned(c.spec, front.budget, float(c.features.tokens))
    found: dict[str, Plans | None] = {c.name: plan}
    if front.budget.chips_given:
        rows = [*(front.candidates[i] for i in front.spread(n)), *front.baselines]
        for done, row in enumerate(rows):
            if row is not c:
                found[row.name] = planned_alike(row, plan)
            if progress is not None:
                progress(done + 1, len(rows))
    return found


def front_json(
    front: Front, *, reasons: bool = True, plans: dict[str, Plans | None] | None = None
) -> dict[str, Any]:
    """The whole answer by the contract of ``design --json``; plans are ``row_plans`` unless given.

    Without ``reasons`` there are no plans.
    """
    import msgspec

    swept, b = front.swept, front.budget
    head: dict[str, Any] = {
        "schema": 1,
        "budget": msgspec.to_builtins(b),
        "search": {
            "considered": swept.considered, "evaluated": swept.evaluated,
            "feasible": swept.feasible, "stopped": swept.stopped,
            "seconds": round(front.seconds, 3),
            "shapes_per_second": round(swept.evaluated / max(front.seconds, 1e-9)),
        },
    }  # fmt: skip
    if not front.feasible:
        return {**head, "feasible": False, **infeasible(front), "trail": trail(front)}
    reference = front.chosen
    rows = []
    if plans is None:
        plans = row_plans(front) if reasons else {}
    for i, c in enumerate(front.candidates):
        row = to_json(c, reference)
        chosen = i == front.choice
        _add_plan(row, plans.get(c.name))
        row["why"] = explain_all(c) if reasons and chosen else set_by_all(c)
        rows.append(row)
    return {
        **head, "feasible": True, "front": rows, "choice": front.choice,
        "equal": [list(group) for group in front.groups], "equal_within_nats": front.equal_within,
        "unpriced": binding_axes(front), "trail": trail(front),
        "baselines": [_add_plan(to_json(c, reference), plans.get(c.name))
                      for c in front.baselines],
    }  # fmt: skip


def _add_plan(row: dict[str, Any], plan: Plans | None) -> dict[str, Any]:
    if plan is not None:
        row["train"]["plan"] = plan_json(plan)
    return row


__all__ = [
    "ROWS", "Budget", "Candidate", "Front", "Range", "binding_axes", "budget", "candidate",
    "chosen",
    "design", "difference", "explain", "explain_all", "findings", "front_json", "infeasible",
    "list_legal", "parameters", "plan_cell", "plan_text", "planned", "row_plans",
]  # fmt: skip
