"""Depth against width."""

from __future__ import annotations

from scantling.lab.experiments.registry import Preset, experiment
from scantling.lab.match import iso
from scantling.lab.study.design import Rates, Study


@experiment("depth-width", "deep and narrow, or shallow and wide, at equal parameters?", 6)
def depth_width(preset: Preset, times: int = 1) -> Study:
    """Depths at equal body parameters, each at its own best learning rate.

    The rate decides the ranking: at one rate for all, 3e-3 ranks two layers best and 32 last, 2e-2
    the other way round. So the rate is swept for each shape, and a best rate at the edge of its
    grid leaves that shape unresolved.
    All shapes see equal tokens; a deep narrow one takes more time for them.
    """
    quick = preset == "quick"
    return Study(
        name="depth-width",
        question="At equal body parameters, which depth has the lowest loss?",
        shapes=iso([2, 8, 4, 1] if quick else [2, 8, 4, 16, 1, 32], body=100_000 * times),
        data="code",
        tokens=300_000 if quick else 1_200_000,
        least_tokens=60_000,
        rates=Rates(3, 2.5, 2) if quick else Rates(5, 2.2, 2),
        seeds=3 if quick else 5,
        expected=(
            "A broad optimum: at these sizes 2 to 8 layers are close, 1 layer and 16 or more lose. "
            "Fits to models of 50 M to 2 B put the best width over depth between 20 and 100, "
            "nearly flat around it."
        ),
        sources=("gemstones2025", "levine2020", "depth-delusion"),
        caveat="At 0.1 M parameters this says nothing for or against limits of depth at 7 B.",
    )
