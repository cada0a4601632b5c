"""The question: what is given, what must hold, what is left to choose."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from scantling import catalog
from scantling.arith import MOST_CONTEXT, MOST_TOKENS
from scantling.costs.count import parameters
from scantling.costs.estimate import NODE
from scantling.errors import FieldError, nearest
from scantling.hardware import MOST_GPUS, Chip, chip
from scantling.laws import DEFAULT
from scantling.laws.optimum import TOKENS_A_PARAMETER
from scantling.search.checked import LARGEST_DEPTH, LARGEST_MODEL, check
from scantling.search.kinds import OBJECTIVES, WINDOW, ratio_of
from scantling.search.peers import sparse_specs, usual_active, usual_total
from scantling.search.size import FULL, flops_of, size_of, tokens_of
from scantling.units import parse_bytes, parse_context, parse_count, parse_seconds

NAMES = {
    "gpu": "chip", "gpus": "n_gpu", "vocab": "vocab_size", "tpot": "tpot_s", "ttft": "ttft_s",
    "serve_gpu": "serve_chip",
}  # fmt: skip
"""What the command line calls a limit, where the name here is another."""


class Range(Struct, frozen=True):
    """A closed range of an axis the user set."""

    low: float
    high: float


class Budget(Struct, frozen=True, kw_only=True):
    """A budget for ``design``; every limit is hard.

    Args:
        params: Total parameters wanted.
        tokens: Training tokens; 20 per (active) parameter unless given.
        flops: Training FLOPs; they give params (and tokens) where those are not given, attention
            in full and the head counted, and tokens beside params by 6 N D.
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
        kv_bytes_per_token: Most KV-cache bytes of a sequence at the serving context, a token of it.
        tpot_s: Most seconds per output token.
        fixed: Axes with one value.
        bounded: Axes with a range.
        weights: Weight of each objective in the choice.
        lexicographic: Objectives in order: the least of the first, then of the second among equals.
        qk_norm: Norms on queries and keys.
        multiple: Alignment of widths, in elements.
        active: Parameters a token passes; makes it a mixture of experts.
        active_tolerance: Accepted relative distance from ``active``.
        moe: A mixture of experts, also where ``active`` is left to the search.
        kind: ``decoder`` or ``encoder-decoder``.
        mixer: ``gqa``, ``mla``, ``hybrid``, ``gated-delta`` or ``mamba2``.
        layout: ``full``, or local layers to global ones: ``5:1``.
        window: Window of the local layers.
        schedule: Feed-forward widths over depth: ``linear-ffn:0.5-1.5``.
        listed: Axes with a list of values.
        origin: Axes that the weights of a model set (``--from``), each with its name.
        unique_tokens: Unique tokens there are; training repeats them beyond that.
        memory: Most training memory a chip, bytes.
        kv_bytes: Most KV-cache bytes of all sequences at the serving context.
        ttft_s: Most seconds to the first token.
        serve_chip: The chip that serves, where it is not ``chip``.
        serve_gpus: Chips that serve one copy.
        price: Money a chip-hour; money is given only with it.
        cost_per_million: Most money a million output tokens.
        pp: Pipeline-parallel degree that must divide.
        ep: Expert-parallel degree that must divide.
        degrees: Of tp, pp and ep those that were given, also where they are 1: plans keep them.
        quant: Quantisation whose groups must shard over ``tp``.
        runtime: Runtime whose kernels must take the shape: vllm, sglang, tensorrt-llm, llama.cpp.
        equal: What shapes have alike: ``tokens``, ``flops`` or ``wall-clock``.
        prior: A shape prior of the field that bounds the search (``priors``).
        beat: A model whose loss the shapes must reach.
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
    lexicographic: tuple[str, ...] = ()
    qk_norm: bool = False
    multiple: int = 128
    active: int | None = None
    active_tolerance: float = 0.02
    moe: bool = False
    kind: str = "decoder"
    mixer: str = "gqa"
    layout: str = "full"
    window: int | None = None
    schedule: str | None = None
    listed: dict[str, tuple[int, ...]] = {}
    origin: dict[str, str] = {}
    unique_tokens: int | None = None
    memory: int | None = None
    kv_bytes: int | None = None
    ttft_s: float | None = None
    serve_chip: str | None = None
    serve_gpus: int = 1
    price: float | None = None
    cost_per_million: float | None = None
    pp: int = 1
    ep: int = 1
    degrees: tuple[str, ...] = ()
    quant: str | None = None
    runtime: str | None = None
    equal: str = "tokens"
    prior: str | None = None
    beat: str | None = None
    law: str = DEFAULT
    dtype: str = "bf16"
    kv_dtype: str = "bf16"
    alike: float | None = None
    """What ``equal`` gives every shape: training FLOPs, or seconds; the search fills it in."""
    assumed: tuple[str, ...] = ()
    """What was filled in, for the report."""

    @property
    def hardware(self) -> Chip:
        """The chip, looked up."""
        return chip(self.chip)

    @property
    def chips_given(self) -> bool:
        """Whether the number of chips was given."""
        return not any(text.startswith("gpus: ") for text in self.assumed)


