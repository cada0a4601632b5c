"""The depth of every named model against both published limits."""

from __future__ import annotations

from typing import Any

from scantling import catalog
from scantling.costs.depth import DepthLimits, published_depths
from scantling.report.text import show_table, table


def depth_table(names: tuple[str, ...] = ()) -> dict[str, Any]:
    """Each model's layers over each limit at its width, and the share of models beyond.

    An encoder-decoder counts its decoder; a block that is a mixer or a feed-forward alone
    (Nemotron-H) counts as a layer, so such stacks look deeper than they are.

    Args:
        names: Models of the catalogue; none is all, the furthest beyond first.

    Example:
        >>> found = depth_table(("gpt3-175b",))
        >>> [round(found["models"][0]["times"][k], 2) for k in ("power", "log2", "ln")]
        [1.48, 1.41, 4.2]
    """
    chosen = names or tuple(catalog.named())
    rows: list[dict[str, Any]] = []
    for name in chosen:
        one = catalog.loaded(name)
        width, layers = int(one.spec.d_model), int(one.spec.n_layer)
        limits = published_depths(width)
        rows.append({
            "model": one.name, "released": catalog.named()[one.name].released, "d_model": width,
            "n_layer": layers, "limits": limits._asdict(),
            "times": {k: layers / v for k, v in limits._asdict().items()},
        })  # fmt: skip
    if not names:
        rows.sort(key=lambda row: -row["times"]["power"])
    return {"models": rows, "beyond": _beyond(rows),
            "by_year": {year: _beyond([r for r in rows if r["released"].startswith(year)])
                        for year in sorted({r["released"][:4] for r in rows})}}  # fmt: skip


def _beyond(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How many models there are, and the share of them beyond each limit, and beyond two."""
    n = len(rows)
    share = {k: sum(r["times"][k] > 1 for r in rows) / n for k in DepthLimits._fields}
    both = sum(r["times"]["power"] > 1 and r["times"]["log2"] > 1 for r in rows) / n
    return {"models": n, **share, "power and log2": both}


def print_depths(out: Any, found: dict[str, Any]) -> None:
    """The table, and the shares by year."""
    shown = table(("model", "left"), ("released", "left"), ("layers × width", "right"),
                  ("16 (D/512)^0.44", "right"), ("5 log2 D", "right"),
                  ("2.43 ln D", "right"))  # fmt: skip
    for row in found["models"]:
        cells = [f"{row['limits'][k]:.0f} (×{row['times'][k]:.2f})" for k in DepthLimits._fields]
        shape = f"{row['n_layer']} × {row['d_model']}"
        shown.add_row(row["model"], row["released"], shape, *cells)
    show_table(out, shown)
    years = table(("released", "left"), ("models", "right"), ("beyond 16 (D/512)^0.44", "right"),
                  ("5 log2 D", "right"), ("both", "right"), ("2.43 ln D", "right"))  # fmt: skip
    for year, share in [*found["by_year"].items(), ("all", found["beyond"])]:
        keys = ("power", "log2", "power and log2", "ln")
        years.add_row(year, f"{share['models']}", *(f"{share[k]:.0%}" for k in keys))
    show_table(out, years)
    out.print("[dim]claims of one preprint in three readings; runs at fixed width contradict them: "
              "scantling laws claims[/dim]")  # fmt: skip


__all__ = ["depth_table", "print_depths"]
