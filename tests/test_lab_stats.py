"""Intervals and tests of a handful of seeds equal those of scipy, and published examples."""

import itertools
import math
import random

import pytest

from scantling.errors import FieldError
from scantling.lab import stats

scipy_stats = pytest.importorskip("scipy.stats")


def _arms(seed, sizes=(3, 5), spread=(0.02, 0.3)):
    draw = random.Random(seed)
    return [[draw.gauss(2, s) for _ in range(n)] for n, s in zip(sizes, spread, strict=True)]


@pytest.mark.parametrize("df", [1, 2, 2.7, 4, 9.31, 30, 1e5])
@pytest.mark.parametrize("share", [1e-4, 0.025, 0.3, 0.5, 0.8, 0.975, 0.99999])
def test_students_t_is_that_of_scipy(share, df):
    found = stats.t_quantile(share, df)

    assert found == pytest.approx(scipy_stats.t.ppf(share, df), rel=1e-7, abs=1e-9)
    assert stats.t_share(found, df) == pytest.approx(share, rel=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_the_interval_of_a_mean_is_that_of_scipy(seed):
    for arm in _arms(seed):
        found = stats.mean_interval(arm)
        low, high = scipy_stats.t.interval(0.95, len(arm) - 1, found.value, scipy_stats.sem(arm))

        assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_welchs_test_is_that_of_scipy(seed):
    a, b = _arms(seed)
    found, oracle = stats.welch(a, b), scipy_stats.ttest_ind(a, b, equal_var=False)
    interval = oracle.confidence_interval(0.95)

    assert found.p == pytest.approx(oracle.pvalue, rel=1e-8)
    assert found.half_width == pytest.approx((interval.high - interval.low) / 2, rel=1e-8)


def test_arms_without_spread_are_equal_or_surely_not():
    assert stats.welch([1.0, 1.0, 1.0], [1.0, 1.0, 1.0]).p == 1
    assert stats.welch([1.0, 1.0, 1.0], [2.0, 2.0, 2.0]).p == 0


def test_holms_adjustment_is_the_published_example():
    """Holm's step-down, worked by hand: 4 × 0.005, 3 × 0.01, 2 × 0.03, then held at 0.06."""
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.9, 0.8]) == [1, 1]
    assert stats.holm([]) == []


@pytest.mark.parametrize(("solved", "n"), [(0, 3), (1, 3), (3, 3), (7, 10), (10, 10)])
def test_a_share_has_the_interval_of_wilson(solved, n):
    found = stats.wilson(solved, n)
    oracle = scipy_stats.binomtest(solved, n).proportion_ci(0.95, method="wilson")

    assert (found.low, found.high) == pytest.approx((oracle.low, oracle.high), abs=1e-9)


def test_two_shares_are_tested_as_fisher_does():
    for a, b in itertools.product(range(6), repeat=2):
        oracle = scipy_stats.fisher_exact([[a, 5 - a], [b, 5 - b]]).pvalue

        assert stats.shares(a, 5, b, 5).p == pytest.approx(oracle, rel=1e-9)


def test_the_difference_of_two_shares_has_newcombes_interval():
    """Newcombe 1998, table II, case (a) 56/70 and 48/80: 0.2 with 0.0524 to 0.3339."""
    found = stats.shares(56, 70, 48, 80)

    assert found.difference - found.half_width == pytest.approx(0.0524, abs=1e-4)


@pytest.mark.parametrize("n", [3, 5])
def test_a_design_sees_what_it_says_it_can_resolve_four_times_of_five(n):
    draw, sd = random.Random(5), 0.02
    effect = stats.resolvable(sd, n)
    seen = 0
    for _ in range(1500):
        a = [draw.gauss(0, sd) for _ in range(n)]
        b = [draw.gauss(effect, sd) for _ in range(n)]
        seen += stats.welch(a, b).p < 0.05

    assert 0.77 < seen / 1500 < 0.86


@pytest.mark.parametrize(("tests", "effect"), [(1, 1.0), (3, 1.5), (7, 2.0), (7, 3.0)])
def test_the_seeds_that_pairs_need_see_the_difference_four_times_of_five(tests, effect):
    draw = random.Random(6)
    n = stats.seeds_needed(1 / math.sqrt(2), effect, tests, free=stats.PAIRED)
    seen = 0
    for _ in range(1500):
        apart = [draw.gauss(effect, 1) for _ in range(n)]
        seen += tests * stats.paired(apart, [0.0] * n).p < 0.05

    assert seen / 1500 > 0.75


def test_for_many_seeds_the_effect_is_the_rule_of_two_point_eight():
    assert stats.resolvable(0.02, 400) == pytest.approx(2.8 * 0.02 * math.sqrt(2 / 400), rel=0.01)


def test_the_seeds_needed_are_the_fewest_that_resolve():
    for effect, tests in itertools.product((0.01, 0.03, 0.2), (1, 6)):
        n = stats.seeds_needed(0.02, effect, tests)

        assert stats.resolvable(0.02, n, tests) <= effect
        assert n == 2 or stats.resolvable(0.02, n - 1, tests) > effect
    assert stats.seeds_needed(0.02, 0.0) is None
    assert stats.seeds_needed(1.0, 1e-6) is None


def test_one_seed_has_no_interval():
    with pytest.raises(FieldError, match="seeds 1 give no interval; at least 2"):
        stats.mean_interval([2.0])
