"""What a rank holds while it trains: formulas of papers and measured tables."""

from __future__ import annotations

import csv
import statistics

import numpy as np
import pytest
from msgspec.structs import replace

import random_specs
from scantling import catalog
from scantling.costs.activations import kept
from scantling.costs.adapters import adapted, packed_bytes
from scantling.costs.count import parameters
from scantling.costs.fit import fits, largest, longest_context, notes, room, smallest_memory
from scantling.costs.memory import (
    in_flight,
    live_logits,
    logits_bytes,
    stage_peaks,
    states,
    training_memory,
)
from scantling.costs.ranks import placed_operators
from scantling.costs.resident import resident_memory
from scantling.hardware import chip
from scantling.sources import sources
from scantling.spec import vary
from scantling.spec.plan import Adapter, Plan, Prompt, Recipe
from scantling.validate import memory as tables
from scantling.validate.table import TABLES, NotScoredError, Scored, scores

GIB = 2**30
LLAMA = catalog.model("llama-3.1-8b")
LLAMA2 = catalog.model("llama-2-7b")
MIXTRAL = catalog.model("mixtral-8x7b")
PURE = Recipe(weights="bf16", gradients="bf16", master=None, moments="bf16")


def layers_of(spec, plan, recipe, context):
    ops = placed_operators(spec, plan, context)
    return kept(ops, spec.d_model, plan, recipe, plan.micro_batch * context).layers


def bytes_per_parameter(recipe, plan):
    held = states(placed_operators(LLAMA2, plan, 1), plan, recipe)
    return held.total / parameters(LLAMA2).total


# ---------------------------------------------------------------- Korthikanti et al. 2022


@pytest.mark.parametrize(
    ("sequence_parallel", "recompute", "whole", "shared", "scores_kept"),
    [
        (False, "none", 10, 24, True),
        (True, "none", 0, 34, True),
        (False, "selective", 10, 24, False),
        (True, "selective", 0, 34, False),
        (False, "full", 2, 0, False),
        (True, "full", 0, 2, False),
    ],
)
@pytest.mark.parametrize(
    ("a", "h", "n_layer", "b", "t"),
    [(64, 6144, 48, 4, 8), (96, 12288, 96, 1, 4), (16, 2048, 7, 3, 1)],
)
def test_activations_of_a_gpt_are_the_published_formulas(
    sequence_parallel, recompute, whole, shared, scores_kept, a, h, n_layer, b, t
):
    """s b h L (whole + shared / t + 5 a s / (h t)), table 2 of the paper."""
    s = 2048
    plan = Plan(tp=t, micro_batch=b, sequence_parallel=sequence_parallel, recompute=recompute)
    quadratic = 5 * a * s / (h * t) if scores_kept else 0

    found = layers_of(tables.gpt(h, a, n_layer), plan, tables.PAPER, s)

    expected = s * b * h * n_layer * (whole + shared / t + quadratic)
    assert found == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(("p", "m"), [(8, 3), (4, 2), (16, 6)])
def test_interleaving_keeps_a_factor_more(p, m):
    """Section 4.2.3: 1 + (p − 1) / (p m) times what one pass through all layers keeps."""
    spec, context = tables.gpt(2048, 16, p * m), 512
    plan = Plan(pp=p, virtual=m, n_micro_batch=4 * p)

    found = tables.first_stage_activations(spec, plan, tables.PAPER, context)
    whole = layers_of(spec, Plan(), tables.PAPER, context)

    assert found == pytest.approx(whole * (1 + (p - 1) / (p * m)), rel=1e-12)


