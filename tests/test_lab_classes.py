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
               **dict(zip("qkv", by_head, strict=True)),
               "norm_scale": theirs.norm.weight})  # fmt: skip
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


def v4(**changes):
    return transformers.DeepseekV4Config(
        hidden_size=D, num_hidden_layers=3, vocab_size=50, num_attention_heads=4, head_dim=16,
        q_lora_rank=12, o_groups=2, o_lora_rank=5, sliding_window=6, index_n_heads=3,
        index_head_dim=8, index_topk=2, num_local_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=24, hc_mult=3, max_position_embeddings=64,
        compress_rates={"compressed_sparse_attention": 4, "heavily_compressed_attention": 5},
        layer_types=["sliding_attention", "compressed_sparse_attention",
                     "heavily_compressed_attention"], **changes)  # fmt: skip


def entry_weights(theirs, name):
    return {f"{name}_value": theirs.kv_proj.weight, f"{name}_gate": theirs.gate_proj.weight,
            f"{name}_place": theirs.position_bias,
            f"{name}_norm_scale": theirs.kv_norm.weight}  # fmt: skip


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_compressed_attention(layer):
    """A window; entries of overlapping stretches, chosen by scores; entries of longer ones."""
    config, module = v4(), modeling("deepseek_v4")
    theirs = randomised(module.DeepseekV4Attention(config, layer))
    spec = hf.read(config.to_dict()).spec
    found = [n for _, n in nodes(spec) if type(n).__name__ == "CompressedAttention"]
    a = next(n for n in found if n.compress == (None, 4, 5)[layer])
    parts = Parts(D, Numerics(epsilon=config.rms_norm_eps), 50, 3, causal=True)
    ours = parts.module(a, layer, first=True)
    weights = linears(theirs, {"q_down": "q_a_proj", "q_up": "q_b_proj", "kv": "kv_proj",
                               "o": "o_b_proj", "o_group": "o_a_proj"})  # fmt: skip
    weights |= {"q_norm_scale": theirs.q_a_norm.weight, "kv_norm_scale": theirs.kv_norm.weight,
                "sinks": theirs.sinks}  # fmt: skip
    if layer:
        weights |= entry_weights(theirs.compressor, "entry")
    if layer == 1:
        index = theirs.compressor.indexer
        weights |= entry_weights(index, "index") | {
            "index_q": index.q_b_proj.weight,
            "index_weight": index.scorer.weights_proj.weight}  # fmt: skip
    put(ours, weights)
    x, at = x_of(), torch.arange(T)[None]
    rotary = module.DeepseekV4RotaryEmbedding(config)
    turns = {kind: rotary(x, at, layer_type=kind) for kind in ("main", "compress")}
    ahead = at[0][:, None] - at[0]
    mask = torch.where((ahead >= 0) & (ahead < 6), 0.0, -torch.inf).expand(2, 1, T, T)
    with torch.no_grad():
        said = theirs(x, turns, at.expand(2, -1), mask)[0]
        assert near(ours(x, flow(context=64), ""), said)


