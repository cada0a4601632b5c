"""What the ranks of a step send each other, and how much of it compute does not hide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from scantling.arith import Dim, Num, maximum, minimum, product
from scantling.costs.kernels import collective_time
from scantling.costs.kernels.collective import Collective
from scantling.costs.ranks import Placed, expert_tp
from scantling.costs.remember import remembered
from scantling.hardware import Cluster
from scantling.spec import Experts, Spec, dtype_bytes
from scantling.spec.plan import Plan, Recipe


class Traffic(Struct, frozen=True):
    """Seconds of communication at the speed of the collectives alone."""

    tensor_s: Num
    """Of the tensor group, a micro-batch through all layers, forward and backward."""
    tensor_again_s: Num
    """The part of it that recomputing whole layers runs once more."""
    context_s: Num
    """Of the context group, likewise."""
    expert_s: Num
    """Dispatch and combination of tokens, likewise."""
    pipeline_s: Num
    """One send between stages."""
    gather_s: Num
    """Weights of the layers gathered once from the ranks that share them."""
    reduce_s: Num
    """Gradients of the layers summed once, each rank keeping its share (or all of them)."""
    apart: bool = False
    """Whether the tensor group spans nodes: it hides by tiles that read a neighbour's memory,
    which only the links inside a node allow."""


def traffic(
    placed: Sequence[Placed], spec: Spec, plan: Plan, recipe: Recipe, cluster: Cluster,
    context: int, trained: Num = 1.0,
) -> Traffic:  # fmt: skip
    """The communication of one micro-batch and of one step.

    Ranks of a tensor group lie next to each other, then those of context, data, pipeline.

    Args:
        placed: The forward operators of one micro-batch on one rank, all layers on one stage.
        spec: The model.
        plan: How it is split.
        recipe: In what numbers.
        cluster: Where.
        context: Tokens of a sequence.
        trained: Share of the weights that have gradients.
    """
    size = dtype_bytes("bf16")
    hidden = product(spec.d_model, plan.micro_batch * context / plan.cp) * size
    tensor, again = tensor_group(placed, hidden, plan, cluster)
    pipeline: Num = 0.0
    if plan.pp > 1:
        boundary = hidden / (plan.tp if plan.sequence_parallel else 1)
        pipeline = _once("send", boundary, 2, plan.n_gpu // plan.pp, cluster)
    gather, reduced = sharing(placed, spec.n_layer, plan, recipe, cluster)
    return Traffic(
        tensor, again, context_group(placed, plan, cluster, context),
        expert_group(placed, spec, plan, cluster), pipeline, gather, reduced * trained,
        plan.tp > cluster.node.n_gpu,
    )  # fmt: skip


@remembered(
    lambda placed, hidden, plan, cluster: (
        id(placed), hidden, plan.tp, plan.sequence_parallel, id(cluster)
    )
)  # fmt: skip
def tensor_group(
    placed: Sequence[Placed], hidden: Num, plan: Plan, cluster: Cluster
) -> tuple[Num, Num]:
    """What a micro-batch sends in its tensor group, and the part of it that is forward.

    Each region between a product split by its outputs and one split by its inputs gathers the
    stream before and scatters the sums after (an all-reduce is both, one after the other);
    backward does the same, and gathers the inputs once more for the gradients of the weights.
    """
    if plan.tp == 1:
        return 0.0, 0.0
    regions: Any = 0
    for p in placed:
        if p.split == "in" and p.op.part != "experts":
            regions = regions + p.op.times
    one = regions * _once("all_gather", hidden, plan.tp, 1, cluster)
    sent: Num = (4 + plan.sequence_parallel) * one
    return sent, 2 * one


@remembered(
    lambda placed, plan, cluster, context: (
        id(placed), plan.tp, plan.cp, plan.micro_batch, id(cluster), context
    )
)  # fmt: skip
def context_group(placed: Sequence[Placed], plan: Plan, cluster: Cluster, context: int) -> Num:
    """Keys and values gathered forward, again backward, and their gradients summed back."""
    if plan.cp == 1:
        return 0.0
    kept: Any = 0
    for p in placed:
        if p.op.kind == "attention" and p.op.cache is not None:
            kept = kept + product(p.op.cache.keys_and_values(context), plan.micro_batch)
    once: Num = _once("all_gather", kept * dtype_bytes("bf16"), plan.cp, plan.tp, cluster)
    return 3 * once


@remembered(
    lambda placed, spec, plan, cluster: (
        id(placed), spec, plan.tp, plan.ep, plan.expert_tp, id(cluster)
    )
)  # fmt: skip
def expert_group(placed: Sequence[Placed], spec: Spec, plan: Plan, cluster: Cluster) -> Num:
    """Tokens sent to their experts and back, forward and backward.

    A token that k experts of one group want goes once to each node that has any of them, and is
    copied there: of N nodes k even choices meet N (1 − (1 − 1 / N)^k), and no more than hold the
    groups that a router limits them to.
    """
    if plan.ep == 1:
        return 0.0
    split = expert_tp(plan)
    nodes = -(-plan.ep * split // cluster.node.n_gpu)
    most = nodes_allowed(spec, nodes)
    total: Any = 0.0
    for p in placed:
        if p.op.part == "experts" and p.split == "in":
            copies: Any = p.op.repeat / p.op.times
            met = nodes * (1 - (1 - 1 / nodes) ** copies) if nodes > 1 else copies
            rows = product(p.op.m, p.op.times, p.op.n) * minimum(minimum(met, copies), most)
            sent = rows * (dtype_bytes("bf16") / split)
            each = _once("all_to_all", sent / p.op.times, plan.ep, split, cluster)
            total = total + 4 * p.op.times * each
    return total  # type: ignore[no-any-return]


def nodes_allowed(spec: Spec, nodes: int) -> Num:
    """Nodes that a token's experts lie on at most, where its router chooses groups first."""
    fewest: Num = float("inf")
    for kind in spec.decoder.kinds:
        for block in kind.blocks:
            for branch in block.branches:
                router = branch.module.router if isinstance(branch.module, Experts) else None
                if router is None or router.n_expert_group is None or router.top_k_group is None:
                    continue
                groups, chosen = router.n_expert_group, router.top_k_group
                fewest = minimum(fewest, chosen * maximum(1.0, nodes / groups))
    return fewest


