"""Quantisation against splits and kernels as people met it: each case's answer is ours."""

from __future__ import annotations

from typing import Any

import pytest

from case_files import CASES, cases, holds, read
from scantling import catalog
from scantling.costs.blocks import gemm_shape, padded_width, shard, token_groups
from scantling.costs.deployment import (
    cuts,
    deployment,
    largest_power_of_two,
    nearest_shape,
    valid_tp,
)
from scantling.hardware import chip
from scantling.spec import Spec, vary
from scantling.spec.plan import Plan
from scantling.spec.relations import check

Case = dict[str, Any]


@pytest.mark.parametrize("one", cases("quant_alignment"))
def test_a_case_met_in_public(one):
    """Every required key has the expected value."""
    answers = ANSWERS[one["id"]](one["input"])
    assert set(one["required"]) <= set(answers)
    holds(one, **answers)


def matrix(quant: str, spec: Spec, plan: Plan, leaf: str, side: str) -> Any:
    """One side of the matrix of that name."""
    found = [c for c in cuts(spec, quant, plan) if c.tensor.endswith(f".{leaf}") and c.side == side]
    return found[0]


def moe(d_expert: int) -> Spec:
    """A mixture of experts whose only odd dimension is the width of an expert."""
    return vary(catalog.model("qwen3-30b-a3b"), d_expert=d_expert)


def odd_groups(given: Case) -> Case:
    """The model's FFN at each degree, and padded for all of them; the user's own trims."""
    spec = vary(catalog.model("qwen2.5-72b"), d_ff=given["ffn"])
    quant = f"gptq-int4-g{given['group']}"

    def whole(spec: Spec, tp: int) -> bool:
        return all(c.ok for c in cuts(spec, quant, Plan(tp=tp)))

    padded = padded_width(given["ffn"], given["group"], given["tp"])
    assert f"{padded.trimmed} would drop weights, which is lossy" in padded.text
    wide = vary(spec, d_ff=padded.padded)
    return {
        "groups": matrix(quant, spec, Plan(), "down", "in").units_per_rank,
        "valid": [whole(spec, tp) for tp in given["tp"]],
        "padded_ffn": padded.padded,
        "padded_valid": [whole(wide, tp) for tp in given["tp"]],
        "users_trim_29440_tp2": whole(vary(spec, d_ff=29440), 2),
        "users_trim_29184_tp4": whole(vary(spec, d_ff=29184), 4),
    }


def narrow_output(given: Case) -> Case:
    spec = catalog.model("qwen2.5-0.5b")
    assert (spec.d_model, spec.d_ff, spec.n_head) == tuple(
        given[k] for k in ("hidden", "ffn", "heads")
    )
    plan = Plan(tp=given["tp"])
    quants = [f"gptq-int4-g{g}" for g in given["groups"]]
    fine = deployment(spec, chip("h100"), plan, "gptq-int4-g64")
    assert any(".o: Marlin" in w and "448 is no multiple of 128" in w for w in fine.warnings)
    return {
        "valid": [deployment(spec, chip("h100"), plan, q).valid for q in quants],
        "o_proj_groups_per_rank": [matrix(q, spec, plan, "o", "in").units_per_rank for q in quants],
        "down_groups_per_rank": [
            matrix(q, spec, plan, "down", "in").units_per_rank for q in quants
        ],
    }  # fmt: skip


def expert_blocks(given: Case) -> Case:
    spec = moe(given["moe_ffn"])
    found = {tp: deployment(spec, chip("h100"), Plan(tp=tp), "fp8-block") for tp in given["tp"]}
    assert any("use EP 4" in line for line in found[4].lines)
    assert found[4].degrees == [1, 2]
    return {
        "per_rank": [
            matrix("fp8-block", spec, Plan(tp=tp), "experts_down", "in").per_rank
            for tp in given["tp"]
        ],
        "valid": [found[tp].valid for tp in given["tp"]],
    }


def odd_expert(given: Case) -> Case:
    spec, width = moe(given["moe_ffn"]), given["moe_ffn"]
    gate = matrix("fp8-block", spec, Plan(), "experts_gate", "out")
    fused = 2 * gate.width
    assert gate.merged
    assert nearest_shape(spec, 2, "fp8-block")["d_expert"] % (given["block"] * 2) == 0
    return {
        "fused_rows": fused,
        "per_matrix_multiple_of_block": gate.ok,
        "valid": [
            deployment(spec, chip("h100"), Plan(tp=tp), "fp8-block").valid for tp in given["tp"]
        ],
        "per_rank_fused_tp8": 2 * shard(width, 8, given["block"]).per_rank,
    }


