"""Gated and plain feed-forwards at equal parameters."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

from scantling.lab.experiments.hidden import hidden
from scantling.lab.experiments.registry import Preset, experiment
from scantling.lab.match import small
from scantling.lab.study.design import Measure, Rates, Shape, Study

if TYPE_CHECKING:
    from scantling.lab.study.trial import Trial


@experiment("swiglu-gelu", "gated or plain feed-forwards, at equal parameters?", 4)
def swiglu_gelu(preset: Preset) -> Study:
    """SwiGLU of width 2/3 against GELU, and what their hidden values look like.

    At one rate for both the answer depends on the rate: SwiGLU prefers a lower one.
    Kurtosis is that of the hidden values of a layer, 3 for a normal distribution; the mean of the
    layers.
    """
    quick = preset == "quick"
    return Study(
        name="swiglu-gelu",
        question="Which feed-forward has the lower loss at equal parameters?",
        shapes=(
            Shape("SwiGLU", small(4, 48, 128)),
            Shape("GELU", small(4, 48, 192, gated=False, activation="gelu")),
        ),
        data="code",
        tokens=260_000 if quick else 1_000_000,
        least_tokens=60_000,
        rates=Rates(4, 2.0, 2) if quick else Rates(5, 2.0, 2),
        seeds=3 if quick else 5,
        also=(Measure("kurtosis", "kurtosis of hidden values", ratio=True),),
        probe="scantling.lab.experiments.swiglu_gelu:probe",
        expected=(
            "No winner that a few seeds resolve at this size, each at its own rate. The hidden "
            "values of SwiGLU, products of two, have the higher kurtosis in every seed."
        ),
        sources=("shazeer2020",),
        caveat="What gating is worth in large models cannot be seen here.",
    )


def probe(model: Any, task: Any, trial: Trial) -> dict[str, float]:
    """The kurtosis of what the feed-forwards' last products read, the mean of the layers."""
    return {"kurtosis": fmean(one.kurtosis for one in hidden(model, task, trial))}
