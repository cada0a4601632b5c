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
from scantling.lab.study.trial import Data, Outcome, Pace, Record, Runner, code_of, key


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


def run_shape(shared: tuple[Study, Runner], job: ShapeJob) -> Swept:
    """Run a shape at every rate and seed that is not done yet.

    Seeds are the outer loop, so that whatever is done when the time is up covers every rate. The
    grid then grows by one rate at the side where the best one lies at its edge.
    """
    study, runner = shared
    rates = study.grid(job.shape, job.tokens)
    done: list[Record] = []
    made: list[Record] = []

    def complete(asked: Sequence[float]) -> bool:
        for seed in range(job.seeds):
            for rate in asked:
                found = _one(study, runner, job, rate, seed, made)
                if found is None or slower(job, made) > job.slack:
                    return False
                done.append(found)
        return True

    if not complete(rates):
        times = slower(job, made)
        return Swept(job.shape.name, tuple(done), tuple(rates), stopped=True,
                     slow=times if times > job.slack else None)  # fmt: skip
    for _ in range(study.rates.extend):
        edge = at_edge(best_rate(done), rates)
        if edge is None:
            break
        step = study.rates.step
        new = float(f"{rates[-1] * step if edge == 'upper' else rates[0] / step:.3g}")
        if not complete([new]):
            done = [r for r in done if r.trial.rate != new]
            break
        rates = sorted([*rates, new])
    return Swept(job.shape.name, tuple(done), tuple(rates))


def slower(job: ShapeJob, new: Sequence[Record]) -> float:
    """How many times longer than planned new runs of a job took."""
    if job.pace is None or not new:
        return 1.0
    planned = job.pace.once_s + sum(job.pace.seconds(r.trial.steps) for r in new)
    return sum(r.outcome.seconds for r in new) / planned


def _one(
    study: Study, runner: Runner, job: ShapeJob, rate: float, seed: int, new: list[Record]
) -> Record | None:  # fmt: skip
    """The run of a rate and seed: kept, or run now; None where the time is up."""
    trial = replace(study.trial(job.shape, rate, seed, job.tokens), data_hash=job.data.hash)
    name = key(trial, job.data, runner.name)
    folder = Path(job.folder)
    old = store.kept(folder, name)
    if old is not None:
        return old
    if job.until is not None and time.time() > job.until:
        return None
    outcome = runner.run(trial)
    found = Record(name, job.shape.name, trial, outcome, code_of(trial))
    if folder.is_dir():  # on another machine the caller keeps it
        store.keep(folder, found)
    new.append(found)
    return found


def best_rate(records: Iterable[Record]) -> float:
    """The rate with the lowest mean loss over seeds, on the slice that choices are made on.

    A rate at which a seed failed is never the best, unless all rates have one that failed.
    """
    by_rate: dict[float, list[float]] = {}
    for r in records:
        by_rate.setdefault(r.trial.rate, []).append(chosen_on(r.outcome))
    means = {rate: mean(values) for rate, values in by_rate.items()}
    return min(sorted(means), key=means.__getitem__)


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
