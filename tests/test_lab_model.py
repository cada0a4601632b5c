"""The lab's model is the spec: its weights are those of ops, its work is what ops counts."""

import collections
import random

import pytest
from msgspec.structs import replace

import lab_specs
from scantling import catalog, parameters
from scantling.costs.count import forward_flops
from scantling.errors import FieldError
from scantling.ops import operators, tensors
from scantling.spec import (
    Block,
    BlockSelector,
    Experts,
    GatedDelta,
    GroupedAttention,
    HyperConnections,
    Mamba2,
    MixtureOfDepths,
    RelativeBias,
    Router,
    Workload,
    vary,
)
from scantling.spec.vary import nodes, rewrite

torch = pytest.importorskip("torch", reason="the lab's model needs torch")
torch.set_num_threads(1)

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402 - only where torch is

from scantling.lab.feed import Routed  # noqa: E402
from scantling.lab.model import Decoder  # noqa: E402
from scantling.lab.numerics import Numerics  # noqa: E402
from scantling.lab.shrink import shrink  # noqa: E402

STRUCTURES = random.Random(11).sample(range(4000), 60)


def local(name):
    """A weight's name; a stack's table of relative positions is named by the first with it."""
    stack, _, _ = name.partition(".")
    leaf = name.rpartition(".")[2]
    return f"{stack}.{leaf}" if leaf.startswith("relative_") else name


@pytest.mark.parametrize("structure", STRUCTURES)
def test_weights_are_the_tensors_of_ops(structure):
    """Names, shapes and how many there are of each; the sum is the count."""
    spec = lab_specs.spec(structure)
    with torch.device("meta"):
        model = Decoder(spec)
    found = collections.Counter((local(w.name), tuple(w.tensor.shape)) for w in model.named())
    said = collections.Counter()
    for t in tensors(spec):
        if not t.alias and t.copies:
            shape = (t.experts, *t.shape) if t.experts else t.shape
            said[local(t.name), tuple(int(n) for n in shape)] += int(t.copies)

    assert found == said
    assert sum(p.numel() for p in model.parameters()) == parameters(spec).total


@pytest.mark.parametrize("structure", STRUCTURES[:30])
def test_forward_flops_are_those_of_ops(structure):
    """Torch's counter, attention written out so that it sees both products: exactly.

    ops counts experts that do work for every choice of a token; those that hand back their
    input are chosen by what the numbers are, so their part is taken off as it happens.
    """
    spec = lab_specs.spec(structure)
    model = Decoder(spec)
    model.kernel = None
    spared = idle_work(model)
    tokens = torch.randint(spec.vocab_size, (2, 17))
    source = lab_specs.source(spec, 2, 17)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(tokens, source=source)
    said = forward_flops(operators(spec, Workload("prefill", 2, 17, source_context=17)))

    assert counter.get_total_flops() + sum(spared) == said


def idle_work(model):
    """What the choices of idle experts save, filled as the model runs."""
    spared = []
    for routed in model.modules():
        if isinstance(routed, Routed) and routed.e.n_zero:
            each = routed.up_EFD[0].numel() + routed.down_EDF[0].numel()

            def chosen(*given, routed=routed, each=each, choose=routed.chosen):
                weight, which = choose(*given)
                spared.append(2 * each * int((which >= routed.e.n_expert).sum()))
                return weight, which

            routed.chosen = chosen
    return spared


