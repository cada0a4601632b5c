"""Constants of attention kernels."""

from __future__ import annotations

from scantling.arith import Dim, Num
from scantling.hardware.constants.fitted import Fitted
from scantling.hardware.curve import interpolate


class AttentionConstants(Fitted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of a chip attention reaches.

    Args:
        prefill: (head width, fraction of the BF16 peak) of causal prefill attention.
        prefill_error: Mean absolute relative error.
    """

    prefill: tuple[tuple[int, float], ...]
    prefill_error: float

    def prefill_at(self, d_head: Dim) -> Num:
        """The fraction of the BF16 peak prefill reaches at a head width, or an array of them."""
        return interpolate(d_head, self.prefill)
