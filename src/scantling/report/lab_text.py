"""What a study of the lab found, as text: for a terminal, and to explain it to others."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rich.text import Text

from scantling.messages import (
    ended,
    has_message,
    in_language,
    one_after_another,
    with_names,
)
from scantling.report.text import show_table, table
from scantling.sources import source
from scantling.units import count_text

if TYPE_CHECKING:
    from rich.console import Console

Found = dict[str, Any]
"""A study's ``result.json``."""


def print_study(out: Console, found: Found) -> None:
    """The answer, the table with every seed, the verdicts, and what the design could resolve."""
    out.print(Text(with_names(found["headline"], kept(found), clauses=True), style="bold"))
    out.print()
    show_table(out, _table(found))
    for line in (*verdict_lines(found), *honest_lines(found)):
        out.print(Text(line))  # names of arms are no words to translate


def kept(found: Found) -> dict[str, str]:
    """What is one piece of a sentence: names, which stay, and what is told in the language.

    That is why an arm is unresolved, and a measure's word of more than one.
    """
    told = {str(s["unresolved"]) for s in found["shapes"] if s["unresolved"]} | words(found)
    return {one: in_language(one) for one in told} | {
        s["shape"]: s["shape"] for s in found["shapes"]
    }


def words(found: Found) -> set[str]:
    """What a verdict calls better, where that is several words."""
    word = found["study"]["measure"]["word"]
    return {word} if " " in word else set()


def own(text: str) -> str:
    """A text of the study's author: in the language chosen where all of it is known."""
    told = in_language(text)
    return told if has_message(text) or not re.search("[a-z]{3}", told) else text


def _table(found: Found) -> Any:
    if found["study"].get("probed"):
        return _table_probed(found)
    measure, also = found["study"]["measure"], found["study"]["also"]
    made_equal = sorted({k for s in found["shapes"] for k in s["matched"]})
    shown = table(
        ("shape", "left"), ("body", "right"), *((f"{k} off", "right") for k in made_equal),
        ("tokens", "right"), ("rates tried", "right"), ("best", "right"),
        (judged_by(measure), "right"), ("95 %", "right"), (each_seed(measure), "left"),
        *((m["label"], "left") for m in also),
    )  # fmt: skip
    for s in ranked(found):
        interval = s["interval"]
        low_high = (
            "" if interval is None else f"{number(interval['low'])} … {number(interval['high'])}"
        )
        value = judgement(s)
        edge = {"upper": " ≥?", "lower": " ≤?", None: ""}[s["edge"]]
        shown.add_row(
            Text(s["shape"]), count_text(s["params"]["body"]),
            *(_off(s["matched"].get(k)) for k in made_equal), count_text(s["tokens"]),
            _rates(s["rates"]), "" if s["rate"] is None else f"{s['rate']:g}{edge}",
            value, low_high, " ".join(number(v) for v in s["seeds"]) or "unresolved",
            *(" ".join(number(v) for v in s["also"].get(m["name"], ())) for m in also),
            style="dim" if s["unresolved"] else None,
        )  # fmt: skip
    return shown


def judged_by(measure: dict[str, Any]) -> str:
    """What the values are that shapes are judged by."""
    return measure["label"] if measure["solved"] is None else "seeds that solve it"


def each_seed(measure: dict[str, Any]) -> str:
    """What the values of single seeds are."""
    return "each seed" if measure["solved"] is None else f"each seed: {measure['label']}"


def judgement(shape: dict[str, Any]) -> str:
    """The value that a shape is judged by; nothing where it has none."""
    if shape["solved"] is not None:
        return f"{shape['solved']} of {len(shape['seeds'])}"
    return "" if shape["interval"] is None else number(shape["interval"]["value"])


def _table_probed(found: Found) -> Any:
    """One trained model looked at in several ways: what stands beside is a mean over seeds."""
    measure, also = found["study"]["measure"], found["study"]["also"]
    shown = table(("", "left"), (measure["label"], "right"), ("95 %", "right"),
                  ("each seed", "left"), *((m["label"], "right") for m in also))  # fmt: skip
    for s in found["shapes"]:
        low_high, value = "", ""
        if s["interval"] is not None:
            low_high = f"{number(s['interval']['low'])} … {number(s['interval']['high'])}"
            value = number(s["interval"]["value"])
        shown.add_row(Text(s["shape"]), value, low_high,
                      " ".join(number(v) for v in s["seeds"]) or "unresolved",
                      *beside(s, also))  # fmt: skip
    return shown


def beside(shape: dict[str, Any], also: list[dict[str, Any]]) -> list[str]:
    """Means over seeds of what is shown beside the measure."""
    means = ((v, len(v)) for v in (shape["also"].get(m["name"], ()) for m in also))
    return [number(sum(v) / n) if n else "" for v, n in means]


