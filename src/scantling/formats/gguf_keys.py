"""A spec as the key-value pairs of a GGUF file, for the architectures llama.cpp shares with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from scantling.errors import FieldError
from scantling.formats.context import far_rope
from scantling.formats.registry import Exported, register
from scantling.formats.target import (
    DECODER,
    Grammar,
    Parts,
    context_of,
    corrected,
    layers_of,
    need,
    norm_of,
    only,
    refuse_beyond,
    scaling_of,
    windows_of,
)
from scantling.spec import (
    Block,
    Dense,
    Embeddings,
    Experts,
    Full,
    GroupedAttention,
    Head,
    LatentAttention,
    LearnedPosition,
    Norm,
    QKNorm,
    Rope,
    Router,
    SharedExpert,
    Spec,
    Window,
)

NAME = "GGUF"

EPSILON = 1e-5
"""Not part of a shape: llama.cpp wants one, so it is assumed and noted."""

ROPE: dict[type, str] = {Rope: "theta fraction scaling"}
SILU = frozenset({("silu", True), ("swish", True)})
GELU = frozenset({("gelu_pytorch_tanh", True), ("gelu", True)})
GELU_PLAIN = frozenset({("gelu", False), ("gelu_new", False), ("gelu_pytorch_tanh", False)})


class Architecture(Struct, frozen=True):
    """One architecture of llama.cpp: what it can say, and what must hold."""

    says: Grammar
    """Fields beyond those of every decoder."""
    activations: frozenset[tuple[str, bool]] = SILU
    norm: Norm = Norm()
    fits: Callable[[Parts], bool] = lambda _: True
    """What each layer must have for this architecture, and not another."""
    cycle: int | None = None
    """With windows: one full layer after each of so many; None is no window at all."""


def _attention(p: Parts) -> Any:
    return p.mixer


def _plain_qkv(p: Parts) -> bool:
    a = _attention(p)
    return not a.qkv_bias and getattr(a, "qk_norm", None) is None and p.first.post is None


def _normed_qk(p: Parts) -> bool:
    return _attention(p).qk_norm == QKNorm("head", Norm()) and p.first.post is None


def _sandwich(p: Parts, *, qk_norm: bool) -> bool:
    both = all(b.pre is not None and b.post is not None for b in (p.first, p.last))
    return both and (_attention(p).qk_norm is not None) == qk_norm


GROUPED = "n_head n_kv_head d_head position span"
EXPERTS: dict[type, str] = {Experts: "n_expert top_k d_expert gated activation router", Router: ""}
GEMMA: dict[type, str] = {
    **ROPE, Embeddings: "scale", Head: "softcap", Block: "branches pre post", Window: "window",
    QKNorm: "scope norm", GroupedAttention: f"{GROUPED} qk_norm softcap scale",
}  # fmt: skip

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture({**ROPE, **EXPERTS}, fits=_plain_qkv),
    "qwen2": Architecture(
        {**ROPE, GroupedAttention: f"{GROUPED} qkv_bias"},
        fits=lambda p: bool(_attention(p).qkv_bias),
    ),
    "qwen2moe": Architecture(
        {**ROPE, **EXPERTS, GroupedAttention: f"{GROUPED} qkv_bias", SharedExpert: "d_shared gate",
         Experts: "n_expert top_k d_expert gated activation router shared"},
        fits=lambda p: isinstance(p.feedforward, Experts) and p.feedforward.shared is not None
        and p.feedforward.shared.gate,
    ),
    "qwen3": Architecture(
        {**ROPE, QKNorm: "scope norm", GroupedAttention: f"{GROUPED} qk_norm"},
        fits=lambda p: _normed_qk(p) and isinstance(p.feedforward, Dense),
    ),
    "qwen3moe": Architecture(
        {**ROPE, **EXPERTS, QKNorm: "scope norm", GroupedAttention: f"{GROUPED} qk_norm"},
        fits=lambda p: _normed_qk(p) and isinstance(p.feedforward, Experts),
    ),
    "gemma": Architecture(
        {**ROPE, Embeddings: "scale"}, GELU, fits=lambda p: p.first.post is None,
    ),
    "gemma2": Architecture(GEMMA, GELU, fits=lambda p: _sandwich(p, qk_norm=False), cycle=2),
    "gemma3": Architecture(GEMMA, GELU, fits=lambda p: _sandwich(p, qk_norm=True), cycle=6),
    "gpt2": Architecture(
        {Embeddings: "position", LearnedPosition: "rows", Dense: "d_ff gated activation in_bias "
         "out_bias", GroupedAttention: "n_head n_kv_head d_head qkv_bias out_bias span"},
        GELU_PLAIN, Norm("layer", bias=True),
        fits=lambda p: _attention(p).n_head == _attention(p).n_kv_head,
    ),
    "deepseek2": Architecture(
        {**ROPE, LatentAttention: "n_head kv_rank d_nope d_rope d_value q_rank norm position",
         Experts: "n_expert top_k d_expert gated activation router shared",
         Router: "scoring correction n_expert_group top_k_group", SharedExpert: "d_shared"},
        fits=lambda p: isinstance(p.mixer, LatentAttention),
    ),
}  # fmt: skip
"""What llama.cpp builds for each name, in the order tried."""


@register("gguf")
def export(spec: Spec) -> Exported:
    """The pairs ``llama.block_count`` and so on, under the first architecture that can say it.

    Tokenizer, file type and tensors are not part of a shape and not written.

    Raises:
        FieldError: If none of the architectures can; the reason is that of the nearest one.

    Example:
        >>> from scantling import catalog
        >>> export(catalog.model("qwen3-8b")).values["qwen3.attention.head_count_kv"]
        8
    """
    layers = layers_of(spec, NAME)
    name = _architecture(spec, layers)
    norm = norm_of(spec, NAME)
    epsilon = "layer_norm_rms_epsilon" if norm.kind == "rms" else "layer_norm_epsilon"
    pairs: dict[str, Any] = {
        "vocab_size": int(spec.vocab_size),
        "context_length": context_of(spec),
        "embedding_length": int(spec.d_model),
        "block_count": int(spec.n_layer),
        **_feedforward(layers),
        **_heads(layers),
        f"attention.{epsilon}": EPSILON,
        **_position(layers),
    }
    if spec.head is not None and spec.head.softcap is not None:
        pairs["final_logit_softcapping"] = spec.head.softcap
    values = {"general.architecture": name}
    values |= {f"{name}.{key}": v for key, v in pairs.items() if v is not None}
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    _gemma(spec, layers, name)
    notes = [f"assumed: attention.{epsilon} {EPSILON}, which is no part of a shape"]
    if scaling_of(far_rope(spec)).get("rope_type") == "llama3":
        notes.append("the llama3 scaling is the tensor rope_freqs.weight there, which holds one "
                     "factor for each frequency")  # fmt: skip
    if context_of(spec) is None:
        notes.append("context_length is not known of this model and must be added")
    return Exported("gguf", values, "\n".join(lines) + "\n", tuple(notes))


def _gemma(spec: Spec, layers: list[Parts], name: str) -> None:
    """Scales that llama.cpp has built in: the root of the width, and 1 / root of a head."""
    scale, root = spec.embeddings.scale, float(spec.d_model) ** 0.5
    need(scale is None or abs(scale / root - 1) < 0.01, "embeddings.scale", scale,
         f"cannot be said in {NAME} ({name})",
         f"it scales by the root of d_model, {root:.4g}")  # fmt: skip
    for p in layers:
        if isinstance(p.mixer, GroupedAttention) and p.mixer.scale is not None:
            usual: list[float] = [int(p.mixer.d_head), int(spec.d_model) / int(p.mixer.n_head)]
            need(any(abs(p.mixer.scale**2 * w - 1) < 1e-6 for w in usual), "attention.scale",
                 p.mixer.scale, f"cannot be said in {NAME} ({name})")  # fmt: skip


def _architecture(spec: Spec, layers: list[Parts]) -> str:
    reasons: list[tuple[int, FieldError]] = []
    for name, one in ARCHITECTURES.items():
        try:
            _require(spec, layers, name, one)
        except FieldError as error:
            fitting = all(one.fits(p) for p in layers) if _same_mixer(one, layers) else False
            reasons.append((int(fitting), error))
        else:
            return name
    raise max(reasons, key=lambda pair: pair[0])[1]


def _same_mixer(one: Architecture, layers: list[Parts]) -> bool:
    return all(isinstance(p.mixer, LatentAttention) == (LatentAttention in one.says)
               for p in layers)  # fmt: skip


def _require(spec: Spec, layers: list[Parts], name: str, one: Architecture) -> None:
    where = f"{NAME} ({name})"
    refuse_beyond(spec, {**DECODER, **one.says}, where)
    norm = norm_of(spec, where)
    if norm != one.norm:
        raise FieldError("norm", norm.kind, f"cannot be said in {where}")
    for p in layers:
        pair = (p.feedforward.activation, p.feedforward.gated)
        if pair not in one.activations:
            raise FieldError("ffn.activation", pair[0], f"cannot be said in {where}")
        serial = not p.parallel and p.first.pre is not None and p.last.pre is not None
        if not (serial and one.fits(p)):
            raise FieldError(f"decoder.{p.kind}", None, f"is no layer of {where}")
    _, flags = windows_of(layers, where)
    every = one.cycle
    wanted = [int(every is not None and (i + 1) % every != 0) for i in range(len(layers))]
    if flags != wanted:
        raise FieldError("attention.span", "windows", f"in this order cannot be said in {where}")


def _feedforward(layers: list[Parts]) -> dict[str, Any]:
    dense = [p.feedforward for p in layers if isinstance(p.feedforward, Dense)]
    moe = [p.feedforward for p in layers if isinstance(p.feedforward, Experts)]
    width: Any = only(dense, lambda f: f.d_ff, "ffn.d_ff", NAME) if dense else moe[0].d_expert
    found: dict[str, Any] = {"feed_forward_length": int(width)}
    if not moe:
        return found
    e = only(moe, lambda f: f, "ffn", NAME)
    corrected(e.router, NAME)
    found |= {"expert_count": int(e.n_expert), "expert_used_count": int(e.top_k),
              "expert_feed_forward_length": int(e.d_expert)}  # fmt: skip
    if dense:
        first = [isinstance(p.feedforward, Dense) for p in layers]
        if not all(first[: len(dense)]):
            raise FieldError("ffn", "dense and experts", f"in this order cannot be said in {NAME}")
        found["leading_dense_block_count"] = len(dense)
    if e.shared is not None:
        found["expert_shared_feed_forward_length"] = int(e.shared.d_shared)
        n, rest = divmod(int(e.shared.d_shared), int(e.d_expert))
        if rest == 0:
            found["expert_shared_count"] = n
    if e.router.scoring == "sigmoid":
        found["expert_gating_func"] = 2  # llama.cpp's number of a sigmoid
    if e.router.n_expert_group is not None:
        found["expert_group_count"] = int(e.router.n_expert_group)
        found["expert_group_used_count"] = int(e.router.top_k_group or 1)
    return found


def _heads(layers: list[Parts]) -> dict[str, Any]:
    if isinstance(layers[0].mixer, LatentAttention):
        latents = [p.mixer for p in layers if isinstance(p.mixer, LatentAttention)]
        m = only(latents, lambda m: m, "attention", NAME)
        return {  # the cache is one shared head of the latent and the rotary part
            "attention.head_count": int(m.n_head), "attention.head_count_kv": 1,
            "attention.key_length": int(m.kv_rank + m.d_rope),
            "attention.value_length": int(m.kv_rank),
            "attention.key_length_mla": int(m.d_nope + m.d_rope),
            "attention.value_length_mla": int(m.d_value),
            "attention.q_lora_rank": m.q_rank, "attention.kv_lora_rank": int(m.kv_rank),
        }  # fmt: skip
    mixers = [p.mixer for p in layers if isinstance(p.mixer, GroupedAttention)]
    shape = only(mixers, lambda a: (a.n_head, a.n_kv_head, a.d_head), "attention.n_head", NAME)
    found: dict[str, Any] = {
        "attention.head_count": int(shape[0]), "attention.head_count_kv": int(shape[1]),
        "attention.key_length": int(shape[2]), "attention.value_length": int(shape[2]),
        "attention.sliding_window": windows_of(layers, NAME)[0],
    }  # fmt: skip
    softcap = only(mixers, lambda a: a.softcap, "attention.softcap", NAME)
    return found if softcap is None else {**found, "attn_logit_softcapping": softcap}


def _position(layers: list[Parts]) -> dict[str, Any]:
    ropes = [(p.mixer.position, p) for p in layers if isinstance(p.mixer.position, Rope)]
    if not ropes:
        return {}
    far = [r for r, p in ropes if isinstance(p.mixer.span, Full)] or [r for r, _ in ropes]
    rope = only(far, lambda r: r, "attention.position", NAME)
    mixer = layers[0].mixer
    width = mixer.d_rope if isinstance(mixer, LatentAttention) else mixer.d_head
    found: dict[str, Any] = {
        "rope.freq_base": float(rope.theta), "rope.dimension_count": int(width * rope.fraction),
    }  # fmt: skip
    near = [r.theta for r, p in ropes if isinstance(p.mixer.span, Window) and r.theta != rope.theta]
    if near:
        found["rope.freq_base_swa"] = float(only(near, float, "attention.position", NAME))
    settings = scaling_of(rope)
    kind = settings.get("rope_type")
    if kind is None:
        return found
    if kind == "llama3":  # llama.cpp keeps it as a tensor of factors, one for each frequency
        return found
    if kind not in {"linear", "yarn"}:
        raise FieldError("rope.scaling", kind, f"cannot be said in {NAME}", "use linear or yarn")
    found |= {"rope.scaling.type": kind, "rope.scaling.factor": float(settings["factor"])}
    if kind == "yarn":
        base = settings["original_max_position_embeddings"]
        found["rope.scaling.original_context_length"] = int(base)
    return found
