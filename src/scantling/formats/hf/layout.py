"""A list of layer kinds as few runs, and a dictionary of settings as pairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any

from scantling.arith import Dim
from scantling.spec import Run


def squeeze(kinds: Sequence[str], n_layer: Dim) -> tuple[Run, ...]:
    """A list of layer kinds as few runs: equal runs first, then one cycle to the end.

    Of all periods the one with the fewest words wins: words are the runs of the prefix and the
    kinds of the cycle.

    Example:
        >>> squeeze(["local"] * 2 + ["global"] + ["local"] * 2, 5)
        (Run(pattern=('local', 'local', 'global'), n=5),)
        >>> squeeze(["dense", "moe", "moe", "moe"], 4)
        (Run(pattern=('dense',), n=1), Run(pattern=('moe',), n=3))
    """
    if len(set(kinds)) == 1:
        return (Run((kinds[0],), n_layer),)
    n, best, chosen = len(kinds), None, (0, 0)
    breaks = (a != b for a, b in pairwise(kinds))
    runs_before = [0, *accumulate(breaks, initial=1)]
    for period in range(1, min(n, 64) + 1):
        start = n - period
        while start > 0 and kinds[start - 1] == kinds[start - 1 + period]:
            start -= 1
        words = runs_before[start] + period
        if best is None or (words, start) < best:
            best, chosen = (words, start), (start, period)
    start, period = chosen
    cycle = tuple(kinds[start : start + period])
    return (*_equal_runs(kinds[:start]), Run(cycle, n - start))


def _equal_runs(kinds: Sequence[str]) -> list[Run]:
    runs: list[Run] = []
    for kind in kinds:
        if runs and runs[-1].pattern == (kind,):
            runs[-1] = Run((kind,), runs[-1].n + 1)
        else:
            runs.append(Run((kind,), 1))
    return runs


def freeze(settings: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """A dictionary of settings as sorted pairs, so that a spec stays hashable."""
    return tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in sorted(settings.items()))


def thaw(settings: Iterable[tuple[str, Any]] | None) -> dict[str, Any] | None:
    """The way back from ``freeze``."""
    if settings is None:
        return None
    return {k: list(v) if isinstance(v, tuple) else v for k, v in settings}
