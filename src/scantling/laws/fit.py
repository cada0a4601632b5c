"""A law fitted to a table of runs, with intervals, and what it misses on runs held out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from scantling.laws.evaluate import pairs_of_equal_size
from scantling.laws.registry import FORMS, Errors, Facts, Law
from scantling.laws.robust import FormFacts, constants_of, fit_form, prior_of, refuse, solve
from scantling.laws.runs import Runs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]

KEPT = 40
"""Draws that a law carries: enough for a standard deviation to 11 %, few enough to read."""

FOLDS = 40
"""Shapes are left out one by one up to this many, then in as many equal parts."""

FOLD_DRAWS = 12
"""Refits of each fold: its scatter is known to 20 %, and over the folds to much less."""

GROWTH = 0.25
"""What the part of an interval that no refit sees grows by for each doubling beyond the runs."""

LEAST = 1.3
"""The least factor on the scatter of refits: an 80 % range, where a few folds were lucky."""

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True)
class HeldOut:
    """Errors of predictions for runs that the fit did not see, nats a token."""

    groups: int
    rows: int
    mae: float
    bias: float
    worst: float
    """The largest mean absolute error of one group."""
    coverage: float
    """The share of runs inside the 90 % interval of that fit."""


@dataclass(frozen=True)
class Fit:
    """A fitted law and how it did.

    ``intervals`` are the 5 to 95 % range of each constant over the resampled fits; ``holdout`` has
    ``by_shape`` and, where there are sizes enough, ``by_size`` and ``largest_size``.
    """

    form: str
    law: Law
    rows: int
    intervals: dict[str, tuple[float, float]]
    mae: float
    holdout: dict[str, HeldOut]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The fit as ``laws fit --json`` prints it."""
        return {
            "form": self.form, "rows": self.rows,
            "constants": {k: self.law.facts.constants[k] for k in self.intervals},
            "intervals": {k: list(v) for k, v in self.intervals.items()},
            "mae": self.mae, "holdout": {k: vars(v) for k, v in self.holdout.items()},
            "warnings": list(self.warnings),
        }  # fmt: skip


def fit_runs(
    runs: Runs, name: str = "shape", *, bootstraps: int = 200, seed: int = 0,
    title: str = "", recipe: str = "", source: str = "own-runs",
    progress: Progress | None = None,
) -> Fit:  # fmt: skip
    """Fit a form to runs.

    1. The most probable constants (``robust.solve``) from many starts.
    2. ``bootstraps`` refits. Each draws weights of the shapes from an exponential distribution
       (the Bayesian bootstrap) and the centre of the prior from the prior, so that the scatter
       holds what the runs leave open and what the prior does not know.
    3. Each shape, each size, and all larger than the rest of the sizes, are held out in turn,
       with refits of their own, so that each run held out has an error e and a scatter s.
       The scatter grows with the distance from what was fitted, as the error does.
    4. The half-width of a 90 % interval is k √(τ² + s²): τ is how far runs lie off the best fit,
       and k the factor that makes nine of ten errors of shapes and sizes held out lie inside, and
       85 % of either.
       Beyond the runs τ grows by a quarter for each doubling, and s by itself.

    Args:
        runs: The runs, of one recipe.
        name: The form, a key of ``robust.fit_forms``.
        bootstraps: Refits; at least 20.
        seed: Of every draw.
        title: Of the law; that of the form where empty.
        recipe: What the runs have in common, shown with every loss.
        source: The key of a source.
        progress: Called as the work goes on.

    Raises:
        FieldError: If the runs cannot determine the form.
    """
    import numpy as np

    refuse(runs, name)
    facts, tell = fit_form(name), progress or (lambda *_: None)
    warnings = list(runs.warnings) + _thin(runs, facts)
    tell("fitting", 0, 1)
    best = solve(runs, name, seed=seed)
    draws = _draws(runs, name, best.vector, max(bootstraps, 20), seed, tell)
    edges = np.percentile(draws, (5, 95), axis=0)
    kept = draws[np.linspace(0, len(draws) - 1, min(KEPT, len(draws))).astype(int)]
    constants = constants_of(runs, name, best.vector)
    errors = _said(name, runs, constants) - runs.loss

    folds = {
        situation: _left_out(runs, name, best.vector, masks, seed, tell, situation)
        for situation, masks in _situations(runs).items()
    }
    noise = max(float(1.4826 * np.median(np.abs(errors))), 1e-3)
    factor = _factor([f for key, f in folds.items() if key != "largest_size"], noise)
    holdout = {situation: _held_out(fold, noise, factor) for situation, fold in folds.items()}
    law = Law(
        name="fitted", function=FORMS[name],
        facts=Facts(
            title=title or facts.title, form=name, counts=facts.counts, function=name,
            recipe=recipe or "the recipe of the runs", source=source, reference_ratio=4.0,
            constants=constants, domain=_domain(runs, facts),
            errors=_errors(runs, errors, folds["by_shape"], holdout, noise, factor),
            draws=tuple(facts.values(x) for x in kept),
        ),
    )  # fmt: skip
    low, high = (facts.values(ends) for ends in edges)
    intervals = {k: (low[k], high[k]) for k in facts.names}
    return Fit(name, law, len(runs), intervals, float(np.mean(np.abs(errors))), holdout,
               tuple(warnings))  # fmt: skip


