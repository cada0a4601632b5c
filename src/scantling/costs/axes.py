"""The axes that prior terms price, measured from a spec.

What a layer is made of is structure, so each kind of layer is tallied once in plain numbers; how
often a kind occurs is a dimension, so a share may be a column.
Where a model has nothing of an axis the feature is absent and no law spends time on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from scantling.arith import Dim, Num, maximum
from scantling.costs.count import Parameters, parameters
from scantling.spec import (
    Block,
    Branch,
    ChannelMix,
    Chunk,
    CompressedAttention,
    Dense,
    Experts,
    GatedDelta,
    GroupedAttention,
    KimiDelta,
    LatentAttention,
    Layer,
    LinearAttention,
    Mamba1,
    Mamba2,
    Norm,
    RgLru,
    Rope,
    Rwkv,
    ShortConv,
    Spec,
    Window,
)
from scantling.spec.vary import rewrite

ATTENTION = (GroupedAttention, LatentAttention, CompressedAttention)
RECURRENT = (LinearAttention, GatedDelta, KimiDelta, Mamba1, Mamba2, Rwkv, RgLru, ShortConv)
FEED_FORWARD = (Dense, ChannelMix, Experts)

Tally = Counter[str]


def design_axes(spec: Spec) -> dict[str, Any]:
    """The features of ``laws.Features`` that say how a decoder is built, those it has.

    Grouped attention with gates, windows and norms is one kind of attention layer, latent
    attention another; a cross attention is none. Shares are over layers: a layer with attention
    and a recurrent mixer side by side counts as one of each.
    Rotary fractions are the mean over layers with rotary positions, a window is that of the kind
    that comes last, and where some mixers are recurrent or positions are learned, attention without
    a position is not counted: the order of tokens reaches it otherwise.

    Example:
        >>> from scantling import catalog
        >>> design_axes(catalog.model("llama-3.1-8b"))
        {'no_qk_norm_share': 1.0}
        >>> sorted(design_axes(catalog.model("gpt2")))
        ['layer_norm_share', 'no_qk_norm_share', 'tied', 'ungated_share']
    """
    kinds = _kinds(spec)
    tallies = {kind.name: _tally(kind) for kind in kinds}
    found: dict[str, Any] = {}
    shares = {
        "local_share": ("local", "attention"),
        "latent_share": ("latent", "attention"),
        "gate_share": ("gated", "attention"),
        "no_qk_norm_share": ("unnormed", "attention"),
        "ungated_share": ("ungated", "ffn"),
        "relu_share": ("relu", "ffn"),
        "squared_relu_share": ("squared_relu", "ffn"),
        "layer_norm_share": ("layer_norm", "normed"),
        "sandwich_share": ("sandwich", "normed"),
        "parallel_share": ("parallel", "layers"),
        "no_shared_expert": ("unshared", "routed"),
    }
    for name, (part, whole) in shares.items():
        value = _share(spec, tallies, part, whole)
        if value is not None:
            found[name] = value
    unrotated = _share(spec, tallies, "unrotated", "rotary")
    if unrotated is not None:
        found["rotary_fraction"] = 1 - unrotated
    recurrent = _share(spec, tallies, "recurrent", "mixers")
    if recurrent is not None:
        found["attention_share"] = 1 - recurrent
    elif spec.embeddings.position is None and not spec.embeddings.sines:
        nope = _share(spec, tallies, "unplaced", "attention")
        found |= {} if nope is None else {"nope_share": nope}
    if spec.tied and spec.head is not None:
        found["tied"] = 1.0
    if spec.embeddings.d_embed is not None:
        found["embedding_rank"] = spec.embeddings.d_embed / spec.d_model
    return found | _windows(kinds) | _shared_keys(spec, tallies)


def expert_axes(spec: Spec, counted: Parameters) -> dict[str, Any]:
    """The features of a model with experts, those of the kind that occurs last.

    Granularity is the width a token passes over that of one expert: models with experts make their
    dense layers as wide as what a token passes (DeepSeek-V3 18432 = (8 + 1) · 2048).

    Example:
        >>> from scantling import catalog
        >>> from scantling.costs.count import parameters
        >>> one = catalog.model("deepseek-v3")
        >>> found = expert_axes(one, parameters(one))
        >>> found["n_experts"], found["granularity"], found["n_shared_experts"]
        (256, 9.0, 1.0)
        >>> round(found["dense_first_share"] * 61)
        3
    """
    routed = [m for kind in _kinds(spec) for m in _modules(kind, Experts)]
    if not routed:
        return {}
    e: Experts = routed[-1]
    active = e.top_k * e.d_expert
    found = {
        "n_experts": e.n_expert,
        "active_share": e.top_k / e.n_expert,
        "all_parameters": counted.total,
        "all_body": counted.body,
    }
    if e.shared is not None:
        found["n_shared_experts"] = e.shared.d_shared / e.d_expert
        active = active + e.shared.d_shared
    found["granularity"] = active / e.d_expert
    first: Any = 0
    for run in spec.decoder.layout:
        if any(_modules(spec.decoder.kind(name), Experts) for name in run.pattern):
            break
        first = first + run.n
        found["dense_first_share"] = first / spec.n_layer
    return found


def unfolded(spec: Spec) -> Dim | None:
    """The body a token passes where layers share weights: what it would be with its own each.

    ``None`` where every layer has weights of its own.

    Example:
        >>> from scantling import catalog
        >>> unfolded(catalog.model("gpt2")) is None
        True
    """
    branches = (b for kind in _kinds(spec) for b in _branches(kind))
    if all(branch.copies is None for branch in branches):
        return None

    def own(node: Any) -> Any:
        return replace(node, copies=None) if isinstance(node, Branch) else node

    return parameters(replace(spec, decoder=rewrite(spec.decoder, own))).active_body


def _kinds(spec: Spec) -> list[Layer]:
    """The kinds of layer that are laid out, in the order they first occur."""
    names = dict.fromkeys(name for run in spec.decoder.layout for name in run.pattern)
    return [spec.decoder.kind(name) for name in names]


def _branches(kind: Layer) -> Iterator[Branch]:
    return (branch for block in kind.blocks for branch in block.branches)


def _modules(kind: Layer, of: type | tuple[type, ...]) -> list[Any]:
    return [b.module for b in _branches(kind) if isinstance(b.module, of)]


def _self_attention(module: object) -> bool:
    return isinstance(module, ATTENTION) and not (
        isinstance(module, GroupedAttention) and module.cross
    )


def _tally(kind: Layer) -> Tally:
    found: Tally = Counter(layers=1)
    for block in kind.blocks:
        found += _block(block)
        for branch in block.branches:
            found += _module(branch.module)
    return found


def _block(block: Block) -> Tally:
    """Norms of a block, and whether a mixer and a feed-forward stand side by side."""
    branches = block.branches
    before = [n for n in (block.pre, *(b.pre for b in branches)) if n is not None]
    behind = [n for n in (block.post, *(b.post for b in branches)) if n is not None]
    norms: list[Norm] = before + behind + ([] if block.after is None else [block.after])
    mixes = any(_self_attention(b.module) or isinstance(b.module, RECURRENT) for b in branches)
    feeds = any(isinstance(b.module, FEED_FORWARD) for b in branches)
    if not (mixes or feeds):
        return Counter()
    return Counter(
        normed=bool(norms), layer_norm=any(n.kind == "layer" for n in norms),
        sandwich=bool(before and behind), parallel=mixes and feeds,
    )  # fmt: skip


def _module(module: object) -> Tally:
    if isinstance(module, RECURRENT):
        return Counter(mixers=1, recurrent=1)
    if _self_attention(module):
        return Counter(mixers=1, attention=1) + _attention(module)
    if isinstance(module, Dense | Experts):
        plain = not module.gated and module.activation != "relu2"
        return Counter(
            ffn=1, ungated=plain, relu=plain and module.activation == "relu",
            squared_relu=not module.gated and module.activation == "relu2",
            routed=isinstance(module, Experts),
            unshared=isinstance(module, Experts) and module.shared is None,
        )  # fmt: skip
    return Counter(ffn=isinstance(module, ChannelMix))


def _attention(module: object) -> Tally:
    """An attention's own axes; compressed attention has none that ablations name."""
    if not isinstance(module, GroupedAttention | LatentAttention):
        return Counter()
    found: dict[str, Any] = {
        "local": isinstance(module.span, Window | Chunk), "gated": bool(module.gate),
        "latent": isinstance(module, LatentAttention), "unplaced": module.position is None,
    }  # fmt: skip
    if isinstance(module, GroupedAttention):
        found |= {"unnormed": module.qk_norm is None, "shares_kv": module.shares_kv}
        if isinstance(module.position, Rope):
            found |= {"rotary": 1, "unrotated": 1 - module.position.fraction}
    return Counter(found)


