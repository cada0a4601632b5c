"""Which vocabulary, tied or not, at equal training FLOPs."""

from __future__ import annotations

from scantling.lab.experiments.registry import Preset, experiment
from scantling.lab.match import equal_flops, small
from scantling.lab.study.design import Measure, Rates, Shape, Study


@experiment("vocabulary", "how large a vocabulary pays, tied or not, at equal FLOPs?", 8)
def vocabulary(preset: Preset) -> Study:
    """Vocabularies on one body, each trained with equal FLOPs, judged in bits a byte.

    A larger vocabulary says more bytes a token and costs more FLOPs a token in the head, so it
    sees fewer tokens. BPE is trained on the training part alone.
    A window of as many tokens covers more bytes, which favours the larger vocabulary.
    Untied has more parameters at equal FLOPs.
    """
    quick = preset == "quick"
    sizes = (1024, 256, 4096) if quick else (1024, 256, 4096, 512, 2048)
    shapes = [
        Shape(f"{'bytes' if v == 256 else f'BPE {v}'}{'' if tied else ' untied'}",
              small(3, 64, 172, vocab_size=v, tied=tied),
              tokenizer="bytes" if v == 256 else f"bpe:{v}")
        for v, tied in [*((v, True) for v in sizes), (1024, False)]
    ]  # fmt: skip
    return Study(
        name="vocabulary",
        question="At equal training FLOPs, which vocabulary has the fewest bits a byte?",
        shapes=equal_flops(shapes),
        data="code",
        tokens=250_000 if quick else 1_000_000,
        least_tokens=60_000,
        rates=Rates(3, 2.5, 2) if quick else Rates(5, 2.2, 2),
        seeds=3 if quick else 5,
        measure=Measure("bits_per_byte", "bits a byte"),
        expected=(
            "Fewer bits with a larger vocabulary, flattening from about 1,000 on at this size. "
            "Untied is better at equal FLOPs, where it has more parameters."
        ),
        sources=("tao2024", "press2017"),
        caveat="The best vocabulary grows with the model; a body of 0.1 M says where it begins.",
    )
