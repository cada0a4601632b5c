"""Attention with fewer heads: what is left of its spec and of its weights.

Query head i reads key-value head ⌊i K / H⌋. When heads go, a key-value head that nobody reads goes
too; where the others are then read unequally, they are repeated as often as it takes to be read
equally again. With c_j readers left of head j and g the greatest common divisor of all c_j > 0,
head j is kept c_j / g times: the fewest with which every query head still reads what it read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor

from scantling.errors import FieldError
from scantling.lab.anatomy import HeldSide, Tensors
from scantling.spec import Alibi, Disentangled, GroupedAttention, LatentAttention, RelativeBias


def readers(n_head: int, n_kv_head: int, kept: Sequence[int]) -> list[int]:
    """The key-value heads to keep, in order, some of them several times.

    Example:
        >>> readers(8, 4, [0, 1, 4, 5]), readers(8, 4, [0, 1, 4]), readers(4, 2, [0, 3])
        ([0, 2], [0, 0, 2], [0, 1])
    """
    counts = [0] * n_kv_head
    for head in kept:
        counts[head * n_kv_head // n_head] += 1
    common = math.gcd(*counts)
    return [j for j, c in enumerate(counts) for _ in range(c // common)]


def rows(tensor: Tensor, heads: Sequence[int], width: int, axis: int = 0) -> Tensor:
    """What belongs to some heads, of an axis on which each has ``width`` numbers.

    Example:
        >>> rows(torch.arange(6), [0, 2], 2).tolist()
        [0, 1, 4, 5]
    """
    index = torch.tensor([h * width + i for h in heads for i in range(width)], dtype=torch.long)
    return tensor.index_select(axis, index.to(tensor.device))


def keep_heads(side: HeldSide, kept: Sequence[int], *, read_later: bool) -> None:
    """Cut an attention down to some of its heads; what they make together stays the same.

    Args:
        side: The attention.
        kept: Numbers of heads, at least one, in order.
        read_later: Whether later layers read its keys, which must then stay as they are.

    Raises:
        FieldError: If heads of this attention cannot be had one by one.
    """
    module = side.branch.module
    if isinstance(module, LatentAttention):
        _latent(side, module, kept)
    else:
        assert isinstance(module, GroupedAttention)
        _grouped(side, module, kept, read_later=read_later)


def _one_by_one(a: GroupedAttention) -> None:
    """Refuse attention in which a head depends on how many others there are."""
    wide = a.qk_norm is not None and a.qk_norm.scope == "width"
    reasons = {
        "ALiBi's slopes follow from the number of heads": isinstance(a.position, Alibi),
        "relative positions of a whole stack have a bias for each head":
            isinstance(a.position, RelativeBias) and not a.position.each_layer,
        "queries are normed over all heads together": wide,
        "outputs are normed over all heads together": a.out_norm is not None,
        "low-rank additions have rows for each head": a.adapter_rank is not None,
        "a selector chooses for groups of heads": a.selector is not None,
        "disentangled positions have projections for each head":
            isinstance(a.position, Disentangled),
    }  # fmt: skip
    for reason, holds in reasons.items():
        if holds:
            raise FieldError("mask_heads", None, "cannot be sliced out of this attention: "
                             + reason, "mask them only")  # fmt: skip


def _grouped(side: HeldSide, a: GroupedAttention, kept: Sequence[int], *, read_later: bool) -> None:
    _one_by_one(a)
    h, k, width = int(a.n_head), int(a.n_kv_head), int(a.d_head)
    value = int(a.d_head if a.d_value is None else a.d_value)
    pairs = readers(h, k, kept)
    if (read_later or a.shares_kv) and pairs != list(range(k)):
        raise FieldError("mask_heads", None, "would change keys that other layers read",
                         f"keep equally many heads of each of the {k} key-value heads")  # fmt: skip
    gate = value if a.gate == "element" else 1
    each = a.qk_norm is not None and a.qk_norm.scope == "each_head"
    found: Tensors = {}
    for name, tensor in side.tensors.items():
        leaf = name.removesuffix("_bias")
        if leaf in {"q", "gate"}:
            found[name] = rows(tensor, kept, width if leaf == "q" else gate)
        elif leaf in {"k", "v"}:
            found[name] = rows(tensor, pairs, width if leaf == "k" else value)
        elif name == "o":
            found[name] = rows(tensor, kept, value, 1)
        elif name == "sinks":
            found[name] = rows(tensor, kept, 1)
        elif each and name.startswith(("q_norm", "k_norm")):
            found[name] = rows(tensor.reshape(-1), kept if name[0] == "q" else pairs, width)
        elif name == "layer_bias":
            found[name] = rows(tensor, kept, 1, 1)
        else:
            found[name] = tensor
    fewer: Any = replace(a, n_head=len(kept), n_kv_head=len(pairs))
    side.become(fewer, found, ("heads", tuple(kept)))


def _latent(side: HeldSide, a: LatentAttention, kept: Sequence[int]) -> None:
    query, pair = int(a.d_nope + a.d_rope), int(a.d_nope + a.d_value)
    widths = {"q": query, "q_up": query, "kv_up": pair, "gate": 1}
    found: Tensors = {}
    for name, tensor in side.tensors.items():
        if name == "o":
            found[name] = rows(tensor, kept, int(a.d_value), 1)
        else:
            found[name] = rows(tensor, kept, widths[name]) if name in widths else tensor
    side.become(replace(a, n_head=len(kept)), found, ("heads", tuple(kept)))
