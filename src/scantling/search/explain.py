"""Why this number: what set it, what its neighbours cost, which known models share it."""

from __future__ import annotations

import math
from typing import Any

from msgspec import Struct

from scantling import catalog
from scantling.arith import round_up
from scantling.claims import claim
from scantling.costs.alignment import power_of_two
from scantling.costs.count import solve_width
from scantling.errors import FieldError, ScantlingError, nearest
from scantling.laws import bounds
from scantling.quantity import Quantity
from scantling.search.candidate import (
    DIMENSIONS,
    UNPRICED,
    Candidate,
    candidate,
    difference,
    scheduled,
)
from scantling.search.kept import limits_of, priced
from scantling.search.set_by import SET_BY
from scantling.search.shape_findings import axis_value
from scantling.search.shape_priors import shape_priors
from scantling.search.space import (
    HEAD_WIDTHS,
    depth_step,
    limits,
    said,
    split,
)
from scantling.spec import Spec, check, dimensions, divisors, has, read, vary
from scantling.units import count_text

FIELDS = (*DIMENSIONS, "tied")


UNALIGNED = "rows are not 16-byte aligned, which tensor cores want; no public table prices that"


class Neighbour(Struct, frozen=True):
    """The shape one step away along one field, with what changes."""

    value: int | bool
    loss: Quantity | None
    """None where no law and no prior prices the step."""
    days: float
    """Relative change of training time."""
    kv: float
    """Relative change of KV bytes per token."""
    decode: float
    """Relative change of the time per output token."""
    params: int
    """Change of the total."""
    note: str = ""
    more: dict[str, float] = {}
    """Relative change of every other objective the budget asks for."""
    breaks: tuple[str, ...] = ()
    """Limits of the budget the step would break."""

    def to_json(self) -> dict[str, Any]:
        """The neighbour as ``explain`` of ``design --json`` has it."""
        return {
            "value": self.value, "loss": None if self.loss is None else self.loss.to_json(),
            "training_days": self.days, "kv_bytes_per_token": self.kv, "decode_s": self.decode,
            **self.more, "params": self.params, "note": self.note, "breaks": list(self.breaks),
        }  # fmt: skip


class Reason(Struct, frozen=True):
    """Why one field has its value."""

    field: str
    value: int | bool
    set_by: str
    source: str
    neighbours: tuple[Neighbour, ...]
    shared_by: tuple[str, ...]
    rules: tuple[str, ...] = ()
    """Rules of thumb about the field, each with its verdict."""

    def to_json(self) -> dict[str, Any]:
        """The reason as ``explain`` of ``design --json`` has it."""
        return {
            "field": self.field, "value": self.value, "set_by": self.set_by, "source": self.source,
            "neighbours": [n.to_json() for n in self.neighbours], "rules": list(self.rules),
            "shared_by": list(self.shared_by),
        }  # fmt: skip

    def lines(self) -> list[str]:
        """The reason as lines of text: what set it, the price of each neighbour, who shares it."""
        found = [f"{self.set_by} [{self.source}]"]
        found += [_neighbour_text(n) for n in self.neighbours]
        if self.shared_by:
            found.append(f"as in {', '.join(self.shared_by)}")
        return found


