"""A spec becomes a flat list of operators: the only place that knows what a transformer does.

``operators(spec, workload)`` is the list, ``tensors(spec)`` the weights in it. Parameters, FLOPs,
bytes, caches, time, sharding and alignment are folds over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from scantling.arith import Dim, Num, ceil_div, minimum
from scantling.ops import attention, augmented, compressed, feedforward, linear, recurrent, stem
from scantling.ops.op import PARTS, Cache, Op, Part, Tensor, visible_pairs
from scantling.ops.site import Site
from scantling.spec import (
    AltUp,
    Block,
    Branch,
    ChannelMix,
    CompressedAttention,
    Dense,
    Embeddings,
    Experts,
    GatedDelta,
    GroupedAttention,
    Handed,
    HyperConnections,
    KimiDelta,
    LatentAttention,
    Laurel,
    Layer,
    LinearAttention,
    Mamba1,
    Mamba2,
    MixtureOfDepths,
    Norm,
    PerLayerInput,
    Projection,
    RgLru,
    Rwkv,
    ShortConv,
    Spec,
    Stack,
    TokenConv,
    Workload,
)

MODULES: dict[type, Callable[[Any, Site], Iterator[Op]]] = {
    GroupedAttention: attention.grouped,
    LatentAttention: attention.latent,
    CompressedAttention: compressed.compressed,
    LinearAttention: linear.linear,
    GatedDelta: linear.gated_delta,
    KimiDelta: linear.kimi_delta,
    Mamba1: recurrent.mamba1,
    Mamba2: recurrent.mamba2,
    Rwkv: recurrent.rwkv,
    RgLru: recurrent.rg_lru,
    ShortConv: recurrent.short_conv,
    TokenConv: stem.token_conv,
    Laurel: augmented.laurel,
    PerLayerInput: augmented.per_layer_input,
    Projection: feedforward.projection,
    Dense: feedforward.dense,
    ChannelMix: feedforward.channel_mix,
    Experts: feedforward.experts,
}


def operators(spec: Spec, workload: Workload | None = None) -> tuple[Op, ...]:
    """The work of one forward pass, and in the train phase of the backward pass too.

    Args:
        spec: A spec, or a column spec: then the dimensions of each operator are arrays.
        workload: What is run; the default is a prefill of one token.

    Returns:
        Operators in the order of the model; equal layers are one operator with a ``repeat``.

    Example:
        >>> from scantling import catalog
        >>> ops = operators(catalog.model("gpt2"))
        >>> [(op.name, op.n, op.k) for op in ops if op.kind == "matmul"][0]
        ('decoder.layer.attention.qkv', 2304, 768)
    """
    workload = workload or Workload()
    forward = tuple(_forward(spec, workload))
    if workload.phase != "train":
        return forward
    return forward + tuple(_backward(forward))


def tensors(spec: Spec) -> tuple[Tensor, ...]:
    """Every weight of a model, once, with its true shape; needs no workload.

    Example:
        >>> from scantling import catalog
        >>> sum(t.size() for t in tensors(catalog.model("gpt2")) if not t.alias)
        124439808
    """
    return tuple(t for op in operators(spec) for t in op.tensors)


def _forward(spec: Spec, w: Workload) -> Iterator[Op]:
    source = _source(spec, w)
    top = Site(
        path="model", width=spec.d_model, times=1, copies=1, phase=w.phase, batch=w.batch,
        queries=w.new_tokens, keys=w.context, source=source, vocab=spec.vocab_size,
    )  # fmt: skip
    if spec.encoder is not None and w.phase != "decode":
        encoder, own = replace(top, queries=source, keys=source), spec.encoder_embeddings
        if own is None:
            yield from _embed(spec, spec.embeddings, encoder)
        else:
            yield from _embed(spec, own, replace(encoder, path="encoder"), shared=True)
        yield from _stack(spec.encoder, "encoder", encoder)
        if own is None:  # the same weights once more, for the decoder's tokens
            yield from (replace(op, tensors=()) for op in _embed(spec, spec.embeddings, top))
        else:
            yield from _embed(spec, spec.embeddings, top)
    else:
        yield from _embed(spec, spec.embeddings, top)
    yield from _stack(spec.decoder, "decoder", top)
    if spec.head is not None:
        yield from _head(spec, top)


def _source(spec: Spec, w: Workload) -> Num:
    """Tokens of the encoder: as many as asked for, as a stem for sound makes, or as the decoder."""
    if w.source_context is not None:
        return w.source_context
    own = spec.encoder_embeddings
    if own is None or own.audio is None or own.position is None:
        return w.context
    return own.position.rows


def _embed(spec: Spec, e: Embeddings, site: Site, *, shared: bool = False) -> Iterator[Op]:
    """What comes before the first layer; a shared token table is listed where it is first."""
    width = spec.d_model if e.d_embed is None else e.d_embed
    if e.audio is not None:
        yield from stem.audio(e.audio, site)
    else:
        table = site.tensor("embedding", "embedding", spec.vocab_size, width)
        yield site.light("lookup", "embedding", "embedding", width, () if shared else (table,))
    if e.position is not None:
        wide = width if e.position.narrow else spec.d_model
        table = site.tensor("position", "embedding", e.position.rows, wide)
        kind = "elementwise" if e.audio is not None else "lookup"
        yield site.light(kind, "position", "embedding", wide, (table,))
    if e.sines:
        yield site.light("elementwise", "position", "embedding", spec.d_model, ())
    if e.n_token_type is not None:
        table = site.tensor("token_type", "embedding", e.n_token_type, width)
        yield site.light("lookup", "token_type", "embedding", width, (table,))
    if e.norm is not None and not e.norm_last:
        yield site.norm("embedding_norm", e.norm, width)
    if e.d_embed is not None:
        outs = (("project_in", spec.d_model),)
        yield site.matmul("project_in", "other", outs, width, bias=e.project_bias)
    if e.norm is not None and e.norm_last:
        yield site.norm("embedding_norm", e.norm, spec.d_model)
    if e.per_layer is not None:
        yield from augmented.per_layer_tables(e.per_layer, spec.n_layer, site)


def _head(spec: Spec, site: Site) -> Iterator[Op]:
    """The output product; with tied weights its matrix is the embedding's and adds nothing."""
    assert spec.head is not None
    width = spec.d_model if spec.embeddings.d_embed is None else spec.embeddings.d_embed
    if spec.head.project:
        yield site.matmul("project_out", "other", (("project_out", width),), spec.d_model)
    transform = spec.head.transform
    if transform is not None:
        inner = width if spec.head.project else spec.d_model
        outs = (("head_transform", width),)
        yield site.matmul("head_transform", "lm_head", outs, inner, bias=transform.bias)
        yield site.light("elementwise", "head_activation", "lm_head", width)
        if transform.norm is not None:
            yield site.norm("head_norm", transform.norm, width, "lm_head")
    op = site.matmul("lm_head", "lm_head", (("lm_head", spec.vocab_size),), width,
                     bias=spec.head.bias)  # fmt: skip
    if spec.tied:
        first = replace(op.tensors[0], alias="model.embedding")
        op = replace(op, tensors=(first, *op.tensors[1:]))
    yield op
    if spec.head.buffer_bias:
        bias = site.tensor("logits_bias", "lm_head", spec.vocab_size, buffer=True)
        yield site.light("elementwise", "logits_bias", "lm_head", spec.vocab_size, (bias,))


