"""One shape with everything a user sees of it: counted exactly, priced, aligned."""

from __future__ import annotations

import functools
import math
from typing import Any

import msgspec
from msgspec import Struct

from scantling.costs.alignment import power_of_two
from scantling.costs.count import Parameters
from scantling.costs.estimate import DAY_S, Estimate
from scantling.formats import hf
from scantling.laws import (
    Features,
    difference_terms,
    law,
    total,
    unseen,
)
from scantling.laws.hyperparameters import hyperparameters
from scantling.quantity import Quantity
from scantling.search.budget import Budget
from scantling.search.objectives import Costs, serving, training_plans
from scantling.search.peers import width_ratios
from scantling.search.shape_findings import axis_findings, rule_findings
from scantling.spec import Dense, Spec, dimensions, has
from scantling.spec.vary import nodes
from scantling.units import bytes_text, count_text

DIMENSIONS = (
    "n_layer", "n_encoder_layer", "d_model", "n_head", "n_kv_head", "d_head", "d_ff", "vocab_size",
    "n_expert", "top_k", "d_expert", "d_shared", "kv_rank", "q_rank", "d_nope", "d_rope", "d_value",
    "window", "n_key_head", "n_value_head", "d_inner", "n_ssm_head", "d_state",
)  # fmt: skip


class Candidate(Struct, frozen=True, kw_only=True):
    """One shape under one budget.

    ``loss`` is the law's with the centre of the prior terms, ``loss_upper`` with their upper end.
    """

    name: str
    spec: Spec
    budget: Budget
    counted: Parameters
    features: Features
    loss: float
    loss_upper: float
    train: Estimate
    decode: Estimate
    kv_bytes_per_token: int | float
    """Of one sequence at the serving context, by its tokens: an objective."""
    kv_growth: int | float
    """What a token adds while no window is full."""

    @property
    def days(self) -> float:
        """Training days on the budget's chips."""
        return float(self.train.value_s) / DAY_S

    @property
    def priced(self) -> bool:
        """Whether a law prices the loss: none was fitted to encoder-decoders."""
        return self.spec.encoder is None

    @property
    def extrapolation(self) -> float:
        """How many times the size lies beyond what the law was fitted to."""
        if not self.priced:
            return 1.0
        return float(law(self.budget.law).extrapolation(self.features))

    @property
    def costs(self) -> Costs:
        """What else it costs, each worked out when asked for."""
        return Costs(self.spec, self.budget, self.counted)

    def dims(self) -> dict[str, int]:
        """The dimensions that exist in this model."""
        found = {**dimensions(self.spec)}
        if scheduled(self.spec):
            found["d_ff"] = mean_ffn(self.spec)
        return {name: int(found[name]) for name in DIMENSIONS if name in found}

    def shape(self) -> dict[str, float]:
        """The ratios that engineers compare."""
        d, f = self.dims(), self.features
        ratios = width_ratios(d)
        aspect, passed = ratios.get("aspect", d["d_model"] / d["n_layer"]), ratios.get(
            "active_width_ratio")  # fmt: skip
        found: dict[str, float] = {"D/L": round(aspect, 2)}
        if passed is not None or "d_ff" in d:  # of a mixture all that a token passes
            found["F/D"] = round(d["d_ff"] / d["d_model"] if passed is None else passed, 3)
        if f.mlp_attention_ratio is not None:
            found["MLP/attention"] = round(float(f.mlp_attention_ratio), 3)
        if f.attention_width_ratio is not None:
            found["Hh/D"] = round(float(f.attention_width_ratio), 4)
        if f.kv_group is not None:
            found["H/K"] = round(float(f.kv_group), 3)
        return found


