"""Questions of design met in public, and what an answer must hold."""

import json

import pytest
from click.testing import CliRunner

from case_files import case, holds
from scantling import catalog, cli
from scantling.costs.deployment import valid_tp


def answer(*args):
    """What ``scantling design --json`` prints for a question."""
    found = CliRunner().invoke(cli.group, ["design", *args, "--json"], standalone_mode=False)
    assert found.exception is None, repr(found.exception)
    return json.loads(found.stdout)


def test_a_small_multilingual_model_and_its_vocabulary():
    one = case("de-01")
    asked = one["input"]
    options = asked["vocab_options"]
    found = answer(
        "--params", str(int(asked["budget_params"])), "--tied", "--fix",
        f"d_model={asked['d_model']}", "--vocab", "64000", "--explain", "vocab_size", "--fix",
        f"vocab_size={','.join(map(str, options))}",
    )["explain"]  # fmt: skip
    rows = {row["vocab_size"]: row for row in found["vocabulary"]["options"]}
    for vocab, share in zip(options, one["expected"]["share"], strict=True):
        assert rows[vocab]["table_share"] == pytest.approx(share["value"], rel=share["rtol"])
    assert [v for v in options if rows[v]["recommended"]] == [64_000, 128_000]
    assert "fertility" in found["vocabulary"]["missing"]
    values = {row["value"]: row for row in found["values"]}
    layers = [values[v]["dims"]["n_layer"] for v in options]
    assert layers == sorted(layers, reverse=True)
    assert layers[-1] < 0.7 * layers[0]  # 256k leaves 88 M of 350 M
    assert all(row["loss"] is None for row in found["values"])


def test_depth_or_width_shows_loss_speed_and_evidence_that_disagrees():
    asked = case("de-02")["input"]
    found = answer(
        "--params", str(int(asked["budget_params"])), "--vocab", str(asked["vocab"]), "--context",
        str(asked["ctx"]), "--fix", "d_head=128", "--fix", "n_layer=12,16,24,32,48", "--explain",
        "n_layer",
    )["explain"]  # fmt: skip
    rows = {row["value"]: row for row in found["values"] if row["feasible"]}
    assert len(rows) >= 4
    for row in rows.values():
        assert row["dims"]["d_head"] in {64, 128}
        assert row["dims"]["d_model"] % 128 == 0
    gap = rows[16]["least"]["loss"] - rows[32]["least"]["loss"]
    assert abs(gap) < 0.01 * rows[32]["least"]["loss"]
    assert all(r["loss"]["low"] < r["loss"]["high"] for r in rows.values() if not r["given"])
    assert rows[48]["tpot_seconds"] > rows[16]["tpot_seconds"]
    assert rows[48]["days"] > rows[16]["days"]
    told = " ".join(found["rules"])
    assert "2.7 and 4.3 points over earlier models of 125 M and 350 M" in told
    assert "wrong" in told
    assert "correct" in told


def test_expert_widths_that_split_over_eight_with_blocks_of_128():
    one = case("de-06")
    asked = one["input"]
    widths = ",".join(map(str, asked["moe_ffn_candidates"]))
    found = answer("--list-legal", "--quant", "fp8-block", "--tp", str(asked["target_tp"]), "--fix",
                   f"d_expert={widths}")  # fmt: skip
    holds(one, ok=found["ok"])
    assert all(row["why"] for row in found["legal"])


def test_what_does_not_split_is_told_to_be_spread_whole():
    found = CliRunner().invoke(
        cli.group, ["design", "--list-legal", "--quant", "fp8-block", "--tp", "8", "--fix",
                    "d_expert=768"], standalone_mode=False,
    )  # fmt: skip
    assert found.return_value == 1
    assert "expert parallelism" in found.stdout


def test_heads_for_eight_gpus_at_the_width_of_a_model_with_28():
    """Q, o: 2 D H h; k, v: 2 D K h; biases (H + 2 K) h, which alone tell 24 and 8 from 28 and 4."""
    one = case("de-07")
    spec = catalog.model("qwen2.5-7b")
    assert (spec.d_model, spec.d_head) == (one["input"]["d_model"], one["input"]["head_dim"])
    for found in (answer("--like", "qwen2.5-7b", "--tp", "8")["like"],
                  {"legal_heads": answer("--list-legal", "--like", "qwen2.5-7b", "--tp",
                                         "8")["legal"]}):  # fmt: skip
        rows = {(r["n_head"], r["n_kv_head"]): r for r in found["legal_heads"]}
        assert {(24, 8), (32, 8), (24, 4), (32, 4)} <= set(rows)
        assert rows[24, 8]["difference"] == 28 * 4 * 128
        change = 28 * (2 * 3584 * 128 * 4 + 4 * 128)  # four query heads more, KV heads the same
        assert rows[32, 4]["difference"] == change
        assert all(r["explicit_head_dim"] for r in rows.values())
        assert all(r["d_model"] == 3584 for r in rows.values())
    found = answer("--like", "qwen2.5-7b", "--tp", "8")["like"]
    holds(one, current_valid_tp=found["valid_tp"])
    assert found["valid_tp"] == valid_tp(spec, most=16)


def test_two_vocabularies_are_compared_by_time_and_bits_per_byte():
    case("de-09")
    found = answer("--params", "700M", "--vocab", "32768", "--tokens", "10B", "--fix",
                   "vocab_size=32768,49152", "--explain", "vocab_size")["explain"]  # fmt: skip
    assert all(row["days"] > 0 for row in found["values"])
    assert "bits per byte" in found["vocabulary"]["compare_by"]
    assert "17.3 %" in found["vocabulary"]["report"]
    smaller, larger = (row["tokens_per_character"] for row in found["vocabulary"]["options"])
    assert larger < smaller  # the same text is fewer tokens