def _share(spec: Spec, tallies: dict[str, Tally], part: str, whole: str) -> Num | None:
    """Layers of a sort over all they are part of; ``None`` where no kind has any.

    Kinds that are all of the sort need no counting, which spares a column its divisions.
    """
    if not any(tally[part] for tally in tallies.values()):
        return None
    if all(tally[part] == tally[whole] for tally in tallies.values()):
        return 1.0
    counts = spec.decoder.occurrences()
    share: Num = _sum(counts, tallies, part) / maximum(_sum(counts, tallies, whole), 1)
    return share


def _sum(counts: dict[str, Dim], tallies: dict[str, Tally], part: str) -> Any:
    return sum(counts[name] * tally[part] for name, tally in tallies.items() if tally[part])


def _windows(kinds: list[Layer]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in kinds:
        for module in _modules(kind, (GroupedAttention, LatentAttention)):
            if _self_attention(module) and isinstance(module.span, Window | Chunk):
                span = module.span
                found["window"] = span.window if isinstance(span, Window) else span.chunk
                if isinstance(module, GroupedAttention) and module.sinks:
                    found["sinks"] = 1.0
    return found


def _shared_keys(spec: Spec, tallies: dict[str, Tally]) -> dict[str, Any]:
    """Layers that read the keys and values of earlier ones, in pairs or in longer chains.

    A run whose pattern has an own layer for each shared one shares in pairs; one with more shared
    than own layers, or with none of its own, in chains.
    """
    if not any(tally["shares_kv"] for tally in tallies.values()):
        return {}
    shared: dict[str, Any] = {}
    for run in spec.decoder.layout:
        parts = [tallies[name] for name in run.pattern]
        readers = sum(t["shares_kv"] for t in parts)
        pairs = 2 * readers <= sum(t["attention"] for t in parts)
        key = "kv_pair_share" if pairs else "kv_chain_share"
        for n, tally in zip(run.occurrences(), parts, strict=True):
            if tally["shares_kv"]:
                shared[key] = shared.get(key, 0) + n * tally["shares_kv"]
    everything = maximum(_sum(spec.decoder.occurrences(), tallies, "attention"), 1)
    return {key: n / everything for key, n in shared.items()}
