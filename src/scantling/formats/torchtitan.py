"""A spec as a model config of torchtitan (0.3): llama3, qwen3 or deepseek_v3."""

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
    only,
    pre_normed,
    refuse_beyond,
    rope_of,
    scaling_of,
)
from scantling.spec import (
    Dense,
    Experts,
    GroupedAttention,
    LatentAttention,
    Norm,
    QKNorm,
    Rope,
    Router,
    SharedExpert,
    Spec,
)

NAME = "torchtitan"

GRAMMAR = {
    **DECODER,
    Rope: "theta scaling",
    QKNorm: "scope norm",
    GroupedAttention: "n_head n_kv_head d_head qk_norm position span",
    LatentAttention: "n_head kv_rank d_nope d_rope d_value q_rank norm position",
    Experts: "n_expert top_k d_expert gated activation router shared",
    Router: "scoring correction n_expert_group top_k_group",
    SharedExpert: "d_shared",
}

CONTEXT = 4096
"""The length of the rotary table where the model names none."""


@register("torchtitan")
def export(spec: Spec) -> Exported:
    """The arguments of torchtitan's own builders, as values and as a function of its config file.

    ``layers`` are the keyword arguments of the builder of its model (``_build_llama3_layers``,
    ``_build_qwen3_layers``, ``_build_qwen3_moe_layers``, ``_build_dsv3_layers``), ``rope`` those
    of the rotary config, the rest those of the model's config.

    Raises:
        FieldError: Naming the part none of the three models can say: windows, biases,
            LayerNorm, learned positions, partial rotation, activations other than gated SiLU, …

    Example:
        >>> from scantling import catalog
        >>> found = export(catalog.model("llama-3.1-8b")).values
        >>> found["model"], found["layers"]["hidden_dim"]
        ('llama3', 14336)
    """
    refuse_beyond(spec, GRAMMAR, NAME)
    layers = layers_of(spec, NAME)
    pre_normed(spec, layers, NAME)
    need(norm_of(spec, NAME) == Norm(), "norm", norm_of(spec, NAME).kind,
         f"cannot be said in {NAME}", "it has RMSNorm with a scale")  # fmt: skip
    for p in layers:
        f = p.feedforward
        need(f.gated and f.activation == "silu", "ffn.activation", f.activation,
             f"cannot be said in {NAME}", "it has gated silu")  # fmt: skip
        need(isinstance(p.mixer.position, Rope), "attention.position", None,
             f"is no rotary position, which {NAME} needs in every layer")  # fmt: skip
    kind = only(layers, lambda p: type(p.mixer), "attention", NAME)
    build = _latent if kind is LatentAttention else _grouped
    model, builder, arguments, rotary = build(spec, layers)
    values = {
        "model": model, "builder": builder, "dim": int(spec.d_model),
        "vocab_size": int(spec.vocab_size), "enable_weight_tying": spec.tied,
        "layers": {"n_layers": int(spec.n_layer), "dim": int(spec.d_model), **arguments},
        "rope": {"dim": rotary, "max_seq_len": context_of(spec) or CONTEXT,
                 **_rope(rope_of(layers, NAME), model)},
    }  # fmt: skip
    notes = []
    if spec.tied:
        notes.append("a tied head cannot be split over pipeline stages")
    return Exported("torchtitan", values, _text(values), tuple(notes))


Built = tuple[str, str, dict[str, Any], int]


def _grouped(spec: Spec, layers: list[Parts]) -> Built:
    mixers = [p.mixer for p in layers if isinstance(p.mixer, GroupedAttention)]
    a = only(mixers, lambda m: m, "attention", NAME)
    found: dict[str, Any] = {"n_heads": int(a.n_head), "n_kv_heads": int(a.n_kv_head)}
    moe = [p.feedforward for p in layers if isinstance(p.feedforward, Experts)]
    if a.qk_norm is None:
        need(not moe, "ffn", "experts", f"without a QK-norm cannot be said in {NAME}")
        width = spec.d_model / a.n_head
        need(a.n_head * a.d_head == spec.d_model, "attention.d_head", a.d_head,
             f"must be d_model / n_head = {width:g} in {NAME} without a QK-norm")  # fmt: skip
        found["hidden_dim"] = _width(layers)
        return "llama3", "_build_llama3_layers", found, int(a.d_head)
    need(a.qk_norm == QKNorm("head", Norm()), "attention.qk_norm", a.qk_norm.scope,
         f"cannot be said in {NAME}", "it norms each head with RMSNorm")  # fmt: skip
    found["head_dim"] = int(a.d_head)
    if not moe:
        found["hidden_dim"] = _width(layers)
        return "qwen3", "_build_qwen3_layers", found, int(a.d_head)
    beside = f"beside grouped attention cannot be said in {NAME}"
    need(len(moe) == len(layers), "ffn", "dense and experts", beside, "experts in every layer")
    e = only(moe, lambda f: f, "ffn", NAME)
    need(e.shared is None, "ffn.shared", "shared experts", beside)
    need(e.router == Router(), "ffn.router", e.router.scoring, beside, "it has a plain softmax")
    found |= {"moe_hidden_dim": int(e.d_expert), "num_experts": int(e.n_expert),
              "top_k": int(e.top_k)}  # fmt: skip
    return "qwen3", "_build_qwen3_moe_layers", found, int(a.d_head)


def _width(layers: list[Parts]) -> int:
    dense = [p.feedforward for p in layers if isinstance(p.feedforward, Dense)]
    return int(only(dense, lambda f: f.d_ff, "ffn.d_ff", NAME))


