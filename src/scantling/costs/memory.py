"""What a rank holds while it trains, at the moment when that is most.

    states       weights + gradients + optimizer: Σ over the rank's tensors, bytes of the recipe,
                 divided among the ranks that share them (ZeRO 1: optimizer, 2: gradients, 3: all)
    backward     states + what all micro-batches in flight left + one layer's gradients
    loss         states + what those of the last stage left + copies of the logits
    head         the same with the logits' gradient only, and the gradient of the head's matrix
    step         states + the optimizer's own copy

The peak is the largest of these over the stages, never their sum.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from scantling.arith import Num, is_array, product
from scantling.costs.activations import Kept, item, kept
from scantling.costs.adapters import unpacked_bytes
from scantling.costs.buffers import (
    constants,
    gathered_bytes,
    gradient_buffers,
    live_logits,
    logits_bytes,
    loss_bytes,
    workspace,
)
from scantling.costs.plain_peak import moments
from scantling.costs.ranks import placed_operators, stages
from scantling.costs.states import States, expert_ranks, states
from scantling.spec import Spec
from scantling.spec.plan import Plan, Prompt, Recipe


class TrainingMemory(Struct, frozen=True, kw_only=True):
    """Bytes on the most loaded rank, at the moment of the peak."""

    total: Num
    """Allocated by tensors."""
    low: Num
    """The lower end of the interval of the total."""
    high: Num
    weights: Num
    gradients: Num
    optimizer: Num
    activations: Num
    """What waits for the backward pass, and what one layer holds in it."""
    logits: Num
    """Copies of the logits that the loss and its gradient hold."""
    buffers: Num
    """Gathered weights, gradients before they are shared, scales and scratch."""
    moment: Any
    """When the peak is: ``backward``, ``loss``, ``head`` (its backward pass),
    ``optimizer step``, of software that is written out ``forward`` too; of a column an array."""
    stage: Any = 0
    """The pipeline stage of that rank."""
    reserved: Num = 0
    """What the allocator holds for them, pieces it cannot use included."""
    reserved_low: Num = 0
    reserved_high: Num = 0
    needed_low: Num = 0
    """What the chip must have at least: reserved at the low end, and the driver's context."""
    needed_high: Num = 0
    """What the chip must have so that it surely runs."""

    @property
    def states(self) -> Num:
        """Weights, gradients and optimizer."""
        return self.weights + self.gradients + self.optimizer


def training_memory(spec: Spec, plan: Plan, recipe: Recipe, context: int) -> TrainingMemory:
    """The peak memory of the most loaded rank.

    Args:
        spec: The model, or a column of models.
        plan: How it is split.
        recipe: Its numbers.
        context: Tokens of a sequence; the longest of the data, which sets the peak.

    Example:
        >>> from scantling import catalog
        >>> recipe = Recipe(weights="fp32", gradients="fp32", master=None)
        >>> found = training_memory(catalog.model("llama-2-7b"), Plan(), recipe, 512)
        >>> found.states
        107814649856
    """
    found = [
        one for stage in stages(plan) for one in stage_peaks(spec, plan, recipe, context, stage)
    ]
    if any(is_array(m.total) for m in found):
        return _largest(found)
    return max(found, key=lambda m: m.total)


