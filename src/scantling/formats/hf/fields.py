"""The neutral description between a config and a spec, and the way between it and a spec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from scantling.arith import Dim
from scantling.errors import FieldError
from scantling.formats.hf.layout import freeze, squeeze, thaw
from scantling.spec import (
    Alibi,
    Block,
    Branch,
    ChannelMix,
    Chunk,
    Dense,
    Embeddings,
    Experts,
    FeedForward,
    Full,
    GroupedAttention,
    Handed,
    Head,
    HyperConnections,
    Indexer,
    LatentAttention,
    Layer,
    LearnedPosition,
    Mixer,
    Norm,
    Plain,
    Projection,
    QKNorm,
    Residual,
    Rope,
    Router,
    SharedExpert,
    Spec,
    Stack,
    Window,
)

Flags = bool | list[bool]
Words = str | list[str]


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
    sines: bool
    d_embed: Dim | None
    embedding_norm: bool
    embedding_scale: float | None
    head_bias: bool
    head_softcap: float | None
    head_scale: float | None
    norm: Literal["rms", "layer"]
    norm_scale: bool
    norm_bias: bool
    norms: Literal["pre", "both", "output", "after"] | list[Literal["pre", "output"]]
    final_norm: bool
    block: Literal["serial", "shared", "own"]
    residual_scale: float
    n_stream: Dim | None
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
    gate: Literal["head", "element"] | None
    d_head_value: Dim | None
    inner_norms: bool
    softcap: float | None
    scale: float | None
    kv_rank: Dim | None
    q_rank: Dim | None
    d_nope: Dim | None
    d_rope: Dim | None
    d_value: Dim | None
    indexer: Indexer | None
    mixer: Words
    mixers: dict[str, Mixer | FeedForward]
    copies: dict[str, Dim]
    ffn: Words
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
    n_zero: Dim | None
    delayed: bool
    scoring: Literal["softmax", "sigmoid", "sqrtsoftplus"]
    correction: Literal["buffer", "parameter"] | None
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

    LISTS: ClassVar[tuple[str, ...]] = ("windowed", "roped", "sparse", "mixer", "ffn", "norms")
    """Fields that may be a list over the layers."""

    def needed(self) -> list[str]:
        """Fields that must not be null, given the others."""
        found = []
        uses = {word for words in _ffn_words(self) for word in _words(words)} - set(self.mixers)
        if "dense" in uses:
            found.append("d_ff")
        if "experts" in uses:
            found += ["n_expert", "top_k", "d_expert"]
        if self.kv_rank is not None:
            found += ["d_nope", "d_rope", "d_value"]
        return found


def to_spec(f: Fields) -> Spec:
    """Assemble a spec: one layer kind per combination of window, rotation, mixer and FFN."""
    local = f.window is not None or f.chunk is not None
    n = int(f.n_layer)
    columns = (
        _per_layer(f.windowed if local else False, n),
        _per_layer(f.roped if f.position == "rope" else False, n),
        _per_layer(f.mixer, n), _ffn_words(f), _per_layer(f.norms, n),
    )  # fmt: skip
    keys = [Key(*row) for row in zip(*columns, strict=True)]
    keys = [
        k if "attention" in _words(k.mixer) else k._replace(windowed=False, roped=False)
        for k in keys
    ]
    names = _kind_names(list(dict.fromkeys(keys)))
    kinds = tuple(_layer(names[key], f, key) for key in names)
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
            scale=f.embedding_scale, sines=f.sines,
        ),
        tied=f.tied,
        head=Head(f.head_bias, f.d_embed is not None, f.head_softcap, f.head_scale),
        max_context=f.max_context,
    )  # fmt: skip


class Key(NamedTuple):
    """What a layer kind is told apart by: mixers and FFNs are words.

    ``a+b`` is side by side, ``a>b`` one that hands its output to the other.
    """

    windowed: bool
    roped: bool
    mixer: str
    ffn: str
    norms: str


def _per_layer(value: Any, n_layer: int) -> list[Any]:
    """A list over the layers from one value for all, or the list itself."""
    return list(value) if isinstance(value, list) else [value] * n_layer


def _ffn_words(f: Fields) -> list[str]:
    """The feed-forward of each layer; ``auto`` is experts where ``sparse`` says so."""
    n = int(f.n_layer)
    sparse = _per_layer(f.sparse if f.n_expert is not None else False, n)
    auto = ["experts" if s else "dense" for s in sparse]
    return [a if w == "auto" else w for w, a in zip(_per_layer(f.ffn, n), auto, strict=True)]


def _kind_names(keys: list[Key]) -> dict[Key, str]:
    """Short names that say only what differs: local, global, mamba2, dense, moe, nope."""
    words: list[Callable[[Key], str]] = []
    attention = [k for k in keys if k.mixer == "attention"]
    if len({k.windowed for k in attention}) > 1:
        words.append(lambda k: ("local" if k.windowed else "global") if k in attention else "")
    pairs = {(k.windowed, k.roped) for k in attention}
    follows = len(pairs) == 2 and len({p[0] for p in pairs}) == 2  # the window says it already
    if len({k.roped for k in attention}) > 1 and not follows:
        words.append(lambda k: ("rope" if k.roped else "nope") if k in attention else "")
    if len({k.mixer for k in keys}) > 1:
        told = list(words)
        words.append(
            lambda k: "" if k.mixer == "none" or any(word(k) for word in told) else k.mixer
        )
    if len({k.ffn for k in keys}) > 1:
        words.append(lambda k: {"experts": "moe", "none": ""}.get(k.ffn, k.ffn))
    names: dict[Key, str] = {}
    for key in keys:
        name = "_".join(filter(None, (word(key) for word in words))) or "layer"
        names[key] = name if name not in names.values() else f"{name}{len(names) + 1}"
    return names


def _layer(name: str, f: Fields, key: Key) -> Layer:
    norm = f.stream_norm()
    residual: Residual = Plain(f.residual_scale)
    if f.n_stream is not None:
        residual = HyperConnections(f.n_stream, constrained=True)
    mixers, ffns = _branches(f, key, key.mixer), _branches(f, key, key.ffn)
    if f.block != "serial":
        own = norm if f.block == "own" else None
        shared = norm if f.block == "shared" else None
        branches = tuple(replace(b, pre=own) for b in (*mixers, *ffns))
        return Layer(name, (Block(branches, pre=shared, residual=residual),))
    pre = norm if key.norms in {"pre", "both"} else None
    post = norm if key.norms in {"both", "output"} else None
    after = norm if key.norms == "after" else None
    *handed, last = key.mixer.split(">")
    first = tuple(Block(b, pre=None if _bare(b) else norm, residual=Handed())
                  for b in (_branches(f, key, words) for words in handed))  # fmt: skip
    mixers = _branches(f, key, last)
    return Layer(name, first + tuple(
        Block(beside, pre=pre, post=post, after=after, residual=residual)
        for beside in (mixers, ffns) if beside
    ))  # fmt: skip


def _branches(f: Fields, key: Key, words: str) -> tuple[Branch, ...]:
    """The modules of words that stand side by side."""
    named = [word for word in _words(words) if word != "none"]
    return tuple(Branch(_named(f, word, key), copies=f.copies.get(word)) for word in named)


def _words(text: str) -> list[str]:
    return text.replace(">", "+").split("+")


def _bare(branches: tuple[Branch, ...]) -> bool:
    """Whether a block has no norm of its own: a projection behind another block."""
    return isinstance(branches[0].module, Projection)


def _named(f: Fields, word: str, key: Key) -> Mixer | FeedForward:
    """The module a word stands for: the fields' own attention and FFN, or one of ``mixers``."""
    if word == "attention" and word not in f.mixers:
        return _mixer(f, key.windowed, key.roped)
    if word in {"dense", "experts"} and word not in f.mixers:
        return _feedforward(f, word == "experts")
    if word not in f.mixers:
        raise FieldError("mixer", word, "is no kind of layer of this type")
    return f.mixers[word]


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
            position=position, span=span, scale=f.scale, indexer=f.indexer, gate=f.gate == "head",
        )  # fmt: skip
    qk_norm = None
    if f.qk_norm is not None:
        kind = f.norm
        bias = f.norm_bias and f.qk_norm != "each_head"
        qk_norm = QKNorm(f.qk_norm, Norm(kind, bias=bias))
    return GroupedAttention(
        n_head=f.n_head, n_kv_head=f.n_kv_head, d_head=f.d_head, qkv_bias=f.qkv_bias,
        out_bias=f.out_bias, qk_norm=qk_norm, position=position, span=span, sinks=f.sinks,
        gate=f.gate, d_value=f.d_head_value, out_norm=f.stream_norm() if f.inner_norms else None,
        softcap=f.softcap, scale=f.scale,
    )  # fmt: skip