def test_constrained_hyper_connections():
    from scantling.lab.hyper import Constrained, Merge
    from scantling.spec import HyperConnections

    config, module = v4(), modeling("deepseek_v4")
    theirs = randomised(module.DeepseekV4HyperConnection(config))
    ours = Constrained(HyperConnections(3, constrained=True), D, config.rms_norm_eps)
    put(ours, {"hyper": theirs.fn, "hyper_base": theirs.base, "hyper_scale": theirs.scale})
    last = randomised(module.DeepseekV4HyperHead(config))
    merge = Merge(3, D, config.rms_norm_eps)
    put(merge, {"hyper_head": last.hc_fn, "hyper_head_base": last.hc_base,
                "hyper_head_scale": last.hc_scale})  # fmt: skip
    streams = torch.randn(2, T, 3, D, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        read, mixed, write = ours.read(streams)
        post, comb, collapsed = theirs(streams)
        assert near(read, collapsed)
        assert near(mixed, comb.mT @ streams)
        assert near(write.squeeze(-1), post)
        assert near(merge(streams), last(streams))


def test_latent_attention_that_reads_what_an_indexer_chose():
    """GLM's turns neighbouring numbers of a head, as the lab does."""
    config = transformers.GlmMoeDsaConfig(
        hidden_size=D, num_hidden_layers=2, vocab_size=50, num_attention_heads=4,
        num_key_value_heads=4, q_lora_rank=12, kv_lora_rank=10, qk_rope_head_dim=4,
        qk_nope_head_dim=6, v_head_dim=8, index_n_heads=3, index_head_dim=8, index_topk=5,
        n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, n_group=1,
        topk_group=1, intermediate_size=40, max_position_embeddings=64,
        indexer_types=["full", "full"], attn_implementation="eager")  # fmt: skip
    module = modeling("glm_moe_dsa")
    theirs = randomised(module.GlmMoeDsaAttention(config, 0))
    ours, _ = part_of(config, "LatentAttention", epsilon=1e-6)
    put(ours, {
        **linears(theirs, {
            "q_down": "q_a_proj", "q_up": "q_b_proj", "kv_down": "kv_a_proj_with_mqa",
            "kv_up": "kv_b_proj", "o": "o_proj", "index_q": "indexer.wq_b",
            "index_k": "indexer.wk", "index_weight": "indexer.weights_proj"}),
        "q_norm_scale": theirs.q_a_layernorm.weight, "kv_norm_scale": theirs.kv_a_layernorm.weight,
        "index_norm_scale": theirs.indexer.k_norm.weight,
        "index_norm_bias": theirs.indexer.k_norm.bias,
    })  # fmt: skip
    x, at = x_of(), torch.arange(T)[None]
    turns = module.GlmMoeDsaRotaryEmbedding(config)(x, at)
    seen = torch.ones(T, T, dtype=torch.bool).tril().expand(2, 1, T, T)
    mask = torch.zeros(2, 1, T, T).masked_fill(~seen, torch.finfo(torch.float32).min)
    with torch.no_grad():
        said = theirs(x, turns, mask)[0]
        assert near(ours(x, flow(context=64), ""), said)


def test_disentangled_attention():
    """DeBERTa-v2, projections shared with the contents and distances in logarithmic buckets."""
    config = transformers.DebertaV2Config(
        hidden_size=D, num_hidden_layers=1, vocab_size=50, num_attention_heads=4,
        intermediate_size=40, relative_attention=True, position_buckets=6, share_att_key=True,
        pos_att_type=["c2p", "p2c"], max_position_embeddings=24, norm_rel_ebd="layer_norm",
        max_relative_positions=24)  # fmt: skip
    module = modeling("deberta_v2")
    theirs = randomised(module.DisentangledSelfAttention(config)).eval()
    encoder = randomised(module.DebertaV2Encoder(config)).eval()
    ours, _ = part_of(config, "GroupedAttention", epsilon=config.layer_norm_eps)
    eye = {"o": torch.eye(D), "o_bias": torch.zeros(D)}
    put(ours, {**linears(theirs, {n: f"{w}_proj" for n, w in
                                  zip("qkv", ("query", "key", "value"), strict=True)}), **eye,
               "relative_table": encoder.rel_embeddings.weight,
               "relative_table_norm_scale": encoder.LayerNorm.weight,
               "relative_table_norm_bias": encoder.LayerNorm.bias})  # fmt: skip
    x = x_of()
    with torch.no_grad():
        said = theirs(x, torch.ones(2, 1, T, T), rel_embeddings=encoder.get_rel_embedding())[0]
        assert near(ours(x, flow(context=24), ""), said)


GEMMA_3N = {
    "attention.pre_norm_scale": "input_layernorm.weight",
    "attention.own_post_norm_scale": "post_attention_layernorm.weight",
    "mixer.left": "laurel.linear_left.weight", "mixer.right": "laurel.linear_right.weight",
    "mixer.own_post_norm_scale": "laurel.post_laurel_norm.weight",
    "ffn.pre_norm_scale": "pre_feedforward_layernorm.weight",
    "ffn.post_norm_scale": "post_feedforward_layernorm.weight",
    "mixer2.gate": "per_layer_input_gate.weight",
    "mixer2.projection": "per_layer_projection.weight",
    "mixer2.post_norm_scale": "post_per_layer_input_norm.weight",
    "altup_predict.router_norm_scale": "altup.router_norm.weight",
    "altup_predict.stream_router": "altup.modality_router.weight",
    "altup_predict.coefficients": "altup.prediction_coefs.weight",
    "altup_correct.factors": "altup.correction_coefs.weight",
    "altup_correct.output_scale": "altup.correct_output_scale",
    **{f"attention.{n}": f"self_attn.{n}_proj.weight" for n in "qkvo"},
    **{f"attention.{n}_norm_scale": f"self_attn.{n}_norm.weight" for n in "qk"},
    **{f"ffn.{n}": f"mlp.{n}_proj.weight" for n in ("gate", "up", "down")},
}  # fmt: skip
OUTSIDE = {
    "model.embedding": "embed_tokens.weight", "decoder.final_norm_scale": "norm.weight",
    "model.per_layer_embedding": "embed_tokens_per_layer.weight",
    "model.per_layer_project": "per_layer_model_projection.weight",
    "model.per_layer_norm_scale": "per_layer_projection_norm.weight",
}  # fmt: skip


def test_a_whole_gemma_3n():
    """AltUp, LAuReL, embeddings of each layer, a sparse gate, and keys that layers share."""
    from scantling.lab.model import Decoder
    from scantling.lab.weights import Part, _turns

    local, whole = "sliding_attention", "full_attention"
    config = transformers.Gemma3nTextConfig(
        vocab_size=97, hidden_size=48, num_hidden_layers=5, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, intermediate_size=80, vocab_size_per_layer_input=90,
        hidden_size_per_layer_input=8, altup_num_inputs=3, laurel_rank=6, sliding_window=5,
        num_kv_shared_layers=2, activation_sparsity_pattern=[0.5, 0.5, 0.0, 0.0, 0.0],
        layer_types=[local, whole, local, local, whole], max_position_embeddings=64)  # fmt: skip
    theirs = transformers.Gemma3nForCausalLM(config).eval()
    stored = dict(randomised(theirs.model, 0.2).state_dict())
    spec = hf.read(config.to_dict()).spec
    ours = Decoder(spec, numerics=Numerics(epsilon=config.rms_norm_eps))
    kinds = {k.name: next(n for _, n in nodes(k) if hasattr(n, "n_head"))
             for k in spec.decoder.kinds}  # fmt: skip
    made, merged = (
        iter([stored[f"{name}.{i}.weight"] for i in range(2)])
        for name in ("altup_projections", "altup_unembed_projections")
    )
    with torch.no_grad():
        for w in ours.named():
            kind, _, name = w.name.removeprefix("decoder.").partition(".")
            if w.layer is not None:
                given = stored[f"layers.{w.layer}.{GEMMA_3N[name]}"]
                turns = _turns(kinds[kind], name)
                given = Part(w.name, w.layer, w.tensor, 0, *turns).inward(given)
            elif w.name in OUTSIDE:
                given = stored[OUTSIDE[w.name]]
            else:
                given = next(made if w.name == "decoder.altup_make" else merged)
            w.tensor.copy_(given)
        tokens = torch.randint(97, (2, T), generator=torch.Generator().manual_seed(1))
        said = theirs(tokens, use_cache=False).logits
        assert (ours(tokens) - said).abs().max() < 1e-5 * max(1.0, float(said.abs().max()))
