"""A fitted law as one page that needs nothing beside it: plotly's script is in the page."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scantling.errors import FieldError
from scantling.laws.runs import has
from scantling.units import count_text

if TYPE_CHECKING:
    from scantling.laws.fit import Fit
    from scantling.laws.runs import Runs

CURVES = 6
"""Curves of equal FLOPs drawn over the compute of the runs."""
NEAR = 1.3
"""A run belongs to a curve whose FLOPs or size are within this factor of its own."""
VALLEY = 0.005
COLOURS = ("#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39")
"""Viridis without its palest end: from few to many."""

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2730; max-width: 1180px; margin: 2rem auto;
  padding: 0 1rem; }
h2 { margin: 2.2rem 0 .2rem; font-size: 1.15rem; }
.note { color: #5c6b78; font-size: 13px; max-width: 80ch; margin: .2rem 0; }
.warning { background: #fff4e5; padding: .3rem .6rem; margin: .3rem 0; font-size: 14px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { padding: .22rem .7rem; border-bottom: 1px solid #d5dce2; text-align: right; }
th:first-child, td:first-child { text-align: left; }
.tables { display: flex; flex-wrap: wrap; gap: 3rem; align-items: flex-start; }
"""

Trace = dict[str, Any]


def save_page(found: Fit, runs: Runs, folder: Path) -> Path:
    """Write ``report.html``: constants, errors, and what the runs say of the law, drawn.

    Args:
        found: The fit.
        runs: The runs it was fitted to.
        folder: Made if it does not exist.

    Raises:
        FieldError: If plotly is missing or the folder cannot be written.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        hint = "pip install 'scantling[report]'"
        raise FieldError("--report", None, "needs plotly", hint) from None
    path = folder / "report.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(page(found, runs, get_plotlyjs()), encoding="utf-8")
    except OSError as error:
        raise FieldError("--report", str(folder), f"cannot be written: {error}") from error
    return path


def page(found: Fit, runs: Runs, script: str) -> str:
    """The page as text.

    Args:
        found: The fit.
        runs: The runs it was fitted to.
        script: Plotly's JavaScript.
    """
    facts = found.law.facts
    figures = (_isoflop, _by_tokens, _measured, _residuals, _coverage)
    divisions, calls = [], []
    for i, ((title, note), figure) in enumerate(zip(TITLES.items(), figures, strict=True)):
        traces, layout = figure(found, runs)
        divisions.append(f'<h2>{escape(title)}</h2><p class="note">{escape(note)}</p>'
                         f'<div id="plot{i}"></div>')  # fmt: skip
        data = json.dumps([traces, LAYOUT | layout]).replace("</", "<\\/")
        calls.append(f'draw("plot{i}", {data});')
    warnings = "".join(f'<p class="warning">{escape(w)}</p>' for w in found.warnings)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(facts.title)}: fit to {found.rows:,} runs</title>
<style>{STYLE}</style>
<script>{script}</script>
</head>
<body>
<h1>{escape(facts.title)}</h1>
<p class="note">Form {escape(found.form)}, fitted to {found.rows:,} runs of
{escape(facts.recipe)}; mean absolute error {found.mae:.4f} nats a token in sample.</p>
{warnings}
<div class="tables">{_constants(found)}<div>{_holdout(found)}<br>{_domain(found)}</div></div>
{"".join(divisions)}
<script>
function draw(id, given) {{
  Plotly.newPlot(id, given[0], given[1], {{responsive: true, displaylogo: false}});
}}
{"".join(calls)}
</script>
</body>
</html>
"""


