"""Caches as engines keep them, and the readings of one count, against published numbers."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from scantling import catalog
from scantling.costs.cache import CACHE_READINGS, kv_cache, paged_kv
from scantling.costs.count import parameters
from scantling.costs.readings import READINGS, mtp_module, readings
from scantling.errors import FieldError
from scantling.formats import hf
from scantling.formats.declared import Quantized, declared_dtype, quantized
from scantling.formats.ffn_width import built_width
from scantling.report.analyze import analyze
from scantling.spec import Layer, Run, kv_dtype_bytes, kv_dtype_name, state_dtype_bytes, vary

QWEN3_NEXT = {"model_type": "qwen3_next"}
"""The class's defaults are Qwen3-Next-80B-A3B."""


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        ("fp16", 16), ("fp8", 8), ("int4", 4),
        # llama.cpp, ggml-common.h: a block of 32 with a 16-bit scale (and a minimum: _1)
        ("q8_0", 8.5), ("q5_1", 6), ("q5_0", 5.5), ("q4_1", 5), ("Q4_0", 4.5), ("iq4_nl", 4.5),
        ("int4-g64", 4.25), ("int4_g128", 4.125), ("fp8-g16", 9),
    ],
)  # fmt: skip
def test_a_cache_dtype_has_its_bits_with_scales(dtype, bits):
    assert 8 * kv_dtype_bytes(dtype) == bits
    assert kv_dtype_bytes(kv_dtype_name(dtype)) == kv_dtype_bytes(dtype)


@pytest.mark.parametrize("dtype", ["q9_0", "int4-g0", "int4-g", "bf61", ""])
def test_an_unknown_cache_dtype_is_refused(dtype):
    with pytest.raises(FieldError, match="KV dtype"):
        kv_cache(catalog.model("gpt2"), kv_dtype=dtype)


def test_a_state_is_not_quantised_with_the_cache():
    spec = hf.read(QWEN3_NEXT).spec
    half, quarter = (kv_cache(spec, 1, 100, dtype) for dtype in ("fp16", "q4_0"))
    assert half.state_bytes == quarter.state_bytes > 0
    assert quarter.bytes_per_token == half.bytes_per_token * 4.5 / 16
    assert state_dtype_bytes("fp32") == 4


def test_an_encoders_keys_are_quantised_like_the_others():
    """Whisper-tiny keeps 1500 positions of 2 × 384 in 4 layers."""
    spec = hf.read({"model_type": "whisper"}).spec
    cache = kv_cache(spec, 1, 10, "q8_0")
    assert cache.cross_bytes == cache.state_bytes == 4 * 1500 * 2 * 384 * 34 / 32


def test_the_latent_without_absorption_is_what_llama_cpp_logged_for_deepseek_v3():
    """n_embd_k_gqa 24576 and n_embd_v_gqa 16384, before it kept the latent; in 61 layers."""
    cache = kv_cache(catalog.model("deepseek-v3"), 2, 1000, "fp16")
    assert cache.expanded_bytes_per_token == 61 * (24_576 + 16_384) * 2
    assert cache.expanded_bytes == 2 * 1000 * cache.expanded_bytes_per_token
    plain = kv_cache(catalog.model("gemma-3-27b"), 2, 5000)
    assert (plain.expanded_bytes, plain.expanded_bytes_per_token) == (
        plain.bytes, plain.bytes_per_token,
    )  # fmt: skip


def test_layers_that_read_anothers_keys_keep_none():
    """Of 32 layers with 8 KV heads of 128 half read what the layer before them keeps."""
    spec = catalog.model("llama-3.1-8b")
    own = spec.decoder.kinds[0]
    branch = own.blocks[0].branches[0]
    reader = replace(branch, module=replace(branch.module, shares_kv=True))
    shared = Layer("reader", (replace(own.blocks[0], branches=(reader,)), *own.blocks[1:]))
    stack = replace(spec.decoder, kinds=(own, shared), layout=(Run((own.name, "reader"), 32),))
    both = replace(spec, decoder=stack)
    assert kv_cache(both).bytes_per_token == 16 * 2 * 8 * 128 * 2
    found, whole = (paged_kv(one, 1, 4096) for one in (both, spec))
    assert found is not None
    assert whole is not None
    assert 2 * found.bytes == whole.bytes


def test_the_page_of_qwen3_next_is_what_vllm_logs():
    """Log of vLLM 0.10.2: attention block of 544 tokens, mamba page padded by 1.49%."""
    found = paged_kv(hf.read(QWEN3_NEXT).spec, 1, 8192, "bf16")
    assert found is not None
    assert found.page_tokens == 544
    state = kv_cache(hf.read(QWEN3_NEXT).spec).state_bytes / 36
    assert math.isclose(100 * (found.page_bytes / state - 1), 1.49, abs_tol=0.005)
    groups = {(g.layers, g.groups, g.blocks) for g in found.groups}
    assert groups == {(36, 3, 1), (12, 1, 16)}