def test_plain_1f1b_keeps_all_layers_once_on_the_first_stage_and_1_pth_on_the_last():
    spec, plan = tables.gpt(2048, 16, 8), Plan(pp=4, n_micro_batch=8)
    whole = layers_of(spec, Plan(), tables.PAPER, 512)
    by_stage = []
    for stage in range(4):
        ops = placed_operators(spec, plan, 512, stage)
        left = replace(kept(ops, 2048, plan, tables.PAPER, 512), outside=0)
        by_stage.append(in_flight(plan, stage, left) / whole)

    assert by_stage == [1, 3 / 4, 2 / 4, 1 / 4]


def test_no_more_micro_batches_wait_than_there_are():
    left = kept(placed_operators(LLAMA, Plan(pp=4), 512), 4096, Plan(pp=4), Recipe(), 512)

    assert in_flight(Plan(pp=4, n_micro_batch=2), 0, left) == in_flight(
        Plan(pp=4, n_micro_batch=8), 2, left
    )


def test_layers_computed_again_keep_their_input_the_others_everything():
    none = layers_of(LLAMA, Plan(), Recipe(), 4096)
    full = layers_of(LLAMA, Plan(recompute="full"), Recipe(), 4096)
    some = layers_of(LLAMA, Plan(recompute="full", recompute_layers=8), Recipe(), 4096)

    assert full == 32 * 4096 * 4096 * 2
    assert some == (8 * full + 24 * none) / 32


def test_a_cache_may_keep_the_keys_of_every_query_head():
    """80 layers × (64 − 8) heads × 128 × 2 × 2 bytes more a token."""
    spec = catalog.model("llama-2-70b")

    found = [resident_memory(spec, context=100, cache_heads=n).cache for n in (None, 64)]

    assert found[1] - found[0] == 100 * 80 * (64 - 8) * 128 * 2 * 2


# ---------------------------------------------------------------- states


@pytest.mark.parametrize(
    ("recipe", "each"),
    [
        (Recipe(), 2 + 4 + 4 + 8),
        (Recipe(gradients="bf16"), 16),
        (Recipe(weights="fp32", master=None), 16),
        (PURE, 8),
        (replace(PURE, optimizer="adamw8bit"), 6),
        (replace(PURE, optimizer="sgd"), 4),
        (replace(PURE, optimizer="none"), 2),
    ],
)
def test_bytes_of_a_parameter_by_optimizer_and_dtypes(recipe, each):
    assert bytes_per_parameter(recipe, Plan(zero=0)) == each


def test_adafactor_keeps_a_row_and_a_column_of_each_matrix():
    """Llama-2-7B: 32 layers of 4 × (4096 + 4096) and 3 × (4096 + 11008), two of 32000 + 4096."""
    recipe = Recipe(gradients="bf16", master=None, optimizer="adafactor")
    factors = 32 * (4 * 8192 + 3 * 15104) + 2 * 36096 + 65 * 4096

    held = states(placed_operators(LLAMA2, Plan(), 1), Plan(zero=0), recipe)

    assert held.optimizer == pytest.approx(4 * factors)


def test_muon_keeps_one_moment_of_the_matrices_of_layers():
    """Embedding, head and norms keep Adam's two."""
    recipe = Recipe(master=None, optimizer="muon")
    n = parameters(LLAMA2).total
    others = 2 * 32000 * 4096 + 65 * 4096

    held = states(placed_operators(LLAMA2, Plan(), 1), Plan(zero=0), recipe)

    assert held.optimizer == 4 * (n + others)


@pytest.mark.parametrize(("zero", "each"), [(0, 18), (1, 6 + 12 / 8), (2, 2 + 16 / 8), (3, 18 / 8)])
def test_zero_shares_optimizer_then_gradients_then_weights(zero, each):
    assert bytes_per_parameter(Recipe(), Plan(dp=8, zero=zero)) == pytest.approx(each)


def test_hybrid_sharding_shares_among_its_group_only():
    assert bytes_per_parameter(Recipe(), Plan(dp=64, zero=3, shard=8)) == pytest.approx(18 / 8)


