"""The search of ``plan``: every split, its memory, its time, and the ones worth having."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

from scantling.costs.estimate import Estimate
from scantling.costs.memory import TrainingMemory, training_memory
from scantling.costs.money import Bill, bill
from scantling.costs.train import Step, training_step
from scantling.errors import FieldError
from scantling.search.plan_floor import Floors
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

Verdict = Literal["fits", "fits only if", "does not fit"]
Progress = Callable[[int, int], None]
ALTERNATIVES = 12
"""Other splits that are kept beside the choice."""


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
    """Not timed: a lower bound of their time is above a plan that fits and holds no more."""
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


def answer(q: Question, progress: Progress | None = None) -> Plans:
    """The plans of a question; with several phases each has its own, and the bill is of all."""
    if len(q.phases) == 1:
        return _one_phase(q, progress)
    each = tuple(_one_phase(q.of_phase(phase), progress) for phase in q.phases)
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
    """What a phase takes with a plan: whole steps of it."""
    n_steps = phase.tokens / trial.step.tokens
    return bill(trial.step.step.times(n_steps), q.cluster.n_gpu, q.chip, q.goodput or 1.0, q.price)


def _one_phase(q: Question, progress: Progress | None) -> Plans:
    began = time.perf_counter()
    tally, held = Tally(), Held(q)
    found, closest = leaves(q, tally, held, progress)
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
        closest=closest if choice is None else None, rejected=tally.rejected(), counts=counts,
        seconds=time.perf_counter() - began,
        bill=None if choice is None else run_bill(q, choice, q.phases[0]),
    )  # fmt: skip


class Leaf(Struct, frozen=True):
    """A plan that is not computed yet, with bounds of its time and its memory."""

    floor_s: float
    least_bytes: float
    group: tuple[Split, int]
    plan: Plan


class Held(Struct):
    """What a search has found so far, and which plans it no longer needs to look at."""

    question: Question
    trials: list[Trial] = []
    too_large: int = 0
    slower: int = 0
    """Left out because a plan that fits is faster than their bound and holds no more."""
    stairs: list[tuple[float, float]] = []
    """(seconds, bytes) of plans that fit and that none beats in both, the fastest first."""
    fastest: dict[tuple[int, int, int, int], float] = {}
    """The fastest plan that fits of every split, seconds."""
    unfit: dict[tuple[Split, int], list[tuple[int, int]]] = {}
    """(recompute, micro-batch) too large for a split and a stage of ZeRO."""

    def beaten(self, seconds: float, size: float) -> bool:
        """Whether a plan that fits is at least as fast and holds no more."""
        return any(s <= seconds and b <= size for s, b in self.stairs)

    def unwanted(self, leaf: Leaf, size: float) -> bool:
        """Whether a plan can neither be on the front nor among the alternatives."""
        if not self.beaten(leaf.floor_s, size):
            return False
        own = self.fastest.get(degrees(leaf.plan))
        if own is not None and own <= leaf.floor_s:
            return True
        best = sorted(self.fastest.values())
        return len(best) > ALTERNATIVES and best[ALTERNATIVES] <= leaf.floor_s

    def add(self, trial: Trial) -> None:
        """Keep a plan that was timed."""
        self.trials.append(trial)
        if verdict(trial.memory, self.question) != "fits":
            return
        size = float(trial.memory.needed_high)
        if not self.beaten(trial.step_s, size):
            kept = [(s, b) for s, b in self.stairs if s < trial.step_s or b < size]
            self.stairs = sorted([*kept, (trial.step_s, size)])
        key = degrees(trial.plan)
        self.fastest[key] = min(trial.step_s, self.fastest.get(key, trial.step_s))


def leaves(
    q: Question, tally: Tally, held: Held, progress: Progress | None
) -> tuple[list[Leaf], tuple[Plan, TrainingMemory] | None]:  # fmt: skip
    """Every valid plan of a split that may fit, with its bounds, and the plan that holds least.

    Of a split and a stage of ZeRO, the plan with the smallest micro-batch and the most recompute
    holds least: where that is too large, all of them are.
    """
    floors = Floors(q)
    found: list[Leaf] = []
    least: tuple[Plan, TrainingMemory] | None = None
    for n_done, (split, batches) in enumerate(splits(q, tally)):
        if progress is not None and n_done % 16 == 0:
            progress(n_done, 0)
        modes = recomputes(q)
        for zero in zeros(q, split.dp * split.cp):
            wrong = problem(q, split, zero)
            if wrong is not None:
                tally.reject(*wrong, split.degrees() | {"zero": zero}, len(batches) * len(modes))
                continue
            base = plan_of(q, split, zero, modes[0], batches[0])
            memory = training_memory(q.spec, base, q.recipe, q.context)
            if least is None or float(memory.needed_high) < float(least[1].needed_high):
                least = base, memory
            if verdict(memory, q) == "does not fit":
                held.too_large += len(batches) * len(modes)
                continue
            for micro_batch in batches:
                for mode in modes:
                    one = plan_of(q, split, zero, mode, micro_batch)
                    found.append(
                        Leaf(floors.seconds(one), float(memory.needed_high), (split, zero), one)
                    )
    return found, least


def search(q: Question, found: list[Leaf], held: Held, progress: Progress | None) -> None:
    """Compute plans in the order of their bounds, and leave out what can no longer matter."""
    rank = {mode: i for i, mode in enumerate(recomputes(q))}
    found.sort(key=lambda leaf: leaf.floor_s)
    for n_done, leaf in enumerate(found):
        if progress is not None and n_done % 64 == 0:
            progress(n_done, len(found))
        if held.unwanted(leaf, leaf.least_bytes):
            held.slower += 1
            continue
        p = leaf.plan
        mark = rank[p.recompute], p.micro_batch
        too_large = held.unfit.setdefault(leaf.group, [])
        if any(r <= mark[0] and b <= mark[1] for r, b in too_large):
            held.too_large += 1
            continue
        memory = training_memory(q.spec, p, q.recipe, q.context)
        if verdict(memory, q) == "does not fit":
            too_large.append(mark)
            held.too_large += 1
        elif held.unwanted(leaf, float(memory.needed_high)):
            held.slower += 1
        else:
            step = training_step(q.spec, p, q.recipe, q.context, q.cluster, q.convention)
            held.add(Trial(p, memory, step))


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
