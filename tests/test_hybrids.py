"""Models with a state: the real classes on the meta device, counters, states worked out by hand."""

import itertools
import json
import random

import pytest
from msgspec.structs import replace

from scantling.costs.cache import kv_cache
from scantling.costs.count import flops, forward_flops, parameters
from scantling.errors import FieldError
from scantling.formats import hf
from scantling.ops import operators, tensors
from scantling.spec import (
    Block,
    Branch,
    ChannelMix,
    GatedDelta,
    GroupedAttention,
    Handed,
    KimiDelta,
    Layer,
    LinearAttention,
    Mamba1,
    Mamba2,
    Norm,
    Projection,
    RgLru,
    Run,
    Rwkv,
    ShortConv,
    Spec,
    Stack,
    Workload,
    vary,
)

MAMBA, FULL, LINEAR, HYBRID = "mamba", "full_attention", "linear_attention", "hybrid"

# ---------------------------------------------------------------- small configs

HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
SSD = {
    "hidden_size": 32, "mamba_expand": 2, "mamba_n_heads": 4, "mamba_d_head": 16,
    "mamba_d_state": 6, "mamba_d_conv": 3, "mamba_chunk_size": 10, "mamba_n_groups": 1,
}  # fmt: skip
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6,
    "linear_value_head_dim": 5, "linear_conv_kernel_dim": 3,
}  # fmt: skip
MOE = {
    "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 9,
    "shared_expert_intermediate_size": 7,
}  # fmt: skip
LATENT = {
    "kv_lora_rank": 12, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 7,
    "num_attention_heads": 4, "num_key_value_heads": 4,
}  # fmt: skip

SMALL = {
    "mamba": {"hidden_size": 24, "num_hidden_layers": 3, "state_size": 5, "conv_kernel": 3,
              "time_step_rank": 4},
    "falcon_mamba": {"hidden_size": 24, "num_hidden_layers": 3, "state_size": 5,
                     "conv_kernel": 3},
    "mamba2": {"hidden_size": 32, "num_hidden_layers": 3, "state_size": 6, "num_heads": 4,
               "head_dim": 16, "n_groups": 2, "conv_kernel": 3, "chunk_size": 10},
    "rwkv": {"hidden_size": 24, "num_hidden_layers": 3},
    "jamba": {**HEADS, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 6,
              "num_experts": 4, "attn_layer_period": 3, "attn_layer_offset": 1,
              "mamba_d_state": 5, "mamba_dt_rank": 3},
    "bamba": {**HEADS, **SSD, "num_hidden_layers": 5, "intermediate_size": 40,
              "attn_layer_indices": [1, 4]},
    "falcon_h1": {**HEADS, **SSD, "num_hidden_layers": 3, "intermediate_size": 40,
                  "mamba_d_ssm": 64},
    "granitemoehybrid": {**HEADS, **SSD, "num_hidden_layers": 4, "intermediate_size": 9,
                         "num_local_experts": 6, "shared_intermediate_size": 11,
                         "layer_types": [MAMBA, "attention", MAMBA, MAMBA]},
    "nemotron_h": {**HEADS, "hidden_size": 32, "head_dim": 8, "intermediate_size": 40,
                   "hybrid_override_pattern": "M-M*EME-", "ssm_state_size": 6,
                   "mamba_num_heads": 4, "mamba_head_dim": 10, "n_groups": 2, "conv_kernel": 3,
                   "chunk_size": 10, "n_routed_experts": 6, "num_experts_per_tok": 2,
                   "moe_intermediate_size": 9, "moe_shared_expert_intermediate_size": 11},
    "recurrent_gemma": {**HEADS, "hidden_size": 32, "num_hidden_layers": 5, "lru_width": 40,
                        "intermediate_size": 60, "attention_window_size": 9},
    "lfm2": {**HEADS, "hidden_size": 32, "num_hidden_layers": 4, "intermediate_size": 60,
             "block_multiple_of": 16, "full_attn_idxs": [1, 3]},
    "lfm2_moe": {**HEADS, "hidden_size": 32, "num_hidden_layers": 4, "intermediate_size": 40,
                 "moe_intermediate_size": 9, "num_experts": 6, "num_experts_per_tok": 2,
                 "num_dense_layers": 1, "layer_types": ["conv", FULL, "conv", FULL]},
    "qwen3_next": {**HEADS, **DELTA, **MOE, "hidden_size": 32, "head_dim": 16,
                   "intermediate_size": 40, "num_hidden_layers": 5},
    "qwen3_5_text": {**HEADS, **DELTA, "hidden_size": 32, "head_dim": 16,
                     "intermediate_size": 40, "num_hidden_layers": 5},
    "qwen3_5_moe_text": {**HEADS, **DELTA, **MOE, "hidden_size": 32, "head_dim": 16,
                         "num_hidden_layers": 5},
    "olmo_hybrid": {**HEADS, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 5},
    "kimi_linear": {**LATENT, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 6,
                    "moe_intermediate_size": 9, "num_experts": 6, "num_experts_per_token": 2,
                    "linear_head_dim": 6, "linear_num_heads": 3, "linear_conv_kernel_dim": 3},
    "bailing_hybrid": {**LATENT, "hidden_size": 32, "intermediate_size": 40, "head_dim": 6,
                       "num_hidden_layers": 6, "moe_intermediate_size": 9, "num_experts": 8,
                       "num_experts_per_token": 2, "short_conv_kernel_size": 3,
                       "layer_group_size": 3, "num_expert_group": 2, "topk_group": 1},
    "minimax": {**HEADS, "hidden_size": 32, "head_dim": 10, "intermediate_size": 9,
                "num_hidden_layers": 4, "num_local_experts": 6, "block_size": 10},
    "zamba": {**HEADS, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 9,
              "attn_layer_period": 3, "attn_layer_offset": 1, "mamba_d_state": 5,
              "n_mamba_heads": 2},
    "zamba2": {**HEADS, "hidden_size": 32, "intermediate_size": 40, "adapter_rank": 3,
               "layers_block_type": [MAMBA, HYBRID, MAMBA, HYBRID, HYBRID], "n_mamba_heads": 4,
               "mamba_d_state": 6, "mamba_ngroups": 2, "chunk_size": 10, "num_mem_blocks": 2,
               "num_hidden_layers": 5},
}  # fmt: skip
"""A small config of each type; the switches below flip its structure."""

