"""Whether one learning rate serves every width."""

from __future__ import annotations

from scantling.lab.experiments.registry import Preset, experiment
from scantling.lab.match import small
from scantling.lab.study.design import Rates, Shape, Study


@experiment("lr-transfer", "does the best learning rate stay where the width grows?", 8)
def lr_transfer(preset: Preset) -> Study:
    """The best rate by width, under the standard parametrisation and under muP.

    Look at the rate each arm was best at, not only at its loss: under the standard one it should
    fall as the width grows, under muP stay within a step of the grid.
    Two layers, heads of 16; the base of muP is width 64.
    """
    quick = preset == "quick"
    widths = (32, 128) if quick else (32, 64, 128, 256)
    shapes = [
        Shape(f"{param} width {d}", small(2, d, 4 * d * 2 // 3 // 4 * 4), param=param,
              rate=2.0**-7)
        for param in ("sp", "mup") for d in widths
    ]  # fmt: skip
    return Study(
        name="lr-transfer",
        question="How far does the best learning rate move when the width grows?",
        shapes=tuple(shapes),
        data="code",
        tokens=100_000 if quick else 400_000,
        least_tokens=50_000,
        rates=Rates(5, 2.0, 2) if quick else Rates(7, 2.0, 2),
        seeds=3 if quick else 5,
        expected=(
            "Standard: the best rate falls at least as fast as 1 / width. muP: it stays, within a "
            "step of the grid. The level of muP can be worse than that of the best standard rate, "
            "as long as its constants are not tuned once at the base width."
        ),
        sources=("mup2022",),
        caveat="The grids begin around one rate for all, so that moving is visible.",
    )
