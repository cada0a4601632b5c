"""The search of ``plan``: every split, its memory, its time, and the ones worth having."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

from msgspec import Struct

from scantling.costs.estimate import Estimate
from scantling.costs.memory import TrainingMemory, training_memory
from scantling.costs.money import Bill, bill
from scantling.costs.train import Step, training_step
from scantling.errors import FieldError
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
        """Bytes of the most loaded rank."""
        return float(self.memory.total)


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
    if float(memory.high) <= usable:
        return "fits"
    return "fits only if" if float(memory.low) <= usable else "does not fit"


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
    tally = Tally()
    kept, closest, too_large = candidates(q, tally, progress)
    trials, slower = timed(q, kept, progress)
    if tally.considered == 0:
        raise FieldError("plan", None, "leaves nothing to search", "fix fewer axes")
    certain = [t for t in trials if verdict(t.memory, q) == "fits"]
    pool = certain or trials
    choice = min(pool, key=_order, default=None)
    counts = Counts(
        considered=tally.considered, invalid=tally.invalid, too_large=too_large, slower=slower,
        timed=len(trials),
    )  # fmt: skip
    return Plans(
        question=q, choice=choice, front=front(pool), alternatives=_alternatives(pool, choice),
        closest=closest if choice is None else None, rejected=tally.rejected(), counts=counts,
        seconds=time.perf_counter() - began,
        bill=None if choice is None else run_bill(q, choice, q.phases[0]),
    )  # fmt: skip


Kept = tuple[Split, Plan, TrainingMemory]


def candidates(
    q: Question, tally: Tally, progress: Progress | None = None
) -> tuple[list[Kept], tuple[Plan, TrainingMemory] | None, int]:
    """Valid plans whose memory may fit, the plan that holds least, and how many are too large.

    A larger micro-batch holds no less, and less recompute holds no less: once a plan is too large,
    those beyond it are counted, not computed.
    """
    kept: list[Kept] = []
    least: tuple[Plan, TrainingMemory] | None = None
    too_large = 0
    for n_done, (split, batches) in enumerate(splits(q, tally)):
        if progress is not None and n_done % 64 == 0:
            progress(n_done, 0)
        for zero in zeros(q, split.dp * split.cp):
            found = problem(q, split, zero)
            if found is not None:
                n = len(batches) * len(recomputes(q))
                tally.reject(*found, split.degrees() | {"zero": zero}, n)
                continue
            limit = len(batches)
            for recompute in recomputes(q):
                for i, micro_batch in enumerate(batches[:limit]):
                    one = plan_of(q, split, zero, recompute, micro_batch)
                    memory = training_memory(q.spec, one, q.recipe, q.context)
                    if least is None or float(memory.high) < float(least[1].high):
                        least = one, memory
                    if verdict(memory, q) == "does not fit":
                        limit = i
                        break
                    kept.append((split, one, memory))
                too_large += len(batches) - limit
    return kept, least, too_large


def timed(
    q: Question, kept: Iterable[Kept], progress: Progress | None = None
) -> tuple[list[Trial], int]:
    """The plans with their times, and how many were left out as slower for certain."""
    found = []
    everything = list(kept)
    for n_done, (_, one, memory) in enumerate(everything):
        if progress is not None and n_done % 64 == 0:
            progress(n_done, len(everything))
        step = training_step(q.spec, one, q.recipe, q.context, q.cluster, q.convention)
        found.append(Trial(one, memory, step))
    return found, 0


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


def _alternatives(trials: list[Trial], choice: Trial | None, n: int = 12) -> tuple[Trial, ...]:
    """The fastest plan of every split but the chosen one's."""
    if choice is None:
        return ()
    best: dict[tuple[int, int, int, int], Trial] = {}
    for t in sorted(trials, key=_order):
        best.setdefault(degrees(t.plan), t)
    return tuple(t for key, t in best.items() if key != degrees(choice.plan))[:n]
