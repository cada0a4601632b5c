"""Alignment as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scantling.report.attention_text import print_attention, print_times
from scantling.report.text import show_table, table
from scantling.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from rich.console import Console


def print_alignment(out: Console, found: dict[str, Any]) -> None:
    """What is slow and why, then products, attention, neighbours of each dimension, bounds."""
    chip = found["chip"]
    out.print(
        f"[bold]alignment on {chip}[/bold], {found['dtype']}, {found['batch']} × "
        f"{found['context']:,} tokens"
    )
    for phase, s in found["slowest"].items():
        out.print(_slowest(phase, s), markup=False)
    out.print("\n[bold]products[/bold] of a prefill")
    _products(out, found["products"])
    _widths(out, found)
    print_attention(out, found)
    out.print("[bold]nearby values[/bold], in a training step")
    _neighbours(out, found)
    for phase, name in (("prefill", "pruning"), ("decode", "pruning_decode")):
        bounds = [
            f"{p['part']} {p['share']:.0%} of the time, at most ×{p['most']:.2f}, half of "
            f"it ×{1 / (1 - p['share'] / 2):.2f}"
            for p in found[name]
            if p["share"] > 0
        ]
        if bounds:
            out.print(f"pruning, {phase}: {'; '.join(bounds)}", markup=False)
    _heads(out, found["heads"])
    for phase, listed in found.get("kernels", {}).items():
        print_times(out, phase, listed)


def _heads(out: Console, heads: list[dict[str, Any]]) -> None:
    """Splits into heads at equal parameters, and what their attention takes."""
    if not heads:
        return
    shown = table(("same parameters", "left"), ("KV heads", "right"),
                  ("attention of a prefill", "right"), ("of a decode step", "right"),
                  ("tile in shared memory", "right"))  # fmt: skip
    for h in heads:
        t = h["tile"]
        took = [h[f"{phase}_attention_seconds"] for phase in ("prefill", "decode")]
        shown.add_row(
            f"{h['n_head']} heads × {h['d_head']}", str(h["n_kv_head"]),
            *("" if s is None else seconds_text(s) for s in took),
            "" if t is None else f"{t['queries']} × {t['keys']}: {t['blocks_per_sm']} × "
            f"{bytes_text(t['shared_bytes'])}",
        )  # fmt: skip
    show_table(out, shown)
    out.print("[dim]the width of a head changes the loss too: --why d_head[/dim]")


def _slowest(phase: str, s: dict[str, Any]) -> str:
    parts = ", ".join(f"{name} {share:.0%}" for name, share in s["shares"])
    return (
        f"{phase}: {seconds_text(s['seconds']['value'])} of kernels ({parts}; "
        f"{s['waits']:.0%} waits for memory). Slowest: {s['operator']}, {s['share']:.0%}: "
        f"{s['why']}"
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
        groups = f" × {p['groups']:.4g}" if p["groups"] != 1 else ""
        groups += " experts" if p["grouped"] else ""
        shown.add_row(
            p["name"], f"{p['m']:.6g} × {p['n']} × {p['k']:g}{groups}",
            seconds_text(p["seconds"]["value"]), f"{p['share']:.1%}",
            f"{p['intensity']:.0f} of {p['ridge']:.0f}", p["bound"], f"{p['fraction']:.0%}",
            "" if waves is None else f"{waves['waves']} ({waves['efficiency']:.0%})",
            f"{p['filled']:.0%}", cost,
        )  # fmt: skip
    show_table(out, shown)


def _widths(out: Console, found: dict[str, Any]) -> None:
    """The place of each product in models of other widths, the same rows."""
    if not found["products"]:
        return
    places = found["products"][0]["by_width"]
    shown = table(("FLOPs/byte, of the peak, if d_model were", "left"), *(
        (f"{place['width']}" + (" (own)" if place["width"] == found["d_model"] else ""), "right")
        for place in places
    ))  # fmt: skip
    for p in found["products"]:
        shown.add_row(p["name"], *(
            f"{w['intensity']:.0f} {w['reached']:.0%}" + ("" if w["bound"] == "compute" else " mem")
            for w in p["by_width"]
        ))  # fmt: skip
    show_table(out, shown)
    ridge = places[0]["ridge"]
    out.print(f"[dim]below {ridge:.0f} FLOPs a byte {found['chip']} waits for memory (mem)[/dim]")


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
    if not shown.rows:
        out.print("  no better multiple lies within a fifth of a width that has one value")
        return
    show_table(out, shown)
    d = found["dimensions"][0]
    out.print(
        f"[dim]the 90 % is that of a declared prior on alignment ({', '.join(d['why'][:-1])}), not "
        f"of a measurement; recommended: multiples of {d['recommended']}; a gain is not promised: "
        f"{d['why'][-1]}[/dim]"
    )
