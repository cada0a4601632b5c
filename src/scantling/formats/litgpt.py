"""A spec as the arguments of LitGPT's ``Config``."""

from __future__ import annotations

from typing import Any

from scantling.errors import FieldError
from scantling.formats.registry import Exported, register
from scantling.formats.target import (
    DECODER,
    Parts,
    context_of,
    corrected,
    layers_of,
    need,
    norm_of,
    number,
    only,
    refuse_beyond,
    scaling_of,
    windows_of,
)
from scantling.formats.yaml import dump
from scantling.spec import (
    Block,
    Branch,
    Dense,
    Embeddings,
    Experts,
    Full,
    GroupedAttention,
    Head,
    LatentAttention,
    QKNorm,
    Rope,
    Router,
    SharedExpert,
    Spec,
    Window,
)

NAME = "LitGPT"

GRAMMAR = {
    **DECODER,
    Embeddings: "scale",
    Head: "bias softcap",
    Block: "branches pre post",
    Branch: "module pre",
    Rope: "theta fraction scaling",
    Window: "window",
    QKNorm: "scope norm",
    GroupedAttention: (
        "n_head n_kv_head d_head qkv_bias out_bias qk_norm position span softcap scale"
    ),
    LatentAttention: "n_head kv_rank d_nope d_rope d_value q_rank norm position",
    Dense: "d_ff gated activation in_bias out_bias",
    Experts: "n_expert top_k d_expert gated activation router shared",
    Router: "scoring correction n_expert_group top_k_group",
    SharedExpert: "d_shared",
}

GELU_TANH = {"gelu_pytorch_tanh", "gelu_new", "gelu_fast"}


@register("litgpt")
def export(spec: Spec) -> Exported:
    """Keyword arguments of ``litgpt.config.Config``, as its ``model_config.yaml`` has them.

    Refused are what it cannot say: learned positions and ALiBi, layers without rotation, sinks,
    gates, biases on some products only, norms without a scale, norms on the stream, and so on.

    Raises:
        FieldError: Naming the part it cannot say.

    Example:
        >>> from scantling import catalog
        >>> export(catalog.model("llama-3.1-8b")).values["n_query_groups"]
        8
    """
    refuse_beyond(spec, GRAMMAR, NAME)
    layers = layers_of(spec, NAME)
    norm = norm_of(spec, NAME)
    need(norm.scale and norm.bias == (norm.kind == "layer"), "norm", norm.kind,
         f"without its usual scale and bias cannot be said in {NAME}")  # fmt: skip
    context = context_of(spec)
    values: dict[str, Any] = {
        "name": "scantling",
        "n_layer": int(spec.n_layer), "n_embd": int(spec.d_model),
        "vocab_size": int(spec.vocab_size), "padded_vocab_size": int(spec.vocab_size),
        "norm_class_name": "RMSNorm" if norm.kind == "rms" else "LayerNorm",
        **({} if context is None else {"block_size": context}),
        **_blocks(layers), **_attention(layers), **_biases(layers), **_feedforward(layers),
        **_position(layers),
    }  # fmt: skip
    head = spec.head
    if head is not None and head.bias:
        values["lm_head_bias"] = True
    if head is not None and head.softcap is not None:
        values["final_logit_softcapping"] = head.softcap
    if spec.embeddings.scale is not None:
        scale, root = spec.embeddings.scale, float(spec.d_model) ** 0.5
        need(abs(scale / root - 1) < 0.01, "embeddings.scale", scale,
             f"cannot be said in {NAME}",
             f"it scales by the root of d_model, {root:.4g}")  # fmt: skip
        values["scale_embeddings"] = True
    notes = []
    if spec.tied:
        more = int(spec.vocab_size) * int(spec.d_model)
        notes.append(f"it keeps a head of its own: {more:,} parameters more than the tied model")
    return Exported("litgpt", values, dump(values), tuple(notes))


def _blocks(layers: list[Parts]) -> dict[str, Any]:
    def form(p: Parts) -> tuple[bool, ...]:
        first, last = p.first, p.last
        own = all(b.pre is not None for b in first.branches)
        return (p.parallel, first.pre is not None, last.pre is not None, first.post is not None,
                last.post is not None, own)  # fmt: skip

    parallel, pre_1, pre_2, post_1, post_2, own = only(layers, form, "blocks", NAME)
    if parallel:
        need((pre_1 != own) and not post_1, "blocks", "parallel",
             f"cannot be said in {NAME} without one shared norm or one each")  # fmt: skip
        return {"parallel_residual": True, "shared_attention_norm": pre_1}
    need(not any(b.pre for p in layers for k in (p.first, p.last) for b in k.branches), "pre",
         None, f"of a single branch cannot be said in {NAME}")  # fmt: skip
    return {
        "parallel_residual": False, "norm_1": pre_1, "norm_2": pre_2,
        "post_attention_norm": post_1, "post_mlp_norm": post_2,
    }  # fmt: skip


