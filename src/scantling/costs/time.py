"""How long operators take on a chip: a roofline with measured efficiencies.

Each operator goes to the kernel of its kind (``costs/kernels``); the constants are the chip's
(``data/constants``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scantling.arith import Num, maximum, minimum, product, wide
from scantling.costs.cache import cache_bytes
from scantling.costs.kernels import (
    Shape,
    Time,
    decode_time,
    elementwise_time,
    gemm_time,
    grouped_time,
    prefill_time,
    stream_time,
    training_time,
)
from scantling.costs.kernels.time import NO_TIME
from scantling.hardware import Chip
from scantling.hardware.constants.elementwise import Light
from scantling.ops import Op
from scantling.spec import Workload, dtype_bytes, kv_dtype_bytes

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


def attention_shape(op: Op, workload: Workload) -> Shape:
    """The dimensions of an attention operator, its layers taken for equal.

    A cache says how wide keys and values are: an absorbed latent is one head; without a cache,
    as in an encoder, each query head is taken to have its own.
    """
    both: Any = op.k // (2 if op.backward else 1)
    heads: Any = maximum(1, op.repeat // (maximum(op.times, 1) * workload.batch))
    cache, size = op.cache, dtype_bytes(workload.dtype)
    kept: Any = 0 if cache is None else maximum(cache.per_token, cache.cross)
    kv_heads: Any = heads
    kv_bytes: Any = both * size
    if cache is not None and cache.expanded is None:
        kv_heads = maximum(1, kept // both)
    if workload.phase == "decode" and cache is not None:
        kv_heads = 1 if cache.expanded is not None else kv_heads
        kv_bytes = kept * kv_dtype_bytes(workload.kv_dtype) / kv_heads
    reach: Any = None if cache is None else cache.limit
    if cache is None and op.visible is not None:  # a backward pass: twice the keys seen on average
        reach = minimum(op.n, 2 * op.visible / op.m)
    return Shape(
        batch=workload.batch, queries=op.m, keys=op.n, n_head=heads, n_kv_head=kv_heads,
        d_key=both // 2, d_value=both - both // 2, visible=op.visible, kv_bytes=kv_bytes,
        reach=reach,
    )  # fmt: skip


def _attention(op: Op, workload: Workload, chip: Chip, kernel: str) -> Time:
    shape = attention_shape(op, workload)
    if workload.phase == "decode":
        return decode_time(chip, workload.dtype, shape, op.times)
    if workload.phase == "train":
        return training_time(
            chip, workload.dtype, shape, kernel, backward=op.backward, launches=op.times
        )
    return prefill_time(chip, workload.dtype, shape, op.times)


def op_time(op: Op, workload: Workload, chip: Chip, attention: str = "flash3") -> Time:
    """The time of one operator, all its repeats together.

    Args:
        op: Which.
        workload: What it is part of.
        chip: Where.
        attention: The generation of the attention kernel in training; prefill and decode use
            those of the engines that were measured.
    """
    flops = op.flops("causal")
    moved = moved_bytes(op, workload)
    launches: Any = wide(op.times) if op.kind in LAUNCHED else 0
    if op.kind == "attention":
        return _attention(op, workload, chip, attention)
    if op.kind == "matmul":
        return product_time(op, workload, chip)
    if op.kind == "scan":
        return stream_time(chip, workload.dtype, flops, moved, launches)
    kind = LIGHT.get(op.kind, "copy")
    return elementwise_time(chip, moved, launches, kind, op.n, wide(op.times))


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
    present = maximum(op.times, 1)  # a kind that a row of a column lacks: worked out, times 0
    cache: Any = 0
    if op.cache is not None:
        kept = cache_bytes(op.cache, workload.context, workload.kv_dtype)
        cache = kept * workload.batch / present
    groups: Any = maximum(op.repeat, 1) / present
    return gemm_time(chip, workload.dtype, op.m, op.n, op.k, groups, op.times, cache,
                     widths=row_widths(op))  # fmt: skip


def row_widths(op: Op) -> tuple[Num, ...]:
    """Widths of a product's rows in memory: of each matrix it holds, or its columns and depth."""
    shapes = [t.shape for t in op.tensors if len(t.shape) > 1]
    if not shapes:
        return (op.n, op.k)
    return tuple(width for shape in shapes for width in shape[-2:])


def total_time(
    ops: Sequence[Op], workload: Workload, chip: Chip, attention: str = "flash3"
) -> Time:
    """The time of a list of operators run one after another; see ``op_time``."""
    total = NO_TIME
    for op in ops:
        total = total + op_time(op, workload, chip, attention)
    return total