def _off(share: float | None) -> str:
    """How far a shape is from what it was to be equal in; nothing where it was not to be."""
    return "" if share is None else f"{share:+.1%}"


def _rates(rates: list[float]) -> str:
    if len(rates) < 2:
        return "".join(f"{r:g}" for r in rates)
    return f"{len(rates)}: {rates[0]:g} … {rates[-1]:g}"


def number(value: float) -> str:
    """A measure with four digits.

    Example:
        >>> number(2.10567), number(0.0312345), number(25676.2)
        ('2.106', '0.03123', '25,676')
    """
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def ranked(found: Found) -> list[dict[str, Any]]:
    """The shapes, the best first; those without a value last; arms of a model in their order."""
    if found["study"].get("probed"):
        return list(found["shapes"])
    sign = 1 if found["study"]["measure"]["better"] == "lower" else -1

    def place(s: dict[str, Any]) -> tuple[bool, float]:
        known = s["interval"] is not None
        return not known, sign * s["interval"]["value"] if known else 0.0

    return sorted(found["shapes"], key=place)


def verdict_lines(found: Found) -> list[str]:
    """One line a pair; what is better first."""
    order = ["better", "not separated", "unresolved"]
    chosen = sorted(found["verdicts"], key=lambda v: order.index(v["kind"]))
    lines, names = [], kept(found)
    for v in chosen:
        p = "" if v["p"] is None else in_language(f"  (p {v['p']:.2g} over all pairs)")
        lines.append(f"  {with_names(v['text'], names, clauses=True)}{p}")
    return lines


def honest_lines(found: Found) -> list[str]:
    """What the design could see, and what the answer rests on."""
    study, plan = found["study"], found["plan"]
    first, data = next(iter(found["data"].values())), {study["data"]: study["data"]}
    lines = []
    if found["resolvable"] is not None:
        ratio = study["measure"]["ratio"]
        size = f"a factor of {found['resolvable']:.3g}" if ratio else f"{found['resolvable']:.2g}"
        if study["measure"]["solved"] is None:
            sees = f"sees {size} or more four times of five, over all its pairs"
        else:
            sees = (
                f"tells shares apart that differ by {found['resolvable']:.0%} of the seeds or more"
            )
        lines.append(f"This design ({plan['seeds']} seeds) {sees}.")
    elif study["measure"]["solved"] is not None:
        lines.append("This design tells no shares of solved seeds apart.")
    if study.get("probed"):
        lines.append(f"Every arm is the same {plan['seeds']} trained models, so differences are "
                     "taken within each, and only what was asked before is compared.")  # fmt: skip
    if any(len(s["rates"]) > 1 for s in found["shapes"]):
        lines.append("The rate was chosen on other data but on the same models: where rates are "
                     "close, chance between seeds helped to choose, so that losses are a little "
                     "lower than those of new seeds would be.")  # fmt: skip
    most = study["rates"]["n"] + study["rates"]["extend"]
    edges = [s for s in found["shapes"] if s["edge"]]
    cut = ", ".join(s["shape"] for s in edges if len(s["rates"]) < most)
    grown = ", ".join(s["shape"] for s in edges if len(s["rates"]) >= most)
    if cut:
        lines.append(f"Best rate at the edge of the grid: {cut}; the time was up before it could "
                     "grow on, and more would settle it.")  # fmt: skip
    if grown:
        lines.append(f"Best rate at the edge of the grid after all its growth: {grown}; a wider "
                     "grid would settle it.")  # fmt: skip
    lines += [f"To fit the budget: {text}." for text in plan["shrunk"]]
    per = sorted({f"{s['tokens'] / s['params']['total']:.2g}" for s in found["shapes"]}, key=float)
    lines.append(
        f"Data {study['data']} ({first['hash'][:12]}), {' to '.join({per[0]: 0, per[-1]: 0})} "
        f"tokens a parameter, {found['machine']}, {found['seconds'] / 60:.1f} min."
    )
    lines = [with_names(one, kept(found) | data) for one in lines]
    if study["caveat"]:
        lines.append(own(study["caveat"]))
    rule = "Results at this size do not transfer to large models by themselves."
    return [*lines, in_language(rule)]


def _made_equal(shapes: list[dict[str, Any]]) -> str:
    """What shapes are equal in, and which of them where it is not all."""
    told = []
    for k in sorted({k for s in shapes for k in s["matched"]}):
        those = [s for s in shapes if k in s["matched"]]
        worst = max(abs(s["matched"][k]) for s in those)
        some = "" if len(those) == len(shapes) else f"{', '.join(s['shape'] for s in those)} "
        told.append(f"{some}equal in {k} to {worst:.1%}")
    return "; ".join(told) or "not made equal"


