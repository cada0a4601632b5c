"""The errors of all tables as text, JSON and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from rich.markup import escape

from scantling.report.text import show_table, table
from scantling.validate.score import (
    MANY,
    Errors,
    TableScore,
    complaint,
    deviation,
    inside,
    pooled,
)
from scantling.validate.table import Scored

if TYPE_CHECKING:
    from rich.console import Console

HEADINGS = ("rows", "scored", "skipped", "excluded", "mean", "median", "p90", "inside", "width")
MEANING = (
    "mean, median, p90: of |predicted / measured − 1|. inside: share of measured values within "
    "the 90 % interval. width: median half-width of the interval over the prediction. "
    "verdict, from 30 rows on: an interval is too narrow below 85 % inside, too wide above 97 % or "
    "where its width is more than twice the median error."
)


def to_json(tables: Sequence[TableScore], worst: int = 5) -> dict[str, Any]:
    """The whole answer; errors, coverage and width are fractions (0.08 is 8 %)."""
    return {
        "schema": 1,
        "unit": "fraction",
        "tables": [_entry(t, worst) for t in tables],
        "pooled": {"of": f"tables of fewer than {MANY} rows", **_errors(pooled(tables))},
    }


def _entry(t: TableScore, worst: int) -> dict[str, Any]:
    return {
        "table": t.table,
        "quantity": t.quantity or None,
        "exact": t.exact,
        "rows": t.rows,
        **_errors(t.errors),
        "skipped": t.skipped,
        "excluded": t.excluded,
        "reasons": [{"reason": text, "rows": n, "excluded": out} for text, n, out in t.reasons],
        "by": [{"label": label, **_errors(found)} for label, found in t.by],
        "worst": [msgspec.to_builtins(s) for s in t.worst(worst)],
    }


def _errors(found: Errors) -> dict[str, Any]:
    given: dict[str, Any] = msgspec.to_builtins(found)
    return given


def print_validation(out: Console, tables: Sequence[TableScore], worst: int = 5) -> None:
    """One table of all errors, then each table's parts, worst rows and unscored rows."""
    listed = table(("table", "left"), ("quantity", "left"), *((h, "right") for h in HEADINGS),
                   ("verdict", "left"))  # fmt: skip
    for t in tables:
        wrong = verdict(t)
        style = "yellow" if wrong and not wrong.startswith("exact") else None
        listed.add_row(t.table, escape(t.quantity), *cells(t), wrong, style=style)
    few = pooled(tables)
    if few.scored:
        listed.add_section()
        listed.add_row(f"tables of fewer than {MANY} rows, pooled", "", "", str(few.scored), "", "",
                       *_figures(few), complaint(few))  # fmt: skip
    show_table(out, listed)
    out.print(f"[dim]{MEANING}[/dim]")
    for t in tables:
        _print_detail(out, t, worst)


def _print_detail(out: Console, t: TableScore, worst: int) -> None:
    if not (t.reasons or t.by or (worst and t.errors.scored)):
        return
    out.print(f"\n[bold]{t.table}[/bold]{': ' + escape(t.quantity) if t.quantity else ''}")
    for text, n, excluded in t.reasons:
        out.print(f"  {'excluded' if excluded else 'skipped'} {n:,}: {escape(text)}")
    for label, found in t.by:
        mean, median, p90, hit, width = _figures(found)
        shown = f"  {escape(label)}: {found.scored:,} rows, mean {mean}, median {median}, p90 {p90}"
        out.print(shown + (f", inside {hit}, width {width}" if hit else ""))
    if worst and t.errors.scored and not perfect(t):
        out.print("  worst rows: " + escape("; ".join(map(row_text, t.worst(worst)))))


def row_text(s: Scored) -> str:
    """One row: its id, both values and the signed error.

    Example:
        >>> row_text(Scored(row="gm-1", group="", actual=2.0, predicted=3.0))
        'gm-1 predicted 3 measured 2 (+50 %)'
    """
    mark = "" if inside(s) is not False else ", outside"
    part = f" [{s.by}]" if s.by else ""
    return (f"{s.row}{part} predicted {s.predicted:.4g} measured {s.actual:.4g} "
            f"({deviation(s):+.0%}{mark})").replace("%", " %")  # fmt: skip


