"""Gradient norms by layer, for three places of the norm."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from scantling.lab.experiments.registry import Preset, experiment
from scantling.lab.match import small
from scantling.lab.study.design import Measure, Rates, Shape, Study
from scantling.spec import DeepNorm, Layer, Norm, Spec
from scantling.spec.vary import rewrite

if TYPE_CHECKING:
    from scantling.lab.study.trial import Trial

BATCHES = 4
"""Batches a gradient is averaged over."""


@experiment("gradient-norms", "do first and last layers learn alike, by where the norm stands?", 4)
def gradient_norms(preset: Preset) -> Study:
    """The gradient's norm in the last layer over that in the first, after some training.

    Pre-norm, post-norm and DeepNorm, with everything else alike and one learning rate for all:
    the question is what happens to gradients, not which loss is lowest.
    Judged by how far the two are apart, as a factor, whichever is the larger; 1 is alike.
    Post-norm is known to need a long warmup, which it does not get here.

    Two choices decide what an untrained model shows; each was varied alone, at 24 layers of 64,
    three seeds, last layer over first:

    - What counts as a layer's gradient: its matrices. In a model whose norms stand behind the
      sums, the last layer's norm is the one the head reads, and the gradient of its scale alone
      makes DeepNorm 5.3, 4.6, 5.7 where its matrices have 0.93, 0.98, 0.98.
    - How large the stream is where it enters. A tied table starts at 1/√d, so the first layer of
      a pre-norm model reads a small stream and has the larger gradient: 0.16, 0.20, 0.13. With
      the embedding times √d, as Gemma has it, 0.78, 0.75, 0.72; with a table of its own, of size
      1, 0.75, 0.94, 0.84; with 0.0375 = 0.3/√d for all matrices 0.63, 0.78, 0.79. Branches of
      full size, not 1/√blocks of it, take it back to 0.15 to 0.21.
    """
    quick = preset == "quick"
    depth = 24
    pre = small(depth, 64, 172)
    return Study(
        name="gradient-norms",
        question=f"Over {depth} layers, how unlike are the gradients of the first and the last?",
        shapes=(
            Shape("pre-norm", pre, rate=1e-3),
            Shape("post-norm", moved(pre, None), rate=1e-3),
            Shape("DeepNorm", moved(pre, (2 * depth) ** 0.25), rate=1e-3),
        ),
        data="code",
        tokens=80_000 if quick else 300_000,
        least_tokens=40_000,
        rates=Rates(1, 2.0, 0),
        seeds=3 if quick else 5,
        batch=8,
        measure=Measure("gradient_spread", "gradients apart, ×", "lower", "more alike", ratio=True),
        also=(Measure("gradient_ratio", "last/first, trained", ratio=True),
              Measure("gradient_ratio_new", "last/first, new", ratio=True), Measure()),
        probe="scantling.lab.experiments.gradient_norms:probe",
        expected=(
            "Published: post-norm gradients grow towards the last layer and the first layers learn "
            "late without warmup; in pre-norm the first layer has the larger one; DeepNorm is "
            "about alike."
        ),
        sources=("xiong2020", "deepnet2022"),
        caveat=(
            "How large the factors are depends on depth, warmup and most on how large branches "
            "begin: here what writes to the stream begins smaller by the root of the number of "
            "blocks, with which post-norm trains at 24 layers; the published growth is that of "
            "branches of full size. In pre-norm it depends as much on how large the stream "
            "enters: here as a tied table, 1/√d; at size 1 the first and last layer of a new "
            "model are about alike. Gradients are those of matrices, not of norms."
        ),
    )  # fmt: skip


def moved(spec: Spec, alpha: float | None) -> Spec:
    """A pre-norm model with its norms behind each sum; with alpha as DeepNorm."""

    def change(node: Any) -> Any:
        if not isinstance(node, Layer):
            return node
        residual = node.blocks[0].residual if alpha is None else DeepNorm(alpha)
        blocks = (replace(b, pre=None, after=Norm(), residual=residual) for b in node.blocks)
        return replace(node, blocks=tuple(blocks))

    found: Spec = rewrite(spec, change)
    return replace(found, decoder=replace(found.decoder, final_norm=None))


def probe(model: Any, task: Any, trial: Trial) -> dict[str, float]:
    """The gradient norms of the first and the last layer, as trained and as it began."""
    from scantling.lab.model import Decoder

    new = Decoder(trial.spec, param=trial.param, seed=trial.seed)
    trained = _ratio(model, task, trial)
    return {
        "gradient_ratio": trained,
        "gradient_spread": math.exp(abs(math.log(trained))),
        "gradient_ratio_new": _ratio(new, task, trial),
    }


def _ratio(model: Any, task: Any, trial: Trial) -> float:
    """The root mean square over batches of the gradient's norm, last layer over first."""
    from scantling.lab import probes

    device, first, last = model.table.weight.device, 0.0, 0.0
    for i in range(BATCHES):
        tokens, targets = (t.to(device) for t in task.batch(trial.steps + i, trial.seed))
        norms = probes.gradient_norms(model, tokens, targets)
        first, last = first + norms[0] ** 2, last + norms[-1] ** 2
    tiny = 1e-30
    return math.sqrt(max(last, tiny) / max(first, tiny))
