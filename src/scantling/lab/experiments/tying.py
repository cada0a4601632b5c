"""One matrix for embedding and head, or two, at equal parameters."""

from __future__ import annotations

from scantling.costs.count import parameters, solve_width
from scantling.lab.experiments.registry import Preset, experiment
from scantling.lab.match import small
from scantling.lab.study.design import Measure, Rates, Shape, Study
from scantling.spec import vary

VOCAB_SIZE = 1024


@experiment("tying", "tie embedding and head, and spend the rest on the body?", 6)
def tying(preset: Preset) -> Study:
    """Untied, against tied with a feed-forward made wider by what tying saves.

    At equal FLOPs untied has more parameters (see ``vocabulary``); here parameters are equal, and
    tied costs more FLOPs a token, as the body works on every token and an embedding does not. Tied
    with the same body is the third arm: what is saved, not spent.
    """
    quick = preset == "quick"
    untied = small(3, 64, 172, vocab_size=VOCAB_SIZE, tied=False)
    total = parameters(untied).total
    tied = small(3, 64, 172, vocab_size=VOCAB_SIZE)
    wide = vary(tied, d_ff=solve_width(tied, total, 4))
    off = round(float(parameters(wide).total / total) - 1, 4)
    return Study(
        name="tying",
        question="At equal parameters, is a second matrix or a wider body worth more?",
        shapes=(
            Shape("untied", untied, matched={"params": 0.0}),
            Shape("wider tied", wide, matched={"params": off}),
            Shape("tied", tied),
        ),
        data="code",
        tokens=250_000 if quick else 1_000_000,
        least_tokens=120_000,
        tokenizer=f"bpe:{VOCAB_SIZE}",
        rates=Rates(3, 2.5, 2) if quick else Rates(5, 2.2, 2),
        seeds=3 if quick else 5,
        measure=Measure("bits_per_byte", "bits a byte"),
        expected=(
            "Untied is better than tied with the same body, which has fewer parameters; against "
            "tied with a wider body no order is published for models this small. Tried here: "
            "untied ahead of both by 0.4 bits a byte after 65 steps; at equal FLOPs by 0.1 after "
            "some hundred."
        ),
        sources=("press2017", "tao2024"),
        caveat="Equal FLOPs and equal parameters are different questions: vocabulary asks the one.",
    )
