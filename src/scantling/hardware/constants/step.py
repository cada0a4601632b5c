"""Constants of a whole training step: what it takes beside its kernels."""

from __future__ import annotations

from scantling.hardware.constants.fitted import Fitted


class StepConstants(Fitted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a step takes over its kernels.

    Args:
        factor: Median of measured over kernels.
        low: The lower end of its 90 % range.
        high: The upper end.
    """

    factor: float
    low: float
    high: float
