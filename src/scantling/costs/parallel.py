"""Which splits of a model over chips are valid, and what one rank holds of it."""

from __future__ import annotations

from msgspec import Struct

from scantling.hardware import Cluster
from scantling.spec import Spec
from scantling.spec.plan import Plan


class Problem(Struct, frozen=True):
    """Why a plan cannot run: which degree, and the relation with its numbers."""

    field: str
    reason: str


def problems(spec: Spec, plan: Plan, cluster: Cluster, context: int) -> tuple[Problem, ...]:
    """Every reason why a plan cannot run; empty where it can."""
    found = []
    if plan.n_gpu != cluster.n_gpu:
        found.append(Problem("gpus", f"tp × pp × dp × cp is {plan.n_gpu}, not {cluster.n_gpu}"))
    if context % plan.cp:
        found.append(Problem("cp", f"{context} tokens cannot be split over CP {plan.cp}"))
    heads = int(spec.n_head)
    if heads % plan.tp:
        found.append(Problem("tp", f"{heads} heads cannot be split over TP {plan.tp}"))
    return tuple(found)
