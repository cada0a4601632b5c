"""Feed-forwards of a trained model at lower rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scantling.lab.experiments.registry import Preset, experiment
from scantling.lab.experiments.trained import (
    BUILT,
    D_FF,
    D_MODEL,
    WHOLE,
    looked_at,
    loss,
    milliseconds,
    told,
)
from scantling.lab.study.design import Measure, Probed, Study

if TYPE_CHECKING:
    from scantling.lab.study.trial import Trial

RANKS = (64, 48, 40, 32, 24, 16, 8)


def break_even(d_model: int, d_ff: int) -> float:
    """The rank from which on two factors, r (D + F), have more numbers than one matrix, D F.

    Example:
        >>> round(break_even(64, 172), 1)
        46.6
    """
    return d_model * d_ff / (d_model + d_ff)


@experiment("ffn-svd", "how far can the rank of feed-forwards fall before they lose?", 4)
def ffn_svd(preset: Preset) -> Study:
    """Every matrix of the feed-forwards as its best approximation of a rank, by SVD.

    Kept as two factors, which are fewer numbers only below the rank D F / (D + F): above it a
    factorised feed-forward is larger and slower than the one it replaces. Nothing is trained after
    the cut.
    Shares its trained models with layer-removal, head-pruning and rope-scaling.
    """
    even = break_even(D_MODEL, D_FF)
    arms = [f"rank {r}" for r in RANKS]
    return looked_at(
        preset, "ffn-svd",
        f"At which rank do feed-forwards of {D_MODEL} × {D_FF} lose, and is any saving left there?",
        Probed((WHOLE, *arms), tuple((WHOLE, a) for a in reversed(arms[1:]))),
        probe="probe",
        also=(Measure("share", "numbers against whole"), *BUILT),
        expected=(
            f"Break-even is rank {even:.1f}. Three quarters of the full rank lose little and save "
            "nothing; at a quarter the loss is large. Where between them it begins to rise differs "
            "by data and recipe."
        ),
        sources=("eckart1936",),
        caveat=(
            "Rank by error of the weights alone; published methods weigh errors by activations, "
            "or train after the cut, and lose less."
        ),
    )  # fmt: skip


def probe(model: Any, task: Any, trial: Trial) -> dict[str, float]:
    """The loss at every rank, and the models with two factors, built."""
    from scantling.lab.interventions import LowRank, applied, materialise

    found, built = {WHOLE: {"loss": loss(model, task), "share": 1.0}}, {WHOLE: model}
    for rank in RANKS:
        name = f"rank {rank}"
        with applied(model, LowRank(rank)):
            found[name] = {"loss": loss(model, task)}
        found[name]["share"] = rank / break_even(D_MODEL, D_FF)
        built[name] = materialise(model, LowRank(rank))
    for name, more in milliseconds(built, task, trial).items():
        found[name] |= more
    return told(found)
