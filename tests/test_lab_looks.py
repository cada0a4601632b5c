"""Studies that look at one trained model in several ways, and studies at three sizes.

Judged in worlds whose truth is known, without training anything.
"""

import itertools
import json
import math
import random
import re

import pytest
from msgspec.structs import replace

from fake_runs import Fake
from scantling import catalog, vary
from scantling.errors import FieldError
from scantling.lab import stats
from scantling.lab.experiments import EXPERIMENTS
from scantling.lab.match import small
from scantling.lab.study import Outcome, Pace, Probed, Rates, Shape, Study, answer, store
from scantling.lab.study.ladder import climb, compared, plans
from scantling.lab.study.plan import RESERVE, plan, replan
from scantling.lab.study.verdict import Arm, verdicts
from scantling.report import lab_ladder, lab_text

TINY = vary(catalog.model("llama-3.2-1b"), d_model=64, n_head=4, n_kv_head=4, d_head=16, d_ff=128,
            vocab_size=256, n_layer=2)  # fmt: skip
ARMS = ("whole", "little", "much")
LOOKS = Study(
    name="looks", question="What does a cut lose?", shapes=(Shape("trained", TINY, rate=3e-3),),
    data="fake", tokens=80_000, rates=Rates(1, 2.0, 0), probe="fake_runs:Fake",
    probed=Probed(ARMS, (("whole", "little"), ("little", "much"))),
)  # fmt: skip


class Looking(Fake):
    """Models whose own losses are far apart, and arms that lose nearly the same of each.

    Args:
        rises: Nats that an arm loses.
        sd: Of what an arm loses, between models.
        between: Of the losses of models.
        known: Tokens of runs whose models are there.
    """

    def __init__(self, rises, sd=0.01, between=0.5, known=(), **more):
        super().__init__(**more)
        self.rises, self.own, self.between, self.known = rises, sd, between, known

    def trained(self, trial):
        return trial.tokens in self.known

    def run(self, trial):
        found = super().run(trial)
        base = random.Random(f"{self.world} {trial.seed}").gauss(2, self.between)
        looks = {}
        for arm in ARMS:
            noise = random.Random(f"{self.world} {trial.seed} {arm}").gauss(0, self.own)
            looks[Probed.key(arm, "loss")] = base + self.rises.get(arm, 0.0) + noise
        return replace(found, measures={**found.measures, **looks})


def ask(tmp_path, runner, study=LOOKS, **more):
    return answer(study, runner, tmp_path / "s", engine="here", **more)


# ---------------------------------------------------------------- one model, several looks


def test_differences_are_taken_within_each_model(tmp_path):
    """Models half a nat apart hide no rise of a tenth, which all of them share."""
    found = ask(tmp_path, Looking({"little": 0.1, "much": 1.0}))
    assert [(v.a, v.b, v.kind) for v in found.verdicts] == [
        ("whole", "little", "better"), ("little", "much", "better"),
    ]  # fmt: skip
    assert found.verdicts[0].difference == pytest.approx(-0.1, abs=0.03)
    assert found.verdicts[0].half_width < 0.1
    assert found.headline.startswith("whole better than little by 0.")
    assert found.headline.endswith("of 2 comparisons 2 as expected")


def test_an_order_other_than_expected_is_told(tmp_path):
    found = ask(tmp_path, Looking({"little": 1.0, "much": 0.5}))
    assert "1 as expected, 1 the other way" in found.headline
    assert "other than expected: much better than little" in found.headline


def test_of_200_null_worlds_at_most_one_in_twenty_says_better(tmp_path):
    from scantling.lab.study import Data
    from scantling.lab.study.sweep import ShapeJob, run_shape
    from scantling.lab.study.verdict import arms_of, verdicts

    data, said = Data("fake", 256, 1.0, 3.9), 0
    for world in range(200):
        job = ShapeJob(LOOKS.shapes[0], data, 80_000, 3, str(tmp_path / "none"))
        swept = run_shape((LOOKS, Looking({}, world=world)), job)
        found = verdicts(LOOKS, arms_of(LOOKS, swept, data))
        said += any(v.kind == "better" for v in found)
    assert said <= 10


def test_the_paired_test_is_that_of_a_table():
    """Student's own example: hours of sleep that two drugs gave ten patients (1908)."""
    a = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    b = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    found = stats.paired(a, b)
    assert found.difference == pytest.approx(-1.58)
    assert found.p == pytest.approx(0.00283, abs=2e-5)
    assert found.half_width == pytest.approx(0.88, abs=0.005)


