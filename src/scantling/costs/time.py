"""How long operators take on a chip: a roofline with measured efficiencies.

    compute = FLOPs / (efficiency × peak rate)
    memory  = bytes moved / (bandwidth factor × bandwidth)
    lower   = max(compute, memory) with both factors 1
    time    = max(compute, memory) + launch
    upper   = compute + memory + launch

The efficiency constants and their errors are the chip's (``data/chips.toml``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from scantling.arith import Num, maximum, product, wide
from scantling.costs.cache import cache_bytes
from scantling.hardware import Chip
from scantling.ops import Op
from scantling.spec import Workload, dtype_bytes

LAUNCHED = {"matmul", "attention", "scan", "norm"}
"""Kinds with a kernel of their own; lighter work is fused into them by every runtime."""


class Time(Struct, frozen=True):
    """Seconds: the physical lower bound, the fitted value, and the upper bound."""

    lower_s: Num
    value_s: Num
    upper_s: Num


def weight_elements(op: Op) -> Num:
    """Weight elements an operator reads: each tensor once an occurrence.

    Of E routed experts a batch of m tokens reads only those it touches; with k chosen
    independently by each token, an expert is missed with probability (1 − k/E)^m, so
    E (1 − (1 − k/E)^m) are read.
    """
    total: Any = 0
    for t in op.tensors:
        size: Any = product(t.each(), op.times)
        if t.experts is not None and t.top_k is not None:
            size = size * t.experts * (1 - (1 - t.top_k / t.experts) ** op.m)
        total = total + size
    return total  # type: ignore[no-any-return]


def moved_bytes(op: Op, workload: Workload) -> Num:
    """Bytes an operator moves: weights, activations in and out, and the cache it reads."""
    size = dtype_bytes(workload.dtype)
    if op.kind == "lookup":  # rows of the table, not the table
        return product(op.elements, op.m, size)
    moved = weight_elements(op) * size + product(op.elements, op.m, op.repeat, size)
    if op.cache is not None:
        moved = moved + cache_bytes(op.cache, workload.context, workload.kv_dtype) * workload.batch
    return moved


def op_time(op: Op, workload: Workload, chip: Chip) -> Time:
    """The time of one operator, all its repeats together."""
    rate, bandwidth = chip.rate(workload.dtype), chip.memory_bytes_per_s
    e = chip.efficiency
    flops = op.flops("causal")
    moved = moved_bytes(op, workload)
    if op.kind == "attention":
        width: Any = op.k // (4 if op.backward else 2)  # k counts key and value, twice backward
        efficiency: Num = e.attention_at(width)
    else:
        efficiency = e.matmul_at(workload.dtype)
    compute = flops / (rate * efficiency)
    memory = moved / (bandwidth * e.bandwidth_factor)
    launch: Num = wide(op.times) * e.launch_s if op.kind in LAUNCHED else 0.0
    return Time(
        maximum(flops / rate, moved / bandwidth),
        maximum(compute, memory) + launch,
        compute + memory + launch,
    )


def total_time(ops: Sequence[Op], workload: Workload, chip: Chip) -> Time:
    """The time of a list of operators run one after another."""
    lower: Any = 0.0
    value: Any = 0.0
    upper: Any = 0.0
    for op in ops:
        t = op_time(op, workload, chip)
        lower, value, upper = lower + t.lower_s, value + t.value_s, upper + t.upper_s
    return Time(lower, value, upper)
