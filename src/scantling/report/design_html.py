"""A front as one HTML file that needs nothing beside it: plots, table, reasons, trail."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scantling.report.validate_html import STYLE
from scantling.search import Candidate, Front, binding_axes, difference, explain_all, findings
from scantling.search.space import limits
from scantling.search.trail import trail
from scantling.units import bytes_text, count_text

if TYPE_CHECKING:
    from scantling.report.design_more import Section

MORE_STYLE = """
.plot { height: 430px; } .plot svg { max-width: none; height: revert; }
.tall { overflow: auto; max-height: 32rem; } thead th { position: sticky; top: 0;
  background: var(--paper); }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 1rem; }
tr.choice td { font-weight: 600; background: var(--warn); }
tr.equal td:first-child { border-left: 4px solid #1f6fb2; }
tr.known td { color: var(--soft); }
td:nth-child(2), th:nth-child(2) { text-align: right; }
td:last-child { white-space: normal; } th:last-child { text-align: left; }
dt { font-weight: 600; margin-top: .6rem; } dd { margin-left: 1.2rem; }
pre { white-space: pre-wrap; font-size: 12.5px; }
"""
COLOURS = {"equal": "#1f6fb2", "front": "#9fb0bf", "known": "#31a354", "choice": "#d95f0e"}


def page(front: Front, more: Iterable[Section] = ()) -> str:
    """The report of a front.

    The figures are drawn by plotly's own script, taken from its wheel into the page (extra
    ``report``); without it the page says so and keeps its tables.

    Args:
        front: A front with a choice.
        more: What was asked beside it.
    """
    b, c = front.budget, front.chosen
    title = (
        f"{count_text(b.params)} parameters, {count_text(b.tokens)} tokens, {b.n_gpu} × {b.chip}"
    )
    script = plotly_script()
    missing = "<p class='note'>No figures: plotly is missing (pip install 'scantling[report]').</p>"
    drawn = _drawn(front) if script else ""
    plots = '<div class="pair"><div class="plot" id="plot0"></div><div class="plot" id="plot1">'
    plots = f"{plots}</div></div>" if script else missing
    told = "\n".join(
        f"<h2>{escape(one.key)}</h2><pre>{escape(chr(10).join(one.lines))}</pre>" for one in more
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>scantling design: {escape(title)}</title>
<style>{STYLE}{MORE_STYLE}</style>
<script>{script}</script>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
<p>{front.swept.evaluated:,} shapes, {front.swept.feasible:,} keep every limit,
{len(front.candidates)} on the front. The choice is <strong>{escape(c.name)}</strong>:
{int(c.counted.total):,} parameters, {c.days:.3g} days, {bytes_text(c.kv_bytes_per_token)} of cache
a token, {float(c.decode.value_s) * 1e3:.2f} ms a token. {len(front.equal)} shapes have a loss the
law cannot tell from the best, within {front.equal_within:.3f} nats; cost chose among them.</p>
{plots}
<h2>The front</h2>
<p class="note">Parameters, FLOPs and cache are exact. Δ loss is in nats a token at equal
{escape(b.equal)} against the choice, by the law '{escape(b.law)}', with its interval.
A bar at the left: the law cannot tell its loss from the best.</p>
<div class="tall">{_table(front)}</div>
<h2>Why the choice has these numbers</h2>
{_reasons(c)}
{told}
<h2>From the question to the answer</h2>
{_trail(front)}
<h2>What no objective prices</h2>
<div class="wide">{_axes(front)}</div>
</main>
{drawn}
</body>
</html>
"""


def plotly_script() -> str:
    """Plotly's script from its wheel; empty where it is not installed."""
    found = find_spec("plotly")
    for place in (found.submodule_search_locations or ()) if found is not None else ():
        path = Path(place) / "package_data" / "plotly.min.js"
        if path.is_file():
            return path.read_text("utf-8").replace("</script", "<\\/script")
    return ""


def _drawn(front: Front) -> str:
    """The script that draws the plots, last in the page, where their places have widths."""
    pairs = (
        ("days", "loss", f"training days on {front.budget.n_gpu} × {front.budget.chip}",
         "loss − loss of the choice, nats"),
        ("ms", "kv", f"ms a token, batch {front.budget.serve_batch}", "KV cache a token, KiB"),
    )  # fmt: skip
    groups = _points(front)
    parts = []
    for n, (x, y, left, up) in enumerate(pairs):
        traces = [
            {"type": "scatter", "mode": "markers", "name": name, "x": [p[x] for p in points],
             "y": [p[y] for p in points], "text": [p["text"] for p in points],
             "hovertemplate": "%{text}<extra></extra>",
             "marker": {"color": COLOURS[kind], "size": 14 if kind == "choice" else 7,
                        "symbol": {"choice": "star", "known": "diamond"}.get(kind, "circle")}}
            for kind, name, points in groups if points
        ]  # fmt: skip
        layout = {
            "margin": {"l": 60, "r": 10, "t": 10, "b": 45}, "hovermode": "closest",
            "xaxis": {"title": {"text": left}}, "yaxis": {"title": {"text": up}},
            "legend": {"orientation": "h", "y": 1.08},
            "paper_bgcolor": "#fff", "plot_bgcolor": "#fff",
        }  # fmt: skip
        figure = json.dumps([traces, layout]).replace("</", "<\\/")
        options = "{responsive: true, displaylogo: false, displayModeBar: false}"
        parts.append(f"Plotly.newPlot('plot{n}', ...{figure}, {options});")
    return f"<script>{' '.join(parts)}</script>"


