"""Whether the limits of a budget make sense, each and together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scantling.arith import LARGEST
from scantling.costs.quantize import scheme
from scantling.costs.runtimes import runtime
from scantling.errors import FieldError, UnknownNameError, nearest
from scantling.laws import law
from scantling.search.kinds import (
    AXES,
    ENCODER_AXES,
    EQUAL,
    EXPERT_AXES,
    EXPERT_RATIOS,
    KINDS,
    LATENT_AXES,
    MIXERS,
    RATIOS,
    WEIGHED,
    axes_of,
    ratio_of,
    schedule_of,
)
from scantling.spec.relations import near_divisors
from scantling.spec.workload import dtype_name, kv_dtype_name

if TYPE_CHECKING:
    from scantling.search.budget import Budget

LARGEST_MODEL = 20 * 10**12
LARGEST_DEPTH = 10_000

COUNTS = (
    "params", "tokens", "vocab_size", "train_context", "serve_context", "serve_batch", "n_gpu",
    "tp", "pp", "ep", "multiple", "serve_gpus",
)  # fmt: skip


def check(b: Budget) -> None:
    """Raise the first limit that makes no sense.

    Raises:
        FieldError: In one line, with what would be right.
    """
    b.hardware.rate(dtype_name(b.dtype))  # an unknown chip or dtype is an error here
    kv_dtype_name(b.kv_dtype)
    law(b.law)
    for name in COUNTS:
        if getattr(b, name) < 1:
            raise FieldError(name, getattr(b, name), "must be at least 1")
    for name in ("days", "gpu_hours", "kv_bytes_per_token", "kv_bytes", "memory", "tpot_s",
                 "ttft_s", "price", "cost_per_million"):  # fmt: skip
        value = getattr(b, name)
        if value is not None and not value > 0:
            raise FieldError(name, value, "must be above zero")
    if b.params > LARGEST_MODEL:
        raise FieldError("params", f"{b.params:.3g}", "is beyond every model", "at most 20T")
    for name in ("vocab_size", "train_context", "serve_context", "serve_batch", "tp", "multiple"):
        if getattr(b, name) > LARGEST:
            raise FieldError(name, f"{getattr(b, name):.3g}", "is beyond every model")
    if b.equal not in EQUAL:
        raise UnknownNameError("equal", b.equal, EQUAL)
    if not 0 < b.tolerance < 1:
        raise FieldError("tolerance", b.tolerance, "must lie between 0 and 1")
    _check_split(b)
    _check_weights(b)
    _check_kinds(b)
    _check_axes(b)


def _check_split(b: Budget) -> None:
    """Degrees split the chips that train, and tensor-parallel ranks a sequence between layers."""
    if b.n_gpu % b.pp:
        raise FieldError("pp", b.pp, f"must divide gpus {b.n_gpu}", near_divisors(b.n_gpu, b.pp))
    stage = b.n_gpu // b.pp
    for name in ("tp", "ep"):
        degree = getattr(b, name)
        if stage % degree:
            chips = f"gpus {stage}" if b.pp == 1 else (
                f"the {stage} gpus of a stage ({b.n_gpu} over pp {b.pp})")  # fmt: skip
            raise FieldError(name, degree, f"must divide {chips}", near_divisors(stage, degree))
    if b.train_context % b.tp:
        raise FieldError("tp", b.tp, f"must divide the context {b.train_context} in training",
                         near_divisors(b.train_context, b.tp))  # fmt: skip


def _check_weights(b: Budget) -> None:
    for name in (*b.weights, *b.lexicographic):
        if name not in WEIGHED:
            raise FieldError("objective", name, "is not known", f"use {', '.join(WEIGHED)}")
    for name, weight in b.weights.items():
        if weight < 0:
            raise FieldError("objective", f"{name}={weight}", "must not be below 0")
    if b.weights and not any(b.weights.values()):
        raise FieldError("objective", None, "weighs nothing", "give a weight above 0")
    money = b.cost_per_million is not None or "cost_per_million" in (*b.weights, *b.lexicographic)
    if money and b.price is None:
        raise FieldError("cost_per_million", b.cost_per_million, "needs the price of a chip-hour",
                         "add --price")  # fmt: skip


def _check_kinds(b: Budget) -> None:
    """Kinds of model that exist and go together."""
    if b.kind not in KINDS:
        raise UnknownNameError("kind", b.kind, KINDS)
    if b.kind != "decoder":
        _check_encoder(b)
    if b.mixer not in MIXERS:
        raise FieldError("mixer", b.mixer, "is not known", f"use {', '.join(MIXERS)}")
    if b.schedule is not None:
        _check_schedule(b)
    local = ratio_of(b.layout) > 0
    if local and b.mixer == "mla":
        raise FieldError("layout", b.layout, "is of grouped attention", "latent attention is full")
    if b.window is not None and (not local or b.mixer != "gqa"):
        raise FieldError("window", b.window, "is of local layers", "give a layout such as 5:1")
    if b.active is not None and not 0 < b.active < b.params:
        raise FieldError(
            "active", f"{b.active:,}", f"must be above 0 and below the {b.params:,} of --params"
        )
    if not 0 < b.active_tolerance < 1:
        raise FieldError("active_tolerance", b.active_tolerance, "must lie between 0 and 1")
    if b.runtime is not None:
        runtime(b.runtime)
    if b.quant is not None:
        scheme(b.quant)
    if b.ep > 1 and not b.moe:
        raise FieldError("ep", b.ep, "needs experts", "give active, as in --active 3B")


def _check_schedule(b: Budget) -> None:
    """A schedule of feed-forward widths is of dense decoders, and sets what d_ff would."""
    schedule_of(b.schedule or "")
    plain = {"moe": False, "mixer": "gqa", "layout": "full", "kind": "decoder"}
    for name, usual in plain.items():
        if getattr(b, name) != usual:
            raise FieldError("schedule", b.schedule, f"does not go with {name} {getattr(b, name)}",
                             "it is of dense decoders with attention in every layer")  # fmt: skip
    if "d_ff" in {*b.fixed, *b.listed, *b.bounded}:
        raise FieldError("d_ff", None, "is several widths under a schedule", "leave one out")


def _check_encoder(b: Budget) -> None:
    """What is not worked out beside an encoder."""
    plain = {"moe": False, "mixer": "gqa", "layout": "full", "qk_norm": False, "pp": 1, "ep": 1,
             "runtime": None, "prior": None, "beat": None}  # fmt: skip
    for name, usual in plain.items():
        if getattr(b, name) != usual:
            raise FieldError(name, getattr(b, name), "is not worked out beside an encoder",
                             "encoder-decoders are dense, of T5's blocks, and no law prices "
                             "their loss")  # fmt: skip


def _check_axes(b: Budget) -> None:
    """Fixed, listed and bounded axes: known, given once, and not contradicting each other."""
    axes = axes_of(b)
    ratios = (*RATIOS, *EXPERT_RATIOS) if b.moe else RATIOS
    for name in {**b.fixed, **b.listed, **b.bounded}:
        if name not in axes and not (name in ratios and name in b.bounded):
            known = (*axes, *ratios)
            near = nearest(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"axes: {', '.join(known)}"
            if name in {*AXES, *LATENT_AXES, *EXPERT_AXES, *ENCODER_AXES}:
                kind = "without experts" if name in EXPERT_AXES else f"with mixer {b.mixer}"
                kind = "without an encoder" if name == "encoder_ratio" else kind
                hint = f"a shape {kind} has {', '.join(axes)}"
            raise FieldError(name, None, "is no axis of the search", hint)
        given = [way for way, held in (("fixed", b.fixed), ("listed", b.listed),
                                       ("bounded", b.bounded)) if name in held]  # fmt: skip
        if len(given) > 1:
            raise FieldError(name, None, f"is both {' and '.join(given)}", "give one of the two")
    _check_values(b)


def _check_values(b: Budget) -> None:
    """The values of fixed, listed and bounded axes."""
    for name, values in (b.listed | {name: (one,) for name, one in b.fixed.items()}).items():
        least = 0 if name in {"n_shared", "n_dense"} else 1
        for value in values:
            if not least <= value <= LARGEST:
                raise FieldError(name, value, f"must lie between {least} and {LARGEST:,}")
    for name, axis in b.bounded.items():
        if not 0 < axis.low <= axis.high <= LARGEST:
            raise FieldError(name, f"{axis.low:g}:{axis.high:g}", "is an empty range")
    bound = b.bounded.get("n_layer")
    depths = [*b.listed.get("n_layer", ()), b.fixed.get("n_layer", 1)]
    deep = max(*depths, 1 if bound is None else bound.high)
    if deep > LARGEST_DEPTH:
        raise FieldError("n_layer", deep, f"must be at most {LARGEST_DEPTH:,}")
    heads, groups = b.fixed.get("n_head"), b.fixed.get("n_kv_head")
    if heads and groups and heads % groups:
        raise FieldError("n_kv_head", groups, f"must divide n_head {heads}",
                         near_divisors(heads, groups))  # fmt: skip
    if heads and heads % b.tp:
        raise FieldError("tp", b.tp, f"must divide n_head {heads}", near_divisors(heads, b.tp))
    for cut, field in (("n_layer", "pp"), ("n_expert", "ep")):
        held, degree = b.fixed.get(cut), getattr(b, field)
        if held and held % degree:
            hint = near_divisors(held, degree)
            raise FieldError(field, degree, f"must divide {cut} {held}", hint)
