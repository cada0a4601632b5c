"""Run a study to its answer: measure the pace, plan, run what is not done, judge, write it down."""

from __future__ import annotations

import math
import platform
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from scantling import executor
from scantling.costs.count import flops, parameters
from scantling.errors import FieldError
from scantling.lab.study import store
from scantling.lab.study.design import Shape, Study
from scantling.lab.study.plan import Plan, Trained, cost, plan, replan
from scantling.lab.study.sweep import ShapeJob, Swept, groups, run_shape, trials
from scantling.lab.study.trial import Data, GroupRunner, Pace, Record, Runner, Trial, key
from scantling.lab.study.verdict import (
    Arm,
    Verdict,
    arms_of,
    headline,
    resolvable,
    spread,
    unsolved,
    verdicts,
)

Say = Callable[[str], None]
Progress = Callable[[int, int], None]
Told = TypeVar("Told")
POLL_S = 0.5
REPLANS = 3
"""Times a study is planned anew where the machine turns out slower than when it was timed."""
OVER = 1.15
"""A study with a budget begins no run after this share of it."""


class Answer(Struct, frozen=True):
    """What a study found."""

    study: Study
    plan: Plan
    data: dict[str, Data]
    arms: tuple[Arm, ...]
    verdicts: tuple[Verdict, ...]
    headline: str
    resolvable: float | None
    """The effect that this design sees four times of five."""
    spread: float | None
    seconds: float
    machine: str
    records: tuple[Record, ...] = ()

    @property
    def resolved(self) -> bool:
        """Whether any two shapes could be told apart."""
        return any(v.kind == "better" for v in self.verdicts)


def answer(
    study: Study, runner: Runner, folder: Path, *, budget_s: float | None = None,
    engine: str = "pool", workers: int | None = None, fresh: bool = False,
    say: Say = lambda _: None, progress: Progress | None = None,
) -> Answer:  # fmt: skip
    """Run a study, or what is left of one that was stopped.

    Every run that is done is kept in the folder under its content hash; a run that is there is not
    run again. So is the plan, so that a study that goes on asks for the same runs.

    Args:
        study: What is asked.
        runner: How a run is made.
        folder: Of the study; made if it does not exist.
        budget_s: Seconds that it may take.
        engine: As for ``executor.run``.
        workers: As for ``executor.run``.
        fresh: Forget what the folder holds.
        say: Called with the plan, before anything long.
        progress: Called with runs done and runs planned.

    Raises:
        FieldError: If the folder holds something else or runs on other data, or the budget is too
            short.
    """
    begun, study = time.time(), study.check()
    found, data, n = planned(study, runner, folder, budget_s=budget_s, engine=engine,
                             workers=workers, fresh=fresh, say=say)  # fmt: skip
    for again in reversed(range(REPLANS + 1)):
        left_s = math.inf if budget_s is None else budget_s - (time.time() - begun)
        hopeful = again > 0 and found.expected_s < left_s
        slack = OVER * left_s / max(found.expected_s, 1e-3) if hopeful else math.inf
        done = _done(study, runner, found, data, folder)
        swept = _run(study, runner, found, data, folder, engine, n, begun, slack, say,
                     _counted(progress, store.count(folder) - sum(done.values())))  # fmt: skip
        slow = max((s.slow or 0.0 for s in swept.values()), default=0.0)
        if not slow or budget_s is None:
            break
        done = _done(study, runner, found, data, folder)
        found = replan(study, found, slow, budget_s - (time.time() - begun), done,
                       _models(study, runner))  # fmt: skip
        say(f"runs take {slow:.1f} times what was timed, planned anew; {sum(done.values())} are "
            "done")  # fmt: skip
        for line in found.lines(study):
            say(line)
        store.write(folder / store.PLAN, found)
    return _judged(study, found, data, swept, folder, time.time() - begun)