KDA = {"kda_layers": [1, 3, 4], "full_attn_layers": [2, 5, 6], "num_heads": 3, "head_dim": 8,
       "short_conv_kernel_size": 2}  # fmt: skip

SWITCHES = {
    "mamba": [{"use_bias": True}, {"use_conv_bias": False}, {"time_step_rank": "auto"},
              {"intermediate_size": 50}, {"expand": 3}],
    "falcon_mamba": [{"use_bias": True, "expand": 16, "intermediate_size": 44}],
    "mamba2": [{"use_bias": True}, {"use_conv_bias": False}, {"n_groups": 4}],
    "rwkv": [{"attention_hidden_size": 20}, {"intermediate_size": 50}],
    "jamba": [{"mamba_proj_bias": True}, {"mamba_conv_bias": False}, {"mamba_dt_rank": "auto"},
              {"num_experts": 1}, {"expert_layer_period": 3, "expert_layer_offset": 2},
              {"attn_layer_period": 9, "attn_layer_offset": 8}, {"head_dim": 12}],
    "bamba": [{"attention_bias": True}, {"mlp_bias": True}, {"mamba_proj_bias": True},
              {"mamba_conv_bias": False}, {"attn_layer_indices": None}, {"mamba_n_groups": 2},
              {"mamba_d_head": "auto"}],
    "falcon_h1": [{"attention_bias": True}, {"mlp_bias": True}, {"mamba_proj_bias": True},
                  {"projectors_bias": True}, {"mamba_conv_bias": False}, {"head_dim": 12},
                  {"mamba_rms_norm": True}, {"mamba_d_ssm": None}, {"mamba_n_groups": 2},
                  {"mamba_d_ssm": 40, "mamba_d_head": "auto"}],
    "granitemoehybrid": [{"attention_bias": True}, {"mamba_proj_bias": True},
                         {"num_local_experts": 0}, {"position_embedding_type": "rope"},
                         {"layer_types": [LINEAR, FULL, FULL, LINEAR]}, {"layer_types": None}],
    "nemotron_h": [{"mlp_bias": True}, {"use_bias": True}, {"use_conv_bias": False},
                   {"moe_latent_size": 10}, {"moe_latent_size": 10, "mlp_bias": True},
                   {"hybrid_override_pattern": "M-M*-"},
                   {"layers_block_type": [MAMBA, "moe", "attention", "mlp", MAMBA]},
                   {"layers_block_type": [LINEAR, FULL], "hybrid_override_pattern": "MMM"}],
    "recurrent_gemma": [{"attention_bias": True}, {"num_key_value_heads": None},
                        {"lru_width": None}, {"block_types": ["attention", "recurrent"]}],
    "lfm2": [{"conv_bias": True}, {"block_auto_adjust_ff_dim": False}, {"full_attn_idxs": None},
             {"block_ffn_dim_multiplier": 1.3}, {"block_ff_dim": 90},
             {"layer_types": ["conv", "conv", FULL, "conv"]}],
    "lfm2_moe": [{"conv_bias": True}, {"use_expert_bias": False}, {"num_dense_layers": 4},
                 {"num_dense_layers": 0}],
    "qwen3_next": [{"attention_bias": True}, {"decoder_sparse_step": 2}, {"num_experts": 0},
                   {"mlp_only_layers": [0, 3]}, {"full_attention_interval": 2},
                   {"layer_types": [LINEAR, FULL, FULL, LINEAR, LINEAR]}],
    "qwen3_5_text": [{"attention_bias": True}, {"full_attention_interval": 3}],
    "qwen3_5_moe_text": [{"attention_bias": True}, {"layer_types": [FULL] * 4 + [LINEAR]}],
    "olmo_hybrid": [{"attention_bias": True}, {**DELTA}, {"linear_key_head_dim": 5},
                    {"layer_types": [FULL, LINEAR, LINEAR, FULL, LINEAR]},
                    {"num_hidden_layers": 3}],
    "kimi_linear": [{"attention_bias": True}, {"q_lora_rank": 9}, {"num_shared_experts": 2},
                    {"first_k_dense_replace": 3}, {"linear_attn_config": KDA},
                    {"mlp_layer_types": ["sparse", "dense"] * 3},
                    {"layer_types": [FULL, LINEAR] * 3}, {"num_expert_group": 2}],
    "bailing_hybrid": [{"attention_bias": True}, {"q_lora_rank": 9}, {"layer_group_size": 2},
                       {"first_k_dense_replace": 0}, {"layer_types": [FULL, LINEAR] * 3}],
    "minimax": [{"sliding_window": 8}, {"layer_types": [LINEAR, LINEAR, LINEAR, FULL]},
                {"head_dim": None}],
    "zamba": [{"mamba_proj_bias": True}, {"mamba_conv_bias": False}, {"mamba_dt_rank": 3},
              {"layers_block_type": [MAMBA, HYBRID, HYBRID, MAMBA], "num_hidden_layers": 4},
              {"attention_head_dim": 10}],
    "zamba2": [{"add_bias_linear": True}, {"num_mem_blocks": 1}, {"num_mem_blocks": 4},
               {"use_shared_attention_adapter": True, "num_key_value_heads": None},
               {"use_mem_rope": True},
               {"layers_block_type": [MAMBA, "mamba"], "num_hidden_layers": 2}],
}  # fmt: skip

