"""The learning rate where nothing is said: near the best of models below a million parameters."""

from __future__ import annotations

from typing import Literal

from scantling.spec import Spec

Param = Literal["sp", "mup", "completep"]
"""Parametrisations, see ``lab.param``."""

STEPS, WIDTH, RATE, MUP_RATE = 600, 64, 3e-3, 2.0**-7
"""The best rate of a small model was seen at 3e-3 for width 64 and 600 steps, 8e-3 for 200 steps,
and to fall at least as fast as the inverse of the width."""


def default_rate(spec: Spec, steps: int, param: Param = "sp") -> float:
    """The peak of a run, and the middle of a study's grid.

    Under the standard parametrisation 3e-3 (64 / D) (600 / steps)^0.9, with the steps held between
    150 and 2,400; under muP and CompleteP 2⁻⁷ in place of 3e-3 (64 / D), whatever the width.

    Args:
        spec: The model.
        steps: Of the whole run.
        param: Its parametrisation.

    Example:
        >>> from scantling import catalog
        >>> gpt2 = catalog.model("gpt2")
        >>> default_rate(gpt2, 600), default_rate(gpt2, 150) / default_rate(gpt2, 600)
        (0.00025, 3.4822022531844965)
    """
    rate = RATE * WIDTH / int(spec.d_model) if param == "sp" else MUP_RATE
    return rate * float((STEPS / min(max(steps, 150), 2400)) ** 0.9)
