"""The sweep: every shape of a space, in chunks, through a cascade of ever dearer questions.

Counts come first, by linear forms; only shapes that keep every cheap limit are walked operator by
operator, for their loss, training time, time per token and memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from scantling.costs.deployment_mask import splits
from scantling.executor import check, run
from scantling.laws.features import inside
from scantling.search.axes import OF_EXPERTS, bounded_axes
from scantling.search.axes import limits as words
from scantling.search.budget import Budget
from scantling.search.forms import Counted, count, forms
from scantling.search.front import fold
from scantling.search.objectives import Costs, Limit, limits, names
from scantling.search.space import CHUNK, Space, limit
from scantling.search.tally import Near, Tally, empty
from scantling.spec import Spec, vary
from scantling.spec.plan import Plan

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KV_LIMIT = "KV bytes per token"
"""The one limit on a cost that is known before a shape is priced."""
PART = 2**20
"""Shapes of a part, what one job sweeps; fixed, as batches are."""
BATCH = 8192
"""Shapes priced at once; fixed, so that results do not depend on the size of chunks."""


FAR = 0.25
"""A shape whose active size is off by more is not asked anything else: most mixtures are."""


class Swept(Struct, frozen=True):
    """What a sweep found: the rows of its front with their objectives, and what it removed."""

    rows: NDArray[np.int64]
    objectives: NDArray[np.float64]
    """A column for each of ``objectives.names``."""
    columns: tuple[str, ...]
    """What the rows say; 0 where a structure has no such dimension."""
    considered: int
    """Shapes of the space before the limits that its rows alone decide."""
    evaluated: int
    """Shapes counted."""
    feasible: int
    tally: Tally
    stopped: bool = False
    """Whether an interrupt came before the whole space was seen."""

    @property
    def removed(self) -> dict[str, int]:
        """How many shapes each limit removed; one shape can break several."""
        return self.tally.removed

    @property
    def least(self) -> dict[str, float]:
        """For each limit on a cost, the least that a shape keeping the other limits needs."""
        return self.tally.least

    @property
    def nearest(self) -> list[Near]:
        """Where none keeps all: the shapes nearest in costs, else in size alone, else in size."""
        missed = [] if self.feasible else self.tally.near or self.tally.sized
        return missed or self.tally.closest

    @property
    def closest(self) -> list[dict[str, int]]:
        """Their dimensions."""
        return [dict(zip(self.columns, one.row, strict=True)) for one in self.nearest]


def feasibility(c: Counted, b: Budget) -> dict[str, NDArray[np.bool_]]:
    """Per hard limit the mask of shapes that keep it, cheap limits only."""
    import numpy as np

    share: Any = abs(c.total / b.params - 1)
    found: dict[str, Any] = {f"params within ±{b.tolerance:.2%}": share <= b.tolerance}
    if b.active is not None:
        off: Any = abs(c.active / b.active - 1)
        found[_active_limit(b)] = off <= b.active_tolerance
    for name in bounded_axes(b):
        value = _ratio(c, name)
        axis = limit(b, name)
        if value is not None and (axis.low is not None or axis.high is not None):
            found[f"{name} {words(axis.low, axis.high)}"] = inside(value, axis.low, axis.high)
    for name in c.family.solved:
        if name in b.bounded:
            asked = b.bounded[name]
            column = c.family.dims(c.row, c.depth, c.width)[name]
            found[f"{name} as bounded"] = (column >= asked.low) & (column <= asked.high)
    if b.kv_bytes_per_token is not None:
        found[KV_LIMIT] = c.kv <= b.kv_bytes_per_token * b.serve_context
    return {name: np.broadcast_to(mask, len(share)) for name, mask in found.items()}


def _active_limit(b: Budget) -> str:
    return f"active within ±{b.active_tolerance:.2%}"


def _ratio(c: Counted, name: str) -> Any:
    """A bounded ratio that depends on the solved width; None where rows alone decide it."""
    if name == "mlp_attention_ratio":
        return c.mlp / c.attention
    if name not in {"ffn_width_ratio", *OF_EXPERTS} or name == "active_share":
        return None
    width: Any = c.family.rows["d_model"][c.row]
    if name == "active_width_ratio":
        times = c.family.rows["top_k"][c.row] + c.family.solved.get("d_shared", 0)
        return times * c.width / width
    return c.width * c.family.mean_width / width


def sweep(
    space: Space, b: Budget, chunk: int = CHUNK, progress: Callable[[int], None] | None = None,
    *, engine: str = "here", workers: int | None = None, far: float = FAR,
) -> Swept:  # fmt: skip
    """Evaluate a whole space and keep the non-dominated shapes.

    Chunks keep memory bounded. The front is folded batch by batch and part by part, which gives
    the same front for any chunk size and any engine. An interrupt ends the sweep with what it has.

    Args:
        space: The shapes.
        b: The budget.
        chunk: Shapes at once.
        progress: Called with the number of shapes done since the last call.
        engine: What runs the parts (``executor.run``).
        workers: Of the engine; all cores unless given.
        far: How far off the active size may be of shapes that other limits are counted for; where
            none is so near, it is done again for all.
    """
    whole = _nothing(space, b, empty(space.removed))
    stopped = False
    check(engine, workers)
    engine = engine if space.size > PART else "here"
    shared = (b, limits(b), chunk, max(far, b.active_tolerance))
    try:
        for part in run(_part, space.parts(PART), shared=shared, engine=engine, workers=workers):
            rows, values = fold(whole.rows, whole.objectives, part.rows, part.objectives)
            whole.tally.merge(part.tally)
            whole = replace(
                whole, rows=rows, objectives=values, feasible=whole.feasible + part.feasible,
                evaluated=whole.evaluated + part.evaluated,
            )  # fmt: skip
            if progress is not None:
                progress(part.evaluated)
    except KeyboardInterrupt:
        stopped = True
    if space.size and not stopped and not whole.tally.closest and math.isfinite(far):
        return sweep(space, b, chunk, engine=engine, workers=workers, far=math.inf)
    return replace(whole, stopped=stopped)


def legal(space: Space, b: Budget) -> Iterator[tuple[NDArray[np.int64], Costs]]:
    """Every shape of the right size and kind, not only the front: batches of rows and costs."""
    far = max(FAR, b.active_tolerance)
    for index, dims in _batches(_kept(space, b, CHUNK, empty({}), far)):
        if len(dims["n_layer"]):
            costs = Costs(vary(space.families[index].spec, **dims), b)
            yield _rows(space, index, dims, costs.counted.total), costs


def _nothing(space: Space, b: Budget, tally: Tally) -> Swept:
    """A sweep of no shapes."""
    import numpy as np

    rows = np.empty((0, len(space.columns)), dtype=np.int64)
    values = np.empty((0, len(names(b))))
    return Swept(rows, values, space.columns, space.considered, 0, 0, tally)


def _part(shared: tuple[Budget, tuple[Limit, ...], int, float], part: Space) -> Swept:
    """Evaluate a piece of a space."""
    b, asked, chunk, far = shared
    tally = empty({})
    whole = _nothing(part, b, tally)
    for batch in _batches(_kept(part, b, chunk, tally, far)):
        whole = _with_survivors(whole, part, b, asked, *batch)
    return replace(whole, evaluated=part.size)


def _kept(
    space: Space, b: Budget, chunk: int, tally: Tally, far: float
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The shapes that keep every cheap limit, family by family and in order."""
    import numpy as np

    found = [forms(f, b) if len(f.counts) else {} for f in space.families]
    for some in space.chunks(chunk):
        family = space.families[some.index]
        counted = count(family, found[some.index], some.index, some.row, some.depth, b)
        if b.active is not None:
            near = np.flatnonzero(abs(counted.active / b.active - 1) <= far)
            if len(near) < len(counted.row):
                tally.drop(_active_limit(b), len(counted.row) - len(near))
                counted = counted.some(near)
        masks = feasibility(counted, b)
        for name, mask in masks.items():
            tally.remove(name, mask)
        free = {name: mask for name, mask in masks.items() if name != KV_LIMIT}
        keep = np.flatnonzero(np.logical_and.reduce(list(free.values())))
        _note_size(tally, counted, free, space, b)
        yield some.index, counted.dims(keep)


