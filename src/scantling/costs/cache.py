"""Caches: what a model keeps of each sequence while it generates.

Three readings: what is needed (``bytes``), what an engine reserves that gives every layer pages for
the full length (``allocated_bytes``), and what one reserves that pages each kind of layer by its
own need (``paged_kv``). Keys and values are kept in the cache's dtype, recurrent states in 16
bits or more.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from msgspec import Struct

from scantling.arith import Dim, Num, ceil_div, product
from scantling.ops import Cache, Op, operators
from scantling.spec import Spec, Workload, kv_dtype_bytes, state_dtype_bytes

PAGE_TOKENS = 16
"""Tokens of a page: vLLM's default."""
FEW_MORE = 1.5
"""Kinds of layer whose numbers differ by less than this share one group size, the larger."""


class KVCache(Struct, frozen=True):
    """Bytes a batch keeps while it generates."""

    bytes_per_token: Num
    """Growth of one sequence by one token while no window is full: all layers."""
    bytes: Num
    """Held at the batch and context: windowed layers hold min(S, window)."""
    allocated_bytes: Num
    """Reserved by an engine with one page size for all layers, full length everywhere."""
    state_bytes: Num
    """The part that does not grow with the context."""
    cross_bytes: Num
    """Of that, the keys and values of an encoder's output."""
    expanded_bytes_per_token: Num
    """As ``bytes_per_token``, where latent attention keeps the keys and values made of its latent,
    of all heads: without absorption."""
    expanded_bytes: Num


def kv_cache(
    spec: Spec, batch: int = 1, context: Dim = 1, kv_dtype: str = "bf16", *, ops: Any = None
) -> KVCache:
    """The cache of a model at a batch and a context.

    Grouped attention keeps a key and a value per KV head, latent attention its rank and the
    rotary part once, recurrent mixers a fixed state; a layer that reads the keys and values of
    another keeps nothing.

    Example:
        >>> from scantling import catalog
        >>> cache = kv_cache(catalog.model("deepseek-v3"))
        >>> cache.bytes_per_token, cache.expanded_bytes_per_token
        (70272, 4997120)
        >>> kv_cache(catalog.model("deepseek-v3"), kv_dtype="q8_0").bytes_per_token
        37332
    """
    caches = [op.cache for op in _ops(spec, batch, context, ops) if op.cache is not None]
    size, state_size = _whole(kv_dtype_bytes(kv_dtype)), _whole(state_dtype_bytes(kv_dtype))
    zero: Any = 0
    per_token = sum((_growth(c, c.per_token) for c in caches), start=zero)
    wide = sum((_growth(c, _expanded(c)) for c in caches), start=zero)
    held = sum((c.held(context) for c in caches), start=zero)
    held_wide = sum((product(_expanded(c), c.tokens(context), c.copies) for c in caches), zero)
    allocated = sum((c.allocated(context, PAGE_TOKENS) for c in caches), start=zero)
    cross = sum((product(c.cross, c.source, c.copies) for c in caches), zero) * (size * batch)
    state = sum((c.state * c.copies for c in caches), start=zero) * (state_size * batch)
    return KVCache(*(_exact(n) for n in (
        per_token * size, held * (size * batch) + state, allocated * (size * batch) + state,
        state + cross, cross, wide * size, held_wide * (size * batch) + cross + state,
    )))  # fmt: skip


def cache_bytes(cache: Cache, context: Dim, kv_dtype: str) -> Num:
    """Bytes one layer kind reads of one sequence to make a token."""
    state: Any = product(cache.state, cache.copies)
    held: Any = cache.held(context)
    found: Num = held * kv_dtype_bytes(kv_dtype) + state * state_dtype_bytes(kv_dtype)
    return found


def _ops(spec: Spec, batch: int, context: Any, ops: Any) -> tuple[Op, ...]:
    """The operators whose caches count; the context matters to those of an encoder only."""
    found: tuple[Op, ...] = ops or operators(spec, Workload("decode", batch, context))
    return found


def _growth(c: Cache, per_token: Any) -> Any:
    """Elements that a token adds in all layers; its share of an entry that several tokens make."""
    added = per_token * c.copies
    return added if isinstance(c.stride, int) and c.stride == 1 else added / c.stride


def _expanded(c: Cache) -> Any:
    return c.per_token if c.expanded is None else c.expanded


def _whole(size: float) -> Any:
    """Bytes of an element as an int where it is one, so that counts stay ints."""
    return int(size) if size.is_integer() else size


def _exact(n: Any) -> Any:
    """A whole number of bytes as an int; an array stays as it is."""
    return int(n) if isinstance(n, float) and n.is_integer() else n