def test_a_pair_within_models_needs_the_seeds_of_the_paired_test():
    """Differences of 0.1, 0.2, 0.3: with m more, (t(0.975) + t(0.8)) 0.1 / √m must be 0.2."""
    arms = [Arm(name, 1e-3, (1e-3,), (), None, values, stats.mean_interval(values))
            for name, values in {"a": (1.0, 2.0, 3.0), "b": (1.1, 2.2, 3.3)}.items()]  # fmt: skip
    (found,) = verdicts(replace(LOOKS, probed=Probed(("a", "b"), (("a", "b"),))), arms)
    assert found.kind == "not separated"

    def seen(m):
        return (stats.t_quantile(0.975, m - 1) + stats.t_quantile(0.8, m - 1)) * 0.1 / math.sqrt(m)

    assert seen(found.seeds_needed) <= 0.2 < seen(found.seeds_needed - 1)


def test_a_model_that_did_not_train_leaves_every_look_unresolved(tmp_path):
    found = ask(tmp_path, Looking({}, effects={2: 1.0}))
    assert {a.unresolved for a in found.arms} == {
        "did not train: its loss is that of single tokens"
    }
    assert {v.kind for v in found.verdicts} == {"unresolved"}
    assert found.headline == "unresolved: did not train: its loss is that of single tokens"


def test_each_seed_is_a_job_of_its_own_and_the_answer_is_that_of_one_process(tmp_path):
    here = ask(tmp_path, Looking({"little": 0.1, "much": 1.0}))
    log = tmp_path / "log"
    pool = answer(LOOKS, Looking({"little": 0.1, "much": 1.0}, log=log), tmp_path / "p",
                  engine="pool", workers=2)  # fmt: skip
    assert [v.text for v in pool.verdicts] == [v.text for v in here.verdicts]
    assert [a.seeds for a in pool.arms] == [a.seeds for a in here.arms]
    answer(LOOKS, Looking({}, log=log), tmp_path / "p", engine="here")
    assert len(log.read_text().splitlines()) == 3


def test_a_budget_halves_the_tokens_and_models_that_are_known_cost_only_a_look():
    pace = {"trained": Pace(0.0, 0.1, 1.0)}
    steps = LOOKS.tokens // 1024
    whole = plan(LOOKS, pace, 1, 1e9)
    assert whole.tokens == 80_000
    assert whole.expected_s == pytest.approx(3 * (1 + 0.1 * steps))
    half = plan(LOOKS, pace, 1, 0.8 * whole.expected_s / RESERVE)
    assert half.tokens == 40_000
    known = plan(LOOKS, pace, 1, 5.0, trained=lambda tokens: tokens == 20_000)
    assert (known.tokens, known.known) == (20_000, True)
    assert known.expected_s == pytest.approx(3.0)
    assert "known models looked at in 3 ways × 3 seeds" in known.lines(LOOKS)[0]
    with pytest.raises(FieldError, match="is too short: 3 models of 20 k tokens take"):
        plan(LOOKS, pace, 1, 5.0)


