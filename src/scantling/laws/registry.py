"""A law: what it says, of which recipe, how far, and how wrong it was.

A law is one function in its own file and one table of facts in ``data/laws.toml``.
The decorator ``register`` joins the two in ``LAWS``; other packages add theirs through the
entry-point group ``scantling.laws``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from scantling.arith import Num, maximum
from scantling.errors import FieldError, UnknownNameError
from scantling.laws.features import Features, beyond, log, square_root
from scantling.quantity import Quantity
from scantling.sources import read_data

Form: TypeAlias = Callable[[Features, Mapping[str, float]], Num]
"""Features and constants to loss, in nats a token."""


class Errors(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How wrong a law was where it could be checked, and the rules its intervals follow.

    All in nats a token. The rules, with n the factor by which the size lies beyond the fitted
    range and t the same for tokens:

    - half-width of an absolute loss (90 %) =
      ``interval_base`` (1 + ``interval_growth`` log2 n + ``interval_tokens_growth`` log2 t);
    - half-width of a difference = ``difference_base`` (1 + ``difference_growth`` log2 (n a)),
      with a the factor by which W/L lies beyond ``difference_aspect``;
    - with draws, √(that² + (``scatter_factor`` · their standard deviation)²).
    """

    text: str
    in_sample: float
    held_out: float
    other_recipe: float
    interval_base: float
    interval_growth: float
    interval_tokens_growth: float
    difference_base: float
    difference_growth: float
    difference_aspect: tuple[float, float]
    difference_text: str
    scatter_factor: float = 1.645


