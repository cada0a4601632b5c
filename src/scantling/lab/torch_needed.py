"""The one place that says how to get torch."""

from __future__ import annotations

from importlib.util import find_spec

from scantling.errors import FieldError


def need_torch() -> None:
    """Raise one line that says what to install where torch is missing.

    Raises:
        FieldError: If torch cannot be found.
    """
    if find_spec("torch") is None:
        raise FieldError("run", None, "needs torch", "pip install 'scantling[lab]'")
