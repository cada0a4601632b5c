"""The registry of outside descriptions a spec can be written as."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from msgspec import Struct

from scantling.errors import UnknownNameError
from scantling.spec import Spec

Export = Callable[[Spec], "Exported"]

FORMATS: dict[str, Export] = {}
"""Every exporter by the name of its target, filled by ``@register`` when its module is read."""

MODULES = {
    "hf": "hf_config", "megatron": "megatron", "torchtitan": "torchtitan", "litgpt": "litgpt",
    "nanotron": "nanotron", "gguf": "gguf_keys", "vllm": "vllm",
}  # fmt: skip
"""The file of each target, read when the target is asked for."""


class Exported(Struct, frozen=True):
    """A model in the words of another tool."""

    target: str
    values: dict[str, Any]
    """The settings by their names there."""
    text: str
    """What goes into a file or on a command line."""
    notes: tuple[str, ...] = ()
    """What the target does differently, and what was assumed."""


def register(name: str) -> Callable[[Export], Export]:
    """Add an exporter to the registry under the name of its target."""

    def add(function: Export) -> Export:
        FORMATS[name] = function
        return function

    return add


def export(spec: Spec, target: str) -> Exported:
    """A spec in the words of another tool.

    Args:
        spec: The model.
        target: One of ``hf``, ``megatron``, ``torchtitan``, ``litgpt``, ``nanotron``, ``gguf``,
            ``vllm``.

    Raises:
        UnknownNameError: If there is no such target.
        FieldError: If the target cannot say some part of the model; it names the part.

    Example:
        >>> from scantling import catalog
        >>> export(catalog.model("llama-3.1-8b"), "megatron").values["ffn-hidden-size"]
        14336
    """
    if target not in MODULES and target not in FORMATS:
        raise UnknownNameError("format", target, {*MODULES, *FORMATS})
    if target not in FORMATS:
        import_module(f"scantling.formats.{MODULES[target]}")
    return FORMATS[target](spec)
