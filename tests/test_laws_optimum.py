"""Where compute is best spent: sizes, tokens, shapes, and the questions the other way round."""

import json
import math
import re

import pytest
from click.testing import CliRunner

from case_files import cases, holds
from scantling import catalog, search
from scantling.cli import group
from scantling.costs.count import flops
from scantling.errors import FieldError
from scantling.laws import law
from scantling.laws.optimum import (
    Spending,
    compute_optimal,
    needed,
    others,
    repetition,
    shaped,
)
from scantling.laws.size_laws import effective_tokens
from scantling.report.optimum import ask, optimum_json, optimum_lines
from scantling.search.plans import plan
from scantling.search.shape_priors import approx_body
from scantling.search.size import body_of
from scantling.search.spend import Machine, spend


def run(*arguments):
    found = CliRunner().invoke(
        group, ["laws", "optimum", *arguments], standalone_mode=False, catch_exceptions=False
    )
    return found.stdout


@pytest.mark.parametrize("one", cases("design"))
def test_a_rule_of_thumb_met_in_public(one):
    """C = 6 N D with D = 20 N is a row of the table, with what N counts and the alternatives."""
    if one["input"].get("rule") != "C=6ND, D=20N":
        pytest.skip("asks something else")
    said = json.loads(run(f"{one['input']['flops']:g}", "--json"))
    rule = said["laws"]["twenty-tokens"]
    holds(one, N=rule["size"], D=rule["tokens"])
    assert "embeddings" in rule["counted"]
    smaller = [o for o in said["laws"][said["leading"]]["others"] if o["factor"] < 1]
    assert all(o["penalty"] > 0 for o in smaller)
    text = run(f"{one['input']['flops']:g}")
    assert "embeddings and head included" in text
    assert "smaller, over-trained" in text


def test_a_trained_token_costs_what_the_operators_count():
    """A plain decoder of width 4096: 6 a parameter of the layers, and attention in full."""
    spec = catalog.model("llama-2-7b")
    counted = flops(spec, 1, 4096)
    body = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    head = 6 * 32_000 * 4096
    budget = Spending(flops=1.0, context=4096, aspect=4096 / 32)
    # 12 L W S with the L and W that 12 L W² = N and W/L = 128 give
    width, depth = shaped(body, 1.0, 128).width, shaped(body, 1.0, 128).depth
    assert width == pytest.approx(4096, rel=0.01)
    assert depth == pytest.approx(32, rel=0.01)
    assert budget.cost(body) + head == pytest.approx(counted.train / counted.tokens, rel=0.005)


def test_context_takes_tokens_and_shifts_the_optimum():
    """Attention grows as N^(2/3) where weights grow as N: the dearer context favours larger N."""
    free, long = compute_optimal("aspect", 1e21), compute_optimal("aspect", 1e21, context=131_072)
    assert long.tokens < free.tokens / 2
    assert long.loss > free.loss


def test_a_served_token_costs_a_third_of_a_trained_one():
    budget = Spending(flops=1e21, served=3e11)
    assert 6 * 1e9 * budget.tokens(1e9) + 2 * 1e9 * 3e11 == pytest.approx(1e21)


@pytest.mark.parametrize("name", ["chinchilla-2024", "aspect", "twenty-tokens", "llama-3-2024"])
@pytest.mark.parametrize("what", ["params", "tokens"])
def test_the_inverse_question_undoes_the_question(name, what):
    best = compute_optimal(name, 1e22)
    value = best.size if what == "params" else best.tokens
    assert needed(name, what, value) == pytest.approx(1e22, rel=1e-3)


def test_the_least_flops_for_a_loss_reach_it_and_fewer_do_not():
    """Chinchilla's own numbers: 70 B on 1.4 T tokens of 5.9e23 is close to its least loss."""
    least = compute_optimal("chinchilla-2024", 5.88e23).loss
    found = needed("chinchilla-2024", "loss", least)
    assert found == pytest.approx(5.88e23, rel=1e-3)
    with pytest.raises(FieldError, match="no budget"):
        needed("chinchilla-2024", "loss", law("chinchilla-2024").facts.constants["E"])
    with pytest.raises(FieldError, match="nothing that llama-3-2024 knows"):
        needed("llama-3-2024", "loss", 2.0)


