"""What is true of every spec: one formula for one model and a million, and laws of counting."""

import functools
import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

import random_specs
from scantling.arith import ceil_div, maximum, minimum, round_up
from scantling.costs.cache import kv_cache
from scantling.costs.count import PARTS, forward_flops, parameters, solve_width
from scantling.costs.features import features
from scantling.costs.time import total_time
from scantling.formats.hf.fields import squeeze
from scantling.hardware import chip
from scantling.laws import LAWS, law, prior_terms
from scantling.ops import operators, tensors, visible_pairs
from scantling.ops.op import chunked_pairs
from scantling.spec import (
    Block,
    BlockSelector,
    Branch,
    Chunk,
    CompressedAttention,
    Dense,
    Disentangled,
    Experts,
    Full,
    GatedDelta,
    GroupedAttention,
    HyperConnections,
    Indexer,
    KimiDelta,
    Layer,
    LinearAttention,
    Mamba2,
    MixtureOfDepths,
    Norm,
    QKNorm,
    RelativeBias,
    Rope,
    Router,
    Run,
    SharedExpert,
    Spec,
    Stack,
    Window,
    Workload,
    dimensions,
    has,
    read,
    vary,
)

STRUCTURES, ROWS, GROUPS = 168, 8, 9
"""168 structures of 8 specs each: 1,344 specs. 168 = 12 × 14, so each mixer leads 14 of them."""

WORKLOADS = (
    Workload("prefill", 1, 1),
    Workload("prefill", 3, 1000, source_context=77),
    Workload("decode", 5, 4097),
    Workload("train", 2, 513),
)
fixed = settings(derandomize=True, deadline=None, max_examples=300, database=None)
groups = pytest.mark.parametrize("group", range(GROUPS))


@functools.cache
def rows(structure):
    return [random_specs.spec(structure, row) for row in range(ROWS)]


@functools.cache
def drawn(structure):
    return random_specs.column(rows(structure))  # hashed by its number: a column cannot be


def members(group):
    for structure in range(group, STRUCTURES, GROUPS):
        yield structure, drawn(structure), rows(structure)


def single():
    """One spec of each structure."""
    return [rows(structure)[0] for structure in range(STRUCTURES)]


def agree(column, ones, what, rel=1e-12):
    """Ints below 2^53 are exact at every index, whatever the array's type; others are close."""
    column = np.broadcast_to(np.asarray(column), len(ones)).tolist()
    for i, (many, one) in enumerate(zip(column, ones, strict=True)):
        if isinstance(one, int) and abs(one) < 2**53:
            assert many == one, (*what, i)
        else:
            assert math.isclose(many, one, rel_tol=rel), (*what, i, many, one)


# ---------------------------------------------------------------- one formula, two callers


