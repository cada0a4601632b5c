"""FLOPs: the cases met in public, and the count that Megatron-Bridge logs."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from case_files import case, holds, read
from scantling import catalog
from scantling.costs.count import attention_flops, flops, forward_flops, parameters
from scantling.costs.megatron import EARLY, TODAY, accounting, megatron_flops
from scantling.costs.utilisation import achieved, chunk_flops, six_nd, undercount
from scantling.errors import FieldError
from scantling.formats import hf
from scantling.ops import operators, tensors
from scantling.spec import Spec, Workload, vary
from scantling.validate import flops as readers
from scantling.validate.table import TABLES, NotScoredError, Scored, scores

MEASURED = Path(__file__).parents[2] / "shared" / "data" / "measured"


def answers(one: dict[str, Any], **found: Any) -> None:
    """Every required key is answered, and each answer is the case's."""
    assert set(found) >= set(one["required"])
    holds(one, **found)


def by_kind(spec: Spec, workload: Workload, convention: str = "full") -> tuple[float, float]:
    """FLOPs in products with weights, and in attention over keys and values."""
    ops = operators(spec, workload)
    core = sum(op.flops(convention) for op in ops if op.kind == "attention")
    return forward_flops(ops, convention) - core, core


# ---------------------------------------------------------------- cases met in public


def test_case_fl_02_weights_full_attention_and_its_causal_half():
    """12 L D S a token is halved by its convention; the exact mask keeps the diagonal, S + 1."""
    one = case("fl-02")
    given = one["input"]
    S, batch = given["seq"], given["tokens_per_step"] // given["seq"]
    train = Workload("train", batch, S)
    spec = read(given["hf_config"])
    weights, full = by_kind(spec, train)
    _, causal = by_kind(spec, train, "causal")
    answers(one, weights=weights / 1e12, attn_full=full / 1e12, attn_causal=full / 2 / 1e12)
    assert causal * 2 * S == full * (S + 1)


def test_case_fl_03_only_two_of_eight_experts_work():
    one = case("fl-03")
    spec = read(one["input"]["hf_config"])
    context = one["input"]["seq"]
    tera = {k: flops(vary(spec, top_k=k), context=context).train / 1e12 for k in (2, 8)}
    answers(one, active=tera[2], all_experts=tera[8])


def test_case_fl_05_shared_keys_save_projections_and_no_attention():
    one = case("fl-05")
    a = one["input"]["arch"]
    grouped = catalog.model("llama-3.1-8b")
    assert (grouped.n_head, grouped.n_kv_head, grouped.d_head) == tuple(a.values())
    full = vary(grouped, n_kv_head=a["n_heads"])
    core = {spec: by_kind(spec, Workload(context=512))[1] for spec in (grouped, full)}
    keys = {
        spec: next(t.size() for t in tensors(spec) if t.name.endswith("attention.k"))
        for spec in (grouped, full)
    }
    answers(
        one,
        core_flops_drop=core[grouped] != core[full],
        kv_projection_flops_ratio=keys[grouped] / keys[full],
    )


def test_case_fl_07_four_flops_a_pair_head_and_channel():
    one = case("fl-07")
    spec = read(one["input"]["hf_config"])
    _, core = by_kind(spec, Workload("decode", context=1000))
    answers(one, total=core / 1000, per_layer=core / 1000 / int(spec.n_layer))


def test_case_fl_08_the_count_by_hand_of_a_small_llama():
    one = case("fl-08")
    spec = read(one["input"]["hf_config"])
    linear, attention = by_kind(spec, Workload(context=one["input"]["seq"]))
    answers(one, linear=linear, attention_full=attention)


def test_case_fl_10_what_a_counter_of_weights_misses_grows_with_the_length():
    """12 D² weights a layer, as the case has them: GPT-2's, without head or table."""
    one = case("fl-10")
    sizes = {"model_type": "gpt2", "n_embd": one["input"]["d"], "n_head": 12}
    spec = hf.read(sizes).spec
    headless = vary(spec, vocab_size=0)
    found = [undercount(headless, n) for n in one["input"]["tokens"]]
    assert one["required"] == ["factor"]
    for factor, wanted in zip(found, one["expected"]["factor"], strict=True):
        assert math.isclose(factor, wanted["value"], rel_tol=wanted["rtol"])
    assert found[1] / found[0] > 1.5  # so it does not cancel


