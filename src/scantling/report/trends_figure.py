"""What real models do, as one figure: a point a model, the quartiles of each year."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scantling.report.figure import need_matplotlib
from scantling.report.trends import HEADS, LAYOUTS, NUMBERS, SHARES, Traits, Year, by_year

PANELS = (
    "d_model", "n_layer", "aspect", "d_head", "attention_width", "n_kv_head", "ffn_ratio",
    "vocab_size", "n_expert",
)  # fmt: skip
FEWEST = 3
"""Models of a year that quartiles and shares are drawn of; all points are."""
LOGARITHMIC = {"d_model", "n_layer", "n_kv_head", "vocab_size", "n_expert", "d_head", "aspect"}
POINT, LINE = "#9ecae1", "#08519c"
COLORS = ("#4292c6", "#fdae6b", "#74c476", "#9e9ac8", "#d9d9d9")


def save_trends(found: Sequence[Traits], path: Path) -> Path:
    """Nine numbers, layouts, kinds of heads and yes-or-no shares over time, in twelve plots.

    Args:
        found: The models; at least one.
        path: A ``.svg``, ``.png`` or ``.pdf``.
    """
    figure = need_matplotlib()(figsize=(13, 9), layout="constrained")
    panels = figure.subplots(3, 4).flat
    years = by_year(found)
    for axes, name in zip(panels, PANELS, strict=False):
        _numbers(axes, name, found, years)
    _stack(panels[9], "attention layout", LAYOUTS, [y.layouts for y in years], years)
    _stack(panels[10], "heads", HEADS, [y.heads for y in years], years)
    _lines(panels[11], years)
    for axes in panels:
        axes.set_xlim(years[0].year - 0.5, years[-1].year + 1.2)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.2)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=7)
    title = (
        f"{len(found)} released models; lines are of years with {FEWEST} or more: median, quartiles"
    )
    figure.suptitle(title, fontsize=10)
    figure.savefig(path)
    return path


def _numbers(axes: Any, name: str, found: Sequence[Traits], years: Sequence[Year]) -> None:
    points = [(one.when, one.numbers[name]) for one in found if name in one.numbers]
    if points:
        axes.scatter(*zip(*points, strict=True), s=9, color=POINT, linewidths=0)
    known = [(y.year + 0.5, y.numbers[name]) for y in years if name in y.numbers]
    rows = [(when, q) for when, q in known if q.n >= FEWEST]
    if rows:
        at = [when for when, _ in rows]
        axes.fill_between(at, [q.low for _, q in rows], [q.high for _, q in rows], color=LINE,
                          alpha=0.15, linewidth=0)  # fmt: skip
        axes.plot(at, [q.median for _, q in rows], color=LINE, marker=".", linewidth=1.2)
    axes.set_title(NUMBERS[name], fontsize=9)
    if name in LOGARITHMIC:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _stack(
    axes: Any, title: str, kinds: Sequence[str], shares: Sequence[dict[str, float]],
    years: Sequence[Year],
) -> None:  # fmt: skip
    below = [0.0] * len(years)
    for kind, color in zip(kinds, COLORS, strict=False):
        part = [share[kind] for share in shares]
        axes.bar(
            [y.year + 0.5 for y in years], part, bottom=below, color=color, label=kind, width=0.8
        )
        below = [a + b for a, b in zip(below, part, strict=True)]
    axes.set_title(title, fontsize=9)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.legend(fontsize=6, loc="lower left")


def _lines(axes: Any, years: Sequence[Year]) -> None:
    enough = [y for y in years if y.n >= FEWEST]
    for name, title in SHARES.items():
        axes.plot([y.year + 0.5 for y in enough], [y.shares[name] for y in enough], marker=".",
                  linewidth=1.2, label=title)  # fmt: skip
    axes.set_title("share of models", fontsize=9)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.legend(fontsize=6)
