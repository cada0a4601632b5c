"""Following several arrows, by depth."""

from __future__ import annotations

from scantling.lab.experiments.registry import Preset, experiment
from scantling.lab.match import small
from scantling.lab.study.design import Measure, Rates, Shape, Study


@experiment("hops", "how many layers follow k arrows?", 4)
def hops(preset: Preset) -> Study:
    """Arrows of a cycle in random order, and the question where k of them lead.

    The number of layers that suffices should grow with the logarithm of k, not with k. Judged by
    the share of seeds that solve it.
    One hop in the quick preset; two, in the standard one, take millions of tokens to be learned.
    """
    quick = preset == "quick"
    k, nodes = (1, 5) if quick else (2, 8)
    return Study(
        name="hops",
        question=f"How many layers follow {k} {'arrow' if k == 1 else 'arrows'}?",
        shapes=tuple(
            Shape(
                f"{n} {'layer' if n == 1 else 'layers'}",
                small(n, 64, 128, vocab_size=nodes),
                rate=1e-3,
            )
            for n in ((2, 1) if quick else (3, 2, 1, 4))
        ),
        data=f"hops:nodes={nodes},hops={k}",
        tokens=500_000 if quick else 6_000_000,
        least_tokens=400_000 if quick else 1_500_000,
        batch=32 if quick else 64,
        context=2 * nodes + 1,
        rates=Rates(3, 2.0, 1) if quick else Rates(4, 2.0, 2),
        seeds=5 if quick else 8,
        measure=Measure("accuracy", "share of questions answered", "higher", solved=0.9),
        also=(Measure(),),
        expected=(
            "One hop needs two layers, two hops three; one layer stays at guessing. Published: "
            "about log2 k layers more for k hops."
        ),
        sources=("sanford2024", "induction2022"),
        caveat="Not solved is not unsolvable: give more tokens before you conclude on depth.",
    )
