"""The inverse questions of ``plan`` as text and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scantling.report.plan import to_json
from scantling.report.plan_text import print_plan
from scantling.search.plan_inverse import Solution
from scantling.units import count_text

if TYPE_CHECKING:
    from rich.console import Console

WORDS = {
    "context": "longest context", "batch": "largest micro-batch", "gpus": "fewest GPUs",
    "model": "largest model",
}  # fmt: skip


def solution_json(found: Solution) -> dict[str, Any]:
    """The answer, what was tried, and the plan behind it."""
    return {
        "schema": 1, "solve": found.asked, "value": found.value, "unit": found.unit,
        "note": found.note, "tried": [{"value": t.value, "answer": t.answer} for t in found.tried],
        "answer": None if found.plans is None else to_json(found.plans),
    }  # fmt: skip


def print_solution(out: Console, found: Solution) -> None:
    """The answer in a line, what was tried, and the plan behind it."""
    what = WORDS[found.asked]
    if found.value is None:
        out.print(f"[bold]{what}[/bold]: none of those tried")
    else:
        shown = count_text(found.value) if found.asked == "model" else f"{found.value:,}"
        out.print(f"[bold]{what}: {shown} {found.unit}[/bold]")
    if found.note:
        out.print(f"  {found.note}", style="dim", markup=False)
    for t in found.tried:
        out.print(f"  tried {t.answer}", style="dim", markup=False)
    if found.plans is not None:
        print_plan(out, found.plans, 4)
