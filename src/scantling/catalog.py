"""Models by name: the catalogue in ``data/models.toml``, and every way a MODEL can be given."""

from __future__ import annotations

import functools
import math
import re
import sys
from collections.abc import Callable, Iterator
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

ASIDE = re.compile(r"\([^)]*\)")
QUANTISED = re.compile(r"\bi?q\d(?:[_-](?:[01]|nl|k|x*[sml]))*\b")
"""A file type of llama.cpp: Q4_0, Q4_K-M, IQ4_NL."""
DECORATION = re.compile(
    r"hf|it|pt|chat|instruct|base|text|exp|preview|thinking|original|meta|nvidia|gguf|awq|gptq"
    r"|dynamic|bf16|fp16|mxfp8|fp8|nvfp4|mxfp4|fp4|int8|int4|w\d+a\d+|\d+k|\d{4}|v\d+\.\d+|v1"
)
"""Words of a name that say how weights were tuned, stored or dated, and not their shape."""
SIZE = re.compile(r"(?:\d+x)?a?\d+(?:\.\d+)?[bm]")
SIZE_TOLERANCE = 0.25
"""Share by which a size stated beside a name may miss the count: 1.3 is said of 1.42 billion."""


class Named(Struct, frozen=True):
    """One model of the catalogue."""

    name: str
    hub: str
    released: str
    source: str
    parameters: int
    config: dict[str, Any]
    mtp_passes: int | None = None
    """Runs of the modules that predict later tokens, in training; None is once each."""
    also: tuple[str, ...] = ()
    """Other names of the same size and shape."""
    tuned_from: str | None = None
    """The model whose shape and weights it began with."""
    quantization: dict[str, Any] | None = None
    """``quantization_config`` of the released weights; None where they are in 16 or 32 bits."""
    quantization_source: str | None = None

    def released_config(self) -> dict[str, Any]:
        """The config with what its file says of packed weights.

        Example:
            >>> named()["deepseek-v3"].released_config()["quantization_config"]["quant_method"]
            'fp8'
        """
        packed = self.quantization
        return self.config if packed is None else {**self.config, "quantization_config": packed}


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
    mtp_passes: int = 0
    """Runs of the modules that predict later tokens in a training step: modules that share their
    weights are stored once and run more often (Nemotron 3 Super)."""
    quantization: dict[str, Any] | None = None
    """What the config says of packed weights; None where it says nothing."""


@functools.cache
def named() -> dict[str, Named]:
    """Every model of the catalogue by its name."""
    found = {}
    for name, entry in read_data("models.toml").items():
        config = {k: None if v == "null" else v for k, v in entry.pop("config").items()}
        also = tuple(entry.pop("also", ()))
        found[name] = Named(name=name, config=config, also=also, **entry)
    return found


@functools.cache
def loaded(name: str) -> Loaded:
    """A model of the catalogue, read."""
    key = plain(name)
    if key not in _plain_names():
        raise UnknownNameError("model", name, named())
    entry = named()[_plain_names()[key]]
    read = hf.read(entry.config)
    passes = read.n_mtp if entry.mtp_passes is None else entry.mtp_passes
    return Loaded(entry.name, read.spec, read.model_type, read.notes, read.n_mtp,
                  mtp_passes=passes, quantization=entry.quantization)  # fmt: skip


@functools.cache
def _plain_names() -> dict[str, str]:
    """Names of the catalogue by their plain names and hub ids; built once, not once a model."""
    hubs = {plain(v.hub): k for k, v in named().items() if v.hub}
    others = {plain(other): k for k, v in named().items() for other in v.also}
    return {plain(k): k for k in named()} | hubs | others


def resolve(name: str, billions: float | None = None) -> Loaded:
    """The model of the catalogue that a table means, however it spells it.

    Read in this order, the first that finds one model wins: the name without case and
    punctuation; without what says how the weights were tuned, stored or dated (``-Instruct``,
    ``-NVFP4``, ``-0528``, an organisation, an aside in brackets); with a full stop for an
    underscore between digits; without sizes, where one model of the catalogue has the rest.
    Shapes are what is found: a context or a rotary base may differ between dated weights.

    Args:
        name: As a table has it: ``LLAMA3.1_405B``, ``nvidia/DeepSeek-R1-NVFP4``.
        billions: Parameters in billions where they stand in a column of their own.

    Raises:
        UnknownNameError: If there is none, or if more than one size has that name.

    Example:
        >>> resolve("Meta-Llama-3-70B-Instruct-hf").name, resolve("Nemotron_3_Nano").name
        ('llama-3-70b', 'nemotron-3-nano-30b-a3b')
        >>> resolve("StableLM Alpha", 3).name, resolve("DeepSeekV3 (w/o MTP)").name
        ('stablelm-base-alpha-3b', 'deepseek-v3')
    """
    wanted = [name] if billions is None else [f"{name}-{billions:g}b", name]
    for text in wanted:
        for reduce, index in _indexes():
            for spelling in _written(text):
                found = index.get(reduce(spelling), ())
                fitting = [k for k in found if _has_size(k, billions)]
                if len(fitting) == 1:
                    return loaded(fitting[0])
    raise UnknownNameError("model", name, named())


def _written(text: str) -> Iterator[str]:
    """A name in small letters without asides and organisation, then with stops between digits."""
    bare = QUANTISED.sub("", ASIDE.sub("", text.lower())).rpartition("/")[2].strip()
    yield bare
    yield re.sub(r"(?<=\d)_(?=\d)", ".", bare)


def _words(text: str) -> list[str]:
    return [word for word in re.split(r"[-_\s]+", text) if word]


