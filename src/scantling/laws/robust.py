"""Robust least squares on the logarithm of the loss, with a prior on the constants."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from scantling.errors import FieldError, ScantlingError, UnknownNameError
from scantling.laws import shape as _shape  # noqa: F401 - importing a form registers it
from scantling.laws.registry import FORMS
from scantling.laws.runs import Runs, has
from scantling.sources import read_data

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]

HUBER = 2e-3
"""Errors of the log loss beyond this count linearly: 0.2 %, or 0.006 nats of 2.8."""

SCATTER = 2e-3
"""How far shapes lie off any law, relative: what a prior is weighed against, shape by shape."""


class Constant(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of a constant before a fit; all of its logarithm where ``log`` is true.

    ``nats`` marks a part of the loss, which is as much larger as the losses of the recipe are.
    """

    centre: float
    spread: float
    low: float
    high: float
    log: bool = False
    nats: bool = False

    def scaled(self, factor: float) -> tuple[float, ...]:
        """Centre, spread and ends for a recipe whose losses are ``factor`` times the prior's."""
        if not self.nats:
            return self.centre, self.spread, self.low, self.high
        if self.log:
            more = math.log(factor)
            return self.centre + more, self.spread, self.low + more, self.high + more
        return tuple(factor * x for x in (self.centre, self.spread, self.low, self.high))


