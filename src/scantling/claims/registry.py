"""Checks: functions that compute a claim again and say what their numbers decide.

One file a theme. A check computes with the product's own functions alone, so that a verdict turns
when a formula, a law or a model of the catalogue does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import NamedTuple, TypeAlias

from scantling.claims.records import Claim, Verdict, claim

MODULES = ("laws", "counts", "shapes", "compute", "cache", "kernels", "context", "surveys")
"""The files of checks, one a theme."""

CLOSE = 0.005
"""Relative distance at which a recomputed number is the one of the record: three digits."""
CORRECT = 0.015
"""Relative distance at which a claim's number is right: it was rounded."""
FAIR = 0.1
"""Relative distance at which it is fair for a rough purpose."""
FAIR_COUNT = 0.03
"""The same of a number of parameters, which anyone can count."""


class Checked(NamedTuple):
    """What a check finds."""

    verdict: Verdict
    numbers: dict[str, float]


Check: TypeAlias = Callable[[Claim], Checked]

CHECKS: dict[str, Check] = {}
"""Every check by its name, filled by ``@check`` when its file is read."""


def check(name: str) -> Callable[[Check], Check]:
    """Decorates a check and enters it in ``CHECKS``."""

    def enter(function: Check) -> Check:
        assert name not in CHECKS, name
        CHECKS[name] = function
        return function

    return enter


def load_checks() -> dict[str, Check]:
    """Every check by its name.

    Example:
        >>> "totals" in load_checks()
        True
    """
    for name in MODULES:
        import_module(f"scantling.claims.{name}")
    return CHECKS


def judge(one: Claim, numbers: Mapping[str, float], fair: float = FAIR) -> Checked:
    """The verdict on a claim's own numbers by the farthest of them.

    Args:
        one: The claim; what it ``said`` is compared.
        numbers: What is right, by the same names, and more beside it.
        fair: Relative distance up to which it is approximate.
    """
    far = max(distance(said, numbers[name]) for name, said in one.said.items())
    verdict: Verdict = "correct" if far <= CORRECT else "approximate" if far <= fair else "wrong"
    return Checked(verdict, dict(numbers))


def by_convention(
    one: Claim, holds: Mapping[str, float], otherwise: Mapping[str, float]
) -> Checked:
    """A convention if a claim's numbers are right in one reading and not in the other."""
    first, second = (judge(one, numbers).verdict for numbers in (holds, otherwise))
    verdict: Verdict = first if first != "correct" or second == "correct" else "convention"
    rest = {f"otherwise_{name}": value for name, value in otherwise.items()}
    return Checked(verdict, {**holds, **rest})


def decide(verdict: Verdict, numbers: Mapping[str, float], *, holds: bool) -> Checked:
    """A verdict where a condition holds, else the one that speaks against it."""
    other: Verdict = "wrong" if verdict in {"correct", "approximate", "convention"} else "correct"
    return Checked(verdict if holds else other, dict(numbers))


def distance(said: float, right: float) -> float:
    """How far a number is off, as a share of the right one."""
    return abs(said - right) / abs(right) if right else float(said != right)


def differences(name: str) -> list[str]:
    """Where a claim's record and its check disagree; empty where they do not.

    Example:
        >>> differences("depth-power")
        []
    """
    one = claim(name)
    if not one.check:
        return []
    found = load_checks()[one.check](one)
    told = []
    if found.verdict != one.verdict:
        told.append(f"verdict {one.verdict}, recomputed {found.verdict}")
    for key in sorted({*one.numbers, *found.numbers}):
        said, now = one.numbers.get(key), found.numbers.get(key)
        if said is None or now is None or not math.isclose(said, now, rel_tol=CLOSE):
            told.append(f"{key} {said}, recomputed {now}")
    return told