def candidate(spec: Spec, b: Budget, name: str = "") -> Candidate:
    """Count and price one shape.

    Example:
        >>> from scantling import catalog
        >>> from scantling.search.budget import budget
        >>> c = candidate(catalog.model("llama-3.1-8b"), budget(params=8 * 10**9))
        >>> c.counted.total, c.shape()["D/L"]
        (8030261248, 128.0)
    """
    costs = Costs(spec, b)
    return Candidate(
        name=name or _name(spec, b), spec=spec, budget=b, counted=costs.counted,
        features=costs.features, loss=float(costs.expected_loss), loss_upper=float(costs.loss),
        train=costs.training, decode=costs.decode,
        kv_bytes_per_token=_whole(costs.kv_bytes_per_token), kv_growth=_whole(costs.kv_growth),
    )  # fmt: skip


def _whole(value: Any) -> int | float:
    """An exact count stays an int."""
    return int(value) if float(value).is_integer() else float(value)


def _name(spec: Spec, b: Budget) -> str:
    """The name of a shape among others of a budget, which may list vocabularies."""
    found = shape_name(spec)
    return f"{found}-v{spec.vocab_size}" if "vocab_size" in b.listed else found


def shape_name(spec: Spec) -> str:
    """A name from the shape: ``37x3584-h128-24q8kv-f12544``, ``26x2304-h128-24q8kv-e144k8x1152``.

    Example:
        >>> from scantling import catalog
        >>> shape_name(catalog.model("deepseek-v3"))
        '61x7168-128q-r512-e256k8x2048-f18432'
    """
    d = dimensions(spec)
    name = f"{d['n_layer']}x{d['d_model']}"
    if "n_encoder_layer" in d:
        name = f"{d['n_encoder_layer']}+{name}"
    if {"d_head", "n_head", "n_kv_head"} <= set(d):
        name += f"-h{d['d_head']}-{d['n_head']}q{d['n_kv_head']}kv"
    elif "kv_rank" in d:
        name += f"-{d['n_head']}q-r{d['kv_rank']}"
    pattern = spec.decoder.layout[-1].pattern
    if len(pattern) > 1:
        name += f"-{len(pattern) - 1}to1" + ("-mamba2" if "n_ssm_head" in d else "")
    if "n_expert" in d:
        name += f"-e{d['n_expert']}k{d['top_k']}x{d['d_expert']}"
    if scheduled(spec):
        return f"{name}-f{'to'.join(map(str, turns(spec)))}"
    return f"{name}-f{d['d_ff']}" if "d_ff" in d else name


def ffn_widths(spec: Spec) -> dict[int, int]:
    """Layers of each width of a dense feed-forward, first to last."""
    found = dict[int, int]()
    layers = spec.decoder.occurrences()
    for kind in spec.decoder.kinds:
        for _, node in nodes(kind):
            if isinstance(node, Dense):
                found[int(node.d_ff)] = found.get(int(node.d_ff), 0) + int(layers[kind.name])
    return found


def turns(spec: Spec) -> list[int]:
    """Widths of a schedule where it begins, turns and ends: 4608, 2560, 4608."""
    by_kind = {kind.name: int(node.d_ff) for kind in spec.decoder.kinds
               for _, node in nodes(kind) if isinstance(node, Dense)}  # fmt: skip
    runs = [by_kind[run.pattern[0]] for run in spec.decoder.layout if run.pattern[0] in by_kind]
    first, last = runs[0], runs[-1]
    return [first, *(n for n in dict.fromkeys((min(runs), max(runs))) if n not in {first, last}),
            last]  # fmt: skip


def scheduled(spec: Spec) -> bool:
    """Whether a decoder without experts has feed-forwards of several widths."""
    return not has(spec, "n_expert") and len(spec.decoder.layout) > 1 and len(ffn_widths(spec)) > 1


def mean_ffn(spec: Spec) -> int:
    """Mean width of its feed-forwards over layers, rounded."""
    widths = ffn_widths(spec)
    return round(sum(width * n for width, n in widths.items()) / sum(widths.values()))


