"""Where two specs differ, field by field, and whether a difference changes any weight's shape."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec import Struct

from scantling.spec.model import Spec, Stack
from scantling.spec.modules import Block, Layer

FUNCTION = {
    "activation", "capacity_permille", "causal", "chunk", "compress", "delayed", "fraction",
    "index_block", "index_top_k", "n_expert_group", "n_local_block", "n_zero", "overlap",
    "scale", "scaling", "scan_chunk", "scoring", "softcap", "span", "sparsity", "theta", "top_k",
    "top_k_group", "window",
}  # fmt: skip
"""Fields that change what a model computes with its weights, and no weight."""


class Differs(NamedTuple):
    """One field that two specs do not share; None where one has no such part."""

    field: str
    a: Any
    b: Any
    kind: str
    """``shape``: weights differ; ``function``: the same weights mean something else; ``context``:
    the length a model was made for."""


def differences(a: Spec, b: Spec) -> list[Differs]:
    """Every field in which two specs differ; layers are compared in order, equal pairs once.

    Example:
        >>> from scantling import catalog
        >>> found = differences(catalog.model("llama-3-8b"), catalog.model("mistral-7b-v0.1"))
        >>> [(d.field, d.a, d.b) for d in found if d.kind != "context"][:2]
        [('vocab_size', 128256, 32000), ('decoder.attention.position.theta', 500000.0, 10000.0)]
    """
    found = {d.field: d for d in _pair(a, b, "")}
    return list(found.values())


def _pair(a: Any, b: Any, path: str) -> Iterator[Differs]:
    if a == b:
        return
    if isinstance(a, Stack) and isinstance(b, Stack):
        yield from _stacks(a, b, path)
    elif isinstance(a, Layer) and isinstance(b, Layer):
        yield from _layers(a, b, path)
    elif isinstance(a, Struct) and type(a) is type(b):
        for field in a.__struct_fields__:
            if field != "name":
                yield from _pair(getattr(a, field), getattr(b, field), _join(path, field))
    else:
        yield Differs(path, _said(a), _said(b), _kind(path, a, b))


def _stacks(a: Stack, b: Stack, path: str) -> Iterator[Differs]:
    if a.n_layer != b.n_layer:
        yield Differs(_join(path, "n_layer"), a.n_layer, b.n_layer, "shape")
    pairs = dict.fromkeys(zip(a.expand(), b.expand(), strict=False))
    for one, other in pairs:
        where = path if len(a.kinds) == 1 else _join(path, one)
        yield from _pair(a.kind(one), b.kind(other), where)
    for field in Stack.__struct_fields__:
        if field not in {"kinds", "layout"}:
            yield from _pair(getattr(a, field), getattr(b, field), _join(path, field))


def _layers(a: Layer, b: Layer, path: str) -> Iterator[Differs]:
    """Blocks by what they do, so that a layer with one more still shares the others."""
    left, right = _blocks(a), _blocks(b)
    for name in dict.fromkeys([*left, *right]):
        yield from _pair(left.get(name), right.get(name), _join(path, name))
    for field in Layer.__struct_fields__:
        if field not in {"name", "blocks"}:
            yield from _pair(getattr(a, field), getattr(b, field), _join(path, field))


def _blocks(layer: Layer) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for block in layer.blocks:
        names = [branch.name for branch in block.branches]
        alone = len(names) == 1
        for name, branch in zip(names, block.branches, strict=True):
            found[name] = branch.module
            for field in ("pre", "post", "copies"):
                found[f"{name}.{field}"] = getattr(branch, field)
        whole = names[0] if alone else "+".join(names)
        for field in Block.__struct_fields__:
            if field != "branches" and getattr(block, field) is not None:
                found[f"{whole}.{field}"] = getattr(block, field)
    return found


def _kind(path: str, a: Any, b: Any) -> str:
    last = path.rpartition(".")[2]
    if last == "max_context":
        return "context"
    weightless = {"rope", "alibi", "plain", "deep_norm", "none"}
    if last in {"position", "residual"} and {_said(a), _said(b)} <= weightless:
        return "function"
    return "function" if last in FUNCTION and not isinstance(a, bool) else "shape"


def _said(value: Any) -> Any:
    """A struct by its type's word; plain values as they are."""
    if isinstance(value, Struct):
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(value).__name__).lower()
        return value.__struct_config__.tag or words
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return dict(value)
    return "none" if value is None else value


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


__all__ = ["Differs", "differences"]
