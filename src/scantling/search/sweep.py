"""The sweep: every shape of a space, evaluated in chunks by the costs' own code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from scantling.costs.cache import kv_cache
from scantling.costs.count import Parameters, parameters, solve_width
from scantling.costs.features import features
from scantling.executor import run
from scantling.laws import Features
from scantling.laws.features import inside
from scantling.ops import operators
from scantling.search.budget import Budget
from scantling.search.front import fold
from scantling.search.objectives import Costs, Limit, limits, names
from scantling.search.space import CHUNK, TIE_ABOVE, Space, limit
from scantling.search.space import limits as words
from scantling.search.tally import Near, Tally, empty
from scantling.spec import Spec, Workload, masks, vary

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KV_LIMIT = "KV bytes per token"
"""The one limit on a cost that is known before a shape is priced."""
PART = 2**20
"""Shapes of a part, what one job sweeps: about half a second between two words of progress."""
COLUMNS = ("structure", "n_layer", "d_model", "d_head", "n_head", "n_kv_head", "d_ff", "total")


class Priced(Struct, frozen=True):
    """A column of shapes with the counts that decide which of them are worth pricing."""

    spec: Spec
    counted: Parameters
    forward_flops_per_token: Any
    kv_bytes_per_token: Any
    features: Features


class Swept(Struct, frozen=True):
    """What a sweep found: the rows of its front with their objectives, and what it removed."""

    rows: NDArray[np.int64]
    objectives: NDArray[np.float64]
    """One column for each of ``objectives.names``."""
    considered: int
    """Shapes of the space before the limits on heads."""
    evaluated: int
    """Shapes priced."""
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
        return [dict(zip(COLUMNS, one.row, strict=True)) for one in self.nearest]


def price(spec: Spec, b: Budget, multiple: int, width: int | None = None) -> Priced:
    """Parameters, FLOPs and KV bytes of a column of shapes, the FFN width solved.

    Args:
        spec: A column spec whose ``d_ff`` is free.
        b: The budget.
        multiple: Alignment of the FFN width.
        width: A fixed FFN width instead of a solved one.
    """
    spec = vary(spec, d_ff=solve_width(spec, b.params, multiple) if width is None else width)
    ops = operators(spec, Workload("prefill", 1, 1))
    counted = parameters(spec)
    forward: Any = sum((op.flops() for op in ops if op.kind == "matmul"), start=0)
    cache = kv_cache(spec, context=1, kv_dtype=b.kv_dtype, ops=ops).bytes_per_token
    return Priced(spec, counted, forward, cache, features(spec, float(b.tokens), counted))


def feasibility(p: Priced, b: Budget) -> dict[str, NDArray[np.bool_]]:
    """Per hard limit the mask of shapes that keep it, cheap limits only."""
    import numpy as np

    share: Any = abs(p.counted.total / b.params - 1)
    found: dict[str, Any] = {f"params within ±{b.tolerance:.2%}": share <= b.tolerance}
    found |= dict(masks(p.spec))
    ratio = p.features.mlp_attention_ratio
    assert ratio is not None
    for name, value in (("mlp_attention_ratio", ratio),
                        ("ffn_width_ratio", p.spec.d_ff / p.spec.d_model)):  # fmt: skip
        axis = limit(b, name)
        if axis.low is not None or axis.high is not None:
            found[f"{name} {words(axis.low, axis.high)}"] = inside(value, axis.low, axis.high)
    if "d_ff" in b.bounded:
        asked = b.bounded["d_ff"]
        width: Any = p.spec.d_ff
        found["d_ff as bounded"] = (width >= asked.low) & (width <= asked.high)
    if b.tied is None:
        table: Any = p.spec.d_model * p.spec.vocab_size
        small = table <= TIE_ABOVE * b.params
        found["tying rule"] = ~small if p.spec.tied else small
    if b.kv_bytes_per_token is not None:
        found[KV_LIMIT] = p.kv_bytes_per_token <= b.kv_bytes_per_token
    return {name: np.broadcast_to(mask, len(share)) for name, mask in found.items()}


def sweep(
    space: Space, b: Budget, chunk: int = CHUNK, progress: Callable[[int], None] | None = None,
    *, engine: str = "here", workers: int | None = None,
) -> Swept:  # fmt: skip
    """Evaluate a whole space and keep the non-dominated shapes.

    Chunks keep memory bounded. The front is folded chunk by chunk and part by part, which gives
    the same front for any chunk size and any engine. An interrupt ends the sweep with what it has.

    Args:
        space: The shapes.
        b: The budget.
        chunk: Rows at once.
        progress: Called with the number of shapes done since the last call.
        engine: What runs the parts (``executor.run``).
        workers: Of the engine; all cores unless given.
    """
    size = chunk * max(1, PART // chunk)
    parts = [(first, min(first + size, space.size)) for first in range(0, space.size, size)]
    whole = _nothing(b, empty(space.removed))
    shared = (space, b, chunk, limits(b))
    results = run(_part, parts, shared=shared, engine=engine, workers=workers)
    stopped = False
    try:
        for part in results:
            whole = _joined(whole, part)
            if progress is not None:
                progress(part.evaluated)
    except KeyboardInterrupt:
        stopped = True
    return replace(whole, considered=space.considered, stopped=stopped)


def _nothing(b: Budget, tally: Tally) -> Swept:
    """A sweep of no shapes."""
    import numpy as np

    rows = np.empty((0, len(COLUMNS)), dtype=np.int64)
    return Swept(rows, np.empty((0, len(names(b)))), 0, 0, 0, tally)


def _joined(one: Swept, later: Swept) -> Swept:
    """Two neighbouring parts of a space as one; the first one's counts are added to."""
    rows, values = fold(one.rows, one.objectives, later.rows, later.objectives)
    one.tally.merge(later.tally)
    return Swept(rows, values, 0, one.evaluated + later.evaluated, one.feasible + later.feasible,
                 one.tally)  # fmt: skip


