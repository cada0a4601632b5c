"""The answer of ``serve`` as data: the JSON contract and the lines that text and figures share."""

from __future__ import annotations

from typing import Any

from scantling.costs.estimate import Estimate
from scantling.costs.money import SERVING_POWER_SHARE
from scantling.costs.serve import Times, serve_constants, widened
from scantling.costs.serving_memory import shared_sequences
from scantling.costs.serving_scheme import Numbers, numbers
from scantling.formats.vllm import Deployed, deployed_flags, stack_notes
from scantling.quantity import Kind, Quantity
from scantling.search.serving import MOST_RUNNING, Capacity, Point, Row, Served, Trial
from scantling.search.serving_question import Question
from scantling.search.serving_space import Held, Layout
from scantling.spec import Spec
from scantling.spec.plan import Plan

PARTS = ("weights", "cache", "activations", "logits", "overhead", "adapters", "draft")
"""What a chip holds, as ``ServingMemory`` names it."""
TOLD = (
    "assumed",
    "left out",
    "no effect",
    "the context is extended",
    "yarn",
    "linear",
    "rope_type",
    "max_position",
)
"""Notes of the model's reader that matter to who serves it, by their first words."""
WARNINGS = 6
"""Warnings told of a choice; more are of one kind."""
QUEUED = "a queue decides it: from nobody waiting to very uneven arrivals; no table measures it"


LONGER = "the longer context needs --hf-overrides too: export --to vllm --rope writes it"
"""What the flags of ``serve`` leave to ``export``."""


def to_json(found: Served) -> dict[str, Any]:
    """The contract of ``serve --json``; without a valid layout only what was asked and why not."""
    q = found.question
    told: dict[str, Any] = {
        "schema": 1, "model": q.name, "fits": found.fits, "verdict": found.verdict,
        "question": question_json(q),
        "valid": {"tp": found.valid.tp, "ep": found.valid.ep, "pp": found.valid.pp},
        "invalid": [{"degree": w.degree, "reason": w.reason} for w in found.invalid],
        "notes": notes(found), "remedies": list(found.remedies), "memory": None,
        "max_context": 0, "max_batch": 0,
    } | dict.fromkeys(("ttft_seconds", "tpot_seconds", "tokens_per_second"))  # fmt: skip
    if found.choice is not None:
        told |= row_json(found.choice, q)
        told["vllm"] = vllm_flags(found.choice, q)[0]
        told["alternatives"] = [_trial_json(t) for t in found.alternatives]
    told["rows"] = [row_json(r, q) for r in found.rows]
    told["skipped"] = [
        {"gpu": s.chip, "quant": s.scheme, "reason": s.reason} for s in found.skipped
    ]
    return told


def question_json(q: Question) -> dict[str, Any]:
    """What was asked, everything assumed included."""
    return {
        "gpu": [c.key for c in q.chips] if q.given else None, "gpus": list(q.gpus),
        "in": q.prompt, "out": q.answer, "context": q.context, "context_mean": q.mean_context,
        "context_p95": q.p95_context, "batch": q.batch, "concurrency": list(q.loads),
        "quant": [s.name for s in q.schemes], "kv_dtype": q.cache, "share": q.share,
        "hybrid": q.beside.by_kind, "adapters": q.beside.adapters, "chunk": q.beside.chunk,
        "prefix_hit": q.factors.prefix_hit, "guesses": q.factors.guesses,
        "accept": q.factors.accept, "skew": q.factors.skew, "price": q.price,
        "utilisation": q.utilisation, "fixed": q.fixed, "assumed": list(q.assumed),
    }  # fmt: skip


def row_json(r: Row, q: Question) -> dict[str, Any]:
    """One chip and quantisation with its limits, its speed at the largest load, and its price."""
    t = r.trial
    told = _trial_json(t) | {
        "max_context": usable_context(r, q), "max_context_by_memory": r.max_context,
        "trained_context": q.trained, "max_batch": r.max_batch,
    }  # fmt: skip
    if t.points:
        told |= _speed_json(t.points[-1], t, q)
        told["loads"] = [_speed_json(p, t, q) for p in t.points]
    if r.saturation is not None:
        told["saturation"] = _speed_json(r.saturation, t, q)
    if r.capacity is not None:
        told["capacity"] = _capacity_json(r.capacity, t, q)
    return told


