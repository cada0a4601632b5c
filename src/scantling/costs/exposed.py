"""What the ranks of a step send each other, and how much of it compute does not hide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from scantling.arith import Dim, Num, maximum, product
from scantling.costs.kernels import collective_time
from scantling.hardware import Cluster
from scantling.ops import Op
from scantling.spec import Spec, dtype_bytes
from scantling.spec.plan import Plan, Recipe

CLOSING = {"o", "out", "down", "value", "experts_down", "shared_down"}
"""Products that end what is split over the tensor group, by the last word of their name."""


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


def traffic(
    ops: Sequence[Op], spec: Spec, plan: Plan, recipe: Recipe, cluster: Cluster, context: int
) -> Traffic:
    """The communication of one micro-batch and of one step.

    Ranks of a tensor group lie next to each other, then those of context, data, pipeline.

    Args:
        ops: The forward operators of one micro-batch over its whole context.
        spec: The model.
        plan: How it is split.
        recipe: In what numbers.
        cluster: Where.
        context: Tokens of a sequence.
    """
    tokens = plan.micro_batch * context / plan.cp
    size = dtype_bytes("bf16")
    hidden = product(spec.d_model, tokens) * size
    tensor = context_s = expert = 0.0
    forward: Any = 0.0
    if plan.tp > 1:
        regions: Any = 0
        for op in ops:
            if op.kind == "matmul" and closes(op):
                regions = regions + op.times
        forward = 2 * regions * _once("all_gather", hidden, plan.tp, 1, cluster)
        # backward: the same two, and the inputs gathered once more for the weights' gradients
        tensor = 2 * forward + (regions * _once("all_gather", hidden, plan.tp, 1, cluster)
                                if plan.sequence_parallel else 0.0)  # fmt: skip
    if plan.cp > 1:
        keys: Any = 0
        for op in ops:
            if op.kind == "attention" and op.cache is not None:
                keys = keys + product(op.cache.keys_and_values(context), plan.micro_batch)
        # keys and values gathered forward; backward again, and their gradients summed back
        context_s = 3 * _once("all_gather", keys * size / plan.tp, plan.cp, plan.tp, cluster)
    if plan.ep > 1:
        sent: Any = 0.0
        for op in ops:
            if op.part == "experts" and op.name.endswith("experts_down"):
                sent = sent + product(op.m, op.repeat, op.n) / plan.cp
        # to the experts and back, forward and backward
        split = plan.tp if plan.expert_tp == 1 else 1
        expert = 4 * _once("all_to_all", sent * size / split, plan.ep, split, cluster)
    pipeline = 0.0
    if plan.pp > 1:
        boundary = hidden / (plan.tp if plan.sequence_parallel else 1)
        pipeline = collective_time(cluster, "send", boundary, 2, plan.n_gpu // plan.pp).value_s
    gather, reduced = sharing(ops, spec.n_layer, plan, recipe, cluster)
    return Traffic(tensor, forward, context_s, expert, pipeline, gather, reduced)


def closes(op: Op) -> bool:
    """Whether a product's output is summed over the tensor group."""
    last = op.name.rpartition(".")[2]
    down_of_latent = op.part == "attention" and last == "down"
    return last in CLOSING and op.part not in {"lm_head", "router", "other"} and not down_of_latent


def sharing(
    ops: Sequence[Op], n_layer: Dim, plan: Plan, recipe: Recipe, cluster: Cluster
) -> tuple[Num, Num]:
    """Gathering the weights of a rank's layers once, and summing their gradients once."""
    dense, routed = held(ops, plan)
    ranks = plan.zero_ranks
    routed_ranks = max(1, ranks * plan.tp // (plan.ep * (plan.expert_tp or plan.tp)))
    gather: Any = 0.0
    reduced: Any = 0.0
    kind = "reduce_scatter" if plan.zero >= 1 else "all_reduce"
    groups = ((dense, ranks, plan.tp), (routed, routed_ranks, plan.tp * plan.ep))
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


def held(ops: Sequence[Op], plan: Plan) -> tuple[Num, Num]:
    """Weights of the layers and the two ends that one rank holds: all but routed experts, those.

    The two ends are counted as if spread evenly over the pipeline.
    """
    dense: Any = 0
    routed: Any = 0
    for op in ops:
        for t in op.tensors:
            if t.alias is not None or t.buffer:
                continue
            if t.experts is None:
                dense = dense + t.size()
            else:
                routed = routed + t.size()
    split = plan.ep * (plan.tp if plan.expert_tp is None else plan.expert_tp)
    return dense / (plan.tp * plan.pp), routed / (split * plan.pp)


def shown(sent_s: Num, beside_s: Num, exposed: float) -> Num:
    """What communication adds to compute that runs beside it: a share, or what is left over."""
    found: Num = maximum(exposed * sent_s, sent_s - beside_s)
    return found


def _once(kind: Any, size: Num, ranks: int, stride: int, cluster: Cluster) -> Any:
    """One collective, whose ranks in one node share its ways out where they are several.

    Each of N nodes takes in (N - 1) / N of a gathered message; its g ranks of the group do so
    side by side, so each passes that over g on its own way out.
    """
    here = max(1, cluster.node.n_gpu // stride)
    nodes = -(-ranks // here)
    if ranks == 1 or nodes == 1:
        return collective_time(cluster, kind, size, ranks, stride).value_s
    if kind == "all_to_all" or here == 1:
        return collective_time(cluster, kind, size, ranks, stride).value_s
    between = collective_time(cluster, kind, size / here, nodes, cluster.node.n_gpu).value_s
    return maximum(between, collective_time(cluster, kind, size, here, stride).value_s)


__all__ = ["Traffic", "closes", "held", "shown", "sharing", "traffic"]