READ = (
    ("Better (or the word in its place): the seeds of the two differ more than chance explains, at "
    "5 % over all pairs together (Holm). The size has its own 95 % interval."),
    ("Not separated: they may differ by less than these seeds can show; the line says how many "
    "seeds would show a difference as large as the one seen. Its ± is of that pair alone, so that "
    "among several pairs a difference may be larger than its ± and yet be chance."),
    ("Unresolved: nothing may be said, for the reason given: the best learning rate lay at the "
    "edge of what was tried, the model did not train, no seed of any shape solved the task, or the "
    "time was up."),
)  # fmt: skip
"""What the three verdicts mean."""


def explained(found: Found) -> list[tuple[str, list[str]]]:
    """The study for someone who did not run it: sections with their paragraphs.

    Paragraphs are in the language chosen, titles in English: they are what sections are known by.
    """
    study, plan, shapes = found["study"], found["plan"], found["shapes"]
    measure, rates = study["measure"], study["rates"]
    data, label = {study["data"]: study["data"]}, {measure["label"]: own(measure["label"])}
    names = ", ".join(s["shape"] for s in shapes)
    grid = (
        f"Each was trained at {rates['n']} learning rates a factor of {rates['step']:g} apart; "
        "where the best lay at the edge, the grid grew, "
        f"{'once' if rates['extend'] == 1 else 'up to ' + str(rates['extend']) + ' times'}."
        if rates["extend"] else f"Each was trained at {rates['n']} learning rate(s), fixed."
    )  # fmt: skip
    if study.get("probed"):
        return _explained_probed(found)
    judged = (
        f"The measure is {measure['label']}, {measure['better']} is {measure['word']}. The rate of "
        "a shape was chosen on one slice of held-out data, what is reported comes from another."
    )
    tests = (
        f"A seed counts as solved from {measure['solved']:g} on; shares of solved seeds have "
        "Wilson intervals and Fisher's test."
        if measure["solved"] is not None else
        "Intervals are 95 % t-intervals over seeds; pairs are compared by Welch's test"
        f"{', on logarithms' if measure['ratio'] else ''}."
    )  # fmt: skip
    runs = (
        f"{plan['seeds']} seeds each, {count_text(plan['tokens'])} tokens a run of "
        f"{study['data']}, batch {study['batch']} × {study['context']} tokens."
    )
    runs = with_names(runs, data)
    done = f"{len(shapes)} shapes: {names}; {_made_equal(shapes)}."
    sources = [f"{one.title}, {one.where}" for one in map(source, study["sources"])]
    return [
        ("The question", [own(study["question"])]),
        ("What was done", [
            with_names(done, kept(found)), one_after_another(in_language(grid), runs),
            one_after_another(with_names(judged, label), in_language(tests)),
        ]),
        _found(found),
        ("How to read it", [*map(in_language, READ)]),
        ("What was to be expected",
         [own(study["expected"] or "Nothing was written down before."), *sources]),
        ("What it does not say", honest_lines(found)),
    ]  # fmt: skip


def _found(found: Found) -> tuple[str, list[str]]:
    """The answer and every verdict."""
    answer = ended(with_names(found["headline"], kept(found), clauses=True))
    return "What was found", [answer, *(v.strip() for v in verdict_lines(found))]


def _explained_probed(found: Found) -> list[tuple[str, list[str]]]:
    """The same of a study that looks at one trained model in several ways."""
    study, plan, shapes = found["study"], found["plan"], found["shapes"]
    one, measure = shapes[0], study["measure"]
    data, label = {study["data"]: study["data"]}, {measure["label"]: own(measure["label"])}
    done = (
        f"{plan['seeds']} models of {one['n_layer']} layers × {one['d_model']} "
        f"({count_text(one['params']['total'])} parameters) were trained, alike but for the seed, "
        f"on {count_text(one['tokens'])} tokens of {study['data']} at a learning rate of "
        f"{one['rates'][0]:g}, batch {study['batch']} × {study['context']} tokens. Then each was "
        f"looked at in {len(shapes)} ways: {', '.join(s['shape'] for s in shapes)}."
    )
    tests = (
        f"The measure is {measure['label']}, {measure['better']} is {measure['word']}, on data "
        "that no model was trained on. Intervals are 95 % t-intervals over seeds; pairs that were "
        "named before are compared by the t-test of differences within each model."
    )
    sources = [f"{s.title}, {s.where}" for s in map(source, study["sources"])]
    return [
        ("The question", [own(study["question"])]),
        ("What was done", [with_names(done, kept(found) | data), with_names(tests, label)]),
        _found(found),
        ("How to read it", [*map(in_language, READ[:2])]),
        ("What was to be expected", [own(study["expected"]), *sources]),
        ("What it does not say", honest_lines(found)),
    ]