SHARES_ONLY_TIED = {"zamba", "zamba2"}
"""Their classes build every shared block anew where the head is not tied; see the notes."""


def variants():
    found = []
    for name, base in SMALL.items():
        draw = random.Random(name)
        tied = [{"tie_word_embeddings": True}, {"tie_word_embeddings": False}]
        for i, flipped in enumerate([{}, *tied[: 2 - (name in SHARES_ONLY_TIED)],
                                     *SWITCHES[name]]):  # fmt: skip
            config = {"model_type": name, "vocab_size": draw.randint(60, 200), **base, **flipped}
            words = ",".join(f"{k}={v}" for k, v in flipped.items()).replace(" ", "")[:60]
            found.append(pytest.param(config, id=f"{name}-{i}-{words or 'plain'}"))
    return found


def settings(config):
    transformers = pytest.importorskip("transformers")
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    rest = {k: v for k, v in config.items() if k not in {"model_type", "architectures"}}
    return transformers.AutoConfig.for_model(config["model_type"], **ids | rest)


def build(config, device="meta"):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    own = settings(config)
    own._attn_implementation = "eager"
    cls = getattr(transformers, hf.model_type(config["model_type"]).architecture)
    with torch.device(device):
        return cls(own)


def unique(model):
    return sum(p.numel() for p in model.parameters())