def loss_of(model, spec, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(spec.vocab_size, (2, 13), generator=generator)
    source = lab_specs.source(spec, 2, 9, generator)
    if spec.head is None:
        return model(tokens, source=source).square().mean()
    return model.loss(tokens, tokens.roll(-1, 1), source)


@pytest.mark.parametrize("structure", STRUCTURES[:30])
def test_every_weight_that_can_learn_gets_a_gradient(structure):
    spec = lab_specs.spec(structure)
    model = Decoder(spec)
    loss = loss_of(model, spec)
    loss.backward()
    without = [n for n, p in model.named_parameters() if p.grad is None]

    assert loss.isfinite()
    idle = [f"{n}." for n, m in model.named_modules() if isinstance(m, Routed) and m.e.n_zero]
    # a correction only chooses; tokens may all choose experts that hand back what they read
    assert all(n.endswith("correction_E") or n.startswith(tuple(idle)) for n in without), without
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("structure", [s for s in STRUCTURES if lab_specs.spec(s).encoder is None
                                       ][:20])  # fmt: skip
def test_attention_in_one_kernel_is_attention_written_out(structure):
    spec = lab_specs.spec(structure)
    model = Decoder(spec)
    tokens = torch.randint(spec.vocab_size, (2, 21))
    with torch.no_grad():
        one = model(tokens)
        model.kernel = None
        two = model(tokens)

    assert torch.allclose(one, two, atol=2e-4, rtol=1e-3)


def test_a_recurrence_in_chunks_is_the_recurrence_token_by_token():
    """Mamba-2 and the delta rule by their definitions, against the products in chunks."""
    from scantling.lab.recurrent import delta_rule, unit

    torch.manual_seed(0)
    B, T, H, k, v = 2, 11, 3, 4, 5
    q, key = torch.randn(B, T, H, k), unit(torch.randn(B, T, H, k))
    value, beta = torch.randn(B, T, H, v), torch.rand(B, T, H)
    decay = -torch.rand(B, T, H)
    state, said = torch.zeros(B, H, k, v), []
    for t in range(T):
        state = state * decay[:, t].exp()[..., None, None]
        old = torch.einsum("bhk,bhkv->bhv", key[:, t], state)
        new = beta[:, t][..., None] * (value[:, t] - old)
        state = state + torch.einsum("bhk,bhv->bhkv", key[:, t], new)
        said.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))

    found = delta_rule(q, key, value, beta, decay, 4)

    assert torch.allclose(found, torch.stack(said, 1), atol=1e-5)


def test_a_state_space_in_chunks_is_the_recurrence_token_by_token():
    from scantling.lab.recurrent import StateSpace

    torch.manual_seed(0)
    s = Mamba2(d_inner=12, n_ssm_head=4, n_group=2, d_state=5, d_conv=4, scan_chunk=4)
    mixer = StateSpace(s, 8, Numerics())
    with torch.no_grad():
        mixer.a_log_H.copy_(torch.rand(4))
    x, dt = torch.randn(2, 11, 4, 3), torch.rand(2, 11, 4)
    b, c = torch.randn(2, 11, 4, 5), torch.randn(2, 11, 4, 5)
    state, said = torch.zeros(2, 4, 3, 5), []
    for t in range(11):
        decay = (-mixer.a_log_H.exp() * dt[:, t]).exp()[..., None, None]
        added = torch.einsum("bhp,bhn->bhpn", x[:, t] * dt[:, t][..., None], b[:, t])
        state = decay * state + added
        said.append(torch.einsum("bhpn,bhn->bhp", state, c[:, t]))

    assert torch.allclose(mixer.scan(x, dt, b, c), torch.stack(said, 1), atol=1e-5)


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["Mamba2", "Qwen3Next"])
def test_recurrent_mixers_are_those_of_the_classes(name):
    """The mixer of the real class with the same weights gives the same numbers."""
    transformers = pytest.importorskip("transformers")
    from scantling.formats import hf
    from scantling.lab.flow import Flow, Places
    from scantling.lab.recurrent import Delta, StateSpace

    torch.manual_seed(0)
    x = torch.randn(2, 19, 32)
    flow = Flow(Places(torch.arange(19), 19, None))
    if name == "Mamba2":
        from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

        config = transformers.Mamba2Config(
            hidden_size=32, num_heads=8, head_dim=8, n_groups=2, state_size=6, chunk_size=8,
            num_hidden_layers=1, vocab_size=50)  # fmt: skip
        theirs = Mamba2Mixer(config, 0)
        ours = StateSpace(_mixer(hf.read(config.to_dict()).spec), 32, Numerics(epsilon=1e-5))
        pairs = {"into": theirs.in_proj, "out": theirs.out_proj}
        single = {"dt_bias_H": theirs.dt_bias, "a_log_H": theirs.A_log, "skip_H": theirs.D}
        ours.conv.bias.data.copy_(theirs.conv1d.bias)
    else:
        from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

        config = transformers.Qwen3NextConfig(
            hidden_size=32, linear_num_value_heads=4, linear_num_key_heads=4,
            linear_key_head_dim=6, linear_value_head_dim=6, num_hidden_layers=4, vocab_size=50,
            head_dim=8, num_attention_heads=4, num_key_value_heads=2)  # fmt: skip
        theirs = Qwen3NextGatedDeltaNet(config, 0)
        ours = Delta(_mixer(hf.read(config.to_dict()).spec), 32, Numerics())
        # the class keeps q, k, v, z of one head together
        by_head = theirs.in_proj_qkvz.weight.detach().view(4, 4, 6, 32).transpose(0, 1)
        ours.qkvz.weight.data.copy_(by_head.reshape(-1, 32))
        by_head = theirs.in_proj_ba.weight.detach().view(4, 2, 32).transpose(0, 1)
        ours.ba.weight.data.copy_(by_head.reshape(-1, 32))
        pairs = {"o": theirs.out_proj}
        single = {"dt_bias_H": theirs.dt_bias, "a_log_H": theirs.A_log}
    ours.conv.weight.data.copy_(theirs.conv1d.weight)
    for part, own in pairs.items():
        getattr(ours, part).weight.data.copy_(own.weight)
    for part, own in single.items():
        getattr(ours, part).data.copy_(own)
    with torch.no_grad():
        assert torch.allclose(ours(x, flow, ""), theirs(x), atol=1e-5)