def test_experts_are_shared_by_fewer_ranks_than_the_rest():
    """EP 8 of 8 ranks: nobody else holds a rank's expert, so its optimizer states stay whole."""
    plan = Plan(dp=8, ep=8, expert_tp=1)
    expert = 32 * 3 * 4096 * 14336  # one a layer
    dense = parameters(MIXTRAL).total - 8 * expert

    held = states(placed_operators(MIXTRAL, plan, 1), plan, Recipe())

    assert held.weights + held.gradients == 6 * (expert + dense)
    assert held.optimizer == 12 * (expert + dense / 8)


def test_offload_leaves_the_optimizer_to_the_host():
    held = states(placed_operators(LLAMA2, Plan(), 1), Plan(dp=8, zero=3), Recipe(offload=True))

    assert held.optimizer == held.gradients == 0


def test_replicated_kv_heads_cost_their_memory():
    """16 ranks, 8 KV heads: k and v are held 16 times one head instead of 8."""
    plan = Plan(tp=16, zero=0)
    held = states(
        placed_operators(LLAMA, plan, 1), plan, Recipe(optimizer="none", gradients="bf16")
    )
    extra = 32 * 2 * 8 * 128 * 4096

    norms = 15 * 65 * 4096
    assert held.weights * 16 == 2 * (parameters(LLAMA).total + extra + norms)


# ---------------------------------------------------------------- the peak


def test_the_peak_is_the_largest_moment_never_their_sum():
    plan, recipe = Plan(tp=2, pp=2, n_micro_batch=4), Recipe()
    moments = [m for s in range(2) for m in stage_peaks(LLAMA, plan, recipe, 8192, s)]

    found = training_memory(LLAMA, plan, recipe, 8192)

    assert found.total == max(m.total for m in moments)
    assert {m.moment for m in moments} == {"backward", "loss", "head", "optimizer step"}
    parts = found.states + found.activations + found.logits + found.buffers
    assert found.total == parts


def test_more_of_anything_never_needs_less():
    base = training_memory(LLAMA, Plan(), Recipe(), 4096).total

    assert training_memory(LLAMA, Plan(micro_batch=2), Recipe(), 4096).total > base
    assert training_memory(LLAMA, Plan(), Recipe(), 8192).total > base
    assert training_memory(LLAMA, Plan(tp=2), Recipe(), 4096).total < base
    assert training_memory(LLAMA, Plan(recompute="full"), Recipe(), 4096).total < base
    assert training_memory(LLAMA, Plan(), Recipe(fused_loss=True), 4096).total < base


def test_a_fused_loss_holds_one_copy_a_plain_one_three_more_in_the_losses_dtype():
    assert live_logits(Recipe(fused_loss=True)) == 2
    assert live_logits(Recipe()) == 2 + 3 * 4
    assert live_logits(Recipe(logits="bf16")) == 2 + 3 * 2


def test_one_copy_of_the_logits():
    assert logits_bytes(32768, 151936) == 32768 * 151936 * 4
    assert logits_bytes(4096, 128256, "bf16") / GIB == 4096 * 128256 * 2 / GIB


def test_foreach_takes_one_more_copy_at_the_step():
    def step(recipe):
        found = stage_peaks(LLAMA2, Plan(zero=0), recipe, 16, 0)
        return next(m.total for m in found if m.moment == "optimizer step")

    copy = step(replace(PURE, foreach=True)) - step(PURE)

    assert copy == 2 * parameters(LLAMA2).total


def test_gathered_layers_do_not_shrink_with_more_ranks():
    found = [
        training_memory(LLAMA2, Plan(dp=n, zero=3), Recipe(offload=True), 512) for n in (2, 4, 64)
    ]

    assert len({m.buffers for m in found}) == 1
    assert len({m.activations for m in found}) == 1


