"""Shape priors of the field, asked for by name: what each says, and what it costs.

None is applied unasked. A prior narrows the depth or the width over depth of a search; the answer
says what that cost against the free choice, and what public evidence says of the prior.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from scantling.claims import Verdict
from scantling.errors import UnknownNameError
from scantling.search.budget import Budget, Range
from scantling.search.candidate import Candidate, difference
from scantling.search.size import body_of
from scantling.sources import read_data


class ShapePrior(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prior; a table of ``data/shape_priors.toml``."""

    title: str
    form: Literal["aspect", "depth", "depth-power", "width-exp"]
    formula: str
    constants: dict[str, float]
    body: tuple[float, float]
    """Body parameters it was stated or measured for."""
    verdict: Verdict
    evidence: str
    sources: tuple[str, ...]
    spread: float = 1.0
    """Legal shapes are taken so far around the formula, as a factor."""

    def range(self, body: float) -> tuple[str, float, float]:
        """The axis it narrows, and the range at a body of so many parameters.

        Example:
            >>> axis, low, high = shape_priors()["depth-power"].range(7e9)
            >>> axis, round(math.sqrt(low * high), 1)  # 22.4 · 7^0.2
            ('n_layer', 33.1)
        """
        c = self.constants
        if self.form in {"aspect", "depth"}:
            axis = "aspect" if self.form == "aspect" else "n_layer"
            return axis, c["low"] / self.spread, c["high"] * self.spread
        if self.form == "depth-power":
            depth = c["a"] * (body / 1e9) ** c["b"]
        else:
            depth = depth_of_width_law(body, c["a"], c["b"])
        return "n_layer", depth / self.spread, depth * self.spread


def depth_of_width_law(body: float, a: float, b: float) -> float:
    """The depth L where 12 L D² with ln D = a + b L is the body.

    ln(12 L) + 2 (a + b L) grows with L, so bisection finds the one root.

    Example:
        >>> L = depth_of_width_law(12 * 48 * math.exp(2 * (5.039 + 0.0555 * 48)), 5.039, 0.0555)
        >>> round(L, 6)
        48.0
    """
    low, high = 1e-6, 1e4
    for _ in range(200):
        middle = (low + high) / 2
        size = math.log(12 * middle) + 2 * (a + b * middle)
        low, high = (middle, high) if size < math.log(body) else (low, middle)
    return low


@functools.cache
def shape_priors() -> dict[str, ShapePrior]:
    """Every shape prior by its name.

    Example:
        >>> shape_priors()["aspect-96"].formula
        'D = 96 L'
    """
    return msgspec.convert(read_data("shape_priors.toml"), dict[str, ShapePrior])


def shape_prior(name: str) -> ShapePrior:
    """One prior.

    Raises:
        UnknownNameError: If there is none of that name.
    """
    if name not in shape_priors():
        raise UnknownNameError("prior", name, shape_priors())
    return shape_priors()[name]


def approx_body(b: Budget) -> float:
    """The body of a budget's size before any shape is known (``size.body_of``), of what is active.

    Example:
        >>> from scantling.search.budget import budget
        >>> 5.5e9 < approx_body(budget(params="7B")) < 6.6e9
        True
    """
    return body_of(float(b.active or b.params), b.vocab_size, b.tied)


def narrowed(b: Budget) -> Budget:
    """A budget with its prior as a bound; the same budget where it has none or is narrowed.

    An axis that the user fixed, bounded or listed stays as it is, and the answer says so.

    Example:
        >>> from scantling.search.budget import budget
        >>> round(narrowed(budget(params="7B", prior="aspect-96")).bounded["aspect"].high, 1)
        100.8
    """
    if b.prior is None:
        return b
    axis, low, high = shape_prior(b.prior).range(approx_body(b))
    if axis == "n_layer":
        step = 2 if b.params >= 10**9 else 1
        first, last = math.ceil(low / step - 1e-9) * step, math.floor(high / step + 1e-9) * step
        if first > last:  # no such depth in the range: the nearest one
            first = last = max(step, round(math.sqrt(low * high) / step) * step)
        low, high = first, last
    bound = Range(low, high)
    if axis in b.bounded or axis in b.fixed or axis in b.listed:
        return b
    return replace(b, bounded={**b.bounded, axis: bound})


