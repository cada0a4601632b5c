"""Names: as tables spell them, each finds the model it means, or none."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from scantling import catalog, hardware
from scantling.costs.count import parameters
from scantling.costs.readings import readings
from scantling.errors import UnknownNameError
from scantling.formats import hf
from scantling.report.analyze import analyze

SHARED = Path(__file__).parents[2] / "shared" / "data"

SPELLED = {
    "LLAMA3.1_405B": "llama-3.1-405b",
    "LLAMA3_70B": "llama-3-70b",
    "Llama-3_3-70B-Instruct": "llama-3.3-70b",
    "Meta-Llama-3-8B": "llama-3-8b",
    "llama3-405b": "llama-3.1-405b",
    "Llama-2-13b-hf": "llama-2-13b",
    "llama 13B Q4_0": "llama-13b",
    "qwen2 7B IQ3_XXS": "qwen2-7b",
    "Qwen3_235B_a22B": "qwen3-235b-a22b",
    "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8": "qwen3-235b-a22b",
    "nvidia/Qwen3-32B-NVFP4": "qwen3-32b",
    "GPT_OSS_120B": "gpt-oss-120b",
    "deepseekv3": "deepseek-v3",
    "DeepSeek-V3-0324": "deepseek-v3",
    "DeepSeekV3 (w/o MTP)": "deepseek-v3",
    "deepseek-ai/DeepSeek-V2-Lite-Chat": "deepseek-v2-lite",
    "Kimi-K2-Instruct-0905": "kimi-k2",
    "moonshotai/Kimi-K2-Thinking": "kimi-k2-thinking",
    "zai-org/GLM-4.7-FP8": "glm-4.7",
    "zai-org/GLM-4.5-Air-FP8": "glm-4.5-air",
    "Mixtral 8X22B": "mixtral-8x22b",
    "Mixtral-8x7B-Instruct-v0.1": "mixtral-8x7b",
    "NVIDIA-Nemotron-3-Super-120B-A12B-BF16": "nemotron-3-super-120b-a12b",
    "Nemotron_3_Ultra": "nemotron-3-ultra-550b-a55b",
    "NemotronH_56B": "nemotron-h-56b",
    "NVIDIA-Nemotron-Nano-12B-v2": "nemotron-nano-12b-v2",
    "CodeLlama-34b-Instruct-hf": "codellama-34b",
    "MPT-760m": "mpt-760m",
    "MPT-70b": "mpt-70b",
    "GPT-J-6B": "gpt-j-6b",
    "gemma-2-9b-it": "gemma-2-9b",
}


@pytest.mark.parametrize(("spelled", "name"), SPELLED.items())
def test_a_spelling_finds_its_model(spelled, name):
    assert catalog.resolve(spelled).name == name


@pytest.mark.parametrize(
    ("name", "billions", "found"),
    [
        ("StableLM Alpha", 7, "stablelm-base-alpha-7b"),
        ("Falcon", 180, "falcon-180b"),
        ("Llama 2", 13, "llama-2-13b"),
        ("CodeLlama", 34, "codellama-34b"),
        ("phi-1.5", 1.3, "phi-1.5"),
        ("Pythia", 6.9, "pythia-6.9b"),
    ],
)
def test_a_size_may_stand_in_a_column_of_its_own(name, billions, found):
    assert catalog.resolve(name, billions).name == found


@pytest.mark.parametrize("name", ["Llama 2", "22B", "1T", "GPT-9-7B", "Qwen3-33B", ""])
def test_no_model_is_guessed(name):
    """A family of several sizes, a size without a family, and what nobody made."""
    with pytest.raises(UnknownNameError, match="model"):
        catalog.resolve(name)


def test_a_size_that_is_not_the_models_is_no_match():
    with pytest.raises(UnknownNameError):
        catalog.resolve("phi-1.5", 13)


@pytest.mark.parametrize("name", sorted(catalog.named()))
def test_every_name_and_hub_id_finds_itself(name):
    entry = catalog.named()[name]
    for spelled in (name, name.upper(), name.replace("-", "_"), entry.hub):
        if spelled:
            found = catalog.resolve(spelled).name
            assert found == name or catalog.named()[found].hub == entry.hub


@pytest.mark.parametrize("name", sorted(catalog.named()))
def test_every_model_is_analysed(name):
    found = analyze(name, context=1024)
    assert found.params.total == catalog.named()[name].parameters
    assert 0 < found.params.active <= found.params.total
    assert found.flops.train > found.flops.forward > 0


def test_a_model_with_its_prediction_modules_has_its_published_size():
    """Nemotron 3 Super's checkpoint: 123,611,012,096 weights, 2,942,324,736 of them predict later
    tokens; of the experts' 107,898,470,400 are idle for one token."""
    counted = parameters(catalog.model("nemotron-3-super-120b-a12b"))
    assert counted.total == 123_611_012_096 - 2_942_324_736
    assert counted.total - counted.active == 107_898_470_400


