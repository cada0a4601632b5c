"""What real models do, as tables and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from scantling.report.text import show_table, table
from scantling.report.trends import (
    HEADS,
    LAYOUTS,
    NUMBERS,
    SHARES,
    Followed,
    Quartiles,
    Traits,
    by_year,
)
from scantling.units import count_text

if TYPE_CHECKING:
    from rich.console import Console

GROUPS = (
    ("parameters", "d_model", "n_layer", "aspect"),
    ("d_head", "attention_width", "n_kv_head", "kv_group", "ffn_ratio"),
    ("vocab_size", "n_expert", "expert_ratio", "active_share"),
)
"""Numbers beside each other in one table, so that each fits a terminal."""


def number_text(name: str, value: float) -> str:
    """A number of ``NUMBERS`` for people.

    Example:
        >>> number_text("vocab_size", 128256), number_text("active_share", 0.05)
        ('128 k', '5 %')
    """
    if name == "parameters":
        return count_text(value)
    if name == "active_share":
        return f"{value:.0%}".replace("%", " %")
    if name == "vocab_size":
        return f"{value / 1000:.0f} k"
    return f"{value:,.0f}" if value >= 20 or value == int(value) else f"{value:.2f}"


def _cell(name: str, q: Quartiles | None) -> str:
    if q is None:
        return ""
    low, median, high = (number_text(name, v) for v in (q.low, q.median, q.high))
    return median if low == high else f"{median} ({low} to {high})"


def print_trends(out: Console, found: Sequence[Traits]) -> None:
    """Tables by year: numbers with quartiles, then shares."""
    years = by_year(found)
    out.print(
        f"{len(found)} models that were released with a shape of their own; median (quartiles)"
    )
    for group in GROUPS:
        rows = table(("year", "left"), ("models", "right"),
                     *((NUMBERS[name], "right") for name in group))  # fmt: skip
        for y in years:
            cells = (_cell(name, y.numbers.get(name)) for name in group)
            rows.add_row(str(y.year), str(y.n), *cells)
        show_table(out, rows)
    layout = table(("year", "left"), *((f"{v} attention" if v == "full" else v, "right")
                   for v in LAYOUTS), *((v, "right") for v in HEADS[:3]))  # fmt: skip
    kinds = table(("year", "left"), *((title, "right") for title in SHARES.values()))
    for y in years:
        layout.add_row(str(y.year), *(f"{y.layouts[v]:.0%}" for v in LAYOUTS),
                       *(f"{y.heads[v]:.0%}" for v in HEADS[:3]))  # fmt: skip
        kinds.add_row(str(y.year), *(f"{y.shares[name]:.0%}" for name in SHARES))
    show_table(out, layout)
    show_table(out, kinds)
    out.print(
        "[dim]F / D: dense models; experts' F / D: what a token passes; KV heads: grouped "
        "attention. Shapes only timed, tuned models and later releases of a shape are left "
        "out.[/dim]"
    )


def print_followed(out: Console, rows: Sequence[Followed], *, every: bool) -> None:
    """The share of models that follow each rule, by year; the least followed first.

    Args:
        out: Where to.
        rows: Of ``followed``.
        every: Whether also rules that every model follows.
    """
    shown = sorted((r for r in rows if every or r.broken), key=lambda r: (r.share, r.code))
    years = sorted(rows[0].by_year) if rows else []
    found = table(("rule", "left"), ("", "left"), ("all", "right"),
                  *((str(year), "right") for year in years))  # fmt: skip
    for r in shown:
        found.add_row(r.code, r.slug, f"{r.share:.0%}", *(f"{r.by_year[y]:.0%}" for y in years))
    if shown:
        show_table(out, found)
    silent = len(rows) - sum(bool(r.broken) for r in rows)
    out.print(f"[dim]share of models that a rule has nothing to say of, whatever its level; "
              f"{silent} of {len(rows)} rules are silent on all: followed, or not asked without a "
              f"chip, a runtime or a degree[/dim]")  # fmt: skip


def trends_json(found: Sequence[Traits], rows: Sequence[Followed] | None) -> dict[str, Any]:
    """Years, models and rules for programs."""
    told = {
        "schema": 1,
        "models": [msgspec.to_builtins(one) for one in found],
        "years": [msgspec.to_builtins(y) for y in by_year(found)],
    }
    if rows is not None:
        told["rules"] = [msgspec.to_builtins(r, str_keys=True) for r in rows]
    return told
