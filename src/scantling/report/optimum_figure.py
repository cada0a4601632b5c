"""The valley of equal FLOPs as a picture: what another size loses, by every law asked."""

from __future__ import annotations

from pathlib import Path

from scantling.errors import FieldError
from scantling.laws import law
from scantling.laws.optimum import allocations
from scantling.report.figure import check_path, need_matplotlib
from scantling.report.optimum import Answers

REACH = 8.0
"""Sizes drawn to either side of an optimum, as a factor."""
VALLEY = 0.005


def save_optimum(found: Answers, path: Path) -> Path:
    """Draw the loss over the least against N along equal FLOPs; allocations are marks on the axis.

    Args:
        found: The answers; each law at its own FLOPs where those were asked for.
        path: The file; its ending says the format.

    Raises:
        FieldError: If matplotlib is missing or the file cannot be written.
    """
    import numpy as np

    figure = need_matplotlib()(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.add_subplot()
    for name, one in found.laws.items():
        best = one.best
        if best is None or best.counts == "flops":
            continue
        if name in allocations():
            axes.plot([best.size], [0.0], "|", ms=14, mew=2, label=name)
            continue
        sizes = best.size * np.geomspace(1 / REACH, REACH, 200)
        sizes = sizes[one.budget.tokens(sizes) > 1]
        losses = np.asarray(law(name).loss(one.budget.features(sizes))) - best.loss
        (line,) = axes.plot(sizes, losses, lw=1.5, label=f"{name} (N: {best.counts})")
        axes.plot([best.size], [0.0], "o", ms=6, color=line.get_color())
    axes.axhspan(0, VALLEY, color="#2c7fb8", alpha=0.12, lw=0)
    axes.set(xscale="log", xlabel="parameters N, as each law counts them",
             ylabel="loss over the least, nats a token", ylim=(-0.004, 0.1))  # fmt: skip
    flops = found.laws[found.leading].budget.flops
    axes.set_title(f"{flops:.3g} FLOPs; shaded: within {VALLEY:g} nats", fontsize=10)
    axes.legend(fontsize=8)
    try:
        figure.savefig(check_path(path), dpi=140)
    except OSError as error:
        raise FieldError("--plot", str(path), f"cannot be written: {error}") from error
    return path
