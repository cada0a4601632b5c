"""Layers taken out of a trained model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scantling.lab.experiments.registry import Preset, experiment
from scantling.lab.experiments.trained import BUILT, N_LAYER, WHOLE, looked_at, milliseconds, told
from scantling.lab.study.design import Measure, Probed, Study

if TYPE_CHECKING:
    from scantling.lab.study.trial import Trial

LAST = N_LAYER - 1
RUNS = {f"without {at}": (at,) for at in range(N_LAYER)} | {
    f"without {LAST - n} to {LAST - 1}": tuple(range(LAST - n, LAST)) for n in (2, 3)
}
"""Layers that are taken out, from 0: each alone, and two and three just before the last."""


@experiment("layer-removal", "which layers of a trained model are missed most?", 4)
def layer_removal(preset: Preset) -> Study:
    """The loss of a trained model without one of its layers, and without runs before the last.

    Nothing is trained after the cut. The angle is that between what enters the layers that go and
    what leaves them, as a share of half a turn, mean over tokens: published cuts choose where it
    is least.
    Shares its trained models with head-pruning, ffn-svd and rope-scaling.
    """
    first, two, three = "without 0", f"without {LAST - 2} to {LAST - 1}", \
        f"without {LAST - 3} to {LAST - 1}"  # fmt: skip
    pairs = [(f"without {at}", first) for at in range(1, N_LAYER)]
    return looked_at(
        preset, "layer-removal",
        "Without which layer does a trained model lose most, and what do runs of layers cost?",
        Probed((WHOLE, *RUNS), (*pairs, (f"without {LAST - 1}", two), (two, three))),
        probe="probe",
        also=(Measure("angle", "angle, half turns"), *BUILT),
        expected=(
            "The first layer is missed most, by several times any other; of the others the loss "
            "rises little, and without jumps as runs before the last grow."
        ),
        sources=("shortgpt2024", "gromov2024"),
        caveat=(
            "Published cuts take a quarter or more of the layers of 7 B and larger for little loss "
            "in tasks; six layers have none to spare."
        ),
    )  # fmt: skip


def probe(model: Any, task: Any, trial: Trial) -> dict[str, float]:
    """The loss without each run of layers; angles; and the models that are left, built."""
    from scantling.lab.experiments.trained import loss
    from scantling.lab.interventions import DropLayers, applied, materialise

    streams = _streams(model, task.batch(trial.steps, trial.seed)[0])
    found = {WHOLE: {"loss": loss(model, task), "angle": 0.0}}
    built = {WHOLE: model}
    for name, layers in RUNS.items():
        with applied(model, DropLayers(layers)):
            found[name] = {"loss": loss(model, task)}
        found[name]["angle"] = angle(streams[layers[0]], streams[layers[-1] + 1])
        built[name] = materialise(model, DropLayers(layers))
    for name, more in milliseconds(built, task, trial).items():
        found[name] |= more
    return told(found)


def _streams(model: Any, tokens: Any) -> list[Any]:
    """What enters every layer, and what leaves the last."""
    import torch

    found: list[Any] = []
    layers = list(model.layers)
    hooks = [one.register_forward_pre_hook(lambda _, given: found.append(given[0]))
             for one in layers]  # fmt: skip
    hooks.append(layers[-1].register_forward_hook(lambda _, __, out: found.append(out)))
    try:
        with torch.no_grad():
            model(tokens.to(next(model.parameters()).device))
    finally:
        for hook in hooks:
            hook.remove()
    return found


def angle(a: Any, b: Any) -> float:
    """The mean angle of vectors in the last dimension, as a share of half a turn.

    Example:
        >>> import torch
        >>> angle(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]]))
        0.5
    """
    import torch

    cosine = torch.cosine_similarity(a.double(), b.double(), dim=-1).clamp(-1, 1)
    return float((cosine.acos() / torch.pi).mean())
