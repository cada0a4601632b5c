"""``plan --vary``: the same question over a range of one of its numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scantling import catalog
from scantling.report.asked import Row, asked_over
from scantling.report.plan import bill_json, closest_json, trial_json
from scantling.report.plan_text import number, percent, plan_brief
from scantling.report.text import show_table, table
from scantling.search.plan_question import AXES, Question
from scantling.search.plans import Plans, Progress, answer
from scantling.units import bytes_text, count_text, seconds_text

if TYPE_CHECKING:
    from rich.console import Console

ASKED = ("gpus", "context", "batch", "tokens", "gpus_per_node", "rank", *AXES)
"""Numbers of the question that can be varied; every other name is a field of the model."""

REASONS = 4
"""Values that break a rule whose rule is printed."""


def varied(
    one: catalog.Loaded, text: str, ask: Callable[..., Question], progress: Progress | None = None
) -> tuple[str, list[Row[Plans]]]:
    """A plan for every value of a range; see ``asked_over``."""
    return asked_over(
        one, text, ask, lambda q: answer(q, progress), ASKED, 0 if text.startswith("zero=") else 1
    )


def varied_json(name: str, field: str, rows: list[Row[Plans]]) -> dict[str, Any]:
    """The rows as data."""
    return {"schema": 1, "model": name, "vary": field, "rows": [_row_json(r) for r in rows]}


def _row_json(r: Row[Plans]) -> dict[str, Any]:
    if r.answer is None:
        return {"value": r.value, "error": r.error}
    found: dict[str, Any] = {"value": r.value, "verdict": r.answer.verdict}
    if r.answer.choice is None or r.answer.bill is None:
        return found | {"closest": closest_json(r.answer)}
    q = r.answer.question
    return found | trial_json(r.answer.choice, q) | bill_json(r.answer.bill, q)


def print_varied(out: Console, name: str, field: str, rows: list[Row[Plans]]) -> None:
    """The rows as a table."""
    out.print(f"[bold]{name}[/bold] over {field}:", highlight=False)
    found = table((field, "right"), ("fits", "left"), ("memory", "right"), ("step", "right"),
                  ("MFU", "right"), ("days", "right"), ("GPU-hours", "right"),
                  ("plan", "left"))  # fmt: skip
    for r in rows:
        shown = f"{r.value:,}"
        if r.answer is None:
            found.add_row(shown, "invalid")
        elif r.answer.choice is None or r.answer.bill is None:
            closest = r.answer.closest
            needed = "" if closest is None else bytes_text(float(closest[1].total))
            found.add_row(shown, "no", needed)
        else:
            t, b = r.answer.choice, r.answer.bill
            found.add_row(
                shown, {"fits": "yes", "fits only if": "only if"}[r.answer.verdict],
                bytes_text(float(t.memory.total)), seconds_text(t.step_s),
                percent(float(t.step.mfu.value_s)), number(float(b.days.value_s)),
                count_text(float(b.gpu_hours.value_s)), plan_brief(t.plan),
            )  # fmt: skip
    show_table(out, found)
    wrong = [r for r in rows if r.answer is None]
    for r in wrong[:REASONS]:
        out.print(f"{r.value:,}: {r.error}", style="dim", markup=False)
    if len(wrong) > REASONS:
        out.print(f"and {len(wrong) - REASONS} more like these (--json)", style="dim", markup=False)
