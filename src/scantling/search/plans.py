"""The search of ``plan``: every split, its memory, its time, and the ones worth having."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from scantling.costs.estimate import Estimate
from scantling.costs.memory import TrainingMemory, stage_peaks, training_memory
from scantling.costs.money import Bill, bill
from scantling.costs.parallel import problems
from scantling.costs.train import Step, assemble, terms, training_step
from scantling.errors import FieldError
from scantling.search.plan_bounds import Bounds
from scantling.search.plan_question import Phase, Question, question
from scantling.search.plan_space import (
    Rejected,
    Split,
    Tally,
    plan_of,
    problem,
    recomputes,
    splits,
    zeros,
)
from scantling.spec.plan import Plan

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Verdict = Literal["fits", "fits only if", "does not fit"]
Progress = Callable[[int, int], None]
ALTERNATIVES = 12
"""Other splits that are kept beside the choice."""
SLOWEST = 1.3
"""A plan that takes longer than so many times the fastest is no answer, however little it holds."""


class Trial(Struct, frozen=True):
    """One plan with what it holds and how long it takes."""

    plan: Plan
    memory: TrainingMemory
    step: Step

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return float(self.step.step.value_s)

    @property
    def bytes(self) -> float:
        """Bytes of the most loaded rank, at the upper end of the interval."""
        return float(self.memory.needed_high)


class Counts(Struct, frozen=True, kw_only=True):
    """How the plans of a search fared; the parts sum to ``considered``."""

    considered: int
    invalid: int
    too_large: int
    """Their memory is above the chip's for certain, or they hold more than one that is."""
    slower: int
    """Left out: one that fits is faster than they can be and holds no more, or is much faster."""
    timed: int


