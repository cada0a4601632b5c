"""What one rank of a plan holds and does: the operators of one micro-batch on it.

A rank's model is the whole model with fewer heads, narrower feed-forwards, a slice of the
vocabulary and some of the layers, so the operators of that smaller model are the rank's, and its
tensors are the weights the rank holds. Only three things are not a smaller model: tokens split by
context or sequence, experts spread over ranks, and which stage has the embedding and the head.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from scantling.arith import Dim, ceil_div, is_array, maximum, minimum, round_up
from scantling.costs.remember import MOST, Shared
from scantling.ops import Op, operators
from scantling.spec import (
    Branch,
    ChannelMix,
    CompressedAttention,
    Dense,
    Experts,
    GatedDelta,
    GroupedAttention,
    KimiDelta,
    LatentAttention,
    Layer,
    LinearAttention,
    Mamba1,
    Mamba2,
    RgLru,
    Run,
    Rwkv,
    SharedExpert,
    Spec,
    Stack,
    Workload,
)
from scantling.spec.plan import Plan

Split = Literal["out", "in", "whole"]
"""How a product is split over the tensor group: its outputs, its inputs, or not at all."""


class Placed(Struct, frozen=True):
    """An operator of one micro-batch on one rank, and where it stands."""

    op: Op
    split: Split
    reads_stream: bool
    """Its input is the residual stream or a norm of it, not something the module made."""
    layer: str
    """The kind of layer it belongs to; empty outside the layers."""
    module: str
    """The module's name in the layer; empty outside."""


# ---------------------------------------------------------------- the smaller model


def _shared(s: SharedExpert | None, tp: int) -> SharedExpert | None:
    return None if s is None else replace(s, d_shared=ceil_div(s.d_shared, tp))


NARROWED: dict[type, tuple[str, ...]] = {
    GroupedAttention: ("n_head", "n_kv_head"),
    LatentAttention: ("n_head",),
    CompressedAttention: ("n_head", "n_out_group"),
    LinearAttention: ("n_head",),
    GatedDelta: ("n_key_head", "n_value_head"),
    KimiDelta: ("n_delta_head",),
    Mamba1: ("d_inner",),
    Mamba2: ("d_inner", "n_ssm_head", "n_group"),
    Rwkv: ("d_attention",),
    RgLru: ("d_rnn", "n_gate_block"),
    Dense: ("d_ff",),
    ChannelMix: ("d_ff",),
}
"""Dimensions that tensor parallelism divides. KV heads, groups and gate blocks stop at one: a rank
beyond their number holds a copy. What is not listed is held whole by every rank."""


def narrowed(module: Any, plan: Plan) -> Any:
    """A module as one rank of the tensor group holds it.

    Example:
        >>> narrowed(GroupedAttention(n_head=32, n_kv_head=4, d_head=128), Plan(tp=8)).n_kv_head
        1
    """
    if isinstance(module, Experts):
        width = ceil_div(module.d_expert, expert_tp(plan))
        return replace(module, d_expert=width, shared=_shared(module.shared, plan.tp))
    fields = NARROWED.get(type(module), ())
    return replace(module, **{f: ceil_div(getattr(module, f), plan.tp) for f in fields})


def expert_tp(plan: Plan) -> int:
    """Tensor-parallel degree of the experts."""
    return plan.tp if plan.expert_tp is None else plan.expert_tp


def padded_vocab(vocab_size: Dim, tp: int = 1, multiple: int = 1) -> Dim:
    """Rows of the token table once every rank of a tensor group holds equally many.

    Megatron pads to a multiple of 128 × TP, so the size of the model depends on TP; other
    software pads to a multiple of TP.

    Example:
        >>> [padded_vocab(50257, tp, 128) for tp in (1, 2, 4, 8)], padded_vocab(129280, 24)
        ([50304, 50432, 50688, 51200], 129288)
    """
    return round_up(vocab_size, multiple * tp)


def rank_spec(spec: Spec, plan: Plan, stage: int = 0) -> Spec:
    """The model that one rank of a stage holds; experts and tokens are not split yet."""

    def narrow(layer: Layer) -> Layer:
        blocks = tuple(
            replace(block, branches=tuple(_branch(b, plan) for b in block.branches))
            for block in layer.blocks
        )
        return replace(layer, blocks=blocks)

    last = stage == plan.pp - 1
    stack = spec.decoder
    layout = tuple(Run((k,), n) for k, n in _all_layers(stack, plan, stage).items())
    decoder = replace(
        stack, kinds=tuple(narrow(k) for k in stack.kinds), layout=layout,
        final_norm=stack.final_norm if last else None,
    )  # fmt: skip
    encoder = spec.encoder
    if encoder is not None:
        encoder = replace(encoder, kinds=tuple(narrow(k) for k in encoder.kinds))
    return replace(
        spec, decoder=decoder, encoder=encoder, head=spec.head if last else None,
        vocab_size=ceil_div(padded_vocab(spec.vocab_size, plan.tp, plan.vocab_multiple), plan.tp),
        tied=spec.tied and plan.pp == 1,
    )  # fmt: skip


