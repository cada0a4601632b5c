"""Whether narrow heads limit recall."""

from __future__ import annotations

from scantling.lab.experiments.registry import Preset, experiment
from scantling.lab.match import small
from scantling.lab.study.design import Measure, Rates, Shape, Study


@experiment("head-width-recall", "do narrow heads limit what attention can recall?", 8)
def head_width_recall(preset: Preset) -> Study:
    """Associative recall at one attention width, cut into few wide or many narrow heads.

    Seeds either solve the task or do not, so arms are judged by the share of seeds that solve it.
    """
    quick = preset == "quick"
    return Study(
        name="head-width-recall",
        question="Which head width solves associative recall, at equal attention width?",
        shapes=tuple(
            Shape(f"{64 // h} heads of {h}", small(2, 64, 128, d_head=h, vocab_size=32))
            for h in ((16, 2, 4) if quick else (16, 2, 4, 8, 32, 64))
        ),
        data="recall:pairs=6,keys=12,values=20",
        tokens=200_000 if quick else 1_000_000,
        least_tokens=50_000,
        batch=32,
        rates=Rates(3, 2.0, 1) if quick else Rates(4, 2.0, 2),
        seeds=5 if quick else 10,
        measure=Measure("accuracy", "share of questions answered", "higher", solved=0.9),
        also=(Measure(),),
        expected=(
            "Heads of 16 and more solve it alike; a bottleneck of rank shows at widths of 2 to 4, "
            "below the number of pairs."
        ),
        sources=("bhojanapalli2020",),
        caveat="Whether it is learned at all depends on steps and pairs: change the knobs of data.",
    )
