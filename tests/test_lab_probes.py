"""What is done to trained models of the lab, and what is read off them.

Right values are derived in the tests: what a mask must equal, what a matrix' rank is, what even
attention's entropy is.
"""

import json
import math

import numpy as np
import pytest
from msgspec.structs import replace

from scantling import catalog, vary
from scantling.costs.count import parameters
from scantling.costs.ranks import rank_operators
from scantling.errors import FieldError
from scantling.formats.context import extend
from scantling.spec import (
    Block,
    Branch,
    Dense,
    Embeddings,
    Experts,
    GroupedAttention,
    Head,
    LatentAttention,
    Layer,
    LearnedPosition,
    Norm,
    QKNorm,
    RelativeBias,
    Rope,
    Run,
    SharedExpert,
    Spec,
    Stack,
    Window,
)
from scantling.spec.plan import Plan

torch = pytest.importorskip("torch")

from scantling.lab.graph import clustering, path_length  # noqa: E402
from scantling.lab.interventions import (  # noqa: E402 - needs torch
    DropLayers,
    LowRank,
    MaskHeads,
    Narrow,
    ScaleRope,
    ShareFfn,
    applied,
    materialise,
)
from scantling.lab.model import Decoder  # noqa: E402
from scantling.lab.probes import (  # noqa: E402
    activations,
    attention,
    effective_rank,
    gradient_norms,
    head_sensitivity,
    product_rank,
)

torch.set_num_threads(1)

V, D, F = 31, 24, 40
GQA = GroupedAttention(6, 3, 8, position=Rope())
TOKENS = torch.randint(V, (2, 12), generator=torch.Generator().manual_seed(1))


def spec_of(attention=GQA, ffn=None, n_layer=3, **more):
    ffn = ffn or Dense(F)
    blocks = (Block((Branch(attention),), pre=Norm()), Block((Branch(ffn),), pre=Norm()))
    stack = Stack((Layer("layer", blocks),), (Run(("layer",), n_layer),))
    return Spec(D, V, stack, **more)


