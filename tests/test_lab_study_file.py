"""A study as a file says what is meant, or which key does not."""

import pytest

from scantling.errors import FieldError
from scantling.lab.match import total
from scantling.lab.study.file import read_study

ISO = "[iso]\nn_layer = [1, 2]\nbody = 6_000\n"
RECALL = 'data = "recall:pairs=6,keys=12,values=20"\n'


@pytest.fixture
def read(tmp_path):
    """The study of a text."""

    def read(text):
        (tmp_path / "s.toml").write_text(text)
        return read_study(tmp_path / "s.toml")

    return read


# ---------------------------------------------------------------- the length of generated tasks


def test_a_generated_task_has_the_context_of_its_knobs(read):
    pytest.importorskip("torch", reason="needs the extra lab")
    s = read(RECALL + "tokens = 20_000\nbatch = 16\n" + ISO)
    assert s.context == 13
    trial = s.trial(s.shapes[0], 1e-3, 0, s.tokens)
    assert trial.steps == 20_000 // (16 * 13)


def test_equal_flops_are_counted_at_the_context_of_the_task(read):
    pytest.importorskip("torch", reason="needs the extra lab")
    s = read(RECALL + ISO.replace("body = 6_000", 'flops = "100k"'))
    for name, flops in total(s.shapes, "flops", 13).items():
        off = next(one for one in s.shapes if one.name == name).matched["flops"]
        assert flops / 100_000 - 1 == pytest.approx(off, abs=1e-4)


def test_another_context_than_that_of_the_knobs_is_refused(read):
    pytest.importorskip("torch", reason="needs the extra lab")
    with pytest.raises(FieldError, match=r"context 64 is 13 with the knobs of data"):
        read(RECALL + "context = 64\n" + ISO)


def test_a_trial_takes_the_steps_that_were_planned(read):
    pytest.importorskip("torch", reason="needs the extra lab")
    from scantling.lab.study.training import Training

    s = read(RECALL + "tokens = 2_000\nbatch = 16\n" + ISO)
    trial = s.trial(s.shapes[0], 1e-3, 0, s.tokens)
    assert Training("cpu").run(trial).tokens == trial.steps * 16 * 13 == 9 * 16 * 13
