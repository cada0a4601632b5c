"""The other way round: the largest batch, the longest context, the fewest chips, the largest model.

Every answer is a plan that was checked, never an interpolation: the last one that holds on a
ladder that doubles, then halves its step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from scantling import catalog
from scantling.costs.count import parameters
from scantling.costs.memory import training_memory
from scantling.errors import FieldError, ScantlingError
from scantling.search.plan_question import Question, learned_positions
from scantling.search.plan_space import Tally, plan_of, problem, recomputes, splits, zeros
from scantling.search.plans import Plans, Progress, answer, verdict
from scantling.spec import Spec, check, divisors, has, vary
from scantling.spec.plan import Plan
from scantling.units import count_text

SOLVE = ("batch", "context", "gpus", "model")
CONTEXT_STEP = 1024
LONGEST = 2**24
"""No context beyond 16 M tokens is tried."""
MOST_CHIPS = 2**17
TEMPLATE = "llama-3.1-8b"
"""The shape that is scaled where no model is named."""
WIDTH_STEP = 128

Ask = Callable[..., Question]


class Tried(Struct, frozen=True):
    """One rung of a ladder."""

    value: int
    answer: str


class Solution(Struct, frozen=True, kw_only=True):
    """The answer to an inverse question.

    Args:
        asked: What was asked: ``context``, ``batch``, ``gpus`` or ``model``.
        value: The answer; None where no value holds.
        unit: Of the value.
        plans: The plan at that value.
        tried: What was tried on the way, in order.
        note: What the answer rests on.
    """

    asked: str
    value: int | None
    unit: str
    plans: Plans | None
    tried: tuple[Tried, ...]
    note: str = ""


def solve(
    asked: str, one: catalog.Loaded | None, ask: Ask, *, days: float | None = None,
    sized: bool = True, progress: Progress | None = None,
) -> Solution:  # fmt: skip
    """Answer an inverse question.

    Args:
        asked: ``batch``, ``context``, ``gpus`` or ``model``.
        one: The model; None only for the largest model.
        ask: Makes a question with some of its values changed.
        days: A deadline in calendar days, for ``gpus`` and ``model``.
        sized: Whether the number of chips was given.
        progress: Called now and then.

    Raises:
        FieldError: If the question makes no sense as given.
    """
    if asked not in SOLVE:
        raise FieldError("solve", asked, "is no question", f"use {', '.join(SOLVE)}")
    if days is not None and not 0 < days < 1e6:
        raise FieldError("days", days, "must be above zero")
    if asked == "model":
        return _largest_model(one, ask, days, progress)
    if one is None:
        raise FieldError("solve", asked, "needs a MODEL")
    if asked == "gpus":
        if sized:
            raise FieldError("gpus", None, "is what is asked", "leave it out")
        return _fewest_chips(ask, days, progress)
    return (_longest_context if asked == "context" else _largest_batch)(ask, progress)


class Limits(Struct, frozen=True):
    """How far a plan can be pushed on the same chips; None where even the least does not fit."""

    context: int | None
    """The longest sequence at the plan's micro-batch, tokens."""
    micro_batch: int | None
    """The largest micro-batch at the context asked for."""


def limits_of(q: Question, p: Plan) -> Limits:
    """The longest context and the largest micro-batch of one plan, everything else as it is.

    Example:
        >>> from scantling.search.plan_question import question
        >>> q = question("llama-3.1-8b", gpu="h100-sxm", finetune="qlora")
        >>> found = limits_of(q, Plan())
        >>> found.context > 2048, found.micro_batch > 1
        (True, True)
    """
    step = 64 * 2 * p.cp * p.tp if p.cp > 1 else 64 * p.tp

    def fits(plan: Plan, context: int) -> bool:
        return verdict(training_memory(q.spec, plan, q.recipe, context), q) == "fits"

    n_most = (learned_positions(q.spec) or LONGEST) // step
    context = _largest(lambda n: fits(p, n * step), n_most) if n_most else None
    batch = _largest(lambda n: fits(replace(p, micro_batch=n), q.context), 2**16)
    return Limits(None if context is None else context * step, batch)


