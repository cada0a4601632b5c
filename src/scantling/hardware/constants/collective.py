"""Constants of collectives."""

from __future__ import annotations

from scantling.hardware.constants.fitted import Fitted


class CollectiveConstants(Fitted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of a link collectives reach, and what a small one costs.

    Args:
        bandwidth_factor: Fraction of the link's one-way bandwidth a large ring reaches.
        latency_s: What a small collective within a node costs, in whole.
        network_latency_s: The same between nodes.
        error: Mean absolute relative error.
    """

    bandwidth_factor: float
    latency_s: float
    network_latency_s: float
    error: float
