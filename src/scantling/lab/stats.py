"""What a handful of seeds can say: intervals, tests, and what a design could have resolved.

Plain numbers and the standard library; runs of a study are few.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from statistics import NormalDist

from msgspec import Struct

from scantling.errors import FieldError

POWER = 0.8
"""Share of studies that should see an effect which is there: the custom since Cohen 1988."""
LEVEL = 0.95
WELCH, PAIRED = 1.4, 1.0
"""Degrees of freedom of a test over those of one arm, see ``resolvable``."""


class Interval(Struct, frozen=True):
    """A value with the ends of its interval."""

    value: float
    low: float
    high: float


class Contrast(Struct, frozen=True):
    """A difference of two arms, a − b, with its interval and the chance of it without an effect."""

    difference: float
    half_width: float
    p: float


def t_share(t: float, df: float) -> float:
    """The share of Student's t below a value.

    P(T < t) = 1 − I_x(df/2, 1/2) / 2 for t > 0, with x = df / (df + t²); I is the regularised
    incomplete beta function.

    Example:
        >>> round(t_share(2.776445, 4), 6)
        0.975
    """
    tail = _tail(t, df)
    return 1 - tail if t > 0 else tail


def _tail(t: float, df: float) -> float:
    """The share of Student's t that lies further out on one side."""
    return _beta_share(df / (df + t * t), df / 2, 0.5) / 2


@functools.lru_cache(4096)
def t_quantile(share: float, df: float) -> float:
    """The value that a share of Student's t lies below, by bisection.

    Example:
        >>> round(t_quantile(0.975, 2), 4), round(t_quantile(0.975, 1e6), 3)
        (4.3027, 1.96)
    """
    if share == 0.5:
        return 0.0
    if share < 0.5:
        return -t_quantile(1 - share, df)
    low, high = 0.0, 1.0
    while t_share(high, df) < share:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_share(middle, df) < share else (low, middle)
    return (low + high) / 2


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float:
    """The standard deviation of a sample, over n − 1."""
    centre = mean(values)
    return math.sqrt(math.fsum((x - centre) ** 2 for x in values) / (len(values) - 1))


def mean_interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """The mean with its t-interval: x̄ ± t(1 − (1 − level)/2, n − 1) s / √n.

    Raises:
        FieldError: If there are fewer than two values.

    Example:
        >>> found = mean_interval([1.0, 2.0, 3.0])
        >>> round(found.low, 3), found.value, round(found.high, 3)
        (-0.484, 2.0, 4.484)
    """
    if len(values) < 2:
        raise FieldError("seeds", len(values), "give no interval", "at least 2")
    half = t_quantile((1 + level) / 2, len(values) - 1) * deviation(values)
    half /= math.sqrt(len(values))
    centre = mean(values)
    return Interval(centre, centre - half, centre + half)


def welch(a: Sequence[float], b: Sequence[float], level: float = LEVEL) -> Contrast:
    """Welch's test of two means whose spreads may differ.

    With v = s²/n of each arm, t = (ā − b̄) / √(v_a + v_b) has about
    (v_a + v_b)² / (v_a²/(n_a − 1) + v_b²/(n_b − 1)) degrees of freedom (Welch 1947). Arms without
    any spread differ surely, or not at all.

    Example:
        >>> found = welch([1.0, 1.1, 1.2], [2.0, 2.2, 2.4])
        >>> round(found.difference, 2), round(found.half_width, 2), found.p < 0.01
        (-1.1, 0.42, True)
    """
    difference = mean(a) - mean(b)
    va, vb = deviation(a) ** 2 / len(a), deviation(b) ** 2 / len(b)
    if va + vb == 0:
        return Contrast(difference, 0.0, 1.0 if difference == 0 else 0.0)
    df = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    error = math.sqrt(va + vb)
    p = 2 * _tail(difference / error, df)
    return Contrast(difference, t_quantile((1 + level) / 2, df) * error, p)