def model_of(spec, seed=0):
    """A model none of whose weights is 0 or 1, as a trained one."""
    model = Decoder(spec, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
    return model


def logits(model):
    with torch.no_grad():
        return model(TOKENS)


def count(model):
    return sum(p.numel() for p in model.parameters())


PARALLEL = Block((Branch(GQA), Branch(Dense(F, gated=False, activation="gelu"))), pre=Norm())
SPECS = {
    "llama": spec_of(),
    "tied gpt2": spec_of(
        GroupedAttention(4, 4, 6, qkv_bias=True, out_bias=True),
        Dense(F, gated=False, activation="gelu", in_bias=True, out_bias=True),
        tied=True, embeddings=Embeddings(position=LearnedPosition(16)),
    ),
    "gates and sinks": spec_of(
        replace(GQA, gate="element", sinks=True, d_value=5, qk_norm=QKNorm("each_head")),
    ),
    "gated heads in windows": spec_of(
        replace(GQA, gate="head", qk_norm=QKNorm("head"), span=Window(4), softcap=5.0),
    ),
    "latent": spec_of(LatentAttention(4, 10, 6, 4, 5, q_rank=12, position=Rope())),
    "latent without a query rank": spec_of(LatentAttention(4, 10, 6, 4, 5, gate=True)),
    "parallel": Spec(D, V, Stack((Layer("layer", (PARALLEL,)),), (Run(("layer",), 3),))),
    "sandwich": Spec(D, V, Stack((Layer("layer", (
        Block((Branch(GQA),), pre=Norm(), post=Norm("layer", bias=True)),
        Block((Branch(Dense(F)),), pre=Norm(), post=Norm()),
    )),), (Run(("layer",), 3),))),
}  # fmt: skip
"""Models of three layers with at least four heads each."""

CHANGES = {
    "one head": (MaskHeads(((1, 2),)),),
    "heads that leave their groups uneven": (MaskHeads(((0, 0), (2, 1), (2, 3))),),
    "all heads of a layer": (MaskHeads(tuple((1, h) for h in range(4))),
                             MaskHeads(tuple((1, h) for h in range(4, 6)))),
    "a layer": (DropLayers((1,)),),
    "rank": (LowRank(5),),
    "rank of one layer": (LowRank(5, (2,)),),
    "shared": (ShareFfn(((0, 1, 2),)),),
    "shared by two": (ShareFfn(((0, 2),)),),
    "window": (Narrow(3),),
    "window of one layer": (Narrow(3, (1,)),),
    "all together": (MaskHeads(((1, 2),)), DropLayers((0,)), LowRank(4), Narrow(5)),
}  # fmt: skip


def fitting(name, changes):
    """The changes, without heads this model has not."""
    heads = 4 if "latent" in name or "gpt2" in name else 6
    found = []
    for one in changes:
        if isinstance(one, MaskHeads):
            kept = tuple(pair for pair in one.heads if pair[1] < heads)
            if kept:
                found.append(MaskHeads(kept))
        else:
            found.append(one)
    return found


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", SPECS)
def test_a_model_built_for_real_computes_what_the_changed_one_does(name, change):
    model, changes = model_of(SPECS[name]), fitting(name, CHANGES[change])
    before = logits(model)
    with applied(model, *changes):
        acted = logits(model)
    small = materialise(model, *changes)

    assert (acted - before).abs().max() > 1e-3, "it changes something"
    assert (logits(small) - acted).abs().max() < 1e-5
    assert count(small) == parameters(small.spec).total
    assert (logits(model) == before).all()


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_is_what_it_was_bit_for_bit_even_after_an_error(change):
    model = model_of(SPECS["llama"])
    modules = dict(model.named_modules())
    held = {k: (id(p), p.clone()) for k, p in model.named_parameters()}
    settings = [(m.a, m.scale, m.shared) for m in modules.values() if hasattr(m, "shared")]
    before, spec, layers = logits(model), model.spec, model.layers

    def fail():
        with applied(model, *CHANGES[change]):
            logits(model)
            raise KeyError

    with pytest.raises(KeyError):
        fail()

    assert dict(model.named_modules()) == modules
    assert model.layers is layers
    assert model.spec is spec
    for name, p in model.named_parameters():
        assert id(p) == held[name][0]
        assert torch.equal(p, held[name][1])
    assert [(m.a, m.scale, m.shared) for m in modules.values() if hasattr(m, "shared")] == settings
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in modules.values())
    assert torch.equal(logits(model), before)


# ---------------------------------------------------------------- heads


def test_masking_a_head_is_writing_zeros_to_its_columns_of_the_output():
    model, other = model_of(SPECS["llama"]), model_of(SPECS["llama"])
    with torch.no_grad():
        other.layers[1].blocks[0].sides[0].module.o.weight[:, 16:24] = 0  # head 2, 8 wide

    with applied(model, MaskHeads(((1, 2),))):
        assert torch.allclose(logits(model), logits(other), atol=1e-6)


def test_masking_all_heads_is_a_model_whose_layer_has_no_attention():
    """Pre-norm: a block that makes zeros adds nothing, so the stream passes it by."""
    model = model_of(SPECS["llama"])
    small = materialise(model, MaskHeads(tuple((1, h) for h in range(6))))
    bare = model.layers[1].blocks
    attention, bare[0] = bare[0], torch.nn.Identity()
    bare[0].forward = lambda x, _flow, _path: x
    removed = logits(model)
    bare[0] = attention

    assert torch.allclose(logits(small), removed, atol=1e-5)
    assert [len(small.spec.decoder.kind(k).blocks) for k in small.spec.decoder.expand()] == [
        2,
        1,
        2,
    ]


def test_an_output_bias_stays_when_all_heads_go():
    """A block of zeros still adds its bias: one head stays, whose output weights are zero."""
    model = model_of(SPECS["tied gpt2"])
    small = materialise(model, MaskHeads(tuple((0, h) for h in range(4))))
    left = small.layers[0].blocks[0].sides[0].module

    assert left.h == 1
    assert not left.o.weight.any()
    assert left.o.bias.any()


