"""Operators of softmax attention: grouped and latent."""

from __future__ import annotations

from collections.abc import Iterator

from scantling.arith import Dim, Num
from scantling.ops.op import Cache, Op, chunked_pairs, symmetric_pairs, visible_pairs
from scantling.ops.site import Site
from scantling.spec import (
    Chunk,
    Full,
    GroupedAttention,
    LatentAttention,
    Norm,
    QKNorm,
    RelativeBias,
    Window,
)


def grouped(a: GroupedAttention, site: Site) -> Iterator[Op]:
    """Projections, norms of q and k, the core, and the output projection."""
    d_value = a.d_head if a.d_value is None else a.d_value
    query, key, value = a.n_head * a.d_head, a.n_kv_head * a.d_head, a.n_kv_head * d_value
    width = site.width if a.d_input is None else a.d_input
    outs: list[tuple[str, Dim]] = [("q", query)]
    if a.gate == "element":
        outs.append(("gate", a.n_head * d_value))
    elif a.gate == "head":
        outs.append(("gate", a.n_head))
    source: list[tuple[str, Dim]] = []
    if not a.shares_kv:
        source = [("k", key)] if a.key_is_value else [("k", key), ("v", value)]
    if not a.cross:
        outs, source = [*outs, *source], []
    yield site.matmul("qkv", "attention", tuple(outs), width, bias=a.qkv_bias)
    if source and site.phase != "decode":
        rows = site.batch * site.source
        yield site.matmul("kv", "attention", tuple(source), width, bias=a.qkv_bias, rows=rows)
    if a.qk_norm is not None:
        yield qk_norm(a.qk_norm, "q_norm", a.n_head, a.d_head, site)
        if not a.shares_kv:
            yield qk_norm(a.qk_norm, "k_norm", a.n_kv_head, a.d_head, site)
    keys = site.source if a.cross else site.keys
    limit = _limit(a.span)
    cache = None
    if not a.shares_kv:
        per_token = key if a.key_is_value else key + value
        if a.cross:
            cache = Cache(state=per_token * site.source, copies=site.times)
        elif a.causal:
            cache = Cache(
                per_token=per_token, limit=limit, copies=site.times, permille=site.permille
            )
    extra = [site.tensor("sinks", "attention", a.n_head)] if a.sinks else []
    if isinstance(a.position, RelativeBias):
        shape = (a.position.n_bucket, a.n_head)
        extra.append(site.tensor("relative_bias", "attention", *shape))
    yield Op(
        name=f"{site.path}.core", kind="attention", part="attention", m=site.queries, n=keys,
        k=a.d_head + d_value, repeat=site.times * (a.n_head * site.batch), tensors=tuple(extra),
        times=site.times, visible=_visible(a, site, keys, limit), cache=cache,
        elements=a.d_head + d_value,
    )  # fmt: skip
    out = (("o", site.width),)
    yield site.matmul("o", "attention", out, a.n_head * d_value, bias=a.out_bias)


def qk_norm(norm: QKNorm, name: str, heads: Dim, d_head: Dim, site: Site) -> Op:
    """A norm of queries or keys: its weights are one head, every head, or the full width."""
    if norm.scope == "head":
        return site.norm(name, norm.norm, d_head, "attention", heads=heads)
    return site.norm(name, norm.norm, heads * d_head, "attention")


def _limit(span: Full | Window | Chunk) -> Dim | None:
    if isinstance(span, Window):
        return span.window
    return span.chunk if isinstance(span, Chunk) else None


def _visible(a: GroupedAttention, site: Site, keys: Num, limit: Dim | None) -> Num:
    queries: Num = site.queries
    if isinstance(a.span, Chunk) and a.causal:
        return chunked_pairs(queries, keys, a.span.chunk)  # type: ignore[arg-type]
    if limit is not None and not a.causal:  # a window on both sides, in an encoder
        return symmetric_pairs(keys, limit)  # type: ignore[arg-type]
    causal = a.causal and not a.cross
    return visible_pairs(queries, keys, limit, causal)  # type: ignore[arg-type]


def latent(a: LatentAttention, site: Site) -> Iterator[Op]:
    """Multi-head latent attention: down, norm, up, core, out.

    Prefill expands the latent to H keys and values. Decode keeps it: the up projection is
    absorbed into query and output (same product, same weights), and the core runs on the
    cached ``kv_rank + d_rope`` numbers as one shared head.
    """
    query = a.n_head * (a.d_nope + a.d_rope)
    down: list[tuple[str, Dim]] = [("q_down", a.q_rank)] if a.q_rank is not None else [("q", query)]
    down.append(("kv_down", a.kv_rank + a.d_rope))
    bias = a.qkv_bias
    if a.q_rank is None and bias:  # the bias belongs to down projections only
        yield site.matmul("q", "attention", (down[0],), site.width)
        yield site.matmul("kv_down", "attention", (down[1],), site.width, bias=True)
    else:
        yield site.matmul("down", "attention", tuple(down), site.width, bias=bias)
    if a.q_rank is not None:
        yield site.norm("q_norm", a.norm, a.q_rank, "attention")
        yield site.matmul("q_up", "attention", (("q_up", query),), a.q_rank)
    yield site.norm("kv_norm", a.norm, a.kv_rank, "attention")
    up = a.n_head * (a.d_nope + a.d_value)
    yield site.matmul("kv_up", "attention", (("kv_up", up),), a.kv_rank)
    limit = _limit(a.span)
    per_token = a.kv_rank + a.d_rope
    k = a.d_nope + a.d_rope + a.d_value
    sees = limit
    if a.indexer is not None:  # each query reads the positions its indexer chose
        per_token = per_token + a.indexer.d_index
        sees = a.indexer.index_top_k
        yield from _indexer(a, site)
    visible = visible_pairs(site.queries, site.keys, sees, causal=True)  # type: ignore[arg-type]
    if site.phase == "decode":
        k = 2 * a.kv_rank + a.d_rope
    yield Op(
        name=f"{site.path}.core", kind="attention", part="attention", m=site.queries, n=site.keys,
        k=k, repeat=site.times * (a.n_head * site.batch), visible=visible,
        times=site.times, cache=Cache(
            per_token=per_token, limit=limit, copies=site.times, permille=site.permille
        ),
        elements=k,
    )  # fmt: skip
    out = (("o", site.width),)
    yield site.matmul("o", "attention", out, a.n_head * a.d_value, bias=a.out_bias)


def _indexer(a: LatentAttention, site: Site) -> Iterator[Op]:
    """The sparse selector's own small attention over all positions (DeepSeek-V3.2)."""
    i = a.indexer
    assert i is not None
    inner = a.q_rank if a.q_rank is not None else site.width
    outs = (("index_q", i.n_index_head * i.d_index),)
    yield site.matmul("index_q", "attention", outs, inner)
    both = (("index_k", i.d_index), ("index_weight", i.n_index_head))
    yield site.matmul("index_k", "attention", both, site.width)
    yield site.norm("index_norm", Norm("layer", bias=True), i.d_index, "attention")
    yield Op(
        name=f"{site.path}.index", kind="attention", part="attention", m=site.queries, n=site.keys,
        k=i.d_index, repeat=site.times * (i.n_index_head * site.batch),
        visible=visible_pairs(site.queries, site.keys, None, causal=True),  # type: ignore[arg-type]
        times=site.times, elements=i.d_index,
    )  # fmt: skip