def budget(*, params: float | str | None = None, tokens: float | str | None = None,
           flops: float | str | None = None, **given: Any) -> Budget:  # fmt: skip
    """A checked budget, with what can be derived filled in and listed in ``assumed``.

    Amounts may be text in human units: ``params="7B"``, ``train_context="8k"``.
    Without a size, FLOPs give one; without FLOPs, days or GPU-hours on the chips give those.

    Raises:
        FieldError: If limits contradict each other or nothing says how large the model is.

    Example:
        >>> b = budget(params="7B", gpu="h100-sxm")
        >>> b.tokens, "tokens: 20 per parameter" in b.assumed
        (140000000000, True)
    """
    given = _plain(given)
    fixed = dict(given.get("fixed") or {})
    if "vocab_size" in fixed:  # one vocabulary is the limit of that name
        given |= {"vocab_size": fixed.pop("vocab_size"), "fixed": fixed}
    size, trained, work = (
        None if value is None else _within(name, value, parse_count(value, name))
        for name, value in (("params", params), ("tokens", tokens), ("flops", flops))
    )
    assumed: list[str] = []
    _add_degrees(given, assumed)
    given["moe"] = bool(given.get("moe") or given.get("active"))
    if given.get("beat") is not None:
        timed = bool(_days(given))
        size = _rival(given, size, sized=work is not None or timed, assumed=assumed)
    timed = size is None and work is None and (_days(given) > 0 or given.get("active") is None)
    if timed:
        work = _flops_of(given, assumed)
    if size is None and given.get("active") is not None:
        size = usual_total(given["active"])
        assumed.append(f"params: {size / 1e9:.3g} B, {AS_KNOWN}")
    asked = given.get("active") or size
    small = work is not None and work < 10**20 if asked is None else asked < 10**9
    if "vocab_size" not in given:
        given["vocab_size"] = 50_304 if small else 128_256
        counted = " for the count of tokens" if "vocab_size" in (given.get("listed") or {}) else ""
        assumed.append(f"vocab: {given['vocab_size']:,}{counted}")
    if size is None:
        assert work is not None
        size, trained = _sized(work, trained, given, assumed)
    elif given["moe"] and given.get("active") is None:
        given["active"] = usual_active(size)
        share = given["active"] / size
        assumed.append(f"active: {given['active'] / 1e9:.3g} B, {share:.1%}, {AS_KNOWN}")
    passed = given.get("active") or size
    if asked is not None and work is not None and trained is not None and not timed:
        cost = 6 * passed * trained
        if not 0.9 < cost / work < 1.1:
            raise FieldError(
                "flops", f"{work:.3g}", f"contradicts params and tokens: 6 N D is {cost:.3g}",
                "give two of the three",
            )  # fmt: skip
    if trained is None:
        trained, why = _trained(work, passed, given, timed=timed)
        assumed.append(f"tokens: {why}")
    assumed += [
        f"{name}: {value}" for name, field, value in DEFAULTS if field not in given
    ]  # fmt: skip
    _add_window(given, assumed)
    if given.get("kind", "decoder") != "decoder":
        assumed.append("source: the encoder reads as many tokens as the decoder writes")
    found = Budget(params=size, tokens=trained, flops=work, assumed=tuple(assumed), **given)
    check(found)
    return found


