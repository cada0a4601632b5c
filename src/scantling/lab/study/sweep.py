"""One job of a study: a shape at every rate and seed, its grid grown until the best is interior."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from scantling.lab.stats import mean
from scantling.lab.study import store
from scantling.lab.study.design import Shape, Study
from scantling.lab.study.trial import (
    Data,
    GroupRunner,
    Outcome,
    Pace,
    Record,
    Runner,
    Trial,
    code_of,
    key,
)

TOGETHER = 12
"""Runs of a group at most: more are hardly faster together, and more are lost where it ends."""


class ShapeJob(Struct, frozen=True):
    """All runs of one shape."""

    shape: Shape
    data: Data
    tokens: int
    seeds: int
    folder: str
    until: float | None = None
    """Seconds since the epoch after which no run is begun."""
    pace: Pace | None = None
    slack: float = math.inf
    """Times longer than its pace that runs may take, before the study must be planned anew."""
    first: int = 0
    """The number of the first seed."""


class Swept(Struct, frozen=True):
    """What a job came to."""

    shape: str
    records: tuple[Record, ...]
    rates: tuple[float, ...]
    """From low to high, with those that the grid grew by."""
    stopped: bool = False
    """Whether the time was up before all runs were done."""
    slow: float | None = None
    """How many times longer than planned its runs took, where that ends the job."""
    lost: bool = False
    """Whether every worker that ran it died."""

    def joined(self, other: Swept) -> Swept:
        """Two jobs of one shape, each with its own seeds, as one."""
        slow = max((s for s in (self.slow, other.slow) if s is not None), default=None)
        return Swept(self.shape, self.records + other.records, self.rates,
                     self.stopped or other.stopped, slow, self.lost or other.lost)  # fmt: skip


def run_shape(shared: tuple[Study, Runner], job: ShapeJob) -> Swept:
    """Run a shape at every rate and seed that is not done yet.

    Seeds are the outer loop, so that whatever is done when the time is up covers every rate. The
    grid then grows by one rate at the side where the best one lies at its edge.
    """
    study, runner = shared
    rates = study.grid(job.shape, job.tokens)
    one = _Sweep(study, runner, job)
    done = one.complete(rates)
    if done is None:
        return Swept(job.shape.name, tuple(one.done), tuple(rates), stopped=True, slow=one.slow)
    one.grown = True
    for _ in range(study.rates.extend):
        best = best_rate(done)
        edge = at_edge(best, rates)
        if edge is None or all_solve(study, [r for r in done if r.trial.rate == best]):
            break
        step = study.rates.step
        new = float(f"{rates[-1] * step if edge == 'upper' else rates[0] / step:.3g}")
        more = one.complete([new])
        if more is None:
            break
        done, rates = [*done, *more], sorted([*rates, new])
    return Swept(job.shape.name, tuple(done), tuple(rates))


def trials(study: Study, job: ShapeJob, rates: Sequence[float]) -> list[Trial]:
    """The runs of a job at some rates, on the data that it must have; seeds in the outer loop."""
    return [
        replace(study.trial(job.shape, rate, seed, job.tokens), data_hash=job.data.hash)
        for seed in range(job.first, job.first + job.seeds) for rate in rates
    ]  # fmt: skip


class _Sweep:
    """The runs of a job, and how long they took."""

    def __init__(self, study: Study, runner: Runner, job: ShapeJob) -> None:
        self.study, self.runner, self.job, self.folder = study, runner, job, Path(job.folder)
        self.done: list[Record] = []
        self.made: list[Record] = []
        """Those that were not kept."""
        self.slow: float | None = None
        self.grown = False
        """Whether all rates that were asked for are done: what is left may be left.

        Without them there is no answer, so that they are begun even where they seem to take too
        long: a machine that was slow may not stay so, and what a group came to is kept.
        """

    def complete(self, rates: Sequence[float]) -> list[Record] | None:
        """The records of all seeds at some rates; None where the time is up, or it is too slow."""
        found: list[Record] = []
        for group in groups(trials(self.study, self.job, rates), len(rates), self.runner):
            records = self._group(group)
            if records is None or self._too_slow():
                return None
            self.done += records
            found += records
        return found

    def _group(self, trials: Sequence[Trial]) -> list[Record] | None:
        """The records of trials that are run together; None where the time is up."""
        job = self.job
        names = [key(trial, job.data, self.runner.name) for trial in trials]
        kept = [store.kept(self.folder, name) for name in names]
        if all(kept):
            return [record for record in kept if record is not None]
        ahead_s = self._ahead_s(len(trials)) if self.grown else 0.0
        if job.until is not None and time.time() > job.until - ahead_s:
            return None
        here = self.folder.is_dir()  # on another machine the caller keeps them
        state = store.state(self.folder, names) if here and len(trials) > 1 else None
        outcomes = self._outcomes(trials, state)
        if outcomes is None:
            return None
        found = []
        for trial, name, old, outcome in zip(trials, names, kept, outcomes, strict=True):
            new = Record(name, job.shape.name, trial, outcome, code_of(trial))
            if old is None:
                self.made.append(new)
                if here:
                    store.keep(self.folder, new)
            found.append(old or new)
        if state is not None:
            store.forget(state)
        return found

    def _outcomes(self, trials: Sequence[Trial], state: Path | None) -> list[Outcome] | None:
        if len(trials) == 1:
            return [self.runner.run(trials[0])]
        assert isinstance(self.runner, GroupRunner), "else there are no groups"
        job, n = self.job, len(trials)

        def stop(share: float, seconds: float) -> bool:
            """Whether a group is to end early, as lone runs would not be begun."""
            if share * n >= 1 and job.pace is not None:
                run_s = job.pace.start_s + share * trials[0].steps * job.pace.step_s
                self._too_slow(seconds, n * run_s)
            return self.slow is not None or (
                job.until is not None and time.time() > job.until + self._ahead_s(2)
            )

        found = self.runner.run_group(trials, state, stop)
        if found is None and self.slow is not None and state is not None:
            store.forget(state)  # what is planned anew is shorter
        return found

    def _ahead_s(self, n: int) -> float:
        """Seconds that a group takes beyond those of one run."""
        job = self.job
        steps = self.study.trial(job.shape, 0.0, 0, job.tokens).steps
        return 0.0 if job.pace is None else (n - 1) * job.pace.seconds(steps)

    def _too_slow(self, seconds: float = 0.0, planned: float = 0.0) -> bool:
        """Whether runs, and a part of some, took so much longer than planned that it must end."""
        times = slower(self.job, self.made, seconds, planned)
        if times > self.job.slack:
            self.slow = times
        return self.slow is not None


def groups(trials: Sequence[Trial], n_rates: int, runner: Runner) -> list[list[Trial]]:
    """Trials of one shape in groups of whole seeds, where its runner is faster so; else each alone.

    Args:
        trials: Seeds in the outer loop, rates in the inner.
        n_rates: How many rates a seed has.
        runner: How a run is made.
    """
    alone = [[trial] for trial in trials]
    if not isinstance(runner, GroupRunner):
        return alone
    n = n_rates * max(TOGETHER // n_rates, 1)
    cut = [list(trials[i : i + n]) for i in range(0, len(trials), n)]
    return cut if runner.at_once(trials[0], len(cut[0])) else alone


def slower(
    job: ShapeJob, new: Sequence[Record], seconds: float = 0.0, planned: float = 0.0
) -> float:
    """How many times longer than planned new runs of a job took.

    Args:
        job: With its pace.
        new: Runs.
        seconds: That a part of a group took, too.
        planned: For that part.
    """
    if job.pace is None or not (new or seconds):
        return 1.0
    planned += job.pace.once_s + sum(job.pace.seconds(r.trial.steps) for r in new)
    return (seconds + sum(r.outcome.seconds for r in new)) / planned


def best_rate(records: Iterable[Record]) -> float:
    """The rate with the lowest mean loss over seeds, on the slice that choices are made on.

    A rate at which a seed failed is never the best, unless all rates have one that failed.
    """
    by_rate: dict[float, list[float]] = {}
    for r in records:
        by_rate.setdefault(r.trial.rate, []).append(chosen_on(r.outcome))
    means = {rate: mean(values) for rate, values in by_rate.items()}
    return min(sorted(means), key=means.__getitem__)


def all_solve(study: Study, at_best: Iterable[Record]) -> bool:
    """Whether every seed solves the task at its best rate: no other rate can do better."""
    least = study.measure.solved
    return least is not None and all(
        not r.outcome.failed and r.outcome.measures[study.measure.name] >= least for r in at_best
    )


def chosen_on(outcome: Outcome) -> float:
    """The loss that a rate is chosen on; infinite where the run failed."""
    return math.inf if outcome.failed else outcome.measures["choose"]


def at_edge(best: float, rates: Sequence[float]) -> str | None:
    """Which edge of its grid a rate lies at.

    Example:
        >>> at_edge(0.1, [0.1, 0.2, 0.3]), at_edge(0.2, [0.1, 0.2, 0.3])
        ('lower', None)
    """
    if best == rates[0]:
        return "lower"
    return "upper" if best == rates[-1] else None