def _points(front: Front) -> list[tuple[str, str, list[dict[str, Any]]]]:
    chosen, equal = front.chosen, set(front.equal)
    points = [_point(c, chosen) for c in front.candidates]
    known = [_point(c, chosen) for c in front.baselines]
    return [
        ("front", "front", [p for i, p in enumerate(points) if i not in equal]),
        ("equal", "loss equal to the best", [p for i, p in enumerate(points) if i in equal]),
        ("known", "known models", known), ("choice", "choice", [points[front.choice]]),
    ]  # fmt: skip


def _point(c: Candidate, reference: Candidate) -> dict[str, Any]:
    loss = difference(c, reference).value if c.priced and reference.priced else 0.0
    row = {"days": round(c.days, 4), "loss": round(loss, 5),
           "ms": round(float(c.decode.value_s) * 1e3, 4),
           "kv": round(c.kv_bytes_per_token / 1024, 3)}  # fmt: skip
    text = (f"{escape(c.name)}<br>Δ loss {loss:+.4f}, {c.days:.3g} days<br>"
            f"{row['ms']:.2f} ms, {bytes_text(c.kv_bytes_per_token)} a token")  # fmt: skip
    return {**row, "text": text}


HEAD = ("shape", "parameters", "Δ loss", "days", "KV/token", "ms/token", "D/L", "F/D", "findings")


def _table(front: Front) -> str:
    rows = []
    for i, c in enumerate(front.candidates):
        kind = "choice" if i == front.choice else "equal" if i in front.equal else "front"
        rows.append(_row(c, front.chosen, kind))
    rows += [_row(c, front.chosen, "known") for c in front.baselines]
    head = "".join(f'<th scope="col">{name}</th>' for name in HEAD)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _row(c: Candidate, reference: Candidate, kind: str) -> str:
    loss, shape = difference(c, reference), c.shape()
    half = ((loss.high or 0) - (loss.low or 0)) / 2
    delta = "0" if c is reference else f"{loss.value:+.4f} ± {half:.4f}"
    delta = delta if c.priced and reference.priced else "not priced"
    codes = ", ".join(dict.fromkeys(f["code"].lower() for f in findings(c)))
    cells = (
        c.name, f"{int(c.counted.total):,}", delta, f"{c.days:.3g}",
        bytes_text(c.kv_bytes_per_token), f"{float(c.decode.value_s) * 1e3:.2f}",
        f"{shape['D/L']:.0f}", f"{shape['F/D']:.2f}" if "F/D" in shape else "", codes,
    )  # fmt: skip
    return f'<tr class="{kind}">' + "".join(f"<td>{escape(x)}</td>" for x in cells) + "</tr>"


def _reasons(c: Candidate) -> str:
    parts = []
    for field, lines in explain_all(c).items():
        value = c.spec.tied if field == "tied" else c.dims()[field]
        shown = f"{value:,}" if not isinstance(value, bool) else str(value).lower()
        rest = "".join(f"<dd>{escape(text)}</dd>" for text in lines)
        parts.append(f"<dt>{escape(field)} {shown}</dt>{rest}")
    return f"<dl>{''.join(parts)}</dl>"


def _trail(front: Front) -> str:
    return "".join(_step(one["step"], one["lines"]) for one in trail(front))


def _step(name: str, lines: Iterable[str]) -> str:
    rows: Iterator[str] = (f"<dd>{escape(text)}</dd>" for text in lines)
    return f"<dl><dt>{escape(name)}</dt>{''.join(rows)}</dl>"


def _axes(front: Front) -> str:
    rows = []
    for axis in binding_axes(front):
        value = "" if axis["value"] is None else f"{axis['value']:.4g}"
        on = "on its bound" if axis["binding"] else "opened" if axis["opened"] else ""
        cells = (axis["axis"], limits(*axis["bounds"]), value, on, axis["why"])
        rows.append("<tr>" + "".join(f"<td>{escape(x)}</td>" for x in cells) + "</tr>")
    head = "".join(f"<th scope='col'>{n}</th>" for n in ("axis", "bounds", "choice", "", "why"))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
