"""What a study may say: A is better by x ± y, they are not separated, or it is unresolved."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from scantling.lab import stats
from scantling.lab.stats import Contrast, Interval
from scantling.lab.study.design import Measure, Probed, Study
from scantling.lab.study.sweep import Swept, all_solve, at_edge, best_rate
from scantling.lab.study.trial import Data, Record

UNTRAINED = 0.97
"""A loss above this share of that of single tokens has learned nothing of their order."""
LEVEL = 0.05
SEEDS, SEEDS_OF_SHARES = 1000, 100
"""Seeds beyond which nobody is told how many it takes."""
OWN = {"loss", "bits_per_byte", "accuracy"}
"""Measures of how well a model was trained, which the learning rate decides; others are probes'."""


class Arm(Struct, frozen=True):
    """A shape at its own best rate."""

    shape: str
    rate: float | None
    rates: tuple[float, ...]
    chosen: tuple[float | None, ...]
    """The mean loss that the rate was chosen by, for each of them; None where a seed failed."""
    edge: str | None
    seeds: tuple[float, ...] = ()
    """The measure of each seed, in their order."""
    interval: Interval | None = None
    also: dict[str, tuple[float, ...]] = {}
    solved: int | None = None
    unresolved: str | None = None
    """Why nothing may be said of it."""


class Verdict(Struct, frozen=True):
    """Two arms compared."""

    a: str
    b: str
    kind: Literal["better", "not separated", "unresolved"]
    text: str
    difference: float | None = None
    """a − b in the unit of the measure; a factor where the measure is a ratio."""
    half_width: float | None = None
    p: float | None = None
    """Adjusted for all pairs of the study."""
    seeds_needed: int | None = None


def arm(study: Study, swept: Swept, data: Data) -> Arm:
    """A shape at its best rate, and whether anything may be said of it."""
    records = list(swept.records)
    seeds = sorted({r.trial.seed for r in records})
    whole = [s for s in seeds if {r.trial.rate for r in records if r.trial.seed == s}
             >= set(swept.rates)]  # fmt: skip
    records = [r for r in records if r.trial.seed in whole and r.trial.rate in swept.rates]
    if swept.lost:
        return Arm(swept.shape, None, swept.rates, (), None,
                   unresolved="every worker died that ran it, out of memory or killed")  # fmt: skip
    if len(whole) < study.least_seeds:
        return Arm(swept.shape, None, swept.rates, (), None,
                   unresolved=f"time was up after {len(whole)} of {study.seeds} seeds")  # fmt: skip
    best = best_rate(records)
    at_best = sorted((r for r in records if r.trial.rate == best), key=lambda r: r.trial.seed)
    chosen = tuple(_chosen(records, rate) for rate in swept.rates)
    edge = None if len(swept.rates) == 1 else at_edge(best, swept.rates)
    if edge is not None and _as_solved_beyond(study, records, best, edge, chosen):
        edge = None
    failed = [r for r in at_best if r.outcome.failed]
    if failed:
        return Arm(swept.shape, best, swept.rates, chosen, edge, unresolved=(
            f"{len(failed)} of {len(at_best)} seeds failed at every rate: "
            f"{failed[0].outcome.failed}"))  # fmt: skip
    values = _values(at_best, study.measure)
    solved = study.measure.solved
    return Arm(
        swept.shape, best, swept.rates, chosen, edge, values, _interval(values, study.measure),
        {m.name: _values(at_best, m) for m in study.also},
        None if solved is None else sum(v >= solved for v in values),
        _doubt(study, at_best, swept.rates, edge, data),
    )  # fmt: skip


