"""Whether training fits, how far it can be pushed, and what decides it, in sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from scantling.costs.adapters import adapted
from scantling.costs.memory import TrainingMemory, training_memory
from scantling.hardware import chips
from scantling.spec import Spec
from scantling.spec.plan import Adapter, Plan, Recipe

Verdict = Literal["yes", "tight", "no"]
VENDOR = "NVIDIA"


def fits(memory: TrainingMemory, memory_bytes: float) -> Verdict:
    """Whether a peak fits a chip.

    Args:
        memory: Of the most loaded rank.
        memory_bytes: What the chip has.

    Returns:
        ``yes`` where the upper end of what is needed fits, ``no`` where the lower end does not,
        ``tight`` between: it may run, and may run out.
    """
    if memory.needed_high <= memory_bytes:
        return "yes"
    return "tight" if memory.needed_low <= memory_bytes else "no"


class Room(Struct, frozen=True):
    """What a chip has room for."""

    text: str
    micro_batch: int
    """The largest of those asked for that surely fits; 0 is none."""
    recompute: bool
    """Whether it does only with whole layers computed again."""
    offload: bool
    """Whether it does only with the optimizer on the host."""


def room(
    spec: Spec, plan: Plan, recipe: Recipe, context: int, memory_bytes: float,
    batches: Sequence[int] = (8, 4, 2, 1),
) -> Room:  # fmt: skip
    """The largest micro-batch that surely fits, first as it is, then with recompute, then offload.

    Args:
        spec: One model.
        plan: How it is split; its micro-batch is not used.
        recipe: Its numbers.
        context: Tokens of a sequence.
        memory_bytes: What one chip has.
        batches: Micro-batches to try, the largest first.
    """
    for again, offload in ((False, False), (True, False), (True, True)):
        for batch in batches:
            own = replace(plan, micro_batch=batch)
            if again:
                own = replace(own, recompute="full")
            changed = replace(recipe, offload=offload or recipe.offload)
            if fits(training_memory(spec, own, changed, context), memory_bytes) == "yes":
                small = batch < batches[0]
                if not again:
                    text = "fits with small micro-batch" if small else "fits"
                else:
                    text = "only with small micro-batch and checkpointing/offload"
                return Room(text, batch, again, offload)
    return Room("does not fit", 0, recompute=False, offload=False)


def longest_context(
    spec: Spec, plan: Plan, recipe: Recipe, memory_bytes: float, most: int = 2**22
) -> int:
    """The longest sequence that surely fits, to 64 tokens; 0 is none.

    Example:
        >>> from scantling import catalog
        >>> spec = catalog.model("llama-2-7b")
        >>> longest_context(spec, Plan(), Recipe(), 80 * 2**30)
        0
    """
    return largest(
        lambda n: fits(training_memory(spec, plan, recipe, 64 * n), memory_bytes) == "yes",
        most // 64,
    ) * 64  # fmt: skip


def largest(holds: Callable[[int], bool], most: int) -> int:
    """The largest number up to a limit for which something holds that stops holding once."""
    low, high = 0, 1
    while high <= most and holds(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def smallest_memory(memory: TrainingMemory) -> int | None:
    """Bytes of the smallest size that NVIDIA's chips come in and that surely holds a peak.

    Sizes are those of the catalogue, in whole GiB; None where no chip is large enough.
    """
    sizes = sorted({one.memory_bytes for one in chips().values() if one.vendor == VENDOR})
    return next((size for size in sizes if memory.needed_high <= size), None)


def sharing_helps(spec: Spec, plan: Plan, recipe: Recipe, context: int) -> bool:
    """Whether twice as many data-parallel ranks lower what each needs.

    Without ZeRO every rank holds everything; with it, what is gathered and activations stay.
    """
    one = training_memory(spec, plan, recipe, context)
    two = training_memory(spec, replace(plan, dp=2 * plan.dp), recipe, context)
    return bool(two.total < one.total)


def notes(spec: Spec, plan: Plan, recipe: Recipe, context: int) -> tuple[str, ...]:
    """What to know beside the numbers: what sets the peak, what does not scale, what is trained.

    Example:
        >>> from scantling import catalog
        >>> notes(catalog.model("llama-2-7b"), Plan(), Recipe(), 4096)[0]
        'memory is set by the longest batch: 4,096 tokens are taken, so give the longest sequence \
in the data, not the mean'
    """
    longest = (
        f"memory is set by the longest batch: {context:,} tokens are taken, so give the longest "
        "sequence in the data, not the mean"
    )
    found = [longest]
    if plan.dp * plan.cp > 1 and plan.zero == 0:
        found.append(
            f"each of the {plan.dp} data-parallel ranks holds all weights, so more chips do not "
            "lower what one needs; share them (ZeRO 3, FSDP)"
        )
    if plan.zero >= 3:
        found.append(
            "activations, gathered layers and logits do not shrink with the number of chips"
        )
    if recipe.attention != "unfused" and plan.recompute == "selective":
        found.append("flash attention keeps no scores, so selective recompute has nothing to save")
    if isinstance(recipe.adapter, Adapter):
        found += adapted(spec, recipe.adapter).notes
    return tuple(found)


def activation_ratio(spec: Spec, plan: Plan, recipe: Recipe, context: int) -> Any:
    """Activations of a layer with selective recompute over those without.

    With unfused attention 34 / (34 + 5 a s / h) of a GPT layer; 1 with a flash kernel.
    """
    from scantling.costs.activations import kept
    from scantling.costs.ranks import placed_operators

    def layers(recompute: Literal["none", "selective"]) -> Any:
        own = replace(plan, recompute=recompute)
        ops = placed_operators(spec, own, context)
        return kept(ops, spec.d_model, own, recipe, own.micro_batch * context).layers

    return layers("selective") / layers("none")