def test_gemma_3_27b_is_padded_to_groups_of_ten_layers():
    """52 windowed layers and 10 full ones: six groups and one, 8 layers of padding."""
    found = paged_kv(catalog.model("gemma-3-27b"), 1, 131_072)
    assert found is not None
    token = 2 * 16 * 128 * 2
    assert found.bytes == 10 * 16 * token * (6 * (1024 // 16 + 1) + 131_072 // 16)
    cache = kv_cache(catalog.model("gemma-3-27b"), 1, 131_072)
    assert cache.bytes < found.bytes < cache.allocated_bytes


def test_kinds_of_nearly_equal_number_share_the_larger_group():
    """13 full and 12 windowed layers become 13 and 13, not 12 and 24."""
    layers = ["full_attention", *["sliding_attention", "full_attention"] * 12]
    config = {"model_type": "gpt_oss", "num_hidden_layers": 25, "layer_types": layers}
    found = paged_kv(hf.read(config).spec, 1, 8192)
    assert found is not None
    assert found.group_layers == 13
    assert sorted((g.layers, g.groups, g.padding) for g in found.groups) == [
        (12, 1, 1), (13, 1, 0),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt-oss-20b", "deepseek-v3", "llama-4-scout"])
@pytest.mark.parametrize("context", [1, 127, 128, 129, 130, 5000])
def test_pages_hold_what_is_needed_and_no_more_than_padding(name, context):
    spec = catalog.model(name)
    cache, found = kv_cache(spec, 3, context, "fp8"), paged_kv(spec, 3, context, "fp8")
    assert found is not None
    assert cache.bytes <= found.bytes
    layers = sum(g.groups for g in found.groups) * found.group_layers
    assert found.bytes - cache.bytes <= 3 * (
        2 * layers * found.page_bytes + (layers - sum(g.layers for g in found.groups)) * context
        * found.page_bytes / found.page_tokens
    )  # fmt: skip


def test_an_encoder_is_paged_to_nothing_and_a_state_to_one_page():
    assert paged_kv(hf.read({"model_type": "bert"}).spec, 1, 100) is None
    spec = hf.read({"model_type": "mamba"}).spec
    found = paged_kv(spec, 2, 100)
    assert found is not None
    assert found.bytes == kv_cache(spec, 2, 100).bytes


# ---------------------------------------------------------------- readings


def test_qwen3_next_with_its_module_is_the_number_on_the_hub():
    """81,324,862,720 elements of the shards, 79,674,391,296 of them the model's."""
    counts = readings(hf.read(QWEN3_NEXT).spec, 1)
    assert counts["unique"] == 79_674_391_296
    assert counts["with_mtp"] == 81_324_862_720


def test_deepseek_v3_with_its_module_is_685_billion():
    """Its README: 671B of the main model and 14B of the module, embedding and head included."""
    counts = readings(catalog.model("deepseek-v3"), 1)
    own = counts["with_mtp_tables"] - counts["unique"]
    assert (round(own / 1e9), round(counts["with_mtp_tables"] / 1e9)) == (13, 684)
    assert own == mtp_module(catalog.model("deepseek-v3")) + 2 * 129_280 * 7168
    assert round(counts["with_mtp"] - counts["unique"], -8) == 11_600_000_000


def test_each_reading_of_an_analysis_says_what_it_counts():
    answer = analyze("deepseek-v3", context=128).to_json()
    assert answer["params"]["readings_mean"].keys() == answer["params"]["readings"].keys()
    assert answer["params"]["readings_mean"].keys() <= READINGS.keys()
    assert answer["kv_cache"].keys() >= CACHE_READINGS.keys()
    tied = analyze("gpt2").to_json()["params"]["readings"]
    assert (tied["lm_head_new"], tied["lm_head_shared"]) == (0, 50_257 * 768)
    assert tied["embedding_share"] == (50_257 + 1024) * 768 / 124_439_808


def test_a_vision_tower_is_named_and_not_counted():
    config = {"model_type": "gemma3", "text_config": {}, "vision_config": {"hidden_size": 1152}}
    answer = analyze(config).to_json()["params"]
    assert answer["readings"]["towers_not_counted"] == ["vision_config"]
    text = hf.read({"model_type": "gemma3_text"}).spec
    assert answer["total"] == parameters(vary(text, vocab_size=262_208)).total


# ---------------------------------------------------------------- what a config declares


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"quantization_config": {"quant_method": "awq", "w_bit": 4}}, Quantized("awq", 4)),
        ({"quantization_config": {"quant_method": "fp8"}}, Quantized("fp8", 8)),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
         Quantized("bitsandbytes", 4)),
        ({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {
            "group_0": {"weights": {"num_bits": 8}}}}}, Quantized("compressed-tensors", 8)),
        ({"quantization_config": {"quant_method": "odd", "bits": "four"}}, Quantized("odd", None)),
        ({"quantization_config": None}, None),
    ],
)  # fmt: skip
def test_a_config_says_how_it_is_quantised(config, expected):
    assert quantized(config) == expected
    assert quantized({"text_config": config}) == expected


def test_a_dtype_is_read_under_both_keys_and_never_guessed():
    assert declared_dtype({"text_config": {"torch_dtype": "bfloat16"}}) == "bf16"
    assert declared_dtype({"dtype": 3}) is None


def test_an_unknown_width_rule_is_refused():
    with pytest.raises(FieldError, match="gpt-neox"):
        built_width(11_008, "gpt-neox")
