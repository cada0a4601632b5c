"""What studies say is no more than they know."""

import io
import json
import math
import random
import re

import pytest
from msgspec import to_builtins
from msgspec.structs import replace
from rich.console import Console

from fake_runs import Fake
from scantling.errors import FieldError
from scantling.lab import stats
from scantling.lab.match import equal_flops, small
from scantling.lab.study import Measure, Pace, Rates, Shape, answer, result_json
from scantling.lab.study.plan import plan
from scantling.lab.study.verdict import Arm, headline, spread, unsolved, verdicts
from scantling.messages import use_language
from scantling.report.lab_html import page
from scantling.report.lab_text import explained, honest_lines, print_study
from test_lab_study import study


@pytest.fixture
def ask(tmp_path):
    """The result of a study, as the report reads it."""

    def asked(s, runner=None):
        found = answer(s, runner or Fake(), tmp_path / s.name, engine="here")
        return json.loads(json.dumps(result_json(found)))

    return asked


def what_was_done(found):
    return dict(explained(found))["What was done"][0]


# ---------------------------------------------------------------- equal in what


def test_shapes_that_were_not_made_equal_are_not_called_equal(ask):
    s = study(1, 2, 4)
    some = [replace(one, matched=m)
            for one, m in zip(s.shapes, [{"body": 0.0, "params": 0.0}, {"params": 0.002}, {}],
                              strict=True)]  # fmt: skip
    found = ask(replace(s, shapes=tuple(some)))
    assert what_was_done(found) == (
        "3 shapes: L1, L2, L4; L1 equal in body to 0.0%; L1, L2 equal in params to 0.2%."
    )


def test_equal_flops_are_those_of_the_steps_that_are_taken(ask):
    shapes = equal_flops([Shape(str(v), small(1, 16, 32, vocab_size=v)) for v in (256, 4096)])
    found = ask(replace(study(1, 2), shapes=shapes, tokens=250_000))
    first, second = found["shapes"]
    totals = [s["train_flops_per_token"] * s["tokens"] for s in (first, second)]
    assert first["matched"]["flops of a run"] == 0
    off = second["matched"]["flops of a run"]
    assert off == pytest.approx(totals[1] / totals[0] - 1, abs=1e-4)
    assert off != 0


# ---------------------------------------------------------------- measures


def test_nats_a_token_do_not_compare_tokenizers(ask):
    s = study(1, 2)
    two = (s.shapes[0], replace(s.shapes[1], tokenizer="bpe:512"))
    with pytest.raises(FieldError, match=r"measure loss is nats a token, and tokens of bpe:512 and "
                       r"bytes differ; use bits_per_byte"):  # fmt: skip
        ask(replace(s, shapes=two))


def test_a_measure_whose_low_values_are_good_is_not_solved_from_a_value_on(ask):
    with pytest.raises(FieldError, match=r"solved 0.9 counts values from there on, but lower loss"):
        ask(replace(study(1, 2), measure=Measure(solved=0.9)))


# ---------------------------------------------------------------- what is said


def arms(**seeds):
    """Arms of a study by the losses of their seeds."""
    return [
        Arm(name, 0.003, (0.001, 0.003, 0.009), (), None, values, stats.mean_interval(values))
        for name, values in seeds.items()
    ]


def test_the_headline_does_not_say_less_than_the_verdicts():
    """The best mean is of the noisiest arm; two others are far apart for their noise."""
    three = arms(A=(0.5, 1.0, 1.5), B=(1.1, 1.101, 1.102), C=(1.2, 1.201, 1.202))
    s = study(1, 2, 4)
    found = verdicts(s, three)
    assert [(v.a, v.b) for v in found if v.kind == "better"] == [("B", "C")]
    assert headline(s, three, found) == (
        "A has the best mean, not separated from B, C; B is better than C"
    )
    four = [*three, *arms(D=(5.0, 5.001, 5.002))]
    assert headline(s, four, verdicts(s, four)) == (
        "A is better than D; not separated from B, C; B is better than C"
    )


def test_seeds_that_are_needed_follow_from_the_two_arms_alone():
    s = study(1, 2, 4)
    quiet = arms(A=(1.0, 1.01, 1.02), B=(1.005, 1.015, 1.025))
    (alone,) = verdicts(s, quiet)
    noisy, broken = arms(C=(2.0, 9.0, 5.0), D=(0.0, 50.0, 100.0))
    broken = replace(broken, unresolved="did not train")
    needed = {frozenset((v.a, v.b)): v.seeds_needed for v in verdicts(s, [*quiet, noisy])}
    own = stats.seeds_needed(0.01, 0.005, 3)
    assert own - 1 <= needed[frozenset("AB")] <= own + 1
    assert alone.text.endswith(f"needs {alone.seeds_needed} seeds)")
    assert spread(s, [*quiet, broken]) == spread(s, quiet) == pytest.approx(0.01)


def test_the_seeds_needed_are_one_number():
    """Short of the level, though three seeds resolve as much where spreads are alike."""
    noisy = (0.34, 0.44, 0.54)
    three = arms(A=(0.0, 0.001, 0.002), B=noisy, C=noisy)
    v = next(v for v in verdicts(study(1, 2, 4), three) if v.a == "A")
    assert v.kind == "not separated"
    assert v.text.endswith("needs 4 seeds)")
    assert v.seeds_needed == 4