def persistent(model):
    known = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return sum(t.numel() for name, t in model.state_dict().items() if name not in known)


def experts(model):
    return sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)


def head(model):
    table = model.get_input_embeddings().weight
    return sum(p.numel() for p in model.get_output_embeddings().parameters() if p is not table)


@pytest.mark.oracle
@pytest.mark.parametrize("config", variants())
def test_the_count_is_that_of_the_real_class(config):
    """Unique parameters, persistent buffers, the head, and the routed experts."""
    model = build(config)
    counted = parameters(hf.read(config).spec)
    assert counted.total == unique(model)
    assert counted.buffers == persistent(model)
    assert counted.lm_head == head(model)
    assert counted.by_part["experts"] == experts(model)


@pytest.fixture
def one_thread():
    """Products of a few dozen rows are faster on one thread than handed to several."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.oracle
@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("config", variants())
def test_flops_are_what_the_counter_sees_when_the_real_class_runs(config):
    """24 tokens: chunks of 10 and of 64 are both padded; each token runs its top-k experts."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    model = build(config, "cpu").eval()
    if experts(model):
        model.set_experts_implementation("batched_mm")
    tokens = torch.arange(24)[None] % 50
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(tokens, use_cache=False)
    assert flops(hf.read(config).spec, context=24).forward == counter.get_total_flops()


@pytest.mark.parametrize("config", variants())
def test_what_is_read_is_written_and_read_again(config):
    """As its own type, and as the first type that says the same."""
    spec = hf.read(config).spec
    assert hf.read(hf.write(spec, like=config["model_type"])).spec == spec
    assert hf.read(json.loads(json.dumps(hf.write(spec)))).spec == spec


@pytest.mark.oracle
@pytest.mark.parametrize("config", variants())
def test_the_real_class_of_a_written_config_has_the_same_count(config):
    spec = hf.read(config).spec
    assert unique(build(hf.write(spec, like=config["model_type"]))) == parameters(spec).total


# ---------------------------------------------------------------- tensors

FUSED = {
    "mamba2": {"in"},
    "jamba": {"in", "select", "experts_up"},
    "falcon_h1": {"in"},
}
"""Operators whose matrices stand in one tensor of the class."""


def expected_shapes(spec, fused):
    """The multiset of shapes, matrices of fused operators stacked."""
    found = {}
    for op in operators(spec):
        stacked = {}
        for t in op.tensors:
            rows, *rest = t.shape
            which = (len(rest), t.experts) if op.name.rpartition(".")[2] in fused else t.name
            before = stacked.get(which, (0,))[0]
            stacked[which] = (rows + before, rest, t)
        for rows, rest, t in stacked.values():
            if t.alias is None and not t.buffer:
                shape = (rows, *rest) if t.experts is None else (t.experts, rows, *rest)
                found[shape] = found.get(shape, 0) + t.copies
    return found


@pytest.mark.oracle
@pytest.mark.parametrize(("name", "more"), [
    ("mamba2", {"tie_word_embeddings": False}), ("mamba2", {"use_bias": True}), ("jamba", {}),
    ("jamba", {"mamba_proj_bias": True}), ("falcon_h1", {}),
    ("falcon_h1", {"mamba_rms_norm": True, "projectors_bias": True, "mlp_bias": True}),
])  # fmt: skip
def test_the_shapes_are_those_of_the_parameters_of_the_class(name, more):
    config = {"model_type": name, "vocab_size": 77, **SMALL[name], **more}
    real = {}
    for _, p in build(config).named_parameters():
        real[tuple(p.shape)] = real.get(tuple(p.shape), 0) + 1
    assert expected_shapes(hf.read(config).spec, FUSED[name]) == real


# ---------------------------------------------------------------- states by hand

