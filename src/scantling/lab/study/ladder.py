"""One question at three sizes, each four times the last: is the sign of its answer stable?"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from scantling.errors import FieldError
from scantling.lab.study import store
from scantling.lab.study.answer import Progress, Say, answer, planned, result_json
from scantling.lab.study.design import Study
from scantling.lab.study.plan import Plan, ShortBudgetError, minutes
from scantling.lab.study.trial import Runner
from scantling.units import count_text

SIZES = (1, 4, 16)
"""Times the body of the study itself."""
KIND = "ladder"
SEPARATE = ("stable", "turns")
Kind = Literal["stable", "turns", "leans", "open", "not separated", "unresolved"]
WORDS: dict[Kind, str] = {
    "stable": "with a stable sign", "turns": "whose sign turns", "leans": "lean one way",
    "open": "open", "not separated": "not separated", "unresolved": "unresolved",
}  # fmt: skip

Found = dict[str, Any]
"""A study's ``result.json``."""


class Effect(Struct, frozen=True):
    """Two arms at one size: a − b, or a / b where the measure is a ratio."""

    difference: float
    half_width: float
    separated: bool

    def better(self, measure: Mapping[str, Any]) -> bool:
        """Whether a is ahead, inside the noise or not."""
        lower: bool = measure["better"] == "lower"
        return (self._signed(measure) < 0) == lower

    def _signed(self, measure: Mapping[str, Any]) -> float:
        return math.log(self.difference) if measure["ratio"] else self.difference

    def size(self, measure: Mapping[str, Any]) -> float:
        """Its size on the scale of the tests."""
        return abs(self._signed(measure))

    def error(self, measure: Mapping[str, Any]) -> float:
        """The half width of its interval on the scale of the tests."""
        return math.log(self.half_width) if measure["ratio"] else self.half_width


class Trend(Struct, frozen=True):
    """Two arms over all sizes, a the one ahead at the largest size that says something."""

    a: str
    b: str
    kind: Kind
    text: str
    effects: tuple[Effect | None, ...]
    """At each size, a against b; None where it is unresolved."""


def plans(
    studies: Mapping[int, Study], runner: Runner, folder: Path, *, budget_s: float | None = None,
    engine: str = "pool", workers: int | None = None, fresh: bool = False,
    say: Say = lambda _: None,
) -> dict[int, Plan]:  # fmt: skip
    """The plan of every size, each with an equal share of the budget.

    Args:
        studies: By how many times larger they are than the first.
        runner: As for ``answer``.
        folder: Holds a folder for each.
        budget_s: Seconds that all may take.
        engine: As for ``answer``.
        workers: As for ``answer``.
        fresh: As for ``answer``.
        say: As for ``answer``.

    Raises:
        FieldError: As ``answer``.
    """
    each_s, found = _share(budget_s, studies), {}
    short: dict[int, float] = {}
    for times, study in studies.items():
        say(f"×{times}:")
        try:
            found[times], _, _ = planned(
                study, runner, folder / f"x{times}", fresh=fresh, say=say, budget_s=each_s,
                engine=engine, workers=workers,
            )  # fmt: skip
        except ShortBudgetError as error:
            short[times] = error.need_s
    if short:
        needs = ", ".join(f"×{times} needs {minutes(need)}" for times, need in short.items())
        raise FieldError("budget", minutes(budget_s or 0), f"is {minutes(each_s or 0)} for each of "
                         f"{len(studies)} sizes, and {needs}",
                         f"give {minutes(len(studies) * max(short.values()))}")  # fmt: skip
    return found


