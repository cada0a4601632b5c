"""Be measured: predictions against public tables that nobody here wrote.

Each module reads tables of one kind and registers them by file name; ``validate(folder)`` scores
every table it finds.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, Any

from scantling.errors import FieldError, UnknownNameError

if TYPE_CHECKING:
    from scantling.validate.score import TableScore
    from scantling.validate.table import Reader

NO_TABLES = {"INDEX"}
"""Files of the layout that list the tables and hold no measurement."""
LARGEST_CSV = 1 << 28
"""Bytes of a table at most: a wrong path must not fill the memory."""


def readers() -> list[Reader]:
    """Every reader: the modules of this package register theirs when imported.

    Example:
        >>> all(reader.table.endswith(".csv") for reader in readers())
        True
    """
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    from scantling.validate.table import TABLES

    return sorted(TABLES, key=lambda reader: reader.table)


def validate(
    folder: str | Path, tables: Iterable[str] = (), *,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[TableScore]:  # fmt: skip
    """Score the tables of a folder.

    Args:
        folder: Holds CSV files in the layout of ``data/measured``, or is one of them.
        tables: Names of those wanted; all by default.
        progress: Called with a table's name, the rows done and the rows in all.

    Returns:
        A score for each quantity of each table, by name; a table that no reader knows is there
        too, with all its rows skipped.

    Raises:
        FieldError: If the folder does not exist, holds no table, or a wanted one is not in it.

    Example:
        >>> validate("no/such/folder")
        Traceback (most recent call last):
        ...
        scantling.errors.FieldError: tables no/such/folder is no folder and no CSV file
    """
    from scantling.validate.score import score_table, unread

    found = {path: _rows(path) for path in _files(Path(folder), list(tables))}
    known: dict[str, list[Reader]] = {path.name: [] for path in found}
    for reader in readers():
        if reader.table in known:
            known[reader.table].append(reader)
    total = sum(len(rows) * len(known[path.name]) for path, rows in found.items())
    done = 0
    scored = []
    for path, rows in found.items():

        def tick(name: str = path.stem) -> None:
            nonlocal done
            done += 1
            if progress is not None:
                progress(name, done, total)

        if not rows:
            scored.append(unread(path.name, 0, "the table is empty"))
        elif not known[path.name]:
            scored.append(unread(path.name, len(rows), "no reader knows this table"))
        else:
            scored += [score_table(reader, rows, tick) for reader in known[path.name]]
    return scored


def _files(folder: Path, wanted: list[str]) -> list[Path]:
    """The tables of a folder, by name."""
    if folder.is_file() and folder.suffix == ".csv":
        files = [folder]
    elif folder.is_dir():
        files = sorted(p for p in folder.glob("*.csv") if p.stem not in NO_TABLES and p.is_file())
    else:
        raise FieldError("tables", str(folder), "is no folder and no CSV file")
    if not files:
        raise FieldError("tables", str(folder), "holds no CSV file")
    by_name = {p.stem: p for p in files}
    names = [name.removesuffix(".csv") for name in wanted]
    for name in names:
        if name not in by_name:
            raise UnknownNameError("table", name, by_name)
    return [p for p in files if not names or p.stem in names]


def _rows(path: Path) -> list[Any]:
    """The rows of a table."""
    from scantling.validate.table import TableRow

    if path.stat().st_size > LARGEST_CSV:
        raise FieldError("table", path.name, f"is larger than {LARGEST_CSV >> 20} MiB")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restkey="", restval="")
            return [TableRow(row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FieldError("table", path.name, f"cannot be read: {error}") from None


class _Callable(ModuleType):
    """A package that is the verb of its name: ``scantling.validate("data/measured")``.

    Importing a package binds its name in its parent, over any function of that name.
    """

    def __call__(self, *args: Any, **options: Any) -> list[TableScore]:
        """See ``validate``."""
        return validate(*args, **options)


sys.modules[__name__].__class__ = _Callable
