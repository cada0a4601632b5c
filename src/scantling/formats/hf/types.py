"""The table of model types: ``data/hf_types.toml`` as records."""

from __future__ import annotations

import functools
from typing import Any

from msgspec import Struct

from scantling.errors import UnknownNameError
from scantling.sources import read_data


class ModelType(Struct, frozen=True):
    """One model type of the table."""

    name: str
    text: str | None = None
    """The model type of the text part, for a multimodal type."""
    architecture: str = ""
    keys: dict[str, Any] = {}
    spelled: dict[str, list[str]] = {}
    expressions: dict[str, str] = {}
    write: dict[str, str] = {}
    words: dict[str, list[str]] = {}
    """The words a list of names may hold, by key, where they are not the usual ones."""
    assemble: str = "decoder"
    """The base table of its fields, and the assembler that makes a spec of them."""
    nested_rope: bool = False
    """The class reads ``rope_parameters`` by kind of layer only, so they are written that way."""
    remote: bool = False
    """The class is not in transformers: it comes with the checkpoint."""
    requires: str = "True"
    """What the class of this type needs beyond a legal spec."""
    supports: str = "True"
    """What must hold for the count to be right."""

    def spellings(self, key: str) -> list[str]:
        """How a key may be written, the usual way first."""
        spelled = list(self.spelled.get(key, []))
        return spelled if key in spelled else [*spelled, key]


FILES = ("hf_types.toml", "hf_decoders.toml", "hf_encoders.toml", "hf_hybrids.toml",
         "hf_layered.toml", "hf_latent.toml")  # fmt: skip


@functools.cache
def table() -> dict[str, Any]:
    """The parsed table, its files joined section by section; callers do not change it."""
    joined: dict[str, Any] = {}
    for name in FILES:
        for section, entries in read_data(name).items():
            if isinstance(entries, dict):
                known = joined.setdefault(section, {})
                again = {k for k in entries if known.get(k, entries[k]) != entries[k]}
                assert not again, f"{name}: {again} stand in another file with another value"
                known.update(entries)
            else:
                joined.setdefault(section, []).extend(entries)
    return joined


@functools.cache
def kinds() -> dict[str, str]:
    """What each config key holds."""
    found: dict[str, str] = table()["kinds"]
    return found


@functools.cache
def model_types() -> dict[str, ModelType]:
    """Every model type of the table by name."""
    return {name: _model_type(name) for name in table()["type"]}


def _model_type(name: str) -> ModelType:
    """One entry of the table, over the entry it is ``like`` and the base of its assembler."""
    shared = table()
    own = dict(shared["type"][name])
    like = own.pop("like", None)
    base = ModelType(name) if like is None else _model_type(like)
    assemble = own.pop("assemble", base.assemble)
    fields = shared[assemble]
    keys = {k: None if v == "null" else v for k, v in own.pop("keys", {}).items()}
    drop = own.pop("drop", [])
    inherited = {k: v for k, v in base.keys.items() if k not in drop}
    write = shared["write"] if like is None else base.write
    found = ModelType(
        name=name, text=own.pop("text", None), architecture=own.pop("class", base.architecture),
        keys={**inherited, **keys}, spelled={**base.spelled, **own.pop("spelled", {})},
        write={**write, **own.pop("write", {})}, words={**base.words, **own.pop("words", {})},
        requires=own.pop("requires", base.requires), supports=own.pop("supports", base.supports),
        assemble=assemble, remote=own.pop("remote", base.remote),
        nested_rope=own.pop("nested_rope", base.nested_rope),
        expressions={**(base.expressions or fields), **own},
    )  # fmt: skip
    unknown = set(own) - set(fields)
    assert not unknown, f"{name}: {unknown} are no fields of [{assemble}]"
    return found


def model_type(name: object) -> ModelType:
    """One model type by name; an unknown one is an error that lists the nearest."""
    if not isinstance(name, str) or name not in model_types():
        raise UnknownNameError("model_type", str(name), model_types())
    return model_types()[name]


def words_of(kind: ModelType, key: str) -> list[str]:
    """The words a list under a key may hold."""
    found: list[str] = kind.words[key] if key in kind.words else table()["words"][key]
    return found
