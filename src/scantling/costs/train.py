"""How long a training step takes: kernels, pipeline, communication, optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from scantling.arith import Dim, Num, maximum, minimum, product
from scantling.costs.adapters import adapter_parameters
from scantling.costs.count import Convention, forward_flops
from scantling.costs.exposed import Traffic, held, shown, traffic
from scantling.costs.passes import Pass, memory_s, one_pass, rotary
from scantling.costs.pipeline import schedule
from scantling.costs.ranks import Placed, placed_operators
from scantling.hardware import Chip, Cluster
from scantling.hardware.constants import StepConstants
from scantling.ops import Op, operators
from scantling.spec import Spec, Workload, dtype_bytes
from scantling.spec.plan import Plan, Recipe


class Estimate(Struct, frozen=True):
    """A number with its interval: seconds, or a share."""

    value_s: Num
    low_s: Num
    high_s: Num

    def times(self, factor: Num) -> Estimate:
        """The same for another amount of work."""
        return Estimate(self.value_s * factor, self.low_s * factor, self.high_s * factor)


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

    @property
    def tokens_per_s(self) -> Num:
        """Tokens a second, of all chips together."""
        return self.tokens / self.step.value_s


class Terms(Struct, frozen=True):
    """What a step is made of, in seconds of kernels and collectives alone."""

    one: Pass
    sent: Traffic
    handled_s: Num
    """What each micro-batch does with whole gradients beside making them."""
    optimizer_s: Num
    offload_bytes: Num
    n_layer: Dim
    mtp_passes: int


def terms(spec: Spec, plan: Plan, recipe: Recipe, context: int, cluster: Cluster,
          mtp_passes: int = 0) -> Terms:  # fmt: skip
    """The parts of a step before the constants of the chip.

    The optimizer reads the gradients twice (norm, update), reads and writes the master copy and
    two moments, and writes the weights.
    """
    placed = placed_operators(spec, replace(plan, pp=1, virtual=1), context)
    dense, routed = held(placed, plan)
    owned: Any = (dense + routed) / (plan.zero_ranks if plan.zero >= 1 else 1)
    master = dtype_bytes(recipe.master) if recipe.master else 0.0
    weights = (dense + routed) * plan.pp
    trained: Num = 1.0
    if recipe.adapter is not None:
        trained = adapter_parameters(placed, recipe.adapter) / weights
    each = 2 * dtype_bytes(recipe.gradients) + 2 * master + dtype_bytes(recipe.weights)
    if recipe.optimizer not in {"sgd", "none"}:
        each = each + 4 * dtype_bytes(recipe.moments)
    moved = owned * each * trained
    on_chip = memory_s(cluster.chip, moved) * by_tensor(placed, recipe, cluster.chip)
    handled = weights * trained * handled_bytes(plan, recipe)
    if recipe.adapter is not None and recipe.adapter.packed:
        handled = handled + weights * UNPACKED_BYTES
    return Terms(
        one_pass(placed, plan, recipe, cluster.chip, turned=rotary(spec)),
        traffic(placed, spec, plan, recipe, cluster, context, trained),
        memory_s(cluster.chip, handled), 0.0 if recipe.offload else on_chip,
        moved if recipe.offload else 0.0, spec.n_layer, mtp_passes,
    )  # fmt: skip


def by_tensor(placed: Iterable[Placed], recipe: Recipe, chip: Chip) -> Num:
    """The factor on the optimizer's time where the size of each tensor counts.

    A kernel of the optimizer reads one and writes one of a tensor's size.
    """
    e = chip.constants.elementwise
    if not e.slower:
        return 1.0
    size, whole = dtype_bytes(recipe.gradients), 0.0
    slow: Num = 0.0
    for tensor in (t for p in placed for t in p.op.tensors if not t.buffer and not t.alias):
        total: Any = tensor.size()
        slow = slow + total * e.slowed(2 * size * tensor.each())
        whole = whole + total
    share: Num = slow / whole
    return share


class Parts(Struct, frozen=True):
    """A step by what it waits for, in seconds."""

    compute_s: Num
    recompute_s: Num
    bubble_s: Num
    communication_s: Num
    optimizer_s: Num
    starved_s: Num = 0.0
    """The part of compute in which the chip waits for the host's launches."""

    @property
    def step_s(self) -> Num:
        """All of it."""
        return self.compute_s + self.bubble_s + self.communication_s + self.optimizer_s