def test_sliced_heads_leave_the_fewest_key_value_heads_that_do():
    """Six query heads read three: (0 1) (2 3) (4 5); without 0 and 1 the first goes too."""
    model = model_of(SPECS["llama"])
    whole = materialise(model, MaskHeads(tuple((at, h) for at in range(3) for h in (0, 1))))
    uneven = materialise(model, MaskHeads(tuple((at, 0) for at in range(3))))

    assert (whole.spec.n_head, whole.spec.n_kv_head) == (4, 2)
    assert whole.spec.decoder.layout == (Run(("layer",), 3),)
    assert (uneven.spec.n_head, uneven.spec.n_kv_head) == (5, 5)


@pytest.mark.parametrize("attention", [
    replace(GQA, qk_norm=QKNorm("width")), replace(GQA, out_norm=Norm()),
    replace(GQA, position=RelativeBias(8)),
])  # fmt: skip
def test_heads_that_depend_on_the_others_are_masked_but_not_sliced(attention):
    model = model_of(spec_of(attention))
    one = MaskHeads(((1, 2),))
    with applied(model, one):
        logits(model)

    with pytest.raises(FieldError, match="mask them only"):
        materialise(model, one)


def test_a_head_is_masked_in_its_layer_only_where_layers_share_their_weights():
    """ALBERT's way: three layers, one set of weights; the first then reads what it always did."""
    blocks = (Block((Branch(GQA, copies=1),), pre=Norm()),
              Block((Branch(Dense(F), copies=1),), pre=Norm()))  # fmt: skip
    model = model_of(Spec(D, V, Stack((Layer("layer", blocks),), (Run(("layer",), 3),))))
    seen = []
    for layer in model.layers:
        layer.register_forward_hook(lambda _m, _x, out: seen.append(out))
    logits(model)
    with applied(model, MaskHeads(((1, 2),))):
        logits(model)

    assert torch.equal(seen[0], seen[3])
    assert not torch.allclose(seen[1], seen[4], atol=1e-3)
    shared = materialise(model, MaskHeads(tuple((at, h) for at in range(3) for h in (2, 3))))
    assert count(shared) == parameters(shared.spec).total < count(model)
    with pytest.raises(FieldError, match="change layers that share weights alike"):
        materialise(model, MaskHeads(((1, 2),)))


# ---------------------------------------------------------------- layers and feed-forwards


def test_a_model_without_a_layer_passes_its_stream_by():
    model = model_of(SPECS["llama"])
    with applied(model, DropLayers((1,))):
        dropped = logits(model)
    first, last = model.layers[0], model.layers[2]
    model.decoder.layers = torch.nn.ModuleList([first, last])

    assert torch.equal(dropped, logits(model))


def test_full_rank_is_exact_and_a_rank_keeps_the_largest_singular_values():
    """Eckart and Young: what is lost is the root of the sum of the squares of the others."""
    model = model_of(SPECS["llama"])
    before, feed = logits(model), model.layers[0].blocks[1].sides[0].module
    weight = feed.down.weight.detach().clone()
    with applied(model, LowRank(D)):
        assert (logits(model) - before).abs().max() < 1e-5
    with applied(model, LowRank(7)):
        cut = feed.down.weight.detach()
    values = np.linalg.svd(weight.double().numpy(), compute_uv=False)

    assert torch.linalg.matrix_rank(cut, atol=1e-4) == 7
    lost = float((cut - weight).double().norm())
    assert lost == pytest.approx(math.sqrt((values[7:] ** 2).sum()), rel=1e-5)


def test_a_rank_saves_parameters_only_below_its_break_even():
    """Three matrices of D × F become 3 r (D + F): fewer where r < D F / (D + F) = 15."""
    model = model_of(SPECS["llama"])
    for r in (14, 15, 16):
        saved = count(model) - count(materialise(model, LowRank(r)))
        assert saved == 3 * 3 * (D * F - r * (D + F))
    assert D * F / (D + F) == 15


