"""Headers of GGUF files, versions 2 and 3: key-values, tensors and their bytes; no weights.

A header is read forward through a cursor that checks each length against what is left of the file
before it reads, so a claim of 2^60 strings is one line of error. Long arrays (a tokenizer's words)
are counted and skipped.
"""

from __future__ import annotations

import functools
import os
import struct
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct

from scantling.arith import round_up
from scantling.errors import FieldError, UnknownNameError, shorten
from scantling.formats.stored import Stored, block_types, size
from scantling.sources import read_data

LARGEST_HEADER = 2**27
"""Bytes of key-values and tensor infos; a vocabulary of 262144 words takes about 10 MB."""
LONGEST_STRING = 2**24
LONGEST_NAME = 1024
"""Of keys and tensors; ggml itself allows 64 bytes for a tensor."""
MOST_KEYS = 65_536
MOST_TENSORS = 200_000
MOST_STRINGS = 2_000_000
"""Of all arrays together: the largest vocabularies have 262144 words and as many merges."""
KEPT = 4096
"""Numbers of an array that are kept; longer ones are counted only."""
KEPT_BYTES = 2**23
"""Of all values together, as they are in the file."""
MOST_DIMS = 4
"""GGML_MAX_DIMS."""
MOST_SPLITS = 1000

SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
"""Value types by number, as ``struct`` formats; 8 is a string and 9 an array."""
STRING, ARRAY = 8, 9


class Length(Struct, frozen=True):
    """An array or a long text that was measured, not kept."""

    n: int


class Gguf(Struct, frozen=True):
    """What a file says of itself."""

    keys: dict[str, Any]
    """Key-values; a long array or one of strings is a ``Length``."""
    tensors: tuple[Stored, ...]
    file_bytes: int
    version: int
    notes: tuple[str, ...] = ()


class _Cursor:
    """A file read forward, never past its end or the header's limit."""

    def __init__(self, file: BinaryIO, file_bytes: int, name: str) -> None:
        self.file, self.file_bytes, self.name = file, file_bytes, name
        self.at = 0
        self.n_strings = 0
        self.kept = 0

    def check(self, n: int, what: str) -> None:
        """Raise unless n more bytes are there."""
        if self.at + n > self.file_bytes:
            found = f"{shorten(what)} needs {n} bytes at {self.at}, the file has {self.file_bytes}"
            raise FieldError(self.name, None, f"is truncated or corrupt: {found}")
        if self.at + n > LARGEST_HEADER:
            raise FieldError(self.name, None, f"has a header of more than {LARGEST_HEADER} bytes")

    def take(self, n: int, what: str) -> bytes:
        self.check(n, what)
        found = self.file.read(n)
        if len(found) < n:
            raise FieldError(self.name, None, f"is truncated: {shorten(what)} ends early")
        self.at += n
        return found

    def skip(self, n: int, what: str) -> None:
        self.check(n, what)
        self.file.seek(n, os.SEEK_CUR)
        self.at += n

    def keeps(self, n: int) -> bool:
        """Whether a value of n bytes is kept, which counts against what all may take."""
        if self.kept + n > KEPT_BYTES:
            return False
        self.kept += n
        return True

    def number(self, code: str, what: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code), what))[0]

    def length(self, what: str, most: int) -> int:
        n: int = self.number("Q", f"the length of {what}")
        if n > most:
            what = f"claims {n} bytes for {shorten(what)}; at most {most} are read"
            raise FieldError(self.name, None, what, "it is corrupt")
        return n

    def text(self, what: str) -> str:
        """A name."""
        return self.take(self.length(what, LONGEST_NAME), what).decode("utf-8", "replace")

    def value(self, kind: int, key: str) -> Any:
        if kind == STRING:
            n = self.length(key, LONGEST_STRING)
            if self.keeps(n):
                return self.take(n, key).decode("utf-8", "replace")
            self.skip(n, key)
            return Length(n)
        if kind == ARRAY:
            return self.array(key)
        if kind not in SCALARS:
            raise FieldError(f"{self.name}: {shorten(key)}", kind, "is no GGUF value type")
        return self.number(SCALARS[kind], key)

    def array(self, key: str) -> Any:
        kind = self.number("I", key)
        n = self.number("Q", key)
        where = f"{self.name}: {shorten(key)}"
        if kind == ARRAY:
            raise FieldError(where, None, "is an array of arrays, which no model's header needs")
        if kind == STRING:
            self.check(8 * n, key)
            self.n_strings += n
            if self.n_strings > MOST_STRINGS:
                raise FieldError(where, None, f"brings more than {MOST_STRINGS} strings")
            for _ in range(n):
                self.skip(self.length(key, LONGEST_STRING), key)
            return Length(n)
        if kind not in SCALARS:
            raise FieldError(where, kind, "is no GGUF value type of an array")
        n_byte = struct.calcsize("<" + SCALARS[kind]) * n
        self.check(n_byte, key)
        if n > KEPT or not self.keeps(8 * n):
            self.skip(n_byte, key)
            return Length(n)
        return list(struct.unpack(f"<{n}{SCALARS[kind]}", self.take(n_byte, key)))