def without(b: Budget) -> Budget:
    """The free budget behind a narrowed one."""
    if b.prior is None:
        return b
    axis, _, _ = shape_prior(b.prior).range(approx_body(b))
    free = replace(b, prior=None)
    if axis in b.bounded and narrowed(replace(b, bounded=_less(b.bounded, axis))) == b:
        free = replace(free, bounded=_less(b.bounded, axis))
    return free


def _less(found: dict[str, Range], axis: str) -> dict[str, Range]:
    return {k: v for k, v in found.items() if k != axis}


class PriorPrice(Struct, frozen=True):
    """What a prior narrowed, and what its choice costs over the free one."""

    name: str
    budget: Budget
    choice: Candidate | None
    free: Candidate | None

    def to_json(self) -> dict[str, Any]:
        """The object ``prior`` of ``design --json``."""
        prior = shape_prior(self.name)
        body = approx_body(self.budget)
        axis, low, high = prior.range(body)
        used = self.budget.bounded.get(axis)
        applied = without(self.budget) != replace(self.budget, prior=None)
        found: dict[str, Any] = {
            "name": self.name, "title": prior.title, "formula": prior.formula, "axis": axis,
            "range": [used.low, used.high] if used else [low, high],
            "applied": applied,
            "outside_domain": not prior.body[0] <= body <= prior.body[1],
            "domain": list(prior.body), "verdict": prior.verdict, "evidence": prior.evidence,
            "sources": list(prior.sources), "choice": None, "free": None,
        }  # fmt: skip
        for key, c in (("choice", self.choice), ("free", self.free)):
            if c is not None:
                found[key] = {"name": c.name, "dims": c.dims(), "days": c.days,
                              "kv_bytes_per_token": c.kv_growth,
                              "tpot_seconds": float(c.decode.value_s)}  # fmt: skip
        if self.choice is not None and self.free is not None:
            one, other = self.choice, self.free
            found["cost"] = {
                "loss": difference(one, other).to_json(),
                "days": one.days / other.days - 1,
                "kv_bytes_per_token": one.kv_bytes_per_token / other.kv_bytes_per_token - 1
                if other.kv_bytes_per_token else 0.0,
                "tpot_seconds": float(one.decode.value_s / other.decode.value_s) - 1,
            }  # fmt: skip
        return found

    def lines(self) -> list[str]:
        """The same in words."""
        found = self.to_json()
        low, high = found["range"]
        what = "D/L" if found["axis"] == "aspect" else "n_layer"
        lines = [f"prior {self.name} ({found['formula']}): {what} {low:.4g} to {high:.4g}"]
        if not found["applied"]:
            fixed = self.budget.bounded.get(found["axis"]) is None
            lines[0] += ", overruled by what you fixed" if fixed else ", as you bounded it"
        if found["outside_domain"]:
            first, last = found["domain"]
            lines.append(f"  outside what it was stated for: bodies of {first:.3g} to {last:.3g}")
        if "cost" in found:
            c, free = found["cost"], found["free"]
            loss = c["loss"]
            half = (loss["high"] - loss["low"]) / 2
            lines.append(
                f"  against the free choice {free['name']}: loss {loss['value']:+.4f} ± "
                f"{half:.4f}, days {c['days']:+.1%}, KV {c['kv_bytes_per_token']:+.1%}, ms/token "
                f"{c['tpot_seconds']:+.1%}"
            )
        elif self.choice is None:
            lines.append("  no shape keeps it and every limit")
        lines.append(f"  evidence, {found['verdict']}: {found['evidence']} "
                     f"[{', '.join(found['sources'])}]")  # fmt: skip
        return lines


def prior_lines(b: Budget | None = None) -> list[str]:
    """Every prior with its formula and verdict, and what it gives at a budget's size."""
    lines = []
    for name, prior in shape_priors().items():
        at = ""
        if b is not None:
            axis, low, high = prior.range(approx_body(b))
            at = f"; here {'D/L' if axis == 'aspect' else axis} {low:.3g} to {high:.3g}"
        lines.append(f"{name}: {prior.formula} ({prior.title}){at}")
        lines.append(f"    {prior.verdict}: {prior.evidence} [{', '.join(prior.sources)}]")
    return lines


def priors_json(b: Budget | None = None) -> list[dict[str, Any]]:
    """Every prior as ``design --prior list --json`` prints it."""
    found = []
    for name, prior in shape_priors().items():
        row = {"name": name, **msgspec.to_builtins(prior)}
        if b is not None:
            axis, low, high = prior.range(approx_body(b))
            row["here"] = {"axis": axis, "range": [low, high]}
        found.append(row)
    return found
