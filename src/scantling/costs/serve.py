"""Serving: time per output token, time to first token, throughput of a deployment.

First what one step asks of one chip (``demand``): ideal seconds by resource, without a constant.
Then what it takes (``step_time``): each resource at the fraction engines reach, and what they take
beside. One set of constants serves every engine (``data/constants/serve.toml``).
"""

from __future__ import annotations

import functools
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from scantling.arith import Num, ceil_div, maximum, minimum, product
from scantling.costs.cache import cache_bytes
from scantling.hardware import Chip
from scantling.hardware.constants.fitted import constants_file, inherit
from scantling.hardware.constants.serve import ServeConstants
from scantling.ops import Op, operators
from scantling.spec import Spec, Workload, dtype_bytes, kv_dtype_bytes
from scantling.spec.workload import plain_dtype

SCALES = {"fp4": 1 / 16, "int4": 1 / 16}
"""Bytes of scales for each element: an 8-bit one for 16 (NVFP4), a 16-bit one for 32."""
NARROWER = {"fp4": ("fp8", "bf16", "fp16"), "int4": ("bf16", "fp16"), "int8": ("bf16", "fp16"),
            "fp8": ("bf16", "fp16"), "bf16": ("fp16",), "fp16": ("bf16",)}  # fmt: skip
"""What products run in where a chip has no rate for the dtype weights are kept in."""
RESIDUAL_BYTES = 2
PCIE_BYTES_PER_S = 32e9
"""Between chips without a link of their own: half of PCIe 5, both ways shared."""
CHUNK_TOKENS = 8192
"""Tokens of a prefill step: the default of three engines is 8192 or 16384."""
LAUNCHED = {"matmul", "attention", "scan", "norm"}


