"""What the costs say of each case: by the same operators and folds as for every chip."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from scantling.calibrate.cases import Case, config_of, spec_of
from scantling.catalog import load
from scantling.costs.kernels import Time
from scantling.costs.passes import loss_bytes, loss_pieces, memory_s
from scantling.costs.time import total_time
from scantling.costs.train import Step, assemble, terms, training_step
from scantling.hardware import Chip, cluster
from scantling.ops import Op, operators
from scantling.spec import Workload, dtype_bytes
from scantling.spec.plan import Attention, Plan, Recipe
from scantling.spec.workload import Phase

OPTIMIZER_PASSES = 7
"""AdamW without a master copy, as the fold counts it: the gradient is read twice, the weight
written, two moments read and written."""


RECIPE_ATTENTION: Attention = "flash2"
"""The generation that torch's own fused attention is taken for."""


def recipe_of(dtype: str) -> Recipe:
    """The recipe of a plain eager loop that keeps everything in one dtype.

    Example:
        >>> recipe_of("fp32").master is None
        True
    """
    return Recipe(
        dtype=dtype, weights=dtype, gradients=dtype, master=None, moments=dtype, reduce=dtype,
        attention=RECIPE_ATTENTION, fused=False, logits=dtype,
    )  # fmt: skip


def predicted(chip: Chip, cases: Iterable[Case]) -> list[float]:
    """Seconds of each case on a chip: the fitted value."""
    return [_seconds(chip, case) for case in cases]


def _seconds(chip: Chip, case: Case) -> float:
    if case.kind == "step":
        return float(step_of(chip, case).step.value_s)
    return float(_time(chip, case).value_s)


def _time(chip: Chip, case: Case) -> Time:
    """The time of a case that is no whole step."""
    ops, work = operators_of(case)
    return total_time(ops, work, chip, case.form or RECIPE_ATTENTION)


def interval(chip: Chip, case: Case) -> tuple[float, float]:
    """The 90 % interval of a case, in seconds."""
    if case.kind == "step":
        step = step_of(chip, case).step
        return float(step.low_s), float(step.high_s)
    time = _time(chip, case)
    return float(time.low_s), float(time.high_s)


def step_of(chip: Chip, case: Case) -> Step:
    """A training step of a whole-model case."""
    place = cluster(chip, 1, 1)
    return training_step(spec_of(case), plan_of(case), recipe_of(case.dtype), case.shape[-1], place)


def plan_of(case: Case) -> Plan:
    """One device, one micro-batch."""
    return Plan(zero=0, micro_batch=case.shape[-2])


class Steps:
    """Steps of whole models whose kernels are timed once: only step constants may change then.

    Args:
        chip: With the constants of its kernels.
        cases: The models.
    """

    def __init__(self, chip: Chip, cases: Iterable[Case]) -> None:
        place = cluster(chip, 1, 1)
        self.terms = {
            c: terms(spec_of(c), plan_of(c), recipe_of(c.dtype), c.shape[-1], place) for c in cases
        }

    def __call__(self, chip: Chip, cases: Iterable[Case]) -> list[float]:
        """Seconds of each with the step constants of a chip."""
        c = chip.constants.step
        return [
            float(assemble(self.terms[one], plan_of(one), recipe_of(one.dtype), c).step_s)
            for one in cases
        ]


def operators_of(case: Case) -> tuple[tuple[Op, ...], Workload]:
    """The operators of a case that is no whole step, and the workload they are part of.

    Example:
        >>> ops, work = operators_of(Case(kind="gemm", shape=(8, 16, 32)))
        >>> ops[0].flops(), work.dtype
        (8192, 'fp32')
    """
    if case.kind == "forward":
        batch, tokens = case.shape[-2:]
        work = Workload("prefill", batch, tokens, dtype=case.dtype)
        return operators(spec_of(case), work), work
    if case.kind in {"attention", "trained"}:
        return _attention(case)
    work = Workload("prefill", dtype=case.dtype)
    if case.kind == "gemm":
        m, n, k = case.shape
        return (Op(name="gemm", kind="matmul", part="ffn", m=m, n=n, k=k, elements=n + k),), work
    rows, width = case.shape
    kind: Any = "norm" if case.kind == "norm" else "elementwise"
    op = Op(name=case.kind, kind=kind, part="other", m=rows, n=width, k=1, elements=2 * width)
    return (op,), work


def _attention(case: Case) -> tuple[tuple[Op, ...], Workload]:
    """The core of a model with such heads."""
    batch, heads, kv_heads, tokens, d_head = case.shape
    config = config_of(1, heads * d_head, heads, kv_heads, d_head, 64, 64, tokens, gated=True)
    phase: Phase = "train" if case.kind == "trained" else "prefill"
    work = Workload(phase, batch, tokens, dtype=case.dtype)
    ops = operators(load(config).spec, work)
    core = tuple(op for op in ops if op.kind == "attention" and op.backward == case.backward)
    return core, work


def alone(chip: Chip, case: Case) -> float:
    """What the fold takes the bytes of an optimizer step or of a loss for, before any factor."""
    recipe = recipe_of(case.dtype)
    if case.kind == "loss":
        rows, width = case.shape
        return float(memory_s(chip, rows * width * loss_bytes(recipe), pieces=loss_pieces(recipe)))
    total, tensors = case.shape
    size = dtype_bytes(recipe.weights)
    slow = chip.constants.elementwise.slowed(2 * size * total // tensors)
    return float(memory_s(chip, total * OPTIMIZER_PASSES * size) * slow)
