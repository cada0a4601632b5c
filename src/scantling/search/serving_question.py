"""The question of ``serve``: which model, on what, in what numbers, at what load."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from scantling import catalog
from scantling.arith import LARGEST
from scantling.costs.quantize import scheme_of
from scantling.costs.serving_memory import Beside, pooled_context
from scantling.costs.serving_scheme import Numbers, all_numbers, numbers, stored_in
from scantling.costs.serving_speed import Factors
from scantling.errors import FieldError
from scantling.formats.context import extend, far_rope
from scantling.formats.target import context_of, scaling_of
from scantling.hardware import Chip, chip, chips
from scantling.ops import operators
from scantling.spec import Experts, Spec, Workload, kv_dtype_name
from scantling.spec.plan import Plan
from scantling.spec.vary import nodes
from scantling.units import bytes_text, parse_context, parse_count, parse_seconds

GPUS_PER_NODE = 8
CONTEXT = 8192
"""Tokens of a sequence where nothing is said, or what the model was trained for if less."""
ANSWER = 512
SHARE = 0.9
"""Of the memory that engines take unless told otherwise."""
COUNTS = (1, 2, 4, 8, 16)
"""Numbers of chips tried where none is given."""
SERVERS = {"NVIDIA", "AMD", "Intel", "Google", "Apple"}
AXES = ("tp", "pp", "dp", "ep")
WHOLE = re.compile(r"\s*\d+\s*")


class Slo(Struct, frozen=True):
    """Limits on the time to the first token and for each further one, seconds; None is none."""

    ttft_s: float | None = None
    tpot_s: float | None = None


class Question(Struct, frozen=True, kw_only=True):
    """A model to serve, and what is asked of it.

    Args:
        name: Of the model.
        spec: The model, its context extended where that was asked for.
        chips: Candidates; the one chosen where a chip was given.
        given: Whether chips were named.
        gpus: Numbers of chips tried, in rising order.
        gpus_per_node: A tensor group or a group of experts stays inside a machine.
        prompt: Tokens in.
        answer: Tokens out.
        context: Tokens of the longest sequence.
        mean_context: What the sequences in memory hold each, with 95 % certainty (``held_context``
            of the batch); None is the longest.
        p95_context: See ``mean_context``.
        batch: Sequences in memory at once.
        loads: Requests in flight at which speed is told.
        schemes: Quantisations of the weights.
        cache: Dtype of keys and values.
        share: Of the memory that the engine may fill.
        beside: Adapters, a draft model, and what the engine does.
        factors: What the user knows of the traffic.
        slo: Limits.
        price: Money for a chip for an hour; None leaves money out.
        utilisation: Share of the paid time at which chips run at the load.
        fixed: Degrees the user set.
        trained: Tokens the model was made for; None is not known.
        assumed: What was not given, in words.
        notes: What the reader of the model, or the extension of its context, had to say.
    """

    name: str
    spec: Spec
    chips: tuple[Chip, ...]
    given: bool
    gpus: tuple[int, ...]
    gpus_per_node: int
    prompt: int
    answer: int
    context: int
    mean_context: int | None
    p95_context: int | None
    batch: int
    loads: tuple[int, ...]
    schemes: tuple[Numbers, ...]
    cache: str
    share: float
    beside: Beside
    factors: Factors
    slo: Slo | None
    price: float | None
    utilisation: float
    fixed: dict[str, int]
    trained: int | None
    assumed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def held_context(self, sequences: int) -> int:
        """Tokens of each of so many sequences that memory must hold."""
        if self.mean_context is None or self.p95_context is None:
            return self.context
        held = pooled_context(sequences, self.mean_context, self.p95_context)
        return min(self.context, math.ceil(held))


def question(
    model: str | Path | dict[str, Any] | Spec | catalog.Loaded, *,
    gpu: str | Iterable[str] | None = None, gpus: int | str | None = None,
    gpus_per_node: int | str = GPUS_PER_NODE, context: int | str | None = None,
    context_mean: int | str | None = None, context_p95: int | str | None = None,
    batch: int | str | None = None, prompt: int | str | None = None,
    answer: int | str | None = None, concurrency: Any = None, quant: Any = None,
    kv_dtype: str = "bf16", share: float = SHARE, hybrid: bool = False, eager: bool = False,
    chunk: int | str | None = None, adapters: int | str | None = None, rank: int | str = 16,
    draft: Any = None, guesses: int | str | None = None, accept: float = 0.7,
    prefix_hit: float = 0.0, skew: float = 0.0, slo: Any = None, price: float | None = None,
    utilisation: float = 1.0, rope: str | None = None, assume: bool = False, **axes: Any,
) -> Question:  # fmt: skip
    """Read and check a question; every value may be text in human units.

    Args:
        model: A catalogue name, a path, a parsed config, a spec, or a loaded model.
        gpu: A chip, or several; None is every chip that could.
        gpus: Chips in all.
        gpus_per_node: Chips of a machine.
        context: Tokens of the longest sequence, prompt and answer.
        context_mean: Mean of sequences, where they differ.
        context_p95: Their 95th percentile.
        batch: Sequences in memory at once.
        prompt: Tokens in.
        answer: Tokens out.
        concurrency: Requests in flight: one, or several.
        quant: A quantisation, or several; ``any`` is all that the chips have kernels for.
        kv_dtype: Of the cache.
        share: Of the memory that the engine may fill, in (0, 1].
        hybrid: Whether the engine pages each kind of layer by its own need.
        eager: Whether it captures no graphs.
        chunk: Tokens of prompts that one step takes.
        adapters: Low-rank adapters loaded at once.
        rank: Their rank.
        draft: A smaller model that guesses ahead.
        guesses: Tokens it guesses for each step.
        accept: Chance that a guess is right.
        prefix_hit: Share of the prompt that is cached.
        skew: How unevenly tokens choose experts; see ``costs.serving_speed.Factors``.
        slo: ``ttft=500ms,tpot=30ms``.
        price: Money for a chip for an hour.
        utilisation: Share of the paid time at which chips run at the load.
        rope: How a context beyond the trained one is reached: ``yarn``, ``linear``, …
        assume: Whether a model type in no table is read as far as it goes.
        **axes: Degrees to fix: tp, pp, dp, ep.

    Raises:
        ScantlingError: If a value breaks a rule.

    Example:
        >>> q = question("llama-3.1-8b", gpu="l4", context="32k", quant="awq-int4", batch=8)
        >>> q.context, q.prompt, q.answer, q.loads
        (32768, 32256, 512, (8,))
    """
    one = model if isinstance(model, catalog.Loaded) else catalog.load(model, assume=assume)
    spec, notes = one.spec, list(one.notes)
    if one.towers:
        notes.append(f"left out: the weights of {' and '.join(one.towers)}, which an engine holds "
                     "as well unless told otherwise")  # fmt: skip
    _generates(spec)
    assumed: list[str] = []
    trained = context_of(spec)
    given = None if context is None else parse_context(context, "context")
    p, a = (
        None if n is None else parse_context(n, f) for f, n in (("in", prompt), ("out", answer))
    )
    whole = given or (None if p is None else p + (a or ANSWER))
    if whole is None:
        asked = CONTEXT if context_p95 is None else parse_context(context_p95, "context_p95")
        whole = max(min(CONTEXT, trained or CONTEXT), asked if context_p95 is not None else 0)
        assumed.append(f"context {whole:,}")
    if trained is not None and whole > trained:
        spec, more = _extended(spec, whole, trained, rope)
        notes += more
    elif rope is not None:
        raise FieldError("rope", rope, f"is not needed: {whole:,} tokens are within the "
                         f"{trained or whole:,} the model was made for")  # fmt: skip
    mean, p95 = _distribution(context_mean, context_p95, whole)
    p, a = _in_and_out(p, a, whole, mean or whole, assumed)
    loads = _counts("concurrency", concurrency)
    n = parse_count(batch, "batch") if batch is not None else max(loads, default=1)
    _small("batch", n)
    own = _beside(one, hybrid=hybrid, eager=eager, chunk=chunk, adapters=adapters, rank=rank,
                  draft=draft, guesses=guesses)  # fmt: skip
    factors = Factors(
        prefix_hit=_share("prefix-hit", prefix_hit, least=0.0), draft=own.draft,
        guesses=_guesses(guesses, draft), accept=_share("accept", accept, least=0.0, most=1.0),
        chunk=own.chunk, skew=_share("skew", skew, least=0.0, most=4.0),
    )  # fmt: skip
    found, named = _chips(gpu)
    fixed = _axes(axes)
    _bare_slo(slo, assumed)
    notes += _unused(spec, {"skew": skew, "rank": rank, "accept": accept, "adapters": adapters,
                            "guesses": guesses, "draft": draft, "price": price,
                            "utilisation": utilisation})  # fmt: skip
    least = math.prod(fixed.get(axis, 1) for axis in ("tp", "pp", "dp"))
    machine = _small("gpus_per_node", parse_count(gpus_per_node))
    tried = _gpus(least if gpus is None and (named or least > 1) else gpus)
    _whole_machines(tried, machine, asked=gpus is not None)
    return Question(
        name=one.name, spec=spec, chips=found, given=named,
        gpus=tried, gpus_per_node=machine,
        prompt=p, answer=a, context=whole, mean_context=mean, p95_context=p95, batch=n,
        loads=loads or (n,), cache=kv_dtype_name(kv_dtype),
        schemes=_schemes(quant, one, assumed, spec, found, given=named),
        share=_share("share", share, most=1.0), beside=own, factors=factors, slo=read_slo(slo),
        price=_price(price), utilisation=_share("utilisation", utilisation, most=1.0),
        fixed=fixed, trained=trained, assumed=tuple(assumed), notes=tuple(notes),
    )  # fmt: skip


def _generates(spec: Spec) -> None:
    """Only a model that makes token after token is served this way."""
    if not any(op.cache is not None for op in operators(spec, Workload("decode", 1, 1))):
        rule = "keeps nothing between tokens and so generates none"
        raise FieldError("model", "an encoder", rule, "serve needs a decoder")


def _extended(spec: Spec, whole: int, trained: int, rope: str | None) -> tuple[Spec, list[str]]:
    """A model for a context beyond its own, by the scaling asked for; an error that says how."""
    if rope is not None:
        longer = extend(spec, whole, rope)
        return longer.spec, [f"the context is extended from {trained:,} to {whole:,} by {rope}",
                             *longer.notes]  # fmt: skip
    rule = f"is beyond the {trained:,} tokens the model was made for"
    if far_rope(spec) is None:
        raise FieldError("context", whole, rule, "it has no rotary positions that could be "
                         f"stretched: use {trained} or less")  # fmt: skip
    kind = scaling_of(far_rope(spec)).get("rope_type", "yarn")
    less = f"use {trained} or less"
    if kind == "longrope":  # its factors were searched for this length
        raise FieldError("context", whole, rule, less)
    how = f"extend it with --rope {kind} (analyze --rope compares the ways), or {less}"
    raise FieldError("context", whole, rule, how)


def _in_and_out(
    p: int | None, a: int | None, whole: int, usual: int, assumed: list[str]
) -> tuple[int, int]:  # fmt: skip
    """Tokens of the request whose speed is told: a sequence of the usual length."""
    if p is None and a is None:
        a = min(ANSWER, max(usual // 4, 1))
        p = max(usual - a, 1)
        assumed.append(f"{p:,} tokens in and {a:,} out")
    elif p is None:
        assert a is not None
        p = max(usual - a, 1)
        assumed.append(f"{p:,} tokens in")
    elif a is None:
        a = max(min(ANSWER, whole - p), 1)
        assumed.append(f"{a:,} tokens out")
    if p + a > whole and p + a > 2:
        raise FieldError("in + out", p + a, f"is more than the context {whole}")
    return p, a


def _distribution(mean: Any, p95: Any, whole: int) -> tuple[int | None, int | None]:
    if (mean is None) != (p95 is None):
        raise FieldError("context_mean" if p95 is None else "context_p95", mean or p95,
                         "needs both a mean and a 95th percentile")  # fmt: skip
    if mean is None:
        return None, None
    m, q = parse_context(mean, "context_mean"), parse_context(p95, "context_p95")
    if not m <= q:
        raise FieldError("context_p95", q, f"must be at least the mean {m}")
    if q > whole:
        raise FieldError("context_p95", q, f"is more than the longest sequence, {whole}",
                         "raise --context")  # fmt: skip
    return m, q


def _beside(
    one: catalog.Loaded, *, hybrid: bool, eager: bool, chunk: Any, adapters: Any, rank: Any,
    draft: Any, guesses: Any,
) -> Beside:  # fmt: skip
    small = None
    if draft is not None:
        small = catalog.load(draft).spec
        if int(small.vocab_size) < int(one.spec.vocab_size) * 0.9:
            raise FieldError("draft", str(draft), f"has {int(small.vocab_size)} tokens and "
                             f"{one.name} {int(one.spec.vocab_size)}: its guesses could not be "
                             "checked")  # fmt: skip
    if draft is not None and guesses is None:
        guesses = 4
    own = Beside(
        adapters=0 if adapters is None else _small("adapters", parse_count(adapters)),
        rank=_small("rank", parse_count(rank)), draft=small, graphs=not eager, by_kind=hybrid,
    )  # fmt: skip
    if chunk is None:
        return own
    return replace(own, chunk=_small("chunk", parse_context(chunk, "chunk")))


def _guesses(guesses: Any, draft: Any) -> int:
    if guesses is None:
        return 4 if draft is not None else 0
    return _small("guesses", parse_count(guesses, "guesses"), 64)


def _listed(field: str, value: Any) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, str):
        found = [part.strip() for part in value.split(",") if part.strip()]
        if not found:
            raise FieldError(field, value or '""', "is an empty list")
        return found
    return list(value) if isinstance(value, Iterable) else [value]


def _counts(field: str, value: Any) -> tuple[int, ...]:
    return tuple(sorted({_small(field, parse_count(v, field)) for v in _listed(field, value)}))


def _small(field: str, value: int, most: int = 10**6) -> int:
    if not 1 <= value <= min(most, LARGEST):
        raise FieldError(field, value, f"must be 1 to {most}")
    return value


def _gpus(value: Any) -> tuple[int, ...]:
    """Numbers of chips; a fraction of one is none."""
    if value is None:
        return COUNTS
    found = []
    for v in _listed("gpus", value):
        if not WHOLE.fullmatch(str(v)) or int(v) < 1:
            hint = "a part of one is --share of its memory"
            raise FieldError("gpus", v, "must be a whole number of chips", hint)
        found.append(_small("gpus", int(v), 1024))
    return tuple(sorted(set(found)))


def _whole_machines(tried: tuple[int, ...], machine: int, *, asked: bool) -> None:
    """More chips than a machine has fill whole machines."""
    odd = [n for n in tried if n > machine and n % machine]
    if odd and (asked or len(odd) == len(tried)):
        rule = f"must be a multiple of the {machine} of a machine"
        raise FieldError("gpus", odd[0], rule, "change --gpus or --gpus-per-node")


def _chips(value: Any) -> tuple[tuple[Chip, ...], bool]:
    if value is None:
        able = [
            c for c in chips().values() if c.vendor in SERVERS and {"fp16", "bf16"} & {*c.dtypes}
        ]
        return tuple(able), False
    names = _listed("gpu", value)
    if not names:
        raise FieldError("gpu", "[]", "names no chip")
    return tuple(dict.fromkeys(chip(name) for name in names)), True


def _schemes(
    value: Any, one: catalog.Loaded, assumed: list[str], spec: Spec, of: tuple[Chip, ...], *,
    given: bool,
) -> tuple[Numbers, ...]:  # fmt: skip
    """Schemes by name, else as a file or a config has them.

    ``any`` is every one that a chip has kernels for, the widest first.
    """
    names = _listed("quant", value)
    if names == ["any"]:
        if not given:
            raise FieldError("quant", "any", "needs --gpu", "name the chips, or the schemes")
        able = [s for s in all_numbers() if s.name != "fp32" and any(s.runs_on(c) for c in of)]
        servers = [s for s in able if not s.mixed] if any(
            s.scheme.quantised and not s.mixed for s in able) else able  # fmt: skip
        return tuple(sorted(servers, key=lambda s: -float(s.rank_bytes(spec, Plan()))))
    if not names:
        if one.checkpoint is not None:
            file = one.checkpoint
            assumed.append(f"weights as {file.name} holds them, {bytes_text(file.tensor_bytes)}")
            return (stored_in(spec, file),)
        packed = scheme_of({"quantization_config": one.quantization}) if one.quantization else None
        if packed is not None:
            assumed.append(f"weights as released: {packed.name}")
            return (Numbers(packed),)
        assumed.append("weights in bf16")
        names = ["bf16"]
    return tuple(dict.fromkeys(numbers(name) for name in names))


def _share(field: str, value: float, least: float = 1e-3, most: float = 0.999) -> float:
    if not least <= float(value) <= most:
        raise FieldError(field, value, f"must be {least:g} to {most:g}")
    return float(value)


def _price(value: float | None) -> float | None:
    if value is not None and not 0 < float(value) < 1e6:
        raise FieldError("price", value, "must be above zero")
    return None if value is None else float(value)


def read_slo(value: Any) -> Slo | None:
    """Limits from text: ``ttft=500ms,tpot=30ms``, either or both.

    Example:
        >>> read_slo("ttft=500ms,tpot=30ms")
        Slo(ttft_s=0.5, tpot_s=0.03)
    """
    if value is None or isinstance(value, Slo):
        return value
    found: dict[str, float] = {}
    for part in _listed("slo", value):
        name, sign, text = str(part).partition("=")
        if not sign or name.strip() not in {"ttft", "tpot"}:
            raise FieldError("slo", part, "is no limit", "write ttft=500ms,tpot=30ms")
        if f"{name.strip()}_s" in found:
            raise FieldError("slo", value, f"gives {name.strip()} twice")
        found[f"{name.strip()}_s"] = parse_seconds(text, f"slo {name.strip()}")
    if not found:
        raise FieldError("slo", value, "is no limit", "write ttft=500ms,tpot=30ms")
    return Slo(**found)


def _bare_slo(value: Any, assumed: list[str]) -> None:
    """A limit without a unit is in seconds, which who means milliseconds should see."""
    if isinstance(value, str):
        for part in value.split(","):
            name, _, text = (p.strip() for p in part.partition("="))
            if text[-1:].isdigit():
                assumed.append(f"{name} of {text} is in seconds")


def _unused(spec: Spec, given: dict[str, Any]) -> list[str]:
    """Options that change nothing here; the values are those that say something."""
    experts = any(isinstance(node, Experts) for _, node in nodes(spec))
    missing = {
        "skew": not experts and "the model has no routed experts",
        "rank": not given["adapters"] and "it needs --adapters",
        "accept": not (given["guesses"] or given["draft"]) and "it needs --guesses or --draft",
        "utilisation": given["price"] is None and "it needs --price",
    }
    usual = {"skew": 0.0, "rank": 16, "accept": 0.7, "utilisation": 1.0}
    return [f"no effect: --{name} {given[name]}: {why}" for name, why in missing.items()
            if why and given[name] != usual[name]]  # fmt: skip


def _axes(given: dict[str, Any]) -> dict[str, int]:
    found = {}
    for name, value in given.items():
        if name not in AXES:
            raise FieldError(name, value, "is no option of serve", f"axes are {', '.join(AXES)}")
        if value is not None:
            found[name] = _small(name, parse_count(value, name), 1024)
    return found
