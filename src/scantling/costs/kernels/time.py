"""A time: bounds that physics gives, and a fitted value with its interval between them."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

from msgspec import Struct

from scantling.arith import Num, maximum, minimum

Terms: TypeAlias = tuple[Num, ...]
"""Seconds of each part of a time."""


class Time(Struct, frozen=True):
    """Seconds. All five are numbers or arrays of one shape.

    Added intervals are added end to end, as if all errors went one way: what is wrong about one
    product of a chip is wrong about the next.

    Example:
        >>> (Time(1.0, 1.5, 2.0, 2.5, 3.0) + Time(1.0, 1.5, 2.0, 2.5, 3.0).times(2)).value_s
        6.0
    """

    lower_s: Num
    """max(compute, memory) at the full rates of the chip."""
    low_s: Num
    """The lower end of the 90 % interval."""
    value_s: Num
    """The fitted time."""
    high_s: Num
    """The upper end of the 90 % interval."""
    upper_s: Num
    """compute + memory at the rates kernels reach, and the launch."""

    def __add__(self, other: Time) -> Time:
        return Time(
            self.lower_s + other.lower_s, self.low_s + other.low_s, self.value_s + other.value_s,
            self.high_s + other.high_s, self.upper_s + other.upper_s,
        )  # fmt: skip

    def times(self, factor: Num) -> Time:
        """The same so many times."""
        return Time(
            self.lower_s * factor, self.low_s * factor, self.value_s * factor,
            self.high_s * factor, self.upper_s * factor,
        )  # fmt: skip


NO_TIME = Time(0.0, 0.0, 0.0, 0.0, 0.0)


def within(
    lower_s: Num, value_s: Num, upper_s: Num, below: float | Num, above: float | Num
) -> Time:
    """A time whose interval reaches from value / below to value × above.

    Neither end nor the value passes the bounds: a value outside them is moved to the nearer one.

    Args:
        lower_s: The physical lower bound.
        value_s: The fitted time.
        upper_s: The upper bound; where the value lies above, it is raised to it.
        below: Factor of the lower end, at least 1.
        above: Factor of the upper end, at least 1.
    """
    value = maximum(value_s, lower_s)
    upper = maximum(upper_s, value)
    low, high = maximum(value / below, lower_s), minimum(value * above, upper)
    return Time(lower_s, low, value, high, upper)


def spread(terms: Terms, errors: tuple[float, ...], widen: float) -> Num:
    """The factor from a value to the end of its interval, from what is wrong about each term.

    A time of terms t₁ + t₂ + …, each off by a factor of exp(eᵢ) one way, is off by about
    exp(Σ eᵢ tᵢ / Σ tᵢ): a time that one well-known term makes up is well known.

    Args:
        terms: Seconds of each.
        errors: eᵢ, the logarithm of each term's factor.
        widen: What the logarithm of the factor is multiplied by.

    Example:
        >>> round(spread((1.0, 3.0), (0.4, 0.0), 1.0), 3)
        1.105
    """
    total: Any = sum(terms)
    weighted: Any = sum(t * e for t, e in zip(terms, errors, strict=True))
    return math.e ** (weighted / total * widen)  # type: ignore[no-any-return]