# ---------------------------------------------------------------- shares of solved seeds

SOLVED = Measure("accuracy", "share of seeds", "higher", solved=0.9)


def test_shares_that_no_outcome_could_tell_apart_are_not_asked_for(ask):
    """Three of three against none have p 0.1; over three pairs four of four do not suffice."""
    with pytest.raises(FieldError, match="seeds 3 are too few: not even all solved against none"):
        ask(study(1, 2, measure=SOLVED))
    with pytest.raises(FieldError, match="count as different; at least 5"):
        ask(study(1, 2, 4, measure=SOLVED, seeds=4))
    found = ask(study(1, 2, 4, measure=SOLVED, seeds=5), Fake({2: 0.5}))
    assert {(v["a"], v["b"]) for v in found["verdicts"] if v["kind"] == "better"} == {
        ("L1", "L2"), ("L4", "L2")}  # fmt: skip
    assert found["resolvable"] == 1
    assert "tells shares apart that differ by 100% of the seeds or more" in " ".join(
        honest_lines(found))  # fmt: skip


def test_no_budget_takes_the_seeds_that_shares_need():
    s = study(1, 2, measure=SOLVED, seeds=8, rates=Rates(3, 2.5, 0))
    paces = {name: Pace(0.0, 0.01, 0.0) for name in ("L1", "L2")}
    with pytest.raises(FieldError, match="two shapes at 4 seeds"):
        plan(s, paces, 1, 1.0)
    assert plan(s, paces, 1, 1.0, smallest=True).seeds == 4


def test_seeds_that_shares_need_are_found_by_drawing_them():
    n, draw, told = 16, random.Random(0), 0
    assert stats.seeds_needed_for_shares(1.0, 0.6) == n
    for _ in range(2000):
        told += stats.shares(n, n, sum(draw.random() < 0.6 for _ in range(n)), n).p < 0.05
    assert told / 2000 == pytest.approx(0.83, abs=0.03)
    (v,) = verdicts(study(1, 2, measure=SOLVED, seeds=5), [
        replace(a, solved=k) for a, k in zip(arms(A=(1.0,) * 5, B=(1.0,) * 5), (5, 3), strict=True)
    ])  # fmt: skip
    assert v.seeds_needed == 16
    assert v.text.endswith("needs 16 seeds)")


def solving(measure=SOLVED, **more):
    return replace(study(1, 2, seeds=5, measure=measure, rates=Rates(2, 2.5, 1)), **more)


class Guessing(Fake):
    """Two layers solve it the better the higher the rate; one layer guesses, best at low rates.

    Args:
        slope: Nats that one layer loses a factor e of the rate.
        reached: Share of questions that two layers answer.
    """

    def __init__(self, slope=0.005, reached=1.0):
        super().__init__()
        self.slope, self.reached = slope, reached

    def run(self, trial):
        found, two = super().run(trial), trial.spec.n_layer == 2
        rise = math.log(trial.rate / 0.001)
        loss = 0.2 - 0.05 * rise if two else 1.6 + self.slope * rise
        measures = {"choose": loss, "loss": loss, "accuracy": self.reached if two else 0.2}
        return replace(found, measures=measures)


def test_a_shape_that_guesses_at_every_rate_is_solved_by_none_wherever_its_best_rate_lies(ask):
    """What is left to noise has its lowest loss at the lowest rate, however low that is."""
    found = ask(solving(), Guessing())
    two, one = sorted(found["shapes"], key=lambda s: -s["solved"])
    assert (two["solved"], one["solved"]) == (5, 0)
    assert one["rate"] == one["rates"][0]
    assert one["edge"] is two["edge"] is None
    assert found["headline"].startswith("L2 better than L1 by 1 ± ")


def test_a_task_that_all_seeds_solve_needs_no_wider_grid(ask):
    found = ask(solving(), Guessing())
    assert {s["shape"]: len(s["rates"]) for s in found["shapes"]} == {"L1": 3, "L2": 2}


def test_a_task_that_all_seeds_of_both_solve_is_too_easy(ask):
    (v,) = ask(solving(), Fake())["verdicts"]
    assert v["text"] == (
        "L1 and L2: not separated (every seed of both solves it; a harder task may tell them apart)"
    )


def test_the_table_counts_seeds_that_solve_it_and_shows_what_each_reached(ask):
    found = ask(solving(), Guessing())
    out = Console(width=200, record=True, file=io.StringIO())
    print_study(out, found)
    for told in (out.export_text(clear=False), page(found).replace("\u00a0", " ")):
        assert "seeds that solve it" in told
        assert "each seed: share of seeds" in told
        assert "5 of 5" in told
    assert "the grid grew, once." in page(found)


def test_a_grid_that_was_cut_short_is_not_said_to_have_grown(ask):
    short = study(1, 2, rates=Rates(3, 2.5, 2))
    found = ask(short, Fake(sd=0.001, best={2: 0.9}))
    assert "after all its growth: L2; a wider grid" in " ".join(honest_lines(found))
    found["shapes"][1]["rates"].pop()
    assert "edge of the grid: L2; the time was up before" in " ".join(honest_lines(found))


