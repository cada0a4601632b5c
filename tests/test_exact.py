"""Counts are exact: the real class on the meta device, public totals and worked numbers agree.

Three kinds of truth. The table of counted configs beside the project (skipped where that folder is
absent), the classes of transformers built here from small shapes (marker ``oracle``), and numbers
that were published or can be worked out by hand.
"""

from __future__ import annotations

import csv
import functools
import json
import random
from pathlib import Path
from typing import Any

import pytest

from case_files import case, holds, read
from scantling import catalog
from scantling.costs.cache import kv_cache
from scantling.costs.count import flops, parameters
from scantling.errors import FieldError
from scantling.formats import hf
from scantling.ops import PARTS, tensors
from scantling.spec import (
    Full,
    GroupedAttention,
    LatentAttention,
    Layer,
    Rope,
    Spec,
    vary,
)

SHARED = Path(__file__).parents[2] / "shared"
CONFIGS = SHARED / "data" / "configs"
TABLE = SHARED / "data" / "configs_truth.csv"

COLUMNS = {
    "embedding": "embedding_params",
    "lm_head": "lm_head_params",
    "attention": "attention_params",
    "mixer": "ssm_params",
    "ffn": "mlp_params",
    "shared_experts": "shared_expert_params",
    "experts": "expert_params",
    "router": "router_params",
    "norm": "norm_params",
    "other": "other_params",
}
"""Part of ours, column of the truth table; the parts sum to the total."""

RUNS_EVERY_EXPERT = {"llama4", "llama4_text"}
"""Types whose class multiplies with all experts and then weighs them: its FLOPs are no model's."""


SURPLUS = {"longcat-flash-560b"}
"""The class holds gate and up projections of its zero experts, which no token uses."""

STAND_INS = {"deepseek-moe-16b"}
"""Counted on a class of the same parameters, which keeps a correction of its router as well."""


# ---------------------------------------------------------------- the table of counted configs


def truth() -> list[Any]:
    """The rows whose type we read, as parameters; one skipped stand-in where there is no table."""
    if not TABLE.exists():
        reason = f"{TABLE} is not here: the counted configs are kept beside the project"
        return [pytest.param({}, marks=pytest.mark.skip(reason=reason), id="no-table")]
    with TABLE.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["model_type"] in hf.model_types()]
        rows = [row for row in rows if row["name"] not in SURPLUS]
    return [pytest.param(row, id=row["name"]) for row in rows]


def number(text: str) -> int | None:
    return int(float(text)) if text else None


@functools.cache
def shared_spec(name: str) -> Spec:
    return hf.read(json.loads((CONFIGS / f"{name}.json").read_text("utf-8"))).spec


@pytest.mark.parametrize("row", truth())
def test_the_count_of_a_real_config_is_the_count_of_its_class(row):
    """Total, active, buffers and all ten parts, to the unit."""
    counted = parameters(shared_spec(row["name"]))
    assert set(counted.by_part) == set(PARTS) == set(COLUMNS)
    assert counted.by_part == {part: number(row[column]) for part, column in COLUMNS.items()}
    assert counted.total == number(row["total_params"])
    assert counted.active == number(row["active_params"])
    if row["name"] not in STAND_INS:
        assert counted.buffers == number(row["buffer_elems_persistent"])


@pytest.mark.parametrize("row", truth())
def test_the_flops_of_a_real_config_are_what_the_counter_measured_on_its_class(row):
    """At 128 tokens, and at 2048 where the table has it; eager attention, top-k experts only."""
    measured = {128: number(row["flops_fwd_seq128"]), 2048: number(row["flops_fwd_seq2048"])}
    spec = shared_spec(row["name"])
    for context, expected in measured.items():
        if expected is None:
            continue
        ours = flops(spec, context=context).forward
        if row["model_type"] in RUNS_EVERY_EXPERT:
            dense = vary(spec, top_k=int(spec.read("n_expert")))
            assert flops(dense, context=context).forward == expected
            assert ours < expected
        else:
            assert ours == expected


def test_the_table_covers_the_types_we_read():
    """Every type of ours but the two spellings of a multimodal's text part has a counted config."""
    if not TABLE.exists():
        pytest.skip(f"{TABLE} is not here: the counted configs are kept beside the project")
    with TABLE.open(encoding="utf-8") as file:
        seen = {row["model_type"] for row in csv.DictReader(file)}
    assert {"llama", "qwen3", "deepseek_v3"} <= set(hf.model_types()) & seen


