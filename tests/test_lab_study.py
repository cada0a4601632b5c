"""Studies say what is so: judged in worlds whose truth is known, without training anything."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest
from msgspec.structs import replace

from fake_runs import Fake
from scantling import catalog, vary
from scantling.errors import FieldError
from scantling.lab.stats import resolvable
from scantling.lab.study import Data, Measure, Pace, Rates, Shape, Study, answer, store
from scantling.lab.study.plan import RESERVE, plan, replan
from scantling.lab.study.sweep import ShapeJob, run_shape
from scantling.lab.study.verdict import arm, verdicts

TINY = vary(catalog.model("llama-3.2-1b"), d_model=64, n_head=4, n_kv_head=4, d_head=16, d_ff=128,
            vocab_size=256)  # fmt: skip


def study(*depths, **changes):
    shapes = tuple(Shape(f"L{d}", vary(TINY, n_layer=d), rate=0.003) for d in depths)
    return Study(name="test", question="which depth?", shapes=shapes, data="fake", tokens=100_000,
                 **changes)  # fmt: skip


@pytest.fixture
def ask(tmp_path):
    """Ask a study here, in a folder of its own."""
    return lambda s, runner, **more: answer(s, runner, tmp_path / "s", engine="here", **more)


def kinds(found):
    return {(v.a, v.b): v.kind for v in found.verdicts}


def test_a_large_effect_is_found_with_its_size_and_sign(ask):
    found = ask(study(1, 2, 4), Fake({1: 0.3, 2: 0.0, 4: 0.6}))
    assert kinds(found) == dict.fromkeys([("L2", "L1"), ("L1", "L4"), ("L2", "L4")], "better")
    for v in found.verdicts:
        truth = {("L2", "L1"): -0.3, ("L1", "L4"): -0.3, ("L2", "L4"): -0.6}[v.a, v.b]
        assert abs(v.difference - truth) < 0.1
    assert found.headline == "L2 is better than every other: L1, L4"


def judged(s, runner):
    """The verdicts of a study, without a folder."""
    data = Data("fake", 256, 1.0, 3.9)
    arms = []
    for shape in s.shapes:
        job = ShapeJob(shape, data, s.tokens, s.seeds, "/nowhere")
        arms.append(arm(s, run_shape((s, runner), job), data))
    return [v for v in verdicts(s, arms) if v.kind == "better"]


def test_of_200_null_studies_at_most_one_in_twenty_says_better():
    assert sum(bool(judged(study(1, 2, 4), Fake(world=world))) for world in range(200)) <= 10


def test_an_effect_of_the_size_that_is_said_to_be_resolvable_is_mostly_seen():
    """80 % power before the rate is chosen; where the grid stays at its edge nothing is said."""
    effect, seen = resolvable(0.02, 3), 0
    for world in range(100):
        found = judged(study(1, 2), Fake({2: effect}, world=world))
        seen += any(v.a == "L1" for v in found)
        assert not any(v.a == "L2" for v in found)
    assert seen >= 72


def test_a_difference_inside_the_noise_is_not_separated_and_says_how_many_seeds_would(ask):
    found = ask(study(1, 2), Fake({2: 0.01}))
    (v,) = found.verdicts
    assert v.kind == "not separated"
    assert "not separated (difference" in v.text
    assert "seeds)" in v.text
    assert v.seeds_needed is None or v.seeds_needed > 3


def test_the_grid_grows_to_where_the_best_rate_is_interior(ask):
    found = ask(study(1, 2), Fake(sd=0.001, best={1: 0.003, 2: 0.01}))
    one, two = found.arms
    assert len(one.rates) == 3
    assert len(two.rates) == 4
    assert two.edge is None
    assert two.rate == pytest.approx(0.0075)


def test_a_best_rate_that_stays_at_the_edge_is_unresolved(ask):
    found = ask(study(1, 2), Fake(sd=0.001, best={2: 0.9}))
    assert len(found.arms[1].rates) == 5
    (v,) = found.verdicts
    assert v.kind == "unresolved"
    assert "edge: its best rate" in v.text
    assert found.headline.startswith("unresolved: L2 edge")


def test_the_rate_is_chosen_on_another_slice_than_the_one_reported(ask):
    class Sly(Fake):
        """The reported slice would choose 0.0012, the other one 0.003."""

        def run(self, trial):
            found = super().run(trial)
            better = 1.0 if trial.rate < 0.002 else 0.0
            return replace(found, measures=found.measures | {"loss": 3 - better})

    found = ask(study(1, 2), Sly(sd=0.0))
    assert [a.rate for a in found.arms] == [0.003, 0.003]
    assert [a.interval.value for a in found.arms] == [3, 3]


def test_a_rate_that_diverges_is_never_chosen(ask):
    wild = study(1, 2, rates=Rates(3, 40.0))
    found = ask(wild, Fake(best={1: 0.1, 2: 0.1}))
    assert [a.rate for a in found.arms] == [0.12, 0.12]
    assert found.arms[0].rates == (7.5e-5, 0.003, 0.12, 4.8)
    assert found.arms[0].chosen[-1] is None


def test_a_loss_of_single_tokens_did_not_train(ask):
    found = ask(study(1, 2), Fake({2: 1.0}))
    assert found.arms[1].unresolved == "did not train: its loss is that of single tokens"
    assert found.verdicts[0].kind == "unresolved"


def test_solved_shares_are_compared_where_seeds_solve_it_or_not(ask):
    measure = Measure("accuracy", "share of seeds", "higher", solved=0.9)
    found = ask(study(1, 2, seeds=8, measure=measure), Fake({2: 0.5}))
    assert [a.solved for a in found.arms] == [8, 0]
    assert found.verdicts[0].text == (
        "L1 better than L2 by 1 ± 0.46 in the share of seeds that solve it (8 of 8, 0 of 8)"
    )


# ---------------------------------------------------------------- budget


def test_a_budget_takes_tokens_then_shapes_and_never_the_third_seed():
    s = study(4, 2, 1, seeds=3, rates=Rates(3, 2.5, 2))
    paces = {f"L{d}": Pace(0.0, 0.01 * d, 0.0) for d in (4, 2, 1)}
    whole = plan(s, paces, 1)
    assert whole.tokens == 100_000
    assert whole.expected_s == pytest.approx(9 * 97 * 0.01 * 7)
    assert whole.most_s == pytest.approx(15 * 97 * 0.01 * 7)
    likely_s = (whole.expected_s + whole.most_s) / 2
    less = plan(s, paces, 1, 0.5 * likely_s / RESERVE)
    assert 49_000 < less.tokens < 51_000
    assert less.shapes == ("L4", "L2", "L1")
    least = plan(s, paces, 1, 0.22 * likely_s / RESERVE)
    assert least.shapes == ("L4", "L2")
    assert least.tokens >= 25_000
    assert least.expected_s + least.most_s <= 2 * 0.22 * likely_s
    assert least.seeds == 3
    with pytest.raises(FieldError, match=r"budget 20 s is too short: two shapes at 3 seeds"):
        plan(s, paces, 1, 20)


def test_one_process_is_planned_as_one_whatever_workers_are_given(ask):
    """Two shapes one after another take as long as both, not as the longer one."""
    s = study(1, 2)
    found = ask(s, Fake({}), workers=2).plan
    assert found.workers == 1
    assert (
        found.expected_s == plan(s, found.paces, 1).expected_s > plan(s, found.paces, 2).expected_s
    )


def test_jobs_are_spread_over_workers_longest_first():
    paces = {f"L{d}": Pace(0.0, 0.01 * d, 0.0) for d in (4, 2, 1)}
    assert plan(study(4, 2, 1), paces, 2).expected_s == pytest.approx(9 * 97 * 0.04)


def test_when_the_time_is_up_no_run_is_begun_and_the_verdict_says_so(ask):
    slow = Fake(delay_s=0.2, step_s=1e-6)
    found = ask(study(1, 2), slow, budget_s=1.0)
    assert "time was up after" in found.verdicts[0].text


def test_a_machine_slower_than_it_was_timed_gets_a_smaller_study_in_time(ask):
    """Timed at 1 ms a step and layer, a run takes three times that: a third of the tokens fit."""

    class Slower(Fake):
        def run(self, trial):
            seconds = 3 * 0.001 * trial.spec.n_layer * trial.steps
            time.sleep(seconds)
            return replace(super().run(trial), seconds=seconds)

    told = []
    s = study(1, 2, rates=Rates(3, 2.5, 0))
    found = ask(s, Slower(), budget_s=4.0, say=told.append)
    assert any("3.0 times what was timed, planned anew" in line for line in told)
    assert found.plan.tokens < 60_000


def test_a_plan_for_a_slow_machine_keeps_shapes_and_runs_that_are_done():
    """A run of L4, L2 and L1 takes 4, 2 and 1 s; nine of each are 36, 18 and 9 s on one worker."""
    s = study(4, 2, 1, rates=Rates(3, 2.5, 0))
    old = plan(s, {f"L{d}": Pace(0.0, 0.5 * d / 97, 0.0) for d in (4, 2, 1)}, 1, 1000)
    room = {"slow": 2.0, "left_s": 20 / RESERVE}
    fewer = replan(s, old, **room, done={"L4": 1, "L2": 0, "L1": 0})
    assert fewer.shapes == ("L4", "L2", "L1")
    assert 30_000 < fewer.tokens < 33_000
    assert fewer.shrunk == (f"{fewer.tokens / 1000:.3g} k tokens a run instead of 100 k",)
    # two shapes are nearly done: with a quarter of the tokens all three would take 15.6 s
    on = replan(s, old, slow=2.0, left_s=10 / RESERVE, done={"L4": 0, "L2": 7, "L1": 5})
    assert (on.shapes, on.tokens) == (("L2", "L1"), 100_000)
    assert on.expected_s == pytest.approx(2 * 2 + 4 * 1)
    assert on.shrunk == ("without L4",)
    # nothing fits: what is done goes on
    late = replan(s, old, slow=2.0, left_s=0.1, done={"L4": 8, "L2": 3, "L1": 0})
    assert (late.shapes, late.tokens) == (("L4", "L2"), 100_000)


@pytest.mark.parametrize(("changes", "says"), [
    ({"seeds": 2}, "seeds 2 are too few for an interval; at least 3"),
    ({"batch": 4096}, "tokens 100000 are less than one batch of 262,144"),
    ({"shapes": ()}, "shapes 0 compare nothing"),
])  # fmt: skip
def test_a_study_that_can_answer_nothing_is_refused(ask, changes, says):
    with pytest.raises(FieldError, match=says):
        ask(replace(study(1, 2), **changes), Fake())


# ---------------------------------------------------------------- kept runs


def told(found):
    return [(a.shape, a.rate, a.seeds) for a in found.arms], [v.text for v in found.verdicts]


def test_what_is_done_is_not_run_again_and_says_the_same(ask, tmp_path):
    log = tmp_path / "log"
    first = ask(study(1, 2), Fake(log=log))
    runs = log.read_text().splitlines()
    again = ask(study(1, 2), Fake(log=log))
    assert told(again) == told(first)
    assert log.read_text().splitlines() == runs
    assert len(set(runs)) == len(runs)


def test_a_folder_holds_one_study(ask, tmp_path):
    ask(study(1, 2), Fake())
    with pytest.raises(FieldError, match="holds another study, test of other shapes"):
        ask(study(1, 4), Fake())
    assert ask(study(1, 4), Fake(), fresh=True).arms[1].shape == "L4"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(FieldError, match="holds something that is no study"):
        answer(study(1, 2), Fake(), tmp_path / "mine", engine="here")


def test_a_study_that_was_refused_its_budget_leaves_its_folder_to_another(ask):
    with pytest.raises(FieldError, match="is too short"):
        ask(study(1, 2), Fake(step_s=9.0), budget_s=60.0)
    found = ask(study(1, 2, seeds=5), Fake({2: 0.5}), budget_s=60.0)
    assert found.plan.seeds == 5
    assert found.resolved


def test_the_pool_gives_the_answer_of_this_process(ask, tmp_path):
    here = ask(study(1, 2, 4), Fake({2: 0.2}))
    pool = answer(study(1, 2, 4), Fake({2: 0.2}), tmp_path / "p", engine="pool", workers=2)
    assert told(pool) == told(here)


def test_a_shape_whose_workers_die_is_reported_and_the_others_are_answered(tmp_path):
    log = tmp_path / "log"
    found = answer(study(1, 2, 4), Fake({2: 0.3}, deadly=4, log=log), tmp_path / "s",
                   engine="pool", workers=2)  # fmt: skip
    assert kinds(found)["L1", "L2"] == "better"
    assert found.arms[2].unresolved.startswith("every worker died that ran it")
    assert sum(line.startswith("4 ") for line in log.read_text().splitlines()) == 3


KILLS = int(os.environ.get("SCANTLING_KILLS", "4"))
"""More for a thorough run: ``SCANTLING_KILLS=50``."""
DELAY = 0.15 if KILLS < 10 else 0.6
SCRIPT = """
import pathlib, sys
from fake_runs import Fake
from test_lab_study import study
from scantling.lab.study import answer

