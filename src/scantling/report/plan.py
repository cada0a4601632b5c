"""The answer of ``plan`` as data: the JSON contract and the lines that text and figures share."""

from __future__ import annotations

from typing import Any

import msgspec

from scantling.costs.adapters import adapted
from scantling.costs.count import parameters
from scantling.costs.estimate import Estimate
from scantling.costs.money import POWER_SHARE, Bill
from scantling.laws.hyperparameters import advice
from scantling.quantity import Kind, Quantity
from scantling.search.plan_inverse import limits_of
from scantling.search.plan_question import Question
from scantling.search.plans import Plans, Trial, run_bill, verdict
from scantling.spec.plan import Adapter, Plan

PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers")
"""What a rank holds, as ``TrainingMemory`` names it."""


def to_json(found: Plans) -> dict[str, Any]:
    """The contract of ``plan --json``; without a plan that may fit, what is nearest to one."""
    q = found.question
    answer: dict[str, Any] = {
        "schema": 1, "model": q.name, "fits": found.fits, "verdict": found.verdict,
        "question": question_json(q),
    }  # fmt: skip
    if found.choice is None:
        answer["closest"] = closest_json(found)
    else:
        answer |= trial_json(found.choice, q)
        if found.bill is not None:  # there is none where a later phase does not fit
            answer |= bill_json(found.bill, q)
        if q.method is not None:
            answer["finetune"] = finetune_json(found)
        answer["hyperparameters"] = hyperparameters(found)
        answer["notes"] = notes(found)
    answer["limits"] = limits_json(found)
    answer["alternatives"] = [_row(t, q) for t in found.alternatives]
    answer["front"] = [_row(t, q) for t in found.front]
    answer["rejected"] = [
        {"plan": r.plan, "reason": r.reason, "count": r.count} for r in found.rejected
    ]
    c = found.counts
    answer["search"] = {
        "considered": c.considered, "invalid": c.invalid, "too_large": c.too_large,
        "slower": c.slower, "timed": c.timed, "seconds": found.seconds,
    }  # fmt: skip
    if found.phases:
        answer["phases"] = [
            {**to_json(p), "tokens": p.question.tokens, "context": p.question.context}
            for p in found.phases
        ]
    return answer


def question_json(q: Question) -> dict[str, Any]:
    """What was asked, everything assumed included."""
    return {
        "gpu": q.chip.key, "gpus": q.cluster.n_gpu, "gpus_per_node": q.cluster.node.n_gpu,
        "network_bytes_per_s": q.cluster.network.bytes_per_s,
        "oversubscription": q.cluster.oversubscription, "context": q.context, "batch": q.batch,
        "batch_tokens": q.batch * q.context, "tokens": q.tokens, "goodput": q.goodput,
        "price": q.price, "fixed": q.fixed, "assumed": list(q.assumed),
        "phases": [{"tokens": p.tokens, "context": p.context} for p in q.phases],
        "recipe": {name: getattr(q.recipe, name) for name in q.recipe.__struct_fields__
                   if name != "adapter"},
        "adapter": None if q.recipe.adapter is None else msgspec.to_builtins(q.recipe.adapter),
    }  # fmt: skip


def trial_json(t: Trial, q: Question) -> dict[str, Any]:
    """One plan: its degrees, memory, time and shares."""
    s, m = t.step, t.memory
    return {
        "plan": plan_json(t.plan, q),
        "per_gpu_memory": {
            "total_bytes": memory_quantity(t, q).to_json(),
            **{part: float(getattr(m, part)) for part in PARTS}, "moment": m.moment,
            "usable_bytes": q.chip.usable_bytes, "verdict": verdict(m, q),
        },
        "step_seconds": quantity(s.step, "s", timed(q)).to_json(),
        "breakdown": {
            "compute": float(s.compute_s), "exposed_communication": float(s.communication_s),
            "bubble": float(s.bubble_s), "optimizer": float(s.optimizer_s),
            "recompute_within_compute": float(s.recompute_s),
        },
        "mfu": quantity(s.mfu, "share of peak", mfu_why(t)).to_json(),
        "hfu": quantity(s.hfu, "share of peak", mfu_why(t)).to_json(),
        "flops_convention": s.convention,
        "tokens_per_second_per_gpu": quantity(speed(t, q), "tokens/s", timed(q)).to_json(),
    }  # fmt: skip


def plan_json(p: Plan, q: Question) -> dict[str, Any]:
    """The degrees of a plan by the contract, and the rest of its fields."""
    return {
        "tp": p.tp, "pp": p.pp, "dp": p.dp, "cp": p.cp, "ep": p.ep, "zero": p.zero,
        "micro_batch": p.micro_batch, "global_batch": p.global_batch, "recompute": p.recompute,
        "precision": q.recipe.dtype, "n_micro_batch": p.n_micro_batch, "virtual": p.virtual,
        "expert_tp": p.expert_tp, "sequence_parallel": p.sequence_parallel,
        "recompute_layers": p.recompute_layers, "gpus": p.n_gpu,
        "global_batch_tokens": p.global_batch * q.context,
    }  # fmt: skip


