"""Which limits of its budget one shape keeps, with what each allows and needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from scantling.search.axes import bounded_axes
from scantling.search.candidate import Candidate
from scantling.search.objectives import limits, names
from scantling.search.shape_findings import axis_value
from scantling.search.space import limit, split
from scantling.units import bytes_text, count_text, seconds_text


class Limit(NamedTuple):
    """A limit on one shape."""

    name: str
    value: float
    low: float | None
    high: float | None
    unit: str = ""

    @property
    def kept(self) -> bool:
        """Whether the shape keeps it."""
        over = self.high is not None and self.value > self.high
        return not over and not (self.low is not None and self.value < self.low)

    def text(self) -> str:
        """The limit in words, with what is allowed and what the shape has."""
        if self.name in SIZES:
            wanted = ((self.low or 0) + (self.high or 0)) / 2
            off, room = self.value / wanted - 1, (self.high or 0) / wanted - 1
            what = SIZES[self.name]
            return f"the {what} ({off:+.2%} of {count_text(wanted)}, ±{room:.2%} allowed)"
        if self.name.startswith("split"):
            return f"the {self.name}, {self.value:g} left over"
        show = SHOW.get(self.unit, "{:.4g}".format)
        most, least = (None if end is None else show(end) for end in (self.high, self.low))
        allowed = f"{least} to {most}" if least and most else f"at most {most}" if most else (
            f"at least {least}")  # fmt: skip
        return f"{self.name} {allowed} ({show(self.value)})"


SIZES = {"parameters": "size", "active parameters": "active size"}
SHOW: dict[str, Callable[[float], str]] = {"bytes": bytes_text, "s": seconds_text}


def priced(c: Candidate) -> dict[str, Any]:
    """Every objective of the budget for one shape, and every cost that it limits.

    Example:
        >>> from scantling import catalog
        >>> from scantling.search.budget import budget
        >>> from scantling.search.candidate import candidate
        >>> c = candidate(catalog.model("llama-3.1-8b"), budget(params=8 * 10**9))
        >>> priced(c)["training_days"] == c.days
        True
    """
    costs, b = c.costs, c.budget
    asked = [one.of for one in limits(b) if one.of not in SAME]
    return {name: getattr(costs, name) for name in dict.fromkeys((*names(b), *asked))}


SAME = ("loss", "gpu_hours")
"""Costs that limits bound and that others stand for: hours are days."""


def size_limit(c: Candidate) -> Limit:
    """The total parameters asked for."""
    b = c.budget
    low, high = b.params * (1 - b.tolerance), b.params * (1 + b.tolerance)
    return Limit("parameters", float(c.counted.total), low, high)


def limits_of(c: Candidate) -> list[Limit]:
    """Every limit of a budget on a shape: size, costs, axes no objective prices, heads.

    Example:
        >>> from scantling import catalog
        >>> from scantling.search.budget import budget
        >>> from scantling.search.candidate import candidate
        >>> c = candidate(catalog.model("qwen2.5-7b"), budget(params="7.6B", tp=8))
        >>> [one.name for one in limits_of(c) if not one.kept]
        ['mlp_attention_ratio', 'split of query heads over 8']
    """
    b = c.budget
    found = [size_limit(c)]
    if b.active is not None:
        low, high = (b.active * (1 + sign * b.active_tolerance) for sign in (-1, 1))
        found.append(Limit("active parameters", float(c.counted.active), low, high))
    costs = c.costs
    found += [Limit(one.name, float(getattr(costs, one.of)), None, one.most, one.unit)
              for one in limits(b)]  # fmt: skip
    dims = c.dims()
    for name in {**dict.fromkeys(bounded_axes(b)), "aspect": None}:
        value = axis_value(dims, c.features, name)
        axis = limit(b, name)
        least = axis.low
        if name == "n_kv_head" and least is not None and not axis.opened:
            least = min(least, dims["n_head"])  # fewer heads than that keep one each
        if value is not None and (axis.low is not None or axis.high is not None):
            found.append(Limit(name, value, least, axis.high))
    over = split(b)
    if over > 1 and "n_head" in dims:
        found.append(Limit(f"split of query heads over {over}", dims["n_head"] % over, None, 0))
        kv = dims.get("n_kv_head", over)
        left = 0 if kv % over == 0 or over % kv == 0 else kv % over
        found.append(Limit(f"split of KV heads over {over}", left, None, 0))
    return found