# ---------------------------------------------------------------- the real classes, small

DEPTH = 5
LOCAL, GLOBAL, CHUNKED = "sliding_attention", "full_attention", "chunked_attention"
MIXED = [LOCAL, GLOBAL, GLOBAL, LOCAL, GLOBAL]

SWITCHES: dict[str, list[dict[str, Any]]] = {
    "gpt2": [{"n_inner": 40}, {"n_positions": 31}],
    "gpt_neox": [{"use_parallel_residual": False}, {"attention_bias": False}],
    "opt": [
        {"word_embed_proj_dim": 12},
        {"word_embed_proj_dim": 12, "tie_word_embeddings": False},
        {"do_layer_norm_before": False},
        {"_remove_final_layer_norm": True},
        {"enable_bias": False},
        {"layer_norm_elementwise_affine": False},
    ],
    "bloom": [],
    "falcon": [
        {"multi_query": False},
        {"new_decoder_architecture": True, "num_kv_heads": 2},
        {"new_decoder_architecture": True, "num_kv_heads": None},
        {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
        {"parallel_attn": False},
        {"parallel_attn": False, "multi_query": False, "bias": True, "alibi": True},
        {"ffn_hidden_size": 56},
    ],
    "mpt": [],
    "gptj": [{"n_inner": 40}],
    "phi": [{"qk_layernorm": True}],
    "llama": [
        {"attention_bias": True},
        {"mlp_bias": True},
        {"attention_bias": True, "mlp_bias": True, "head_dim": 24, "num_key_value_heads": 1},
    ],
    "mistral": [{"sliding_window": None}],
    "phi3": [{"sliding_window": 8}],
    "qwen2": [
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
        {"use_sliding_window": True, "sliding_window": 8, "layer_types": MIXED},
        {"use_sliding_window": False, "sliding_window": 8, "max_window_layers": 2},
    ],
    "qwen3": [
        {"attention_bias": True},
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3},
        {"use_sliding_window": True, "sliding_window": 8, "layer_types": MIXED},
    ],
    "smollm3": [
        {"attention_bias": True},
        {"mlp_bias": True},
        {"no_rope_layer_interval": 2},
        {"no_rope_layers": [1, 0, 0, 1, 1]},
        {"use_sliding_window": True, "sliding_window": 8},
    ],
    "granite": [
        {"attention_bias": True},
        {"mlp_bias": True},
        {"embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.22},
    ],
    "olmo": [{"attention_bias": True}],
    "olmo2": [{"attention_bias": True}],
    "cohere": [{"attention_bias": True}, {"use_qk_norm": True}],
    "stablelm": [
        {"use_qkv_bias": True},
        {"qk_layernorm": True},
        {"use_parallel_residual": True},
        {"use_parallel_residual": True, "qk_layernorm": True, "use_qkv_bias": True},
    ],
    "starcoder2": [{"use_bias": False}, {"sliding_window": 8}],
    "glm4": [{"attention_bias": False}],
    "nemotron": [{"attention_bias": True}, {"mlp_bias": True}],
    "gemma": [{"attention_bias": True}],
    "gemma2": [{"attention_bias": True}, {"layer_types": MIXED}],
    "gemma3_text": [
        {"attention_bias": True},
        {"sliding_window_pattern": 2},
        {"layer_types": MIXED},
    ],
    "gemma3n_text": [
        {"attention_bias": True},
        {"intermediate_size": [40, 48, 40, 40, 56]},
        {"activation_sparsity_pattern": [0.95, 0.0, 0.5, 0.0, 0.0]},
        {"layer_types": MIXED},
        {"num_kv_shared_layers": 0},
        {"altup_num_inputs": 1, "laurel_rank": 3},
        {"num_hidden_layers": 12, "num_kv_shared_layers": 4, "layer_types": None},
    ],
    "gemma4_text": [
        {"attention_bias": True},
        {"attention_k_eq_v": True},
        {"attention_k_eq_v": True, "num_global_key_value_heads": None},
        {"use_double_wide_mlp": True},
        {"num_kv_shared_layers": 0, "use_double_wide_mlp": True},
        {"num_kv_shared_layers": 0, "layer_types": [LOCAL] * DEPTH},
        {"num_kv_shared_layers": 0, "layer_types": None},
        {"num_kv_shared_layers": 0, "layer_types": [GLOBAL] * DEPTH},
        {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0},
        {"enable_moe_block": True},
        {
            "enable_moe_block": True,
            "hidden_size_per_layer_input": 0,
            "num_kv_shared_layers": 0,
            "attention_k_eq_v": True,
        },
    ],
    "mixtral": [{"num_experts_per_tok": 1}, {"sliding_window": 8}],
    "qwen2_moe": [
        {"qkv_bias": False},
        {"decoder_sparse_step": 2},
        {"mlp_only_layers": [0, 3]},
        {"mlp_only_layers": [1], "decoder_sparse_step": 2},
        {"num_experts": 0},
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3},
    ],
    "qwen3_moe": [
        {"attention_bias": True},
        {"decoder_sparse_step": 2},
        {"mlp_only_layers": [0, 3]},
        {"mlp_only_layers": [1], "decoder_sparse_step": 2},
        {"num_experts": 0},
        {"use_sliding_window": True, "sliding_window": 8},
    ],
    "olmoe": [{"attention_bias": True}, {"num_experts_per_tok": 1}],
    "gpt_oss": [{"attention_bias": False}, {"layer_types": MIXED}],
    "llama4_text": [
        {"attention_bias": True},
        {"interleave_moe_layer_step": 2},
        {"moe_layers": [0, 3]},
        {"moe_layers": []},
        {"no_rope_layers": [1, 0, 0, 1, 1]},
        {"no_rope_layer_interval": 2},
        {"attention_chunk_size": None},
        {"layer_types": [CHUNKED, GLOBAL, CHUNKED, CHUNKED, GLOBAL]},
    ],
    "deepseek_v2": [
        {"q_lora_rank": None},
        {"q_lora_rank": None, "attention_bias": True},
        {"attention_bias": True},
        {"mlp_bias": True, "first_k_dense_replace": DEPTH},
        {"first_k_dense_replace": 0},
        {"first_k_dense_replace": 2, "n_shared_experts": 3},
    ],
    "deepseek_v3": [
        {"q_lora_rank": None},
        {"q_lora_rank": None, "attention_bias": True},
        {"attention_bias": True},
        {"first_k_dense_replace": 0},
        {"first_k_dense_replace": DEPTH},
        {"first_k_dense_replace": 2, "n_shared_experts": 3},
        {"n_group": 2, "topk_group": 1},
    ],
}
"""Beside the plain shape, tied and untied, MHA, MQA and a free head width: what flips structure."""

