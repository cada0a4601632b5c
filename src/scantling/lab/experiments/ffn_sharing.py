"""Feed-forwards shared between layers."""

from __future__ import annotations

from math import isqrt
from typing import Any

from msgspec.structs import replace

from scantling.costs.count import parameters, solve_width
from scantling.lab.experiments.registry import Preset, experiment
from scantling.lab.match import small
from scantling.lab.study.design import Rates, Shape, Study
from scantling.spec import Branch, Dense, Spec, vary
from scantling.spec.vary import rewrite


@experiment("ffn-sharing", "can layers share one feed-forward?", 8)
def ffn_sharing(preset: Preset, times: int = 1) -> Study:
    """One feed-forward for all layers or for pairs, against one each.

    Sharing saves parameters and no FLOPs: the arm as wide again as it must be for equal parameters
    costs several times the FLOPs of a feed-forward each.
    """
    quick = preset == "quick"
    wide_by = isqrt(times)
    own = small(6, 48 * wide_by, 128 * wide_by)
    one = shared(own, 1)
    wide = vary(one, d_ff=solve_width(one, parameters(own).total, 8))
    return Study(
        name="ffn-sharing",
        question="What does a feed-forward shared by layers lose, at equal tokens?",
        shapes=(
            Shape("one each", own, matched={"params": 0.0}),
            Shape("one for all", one),
            Shape("one for two", shared(own, 3)),
            Shape("one for all made wide", wide, matched={
                "params": round(float(parameters(wide).total / parameters(own).total) - 1, 4)}),
        ),
        data="code",
        tokens=200_000 if quick else 800_000,
        least_tokens=60_000,
        rates=Rates(3, 2.5, 2) if quick else Rates(5, 2.2, 2),
        seeds=3 if quick else 5,
        expected=(
            "One for all loses clearly; one for two loses little, often inside the noise; one for "
            "all made wide enough for equal parameters is level or better, for more FLOPs."
        ),
        sources=("one-wide-ffn2023", "mobilellm2024"),
        caveat="Equal parameters and equal FLOPs give opposite answers.",
    )  # fmt: skip


def shared(spec: Spec, copies: int) -> Spec:
    """A model whose layers share so many feed-forwards.

    Example:
        >>> int(parameters(shared(small(6, 48, 128), 1)).by_part["ffn"])
        18432
    """

    def change(node: Any) -> Any:
        if isinstance(node, Branch) and isinstance(node.module, Dense):
            return replace(node, copies=copies)
        return node

    found: Spec = rewrite(spec, change)
    return found
