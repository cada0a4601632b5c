"""The schedule of a pipeline: 1F1B, plain or interleaved."""

from __future__ import annotations

from msgspec import Struct

from scantling.arith import Dim, Num, ceil_div, maximum


class Stages(Struct, frozen=True):
    """How the layers lie on the stages."""

    most: Dim
    """Layers of the fullest stage."""
    last: Dim
    """Layers of the stage with the output product."""


def stages(n_layer: Dim, pp: int, virtual: int) -> Stages:
    """Layers of the stages.

    Every chunk of every stage has ceil(L / (pp × virtual)) layers as long as there are any; the
    last ones run out, which leaves room for the output product there.

    Example:
        >>> stages(126, 16, 1)
        Stages(most=8, last=6)
        >>> stages(32, 4, 2)
        Stages(most=8, last=8)
    """
    most = ceil_div(n_layer, pp * virtual) * virtual
    return Stages(most, maximum(n_layer - (pp - 1) * most, 0))


def schedule(
    n_layer: Dim, layer_s: Num, head_s: Num, embedding_s: Num, plan_pp: int, virtual: int,
    n_micro_batch: int,
) -> tuple[Num, Num]:  # fmt: skip
    """The busiest stage's time of a step, and the bubble.

    One stage runs every micro-batch: m × its own time t. Before its first one and after its last
    it waits for the other stages to be passed once, forward and backward, a chunk each:
    the sum of their times / virtual (Narayanan et al. 2021, section 2.2, where all are equal:
    (pp − 1) t / virtual).

    Args:
        n_layer: Layers of the model, L.
        layer_s: One micro-batch through one layer, forward and backward.
        head_s: Through the output product and the loss.
        embedding_s: Through the embedding.
        plan_pp: Stages.
        virtual: Chunks of a stage.
        n_micro_batch: Micro-batches, m.

    Example:
        >>> schedule(8, 1.0, 0.0, 0.0, 4, 1, 16)
        (32.0, 6.0)
        >>> schedule(8, 1.0, 0.0, 0.0, 4, 2, 16)
        (32.0, 3.0)
    """
    if plan_pp == 1:
        return n_micro_batch * (n_layer * layer_s + head_s + embedding_s), 0.0
    laid = stages(n_layer, plan_pp, virtual)
    busiest = maximum(laid.most * layer_s + embedding_s, laid.last * layer_s + head_s)
    whole = n_layer * layer_s + head_s + embedding_s
    others = maximum(whole - busiest, 0.0)
    return n_micro_batch * busiest, others / virtual
