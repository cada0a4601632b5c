"""Law files: a fitted law as TOML that ``design --law FILE`` and ``laws evaluate`` take."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from scantling.errors import FieldError
from scantling.laws.registry import FORMS, Facts, Law


def read_law(path: str | Path) -> Law:
    """The law of a file.

    Raises:
        FieldError: If the file cannot be read or is no law file.
    """
    file = Path(path)
    try:
        changed = file.stat().st_mtime_ns
    except OSError as error:
        raise FieldError("law", str(path), f"cannot be read: {error.strerror}") from error
    return _read(file, changed)


@functools.lru_cache(maxsize=16)
def _read(path: Path, changed: int) -> Law:  # noqa: ARG001 - a changed file is read again
    try:
        facts = msgspec.convert(tomllib.loads(path.read_text("utf-8")), Facts)
    except (OSError, ValueError) as error:
        raise FieldError("law", str(path), f"is no law file: {error}") from error
    if facts.function not in FORMS:
        known = ", ".join(sorted(FORMS))
        raise FieldError("law", str(path), f"has the unknown function {facts.function!r}", known)
    if not set(facts.domain) >= {facts.counts, "tokens"}:
        raise FieldError("law", str(path), f"has no domain of {facts.counts} and tokens")
    one = Law(name=path.name, function=FORMS[facts.function], facts=facts)
    _ask(one, path)
    return one


def _ask(one: Law, path: Path) -> None:
    from scantling.laws.optimum import shaped

    try:
        one.interval(shaped(1e9, 2e10, 64.0))  # asks the draws too
        one.loss(shaped(1e9, 2e10, 64.0))
    except KeyError as error:
        raise FieldError("law", str(path), f"lacks the constant {error.args[0]}") from error
    except (ArithmeticError, ValueError) as error:
        raise FieldError("law", str(path), f"gives no loss: {error}") from error


def law_text(facts: Facts) -> str:
    """The text of a law file.

    Example:
        >>> from scantling.laws.registry import law
        >>> tomllib.loads(law_text(law("aspect").facts))["constants"]["E"]
        1.383
    """
    given: dict[str, Any] = msgspec.to_builtins(facts)
    draws = given.pop("draws")
    lines = [f"{k} = {_value(v)}" for k, v in given.items() if not isinstance(v, dict)]
    if draws:
        lines.append("draws = [")
        lines += [f"  {_value(one)}," for one in draws]
        lines.append("]")
    for table, entries in given.items():
        if isinstance(entries, dict):
            lines += ["", f"[{table}]"]
            lines += [f"{_key(k)} = {_value(v)}" for k, v in entries.items()]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isascii() else f'"{name}"'


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str):
        import json

        return json.dumps(value, ensure_ascii=False)
    return repr(float(f"{value:.12g}"))
