"""Attention: scores, softmax and the weighted sum in one kernel."""

from __future__ import annotations

from scantling.arith import Dim, Num, maximum
from scantling.costs.kernels.time import Time, within
from scantling.hardware import Chip


def attention_time(
    chip: Chip, dtype: str, flops: Num, moved: Num, d_head: Dim, launches: Num = 1
) -> Time:
    """Attention over the visible pairs.

    Args:
        chip: Where.
        dtype: What its inputs are.
        flops: Operations over the visible pairs.
        moved: Bytes of queries, outputs, keys and values.
        d_head: Width of a head.
        launches: Kernels.
    """
    a, g = chip.constants.attention, chip.constants.gemm
    rate, bandwidth = chip.rate(dtype), chip.memory_bytes_per_s
    compute = flops / (rate * a.prefill_at(d_head))
    memory = moved / (bandwidth * g.bandwidth_factor)
    launch = launches * g.launch_s
    wide = (1 + 2 * a.prefill_error) ** a.widen
    lower = maximum(flops / rate, moved / bandwidth)
    return within(lower, maximum(compute, memory) + launch, compute + memory + launch, wide, wide)
