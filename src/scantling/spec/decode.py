"""A spec from JSON-like data, with errors that name path, value and the nearest field."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct

from scantling.errors import FieldError, nearest
from scantling.spec import modules, positions
from scantling.spec.model import (
    Audio,
    Embeddings,
    Head,
    LearnedPosition,
    PerLayerTables,
    Run,
    Spec,
    Stack,
    Transform,
)
from scantling.spec.vary import WRAPPERS

STRUCTS: tuple[type[Struct], ...] = (
    Spec, Stack, Run, Embeddings, Head, LearnedPosition, Audio, Transform, PerLayerTables,
    *(v for part in (positions, modules) for v in vars(part).values()
      if isinstance(v, type) and issubclass(v, Struct)),
)  # fmt: skip
ALL_FIELDS = {name for struct in STRUCTS for name in struct.__struct_fields__}


def decode(value: Any) -> Spec:
    """A spec from plain dictionaries and lists, as ``design --json`` prints it.

    Types and bounds are checked here; relations between fields by ``check``.

    Raises:
        FieldError: With the path, the value, what was expected, and a near match for an unknown
            field.

    Example:
        >>> from scantling import catalog
        >>> data = msgspec.to_builtins(catalog.model("gpt2"))
        >>> decode(data) == catalog.model("gpt2")
        True
        >>> data["vocab_sizes"] = 12
        >>> decode(data)
        Traceback (most recent call last):
            ...
        scantling.errors.FieldError: vocab_sizes is no field; did you mean vocab_size?
    """
    try:
        return msgspec.convert(value, Spec)
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `$")
        steps = re.findall(r"[^.\[\]`]+", where)
        raise _framed(value, text, steps) from None
    except TypeError as error:  # a column spec, or an object that is no data
        raise FieldError("spec", None, f"cannot be read: {error}") from None


def _name(value: dict[str, Any]) -> list[str]:
    """What an element of a list is called in paths: its own name, or that of its module."""
    module = value.get("module")
    if isinstance(module, dict):
        kind = module.get("type")
        if kind == "attention" and module.get("cross"):
            return ["cross_attention"]
        names = {
            "attention": "attention", "latent": "attention", "dense": "ffn", "experts": "ffn",
            "channel_mix": "ffn",
        }  # fmt: skip
        return [names.get(str(kind), "mixer")]
    return [str(value["name"])] if "name" in value else []


def _framed(value: Any, text: str, steps: list[str]) -> FieldError:
    """An error of the decoder, with a path for people and the value that stands there."""
    path = []
    for step in steps:
        value = value[int(step)] if isinstance(value, list | tuple) else value[step]
        if step.isdigit() and isinstance(value, dict):
            path += _name(value)
        elif step not in WRAPPERS and not step.isdigit():
            path.append(step)
    unknown = re.search(r"unknown field `([^`]*)`", text)
    if unknown:
        near = nearest(unknown[1], ALL_FIELDS, 1)
        name = ".".join([*path, unknown[1]])
        return FieldError(name, None, "is no field", f"did you mean {near[0]}?" if near else "")
    rule = text.replace("Expected", "must be").replace("`", "").replace("Object", "an object")
    return FieldError(".".join(path) or "spec", None if isinstance(value, dict | list) else value,
                      rule)  # fmt: skip
