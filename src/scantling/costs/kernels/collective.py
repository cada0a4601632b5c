"""Collectives: a latency and a bandwidth, within a node and between nodes."""

from __future__ import annotations

from typing import Literal

from scantling.arith import Num
from scantling.costs.kernels.time import NO_TIME, Time, within
from scantling.hardware import Cluster

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]

ROUNDS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
"""How often a ring passes (n − 1) / n of the message over each link."""


def collective_time(
    cluster: Cluster, kind: Collective, size: Num, ranks: int, stride: int = 1
) -> Time:
    """One collective.

        bytes over the slowest link = rounds × (n − 1) / n × message
        time = latency + bytes / (bandwidth factor × bandwidth)

    Args:
        cluster: Where.
        kind: Which.
        size: Bytes of the whole message: what an all-gather ends with, a reduce-scatter starts
            with, an all-reduce holds, each rank of an all-to-all sends in all, a send sends.
        ranks: How many take part, n.
        stride: Chips from one rank to the next: the ranks of a group lie ``stride`` apart, so it
            stays within a node where ranks × stride chips fit in one.

    Example:
        >>> from scantling.hardware import cluster
        >>> collective_time(cluster("h100-sxm", 8), "all_reduce", 0.0, 1).value_s
        0.0
    """
    if ranks == 1:
        return NO_TIME
    c = cluster.chip.constants.collective
    inside = ranks * stride <= cluster.node.n_gpu and cluster.node.link is not None
    link = cluster.node.link if inside else cluster.network
    assert link is not None
    latency = c.latency_s if inside else c.network_latency_s
    share = 1.0 if kind == "send" else ROUNDS[kind] * (ranks - 1) / ranks
    passed = size * share
    ideal = passed / link.bytes_per_s
    value = latency + ideal / c.bandwidth_factor
    wide = (1 + 2 * c.error) ** c.widen
    return within(ideal, value, value * wide, wide, wide)