STATES = {
    # layers × (channels × state + (width of the convolution − 1) × its channels)
    "mamba": 32 * (1536 * 16 + 3 * 1536),
    "mamba2": 64 * (8192 * 128 + 3 * (8192 + 2 * 8 * 128)),
    "jamba": 28 * (8192 * 16 + 3 * 8192),
    "falcon_h1": 32 * (1024 * 256 + 3 * (1024 + 2 * 256)),
    "recurrent_gemma": 18 * (2560 + 3 * 2560),
    "qwen3_next": 36 * (32 * 128 * 128 + 3 * (2 * 2048 + 4096)),
    "kimi_linear": 21 * (32 * 128 * 128 + 3 * 3 * 4096),
    "minimax": 16 * (32 * 128 * 128),
    # the last token of both halves; numerator, denominator and largest exponent
    "rwkv": 32 * (2 * 4096 + 3 * 4096),
    "zamba": 76 * (7424 * 16 + 3 * 7424),
}
GROWTH = {
    # layers with attention × keys and values of each token
    "jamba": 4 * 2 * 8 * 128, "falcon_h1": 32 * 2 * 8 * 128, "recurrent_gemma": 8 * 2 * 10 * 256,
    "qwen3_next": 12 * 2 * 2 * 256, "kimi_linear": 6 * (512 + 64), "minimax": 16 * 2 * 8 * 128,
    "zamba": 13 * 2 * 16 * 464,
}  # fmt: skip


@pytest.mark.parametrize("name", STATES)
def test_the_state_of_a_default_model_is_that_worked_out_by_hand(name):
    """Sizes of the classes' own defaults; a state is kept whatever the context."""
    spec = hf.read({"model_type": name}).spec
    near, far = kv_cache(spec, 3, 1000, "fp16"), kv_cache(spec, 3, 100_000, "fp16")
    assert near.state_bytes == far.state_bytes == 3 * 2 * STATES[name]
    assert near.bytes_per_token == 2 * GROWTH.get(name, 0)


def test_a_short_convolution_keeps_two_tokens():
    """LFM2-1.2B: 10 of 16 layers, 3 taps, 2048 channels; 6 layers of 8 KV heads of 64."""
    config = {"model_type": "lfm2", "hidden_size": 2048, "num_hidden_layers": 16,
              "full_attn_idxs": [2, 5, 8, 10, 12, 14]}  # fmt: skip
    cache = kv_cache(hf.read(config).spec, 1, 4096, "fp16")
    assert cache.state_bytes == 2 * 10 * 2048 * 2
    assert cache.bytes_per_token == 2 * 6 * 2 * 8 * 64


def test_every_use_of_a_shared_block_has_a_cache_of_its_own():
    """Zamba2 shares weights and not keys: 9 uses of 2 blocks, 32 heads of 160."""
    config = {"model_type": "zamba2", "num_mem_blocks": 2, "n_mamba_heads": 80}
    spec = hf.read(config).spec
    assert kv_cache(spec, 1, 1, "fp8").bytes_per_token == 9 * 2 * 32 * 160
    weights = {t.name.rpartition(".")[2]: t for t in tensors(spec)}
    assert (weights["q"].copies, weights["gate"].copies) == (2, 2)
    assert (weights["up_adapter_a"].copies, weights["projection"].copies) == (9, 9)


# ---------------------------------------------------------------- work of scans


def scan_flops(spec, context, convention="full"):
    ops = operators(spec, Workload("prefill", 1, context))
    return sum(op.flops(convention) for op in ops if op.kind == "scan")


