"""How long a training step takes: kernels, pipeline, communication, optimizer."""

from __future__ import annotations

from msgspec import Struct

from scantling.arith import Num
from scantling.costs.estimate import Estimate, step_factor
from scantling.costs.time import total_time
from scantling.hardware import Cluster
from scantling.ops import operators
from scantling.spec import Spec, Workload
from scantling.spec.plan import Plan, Recipe


class Step(Struct, frozen=True):
    """One step of training."""

    step: Estimate
    """Seconds from one optimizer step to the next."""
    compute_s: Num
    """Kernels of forward and backward, recompute included, of the busiest stage."""
    recompute_s: Num
    """The part of it that is computed again."""
    bubble_s: Num
    """What the busiest stage waits for others."""
    communication_s: Num
    """What communication adds beside compute that runs meanwhile."""
    optimizer_s: Num
    tokens: int
    """Tokens of the step."""
    flops: Num
    """FLOPs of the model for those tokens, forward and backward, by the convention."""
    mfu: Estimate
    """FLOPs of the model / (step × chips × peak)."""
    hfu: Estimate
    """The same, with what is computed again."""
    convention: str = "causal"


def training_step(
    spec: Spec, plan: Plan, recipe: Recipe, context: int, cluster: Cluster,
    convention: str = "causal",
) -> Step:  # fmt: skip
    """The time of one step.

    Args:
        spec: The model, or a column of models.
        plan: How it is split.
        recipe: Its numbers and software.
        context: Tokens of a sequence.
        cluster: Where.
        convention: What MFU counts (``costs.count.CONVENTIONS``).
    """
    work = Workload("train", plan.micro_batch, context)
    ops = operators(spec, work)
    kernels = total_time(ops, work, cluster.chip).value_s / (plan.tp * plan.pp * plan.cp)
    factor = step_factor("training", cluster.chip)
    compute = kernels * plan.n_micro_batch
    bubble = kernels * (plan.pp - 1) / plan.virtual
    value = (compute + bubble) * factor.factor
    step = Estimate(value, value * factor.low / factor.factor, value * factor.high / factor.factor)
    tokens = plan.global_batch * context
    flops = sum((op.flops(convention) for op in ops), start=0) * plan.n_micro_batch * plan.dp
    peak = cluster.n_gpu * cluster.chip.rate(recipe.dtype)
    mfu = Estimate(flops / (peak * step.value_s), flops / (peak * step.high_s),
                   flops / (peak * step.low_s))  # fmt: skip
    return Step(step, compute, 0, bubble, 0, 0, tokens, flops, mfu, mfu, convention)
