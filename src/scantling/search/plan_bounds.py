"""What no plan holds less than, and no plan is faster than: from sizes alone, for many at once."""

from __future__ import annotations

from typing import Any

from scantling.costs.adapters import packed_bytes
from scantling.costs.count import parameters
from scantling.costs.passes import one_pass
from scantling.costs.ranks import placed_operators
from scantling.ops import tensors
from scantling.search.plan_question import Question
from scantling.search.plan_space import Split
from scantling.spec import dtype_bytes
from scantling.spec.plan import Plan

UNSPLIT_TOKENS = 2**19
"""Tokens of the micro-batch whose kernels stand for the best there are."""
MARGIN = 0.95
"""Of their time: a shape may meet a chip's tiles better than the unsplit one does."""


class Bounds:
    """Lower bounds of memory and time.

    The most loaded stage holds at least the average of the stages:

        states       dense / (tp × pp) + routed / (ep × expert tp × pp), each × the bytes of what
                     ZeRO does not share, and the shared part over all ranks that share it
        activations  the input of each layer for each micro-batch in flight, which every mode of
                     recompute keeps: b × S / cp × D / tp × 2 bytes × L / pp × Σ min(k, m) / pp,
                     over k = 1 … pp

    A step is at least its kernels and its bubble, with all communication hidden. No kernels are
    faster than those of a rank that splits nothing, on a large micro-batch: t seconds a token.

        kernels  t × b × S / (tp × cp × pp) a micro-batch and stage
        step     kernels × (m + (pp − 1) / virtual)

    Args:
        q: The question.
    """

    def __init__(self, q: Question) -> None:
        self.q = q
        counted = parameters(q.spec)
        weights = [t for t in tensors(q.spec) if t.experts is not None and t.alias is None]
        self.routed = float(sum(t.size() for t in weights))  # type: ignore[arg-type]
        self.dense = float(counted.total) - self.routed
        r = q.recipe
        self.weights = dtype_bytes(r.weights)
        self.gradients = 0.0 if r.offload else dtype_bytes(r.gradients)
        self.states = 0.0 if r.offload or r.master is None else dtype_bytes(r.master)
        if r.adapter is not None:
            self.weights = min(2.0, packed_bytes(r.adapter.weights))
            self.gradients = self.states = 0.0
        self.seconds_of = self._best_kernels()

    def _best_kernels(self) -> dict[str, float]:
        """Seconds a token by mode of recompute."""
        q = self.q
        batch = max(1, UNSPLIT_TOKENS // q.context)
        alone = Plan(dp=q.cluster.n_gpu, micro_batch=batch)
        one = one_pass(placed_operators(q.spec, alone, q.context), q.recipe, q.chip)
        c = q.chip.constants.step
        forward = float(one.forward.seconds(c, q.recipe))
        once = sum(
            float(work.seconds(c, q.recipe)) for work in (one.backward, one.head, one.embedding)
        )
        again = {
            "full": forward, "selective": float(one.core.seconds(c, q.recipe)),
        }  # fmt: skip
        if q.recipe.adapter is not None:  # frozen weights get no gradients
            once = once / 2
        each = MARGIN / (batch * q.context)
        return {mode: (forward + once + again.get(mode, 0.0)) * each
                for mode in ("none", "selective", "products", "full")}  # fmt: skip

    def least_bytes(self, s: Split, zero: int, micro_batch: Any, n_micro_batch: Any) -> Any:
        """The bound of the memory, on numbers or arrays of micro-batches."""
        import numpy as np

        q = self.q
        ranks = q.fixed.get("shard") or s.dp * s.cp
        expert_tp = s.tp if s.expert_tp is None else s.expert_tp
        copies = s.ep * expert_tp
        states = (
            self.dense / (s.tp * s.pp) * self._each(zero, ranks)
            + self.routed / (copies * s.pp) * self._each(zero, max(1, ranks * s.tp // copies))
        )  # fmt: skip
        n, m = s.pp, np.minimum(n_micro_batch, s.pp)
        flying = m * (m + 1) / 2 + (n - m) * m
        stream = micro_batch * (q.context / s.cp) * int(q.spec.d_model) / s.tp * 2.0
        return states + stream * (int(q.spec.n_layer) / n) * (flying / n)

    def _each(self, zero: int, ranks: int) -> float:
        """Bytes of a parameter on one rank."""
        return (
            self.weights / (ranks if zero >= 3 else 1)
            + self.gradients / (ranks if zero >= 2 else 1)
            + self.states / (ranks if zero >= 1 else 1)
        )

    def least_seconds(self, s: Split, mode: str, micro_batch: Any, n_micro_batch: Any) -> Any:
        """The bound of the step, on numbers or arrays of micro-batches."""
        kernels = self.seconds_of[mode] * micro_batch * self.q.context / (s.tp * s.cp * s.pp)
        return kernels * (n_micro_batch + (s.pp - 1) / s.virtual)
