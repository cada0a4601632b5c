"""One way to read and to change a nested dimension: ``vary(spec, n_kv_head=4, n_layer=40)``.

Fixes, neighbours, ``--set``, ``--vary`` and ladders all use it.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from scantling.arith import Dim
from scantling.errors import FieldError, nearest
from scantling.spec.model import Run, Spec, Stack
from scantling.spec.modules import (
    Block,
    GroupedAttention,
    LatentAttention,
    Layer,
)

Change = int | bool | Any


WRAPPERS = {"kinds", "blocks", "branches", "module"}
"""Fields that only hold others: paths leave them out."""


def nodes(node: object, path: str = "") -> Iterator[tuple[str, Struct]]:
    """Every struct of a tree with its path for people, parents first.

    Example:
        >>> from scantling import catalog
        >>> [p for p, node in nodes(catalog.model("gpt2")) if isinstance(node, GroupedAttention)]
        ['decoder.layer.attention']
    """
    found: list[tuple[str, Struct]] = []
    _collect(node, path, found)
    return iter(found)


def _collect(node: object, path: str, found: list[tuple[str, Struct]]) -> None:
    """Appends, where a generator in a generator would pass every struct up through each level."""
    if isinstance(node, tuple):
        for i, item in enumerate(node):
            name = "" if isinstance(item, Block) else getattr(item, "name", str(i))
            _collect(item, _join(path, name), found)
    elif isinstance(node, Struct):
        found.append((path, node))
        for field in holders(type(node)):
            value = getattr(node, field)
            if value is not None:
                _collect(value, path if field in WRAPPERS else _join(path, field), found)


@functools.cache
def holders(kind: type[Struct]) -> tuple[str, ...]:
    """The fields of a struct that can hold other structs, also in tuples."""
    return tuple(f.name for f in msgspec.structs.fields(kind) if _holds(f.type))


def _holds(kind: Any) -> bool:
    if isinstance(kind, type) and issubclass(kind, Struct):
        return True
    return any(_holds(part) for part in typing.get_args(kind))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name


def rewrite(node: Any, change: Callable[[Struct], Struct]) -> Any:
    """A tree with each struct passed through ``change``, children first."""
    if isinstance(node, tuple):
        return _same_or_new(node, tuple(rewrite(item, change) for item in node))
    if not isinstance(node, Struct):
        return node
    return change(_with_children(node, lambda value: rewrite(value, change)))


def _with_children(node: Struct, new: Callable[[Any], Any]) -> Struct:
    """A struct with what its fields hold passed on; itself where nothing is another."""
    changed = {}
    for field in holders(type(node)):
        value = getattr(node, field)
        if value is not None:
            other = new(value)
            if other is not value:
                changed[field] = other
    return replace(node, **changed) if changed else node


def _in_layers(node: Any, change: Callable[[Layer], Layer]) -> Any:
    """A tree with each layer passed through ``change``."""
    if isinstance(node, tuple):
        return _same_or_new(node, tuple(_in_layers(item, change) for item in node))
    if isinstance(node, Layer):
        return change(node)
    return _with_children(node, lambda value: _in_layers(value, change)) if isinstance(
        node, Struct) else node  # fmt: skip


def _same_or_new(old: tuple[Any, ...], new: tuple[Any, ...]) -> tuple[Any, ...]:
    """The old tuple where every item is the old one."""
    return old if all(a is b for a, b in zip(old, new, strict=True)) else new


def vary(spec: Spec, **changes: Change) -> Spec:
    """A spec with dimensions changed wherever they occur.

    Args:
        spec: A spec or a column spec.
        changes: Short names (``n_layer``, ``n_kv_head``, ``d_ff``, ``window``, ``tied``, …), or
            ``kind__field`` for one layer kind only (``global__d_head``). ``n_layer`` is that of
            the decoder or of a kind with a run of its own; ``n_encoder_layer`` the encoder's.

    Raises:
        FieldError: If no part of the model has the field.

    Example:
        >>> from scantling import catalog
        >>> spec = vary(catalog.model("llama-3.1-8b"), n_kv_head=4, n_layer=40)
        >>> spec.n_kv_head, spec.n_layer
        (4, 40)
    """
    for name, value in changes.items():
        kind, _, field = name.rpartition("__")
        spec = _vary_one(spec, field, value, kind)
    return spec


def _vary_one(spec: Spec, field: str, value: Change, kind: str) -> Spec:
    if field == "n_layer":
        return _vary_depth(spec, value, kind)
    if field == "n_encoder_layer" and spec.encoder is not None:
        return _vary_depth(spec, value, "encoder")
    if not kind and field in Spec.__struct_fields__ and field not in {"decoder", "encoder"}:
        return replace(spec, **{field: value})
    found = False

    def change(node: Struct) -> Struct:
        nonlocal found
        if field in node.__struct_fields__ and _is_set(node, field):
            found = True
            return replace(node, **{field: value})
        return node

    def change_kind(layer: Layer) -> Layer:
        if kind in {"", layer.name}:
            return replace(layer, blocks=rewrite(layer.blocks, change))
        return layer

    new: Spec = _in_layers(spec, change_kind)
    if not kind:
        new = replace(new, embeddings=rewrite(new.embeddings, change))
    if not found:
        raise _unknown(spec, field, kind)
    return new


def _vary_depth(spec: Spec, value: Change, stack: str) -> Spec:
    if stack == "encoder" and spec.encoder is not None:
        return replace(spec, encoder=_with_depth(spec.encoder, value))
    if stack not in {"", "decoder"}:
        runs = spec.decoder.layout
        if not any(run.pattern == (stack,) for run in runs):
            hint = "n_layer is of a whole stack, or of a kind with a run of its own"
            raise FieldError(f"{stack}.n_layer", None, "is no depth", hint)
        layout = tuple(replace(run, n=value) if run.pattern == (stack,) else run for run in runs)
        return replace(spec, decoder=replace(spec.decoder, layout=layout))
    return replace(spec, decoder=_with_depth(spec.decoder, value))


def _unknown(spec: Spec, field: str, kind: str) -> FieldError:
    stacks = [spec.decoder] if spec.encoder is None else [spec.decoder, spec.encoder]
    known_kinds = [k.name for stack in stacks for k in stack.kinds]
    if kind and kind not in known_kinds:
        near = nearest(kind, known_kinds, 1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known_kinds)}"
        return FieldError(kind, None, "is no layer kind of this model", hint)
    known = [f for f in fields(spec) if f != field]
    near = nearest(field, known, 1)
    hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}"
    where = f"layer kind {kind}" if kind else "this model"
    return FieldError(field, None, f"is no dimension of {where}", hint)


def _is_set(node: Struct, field: str) -> bool:
    """An absent optional dimension stays absent: varying it would change the structure."""
    return getattr(node, field) is not None


def _with_depth(stack: Stack, n_layer: Change) -> Stack:
    """A stack of another depth: its last run grows or shrinks, what comes before it stays."""
    before = sum((run.n for run in stack.layout[:-1]), 0)
    last = stack.layout[-1]
    rest = n_layer - before
    if isinstance(rest, int) and rest < 1:
        raise FieldError("n_layer", n_layer, f"must exceed the {before} layers before the last run")
    return replace(stack, layout=(*stack.layout[:-1], Run(last.pattern, rest)))


ALIASES = {"n_kv_head": "n_head", "d_head": "d_nope"}
"""Fields read from another where a kind has no own: MLA keeps one key per query head."""


@functools.cache
def dimension_fields(struct: type[Struct]) -> tuple[str, ...]:
    """The fields of a struct that hold a dimension."""
    found = []
    for field in msgspec.structs.fields(struct):
        kinds = typing.get_args(field.type) if _is_union(field.type) else (field.type,)
        if any(typing.get_origin(k) is typing.Annotated for k in kinds):
            found.append(field.name)
    return tuple(found)


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in {typing.Union, types.UnionType}


def dimensions(spec: Spec) -> dict[str, Dim]:
    """Every dimension of a model by its short name.

    A name that several layer kinds have is that of the last kind in the pattern of the last run.

    Example:
        >>> from scantling import catalog
        >>> list(dimensions(catalog.model("gpt2")))
        ['d_model', 'n_layer', 'vocab_size', 'n_head', 'n_kv_head', 'd_head', 'd_ff', 'rows']
    """
    found = {"d_model": spec.d_model, "n_layer": spec.n_layer, "vocab_size": spec.vocab_size}
    if spec.encoder is not None:
        found["n_encoder_layer"] = spec.encoder.n_layer
    last = spec.decoder.layout[-1].pattern[-1]
    for kind in sorted(spec.decoder.kinds, key=lambda k: k.name != last):
        for _, node in nodes(kind):
            for field in dimension_fields(type(node)):
                value = getattr(node, field)
                if value is not None and field not in found:
                    found[field] = value
    for _, node in nodes(spec.embeddings):
        for field in dimension_fields(type(node)):
            if getattr(node, field) is not None:
                found.setdefault(field, getattr(node, field))
    return found


def read(spec: Spec, field: str) -> Dim:
    """A dimension by its short name: of the last kind of the last run, else of any kind.

    Raises:
        FieldError: If no part of this model has it.
    """
    found = dimensions(spec)
    for name in (field, ALIASES.get(field, field)):
        if name in found:
            return found[name]
    raise FieldError(field, None, "is no dimension of this model", f"it has {', '.join(found)}")


def has(spec: Spec, field: str) -> bool:
    """Whether a model has a dimension of this name."""
    return field in dimensions(spec)


def fields(spec: Spec) -> list[str]:
    """The names of all dimensions a model has, in the order of its parts."""
    return list(dimensions(spec))


def attention(spec: Spec) -> GroupedAttention | LatentAttention | None:
    """The softmax attention of the kind that occurs last, if the model has one."""
    last = spec.decoder.layout[-1].pattern[-1]
    for kind in sorted(spec.decoder.kinds, key=lambda k: k.name != last):
        for _, node in nodes(kind):
            if isinstance(node, GroupedAttention | LatentAttention):
                return node
    return None