def _as_solved_beyond(
    study: Study, records: Sequence[Record], best: float, edge: str,
    chosen: Sequence[float | None],
) -> bool:  # fmt: skip
    """Whether as many seeds would solve the task at rates beyond the edge of the grid.

    All solve it there; or none does at any rate, and from the edge to the next rate the loss is as
    flat as that of a model that guesses, whose best rate is anywhere.
    """
    if study.measure.solved is None:
        return False
    if all_solve(study, [r for r in records if r.trial.rate == best]):
        return True
    at, beside = chosen[:2] if edge == "lower" else chosen[:-3:-1]
    if at is None or beside is None or at <= UNTRAINED * beside:
        return False
    return not any(all_solve(study, [r]) for r in records)


def unsolved(study: Study, arms: Sequence[Arm]) -> list[Arm]:
    """The arms, all unresolved where no seed of any solved the task: it then tells nothing."""
    if study.measure.solved is None or any(a.solved != 0 for a in arms):
        return list(arms)
    why = "solved by no seed, nor is any other: ask with more tokens, or an easier task"
    return [replace(a, unresolved=a.unresolved or why) for a in arms]


def arms_of(study: Study, swept: Swept, data: Data) -> list[Arm]:
    """The arms that a shape gives: itself, or what was looked at of its trained models."""
    if study.probed is None:
        return [arm(study, swept, data)]
    whole = arm(replace(study, measure=Measure(), also=()), swept, data)
    records = sorted(swept.records, key=lambda r: r.trial.seed)
    found = []
    for name in study.probed.arms:
        if whole.unresolved is not None:
            found.append(replace(whole, shape=name, seeds=(), interval=None))
            continue
        values = _values(records, study.measure, name)
        also = {m.name: _values(records, m, name) for m in study.also}
        found.append(Arm(name, whole.rate, whole.rates, whole.chosen, None, values,
                         _interval(values, study.measure), also))  # fmt: skip
    return found


def _chosen(records: Sequence[Record], rate: float) -> float | None:
    there = [r.outcome for r in records if r.trial.rate == rate]
    return (
        None if any(o.failed for o in there) else stats.mean([o.measures["choose"] for o in there])
    )


def _values(
    records: Sequence[Record], measure: Measure, of: str | None = None
) -> tuple[float, ...]:
    name = measure.name if of is None else Probed.key(of, measure.name)
    return tuple(r.outcome.measures[name] for r in records)


def _interval(values: Sequence[float], measure: Measure) -> Interval:
    if measure.solved is not None:
        return stats.wilson(sum(v >= measure.solved for v in values), len(values))
    if not measure.ratio:
        return stats.mean_interval(values)
    found = stats.mean_interval([math.log(v) for v in values])
    return Interval(math.exp(found.value), math.exp(found.low), math.exp(found.high))


def _doubt(
    study: Study, at_best: Sequence[Record], rates: Sequence[float], edge: str | None,
    data: Data,
) -> str | None:  # fmt: skip
    if len(rates) == 1 < len(study.shapes) and study.measure.name in OWN:
        return "one rate tried: which shape is better depends on it"
    if edge is not None:
        end = "highest" if edge == "upper" else "lowest"
        return f"edge: its best rate {at_best[0].trial.rate:g} is the {end} tried"
    if study.measure.name in {"loss", "bits_per_byte"} and data.unigram is not None:
        flat = sum(r.outcome.measures["loss"] > UNTRAINED * data.unigram for r in at_best)
        if flat == len(at_best):
            return "did not train: its loss is that of single tokens"
        if flat:
            return f"{flat} of {len(at_best)} seeds did not train"
    return None


