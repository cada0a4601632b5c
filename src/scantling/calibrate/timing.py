"""How a case is timed on a machine that others use too."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from scantling.calibrate.cases import Case
from scantling.errors import FieldError

Run = Callable[[], object]
Build = Callable[[Case], Run]
Progress = Callable[[int, int, str], None]
"""Called with rounds done, rounds in all, and what is being measured."""

VISIT_S = 3e-3
"""A visit repeats a short case until it has run so long: a clock tick and a first call with cold
caches no longer show."""
FEWEST = 2
"""Rounds that are made whatever the time."""


class Sample(Struct, frozen=True, kw_only=True):
    """One case as it was measured.

    Args:
        case: What.
        seconds: The fastest visit, per call.
        spread: Median visit over fastest, less one: what else the machine was doing.
    """

    case: Case
    seconds: float
    spread: float


class Clock(Struct, frozen=True):
    """A clock, and what to wait for before it is read."""

    now: Callable[[], float]
    settle: Callable[[], object]
    name: str
    queued: bool = False
    """Whether calls return before their work is done."""


def clock(device: str, threads: int) -> Clock:
    """The clock that other programs disturb least.

    On a CPU with one thread it is the time that thread has run, so that what others run on the
    same cores only shows through caches; with several it must be the time on the wall, as threads
    that wait for each other run as well. On an accelerator the queue is emptied first.

    Example:
        >>> clock("cpu", 1).name, clock("cpu", 2).name
        ('thread', 'wall')
    """
    if device != "cpu":
        import torch

        return Clock(time.perf_counter, torch.cuda.synchronize, "wall", queued=True)
    if threads == 1:
        return Clock(time.thread_time, _nothing, "thread")
    return Clock(time.perf_counter, _nothing, "wall")


def _nothing() -> None:
    """A CPU has done its work when the call returns."""


def measure(
    cases: Sequence[Case], build: Build, by: Clock, *, rounds: int, seconds: float,
    progress: Progress,
) -> list[Sample]:  # fmt: skip
    """Time every case in every round, in another order each round.

    What disturbs the machine for a second then hits different cases in different rounds, and the
    fastest visit of a case is free of it.

    Args:
        cases: What.
        build: Makes the call of a case; its inputs stay in memory from then on.
        by: The clock.
        rounds: At most.
        seconds: No round begins after so long, once two are done.
        progress: Told after each case.
    """
    draw = random.Random(1)  # noqa: S311 - an order, no secret
    runs = ready(cases, build)
    visits: dict[Case, list[float]] = {case: [] for case in runs}
    begun = time.monotonic()
    order = list(runs)
    for at in range(rounds):
        if at >= FEWEST and time.monotonic() - begun > seconds * at / (at + 1):
            break
        draw.shuffle(order)
        for i, case in enumerate(order):
            visits[case].append(visit(runs[case], by))
            progress(at * len(order) + i + 1, rounds * len(order), case.kind)
    return [
        Sample(case=case, seconds=min(found), spread=statistics.median(found) / min(found) - 1)
        for case, found in visits.items()
    ]


def ready(cases: Sequence[Case], build: Build) -> dict[Case, Run]:
    """The calls of cases, each made once; what does not fit in memory is left out.

    Raises:
        FieldError: If none fits.
    """
    found: dict[Case, Run] = {}
    for case in cases:
        try:
            run = build(case)
            run()
        except (MemoryError, RuntimeError) as error:  # torch's own is a RuntimeError
            if isinstance(error, RuntimeError) and "memory" not in str(error):
                raise
            continue
        found[case] = run
    if cases and not found:
        raise FieldError("calibrate", None, "finds no memory for a single case")
    return found


def visit(run: Run, by: Clock) -> float:
    """Seconds of one call, over as many as fill a visit.

    Example:
        >>> calls = []
        >>> ticks = iter([0.0, 0.001, 0.002, 0.004])
        >>> round(visit(lambda: calls.append(1), Clock(lambda: next(ticks), list, "test")), 6)
        0.001333
    """
    by.settle()
    start = by.now()
    n, spent = 0, 0.0
    burst = 1
    while spent < VISIT_S:
        for _ in range(burst):
            run()
        by.settle()
        n += burst
        spent = by.now() - start
        # An accelerator's queue is emptied once a burst, so that launches overlap as they do in
        # a real pass.
        burst = min(n, 1000) if by.queued else 1
    return spent / n
