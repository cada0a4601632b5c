"""Files that are there whole or not at all: a kill leaves the old one as it was."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

PART = ".part"
"""How a file ends while it is written; one that stays behind is of a process that was killed."""


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of the old one in one move at the end."""
    part = path.with_name(f".{path.name}.{uuid4().hex[:8]}{PART}")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write(path: Path, data: bytes) -> None:
    """Write a file whole."""
    with whole_file(path) as file:
        file.write(data)