def test_on_a_slow_machine_models_that_are_done_count_or_all_have_half_the_tokens():
    pace = {"trained": Pace(0.0, 0.001, 0.0)}
    old = plan(LOOKS, pace, 1)
    run_s = 3 * old.expected_s / old.seeds
    on = replan(LOOKS, old, 3.0, run_s / RESERVE + 0.01, {"trained": old.seeds - 1})
    assert (on.tokens, on.seeds) == (old.tokens, old.seeds)
    assert on.expected_s == pytest.approx(run_s)
    anew = replan(LOOKS, old, 3.0, 0.6 * old.seeds * run_s / RESERVE, {"trained": 0})
    assert (anew.tokens, anew.seeds) == (old.tokens // 2, old.seeds)


def test_a_study_of_looks_has_one_shape_at_one_rate(tmp_path):
    with pytest.raises(FieldError, match="must be one, of one shape"):
        ask(tmp_path, Looking({}), replace(LOOKS, rates=Rates(3)))


def test_the_four_that_look_share_the_models_they_train():
    """Their runs differ in nothing but what looks at them."""
    for preset in ("quick", "standard"):
        studies = [e.study(preset) for e in EXPERIMENTS.values() if e.study(preset).probed]
        assert {s.name for s in studies} == {
            "layer-removal", "head-pruning", "ffn-svd", "rope-scaling"
        }  # fmt: skip
        trials = {
            json.dumps(str(replace(s.trial(s.shapes[0], 3e-3, 0, s.tokens), probe=None)))
            for s in studies
        }
        assert len(trials) == 1


# ---------------------------------------------------------------- three sizes


class Sized(Fake):
    """The effect of depth depends on the size of the body too.

    Args:
        signs: By width, nats that four layers have over two.
    """

    def __init__(self, signs, **more):
        super().__init__(**more)
        self.signs = signs

    def run(self, trial):
        found = super().run(trial)
        extra = self.signs[int(trial.spec.d_model)] if trial.spec.n_layer == 4 else 0.0
        moved = {k: v + extra for k, v in found.measures.items() if k != "accuracy"}
        return Outcome({**found.measures, **moved}, found.tokens, 0.01, row=found.row)


def studies():
    return {
        times: Study(
            name="test", question="which depth?", data="fake", tokens=100_000, rates=Rates(3, 3, 0),
            shapes=tuple(Shape(f"{n}x{64 * wide}", small(n, 64 * wide, 128 * wide), rate=0.003)
                         for n in (2, 4)),
        ) for times, wide in ((1, 1), (4, 2), (16, 4))
    }  # fmt: skip


@pytest.mark.parametrize(("signs", "kind", "says"), [
    ((0.3, 0.3, 0.3), "stable", "better than 4 layers at all 3 sizes; the effect changes by no"),
    ((0.6, 0.4, 0.2), "stable", "the effect shrinks with size"),
    ((0.2, 0.4, 0.6), "stable", "the effect grows with size"),
    ((0.3, 0.0, -0.3), "turns", "the sign turns: 4 layers better at"),
    ((0.0, 0.0, 0.0), "not separated", "not separated at any size"),
])  # fmt: skip
def test_a_ladder_says_whether_the_sign_is_stable(tmp_path, signs, kind, says):
    runner = Sized(dict(zip((64, 128, 256), signs, strict=True)), sd=0.003)
    told = climb(studies(), runner, tmp_path / "l", engine="here")
    (pair,) = told["pairs"]
    assert pair["kind"] == kind
    assert says in pair["text"]
    assert told["headline"] == pair["text"]
    for effect, truth in zip(pair["effects"], signs, strict=True):
        sign = 1 if (pair["a"], pair["b"]) == ("4 layers", "2 layers") else -1
        assert effect["difference"] == pytest.approx(sign * truth, abs=0.05)


def test_a_ladder_goes_on_where_it_stopped_and_is_shown(tmp_path):
    log = tmp_path / "log"
    runner = Sized({64: 0.3, 128: 0.3, 256: 0.3}, sd=0.003, log=log)
    first = climb(studies(), runner, tmp_path / "l", engine="here", budget_s=100.0)
    runs = log.read_text()
    assert (
        climb(studies(), runner, tmp_path / "l", engine="here", budget_s=100.0)["pairs"]
        == (first["pairs"])
    )
    assert log.read_text() == runs
    assert len(runs.splitlines()) == 54
    budgets = {json.loads((tmp_path / "l" / f"x{n}" / store.PLAN).read_text())["budget_s"]
               for n in (1, 4, 16)}  # fmt: skip
    assert budgets == {100.0 / 3}
    told = json.loads((tmp_path / "l" / store.RESULT).read_text())
    assert lab_ladder.is_ladder(told)
    page = lab_ladder.page(told)
    assert "at all 3 sizes" in page
    assert lab_ladder.figure(told).count("<circle") == 3
    assert not lab_ladder.is_ladder(told["sizes"][0]["result"])
    assert lab_text.explained(told["sizes"][0]["result"])


def test_a_ladder_of_factors_turns_them_round(tmp_path):
    """A measure that is compared as a factor: 1/2 from the other side is 2."""
    runner = Sized({64: 0.3, 128: 0.3, 256: 0.3}, sd=0.003)
    factors = {n: replace(s, measure=replace(s.measure, ratio=True)) for n, s in studies().items()}
    told = climb(factors, runner, tmp_path / "l", engine="here")
    (pair,) = told["pairs"]
    assert pair["kind"] == "stable"
    assert pair["effects"][0]["difference"] == pytest.approx(3 / 3.3, abs=0.02)
    assert math.isclose(pair["effects"][0]["half_width"], 1, abs_tol=0.05)


@pytest.mark.parametrize(("kinds", "kind", "says"), [
    (("better", "not separated", "better"), "leans", "A ahead of B at all 3 sizes, separated at"),
    (("better", "unresolved", "better"), "leans", "A ahead of B where they were compared, sep"),
    (("better", "unresolved", "unresolved"), "unresolved", "could be compared at 100 k alone"),
    (("better", "better", "behind"), "open", "A better at 100 k, 400 k, with the sign the other"),
    (("unresolved", "unresolved", "unresolved"), "unresolved", ""),
])  # fmt: skip
def test_a_ladder_with_a_gap_does_not_say_stable(kinds, kind, says):
    rungs = {}
    for times, one in zip((1, 4, 16), kinds, strict=True):
        a, b = ("B", "A") if one == "behind" else ("A", "B")
        said = "not separated" if one == "behind" else one
        known = said != "unresolved"
        rungs[times] = {
            "study": {"measure": {"better": "lower", "ratio": False, "word": "better"}},
            "shapes": [{"params": {"body": 1e5 * times}}],
            "verdicts": [{"a": a, "b": b, "kind": said, "difference": -0.1 if known else None,
                          "half_width": 0.05 if known else None}],
        }  # fmt: skip
    told = compared(rungs, [{"A": "A", "B": "B"}] * 3)
    assert told["pairs"][0]["kind"] == kind
    assert says in told["headline"]


def test_arms_that_keep_their_names_are_compared_where_both_are_there(tmp_path):
    """Shapes that become equal at a small size are one arm fewer there."""
    three = {}
    for n, s in studies().items():
        a, b = (replace(one, name=name) for one, name in zip(s.shapes, "AB", strict=True))
        c = replace(b, name="C", spec=small(8, int(b.spec.d_model), 2 * int(b.spec.d_model)))
        three[n] = replace(s, shapes=(a, b) if n == 1 else (a, b, c))
    told = climb(three, Sized({64: 0.3, 128: 0.3, 256: 0.3}, sd=0.003), tmp_path / "l",
                 engine="here")  # fmt: skip
    assert {frozenset((p["a"], p["b"])) for p in told["pairs"]} == {
        frozenset(p) for p in ("AB", "AC", "BC")
    }
    effects = {frozenset((p["a"], p["b"])): p["effects"] for p in told["pairs"]}
    assert effects[frozenset("AC")][0] is None
    assert None not in effects[frozenset("AB")]


@pytest.mark.parametrize("name", [n for n, e in EXPERIMENTS.items() if e.sized])
@pytest.mark.parametrize("preset", ["quick", "standard"])
def test_a_question_with_sizes_asks_the_same_arms_of_four_times_the_body(name, preset):
    from scantling.costs.count import parameters
    from scantling.lab.study.ladder import SIZES, labels

    asked = [EXPERIMENTS[name].study(preset, n).check() for n in SIZES]
    names = [list(of.values()) for of in labels(asked)]
    assert names[0] == names[1] == names[2]
    assert len(set(names[0])) == len(names[0])
    for small_, large in itertools.pairwise(asked):
        for a, b in zip(small_.shapes, large.shapes, strict=True):
            ratio = float(parameters(b.spec).body / parameters(a.spec).body)
            assert 3.85 < ratio < 4.1, (a.name, b.name, ratio)


def test_depths_and_feed_forwards_have_sizes_and_others_say_so():
    sized = {n for n, e in EXPERIMENTS.items() if e.sized}
    assert {"depth-width", "ffn-sharing", "swiglu-gelu", "activation-sparsity"} <= sized
    with pytest.raises(
        FieldError, match=r"--ladder gradient-norms has one size; use .*depth-width"
    ):
        EXPERIMENTS["gradient-norms"].study("quick", 4)


def test_a_budget_too_short_for_a_size_is_told_before_anything_is_run(tmp_path):
    log = tmp_path / "log"
    with pytest.raises(FieldError) as caught:
        climb(studies(), Sized({}, step_s=0.1, log=log), tmp_path / "l", engine="here",
              budget_s=30.0)  # fmt: skip
    told = re.fullmatch(
        r"budget 30 s is 10 s for each of 3 sizes, and ×1 needs (.+) min, ×4 needs \1 min, "
        r"×16 needs \1 min; give (.+) min", str(caught.value),
    )  # fmt: skip
    one, all_three = map(float, told.groups())
    assert all_three == pytest.approx(3 * one, abs=0.15)
    assert not log.exists()
    enough = plans(studies(), Sized({}, step_s=0.1), tmp_path / "l", engine="here",
                   budget_s=60 * (all_three + 0.1))  # fmt: skip
    assert set(enough) == set(studies())