def _attention(layers: list[Parts]) -> dict[str, Any]:
    kind = only(layers, lambda p: type(p.mixer), "attention", NAME)
    if kind is LatentAttention:
        latents = [p.mixer for p in layers if isinstance(p.mixer, LatentAttention)]
        m = only(latents, lambda m: m, "attention", NAME)
        need(m.q_rank is not None, "attention.q_rank", None, f"is none, which {NAME} cannot say")
        return {
            "n_head": int(m.n_head), "n_query_groups": int(m.n_head),
            "head_size": int(m.d_nope + m.d_rope),
            "latent_attention": {
                "q_lora_rank": m.q_rank, "kv_lora_rank": int(m.kv_rank),
                "qk_nope_head_dim": int(m.d_nope), "qk_rope_head_dim": int(m.d_rope),
                "v_head_dim": int(m.d_value),
            },
        }  # fmt: skip
    mixers = [p.mixer for p in layers if isinstance(p.mixer, GroupedAttention)]
    found: dict[str, Any] = {
        "n_head": int(only(mixers, lambda m: m.n_head, "attention.n_head", NAME)),
        "n_query_groups": int(only(mixers, lambda m: m.n_kv_head, "attention.n_kv_head", NAME)),
        "head_size": int(only(mixers, lambda m: m.d_head, "attention.d_head", NAME)),
    }
    qk_norm = only(mixers, lambda m: m.qk_norm, "attention.qk_norm", NAME)
    if qk_norm is not None:
        kinds = {"head": "default", "width": "olmo2"}
        need(qk_norm.scope in kinds, "attention.qk_norm.scope", qk_norm.scope,
             f"cannot be said in {NAME}", "use head or width")  # fmt: skip
        found |= {"norm_qk": True, "norm_qk_type": kinds[qk_norm.scope]}
    softcap = only(mixers, lambda m: m.softcap, "attention.softcap", NAME)
    if softcap is not None:
        found["attention_logit_softcapping"] = softcap
    scale = only(mixers, lambda m: m.scale, "attention.scale", NAME)
    if scale is not None:
        scalar = scale**-2  # its logits are divided by the root of this number
        need(abs(scalar - round(scalar)) < 1e-6 * scalar, "attention.scale", scale,
             f"cannot be said in {NAME}", "it divides by the root of a whole number")  # fmt: skip
        found["attention_scores_scalar"] = round(scalar)
    window, flags = windows_of(layers, NAME)
    if window is not None:
        found |= {"sliding_window_size": window, "sliding_window_indices": flags}
    return found


def _biases(layers: list[Parts]) -> dict[str, Any]:
    qkv: set[bool] = set()
    rest: set[bool] = set()
    for p in layers:
        grouped = isinstance(p.mixer, GroupedAttention)
        qkv.add(grouped and p.mixer.qkv_bias)
        rest.add(grouped and p.mixer.out_bias)
        f = p.feedforward
        rest |= {f.in_bias, f.out_bias} if isinstance(f, Dense) else set()
    some, rule = "on some products only", f"cannot be said in {NAME}"
    need(len(rest) == 1, "bias", some, rule, "all, none, or queries, keys and values")
    need(len(qkv) == 1 and rest in ({False}, qkv), "attention.qkv_bias", some, rule)
    return {"bias": rest == {True}, "attn_bias": qkv == {True} and rest == {False}}


def _feedforward(layers: list[Parts]) -> dict[str, Any]:
    dense = [p.feedforward for p in layers if isinstance(p.feedforward, Dense)]
    moe = [p.feedforward for p in layers if isinstance(p.feedforward, Experts)]
    both: list[Dense | Experts] = [*dense, *moe]
    gated = only(both, lambda f: f.gated, "ffn.gated", NAME)
    activation = only(both, lambda f: f.activation, "ffn.activation", NAME)
    found: dict[str, Any] = {}
    if activation in GELU_TANH:
        found["gelu_approximate"] = "tanh"
    elif activation not in {"gelu", "silu"}:
        raise FieldError("ffn.activation", activation, f"cannot be said in {NAME}",
                         "use silu or gelu")  # fmt: skip
    if gated:
        found["mlp_class_name"] = "LLaMAMLP" if activation == "silu" else "GemmaMLP"
    else:
        need(activation != "silu", "ffn.gated", "false", f"with silu cannot be said in {NAME}")
        found["mlp_class_name"] = "GptNeoxMLP"
    if dense:
        found["intermediate_size"] = int(only(dense, lambda f: f.d_ff, "ffn.d_ff", NAME))
    if not moe:
        return found
    need(found["mlp_class_name"] == "LLaMAMLP", "ffn.activation", activation,
         f"in experts cannot be said in {NAME}", "use gated silu")  # fmt: skip
    return found | _experts(only(moe, lambda f: f, "ffn", NAME), layers, n_dense=len(dense))


