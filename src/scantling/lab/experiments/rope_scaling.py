"""Rotary positions stretched beyond the length that was trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from scantling.errors import FieldError
from scantling.lab.experiments.registry import Preset, experiment
from scantling.lab.experiments.trained import CONTEXT, looked_at, told
from scantling.lab.study.design import Measure, Probed, Study

if TYPE_CHECKING:
    from torch import Tensor

    from scantling.lab.study.trial import Trial

LONGER = (2, 4, 8)
"""Times the trained length."""
NONE, FITTED = "none", " by length"
ONCE = {"linear": "linear", "NTK": "ntk", "dynamic NTK": "dynamic", "YaRN": "yarn"}
"""Arms with one setting for all lengths, that of the longest, as a released config has one."""
EACH = {f"{arm}{FITTED}": ONCE[arm] for arm in ("linear", "NTK", "YaRN")}
"""Arms whose factor is that of the length at hand."""


@experiment("rope-scaling", "which stretching of positions holds beyond the trained length?", 4)
def rope_scaling(preset: Preset) -> Study:
    """Loss beyond the trained length, at twice to eight times of it, without any tuning.

    Judged by the mean over the three longer lengths, of the last half of each window. Each arm has
    one setting for all lengths, as a released config does, with the factor of the longest; those
    *by length* have at each length its own factor, which no one setting gives but dynamic NTK tries
    to. At the trained length itself, the first column beside, one setting shows its price.
    Shares its trained models with layer-removal, head-pruning and ffn-svd.
    """
    lengths = (1, *LONGER)
    pairs = (("NTK", NONE), ("YaRN", NONE), ("dynamic NTK", NONE), (NONE, "linear"),
             ("YaRN", "NTK"), ("dynamic NTK", "NTK"))  # fmt: skip
    return looked_at(
        preset, "rope-scaling",
        f"Beyond {CONTEXT} tokens, which stretching of rotary positions loses least, untuned?",
        Probed((NONE, *ONCE, *EACH), pairs),
        probe="probe",
        measure=Measure("longer", "loss at 2 to 8 times"),
        also=tuple(Measure(f"x{n}", f"at {n * CONTEXT}") for n in lengths),
        expected=(
            "Without tuning, NTK and YaRN hold far better than no stretching, and linear "
            "interpolation is worse than none. YaRN over NTK is published for large models, "
            "dynamic over one setting for windows shorter than the longest. Dynamic NTK grows its "
            "factor faster than the length: at n times the trained one, factor f becomes "
            "f n - f + 1."
        ),
        sources=("yarn2023", "positional-interpolation2023"),
        caveat=(
            "Untuned, in characters of code, where most of what helps is near: a loss says little "
            "of what is found far away."
        ),
    )  # fmt: skip


def probe(model: Any, _: Any, trial: Trial) -> dict[str, float]:
    """The loss of every setting at every length."""
    import contextlib

    from scantling.lab.interventions import ScaleRope, applied
    from scantling.lab.study.training import task_of
    from scantling.lab.tasks import TASKS

    if trial.data.partition(":")[0] in TASKS:
        raise FieldError("data", trial.data, "has one length only", "give a text")
    longest = LONGER[-1] * CONTEXT
    found: dict[str, dict[str, float]] = {name: {} for name in (NONE, *ONCE, *EACH)}
    for n in (1, *LONGER):
        context = n * CONTEXT
        longer = task_of(trial.data, trial.batch, context, trial.tokenizer)
        for name, losses in found.items():
            to = longest if name in ONCE else context
            kind = (ONCE | EACH).get(name)
            changed: Any = contextlib.nullcontext()
            if kind is not None and to > CONTEXT:
                changed = applied(model, ScaleRope(kind, to, CONTEXT))
            with changed:
                losses[f"x{n}"] = late_loss(model, longer)
    for losses in found.values():
        losses["longer"] = sum(losses[f"x{n}"] for n in LONGER) / len(LONGER)
    return told(found)


def late_loss(model: Any, task: Any) -> float:
    """Nats a token over the last half of each window."""
    from scantling.lab.tasks import IGNORED, sums

    def halves() -> Iterator[tuple[Tensor, Tensor]]:
        for tokens, targets in task.judged():
            late = targets.clone()
            late[:, : targets.shape[1] // 2] = IGNORED
            yield tokens, late

    found = sums(model, halves(), None)["loss"]
    assert found is not None, "a loss is always told"
    return found