def bill_json(b: Bill, q: Question) -> dict[str, Any]:
    """Days, GPU-hours, energy and money."""
    why = (f"{q.tokens:,} tokens at the rate of a step",)
    found: dict[str, Any] = {
        "days": quantity(b.days, "days", why).to_json(),
        "gpu_hours": float(b.gpu_hours.value_s),
        "gpu_hours_interval": quantity(b.gpu_hours, "GPU-hours", why).to_json(),
    }
    if q.goodput is not None:
        stops = (*why, f"goodput {q.goodput:g}: share of calendar time that trains, given")
        found["calendar_days"] = quantity(b.calendar_days, "days", stops).to_json()
        found["calendar_gpu_hours"] = float(b.calendar_gpu_hours.value_s)
    if b.energy_kwh is not None:
        low, middle, high = POWER_SHARE
        assumed = (
            f"chips alone at {middle:.0%} of {q.chip.tdp_w:g} W (assumed, {low:.0%} to {high:.0%})",
        )
        found["energy_kwh"] = quantity(b.energy_kwh, "kWh", assumed, "assumed").to_json()
    if b.cost is not None:
        priced = (f"{q.price:g} a GPU-hour, given", "calendar GPU-hours")
        found["cost"] = quantity(b.cost, "money", priced).to_json()
    return found


def closest_json(found: Plans) -> dict[str, Any] | None:
    """The plan that holds least, by how much it is too large, and what would have to change."""
    if found.closest is None:
        return None
    p, m = found.closest
    q = found.question
    return {
        "plan": plan_json(p, q), "total_bytes": float(m.total), "low": float(m.low),
        "high": float(m.high), "usable_bytes": q.chip.usable_bytes,
        "missing_bytes": float(m.high) - q.chip.usable_bytes,
        **{part: float(getattr(m, part)) for part in PARTS}, "change": changes(found),
    }  # fmt: skip


def finetune_json(found: Plans) -> dict[str, Any]:
    """What adapters train, and how long a million tokens take."""
    q, choice = found.question, found.choice
    answer: dict[str, Any] = {"method": q.method}
    if isinstance(q.recipe.adapter, Adapter):
        a = adapted(q.spec, q.recipe.adapter)
        answer |= {
            "trainable_parameters": int(a.parameters),
            "share": float(a.parameters) / float(parameters(q.spec).total),
            "modules": list(a.modules), "skipped": list(a.skipped), "notes": list(a.notes),
        }  # fmt: skip
    else:
        answer["trainable_parameters"] = int(parameters(q.spec).total)
    if choice is not None:
        per_million = choice.step.step.times(1e6 / choice.step.tokens)
        answer["seconds_per_million_tokens"] = quantity(per_million, "s", timed(q)).to_json()
    return answer


def limits_json(found: Plans) -> dict[str, Any] | None:
    """How far the plan, or the one nearest to fitting, can be pushed."""
    plan = found.choice.plan if found.choice else found.closest[0] if found.closest else None
    if plan is None:
        return None
    limits = limits_of(found.question, plan)
    return {"longest_context": limits.context, "largest_micro_batch": limits.micro_batch,
            "why": "this split and recompute, the upper end of the memory's interval"}  # fmt: skip


def changes(found: Plans) -> list[str]:
    """What would have to change where nothing fits, the largest part first."""
    if found.closest is None:
        return ["no plan is valid: see the reasons"]
    _, m = found.closest
    q = found.question
    named = {part: float(getattr(m, part)) for part in PARTS}
    hints = {
        "weights": "more chips",
        "gradients": "more chips",
        "optimizer": "more chips, --optimizer adamw8bit, or --offload",
        "activations": f"a shorter --context than {q.context:,}, or more chips",
        "logits": f"--chunked-loss, or a shorter --context than {q.context:,}",
        "buffers": "more chips",
    }
    if q.recipe.adapter is not None:
        hints["weights"] = "more chips or a smaller model"
        if not q.recipe.adapter.packed:
            hints["weights"] = "--finetune qlora, or more chips"
    if q.method == "full":
        hints["gradients"] = hints["optimizer"] = "--finetune lora or qlora, or more chips"
    ordered = sorted(named, key=lambda part: -named[part])
    large = [part for i, part in enumerate(ordered)
             if i < 2 or named[part] > found.question.chip.usable_bytes]  # fmt: skip
    return [f"{part}: {hints[part]}" for part in large]


def hyperparameters(found: Plans) -> dict[str, Any]:
    """Advice for the run: rate, batch, warmup, steps, each with interval and source."""
    q = found.question
    counted = parameters(q.spec)
    return advice(
        float(counted.active_body), float(q.tokens), float(q.batch * q.context),
        method=q.method, total=float(counted.total),
    )  # fmt: skip