def _draws(
    runs: Runs, name: str, start: Vector, n: int, seed: int, tell: Progress
) -> NDArray[np.float64]:
    import numpy as np

    prior = prior_of(runs, name)
    draw, shapes = np.random.default_rng(seed + 1), runs.shapes
    found = []
    for i in range(n):
        tell("resampling", i, n)
        weights = draw.exponential(size=shapes.max() + 1)[shapes]
        moved = prior.centre + prior.spread * draw.normal(size=len(prior.centre))
        known = prior._replace(centre=moved)
        found.append(solve(runs, name, start=start, weights=weights, prior=known).vector)
    tell("resampling", n, n)
    return np.array(found)


class _Folds(NamedTuple):
    """Runs held out in turn: which, of which fold, their errors, and the scatter of refits."""

    rows: NDArray[np.int64]
    groups: NDArray[np.int64]
    errors: Vector
    scatter: Vector


def _situations(runs: Runs) -> dict[str, list[NDArray[np.bool_]]]:
    """What is held out: each shape, each size, and the sizes above the widest gap between them.

    The last keeps two sizes at least where there are three.
    """
    import numpy as np

    def each(groups: NDArray[np.int64]) -> list[NDArray[np.bool_]]:
        return [groups == i for i in np.unique(groups)]

    found = {"by_shape": each(_parts(runs.shapes))}
    sizes, logs = runs.sizes, np.log(runs.size)
    if sizes.max() > 1:
        found["by_size"] = each(sizes)
        ends = [logs[sizes == i] for i in range(sizes.max() + 1)]
        gaps = [ends[i + 1].min() - ends[i].max() for i in range(len(ends) - 1)]
        cut = max(range(1, len(gaps)), key=lambda i: gaps[i])
        found["largest_size"] = [sizes > cut]
    return found


def _left_out(
    runs: Runs, name: str, start: Vector, masks: list[NDArray[np.bool_]], seed: int,
    tell: Progress, situation: str,
) -> _Folds:  # fmt: skip
    import numpy as np

    what, parts = f"leaving out {situation.replace('_', ' ')}", []
    for i, out in enumerate(masks):
        tell(what, i, len(masks))
        kept, held = runs.take(~out), runs.take(out)
        vector = solve(kept, name, start=start).vector
        draws = _draws(kept, name, vector, FOLD_DRAWS, seed, lambda *_: None)
        said = _said(name, held, constants_of(kept, name, vector))
        others = np.array([_said(name, held, fit_form(name).values(x)) for x in draws])
        scatter = np.sqrt(np.mean((others - said) ** 2, axis=0))
        groups = held.shapes if len(masks) == 1 else np.full(len(held), i)
        parts.append(_Folds(np.flatnonzero(out), groups, said - held.loss, scatter))
    tell(what, len(masks), len(masks))
    return _Folds(*(np.concatenate(x) for x in zip(*parts, strict=True)))


