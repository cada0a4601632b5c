"""One base error: which field, which value, which rule, what would be right.

Raised deep, framed once at the public function or the command line; bad input never shows a
traceback. Assertions are for us, these are for users.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class ScantlingError(Exception):
    """The base of every error a user can cause."""


class FieldError(ScantlingError):
    """A field holds a value that breaks a rule.

    Args:
        path: The field, dotted: ``attention.n_kv_head``.
        value: What was given.
        rule: The relation that must hold, with its numbers: ``must divide n_head 32``.
        hint: What would be right: ``use 4 or 8``.

    Example:
        >>> print(FieldError("n_kv_head", 6, "must divide n_head 32", "use 4 or 8"))
        n_kv_head 6 must divide n_head 32; use 4 or 8
    """

    def __init__(self, path: str, value: object, rule: str, hint: str = "") -> None:
        self.path, self.value, self.rule, self.hint = path, value, rule, hint
        shown = shorten(value)
        text = f"{path} {shown} {rule}" if shown else f"{path} {rule}"
        super().__init__(f"{text}; {hint}" if hint else text)

    def __reduce__(self) -> tuple[Any, ...]:
        """As it is, so that one raised in another process arrives."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[FieldError], args: tuple[Any, ...], fields: dict[str, Any]) -> FieldError:
    error = kind.__new__(kind, *args)
    error.args, error.__dict__ = args, fields
    return error


class UnknownNameError(FieldError):
    """A name that is in no catalogue, answered with the nearest that are."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        near = nearest(name, known)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known[:12])}"
        if not near and len(known) > 12:
            hint += f", … ({len(known)} in all)"
        super().__init__(kind, name, "is not known", hint)


def nearest(name: str, known: Iterable[str], n: int = 2) -> list[str]:
    """The n known names most like a name.

    Example:
        >>> nearest("n_layers", ["n_layer", "n_head"], 1)
        ['n_layer']
    """
    return difflib.get_close_matches(name, list(known), n=n, cutoff=0.6)


def shorten(value: object, limit: int = 60) -> str:
    """A value as one short piece of a line."""
    text = "" if value is None else str(value)
    text = text.replace("\n", " ")
    return text if len(text) <= limit else text[: limit - 1] + "…"
