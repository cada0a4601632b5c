"""What a project has settled: ``scantling.toml``, or ``[tool.scantling]`` of ``pyproject.toml``."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from scantling.errors import FieldError


class Project(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """The settled part of a question; options on the command line win.

    Args:
        select: Rules asked for: codes, prefixes or slugs.
        ignore: Rules not asked for.
        setting: ``gpu``, ``tp``, ``runtime``, …: as the options of ``lint``.
        per_file_ignores: Rules not asked of files whose path fits a pattern.
        path: Where it stands.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    setting: dict[str, Any] = {}
    per_file_ignores: dict[str, tuple[str, ...]] = {}
    path: str = ""

    def ignored(self, file: str) -> tuple[str, ...]:
        """The rules that are not asked of a file.

        Example:
            >>> one = Project(ignore=("SC6",), per_file_ignores={"old/*": ("SC501",)})
            >>> one.ignored("old/gpt2.json"), one.ignored("new.json")
            (('SC6', 'SC501'), ('SC6',))
        """
        own = [c for pattern, codes in self.per_file_ignores.items() if _fits(file, pattern)
               for c in codes]  # fmt: skip
        return (*self.ignore, *own)


def _fits(file: str, pattern: str) -> bool:
    return fnmatch(file, pattern) or fnmatch(file, f"*/{pattern}")


def find_project(start: Path | None = None) -> Project:
    """The nearest settings from a folder upwards; none is an empty one.

    Raises:
        FieldError: If a file is no TOML, or holds what is no setting.
    """
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        for name in ("scantling.toml", "pyproject.toml"):
            path = folder / name
            if not path.is_file():
                continue
            table = _read(path)
            if name == "pyproject.toml":
                table = table.get("tool", {}).get("scantling")
                if table is None:
                    continue
            return _project(table.get("lint", table), path)
    return Project()


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise FieldError(str(path), None, f"is no TOML: {error}") from None


def _project(table: Any, path: Path) -> Project:
    try:
        found = msgspec.convert(table, Project)
    except msgspec.ValidationError as error:
        known = "select, ignore, setting, per-file-ignores"
        raise FieldError(str(path), None, f"is wrong: {error}", f"it may hold {known}") from None
    return msgspec.structs.replace(found, path=str(path))
