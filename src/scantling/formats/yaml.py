"""Plain values as YAML: enough for configs, without a library."""

from __future__ import annotations

import json
from typing import Any


def dump(values: dict[str, Any], indent: int = 0) -> str:
    """Nested dictionaries as YAML; lists and texts are written as JSON, which YAML reads.

    Example:
        >>> print(dump({"a": 1, "b": {"c": None, "d": [1, 2], "e": "x", "f": True}}), end="")
        a: 1
        b:
          c: null
          d: [1, 2]
          e: x
          f: true
    """
    lines = []
    for key, value in values.items():
        if isinstance(value, dict) and value:
            lines.append(f"{' ' * indent}{key}:\n{dump(value, indent + 2)}")
        else:
            lines.append(f"{' ' * indent}{key}: {_scalar(value)}\n")
    return "".join(lines)


PLAIN_WORDS = {"true", "false", "null", "yes", "no", "on", "off"}


def _scalar(value: Any) -> str:
    if isinstance(value, str) and value.isidentifier() and value.lower() not in PLAIN_WORDS:
        return value
    return json.dumps(value)
