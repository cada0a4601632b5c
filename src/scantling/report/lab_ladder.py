"""What a ladder of sizes found: a table, a figure, a page, and sentences for others."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from scantling.report.lab_html import document
from scantling.report.lab_svg import COLOURS, axis, line, opened, text, ticks
from scantling.report.lab_text import number
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
    out.print(f"[bold]{told['headline']}[/bold]", markup=True)
    out.print()
    unit = "a / b" if measure["ratio"] else "a - b"
    shown = table(("a against b", "left"), *((s["body"], "right") for s in told["sizes"]),
                  ("sign", "left"))  # fmt: skip
    for pair in told["pairs"]:
        cells = (_cell(e, measure) for e in pair["effects"])
        shown.add_row(f"{pair['a']} : {pair['b']}", *cells, pair["kind"])
    show_table(out, shown)
    out.print(f"{measure['label']}, {unit}; ° not separated", markup=False)
    for text_ in (*trend_lines(told), *alone(told), *honest(told)):
        out.print(text_, markup=False)


def _cell(e: dict[str, Any] | None, measure: dict[str, Any]) -> str:
    if e is None:
        return "unresolved"
    mark = "" if e["separated"] else "°"
    if measure["ratio"]:
        return f"×{number(e['difference'])}{mark}"
    return f"{e['difference']:+.3f} ± {e['half_width']:.2g}{mark}"


def trend_lines(told: Told) -> list[str]:
    """A line for each pair; none where the headline is that of the only one."""
    return [f"  {pair['text']}" for pair in told["pairs"] if pair["text"] != told["headline"]]


def alone(told: Told) -> list[str]:
    """What each size says by itself."""
    return [
        f"{s['body']}: {s['result']['headline']} ({count_text(s['result']['plan']['tokens'])} "
        f"tokens a run)" for s in told["sizes"]
    ]  # fmt: skip


def honest(told: Told) -> list[str]:
    """What the answer rests on."""
    results = [s["result"] for s in told["sizes"]]
    minutes = told["seconds"] / 60
    lost = [f"{s['body']}: {text}" for s in told["sizes"] for text in s["result"]["plan"]["shrunk"]]
    lines = [f"To fit the budget, {one}." for one in lost]
    lines.append(
        f"{results[0]['plan']['seeds']} seeds, data {told['study']['data']}, "
        f"{results[0]['machine']}, {minutes:.1f} min. Larger models saw no more tokens than small "
        "ones, so they are the less trained."
    )
    if told["study"]["caveat"]:
        lines.append(told["study"]["caveat"])
    lines.append("Three sizes a factor of 16 apart say which way a sign moves, not where it ends.")
    return lines


def explained(told: Told) -> list[tuple[str, list[str]]]:
    """The ladder for someone who did not run it: sections with their paragraphs."""
    study = told["study"]
    sizes = ", ".join(f"{s['body']} (×{s['times']})" for s in told["sizes"])
    done = (
        f"The same study at {len(told['sizes'])} sizes, bodies of about {sizes} parameters, each "
        "with its own learning rates, seeds and verdicts, and an equal share of the time."
    )
    sources = [f"{one.title}, {one.where}" for one in map(source, study["sources"])]
    return [
        ("The question", [study["question"], "And does the answer keep its sign as models grow?"]),
        ("What was done", [
            done,
        ]),
        ("What was found", [f"{told['headline']}.", *(t.strip() for t in trend_lines(told)),
                            *alone(told)]),
        ("How to read it", list(READ)),
        ("What was to be expected", [study["expected"] or "Nothing was written down before.",
                                     *sources]),
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
        parts.append(text(left - 12, y + row / 2 + 14, pair["kind"], "end", "#5c6b78"))
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
    said = f"{measure['label']}, {'a / b' if log else 'a - b'}; filled: separated"
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
        sections.append(f"<h2>{escape(title)}</h2>{body}")
    return document(told["study"]["name"], told["headline"], "".join(sections))
