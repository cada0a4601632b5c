"""Work that only moves bytes: norms, activations, lookups, the optimizer."""

from __future__ import annotations

from scantling.arith import Num, log2
from scantling.costs.kernels.time import Time, within
from scantling.hardware import Chip
from scantling.hardware.curve import interpolate


def elementwise_time(
    chip: Chip, moved: Num, launches: Num = 1, kernels: Num | None = None
) -> Time:  # fmt: skip
    """The time to read and write so many bytes.

    Args:
        chip: Where.
        moved: Bytes read and written.
        launches: Kernels; 0 where a neighbour does the work.
        kernels: Equal pieces the bytes are moved in, where their size counts; None where it
            does not.
    """
    e = chip.constants.elementwise
    memory = moved / (chip.memory_bytes_per_s * e.bandwidth_factor)
    if kernels is not None and e.slower:
        memory = memory * interpolate(log2(moved / kernels), e.slower)
    value = memory + launches * e.launch_s
    wide = (1 + 2 * e.error) ** e.widen
    return within(moved / chip.memory_bytes_per_s, value, value * wide, wide, wide)
