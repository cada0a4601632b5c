"""Bytes that no plan holds less than, from sizes alone: what cannot fit is never computed."""

from __future__ import annotations

from scantling.costs.adapters import STORED_BITS
from scantling.costs.count import parameters
from scantling.ops import tensors
from scantling.search.plan_question import Question
from scantling.spec import dtype_bytes
from scantling.spec.plan import Plan


class LeastMemory:
    """A lower bound of a plan's memory.

    The most loaded stage holds at least the average of the stages:

        states       dense / (tp × pp) + routed / (ep × expert tp × pp), each × the bytes of what
                     ZeRO does not share, the shared part over all chips
        activations  in every mode of recompute, the input of each layer for each micro-batch in
                     flight: b × S / cp × D / tp × 2 bytes × L / pp × Σ min(k, m) / pp, k = 1 … pp

    or the states and the logits of the last stage in 16 bits, unless the loss is chunked.

    Args:
        q: The question.
    """

    def __init__(self, q: Question) -> None:
        self.q = q
        counted = parameters(q.spec)
        self.routed = float(sum(t.size() for t in tensors(q.spec) if t.experts is not None))
        self.dense = float(counted.total) - self.routed
        self.kept = self.shared = 0.0
        r = q.recipe
        self.weights = dtype_bytes(r.weights)
        self.gradients = 0.0 if r.offload else dtype_bytes(r.gradients)
        self.states = 0.0 if r.offload or r.master is None else dtype_bytes(r.master)
        if r.adapter is not None:
            self.weights = STORED_BITS[r.adapter.weights] / 8
            self.gradients = self.states = 0.0

    def bytes(self, p: Plan) -> float:
        """The bound for one plan."""
        q = self.q
        ranks = p.zero_ranks
        each = (
            self.weights / (ranks if p.zero >= 3 else 1)
            + self.gradients / (ranks if p.zero >= 2 else 1)
            + self.states / (ranks if p.zero >= 1 else 1)
        )
        expert_tp = p.tp if p.expert_tp is None else p.expert_tp
        routed = self.routed / (p.ep * expert_tp * p.pp)
        states = self.dense / (p.tp * p.pp) * each + routed * each_routed(self, p, expert_tp)
        tokens = p.micro_batch * q.context / p.cp
        n, m = p.pp, p.n_micro_batch
        flying = n * (n + 1) / 2 if m >= n else m * (m + 1) / 2 + (n - m) * m
        stream = tokens * int(q.spec.d_model) / p.tp * 2
        return states + stream * int(q.spec.n_layer) / n * flying / n
