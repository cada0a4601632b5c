"""A model that is kept is found again with its data, and trained further."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from scantling import catalog, vary
from scantling.cli import group
from scantling.spec import Rope
from scantling.spec.vary import rewrite

pytest.importorskip("torch", reason="needs the extra lab")

import torch

from scantling.lab import weights
from scantling.lab.kept import kept
from scantling.lab.model import Decoder
from scantling.lab.train import TrainingRun, train

torch.set_num_threads(1)
SPEC = vary(catalog.model("llama-3.2-1b"), n_layer=3, d_model=32, n_head=4, n_kv_head=2, d_head=8,
            d_ff=48, vocab_size=256)  # fmt: skip
GRAMMAR = "grammar:seed=3,n_bytes=40000"
FEW = {"steps": 4, "batch": 4, "device": "cpu"}


def typed(*words):
    return CliRunner().invoke(group, ["lab", *map(str, words)])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A tiny model trained on a grammar with knobs for a few steps."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(TrainingRun(spec=SPEC, data=GRAMMAR, context=16, out=folder, **FEW))
    return folder


@pytest.fixture(scope="module")
def cut(run):
    """The same without a layer and some heads, its feed-forwards of lower rank."""
    folder = run.parent / "cut"
    answer = typed("probe", run, "--drop-layers", "1", "--mask-heads", "0:0,1", "--low-rank", "6",
                   "--save", folder)  # fmt: skip
    assert answer.exit_code == 0, answer.output
    return folder


@pytest.mark.parametrize("data", [
    "recall:pairs=3,keys=5,values=4", "addition:digits=2,reverse=0", "hops:nodes=4,hops=1",
    "mqar:pairs=4,questions=2", "copy:length=4", GRAMMAR,
])  # fmt: skip
def test_a_run_says_with_which_knobs_its_data_is_found_again(tmp_path, data):
    context = 16 if data == GRAMMAR else None
    train(TrainingRun(spec=SPEC, data=data, context=context, out=tmp_path / "run", **FEW))
    task, note = kept(tmp_path / "run").task()
    assert note == ""
    answer = typed("probe", tmp_path / "run", "--json")
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.output)["data"] == task.name == data.partition(":")[0]


@pytest.mark.parametrize("suffix", [".txt", ".bin"])
def test_a_file_is_found_again_from_another_folder(tmp_path, monkeypatch, suffix):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / f"mine{suffix}"
    file.write_bytes(np.arange(4000, dtype="<u2").__mod__(200).tobytes() if suffix == ".bin"
                     else b"all work and no play. " * 400)  # fmt: skip
    words = ("--data", file.name, "--context", "8", "--batch", "2", "--steps", "2", "--device",
             "cpu", "--params", "60k", "--out", "run")  # fmt: skip
    more = ("--bytes-per-token", "3.5") if suffix == ".bin" else ()
    made = typed("train", "llama-3.2-1b", *words, *more)
    assert made.exit_code == 0, made.output
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    task, note = kept(tmp_path / "run").task()
    assert note == ""
    assert task.context == 8
    assert task.bytes_per_token == (3.5 if more else 1.0)


def test_a_cut_model_begins_from_its_weights_and_learns_further(cut, tmp_path):
    """Before the first step it loses what the cut one loses; twenty steps on it loses less."""
    task, _ = kept(cut).task()
    before = task.evaluate(kept(cut).model)["loss"]
    spec = kept(cut).model.spec
    told = train(TrainingRun(spec=spec, data=task, steps=1, lr=1e-12, start=cut, device="cpu"))
    assert told.judged["report"]["loss"] == pytest.approx(before, abs=1e-6)

    out = tmp_path / "healed"
    answer = typed("train", "--from", cut, "--steps", "20", "--lr", "3e-3", "--device", "cpu",
                   "--out", out, "--json")  # fmt: skip
    assert answer.exit_code == 0, answer.output
    after = json.loads(answer.output)
    assert after["dataset"].startswith("grammar")
    assert after["judged"]["report"]["loss"] < before - 0.1
    again = kept(out)
    assert again.model.spec == spec
    assert task.evaluate(again.model)["loss"] == pytest.approx(after["judged"]["report"]["loss"])


def test_a_cut_model_keeps_its_multipliers_through_further_training(tmp_path):
    """CompleteP scales branches by depth: two layers of four keep the scale of four."""
    spec = vary(SPEC, n_layer=4)
    train(TrainingRun(spec=spec, data=GRAMMAR, context=16, param="completep", out=tmp_path / "run",
                      **FEW))  # fmt: skip
    typed("probe", tmp_path / "run", "--drop-layers", "1-2", "--save", tmp_path / "cut")
    numerics = kept(tmp_path / "cut").model.numerics
    answer = typed("train", "--from", tmp_path / "cut", "--steps", "2", "--device", "cpu", "--out",
                   tmp_path / "on")  # fmt: skip
    assert answer.exit_code == 0, answer.output
    found = kept(tmp_path / "on").model
    assert found.numerics == numerics
    assert numerics != Decoder(found.spec, "completep").numerics
    assert found.param.kind == "completep"


def test_a_killed_run_that_began_from_weights_goes_on_bit_for_bit(cut, tmp_path):
    spec, data = kept(cut).model.spec, kept(cut).task()[0]

    class StopError(Exception):
        pass

    def stop(record):
        if record.get("step") == 2 and "loss" in record:
            raise StopError

    asked = {"spec": spec, "data": data, "steps": 4, "start": cut, "device": "cpu",
             "record_every": 1, "checkpoint_s": 0}  # fmt: skip
    whole = train(TrainingRun(**asked, out=tmp_path / "whole"))
    with pytest.raises(StopError):
        train(TrainingRun(**asked, out=tmp_path / "killed"), stop)
    found = train(TrainingRun(**asked, out=tmp_path / "killed"))
    assert found.losses == whole.losses


def test_published_weights_are_trained_further(tmp_path):
    model = Decoder(SPEC, seed=3)
    weights.save(model, tmp_path / "hub")
    task = ("--data", GRAMMAR, "--context", "16", "--batch", "4")
    answer = typed("train", "--from", tmp_path / "hub", *task, "--steps", "1", "--lr", "1e-12",
                   "--device", "cpu", "--json")  # fmt: skip
    assert answer.exit_code == 0, answer.output
    one, _ = kept(tmp_path / "hub").task(GRAMMAR, 16, 4)
    told = json.loads(answer.output)["judged"]["report"]["loss"]
    assert told == pytest.approx(one.evaluate(model)["loss"], abs=1e-5)


def test_what_has_no_weights_may_be_changed(run):
    """Another base of the rotation has the same tensors."""
    spec = rewrite(SPEC, lambda n: replace(n, theta=2e4) if isinstance(n, Rope) else n)
    task = kept(run).task()[0]
    found = train(TrainingRun(spec=spec, data=task, steps=1, lr=1e-12, start=run, device="cpu"))
    told = found.judged["report"]["loss"]
    assert found.model.spec == spec
    assert told != task.evaluate(kept(run).model)["loss"]
    assert told == pytest.approx(task.evaluate(kept(run).model)["loss"], abs=0.1)


@pytest.mark.parametrize(("words", "says"), [
    (("--set", "d_ff=64"), "is of another layout: decoder.layers.0"),
    (("--set", "n_layer=2"), "is of another layout: decoder.layers.2"),
    (("--params", "20k"), "--params 20000 does not go with --from"),
    (("--param", "mup"), "param mup is not that of"),
    (("--data", "nowhere.txt"), "data nowhere.txt cannot be read"),
])  # fmt: skip
def test_weights_that_do_not_fit_are_one_clear_line(run, words, says):
    answer = typed("train", "--from", run, "--steps", "1", "--device", "cpu", *words)
    assert says in str(answer.exception)
    assert "\n" not in str(answer.exception)


def test_no_model_and_no_weights_is_one_clear_line(tmp_path):
    assert str(typed("train", "--steps", "1").exception) == (
        "MODEL is not given; name one, or --from a run"
    )
    assert "is no run" in str(typed("train", "--from", tmp_path, "--steps", "1").exception)


def test_a_folder_that_holds_a_run_from_random_weights_is_refused(run, tmp_path):
    settings = {"spec": SPEC, "data": GRAMMAR, "context": 16, "out": tmp_path / "run", **FEW}
    train(TrainingRun(**settings))
    with pytest.raises(Exception, match="holds another run: start null there"):
        train(TrainingRun(**settings, start=run))