def test_the_drawn_specs_cover_every_type_and_every_option_of_a_spec():
    """Each struct of the spec occurs; each bool, option and literal takes each of its values."""
    seen = {}
    for spec in single():
        for node in random_specs.walk(spec):
            for field in node.__struct_fields__:
                value = getattr(node, field)
                kind = "set" if isinstance(value, int | tuple) else value
                if isinstance(value, bool):
                    kind = value
                elif isinstance(value, Struct):
                    kind = type(value)
                seen.setdefault((type(node).__name__, field), set()).add(kind)
    assert {kind.__name__ for kind in seen["Branch", "module"]} == {
        "GroupedAttention", "LatentAttention", "LinearAttention", "GatedDelta", "KimiDelta",
        "Mamba1", "Mamba2", "Rwkv", "RgLru", "ShortConv", "TokenConv", "Projection", "Dense",
        "ChannelMix", "Experts", "Laurel", "PerLayerInput", "CompressedAttention",
    }  # fmt: skip
    assert len(seen["Block", "residual"]) == 5
    assert len(seen["GroupedAttention", "span"]) == 3
    assert len(seen["GroupedAttention", "position"]) == 5
    assert seen["QKNorm", "scope"] == {"head", "each_head", "width"}
    assert seen["GroupedAttention", "gate"] == {None, "head", "element"}
    assert seen["Router", "correction"] == {None, "buffer", "parameter"}
    for owner, field in [
        ("GroupedAttention", "qkv_bias"), ("GroupedAttention", "out_bias"),
        ("GroupedAttention", "causal"), ("GroupedAttention", "cross"),
        ("GroupedAttention", "sinks"), ("GroupedAttention", "shares_kv"),
        ("GroupedAttention", "key_is_value"), ("GroupedAttention", "d_value"),
        ("GroupedAttention", "d_input"), ("GroupedAttention", "qk_norm"),
        ("LatentAttention", "q_rank"), ("LatentAttention", "qkv_bias"),
        ("LatentAttention", "out_bias"), ("LatentAttention", "indexer"),
        ("LinearAttention", "gated"), ("LinearAttention", "norm"), ("Mamba1", "conv_bias"),
        ("Mamba1", "bias"), ("Mamba1", "inner_norm"), ("Mamba1", "n_select_head"),
        ("Mamba2", "conv_bias"), ("Mamba2", "in_bias"), ("Mamba2", "out_bias"), ("Mamba2", "norm"),
        ("KimiDelta", "gate_rank"), ("LinearAttention", "stored_decay"), ("Dense", "shared"),
        ("Dense", "adapter_rank"), ("GroupedAttention", "adapter_rank"),
        ("LatentAttention", "gate"), ("Experts", "latent_bias"), ("ShortConv", "bias"),
        ("Dense", "gated"), ("Dense", "in_bias"),
        ("Dense", "out_bias"), ("Experts", "gated"), ("Experts", "bias"), ("Experts", "shared"),
        ("Experts", "d_latent"), ("Router", "bias"),
        ("Router", "n_expert_group"), ("SharedExpert", "gate"), ("HyperConnections", "dynamic"),
        ("HyperConnections", "constrained"), ("CompressedAttention", "compress"),
        ("CompressedAttention", "overlap"), ("CompressedAttention", "indexer"),
        ("Experts", "n_zero"), ("Experts", "delayed"), ("GroupedAttention", "selector"),
        ("Router", "hashed"),
        ("Norm", "scale"), ("Norm", "bias"), ("Norm", "kind"), ("Branch", "pre"),
        ("Branch", "post"), ("Branch", "copies"), ("Block", "pre"), ("Block", "post"),
        ("Block", "after"), ("Embeddings", "position"), ("Embeddings", "d_embed"),
        ("Embeddings", "n_token_type"), ("Embeddings", "norm"), ("Embeddings", "project_bias"),
        ("Head", "bias"), ("Head", "project"), ("Spec", "tied"), ("Spec", "head"),
        ("Embeddings", "norm_last"), ("Embeddings", "audio"), ("LearnedPosition", "narrow"),
        ("Head", "transform"), ("Head", "buffer_bias"), ("Transform", "bias"),
        ("Transform", "norm"), ("GroupedAttention", "key_bias"), ("RelativeBias", "each_layer"),
        ("Disentangled", "norm"), ("Disentangled", "content_to_position"),
        ("Disentangled", "position_to_content"), ("Disentangled", "shared"),
        ("Disentangled", "key_bias"), ("Disentangled", "trimmed"), ("Spec", "encoder_embeddings"),
        ("GroupedAttention", "value_norm"), ("Dense", "sparsity"), ("Router", "norm"),
        ("Router", "expert_scale"), ("Layer", "stored_scale"), ("Stack", "altup"),
        ("Embeddings", "per_layer"),
        ("Spec", "encoder"), ("Spec", "max_context"), ("Stack", "final_norm"),
    ]:  # fmt: skip
        assert len(seen[owner, field]) == 2, (owner, field)
    runs = [run for spec in single() for run in spec.decoder.layout]
    assert any(run.n % len(run.pattern) for run in runs), "a cut cycle"
    assert any(run.n < len(run.pattern) for run in runs), "a cycle cut in its first round"
    assert STRUCTURES * ROWS >= 1000


@groups
def test_the_parameters_of_a_column_are_those_of_each_model(group):
    for structure, column, ones in members(group):
        many, each = parameters(column), [parameters(one) for one in ones]
        for name in ("total", "active", "body", "buffers", "active_body"):
            agree(getattr(many, name), [getattr(p, name) for p in each], (structure, name))
        for part in PARTS:
            agree(many.by_part[part], [p.by_part[part] for p in each], (structure, part))


