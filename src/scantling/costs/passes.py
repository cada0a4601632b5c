"""The kernels of one micro-batch on one rank: a pass through the layers, forward and backward.

Times are those of kernels alone (``costs/kernels``), kept apart by kind of work: what each kind
takes inside a step is a constant of the chip, applied by ``Work.seconds``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from scantling.arith import Num, product, wide
from scantling.costs.kernels import stream_time, training_time
from scantling.costs.kernels.gemm import gemm_s
from scantling.costs.kernels.misaligned import misaligned
from scantling.costs.ranks import Placed
from scantling.costs.remember import remembered
from scantling.costs.time import LIGHT, attention_shape, row_widths
from scantling.hardware import Chip
from scantling.hardware.constants import StepConstants
from scantling.hardware.constants.elementwise import Light
from scantling.hardware.curve import interpolate
from scantling.ops import Op
from scantling.spec import LatentAttention, Rope, Spec, Workload
from scantling.spec.plan import Plan, Recipe
from scantling.spec.workload import dtype_bytes

NARROW = {"fp8", "fp8-block", "mxfp8", "nvfp4"}
"""Recipes whose products in the layers are narrower than 16 bits."""
NARROW_PARTS = {"attention", "mixer", "ffn", "shared_experts", "experts"}
"""Parts those products are in: attention cores, router and head stay in 16 bits."""

SORTED_BYTES = 4
"""Bytes that sorting rows of 16-bit elements by expert moves: read 2, write 2."""


class Work:
    """Seconds of kernels by kind of work, and what is counted.

    Kinds: ``matmul`` and ``experts`` are products in 16 bits, plain and grouped, ``narrow`` and
    ``experts_narrow`` those in the recipe's narrower dtype; ``attention``; ``scan``; ``light`` is
    work that moves bytes, ``loss`` that over the vocabulary; ``kernels`` and ``waits`` count
    launches, and layers of experts for whose sizes the host waits: what those take runs beside
    the kernels (``train.launching``).
    """

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

    def taken(self, c: StepConstants, recipe: Recipe) -> dict[str, Num]:
        """What each kind takes inside a step: its time alone, times its factor."""
        narrow = c.matmul_at(recipe.dtype)
        experts = c.experts_fused if recipe.sized_experts else c.experts
        light = c.fused if recipe.fused else c.eager
        factors = {
            "matmul": c.matmul, "narrow": narrow, "experts": experts * c.matmul,
            "experts_narrow": experts * narrow,
            "attention": c.attention_at(recipe.attention), "scan": c.scan,
            "light": light, "loss": c.loss * light,
            "cold": c.cold, "waits": 0.0,
            "kernels": c.gap_fused_s if recipe.fused else c.gap_eager_s,
        }  # fmt: skip
        return {kind: factors[kind] * value for kind, value in self.of.items()}

    def seconds(self, c: StepConstants, recipe: Recipe) -> Num:
        """What all of it takes inside a step."""
        total: Num = 0.0
        for value in self.taken(c, recipe).values():
            total = total + value
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


@remembered(
    lambda placed, plan, recipe, chip, *, turned=False: (
        id(placed), plan.tp, plan.cp, plan.micro_batch, recipe, id(chip), turned
    )
)  # fmt: skip
def one_pass(
    placed: Iterable[Placed], plan: Plan, recipe: Recipe, chip: Chip, *, turned: bool = False
) -> Pass:
    """Kernels of one micro-batch.

    Args:
        placed: The forward operators of one micro-batch on one rank.
        plan: How they are split, which tells the sequences of a micro-batch.
        recipe: In what numbers, and by what kernels.
        chip: Where.
        turned: Whether queries and keys are turned by their positions.
    """
    forward, backward, core, products, head, embedding = (Work() for _ in range(6))
    work = Workload("train", plan.micro_batch, dtype=wide_dtype(recipe))
    gated = False
    for p in placed:
        op = p.op
        if op.kind == "matmul":
            gated = sum(len(t.shape) > 1 for t in op.tensors) > 1
        end = head if op.part == "lm_head" else embedding if op.kind == "lookup" else None
        for kind, once, again in _kernels(op, work, recipe, chip, turned=turned, gated=gated):
            (forward if end is None else end).add(kind, once)
            (backward if end is None else end).add(kind, again)
            if op.kind == "attention":
                core.add(kind, once)
            elif op.kind == "matmul" and end is None:
                products.add(kind, once)
    return Pass(forward, backward, core, products, head, embedding)


def _kernels(
    op: Op, work: Workload, recipe: Recipe, chip: Chip, *, turned: bool, gated: bool
) -> Iterator[tuple[str, Num, Num]]:
    """What one operator runs: kind of work, forward, backward."""
    if op.kind == "attention":
        yield from _attention(op, work, recipe, chip, turned=turned)
    elif op.kind == "scan":
        moved = product(op.elements, op.m, op.repeat) * dtype_bytes(work.dtype)
        rate = "fp32" if chip.rates.fp32 is not None else work.dtype
        once = stream_time(chip, rate, op.flops("unpadded"), moved, 0).value_s
        yield "scan", once, 2 * once
        yield "kernels", wide(op.times), 2 * wide(op.times)
    elif op.part == "experts" and op.kind == "matmul":
        yield from _grouped(op, work, recipe, chip)
    elif op.kind == "matmul":
        yield from _product(op, work, recipe, chip)
    else:
        yield from _light(op, work, chip, gated=gated)


def _product(op: Op, work: Workload, recipe: Recipe, chip: Chip) -> Iterator[tuple[str, Num, Num]]:
    """A product y = x W, with x (m × k) and W (k × n), and the two of its backward pass.

    dx = dy Wᵀ is (m × n) by (n × k), dW = xᵀ dy is (k × m) by (m × n).
    """
    narrow = recipe.dtype in NARROW and op.part in NARROW_PARTS
    dtype = recipe.dtype if narrow else work.dtype
    launched = wide(op.times)
    groups = op.repeat / op.times
    factor = misaligned(chip, dtype, *{id(w): w for w in row_widths(op)}.values()).value
    factor = factor * launched
    forward, inputs, weights = (
        factor * gemm_s(chip, dtype, m, n, k, groups)[1]
        for m, n, k in ((op.m, op.n, op.k), (op.m, op.k, op.n), (op.k, op.n, op.m))
    )
    if op.part == "lm_head":
        moved = product(op.m, op.n) * loss_bytes(recipe)
        loss = memory_s(chip, moved, pieces=loss_pieces(recipe))
        yield "loss", loss / 2, loss / 2
    cold = memory_s(chip, product(op.m, op.repeat, op.n + op.k) * dtype_bytes(work.dtype))
    yield "cold", cold, 2 * cold
    if recipe.adapter is not None:  # frozen: no gradient of the weights, and that of adapters is
        weights = 0.0  # a rank in width of it
    yield "narrow" if narrow else "matmul", forward, inputs + weights
    yield "kernels", launched, 2 * launched


def _grouped(op: Op, work: Workload, recipe: Recipe, chip: Chip) -> Iterator[tuple[str, Num, Num]]:
    """Routed experts: as many products as a rank holds experts, in one kernel.

    A token's rows are spread evenly over them. They are sorted by expert before the first product
    and summed after the last. The grouped kernels of inference engines, which ``grouped_time``
    knows, are others.
    """
    narrow = recipe.dtype in NARROW
    dtype = recipe.dtype if narrow else work.dtype
    launched = wide(op.times)
    held: Any = next(t.experts for t in op.tensors if t.experts is not None)
    m = op.m * (op.repeat / op.times) / held
    forward, inputs, weights = (
        launched * gemm_s(chip, dtype, rows, n, k, held)[1]
        for rows, n, k in ((m, op.n, op.k), (m, op.k, op.n), (op.k, op.n, m))
    )
    if recipe.adapter is not None:
        weights = 0.0
    width: Any = op.k if op.name.endswith("experts_up") else op.n
    if not recipe.sized_experts:
        sorted_s = memory_s(chip, product(op.m, op.repeat, width, SORTED_BYTES))
        yield "light", sorted_s, sorted_s
        yield "waits", launched / 2, launched
    yield "experts_narrow" if narrow else "experts", forward, inputs + weights
    yield "kernels", launched, 2 * launched


def memory_s(
    chip: Chip, moved: Num, kind: Light = "copy", pieces: Num | None = None
) -> Num:  # fmt: skip
    """Seconds to pass so many bytes through memory, at what work of a kind reaches of it.

    ``pieces`` are the equal parts they are moved in, where their size counts.
    """
    e = chip.constants.elementwise
    slow = 1.0 if pieces is None else e.slowed(moved / pieces)
    return moved * slow / (chip.memory_bytes_per_s * e.at(kind)[0])


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


def loss_pieces(recipe: Recipe) -> float:
    """Kernels that the loss is made of, each of which reads and writes the logits."""
    return loss_bytes(recipe) / (2 * dtype_bytes(recipe.logits))


def _attention(
    op: Op, work: Workload, recipe: Recipe, chip: Chip, *, turned: bool
) -> Iterator[tuple[str, Num, Num]]:
    """The core, by the generation of its kernel; queries and keys are turned before it."""
    shape = attention_shape(op, work)
    launched = wide(op.times)
    if turned:  # each is read and written
        heads: Any = shape.n_head + shape.n_kv_head
        each = 2 * dtype_bytes(work.dtype)
        moved = product(op.m, work.batch, heads, shape.d_key, op.times) * each
        turning = memory_s(chip, moved, "rotary", launched)
        yield "light", turning, turning
        yield "kernels", launched, launched
    once, again = (
        training_time(chip, work.dtype, shape, recipe.attention, backward=back,
                      launches=launched).value_s
        for back in (False, True)
    )  # fmt: skip
    if recipe.attention == "flash":
        share = interpolate(shape.width, chip.constants.step.flash_width)
        once, again = share * once, share * again
    few = 1 if recipe.attention != "unfused" else 4
    yield "attention", once, again
    yield "kernels", few * launched, few * launched


def _light(op: Op, work: Workload, chip: Chip, *, gated: bool) -> Iterator[tuple[str, Num, Num]]:
    """Work that moves bytes: forward once, backward twice (the gradient comes in as well).

    A residual reads two streams and writes one; so does an activation with a gate.
    """
    two = op.name.endswith(".residual") or (gated and op.name.endswith("activation"))
    streams = 1.5 if two else 1.0
    moved = product(op.elements, op.m, op.repeat) * (streams * dtype_bytes(work.dtype))
    launched = wide(op.times)
    once = memory_s(chip, moved, LIGHT.get(op.kind, "copy"), launched)
    yield "light", once, 2 * once
    yield "kernels", launched, launched


def rotary(spec: Spec) -> bool:
    """Whether any attention turns queries and keys by their positions."""
    modules = (
        branch.module
        for kind in spec.decoder.kinds for block in kind.blocks for branch in block.branches
    )  # fmt: skip
    return any(isinstance(getattr(m, "position", None), Rope) or isinstance(m, LatentAttention)
               for m in modules)  # fmt: skip


__all__ = ["NARROW", "Pass", "Work", "memory_s", "one_pass", "rotary", "wide_dtype"]
