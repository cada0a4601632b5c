"""Headers of safetensors files, alone or sharded: names, shapes, dtypes, bytes; no weights.

A file is a length of 8 bytes, a JSON header of that length, and the tensors. Everything a header
claims is checked before it is used: a corrupt file is one line of error, never a large allocation.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from scantling.errors import FieldError, shorten
from scantling.formats.json_file import read_object
from scantling.formats.stored import Stored, safetensors_bits, size

LARGEST_HEADER = 100_000_000
"""Bytes, as the safetensors library allows."""
LARGEST_UNICODE = 2**24
"""Bytes of a header with other letters than ASCII, which take four times the memory."""
MOST_TENSORS = 200_000
MOST_DIMS = 16
MOST_SHARDS = 10_000
LONGEST_NAME = 4096
INDEX = "model.safetensors.index.json"


class Header(Struct, frozen=True):
    """What one or several files say of their tensors."""

    tensors: tuple[Stored, ...]
    metadata: dict[str, str]
    file_bytes: int
    """The files' sizes, headers included."""
    notes: tuple[str, ...] = ()


def header_length(first: bytes, file_bytes: int, file: str) -> int:
    """The JSON header's length from a file's first 8 bytes.

    Raises:
        FieldError: If the file is too short for what it claims.

    Example:
        >>> header_length(bytes([2, 0, 0, 0, 0, 0, 0, 0]), 10, "x.safetensors")
        2
    """
    if len(first) < 8:
        raise FieldError(file, None, "is truncated: a safetensors file starts with 8 bytes")
    n = int.from_bytes(first[:8], "little")
    if n > LARGEST_HEADER:
        what = f"claims a header of {n} bytes; at most {LARGEST_HEADER} are read"
        raise FieldError(file, None, what, "it may be no safetensors file")
    if n + 8 > file_bytes:
        what = f"is truncated: its header needs {n + 8} bytes, the file has {file_bytes}"
        raise FieldError(file, None, what)
    return n


def parse(header: bytes, file_bytes: int, file: str) -> Header:
    """The tensors of a JSON header.

    Args:
        header: The header alone, without the 8 bytes before it.
        file_bytes: The size of the whole file; the tensors must fill it.
        file: The name to use in errors.

    Raises:
        FieldError: If anything in it contradicts itself or the file.

    Example:
        >>> text = b'{"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}'
        >>> parse(text, 8 + len(text) + 24, "x.safetensors").tensors[0].shape
        (2, 3)
    """
    if header.count(b"[") > 2 * MOST_TENSORS + 1000 or header.count(b",") > 6 * MOST_TENSORS:
        raise FieldError(file, None, f"has more than {MOST_TENSORS} tensors in its header")
    if len(header) > LARGEST_UNICODE and not header.isascii():
        what = f"has a header of {len(header)} bytes that are not all ASCII"
        raise FieldError(file, None, what, f"at most {LARGEST_UNICODE} are read")
    entries = _parse_json(header, file)
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise FieldError(file, None, "has a __metadata__ that is no object of strings")
    if len(entries) > MOST_TENSORS:
        raise FieldError(file, None, f"has more than {MOST_TENSORS} tensors in its header")
    spans = []
    tensors = []
    for name, entry in entries.items():
        tensor, begin = _tensor(name, entry, file)
        tensors.append(tensor)
        spans.append((begin, begin + tensor.bytes, name))
    at = 0
    for begin, end, name in sorted(spans):
        if begin != at:
            what = f"has data at {begin} where {at} is next"
            raise FieldError(file, None, f"tensor {shorten(name)} {what}", "the offsets are wrong")
        at = end
    whole = 8 + len(header) + at
    if whole != file_bytes:
        what = "is truncated" if whole > file_bytes else "is longer than its header says"
        raise FieldError(file, None, f"{what}: {whole} bytes expected, {file_bytes} found")
    return Header(tuple(tensors), metadata, file_bytes)


def _parse_json(header: bytes, file: str) -> dict[str, Any]:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) < len(items):
            twice = Counter(name for name, _ in items).most_common(1)[0][0]
            raise FieldError(file, None, f"names {shorten(twice)} twice in its header")
        return found

    try:
        found = json.loads(header.decode("utf-8"), object_pairs_hook=pairs)
    except RecursionError:
        raise FieldError(file, None, "has a header nested too deeply") from None
    except UnicodeDecodeError:
        raise FieldError(file, None, "has a header that is no UTF-8 text") from None
    except ValueError as error:
        what = shorten(str(error).split(" for integer")[0])
        raise FieldError(file, None, f"has a header that is no JSON: {what}") from None
    if not isinstance(found, dict):
        raise FieldError(file, None, "has a header that is no JSON object")
    return found


