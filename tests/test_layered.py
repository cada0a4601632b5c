"""Gemma 3n and Gemma 4: what their configs may say, and what their layers keep and cost."""

import json

import pytest
from msgspec.structs import replace

from scantling.costs.cache import kv_cache
from scantling.costs.count import flops, parameters
from scantling.errors import FieldError
from scantling.formats import hf
from scantling.formats.registry import export
from scantling.ops import operators, tensors
from scantling.report.trace import walk
from scantling.spec import Embeddings, PerLayerTables, Workload, check, vary

LOCAL, GLOBAL = "sliding_attention", "full_attention"
MIXED = [LOCAL, GLOBAL, LOCAL, LOCAL, GLOBAL]
SIZES = {
    "hidden_size": 32, "intermediate_size": 50, "num_hidden_layers": 5, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 90, "vocab_size_per_layer_input": 80,
    "hidden_size_per_layer_input": 6, "layer_types": MIXED, "sliding_window": 10,
    "num_kv_shared_layers": 2,
}  # fmt: skip
THREE = {"model_type": "gemma3n_text", **SIZES, "altup_num_inputs": 3, "laurel_rank": 5}
FOUR = {"model_type": "gemma4_text", **SIZES, "global_head_dim": 16}
MOE = {
    "enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 9,
}  # fmt: skip


def read(config, **changes):
    return hf.read({**config, **changes}).spec


# ---------------------------------------------------------------- reading and writing


@pytest.mark.parametrize(
    "config",
    [
        THREE, FOUR, {**FOUR, **MOE},
        {**THREE, "intermediate_size": [50, 50, 40, 60, 70]},
        {**THREE, "activation_sparsity_pattern": [0.95, 0.9, 0.0, 0.0, 0.0]},
        {**THREE, "layer_types": [GLOBAL] * 5, "tie_word_embeddings": False},
        {**THREE, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {**FOUR, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
        {**FOUR, "use_double_wide_mlp": True, "attention_bias": True},
        {**FOUR, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0},
        {**FOUR, "rope_parameters": {GLOBAL: {"rope_theta": 5e5, "partial_rotary_factor": 1.0},
                                     LOCAL: {"rope_theta": 2e4}}},
    ],
)  # fmt: skip
def test_a_config_written_is_read_as_the_same_spec(config):
    spec = read(config)
    written = json.loads(json.dumps(hf.write(spec)))
    assert written["model_type"] == config["model_type"]
    assert read(written) == spec


@pytest.mark.oracle
@pytest.mark.parametrize("changes", [{}, {"attention_k_eq_v": True, **MOE}])
def test_a_config_that_the_class_saved_reads_as_the_one_it_was_made_of(changes):
    """It keeps head widths as ``per_layer_config`` and drops the two global keys."""
    transformers = pytest.importorskip("transformers")
    given = {**FOUR, "num_global_key_value_heads": 1, **changes}
    own = transformers.AutoConfig.for_model("gemma4_text", **{
        k: v for k, v in given.items() if k != "model_type"})  # fmt: skip
    saved = json.loads(own.to_json_string(use_diff=False))
    assert "global_head_dim" not in saved
    assert read(saved) == read(given)


@pytest.mark.oracle
@pytest.mark.parametrize("config", [THREE, FOUR])
def test_the_class_reads_the_rotation_that_is_written(config):
    transformers = pytest.importorskip("transformers")
    ropes = {GLOBAL: {"rope_theta": 5e5, "rope_type": "default"}, LOCAL: {"rope_theta": 2e4}}
    written = hf.write(read(config, rope_parameters=ropes))
    own = transformers.AutoConfig.for_model(written.pop("model_type"), **written).rope_parameters
    assert (own[GLOBAL]["rope_theta"], own[LOCAL]["rope_theta"]) == (5e5, 2e4)
    assert own[GLOBAL]["rope_type"] == "default"


def test_head_widths_that_no_global_key_can_say_are_not_written():
    """Three widths in one model: the reader takes them, the writer refuses."""
    spec = read(FOUR, per_layer_config={"1": {"head_dim": 16}, "4": {"head_dim": 24}})
    assert [k.blocks[0].branches[0].module.d_head for k in spec.decoder.kinds] == [8, 16, 8, 24]
    with pytest.raises(FieldError, match="spec cannot be written as any Hugging Face model type"):
        hf.write(spec)


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (THREE, {"num_kv_shared_layers": 5}, "num_kv_shared_layers 5 leaves no layer"),
        (FOUR, {"num_kv_shared_layers": 4}, "num_kv_shared_layers 4 leaves no layer"),
        (FOUR, {"num_kv_shared_layers": 9}, "num_kv_shared_layers 9 leaves no layer"),
        (THREE, {"layer_types": MIXED[:3]}, "layer_types has 3 entries for 5 layers"),
        (FOUR, {"layer_types": MIXED[:4]}, "layer_types has 4 entries for 5 layers"),
        (THREE, {"intermediate_size": [9, 9]}, "intermediate_size has 2 entries for 5 layers"),
        (THREE, {"activation_sparsity_pattern": [0.5]}, "activation_sparsity_pattern has 1"),
        (THREE, {"layer_types": ["linear_attention"] * 5}, "layer_types 'linear_attention'"),
        (THREE, {"hidden_size_per_layer_input": 0}, "hidden_size_per_layer_input 0 builds"),
        (FOUR, {"use_bidirectional_attention": "all"}, "use_bidirectional_attention all builds"),
        (FOUR, {**MOE, "num_experts": None}, "num_experts must not be null"),
        (FOUR, {"per_layer_config": {"1": 16}}, "per_layer_config.1 16 must be an object"),
        (FOUR, {"sliding_window": None}, "sliding_window must not be null"),
    ],
)
def test_what_no_class_could_build_is_refused_by_its_key(config, changes, message):
    with pytest.raises(FieldError, match=message):
        read(config, **changes)


