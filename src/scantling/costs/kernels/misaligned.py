"""What widths that do not fill a load cost a product."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from scantling.arith import Num, maximum
from scantling.costs.kernels.time import Time
from scantling.hardware import Chip
from scantling.spec import dtype_bytes


class Penalty(Struct, frozen=True):
    """A factor on a time; numbers or arrays."""

    value: Num
    low: Num
    high: Num

    def on(self, time: Time) -> Time:
        """The time with the factor on it; what is physically least stays."""
        return Time(
            time.lower_s, time.low_s * self.low, time.value_s * self.value,
            time.high_s * self.high, maximum(time.upper_s, time.high_s * self.high),
        )  # fmt: skip


def misaligned(chip: Chip, dtype: str, *widths: Num) -> Penalty:
    """The factor of the worst of some widths of weights and activations.

    With a load of 16 bytes and elements of s bytes: a width that is a multiple of 32 / s elements
    costs nothing; of 16 / s the factor ``load``; of 2 elements ``pair``; of one ``single``.

    Args:
        chip: Where.
        dtype: What is multiplied.
        widths: Elements of rows in memory: columns and depth of a product.

    Example:
        >>> from scantling.hardware import chip
        >>> [misaligned(chip("h100"), "bf16", w).value for w in (10922, 10944)]
        [1.4, 1.0]
        >>> misaligned(chip("h100"), "bf16", 50257).low
        1.0
    """
    a = chip.constants.alignment
    load = max(int(a.load_bytes / dtype_bytes(dtype)), 2)
    worst: list[Any] = [1.0, 1.0, 1.0]
    for width in widths:
        single = (width % 2 != 0) * 1.0
        pair = (width % load != 0) * 1.0 - single
        half = (width % (2 * load) != 0) * 1.0 - single - pair
        for i in range(3):
            factor = (
                1.0 + single * (a.single[i] - 1) + pair * (a.pair[i] - 1) + half * (a.load[i] - 1)
            )
            worst[i] = maximum(worst[i], factor)
    return Penalty(*worst)
