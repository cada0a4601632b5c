"""What a rank holds for a moment: gathered weights, gradients on their way, the loss, scratch."""

from __future__ import annotations

import functools
from typing import Any

from msgspec import Struct

from scantling.arith import Num, maximum, minimum, product
from scantling.costs.activations import item
from scantling.costs.ranks import Placed
from scantling.costs.remember import remembered
from scantling.costs.states import whole_bytes
from scantling.sources import read_data
from scantling.spec import dtype_bytes
from scantling.spec.plan import Plan, Recipe


def gathered_bytes(ops: tuple[Placed, ...], plan: Plan, recipe: Recipe) -> Any:
    """Whole weights that a rank holds for a moment when they are shared (ZeRO 3, FSDP).

    The layer at work and the next one, which is fetched meanwhile, in the forward pass's dtype;
    and what is outside of the layers, which stays from the first use to the last. None of it falls
    with the number of ranks. In a pipeline all weights of the stage stay gathered, lest they be
    fetched for each micro-batch; with adapters too, since no gradient of a frozen weight comes to
    release it (inferred from nine measured runs of FSDP, whose peaks are a whole copy higher).
    """
    if plan.zero < 3:
        return 0
    if plan.pp > 1:
        return _stage_weights(ops) * item(recipe)
    if recipe.adapter is not None:
        return _stage_weights(ops) * item(recipe)
    each, outside = _layer_weights(ops)
    return (2 * each + outside) * item(recipe)


@remembered(id)
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


def _stage_weights(ops: tuple[Placed, ...]) -> Any:
    """Parameters of a stage on this rank."""
    total: Any = 0
    for placed in ops:
        for t in placed.op.tensors:
            if not t.alias:
                total = total + t.size()
    return total


class Gradients(Struct, frozen=True):
    """Bytes of gradients of weights before they are summed: of the layers, and of the head."""

    layers: Any
    head: Any


@remembered(lambda ops, plan, recipe: (id(ops), plan.zero, recipe))
def gradient_buffers(ops: tuple[Placed, ...], plan: Plan, recipe: Recipe) -> Gradients:
    """Gradients of weights on their way to where they are summed.

    Where they are summed in another dtype than they are made in, each is handed over in the
    forward pass's dtype; Megatron-LM keeps one such tensor for every shape of weight, an expert's
    once. Where they are shared among ranks (ZeRO 2, 3), those of a whole layer wait to be reduced;
    in a pipeline, those of the stage until its last micro-batch. Frozen weights that are shared
    lie in one flat tensor with the trained ones, so it gets a gradient as well.
    The matrix of the head is outside of the layers.
    """
    b = item(recipe)
    if recipe.adapter is not None:
        each, outside = _layer_weights(ops)
        return Gradients((2 * each + outside) * b if plan.zero >= 3 else 0, 0)
    summed_apart = dtype_bytes(recipe.gradients) != dtype_bytes(recipe.weights)
    if not (summed_apart or plan.zero >= 2):
        return Gradients(0, 0)
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
            seen[name] = maximum(seen.get(name, 0), op.n * op.k * minimum(op.times, 1) * b)
    if plan.zero >= 2:
        whole = _stage_weights(ops) if plan.pp > 1 else _layer_weights(ops)[0]
        return Gradients(whole * b, 0 if plan.pp > 1 else head)
    total: Any = 0
    for n in seen.values():
        total = total + n
    return Gradients(total, head)


def workspace(recipe: Recipe) -> float:
    """Bytes of scratch that matrix libraries keep: hand-written kernels bring their own."""
    known = constants()["workspace"]
    return float(known["value_bytes"] if recipe.fused else known["unfused_bytes"])


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
    return product(tokens, vocab_size, whole_bytes(dtype_bytes(dtype)))


def live_logits(recipe: Recipe) -> float:
    """Bytes that a logit takes at the loss, all its copies together.

    Fused: the logits, over which the kernel writes their gradient: 2. Unfused: what the head wrote
    (2), and in the dtype the loss reads the log-softmax, its gradient and the logits'
    gradient: 2 + 3 × 4 = 14 in fp32, 2 + 3 × 2 = 8 in bf16.

    Example:
        >>> live_logits(Recipe()), live_logits(Recipe(fused_loss=True))
        (14.0, 2.0)
    """
    made = item(recipe)
    read = dtype_bytes(recipe.logits)
    if recipe.fused_loss:
        return made
    return made + 3 * read


CHUNKS = 16
"""Pieces in which a chunked loss goes through the tokens, at least."""


def loss_bytes(ops: tuple[Placed, ...], recipe: Recipe, each: float) -> Any:
    """Logits of a micro-batch on one rank of the last stage, at so many bytes."""
    found: Any = 0
    for placed in ops:
        if placed.op.name == "model.lm_head":
            found = found + product(placed.op.m, placed.op.n, each)
    return found / CHUNKS if recipe.chunked_loss else found
