"""What people read, in another language than English: a catalogue, applied where text is shown.

English stays in the code, as plain text or as a template: ``f"{n} layers"`` is ``{} layers``. The
catalogue ``data/messages_zh.toml`` has a line for each. What is about to be printed is looked up;
where it was made from a template, what stood in the braces is cut out of it, looked up itself, and
put into the other language's template. So no report needs to know of languages, and text that one
part of the code makes and another prints is found as well. JSON, codes, names and numbers stay.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from scantling.errors import FieldError
from scantling.sources import read_data

LANGUAGES = ("en", "zh")

_chosen = ["en"]

WRAPPED = re.compile(r"(\s*)(\[[a-z ]+\])?(\s*)(.*?)(\s*)(\[/[a-z ]*\])?(\s*)", re.DOTALL)
"""Spaces, a markup, the text, a markup, spaces."""
SEPARATORS = ("\n", ": ", "; ", ". ", ", ", " and ")
JOINED = {"; ": "；", ". ": "。", ", ": "，", ": ": "：", " and ": "和", "\n": "\n"}
TELLING = 8
"""Letters that make a template tell; one of fewer (``{} of {}``) takes single values alone."""
SINGLE = r"([^\s,;:()]*(?: [\w%/.]{1,12})?)"
WORDS = re.compile(r"\b[a-z]{2,} [a-z]{2,}\b(?![-_])")
"""Words; a field of a template that holds some which nobody knows was not put in by it."""
FIRST = r"([^\s;(]*)"
"""Of two fields side by side the first is one word: ``{}{}`` is a value and what is added to it."""
MARK = 0xE000
"""The first of the letters for private use, which stand for names."""
CLAUSE = re.compile(r"; (?![^()]*\))")
"""Between clauses, outside brackets."""
DEEPEST = 12
"""Templates within templates that are looked for."""


def use_language(name: str) -> None:
    """Choose the language that ``in_language`` answers in.

    Raises:
        FieldError: If there is no catalogue of it.

    Example:
        >>> use_language("zh"); in_language("another shape"); use_language("en")
        '形状不同'
    """
    if name not in LANGUAGES:
        raise FieldError("--lang", name, "is not known", f"use {' or '.join(LANGUAGES)}")
    _chosen[0] = name
    in_language.cache_clear()


def language() -> str:
    """The language chosen."""
    return _chosen[0]


class Template:
    """A template of the catalogue: its pattern, and what it becomes."""

    def __init__(self, english: str, other: str) -> None:
        parts = english.split("{}")
        self.weight = sum(map(len, parts))
        letters = sum(c.isalpha() for part in parts for c in part)
        told = letters >= TELLING or (parts[0][:1].isalpha() and letters >= TELLING // 2)
        field = "(.*?)" if told else SINGLE
        pattern = field.join(re.escape(part) for part in parts)
        self.pattern = re.compile(pattern.replace(field + field, FIRST + field), re.DOTALL)
        self.words = max(parts, key=len)
        self.other = other

    def fill(self, fields: Iterable[str]) -> str:
        """The other language's text: ``{}`` in order, or ``{0}``, ``{1}`` where the order differs.

        Example:
            >>> Template("{} of {}", "{1} 中的 {0}").fill(["3", "8"])
            '8 中的 3'
        """
        values = list(fields)
        if "{}" in self.other:
            rest = iter(values)
            return re.sub(r"\{\}", lambda _: next(rest), self.other)
        return re.sub(r"\{(\d)\}", lambda m: values[int(m[1])], self.other)


@functools.cache
def _catalogue(name: str) -> tuple[dict[str, str], list[Template]]:
    """Plain texts, and templates with the most literal first."""
    plain: dict[str, str] = {}
    templates: list[Template] = []
    for section in read_data(f"messages_{name}.toml").values():
        for english, other in section.items():
            if "{}" in english:
                templates.append(Template(english, other))
            else:
                plain[english] = other
    return plain, sorted(templates, key=lambda t: -t.weight)


@functools.lru_cache(maxsize=4096)
def in_language(text: str, depth: int = 0) -> str:
    """Text in the language chosen; what the catalogue does not have stays as it is.

    Args:
        text: English, as it would be printed, with rich's markup.
        depth: Templates it stands within.

    Example:
        >>> in_language("another shape")
        'another shape'
    """
    if _chosen[0] == "en" or not re.search("[A-Za-z]{2}", text):
        return text
    plain, templates = _catalogue(_chosen[0])
    if text in plain:
        return plain[text]
    bare = text.strip()
    before, after = text[: text.index(bare)], text[text.index(bare) + len(bare) :]
    other = _whole(bare, plain, templates, depth)
    if other is None:
        found = WRAPPED.fullmatch(bare)
        assert found is not None
        _, mark, left, core, right, end, _ = (part or "" for part in found.groups())
        inner = _whole(core, plain, templates, depth) or _pieces(core, depth) or core
        other = f"{mark}{left}{inner}{right}{end}"
    return f"{before}{other}{after}"


def _whole(text: str, plain: dict[str, str], templates: list[Template], depth: int) -> str | None:
    """A text that the catalogue has, or has the template of."""
    if text in plain:
        return plain[text]
    if depth > DEEPEST:
        return None
    for template in templates:
        if template.words in text and (found := template.pattern.fullmatch(text)):
            others = [in_language(value, depth + 1) for value in found.groups()]
            pairs = zip(found.groups(), others, strict=True)
            if not any(WORDS.search(value) and value == other for value, other in pairs):
                return template.fill(others)
    return None


def _pieces(text: str, depth: int) -> str | None:
    """A text cut where it is made of several, if one of them is known."""
    for mark in SEPARATORS if depth <= DEEPEST else ():
        if mark in text:
            pieces = text.split(mark, 1 if mark == ": " else -1)
            others = [in_language(piece, depth + 1) for piece in pieces]
            if others != pieces:
                return JOINED[mark].join(others)
    return None


def with_names(text: str, kept: Mapping[str, str], *, clauses: bool = False) -> str:
    """Text in the language chosen, with names that people gave in it, which may be any words.

    Args:
        text: English, as it would be printed.
        kept: What stands in it as one piece, and what that is in the language chosen: a name
            itself.
        clauses: Whether its clauses are looked up one by one.

    Example:
        >>> names = {"none": "none", "full": "full"}
        >>> use_language("zh"); with_names("not separated: none, full", names); use_language("en")
        '未分出高下：none、full'
    """
    if _chosen[0] == "en" or not kept or has_message(text):
        return in_language(text)
    names = sorted(kept, key=lambda name: -len(name))
    one = "|".join(map(re.escape, names))
    hidden = re.sub(rf"(?<![\w-])(?:{one})(?![\w-])", lambda m: chr(MARK + names.index(m[0])), text)
    last = f"[{chr(MARK)}-{chr(MARK + len(names))}]"
    begins = rf"{last}(?: (?:\w+|{last}))? (?:than|over|at) "
    hidden = re.sub(rf"({last}), (?={last})(?!{begins})", r"\1、", hidden)
    parts = CLAUSE.split(hidden) if clauses else [hidden]
    others = [*map(in_language, parts)]
    if parts == others and re.search("[a-z]{2}", hidden):
        return in_language(text)  # a name that is a word of the sentence itself
    told = re.sub(f"(?<={last}); (?={last})", "；", "；".join(others))
    return re.sub(last, lambda m: kept[names[ord(m[0]) - MARK]], told)


def one_after_another(*sentences: str) -> str:
    """Sentences of the language chosen as one text.

    Example:
        >>> one_after_another("One.", "Two.")
        'One. Two.'
    """
    return ("" if _chosen[0] == "zh" else " ").join(sentences)


def ended(text: str) -> str:
    """A text of the language chosen as a sentence.

    Example:
        >>> ended("It holds")
        'It holds.'
    """
    return f"{text}{'。' if _chosen[0] == 'zh' else '.'}"


def has_message(template: str, name: str = "zh") -> bool:
    """Whether the catalogue has a text or a template, spaces around it left out.

    Example:
        >>> has_message("another shape"), has_message("never said")
        (True, False)
    """
    return template.strip() in _keys(name)


@functools.cache
def _keys(name: str) -> frozenset[str]:
    return frozenset(k for part in read_data(f"messages_{name}.toml").values() for k in part)


def translated(value: Any) -> Any:
    """A text in the language chosen; anything else as it is."""
    return in_language(value) if isinstance(value, str) else value


__all__ = [
    "LANGUAGES", "ended", "has_message", "in_language", "language", "one_after_another",
    "translated", "use_language", "with_names",
]  # fmt: skip