def _experts(e: Experts, layers: list[Parts], *, n_dense: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "mlp_class_name": "LLaMAMoE", "n_expert": int(e.n_expert),
        "n_expert_per_token": int(e.top_k), "moe_intermediate_size": int(e.d_expert),
    }  # fmt: skip
    if not n_dense:
        found["intermediate_size"] = int(e.d_expert)
    else:
        first = [isinstance(p.feedforward, Dense) for p in layers]
        need(all(first[:n_dense]), "ffn", "dense and experts in this order",
             f"cannot be said in {NAME}", "the first layers may be dense")  # fmt: skip
        found["first_k_dense_replace"] = n_dense
    grouped = e.router.n_expert_group is not None and int(e.router.n_expert_group) > 1
    if grouped:
        groups = int(e.router.n_expert_group or 1)
        found |= {"n_expert_groups": groups, "n_topk_groups": int(e.router.top_k_group or 1),
                  "n_topk_scores_per_group": min(2, int(e.n_expert) // groups),
                  "norm_topk_prob": True}  # fmt: skip
    sigmoid = e.router.scoring == "sigmoid"
    need(sigmoid == grouped and corrected(e.router, NAME) == grouped, "ffn.router.scoring",
         e.router.scoring, f"cannot be said in {NAME}",
         "softmax without groups, or sigmoid with groups and a correction")  # fmt: skip
    if e.shared is not None:
        n, rest = divmod(int(e.shared.d_shared), int(e.d_expert))
        need(rest == 0, "ffn.shared.d_shared", e.shared.d_shared,
             f"must be a multiple of d_expert {e.d_expert} in {NAME}")  # fmt: skip
        found["n_shared_expert"] = n
    return found


def _position(layers: list[Parts]) -> dict[str, Any]:
    for p in layers:
        need(isinstance(p.mixer.position, Rope), f"decoder.{p.kind}.attention.position", None,
             f"is no rotary position, which {NAME} needs in every layer")  # fmt: skip
    ropes = [p.mixer.position for p in layers if isinstance(p.mixer.position, Rope)]
    far = [p.mixer.position for p in layers
           if isinstance(p.mixer.position, Rope) and isinstance(p.mixer.span, Full)]  # fmt: skip
    far = far or ropes
    near = [r for r in ropes if r not in far]
    rope = only(far, lambda r: r, "attention.position", NAME)
    found: dict[str, Any] = {
        "rope_base": number(rope.theta),
        "rotary_percentage": only(ropes, lambda r: r.fraction, "attention.position", NAME),
    }
    if near:
        found["rope_local_base_freq"] = only(near, lambda r: r.theta, "attention.position", NAME)
        found["rope_indices"] = [int(p.mixer.position in near) for p in layers]
    return {**found, **_scaling(scaling_of(rope))}


def _scaling(settings: dict[str, Any]) -> dict[str, Any]:
    kind = settings.get("rope_type")
    if kind is None:
        return {}
    common = {"factor": settings.get("factor", 1.0)}
    if kind == "linear":
        return {"rope_adjustments": common}
    common["original_max_seq_len"] = settings.get("original_max_position_embeddings")
    if kind == "llama3":
        keys = ("low_freq_factor", "high_freq_factor")
        return {"rope_adjustments": {**common, **{k: settings[k] for k in keys}}}
    if kind == "yarn":
        more = {"beta_fast": settings.get("beta_fast", 32),
                "beta_slow": settings.get("beta_slow", 1)}  # fmt: skip
        extra = {k: settings[k] for k in ("mscale", "mscale_all_dim") if k in settings}
        return {"rope_adjustments": {**common, **more, **extra}}
    hint = "use linear, llama3 or yarn"
    raise FieldError("rope.scaling", kind, f"cannot be said in {NAME}", hint)
