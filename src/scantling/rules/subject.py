"""What is linted: a model as far as it can be read, and where it is to run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from scantling.costs.cache import kv_cache
from scantling.costs.count import Parameters, parameters
from scantling.costs.features import features
from scantling.costs.quantize import Scheme, released_scheme, scheme
from scantling.costs.runtimes import Runtime, runtimes
from scantling.errors import FieldError
from scantling.formats import hf
from scantling.formats.checkpoint import Checkpoint
from scantling.formats.declared import quantization
from scantling.formats.hf.partial import Partial, partial
from scantling.laws import Features
from scantling.laws.optimum import TOKENS_A_PARAMETER
from scantling.rules.setting import Setting
from scantling.spec import Experts, GroupedAttention, LatentAttention, Spec, check
from scantling.spec.vary import nodes

T = TypeVar("T")


class Subject(Struct, kw_only=True, dict=True):
    """One model under one setting.

    Args:
        name: What it is called.
        setting: Where it is to run.
        config: The whole config as it was given; None for a spec.
        part: The config read value by value; None for a spec.
        spec: The model; None where it is no legal one.
        refused: Why it is none.
        notes: What reading it noticed.
        checkpoint: Its weights, where they were given.
        path: The file of the config.
    """

    name: str
    setting: Setting
    config: dict[str, Any] | None = None
    part: Partial | None = None
    spec: Spec | None = None
    refused: FieldError | None = None
    notes: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = None
    path: Path | None = None

    @property
    def legal(self) -> Spec:
        """The spec; rules that read it are asked only where there is one."""
        assert self.spec is not None
        return self.spec

    @property
    def raw(self) -> Partial:
        """The config value by value; rules that read it are asked only where there is one."""
        assert self.part is not None
        return self.part

    @cached_property
    def worked_out(self) -> dict[str, Any]:
        """What several rules share, by name."""
        return {}

    @cached_property
    def counted(self) -> Parameters:
        """Its parameters."""
        return parameters(self.legal)

    @cached_property
    def features(self) -> Features:
        """What laws see, at 20 tokens a parameter."""
        return features(self.legal, TOKENS_A_PARAMETER * float(self.counted.total), self.counted)

    @cached_property
    def cache_per_token(self) -> float:
        """Bytes a token adds to the cache, 16 bits."""
        return cache_per_token(self.legal)

    @cached_property
    def modules(self) -> tuple[tuple[str, Struct], ...]:
        """Every struct of the model with its path."""
        return tuple(nodes(self.legal))

    def each(self, kind: type[T]) -> Iterator[tuple[str, T]]:
        """Every module of a type, by its path."""
        return ((path, node) for path, node in self.modules if isinstance(node, kind))

    @cached_property
    def attentions(self) -> tuple[tuple[str, GroupedAttention], ...]:
        """Grouped attentions, the distinct ones."""
        seen: dict[GroupedAttention, str] = {}
        for path, node in self.each(GroupedAttention):
            seen.setdefault(node, path)
        return tuple((path, node) for node, path in seen.items())

    @cached_property
    def latents(self) -> tuple[tuple[str, LatentAttention], ...]:
        """Latent attentions."""
        return tuple(self.each(LatentAttention))

    @cached_property
    def experts(self) -> tuple[tuple[str, Experts], ...]:
        """Feed-forwards of experts."""
        return tuple(self.each(Experts))

    @cached_property
    def runtime(self) -> Runtime | None:
        """The runtime that was named."""
        name = self.setting.runtime
        return None if name is None else runtimes()[name]

    @cached_property
    def scheme(self) -> Scheme | None:
        """The quantisation asked for, else the one the config says its weights are in."""
        if self.setting.quant is not None:
            return scheme(self.setting.quant)
        return released_scheme(quantization(self.config or {}))

    @property
    def context(self) -> int | None:
        """Tokens of a sequence: as asked, else what the model was made for."""
        if self.setting.context is not None:
            return self.setting.context
        limit = self.legal.max_context
        return None if limit is None else int(limit)

    def key(self, field: str) -> str:
        """A dimension under the name the user gave it; one of a head no key says is the heads'."""
        if self.part is None:
            return field
        follows = field in {"d_head", "n_kv_head"} and not self.part.has(field)
        return self.part.key("n_head" if follows else field)

    def said(self, changes: dict[str, Any]) -> str:
        """Changes as the user would write them; a dimension that no key says follows another."""
        part = self.part
        own = {k: v for k, v in changes.items() if part is None or part.has(k)}
        return ", ".join(f"{self.key(k)} {v}" for k, v in own.items())

    @cached_property
    def plain_name(self) -> str:
        """What the model is called, without organisation and path."""
        own = "" if self.config is None else self.config.get("_name_or_path")
        return re.split(r"[/\\]", own if isinstance(own, str) and own else self.name)[-1]


def cache_per_token(spec: Spec) -> float:
    """Bytes a token adds to the cache, 16 bits."""
    found: Any = kv_cache(spec, context=1).bytes_per_token
    return float(found)


def subject(given: Any, setting: Setting | None = None, *, name: str | None = None) -> Subject:
    """A model as far as it can be read.

    A model type in no table is read as what it resembles most, whatever is not understood: SC013
    says so.

    Args:
        given: As for ``catalog.load``.
        setting: Where it is to run.
        name: What it is called.

    Raises:
        FieldError: If it cannot be read at all: no such model, no JSON object, no model type.

    Example:
        >>> found = subject({"model_type": "llama", "num_attention_heads": 6})
        >>> found.spec is None, str(found.refused)[:40]
        (True, 'num_attention_heads 6 must divide hidden')
    """
    from scantling.catalog import described

    where = setting or Setting()
    found = described(given)
    told = {"name": name or found.name, "setting": where, "path": found.path}
    if found.spec is not None:
        try:
            return Subject(spec=check(found.spec), **told)  # type: ignore[arg-type]
        except FieldError as error:
            return Subject(refused=error, **told)  # type: ignore[arg-type]
    if found.config is None:
        why = found.notes[-1] if found.notes else "it has no config.json beside it"
        raise FieldError("model", found.name, f"cannot be linted: {why}")
    part = partial(found.config)
    spec, refused, notes = None, None, found.notes
    try:
        read = hf.read(found.config, assume=True)
    except FieldError as error:
        refused = error
    else:
        spec, notes = read.spec, (*notes, *read.notes)
    return Subject(
        config=found.config,
        part=part,
        spec=spec,
        refused=refused,
        notes=notes,
        checkpoint=found.checkpoint,
        **told,  # type: ignore[arg-type]
    )
