"""Rules of thumb, held against public runs: what is claimed, and what was measured."""

from __future__ import annotations

import functools
from typing import Literal

import msgspec
from msgspec import Struct

from scantling.errors import UnknownNameError
from scantling.sources import read_data


class Claim(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule of thumb with its verdict; a table of ``data/claims.toml``."""

    claim: str
    verdict: Literal["supported", "not supported", "a compromise"]
    evidence: str
    sources: tuple[str, ...]


@functools.cache
def claims() -> dict[str, Claim]:
    """Every claim by its name.

    Example:
        >>> claims()["hundred"].verdict
        'a compromise'
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
