"""What no plan holds less than, and no plan is faster than: from sizes alone, for many at once."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from scantling.costs.activations import kept
from scantling.costs.adapters import packed_bytes
from scantling.costs.buffers import constants
from scantling.costs.count import parameters
from scantling.costs.exposed import context_group, expert_group, sharing, tensor_group
from scantling.costs.passes import one_pass, rotary
from scantling.costs.ranks import Placed, placed_operators
from scantling.ops import tensors
from scantling.search.plan_question import Question
from scantling.search.plan_space import Split, recomputes
from scantling.spec import dtype_bytes
from scantling.spec.plan import Plan

LARGE_TOKENS = 2**19
"""Tokens of the micro-batch whose kernels are the most efficient there are."""
MARGIN = 0.95
"""Of their time: a shape may meet a chip's tiles better than the large one does."""


class Bounds:
    """Lower bounds of memory and time.

    The most loaded stage holds at least the average of the stages:

        states       dense / (tp × pp) + routed / (ep × expert tp × pp), each × the bytes of what
                     ZeRO does not share, and the shared part over all ranks that share it
        activations  what the layer that keeps least keeps of a sequence × b × L / pp ×
                     Σ min(k, m) / pp, over k = 1 … pp: earlier stages have more in flight and no
                     fewer layers

    A step (``costs.train.assemble``) is at least, for a large micro-batch of so many tokens, whose
    kernels and messages are the most efficient ones, with t seconds a token of kernels at this TP
    and CP, and c of communication that is never hidden:

        step     (t + c) × b × S / pp × (m + (pp − 1) / virtual) + shared × (m with ZeRO 2 or 3)

    where ``shared`` is the least that gathering weights and summing gradients adds once.

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
        c = q.chip.constants.step
        self.beside = c.exposed_tensor if r.overlap else c.serial
        self.kept: dict[tuple[int, int, int | None], dict[str, float]] = {}
        self.layers: dict[tuple[int, int], dict[str, float]] = {}
        self.experts: dict[tuple[int, int, int | None], float] = {}

    def _layers(self, tp: int, cp: int) -> dict[str, float]:
        """Seconds a token of a rank: kernels by mode of recompute, and what TP and CP send."""
        key = tp, cp
        if key not in self.layers:
            q, c = self.q, self.q.chip.constants.step
            batch = max(1, LARGE_TOKENS // q.context)
            alone = Plan(tp=tp, cp=cp, dp=q.cluster.n_gpu // tp // cp, micro_batch=batch,
                         sequence_parallel=tp > 1)  # fmt: skip
            placed = placed_operators(q.spec, alone, q.context)
            one = one_pass(placed, alone, q.recipe, q.chip, turned=rotary(q.spec))
            forward = float(one.forward.seconds(c, q.recipe))
            once = sum(
                float(work.seconds(c, q.recipe)) for work in (one.backward, one.head, one.embedding)
            )
            if q.recipe.adapter is not None:  # frozen weights get no gradients
                once = once / 2
            again = {"full": forward, "selective": float(one.core.seconds(c, q.recipe))}
            hidden = int(q.spec.d_model) * batch * q.context / cp * dtype_bytes("bf16")
            sent = tensor_group(placed, hidden, alone, q.cluster)[0]
            if tp > q.cluster.node.n_gpu:
                sent = sent * c.serial / self.beside
            sent = sent + context_group(placed, alone, q.cluster, q.context)
            each = MARGIN / (batch * q.context)
            found = {mode: (forward + once + again.get(mode, 0.0)) * each
                     for mode in ("none", "selective", "products", "full")}  # fmt: skip
            found["sent"] = float(sent) * each * self.beside
            self.layers[key] = found
        return self.layers[key]

    def _experts(self, tp: int, ep: int, expert_tp: int | None) -> float:
        """Seconds a token to the experts and back."""
        key = tp, ep, expert_tp
        if key not in self.experts:
            q = self.q
            batch = max(1, LARGE_TOKENS // q.context)
            alone = Plan(tp=tp, ep=ep, expert_tp=expert_tp, dp=q.cluster.n_gpu // tp,
                         micro_batch=batch, sequence_parallel=tp > 1)  # fmt: skip
            placed = placed_operators(q.spec, alone, q.context)
            sent = expert_group(placed, alone, q.cluster)
            self.experts[key] = float(sent) * self.beside * MARGIN / (batch * q.context)
        return self.experts[key]

    def _shared(self, s: Split, zero: int) -> float:
        """Seconds that sharing weights and gradients adds at least, once."""
        q, c = self.q, self.q.chip.constants.step
        if s.dp * s.cp == 1:
            return 0.0
        plan = Plan(tp=s.tp, pp=s.pp, dp=s.dp, cp=s.cp, ep=s.ep, expert_tp=s.expert_tp,
                    zero=zero, shard=q.fixed.get("shard"), sequence_parallel=s.tp > 1)  # type: ignore[arg-type]  # fmt: skip
        whole = Plan(tp=s.tp, ep=s.ep, expert_tp=s.expert_tp, sequence_parallel=s.tp > 1)
        placed = placed_operators(q.spec, whole, q.context)
        gather, reduced = sharing(placed, q.spec.n_layer, plan, q.recipe, q.cluster)
        if q.recipe.adapter is not None:  # of the adapters alone, which is next to nothing
            reduced = 0.0
        there = (2 if zero == 3 else 1 if zero else 0) * gather + reduced
        return float(there) * (c.exposed if q.recipe.overlap else c.serial)

    def _layer_bytes(self, s: Split) -> dict[str, float]:
        """What one sequence leaves in the layer that keeps least, by mode of recompute."""
        key = s.tp, s.cp, s.expert_tp
        if key not in self.kept:
            q = self.q
            whole = Plan(tp=s.tp, cp=s.cp, expert_tp=s.expert_tp, sequence_parallel=s.tp > 1)
            placed = placed_operators(q.spec, whole, q.context)
            rows = -(-q.context // s.cp)
            kinds: dict[str, list[Placed]] = {}
            for p in placed:
                if p.layer:
                    kinds.setdefault(p.layer, []).append(p)
            self.kept[key] = {
                mode: min(
                    float(kept(tuple(ops), q.spec.d_model, replace(whole, recompute=mode),
                               q.recipe, rows).layers / ops[0].op.times)
                    for ops in kinds.values()
                )
                for mode in recomputes(q)
            }  # fmt: skip
        return self.kept[key]

    def least_bytes(
        self, s: Split, zero: int, micro_batch: Any, n_micro_batch: Any
    ) -> dict[str, Any]:
        """The bound of the memory by mode of recompute, on arrays of micro-batches."""
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
        flying = (m * (m + 1) / 2 + (n - m) * m) / n
        waiting = micro_batch * flying * (int(q.spec.n_layer) / n)
        return {mode: states + size * waiting for mode, size in self._layer_bytes(s).items()}

    def surely(self, least: Any) -> Any:
        """What a chip must have so that as many bytes of tensors surely fit."""
        c = constants()
        outside = ["context", "communicator"] if self.q.cluster.n_gpu > 1 else ["context"]
        reserved = float(c["reserved"]["high"])
        return least * reserved + float(sum(c[name]["high_bytes"] for name in outside))

    def _each(self, zero: int, ranks: int) -> float:
        """Bytes of a parameter on one rank."""
        return (
            self.weights / (ranks if zero >= 3 else 1)
            + self.gradients / (ranks if zero >= 2 else 1)
            + self.states / (ranks if zero >= 1 else 1)
        )

    def least_seconds(self, s: Split, zero: int, micro_batch: Any, n_micro_batch: Any) -> Any:
        """The bound of the step by mode of recompute, on arrays of micro-batches."""
        k = self._layers(s.tp, s.cp)
        sent = k["sent"] + (self._experts(s.tp, s.ep, s.expert_tp) if s.ep > 1 else 0.0)
        shared = self._shared(s, zero)
        share = micro_batch * self.q.context / s.pp
        passes = n_micro_batch + (s.pp - 1) / s.virtual
        once = shared * n_micro_batch if zero >= 2 else shared
        return {mode: (k[mode] + sent) * share * passes + once for mode in recomputes(self.q)}