def climb(
    studies: Mapping[int, Study], runner: Runner, folder: Path, *, budget_s: float | None = None,
    engine: str = "pool", workers: int | None = None, fresh: bool = False,
    say: Say = lambda _: None, progress: Progress | None = None,
) -> Found:  # fmt: skip
    """Run a study at every size and compare the answers; arguments as for ``plans``.

    Every size is a study in a folder of its own, so what is done is not run again. All are planned
    before the first is run: a budget too short for the largest is told at once.

    Raises:
        FieldError: As ``answer``.
    """
    begun = time.time()
    how: dict[str, Any] = {"engine": engine, "workers": workers, "say": say}
    plans(studies, runner, folder, budget_s=budget_s, fresh=fresh, **how)
    rungs = []
    for times, study in studies.items():
        say(f"×{times} of {', '.join(f'×{n}' for n in studies)}")
        found = answer(study, runner, folder / f"x{times}", budget_s=_share(budget_s, studies),
                       progress=progress, **how)  # fmt: skip
        rungs.append((times, msgspec.json.decode(msgspec.json.encode(result_json(found)))))
    told = compared(dict(rungs), labels(list(studies.values())))
    told["seconds"] = time.time() - begun
    store.write(folder / store.RESULT, told)
    return told


def _share(budget_s: float | None, studies: Mapping[int, Study]) -> float | None:
    """Of each size."""
    return None if budget_s is None else budget_s / len(studies)


def labels(studies: Sequence[Study]) -> list[dict[str, str]]:
    """For each study, what its arms are called over all sizes.

    Arms keep their names; where no name stands at every size, as those that tell a width, their
    depths name them.
    """
    shared = set.intersection(*(set(s.arms) for s in studies))
    if shared:
        return [{name: name for name in s.arms} for s in studies]
    depths = [int(one.spec.n_layer) for one in studies[0].shapes]
    common = [f"{n} {'layer' if n == 1 else 'layers'}" for n in depths]
    return [dict(zip(s.arms, common, strict=True)) for s in studies]


def compared(rungs: Mapping[int, Found], names: Sequence[Mapping[str, str]]) -> Found:
    """The answers at all sizes side by side, and a trend for each pair of arms."""
    first = next(iter(rungs.values()))
    measure = first["study"]["measure"]
    by_pair = [_effects(found, of) for found, of in zip(rungs.values(), names, strict=True)]
    arms = dict.fromkeys(name for of in names for name in of.values())
    sizes = [_body(found) for found in rungs.values()]
    trends = [_trend(p, [e.get(frozenset(p)) for e in by_pair], sizes, measure)
              for p in itertools.combinations(arms, 2)]  # fmt: skip
    return {
        "schema": 1, "kind": KIND, "study": first["study"], "headline": _headline(trends),
        "sizes": [{"times": times, "body": size, "labels": dict(of), "result": found}
                  for (times, found), size, of in zip(rungs.items(), sizes, names, strict=True)],
        "pairs": msgspec.to_builtins(trends),
    }  # fmt: skip


def _body(found: Found) -> str:
    """What a size is called: the middle of its shapes' bodies."""
    bodies = sorted(s["params"]["body"] for s in found["shapes"])
    return count_text(float(f"{bodies[len(bodies) // 2]:.2g}"))


def _effects(found: Found, names: Mapping[str, str]) -> dict[frozenset[str], tuple[str, Effect]]:
    """For each pair that was judged, the one ahead and the effect from its side."""
    return {
        frozenset((names[v["a"]], names[v["b"]])): (
            names[v["a"]], Effect(v["difference"], v["half_width"], v["kind"] == "better"))
        for v in found["verdicts"] if v["kind"] != "unresolved"
    }  # fmt: skip


def _trend(
    pair: tuple[str, str], seen: Sequence[tuple[str, Effect] | None], sizes: Sequence[str],
    measure: Mapping[str, Any],
) -> Trend:  # fmt: skip
    known = [(at, *one) for at, one in enumerate(seen) if one is not None]
    if len(known) < 2:
        where = f"at {sizes[known[0][0]]} alone" if known else "at no size"
        text = f"{pair[0]} and {pair[1]}: unresolved (they could be compared {where})"
        return Trend(*pair, "unresolved", text, tuple(one and one[1] for one in seen))
    a = known[-1][1]
    b = next(p for p in pair if p != a)
    effects = tuple(
        None if one is None else one[1] if one[0] == a else _turned(one[1], measure) for one in seen
    )
    there = [(sizes[at], e) for at, e in enumerate(effects) if e is not None]
    told = f"{_listed(there, measure)}{_missing(effects, sizes)}"
    kind, text = _said(a, b, there, measure, len(sizes))
    return Trend(a, b, kind, f"{text} ({told})", effects)