if __name__ == "__main__":
    folder, log, delay = sys.argv[1:]
    runner = Fake({2: 0.1}, log=log, delay_s=float(delay))
    answer(study(1, 2, 4), runner, pathlib.Path(folder), engine="pool", workers=2)
"""


def kill_and_resume(tmp_path, kills, seed):
    """A study that is killed at random moments until it is through; its answer, and its runs."""
    (tmp_path / "script.py").write_text(SCRIPT)
    folder, log = tmp_path / "s", tmp_path / "log"
    path = os.pathsep.join([str(pathlib.Path(__file__).parent), *sys.path])
    command = [sys.executable, str(tmp_path / "script.py"), str(folder), str(log), str(DELAY)]
    draw, killed = random.Random(seed), 0
    while True:
        begun = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path})
        if killed < kills:
            time.sleep(draw.uniform(0.2, 1.8))
            begun.send_signal(signal.SIGKILL)
            killed += begun.wait() == -signal.SIGKILL
            if (folder / store.RESULT).exists():
                break
        else:
            assert begun.wait() == 0
            break
    return answer(study(1, 2, 4), Fake({2: 0.1}), folder, engine="here"), log, killed


@pytest.mark.parametrize("seed", range(1 + KILLS // 15))
def test_a_study_killed_at_random_moments_ends_as_one_that_was_not(tmp_path, ask, seed):
    (tmp_path / "k").mkdir()
    found, log, killed = kill_and_resume(tmp_path / "k", KILLS, seed)
    print(killed, "kills")  # noqa: T201 - shown with -s
    assert killed >= 1
    assert told(found) == told(ask(study(1, 2, 4), Fake({2: 0.1})))
    runs = log.read_text().splitlines()
    # only what ran at the moment of a kill may have been begun twice
    assert len(runs) - len(set(runs)) <= 2 * killed


# ---------------------------------------------------------------- the loop


def test_the_runs_of_a_study_are_read_by_laws(ask, tmp_path):
    from scantling.laws.runs import read_runs

    ask(study(1, 2, 4), Fake())
    runs = read_runs(tmp_path / "s" / store.TABLE)
    assert len(runs) == 27
    assert sorted(set(runs.features.depth)) == [1, 2, 4]
    assert set(runs.features.width) == {64}
    assert runs.warnings == ()
    result = json.loads((tmp_path / "s" / store.RESULT).read_text())
    assert [s["shape"] for s in result["shapes"]] == ["L1", "L2", "L4"]
