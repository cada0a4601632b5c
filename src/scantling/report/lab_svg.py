"""The figure of a study as plain SVG: every seed of every shape, and the sweep of rates."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from html import escape
from typing import Any

from scantling.messages import in_language
from scantling.report.lab_text import number, ranked

LETTER, SQUARE = 6.9, 12.0
"""Widths of a letter at most, on average, and of a Chinese one; longer names widen the figure."""
WIDTH, LEFT, ROW, TOP = 940, 190, 30, 34
SPLIT = 520
"""Where the panel of seeds ends and that of rates begins."""
COLOURS = ("#2c7fb8", "#d95f0e", "#31a354", "#756bb1", "#c51b8a", "#636363", "#8c510a", "#01665e")


def figure(found: dict[str, Any]) -> str:
    """Left: dots are seeds, bars 95 % intervals. Right: the loss that each rate was chosen by."""
    shapes = ranked(found)
    height = TOP + ROW * max(len(shapes), 7) + 44
    more = max(0, round(max(_wide(_told(s)) for s in shapes)) + 14 - LEFT)
    parts = [
        *opened(WIDTH + more, height, -more),
        *_seeds(found, shapes), *_sweep(shapes, height), "</svg>",
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


def _told(s: dict[str, Any]) -> str:
    """A shape's name, and why nothing may be said of it."""
    return f"{s['shape']} ({_why(s)})" if s["unresolved"] else str(s["shape"])


def _wide(said: str) -> float:
    return sum(LETTER if ord(c) < 0x2E80 else SQUARE for c in said)


def opened(width: int, height: int, left: int = 0) -> tuple[str, str]:
    """The beginning of a picture, white."""
    size = f'viewBox="{left} 0 {width} {height}" width="{width}" height="{height}"'
    font = 'font-family="system-ui, sans-serif" font-size="12"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>',
        f'<rect x="{left}" width="{width}" height="{height}" fill="white"/>',
    )


def text(x: float, y: float, said: str, anchor: str = "start", colour: str = "#1d2730") -> str:
    """A label."""
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"'
    return f"<text {where}>{escape(said)}</text>"


def line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1) -> str:
    """A straight line."""
    return (f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
            f'stroke-width="{width:g}"/>')  # fmt: skip


def axis(values: list[float], start: float, end: float, *, log: bool) -> Callable[[float], float]:
    """From a value to its place; values spread over 90 % of it."""
    scale = math.log if log else float
    low, high = min(map(scale, values)), max(map(scale, values))
    room = (high - low) * 0.06 or abs(high) * 0.01 or 1.0
    low, high = low - room, high + room
    return lambda v: start + (end - start) * (scale(v) - low) / (high - low)


def _seeds(found: dict[str, Any], shapes: list[dict[str, Any]]) -> list[str]:
    measure = found["study"]["measure"]
    known = [v for s in shapes for v in s["seeds"]]
    wilson = measure["solved"] is not None
    beside = f"; solved from {measure['solved']:g} on" if wilson else ", mean and 95 %"
    parts = [text(LEFT, 18, in_language(f"{measure['label']}: each seed{beside}"))]
    if not known:
        return [*parts, text(LEFT, TOP + 20, in_language("nothing to show"))]
    ends = (
        [measure["solved"]]
        if wilson
        else [s["interval"][e] for s in shapes if s["interval"] for e in ("low", "high")]
    )
    log = measure["ratio"] and min(known + ends) > 0
    place = axis(known + ends, LEFT, SPLIT - 20, log=log)
    base = TOP + ROW * len(shapes)
    for v in ticks(known + ends, log=log):
        parts += [line(place(v), TOP - 6, place(v), base, "#e5e9ed"),
                  text(place(v), base + 16, number(v), "middle", "#5c6b78")]  # fmt: skip
    if wilson:
        parts.append(line(place(ends[0]), TOP - 6, place(ends[0]), base, "#5c6b78"))
    for i, s in enumerate(shapes):
        y, colour = TOP + ROW * i + ROW / 2, COLOURS[i % len(COLOURS)]
        parts.append(
            text(LEFT - 12, y + 4, _told(s), "end", "#9aa5ae" if s["unresolved"] else colour)
        )
        if s["interval"] and not wilson:
            a, b, m = (place(s["interval"][k]) for k in ("low", "high", "value"))
            parts += [line(a, y, b, y, colour, 2), line(m, y - 8, m, y + 8, colour, 2)]
        parts += [
            f'<circle cx="{place(v):.1f}" cy="{y:.1f}" r="4" fill="{colour}" fill-opacity="0.55"/>'
            for v in s["seeds"]
        ]
    return parts


def _why(s: dict[str, Any]) -> str:
    return re.split("[:：]", in_language(str(s["unresolved"])), maxsplit=1)[0][:22]


def ticks(values: list[float], *, log: bool) -> list[float]:
    """Values to mark on an axis, three to eight of them.

    Example:
        >>> [round(v, 2) for v in ticks([1.955, 2.05], log=False)]
        [1.96, 1.98, 2.0, 2.02, 2.04]
    """
    low, high = min(values), max(values)
    if log:
        return [low * (high / low) ** (i / 3) for i in range(4)] if high > low else [low]
    step = 10 ** math.floor(math.log10((high - low) or 1.0))
    step *= next((k for k in (2, 1, 0.5, 0.2) if (high - low) / (step * k) >= 3), 0.2)
    first = math.ceil(low / step)
    return [i * step for i in range(first, math.floor(high / step) + 1)]


def _sweep(shapes: list[dict[str, Any]], height: float) -> list[str]:
    start, end, base = SPLIT + 60, WIDTH - 20, height - 44
    curves = [
        [(r, v) for r, v in zip(s["rates"], s["chosen"], strict=False) if v is not None]
        for s in shapes
    ]
    points = [p for c in curves for p in c]
    if not points or max(map(len, curves)) < 2:
        return []
    across = axis([r for r, _ in points], start, end, log=True)
    values = sorted(v for _, v in points)
    top = min(values[-1], values[0] + 4 * (values[len(values) // 2] - values[0]) + 1e-9)
    down = axis([values[0], top], base - 6, TOP, log=False)
    said = in_language("loss by learning rate, on the slice for choices; rings: chosen")
    parts = [text(start, 18, said)]
    for v in ticks([values[0], top], log=False):
        parts += [line(start, down(v), end, down(v), "#e5e9ed"),
                  text(start - 6, down(v) + 4, number(v), "end", "#5c6b78")]  # fmt: skip
    for r in (float(f"{m}e{k}") for k in range(-9, 3) for m in (1, 2, 5)):
        if start <= across(r) <= end:
            parts.append(text(across(r), base + 12, f"{r:g}", "middle", "#5c6b78"))
    for i, (s, curve) in enumerate(zip(shapes, curves, strict=True)):
        colour = COLOURS[i % len(COLOURS)]
        shown = [(across(r), max(down(v), TOP - 4.0), r) for r, v in curve]
        parts += [line(a[0], a[1], b[0], b[1], colour, 1.6)
                  for a, b in itertools.pairwise(shown)]  # fmt: skip
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{5 if r == s["rate"] else 2.5}" '
            f'fill="{"white" if r == s["rate"] else colour}" stroke="{colour}" stroke-width="2"/>'
            for x, y, r in shown
        ]  # fmt: skip
    return parts
