"""The model that four experiments look at: trained once a seed, kept, probed by each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scantling.lab.experiments.registry import Preset
from scantling.lab.match import small
from scantling.lab.study.design import Measure, Probed, Rates, Shape, Study

if TYPE_CHECKING:
    from scantling.lab.study.trial import Trial

N_LAYER, D_MODEL, D_HEAD, D_FF, CONTEXT = 6, 64, 16, 172, 128
WHOLE = "as trained"
"""The arm of the model without any change."""


def looked_at(
    preset: Preset, name: str, question: str, probed: Probed, *, probe: str,
    also: tuple[Measure, ...] = (), measure: Measure | None = None, expected: str,
    sources: tuple[str, ...], caveat: str,
) -> Study:  # fmt: skip
    """A study of the common model, of which ``probe`` measures every arm.

    Args:
        preset: Quick or standard; each has its own model.
        name: Of the experiment.
        question: In one sentence.
        probed: Arms, and what is compared.
        probe: Name of a function in the module of the same name.
        also: Measures shown beside.
        measure: What arms are judged by; the loss unless given.
        expected: As for a study.
        sources: As for a study.
        caveat: As for a study.
    """
    quick = preset == "quick"
    return Study(
        name=name,
        question=question,
        shapes=(Shape("trained", small(N_LAYER, D_MODEL, D_FF, d_head=D_HEAD)),),
        data="code",
        tokens=1_200_000 if quick else 4_800_000,
        least_tokens=300_000,
        batch=16,
        context=CONTEXT,
        rates=Rates(1, 2.0, 0),
        seeds=3 if quick else 5,
        measure=measure or Measure(),
        also=also,
        probe=f"scantling.lab.experiments.{name.replace('-', '_')}:{probe}",
        probed=probed,
        expected=expected,
        sources=sources,
        caveat=caveat,
    )


def told(arms: dict[str, dict[str, float]]) -> dict[str, float]:
    """Measures of arms as a probe returns them."""
    return {Probed.key(a, m): v for a, found in arms.items() for m, v in found.items()}


def loss(model: Any, task: Any) -> float:
    """Nats a token on the slice that is reported."""
    return float(task.evaluate(model)["loss"])


def milliseconds(models: dict[str, Any], task: Any, trial: Trial) -> dict[str, dict[str, float]]:
    """Of models built for real: time of a pass by turns, FLOPs, bytes and parameters."""
    from scantling.lab.examine import latencies, sizes

    device = next(next(iter(models.values())).parameters()).device
    tokens = task.batch(trial.steps, trial.seed)[0][:1].to(device)
    seconds = latencies(list(models.values()), tokens)
    found = {}
    for (name, model), s in zip(models.items(), seconds, strict=True):
        size = sizes(model, task)
        found[name] = {"ms": 1e3 * s, "mflops": size["forward_flops"] / 1e6,
                       "kib": size["weight_bytes"] / 1024}  # fmt: skip
    return found


BUILT = (
    Measure("ms", "ms a pass, built"),
    Measure("mflops", "MFLOPs"),
    Measure("kib", "KiB of weights"),
)
"""Measures of a model that is built for real, see ``milliseconds``."""