def _whole(text: str) -> str:
    return "".join(_words(text))


def _undecorated(text: str) -> str:
    return "".join(word for word in _words(text) if not DECORATION.fullmatch(word))


def _sizeless(text: str) -> str:
    words = [word for word in _words(text) if not DECORATION.fullmatch(word)]
    return "".join(word for word in words if not SIZE.fullmatch(word))


@functools.cache
def _indexes() -> tuple[tuple[Callable[[str], str], dict[str, tuple[str, ...]]], ...]:
    """Names and hub ids of the catalogue by each reduction of them.

    Where decorations alone tell models apart (v0.1 and v0.3) the first released has the bare name.
    """

    def index(reduce: Callable[[str], str]) -> dict[str, tuple[str, ...]]:
        found: dict[str, dict[str, None]] = {}
        for key, entry in sorted(named().items(), key=lambda item: item[1].released):
            for text in (key, entry.hub.rpartition("/")[2].lower(), *entry.also):
                if reduce(text):
                    found.setdefault(reduce(text), {})[key] = None
        return {text: tuple(keys) for text, keys in found.items()}

    first = {text: keys[:1] for text, keys in index(_undecorated).items()}
    return (_whole, index(_whole)), (_undecorated, first), (_sizeless, index(_sizeless))


def _has_size(key: str, billions: float | None) -> bool:
    if billions is None:
        return True
    return abs(named()[key].parameters / (billions * 1e9) - 1) <= SIZE_TOLERANCE


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
    found = described(given)
    if found.spec is not None:
        return Loaded(found.name, found.spec, "spec")
    if found.catalogued:
        own = declared.quantization(found.config or {}) or None
        one = loaded(found.name)
        return one if own == one.quantization else replace(
            one, quantization=own, notes=(*one.notes, *found.notes))  # fmt: skip
    if found.checkpoint is not None:
        return _from_checkpoint(found.checkpoint, assume)
    return _from_config(found.config or {}, found.name, list(found.notes), assume)


class Described(Struct, frozen=True):
    """What was given, before its config is read as a model: it may be no legal one."""

    name: str
    config: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    spec: Spec | None = None
    """A spec that was given as such."""
    checkpoint: checkpoints.Checkpoint | None = None
    catalogued: bool = False
    path: Path | None = None
    """The file of the config."""


def described(given: str | Path | dict[str, Any] | Spec) -> Described:
    """Find the config that names a model, and leave it unread.

    Args:
        given: As for ``load``.

    Raises:
        FieldError: If it is no model, or no JSON object.

    Example:
        >>> described({"model_type": "gpt2", "n_head": 5}).config["n_head"]
        5
    """
    if isinstance(given, Spec):
        return Described("spec", spec=given)
    if isinstance(given, dict):
        return Described(str(given.get("_name_or_path") or "config"), given)
    text = str(given)
    if text == "-":
        config, notes = parse_object(sys.stdin.read(), "standard input")
        return Described("stdin", config, tuple(notes))
    path = Path(text)
    if path.is_dir():
        if not (path / "config.json").is_file():
            if any(checkpoints.is_checkpoint(p) for p in path.iterdir()):
                return _of_checkpoint(path)
            raise FieldError("model", text, "is a folder without a config.json or a checkpoint")
        path = path / "config.json"
    if path.is_file():
        if checkpoints.is_checkpoint(path):
            return _of_checkpoint(path)
        config, notes = read_object(path)
        name = path.parent.name if path.name == "config.json" and path.parent.name else path.stem
        return Described(name, config, tuple(notes), path=path)
    if path.suffix in {".json", ".safetensors", ".gguf"}:
        raise FieldError("model", text, "does not exist")
    return _by_name(text)


def _of_checkpoint(path: Path) -> Described:
    found = checkpoints.load_checkpoint(path)
    return Described(found.name, found.config, tuple(found.notes), checkpoint=found)


def _by_name(text: str) -> Described:
    """A name of the catalogue, a hub id, or another spelling of a name."""
    try:
        name = loaded(text).name
    except UnknownNameError as error:
        if hub.is_repo_id(text):
            config, notes = hub.fetch_config(text)
            return Described(text, config, tuple(notes))
        try:
            name = resolve(text).name
        except UnknownNameError:
            raise error from None
    return _stored_as(text, named()[name])


def _stored_as(text: str, entry: Named) -> Described:
    """A model under a name that may say how its weights are stored: that beats the release."""
    config, notes = entry.released_config(), tuple[str, ...]()
    said = declared.said_by_name(text)
    if said is not None and said.get("quant_method") != (entry.quantization or {}).get(
        "quant_method"
    ):
        config = {**entry.config, "quantization_config": said} if said else entry.config
        notes = (f"weights as the name {text} says, with what it leaves open assumed",)
    return Described(entry.name, config, notes, catalogued=True)


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
    return Loaded(
        name, read.spec, read.model_type, tuple(notes), read.n_mtp, towers, mtp_passes=read.n_mtp,
        quantization=declared.quantization(config) or None,
    )  # fmt: skip


@functools.cache
def recent_dense() -> tuple[tuple[int, int, str], ...]:
    """Parameters, vocabulary and name of dense transformers since 2023, the latest first.

    Shapes that were only timed or tuned are none to copy; a mixer with a state is no transformer.
    """
    chosen = [m for m in named().values() if m.hub and m.tuned_from is None]
    recent = [m for m in chosen if m.released >= "2023"]
    other = ("n_expert", "scan_chunk")
    dense = [m for m in recent if not any(has(loaded(m.name).spec, field) for field in other)]
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
