"""What a narrow or a very wide attention head costs in loss."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, cast

from scantling.arith import Num, is_array
from scantling.laws.priors import priors
from scantling.sources import read_data

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LARGEST_LISTED = 1024
"""The table for columns of integers ends here; wider heads cost what this one does."""


@functools.cache
def knots() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Head widths, as log2, and their excess loss in nats a token, from ``data/laws.toml``."""
    table = read_data("laws.toml")["head_width"]["knots"]
    return tuple(math.log2(h) for h, _ in table), tuple(float(excess) for _, excess in table)


@functools.cache
def half_width() -> float:
    """The 90 % half-width of the excess between two head widths, in nats a token.

    Half the pooled interval of 64 against 128, the prior of the axis.
    """
    return priors()["d_head"].half_width


def head_width_excess(d_head: Num) -> Num:
    """Excess loss of a head width over 128, in nats a token.

    The runs behind it keep width, depth and data fixed and change only the number of heads, so the
    excess is a pure effect of h. Published as means over bins of head width; between the centres
    of the bins it is linear in log2 h, since each octave of h costs about as much as it saves:

        excess(h) = e_i + (e_{i+1} − e_i) · log2(h/h_i) / log2(h_{i+1}/h_i)

    and constant beyond the outer centres, where no law should be read.
    The excess of 128 is zero by definition: the runs of the aspect law have that width.
    All runs behind it have d_model ≤ 1024; at larger widths published pairs for 64 against 128
    scatter from −0.005 to +0.025.

    Args:
        d_head: Head width h, a number or an array.

    Returns:
        Nats a token, of the shape given.

    Example:
        >>> [round(head_width_excess(h), 4) for h in (32, 64, 96, 128, 256)]
        [0.059, 0.01, 0.0009, 0.0, 0.014]
    """
    if not is_array(d_head):
        return _scalar(cast("float", d_head))
    import numpy as np

    array = cast("NDArray[Any]", d_head)
    if array.dtype.kind in "iu":
        return cast("NDArray[np.float64]", np.take(_listed(), array, mode="clip"))
    return cast("NDArray[np.float64]", np.interp(np.log2(array), *knots()))


def _scalar(d_head: float) -> float:
    at, excess = knots()
    x = math.log2(d_head)
    if x <= at[0]:
        return excess[0]
    for i in range(1, len(at)):
        if x <= at[i]:
            slope = (excess[i] - excess[i - 1]) / (at[i] - at[i - 1])
            return excess[i - 1] + slope * (x - at[i - 1])
    return excess[-1]


@functools.cache
def _listed() -> NDArray[np.float64]:
    """The excess of every integer width, because looking up costs a seventh of interpolating."""
    import numpy as np

    return np.array([_scalar(max(h, 1)) for h in range(LARGEST_LISTED + 1)])
