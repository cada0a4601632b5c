"""The question of ``plan``: which model, on what, in what numbers, and what is fixed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from scantling import catalog
from scantling.arith import LARGEST, MOST_CONTEXT, MOST_TOKENS
from scantling.costs.adapters import adapted
from scantling.costs.count import CONVENTIONS, Convention, parameters
from scantling.costs.quantize import released_scheme
from scantling.errors import FieldError, UnknownNameError
from scantling.hardware import MOST_GPUS, Chip, Cluster, cluster
from scantling.laws.hyperparameters import batch_tokens, tuning_batch
from scantling.laws.optimum import TOKENS_A_PARAMETER
from scantling.spec import Spec, dimensions, has
from scantling.spec.plan import Adapter, Recipe
from scantling.units import count_text, parse_context, parse_count

AXES = ("tp", "pp", "dp", "cp", "ep", "expert_tp", "virtual", "zero", "shard", "micro_batch",
        "recompute")  # fmt: skip
"""What a plan is searched over; each can be fixed to one value."""

RECOMPUTE = ("none", "selective", "products", "full")
"""What may be computed again in the backward pass: nothing, the inside of attention, all but
attention and every other product, whole layers."""
FINETUNE = ("full", "lora", "qlora")

DTYPES: dict[str, dict[str, Any]] = {
    "bf16": {},
    "fp16": {"weights": "fp16", "reduce": "fp16"},
    "fp32": {"weights": "fp32", "master": None, "reduce": "fp32", "attention": "flash2"},
    "fp8": {}, "fp8-block": {}, "mxfp8": {}, "nvfp4": {},
}  # fmt: skip
"""What follows from the dtype of the products: the dtypes of weights, copies and messages."""

RATES = {"fp8-block": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}
"""The rate of the chip that a recipe of products runs at."""

NEEDS_BLOCK_SCALES = {"mxfp8", "nvfp4"}
"""Recipes that want tensor cores with a scale a block: the chips that have an FP4 rate."""

CONTEXT, TUNING_CONTEXT = 8192, 2048
"""Tokens of a sequence where none are given, in pre-training and in fine-tuning: assumed."""
GPUS_PER_NODE = 8


class Phase(Struct, frozen=True):
    """A part of a run: so many tokens at one context."""

    tokens: int
    context: int


class Question(Struct, frozen=True, kw_only=True):
    """A model to train, and what with.

    Args:
        name: Of the model.
        spec: The model.
        cluster: Chips, machines and network.
        recipe: Numbers and software.
        phases: Tokens and context, one phase after another; the first is the one planned in full.
        batch_tokens: Tokens of a step; a phase's sequences are those over its context.
        fixed: Axes the user set, by name.
        goodput: Share of calendar time that trains, in (0, 1]; None says nothing about it.
        price: Money for a chip for an hour; None leaves money out.
        convention: What MFU counts (``costs.count.CONVENTIONS``).
        method: ``full``, ``lora`` or ``qlora`` where it is fine-tuning.
        assumed: What was not given, in words.
        notes: What the reader of the model had to say.
    """

    name: str
    spec: Spec
    cluster: Cluster
    recipe: Recipe
    phases: tuple[Phase, ...]
    batch_tokens: int
    fixed: dict[str, Any]
    goodput: float | None = None
    price: float | None = None
    convention: Convention = "causal"
    method: str | None = None
    assumed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def context(self) -> int:
        """Tokens of a sequence of the first phase."""
        return self.phases[0].context

    @property
    def batch(self) -> int:
        """Sequences of a step of the first phase."""
        return max(1, self.batch_tokens // self.context)

    @property
    def tokens(self) -> int:
        """Tokens of all phases."""
        return sum(p.tokens for p in self.phases)

    @property
    def chip(self) -> Chip:
        """The chip."""
        return self.cluster.chip

    def of_phase(self, phase: Phase) -> Question:
        """The same question for one phase alone, its batch the nearest whole sequences."""
        sequences = max(1, round(self.batch_tokens / phase.context))
        return replace(self, phases=(phase,), batch_tokens=sequences * phase.context)


def question(
    model: str | Path | dict[str, Any] | Spec | catalog.Loaded, *, gpu: str = "h100-sxm",
    gpus: int | str | None = None, gpus_per_node: int | str = GPUS_PER_NODE, net: str = "400Gb",
    oversubscription: float = 1.0, tokens: int | str | None = None,
    context: int | str | None = None, batch: int | str | None = None,
    phases: str | None = None, dtype: str = "bf16", optimizer: str = "adamw",
    moments: str | None = None, gradients: str | None = None, finetune: str | None = None,
    rank: int = 16, targets: Iterable[str] = (), goodput: float | None = None,
    price: float | None = None, flops: Convention = "causal", chunked_loss: bool = False,
    offload: bool = False, assume: bool = False, **axes: Any,
) -> Question:  # fmt: skip
    """Read and check a question; every value may be text in human units.

    Args:
        model: A catalogue name, a path, a parsed config, a spec, or a loaded model.
        gpu: The chip.
        gpus: Chips in all; one node unless given (one chip for a fine-tuning).
        gpus_per_node: Chips of a machine.
        net: Speed of the network per chip and direction.
        oversubscription: See ``hardware.Cluster``.
        tokens: Training tokens; 20 a parameter unless given.
        context: Tokens of a sequence.
        batch: Of a step: ``2048`` and ``2048seqs`` are sequences, ``16M`` and ``4Mtokens`` tokens.
        phases: ``15T@8k,800B@128k`` instead of tokens and context.
        dtype: Of the products: ``bf16``, ``fp8``, ``fp8-block``, ``mxfp8``, ``nvfp4``, …
        optimizer: ``adamw``, ``adamw8bit``, ``adafactor``, ``muon``, ``sgd``.
        moments: Dtype of the optimizer's moments.
        gradients: Dtype gradients are accumulated in.
        finetune: ``full``, ``lora`` or ``qlora``; None is pre-training.
        rank: Of the adapters.
        targets: Matrices with adapters; all linear ones of the layers unless given.
        goodput: Share of calendar time that trains.
        price: Money for a chip for an hour.
        flops: Convention of MFU.
        chunked_loss: Whether the loss never holds all logits.
        offload: Whether optimizer states live on the host.
        assume: For a model type in no table.
        **axes: Axes to fix: ``tp=8``, ``zero=3``, ``recompute="full"``.

    Raises:
        ScantlingError: If a value breaks a rule, in one line.

    Example:
        >>> q = question("llama-3.1-8b", gpus=64, batch="4M", context="8k")
        >>> q.batch, q.cluster.node.n_gpu
        (512, 8)
    """
    one = model if isinstance(model, catalog.Loaded) else catalog.load(model, assume=assume)
    assumed: list[str] = []
    method = _one_of("finetune", finetune, FINETUNE) if finetune is not None else None
    n = _count("gpus", gpus) if gpus is not None else None
    if n is None:
        n = 1 if method else GPUS_PER_NODE
        assumed.append(f"gpus: {n}")
    per_node = _count("gpus_per_node", gpus_per_node)
    where = cluster(gpu, n, per_node, net, _ratio("oversubscription", oversubscription))
    recipe = _recipe(where.chip, dtype, optimizer, moments, gradients, chunked_loss, offload)
    if method in {"lora", "qlora"}:
        kept = "nf4" if method == "qlora" else recipe.weights
        adapter = Adapter(rank=_count("rank", rank), targets=tuple(targets), weights=kept)
        _check_targets(one.spec, adapter)
        recipe = replace(recipe, adapter=adapter)
    if flops not in CONVENTIONS:
        raise UnknownNameError("flops", flops, CONVENTIONS)
    if goodput is not None and not 0 < goodput <= 1:
        raise FieldError("goodput", goodput, "must be above 0 and at most 1", "0.9 is 90 %")
    if price is not None and not 0 < price < 1e6:
        raise FieldError("price", price, "must be above zero")
    released = released_scheme(one.quantization)
    if released is not None:
        assumed.append(f"weights in {recipe.weights}, which are released as {released.name}")
    rounds = _phases(one.spec, phases, tokens, context, assumed, fine=method is not None)
    rows = learned_positions(one.spec)
    for phase in rounds:
        if rows is not None and phase.context > rows:
            rule = f"is more than the {rows:,} positions the model has learned"
            raise FieldError("context", phase.context, rule, "give a shorter one")
    size = _batch(batch, rounds, n, assumed, fine=method is not None)
    return Question(
        name=one.name, spec=one.spec, cluster=where, recipe=recipe, phases=rounds,
        batch_tokens=size, fixed=_axes(axes, n, one.spec), goodput=goodput, price=price,
        convention=flops, method=method, assumed=tuple(assumed), notes=one.notes,
    )  # fmt: skip


def learned_positions(spec: Spec) -> int | None:
    """The longest context a model with a table of positions can read; None where it has none.

    Example:
        >>> learned_positions(catalog.model("gpt2")), learned_positions(catalog.model("qwen3-8b"))
        (1024, None)
    """
    rows = dimensions(spec).get("rows")
    return None if rows is None else int(rows)


def _recipe(
    chip: Chip, dtype: str, optimizer: str, moments: str | None, gradients: str | None,
    chunked_loss: bool, offload: bool,
) -> Recipe:  # fmt: skip
    """The recipe of a dtype; an FP8 one on a chip without FP8 is an error, not a slower one."""
    name = dtype.lower().replace("_", "-")
    if name not in DTYPES:
        raise UnknownNameError("dtype", dtype, DTYPES)
    try:
        chip.rate(RATES.get(name, name))
    except FieldError as e:  # in the word the user wrote, not that of the chip's rate
        raise FieldError("dtype", dtype, e.rule, e.hint) from None
    if name in NEEDS_BLOCK_SCALES and chip.rates.fp4 is None:
        rule = f"needs tensor cores with a scale a block, which {chip.key} has not"
        raise FieldError("dtype", dtype, rule, "use fp8 or fp8-block")
    known = ("adamw", "adamw8bit", "adafactor", "muon", "sgd")
    changes: dict[str, Any] = dict(DTYPES[name])
    if moments is not None:
        changes["moments"] = moments
    if gradients is not None:
        changes["gradients"] = gradients
    return Recipe(
        dtype=name, optimizer=_one_of("optimizer", optimizer, known),  # type: ignore[arg-type]
        chunked_loss=chunked_loss, offload=offload, **changes,
    )  # fmt: skip


def _check_targets(spec: Spec, adapter: Adapter) -> None:
    """Every target names a matrix of the model, and something is trained."""
    known = adapted(spec, replace(adapter, targets=()))
    for target in adapter.targets:
        hit = adapted(spec, replace(adapter, targets=(target,)))
        if not hit.modules and not hit.skipped:
            there = ", ".join((*known.modules, *known.skipped))
            raise FieldError("targets", target, "names no matrix of this model", f"it has {there}")
    if not adapted(spec, adapter).modules:
        rule = "are experts stacked in 3-D tensors, which get no adapter: nothing would be trained"
        raise FieldError("targets", ", ".join(adapter.targets), rule, "add a matrix of attention")


def _phases(
    spec: Spec, phases: str | None, tokens: int | str | None, context: int | str | None,
    assumed: list[str], *, fine: bool,
) -> tuple[Phase, ...]:  # fmt: skip
    if phases is not None:
        if tokens is not None or context is not None:
            raise FieldError("phases", phases, "says tokens and context", "leave those out")
        rounds = [text.strip() for text in phases.split(",")]
        if not all(rounds):
            raise FieldError("phases", phases, "has an empty phase", "write 15T@8k,800B@128k")
        return tuple(_phase(text) for text in rounds)
    length = None if context is None else _length(context, "context")
    if length is None:
        usual = TUNING_CONTEXT if fine else CONTEXT
        length = min(usual, int(spec.max_context or usual))
        assumed.append(f"context: {length:,}")
    count = None if tokens is None else _count("tokens", tokens)
    if count is None and fine:
        count = 1_000_000
        assumed.append("tokens: 1 M")
    elif count is None:
        count = TOKENS_A_PARAMETER * int(parameters(spec).active)
        assumed.append(f"tokens: {count_text(count)}, {TOKENS_A_PARAMETER} an active parameter")
    return (Phase(count, length),)


def _phase(text: str) -> Phase:
    tokens, sign, context = text.partition("@")
    if not sign:
        raise FieldError("phases", text, "is no phase", "write 15T@8k,800B@128k")
    return Phase(_count("tokens", tokens), _length(context, "phases"))


BATCH = re.compile(r"\s*(?P<number>.*?)\s*(?P<unit>seqs?|sequences|tok|tokens)?\s*", re.IGNORECASE)


def _batch(
    given: int | str | None, phases: tuple[Phase, ...], n_gpu: int,
    assumed: list[str], *, fine: bool,
) -> int:  # fmt: skip
    """Tokens of a step: whole sequences of the first phase."""
    context = phases[0].context
    if given is None:
        wanted = tuning_batch() if fine else _advised(phases, n_gpu)
        sequences = _shared_out(wanted, n_gpu)
        assumed.append(f"batch: {sequences:,} sequences, {count_text(sequences * context)} tokens")
        return sequences * context
    found = BATCH.fullmatch(str(given))
    assert found is not None
    number, unit = found["number"], (found["unit"] or "").lower()
    prefixed = bool(re.search(r"[kKmMbB]i?$", number))
    if unit.startswith("tok") or (not unit and prefixed):
        tokens = parse_context(number, "batch")
        sequences = max(1, round(tokens / context))
        if sequences * context != tokens:
            assumed.append(f"batch: {sequences:,} whole sequences for {count_text(tokens)} tokens")
    else:
        sequences = parse_count(number, "batch")
    if sequences * context > LARGEST:
        raise FieldError("batch", given, "is beyond every run", "write sequences, or 16M tokens")
    return sequences * context


def _advised(phases: tuple[Phase, ...], n_gpu: int) -> int:
    """Sequences by the Step law's batch: a power of two, and at least one for each eight chips."""
    wanted = batch_tokens(float(sum(p.tokens for p in phases))) / phases[0].context
    power, smallest = (2 ** max(0, round(math.log2(max(1.0, v)))) for v in (wanted, n_gpu / 8))
    return int(max(power, smallest))


