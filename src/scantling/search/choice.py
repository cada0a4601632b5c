"""The choice among the shapes of a front, and which of them count as equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from scantling.search.budget import Budget
from scantling.search.front import epsilons, knee, nearness, thin
from scantling.search.objectives import names

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Chosen(Struct, frozen=True):
    """What is worth reading of a front: rows with their objectives, best loss first."""

    rows: NDArray[np.int64]
    values: NDArray[np.float64]
    at: int
    """The choice among them."""
    groups: tuple[tuple[int, ...], ...]
    """Shapes whose losses the law cannot tell apart, each group ranked by cost."""


def choose(
    rows: NDArray[np.int64], values: NDArray[np.float64], b: Budget, within: float
) -> Chosen:
    """Choose among the rows of a front, and thin it to what is worth reading.

    The choice is made on the whole front, so it does not depend on how the front is thinned; more
    chips move it only as far as they change which shape is faster. Shapes whose loss lies within
    the law's own error of the best count as equal; among them the knee of loss and all costs is
    chosen. With weights it is the knee of the whole front, each objective as weighed. With an
    order, the least of each objective in turn
    among those equal in the ones before: within the law's error in loss, within what is worth
    reading in the others.

    Args:
        rows: Shapes.
        values: Their objectives, a column for each of ``objectives.names``.
        b: The budget.
        within: Nats that the law cannot tell apart.
    """
    import numpy as np

    named = names(b)
    sides = dict(zip(named, epsilons(values, named), strict=True)) | {"loss": within}
    weights = tuple(b.weights.get(name, 0.0 if b.weights else 1.0) for name in named)
    pool = np.arange(len(rows))
    if b.lexicographic:
        for name in b.lexicographic:
            column = values[pool, named.index(name)]
            pool = pool[column <= column.min() + sides[name]]
        last = values[pool, named.index(b.lexicographic[-1])]
        at = int(pool[np.lexsort((values[pool, 0], last))[0]])
    else:
        if not b.weights:
            pool = np.flatnonzero(values[:, 0] <= values[:, 0].min() + within)
        at = int(pool[knee(values[pool], weights)])
    kept = np.unique([*thin(values, epsilons(values, named)), at])
    order = kept[np.lexsort((values[kept, 1], values[kept, 0]))]
    place = {int(row): i for i, row in enumerate(order)}
    groups = (tuple(place[i] for i in group if i in place)
              for group in equal_groups(values, within, weights))  # fmt: skip
    return Chosen(rows[order], values[order], place[at], tuple(g for g in groups if g))


def equal_groups(
    values: NDArray[np.float64], within: float, weights: tuple[float, ...]
) -> tuple[tuple[int, ...], ...]:
    """Rows in the order of loss, cut where one is further from the first of its group than noise.

    Within a group they are ranked by how near they come to the group's best in every objective.

    Example:
        >>> import numpy as np
        >>> rows = np.array([[2.5, 0.5], [2.0, 9.0], [2.001, 1.0], [2.01, 0.9]])
        >>> equal_groups(rows, 0.02, (1.0, 1.0))
        ((2, 1, 3), (0,))
    """
    import numpy as np

    order = np.argsort(values[:, 0], kind="stable")
    losses = values[order, 0]
    found = []
    start = 0
    while start < len(order):
        stop = int(np.searchsorted(losses, losses[start] + within, side="right"))
        group = np.sort(order[start : max(stop, start + 1)])
        ranks = np.argsort(nearness(values[group], weights), kind="stable")
        found.append(tuple(group[ranks].tolist()))
        start += len(group)
    return tuple(found)
