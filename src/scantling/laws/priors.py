"""What the laws do not price: prior terms from published ablations, and hard bounds.

Run tables hold one feed-forward ratio and one KV group a size, and no windows, latents or gates,
so no law fitted to them can price those; an unguarded search runs to one KV head and a
feed-forward of eight widths.
A prior term prices an axis as far as ablations reach, a bound stops the search where they end,
and what loss does not see is said in words. All three are data (``data/priors.toml``).

How the terms are used:

(a) Terms add; their half-widths add in quadrature.
(b) Two shapes with one value of an axis share its error: it cancels (``difference_terms``).
(c) Above 1 B a term shrinks where its source says how (r, the parallel block); the half-width of
    every other doubles at ten times the largest body behind it.
(d) A term whose interval contains zero may break a tie and never buys size: its benefit counts as
    zero, and the upper end of its interval is what a cheaper shape must beat.
(e) Bounds outside the measured domain are hard unless opened, and a shape on one says so.
(f) What loss does not see is a warning (``unseen``), not nats.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from scantling.arith import Num, maximum, minimum
from scantling.laws.amounts import Setting, amount_of, phi
from scantling.laws.features import Features, inside, log, square_root
from scantling.sources import read_data


class Prior(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prior term's table in ``data/priors.toml``.

    ``centre`` with ``low`` and ``high`` is the coefficient and its 5 to 95 % interval;
    ``largest`` is the largest body behind it; ``constants`` are the rest of the formula.
    The amount it multiplies is ``feature``, where that is all, times ``scale`` and at most one
    where there is a scale; else the function of its axis in ``amounts``.
    ``priced`` says where the term counts: in every price; only in the difference of two models (a
    switch that changes no shape, or a price at equal body); by the law; or nowhere.
    ``laws`` are the forms that price the axis themselves, ``bounds`` and ``warning`` the keys of
    its bounds and of what loss does not see.
    """

    title: str
    form: str
    reference: float | str
    centre: float
    low: float
    high: float
    largest: float
    grade: Literal["A", "B", "C", "D"]
    sources: tuple[str, ...]
    feature: str = ""
    scale: float | None = None
    bounds: tuple[str, ...] = ()
    warning: str = ""
    priced: Literal["search", "difference", "law", "bound"] = "search"
    laws: tuple[str, ...] = ()
    constants: dict[str, float] = {}

    @property
    def sure(self) -> bool:
        """Whether the interval of the coefficient leaves zero out."""
        return self.low > 0 or self.high < 0

    @property
    def half_width(self) -> float:
        """Half the interval of the coefficient."""
        return (self.high - self.low) / 2


