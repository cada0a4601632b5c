"""How many hidden units are active, by the width of the feed-forward."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

from scantling.lab.experiments.hidden import hidden
from scantling.lab.experiments.registry import Preset, experiment
from scantling.lab.match import small
from scantling.lab.study.design import Measure, Rates, Shape, Study

if TYPE_CHECKING:
    from scantling.lab.study.trial import Trial


@experiment("activation-sparsity", "are wider feed-forwards sparser?", 4)
def activation_sparsity(preset: Preset) -> Study:
    """The share of hidden units that are active after ReLU, at F = D, 2D, 4D and 8D.

    Active is whatever is above zero; ``active_tenth`` counts those above a tenth of the largest of
    their token. The two differ, and published numbers seldom say which they are.
    """
    quick = preset == "quick"
    return Study(
        name="activation-sparsity",
        question="Does the share of active units fall as the feed-forward grows wider?",
        shapes=tuple(
            Shape(f"F = {r} D", small(3, 48, 48 * r, gated=False, activation="relu"), rate=8e-3)
            for r in ((1, 4, 8) if quick else (1, 4, 8, 2))
        ),
        data="code",
        tokens=200_000 if quick else 600_000,
        least_tokens=60_000,
        rates=Rates(1, 2.0, 0),
        seeds=3 if quick else 5,
        measure=Measure("active", "share of units above 0", "lower", "sparser"),
        also=(Measure("active_tenth", "above a tenth of the largest"), Measure()),
        probe="scantling.lab.experiments.activation_sparsity:probe",
        expected="The share falls slowly with the width, about as its power of −0.1 to −0.25.",
        sources=("lazy-neuron2022", "relu-strikes-back2023"),
        caveat="At one learning rate for all, since the question is not which loss is lowest.",
    )


def probe(model: Any, task: Any, trial: Trial) -> dict[str, float]:
    """Shares of active hidden units, over layers and tokens."""
    read = hidden(model, task, trial)
    return {"active": fmean(one.positive for one in read),
            "active_tenth": fmean(one.active for one in read)}  # fmt: skip