def explain(c: Candidate, field: str, *, existing: bool = False) -> Reason:
    """Explain one field of a shape.

    Args:
        c: The shape.
        field: One of its dimensions, or ``tied``.
        existing: The shape is somebody's model and no answer of a search: say what its value
            implies, and also show the value one below, to see what alignment is about.

    Raises:
        FieldError: If the model has no such field.

    Example:
        >>> from scantling.search.budget import budget
        >>> c = candidate(catalog.model("llama-3.1-8b"), budget(params=8 * 10**9))
        >>> "mistral-7b-v0.3" in explain(c, "d_ff", existing=True).shared_by
        True
    """
    if field != "tied" and field not in dimensions(c.spec):
        known = [*dimensions(c.spec), "tied"]
        alike = nearest(HF_NAMES.get(field, field), known, 1)
        hint = f"did you mean {alike[0]}?" if alike else f"use {', '.join(known)}"
        raise FieldError("--why", field, "is no field of this model", hint)
    value: Any = c.spec.tied if field == "tied" else int(read(c.spec, field))
    set_by, source = _is(c, field, value) if existing else _set_by(c, field, value)
    near: list[Neighbour] = []
    alone = existing or not (field in BY_WIDTH or (field == "d_ff" and scheduled(c.spec)))
    for other, changes, note in _steps(c, field, value, existing) if alone else ():
        try:
            check(vary(c.spec, **changes))
            hold = field not in {"d_ff", *SPARSE}
            near.append(_neighbour(c, other, changes, note, hold=hold, existing=existing))
        except ScantlingError:
            continue
    return Reason(field, value, set_by, source, tuple(near), _shared_by(c, field, value),
                  rules(c, field))  # fmt: skip


CLAIMS = {
    "n_layer": ("hundred", "critical-depth"),
    "d_model": ("hundred", "width-grows-faster"), "vocab_size": ("vocabulary-root",),
    "tied": ("tie-below",),
}  # fmt: skip
"""The rules of thumb about a field (``scantling claims``)."""

BOUNDS = {
    "n_kv_head": ("n_kv_head", "kv_group"), "n_head": ("attention_width_ratio",),
    "d_head": ("d_head",), "d_ff": ("mlp_attention_ratio", "ffn_width_ratio"),
}  # fmt: skip
"""The bounds of axes that a field moves along."""


def rules(c: Candidate, field: str) -> tuple[str, ...]:
    """Rules about a field: rules of thumb with their verdict, and bounds where evidence ends."""
    found = []
    for name in CLAIMS.get(field, ()):
        one = claim(name)
        told = f"{one.statement}: {one.verdict}; {one.right}. {one.found}"
        found.append(f"{told} [{', '.join(one.sources)}]")
    for name in BOUNDS.get(field, ()):
        bound, value = bounds()[name], axis_value(c.dims(), c.features, name)
        if value is not None:
            whole = name == "n_kv_head" and value == c.dims()["n_head"]  # each head has its own
            kept = "kept" if whole or bound.holds(value) else "not kept"
            found.append(f"{name} {limits(bound.low, bound.high)}: {kept} at {value:.3g}. "
                         f"{bound.reason} [{', '.join(bound.sources)}]")  # fmt: skip
    if field in {"n_layer", "d_model"}:
        found += [
            f"{one.title}, {one.formula}: {one.verdict}. {one.evidence} [{', '.join(one.sources)}]"
            for one in shape_priors().values()
        ]
    return tuple(found)


HF_NAMES = {
    "hidden_size": "d_model", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
    "num_key_value_heads": "n_kv_head", "head_dim": "d_head", "intermediate_size": "d_ff",
    "num_local_experts": "n_expert", "num_experts_per_tok": "top_k", "sliding_window": "window",
}  # fmt: skip
"""What people type for a field, and its name here."""

BY_WIDTH = {"n_key_head", "n_value_head", "d_inner", "n_ssm_head", "d_state"}
"""Fields of mixers with a state, which the width decides."""
SPARSE = {"n_expert", "top_k", "d_expert", "d_shared"}
"""Fields whose neighbours change the size: no dense FFN width can hold it."""


def _is(c: Candidate, field: str, value: Any) -> tuple[str, str]:
    """What the value of an existing model implies."""
    d, f = c.dims(), c.features
    total = int(c.counted.total)
    if field == "d_ff":
        text = f"F/D {value / d['d_model']:.3g}"
        if f.mlp_attention_ratio is not None:
            text += f", MLP/attention {float(f.mlp_attention_ratio):.2f}"
        return text + f"; a multiple of {power_of_two(value)}", "bian2025"
    if field == "vocab_size":
        share = value * d["d_model"] / total
        return f"the table is {share:.1%} of the parameters; a multiple of {power_of_two(value)}", \
            "nvidia-matmul-guide"  # fmt: skip
    if field == "tied":
        share = d["vocab_size"] * d["d_model"] / total
        return f"the table is {share:.1%} of the parameters", "press2017"
    if field == "d_model":
        text = f"D/L {f.aspect:.0f}; a multiple of {power_of_two(value)}"
        if "n_head" in d and "d_head" in d and d["n_head"] * d["d_head"] == value:
            text += f"; {d['n_head']} heads of {d['d_head']}"
        return text, "nvidia-matmul-guide"
    if field in SET_BY and field not in BY_WIDTH:
        return SET_BY[field](c, value)
    return f"{count_text(value)}; a multiple of {power_of_two(int(value))}", "nvidia-matmul-guide"


