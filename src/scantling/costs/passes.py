"""The kernels of one micro-batch on one rank: a pass through the layers, forward and backward.

Times are those of kernels alone (``costs/kernels``), kept apart by kind of work: what each kind
takes inside a step is a constant of the chip, applied by ``Work.seconds``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from scantling.arith import Num, product, wide
from scantling.costs.kernels import attention_time, elementwise_time, gemm_time
from scantling.costs.ranks import Placed
from scantling.costs.remember import remembered
from scantling.hardware import Chip
from scantling.hardware.constants import StepConstants
from scantling.hardware.curve import interpolate
from scantling.ops import Op
from scantling.spec.plan import Recipe
from scantling.spec.workload import dtype_bytes, plain_dtype

NARROW = {"fp8", "fp8-block", "mxfp8", "nvfp4"}
"""Recipes whose products in the layers are narrower than 16 bits."""
NARROW_PARTS = {"attention", "mixer", "ffn", "shared_experts", "experts"}
"""Parts those products are in: attention cores, router and head stay in 16 bits."""
QUANTISED_BYTES = 4
"""Bytes that making a narrow copy of a 16-bit element moves: read 2, write 1, and 1 transposed."""
SCORE_BYTES = 11
"""Bytes an unfused attention moves for each pair of query and key and each head, forward: scores
written (2), read and written by the softmax (4), read and written by dropout (4) with its mask
(1); the two products read and write them besides. Backward as much again and half."""

KINDS = ("matmul", "narrow", "experts", "experts_narrow", "attention", "scan", "light", "kernels")
"""Kinds of work: products in 16 bits, in the recipe's narrower dtype, grouped products in both,
attention cores, scans, work that moves bytes; and how many kernels are launched."""


class Work:
    """Seconds of kernels by kind of work, and the number of kernels."""

    __slots__ = ("of",)

    def __init__(self, of: dict[str, Num] | None = None) -> None:
        self.of: dict[str, Num] = of or {}

    def add(self, kind: str, value: Num) -> None:
        """Add to a kind."""
        self.of[kind] = self.of[kind] + value if kind in self.of else value

    def __add__(self, other: Work) -> Work:
        total = Work(dict(self.of))
        for kind, value in other.of.items():
            total.add(kind, value)
        return total

    def seconds(self, c: StepConstants, recipe: Recipe) -> Num:
        """What it takes inside a step: each kind times its factor, and the gaps between kernels."""
        narrow = c.matmul_at(recipe.dtype)
        factors = {
            "matmul": c.matmul, "narrow": narrow, "experts": c.experts * c.matmul,
            "experts_narrow": c.experts * narrow,
            "attention": c.attention_at(recipe.attention), "scan": c.scan,
            "light": c.fused if recipe.fused else c.eager,
            "kernels": c.gap_fused_s if recipe.fused else c.gap_eager_s,
        }  # fmt: skip
        total: Num = 0.0
        for kind, value in self.of.items():
            total = total + factors[kind] * value
        return total


class Pass(Struct, frozen=True):
    """One micro-batch on one rank, through all layers and through the two ends of the model."""

    forward: Work
    backward: Work
    core: Work
    """The attention cores of the forward pass: what selective recomputation runs again."""
    products: Work
    """The products of the forward pass through the layers."""
    head: Work
    """Output product and loss, forward and backward."""
    embedding: Work


@remembered(lambda placed, recipe, chip: (id(placed), recipe, id(chip)))
def one_pass(placed: Iterable[Placed], recipe: Recipe, chip: Chip) -> Pass:
    """Kernels of one micro-batch.

    Args:
        placed: The forward operators of one micro-batch on one rank.
        recipe: In what numbers, and by what kernels.
        chip: Where.
    """
    forward, backward, core, products, head, embedding = (Work() for _ in range(6))
    for p in placed:
        op = p.op
        end = head if op.part == "lm_head" else embedding if op.kind == "lookup" else None
        for kind, once, again in _kernels(op, recipe, chip):
            (forward if end is None else end).add(kind, once)
            (backward if end is None else end).add(kind, again)
            if op.kind == "attention":
                core.add(kind, once)
            elif op.kind == "matmul" and end is None:
                products.add(kind, once)
    return Pass(forward, backward, core, products, head, embedding)


def _kernels(op: Op, recipe: Recipe, chip: Chip) -> Iterator[tuple[str, Num, Num]]:
    """What one operator runs: kind of work, forward, backward."""
    if op.kind == "attention":
        yield from _attention(op, recipe, chip)
    elif op.kind == "scan":
        moved = product(op.elements, op.m, op.repeat) * dtype_bytes(wide_dtype(recipe))
        once = gemm_time(chip, wide_dtype(recipe), op.flops("unpadded"), moved, 0).value_s
        yield "scan", once, 2 * once
        yield "kernels", wide(op.times), 2 * wide(op.times)
    elif op.kind == "matmul":
        yield from _product(op, recipe, chip)
    else:
        yield from _light(op, chip)


def _product(op: Op, recipe: Recipe, chip: Chip) -> Iterator[tuple[str, Num, Num]]:
    """y = x W, then dx = dy Wᵀ and dW = xᵀ dy: three products of one size.

    Routed experts are one grouped product: rows are spread evenly over the experts of the rank.
    """
    narrow = recipe.dtype in NARROW and op.part in NARROW_PARTS
    dtype = recipe.dtype.removesuffix("-block") if narrow else wide_dtype(recipe)
    launched = wide(op.times)
    weights: Any = 0
    for t in op.tensors:
        held: Any = product(t.each(), op.times)
        weights = weights + (held if t.experts is None else held * t.experts)
    rows: Any = product(op.m, op.repeat)
    moved = (weights + rows * (op.n + op.k)) * dtype_bytes(plain_dtype(dtype))
    once = gemm_time(chip, plain_dtype(dtype), op.flops(), moved, launched).value_s
    kind = "experts" if op.part == "experts" else "matmul"
    if narrow:
        kind = "narrow" if kind == "matmul" else "experts_narrow"
        copied = rows * (op.n + 2 * op.k) + weights
        light = elementwise_time(chip, copied * (QUANTISED_BYTES / 3), 0).value_s
        yield "light", light, 2 * light
    if op.part == "lm_head":
        light = elementwise_time(chip, rows * op.n * loss_bytes(recipe), 0).value_s
        yield "light", light / 2, light / 2
    yield kind, once, 2 * once
    yield "kernels", launched, 2 * launched


def wide_dtype(recipe: Recipe) -> str:
    """The dtype of what stays in 16 bits."""
    return "bf16" if recipe.dtype in NARROW else recipe.dtype


def loss_bytes(recipe: Recipe) -> float:
    """Bytes the softmax over the vocabulary and its gradient move for each logit.

    Written by the product (2 bytes), cast to the loss's dtype of b bytes (2 + b), read twice by
    the softmax for maximum and sum, read and written by its gradient (4 b), cast back (b + 2):
    6 + 6 b. One kernel for the loss and its gradient passes twice and once more for the
    gradient's product: 2 + 2 × 2 + 2. Chunks stay in the cache: 2 + 2 + 2.
    """
    if recipe.chunked_loss:
        return 6.0
    return 8.0 if recipe.fused_loss else 6 + 6 * dtype_bytes(recipe.logits)


def _attention(op: Op, recipe: Recipe, chip: Chip) -> Iterator[tuple[str, Num, Num]]:
    """The core. Its backward has four products where forward has two, and runs one of these again.

    Unfused it is made of products over all pairs and of passes over the scores.
    """
    dtype = wide_dtype(recipe)
    moved = product(op.elements, op.m, op.repeat) * dtype_bytes(dtype)
    launched = wide(op.times)
    if recipe.attention == "unfused":
        pairs = product(op.m, op.n, op.repeat)
        once = gemm_time(chip, dtype, op.flops("full"), moved + 4 * pairs, 0).value_s
        light = elementwise_time(chip, pairs * SCORE_BYTES, 0).value_s
        yield "matmul", once, 2 * once
        yield "light", light, 1.5 * light
        yield "kernels", 4 * launched, 6 * launched
        return
    width: Any = op.k // 2
    once = attention_time(chip, dtype, op.flops("causal"), moved, width, launched).value_s
    if recipe.attention == "flash":  # the first one lost more on wide heads
        once = once * interpolate(width, chip.constants.step.flash_width)
    yield "attention", once, 2.5 * once
    yield "kernels", launched, launched


def _light(op: Op, chip: Chip) -> Iterator[tuple[str, Num, Num]]:
    """Work that moves bytes: forward once, backward twice (the gradient comes in as well)."""
    once = elementwise_time(chip, product(op.elements, op.m, op.repeat) * 2, 0).value_s
    launched = wide(op.times)
    yield "light", once, 2 * once
    yield "kernels", launched, launched


__all__ = ["NARROW", "Pass", "Work", "one_pass", "wide_dtype"]
