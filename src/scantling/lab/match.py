"""Shapes made equal in one quantity by the exact counters, with what is left unequal stated."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from scantling.costs.count import flops, parameters
from scantling.errors import FieldError
from scantling.lab.study.design import Shape
from scantling.spec import (
    Block,
    Branch,
    Dense,
    Embeddings,
    GroupedAttention,
    Head,
    Layer,
    Norm,
    Rope,
    Run,
    Spec,
    Stack,
    vary,
)

RATIO = 8 / 3
"""F/D of a gated feed-forward as large as a plain one of 4 (Shazeer 2020); shapes keep near it."""
NARROWEST, WIDEST = 1.0, 6.0
"""F/D beyond which no shape is taken."""
CLOSE = 0.01
"""A mismatch that is small enough for the ratio to decide."""
STEP = 4
"""What F is a multiple of."""

Count = Callable[[Spec], float]


def small(
    n_layer: int, d_model: int, d_ff: int, *, n_head: int | None = None, d_head: int = 16,
    vocab_size: int = 256, gated: bool = True, activation: str = "silu", tied: bool = True,
    attention: GroupedAttention | None = None,
) -> Spec:  # fmt: skip
    """A small decoder as they are built today: RMSNorm before, rotary positions, gated, tied.

    Args:
        n_layer: L.
        d_model: D.
        d_ff: F.
        n_head: D / h unless given.
        d_head: h.
        vocab_size: V; 256 is bytes.
        gated: Three matrices instead of two.
        activation: Of the feed-forward.
        tied: One matrix for embedding and head.
        attention: In place of the one that these say.

    Example:
        >>> int(parameters(small(2, 64, 172)).body)
        99136
    """
    heads = n_head or max(d_model // d_head, 1)
    own = attention or GroupedAttention(heads, heads, d_head, position=Rope())
    blocks = (
        Block((Branch(own),), pre=Norm()),
        Block((Branch(Dense(d_ff, gated=gated, activation=activation)),), pre=Norm()),
    )
    stack = Stack((Layer("layer", blocks),), (Run(("layer",), n_layer),))
    return Spec(d_model, vocab_size, stack, Embeddings(), tied=tied, head=Head())


def iso(
    n_layer: Sequence[int], *, body: float | None = None, params: float | None = None,
    flops: float | None = None, time: float | None = None, chip: str | None = None,
    base: Spec | None = None, context: int = 64, batch: int = 16,
) -> tuple[Shape, ...]:  # fmt: skip
    """Shapes of different depths that are equal in one quantity.

    For each depth the width runs over multiples of the head width, and the feed-forward width is
    solved so that the quantity is met; of the shapes within 1 % that with F/D nearest to 8/3 is
    taken, else the nearest. What is left is in ``Shape.matched``.

    Args:
        n_layer: Depths, in the order of their weight.
        body: Parameters without embedding and head.
        params: All parameters.
        flops: Training FLOPs a token.
        time: Seconds of a training step, predicted for a chip.
        chip: A name, or a file of ``scantling calibrate``; needed for ``time``.
        base: What the shapes are otherwise like; ``small`` with heads of 8 by default.
        context: Tokens of a sequence, for FLOPs and time.
        batch: Sequences of a step, for time.

    Raises:
        FieldError: If not exactly one quantity is given, or no shape meets it.

    Example:
        >>> for s in iso([2, 8], body=100_000):
        ...     print(s.name, s.matched)
        2x64-f176 {'body': 0.0067}
        8x32-f88 {'body': 0.009}
    """
    asked = {"body": body, "params": params, "flops": flops, "time": time}
    given = {k: v for k, v in asked.items() if v is not None}
    if len(given) != 1:
        raise FieldError("iso", ", ".join(given) or None, "must make one quantity equal",
                         f"give one of {', '.join(asked)}")  # fmt: skip
    ((name, target),) = given.items()
    count = counter(name, context, batch, chip)
    base = small(1, 64, 172, d_head=8) if base is None else base
    return tuple(_nearest(base, depth, name, target, count) for depth in n_layer)


def counter(name: str, context: int, batch: int, chip: str | None = None) -> Count:
    """The exact count of a quantity; of the time the prediction for a chip."""
    if name == "body":
        return lambda spec: float(parameters(spec).body)
    if name == "params":
        return lambda spec: float(parameters(spec).total)
    if name == "flops":
        return lambda spec: float(flops(spec, 1, context).train) / context
    if chip is None:
        raise FieldError("chip", None, "must be given to make times equal",
                         "a file of scantling calibrate")  # fmt: skip
    return _step_time(chip, context, batch)


def _step_time(chip: str, context: int, batch: int) -> Count:
    from scantling.calibrate.predict import recipe_of
    from scantling.costs.train import training_step
    from scantling.hardware import cluster
    from scantling.spec.plan import Plan

    place = cluster(chip, 1, 1)
    plan, recipe = Plan(zero=0, micro_batch=batch), recipe_of("fp32")
    return lambda spec: float(training_step(spec, plan, recipe, context, place).step.value_s)


def _nearest(base: Spec, depth: int, name: str, target: float, count: Count) -> Shape:
    """The shape of a depth that meets a quantity with F/D near 8/3."""
    d_head, found = int(_dimension(base, "d_head")), []
    for d_model in range(d_head, 8192, d_head):
        heads = {"n_head": d_model // d_head, "n_kv_head": d_model // d_head}
        wide = vary(base, n_layer=depth, d_model=d_model, **heads)
        if count(vary(wide, d_ff=STEP)) > 1.2 * target:
            break
        d_ff = _solved(wide, target, count)
        spec = vary(wide, d_ff=d_ff)
        off = count(spec) / target - 1
        ratio = abs(math.log(d_ff / d_model / RATIO))
        if NARROWEST <= d_ff / d_model <= WIDEST:
            found.append((max(abs(off), CLOSE), ratio, off, spec))
    if not found:
        rule = f"is met by no shape of {depth} layers with F/D from {NARROWEST:g} to {WIDEST:g}"
        raise FieldError(name, f"{target:g}", rule, "give more, fewer layers, or smaller heads")
    _, _, off, spec = min(found, key=lambda one: one[:2])
    d_ff = int(_dimension(spec, "d_ff"))
    label = f"{depth}x{int(spec.d_model)}-f{d_ff}"
    return Shape(label, spec, matched={name: round(off, 4)})


def _solved(spec: Spec, target: float, count: Count) -> int:
    """F that brings a quantity nearest to a target: exact where it is linear in F, as counts are.

    Two steps of the secant serve a time, which is nearly so.
    """
    low, high = STEP, 4 * int(spec.d_model)
    for _ in range(2):
        a, b = count(vary(spec, d_ff=low)), count(vary(spec, d_ff=high))
        steps = round((low + (target - a) * (high - low) / (b - a)) / STEP)
        high = max(steps, 2) * STEP
    return high


def _dimension(spec: Spec, name: str) -> int:
    from scantling.spec import read

    return int(read(spec, name))


def total(shapes: Sequence[Shape], name: str, context: int = 64) -> dict[str, float]:
    """A quantity of every shape, by its name.

    Example:
        >>> total(iso([2, 8], body=100_000), "body")
        {'2x64-f176': 100672.0, '8x32-f88': 100896.0}
    """
    return {s.name: counter(name, context, 1)(s.spec) for s in shapes}


def equal_flops(shapes: Sequence[Shape], context: int = 64) -> tuple[Shape, ...]:
    """Shapes whose runs take equal FLOPs: each sees tokens in inverse proportion to its own.

    The first one sees as many as the study says. Runs end with a whole step, which leaves them a
    little apart: a study tells by how much, once it knows its tokens.
    """
    from msgspec.structs import replace

    own = total(shapes, "flops", context)
    first = own[shapes[0].name]
    return tuple(replace(s, share=first / own[s.name]) for s in shapes)