def perfect(t: TableScore) -> bool:
    """Whether every scored row is right to the last digit."""
    return t.exact and t.errors.scored > 0 and t.errors.equal == t.errors.scored


def verdict(t: TableScore) -> str:
    """What has to be said of a table in a few words: exact, not scored, or a bad interval."""
    if not t.errors.scored:
        return "not scored"
    if t.exact:
        return f"exact {t.errors.equal:,}/{t.errors.scored:,}"
    return complaint(t.errors)


def cells(t: TableScore) -> list[str]:
    """Rows, scored, skipped, excluded, then the figures."""
    counts = [f"{n:,}" for n in (t.rows, t.errors.scored, t.skipped, t.excluded)]
    return counts + _figures(t.errors)


def _figures(found: Errors) -> list[str]:
    return [percent(v) for v in (found.mape, found.median_ape, found.p90_ape,
                                 found.interval_coverage, found.interval_width)]  # fmt: skip


def percent(value: float | None) -> str:
    """A fraction as a percentage of three digits at most.

    Example:
        >>> percent(0.0808), percent(0.00012), percent(None), percent(1.5)
        ('8.1 %', '0.012 %', '', '150 %')
    """
    if value is None:
        return ""
    shown = 100 * value
    if shown == 0 or shown >= 99.95:
        return f"{shown:.0f} %"
    return f"{shown:.1f} %" if shown >= 0.95 else f"{shown:.2g} %"


def markdown(tables: Sequence[TableScore], worst: int = 3) -> str:
    """The page ``docs/validation.md``: the same as the text, after its introduction."""
    head = ("table", "quantity", *HEADINGS, "verdict")
    lines = [INTRODUCTION, _line(head), _line(["---", "---", *["--:"] * len(HEADINGS), "---"])]
    lines += [_line([f"[{t.table}](#{anchor(t)})", t.quantity, *cells(t), verdict(t)])
              for t in tables]  # fmt: skip
    few = pooled(tables)
    if few.scored:
        lines.append(_line([f"tables of fewer than {MANY} rows, pooled", "", "", str(few.scored),
                            "", "", *_figures(few), complaint(few)]))  # fmt: skip
    lines += ["", MEANING.replace(". ", ".\n"), ""]
    for t in tables:
        lines += _section(t, worst)
    return "\n".join(lines).rstrip() + "\n"


def anchor(t: TableScore) -> str:
    """The address of a table's part within a page."""
    plain = f"{t.table} {t.quantity}".strip().lower()
    return "".join(c if c.isalnum() or c in "-_" else "-" if c == " " else "" for c in plain)


def _section(t: TableScore, worst: int) -> list[str]:
    title = f"{t.table} {t.quantity}".strip()
    lines = [f"## {title}", ""]
    lines += [f"- {'excluded' if out else 'skipped'} {n:,}: {text}" for text, n, out in t.reasons]
    if t.reasons:
        lines.append("")
    if t.by:
        lines += [_line(("part", "rows", *HEADINGS[4:])), _line(["---", *["--:"] * 6])]
        lines += [_line([label, f"{found.scored:,}", *_figures(found)]) for label, found in t.by]
        lines.append("")
    if worst and t.errors.scored and not perfect(t):
        lines += ["Worst rows:", ""]
        lines += [f"- {row_text(s)}" for s in t.worst(worst)]
        lines.append("")
    if len(lines) == 2:
        lines += [f"Every row is {verdict(t).split()[0]}.", ""]
    return lines


def _line(values: Sequence[str]) -> str:
    return "| " + " | ".join(v.replace("|", "\\|") for v in values) + " |"


INTRODUCTION = """\
# Validation: every error against public measurements

This page is written by `make validation`, which runs

    scantling validate --tables ../shared/data/measured --markdown docs/validation.md

over public tables that this project did not measure.
Nothing is left out: a row is scored, or skipped because we cannot resolve it, or excluded because \
the table itself says that it cannot be trusted or does not state what a prediction needs.
Each reason is listed with its count.

The constants of a chip are one frozen set, used in every table (`src/scantling/data/constants`).
They were fitted on rows of these tables, so these errors are of fitted rows where a chip has \
constants of its own.
Errors with whole groups left out (an (n, k) pair, a model size, a chip) are printed by the \
scripts that fit: `benchmarks/fit_*.py`.
What the serving tables hide is in [serving.md](serving.md).
"""
