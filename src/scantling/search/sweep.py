"""The sweep: every shape of a space, in chunks, through a cascade of ever dearer questions.

Counts come first, by linear forms; only shapes that keep every cheap limit are walked operator by
operator, for their loss, training time, time per token and memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from scantling.costs.cache import kv_cache
from scantling.costs.count import Parameters, parameters
from scantling.costs.features import features
from scantling.laws import Features, law
from scantling.laws.features import inside
from scantling.search.axes import OF_EXPERTS, bounded_axes
from scantling.search.budget import OBJECTIVES, Budget
from scantling.search.forms import Counted, count, forms
from scantling.search.front import fold
from scantling.search.objectives import limited, objectives
from scantling.search.space import CHUNK, Space, limit, limits
from scantling.spec import Spec, vary

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KV_LIMIT = "KV bytes per token"
BATCH = 8192
"""Shapes priced at once; fixed, so that results do not depend on the size of chunks."""


class Priced(Struct, frozen=True):
    """A column of shapes, counted by operators, with the loss of each."""

    spec: Spec
    counted: Parameters
    kv_bytes_per_token: Any
    features: Features
    loss: Any


class Swept(Struct, frozen=True):
    """What a sweep found: the rows of its front with their objectives, and what it removed."""

    rows: NDArray[np.int64]
    objectives: NDArray[np.float64]
    columns: tuple[str, ...]
    """What the rows say; 0 where a structure has no such dimension."""
    considered: int
    """Shapes of the space before the limits that its rows alone decide."""
    evaluated: int
    """Shapes counted."""
    feasible: int
    removed: dict[str, int]
    """How many shapes each limit removed; one shape can break several."""
    least: dict[str, float]
    """For each limit on a cost, the least that a shape keeping the other limits needs."""
    closest: list[dict[str, Any]]


def price(spec: Spec, b: Budget) -> Priced:
    """Parameters, KV bytes and loss of a column of shapes."""
    counted = parameters(spec)
    cache = kv_cache(spec, context=1, kv_dtype=b.kv_dtype).bytes_per_token
    f = features(spec, float(b.tokens), counted)
    return Priced(spec, counted, cache, f, law(b.law).loss(f))


def feasibility(c: Counted, b: Budget) -> dict[str, NDArray[np.bool_]]:
    """Per hard limit the mask of shapes that keep it, cheap limits only."""
    import numpy as np

    share: Any = abs(c.total / b.params - 1)
    found: dict[str, Any] = {f"params within ±{b.tolerance:.2%}": share <= b.tolerance}
    if b.active is not None:
        off: Any = abs(c.active / b.active - 1)
        found[f"active within ±{b.active_tolerance:.2%}"] = off <= b.active_tolerance
    for name in bounded_axes(b):
        value = _ratio(c, name)
        axis = limit(b, name)
        if value is not None and (axis.low is not None or axis.high is not None):
            found[f"{name} {limits(axis.low, axis.high)}"] = inside(value, axis.low, axis.high)
    for name in c.family.solved:
        if name in b.bounded:
            asked = b.bounded[name]
            column = c.family.dims(c.row, c.depth, c.width)[name]
            found[f"{name} as bounded"] = (column >= asked.low) & (column <= asked.high)
    if b.kv_bytes_per_token is not None:
        found[KV_LIMIT] = c.kv <= b.kv_bytes_per_token
    return {name: np.broadcast_to(mask, len(share)) for name, mask in found.items()}


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
    return c.width / width


def sweep(
    space: Space, b: Budget, chunk: int = CHUNK, progress: Callable[[int], None] | None = None,
    *, merge: Callable[..., tuple[Any, Any]] = fold,
) -> Swept:  # fmt: skip
    """Evaluate a whole space and keep the non-dominated shapes.

    Chunks keep memory bounded; the front is folded batch by batch, which gives the same front
    for any chunk size.

    Args:
        space: The shapes.
        b: The budget.
        chunk: Shapes at once.
        progress: Called with the number of shapes done since the last call.
        merge: What is kept of the rows so far and new ones, each with its objectives.
    """
    import numpy as np

    rows = np.empty((0, len(space.columns)), dtype=np.int64)
    values = np.empty((0, len(OBJECTIVES)))
    tally = Tally(dict(space.removed), {}, [])
    feasible = 0
    for batch in _batches(_kept(space, b, chunk, tally, progress)):
        new_rows, new_values = _survivors(space, batch, b, tally)
        feasible += len(new_rows)
        rows, values = merge(rows, values, new_rows, new_values)
    closest = [shape for _, shape in tally.closest]
    return Swept(
        rows, values, space.columns, space.considered, space.size, feasible, tally.removed,
        tally.least, closest,
    )  # fmt: skip


class Tally(Struct):
    """What a sweep keeps count of beside its front."""

    removed: dict[str, int]
    least: dict[str, float]
    """Per limit, the least that any shape keeping the limits before it needs."""
    closest: list[tuple[float, dict[str, Any]]]

    def remove(self, name: str, mask: NDArray[np.bool_]) -> None:
        """Count the shapes a limit removes."""
        self.removed[name] = self.removed.get(name, 0) + int(mask.size - np_count(mask))

    def need(self, name: str, values: NDArray[np.float64]) -> None:
        """Note the least of what a limit bounds."""
        if len(values):
            least = float(values.min())
            self.least[name] = min(self.least.get(name, least), least)


def np_count(mask: NDArray[np.bool_]) -> int:
    """True members of a mask."""
    import numpy as np

    return int(np.count_nonzero(mask))


def _kept(
    space: Space, b: Budget, chunk: int, tally: Tally, progress: Callable[[int], None] | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The shapes that keep every cheap limit, family by family and in order."""
    import numpy as np

    found = [forms(family, b.kv_dtype) if len(family.counts) else {} for family in space.families]
    for part in space.chunks(chunk):
        family = space.families[part.index]
        counted = count(family, found[part.index], part.index, part.row, part.depth, b)
        masks = feasibility(counted, b)
        for name, mask in masks.items():
            tally.remove(name, mask)
        _note_closest(tally, counted, masks, b)
        keep = np.flatnonzero(np.logical_and.reduce(list(masks.values())))
        yield part.index, counted.dims(keep)
        if progress is not None:
            progress(len(part.row))


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