def _largest(good: Callable[[int], bool], most: int) -> int | None:
    """The largest number from 1 on that is good, where all below it are."""
    if not good(1):
        return None
    low, high = 1, 2
    while high <= most and good(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle <= most and good(middle) else (low, middle)
    return low


def holds(q: Question) -> bool:
    """Whether any plan fits for certain: those that hold least are tried, one a split.

    Full recompute and the smallest micro-batch hold least; ZeRO is tried from its highest stage.
    """
    for split, batches in splits(q, Tally()):
        for zero in reversed(zeros(q, split.dp * split.cp)):
            if problem(q, split, zero) is not None:
                continue
            one = plan_of(q, split, zero, recomputes(q)[0], batches[0])
            if verdict(training_memory(q.spec, one, q.recipe, q.context), q) == "fits":
                return True
    return False


def _last(
    good: Callable[[int], bool], start: int, step: int, most: int, tried: list[Tried],
    say: Callable[[int], str],
) -> int | None:  # fmt: skip
    """The largest multiple of a step that is good: doubling from the start, then bisection."""

    def test(value: int) -> bool:
        found = good(value)
        tried.append(Tried(value, f"{say(value)}: {'fits' if found else 'does not fit'}"))
        return found

    low = start
    if not test(low):
        if start <= step or not test(step):
            return None
        low, high = step, start
    else:
        high = low * 2
        while high <= most and test(high):
            low, high = high, high * 2
        if high > most:
            return low
    while high - low > max(step, low // 64):
        middle = (low + high) // 2 // step * step
        if middle in {low, high}:
            break
        low, high = (middle, high) if test(middle) else (low, middle)
    return low


def _longest_context(ask: Ask, progress: Progress | None) -> Solution:
    base = ask()
    tried: list[Tried] = []
    sequences = base.batch

    def at(context: int) -> Question:
        phase = replace(base.phases[0], context=context)
        kept = max(1, round(base.batch_tokens / context)) if sequences > 1 else 1
        ranks = [d for d in divisors(base.cluster.n_gpu) if d <= kept]
        kept = kept // ranks[-1] * ranks[-1]  # whole sequences for a divisor of the chips
        return replace(base, phases=(phase,), batch_tokens=kept * context)

    rows = learned_positions(base.spec)
    found = _last(lambda c: holds(at(c)), min(base.context, 8192), CONTEXT_STEP, rows or LONGEST,
                  tried, lambda c: f"{c:,} tokens")  # fmt: skip
    plans = None if found is None else answer(at(found), progress)
    return Solution(asked="context", value=found, unit="tokens", plans=plans, tried=tuple(tried),
                    note="the batch keeps its tokens, in whole sequences" + (
                        "" if rows is None else f"; the model has learned {rows:,} positions"
                    ))  # fmt: skip


def _largest_batch(ask: Ask, progress: Progress | None) -> Solution:
    """The most sequences that pass at once: every replica with one micro-batch for each stage."""
    base = ask()
    tried: list[Tried] = []

    def at(micro_batch: int) -> Question:
        n = base.cluster.n_gpu
        fixed = base.fixed | {"micro_batch": micro_batch}
        return replace(base, fixed=fixed, batch_tokens=n * micro_batch * base.context)

    found = _last(lambda b: holds(at(b)), 1, 1, 2**16, tried, lambda b: f"micro-batch {b:,}")
    plans = None if found is None else answer(at(found), progress)
    note = (
        "sequences of one pass of one replica, by the plan that holds least; more replicas and "
        "more micro-batches make any larger batch of it"
    )
    return Solution(asked="batch", value=found, unit="sequences", plans=plans,
                    tried=tuple(tried), note=note)  # fmt: skip


def chip_counts(per_node: int) -> Iterable[int]:
    """Numbers of chips worth trying: parts of a node, then 2, 3, 4, 6, 8, 12 nodes and on.

    Example:
        >>> [n for n in chip_counts(8) if n <= 64]
        [1, 2, 4, 8, 16, 24, 32, 48, 64]
    """
    yield from divisors(per_node)
    nodes = 2
    while nodes * per_node <= MOST_CHIPS:
        yield nodes * per_node
        if nodes * 3 // 2 * per_node <= MOST_CHIPS:
            yield nodes * 3 // 2 * per_node
        nodes *= 2


def _fewest_chips(ask: Ask, days: float | None, progress: Progress | None) -> Solution:
    tried: list[Tried] = []
    per_node = ask(gpus=1).cluster.node.n_gpu
    per_node = ask().cluster.node.n_gpu if per_node == 1 else per_node
    for n in chip_counts(max(per_node, 8)):
        q = ask(gpus=n)
        if not holds(q):
            tried.append(Tried(n, f"{n:,} GPUs: does not fit"))
            continue
        if days is None:
            tried.append(Tried(n, f"{n:,} GPUs: fits"))
            return Solution(asked="gpus", value=n, unit="GPUs", plans=answer(q, progress),
                            tried=tuple(tried))  # fmt: skip
        if ideal_days(q) > days:
            tried.append(Tried(n, f"{n:,} GPUs: over {days:g} days even at peak rate"))
            continue
        plans = answer(q, progress)
        assert plans.bill is not None
        taken = plans.bill.calendar_days
        low, value, high = (float(v) for v in (taken.low_s, taken.value_s, taken.high_s))
        tried.append(Tried(n, f"{n:,} GPUs: {value:.3g} days ({low:.3g} to {high:.3g})"))
        if float(taken.high_s) <= days and plans.fits:
            note = f"the upper end of the interval is within {days:g} calendar days"
            return Solution(asked="gpus", value=n, unit="GPUs", plans=plans, tried=tuple(tried),
                            note=note)  # fmt: skip
    return Solution(asked="gpus", value=None, unit="GPUs", plans=None, tried=tuple(tried))


def ideal_days(q: Question) -> float:
    """Days at the peak rate of every chip: no plan is faster (6 FLOPs a token and parameter)."""
    counted: Any = parameters(q.spec)
    body = float(counted.active) - float(counted.embedding)
    from scantling.search.plan_question import RATES

    rate = q.chip.rate(RATES.get(q.recipe.dtype, q.recipe.dtype)) * q.cluster.n_gpu
    again = 2 / 3 if q.recipe.adapter is not None else 1.0  # frozen weights get no gradients
    return 6 * body * q.tokens * again / rate / 86_400 / (q.goodput or 1.0)


def scaled(spec: Spec, width: int) -> Spec:
    """A model of the same kind at another width: depth, heads and FFN grow with it.

    Head width, KV heads and vocabulary stay; depth is the nearest multiple of 4, heads a multiple
    of the KV heads where they are grouped.

    Example:
        >>> twice = scaled(catalog.model("llama-3.1-8b"), 8192)
        >>> twice.n_layer, twice.n_head, twice.d_ff
        (64, 64, 28672)
    """
    ratio = width / int(spec.d_model)
    changes: dict[str, int] = {"d_model": width}
    changes["n_layer"] = max(4, round(int(spec.n_layer) * ratio / 4) * 4)
    if has(spec, "n_head"):
        unit = int(spec.n_kv_head) if has(spec, "n_kv_head") else 1
        unit = unit if unit < int(spec.n_head) else 1
        heads = max(unit, round(int(spec.n_head) * ratio / unit) * unit)
        changes["n_head"] = heads
        if unit == 1 and has(spec, "n_kv_head"):
            changes["n_kv_head"] = heads
    for field in ("d_ff", "d_expert", "d_shared"):
        if has(spec, field):
            step = WIDTH_STEP
            changes[field] = max(step, round(int(spec.read(field)) * ratio / step) * step)
    return check(vary(spec, **changes))


def _largest_model(
    one: catalog.Loaded | None, ask: Ask, days: float | None, progress: Progress | None
) -> Solution:
    """The widest scaled model whose plan fits, and meets the deadline where there is one."""
    template = one or catalog.load(TEMPLATE)
    tried: list[Tried] = []
    best: Plans | None = None

    def good(width: int) -> bool:
        nonlocal best
        try:
            spec = scaled(template.spec, width)
        except ScantlingError:
            return False
        q = ask(model=replace(template, spec=spec, name=f"{template.name} at width {width}"))
        if (days is not None and ideal_days(q) > days) or not holds(q):
            return False
        if days is None:
            return True
        found = answer(q, progress)
        if found.bill is None or not found.fits:
            return False
        if float(found.bill.calendar_days.high_s) > days:
            return False
        best = found
        return True

    def say(width: int) -> str:
        try:
            return f"{count_text(float(parameters(scaled(template.spec, width)).total))} parameters"
        except ScantlingError as error:
            return str(error)

    found = _last(good, 1024, WIDTH_STEP, 2**16, tried, say)
    if found is not None and (best is None or int(best.question.spec.d_model) != found):
        q = ask(model=replace(template, spec=scaled(template.spec, found),
                              name=f"{template.name} at width {found}"))  # fmt: skip
        best = answer(q, progress)
    size = None if best is None else math.floor(float(parameters(best.question.spec).total))
    told = f"{template.name} scaled: depth, heads and FFN in proportion to the width"
    if days is not None:
        told += f"; the upper end of the interval is within {days:g} calendar days"
    return Solution(asked="model", value=size, unit="parameters", plans=best, tried=tuple(tried),
                    note=told)  # fmt: skip
