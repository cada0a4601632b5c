"""The shapes that claims are about: plain transformers, and models by name or by config."""

from __future__ import annotations

from typing import Any

from scantling import catalog
from scantling.arith import Dim
from scantling.spec import (
    Block,
    Branch,
    Dense,
    GroupedAttention,
    Layer,
    Norm,
    Run,
    Spec,
    Stack,
)


def plain(
    layers: Dim, width: Dim, *, vocab: Dim = 1, d_ff: Dim | None = None, gated: bool = False,
    heads: Dim | None = None, kv_heads: Dim | None = None, d_head: Dim | None = None,
    tied: bool = True,
) -> Spec:  # fmt: skip
    """A decoder without biases or positions: 4 D² of attention and 8 D² of feed-forward a layer.

    Args:
        layers: Depth L.
        width: Width D.
        vocab: Vocabulary V.
        d_ff: Width of the feed-forward; 4 D by default.
        gated: Whether it has three matrices.
        heads: Query heads; one of the whole width by default.
        kv_heads: Key-value heads; as many by default.
        d_head: Width of a head; D / H by default.
        tied: Whether the table is the output matrix too.

    Example:
        >>> from scantling.costs.count import parameters
        >>> p = parameters(plain(12, 768))
        >>> p.by_part["attention"] + p.by_part["ffn"] == 12 * 12 * 768**2
        True
    """
    n_head = 1 if heads is None else heads
    attention = GroupedAttention(
        n_head=n_head, n_kv_head=n_head if kv_heads is None else kv_heads,
        d_head=width // n_head if d_head is None else d_head,
    )  # fmt: skip
    feed_forward = Dense(4 * width if d_ff is None else d_ff, gated=gated)
    blocks = tuple(Block((Branch(m),), pre=Norm()) for m in (attention, feed_forward))
    stack = Stack((Layer("layer", blocks),), (Run(("layer",), layers),))
    return Spec(width, vocab, stack, tied=tied)


def named(given: Any) -> Spec:
    """A model of the catalogue by its name, or one by its config."""
    return catalog.load(given).spec


def slot(name: str) -> str:
    """A model's name as that of a number in a record: ``llama_2_7b``."""
    return name.replace("-", "_").replace(".", "_")
