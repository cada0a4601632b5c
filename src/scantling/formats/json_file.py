"""JSON as people have it: with a byte-order mark, ``Infinity``, repeated keys, or not JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scantling.errors import FieldError

LARGEST_FILE = 64 * 2**20


def parse_object(text: str, name: str) -> tuple[dict[str, Any], list[str]]:
    """A JSON object, with notes on what was odd.

    Raises:
        FieldError: If the text is empty, no JSON, or JSON of another kind.

    Example:
        >>> parse_object('{"a": 1, "a": 2}', "x.json")
        ({'a': 2}, ['the key a is repeated; the last value counts'])
    """
    notes = []
    if text.startswith("\ufeff"):
        notes.append("the file starts with a byte-order mark")
        text = text[1:]
    if not text.strip():
        raise FieldError(name, None, "is empty", "it should hold a config.json")

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in items:
            if key in found:
                notes.append(f"the key {key} is repeated; the last value counts")
            found[key] = value
        return found

    try:
        value = json.loads(text, object_pairs_hook=pairs)
    except RecursionError:
        raise FieldError(name, None, "is nested too deeply to be a config") from None
    except ValueError as error:  # JSONDecodeError, or an integer of thousands of digits
        where = f"line {error.lineno}" if isinstance(error, json.JSONDecodeError) else "a number"
        what = str(error).split(" for integer")[0].split(": line")[0]
        raise FieldError(name, None, f"is no JSON: {what} ({where})") from None
    if not isinstance(value, dict):
        kind = "a list" if isinstance(value, list) else f"a {type(value).__name__}"
        raise FieldError(name, None, f"holds {kind}", "a config.json holds an object")
    return value, notes


def read_object(path: Path) -> tuple[dict[str, Any], list[str]]:
    """The JSON object in a file."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise FieldError(str(path), None, "is too large for a config", "at most 64 MiB")
        text = path.read_text("utf-8")
    except UnicodeDecodeError:
        raise FieldError(str(path), None, "is no text file", "a config.json is UTF-8") from None
    except OSError as error:
        raise FieldError(str(path), None, f"cannot be read: {error.strerror}") from None
    return parse_object(text, str(path))
