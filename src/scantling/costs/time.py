"""How long operators take on a chip: a roofline with measured efficiencies.

Each operator goes to the kernel of its kind (``costs/kernels``); the constants are the chip's
(``data/constants``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scantling.arith import Num, product, wide
from scantling.costs.cache import cache_bytes
from scantling.costs.kernels import (
    Time,
    attention_time,
    elementwise_time,
    gemm_time,
    grouped_time,
    stream_time,
)
from scantling.costs.kernels.time import NO_TIME
from scantling.hardware import Chip
from scantling.hardware.constants.elementwise import Light
from scantling.ops import Op
from scantling.spec import Workload, dtype_bytes

LAUNCHED = {"matmul", "attention", "scan", "norm"}
"""Kinds with a kernel of their own; lighter work is fused into them by every runtime."""


LIGHT: dict[str, Light] = {"norm": "norm", "elementwise": "activation"}
"""Which constants light work takes, by its kind."""


def weight_elements(op: Op) -> Num:
    """Weight elements an operator reads: each tensor once an occurrence, experts if touched."""
    total: Any = 0
    for t in op.tensors:
        size: Any = product(t.each(), op.times)
        if t.experts is not None and t.top_k is not None:
            size = size * touched(t.experts, t.top_k, op.m)
        total = total + size
    return total  # type: ignore[no-any-return]


def touched(experts: Num, top_k: Num, tokens: Num) -> Num:
    """Experts that a batch of tokens reaches.

    With k of E chosen evenly and independently by each token, an expert is missed with
    probability (1 − k/E)^m, so E (1 − (1 − k/E)^m) are reached.

    Example:
        >>> touched(8, 2, 1), round(touched(128, 8, 64), 1)
        (2.0, 125.9)
    """
    return experts * (1 - (1 - top_k / experts) ** tokens)


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
    flops = op.flops("causal")
    moved = moved_bytes(op, workload)
    launches: Any = wide(op.times) if op.kind in LAUNCHED else 0
    if op.kind == "attention":
        width: Any = op.k // (4 if op.backward else 2)  # k counts key and value, twice backward
        return attention_time(chip, workload.dtype, flops, moved, width, launches)
    if op.kind == "matmul":
        return product_time(op, workload, chip)
    if op.kind == "scan":
        return stream_time(chip, workload.dtype, flops, moved, launches)
    return elementwise_time(chip, moved, launches, LIGHT.get(op.kind, "copy"))


def product_time(op: Op, workload: Workload, chip: Chip) -> Time:
    """The time of a product: one kernel an occurrence, batched where it repeats within one.

    Products of routed experts are grouped: the experts that a batch touches, each token in
    ``top_k`` of them. In the gradient of their weights tokens are the depth.
    """
    if op.experts is not None and op.top_k is not None:
        depth = op.backward and not op.tensors
        tokens: Any = op.k if depth else op.m
        reached = touched(op.experts, op.top_k, tokens)
        k = op.m if depth else op.k
        return grouped_time(chip, workload.dtype, tokens * op.top_k, op.n, k, reached, op.times)
    cache: Any = 0
    if op.cache is not None:
        kept = cache_bytes(op.cache, workload.context, workload.kv_dtype)
        cache = kept * workload.batch / op.times
    groups: Any = op.repeat / op.times
    return gemm_time(chip, workload.dtype, op.m, op.n, op.k, groups, op.times, cache,
                     widths=row_widths(op))  # fmt: skip


def row_widths(op: Op) -> tuple[Num, ...]:
    """Widths of a product's rows in memory: of each matrix it holds, or its columns and depth."""
    shapes = [t.shape for t in op.tensors if len(t.shape) > 1]
    if not shapes:
        return (op.n, op.k)
    return tuple(width for shape in shapes for width in shape[-2:])


def total_time(ops: Sequence[Op], workload: Workload, chip: Chip) -> Time:
    """The time of a list of operators run one after another."""
    total = NO_TIME
    for op in ops:
        total = total + op_time(op, workload, chip)
    return total