@groups
def test_the_flops_of_a_column_are_those_of_each_model(group):
    for structure, column, ones in members(group):
        for work in WORKLOADS:
            many, each = operators(column, work), [operators(one, work) for one in ones]
            for convention in ("full", "unpadded", "causal", "palm"):
                agree(forward_flops(many, convention),
                      [forward_flops(ops, convention) for ops in each],
                      (structure, work, convention))  # fmt: skip


@groups
def test_the_cache_of_a_column_is_that_of_each_model(group):
    for structure, column, ones in members(group):
        for batch, context, dtype in ((1, 1, "bf16"), (3, 17, "fp8"), (7, 4096, "fp32"),
                                      (2, 2**21, "int4")):  # fmt: skip
            many = kv_cache(column, batch, context, dtype)
            each = [kv_cache(one, batch, context, dtype) for one in ones]
            for name in many.__struct_fields__:
                what = (structure, context, name)
                agree(getattr(many, name), [getattr(kv, name) for kv in each], what)


@groups
@pytest.mark.parametrize(("gpu", "dtype"), [("h100-sxm", "bf16"), ("mi300x", "fp8")])
def test_the_time_of_a_column_is_that_of_each_model(group, gpu, dtype):
    device = chip(gpu)
    for structure, column, ones in members(group):
        for work in (replace(w, dtype=dtype) for w in WORKLOADS[1:]):
            many = total_time(operators(column, work), work, device)
            each = [total_time(operators(one, work), work, device) for one in ones]
            for name in many.__struct_fields__:
                agree(getattr(many, name), [getattr(t, name) for t in each],
                      (structure, work, name), rel=1e-9)  # fmt: skip


@groups
def test_a_time_lies_between_its_bounds(group):
    """The lower bound is the roofline at the peak, the upper one compute and memory in turn."""
    for structure, column, _ in members(group):
        for work in WORKLOADS:
            t = total_time(operators(column, work), work, chip("a100"))
            assert np.all(t.lower_s > 0), structure
            assert np.all((t.lower_s <= t.value_s) & (t.value_s <= t.upper_s)), structure


@groups
def test_the_features_and_the_loss_of_a_column_are_those_of_each_model(group):
    priced = 0
    for structure, column, ones in members(group):
        routed = [parameters(one).by_part["experts"] == 0 for one in ones]
        if any(routed) and not all(routed):
            continue  # see the kind of layer that does not occur below
        many, each = features(column, 1e11), [features(one, 1e11) for one in ones]
        for name in many.__struct_fields__:
            values = [getattr(f, name) for f in each]
            if getattr(many, name) is None:
                assert values == [None] * ROWS, (structure, name)
            else:
                agree(getattr(many, name), values, (structure, name))
        for one in LAWS.values():
            losses = [one.loss(f) for f in each]
            agree(one.loss(many), losses, (structure, one.name), rel=1e-9)
        if any(0 in (f.mlp_parameters, f.attention_parameters) for f in each):
            continue  # no ratio to price; see the model without feed-forwards below
        priced += 1
        losses = [law("aspect").loss(f) for f in each]
        prices = prior_terms(many, np.array(losses))
        single_prices = [prior_terms(f, loss) for f, loss in zip(each, losses, strict=True)]
        for name in ("expected", "upper"):
            agree(getattr(prices, name), [getattr(p, name) for p in single_prices],
                  (structure, name), rel=1e-9)  # fmt: skip
    assert priced


