"""Matrix products."""

from __future__ import annotations

from scantling.arith import Num, maximum
from scantling.costs.kernels.time import Time, within
from scantling.hardware import Chip


def gemm_time(chip: Chip, dtype: str, flops: Num, moved: Num, launches: Num = 1) -> Time:
    """A product, or several alike in one go.

        compute = FLOPs / (fraction × peak rate)
        memory  = bytes moved / (bandwidth factor × bandwidth)
        time    = max(compute, memory) + launches × launch

    Args:
        chip: Where.
        dtype: What its inputs are.
        flops: Its operations.
        moved: Bytes of weights and activations read and written.
        launches: Kernels.
    """
    g = chip.constants.gemm
    rate, bandwidth = chip.rate(dtype), chip.memory_bytes_per_s
    compute = flops / (rate * g.matmul_at(dtype))
    memory = moved / (bandwidth * g.bandwidth_factor)
    launch = launches * g.launch_s
    wide = (1 + 2 * g.matmul_error_at(dtype)) ** g.widen
    lower = maximum(flops / rate, moved / bandwidth)
    return within(lower, maximum(compute, memory) + launch, compute + memory + launch, wide, wide)
