"""A study as a file says what is meant, or which key does not."""

import json

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


# ---------------------------------------------------------------- muddled input

GPT2 = {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
LLAMA = '[[shapes]]\nmodel = "llama-3.2-1b"\n'


@pytest.mark.parametrize(("text", "says"), [
    ("[rates]\nn = 'three'\n" + ISO, "rates.n three must be a whole number"),
    ("[rates]\nstep = '2x'\n" + ISO, "rates.step 2x must be a number"),
    ("[rates]\nextend = -1\n" + ISO, "rates.extend -1 must be 0 to 30"),
    ("rates = 3\n" + ISO, "rates 3 must be a table; write [rates]"),
    (ISO.replace("[1, 2]", "['a']"), "iso.n_layer a is not a number"),
    (ISO.replace("[1, 2]", "[-2, 2]"), "iso.n_layer -2 must be above zero"),
    (ISO.replace("body = 6_000", "time = 'soon'"), "iso.time soon is not a number"),
    (ISO.replace("body = 6_000", "time = '20ms'\nchip = 3"), "iso.chip 3 must be a text"),
    ("shapes = 3\n", "shapes 3 must be tables, each under [[shapes]]"),
    ("shapes = ['gpt2']\n", "shapes ['gpt2'] must be tables, each under [[shapes]]"),
    (LLAMA + "set = 3\n", "shapes.set 3 must be a table of numbers"),
    (LLAMA + "set = {n_layer = 'x'}\n", "shapes.set {'n_layer': 'x'} must be a table of numbers"),
    (LLAMA + "param = 'nup'\n" + LLAMA + "name = 'b'\n", "param nup is not known"),
    (LLAMA + "rate = 'x'\n", "shapes.rate x must be a number"),
    (LLAMA + "rate = -1\n" + LLAMA + "name = 'b'\n", "rate -1.0 must be above 0"),
    ("solved = 'most'\n" + ISO, "solved most must be a number"),
    ("solved = 90\n" + ISO, "solved 90.0 must be a share"),
    ("measure = ['loss']\n" + ISO, "measure ['loss'] must be a text"),
    ("measure = 'los'\n" + ISO, "measure los is not known; did you mean loss?"),
    ("data = 3\n" + ISO, "data 3 must be a text"),
    (ISO + "[scale]\nbody = 9_000\n", "scale makes [[shapes]] small, and [iso] makes shapes of"),
])  # fmt: skip
def test_what_is_muddled_is_one_clear_line(read, text, says):
    with pytest.raises(FieldError) as caught:
        read(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_numbers_may_be_written_as_text(read):
    s = read("solved = '0.9'\nseeds = '5'\nrates = {n = '3', step = '2', extend = 0}\n" + ISO)
    assert (s.measure.solved, s.seeds) == (0.9, 5)
    assert s.rates.grid(1.0) == [0.5, 1.0, 2.0]


def test_equal_time_is_that_of_the_batch_of_the_study(read, monkeypatch):
    asked = []
    monkeypatch.setattr("scantling.lab.study.file.iso", lambda *_, **k: asked.append(k) or ())
    with pytest.raises(FieldError, match="compare nothing"):
        read("batch = 64\n" + ISO.replace("body = 6_000", "time = '20ms'\nchip = 'a100'"))
    assert asked == [{"batch": 64, "time": 0.02, "chip": "a100"}]


def test_a_shape_may_be_changed_in_what_is_no_number(read):
    s = read(LLAMA + "set = {n_layer = '4', tied = false}\n" + LLAMA + "name = 'b'\n")
    assert (int(s.shapes[0].spec.n_layer), s.shapes[0].spec.tied) == (4, False)


def test_a_shape_is_called_by_the_whole_name_of_its_model(read, tmp_path):
    """A dot in a name of the catalogue ends no file's name."""
    (tmp_path / "own.json").write_text(json.dumps(GPT2))
    s = read(LLAMA + LLAMA.replace("3.2-1b", "3.1-8b") + '[[shapes]]\nmodel = "own.json"\n')
    assert s.arms == ("llama-3.2-1b", "llama-3.1-8b", "own")