def read_file(path: Path) -> Gguf:
    """The header of one file.

    Raises:
        FieldError: If the file cannot be read, is of another kind or version, or is corrupt.
    """
    try:
        with path.open("rb") as file:
            return read(file, os.fstat(file.fileno()).st_size, path.name)
    except OSError as error:
        raise FieldError(str(path), None, f"cannot be read: {error.strerror}") from None


def read(file: BinaryIO, file_bytes: int, name: str) -> Gguf:
    """The header of an open file.

    Args:
        file: Stands at its first byte.
        file_bytes: Its size; the tensors must fit.
        name: The name to use in errors.

    Example:
        >>> import io
        >>> empty = b"GGUF" + struct.pack("<IQQ", 3, 0, 0)
        >>> read(io.BytesIO(empty), len(empty), "x.gguf").version
        3
    """
    cursor = _Cursor(file, file_bytes, name)
    if cursor.take(4, "the magic") != b"GGUF":
        raise FieldError(name, None, "is no GGUF file", "it should start with the letters GGUF")
    version = cursor.number("I", "the version")
    if version not in {2, 3}:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        hint = "it is big-endian" if swapped in {2, 3} else "versions 2 and 3 are read"
        raise FieldError(f"{name}: version", version, "is not read", hint)
    n_tensor = cursor.number("Q", "the tensor count")
    n_key = cursor.number("Q", "the key count")
    if n_tensor > MOST_TENSORS or n_key > MOST_KEYS:
        what = f"claims {n_tensor} tensors and {n_key} keys; at most {MOST_TENSORS} and {MOST_KEYS}"
        raise FieldError(name, None, what + " are read")
    cursor.check(24 * n_tensor + 13 * n_key, "the header")
    keys: dict[str, Any] = {}
    for _ in range(n_key):
        key = cursor.text("a key")
        if key in keys:
            raise FieldError(name, None, f"has the key {shorten(key)} twice")
        keys[key] = cursor.value(cursor.number("I", key), key)
    alignment = keys.get("general.alignment", 32)
    if type(alignment) is not int or not 1 <= alignment <= 2**16 or alignment & (alignment - 1):
        raise FieldError(f"{name}: general.alignment", alignment, "must be a power of two")
    found: dict[str, tuple[Stored, int]] = {}
    for _ in range(n_tensor):
        tensor, offset = _tensor(cursor)
        if tensor.name in found:
            raise FieldError(name, None, f"has the tensor {shorten(tensor.name)} twice")
        found[tensor.name] = tensor, offset
    _check_offsets(list(found.values()), cursor.at, alignment, file_bytes, name)
    return Gguf(keys, tuple(t for t, _ in found.values()), file_bytes, version)


def _tensor(cursor: _Cursor) -> tuple[Stored, int]:
    name = cursor.text("a tensor's name")
    where = f"{cursor.name}: tensor {shorten(name)}"
    n_dim = cursor.number("I", name)
    if n_dim > MOST_DIMS:
        raise FieldError(where, None, f"has {n_dim} dimensions; at most {MOST_DIMS} are possible")
    fastest_first = [cursor.number("Q", name) for _ in range(n_dim)]
    kind = block_types().get(number := cursor.number("I", name))
    offset = cursor.number("Q", name)
    if kind is None:
        raise FieldError(f"{where} type", number, "is no GGUF tensor type that is known")
    shape = tuple(reversed(fastest_first))
    if not all(1 <= width < 2**48 for width in shape):
        raise FieldError(where, None, f"has the shape {shorten(shape)}")
    row = shape[-1] if shape else 1
    if row % kind.block:
        what = f"has rows of {row}; {kind.name} keeps blocks of {kind.block}"
        raise FieldError(where, None, what)
    n_byte = size(shape) // kind.block * kind.bytes
    return Stored(name, shape, kind.name, n_byte, cursor.name), offset


def _check_offsets(
    found: list[tuple[Stored, int]], header: int, alignment: int, file_bytes: int, name: str
) -> None:
    start = round_up(header, alignment)
    end = 0
    for tensor, offset in sorted(found, key=lambda pair: pair[1]):
        where = f"{name}: tensor {shorten(tensor.name)}"
        if offset % alignment:
            raise FieldError(f"{where} offset", offset, f"must be a multiple of {alignment}")
        if offset < end:
            raise FieldError(f"{where} offset", offset, "lies inside the tensor before it")
        end = offset + tensor.bytes
        if start + end > file_bytes:
            what = f"ends at {start + end}, the file at {file_bytes}"
            raise FieldError(where, None, what, "the file is truncated")