class Facts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A law's table in ``data/laws.toml``, or the whole of a law file.

    ``function`` is the key of its form in ``FORMS``, where that is not the law's own name;
    ``draws`` are constants refitted to resampled runs, whose scatter widens every interval.
    """

    title: str
    form: str
    counts: Literal["body", "total"]
    recipe: str
    source: str
    reference_ratio: float
    constants: dict[str, float]
    domain: dict[str, tuple[float, float]]
    errors: Errors
    function: str = ""
    draws: tuple[dict[str, float], ...] = ()


class Difference(NamedTuple):
    """A difference of loss between two shapes, its interval, and where it leaves the domain.

    ``outside`` has one entry an axis of the domain: true, or a mask, where either shape is out.
    """

    value: Num
    low: Num
    high: Num
    outside: dict[str, Any]


class Law(Struct, frozen=True, kw_only=True):
    """Loss from plain features, valid for one recipe and inside one domain.

    A difference between two shapes carries over to other recipes; an absolute loss does not, so
    it is never shown without ``recipe``.

    Args:
        name: Its key in ``LAWS``.
        function: Features and constants to loss.
        facts: Everything that is data: title, form, what N counts, recipe, domain, errors.
    """

    name: str
    function: Form
    facts: Facts

    @property
    def title(self) -> str:
        """One line that names the law."""
        return self.facts.title

    @property
    def form(self) -> str:
        """The formula as text."""
        return self.facts.form

    @property
    def form_name(self) -> str:
        """The key of its form in ``FORMS``."""
        return self.facts.function or self.name

    @property
    def counts(self) -> Literal["body", "total"]:
        """What its N counts: the body, or all parameters."""
        return self.facts.counts

    @property
    def recipe(self) -> str:
        """Data, tokenizer and schedule of the runs behind it."""
        return self.facts.recipe

    @property
    def source(self) -> str:
        """The key of its source."""
        return self.facts.source

    @property
    def domain(self) -> dict[str, tuple[float, float]]:
        """The fitted range of each feature."""
        return self.facts.domain

    @property
    def errors(self) -> Errors:
        """Its measured errors and the rules of its intervals."""
        return self.facts.errors

    @property
    def reference_ratio(self) -> float:
        """Feed-forward over attention parameters of the runs behind it."""
        return self.facts.reference_ratio

    def loss(self, features: Features) -> Num:
        """The loss of the recipe, in nats a token.

        Example:
            >>> f = Features(body=1.699e9, total=1.9e9, width=2048, depth=27, tokens=1e11)
            >>> round(law("aspect").loss(f), 3)
            2.53
        """
        offset = self.facts.constants.get("offset", 0.0)
        return self.function(features, self.facts.constants) + offset

    def size(self, features: Features) -> Num:
        """The N of this law: body or total."""
        return features.body if self.counts == "body" else features.total

    def extrapolation(self, features: Features) -> Num:
        """How many times N lies beyond the largest fitted N; 1 inside.

        Example:
            >>> f = Features(body=7.08e9, total=8e9, width=4096, depth=32, tokens=1e12)
            >>> law("aspect").extrapolation(f)
            4.0
        """
        return maximum(self.size(features) / self.domain[self.counts][1], 1.0)  # type: ignore[no-any-return]

    def outside(self, features: Features) -> dict[str, Any]:
        """For each axis of the domain whether the features leave it: true, or a mask.

        A value that a table does not know, NaN, leaves nothing.

        Example:
            >>> f = Features(body=1e9, total=1.2e9, width=4096, depth=8, tokens=1e11, d_head=128)
            >>> [axis for axis, out in law("aspect").outside(f).items() if out]
            ['aspect']
        """
        values = {axis: getattr(features, axis) for axis in self.domain}
        return {
            axis: _leaves(value, *self.domain[axis])
            for axis, value in values.items()
            if value is not None
        }

    def interval(self, features: Features) -> Num:
        """Half-width of the absolute loss at 90 %, for the law's own recipe.

        It grows with the distance from the fitted sizes and tokens, by the rule in ``Errors``.
        """
        e = self.errors
        sizes = _log2(beyond(self.size(features), *self.domain[self.counts]))
        tokens = _log2(beyond(features.tokens, *self.domain["tokens"]))
        growth = e.interval_growth * sizes + e.interval_tokens_growth * tokens
        return self._widened(e.interval_base * (1 + growth), self.scatter(features))

    def scatter(self, features: Features, reference: Features | None = None) -> Num:
        """How far the draws lie from the law: root mean square, of a loss or of a difference.

        Zero for a law that carries no draws. What the draws share cancels in a difference.
        """
        draws = self.facts.draws
        if not draws:
            return 0.0

        def said(constants: Mapping[str, float]) -> Num:
            value = self.function(features, constants)
            return value if reference is None else value - self.function(reference, constants)

        centre = said(self.facts.constants)
        off = [said(one) - centre for one in draws]
        return square_root(sum(one * one for one in off) / len(off))

    def _widened(self, half: Num, scatter: Num) -> Num:
        if not self.facts.draws:
            return half
        wide = self.errors.scatter_factor * scatter
        return square_root(half * half + wide * wide)

    def difference(self, features: Features, reference: Features) -> Difference:
        """Loss of one shape minus the loss of a reference at equal tokens, in nats a token.

        What two shapes share (the recipe's offset, the irreducible loss, most of the error of the
        size and token terms) cancels, so the interval is much narrower than that of either loss.

        Example:
            >>> tall = Features(body=1.699e9, total=1.9e9, width=2048, depth=27, tokens=1e11)
            >>> wide = Features(body=1.699e9, total=2.0e9, width=3072, depth=12, tokens=1e11)
            >>> d = law("aspect").difference(wide, tall)
            >>> f"{d.value:+.3f} {d.low:+.3f} {d.high:+.3f}"
            '+0.024 +0.008 +0.040'
        """
        e = self.errors
        value = self.loss(features) - self.loss(reference)
        far = maximum(self._distance(features), self._distance(reference))
        half = e.difference_base * (1 + e.difference_growth * _log2(far))
        half = self._widened(half, self.scatter(features, reference))
        first, second = self.outside(features), self.outside(reference)
        outside = {
            axis: first.get(axis, False) | second.get(axis, False)
            for axis in self.domain
            if axis in first or axis in second
        }
        return Difference(value, value - half, value + half, outside)

    def quantity(self, features: Features) -> Quantity:
        """The loss of one model as a person reads it, labelled with its recipe.

        Example:
            >>> f = Features(body=7.08e9, total=8e9, width=4096, depth=32, tokens=5e10)
            >>> law("aspect").quantity(f).why[-1]
            'extrapolated ×4 beyond the largest fitted body size'
        """
        value, half = self.loss(features), self.interval(features)
        elsewhere = f"another recipe moves every loss, by up to ±{self.errors.other_recipe:g}"
        why = (
            f"law {self.name}: {self.form}",
            f"recipe: {self.recipe}; {elsewhere}",
            *self._warnings(self.outside(features)),
            *self._label(features),
        )
        return _quantity(value, value - half, value + half, why)

    def difference_quantity(self, features: Features, reference: Features) -> Quantity:
        """The difference between two models as a person reads it."""
        d = self.difference(features, reference)
        larger = max(features, reference, key=self.size)
        why = (
            f"law {self.name}: {self.form}",
            f"what both shapes share cancels; {self.errors.difference_text}",
            *self._warnings(d.outside),
            *self._label(larger),
        )
        return _quantity(d.value, d.low, d.high, why)

    def _distance(self, features: Features) -> Num:
        """How far beyond the fitted sizes and aspect ratios, as one factor."""
        size = beyond(self.size(features), *self.domain[self.counts])
        return size * beyond(features.aspect, *self.errors.difference_aspect)

    def _warnings(self, outside: Mapping[str, Any]) -> list[str]:
        axes = [axis for axis, out in outside.items() if out and axis != self.counts]
        ranges = {axis: " to ".join(f"{end:g}" for end in self.domain[axis]) for axis in axes}
        return [f"{axis} outside the fitted {ranges[axis]}" for axis in axes]

    def _label(self, features: Features) -> list[str]:
        times = self.extrapolation(features)
        if times > 1:
            return [f"extrapolated ×{times:.3g} beyond the largest fitted {self.counts} size"]
        if self.size(features) < self.domain[self.counts][0]:
            return [f"below the smallest fitted {self.counts} size"]
        return []


LAWS: dict[str, Law] = {}
"""Every law by its name."""

FITTED_HERE = ("shape", "shape-constant")
"""Laws written by ``benchmarks/fit_laws.py``, each a law file of the package's data."""

