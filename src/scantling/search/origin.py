"""``design --from MODEL``: the shapes a model's weights can become, and what each step loses."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from scantling import catalog
from scantling.costs.count import parameters
from scantling.errors import FieldError
from scantling.search.axes import depth_step
from scantling.search.budget import Budget, Range, budget
from scantling.search.candidate import Candidate
from scantling.sources import read_data
from scantling.spec import Dense, GroupedAttention, Spec, divisors, has, read
from scantling.spec.vary import nodes

LOSES = "the loss here is that of training from scratch: what the weights bring is not priced"


class Change(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to change weights; a table of ``data/weight_changes.toml``."""

    title: str
    sources: tuple[str, ...]
    measured: tuple[str, ...] = ()
    assumed: str = ""


@functools.cache
def changes() -> dict[str, Change]:
    """Every way to change weights by its name.

    Example:
        >>> changes()["kv_heads"].sources
        ('ainslie2023',)
    """
    return msgspec.convert(read_data("weight_changes.toml"), dict[str, Change])


class Step(Struct, frozen=True):
    """One step from a model to a shape."""

    change: str
    before: int | bool
    after: int | bool

    def to_json(self) -> dict[str, Any]:
        """A step of ``from`` of ``design --json``: what was measured, else what is assumed."""
        known = changes()[self.change]
        return {
            "step": known.title, "from": self.before, "to": self.after,
            "kind": "measured" if known.measured else "assumed",
            "loses": list(known.measured) or [known.assumed], "sources": list(known.sources),
        }  # fmt: skip

    def text(self) -> str:
        """The step in a few words."""
        known = changes()[self.change]
        if isinstance(self.after, bool):
            return known.title
        return f"{known.title} ({self.before:,} to {self.after:,})"


def restricted(model: catalog.Loaded, given: Mapping[str, Any]) -> Budget:
    """A budget whose space holds only what a model's weights can become.

    Depth, width, query heads and feed-forward can shrink; a KV head can only be merged with its
    neighbours, so K divides the model's; the head width stays; the vocabulary is the model's
    unless given. With experts each starts as a copy of the feed-forward, so their width is its.

    Args:
        model: A dense model with grouped attention.
        given: Limits of a budget under the names of ``budget``; a size is needed.

    Raises:
        FieldError: If the model is none of that, the size is missing, or a limit asks for more
            than the model has.

    Example:
        >>> b = restricted(catalog.load("llama-3.1-8b"), {"params": "4B"})
        >>> b.listed["n_kv_head"], b.bounded["n_head"].high, b.fixed["d_head"]
        ((1, 2, 4, 8), 32, 128)
    """
    spec, known = model.spec, dict(given)
    _check(model)
    if not any(known.get(k) for k in ("params", "flops", "days", "gpu_hours")):
        raise FieldError("--from", model.name, "needs the size to become", "add --params")
    known.setdefault("vocab_size", int(spec.vocab_size))
    sparse = bool(known.get("active") or known.get("moe"))
    fixed: dict[str, int] = dict(known.pop("fixed", {}))
    bounded: dict[str, Range] = dict(known.pop("bounded", {}))
    listed: dict[str, tuple[int, ...]] = dict(known.pop("listed", {}))
    asked_for = {*fixed, *bounded, *listed}
    for field, only in {"d_head": (int(spec.d_head),), "n_kv_head": divisors(int(spec.n_kv_head)),
                        **({"d_expert": (int(spec.d_ff),)} if sparse else {})}.items():  # fmt: skip
        asked = listed.pop(field, (fixed.pop(field),) if field in fixed else None)
        _allowed(field, asked, only, model.name)
        values = tuple(asked or only)
        if len(values) == 1:
            fixed[field] = values[0]
        else:
            listed[field] = values
    if "n_layer" not in {*fixed, *listed, *bounded}:
        # even depths of a large model, as of any other, and its own
        deep, step = int(spec.n_layer), depth_step(budget(**known))
        listed["n_layer"] = tuple(sorted({*range(step, deep + 1, step), deep}))
    for field in ("n_layer", "d_model", "n_head", *(() if sparse else ("d_ff",))):
        most = int(getattr(spec, field))
        wanted = [fixed[field]] if field in fixed else list(listed.get(field, ()))
        if field in bounded:
            wanted.append(int(bounded[field].low))
            bounded[field] = Range(bounded[field].low, min(bounded[field].high, most))
        elif not wanted:
            bounded[field] = Range(1, most)
        for value in wanted:
            if value > most:
                raise FieldError(field, value, f"is more than the {most:,} of {model.name}",
                                 "weights can be pruned, not grown")  # fmt: skip
    origin = dict.fromkeys(sorted({*fixed, *bounded, *listed} - asked_for), model.name)
    b = budget(**known, fixed=fixed, bounded=bounded, listed=listed, origin=origin)
    size = int(parameters(spec).total)
    if not sparse and b.params > size * (1 + b.tolerance) and b.vocab_size <= spec.vocab_size:
        raise FieldError("params", f"{b.params:,}", f"is more than the {size:,} of {model.name}",
                         "a dense model can only shrink; add --active for experts")  # fmt: skip
    return replace(b, assumed=(*b.assumed, f"from {model.name}: {LOSES}"))


