"""The interval of a fitted time: how far measurements of its kind lie from it."""

from __future__ import annotations

import math

from scantling.arith import Num, log2, maximum
from scantling.costs.kernels.time import Time, within
from scantling.hardware.constants import Scattered
from scantling.hardware.curve import interpolate

SHORTEST_S = 1e-9


def scattered(
    g: Scattered,
    rows: Num,
    length_s: Num,
    lower_s: Num,
    value_s: Num,
    upper_s: Num,
    spread: float = 1.0,
) -> Time:
    """A time with its interval, in which both ends are a power of one scale.

        scale = 2^(curve of rows + curve of length) × spread
        low   = value / exp(below × widen × scale)
        high  = value × exp(above × widen × scale)

    no nearer to the value than exp(least).

    Args:
        g: The constants of its kind.
        rows: Rows of the work.
        length_s: Seconds that tell short from long: of the lower bound, or of the value.
        lower_s: The physical lower bound.
        value_s: The fitted time.
        upper_s: The upper bound; it never cuts the interval short.
        spread: How many times as far as the rest its like is off.
    """
    curves = _curve(rows, g.spread_rows) + _curve(maximum(length_s, SHORTEST_S), g.spread_s)
    scale = 2**curves * (g.widen * spread)
    below = math.e ** maximum(g.below * scale, g.least)
    above = math.e ** maximum(g.above * scale, g.least)
    return within(lower_s, value_s, maximum(upper_s, value_s * above), below, above)


def _curve(x: Num, points: tuple[tuple[float, float], ...]) -> Num:
    """Straight pieces over the logarithm of x."""
    if len(points) == 1:
        return points[0][1]
    return interpolate(log2(x), tuple((math.log2(at), y) for at, y in points))