def _said(
    a: str, b: str, there: Sequence[tuple[str, Effect]], measure: Mapping[str, Any], n_sizes: int
) -> tuple[Kind, str]:
    """What the effects of a pair come to over the sizes."""
    for_a = [s for s, e in there if e.separated and e.better(measure)]
    for_b = [s for s, e in there if e.separated and not e.better(measure)]
    word = measure["word"]
    if for_a and for_b:
        return "turns", (f"the sign turns: {a} {word} at {', '.join(for_a)}, {b} {word} at "
                         f"{', '.join(for_b)}")  # fmt: skip
    if len(for_a) == n_sizes:
        change = _change(there[0][1], there[-1][1], measure)
        return "stable", f"{a} {word} than {b} at all {n_sizes} sizes; {change}"
    if for_a and all(e.better(measure) for _, e in there):
        told = f"at all {n_sizes} sizes" if len(there) == n_sizes else "where they were compared"
        return "leans", (f"{a} ahead of {b} {told}, separated at "
                         f"{', '.join(for_a)}")  # fmt: skip
    if for_a or for_b:
        winner, where = (a, for_a) if for_a else (b, for_b)
        return "open", (f"{winner} {word} at {', '.join(where)}, with the sign the other way but "
                        "not separated elsewhere")  # fmt: skip
    return "not separated", f"{a} and {b}: not separated at any size"


def _turned(e: Effect, measure: Mapping[str, Any]) -> Effect:
    """The same from the other side."""
    difference = 1 / e.difference if measure["ratio"] else -e.difference
    return Effect(difference, e.half_width, e.separated)


def effect_text(e: Effect, measure: Mapping[str, Any]) -> str:
    """An effect with its interval."""
    if measure["ratio"]:
        return f"×{e.difference:.3g} (×÷ {e.half_width:.3g})"
    return f"{e.difference:+.3g} ± {e.half_width:.2g}"


def _listed(there: Sequence[tuple[str, Effect]], measure: Mapping[str, Any]) -> str:
    return ", ".join(f"{size}: {effect_text(e, measure)}" for size, e in there)


def _missing(effects: Sequence[Effect | None], sizes: Sequence[str]) -> str:
    gone = [s for s, e in zip(sizes, effects, strict=True) if e is None]
    return f"; unresolved at {', '.join(gone)}" if gone else ""


def _change(first: Effect, last: Effect, measure: Mapping[str, Any]) -> str:
    """Whether the effect changes from the smallest to the largest size by more than its error."""
    small, large = first.size(measure), last.size(measure)
    error = math.hypot(first.error(measure), last.error(measure))
    if abs(large - small) <= error:
        return "the effect changes by no more than its intervals"
    return "the effect grows with size" if large > small else "the effect shrinks with size"


def _headline(trends: Sequence[Trend]) -> str:
    """How many pairs keep their sign, and which."""
    if len(trends) == 1:
        return trends[0].text
    groups = [(kind, [t for t in trends if t.kind == kind]) for kind in WORDS]
    counts = ", ".join(f"{len(ts)} {WORDS[kind]}" for kind, ts in groups if ts)
    parts = [f"of {len(trends)} pairs {counts}"]
    parts += [f"{WORDS[kind]}: {', '.join(f'{t.a} over {t.b}' for t in ts)}"
              for kind, ts in groups[:2] if ts]  # fmt: skip
    return "; ".join(parts)
