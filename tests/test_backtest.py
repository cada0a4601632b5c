"""The back-test says front, band or dominated by its own words, and a bad shape is caught."""

import json
import math
import random

import numpy as np
import pytest
from click.testing import CliRunner

from scantling import catalog, cli
from scantling.costs.count import parameters, solve_width
from scantling.errors import FieldError
from scantling.search.backtest import (
    AXES,
    backtest,
    cost_noise,
    judge,
    pool,
    question,
    random_shapes,
    reasons,
    released,
)
from scantling.search.candidate import candidate, difference
from scantling.sources import read_data
from scantling.spec import Spec, check, vary

SMALL = "pythia-160m"


@pytest.fixture(scope="module")
def found():
    return backtest(SMALL)


def run(*args):
    return CliRunner().invoke(cli.group, [str(a) for a in args], standalone_mode=False)


def costs(c):
    return np.array([c.days, c.kv_bytes_per_token, float(c.decode.value_s)])


def test_at_least_forty_dense_models_from_a_tenth_to_four_hundred_billion():
    sizes = [catalog.named()[name].parameters for name in released()]
    assert len(sizes) >= 40
    assert min(sizes) < 0.15e9
    assert max(sizes) > 400e9
    assert all("2022" <= catalog.named()[name].released < "2027" for name in released())


def test_every_family_names_where_its_tokens_stand():
    for family, entry in read_data("backtest.toml")["families"].items():
        assert entry["source"], family
        assert all(1e9 < tokens < 1e14 for tokens in entry["tokens"].values())


def test_the_question_knows_only_what_its_makers_did():
    """LLaMA-7B: 1 T tokens at 2048 on A100s, no grouped queries yet; Qwen3 on H100s, with them."""
    before, after = question("llama-7b"), question("qwen3-8b")
    assert (before.tokens, before.train_context, before.chip) == (10**12, 2048, "a100-sxm-80gb")
    assert before.bounded["kv_group"].high == 1
    assert (after.chip, after.bounded["kv_group"].high > 1) == ("h100-sxm", True)
    assert before.params == parameters(catalog.model("llama-7b")).total


def test_legal_shapes_are_made_of_the_blocks_of_the_model_and_of_its_size(found):
    verdict, others = found
    for at in random.Random(0).sample(range(len(others.rows)), 5):
        one = others.candidate(at)
        check(one.spec)
        same = vary(one.spec, **{k: int(v) for k, v in verdict.shape.dims().items()})
        assert same == verdict.shape.spec
        assert abs(one.counted.total / others.budget.params - 1) <= others.budget.tolerance
        value = others.values[at]
        alone = [one.loss_upper, *costs(one)]
        assert value == pytest.approx(alone, rel=1e-9)


def test_a_verdict_is_what_its_two_gaps_say(found):
    verdict, _ = found
    own = verdict.shape
    low, cheap = verdict.lower, verdict.cheaper
    if low is not None:
        assert (costs(low.better) <= costs(own) * (1 + 1e-9)).all()
        assert low.nats == pytest.approx(difference(low.better, own).value)
    if cheap is not None:
        assert cheap.better.loss_upper <= own.loss_upper * (1 + 1e-9)
        assert 1 - costs(cheap.better) / costs(own) == pytest.approx(cheap.saved)
    beyond = (low is not None and low.nats_high < 0) or (
        cheap is not None and min(cheap.saved) > cost_noise()
    )
    assert verdict.holds == (not beyond)
    assert bool(reasons(verdict)) or cheap is None


def test_the_best_of_all_legal_shapes_is_on_the_front(found):
    """The shape of least loss, and that of least time: nothing can be better in everything."""
    _, others = found
    for column in range(4):
        at = np.lexsort((*others.values.T[::-1], others.values[:, column]))[0]
        assert judge(others.candidate(int(at)), others).place != "dominated"


def test_a_shape_that_wastes_everything_is_dominated(found):
    """Of the same size, but 40 layers of 448 with heads twice as wide as that together."""
    verdict, others = found
    spec = vary(verdict.shape.spec, n_layer=40, d_model=448, n_head=14, n_kv_head=14, d_head=64)
    spec = vary(spec, d_ff=solve_width(spec, others.budget.params, 64))
    bad = candidate(vary(spec, n_head=14), others.budget)
    assert abs(bad.counted.total / others.budget.params - 1) < 0.01
    judged = judge(bad, others)
    assert judged.place == "dominated"
    assert any("deep and narrow" in text for text in reasons(judged))


def test_random_shapes_are_legal_of_the_size_and_the_same_every_time(found):
    _, others = found
    spec = catalog.model(SMALL)
    first = list(random_shapes(spec, others.budget, 8, random.Random(7)))
    again = list(random_shapes(spec, others.budget, 8, random.Random(7)))
    assert first == again
    for one in first:
        assert isinstance(one, Spec)
        check(one)
        c = candidate(one, others.budget)
        assert abs(c.counted.total / others.budget.params - 1) <= 0.005
        assert 0.5 <= c.features.mlp_attention_ratio <= 12
        assert 7 <= c.features.aspect <= 360  # rounding of a drawn ratio to whole layers
        assert c.dims()["n_kv_head"] == c.dims()["n_head"]  # before grouped queries


def test_bounds_open_only_as_far_as_the_shape_that_is_judged():
    """StarCoder2-3B has two KV heads: others with two are compared, those with one are not."""
    spec = catalog.model("starcoder2-3b")
    b = question("starcoder2-3b")
    others = pool(b, spec)
    verdict = judge(candidate(spec, b), others)
    assert "n_kv_head" in verdict.outside
    assert min(others.axes["n_kv_head"]) == 1
    for gap in (verdict.lower, verdict.cheaper):
        assert gap is None or gap.better.dims()["n_kv_head"] >= 2
    assert set(verdict.outside) <= set(AXES)


def test_the_command_line_says_the_verdict_and_its_reasons():
    found = run("design", "--backtest", SMALL)
    assert found.exception is None
    assert found.return_value in {0, 1}
    assert SMALL in found.stdout
    answer = json.loads(run("design", "--backtest", SMALL, "--json").stdout)
    assert answer["place"] in {"front", "band", "dominated"}
    assert (found.return_value == 1) == (answer["place"] == "dominated")
    assert answer["asked"]["tokens"] == 3e11


@pytest.mark.parametrize(
    ("model", "said"),
    [("mixtral-8x7b", "other blocks"), ("mistral-7b-v0.3", "--tokens"), ("llama-5", "not known")],
)
def test_a_model_that_cannot_be_judged_is_refused_in_one_line(model, said):
    with pytest.raises((FieldError, Exception), match=said) as error:
        backtest(model)
    assert "\n" not in str(error.value)


def test_tokens_may_be_given_for_a_model_that_never_told_them():
    b = question("mistral-7b-v0.3", 8e12)
    assert b.tokens == 8 * 10**12
    assert math.log2(b.n_gpu).is_integer()
