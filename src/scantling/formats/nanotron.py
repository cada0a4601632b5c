"""A spec as the ``model_config`` of a nanotron config file."""

from __future__ import annotations

from typing import Any

from scantling.formats.registry import Exported, register
from scantling.formats.scaling import reading
from scantling.formats.target import (
    DECODER,
    Parts,
    context_of,
    layers_of,
    need,
    norm_of,
    number,
    only,
    pre_normed,
    refuse_beyond,
    rope_of,
    scaling_of,
)
from scantling.formats.yaml import dump
from scantling.spec import Dense, GroupedAttention, Norm, Rope, Spec

NAME = "nanotron"

GRAMMAR = {**DECODER, Rope: "theta scaling"}

CONTEXT = 2048
"""nanotron's own default of ``max_position_embeddings``."""


@register("nanotron")
def export(spec: Spec) -> Exported:
    """Its ``LlamaConfig``: RMSNorm, rotary GQA with D = H × h, a dense gated feed-forward.

    Raises:
        FieldError: Naming the part it cannot say.

    Example:
        >>> from scantling import catalog
        >>> export(catalog.model("smollm2-135m")).values["model_config"]["num_hidden_layers"]
        30
    """
    refuse_beyond(spec, GRAMMAR, NAME)
    layers = layers_of(spec, NAME)
    pre_normed(spec, layers, NAME)
    need(norm_of(spec, NAME) == Norm(), "norm", norm_of(spec, NAME).kind,
         f"cannot be said in {NAME}", "it has RMSNorm with a scale")  # fmt: skip
    a, f, rope = _attention(spec, layers), _feedforward(layers), rope_of(layers, NAME)
    need(rope is not None and all(p.mixer.position == rope for p in layers), "attention.position",
         None, f"is no rotary position, which {NAME} needs in every layer")  # fmt: skip
    assert rope is not None
    config: dict[str, Any] = {
        "is_llama_config": True,
        "hidden_size": int(spec.d_model),
        "intermediate_size": int(f.d_ff),
        "num_hidden_layers": int(spec.n_layer),
        "num_attention_heads": int(a.n_head),
        "num_key_value_heads": int(a.n_kv_head),
        "vocab_size": int(spec.vocab_size),
        "max_position_embeddings": context_of(spec) or CONTEXT,
        "hidden_act": "silu",
        "rope_theta": number(rope.theta),
        "rope_interleaved": False,
        "rope_scaling": scaling_of(rope) or None,
        "tie_word_embeddings": spec.tied,
    }
    fixed = "0.4 has theta 10000 fixed"
    notes = [f"rope_theta and rope_interleaved need a newer nanotron: {fixed}"]
    settings = scaling_of(rope)
    if settings and reading(settings, context_of(spec)).should_warn:
        notes.append("the factor of rope_scaling and the ratio of the lengths differ")
    values = {"model_config": config}
    return Exported("nanotron", values, dump({"model": values}), tuple(notes))


def _attention(spec: Spec, layers: list[Parts]) -> GroupedAttention:
    mixers = [p.mixer for p in layers if isinstance(p.mixer, GroupedAttention)]
    a = only(mixers, lambda m: m, "attention", NAME)
    need(a.n_head * a.d_head == spec.d_model, "attention.d_head", a.d_head,
         f"must be d_model / n_head = {spec.d_model / a.n_head:g} in {NAME}")  # fmt: skip
    return a


def _feedforward(layers: list[Parts]) -> Dense:
    dense = [p.feedforward for p in layers if isinstance(p.feedforward, Dense)]
    f = only(dense, lambda f: f, "ffn", NAME)
    need(f.gated and f.activation == "silu", "ffn.activation", f.activation,
         f"cannot be said in {NAME}", "it has gated silu")  # fmt: skip
    return f
