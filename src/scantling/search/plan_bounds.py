"""What no plan holds less than, and no plan is faster than: from sizes alone, for many at once."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from scantling.arith import minimum
from scantling.costs.activations import kept
from scantling.costs.adapters import packed_bytes
from scantling.costs.buffers import constants
from scantling.costs.count import parameters
from scantling.costs.exposed import context_group, expert_group, sharing, tensor_group
from scantling.costs.passes import NARROW, Work, one_pass, rotary
from scantling.costs.pipeline import stages
from scantling.costs.ranks import Placed, placed_operators
from scantling.ops import tensors
from scantling.search.plan_question import Question
from scantling.search.plan_space import Split, recomputes
from scantling.spec import dtype_bytes
from scantling.spec.plan import Plan

LARGE_TOKENS = 2**19
"""Tokens on a rank of the micro-batch whose kernels are the most efficient there are."""
MARGIN = 0.93
"""Of their time: a smaller shape may meet a chip's tiles and its power limit better."""


FIXED = ("kernels", "waits")
"""Kinds of work that take as long for any micro-batch."""
EXPERTS = ("experts", "experts_narrow")


class Kernels(Struct, frozen=True):
    """Seconds of a micro-batch at least, by mode of recompute."""

    token: dict[str, float]
    """For each token of the micro-batch."""
    fixed: dict[str, float]
    """For the micro-batch, whatever its size."""
    experts: dict[str, float]
    """Of products with experts, for each token."""
    sent: float
    """That TP and CP send and nothing hides, for each token."""
    ends: float
    """Of the embedding and the output product, for each token."""