def _shared_out(sequences: int, n_gpu: int) -> int:
    """A batch near one that was assumed, which so many chips can share out evenly.

    A power of two cannot be shared by chips that are none: it becomes the nearest multiple of
    their odd part and of a power of two that moves it little.

    Example:
        >>> [_shared_out(128, n) for n in (1, 64, 3, 24)], _shared_out(16384, 100_000)
        ([128, 128, 120, 120], 15625)
    """
    unit = n_gpu // (n_gpu & -n_gpu)
    if unit == 1 or unit > sequences:
        return sequences
    while 8 * unit <= sequences:
        unit *= 2
    return unit * round(sequences / unit)


def _axes(given: dict[str, Any], n_gpu: int, spec: Spec) -> dict[str, Any]:
    """The axes that are fixed, checked one by one."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name not in AXES:
            raise UnknownNameError("axis", name, AXES)
        if value is None:
            continue
        if name == "recompute":
            found[name] = _one_of(name, value, RECOMPUTE)
        elif name == "zero":
            if str(value) not in {"0", "1", "2", "3"}:
                raise FieldError("zero", value, "must be 0, 1, 2 or 3")
            found[name] = int(value)
        else:
            found[name] = _count(name, value)
    for name in ("tp", "pp", "dp", "cp"):
        if name in found and n_gpu % found[name]:
            raise FieldError(name, found[name], f"must divide gpus {n_gpu}")
    degrees = {name: found[name] for name in ("tp", "pp", "dp", "cp") if name in found}
    chips = math.prod(degrees.values())
    if n_gpu % chips or (len(degrees) == 4 and chips != n_gpu):
        said = " × ".join(f"{name} {value}" for name, value in degrees.items())
        needed = "be" if len(degrees) == 4 else "divide"
        raise FieldError(said, None, f"= {chips} must {needed} gpus {n_gpu}")
    ep = found.get("ep", 1)
    if ep > 1 and not has(spec, "n_expert"):
        raise FieldError("ep", ep, "needs a model with experts")
    if ep > 1 and int(spec.read("n_expert")) % ep:
        raise FieldError("ep", ep, f"must divide the {int(spec.read('n_expert'))} experts")
    return found


def _one_of(field: str, value: str, known: tuple[str, ...]) -> str:
    plain = str(value).strip().lower()
    if plain not in known:
        raise FieldError(field, value, "is not known", f"use {', '.join(known)}")
    return plain


def _length(context: int | str, field: str) -> int:
    found = parse_context(context, field)
    if found > MOST_CONTEXT:
        raise FieldError(field, context, "is beyond every sequence", f"at most {MOST_CONTEXT}")
    return found


def _count(field: str, value: int | str) -> int:
    found, most = parse_count(value, field), MOST_TOKENS if field == "tokens" else MOST_GPUS
    if found > most:
        raise FieldError(field, value, "is beyond every run", f"at most {most}")
    return found


def _ratio(field: str, value: float) -> float:
    if not 1 <= value < 1000:
        raise FieldError(field, value, "must be at least 1")
    return float(value)