def read_all(path: Path) -> Gguf:
    """The header of a file, with those beside it where the model is split into several.

    llama.cpp names them ``name-00001-of-00003.gguf``.

    Raises:
        FieldError: If one of them is missing or corrupt.
    """
    first = read_file(path)
    n = first.keys.get("split.count", 0)
    if type(n) is not int or n <= 1:
        return first
    if n > MOST_SPLITS:
        raise FieldError(f"{path.name}: split.count", n, f"must be at most {MOST_SPLITS}")
    tail = f"-of-{n:05d}.gguf"
    stem = path.name.removesuffix(tail)[:-6]
    if not path.name.endswith(tail):
        raise FieldError(path.name, None, f"is one of {n} files and not named …-00001{tail}")
    parts = [read_file(path.with_name(f"{stem}-{i + 1:05d}{tail}")) for i in range(n)]
    tensors = {t.name: t for part in parts for t in part.tensors}
    expected = first.keys.get("split.tensors.count", len(tensors))
    if len(tensors) != sum(len(p.tensors) for p in parts) or len(tensors) != expected:
        raise FieldError(path.name, None, f"and its {n - 1} siblings do not belong together")
    return Gguf(
        parts[0].keys, tuple(tensors.values()), sum(p.file_bytes for p in parts), first.version
    )


@functools.cache
def _names() -> dict[str, Any]:
    return read_data("gguf_config.toml")


def config(file: Gguf) -> dict[str, Any]:
    """A Hugging Face config that describes the same model.

    GGUF does not say whether head and embedding are tied or a projection has a bias; the tensors
    do.

    Raises:
        FieldError: If the architecture is none that can be translated, or a key is missing.

    Example:
        >>> keys = {"general.architecture": "qwen2", "qwen2.block_count": 2,
        ...         "qwen2.embedding_length": 64, "qwen2.attention.head_count": 4,
        ...         "qwen2.feed_forward_length": 128, "qwen2.vocab_size": 96}
        >>> config(Gguf(keys, (), 0, 3))["num_hidden_layers"]
        2
    """
    name = file.keys.get("general.architecture")
    table = _names()["arch"]
    if not isinstance(name, str) or name not in table:
        raise UnknownNameError("general.architecture", str(name), table)
    arch = table[name]
    n_expert = file.keys.get(f"{name}.expert_count", 0)
    routed = arch.get("moe", False) or (bool(n_expert) and "experts" in arch)
    found: dict[str, Any] = {
        "model_type": arch["experts"] if routed and "experts" in arch else arch["model_type"]
    }
    wanted = _names()["keys"] | (_names()["moe"] if routed else {})
    rename = arch.get("rename", {})
    for key, suffixes in wanted.items():
        value = next((v for s in suffixes if (v := file.keys.get(f"{name}.{s}")) is not None), None)
        if value is not None and key not in arch.get("drop", []):
            found[rename.get(key, key)] = _scalar(value, key)
    tensors = {t.name for t in file.tensors}
    found["vocab_size"] = _vocab_size(file, name)
    found["tie_word_embeddings"] = bool(tensors) and "output.weight" not in tensors
    for key, tensor in arch.get("bias", {}).items():
        found[key] = f"blk.0.{tensor}" in tensors
    needed = (rename.get(k, k) for k in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    for key in needed:
        if key not in found:
            raise FieldError(f"{name}.*", None, f"has no key for {key}", "the header is incomplete")
    return found


def _scalar(value: Any, key: str) -> Any:
    """A number that is one for all layers."""
    if isinstance(value, list):
        if len(set(value)) != 1:
            raise FieldError(key, value, "differs between the layers", "give its config.json")
        return value[0]
    if isinstance(value, Length):
        raise FieldError(key, None, f"is an array of {value.n} values")
    return value


def _vocab_size(file: Gguf, name: str) -> int:
    """Rows of the embedding, which may be padded beyond the tokenizer."""
    table = next((t for t in file.tensors if t.name == "token_embd.weight"), None)
    if table is not None and len(table.shape) == 2:
        return table.shape[0]
    known = file.keys.get(f"{name}.vocab_size")
    if type(known) is int:
        return known
    words = file.keys.get("tokenizer.ggml.tokens")
    if isinstance(words, Length):
        return words.n
    raise FieldError("token_embd.weight", None, "is missing, and no key holds the vocabulary size")
