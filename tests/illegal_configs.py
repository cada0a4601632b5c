"""Illegal and harmful configs, one a rule at least: the rule that catches it, and what mends it.

Every one is a sound base with one harm. ``mend`` is what the finding's fix says in words, done by
hand; where the rule can make its own fix, the tests make that, too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2048,
    "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 8,
    "intermediate_size": 5632, "vocab_size": 32000, "max_position_embeddings": 4096,
    "rope_theta": 500000.0, "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
}  # fmt: skip
QWEN3 = {
    "model_type": "qwen3", "hidden_size": 2048, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 6144, "vocab_size": 51200, "max_position_embeddings": 32768,
    "rope_theta": 1000000.0, "tie_word_embeddings": True,
}  # fmt: skip
MOE = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 24,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "moe_intermediate_size": 768, "intermediate_size": 6144, "num_experts": 64,
    "num_experts_per_tok": 8, "vocab_size": 51200, "max_position_embeddings": 32768,
    "rope_theta": 1000000.0, "norm_topk_prob": True, "tie_word_embeddings": False,
    "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
MLA = {
    "model_type": "deepseek_v3", "hidden_size": 2048, "num_hidden_layers": 24,
    "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 8192,
    "moe_intermediate_size": 1024, "n_routed_experts": 64, "num_experts_per_tok": 6,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 8, "topk_group": 4,
    "q_lora_rank": 1024, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
    "v_head_dim": 128, "vocab_size": 51200, "max_position_embeddings": 4096,
    "tie_word_embeddings": False, "rope_theta": 500000.0,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
    "vocab_size": 50304,
}  # fmt: skip
NEOX = {
    "model_type": "gpt_neox", "hidden_size": 1024, "num_attention_heads": 16,
    "num_hidden_layers": 24, "intermediate_size": 4096, "vocab_size": 50304, "rotary_pct": 0.25,
    "max_position_embeddings": 2048,
}  # fmt: skip
HYBRID = {
    "model_type": "bamba", "hidden_size": 2048, "num_hidden_layers": 8,
    "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 8192,
    "vocab_size": 51200, "mamba_expand": 2, "mamba_n_heads": 64, "mamba_d_head": 64,
    "mamba_n_groups": 1, "mamba_d_state": 128, "mamba_d_conv": 4, "attn_layer_indices": [3],
    "max_position_embeddings": 4096,
}  # fmt: skip
MAMBA = {
    "model_type": "mamba", "hidden_size": 1024, "num_hidden_layers": 24, "vocab_size": 50304,
    "state_size": 16, "conv_kernel": 4, "intermediate_size": 2048, "time_step_rank": 64,
}  # fmt: skip
GEMMA3 = {
    "model_type": "gemma3", "text_config": {
        "model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 24,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "intermediate_size": 10240, "vocab_size": 262144, "sliding_window": 1024,
    }, "vision_config": {"hidden_size": 1152},
}  # fmt: skip
PHI3 = {
    "model_type": "phi3", "hidden_size": 3072, "num_hidden_layers": 32,
    "num_attention_heads": 24, "num_key_value_heads": 8, "intermediate_size": 8192,
    "vocab_size": 200064, "max_position_embeddings": 131072, "partial_rotary_factor": 0.75,
    "original_max_position_embeddings": 4096, "rope_theta": 10000.0,
    "tie_word_embeddings": True, "pad_token_id": 0, "eos_token_id": 2, "bos_token_id": 1,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48},
}  # fmt: skip
LLAMA31 = {
    **LLAMA, "max_position_embeddings": 131072, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16384,
    },
}  # fmt: skip
YARN = {
    **QWEN3, "max_position_embeddings": 131072, "rope_scaling": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768,
    },
}  # fmt: skip
DYNAMIC = {
    **LLAMA, "rope_scaling": {
        "rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 4096,
    },
}  # fmt: skip


class Harm(NamedTuple):
    """One harm done to a base."""

    code: str
    base: dict[str, Any]
    change: dict[str, Any]
    setting: dict[str, Any] = {}  # noqa: RUF012 - a named tuple has no other
    mend: dict[str, Any] | None = None
    """Keys that mend it by hand."""
    mend_setting: dict[str, Any] | None = None
    """Options that mend it; None leaves them."""
    base_setting: dict[str, Any] | None = None
    """Options under which the base is silent, where the harm is in the options."""
    name: str = "config"


def changed(config: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """A config with keys changed: dotted ones inside, None takes one away."""
    new = dict(config)
    for key, value in change.items():
        outer, _, inner = key.partition(".")
        if inner:
            new[outer] = changed(new.get(outer, {}), {inner: value})
        elif value is None:
            new.pop(key, None)
        else:
            new[key] = value
    return new


ROPE = "rope_scaling"
H = Harm
HARMS: list[Harm] = [
    # ------------------------------------------------------------ what a config says
    H("SC001", LLAMA, {"num_hidden_layers": 0}, mend={"num_hidden_layers": 24}),
    H("SC001", LLAMA, {"num_attention_heads": -16}, mend={"num_attention_heads": 16}),
    H("SC001", LLAMA, {"vocab_size": "32k"}, mend={"vocab_size": 32000}),
    H("SC001", LLAMA, {"hidden_size": 2048.5}, mend={"hidden_size": 2048}),
    H("SC001", GEMMA3, {"text_config.num_hidden_layers": True},
      mend={"text_config.num_hidden_layers": 24}),
    H("SC002", LLAMA, {"hidden_size": 2000, "num_attention_heads": 12, "num_key_value_heads": 4,
                       "head_dim": 128}, mend={"hidden_size": 2048, "num_attention_heads": 16}),
    H("SC003", GPT2, {"num_key_value_heads": 4}, mend={"num_key_value_heads": None}),
    H("SC004", LLAMA, {"num_key_value_heads": None, "num_key_value_head": 8}),
    H("SC005", LLAMA, {"intermediate_size": None}, mend={"intermediate_size": 5632}),
    H("SC006", LLAMA, {"hidden_size": 2048.0}),
    H("SC007", GPT2, {"n_ctx": 2048}),
    H("SC007", GEMMA3, {"tie_word_embeddings": False, "text_config.tie_word_embeddings": True},
      mend={"tie_word_embeddings": None}),
    H("SC008", QWEN3, {"layer_types": ["full_attention"] * 20},
      mend={"layer_types": ["full_attention"] * 28}),
    H("SC008", QWEN3, {"layer_types": ["full_attention"] * 30}),
    H("SC008", HYBRID, {"attn_layer_indices": [3, 99]}, mend={"attn_layer_indices": [3]}),
    H("SC009", QWEN3, {"layer_types": ["full_attention"] * 27 + ["full_atention"]}),
    H("SC010", QWEN3, {"head_dim": None, "num_attention_heads": 32}),
    H("SC010", NEOX, {"head_dim": 128}),
    H("SC015", QWEN3, {"num_attention_heads": 32}, mend={"num_attention_heads": 16}),
    H("SC011", LLAMA, {"architectures": ["Qwen3ForCausalLM"]},
      mend={"architectures": ["LlamaForCausalLM"]}),
    H("SC013", LLAMA, {"model_type": "lama"}),
    H("SC014", LLAMA, {"vocab_size": 5, "pad_token_id": None}, mend={"vocab_size": 32000}),
    H("SC021", LLAMA, {}, name="my-7b", mend={"num_hidden_layers": 150}),
    H("SC022", MOE, {}, name="my-8b-a7b", mend={"num_experts_per_tok": 60}),
    H("SC023", {**LLAMA, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
                "num_key_value_heads": 32, "intermediate_size": 11008},
      {"max_position_embeddings": 2048}, name="Llama-2-7b-hf",
      mend={"max_position_embeddings": 4096}),
    H("SC016", LLAMA, {"hidden_act": "sillu"}),
    H("SC017", LLAMA, {"torch_dtype": "bfloat61"}),
    # ------------------------------------------------------------ heads
    H("SC101", LLAMA, {"num_key_value_heads": 6}),
    H("SC101", LLAMA, {"num_key_value_heads": 32}),
    H("SC101", GEMMA3, {"text_config.num_key_value_heads": 3}),
    H("SC102", LLAMA, {"num_attention_heads": 12, "num_key_value_heads": 4}),
    H("SC102", GPT2, {"n_embd": 1600, "n_head": 48, "n_layer": 25}),
    H("SC102", NEOX, {"num_attention_heads": 12}),
    H("SC103", QWEN3, {"head_dim": 127}),
    H("SC103", NEOX, {"rotary_pct": 0.3}),
    H("SC103", MLA, {"qk_rope_head_dim": 63}),
    H("SC105", QWEN3, {"head_dim": 100}, mend={"head_dim": 104}),
    H("SC105", MLA, {"v_head_dim": 129}, mend={"v_head_dim": 128}),
    H("SC106", QWEN3, {"head_dim": 256, "num_attention_heads": 64},
      mend={"head_dim": 128, "num_attention_heads": 16}),
    H("SC107", LLAMA, {"num_key_value_heads": 1}, mend={"num_key_value_heads": 4}),
    H("SC108", LLAMA, {"num_key_value_heads": 16}, mend={"num_key_value_heads": 4}),
    H("SC109", QWEN3, {"head_dim": 32, "num_attention_heads": 64, "num_key_value_heads": 32},
      mend={"head_dim": 64, "num_attention_heads": 32, "num_key_value_heads": 16}),
    H("SC110", {"model_type": "bloom", "hidden_size": 1024, "n_head": 16, "n_layer": 24,
                "vocab_size": 250880}, {"hidden_size": 1536, "n_head": 24},
      mend={"n_head": 32, "hidden_size": 2048}),
    H("SC111", MLA, {"kv_lora_rank": 64}, mend={"kv_lora_rank": 512}),
    H("SC112", MLA, {"num_key_value_heads": 4}),
    H("SC121", HYBRID, {"mamba_n_groups": 5}, mend={"mamba_n_groups": 4}),
    H("SC122", MAMBA, {"intermediate_size": 2040}, mend={"intermediate_size": 2048}),
    H("SC122", MAMBA, {"conv_kernel": 7}, mend={"conv_kernel": 4}),
    # ------------------------------------------------------------ splits
    H("SC201", QWEN3, {"num_attention_heads": 28, "num_key_value_heads": 4}, {"tp": 8}),
    H("SC201", LLAMA, {}, {"tp": 6}, mend_setting={"tp": 4}, base_setting={"tp": 4}),
    H("SC202", QWEN3, {"num_attention_heads": 24, "num_key_value_heads": 6}, {"tp": 4}),
    H("SC203", LLAMA, {"num_key_value_heads": 2}, {"tp": 8}, mend={"num_key_value_heads": 8}),
    H("SC204", MLA, {}, {"tp": 8}, mend_setting={"tp": 1}, base_setting={"tp": 1}),
    H("SC205", LLAMA, {"intermediate_size": 5630}, {"tp": 8}),
    H("SC206", LLAMA, {"num_hidden_layers": 30}, {"pp": 4}, mend={"num_hidden_layers": 32}),
    H("SC206", LLAMA, {"num_hidden_layers": 29}, {"pp": 4, "runtime": "megatron"},
      mend={"num_hidden_layers": 28}),
    H("SC207", MOE, {"num_experts": 60}, {"ep": 8}, mend={"num_experts": 64}),
    H("SC208", LLAMA, {}, {"ep": 8}, mend_setting={"ep": 1}, base_setting={"ep": 1}),
    H("SC209", LLAMA, {}, {"cp": 4, "context": 4100}, mend_setting={"cp": 4, "context": 4096},
      base_setting={"cp": 4, "context": 4096}),
    H("SC210", {**LLAMA, "hidden_size": 5120, "num_attention_heads": 40}, {},
      {"cp": 16, "runtime": "ulysses"}, mend_setting={"cp": 8, "runtime": "ulysses"},
      base_setting={"cp": 40, "runtime": "ulysses"}),
    H("SC211", LLAMA, {}, {"tp": 4, "pp": 2, "gpus": 12}, mend_setting={"tp": 4, "gpus": 8},
      base_setting={"tp": 4, "pp": 2, "gpus": 16}),
    H("SC212", LLAMA, {}, {"tp": 16}, mend_setting={"tp": 8}, base_setting={"tp": 8}),
    H("SC213", LLAMA, {"vocab_size": 50257}, {"tp": 8, "runtime": "megatron"},
      mend={"vocab_size": 51200}, base_setting={"tp": 2, "runtime": "megatron"}),
    H("SC214", LLAMA, {}, {"tp": 8, "context": 4100, "phase": "train"},
      mend_setting={"tp": 8, "context": 4104, "phase": "train"},
      base_setting={"tp": 8, "context": 4096, "phase": "train"}),
    # ------------------------------------------------------------ products
    H("SC301", LLAMA, {"intermediate_size": 5461}),
    H("SC301", LLAMA, {"hidden_size": 2052, "num_attention_heads": 18, "num_key_value_heads": 6},
      mend={"hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 8}),
    H("SC302", LLAMA, {"intermediate_size": 5640}, {"gpu": "a100"}),
    H("SC303", LLAMA, {"intermediate_size": 5696}, {"tp": 2}),
    H("SC304", LLAMA, {"intermediate_size": 5640}, {"dtype": "fp8"}),
    H("SC304", LLAMA, {"intermediate_size": 5648}, {"dtype": "nvfp4"}),
    H("SC305", LLAMA, {}, {"dtype": "fp8", "context": 50, "phase": "train"},
      mend_setting={"dtype": "fp8", "context": 56, "phase": "train"},
      base_setting={"dtype": "fp8", "context": 64, "phase": "train"}),
    H("SC306", LLAMA, {}, {"gpu": "a100", "dtype": "fp8"},
      mend_setting={"gpu": "a100", "dtype": "bf16"}, base_setting={"gpu": "h100", "dtype": "fp8"}),
    H("SC306", LLAMA, {}, {"gpu": "v100", "dtype": "bf16"},
      mend_setting={"gpu": "v100", "dtype": "fp16"}, base_setting={"gpu": "v100", "dtype": "fp16"}),
    H("SC307", LLAMA, {"vocab_size": 50257}, {"runtime": "cublas-10"}, mend={"vocab_size": 50304}),
    H("SC308", LLAMA, {"intermediate_size": 5696}, {"gpu": "h100", "context": 130},
      mend={"intermediate_size": 5632}, mend_setting={"gpu": "h100", "context": 4096},
      base_setting={"gpu": "h100", "context": 4096}),
    H("SC309", LLAMA, {}, {"gpu": "a100", "context": 1792},
      mend_setting={"gpu": "a100", "context": 1664},
      base_setting={"gpu": "a100", "context": 65536}),
    H("SC310", LLAMA, {"intermediate_size": 5760}, {"gpu": "tpu-v6e"},
      mend={"intermediate_size": 5888}),
    H("SC311", MOE, {"hidden_size": 2880}, {"ep": 8, "phase": "serve"},
      mend={"hidden_size": 3072}),
    H("SC312", MOE, {}, {"dtype": "mxfp8", "context": 256},
      mend_setting={"dtype": "mxfp8", "context": 32768},
      base_setting={"dtype": "mxfp8", "context": 32768}),
    H("SC331", QWEN3, {"head_dim": 512, "num_attention_heads": 4, "num_key_value_heads": 4},
      {"gpu": "rtx-5090"}, mend={"head_dim": 256}),
    H("SC331", QWEN3, {"head_dim": 96}, {"runtime": "flashinfer"}, mend={"head_dim": 128}),
    H("SC331", MLA, {}, {"gpu": "a100"}, base_setting={"gpu": "h100"},
      mend_setting={"gpu": "h100"}),
    H("SC332", QWEN3, {"head_dim": 80}, {"gpu": "h100"}, mend={"head_dim": 64}),
    H("SC333", QWEN3, {"head_dim": 80}, mend={"head_dim": 64}),
    H("SC334", QWEN3, {"head_dim": 208, "num_attention_heads": 8, "num_key_value_heads": 4},
      {"gpu": "rtx-4090", "phase": "train"}, mend={"head_dim": 192}),
    H("SC335", LLAMA, {"hidden_size": 1536, "num_attention_heads": 12, "num_key_value_heads": 4},
      {"runtime": "flex"}, mend={"num_key_value_heads": 6}),
    H("SC336", QWEN3, {"head_dim": 72}, {"dtype": "fp8"}, mend={"head_dim": 80}),
    # ------------------------------------------------------------ quantised weights
    H("SC401", QWEN3, {"num_attention_heads": 14, "num_key_value_heads": 2, "head_dim": 64,
                       "hidden_size": 896, "intermediate_size": 4864},
      {"quant": "gptq-int4", "tp": 2}),
    H("SC401", LLAMA, {"intermediate_size": 29568}, {"quant": "gptq-int4", "tp": 2}),
    H("SC402", MOE, {}, {"quant": "fp8-block", "tp": 4}, base_setting={"quant": "fp8-block",
                                                                      "tp": 2}),
    H("SC402", MOE, {"moe_intermediate_size": 320}, {"quant": "fp8-block"},
      mend={"moe_intermediate_size": 384}),
    H("SC403", QWEN3, {"intermediate_size": 6176}, {"quant": "gptq-int4-g32"},
      mend={"intermediate_size": 6144}),
    H("SC404", LLAMA, {"intermediate_size": 5696}, {"quant": "q4_k_m"},
      mend={"intermediate_size": 5632}),
    H("SC405", MOE, {"hidden_size": 2880}, {"quant": "mxfp4"}, mend={"hidden_size": 3072}),
    H("SC406", LLAMA, {}, {"gpu": "v100", "quant": "fp8"}, base_setting={"gpu": "h100",
                                                                         "quant": "fp8"},
      mend_setting={"gpu": "v100", "quant": "fp16"}),
    # ------------------------------------------------------------ vocabulary
    H("SC501", LLAMA, {"vocab_size": 50257}),
    H("SC501", GPT2, {"vocab_size": 50257}),
    H("SC501", GEMMA3, {"text_config.vocab_size": 262145}),
    H("SC502", {**LLAMA, "hidden_size": 4096}, {"vocab_size": 1024}, mend={"vocab_size": 32000}),
    H("SC503", LLAMA, {"vocab_size": 256000}, mend={"tie_word_embeddings": True}),
    H("SC504", QWEN3, {"vocab_size": 2000000}, mend={"vocab_size": 51200}),
    H("SC505", LLAMA, {"pad_token_id": 32000}, mend={"pad_token_id": 0}),
    H("SC505", GEMMA3, {"text_config.eos_token_id": 300000}, mend={"text_config.eos_token_id": 1}),
    H("SC506", LLAMA, {"vocab_size": 128}, mend={"vocab_size": 384}),
    # ------------------------------------------------------------ shape
    H("SC601", LLAMA, {"intermediate_size": 32768}, mend={"intermediate_size": 5632}),
    H("SC602", QWEN3, {"intermediate_size": 24576}, mend={"intermediate_size": 6144}),
    H("SC603", LLAMA, {"num_hidden_layers": 4}, mend={"num_hidden_layers": 32}),
    H("SC603", LLAMA, {"num_hidden_layers": 200}, mend={"num_hidden_layers": 32}),
    H("SC604", QWEN3, {"hidden_size": 512, "num_hidden_layers": 96},
      mend={"num_hidden_layers": 24}),
    H("SC605", QWEN3, {"hidden_size": 512, "num_hidden_layers": 96},
      mend={"num_hidden_layers": 24}),
    H("SC606", LLAMA, {"num_hidden_layers": 1}, mend={"num_hidden_layers": 8}),
    H("SC607", LLAMA, {"intermediate_size": 8192}, mend={"intermediate_size": 5504}),
    H("SC608", LLAMA, {"intermediate_size": 1024}, mend={"intermediate_size": 5504}),
    # ------------------------------------------------------------ rotary positions
    H("SC701", LLAMA31, {f"{ROPE}.factor": None}),
    H("SC701", YARN, {f"{ROPE}.original_max_position_embeddings": None}),
    H("SC701", YARN, {f"{ROPE}.rope_type": "yarm"}, mend={f"{ROPE}.rope_type": "yarn"}),
    H("SC701", YARN, {f"{ROPE}.factor": -4.0}, mend={f"{ROPE}.factor": 4.0}),
    H("SC701", GEMMA3, {"text_config.rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "yarn", "rope_theta": 1e4}}},
      mend={"text_config.rope_parameters": None}),
    H("SC702", LLAMA31, {f"{ROPE}.beta_fast": 32}),
    H("SC703", DYNAMIC, {"max_position_embeddings": 16384}),
    H("SC704", YARN, {"max_position_embeddings": 40960}),
    H("SC705", PHI3, {f"{ROPE}.short_factor": [1.0] * 64},
      mend={f"{ROPE}.short_factor": [1.0] * 48}),
    H("SC705", PHI3, {f"{ROPE}.long_factor": None}, mend={f"{ROPE}.long_factor": [2.0] * 48}),
    H("SC706", YARN, {"rope_theta": None}, mend={"rope_theta": 1000000.0}),
    H("SC707", YARN, {f"{ROPE}.factor": 1.0, "max_position_embeddings": 32768}),
    H("SC708", LLAMA31, {f"{ROPE}.high_freq_factor": 0.5}),
    H("SC709", LLAMA, {"rope_theta": 10000.0, "max_position_embeddings": 131072},
      mend={"rope_theta": 10000000.0}),
    H("SC710", GPT2, {}, {"context": 4096}, mend={"n_positions": 4096},
      base_setting={"context": 1024}),
    H("SC711", GEMMA3, {"text_config.sliding_window": 200000},
      mend={"text_config.sliding_window": 1024}),
    H("SC712", {**QWEN3, "use_sliding_window": True, "sliding_window": 4096,
                "max_window_layers": 14}, {"max_window_layers": 28},
      mend={"max_window_layers": 14}),
    H("SC712", {**QWEN3, "use_sliding_window": True, "sliding_window": 4096,
                "max_window_layers": 14}, {"sliding_window": 0}),
    H("SC707", {**GPT2, "model_type": "opt"}, {ROPE: {"rope_type": "linear", "factor": 2.0}},
      mend={ROPE: None}),
    # ------------------------------------------------------------ experts
    H("SC811", MLA, {"routed_scaling_factor": 0.0}),
    H("SC111", MLA, {"q_lora_rank": 4096}, mend={"q_lora_rank": 1024}),
    H("SC801", MOE, {"num_experts_per_tok": 65}),
    H("SC801", MLA, {"num_experts_per_tok": 80}),
    H("SC802", MLA, {"n_group": 7}),
    H("SC802", MLA, {"topk_group": 9}),
    H("SC803", MOE, {"num_experts_per_tok": 64}, mend={"num_experts_per_tok": 8}),
    H("SC804", MOE, {"moe_intermediate_size": 740}, mend={"moe_intermediate_size": 768}),
    H("SC805", MOE, {"num_attention_heads": 16}, {"tp": 4}, base_setting={"tp": 2},
      mend={"moe_intermediate_size": 1024}),
    H("SC806", MOE, {"num_experts": 60}, mend={"num_experts": 64}),
    H("SC807", MLA, {"first_k_dense_replace": 24}, mend={"first_k_dense_replace": 1}),
    H("SC808", MLA, {"n_shared_experts": 8}, mend={"n_shared_experts": 1}),
    H("SC807", MOE, {"mlp_only_layers": list(range(24))}, mend={"mlp_only_layers": []}),
    H("SC809", MOE, {"capacity_factor": 0.5}),
    H("SC810", MOE, {"router_aux_loss_coef": 0.0}, {"phase": "train"}),
    H("SC811", MOE, {"num_experts_per_tok": 1}, mend={"norm_topk_prob": False}),
    H("SC812", MOE, {"num_experts": 1, "num_experts_per_tok": 1}, mend={"num_experts": 8}),
    H("SC813", MOE, {"moe_intermediate_size": 64}, mend={"moe_intermediate_size": 768}),
    # ------------------------------------------------------------ memory
    H("SC901", LLAMA, {"num_hidden_layers": 400}, {"gpu": "l4"}, mend={"num_hidden_layers": 24}),
    H("SC901", LLAMA, {"num_hidden_layers": 48}, {"gpu": "l4", "phase": "train"},
      base_setting={"gpu": "h100", "phase": "train"}, mend_setting={"gpu": "l4", "gpus": 8,
                                                                    "phase": "train"}),
    H("SC902", LLAMA, {}, {"gpu": "l4", "context": 4096, "batch": 200},
      mend_setting={"gpu": "l4", "context": 4096, "batch": 4},
      base_setting={"gpu": "l4", "context": 4096, "batch": 4}),
    H("SC903", LLAMA, {"max_position_embeddings": 131072}, {"context": 131072},
      base_setting={"context": 4096}, mend={"num_key_value_heads": 1, "num_attention_heads": 16}),
    H("SC904", LLAMA, {}, {"runtime": "flash-attention", "context": 300},
      base_setting={"runtime": "flash-attention", "context": 4096},
      mend_setting={"runtime": "flash-attention", "context": 512}),
    H("SC905", LLAMA, {}, {"gpu": "l4", "context": 4096, "batch": 16, "phase": "train"},
      base_setting={"gpu": "l4", "context": 4096, "phase": "train"},
      mend_setting={"gpu": "l4", "context": 4096, "phase": "train"}),
    # ------------------------------------------------------------ training
    H("SC951", LLAMA, {}, {"pp": 4, "batch": 4}, base_setting={"pp": 4, "batch": 64},
      mend_setting={"pp": 4, "batch": 27}),
    H("SC953", LLAMA, {"initializer_range": 0}),
    H("SC953", LLAMA, {"initializer_range": 2.0}),
    H("SC954", LLAMA, {"rms_norm_eps": 0.1}),
    H("SC955", LLAMA, {}, {"phase": "train", "dtype": "fp16", "gpu": "h100"},
      base_setting={"phase": "train", "dtype": "bf16", "gpu": "h100"},
      mend_setting={"phase": "train", "dtype": "bf16", "gpu": "h100"}),
    H("SC956", LLAMA, {"attention_dropout": 1.5}),
    H("SC957", GEMMA3, {"text_config.final_logit_softcapping": 2.0}),
]  # fmt: skip
"""Every harm."""