def test_the_penalty_of_another_size_is_the_loss_on_the_line_of_equal_flops():
    budget = Spending(flops=1e21)
    best = compute_optimal("chinchilla-2024", 1e21)
    one = law("chinchilla-2024")
    for o in others("chinchilla-2024", budget, best):
        assert 6 * o.size * o.tokens == pytest.approx(1e21)
        c = one.facts.constants
        by_hand = (c["E"] + c["A"] / o.size ** c["alpha"] + c["B"] / o.tokens ** c["beta"]
                   - best.loss)  # fmt: skip
        assert o.penalty == pytest.approx(by_hand)
        assert o.low <= o.penalty <= o.high


def test_repeated_tokens_are_worth_what_the_paper_says():
    """D' = U + U R* (1 - exp(-R/R*)); the same model on D' fresh tokens has the same loss."""
    budget = Spending(flops=1e22, unique=5e10)
    best = compute_optimal("shape", 1e22, unique=5e10)
    found = repetition("shape", budget, best)
    repeats = law("shape").facts.constants["repeats"]
    assert found.epochs == pytest.approx(best.tokens / 5e10)
    assert found.worth == pytest.approx(effective_tokens(best.tokens, 5e10, repeats), rel=1e-4)
    blind = compute_optimal("chinchilla-2024", 1e22, unique=5e10)
    assert repetition("chinchilla-2024", budget, blind).cost is None
    assert repetition("shape", Spending(flops=1e22, unique=1e14), best) is None


def test_days_on_chips_are_what_the_plan_of_the_shape_takes():
    machine = Machine(n_gpu=64, days=3)
    found = spend("aspect", Spending(flops=1.0, context=8192), machine)
    assert found.time_s.value_s / 86_400 == pytest.approx(3, rel=0.02)
    again = plan(found.shape.spec, gpus=64, tokens=int(found.best.tokens), context=8192)
    assert again.bill.ideal_s.value_s == pytest.approx(found.time_s.value_s)
    peak = 989.4e12 * 64 * found.time_s.value_s  # an H100's dense bf16
    assert found.share == pytest.approx(found.budget.cost(found.best.size) * found.best.tokens
                                        / peak, rel=0.01)  # fmt: skip


def done(shape, tokens, context=8192):
    """Training FLOPs by the operators: attention in full, and the head (docs/flops.md)."""
    one = flops(shape.spec, 1, context)
    return float(one.train) / one.tokens * tokens


def test_days_are_as_many_flops_in_laws_optimum_as_in_design():
    """Both count all that the chips do; the rate is that of a plan here, of a 7B there."""
    found = spend("aspect", Spending(flops=1.0), Machine(n_gpu=64, days=10))
    assert done(found.shape, found.best.tokens) == pytest.approx(found.budget.flops, rel=0.1)
    b = search.budget(days=10, gpus=64)
    assert b.flops == pytest.approx(found.budget.flops, rel=0.1)
    assert done(search.chosen(b), b.tokens) == pytest.approx(b.flops, rel=0.1)
    said = " ".join(optimum_lines(ask(("aspect",), Spending(flops=1.0),
                                      machine=Machine(n_gpu=64, days=10))))  # fmt: skip
    for text in (said, " ".join(b.assumed)):
        assert "attention in full and the head counted" in text


def test_a_law_whose_size_has_the_head_in_it_does_not_pay_for_it_twice():
    spent = Spending(flops=1e22, vocab_size=128_256)
    assert spent.of("total").cost(7e9) == 6 * 7e9
    width = 64 * (7e9 / (12 * 64**2)) ** (1 / 3)
    assert spent.of("body").cost(7e9) == pytest.approx(6 * (7e9 + 128_256 * width))
    both = {name: compute_optimal(name, 1e22, vocab_size=128_256) for name in
            ("aspect", "chinchilla-2024")}  # fmt: skip
    assert both["chinchilla-2024"] == compute_optimal("chinchilla-2024", 1e22)
    assert both["aspect"].tokens < compute_optimal("aspect", 1e22).tokens


def test_the_shape_has_the_size_of_the_optimum():
    for name in ("aspect", "chinchilla-2024"):
        found = spend(name, Spending(flops=1e21))
        f = found.shape.features
        size = f.body if found.best.counts == "body" else f.total
        assert size == pytest.approx(found.best.size, rel=0.08)


