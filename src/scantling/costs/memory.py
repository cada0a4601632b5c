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

import functools
from typing import Any

from msgspec import Struct

from scantling.arith import Num, is_array, maximum, product
from scantling.costs.activations import Kept, item, kept
from scantling.costs.adapters import adapter_parameters, frozen_bytes, unpacked_bytes
from scantling.costs.ranks import Placed, expert_tp, placed_operators, stages
from scantling.ops import Tensor
from scantling.sources import read_data
from scantling.spec import Spec, dtype_bytes
from scantling.spec.plan import Plan, Recipe


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
    """When the peak is: ``backward``, ``loss``, ``head`` (its backward pass) or
    ``optimizer step``; of a column an array."""
    stage: Any = 0
    """The pipeline stage of that rank."""
    reserved: Num = 0
    """What the allocator holds for them, pieces it cannot use included."""
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
    """The moments of a stage that can be its peak."""
    ops = placed_operators(spec, plan, context, stage)
    held = states(ops, plan, recipe)
    rows = plan.micro_batch * -(-context // plan.cp)
    left = kept(ops, spec.d_model, plan, recipe, rows)
    waiting = in_flight(plan, stage, left)
    again: Any = left.one_layer if plan.recompute in {"full", "products"} else 0
    gradients = _gradient_buffers(ops, plan, recipe)
    always = held.scales + gathered_bytes(ops, plan, recipe) + _workspace()
    if recipe.adapter is not None:
        always = always + unpacked_bytes(ops, recipe.adapter)
    backward = waiting + left.temporary + again
    made = gradients.layers
    found = [_moment("backward", stage, held, backward, 0, always + made)]
    if stage == plan.pp - 1:
        logits = _loss_bytes(ops, recipe, live_logits(recipe))
        head = _loss_bytes(ops, recipe, 2 * item(recipe))
        kept_made = 0 if plan.zero >= 2 else made
        found += [
            _moment("loss", stage, held, waiting, logits, always + kept_made),
            _moment("head", stage, held, waiting, head, always + kept_made + gradients.head),
        ]
    step: Any = held.copy
    found.append(_moment("optimizer step", stage, held, 0, 0, always + step))
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


# ---------------------------------------------------------------- states


class States(Struct, frozen=True):
    """Bytes of what stays from step to step on one rank."""

    weights: Num
    gradients: Num
    optimizer: Num
    scales: Num
    """Scales of an optimizer's 8-bit moments."""
    copy: Num
    """The optimizer's copy of the weights it works on, at the step."""


BLOCK_8BIT = 256
"""Elements of an 8-bit moment that share an fp32 scale."""


def states(ops: tuple[Placed, ...], plan: Plan, recipe: Recipe) -> States:
    """Weights, gradients and optimizer states of one rank.

    Per trained parameter, with the bytes of the recipe's dtypes:

        AdamW        master + 2 moments            (mixed: 2 + 4 + 4 + 8 = 18 in all)
        8-bit AdamW  master + 2 × 1, and 2 × 4/256 of scales
        Adafactor    master + (out + in) / (out × in) × 4, no first moment
        Muon         master + 1 moment for matrices of the layers, 2 for all else
        SGD          master + 0: no momentum
    """
    dense: Any = _Sum()
    expert: Any = _Sum()
    adapter = recipe.adapter
    for placed in ops:
        for t in placed.op.tensors:
            if t.alias:
                continue
            (expert if t.experts is not None else dense).add(t, placed, recipe)
    if adapter is not None:
        n = adapter_parameters(ops, adapter)
        size = dtype_bytes(recipe.gradients)
        dense.weights = dense.weights + n * dtype_bytes(recipe.dtype)
        dense.gradients = n * size
        dense.moments = product(n, 2 * dtype_bytes(recipe.moments))
        dense.copied = n * dtype_bytes(recipe.dtype)
    return _plus(
        dense.shared(plan, recipe, plan.zero_ranks), expert.shared(plan, recipe, expert_ranks(plan))
    )


def expert_ranks(plan: Plan) -> int:
    """Ranks among which ZeRO shares an expert's weights.

    The tp × cp × dp ranks of a stage hold ep × expert_tp different parts of the experts.
    """
    parts = plan.ep * expert_tp(plan)
    return max(1, plan.zero_ranks * plan.tp // parts)


class _Sum:
    """Bytes of one group of tensors before they are shared."""

    def __init__(self) -> None:
        self.weights: Any = 0
        self.gradients: Any = 0
        self.moments: Any = 0
        self.scales: Any = 0
        self.copied: Any = 0

    def add(self, t: Tensor, placed: Placed, recipe: Recipe) -> None:
        n: Any = t.size()
        if recipe.adapter is not None:
            self.weights = self.weights + product(n, frozen_bytes(t, placed, recipe.adapter))
            return
        self.weights = self.weights + product(n, _whole(dtype_bytes(recipe.weights)))
        if t.buffer:
            return
        self.gradients = self.gradients + product(n, _whole(dtype_bytes(recipe.gradients)))
        self.copied = self.copied + product(n, _whole(dtype_bytes(recipe.weights)))
        if recipe.optimizer == "none":
            return
        if recipe.master:
            self.moments = self.moments + product(n, _whole(dtype_bytes(recipe.master)))
        self.moments = self.moments + _moments(t, placed, recipe)
        if recipe.optimizer == "adamw8bit":
            self.scales = self.scales + product(n, 8) / BLOCK_8BIT

    def shared(self, plan: Plan, recipe: Recipe, ranks: int) -> States:
        offload = recipe.offload
        return States(
            weights=_share(self.weights, ranks if plan.zero >= 3 else 1),
            gradients=0 if offload else _share(self.gradients, ranks if plan.zero >= 2 else 1),
            optimizer=0 if offload else _share(self.moments, ranks if plan.zero >= 1 else 1),
            scales=_share(self.scales, ranks if plan.zero >= 1 else 1),
            copy=_share(self.copied, ranks if plan.zero >= 1 else 1) if recipe.foreach else 0,
        )


def _moments(t: Tensor, placed: Placed, recipe: Recipe) -> Any:
    """Bytes of the optimizer's own statistics of one tensor."""
    n: Any = t.size()
    size = _whole(dtype_bytes(recipe.moments))
    if recipe.optimizer == "adamw":
        return product(n, 2 * size)
    if recipe.optimizer == "adamw8bit":
        return product(n, 2)
    if recipe.optimizer == "muon":
        matrix = len(t.shape) >= 2 and placed.layer
        return product(n, size if matrix else 2 * size)
    if recipe.optimizer == "adafactor":
        if len(t.shape) < 2:
            return product(n, 4)
        rows: Any = t.shape[-2] + t.shape[-1]
        return product(n, rows, 4) / product(t.shape[-2], t.shape[-1])
    return 0


def _whole(size: float) -> Any:
    """Bytes of an element as an int where it is one, so that counts stay exact."""
    return int(size) if float(size).is_integer() else size


def _share(value: Any, ranks: int) -> Any:
    return value if ranks == 1 else value / ranks


def _plus(a: States, b: States) -> States:
    return States(*(getattr(a, f) + getattr(b, f) for f in States.__struct_fields__))


# ---------------------------------------------------------------- buffers


def gathered_bytes(ops: tuple[Placed, ...], plan: Plan, recipe: Recipe) -> Num:
    """Whole weights that a rank holds for a moment when they are shared (ZeRO 3, FSDP).

    The layer at work and the next one, which is fetched meanwhile, in the forward pass's dtype;
    and what is outside of the layers, which stays from the first use to the last. None of it falls
    with the number of ranks.
    """
    if plan.zero < 3:
        return 0
    each, outside = _layer_weights(ops)
    return (2 * each + outside) * item(recipe)


def _layer_weights(ops: tuple[Placed, ...]) -> tuple[Any, Any]:
    """Parameters on this rank of the largest layer, and of all that is in no layer."""
    by: dict[str, Any] = {}
    for placed in ops:
        times = maximum(placed.op.times, 1) if placed.layer else 1
        for t in placed.op.tensors:
            if not t.alias:
                by[placed.layer] = by.get(placed.layer, 0) + t.size() // times
    outside = by.pop("", 0)
    largest: Any = 0
    for n in by.values():
        largest = maximum(largest, n)
    return largest, outside


class _Gradients(Struct, frozen=True):
    layers: Any
    head: Any


def _gradient_buffers(ops: tuple[Placed, ...], plan: Plan, recipe: Recipe) -> _Gradients:
    """Gradients of weights on their way to where they are summed.

    Where they are summed in another dtype than they are made in, each is handed over in the
    forward pass's dtype; Megatron-LM keeps one such tensor for every shape of weight, an expert's
    once. Where they are shared among ranks (ZeRO 2, 3), those of a whole layer wait to be reduced.
    The matrix of the head is outside of the layers.
    """
    adapter = recipe.adapter is not None
    summed_apart = dtype_bytes(recipe.gradients) != dtype_bytes(recipe.weights)
    if adapter or not (summed_apart or plan.zero >= 2):
        return _Gradients(0, 0)
    b = item(recipe)
    head: Any = 0
    seen: dict[str, Any] = {}
    for placed in ops:
        op = placed.op
        if op.kind != "matmul" or not op.tensors:
            continue
        if op.part == "lm_head":
            head = head + op.n * op.k * b
        elif placed.layer:
            name = op.name.removeprefix(f"{placed.layer}.")
            seen[name] = maximum(seen.get(name, 0), op.n * op.k * b)
    if plan.zero >= 2:
        return _Gradients(_layer_weights(ops)[0] * b, head)
    total: Any = 0
    for n in seen.values():
        total = total + n
    return _Gradients(total, head)


def _workspace() -> float:
    return float(constants()["workspace"]["value_bytes"])


@functools.cache
def constants() -> dict[str, Any]:
    """What allocator and driver take, with its interval."""
    return read_data("memory.toml")


# ---------------------------------------------------------------- the loss


def logits_bytes(tokens: Num, vocab_size: Num, dtype: str = "fp32") -> Num:
    """One copy of the logits: tokens × vocabulary × bytes.

    Example:
        >>> logits_bytes(32768, 151936) / 2**30
        18.546875
    """
    return product(tokens, vocab_size, _whole(dtype_bytes(dtype)))


def live_logits(recipe: Recipe) -> float:
    """Bytes that a logit takes at the loss, all its copies together.

    Fused: the logits and, in place, their gradient, in 16 bits each: 4. Unfused, where the loss
    reads another dtype than the head writes: the logits (2), the gradient of the log-softmax, its
    output and its own gradient (3 × 4): 14. In the head's own dtype: three copies.

    Example:
        >>> live_logits(Recipe()), live_logits(Recipe(fused_loss=True))
        (14.0, 4.0)
    """
    made = item(recipe)
    read = dtype_bytes(recipe.logits)
    if recipe.fused_loss:
        return 2 * made
    return 3 * read + (made if read != made else 0)


CHUNKS = 16
"""Pieces in which a chunked loss goes through the tokens, at least."""


def _loss_bytes(ops: tuple[Placed, ...], recipe: Recipe, each: float) -> Num:
    """Logits of a micro-batch on one rank of the last stage, at so many bytes."""
    found: Any = 0
    for placed in ops:
        if placed.op.name == "model.lm_head":
            found = found + product(placed.op.m, placed.op.n, each)
    return found / CHUNKS if recipe.chunked_loss else found


# ---------------------------------------------------------------- moments


def _moment(
    moment: str, stage: int, held: States, activations: Any, logits: Any, buffers: Any
) -> TrainingMemory:
    total = held.weights + held.gradients + held.optimizer + activations + logits + buffers
    c = constants()
    reserved, context, own = c["reserved"], c["context"], c["allocated"]
    return TrainingMemory(
        total=total, low=total * own["low"], high=total * own["high"], weights=held.weights,
        gradients=held.gradients, optimizer=held.optimizer, activations=activations, logits=logits,
        buffers=buffers, moment=moment, stage=stage, reserved=total * reserved["value"],
        needed_low=total * own["low"] * reserved["low"] + context["low_bytes"],
        needed_high=total * own["high"] * reserved["high"] + context["high_bytes"],
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