def test_buckets_and_weights_on_the_host_count_as_they_are():
    plan = Plan(dp=8, zero=3)
    plain = training_memory(LLAMA2, plan, Recipe(offload=True), 512)
    buckets = training_memory(LLAMA2, plan, Recipe(offload=True, bucket_elements=10**9), 512)
    away = training_memory(LLAMA2, plan, Recipe(offload=True, offload_weights=True), 512)

    assert buckets.total - plain.total == 2 * 10**9
    assert plain.total - away.total == plain.weights == 2 * parameters(LLAMA2).total / 8


def test_an_exchange_of_heads_keeps_the_output_of_attention_twice():
    ring, exchange = Plan(cp=4), Plan(cp=4, ulysses=True)
    more = layers_of(LLAMA, exchange, Recipe(), 8192) - layers_of(LLAMA, ring, Recipe(), 8192)

    assert more == 32 * 8192 / 4 * 4096 * 2


def test_an_activation_whose_gradient_is_written_in_place_needs_less():
    plan = Plan(recompute="full")
    two = (Recipe(in_place=n, chunked_loss=True) for n in (False, True))
    apart, in_place = (training_memory(LLAMA, plan, recipe, 8192).total for recipe in two)

    assert apart - in_place == 8192 * 14336 * 2


def test_a_column_of_specs_needs_what_its_members_do():
    layers, widths = np.array([8, 32, 80, 30]), np.array([2048, 4096, 8192, 3072])
    column = vary(LLAMA, n_layer=layers, d_model=widths, d_ff=widths * 3)
    plans = [
        Plan(tp=2, pp=4, n_micro_batch=8), Plan(dp=8, zero=3, recompute="full"),
        Plan(pp=3, recompute="products"), Plan(tp=4, cp=2, recompute="full", recompute_layers=3),
    ]  # fmt: skip
    for plan in plans:
        found = training_memory(column, plan, Recipe(), 4096)
        for i in range(4):
            one = vary(
                LLAMA, n_layer=int(layers[i]), d_model=int(widths[i]), d_ff=int(widths[i]) * 3
            )
            alone = training_memory(one, plan, Recipe(), 4096)
            assert found.total[i] == pytest.approx(alone.total, rel=1e-12)
            assert found.moment[i] == alone.moment


@pytest.mark.parametrize("first", range(8))
def test_columns_of_every_kind_of_spec_need_what_their_members_do(first):
    plans = [
        Plan(tp=2), Plan(tp=4, sequence_parallel=False, recompute="selective"),
        Plan(pp=3, n_micro_batch=4), Plan(pp=2, virtual=2, n_micro_batch=4),
        Plan(dp=4, zero=3, recompute="products"), Plan(tp=2, dp=4, ep=2, expert_tp=1),
        Plan(cp=2, recompute="full", recompute_layers=1),
    ]  # fmt: skip
    unfused = Recipe(fused=False, attention="unfused", optimizer="adafactor")
    for structure in range(first, 168, 16):
        members = [random_specs.spec(structure, row) for row in range(2)]
        column = random_specs.column(members)
        for plan in plans:
            for recipe in (Recipe(), unfused):
                found = np.broadcast_to(training_memory(column, plan, recipe, 256).total, 2)
                for i, one in enumerate(members):
                    alone = training_memory(one, plan, recipe, 256).total
                    assert found[i] == pytest.approx(alone, rel=1e-12), (structure, plan)


def test_intervals_hold_their_values():
    found = training_memory(LLAMA, Plan(tp=4), Recipe(), 8192)

    assert found.low < found.total < found.high
    assert found.reserved_low < found.reserved < found.reserved_high
    assert found.needed_low < found.needed_high


# ---------------------------------------------------------------- adapters


def test_low_rank_adapters_train_rank_times_both_sides():
    """Llama-3.1-8B, r = 16 on q and v: 32 × 16 × ((4096 + 4096) + (1024 + 4096))."""
    spec = LLAMA

    found = adapted(spec, Adapter(rank=16, targets=("q_proj", "v_proj")))

    assert found.parameters == 32 * 16 * ((4096 + 4096) + (1024 + 4096))
    assert found.modules == ("q", "v")


