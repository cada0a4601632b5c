"""What one chip of a deployment holds: weights, caches as an engine reserves them, scratch.

The cache has three readings (``costs.cache``): ideal, paged by kind of layer, and pages for the
full length in every layer. Which one holds is the engine's choice, so the lower end takes the
first, the value the second and the upper end the last, unless the engine is said to page by kind.
"""

from __future__ import annotations

import math
from typing import Any

from msgspec import Struct

from scantling.arith import Num, ceil_div, is_array, maximum, minimum, product, round_up
from scantling.costs.adapters import adapted
from scantling.costs.buffers import constants
from scantling.costs.cache import PAGE_TOKENS, kv_cache, paged_kv
from scantling.costs.ranks import Placed, placed_operators, rank_spec, stages
from scantling.costs.serve import CHUNK_TOKENS
from scantling.ops import Op, operators
from scantling.spec import Spec, Workload, kv_dtype_bytes, state_dtype_bytes
from scantling.spec.plan import Adapter, Plan

ACTIVATION_BYTES = 2
STREAMS = 2
"""Copies of the residual stream alive beside the widest layer: the stream and its norm."""


class Beside(Struct, frozen=True, kw_only=True):
    """What is served beside the model itself.

    Args:
        adapters: Low-rank adapters that are loaded at once.
        rank: Their rank.
        draft: A smaller model that guesses ahead; its weights and its cache are held too.
        graphs: Whether the engine captures graphs of its steps.
        by_kind: Whether the engine is known to page each kind of layer by its own need.
        chunk: Tokens of prompts that one step takes.
    """

    adapters: int = 0
    rank: int = 16
    draft: Spec | None = None
    graphs: bool = True
    by_kind: bool = False
    chunk: int = CHUNK_TOKENS


class ServingMemory(Struct, frozen=True, kw_only=True):
    """Bytes on the most loaded chip; ``low`` and ``high`` bound ``total``."""

    total: Num
    low: Num
    high: Num
    weights: Num
    cache: Num
    """Paged by kind of layer, recurrent states included."""
    cache_ideal: Num
    """Needed."""
    cache_full: Num
    """Reserved by an engine whose pages are for the full length in every layer."""
    state: Num
    """The part of the cache that does not grow with the context."""
    activations: Num
    logits: Num
    overhead: Num
    """Driver, libraries, graphs and, between chips, communicators."""
    adapters: Num
    draft: Num


