"""Constants of work that only moves bytes: norms, activations, lookups, the optimizer."""

from __future__ import annotations

from scantling.hardware.constants.fitted import Fitted


class ElementwiseConstants(Fitted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of the bandwidth such kernels reach.

    Args:
        bandwidth_factor: Fraction of the memory bandwidth.
        launch_s: What each kernel costs beside.
        error: Mean absolute relative error.
        slower: (log2 of the bytes of one kernel, factor on its time): small pieces may stay in a
            cache, large ones may be given pages that the system fills first. Empty where size does
            not count.
    """

    bandwidth_factor: float
    launch_s: float
    error: float
    slower: tuple[tuple[float, float], ...] = ()
