"""The walk: eight stages, true shapes, sums that are the model's; run for real in torch."""

import json
import random
import subprocess
import sys

import pytest
from click.testing import CliRunner

import random_specs
from scantling import catalog, cli, parameters, trace
from scantling.costs.count import forward_flops
from scantling.errors import FieldError
from scantling.ops import operators
from scantling.report.trace import WORDS, walk
from scantling.spec import Workload, check

torch = pytest.importorskip("torch", reason="the lab's model needs torch")

from scantling.lab.model import Decoder  # noqa: E402 - only where torch is
from scantling.lab.probe import measure, run  # noqa: E402
from scantling.lab.shrink import changes, shrink  # noqa: E402

STRUCTURES = (
    "gpt2", "opt-350m", "bloom-560m", "falcon-7b", "falcon-40b", "pythia-160m", "gpt-j-6b",
    "llama-3.1-8b", "qwen2.5-7b", "qwen3-0.6b", "gemma-2-2b", "gemma-3-1b", "olmo2-7b", "olmo-1b",
    "command-r-plus-104b", "stablelm-2-12b", "smollm3-3b", "llama-4-scout", "mixtral-8x7b",
    "qwen1.5-moe-a2.7b", "deepseek-v2-lite", "deepseek-v3", "gpt-oss-20b", "nemotron-4-340b",
    "granite-3.0-2b", "mistral-7b-v0.1",
)  # fmt: skip


# ---------------------------------------------------------------- the walk


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_stages_sum_to_the_model(name):
    spec = catalog.model(name)
    stages = trace(name, context=64)["stages"]
    work = Workload("prefill", 1, 64)

    assert sum(s["params"] for s in stages) == parameters(spec).total
    assert sum(s["flops"] for s in stages) == forward_flops(operators(spec, work))
    assert len({s["name"] for s in stages}) == len(stages)
    assert {s["stage"] for s in stages} <= set(WORDS)


@pytest.mark.parametrize("structure", random.Random(7).sample(range(2000), 60))
def test_any_spec_can_be_walked(structure):
    spec = check(random_specs.spec(structure))
    stages = [s.to_json() for s in walk(spec, 2, 24)]
    work = Workload("prefill", 2, 24)

    assert sum(s["params"] for s in stages) == parameters(spec).total
    assert sum(s["flops"] for s in stages) == forward_flops(operators(spec, work))
    assert all(s["in_shape"] and s["out_shape"] for s in stages)


def test_the_eight_stages_of_a_decoder_stand_in_order():
    words = [s["stage"] for s in trace("llama-3.1-8b")["stages"]]

    assert words == ["token", "embedding", "norm", "qkv", "heads", "attention", "output", "norm",
                     "ffn", "norm", "head"]  # fmt: skip


def test_each_layer_kind_has_its_own_stages():
    found = trace("deepseek-v3")["stages"]
    last = {s["layer"]: s["stage"] for s in found if s["layer"]}

    assert last == {"decoder.dense": "ffn", "decoder.moe": "experts"}


def test_shapes_are_those_of_the_paper_s_heads():
    """Llama 3.1 8B: 32 query heads and 8 key-value heads of 128, at width 4096."""
    found = {s["stage"]: s for s in trace("llama-3.1-8b", batch=2, context=16)["stages"]}

    assert found["qkv"]["out_shape"] == [2, 16, (32 + 2 * 8) * 128]
    assert found["heads"]["out_shape"] == [2, 32, 16, 128]
    assert found["output"]["in_shape"] == [2, 16, 4096]
    assert found["head"]["out_shape"] == [2, 16, 128256]


# ---------------------------------------------------------------- the run


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_model_in_torch_is_the_spec(name):
    """Parameters are those of the count, and every stage has the shape the trace says."""
    spec = shrink(catalog.model(name), 600_000, 20)
    model = Decoder(spec)
    seen = {k: sums.shape for k, sums in measure(model, 2, 20).items()}
    said = {s.name: s.out_shape for s in walk(spec, 2, 20) if s.word != "token"}

    assert sum(p.numel() for p in model.parameters()) == parameters(spec).total
    assert seen == said


def test_statistics_stand_beside_the_shapes():
    found = run("qwen3-0.6b", context=16, limit=500_000)
    stages = found["stages"]

    for stage in stages[1:]:
        assert stage["statistics"]["shape"] == stage["out_shape"]
        assert stage["statistics"]["max_abs"] >= abs(stage["statistics"]["mean"])
    norm = next(s for s in stages if s["stage"] == "norm")
    assert norm["statistics"]["std"] == pytest.approx(1, abs=0.01)  # what a norm is for
    assert found["run"]["parameters"] == sum(s["params"] for s in stages)


def test_equal_seeds_give_equal_statistics():
    one, two, other = (run("gpt2", context=8, limit=300_000, seed=s) for s in (1, 1, 2))

    assert one == two
    assert one["stages"][1]["statistics"] != other["stages"][1]["statistics"]


def test_a_smaller_model_keeps_its_structure():
    before = catalog.model("deepseek-v3")
    after = check(shrink(before, 2_000_000, 32))

    assert parameters(after).total <= 2_000_000
    assert set(after.decoder.expand()) == set(before.decoder.expand())
    assert after.decoder.kinds[0].blocks[0].pre == before.decoder.kinds[0].blocks[0].pre
    assert changes(before, after)["n_layer"] == (61, 2)
    assert shrink(after, 2_000_000, 32) == after


def test_what_the_lab_does_not_run_is_named():
    from scantling.spec import PerLayerInput
    from scantling.spec.vary import rewrite

    spec = catalog.model("gpt2")
    mixer = spec.decoder.kinds[0].blocks[0].branches[0].module
    other = rewrite(spec, lambda n: PerLayerInput(8) if n == mixer else n)
    with pytest.raises(FieldError, match=r"needs embeddings\.per_layer of its width"):
        Decoder(other)
    with pytest.raises(FieldError, match="does not fit"):
        shrink(spec, 1000)


def test_trace_runs_from_the_command_line():
    args = ["trace", "gpt2", "--run", "--context", "8"]
    text = CliRunner().invoke(cli.group, args, standalone_mode=False)
    found = CliRunner().invoke(cli.group, [*args, "--json"], standalone_mode=False)
    answer = json.loads(found.stdout)

    assert "measured: mean" in text.stdout
    assert "made smaller to fit" in text.stdout
    assert answer["model"] == "gpt2"
    assert answer["stages"][1]["statistics"]["std"] > 0


def test_the_tree_has_a_branch_for_each_layer_kind():
    found = CliRunner().invoke(cli.group, ["trace", "deepseek-v3"], standalone_mode=False)
    total = f"in all {catalog.named()['deepseek-v3'].parameters:,} parameters"

    for text in ("decoder.dense × 3", "decoder.moe × 58", "Q/K/V", total):
        assert text in found.stdout


def test_a_trace_without_a_run_needs_no_torch():
    code = (
        "import sys, scantling; scantling.trace('gpt2'); "
        "sys.exit('torch' in sys.modules)"
    )  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