class Deployment(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a model is split over chips to be served, and in what numbers.

    The chips are tp × dp × pp. Attention runs tensor-parallel in groups of tp, of which dp work on
    different sequences; routed experts are split over all tp × dp of a stage.

    Args:
        tp: Tensor-parallel degree of attention and dense layers.
        dp: Groups among which sequences are divided (data-parallel attention).
        pp: Pipeline stages.
        weights: Dtype of dense weights.
        experts: Dtype of routed experts; None is that of the rest.
        cache: Dtype of keys and values.
        head: Dtype of embeddings and head, which engines rarely quantise.
        in_flight: Whether sequences come and go, so that the host looks after each at every step; a
            fixed batch runs as one.

    Example:
        >>> Deployment(tp=8, weights="fp8").n_gpu
        8
    """

    tp: Num = 1
    dp: Num = 1
    pp: Num = 1
    weights: str = "bf16"
    experts: str | None = None
    cache: str = "bf16"
    head: str = "bf16"
    in_flight: bool = True

    @property
    def n_gpu(self) -> Num:
        """Chips in all."""
        return self.tp * self.dp * self.pp


class Demand(Struct, frozen=True):
    """What one step asks of one chip: ideal seconds at full rates, and counts."""

    weights_s: Num
    """Reading dense weights."""
    experts_s: Num
    """Reading the routed experts that are touched."""
    cache_s: Num
    """Reading keys, values and states."""
    matmul_s: Num
    """Dense products."""
    grouped_s: Num
    """Products of routed experts."""
    attention_s: Num
    link_s: Num
    """Bytes over the link."""
    launches: Num
    routed: Num
    """Layers that route."""
    reduces: Num
    """Collectives."""
    sequences: Num
    """Sequences of all groups and stages that one host looks after."""
    narrow: Num
    """1 where dense weights are widened as they are read, else 0."""
    narrow_experts: Num
    """The same of routed experts, which may be packed alone."""
    matmul: Num
    """Fraction of the peak that a large product reaches on the chip at the dense dtype."""
    grouped: Num
    """The same at the dtype of the experts."""

    @property
    def lower_s(self) -> Num:
        """No step is faster: bytes and arithmetic each at full rate."""
        moved: Any = self.weights_s + self.experts_s + self.cache_s
        return maximum(moved, self.matmul_s + self.grouped_s + self.attention_s)  # type: ignore[no-any-return]


class Times(Struct, frozen=True):
    """A value with its 90 % interval, in one unit."""

    low: Num
    value: Num
    high: Num


class Serving(Struct, frozen=True):
    """What a deployment does at a load."""

    sequences: Num
    """Sequences in one group at once: the load, or what the memory holds."""
    tpot_s: Times
    """Time per output token, with the prefills of others between."""
    ttft_s: Times
    """Time to the first token of a request that does not queue."""
    tokens_per_s: Times
    """Output tokens of the whole deployment."""
    decode_s: Num
    """A decode step with nothing between."""
    prefill_s: Num
    """One prompt."""
    weights_bytes: Num
    """Of one chip."""
    cache_bytes: Num
    """Of one sequence at its full length, on one chip."""
    queues: Any
    """Whether the load is more than the memory holds."""


@functools.cache
def _constants(families: tuple[str, ...], key: str) -> ServeConstants:
    return inherit(constants_file("serve"), families, key, ServeConstants)


def serve_constants(chip: Chip) -> ServeConstants:
    """The constants of serving on a chip.

    Example:
        >>> from scantling.hardware import chip
        >>> 0 < serve_constants(chip("h100-sxm")).weights <= 1
        True
    """
    return _constants((chip.compute_capability or "", chip.architecture), chip.key)


def stored_bytes(dtype: str) -> float:
    """Bytes of one weight with its share of the scales.

    Example:
        >>> stored_bytes("fp4"), stored_bytes("fp8")
        (0.5625, 1.0)
    """
    return dtype_bytes(dtype) + SCALES.get(plain_dtype(dtype), 0.0)


def running_dtype(chip: Chip, dtype: str) -> str:
    """What products run in whose weights are kept in a dtype.

    Where the chip has no rate for it, weights are widened as they are read; nobody multiplies in
    INT4.

    Example:
        >>> from scantling.hardware import chip
        >>> [running_dtype(chip("h100-sxm"), kept) for kept in ("fp4", "int4", "fp8")]
        ['fp8', 'bf16', 'fp8']
    """
    name = plain_dtype(dtype)
    wanted = [name, *NARROWER.get(name, ())] if name != "int4" else [*NARROWER[name]]
    return next((d for d in wanted if d in chip.dtypes), name)


def demand(
    spec: Spec, chip: Chip, d: Deployment, batch: Num, context: Num, phase: str = "decode"
) -> Demand:
    """What one step asks of one chip of a stage's worth of layers, all stages together.

    Args:
        spec: The model.
        chip: Where.
        d: How it is split.
        batch: Sequences of one group.
        context: Tokens of each: in the cache (decode), or of the prompt (prefill).
        phase: ``decode`` or ``prefill``.
    """
    work = Workload("decode" if phase == "decode" else "prefill", batch, context)  # type: ignore[arg-type]
    found: dict[str, Any] = dict.fromkeys(
        ("weights", "experts", "cache", "matmul", "grouped", "attention", "link", "launches",
         "routed", "reduces"), 0.0,
    )  # fmt: skip
    tokens: Any = product(batch, work.new_tokens) * d.dp
    for op in operators(spec, work):
        _add_weights(found, op, d, tokens)
        _add_products(found, op, d, spec, phase)
        if op.kind in LAUNCHED:
            found["launches"] = found["launches"] + op.times
        if op.name.endswith(".router"):
            found["routed"] = found["routed"] + op.times
        if op.name.endswith(".residual"):  # what a split layer adds to it is summed over the group
            _add_collective(found, op, d)
        if op.cache is not None and phase == "decode":
            held: Any = cache_bytes(op.cache, context, d.cache)  # type: ignore[arg-type]
            found["cache"] = found["cache"] + held * batch / _cache_split(op, spec, d)
    dense, grouped = (running_dtype(chip, kept) for kept in (d.weights, d.experts or d.weights))
    reached = chip.constants.gemm.matmul_at
    bandwidth, link = chip.memory_bytes_per_s, chip.link_bytes_per_s or PCIE_BYTES_PER_S
    wide = chip.rate("bf16" if "bf16" in chip.dtypes else "fp16")
    return Demand(
        weights_s=found["weights"] / bandwidth, experts_s=found["experts"] / bandwidth,
        cache_s=found["cache"] / bandwidth, matmul_s=found["matmul"] / chip.rate(dense),
        grouped_s=found["grouped"] / chip.rate(grouped), attention_s=found["attention"] / wide,
        link_s=found["link"] / link, launches=found["launches"], routed=found["routed"],
        reduces=found["reduces"], sequences=batch * d.dp * d.pp * d.in_flight,
        narrow=widened(chip, d.weights), narrow_experts=widened(chip, d.experts or d.weights),
        matmul=reached(dense), grouped=reached(grouped),
    )  # fmt: skip


def widened(chip: Chip, kept: str) -> float:
    """1 where weights are kept narrower than their products run, else 0.

    Example:
        >>> from scantling.hardware import chip
        >>> [widened(chip("l4"), kept) for kept in ("bf16", "fp8", "int4")]
        [0.0, 0.0, 1.0]
    """
    return float(dtype_bytes(running_dtype(chip, kept)) > dtype_bytes(kept))


def _add_weights(found: dict[str, Any], op: Op, d: Deployment, tokens: Any) -> None:
    """Weight bytes read: of E routed experts those that the step's tokens touch.

    With k of E chosen by each of m tokens on its own, an expert is missed with probability
    (1 − k/E)^m, so E (1 − (1 − k/E)^m) are read.
    """
    if op.kind == "lookup":
        return
    for t in op.tensors:
        size: Any = product(t.each(), op.times)
        if t.experts is not None and t.top_k is not None:
            touched = t.experts * (1 - (1 - t.top_k / t.experts) ** tokens)
            read = size * touched * stored_bytes(d.experts or d.weights) / (d.tp * d.dp)
            found["experts"] = found["experts"] + read
        else:
            kept = d.head if op.part in {"lm_head", "embedding"} else d.weights
            found["weights"] = found["weights"] + size * stored_bytes(kept) / d.tp


def _add_products(found: dict[str, Any], op: Op, d: Deployment, spec: Spec, phase: str) -> None:
    """Operations of one chip; only the last position of a prompt passes the head."""
    flops: Any = op.flops("causal")
    if op.part == "lm_head" and phase != "decode":
        return
    if op.part == "experts":
        found["grouped"] = found["grouped"] + flops / d.tp
    elif op.kind == "attention":
        heads = spec.n_head if hasattr(spec, "n_head") else d.tp
        found["attention"] = found["attention"] + flops / minimum(d.tp, heads)
    else:
        found["matmul"] = found["matmul"] + flops / d.tp


def _add_collective(found: dict[str, Any], op: Op, d: Deployment) -> None:
    """An all-reduce of the residual over a group: each byte passes 2 (g − 1) / g times.

    Where groups hold different sequences, tokens go to the experts of all chips and back instead:
    about the same bytes.
    """
    ranks = d.tp * d.dp
    split: Any = minimum(ranks - 1, 1)  # 0 on one chip
    passed = 2 * (ranks - 1) / ranks * product(op.m, op.n, op.times) * RESIDUAL_BYTES
    found["link"] = found["link"] + passed
    found["reduces"] = found["reduces"] + split * op.times


def _cache_split(op: Op, spec: Spec, d: Deployment) -> Any:
    """Chips of a group that share a cache: a KV head is held whole, a latent by every chip."""
    assert op.cache is not None
    if op.cache.expanded is not None:
        return 1
    if op.kind == "attention":
        return minimum(d.tp, spec.n_kv_head)
    return d.tp


def step_time(w: Demand, c: ServeConstants) -> Num:
    """Seconds of a step.

    max(weights / reached, products / reached)   dense, experts and attention each
    + link / reached + what kernels, routing, collectives, sequences and the step take beside
    """
    dense_s: Any = w.weights_s * (1 + (c.narrow - 1) * w.narrow) / c.weights
    experts_s: Any = w.experts_s * (1 + (c.narrow - 1) * w.narrow_experts) / c.experts
    dense: Any = maximum(dense_s, w.matmul_s / (w.matmul * c.matmul))
    experts: Any = maximum(experts_s, w.grouped_s / (w.grouped * c.grouped))
    attention: Any = maximum(w.cache_s / c.cache, w.attention_s / c.attention)
    beside: Any = w.launches * c.launch_s + w.routed * c.routed_s + w.reduces * c.reduce_s
    host: Any = w.sequences * c.sequence_s + c.step_s
    return dense + experts + attention + w.link_s / c.link + beside + host  # type: ignore[no-any-return]


def decode_step(
    spec: Spec, chip: Chip, d: Deployment, batch: Num, context: Num, read: Num = 1.0
) -> Times:
    """One decode step, with no prefills between.

    Args:
        spec: The model, or a column.
        chip: Where.
        d: How it is split; a step passes all stages.
        batch: Sequences, all groups together.
        context: Tokens of each in the cache.
        read: Bytes of the weights over those of ``d``'s dtypes.

    Example:
        >>> from scantling import catalog, hardware
        >>> spec, one = catalog.model("llama-3.1-8b"), hardware.chip("h100-sxm")
        >>> found = decode_step(spec, one, Deployment(), 1, 8192)
        >>> 0.007 < found.low < found.value < found.high < 0.010
        True
    """
    c = serve_constants(chip)
    w = demand(spec, chip, d, maximum(batch / (d.dp * d.pp), 1), context)
    w = replace(w, weights_s=w.weights_s * read, experts_s=w.experts_s * read)
    value, plain = step_time(w, c), step_time(replace(w, narrow=0.0 * w.narrow), c)
    low, high = _ends(c, routed(spec))
    return Times(maximum(plain * low, w.lower_s), value, value * high)


def routed(spec: Spec) -> bool:
    """Whether a model has routed experts."""
    return any(t.experts is not None for op in operators(spec) for t in op.tensors)


def _ends(c: ServeConstants, has_experts: bool) -> tuple[float, float]:
    """Factors to the ends of the interval of a decode step."""
    ends = (c.experts_low, c.experts_high) if has_experts else (c.decode_low, c.decode_high)
    return ends[0] ** c.widen, ends[1] ** c.widen


class Load(Struct, frozen=True):
    """What a deployment is asked for, taken apart: constants turn it into times (``served``)."""

    decode: Demand
    prefill: Demand
    """One prompt."""
    bunch: Demand
    """As many prompts as one step takes."""
    bunched: Num
    prompt: Num
    answer: Num
    sequences: Num
    queues: Any
    weights_bytes: Num
    cache_bytes: Num
    routed: bool
    """Whether the model has routed experts."""


def load(
    spec: Spec, chip: Chip, d: Deployment, prompt: Num, answer: Num, concurrency: Num | None,
    c: ServeConstants,
) -> Load:  # fmt: skip
    """A deployment at a load: how many sequences run at once, and what their steps ask.

    Args:
        spec: The model.
        chip: Where.
        d: How it is split.
        prompt: Tokens in.
        answer: Tokens out.
        concurrency: Requests in flight, all groups together; None is as many as fit.
        c: Its ``memory`` and nothing else.
    """
    weights = weights_bytes(spec, d)
    whole: Any = prompt + answer
    per_sequence = sequence_bytes(spec, d, whole)
    room = maximum(chip.usable_bytes * c.memory - weights, per_sequence) / per_sequence
    asked: Any = room if concurrency is None else concurrency / d.dp
    sequences = maximum(minimum(asked, room), 1)
    context: Any = prompt + ceil_div(answer, 2)  # type: ignore[arg-type]
    bunched: Any = minimum(maximum(CHUNK_TOKENS // prompt, 1), maximum(sequences // d.pp, 1))
    return Load(
        decode=demand(spec, chip, d, maximum(sequences / d.pp, 1), context),
        prefill=demand(spec, chip, d, 1, prompt, "prefill"),
        bunch=demand(spec, chip, d, bunched, prompt, "prefill"), bunched=bunched,
        prompt=prompt, answer=answer, sequences=sequences, queues=asked > room,
        weights_bytes=weights, cache_bytes=per_sequence,
        routed=routed(spec),
    )  # fmt: skip


def weights_bytes(spec: Spec, d: Deployment) -> Num:
    """Weights that one chip holds."""
    total: Any = 0.0
    for op in operators(spec):
        for t in op.tensors:
            if t.alias is not None:
                continue
            if t.experts is not None:
                kept, share = d.experts or d.weights, d.tp * d.dp
            else:
                kept, share = d.head if op.part in {"lm_head", "embedding"} else d.weights, d.tp
            total = total + product(t.size(), stored_bytes(kept)) / share
    return total / d.pp  # type: ignore[no-any-return]


def sequence_bytes(spec: Spec, d: Deployment, context: Num) -> Num:
    """Cache of one sequence on one chip."""
    total: Any = 0.0
    for op in operators(spec, Workload("decode", 1, context)):  # type: ignore[arg-type]
        if op.cache is not None:
            total = total + cache_bytes(op.cache, context, d.cache) / _cache_split(op, spec, d)  # type: ignore[arg-type]
    return maximum(total / d.pp, kv_dtype_bytes(d.cache))  # type: ignore[no-any-return]


def prefill_time(w: Load, c: ServeConstants) -> Num:
    """Seconds of one prompt among others: steps are shared by as many as fit in 8192 tokens."""
    chunks: Any = maximum(ceil_div(w.prompt, CHUNK_TOKENS), 1)  # type: ignore[arg-type]
    more: Any = (chunks - 1) * w.prefill.launches * c.launch_s
    return step_time(w.bunch, c) / w.bunched + more  # type: ignore[no-any-return]


def served(w: Load, d: Deployment, c: ServeConstants) -> Serving:
    """What a load takes.

        time per token = decode step + (sequences − own) × prefill / answer

    In steady state each of the others is prefilled once while an answer is made; what falls into
    its own wait does not count. Through pp stages the other sequences fill the gaps.

    What widening costs was measured in experts only. The fast ends of dense weights that are
    widened as they are read are those of weights that are not.
    """
    decode: Any = step_time(w.decode, c)
    among: Any = prefill_time(w, c)
    others: Any = maximum(w.sequences - c.own, 0) / d.pp
    tpot = decode + others * among / w.answer
    alone: Any = step_time(w.prefill, c)
    first = alone + w.prefill.launches * c.eager_s * d.in_flight
    rate: Any = w.sequences * d.dp / (decode + w.sequences / d.pp * among / w.answer)
    low, high = _ends(c, w.routed)
    e = c.widen
    plain: Any = step_time(replace(w.decode, narrow=0.0 * w.decode.narrow), c)
    fast: Any = tpot - decode + plain
    fastest: Any = rate * tpot / fast
    return Serving(
        sequences=w.sequences,
        tpot_s=Times(maximum(fast * low, w.decode.lower_s), tpot, tpot * high),
        ttft_s=Times(maximum(first * c.first_low**e, w.prefill.lower_s), first,
                     first * c.first_high**e),
        tokens_per_s=Times(rate * c.rate_low**e, rate, fastest * c.rate_high**e),
        decode_s=decode, prefill_s=alone, weights_bytes=w.weights_bytes,
        cache_bytes=w.cache_bytes, queues=w.queues,
    )  # fmt: skip


def batch_time(w: Load, c: ServeConstants) -> Num:
    """Seconds from start to end of a fixed batch: all prompts, then a step for each token."""
    return w.sequences * prefill_time(w, c) + w.answer * step_time(w.decode, c)


def serving(
    spec: Spec, chip: Chip, d: Deployment, prompt: Num, answer: Num,
    concurrency: Num | None = None,
) -> Serving:  # fmt: skip
    """What a deployment does at a load.

    Args:
        spec: The model.
        chip: Where.
        d: How it is split, and in what numbers.
        prompt: Tokens in.
        answer: Tokens out.
        concurrency: Requests in flight; None is as many as the memory holds.

    Example:
        >>> from scantling import catalog
        >>> from scantling.hardware import chip
        >>> eight = Deployment(tp=8, weights="fp8", cache="fp8")
        >>> one = serving(catalog.model("llama-3.1-70b"), chip("h100-sxm"), eight, 1024, 1024, 8)
        >>> 0.007 < one.tpot_s.value < 0.012
        True
    """
    c = serve_constants(chip)
    return served(load(spec, chip, d, prompt, answer, concurrency, c), d, c)
