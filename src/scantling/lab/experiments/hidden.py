"""What the feed-forwards of a trained model hold inside, for the experiments that look at it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scantling.lab.probes import Activation
    from scantling.lab.study.trial import Trial


def hidden(model: Any, task: Any, trial: Trial) -> list[Activation]:
    """The hidden units of every feed-forward, on the batch after the last one trained on."""
    from scantling.lab.probes import activations

    tokens_BT, _ = task.batch(trial.steps, trial.seed)
    return activations(model, tokens_BT.to(model.table.weight.device))