def _latent(spec: Spec, layers: list[Parts]) -> Built:
    latents = [p.mixer for p in layers if isinstance(p.mixer, LatentAttention)]
    a = only(latents, lambda m: m, "attention", NAME)
    need(not spec.tied, "tied", "true", f"beside latent attention cannot be said in {NAME}")
    moe = [p.feedforward for p in layers if isinstance(p.feedforward, Experts)]
    need(moe, "ffn", "dense", f"beside latent attention cannot be said in {NAME}", "use experts")
    n_dense = len(layers) - len(moe)
    need(all(isinstance(p.feedforward, Dense) for p in layers[:n_dense]), "ffn",
         "dense and experts", f"in this order cannot be said in {NAME}",
         "the first layers may be dense")  # fmt: skip
    e = only(moe, lambda f: f, "ffn", NAME)
    corrected(e.router, NAME)
    shared = 0 if e.shared is None else int(e.shared.d_shared)
    n_shared, rest = divmod(shared, int(e.d_expert))
    need(rest == 0, "ffn.shared.d_shared", shared, f"must be a multiple of d_expert {e.d_expert}")
    mscale = scaling_of(rope_of(layers, NAME)).get("mscale", 1.0)
    found: dict[str, Any] = {
        "n_dense_layers": n_dense, "n_heads": int(a.n_head),
        "q_lora_rank": 0 if a.q_rank is None else a.q_rank, "kv_lora_rank": int(a.kv_rank),
        "qk_nope_head_dim": int(a.d_nope), "qk_rope_head_dim": int(a.d_rope),
        "v_head_dim": int(a.d_value), "mscale": mscale,
        "dense_hidden_dim": _width(layers) if n_dense else int(e.d_expert),
        "moe_hidden_dim": int(e.d_expert), "num_experts": int(e.n_expert),
        "num_shared_experts": n_shared, "router_top_k": int(e.top_k),
        "router_score_func": e.router.scoring,
    }  # fmt: skip
    if e.router.n_expert_group is not None and int(e.router.n_expert_group) > 1:
        found["router_num_expert_groups"] = int(e.router.n_expert_group)
        found["router_num_limited_groups"] = int(e.router.top_k_group or 1)
    if e.router.scoring == "sigmoid":
        found["router_route_norm"] = True
    return "deepseek_v3", "_build_dsv3_layers", found, int(a.d_rope)


def _rope(rope: Rope | None, model: str) -> dict[str, Any]:
    assert rope is not None, "every layer rotates"
    settings = scaling_of(rope)
    kind = settings.get("rope_type")
    found: dict[str, Any] = {"theta": rope.theta}
    if kind is None:
        return found
    base = settings.get("original_max_position_embeddings")
    if kind == "llama3" and model == "llama3":
        return found | {
            "scaling": "llama", "scaling_factor": settings["factor"],
            "low_freq_factor": settings["low_freq_factor"],
            "high_freq_factor": settings["high_freq_factor"],
            "original_max_position_embeddings": base,
        }  # fmt: skip
    if kind == "yarn":
        return found | {
            "scaling": "yarn", "rope_factor": settings["factor"],
            "beta_fast": settings.get("beta_fast", 32.0),
            "beta_slow": settings.get("beta_slow", 1.0), "original_seq_len": base,
        }  # fmt: skip
    raise FieldError("rope.scaling", kind, f"cannot be said in {NAME} for {model}", "use yarn")


CLASSES = {"llama3": "Llama3Model", "qwen3": "Qwen3Model", "deepseek_v3": "DeepSeekV3Model"}
ROTARY = {"llama3": "ComplexRoPE", "qwen3": "CosSinRoPE", "deepseek_v3": "ComplexRoPE"}


def _text(values: dict[str, Any]) -> str:
    """A function as torchtitan's ``models/<model>/__init__.py`` has one for each size."""
    model = values["model"]
    moe = "num_experts" in values["layers"]
    more = {"moe_comm_backend": "moe_comm_backend"} if moe else {}
    if model == "deepseek_v3" or moe:
        more["non_blocking_capacity_factor"] = "None"
    rope = "".join(f"                {k}={v!r},\n" for k, v in values["rope"].items())
    layers = "".join(f"            {k}={v!r},\n" for k, v in values["layers"].items())
    layers += "".join(f"            {k}={v},\n" for k, v in more.items())
    init = {
        "llama3": ("_NORM_INIT", "_output_linear_init(dim)"),
        "deepseek_v3": ("_NORM_INIT", "_output_linear_init(dim)"),
        "qwen3": ("_NORM_INIT", "_LINEAR_INIT"),
    }[model]
    table = "_EMBEDDING_SKIP_INIT" if values["enable_weight_tying"] else "_EMBEDDING_INIT"
    tie = "        enable_weight_tying=True,\n" if values["enable_weight_tying"] else ""
    argument = ", moe_comm_backend: str" if moe else ""
    return (
        f"# for torchtitan/models/{model}/__init__.py\n"
        f"def _scantling(attn_backend: str{argument}) -> {CLASSES[model]}.Config:\n"
        f"    dim, vocab_size = {values['dim']}, {values['vocab_size']}\n"
        f"    return {CLASSES[model]}.Config(\n"
        "        dim=dim,\n"
        "        vocab_size=vocab_size,\n"
        f"{tie}"
        "        tok_embeddings=Embedding.Config(\n"
        f"            num_embeddings=vocab_size, embedding_dim=dim, param_init={table}\n"
        "        ),\n"
        f"        norm=RMSNorm.Config(normalized_shape=dim, param_init={init[0]}),\n"
        "        lm_head=Linear.Config(\n"
        f"            in_features=dim, out_features=vocab_size, param_init={init[1]}\n"
        "        ),\n"
        f"        layers={values['builder']}(\n{layers}"
        "            attn_backend=attn_backend,\n"
        f"            rope={ROTARY[model]}.Config(\n{rope}            ),\n"
        "        ),\n"
        "    )\n"
    )