def assemble(t: Terms, plan: Plan, recipe: Recipe, c: StepConstants) -> Parts:
    """The step that the terms make with a chip's constants."""
    one, sent, n_layer = t.one, t.sent, t.n_layer
    forward = one.forward.seconds(c, recipe)
    again: Num = 0.0
    if plan.recompute == "full":
        again = forward
        if plan.recompute_layers is not None:
            again = forward * (plan.recompute_layers * plan.pp / n_layer)
    elif plan.recompute == "selective":
        again = one.core.seconds(c, recipe)
    elif plan.recompute == "products":  # all but attention and every other product
        again = forward - one.core.seconds(c, recipe) - 0.5 * one.products.seconds(c, recipe)
    light = c.fused if recipe.fused else c.eager
    layers = forward + light * t.handled_s + one.backward.seconds(c, recipe) + again
    launched = maximum(layers, launching(t, plan, recipe, c))
    starved, layers = plan.n_micro_batch * (launched - layers) / plan.pp, launched
    head, embedding = one.head.seconds(c, recipe), one.embedding.seconds(c, recipe)
    if t.mtp_passes:  # each is one more layer and one more output product
        head = head * (1 + t.mtp_passes) + layers * (t.mtp_passes / n_layer)
    tensor = sent.tensor_s + (sent.tensor_again_s if plan.recompute == "full" else 0.0)
    beside = c.exposed_tensor if recipe.overlap else c.serial
    routed = c.exposed_expert if recipe.overlap else c.serial
    inside = beside * sent.context_s + routed * sent.expert_s
    inside = inside + (c.serial if sent.apart else beside) * tensor
    inside = inside + 2 * plan.virtual * beside * sent.pipeline_s
    m = plan.n_micro_batch
    sharing: Num = 0.0
    if plan.zero == 3:
        there = 2 * sent.gather_s + sent.reduce_s
        sharing = m * (shown(there, layers, c.exposed) if recipe.overlap else c.serial * there)
    elif plan.zero == 2:
        there = sent.gather_s + sent.reduce_s
        sharing = m * (shown(there, layers, c.exposed) if recipe.overlap else c.serial * there)
    elif plan.dp * plan.cp > 1:
        there = (sent.gather_s if plan.zero >= 1 else 0.0) + sent.reduce_s
        spare = layers / plan.pp
        sharing = shown(there, spare, c.exposed) if recipe.overlap else c.serial * there
    busy, bubble = schedule(n_layer, (layers + inside) / n_layer, head, embedding, plan.pp,
                            plan.virtual, m)  # fmt: skip
    communication = m * inside / plan.pp
    optimizer = c.optimizer * t.optimizer_s + t.offload_bytes / c.offload_bytes_per_s
    return Parts(busy - communication, m * again / plan.pp, bubble, communication + sharing,
                 optimizer, starved)  # fmt: skip


def launching(t: Terms, plan: Plan, recipe: Recipe, c: StepConstants) -> Num:
    """What the host takes to launch the kernels of a micro-batch, of which chips may run dry.

    In a layer of experts it learns how many tokens each gets before it launches their kernels.
    """
    again = 2 if plan.recompute == "full" else 1
    there, back = t.one.forward.of, t.one.backward.of
    each = c.launch_fused_s if recipe.fused else c.launch_eager_s
    kernels = again * there.get("kernels", 0) + back.get("kernels", 0)
    waits = again * there.get("waits", 0) + back.get("waits", 0)
    return each * kernels + c.wait_experts_s * waits