def test_case_fl_11_a_lookup_is_free_and_the_head_is_not():
    one = case("fl-11")
    sizes = {"hidden_size": one["input"]["h"], "vocab_size": one["input"]["V"]}
    cost = {}
    for tied in (True, False):
        spec = read({"model_type": "qwen3", **sizes, "tie_word_embeddings": tied})
        cost[tied] = {op.name: op.flops() for op in operators(spec)}
    answers(
        one,
        embed=cost[True]["model.embedding"],
        head=cost[True]["model.lm_head"],
        depends_on_tying=cost[True] != cost[False],
    )


def test_case_fl_13_a_chunk_at_the_end_sees_almost_every_key():
    one = case("fl-13")
    given = one["input"]
    queries, keys = given["q_len"], given["kv_len"]
    exact = chunk_flops(given["heads"], given["head_dim"], queries, keys)
    half = 4 * given["heads"] * given["head_dim"] * queries * keys / 2
    answers(
        one,
        exact=exact,
        half_rule=half,
        half_rule_is_correct=math.isclose(exact, half, rel_tol=0.01),
    )


@pytest.mark.parametrize(("name", "gpu"), [("fl-15", None), ("fl-16", "A100")])
def test_cases_fl_15_and_fl_16_the_pace_of_a_run_from_days_and_gpus(name, gpu):
    one = case(name)
    given = one["input"]
    run = achieved(
        six_nd(given["params"], given["tokens"]),
        given.get("gpu", gpu),
        given["gpus"],
        given["days"],
    )
    answers(one, tflops=run.flops_per_s / 1e12, mfu=run.mfu)


# ---------------------------------------------------------------- their kinds, standing alone


def test_a_run_of_twice_the_days_is_half_the_pace():
    once, twice = (achieved(1e22, "h100", 64, days) for days in (10, 20))
    assert once.flops_per_s == 2 * twice.flops_per_s == 1e22 / (64 * 10 * 86_400)
    assert once.mfu == pytest.approx(once.flops_per_s / 989e12, rel=1e-3)  # dense BF16, data sheet


@pytest.mark.parametrize("wrong", [{"days": 0}, {"n_gpu": 0}, {"flops": -1.0}])
def test_a_run_without_time_chips_or_work_is_refused(wrong):
    with pytest.raises(FieldError, match="must be above 0"):
        achieved(**{"flops": 1e22, "on": "h100", "n_gpu": 8, "days": 1.0} | wrong)


def test_chunks_of_a_prefill_sum_to_the_whole():
    """Each chunk sees all before it: no half-rule of its own, but together just the triangle."""
    whole = attention_flops(8, 128, 4096, 4096)
    chunks = [chunk_flops(8, 64, 512, end) for end in range(512, 4097, 512)]
    assert sum(chunks) == whole == 4 * 8 * 64 * (4096 * 4097 // 2)


def test_more_queries_than_keys_are_refused():
    with pytest.raises(FieldError, match="queries"):
        chunk_flops(8, 64, 10, 9)


# ---------------------------------------------------------------- what Megatron-Bridge logs


@pytest.mark.parametrize("name", ["llama-3-8b", "qwen3-8b", "llama-3.1-405b", "gpt2-xl"])
@pytest.mark.parametrize("context", [1024, 8192])
def test_a_dense_model_costs_6_n_without_embedding_and_half_of_full_attention(name, context):
    """6 (weights of products) + 6 L H h S a token; biases, norms and positions are none."""
    spec = catalog.model(name)
    weights = sum(
        t.size()
        for op in operators(spec)
        for t in op.tensors
        if op.kind == "matmul" and len(t.shape) == 2
    )
    core = 6 * int(spec.n_layer) * int(spec.n_head) * int(spec.d_head) * context
    assert megatron_flops(spec, context) == context * (6 * weights + core)


def test_a_published_count_of_llama_3():
    """6 × 7.50466 G products of weights, 6 × 32 × 4096 × 8192 of attention: 51.47 GFLOP a token."""
    assert megatron_flops(catalog.model("llama-3-8b"), 8192) / 8192e9 == pytest.approx(
        6 * (8.030261248 - 0.525336576 - 65 * 4096 / 1e9) + 6 * 32 * 4096 * 8192 / 1e9
    )


@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "gpt-oss-120b"])
def test_a_mixture_costs_what_its_operators_do_without_the_router(name):
    """The second derivation against the first: they differ by the diagonal, S + 1 for S."""
    spec = catalog.model(name)
    ops = [op for op in operators(spec, Workload("train", 1, 4096)) if op.part != "router"]
    ours = forward_flops(ops, "causal")
    assert megatron_flops(spec, 4096) == pytest.approx(ours, rel=2e-4)


