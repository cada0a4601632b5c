"""Attention and the sources of times as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scantling.report.text import show_table, table
from scantling.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from rich.console import Console

PHASES = ("prefill", "decode")


def print_attention(out: Console, found: dict[str, Any]) -> None:
    """Each distinct attention: time, tiles, traffic, blocks, and the kernels that take it."""
    if not found["attention"]:
        out.print("[bold]attention[/bold]: none\n")
        return
    out.print("[bold]attention[/bold]")
    shown = table(
        ("attention", "left"), ("phase", "left"), ("heads × width", "right"), ("time", "right"),
        ("share", "right"), ("of peak", "right"), ("of bandwidth", "right"),
        ("tile in shared memory", "right"), ("fused", "right"), ("unfused", "right"),
        ("blocks / SMs", "right"),
    )  # fmt: skip
    for a in found["attention"]:
        first = a["names"][0].removesuffix(".core") + f" × {a['layers']}"
        for phase in PHASES:
            if a[phase] is not None:
                shown.add_row(first, phase, *_row(a[phase]))
                first = ""
    show_table(out, shown)
    for text in dict.fromkeys(_kernels(a, phase) for a in found["attention"] for phase in PHASES
                              if a[phase] is not None):  # fmt: skip
        out.print(f"[dim]{text}[/dim]")
    out.print(
        "[dim]tile: queries × keys, blocks an SM holds × bytes of each; fused and unfused: bytes "
        "of one layer, and how many times as many if every score is written and read[/dim]\n"
    )


def _row(look: dict[str, Any]) -> tuple[str, ...]:
    s, t, fill = look["shape"], look["tile"], look["fill"]
    width = (
        f"{s['d_key']}" if s["d_value"] in {None, s["d_key"]} else f"{s['d_key']}/{s['d_value']}"
    )
    window = "" if s["reach"] is None or s["reach"] >= s["keys"] else f", window {s['reach']:g}"
    blocks = ""
    if fill is not None:
        blocks = f"{fill['blocks']:g} / {fill['sms']} ({fill['efficiency']:.0%})"
        if fill["splits"] > 1:
            blocks += f", split {fill['splits']:g}"
    traffic = look["traffic"]
    return (
        f"{s['n_head']}:{s['n_kv_head']} × {width}{window}", seconds_text(look["seconds"]["value"]),
        f"{look['share']:.1%}", f"{look['fraction'] * 100:.2g}%", f"{look['bandwidth']:.0%}",
        "" if t is None else f"{t['queries']} × {t['keys']}: {t['blocks_per_sm']} × "
        f"{bytes_text(t['shared_bytes'])}",
        bytes_text(traffic["fused"]),
        f"×{traffic['unfused'] / traffic['fused']:.3g}", blocks,
    )  # fmt: skip


def _kernels(a: dict[str, Any], phase: str) -> str:
    """Which kernels take a head width, and what the others say."""
    s, kernels = a[phase]["shape"], a[phase]["kernels"]
    width = (
        f"{s['d_key']}" if s["d_value"] in {None, s["d_key"]} else f"{s['d_key']}/{s['d_value']}"
    )
    taken = [k["reason"] for k in kernels.values() if k["verdict"] in {"yes", "padded"}]
    refused = [k["reason"] for k in kernels.values() if k["verdict"] in {"no", "unknown"}]
    if all(k["verdict"] == "unknown" for k in kernels.values()):
        return f"width {width}: the kernels of the table are NVIDIA's, of this chip none is known"
    says = "; ".join(taken) if taken else f"taken by none of the table: {'; '.join(refused)}"
    return f"width {width}: {says}"


def print_times(out: Console, phase: str, listed: dict[str, Any]) -> None:
    """Times of operators by source, side by side where both were asked for."""
    shown = table((f"{phase}: operator", "left"), ("fitted", "right"), ("90 %", "right"),
                  ("measured", "right"), ("fitted / measured", "right"), ("source", "left"),
                  )  # fmt: skip
    for op in listed["operators"]:
        fitted, measured = op["fitted"], op["measured"]
        interval = "" if fitted is None else (
            f"{seconds_text(fitted['low'])} to {seconds_text(fitted['high'])}"
        )  # fmt: skip
        shown.add_row(
            op["name"], "" if fitted is None else seconds_text(fitted["value"]), interval,
            "" if measured is None else seconds_text(measured["value"]),
            "" if op["ratio"] is None else f"{op['ratio']:.2f}",
            op["source"] or f"{fitted['kind']}: outside the tables" if fitted else op["source"],
        )  # fmt: skip
    show_table(out, shown)
    if not listed["tabled"] and any(op["used"] == "fitted" for op in listed["operators"]):
        out.print("[dim]the measured tables do not hold this chip[/dim]")
    ratio = (
        "" if listed["ratio"] is None else f"; fitted / measured of these ×{listed['ratio']:.2f}"
    )
    out.print(
        f"{phase}: {seconds_text(listed['seconds'])} of products and attention, "
        f"{listed['measured_share']:.0%} of it measured{ratio}"
    )
