"""The folder of a study: its design, its plan, one file a run. What is there is never run twice."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from scantling.errors import FieldError
from scantling.lab import whole_file
from scantling.lab.study.design import Study
from scantling.lab.study.trial import Record

T = TypeVar("T")
STUDY, PLAN, DATA, RUNS, TABLE, RESULT, STATES = (
    "study.json", "plan.json", "data.json", "runs", "runs.jsonl", "result.json", "states",
)  # fmt: skip


def write(path: Path, value: Any) -> None:
    """Write a value as JSON."""
    text = json.dumps(msgspec.to_builtins(value), indent=1, ensure_ascii=False) + "\n"
    whole_file.write(path, text.encode())


def read(path: Path, kind: type[T]) -> T | None:
    """A value that was written, or None where there is none.

    Raises:
        FieldError: If it is there and cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise FieldError("study", str(path), f"cannot be read: {error}") from None


def open_folder(folder: Path, study: Study) -> Path:
    """The folder of a study, made if it does not exist.

    Another study that has trained nothing yet, as one whose budget was too short, gives way.

    Raises:
        FieldError: If it holds another study, or something else.
    """
    if folder.exists() and not folder.is_dir():
        raise FieldError("--out", str(folder), "is a file", "give a folder")
    old = read(folder / STUDY, Study)
    if old is None and folder.is_dir() and not all(map(_of_a_beginning, folder.iterdir())):
        raise FieldError("--out", str(folder), "holds something that is no study",
                         "give an empty folder")  # fmt: skip
    other = old is not None and old.hash != study.hash
    if old is not None and other and (count(folder) or (folder / STATES).is_dir()):
        raise FieldError("--out", str(folder), f"holds another study, {old.name} of other shapes, "
                         "data, rates or seeds", "give another folder, or --fresh")  # fmt: skip
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if other:
            for name in (PLAN, DATA):
                (folder / name).unlink(missing_ok=True)
        if old is None or other:
            write(folder / STUDY, study)
        (folder / RUNS).mkdir(exist_ok=True)
    except OSError as error:
        raise FieldError("--out", str(folder), f"cannot be made: {error.strerror}") from None
    return folder


def _of_a_beginning(path: Path) -> bool:
    """Whether a study that was killed while it made its folder leaves this."""
    return path.suffix == whole_file.PART or (path.name == RUNS and not any(path.iterdir()))


def keep(folder: Path, record: Record) -> None:
    """Keep a run under its key."""
    write(folder / RUNS / f"{record.key}.json", record)


def kept(folder: Path, key: str) -> Record | None:
    """The run of a key, if it is done."""
    return read(folder / RUNS / f"{key}.json", Record)


def state(folder: Path, keys: Sequence[str]) -> Path:
    """The folder for the state of runs that are trained together, until they are done."""
    return folder / STATES / hashlib.sha256(" ".join(keys).encode()).hexdigest()[:24]


def forget(state: Path) -> None:
    """Remove a state that nothing goes on from."""
    shutil.rmtree(state, ignore_errors=True)


def count(folder: Path) -> int:
    """Runs that are done."""
    return sum(1 for _ in (folder / RUNS).glob("*.json"))


def write_table(folder: Path, records: Iterable[Record]) -> None:
    """The runs as a table for ``laws fit``, a JSON object a line; those that failed are left out.

    A record that stands in several studies is the same run.
    """
    rows = [r.row for r in records if r.outcome.failed is None]
    whole_file.write(folder / TABLE, "".join(json.dumps(row) + "\n" for row in rows).encode())