def _survivors(
    space: Space, batch: tuple[int, dict[str, Any]], b: Budget, tally: Tally
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Price the shapes that keep every cheap limit, and drop those that break a dear one."""
    import numpy as np

    index, dims = batch
    n = len(dims["n_layer"])
    if not n:
        return np.empty((0, len(space.columns)), np.int64), np.empty((0, len(OBJECTIVES)))
    p = price(vary(space.families[index].spec, **dims), b)
    found = objectives(p.spec, p.features, p.loss, p.kv_bytes_per_token, b)
    slow = np.zeros(n, dtype=bool)
    for name, value, most in limited(found, b):
        tally.need(name, value)
        tally.remove(name, value <= most)
        slow |= value > most
    known = {**dims, "structure": index, "total": p.counted.total}
    columns = [np.broadcast_to(known.get(name, 0), n) for name in space.columns]
    rows = np.stack(columns, axis=1).astype(np.int64)
    values = np.stack([np.asarray(found[k], dtype=float) for k in found], axis=1)
    return rows[~slow], values[~slow]


def _note_closest(tally: Tally, c: Counted, masks: dict[str, NDArray[np.bool_]], b: Budget) -> None:
    """Remember the shapes nearest in size, and the least cache, for when nothing is feasible."""
    import numpy as np

    if KV_LIMIT in masks:
        others = np.logical_and.reduce([m for name, m in masks.items() if name != KV_LIMIT])
        tally.need(KV_LIMIT, c.kv[others])
    distance = np.abs(c.total / b.params - 1)
    most = np.partition(distance, 2)[2] if len(distance) > 2 else np.inf
    if len(tally.closest) == 3 and most >= tally.closest[-1][0]:
        most = np.nextafter(tally.closest[-1][0], 0)
    near = np.flatnonzero(distance <= most)
    for at in near[np.argsort(distance[near], kind="stable")[:3]]:
        shape = {name: int(v[0]) for name, v in c.dims(np.array([at])).items()}
        shape["total"] = int(c.total[at])
        tally.closest.append((float(distance[at]), {**shape, "tied": c.family.spec.tied}))
    tally.closest.sort(key=lambda pair: pair[0])
    del tally.closest[3:]
