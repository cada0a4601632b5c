"""The records: what is said, where, what is right, and the evidence."""

from __future__ import annotations

import functools
from collections import ChainMap
from importlib import resources
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct

from scantling.errors import UnknownNameError
from scantling.sources import read_data

Verdict = Literal["correct", "convention", "approximate", "wrong", "unverifiable"]

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

FOLDER = "claims"


class Claim(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A claim with its verdict: a table of ``data/claims``, one file an area.

    Args:
        id: ``A037``, its number in the audit.
        area: What it is about; the name of its file.
        name: A name in words.
        statement: The claim, in one sentence.
        made: Where; ids in brackets are those of the inventory of the founding documents.
        verdict: ``correct`` holds as said; ``convention`` under one reading and not another;
            ``approximate`` for some purpose, and the record says how far off; ``wrong`` against
            the numbers of the record; ``unverifiable`` where nothing public decides it.
        right: What is right instead, or the condition.
        derivation: How the numbers come about, where that is arithmetic.
        evidence: What was found; {name} is a number of the record.
        sources: Keys of the bibliography; empty where the product's own count is the evidence.
        check: The function that recomputes verdict and numbers; empty where nothing does.
        given: What that function is asked about.
        said: The claim's own numbers, which it compares.
        numbers: What it returns, to half a percent; typed from the audit, never from a run of it.
        measured: Read off public tables of runs; a test reads them again.
        to_be_confirmed: It rests on memory or common knowledge, and its source was not read
            again: no rule rests on it.
    """

    id: str
    area: str
    name: str
    statement: str
    made: tuple[str, ...]
    verdict: Verdict
    right: str
    evidence: str = ""
    derivation: str = ""
    sources: tuple[str, ...] = ()
    check: str = ""
    given: dict[str, Any] = {}
    said: dict[str, float] = {}
    numbers: dict[str, float] = {}
    measured: dict[str, float] = {}
    to_be_confirmed: bool = False

    @property
    def found(self) -> str:
        """The evidence with its numbers in place."""
        return self.evidence.format_map(ChainMap(self.numbers, self.measured))


def areas() -> list[str]:
    """What claims are about, each a file of ``data/claims``."""
    folder = resources.files("scantling.data").joinpath(FOLDER)
    names = (file.name for file in folder.iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


@functools.cache
def claims() -> dict[str, Claim]:
    """Every claim by its id, in order.

    Example:
        >>> claims()["A129"].name, claims()["A129"].verdict
        ('hundred', 'approximate')
    """
    found = {
        key: {"id": key, "area": area, **entry}
        for area in areas()
        for key, entry in read_data(f"{FOLDER}/{area}.toml").items()
    }
    return msgspec.convert(dict(sorted(found.items())), dict[str, Claim])


def claim(name: str) -> Claim:
    """One claim by its id or its name.

    Raises:
        UnknownNameError: If there is none; it names the nearest.

    Example:
        >>> claim("kv-quadratic").id, claim("a114").verdict
        ('A114', 'wrong')
    """
    plain = name.strip()
    if plain.upper() in claims():
        return claims()[plain.upper()]
    named = {one.name: one for one in claims().values()}
    if plain.lower() not in named:
        raise UnknownNameError("claim", name, named)
    return named[plain.lower()]