NEEDED: dict[str, dict[str, Any]] = {
    "gemma3n_text": {"layer_types": [LOCAL, GLOBAL, LOCAL, GLOBAL, LOCAL]},
    "gemma4_text": {"layer_types": [LOCAL, GLOBAL, LOCAL, LOCAL, GLOBAL]},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "gpt_neo": {"attention_types": [[["global", "local"], 2], [["global"], 1]]},
    "phimoe": {"num_experts_per_tok": 2},  # its router picks two whatever is asked
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8},
        "ffn_config": {"moe_num_experts": 4, "moe_top_k": 2, "ffn_hidden_size": 24},
    },
}
"""What a class cannot be built without at 5 layers and 4 heads."""

NO_FREE_HEAD = {
    "bitnet": "the class norms the heads' output over hidden_size, and then cannot run",
    "helium": "the class projects from hidden_size whatever head_dim says, and then cannot run",
    "flex_olmo": "as olmoe",
    "minimax_m2": "the class rotates rotary_dim of each head, which must not exceed it",
    "olmoe": "the class norms q over hidden_size whatever head_dim says, and then cannot run",
}


NEVER_TIED = {"dbrx"}
"""The class refuses tied embeddings."""


def texts() -> list[hf.ModelType]:
    """Decoders of attention whose class is in transformers; other kinds have their own tests."""
    return [
        kind
        for kind in hf.model_types().values()
        if kind.text is None and not kind.remote and kind.assemble != "encoder"
        and kind.expressions.get("mixers", "{}") == "{}"
        and kind.expressions.get("delayed", "False") == "False"
    ]  # fmt: skip


