"""What the laws do not price: prior terms from published ablations, and hard bounds.

Run tables hold one feed-forward ratio and one KV group a size, so no law fitted to them can price
either; an unguarded search runs to one KV head and a feed-forward of eight widths.
A prior term prices an axis as far as ablations reach, a bound stops the search where they end.
Both are data (``data/laws.toml``) with grade and sources.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from scantling.arith import Num, maximum, minimum
from scantling.laws.features import Features, exp, inside, log, square_root
from scantling.sources import read_data


class Prior(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prior term's table in ``data/laws.toml``.

    ``centre`` with ``low`` and ``high`` is the coefficient and its 5 to 95 % interval;
    ``largest`` is the largest body behind it; ``constants`` are the rest of the formula.
    """

    title: str
    form: str
    reference: float
    centre: float
    low: float
    high: float
    largest: float
    domain: tuple[float, float]
    grade: Literal["A", "B", "C", "D"]
    sources: tuple[str, ...]
    constants: dict[str, float] = {}


class Bound(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A hard bound on an axis.

    Its key is the name of a property of ``Features``, or ``ffn_width_ratio``, which no law sees.

    Example:
        >>> bounds()["kv_group"].holds(4), bounds()["n_kv_head"].holds(1)
        (True, False)
    """

    low: float | None = None
    high: float | None = None
    reason: str
    sources: tuple[str, ...]

    def holds(self, value: Num) -> Any:
        """Whether a value is within the bound, elementwise on arrays."""
        return inside(value, self.low, self.high)


class Term(NamedTuple):
    """One prior term before clipping, in nats a token; negative is a benefit."""

    centre: Num
    low: Num
    high: Num


class Price(NamedTuple):
    """All prior terms together, in nats a token: expected, and what a cheaper shape must beat."""

    expected: Num
    upper: Num


@functools.cache
def priors() -> dict[str, Prior]:
    """Every prior term by its axis."""
    return msgspec.convert(read_data("laws.toml")["priors"], dict[str, Prior])


@functools.cache
def bounds() -> dict[str, Bound]:
    """Every hard bound by its axis.

    Example:
        >>> b = bounds()["mlp_attention_ratio"]
        >>> b.low, b.high
        (1.0, 5.0)
    """
    return msgspec.convert(read_data("laws.toml")["bounds"], dict[str, Bound])


def ratio_penalty(ratio: Num) -> Num:
    """Relative loss of a feed-forward ratio over the best one, taken in full.

    Bian et al. (``bian2025``) multiply the loss of the best shape by b0 + b1 ln r + b2/r.
    Its slope b1/r − b2/r² is zero at r* = b2/b1. With x = r/r*:

        b0 + b1 ln r + b2/r = b0 + b1 ln r* + b1 ln x + b1/x
                            = [b0 + b1 ln r* + b1] + b1 (ln x + 1/x − 1)

    The bracket is the minimum, 1.0005 with the published constants, so the relative penalty is
    b φ(x) with φ(x) = ln x + 1/x − 1 and b = b1 over the bracket, 0.0099 in the 1 B fit.

    Args:
        ratio: Feed-forward over attention parameters r; the fit breaks outside 0.5 to 5.

    Returns:
        The fraction of the loss that it adds: times 2.8 nats, 0.015 at r = 4.2.

    Example:
        >>> round(2.8 * ratio_penalty(4.2), 3), round(ratio_penalty(1.22), 6)
        (0.015, 0.0)
    """
    c = priors()["mlp_attention_ratio"].constants
    x = ratio / c["r_best"]
    phi = log(x) - 1
    phi += 1 / x
    phi *= c["b"]
    return phi


def terms(features: Features, loss: Num, reference_ratio: float | None = None) -> dict[str, Term]:
    """Each prior term by its axis, unclipped: negative centres are benefits.

    ``kv_group``, with g = H/K:        slope · max(0, log2(g/4))
    ``mlp_attention_ratio``, with r:   w · L · [b φ(r/r*) − b φ(r_ref/r*)] · shrink(N)

    shrink(N): the penalty of a wide feed-forward halves for every fivefold body above the 1 B
    fit, unknown above 3 B, so (N/1e9)^−(ln 2/ln 5) between the two and constant outside.
    widen(N): the half-width of either interval doubles at ten times the largest body behind it,
    1 + log10(N/3e9) above 3 B.

    Args:
        features: ``body``, and the heads and parameters the terms need; a term without is absent.
        loss: The predicted loss L, nats a token.
        reference_ratio: r of the runs behind the law; without it that of the default law.

    Example:
        >>> f = Features(body=1e9, total=1e9, width=2048, depth=20, tokens=1e11, n_head=32,
        ...              n_kv_head=4, mlp_parameters=11.5, attention_parameters=1)
        >>> {axis: round(t.centre, 4) for axis, t in terms(f, 2.8).items()}
        {'kv_group': 0.004, 'mlp_attention_ratio': 0.0119}
    """
    size = log(features.body)
    found = {}
    for axis, amount in _amounts(features, loss, size, reference_ratio):
        prior = priors()[axis]
        widen = _widening(size, prior.largest)
        centre = prior.centre * amount
        above, below = _ends(prior, amount)
        found[axis] = Term(centre, centre + widen * below, centre + widen * above)
    return found


def prior_terms(features: Features, loss: Num, reference_ratio: float | None = None) -> Price:
    """What the axes that no law prices are expected to cost, and the upper end, nats a token.

    A term whose interval contains zero may break a tie but never buys size, so a benefit counts
    as zero:

        expected = Σ max(0, centre_i)
        upper    = expected + sqrt(Σ (max(0, high_i) − max(0, centre_i))²)

    Terms add and half-widths add in quadrature. ``upper`` is what a cheaper shape must beat before
    it may be called better.

    Args:
        features: As for ``terms``.
        loss: The predicted loss, nats a token.
        reference_ratio: As for ``terms``.

    Example:
        >>> f = Features(body=1e9, total=1e9, width=2048, depth=20, tokens=1e11, n_head=32,
        ...              n_kv_head=4, mlp_parameters=1.2, attention_parameters=1)
        >>> expected, upper = prior_terms(f, 2.8)  # the low ratio is worth nothing here
        >>> round(expected, 4), round(upper, 4)
        (0.004, 0.007)
    """
    size = log(features.body)
    widening = {at: _widening(size, at) for at in {p.largest for p in priors().values()}}
    expected: Num = 0.0
    squares: Num = 0.0
    for axis, amount in _amounts(features, loss, size, reference_ratio):
        prior = priors()[axis]
        raw = prior.centre * amount
        centre = maximum(raw, 0.0)
        half = _ends(prior, amount)[0] * widening[prior.largest]
        half += raw  # in place on columns: a fresh one costs more than the sum
        half = maximum(half, 0.0)
        half -= centre
        half *= half
        expected += centre
        squares += half
    return Price(expected, expected + square_root(squares))


def _amounts(
    features: Features, loss: Num, size: Num, reference_ratio: float | None
) -> Iterator[tuple[str, Num]]:
    """What multiplies the coefficient of each prior: octaves of group, nats of ratio."""
    group, ratio = features.kv_group, features.mlp_attention_ratio
    if group is not None:
        prior = priors()["kv_group"]
        octaves = log(group / prior.reference)
        octaves /= math.log(2)
        yield "kv_group", maximum(octaves, 0.0)
    if ratio is not None:
        prior = priors()["mlp_attention_ratio"]
        c = prior.constants
        base = prior.reference if reference_ratio is None else reference_ratio
        start, end = math.log(c["shrink_from"]), math.log(c["shrink_to"])
        shrink = minimum(maximum(size, start), end)
        shrink -= start
        shrink *= -math.log(2) / math.log(c["shrink_halves"])
        amount = ratio_penalty(ratio) - ratio_penalty(base)
        yield "mlp_attention_ratio", amount * loss * exp(shrink)


def _widening(size: Num, largest: float) -> Num:
    """By how much a half-width grows beyond the largest body: 1 + log10(N/largest)."""
    decades = size - math.log(largest)
    decades /= math.log(10)
    widening: Num = maximum(decades, 0.0) + 1.0
    return widening


def _ends(prior: Prior, amount: Num) -> tuple[Num, Num]:
    """The ends of the term's interval as distances from its centre, above and below.

    A negative amount turns the interval of the coefficient over.
    """
    one, other = (prior.high - prior.centre) * amount, (prior.low - prior.centre) * amount
    return maximum(one, other), minimum(one, other)
