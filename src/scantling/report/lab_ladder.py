"""What a ladder of sizes found: a table, a figure, a page, and sentences for others."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from rich.text import Text

from scantling.messages import ended, in_language, with_names
from scantling.report.lab_html import document
from scantling.report.lab_svg import COLOURS, axis, line, opened, text, ticks
from scantling.report.lab_text import kept, number, own, words
from scantling.report.text import show_table, table
from scantling.sources import source
from scantling.units import count_text

if TYPE_CHECKING:
    from rich.console import Console

Told = dict[str, Any]
"""A ladder's ``result.json``."""

READ = (
    ("Stable: one of the two is better at every size, each time by more than chance explains. "
     "Turns: one is better at one size, the other at another."),
    ("Leans: one is ahead at every size, by more than chance explains at some. Open: better at "
     "some size, with the sign the other way, inside the noise, at another. Every size is judged "
     "on its own, at 5 % over all its pairs."),
)  # fmt: skip


def is_ladder(told: Told) -> bool:
    """Whether a result is that of a ladder."""
    return told.get("kind") == "ladder"


def print_ladder(out: Console, told: Told) -> None:
    """The answer, an effect for each pair and size, and what each size found alone."""
    measure = told["study"]["measure"]
    out.print(Text(with_names(told["headline"], _names(told), clauses=True), style="bold"))
    out.print()
    shown = table(("a against b", "left"), *((s["body"], "right") for s in told["sizes"]),
                  ("sign", "left"))  # fmt: skip
    for pair in told["pairs"]:
        cells = (_cell(e, measure) for e in pair["effects"])
        shown.add_row(Text(f"{pair['a']} : {pair['b']}"), *cells, pair["kind"])
    show_table(out, shown)
    out.print(Text(_unit(told, "° not separated")))
    for text_ in (*trend_lines(told), *alone(told), *honest(told)):
        out.print(Text(text_))


def _names(told: Told) -> dict[str, str]:
    """What is one piece of a sentence over all sizes, as ``kept`` is at one."""
    names = [
        *(p[k] for p in told["pairs"] for k in ("a", "b")),
        *(s["body"] for s in told["sizes"]),
    ]
    return {one: in_language(one) for one in words(told)} | {name: name for name in names}


def _unit(told: Told, rest: str) -> str:
    """The measure and what is done with two of it."""
    measure = told["study"]["measure"]
    line_ = f"{measure['label']}, {'a / b' if measure['ratio'] else 'a - b'}; {rest}"
    return with_names(line_, {measure["label"]: own(measure["label"])})


def _cell(e: dict[str, Any] | None, measure: dict[str, Any]) -> str:
    if e is None:
        return "unresolved"
    mark = "" if e["separated"] else "°"
    if measure["ratio"]:
        return f"×{number(e['difference'])}{mark}"
    return f"{e['difference']:+.3f} ± {e['half_width']:.2g}{mark}"


def trend_lines(told: Told) -> list[str]:
    """A line for each pair; none where the headline is that of the only one."""
    return [f"  {with_names(pair['text'], _names(told), clauses=True)}" for pair in told["pairs"]
            if pair["text"] != told["headline"]]  # fmt: skip


def alone(told: Told) -> list[str]:
    """What each size says by itself."""
    lines = []
    for s in told["sizes"]:
        answer = with_names(s["result"]["headline"], kept(s["result"]), clauses=True)
        run = in_language(f"({count_text(s['result']['plan']['tokens'])} tokens a run)")
        lines.append(f"{s['body']}: {answer} {run}")
    return lines


def honest(told: Told) -> list[str]:
    """What the answer rests on."""
    results = [s["result"] for s in told["sizes"]]
    minutes = told["seconds"] / 60
    lost = [f"{s['body']}: {text}" for s in told["sizes"] for text in s["result"]["plan"]["shrunk"]]
    names = {name: name for r in results for name in (s["shape"] for s in r["shapes"])}
    data = {told["study"]["data"]: told["study"]["data"]}
    lines = [with_names(f"To fit the budget, {one}.", names) for one in lost]
    rest = (
        f"{results[0]['plan']['seeds']} seeds, data {told['study']['data']}, "
        f"{results[0]['machine']}, {minutes:.1f} min. Larger models saw no more tokens than small "
        "ones, so they are the less trained."
    )
    lines.append(with_names(rest, data))
    if told["study"]["caveat"]:
        lines.append(own(told["study"]["caveat"]))
    rule = "Three sizes a factor of 16 apart say which way a sign moves, not where it ends."
    return [*lines, in_language(rule)]