def _branch(branch: Branch, plan: Plan) -> Branch:
    return replace(branch, module=narrowed(branch.module, plan))


def stage_layers(stack: Stack, plan: Plan, stage: int) -> dict[str, Dim]:
    """How many layers of each kind a stage holds, all its chunks together.

    Layers are cut into pp × virtual chunks as evenly as they go, the first ones a layer larger;
    stage s holds chunks s, s + pp, …. Slot j of a pattern of p occurs (x + p − 1 − j) // p times
    among the first x layers of its run, so between layers a and b it is the difference.

    Example:
        >>> from scantling import catalog
        >>> stage_layers(catalog.model("deepseek-v3").decoder, Plan(pp=16), 0)
        {'dense': 3, 'moe': 1}
    """
    return {k: n for k, n in _all_layers(stack, plan, stage).items() if is_array(n) or n}


def _all_layers(stack: Stack, plan: Plan, stage: int) -> dict[str, Dim]:
    """As ``stage_layers``, kinds that the stage lacks among them."""
    chunks = plan.pp * plan.virtual
    total: Any = stack.n_layer
    found: dict[str, Dim] = dict.fromkeys(stack.occurrences(), 0)
    for chunk in range(stage, chunks, plan.pp):
        start = chunk * (total // chunks) + minimum(chunk, total % chunks)
        end = (chunk + 1) * (total // chunks) + minimum(chunk + 1, total % chunks)
        before: Any = 0
        for run in stack.layout:
            p = len(run.pattern)
            low = minimum(maximum(start - before, 0), run.n)
            high = minimum(maximum(end - before, 0), run.n)
            for j, name in enumerate(run.pattern):
                slot = (high + (p - 1 - j)) // p - (low + (p - 1 - j)) // p
                found[name] = found[name] + slot
            before = before + run.n
    return found


# ---------------------------------------------------------------- operators of a rank

INPUT_SPLIT = frozenset(
    {"o", "o_group", "down", "down_a", "shared_down", "experts_down", "out", "value"}
)
"""Products whose input a rank holds a slice of; their outputs are summed over the group."""
LATENT_WHOLE = frozenset(
    {"down", "kv_down", "q_norm", "kv_norm", "index_q", "index_k", "index_norm", "index"}
)
"""Parts of latent attention that all heads share, so every rank has them."""
FACTORS_WHOLE = frozenset({"up_a", "down_b"})
"""Sides of a factored feed-forward that are as wide as the stream and its rank."""
INSIDE = INPUT_SPLIT | {
    "q_up", "kv_up", "index_q", "select", "dt_up", "latent_up", "forget_b", "gate_b", "right",
    "up_b", "down_b",
    "projection", "experts_up", "coefficients", "factors", "mix",
}  # fmt: skip
"""Products that read what their own module made, not the residual stream."""
LAST = ("altup_merge", "hyper_head")
"""What makes one stream of several behind the last layer."""
WHOLE_PARTS = frozenset({"router", "norm", "other", "embedding"})


def rank_operators(spec: Spec, plan: Plan, context: int, stage: int = 0) -> tuple[Op, ...]:
    """The forward operators of one micro-batch on one rank of a stage.

    Heads, feed-forwards and the vocabulary are divided by TP; what is not (norms, routers, the
    down projections of a latent) runs on tokens / TP with sequence parallelism, on all without.
    Tokens are divided by CP, while attention still sees every key: its visible pairs are divided,
    as both ways of splitting causal attention balance them. Experts: with E experts over EP ranks
    each holds E / EP, and where tokens are spread evenly as many pass them as it sends out:
    tokens × top_k, of which a tensor group that does not split its experts sends 1 / TP each.

    Args:
        spec: A spec, or a column spec.
        plan: How it is split.
        context: Tokens of a sequence.
        stage: Pipeline stage; its chunks are together.

    Example:
        >>> from scantling import catalog
        >>> ops = rank_operators(catalog.model("llama-3.1-8b"), Plan(tp=8, pp=4), 8192)
        >>> [(op.n, op.k, op.times) for op in ops if op.name.endswith("qkv")]
        [(768, 4096, 8)]
    """
    return tuple(p.op for p in placed_operators(spec, plan, context, stage))


def placed_operators(
    spec: Spec, plan: Plan, context: int, stage: int = 0
) -> tuple[Placed, ...]:  # fmt: skip
    """As ``rank_operators``, with how each is split and in which layer it stands.

    Those of the last few models are remembered: a search asks for the same split with many
    recipes. Columns of models, which have no hash, are worked out anew.
    """
    known = _remembered(spec)
    if known is None:
        return _placed(spec, plan, context, stage)
    key = (
        plan.tp, plan.pp, plan.cp, plan.ep, plan.expert_tp, plan.virtual,
        plan.sequence_parallel, plan.micro_batch, plan.vocab_multiple, context, stage,
    )  # fmt: skip
    if key not in known:
        if len(known) >= MOST:
            known.clear()
        known[key] = Shared(_placed(spec, plan, context, stage))
    return known[key]


MODELS = 8
"""Models whose operators are remembered."""
_KEPT: dict[int, tuple[Spec, dict[Hashable, Shared] | None]] = {}


def _remembered(spec: Spec) -> dict[Hashable, Shared] | None:
    """The operators of a model that are known; None for a column. Its id holds while it is kept."""
    if id(spec) not in _KEPT:
        try:
            hash(spec)
            known: dict[Hashable, Shared] | None = {}
        except TypeError:
            known = None
        while len(_KEPT) >= MODELS:
            del _KEPT[next(iter(_KEPT))]
        _KEPT[id(spec)] = spec, known
    return _KEPT[id(spec)][1]


def _placed(spec: Spec, plan: Plan, context: int, stage: int) -> tuple[Placed, ...]:
    own = rank_spec(spec, plan, stage)
    modules = _modules(own)
    work = Workload("prefill", plan.micro_batch, context)
    found = []
    for op in operators(own, work):
        inside = op.name.startswith(("decoder.", "encoder."))
        leaf = op.name.rpartition(".")[2]
        before = not inside and op.part != "lm_head" and "project_out" not in op.name
        if (before or leaf.startswith("altup_make")) and stage > 0:
            continue
        if leaf.startswith(LAST) and stage < plan.pp - 1:
            continue
        if not is_array(op.times) and not op.times:
            continue  # a kind of layer that the stage lacks
        found.append(_place(op, plan, modules))
    return tuple(found)


def _modules(spec: Spec) -> dict[str, type]:
    """The type of the module at each path, named as operators name them."""
    found: dict[str, type] = {}
    for name, stack in (("decoder", spec.decoder), ("encoder", spec.encoder)):
        for layer in () if stack is None else stack.kinds:
            seen: dict[str, int] = {}
            for block in layer.blocks:
                for branch in block.branches:
                    seen[branch.name] = seen.get(branch.name, 0) + 1
                    own = branch.name if seen[branch.name] == 1 else branch.name + str(
                        seen[branch.name]
                    )  # fmt: skip
                    found[f"{name}.{layer.name}.{own}"] = type(branch.module)
    return found


def _place(op: Op, plan: Plan, modules: dict[str, type]) -> Placed:
    path, _, leaf = op.name.rpartition(".")
    steps = op.name.split(".")
    in_layer = len(steps) > 3
    module = modules.get(path)
    split = _split_of(op, leaf, module)
    reads = op.kind == "matmul" and leaf not in INSIDE
    if module in {LatentAttention, CompressedAttention} and leaf in {"down", "kv_down"}:
        reads = True
    return Placed(
        op=_on_rank(op, split, plan), split=split, reads_stream=reads,
        layer=".".join(steps[:2]) if in_layer else "", module=steps[2] if in_layer else "",
    )  # fmt: skip


def _split_of(op: Op, leaf: str, module: type | None) -> Split:
    latent = module in {LatentAttention, CompressedAttention}
    if op.part in WHOLE_PARTS or (latent and leaf in LATENT_WHOLE) or leaf in FACTORS_WHOLE:
        return "whole"
    if leaf.endswith(("pre_norm", "post_norm")):
        return "whole"
    return "in" if leaf in INPUT_SPLIT else "out"


def _on_rank(op: Op, split: Split, plan: Plan) -> Op:
    """The same operator with a rank's share of tokens and of experts."""
    rows: Any = op.m
    visible: Any = op.visible
    share = plan.cp
    if op.part == "experts" and plan.tp > 1:
        rows = rows * expert_tp(plan)
        share = share * plan.tp
    elif split == "whole" and plan.sequence_parallel and op.kind != "attention":
        share = share * plan.tp
    if share > 1:
        rows = ceil_div(rows, share)
        visible = None if visible is None else visible / share
    tensors = op.tensors
    if op.part == "experts" and plan.ep > 1:
        tensors = tuple(
            t if t.experts is None else replace(t, experts=ceil_div(t.experts, plan.ep))
            for t in tensors
        )
    return replace(op, m=rows, visible=visible, tensors=tensors)


def stages(plan: Plan) -> Iterator[int]:
    """The stages among which the most loaded one is sought.

    Micro-batches in flight fall from stage to stage and layers never rise, so it is the first,
    one of the next two (where dense layers precede experts), or the last, which has the head.
    """
    yield from sorted({s for s in (0, 1, 2, plan.pp - 1) if s < plan.pp})
