"""A real plan for a shape of a front: does it fit the chips, how fast is it with the best split.

The sweep times every shape with a plain plan, which asks no memory unless there is a limit on it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from scantling.costs.estimate import DAY_S, NODE
from scantling.errors import FieldError
from scantling.search.budget import Budget
from scantling.search.candidate import Candidate
from scantling.search.objectives import training_plans
from scantling.search.plan_question import question
from scantling.search.plans import Plans, answer
from scantling.spec import Spec
from scantling.spec.plan import Plan
from scantling.units import bytes_text, count_text


def planned(
    spec: Spec, b: Budget, tokens: float, *, alone: bool = False, like: Plan | None = None
) -> Plans:
    """The best plan of a shape on the budget's chips, with the batch the sweep assumes.

    Args:
        spec: The shape.
        b: The budget; degrees it gives are kept, all other splits are tried.
        tokens: Its training tokens.
        alone: As in ``plans.answer``: the same plan sooner, without what a reader of it may ask.
        like: Likewise.

    Example:
        >>> from scantling import catalog
        >>> from scantling.search.budget import budget
        >>> b = budget(params="8B", tokens="1T", gpus=64)
        >>> planned(catalog.model("llama-3.1-8b"), b, 1e12).fits
        True
    """
    degrees = {name: getattr(b, name) for name in b.degrees}
    plain = training_plans(b)[0]
    sequences = plain.global_batch
    return answer(question(
        spec, gpu=b.chip, gpus=b.n_gpu, gpus_per_node=min(NODE, b.n_gpu), dtype=b.dtype,
        tokens=max(1, round(tokens)), context=b.train_context, batch=f"{sequences}seqs",
        price=b.price, cp=1, virtual=1, **degrees,
    ), alone=alone, like=like)  # fmt: skip


def planned_alike(c: Candidate, choice: Plans) -> Plans | None:
    """The best plan of a row beside the choice; None where its model cannot read the context."""
    like = None if choice.choice is None else choice.choice.plan
    try:
        return planned(c.spec, c.budget, float(c.features.tokens), alone=True, like=like)
    except FieldError:
        return None


def plan_json(found: Plans) -> dict[str, Any]:
    """What a reader of a front wants of a plan; ``plan --json`` has the rest."""
    usable = found.question.chip.usable_bytes
    head = {"verdict": found.verdict, "usable_bytes": usable}
    if found.choice is None:
        held = found.closest[1] if found.closest else None
        least = None if held is None else float(held.needed_low)
        return {**head, "plan": None, "least_bytes": least}
    one = found.choice
    assert found.bill is not None, "a plan that was chosen has a bill"
    days, mfu = found.bill.ideal_s.times(1 / DAY_S), one.step.mfu
    return {
        **head, "plan": msgspec.to_builtins(one.plan), "memory_bytes": float(one.memory.total),
        "memory_high_bytes": one.bytes, "mfu": float(mfu.value_s), "days": float(days.value_s),
        "cost": None if found.bill.cost is None else float(found.bill.cost.value_s),
    }  # fmt: skip


def plan_text(found: Plans) -> str:
    """The same in one line."""
    q, said = found.question, plan_json(found)
    where = f"{q.cluster.n_gpu} × {q.chip.key}"
    room = bytes_text(said["usable_bytes"])
    if said["plan"] is None:
        least = said["least_bytes"]
        needs = "" if least is None else f": at least {bytes_text(least)} a chip, it has {room}"
        return f"does not fit {where} in any split{needs}; more chips, or scantling plan"
    p = said["plan"]
    cost = said["cost"]
    paid = "" if cost is None else f", cost {count_text(cost)} at {q.price:g} a GPU-hour"
    return (f"{found.verdict} {where} ({split_text(p)}): "
            f"{bytes_text(said['memory_high_bytes'])} of {room} a chip at the upper end, "
            f"MFU {said['mfu']:.0%}, {said['days']:.3g} days{paid}")  # fmt: skip


def split_text(p: dict[str, Any], between: str = " ") -> str:
    """How a plan splits a step: its degrees, what ZeRO shares, what is computed again."""
    split = [f"{name.upper()}{between}{p[name]}" for name in ("tp", "pp", "dp", "ep")
             if p[name] > 1] or ["one chip"]  # fmt: skip
    again = [] if p["recompute"] == "none" else [f"recompute {p['recompute']}"]
    return f"{between and ','} ".join([*split, f"ZeRO{between}{p['zero']}", *again])


def plan_cell(found: Plans | None) -> str:
    """The days a plan takes and its split, for a table; empty where there is none to find."""
    if found is None:
        return ""
    said = plan_json(found)
    if said["plan"] is None:
        return "does not fit"
    only = "" if found.fits else f", {found.verdict}"
    return f"{said['days']:.3g}: {split_text(said['plan'], '')}{only}"


__all__ = ["plan_cell", "plan_json", "plan_text", "planned", "planned_alike"]
