"""The moments of a training step in plain PyTorch, whose gradients come and go with each step.

    forward    kept + what a layer holds for a moment
    loss       kept + logits and their log-softmax (twice V a token; three times where capped)
    head       kept + log-softmax, its gradient, the logits' gradient (3 V)
    backward   layer by layer from the last: what is kept goes, gradients of weights come
    embedding  all gradients, and the table's once more where it is the head's too
    step       all gradients, and what the optimizer works on

Kept bytes fall and gradients rise in a line through equal layers, so the most is at one end of a
run of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from scantling.arith import maximum, minimum, product
from scantling.costs.activations import item
from scantling.costs.plain import leaf, steps
from scantling.costs.ranks import Placed
from scantling.costs.states import size_of, turned
from scantling.spec import Spec
from scantling.spec.plan import Recipe


class Layer(Struct, frozen=True):
    """One layer of a kind."""

    kept: Any
    weights: Any
    """Bytes of its weights."""
    excess: Any
    """What it holds at most in its backward pass beyond what it found."""
    ahead: Any
    """The same of its forward pass, beyond what it leaves."""


class Moment(Struct, frozen=True):
    """Bytes beside weights and optimizer."""

    name: str
    activations: Any
    logits: Any = 0
    gradients: Any = 0
    buffers: Any = 0


def moments(spec: Spec, ops: tuple[Placed, ...], recipe: Recipe, *, held: bool) -> Iterator[Moment]:
    """All that can be the peak.

    Args:
        spec: The model.
        ops: Its forward operators for one micro-batch.
        recipe: Its numbers.
        held: Whether gradients are there from the first: of earlier micro-batches.
    """
    b, each = int(item(recipe)), size_of(recipe.gradients)
    by: dict[str, list[Placed]] = {}
    for placed in ops:
        by.setdefault(placed.layer, []).append(placed)
    outside = by.pop("", [])
    head = next(p.op for p in outside if leaf(p.op) == "lm_head")
    stream = head.m * spec.d_model * b
    layers = {name: _layer(tuple(own), b, each, stream) for name, own in by.items()}
    times = {name: own[0].op.times for name, own in by.items()}
    around: Any = sum((s.kept for s in steps(tuple(outside), b)), start=0) - _spread(by, b)
    around = around + _source(ops, b)
    weights: Any = sum((_bytes(p, each) for p in ops), start=0)
    kept: Any = around
    for name, one in layers.items():
        kept = kept + product(times[name], one.kept)
    before = weights if held else 0
    one_logits = head.m * head.n * size_of(recipe.logits)
    capped = spec.head is not None and spec.head.softcap is not None
    more = one_logits if capped else 0
    table = head.n * head.k * each
    small = tables(ops) + _cast(ops, recipe)
    yield Moment("loss", kept, 2 * one_logits + more, before, small)
    yield Moment("head", kept, 3 * one_logits + more, before, small)
    yield Moment("head", kept + stream, one_logits, before + table, small)
    left, made = kept - head.m * head.k * b, table
    for name, n in _backwards(spec, times):
        one, there = layers[name], minimum(n, 1)
        grads = weights if held else made
        yield Moment("forward", left + there * one.ahead, 0, before, small)
        yield Moment("backward", left + there * one.excess, 0, grads, small)
        left, made = left - product(n, one.kept), made + product(n, one.weights)
        grads = weights if held else made - there * one.weights
        yield Moment("backward", left + there * (one.kept + one.excess), 0, grads, small)
    again = table if held or spec.tied else 0
    yield Moment("backward", stream + maximum(left, 0), 0, weights, again + small)
    yield Moment("optimizer step", 0, 0, weights, small)
    if recipe.optimizer == "muon":  # after AdamW, whose weights have no gradients any more
        moved = sum((t.size() * each for p in ops for t in p.op.tensors if turned(p, t)), start=0)
        yield Moment("optimizer step", 0, 0, moved, small + works_on(ops, each))


def _layer(ops: tuple[Placed, ...], b: int, each: Any, stream: Any) -> Layer:
    """What one layer keeps, and the most that its backward pass holds beyond that."""
    own = list(steps(ops, b))
    freed: Any = 0
    made: Any = 0
    excess: Any = 0
    ahead: Any = 0
    for step in reversed(own):
        made = made + step.made * each // b
        excess = maximum(excess, step.back + made - freed)
        ahead = maximum(ahead, step.ahead - freed)
        freed = freed + step.kept
    times = maximum(ops[0].op.times, 1)
    weights: Any = 0
    for placed in ops:
        weights = weights + _bytes(placed, each) // times
    mixed = [p.op.tensors[0].shape[0] + 1 for p in ops if leaf(p.op) == "hyper_static"]
    waits = stream * max(mixed, default=1)
    return Layer(freed, weights, excess + waits, ahead + stream)


def _bytes(placed: Placed, each: Any) -> Any:
    """The trained weights of an operator, at so many bytes."""
    total: Any = 0
    for t in placed.op.tensors:
        if not t.alias and not t.buffer:
            total = total + t.size() * each
    return total


def _backwards(spec: Spec, times: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Kinds and how many layers of them, from the last run to the first."""
    stacks = [("decoder", spec.decoder)]
    if spec.encoder is not None:
        stacks.append(("encoder", spec.encoder))
    for path, stack in stacks:
        for run in reversed(stack.layout):
            p = len(run.pattern)
            n: Any = run.n
            for j in reversed(range(p)):
                name = f"{path}.{run.pattern[j]}"
                if name in times:
                    yield name, (n + p - 1 - j) // p