@groups
@pytest.mark.parametrize("multiple", [1, 64])
def test_the_width_solved_for_a_column_is_that_of_each_model(group, multiple):
    solved = 0
    for structure, column, ones in members(group):
        for field in ("d_ff", "d_expert"):
            if not (has(column, field) and all(grows(one, field) for one in ones)):
                continue
            solved += 1
            wanted = [parameters(one).total * (i + 3) // 7 for i, one in enumerate(ones)]
            many = solve_width(column, np.array(wanted), multiple, field)
            each = [solve_width(one, n, multiple, field)
                    for one, n in zip(ones, wanted, strict=True)]  # fmt: skip
            agree(many, each, (structure, field))
    assert solved


def grows(spec, field):
    """Whether a width has weights: a kind of layer may be named and never occur."""
    return parameters(vary(spec, **{field: 2})).total > parameters(vary(spec, **{field: 1})).total


@pytest.mark.parametrize("convention", ["full", "causal", "palm"])
def test_a_column_does_not_wrap_at_two_million_tokens_of_context(convention):
    """Llama 3.1 405B at S = 2^21: attention alone is 126 · 128 · 256 · S² · 2 = 3.6e19 > 2^63,

    and its causal half 126 · 128 · 256 · S (S + 1) = 1.8e19 too.
    """
    ones = [llama(d_model=16384, n_layer=n, n_head=128, d_ff=53248) for n in (125, 126)]
    work = Workload("prefill", 1, 2**21)
    each = [forward_flops(operators(one, work), convention) for one in ones]
    assert all(value > 2**63 for value in each)
    agree(forward_flops(operators(random_specs.column(ones), work), convention), each, ())


def test_a_kind_of_layer_that_does_not_occur_leaves_the_features_of_a_column_as_they_are():
    """One dense layer of a model whose second layer would have experts, and two of its layers."""
    kinds = tuple(
        Layer(name, (Block((Branch(ATTENTION),)), Block((Branch(module),))))
        for name, module in (("dense", Dense(96)), ("moe", Experts(4, 2, 96)))
    )
    ones = [replace(model(), decoder=Stack(kinds, (Run(("dense", "moe"), n),))) for n in (1, 2)]
    many = features(random_specs.column(ones), 1e9)
    assert [features(one, 1e9).mlp_parameters is None for one in ones] == \
        [many.mlp_parameters is None] * 2  # fmt: skip


def test_a_model_without_feed_forwards_has_a_price():
    one = model(Block((Branch(ATTENTION),), pre=Norm()))
    assert prior_terms(features(one, 1e9), 2.8).expected >= 0


# ---------------------------------------------------------------- parameters


@groups
def test_every_part_is_the_sum_of_its_weights_and_the_parts_are_the_total(group):
    """Weights multiplied out here: shape × copies × experts, no alias, no buffer."""
    for _, _, ones in members(group):
        for one in ones:
            p, sizes = parameters(one), {}
            for t in tensors(one):
                key = "buffer" if t.buffer else "alias" if t.alias else t.part
                n = math.prod(t.shape) * t.copies * (1 if t.experts is None else t.experts)
                sizes[key] = sizes.get(key, 0) + n
            buffers, aliases = sizes.pop("buffer", 0), sizes.pop("alias", 0)
            assert {part: n for part, n in p.by_part.items() if n} == \
                {part: n for part, n in sizes.items() if n}  # fmt: skip
            assert p.total == sum(sizes.values())
            assert p.buffers == buffers
            assert p.body == p.total - sizes["embedding"] - sizes.get("lm_head", 0)
            assert p.active <= p.total
            assert bool(aliases) == (one.tied and one.head is not None)


WITHOUT_WEIGHTS = {
    (CompressedAttention, "window"), (BlockSelector, "index_block"),
    (BlockSelector, "index_top_k"), (BlockSelector, "n_local_block"),
    (Spec, "max_context"), (Window, "window"), (Chunk, "chunk"), (Indexer, "index_top_k"),
    (Experts, "top_k"), (Router, "n_expert_group"), (Router, "top_k_group"),
    (MixtureOfDepths, "capacity_permille"), (LinearAttention, "scan_chunk"),
    (GatedDelta, "scan_chunk"), (KimiDelta, "scan_chunk"), (Mamba2, "scan_chunk"),
}  # fmt: skip
"""Dimensions that say what is computed, not with what."""
MAY_REST = {(Branch, "copies"), (RelativeBias, "n_bucket"), (Run, "n"),
            (Disentangled, "n_relative")}  # fmt: skip
"""Copies beyond the occurrences, a bias only the first layer has, layers that share weights."""


def grown(node, occurs=True):
    """A tree once for each of its dimensions, that one doubled; and whether its layer occurs."""
    if isinstance(node, tuple):
        for i, item in enumerate(node):
            for owner, field, here, new in grown(item, occurs):
                yield owner, field, here, (*node[:i], new, *node[i + 1 :])
    elif isinstance(node, Struct):
        for field in node.__struct_fields__:
            value = getattr(node, field)
            if type(value) is int:
                yield node, field, occurs, replace(node, **{field: 2 * value})
            elif isinstance(node, Stack) and field == "kinds":
                names = node.expand()
                for i, kind in enumerate(value):
                    for owner, inner, here, new in grown(kind, kind.name in names):
                        kinds = (*value[:i], new, *value[i + 1 :])
                        yield owner, inner, here, replace(node, kinds=kinds)
            else:
                for owner, inner, here, new in grown(value, occurs):
                    yield owner, inner, here, replace(node, **{field: new})


@groups
def test_parameters_grow_with_every_dimension_that_has_weights(group):
    """More gate blocks split one block-diagonal matrix finer: n (d/n)² = d²/n falls.

    Heads of Mamba-1 share out the channels: the same sum where they divide them.
    """
    for structure, _, (one, *_) in members(group):
        before = parameters(one).total
        for owner, field, occurs, larger in grown(one):
            after, what = parameters(larger).total, (structure, owner, field)
            shared = isinstance(owner, GroupedAttention) and owner.shares_kv
            if (type(owner), field) in WITHOUT_WEIGHTS or not occurs:
                assert after == before, what
            elif field in {"n_gate_block", "n_select_head"}:
                assert after <= before, what
            elif (type(owner), field) in MAY_REST or (shared and field == "n_kv_head"):
                assert after >= before, what
            else:
                assert after > before, what


@groups
def test_a_tied_head_adds_only_its_bias_and_what_comes_before_it(group):
    for _, _, ones in members(group):
        for one in ones:
            if one.head is None:
                continue
            width = one.embeddings.d_embed or one.d_model
            bias = one.vocab_size if one.head.bias else 0
            before, inner = one.head.transform, width if one.head.project else one.d_model
            if before is not None:
                norm = before.norm or Norm(scale=False)
                bias += width * (inner + before.bias + norm.scale + norm.bias)
            tied, free = parameters(replace(one, tied=True)), parameters(replace(one, tied=False))
            assert tied.lm_head == bias
            assert free.total - tied.total == one.vocab_size * width


def test_shared_weights_count_once_and_work_every_time():
    """ALBERT: twelve layers, one set of weights; the layers' work is twelve times one layer's."""
    shared = model(
        Block((Branch(ATTENTION, pre=Norm(), copies=1),)),
        Block((Branch(Dense(96), pre=Norm(), copies=1),)), n=12,
    )  # fmt: skip
    one = vary(shared, n_layer=1)
    assert parameters(shared).total == parameters(one).total
    own = parameters(vary(shared, copies=12)).body - D
    assert own == 12 * (parameters(one).body - D)
    work = Workload("prefill", 2, 50)
    head = 2 * 50 * 2 * D * V
    twelve, single_layer = (forward_flops(operators(s, work)) - head for s in (shared, one))
    assert twelve == 12 * single_layer


def test_more_copies_than_layers_are_not_held():
    with_two = model(Block((Branch(Dense(96), copies=2),)), n=12)
    assert parameters(vary(with_two, n_layer=1)).by_part["ffn"] == 3 * D * 96
    assert parameters(with_two).by_part["ffn"] == 2 * 3 * D * 96


@groups
def test_the_solved_width_is_the_nearest_multiple(group):
    """Brute force: no multiple within eight steps, and not the least one, comes nearer."""
    for structure, _, ones in members(group):
        for i, one in enumerate(ones[:3]):
            for field, multiple in (("d_ff", 1), ("d_ff", 32), ("d_expert", 16)):
                if not (has(one, field) and grows(one, field)):
                    continue
                wanted = parameters(one).total * (2 * i + 1) // 2
                width = solve_width(one, wanted, multiple, field)
                assert width % multiple == 0
                near = range(max(multiple, width - 8 * multiple), width + 9 * multiple, multiple)
                miss = {f: abs(parameters(vary(one, **{field: f})).total - wanted)
                        for f in [multiple, *near]}  # fmt: skip
                assert miss[width] == min(miss.values()), (structure, field, multiple)


def test_the_width_solved_for_the_size_of_a_model_is_its_own():
    for one in single():
        if has(one, "d_ff") and grows(one, "d_ff"):
            alike = vary(one, d_ff=read(one, "d_ff"))
            assert solve_width(alike, parameters(alike).total) == read(one, "d_ff")


# ---------------------------------------------------------------- operators


def record(t):
    return (t.name, t.part, t.shape, t.copies, t.experts, t.top_k, t.buffer, t.alias)


@groups
def test_the_tensors_of_the_work_are_the_tensors_of_the_spec(group):
    """At any batch and context of prefill, and in the forward half of training."""
    for structure, _, (one, *_) in members(group):
        listed = [record(t) for t in tensors(one)]
        for work in (Workload("prefill", 3, 77), Workload("prefill", 1, 4, source_context=9),
                     Workload("train", 2, 33)):  # fmt: skip
            ops = [op for op in operators(one, work) if not op.backward]
            assert [record(t) for op in ops for t in op.tensors] == listed, structure
        decode = operators(one, Workload("decode", 1, 9))
        assert {record(t) for op in decode for t in op.tensors} <= set(listed), structure


def test_every_tensor_has_a_name_of_its_own():
    for one in single():
        names = [t.name for t in tensors(one)]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "blocks",
    [
        [(Dense(8), Experts(4, 2, 8))],  # Arctic: a dense FFN beside the experts, each normed
        [(GroupedAttention(4, 2, 16),), (GroupedAttention(4, 2, 8),)],
        [(GroupedAttention(4, 2, 16),), (Dense(8),), (GroupedAttention(4, 2, 16),), (Dense(8),)],
        [(Experts(4, 2, 8, shared=SharedExpert(8, gate=True)),)],  # Qwen2-MoE
        [(Mamba2(64, 4, 1, 16, 4, in_bias=True, out_bias=True),)],
    ],
    ids=["two FFNs", "two attentions", "twice attention and FFN", "shared gate", "Mamba-2 bias"],
)
def test_every_tensor_of_a_layer_that_repeats_a_name_has_one_of_its_own(blocks):
    one = model(*(Block(tuple(Branch(m, pre=Norm()) for m in modules)) for modules in blocks))
    names = [t.name for t in tensors(one)]
    assert len(set(names)) == len(names)