def forward_time(
    spec: Spec, plan: Plan, recipe: Recipe, context: int, cluster: Cluster
) -> Estimate:
    """The forward pass of one micro-batch on one rank, output product and loss included.

    Example:
        >>> from scantling import catalog
        >>> from scantling.hardware import cluster
        >>> t = forward_time(catalog.model("gpt2"), Plan(), Recipe(), 1024, cluster("h100", 1))
        >>> 1e-3 < t.value_s < 1e-2
        True
    """
    c = cluster.chip.constants.step
    t = terms(spec, plan, recipe, context, cluster)
    each = c.launch_fused_s if recipe.fused else c.launch_eager_s
    layers = maximum(t.one.forward.seconds(c, recipe), each * t.one.forward.of["kernels"])
    # of head and embedding, forward and backward together, a third and a half
    value = layers + t.one.head.seconds(c, recipe) / 3 + t.one.embedding.seconds(c, recipe) / 2
    wide = spread(t, assemble(t, plan, recipe, c), plan, recipe, c)
    return Estimate(value, value / wide, value * wide)


UNPACKED_BYTES = 2 * (0.5 + 2)
"""Bytes that making 16-bit copies of 4-bit weights moves, once forward and once backward."""


def handled_bytes(plan: Plan, recipe: Recipe) -> float:
    """Bytes moved for each weight's gradient of a micro-batch.

    Where ranks share gradients they are cast if they travel wider, and divided; else they are
    added to what earlier micro-batches left.
    """
    if plan.zero < 2:
        return 2 * dtype_bytes(recipe.gradients)
    made, sent = dtype_bytes(recipe.weights), dtype_bytes(recipe.reduce)
    cast = made + sent if made != sent else 0.0
    return cast + 2 * sent


ERRORS = {
    "narrow": "error_narrow", "experts": "error_experts", "experts_narrow": "error_experts",
    "scan": "error_experts", "attention": "error_attention", "light": "error_light",
    "loss": "error_light", "cold": "error_light", "kernels": "error_light",
}  # fmt: skip
"""Which error each kind of work has beside that of the whole step."""


def concerned(
    t: Terms, parts: Parts, plan: Plan, recipe: Recipe, c: StepConstants
) -> dict[str, Num]:
    """Shares of a step by the error that concerns them."""
    one = t.one
    taken: dict[str, Num] = {}
    for work in (one.forward, one.backward, one.head, one.embedding):
        for kind, value in work.taken(c, recipe).items():
            if kind in ERRORS:
                taken[ERRORS[kind]] = taken.get(ERRORS[kind], 0.0) + value
    step = parts.step_s
    found = {name: value * (plan.n_micro_batch / plan.pp) / step for name, value in taken.items()}
    if plan.ep > 1:
        sent = t.sent.expert_s * (plan.n_micro_batch / plan.pp) / step
        found["error_experts"] = found.get("error_experts", 0.0) + sent
    found["error_sent"] = parts.communication_s / step
    found["error_bubble"] = (parts.bubble_s + parts.starved_s) / step
    if plan.tp * plan.pp > 1:
        found["error_split"] = parts.compute_s / step
    return found


def spread(t: Terms, parts: Parts, plan: Plan, recipe: Recipe, c: StepConstants) -> Num:
    """The factor between a step and either end of its 90 % interval.

    Errors of parts are independent of each other, so their logarithms add up in squares.
    """
    squares: Num = c.error**2
    for name, share in concerned(t, parts, plan, recipe, c).items():
        squares = squares + (getattr(c, name) * share) ** 2
    wide: Num = math.e ** (c.widen * squares**0.5)
    return wide