def verdicts(study: Study, arms: Sequence[Arm]) -> list[Verdict]:
    """Every pair of arms, the first one of a pair the better one.

    Welch's test of the seeds, or Fisher's of the shares that solved it, at 5 % over all pairs by
    Holm's adjustment. Where arms are the same models looked at in several ways, only the pairs
    that the study names are compared, and the t-test is of differences within each model.
    """
    asked = list(itertools.combinations(arms, 2))
    if study.probed is not None:
        by_name = {a.shape: a for a in arms}
        asked = [(by_name[a], by_name[b]) for a, b in study.probed.pairs]
    pairs = [sorted(p, key=lambda a: _rank(a, study.measure)) for p in asked
             if p[0].unresolved is None and p[1].unresolved is None]  # fmt: skip
    paired = study.probed is not None
    contrasts = [_contrast(a, b, study.measure, paired=paired) for a, b in pairs]
    adjusted = stats.holm([c.p for c in contrasts])
    found = []
    for (a, b), c, p in zip(pairs, contrasts, adjusted, strict=True):
        found.append(_verdict(a, b, c, p, study.measure, len(pairs), paired=paired))
    for a, b in asked:
        doubts = [f"{x.shape} {x.unresolved}" for x in (a, b) if x.unresolved is not None]
        if doubts:
            text = f"{a.shape} and {b.shape}: unresolved ({'; '.join(doubts)})"
            found.append(Verdict(a.shape, b.shape, "unresolved", text))
    return found


def spread(study: Study, arms: Sequence[Arm]) -> float | None:
    """The standard deviation between seeds, over all arms that are clear; logarithms of a ratio."""
    if study.measure.solved is not None or study.probed is not None:
        return None
    known = [[_scale(study.measure)(v) for v in a.seeds] for a in arms if a.unresolved is None]
    return stats.pooled(known) if known else None


def _spread_of(a: Arm, b: Arm, measure: Measure) -> float:
    """The same of two arms alone: others may be noisier."""
    scale = _scale(measure)
    return stats.pooled([[scale(v) for v in one.seeds] for one in (a, b)])


def resolvable(study: Study, arms: Sequence[Arm], pairs: int) -> float | None:
    """The effect that this design sees four times of five; a factor for a ratio.

    Of shares of solved seeds the least difference that it can tell apart at all.
    """
    sd, n = spread(study, arms), min((len(a.seeds) for a in arms if a.seeds), default=0)
    if study.measure.solved is not None:
        apart = stats.separable(n, max(pairs, 1))
        return None if apart is None else apart / n
    if sd is None or n < 2:
        return None
    effect = stats.resolvable(sd, n, max(pairs, 1))
    return math.exp(effect) if study.measure.ratio else effect


def _paired_sd(a: Arm, b: Arm, measure: Measure) -> float:
    """The standard deviation of one arm that, without pairs, would give a difference the same."""
    scale = _scale(measure)
    apart = [scale(x) - scale(y) for x, y in zip(a.seeds, b.seeds, strict=True)]
    return stats.deviation(apart) / math.sqrt(2)


def _scale(measure: Measure) -> Callable[[float], float]:
    return math.log if measure.ratio else float


def _rank(a: Arm, measure: Measure) -> float:
    assert a.interval is not None, "an arm that is clear has values"
    return a.interval.value * (1 if measure.better == "lower" else -1)


def _contrast(a: Arm, b: Arm, measure: Measure, *, paired: bool) -> Contrast:
    if a.solved is not None and b.solved is not None:
        return stats.shares(a.solved, len(a.seeds), b.solved, len(b.seeds))
    scale = _scale(measure)
    test = stats.paired if paired else stats.welch
    return test([scale(v) for v in a.seeds], [scale(v) for v in b.seeds])


