"""Which splits are valid, why others are not, and what one rank holds of a split model."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from scantling import catalog
from scantling.costs.count import parameters
from scantling.costs.parallel import (
    kv_replication,
    nearest_change,
    padded_heads,
    padded_vocab,
    placed_operators,
    problems,
    rank_operators,
    split_layers,
    stage_layers,
    ulysses_degrees,
    uneven,
    valid_degrees,
    valid_ep,
)
from scantling.hardware import cluster
from scantling.ops import operators
from scantling.spec import Workload, vary
from scantling.spec.plan import Plan

LLAMA = catalog.model("llama-3.1-8b")
DEEPSEEK = catalog.model("deepseek-v3")
MIXTRAL = catalog.model("mixtral-8x7b")
GEMMA = catalog.model("gemma-3-27b")
FEW = ["llama-3.1-8b", "deepseek-v3", "gemma-3-27b", "qwen3-30b-a3b", "falcon-7b", "mixtral-8x7b"]


def held(spec, plan, stage=0):
    """Parameters on one rank of a stage."""
    ops = rank_operators(spec, plan, 4096, stage)
    return sum(t.size() for op in ops for t in op.tensors if not t.alias and not t.buffer)


def reasons(spec, plan, context=8192):
    n = plan.tp * plan.pp * plan.dp * plan.cp
    found = problems(spec, plan, cluster("h100-sxm", n, gpus_per_node=1), context)
    return [p.reason for p in found]


# ---------------------------------------------------------------- what a rank holds


@pytest.mark.parametrize("name", FEW)
def test_one_rank_of_no_split_runs_the_model_itself(name):
    spec = catalog.model(name)
    whole = operators(spec, Workload("prefill", 1, 4096))
    own = rank_operators(spec, Plan(), 4096)

    assert sum(op.flops() for op in own) == sum(op.flops() for op in whole)
    assert held(spec, Plan()) == parameters(spec).total


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize(("pp", "virtual"), [(2, 1), (3, 1), (4, 2), (8, 1)])
def test_the_stages_of_a_pipeline_hold_every_layer_once(name, pp, virtual):
    stack = catalog.model(name).decoder
    plan = Plan(pp=pp, virtual=virtual)
    total: dict[str, int] = {}
    for stage in range(pp):
        for kind, n in stage_layers(stack, plan, stage).items():
            total[kind] = total.get(kind, 0) + n

    assert total == stack.occurrences()


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3", "qwen3-30b-a3b"])
def test_the_stages_of_a_pipeline_hold_every_parameter_once(name):
    spec = catalog.model(name)

    assert sum(held(spec, Plan(pp=4), s) for s in range(4)) == parameters(spec).total


def test_a_tied_head_is_a_second_copy_on_the_last_stage():
    spec = catalog.model("gpt2")

    both = sum(held(spec, Plan(pp=2), s) for s in range(2))

    assert both == parameters(spec).total + 50257 * 768


def test_tensor_parallel_ranks_of_llama_hold_an_eighth_of_each_product():
    """(q 32 + k, v 2 × 8 heads of 128 + o) / 8, FFN / 8, vocabulary / 8; norms whole."""
    layer = 4096 * (4096 + 2 * 1024) // 8 + 4096 * 4096 // 8 + 3 * 4096 * 14336 // 8
    norms = 2 * 4096
    outside = 2 * 128256 * 4096 // 8 + 4096

    assert held(LLAMA, Plan(tp=8)) == 32 * (layer + norms) + outside


def test_beyond_the_kv_heads_each_rank_keeps_one():
    """16 ranks, 8 KV heads: each head is held twice, so k and v weights are as on 8 ranks."""
    qkv = next(op for op in rank_operators(LLAMA, Plan(tp=16), 4096) if op.name.endswith("qkv"))

    assert qkv.n == (32 // 16 + 2 * 1) * 128


def test_the_latent_of_mla_is_whole_on_every_rank():
    ops = {op.name: op for op in rank_operators(DEEPSEEK, Plan(tp=8), 4096)}

    assert ops["decoder.moe.attention.down"].n == 1536 + 512 + 64
    assert ops["decoder.moe.attention.q_up"].n == 128 // 8 * (128 + 64)
    assert ops["decoder.moe.attention.core"].cache.per_token == 512 + 64


def test_experts_are_spread_and_pass_as_many_tokens_as_are_sent():
    """8 experts over EP 8 with TP 2: one a rank; top-2 of half of the tokens each."""
    plan = Plan(tp=2, dp=4, ep=8, expert_tp=1)
    up = next(op for op in rank_operators(MIXTRAL, plan, 4096) if op.name.endswith("experts_up"))

    assert all(t.experts == 1 for t in up.tensors)
    assert (up.m, up.n, up.k) == (2048, 2 * 14336, 4096)
    assert up.repeat == 32 * 2


def test_flops_of_all_ranks_sum_to_those_of_the_model():
    """Heads, FFN and vocabulary divide by 2 × 4, so no work is added or lost."""
    whole = sum(op.flops() for op in operators(LLAMA, Workload("prefill", 1, 4096)))
    plan = Plan(tp=2, pp=4, cp=2)

    ranks = sum(op.flops() for s in range(4) for op in rank_operators(LLAMA, plan, 4096, s))

    assert ranks * plan.tp * plan.cp == whole


def test_context_parallel_ranks_see_all_keys_and_share_the_visible_pairs():
    whole = next(p.op for p in placed_operators(LLAMA, Plan(), 4096) if p.op.kind == "attention")
    half = next(p.op for p in placed_operators(LLAMA, Plan(cp=2), 4096) if p.op.kind == "attention")

    assert (half.m, half.n) == (2048, 4096)
    assert half.visible * 2 == whole.visible


def test_what_all_heads_share_runs_on_a_share_of_the_tokens_by_sequence():
    with_sp = {p.op.name: p.op.m for p in placed_operators(LLAMA, Plan(tp=4), 4096)}
    without = placed_operators(LLAMA, Plan(tp=4, sequence_parallel=False), 4096)

    assert with_sp["decoder.layer.attention.pre_norm"] == 1024
    assert with_sp["decoder.layer.attention.qkv"] == 4096
    assert {p.op.m for p in without} == {4096}


def test_a_column_of_specs_splits_as_its_members_do():
    layers = np.array([30, 32, 45])
    widths = np.array([11008, 14336, 28672])
    column = vary(LLAMA, n_layer=layers, d_ff=widths)
    plan = Plan(tp=4, pp=4)
    for stage in range(4):
        found = held(column, plan, stage)
        for i in range(3):
            one = vary(LLAMA, n_layer=int(layers[i]), d_ff=int(widths[i]))
            assert held(one, plan, stage) == found[i]


# ---------------------------------------------------------------- rules


@pytest.mark.parametrize(
    ("spec", "plan", "said"),
    [
        (LLAMA, Plan(tp=6), "32 heads cannot be split over TP 6"),
        (vary(LLAMA, n_head=48, n_kv_head=8), Plan(tp=6), "8 KV heads cannot be split over TP 6"),
        (vary(LLAMA, d_ff=14337), Plan(tp=8), "14337 FFN columns cannot be split over TP 8"),
        (MIXTRAL, Plan(dp=6, ep=6), "8 experts cannot be split over EP 6"),
        (LLAMA, Plan(dp=2, ep=2), "EP 2 needs experts"),
        (MIXTRAL, Plan(dp=4, ep=8), "EP 8 × expert TP 1 does not divide the 4 ranks"),
        (LLAMA, Plan(pp=64), "32 layers cannot fill 64 pipeline chunks"),
        (LLAMA, Plan(pp=4, virtual=3, n_micro_batch=4), "cannot be cut into pp 4 × virtual 3"),
        (LLAMA, Plan(pp=4, virtual=2, n_micro_batch=6), "6 micro-batches are no multiple of the 4"),
        (LLAMA, Plan(pp=2, dp=2, zero=3, n_micro_batch=8), "ZeRO-3 with 2 pipeline stages"),
        (LLAMA, Plan(cp=3), "8192 tokens cannot be cut into the 6 chunks that CP 3 needs"),
        (
            LLAMA, Plan(cp=3, ulysses=True),
            "32 heads and 8 KV heads of a rank cannot be exchanged over CP 3",
        ),
        (LLAMA, Plan(dp=8, shard=3), "8 data-parallel ranks cannot be cut into groups of 3"),
        (LLAMA, Plan(tp=0), "tp is 0; it must be at least 1"),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_run_is_refused_with_the_numbers(spec, plan, said):
    if plan.tp < 1:
        found = [p.reason for p in problems(spec, plan, cluster("h100-sxm", 8), 8192)]
    else:
        found = reasons(spec, plan)

    assert any(said in reason for reason in found), found


@pytest.mark.parametrize(
    ("spec", "plan"),
    [
        (LLAMA, Plan(tp=8, pp=4, dp=2, n_micro_batch=8)),
        (LLAMA, Plan(tp=16)),
        (DEEPSEEK, Plan(pp=16, dp=64, ep=64)),
        (GEMMA, Plan(tp=16, cp=2)),
        (LLAMA, Plan(tp=2, cp=4, ulysses=True)),
        (vary(LLAMA, n_layer=30), Plan(pp=4)),
    ],
)
def test_a_plan_that_runs_has_no_problem(spec, plan):
    assert reasons(spec, plan) == []


def test_chips_must_be_as_many_as_the_degrees_make():
    found = problems(LLAMA, Plan(tp=4, dp=2), cluster("h100-sxm", 16), 8192)

    assert found[0].reason == "tp × pp × dp × cp is 8, not 16"


def test_degrees_come_from_the_shape():
    found = valid_degrees(catalog.model("mixtral-8x7b"))

    assert found.tp == [1, 2, 4, 8, 16, 32]
    assert found.ep == [1, 2, 4, 8]
    assert found.pp == [1, 2, 4, 8, 16, 32]


def test_every_degree_that_is_listed_passes_the_rules():
    for name in FEW:
        spec = catalog.model(name)
        for tp in valid_degrees(spec, 64).tp:
            assert not [r for r in reasons(spec, Plan(tp=tp, sequence_parallel=False)) if "TP" in r]


def test_the_nearest_change_makes_the_degree_valid():
    for name, field, degree in [
        ("qwen2.5-7b", "tp", 8), ("llama-3.1-8b", "tp", 6), ("qwen2.5-7b", "pp", 8),
        ("gemma-3-27b", "tp", 12), ("mixtral-8x7b", "ep", 6),
    ]:  # fmt: skip
        spec = catalog.model(name)
        changed = vary(spec, **nearest_change(spec, field, degree))
        assert degree in getattr(valid_degrees(changed), field), (name, field, degree)


def test_a_valid_degree_needs_no_change():
    assert nearest_change(LLAMA, "tp", 8) == {}
    assert nearest_change(LLAMA, "pp", 4) == {}


def test_padding_of_heads_and_vocabulary():
    assert padded_heads(32, 5).heads == 35
    assert padded_heads(32, 8).waste == 0
    assert padded_vocab(32000, 2, 128) == 32000
    assert padded_vocab(32002, 2, 128) == 32256


def test_key_value_heads_of_a_rank():
    assert kv_replication(2, 8).copies == 4
    assert kv_replication(8, 8).copies == 1
    assert kv_replication(16, 8).per_rank == 2


def test_sequence_and_expert_degrees():
    assert ulysses_degrees(32, 32) == [1, 2, 4, 8, 16, 32]
    assert valid_ep(160, 16) == [1, 2, 4, 8, 16]


def test_an_uneven_pipeline_is_told():
    assert split_layers(46, 4).stages == (12, 12, 11, 11)
    assert "12, 12, 11, 11" in uneven(vary(LLAMA, n_layer=46), Plan(pp=4))
    assert not uneven(LLAMA, Plan(pp=4))


def test_hybrid_sharding_is_a_group_of_the_data_ranks():
    assert Plan(dp=16, shard=8).zero_ranks == 8
    assert reasons(LLAMA, replace(Plan(dp=16, zero=3), shard=8)) == []
