"""Whether addition is learned, by the width of heads."""

from __future__ import annotations

from scantling.lab.experiments.registry import Preset, experiment
from scantling.lab.match import small
from scantling.lab.study.design import Measure, Rates, Shape, Study


@experiment("addition", "which head width learns to add numbers?", 5)
def addition(preset: Preset) -> Study:
    """Sums of numbers of a fixed length, the digits of the sum from the last one on.

    One attention width cut into heads of 8, 16 or 32. Seeds learn it or do not, so arms are judged
    by the share of seeds that do; accuracy is that of single digits of the sum.
    Three digits take about 2,000 steps. Two are learned by every head width at every rate, by
    memory, and decide nothing.
    """
    quick = preset == "quick"
    return Study(
        name="addition",
        question="Which head width learns addition, at equal attention width?",
        shapes=tuple(
            Shape(f"{64 // h} heads of {h}", small(2, 64, 128, d_head=h, vocab_size=12), rate=1e-3)
            for h in ((16, 8) if quick else (16, 8, 32, 64, 4))
        ),
        data="addition:digits=3",
        tokens=700_000 if quick else 2_000_000,
        least_tokens=500_000,
        batch=32,
        context=11,
        rates=Rates(3, 2.0, 1) if quick else Rates(3, 2.5, 2),
        seeds=5 if quick else 8,
        measure=Measure("accuracy", "share of digits right", "higher", solved=0.99),
        also=(Measure(),),
        expected=(
            "Learned in the lengths that are trained, by some seeds and not by others, with no "
            "order of head widths that holds at every rate. Longer numbers than trained are not "
            "asked: without other positions no small model adds them."
        ),
        sources=("arithmetic2025", "bhojanapalli2020"),
        caveat="Learned or not is a matter of steps and rate before it is one of heads.",
    )