def _check(model: catalog.Loaded) -> None:
    parts = [node for _, node in nodes(model.spec.decoder)]
    grouped = any(isinstance(n, GroupedAttention) for n in parts)
    dense = any(isinstance(n, Dense) for n in parts) and not has(model.spec, "n_expert")
    if model.spec.encoder is not None or not grouped or not dense or has(model.spec, "scan_chunk"):
        raise FieldError("--from", model.name, "is no dense decoder with grouped attention",
                         "pruning of other kinds is not covered")  # fmt: skip


def _allowed(field: str, asked: tuple[int, ...] | None, only: Sequence[int],
             name: str) -> None:  # fmt: skip
    for value in asked or ():
        if value not in only:
            raise FieldError(field, value, f"cannot come from {name}",
                             f"it can be {', '.join(map(str, only))}")  # fmt: skip


PRUNED = {"n_layer": "depth", "d_model": "width", "n_head": "heads", "n_kv_head": "kv_heads",
          "d_ff": "ffn"}  # fmt: skip


def steps(source: Spec, target: Spec) -> tuple[Step, ...]:
    """The steps from a model to a shape, in the order they are done.

    Example:
        >>> from scantling.spec import vary
        >>> spec = catalog.model("llama-3.1-8b")
        >>> [s.text() for s in steps(spec, vary(spec, n_layer=24, n_kv_head=4))]
        ['layers removed (32 to 24)', 'KV heads merged by their mean (8 to 4)']
    """
    found = []
    for field, change in PRUNED.items():
        if not has(target, field):
            continue
        before, after = int(getattr(source, field)), int(getattr(target, field))
        if before != after:
            found.append(Step(change, before, after))
    if has(target, "n_expert"):
        found.append(Step("experts", 1, int(read(target, "n_expert"))))
    before, after = int(source.vocab_size), int(target.vocab_size)
    if before != after:
        found.append(Step("vocab_smaller" if after < before else "vocab_larger", before, after))
    if source.tied != target.tied:
        found.append(Step("tied" if target.tied else "untied", source.tied, target.tied))
    return tuple(found)


class Origin(Struct, frozen=True):
    """What each shape of a front needs of a model's weights."""

    name: str
    spec: Spec
    choice: Candidate | None

    def to_json(self, candidates: tuple[Candidate, ...] = ()) -> dict[str, Any]:
        """The object ``from`` of ``design --json``: the steps to every shape."""
        return {
            "model": self.name, "note": LOSES,
            "steps": {
                c.name: [s.to_json() for s in steps(self.spec, c.spec)] for c in candidates
            },
        }  # fmt: skip

    def lines(self) -> list[str]:
        """The steps to the choice, and what each was seen to lose."""
        if self.choice is None:
            return [f"from {self.name}: none of what its weights can become keeps every limit"]
        told = [f"from {self.name} to {self.choice.name} ({LOSES}):"]
        for step in steps(self.spec, self.choice.spec):
            row = step.to_json()
            where = "measured elsewhere" if row["kind"] == "measured" else "assumed"
            told.append(f"  {step.text()}: {where}")
            told += [f"      {text}" for text in row["loses"]]
        return told
