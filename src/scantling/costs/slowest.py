"""What takes the time of a pass, and why: the first thing to look at, in one sentence."""

from __future__ import annotations

from msgspec import Struct

from scantling.costs.alignment import power_of_two
from scantling.costs.kernels.attention import Shape, decode_terms, prefill_terms
from scantling.costs.kernels.time import Time
from scantling.costs.roofline import Product, gemm_products
from scantling.costs.time import attention_shape, moved_bytes, op_time, row_widths, total_time
from scantling.hardware import Chip
from scantling.ops import Op, operators
from scantling.quantity import Quantity
from scantling.spec import Spec, Workload

FULL = 0.9
"""A wave that leaves less than a tenth of the chip idle is taken for full."""
HALF = 0.5
"""Of the peak: what a large product passes on every chip that was measured well."""
SHORT = 1024
"""Depths below it spend much of their time filling and emptying the pipeline of each tile."""
KINDS = {"matmul": "products", "attention": "attention", "scan": "scans"}
"""What kinds of operators are called; the rest moves bytes and multiplies nothing."""
LIGHT = "norms and other light work"

PREFILL = (
    "its launch takes longer than its {keys:,} keys a query: more sequences at once",
    "its work grows with the square of the context, {keys:,} keys a query: a window makes it less",
    "it waits for the block that sees most of the {keys:,} keys: more sequences or heads at once",
    "it waits for queries, keys and values to pass through memory, {keys:,} keys a query",
    "its blocks of 128 queries cost more than what they compute, {keys:,} keys a query",
)
"""What the terms of ``prefill_time`` mean where they are the largest, in their order."""
DECODE = (
    "its launch takes longest: more sequences at once",
    "the steps that join its parts take longest: more sequences at once",
    "it reads its cache: fewer KV heads, a window or a narrower cache",
    "its blocks take longest: fewer KV heads",
    "its outputs pass through memory",
)
"""The same of ``decode_time``."""


class Slowest(Struct, frozen=True, kw_only=True):
    """Where the time of one pass goes.

    Args:
        seconds: Of all kernels; a runtime adds its own.
        shares: (what, share of it), largest first: products, attention, scans, ``LIGHT``.
        waits: Share of the time in operators that wait for memory longer than they compute.
        operator: The one that takes most.
        share: Its share.
        why: What holds it up.
    """

    seconds: Quantity
    shares: tuple[tuple[str, float], ...]
    waits: float
    operator: str
    share: float
    why: str


def slowest(spec: Spec, workload: Workload, chip: Chip) -> Slowest:
    """What takes most of a pass, and why.

    Example:
        >>> from scantling import catalog
        >>> from scantling.hardware import chip
        >>> from scantling.spec import Workload
        >>> work = Workload("prefill", 8, 1024)
        >>> found = slowest(catalog.model("gpt2"), work, chip("a100"))
        >>> found.operator, found.shares[0][0]
        ('model.lm_head', 'products')
        >>> found.why.split(":")[0]
        'its width is crooked'
    """
    ops = operators(spec, workload)
    times = [op_time(op, workload, chip) for op in ops]
    whole = total_time(ops, workload, chip)
    seconds = [float(t.value_s / whole.value_s) for t in times]
    by_kind: dict[str, float] = {}
    for op, share in zip(ops, seconds, strict=True):
        name = KINDS.get(op.kind, LIGHT)
        by_kind[name] = by_kind.get(name, 0.0) + share
    waits = sum(s for op, s in zip(ops, seconds, strict=True) if _memory_bound(op, workload, chip))
    first = max(range(len(ops)), key=seconds.__getitem__)
    products = {p.name: p for p in gemm_products(spec, workload, chip)}
    op = ops[first]
    if op.name in products:
        widths = (op.n, op.k) if op.experts is not None else row_widths(op)
        why = _product_reason(products[op.name], [int(w) for w in widths], chip)
    else:
        why = _reason(op, workload, chip, times[first])
    return Slowest(
        seconds=Quantity(value=float(whole.value_s), low=float(whole.low_s),
                         high=float(whole.high_s), unit="s", kind=chip.constants.gemm.kind,
                         why=("kernels one after another: a runtime adds its own",)),
        shares=tuple(sorted(by_kind.items(), key=lambda item: -item[1])), waits=waits,
        operator=op.name, share=seconds[first], why=why,
    )  # fmt: skip


def _memory_bound(op: Op, workload: Workload, chip: Chip) -> bool:
    flops = float(op.flops("causal"))
    moved = float(moved_bytes(op, workload))
    if op.kind == "attention":
        shape = attention_shape(op, workload)
        moved = float(shape.query_bytes + shape.cache_bytes) * float(op.times)
    return flops / chip.rate(workload.dtype) < moved / chip.memory_bytes_per_s


def _product_reason(p: Product, widths: list[int], chip: Chip) -> str:
    """Why a product is not faster: the first that holds of what can be changed."""
    at = f"at {p.fraction:.0%} of the peak"
    cost = p.misaligned
    if cost.value > 1:
        worst = min(widths, key=power_of_two)
        return (f"its width is crooked: {worst} is no multiple of {2 * power_of_two(worst)}, "
                f"expected to cost ×{cost.value:.2f} ({cost.low:.2f} to {cost.high:.2f}, a "
                f"declared prior)")  # fmt: skip
    if p.bound == "memory":
        return (f"it waits for memory: {p.intensity:.3g} FLOPs a byte where {chip.name} computes "
                f"{p.ridge:.0f}; more rows at once share the weights that are read")  # fmt: skip
    if p.waves.efficiency < FULL and p.waves.waves < 1 / (1 - FULL):
        return (f"its {p.waves.blocks} blocks leave {1 - p.waves.efficiency:.0%} of "
                f"{p.waves.waves} rounds on {p.waves.sms} SMs idle ({at})")  # fmt: skip
    if p.k < SHORT:
        return f"its depth of {p.k:g} is short: each tile starts and ends often ({at})"
    if p.fraction < HALF:
        return (
            f"its kernels reach {p.fraction:.0%} of the peak: others or another dtype may be faster"
        )
    return f"it computes, {at}: less work or more chips, no better shape, makes it faster"


def _reason(op: Op, workload: Workload, chip: Chip, time: Time) -> str:
    if op.kind == "attention":
        shape = attention_shape(op, workload)
        if workload.phase == "decode":
            return _decode_reason(shape, workload, chip, float(time.value_s / op.times))
        terms = [float(t) for t in prefill_terms(chip, workload.dtype, shape)]
        return PREFILL[terms.index(max(terms))].format(keys=int(shape.keys))
    if op.kind == "scan":
        return "a recurrence in chunks: its work grows with the context, not with its square"
    return "it moves bytes and multiplies nothing: fusing it into its neighbours saves the passes"


def _decode_reason(shape: Shape, workload: Workload, chip: Chip, seconds: float) -> str:
    terms = [float(t) for t in decode_terms(chip, workload.dtype, shape)]
    at = float(shape.cache_bytes) / seconds / chip.memory_bytes_per_s
    reached = f"the {int(shape.keys):,} keys of a sequence are read at {at:.0%} of the bandwidth"
    return f"{DECODE[terms.index(max(terms))]} ({reached})"