def _batches(parts: Iterator[tuple[int, dict[str, Any]]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The same shapes in equal batches of one family, the last of each shorter."""
    import numpy as np

    held: dict[str, Any] = {}
    index = -1
    for at, dims in parts:
        if at != index and held:
            yield index, held
            held = {}
        index = at
        held = {k: np.concatenate([held[k], v]) for k, v in dims.items()} if held else dims
        while len(held["n_layer"]) >= BATCH:
            yield index, {name: column[:BATCH] for name, column in held.items()}
            held = {name: column[BATCH:] for name, column in held.items()}
    if held:
        yield index, held


def _with_survivors(
    so_far: Swept, space: Space, b: Budget, asked: tuple[Limit, ...], index: int,
    dims: dict[str, Any],
) -> Swept:  # fmt: skip
    """Price the shapes that are of the right size and kind, and drop those that cost too much."""
    import numpy as np

    n = len(dims["n_layer"])
    if not n:
        return so_far
    spec = vary(space.families[index].spec, **dims)
    if b.quant is not None or b.tp > 1 or b.ep > 1:
        whole = np.broadcast_to(_sharded(spec, b), n)
        so_far.tally.remove(f"whole parts at {_split_text(b)}", whole)
        if not whole.all():
            dims = {name: column[whole] for name, column in dims.items()}
            n = int(np.count_nonzero(whole))
            if not n:
                return so_far
            spec = vary(space.families[index].spec, **dims)
    costs = Costs(spec, b)
    rows = _rows(space, index, dims, costs.counted.total)
    kept = so_far.tally.limit(costs, asked, lambda at: tuple(rows[at].tolist()),
                              counted=KV_LIMIT)  # fmt: skip
    values = np.stack(
        [np.broadcast_to(np.asarray(v, dtype=float), n) for v in costs.values().values()], axis=1
    )
    rows, values = fold(so_far.rows, so_far.objectives, rows[kept], values[kept])
    feasible = so_far.feasible + int(np.count_nonzero(kept))
    return replace(so_far, rows=rows, objectives=values, feasible=feasible)


def _sharded(spec: Spec, b: Budget) -> Any:
    """Whether heads, widths, experts, groups and blocks stay whole on each rank."""
    if b.quant is None and b.tp == 1 and b.ep == 1:
        return True
    experts = 1 if b.ep > 1 else None
    plan = Plan(tp=b.tp, ep=b.ep, expert_tp=experts)
    return splits(spec, "bf16" if b.quant is None else b.quant, plan)


def _split_text(b: Budget) -> str:
    named = (("tp", b.tp), ("ep", b.ep))
    parts = [f"{name} {degree}" for name, degree in named if degree > 1]
    return ", ".join([*parts, *([b.quant] if b.quant else [])])


def _rows(space: Space, index: int, dims: dict[str, Any], total: Any) -> NDArray[np.int64]:
    """Shapes of one family as rows of the columns of a space."""
    import numpy as np

    known = {**dims, "structure": index, "total": total}
    columns = [np.broadcast_to(known.get(name, 0), len(total)) for name in space.columns]
    return np.stack(columns, axis=1).astype(np.int64)


def _note_size(
    tally: Tally, c: Counted, masks: dict[str, NDArray[np.bool_]], space: Space, b: Budget
) -> None:
    """Remember the shapes nearest in size, for when nothing is feasible."""
    import numpy as np

    broken = tally.alone(masks)
    size = next(mask for name, mask in masks.items() if name.startswith("params"))

    def row(at: int) -> tuple[int, ...]:
        one = np.array([at])
        return tuple(_rows(space, c.index, c.dims(one), c.total[one])[0].tolist())

    distance = np.abs(c.total / b.params - 1)
    tally.off_size(distance, ~size & (broken == 1), row)
