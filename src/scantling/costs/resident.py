"""What one chip holds while it generates: weights as they are stored, caches, scratch."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from scantling.arith import Dim, Num, maximum, product
from scantling.costs.adapters import frozen_bytes, unpacked_bytes
from scantling.costs.buffers import constants
from scantling.costs.cache import kv_cache
from scantling.costs.ranks import placed_operators
from scantling.spec import Spec, vary
from scantling.spec.plan import Adapter, Plan


class ResidentMemory(Struct, frozen=True):
    """Bytes on one chip at the peak of a generation."""

    total: Num
    low: Num
    high: Num
    weights: Num
    cache: Num
    scratch: Num
    """Unpacked copies of the largest packed matrix, and the widest activation of the prompt."""


def resident_memory(
    spec: Spec, weights: str = "bf16", batch: int = 1, context: int = 1, prompt: int = 1,
    cache_heads: Dim | None = None,
) -> ResidentMemory:  # fmt: skip
    """The peak of a generation on one chip, before any allocator's page.

        weights    16 bits, or packed: products and head in ``weights``, the token table in 16 bits
        cache      keys and values of the context in bf16
        scratch    the largest packed matrix unpacked twice in 16 bits, and the prompt's widest
                   layer: what its product reads and writes, or the logits

    Args:
        spec: The model.
        weights: ``bf16``, ``int8``, ``nf4``, ``nf4-dq``, ``int4-g128``.
        batch: Sequences.
        context: Tokens of each in the cache.
        prompt: Tokens of each that are read at once.
        cache_heads: Heads whose keys and values are kept, where software keeps them for more than
            the model has: LitGPT for every query head, unless all share one.

    Example:
        >>> from scantling import catalog
        >>> round(resident_memory(catalog.model("llama-2-7b")).weights / 1e9, 2)
        13.48
    """
    stored = Adapter(rank=0, weights=weights, packs_head=True)
    ops = placed_operators(spec, Plan(micro_batch=batch), prompt)
    held: Any = 0
    widest: Any = 0
    for placed in ops:
        op = placed.op
        for t in op.tensors:
            if not t.alias:
                held = held + product(t.size(), frozen_bytes(t, placed, stored))
        if op.kind == "matmul":
            rows = op.m if placed.layer else batch
            widest = maximum(widest, product(rows, op.n + op.k, 2))
    keeps = spec if cache_heads is None else vary(spec, n_kv_head=cache_heads)
    cache = kv_cache(keeps, batch, context).bytes
    scratch = unpacked_bytes(ops, stored) + widest
    total = held + cache + scratch
    half = scratch * constants()["resident"]["scratch"] + total * constants()["resident"]["total"]
    return ResidentMemory(total, total - half, total + half, held, cache, scratch)
