"""The tensors of a spec have the shapes of the parameters of the real class: families as multisets.

The classes keep some of our matrices in one tensor: the experts of a layer are one of three
dimensions, gate and up projections of experts or the parts of a state-space input stand on top of
each other. What is stacked is named here per family; nothing else may differ.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from scantling.formats import hf
from scantling.ops import operators

HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
SMALL = {"hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 6, "vocab_size": 77}
LATENT = {
    "num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 10, "q_lora_rank": 14,
    "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 12,
}  # fmt: skip
MOE = {"moe_intermediate_size": 18, "n_routed_experts": 6, "num_experts_per_tok": 2,
       "n_group": 1, "topk_group": 1}  # fmt: skip

FAMILIES: dict[str, list[dict[str, Any]]] = {
    "llama": [
        SMALL | HEADS,
        SMALL | HEADS | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ],
    "qwen3": [SMALL | HEADS | {"head_dim": 24}, SMALL | HEADS | {"attention_bias": True}],
    "gemma3_text": [
        SMALL | HEADS | {"head_dim": 20},
        SMALL | HEADS | {"head_dim": 20, "tie_word_embeddings": False},
    ],
    "mixtral": [SMALL | HEADS | {"num_local_experts": 6}],
    "deepseek_v3": [
        SMALL | LATENT | MOE | {"first_k_dense_replace": 2, "n_shared_experts": 1},
        SMALL | LATENT | MOE | {"first_k_dense_replace": 1, "q_lora_rank": None},
    ],
    "gpt_oss": [
        SMALL | HEADS | {"head_dim": 20, "num_local_experts": 6, "num_experts_per_tok": 2},
        SMALL | HEADS | {"head_dim": 20, "num_local_experts": 6, "attention_bias": False},
    ],
    "mamba2": [
        {"hidden_size": 32, "num_hidden_layers": 3, "state_size": 6, "num_heads": 4,
         "head_dim": 16, "n_groups": 2, "conv_kernel": 3, "vocab_size": 77, "use_bias": bias}
        for bias in (False, True)
    ],
    "falcon_h1": [
        SMALL | HEADS | {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16,
                         "mamba_n_groups": 2, "mamba_d_state": 6, "mamba_d_conv": 3} | more
        for more in ({}, {"mamba_rms_norm": True, "projectors_bias": True, "mlp_bias": True})
    ],
    "jamba": [
        SMALL | HEADS | {"num_experts": 4, "attn_layer_period": 3, "attn_layer_offset": 1,
                         "mamba_d_state": 5, "mamba_dt_rank": 3}
    ],
    "t5": [
        {"d_model": 32, "d_ff": 44, "d_kv": 7, "num_layers": 3, "num_decoder_layers": 2,
         "num_heads": 4, "vocab_size": 77, "feed_forward_proj": kind}
        for kind in ("relu", "gated-gelu")
    ],
    "bert": [SMALL | {"num_attention_heads": 4, "max_position_embeddings": 40}],
}  # fmt: skip

STACKED: dict[str, set[str]] = {
    "mixtral": {"experts_up"},
    "deepseek_v3": {"experts_up"},
    "gpt_oss": {"experts_up"},
    "mamba2": {"in"},
    "falcon_h1": {"in"},
    "jamba": {"in", "select", "experts_up"},
}
"""Operators whose matrices stand in one tensor of the class."""

TRANSPOSED = {"gpt_oss"}
"""Its experts multiply from the right: (experts, in, out)."""


def families() -> list[Any]:
    return [
        pytest.param(name, config, id=f"{name}-{i}")
        for name, configs in FAMILIES.items()
        for i, config in enumerate(configs)
    ]


def ours(config: dict[str, Any]) -> Counter[tuple[int, ...]]:
    """Shapes of a spec, an alias and a buffer left out."""
    name = config["model_type"]
    found: Counter[tuple[int, ...]] = Counter()
    for op in operators(hf.read(config).spec):
        stacked: dict[Any, Any] = {}
        together = op.name.rpartition(".")[2] in STACKED.get(name, set())
        for t in op.tensors:
            if t.alias is not None or t.buffer:
                continue
            which = (len(t.shape), t.experts) if together else t.name
            rows, _ = stacked.get(which, (0, t))
            stacked[which] = (rows + int(t.shape[0]), t)
        for rows, t in stacked.values():
            shape = (rows, *(int(n) for n in t.shape[1:]))
            if t.experts is not None:
                shape = shape[::-1] if name in TRANSPOSED else shape
                shape = (int(t.experts), *shape)
            found[shape] += int(t.copies)
    return found


def real(config: dict[str, Any]) -> Counter[tuple[int, ...]]:
    """Shapes of the class's named parameters; a tied one has one name."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    rest = {k: v for k, v in config.items() if k != "model_type"}
    own = transformers.AutoConfig.for_model(config["model_type"], **ids | rest)
    with torch.device("meta"):
        model = getattr(transformers, hf.model_type(config["model_type"]).architecture)(own)
    return Counter(tuple(p.shape) for _, p in model.named_parameters())


@pytest.mark.oracle
@pytest.mark.parametrize(("name", "config"), families())
def test_the_tensors_of_a_spec_are_the_named_parameters_of_the_class(name, config):
    config = {"model_type": name} | config
    assert ours(config) == real(config)