def _tensor(name: str, entry: Any, file: str) -> tuple[Stored, int]:
    where = f"{file}: tensor {shorten(name)}"
    if len(name) > LONGEST_NAME:
        raise FieldError(where, None, f"has a name of {len(name)} characters")
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise FieldError(where, None, "must have dtype, shape and data_offsets, and nothing else")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    bits = safetensors_bits()
    if not isinstance(dtype, str) or dtype not in bits:
        raise FieldError(f"{where} dtype", dtype, "is not known")
    if not _counts(shape) or len(shape) > MOST_DIMS:
        raise FieldError(f"{where} shape", shape, f"must be at most {MOST_DIMS} whole numbers")
    if not _counts(offsets) or len(offsets) != 2:
        raise FieldError(f"{where} data_offsets", offsets, "must be two whole numbers")
    begin, end = offsets
    n_bits = size(tuple(shape)) * bits[dtype]
    if n_bits % 8 or end - begin != n_bits // 8:
        what = f"spans {end - begin} bytes; {shape} of {dtype} needs {n_bits / 8:g}"
        raise FieldError(where, None, shorten(what, 160))
    return Stored(name, tuple(shape), dtype, end - begin, file), begin


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 2**63 for v in value)


def read_file(path: Path) -> Header:
    """The header of one file.

    Raises:
        FieldError: If the file cannot be read or is corrupt.
    """
    try:
        with path.open("rb") as file:
            file_bytes = os.fstat(file.fileno()).st_size
            n = header_length(file.read(8), file_bytes, path.name)
            header = file.read(n)
    except OSError as error:
        raise FieldError(str(path), None, f"cannot be read: {error.strerror}") from None
    return parse(header, file_bytes, path.name)


def read_index(path: Path) -> Header:
    """The headers of all files that an index names.

    Raises:
        FieldError: If a file is missing or corrupt, or does not hold what the index says.
    """
    index, notes = read_object(path)
    if any("is repeated" in note for note in notes):
        raise FieldError(path.name, None, next(n for n in notes if "is repeated" in n))
    return join(index, lambda file: read_file(path.parent / file), path.name)


def join(index: dict[str, Any], read: Callable[[str], Header], name: str) -> Header:
    """The files of an index as one header.

    Args:
        index: The parsed ``model.safetensors.index.json``.
        read: Reads one file by its name.
        name: The index's name, for errors.
    """
    files = shards(index, name)
    weight_map = index["weight_map"]
    tensors: list[Stored] = []
    metadata: dict[str, str] = {}
    notes: list[str] = []
    file_bytes = 0
    for file in files:
        one = read(file)
        tensors += one.tensors
        metadata |= one.metadata
        file_bytes += one.file_bytes
        if len(tensors) > 5 * MOST_TENSORS:
            raise FieldError(name, None, f"leads to more than {5 * MOST_TENSORS} tensors")
    held: dict[str, str] = {}
    for t in tensors:
        if t.name in held:
            what = f"tensor {shorten(t.name)} is in {held[t.name]} and in {t.file}"
            raise FieldError(name, None, what, "each tensor belongs to one file")
        held[t.name] = t.file
    for tensor, file in weight_map.items():
        if held.get(tensor) != file:
            raise FieldError(name, None, f"says that {shorten(tensor)} is in {file}; it is not")
    unlisted = len(held) - len(weight_map)
    if unlisted:
        notes.append(f"{unlisted} tensors are in the files but not in {name}")
    notes += _claims(index.get("metadata"), tensors, name)
    return Header(tuple(tensors), metadata, file_bytes, tuple(notes))


def shards(index: dict[str, Any], name: str) -> list[str]:
    """The files of an index, each a plain name.

    Example:
        >>> shards({"weight_map": {"a": "x.safetensors", "b": "x.safetensors"}}, "index.json")
        ['x.safetensors']
    """
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise FieldError(name, None, "has no weight_map", "it should map tensors to files")
    files: dict[str, None] = {}
    for tensor, file in weight_map.items():
        if not isinstance(file, str) or not file.endswith(".safetensors"):
            raise FieldError(f"{name}: {shorten(tensor)}", file, "must name a .safetensors file")
        if file in files:
            continue
        if Path(file).name != file or "\\" in file or "\0" in file:
            raise FieldError(f"{name}: file", file, "must be a name without folders")
        files[file] = None
    if len(files) > MOST_SHARDS:
        raise FieldError(name, None, f"names {len(files)} files; at most {MOST_SHARDS} are read")
    return sorted(files)


def _claims(metadata: Any, tensors: list[Stored], name: str) -> list[str]:
    """Notes where an index's own totals disagree with the headers: those are not trusted."""
    if not isinstance(metadata, dict):
        return []
    truths = {
        "total_size": sum(t.bytes for t in tensors),
        "total_parameters": sum(t.elements for t in tensors),
    }
    return [
        f"{name} claims {key} {shorten(metadata[key])}; the headers hold {true}, which counts"
        for key, true in truths.items()
        if key in metadata and metadata[key] != true
    ]
