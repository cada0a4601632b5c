"""Runtimes: what each takes is what its code or its list says, and no more is said."""

import json

import pytest
from click.testing import CliRunner

from case_files import case
from scantling import catalog
from scantling.cli import group
from scantling.costs.backends import backends
from scantling.costs.deployment import common
from scantling.costs.flash import takes
from scantling.costs.runtimes import runtime
from scantling.errors import FieldError
from scantling.formats import hf
from scantling.hardware import chip
from scantling.report.depth_limits import depth_table
from scantling.report.runtimes import kinds, layer_support, support
from scantling.sources import source
from scantling.spec import vary


def verdicts(found, pair):
    """Each runtime's verdict on one pair of widths."""
    i = found["heads"].index(list(pair))
    return {name: one["heads"][i]["verdict"] for name, one in found["runtimes"].items()}


def test_kinds_count_layers_and_not_modules():
    assert kinds(catalog.model("deepseek-v3")) == {"latent": 61, "dense": 3, "experts": 58}
    assert kinds(catalog.model("gemma-3-27b"))["window"] == 52
    t5 = kinds(hf.read({"model_type": "t5"}).spec)
    assert (t5["cross"], t5["encoder"], t5["attention"]) == (6, 6, 12)


def test_every_runtime_names_its_sources_and_its_version():
    for one in layer_support().values():
        assert any(letter.isdigit() for letter in one.title)
        assert all(source(key).where for key in one.sources)


def test_llama_cpp_kinds_are_the_architectures_of_the_gguf_package():
    constants = pytest.importorskip("gguf.constants")
    names = {arch.name for arch in constants.MODEL_ARCH}

    shown = layer_support()["llama.cpp"].shown

    assert {value.partition(" ")[0] for value in shown.values()} <= names


def test_transformers_kinds_are_model_types_of_the_package():
    auto = pytest.importorskip("transformers.models.auto.configuration_auto")

    shown = layer_support()["transformers"].shown

    assert set(shown.values()) <= set(auto.CONFIG_MAPPING_NAMES)


def test_a_head_of_80_is_outside_flashinfer_and_inside_the_others():
    """flash_api.cpp takes multiples of 8; FlashInfer 64, 128, 256; TensorRT-LLM lists 80."""
    found = support(vary(catalog.model("llama-3.1-8b"), d_head=80), "h100-sxm")

    assert verdicts(found, (80, 80)) == dict.fromkeys(
        ("vllm", "sglang", "tensorrt-llm", "llama.cpp", "transformers"), "yes"
    )
    kernels = found["runtimes"]["vllm"]["heads"][0]["kernels"]
    assert not any("FlashInfer" in k for k in kernels)


def test_a_head_of_100_is_in_no_list_of_tensorrt_llm_and_padded_elsewhere():
    """Public case SH-13: FlashAttention 2 pads 100 to a multiple of 8."""
    assert case("sh-13")["expected"]["fa2"]["hd100"] == "needs padding to multiple of 8"

    found = verdicts(support(vary(catalog.model("llama-3.1-8b"), d_head=100), "a100"), (100, 100))

    assert found["vllm"] == "padded"
    assert found["tensorrt-llm"] == "no"
    assert found["llama.cpp"] == "slow"


def test_an_absorbed_latent_has_fused_kernels_on_hopper_and_none_of_flash_on_ampere():
    """Public case SH-15: 576 for keys, 512 for values; FlashAttention 3 on Hopper only."""
    read = hf.read(case("sh-15")["input"]["hf_config"])
    hopper, ampere = support(read.spec, "h100-sxm"), support(read.spec, "a100")

    assert verdicts(hopper, (576, 512))["vllm"] == "yes"
    on_ampere = ampere["runtimes"]["vllm"]["heads"][ampere["heads"].index([576, 512])]["kernels"]
    assert not any("FlashAttention" in k or "FlashMLA" in k for k in on_ampere)


def test_a_head_of_512_is_asked_of_every_kind_of_layer():
    """Public case SH-16: Gemma 4's global layers are 512 wide where the local are 256."""
    assert case("sh-16")["expected"]["verdict"] == "warn"
    spec = vary(catalog.model("gemma-3-27b"), global__d_head=512)

    found = support(spec, "rtx-5090")

    assert [512, 512] in found["heads"]
    assert verdicts(found, (512, 512))["tensorrt-llm"] == "no"


def test_what_was_not_read_is_unknown_and_what_is_in_no_whole_list_is_not_listed():
    rwkv = support(hf.read({"model_type": "rwkv"}).spec)["runtimes"]
    kimi = support(catalog.model("kimi-linear-48b-a3b"))["runtimes"]

    assert rwkv["vllm"]["layers"]["rwkv"]["verdict"] == "not listed"
    assert rwkv["transformers"]["layers"]["rwkv"]["verdict"] == "yes"
    assert kimi["tensorrt-llm"]["layers"]["kimi_delta"]["verdict"] == "unknown"
    assert kimi["vllm"]["layers"]["kimi_delta"] == {
        "verdict": "yes",
        "why": "KimiLinearForCausalLM",
    }


