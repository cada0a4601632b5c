"""Why this number: what set it, what its neighbours cost, which known models share it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from scantling import catalog
from scantling.arith import round_up
from scantling.costs.count import solve_width
from scantling.errors import FieldError, ScantlingError
from scantling.laws import Bound, bounds, law
from scantling.quantity import Quantity
from scantling.search.budget import Budget
from scantling.search.candidate import (
    Candidate,
    binding,
    candidate,
    difference,
    power_of_two,
    tile_waste,
)
from scantling.search.space import HEAD_WIDTHS, TIE_ABOVE, split
from scantling.spec import Spec, divisors, has, read, vary
from scantling.units import bytes_text, count_text

FIELDS = ("n_layer", "d_model", "n_head", "n_kv_head", "d_head", "d_ff", "vocab_size", "tied")


class Neighbour(Struct, frozen=True):
    """The shape one step away along one field, with what changes."""

    value: int | bool
    loss: Quantity
    days: float
    """Relative change of training time."""
    kv: float
    """Relative change of KV bytes per token."""
    decode: float
    """Relative change of the time per output token."""
    params: int
    """Change of the total."""
    note: str = ""


class Reason(Struct, frozen=True):
    """Why one field has its value."""

    field: str
    value: int | bool
    set_by: str
    source: str
    neighbours: tuple[Neighbour, ...]
    shared_by: tuple[str, ...]

    def lines(self) -> list[str]:
        """The reason as lines of text: what set it, the price of each neighbour, who shares it."""
        found = [f"{self.set_by} [{self.source}]"]
        found += [_neighbour_text(self.field, n) for n in self.neighbours]
        if self.shared_by:
            found.append(f"as in {', '.join(self.shared_by)}")
        return found


def explain(c: Candidate, field: str, *, unaligned: bool = False) -> Reason:
    """Explain one field of a shape.

    Args:
        c: The shape.
        field: One of its dimensions, or ``tied``.
        unaligned: Also show the value one below, to see what alignment is about.

    Raises:
        FieldError: If the model has no such field.

    Example:
        >>> from scantling.search.budget import budget
        >>> c = candidate(catalog.model("llama-3.1-8b"), budget(params=8 * 10**9))
        >>> explain(c, "n_kv_head").shared_by[0]
        'mistral-7b-v0.1'
    """
    if field != "tied" and not has(c.spec, field):
        known = [f for f in FIELDS if f == "tied" or has(c.spec, f)]
        raise FieldError("why", field, "is no field of this model", f"use {', '.join(known)}")
    value: Any = c.spec.tied if field == "tied" else int(read(c.spec, field))  # type: ignore[arg-type]
    set_by, source = _set_by(c, field, value)
    near = []
    for other, changes, note in _steps(c, field, value, unaligned):
        try:
            near.append(_neighbour(c, other, changes, note, hold=field != "d_ff"))
        except ScantlingError:
            continue
    return Reason(field, value, set_by, source, tuple(near), _shared_by(c, field, value))


def set_by_all(c: Candidate) -> dict[str, list[str]]:
    """What set each field of a shape, without pricing its neighbours."""
    found = {}
    for field in FIELDS:
        if field == "tied" or has(c.spec, field):
            value = c.spec.tied if field == "tied" else int(read(c.spec, field))  # type: ignore[arg-type]
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
    c: Candidate, field: str, value: Any, unaligned: bool  # noqa: ANN401
) -> list[tuple[Any, dict[str, Any], str]]:
    """The neighbouring values of a field, with every field that moves along."""
    step = c.budget.multiple
    spec = c.spec
    found: list[tuple[Any, dict[str, Any], str]] = []
    if unaligned and field in {"d_model", "d_ff", "vocab_size"} and value > 2:
        found.append((value - 1, {field: value - 1}, "odd: rows not 16-byte aligned"))
    if field == "n_layer":
        found += [(v, {field: v}, "") for v in (value - 1, value + 1) if v > 0]
    elif field in {"d_model", "d_ff"}:
        around = (round_up(value, step) - step if value % step == 0 else value // step * step,
                  value // step * step + step)  # fmt: skip
        found += [(v, {field: v}, "") for v in around if v > 0]  # type: ignore[operator]
    elif field == "d_head":
        narrower = [h for h in reversed(HEAD_WIDTHS) if h < value]
        wider = [h for h in HEAD_WIDTHS if h > value]
        for widths in (narrower, wider):
            same = next((h for h in widths if _same_width(spec, value, h)), None)
            if same is not None:
                found.append((same, _same_width(spec, value, same), "same attention width"))
    elif field == "n_head":
        unit = int(read(spec, "n_kv_head")) if has(spec, "n_kv_head") else 1  # type: ignore[arg-type]
        found += [(v, {field: v}, "") for v in (value - unit, value + unit) if v > 0]
    elif field == "n_kv_head":
        found += [(v, {field: v}, "") for v in _around(divisors(int(spec.n_head)), value)]  # type: ignore[arg-type]
    elif field == "vocab_size":
        found.append((round_up(value + 1, 128), {field: round_up(value + 1, 128)}, ""))
    elif field == "tied":
        found.append((not value, {field: not value}, ""))
    return found


def _same_width(spec: Spec, old: int, new: int) -> dict[str, Any]:
    """Heads of another width with the same query and key width in all; empty if none has."""
    if not has(spec, "n_kv_head"):
        return {}
    heads, groups = int(spec.n_head) * old, int(spec.n_kv_head) * old  # type: ignore[arg-type]
    if heads % new or groups % new:
        return {}
    return {"d_head": new, "n_head": heads // new, "n_kv_head": groups // new}


def _around(known: list[int] | tuple[int, ...], value: int) -> list[int]:
    return [v for v in known if v < value][-1:] + [v for v in known if v > value][:1]


def _neighbour(
    c: Candidate, value: Any, changes: dict[str, Any], note: str, hold: bool  # noqa: ANN401
) -> Neighbour:
    """Price a neighbour; held at the same total by the FFN width where one can be solved."""
    spec: Spec = vary(c.spec, **changes)
    if hold and has(spec, "d_ff") and not has(spec, "n_expert"):
        width = int(c.dims()["d_ff"])
        multiple = min(power_of_two(width), c.budget.multiple)
        spec = vary(spec, d_ff=solve_width(spec, int(c.counted.total), multiple))  # type: ignore[arg-type]
    other = candidate(spec, c.budget)
    if note.startswith("odd"):
        waste = (tile_waste(spec) - tile_waste(c.spec)) * 100
        note = f"{note}; tiles of 128 compute {waste:+.1f} % for nothing"
    return Neighbour(
        value, difference(other, c), other.days / c.days - 1,
        other.kv_bytes_per_token / c.kv_bytes_per_token - 1 if c.kv_bytes_per_token else 0.0,
        float(other.decode.value_s / c.decode.value_s) - 1,
        int(other.counted.total - c.counted.total), note,
    )  # fmt: skip


def _neighbour_text(field: str, n: Neighbour) -> str:
    loss = n.loss
    half = ((loss.high or 0) - (loss.low or 0)) / 2
    parts = [f"loss {loss.value:+.4f} ± {half:.4f}"]
    for name, change in (("days", n.days), ("KV", n.kv), ("ms/token", n.decode)):
        if abs(change) >= 0.0005:
            parts.append(f"{name} {change:+.1%}")
    if abs(n.params) > 1e-4 * 1e9:
        sign = "+" if n.params > 0 else "−"
        parts.append(f"{sign}{count_text(abs(n.params))} parameters")
    shown = {True: "tied", False: "untied"}[n.value] if isinstance(n.value, bool) else n.value
    text = f"{shown} instead: {', '.join(parts)}"
    return f"{text} ({n.note})" if n.note else text


def _set_by(c: Candidate, field: str, value: Any) -> tuple[str, str]:  # noqa: ANN401
    """What set a field: the user, a rule, a bound, or the weighing of the objectives."""
    b = c.budget
    if field in b.fixed:
        return f"fixed by --fix {field}={value}", "you"
    if field in b.bounded and value in {b.bounded[field].low, b.bounded[field].high}:
        return f"on the bound of --bound {field}", "you"
    limit = {"n_kv_head": "n_kv_head", "d_head": "d_head"}.get(field)
    at = ""
    if limit is not None:
        one: Bound = bounds()[limit]
        if binding(value, one.low, one.high):
            at = f"; it lies on the bound {one.low:g} of its axis: {one.reason}"
    f = c.features
    if field == "n_layer":
        best = law(b.law).facts.constants.get("r0")
        text = f"depth against width: D/L {f.aspect:.0f}"
        if best:
            text += f", where the loss alone would take {best:.0f} and time alone a wider shape"
        stages = ", ".join(map(str, divisors(value)))
        return f"{text}; pipeline stages that divide it: {stages}", law(b.law).source
    if field == "d_model":
        return (f"the width that leaves D/L {f.aspect:.0f}; a multiple of {power_of_two(value)}, "
                f"so GEMM tiles of 128 are full"), "nvidia-matmul-guide"  # fmt: skip
    if field == "n_head":
        ratio = f.attention_width_ratio
        text = f"attention width H h/D {ratio:.2f}" if ratio is not None else "attention width"
        if split(b) > 1:
            text += f"; a multiple of {split(b)}, so heads split over a node"
        return text, "bian2025"
    if field == "n_kv_head":
        group = f.kv_group
        text = f"KV cache {bytes_text(c.kv_bytes_per_token)} a token"
        return (f"{text}, group {group:g}{at}" if group is not None else text), "ainslie2023"
    if field == "d_head":
        return f"head-width excess {_excess(value):.3f} nats at {value}{at}", "gadre2024"
    if field == "d_ff":
        ratio = f.mlp_attention_ratio
        text = f"solved so that the total is {count_text(c.counted.total)}, in steps of "
        text += f"{b.multiple * b.tp}"
        if ratio is not None:
            text += f"; MLP/attention {float(ratio):.2f}"
            one = bounds()["mlp_attention_ratio"]
            if binding(float(ratio), one.low, one.high):
                text += f", on its bound {one.low:g} to {one.high:g}"
        return text, "bian2025"
    if field == "vocab_size":
        share = value * c.dims()["d_model"] / c.counted.total
        return f"given; the table is {share:.1%} of the parameters", "you"
    share = c.dims()["vocab_size"] * c.dims()["d_model"] / c.counted.total
    asked = b.tied is not None
    rule = f"table {share:.1%} of the parameters; rule: tie above {TIE_ABOVE:.0%}"
    return ("asked for" if asked else rule), "you" if asked else "press2017"


def _excess(d_head: int) -> float:
    from scantling.laws import head_width_excess

    return float(head_width_excess(d_head))


def _shared_by(c: Candidate, field: str, value: Any) -> tuple[str, ...]:  # noqa: ANN401
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
