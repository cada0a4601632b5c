"""The choice among the shapes of a front, and which of them count as equal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

    The choice is made on the whole front, so it does not depend on how the front is thinned or on
    how many chips there are. Shapes whose loss lies within the law's own error of the best count
    as equal; among them the knee of loss and all costs is chosen. With weights it is the knee of
    the whole front, each objective as weighed. With an order, the least of each objective in turn
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
    found = values[order]
    return Chosen(rows[order], found, int(np.flatnonzero(order == at)[0]),
                  equal_groups(found, within, weights))  # fmt: skip


def equal_groups(
    values: NDArray[np.float64], within: float, weights: tuple[float, ...]
) -> tuple[tuple[int, ...], ...]:
    """Rows sorted by loss, cut where one is further from the first of its group than the noise.

    Within a group they are ranked by how near they come to the group's best in every objective.

    Example:
        >>> import numpy as np
        >>> rows = np.array([[2.0, 9.0], [2.01, 1.0], [2.5, 0.5]])
        >>> equal_groups(rows, 0.02, (1.0, 1.0))
        ((1, 0), (2,))
    """
    import numpy as np

    found = []
    start = 0
    while start < len(values):
        stop = int(np.searchsorted(values[:, 0], values[start, 0] + within, side="right"))
        stop = max(stop, start + 1)
        order: Any = np.argsort(nearness(values[start:stop], weights), kind="stable")
        found.append(tuple(int(i) for i in start + order))
        start = stop
    return tuple(found)