def _stack(stack: Stack, name: str, site: Site) -> Iterator[Op]:
    occurrences = stack.occurrences()
    top = replace(site, path=name)
    if stack.altup is not None:
        yield from augmented.streams(stack.altup, "altup_make", top)
    seen = False  # T5 and DeBERTa keep relative positions once a stack
    for layer in stack.kinds:
        if layer.name not in occurrences:
            continue
        times = occurrences[layer.name]
        place = replace(site, path=f"{name}.{layer.name}", times=times, copies=times)
        for op in _layer(layer, stack.altup, place):
            relative = any(_once(t) for t in op.tensors)
            yield _first_layer_only(op, seen) if relative else op
            seen = seen or relative
    if stack.altup is not None:
        yield from augmented.streams(stack.altup, "altup_merge", top)
    streams = _streams(stack)
    if streams is not None:
        yield from compressed.merge(streams, replace(site, path=name))
    if stack.final_norm is not None:
        yield top.norm("final_norm", stack.final_norm, site.width)


def _streams(stack: Stack) -> Dim | None:
    """Residual streams that a last mix makes one of."""
    for name in stack.occurrences():
        for block in stack.kind(name).blocks:
            residual = block.residual
            if isinstance(residual, HyperConnections) and residual.constrained:
                return residual.n_stream
    return None


def _once(t: Tensor) -> bool:
    """Whether a weight exists once a stack, whatever the depth: relative positions do."""
    return t.name.rpartition(".")[2].startswith("relative_")


def _first_layer_only(op: Op, seen: bool) -> Op:
    """Weights that exist once a stack stand in its first layer only; others stay."""
    found = []
    for t in op.tensors:
        if not _once(t):
            found.append(t)
        elif not seen:
            found.append(replace(t, copies=minimum(t.copies, 1)))
    return replace(op, tensors=tuple(found))


def _layer(layer: Layer, altup: AltUp | None, site: Site) -> Iterator[Op]:
    seen: dict[str, int] = {}
    names = [[_unique(branch.name, seen) for branch in block.branches] for block in layer.blocks]
    corrected = _corrected_before(layer)
    if altup is not None:
        yield from augmented.predict(altup, replace(site, path=f"{site.path}.altup_predict"))
    for i, own in enumerate([*names, []]):
        if altup is not None and i == corrected:
            yield from augmented.correct(altup, replace(site, path=f"{site.path}.altup_correct"))
        if own:
            yield from _block(layer.blocks[i], own, site)
    if layer.stored_scale:
        last = replace(site, path=f"{site.path}.{names[-1][0]}")
        scale = last.tensor("layer_scale", "other", 1, buffer=True)
        yield last.light("elementwise", "layer_scale", "other", site.width, (scale,))