@groups
def test_training_is_three_forwards(group):
    """Each product y = x W becomes two of the same size, for x and for W."""
    for structure, _, ones in members(group):
        for one in ones:
            forward, train = (operators(one, Workload(phase, 3, 129)) for phase in
                              ("prefill", "train"))  # fmt: skip
            for kind in ("matmul", "attention"):
                one_way, both = (sum(op.flops() for op in ops if op.kind == kind)
                                 for ops in (forward, train))  # fmt: skip
                assert both == 3 * one_way, (structure, kind)


@groups
def test_masked_work_is_at_most_the_full(group):
    for structure, _, ones in members(group):
        for one, work in itertools.product(ones, WORKLOADS):
            ops = operators(one, work)
            for op in ops:
                assert 0 <= op.flops("causal") <= op.flops(), (structure, op.name)
            assert 0 < forward_flops(ops, "causal") <= forward_flops(ops, "full")


@groups
def test_flops_grow_in_proportion_to_the_batch(group):
    """But a table of relative positions is projected once for all sequences."""
    for _, _, (one, *_) in members(group):
        for phase in ("prefill", "decode", "train"):
            few, many = (forward_flops(operators(one, Workload(phase, batch, 100)))
                         for batch in (1, 7))  # fmt: skip
            table = any(isinstance(node, Disentangled) for node in random_specs.walk(one))
            assert many <= 7 * few if table else many == 7 * few


