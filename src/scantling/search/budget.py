"""The question: what is given, what must hold, what is left to choose."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from scantling.arith import LARGEST
from scantling.errors import FieldError, nearest
from scantling.hardware import Chip, chip
from scantling.laws import Features, law
from scantling.spec.relations import near_divisors
from scantling.spec.workload import dtype_name

AXES = ("n_layer", "d_model", "d_head", "n_head", "n_kv_head", "d_ff")
"""The dimensions a dense shape is searched over; d_ff is solved, not enumerated."""

COUNTS = (
    "params", "tokens", "vocab_size", "train_context", "serve_context", "serve_batch", "n_gpu",
    "tp", "multiple",
)  # fmt: skip

OBJECTIVES = ("loss", "training_days", "kv_bytes_per_token", "decode_s")
"""What a front weighs, all smaller is better."""


class Range(Struct, frozen=True):
    """A closed range of an axis the user set."""

    low: int
    high: int


class Budget(Struct, frozen=True, kw_only=True):
    """A budget for ``design``; every limit is hard.

    Args:
        params: Total parameters wanted.
        tokens: Training tokens; 20 per parameter unless given.
        flops: Training FLOPs, 6 N D; gives params (and tokens) where they are not given.
        vocab_size: Vocabulary.
        train_context: Sequence length in training.
        serve_context: Sequence length when it generates.
        serve_batch: Sequences generated together.
        chip: The chip for training and serving.
        n_gpu: Chips for training.
        tolerance: Accepted relative distance from ``params``.
        tied: Tied embeddings, untied, or by rule (None).
        tp: Tensor-parallel degree that must divide.
        days: Most training days.
        gpu_hours: Most GPU-hours.
        kv_bytes_per_token: Most KV-cache bytes per token.
        tpot_s: Most seconds per output token.
        fixed: Axes with one value.
        bounded: Axes with a range.
        weights: Weight of each objective in the choice.
        qk_norm: Norms on queries and keys.
        multiple: Alignment of widths, in elements.
        law: The law that predicts the loss.
        dtype: Dtype of training and weights.
        kv_dtype: Dtype of the cache.
    """

    params: int
    tokens: int
    vocab_size: int = 128_256
    flops: int | None = None
    train_context: int = 8192
    serve_context: int = 8192
    serve_batch: int = 1
    chip: str = "h100-sxm"
    n_gpu: int = 8
    tolerance: float = 0.005
    tied: bool | None = None
    tp: int = 1
    days: float | None = None
    gpu_hours: float | None = None
    kv_bytes_per_token: int | None = None
    tpot_s: float | None = None
    fixed: dict[str, int] = {}
    bounded: dict[str, Range] = {}
    weights: dict[str, float] = {}
    qk_norm: bool = False
    multiple: int = 128
    law: str = "aspect"
    dtype: str = "bf16"
    kv_dtype: str = "bf16"
    assumed: tuple[str, ...] = ()
    """What was filled in, for the report."""

    @property
    def hardware(self) -> Chip:
        """The chip, looked up."""
        return chip(self.chip)


def budget(*, params: int | None = None, tokens: int | None = None, flops: int | None = None,
           **given: Any) -> Budget:  # fmt: skip
    """A checked budget, with what can be derived filled in and listed in ``assumed``.

    Raises:
        FieldError: If limits contradict each other or nothing says how large the model is.

    Example:
        >>> b = budget(params=7_000_000_000)
        >>> b.tokens, b.assumed[0]
        (140000000000, 'tokens: 20 per parameter, no token budget was given')
    """
    assumed = []
    if flops is not None and params is not None and tokens is not None:
        wanted = 6 * params * tokens
        if not 0.98 < wanted / flops < 1.02:
            raise FieldError(
                "flops", f"{flops:.3g}", f"contradicts params and tokens: 6 N D is {wanted:.3g}",
                "give two of the three",
            )  # fmt: skip
    if params is None and flops is None:
        raise FieldError("budget", None, "has no size", "give --params, or --flops")
    if params is None:
        assert flops is not None
        params, why = _params_of_flops(flops, tokens, given)
        assumed.append(f"params: {params / 1e9:.3g} B, {why}")
    if tokens is None and flops is not None:
        tokens = max(1, flops // (6 * params))
        assumed.append(f"tokens: FLOPs / (6 N) = {tokens:.3g}")
    if tokens is None:
        tokens = 20 * params
        assumed.append("tokens: 20 per parameter, no token budget was given")
    found = Budget(params=params, tokens=tokens, flops=flops, assumed=tuple(assumed), **given)
    _check(found)
    return found


def _params_of_flops(flops: int, tokens: int | None, given: dict[str, Any]) -> tuple[int, str]:
    """The size a FLOP budget asks for: by its tokens, or where the law's loss is least."""
    if tokens is not None:
        return max(1, flops // (6 * tokens)), "FLOPs / (6 D)"
    one = law(given.get("law", "aspect"))
    best, chosen = None, 1
    for step in range(240):
        size = 10 ** (6 + step / 40)
        shape = {"width": 40.0 * (size / 12 / 1600) ** (1 / 3), "depth": (size / 19200) ** (1 / 3)}
        loss = one.loss(Features(body=size, total=size, tokens=flops / (6 * size), **shape))
        if best is None or loss < best:
            best, chosen = loss, int(size)
    return chosen, f"where the {one.name} law has its least loss at 6 N D FLOPs"


def _check(b: Budget) -> None:
    b.hardware.rate(dtype_name(b.dtype))  # an unknown chip or dtype is an error here
    dtype_name(b.kv_dtype)
    law(b.law)
    for name in COUNTS:
        if getattr(b, name) < 1:
            raise FieldError(name, getattr(b, name), "must be at least 1")
    for name in ("days", "gpu_hours", "kv_bytes_per_token", "tpot_s"):
        value = getattr(b, name)
        if value is not None and not value > 0:
            raise FieldError(name, value, "must be above zero")
    if b.params > LARGEST_MODEL:
        raise FieldError("params", f"{b.params:.3g}", "is beyond every model", "at most 20T")
    for name in ("vocab_size", "train_context", "serve_context", "serve_batch", "tp", "multiple"):
        if getattr(b, name) > LARGEST:
            raise FieldError(name, f"{getattr(b, name):.3g}", "is beyond every model")
    if not 0 < b.tolerance < 1:
        raise FieldError("tolerance", b.tolerance, "must lie between 0 and 1")
    for name, weight in b.weights.items():
        if name not in OBJECTIVES:
            raise FieldError("objective", name, "is not known", f"use {', '.join(OBJECTIVES)}")
        if weight < 0:
            raise FieldError("objective", f"{name}={weight}", "must not be below 0")
    _check_axes(b)


def _check_axes(b: Budget) -> None:
    """Fixed and bounded axes: known, not both, and not contradicting each other."""
    for name in {**b.fixed, **b.bounded}:
        if name not in AXES:
            near = nearest(name, AXES, 1)
            hint = f"did you mean {near[0]}?" if near else f"axes: {', '.join(AXES)}"
            raise FieldError(name, None, "is no axis of the search", hint)
        if name in b.fixed and name in b.bounded:
            raise FieldError(name, None, "is both fixed and bounded", "give one of the two")
    for name, axis in b.bounded.items():
        if axis.low > axis.high or axis.low < 1:
            raise FieldError(name, f"{axis.low}:{axis.high}", "is an empty range")
    for name, value in b.fixed.items():
        if not 1 <= value <= LARGEST:
            raise FieldError(name, value, f"must lie between 1 and {LARGEST:,}")
    deep = max(b.fixed.get("n_layer", 1), b.bounded.get("n_layer", Range(1, 1)).high)
    if deep > LARGEST_DEPTH:
        raise FieldError("n_layer", deep, f"must be at most {LARGEST_DEPTH:,}")
    heads, groups = b.fixed.get("n_head"), b.fixed.get("n_kv_head")
    if heads and groups and heads % groups:
        raise FieldError("n_kv_head", groups, f"must divide n_head {heads}",
                         near_divisors(heads, groups))  # fmt: skip
    if heads and heads % b.tp:
        raise FieldError("tp", b.tp, f"must divide n_head {heads}", near_divisors(heads, b.tp))


LARGEST_MODEL = 20 * 10**12
LARGEST_DEPTH = 10_000
