"""Recall of several values, by depth."""

from __future__ import annotations

from scantling.lab.experiments.registry import Preset, experiment
from scantling.lab.match import small
from scantling.lab.study.design import Measure, Rates, Shape, Study


@experiment("mqar", "does recall of several values need a second layer?", 4)
def mqar(preset: Preset) -> Study:
    """Keys with their values, then half of the keys again, whose values are asked.

    A value stands behind its key, so a question must find what follows an earlier token: one layer
    to bring each key to its value, one to look it up. Judged by the share of seeds that solve it.
    How long it takes until the second layer finds its use grows fast with pairs and keys.
    """
    quick = preset == "quick"
    pairs, keys = (4, 8) if quick else (8, 16)
    return Study(
        name="mqar",
        question="How many layers solve multi-query associative recall?",
        shapes=tuple(
            Shape(f"{n} {'layer' if n == 1 else 'layers'}",
                  small(n, 64, 128, vocab_size=2 * keys), rate=1e-3)
            for n in ((2, 1) if quick else (2, 1, 4))
        ),
        data=f"mqar:pairs={pairs},keys={keys},values={keys},questions={pairs // 2}",
        tokens=400_000 if quick else 4_000_000,
        least_tokens=300_000 if quick else 1_000_000,
        batch=32 if quick else 64,
        context=3 * pairs - 1,
        rates=Rates(3, 2.0, 1) if quick else Rates(4, 2.0, 2),
        seeds=5 if quick else 8,
        measure=Measure("accuracy", "share of questions answered", "higher", solved=0.9),
        also=(Measure(),),
        expected=(
            "One layer stays at guessing among the values shown; two solve it once they have "
            "trained long enough at a rate that is low enough: of 4 pairs all seeds at 1e-3 after "
            "300 k tokens, none at 4e-3. Of 8 pairs 1,500 steps were not enough."
        ),
        sources=("zoology2023", "induction2022"),
        caveat="Not solved is not unsolvable: give more tokens before you conclude on depth.",
    )  # fmt: skip
