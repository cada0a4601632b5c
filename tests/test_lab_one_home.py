"""What two parts of the lab need is said in one place, so that they give the same number."""

import pytest

torch = pytest.importorskip("torch", reason="the lab needs torch")

from scantling.lab import probes  # noqa: E402 - only where torch is
from scantling.lab.data import JUDGED_TOKENS, task  # noqa: E402
from scantling.lab.experiments import (  # noqa: E402
    activation_sparsity,
    gradient_norms,
    swiglu_gelu,
)
from scantling.lab.match import small  # noqa: E402
from scantling.lab.model import Decoder  # noqa: E402
from scantling.lab.run import TrainingRun  # noqa: E402
from scantling.lab.study.design import Rates, Shape, Study  # noqa: E402
from scantling.lab.study.training import JUDGED, _task  # noqa: E402

torch.set_num_threads(1)

TEXT = "grammar:n_bytes=3000000"
SPEC = small(3, 16, 32, gated=False, activation="relu")
STUDY = Study("s", "?", (Shape("a", SPEC),), TEXT, tokens=100_000, batch=4, context=32,
              rates=Rates(1, 2.0, 0))  # fmt: skip
TRIAL = STUDY.trial(STUDY.shapes[0], 1e-3, 0, STUDY.tokens)


@pytest.fixture
def model():
    return Decoder(SPEC)


@pytest.fixture
def text():
    return task(TEXT, 4, 32)


def test_experiments_read_hidden_units_as_the_probes_do(model, text):
    read = probes.activations(model, text.batch(TRIAL.steps, 0)[0])
    assert len(read) == 3
    assert swiglu_gelu.probe(model, text, TRIAL) == {
        "kurtosis": pytest.approx(sum(one.kurtosis for one in read) / 3)}  # fmt: skip
    assert activation_sparsity.probe(model, text, TRIAL) == {
        "active": pytest.approx(sum(one.positive for one in read) / 3),
        "active_tenth": pytest.approx(sum(one.active for one in read) / 3),
    }


def test_the_ratio_of_gradients_is_that_of_the_norms_that_are_probed(model, text, monkeypatch):
    monkeypatch.setattr(gradient_norms, "BATCHES", 1)
    norms = probes.gradient_norms(model, *text.batch(TRIAL.steps, 0))
    found = gradient_norms.probe(model, text, TRIAL)
    assert found["gradient_ratio"] == pytest.approx(norms[-1] / norms[0])
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("param", ["sp", "mup"])
def test_a_run_and_a_study_of_one_rate_have_the_same_rate_where_none_is_given(param):
    shape = Shape("a", SPEC, param=param)
    (rate,) = STUDY.grid(shape, STUDY.tokens)
    run = TrainingRun(spec=SPEC, data=TEXT, tokens=STUDY.tokens, batch=4, context=32, param=param)
    assert run.peak_lr == pytest.approx(rate, rel=1e-2)


def test_a_study_judges_fewer_tokens_of_the_same_slices(model, text, monkeypatch):
    """Windows spread over the whole slice, as many as are asked for."""
    own = _task(TRIAL)
    for name in JUDGED:
        assert own.slices[name].starts.tolist() == text.slices[name].starts.tolist()
    counted = []
    monkeypatch.setattr("scantling.lab.data.sums", lambda _, batches, __: counted.append(
        sum(t.numel() for t, _ in batches)) or {})  # fmt: skip
    for one in (own, text):
        one.evaluate(model, "report")
    assert counted == [JUDGED["report"], JUDGED_TOKENS["report"]]
    assert own.hash == text.hash
