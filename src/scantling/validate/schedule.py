"""How software cuts a local batch where a table does not print it: one reading for all readers."""

from __future__ import annotations


def stage_micro_batches(local_batch: int, pp: int) -> tuple[int, int]:
    """torchtitan: as many micro-batches as pipeline ranks, unless a flag says otherwise.

    Args:
        local_batch: Sequences of a step on one replica.
        pp: Ranks of its pipeline; without one the local batch is one micro-batch.

    Returns:
        Sequences of a micro-batch, and micro-batches of the local batch.

    Example:
        >>> stage_micro_batches(32, 8), stage_micro_batches(2, 1), stage_micro_batches(2, 4)
        ((4, 8), (2, 1), (1, 2))
    """
    if pp == 1:
        return local_batch, 1
    n = min(pp, local_batch)
    return max(1, local_batch // n), n
