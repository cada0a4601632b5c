"""What the feed-forwards of a trained model hold inside, for the experiments that look at it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scantling.lab.study.trial import Trial


def hidden(model: Any, task: Any, trial: Trial) -> Any:
    """The hidden values of every dense feed-forward on one batch: layers · tokens × F, doubles."""
    import torch

    from scantling.lab.feed import Feed

    found: list[Any] = []
    hooks = [
        feed.down.register_forward_pre_hook(lambda _, given: found.append(given[0].detach()))
        for feed in model.modules() if isinstance(feed, Feed)
    ]  # fmt: skip
    try:
        with torch.no_grad():
            device = next(model.parameters()).device
            model(task.batch(trial.steps, trial.seed)[0].to(device))
    finally:
        for hook in hooks:
            hook.remove()
    return torch.cat([h.flatten(0, -2) for h in found]).double().cpu()