# ---------------------------------------------------------------- what it keeps and costs


def test_layers_that_share_keys_keep_none_and_a_key_that_is_a_value_is_kept_twice():
    """Own keys in layers 0 to 2: two local ones of 2 x 8, one global of 1 x 16, each twice."""
    for equal in (False, True):
        spec = read(FOUR, attention_k_eq_v=equal, num_global_key_value_heads=1)
        heads = 1 if equal else 2
        assert kv_cache(spec, kv_dtype="fp8").bytes_per_token == 2 * (2 * 2 * 8 + heads * 16)
        sized = [t for t in tensors(spec) if t.name.rsplit(".", 1)[-1] in {"k", "v"}]
        assert len(sized) == (3 if equal else 4)


def test_altup_by_hand():
    """n = 3 streams of D = 32 in 5 layers, 7 tokens: 2 (n - 1) D x D at the ends; a layer has two
    routers D x n of one matrix, n x n^2 and n x n, and D products with an n x n of the token.
    """
    spec = read(THREE)
    ops = [op for op in operators(spec, Workload(context=7)) if "altup" in op.name]
    n, D, L, T = 3, 32, 5, 7
    per_layer = 2 * D * n + n * n * n + n * n + D * n * n
    assert sum(op.flops() for op in ops) == 2 * T * (L * per_layer + 2 * (n - 1) * D * D)
    weights = [t for op in ops for t in op.tensors]
    each = D + D * n + n**3 + n * n + D  # norm, router, two coefficients, output scale
    assert sum(t.size() for t in weights) == L * each + 2 * (n - 1) * D * D


def test_the_tables_of_layers_grow_with_depth():
    """One more layer of the last kind brings 80 x 6 rows and 32 x 6 of the projection."""
    five, six = read(FOUR), vary(read(FOUR), n_layer=6)
    gained = parameters(six).by_part["embedding"] - parameters(five).by_part["embedding"]
    assert gained == 80 * 6
    assert flops(six, context=9).forward > flops(five, context=9).forward


@pytest.mark.parametrize("config", [THREE, FOUR, {**FOUR, **MOE}])
def test_the_walk_sums_to_the_model_and_keeps_the_width_of_the_stream(config):
    spec = read(config)
    stages = [s.to_json() for s in walk(spec, 1, 24)]
    assert sum(s["params"] for s in stages) == parameters(spec).total
    assert sum(s["flops"] for s in stages) == flops(spec, context=24).forward
    assert stages[1]["out_shape"] == [1, 24, 32]
    assert ("experts" in {s["stage"] for s in stages}) == ("num_experts" in config)
    assert len({s["name"] for s in stages}) == len(stages)


# ---------------------------------------------------------------- checks and targets


def test_layers_read_tables_of_their_width():
    spec = read(FOUR)
    with pytest.raises(FieldError, match="needs embeddings"):
        check(replace(spec, embeddings=Embeddings()))
    wide = replace(spec, embeddings=Embeddings(per_layer=PerLayerTables(80, 7)))
    with pytest.raises(FieldError, match="d_per_layer 6 must be 7 as in embeddings"):
        check(wide)
    assert check(vary(spec, d_per_layer=8)).embeddings.per_layer.d_per_layer == 8


BARE = {**FOUR, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}


@pytest.mark.parametrize("target", ["megatron", "nanotron", "torchtitan", "litgpt", "gguf"])
@pytest.mark.parametrize("config", [THREE, FOUR, BARE])
def test_what_others_cannot_say_they_refuse(config, target):
    with pytest.raises(FieldError, match=r"cannot be said in|is no layer of attention"):
        export(read(config), target)


@pytest.mark.parametrize("config", [THREE, FOUR, BARE])
def test_the_lab_runs_them(config):
    torch = pytest.importorskip("torch")
    from scantling.lab.model import Decoder

    spec = read(config)
    logits = Decoder(spec)(torch.zeros(1, 5, dtype=torch.long))

    assert logits.shape == (1, 5, spec.vocab_size)
    assert logits.isfinite().all()