@groups
def test_a_cache_grows_with_the_context_and_with_pages(group):
    """Held bytes never exceed what whole pages of 16 tokens without windows reserve."""
    for _, _, ones in members(group):
        for one in ones:
            if one.encoder is not None:  # its keys and values grow with the source
                continue
            sizes = [kv_cache(one, 2, context) for context in (1, 16, 100, 5000)]
            for few, more in itertools.pairwise(sizes):
                assert few.bytes <= more.bytes
                assert few.state_bytes == more.state_bytes
            assert all(kv.state_bytes <= kv.bytes <= kv.allocated_bytes for kv in sizes)
            assert all(kv.bytes_per_token == sizes[0].bytes_per_token for kv in sizes)


def test_the_cache_of_cross_attention_holds_the_source():
    """Keys and values of 2 heads of 16, bf16, at 2 layers and 100 source tokens: 25,600 bytes."""
    cross = replace(ATTENTION, cross=True)
    encoder = Stack((Layer("layer", (Block((Branch(Dense(8)),)),)),), (Run(("layer",), 1),))
    one = replace(model(Block((Branch(cross),)), n=2), encoder=encoder)
    assert kv_cache(one, 1, 100).bytes == 2 * 2 * 16 * 2 * 2 * 100


def test_only_the_relative_bias_is_kept_to_the_first_layer():
    """Four layers of four heads have 4 × 4 sinks; one bias of 32 buckets × 4 heads a stack."""
    attention = replace(ATTENTION, sinks=True, position=RelativeBias(32))
    found = {t.name.rpartition(".")[2]: t.copies for t in
             tensors(model(Block((Branch(attention),)), n=4))}  # fmt: skip
    assert found["relative_bias"] == 1
    assert found["sinks"] == 4


