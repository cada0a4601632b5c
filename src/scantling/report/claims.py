"""Claims as text, JSON and a page of the documentation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from scantling.claims import VERDICTS, Checked, Claim, areas, claims
from scantling.errors import FieldError
from scantling.messages import in_language, language
from scantling.sources import source

MEANING = {
    "correct": "holds as said",
    "convention": "true in one reading and not in another",
    "approximate": "fair for some purpose",
    "wrong": "contradicted",
    "unverifiable": "nothing public decides it",
}
"""Each verdict in words."""

UNCONFIRMED = "to be confirmed: no source was read again for it, and no rule rests on it"
IN_ENGLISH = "the text itself is in English"

PREFACE = """\
# Claims

What is said of the dimensions of language models, in five widely read articles and as rules of \
thumb, with what is right.
This page is written by `make docs` from the records in `src/scantling/data/claims`; `scantling \
claims A037` prints one with derivation and sources, and `scantling claims check` computes again \
what can be computed, from the product's own functions.
"""


def chosen(
    verdicts: Sequence[str] = (), about: Sequence[str] = (), words: Sequence[str] = ()
) -> list[Claim]:
    """Claims of some verdicts, of some areas, that have all of some words.

    Raises:
        FieldError: If a verdict or an area is not known.

    Example:
        >>> [one.id for one in chosen(["wrong"], ["memory"])]
        ['A055', 'A114', 'A136', 'A137']
    """
    for field, given, known in (("verdict", verdicts, VERDICTS), ("about", about, areas())):
        for name in given:
            if name not in known:
                raise FieldError(field, name, "is not known", f"use {', '.join(known)}")
    return [
        one
        for one in claims().values()
        if (not verdicts or one.verdict in verdicts)
        and (not about or one.area in about)
        and all(word.lower() in _searched(one) for word in words)
    ]


def _searched(one: Claim) -> str:
    return f"{one.id} {one.name} {one.area} {one.statement} {one.right} {one.found}".lower()


def tally(found: Iterable[Claim]) -> str:
    """How many claims have each verdict, in words.

    Example:
        >>> tally(chosen(about=["recipes"]))
        '9 claims: 1 correct, 2 approximate, 6 wrong; 9 computed again'
    """
    every = list(found)
    counts = Counter(one.verdict for one in every)
    parts = [f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict]]
    computed = sum(bool(one.check) for one in every)
    open_ones = sum(one.to_be_confirmed for one in every)
    told = f"{len(every)} claims: {', '.join(parts)}; {computed} computed again"
    return told + (f", {open_ones} to be confirmed" if open_ones else "")


def list_lines(found: Sequence[Claim]) -> list[str]:
    """A line a claim, and the tally."""
    if not found:
        return ["no claim is like that"]
    return [*(f"{one.id}  {one.verdict:12}  {one.statement}" for one in found), tally(found)]


def claim_lines(one: Claim) -> list[str]:
    """One claim in full; headings in the language chosen, the record itself in English."""
    say = in_language
    lines = [
        f"{one.id} {one.name} ({one.area}): {one.statement}",
        f"  {say(one.verdict)} ({say(MEANING[one.verdict])}): {one.right}",
    ]
    if one.derivation:
        lines.append(f"  {say('derivation')}: {one.derivation}")
    if one.found:
        lines.append(f"  {say('evidence')}: {one.found}")
    if one.to_be_confirmed:
        lines.append(f"  {say(UNCONFIRMED)}")
    lines.append(f"  {say('made in')} {'; '.join(one.made)}")
    lines += [
        f"  {say('source')}: {key}, {source(key).title}, {source(key).where}" for key in one.sources
    ]
    if one.check:
        lines.append(f"  {say('computed again by')} scantling claims check {one.id}")
    if language() != "en":
        lines.append(f"  {say(IN_ENGLISH)}")
    return lines


def checked_lines(told: Mapping[str, list[str]], *, each: bool) -> list[str]:
    """What computing claims again found: the differences, and how many agree.

    Args:
        told: Differences by the id of a claim, of those that have a check.
        each: Whether also those that agree get a line.
    """
    lines = []
    for key, differences in told.items():
        one = claims()[key]
        if differences:
            lines.append(f"{key} {one.name}: DIFFERS: {'; '.join(differences)}")
        elif each:
            numbers = ", ".join(f"{name} {value:,.5g}" for name, value in one.numbers.items())
            lines.append(f"{key} {one.name}: {one.verdict}, as recorded: {numbers}")
    bad = sum(map(bool, told.values()))
    return [*lines, f"{len(told)} claims computed again: {len(told) - bad} agree, {bad} differ"]


def claim_json(one: Claim, found: Checked | None = None, told: Sequence[str] = ()) -> Any:
    """One claim for programs; with what its check found."""
    row = {**msgspec.to_builtins(one), "evidence": one.found}
    if found is not None:
        row |= {"recomputed": {"verdict": found.verdict, "numbers": found.numbers},
                "agrees": not told, "differences": list(told)}  # fmt: skip
    return row


def page() -> str:
    """docs/claims.md: every claim by area."""
    every = list(claims().values())
    lines = [
        PREFACE,
        f"{tally(every)}.",
        "For those marked † no source was read again: no rule rests on them.",
        "",
        "| verdict | means | claims |",
        "| --- | --- | --- |",
    ]
    counts = Counter(one.verdict for one in every)
    lines += [f"| {v} | {MEANING[v]} | {counts[v]} |" for v in VERDICTS]
    for area in areas():
        lines += ["", f"## {area.capitalize()}", "", "| id | said | verdict | right | evidence |",
                  "| --- | --- | --- | --- | --- |"]  # fmt: skip
        for one in every:
            if one.area == area:
                mark = " †" if one.to_be_confirmed else ""
                cells = (one.id, one.statement, one.verdict + mark, one.right, one.found)
                lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines) + "\n"