def difference(a: Candidate, reference: Candidate) -> Quantity:
    """The loss of one shape minus another's, with its interval: at equal tokens, or as budgeted.

    The law's own interval is for unrelated shapes; the closer two shapes are, the more of its
    error they share. ``approx_shared``: the half-width falls in proportion to the distance of
    the shapes in ln width, ln depth and ln body, full from a distance of one on (assumed: the
    law is smooth, nothing measures this). To it come the axes that no law prices, each for what
    the two do not share (``laws.difference_terms``); half-widths add in quadrature. At equal
    wall-clock what the interval of the time is worth in tokens adds too, and is likewise shared.
    """
    one = law(a.budget.law)
    fa, fb = a.features, reference.features
    found = one.difference(fa, fb)
    apart = math.hypot(
        math.log(float(fa.width / fb.width)), math.log(float(fa.depth / fb.depth)),
        math.log(float(fa.body / fb.body)),
    )  # fmt: skip
    approx_shared = min(1.0, apart)
    half = (float(found.high) - float(found.low)) / 2 * approx_shared
    mean = (one.loss(fa) + one.loss(fb)) / 2
    axes = difference_terms(fa, fb, mean, one.reference_ratio, one.form_name)
    prior = total(axes)
    value = float(found.value) + float(prior.centre)
    half = math.hypot(half, (_of_time(a) + _of_time(reference)) / 2 * approx_shared)
    below = math.hypot(half, float(prior.centre - prior.low))
    above = math.hypot(half, float(prior.high - prior.centre))
    why = [f"law {one.name}: {one.title}", f"source {one.source}"]
    if max(a.extrapolation, reference.extrapolation) > 1:
        why.append(f"extrapolated ×{max(a.extrapolation, reference.extrapolation):.1f}")
    why += [f"{axis} {term.centre + 0.0:+.3f} [{term.low:+.3f}, {term.high:+.3f}]"
            for axis, term in axes.items() if term.low != term.high]  # fmt: skip
    why += [one.text for one in unseen(fa, fb).values()]
    return Quantity(value=value, low=value - below, high=value + above, unit="nats/token",
                    kind="fitted", why=tuple(why))  # fmt: skip


def _of_time(c: Candidate) -> float:
    """By how much the interval of its time moves the loss of a shape at equal wall-clock."""
    b, f = c.budget, c.features
    if b.alike is None or b.equal != "wall-clock":
        return 0.0
    ends = (f.tokens * float(c.train.value_s / end) for end in (c.train.low_s, c.train.high_s))
    more, fewer = (law(b.law).loss(msgspec.structs.replace(f, tokens=n)) for n in ends)
    return abs(float(fewer - more)) / 2


UNPRICED = {
    "vocab_size", "top_k", "n_expert_group", "top_k_group", "kv_rank", "q_rank", "d_nope", "d_rope",
    "d_value", "rows",
}  # fmt: skip
"""Fields whose change the loss does not price: nats of two vocabularies cannot be compared, and
neither a law nor an ablation sees routing, ranks or learned positions."""