def test_a_shape_whose_loss_falls_to_the_edge_might_solve_it_beyond(ask):
    found = ask(solving(), Guessing(slope=0.1))
    assert [v["kind"] for v in found["verdicts"]] == ["unresolved"]
    assert found["headline"].startswith("unresolved: L1 edge: its best rate")


def test_a_task_that_no_seed_solves_says_nothing_of_shapes(ask):
    found = ask(solving(), Guessing(reached=0.5))
    assert [v["kind"] for v in found["verdicts"]] == ["unresolved"]
    assert "L1 solved by no seed, nor is any other: ask with more tokens" in found["headline"]


def test_of_a_shape_that_was_not_run_to_the_end_it_is_not_said_that_none_solves_it():
    none, late = arms(A=(0.2,) * 5, B=(0.2,) * 5)
    late = replace(late, unresolved="time was up after 0 of 5 seeds")
    two = [replace(none, solved=0), late]
    assert unsolved(solving(), two) == two


# ---------------------------------------------------------------- learning rates


def test_a_loss_at_one_rate_is_unresolved_and_a_probe_is_not(ask):
    one = Rates(1, 2.0, 0)
    found = ask(study(1, 2, rates=one), Fake({2: 0.5}))
    assert found["headline"].startswith("unresolved: L1 one rate tried")

    class Probing(Fake):
        def run(self, trial):
            found = super().run(trial)
            return replace(found, measures=found.measures | {"active": found.measures["loss"]})

    active = Measure("active", "share of units", word="sparser")
    s = replace(study(1, 2, rates=one, measure=active), name="probes")
    found = ask(s, Probing({2: 0.5}))
    assert found["verdicts"][0]["kind"] == "better"


def test_the_report_says_that_the_rate_was_chosen_on_the_models_it_reports(ask):
    assert "The rate was chosen on other data but on the same models" in " ".join(
        honest_lines(ask(study(1, 2))))  # fmt: skip


def test_bits_a_byte_of_tokens_whose_bytes_nobody_knows_are_refused(ask):
    class Numbers(Fake):
        def data(self, trial):
            return replace(super().data(trial), bytes_per_token=None)

    with pytest.raises(FieldError, match="measure bits_per_byte is not known of fake; use loss"):
        ask(study(1, 2, measure=Measure("bits_per_byte", "bits a byte")), Numbers())


# ---------------------------------------------------------------- in Chinese

HOSTILE = ("none", "tied, wider body", "better than full", "2 layers")
"""Names that are words of sentences, or hold the marks between them."""


@pytest.fixture
def chinese():
    """Text in Chinese for one test."""
    use_language("zh")
    yield
    use_language("en")


@pytest.mark.usefixtures("chinese")
@pytest.mark.parametrize(
    "measure",
    [
        Measure(),
        Measure("spread", "gradients apart, ×", "lower", "more alike", ratio=True),
        Measure("accuracy", "share of digits right", "higher", solved=0.9),
    ],
    ids=lambda m: m.name,
)
def test_what_a_study_says_is_chinese_but_for_the_names(ask, measure):
    """Drawn at random: better, level and unresolved arms in every order, as a report tells them."""
    found, draw = ask(study(1, 2, 4, 8)), random.Random(3)
    first = found["shapes"][0]
    reasons = [
        "edge: its best rate 0.01 is the highest tried",
        "time was up after 2 of 3 seeds",
        "2 of 3 seeds did not train",
        "3 of 3 seeds failed at every rate: the loss is nan at step 9 at a learning rate of 0.1",
    ]
    for _ in range(60):
        arms = []
        for name in HOSTILE:
            middle = draw.choice([0.2, 0.3, 0.9])
            seeds = tuple(middle + draw.uniform(0, 0.05) for _ in range(4))
            solved = None if measure.solved is None else sum(v >= measure.solved for v in seeds)
            why = draw.choice(reasons) if draw.random() < 0.2 else None
            interval = stats.mean_interval(seeds)
            arms.append(Arm(name, 0.1, (0.1,), (1.0,), None, seeds, interval, {}, solved, why))
        asked = replace(study(1, 2), measure=measure)
        told = verdicts(asked, arms)
        shapes = [first | {"shape": a.shape, "unresolved": a.unresolved} for a in arms]
        said = json.loads(
            json.dumps(
                {
                    **found,
                    "study": found["study"] | {"measure": to_builtins(measure)},
                    "shapes": shapes,
                    "verdicts": to_builtins(told),
                    "headline": headline(asked, arms, told),
                }
            )
        )
        for paragraph in [*dict(explained(said))["What was found"], *honest_lines(said)]:
            left = paragraph
            for name in (*HOSTILE, "Linux", "Python", "grammar", "nan", "token"):
                left = left.replace(name, "")
            left = left.replace(said["study"]["data"], "").replace(said["machine"], "")
            assert not re.search("[a-z]{2,} [a-z]{2,}|(than|is|and) ", left), paragraph
