"""The published limits of depth at a width."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

from scantling.sources import read_data


class DepthLimits(NamedTuple):
    """Layers that a width is said to bear, by each form in which one preprint is reported."""

    power: float
    """16 (D/512)^0.44, its abstract's exponent."""
    log2: float
    """5 log2 D, as the founding documents have it."""
    ln: float
    """2.43 ln D, as a reader has it."""


def published_depths(d_model: int) -> DepthLimits:
    """The depth limits of a width; all are claims, none is a law.

    The preprint (2601.20994) finds that loss rises past a depth that grows as D^0.44, 16 layers at
    512. 5 log2 D and 2.43 ln D = 1.68 log2 D are other readings, three times apart. Runs at fixed
    width contradict all of them (Gemstones).

    Args:
        d_model: Width D.

    Example:
        >>> [round(x, 1) for x in published_depths(12288)]  # GPT-3, 96 layers
        [64.8, 67.9, 22.9]
    """
    told = _told()
    a, b, c = told["power"]
    width = max(int(d_model), 2)
    return DepthLimits(a * (width / b) ** c, told["log2"] * math.log2(width),
                       told["ln"] * math.log(width))  # fmt: skip


@functools.cache
def width_law() -> dict[str, float]:
    """Levine et al.'s ln D = a + b L: constants, their errors, the depths it was measured at.

    Example:
        >>> width_law()["a"], width_law()["deepest"]
        (5.039, 48.0)
    """
    found: dict[str, float] = read_data("shape_priors.toml")["levine"]["constants"]
    return found


@functools.cache
def _told() -> dict[str, Any]:
    found: dict[str, Any] = read_data("rules.toml")["depth"]
    return found


__all__ = ["DepthLimits", "published_depths", "width_law"]