@remembered(
    lambda placed, n_layer, plan, recipe, cluster: (
        id(placed), n_layer, plan.tp, plan.pp, plan.ep, plan.expert_tp, plan.zero,
        plan.zero_ranks, recipe, id(cluster),
    )
)  # fmt: skip
def sharing(
    placed: Sequence[Placed], n_layer: Dim, plan: Plan, recipe: Recipe, cluster: Cluster
) -> tuple[Num, Num]:
    """Gathering the weights of a rank once, and summing their gradients once."""
    dense, routed = held(placed, plan)
    ranks = plan.zero_ranks
    routed_ranks = max(1, ranks * plan.tp // (plan.ep * expert_tp(plan)))
    gather: Any = 0.0
    reduced: Any = 0.0
    kind: Collective = "reduce_scatter" if plan.zero >= 1 else "all_reduce"
    groups = ((dense, ranks, plan.tp), (routed, routed_ranks, plan.ep * expert_tp(plan)))
    for weights, group, stride in groups:
        if isinstance(weights, int | float) and weights == 0:
            continue
        there = weights * dtype_bytes(recipe.weights)
        back = weights * dtype_bytes(recipe.reduce)
        gather = gather + _once("all_gather", there, group, stride, cluster)
        reduced = reduced + _once(kind, back, group, stride, cluster)
    if plan.zero >= 2 and ranks * plan.tp > cluster.node.n_gpu:  # a collective for each layer
        waiting = n_layer * (ranks - 1) * cluster.chip.constants.step.hop_s
        gather, reduced = gather + waiting, reduced + waiting
    return gather, reduced


@remembered(lambda placed, plan: (id(placed), plan.pp))
def held(placed: Sequence[Placed], plan: Plan) -> tuple[Num, Num]:
    """Weights that one rank holds: all but routed experts, and those; stages hold equal shares."""
    dense: Any = 0
    routed: Any = 0
    for p in placed:
        for t in p.op.tensors:
            if t.alias is not None or t.buffer:
                continue
            if t.experts is None:
                dense = dense + t.size()
            else:
                routed = routed + t.size()
    return dense / plan.pp, routed / plan.pp


def shown(sent_s: Num, beside_s: Num, exposed: float) -> Num:
    """What communication adds to compute that runs beside it: a share, or what is left over."""
    found: Num = maximum(exposed * sent_s, sent_s - beside_s)
    return found


def _once(kind: Collective, size: Num, ranks: int, stride: int, cluster: Cluster) -> Any:
    return collective_time(cluster, kind, size, ranks, stride).value_s


__all__ = ["Traffic", "held", "shown", "traffic"]
