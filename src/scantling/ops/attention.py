"""Operators of softmax attention: grouped and latent."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from scantling.arith import Dim, Num, minimum, wide
from scantling.ops.op import Cache, Op, Part, chunked_pairs, symmetric_pairs, visible_pairs
from scantling.ops.site import Site
from scantling.spec import (
    Alibi,
    BlockSelector,
    Chunk,
    Disentangled,
    Full,
    GroupedAttention,
    LatentAttention,
    Norm,
    QKNorm,
    RelativeBias,
    Rope,
    Window,
)


def grouped(a: GroupedAttention, site: Site) -> Iterator[Op]:
    """Projections, norms of q and k, the core, and the output projection."""
    width = site.width if a.d_input is None else a.d_input
    outs, source = _projections(a)
    bias: bool | tuple[str, ...] = a.qkv_bias
    if not a.key_bias:
        bias = ("q", "gate", "v") if a.qkv_bias else False
    yield site.matmul("qkv", "attention", outs, width, bias=bias)
    if source and site.phase != "decode":
        rows = site.batch * site.source
        yield site.matmul("kv", "attention", source, width, bias=bias, rows=rows)
    if a.adapter_rank is not None:
        yield from adapters("attention", outs, width, a.adapter_rank, site)
        if source and site.phase != "decode":
            across = replace(site, queries=site.source)
            yield from adapters("attention", source, width, a.adapter_rank, across)
    if a.qk_norm is not None:
        yield qk_norm(a.qk_norm, "q_norm", a.n_head, a.d_head, site)
        if not a.shares_kv:
            yield qk_norm(a.qk_norm, "k_norm", a.n_kv_head, a.d_head, site)
    if a.value_norm is not None and not a.shares_kv:
        yield site.norm("v_norm", a.value_norm, _d_value(a), "attention", heads=a.n_kv_head)
    if isinstance(a.position, Disentangled):
        yield from _disentangled(a, a.position, width, site)
    if a.selector is not None:
        yield from _selector(a.selector, width, site)
    yield _core(a, site)
    value = a.n_head * _d_value(a)
    if a.out_norm is not None:
        yield site.norm("out_norm", a.out_norm, value)
    yield site.matmul("o", "attention", (("o", site.width),), value, bias=a.out_bias)


Outs = tuple[tuple[str, Dim], ...]


def _d_value(a: GroupedAttention) -> Dim:
    return a.d_head if a.d_value is None else a.d_value


def _projections(a: GroupedAttention) -> tuple[Outs, Outs]:
    """What is made of the stream, and what of the encoder where attention crosses to it."""
    outs: list[tuple[str, Dim]] = [("q", a.n_head * a.d_head)]
    if a.gate == "element":
        outs.append(("gate", a.n_head * _d_value(a)))
    elif a.gate == "head":
        outs.append(("gate", a.n_head))
    key, value = ("k", a.n_kv_head * a.d_head), ("v", a.n_kv_head * _d_value(a))
    source: Outs = () if a.shares_kv else (key,) if a.key_is_value else (key, value)
    return (tuple(outs), source) if a.cross else ((*outs, *source), ())


def _core(a: GroupedAttention, site: Site) -> Op:
    """Scores, their sinks and biases, and the weighted values; with the cache they leave."""
    keys = site.source if a.cross else site.keys
    limit = _limit(a.span)
    sees = limit
    if a.selector is not None:  # each query reads the blocks its selector chose
        sees = a.selector.index_top_k * a.selector.index_block
        sees = sees if limit is None else minimum(sees, limit)
    key, value = a.n_kv_head * a.d_head, a.n_kv_head * _d_value(a)
    per_token = key if a.key_is_value and a.value_norm is None else key + value
    cache = None
    if a.cross and not a.shares_kv:
        cache = Cache(cross=per_token, source=site.source, copies=site.times)
    elif a.causal and not a.shares_kv:
        cache = Cache(per_token=per_token, limit=limit, copies=site.times, permille=site.permille)
    extra = [site.tensor("sinks", "attention", a.n_head)] if a.sinks else []
    if isinstance(a.position, RelativeBias):
        name = "layer_bias" if a.position.each_layer else "relative_bias"
        extra.append(site.tensor(name, "attention", a.position.n_bucket, a.n_head))
    k = a.d_head + _d_value(a)
    return Op(
        name=f"{site.path}.core", kind="attention", part="attention", m=site.queries, n=keys,
        k=k, repeat=site.times * (a.n_head * site.batch), tensors=tuple(extra), times=site.times,
        visible=_visible(a, site, keys, sees), cache=cache, elements=k, form=_form(a),
    )  # fmt: skip


def _form(a: GroupedAttention) -> str:
    """What is special in the scores, in words."""
    said = {
        "softcap": a.softcap is not None, "sinks": a.sinks, "rope": isinstance(a.position, Rope),
        "alibi": isinstance(a.position, Alibi), "relative": isinstance(a.position, RelativeBias),
        "masked": not isinstance(a.span, Full) and not a.cross, "causal": a.causal and not a.cross,
    }  # fmt: skip
    return " ".join(word for word, holds in said.items() if holds)


def adapters(
    part: Part, outs: tuple[tuple[str, Dim], ...], width: Dim, rank: Dim, site: Site
) -> Iterator[Op]:
    """A low-rank addition to each of some products, with weights for each use of theirs."""
    own = replace(site, copies=site.times)
    for out, n in outs:
        yield own.matmul(f"{out}_adapter_a", part, ((f"{out}_adapter_a", rank),), width)
        yield own.matmul(f"{out}_adapter_b", part, ((f"{out}_adapter_b", n),), rank)


def _disentangled(a: GroupedAttention, p: Disentangled, width: Dim, site: Site) -> Iterator[Op]:
    """The table of relative positions through the projections, and its two products of scores.

    Content to position: each query with each row; position to content: each key with each row
    (He et al. 2021, equation 4). Both are picked from by distance afterwards.
    """
    query, rows = a.n_head * a.d_head, p.n_relative
    if p.trimmed:
        rows = minimum(rows, 2 * site.keys)
    weights = [site.tensor("relative_table", "embedding", p.n_relative, width)]
    if p.norm is not None:
        weights += site.norm("relative_table_norm", p.norm, width).tensors
    yield Op(name=f"{site.path}.relative_table", kind="norm", part="embedding", m=rows, n=width,
             k=1, tensors=tuple(weights), elements=2 * width)  # fmt: skip
    for name, wanted, bias, lines in (
        ("position_key", p.content_to_position, p.key_bias, site.queries),
        ("position_query", p.position_to_content, True, site.keys),
    ):
        if wanted or p.shared:
            op = site.matmul(name, "attention", ((name, query),), width, bias=bias, rows=rows)
            yield replace(op, tensors=()) if p.shared else op
        if wanted:
            yield Op(
                name=f"{site.path}.{name}_scores", kind="attention", part="attention", m=lines,
                n=rows, k=a.d_head, repeat=site.times * (a.n_head * site.batch),
                times=site.times, visible=wide(lines) * rows, elements=a.d_head,
            )  # fmt: skip


def qk_norm(norm: QKNorm, name: str, heads: Dim, d_head: Dim, site: Site) -> Op:
    """A norm of queries or keys: its weights are one head, every head, or the full width."""
    if norm.scope == "head":
        return site.norm(name, norm.norm, d_head, "attention", heads=heads)
    return site.norm(name, norm.norm, heads * d_head, "attention")


def _selector(s: BlockSelector, width: Dim, site: Site) -> Iterator[Op]:
    """Scores of all keys, of which each block keeps its highest (MiniMax-M3); keys are cached."""
    outs = (("index_q", s.n_index_head * s.d_index), ("index_k", s.d_index))
    yield site.matmul("index", "attention", outs, width)
    yield site.norm("index_q_norm", s.norm, s.d_index, "attention", heads=s.n_index_head)
    yield site.norm("index_k_norm", s.norm, s.d_index, "attention")
    yield Op(
        name=f"{site.path}.index_scores", kind="attention", part="attention", m=site.queries,
        n=site.keys, k=s.d_index, repeat=site.times * (s.n_index_head * site.batch),
        visible=visible_pairs(site.queries, site.keys, None, causal=True),  # type: ignore[arg-type]
        times=site.times, elements=s.d_index,
        cache=Cache(per_token=s.d_index, copies=site.times, permille=site.permille),
    )  # fmt: skip


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
    expanded = a.n_head * (a.d_nope + a.d_rope + a.d_value)
    k = a.d_nope + a.d_rope + a.d_value
    sees = limit
    if a.indexer is not None:  # each query reads the positions its indexer chose
        per_token, expanded = per_token + a.indexer.d_index, expanded + a.indexer.d_index
        sees = a.indexer.index_top_k
        yield from _indexer(a, site)
    visible = visible_pairs(site.queries, site.keys, sees, causal=True)  # type: ignore[arg-type]
    if site.phase == "decode":
        k = 2 * a.kv_rank + a.d_rope
    yield Op(
        name=f"{site.path}.core", kind="attention", part="attention", m=site.queries, n=site.keys,
        k=k, repeat=site.times * (a.n_head * site.batch), visible=visible,
        times=site.times, cache=Cache(
            per_token=per_token, limit=limit, copies=site.times, permille=site.permille,
            expanded=expanded,
        ),
        elements=k, form="causal" if limit is None else "masked causal",
    )  # fmt: skip
    if a.gate:
        yield site.matmul("gate", "attention", (("gate", a.n_head),), site.width)
    out = (("o", site.width),)
    yield site.matmul("o", "attention", out, a.n_head * a.d_value, bias=a.out_bias)


def _indexer(a: LatentAttention, site: Site) -> Iterator[Op]:
    """The sparse selector's own small attention over all positions (DeepSeek-V3.2).

    Each head scores all keys (d_index wide), then one weighted sum over the heads: d_index + 1.
    """
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
        k=i.d_index + 1, repeat=site.times * (i.n_index_head * site.batch),
        visible=visible_pairs(site.queries, site.keys, None, causal=True),  # type: ignore[arg-type]
        times=site.times, elements=i.d_index,
    )  # fmt: skip
