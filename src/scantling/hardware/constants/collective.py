"""Constants of collectives."""

from __future__ import annotations

from msgspec import Struct

from scantling.hardware.constants.fitted import Fitted


class Rings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one collective costs over links, by NCCL's two kinds of protocols.

    A quick protocol signals with every few bytes: little latency, little bandwidth. A plain one
    sends chunks and then says so: more latency, all the bandwidth. The library takes the faster.

    Args:
        latency_s: What a small collective costs beside its hops.
        hop_s: What each rank beyond the first adds.
        quick: Fraction of the link's one-way bandwidth the quick protocol reaches.
        chunk_s: What the plain protocol costs more.
        chunk_hop_s: What it costs more for each rank beyond the first.
        plain: Fraction of the bandwidth it reaches.
        own: Share of a rank's own part of the message that is no work: 1 where it costs nothing,
            less where it is copied.
    """

    latency_s: float
    hop_s: float
    quick: float
    chunk_s: float
    chunk_hop_s: float
    plain: float
    own: float


class Multicast(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Reduction inside the switch (NVLS): each rank sends a message once and receives it once.

    Args:
        latency_s: What it costs beside the bytes.
        factor: Fraction of the link's one-way bandwidth it reaches.
        ranks: From how many ranks on it is used.
    """

    latency_s: float
    factor: float
    ranks: int = 5


class CollectiveConstants(Fitted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of a link collectives reach, and what a small one costs.

    Args:
        all_reduce: Two passes around a ring.
        all_gather: One pass.
        reduce_scatter: One pass.
        all_to_all: Each rank to each other at once.
        multicast: Reduction in the switch; None where the switch cannot.
        network_hop_s: What each doubling of the nodes adds.
        network_factor: Fraction of the network's bandwidth a large ring reaches.
        spread: How far latency, bytes by the quick protocol, chunks and bytes by the plain one may
            lie off: the logarithm of each one's factor, for a 90 % interval of their sum.
        hosted_spread: The same of all time where chips reach each other through the host.
        network_spread: The same of all time between nodes, which is assumed.
        error: Mean absolute relative error from 16 MiB on.
    """

    all_reduce: Rings
    all_gather: Rings
    reduce_scatter: Rings
    all_to_all: Rings
    network_hop_s: float
    network_factor: float
    spread: tuple[float, float, float, float]
    network_spread: float
    hosted_spread: float
    error: float
    multicast: Multicast | None = None
