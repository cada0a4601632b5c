"""What is said of a shape wherever it runs: rules of lint, bounds of axes, what loss misses."""

from __future__ import annotations

from scantling.laws import Features, bounds, unseen
from scantling.rules import Setting, Subject, lint
from scantling.search.peers import width_ratios
from scantling.search.space import limits
from scantling.spec import Spec


def rule_findings(spec: Spec, context: int) -> list[dict[str, str]]:
    """What the rules of lint say of a shape, wherever it will run.

    Example:
        >>> from scantling import catalog
        >>> from scantling.spec import vary
        >>> [f["code"] for f in rule_findings(vary(catalog.model("llama-3.1-8b"), d_ff=14368), 8)]
        ['SC302']
    """
    report = lint(Subject(name="spec", setting=Setting(context=context), spec=spec))
    return [{"code": f.code, "level": f.level, "field": f.field, "message": f.message}
            for f in report.findings]  # fmt: skip


def axis_findings(dims: dict[str, int], features: Features) -> list[dict[str, str]]:
    """Axes on or outside the bounds of their evidence, and what loss does not see."""
    found: list[dict[str, str]] = []

    def add(code: str, level: str, field: str, message: str) -> None:
        found.append({"code": code, "level": level, "field": field, "message": message})

    for key, limit in bounds().items():
        value, field = axis_value(dims, features, key), limit.field
        if value is None or (key == "attention_width_ratio" and "kv_rank" in dims):
            continue  # the evidence on that is of grouped attention
        where = f"{key} {value:.3g}"
        if not limit.holds(value):
            add(
                "OUTSIDE",
                "warning",
                field,
                f"{where} lies outside its axis ({limits(limit.low, limit.high)}): {limit.reason}",
            )
        elif binding(key, value, limit.low, limit.high):
            add("ON-BOUND", "note", field,
                f"{where} lies on the bound of its axis ({limits(limit.low, limit.high)}): "
                f"{limit.reason}")  # fmt: skip
    return found + unseen_findings(features)


def unseen_findings(features: Features) -> list[dict[str, str]]:
    """What the loss of a shape does not see."""
    return [{"code": "UNSEEN", "level": "note", "field": one.field, "message": one.text}
            for one in unseen(features).values()]  # fmt: skip


def axis_value(dims: dict[str, int], features: Features, axis: str) -> float | None:
    """Where a shape lies on an axis; F/D only where every layer has a dense FFN."""
    if axis == "ffn_width_ratio":
        dense = features.mlp_attention_ratio is not None
        return dims["d_ff"] / dims["d_model"] if dense and "d_ff" in dims else None
    found = width_ratios(dims).get(axis, getattr(features, axis, None))
    return None if found is None else float(found)


def binding(axis: str, value: float, low: float | None, high: float | None) -> bool:
    """Whether a value lies on the bound of an axis, within 2 % of it.

    A group of one is no bound: it is the end of its axis, a KV head for every query head. Nor is
    the one value of an axis that is set by rule.
    """
    if (axis == "kv_group" and value == 1) or (low is not None and low == high):
        return False
    return any(edge is not None and abs(value / edge - 1) < 0.02 for edge in (low, high))
