"""Weights as they were released: the catalogue, a file and a name say the same."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from scantling import catalog, cli
from scantling.costs.quantize import released_scheme, scheme, schemes
from scantling.costs.weights import weight_memory
from scantling.report.analyze import analyze


def ran(*args):
    return CliRunner().invoke(cli.group, list(args), standalone_mode=False)


@pytest.mark.parametrize(("name", "gib"), [("gpt-oss-20b", 12.8), ("gpt-oss-120b", 60.8)])
def test_a_released_checkpoint_has_the_size_its_card_prints(name, gib):
    """arXiv 2508.10925, table 1: checkpoint size in GiB."""
    assert analyze(name).to_json()["memory"]["released_bytes"] / 2**30 == pytest.approx(
        gib, abs=0.05
    )


def test_kimi_k2_thinking_has_the_size_its_hub_page_shows():
    """594 GB: routed experts in 4 bits with a scale for 32, the rest in 16 bits."""
    assert analyze("kimi-k2-thinking").released_bytes / 1e9 == pytest.approx(594, rel=0.01)


def test_every_packed_release_of_the_catalogue_has_a_scheme_and_a_source():
    packed = [m for m in catalog.named().values() if m.quantization is not None]
    assert {"deepseek-v3", "deepseek-r1", "deepseek-v3.1", "deepseek-v3.2", "kimi-k2",
            "gpt-oss-20b", "minimax-m2"} <= {m.name for m in packed}  # fmt: skip
    for m in packed:
        assert released_scheme(m.quantization) is not None, m.name
        assert m.quantization_source, m.name


def test_deepseek_v3_by_name_fits_eight_h200_as_its_file_does(tmp_path):
    """671 GB of FP8 are 84 GB on each of 8 chips of 141 GB; 16 bits would be 168 GB."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(catalog.named()["deepseek-v3"].released_config()))
    for given in ("deepseek-v3", str(file)):
        served = ran("serve", given, "--gpu", "h200", "--gpus", "8", "--json")
        assert served.return_value == 0, served.output
        assert "weights as released: fp8-block" in str(json.loads(served.stdout)["question"])
        linted = ran("lint", given, "--gpu", "h200", "--tp", "8", "--phase", "serve", "--json")
        assert "SC901" not in linted.stdout


def test_a_quantisation_that_is_asked_for_beats_the_released_one():
    asked = ran("serve", "deepseek-v3", "--gpu", "h200", "--gpus", "8", "--quant", "bf16", "--json")
    assert json.loads(asked.stdout)["fits"] is False


def test_a_name_that_says_how_weights_are_stored_beats_the_release():
    """DeepSeek-R1-NVFP4 is no FP8 checkpoint, and an unpacked copy is no packed one."""

    def kept(name):
        return released_scheme(catalog.load(name).quantization)

    assert kept("deepseek-r1-nvfp4") == scheme("nvfp4")
    assert kept("gpt-oss-20b-bf16") is None
    assert kept("deepseek-v3-fp8") == scheme("fp8-block")
    assert kept("Qwen3-8B-AWQ") == scheme("awq-int4")
    assert kept("qwen3-8b") is None


def test_deepseek_v4_is_read_with_its_experts_in_four_bits():
    """vLLM's DeepseekV4FP8Config: FP8 blocks, and MXFP4 experts where ``expert_dtype`` is fp4."""
    config = dict(catalog.named()["deepseek-v4-flash"].config)
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    assert released_scheme(catalog.load(config).quantization).name == "fp8-block"
    config["expert_dtype"] = "fp4"
    assert released_scheme(catalog.load(config).quantization).name == "mxfp4-fp8"


def test_other_parts_in_eight_bits_take_half_of_what_they_take_in_sixteen():
    spec = catalog.model("deepseek-v4-flash")
    four, both = (weight_memory(spec, schemes()[n]) for n in ("mxfp4", "mxfp4-fp8"))
    moved = both.packed_elements - four.packed_elements
    scales = both.bytes - four.bytes + moved
    assert moved > 0
    assert moved * 4 / 128**2 <= scales < moved * 4 / 128**2 * 1.05  # blocks at edges are cut


def test_minimax_m2_as_released_does_not_run_on_eight_ranks():
    """vllm-project/recipes, MiniMax-M2: "TP8 is not supported"; 4 is what it is started with."""

    def codes(tp):
        found = json.loads(
            ran("lint", "minimax-m2", "--tp", tp, "--phase", "serve", "--json").stdout
        )
        return {f["code"] for f in found["findings"] if f["level"] == "error"}

    assert "SC402" in codes("8")
    assert not codes("4")


def test_analyze_says_the_size_of_the_released_weights():
    shown = ran("analyze", "deepseek-v3").stdout
    assert "as released" in shown
    assert "fp8-block" in shown
    assert "as released" not in ran("analyze", "llama-3.1-8b").stdout


def test_plan_says_that_training_is_in_other_numbers_than_the_release():
    shown = ran("plan", "gpt-oss-20b", "--gpus", "64", "--json").stdout
    assert "released as mxfp4" in shown
