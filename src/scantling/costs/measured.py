"""Operators timed by measured tables where they reach, by the fitted model elsewhere, labelled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from scantling.arith import Num
from scantling.costs.kernels.attention import Shape
from scantling.costs.kernels.measured import (
    Measured,
    measured_decode,
    measured_gemm,
    measured_prefill,
    measured_time,
    tables,
)
from scantling.costs.kernels.misaligned import misaligned
from scantling.costs.kernels.time import Time
from scantling.costs.time import attention_shape, op_time, row_widths
from scantling.hardware import Chip
from scantling.ops import Op
from scantling.ops.op import visible_pairs
from scantling.spec import Workload


class Sourced(Struct, frozen=True, kw_only=True):
    """A time and where it is from.

    Args:
        op: The operator.
        time: Its time, all its repeats together. The bounds are always those of the model.
        kind: ``measured`` or ``fitted``.
        fitted: The fitted time, whatever is used.
        source: The table, or nothing.
    """

    op: str
    time: Time
    kind: Literal["measured", "fitted"]
    fitted: Time
    source: str = ""


def sourced_time(op: Op, workload: Workload, chip: Chip, framework: str | None = None) -> Sourced:
    """The time of one operator: measured if a table holds it, else fitted.

    Args:
        op: Which, with numbers for dimensions: tables are not looked up for columns.
        workload: What it is part of. In training attention is fitted: the tables are of serving.
        chip: Where.
        framework: The serving stack whose tables to read; None is the first that has an answer.

    Example:
        >>> from scantling import catalog
        >>> from scantling.hardware import chip
        >>> from scantling.ops import operators
        >>> work = Workload("prefill", 1, 4096)
        >>> first = operators(catalog.model("llama-3.1-8b"), work)[1]
        >>> sourced_time(first, work, chip("mi300x")).kind
        'fitted'
    """
    fitted = op_time(op, workload, chip)
    found = _found(op, workload, chip, framework)
    if found is None:
        return Sourced(op=op.name, time=fitted, kind="fitted", fitted=fitted)
    return _measured(op.name, found, fitted, op.times)


def sourced_times(
    ops: Sequence[Op], workload: Workload, chip: Chip, framework: str | None = None
) -> tuple[Sourced, ...]:
    """The same of each operator of a list."""
    return tuple(sourced_time(op, workload, chip, framework) for op in ops)


def sourced_kernels(
    ops: Sequence[Op], workload: Workload, chip: Chip, framework: str | None = None
) -> tuple[Sourced, ...]:
    """The same, with the products of routed experts of a layer as the one kernel they are.

    Tables hold both products of gated experts and the activation between them as one time, with
    tokens spread evenly. Fitted, it is the sum of the two products.

    Example:
        >>> from scantling import catalog
        >>> from scantling.hardware import chip
        >>> from scantling.ops import operators
        >>> work = Workload("prefill", 1, 4096)
        >>> ops = operators(catalog.model("mixtral-8x7b"), work)
        >>> found = sourced_kernels(ops, work, chip("mi300x"))
        >>> [s.op for s in found if s.op.endswith("experts")]
        ['decoder.layer.ffn.experts']
    """
    found = []
    waiting: Op | None = None
    for op in ops:
        if op.kind != "matmul" or op.experts is None:
            found.append(sourced_time(op, workload, chip, framework))
        elif waiting is None:
            waiting = op
        else:
            found.append(_experts(waiting, op, workload, chip, framework))
            waiting = None
    assert waiting is None  # what goes up to the experts comes down
    return tuple(found)


def _experts(up: Op, down: Op, workload: Workload, chip: Chip, framework: str | None) -> Sourced:
    """Both products of a layer's experts, gated ones from the table."""
    fitted = op_time(up, workload, chip) + op_time(down, workload, chip)
    name = up.name.removesuffix("_up")
    found = None
    if up.n == 2 * down.k and workload.phase != "train":
        names = tables().dtype
        found = measured_time(
            chip, "experts", framework, moe_dtype=names.get(workload.dtype, workload.dtype),
            hidden_size=up.k, inter_size=down.k, topk=up.top_k, num_experts=up.experts,
            moe_tp_size=1, moe_ep_size=1, distribution="balanced", num_tokens=up.m,
        )  # fmt: skip
    if found is None:
        return Sourced(op=name, time=fitted, kind="fitted", fitted=fitted)
    return _measured(name, found, fitted, up.times)


def _measured(name: str, found: Measured, fitted: Time, times: Num) -> Sourced:
    """A time of a table, so many times, within the bounds of the model and its own interval."""
    t = found.time.times(times)
    time = Time(
        min(fitted.lower_s, t.low_s), t.low_s, t.value_s, t.high_s, max(fitted.upper_s, t.high_s)
    )
    return Sourced(op=name, time=time, kind="measured", source=found.source, fitted=fitted)


def _found(op: Op, workload: Workload, chip: Chip, framework: str | None) -> Measured | None:
    """What the tables say of one of the operator's equal kernels."""
    if op.kind == "matmul":
        if op.repeat != op.times or any(t.experts is not None for t in op.tensors):
            return None
        if misaligned(chip, workload.dtype, *row_widths(op)).high > 1:
            return None  # the tables hold aligned widths: between them lies no crooked one
        return measured_gemm(chip, workload.dtype, int(op.m), int(op.n), int(op.k), framework)
    if op.kind != "attention" or workload.phase == "train":
        return None
    shape = attention_shape(op, workload)
    if workload.phase == "prefill" and not _causal(shape):
        return None
    latent = op.cache is not None and op.cache.expanded is not None
    if latent:
        names = tables().dtype
        at = {"mla_dtype": names["bf16"], "num_heads": shape.n_head, "batch_size": shape.batch,
              "kv_cache_dtype": names.get(workload.kv_dtype, workload.kv_dtype)}  # fmt: skip
        if workload.phase == "decode":
            return measured_time(chip, "latent_decode", framework, keys=shape.keys, **at)
        return measured_time(chip, "latent_prefill", framework, isl=shape.queries, step=0, **at)
    if shape.d_value != shape.d_key:
        return None
    if workload.phase == "decode":
        return measured_decode(chip, workload.kv_dtype, shape, framework)
    return measured_prefill(chip, "bf16", shape, framework)


def _causal(shape: Shape) -> bool:
    """Whether a mask hides what the tables' masks hide: later keys, and those beyond a window."""
    reach = None if shape.reach is None else int(shape.reach)
    return shape.pairs == visible_pairs(int(shape.queries), int(shape.keys), reach, causal=True)


__all__ = ["Sourced", "sourced_kernels", "sourced_time", "sourced_times"]