def variants() -> list[Any]:
    found = []
    for kind in texts():
        common: list[dict[str, Any]] = [{}]
        if kind.name not in NEVER_TIED:
            common.append({"tie_word_embeddings": not kind.keys["tie_word_embeddings"]})
        if "num_key_value_heads" in kind.keys and "kv_lora_rank" not in kind.keys:
            # latent attention has a key for every query head: its class cannot run otherwise
            common += [{"num_key_value_heads": 1}, {"num_key_value_heads": 4}]
        if "head_dim" in kind.keys and kind.name not in NO_FREE_HEAD:
            common.append({"head_dim": 40})
        for i, flipped in enumerate(common + SWITCHES.get(kind.name, [])):
            words = ",".join(f"{k}={v}" for k, v in flipped.items()).replace(" ", "")
            name = f"{kind.name}-{words or 'plain'}"
            found.append(pytest.param(small(kind, i) | flipped, id=name))
    return found


def small(kind: hf.ModelType, seed: int) -> dict[str, Any]:
    """A small config with widths drawn from a seed; 4 heads, 5 layers."""
    draw = random.Random(f"{kind.name} {seed}")
    head = 8 * draw.randint(1, 3)
    n_expert = draw.choice((4, 6, 8))
    sizes = {
        "hidden_size": 4 * head,
        "num_hidden_layers": DEPTH,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": draw.randint(30, 90),
        "intermediate_size_mlp": draw.randint(30, 90),
        "moe_intermediate_size": draw.randint(10, 40),
        "shared_expert_intermediate_size": draw.randint(10, 40),
        "vocab_size": draw.randint(60, 200),
        "max_position_embeddings": draw.randint(40, 90),
        "num_local_experts": n_expert,
        "n_routed_experts": n_expert,
        "n_shared_experts": 1,
        "num_experts_per_tok": draw.randint(1, 2),
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 2 * draw.randint(3, 10),
        "q_lora_rank": draw.randint(5, 20),
        "qk_nope_head_dim": 2 * draw.randint(3, 6),
        "qk_rope_head_dim": 2 * draw.randint(2, 4),
        "v_head_dim": 2 * draw.randint(3, 6),
        "rotary_dim": 8,
        "intermediate_sizes": draw.randint(30, 90),
        "hidden_size_per_layer_input": draw.randint(4, 12),
        "vocab_size_per_layer_input": draw.randint(50, 90),
        "num_kv_shared_layers": 2,
        "altup_num_inputs": draw.randint(2, 4),
        "laurel_rank": draw.randint(3, 9),
        "global_head_dim": 8 * draw.randint(4, 6),
        "num_global_key_value_heads": 1,
    }
    config: dict[str, Any] = {"model_type": kind.name}
    for key, default in kind.keys.items():
        if key in sizes and not (key == "intermediate_size" and default is None):
            config[kind.spellings(key)[0]] = sizes[key]
    config |= NEEDED.get(kind.name, {})
    if kind.name in NO_FREE_HEAD and kind.keys.get("head_dim"):
        config["head_dim"] = head
    if "kv_lora_rank" in config:  # latent attention has as many keys as queries
        config["num_key_value_heads"] = 4
    return config


def settings(config: dict[str, Any]) -> Any:
    """The class's own reading of a config; token ids that fit the smallest vocabulary."""
    transformers = pytest.importorskip("transformers")
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    rest = {k: v for k, v in config.items() if k not in {"model_type", "architectures"}}
    return transformers.AutoConfig.for_model(config["model_type"], **ids | rest)


def build(config: dict[str, Any], device: str = "meta") -> Any:
    """The real class of a config; on the meta device it has shapes and no weights."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    own = settings(config)
    own._attn_implementation = "eager"
    with torch.device(device):
        if config["model_type"] == "llama4_text":
            return transformers.Llama4ForCausalLM(own)
        if config["model_type"] == "mistral4":  # its own name is not in the automatic class
            return transformers.Mistral4ForCausalLM(own)
        return transformers.AutoModelForCausalLM.from_config(own)


@pytest.fixture
def one_thread():
    """Products of a few dozen rows are faster on one thread than handed to several."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def unique(model: Any) -> int:
    """Parameters of a class, a tied one once."""
    return sum(p.numel() for p in model.parameters())


