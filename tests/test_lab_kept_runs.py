"""What a study keeps is used again only where running it again would give the same."""

import pathlib

import pytest
from msgspec.structs import replace

from fake_runs import Fake
from scantling.errors import FieldError
from scantling.lab.study import answer
from test_lab_study import study


@pytest.fixture
def notes(tmp_path):
    """A text to train on."""
    path = tmp_path / "notes.txt"
    path.write_text("the quick brown fox jumps over the lazy dog\n" * 400)
    return path


class Reads(Fake):
    """Its data is a file."""

    def data(self, trial):
        return replace(super().data(trial), hash=pathlib.Path(trial.data).read_text())


def test_a_study_does_not_go_on_with_data_that_has_changed(tmp_path, notes):
    asked = replace(study(1, 2), data=str(notes))
    first = answer(asked, Reads(), tmp_path / "s", engine="here")
    assert answer(asked, Reads(), tmp_path / "s", engine="here").headline == first.headline
    notes.write_text("another text")
    with pytest.raises(FieldError, match=r"has changed since this study began on it; bring it"):
        answer(asked, Reads(), tmp_path / "s", engine="here")
    assert answer(asked, Reads(), tmp_path / "s", engine="here", fresh=True).records


def test_a_run_trains_on_the_data_that_its_study_began_with_or_not_at_all(notes):
    pytest.importorskip("torch", reason="needs the extra lab")
    from scantling.lab.match import small
    from scantling.lab.study.design import Shape
    from scantling.lab.study.training import Training

    asked = replace(study(1, 2), data=str(notes), tokens=64, batch=2, context=16)
    trial = asked.trial(Shape("a", small(1, 16, 16)), 1e-3, 0, 64)
    runner = Training("cpu")
    own = replace(trial, data_hash=runner.data(trial).hash)
    assert runner.run(own).failed is None
    with pytest.raises(FieldError, match="is not what this study began with"):
        runner.run(replace(trial, data_hash="0" * 64))


def test_a_run_of_which_a_probe_tells_no_number_has_failed_and_is_kept(
    notes, tmp_path, monkeypatch
):
    """JSON has no NaN: a record with one could not be read again."""
    pytest.importorskip("torch", reason="needs the extra lab")
    from scantling.lab.match import small
    from scantling.lab.study import store, training
    from scantling.lab.study.design import Shape
    from scantling.lab.study.trial import Record

    monkeypatch.setattr(training, "_probed", lambda *_: {"kurtosis": float("nan"), "share": 0.5})
    asked = replace(study(1, 2), data=str(notes), tokens=64, batch=2, context=16, probe="a:b")
    trial = asked.trial(Shape("a", small(1, 16, 16)), 1e-3, 0, 64)
    made = Record("k", "a", trial, training.Training("cpu").run(trial), "code")
    assert made.outcome.failed == "kurtosis is nan"
    (tmp_path / "runs").mkdir()
    store.keep(tmp_path, made)
    assert store.kept(tmp_path, "k") == made


def test_a_run_made_by_other_code_or_elsewhere_has_another_key(monkeypatch):
    pytest.importorskip("torch", reason="needs the extra lab")
    import torch

    from scantling.lab.study.training import Training
    from scantling.lab.version import PACKAGE, sources

    read = {str(p.relative_to(PACKAGE)) for p in sources()}
    assert {"ops/attention.py", "spec/rotation.py", "laws/measured_text.py",
            "lab/experiments/hidden.py", "lab/run.py"} <= read  # fmt: skip
    assert not any(name.startswith(("cli", "report")) for name in read)
    here = Training("cpu").name
    assert Training("cpu").name == here
    assert Training("cpu", threads=2).name != here
    monkeypatch.setattr(torch, "__version__", "3.0")
    assert Training("cpu").name != here


def test_the_folder_of_a_run_and_the_record_of_a_study_name_one_version_of_the_code(tmp_path):
    torch = pytest.importorskip("torch", reason="needs the extra lab")
    from scantling.lab.run_folder import machine

    found = answer(study(1, 2), Fake(), tmp_path / "s", engine="here")
    assert {r.code for r in found.records} == {machine(torch.device("cpu"))["code"]}


def test_a_study_killed_while_it_makes_its_folder_begins_there_again(tmp_path):
    folder = tmp_path / "s"
    (folder / "runs").mkdir(parents=True)
    (folder / ".study.json.0123abcd.part").touch()
    assert answer(study(1, 2), Fake(), folder, engine="here").records


def test_a_study_is_in_its_folder_before_anything_else(tmp_path, monkeypatch):
    """Every file is written whole by one function; at the first one the machine stops."""
    from scantling.lab import whole_file

    folder, written = tmp_path / "s", []

    def stop(path, _):
        written.append((path.name, sorted(p.name for p in folder.iterdir())))
        raise KeyboardInterrupt

    monkeypatch.setattr(whole_file, "write", stop)
    with pytest.raises(KeyboardInterrupt):
        answer(study(1, 2), Fake(), folder, engine="here")
    assert written == [("study.json", [])]


def test_a_file_that_is_written_in_part_leaves_the_old_one(tmp_path):
    from scantling.lab.whole_file import whole_file, write

    path = tmp_path / "a.json"
    write(path, b"old")
    with pytest.raises(TypeError), whole_file(path) as file:
        file.writelines([b"ne", "w"])
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