def _verdict(
    a: Arm, b: Arm, c: Contrast, p: float, measure: Measure, tests: int, *, paired: bool
) -> Verdict:
    if measure.ratio:
        size = f"×{math.exp(abs(c.difference)):.3g} (×÷ {math.exp(c.half_width):.3g})"
        told = (math.exp(c.difference), math.exp(c.half_width))
    else:
        size = f"{abs(c.difference):.3g} ± {c.half_width:.2g}"
        told = (c.difference, c.half_width)
    if measure.solved is not None:
        size += (" in the share of seeds that solve it "
                 f"({a.solved} of {len(a.seeds)}, {b.solved} of {len(b.seeds)})")  # fmt: skip
    if p < LEVEL:
        text = f"{a.shape} {measure.word} than {b.shape} by {size}"
        return Verdict(a.shape, b.shape, "better", text, *told, p)
    if measure.solved is not None:
        most, one, other = SEEDS_OF_SHARES, _share(a), _share(b)
        if one == other == 1:
            text = (f"{a.shape} and {b.shape}: not separated (every seed of both solves it; a "
                    "harder task may tell them apart)")  # fmt: skip
            return Verdict(a.shape, b.shape, "not separated", text, *told, p)
        needed = stats.seeds_needed_for_shares(one, other, tests, most)
    else:
        most = SEEDS
        sd, free = (_paired_sd, stats.PAIRED) if paired else (_spread_of, stats.WELCH)
        needed = stats.seeds_needed(sd(a, b, measure), c.difference, tests, most, free)
    if needed is None:
        seeds = f"over {most:,} seeds"
    else:
        needed = max(needed, len(a.seeds) + 1)
        seeds = f"{needed} seeds"
    text = f"{a.shape} and {b.shape}: not separated (difference {size}; needs {seeds})"
    return Verdict(a.shape, b.shape, "not separated", text, *told, p, needed)


def _share(a: Arm) -> float:
    assert a.solved is not None, "an arm judged by what it solved"
    return a.solved / len(a.seeds)


def headline(study: Study, arms: Sequence[Arm], found: Sequence[Verdict]) -> str:
    """The answer in one sentence."""
    if study.probed is not None:
        return _headline_probed(study.probed, arms, found)
    clear = [a for a in arms if a.unresolved is None]
    open_ = [a.shape for a in arms if a.unresolved is not None]
    rest = f"; unresolved: {', '.join(open_)}" if open_ else ""
    if len(clear) < 2:
        return "unresolved: " + "; ".join(f"{a.shape} {a.unresolved}" for a in arms if a.unresolved)
    best = min(clear, key=lambda a: _rank(a, study.measure))
    beaten: Mapping[str, Verdict] = {v.b: v for v in found if v.a == best.shape}
    won = [b for b, v in beaten.items() if v.kind == "better"]
    level = [b for b, v in beaten.items() if v.kind == "not separated"]
    word = study.measure.word
    apart = "".join(f"; {v.a} is {word} than {v.b}" for v in found
                    if v.kind == "better" and {v.a, v.b} <= set(level))  # fmt: skip
    if not won and not apart:
        others = ", ".join(a.shape for a in clear)
        return f"not separated: {others}{rest}"
    if level:
        most = f"is {word} than {', '.join(won)}; not" if won else "has the best mean, not"
        return f"{best.shape} {most} separated from {', '.join(level)}{apart}{rest}"
    if len(won) == 1:
        return f"{beaten[won[0]].text}{rest}"
    return f"{best.shape} is {word} than every other: {', '.join(won)}{rest}"


def _headline_probed(probed: Probed, arms: Sequence[Arm], found: Sequence[Verdict]) -> str:
    """The first comparison, and how all of them stand to what was expected."""
    unresolved = next((a.unresolved for a in arms if a.unresolved is not None), None)
    if unresolved is not None:
        return f"unresolved: {unresolved}"
    by_pair = {frozenset((v.a, v.b)): v for v in found}
    judged = [(pair, by_pair[frozenset(pair)]) for pair in probed.pairs]
    parts = [judged[0][1].text]
    ways = {
        "as expected": [v for (a, _), v in judged if v.kind == "better" and v.a == a],
        "the other way": [v for (_, b), v in judged if v.kind == "better" and v.a == b],
        "not separated": [v for _, v in judged if v.kind == "not separated"],
    }
    counts = ", ".join(f"{len(vs)} {way}" for way, vs in ways.items() if vs)
    parts.append(f"of {len(judged)} comparisons {counts}")
    if ways["the other way"]:
        told = ", ".join(f"{v.a} better than {v.b}" for v in ways["the other way"])
        parts.append(f"other than expected: {told}")
    return "; ".join(parts)
