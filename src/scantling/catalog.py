"""Models by name: the catalogue in ``data/models.toml``, and every way a MODEL can be given."""

from __future__ import annotations

import functools
import math
import sys
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from scantling.errors import FieldError, UnknownNameError
from scantling.formats import checkpoint as checkpoints
from scantling.formats import declared, hf, hub
from scantling.formats.json_file import parse_object, read_object
from scantling.sources import read_data
from scantling.spec import Spec, has

TOWERS = ("vision_config", "audio_config", "speech_config")
"""Keys of a multimodal config that hold a model of something else than text."""


class Named(Struct, frozen=True):
    """One model of the catalogue."""

    name: str
    hub: str
    released: str
    source: str
    parameters: int
    config: dict[str, Any]


class Loaded(Struct, frozen=True):
    """A model that was given, wherever it came from."""

    name: str
    spec: Spec
    model_type: str
    notes: tuple[str, ...] = ()
    n_mtp: int = 0
    towers: tuple[str, ...] = ()
    """Parts of a multimodal config beside the text, which is all that is counted."""
    checkpoint: checkpoints.Checkpoint | None = None


@functools.cache
def named() -> dict[str, Named]:
    """Every model of the catalogue by its name."""
    found = {}
    for name, entry in read_data("models.toml").items():
        config = {k: None if v == "null" else v for k, v in entry.pop("config").items()}
        found[name] = Named(name=name, config=config, **entry)
    return found


@functools.cache
def loaded(name: str) -> Loaded:
    """A model of the catalogue, read."""
    key = plain(name)
    if key not in _plain_names():
        raise UnknownNameError("model", name, named())
    entry = named()[_plain_names()[key]]
    read = hf.read(entry.config)
    return Loaded(entry.name, read.spec, read.model_type, read.notes, read.n_mtp)


@functools.cache
def _plain_names() -> dict[str, str]:
    """Names of the catalogue by their plain names and hub ids; built once, not once a model."""
    return {plain(k): k for k in named()} | {plain(v.hub): k for k, v in named().items()}


def plain(name: str) -> str:
    """A name without case, spaces and underscores: Llama_3.1-8B is llama-3.1-8b."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def model(name: str) -> Spec:
    """The spec of a model of the catalogue.

    Raises:
        UnknownNameError: With the nearest names.

    Example:
        >>> model("Llama-3.1-8B").d_ff
        14336
    """
    return loaded(name).spec


def load(given: str | Path | dict[str, Any] | Spec, *, assume: bool = False) -> Loaded:
    """A model from whatever names it.

    Args:
        given: A catalogue name, a path to a ``config.json`` or its folder, a checkpoint
            (``.safetensors``, its index, ``.gguf``, or a folder of them), a hub id, ``-`` for JSON
            on standard input, a parsed config, or a spec.
        assume: For a model type in no table: go on past fields that are not understood, each with
            a note.

    Raises:
        FieldError: If it is nothing of that; the message says what it looked like.

    Example:
        >>> load({"model_type": "gpt2"}).spec.n_layer
        12
    """
    if isinstance(given, Spec):
        return Loaded("spec", given, "spec")
    if isinstance(given, dict):
        return _from_config(given, str(given.get("_name_or_path") or "config"), [], assume)
    text = str(given)
    if text == "-":
        config, notes = parse_object(sys.stdin.read(), "standard input")
        return _from_config(config, "stdin", notes, assume)
    path = Path(text)
    if path.is_dir():
        if not (path / "config.json").is_file():
            if any(checkpoints.is_checkpoint(p) for p in path.iterdir()):
                return _from_checkpoint(checkpoints.load_checkpoint(path), assume)
            raise FieldError("model", text, "is a folder without a config.json or a checkpoint")
        path = path / "config.json"
    if path.is_file():
        if checkpoints.is_checkpoint(path):
            return _from_checkpoint(checkpoints.load_checkpoint(path), assume)
        config, notes = read_object(path)
        name = path.parent.name if path.name == "config.json" and path.parent.name else path.stem
        return _from_config(config, name, notes, assume)
    if path.suffix in {".json", ".safetensors", ".gguf"}:
        raise FieldError("model", text, "does not exist")
    try:
        return loaded(text)
    except UnknownNameError as error:
        if hub.is_repo_id(text):
            config, notes = hub.fetch_config(text)
            return _from_config(config, text, notes, assume)
        raise error from None


def _from_checkpoint(found: checkpoints.Checkpoint, assume: bool) -> Loaded:
    if found.config is None:
        why = found.notes[-1] if found.notes else "it has no config.json beside it"
        raise FieldError("model", found.name, f"holds weights of an unknown shape: {why}")
    read = _from_config(found.config, found.name, list(found.notes), assume)
    return replace(read, checkpoint=found)


def _from_config(config: dict[str, Any], name: str, notes: list[str], assume: bool) -> Loaded:
    read = hf.read(config, assume=assume)
    towers = tuple(k for k in TOWERS if isinstance(config.get(k), dict))
    notes = [*notes, *read.notes]
    packed = declared.quantized(config)
    if packed is not None:
        bits = "" if packed.bits is None else f", {packed.bits} bits"
        notes.append(f"quantised ({packed.method}{bits}): counts are of the weights unpacked")
    return Loaded(name, read.spec, read.model_type, tuple(notes), read.n_mtp, towers)


@functools.cache
def recent_dense() -> tuple[tuple[int, int, str], ...]:
    """Parameters, vocabulary and name of dense models since 2023, the latest first."""
    recent = [m for m in named().values() if m.released >= "2023"]
    dense = [m for m in recent if not has(loaded(m.name).spec, "n_expert")]
    latest = sorted(dense, key=lambda m: m.released, reverse=True)
    return tuple((m.parameters, int(loaded(m.name).spec.vocab_size), m.name) for m in latest)


def nearest(total: int, vocab_size: int, n: int = 3) -> list[Loaded]:
    """The known models nearest to a size and a vocabulary, one of each shape.

    Distance is |ln of the size ratio| + |ln of the vocabulary ratio|: a model of another
    vocabulary spends its parameters elsewhere. Dense models since 2023 only, which is what one
    would copy today; of equal shapes the latest release speaks for all.

    Example:
        >>> [m.name for m in nearest(8_000_000_000, 128256, 1)]
        ['llama-3.1-8b']
    """

    def distance(entry: tuple[int, int, str]) -> float:
        return abs(math.log(entry[0] / total)) + abs(math.log(entry[1] / vocab_size))

    seen: set[tuple[int, ...]] = set()
    found: list[Loaded] = []
    for parameters, _, name in sorted(recent_dense(), key=distance):
        one = loaded(name)
        shape = (parameters, int(one.spec.n_layer), int(one.spec.d_model))
        if shape not in seen:
            seen.add(shape)
            found.append(one)
        if len(found) == n:
            break
    return found