def persistent(model: Any) -> int:
    """Elements in the checkpoint that are no parameters."""
    known = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return sum(t.numel() for name, t in model.state_dict().items() if name not in known)


def experts(model: Any) -> int:
    """Elements of routed experts."""
    return sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)


def head(model: Any) -> int:
    """Elements the head adds: its matrix unless that is the embedding's, and its bias."""
    table = model.get_input_embeddings().weight
    return sum(p.numel() for p in model.get_output_embeddings().parameters() if p is not table)


@pytest.mark.oracle
@pytest.mark.parametrize("config", variants())
def test_the_count_of_a_spec_is_the_count_of_the_same_model_on_the_meta_device(config):
    """Unique parameters, persistent buffers, the head, and what a token uses of the experts."""
    model = build(config)
    spec = hf.read(config).spec
    counted = parameters(spec)
    assert counted.total == unique(model)
    assert counted.buffers == persistent(model)
    assert counted.lm_head == head(model)
    routed = experts(model)
    used = 0
    if routed:
        used = routed * int(spec.read("top_k")) // int(spec.read("n_expert"))
    assert counted.by_part["experts"] == routed
    assert counted.active == unique(model) - routed + used


@pytest.mark.oracle
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("config", variants())
def test_flops_are_what_the_counter_sees_when_the_real_class_runs(config):
    """Eager attention over 24 tokens on the CPU; each token runs its top-k experts."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    model = build(config, "cpu").eval().requires_grad_(requires_grad=False)
    spec = hf.read(config).spec
    if config["model_type"] in RUNS_EVERY_EXPERT and experts(model):
        spec = vary(spec, top_k=int(spec.read("n_expert")))
    elif experts(model):
        model.set_experts_implementation("batched_mm")
    tokens = torch.arange(24)[None] % 50
    with FlopCounterMode(display=False) as counter:
        model(tokens, use_cache=False)
    assert flops(spec, context=24).forward == counter.get_total_flops()


@pytest.mark.oracle
@pytest.mark.parametrize("config", variants())
def test_windows_and_rotation_stand_in_the_layers_where_the_class_has_them(config):
    """The class lists them as ``layer_types`` and ``no_rope_layers``."""
    own = settings(config)
    spec = hf.read(config).spec
    layers = [mixer(spec.decoder.kind(name)) for name in spec.decoder.expand()]
    if getattr(own, "layer_types", None) is not None:
        local = [kind in {LOCAL, CHUNKED} for kind in own.layer_types]
        assert [not isinstance(m.span, Full) for m in layers] == local
    if getattr(own, "no_rope_layers", None) is not None:
        rotated = [isinstance(m.position, Rope) for m in layers]
        assert rotated == [bool(flag) for flag in own.no_rope_layers]


def mixer(layer: Layer) -> GroupedAttention | LatentAttention:
    module = layer.blocks[0].branches[0].module
    assert isinstance(module, GroupedAttention | LatentAttention)
    return module


@pytest.mark.oracle
def test_llama_4_runs_every_expert_and_we_count_the_chosen():
    """The class multiplies all tokens with all experts and scales by the router's weights.

    Ours is smaller by 2 × tokens × layers × (E − k) × 3 D F, what the idle experts would cost.
    """
    kind = hf.model_type("llama4_text")
    spec = hf.read(small(kind, 0)).spec
    E, k, F = (int(spec.read(f)) for f in ("n_expert", "top_k", "d_expert"))
    idle = 2 * 24 * DEPTH * (E - k) * 3 * int(spec.d_model) * F
    dense = flops(vary(spec, top_k=E), context=24).forward
    assert dense - flops(spec, context=24).forward == idle


@pytest.mark.oracle
def test_the_shared_experts_of_deepseek_v2_have_the_biases_of_its_dense_layers():
    """``DeepseekV2MLP`` serves both: 2 F + D biases in each layer with experts."""
    config = small(hf.model_type("deepseek_v2"), 0) | {"mlp_bias": True}
    assert parameters(hf.read(config).spec).total == unique(build(config))


def test_a_shared_expert_of_width_zero_is_refused():
    """The class makes its gate whatever the width, so the count would be wrong in silence."""
    config = small(hf.model_type("qwen2_moe"), 0) | {"shared_expert_intermediate_size": 0}
    with pytest.raises(FieldError, match="shared_expert_intermediate_size 0 builds a model"):
        hf.read(config)


@pytest.mark.oracle
def test_the_mpt_class_does_not_read_expansion_ratio():
    config = small(hf.model_type("mpt"), 0) | {"expansion_ratio": 2}
    assert parameters(hf.read(config).spec).total == unique(build(config))


# ---------------------------------------------------------------- defaults

RESOLVED = {
    "num_key_value_heads": "null means as many as query heads; the class writes them out",
    "num_kv_heads": "falcon: the same",
    "head_dim": "null means hidden_size / num_attention_heads; the class writes it out",
    "intermediate_size": "falcon: null means 4 × hidden_size",
    "word_embed_proj_dim": "opt: null means hidden_size",
    "layer_types": "null is filled in layer by layer; compared as layers in a test above",
    "no_rope_layers": "null is filled in from no_rope_layer_interval",
    "moe_layers": "null is filled in from interleave_moe_layer_step",
    "activation_sparsity_pattern": "null is 0.95 in the first 10 layers of more than 10",
    "mlp_layer_types": "null is filled in from first_k_dense_replace",
}
"""Keys whose null the class replaces when it is made, and with what."""

GETATTR = {
    "num_global_key_value_heads": "gemma4: popped by the class before it is a field",
    "head_dim": "no field of these classes; the modelling code reads it when a config has it",
    "max_position_embeddings": "bloom has no limit (ALiBi); old files call it seq_length",
    "rotary_dim": "minimax_m2: the class reads it when a config has it",
    "num_nextn_predict_layers": "deepseek_v32's class has no head for the tokens after the next",
}
"""Keys a class has no field for: null with us."""


POPPED = {"window_pattern": 4, "global_head_dim": 512}
"""Keys that a class takes before they are fields, and what it takes without them."""


def resolved(key: str, own: Any) -> Any:
    """What a class makes of null."""
    n = own.num_hidden_layers
    if key in {"num_key_value_heads", "num_kv_heads"}:
        return own.num_attention_heads
    if key == "head_dim":
        return own.hidden_size // own.num_attention_heads
    if key == "intermediate_size":
        return 4 * own.hidden_size
    if key == "word_embed_proj_dim":
        return own.hidden_size
    if key == "no_rope_layers":
        return [int((i + 1) % own.no_rope_layer_interval != 0) for i in range(n)]
    if key == "activation_sparsity_pattern":
        return [0.95 if n > 10 and i < 10 else 0.0 for i in range(n)]
    if key == "mlp_layer_types":
        dense = own.first_k_dense_replace
        return ["dense" if i < dense else "sparse" for i in range(n)]
    if key == "moe_layers":
        step = own.interleave_moe_layer_step
        return list(range(step - 1, n, step))
    return own.layer_types


def rope_values(own: Any) -> dict[str, Any]:
    """The rotary keys in their classic spelling; the class nests them in ``rope_parameters``."""
    nested = getattr(own, "rope_parameters", None) or {}
    found: dict[str, Any] = {}
    if GLOBAL in nested:
        found["rope_local_base_freq"] = nested[LOCAL]["rope_theta"]
        nested = nested[GLOBAL]
    rest = {k: v for k, v in nested.items() if k not in {"rope_theta", "partial_rotary_factor"}}
    found |= {k: v for k, v in nested.items() if k not in rest}
    found["rope_scaling"] = None if rest.get("rope_type", "default") == "default" else rest
    return found


@pytest.mark.oracle
@pytest.mark.parametrize("kind", texts(), ids=lambda kind: kind.name)
def test_each_default_of_the_table_is_the_default_of_the_class(kind):
    """A key that a config leaves out gets what the class would give it."""
    transformers = pytest.importorskip("transformers")
    own = transformers.AutoConfig.for_model(kind.name)
    own.allow_global_per_layer_attribute_access = True  # gemma4: what differs between layers
    ropes = rope_values(own)
    for key, ours in kind.keys.items():
        spelled = [s for s in kind.spellings(key) if hasattr(own, s)]
        if key in ropes:
            assert ours == ropes[key], key
        elif not spelled and key in POPPED:
            assert ours == POPPED[key]
        elif key == "per_layer_config":  # gemma4: the class makes it of the global widths
            assert ours is None
        elif key == "intermediate_sizes":  # gemma3n: one for all layers, written out by the class
            assert [ours] * own.num_hidden_layers == own.intermediate_size
        elif ours == {}:  # a nested object: its defaults stand in the expressions, counted below
            assert isinstance(getattr(own, spelled[0]), transformers.PretrainedConfig)
        elif not spelled:
            assert ours is None, f"{key} is no field of the class"
            assert key in GETATTR, key
        elif ours is None and getattr(own, spelled[0]) is not None:
            assert key in RESOLVED, key
            assert getattr(own, spelled[0]) == resolved(key, own), key
        else:
            assert ours == getattr(own, spelled[0]), key


UNBUILDABLE = {
    "deepseek_v2": {"num_experts_per_tok": 6},  # null: no model
    "nemotron": {"num_key_value_heads": 48},  # null, and the class divides by it
    "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1},  # null
    "glm4_moe": {"head_dim": 128},  # 96 heads do not divide 4096; the class floors
    "hunyuan_v1_dense": {"head_dim": 128},  # null, and the class takes a power of it
    "hunyuan_v1_moe": {"head_dim": 128},
    "dbrx": {"attn_config": {"rope_theta": 10000.0}},  # the class reads it and has no default
}


@pytest.mark.oracle
@pytest.mark.parametrize("kind", texts(), ids=lambda kind: kind.name)
def test_a_config_that_says_nothing_counts_as_the_class_without_arguments(kind):
    """A few classes have a default that they cannot build: ``UNBUILDABLE`` completes them."""
    config: dict[str, Any] = {"model_type": kind.name, **UNBUILDABLE.get(kind.name, {})}
    assert parameters(hf.read(config).spec).total == unique(build(config))


# ---------------------------------------------------------------- the catalogue


@pytest.mark.parametrize("name", sorted(catalog.named()))
def test_a_model_of_the_catalogue_counts_exactly_its_parameters(name):
    entry = catalog.named()[name]
    assert parameters(catalog.model(name)).total == entry.parameters


SAMPLE = (
    "gpt2-xl", "opt-350m", "bloom-560m", "falcon-40b", "gemma-2-9b", "gemma-3-12b", "qwen2.5-7b",
    "qwen3-0.6b", "phi-4", "command-r-plus-104b", "stablelm-2-12b", "gpt-oss-20b",
    "deepseek-v2-lite", "llama-4-scout",
)  # fmt: skip


@pytest.mark.oracle
@pytest.mark.parametrize("name", SAMPLE)
def test_the_count_in_the_catalogue_is_that_of_the_real_class(name):
    entry = catalog.named()[name]
    assert unique(build(entry.config)) == entry.parameters


# ---------------------------------------------------------------- worked numbers

PUBLISHED = {
    "llama-3.1-8b": (8_030_261_248, 8_030_261_248, 0),  # hub, safetensors metadata
    "mixtral-8x7b": (46_702_792_704, 12_879_925_248, 0),  # hub; case pa-06
    "deepseek-v3": (671_026_404_352, 37_552_282_624, 14_848),  # case pa-08; 58 × 256 buffers
    "gpt2": (124_439_808, 124_439_808, 0),  # case pa-01
}


@pytest.mark.parametrize(("name", "expected"), PUBLISHED.items())
def test_a_famous_model_has_its_published_number_of_parameters(name, expected):
    """Total, active per token, and buffers beside them in the checkpoint."""
    counted = parameters(catalog.model(name))
    assert (counted.total, counted.active, counted.buffers) == expected


def test_qwen3_30b_a3b_is_30_5_billion():
    """The model card says 30.5B in total; the hub's weight metadata 30,532,122,624."""
    assert parameters(catalog.model("qwen3-30b-a3b")).total == 30_532_122_624