def test_stacked_experts_are_left_out_and_told():
    found = adapted(MIXTRAL, Adapter(rank=8))
    wrapped = adapted(MIXTRAL, Adapter(rank=8), wrap_experts=True)

    attention = 32 * 8 * (2 * (4096 + 4096) + 2 * (4096 + 1024))
    assert found.parameters == attention
    assert wrapped.parameters == attention + 32 * 8 * 8 * 3 * (4096 + 14336)
    assert any("3-D tensors and not wrapped" in note for note in found.notes)


def test_packed_weights_count_their_scales():
    """4 bits and an fp32 scale for 64; with scales in 8 bits and an fp32 for 256 of them."""
    assert packed_bytes("nf4") == (4 + 32 / 64) / 8
    assert packed_bytes("nf4-dq") == (4 + 8 / 64 + 32 / (64 * 256)) / 8
    assert packed_bytes("int4-g128") == (4 + 16 / 128) / 8


def test_frozen_weights_have_no_gradient():
    adapter = Adapter(rank=8, targets=("q_proj",), weights="nf4")
    held = states(placed_operators(LLAMA2, Plan(), 1), Plan(), Recipe(adapter=adapter))

    n = 32 * 8 * (4096 + 4096)
    assert held.gradients == 4 * n
    assert held.optimizer == 8 * n


def test_prompts_train_rows_and_gates():
    """LLaMA-Adapter on Llama-2-7B: 30 layers × (10 × 4096 + 32)."""
    ops = placed_operators(LLAMA2, Plan(), 1)
    held = states(ops, Plan(), Recipe(gradients="fp32", adapter=Prompt()))

    assert held.gradients == 4 * 30 * (10 * 4096 + 32)


def test_generation_holds_weights_and_caches():
    found = resident_memory(LLAMA2, context=4096)

    assert found.weights == 2 * parameters(LLAMA2).total
    assert found.cache == 4096 * 2 * 32 * 4096 * 2


# ---------------------------------------------------------------- verdicts


def test_a_verdict_is_sure_only_outside_of_the_interval():
    found = training_memory(LLAMA2, Plan(tp=8), Recipe(), 4096)

    assert fits(found, found.needed_high) == "yes"
    assert fits(found, (found.needed_low + found.needed_high) / 2) == "tight"
    assert fits(found, found.needed_low * 0.99) == "no"


def test_the_longest_context_fits_and_the_next_does_not():
    plan, recipe, memory = Plan(dp=8, zero=3, recompute="full"), Recipe(), 80 * GIB
    longest = longest_context(LLAMA2, plan, recipe, memory)

    assert fits(training_memory(LLAMA2, plan, recipe, longest), memory) == "yes"
    assert fits(training_memory(LLAMA2, plan, recipe, longest + 64), memory) != "yes"


def test_the_largest_of_a_kind_is_found():
    assert largest(lambda n: n <= 77, 1000) == 77
    assert largest(lambda n: n <= 77, 50) == 50
    assert largest(lambda n: n < 1, 50) == 0


def test_room_says_what_must_be_given_up():
    small = room(LLAMA2, Plan(dp=8, zero=3), Recipe(), 4096, 24 * GIB, (8, 1))
    large = room(LLAMA2, Plan(dp=8, zero=3), Recipe(), 512, 80 * GIB, (8, 1))
    none = room(LLAMA2, Plan(zero=0), Recipe(), 512, 24 * GIB, (1,))

    assert small.recompute or small.micro_batch == 0
    assert large.text == "fits"
    assert none.text in {"does not fit", "only with small micro-batch and checkpointing/offload"}


