"""The inverse of a cache: how many tokens so many bytes or pages hold, on one rank of several."""

from __future__ import annotations

from msgspec import Struct

from scantling.costs.cache import PAGE_TOKENS, kv_cache, paged_kv
from scantling.costs.fit import largest
from scantling.costs.ranks import rank_spec, stages
from scantling.costs.weights import ALONE
from scantling.errors import FieldError
from scantling.spec import Spec
from scantling.spec.plan import Plan

MOST = 2**31
"""Tokens beyond which no length is sought."""


def rank_cache_bytes(
    spec: Spec, context: int, batch: int = 1, kv_dtype: str = "bf16", plan: Plan = ALONE
) -> float:  # fmt: skip
    """Bytes of the caches on the most loaded rank.

    KV heads are divided by TP down to one, a latent not at all; layers are divided by the stages.

    Example:
        >>> from scantling import catalog
        >>> spec = catalog.model("llama-3.1-8b")
        >>> [rank_cache_bytes(spec, 8192, plan=Plan(tp=n)) / 2**20 for n in (1, 8, 16)]
        [1024.0, 128.0, 128.0]
    """
    return max(
        float(kv_cache(rank_spec(spec, plan, s), batch, context, kv_dtype).bytes)
        for s in stages(plan)
    )


class Longest(Struct, frozen=True):
    """The longest sequences that a cache of some size holds."""

    tokens: int
    """Of each, by what is needed."""
    paged_tokens: int
    """Of each, where an engine reserves pages for each kind of layer; at most ``tokens``."""
    capped: bool
    """Whether the cache stops growing, so that no length is too long for it."""


def longest_cached(
    spec: Spec, room_bytes: float, batch: int = 1, kv_dtype: str = "bf16", plan: Plan = ALONE
) -> Longest:  # fmt: skip
    """The longest sequences whose cache fits into so many bytes of each rank.

    Args:
        spec: One model.
        room_bytes: What a rank has left for the cache.
        batch: Sequences of that length at once.
        kv_dtype: Of the cache.
        plan: How the model is split.

    Raises:
        FieldError: If the batch is below one.

    Example:
        >>> from scantling import catalog
        >>> longest_cached(catalog.model("llama-3.1-8b"), 2**30).tokens
        8192
    """
    if batch < 1:
        raise FieldError("batch", batch, "must be at least 1")
    own = [rank_spec(spec, plan, s) for s in stages(plan)]

    def needed(n: int) -> bool:
        return all(kv_cache(one, batch, n, kv_dtype).bytes <= room_bytes for one in own)

    def paged(n: int) -> bool:
        found = [paged_kv(one, batch, n * PAGE_TOKENS, kv_dtype) for one in own]
        return all(f is None or f.bytes <= room_bytes for f in found)

    tokens = largest(needed, MOST)
    pages = largest(paged, max(1, tokens // PAGE_TOKENS)) if tokens >= PAGE_TOKENS else 0
    return Longest(tokens, min(tokens, pages * PAGE_TOKENS), tokens >= MOST)


class Pool(Struct, frozen=True):
    """A number of pages that an engine has for caches."""

    tokens: int
    bytes: float
    """Of all ranks together."""
    missing_bytes: float
    """More that one sequence of the wanted length needs; 0 where it fits."""


def page_pool(
    spec: Spec, pages: int, page: int = PAGE_TOKENS, kv_dtype: str = "bf16", context: int = 1
) -> Pool:  # fmt: skip
    """What a pool of pages holds: tokens, bytes, and what a sequence of some length still misses.

    Args:
        spec: One model whose layers keep keys and values of every token.
        pages: Pages, as an engine prints them.
        page: Tokens of a page.
        kv_dtype: Of the cache.
        context: A length that is wanted.

    Raises:
        FieldError: If pages or their tokens are below one.

    Example:
        >>> from scantling import catalog
        >>> page_pool(catalog.model("llama-3.1-8b"), 512, context=16384).missing_bytes / 2**30
        1.0
    """
    for name, n in (("pages", pages), ("page", page)):
        if n < 1:
            raise FieldError(name, n, "must be at least 1")
    tokens = pages * page
    each = float(kv_cache(spec, kv_dtype=kv_dtype).bytes_per_token)
    return Pool(tokens, tokens * each, max(0, context - tokens) * each)


class Told(Struct, frozen=True):
    """Weights of which only the number of parameters is known."""

    bytes: float
    fits: bool
    text: str


def told_weights(
    total: float, bytes_each: float, memory_bytes: float, active: float | None = None
) -> Told:
    """Weights from a number of parameters: all experts must be resident, not only the active.

    Args:
        total: All parameters.
        bytes_each: Bytes of one, scales included.
        memory_bytes: What there is.
        active: Parameters that a token passes, where it is said.

    Example:
        >>> told_weights(47e9, 2, 80e9, active=13e9).text
        'all 47 B parameters must be resident: 94.0 GB > 80.0 GB; the 13 B active ones alone would \
be 26.0 GB'
    """
    size = total * bytes_each
    fits = size <= memory_bytes
    sign = "<=" if fits else ">"
    text = f"all {total / 1e9:.4g} B parameters must be resident: {size / 1e9:.1f} GB {sign} "
    text += f"{memory_bytes / 1e9:.1f} GB"
    if active is not None:
        text += f"; the {active / 1e9:.4g} B active ones alone would be "
        text += f"{active * bytes_each / 1e9:.1f} GB"
    return Told(size, fits, text)


__all__ = [
    "Longest", "Pool", "Told", "longest_cached", "page_pool", "rank_cache_bytes", "told_weights",
]  # fmt: skip