def _feedforward(f: Fields, sparse: bool) -> FeedForward:
    if not sparse:
        inner = f.stream_norm() if f.inner_norms else None
        return Dense(f.d_ff, f.gated, f.activation, f.ff_in_bias, f.ff_out_bias, inner)  # type: ignore[arg-type]
    shared = None if f.d_shared is None else SharedExpert(f.d_shared, f.shared_gate, f.shared_bias)
    router = Router(f.scoring, f.router_bias, f.correction, f.n_expert_group, f.top_k_group)
    return Experts(
        n_expert=f.n_expert, top_k=f.top_k, d_expert=f.d_expert, gated=f.gated,  # type: ignore[arg-type]
        activation=f.activation, bias=f.expert_bias, router=router, shared=shared,
        n_zero=f.n_zero, delayed=f.delayed,
    )  # fmt: skip


def from_spec(spec: Spec) -> Fields | None:
    """The fields of a spec, or none where the spec has parts no field can say.

    The proof is the way back: ``to_spec(from_spec(spec)) == spec``.
    """
    kinds = {k.name: k for k in spec.decoder.kinds}
    order = [kinds[name] for name in spec.decoder.expand()]
    if spec.encoder is not None or spec.head is None:
        return None
    modules = [_modules(kind) for kind in order]
    known: dict[str, Mixer | FeedForward] = {}
    mixer = ["+".join(_word(m, known) for m in ms if _is_mixer(m)) or "none" for ms in modules]
    ffn = ["+".join(_word(m, known) for m in ms if not _is_mixer(m)) or "none" for ms in modules]
    values = _embedding_values(spec)
    values |= _block_values(order[0])
    values |= _mixer_values([m for ms in modules for m in ms if _is_main(m, known)], modules)
    values |= _feedforward_values([known[w] for w in ("dense", "experts") if w in known])
    values |= {
        "mixer": mixer, "ffn": ffn, "sparse": [w == "experts" for w in ffn],
        "mixers": {k: v for k, v in known.items() if k != "attention"} | _wide(modules),
        "copies": _copies(order),
    }  # fmt: skip
    try:
        return msgspec.convert(values, Fields)
    except msgspec.ValidationError:
        return None


