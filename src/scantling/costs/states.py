"""What stays on a rank from step to step: weights, gradients, optimizer states."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from scantling.arith import Num, product
from scantling.costs.adapters import adapter_parameters, frozen_bytes
from scantling.costs.ranks import Placed, expert_tp
from scantling.costs.remember import remembered
from scantling.ops import Tensor
from scantling.spec import dtype_bytes
from scantling.spec.plan import Plan, Recipe


class States(Struct, frozen=True):
    """Bytes of what stays from step to step on one rank."""

    weights: Num
    gradients: Num
    optimizer: Num
    scales: Num
    """Scales of an optimizer's 8-bit moments."""
    copy: Num
    """The optimizer's copy of the weights it works on, at the step."""

    @property
    def total(self) -> Num:
        """Weights, gradients and optimizer."""
        return self.weights + self.gradients + self.optimizer

    @property
    def at_step(self) -> Num:
        """What is held while the optimizer works."""
        return self.total + self.copy


BLOCK_8BIT = 256
"""Elements of an 8-bit moment that share an fp32 scale."""


@remembered(
    lambda ops, plan, recipe: (
        id(ops), plan.zero, plan.zero_ranks, plan.tp, plan.ep, plan.expert_tp, recipe,
    )
)  # fmt: skip
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
        self.weights = self.weights + product(n, whole_bytes(dtype_bytes(recipe.weights)))
        if t.buffer:
            return
        self.gradients = self.gradients + product(n, whole_bytes(dtype_bytes(recipe.gradients)))
        self.copied = self.copied + product(n, whole_bytes(dtype_bytes(recipe.weights)))
        if recipe.optimizer == "none":
            return
        if recipe.master:
            self.moments = self.moments + product(n, whole_bytes(dtype_bytes(recipe.master)))
        self.moments = self.moments + _moments(t, placed, recipe)
        if recipe.optimizer == "adamw8bit":
            self.scales = self.scales + product(n, 8) / BLOCK_8BIT

    def shared(self, plan: Plan, recipe: Recipe, ranks: int) -> States:
        offload, away = recipe.offload, recipe.offload_weights and plan.zero >= 3
        return States(
            weights=0 if away else _share(self.weights, ranks if plan.zero >= 3 else 1),
            gradients=0 if offload else _share(self.gradients, ranks if plan.zero >= 2 else 1),
            optimizer=0 if offload else _share(self.moments, ranks if plan.zero >= 1 else 1),
            scales=_share(self.scales, ranks if plan.zero >= 1 else 1),
            copy=_share(self.copied, ranks if plan.zero >= 1 else 1) if recipe.foreach else 0,
        )


def _moments(t: Tensor, placed: Placed, recipe: Recipe) -> Any:
    """Bytes of the optimizer's own statistics of one tensor."""
    n: Any = t.size()
    size = whole_bytes(dtype_bytes(recipe.moments))
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


def whole_bytes(size: float) -> Any:
    """Bytes of an element as an int where it is one, so that counts stay exact."""
    return int(size) if float(size).is_integer() else size


def _share(value: Any, ranks: int) -> Any:
    return value if ranks == 1 else value / ranks


def _plus(a: States, b: States) -> States:
    return States(*(getattr(a, f) + getattr(b, f) for f in States.__struct_fields__))
