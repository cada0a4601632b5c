"""Tables of memory: formulas of a paper, and peaks that were measured."""

from __future__ import annotations

import functools
from typing import Any, Literal

from msgspec.structs import replace

from scantling import catalog
from scantling.costs.activations import kept
from scantling.costs.fit import fits
from scantling.costs.memory import in_flight, states, training_memory
from scantling.costs.ranks import placed_operators
from scantling.costs.resident import resident_memory
from scantling.hardware import chip
from scantling.spec import (
    Block,
    Branch,
    Dense,
    GroupedAttention,
    Layer,
    Norm,
    Run,
    Spec,
    Stack,
    vary,
)
from scantling.spec.plan import Adapter, Plan, Prompt, Recipe
from scantling.validate.schedule import stage_micro_batches
from scantling.validate.table import CsvRow, NotScoredError, Scored, reads

GIB = 2**30
GB = 10**9

# ---------------------------------------------------------------- Korthikanti et al.

PAPER = Recipe(dtype="fp16", weights="fp16", attention="unfused", dropout=True)
"""fp16 with an fp32 copy, fp32 gradients and moments: 18 bytes a parameter."""

TECHNIQUES: dict[str, tuple[bool, Literal["none", "selective", "full"]]] = {
    "tensor parallel only, no recompute": (False, "none"),
    "sequence parallel + selective recompute": (True, "selective"),
    "TP only": (False, "none"),
    "TP+SP": (True, "none"),
    "TP+selective": (False, "selective"),
    "TP+SP+selective": (True, "selective"),
    "full recompute": (False, "full"),
}
"""Sequence parallelism and recompute of a row."""