def _spread(by: dict[str, list[Placed]], b: int) -> Any:
    """The first block of a stack reads one stream as n, without a copy."""
    found: dict[str, Any] = {}
    for name, own in by.items():
        for placed in own:
            if leaf(placed.op) == "hyper_static":
                n = placed.op.tensors[0].shape[0]
                found[name.partition(".")[0]] = placed.op.m * placed.op.n * b // n * (n - 1)
                break
    return sum(found.values(), start=0)


def _cast(ops: tuple[Placed, ...], recipe: Recipe) -> Any:
    """Copies of the matrices in the products' dtype, kept from their forward to their backward."""
    total: Any = 0
    if item(recipe) < size_of(recipe.weights):
        for placed in ops:
            if placed.op.kind == "matmul":
                total = total + _bytes(placed, int(item(recipe)))
    return total


def _source(ops: tuple[Placed, ...], b: int) -> Any:
    """The encoder's output, which all layers that cross to it keep together."""
    found: Any = 0
    for placed in ops:
        if leaf(placed.op) == "kv":
            found = maximum(found, placed.op.m * placed.op.k * b)
    return found


def tables(ops: tuple[Placed, ...]) -> Any:
    """Masks and biases of positions, which stay from step to step: 1, 4 and 8 bytes a pair."""
    found: dict[Any, Any] = {}
    for placed in ops:
        op = placed.op
        words = set(op.form.split())
        if op.kind != "attention":
            continue
        pairs: Any = op.m * op.n
        if words & {"alibi", "relative"}:
            found["distance"] = 8 * pairs
        if "alibi" in words:
            found["alibi", str(op.repeat)] = 4 * pairs * (op.repeat // op.times)
        if "relative" in words:
            found["buckets", str(op.tensors)] = 8 * pairs
        if "masked" in words:
            found["masked", str(op.visible)] = pairs
        if "causal" in words and words & {"softcap", "sinks", "alibi", "relative"}:
            found["causal"] = pairs
    return sum(found.values(), start=0)


def works_on(ops: tuple[Placed, ...], each: Any) -> Any:
    """What Muon makes of its largest matrix; fused AdamW makes nothing.

    A product may hold several matrices side by side, which are made orthogonal one by one. Beside
    all of the product with momentum, and those that are done, one of n numbers with r on its
    shorter side takes X, aX, the product and their sum, 4 n, and the r × r of XXᵀ; or 2 n while
    four of r × r are made.
    """
    most: Any = 0
    for placed in ops:
        op = placed.op
        copies: Any = 1 if op.experts is None else op.experts
        held: Any = copies * op.n * op.k
        for t in (t for t in op.tensors if turned(placed, t)):
            n, square = copies * t.each(), copies * minimum(*t.shape) ** 2
            most = maximum(most, held + maximum(4 * n + square, 2 * n + 4 * square))
            held = held + n
    return most * each


__all__ = ["Layer", "Moment", "moments", "tables", "works_on"]