TITLES = {
    "Curves of equal FLOPs":
        "Loss by the law along lines of equal C = 6 N D, at the middle width over depth of the "
        f"runs. Rings are the optima, bars their valley of {VALLEY:g} nats. Dots are runs within "
        f"×{NEAR:g} of a curve's FLOPs, each of its own shape.",
    "Loss against tokens":
        "Lines are the law for a model, dots its runs; at most a dozen models.",
    "Predicted and measured":
        "With the 90 % interval of an absolute loss; on the dotted line they agree.",
    "Residuals":
        "Predicted minus measured, nats a token, in sample. A slope or a bend is something that "
        "the form cannot say.",
    "Coverage":
        "Share of runs inside their 90 % interval, in sample, by thirds of each axis. What held "
        "for runs held out is in the table above.",
}  # fmt: skip
"""What each figure is, and how to read it, in the order of the page."""

LAYOUT: dict[str, Any] = {
    "template": "none", "height": 440, "margin": {"l": 70, "r": 20, "t": 20, "b": 60},
    "font": {"family": "system-ui, sans-serif", "size": 12}, "hovermode": "closest",
    "legend": {"font": {"size": 11}},
}  # fmt: skip


def _axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, "gridcolor": "#e5e9ed", "zeroline": False,
            "linecolor": "#5c6b78", "ticks": "outside", **more}  # fmt: skip


