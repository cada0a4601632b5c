"""What stays on a rank from step to step: weights, gradients, optimizer states."""

from __future__ import annotations

import functools
from typing import Any

from msgspec import Struct

from scantling.arith import Num, maximum, product
from scantling.costs.activations import item
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


def turned(placed: Placed, t: Tensor) -> bool:
    """Whether Muon is for a tensor: for matrices of products but the head's; not for tables."""
    matrix = len(t.shape) >= 2 and not t.name.endswith("_bias")
    return matrix and placed.op.kind == "matmul" and not placed.op.name.endswith(".lm_head")


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
        Muon         master + 1 moment for matrices of products but the head's, 2 for all else
        SGD          master + 0: no momentum
    """
    dense, expert = _Count(), _Count()
    for placed in ops:
        for t in placed.op.tensors:
            if not t.alias:
                (expert if t.experts is not None else dense).add(t, placed, recipe)
    held = [dense.bytes(recipe), expert.bytes(recipe)]
    if recipe.adapter is not None:
        n = adapter_parameters(ops, recipe.adapter)
        held[0] = _plus(held[0], _adapter_states(n, recipe))
    return _plus(
        _shared(held[0], plan, recipe, plan.zero_ranks),
        _shared(held[1], plan, recipe, expert_ranks(plan)),
    )


def expert_ranks(plan: Plan) -> int:
    """Ranks among which ZeRO shares an expert's weights.

    The tp × cp × dp ranks of a stage hold ep × expert_tp different parts of the experts.
    """
    parts = plan.ep * expert_tp(plan)
    return max(1, plan.zero_ranks * plan.tp // parts)


class _Count:
    """Elements of one group of tensors, by what is kept of them."""

    def __init__(self) -> None:
        self.frozen: Any = 0
        """Bytes, where weights are frozen."""
        self.all: Any = 0
        self.trained: Any = 0
        self.matrices: Any = 0
        """Trained elements that Muon makes orthogonal."""
        self.factors: Any = 0
        """Elements of the rows and columns that stand for each trained tensor."""

    def add(self, t: Tensor, placed: Placed, recipe: Recipe) -> None:
        """Count one tensor."""
        n: Any = t.size()
        self.all = self.all + n
        if recipe.adapter is not None:
            self.frozen = self.frozen + product(n, frozen_bytes(t, placed, recipe.adapter))
        elif not t.buffer and recipe.optimizer != "none":
            self.trained = self.trained + n
            if recipe.optimizer == "muon" and turned(placed, t):
                self.matrices = self.matrices + n
            if recipe.optimizer == "adafactor":
                self.factors = self.factors + _factors(t)

    def bytes(self, recipe: Recipe) -> States:
        """Bytes of the group before it is shared."""
        if recipe.adapter is not None:
            return States(self.frozen, 0, 0, 0, 0)
        n, size = self.trained, size_of(recipe.moments)
        moments: Any = 0
        if recipe.optimizer == "adamw":
            moments = product(n, 2 * size)
        elif recipe.optimizer == "adamw8bit":
            moments = product(n, 2)
        elif recipe.optimizer == "muon":
            moments = product(n, 2 * size) - product(self.matrices, size)
        elif recipe.optimizer == "adafactor":
            moments = product(self.factors, 4)
        if recipe.master:
            moments = moments + product(n, size_of(recipe.master))
        return States(
            weights=product(self.all, size_of(recipe.weights)),
            gradients=product(n, size_of(recipe.gradients)), optimizer=moments,
            scales=n * 8 / BLOCK_8BIT if recipe.optimizer == "adamw8bit" else 0,
            copy=product(n, size_of(recipe.weights)) if recipe.foreach else 0,
        )  # fmt: skip


def _factors(t: Tensor) -> Any:
    """Elements of a row and a column of each matrix of a tensor; a vector is kept whole."""
    n: Any = t.size()
    if len(t.shape) < 2:
        return n
    sides: Any = t.shape[-2] + t.shape[-1]
    area = product(t.shape[-2], t.shape[-1])  # 0 where a gate is split beyond its width
    return product(n, sides) / maximum(area, 1)


def _adapter_states(n: Any, recipe: Recipe) -> States:
    """What n parameters of an adapter add: they are kept in the dtype of the products."""
    return States(
        weights=n * item(recipe), gradients=n * size_of(recipe.gradients),
        optimizer=product(n, 2 * size_of(recipe.moments)), scales=0,
        copy=n * item(recipe) if recipe.foreach else 0,
    )  # fmt: skip


def _shared(held: States, plan: Plan, recipe: Recipe, ranks: int) -> States:
    """A group's bytes divided among the ranks that share them, without what is on the host."""
    one, two, three = (ranks if plan.zero >= stage else 1 for stage in (1, 2, 3))
    away = recipe.offload_weights and plan.zero >= 3
    return States(
        weights=0 if away else _share(held.weights, three),
        gradients=0 if recipe.offload else _share(held.gradients, two),
        optimizer=0 if recipe.offload else _share(held.optimizer, one),
        scales=_share(held.scales, one), copy=_share(held.copy, one),
    )  # fmt: skip


def whole_bytes(size: float) -> Any:
    """Bytes of an element as an int where it is one, so that counts stay exact."""
    return int(size) if float(size).is_integer() else size


@functools.cache
def size_of(dtype: str) -> Any:
    """Bytes of an element of a dtype, an int where it is one."""
    return whole_bytes(dtype_bytes(dtype))


def _share(value: Any, ranks: int) -> Any:
    return value if ranks == 1 else value / ranks


def _plus(a: States, b: States) -> States:
    return States(*(getattr(a, f) + getattr(b, f) for f in States.__struct_fields__))