def test_notes_say_what_more_chips_do_not_change():
    replicated = notes(LLAMA2, Plan(dp=4, zero=0), Recipe(), 512)
    shared = notes(LLAMA2, Plan(dp=4, zero=3), Recipe(), 512)

    assert any("more chips do not lower" in note for note in replicated)
    assert any("do not shrink with the number of chips" in note for note in shared)


def test_sizes_of_chips_are_those_of_the_catalogue():
    found = training_memory(LLAMA2, Plan(dp=8, zero=3), Recipe(), 512)

    assert smallest_memory(found) >= found.needed_high


def test_every_constant_of_memory_has_a_source():
    from scantling.costs.buffers import constants

    for name, table in constants().items():
        assert table["kind"] in {"fitted", "assumed"}, name
        assert all(key in sources() for key in table["sources"]), name


# ---------------------------------------------------------------- public tables


def read_table(shared, name):
    with (shared / "data" / "measured" / name).open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def scored(shared, name, quantity):
    reader = next(r for r in TABLES if r.table == name and quantity in r.quantity)
    found = scores(reader, read_table(shared, name))
    return [one for one in found if isinstance(one, Scored)]


def errors(found):
    return [abs(one.predicted / one.actual - 1) for one in found]


def covered(found):
    return sum(one.low <= one.actual <= one.high for one in found) / len(found)


def test_the_paper_is_reproduced_to_the_last_bit(shared):
    found = scored(shared, "memory_korthikanti2022.csv", "GiB")

    assert found
    assert all(one.predicted == one.actual for one in found)


def test_the_papers_figure_is_reproduced_as_far_as_it_can_be_read(shared):
    found = scored(shared, "memory_korthikanti2022.csv", "relative")

    assert all(abs(one.predicted - one.actual) < 0.15 for one in found)


@pytest.mark.parametrize(
    ("name", "quantity"),
    [("train_simumax_b200.csv", "allocated"), ("train_torchtitan.csv", "reserved")],
)
def test_peaks_of_training_are_within_3_percent(shared, name, quantity):
    found = scored(shared, name, quantity)

    assert statistics.mean(errors(found)) <= 0.03
    assert covered(found) >= 0.85


def test_peaks_of_generation_are_within_3_percent(shared):
    rows = read_table(shared, "memory_litgpt_finetune_infer.csv")
    own = [r for r in rows if "Inference" in r["section"] and r["oom"] == "False"]

    found = [tables.litgpt_peak(row) for row in own]

    assert statistics.mean(errors(found)) <= 0.03


def test_no_row_that_ran_out_of_memory_is_said_to_fit(shared):
    rows = read_table(shared, "memory_litgpt_finetune_infer.csv")
    out = [row for row in rows if row["oom"] == "True"]

    assert out
    assert all(tables.litgpt_memory(row)[3] != "yes" for row in out)


def test_what_ran_on_a_chip_is_not_said_to_be_impossible(shared):
    rows = read_table(shared, "memory_litgpt_finetune_infer.csv")

    for row in rows:
        if row["oom"] == "False":
            assert tables.litgpt_memory(row)[3] != "no", row["row_id"]


def test_adapters_of_the_table_have_the_published_number_of_parameters(shared):
    for row in read_table(shared, "memory_litgpt_finetune_infer.csv"):
        if not row["trainable_params"]:
            continue
        spec = catalog.resolve(row["model"], float(row["size_B"])).spec
        recipe = Recipe(gradients="bf16", adapter=tables._adapter(spec, row, "bf16"))
        held = states(placed_operators(spec, Plan(), 1), Plan(), recipe)
        assert held.gradients == 2 * int(row["trainable_params"]), row["row_id"]


def test_rows_without_a_peak_say_why(shared):
    rows = read_table(shared, "memory_litgpt_finetune_infer.csv")
    row = next(r for r in rows if r["oom"] == "True")

    with pytest.raises(NotScoredError, match="ran out of memory"):
        tables.litgpt_peak(row)
    assert chip(row["gpu"]).memory_bytes == 40 * GIB
