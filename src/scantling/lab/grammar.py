"""What the lab's model runs: the parts of a spec it knows; the rest is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from scantling.errors import FieldError
from scantling.formats.target import need, refuse_beyond
from scantling.lab.parts import activation
from scantling.spec import (
    Alibi,
    AltUp,
    Audio,
    Block,
    BlockSelector,
    Branch,
    ChannelMix,
    Chunk,
    CompressedAttention,
    DeepNorm,
    Dense,
    Disentangled,
    Embeddings,
    Experts,
    Full,
    GatedDelta,
    GroupedAttention,
    Handed,
    Head,
    HyperConnections,
    Indexer,
    KimiDelta,
    LatentAttention,
    Laurel,
    Layer,
    LearnedPosition,
    LinearAttention,
    Mamba1,
    Mamba2,
    MixtureOfDepths,
    Norm,
    PerLayerInput,
    PerLayerTables,
    Plain,
    Projection,
    QKNorm,
    RelativeBias,
    RgLru,
    Rope,
    Router,
    Run,
    Rwkv,
    SharedExpert,
    ShortConv,
    Spec,
    Stack,
    TokenConv,
    Transform,
    Window,
)
from scantling.spec.vary import nodes

GRAMMAR: dict[type, str] = {
    Spec: (
        "d_model vocab_size decoder embeddings tied head encoder encoder_embeddings max_context"
    ),
    Stack: "kinds layout final_norm altup",
    AltUp: "n_stream norm",
    Run: "pattern n",
    Layer: "name blocks stored_scale",
    Embeddings: (
        "position d_embed project_bias n_token_type norm norm_last scale sines audio per_layer"
    ),
    LearnedPosition: "rows narrow",
    Audio: "n_mel d_conv",
    PerLayerTables: "rows d_per_layer norm",
    Head: "bias project softcap scale transform buffer_bias",
    Transform: "bias activation norm",
    Block: "branches pre post after residual",
    Branch: "module pre post copies",
    Norm: "kind scale bias",
    QKNorm: "scope norm",
    Plain: "scale",
    DeepNorm: "alpha",
    Handed: "",
    HyperConnections: "n_stream dynamic constrained",
    MixtureOfDepths: "capacity_permille",
    Full: "",
    Window: "window",
    Chunk: "chunk",
    Rope: "theta fraction scaling",
    Alibi: "",
    RelativeBias: "n_bucket each_layer",
    Disentangled: (
        "n_relative norm content_to_position position_to_content shared key_bias trimmed"
    ),
    GroupedAttention: (
        "n_head n_kv_head d_head d_value qkv_bias key_bias out_bias qk_norm position span causal "
        "cross sinks out_norm gate shares_kv key_is_value softcap scale value_norm d_input "
        "adapter_rank selector"
    ),
    BlockSelector: "n_index_head d_index index_block index_top_k n_local_block norm",
    LatentAttention: (
        "n_head kv_rank d_nope d_rope d_value q_rank qkv_bias out_bias norm position span gate "
        "scale indexer"
    ),
    Indexer: "n_index_head d_index index_top_k",
    CompressedAttention: (
        "n_head d_head q_rank n_out_group out_rank window compress overlap indexer norm position"
    ),
    LinearAttention: "n_head d_head gated norm stored_decay scan_chunk",
    GatedDelta: "n_key_head n_value_head d_key d_state_value d_conv norm scan_chunk",
    KimiDelta: "n_delta_head d_delta d_conv gate_rank norm scan_chunk",
    Mamba1: "d_inner d_state d_conv dt_rank conv_bias bias inner_norm n_select_head",
    Mamba2: (
        "d_inner n_ssm_head n_group d_state d_conv conv_bias in_bias out_bias norm scan_chunk"
    ),
    Rwkv: "d_attention",
    RgLru: "d_rnn n_gate_block d_conv",
    ShortConv: "d_conv bias",
    TokenConv: "d_conv activation",
    Projection: "",
    Laurel: "rank",
    PerLayerInput: "d_per_layer activation",
    Dense: (
        "d_ff gated activation in_bias out_bias inner_norm shared ff_rank adapter_rank sparsity"
    ),
    ChannelMix: "d_ff",
    Experts: (
        "n_expert top_k d_expert gated activation bias router shared d_latent latent_bias n_zero "
        "delayed"
    ),
    Router: (
        "scoring sqrtsoftplus bias correction n_expert_group top_k_group norm expert_scale hashed"
    ),
    SharedExpert: "d_shared gate bias",
}
"""Of each struct the fields this model runs: a part that is new to ``spec`` is refused."""

NAME = "the lab's model"


def buildable(spec: Spec) -> None:
    """Refuse a spec that the lab's model cannot run.

    Raises:
        FieldError: Naming the first such part, and why.

    Example:
        >>> from scantling import catalog
        >>> buildable(catalog.model("gpt2"))
        >>> buildable(replace(catalog.model("gpt2"), encoder_embeddings=Embeddings(d_embed=8)))
        Traceback (most recent call last):
            ...
        scantling.errors.FieldError: encoder_embeddings.d_embed 8 must be that of the table, None
    """
    for name, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        if stack is not None:
            part = replace(spec, decoder=stack, encoder=None, encoder_embeddings=None,
                           head=spec.head or Head())  # fmt: skip
            refuse_beyond(part, GRAMMAR, NAME)
            _sources(name, stack)
    if spec.encoder_embeddings is not None:
        refuse_beyond(
            replace(spec, embeddings=spec.encoder_embeddings, encoder=None,
                    encoder_embeddings=None, head=spec.head or Head()), GRAMMAR, NAME,
        )  # fmt: skip
    _embedded(spec)
    for path, node in nodes(spec):
        for rule in RULES.get(type(node), ()):
            rule(spec, path, node)


def learnable(spec: Spec) -> None:
    """Refuse a spec that has no loss.

    Raises:
        FieldError: If it has no head.
    """
    need(spec.head is not None, "head", None, "is missing, so there is no loss to train by")


def _embedded(spec: Spec) -> None:
    """Tables as wide as what reads them; sound for an encoder, own embeddings for a decoder."""
    e, own, head = spec.embeddings, spec.encoder_embeddings, spec.head
    met = e.d_embed is None or head is None or head.project or head.transform is not None
    need(met, "head.project", value=False, rule=f"leaves d_embed {e.d_embed} unmet: the head "
         "reads as many numbers as the table has")  # fmt: skip
    need(e.audio is None, "embeddings.audio", "Audio", "is read by an encoder")
    need(e.per_layer is None or spec.encoder is None or own is not None, "embeddings.per_layer",
         "PerLayerTables", "are a decoder's: an encoder needs its own embeddings")  # fmt: skip
    if own is not None:
        need(own.d_embed == e.d_embed, "encoder_embeddings.d_embed", own.d_embed,
             f"must be that of the table, {e.d_embed}")  # fmt: skip
        need(own.per_layer is None, "encoder_embeddings.per_layer", "PerLayerTables",
             "is read by a decoder")  # fmt: skip
        hashed = any(isinstance(n, Router) and n.hashed for _, n in nodes(spec.encoder or spec))
        need(own.audio is None or not hashed, "encoder.router.hashed", value=True,
             rule="needs tokens, which frames of sound are not")  # fmt: skip
        need(own.audio is None or own.d_embed is None, "encoder_embeddings.d_embed", own.d_embed,
             "cannot stand beside frames of sound")  # fmt: skip
    for stack, tables in ((spec.decoder, e.per_layer), (spec.encoder, None)):
        for path, node in nodes(stack) if stack is not None else ():
            if isinstance(node, PerLayerInput):
                need(tables is not None and tables.d_per_layer == node.d_per_layer, path,
                     node.d_per_layer, "needs embeddings.per_layer of its width")  # fmt: skip


def _grouped(spec: Spec, path: str, a: GroupedAttention) -> None:
    p = a.position
    if a.cross:
        need(spec.encoder is not None, path, None, "reads an encoder, which is not there")
        need(not isinstance(p, Disentangled), f"{path}.position", "Disentangled",
             "cannot stand in cross attention")  # fmt: skip
        need(a.d_input is None, f"{path}.d_input", a.d_input, "cannot stand in cross attention")
        need(a.selector is None, f"{path}.selector", "BlockSelector",
             "chooses keys of its own tokens, not an encoder's")  # fmt: skip
    if a.key_is_value:
        need(a.d_value in {None, a.d_head}, f"{path}.d_value", a.d_value,
             f"must be d_head {a.d_head} where keys are values")  # fmt: skip
    need(a.d_input in {None, 2 * spec.d_model}, f"{path}.d_input", a.d_input,
         f"must be twice d_model {spec.d_model}: the stream beside the embedding")  # fmt: skip
    if isinstance(p, Disentangled):
        need(not a.shares_kv, f"{path}.shares_kv", value=True,
             rule="cannot stand with disentangled positions here")  # fmt: skip
        need(not p.shared or a.n_head == a.n_kv_head, f"{path}.n_kv_head", a.n_kv_head,
             f"must be n_head {a.n_head} where positions share its projections")  # fmt: skip
    _turns(spec, path, a)


def _turns(_: Spec, path: str, a: Any) -> None:
    if isinstance(a.position, Rope):
        head = int(getattr(a, "d_rope", 0) or a.d_head)
        turned = int(head * a.position.fraction)
        need(turned % 2 == 0 and turned, f"{path}.position", turned,
             "numbers of a head turn: rotary positions turn pairs")  # fmt: skip


def _experts(_: Spec, path: str, e: Experts) -> None:
    activation(e.activation)
    known: Any = e.n_expert + (e.n_zero or 0)
    groups: Any = e.router.n_expert_group or 1
    need(known % groups == 0, f"{path}.router.n_expert_group", groups,
         f"must divide n_expert {known}")  # fmt: skip
    open_ = known // groups * (e.router.top_k_group or groups)
    need(e.top_k <= open_, f"{path}.top_k", e.top_k,
         f"exceeds the {open_} experts of the chosen groups")  # fmt: skip


def _dense(_: Spec, __: str, f: Dense) -> None:
    if f.activation != "xielu":
        activation(f.activation)


def _acts(_: Spec, __: str, node: Any) -> None:
    activation(node.activation)


def _block(_: Spec, path: str, block: Block) -> None:
    for branch in block.branches:
        a = branch.module
        if isinstance(a, Experts) and a.delayed:
            need(not isinstance(block.residual, MixtureOfDepths), f"{path}.residual",
                 "MixtureOfDepths", "cannot stand around delayed experts")  # fmt: skip
        if isinstance(a, GroupedAttention) and a.d_input is not None and len(block.branches) == 1:
            need(branch.pre is None or block.pre is None, f"{path}.pre", "two norms",
                 "cannot both stand before attention that reads more than the stream")  # fmt: skip


def _layer(_: Spec, path: str, layer: Layer) -> None:
    for first, second in pairwise(layer.blocks):
        passes = isinstance(first.residual, Handed) and all(
            isinstance(b.module, TokenConv) for b in second.branches
        )
        need(not passes, f"{path}.residual", "Handed", "hands to a convolution over tokens, which "
             "reads the layer's input")  # fmt: skip


def _stack(_: Spec, path: str, stack: Stack) -> None:
    """Under AltUp a layer's own embedding joins the streams that the layer does not work on."""
    for name in stack.occurrences() if stack.altup is not None else ():
        last = stack.kind(name).blocks[-1]
        own = any(isinstance(b.module, PerLayerInput) for b in last.branches)
        need(not own or isinstance(last.residual, Plain), f"{path}.{name}.residual",
             type(last.residual).__name__, "must be Plain around a layer's own embedding "
             "under AltUp")  # fmt: skip