def paired(a: Sequence[float], b: Sequence[float], level: float = LEVEL) -> Contrast:
    """The mean of differences a − b of the same seeds, and Student's t-test of it.

    Example:
        >>> found = paired([1.1, 2.0, 3.2], [1.0, 2.0, 3.0])
        >>> round(found.difference, 3), round(found.half_width, 3), round(found.p, 3)
        (0.1, 0.248, 0.225)
    """
    apart = [x - y for x, y in zip(a, b, strict=True)]
    found, error = mean_interval(apart, level), deviation(apart) / math.sqrt(len(apart))
    if error == 0:
        return Contrast(found.value, 0.0, 1.0 if found.value == 0 else 0.0)
    p = 2 * _tail(found.value / error, len(apart) - 1)
    return Contrast(found.value, found.high - found.value, p)


def holm(p: Sequence[float]) -> list[float]:
    """Chances adjusted for the number of tests, in their order (Holm 1979).

    The k-th smallest of m, from 0, is multiplied by m − k, never falls below the one before it,
    and is at most 1; a test whose adjusted chance is under 5 % holds for the whole family.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p)), key=lambda i: p[i])
    raised = ((len(p) - k) * p[i] for k, i in enumerate(order))
    found = [0.0] * len(p)
    for i, value in zip(order, itertools.accumulate(raised, max), strict=True):
        found[i] = min(value, 1.0)
    return found


def wilson(solved: int, n: int, level: float = LEVEL) -> Interval:
    """The share of seeds that solved a task, with its interval (Wilson 1927).

    (p + z²/2n ± z √(p(1 − p)/n + z²/4n²)) / (1 + z²/n); it stays inside 0 and 1.

    Example:
        >>> found = wilson(2, 3)
        >>> round(found.low, 3), round(found.high, 3)
        (0.208, 0.939)
        >>> wilson(0, 5).low
        0.0
    """
    z, p = NormalDist().inv_cdf((1 + level) / 2), solved / n
    centre = p + z * z / (2 * n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    low = (centre - half) / scale if solved else 0.0  # exactly, where rounding leaves 3e-17
    return Interval(p, low, (centre + half) / scale if solved < n else 1.0)


def shares(solved_a: int, n_a: int, solved_b: int, n_b: int) -> Contrast:
    """Two shares of solved seeds: Newcombe's interval, the chance by Fisher's exact test.

    Newcombe 1998, method 10: √((p_a − l_a)² + (u_b − p_b)²) below the difference and
    √((u_a − p_a)² + (p_b − l_b)²) above it, from both Wilson intervals; the wider one is given.
    Fisher: the sum of all tables with these margins that are no likelier than the one seen.

    Example:
        >>> found = shares(3, 3, 0, 3)
        >>> found.difference, round(found.p, 6)
        (1.0, 0.1)
    """
    a, b = wilson(solved_a, n_a), wilson(solved_b, n_b)
    low = math.hypot(a.value - a.low, b.high - b.value)
    high = math.hypot(a.high - a.value, b.value - b.low)
    p = _fisher(solved_a, n_a, solved_b, n_b)
    return Contrast(a.value - b.value, max(low, high), p)


def _fisher(solved_a: int, n_a: int, solved_b: int, n_b: int) -> float:
    solved, n = solved_a + solved_b, n_a + n_b
    likely = {
        k: math.comb(n_a, k) * math.comb(n_b, solved - k) / math.comb(n, solved)
        for k in range(max(0, solved - n_b), min(n_a, solved) + 1)
    }
    seen = likely[solved_a] * (1 + 1e-9)
    return min(math.fsum(x for x in likely.values() if x <= seen), 1.0)


def separable(n: int, tests: int = 1) -> int | None:
    """By how many of n solved seeds two arms must differ at least to be told apart.

    Over a family of tests, at the first step of Holm; None where not even all against none does.

    Example:
        >>> separable(3), separable(5), separable(5, 3), separable(10)
        (None, 4, 5, 5)
    """
    apart = [a - b for a in range(n + 1) for b in range(a)
             if tests * _fisher(a, n, b, n) < 1 - LEVEL]  # fmt: skip
    return min(apart, default=None)


def least_for_shares(tests: int = 1) -> int:
    """The fewest seeds of which all against none are told apart.

    Example:
        >>> least_for_shares(), least_for_shares(3)
        (4, 5)
    """
    return next(n for n in itertools.count(2) if tests * _fisher(n, n, 0, n) < 1 - LEVEL)


def seeds_needed_for_shares(a: float, b: float, tests: int = 1, most: int = 100) -> int | None:
    """The fewest seeds an arm that see two shares apart with 80 % power; None is more than most.

    Example:
        >>> seeds_needed_for_shares(1.0, 0.0), seeds_needed_for_shares(1.0, 0.6)
        (4, 16)
    """
    low, high, few, many = 2, most, min(a, b), max(a, b)
    if few == many or _power(many, few, most, tests) < POWER:
        return None
    while low < high:
        middle = (low + high) // 2
        enough = _power(many, few, middle, tests) >= POWER
        low, high = (low, middle) if enough else (middle + 1, high)
    return low


def _power(many: float, few: float, n: int, tests: int) -> float:
    """The chance that Fisher's test tells two shares apart, the larger one for what it is.

    For each number of solved seeds of the one, the other may have some number at most, which grows
    with it.
    """
    power, below, cumulated = 0.0, -1, 0.0
    for a in range(n + 1):
        while below + 1 < a and tests * _fisher(a, n, below + 1, n) < 1 - LEVEL:
            below += 1
            cumulated += _binomial(below, n, few)
        power += _binomial(a, n, many) * cumulated
    return power


def _binomial(k: int, n: int, p: float) -> float:
    return float(math.comb(n, k) * p**k * (1 - p) ** (n - k))


def resolvable(sd: float, n: int, tests: int = 1, free: float = WELCH) -> float:
    """The effect that n seeds an arm see with 80 % power, at 5 % over a family of tests.

    (t(1 − 0.05/2m, f) + t(0.8, f)) s √(2/n), the first step of Holm; for many seeds this is the
    rule 2 (2.8 s / effect)² turned around. Welch's degrees of freedom f lie between n − 1 and
    2 (n − 1); with 1.4 (n − 1) simulated studies of 3 to 8 seeds see 80 to 83 % of such effects.
    Differences within seeds have n − 1, and s is that of the differences over √2.

    Example:
        >>> round(resolvable(0.02, 3), 3), round(resolvable(0.02, 18), 3)
        (0.07, 0.019)
    """
    df = free * (n - 1)
    quantiles = t_quantile(1 - (1 - LEVEL) / (2 * tests), df) + t_quantile(POWER, df)
    return quantiles * sd * math.sqrt(2 / n)


def seeds_needed(
    sd: float, effect: float, tests: int = 1, most: int = 1000, free: float = WELCH
) -> int | None:
    """The fewest seeds an arm that would resolve an effect; None is more than ``most``.

    Example:
        >>> seeds_needed(0.02, 0.05), seeds_needed(0.02, 0.02)
        (5, 18)
    """
    low, high = 2, most
    if effect == 0 or resolvable(sd, most, tests, free) > abs(effect):
        return None
    while low < high:
        middle = (low + high) // 2
        enough = resolvable(sd, middle, tests, free) <= abs(effect)
        low, high = (low, middle) if enough else (middle + 1, high)
    return low


def pooled(arms: Sequence[Sequence[float]]) -> float:
    """The standard deviation between seeds of one arm, pooled over arms: √(Σ(n−1)s² / Σ(n−1)).

    Example:
        >>> round(pooled([[1.0, 3.0], [10.0, 12.0, 14.0]]), 4)
        1.8257
    """
    free = sum(len(a) - 1 for a in arms)
    return math.sqrt(math.fsum((len(a) - 1) * deviation(a) ** 2 for a in arms) / free)


def _beta_share(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Lentz's method).

    The fraction converges fast below (a + 1) / (a + b + 2); above it 1 − I_{1−x}(b, a) is used.
    """
    if x in {0.0, 1.0}:
        return x
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta_share(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    log_front += a * math.log(x) + b * math.log1p(-x)
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, 500):
        for factor in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1 / (1 + factor * d), 1 + factor / c
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return math.exp(log_front) * fraction / a
