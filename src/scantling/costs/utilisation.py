"""What a finished or planned run made of its chips: rates and MFU from days and GPUs, and back.

MFU is FLOPs of the model over (time × chips × dense peak); which FLOPs is the caller's convention,
``6 N D`` here where only a size and a number of tokens are known (Kaplan et al. 2020, section 2.1:
2 N forward and 4 N backward a token, attention left out).
"""

from __future__ import annotations

from msgspec import Struct

from scantling.arith import Num
from scantling.costs.count import attention_flops, forward_flops
from scantling.errors import FieldError
from scantling.hardware import Chip, chip
from scantling.ops import operators
from scantling.spec import Spec, Workload

DAY_S = 86_400.0


class Achieved(Struct, frozen=True):
    """The pace of a run."""

    flops_per_s: float
    """FLOPs of the model a second on one chip."""
    mfu: float
    """The same over the chip's dense peak."""


def six_nd(params: float, tokens: float) -> float:
    """FLOPs of training by the rule 6 N D, without attention.

    Example:
        >>> six_nd(7e9, 2e12)
        8.4e+22
    """
    return 6.0 * params * tokens


def achieved(
    flops: float, on: Chip | str, n_gpu: int, days: float, dtype: str = "bf16"
) -> Achieved:
    """What each chip did in a run that took so many days.

    Args:
        flops: FLOPs of the model in the whole run (``six_nd``, or ``flops(...).train``).
        on: A chip or its name.
        n_gpu: How many.
        days: Wall-clock days, stops included: goodput is then part of the result.
        dtype: Whose dense peak MFU is over.

    Raises:
        FieldError: If the run has no chips, no time, or the chip no such rate.

    Example:
        >>> run = achieved(six_nd(175e9, 300e9), "v100", 1024, 90, "fp16")
        >>> round(run.flops_per_s / 1e12, 1), round(run.mfu, 2)
        (39.6, 0.32)
    """
    for field, value in (("flops", flops), ("gpus", n_gpu), ("days", days)):
        if not value > 0:
            raise FieldError(field, value, "must be above 0")
    one = chip(on) if isinstance(on, str) else on
    rate = flops / (n_gpu * days * DAY_S)
    return Achieved(rate, rate / one.rate(dtype))


def chunk_flops(n_head: int, d_head: int, queries: int, keys: int) -> Num:
    """FLOPs of causal attention of the last ``queries`` of ``keys`` tokens, one layer forward.

    A chunk of a prefill and a decoded token are such queries: they see almost every key, so half
    of 4 H h Q K is the answer only where Q = K.

    Example:
        >>> chunk_flops(32, 128, 1, 4096) == 4 * 32 * 128 * 4096  # a decoded token sees all
        True
    """
    if not 1 <= queries <= keys:
        raise FieldError("queries", queries, f"must be from 1 to the {keys} keys")
    return attention_flops(n_head, 2 * d_head, queries, keys)


def undercount(spec: Spec, context: int, convention: str = "full") -> float:
    """How many times the FLOPs of a count that sees weights only a model costs, forward.

    Counters that look at modules miss products without weights: attention, and the cores of
    recurrent mixers. For layers of 12 D² weights the factor is 1 + S / (6 D): not constant, so it
    does not cancel in a comparison of lengths or widths.

    Example:
        >>> from scantling import catalog
        >>> round(undercount(catalog.model("llama-3.1-8b"), 131072), 2)
        5.58
    """
    ops = operators(spec, Workload(context=context))
    seen = forward_flops([op for op in ops if op.kind == "matmul" and op.tensors], "full")
    return float(forward_flops(ops, convention) / seen)  # type: ignore[arg-type]