RULES: dict[type, tuple[Callable[[Spec, str, Any], None], ...]] = {
    GroupedAttention: (_grouped,), LatentAttention: (_turns,), CompressedAttention: (_turns,),
    Experts: (_experts,), Dense: (_dense,), PerLayerInput: (_acts,), Transform: (_acts,),
    TokenConv: (_acts,), Block: (_block,), Layer: (_layer,), Stack: (_stack,),
}  # fmt: skip
"""Combinations of parts that have no meaning, or none here."""


def _sources(where: str, stack: Stack) -> None:
    """A layer that shares keys needs an earlier one whose keys it can read."""
    kept: set[Any] = set()
    tables: set[Any] = set()
    for name in stack.expand():
        for block in stack.kind(name).blocks:
            for branch in block.branches:
                a = branch.module
                if not isinstance(a, GroupedAttention):
                    continue
                depths = isinstance(block.residual, MixtureOfDepths)
                value = a.d_head if a.d_value is None else a.d_value
                key = (a.span, a.position, a.n_kv_head, a.d_head, value)
                path = f"{where}.{name}.attention"
                if a.shares_kv and (a.cross or depths or key not in kept):
                    raise FieldError(f"{path}.shares_kv", value=True, rule="needs an earlier layer "
                                     "with keys of the same shape, span and position")  # fmt: skip
                tables |= _tables(a)
                need(len(tables) < 2, f"{path}.position", "relative", "is one table for the "
                     "stack, so all layers need as many heads and buckets")  # fmt: skip
                if not a.shares_kv and not a.cross and not depths:
                    kept.add(key)


def _tables(a: GroupedAttention) -> set[Any]:
    """The table of relative positions that a layer shares with its stack."""
    p = a.position
    if isinstance(p, Disentangled):
        return {(int(p.n_relative), p.norm, a.d_input)}
    if isinstance(p, RelativeBias) and not p.each_layer:
        return {(int(p.n_bucket), int(a.n_head))}
    return set()