def _mixer(spec):
    return next(n for _, n in nodes(spec) if type(n).__name__ in {"Mamba2", "GatedDelta"})


# ---------------------------------------------------------------- structures


def tiny(name="llama-3.2-1b", **changes):
    return vary(shrink(catalog.model(name), 60_000, 24), **changes)


def test_shared_feed_forwards_are_one_and_the_same():
    """Two sets over four layers: neighbours share, and the count is that of ops."""
    spec = tiny(n_layer=4)

    def change(node):
        if isinstance(node, Block) and node.branches[0].name == "ffn":
            return replace(node, branches=(replace(node.branches[0], copies=2),))
        return node

    spec = rewrite(spec, change)
    model = Decoder(spec)
    feeds = [layer.blocks[1].sides[0].module for layer in model.layers]

    assert feeds[0] is feeds[1]
    assert feeds[2] is feeds[3]
    assert feeds[1] is not feeds[2]
    assert sum(p.numel() for p in model.parameters()) == parameters(spec).total


def test_a_layer_that_shares_keys_reads_those_of_the_one_before():
    own = tiny(n_layer=2)
    kind = own.decoder.kinds[0]
    readers = rewrite(kind, lambda n: replace(n, shares_kv=True)
                      if isinstance(n, GroupedAttention) else n)  # fmt: skip
    both = (kind, replace(readers, name="reader"))
    run = replace(own.decoder.layout[0], pattern=(kind.name, "reader"))
    spec = replace(own, decoder=replace(own.decoder, kinds=both, layout=(run,)))
    model = Decoder(spec)
    tokens = torch.randint(spec.vocab_size, (1, 12))
    before = model(tokens)
    with torch.no_grad():
        model.layers[0].blocks[0].sides[0].module.qkv.weight[-1] += 3.0  # a row of the values

    assert not torch.allclose(before, model(tokens))
    assert sum(p.numel() for p in model.parameters()) == parameters(spec).total
    run = replace(run, pattern=("reader", kind.name))
    with pytest.raises(FieldError, match="needs an earlier layer with keys of the same shape"):
        Decoder(replace(spec, decoder=replace(spec.decoder, layout=(run,))))


def test_a_mixture_of_depths_changes_only_the_tokens_it_lets_through():
    spec = rewrite(tiny(n_layer=1), lambda n: replace(n, residual=MixtureOfDepths(250))
                   if isinstance(n, Block) else n)  # fmt: skip
    model = Decoder(spec)
    tokens = torch.randint(spec.vocab_size, (1, 20))
    x = model.table(tokens)
    block = model.layers[0].blocks[0]
    out = block(x, flow_of(20), "")

    assert int(((out - x).abs().amax(-1) > 0).sum()) == 5  # a quarter of 20


def tiny_with(mixer):
    """A small model with another mixer in place of attention."""
    return rewrite(tiny(), lambda n: replace(n, module=mixer)
                   if isinstance(getattr(n, "module", None), GroupedAttention) else n)  # fmt: skip


def flow_of(length):
    from scantling.lab.flow import Flow, Places

    return Flow(Places(torch.arange(length), length, None))


def test_hyper_connections_start_as_a_plain_residual():
    """Each block reads one of n equal streams and adds to all: their mean is the plain stream."""
    plain = tiny(n_layer=2)
    hyper = rewrite(plain, lambda n: replace(n, residual=HyperConnections(3))
                    if isinstance(n, Block) else n)  # fmt: skip
    one, two = Decoder(plain), Decoder(hyper)
    weights = {(w.name, w.layer): w.tensor for w in one.named()}
    with torch.no_grad():
        for w in two.named():
            if (w.name, w.layer) in weights:
                w.tensor.copy_(weights[w.name, w.layer])
        tokens = torch.randint(plain.vocab_size, (1, 12))
        difference = (one(tokens) - two(tokens)).abs().max()

    assert float(difference) < 1e-3  # the final norm takes the factor 3 away