def vllm_flags(r: Row, q: Question) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The flags of ``vllm serve`` for one replica of a row, and what no flag says."""
    t, s = r.trial, r.trial.layout.split
    within = None if r.capacity is None else r.capacity.expected
    most = max(q.batch, *q.loads, 1 if within is None else within.concurrency)
    each = shared_sequences(most, t.layout.groups)
    values, notes_ = deployed_flags(Deployed(
        tp=s.tp, pp=s.pp, dp=s.dp, experts_whole=s.ep > 1, context=q.context, sequences=each,
        chunk=q.beside.chunk, share=q.share, cache=q.cache, quant=t.scheme.name,
        eager=not q.beside.graphs, adapters=q.beside.adapters, rank=q.beside.rank,
        guesses=q.factors.guesses, gguf=t.scheme.mixed,
    ))  # fmt: skip
    notes_ = (*notes_, *stack_notes(q.spec))
    if q.trained is not None and q.context > q.trained:
        notes_ = (*notes_, LONGER)
    if t.chip.vendor == "Apple":
        notes_ = (*notes_, "the engine itself has no kernels for this GPU: llama.cpp and MLX have")
    if t.layout.replicas > 1:
        notes_ = (*notes_, f"start {t.layout.replicas} of these behind a balancer")
    return values, notes_


def usable_context(r: Row, q: Question) -> int:
    """What the memory holds, as far as the model was made for it."""
    made_for = max(q.trained or r.max_context, q.context)
    return min(r.max_context, made_for)


def _trial_json(t: Trial) -> dict[str, Any]:
    told = {
        "gpu": t.chip.key, "gpus": t.n_gpu, "quant": t.scheme.name, "layout": layout_json(t.layout),
        "fits": t.held.verdict == "fits", "verdict": t.held.verdict,
        "conditions": list(t.held.conditions), "memory": memory_json(t.held, t),
    }  # fmt: skip
    if t.points:
        p = t.points[-1]
        told |= {"tpot_seconds": _times(p.speed.tpot_s, "s", _timed(t)),
                 "tokens_per_second": _times(p.tokens_per_s, "tokens/s", _timed(t))}  # fmt: skip
    return told


def layout_json(one: Layout) -> dict[str, int]:
    """The degrees of a layout."""
    s = one.split
    return {"tp": s.tp, "pp": s.pp, "dp": s.dp, "ep": s.ep, "replicas": one.replicas,
            "gpus": one.n_gpu}  # fmt: skip


def memory_json(h: Held, t: Trial) -> dict[str, Any]:
    """Bytes on the fullest chip."""
    m = h.memory
    total = Quantity(value=float(m.total), low=float(m.low), high=float(m.high), unit="bytes",
                     kind="assumed", why=memory_why(h))  # fmt: skip
    return {
        "total_bytes": total.to_json(), "weights_bytes": int(m.weights),
        "cache_bytes": int(m.cache), "cache_ideal_bytes": int(m.cache_ideal),
        "cache_allocated_bytes": int(m.cache_full), "state_bytes": int(m.state),
        "activations_bytes": float(m.activations), "logits_bytes": float(m.logits),
        "overhead_bytes": float(m.overhead), "adapters_bytes": float(m.adapters),
        "draft_bytes": float(m.draft), "usable_bytes": t.chip.usable_bytes,
        "room_bytes": h.room_bytes, "margin_bytes": h.margin_bytes,
    }  # fmt: skip


def memory_why(h: Held) -> tuple[str, ...]:
    """What stands behind the interval of a memory."""
    low, high = float(h.memory.cache_ideal), float(h.memory.cache_full)
    return (
        "weights and cache are exact; driver, graphs, scratch and sampling are an assumed interval",
        f"cache: needed {low:,.0f} bytes, with pages for the full length {high:,.0f}",
    )


def _speed_json(p: Point, t: Trial, q: Question) -> dict[str, Any]:
    s, why = p.speed, _timed(t)
    told: dict[str, Any] = {
        "concurrency": p.concurrency, "running": p.running,
        "ttft_seconds": _times(s.ttft_s, "s", (*why, "without a queue")),
        "ttft_queued_seconds": _times(p.ttft_queued_s, "s", (
            QUEUED, f"prefills keep the queue {percent(p.prefill_share)} busy"), "assumed"),
        "tpot_seconds": _times(s.tpot_s, "s", why),
        "tokens_per_second": _times(p.tokens_per_s, "tokens/s", why),
        "tokens_per_second_per_gpu": float(p.tokens_per_s.value) / t.n_gpu,
        "tokens_per_second_per_user": 1 / float(s.tpot_s.value),
        "requests_per_second": float(p.tokens_per_s.value) / q.answer,
        "prefill_utilisation": p.prefill_share,
    }  # fmt: skip
    for name, bill in (("input", p.input_bill), ("output", p.output_bill)):
        if bill.cost is not None:
            why = (f"{q.price:g} a chip-hour, chips busy {percent(q.utilisation)} of it",)
            told[f"cost_per_million_{name}"] = _estimate(bill.cost, "money", why)
        if bill.joules is not None:
            told[f"joules_per_{name}_token"] = _estimate(
                bill.joules, "J", (energy_why(),), "assumed"
            )
    return told


def energy_why() -> str:
    """What stands behind the energy."""
    low, _, high = SERVING_POWER_SHARE
    return (
        f"{percent(low)} to {percent(high)} of the chip's TDP, assumed; hosts and cooling left out"
    )


def _capacity_json(c: Capacity, t: Trial, q: Question) -> dict[str, Any]:
    return {
        "slo": {"ttft_seconds": c.slo.ttft_s, "tpot_seconds": c.slo.tpot_s},
        "expected": None if c.expected is None else _speed_json(c.expected, t, q),
        "surely": None if c.surely is None else _speed_json(c.surely, t, q),
        "requests_per_second_per_gpu": None if c.expected is None else
        float(c.expected.tokens_per_s.value) / q.answer / t.n_gpu,
    }  # fmt: skip


def _timed(t: Trial) -> tuple[str, ...]:
    measured = f"; nothing was measured on {t.chip.key}" if unmeasured(t) else ""
    told = f"bytes and products on {t.chip.key}, one set of engine constants; 90 % interval"
    return (told + measured,)


def percent(share: float) -> str:
    """A share.

    Example:
        >>> percent(0.9)
        '90 %'
    """
    return f"{share:.0%}".replace("%", " %")


def unmeasured(t: Trial) -> bool:
    """Whether no measurement of serving stands behind a chip: its intervals are wider."""
    return serve_constants(t.chip).widen > 1


def _times(e: Times, unit: str, why: tuple[str, ...], kind: Kind = "fitted") -> dict[str, Any]:
    found: dict[str, Any] = Quantity(
        value=float(e.value), low=float(e.low), high=float(e.high), unit=unit, kind=kind, why=why
    ).to_json()
    return found


def _estimate(
    e: Estimate, unit: str, why: tuple[str, ...], kind: Kind = "fitted"
) -> dict[str, Any]:  # fmt: skip
    found: dict[str, Any] = Quantity(
        value=float(e.value_s), low=float(e.low_s), high=float(e.high_s), unit=unit, kind=kind,
        why=why,
    ).to_json()  # fmt: skip
    return found


def packs(spec: Spec, scheme: Numbers) -> bool:
    """Whether a scheme packs anything of a model.

    Example:
        >>> from scantling import catalog
        >>> from scantling.costs.serving_scheme import numbers
        >>> [packs(catalog.model(m), numbers("mxfp4")) for m in ("llama-3.1-8b", "mixtral-8x7b")]
        [False, True]
    """
    wide = numbers("bf16").rank_bytes(spec, Plan())
    return float(scheme.rank_bytes(spec, Plan())) < float(wide)


def notes(found: Served) -> list[str]:
    """What to know beside the numbers."""
    q, r = found.question, found.choice
    told = [n for n in q.notes if n.startswith(TOLD)]
    if r is None:
        return told
    m, packed = r.trial.held.memory, r.trial.scheme
    if packed.scheme.quantised and not packs(q.spec, packed):
        told.append(f"{packed.name} packs {' and '.join(sorted(packed.scheme.parts))} alone, and "
                    "the model has none: its weights stay in 16 bits")  # fmt: skip
    told += found.warnings[:WARNINGS]
    if float(m.cache_full) > 1.05 * float(m.cache) and not q.beside.by_kind:
        told.append(
            "windowed layers need little, but an engine may give them pages for the full length: "
            "the upper end counts those; --hybrid says that yours does not"
        )
    if q.mean_context is not None:
        told.append(f"{q.batch} sequences of mean {q.mean_context:,} and 95th percentile "
                    f"{q.p95_context:,} hold {q.held_context(q.batch):,} tokens each with 95 % "
                    "certainty; a burst beyond makes an engine preempt")  # fmt: skip
    if r.saturation is not None and r.saturation.running >= MOST_RUNNING:
        told.append(f"saturation is at {MOST_RUNNING} sequences a replica at most, the largest "
                    "default of engines")  # fmt: skip
    if q.factors.guesses and q.factors.draft is None:
        told.append("guesses cost nothing here but their check: give --draft to price a model")
    over = [p for p in r.trial.points if r.max_batch and p.concurrency > r.max_batch]
    if over:
        told.append(f"{over[0].concurrency} requests are more than the {r.max_batch} that fit for "
                    "certain: the rest waits")  # fmt: skip
    if widened(r.trial.chip, packed.dense):
        told.append("what unpacking costs was measured in experts only: the times take it for "
                    "dense weights too, and their fast ends leave it out")  # fmt: skip
    if q.spec.encoder is not None:
        told.append(
            "the decoder is taken to pass a prompt of its own beside what the encoder reads: "
            "an upper bound"
        )
    if unmeasured(r.trial):
        told.append(f"no measurement of {r.trial.chip.key} stands behind its efficiency: the "
                    "intervals are wider")  # fmt: skip
    if r.trial.n_gpu > q.gpus_per_node:
        told.append("what stages send between machines is not timed")
    return told