def _corrected_before(layer: Layer) -> int:
    """The block before which AltUp corrects: per-layer embeddings join the corrected streams."""
    last = layer.blocks[-1].branches[0].module
    return len(layer.blocks) - isinstance(last, PerLayerInput)


def _unique(name: str, seen: dict[str, int]) -> str:
    """A module's name within its layer: a second FFN is ``ffn2``."""
    seen[name] = seen.get(name, 0) + 1
    return name if seen[name] == 1 else f"{name}{seen[name]}"


def _block(block: Block, names: list[str], site: Site) -> Iterator[Op]:
    outer = replace(site, path=f"{site.path}.{names[0]}")
    residual = block.residual
    sets = [branch.copies for branch in block.branches if branch.copies is not None]
    if len(sets) == len(block.branches):  # all is shared between layers, so are norms (ALBERT)
        outer = replace(outer, copies=minimum(sets[0], site.times))
    if isinstance(residual, MixtureOfDepths):
        yield outer.matmul("depth_router", "router", (("depth_router", 1),), site.width)
        share = residual.capacity_permille
        queries: Any = site.queries * share
        keys: Any = site.keys * share
        site = replace(
            site, queries=ceil_div(queries, 1000), keys=ceil_div(keys, 1000), permille=share
        )
        outer = replace(site, path=outer.path, copies=outer.copies)
    if isinstance(residual, HyperConnections) and residual.constrained:
        feeds = all(branch.name == "ffn" for branch in block.branches)
        yield from compressed.hyper(residual, "ffn" if feeds else "attention", outer)
    elif isinstance(residual, HyperConnections):
        yield from _hyper(residual, outer)
    if block.pre is not None:
        yield outer.norm("pre_norm", block.pre, _read_width(block.branches, site))
    for name, branch in zip(names, block.branches, strict=True):
        copies: Dim = site.copies if branch.copies is None else minimum(branch.copies, site.times)
        place = replace(site, path=f"{site.path}.{name}", copies=copies)
        if branch.pre is not None:
            yield place.norm("own_pre_norm", branch.pre, site.width)
        yield from MODULES[type(branch.module)](branch.module, place)
        if branch.post is not None:
            yield place.norm("own_post_norm", branch.post, site.width)
    if block.post is not None:
        yield outer.norm("post_norm", block.post, site.width)
    if not isinstance(residual, Handed):
        yield outer.light("elementwise", "residual", "other", site.width)
    if block.after is not None:
        yield outer.norm("after_norm", block.after, site.width)


def _read_width(branches: tuple[Branch, ...], site: Site) -> Dim:
    """What the modules of a block read: the stream, or it beside the embedding (Zamba)."""
    module = branches[0].module
    wider = isinstance(module, GroupedAttention) and len(branches) == 1
    found = module.d_input if wider else None  # type: ignore[union-attr]
    return site.width if found is None else found


def _hyper(h: HyperConnections, site: Site) -> Iterator[Op]:
    """Mixing of n residual streams: n static read weights, n (n + 1) static write weights.

    The dynamic part adds a norm, three projections from the stream (read, write, mix) and two
    scales (Zhu et al. 2024, equations 5 to 8).
    """
    n = h.n_stream
    static = (site.tensor("hyper_beta", "other", n), site.tensor("hyper_alpha", "other", n, n + 1))
    yield site.light("elementwise", "hyper_static", "other", n * site.width, static)
    if h.dynamic:
        yield site.norm("hyper_norm", Norm("rms"), site.width, "other", heads=n)
        outs = (("hyper_beta_dynamic", 1), ("hyper_alpha_dynamic", n + 1))
        yield site.matmul("hyper_dynamic", "other", outs, site.width, rows=site.rows * n)
        scales = (site.tensor("hyper_scale", "other", 2),)
        yield site.light("elementwise", "hyper_scale", "other", n, scales)


def _backward(forward: tuple[Op, ...]) -> Iterator[Op]:
    """The backward pass: each product becomes two of the same size.

    y = x W with x (m × k), W (k × n): the gradient of x is (m × n) by (n × k), of W it is
    (k × m) by (m × n); each costs 2 m n k like the forward product. Attention has two products
    forward and four backward: twice its k. Lighter work runs once more.
    """
    for op in reversed(forward):
        if op.kind == "matmul":
            yield replace(op, name=f"{op.name}.grad_input", n=op.k, k=op.n, cache=None,
                          backward=True)  # fmt: skip
            yield replace(op, name=f"{op.name}.grad_weight", m=op.k, k=op.m, cache=None,
                          tensors=(), backward=True)  # fmt: skip
        else:
            k = 2 * op.k if op.kind in {"attention", "scan"} else op.k
            yield replace(op, name=f"{op.name}.grad", k=k, cache=None, backward=True)


__all__ = [
    "MODULES",
    "PARTS",
    "Cache",
    "Op",
    "Part",
    "Tensor",
    "operators",
    "tensors",
    "visible_pairs",
]
