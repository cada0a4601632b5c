"""A law fitted to a table of runs, with intervals, and what it misses on runs held out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scantling.laws.evaluate import pairs_of_equal_size
from scantling.laws.registry import FORMS, NINETY, Errors, Facts, Law
from scantling.laws.robust import FormFacts, fit_form, prior_of, refuse, solve
from scantling.laws.runs import Runs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]

KEPT = 40
"""Draws that a law carries: enough for a standard deviation to 11 %, few enough to read."""

FOLDS = 40
"""Shapes are left out one by one up to this many, then in as many equal parts."""

GROWTH = 0.25
"""The least by which an interval grows for each doubling of size outside the runs."""

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
    3. Each shape, each size, and all larger than the rest of the sizes, are held out in turn.
    4. The half-width of a 90 % interval is √(base² + (1.645 · scatter over the draws)²), and the
       base is what makes it hold 90 % of the runs of shapes held out. For each doubling beyond
       the runs the base grows by what the largest size held out asks for, at least by a quarter.

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
    errors = _predicted(name, runs, best.vector) - runs.loss

    by_shape = _left_out(runs, name, best.vector, _parts(runs.shapes), tell, "leaving out shapes")
    scatter = np.std([_predicted(name, runs, x) for x in kept], axis=0)
    base = _base(by_shape, scatter)
    holdout = {"by_shape": _held_out(by_shape, _parts(runs.shapes), base, scatter)}
    growth = GROWTH
    sizes = runs.sizes
    if sizes.max() > 1:
        by_size = _left_out(runs, name, best.vector, sizes, tell, "leaving out sizes")
        holdout["by_size"] = _held_out(by_size, sizes, base, scatter)
        largest, growth = _largest(runs, name, best.vector, base, seed)
        holdout["largest_size"] = largest
    law = Law(
        name="fitted", function=FORMS[name],
        facts=Facts(
            title=title or facts.title, form=name, counts=facts.counts, function=name,
            recipe=recipe or "the recipe of the runs", source=source, reference_ratio=4.0,
            constants=facts.values(best.vector), domain=_domain(runs, facts),
            errors=_errors(runs, errors, by_shape, holdout, base, growth),
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


def _left_out(
    runs: Runs, name: str, start: Vector, groups: NDArray[np.int64], tell: Progress, what: str
) -> Vector:
    """The error of each run, predicted by a fit without its group."""
    import numpy as np

    errors = np.empty(len(runs))
    n = int(groups.max()) + 1
    for i in range(n):
        tell(what, i, n)
        out = groups == i
        vector = solve(runs.take(~out), name, start=start).vector
        errors[out] = _predicted(name, runs.take(out), vector) - runs.loss[out]
    tell(what, n, n)
    return errors


def _largest(runs: Runs, name: str, start: Vector, base: float, seed: int) -> tuple[HeldOut, float]:
    """What the smaller sizes say of the largest one, and the growth of the interval it asks for.

    The part above the widest gap between sizes is held out if at least three sizes remain, else
    the last size alone.
    """
    import numpy as np

    sizes, logs = runs.sizes, np.log(runs.size)
    ends = [logs[sizes == i] for i in range(sizes.max() + 1)]
    gaps = [ends[i + 1].min() - ends[i].max() for i in range(len(ends) - 1)]
    cut = max(range(1, len(gaps)), key=lambda i: gaps[i]) if len(gaps) > 1 else 0
    out = sizes > cut
    kept = runs.take(~out)
    vector = solve(kept, name, start=start).vector
    draws = _draws(kept, name, vector, 20, seed, lambda *_: None)
    held = runs.take(out)
    errors = _predicted(name, held, vector) - held.loss
    scatter = np.std([_predicted(name, held, x) for x in draws], axis=0)
    doublings = (np.log(held.size) - np.log(kept.size.max())) / math.log(2)
    wanted = np.sqrt(np.maximum(errors**2 - (NINETY * scatter) ** 2, 0.0)) / base
    growth = max(GROWTH, float(np.percentile((wanted - 1) / np.maximum(doublings, 0.5), 90)))
    groups = np.unique(held.shapes, return_inverse=True)[1]
    half = base * (1 + growth * np.maximum(doublings, 0.0))
    return _held_out(errors, groups, half, scatter), growth


def _predicted(name: str, runs: Runs, vector: Vector) -> Vector:
    import numpy as np

    return np.asarray(FORMS[name](runs.features, fit_form(name).values(vector)))


def _base(errors: Vector, scatter: Vector) -> float:
    """The base that makes intervals hold nine of ten errors; a tenth of a hundredth at least."""
    import numpy as np

    rest = np.sqrt(np.maximum(errors**2 - (NINETY * scatter) ** 2, 0.0))
    return max(float(np.percentile(rest, 90)), 1e-3)


def _held_out(
    errors: Vector, groups: NDArray[np.int64], half: float | Vector, scatter: Vector
) -> HeldOut:
    import numpy as np

    inside = np.abs(errors) <= np.sqrt(half**2 + (NINETY * scatter) ** 2)
    means = [float(np.mean(np.abs(errors[groups == i]))) for i in range(groups.max() + 1)]
    return HeldOut(len(means), len(errors), float(np.mean(np.abs(errors))),
                   float(np.mean(errors)), max(means), float(np.mean(inside)))  # fmt: skip


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
    runs: Runs, errors: Vector, left_out: Vector, holdout: dict[str, HeldOut], base: float,
    growth: float,
) -> Errors:  # fmt: skip
    import numpy as np

    first, second, _ = pairs_of_equal_size(runs, 0.0)
    f = runs.features
    aspect: Any = f.aspect if not np.any(np.isnan(f.aspect)) else np.full(len(runs), 64.0)
    low, high = (float(x) for x in np.percentile(np.unique(aspect), (10, 90)))
    common = (aspect >= low) & (aspect <= high)
    both = common[first] & common[second]
    between = np.abs(left_out[first] - left_out[second])[both]
    band = float(np.percentile(between, 90)) if len(between) >= 10 else base
    parts = ", ".join(f"{v.mae:.4f} {k.replace('_', ' ')} held out" for k, v in holdout.items())
    inside = float(np.mean(np.abs(errors)))
    told = "no pairs of equal size among the runs"
    if len(between) >= 10:
        told = f"±{band:.3f} holds nine of ten measured pairs of equal size, neither shape seen"
    return Errors(
        text=f"mean absolute error {inside:.4f} in sample, {parts}",
        in_sample=inside, held_out=holdout["by_shape"].mae, other_recipe=0.7,
        interval_base=base, interval_growth=growth, interval_tokens_growth=0.25,
        difference_base=band, difference_growth=growth,
        difference_aspect=(low, high),
        difference_text=told,
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
