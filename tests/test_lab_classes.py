"""Modules of the lab with the weights of the real classes give their numbers."""

import pytest
from msgspec.structs import replace

torch = pytest.importorskip("torch", reason="the lab needs torch")
transformers = pytest.importorskip("transformers")
torch.set_num_threads(1)

import importlib  # noqa: E402 - only where torch is

from scantling.formats import hf  # noqa: E402
from scantling.lab.flow import Flow, Places  # noqa: E402
from scantling.lab.made import Parts  # noqa: E402
from scantling.lab.numerics import Numerics  # noqa: E402
from scantling.spec.vary import nodes  # noqa: E402

pytestmark = pytest.mark.oracle
T, D = 19, 32


def modeling(name):
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def part_of(config, kind, epsilon=1e-6, width=D):
    """The lab's module of the first part of a kind in a config's spec, and its spec."""
    spec = hf.read(config.to_dict()).spec
    node = next(n for _, n in nodes(spec) if type(n).__name__ == kind)
    parts = Parts(width, Numerics(epsilon=epsilon), 50, int(spec.n_layer), causal=True)
    return parts.module(node, 0, first=True), node


def randomised(module, std=0.3):
    """Weights that are nowhere alike, so that no order of them passes for another."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * std)
    return module


def put(ours, weights):
    """Weights by their names in ops."""
    own = dict(ours.named())
    with torch.no_grad():
        for name, tensor in weights.items():
            own[name].copy_(tensor.reshape(own[name].shape))
    assert not set(own) - set(weights), set(own) - set(weights)


def flow(length=T, context=None):
    return Flow(Places(torch.arange(length), length, context))


def x_of(width=D, length=T):
    return torch.randn(2, length, width, generator=torch.Generator().manual_seed(1))


def near(ours, theirs, tolerance=1e-5):
    return torch.allclose(ours, theirs, atol=tolerance, rtol=1e-4)


def linears(theirs, names):
    """Weights and biases of linear layers by the names they have here."""
    found = {}
    for own, stored in names.items():
        layer = theirs.get_submodule(stored)
        found[own] = layer.weight
        if getattr(layer, "bias", None) is not None:
            found[f"{own}_bias"] = layer.bias
    return found


def halves(module, names):
    """Weights of products that are stored side by side."""
    return dict(zip(names, module.weight.chunk(len(names)), strict=True))


@pytest.mark.parametrize("name", ["Mamba", "Jamba"])
def test_selective_state_spaces(name):
    if name == "Mamba":
        config = transformers.MambaConfig(hidden_size=D, state_size=6, num_hidden_layers=1,
                                          vocab_size=50, time_step_rank=5)  # fmt: skip
        theirs = randomised(modeling("mamba").MambaMixer(config, 0))
    else:
        config = transformers.JambaConfig(
            hidden_size=D, mamba_d_state=6, mamba_dt_rank=5, num_hidden_layers=2, vocab_size=50,
            num_attention_heads=4, num_key_value_heads=2, intermediate_size=40, num_experts=1,
            attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2,
            use_mamba_kernels=False)  # fmt: skip
        theirs = randomised(modeling("jamba").JambaMambaMixer(config, 0))
    ours, s = part_of(config, "Mamba1", epsilon=1e-6)
    weights = {**linears(theirs, {"conv": "conv1d", "dt_up": "dt_proj", "out": "out_proj"}),
               **halves(theirs.in_proj, "xz"), "a_log": theirs.A_log, "skip": theirs.D}  # fmt: skip
    chosen = theirs.x_proj.weight.split([s.dt_rank, s.d_state, s.d_state])
    weights |= dict(zip(("dt", "b", "c"), chosen, strict=True))
    if name == "Jamba":
        weights |= {f"{n}_norm_scale": getattr(theirs, f"{n}_layernorm").weight for n in
                    ("dt", "b", "c")}  # fmt: skip
    put(ours, weights)
    with torch.no_grad():
        assert near(ours(x_of(), flow(), ""), theirs(x_of()))


def test_rwkv():
    config = transformers.RwkvConfig(hidden_size=D, attention_hidden_size=24, vocab_size=50,
                                     num_hidden_layers=1, intermediate_size=40)  # fmt: skip
    theirs = randomised(modeling("rwkv").RwkvSelfAttention(config))
    ours, _ = part_of(config, "Rwkv")
    named = {"k": "key", "v": "value", "r": "receptance", "o": "output"}
    put(ours, {**linears(theirs, named), "decay": theirs.time_decay, "first": theirs.time_first,
               "mix_k": theirs.time_mix_key, "mix_v": theirs.time_mix_value,
               "mix_r": theirs.time_mix_receptance})  # fmt: skip
    feed = randomised(modeling("rwkv").RwkvFeedForward(config))
    mixed, _ = part_of(config, "ChannelMix")
    put(mixed, {**linears(feed, {n: n for n in ("key", "value", "receptance")}),
                "mix_k": feed.time_mix_key, "mix_r": feed.time_mix_receptance})  # fmt: skip
    with torch.no_grad():
        assert near(ours(x_of(), flow(), ""), theirs(x_of())[0])
        assert near(mixed(x_of(), flow(), ""), feed(x_of())[0])


def test_the_gated_recurrence_of_griffin():
    config = transformers.RecurrentGemmaConfig(
        hidden_size=D, lru_width=24, num_attention_heads=4, vocab_size=50, num_hidden_layers=3,
        intermediate_size=40, num_key_value_heads=1)  # fmt: skip
    theirs = randomised(modeling("recurrent_gemma").RecurrentGemmaRecurrentBlock(config, 0))
    ours, _ = part_of(config, "RgLru")
    gates = theirs.rg_lru
    put(ours, {
        **linears(theirs, {"x": "linear_x", "y": "linear_y", "out": "linear_out",
                           "conv": "conv_1d"}),
        "input_gate": gates.input_gate_weight, "input_gate_bias": gates.input_gate_bias,
        "recurrent_gate": gates.recurrent_gate_weight, "decay": gates.recurrent_param,
        "recurrent_gate_bias": gates.recurrent_gate_bias,
    })  # fmt: skip
    with torch.no_grad():
        said = theirs(x_of(), torch.arange(T)[None], None, use_cache=False)[0]
        assert near(ours(x_of(), flow(), ""), said)


def test_a_short_convolution():
    config = transformers.Lfm2Config(hidden_size=D, num_hidden_layers=2, vocab_size=50,
                                     num_attention_heads=4, num_key_value_heads=2,
                                     intermediate_size=40, layer_types=["conv", "full_attention"],
                                     conv_bias=True)  # fmt: skip
    theirs = randomised(modeling("lfm2").Lfm2ShortConv(config, 0))
    ours, _ = part_of(config, "ShortConv")
    biases = dict(zip(("b_bias", "c_bias", "x_bias"), theirs.in_proj.bias.chunk(3), strict=True))
    put(ours, {**linears(theirs, {"conv": "conv", "out": "out_proj"}), **biases,
               **halves(theirs.in_proj, "bcx")})  # fmt: skip
    with torch.no_grad():
        assert near(ours(x_of(), flow(), ""), theirs(x_of()))


def test_lightning_attention():
    config = transformers.MiniMaxConfig(
        hidden_size=D, num_hidden_layers=3, vocab_size=50, num_attention_heads=4, head_dim=8,
        num_key_value_heads=2, intermediate_size=40, block_size=7, num_local_experts=2,
        layer_types=["linear_attention", "linear_attention", "full_attention"])  # fmt: skip
    theirs = randomised(modeling("minimax").MiniMaxLightningAttention(config, 0))
    ours, a = part_of(config, "LinearAttention")
    a = replace(a, scan_chunk=7)
    ours = Parts(D, Numerics(), 50, 3, causal=True).module(a, 0, first=True)
    by_head = theirs.qkv_proj.weight.view(4, 3, 8, D).transpose(0, 1).reshape(3, -1, D)
    decays = {"slope": theirs.slope_rate, "query_decay": theirs.query_decay,
              "key_decay": theirs.key_decay, "pair_decay": theirs.diagonal_decay}  # fmt: skip
    assert all(near(dict(ours.named())[n], t.view_as(dict(ours.named())[n]))
               for n, t in decays.items())  # fmt: skip
    put(ours, {**linears(theirs, {"gate": "output_gate", "o": "out_proj"}), **decays,
               **dict(zip("qkv", by_head, strict=True)), "norm_scale": theirs.norm.weight})  # fmt: skip
    with torch.no_grad():
        assert near(ours(x_of(), flow(), ""), theirs(x_of(), None, None)[0])


def test_the_delta_rule_with_a_decay_for_each_channel():
    config = transformers.KimiLinearConfig(
        hidden_size=D, num_hidden_layers=2, vocab_size=50, linear_head_dim=8, linear_num_heads=3,
        layer_types=["linear_attention", "full_attention"], num_attention_heads=4,
        kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8)  # fmt: skip
    theirs = randomised(modeling("kimi_linear").KimiLinearDeltaAttention(config, 0))
    ours, _ = part_of(config, "KimiDelta", epsilon=config.rms_norm_eps)
    gate = theirs.forget_gate
    put(ours, {
        **linears(theirs, {
            "q": "q_proj", "k": "k_proj", "v": "v_proj", "conv": "conv1d", "b": "b_proj",
            "gate_a": "g_a_proj", "gate_b": "g_b_proj", "o": "o_proj",
            "forget_a": "forget_gate.f_a_proj", "forget_b": "forget_gate.f_b_proj"}),
        "dt_bias": gate.dt_bias, "decay": gate.A_log, "norm_scale": theirs.o_norm.weight,
    })  # fmt: skip
    with torch.no_grad():
        assert near(ours(x_of(), flow(), ""), theirs(x_of()))