def _log(title: str, **more: Any) -> dict[str, Any]:
    return _axis(title, type="log", exponentformat="B", dtick="D2", **more)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    first = "".join(f'<th scope="col">{escape(h)}</th>' for h in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{first}</tr></thead><tbody>{body}</tbody></table>"


def _constants(found: Fit) -> str:
    c = found.law.facts.constants
    rows = [[k, f"{c[k]:.4g}", f"{a:.4g} to {b:.4g}"] for k, (a, b) in found.intervals.items()]
    return _table(["constant", "value", "90 %"], rows)


def _holdout(found: Fit) -> str:
    rows = [
        [k.replace("_", " "), f"{one.groups}", f"{one.mae:.4f}", f"{one.bias:+.4f}",
         f"{one.worst:.4f}", f"{one.coverage:.0%}"]
        for k, one in found.holdout.items()
    ]  # fmt: skip
    return _table(["held out", "groups", "mean error", "bias", "worst group", "in interval"], rows)


def _domain(found: Fit) -> str:
    rows = [[k, f"{count_text(a)} to {count_text(b)}"]
            for k, (a, b) in found.law.facts.domain.items()]  # fmt: skip
    return _table(["fitted", "range"], rows)


def _predicted(found: Fit, runs: Runs) -> tuple[Any, Any]:
    """Predictions and half-widths of the intervals, one for each run."""
    import numpy as np

    shape = runs.loss.shape
    return tuple(
        np.broadcast_to(np.asarray(v, float), shape)
        for v in (found.law.loss(runs.features), found.law.interval(runs.features))
    )  # type: ignore[return-value]


def _names(runs: Runs) -> list[str]:
    """A name for each run: its shape where it is known, and its size."""
    f = runs.features
    known = has(f.width) and has(f.depth)
    return [
        (f"{f.width[i]:.0f} × {f.depth[i]:.0f}, " if known else "")  # type: ignore[index]
        + f"{count_text(float(runs.size[i]))}, {count_text(float(f.tokens[i]))} tokens"  # type: ignore[index]
        for i in range(len(runs))
    ]  # fmt: skip


def _numbers(values: Any) -> list[float]:
    """Plain numbers of six digits: the page stays small."""
    return [float(f"{float(v):.6g}") for v in values]


def _isoflop(found: Fit, runs: Runs) -> tuple[list[Trace], dict[str, Any]]:
    import numpy as np

    from scantling.laws.optimum import Spending, least_loss, shaped

    size = np.asarray(found.law.size(runs.features), dtype=float)
    flops = 6 * size * np.asarray(runs.features.tokens)
    aspect = runs.features.aspect
    middle = float(np.median(aspect)) if has(aspect) else 64.0
    names = _names(runs)
    traces: list[Trace] = []
    shown = list(runs.loss)
    budgets = np.geomspace(flops.min(), flops.max(), CURVES)
    for budget, colour in zip(budgets, _colours(CURVES), strict=True):
        best = least_loss(found.law, Spending(flops=float(budget), aspect=middle), VALLEY)
        shown.append(best.loss)
        low, high = min(size.min(), best.size) / 2, max(size.max(), best.size) * 2
        sizes = np.geomspace(low, high, 120)
        losses = np.asarray(found.law.loss(shaped(sizes, budget / (6 * sizes), middle)))
        label = f"{budget:.1e} FLOPs"
        traces.append(_line(sizes, losses, colour, label))
        near = np.flatnonzero(np.abs(np.log(flops / budget)) < math.log(NEAR))
        traces.append(_dots(size[near], runs.loss[near], colour, [names[i] for i in near]))
        traces.append({
            "x": _numbers([best.size]), "y": _numbers([best.loss]), "mode": "markers",
            "marker": {"color": "white", "size": 9, "line": {"color": colour, "width": 2}},
            "error_x": {"type": "data", "symmetric": False, "color": colour, "thickness": 1.5,
                        "array": _numbers([(best.high or best.size) - best.size]),
                        "arrayminus": _numbers([best.size - (best.low or best.size)])},
            "showlegend": False, "hovertemplate":
            f"best at {label}: {count_text(best.size)} on {count_text(best.tokens)} tokens"
            "<extra></extra>",
        })  # fmt: skip
    return traces, {"xaxis": _log(f"{found.law.counts} parameters N"),
                    "yaxis": _axis("nats a token", range=_room(shown))}  # fmt: skip


def _room(losses: Any) -> list[float]:
    """The range of the losses with some room: curves far above it are cut."""
    low, high = float(min(losses)), float(max(losses))
    return [low - 0.12 * (high - low), high + 0.2 * (high - low)]


def _by_tokens(found: Fit, runs: Runs) -> tuple[list[Trace], dict[str, Any]]:
    """A line a model, at most a dozen of them, spread over the sizes."""
    import numpy as np

    from scantling.laws.runs import take

    groups = runs.shapes
    _, first = np.unique(groups, return_index=True)
    order = first[np.argsort(runs.size[first])]
    chosen = order[np.unique(np.linspace(0, len(order) - 1, 12).astype(int))]
    names = _names(runs)
    tokens: Any = runs.features.tokens
    ends = np.geomspace(tokens.min() / 1.5, tokens.max() * 1.5, 60)
    traces: list[Trace] = []
    for i, colour in zip(chosen, _colours(len(chosen)), strict=True):
        mine = np.flatnonzero(groups == groups[i])
        many = take(runs.features, np.full(len(ends), i))
        losses = _at_tokens(found, many, ends)
        traces.append(_line(ends, losses, colour, names[i].rpartition(", ")[0]))
        traces.append(_dots(tokens[mine], runs.loss[mine], colour, [names[j] for j in mine]))
    return traces, {"xaxis": _log("tokens"), "yaxis": _axis("nats a token", range=_room(runs.loss))}


def _at_tokens(found: Fit, features: Any, tokens: Any) -> Any:
    import msgspec
    import numpy as np

    moved = msgspec.structs.replace(features, tokens=tokens, unique_tokens=None)
    return np.broadcast_to(np.asarray(found.law.loss(moved), float), tokens.shape)


def _measured(found: Fit, runs: Runs) -> tuple[list[Trace], dict[str, Any]]:
    predicted, half = _predicted(found, runs)
    ends = [float(runs.loss.min()), float(runs.loss.max())]
    points = _dots(runs.loss, predicted, COLOURS[2], _names(runs))
    points["error_y"] = {"type": "data", "array": _numbers(half), "width": 0, "thickness": 0.7,
                         "color": "rgba(54,92,141,0.35)"}  # fmt: skip
    line = {"x": ends, "y": ends, "mode": "lines", "line": {"color": "#5c6b78", "dash": "dot"},
            "showlegend": False, "hoverinfo": "skip"}  # fmt: skip
    return [points, line], {"xaxis": _axis("measured, nats a token"),
                            "yaxis": _axis("predicted, nats a token")}  # fmt: skip


def _axes(found: Fit, runs: Runs) -> dict[str, Any]:
    f = runs.features
    known = {f"{found.law.counts} parameters": found.law.size(f), "tokens": f.tokens}
    return known | ({"width over depth": f.aspect} if has(f.aspect) else {})


def _residuals(found: Fit, runs: Runs) -> tuple[list[Trace], dict[str, Any]]:
    predicted, _ = _predicted(found, runs)
    errors, names = predicted - runs.loss, _names(runs)
    axes = _axes(found, runs)
    traces, layout = [], dict[str, Any]()
    for i, (title, values) in enumerate(axes.items(), 1):
        n = "" if i == 1 else str(i)
        traces.append(_dots(values, errors, COLOURS[3], names)
                      | {"xaxis": f"x{n}", "yaxis": "y"})  # fmt: skip
        width = 1 / len(axes)
        layout[f"xaxis{n}"] = _log(title, domain=[(i - 1) * width, i * width - 0.04], anchor="y")
    layout["yaxis"] = _axis("predicted − measured") | {
        "zeroline": True, "zerolinecolor": "#1d2730", "anchor": "x"}  # fmt: skip
    return traces, layout | {"height": 360}


def _coverage(found: Fit, runs: Runs) -> tuple[list[Trace], dict[str, Any]]:
    import numpy as np

    predicted, half = _predicted(found, runs)
    inside = np.abs(predicted - runs.loss) <= half
    labels, shares, texts = ["all runs"], [float(inside.mean())], [f"{len(runs):,} runs"]
    for title, values in _axes(found, runs).items():
        edges = np.unique(np.quantile(values, (0, 1 / 3, 2 / 3, 1)))
        parts = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
        for part in np.unique(parts):
            mine = parts == part
            ends = [count_text(float(f(np.asarray(values)[mine]))) for f in (np.min, np.max)]
            labels.append(f"{title}<br>{ends[0]} to {ends[1]}")
            shares.append(float(inside[mine].mean()))
            texts.append(f"{int(mine.sum()):,} runs")
    bars = {
        "type": "bar", "x": labels, "y": _numbers(shares), "text": texts, "textposition": "inside",
        "insidetextanchor": "start", "textangle": 0, "marker": {"color": COLOURS[3]},
        "showlegend": False, "hovertemplate": "%{y:.1%}, %{text}<extra></extra>",
    }  # fmt: skip
    wanted = {"type": "line", "x0": 0, "x1": 1, "xref": "paper", "y0": 0.9, "y1": 0.9,
              "line": {"color": "#c2410c", "dash": "dash"}}  # fmt: skip
    return [bars], {"xaxis": _axis(""), "yaxis": _axis("inside", range=[0, 1], tickformat=".0%"),
                    "shapes": [wanted], "height": 360,
                    "margin": LAYOUT["margin"] | {"b": 80}}  # fmt: skip


def _line(x: Any, y: Any, colour: str, name: str) -> Trace:
    return {"x": _numbers(x), "y": _numbers(y), "mode": "lines", "name": name,
            "line": {"color": colour, "width": 1.5}, "hoverinfo": "skip"}  # fmt: skip


def _dots(x: Any, y: Any, colour: str, names: Sequence[str]) -> Trace:
    return {"x": _numbers(x), "y": _numbers(y), "mode": "markers", "text": list(names),
            "marker": {"color": colour, "size": 5, "opacity": 0.7}, "showlegend": False,
            "hovertemplate": "%{text}<br>%{y:.4f}<extra></extra>"}  # fmt: skip


def _colours(n: int) -> list[str]:
    """Colours from few to many; neighbours share one where there are more than colours."""
    return [COLOURS[i * len(COLOURS) // n] for i in range(n)]
