"""The neutral description between a config and a spec, and the way between it and a spec."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from scantling.arith import Dim
from scantling.spec import (
    Alibi,
    Block,
    Branch,
    Chunk,
    Dense,
    Embeddings,
    Experts,
    FeedForward,
    Full,
    GroupedAttention,
    Head,
    LatentAttention,
    Layer,
    LearnedPosition,
    Mixer,
    Norm,
    Plain,
    QKNorm,
    Rope,
    Router,
    Run,
    SharedExpert,
    Spec,
    Stack,
    Window,
)

Flags = bool | list[bool]


class Fields(Struct, kw_only=True, forbid_unknown_fields=True):
    """What any decoder of the table is: one value per field, some per layer.

    The names are those of ``[decoder]`` in ``data/hf_types.toml``.
    """

    d_model: Dim
    n_layer: Dim
    vocab_size: Dim
    max_context: Dim | None
    tied: bool
    learned_rows: Dim | None
    d_embed: Dim | None
    embedding_norm: bool
    embedding_scale: float | None
    head_bias: bool
    head_softcap: float | None
    head_scale: float | None
    norm: Literal["rms", "layer"]
    norm_scale: bool
    norm_bias: bool
    norms: Literal["pre", "both", "output", "after"]
    final_norm: bool
    block: Literal["serial", "shared", "own"]
    residual_scale: float
    n_head: Dim
    n_kv_head: Dim
    d_head: Dim
    qkv_bias: bool
    out_bias: bool
    qk_norm: Literal["head", "each_head", "width"] | None
    position: Literal["rope", "alibi"] | None
    theta: float
    theta_local: float
    rope_fraction: float
    rope_scaling: dict[str, Any] | None
    roped: Flags
    window: Dim | None
    chunk: Dim | None
    windowed: Flags
    sinks: bool
    softcap: float | None
    scale: float | None
    kv_rank: Dim | None
    q_rank: Dim | None
    d_nope: Dim | None
    d_rope: Dim | None
    d_value: Dim | None
    d_ff: Dim | None
    gated: bool
    activation: str
    ff_in_bias: bool
    ff_out_bias: bool
    n_expert: Dim | None
    top_k: Dim | None
    d_expert: Dim | None
    expert_bias: bool
    router_bias: bool
    scoring: Literal["softmax", "sigmoid"]
    correction: bool
    n_expert_group: Dim | None
    top_k_group: Dim | None
    d_shared: Dim | None
    shared_gate: bool
    shared_bias: bool
    sparse: Flags
    n_mtp: int

    def stream_norm(self) -> Norm:
        """The norm of the residual stream."""
        return Norm(self.norm, self.norm_scale, self.norm_bias)


def to_spec(f: Fields) -> Spec:
    """Assemble a spec: one layer kind per combination of window, rotation and experts."""
    local = f.window is not None or f.chunk is not None
    windowed = f.windowed if local else False
    roped = f.roped if f.position == "rope" else False
    sparse = f.sparse if f.n_expert is not None else False
    keys = list(zip(*(_per_layer(x, f.n_layer) for x in (windowed, roped, sparse)), strict=True))
    names = _kind_names(dict.fromkeys(keys))
    kinds = tuple(_layer(names[key], f, *key) for key in names)
    norm = f.stream_norm()
    rows = None if f.learned_rows is None else LearnedPosition(f.learned_rows)
    return Spec(
        d_model=f.d_model,
        vocab_size=f.vocab_size,
        decoder=Stack(
            kinds, squeeze([names[key] for key in keys], f.n_layer), norm if f.final_norm else None
        ),
        embeddings=Embeddings(
            position=rows, d_embed=f.d_embed, norm=norm if f.embedding_norm else None,
            scale=f.embedding_scale,
        ),
        tied=f.tied,
        head=Head(f.head_bias, f.d_embed is not None, f.head_softcap, f.head_scale),
        max_context=f.max_context,
    )  # fmt: skip


def _per_layer(flags: Flags, n_layer: Dim) -> list[bool]:
    """A list over the layers; one element where all layers are alike (see ``squeeze``)."""
    return list(flags) if isinstance(flags, list) else [flags] * int(n_layer)


def _kind_names(keys: dict[tuple[bool, bool, bool], None]) -> dict[tuple[bool, bool, bool], str]:
    """Short names that say only what differs between the kinds: local, global, dense, moe, nope."""
    words = []
    for position, (no, yes) in enumerate((("global", "local"), ("nope", "rope"), ("dense", "moe"))):
        if len({key[position] for key in keys}) > 1:
            words.append((position, (no, yes)))
    if len(words) > 1:  # rotation that follows the window needs no second word
        pairs = {(key[0], key[1]) for key in keys}
        if len(pairs) == 2 and len({p[0] for p in pairs}) == 2:
            words = [w for w in words if w[0] != 1]
    return {
        key: "_".join(word[key[position]] for position, word in words) or "layer" for key in keys
    }


def _layer(name: str, f: Fields, windowed: bool, roped: bool, sparse: bool) -> Layer:
    norm, residual = f.stream_norm(), Plain(f.residual_scale)
    mixer, feedforward = _mixer(f, windowed, roped), _feedforward(f, sparse)
    if f.block != "serial":
        own = norm if f.block == "own" else None
        shared = norm if f.block == "shared" else None
        branches = (Branch(mixer, pre=own), Branch(feedforward, pre=own))
        return Layer(name, (Block(branches, pre=shared, residual=residual),))
    pre = norm if f.norms in {"pre", "both"} else None
    post = norm if f.norms in {"both", "output"} else None
    after = norm if f.norms == "after" else None
    return Layer(name, tuple(
        Block((Branch(m),), pre=pre, post=post, after=after, residual=residual)
        for m in (mixer, feedforward)
    ))  # fmt: skip


def _mixer(f: Fields, windowed: bool, roped: bool) -> Mixer:
    position: Rope | Alibi | None = Alibi() if f.position == "alibi" else None
    if roped:
        scaling = None if f.rope_scaling is None else freeze(f.rope_scaling)
        local = windowed and f.theta_local != f.theta
        theta = f.theta_local if local else f.theta
        position = Rope(theta, f.rope_fraction, None if local else scaling)
    span: Full | Window | Chunk = Full()
    if windowed:
        span = Window(f.window) if f.window is not None else Chunk(f.chunk)  # type: ignore[arg-type]
    if f.kv_rank is not None:
        return LatentAttention(
            n_head=f.n_head, kv_rank=f.kv_rank, d_nope=f.d_nope, d_rope=f.d_rope,  # type: ignore[arg-type]
            d_value=f.d_value, q_rank=f.q_rank, qkv_bias=f.qkv_bias, out_bias=f.out_bias,  # type: ignore[arg-type]
            position=position, span=span, scale=f.scale,
        )  # fmt: skip
    qk_norm = None
    if f.qk_norm is not None:
        kind = f.norm
        bias = f.norm_bias and f.qk_norm != "each_head"
        qk_norm = QKNorm(f.qk_norm, Norm(kind, bias=bias))
    return GroupedAttention(
        n_head=f.n_head, n_kv_head=f.n_kv_head, d_head=f.d_head, qkv_bias=f.qkv_bias,
        out_bias=f.out_bias, qk_norm=qk_norm, position=position, span=span, sinks=f.sinks,
        softcap=f.softcap, scale=f.scale,
    )  # fmt: skip


def _feedforward(f: Fields, sparse: bool) -> FeedForward:
    if not sparse:
        return Dense(f.d_ff, f.gated, f.activation, f.ff_in_bias, f.ff_out_bias)  # type: ignore[arg-type]
    shared = None if f.d_shared is None else SharedExpert(f.d_shared, f.shared_gate, f.shared_bias)
    router = Router(f.scoring, f.router_bias, f.correction, f.n_expert_group, f.top_k_group)
    return Experts(
        n_expert=f.n_expert, top_k=f.top_k, d_expert=f.d_expert, gated=f.gated,  # type: ignore[arg-type]
        activation=f.activation, bias=f.expert_bias, router=router, shared=shared,
    )  # fmt: skip


def freeze(settings: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """A dictionary of settings as sorted pairs, so that a spec stays hashable."""
    return tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in sorted(settings.items()))


def thaw(settings: tuple[tuple[str, Any], ...] | None) -> dict[str, Any] | None:
    """The way back from ``freeze``."""
    if settings is None:
        return None
    return {k: list(v) if isinstance(v, tuple) else v for k, v in settings}


def squeeze(kinds: Sequence[str], n_layer: Dim) -> tuple[Run, ...]:
    """A list of layer kinds as few runs: equal runs first, then one cycle to the end.

    Of all periods the one with the fewest words wins: words are the runs of the prefix and the
    kinds of the cycle.

    Example:
        >>> squeeze(["local"] * 2 + ["global"] + ["local"] * 2, 5)
        (Run(pattern=('local', 'local', 'global'), n=5),)
        >>> squeeze(["dense", "moe", "moe", "moe"], 4)
        (Run(pattern=('dense',), n=1), Run(pattern=('moe',), n=3))
    """
    if len(set(kinds)) == 1:
        return (Run((kinds[0],), n_layer),)
    n, best, chosen = len(kinds), None, (0, 0)
    for period in range(1, min(n, 64) + 1):
        start = n - period
        while start > 0 and kinds[start - 1] == kinds[start - 1 + period]:
            start -= 1
        words = len(_equal_runs(kinds[:start])) + period
        if best is None or (words, start) < best:
            best, chosen = (words, start), (start, period)
    start, period = chosen
    cycle = tuple(kinds[start : start + period])
    return (*_equal_runs(kinds[:start]), Run(cycle, n - start))


def _equal_runs(kinds: Sequence[str]) -> list[Run]:
    runs: list[Run] = []
    for kind in kinds:
        if runs and runs[-1].pattern == (kind,):
            runs[-1] = Run((kind,), runs[-1].n + 1)
        else:
            runs.append(Run((kind,), 1))
    return runs


def from_spec(spec: Spec) -> Fields | None:
    """The fields of a spec, or none where the spec has parts no field can say.

    The proof is the way back: ``to_spec(from_spec(spec)) == spec``.
    """
    kinds = {k.name: k for k in spec.decoder.kinds}
    order = [kinds[name] for name in spec.decoder.expand()]
    parts = [_parts(kind) for kind in order]
    if spec.encoder is not None or spec.head is None or any(p is None for p in parts):
        return None
    mixers = [p[0] for p in parts if p]
    feedforwards = [p[1] for p in parts if p]
    values = _embedding_values(spec)
    values |= _block_values(order[0])
    values |= _mixer_values(mixers)
    values |= _feedforward_values(feedforwards)
    return msgspec.convert(values, Fields)


def _parts(kind: Layer) -> tuple[GroupedAttention | LatentAttention, FeedForward] | None:
    modules = [branch.module for block in kind.blocks for branch in block.branches]
    if len(modules) != 2:
        return None
    mixer, feedforward = modules
    if isinstance(mixer, GroupedAttention | LatentAttention) and isinstance(
        feedforward, Dense | Experts
    ):
        return mixer, feedforward
    return None


def _embedding_values(spec: Spec) -> dict[str, Any]:
    e, head = spec.embeddings, spec.head or Head()
    return {
        "d_model": spec.d_model, "n_layer": spec.n_layer, "vocab_size": spec.vocab_size,
        "max_context": spec.max_context, "tied": spec.tied,
        "learned_rows": None if e.position is None else e.position.rows, "d_embed": e.d_embed,
        "embedding_norm": e.norm is not None, "embedding_scale": e.scale,
        "head_bias": head.bias, "head_softcap": head.softcap, "head_scale": head.scale,
        "final_norm": spec.decoder.final_norm is not None, "n_mtp": 0,
    }  # fmt: skip


def _block_values(layer: Layer) -> dict[str, Any]:
    block = layer.blocks[0]
    first = block.branches[0]
    if len(block.branches) > 1:
        form, norms = ("own", "pre") if first.pre is not None else ("shared", "pre")
    else:
        form = "serial"
        norms = "after" if block.after is not None else "pre"
        if block.post is not None:
            norms = "both" if block.pre is not None else "output"
    norm = block.pre or block.post or block.after or first.pre or Norm()
    residual = block.residual
    return {
        "block": form, "norms": norms, "norm": norm.kind, "norm_scale": norm.scale,
        "norm_bias": norm.bias,
        "residual_scale": residual.scale if isinstance(residual, Plain) else 1.0,
    }  # fmt: skip


def _mixer_values(mixers: list[GroupedAttention | LatentAttention]) -> dict[str, Any]:
    a = mixers[-1]
    spans = [m.span for m in mixers]
    window = next((s.window for s in spans if isinstance(s, Window)), None)
    chunk = next((s.chunk for s in spans if isinstance(s, Chunk)), None)
    ropes = [m.position for m in mixers if isinstance(m.position, Rope)]
    local = [m.position for m in mixers
             if isinstance(m.position, Rope) and not isinstance(m.span, Full)]  # fmt: skip
    far = [m.position for m in mixers
           if isinstance(m.position, Rope) and isinstance(m.span, Full)] or ropes  # fmt: skip
    position = "rope" if ropes else "alibi" if isinstance(a.position, Alibi) else None
    theta = far[0].theta if far else 10000.0
    values: dict[str, Any] = {
        "n_head": a.n_head, "qkv_bias": a.qkv_bias, "out_bias": a.out_bias, "scale": a.scale,
        "position": position, "theta": theta,
        "theta_local": local[0].theta if local else theta,
        "rope_fraction": ropes[0].fraction if ropes else 1.0,
        "rope_scaling": thaw(far[0].scaling) if far else None,
        "roped": [isinstance(m.position, Rope) for m in mixers],
        "window": window, "chunk": chunk,
        "windowed": [not isinstance(s, Full) for s in spans],
        "sinks": False, "softcap": None, "qk_norm": None,
        "kv_rank": None, "q_rank": None, "d_nope": None, "d_rope": None, "d_value": None,
    }  # fmt: skip
    if isinstance(a, LatentAttention):
        values |= {
            "n_kv_head": a.n_head, "d_head": a.d_nope, "kv_rank": a.kv_rank, "q_rank": a.q_rank,
            "d_nope": a.d_nope, "d_rope": a.d_rope, "d_value": a.d_value,
        }  # fmt: skip
    else:
        values |= {
            "n_kv_head": a.n_kv_head, "d_head": a.d_head, "sinks": a.sinks, "softcap": a.softcap,
            "qk_norm": None if a.qk_norm is None else a.qk_norm.scope,
        }  # fmt: skip
    return values


def _feedforward_values(feedforwards: list[FeedForward]) -> dict[str, Any]:
    dense = next((f for f in feedforwards if isinstance(f, Dense)), None)
    moe = next((f for f in feedforwards if isinstance(f, Experts)), None)
    any_kind = dense or moe
    assert any_kind is not None
    router = Router() if moe is None else moe.router
    shared = None if moe is None else moe.shared
    return {
        "d_ff": None if dense is None else dense.d_ff,
        "gated": any_kind.gated, "activation": any_kind.activation,
        "ff_in_bias": dense is not None and dense.in_bias,
        "ff_out_bias": dense is not None and dense.out_bias,
        "n_expert": None if moe is None else moe.n_expert,
        "top_k": None if moe is None else moe.top_k,
        "d_expert": None if moe is None else moe.d_expert,
        "expert_bias": moe is not None and moe.bias,
        "router_bias": router.bias, "scoring": router.scoring, "correction": router.correction,
        "n_expert_group": router.n_expert_group, "top_k_group": router.top_k_group,
        "d_shared": None if shared is None else shared.d_shared,
        "shared_gate": shared is not None and shared.gate,
        "shared_bias": shared is not None and shared.bias,
        "sparse": [isinstance(f, Experts) for f in feedforwards],
    }  # fmt: skip
