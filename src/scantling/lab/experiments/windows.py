"""Layers that see only a window."""

from __future__ import annotations

from math import isqrt
from typing import Any

from msgspec.structs import replace

from scantling.lab.experiments.registry import Preset, experiment
from scantling.lab.match import small
from scantling.lab.study.design import Rates, Shape, Study
from scantling.spec import GroupedAttention, Layer, Run, Spec, Window
from scantling.spec.vary import rewrite


@experiment("windows", "what do layers lose that see only a window?", 6)
def windows(preset: Preset, times: int = 1) -> Study:
    """Four layers of full attention, of windows, and three of windows to one of full attention."""
    quick = preset == "quick"
    full = small(4, 48 * isqrt(times), 128 * isqrt(times))
    return Study(
        name="windows",
        question="What do windows of 16 tokens cost in a context of 128?",
        shapes=(
            Shape("full", full),
            Shape("windows", windowed(full, 16, every=None)),
            Shape("3:1", windowed(full, 16, every=4)),
        ),
        data="code",
        tokens=250_000 if quick else 1_000_000,
        least_tokens=60_000,
        batch=8,
        context=128,
        rates=Rates(3, 2.5, 2) if quick else Rates(5, 2.2, 2),
        seeds=3 if quick else 5,
        expected=(
            "At this size windows are level or better: what is near is learned first. What they "
            "cost on long range shows in recall, not in the loss."
        ),
        sources=("gemma3",),
        caveat="Differences here are 1 to 3 standard deviations; six seeds or more separate them.",
    )


def windowed(spec: Spec, window: int, every: int | None) -> Spec:
    """A model whose layers see a window; every so many-th sees all.

    Example:
        >>> windowed(small(4, 48, 128), 16, every=4).decoder.expand()
        ('local', 'local', 'local', 'global')
    """
    (layer,) = spec.decoder.kinds

    def change(node: Any) -> Any:
        return replace(node, span=Window(window)) if isinstance(node, GroupedAttention) else node

    local = Layer("local", rewrite(layer.blocks, change))
    kinds: tuple[Layer, ...] = (local,)
    pattern: tuple[str, ...] = ("local",)
    if every is not None:
        kinds = (local, replace(layer, name="global"))
        pattern = ("local",) * (every - 1) + ("global",)
    stack = replace(spec.decoder, kinds=kinds, layout=(Run(pattern, spec.n_layer),))
    return replace(spec, decoder=stack)