def _said(name: str, runs: Runs, constants: Mapping[str, float]) -> Vector:
    import numpy as np

    return np.asarray(FORMS[name](runs.features, constants))


def _factor(folds: list[_Folds], noise: float) -> float:
    """The factor of the intervals: nine of ten runs held out inside, of each situation 85 %."""
    import numpy as np

    scores = [np.abs(fold.errors) / np.hypot(noise, fold.scatter) for fold in folds]
    least = max(float(np.percentile(one, 85)) for one in scores)
    return max(float(np.percentile(np.concatenate(scores), 90)), least, LEAST)


def _held_out(fold: _Folds, noise: float, factor: float) -> HeldOut:
    import numpy as np

    errors = np.abs(fold.errors)
    means = [float(np.mean(errors[fold.groups == i])) for i in np.unique(fold.groups)]
    inside = errors <= factor * np.hypot(noise, fold.scatter)
    return HeldOut(len(means), len(errors), float(np.mean(errors)), float(np.mean(fold.errors)),
                   max(means), float(np.mean(inside)))  # fmt: skip


def _parts(shapes: NDArray[np.int64]) -> NDArray[np.int64]:
    return shapes if shapes.max() < FOLDS else shapes % FOLDS


def _domain(runs: Runs, facts: FormFacts) -> dict[str, tuple[float, float]]:
    import numpy as np

    f = runs.features
    known: dict[str, Any] = {facts.counts: getattr(f, facts.counts), "tokens": f.tokens}
    known |= {"aspect": f.aspect, "d_head": f.d_head}
    ends = {k: v for k, v in known.items() if v is not None and not np.any(np.isnan(v))}
    return {k: (float(v.min()), float(v.max())) for k, v in ends.items()}


def _errors(
    runs: Runs, errors: Vector, left_out: _Folds, holdout: dict[str, HeldOut], noise: float,
    factor: float,
) -> Errors:  # fmt: skip
    import numpy as np

    first, second, _ = pairs_of_equal_size(runs, 0.0)
    f = runs.features
    aspect: Any = f.aspect if not np.any(np.isnan(f.aspect)) else np.full(len(runs), 64.0)
    low, high = (float(x) for x in np.percentile(np.unique(aspect), (10, 90)))
    common = (aspect >= low) & (aspect <= high)
    both = common[first] & common[second]
    first, second = first[both], second[both]
    order = np.argsort(left_out.rows)
    error, scatter = left_out.errors[order], left_out.scatter[order]
    # Two shapes left out in turn: their noise and, as if each had its own, their scatter add.
    spread = np.sqrt(2 * noise**2 + scatter[first] ** 2 + scatter[second] ** 2)
    between = np.abs(error[first] - error[second]) / spread
    parts = ", ".join(f"{v.mae:.4f} {k.replace('_', ' ')} held out" for k, v in holdout.items())
    inside = float(np.mean(np.abs(errors)))
    band, told = factor, "no pairs of equal size among the runs"
    if len(between) >= 10:
        band = max(float(np.percentile(between, 90)), 1.0)
        told = f"nine of ten of {len(between)} pairs of equal size held, neither shape seen"
    return Errors(
        text=f"mean absolute error {inside:.4f} in sample, {parts}",
        in_sample=inside, held_out=holdout["by_shape"].mae, other_recipe=0.7,
        interval_base=factor * noise, interval_growth=GROWTH, interval_tokens_growth=0.25,
        difference_base=band * math.sqrt(2) * noise, difference_growth=GROWTH,
        difference_aspect=(low, high), difference_text=told, scatter_factor=factor,
    )  # fmt: skip


def _thin(runs: Runs, facts: FormFacts) -> list[str]:
    """What a table of runs leaves open, in words."""
    import numpy as np

    found = []
    sizes, shapes = int(runs.sizes.max()) + 1, len(np.unique(runs.shapes))
    if sizes < 3:
        found.append(f"{sizes} sizes do not pin the floor of the loss: the prior does")
    if shapes < len(facts.constants):
        found.append(
            f"{shapes} models for {len(facts.constants)} constants: the prior decides the rest"
        )
    return found
