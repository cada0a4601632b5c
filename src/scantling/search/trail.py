"""The way from a budget to a choice, step by step, so that a reviewer can follow it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from scantling.search.budget import Budget
from scantling.search.kept import SIZES, limits_of
from scantling.search.space import limits
from scantling.units import count_text

if TYPE_CHECKING:
    from scantling.search import Front

STEPS = ("given", "assumed", "space", "removed", "front", "equal", "choice")


def trail(front: Front) -> list[dict[str, Any]]:
    """Each step with its lines: given, assumed, space, removed, front, equal group, choice.

    Args:
        front: The answer of ``design``.

    Returns:
        ``[{"step": "given", "lines": [...]}, ...]`` in the order of ``STEPS``; without a choice
        it ends at what was removed.

    Example:
        >>> from scantling.search import design
        >>> told = trail(design(params=20_000_000, vocab_size=8192, baselines=()))
        >>> [one["step"] for one in told] == list(STEPS)
        True
    """
    from scantling.search import binding_axes

    b, swept = front.budget, front.swept
    axes = [
        f"{axis['axis']} {limits(*axis['bounds'])}".rstrip() + f": {axis['why']}"
        + (" (the choice lies on it)" if axis["binding"] else "")
        for axis in binding_axes(front)
    ]  # fmt: skip
    least = max(swept.considered, swept.evaluated)
    found = {
        "given": _given(b),
        "assumed": list(b.assumed) or ["nothing"],
        "space": [f"{least:,} shapes on {count_text(b.params)} parameters", *axes],
        "removed": [
            f"{count:,} by {name}"
            for name, count in sorted(swept.removed.items(), key=lambda p: (-p[1], p[0])) if count
        ],
    }  # fmt: skip
    if front.feasible:
        c, n = front.chosen, len(front.candidates)
        beaten = f"{len(swept.rows):,} of them are beaten by no other in every objective"
        found["front"] = [
            f"{swept.feasible:,} shapes keep every limit; {beaten}; {n} differ enough to be read"
        ]
        flat = "as far as the law knows they are one shape, so cost ranks them"
        told = f"{len(front.equal)} of the {n} have a loss the law cannot tell from the best"
        told += f", within {front.equal_within:.4f} nats: {flat}"
        found["equal"] = [
            told if c.priced else "no law prices the loss of encoder-decoders, so cost ranks all",
            *(f"{place}: {front.candidates[i].name}"
              for place, i in enumerate(front.groups[0][:5], 1)),
        ]  # fmt: skip
        found["choice"] = [f"{c.name}: {_rule(front)}", *_tight(front)]
    return [{"step": step, "lines": found[step]} for step in STEPS if step in found]


def _rule(front: Front) -> str:
    """How the choice was made."""
    b = front.budget
    if b.lexicographic:
        return f"the least of {', then of '.join(b.lexicographic)}"
    if b.weights:
        weights = ", ".join(f"{k} × {v:g}" for k, v in b.weights.items())
        return f"the knee of the whole front with the weights {weights}"
    return "the knee of loss and all costs among the shapes of equal loss"


def _given(b: Budget) -> list[str]:
    """What of a budget was said and not filled in."""
    filled = {text.partition(":")[0] for text in b.assumed}
    names = {"vocab_size": "vocab", "chip": "gpu", "n_gpu": "gpus", "train_context": "context",
             "serve_context": "context"}  # fmt: skip
    plain = {f.name: f.default for f in msgspec.structs.fields(Budget)}
    lines = []
    for name in Budget.__struct_fields__:
        value = getattr(b, name)
        if name == "assumed" or names.get(name, name) in filled or value in (plain[name], {}, ()):
            continue
        lines.append(f"{name}: {_shown(value)}")
    return lines


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_shown(v)}" for k, v in value.items())
    if hasattr(value, "low"):
        return limits(value.low, value.high)
    if isinstance(value, tuple):
        return ", ".join(map(_shown, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _tight(front: Front) -> list[str]:
    """The limits that the choice comes within 2 % of."""
    tight = [
        one.text() for one in limits_of(front.chosen)
        if one.name not in SIZES and any(
            edge and abs(one.value / edge - 1) < 0.02 for edge in (one.low, one.high))
    ]  # fmt: skip
    return [f"binding: {', '.join(tight)}"] if tight else ["binding: no limit within 2 %"]


def trail_lines(front: Front) -> list[str]:
    """The trail as text: a heading a step, its lines indented."""
    lines = []
    for one in trail(front):
        lines.append(one["step"])
        lines += [f"    {text}" for text in one["lines"]]
    return lines
