"""The sweep: every shape of a space, evaluated in chunks by the costs' own code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from scantling.costs.cache import kv_cache
from scantling.costs.count import Parameters, parameters, solve_width
from scantling.costs.features import features
from scantling.laws import Features, law
from scantling.laws.features import inside
from scantling.ops import operators
from scantling.search.budget import Budget
from scantling.search.front import fold
from scantling.search.objectives import limited, objectives
from scantling.search.space import CHUNK, TIE_ABOVE, Space, limit, limits
from scantling.spec import Spec, Workload, masks, vary

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KV_LIMIT = "KV bytes per token"
COLUMNS = ("structure", "n_layer", "d_model", "d_head", "n_head", "n_kv_head", "d_ff", "total")


class Priced(Struct, frozen=True):
    """A column of shapes with the counts and loss the sweep gives each of them."""

    spec: Spec
    counted: Parameters
    forward_flops_per_token: Any
    kv_bytes_per_token: Any
    features: Features
    loss: Any


class Swept(Struct, frozen=True):
    """What a sweep found: the rows of its front with their objectives, and what it removed."""

    rows: NDArray[np.int64]
    objectives: NDArray[np.float64]
    considered: int
    """Shapes of the space before the limits on heads."""
    evaluated: int
    """Shapes priced."""
    feasible: int
    removed: dict[str, int]
    """How many shapes each limit removed; one shape can break several."""
    least: dict[str, float]
    """For each limit on a cost, the least that a shape keeping the other limits needs."""
    closest: list[dict[str, Any]]


def price(spec: Spec, b: Budget, multiple: int, width: int | None = None) -> Priced:
    """Parameters, FLOPs, KV bytes and loss of a column of shapes, the FFN width solved.

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
    f = features(spec, float(b.tokens), counted)
    return Priced(spec, counted, forward, cache, f, law(b.law).loss(f))


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
            found[f"{name} {limits(axis.low, axis.high)}"] = inside(value, axis.low, axis.high)
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
    *, merge: Callable[..., tuple[Any, Any]] = fold,
) -> Swept:  # fmt: skip
    """Evaluate a whole space and keep the non-dominated shapes.

    Chunks keep memory bounded; the front is folded chunk by chunk, which gives the same front
    for any chunk size.

    Args:
        space: The shapes.
        b: The budget.
        chunk: Rows at once.
        progress: Called with the number of shapes done since the last call.
        merge: What is kept of the rows so far and new ones, each with its objectives.
    """
    import numpy as np

    rows = np.empty((0, len(COLUMNS)), dtype=np.int64)
    values = np.empty((0, 4))
    tally = Tally(dict(space.removed), {}, [])
    feasible = evaluated = 0
    for index, columns in space.chunks(chunk):
        priced = price(columns, b, space.multiple, space.fixed_width)
        n = len(priced.counted.total)  # type: ignore[arg-type]
        evaluated += n
        masks_ = feasibility(priced, b)
        for name, mask in masks_.items():
            tally.remove(name, mask)
        keep = np.logical_and.reduce(list(masks_.values()))
        _note_closest(tally, priced, masks_, b)
        if keep.any():
            new_rows, new_values = _survivors(priced, keep, index, b, tally)
            feasible += len(new_rows)
            rows, values = merge(rows, values, new_rows, new_values)
        if progress is not None:
            progress(n)
    closest = [shape for _, shape in tally.closest]
    return Swept(
        rows, values, space.considered, evaluated, feasible, tally.removed, tally.least, closest
    )


class Tally(Struct):
    """What a sweep keeps count of beside its front."""

    removed: dict[str, int]
    least: dict[str, float]
    """Per limit, the least that any shape keeping the limits before it needs."""
    closest: list[tuple[float, dict[str, Any]]]

    def remove(self, name: str, mask: NDArray[np.bool_]) -> None:
        """Count the shapes a limit removes."""
        self.removed[name] = self.removed.get(name, 0) + int(mask.size - mask.sum())

    def need(self, name: str, values: NDArray[np.float64]) -> None:
        """Note the least of what a limit bounds."""
        if len(values):
            least = float(values.min())
            self.least[name] = min(self.least.get(name, least), least)


def _survivors(
    p: Priced, keep: NDArray[np.bool_], index: int, b: Budget, tally: Tally
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Time the shapes that keep every cheap limit, and drop those too slow."""
    import numpy as np

    dims = {k: getattr(p.spec, k) for k in COLUMNS[1:-1]}
    few = vary(p.spec, **{k: _take(v, keep) for k, v in dims.items()})
    again = price(few, b, 1, _take(dims["d_ff"], keep))
    found = objectives(again.spec, again.features, again.loss, again.kv_bytes_per_token, b)
    slow = np.zeros(len(again.loss), dtype=bool)
    for name, value, most in limited(found, b):
        tally.need(name, value)
        tally.remove(name, value <= most)
        slow |= value > most
    columns = [np.full(len(slow), index), *(getattr(few, k) for k in COLUMNS[1:-1])]
    rows = np.stack([*np.broadcast_arrays(*columns), again.counted.total], axis=1).astype(np.int64)
    values = np.stack([np.asarray(found[k], dtype=float) for k in found], axis=1)
    return rows[~slow], values[~slow]


def _take(column: Any, keep: NDArray[np.bool_]) -> Any:
    return column[keep] if hasattr(column, "dtype") else column


def _note_closest(tally: Tally, p: Priced, masks_: dict[str, NDArray[np.bool_]], b: Budget) -> None:
    """Remember the shapes nearest in size, and the least cache, for when nothing is feasible."""
    import numpy as np

    if KV_LIMIT in masks_:
        others = np.logical_and.reduce([m for name, m in masks_.items() if name != KV_LIMIT])
        tally.need(KV_LIMIT, p.kv_bytes_per_token[others])
    distance = np.abs(p.counted.total / b.params - 1)
    dims = {k: getattr(p.spec, k) for k in COLUMNS[1:-1]}
    for at in np.argsort(distance, kind="stable")[:3]:
        shape = {k: int(v[at]) if hasattr(v, "dtype") else int(v) for k, v in dims.items()}
        shape["total"] = int(p.counted.total[at])  # type: ignore[index]
        tally.closest.append((float(distance[at]), {**shape, "tied": p.spec.tied}))
    tally.closest.sort(key=lambda pair: pair[0])
    del tally.closest[3:]
