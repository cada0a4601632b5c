"""Why a model is fast or slow on a chip, as a user reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from scantling import catalog, cli
from scantling.costs.alignment import nearby
from scantling.costs.attentions import attentions, generates
from scantling.costs.flash import prefill_fill, takes, traffic
from scantling.costs.kernels.attention import Shape
from scantling.costs.kernels.measured import Measured, installed, tables
from scantling.costs.kernels.time import Time
from scantling.costs.measured import sourced_kernels, sourced_times
from scantling.costs.roofline import by_width, gemm_products, roofline
from scantling.costs.slowest import slowest
from scantling.costs.time import op_time
from scantling.errors import ScantlingError
from scantling.hardware import chip, write_chip
from scantling.ops import operators
from scantling.report.alignment import alignment
from scantling.spec import Workload, vary

CASES = Path(__file__).parents[2] / "shared" / "cases"
CONFIGS = Path(__file__).parents[2] / "shared" / "data" / "configs"
needs_package = pytest.mark.skipif(
    installed() is None, reason="aiconfigurator-core (extra kernels) is not installed"
)


def run(*args):
    """Status and output, or the error line, as ``main`` gives them."""
    done = CliRunner().invoke(cli.group, args, standalone_mode=False)
    if isinstance(done.exception, ScantlingError):
        return 2, f"error: {done.exception}"
    assert done.exception is None, repr(done.exception)
    return done.return_value or 0, done.stdout


def config(name):
    path = CONFIGS / f"{name}.json"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return catalog.load(str(path)).spec


# ---------------------------------------------------------------- attention


def test_attention_with_the_same_dimensions_is_one():
    """Gemma 3 27B: 62 layers, one in six global, the others see 1024 (its config.json)."""
    found = attentions(catalog.model("gemma-3-27b"), 1, 8192, chip("h100"))
    assert sorted((a.layers, a.prefill.shape.reach) for a in found if a.prefill.shape.reach) == [
        (52, 1024)
    ]
    assert sum(a.layers for a in found) == 62
    assert len(attentions(catalog.model("llama-3.1-8b"), 1, 8192, chip("h100"))) == 1


def test_a_latent_has_the_widths_of_its_two_forms():
    """DeepSeek-V3's config: 128 + 64 beside values of 128; absorbed 512 + 64 beside 512."""
    (one,) = attentions(catalog.model("deepseek-v3"), 4, 4096, chip("h100"))
    assert one.layers == 61
    assert (one.prefill.shape.d_key, one.prefill.shape.d_value) == (192, 128)
    assert (one.decode.shape.d_key, one.decode.shape.d_value) == (576, 512)
    assert (one.prefill.shape.n_kv_head, one.decode.shape.n_kv_head) == (128, 1)


def test_an_absorbed_latent_decodes_in_a_fused_kernel_on_hopper_alone():
    found = sorted(CASES.glob("sh-15-*.json"))
    if not found:
        pytest.skip(f"{CASES}/sh-15-*.json is not here")
    expected = json.loads(found[0].read_text(encoding="utf-8"))["expected"]
    for name, verdict in (("h100", expected["fa3_hopper"]), ("a100", expected["fa3_a100"])):
        (one,) = attentions(catalog.model("deepseek-v3"), 1, 4096, chip(name))
        assert (dict(one.decode.kernels)["flash3"].verdict == "yes") is verdict


def test_an_indexer_is_no_fused_attention():
    spec = catalog.model("deepseek-v3.2")
    work = Workload("prefill", 1, 4096)
    assert any(op.name.endswith(".index") for op in operators(spec, work))
    found = attentions(spec, 1, 4096, chip("h100"))
    assert all(n.endswith(".core") for a in found for n in a.names)


def test_unfused_attention_moves_more_by_the_context_over_the_head_width():
    """(4 S h + 4 S²) / 4 S h = 1 + S / h elements a head where each has its own keys."""
    (one,) = attentions(catalog.model("gpt2"), 8, 1024, chip("a100"))
    moved = one.prefill.traffic
    assert moved.unfused / moved.fused == pytest.approx(1 + 1024 / 64)
    assert moved.fused == 8 * 12 * 4 * 1024 * 64 * 2


