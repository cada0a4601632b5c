"""What a study will take, and what it gives up to fit a budget: tokens, then shapes."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from scantling.costs.fit import largest
from scantling.errors import FieldError
from scantling.lab.study.design import Shape, Study
from scantling.lab.study.trial import Pace
from scantling.units import count_text, seconds_text

RESERVE = 0.75
"""Share of a budget that is planned: a machine with other programs on it slows down."""


class Plan(Struct, frozen=True):
    """How a study is run."""

    tokens: int
    seeds: int
    shapes: tuple[str, ...]
    workers: int
    paces: dict[str, Pace]
    expected_s: float
    """Where no grid of rates grows."""
    most_s: float
    """Where every grid grows as often as it may."""
    budget_s: float | None = None
    shrunk: tuple[str, ...] = ()
    """What was given up, in sentences."""

    @property
    def runs(self) -> int:
        """Shapes times seeds; each at every rate."""
        return len(self.shapes) * self.seeds

    def lines(self, study: Study) -> list[str]:
        """The plan in sentences."""
        n, extend = study.rates.n, study.rates.extend
        grown = f", up to {n + extend} where the best lies at the edge" if extend else ""
        workers = f"{self.workers} {'worker' if self.workers == 1 else 'workers'}"
        rates = "one rate" if n == 1 else f"{n} rates"
        first = (
            f"{len(self.shapes)} shapes × {rates}{grown} × {self.seeds} seeds, "
            f"{count_text(self.tokens)} tokens a run, {workers}: about "
            f"{minutes(self.expected_s)}, at most {minutes(self.most_s)}"
        )
        fit = f"to fit {minutes(self.budget_s or 0)}"
        return [first, *(f"{fit}: {text}" for text in self.shrunk)]


def minutes(seconds: float) -> str:
    """Seconds for people.

    Example:
        >>> minutes(200), minutes(4)
        ('3.3 min', '4 s')
    """
    return seconds_text(seconds) if seconds < 60 else f"{seconds / 60:.1f} min"


def cost(
    study: Study, shape: Shape, pace: Pace, tokens: int, seeds: int, *, extended: bool
) -> float:
    """Seconds of one shape: its runs at every rate and seed, one after another."""
    rates = study.rates.n + (study.rates.extend if extended else 0)
    return pace.once_s + rates * seeds * pace.seconds(study.trial(shape, 0.0, 0, tokens).steps)


def makespan(seconds: list[float], workers: int) -> float:
    """The end of jobs that are handed out longest first.

    Example:
        >>> makespan([3.0, 3.0, 2.0, 2.0, 2.0], 2)
        7.0
    """
    busy = [0.0] * workers
    for job in sorted(seconds, reverse=True):
        busy[busy.index(min(busy))] += job
    return max(busy)


def plan(
    study: Study, paces: Mapping[str, Pace], workers: int, budget_s: float | None = None,
    *, smallest: bool = False,
) -> Plan:  # fmt: skip
    """A study that fits a budget: fewer tokens first, then fewer shapes, then fewer seeds.

    Seeds are never fewer than the study needs, three or more, and shapes never fewer than two.
    Half of what grids may grow by is planned for; a grid that would grow when the time is up stays
    as it is.

    Args:
        study: What is asked for.
        paces: Measured, by name of the shape.
        workers: Jobs at once; a job is a shape.
        budget_s: Seconds at most; None takes the study as it is.
        smallest: Whether the smallest study is taken where none fits.

    Raises:
        FieldError: If not even the smallest study fits.
    """
    least = min(study.least_tokens or study.tokens // 4, study.tokens)
    shapes, seeds = list(study.shapes), study.seeds

    def ends(tokens: int, *, extended: bool) -> float:
        return makespan(
            [cost(study, s, paces[s.name], tokens, seeds, extended=extended) for s in shapes],
            workers,
        )

    def likely(tokens: int) -> float:
        return (ends(tokens, extended=False) + ends(tokens, extended=True)) / 2

    def found(tokens: int, told: list[str]) -> Plan:
        return Plan(
            tokens, seeds, tuple(s.name for s in shapes), workers, dict(paces),
            ends(tokens, extended=False), ends(tokens, extended=True), budget_s, tuple(told),
        )  # fmt: skip

    if budget_s is None:
        return found(study.tokens, [])
    room = RESERVE * budget_s
    dropped: list[str] = []
    while likely(least) > room:
        if len(shapes) > 2:
            dropped.insert(0, shapes.pop().name)
        elif seeds > study.least_seeds:
            seeds -= 1
        elif smallest:
            break
        else:
            need = likely(least) / RESERVE
            raise FieldError("budget", minutes(budget_s), "is too short: two shapes at "
                             f"{study.least_seeds} seeds and {count_text(least)} tokens take "
                             f"{minutes(need)}", f"give {minutes(need * 1.05)}")  # fmt: skip
    tokens = study.tokens
    if likely(tokens) > room:
        tokens = max(largest(lambda n: likely(n) <= room, study.tokens), least)
    return found(tokens, _given_up(study, tokens, seeds, dropped))


def _given_up(study: Study, tokens: int, seeds: int, dropped: list[str]) -> list[str]:
    """What a plan is without, in sentences."""
    told = []
    if tokens < study.tokens:
        told.append(f"{count_text(tokens)} tokens a run instead of {count_text(study.tokens)}")
    if dropped:
        told.append(f"without {', '.join(dropped)}")
    if seeds < study.seeds:
        told.append(f"{seeds} seeds instead of {study.seeds}")
    return told
