"""A fitted law as lines of text, and as a folder with plots."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scantling.errors import FieldError
from scantling.report.figure import need_matplotlib
from scantling.units import count_text

if TYPE_CHECKING:
    from scantling.laws.fit import Fit
    from scantling.laws.runs import Runs

CURVES = 5
"""Curves of equal FLOPs drawn over the compute of the runs."""


def fit_lines(found: Fit) -> list[str]:
    """What was fitted, how sure each constant is, and what runs held out were missed by."""
    facts = found.law.facts
    lines = [f"warning: {w}" for w in found.warnings]
    lines += [f"{facts.title} ({found.form}), fitted to {found.rows} runs"]
    for name, (low, high) in found.intervals.items():
        lines.append(f"  {name:8} {facts.constants[name]:10.4g}   90 % {low:.4g} to {high:.4g}")
    lines.append(f"mean absolute error {found.mae:.4f} nats a token in sample; held out:")
    for name, one in found.holdout.items():
        lines.append(
            f"  {name.replace('_', ' '):13} {one.mae:.4f}, bias {one.bias:+.4f}, worst of "
            f"{one.groups} groups {one.worst:.4f}, 90 % interval holds {one.coverage:.0%}"
        )
    e = facts.errors
    lines.append(
        f"90 % interval of a loss of this recipe: ±{e.interval_base:.3f} inside the runs, ×"
        f"{1 + e.interval_growth:.2f} a doubling outside, and {e.scatter_factor:.2f} times the "
        f"scatter of the refits; of a difference of equal sizes ±{e.difference_base:.3f} and that "
        "of their difference"
    )
    for axis, (low, high) in facts.domain.items():
        lines.append(f"  {axis}: {count_text(low)} to {count_text(high)}")
    return lines


def save_fit(found: Fit, runs: Runs, folder: Path) -> list[Path]:
    """Write ``report.md`` and the plots it shows.

    Args:
        found: The fit.
        runs: The runs it was fitted to.
        folder: Made if it does not exist.

    Raises:
        FieldError: If matplotlib is missing or the folder cannot be written.
    """
    need_matplotlib()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        plots = {
            "measured.png": ("predicted and measured loss", _measured(found, runs)),
            "residuals.png": ("errors against size, tokens and width over depth",
                              _residuals(found, runs)),
            "isoflop.png": ("loss along lines of equal FLOPs", _isoflop(found, runs)),
        }  # fmt: skip
        text = ["# Fit report", "", "```", *fit_lines(found), "```"]
        written = []
        for name, (title, figure) in plots.items():
            figure.savefig(folder / name, dpi=130)
            text += ["", f"## {title.capitalize()}", "", f"![{title}]({name})"]
            written.append(folder / name)
        (folder / "report.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    except OSError as error:
        raise FieldError("--report", str(folder), f"cannot be written: {error}") from error
    return [folder / "report.md", *written]


def _measured(found: Fit, runs: Runs) -> Any:
    figure = need_matplotlib()(figsize=(5.4, 5.0), layout="constrained")
    axes = figure.add_subplot()
    predicted = found.law.loss(runs.features)
    half = found.law.interval(runs.features)
    axes.errorbar(runs.loss, predicted, yerr=half, fmt=".", ms=4, lw=0.6, alpha=0.6)
    ends = [float(runs.loss.min()), float(runs.loss.max())]
    axes.plot(ends, ends, lw=1, color="black")
    axes.set(xlabel="measured, nats a token", ylabel="predicted, with 90 % interval")
    return figure


def _residuals(found: Fit, runs: Runs) -> Any:
    import numpy as np

    figure = need_matplotlib()(figsize=(11, 3.6), layout="constrained")
    errors = np.asarray(found.law.loss(runs.features)) - runs.loss
    against = {found.law.counts: found.law.size(runs.features), "tokens": runs.features.tokens,
               "width over depth": runs.features.aspect}  # fmt: skip
    for i, (name, values) in enumerate(against.items(), 1):
        axes = figure.add_subplot(1, 3, i)
        axes.scatter(values, errors, s=6, alpha=0.6)
        axes.axhline(0, lw=1, color="black")
        axes.set(xlabel=name, xscale="log", ylabel="predicted − measured" if i == 1 else "")
    return figure


def _isoflop(found: Fit, runs: Runs) -> Any:
    """Curves at the runs' middle width over depth; a run lies at the curve its FLOPs are near."""
    import numpy as np

    from scantling.laws.optimum import shaped

    figure = need_matplotlib()(figsize=(6.4, 4.6), layout="constrained")
    axes = figure.add_subplot()
    size = np.asarray(found.law.size(runs.features), dtype=float)
    flops = 6 * size * runs.features.tokens
    aspect = runs.features.aspect
    middle = 64.0 if np.any(np.isnan(aspect)) else float(np.median(aspect))
    sizes = np.geomspace(size.min() / 2, size.max() * 2, 200)
    for budget in np.geomspace(flops.min(), flops.max(), CURVES):
        losses = np.asarray(found.law.loss(shaped(sizes, budget / (6 * sizes), middle)))
        (line,) = axes.plot(sizes, losses, lw=1, label=f"{budget:.1e} FLOPs")
        near = np.abs(np.log(flops / budget)) < math.log(1.3)
        axes.scatter(size[near], runs.loss[near], s=10, color=line.get_color())
    spread = runs.loss.max() - runs.loss.min()
    axes.set(xscale="log", xlabel=f"{found.law.counts} parameters", ylabel="nats a token",
             ylim=(runs.loss.min() - 0.1 * spread, runs.loss.max() + 0.3 * spread))  # fmt: skip
    axes.legend(fontsize=7)
    return figure