def test_a_rank_is_counted_for_columns_and_split_over_chips():
    """Three matrices of rank r are 3 r (D + F); over two chips only the sides F wide are halved:
    gate and up read D and give F, down reads F, so 3 r D stay whole and 3 r F are split."""
    ranks = np.array([3, 5, 8])
    column = spec_of(ffn=Dense(F, ff_rank=ranks), n_layer=1)
    own = [spec_of(ffn=Dense(F, ff_rank=int(r)), n_layer=1) for r in ranks]

    assert parameters(column).total.tolist() == [parameters(s).total for s in own]
    assert parameters(own[1]).by_part["ffn"] == 3 * 5 * (D + F)
    even = spec_of(replace(GQA, n_head=4, n_kv_head=2), Dense(F, ff_rank=5), n_layer=1)
    ops = rank_operators(even, Plan(tp=2), 8)
    held = sum(t.size() for op in ops for t in op.tensors if t.part == "ffn")
    assert held == 3 * 5 * (D + F // 2)


def test_experts_get_a_lower_rank_in_place_but_not_of_their_own():
    model = model_of(spec_of(ffn=Experts(4, 2, 16)))
    before = logits(model)
    with applied(model, LowRank(16)):
        assert (logits(model) - before).abs().max() < 1e-5
    with pytest.raises(FieldError, match="routed experts"):
        materialise(model, LowRank(8))


def test_one_feed_forward_for_all_saves_what_five_layers_had():
    """The lab's note: L 6, D 48, F 128 gated; a spec that shares a block shares its norm too."""
    attention = GroupedAttention(3, 3, 16, position=Rope())
    blocks = (Block((Branch(attention),), pre=Norm()), Block((Branch(Dense(128)),), pre=Norm()))
    spec = Spec(48, 84, Stack((Layer("layer", blocks),), (Run(("layer",), 6),)), tied=True)
    own = model_of(spec)
    one, pairs = (materialise(own, ShareFfn.neighbours(6, n)) for n in (6, 2))
    block = 3 * 48 * 128 + 48

    assert count(own) - count(one) == 5 * block
    assert count(own) - count(pairs) == 3 * block
    assert one.spec.decoder.kinds[0].blocks[1].branches[0].copies == 1
    assert pairs.spec.decoder.kinds[0].blocks[1].branches[0].copies == 3


# ---------------------------------------------------------------- positions and spans


@pytest.mark.parametrize("kind", ["linear", "ntk", "yarn", "dynamic", "llama3", "longrope"])
@pytest.mark.parametrize("name", ["llama", "latent"])
def test_a_stretched_rotation_is_that_of_the_stretched_spec(name, kind):
    spec = replace(SPECS[name], max_context=6)
    model = model_of(spec)
    longer = Decoder(extend(spec, 24, kind).spec)
    longer.load_state_dict(model.state_dict())
    plain = logits(model)
    with applied(model, ScaleRope(kind, 24)):
        stretched = logits(model)
    small = materialise(model, ScaleRope(kind, 24))

    assert torch.allclose(stretched, logits(longer), atol=1e-6)
    assert torch.allclose(logits(small), stretched, atol=1e-6)
    assert small.spec == longer.spec
    assert (stretched - plain).abs().max() > 1e-4
    assert torch.equal(logits(model), plain)


def test_a_window_of_one_makes_a_model_forget_what_came_before():
    model = model_of(SPECS["llama"])
    with applied(model, Narrow(1)):
        whole = logits(model)
        with torch.no_grad():
            alone = model(TOKENS.reshape(-1, 1)).reshape(whole.shape)

    assert torch.allclose(whole, alone, atol=1e-5)


def test_a_window_widens_none():
    model = model_of(SPECS["gated heads in windows"])

    assert materialise(model, Narrow(9)).spec == model.spec
    assert materialise(model, Narrow(2)).spec.read("window") == 2


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(("change", "words"), [
    (DropLayers((3,)), "layer 3 is not in the model, which has layers 0 to 2"),
    (DropLayers((0, 1, 2)), "drop_layers leaves no layer; keep at least one"),
    (MaskHeads(((0, 6),)), "head 6 is not in layer 0, which has heads 0 to 5"),
    (MaskHeads(((7, 0),)), "layer 7 is not in the model"),
    (MaskHeads(((0, 0),), "cross_attention"), "layer 0 has no cross attention"),
    (LowRank(25), "low_rank 25 must be 1 to 24, the rank of a matrix of 40 × 24"),
    (LowRank(0), "low_rank 0 must be 1 to 24"),
    (ShareFfn(((0,), (1,))), "share_ffn shares nothing; name two layers or more together"),
    (ShareFfn(((0, 1), (1, 2))), "must name each layer once"),
    (Narrow(0), "window 0 must be at least 1 token"),
    (ScaleRope("yarn", 4, 8), "context 4 must exceed the original 8"),
])  # fmt: skip
def test_what_cannot_be_done_is_one_line(change, words):
    model = model_of(SPECS["llama"])
    with pytest.raises(FieldError, match=words), applied(model, change):
        pytest.fail("it was done")
    with pytest.raises(FieldError, match=words):
        materialise(model, change)


def test_layers_whose_feed_forwards_differ_share_none():
    small, wide = (
        Layer(n, (Block((Branch(GQA),), pre=Norm()), Block((Branch(Dense(f)),), pre=Norm())))
        for n, f in (("a", 16), ("b", 32))
    )
    model = model_of(Spec(D, V, Stack((small, wide), (Run(("a", "b"), 4),))))

    with pytest.raises(FieldError, match="layer 0; share layers of one kind"):
        materialise(model, ShareFfn(((0, 1),)))
    assert count(materialise(model, ShareFfn(((0, 2), (1, 3))))) < count(model)


def test_keys_that_later_layers_read_stay():
    first = Layer("first", (Block((Branch(GQA),), pre=Norm()),))
    later = Layer("later", (Block((Branch(replace(GQA, shares_kv=True)),), pre=Norm()),))
    model = model_of(Spec(D, V, Stack((first, later), (Run(("first", "later"), 4),))))
    evenly = MaskHeads(((0, 0), (0, 2), (0, 4), (1, 1), (1, 3), (1, 5)))
    with applied(model, evenly):
        acted = logits(model)

    assert (logits(materialise(model, evenly)) - acted).abs().max() < 1e-5
    with pytest.raises(FieldError, match="would change keys that other layers read"):
        materialise(model, MaskHeads(((2, 0),)))
    with (
        pytest.raises(FieldError, match="needs an earlier layer"),
        applied(model, DropLayers((0, 2))),
    ):
        pytest.fail("it was done")  # fmt: skip


def test_a_released_structure_is_cut_and_counted():
    from scantling.lab.shrink import shrink

    spec = vary(shrink(catalog.model("gemma-2-2b"), 200_000, 16), n_layer=4)
    model = Decoder(spec)
    small = materialise(model, DropLayers((0,)), MaskHeads(((1, 0),)), LowRank(6, (3,)))

    assert count(small) == parameters(small.spec).total < count(model)


# ---------------------------------------------------------------- what is read


TARGETS = TOKENS.roll(-1, 1)
T = TOKENS.shape[1]


def even_model(**more):
    """A model whose queries are all zero: every key that is seen gets the same share."""
    model = model_of(spec_of(replace(GQA, **more)))
    with torch.no_grad():
        for layer in model.layers:
            layer.blocks[0].sides[0].module.qkv.weight[: 6 * 8] = 0
    return model


def test_even_attention_has_the_entropy_of_the_keys_it_sees():
    """Query t sees t + 1 keys, ln(t + 1) nats, t / 2 tokens behind on average."""
    read = attention(even_model(), TOKENS)
    nats = sum(math.log(t + 1) for t in range(T)) / T

    assert [r.layer for r in read] == [0, 1, 2]
    for r in read:
        assert r.entropy == pytest.approx([nats] * 6, rel=1e-5)
        assert r.even == pytest.approx(nats)
        assert r.span == pytest.approx([(T - 1) / 4] * 6, rel=1e-5)
        assert r.logit_variance == pytest.approx([0] * 6)
        assert (r.path_length, r.clustering, r.connected) == (1, 1, 1)


def test_even_attention_both_ways_has_the_entropy_of_the_context():
    for r in attention(even_model(causal=False), TOKENS):
        assert r.entropy == pytest.approx([math.log(T)] * 6, rel=1e-5)
        assert r.even == pytest.approx(math.log(T))


def test_sinks_are_left_out_of_the_entropy():
    """A sink takes weight from all keys alike, which changes no share among them."""
    model = even_model(sinks=True)
    read = attention(model, TOKENS)

    assert model.layers[0].blocks[0].sides[0].module.sinks_H.any()
    assert read[0].entropy == pytest.approx([read[0].even] * 6, rel=1e-5)


def test_a_window_of_one_is_no_graph_and_no_entropy():
    model = model_of(SPECS["llama"])
    with applied(model, Narrow(1)):
        read = attention(model, TOKENS)

    assert all(r.entropy == r.span == (0,) * 6 for r in read)
    assert [(r.path_length, r.clustering, r.connected) for r in read] == [(None, 0, 0)] * 3


def test_lengths_and_clusters_of_known_graphs():
    """A ring of n joined to its 4 nearest clusters by 3 (4 − 2) / 4 (4 − 1) = 1/2 (Watts and
    Strogatz 1998); a row of n has a mean path of (n + 1) / 3."""
    n = 20
    ring = torch.zeros(n, n, dtype=torch.bool)
    for i in range(n):
        for step in (1, 2):
            ring[i, (i + step) % n] = ring[(i + step) % n, i] = True
    row = torch.diag(torch.ones(n - 1, dtype=torch.bool), 1)
    row = row | row.T

    assert clustering(ring) == pytest.approx(0.5)
    assert path_length(row) == pytest.approx(((n + 1) / 3, 1))
    assert clustering(row) == 0
    two = torch.block_diag(row.float(), row.float()).bool()
    assert path_length(two) == pytest.approx(((n + 1) / 3, (n - 1) / (2 * n - 1)))


def test_the_effective_rank_of_known_matrices():
    """Values 1, 1, 2 are shares of 1/4, 1/4, 1/2: exp(3/2 ln 2)."""
    turn = torch.linalg.qr(torch.randn(7, 7, generator=torch.Generator().manual_seed(0)))[0]
    matrix = turn[:, :3] @ torch.diag(torch.tensor([1.0, 1.0, 2.0])) @ turn[:3, :3].T

    assert float(effective_rank(turn)) == pytest.approx(7)
    scaled = torch.diag(torch.tensor([1.0, 1.0, 2.0, 0.0]))
    assert float(effective_rank(5 * scaled)) == pytest.approx(2**1.5)
    assert 1 < float(effective_rank(matrix)) < 3


@pytest.mark.parametrize(("tokens", "width"), [(12, 4), (5, 16)])
def test_the_rank_of_a_product_is_that_of_its_small_factors(tokens, width):
    generator = torch.Generator().manual_seed(3)
    q, k = (torch.randn(2, 3, tokens, width, generator=generator) for _ in "qk")

    assert torch.allclose(product_rank(q, k), effective_rank(q @ k.mT), rtol=1e-4)
    assert (product_rank(q, k) <= min(tokens, width)).all()


def test_logits_of_unit_queries_and_keys_have_unit_variance_at_every_head_width():
    """Σ of h products of variance 1, times 1/h: the claim that it grows with h is wrong."""
    for width in (8, 16, 64):
        one = GroupedAttention(2, 2, width)
        model = model_of(spec_of(one, n_layer=1))
        block = model.layers[0].blocks[0]
        with torch.no_grad():
            block.sides[0].module.qkv.weight.normal_(std=D**-0.5)
            block.pre.scale.fill_(1)
            model.table.weight.normal_()
        tokens = torch.randint(V, (4, 64), generator=torch.Generator().manual_seed(2))

        variance = attention(model, tokens)[0].logit_variance
        assert sum(variance) / 2 == pytest.approx(1, rel=0.5)


def test_moments_of_hidden_units_are_those_of_all_of_them():
    model = model_of(spec_of(ffn=Dense(F, gated=False, activation="relu")))
    seen = []
    for layer in model.layers:
        layer.blocks[1].sides[0].module.down.register_forward_pre_hook(
            lambda _m, given: seen.append(given[0].double().numpy())
        )
    with torch.no_grad():
        read = activations(model, TOKENS)

    for r, x in zip(read, seen, strict=True):
        off = x - x.mean()
        assert r.kurtosis == pytest.approx((off**4).mean() / (off**2).mean() ** 2)
        assert r.positive == (x > 0).mean()
        assert r.active == (abs(x) > 0.1 * abs(x).max(-1, keepdims=True)).mean()
        assert 0 < r.active < r.positive < 1


def test_experts_are_read_together_and_shared_ones_apart():
    model = model_of(spec_of(ffn=Experts(4, 2, 16, shared=SharedExpert(8))))
    read = activations(model, TOKENS)

    assert {r.module for r in read} == {"ffn.experts", "ffn.shared"}
    assert len(read) == 6


def test_gradient_norms_are_those_of_the_matrices_in_a_backward_pass():
    model = model_of(SPECS["gates and sinks"])
    norms = gradient_norms(model, TOKENS, TARGETS)

    assert all(p.grad is None for p in model.parameters())
    model.loss(TOKENS, TARGETS).backward()
    whole = [math.sqrt(sum(float(p.grad.square().sum()) for p in layer.parameters() if p.dim() > 1))
             for layer in model.layers]  # fmt: skip
    assert norms == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("name", ["llama", "latent"])
def test_sensitivity_is_what_the_loss_changes_by_when_a_head_fades(name):
    """A difference quotient: the head's part of the output, times 1 ± a little."""
    from scantling.lab.masks import masked

    model = model_of(SPECS[name]).double()
    read = head_sensitivity(model, TOKENS, TARGETS)
    step, losses = 1e-4, []
    for sign in (1, -1):
        mask = torch.ones(model.spec.n_head, dtype=torch.double)
        mask[2] += sign * step
        with masked(list(model.layers), {1: mask}):
            losses.append(float(model.loss(TOKENS, TARGETS).detach()))

    assert list(read) == [0, 1, 2]
    assert read[1][2] == pytest.approx(abs(losses[0] - losses[1]) / (2 * step), rel=1e-3)


@pytest.mark.parametrize("read", [attention, activations, lambda m, t: head_sensitivity(m, t, t),
                                  lambda m, t: gradient_norms(m, t, t)])  # fmt: skip
def test_reading_a_model_leaves_it_as_it_was(read):
    model = model_of(spec_of(ffn=Experts(4, 2, 16)))
    before = logits(model)
    known = {name: set(vars(m)) for name, m in model.named_modules()}
    read(model, TOKENS)

    assert {name: set(vars(m)) for name, m in model.named_modules()} == known
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
    assert torch.equal(logits(model), before)


@pytest.mark.parametrize("tied", [True, False])
def test_every_weight_is_set_and_none_is_what_memory_held(tied):
    """Memory that nothing wrote to is filled with NaN here."""
    torch.use_deterministic_algorithms(mode=True)
    try:
        head, ffn = Head(bias=True), Dense(F, in_bias=True, out_bias=True, ff_rank=4)
        model = Decoder(spec_of(ffn=ffn, tied=tied, head=head))
    finally:
        torch.use_deterministic_algorithms(mode=False)

    assert not any(p.isnan().any() for p in model.parameters())


def test_an_odd_number_of_gates_beside_queries_and_keys_turns_all_the_same():
    """Pairs of numbers are turned as complex ones, which must lie at even places in memory."""
    model = model_of(spec_of(GroupedAttention(3, 1, 8, position=Rope(), gate="head")))

    assert logits(model).isfinite().all()


def test_what_no_spec_says_can_still_be_tried_in_place():
    """Layers of two kinds share one feed-forward: the lab runs it, a spec has no word for it."""
    model = materialise(model_of(SPECS["llama"]), MaskHeads(((1, 0), (1, 1))))
    plain = logits(model)
    with applied(model, ShareFfn(((0, 1),))):
        assert not torch.allclose(logits(model), plain, atol=1e-3)
    with pytest.raises(FieldError, match="no spec can say"):
        materialise(model, ShareFfn(((0, 1),)))


def test_layers_that_share_their_attention_are_narrowed_together():
    blocks = (Block((Branch(GQA, copies=1),), pre=Norm()),)
    model = model_of(Spec(D, V, Stack((Layer("layer", blocks),), (Run(("layer",), 2),))))
    before = logits(model)

    with pytest.raises(FieldError, match="change both"), applied(model, Narrow(2, (0,))):
        pytest.fail("it was done")
    with applied(model, Narrow(2)):
        assert not torch.allclose(logits(model), before, atol=1e-3)
    assert torch.equal(logits(model), before)


# ---------------------------------------------------------------- a run, its folder, its command


@pytest.fixture(scope="module")
def kept_run(tmp_path_factory):
    """A tiny model trained for a few steps."""
    from scantling.lab.train import TrainingRun, train

    folder = tmp_path_factory.mktemp("runs") / "run"
    spec = vary(spec_of(n_layer=3), vocab_size=256)
    train(TrainingRun(spec=replace(spec, max_context=16), data="grammar:n_bytes=40000", steps=3,
                      batch=4, context=16, out=folder))  # fmt: skip
    return folder


def ask(*words):
    from click.testing import CliRunner

    from scantling import cli

    return CliRunner().invoke(cli.group, ["lab", "probe", *map(str, words)])


def test_a_run_is_read_back_as_it_was_trained(kept_run):
    from scantling.lab.kept import kept

    one = kept(kept_run)
    task, note = one.task("grammar:n_bytes=40000")
    told = [json.loads(line) for line in (kept_run / "metrics.jsonl").read_text().splitlines()]
    judged = next(r for r in told if r.get("slice") == "report")

    assert note == ""
    assert task.evaluate(one.model)["loss"] == pytest.approx(judged["loss"], rel=1e-6)


def test_the_command_compares_three_models(kept_run, tmp_path):
    """In place and built lose the same; the counts are those of the spec that is left."""
    data = ("--data", "grammar:n_bytes=40000")
    cut = tmp_path / "cut"
    asked = ("--drop-layers", "1", "--mask-heads", "0:0,1", "--low-rank", "6")
    answer = ask(kept_run, *data, *asked, "--save", cut, "--json")
    assert answer.exit_code == 0, answer.output
    before, changed, built = json.loads(answer.output)["rows"]

    assert built["loss"] == pytest.approx(changed["loss"], abs=1e-5)
    assert built["parameters"] < before["parameters"]
    assert built["forward_flops"] < before["forward_flops"]
    assert built["forward_s"] > 0
    again = json.loads(ask(cut, *data, "--window", "3", "--read", "--json").output)
    assert again["rows"][0]["loss"] == pytest.approx(built["loss"], abs=1e-6)
    assert again["rows"][0]["parameters"] == built["parameters"]
    assert len(again["readings"]["gradient_norm"]) == 2


def test_the_command_reads_a_model_layer_by_layer(kept_run):
    answer = ask(kept_run, "--data", "grammar:n_bytes=40000")

    assert answer.exit_code == 0, answer.output
    assert "heads the loss hangs on least" in answer.output
    assert [line.split()[0] for line in answer.output.splitlines() if line[1:2].isdigit()] == list(
        "012"
    )


@pytest.mark.parametrize(("words", "line"), [
    (("--drop-layers", "9"), "layer 9 is not in the model, which has layers 0 to 2"),
    (("--drop-layers", "2-1"), "--drop-layers 2-1 has a range that runs backwards, 2-1"),
    (("--mask-heads", "1"), "--mask-heads 1 is not LAYER:HEADS; write 3:0,2 or 3:all"),
    (("--low-rank", "a"), "--low-rank a is no number; write 16, or 16:2-5 for some layers"),
    (("--share-ffn", "1"), "--share-ffn 1 shares nothing; use 2 or more"),
    (("--rope", "yarn"), "--rope yarn needs the longer --context"),
    (("--save", "x"), "--save x needs a change; name one"),
])  # fmt: skip
def test_a_wrong_option_is_one_line(kept_run, words, line):
    answer = ask(kept_run, "--data", "grammar:n_bytes=40000", *words)

    assert str(answer.exception) == line


def test_a_folder_that_is_no_run_is_one_line(tmp_path):
    assert "is no run: it has neither run.json nor config.json" in str(ask(tmp_path).exception)


def test_a_model_that_diverged_is_one_line():
    model = model_of(SPECS["llama"])
    with torch.no_grad():
        model.layers[1].blocks[0].sides[0].module.qkv.weight.fill_(math.nan)

    with pytest.raises(FieldError, match="layer 1 has attention logits that are not finite"):
        attention(model, TOKENS)
