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
    requires: str = "True"
    """What the class of this type needs beyond a legal spec."""
    supports: str = "True"
    """What must hold for the count to be right."""

    def spellings(self, key: str) -> list[str]:
        """How a key may be written, the usual way first."""
        spelled = list(self.spelled.get(key, []))
        return spelled if key in spelled else [*spelled, key]


@functools.cache
def table() -> dict[str, Any]:
    """The parsed table; callers do not change it."""
    return read_data("hf_types.toml")


@functools.cache
def kinds() -> dict[str, str]:
    """What each config key holds."""
    found: dict[str, str] = table()["kinds"]
    return found


@functools.cache
def model_types() -> dict[str, ModelType]:
    """Every model type of the table by name."""
    shared = table()
    found = {}
    for name, entry in shared["type"].items():
        own = dict(entry)
        keys = {k: None if v == "null" else v for k, v in own.pop("keys", {}).items()}
        fixed = {
            "text": own.pop("text", None), "architecture": own.pop("class", ""),
            "spelled": own.pop("spelled", {}), "write": {**shared["write"], **own.pop("write", {})},
            "requires": own.pop("requires", "True"),
            "supports": own.pop("supports", "True"),
        }  # fmt: skip
        unknown = set(own) - set(shared["decoder"])
        assert not unknown, f"{name}: {unknown} are no fields of [decoder]"
        found[name] = ModelType(name, keys=keys, expressions={**shared["decoder"], **own}, **fixed)
    return found


def model_type(name: object) -> ModelType:
    """One model type by name; an unknown one is an error that lists the nearest."""
    if not isinstance(name, str) or name not in model_types():
        raise UnknownNameError("model_type", str(name), model_types())
    return model_types()[name]


@functools.cache
def words_of(key: str) -> tuple[str, ...]:
    """The words a list under a key may hold."""
    return tuple(table()["words"][key])
