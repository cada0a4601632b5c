"""Collectives: a latency and a bandwidth by protocol, within a node and between nodes."""

from __future__ import annotations

from typing import Any, Literal

from scantling.arith import Num, maximum
from scantling.costs.kernels.time import NO_TIME, Terms, Time, spread, within
from scantling.hardware import Cluster
from scantling.hardware.constants.collective import CollectiveConstants, Rings

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]
Algorithm = Literal["ring", "multicast"]

ROUNDS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
"""How often a ring passes (n − 1) / n of the message over each link."""


def collective_time(
    cluster: Cluster, kind: Collective, size: Num, ranks: int, stride: int = 1,
    algorithm: Algorithm | None = None,
) -> Time:  # fmt: skip
    """One collective.

    Within a node the library has two kinds of protocols, and takes the faster:

        passed = rounds × (1 − own / n) × message
        time   = min(latency + hops + passed / (quick × link),
                     latency + hops + chunks + passed / (plain × link))

    or, for an all-reduce of 5 ranks and more where the switch reduces,
    latency + message / (factor × link), if that is less.

    Chips that reach each other through the host over PCIe share its ways: each doubling of the
    ranks beyond two is taken to halve a link, and no switch reduces. On the one such machine that
    was measured, eight L40S, it fell from 20 GB/s with two ranks to 5 with four and 1 to 2 with
    eight, so the interval is wide.

    Between nodes the k ranks of a group that share a node have k ways into the network, and a
    ring goes through each node once, so each way carries a k-th of what a link carries. A node
    still passes all of it on inside: the slower of both counts. Of an all-to-all a rank sends the
    share (n − k) / n through its own way. Latency grows with the doublings of the nodes, as in a
    tree. Rings enter and leave a leaf of the network once, so that oversubscription of its spine
    does not slow them; an all-to-all it slows in full.

    Args:
        cluster: Where.
        kind: Which.
        size: Bytes of the whole message: what an all-gather ends with, a reduce-scatter starts
            with, an all-reduce holds, each rank of an all-to-all sends in all, a send sends.
        ranks: How many take part, n.
        stride: Chips from one rank to the next: the ranks of a group lie ``stride`` apart, so it
            stays within a node where ranks × stride chips fit in one.
        algorithm: The only one allowed; None is the library's choice.

    Example:
        >>> from scantling.hardware import cluster
        >>> collective_time(cluster("h100-sxm", 8), "all_reduce", 0.0, 1).value_s
        0.0
        >>> t = collective_time(cluster("h100-sxm", 8), "all_reduce", 2**30, 8)
        >>> 400e9 < 2 * 7 / 8 * 2**30 / t.value_s < 500e9
        True
    """
    if ranks == 1:
        return NO_TIME
    c, link = cluster.chip.constants.collective, cluster.node.link
    inside = ranks * stride <= cluster.node.n_gpu and link is not None
    here = min(ranks, max(1, cluster.node.n_gpu // stride)) if link is not None else 1
    hosted = (cluster.chip.link_kind or "").startswith("PCIe")
    if hosted:
        algorithm = "ring"
    if inside:
        assert link is not None
        way = link.bytes_per_s / (max(1.0, ranks / 2) if hosted else 1.0)
        terms, ideal = _inside(c, kind, size, ranks, way, algorithm)
        ideal = ideal * (way / link.bytes_per_s)
        off_by = tuple(max(e, c.hosted_spread / c.widen) for e in c.spread) if hosted else c.spread
    else:
        terms, ideal = _between(cluster, kind, size, ranks, here)
        if here > 1:
            assert link is not None
            way = link.bytes_per_s / (max(1.0, here / 2) if hosted else 1.0)
            local, least = _inside(c, kind, size, here, way, "ring")
            least = least * (way / link.bytes_per_s)
            terms = (terms[0] + local[0], maximum(terms[1], local[1] + local[2] + local[3]), 0, 0)
            ideal = maximum(ideal, least)
        off_by = (max(c.network_spread, c.hosted_spread / 2) if hosted else c.network_spread,) * 4
    value: Any = sum(terms)
    wide = spread(terms, off_by, c.widen)
    return within(ideal, value, value * wide, wide, wide)


def _inside(
    c: CollectiveConstants, kind: Collective, size: Num, ranks: int, link: float,
    algorithm: Algorithm | None,
) -> tuple[Terms, Num]:  # fmt: skip
    """Latency, bytes by the quick protocol, chunks and bytes by the plain one, within a node.

    Also the least time the bytes can take.
    """
    r: Rings = c.all_gather if kind == "send" else getattr(c, kind)
    passed: Any = size if kind == "send" else size * (ROUNDS[kind] * (1 - r.own / ranks))
    ideal: Any = size if kind == "send" else size * (ROUNDS[kind] * (ranks - 1) / ranks)
    latency: Any = r.latency_s + r.hop_s * (ranks - 1)
    quick, plain = passed / (r.quick * link), passed / (r.plain * link)
    chunks: Any = r.chunk_s + r.chunk_hop_s * (ranks - 1)
    m = c.multicast
    if kind == "all_reduce" and m is not None and ranks >= m.ranks and algorithm != "ring":
        ideal, switched = size, size / (m.factor * link)
        more = maximum(m.latency_s - latency, 0)
        ring: Any = 1.0 * (chunks + plain <= more + switched)
        chunks, plain = ring * chunks + (1 - ring) * more, ring * plain + (1 - ring) * switched
    hasty: Any = 1.0 * (quick <= chunks + plain)
    return (latency, hasty * quick, (1 - hasty) * chunks, (1 - hasty) * plain), ideal / link


def _between(
    cluster: Cluster, kind: Collective, size: Num, ranks: int, here: int
) -> tuple[Terms, Num]:
    """The same between nodes of which each holds ``here`` ranks: hops of the tree, and bytes."""
    c, way = cluster.chip.constants.collective, cluster.network.bytes_per_s
    nodes = -(-ranks // here)
    if kind == "send":
        ideal: Any = size / way
    elif kind == "all_to_all":
        ideal = size * ((ranks - here) / ranks) / way * cluster.oversubscription
    else:
        ideal = size * (ROUNDS[kind] * (ranks - 1) / ranks) / (way * here)
    doublings = 1 if kind == "send" else (nodes - 1).bit_length()
    return (c.network_hop_s * doublings, ideal / c.network_factor, 0, 0), ideal


__all__ = ["Algorithm", "Collective", "collective_time"]
