"""Small figures as inline SVG: bars, a histogram with limits, points under curves; no script.

Colours are classes of the page's style sheet, so that a figure follows its light or dark scheme.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 560, 230
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 22, 42
BINS = 36


class Axis(NamedTuple):
    """One axis of a figure: what it shows, from where to where."""

    label: str
    low: float
    high: float
    log: bool = False

    def at(self, value: float, start: float, end: float) -> float:
        """The place of a value between two places; values outside lie on the edge."""
        a, b, v = ((math.log(x) for x in (self.low, self.high, max(value, self.low / 2)))
                   if self.log else (self.low, self.high, value))  # fmt: skip
        share = 0.0 if b == a else (v - a) / (b - a)
        return start + min(1.0, max(0.0, share)) * (end - start)

    def ticks(self) -> list[float]:
        """Round numbers on it, five or so."""
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            steps = (1, 2, 5) if last - first <= 3 else (1,)
            every = [s * 10.0**e for e in range(first, last + 1) for s in steps]
        else:
            span = self.high - self.low
            step = 10.0 ** math.floor(math.log10(span / 4)) if span > 0 else 1.0
            step *= next(k for k in (1, 2, 5, 10) if span / (step * k) <= 6)
            first = math.ceil(self.low / step)
            every = [step * i for i in range(first, first + 8)]
        return [v for v in every if self.low <= v <= self.high * 1.0001]


def span_of(label: str, values: Sequence[float], marks: Sequence[float], *, log: bool) -> Axis:
    """An axis that holds values and marks, with a little room."""
    every = [v for v in (*values, *marks) if not log or v > 0]
    low, high = min(every), max(every)
    if log:
        return Axis(label, low / 1.1, high * 1.1, log=True)
    room = (high - low or 1.0) / 20
    return Axis(label, low - room, high + room)


def number(value: float) -> str:
    """A tick in few letters.

    Example:
        >>> [number(v) for v in (0.05, 3, 2000, 1.5e6, 7e9)]
        ['0.05', '3', '2 k', '1.5 M', '7 B']
    """
    for size, unit in ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _frame(inside: str, title: str) -> str:
    return (f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
            f'aria-label="{escape(title)}">{inside}</svg>')  # fmt: skip


def _x_axis(axis: Axis) -> str:
    base = HEIGHT - BOTTOM
    parts = [f'<path class="axis" d="M{LEFT} {base}H{WIDTH - RIGHT}"/>']
    for value in axis.ticks():
        x = axis.at(value, LEFT, WIDTH - RIGHT)
        parts.append(f'<path class="axis" d="M{x:.1f} {base}v4"/>'
                     f'<text x="{x:.1f}" y="{base + 16}" text-anchor="middle">'
                     f'{number(value)}</text>')  # fmt: skip
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" '
                 f'text-anchor="middle">{escape(axis.label)}</text>')  # fmt: skip
    return "".join(parts)


def _y_axis(axis: Axis) -> str:
    parts = []
    for value in axis.ticks():
        y = axis.at(value, HEIGHT - BOTTOM, TOP)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
                     f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
                     f'{number(value)}</text>')  # fmt: skip
    parts.append(f'<text x="4" y="12">{escape(axis.label)}</text>')
    return "".join(parts)


def histogram(
    label: str, values: Sequence[float], limits: Sequence[float] = (), *, log: bool = False
) -> str:
    """How many models have each value, with dashed lines at limits.

    Args:
        label: The axis.
        values: One a model.
        limits: Where the rule draws its lines.
        log: Whether the axis is a logarithm.

    Example:
        >>> histogram("D / L", [30.0, 60.0, 128.0], [30.0, 150.0]).count('class="limit"')
        2
    """
    axis = span_of(label, values, limits, log=log)
    counts = [0] * BINS
    for v in values:
        counts[min(BINS - 1, int(axis.at(v, 0, BINS)))] += 1
    up = Axis("models", 0, max(counts))
    wide = (WIDTH - RIGHT - LEFT) / BINS
    base = HEIGHT - BOTTOM
    bars = "".join(
        f'<rect class="bin" x="{LEFT + i * wide:.1f}" y="{up.at(n, base, TOP):.1f}" '
        f'width="{wide - 1:.1f}" height="{base - up.at(n, base, TOP):.1f}"/>'
        for i, n in enumerate(counts) if n
    )  # fmt: skip
    return _frame(_y_axis(up) + bars + _limits(axis, limits) + _x_axis(axis), label)


def _limits(axis: Axis, limits: Sequence[float]) -> str:
    parts = []
    for i, value in enumerate(limits):
        x = axis.at(value, LEFT, WIDTH - RIGHT)
        end = "end" if x > WIDTH - 60 else "start"
        parts.append(f'<path class="limit" d="M{x:.1f} {TOP - 8}V{HEIGHT - BOTTOM}"/>'
                     f'<text class="told" x="{x + (-4 if end == "end" else 4):.1f}" '
                     f'y="{TOP + 2 + 12 * (i % 2)}" text-anchor="{end}">'
                     f'{number(value)}</text>')  # fmt: skip
    return "".join(parts)


def bars(label: str, items: Sequence[tuple[str, float]], *, percent: bool = False) -> str:
    """A bar for each name, in the order given; its number stands on it.

    Example:
        >>> "75 %" in bars("follow", [("2023", 0.75)], percent=True)
        True
    """
    most = 1.0 if percent else max((v for _, v in items), default=1.0) or 1.0
    up = Axis("", 0, most)
    base = HEIGHT - BOTTOM
    wide = (WIDTH - RIGHT - LEFT) / max(1, len(items))
    parts = [f'<path class="axis" d="M{LEFT} {base}H{WIDTH - RIGHT}"/>']
    for i, (name, value) in enumerate(items):
        x, y = LEFT + i * wide, up.at(value, base, TOP)
        told = f"{value:.0%}".replace("%", " %") if percent else number(value)
        parts.append(f'<rect class="bin" x="{x + wide * 0.15:.1f}" y="{y:.1f}" '
                     f'width="{wide * 0.7:.1f}" height="{base - y:.1f}"/>'
                     f'<text x="{x + wide / 2:.1f}" y="{y - 4:.1f}" text-anchor="middle">{told}'
                     f'</text><text x="{x + wide / 2:.1f}" y="{base + 15}" text-anchor="middle">'
                     f'{escape(name)}</text>')  # fmt: skip
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" '
                 f'text-anchor="middle">{escape(label)}</text>')  # fmt: skip
    return _frame("".join(parts), label)


class Point(NamedTuple):
    """A model in a figure."""

    name: str
    x: float
    y: float


class Curve(NamedTuple):
    """A limit that depends on the other axis."""

    name: str
    y: Callable[[float], float]


def points(
    across: str, upward: str, found: Sequence[Point], curves: Sequence[Curve] = (), *,
    log: tuple[bool, bool] = (True, True),
) -> str:  # fmt: skip
    """Models as points, each with its name when pointed at, under curves.

    Example:
        >>> picture = points("D", "L", [Point("a", 1024.0, 12.0)], [Curve("5 log2 D", lambda d: 40)])
        >>> picture.count("<circle"), "5 log2 D" in picture
        (1, True)
    """  # noqa: E501 - an example is one line
    x_axis = span_of(across, [p.x for p in found], (), log=log[0])
    ends = [c.y(x) for c in curves for x in (x_axis.low, x_axis.high)]
    top = 4 * max(p.y for p in found)
    y_axis = span_of(upward, [p.y for p in found], [e for e in ends if 0 < e < top], log=log[1])
    parts = [_y_axis(y_axis), _x_axis(x_axis)]
    for p in found:
        x, y = x_axis.at(p.x, LEFT, WIDTH - RIGHT), y_axis.at(p.y, HEIGHT - BOTTOM, TOP)
        parts.append(f'<circle class="hit" cx="{x:.1f}" cy="{y:.1f}" r="3">'
                     f"<title>{escape(p.name)}</title></circle>")  # fmt: skip
    for i, curve in enumerate(curves):
        places = []
        for step in range(49):
            share = step / 48
            value = (math.exp(math.log(x_axis.low) * (1 - share) + math.log(x_axis.high) * share)
                     if x_axis.log else x_axis.low * (1 - share) + x_axis.high * share)  # fmt: skip
            here = curve.y(value)
            if y_axis.low <= here <= y_axis.high:
                places.append((x_axis.at(value, LEFT, WIDTH - RIGHT),
                               y_axis.at(here, HEIGHT - BOTTOM, TOP)))  # fmt: skip
        if places:
            line = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
            x, y = places[-1]
            parts.append(f'<path class="limit" d="M{line}"/><text class="told" x="{x:.1f}" '
                         f'y="{max(10.0, y - 5 - 12 * (i % 2)):.1f}" text-anchor="end">'
                         f'{escape(curve.name)}</text>')  # fmt: skip
    return _frame("".join(parts), f"{upward} against {across}")