class Bounds:
    """Lower bounds of memory and time.

    The most loaded stage holds at least the average of the stages:

        states       dense / (tp × pp) + routed / (ep × expert tp × pp), each × the bytes of what
                     ZeRO does not share, and the shared part over all ranks that share it
        activations  what the layer that keeps least keeps of a sequence × b × L / pp ×
                     Σ min(k, m) / pp, over k = 1 … pp: earlier stages have more in flight and no
                     fewer layers; and what the backward pass of a layer holds besides

    A step (``costs.train.assemble``) is at least, with t seconds a token of kernels at this TP
    and CP and c of communication that is never hidden, both of a large micro-batch, whose kernels
    and messages are the most efficient ones, g of gaps between kernels, and e of experts, which
    are at least read:

        pass     (t + c) × b × S + g + max(e × b × S, weights of the experts / bandwidth)
        busiest  max(pass / pp, layers of the fullest stage × (pass − head and embedding) / L)
        step     m × busiest + (pass − busiest) / virtual + shared × (m with ZeRO 2 or 3)

    where ``shared`` is the least that gathering weights and summing gradients adds once.

    Args:
        q: The question.
    """

    def __init__(self, q: Question) -> None:
        self.q = q
        counted = parameters(q.spec)
        weights = [t for t in tensors(q.spec) if t.experts is not None and t.alias is None]
        self.routed = float(sum(t.size() for t in weights))
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
        self.routed_beside = c.exposed_expert if r.overlap else c.serial
        self.kept: dict[tuple[int, int, int | None], dict[str, tuple[float, float]]] = {}
        self.layers: dict[tuple[int, int, int | None], Kernels] = {}
        self.experts: dict[tuple[int, int, int | None], float] = {}

    def _layers(self, tp: int, cp: int, expert_tp: int | None) -> Kernels:
        """What one micro-batch takes at least, but for what goes to experts elsewhere."""
        key = tp, cp, expert_tp
        if key not in self.layers:
            q, c = self.q, self.q.chip.constants.step
            batch = max(1, LARGE_TOKENS * cp // q.context)
            alone = Plan(tp=tp, cp=cp, dp=q.cluster.n_gpu // tp // cp, expert_tp=expert_tp,
                         micro_batch=batch, sequence_parallel=tp > 1)  # fmt: skip
            placed = placed_operators(q.spec, alone, q.context)
            one = one_pass(placed, alone, q.recipe, q.chip, turned=rotary(q.spec))
            hidden = int(q.spec.d_model) * batch * q.context / cp * dtype_bytes("bf16")
            sent = float(tensor_group(placed, hidden, alone, q.cluster)[0]) * self.beside
            if tp > q.cluster.node.n_gpu:
                sent = sent * c.serial / self.beside
            sent = sent + float(context_group(placed, alone, q.cluster, q.context)) * self.beside
            each = MARGIN / (batch * q.context)
            frozen = q.recipe.adapter is not None  # frozen weights get no gradients
            back = 0.5 if frozen else 1.0
            forward, core, products = map(self._parts, (one.forward, one.core, one.products))
            rest = [self._parts(w) for w in (one.backward, one.head, one.embedding)]
            once = [f + back * sum(part[i] for part in rest) for i, f in enumerate(forward)]
            nothing = (0.0, 0.0, 0.0)
            again = {
                "none": nothing, "selective": core, "full": forward,
                "products": [
                    f - c - p / 2 for f, c, p in zip(forward, core, products, strict=True)
                ],
            }  # fmt: skip
            self.layers[key] = Kernels(
                token={mode: (once[0] + more[0]) * each for mode, more in again.items()},
                fixed={mode: once[1] + more[1] for mode, more in again.items()},
                experts={mode: (once[2] + more[2]) * each for mode, more in again.items()},
                sent=sent * each,
                ends=sum(self._parts(w)[0] for w in (one.head, one.embedding)) * each,
            )
        return self.layers[key]

    def _parts(self, work: Work) -> tuple[float, float, float]:
        """Seconds of a pass that grow with tokens, that do not, and those of experts."""
        taken = work.taken(self.q.chip.constants.step, self.q.recipe)
        fixed = sum(float(taken.get(kind, 0.0)) for kind in FIXED)
        experts = sum(float(taken.get(kind, 0.0)) for kind in EXPERTS)
        return sum(float(v) for v in taken.values()) - fixed - experts, fixed, experts

    def _read(self, s: Split, mode: str) -> float:
        """Seconds a micro-batch takes to read the weights of its experts, in every pass."""
        q, c = self.q, self.q.chip.constants.step
        expert_tp = s.tp if s.expert_tp is None else s.expert_tp
        narrow = q.recipe.dtype in NARROW
        size = (0.5 if q.recipe.dtype == "nvfp4" else 1.0) if narrow else 2.0
        factor = c.experts * (c.matmul_at(q.recipe.dtype) if narrow else c.matmul)
        passes = (2 if q.recipe.adapter is not None else 3) + (mode == "full")
        held = self.routed / (s.ep * expert_tp)
        return float(passes * factor * held * size / q.chip.memory_bytes_per_s)

    def _experts(self, tp: int, ep: int, expert_tp: int | None) -> float:
        """Seconds a token to the experts and back."""
        key = tp, ep, expert_tp
        if key not in self.experts:
            q = self.q
            batch = max(1, LARGE_TOKENS // q.context)
            alone = Plan(tp=tp, ep=ep, expert_tp=expert_tp, dp=q.cluster.n_gpu // tp,
                         micro_batch=batch, sequence_parallel=tp > 1)  # fmt: skip
            placed = placed_operators(q.spec, alone, q.context)
            sent = expert_group(placed, q.spec, alone, q.cluster)
            self.experts[key] = float(sent) * self.routed_beside * MARGIN / (batch * q.context)
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

    def _layer_bytes(self, s: Split) -> dict[str, tuple[float, float]]:
        """What one sequence leaves in a layer, and what its backward pass holds, by recompute.

        Of the layer that keeps least, and of the one that holds least.
        """
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
            found = {}
            for mode in recomputes(q):
                plan = replace(whole, recompute=mode)
                each = [(kept(tuple(ops), q.spec.d_model, plan, q.recipe, rows), ops[0].op.times)
                        for ops in kinds.values()]  # fmt: skip
                again = mode in {"full", "products"}
                found[mode] = (
                    min(float(left.layers / n) for left, n in each),
                    min(float(left.temporary + (left.one_layer if again else 0))
                        for left, _ in each),
                )  # fmt: skip
            self.kept[key] = found
        return self.kept[key]

    def least_bytes(
        self, s: Split, zero: int, micro_batch: Any, n_micro_batch: Any
    ) -> dict[str, Any]:
        """The bound of the memory by mode of recompute, on arrays of micro-batches."""
        q = self.q
        ranks = q.fixed.get("shard") or s.dp * s.cp
        expert_tp = s.tp if s.expert_tp is None else s.expert_tp
        copies = s.ep * expert_tp
        states = (
            self.dense / (s.tp * s.pp) * self._each(zero, ranks)
            + self.routed / (copies * s.pp) * self._each(zero, max(1, ranks * s.tp // copies))
        )  # fmt: skip
        n, m = s.pp, minimum(n_micro_batch, s.pp)
        flying = (m * (m + 1) / 2 + (n - m) * m) / n
        waiting = micro_batch * flying * (int(q.spec.n_layer) / n)
        return {
            mode: states + size * waiting + beside * micro_batch
            for mode, (size, beside) in self._layer_bytes(s).items()
        }

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

    def least_seconds(
        self, s: Split, zero: int, micro_batch: Any, n_micro_batch: Any
    ) -> dict[str, Any]:
        """The bound of the step by mode of recompute, on arrays of micro-batches."""
        import numpy as np

        k = self._layers(s.tp, s.cp, s.expert_tp)
        sent = k.sent + (self._experts(s.tp, s.ep, s.expert_tp) / s.cp if s.ep > 1 else 0.0)
        shared = self._shared(s, zero)
        tokens = micro_batch * self.q.context
        layers = int(self.q.spec.n_layer)
        fullest = float(stages(layers, s.pp, s.virtual).most) / layers
        once = shared * n_micro_batch if zero >= 2 else shared
        found = {}
        for mode in recomputes(self.q):
            one = (k.token[mode] + sent) * tokens + k.fixed[mode]
            if self.routed:
                one = one + np.maximum(k.experts[mode] * tokens, self._read(s, mode))
            busiest = np.maximum(one / s.pp, (one - k.ends * tokens) * fullest)
            found[mode] = n_micro_batch * busiest + (one - busiest) / s.virtual + once
        return found
