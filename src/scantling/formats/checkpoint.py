"""Checkpoints: what files really hold, at logical shapes, without loading a weight."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path
from typing import Any

from msgspec import Struct

from scantling.errors import FieldError, shorten
from scantling.formats import gguf, safetensors
from scantling.formats.json_file import read_object
from scantling.formats.packed import Role, Weight, expand, schemes
from scantling.formats.stored import Stored
from scantling.sources import read_data

SUFFIXES = (".safetensors", ".gguf", ".safetensors.index.json")
"""Ends of the names of files that ``load_checkpoint`` reads."""


class Checkpoint(Struct, frozen=True, kw_only=True):
    """Tensors of one model in one or several files."""

    name: str
    format: str
    """``safetensors`` or ``gguf``."""
    tensors: tuple[Weight, ...]
    file_bytes: int
    """All files, headers included."""
    config: dict[str, Any] | None = None
    """Of the config.json beside, or translated from GGUF's key-values; None if there is none."""
    notes: tuple[str, ...] = ()

    def weights(self) -> tuple[Weight, ...]:
        """Logical weights: no scales, zeros, or constants of a class."""
        return tuple(t for t in self.tensors if t.role == "weight")

    @property
    def logical_parameters(self) -> int:
        """Elements of all weights, packed ones expanded; a head stored again counts again."""
        return sum(t.elements for t in self.weights())

    @property
    def stored_elements(self) -> int:
        """Elements as stored: eight 4-bit weights in one 32-bit integer are one.

        This is the number model hubs show.
        """
        return sum(t.stored.elements for t in self.tensors)

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.stored.bytes for t in self.tensors)

    def role_bytes(self, role: Role) -> int:
        """Bytes of the tensors of a role; scales inside GGUF blocks count as scales."""
        if role == "scale":
            return sum(t.scale_bytes for t in self.tensors) + sum(
                t.stored.bytes for t in self.tensors if t.role == role
            )
        return sum(t.stored.bytes for t in self.tensors if t.role == role)


def is_checkpoint(path: Path) -> bool:
    """Whether a file's name is that of a checkpoint.

    Example:
        >>> [is_checkpoint(Path(name)) for name in ("model.safetensors.index.json", "config.json")]
        [True, False]
    """
    return path.name.endswith(SUFFIXES)


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read the headers of a checkpoint.

    Args:
        path: A ``.safetensors`` or ``.gguf`` file, an index, or a folder that holds one of them.
            A config.json beside tells how packed tensors are quantised.

    Raises:
        FieldError: If there is none, or it is corrupt; the message says where.
    """
    path = Path(path)
    if path.is_dir():
        path = _in_folder(path)
    if not path.is_file():
        raise FieldError("checkpoint", path, "does not exist")
    if path.suffix == ".gguf":
        return from_gguf(gguf.read_all(path), path.name)
    if path.name.endswith(".index.json"):
        header = safetensors.read_index(path)
    elif path.suffix == ".safetensors":
        header = safetensors.read_file(path)
    else:
        raise FieldError("checkpoint", path, "is neither .safetensors, .gguf nor an index")
    beside = path.parent / "config.json"
    config, notes = read_object(beside) if beside.is_file() else (None, [])
    return from_safetensors(header, config, path.name, notes)


def _in_folder(folder: Path) -> Path:
    for name in (safetensors.INDEX, "model.safetensors"):
        if (folder / name).is_file():
            return folder / name
    found = sorted(p for p in folder.iterdir() if is_checkpoint(p))
    indexes = [p for p in found if p.name.endswith(".index.json")]
    splits = [p for p in found if "-of-" not in p.name or "-00001-of-" in p.name]
    for choice in (indexes, splits):
        if len(choice) == 1:
            return choice[0]
    if not found:
        raise FieldError("checkpoint", folder, "is a folder without .safetensors or .gguf files")
    names = shorten(", ".join(p.name for p in found), 120)
    raise FieldError("checkpoint", folder, f"holds several: {names}", "give one of them")


def from_safetensors(
    header: safetensors.Header, config: dict[str, Any] | None, name: str, notes: list[str]
) -> Checkpoint:
    """A checkpoint from the header of its files and the config beside them."""
    tensors = tuple(_constant(w) for w in expand(list(header.tensors), config or {}))
    return Checkpoint(
        name=name, format="safetensors", tensors=tensors, file_bytes=header.file_bytes,
        config=config, notes=(*header.notes, *notes),
    )  # fmt: skip


def from_gguf(file: gguf.Gguf, name: str) -> Checkpoint:
    """A checkpoint from a GGUF header; its config is None where it cannot be translated."""
    notes = list(file.notes)
    try:
        config = gguf.config(file)
    except FieldError as error:
        config = None
        notes.append(f"no config from its keys: {error}")
    tensors = tuple(_constant(w) for w in expand(list(file.tensors), {}))
    return Checkpoint(
        name=name, format="gguf", tensors=tensors, file_bytes=file.file_bytes, config=config,
        notes=tuple(notes),
    )  # fmt: skip


@functools.cache
def names() -> dict[str, Any]:
    """The table of tensor names; callers do not change it."""
    return read_data("hf_names.toml")


def _constant(w: Weight) -> Weight:
    """Causal masks and rotary frequencies are in some files and are no parameters."""
    table = names()
    mask = len(w.shape) == 4 and w.name.endswith(tuple(table["masks"]))
    if w.role == "weight" and (mask or w.name.endswith(tuple(table["constants"]))):
        return Weight(w.name, w.shape, "constant", w.scheme, w.stored, w.scale_bytes)
    return w


def describe(checkpoint: Checkpoint) -> dict[str, Any]:
    """What a checkpoint holds, as plain numbers for a report.

    Example:
        >>> plain = Stored("lm_head.weight", (96, 32), "BF16", 6144, "model.safetensors")
        >>> w = Weight("lm_head.weight", (96, 32), "weight", "", plain)
        >>> c = Checkpoint(name="x", format="safetensors", tensors=(w,), file_bytes=6300)
        >>> found = describe(c)
        >>> found["logical_parameters"], found["bits_per_weight"], found["dtypes"]["BF16"]["bytes"]
        (3072, 16.0, 6144)
    """
    logical = checkpoint.logical_parameters
    dtypes: dict[str, dict[str, int]] = {}
    for w in checkpoint.tensors:
        one = dtypes.setdefault(w.stored.dtype, {"tensors": 0, "elements": 0, "bytes": 0})
        one["tensors"] += 1
        one["elements"] += w.stored.elements
        one["bytes"] += w.stored.bytes
    return {
        "name": checkpoint.name,
        "format": checkpoint.format,
        "files": len({w.stored.file for w in checkpoint.tensors}),
        "tensors": len(checkpoint.tensors),
        "logical_parameters": logical,
        "stored_elements": checkpoint.stored_elements,
        "file_bytes": checkpoint.file_bytes,
        "tensor_bytes": checkpoint.tensor_bytes,
        "scales_bytes": checkpoint.role_bytes("scale"),
        "zeros_bytes": checkpoint.role_bytes("zero"),
        "other_bytes": sum(checkpoint.role_bytes(r) for r in ("order", "constant", "other")),
        "bits_per_weight": 8 * checkpoint.tensor_bytes / logical if logical else 0.0,
        "quantized_tensors": dict(Counter(schemes(checkpoint.tensors))),
        "dtypes": dtypes,
        "notes": list(checkpoint.notes),
    }


__all__ = [
    "Checkpoint",
    "Stored",
    "Weight",
    "describe",
    "from_gguf",
    "from_safetensors",
    "is_checkpoint",
    "load_checkpoint",
    "names",
]
