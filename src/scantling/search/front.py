"""Non-dominated sets: folding, thinning by epsilon boxes, and the choice."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from scantling.search.budget import OBJECTIVES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

EPSILONS = {"loss": 0.002, "training_days": 0.2, "kv_bytes_per_token": 2048, "decode_s": 20e-6}
"""Differences not worth reading: nats, days, bytes, seconds."""
FINEST = 40
"""Boxes along what an objective ranges over, at least."""


def non_dominated(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which rows no other row beats or equals everywhere; all columns are minimised.

    Of equal rows one stays.

    Example:
        >>> import numpy as np
        >>> non_dominated(np.array([[1.0, 2.0], [2.0, 1.0], [2.0, 2.0]])).tolist()
        [True, True, False]
    """
    import moocore

    found: NDArray[np.bool_] = moocore.is_nondominated(values, keep_weakly=False)
    return found


def fold(
    rows: NDArray[np.int64], values: NDArray[np.float64],
    new_rows: NDArray[np.int64], new_values: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:  # fmt: skip
    """The front of a front and new rows; folding in any order gives the same front."""
    import numpy as np

    if not len(new_rows):
        return rows, values
    keep = non_dominated(new_values)
    rows = np.concatenate([rows, new_rows[keep]])
    values = np.concatenate([values, new_values[keep]])
    keep = non_dominated(values)
    return rows[keep], values[keep]


def epsilons(values: NDArray[np.float64], names: tuple[str, ...] = OBJECTIVES) -> tuple[float, ...]:
    """The sides of an epsilon box: the defaults, at most 2 % of an objective's median.

    That keeps small models apart, whose days and bytes are below the defaults. Nor is a side more
    than a fortieth of what an objective ranges over: wider boxes cost a front of few tens of
    shapes 2 % of the volume it dominates, these less than 1 %.
    """
    import numpy as np

    medians, spans = 0.02 * np.median(values, axis=0), np.ptp(values, axis=0) / FINEST
    sides = []
    for name, median, span in zip(names, medians, spans, strict=True):
        most = math.inf if name == "loss" else float(median) or math.inf
        sides.append(min(EPSILONS.get(name, math.inf), most, float(span) or math.inf))
    return tuple(sides)


def thin(values: NDArray[np.float64], epsilons: tuple[float, ...]) -> NDArray[np.intp]:
    """Indices of an epsilon-box front: one row a box, and no box that another beats.

    Rows whose objectives fall into one box differ by less than is worth reading; of them the one
    nearest the box's best corner stays. Boxes are then filtered like points (Laumanns et al.
    2002).
    """
    import numpy as np

    eps = np.array(epsilons)
    boxes = np.floor(values / eps + 1e-9)
    corner = ((values / eps - boxes) ** 2).sum(axis=1)
    order = np.lexsort((*values.T, corner))
    _, first = np.unique(boxes[order], axis=0, return_index=True)
    chosen = order[first]
    kept: NDArray[np.intp] = chosen[non_dominated(boxes[chosen])]
    return kept


def nearness(values: NDArray[np.float64], weights: tuple[float, ...]) -> NDArray[np.float64]:
    """Squared distance of each row from the ideal point, each objective scaled by its range.

    With weights, an objective counts as many times as its weight. One that is the same in all
    rows, but for rounding, counts for nothing.
    """
    import numpy as np

    low, high = values.min(axis=0), values.max(axis=0)
    wide = np.where(high - low > 1e-12 * np.abs(high), high - low, np.inf)
    found: NDArray[np.float64] = (((values - low) / wide * np.array(weights)) ** 2).sum(axis=1)
    return found


def knee(values: NDArray[np.float64], weights: tuple[float, ...]) -> int:
    """The row nearest the ideal point (``nearness``).

    Example:
        >>> import numpy as np
        >>> knee(np.array([[0.0, 10.0], [1.0, 1.0], [10.0, 0.0]]), (1.0, 1.0))
        1
    """
    import numpy as np

    return int(np.argmin(nearness(values, weights)))
