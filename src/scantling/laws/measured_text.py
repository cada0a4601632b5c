"""Tokens a byte of a text, measured with its tokenizer: what no law of vocabularies can know."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from scantling.errors import FieldError
from scantling.laws.vocabulary import bits_per_byte

LARGEST_TEXT = 64 * 2**20
"""Bytes read of a text: more do not move a ratio."""
PART = 2**16
"""Characters tokenized at a time, cut where a line ends."""


class Measured(NamedTuple):
    """What a tokenizer makes of a text."""

    name: str
    vocab_size: int
    n_bytes: int
    n_characters: int
    n_words: int
    n_tokens: int

    @property
    def tokens_per_byte(self) -> float:
        """Tokens over bytes of UTF-8."""
        return self.n_tokens / self.n_bytes

    @property
    def tokens_per_word(self) -> float:
        """Fertility: tokens over words between spaces; of no use where text has no spaces."""
        return self.n_tokens / max(self.n_words, 1)

    @property
    def bits_per_byte_of_a_nat(self) -> float:
        """What a loss of one nat a token is in bits a byte."""
        return bits_per_byte(1.0, self.tokens_per_byte)


def measure_text(text: Path, tokenizer: Path) -> Measured:
    """Tokens, bytes, characters and words of a text file.

    Args:
        text: A file of UTF-8, of which at most 64 MiB are read.
        tokenizer: A ``tokenizer.json``, or the folder that holds one.

    Raises:
        FieldError: If a file cannot be read, the text is empty, or tokenizers is missing.
    """
    words = _read(text)
    one = _load(tokenizer)
    count = sum(len(one.encode(part, add_special_tokens=False).ids) for part in parts(words))
    name = tokenizer.parent.name if tokenizer.name == "tokenizer.json" else tokenizer.stem
    return Measured(
        name or tokenizer.name, one.get_vocab_size(), len(words.encode()), len(words),
        len(words.split()), count,
    )  # fmt: skip


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            found = file.read(LARGEST_TEXT)
    except OSError as error:
        raise FieldError("--text", str(path), f"cannot be read: {error.strerror}") from error
    text = found.decode("utf-8", errors="ignore" if len(found) == LARGEST_TEXT else "replace")
    if not text.strip():
        raise FieldError("--text", str(path), "has no text")
    if text.count("\ufffd") > 0.01 * len(text):
        raise FieldError("--text", str(path), "is no UTF-8 text")
    return text


def _load(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        hint = "pip install 'scantling[text]'"
        raise FieldError("--tokenizer", None, "needs the tokenizers library", hint) from None
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise FieldError("--tokenizer", str(path), "is no file", "a tokenizer.json or its folder")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:
        raise FieldError("--tokenizer", str(path), f"is no tokenizer.json: {error}") from error


def parts(text: str) -> list[str]:
    """A text in parts that end with a line, so that a part is quick and no word is cut."""
    found, start = [], 0
    while start < len(text):
        end = text.rfind("\n", start, start + PART) + 1 or min(start + PART, len(text))
        end = end if start + PART < len(text) else len(text)
        found.append(text[start:end])
        start = end
    return found