def findings(c: Candidate) -> list[dict[str, str]]:
    """What a user should know of a shape before training it."""
    found: list[dict[str, str]] = []

    def add(code: str, level: str, field: str, message: str) -> None:
        found.append({"code": code, "level": level, "field": field, "message": message})

    one = law(c.budget.law)
    if not c.priced:
        add("NOT-PRICED", "note", "loss", "no law was fitted to encoder-decoders: no loss is "
            "claimed, shapes of this size are ranked by cost")  # fmt: skip
    if c.extrapolation > 1:
        largest = one.domain[one.counts][1]
        add(
            "LAW-EXTRAPOLATED",
            "note",
            "loss",
            f"the loss is extrapolated ×{c.extrapolation:.1f}: the law was fitted to "
            f"a {one.counts} "
            f"of at most {largest / 1e9:.2g} B",
        )
    for axis, (low, high) in one.domain.items() if c.priced else ():
        value = {"tokens": c.features.tokens, one.counts: one.size(c.features)}.get(axis)
        if value is not None and (value < low or (value > high and axis == "tokens")):
            times = low / value if value < low else value / high
            add("LAW-OUTSIDE", "note", "loss",
                f"{axis} {count_text(float(value))} lies ×{times:.3g} outside the law's range "
                f"({count_text(low)} to {count_text(high)})")  # fmt: skip
    tokens, unique = float(c.features.tokens), c.features.unique_tokens
    if unique is not None and unique < tokens:
        fresh = msgspec.structs.replace(c.features, unique_tokens=None)
        cost = float(one.loss(c.features)) - float(one.loss(fresh))
        told = (f"costs {cost:.3f} nats over as many fresh ones" if cost > 0 else
                f"law '{c.budget.law}' does not see it, --law shape does")  # fmt: skip
        add("REPEATS", "note", "tokens", f"{tokens / float(unique):,.3g} passes over "
            f"{count_text(float(unique))} unique tokens: {told}")  # fmt: skip
    s, held = serving(c.budget), c.costs.serving_bytes
    if held > s.room_bytes:
        weights = bytes_text(float(c.costs.serving_memory.weights))
        add("DOES-NOT-FIT", "warning", "decode",
            f"serving takes up to {bytes_text(float(held))} of a chip ({weights} of weights), an "
            f"engine may fill {bytes_text(s.room_bytes)} of {s.split.n_gpu} × {s.chip.key}: the "
            f"time per token is a lower bound")  # fmt: skip
    found += rule_findings(c.spec, c.budget.train_context)
    return found + axis_findings(c.dims(), c.features)


@functools.lru_cache(maxsize=1024)
def hf_config(spec: Spec) -> dict[str, Any] | None:
    """The config of a shape, if a Hugging Face model type can say it."""
    from scantling.errors import FieldError

    try:
        return hf.write(spec)
    except FieldError:
        return None


def to_json(c: Candidate, reference: Candidate | None = None) -> dict[str, Any]:
    """A candidate by the contract of ``design --json``."""
    b, one, p = c.budget, law(c.budget.law), c.counted
    served = serving(b)
    half = float(one.interval(c.features))
    loss = None
    if c.priced:
        loss = Quantity(
            value=c.loss, low=c.loss - half, high=c.loss + half + c.loss_upper - c.loss,
            unit="nats/token", kind="fitted",
            why=(f"recipe: {one.recipe}", f"law {one.name}", f"source {one.source}"),
        ).to_json()  # fmt: skip
        loss["law"], loss["extrapolated"] = one.name, round(c.extrapolation, 2)
    if loss is not None and reference is not None and reference.priced:
        loss["difference"] = difference(c, reference).to_json()
        loss["difference_to"] = reference.name
    return {
        "name": c.name,
        "dims": c.dims(),
        "shape": c.shape(),
        "spec": msgspec.to_builtins(c.spec),
        "hf_config": hf_config(c.spec),
        "params": counted_json(p),
        "loss": loss,
        "objectives": {name: float(value) for name, value in c.costs.values().items()},
        "train": {
            "tokens": float(c.features.tokens),
            "days": days_quantity(c.train, b).to_json(),
            "gpu_hours": c.days * 24 * b.n_gpu,
            "cost": None if b.price is None else c.days * 24 * b.n_gpu * b.price,
            "workload": {"tokens": _whole(c.features.tokens), "context": b.train_context,
                         "gpu": b.chip, "gpus": b.n_gpu, "dtype": b.dtype},
        },
        "serve": {
            "kv_bytes_per_token": c.kv_growth, "kv_bytes_per_token_held": c.kv_bytes_per_token,
            "kv_bytes": _whole(c.costs.kv_bytes),
            "tpot_seconds": decode_quantity(c.decode, b).to_json(),
            "ttft_seconds": first_token_quantity(c.costs.first_token, b).to_json(),
            "tokens_per_second": float(c.costs.tokens_per_s),
            "cost_per_million": None if b.price is None else float(c.costs.cost_per_million),
            "memory": memory_json(c),
            "workload": {"context": b.serve_context, "batch": b.serve_batch,
                         "gpu": served.chip.key, "gpus": served.split.n_gpu,
                         "dtype": served.numbers.name, "kv_dtype": b.kv_dtype},
        },
        "alignment": {
            "power_of_two": {k: power_of_two(v) for k, v in c.dims().items()},
            "tile_waste": round(float(c.costs.tile_waste), 5),
        },
        "hyperparameters": hyperparameters(float(c.features.body), float(c.features.tokens)),
        "findings": findings(c),
    }  # fmt: skip


