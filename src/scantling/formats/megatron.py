"""A spec as the argument list of Megatron-LM."""

from __future__ import annotations

import shlex
from typing import Any

from scantling.arith import round_up
from scantling.errors import FieldError
from scantling.formats.registry import Exported, register
from scantling.formats.target import (
    DECODER,
    Parts,
    context_of,
    corrected,
    cycle,
    layers_of,
    need,
    norm_of,
    number,
    only,
    pre_normed,
    refuse_beyond,
    rope_of,
    scaling_of,
    windows_of,
)
from scantling.spec import (
    Dense,
    Embeddings,
    Experts,
    GroupedAttention,
    LatentAttention,
    LearnedPosition,
    QKNorm,
    Rope,
    Router,
    SharedExpert,
    Spec,
    Window,
)

NAME = "Megatron-LM"

GRAMMAR = {
    **DECODER,
    Embeddings: "position",
    LearnedPosition: "rows",
    Rope: "theta fraction scaling",
    Window: "window",
    QKNorm: "scope norm",
    GroupedAttention: "n_head n_kv_head d_head qkv_bias out_bias qk_norm position span sinks gate",
    LatentAttention: "n_head kv_rank d_nope d_rope d_value q_rank norm position",
    Dense: "d_ff gated activation in_bias out_bias",
    Experts: "n_expert top_k d_expert gated activation bias router shared",
    Router: "scoring bias correction n_expert_group top_k_group",
    SharedExpert: "d_shared gate",
}

PADDING = 128
"""Megatron's default of --make-vocab-size-divisible-by, times tensor-parallel ranks."""

ACTIVATIONS = {
    ("silu", True): "swiglu", ("swish", True): "swiglu", ("relu2", False): "squared-relu",
    ("gelu", False): "", ("gelu_new", False): "openai-gelu",
    ("gelu_pytorch_tanh", False): "openai-gelu", ("gelu_fast", False): "openai-gelu",
}  # fmt: skip
"""The flag of each (activation, gated); an empty one is the default."""


@register("megatron")
def export(spec: Spec) -> Exported:
    r"""Arguments of ``pretrain_gpt.py``; a flag without a value is True.

    Refused are what it cannot say: side-by-side blocks, norms after, softcaps, ALiBi, embedding
    scales, gated activations other than SwiGLU, biases on some products only, and so on.

    Raises:
        FieldError: Naming the part it cannot say.

    Example:
        >>> from scantling import catalog
        >>> print(export(catalog.model("llama-3.1-8b")).text.splitlines()[0])
        --num-layers 32 \
    """
    refuse_beyond(spec, GRAMMAR, NAME)
    layers = layers_of(spec, NAME)
    pre_normed(spec, layers, NAME)
    norm = norm_of(spec, NAME)
    need(norm.scale and norm.bias == (norm.kind == "layer"), "norm", norm.kind,
         f"without its usual scale and bias cannot be said in {NAME}")  # fmt: skip
    values: dict[str, Any] = {
        "num-layers": int(spec.n_layer),
        "hidden-size": int(spec.d_model),
        **_attention(layers),
        **_feedforward(layers),
        **_biases(layers),
        "normalization": "RMSNorm" if norm.kind == "rms" else "LayerNorm",
        **_position(spec, layers),
    }
    if not spec.tied:
        values["untie-embeddings-and-output-weights"] = True
    values["vocab-size"] = int(spec.vocab_size)
    values["make-vocab-size-divisible-by"] = PADDING
    lines = [shlex.join([f"--{k}"] if v is True else [f"--{k}", str(v)]) for k, v in values.items()]
    return Exported("megatron", values, " \\\n".join(lines) + "\n", _vocabulary(spec))


def _vocabulary(spec: Spec) -> tuple[str, ...]:
    v = int(spec.vocab_size)
    notes = []
    for tp in (1, 2, 4, 8):
        padded = int(round_up(v, PADDING * tp))
        if padded != v:
            more = (padded - v) * int(spec.d_model) * (1 if spec.tied else 2)
            notes.append(
                f"the vocabulary {v} is padded to {padded} at --tensor-model-parallel-size "
                f"{tp}: {more:,} parameters more"
            )
    return tuple(notes)