def test_llama_3_1_8b_by_hand():
    """D 4096, L 32, H 32, K 8, h 128, F 14336, V 128256, untied, two norms a layer and one more."""
    D, L, H, K, h, F, V = 4096, 32, 32, 8, 128, 14336, 128256
    counted = parameters(catalog.model("llama-3.1-8b"))
    assert counted.embedding == counted.lm_head == V * D
    assert counted.by_part["attention"] == L * (2 * D * H * h + 2 * D * K * h)
    assert counted.by_part["ffn"] == L * 3 * D * F
    assert counted.by_part["norm"] == (2 * L + 1) * D
    assert counted.body == counted.total - 2 * V * D


def test_gpt2_by_hand():
    """12 D² L of matrices, 13 D L of biases and norms, a final norm, tokens and positions."""
    D, L, V, S = 768, 12, 50257, 1024
    counted = parameters(catalog.model("gpt2"))
    assert counted.total == 12 * D * D * L + 13 * D * L + 2 * D + (V + S) * D
    assert counted.lm_head == 0


def test_deepseek_v3_keeps_576_numbers_a_token_and_layer():
    """61 layers × (512 + 64) × 2 bytes; the context does not change the growth (case kv-06)."""
    assert kv_cache(catalog.model("deepseek-v3"), kv_dtype="bf16").bytes_per_token == 70_272
    assert kv_cache(catalog.model("deepseek-v3"), context=1000).bytes == 70_272_000