def planned(
    study: Study, runner: Runner, folder: Path, *, budget_s: float | None = None,
    engine: str = "pool", workers: int | None = None, fresh: bool = False,
    say: Say = lambda _: None,
) -> tuple[Plan, dict[str, Data], int]:  # fmt: skip
    """The plan of a study, kept in its folder, what its data is, and how many workers it has.

    Five steps of every shape are timed, unless the folder has a plan for this budget.

    Raises:
        FieldError: If the folder holds something else or runs on other data, or the budget is too
            short.
    """
    executor.check(engine, workers)
    study = study.check()
    if fresh and (folder / store.STUDY).exists():
        shutil.rmtree(folder)
    store.open_folder(folder, study)
    n = executor.places(engine, workers, len(study.shapes))
    begun = time.monotonic()
    found = store.read(folder / store.PLAN, Plan)
    data = store.read(folder / store.DATA, dict[str, Data])
    if data is None:
        data = _by_tokenizer(study, runner.data)
        if study.measure.name == "bits_per_byte" and None in {
            one.bytes_per_token for one in data.values()
        }:
            raise FieldError(
                "measure", "bits_per_byte", f"is not known of {study.data}", "use loss"
            )
        store.write(folder / store.DATA, data)
    elif _by_tokenizer(study, runner.data_hash) != {n: one.hash for n, one in data.items()}:
        raise FieldError("data", study.data, "has changed since this study began on it",
                         "bring it back, give another folder, or --fresh")  # fmt: skip
    if found is None or found.budget_s != budget_s:
        n_shapes = len(study.shapes)
        look = "" if study.probe is None else ", and what looks at them"
        say(f"timing five steps of {f'{n_shapes} shapes' if n_shapes > 1 else 'one shape'}{look}")
        paces = _paces(study, runner, engine, n)
        found = plan(study, paces, n, budget_s, spent_s=time.monotonic() - begun,
                     trained=_models(study, runner))  # fmt: skip
        store.write(folder / store.PLAN, found)
    for line in found.lines(study):
        say(line)
    return found, data, n


def _models(study: Study, runner: Runner) -> Trained:
    """Whether the models of every seed are there, where a study only looks at them."""

    def trained(tokens: int) -> bool:
        (shape,) = study.shapes
        (rate,) = study.grid(shape, tokens)
        runs = (study.trial(shape, rate, seed, tokens) for seed in range(study.seeds))
        return all(map(runner.trained, runs))

    return trained


def _shares(study: Study, seeds: int) -> list[tuple[int, int]]:
    """The first seed of each job of a shape, and how many it has.

    Where there is one shape, its seeds are what workers can share.
    """
    return [(0, seeds)] if study.probed is None else [(seed, 1) for seed in range(seeds)]


def _done(
    study: Study, runner: Runner, planned: Plan, data: Mapping[str, Data], folder: Path
) -> dict[str, int]:  # fmt: skip
    """Runs of a plan that are kept, by shape."""
    found = {}
    for s in (s for s in study.shapes if s.name in planned.shapes):
        job = ShapeJob(s, data[s.name], planned.tokens, planned.seeds, str(folder))
        runs = trials(study, job, study.grid(s, planned.tokens))
        names = (key(one, job.data, runner.name) for one in runs)
        found[s.name] = sum(store.kept(folder, name) is not None for name in names)
    return found


def _counted(progress: Progress | None, before: int) -> Progress | None:
    """Progress without the runs of earlier plans."""
    return None if progress is None else lambda done, total: progress(done - before, total)


def _by_tokenizer(study: Study, asked: Callable[[Trial], Told]) -> dict[str, Told]:
    """What is asked of the data of each shape; shapes with one tokenizer share it."""
    known: dict[str, Told] = {}
    found = {}
    for shape in study.shapes:
        trial = _first(study, shape)
        if trial.tokenizer not in known:
            known[trial.tokenizer] = asked(trial)
        found[shape.name] = known[trial.tokenizer]
    return found