def notes(found: Plans) -> list[str]:
    """What to know beside the numbers."""
    q, choice = found.question, found.choice
    told = [note for note in q.notes if note.startswith("assumed")]
    if q.cluster.n_gpu > q.cluster.node.n_gpu:
        told.append("the network between nodes is assumed: every table here ends at a node")
    if q.spec.max_context is not None:
        told += [
            f"context {p.context:,} is beyond the {int(q.spec.max_context):,} the model states"
            for p in q.phases if p.context > int(q.spec.max_context)
        ]  # fmt: skip
    if choice is not None and int(q.spec.n_layer) % choice.plan.pp:
        each = -(-int(q.spec.n_layer) // choice.plan.pp)
        told.append(f"{int(q.spec.n_layer)} layers do not divide by PP {choice.plan.pp}: the "
                    f"fullest stage has {each}")  # fmt: skip
    if q.spec.encoder is not None:
        told.append("encoder and decoder each read a whole context; tokens are the decoder's")
    if q.recipe.adapter is not None:
        told.append("MFU counts as if every weight were trained")
    if q.chip.datasheet_only:
        told.append(f"no measurement of {q.chip.key} stands behind its efficiency")
    elif q.chip.constants.step.widen > 1:
        told.append(f"no training step of {q.chip.key} was measured: its times are inherited, and "
                    "their intervals wider")  # fmt: skip
    return told


def memory_quantity(t: Trial, q: Question) -> Quantity:
    """The peak of the most loaded rank."""
    m = t.memory
    why = (f"peak at {m.moment}", f"{q.chip.usable_bytes:,} usable bytes on {q.chip.key}")
    return Quantity(value=float(m.total), low=float(m.low), high=float(m.high), unit="bytes",
                    kind="fitted", why=why)  # fmt: skip


def quantity(e: Estimate, unit: str, why: tuple[str, ...], kind: Kind = "fitted") -> Quantity:
    """An estimate as a quantity with its interval."""
    return Quantity(value=float(e.value_s), low=float(e.low_s), high=float(e.high_s), unit=unit,
                    kind=kind, why=why)  # fmt: skip


def speed(t: Trial, q: Question) -> Estimate:
    """Tokens a second of one chip."""
    each = t.step.tokens / q.cluster.n_gpu
    s = t.step.step
    return Estimate(each / s.value_s, each / s.high_s, each / s.low_s)


def timed(q: Question) -> tuple[str, ...]:
    """What stands behind a time."""
    why = [f"kernels of {q.chip.key}, schedule, collectives; 90 % interval"]
    if q.cluster.n_gpu > q.cluster.node.n_gpu:
        why.append("between nodes: assumed")
    return tuple(why)


def mfu_why(t: Trial) -> tuple[str, ...]:
    """What MFU counts."""
    return (f"FLOPs convention {t.step.convention}", "peak: dense rate of the recipe's dtype")


def _row(t: Trial, q: Question) -> dict[str, Any]:
    """A plan as a row of a table."""
    b = run_bill(q, t, q.phases[0])
    row = {
        "plan": plan_json(t.plan, q),
        "step_seconds": quantity(t.step.step, "s", timed(q)).to_json(),
        "mfu": quantity(t.step.mfu, "share of peak", mfu_why(t)).to_json(),
        "total_bytes": memory_quantity(t, q).to_json(), "verdict": verdict(t.memory, q),
        "days": float(b.days.value_s), "gpu_hours": float(b.gpu_hours.value_s),
        "breakdown": {
            "compute": float(t.step.compute_s), "bubble": float(t.step.bubble_s),
            "exposed_communication": float(t.step.communication_s),
            "optimizer": float(t.step.optimizer_s),
        },
    }  # fmt: skip
    if b.cost is not None:
        row["cost"] = float(b.cost.value_s)
    return row


def deadline_json(found: Plans, days: float) -> dict[str, Any]:
    """Whether a run meets its deadline: yes only at the upper end of its interval."""
    taken = None if found.bill is None else found.bill.calendar_days
    return {
        "days": days,
        "met": taken is not None and float(taken.high_s) <= days,
        "may_be_met": taken is not None and float(taken.low_s) <= days,
        "takes": None if taken is None else quantity(taken, "days", ("calendar",)).to_json(),
    }


def deadline_text(found: Plans, days: float) -> str:
    """The same in a line."""
    told = deadline_json(found, days)
    if told["takes"] is None:
        return f"deadline of {days:g} days: no plan fits"
    low, value, high = (told["takes"][k] for k in ("low", "value", "high"))
    how = "met" if told["met"] else "met only if all goes well" if told["may_be_met"] else "missed"
    return f"deadline of {days:g} days: {how}; {value:.3g} calendar days ({low:.3g} to {high:.3g})"