def _modules(kind: Layer) -> list[Mixer | FeedForward]:
    return [branch.module for block in kind.blocks for branch in block.branches]


def _wide(layers: list[list[Mixer | FeedForward]]) -> dict[str, Mixer]:
    """Attention that no other field can say: it reads more than the stream, or has a selector."""
    found = [m for ms in layers for m in ms if isinstance(m, GroupedAttention)]
    own = bool(found) and found[0].d_input is not None
    return {"attention": found[0]} if own or any(m.selector for m in found) else {}


def _copies(layers: list[Layer]) -> dict[str, Dim]:
    """Distinct weight sets of shared modules, by word."""
    branches = [b for layer in layers for block in layer.blocks for b in block.branches]
    return {_word(b.module, {}): b.copies for b in branches if b.copies is not None}


def _is_mixer(module: Mixer | FeedForward) -> bool:
    return not isinstance(module, Dense | ChannelMix | Experts)


def _plain(module: Mixer | FeedForward) -> Mixer | FeedForward:
    """A module without what differs by layer: its span and its rotation."""
    if isinstance(module, GroupedAttention | LatentAttention):
        return replace(module, span=Full(), position=None)
    return module


def _word(module: Mixer | FeedForward, known: dict[str, Mixer | FeedForward]) -> str:
    """The word of a module; a second one of the same type has a 2 behind it."""
    kind = {"latent": "attention"}.get(module.__struct_config__.tag, module.__struct_config__.tag)  # type: ignore[arg-type]
    for number in range(1, 9):
        word = f"{kind}{'' if number == 1 else number}"
        if word not in known:
            known[word] = _plain(module) if word == "attention" else module
        if _plain(known[word]) == _plain(module) and (word == "attention" or known[word] == module):
            return word
    return "none"