def _attention(layers: list[Parts]) -> dict[str, Any]:
    kind = only(layers, lambda p: type(p.mixer), "attention", NAME)
    if kind is LatentAttention:
        return _latent([p.mixer for p in layers if isinstance(p.mixer, LatentAttention)])
    mixers = [p.mixer for p in layers if isinstance(p.mixer, GroupedAttention)]
    found: dict[str, Any] = {
        "num-attention-heads": int(only(mixers, lambda a: a.n_head, "attention.n_head", NAME)),
        "kv-channels": int(only(mixers, lambda a: a.d_head, "attention.d_head", NAME)),
    }
    n_kv_head = int(only(mixers, lambda a: a.n_kv_head, "attention.n_kv_head", NAME))
    if n_kv_head != found["num-attention-heads"]:
        found |= {"group-query-attention": True, "num-query-groups": n_kv_head}
    qk_norm = only(mixers, lambda a: a.qk_norm, "attention.qk_norm", NAME)
    if qk_norm is not None:
        scope = qk_norm.scope
        need(scope == "head", "attention.qk_norm.scope", scope, f"cannot be said in {NAME}",
             "it norms each head with weights that all heads share")  # fmt: skip
        found["qk-layernorm"] = True
    if only(mixers, lambda a: a.sinks, "attention.sinks", NAME):
        found["softmax-type"] = "learnable"
    gate = only(mixers, lambda a: a.gate, "attention.gate", NAME)
    if gate is not None:
        need(gate == "element", "attention.gate", gate, f"cannot be said in {NAME}", "use element")
        found["attention-output-gate"] = True
    window, flags = windows_of(layers, NAME)
    if window is not None:
        found["window-size"] = f"{window - 1},0"  # tokens to the left, the query itself not counted
        if not all(flags):
            found["window-attn-skip-freq"] = cycle(flags)
    return found


def _latent(mixers: list[LatentAttention]) -> dict[str, Any]:
    a = only(mixers, lambda m: m, "attention", NAME)
    return {
        "num-attention-heads": int(a.n_head),
        "multi-latent-attention": True,
        **({} if a.q_rank is None else {"q-lora-rank": int(a.q_rank)}),
        "kv-lora-rank": int(a.kv_rank),
        "qk-head-dim": int(a.d_nope),
        "qk-pos-emb-head-dim": int(a.d_rope),
        "v-head-dim": int(a.d_value),
        "qk-layernorm": True,  # the norms of the latents
    }


def _feedforward(layers: list[Parts]) -> dict[str, Any]:
    dense = [p.feedforward for p in layers if isinstance(p.feedforward, Dense)]
    moe = [p.feedforward for p in layers if isinstance(p.feedforward, Experts)]
    both: list[Dense | Experts] = [*dense, *moe]
    gated = only(both, lambda f: f.gated, "ffn.gated", NAME)
    activation = only(both, lambda f: f.activation, "ffn.activation", NAME)
    flag = ACTIVATIONS.get((activation, gated))
    if flag is None:
        word = f"gated {activation}" if gated else activation
        raise FieldError("ffn.activation", word, f"cannot be said in {NAME}", "use gated silu")
    found: dict[str, Any] = {}
    if dense:
        found["ffn-hidden-size"] = int(only(dense, lambda f: f.d_ff, "ffn.d_ff", NAME))
    elif moe:
        found["ffn-hidden-size"] = int(moe[0].d_expert)
    if flag:
        found[flag] = True
    if not moe:
        return found
    e = only(moe, lambda f: f, "ffn", NAME)
    found |= {
        "num-experts": int(e.n_expert),
        "moe-router-topk": int(e.top_k),
        "moe-ffn-hidden-size": int(e.d_expert),
        "moe-router-score-function": e.router.scoring,
    }
    if dense:
        found["moe-layer-freq"] = cycle([int(isinstance(p.feedforward, Experts)) for p in layers])
    if corrected(e.router, NAME):
        found["moe-router-enable-expert-bias"] = True
    if e.router.n_expert_group is not None and int(e.router.n_expert_group) > 1:
        found["moe-router-num-groups"] = int(e.router.n_expert_group)
        found["moe-router-group-topk"] = int(e.router.top_k_group or 1)
    if e.shared is not None:
        found["moe-shared-expert-intermediate-size"] = int(e.shared.d_shared)
        if e.shared.gate:
            found["moe-shared-expert-gate"] = True
    return found