# ---------------------------------------------------------------- masks


def mask(queries, keys, window=None, chunk=None, causal=True):
    """An attention mask spelt out: queries stand at the last positions of the keys."""
    q, k = np.arange(keys - queries, keys)[:, None], np.arange(keys)[None, :]
    seen = np.ones((queries, keys), dtype=bool)
    if causal:
        seen &= k <= q
    if window is not None:
        seen &= k > q - window
    if chunk is not None:
        seen &= k // chunk == q // chunk
    return int(seen.sum())


lengths = st.tuples(st.integers(1, 70), st.integers(0, 70)).map(lambda n: (n[0], sum(n)))
"""Queries, and at least as many keys."""


@fixed
@given(lengths, st.none() | st.integers(1, 150))
def test_visible_pairs_are_the_ones_of_the_mask(lengths, window):
    queries, keys = lengths
    assert visible_pairs(queries, keys, window, causal=True) == mask(queries, keys, window)
    assert visible_pairs(queries, keys, None, causal=False) == queries * keys


@fixed
@given(lengths, st.integers(1, 150))
def test_chunked_pairs_are_the_ones_of_the_mask(lengths, chunk):
    queries, keys = lengths
    assert chunked_pairs(queries, keys, chunk) == mask(queries, keys, chunk=chunk)


@fixed
@given(st.lists(st.tuples(lengths, st.integers(1, 150)), min_size=1, max_size=9))
def test_pairs_of_a_column_are_those_of_the_masks(rows):
    queries, keys = (np.array([row[0][i] for row in rows]) for i in (0, 1))
    limit = np.array([row[1] for row in rows])
    windows = [mask(*both, window=n) for both, n in rows]
    chunks = [mask(*both, chunk=n) for both, n in rows]
    assert visible_pairs(queries, keys, limit, causal=True).tolist() == windows
    assert chunked_pairs(queries, keys, limit).tolist() == chunks


@pytest.mark.parametrize(
    ("span", "options"), [(Full(), {}), (Window(5), {"window": 5}), (Chunk(6), {"chunk": 6})]
)
@pytest.mark.parametrize(("phase", "queries"), [("prefill", 23), ("decode", 1), ("train", 23)])
def test_the_core_of_attention_sees_what_its_mask_lets_through(span, options, phase, queries):
    one = model(Block((Branch(replace(ATTENTION, span=span)),)))
    ops = operators(one, Workload(phase, 2, 23))
    (core,) = (op for op in ops if op.kind == "attention" and not op.backward)
    assert core.visible == mask(queries, 23, **options)
    assert core.flops("causal") == 2 * core.visible * 2 * 16 * 4 * 2 * 3  # H 4, batch 2, L 3


# ---------------------------------------------------------------- layouts, readers, arithmetic


patterns = st.lists(st.sampled_from("abc"), min_size=1, max_size=6)
runs = st.lists(st.builds(Run, patterns.map(tuple), st.integers(1, 30)), min_size=1, max_size=4)


