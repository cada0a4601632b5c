"""Operators of DeepSeek-V4: compressed attention, and hyper-connections under a constraint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scantling.arith import Dim, Num, minimum, wide
from scantling.ops.op import Cache, Op, Part, visible_pairs
from scantling.ops.site import Site
from scantling.spec import CompressedAttention, HyperConnections, Indexer


def compressed(a: CompressedAttention, site: Site) -> Iterator[Op]:
    """Narrow queries, one key that is also the value, entries of the past, grouped output."""
    down = (("q_down", a.q_rank), ("kv", a.d_head))
    yield site.matmul("down", "attention", down, site.width)
    yield site.norm("q_norm", a.norm, a.q_rank, "attention")
    query = a.n_head * a.d_head
    yield site.matmul("q_up", "attention", (("q_up", query),), a.q_rank)
    yield site.light("norm", "q_head_norm", "attention", query)
    yield site.norm("kv_norm", a.norm, a.d_head, "attention")
    keys: Num = site.keys
    seen = visible_pairs(site.queries, site.keys, a.window, causal=True)  # type: ignore[arg-type]
    if a.compress is not None:
        yield from _entries("entry", a.d_head, a, site)
        entries: Any = site.keys // a.compress
        reads = None
        if a.indexer is not None:
            yield from _indexer(a, a.indexer, entries, site)
            reads = a.indexer.index_top_k
        keys = keys + entries
        seen = seen + entry_pairs(site.queries, site.keys, a.compress, reads)  # type: ignore[arg-type]
    yield Op(
        name=f"{site.path}.core", kind="attention", part="attention", m=site.queries, n=keys,
        k=2 * a.d_head, repeat=site.times * (a.n_head * site.batch), times=site.times,
        visible=seen, tensors=(site.tensor("sinks", "attention", a.n_head),),
        cache=Cache(per_token=a.d_head, limit=a.window, copies=site.times, permille=site.permille),
        elements=2 * a.d_head,
    )  # fmt: skip
    yield _grouped_out(a, site)
    yield site.matmul("o", "attention", (("o", site.width),), a.n_out_group * a.out_rank)


def _grouped_out(a: CompressedAttention, site: Site) -> Op:
    """A block-diagonal product: each group of heads has its own columns."""
    wide_in: Any = a.n_head * a.d_head
    k = wide_in // a.n_out_group
    weight = site.tensor("o_group", "attention", a.n_out_group * a.out_rank, k)
    return Op(
        name=f"{site.path}.o_group", kind="matmul", part="attention", m=site.rows, n=a.out_rank,
        k=k, repeat=site.times * a.n_out_group, times=site.times, tensors=(weight,),
        elements=a.out_rank + k,
    )  # fmt: skip


def _entries(name: str, width: Dim, a: CompressedAttention, site: Site) -> Iterator[Op]:
    """Entries of so many tokens: values, and gates with a bias by place, softmaxed within each."""
    assert a.compress is not None
    each = 2 * width if a.overlap else width
    outs = ((f"{name}_value", each), (f"{name}_gate", each))
    yield site.matmul(name, "attention", outs, site.width)
    place = site.tensor(f"{name}_place", "attention", a.compress, each)
    yield site.light("elementwise", f"{name}_place", "attention", each, (place,))
    scale = site.norm(f"{name}_norm", a.norm, width, "attention").tensors
    yield Op(
        name=f"{site.path}.{name}_norm", kind="norm", part="attention", m=site.rows, n=width, k=1,
        repeat=site.times, times=site.times, tensors=scale, elements=2 * width,
        cache=Cache(
            per_token=width, copies=site.times, permille=site.permille, stride=a.compress
        ),
    )  # fmt: skip


def _indexer(a: CompressedAttention, i: Indexer, entries: Num, site: Site) -> Iterator[Op]:
    """Scores of the selector's own entries; the weighted sum over heads is no product here."""
    yield from _entries("index", i.d_index, a, site)
    outs = (("index_q", i.n_index_head * i.d_index),)
    yield site.matmul("index_q", "attention", outs, a.q_rank)
    outs = (("index_weight", i.n_index_head),)
    yield site.matmul("index_weight", "attention", outs, site.width)
    assert a.compress is not None
    yield Op(
        name=f"{site.path}.index_scores", kind="attention", part="attention", m=site.queries,
        n=entries, k=i.d_index, repeat=site.times * (i.n_index_head * site.batch),
        visible=entry_pairs(site.queries, site.keys, a.compress, None),  # type: ignore[arg-type]
        times=site.times, elements=i.d_index,
    )  # fmt: skip


def entry_pairs(queries: Dim, keys: Dim, stride: Dim, limit: Dim | None) -> Num:
    """(query, entry) pairs: the p-th token sees the p // stride entries that are complete.

    Of P tokens all see stride × (0 + 1 + … + e − 1) entries in the e complete stretches but for
    their last tokens, which see one more each, and e (P − stride e) in the rest: together
    stride e (e − 1) / 2 + e (P − stride e + 1). With a limit what lies beyond it is taken off:
    the same sum, begun limit × stride tokens later.

    Example:
        >>> entry_pairs(8, 8, 4, None), entry_pairs(12, 12, 4, 1), entry_pairs(1, 9, 4, None)
        (6, 9, 2)
    """

    def prefill(tokens: Dim) -> Num:
        whole: Any = tokens // stride
        rest: Any = tokens - whole * stride + 1
        pairs: Num = wide(stride) * (wide(whole) * (whole - 1) // 2) + wide(whole) * rest
        return pairs

    def upto(tokens: Dim) -> Num:
        if limit is None:
            return prefill(tokens)
        past: Any = tokens - minimum(tokens, wide(limit) * stride)
        return prefill(tokens) - prefill(past)

    return upto(keys) - upto(keys - queries)


def hyper(h: HyperConnections, part: Part, site: Site) -> Iterator[Op]:
    """Streams read, written and mixed by weights of one product of all of them (Xie et al. 2026).

    n weights read, n write and n × n mix; each of the three has a scale. Mixing the streams of
    a token is a product of n × n by n × D.
    """
    n = h.n_stream
    yield from _weights("hyper", (2 + n) * n, 3, n, part, site)
    yield Op(
        name=f"{site.path}.hyper_mix", kind="matmul", part=part, m=site.rows * n, n=site.width,
        k=n, repeat=site.times, times=site.times, elements=2 * site.width,
    )  # fmt: skip


def merge(n: Dim, site: Site) -> Iterator[Op]:
    """The last mix: one stream of n."""
    yield from _weights("hyper_head", n, 1, n, "other", site)


def _weights(name: str, out: Dim, scales: int, n: Dim, part: Part, site: Site) -> Iterator[Op]:
    wide_in = n * site.width
    yield site.light("norm", f"{name}_norm", part, wide_in)
    yield site.matmul(name, part, ((name, out),), wide_in)
    fixed = (site.tensor(f"{name}_base", part, out), site.tensor(f"{name}_scale", part, scales))
    yield site.light("elementwise", f"{name}_base", part, out, fixed)
