"""What a study will take, and what it gives up to fit a budget: tokens, then shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from scantling.costs.fit import largest
from scantling.errors import FieldError
from scantling.lab.study.design import Shape, Study
from scantling.lab.study.trial import Pace
from scantling.units import count_text, seconds_text

RESERVE = 0.75
"""Share of a budget that is planned: a machine with other programs on it slows down."""


class ShortBudgetError(FieldError):
    """Not even the smallest study fits.

    Args:
        budget_s: What was given.
        need_s: What would be enough, at the pace that was measured.
        what: The smallest study.
    """

    def __init__(self, budget_s: float, need_s: float, what: str) -> None:
        self.need_s = 1.05 * need_s
        super().__init__("budget", minutes(budget_s), f"is too short: {what} take "
                         f"{minutes(need_s)}", f"give {minutes(self.need_s)}")  # fmt: skip


Trained = Callable[[int], bool]
"""Whether all models of runs of so many tokens are known, of a study that only looks at them."""


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
    known: bool = False
    """Whether the models are trained already, and are only looked at."""

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
        what = f"{len(self.shapes)} shapes × {rates}{grown}"
        if study.probed is not None:
            known = "known models" if self.known else "one model"
            what = f"{known} looked at in {len(study.probed.arms)} ways"
        first = (
            f"{what} × {self.seeds} seeds, "
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
    study: Study, shape: Shape, pace: Pace, tokens: int, seeds: int, *, extended: bool,
    done: int = 0,
) -> float:  # fmt: skip
    """Seconds of one shape: its runs at every rate and seed, one after another."""
    rates = study.rates.n + (study.rates.extend if extended else 0)
    runs = max(rates * seeds - done, 0)
    return pace.once_s + runs * pace.seconds(study.trial(shape, 0.0, 0, tokens).steps)


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
    *, spent_s: float = 0.0, smallest: bool = False, done: Mapping[str, int] | None = None,
    trained: Trained = lambda _: False,
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
        spent_s: Of the budget, on timing.
        smallest: Whether the smallest study is taken where none fits.
        done: Runs of each shape that need not be made again, at the number of tokens the study
            has.
        trained: Whether models are known, where a study only looks at trained models; it trains
            at the tokens that are asked for or a half, a quarter, … of them, so that several such
            studies can share their models.

    Raises:
        ShortBudgetError: If not even the smallest study fits.
    """
    if study.probed is not None:
        return _plan_probed(study, paces, workers, budget_s, trained, spent_s=spent_s,
                            smallest=smallest, done=done or {})  # fmt: skip
    least = min(study.least_tokens or study.tokens // 4, study.tokens)
    shapes, seeds = list(study.shapes), study.seeds

    def ends(tokens: int, *, extended: bool) -> float:
        return makespan(
            [cost(study, s, paces[s.name], tokens, seeds, extended=extended,
                  done=(done or {}).get(s.name, 0)) for s in shapes],
            workers,
        )  # fmt: skip

    def likely(tokens: int) -> float:
        return (ends(tokens, extended=False) + ends(tokens, extended=True)) / 2

    def found(tokens: int, told: tuple[str, ...] = ()) -> Plan:
        return Plan(
            tokens, seeds, tuple(s.name for s in shapes), workers, dict(paces),
            ends(tokens, extended=False), ends(tokens, extended=True), budget_s, told,
        )  # fmt: skip

    if budget_s is None:
        return found(study.tokens)
    room = RESERVE * budget_s - spent_s
    dropped: list[str] = []
    while likely(least) > room:
        if len(shapes) > 2:
            dropped.insert(0, shapes.pop().name)
        elif seeds > study.least_seeds:
            seeds -= 1
        elif smallest:
            break
        else:
            need = (likely(least) + spent_s) / RESERVE
            raise ShortBudgetError(budget_s, need, f"two shapes at {study.least_seeds} seeds and "
                                   f"{count_text(least)} tokens")  # fmt: skip
    tokens = study.tokens
    if likely(tokens) > room:
        tokens = max(largest(lambda n: likely(n) <= room, study.tokens), least)
    return found(tokens, _given_up(study, tokens, seeds, dropped))


def replan(
    study: Study, old: Plan, slow: float, left_s: float, done: Mapping[str, int],
    trained: Trained = lambda _: False,
) -> Plan:  # fmt: skip
    """A plan for the time that is left at the pace that was seen.

    Either every run is made anew with fewer tokens, or the shapes that are nearest to done go on
    with the tokens they have, whose runs count. What fits goes first, then more shapes, then the
    runs that count; where neither fits, what is done goes on until the time is up.

    Args:
        study: As it was asked for.
        old: The plan that takes too long.
        slow: How many times longer its runs take.
        left_s: Seconds that are left.
        done: Runs of the plan that are kept, by shape.
        trained: As of ``plan``.
    """
    left_s = max(left_s, 1e-3)
    paces = {
        name: Pace(slow * p.start_s, slow * p.step_s, slow * p.judge_s, 0.0)
        for name, p in old.paces.items()
    }
    near = sorted((s for s in study.shapes if s.name in old.shapes), key=lambda s: -done[s.name])
    on = replace(study, shapes=tuple(near), tokens=old.tokens, least_tokens=old.tokens,
                 seeds=old.seeds)  # fmt: skip
    plans = [
        plan(on, paces, old.workers, left_s, smallest=True, done=done, trained=trained),
        plan(study, paces, old.workers, left_s, smallest=True, trained=trained),
    ]
    best = max(plans, key=lambda p: (p.expected_s <= left_s, len(p.shapes)))
    names = tuple(s.name for s in study.shapes if s.name in best.shapes)
    dropped = [s.name for s in study.shapes if s.name not in names]
    return replace(best, shapes=names, budget_s=old.budget_s,
                   shrunk=_given_up(study, best.tokens, best.seeds, dropped))  # fmt: skip


def _plan_probed(
    study: Study, paces: Mapping[str, Pace], workers: int, budget_s: float | None,
    trained: Trained, *, spent_s: float, smallest: bool, done: Mapping[str, int],
) -> Plan:  # fmt: skip
    """The most tokens that fit, of those asked for and their halves; a job is a seed."""
    (shape,) = study.shapes
    pace, made = paces[shape.name], done.get(shape.name, 0)
    least = min(study.least_tokens or study.tokens // 4, study.tokens)
    tokens, seeds = study.tokens, study.seeds

    def ends() -> float:
        each = pace.once_s + pace.judge_s
        if not trained(tokens):
            each = cost(study, shape, pace, tokens, 1, extended=False)
        return makespan([each] * (seeds - made), workers)

    while budget_s is not None and ends() > RESERVE * budget_s - spent_s:
        if tokens // 2 >= least:
            tokens //= 2
        elif seeds > study.least_seeds:
            seeds -= 1
        elif smallest:
            break
        else:
            need = (ends() + spent_s) / RESERVE
            raise ShortBudgetError(budget_s, need, f"{seeds} models of {count_text(tokens)} tokens")
    return Plan(tokens, seeds, (shape.name,), workers, {shape.name: pace}, ends(), ends(),
                budget_s, _given_up(study, tokens, seeds, []), trained(tokens))  # fmt: skip


def _given_up(study: Study, tokens: int, seeds: int, dropped: Sequence[str]) -> tuple[str, ...]:
    """What a plan is without, in sentences."""
    told = []
    if tokens < study.tokens:
        told.append(f"{count_text(tokens)} tokens a run instead of {count_text(study.tokens)}")
    if dropped:
        told.append(f"without {', '.join(dropped)}")
    if seeds < study.seeds:
        told.append(f"{seeds} seeds instead of {study.seeds}")
    return tuple(told)