def _first(study: Study, shape: Shape, seed: int = 0) -> Trial:
    """The run that a shape is timed by: in the middle of its grid."""
    grid = study.grid(shape, study.tokens)
    return study.trial(shape, grid[len(grid) // 2], seed, study.tokens)


def pace(runner: Runner, job: tuple[list[Trial], int]) -> Pace:
    """The pace of one of some trials, of so many rates, as they will be run; as a job."""
    trials, n_rates = job
    group = groups(trials, n_rates, runner)[0]
    return runner.pace_group(group) if isinstance(runner, GroupRunner) else runner.pace(group[0])


def _paces(study: Study, runner: Runner, engine: str, workers: int) -> dict[str, Pace]:
    """Every shape timed where it will run, with as many beside it."""
    n = study.rates.n
    seeds = _shares(study, study.seeds)[0][1]
    jobs = [([_first(study, shape, seed) for seed in range(seeds) for _ in range(n)], n)
            for shape in study.shapes]  # fmt: skip
    found = executor.run(pace, jobs, shared=runner, engine=engine, workers=workers, ahead=1)
    return dict(zip((s.name for s in study.shapes), found, strict=True))


def _run(
    study: Study, runner: Runner, planned: Plan, data: Mapping[str, Data], folder: Path,
    engine: str, workers: int, begun: float, slack: float, say: Say, progress: Progress | None,
) -> dict[str, Swept]:  # fmt: skip
    """Every shape of the plan, the longest first, or those before one that is too slow."""
    until = None if planned.budget_s is None else begun + OVER * planned.budget_s
    jobs = [ShapeJob(s, data[s.name], planned.tokens, n, str(folder), until,
                     planned.paces[s.name], slack, first)
            for s in study.shapes if s.name in planned.shapes
            for first, n in _shares(study, planned.seeds)]  # fmt: skip
    jobs.sort(key=lambda j: -cost(study, j.shape, planned.paces[j.shape.name], j.tokens, j.seeds,
                                  extended=False))  # fmt: skip
    results = executor.run(run_shape, jobs, shared=(study, runner), engine=engine,
                           workers=workers, ahead=1, lost=_lost)  # fmt: skip
    found: dict[str, Swept] = {}
    with _watched(folder, planned.runs * study.rates.n, progress):
        for swept in results:
            before = found.get(swept.shape)
            found[swept.shape] = swept if before is None else before.joined(swept)
            for record in swept.records:  # those of another machine are not in the folder yet
                if store.kept(folder, record.key) is None:
                    store.keep(folder, record)
            if swept.slow is not None:
                break
            if swept.lost:
                say(f"{swept.shape}: every worker that ran it died")
    return found


def _lost(job: ShapeJob) -> Swept:
    return Swept(job.shape.name, (), (), lost=True)


@contextmanager
def _watched(folder: Path, planned: int, progress: Progress | None) -> Iterator[None]:
    """Count the runs that are done while they come."""
    if progress is None:
        yield
        return
    over = threading.Event()

    def watch() -> None:
        while not over.wait(POLL_S):
            progress(store.count(folder), planned)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _judged(
    study: Study, planned: Plan, data: dict[str, Data], swept: Mapping[str, Swept], folder: Path,
    seconds: float,
) -> Answer:  # fmt: skip
    found_by_arm = (arms_of(study, swept[name], data[name]) for name in planned.shapes)
    arms = unsolved(study, [one for of_shape in found_by_arm for one in of_shape])
    found = verdicts(study, arms)
    clear = sum(v.kind != "unresolved" for v in found)
    records = tuple(r for s in swept.values() for r in s.records)
    result = Answer(
        study, planned, data, tuple(arms), tuple(found), headline(study, arms, found),
        resolvable(study, arms, clear), spread(study, arms), seconds,
        f"{platform.system()} {platform.machine()}, Python {platform.python_version()}", records,
    )  # fmt: skip
    store.write_table(folder, records)
    store.write(folder / store.RESULT, result_json(result))
    return result


def _flops_a_token(trial: Trial) -> float:
    return float(flops(trial.spec, 1, trial.context).train) / trial.context


def _flops_off(study: Study, planned: Plan) -> dict[str, dict[str, float]]:
    """How far runs of shapes with tokens of their own are from equal FLOPs, after whole steps."""
    if all(s.share == 1 for s in study.shapes):
        return {}
    trials = {s.name: study.trial(s, 0.0, 0, planned.tokens) for s in study.shapes}
    own = {n: _flops_a_token(t) * t.steps * t.batch * t.context for n, t in trials.items()}
    first = own[study.shapes[0].name]
    return {n: {"flops of a run": round(total / first - 1, 4)} for n, total in own.items()}


def result_json(found: Answer) -> dict[str, Any]:
    """An answer for programs, and for the report: everything but the specs of every run.

    Runs are in the table ``runs.jsonl`` beside it.
    """
    by_name = {s.name: s for s in found.study.shapes}
    flops_off = _flops_off(found.study, found.plan)
    shapes = []
    for one in found.arms:
        shape = by_name.get(one.shape, found.study.shapes[0])  # an arm of a trained model
        p = parameters(shape.spec)
        trial = found.study.trial(shape, 0.0, 0, found.plan.tokens)
        shapes.append({
            **msgspec.to_builtins(one), "param": shape.param,
            "matched": {**shape.matched, **flops_off.get(shape.name, {})},
            "params": {"total": int(p.total), "body": int(p.body)},
            "n_layer": int(shape.spec.n_layer), "d_model": int(shape.spec.d_model),
            "train_flops_per_token": _flops_a_token(trial),
            "tokens": trial.steps * trial.batch * trial.context,
            "seconds": sum(r.outcome.seconds for r in found.records if r.shape == shape.name),
        })  # fmt: skip
    study = {f: getattr(found.study, f) for f in found.study.__struct_fields__ if f != "shapes"}
    return {
        "schema": 1, "study": msgspec.to_builtins(study) | {"hash": found.study.hash},
        "plan": msgspec.to_builtins(found.plan), "data": msgspec.to_builtins(found.data),
        "headline": found.headline, "shapes": shapes,
        "verdicts": msgspec.to_builtins(found.verdicts), "resolvable": found.resolvable,
        "spread": found.spread, "seconds": found.seconds, "machine": found.machine,
    }  # fmt: skip