def _trained(
    work: int | None, passed: int, given: dict[str, Any], *, timed: bool
) -> tuple[int, str]:
    """Training tokens of a size: of FLOPs that are given by 6 N D, of days by all that is done."""
    if work is None:
        kind = "active parameter" if given["moe"] else "parameter"
        return TOKENS_A_PARAMETER * int(passed), f"{TOKENS_A_PARAMETER} per {kind}"
    if timed:
        found = tokens_of(work, passed, given["vocab_size"], given.get("train_context", 8192))
        return found, f"{found / 1e9:,.3g} B, what the FLOPs leave for it"
    found = max(1, work // (6 * passed))
    return found, f"{found / 1e9:,.3g} B, FLOPs / (6 N)"


def _add_degrees(given: dict[str, Any], assumed: list[str]) -> None:
    """The degrees that are given, and without chips the fewest whole nodes of 8 they divide.

    Stages of TP groups, over whose chips experts spread: a multiple of PP × lcm(TP, EP).
    """
    degrees = {name: given[name] for name in ("tp", "pp", "ep") if given.get(name) is not None}
    given["degrees"] = tuple(degrees)
    tp, pp, ep = (max(1, degrees.get(name, 1)) for name in ("tp", "pp", "ep"))
    if given.get("n_gpu") is None and pp * math.lcm(tp, ep) > 1:
        given["n_gpu"] = math.lcm(NODE, pp * math.lcm(tp, ep))
        assumed.append(f"gpus: {given['n_gpu']}, the fewest whole nodes that the degrees divide")


def _rival(
    given: dict[str, Any], size: int | None, *, sized: bool, assumed: list[str]
) -> int | None:
    """The size asked for, or that of the model to beat; its vocabulary is that of the budget."""
    rival = catalog.load(given["beat"])
    vocabulary = rival.spec.vocab_size
    if given.setdefault("vocab_size", vocabulary) != vocabulary:
        rule = f"has a vocabulary of {vocabulary:,}: nats of two vocabularies cannot be compared"
        raise FieldError("beat", rival.name, rule, f"give --vocab {vocabulary}")
    if size is not None or sized:
        return size
    found = int(parameters(rival.spec).total)
    assumed.append(f"params: {found / 1e9:.3g} B, as {rival.name}")
    return found


AS_KNOWN = "as known models with experts of that size have"


def _days(given: dict[str, Any]) -> float:
    """Days that are given, or GPU-hours as days, the fewer of both; 0 where there are none."""
    return least_days(given.get("days"), given.get("gpu_hours"), given.get("n_gpu", 8)) or 0.0


def least_days(days: float | None, gpu_hours: float | None, n_gpu: int) -> float | None:
    """The fewer of days and GPU-hours on so many chips; None where neither is given."""
    hours = None if gpu_hours is None else gpu_hours / (24 * max(n_gpu, 1))
    return min((n for n in (days, hours) if n is not None), default=None)


def _flops_of(given: dict[str, Any], assumed: list[str]) -> int:
    """Training FLOPs that a time on chips gives, where a budget has no other size.

    Raises:
        FieldError: If it has no time either.
    """
    one = chip(given.get("chip", "h100-sxm"))
    n_gpu, dtype = given.get("n_gpu", 8), given.get("dtype", "bf16")
    days = _days(given)
    if not days:
        raise FieldError(
            "budget", None, "has no size", "give --params, --flops, --days or --gpu-hours"
        )
    like = "known models with experts (the lower quartile)" if given["moe"] else "a 7B"
    known = sparse_specs() if given["moe"] else []
    work = flops_of(days, one, n_gpu, dtype, known, given.get("train_context", 8192))
    assumed.append(f"flops: {work:.3g}, what {days:.3g} days on {n_gpu} × {one.key} give at the "
                   f"MFU of {like}, {FULL}")  # fmt: skip
    return work


def _sized(
    work: int, trained: int | None, given: dict[str, Any], assumed: list[str]
) -> tuple[int, int]:
    """Parameters and tokens for training FLOPs; of experts, the active size and then all."""
    size, wanted, why = size_of(
        work, trained, given["vocab_size"], given.get("train_context", 8192),
        given.get("law", DEFAULT), given.get("tied"),
    )  # fmt: skip
    if given["moe"]:
        given["active"] = size
        assumed.append(f"active: {size / 1e9:.3g} B, {why}")
        size, why = usual_total(size), AS_KNOWN
    assumed.append(f"params: {size / 1e9:.3g} B, {why}")
    if trained is None:
        trained = wanted
        assumed.append(f"tokens: {trained / 1e9:,.3g} B, what the FLOPs leave for it")
    return size, trained


def _add_window(given: dict[str, Any], assumed: list[str]) -> None:
    """The window of local layers where none is given."""
    local = ratio_of(given.get("layout", "full")) and given.get("mixer", "gqa") == "gqa"
    if local and given.get("window") is None:
        given["window"] = max(WINDOW, given.get("train_context", 8192) // 8)
        assumed.append(f"window: {given['window']:,}")


DEFAULTS = (
    ("context", "train_context", 8192), ("gpu", "chip", "h100-sxm"), ("gpus", "n_gpu", 8),
)  # fmt: skip


def _plain(given: dict[str, Any]) -> dict[str, Any]:
    """Keyword limits under their own names and as plain numbers."""
    found = {}
    for name, value in given.items():
        field = NAMES.get(name, name)
        if field not in Budget.__struct_fields__:
            near = nearest(field, [*Budget.__struct_fields__, *NAMES], 1)
            hint = f"did you mean {near[0]}?" if near else ""
            raise FieldError(name, None, "is no limit of a budget", hint)
        parse = PARSERS.get(field)
        plain = parse(value, name) if parse and value is not None else value
        found[field] = plain if plain is None else _within(field, value, plain)
    return found


def _within(field: str, given: Any, found: Any) -> Any:
    """A number as it is, unless nobody could mean it."""
    most = MOST.get(field)
    if most is not None and found > most:
        said = {v: k for k, v in NAMES.items()}.get(field, field)
        raise FieldError(said, given, "is beyond every run", f"at most {most}")
    return found


def _amount(value: float | str, name: str) -> float:
    """Days or GPU-hours, which need not be whole: 1.5, or text with a prefix such as 10k."""
    try:
        found = float(value)
    except ValueError:
        return parse_count(value, name)
    if not 0 < found < math.inf:
        raise FieldError(name, value, "must be above zero and finite")
    return found


PARSERS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("vocab_size", "n_gpu", "serve_batch", "tp", "pp", "ep", "multiple",
                     "serve_gpus", "active", "unique_tokens"), parse_count),
    **dict.fromkeys(("train_context", "serve_context", "window"), parse_context),
    **dict.fromkeys(("kv_bytes_per_token", "kv_bytes", "memory"), parse_bytes),
    **dict.fromkeys(("tpot_s", "ttft_s"), parse_seconds),
    **dict.fromkeys(("days", "gpu_hours"), _amount),
}  # fmt: skip

MOST = {
    **dict.fromkeys(("n_gpu", "serve_gpus", "tp", "pp", "ep"), MOST_GPUS),
    **dict.fromkeys(("train_context", "serve_context"), MOST_CONTEXT),
    "serve_batch": 10**9,
    "tokens": MOST_TOKENS,
}

__all__ = [
    "LARGEST_DEPTH", "LARGEST_MODEL", "OBJECTIVES", "Budget", "Range", "budget", "ratio_of",
]  # fmt: skip