CACHE_READINGS = {
    "bytes_per_token": "growth of one sequence by one token while no window is full",
    "bytes": "needed: windowed layers keep their window, recurrent ones their state",
    "allocated_bytes": "reserved by an engine that gives every layer pages for the full length",
    "paged": "reserved by an engine that pages each kind of layer by its need, padded to the "
    "largest page and to groups of equally many layers",
    "state_bytes": "of bytes, what does not grow with the context",
    "cross_bytes": "of state_bytes, keys and values of an encoder's output",
    "expanded_bytes_per_token": "bytes_per_token where latent attention keeps full keys and "
    "values of all heads (no absorption)",
    "expanded_bytes": "bytes, likewise",
}
"""What each number of a cache counts."""


class Group(Struct, frozen=True):
    """Layers that an allocator pages together: equal need, one page of each a block."""

    layers: int
    """Of one kind, before padding."""
    groups: int
    padding: int
    """Layers added so that every group has as many."""
    blocks: int
    """Of one sequence, in each group."""


class PagedKV(Struct, frozen=True):
    """What an engine reserves that pages each kind of layer by its own need."""

    bytes: int
    page_tokens: int
    """Tokens of a page of the layers that grow."""
    page_bytes: int
    """Of one layer: the largest of all kinds, to which the others are padded."""
    group_layers: int
    groups: tuple[Group, ...]


class _Need(Struct, frozen=True):
    """What one layer keeps; layers of equal need make a kind."""

    token_bytes: float = 0.0
    reaching: int = 0
    """Tokens of a sequence that reach the layer."""
    limit: int | None = None
    cross: bool = False
    state_bytes: float = 0.0

    def blocks(self, page: int) -> int:
        """Pages of so many tokens that one sequence touches at most."""
        if not self.token_bytes:
            return 1
        whole = int(ceil_div(self.reaching, page))
        return whole if self.limit is None else min(whole, int(ceil_div(self.limit - 1, page)) + 1)


def paged_kv(
    spec: Spec, batch: int = 1, context: int = 1, kv_dtype: str = "bf16", page: int = PAGE_TOKENS
) -> PagedKV | None:
    """What vLLM's hybrid allocator reserves while tokens are decoded; None if nothing is kept.

    All pages are equally large. A layer that keeps fewer bytes a token has more tokens a page, the
    rest of a page being padding; where a recurrent state is larger than a page of attention, pages
    hold more tokens until it fits. Kinds of layer are cut into groups of equally many layers, the
    fewest of any kind (or the most, where that is less than 1.5 times as many), and the last group
    of each kind is padded. The last w tokens lie on at most ceil((w − 1) / page) + 1 pages; what a
    prefill needs more of a window for a moment is not counted.

    Example:
        >>> from scantling import catalog
        >>> found = paged_kv(catalog.model("gemma-3-27b"), context=131_072)
        >>> [(g.layers, g.groups, g.padding) for g in found.groups], found.group_layers
        ([(52, 6, 8), (10, 1, 0)], 10)
    """
    kinds = _needs(spec, batch, context, kv_dtype)
    if not kinds:
        return None
    widest = max(need.token_bytes for need in kinds)
    state = max(need.state_bytes for need in kinds)
    if widest:
        page *= max(1, math.ceil(state / (page * widest)))
    page_bytes = max(page * widest, state)
    fewest, most = min(kinds.values()), max(kinds.values())
    size = most if most < FEW_MORE * fewest else fewest
    groups = []
    for need, n in kinds.items():
        own = page * int(page_bytes // (page * need.token_bytes)) if need.token_bytes else 0
        groups.append(Group(n, int(ceil_div(n, size)), -n % size, need.blocks(own)))
    blocks = sum(g.groups * g.blocks for g in groups)
    return PagedKV(
        math.ceil(batch * blocks * size * page_bytes), page if widest else 0,
        math.ceil(page_bytes), size, tuple(groups),
    )  # fmt: skip


def _needs(spec: Spec, batch: int, context: int, kv_dtype: str) -> Counter[_Need]:
    """How many layers there are of each need; the states of one module are kept together."""
    size, state_size = kv_dtype_bytes(kv_dtype), state_dtype_bytes(kv_dtype)
    found: Counter[_Need] = Counter()
    states: Counter[tuple[str, int]] = Counter()
    for op in _ops(spec, batch, context, None):
        c = op.cache
        if c is None or not int(c.copies):  # a stage of a pipeline may lack a kind of layer
            continue
        n = int(c.copies)
        if c.per_token:
            limit = None if c.limit is None else int(c.limit)
            found[_Need(int(c.per_token) * size, int(c.reaching(context)), limit)] += n
        if c.cross:
            found[_Need(int(c.cross) * size, int(c.source), cross=True)] += n
        if c.state:
            states[op.name.rpartition(".")[0], n] += int(c.state)
    for (_, n), state in states.items():
        found[_Need(state_bytes=state * state_size)] += n
    return found
