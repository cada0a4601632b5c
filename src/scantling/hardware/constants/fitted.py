"""What every set of kernel constants says of itself, and how a chip inherits one."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from scantling.sources import read_data

S = TypeVar("S", bound="Fitted")


class Fitted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constants of one kind of kernel on one chip.

    Args:
        kind: ``fitted`` to measurements of this chip, ``measured`` on the machine at hand, or
            ``assumed`` from its likes.
        sources: Keys of the bibliography.
        note: How they were found.
        widen: What the logarithm of an interval's half-width is multiplied by: 1 for a chip
            that was measured, more for one that inherits.
    """

    kind: Literal["fitted", "measured", "assumed"]
    sources: tuple[str, ...]
    note: str = ""
    widen: float = 1.0


class Scattered(Fitted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far measurements lie from the fitted time.

    Args:
        spread_rows: (rows, log2 of a scale): how far off products of so many rows are.
        spread_s: (seconds of the lower bound, log2 of a scale): the same by length.
        below: The 90 % interval reaches down to time / exp(below × both scales).
        above: And up to time × exp(above × both scales).
        least: Neither end is nearer than exp(least): what chips alike differ by, for one that was
            not measured.
    """

    spread_rows: tuple[tuple[float, float], ...] = ((1, 0.0),)
    spread_s: tuple[tuple[float, float], ...] = ((1e-4, 0.0),)
    below: float = 0.2
    above: float = 0.2
    least: float = 0.0


def inherit(table: dict[str, Any], families: tuple[str, ...], key: str, of: type[S]) -> S:
    """The constants of a chip: the default, its family's, its own, each over the last.

    Its family is the first of ``families`` that the file has: its compute capability, then its
    architecture. A chip whose family was measured but which was not takes ``[inherited]`` on top,
    one of a family nobody measured ``[unseen]``: both say ``assumed`` and widen the intervals.
    """
    own = table.get("chip", {}).get(key)
    measured = table.get("family", {})
    family = next((measured[name] for name in families if name in measured), None)
    found = overlaid(table["default"], family or {})
    if own is not None:
        found = overlaid(found, own)
    else:
        found = overlaid(found, table["unseen"] if family is None else table["inherited"])
    return msgspec.convert(found, of)


def overlaid(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """A table with another's entries over its own, tables within them likewise."""
    both = {
        key: overlaid(base[key], value) if isinstance(value, dict) and key in base else value
        for key, value in over.items()
    }
    return base | both


def constants_file(name: str) -> dict[str, Any]:
    """One file of ``data/constants``."""
    return read_data(f"constants/{name}.toml")
