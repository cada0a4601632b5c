"""Work that only moves bytes: norms, activations, lookups, the optimizer."""

from __future__ import annotations

from scantling.arith import Num, maximum, minimum
from scantling.costs.kernels.scatter import scattered
from scantling.costs.kernels.time import Time
from scantling.costs.remember import remembered
from scantling.hardware import Chip
from scantling.hardware.constants.elementwise import Light

CACHE = 3.0
"""How many times as fast as memory the L2 cache is at most."""


@remembered(lambda chip, *given, **named: (id(chip), given, tuple(named.items())))
def elementwise_time(
    chip: Chip, moved: Num, launches: Num = 1, kind: Light = "copy", width: Num = 0,
    pieces: Num | None = None,
) -> Time:  # fmt: skip
    """The time to read and write so many bytes.

        launch = launch of the kind + width × an element's part
        time   = (launch^p + (bytes / (fraction × bandwidth))^p)^(1/p)

    for each launch. However few the rows, one is worked out by one block, element after element.
    A norm reads a row twice and adds it up in between, so it reaches less of the bandwidth than
    an addition. What a neighbour left in the L2 cache need not come from memory: the lower bound
    takes so many bytes at three times the bandwidth.

    Args:
        chip: Where.
        moved: Bytes read and written, of all launches together.
        launches: Kernels; 0 where a neighbour does the work.
        kind: What is done.
        width: Elements of a row.
        pieces: Equal parts the bytes are moved in, where their size counts (``slower`` of the
            constants); None where it does not.

    Example:
        >>> from scantling.hardware import chip
        >>> add, norm = (elementwise_time(chip("h100"), 1e9, 1, kind) for kind in ("copy", "norm"))
        >>> add.value_s < norm.value_s
        True
    """
    e = chip.constants.elementwise
    fraction, launch_s, row_s, spread = e.at(kind)
    ideal = moved / chip.memory_bytes_per_s
    memory = ideal / fraction
    if pieces is not None:
        memory = memory * e.slowed(moved / maximum(pieces, 1))
    launch = launches * (launch_s + width * row_s)
    value = (launch**e.sharpness + memory**e.sharpness) ** (1 / e.sharpness)
    one: Num = value / maximum(launches, 1)
    kept: Num = minimum(moved, chip.l2_bytes or 0)
    lower = ideal - kept * (1 - 1 / CACHE) / chip.memory_bytes_per_s
    return scattered(e, 1, one, lower, value, launch + memory, spread)
