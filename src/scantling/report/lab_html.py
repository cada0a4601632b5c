"""A study as one page that needs nothing beside it, for someone who did not run it."""

from __future__ import annotations

from html import escape
from typing import Any

from scantling.messages import in_language, language, with_names
from scantling.report.lab_svg import figure
from scantling.report.lab_text import (
    beside,
    each_seed,
    explained,
    judged_by,
    judgement,
    kept,
    number,
    ranked,
)
from scantling.units import count_text

UNBROKEN = 12
"""Letters below which a cell is not broken over lines."""
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2730; max-width: 980px; margin: 2rem auto;
  padding: 0 1rem; }
h2 { margin: 1.8rem 0 .2rem; font-size: 1.1rem; }
.answer { background: #eef6fb; border-left: 4px solid #2c7fb8; padding: .5rem .9rem; }
p { max-width: 85ch; margin: .35rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid #d5dce2; text-align: right; }
th:first-child, td:first-child, td.seeds { text-align: left; }
.dim { color: #8a96a0; }
svg { max-width: 100%; height: auto; }
"""


def page(found: dict[str, Any]) -> str:
    """The page as text."""
    study = found["study"]
    sections = []
    for title, paragraphs in explained(found):
        body = "".join(f"<p>{escape(p)}</p>" for p in paragraphs)
        if title == "What was found":
            body += figure(found) + _table(found)
        sections.append(f"<h2>{escape(in_language(title))}</h2>{body}")
    answer = with_names(found["headline"], kept(found), clauses=True)
    return document(study["name"], answer, "".join(sections))


def document(name: str, headline: str, sections: str) -> str:
    """A page with its answer on top."""
    return f"""<!doctype html>
<html lang="{language()}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(name)}: {escape(headline)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(name)}</h1>
<p class="answer">{escape(headline)}</p>
{sections}
</body>
</html>
"""


def _table(found: dict[str, Any]) -> str:
    measure, also = found["study"]["measure"], found["study"]["also"]
    if found["study"].get("probed"):
        return _rows(["", measure["label"], "each seed", *(m["label"] for m in also)], [
            (s, [s["shape"], "" if s["interval"] is None else number(s["interval"]["value"]),
                 " ".join(number(v) for v in s["seeds"]) or in_language(str(s["unresolved"])),
                 *beside(s, also)]) for s in ranked(found)
        ])  # fmt: skip
    heads = ["shape", "layers × width", "body", "tokens", "train FLOPs a token", "best rate",
             judged_by(measure), each_seed(measure), *(m["label"] for m in also)]  # fmt: skip
    rows = []
    for s in ranked(found):
        cells = [
            s["shape"], f"{s['n_layer']} × {s['d_model']}", count_text(s["params"]["body"]),
            count_text(s["tokens"]), count_text(s["train_flops_per_token"]),
            "" if s["rate"] is None else f"{s['rate']:g}", judgement(s),
            " ".join(number(v) for v in s["seeds"]) or in_language(str(s["unresolved"])),
            *(" ".join(number(v) for v in s["also"].get(m["name"], ())) for m in also),
        ]  # fmt: skip
        rows.append((s, cells))
    return _rows(heads, rows)


def _unbroken(cell: str) -> str:
    """A cell whose number and prefix stay on one line; lists of seeds may break."""
    return cell.replace(" ", "\u00a0") if len(cell) < UNBROKEN else cell


def _rows(heads: list[str], rows: list[tuple[dict[str, Any], list[str]]]) -> str:
    lines = []
    for s, cells in rows:
        dim = ' class="dim"' if s["unresolved"] else ""
        inside = "".join(f"<td>{escape(c)}</td>" for c in map(_unbroken, cells))
        lines.append(f"<tr{dim}>{inside}</tr>")
    head = "".join(f"<th>{escape(in_language(h))}</th>" for h in heads)
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"
