"""A config of a model type that is in no table: which known type explains its keys best."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any, NamedTuple

from msgspec.structs import replace

from scantling.errors import FieldError, UnknownNameError, nearest, shorten
from scantling.formats.hf.expression import evaluate, parse
from scantling.formats.hf.types import ModelType, kinds, model_types, table
from scantling.sources import read_data

CORE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
"""Without these a config describes nothing: the name alone is wrong."""

CLOSE = 0.02
"""Types no further than this behind the best fit about as well."""

CLOSE_IF_UNGATED = 0.3
"""The same where one is gated and the other is not."""

IMPLIED = {"num_key_value_heads", "head_dim", "max_position_embeddings"}
"""Sizes that follow from the others where they are not given."""

TRIES = 8
"""Types that are tried where several read all keys."""

STRUCTURE = (
    "norm", "norm_bias", "norms", "block", "qk_norm", "qkv_bias", "out_bias", "gated",
    "ff_in_bias", "ff_out_bias", "position", "tied",
)  # fmt: skip
"""Fields whose guess changes a count where no key says them."""

OFF: tuple[Any, ...] = (None, False, 0, "", [], {})


@functools.cache
def pooled() -> dict[str, set[str]]:
    """Every spelling of every decoder with the keys it stands for."""
    found: dict[str, set[str]] = {}
    for kind in _known():
        for key in kind.keys:
            for spelling in kind.spellings(key):
                found.setdefault(spelling, set()).add(key)
    return found


class Candidate(NamedTuple):
    """A type a config may be read by, with every spelling of its keys."""

    kind: ModelType
    reads: frozenset[str]


@functools.cache
def candidates() -> tuple[Candidate, ...]:
    """The open decoder and those of the tables."""
    found = []
    by_likeness = sorted(_known(), key=lambda kind: kind.name != "llama")
    for kind in (_open(), *by_likeness):
        wide = _with_all_spellings(kind)
        reads = {s for key in wide.keys for s in wide.spellings(key)}
        reads |= set(_data()["norms"].get(kind.expressions["norm"].strip("'"), []))
        found.append(Candidate(wide, frozenset(reads)))
    return tuple(found)


@functools.cache
def _data() -> dict[str, Any]:
    return read_data("hf_unseen.toml")


def _known() -> list[ModelType]:
    return [k for k in model_types().values() if k.text is None and k.assemble == "decoder"]


def _open() -> ModelType:
    data = _data()
    keys = {k: None if v == "null" else v for k, v in data["open"].items()}
    return ModelType("llama", keys=keys, expressions={**table()["decoder"], **data["fields"]},
                     write=table()["write"])  # fmt: skip


def _with_all_spellings(kind: ModelType) -> ModelType:
    spelled = {}
    own = {s for key in kind.keys for s in kind.spellings(key)}
    for key in kind.keys:
        others = [
            spelling for spelling, keys in sorted(pooled().items())
            if spelling not in own and keys & set(kind.keys) == {key}
        ]  # fmt: skip
        spelled[key] = [*kind.spellings(key), *others]
    return replace(kind, spelled=spelled)


@functools.cache
def rarity() -> dict[str, float]:
    """How much a key says about a type: one over the number of types that read it."""
    uses = Counter(key for kind in _known() for key in kind.keys)
    return {key: 1 / uses[key] for key in uses}


def harmless(key: str) -> bool:
    """Whether a key changes no count."""
    listed = _data()["harmless"]
    return key in listed["names"] or any(part in key for part in listed["parts"])


def doubts(config: dict[str, Any], kind: ModelType) -> dict[str, ModelType]:
    """What no key of a config says though it changes much, each with the type built otherwise.

    SiLU is at home in gated feed-forwards; another activation than the usual one of a type leaves
    open whether it is gated.
    """
    found: dict[str, ModelType] = {}
    if _same_class(kind, config):
        return found
    act = next((config[s] for s in kind.spellings("hidden_act") if s in config), None)
    gated = kind.expressions["gated"]
    sure = {kind.keys.get("hidden_act"), *_data()["gated"]["activations"]}
    if gated in {"True", "False"} and act is not None and act not in sure:
        other = {**kind.expressions, "gated": "False" if gated == "True" else "True"}
        found["whether its feed-forward is gated"] = replace(kind, expressions=other)
    tie = "tie_word_embeddings"
    if tie in kind.keys and not any(s in config for s in kind.spellings(tie)):
        found[tie] = replace(kind, keys={**kind.keys, tie: not kind.keys[tie]})
    return found


class Guess(NamedTuple):
    """A type to read a config by."""

    kind: ModelType
    notes: list[str]
    close: bool
    """Whether the keys fit it about as well as the best."""


def guess(config: dict[str, Any], name: str, *, assume: bool) -> list[Guess]:
    """The types to read a config of an unknown model type by, and what each assumes.

    Args:
        config: The config; its model type is in no table.
        name: Its model type.
        assume: Go on where a key is not understood, with a note.

    Returns:
        The best first; the next is for a type that turns out not to fit.

    Raises:
        FieldError: If the config has not the sizes of a decoder, or a key of it is not
            understood.

    Example:
        >>> sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        >>> sizes |= {"vocab_size": 99, "intermediate_size": 128}
        >>> [(kind, notes, _), *_] = guess(sizes, "new", assume=False)
        >>> notes[0]
        'assumed: model type new is in no table; built like llama'
    """
    if not all(any(s in config for s in pooled() if key in pooled()[s]) for key in CORE):
        raise UnknownNameError("model_type", shorten(name), model_types())
    given = {k for k, v in config.items() if not _says_nothing(k, v, config)}
    ranked = sorted(candidates(), key=lambda one: _distance(one, given, config))
    left = sorted(given - ranked[0].reads)
    if left and not assume:
        near = nearest(name, model_types(), 1)
        hint = "--assume reads the rest"
        if near:
            hint = f"did you mean {near[0]}? {hint}"
        them = f"{', '.join(left[:4])}{', …' if len(left) > 4 else ''}"
        raise UnreadKeysError(name, them, hint)
    best = _distance(ranked[0], given, config)
    return [
        Guess(one.kind if assume else _without_sizes(one.kind), _notes(one, name, config, given),
              _distance(one, given, config)[2] - best[2] < _near(one, ranked[0]))
        for one in ranked[:TRIES] if _distance(one, given, config)[:2] == best[:2]
    ]  # fmt: skip


def _near(one: Candidate, best: Candidate) -> float:
    """How far behind a type may be to count as close; gating changes most, so it is asked more."""
    same = one.kind.expressions["gated"] == best.kind.expressions["gated"]
    return CLOSE if same else CLOSE_IF_UNGATED


class UnreadKeysError(FieldError):
    """A model type in no table, with keys that no type it resembles reads."""

    def __init__(self, name: str, keys: str, hint: str) -> None:
        rule = f"is not known; the type most like it does not read {keys}"
        super().__init__("model_type", shorten(name), rule, hint)


def _notes(one: Candidate, name: str, config: dict[str, Any], given: set[str]) -> list[str]:
    kind = one.kind
    notes = [f"assumed: model type {shorten(name)} is in no table; built like {kind.name}"]
    for field in STRUCTURE:
        text = kind.expressions[field]
        if not parse(text)[1]:
            notes.append(f"assumed: {field} is {evaluate(text, {})}, which no key of it says")
    for key, default in kind.keys.items():
        lacks = not any(s in config for s in kind.spellings(key))
        if lacks and kinds()[key] == "flag" and isinstance(default, bool):
            notes.append(f"assumed: {key} is not given, read as {str(default).lower()}")
    left = sorted(given - one.reads)
    return notes + [f"assumed: {key} {shorten(config[key])} changes no count" for key in left]


def _says_nothing(key: str, value: object, config: dict[str, Any]) -> bool:
    """Whether a key changes no count, or says that a part is not there."""
    off = _data()["off"]
    if harmless(key) or (key in off and value == off[key]):
        return True
    if key == "num_key_value_heads" and value == config.get("num_attention_heads"):
        return True
    if value is False and key.startswith(("no_", "disable_", "without_")):
        return False
    return not isinstance(value, float | str) and value in OFF


def _distance(one: Candidate, given: set[str], config: dict[str, Any]) -> tuple[int, bool, float]:
    """Keys the type does not read, whether it is another class, then how unlike the rest is.

    A key that few types read says much about a type: whether it is there, and whether it is not
    although its default would build something.
    """
    kind, far = one.kind, 0.0
    is_open = one is candidates()[0]
    for key, default in kind.keys.items():
        if harmless(key):
            continue
        if any(s in config for s in kind.spellings(key)):
            far -= rarity().get(key, 0.0) * (0.5 if is_open else 1.0)
        elif is_open:
            continue  # the open decoder has no part that no key names
        elif kinds()[key] == "object":
            far += 1.0
        elif default not in OFF:
            size = kinds()[key] in {"size", "count"}
            far += rarity().get(key, 0.0) + (size and key not in {*IMPLIED, *_data()["default"]})
    act = next((config[s] for s in kind.spellings("hidden_act") if s in config), None)
    if act is not None and act != kind.keys.get("hidden_act"):
        far += 1.0
    return len(given - one.reads), not _same_class(kind, config), far


def _same_class(kind: ModelType, config: dict[str, Any]) -> bool:
    """Whether a config names the class of a type."""
    named = config.get("architectures")
    return bool(kind.architecture) and isinstance(named, list) and kind.architecture in named


def _without_sizes(kind: ModelType) -> ModelType:
    """A type that borrows no size of the model its class was made for."""
    sizes = {k for k in kind.keys if kinds()[k] in {"size", "count", "depth"}}
    keys = {k: _data()["default"].get(k) if k in sizes else v for k, v in kind.keys.items()}
    return replace(kind, keys=keys)