class FormFacts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A form that can be fitted, a table of ``data/law_forms.toml``."""

    title: str
    counts: Literal["body", "total"]
    fixed: dict[str, float]
    sources: tuple[str, ...]
    needs: tuple[str, ...]
    constants: dict[str, Constant]

    @property
    def names(self) -> tuple[str, ...]:
        """The fitted constants in the order of a vector."""
        return tuple(self.constants)

    def values(self, vector: Vector) -> dict[str, float]:
        """A vector of the fit as constants of the law, with the fixed ones."""
        pairs = zip(self.constants.items(), vector, strict=True)
        found = {name: float(math.exp(x) if c.log else x) for (name, c), x in pairs}
        return found | self.fixed


class Prior(NamedTuple):
    """What is known of the constants of a form before a fit, each a vector of the fit."""

    centre: Vector
    spread: Vector
    low: Vector
    high: Vector


class Solution(NamedTuple):
    """Constants as a vector of the fit, and the cost there."""

    vector: Vector
    cost: float


def constants_of(runs: Runs, name: str, vector: Vector) -> dict[str, float]:
    """The constants of a law fitted to these runs: those of the fit, and the sizes it saw."""
    found = fit_form(name).values(vector)
    if "nu" in found:
        body = runs.features.body + found["share"] * found["V0"] * runs.features.width
        n: Any = body / found["N0"]
        found |= {"n_low": float(n.min()), "n_high": float(n.max())}
    return found


@functools.cache
def fit_forms() -> dict[str, FormFacts]:
    """Every form that can be fitted, by its name.

    Example:
        >>> sorted(fit_forms())
        ['aspect', 'body-tokens', 'over-training', 'shape', 'size-tokens', 'width-depth']
    """
    return msgspec.convert(read_data("law_forms.toml"), dict[str, FormFacts])


def fit_form(name: str) -> FormFacts:
    """One form that can be fitted.

    Raises:
        UnknownNameError: If there is none of that name.
    """
    if name not in fit_forms():
        raise UnknownNameError("form", name, fit_forms())
    return fit_forms()[name]


def refuse(runs: Runs, name: str) -> None:
    """Refuse a table that cannot determine a form.

    Raises:
        FieldError: If the runs lack a feature the form needs, are fewer than its constants, or
            are all of one size or of one number of tokens.
    """
    facts = fit_form(name)
    for feature in facts.needs:
        if not has(getattr(runs.features, feature)):
            raise FieldError("runs", feature, f"is missing in some runs, and form {name} needs it")
    if len(runs) < len(facts.constants):
        lost = "".join(f"; {told}" for told in runs.warnings if "left out" in told)
        raise FieldError(
            "runs", len(runs),
            f"are fewer than the {len(facts.constants)} constants of {name}{lost}",
            "add runs, take a --form of fewer constants (over-training has 4), or a published law "
            "and one offset (--calibrate)",
        )  # fmt: skip
    for what, values in (("size", runs.size), ("number of tokens", runs.features.tokens)):
        if values.max() < 1.05 * values.min():  # type: ignore[union-attr]
            raise FieldError("runs", len(runs), f"are all of one {what}: no law can be fitted")


def prior_of(runs: Runs, name: str) -> Prior:
    """The prior of a form for the recipe of these runs.

    Tokenizer and data move the losses of one model from 2.3 to 3 nats a token, and the parts of
    the loss with them: the floor is 0.46 to 0.53 of the loss at N0 and D0 in five tables whose
    floors lie from 1.17 to 1.57. So the parts are known relative to the whole, which is the median
    of measured over expected loss.
    """
    import numpy as np

    facts = fit_form(name)
    expected = FORMS[name](runs.features, facts.values(_centre(facts)))
    factor = float(np.median(runs.loss / expected))
    return Prior(*np.array([c.scaled(factor) for c in facts.constants.values()]).T)


def _centre(facts: FormFacts) -> Vector:
    import numpy as np

    return np.array([c.centre for c in facts.constants.values()])


def solve(
    runs: Runs, name: str, *, start: Vector | None = None, starts: int = 8, seed: int = 0,
    weights: Vector | None = None, prior: Prior | None = None,
) -> Solution:  # fmt: skip
    """The most probable constants of a form for a table of runs.

    Minimised over the constants p, for runs i of weight w and constants j:

        Σ_i w_i huber(ln L(p, i) − ln loss_i) + Σ_j ((p_j − centre_j)/spread_j)² · SCATTER² · m

    with m the runs a shape. Checkpoints of one model share its error, so a shape counts once
    against the prior however many checkpoints it has.

    Args:
        runs: The runs.
        name: The form.
        start: Where to begin; else ``starts`` draws from the prior, and the best end counts.
        starts: How many.
        seed: Of the draws.
        weights: Of each run; one where absent.
        prior: Of the constants; ``prior_of`` the runs where absent.

    Raises:
        ScantlingError: If SciPy is not installed (extra ``fit``), or no start ends well.
    """
    import numpy as np

    least_squares = _least_squares()
    facts, law = fit_form(name), FORMS[name]
    middle, spread, low, high = prior_of(runs, name) if prior is None else prior
    target, n = np.log(runs.loss), len(runs)
    pull = SCATTER * math.sqrt(n / len(np.unique(runs.shapes))) / spread

    def residuals(vector: Vector) -> Vector:
        predicted = np.asarray(law(runs.features, facts.values(vector)))
        return np.concatenate([np.log(np.maximum(predicted, 1e-9)) - target,
                               pull * (vector - middle)])  # fmt: skip

    draw = np.random.default_rng(seed)
    begins = [start] if start is not None else [
        middle, *(middle + spread * draw.normal(size=len(middle)) for _ in range(starts - 1))
    ]  # fmt: skip
    best: Solution | None = None
    for begin in begins:
        inside = np.clip(begin, low + 1e-6, high - 1e-6)
        found = least_squares(
            residuals, inside, bounds=(low, high), loss=_huber(n, weights), f_scale=HUBER,
            max_nfev=200, x_scale=np.minimum(spread, 1.0), xtol=1e-7, ftol=1e-9,
        )  # fmt: skip
        if np.isfinite(found.cost) and (best is None or found.cost < best.cost):
            best = Solution(found.x, float(found.cost))
    if best is None:
        raise ScantlingError(f"form {name} could not be fitted: no start ended at a finite error")
    return best


def _huber(n: int, weights: Vector | None) -> Any:
    """Huber's loss for the first n residuals, weighed, and squares for the prior behind them."""
    import numpy as np

    def rho(z: Vector) -> Vector:
        found = np.stack([z, np.ones_like(z), np.zeros_like(z)])
        data = z[:n]
        far = data > 1
        root = np.sqrt(np.where(far, data, 1.0))
        found[0, :n] = np.where(far, 2 * root - 1, data)
        found[1, :n] = 1 / root
        found[2, :n] = np.where(far, -0.5 / root**3, 0.0)
        if weights is not None:
            found[:, :n] *= weights
        return found

    return rho


def _least_squares() -> Any:
    try:
        from scipy.optimize import least_squares
    except ImportError as error:
        raise ScantlingError("laws fit needs SciPy: pip install 'scantling[fit]'") from error
    return least_squares
