"""Encoders and encoder-decoders: neutral fields, and the way between them and a spec."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from scantling.arith import Dim
from scantling.formats.hf.layout import freeze, squeeze, thaw
from scantling.spec import (
    Audio,
    Block,
    Branch,
    Dense,
    Disentangled,
    Embeddings,
    Full,
    GroupedAttention,
    Head,
    Layer,
    LearnedPosition,
    Norm,
    RelativeBias,
    Rope,
    Spec,
    Stack,
    TokenConv,
    Transform,
    Window,
)


class Fields(Struct, kw_only=True, forbid_unknown_fields=True):
    """What an encoder, or a decoder beside an encoder, is: one value per field.

    The names are those of ``[encoder]`` in ``data/hf_encoders.toml``. Without ``n_encoder_layer``
    the one stack is an encoder.
    """

    d_model: Dim
    n_layer: Dim
    n_encoder_layer: Dim | None
    vocab_size: Dim
    max_context: Dim | None
    tied: bool
    d_embed: Dim | None
    project_bias: bool
    narrow: bool
    learned_rows: Dim | None
    sines: bool
    n_token_type: Dim | None
    encoder_rows: Dim | None
    own_embeddings: bool
    n_mel: Dim | None
    embedding_norm: Literal["first", "last"] | None
    embedding_scale: float | None
    norm: Literal["rms", "layer"]
    norm_bias: bool
    norms: Literal["pre", "after"]
    first_norm: bool
    final_norm: bool
    copies: Dim | None
    n_head: Dim
    d_head: Dim
    n_encoder_head: Dim | None
    d_encoder_head: Dim | None
    qkv_bias: bool
    key_bias: bool
    out_bias: bool
    scale: float | None
    n_bucket: Dim | None
    each_layer: bool
    relative: Disentangled | None
    theta: float | None
    theta_local: float | None
    rope_scaling: dict[str, Any] | None
    window: Dim | None
    windowed: bool | list[bool]
    d_ff: Dim
    d_encoder_ff: Dim | None
    gated: bool
    activation: str
    ff_in_bias: bool
    ff_out_bias: bool
    conv: TokenConv | None
    transform: Transform | None
    head_bias: bool
    head_buffer: bool
    head_scale: float | None

    LISTS: ClassVar[tuple[str, ...]] = ("windowed",)
    """Fields that may be a list over the layers."""
    n_mtp: ClassVar[int] = 0

    def needed(self) -> list[str]:
        """Fields that must not be null, given the others."""
        found = []
        if self.n_encoder_layer is not None:
            found += ["n_encoder_head", "d_encoder_head", "d_encoder_ff"]
        if self.n_mel is not None:
            found.append("encoder_rows")
        return found

    def stream_norm(self) -> Norm:
        """The norm of the residual stream."""
        return Norm(self.norm, bias=self.norm_bias)


class Side(NamedTuple):
    """The dimensions of one stack, and its part in the model."""

    n_layer: Dim
    n_head: Dim
    d_head: Dim
    d_ff: Dim
    causal: bool
    crossed: bool


def to_spec(f: Fields) -> Spec:
    """Assemble a spec of one stack or two."""
    norm = f.stream_norm() if f.embedding_norm is not None else None
    embeddings = Embeddings(
        position=None if f.learned_rows is None else LearnedPosition(f.learned_rows, f.narrow),
        d_embed=f.d_embed, project_bias=f.project_bias, n_token_type=f.n_token_type, norm=norm,
        scale=f.embedding_scale, norm_last=f.embedding_norm == "last", sines=f.sines,
    )  # fmt: skip
    encoder = own = None
    if f.n_encoder_layer is not None:
        side = Side(f.n_encoder_layer, f.n_encoder_head, f.d_encoder_head, f.d_encoder_ff,  # type: ignore[arg-type]
                    causal=False, crossed=False)  # fmt: skip
        encoder = _stack(f, side)
    if encoder is not None and f.own_embeddings:
        rows = None if f.encoder_rows is None else LearnedPosition(f.encoder_rows)
        audio = None if f.n_mel is None else Audio(f.n_mel)
        own = Embeddings(
            position=rows, norm=norm, scale=None if audio else f.embedding_scale, audio=audio
        )
    both = encoder is not None
    side = Side(f.n_layer, f.n_head, f.d_head, f.d_ff, causal=both, crossed=both)
    return Spec(
        d_model=f.d_model, vocab_size=f.vocab_size, decoder=_stack(f, side),
        embeddings=embeddings, tied=f.tied,
        head=Head(f.head_bias, scale=f.head_scale, transform=f.transform,
                  buffer_bias=f.head_buffer),
        encoder=encoder, encoder_embeddings=own, max_context=f.max_context,
    )  # fmt: skip


def _stack(f: Fields, side: Side) -> Stack:
    """A stack; its first layer is of a kind of its own where it has other parts."""
    n = int(side.n_layer)
    windows = f.windowed if f.window is not None and not side.causal else False
    windowed = list(windows) if isinstance(windows, list) else [windows] * n
    special = not f.first_norm or f.conv is not None
    keys = [(w, special and i == 0) for i, w in enumerate(windowed)]
    mixed = len(set(windowed[1:] if special else windowed)) > 1
    names = {
        key: "first" if key[1] else ("local" if key[0] else "global") if mixed else "layer"
        for key in dict.fromkeys(keys)
    }
    kinds = tuple(_layer(names[key], f, side, *key) for key in names)
    norm = f.stream_norm() if f.final_norm else None
    return Stack(kinds, squeeze([names[key] for key in keys], side.n_layer), norm)


def _layer(name: str, f: Fields, side: Side, windowed: bool, special: bool) -> Layer:
    norm = f.stream_norm()
    pre = norm if f.norms == "pre" else None
    after = norm if f.norms == "after" else None
    span = Window(f.window) if windowed and f.window is not None else Full()
    mixer = GroupedAttention(
        n_head=side.n_head, n_kv_head=side.n_head, d_head=side.d_head, qkv_bias=f.qkv_bias,
        key_bias=f.key_bias, out_bias=f.out_bias, position=_position(f, windowed),
        span=span, causal=side.causal, scale=f.scale,
    )  # fmt: skip
    ffn = Dense(side.d_ff, f.gated, f.activation, f.ff_in_bias, f.ff_out_bias)
    bare = special and not f.first_norm
    blocks = [Block((Branch(mixer, copies=f.copies),), pre=None if bare else pre, after=after)]
    if side.crossed:
        cross = replace(mixer, position=None, causal=False, cross=True)
        blocks.append(Block((Branch(cross, copies=f.copies),), pre=pre, after=after))
    blocks.append(Block((Branch(ffn, copies=f.copies),), pre=pre, after=after))
    if special and f.conv is not None:
        blocks.append(Block((Branch(f.conv),), after=norm))
    return Layer(name, tuple(blocks))


def _position(f: Fields, windowed: bool) -> Any:
    if f.n_bucket is not None:
        return RelativeBias(f.n_bucket, f.each_layer)
    if f.relative is not None:
        return f.relative
    if f.theta is None:
        return None
    theta = f.theta if f.theta_local is None or not windowed else f.theta_local
    return Rope(theta, 1.0, None if f.rope_scaling is None else freeze(f.rope_scaling))


def from_spec(spec: Spec) -> Fields | None:
    """The fields of a spec, or none where the spec has parts no field can say.

    The proof is the way back: ``to_spec(from_spec(spec)) == spec``.
    """
    main = spec.decoder.kind(spec.decoder.expand()[-1])
    a, ffn = _modules(main)
    if a is None or ffn is None or spec.head is None or a.causal == (spec.encoder is None):
        return None
    values = _embedding_values(spec) | _layer_values(spec, main, a)
    values |= {
        "d_ff": ffn.d_ff, "gated": ffn.gated, "activation": ffn.activation,
        "ff_in_bias": ffn.in_bias, "ff_out_bias": ffn.out_bias,
        "n_encoder_layer": None, "n_encoder_head": None, "d_encoder_head": None,
        "d_encoder_ff": None,
    }  # fmt: skip
    if spec.encoder is not None:
        b, up = _modules(spec.encoder.kinds[0])
        if b is None or up is None:
            return None
        values |= {
            "n_encoder_layer": spec.encoder.n_layer, "n_encoder_head": b.n_head,
            "d_encoder_head": b.d_head, "d_encoder_ff": up.d_ff,
        }  # fmt: skip
    try:
        return msgspec.convert(values, Fields)
    except msgspec.ValidationError:
        return None


def _modules(kind: Layer) -> tuple[GroupedAttention | None, Dense | None]:
    """The first softmax attention and the first dense feed-forward of a layer."""
    modules = [branch.module for block in kind.blocks for branch in block.branches]
    return (
        next((m for m in modules if isinstance(m, GroupedAttention)), None),
        next((m for m in modules if isinstance(m, Dense)), None),
    )


def _embedding_values(spec: Spec) -> dict[str, Any]:
    e, own, head = spec.embeddings, spec.encoder_embeddings, spec.head or Head()
    rows = None if own is None or own.position is None else own.position.rows
    norm = None if e.norm is None else "last" if e.norm_last else "first"
    return {
        "d_model": spec.d_model, "vocab_size": spec.vocab_size, "max_context": spec.max_context,
        "tied": spec.tied, "d_embed": e.d_embed, "project_bias": e.project_bias,
        "narrow": e.position is not None and e.position.narrow,
        "learned_rows": None if e.position is None else e.position.rows,
        "n_token_type": e.n_token_type, "encoder_rows": rows, "own_embeddings": own is not None,
        "n_mel": None if own is None or own.audio is None else own.audio.n_mel,
        "embedding_norm": norm, "embedding_scale": e.scale, "sines": e.sines,
        "transform": head.transform,
        "head_bias": head.bias, "head_buffer": head.buffer_bias, "head_scale": head.scale,
    }  # fmt: skip


def _layer_values(spec: Spec, main: Layer, a: GroupedAttention) -> dict[str, Any]:
    kinds = {kind.name: kind for kind in spec.decoder.kinds}
    order = spec.decoder.expand()
    first = kinds[order[0]]
    block = main.blocks[0]
    norm = block.pre or block.after or Norm()
    found = {name: _modules(kind)[0] or a for name, kind in kinds.items()}
    far = [m.position for m in found.values() if isinstance(m.span, Full)]
    near = [m.position for m in found.values() if isinstance(m.span, Window)]
    ropes = [p for p in (*far, *near) if isinstance(p, Rope)]
    local = [p for p in near if isinstance(p, Rope)]
    windows = [m.span.window for m in found.values() if isinstance(m.span, Window)]
    bias = a.position if isinstance(a.position, RelativeBias) else None
    convs = [branch.module for b in first.blocks for branch in b.branches]
    return {
        "n_layer": spec.decoder.n_layer, "norm": norm.kind, "norm_bias": norm.bias,
        "norms": "after" if block.after is not None else "pre",
        "first_norm": block.after is not None or first.blocks[0].pre is not None,
        "final_norm": spec.decoder.final_norm is not None, "copies": block.branches[0].copies,
        "n_head": a.n_head, "d_head": a.d_head, "qkv_bias": a.qkv_bias, "key_bias": a.key_bias,
        "out_bias": a.out_bias, "scale": a.scale,
        "n_bucket": None if bias is None else bias.n_bucket,
        "each_layer": bias is not None and bias.each_layer,
        "relative": a.position if isinstance(a.position, Disentangled) else None,
        "theta": ropes[0].theta if ropes else None,
        "theta_local": local[0].theta if local else None,
        "rope_scaling": thaw(ropes[0].scaling) if ropes else None,
        "window": windows[0] if windows else None,
        "windowed": [isinstance(found[name].span, Window) for name in order],
        "conv": next((m for m in convs if isinstance(m, TokenConv)), None),
    }  # fmt: skip
