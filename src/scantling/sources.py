"""Where numbers come from: the bibliography in ``data/sources.toml``."""

from __future__ import annotations

import functools
import tomllib
from importlib import resources
from typing import Any

from msgspec import Struct

from scantling.errors import UnknownNameError


class Source(Struct, frozen=True, kw_only=True):
    """One entry of the bibliography.

    Example:
        >>> source("chinchilla2022").title
        'Training Compute-Optimal Large Language Models'
    """

    key: str
    title: str
    where: str
    year: int | None = None
    note: str = ""


def read_data(name: str) -> dict[str, Any]:
    """A TOML file of the package's ``data`` folder, parsed."""
    return tomllib.loads(resources.files("scantling.data").joinpath(name).read_text("utf-8"))


@functools.cache
def sources() -> dict[str, Source]:
    """Every source by its key."""
    return {k: Source(key=k, **v) for k, v in read_data("sources.toml").items()}


def source(key: str) -> Source:
    """One source by its key; an unknown one is an error that names the nearest."""
    known = sources()
    if key not in known:
        raise UnknownNameError("source", key, known)
    return known[key]