@pytest.mark.parametrize(
    ("name", "billions"),
    [("nemotron-h-8b", 8.1), ("nemotron-h-47b", 46.8), ("nemotron-nano-9b-v2", 8.89),
     ("nemotron-nano-12b-v2", 12.31), ("nemotron-4-15b", 15.6), ("qwen3-next-80b-a3b", 79.7),
     ("minimax-m2", 228.7), ("minimax-text-01", 456.1), ("internlm-20b", 20.1)],
)  # fmt: skip
def test_a_size_of_a_model_card_is_met(name, billions):
    """What the cards print, to their last digit."""
    assert parameters(catalog.model(name)).total / 1e9 == pytest.approx(billions, abs=0.055)


def test_modules_that_share_weights_are_stored_once_and_run_more_often():
    super_ = catalog.loaded("nemotron-3-super-120b-a12b")
    assert (super_.n_mtp, super_.mtp_passes) == (1, 2)
    assert "with_mtp" in readings(super_.spec, super_.n_mtp)
    assert catalog.loaded("deepseek-v3").mtp_passes == 1
    assert catalog.loaded("llama-3-8b").mtp_passes == 0


def test_shapes_of_others_are_no_peers_to_copy():
    peers = {name for _, _, name in catalog.recent_dense()}
    assert "llama-3.1-8b" in peers
    assert not peers & {"mpt-13b", "megatron-1.7b", "nemotron-h-8b", "qwen3.5-27b"}
    assert not any("distill" in name for name in peers)


def test_what_was_tuned_has_the_shape_it_began_with():
    """Vocabulary rows, rotary base and context aside, which a tuning may change."""
    for entry in catalog.named().values():
        if entry.tuned_from is not None:
            mine, theirs = (catalog.model(n) for n in (entry.name, entry.tuned_from))
            for field in ("n_layer", "d_model", "n_head", "n_kv_head", "d_ff"):
                assert mine.read(field) == theirs.read(field), entry.name


@pytest.mark.parametrize(
    ("spelled", "key"),
    [("DGX-H100", "h100-sxm"), ("DGX-GB200", "gb200"), ("DGX-GB300", "gb300"),
     ("DGX-B300", "b300-sxm"), ("b200_sxm", "b200-sxm"), ("NVIDIA GB200 SXM", "gb200"),
     ("8x H200 NVLink4", "h200-sxm"), ("a100_40gb", "a100-sxm-40gb"),
     ("H100-96GB-HBM2e-500W", "h100-sxm-96gb-hbm2e"), ("h100_80gb", "h100-sxm")],
)  # fmt: skip
def test_a_machine_is_its_chip(spelled, key):
    assert hardware.chip(spelled).key == key


# ---------------------------------------------------------------- the tables and configs beside us

NO_SHAPE = {"16B", "22B", "32B", "52B", "64B", "128B", "175B", "530B", "1T"}
"""Sizes that a table gives without a family: their rows have their widths, or nobody knows them."""


def names() -> list[tuple[str, float | None]]:
    """Every model a measured table names, with the size that stands beside it."""
    folder = SHARED / "measured"
    if not folder.exists():
        pytest.skip(f"{folder} is not here: the measured tables are kept beside the project")
    found = set()
    for path in sorted(folder.glob("*.csv")):
        with path.open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row.get("model"):
                    size = row.get("size_B")
                    found.add((row["model"], float(size) if size else None))
    return sorted(found, key=str)


def test_every_model_of_the_measured_tables_is_known():
    unknown = []
    for name, billions in names():
        try:
            catalog.resolve(name, billions)
        except UnknownNameError:
            unknown.append(name)
    assert set(unknown) <= NO_SHAPE


def test_an_entry_has_the_shape_of_the_real_config():
    """Where the config lies beside the project; a vocabulary may be padded there or here."""
    folder = SHARED / "configs"
    if not folder.exists():
        pytest.skip(f"{folder} is not here: real configs are kept beside the project")
    both = {path.stem: path for path in folder.glob("*.json")} & catalog.named().keys()
    assert len(both) >= 100
    for name in both:
        config = json.loads((folder / f"{name}.json").read_text("utf-8"))
        real = hf.read(config).spec
        assert parameters(real).body == parameters(catalog.model(name)).body, name