class Split(Struct, frozen=True, kw_only=True):
    """How one replica is split: tp × dp × pp chips, experts over all tp × dp of a stage.

    Args:
        tp: Tensor-parallel degree of attention and dense layers.
        pp: Pipeline stages.
        dp: Groups that attend to different sequences.
        ep: Chips that whole experts are spread over; 1 cuts every expert over all tp × dp.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1

    @property
    def n_gpu(self) -> int:
        """Chips of a replica."""
        return self.tp * self.pp * self.dp

    def plan(self) -> Plan:
        """The same as the plan whose ranks hold what these chips hold."""
        group = self.tp * self.dp
        return Plan(tp=self.tp, pp=self.pp, dp=self.dp, ep=self.ep, expert_tp=group // self.ep,
                    sequence_parallel=False)  # fmt: skip


def serving_memory(
    spec: Spec, split: Split, weight_bytes: Any, sequences: Num, context: Num,
    cache: str = "bf16", beside: Beside | None = None,
) -> ServingMemory:  # fmt: skip
    """What the most loaded chip holds.

        weights      as stored, those of its stage and its share of every split matrix
        cache        of its sequences at the context, in its layers and KV heads
        activations  a step's tokens × (the stream twice + the widest product's input and output)
        logits       sequences × vocabulary, in 16 and 32 bits, with what sampling copies
        overhead     driver + libraries + graphs + communicators: an interval, assumed

    Args:
        spec: A spec, or a column spec.
        split: How it is split.
        weight_bytes: From (spec, plan, stage) to the bytes of weights of one chip.
        sequences: In one attention group at once.
        context: Tokens of each; a mean where they differ (``pooled_context``).
        cache: Dtype of keys and values.
        beside: Adapters, a draft model, and what the engine does.

    Example:
        >>> from scantling import catalog
        >>> from scantling.costs.serving_scheme import numbers
        >>> spec = catalog.model("llama-3.1-8b")
        >>> m = serving_memory(spec, Split(), numbers("bf16").rank_bytes, 1, 131_072)
        >>> m.cache / 2**30, m.low < m.total < m.high
        (16.0, True)
    """
    own = beside or Beside()
    each = [_stage(spec, split, s, weight_bytes, sequences, context, cache, own)
            for s in stages(split.plan())]  # fmt: skip
    most = each[0]
    for one in each[1:]:
        most = _larger(most, one)
    return most


def _larger(a: ServingMemory, b: ServingMemory) -> ServingMemory:
    """Of two stages the fuller one, and for columns the fuller of each."""
    if is_array(a.high) or is_array(b.high):
        return ServingMemory(**{f: maximum(getattr(a, f), getattr(b, f))
                                for f in ServingMemory.__struct_fields__})  # fmt: skip
    return a if float(a.high) >= float(b.high) else b


def _stage(
    spec: Spec, split: Split, stage: int, weight_bytes: Any, sequences: Num, context: Num,
    dtype: str, own: Beside,
) -> ServingMemory:  # fmt: skip
    plan = split.plan()
    c = constants()["serving"]
    weights: Any = weight_bytes(spec, plan, stage)
    held = cache_readings(rank_spec(spec, plan, stage), sequences, context, dtype)
    tokens = minimum(product(sequences, context), own.chunk)
    ops = placed_operators(spec, plan, 1, stage)
    of_sound = _sound_rows(spec)
    activations: Any = product(tokens, _token_bytes(
        tuple(o for o in ops if of_sound is None or not _over_sound(o)), spec))  # fmt: skip
    if of_sound is not None:  # a piece of sound passes the encoder whole
        pieces = minimum(sequences, maximum(own.chunk // of_sound, 1))
        each = _token_bytes(tuple(filter(_over_sound, ops)), spec, of_sound)
        activations = maximum(activations, product(pieces, each))
    last = stage == plan.pp - 1
    entries: Any = product(sequences, spec.vocab_size) if last else 0
    adapters: Any = adapter_bytes(spec, own) / (plan.tp * plan.pp)
    on_experts: Any = adapter_bytes(spec, own, experts=True) / (plan.tp * plan.dp * plan.pp)
    draft: Any = 0
    if own.draft is not None:
        small = Plan()
        draft = (
            weight_bytes(own.draft, small, 0)
            + cache_readings(own.draft, sequences, context, dtype).by_kind
        )
    over_low, over, over_high = overhead_bytes(split, own)
    fixed: Any = weights + draft
    total = fixed + held.by_kind + activations + c["sample_bytes"] * entries + adapters + over
    low = (fixed + held.ideal + c["activations_low"] * activations
           + c["sample_low_bytes"] * entries + adapters + over_low)  # fmt: skip
    reserved = held.by_kind if own.by_kind else maximum(held.full, held.by_kind)
    high = (fixed + reserved + c["activations_high"] * activations
            + c["sample_high_bytes"] * entries + adapters * plan.tp + on_experts
            + over_high)  # fmt: skip
    return ServingMemory(
        total=total, low=low, high=high, weights=weights, cache=held.by_kind,
        cache_ideal=held.ideal, cache_full=held.full, state=held.state, activations=activations,
        logits=c["sample_bytes"] * entries, overhead=over, adapters=adapters, draft=draft,
    )  # fmt: skip


class Readings(Struct, frozen=True):
    """A cache read three ways, bytes."""

    ideal: Num
    by_kind: Num
    full: Num
    state: Num


def cache_readings(spec: Spec, sequences: Num, context: Num, dtype: str = "bf16") -> Readings:
    """The cache as it is needed, as paged by kind of layer, and as paged for the full length.

    Of one spec the second is what ``paged_kv`` counts. Of a column it is pages of 16 tokens for
    min(S, window + a page), without the padding of groups, since groups of columns differ.

    Example:
        >>> from scantling import catalog
        >>> r = cache_readings(catalog.model("gpt-oss-20b"), 32, 8192, "fp16")
        >>> r.ideal / 2**30, r.full / 2**30
        (6.09375, 12.0)
    """
    ops = operators(spec, Workload("decode", sequences, context))  # type: ignore[arg-type]
    found = kv_cache(spec, sequences, context, dtype, ops=ops)  # type: ignore[arg-type]
    if is_array(found.bytes) or is_array(context) or is_array(sequences):
        paged: Any = _column_pages(ops, sequences, context, dtype)
    else:
        one = paged_kv(spec, int(sequences), int(context), dtype)
        paged = 0 if one is None else one.bytes
    return Readings(found.bytes, paged, found.allocated_bytes, found.state_bytes)


def _column_pages(ops: tuple[Op, ...], sequences: Num, context: Num, dtype: str) -> Any:
    total: Any = 0.0
    for op in ops:
        c = op.cache
        if c is None:
            continue
        kept: Any = round_up(c.reaching(context), PAGE_TOKENS)  # type: ignore[arg-type]
        if c.limit is not None:
            kept = minimum(kept, round_up(c.limit - 1, PAGE_TOKENS) + PAGE_TOKENS)
        state: Any = product(c.state, c.copies) * state_dtype_bytes(dtype)
        total = total + c.keys_and_values(kept) * kv_dtype_bytes(dtype) + state
    return total * sequences


def _sound_rows(spec: Spec) -> Num | None:
    """Rows that an encoder of sound makes of every piece, however many tokens are asked for."""
    own = spec.encoder_embeddings
    if own is None or own.audio is None or own.position is None:
        return None
    return own.position.rows


def _over_sound(placed: Placed) -> bool:
    """Whether an operator passes the rows of an encoder and not the tokens of the decoder."""
    return placed.layer.startswith("encoder.") or placed.op.name.endswith("cross_attention.kv")


def _token_bytes(ops: tuple[Placed, ...], spec: Spec, rows_of_stream: Num = 1) -> Any:
    """Activation bytes of one token at the widest layer: several experts' where they are routed.

    Where a sequence has a fixed number of rows, those of one sequence.
    """
    widest: Any = 0
    for placed in ops:
        op = placed.op
        if op.kind == "matmul" and placed.layer:
            rows: Any = op.m * (op.repeat // maximum(op.times, 1))
            widest = maximum(widest, product(rows, op.n + op.k))
    return (widest + STREAMS * product(rows_of_stream, spec.d_model)) * ACTIVATION_BYTES


def adapter_bytes(spec: Spec, own: Beside, *, experts: bool = False) -> Any:
    """Low-rank adapters on every linear matrix, in 16 bits: routed experts, or all but those.

    Some engines hold adapters of experts too, so the upper end counts them.
    """
    if not own.adapters:
        return 0
    plain = adapted(spec, Adapter(rank=own.rank)).parameters
    if experts:
        plain = adapted(spec, Adapter(rank=own.rank), wrap_experts=True).parameters - plain
    return plain * own.adapters * ACTIVATION_BYTES


def overhead_bytes(split: Split, own: Beside) -> tuple[float, float, float]:
    """Driver, libraries, graphs and communicators: low, middle, high.

    Example:
        >>> low, middle, high = overhead_bytes(Split(), Beside())
        >>> low < middle < high < 3e9
        True
    """
    c = constants()
    graphs = c["serving"]
    low, high = c["context"]["low_bytes"], c["context"]["high_bytes"]
    if split.n_gpu > 1:
        low, high = (a + c["communicator"][end] for a, end in (
            (low, "low_bytes"), (high, "high_bytes")))  # fmt: skip
    middle = (low + high) / 2 + c["workspace"]["value_bytes"]
    low, high = low + c["workspace"]["unfused_bytes"], high + c["workspace"]["value_bytes"]
    if own.graphs:
        low, high = low + graphs["graphs_low_bytes"], high + graphs["graphs_high_bytes"]
        middle += graphs["graphs_bytes"]
    return low, middle, high


def pooled_context(sequences: int, mean: float, p95: float) -> float:
    """The mean length that so many sequences together exceed with 5 % chance only.

    Lengths are log-normal: a mean m and a 95th percentile q fix sigma by
    ln(q / m) = 1.645 sigma − sigma² / 2, the smaller root. The sum of n of them has mean n m and
    variance n m² (e^{sigma²} − 1); its 95th percentile is taken as that of a normal, and one
    sequence alone as q. Windowed layers keep less of long sequences, so this errs upwards.

    Example:
        >>> pooled_context(1, 2000, 7000), round(pooled_context(10_000, 2000, 7000))
        (7000, 2059)
    """
    z = 1.6448536269514722
    ratio = math.log(max(p95 / mean, 1.0))
    sigma = z - math.sqrt(max(z * z - 2 * ratio, 0.0))
    spread = math.sqrt(math.exp(sigma * sigma) - 1)
    return min(float(p95), mean * (1 + z * spread / math.sqrt(sequences))) if sequences > 1 else p95


def shared_sequences(batch: int, groups: int) -> int:
    """Sequences of the fullest of several groups.

    Example:
        >>> shared_sequences(10, 4)
        3
    """
    return int(ceil_div(batch, groups))