def _part(shared: tuple[Space, Budget, int, tuple[Limit, ...]], part: tuple[int, int]) -> Swept:
    """Evaluate the shapes of a space from one place to another."""
    import numpy as np

    space, b, chunk, asked = shared
    tally = empty({})
    whole = _nothing(b, tally)
    evaluated = 0
    for index, columns in space.chunks(chunk, *part):
        priced = price(columns, b, space.multiple, space.fixed_width)
        masks_ = feasibility(priced, b)
        for name, mask in masks_.items():
            tally.remove(name, mask)
        keep = np.logical_and.reduce([m for name, m in masks_.items() if name != KV_LIMIT])
        _note_size(tally, priced, masks_, index, b)
        evaluated += keep.size
        if keep.any():
            whole = _with_survivors(whole, priced, keep, index, b, asked)
    return replace(whole, evaluated=evaluated)


def _with_survivors(
    so_far: Swept, p: Priced, keep: NDArray[np.bool_], index: int, b: Budget,
    asked: tuple[Limit, ...],
) -> Swept:  # fmt: skip
    """Price the shapes that are of the right size and kind, and drop those that cost too much."""
    import numpy as np

    dims = {k: getattr(p.spec, k) for k in COLUMNS[1:-1]}
    few = vary(p.spec, **{k: _take(v, keep) for k, v in dims.items()})
    costs = Costs(few, b)
    total: Any = costs.counted.total

    columns = [np.full(len(total), index), *(getattr(few, k) for k in COLUMNS[1:-1])]
    rows = np.stack([*np.broadcast_arrays(*columns), total], axis=1).astype(np.int64)
    kept = so_far.tally.limit(costs, asked, lambda at: tuple(rows[at].tolist()), counted=KV_LIMIT)
    values = np.stack(
        [np.broadcast_to(np.asarray(v, dtype=float), len(kept)) for v in costs.values().values()],
        axis=1,
    )
    rows, values = fold(so_far.rows, so_far.objectives, rows[kept], values[kept])
    return replace(so_far, rows=rows, objectives=values, feasible=so_far.feasible + int(kept.sum()))


def _take(column: Any, keep: NDArray[np.bool_]) -> Any:
    return column[keep] if hasattr(column, "dtype") else column


def _row(spec: Spec, total: Any, index: int, at: int) -> tuple[int, ...]:
    """One row of a column of shapes."""
    dims = (getattr(spec, k) for k in COLUMNS[1:-1])
    found = (int(v[at]) if hasattr(v, "dtype") else int(v) for v in dims)
    return index, *found, int(total[at])


def _note_size(
    tally: Tally, p: Priced, masks_: dict[str, NDArray[np.bool_]], index: int, b: Budget
) -> None:
    """Remember the shapes nearest in size, for when nothing is feasible."""
    import numpy as np

    free = {name: mask for name, mask in masks_.items() if name != KV_LIMIT}
    broken = tally.alone(free)
    size: Any = next(mask for name, mask in free.items() if name.startswith("params"))
    total: Any = p.counted.total
    tally.off_size(np.abs(total / b.params - 1), ~size & (broken == 1),
                   lambda at: _row(p.spec, total, index, at))  # fmt: skip
