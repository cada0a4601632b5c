"""What the lab's model runs: the parts of a spec it knows; the rest is refused by name."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from scantling.errors import FieldError
from scantling.formats.target import need, refuse_beyond
from scantling.lab.parts import activation
from scantling.spec import (
    Alibi,
    Block,
    Branch,
    Chunk,
    DeepNorm,
    Dense,
    Embeddings,
    Experts,
    Full,
    GatedDelta,
    GroupedAttention,
    Head,
    HyperConnections,
    LatentAttention,
    Layer,
    LearnedPosition,
    Mamba2,
    MixtureOfDepths,
    Norm,
    Plain,
    QKNorm,
    RelativeBias,
    Rope,
    Router,
    Run,
    SharedExpert,
    Spec,
    Stack,
    Window,
)
from scantling.spec.vary import nodes

GRAMMAR: dict[type, str] = {
    Spec: (
        "d_model vocab_size decoder embeddings tied head encoder encoder_embeddings max_context"
    ),
    Stack: "kinds layout final_norm",
    Run: "pattern n",
    Layer: "name blocks",
    Embeddings: "position d_embed project_bias norm norm_last scale sines",
    LearnedPosition: "rows narrow",
    Head: "bias project softcap scale",
    Block: "branches pre post after residual",
    Branch: "module pre post copies",
    Norm: "kind scale bias",
    QKNorm: "scope norm",
    Plain: "scale",
    DeepNorm: "alpha",
    HyperConnections: "n_stream dynamic",
    MixtureOfDepths: "capacity_permille",
    Full: "",
    Window: "window",
    Chunk: "chunk",
    Rope: "theta fraction scaling",
    Alibi: "",
    RelativeBias: "n_bucket each_layer",
    GroupedAttention: (
        "n_head n_kv_head d_head d_value qkv_bias out_bias qk_norm position span causal cross "
        "sinks out_norm gate shares_kv key_is_value softcap scale value_norm"
    ),
    LatentAttention: (
        "n_head kv_rank d_nope d_rope d_value q_rank qkv_bias out_bias norm position span gate "
        "scale"
    ),
    Mamba2: (
        "d_inner n_ssm_head n_group d_state d_conv conv_bias in_bias out_bias norm scan_chunk"
    ),
    GatedDelta: "n_key_head n_value_head d_key d_state_value d_conv norm scan_chunk",
    Dense: "d_ff gated activation in_bias out_bias inner_norm shared ff_rank",
    Experts: "n_expert top_k d_expert gated activation bias router shared",
    Router: "scoring bias correction n_expert_group top_k_group",
    SharedExpert: "d_shared gate bias",
}
"""Of each struct the fields this model runs."""

NAME = "the lab's model"


def buildable(spec: Spec) -> None:
    """Refuse a spec that the lab's model cannot run.

    Raises:
        FieldError: Naming the first such part, and why.

    Example:
        >>> from scantling import catalog
        >>> buildable(catalog.model("gpt2"))
        >>> buildable(catalog.load({"model_type": "mamba"}).spec)
        Traceback (most recent call last):
            ...
        scantling.errors.FieldError: decoder.layer.mixer Mamba1 cannot be said in the lab's model
    """
    for stack in (spec.encoder, spec.decoder):
        if stack is not None:
            part = replace(spec, decoder=stack, encoder=None, encoder_embeddings=None)
            refuse_beyond(part, GRAMMAR, NAME)
            _whole_streams(stack)
            _sources(stack)
    if spec.encoder_embeddings is not None:
        refuse_beyond(
            replace(spec, embeddings=spec.encoder_embeddings, encoder=None,
                    encoder_embeddings=None), GRAMMAR, NAME,
        )  # fmt: skip
    e, own = spec.embeddings, spec.encoder_embeddings
    need(
        spec.head is None or spec.head.project or e.d_embed is None,
        "head.project",
        value=False,
        rule=f"leaves d_embed {e.d_embed} unmet: the head reads as many numbers as the table has",
    )
    need(own is None or own.d_embed == e.d_embed, "encoder_embeddings.d_embed",
         own and own.d_embed, f"must be that of the table, {e.d_embed}")  # fmt: skip
    for path, node in nodes(spec):
        if isinstance(node, Dense | Experts):
            activation(node.activation)
        if isinstance(node, GroupedAttention) and node.cross:
            need(spec.encoder is not None, path, None, "reads an encoder, which is not there")
            need(node.position is None, f"{path}.position", type(node.position).__name__,
                 "cannot stand in cross attention here")  # fmt: skip
        if isinstance(node, GroupedAttention) and node.key_is_value:
            need(node.d_value in {None, node.d_head}, f"{path}.d_value", node.d_value,
                 f"must be d_head {node.d_head} where keys are values")  # fmt: skip
        if isinstance(node, Experts):
            groups: Any = node.router.n_expert_group or 1
            need(node.n_expert % groups == 0, f"{path}.router.n_expert_group", groups,
                 f"must divide n_expert {node.n_expert}")  # fmt: skip
            open_ = node.n_expert // groups * (node.router.top_k_group or groups)
            need(node.top_k <= open_, f"{path}.top_k", node.top_k,
                 f"exceeds the {open_} experts of the chosen groups")  # fmt: skip
        position = getattr(node, "position", None)
        if isinstance(position, Rope):
            head = int(getattr(node, "d_rope", 0) or getattr(node, "d_head", 0))
            turned = int(head * position.fraction)
            need(turned % 2 == 0 and turned, f"{path}.position", turned,
                 "numbers of a head turn: rotary positions turn pairs")  # fmt: skip


def _whole_streams(stack: Stack) -> None:
    """Hyper-connections are around all blocks of a stack or around none, with as many streams."""
    found = {
        int(b.residual.n_stream) if isinstance(b.residual, HyperConnections) else None
        for kind in stack.kinds for b in kind.blocks
    }  # fmt: skip
    if len(found) > 1:
        raise FieldError("residual", "hyper", "must have the same streams in every block here")


def _sources(stack: Stack) -> None:
    """A layer that shares keys needs an earlier one whose keys it can read."""
    kept, tables = set(), set()
    kinds = {k.name: k for k in stack.kinds}
    for name in stack.expand():
        for block in kinds[name].blocks:
            for branch in block.branches:
                a = branch.module
                if not isinstance(a, GroupedAttention):
                    continue
                depths = isinstance(block.residual, MixtureOfDepths)
                value = a.d_head if a.d_value is None else a.d_value
                key = (a.span, a.position, a.n_kv_head, a.d_head, value)
                path = f"decoder.{name}.attention"
                if a.shares_kv and (a.cross or depths or key not in kept):
                    raise FieldError(f"{path}.shares_kv", value=True, rule="needs an earlier layer "
                                     "with keys of the same shape, span and position")  # fmt: skip
                if isinstance(a.position, RelativeBias):
                    need(not depths, f"{path}.position", "relative",
                         "cannot stand under a mixture of depths here")  # fmt: skip
                    if not a.position.each_layer:
                        tables.add((int(a.position.n_bucket), int(a.n_head)))
                    need(len(tables) < 2, f"{path}.position", "relative", "is one table for the "
                         "stack, so all layers need as many heads and buckets")  # fmt: skip
                if not a.shares_kv and not a.cross and not depths:
                    kept.add(key)