class Bound(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A hard bound on an axis.

    Its key is the name of a property of ``Features``, or ``ffn_width_ratio``, which no law sees;
    ``field`` is what a user would change.

    Example:
        >>> bounds()["kv_group"].holds(4), bounds()["n_kv_head"].holds(1)
        (True, False)
    """

    field: str
    low: float | None = None
    high: float | None = None
    reason: str
    sources: tuple[str, ...]

    def holds(self, value: Num) -> Any:
        """Whether a value is within the bound, elementwise on arrays."""
        return inside(value, self.low, self.high)


class Unseen(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What loss does not see of an axis: where ``feature`` lies inside the range, the text holds.

    ``depth_ratio`` is no feature but the depth of one model over that of another.
    """

    feature: str
    field: str
    text: str
    sources: tuple[str, ...]
    low: float | None = None
    high: float | None = None


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
    return msgspec.convert(read_data("priors.toml")["priors"], dict[str, Prior])


@functools.cache
def bounds() -> dict[str, Bound]:
    """Every hard bound by its axis.

    Example:
        >>> b = bounds()["mlp_attention_ratio"]
        >>> b.low, b.high
        (1.0, 5.0)
    """
    return msgspec.convert(read_data("priors.toml")["bounds"], dict[str, Bound])


@functools.cache
def unseen_texts() -> dict[str, Unseen]:
    """What loss does not see, by name."""
    return msgspec.convert(read_data("priors.toml")["unseen"], dict[str, Unseen])


def unseen(features: Features, reference: Features | None = None) -> dict[str, Unseen]:
    """What the loss of one model does not see, or of one model against another.

    Against a reference only what the two do not share is said, and that the deeper one is better
    than its loss.

    Args:
        features: One model.
        reference: Another one.

    Example:
        >>> f = Features(body=1e9, total=1e9, width=2048, depth=20, tokens=1e11, n_head=32,
        ...              n_kv_head=1)
        >>> list(unseen(f))
        ['benchmarks']
    """
    found = {}
    for name, one in unseen_texts().items():
        value = _seen(one, features, reference)
        applies = value is not None and inside(value, one.low, one.high)
        if reference is not None and one.feature != "depth_ratio":
            applies = applies and value != getattr(reference, one.feature)
        if applies:
            found[name] = one
    return found


def _seen(one: Unseen, features: Features, reference: Features | None) -> Num | None:
    if one.feature != "depth_ratio":
        value: Num | None = getattr(features, one.feature)
        return value
    if reference is None:
        return None
    ratio = features.depth / reference.depth
    return max(ratio, 1 / ratio)


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
    return phi(ratio, c["r_best"], c["b"])


def terms(
    features: Features, loss: Num, reference_ratio: float | None = None, form: str = ""
) -> dict[str, Term]:
    """Each prior term by its axis, unclipped: negative centres are benefits.

    A term is its coefficient times its amount (``amounts``, and ``form`` in the data), and so are
    the ends of its interval. The half-width grows by 1 + log10(N/largest) above the largest body
    behind the term.

    Args:
        features: ``body``, and what the terms need; a term without its features is absent.
        loss: The predicted loss L, nats a token.
        reference_ratio: r of the runs behind the law; without it that of the default law.
        form: The form of the law, whose own axes are left out.

    Example:
        >>> f = Features(body=1e9, total=1e9, width=2048, depth=20, tokens=1e11, n_head=32,
        ...              n_kv_head=4, mlp_parameters=11.5, attention_parameters=1)
        >>> {axis: round(t.centre, 4) for axis, t in terms(f, 2.8).items()}
        {'kv_group': 0.004, 'mlp_attention_ratio': 0.0119}
    """
    setting = Setting(loss, log(features.body), reference_ratio)
    found = {}
    for axis, prior in _priced(form, differences=True):
        amount = amount_of(axis, prior, features, setting)
        if amount is not None:
            found[axis] = _term(prior, amount, _widening(setting.size, prior.largest))
    return found


def prior_terms(
    features: Features, loss: Num, reference_ratio: float | None = None, form: str = ""
) -> Price:
    """What the axes that no law prices are expected to cost, and the upper end, nats a token.

    A term whose interval contains zero may break a tie but never buys size, so its benefit counts
    as zero; one whose interval leaves zero out counts in full:

        centre_i, high_i  clipped at 0 where low_i ≤ 0 ≤ high_i
        expected = Σ centre_i
        upper    = expected + sqrt(Σ (high_i − centre_i)²)

    Terms add and half-widths add in quadrature. ``upper`` is what a cheaper shape must beat before
    it may be called better.
    Switches that change no shape (QK-norm, output gate) and tying, which at equal total is the
    law's own, are no part of it: a search holds them, so they cancel. ``difference_terms`` has
    them.

    Args:
        features: As for ``terms``.
        loss: The predicted loss, nats a token.
        reference_ratio: As for ``terms``.
        form: As for ``terms``.

    Example:
        >>> f = Features(body=1e9, total=1e9, width=2048, depth=20, tokens=1e11, n_head=32,
        ...              n_kv_head=4, mlp_parameters=1.2, attention_parameters=1)
        >>> expected, upper = prior_terms(f, 2.8)  # the low ratio is worth nothing here
        >>> round(expected, 4), round(upper, 4)
        (0.004, 0.007)
    """
    setting = Setting(loss, log(features.body), reference_ratio)
    widening: dict[float, Num] = {}
    expected: Num = 0.0
    squares: Num = 0.0
    for axis, prior in _priced(form, differences=False):
        amount = amount_of(axis, prior, features, setting)
        if amount is None:
            continue
        if prior.largest not in widening:
            widening[prior.largest] = _widening(setting.size, prior.largest)
        centre, high = _credited(prior, amount, widening[prior.largest])
        half = high - centre
        half *= half
        expected = expected + centre
        squares = squares + half
    return Price(expected, expected + square_root(squares))


def difference_terms(
    features: Features, reference: Features, loss: Num, reference_ratio: float | None = None,
    form: str = "",
) -> dict[str, Term]:  # fmt: skip
    """What each axis adds to the loss of one model over another's, with its interval.

    With amounts a and b of an axis, coefficient c in [low, high] and benefits clipped as in
    ``prior_terms``:

        value = clip(c a) − clip(c b),   interval = [low, high] · (a − b), widened

    so an axis of equal value on both sides is exactly zero with no width, whatever its error.
    Both sides are priced at one loss and one body, the geometric mean of theirs, so that the
    difference of a model and itself is zero and turning it round changes its sign.
    The law has the head width; only the error of its table counts, between unlike heads.

    Args:
        features: One model.
        reference: The other.
        loss: Predicted loss, nats a token: the mean of both.
        reference_ratio: As for ``terms``.
        form: As for ``terms``.

    Example:
        >>> shape = {"body": 1e9, "total": 1e9, "width": 2048, "depth": 20, "tokens": 1e11}
        >>> few, many = (Features(**shape, n_head=32, n_kv_head=k) for k in (2, 8))
        >>> {axis: tuple(round(x, 4) for x in t)
        ...  for axis, t in difference_terms(few, many, 2.8).items()}
        {'kv_group': (0.008, -0.006, 0.014)}
        >>> difference_terms(few, few, 2.8)["kv_group"]
        Term(centre=0.0, low=0.0, high=0.0)
    """
    size = (log(features.body) + log(reference.body)) / 2
    setting = Setting(loss, size, reference_ratio)
    found = {}
    for axis, prior in _priced(form, differences=True):
        one = amount_of(axis, prior, features, setting)
        other = amount_of(axis, prior, reference, setting)
        if one is None and other is None:
            continue
        a, b = (0.0 if x is None else x for x in (one, other))
        widening = _widening(size, prior.largest)
        value = _credited(prior, a, widening)[0] - _credited(prior, b, widening)[0]
        _, low, high = _term(prior, a - b, widening)
        found[axis] = Term(value, low, high)
    if features.d_head is not None and reference.d_head is not None:
        half = priors()["d_head"].half_width * (features.d_head != reference.d_head)
        found["d_head"] = Term(0.0 * half, -half, half)
    return found


def total(parts: dict[str, Term]) -> Term:
    """Terms together: values add, half-widths add in quadrature, each side by itself.

    Example:
        >>> total({"one": Term(0.01, 0.0, 0.04), "other": Term(0.01, 0.01, 0.05)})
        Term(centre=0.02, low=0.01, high=0.07)
    """
    value: Num = 0.0
    below: Num = 0.0
    above: Num = 0.0
    for part in parts.values():
        value = value + part.centre
        below = below + (part.centre - part.low) * (part.centre - part.low)
        above = above + (part.high - part.centre) * (part.high - part.centre)
    return Term(value, value - square_root(below), value + square_root(above))


def _priced(form: str, *, differences: bool) -> Iterator[tuple[str, Prior]]:
    """The priors that count for a law of some form."""
    for axis, prior in priors().items():
        where = prior.priced == "search" or (differences and prior.priced == "difference")
        if where and form not in prior.laws:
            yield axis, prior


def _term(prior: Prior, amount: Num, widening: Num) -> Term:
    centre = prior.centre * amount
    above, below = _ends(prior, amount)
    return Term(centre, centre + widening * below, centre + widening * above)


def _credited(prior: Prior, amount: Num, widening: Num) -> tuple[Num, Num]:
    """Centre and upper end with the benefit clipped unless the whole interval is one.

    ``benefit`` is 1 where the widened interval lies below zero; only an interval of the
    coefficient without zero can have such an amount.
    """
    centre = prior.centre * amount
    high = _ends(prior, amount)[0] * widening
    high += centre  # in place on columns: a fresh one costs more than the sum
    if not prior.sure:
        return maximum(centre, 0.0), maximum(high, 0.0)
    benefit = high < 0
    return (
        maximum(centre, 0.0) + minimum(centre, 0.0) * benefit,
        maximum(high, 0.0) + minimum(high, 0.0) * benefit,
    )


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
