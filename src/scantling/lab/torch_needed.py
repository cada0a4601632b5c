"""The one place that says how to get torch, and what it needs to compile."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec

from scantling.errors import FieldError


def need_torch() -> None:
    """Raise one line that says what to install where torch is missing.

    Raises:
        FieldError: If torch cannot be found.
    """
    if find_spec("torch") is None:
        raise FieldError("run", None, "needs torch", "pip install 'scantling[lab]'")


def need_compiler() -> None:
    """Raise one line that says what to install where torch.compile has no C++ compiler.

    Raises:
        FieldError: If there is none.
    """
    named = os.environ.get("CXX")
    if not any(shutil.which(one) for one in ([named] if named else ["g++", "clang++", "cl"])):
        raise FieldError("--compile", named, "needs a C++ compiler", "install g++, or leave it out")