def explained(told: Told) -> list[tuple[str, list[str]]]:
    """The ladder for someone who did not run it: sections with their paragraphs."""
    study = told["study"]
    sizes = ", ".join(f"{s['body']} (×{s['times']})" for s in told["sizes"])
    done = (
        f"The same study at {len(told['sizes'])} sizes, bodies of about {sizes} parameters, each "
        "with its own learning rates, seeds and verdicts, and an equal share of the time."
    )
    answer = ended(with_names(told["headline"], _names(told), clauses=True))
    sources = [f"{one.title}, {one.where}" for one in map(source, study["sources"])]
    return [
        ("The question", [
            own(study["question"]), in_language("And does the answer keep its sign as models grow?")
        ]),
        ("What was done", [in_language(done)]),
        ("What was found", [answer, *(t.strip() for t in trend_lines(told)), *alone(told)]),
        ("How to read it", [*map(in_language, READ)]),
        ("What was to be expected",
         [own(study["expected"] or "Nothing was written down before."), *sources]),
        ("What it does not say", honest(told)),
    ]  # fmt: skip


def figure(told: Told) -> str:
    """A row for each pair, a dot with its interval for each size, zero in the middle."""
    measure, pairs = told["study"]["measure"], told["pairs"]
    width, left, row, top = 760, 280, 46, 48
    ends = [v for p in pairs for e in p["effects"] if e for v in _ends(e, measure)]
    still = 1.0 if measure["ratio"] else 0.0
    height = top + row * len(pairs) + 44
    parts = list(opened(width, height))
    for i, s in enumerate(told["sizes"]):
        parts.append(text(left + 130 * i, 18, f"● {s['body']}", colour=COLOURS[i]))
    log = measure["ratio"]
    place = axis([*ends, still], left, width - 20, log=log)
    base = top + row * len(pairs)
    for v in ticks([*ends, still], log=log):
        parts += [line(place(v), top - 8, place(v), base, "#e5e9ed"),
                  text(place(v), base + 16, number(v), "middle", "#5c6b78")]  # fmt: skip
    parts.append(line(place(still), top - 8, place(still), base, "#5c6b78", 1.5))
    for j, pair in enumerate(pairs):
        y = top + row * j
        parts.append(text(left - 12, y + row / 2, f"{pair['a']} : {pair['b']}", "end"))
        parts.append(text(left - 12, y + row / 2 + 14, in_language(pair["kind"]), "end",
                          "#5c6b78"))  # fmt: skip
        for i, e in enumerate(pair["effects"]):
            if e is None:
                continue
            low, high = map(place, _ends(e, measure))
            at, x = y + 10 + 11 * i, place(e["difference"])
            inside = COLOURS[i] if e["separated"] else "white"
            parts.append(line(low, at, high, at, COLOURS[i], 2))
            parts.append(
                f'<circle cx="{x:.1f}" cy="{at:.1f}" r="4" stroke="{COLOURS[i]}" fill="{inside}" '
                'stroke-width="2"/>'
            )
    said = _unit(told, "filled: separated")
    parts += [text(left, height - 8, said, colour="#5c6b78"), "</svg>"]
    return "\n".join(parts) + "\n"


def _ends(e: dict[str, Any], measure: dict[str, Any]) -> tuple[float, float]:
    if measure["ratio"]:
        return e["difference"] / e["half_width"], e["difference"] * e["half_width"]
    return e["difference"] - e["half_width"], e["difference"] + e["half_width"]


def page(told: Told) -> str:
    """The ladder as one page that needs nothing beside it."""
    sections = []
    for title, paragraphs in explained(told):
        body = "".join(f"<p>{escape(p)}</p>" for p in paragraphs)
        if title == "What was found":
            body += figure(told)
        sections.append(f"<h2>{escape(in_language(title))}</h2>{body}")
    answer = with_names(told["headline"], _names(told), clauses=True)
    return document(told["study"]["name"], answer, "".join(sections))
