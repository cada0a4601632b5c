"""Decoders with more in a layer than attention and a feed-forward, and layers that differ in it.

Per-layer embeddings, AltUp and LAuReL, keys and values shared with earlier layers, head widths by
kind of attention, experts beside a dense feed-forward: Gemma 3n and Gemma 4.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import msgspec
from msgspec import Struct

from scantling.arith import Dim
from scantling.errors import FieldError
from scantling.formats.hf.layout import freeze, squeeze, thaw
from scantling.spec import (
    AltUp,
    Block,
    Branch,
    Dense,
    Embeddings,
    Experts,
    Full,
    GroupedAttention,
    Head,
    Laurel,
    Layer,
    Norm,
    PerLayerInput,
    PerLayerTables,
    QKNorm,
    Rope,
    Router,
    Spec,
    Stack,
    Window,
)

NORM = Norm()
"""All norms of these models: RMS with a scale."""


class Fields(Struct, kw_only=True, forbid_unknown_fields=True):
    """What such a decoder is: one value per field, or a list over the layers.

    The names are those of ``[layered]`` in ``data/hf_layered.toml``.
    """

    d_model: Dim
    n_layer: Dim
    vocab_size: Dim
    max_context: Dim | None
    tied: bool
    embedding_scale: float | None
    head_softcap: float | None
    n_head: Dim
    n_kv_head: list[Dim]
    d_head: list[Dim]
    qkv_bias: bool
    key_is_value: bool
    theta: float
    theta_local: float
    rope_fraction: float
    rope_scaling: dict[str, Any] | None
    window: Dim | None
    windowed: list[bool]
    n_shared_kv: int
    d_ff: list[Dim]
    activation: str
    sparsity: list[float]
    layer_rows: Dim | None
    d_per_layer: Dim | None
    routed: bool
    """Whether layers have experts; without, the three widths below mean nothing."""
    n_expert: Dim | None
    top_k: Dim | None
    d_expert: Dim | None
    n_stream: Dim | None
    laurel_rank: Dim | None
    stored_scale: bool
    n_mtp: int

    LISTS: ClassVar[tuple[str, ...]] = ("n_kv_head", "d_head", "windowed", "d_ff", "sparsity")
    """Fields that are a list over the layers."""

    def needed(self) -> list[str]:
        """Fields that must not be null, given the others."""
        found = ["n_expert", "top_k", "d_expert"] if self.routed else []
        return [*found, *(["window"] if True in self.windowed else [])]


class Key(NamedTuple):
    """What a layer kind is told apart by."""

    windowed: bool
    shares_kv: bool
    n_kv_head: Dim
    d_head: Dim
    d_ff: Dim
    sparsity: float


def to_spec(f: Fields) -> Spec:
    """Assemble a spec: one layer kind per combination of what differs.

    Raises:
        FieldError: If layers share keys and values that no layer before them makes.
    """
    n = int(f.n_layer)
    own = n - f.n_shared_kv
    if own < 1 or not set(f.windowed[own:]) <= set(f.windowed[:own]):
        what = f"leaves no layer of each kind that makes its own keys and values, of {n}"
        raise FieldError("n_shared_kv", f.n_shared_kv, what)
    shared = [i >= own for i in range(n)]
    columns = (f.windowed, shared, f.n_kv_head, f.d_head, f.d_ff, f.sparsity)
    keys = [Key(*row) for row in zip(*columns, strict=True)]
    names = _names(list(dict.fromkeys(keys)))
    tables = None
    if f.layer_rows is not None and f.d_per_layer is not None:
        tables = PerLayerTables(f.layer_rows, f.d_per_layer)
    return Spec(
        d_model=f.d_model,
        vocab_size=f.vocab_size,
        decoder=Stack(
            tuple(_layer(names[key], f, key) for key in names),
            squeeze([names[key] for key in keys], f.n_layer),
            altup=None if f.n_stream is None else AltUp(f.n_stream),
        ),
        embeddings=Embeddings(scale=f.embedding_scale, per_layer=tables),
        tied=f.tied,
        head=Head(softcap=f.head_softcap),
        max_context=f.max_context,
    )


def _names(keys: list[Key]) -> dict[Key, str]:
    """Short names that say only what differs: local, global_shared, local_sparse."""
    differ = {field: len({getattr(k, field) for k in keys}) > 1 for field in Key._fields}
    names: dict[Key, str] = {}
    for key in keys:
        words = [
            ("local" if key.windowed else "global") if differ["windowed"] else "",
            "shared" if differ["shares_kv"] and key.shares_kv else "",
            "sparse" if differ["sparsity"] and key.sparsity else "",
        ]
        name = "_".join(filter(None, words)) or "layer"
        names[key] = name if name not in names.values() else f"{name}{len(names) + 1}"
    return names


def _layer(name: str, f: Fields, key: Key) -> Layer:
    attention = _attention(f, key)
    blocks = [Block((Branch(attention),), pre=NORM, post=NORM)]
    if f.laurel_rank is not None:
        beside = (Branch(attention, post=NORM), Branch(Laurel(f.laurel_rank), post=NORM))
        blocks = [Block(beside, pre=NORM)]
    dense = Dense(key.d_ff, activation=f.activation, sparsity=key.sparsity)
    if f.routed:
        experts = Experts(
            f.n_expert, f.top_k, f.d_expert, activation=f.activation,  # type: ignore[arg-type]
            router=Router(norm=NORM, expert_scale=True),
        )  # fmt: skip
        both = tuple(Branch(module, pre=NORM, post=NORM) for module in (dense, experts))
        blocks.append(Block(both, post=NORM))
    else:
        blocks.append(Block((Branch(dense),), pre=NORM, post=NORM))
    if f.d_per_layer is not None:
        module = PerLayerInput(f.d_per_layer, f.activation)
        blocks.append(Block((Branch(module),), post=NORM))
    return Layer(name, tuple(blocks), f.stored_scale)


def _attention(f: Fields, key: Key) -> GroupedAttention:
    scaling = None if f.rope_scaling is None else freeze(f.rope_scaling)
    return GroupedAttention(
        n_head=f.n_head, n_kv_head=key.n_kv_head, d_head=key.d_head, qkv_bias=f.qkv_bias,
        out_bias=f.qkv_bias, qk_norm=QKNorm("head", NORM), value_norm=Norm(scale=False), scale=1.0,
        position=Rope(f.theta_local) if key.windowed else Rope(f.theta, f.rope_fraction, scaling),
        span=Window(f.window) if key.windowed else Full(),  # type: ignore[arg-type]
        shares_kv=key.shares_kv, key_is_value=f.key_is_value and not key.windowed,
    )  # fmt: skip


def from_spec(spec: Spec) -> Fields | None:
    """The fields of a spec, or none where it is no such model.

    The proof is the way back: ``to_spec(from_spec(spec)) == spec``.
    """
    kinds = {kind.name: kind for kind in spec.decoder.kinds}
    order = [kinds[name] for name in spec.decoder.expand()]
    altup, tables, head = spec.decoder.altup, spec.embeddings.per_layer, spec.head or Head()
    if spec.encoder is not None or not (altup or order[0].stored_scale):
        return None
    modules = [[b.module for block in kind.blocks for b in block.branches] for kind in order]
    found = [[m for ms in modules for m in ms if isinstance(m, kind)]
             for kind in (GroupedAttention, Dense, Experts, Laurel)]  # fmt: skip
    attention: list[Any] = found[0]
    dense: list[Any] = found[1]
    if not len(attention) == len(dense) == len(order):
        return None
    moe: Any = found[2][0] if found[2] else None
    laurel: Any = found[3][0] if found[3] else None
    windows = [a.span.window for a in attention if isinstance(a.span, Window)]
    windowed = [isinstance(a.span, Window) for a in attention]
    ropes = [a.position if isinstance(a.position, Rope) else Rope() for a in attention]
    near = next((r for r, w in zip(ropes, windowed, strict=True) if w), ropes[0])
    far = next((r for r, w in zip(ropes, windowed, strict=True) if not w), ropes[0])
    values = {
        "d_model": spec.d_model, "n_layer": spec.n_layer, "vocab_size": spec.vocab_size,
        "max_context": spec.max_context, "tied": spec.tied,
        "embedding_scale": spec.embeddings.scale, "head_softcap": head.softcap,
        "n_head": attention[0].n_head, "n_kv_head": [a.n_kv_head for a in attention],
        "d_head": [a.d_head for a in attention], "qkv_bias": attention[0].qkv_bias,
        "key_is_value": any(a.key_is_value for a in attention),
        "theta": far.theta, "theta_local": near.theta, "rope_fraction": far.fraction,
        "rope_scaling": thaw(far.scaling), "window": windows[0] if windows else None,
        "windowed": windowed, "n_shared_kv": sum(a.shares_kv for a in attention),
        "d_ff": [d.d_ff for d in dense], "activation": dense[0].activation,
        "sparsity": [d.sparsity for d in dense],
        "layer_rows": None if tables is None else tables.rows,
        "d_per_layer": None if tables is None else tables.d_per_layer,
        "routed": moe is not None, "n_expert": None if moe is None else moe.n_expert,
        "top_k": None if moe is None else moe.top_k,
        "d_expert": None if moe is None else moe.d_expert,
        "n_stream": None if altup is None else altup.n_stream,
        "laurel_rank": None if laurel is None else laurel.rank,
        "stored_scale": order[0].stored_scale, "n_mtp": 0,
    }  # fmt: skip
    try:
        return msgspec.convert(values, Fields)
    except msgspec.ValidationError:
        return None
