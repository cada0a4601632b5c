"""A tensor as a file stores it, and the sizes of the dtypes files use."""

from __future__ import annotations

import functools
from typing import Any

from msgspec import Struct

from scantling.sources import read_data


class Stored(Struct, frozen=True):
    """One tensor of a file's header.

    Example:
        >>> Stored("norm.weight", (4096,), "BF16", 8192, "model.safetensors").elements
        4096
    """

    name: str
    shape: tuple[int, ...]
    """As stored, with the slowest dimension first (GGUF writes the fastest first)."""
    dtype: str
    bytes: int
    file: str

    @property
    def elements(self) -> int:
        """The product of the shape: packed tensors hold several weights in one element."""
        return size(self.shape)


def size(shape: tuple[int, ...]) -> int:
    """Elements of a shape; a scalar has one.

    Example:
        >>> size((2, 3)), size(())
        (6, 1)
    """
    found = 1
    for width in shape:
        found *= width
    return found


class BlockType(Struct, frozen=True):
    """A GGUF tensor type: so many elements share a block of so many bytes."""

    name: str
    id: int
    block: int
    bytes: int
    scale_bytes: int
    """Bytes of a block that are scales, minima or offsets."""


@functools.cache
def _table() -> dict[str, Any]:
    return read_data("checkpoints.toml")


@functools.cache
def safetensors_bits() -> dict[str, int]:
    """Bits of an element by dtype name.

    Example:
        >>> safetensors_bits()["BF16"]
        16
    """
    found: dict[str, int] = _table()["safetensors"]
    return found


@functools.cache
def block_types() -> dict[int, BlockType]:
    """GGUF tensor types by their number.

    Example:
        >>> block_types()[12].name, block_types()[12].bytes
        ('Q4_K', 144)
    """
    return {entry["id"]: BlockType(name, **entry) for name, entry in _table()["ggml"].items()}


@functools.cache
def block_type(name: str) -> BlockType | None:
    """A GGUF tensor type by its name."""
    return next((t for t in block_types().values() if t.name == name), None)
