"""Alignment as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scantling.report.text import show_table, table
from scantling.units import seconds_text

if TYPE_CHECKING:
    from rich.console import Console


def print_alignment(out: Console, found: dict[str, Any]) -> None:
    """Products, widths side by side, neighbours of each dimension, and what pruning can gain."""
    out.print(
        f"[bold]alignment on {found['chip']}[/bold], {found['dtype']}, {found['batch']} × "
        f"{found['context']:,} tokens, forward"
    )
    _products(out, found["products"])
    _widths(out, found["products"])
    _neighbours(out, found)
    for bound in found["pruning"]:
        out.print(
            f"pruning {bound['part']}: {bound['share']:.0%} of the time, so at most "
            f"×{bound['most']:.2f}; half of it ×{1 / (1 - bound['share'] / 2):.2f}"
        )
    for split in found["heads"]:
        out.print(
            f"[dim]same parameters: {split['n_head']} heads × {split['d_head']}, "
            f"{split['n_kv_head']} KV heads[/dim]"
        )


def _products(out: Console, products: list[dict[str, Any]]) -> None:
    shown = table(
        ("product", "left"), ("m × n × k", "right"), ("time", "right"), ("share", "right"),
        ("FLOPs/byte", "right"), ("bound", "left"), ("of peak", "right"), ("waves", "right"),
        ("tiles filled", "right"), ("misaligned", "right"),
    )  # fmt: skip
    for p in products:
        factor, waves = p["misaligned"], p["waves"]
        cost = "" if factor["high"] == 1 else f"×{factor['low']:.2f} to {factor['high']:.2f}"
        groups = f" × {p['groups']:g}" if p["groups"] != 1 else ""
        shown.add_row(
            p["name"], f"{p['m']:g} × {p['n']} × {p['k']:g}{groups}",
            seconds_text(p["seconds"]["value"]), f"{p['share']:.1%}",
            f"{p['intensity']:.0f} of {p['ridge']:.0f}", p["bound"], f"{p['fraction']:.0%}",
            f"{waves['waves']} ({waves['efficiency']:.0%})", f"{p['filled']:.0%}", cost,
        )  # fmt: skip
    show_table(out, shown)


def _widths(out: Console, products: list[dict[str, Any]]) -> None:
    shown = table(("reached of the peak at depth", "left"), *(
        (str(place["width"]), "right") for place in (products[0]["by_width"] if products else [])
    ))  # fmt: skip
    for p in products:
        shown.add_row(p["name"], *(
            f"{w['reached']:.0%} ({w['bound']})" for w in p["by_width"]
        ))  # fmt: skip
    show_table(out, shown)


def _neighbours(out: Console, found: dict[str, Any]) -> None:
    shown = table(
        ("dimension", "left"), ("now", "right"), ("divisible by", "right"), ("at", "right"),
        ("divisible by", "right"), ("parameters", "right"), ("speed", "right"), ("90 %", "right"),
    )  # fmt: skip
    for d in found["dimensions"]:
        first = True
        for n in d["neighbours"]:
            gain = n["gain"]
            own = (d["field"], f"{d['now']:,}", f"{d['multiple']}") if first else ("", "", "")
            shown.add_row(
                *own, f"{n['value']:,}", f"{n['multiple']}", f"{n['parameters']:+,}",
                f"×{gain['value']:.3f}", f"{gain['low']:.3f} to {gain['high']:.3f}",
            )  # fmt: skip
            first = False
    show_table(out, shown)
    for d in found["dimensions"][:1]:
        out.print(
            f"[dim]recommended: multiples of {d['recommended']}; a gain is not promised: "
            f"{d['why'][-1]} ({', '.join(d['why'][:-1])})[/dim]"
        )
