"""Heads cut out of a trained model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scantling.lab.experiments.registry import Preset, experiment
from scantling.lab.experiments.trained import BUILT, WHOLE, looked_at, loss, milliseconds, told
from scantling.lab.study.design import Measure, Probed, Study

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scantling.lab.masks import MaskHeads
    from scantling.lab.study.trial import Trial

    Head = tuple[int, int]

SHARES = (0.25, 0.5, 0.75)
LEAST, RANDOM, MOST = "least sensitive", "random", "most sensitive"
DRAWS = 8
"""Random choices of heads, whose losses are averaged."""
BATCHES = 4
"""Batches of training data that sensitivities are measured on."""


@experiment("head-pruning", "do the heads that the loss hangs on least go for free?", 4)
def head_pruning(preset: Preset) -> Study:
    """A trained model without a quarter, half and three quarters of its heads.

    Either the least sensitive go, or random ones, or the most sensitive. A head's sensitivity is
    |dL/dm| for a mask m of one on its output, on training data. Nothing is trained after the cut.
    Random is the mean of eight draws, whose best and worst stand beside it.
    Time, FLOPs and bytes are those of models that are built without the heads; of the random ones,
    the first draw.
    Shares its trained models with layer-removal, ffn-svd and rope-scaling.
    """
    arms = [WHOLE, *(_arm(s, how) for s in SHARES for how in (LEAST, RANDOM, MOST))]
    pairs = [(_arm(s, a), _arm(s, b)) for a, b in ((LEAST, RANDOM), (RANDOM, MOST))
             for s in (0.5, 0.25, 0.75)]  # fmt: skip
    return looked_at(
        preset, "head-pruning",
        "What does a trained model lose without its least sensitive heads, against random ones?",
        Probed(tuple(arms), tuple(pairs)),
        probe="probe",
        also=(Measure("best", "best draw"), Measure("worst", "worst draw"), *BUILT),
        expected=(
            "At every share the least sensitive heads cost less than random ones, and the most "
            "sensitive ones far more; none of it is free in a model this small."
        ),
        sources=("michel2019", "voita2019"),
        caveat=(
            "A pass of a model this small is mostly its calls: what larger ones would save is in "
            "FLOPs and bytes, not in milliseconds."
        ),
    )  # fmt: skip


def _arm(share: float, how: str) -> str:
    return f"{share:.0%} {how}".replace("%", " %")


def probe(model: Any, task: Any, trial: Trial) -> dict[str, float]:
    """The loss without each choice of heads, and the models that are left, built."""
    from numpy.random import default_rng

    from scantling.lab.interventions import materialise

    ranked = by_sensitivity(model, task, trial)
    whole = loss(model, task)
    found = {WHOLE: {"loss": whole, "best": whole, "worst": whole}}
    built, random = {WHOLE: model}, default_rng(trial.seed)
    for share in SHARES:
        n = round(share * len(ranked))
        draws = [[ranked[i] for i in random.permutation(len(ranked))[:n]] for _ in range(DRAWS)]
        for how, choices in ((LEAST, [ranked[:n]]), (RANDOM, draws), (MOST, [ranked[-n:]])):
            losses = [_without(model, task, heads) for heads in choices]
            found[_arm(share, how)] = {
                "loss": sum(losses) / len(losses), "best": min(losses), "worst": max(losses),
            }  # fmt: skip
            built[_arm(share, how)] = materialise(model, _mask(choices[0]))
    for name, more in milliseconds(built, task, trial).items():
        found[name] |= more
    return told(found)


def by_sensitivity(model: Any, task: Any, trial: Trial) -> list[Head]:
    """All (layer, head), the one that the loss hangs on least first."""
    import torch

    from scantling.lab.probes import head_sensitivity

    device = next(model.parameters()).device
    pairs = [task.batch(trial.steps + i, trial.seed) for i in range(BATCHES)]
    tokens, targets = (torch.cat(side).to(device) for side in zip(*pairs, strict=True))
    found = head_sensitivity(model, tokens, targets)
    heads = [(value, (at, head)) for at, row in found.items() for head, value in enumerate(row)]
    return [head for _, head in sorted(heads)]


def _mask(heads: Sequence[Head]) -> MaskHeads:
    from scantling.lab.masks import MaskHeads

    return MaskHeads(tuple(sorted(heads)))


def _without(model: Any, task: Any, heads: Sequence[Head]) -> float:
    from scantling.lab.interventions import applied

    with applied(model, _mask(heads)):
        return loss(model, task)
