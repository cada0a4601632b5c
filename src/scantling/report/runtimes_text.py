"""The support of runtimes, as text."""

from __future__ import annotations

from typing import Any

from scantling.report.text import show_table, table


def print_support(out: Any, name: str, found: dict[str, Any]) -> None:
    """One model: its kinds of layer and its heads against each runtime."""
    known = found["runtimes"]
    out.print(f"\n[bold]{name}[/bold] on {found['gpu']}")
    shown = table(("", "left"), ("layers", "right"), *((key, "left") for key in known))
    for word, n in found["kinds"].items():
        cells = [one["layers"][word]["verdict"] for one in known.values()]
        shown.add_row(word.replace("_", " "), f"{n}", *cells)
    shown.add_section()
    for i, (key, value) in enumerate(found["heads"]):
        width = f"head {key}" if key == value else f"head {key}, value {value}"
        form = found["places"][i].rpartition(", ")[2]
        width += f" ({form})" if form in {"prefill", "decode"} else ""
        cells = [one["heads"][i]["verdict"] for one in known.values()]
        shown.add_row(width, "", *cells)
    shown.add_section()
    shown.add_row("all", "", *(one["takes"] for one in known.values()), style="bold")
    show_table(out, shown)
    for key, one in known.items():
        for word, verdict in one["layers"].items():
            if verdict["verdict"] != "yes":
                out.print(f"  {key}: {word.replace('_', ' ')} {verdict['verdict']}: "
                          f"{verdict['why']}", markup=False)  # fmt: skip
        for (width, _), head in zip(found["heads"], one["heads"], strict=True):
            with_ = ", ".join(head["kernels"])
            text = "; ".join(part for part in (with_, head["why"]) if part)
            out.print(f"  {key}: head {width} {head['verdict']}: {text}", markup=False,
                      style="dim" if head["verdict"] == "yes" else None)  # fmt: skip
    read = "; ".join(f"{one['title']}, kernels of {one['kernels_of']}" for one in known.values())
    out.print(f"[dim]read: {read}[/dim]")


__all__ = ["print_support"]
