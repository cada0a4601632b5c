"""What the words of reports mean, in English and Chinese."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from scantling.errors import UnknownNameError
from scantling.messages import language
from scantling.report.text import show_table, table
from scantling.sources import read_data


class Term(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One word.

    Args:
        key: Its name in the table.
        name: In English.
        zh: In Chinese.
        means: One sentence.
        means_zh: The same in Chinese.
        letter: Of docs/notation.md.
        field: The short name that ``--set`` and ``--why`` take.
        keys: Of a config.json.
        founding: Whether the documents the project began with are about it.
        sources: Keys of the bibliography.
    """

    key: str = ""
    name: str
    zh: str
    means: str
    means_zh: str
    letter: str = ""
    field: str = ""
    keys: tuple[str, ...] = ()
    founding: bool = False
    sources: tuple[str, ...] = ()


@functools.cache
def terms() -> dict[str, Term]:
    """Every word by its key.

    Example:
        >>> terms()["head-width"].letter, terms()["head-width"].zh
        ('h', '头宽（头维度）')
    """
    read = msgspec.convert(read_data("glossary.toml"), dict[str, Term])
    return {key: replace(one, key=key) for key, one in read.items()}


def find_term(name: str) -> Term:
    """A word by its key, name, letter, field, a config's key, or its Chinese.

    Raises:
        UnknownNameError: With the nearest words.

    Example:
        >>> [find_term(n).key for n in ("KV cache", "num_hidden_layers", "d_ff", "h", "词表大小")]
        ['kv-cache', 'depth', 'ffn-width', 'head-width', 'vocabulary']
    """
    asked = name.strip()
    for one in terms().values():
        exact = {one.letter, one.field, *one.keys, one.zh, *one.zh.rstrip("）").split("（")}
        if asked and (asked in exact or asked.lower().replace(" ", "-") == one.key
                      or asked.lower() == one.name.lower()):  # fmt: skip
            return one
    raise UnknownNameError("term", name, terms())


def glossary_json(term: Term) -> dict[str, Any]:
    """A word with both languages."""
    found: dict[str, Any] = msgspec.to_builtins(term)
    return found


def print_glossary(out: Any, chosen: list[Term], *, whole: bool) -> None:
    """Words with their meaning, in the language chosen; ``whole`` adds keys and sources."""
    from rich.text import Text  # what is a Text already is not looked up again

    chinese = language() == "zh"
    shown = table(("term", "left"), ("", "left"), ("letter", "left"), ("field", "left"))
    for term in chosen:
        names = (term.zh, term.name) if chinese else (term.name, term.zh)
        shown.add_row(*map(Text, names), term.letter, term.field)
    show_table(out, shown)
    for term in chosen:
        name, means = (term.zh, term.means_zh) if chinese else (term.name, term.means)
        out.print(Text(f"{name}: {means}"))
        if whole and term.keys:
            out.print(f"  config.json: {', '.join(term.keys)}", markup=False)
        if whole and term.sources:
            out.print(f"  {', '.join(term.sources)}", markup=False)


__all__ = ["Term", "find_term", "glossary_json", "print_glossary", "terms"]
