"""What is said of the dimensions of models, and what is right: records, each with its verdict."""

from __future__ import annotations

import functools
from collections import ChainMap
from typing import Literal

import msgspec
from msgspec import Struct

from scantling.errors import UnknownNameError
from scantling.sources import read_data

Verdict = Literal["correct", "convention", "approximate", "wrong", "unverifiable"]

UNCHECKED = ("convention", "unverifiable")
"""The verdicts that numbers cannot decide."""


class Claim(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A claim with its verdict; a table of ``data/claims.toml``, which says what each field is."""

    area: str
    statement: str
    made: tuple[str, ...]
    verdict: Verdict
    right: str
    evidence: str
    sources: tuple[str, ...]
    derivation: str = ""
    check: str = ""
    numbers: dict[str, float] = {}
    measured: dict[str, float] = {}

    @property
    def found(self) -> str:
        """The evidence with its numbers in place."""
        return self.evidence.format_map(ChainMap(self.numbers, self.measured))


@functools.cache
def claims() -> dict[str, Claim]:
    """Every claim by its name.

    Example:
        >>> claims()["hundred"].verdict
        'approximate'
    """
    return msgspec.convert(read_data("claims.toml"), dict[str, Claim])


def claim(name: str) -> Claim:
    """One claim.

    Raises:
        UnknownNameError: If there is none of that name.
    """
    if name not in claims():
        raise UnknownNameError("claim", name, claims())
    return claims()[name]