def test_grouped_queries_save_llama_3_70b_eight_times_the_cache():
    """2 × L 80 × K 8 × h 128 × 2 bytes × 8192 tokens: 2.68 GB against 21.5 GB with 64 KV heads."""
    spec = catalog.model("llama-3-70b")
    grouped = 2 * 80 * 8 * 128 * 2 * 8192
    assert kv_cache(spec, context=8192).bytes == grouped == 2_684_354_560
    assert kv_cache(vary(spec, n_kv_head=64), context=8192).bytes == 8 * grouped


def test_gpt_oss_20b_needs_half_of_what_an_engine_with_one_page_size_reserves():
    """12 layers keep 8192 tokens and 12 keep 128; alvarobartt/hf-mem PR 70, case kv-10."""
    cache = kv_cache(catalog.model("gpt-oss-20b"), batch=32, context=8192)
    token = 2 * 8 * 64 * 2
    assert cache.bytes == 32 * 12 * token * (8192 + 128) == 6.09375 * 2**30
    assert cache.allocated_bytes == 32 * 24 * token * 8192 == 12 * 2**30


def test_five_of_six_layers_of_gemma_3_keep_only_their_window():
    """Gemma 3 27B at 131,072 tokens: 52 layers of 1,024 tokens and 10 of all (case kv-12)."""
    cache = kv_cache(catalog.model("gemma-3-27b"), context=131_072)
    token = 2 * 16 * 128 * 2
    assert cache.bytes == token * (52 * 1024 + 10 * 131_072) == 10.40625 * 2**30
    assert cache.allocated_bytes == token * 62 * 131_072 == 62 * 2**30