def training_step(
    spec: Spec, plan: Plan, recipe: Recipe, context: int, cluster: Cluster,
    convention: Convention = "causal", mtp_passes: int = 0,
) -> Step:  # fmt: skip
    """The time of one step.

    Args:
        spec: The model, or a column of models.
        plan: How it is split.
        recipe: Its numbers and software.
        context: Tokens of a sequence.
        cluster: Where.
        convention: What MFU counts (``costs.count.CONVENTIONS``).
        mtp_passes: Runs of modules that predict later tokens; FLOPs do not count them.

    Example:
        >>> from scantling import catalog
        >>> from scantling.hardware import cluster
        >>> plan = Plan(dp=8, zero=3, n_micro_batch=2)
        >>> s = training_step(catalog.model("llama-3.1-8b"), plan, Recipe(), 8192, cluster("h100"))
        >>> 0.3 < s.mfu.value_s < 0.6, s.tokens
        (True, 131072)
    """
    work = Workload("prefill", plan.micro_batch, context)
    ops = operators(spec, work)
    step, parts = timed(spec, plan, recipe, context, cluster, mtp_passes)
    tokens = plan.global_batch * context
    forward: Any = forward_flops(ops, convention)
    flops = product(forward, 3 * plan.n_micro_batch * plan.dp)
    rate = cluster.chip.rate(rate_dtype(recipe)) * cluster.n_gpu
    if recipe.adapter is None:  # nothing is faster than its visible pairs at the peak rate
        seen: Any = forward_flops(ops, "causal")
        least = minimum(step.value_s, product(seen, 3 * plan.n_micro_batch * plan.dp) / rate)
        step = Estimate(step.value_s, maximum(step.low_s, least), step.high_s)
    mfu = _share(flops, rate, step)
    hfu = _share(flops * _again(plan, ops, spec, convention), rate, step)
    return Step(step, parts.compute_s, parts.recompute_s, parts.bubble_s, parts.communication_s,
                parts.optimizer_s, tokens, flops, mfu, hfu, convention)  # fmt: skip


def timed(
    spec: Spec, plan: Plan, recipe: Recipe, context: int, cluster: Cluster, mtp_passes: int = 0
) -> tuple[Estimate, Parts]:
    """The time of one step with its interval, and what it waits for."""
    c = cluster.chip.constants.step
    made = terms(spec, plan, recipe, context, cluster, mtp_passes)
    parts = assemble(made, plan, recipe, c)
    value, wide = parts.step_s, spread(made, parts, plan, recipe, c)
    return Estimate(value, value / wide, value * wide), parts


def step_time(
    spec: Spec, plan: Plan, recipe: Recipe, context: int, cluster: Cluster, mtp_passes: int = 0
) -> Estimate:
    """The time of one step alone: ``training_step`` less its FLOPs, for a search over shapes.

    Example:
        >>> from scantling import catalog
        >>> from scantling.hardware import cluster
        >>> spec, eight = catalog.model("llama-3.1-8b"), cluster("h100")
        >>> step_time(spec, Plan(dp=8, zero=3), Recipe(), 8192, eight).value_s < 2
        True
    """
    return timed(spec, plan, recipe, context, cluster, mtp_passes)[0]


def rate_dtype(recipe: Recipe) -> str:
    """The dtype whose peak rate a recipe is measured against.

    Example:
        >>> rate_dtype(Recipe(dtype="fp8-block"))
        'fp8'
    """
    return recipe.dtype.removesuffix("-block")


def _share(flops: Num, rate: float, step: Estimate) -> Estimate:
    return Estimate(flops / (rate * step.value_s), flops / (rate * step.high_s),
                    flops / (rate * step.low_s))  # fmt: skip


def _again(plan: Plan, ops: tuple[Op, ...], spec: Spec, convention: Convention) -> Num:
    """FLOPs with what is computed again over those without."""
    if plan.recompute == "none":
        return 1.0
    whole = forward_flops(ops, convention)
    kept: dict[str, Callable[[Op], bool]]
    kept = {
        "full": lambda op: op.part != "lm_head",
        "selective": lambda op: op.kind == "attention",
        "products": lambda op: op.kind == "matmul" and op.part != "lm_head",
    }
    counted = "causal" if convention == "causal" else "full"
    part: Any = sum((op.flops(counted) for op in ops if kept[plan.recompute](op)), start=0)
    if plan.recompute == "products":
        part = part / 2
    if plan.recompute == "full" and plan.recompute_layers is not None:
        part = part * (plan.recompute_layers * plan.pp / spec.n_layer)
    return 1.0 + part / (3 * whole)  # type: ignore[no-any-return]


__all__ = [
    "Estimate",
    "Parts",
    "Step",
    "Terms",
    "assemble",
    "rate_dtype",
    "step_time",
    "terms",
    "training_step",
]