def many_ranks(given: Case) -> Case:
    spec = read(given["hf_config"])
    plan = Plan(tp=32)
    dense = matrix("fp8-block", spec, plan, "down", "in")
    assert 32 in valid_tp(spec)
    return {
        "dense_ffn_at_32": dense.per_rank,
        "dense_ok_32": dense.ok,
        "moe_ok_32": matrix("fp8-block", spec, plan, "experts_down", "in").ok,
        "max_tp": largest_power_of_two(valid_tp(spec, "fp8-block")),
    }


def refused_matrix(given: Case) -> Case:
    found = gemm_shape(*given["matrix"])
    return {
        "rows_ok": found.rows_ok, "cols_ok": found.columns_ok, "padded_cols": found.padded_columns,
        "recommended_multiple": found.advised, "padded_32": found.advised_columns,
    }  # fmt: skip


def few_tokens(given: Case) -> Case:
    found = [gemm_shape(*m) for m in given["matrices"]]
    return {
        "valid": [f.rows_ok and f.columns_ok for f in found],
        "padded_rows": [f.padded_rows for f in found],
    }


def expert_tokens(_: Case) -> Case:
    assert all(t.since and t.sources for t in token_groups("bf16"))
    return {
        "bf16": [t.multiple for t in token_groups("bf16")],
        "fp8": token_groups("fp8")[0].multiple,
        "mxfp8": token_groups("mxfp8")[0].multiple,
    }


ANSWERS = {
    "QA-01": odd_groups, "QA-03": narrow_output, "QA-05": expert_blocks, "QA-06": odd_expert,
    "QA-08": many_ranks, "QA-10": refused_matrix, "QA-11": few_tokens, "QA-13": expert_tokens,
}  # fmt: skip


def test_every_case_of_the_kind_is_asked():
    if CASES.exists():
        assert {p.values[0]["id"] for p in cases("quant_alignment")} == set(ANSWERS)


# ---------------------------------------------------------------- the same faults elsewhere


@pytest.mark.parametrize(("tp", "valid"), [(1, True), (2, False)])
def test_experts_of_1408_are_whole_in_fp8_blocks_alone_and_cut_on_two(tp, valid):
    """1408 is 11 blocks of 128 and 704 is 5.5 (GLM-4.5-Air)."""
    assert deployment(moe(1408), chip("h100"), Plan(tp=tp), "fp8-block").valid is valid


def test_experts_spread_whole_over_ranks_are_not_cut():
    plan = Plan(tp=4, ep=4, expert_tp=1)
    assert deployment(moe(768), chip("h100"), plan, "fp8-block").valid


def test_a_group_that_does_not_fill_the_inputs_is_refused_on_one_chip():
    """2880 inputs are 22.5 groups of 128 (gpt-oss); MXFP4's groups of 32 are dealt out whole."""
    spec = catalog.model("gpt-oss-20b")
    assert not deployment(spec, chip("h100"), Plan(), "awq").valid
    assert deployment(spec, chip("h100"), Plan(), "awq-g64").valid
    assert deployment(spec, chip("h100"), Plan(tp=8), "mxfp4").valid


def test_the_nearest_shape_is_valid():
    for name, tp, quant in (
        ("qwen2.5-0.5b", 2, "gptq-int4"), ("qwen3-30b-a3b", 8, "fp8-block"),
        ("qwen2.5-7b", 8, "awq"), ("deepseek-v3", 32, "fp8-block"), ("gemma-3-27b", 3, "bf16"),
    ):  # fmt: skip
        spec = catalog.model(name)
        changes = nearest_shape(spec, tp, quant)
        assert changes, name
        changed = vary(spec, **changes)
        check(changed)
        assert tp in valid_tp(changed, quant, tp), name


def test_columns_of_widths_are_judged_as_each_alone():
    import numpy as np

    widths = np.array([896, 1024, 4864, 29568])
    found = shard(widths, 2, 128)
    assert found.ok.tolist() == [shard(int(w), 2, 128).ok for w in widths]
    rows = gemm_shape(widths + 3, widths)
    assert rows.padded_rows.tolist() == [gemm_shape(int(w) + 3, int(w)).padded_rows for w in widths]
