"""What the fits of kernel constants share: the scale of errors, folds, and tables as text."""

import numpy as np
from scipy.optimize import minimize

ROWS = (1, 2, 16, 128, 512, 2048, 8192, 32768)
SECONDS = (4e-6, 1.6e-5, 6.4e-5, 2.56e-4, 1e-3, 8e-3)
"""Knots of the scale of errors: rows, and seconds."""
SHARE = 0.88
"""Of the residuals left out that an interval holds; more in fold, so that nine in ten are near."""
LEAST = 0.004
"""Errors below it count as it where the scale is fitted."""
FOLDS = 10


def folds(groups):
    """Which rows are left out at a time: whole groups, in ten parts, always the same."""
    names = np.unique(groups)
    np.random.default_rng(0).shuffle(names)
    return [np.isin(groups, names[i::FOLDS]) for i in range(min(FOLDS, len(names)))]


def hats(x, knots):
    """Straight pieces over the logarithm of x: one column for each knot."""
    at, places = np.log2(x), np.log2(knots)
    return np.stack([np.interp(at, places, row) for row in np.eye(len(knots))], axis=1)


def scale_of(rows, seconds, logs):
    """Curves of the scale of log residuals over rows and length, and its two quantiles.

    The logarithm of the scale is a sum of two curves of straight pieces, fitted to the 0.6
    quantile of the residuals' logarithm and drawn a little towards their mean.
    """
    basis = np.concatenate([hats(rows, ROWS), hats(seconds, SECONDS)[:, 1:]], axis=1)
    target = np.log2(np.abs(logs) + LEAST)

    def loss(w):
        off, smooth, tau, pull = target - basis @ w, 0.3, 0.6, 0.3
        above = 1 / (1 + np.exp(-np.clip(off / smooth, -50, 50)))
        drawn = w - w.mean()
        total = (np.logaddexp(0, off / smooth) * smooth + (tau - 1) * off).sum()
        return total + pull * (drawn**2).sum(), -basis.T @ (tau - 1 + above) + 2 * pull * drawn

    start = np.zeros(basis.shape[1])
    start[: len(ROWS)] = -4.0
    w = minimize(loss, start, jac=True, method="L-BFGS-B").x
    below, above = shortest(logs / 2 ** (basis @ w))
    return {
        "spread_rows": tuple(zip(ROWS, w[: len(ROWS)].tolist(), strict=True)),
        "spread_s": tuple(zip(SECONDS, [0.0, *w[len(ROWS) :].tolist()], strict=True)),
        "below": float(max(-below, 0.5)), "above": float(max(above, 0.5)),
    }  # fmt: skip


def shortest(scaled):
    """The two ends of the shortest interval that holds its share."""
    tails = np.linspace(0.005, 1 - SHARE - 0.005, 23)
    ends = [np.quantile(scaled, (tail, tail + SHARE)) for tail in tails]
    return min(ends, key=lambda pair: pair[1] - pair[0])


def inside(low, seconds, high, value):
    """How many rows lie in their interval, and its half-width by the median error."""
    within = (low <= seconds) & (seconds <= high)
    half = np.median((high - low) / 2 / value)
    wrong = np.abs(value / seconds - 1)
    return (f"in {within.mean():.0%}, half-width {half:.1%}, "
            f"{half / np.median(wrong):.2f} × the median error")  # fmt: skip


def lines(title, found, **more):
    """One table of the file."""
    yield f"[{title}]"
    for key, value in (found | more).items():
        if isinstance(value, str):
            yield f'{key} = """\n{value}"""' if key == "note" else f'{key} = "{value}"'
        elif isinstance(value, tuple):
            yield f"{key} = [{', '.join(text(v) for v in value)}]"
        else:
            yield f"{key} = {text(value)}"
    yield ""


def text(value):
    if isinstance(value, tuple):
        return f"[{', '.join(text(v) for v in value)}]"
    return f'"{value}"' if isinstance(value, str) else f"{value:.4g}"