def test_a_prediction_module_is_a_layer_a_joint_and_a_head():
    """DeepSeek-V3: one more layer of experts, 2 D × D and 3 D of norms, V D."""
    spec = catalog.model("deepseek-v3")
    with_one = megatron_flops(spec, 4096, 1) - megatron_flops(spec, 4096)
    deeper = vary(spec, n_layer=62)
    layer = megatron_flops(deeper, 4096) - megatron_flops(spec, 4096)
    D, V = 7168, 129_280
    assert with_one - layer == 6 * 4096 * (2 * D * D + 3 * D + V * D)


def test_a_state_space_layer_is_counted_as_twice_the_width_whatever_it_is():
    """2 D (2 × 2 D + 2 G N + H) + 7 × 2 D N + 2 × 2 D × D a token; the config has 4096 inside."""
    nano = catalog.model("nemotron-3-nano-30b-a3b")
    one = next(k for k in nano.decoder.kinds if k.blocks[0].branches[0].name == "mixer")
    D, G, N, H, S, q = 2688, 8, 128, 64, 4096, 32 * 128
    mamba = 2 * D * (4 * D + 2 * G * N + H) + 7 * 2 * D * N + 4 * D * D
    attention = 4 * q * (D + D * 2 // 32 + S // 2)
    experts = 4 * D * (6 * 1856 + 3712)
    layers = nano.decoder.occurrences()
    assert layers[one.name] == 23
    assert megatron_flops(nano, S) == 3 * S * (
        23 * mamba + 6 * attention + 23 * experts + 2 * D * 131_072
    )


def test_early_releases_counted_less_of_gpt_oss_and_the_same_of_llama():
    """Experts had two matrices of three, windowed layers all pairs: the difference by hand."""
    S, D, L, q, top, window = 4096, 2880, 36, 64 * 64, 4, 128
    spec = catalog.model("gpt-oss-120b")
    early, today = (megatron_flops(spec, S, 0, how) for how in (EARLY, TODAY))
    gate = 6 * S * L * top * D * D
    windowed = 6 * q * (L // 2) * (S * S - (2 * window * S - window * (window - 1)))
    assert today - early == gate - windowed
    llama = catalog.model("llama-3-8b")
    assert megatron_flops(llama, S, 0, EARLY) == megatron_flops(llama, S)


def test_early_releases_took_a_delta_rule_for_attention():
    spec = catalog.model("qwen3-next-80b-a3b")
    attention = next(m for m in modules(spec) if type(m).__name__ == "GroupedAttention")
    D, q, kv = 2048, attention.n_head * attention.d_head, attention.n_kv_head * attention.d_head
    experts = 6 * D * 512 * (10 + 1)
    layer = 2 * D * (2 * q + 2 * kv) + 2 * q * 4096 + experts
    assert megatron_flops(spec, 4096, 0, EARLY) == 3 * 4096 * (48 * layer + 2 * D * 151_936)


def test_a_release_counts_by_its_date():
    assert accounting("25.11") == accounting("26.04.01") == EARLY
    assert accounting("26.06") == accounting("26.08") == TODAY


def test_it_counts_columns_as_it_counts_models():
    """The search folds the same code over arrays."""
    spec = catalog.model("llama-3.1-8b")
    widths = np.array([2048, 4096, 8192])
    column = megatron_flops(vary(spec, d_ff=widths), 4096)
    alone = [megatron_flops(vary(spec, d_ff=int(width)), 4096) for width in widths]
    assert column.tolist() == alone


@pytest.mark.parametrize("name", ["minimax-text-01", "minimax-m3"])
def test_what_has_no_formula_there_is_refused(name):
    with pytest.raises(FieldError, match="has no formula for"):
        megatron_flops(catalog.model(name), 4096)


def test_it_is_a_convention_like_the_others():
    spec = catalog.model("llama-3-8b")
    counted = flops(spec, 2, 8192, "megatron")
    assert counted.train == 2 * megatron_flops(spec, 8192) == 3 * counted.forward
    with pytest.raises(FieldError, match="not counted by operators"):
        forward_flops(operators(spec), "megatron")


# ---------------------------------------------------------------- public tables


def scored(table: str, quantity: str) -> list[Scored]:
    """Every row of a table, predicted; a row that is not scored fails."""
    path = MEASURED / table
    if not path.exists():
        pytest.skip(f"{path} is not here: the measured tables are kept beside the project")
    reader = next(r for r in TABLES if r.table == table and r.quantity.startswith(quantity))
    with path.open(encoding="utf-8") as file:
        found = list(scores(reader, list(csv.DictReader(file))))
    assert not [str(row) for row in found if isinstance(row, NotScoredError)]
    return [row for row in found if isinstance(row, Scored)]


def test_flops_per_token_are_those_of_the_table():
    """0.1 % where one dense model is meant, 2 % for mixtures and hybrids."""
    rows = scored("flops_per_token_megatron_bridge.csv", "model FLOPs")
    assert len(rows) >= 14
    for row in rows:
        spec = catalog.model(row.group)
        dense = all(type(m).__name__ != "Experts" for m in modules(spec))
        bar = 0.001 if dense else 0.02
        assert abs(row.predicted / row.actual - 1) <= bar, row.row


def modules(spec: Spec) -> list[Any]:
    return [b.module for k in spec.decoder.kinds for block in k.blocks for b in block.branches]


def test_mpt_parameters_are_exact():
    rows = scored("train_mpt_llmfoundry.csv", "parameters")
    assert rows
    assert [row.predicted for row in rows] == [row.actual for row in rows]


def test_mpt_mfu_is_its_own_arithmetic():
    rows = scored("train_mpt_llmfoundry.csv", "MFU")
    assert rows
    assert max(abs(row.predicted / row.actual - 1) for row in rows) <= 0.0025


MPT_ROW = {
    "row_id": "mpt", "model": "MPT-70b", "d_model": "8192", "n_heads": "64", "n_layers": "80",
    "ffn_dim": "32768", "vocab_size": "50368", "params": "64862437376", "seq_len": "2048",
    "gpu": "h100_80gb", "n_gpus": "512", "precision": "amp_bf16", "mfu_pct": "41.25",
    "tokens_per_s": "515636",
}  # fmt: skip
"""A row of LLM Foundry's README, with the counts its authors print."""


def test_one_published_row_without_the_table():
    count = readers.mpt_parameters(MPT_ROW)
    assert (
        count.predicted
        == count.actual
        == 50368 * 8192 + 2048 * 8192 + 80 * (12 * 8192**2 + 13 * 8192) + 2 * 8192
    )
    assert readers.mpt_mfu(MPT_ROW).predicted == pytest.approx(41.25, rel=0.0025)


def test_a_row_says_whether_prediction_modules_were_trained():
    row = {"seq_len": "4096", "gflops_per_token": "1"}
    off = readers.flops_per_token({**row, "model": "DeepSeekV3 (w/o MTP)"})
    on = readers.flops_per_token({**row, "model": "DeepSeekV3 (w/ MTP)"})
    assert (
        off.predicted
        < on.predicted
        == readers.flops_per_token({**row, "model": "DeepSeekV3"}).predicted
    )


def test_parameters_of_the_shapes_that_were_timed_are_12_d_squared_a_layer():
    """Narayanan et al. 2021, equation 2: 12 L D² (1 + 13 / 12 D + (V + S) / 12 L D)."""
    for name, billions in (("megatron-1.7b", 1.7), ("megatron-145.6b", 145.6),
                           ("megatron-1008b", 1008.0)):  # fmt: skip
        spec = catalog.model(name)
        D, L, V, S = int(spec.d_model), int(spec.n_layer), 51_200, 2048
        counted = parameters(spec).total
        assert counted == 12 * L * D * D + 13 * L * D + (V + S) * D + 2 * D
        assert counted / 1e9 == pytest.approx(billions, abs=0.06)