def counted_json(p: Parameters) -> dict[str, Any]:
    """Parameters by the contract; every one is exact."""
    return {
        "total": p.total, "active": p.active, "body": p.body, "embedding": p.embedding,
        "lm_head": p.lm_head, "buffers": p.buffers, "by_part": dict(p.by_part),
    }  # fmt: skip


def days_quantity(train: Estimate, b: Budget) -> Quantity:
    """Training days with their interval and reasons."""
    why = (
        f"operators on {b.chip} × {b.n_gpu}, {b.dtype}: kernels × what a step takes over them",
        "90 %, by what each part was off by in public runs (constants/step.toml)",
        plans_text(b),
    )
    return Quantity(
        value=float(train.value_s) / DAY_S,
        low=float(train.low_s) / DAY_S,
        high=float(train.high_s) / DAY_S,
        unit="days",
        kind="fitted",
        why=why,
    )


def plans_text(b: Budget) -> str:
    """The plain plan that training is timed with."""
    plan = training_plans(b)[0]
    split = f"TP {plan.tp}, PP {plan.pp}, EP {plan.ep}, optimizer states shared (ZeRO 1)"
    if plan.zero == 3:
        split = "weights, gradients and states shared by all (FSDP)"
    if len(training_plans(b)) == 1:
        return f"{split}, no memory limit"
    return f"{split}; the fastest in the memory of a few micro-batches, recomputing if it must"


def decode_quantity(decode: Estimate, b: Budget) -> Quantity:
    """Seconds per output token with their interval and reasons."""
    why = (
        f"{served_text(b)}, batch {b.serve_batch}, context {b.serve_context}",
        "a decode step of serve, prefills of others left out (constants/serve.toml)",
    )
    return _seconds(decode, why)


def first_token_quantity(first: Estimate, b: Budget) -> Quantity:
    """Seconds to the first token of a prompt as long as the serving context, alone."""
    why = (f"{served_text(b)}, a prompt of {b.serve_context} tokens, no queue",
           "a prefill of serve (constants/serve.toml)")  # fmt: skip
    return _seconds(first, why)


def _seconds(e: Estimate, why: tuple[str, ...]) -> Quantity:
    return Quantity(value=float(e.value_s), low=float(e.low_s), high=float(e.high_s), unit="s",
                    kind="fitted", why=why)  # fmt: skip


def served_text(b: Budget) -> str:
    """The chips that serve one copy, how it is split over them, and in what numbers."""
    s = serving(b)
    split = f" (TP {s.split.tp}, PP {s.split.pp})" if s.split.pp > 1 else ""
    return f"{s.split.n_gpu} × {s.chip.key}{split}, {s.numbers.name} weights"


def memory_json(c: Candidate) -> dict[str, Any]:
    """What the fullest serving chip holds, and whether that surely fits."""
    m, room = c.costs.serving_memory, serving(c.budget).room_bytes
    return {
        "total_bytes": {"value": float(m.total), "low": float(m.low), "high": float(m.high)},
        "weights_bytes": float(m.weights), "cache_bytes": float(m.cache), "room_bytes": room,
        "fits": bool(m.high <= room),
    }  # fmt: skip
