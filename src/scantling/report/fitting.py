"""A fitted law as lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scantling.units import count_text

if TYPE_CHECKING:
    from scantling.laws.fit import Fit


def fit_lines(found: Fit) -> list[str]:
    """What was fitted, how sure each constant is, and what runs held out were missed by."""
    facts = found.law.facts
    lines = [f"warning: {w}" for w in found.warnings]
    lines += [f"{facts.title} ({found.form}), fitted to {found.rows} runs"]
    for name, (low, high) in found.intervals.items():
        lines.append(f"  {name:8} {facts.constants[name]:10.4g}   90 % {low:.4g} to {high:.4g}")
    lines.append(f"mean absolute error {found.mae:.4f} nats a token in sample; held out:")
    for name, one in found.holdout.items():
        lines.append(
            f"  {name.replace('_', ' '):13} {one.mae:.4f}, bias {one.bias:+.4f}, worst of "
            f"{one.groups} groups {one.worst:.4f}, 90 % interval holds {one.coverage:.0%}"
        )
    e = facts.errors
    lines.append(
        f"90 % interval of a loss of this recipe: ±{e.interval_base:.3f} inside the runs, ×"
        f"{1 + e.interval_growth:.2f} a doubling outside, and {e.scatter_factor:.2f} times the "
        f"scatter of the refits; of a difference of equal sizes ±{e.difference_base:.3f} and that "
        "of their difference"
    )
    for axis, (low, high) in facts.domain.items():
        lines.append(f"  {axis}: {count_text(low)} to {count_text(high)}")
    return lines
