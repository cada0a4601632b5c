"""A time that no plan goes below: its kernels and its bubble, with all communication hidden."""

from __future__ import annotations

from typing import Any

from scantling.costs.passes import one_pass
from scantling.costs.pipeline import schedule
from scantling.costs.ranks import placed_operators
from scantling.search.plan_question import Question
from scantling.spec.plan import Plan


class Floors:
    """Lower bounds of step times; kernels are computed once for plans that share them.

    A step is the busiest stage's kernels for every micro-batch, the wait for the other stages,
    the communication that compute does not hide, and the optimizer (``costs.train.assemble``).
    The first two alone, without communication inside the stages, are a bound: both grow with the
    time of a layer, and the rest is never negative. The kernels depend on what a rank does with
    one micro-batch: on TP, CP, EP, the experts' TP and the micro-batch.

    Args:
        q: The question.
    """

    def __init__(self, q: Question) -> None:
        self.q = q
        self.c = q.chip.constants.step
        self.passes: dict[tuple[Any, ...], dict[str, float]] = {}

    def kernels(self, plan: Plan) -> dict[str, float]:
        """Seconds of a micro-batch: through the layers, of what may run again, of both ends."""
        key = (plan.tp, plan.cp, plan.ep, plan.expert_tp, plan.micro_batch)
        if key not in self.passes:
            q = self.q
            alone = Plan(tp=plan.tp, cp=plan.cp, ep=plan.ep, expert_tp=plan.expert_tp,
                         dp=plan.dp * plan.pp, sequence_parallel=plan.sequence_parallel,
                         micro_batch=plan.micro_batch)  # fmt: skip
            one = one_pass(placed_operators(q.spec, alone, q.context), q.recipe, q.chip)
            forward = float(one.forward.seconds(self.c, q.recipe))
            self.passes[key] = {
                "layers": forward + float(one.backward.seconds(self.c, q.recipe)),
                "full": forward, "none": 0.0,
                "selective": float(one.core.seconds(self.c, q.recipe)),
                "head": float(one.head.seconds(self.c, q.recipe)),
                "embedding": float(one.embedding.seconds(self.c, q.recipe)),
            }  # fmt: skip
        return self.passes[key]

    def seconds(self, plan: Plan) -> float:
        """The bound for one plan."""
        k = self.kernels(plan)
        n_layer = int(self.q.spec.n_layer)
        layers = k["layers"] + k.get(plan.recompute, 0.0)
        busy, bubble = schedule(n_layer, layers / n_layer, k["head"], k["embedding"], plan.pp,
                                plan.virtual, plan.n_micro_batch)  # fmt: skip
        return float(busy + bubble)