def set_by_all(c: Candidate) -> dict[str, list[str]]:
    """What set each field of a shape, without pricing its neighbours."""
    found = {}
    for field in FIELDS:
        if field == "tied" or has(c.spec, field):
            value = c.spec.tied if field == "tied" else int(read(c.spec, field))
            set_by, source = _set_by(c, field, value)
            found[field] = [f"{set_by} [{source}]"]
    return found


def explain_all(c: Candidate) -> dict[str, list[str]]:
    """Reasons for every field of a shape, as lines."""
    return {
        field: explain(c, field).lines()
        for field in FIELDS
        if field == "tied" or has(c.spec, field)
    }


def _steps(
    c: Candidate, field: str, value: Any, existing: bool
) -> list[tuple[Any, dict[str, Any], str]]:
    """The neighbouring values of a field, with every field that moves along."""
    step = c.budget.multiple * (c.budget.tp if field == "d_ff" else 1)
    spec = c.spec
    found: list[tuple[Any, dict[str, Any], str]] = []
    if existing and field in {"d_model", "d_ff", "vocab_size"} and value > 2:
        found.append((value - 1, {field: value - 1}, UNALIGNED))
    if field in {"n_layer", "n_encoder_layer"}:
        by = 1 if existing else depth_step(c.budget)
        found += [(v, {field: v}, "") for v in (value - by, value + by) if v > 0]
    elif field in {"d_model", "d_ff"}:
        around = (round_up(value, step) - step if value % step == 0 else value // step * step,
                  value // step * step + step)  # fmt: skip
        found += [(v, {field: v}, "") for v in around if v > 0]
    elif field == "d_head":
        narrower = [h for h in reversed(HEAD_WIDTHS) if h < value]
        wider = [h for h in HEAD_WIDTHS if h > value]
        for widths in (narrower, wider):
            same = next((h for h in widths if _same_width(spec, value, h)), None)
            if same is not None:
                found.append((same, _same_width(spec, value, same), "same attention width"))
    elif field == "n_head":
        unit = int(read(spec, "n_kv_head")) if has(spec, "n_kv_head") else 1
        own = not existing and unit == value  # a KV head each, and so the neighbours
        unit = unit if existing else math.lcm(1 if own else unit, split(c.budget))
        found += [(v, {field: v} | ({"n_kv_head": v} if own else {}), "")
                  for v in (value - unit, value + unit) if v > 0]  # fmt: skip
    elif field == "n_kv_head":
        found += [(v, {field: v}, "") for v in _around(divisors(int(spec.n_head)), value)]
    elif field == "vocab_size":
        found.append((round_up(value + 1, 128), {field: round_up(value + 1, 128)}, ""))
    elif field == "tied":
        found.append((not value, {field: not value}, ""))
    elif field in {"n_expert", "d_expert", "top_k"}:
        by = {"n_expert": 8, "d_expert": step, "top_k": 1}[field]
        found += [(v, {field: v}, "") for v in (value - by, value + by) if v > 0]
    else:  # experts, ranks, windows: half and double
        found += [(v, {field: v}, "") for v in (value // 2, value * 2) if v > 0]
    return found


def _same_width(spec: Spec, old: int, new: int) -> dict[str, Any]:
    """Heads of another width with the same query and key width in all; empty if none has."""
    if not has(spec, "n_kv_head"):
        return {}
    heads, groups = int(spec.n_head) * old, int(spec.n_kv_head) * old
    if heads % new or groups % new:
        return {}
    return {"d_head": new, "n_head": heads // new, "n_kv_head": groups // new}


def _around(known: list[int] | tuple[int, ...], value: int) -> list[int]:
    return [v for v in known if v < value][-1:] + [v for v in known if v > value][:1]


def _neighbour(
    c: Candidate, value: Any, changes: dict[str, Any], note: str, hold: bool, existing: bool
) -> Neighbour:
    """Price a neighbour; held at the same total by the FFN width where one can be solved."""
    spec: Spec = vary(c.spec, **changes)
    if hold and has(spec, "d_ff") and not has(spec, "n_expert") and not scheduled(spec):
        width = int(c.dims()["d_ff"])
        multiple = min(power_of_two(width), c.budget.multiple)
        spec = vary(spec, d_ff=solve_width(spec, int(c.counted.total), multiple))
    other = candidate(spec, c.budget)
    loss = difference(other, c) if c.priced and not UNPRICED & set(changes) else None
    return Neighbour(
        value, loss, other.days / c.days - 1,
        other.kv_bytes_per_token / c.kv_bytes_per_token - 1 if c.kv_bytes_per_token else 0.0,
        float(other.decode.value_s / c.decode.value_s) - 1,
        int(other.counted.total - c.counted.total), note, _others(c, other),
        () if existing else tuple(one.text() for one in limits_of(other) if not one.kept),
    )  # fmt: skip


def _others(c: Candidate, other: Candidate) -> dict[str, float]:
    """Relative change of the objectives beyond loss, days, KV and time per token."""
    before = priced(c)
    names = [name for name in before if name not in SHOWN]
    after = priced(other) if names else {}
    return {name: float(after[name] / before[name]) - 1 for name in names if before[name]}


SHOWN = ("loss", "training_days", "kv_bytes_per_token", "decode_s")
"""Objectives that a neighbour has a field of its own for."""


def _neighbour_text(n: Neighbour) -> str:
    loss = n.loss
    parts = ["not priced"]
    if loss is not None:
        half = ((loss.high or 0) - (loss.low or 0)) / 2
        parts = [f"{loss.value:+.4f} ± {half:.4f}"]
    changed = (("days", n.days), ("KV", n.kv), ("ms/token", n.decode), *n.more.items())
    for name, change in changed:
        if abs(change) >= 0.0005:
            parts.append(f"{name} {change:+.1%}")
    if abs(n.params) > 1e-4 * 1e9:
        sign = "+" if n.params > 0 else "-"
        parts.append(f"{sign}{count_text(abs(n.params))} parameters")
    shown = {True: "tied", False: "untied"}[n.value] if isinstance(n.value, bool) else n.value
    text = f"{shown} instead: loss {', '.join(parts)}"
    if n.note:
        text += f" ({n.note})"
    return f"{text}; breaks {' and '.join(n.breaks)}" if n.breaks else text


def _set_by(c: Candidate, field: str, value: Any) -> tuple[str, str]:
    """What set a field: the user, a rule, a bound, or the weighing of the objectives."""
    b = c.budget
    if field in b.fixed:
        return f"fixed by {said(b, field, '--fix')}" + f"={value}" * (field not in b.origin), "you"
    if field in b.bounded and value in {b.bounded[field].low, b.bounded[field].high}:
        return f"on the bound of {said(b, field, '--bound')}", "you"
    return SET_BY[field](c, value)


def _shared_by(c: Candidate, field: str, value: Any) -> tuple[str, ...]:
    """Up to four known models with the same value, nearest in size first."""
    total = int(c.counted.total)
    found = []
    for entry in sorted(catalog.named().values(), key=lambda m: abs(m.parameters - total)):
        spec = catalog.loaded(entry.name).spec
        if entry.name == c.name or spec == c.spec:
            continue
        try:
            same = (spec.tied if field == "tied" else read(spec, field)) == value
        except ScantlingError:
            continue
        if same:
            found.append(entry.name)
        if len(found) == 4:
            break
    return tuple(found)