def test_inside_its_window_a_layer_keeps_every_token():
    """Up to the window the windowed layers grow like the others; beyond it they stop."""
    spec = catalog.model("gemma-3-27b")
    per_token = kv_cache(spec).bytes_per_token
    assert kv_cache(spec, context=1024).bytes == 1024 * per_token
    assert kv_cache(spec, context=1025).bytes - 1024 * per_token == per_token * 10 // 62


# ---------------------------------------------------------------- cases met in public


def test_case_sh_06_projections_are_heads_by_head_width():
    one = case("sh-06")
    spec = read(one["input"]["hf_config"])
    shapes = {t.name.rsplit(".", 1)[-1]: list(t.shape) for t in tensors(spec)}
    holds(one, **{name: shapes[name] for name in ("q", "k", "v", "o")})


def test_case_cf_01_the_text_part_is_described_inside():
    one = case("cf-01")
    imported = hf.read(one["input"]["hf_config"])
    spec = imported.spec
    holds(
        one,
        hidden_size=spec.d_model,
        num_hidden_layers=spec.n_layer,
        vocab_size=spec.vocab_size,
        used_vision_hidden=spec.d_model == 1152,
    )
    assert any("vocab_size" in note and "262208" in note for note in imported.notes)


def test_case_cf_03_the_first_three_layers_are_dense():
    one = case("cf-03")
    spec = read(one["input"]["hf_config"])
    counts = spec.decoder.occurrences()
    holds(one, main=spec.n_layer, dense=counts["dense"], moe=counts["moe"])