def _is_main(module: Mixer | FeedForward, known: dict[str, Mixer | FeedForward]) -> bool:
    return "attention" in known and _plain(module) == known["attention"]


def _embedding_values(spec: Spec) -> dict[str, Any]:
    e, head = spec.embeddings, spec.head or Head()
    return {
        "d_model": spec.d_model, "n_layer": spec.n_layer, "vocab_size": spec.vocab_size,
        "max_context": spec.max_context, "tied": spec.tied,
        "learned_rows": None if e.position is None else e.position.rows, "d_embed": e.d_embed,
        "embedding_norm": e.norm is not None, "embedding_scale": e.scale, "sines": e.sines,
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
        "n_stream": residual.n_stream if isinstance(residual, HyperConnections) else None,
    }  # fmt: skip


NO_ATTENTION = GroupedAttention(1, 1, 1)


def _mixer_values(mixers: list[Any], layers: list[list[Mixer | FeedForward]]) -> dict[str, Any]:
    a = mixers[0] if mixers else NO_ATTENTION
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
    by_layer: list[Any] = [next((m for m in ms if m in mixers), a) for ms in layers]
    values: dict[str, Any] = {
        "n_head": a.n_head, "qkv_bias": a.qkv_bias, "out_bias": a.out_bias, "scale": a.scale,
        "position": position, "theta": theta,
        "theta_local": local[0].theta if local else theta,
        "rope_fraction": ropes[0].fraction if ropes else 1.0,
        "rope_scaling": thaw(far[0].scaling) if far else None,
        "roped": [isinstance(m.position, Rope) for m in by_layer],
        "window": window, "chunk": chunk,
        "windowed": [not isinstance(m.span, Full) for m in by_layer],
        "sinks": False, "softcap": None, "gate": None, "d_head_value": None,
        "inner_norms": False, "qk_norm": None, "indexer": None,
        "kv_rank": None, "q_rank": None, "d_nope": None, "d_rope": None, "d_value": None,
    }  # fmt: skip
    if isinstance(a, LatentAttention):
        values |= {
            "n_kv_head": a.n_head, "d_head": a.d_nope, "kv_rank": a.kv_rank, "q_rank": a.q_rank,
            "d_nope": a.d_nope, "d_rope": a.d_rope, "d_value": a.d_value, "indexer": a.indexer,
            "gate": "head" if a.gate else None,
        }  # fmt: skip
    else:
        values |= {
            "n_kv_head": a.n_kv_head, "d_head": a.d_head, "sinks": a.sinks, "softcap": a.softcap,
            "gate": a.gate, "d_head_value": a.d_value, "inner_norms": a.out_norm is not None,
            "qk_norm": None if a.qk_norm is None else a.qk_norm.scope,
        }  # fmt: skip
    return values


def _feedforward_values(feedforwards: list[Any]) -> dict[str, Any]:
    dense = next((f for f in feedforwards if isinstance(f, Dense)), None)
    moe = next((f for f in feedforwards if isinstance(f, Experts)), None)
    any_kind = dense or moe or Dense(1)
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
        "n_zero": None if moe is None else moe.n_zero,
        "delayed": moe is not None and moe.delayed,
        "router_bias": router.bias, "scoring": router.scoring, "correction": router.correction,
        "n_expert_group": router.n_expert_group, "top_k_group": router.top_k_group,
        "d_shared": None if shared is None else shared.d_shared,
        "shared_gate": shared is not None and shared.gate,
        "shared_bias": shared is not None and shared.bias,
    }  # fmt: skip
