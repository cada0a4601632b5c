"""What a rank holds while it trains."""

from __future__ import annotations

from msgspec import Struct

from scantling.arith import Num
from scantling.costs.count import parameters
from scantling.ops import operators
from scantling.spec import Spec, Workload, dtype_bytes
from scantling.spec.plan import Plan, Recipe


class TrainingMemory(Struct, frozen=True):
    """Bytes on the most loaded rank, at the moment of the peak."""

    total: Num
    low: Num
    high: Num
    weights: Num
    gradients: Num
    optimizer: Num
    activations: Num
    logits: Num
    buffers: Num
    """Communication buffers and gathered weights."""
    moment: str
    """When the peak is: ``forward``, ``backward``, ``loss`` or ``optimizer step``."""


def training_memory(spec: Spec, plan: Plan, recipe: Recipe, context: int) -> TrainingMemory:
    """The peak memory of the most loaded rank.

    Args:
        spec: The model, or a column of models.
        plan: How it is split.
        recipe: Its numbers.
        context: Tokens of a sequence.
    """
    n = parameters(spec).total / (plan.tp * plan.pp)
    share = plan.zero_ranks
    weights = n * dtype_bytes(recipe.weights) / (share if plan.zero >= 3 else 1)
    gradients = n * dtype_bytes(recipe.gradients) / (share if plan.zero >= 2 else 1)
    states = 2 * dtype_bytes(recipe.moments) + (dtype_bytes(recipe.master) if recipe.master else 0)
    optimizer = n * states / (share if plan.zero >= 1 else 1)
    work = Workload("prefill", plan.micro_batch, context // plan.cp)
    saved = sum(op.m * op.k * op.times * 2 for op in operators(spec, work) if op.kind == "matmul")
    activations = saved / plan.tp
    total = weights + gradients + optimizer + activations
    return TrainingMemory(total, total, total * 1.1, weights, gradients, optimizer, activations,
                          0, 0, "backward")  # fmt: skip
