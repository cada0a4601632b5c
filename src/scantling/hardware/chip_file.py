"""A chip as a TOML file: what ``calibrate`` writes, and what stands for a chip's name anywhere."""

from __future__ import annotations

import functools
import json
import math
import os
import re
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from scantling.errors import FieldError
from scantling.hardware.parts import Chip

WHERE = re.compile(r"(?P<what>.*) - at `\$\.?(?P<at>.*)`", re.DOTALL)
AGAIN = "run scantling calibrate again"
LARGEST_FILE = 2**20
"""A chip file has some 10 KB."""


def is_path(name: str) -> bool:
    """Whether a chip's name is that of a file.

    Example:
        >>> is_path("./my-cpu.toml"), is_path("h100-sxm")
        (True, False)
    """
    return name.endswith(".toml") or "/" in name or os.sep in name


def read_chip(path: str | Path) -> Chip:
    """The chip of a file.

    Args:
        path: A file of ``scantling calibrate``, or one written by hand in the same form.

    Raises:
        FieldError: If it is no such file; the line names the file, the entry and what is wrong.
    """
    path = Path(path)
    try:
        found = path.stat()
    except OSError as error:
        hint = "scantling calibrate --out FILE writes one"
        raise FieldError("chip file", path, f"cannot be read ({error.strerror})", hint) from None
    return _read(path, found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=16)
def _read(path: Path, changed_ns: int, size: int) -> Chip:  # noqa: ARG001 - part of the key
    if size > LARGEST_FILE:
        raise FieldError("chip file", path, f"has {size} bytes, more than any chip file")
    try:
        table = tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise FieldError("chip file", path, f"cannot be read ({error.strerror})") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise FieldError("chip file", path, f"is no TOML: {error}", AGAIN) from None
    try:
        one = msgspec.convert(table, Chip)
    except msgspec.ValidationError as error:
        match = WHERE.fullmatch(str(error))
        what, at = (match["what"], match["at"]) if match else (str(error), "")
        rule = f"is no chip: {at + ': ' if at else ''}{what[:1].lower()}{what[1:]}"
        raise FieldError("chip file", path, rule, AGAIN) from None
    wrong = _wrong(one)
    if wrong:
        raise FieldError("chip file", path, f"is no chip: {wrong}", AGAIN)
    return one


def _wrong(one: Chip) -> str:
    """What no chip can be; empty where all is well."""
    if not one.dtypes:
        return "rates: none is given"
    above_zero = {
        "memory_bytes": one.memory_bytes, "memory_bytes_per_s": one.memory_bytes_per_s,
        "sm_count": one.sm_count, "link_bytes_per_s": one.link_bytes_per_s,
        "memory_usable_bytes": one.memory_usable_bytes, "devices": one.devices,
        **{f"rates.{name}": getattr(one.rates, name) for name in one.dtypes},
    }  # fmt: skip
    for name, value in above_zero.items():
        if value is not None and not (value > 0 and math.isfinite(value)):
            return f"{name}: {value} is not above zero and finite"
    return _not_a_number(msgspec.to_builtins(one.constants), "constants")


def _not_a_number(value: Any, at: str) -> str:
    """The first number that is not finite: no constant of a kernel is."""
    if isinstance(value, dict):
        found = (_not_a_number(v, f"{at}.{k}") for k, v in value.items())
        return next((text for text in found if text), "")
    if isinstance(value, list | tuple):
        return next((text for text in (_not_a_number(v, at) for v in value) if text), "")
    if isinstance(value, float) and not math.isfinite(value):
        return f"{at}: {value} is not finite"
    return ""


def write_chip(one: Chip, path: str | Path) -> None:
    """Write a chip file whole or not at all: a kill leaves the old file as it was.

    Raises:
        FieldError: If nothing can be written there.
    """
    path = Path(path)
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as file:
            try:
                file.write(chip_text(one))
                file.flush()
                os.fsync(file.fileno())
                Path(file.name).chmod(0o644)
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise FieldError("out", path, f"cannot be written ({error.strerror})") from None


def chip_text(one: Chip) -> str:
    """A chip as TOML that ``read_chip`` reads back as the same chip.

    Example:
        >>> from scantling.hardware import chip
        >>> print(chip_text(chip("h100")).splitlines()[0])
        key = "h100-sxm"
    """
    return "\n".join(_lines(msgspec.to_builtins(one), ""))


def _lines(table: dict[str, Any], name: str) -> list[str]:
    """The lines of a table: its values, then the tables in it."""
    plain = {k: v for k, v in table.items() if not isinstance(v, dict) and v is not None}
    inner = {k: v for k, v in table.items() if isinstance(v, dict)}
    lines = [f"{_key(k)} = {_value(v)}" for k, v in plain.items()]
    if name and (lines or not inner):
        lines = ["", f"[{name}]", *lines]
    for key, value in inner.items():
        lines += _lines(value, f"{name}.{_key(key)}" if name else _key(key))
    return lines if name else [*lines, ""]


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _value(value: Any) -> str:
    """One value; the strings of JSON are strings of TOML too."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, dict):
        inside = ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None)
        return f"{{{inside}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(v) for v in value)}]"
    return repr(value)