def test_a_later_token_changes_no_earlier_one():
    """Causality: windows, chunks, sinks, latent attention, Mamba-2 and the delta rule."""
    specs = [shrink(catalog.model(name), 400_000, 20) for name in (
        "gemma-3-1b", "llama-4-scout", "gpt-oss-20b", "deepseek-v3")]  # fmt: skip
    specs += [tiny_with(mixer) for mixer in (
        Mamba2(d_inner=32, n_ssm_head=4, n_group=2, d_state=8, d_conv=4, scan_chunk=6),
        GatedDelta(2, 4, 8, 8, d_conv=4, scan_chunk=6))]  # fmt: skip
    for spec in specs:
        model = Decoder(spec)
        tokens = torch.randint(model.spec.vocab_size, (1, 20))
        other = tokens.clone()
        other[0, 15] = (other[0, 15] + 1) % model.spec.vocab_size
        with torch.no_grad():
            difference = (model(tokens) - model(other)).abs().amax((0, 2))
        assert float(difference[:15].max()) < 1e-4
        assert float(difference[15]) > 1e-4


def test_a_capacity_drops_the_tokens_that_come_too_late():

    spec = shrink(catalog.model("mixtral-8x7b"), 200_000, 24)
    free, tight = (Decoder(spec, numerics=Numerics(capacity=c)) for c in (None, 0.5))
    tokens = torch.randint(spec.vocab_size, (2, 20))

    assert not torch.allclose(free(tokens), tight(tokens))
    assert torch.allclose(free(tokens), Decoder(spec, numerics=Numerics(capacity=99.0))(tokens))


def test_t5_buckets_are_those_of_the_class():
    modeling = pytest.importorskip("transformers.models.t5.modeling_t5")
    from scantling.lab.flow import buckets

    ahead = torch.arange(-300, 300)
    for causal in (True, False):
        theirs = modeling.T5Attention._relative_position_bucket(
            ahead, bidirectional=not causal, num_buckets=32, max_distance=128
        )
        assert torch.equal(buckets(ahead, 32, causal=causal), theirs)


def t5():
    """A small encoder-decoder."""
    return shrink(catalog.load({"model_type": "t5", "d_model": 32, "d_kv": 8, "num_heads": 4,
                                "d_ff": 48, "vocab_size": 90, "num_layers": 2}).spec)  # fmt: skip


def test_an_encoder_is_read_by_cross_attention():
    spec = t5()
    model = Decoder(spec)
    tokens, source = torch.arange(6)[None], torch.arange(9)[None]
    assert any(isinstance(getattr(n, "position", None), RelativeBias) for _, n in nodes(spec))
    assert sum(p.numel() for p in model.parameters()) == parameters(spec).total
    assert model(tokens, source=source).shape == (1, 6, 90)
    assert not torch.allclose(model(tokens, source=source), model(tokens, source=source + 1))
    with pytest.raises(FieldError, match="source is missing"):
        model(tokens)


@pytest.mark.parametrize(("change", "words"), [
    (lambda n: replace(n, d_input=7) if isinstance(n, GroupedAttention) else n,
     "d_input 7 must be twice d_model"),
    (lambda n: replace(n, activation="odd") if hasattr(n, "gated") else n, "odd is not known"),
    (lambda n: replace(n, shares_kv=True) if isinstance(n, GroupedAttention) else n,
     "shares_kv True needs an earlier layer"),
])  # fmt: skip
def test_what_the_lab_does_not_run_is_one_line(change, words):
    with pytest.raises(FieldError, match=words) as caught:
        Decoder(rewrite(tiny(), change))

    assert "\n" not in str(caught.value)


def test_a_selector_that_would_choose_among_an_encoders_keys_is_refused():
    chosen = BlockSelector(n_index_head=2, d_index=8, index_block=4, index_top_k=2)
    spec = rewrite(t5(), lambda n: replace(n, selector=chosen)
                   if isinstance(n, GroupedAttention) and n.cross else n)  # fmt: skip

    with pytest.raises(FieldError, match=r"cross_attention.*selector BlockSelector chooses keys"):
        Decoder(spec)


def test_what_an_encoder_may_not_have_is_said_of_the_encoder():
    spec = t5()
    spec = replace(spec, encoder=rewrite(spec.encoder, lambda n: replace(n, shares_kv=True)
                   if isinstance(n, GroupedAttention) else n))  # fmt: skip

    with pytest.raises(FieldError, match=r"^encoder\..*shares_kv True needs an earlier layer"):
        Decoder(spec)


