"""What published ablations say of a shape for one kind of task, beyond its loss."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from scantling.errors import FieldError
from scantling.search.candidate import Candidate
from scantling.search.shape_findings import axis_value
from scantling.sources import read_data
from scantling.spec import Full, GroupedAttention, LatentAttention, Layer, Spec
from scantling.spec.modules import (
    GatedDelta,
    KimiDelta,
    LinearAttention,
    Mamba1,
    Mamba2,
    RgLru,
    Rwkv,
)

TASKS = ("reasoning", "retrieval", "arithmetic", "classification")


class Record(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One published comparison, or a verdict of the lab; an entry of ``data/tasks.toml``."""

    kind: Literal["ablation", "lab"]
    statement: str
    evidence: str
    grade: Literal["A", "B", "C", "D"]
    sources: tuple[str, ...]
    axis: str | None = None
    low: float | None = None
    high: float | None = None
    prefers: Literal["deeper", "more KV heads"] | None = None


@functools.cache
def records() -> dict[str, tuple[Record, ...]]:
    """Every record by its task.

    Example:
        >>> records()["retrieval"][0].low
        0.25
    """
    return msgspec.convert(read_data("tasks.toml"), dict[str, tuple[Record, ...]])


def full_attention_share(spec: Spec) -> float | None:
    """The share of mixers that attend to the whole context, in a model that has recurrent ones.

    Returns:
        None where every mixer is attention: the records speak of hybrids.

    Example:
        >>> from scantling import catalog
        >>> full_attention_share(catalog.model("qwen3-next-80b-a3b"))
        0.25
        >>> full_attention_share(catalog.model("llama-3.1-8b")) is None
        True
    """
    share = {kind.name: _mixers(kind) for kind in spec.decoder.kinds}
    found = [share[name] for name in spec.decoder.expand()]
    if not any(recurrent for _, recurrent in found):
        return None
    return sum(whole for whole, _ in found) / sum(whole or other for whole, other in found)


RECURRENT = (LinearAttention, GatedDelta, KimiDelta, Mamba1, Mamba2, Rwkv, RgLru)


def _mixers(kind: Layer) -> tuple[bool, bool]:
    """Whether a layer attends to the whole context, and whether it carries a state."""
    modules = [branch.module for block in kind.blocks for branch in block.branches]
    whole = any(
        isinstance(m, LatentAttention) or (isinstance(m, GroupedAttention) and m.span == Full())
        for m in modules
    )
    return whole, any(isinstance(m, RECURRENT) for m in modules)


def _value(c: Candidate, axis: str) -> float | None:
    if axis == "full_attention_share":
        return full_attention_share(c.spec)
    return axis_value(c.dims(), c.features, axis)


PREFERS: dict[str, Callable[[Candidate], float]] = {
    "deeper": lambda c: c.dims()["n_layer"],
    "more KV heads": lambda c: c.dims().get("n_kv_head", 0),
}


class TaskAnswer(Struct, frozen=True):
    """The records of a task against a choice and the shapes whose loss equals its own."""

    task: str
    choice: Candidate
    equal: tuple[Candidate, ...]

    def to_json(self) -> dict[str, Any]:
        """The object ``task`` of ``design --json``."""
        rows = []
        for record in records().get(self.task, ()):
            row: dict[str, Any] = msgspec.to_builtins(record)
            value = None if record.axis is None else _value(self.choice, record.axis)
            row["value"] = value
            row["verdict"] = _verdict(record, value)
            row["speaks_for"] = None
            if record.prefers is not None and self.equal:
                best = max(self.equal, key=PREFERS[record.prefers])
                row["speaks_for"] = best.name
            rows.append(row)
        return {"task": self.task, "evidence": bool(rows), "records": rows}

    def lines(self) -> list[str]:
        """The same in words."""
        rows = self.to_json()["records"]
        if not rows:
            why = "no published comparison of shapes at matched size was found, so it moves nothing"
            return [f"task {self.task}: no evidence: {why}"]
        lines = [f"task {self.task}, from published comparisons alone; it moves no number above:"]
        for row in rows:
            lines.append(f"  {row['statement']}: {row['verdict']} (grade {row['grade']})")
            if row["speaks_for"]:
                same = row["speaks_for"] == self.choice.name
                which = "the choice itself" if same else row["speaks_for"]
                lines.append(f"      of the shapes of equal loss it speaks for {which}")
            lines.append(f"      {row['evidence']} [{', '.join(row['sources'])}]")
        return lines


def _verdict(record: Record, value: float | None) -> str:
    """Whether a choice keeps what a record asks."""
    if record.axis is None:
        return "a leaning" if record.prefers else "no rule of shape"
    if value is None:
        return "not about this shape"
    low = record.low is None or value >= record.low
    high = record.high is None or value <= record.high
    return f"kept ({value:.3g})" if low and high else f"NOT kept ({value:.3g})"


def answer(task: str, choice: Candidate, equal: Sequence[Candidate]) -> TaskAnswer:
    """What is known of a task for a choice.

    Args:
        task: ``reasoning``, ``retrieval``, ``arithmetic`` or ``classification``.
        choice: The chosen shape.
        equal: The shapes whose loss the law cannot tell from the best.

    Raises:
        FieldError: For another task.
    """
    if task not in TASKS:
        raise FieldError("--task", task, "is not known", f"use {', '.join(TASKS)}")
    return TaskAnswer(task, choice, tuple(equal))
