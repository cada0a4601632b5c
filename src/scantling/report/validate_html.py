"""The errors of all tables as one page that needs nothing beside it: inline SVG, no script."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape

from scantling.report.validate import (
    HEADINGS,
    MEANING,
    anchor,
    cells,
    perfect,
    row_text,
    verdict,
)
from scantling.validate.score import TableScore, deviation, inside
from scantling.validate.table import Scored

SIDE = 400
"""Width and height of a plot in pixels."""
MARGIN = 60
MOST_POINTS = 500
"""Points drawn of a table: more cannot be told apart, and the page must stay small."""
BINS = 40
REACH = 1.0
"""Errors beyond ±100 % fall into the last bin."""

STYLE = """
:root { color-scheme: light dark; --ink: #1d2730; --soft: #5c6b78; --line: #d5dce2;
  --paper: #ffffff; --in: #1f6fb2; --out: #c2410c; --warn: #fff4e5; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf0; --soft: #9fb0bf; --line: #3a4651;
  --paper: #14191e; --in: #6db3f2; --out: #ff9457; --warn: #3a2a17; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1320px; margin: 2rem auto; padding: 0 1rem; }
h2 { margin: 2.5rem 0 .25rem; font-size: 1.15rem; overflow-wrap: anywhere; }
a { color: var(--in); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: .25rem .45rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; }
th:first-child, td:first-child, td:nth-child(2), th:nth-child(2), td:last-child {
  text-align: left; }
.parts td:nth-child(2), .parts th:nth-child(2), .parts td:last-child { text-align: right; }
tr.bad td { background: var(--warn); }
.note { color: var(--soft); font-size: 13px; max-width: 75ch; }
.plots { display: flex; flex-wrap: wrap; gap: 1.5rem; margin: .75rem 0; }
svg { max-width: 100%; height: auto; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
.axis { stroke: var(--soft); fill: none; }
.grid { stroke: var(--line); }
.same { stroke: var(--ink); stroke-dasharray: 4 4; }
.hit { fill: var(--in); } .miss { fill: none; stroke: var(--out); stroke-width: 1.4; }
.bar { stroke: var(--in); stroke-opacity: .25; } .bar.far { stroke: var(--out); }
.bin { fill: var(--in); fill-opacity: .8; }
ul { margin: .25rem 0; padding-left: 1.2rem; font-size: 13px; }
"""


def page(tables: Sequence[TableScore], worst: int = 5) -> str:
    """A page with every error, and predicted against measured for every table.

    Example:
        >>> page([]).startswith("<!doctype html>")
        True
    """
    sections = "\n".join(_section(t, worst) for t in tables)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>scantling validate</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>Predicted against measured</h1>
<p class="note">{escape(MEANING)} A row is scored, or skipped because it cannot be resolved, or
excluded because its table says that it cannot be trusted.</p>
<div class="wide">{_overview(tables)}</div>
{sections}
</main>
</body>
</html>
"""


def _overview(tables: Sequence[TableScore]) -> str:
    head = "".join(f'<th scope="col">{h}</th>' for h in ("table", "quantity", *HEADINGS, "verdict"))
    rows = []
    for t in tables:
        wrong = verdict(t)
        bad = ' class="bad"' if wrong and not wrong.startswith("exact") else ""
        link = f'<a href="#{anchor(t)}">{escape(t.table)}</a>'
        rest = "".join(f"<td>{escape(c)}</td>" for c in (t.quantity, *cells(t), wrong))
        rows.append(f"<tr{bad}><td>{link}</td>{rest}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _section(t: TableScore, worst: int) -> str:
    lines = [f'<section id="{anchor(t)}">', f"<h2>{escape(t.table)}</h2>"]
    if t.quantity:
        lines.append(f'<p class="note">{escape(t.quantity)}: {t.errors.scored:,} of {t.rows:,} '
                     "rows scored</p>")  # fmt: skip
    if t.points and not perfect(t):
        lines.append(f'<div class="plots">{_scatter(t)}{_histogram(t)}</div>')
    elif t.points:
        lines.append(f"<p>{escape(verdict(t))} rows.</p>")
    if t.reasons:
        words = (f"{'excluded' if out else 'skipped'} {n:,}: {text}" for text, n, out in t.reasons)
        lines.append(f"<ul>{''.join(f'<li>{escape(w)}</li>' for w in words)}</ul>")
    if t.by:
        lines.append(_parts(t))
    if worst and t.points and not perfect(t):
        rows = "".join(f"<li>{escape(row_text(s))}</li>" for s in t.worst(worst))
        lines.append(f"<p class='note'>Worst rows</p><ul>{rows}</ul>")
    return "\n".join([*lines, "</section>"])


def _parts(t: TableScore) -> str:
    from scantling.report.validate import percent

    head = "".join(f'<th scope="col">{h}</th>' for h in ("part", "rows", *HEADINGS[4:]))
    rows = []
    for label, e in t.by:
        values = (e.mape, e.median_ape, e.p90_ape, e.interval_coverage, e.interval_width)
        figures = "".join(f"<td>{percent(v)}</td>" for v in values)
        rows.append(f"<tr><td>{escape(label)}</td><td>{e.scored:,}</td>{figures}</tr>")
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="wide"><table class="parts">{body}</table></div>'


def _sample(points: Sequence[Scored]) -> list[Scored]:
    """Points spread evenly over the measured values, both ends among them."""
    ordered = sorted((s for s in points if s.actual > 0 and s.predicted > 0),
                     key=lambda s: s.actual)  # fmt: skip
    if len(ordered) <= MOST_POINTS:
        return ordered
    step = (len(ordered) - 1) / (MOST_POINTS - 1)
    return [ordered[round(i * step)] for i in range(MOST_POINTS)]


def _scatter(t: TableScore) -> str:
    """Predicted against measured on two logarithmic axes, with the intervals."""
    points = _sample(t.points)
    if not points:
        return ""
    values = [v for s in points for v in (s.actual, s.predicted)]
    low, high = math.log10(min(values)), math.log10(max(values))
    pad = max(0.05 * (high - low), 0.02)
    low, high = low - pad, high + pad
    inner = SIDE - 2 * MARGIN

    def x(value: float) -> float:
        return MARGIN + inner * (math.log10(value) - low) / (high - low)

    def y(value: float) -> float:
        place = (math.log10(max(value, 1e-300)) - low) / (high - low)
        return MARGIN + inner * (1 - min(max(place, 0.0), 1.0))

    end = SIDE - MARGIN
    drawn = [f'<rect class="axis" x="{MARGIN}" y="{MARGIN}" width="{inner}" height="{inner}"/>']
    for tick in _ticks(low, high):
        label = _label(tick)
        drawn += [
            f'<path class="grid" d="M{x(tick):.1f} {MARGIN}V{end}M{MARGIN} {y(tick):.1f}H{end}"/>',
            f'<text x="{x(tick):.1f}" y="{end + 15}" text-anchor="middle">{label}</text>',
            f'<text x="{MARGIN - 5}" y="{y(tick) + 4:.1f}" text-anchor="end">{label}</text>',
        ]
    drawn.append(f'<path class="same" d="M{MARGIN} {end}L{end} {MARGIN}"/>')
    drawn += list(_marks(points, x, y))
    title = f"Predicted against measured {t.quantity}"
    drawn += [
        f'<text x="{SIDE / 2}" y="{SIDE - 12}" text-anchor="middle">measured {_unit(t)}</text>',
        (
            f'<text transform="translate(13 {SIDE / 2}) rotate(-90)" text-anchor="middle">'
            f"predicted {_unit(t)}</text>"
        ),
    ]
    if t.errors.interval_coverage is not None:
        drawn += LEGEND
    if len(points) < len(t.points):
        drawn.append(f'<text x="{end}" y="{MARGIN - 26}" text-anchor="end">'
                     f"{len(points)} of {len(t.points):,} rows drawn</text>")  # fmt: skip
    return _svg(SIDE, title, drawn)


def _marks(
    points: Sequence[Scored], x: Callable[[float], float], y: Callable[[float], float]
) -> Iterator[str]:
    """Each interval as a line, then each point: a dot inside its interval, a cross outside."""
    for s in points:
        if s.low is not None and s.high is not None:
            far = " far" if inside(s) is False else ""
            path = f"M{x(s.actual):.1f} {y(s.low):.1f}V{y(s.high):.1f}"
            yield f'<path class="bar{far}" d="{path}"/>'
    for s in points:
        a, b = x(s.actual), y(s.predicted)
        if inside(s) is False:
            yield f'<path class="miss" d="{_cross(a, b)}"/>'
        else:
            yield f'<circle class="hit" cx="{a:.1f}" cy="{b:.1f}" r="2.2"/>'


def _cross(a: float, b: float) -> str:
    return f"M{a - 3:.1f} {b - 3:.1f}l6 6m0 -6l-6 6"


LEGEND = (
    f'<circle class="hit" cx="{MARGIN + 4}" cy="{MARGIN - 12}" r="3"/>',
    f'<text x="{MARGIN + 12}" y="{MARGIN - 8}">inside the interval</text>',
    f'<path class="miss" d="{_cross(MARGIN + 140, MARGIN - 12)}"/>',
    f'<text x="{MARGIN + 149}" y="{MARGIN - 8}">outside</text>',
)


def _histogram(t: TableScore) -> str:
    """How many rows have which signed error, ±100 % and beyond in the last bins."""
    counts = [0] * BINS
    for s in t.points:
        share = (min(max(deviation(s), -REACH), REACH) + REACH) / (2 * REACH)
        counts[min(int(share * BINS), BINS - 1)] += 1
    inner = SIDE - 2 * MARGIN
    most = max(counts)
    step, end = inner / BINS, SIDE - MARGIN
    drawn = []
    for i, n in enumerate(counts):
        if n:
            tall = inner * n / most
            drawn.append(f'<rect class="bin" x="{MARGIN + i * step + 0.5:.1f}" y="{end - tall:.1f}"'
                         f' width="{step - 1:.1f}" height="{tall:.1f}"/>')  # fmt: skip
    for value in (-1.0, -0.5, 0.0, 0.5, 1.0):
        a = MARGIN + inner * (value + REACH) / (2 * REACH)
        drawn.append(f'<text x="{a:.1f}" y="{end + 15}" text-anchor="middle">'
                     f"{value:+.0%}</text>".replace("+0%", "0").replace("%", " %"))  # fmt: skip
    middle = MARGIN + inner / 2
    drawn += [
        f'<path class="axis" d="M{MARGIN} {end}H{SIDE - MARGIN}"/>',
        f'<path class="same" d="M{middle} {MARGIN}V{end}"/>',
        f'<text x="{MARGIN}" y="{MARGIN - 8}">rows, at most {most:,}</text>',
        (
            f'<text x="{SIDE / 2}" y="{SIDE - 12}" text-anchor="middle">'
            "predicted / measured − 1</text>"
        ),
    ]
    return _svg(SIDE, f"Rows by error of {t.quantity}", drawn)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between two logarithms: about five powers of ten, or 1, 2, 5 of each.

    Example:
        >>> _ticks(2.0, 4.0), _ticks(math.log10(120), math.log10(190))
        ([100.0, 1000.0, 10000.0], [120.0, 140.0, 160.0, 180.0])
    """
    first, last = math.ceil(low), math.floor(high)
    if last - first >= 2:
        step = max(1, (last - first) // 5)
        return [10.0**e for e in range(first, last + 1, step)]
    wanted = [m * 10.0**e for e in range(math.floor(low), last + 1) for m in (1, 2, 5)]
    found = [v for v in wanted if low <= math.log10(v) <= high]
    if len(found) >= 2:
        return found
    start, end = 10**low, 10**high
    power = 10.0 ** math.floor(math.log10((end - start) / 3))
    apart = next(m * power for m in (5, 2, 1) if m * power <= (end - start) / 3)
    return [apart * i for i in range(math.ceil(start / apart), math.floor(end / apart) + 1)]


def _label(value: float) -> str:
    """A round number in few characters.

    Example:
        >>> [_label(v) for v in (0.05, 20.0, 5000.0, 1e6)]
        ['0.05', '20', '5,000', '1e6']
    """
    if value >= 1e6 or value < 1e-3:
        return f"{value:.0e}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _unit(t: TableScore) -> str:
    """The unit behind the last comma of a quantity."""
    _, comma, unit = t.quantity.rpartition(",")
    return escape(f"({unit.strip()})") if comma else ""


def _svg(side: int, title: str, drawn: Sequence[str]) -> str:
    inside_ = "".join(drawn)
    return (f'<svg width="{side}" height="{side}" viewBox="0 0 {side} {side}" role="img" '
            f'aria-label="{escape(title)}">{inside_}</svg>')  # fmt: skip
