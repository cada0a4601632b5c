"""``plan --vary``: the same question over a range of one of its numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from scantling import catalog
from scantling.errors import ScantlingError
from scantling.report.plan import bill_json, closest_json, trial_json
from scantling.report.plan_text import number, percent, plan_brief
from scantling.report.text import show_table, table
from scantling.report.vary import parse_range
from scantling.search.plan_question import AXES, Question
from scantling.search.plans import Plans, Progress, answer
from scantling.spec import check, vary
from scantling.units import bytes_text, count_text, seconds_text

if TYPE_CHECKING:
    from rich.console import Console

ASKED = ("gpus", "context", "batch", "tokens", "gpus_per_node", "rank", *AXES)
"""Numbers of the question that can be varied; every other name is a field of the model."""

REASONS = 4
"""Values that break a rule whose rule is printed."""

Ask = Callable[..., Question]


class Row(Struct, frozen=True):
    """One value of the range."""

    value: int
    plans: Plans | None
    error: str = ""


def varied(
    one: catalog.Loaded, text: str, ask: Ask, progress: Progress | None = None
) -> tuple[str, list[Row]]:
    """A plan for every value of a range; values that break a rule say which.

    Args:
        one: The model.
        text: ``gpus=64:512:64`` or ``n_layer=28:36:2``.
        ask: Makes the question for a model with some of its values changed.
        progress: Called now and then.

    Raises:
        ScantlingError: If the range is none, or no value of it is legal.
    """
    field, values = parse_range(text, least=0 if text.startswith("zero=") else 1)
    field = field.replace("-", "_")
    rows: list[Row] = []
    problem: ScantlingError | None = None
    for value in values:
        try:
            if field in ASKED:
                q = ask(one, **{field: value})
            else:
                q = ask(replace(one, spec=check(vary(one.spec, **{field: value}))))
        except ScantlingError as error:
            problem = error
            rows.append(Row(value, None, str(error)))
            continue
        rows.append(Row(value, answer(q, progress)))
    if problem is not None and all(r.plans is None for r in rows):
        raise problem
    return field, rows


def varied_json(name: str, field: str, rows: list[Row]) -> dict[str, Any]:
    """The rows as data."""
    return {"schema": 1, "model": name, "vary": field, "rows": [_row_json(r) for r in rows]}


def _row_json(r: Row) -> dict[str, Any]:
    if r.plans is None:
        return {"value": r.value, "error": r.error}
    found: dict[str, Any] = {"value": r.value, "verdict": r.plans.verdict}
    if r.plans.choice is None or r.plans.bill is None:
        return found | {"closest": closest_json(r.plans)}
    q = r.plans.question
    return found | trial_json(r.plans.choice, q) | bill_json(r.plans.bill, q)


def print_varied(out: Console, name: str, field: str, rows: list[Row]) -> None:
    """The rows as a table."""
    out.print(f"[bold]{name}[/bold] over {field}:", highlight=False)
    found = table((field, "right"), ("fits", "left"), ("memory", "right"), ("step", "right"),
                  ("MFU", "right"), ("days", "right"), ("GPU-hours", "right"),
                  ("plan", "left"))  # fmt: skip
    for r in rows:
        shown = f"{r.value:,}"
        if r.plans is None:
            found.add_row(shown, "invalid")
        elif r.plans.choice is None or r.plans.bill is None:
            closest = r.plans.closest
            needed = "" if closest is None else bytes_text(float(closest[1].total))
            found.add_row(shown, "no", needed)
        else:
            t, b = r.plans.choice, r.plans.bill
            found.add_row(
                shown, {"fits": "yes", "fits only if": "only if"}[r.plans.verdict],
                bytes_text(float(t.memory.total)), seconds_text(t.step_s),
                percent(float(t.step.mfu.value_s)), number(float(b.days.value_s)),
                count_text(float(b.gpu_hours.value_s)), plan_brief(t.plan),
            )  # fmt: skip
    show_table(out, found)
    wrong = [r for r in rows if r.plans is None]
    for r in wrong[:REASONS]:
        out.print(f"{r.value:,}: {r.error}", style="dim", markup=False)
    if len(wrong) > REASONS:
        out.print(f"and {len(wrong) - REASONS} more like these (--json)", style="dim", markup=False)