def test_laws_stand_side_by_side_with_their_disagreement():
    found = ask((), Spending(flops=1e21))
    assert len(found.laws) >= 5
    (line,) = (x for x in optimum_lines(found) if x.startswith("the laws disagree"))
    sizes = [b.size / (6 if b.counts == "flops" else 1)
             for b in (one.best for one in found.laws.values())]  # fmt: skip
    assert f"×{max(sizes) / min(sizes):.2g}" in line
    said = optimum_json(found)
    assert {"learning_rate", "batch_tokens"} <= set(said["hyperparameters"])
    rate = said["hyperparameters"]["learning_rate"]
    assert rate["low"] < rate["value"] < rate["high"]


def test_questions_that_contradict_each_other_are_one_line():
    for arguments in (["1e21", "--days", "3"], [], ["--params", "7B", "--loss", "2"]):
        with pytest.raises(FieldError, match="give one of"):
            run(*arguments)
    with pytest.raises(FieldError, match="another rate"):
        run("--days", "3", "--served", "1T")
    with pytest.raises(FieldError, match="nope is not known"):
        run("1e21", "--gpu", "nope")
    with pytest.raises(FieldError, match="do not pay for the training"):
        run("1e3")


def test_the_inverse_is_asked_of_every_law():
    said = json.loads(run("--params", "7B", "--json"))
    assert said["asked"] == {"params": 7e9}
    by_rule = said["laws"]["twenty-tokens"]["flops"]
    assert by_rule == pytest.approx(120 * 7e9**2, rel=1e-4)  # C = 6 N · 20 N
    assert "7 B parameters" in run("--params", "7B")
    assert math.isclose(json.loads(run("--loss", "2.4", "--json"))["laws"]["aspect"]["loss"], 2.4,
                        rel_tol=1e-4)  # fmt: skip


def test_the_valley_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    run("1e21", "--plot", str(tmp_path / "valley.svg"))
    text = (tmp_path / "valley.svg").read_text("utf-8")
    assert "<svg" in text
    with pytest.raises(FieldError):
        run("1e21", "--plot", str(tmp_path / "none" / "valley.svg"))


@pytest.mark.parametrize("name", ["aspect", "chinchilla-2024"])
@pytest.mark.parametrize("budget", [1e13, 1e15, 1e21, 1e27])
def test_no_neighbour_of_the_optimum_has_less_loss(name, budget):
    one, spent = law(name), Spending(flops=budget)
    best = compute_optimal(name, budget)
    for factor in (0.5, 0.9, 1.1, 2.0):
        assert float(one.loss(spent.features(best.size * factor))) > best.loss, factor


def test_a_budget_whose_least_loss_lies_beyond_the_sizes_says_so():
    best = compute_optimal("aspect", 1e10)
    assert best.size == pytest.approx(1e3, rel=0.01)
    assert any("no least loss within 1,000" in text for text in best.outside)
    assert all(text in {"body", "tokens"} for text in compute_optimal("aspect", 1e21).outside)


@pytest.mark.parametrize(
    ("name", "least"), [("chinchilla-2024", 1.8172), ("chinchilla-2022", 1.6934)]
)
def test_a_loss_below_the_floor_of_a_law_is_told_the_floor(name, least):
    """E of Besiroglu et al. 2024, and of Hoffmann et al. 2022 (the 1.69 of equation 10)."""
    for value, told in ((0.5, f"never below {least:.4g}"), (100, "at 1e+14 FLOPs")):
        with pytest.raises(FieldError, match=re.escape(told)):
            needed(name, "loss", value)
    with pytest.raises(FieldError, match="never below"):  # what the command prints
        ask((name,), Spending(flops=1.0), asked=("loss", 0.5))


@pytest.mark.parametrize("params", [350_000_000, 3 * 10**9, 7 * 10**9])
def test_a_body_without_a_shape_is_near_that_of_the_shape_that_is_chosen(params):
    """One rule of tying decides both: at 3 B the table is a tenth of all, which stays untied."""
    b = search.budget(params=params, vocab_size=128_256)
    c = search.chosen(b)
    assert approx_body(b) == pytest.approx(float(c.features.body), rel=0.1)
    body, tied, untied = (body_of(params, 128_256, tied) for tied in (None, True, False))
    assert untied < tied
    assert body == (tied if c.spec.tied else untied)
