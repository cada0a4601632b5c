"""``serve --vary``: the same question over a range of one of its numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scantling import catalog
from scantling.report.asked import Row, asked_over
from scantling.report.figure import need_matplotlib
from scantling.report.serve import row_json, usable_context
from scantling.report.serve_text import layout_words
from scantling.report.text import show_table, table
from scantling.search.serving import Served, answer
from scantling.search.serving_question import AXES, Question
from scantling.units import bytes_text, count_text, seconds_text

if TYPE_CHECKING:
    from rich.console import Console

ASKED = ("gpus", "context", "batch", "prompt", "answer", "concurrency", "guesses", "adapters",
         "rank", "chunk", *AXES)  # fmt: skip
"""Numbers of the question that can be varied; every other name is a field of the model."""


def varied(
    one: catalog.Loaded, text: str, ask: Callable[..., Question]
) -> tuple[str, list[Row[Served]]]:
    """A deployment for every value of a range; see ``asked_over``."""
    return asked_over(one, text, ask, answer, ASKED)


def varied_json(name: str, field: str, rows: list[Row[Served]]) -> dict[str, Any]:
    """The rows as data."""
    return {"schema": 1, "model": name, "vary": field, "rows": [_row_json(r) for r in rows]}


def _row_json(r: Row[Served]) -> dict[str, Any]:
    if r.answer is None:
        return {"value": r.value, "error": r.error}
    told: dict[str, Any] = {"value": r.value, "verdict": r.answer.verdict}
    if r.answer.choice is not None:
        told |= row_json(r.answer.choice, r.answer.question)
    return told


def print_varied(out: Console, name: str, field: str, rows: list[Row[Served]]) -> None:
    """The rows as a table."""
    out.print(f"[bold]{name}[/bold] over {field}:", highlight=False)
    found = table((field, "right"), ("", "left"), ("memory", "right"), ("max context", "right"),
                  ("max batch", "right"), ("first token", "right"), ("per token", "right"),
                  ("tokens/s", "right"), ("split", "left"))  # fmt: skip
    for r in rows:
        shown = f"{r.value:,}"
        if r.answer is None:
            found.add_row(shown, "refused")
            continue
        one = r.answer.choice
        if one is None:
            found.add_row(shown, "no split is valid")
            continue
        t = one.trial
        p = t.points[-1] if t.points else None
        found.add_row(
            shown, r.answer.verdict, bytes_text(float(t.held.memory.total)),
            f"{usable_context(one, r.answer.question):,}", f"{one.max_batch:,}",
            "" if p is None else seconds_text(float(p.speed.ttft_s.value)),
            "" if p is None else seconds_text(float(p.speed.tpot_s.value)),
            "" if p is None else count_text(float(p.tokens_per_s.value)), layout_words(t.layout),
        )  # fmt: skip
    show_table(out, found)
    for r in rows:
        if r.answer is None:
            out.print(f"  {field} {r.value:,}: {r.error}", style="dim", markup=False)


def save_varied(field: str, rows: list[Row[Served]], path: Path) -> Path:
    """A varied number against memory, the two times and throughput, with their intervals."""
    figure = need_matplotlib()(figsize=(11, 2.9), layout="constrained")
    panels = figure.subplots(1, 4)
    kept = [(r.value, r.answer.choice.trial) for r in rows
            if r.answer is not None and r.answer.choice is not None]  # fmt: skip
    memory = [(v, t.held.memory) for v, t in kept]
    gib = 2**30
    panels[0].plot([v for v, _ in memory], [float(m.total) / gib for _, m in memory], marker=".",
                   color="#2c7fb8")  # fmt: skip
    panels[0].fill_between(
        [v for v, _ in memory], [float(m.low) / gib for _, m in memory],
        [float(m.high) / gib for _, m in memory], color="#2c7fb8", alpha=0.15,
    )  # fmt: skip
    panels[0].set_title("GiB on the fullest chip", fontsize=9)
    timed = [(v, t.points[-1]) for v, t in kept if t.points]
    series = {
        "seconds to the first token": [p.speed.ttft_s for _, p in timed],
        "seconds per token": [p.speed.tpot_s for _, p in timed],
        "tokens/s": [p.tokens_per_s for _, p in timed],
    }
    values = [v for v, _ in timed]
    for axes, (name, line) in zip(panels[1:], series.items(), strict=True):
        axes.plot(values, [float(e.value) for e in line], marker=".", color="#2c7fb8")
        axes.fill_between(values, [float(e.low) for e in line], [float(e.high) for e in line],
                          color="#2c7fb8", alpha=0.15)  # fmt: skip
        axes.set_title(name, fontsize=9)
    for axes in panels:
        axes.set_xlabel(field)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
    figure.savefig(path)
    return path
