"""Runs trained together are the runs that they are alone."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from dataclasses import replace

import msgspec
import pytest
from click.testing import CliRunner

from scantling import catalog, vary
from scantling.cli import group
from scantling.errors import FieldError

torch = pytest.importorskip("torch", reason="the lab needs torch")

from scantling.lab import run_folder  # noqa: E402 - only where torch is
from scantling.lab.run import TrainingRun  # noqa: E402
from scantling.lab.shrink import shrink  # noqa: E402
from scantling.lab.study import GroupRunner, Pace, Rates, Shape, Study, answer, store  # noqa: E402
from scantling.lab.study.sweep import ShapeJob, groups, run_shape  # noqa: E402
from scantling.lab.study.training import Training  # noqa: E402
from scantling.lab.study.trial import key  # noqa: E402
from scantling.lab.tasks import generated  # noqa: E402
from scantling.lab.train import train  # noqa: E402
from scantling.lab.train_many import train_many  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


TINY = {"model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 16, "head_dim": 8,
        "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 32,
        "tie_word_embeddings": True}  # fmt: skip
T5 = {"model_type": "t5", "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
GPT2 = {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}


def tiny(config=TINY, vocab_size=32, **changes):
    return vary(catalog.load(config | {"vocab_size": vocab_size}).spec, **changes)


def run_of(**given):
    given = {"spec": tiny(), "data": generated("mqar", batch_size=4), "steps": 20, "lr": 3e-3,
             "device": "cpu", "record_every": 5} | given  # fmt: skip
    return TrainingRun(**given)


def members(run):
    """Of two rates and two seeds."""
    return [replace(run, lr=run.lr * r, seed=s) for s in (0, 1) for r in (0.5, 2.0)]


def agree(together, alone, least=1e-4):
    for one, other in zip(together, alone, strict=True):
        assert (one.steps, one.why) == (other.steps, other.why)
        assert max(abs(a - b) for a, b in zip(one.losses, other.losses, strict=True)) < least
        for held, measures in other.judged.items():
            for name in ("loss", "bits_per_byte"):
                assert abs(one.judged[held][name] - measures[name]) < least
        known, lone = ([r for r in found.records if "lr" in r] for found in (one, other))
        for a, b in zip(known, lone, strict=True):
            assert (a["step"], a["lr"]) == (b["step"], b["lr"])
            assert abs(a["gradient_norm"] - b["gradient_norm"]) < 1e-3 * b["gradient_norm"]
        looks = [[r["step"] for r in found.records if "slice" in r] for found in (one, other)]
        assert looks[0] == looks[1]


TEXT = {"data": "grammar:n_bytes=40000", "batch": 2, "context": 24, "spec": tiny(vocab_size=256)}


@pytest.mark.parametrize("changes", [
    {}, {"param": "mup"}, {"param": "completep"}, {"optimizer": "muon"}, {"schedule": "wsd"},
    {"clip": None}, {"clip": 0.1, "weight_decay": 0.5}, {"rates": {"decoder.layers.0": 0.1}},
    TEXT, {"judge_every": 10}, {"spec": tiny(T5)}, {"spec": tiny(GPT2), "least": 0.1},
], ids=lambda changes: " ".join(f"{k}={v}"[:24] for k, v in changes.items()))  # fmt: skip
def test_each_is_the_lone_run_after_twenty_steps(changes):
    """Losses, norms, what is held back: other rates and seeds, whatever the recipe."""
    runs = members(run_of(**changes))
    agree(train_many(runs), [train(run) for run in runs])


def test_one_that_diverges_ends_where_it_would_alone_and_disturbs_no_other():
    """A rate of ten is a loss far above a guess, one of 1e30 no number."""
    run = run_of(param="sp", clip=None, warmup=0)
    runs = [replace(run, lr=lr, seed=s) for s, lr in enumerate((3e-3, 10.0, 1e-2, 1e30))]
    found, alone = train_many(runs), [train(run) for run in runs]
    assert [one.status for one in found] == ["done", "diverged", "done", "diverged"]
    assert [one.steps for one in found] == [one.steps for one in alone]
    assert "where a guess without a model has" in found[1].why
    assert "the loss is nan at step" in found[3].why
    agree([found[0], found[2]], [alone[0], alone[2]])
    alone = train_many([runs[0], runs[2]])
    assert found[0].losses == pytest.approx(alone[0].losses, abs=1e-5)


def test_what_differs_in_more_than_rate_and_seed_is_refused():
    run = run_of()
    with pytest.raises(FieldError, match="runs weight_decay differs"):
        train_many([run, replace(run, weight_decay=0.0)])
    with pytest.raises(FieldError, match="in one process, in fp32, without micro-batches"):
        train_many([replace(run, micro_batch=2)] * 2)


class CutError(Exception):
    """In place of a kill."""


def same(one, other):
    weights = [run_folder.weights(found.model) for found in (one, other)]
    return one.losses == other.losses and all(
        torch.equal(weights[0][name], weights[1][name]) for name in weights[0]
    )


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_runs_that_are_cut_short_go_on_to_the_same_weights_bit_for_bit(tmp_path, optimizer):
    """One diverges in between, so that the group shrinks before the cut."""
    run = run_of(optimizer=optimizer, checkpoint_s=0.0, warmup=0, clip=None)
    runs = [replace(run, lr=lr, seed=s) for s, lr in enumerate((3e-3, 1e30, 1e-2))]

    def cut(record):
        if record["step"] in {10, 15} - cuts:
            cuts.add(record["step"])
            raise CutError

    cuts = set()
    for _ in range(2):
        with pytest.raises(CutError):
            train_many(runs, tmp_path, cut)
    began = []
    found = train_many(runs, tmp_path, lambda record: began.append(record["step"]))
    assert began[0] == 15
    whole = train_many(runs)
    assert [one.why for one in found] == [one.why for one in whole]
    assert same(found[0], whole[0])
    assert same(found[2], whole[2])


def test_seeds_of_one_shape_are_trained_at_once_as_they_are_typed(tmp_path):
    """Each keeps a folder that a run of its own could have made, and is known there."""
    (tmp_path / "tiny.json").write_text(json.dumps(TINY | {"vocab_size": 32}))
    words = [str(tmp_path / "tiny.json"), "--data", "mqar", "--batch", "4", "--steps", "8",
             "--device", "cpu", "--json"]  # fmt: skip
    typed = [*words, "--seed", "3", "--seeds", "3", "--out", str(tmp_path / "r")]
    found, again = (
        json.loads(CliRunner().invoke(group, ["lab", "train", *typed]).stdout)["runs"]
        for _ in range(2)
    )
    assert [(r["seed"], r["members"]) for r in found] == [(3, 3), (4, 3), (5, 3)]
    assert [r["loss"] for r in again] == [r["loss"] for r in found]
    lone = json.loads(CliRunner().invoke(group, ["lab", "train", *words, "--seed", "4"]).stdout)
    assert lone["loss"] == pytest.approx(found[1]["loss"], abs=1e-4)
    kept = run_folder.saved(tmp_path / "r" / "seed-4")
    assert len(kept["progress"]["losses"]) == 8
    assert sorted(p.name for p in (tmp_path / "r").iterdir()) == ["seed-3", "seed-4", "seed-5"]


# ---------------------------------------------------------------- in a study


def study(**changes):
    shapes = tuple(Shape(f"L{d}", tiny(n_layer=d), rate=0.01) for d in (1, 2))
    return Study(name="test", question="which depth?", shapes=shapes, data="mqar", batch=4,
                 context=23, tokens=40 * 92, rates=Rates(2, 4.0, 0), **changes)  # fmt: skip


def job_of(one, runner, folder):
    data = runner.data(one.trial(one.shapes[0], 0.01, 0, one.tokens))
    (folder / store.RUNS).mkdir(parents=True)
    return ShapeJob(one.shapes[0], data, one.tokens, one.seeds, str(folder))


class Alone(Training):
    """Never together."""

    def at_once(self, trial, n):  # noqa: ARG002
        return False


def test_a_model_that_is_kept_is_made_alone_in_its_folder(tmp_path):
    one, runner = study(), Training("cpu", models=tmp_path)
    trial = one.trial(one.shapes[0], 0.01, 0, one.tokens)
    assert runner.at_once(trial, 6)
    kept = msgspec.structs.replace(trial, keep=True)
    assert not runner.at_once(kept, 6)
    runner.run(kept)
    assert runner.trained(kept)
    assert not runner.trained(trial)


def test_the_records_of_a_study_are_those_of_runs_made_alone(tmp_path):
    one = study()
    together, alone = (
        run_shape((one, runner), job_of(one, runner, tmp_path / name)).records
        for name, runner in (("t", Training("cpu")), ("a", Alone("cpu")))
    )
    assert len(together) == 6
    for a, b in zip(together, alone, strict=True):
        assert a.key == b.key
        assert (a.outcome.row["members"], b.outcome.row["members"]) == (6, 1)
        for name, value in b.outcome.measures.items():
            assert a.outcome.measures[name] == pytest.approx(value, abs=1e-4), name
        timed = {"seconds", "step_s", "members", "peak_bytes", "peak_bytes_predicted"}
        told = [{k: v for k, v in r.outcome.row.items() if k not in timed and "loss" not in k
                 and k not in {"bits_per_byte", "accuracy"}} for r in (a, b)]  # fmt: skip
        assert told[0] == told[1]
    assert not any(tmp_path.glob(f"?/{store.STATES}/*"))


def test_a_group_of_which_some_records_are_kept_makes_the_others_as_before(tmp_path):
    """What comes of a run does not depend on what was done before it."""
    one, runner = study(), Training("cpu")
    job = job_of(one, runner, tmp_path / "s")
    whole = run_shape((one, runner), job).records
    for record in whole[2:5]:
        (tmp_path / "s" / store.RUNS / f"{record.key}.json").unlink()
    again = run_shape((one, runner), job).records
    assert [r.outcome.measures for r in again] == [r.outcome.measures for r in whole]


def test_only_what_trains_together_for_long_is_compiled(monkeypatch):
    asked = []
    monkeypatch.setattr("scantling.lab.train.train", asked.append)
    monkeypatch.setattr("scantling.lab.train_many.train_many", lambda runs, *_: asked.extend(runs))
    trial = study().trial(study().shapes[0], 0.01, 0, 2_000_000)
    for compiles, n in ((True, 2), (True, 1), (False, 2)):
        Training("cpu", compile=compiles)._train([trial] * n, steps=5)
    Training("cpu", compile=True)._train([replaced(trial, tokens=10_000)] * 2, steps=5)
    assert [run.compile for run in asked] == [True, True, False, False, False, False, False]


def test_runs_are_grouped_by_whole_seeds_where_that_is_faster():
    one = study(seeds=8)
    trials = [one.trial(one.shapes[0], rate, seed, one.tokens)
              for seed in range(8) for rate in (0.01, 0.04, 0.16)]  # fmt: skip
    runner = Training("cpu")
    assert isinstance(runner, GroupRunner)
    assert [len(group) for group in groups(trials, 3, runner)] == [12, 12]
    assert [g[0].seed for g in groups(trials, 3, runner)] == [0, 4]
    assert {len(g) for g in groups([replaced(t, batch=256) for t in trials], 3, runner)} == {1}
    experts = vary(shrink(catalog.model("mixtral-8x7b"), 250_000), d_model=16, vocab_size=32)
    assert {len(g) for g in groups([replaced(t, spec=experts) for t in trials], 3, runner)} == {1}


def replaced(trial, **changes):
    from msgspec.structs import replace as struct_replace

    return struct_replace(trial, **changes)


def test_a_group_that_is_too_slow_is_stopped_and_says_how_slow(tmp_path):
    one, runner = study(), Training("cpu")
    job = replaced(job_of(one, runner, tmp_path / "s"), pace=Pace(0.0, 1e-7, 0.0), slack=2.0)
    found = run_shape((one, runner), job)
    assert found.stopped
    assert found.slow > 2
    assert not found.records
    assert not any(tmp_path.glob(f"s/{store.STATES}/*"))


def test_a_group_without_which_there_is_no_answer_is_begun_while_there_is_time(tmp_path):
    """A pace that was measured beside other work is no reason to answer nothing."""
    one, runner = study(), Training("cpu")
    grows = replaced(one, rates=Rates(2, 4.0, 1))
    job = replaced(job_of(one, runner, tmp_path / "s"), pace=Pace(0.0, 100.0, 0.0),
                   until=time.time() + 60)  # fmt: skip
    found = run_shape((grows, runner), job)
    assert len(found.records) == 6
    assert len(found.rates) == 2, "one that would make the grid wider is not begun"
    late = replaced(job, until=time.time() - 1, folder=str(tmp_path / "l"))
    assert run_shape((grows, runner), late).stopped


class Often(Training):
    """Keeps its state at every record, and is not timed."""

    def pace_group(self, trials):  # noqa: ARG002
        return Pace(0.0, 0.001, 0.0)

    def _asked(self, trial, steps):
        return replace(super()._asked(trial, steps), checkpoint_s=0.0)


def test_a_group_whose_time_is_up_goes_on_from_its_state(tmp_path):
    one, runner = study(), Training("cpu")
    job = job_of(one, runner, tmp_path / "s")
    trials = [one.trial(one.shapes[0], rate, seed, one.tokens)
              for seed in range(3) for rate in (0.005, 0.02)]  # fmt: skip
    state = store.state(tmp_path / "s", [key(t, job.data, runner.name) for t in trials])
    often = Often("cpu")
    assert often.run_group(trials, state, lambda share, _: share > 0.4) is None
    shares = []

    def stop(share, _):
        shares.append(share)
        return False

    found = runner.run_group(trials, state, stop)
    assert shares[0] == pytest.approx(0.45)
    assert [one.measures for one in found] == [
        one.measures for one in runner.run_group(trials, None, stop)
    ]


SCRIPT = """
import os, pathlib, signal, sys
from test_lab_many import Often, study
from scantling.lab import run_folder
from scantling.lab.study import answer, store

