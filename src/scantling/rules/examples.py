"""Made-up configs that each do one harm, from ``data/rule_examples.toml``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from scantling.sources import read_data


class Example(Struct, frozen=True, kw_only=True):
    """One harm done to a sound base.

    Args:
        code: The rule that speaks of it.
        base: The config without the harm.
        change: Keys of the harm; None takes one away.
        setting: Options of ``setting`` under which it is one.
        mend: Keys that mend it by hand; None where the rule's own fix does.
        mend_setting: Options that mend it; None leaves them.
        base_setting: Options under which the base is silent, where the harm is in the options.
        name: What the config is called.
    """

    code: str
    base: dict[str, Any]
    change: dict[str, Any] = {}
    setting: dict[str, Any] = {}
    mend: dict[str, Any] | None = None
    mend_setting: dict[str, Any] | None = None
    base_setting: dict[str, Any] | None = None
    name: str = "config"

    @property
    def config(self) -> dict[str, Any]:
        """The base with the harm."""
        return changed(self.base, self.change)


def changed(config: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """A config with keys changed: dotted ones inside, None takes one away.

    Example:
        >>> changed({"a": 1, "rope_scaling": {"factor": 8.0}}, {"a": None, "rope_scaling.factor": 4})
        {'rope_scaling': {'factor': 4}}
    """  # noqa: E501 - an example is one line
    new = dict(config)
    for key, value in change.items():
        outer, _, inner = key.partition(".")
        if inner:
            new[outer] = changed(new.get(outer, {}), {inner: value})
        elif value is None:
            new.pop(key, None)
        else:
            new[key] = value
    return new


@functools.cache
def bases() -> dict[str, dict[str, Any]]:
    """The sound configs by name.

    Example:
        >>> bases()["yarn"]["model_type"]
        'qwen3'
    """
    found: dict[str, dict[str, Any]] = {}
    for name, entry in read_data("rule_examples.toml")["base"].items():
        over = found[entry["base"]] if "base" in entry else {}
        found[name] = {**over, **{k: v for k, v in entry.items() if k != "base"}}
    return found


@functools.cache
def examples() -> tuple[Example, ...]:
    """Every example, by code in the order of the file.

    Example:
        >>> one = next(e for e in examples() if e.code == "SC101")
        >>> one.config["num_attention_heads"], one.config["num_key_value_heads"]
        (16, 6)
    """
    return tuple(_example(entry) for entry in read_data("rule_examples.toml")["example"])


def _example(entry: dict[str, Any]) -> Example:
    base = {**(bases()[entry["base"]] if "base" in entry else {}), **entry.get("with", {})}
    plain: dict[str, Any] = {
        k: entry[k] for k in ("setting", "mend_setting", "base_setting", "name") if k in entry
    }
    keys: dict[str, Any] = {
        k: _keys(entry, k) for k in ("change", "mend") if k in entry or f"{k}_without" in entry
    }
    return Example(code=entry["code"], base=base, **keys, **plain)


def _keys(entry: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {**entry.get(name, {}), **dict.fromkeys(entry.get(f"{name}_without", []))}