class Plans(Struct, frozen=True, kw_only=True):
    """The answer of ``plan``.

    Args:
        question: What was asked.
        choice: The fastest plan that fits; where none does for certain, the fastest that may; None
            where none can.
        front: Plans that no other beats in time and memory, the fastest first.
        alternatives: The fastest plan of every other split, the fastest first.
        closest: The plan that holds least, where none fits.
        rejected: Why plans are invalid.
        counts: How many.
        seconds: How long the search took.
        bill: What the run takes, all phases together.
        phases: What each phase takes, with its own plan.
    """

    question: Question
    choice: Trial | None
    front: tuple[Trial, ...]
    alternatives: tuple[Trial, ...]
    closest: tuple[Plan, TrainingMemory] | None
    rejected: tuple[Rejected, ...]
    counts: Counts
    seconds: float
    bill: Bill | None
    phases: tuple[Plans, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Whether it fits; only the upper end of the memory's interval can say yes."""
        worst = [p.verdict for p in self.phases]
        if self.choice is None or "does not fit" in worst:
            return "does not fit"
        if "fits only if" in worst:
            return "fits only if"
        return verdict(self.choice.memory, self.question)

    @property
    def fits(self) -> bool:
        """Whether a plan fits for certain."""
        return self.verdict == "fits"


def verdict(memory: TrainingMemory, q: Question) -> Verdict:
    """Whether a rank's memory fits the chip: yes at the upper end, no at the lower."""
    usable = q.chip.usable_bytes
    if float(memory.needed_high) <= usable:
        return "fits"
    return "fits only if" if float(memory.needed_low) <= usable else "does not fit"


def plan(model: Any, *, progress: Progress | None = None, **given: Any) -> Plans:
    """Plan the training of a model: how to split it, what it holds, how long it takes.

    Args:
        model: A catalogue name, a path, a parsed config or a spec.
        progress: Called with the plans done and in all, now and then.
        **given: As in ``search.plan_question.question``: gpu, gpus, tokens, context, batch, tp, …

    Raises:
        ScantlingError: If the question breaks a rule.

    Example:
        >>> found = plan("llama-3.1-8b", gpu="h100-sxm", gpus=8, tokens="1B", batch=64, tp=1, pp=1)
        >>> found.fits, found.choice.plan.n_gpu
        (True, 8)
    """
    return answer(question(model, **given), progress)


def answer(
    q: Question, progress: Progress | None = None, *, alone: bool = False, like: Plan | None = None
) -> Plans:
    """The plans of a question; with several phases each has its own, and the bill is of all.

    Args:
        q: The question.
        progress: As in ``plan``.
        alone: Only the choice is wanted: the same one, several times sooner, without its front,
            alternatives, and what would fit where nothing does.
        like: With ``alone``, a plan that is likely as fast as any: slower ones are not looked at.
    """
    if len(q.phases) == 1:
        return _one_phase(q, progress, alone=alone, like=like)
    each = tuple(_one_phase(q.of_phase(phase), progress, alone=alone) for phase in q.phases)
    bills = [p.bill for p in each]
    whole = None
    if all(b is not None for b in bills):
        total = Estimate(0.0, 0.0, 0.0)
        for b in bills:
            assert b is not None
            t = b.ideal_s
            total = Estimate(total.value_s + t.value_s, total.low_s + t.low_s,
                             total.high_s + t.high_s)  # fmt: skip
        whole = bill(total, q.cluster.n_gpu, q.chip, q.goodput or 1.0, q.price)
    first = each[0]
    return Plans(
        question=q, choice=first.choice, front=first.front, alternatives=first.alternatives,
        closest=first.closest, rejected=first.rejected, counts=first.counts,
        seconds=sum(p.seconds for p in each), bill=whole, phases=each,
    )  # fmt: skip


def run_bill(q: Question, trial: Trial, phase: Phase) -> Bill:
    """What a phase takes with a plan: its tokens at the plan's rate, and one step at least."""
    n_steps = max(1.0, phase.tokens / trial.step.tokens)
    return bill(trial.step.step.times(n_steps), q.cluster.n_gpu, q.chip, q.goodput or 1.0, q.price)


def _one_phase(
    q: Question, progress: Progress | None, *, alone: bool, like: Plan | None = None
) -> Plans:
    began = time.perf_counter()
    tally, held = Tally(), Held(q, alone=alone)
    if alone and like is not None:
        held.reckon(like)
    found = groups(q, tally, progress)
    if tally.considered == 0:
        raise FieldError("plan", None, "leaves nothing to search", "fix fewer axes")
    search(q, found, held, progress)
    certain = [t for t in held.trials if verdict(t.memory, q) == "fits"]
    pool = certain or held.trials
    choice = min(pool, key=_order, default=None)
    counts = Counts(
        considered=tally.considered, invalid=tally.invalid, too_large=held.too_large,
        slower=held.slower, timed=len(held.trials),
    )  # fmt: skip
    assert counts.considered == sum(
        (counts.invalid, counts.too_large, counts.slower, counts.timed)
    ), counts  # fmt: skip
    return Plans(
        question=q, choice=choice, front=front(pool), alternatives=_alternatives(pool, choice),
        closest=least_memory(q, found) if choice is None and not alone else None,
        rejected=tally.rejected(), counts=counts,
        seconds=time.perf_counter() - began,
        bill=None if choice is None else run_bill(q, choice, q.phases[0]),
    )  # fmt: skip


class Group(Struct, frozen=True):
    """Plans that differ in micro-batch and recompute alone."""

    split: Split
    zero: int
    batches: tuple[int, ...]


class Held:
    """What a search has found so far, and which plans it no longer needs to look at."""

    def __init__(self, q: Question, *, alone: bool = False) -> None:
        self.question, self.alone = q, alone
        self.trials: list[Trial] = []
        self.too_large = 0
        self.slower = 0
        self.stairs: list[tuple[float, float]] = []
        """(seconds, bytes) of plans that fit and that none beats in both, the fastest first."""
        self.fastest: dict[tuple[int, int, int, int], float] = {}
        """The fastest plan that fits of every split, seconds."""
        self.enough = float("inf")
        """Seconds from which on a split is no longer among the alternatives."""

    @property
    def slowest(self) -> float:
        """How many times the fastest plan another may take."""
        return 1.0 if self.alone else SLOWEST

    def beaten(self, seconds: float, size: float) -> bool:
        """Whether a plan that fits is at least as fast and holds no more, or much faster."""
        if self.stairs and seconds > self.slowest * self.stairs[0][0]:
            return True
        return any(s <= seconds and b <= size for s, b in self.stairs)

    def over(self, seconds: float) -> bool:
        """Whether no plan that takes so long is wanted, whatever it holds."""
        if not self.stairs:
            return False
        enough = 0.0 if self.alone else self.enough
        return seconds > max(self.slowest * self.stairs[0][0], enough)

    def unwanted(self, of: Split, seconds: float, size: float) -> bool:
        """Whether a plan can neither be on the front nor among the alternatives."""
        if not self.beaten(seconds, size):
            return False
        if self.alone:
            return True
        own = self.fastest.get((of.tp, of.pp, of.cp, of.ep))
        return (own is not None and own <= seconds) or self.enough <= seconds

    def reckon(self, p: Plan) -> None:
        """Reckon with a plan, if it can run and fits: a search finds it, or one no slower."""
        q = self.question
        if any(problems(q.spec, p, q.cluster, q.context)) or p.global_batch != q.batch:
            return
        memory = training_memory(q.spec, p, q.recipe, q.context)
        if verdict(memory, q) == "fits":
            just = 1 + 1e-9  # so that it does not rule itself out
            self.stairs = [(seconds_of(q, p) * just, float(memory.needed_high) * just)]

    def add(self, trial: Trial) -> None:
        """Keep a plan that was timed."""
        self.trials.append(trial)
        if verdict(trial.memory, self.question) != "fits":
            return
        seconds, size = trial.step_s, trial.bytes
        if not any(s <= seconds and b <= size for s, b in self.stairs):
            kept = [(s, b) for s, b in self.stairs if s < seconds or b < size]
            self.stairs = sorted([*kept, (seconds, size)])
        key = degrees(trial.plan)
        self.fastest[key] = min(seconds, self.fastest.get(key, seconds))
        if len(self.fastest) > ALTERNATIVES:
            self.enough = sorted(self.fastest.values())[ALTERNATIVES]


def groups(q: Question, tally: Tally, progress: Progress | None) -> list[Group]:
    """Every valid split with every stage of ZeRO; the others are tallied."""
    found = []
    for n_done, (split, batches) in enumerate(splits(q, tally)):
        if progress is not None and n_done % 64 == 0:
            progress(n_done, 0)
        for zero in zeros(q, split.dp * split.cp):
            wrong = problem(q, split, zero)
            if wrong is None:
                found.append(Group(split, zero, batches))
            else:
                n = len(batches) * len(recomputes(q))
                tally.reject(*wrong, split.degrees() | {"zero": zero}, n)
    return found


def search(q: Question, found: list[Group], held: Held, progress: Progress | None) -> None:
    """Compute plans in the order of their bounds, and leave out what can no longer matter.

    First the bounds of all plans at once: those whose least memory is above the chip's are out.
    The rest is walked by rising bound of time. A plan is left out where one that fits is faster
    than its bound and holds no more, its own split has a faster one, or enough others do. Once a
    plan is too large, so are those of its group with a larger micro-batch, and where the plan
    computes all again, those that compute less again.
    """
    modes = recomputes(q)
    table = _bounded(q, found, held)
    unfit: dict[tuple[int, int], int] = {}
    n_rows = table.shape[1]
    for n_done, (floor, least, i, mode, k) in enumerate(_columns(table)):
        if progress is not None and n_done % 256 == 0:
            progress(n_done, n_rows)
        if held.over(floor):
            held.slower += n_rows - n_done
            break
        g, mark = found[int(i)], (int(i), int(mode))
        uncertain = held.stairs and least > q.chip.usable_bytes
        if uncertain or k >= unfit.get(mark, len(g.batches)):
            held.too_large += 1
        elif held.unwanted(g.split, floor, least):
            held.slower += 1
        else:
            one = plan_of(q, g.split, g.zero, modes[mark[1]], g.batches[int(k)])
            if not _computed(q, g, one, floor, held):
                first = _first_unfit(q, g, one.recompute, int(k))
                for other in range(len(modes)) if one.recompute == "full" else (mark[1],):
                    known = unfit.get((int(i), other), len(g.batches))
                    unfit[int(i), other] = min(known, first)


def _columns(table: NDArray[np.float64]) -> Iterator[list[float]]:
    """Its columns as numbers, a few thousand at once: most are never asked for."""
    for start in range(0, table.shape[1], 4096):
        yield from table[:, start : start + 4096].T.tolist()


def _bounded(q: Question, found: list[Group], held: Held) -> NDArray[np.float64]:
    """A column a plan, by rising bound of time: seconds, bytes, group, mode, micro-batch."""
    import numpy as np

    bounds, modes = Bounds(q), recomputes(q)
    total, usable = q.batch, q.chip.usable_bytes
    rows: list[NDArray[np.float64]] = [np.zeros((5, 0))]
    for i, g in enumerate(found):
        each = total / g.split.dp
        one = bounds.least_bytes(g.split, g.zero, g.batches[0], each / g.batches[0])
        if min(one.values()) > usable:  # the smallest micro-batch holds least
            held.too_large += len(g.batches) * len(modes)
            continue
        batches = np.array(g.batches, dtype=np.float64)
        counts = each / batches
        least = np.array([*bounds.least_bytes(g.split, g.zero, batches, counts).values()])
        j, k = np.nonzero(least <= usable)
        held.too_large += least.size - len(j)
        floor = np.array([*bounds.least_seconds(g.split, g.zero, batches, counts).values()])
        rows.append(np.array([floor[j, k], bounds.surely(least[j, k]), np.full(len(j), i), j, k]))
    table = np.concatenate(rows, axis=1)
    return table[:, np.lexsort((table[1], table[0]))]


def _computed(q: Question, g: Group, one: Plan, floor: float, held: Held) -> bool:
    """Compute one plan and keep it where it is wanted; whether it may fit.

    The first stage alone, which mostly holds most, tells of most plans that they are not.
    """
    least = max(stage_peaks(q.spec, one, q.recipe, q.context, 0), key=lambda m: m.needed_high)
    if verdict(least, q) == "does not fit":
        held.too_large += 1
        return False
    size = float(least.needed_high)
    if held.unwanted(g.split, floor, size) or held.unwanted(g.split, seconds_of(q, one), size):
        held.slower += 1
        return True
    memory = training_memory(q.spec, one, q.recipe, q.context)
    if verdict(memory, q) == "does not fit":
        held.too_large += 1
        return False
    held.add(Trial(one, memory, training_step(q.spec, one, q.recipe, q.context, q.cluster,
                                              q.convention)))  # fmt: skip
    return True


def seconds_of(q: Question, p: Plan) -> float:
    """The step of one plan: ``costs.train`` without what only a reader needs."""
    made = terms(q.spec, p, q.recipe, q.context, q.cluster)
    return float(assemble(made, p, q.recipe, q.chip.constants.step).step_s)


def _first_unfit(q: Question, g: Group, mode: str, k: int) -> int:
    """The first micro-batch of a group that does not fit, where the k-th does not."""

    def fits(i: int) -> bool:
        one = plan_of(q, g.split, g.zero, mode, g.batches[i])
        memory = training_memory(q.spec, one, q.recipe, q.context)
        return verdict(memory, q) != "does not fit"

    if k == 0 or not fits(0):
        return 0
    low, high = 0, k
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return high


def least_memory(q: Question, found: list[Group]) -> tuple[Plan, TrainingMemory] | None:
    """The plan that holds least: the smallest micro-batch and the most recompute of a group."""
    best: tuple[Plan, TrainingMemory] | None = None
    for g in found:
        one = plan_of(q, g.split, g.zero, recomputes(q)[0], g.batches[0])
        memory = training_memory(q.spec, one, q.recipe, q.context)
        if best is None or float(memory.needed_high) < float(best[1].needed_high):
            best = one, memory
    return best


def _order(t: Trial) -> tuple[float, float, int]:
    """The fastest first; of equal ones that which holds less, then the one that splits less."""
    p = t.plan
    return t.step_s, t.bytes, p.tp * p.pp * p.cp * p.virtual


def front(trials: list[Trial]) -> tuple[Trial, ...]:
    """Plans that no other beats in both time and memory, the fastest first."""
    if not trials:
        return ()
    import numpy as np

    from scantling.search.front import non_dominated

    values = np.array([[t.step_s, t.bytes] for t in trials])
    best = [t for t, keep in zip(trials, non_dominated(values), strict=True) if keep]
    return tuple(sorted(best, key=_order))


def degrees(p: Plan) -> tuple[int, int, int, int]:
    """What tells splits apart for a reader."""
    return p.tp, p.pp, p.cp, p.ep


def _alternatives(trials: list[Trial], choice: Trial | None) -> tuple[Trial, ...]:
    """The fastest plan of every split but the chosen one's."""
    if choice is None:
        return ()
    best: dict[tuple[int, int, int, int], Trial] = {}
    for t in sorted(trials, key=_order):
        best.setdefault(degrees(t.plan), t)
    return tuple(t for key, t in best.items() if key != degrees(choice.plan))[:ALTERNATIVES]
