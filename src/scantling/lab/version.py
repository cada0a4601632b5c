"""Which code a run was made by."""

from __future__ import annotations

import functools
import hashlib
from importlib import import_module
from pathlib import Path

import scantling

PACKAGE = Path(scantling.__file__).parent
SHOWS = {"cli", "web", "report", "messages.py"}
"""What only shows results, and changes no number of a run."""


def sources() -> list[Path]:
    """The files that a run may depend on: a model is built from operators, its data from laws."""
    found = sorted(PACKAGE.rglob("*.py"))
    return [p for p in found if p.relative_to(PACKAGE).parts[0] not in SHOWS]


@functools.cache
def code_version(module: str | None = None) -> str:
    """The package's version and a hash of its sources: equal where the same code ran.

    Args:
        module: Of code outside the package that a run calls.

    Example:
        >>> code_version().split("+")[0] == scantling.__version__
        True
    """
    found = hashlib.sha256()
    beside = [] if module is None else [Path(import_module(module).__file__ or "")]
    for path in [*sources(), *beside]:
        found.update(path.read_bytes())
    return f"{scantling.__version__}+{found.hexdigest()[:12]}"