@pytest.mark.parametrize("context", [1, 128, 256, 257, 1000])
def test_the_work_of_mamba_2_is_that_of_its_padded_chunks(context):
    """Dao and Gu 2024, section 6: pairs of a chunk, states in and out, states of the chunks."""
    spec = hf.read({"model_type": "mamba2", "num_hidden_layers": 1}).spec
    H, P, N, c, channels = 128, 64, 128, 256, 8192 + 2 * 8 * 128
    nc = -(-context // c)
    scan = nc * c * c * H * (N + P) + 2 * nc * c * N * H * P + (nc + 1) ** 2 * H * P * N
    assert scan_flops(spec, context) == 2 * (scan + (context + 3) * channels * 4)
    whole, rest = divmod(context, c)
    pairs = whole * c * c + rest * rest
    scan = pairs * H * (N + P) + 2 * context * N * H * P + (nc + 1) ** 2 * H * P * N
    assert scan_flops(spec, context, "unpadded") == 2 * (scan + context * channels * 4)
    assert scan_flops(spec, context, "causal") == scan_flops(spec, context, "unpadded")


def test_half_a_chunk_of_mamba_2_costs_three_times_its_work():
    spec = hf.read({"model_type": "mamba2"}).spec
    ratio = scan_flops(spec, 128) / scan_flops(spec, 128, "unpadded")
    assert 3 < ratio < 3.3


def test_a_model_without_scans_has_no_padding():
    ops = operators(hf.read({"model_type": "llama"}).spec, Workload("prefill", 1, 100))
    assert forward_flops(ops, "unpadded") == forward_flops(ops, "full")


@pytest.mark.parametrize("context", [64, 100])
def test_the_work_of_the_delta_rule(context):
    """Keys with keys, queries with keys, values; three products with the state; 64 at once."""
    config = {"model_type": "qwen3_5_text", "num_hidden_layers": 1}
    nc, H, d, channels = -(-context // 64), 32, 128, 2 * 16 * 128 + 32 * 128
    scan = nc * H * (64 * 64 * 3 * d + 64 * 3 * d * d)
    assert scan_flops(hf.read(config).spec, context) == 2 * (scan + (context + 3) * channels * 4)


@pytest.mark.parametrize("context", [100, 256, 300])
def test_lightning_attention_does_not_pad(context):
    """Scores and values of each block, the state read and written: 256 tokens at once."""
    config = {"model_type": "minimax", "layer_types": ["linear_attention"],
              "num_hidden_layers": 1}  # fmt: skip
    whole, rest = divmod(context, 256)
    pairs, H, h = whole * 256 * 256 + rest * rest, 32, 128
    for convention in ("full", "unpadded"):
        found = scan_flops(hf.read(config).spec, context, convention)
        assert found == 2 * H * (2 * pairs * h + 2 * context * h * h)


def test_a_decoded_token_reads_and_writes_the_state_once():
    """Whatever the context: a convolution's taps and two products with the state."""
    spec = hf.read({"model_type": "mamba2", "num_hidden_layers": 1}).spec
    work = {
        sum(op.flops() for op in operators(spec, Workload("decode", 1, context))
            if op.kind == "scan")
        for context in (10, 100_000)
    }  # fmt: skip
    assert work == {2 * (2 * 8192 * 128 + 4 * (8192 + 2 * 8 * 128))}


# ---------------------------------------------------------------- reading


def one(name, **keys):
    return hf.read({"model_type": name, **keys}).spec


def mixers(spec):
    """The first module of each layer, in order, by the name of its type."""
    kinds = {k.name: type(k.blocks[0].branches[0].module).__name__ for k in spec.decoder.kinds}
    return [kinds[name] for name in spec.decoder.expand()]


def test_a_pattern_has_three_spellings():
    letters = "M*-EM"
    words = ["mamba", "attention", "mlp", "moe", "mamba"]
    newer = ["linear_attention", "full_attention", "mlp", "moe", "linear_attention"]
    specs = [one("nemotron_h", hybrid_override_pattern=letters),
             one("nemotron_h", layers_block_type=words), one("nemotron_h", layer_types=newer),
             one("nemotron_h", layers_block_type=words, hybrid_override_pattern="MM")]  # fmt: skip
    assert all(spec == specs[0] for spec in specs)
    assert mixers(specs[0]) == ["Mamba2", "GroupedAttention", "Dense", "Experts", "Mamba2"]


def test_attention_stands_where_a_period_an_index_or_a_list_says():
    jamba = one("jamba", num_hidden_layers=5, attn_layer_period=3, attn_layer_offset=1)
    assert [m == "GroupedAttention" for m in mixers(jamba)] == [False, True, False, False, True]
    bamba = one("bamba", num_hidden_layers=5, attn_layer_indices=[0, 4])
    assert [m == "GroupedAttention" for m in mixers(bamba)] == [True, False, False, False, True]
    every = one("qwen3_next", num_hidden_layers=5, full_attention_interval=2)
    listed = one("qwen3_next", num_hidden_layers=5,
                 layer_types=[LINEAR, FULL, LINEAR, FULL, LINEAR])  # fmt: skip
    assert every == listed
    nested = one("kimi_linear", num_hidden_layers=6, linear_attn_config=KDA | {"head_dim": 128})
    assert mixers(nested)[1] == mixers(nested)[5] == "LatentAttention"


def test_a_text_part_is_read_from_inside():
    inner = {"model_type": "qwen3_5_text", "num_hidden_layers": 8, "hidden_size": 1024}
    assert one("qwen3_5", text_config=inner) == hf.read(inner).spec


def test_a_file_without_the_inner_width_means_its_heads():
    """Falcon-H1 files leave mamba_d_ssm out; heads times their width is what the class needs."""
    config = {"model_type": "falcon_h1", "hidden_size": 1024, "mamba_n_heads": 24,
              "mamba_d_head": 64}  # fmt: skip
    imported = hf.read(config)
    assert imported.spec.read("d_inner") == 1536
    assert any("mamba_d_ssm" in note for note in imported.notes)


def test_a_shared_block_is_handed_on_and_not_added():
    spec = one("zamba2")
    blocks = spec.decoder.kind("attention>dense>projection>mamba2").blocks
    assert [type(b.residual).__name__ for b in blocks] == ["Handed"] * 3 + ["Plain"]
    assert [type(b.branches[0].module) for b in blocks][2] is Projection
    assert spec.read("d_input") == 2 * 2560


def test_falcon_mamba_differs_from_mamba_by_norms_without_weights():
    ours, theirs = one("falcon_mamba"), one("mamba")
    assert parameters(ours) == parameters(theirs)
    assert ours != theirs
    assert hf.write(ours)["model_type"] == "falcon_mamba"
    assert hf.write(theirs)["model_type"] == "mamba"


@pytest.mark.parametrize(("config", "said"), [
    ({"model_type": "nemotron_h", "hybrid_override_pattern": "MX"},
     "hybrid_override_pattern 'X' (text) is no kind of layer of this type; use M, E, *, -"),
    ({"model_type": "nemotron_h", "layers_block_type": ["mambo"]},
     "layers_block_type 'mambo' (text) is no kind of layer of this type; did you mean mamba?"),
    ({"model_type": "nemotron_h", "hybrid_override_pattern": 5},
     "hybrid_override_pattern 5 must be a letter for each layer"),
    ({"model_type": "qwen3_next", "layer_types": ["linear_attention"]},
     "layer_types has 1 entries for 48 layers; write 48"),
    ({"model_type": "mamba2", "num_heads": 5}, "n_groups 8 must divide num_heads 5; use 5"),
    ({"model_type": "mamba2", "state_size": None}, "state_size must not be null"),
    ({"model_type": "mamba", "time_step_rank": "many"},
     "time_step_rank 'many' (text) must be a whole number"),
    ({"model_type": "jamba", "attn_layer_offset": None}, "attn_layer_offset must not be null"),
    ({"model_type": "kimi_linear", "linear_attn_config": 5},
     "linear_attn_config 5 must be an object"),
    ({"model_type": "recurrent_gemma", "num_attention_heads": 7},
     ("num_attention_heads 7 must divide hidden_size 2560; use 5 or 8, or hidden_size 2520 or "
      "2576; heads of 365 would leave 5 dimensions out")),
    ({"model_type": "zamba2", "num_hidden_layers": 38},
     "num_hidden_layers 38 builds a model this reader cannot count"),
])  # fmt: skip
def test_a_wrong_config_is_one_line_with_its_own_key(config, said):
    with pytest.raises(FieldError) as caught:
        hf.read(config)
    assert str(caught.value) == said


def test_a_shared_block_with_an_untied_head_is_noted():
    notes = hf.read({"model_type": "zamba2", "tie_word_embeddings": False}).notes
    assert "the class of zamba2 needs tie_word_embeddings, which does not hold" in notes


# ---------------------------------------------------------------- random models

DRAWN = {
    "mamba": lambda d: {"state_size": d(9), "conv_kernel": d(5), "expand": d(4),
                        "hidden_size": d(40)},
    "mamba2": lambda d: {"state_size": d(9), "n_groups": 1, "num_heads": 2, "head_dim": 4 * d(4),
                         "expand": 2, "chunk_size": d(40), "conv_kernel": d(5)},
    "rwkv": lambda d: {"hidden_size": d(60), "attention_hidden_size": d(60)},
    "recurrent_gemma": lambda d: {"hidden_size": 8 * d(6), "lru_width": 4 * d(20),
                                  "num_attention_heads": 4, "num_key_value_heads": 2,
                                  "conv1d_width": d(6), "intermediate_size": d(90) + 1},
    "qwen3_5_text": lambda d: {"linear_key_head_dim": d(20), "linear_value_head_dim": d(20),
                               "linear_num_key_heads": 2, "linear_num_value_heads": 2 * d(3),
                               "hidden_size": d(90), "intermediate_size": d(90)},
    "kimi_linear": lambda d: {"linear_head_dim": d(20), "linear_num_heads": d(5),
                              "hidden_size": d(90), "intermediate_size": d(90),
                              "num_experts": 8 + d(8), "moe_intermediate_size": d(20)},
    "lfm2": lambda d: {"hidden_size": 64, "intermediate_size": d(4000), "conv_L_cache": d(6),
                       "block_multiple_of": d(300)},
}  # fmt: skip


def drawn():
    for name, seed in itertools.product(DRAWN, range(4)):
        draw = random.Random(f"{name} {seed}")
        config = {"model_type": name, "vocab_size": draw.randint(60, 300),
                  "num_hidden_layers": draw.randint(4, 9)}  # fmt: skip
        config |= DRAWN[name](lambda high, draw=draw: draw.randint(1, high))
        if name == "mamba2":
            config["hidden_size"] = config["head_dim"]
        yield pytest.param(config, id=f"{name}-{seed}")


@pytest.mark.oracle
@pytest.mark.parametrize("config", list(drawn()))
def test_the_count_of_a_drawn_model_is_that_of_the_real_class(config):
    model, counted = build(config), parameters(hf.read(config).spec)
    assert (counted.total, counted.buffers) == (unique(model), persistent(model))


# ---------------------------------------------------------------- columns


def layer_of(module):
    """A model of one kind of layer, by hand."""
    blocks = (Block((Branch(module),), pre=Norm()),)
    return Spec(32, 100, Stack((Layer("layer", blocks),), (Run(("layer",), 2),)))


@pytest.mark.parametrize(("module", "size"), [
    # D = 32 throughout; every sum is over the module's own tensors
    (Mamba1(40, 5, 3, 4), 32 * 80 + 40 * 4 + 40 * (4 + 10) + 4 * 40 + 40 + 40 * 6 + 40 * 32),
    (Mamba2(40, 4, 2, 5, 3, norm=None), 32 * (80 + 20 + 4) + 60 * 4 + 3 * 4 + 40 * 32),
    (Rwkv(40), 3 * 32 + 4 * 32 * 40 + 2 * 40),
    (ChannelMix(40), 2 * 32 + 2 * 32 * 40 + 32 * 32),
    (RgLru(40, 4, 3), 2 * (32 * 40 + 40) + 40 * 4 + 2 * (4 * 100 + 40) + 40 + 40 * 32 + 32),
    (ShortConv(3), 4 * 32 * 32 + 3 * 32),
    (Projection(), 32 * 32),
    (LinearAttention(4, 10, norm=None), 5 * 32 * 40),
    (GatedDelta(2, 4, 5, 6, 3), 32 * (20 + 48) + 32 * 8 + 3 * 44 + 8 + 6 + 24 * 32),
    (KimiDelta(4, 5, 3, gate_rank=2),
     3 * 32 * 20 + 3 * 60 + 2 * (32 * 2 + 2 * 20) + 32 * 4 + 24 + 5 + 20 * 32),
])  # fmt: skip
def test_the_weights_of_a_module_by_hand(module, size):
    spec = layer_of(module)
    without = 2 * 32 + 32 + 2 * 100 * 32  # two norms, the final one, both tables
    assert parameters(spec).total == 2 * size + without


def test_a_chunk_may_be_a_column():
    np = pytest.importorskip("numpy")
    chunks = np.array([16, 64, 100, 256])
    spec = hf.read({"model_type": "mamba2", "num_hidden_layers": 2}).spec
    many = flops(vary(spec, scan_chunk=chunks), context=128).forward
    each = [flops(vary(spec, scan_chunk=int(c)), context=128).forward for c in chunks]
    assert many.tolist() == each


def test_a_shared_block_may_be_used_by_a_column_of_models():
    """More sets than uses is one each."""
    np = pytest.importorskip("numpy")
    spec = hf.read({"model_type": "zamba2"}).spec
    many = parameters(vary(spec, copies=np.array([1, 2, 9, 20]))).total.tolist()
    each = [parameters(vary(spec, copies=n)).total for n in (1, 2, 9, 20)]
    assert many == each
    assert each[3] == each[2]


def test_a_block_that_is_handed_on_adds_nothing_to_the_stream():
    module = GroupedAttention(4, 4, 8)
    plain = layer_of(module)
    layer = plain.decoder.kinds[0]
    block = replace(layer.blocks[0], residual=Handed())
    stack = replace(plain.decoder, kinds=(replace(layer, blocks=(block,)),))
    names = [op.name for op in operators(replace(plain, decoder=stack))]
    assert not any(name.endswith("residual") for name in names)