def _biases(layers: list[Parts]) -> dict[str, Any]:
    """All products have biases, none has, or only queries, keys and values do."""
    qkv: set[bool] = set()
    rest: set[bool] = set()
    for p in layers:
        if isinstance(p.mixer, GroupedAttention):
            qkv.add(p.mixer.qkv_bias)
            rest.add(p.mixer.out_bias)
        else:
            qkv |= {False}
            rest |= {False}
        f = p.feedforward
        rest |= {f.in_bias, f.out_bias} if isinstance(f, Dense) else {f.bias, f.router.bias}
    some, rule = "on some products only", f"cannot be said in {NAME}"
    need(len(rest) == 1, "bias", some, rule, "all, none, or queries, keys and values")
    need(len(qkv) == 1 and rest in ({False}, qkv), "attention.qkv_bias", some, rule)
    if rest == {True}:
        return {}
    return {"disable-bias-linear": True, **({"add-qkv-bias": True} if qkv == {True} else {})}


def _position(spec: Spec, layers: list[Parts]) -> dict[str, Any]:
    table, context = spec.embeddings.position, context_of(spec)
    rope = rope_of(layers, NAME)
    if table is not None:
        need(rope is None, "embeddings.position", "learned",
             f"beside rotary positions cannot be said in {NAME}")  # fmt: skip
        return {"position-embedding-type": "learned_absolute",
                "max-position-embeddings": int(table.rows)}  # fmt: skip
    found: dict[str, Any] = {} if context is None else {"max-position-embeddings": context}
    if rope is None:
        return {"position-embedding-type": "none", **found}
    found |= {"position-embedding-type": "rope", "rotary-base": number(rope.theta),
              "rotary-percent": rope.fraction}  # fmt: skip
    without = [int(not isinstance(p.mixer.position, Rope)) for p in layers]
    if any(without):
        found["no-rope-freq"] = cycle(without)
    latent = isinstance(layers[0].mixer, LatentAttention)
    return {**found, **_scaling(scaling_of(rope), latent=latent)}


LLAMA3 = {"low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}
"""What Megatron's --use-rope-scaling has fixed."""


def _scaling(settings: dict[str, Any], *, latent: bool) -> dict[str, Any]:
    kind = settings.get("rope_type")
    rule = f"cannot be said in {NAME}"
    if kind is None:
        return {"rope-type": "rope"} if latent else {}
    if kind == "yarn" and latent:
        fixed = {"beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 4096}
        for key, value in fixed.items():
            need(settings.get(key, value) == value, f"rope.scaling.{key}", settings.get(key), rule,
                 f"it is {value}")  # fmt: skip
        return {"rope-type": "yarn", "rotary-scaling-factor": number(settings["factor"]),
                "mscale": settings.get("mscale", 1.0),
                "mscale-all-dim": settings.get("mscale_all_dim", 0.0)}  # fmt: skip
    if kind == "llama3" and not latent:
        for key, value in LLAMA3.items():
            need(settings.get(key) == value, f"rope.scaling.{key}", settings.get(key), rule,
                 f"it is {value}")  # fmt: skip
        return {"use-rope-scaling": True, "rope-scaling-factor": number(settings["factor"])}
    if kind == "linear" and not latent and float(settings["factor"]).is_integer():
        return {"rotary-seq-len-interpolation-factor": int(settings["factor"])}
    raise FieldError("rope.scaling", kind, rule, "use llama3, or linear with a whole factor")