FORMS: dict[str, Form] = {}
"""Every form by its name: what a law file may be of, and what ``laws fit`` can fit."""

ENTRY_POINTS = "scantling.laws"


def register(name: str, facts: Facts | None = None) -> Callable[[Form], Form]:
    """Decorates the function of a law and enters the law in ``LAWS``.

    Args:
        name: The name, and the key of its table in ``data/laws.toml``.
        facts: Its facts, for a law that lives in another package.

    Raises:
        FieldError: If a law of that name exists.
    """

    def enter(function: Form) -> Form:
        if name in LAWS:
            raise FieldError("law", name, "is registered already", "choose another name")
        LAWS[name] = Law(name=name, function=function, facts=facts or packaged_facts(name))
        FORMS.setdefault(name, function)
        return function

    return enter


def form(name: str) -> Callable[[Form], Form]:
    """Decorates a function that laws of several tables of constants share."""

    def enter(function: Form) -> Form:
        FORMS[name] = function
        return function

    return enter


def packaged_facts(name: str) -> Facts:
    """The facts of a law of this package."""
    return msgspec.convert(_tables()[name], Facts)


@functools.cache
def _tables() -> dict[str, Any]:
    """The published laws of ``laws.toml`` and those fitted here, one file each."""
    tables: dict[str, Any] = read_data("laws.toml")["laws"]
    return tables | {name: read_data(f"law_{name}.toml") for name in FITTED_HERE}


def law(name: str) -> Law:
    """One law by its name, or from a law file (a path that ends in ``.toml``).

    Raises:
        UnknownNameError: If no law has that name, here or among the entry points.
        FieldError: If the file is no law file.

    Example:
        >>> law("aspect").counts
        'body'
    """
    if name.endswith(".toml"):
        from scantling.laws.files import read_law

        return read_law(name)
    if name not in LAWS:
        from importlib import metadata  # 20 ms, and only a third party's law needs it

        for entry in metadata.entry_points(group=ENTRY_POINTS, name=name):
            entry.load()
    if name not in LAWS:
        raise UnknownNameError("law", name, LAWS)
    return LAWS[name]


def _leaves(value: Num, low: float, high: float) -> Any:
    return (value < low) | (value > high)


def _log2(value: Num) -> Num:
    return log(value) / math.log(2)


def _quantity(value: Num, low: Num, high: Num, why: tuple[str, ...]) -> Quantity:
    return Quantity(
        value=float(value),
        low=float(low),
        high=float(high),
        unit="nats/token",
        kind="fitted",
        why=why,
    )