@fixed
@given(runs)
def test_the_layers_of_each_kind_are_as_many_as_the_walk_meets(layout):
    stack = Stack((), tuple(layout))
    walked = [run.pattern[i % len(run.pattern)] for run in layout for i in range(run.n)]
    assert list(stack.expand()) == walked
    named = {kind for run in layout for kind in run.pattern}
    assert stack.occurrences() == {kind: walked.count(kind) for kind in named}
    assert stack.n_layer == len(walked)


@fixed
@given(patterns, st.lists(st.integers(1, 50), min_size=1, max_size=8))
def test_the_slots_of_a_column_of_runs_are_counted_like_those_of_each(pattern, depths):
    many = Run(tuple(pattern), np.array(depths)).occurrences()
    for i, n in enumerate(depths):
        walked = [j % len(pattern) for j in range(n)]
        assert [slot[i] for slot in many] == [walked.count(j) for j in range(len(pattern))]


cycles = st.builds(
    lambda prefix, cycle, n: (prefix + cycle * n)[: len(prefix) + n + 2],
    st.lists(st.sampled_from("abc"), max_size=3), patterns, st.integers(1, 9),
)  # fmt: skip


@fixed
@given(cycles | st.lists(st.sampled_from("abcd"), min_size=1, max_size=40))
@example(["a"])
def test_a_squeezed_list_of_kinds_expands_to_itself(kinds):
    assert list(Stack((), squeeze(kinds, len(kinds))).expand()) == kinds


@pytest.mark.parametrize(
    ("text", "words"),
    [("llllg" * 5 + "ll", 5), ("dmmmmmmm", 2), ("dddmmmmm", 2), ("ab" * 20 + "a", 2), ("a" * 9, 1)],
)
def test_a_squeezed_list_of_kinds_is_as_short_as_its_prefix_and_cycle(text, words):
    """Gemma 3's five to one, DeepSeek's dense first layers, a cut alternation, one kind."""
    assert sum(len(run.pattern) for run in squeeze(list(text), len(text))) == words


@groups
def test_what_was_varied_is_read_and_what_is_read_varies_nothing(group):
    for _, _, (one, *_) in members(group):
        for field, value in dimensions(one).items():
            assert read(vary(one, **{field: value + 1}), field) == value + 1, field
            again = vary(one, **{field: value})
            assert read(again, field) == value
            values = {getattr(node, field) for node in random_specs.walk(one)
                      if field in node.__struct_fields__} - {None}  # fmt: skip
            if values <= {value}:
                assert again == one, field


@fixed
@given(st.integers(0, 10**15), st.integers(1, 10**6))
def test_integer_arithmetic_is_that_of_its_definition_on_ints_and_arrays(a, b):
    up = ceil_div(a, b)
    assert up * b >= a > (up - 1) * b
    assert round_up(a, b) == up * b
    assert ceil_div(np.array([a]), np.array([b])).tolist() == [up]
    assert round_up(np.array([a]), b).tolist() == [up * b]
    assert (minimum(np.array([a]), b).tolist(), maximum(a, np.array([b])).tolist()) == \
        ([min(a, b)], [max(a, b)])  # fmt: skip


# ---------------------------------------------------------------- models to derive values of

D, V = 64, 1000
ATTENTION = GroupedAttention(n_head=4, n_kv_head=2, d_head=16)


def model(*blocks, n=3):
    stack = Stack((Layer("layer", blocks),), (Run(("layer",), n),))
    return Spec(d_model=D, vocab_size=V, decoder=stack)


def llama(**changes):
    attention = GroupedAttention(1, 8, 128, position=Rope(), qk_norm=QKNorm())
    blocks = (Block((Branch(attention),), pre=Norm()), Block((Branch(Dense(1)),), pre=Norm()))
    return replace(vary(model(*blocks), **changes), vocab_size=128_256)


def test_hyper_connections_start_with_a_read_and_a_write_weight_a_stream():
    """Static weights of n streams: B is n, A is n × (n + 1) (Zhu et al. 2024, section 2.1)."""
    plain = Block((Branch(Dense(96)),))
    static = replace(plain, residual=HyperConnections(4, dynamic=False))
    assert parameters(model(static)).total - parameters(model(plain)).total == 3 * (4 + 4 * 5)