def stage_peaks(
    spec: Spec, plan: Plan, recipe: Recipe, context: int, stage: int
) -> list[TrainingMemory]:
    """The moments of a stage that can be its peak.

    All that a micro-batch leaves is so many times what one sequence leaves, wherever its experts
    are; and what a rank holds of the weights does not depend on the tokens it sees.
    """
    if recipe.plain:
        return _plain(spec, plan, recipe, context)
    alone = replace(plan, micro_batch=1)
    seen = placed_operators(spec, replace(alone, ep=1), context, stage)
    ops = placed_operators(spec, replace(alone, cp=1), context, stage)
    held = states(ops, plan, recipe)
    left = kept(seen, spec.d_model, alone, recipe, -(-context // plan.cp)).times(plan.micro_batch)
    waiting = in_flight(plan, stage, left)
    again: Any = left.one_layer if plan.recompute in {"full", "products"} else 0
    gradients = gradient_buffers(ops, plan, recipe)
    always = held.scales + gathered_bytes(ops, plan, recipe) + workspace(recipe)
    always = always + recipe.bucket_elements * item(recipe)
    if recipe.adapter is not None:
        always = always + unpacked_bytes(ops, recipe.adapter)
    made, sums = gradients.layers, _Sums(stage, held, plan, recipe)
    found = [sums.at("backward", waiting + left.temporary + again, 0, always + made)]
    if stage == plan.pp - 1:
        logits = plan.micro_batch * loss_bytes(seen, recipe, live_logits(recipe))
        head = plan.micro_batch * loss_bytes(seen, recipe, item(recipe))
        lasting = always + (0 if plan.zero >= 2 else made)
        found.append(sums.at("loss", waiting, logits, lasting, doubt=head))
        found.append(sums.at("head", waiting, head, lasting + gradients.head, doubt=head))
    found.append(sums.at("optimizer step", 0, 0, always + held.copy))
    return found


def _plain(spec: Spec, plan: Plan, recipe: Recipe, context: int) -> list[TrainingMemory]:
    """The moments of software that is written out: see ``costs.plain_peak``."""
    ops = placed_operators(spec, plan, context)
    held = states(ops, plan, recipe)
    sums = _Sums(0, replace(held, gradients=0), plan, recipe)
    gathered = gathered_bytes(ops, plan, recipe)
    found = []
    for one in moments(spec, ops, recipe, held=plan.n_micro_batch > 1):
        at = sums.at(one.name, one.activations, one.logits, one.buffers + gathered,
                     gradients=one.gradients)  # fmt: skip
        found.append(at)
    return found


def in_flight(plan: Plan, stage: int, left: Kept) -> Num:
    """What the micro-batches of a stage leave that wait for their backward pass.

    1F1B: stage s runs p − s forward passes before its first backward pass, so as many wait, if
    there are as many. Interleaved with v chunks, 2 (p − s − 1) + (v − 1) p + 1 chunks wait, each of
    1/v of the stage's layers: on stage 0 that is v p + p − 1 chunks, a factor 1 + (p − 1) / (p v)
    (Korthikanti et al. 2022, section 4.2.3).

    Example:
        >>> left = Kept(layers=12.0, outside=0.0, one_layer=0.0, temporary=0.0)
        >>> in_flight(Plan(pp=4, n_micro_batch=8), 0, left)
        48.0
        >>> in_flight(Plan(pp=4, virtual=3, n_micro_batch=8), 0, left) == 48 * (1 + 3 / 12)
        True
    """
    chunks = plan.pp - stage
    if plan.virtual > 1:
        chunks = 2 * (plan.pp - stage - 1) + (plan.virtual - 1) * plan.pp + 1
    chunks = min(chunks, plan.n_micro_batch * plan.virtual)
    return product(left.layers, chunks) / plan.virtual + left.outside


# ---------------------------------------------------------------- moments


def _known(recipe: Recipe) -> str:
    """How well the activations of some software are known: a key of ``data/memory.toml``."""
    adapter = recipe.adapter
    scaled = isinstance(adapter, Prompt) and adapter.scales
    if adapter is not None and (adapter.packed or scaled):
        return "activations_packed"
    return "activations" if recipe.fused else "activations_unfused"


class _Sums:
    """Sums the parts of one stage at each moment, with the interval of the sum."""

    def __init__(self, stage: int, held: States, plan: Plan, recipe: Recipe) -> None:
        known = constants()
        self.stage, self.held, self.own = stage, held, known["allocated"]
        self.share = self.own[_known(recipe)]
        self.low, self.value, self.high = (known["reserved"][k] for k in ("low", "value", "high"))
        outside = [known["context"]] + ([known["communicator"]] if plan.n_gpu > 1 else [])
        self.least = sum(one["low_bytes"] for one in outside)
        self.most = sum(one["high_bytes"] for one in outside)

    def at(
        self, moment: str, activations: Any, logits: Any, buffers: Any, doubt: Any = 0,
        gradients: Any = None,
    ) -> TrainingMemory:  # fmt: skip
        held, own, value = self.held, self.own, self.value
        if gradients is not None:
            held = replace(held, gradients=gradients)
        total: Any = held.total + activations + logits + buffers
        half = activations * self.share + doubt * own["logits"] + buffers * own["buffers"]
        # What is not known of the tensors and of the allocator adds up as independent errors do.
        tensors = (half / total) ** 2
        above = (tensors + (self.high / value - 1) ** 2) ** 0.5
        below = (tensors + (1 - self.low / value) ** 2) ** 0.5
        reserved = total * value
        low, high = reserved * (1 - below), reserved * (1 + above)
        return TrainingMemory(
            total=total, low=total - half, high=total + half, weights=held.weights,
            gradients=held.gradients, optimizer=held.optimizer, activations=activations,
            logits=logits, buffers=buffers, moment=moment, stage=self.stage,
            reserved=reserved, reserved_low=low, reserved_high=high,
            needed_low=low + self.least, needed_high=high + self.most,
        )  # fmt: skip


def _largest(found: list[TrainingMemory]) -> TrainingMemory:
    """The moment with the largest total, chosen for each model of a column."""
    import numpy as np

    totals = np.broadcast_arrays(*(np.asarray(m.total, dtype=float) for m in found))
    best = np.argmax(np.stack(totals), axis=0)
    fields = {}
    for name in TrainingMemory.__struct_fields__:
        values = np.broadcast_arrays(*(np.asarray(getattr(m, name)) for m in found), best)[:-1]
        fields[name] = np.choose(best, values)
    return TrainingMemory(**fields)


__all__ = [
    "States",
    "TrainingMemory",
    "expert_ranks",
    "gathered_bytes",
    "in_flight",
    "live_logits",
    "logits_bytes",
    "stage_peaks",
    "states",
    "training_memory",
]