def test_a_window_hides_no_key_from_all_queries_of_a_prompt():
    """Each of the keys is in some query's window; a block of 128 sees 128 + 128 − 1 of them."""
    n, w, d = 1024, 128, 64
    shape = Shape(batch=1, queries=n, keys=n, n_head=1, n_kv_head=1, d_key=d, reach=w)
    got = traffic(shape)
    assert got.fused == 2 * 4 * n * d
    assert got.reread == 2 * (2 * n * d + (n // 128) * (128 + w - 1) * 2 * d)
    last = Shape(batch=1, queries=1, keys=n, n_head=1, n_kv_head=1, d_key=d, reach=w)
    assert traffic(last).fused == 2 * (2 * d + 2 * w * d)


def test_blocks_are_those_of_the_tile_that_fits():
    """An RTX 4090 holds 64 queries of width 128 where an H100 holds 128 (launch template)."""
    spec = catalog.model("llama-3.1-8b")
    blocks = {}
    for name in ("h100", "rtx-4090"):
        (one,) = attentions(spec, 1, 4096, chip(name))
        blocks[name] = one.prefill.fill.blocks
        assert one.decode.fill.blocks == 8
    assert blocks == {"h100": 32 * 4096 // 128, "rtx-4090": 32 * 4096 // 64}
    shape = Shape(batch=1, queries=100, keys=100, n_head=3, n_kv_head=3, d_key=128)
    assert prefill_fill(chip("h100"), shape, 64).blocks == 3 * 2


def test_a_latent_that_128_heads_share_has_two_blocks_a_sequence():
    """A block holds 64 rows of queries: 128 / 64 (FlashMLA's tiles)."""
    (one,) = attentions(catalog.model("deepseek-v3"), 8, 4096, chip("h100"))
    assert one.decode.fill.blocks == 8 * 128 // 64


def test_wider_heads_attend_faster_at_equal_parameters():
    """Medians of measured prompts on H100: 43 % of the peak at 64, 53 % at 128."""
    found = alignment(catalog.model("llama-3.1-8b"), "h100", 8, 4096)["heads"]
    took = {h["d_head"]: h["prefill_attention_seconds"] for h in found}
    assert took[64] / took[128] > 1.15
    assert all(h["n_head"] * h["d_head"] == 4096 for h in found)


def test_a_chip_without_a_compute_capability_is_unknown_not_refused():
    found = takes("flash2", chip("mi300x"), 128)
    assert found.verdict == "unknown"
    (one,) = attentions(catalog.model("gpt2"), 1, 1024, chip("mi300x"))
    assert {verdict.verdict for _, verdict in one.prefill.kernels} == {"unknown"}
    assert one.prefill.tile is None


@pytest.mark.parametrize("name", ["a100", "h100", "rtx-4090", "mi300x", "tpu-v4"])
@pytest.mark.parametrize("model", ["gpt2", "deepseek-v3", "gpt-oss-20b", "nemotron-h-8b"])
def test_no_kernel_passes_the_roof(model, name):
    for a in attentions(catalog.model(model), 2, 2048, chip(name)):
        for look in (a.prefill, a.decode):
            assert 0 < look.fraction <= 1
            assert 0 < look.bandwidth <= 1.001
            assert 0 < look.share < 1
            assert look.seconds.low <= look.seconds.value <= look.seconds.high


def test_an_encoder_has_no_decode_step():
    assert not generates(config("bert-base-uncased"))
    found = alignment(config("bert-base-uncased"), "rtx-4090", 4, 512)
    assert list(found["slowest"]) == ["prefill"]
    assert found["pruning_decode"] == found["products_decode"] == []
    assert [a["decode"] for a in found["attention"]] == [None]


def test_an_encoder_decoder_and_a_state_space_model_have_one():
    assert generates(config("t5-base"))
    found = alignment(config("t5-base"), "mi300x", 4, 512)
    assert [a["decode"] is None for a in found["attention"]] == [True, False, False]
    spec = config("mamba-130m")
    assert generates(spec)
    assert alignment(spec, "h100", 1, 512)["attention"] == []


# ---------------------------------------------------------------- products


def test_experts_are_products_of_their_share_of_the_rows():
    """256 experts, 8 a token: of 32,768 tokens each has 1024 rows; 58 layers (DeepSeek-V3)."""
    work, one = Workload("prefill", 8, 4096), chip("h100")
    products = {p.name: p for p in gemm_products(catalog.model("deepseek-v3"), work, one)}
    up = products["decoder.moe.ffn.experts_up"]
    assert (up.m, up.n, up.k, up.groups) == pytest.approx((1024, 2 * 2048, 7168, 256))
    assert up.grouped
    assert not products["decoder.moe.ffn.shared_up"].grouped
    flops = 2 * 32768 * 8 * 4096 * 7168 * 58
    assert up.fraction * up.seconds.value * one.rate("bf16") == pytest.approx(flops)


def test_products_attention_and_light_work_are_all_of_the_time():
    for model in ("gpt2", "deepseek-v3", "nemotron-h-8b"):
        for phase in ("prefill", "decode"):
            work = Workload(phase, 4, 1024)
            found = slowest(catalog.model(model), work, chip("h100"))
            assert sum(share for _, share in found.shares) == pytest.approx(1)
            assert 0 <= found.waits <= 1 + 1e-9


def test_another_width_scales_all_but_a_vocabulary_and_a_choice_of_experts():
    work, one = Workload("prefill", 1, 4096), chip("h100")
    spec = catalog.model("deepseek-v3")
    for p in gemm_products(spec, work, one):
        half, own, double = by_width(p, one, "bf16", 7168, (3584, 7168, 14336))
        assert own.intensity == pytest.approx(p.intensity)
        assert own.width == 7168
        assert half.intensity < own.intensity < double.intensity
        if not p.grows:
            k = p.k * 2
            assert double.intensity == pytest.approx(roofline(one, "bf16", p.m, p.n, k).intensity)


def test_a_scaled_width_is_never_crooked():
    """2112 × 4096 / 7168 = 1206.9 would be; the same product of a wider model is no slower."""
    work, one = Workload("prefill", 1, 4096), chip("h100")
    p = gemm_products(catalog.model("deepseek-v3"), work, one)[0]
    assert (p.n, p.k) == (2112, 7168)
    reached = [w.reached for w in by_width(p, one, "bf16", 7168, (4096, 7168, 8192))]
    assert reached == pytest.approx([reached[1]] * 3, rel=0.1)


# ---------------------------------------------------------------- what is slow


def test_the_crooked_vocabulary_of_gpt2_is_what_is_slow():
    found = slowest(catalog.model("gpt2"), Workload("prefill", 8, 1024), chip("a100"))
    assert found.operator == "model.lm_head"
    assert "50257 is no multiple of 2" in found.why
    assert "declared prior" in found.why
    straight = vary(catalog.model("gpt2"), vocab_size=50304)
    again = slowest(straight, Workload("prefill", 8, 1024), chip("a100"))
    assert "crooked" not in again.why
    assert again.seconds.value < found.seconds.value


def test_decoding_waits_for_memory():
    """A row of one token: 2 n k FLOPs for 2 n k bytes, where an H100 computes 295 a byte."""
    found = slowest(catalog.model("llama-3.1-8b"), Workload("decode", 1, 1024), chip("h100"))
    assert found.waits == pytest.approx(1)
    assert "where H100 SXM computes 295" in found.why


def test_a_long_prompt_is_slow_for_its_square():
    spec = catalog.model("gpt2")
    short = slowest(spec, Workload("prefill", 1, 1024), chip("h100"))
    long = slowest(spec, Workload("prefill", 1, 65536), chip("h100"))
    assert dict(long.shares)["attention"] > 2 * dict(short.shares)["attention"]
    assert "square of the context" in long.why


# ---------------------------------------------------------------- prices of widths


def test_a_dimension_costs_nothing_beside_itself():
    work = Workload("train", 8, 1024)
    found = nearby(catalog.model("gpt2"), "vocab_size", work, chip("a100"), (50257,))
    gain = found.neighbours[0].gain
    assert (gain.value, gain.low, gain.high) == (1.0, 1.0, 1.0)


def test_the_prior_of_one_width_is_not_in_the_price_of_another():
    """GPT-2's head is crooked whatever its feed-forward width: it costs the same on both sides."""
    work = Workload("train", 8, 1024)
    found = nearby(catalog.model("gpt2"), "d_ff", work, chip("a100"), (3200,))
    gain = found.neighbours[0].gain
    assert gain.value < 1
    assert gain.low == pytest.approx(gain.value) == gain.high


def test_a_crooked_neighbour_may_cost_and_its_price_lies_in_its_interval():
    work = Workload("train", 1, 4096)
    spec = catalog.model("llama-3.1-8b")
    found = nearby(spec, "d_ff", work, chip("h100"), (14335, 14328))
    for one in found.neighbours:
        assert one.gain.low < one.gain.value <= one.gain.high
        assert one.gain.low < 1
    assert not found.guaranteed


def test_padding_a_vocabulary_gains_and_the_prior_is_named():
    status, out = run("analyze", "gpt2", "--gpu", "a100", "--batch", "8", "--alignment",
                      "--vary", "vocab_size=50257:50304:47", "--json")  # fmt: skip
    assert status == 0
    own, padded = (row["speed"] for row in json.loads(out)["rows"])
    assert own["value"] == own["low"] == own["high"] == 1
    assert padded["kind"] == "assumed"
    assert padded["low"] <= 1.001 < padded["value"] < padded["high"]
    status, out = run("analyze", "gpt2", "--gpu", "a100", "--alignment",
                      "--vary", "vocab_size=50257:50304:47")  # fmt: skip
    assert "declared prior" in out


def test_a_width_that_is_set_crooked_shows_its_price():
    status, out = run("analyze", "llama-3.1-8b", "--gpu", "h100", "--alignment", "--set",
                      "d_ff=10922")  # fmt: skip
    assert status == 0
    assert "10922 is no multiple of 4" in out
    assert "10,944" in out


# ---------------------------------------------------------------- measured times


def fixed(*_args, **_given):
    return Measured(time=Time(1.0, 1.0, 1.0, 1.0, 1.0), source="a table", between=False)


def test_tables_of_straight_widths_answer_for_no_crooked_one(monkeypatch):
    monkeypatch.setattr("scantling.costs.measured.measured_gemm", fixed)
    work = Workload("prefill", 1, 1024)
    ops = [op for op in operators(catalog.model("gpt2"), work) if op.kind == "matmul"]
    kinds = {s.op: s.kind for s in sourced_times(ops, work, chip("h100"))}
    assert kinds.pop("model.lm_head") == "fitted"
    assert set(kinds.values()) == {"measured"}


def test_tables_of_causal_masks_answer_for_no_encoder(monkeypatch):
    monkeypatch.setattr("scantling.costs.measured.measured_prefill", fixed)
    work = Workload("prefill", 1, 512)
    for spec, kind in (
        (catalog.model("gpt2"), "measured"),
        (config("bert-base-uncased"), "fitted"),
    ):
        cores = [op for op in operators(spec, work) if op.kind == "attention"]
        assert {s.kind for s in sourced_times(cores, work, chip("h100"))} == {kind}


def test_measured_and_fitted_stand_side_by_side(monkeypatch):
    monkeypatch.setattr("scantling.costs.measured.measured_gemm", fixed)
    monkeypatch.setattr("scantling.costs.measured.measured_prefill", lambda *_: None)
    monkeypatch.setattr("scantling.report.alignment.installed", Path)
    spec = catalog.model("gpt2")
    found = alignment(spec, "h100", 1, 1024, kernels="both")["kernels"]["prefill"]
    by_name = {op["name"]: op for op in found["operators"]}
    qkv, head = by_name["decoder.layer.attention.qkv"], by_name["model.lm_head"]
    assert qkv["used"] == qkv["measured"]["kind"] == "measured"
    assert qkv["measured"]["value"] == 12.0  # a second for each of 12 layers
    assert qkv["source"] == "a table"
    assert qkv["ratio"] == pytest.approx(qkv["fitted"]["value"] / 12)
    assert (head["used"], head["measured"], head["ratio"]) == ("fitted", None, None)
    assert found["seconds"] == pytest.approx(
        4 * 12 + sum(o["fitted"]["value"] for o in by_name.values() if o["used"] == "fitted")
    )
    only = alignment(spec, "h100", 1, 1024, kernels="measured")["kernels"]["prefill"]
    assert only["operators"][0]["fitted"] is None
    assert only["seconds"] == pytest.approx(found["seconds"])


def test_measured_times_without_the_package_are_one_line(monkeypatch):
    monkeypatch.setattr("scantling.report.alignment.installed", lambda: None)
    for kernels in ("measured", "both"):
        status, out = run("analyze", "gpt2", "--alignment", "--kernels", kernels)
        assert status == 2
        assert "pip install 'scantling[kernels]'" in out
        assert "\n" not in out
    status, out = run("analyze", "gpt2", "--alignment", "--kernels", "fitted")
    assert status == 0
    assert "0% of it measured" in out


@needs_package
def test_most_of_a_dense_model_is_in_the_tables_and_the_fit_is_near_them():
    """The bar of large products is 8 % in the median; a whole pass of five is held to it."""
    found = alignment(catalog.model("llama-3.1-8b"), "h100", 8, 4096, kernels="both")["kernels"]
    for phase in ("prefill", "decode"):
        assert found[phase]["measured_share"] > 0.9
        assert found[phase]["ratio"] == pytest.approx(1, abs=0.08)


def test_gated_experts_are_asked_of_their_table_as_one_kernel(monkeypatch):
    """Mixtral's config: width 4096, 8 experts of 14336, two a token; 32 layers."""
    asked = []

    def answer(_chip, question, *_args, **at):
        asked.append((question, at))
        return fixed()

    monkeypatch.setattr("scantling.costs.measured.measured_time", answer)
    work = Workload("prefill", 2, 1024)
    ops = [op for op in operators(catalog.model("mixtral-8x7b"), work) if op.experts is not None]
    (one,) = sourced_kernels(ops, work, chip("h100"))
    ((question, at),) = asked
    assert question == "experts"
    assert set(at) == {*tables().table["experts"].exact, *tables().table["experts"].along}
    assert (at["hidden_size"], at["inter_size"], at["topk"], at["num_experts"]) == (
        4096, 14336, 2, 8,
    )  # fmt: skip
    assert at["num_tokens"] == 2048
    assert (one.kind, one.time.value_s) == ("measured", 32.0)
    assert one.fitted.value_s == sum(op_time(op, work, chip("h100")).value_s for op in ops)


@needs_package
def test_experts_of_a_known_shape_are_in_the_tables():
    found = alignment(catalog.model("mixtral-8x7b"), "h200", 2, 4096, kernels="both")["kernels"]
    (row,) = (op for op in found["prefill"]["operators"] if op["name"].endswith(".experts"))
    assert row["used"] == "measured"
    assert row["ratio"] == pytest.approx(1, abs=0.25)


@needs_package
def test_a_chip_in_no_table_is_said_to_be_in_none():
    status, out = run("analyze", "gpt2", "--alignment", "--gpu", "mi300x", "--kernels", "measured")
    assert status == 0
    assert "the measured tables do not hold this chip" in out


# ---------------------------------------------------------------- the command


def test_what_is_slow_comes_first_and_attention_has_its_section():
    status, out = run("analyze", "deepseek-v3", "--alignment", "--gpu", "h100", "--context", "4096")
    assert status == 0
    told = out[out.index("alignment on h100-sxm") :].splitlines()
    assert told[1].startswith("prefill: ")
    assert "Slowest: " in told[1]
    assert told[2].startswith("decode: ")
    assert "192/128" in out
    assert "FlashMLA takes 576 with values of 512" in out
    assert "× 256 experts" in out
    assert "7168 (own)" in out


def test_a_chip_file_is_as_good_as_a_name(tmp_path):
    path = tmp_path / "mine.toml"
    write_chip(chip("m4-max"), path)
    status, out = run("analyze", "gpt2", "--alignment", "--gpu", str(path), "--json")
    assert status == 0
    assert json.loads(out)["alignment"]["attention"][0]["prefill"]["tile"] is None


def test_wrong_input_is_one_line():
    for args, says in (
        (("--alignment", "--gpu", "h1000"), "gpu h1000 is not known"),
        (("--kernels", "both"), "needs --alignment"),
        (("--alignment", "--kernels", "both", "--vary", "d_ff=1:2:1"), "does not go with --vary"),
        (("--alignment", "--gpu", "v100"), "has no rate"),
    ):
        status, out = run("analyze", "gpt2", *args)
        assert status == 2
        assert says in out
        assert "\n" not in out


def test_the_roofline_is_drawn_with_the_operators_of_the_model(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "roof.svg"
    status, _ = run("analyze", "gpt2", "--alignment", "--gpu", "a100", "--plot", str(path))
    assert status == 0
    assert path.read_text(encoding="utf-8").startswith("<?xml")
    status, out = run("analyze", "gpt2", "--alignment", "--plot", str(tmp_path / "roof.gif"))
    assert status == 2
    assert "is no picture" in out