if __name__ == "__main__":
    folder, module, name, times = sys.argv[1:]
    module, left = {"store": store, "run_folder": run_folder}[module], [int(times)]
    real = getattr(module, name)

    def deadly(*given):
        real(*given)
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(module, name, deadly)
    answer(study(), Often("cpu"), pathlib.Path(folder), engine="here")
"""


@pytest.mark.parametrize(("module", "name", "times", "kept"), [
    ("run_folder", "save", 7, 0), ("store", "keep", 3, 3), ("run_folder", "save", 29, 6),
])  # fmt: skip
def test_a_study_killed_in_a_group_ends_as_one_that_was_not(tmp_path, module, name, times, kept):
    """Bit for bit, with real training: killed between steps, and while records are written."""
    one, folder = study(), tmp_path / "k"
    (tmp_path / "script.py").write_text(SCRIPT)
    path = os.pathsep.join([str(pathlib.Path(__file__).parent), *sys.path])
    command = [sys.executable, str(tmp_path / "script.py"), str(folder), module, name, str(times)]
    ended = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert store.count(folder) == kept
    assert len([*folder.glob(f"{store.STATES}/*/*.pt")]) == 1
    found, whole = (answer(one, Often("cpu"), tmp_path / n, engine="here") for n in "kw")
    assert measured(found) == measured(whole)
    assert sorted(v.text for v in found.verdicts) == sorted(v.text for v in whole.verdicts)


def measured(found):
    return {r.key: r.outcome.measures for r in found.records}
