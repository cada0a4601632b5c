"""What looks at a trained model really runs: known answers, shared models, the command."""

import json

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from scantling.cli import group
from scantling.lab.experiments import EXPERIMENTS, ffn_svd, head_pruning, rope_scaling
from scantling.lab.study import Probed, answer

pytest.importorskip("torch", reason="needs the extra lab")

import torch

from scantling.lab import examine
from scantling.lab.interventions import DropLayers, MaskHeads, applied
from scantling.lab.model import Decoder
from scantling.lab.study import training
from scantling.lab.study.training import Training, task_of

torch.set_num_threads(1)
SMALL = "grammar:n_bytes=60000"
LOOKS = ["layer-removal", "head-pruning", "ffn-svd", "rope-scaling"]


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """Lengths that a small text has, and no time for timing."""
    monkeypatch.setattr(rope_scaling, "CONTEXT", 16)
    monkeypatch.setattr(examine, "ROUNDS", 1)
    monkeypatch.setattr(training, "TIMED_S", 0.0)


def looked(name):
    """What a probe tells of a new model, by arm and measure; the model, its task, the trial."""
    study = replace(EXPERIMENTS[name].study(), data=SMALL, context=16, tokens=1024)
    trial = study.trial(study.shapes[0], 1e-3, 0, study.tokens)
    model = Decoder(trial.spec, seed=1)
    with torch.no_grad():  # so that no two arms are alike by chance
        for i, layer in enumerate(model.layers):
            for p in layer.parameters():
                p.mul_(1 + 0.5 * i)
    task = task_of(SMALL, study.batch, 16, "bytes")
    from importlib import import_module

    module, _, function = study.probe.partition(":")
    found = getattr(import_module(module), function)(model, task, trial)
    arms = {a: {m.name: found[Probed.key(a, m.name)] for m in (study.measure, *study.also)}
            for a in study.arms}  # fmt: skip
    assert len(found) >= sum(map(len, arms.values()))
    return arms, model, task, trial


def test_a_layer_that_is_removed_is_the_one_that_is_named():
    arms, model, task, _ = looked("layer-removal")
    with applied(model, DropLayers((2, 3, 4))):
        assert arms["without 2 to 4"]["loss"] == pytest.approx(task.evaluate(model)["loss"])
    assert arms["as trained"]["angle"] == 0
    assert all(0 < arm["angle"] < 1 for name, arm in arms.items() if name != "as trained")
    sizes = [arms[n]["kib"] for n in ("as trained", "without 0", "without 3 to 4")]
    assert sizes[0] - sizes[2] == pytest.approx(2 * (sizes[0] - sizes[1]))


def test_heads_go_by_their_sensitivity_and_what_is_built_has_fewer():
    arms, model, task, trial = looked("head-pruning")
    ranked = head_pruning.by_sensitivity(model, task, trial)
    assert len(set(ranked)) == 24
    with applied(model, MaskHeads(tuple(ranked[-12:]))):
        assert arms["50 % most sensitive"]["loss"] == pytest.approx(task.evaluate(model)["loss"])
    for share in (25, 50, 75):
        random = arms[f"{share} % random"]
        assert random["best"] < random["loss"] < random["worst"]
        assert arms[f"{share} % least sensitive"]["kib"] < arms["as trained"]["kib"]


def test_full_rank_loses_nothing_and_break_even_is_where_numbers_are_equal():
    arms, *_ = looked("ffn-svd")
    assert arms["rank 64"]["loss"] == pytest.approx(arms["as trained"]["loss"], abs=1e-4)
    assert arms["rank 64"]["share"] == pytest.approx(1.372, abs=1e-3)
    assert ffn_svd.break_even(64, 172) == pytest.approx(46.64, abs=0.01)
    larger = [name for name, arm in arms.items() if arm["kib"] > arms["as trained"]["kib"]]
    assert larger == ["rank 64", "rank 48"]


def test_at_the_trained_length_nothing_is_stretched_by_length_nor_by_dynamic():
    arms, *_ = looked("rope-scaling")
    assert len(arms) == 8
    plain = arms["none"]
    for name in ("dynamic NTK", "linear by length", "YaRN by length"):
        assert arms[name]["x1"] == plain["x1"]
    for name in ("linear", "NTK", "YaRN"):
        assert arms[name]["x1"] != plain["x1"]
        assert arms[name]["x8"] == arms[f"{name} by length"]["x8"]
    assert plain["longer"] == pytest.approx(sum(plain[f"x{n}"] for n in (2, 4, 8)) / 3)


def test_experiments_train_their_models_once(tmp_path):
    """The second one finds three models, trains nothing, and a third run finds its answers."""
    runner = Training("cpu", models=tmp_path / "models")
    steps = {}
    for name in ("ffn-svd", "layer-removal"):
        study = replace(EXPERIMENTS[name].study(), data=SMALL, tokens=4096, least_tokens=4096)
        told = []
        answer(study, runner, tmp_path / name, engine="here", say=told.append)
        steps[name] = told[-1]
        models = sorted((tmp_path / "models").iterdir())
        assert len(models) == 3
        if name == "ffn-svd":
            written = [(m / "checkpoint.pt").stat().st_mtime_ns for m in models]
        else:
            assert [(m / "checkpoint.pt").stat().st_mtime_ns for m in models] == written
    assert "one model looked at" in steps["ffn-svd"]
    assert "known models looked at" in steps["layer-removal"]
    read = CliRunner().invoke(group, ["lab", "probe", str(models[0]), "--drop-layers", "0",
                                      "--json"])  # fmt: skip
    assert read.exit_code == 0, read.output
    assert json.loads(read.output)["rows"][0]["parameters"] == 313_664


def test_the_command_answers_reports_and_draws(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(group, [
        "lab", "run", "ffn-svd", "--data", SMALL, "--tokens", "24000", "--engine", "here",
        "--device", "cpu",
    ])  # fmt: skip
    assert ran.exit_code in {0, 1}, ran.output
    assert "of 6 comparisons" in ran.output
    folder = tmp_path / "lab-runs" / "ffn-svd-quick"
    told = CliRunner().invoke(group, ["lab", "report", str(folder)]).output
    assert "3 models of 6 layers × 64" in told
    assert "Every arm is the same 3 trained models" in told
    page = (folder / "report.html").read_text()
    assert page.count("<tr") == 9
    assert (folder / "figure.svg").read_text().count("<circle") == 24


def test_generated_data_has_one_length_and_says_so():
    study = replace(EXPERIMENTS["rope-scaling"].study(), data="hops:nodes=4")
    with pytest.raises(Exception, match=r"data hops:nodes=4 has one length only; give a text"):
        rope_scaling.probe(None, None, study.trial(study.shapes[0], 1e-3, 0, 1024))
