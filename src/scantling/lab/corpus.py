"""Text to train on: the interpreter's own library, a grammar of known entropy, a user's files."""

from __future__ import annotations

import hashlib
import json
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scantling.errors import FieldError, UnknownNameError
from scantling.lab.grammar_text import Grammar

BLOCKS = 20
"""Parts a corpus is cut into, so that each slice is drawn from all of it."""
SHARES = {"train": 18, "choose": 1, "report": 1}
"""Twentieths of every block, in this order: trained on, chosen on, reported."""
NOT_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
GENERATED = ("recall", "mqar", "copy", "addition", "hops")
"""Data that is no text: tasks that are drawn anew, whose length follows from their knobs."""
GRAMMAR_BYTES = 4 * 2**20
READ = {".txt": "text", ".jsonl": "JSON lines", ".parquet": "a column of text"}


def cuts(n: int) -> Iterator[tuple[str, int, int]]:
    """Which slice each stretch of n units belongs to, with its begin and end.

    Example:
        >>> list(cuts(400))[:4]
        [('train', 0, 18), ('choose', 18, 19), ('report', 19, 20), ('train', 20, 38)]
    """
    whole, done = BLOCKS * sum(SHARES.values()), 0
    for _ in range(BLOCKS):
        for name, share in SHARES.items():
            yield name, done * n // whole, (done + share) * n // whole
            done += share


@dataclass(frozen=True)
class Corpus:
    """A text in bytes, with its name and, where it is known, the least loss on it."""

    name: str
    data: bytes
    floor_bits_per_byte: float | None = None
    """Entropy rate of the source; None where nobody knows."""

    @property
    def hash(self) -> str:
        """SHA-256 of the bytes."""
        return hashlib.sha256(self.data).hexdigest()

    def slices(self) -> dict[str, list[bytes]]:
        """The parts of each slice, in the order of the text.

        The text is cut into 20 blocks; nine tenths of each are for training, the last tenth is
        held back, half of it to choose on and half to report. No character is cut.

        Example:
            >>> parts = Corpus("digits", b"0123456789" * 40).slices()
            >>> {name: (len(p), sum(map(len, p))) for name, p in parts.items()}
            {'train': (20, 360), 'choose': (20, 20), 'report': (20, 20)}
        """
        found: dict[str, list[bytes]] = {name: [] for name in SHARES}
        for name, start, end in cuts(len(self.data)):
            found[name].append(self.data[self._whole(start) : self._whole(end)])
        return found

    def _whole(self, at: int) -> int:
        """The first place from here where a character of UTF-8 begins."""
        while at < len(self.data) and self.data[at] & 0xC0 == 0x80:
            at += 1
        return at


def corpus(name: str, **knobs: int) -> Corpus:
    """A built-in corpus or a user's file.

    Args:
        name: ``code`` (the source of the running interpreter's standard library: differs by
            version, so its hash goes with every result), ``grammar`` (see ``Grammar``; knobs are
            its fields and ``n_bytes``), or a file: ``.txt``; ``.jsonl`` and ``.parquet``, whose
            ``text`` or only column of text is read.
        knobs: Of the grammar.

    Raises:
        FieldError: If a file cannot be read, or knobs do not apply.

    Example:
        >>> text = corpus("grammar", n_bytes=1000)
        >>> len(text.data), round(text.floor_bits_per_byte, 3)
        (1000, 0.42)
    """
    if name == "grammar":
        n_bytes = knobs.pop("n_bytes", GRAMMAR_BYTES)
        if unknown := set(knobs) - {"seed", "n_symbol", "n_rule", "n_word"}:
            raise UnknownNameError("knob of grammar", min(unknown),
                                   ["seed", "n_symbol", "n_rule", "n_word", "n_bytes"])  # fmt: skip
        source = Grammar(**knobs)
        return Corpus("grammar", source.text(n_bytes), source.bits_per_byte)
    if knobs:
        raise FieldError("data", name, f"has no knob {min(knobs)}", "only generated data has knobs")
    if name == "code":
        return Corpus("code", _library())
    path = Path(name)
    if path.suffix.lower() not in READ:
        known = [*READ, "code", "grammar"]
        raise FieldError("data", name, "is no corpus and no file of a known kind",
                         f"use {', '.join(known)}, or a task "
                         "such as recall")  # fmt: skip
    found = _file(path)
    if not found.strip():
        raise FieldError("data", name, "has no text")
    return Corpus(path.name, found)


def _library() -> bytes:
    """Every module of the standard library, in the order of their paths, without its tests."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(
        p for p in root.rglob("*.py") if not NOT_LIBRARY & set(p.relative_to(root).parts)
    )
    if not files:
        raise FieldError("data", "code", f"finds no source in {root}", "give a file of text")
    return b"\n".join(p.read_bytes() for p in files)


def _file(path: Path) -> bytes:
    try:
        if path.suffix.lower() == ".parquet":
            return "\n\n".join(_column(path)).encode()
        data = path.read_bytes()
    except OSError as error:
        raise FieldError("data", str(path), f"cannot be read: {error.strerror}") from error
    if path.suffix.lower() == ".jsonl":
        return "\n\n".join(_records(data, path)).encode()
    return data


def _records(data: bytes, path: Path) -> Iterator[str]:
    for i, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise FieldError("data", str(path), f"line {i} is no JSON: {error}") from error
        texts = {"text": record} if isinstance(record, str) else record
        if not isinstance(texts, dict) or not isinstance(texts.get("text"), str):
            raise FieldError("data", str(path), f"line {i} has no text",
                             'each line is a string or has "text"')  # fmt: skip
        yield texts["text"]


def _column(path: Path) -> Iterator[str]:
    try:
        from pyarrow import ArrowException, parquet, types
    except ImportError:
        raise FieldError("data", str(path), "needs pyarrow", "pip install pyarrow, or give "
                         ".jsonl") from None  # fmt: skip
    try:
        file = parquet.ParquetFile(path)
        named = {f.name: f for f in file.schema_arrow
                 if types.is_string(f.type) or types.is_large_string(f.type)}  # fmt: skip
        column = "text" if "text" in named else next(iter(named), None)
        if column is None or ("text" not in named and len(named) > 1):
            raise FieldError("data", str(path), "has no column named text")
        for batch in file.iter_batches(columns=[column]):
            yield from (text for text in batch.column(0).to_pylist() if text is not None)
    except ArrowException as error:
        raise FieldError("data", str(path), f"is no parquet file: {error}") from error