def test_tensorrt_llm_runs_on_one_vendors_chips():
    found = support(catalog.model("llama-3.1-8b"), "mi300x")["runtimes"]

    assert found["tensorrt-llm"]["takes"] == "no"
    assert found["sglang"]["heads"][0]["verdict"] == "unknown"  # its kernels for AMD are untold


def test_llama_8b_runs_everywhere_on_an_h100():
    found = support(catalog.model("llama-3.1-8b"))["runtimes"]

    assert {one["takes"] for one in found.values()} == {"yes"}


def test_no_kind_of_a_catalogue_model_is_a_word_that_no_runtime_knows():
    words = {word for one in layer_support().values() for word in one.shown}

    for name in catalog.named():
        assert set(kinds(catalog.model(name))) <= words, name


def test_the_command_line_answers_for_a_chip():
    run = CliRunner().invoke
    found = json.loads(
        run(group, ["analyze", "gpt2", "--runtimes", "--gpu", "l4", "--json"]).output
    )

    assert found["runtimes"]["gpu"] == "l4"
    refused = run(group, ["analyze", "gpt2", "--runtimes", "--why", "d_model"]).exception
    assert isinstance(refused, FieldError)
    assert "--why" in str(refused)


@pytest.mark.parametrize("name", ["deepseek-v3", "kimi-linear-48b-a3b", "mixtral-8x7b"])
def test_a_runtime_takes_a_model_where_it_takes_every_part(name):
    for one in support(catalog.model(name))["runtimes"].values():
        parts = {p["verdict"] for p in (*one["layers"].values(), *one["heads"])}

        assert (one["takes"] == "yes") == (parts == {"yes"})


def test_depths_stand_against_each_reading_of_the_limit():
    """Audited claims A022 to A024: GPT-3's 96 layers against 64.8, 67.9 and 22.9."""
    row = depth_table(("gpt3-175b",))["models"][0]

    assert (row["n_layer"], row["d_model"]) == (96, 12288)
    assert row["limits"]["power"] == pytest.approx(64.8, abs=0.05)
    assert row["limits"]["log2"] == pytest.approx(67.9, abs=0.05)
    assert row["limits"]["ln"] == pytest.approx(22.9, abs=0.05)


def test_models_beyond_five_log2_of_their_width_are_those_of_the_published_list():
    """The notes on 26 recent models print L / (5 log2 D); those above 1 are the ones beyond."""
    printed = {"qwen3-0.6b": 0.56, "qwen3-4b": 0.64, "qwen3-8b": 0.60, "qwen3-32b": 1.04,
               "qwen3-30b-a3b": 0.87, "qwen3-235b-a22b": 1.57, "gpt-oss-20b": 0.42,
               "gpt-oss-120b": 0.63, "deepseek-v3": 0.95, "gemma-3-27b": 1.00}  # fmt: skip

    found = depth_table(tuple(printed))

    for row in found["models"]:
        assert row["times"]["log2"] == pytest.approx(printed[row["model"]], abs=0.006)
    assert found["beyond"]["log2"] == pytest.approx(3 / 10)  # 62 layers over 61.96


def test_the_share_beyond_is_a_count_of_the_catalogue():
    run = CliRunner().invoke(group, ["models", "--depth", "--json"])
    found = json.loads(run.output)

    assert found["beyond"]["models"] == len(catalog.named())
    beyond = sum(row["n_layer"] > row["limits"]["log2"] for row in found["models"])
    assert found["beyond"]["log2"] == beyond / len(catalog.named())
    assert sum(year["models"] for year in found["by_year"].values()) == len(catalog.named())


@pytest.mark.parametrize("name", ["vllm", "sglang", "tensorrt-llm", "llama.cpp", "transformers"])
@pytest.mark.parametrize("place", ["h100-sxm", "a100", "b200", "mi300x"])
def test_what_design_keeps_to_is_what_the_report_of_runtimes_says(name, place):
    """One table of kernels answers both; where a chip is in none, only common widths are kept."""
    for width in (40, 48, 64, 72, 80, 96, 100, 112, 128, 144, 160, 192, 224, 256, 512):
        spec = vary(catalog.model("llama-3.1-8b"), d_head=width)
        said = verdicts(support(spec, place), (width, width))[name]
        taken = runtime(name).takes(chip(place), width, width)
        if said == "unknown":
            assert taken <= common(width)
        else:
            assert taken == (said == "yes"), (width, said)


def test_flash_attention_2_pads_narrower_values_and_3_takes_them():
    """flash_api.cpp of 2: keys and values have one width; 3 has an instance of (192, 128)."""
    assert takes("flash2", chip("a100"), 192, 128).verdict == "padded"
    assert takes("flash3", chip("h100-sxm"), 192, 128).verdict == "yes"
    assert backends()["flash2"].takes(192, 128) == ("padded", 192)
    assert backends()["flash3"].takes(192, 128).verdict == "yes"


def test_tensorrt_llm_is_for_one_vendor():
    assert not runtime("tensorrt-llm").takes(chip("mi300x"), 128, 128)
    assert runtime("tensorrt-llm").takes(chip("h100-sxm"), 192, 128)