def gpt(d_model: int, n_head: int, n_layer: int, vocab_size: int = 51200) -> Spec:
    """A GPT as the paper counts it: products and norms only, four times as wide inside."""
    norm = Norm("layer", scale=False)
    attention = GroupedAttention(n_head=n_head, n_kv_head=n_head, d_head=d_model // n_head)
    ffn = Dense(d_ff=4 * d_model, gated=False, activation="gelu")
    blocks = tuple(Block((Branch(m),), pre=norm) for m in (attention, ffn))
    stack = Stack((Layer("layer", blocks),), (Run(("layer",), n_layer),), norm)
    return Spec(d_model=d_model, vocab_size=vocab_size, decoder=stack, tied=True)


def _paper(row: CsvRow) -> tuple[Spec, Plan, int]:
    spec = gpt(int(row["d_model"]), int(row["n_heads"]), int(row["n_layers"]))
    pp = int(row["pp"])
    plan = Plan(
        tp=int(row["tp"]), pp=pp, virtual=int(row["vp"]), micro_batch=int(row["micro_batch"]),
        n_micro_batch=4 * pp, zero=0,
    )  # fmt: skip
    return spec, plan, int(row["seq_len"])


def first_stage_activations(spec: Spec, plan: Plan, recipe: Recipe, context: int) -> Any:
    """What the layers of the first stage leave for all micro-batches in flight."""
    ops = placed_operators(spec, plan, context)
    left = kept(ops, spec.d_model, plan, recipe, plan.micro_batch * context)
    return in_flight(plan, 0, replace(left, outside=0))


@reads("memory_korthikanti2022.csv", "memory of a rank, GiB", exact=True)
def korthikanti(row: CsvRow) -> Scored:
    """States without embeddings, and activations of the first stage."""
    if row["unit"] != "GiB":
        raise NotScoredError("a percentage: scored beside", excluded=True)
    spec, plan, context = _paper(row)
    if row["technique"] == "any":
        ops = tuple(p for p in placed_operators(spec, plan, context) if p.layer)
        value = states(ops, plan, PAPER).total
    else:
        sequence, recompute = TECHNIQUES[row["technique"]]
        plan = replace(plan, sequence_parallel=sequence, recompute=recompute)
        value = first_stage_activations(spec, plan, PAPER, context)
    return Scored(row=row["row_id"], group=row["model"], actual=float(row["value"]),
                  predicted=float(value) / GIB)  # fmt: skip


FIGURE = 0.15
"""Points of a percentage by which a bar of a figure is misread."""


@reads("memory_korthikanti2022.csv", "activations relative to tensor parallelism alone, %")
def korthikanti_relative(row: CsvRow) -> Scored:
    """Shares of a layer's activations; the published ones are read from a figure."""
    if row["unit"] != "percent":
        raise NotScoredError("in GiB: scored beside", excluded=True)
    spec, plan, context = _paper(row)
    found = []
    for technique in (row["technique"], "TP only"):
        sequence, recompute = TECHNIQUES[technique]
        own = replace(plan, sequence_parallel=sequence, recompute=recompute, pp=1, virtual=1)
        found.append(first_stage_activations(spec, own, PAPER, context))
    value = 100 * float(found[0]) / float(found[1])
    return Scored(row=row["row_id"], group=row["model"], actual=float(row["value"]),
                  predicted=value, low=value - FIGURE, high=value + FIGURE)  # fmt: skip


# ---------------------------------------------------------------- Megatron-LM


def cut(spec: Spec, n_layer: int) -> Spec:
    """A model cut to its first layers; of different ones in front (dense before experts) one stays.

    So the documentation of that table says of its configurations.

    Example:
        >>> cut(catalog.model("deepseek-v3"), 4).decoder.occurrences()
        {'dense': 1, 'moe': 3}
    """
    layout = spec.decoder.layout
    if len(layout) == 1:
        return vary(spec, n_layer=n_layer)
    runs = (replace(layout[0], n=1), replace(layout[-1], n=n_layer - 1))
    return replace(spec, decoder=replace(spec.decoder, layout=runs))


@functools.cache
def _model(name: str) -> Spec:
    return catalog.resolve(name).spec


@reads("train_simumax_b200.csv", "peak allocated memory, GiB")
def megatron_peak(row: CsvRow) -> Scored:
    """Megatron-LM with a distributed optimizer, bf16 weights and fp32 gradients."""
    spec = cut(catalog.resolve(row["model"]).spec, int(row["n_layers_kept"]))
    plan = Plan(
        tp=int(row["tp"]), pp=int(row["pp"]), dp=int(row["dp"]), cp=int(row["cp"]),
        ulysses=True, ep=int(row["ep"]), expert_tp=1 if int(row["ep"]) > 1 else None,
        micro_batch=int(row["micro_batch"]), n_micro_batch=int(row["n_microbatches"]),
        vocab_multiple=128,
    )  # fmt: skip
    found = training_memory(spec, plan, Recipe(fused_loss=True), int(row["seq_len"]))
    return Scored(
        row=row["row_id"], group=row["model"], actual=float(row["peak_alloc_gib"]),
        predicted=float(found.total) / GIB, low=float(found.low) / GIB,
        high=float(found.high) / GIB,
    )  # fmt: skip


# ---------------------------------------------------------------- FSDP


TITAN_CONTEXT = 8192
"""Tokens of a sequence where none are printed: the default of its configurations."""


def _whole(row: CsvRow, column: str, default: int) -> int:
    """A cell as an int, or a default where it is empty."""
    return int(row[column]) if row[column] else default


@reads("train_torchtitan.csv", "peak reserved memory, GiB")
def torchtitan_peak(row: CsvRow) -> Scored:
    """FSDP2 with fp32 shards, losses by plain kernels in fp32, selective recompute by operator."""
    if not row["peak_mem_gib"]:
        raise NotScoredError("no memory was published", excluded=True)
    tp, pp, cp = (_whole(row, key, 1) for key in ("tp", "pp", "cp"))
    micro, n_micro = stage_micro_batches(_whole(row, "local_batch", 1), pp)
    full = row["activation_ckpt"] == "full"
    plan = Plan(
        tp=tp, pp=pp, cp=cp, zero=3,
        dp=_whole(row, "fsdp", int(row["n_gpus"]) // (tp * pp * cp)),
        virtual=2 if "interleaved" in row["extra"].lower() else 1,
        micro_batch=micro, n_micro_batch=n_micro,
        recompute="full" if full else "products",
    )  # fmt: skip
    recipe = Recipe(
        dtype="bf16" if row["precision"] == "bf16" else "fp8", weights="fp32", master=None,
        fused=row["torch_compile"] == "1", foreach=True,
    )  # fmt: skip
    context = _whole(row, "seq_len", TITAN_CONTEXT)
    found = training_memory(_model(row["model"]), plan, recipe, context)
    return Scored(
        row=row["row_id"], group=row["table"], actual=float(row["peak_mem_gib"]),
        predicted=float(found.reserved) / GIB, low=float(found.reserved_low) / GIB,
        high=float(found.reserved_high) / GIB,
    )  # fmt: skip


DEEPSPEED_ELEMENTS = 1_050_000_000 + 4 * 500_000_000
"""Stage 3 by default: live parameters 1e9 and prefetched 5e7 in 16 bits, and two buckets of 5e8
gradients in fp32, one filled while the other is reduced."""


@reads("train_mleng_llama8b_seqsweep.csv", "peak reserved memory, GiB")
def deepspeed_peak(row: CsvRow) -> Scored:
    """ZeRO-3 with the optimizer on the host, whole layers computed again, a chunked loss."""
    if not row["peak_reserved_gib"]:
        raise NotScoredError("no memory was published", excluded=True)
    stage = int(row["sharding"].removeprefix("ZeRO-"))
    plan = Plan(
        dp=int(row["n_gpus"]), zero=stage, micro_batch=int(row["micro_batch"]),  # type: ignore[arg-type]
        recompute="full" if row["activation_checkpointing"] == "True" else "none",
    )  # fmt: skip
    recipe = Recipe(
        chunked_loss="Liger" in row["fused_kernels"],
        in_place="Liger" in row["fused_kernels"], offload="CPU" in row["optimizer_offload"],
        bucket_elements=DEEPSPEED_ELEMENTS if stage == 3 else 0,
    )  # fmt: skip
    found = training_memory(_model(row["model"]), plan, recipe, int(row["seq_len"]))
    spread = 0.09  # buckets and host transfers of this software are settings nobody printed
    value = float(found.reserved) / GIB
    return Scored(
        row=row["row_id"], group=row["gpu"], actual=float(row["peak_reserved_gib"]),
        predicted=value, low=value * (1 - spread), high=value * (1 + spread),
    )  # fmt: skip


# ---------------------------------------------------------------- fine-tuning and inference

PACKED = {"none": "bf16", "bnb.nf4": "nf4", "bnb.nf4-dq": "nf4-dq", "bnb.int8": "int8"}
PROMPT_TOKENS, ANSWER_TOKENS = 10, 50
"""Of a generation in that table: the default prompt and answer of its command."""
LORA_RANK = 8


@reads("memory_litgpt_finetune_infer.csv", "peak memory, GB")
def litgpt_peak(row: CsvRow) -> Scored:
    """Fine-tuning with adapters and generation, in pure bf16 and unfused PyTorch."""
    predicted, low, high, verdict = litgpt_memory(row)
    if row["oom"] == "True":
        reason = f"ran out of memory, so there is no peak; predicted to fit: {verdict}"
        raise NotScoredError(reason, excluded=True)
    return Scored(row=row["row_id"], group=row["model"], actual=float(row["peak_mem_gb"]),
                  predicted=predicted / GB, low=low / GB, high=high / GB)  # fmt: skip


def litgpt_memory(row: CsvRow) -> tuple[float, float, float, str]:
    """Bytes at the peak of a row, their interval, and whether it fits its chip.

    This software has a head of its own where a model ties it to the token table.
    """
    spec = replace(catalog.resolve(row["model"], float(row["size_B"])).spec, tied=False)
    memory_bytes = chip(row["gpu"]).memory_bytes
    weights = PACKED.get(row["quantization"], "")
    if not weights:
        raise NotScoredError(f"quantization {row['quantization']} is not known")
    if "Inference" in row["section"]:
        heads = spec.n_head if int(spec.n_kv_head) > 1 else None  # a cache repeats shared keys
        one = resident_memory(
            spec, weights, 1, PROMPT_TOKENS + ANSWER_TOKENS, PROMPT_TOKENS, heads
        )  # fmt: skip
        verdict = "yes" if one.high <= memory_bytes else "no"
        return float(one.total), float(one.low), float(one.high), verdict
    n_gpu = int(row["n_gpus"])
    plan = Plan(
        dp=n_gpu, zero=3 if n_gpu > 1 else 0, micro_batch=int(row["micro_batch"]),
        recompute="full" if n_gpu > 1 else "none",
    )  # fmt: skip
    recipe = Recipe(
        gradients="bf16", master=None, moments="bf16", logits="bf16", fused=False,
        composed=False, wide_norms="rms", fused_qkv=True, adapter=_adapter(spec, row, weights),
    )  # fmt: skip
    found = training_memory(spec, plan, recipe, int(row["longest_example_tokens"]))
    verdict = fits(found, memory_bytes)
    return float(found.total), float(found.low), float(found.high), verdict


def _adapter(spec: Spec, row: CsvRow, weights: str) -> Adapter | Prompt:
    """LoRA on queries and values; prompts, with scales where more than prompts is trained."""
    if "LoRA" in row["section"]:
        return Adapter(rank=LORA_RANK, targets=("q_proj", "v_proj"), weights=weights,
                       dropout=True, packs_head=True)  # fmt: skip
    plain = Prompt(weights=weights, packs_head=True)
    more = int(row["trainable_params"]) > 2 * int(spec.n_layer) * plain.n_prompt * int(spec.d_model)
    return replace(plain, scales=more)
