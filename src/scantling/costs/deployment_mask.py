"""Which members of a column of specs can be split as asked: the rules of a deployment as a mask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from scantling.costs.parallel import DIVIDED
from scantling.costs.quantize import Scheme, scheme
from scantling.costs.ranks import Placed, expert_tp, placed_operators
from scantling.costs.weights import ALONE, is_packed
from scantling.ops import Tensor
from scantling.spec import Experts, GroupedAttention, Mamba2, Spec
from scantling.spec.plan import Plan
from scantling.spec.vary import nodes


def splits(spec: Spec, quant: Scheme | str = "bf16", plan: Plan = ALONE) -> Any:
    """Whether heads, columns, experts, groups and blocks stay whole on each rank.

    The rules of ``deployment``, without words, on numbers and on columns alike; what depends on
    the chip and how layers fall on stages is not asked.

    Args:
        spec: A spec, or a column spec.
        quant: A scheme or its name.
        plan: How it is split; ``tp``, ``ep`` and ``expert_tp`` count.

    Returns:
        A bool, or a mask of the column's members.

    Example:
        >>> import numpy as np
        >>> from scantling import catalog
        >>> from scantling.spec import vary
        >>> column = vary(catalog.model("qwen2.5-72b"), d_ff=np.array([29568, 29696]))
        >>> splits(column, "gptq-int4", Plan(tp=8)).tolist()
        [False, True]
    """
    one = scheme(quant) if isinstance(quant, str) else quant
    found: Any = True
    for held in (*_divided(spec, plan), *_aligned(spec, one, plan)):
        found = found & held
    return found


def _divided(spec: Spec, plan: Plan) -> Iterator[Any]:
    tp, etp = plan.tp, expert_tp(plan)
    for _, node in nodes(spec):
        for field, _ in DIVIDED.get(type(node), ()):
            yield getattr(node, field) % tp == 0
        if isinstance(node, GroupedAttention):
            yield node.n_head % tp == 0
            yield (node.n_kv_head % tp == 0) | (tp % node.n_kv_head == 0)
        elif isinstance(node, Mamba2):
            yield (node.n_group % tp == 0) | (tp % node.n_group == 0)
        elif isinstance(node, Experts):
            yield (node.n_expert % plan.ep == 0) & (node.d_expert % etp == 0)
            if node.shared is not None:
                yield node.shared.d_shared % tp == 0


def _aligned(spec: Spec, one: Scheme, plan: Plan) -> Iterator[Any]:
    if not one.quantised:
        return
    rank = {t.name: t for p in placed_operators(spec, replace(plan, pp=1), 1) for t in p.op.tensors}
    for placed in placed_operators(spec, Plan(), 1):
        packed = [t for t in placed.op.tensors if is_packed(one, placed, t)]
        for t in packed:
            merged = len(packed) > 1 and t.part != "mixer"
            yield from _sides(one, placed, t, rank[t.name], plan, merged=merged)


def _sides(
    one: Scheme, placed: Placed, t: Tensor, own: Tensor, plan: Plan, *, merged: bool
) -> Iterator[Any]:
    degree = expert_tp(plan) if t.experts is not None else plan.tp
    split_in = placed.split == "in" and degree > 1
    if one.in_unit > 1 and not one.dealt and (split_in or one.out_unit == 1):
        yield t.shape[1] % (one.in_unit * (degree if split_in else 1)) == 0
    unit = max(one.out_unit, one.out_multiple)
    cut = placed.split == "out" and degree > 1
    if unit > 1 and placed.split != "whole" and (cut or merged or one.out_multiple > 1):
        yield own.shape[0] % unit == 0