def test_groups_of_experts_restrict_nothing_where_no_number_of_them_is_said():
    """No limit on groups is a choice among all experts, as if there were no groups."""
    free = shrink(catalog.model("deepseek-v3"), 400_000, 16)
    free = rewrite(free, lambda n: replace(n, n_expert_group=None, top_k_group=None)
                   if isinstance(n, Router) else n)  # fmt: skip
    free = rewrite(free, lambda n: replace(n, n_expert=8, top_k=3)
                   if isinstance(n, Experts) else n)  # fmt: skip
    grouped = rewrite(free, lambda n: replace(n, n_expert_group=4)
                      if isinstance(n, Router) else n)  # fmt: skip
    tokens = torch.randint(free.vocab_size, (2, 16))

    assert torch.equal(Decoder(free)(tokens), Decoder(grouped)(tokens))


def test_experts_chosen_by_the_token_weigh_nothing_where_their_scores_vanish():
    """Softmax of 800 beside 0 is 0 in 32 bits; the class of DeepSeek-V4 makes 0 of it, not NaN."""
    routed = Routed(Experts(4, 1, 8, router=Router(hashed=True)), 4, Numerics(), vocab_size=8)
    with torch.no_grad():
        routed.router.weight.zero_()
        routed.router.weight[1] = 200.0

    weight, which = routed.chosen(torch.ones(4, 4), torch.arange(4))

    assert which.flatten().tolist() == [0, 1, 2, 3]
    assert weight.flatten().tolist() == [0.0, 1.0, 0.0, 0.0]


def test_a_model_without_a_head_makes_states_and_has_no_loss():
    model = Decoder(replace(tiny(), head=None, tied=False))
    tokens = torch.arange(6)[None]

    assert model(tokens).shape == (1, 6, model.spec.d_model)
    with pytest.raises(FieldError, match="head is missing, so there is no loss"):
        model.loss(tokens, tokens)


def test_equal_seeds_give_equal_models_and_others_do_not():
    one, two, other = (Decoder(tiny(), seed=s) for s in (1, 1, 2))

    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.head.weight, other.head.weight)


@pytest.mark.parametrize("config", [
    {"model_type": "mamba", "hidden_size": 256, "num_hidden_layers": 4, "vocab_size": 300},
    {"model_type": "zamba2", "hidden_size": 256, "num_hidden_layers": 4, "vocab_size": 300,
     "num_attention_heads": 8, "hybrid_layer_ids": [1, 3], "layers_block_type":
     ["mamba", "hybrid", "mamba", "hybrid"], "use_shared_attention_adapter": True,
     "use_shared_mlp_adapter": True, "adapter_rank": 8},
    {"model_type": "rwkv", "hidden_size": 256, "num_hidden_layers": 4, "vocab_size": 300},
    {"model_type": "recurrent_gemma", "hidden_size": 256, "num_hidden_layers": 3,
     "vocab_size": 300, "lru_width": 256, "num_attention_heads": 4, "intermediate_size": 600},
], ids=lambda c: c["model_type"])  # fmt: skip
def test_models_without_plain_attention_shrink_run_and_learn(config):
    spec = shrink(catalog.load(config).spec, 400_000, 24)
    model = Decoder(spec)
    loss = loss_of(model, spec)
    loss.backward()

    assert parameters(spec).total <= 400_000
    assert loss.isfinite()
    assert all(p.grad is not None for p in model.parameters())


def test_a_model_of_handed_blocks_adds_what_the_last_one_made():
    """Zamba: attention, then a feed-forward, then a matrix; Mamba reads the stream with it."""
    from scantling.lab.stream import Branched

    spec = shrink(catalog.load({
        "model_type": "zamba2", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 90,
        "num_attention_heads": 4, "hybrid_layer_ids": [1], "layers_block_type":
        ["mamba", "hybrid"]}).spec, 400_000, 24)  # fmt: skip
    model = Decoder(spec)
    handing = [b for b in model.modules() if isinstance(b, Branched) and b.hands]
    tokens = torch.arange(9)[None]
    with torch.no_grad():
        before = model(tokens)
        last = handing[-1].sides[0].module.projection
        last.weight.zero_()
        without = model(tokens)
        for block in handing[:-1]:  # what they make no longer matters
            for p in block.parameters():
                p.mul_(2)

        assert not torch.allclose(before, without)
        assert torch.equal(model(tokens), without)
