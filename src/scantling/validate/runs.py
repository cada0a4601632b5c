"""Runs behind the tables of training steps: what each row says of model, plan, software, place.

What a table does not print (its notes name it) is written here once for the whole table, with the
reason: the software of a year, never a constant fitted to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from scantling import catalog
from scantling.costs.count import Convention, forward_flops
from scantling.costs.train import Step, training_step
from scantling.errors import UnknownNameError
from scantling.formats import hf
from scantling.hardware import Chip, Cluster, chip, cluster
from scantling.ops import operators
from scantling.spec import Spec, Workload, vary
from scantling.spec.plan import Adapter, Plan, Recipe
from scantling.validate.table import CsvRow, NotScoredError


class Run(Struct, frozen=True, kw_only=True):
    """One training run: everything a step's time depends on."""

    spec: Spec
    plan: Plan
    recipe: Recipe
    cluster: Cluster
    context: int
    group: str
    convention: Convention = "causal"
    mtp_passes: int = 0

    def step(self) -> Step:
        """Its predicted step."""
        return training_step(self.spec, self.plan, self.recipe, self.context, self.cluster,
                             self.convention, self.mtp_passes)  # fmt: skip

    @property
    def tokens_a_chip(self) -> float:
        """Tokens of a step for each chip."""
        return self.plan.global_batch * self.context / self.cluster.n_gpu


RUNS: dict[str, Callable[[CsvRow], Run]] = {}
"""Which run a row is of, by table."""


def runs(table: str) -> Callable[[Callable[[CsvRow], Run]], Callable[[CsvRow], Run]]:
    """Register what a table's rows are."""

    def register(read: Callable[[CsvRow], Run]) -> Callable[[CsvRow], Run]:
        RUNS[table] = read
        return read

    return register


HEAD_WIDTH = 128
"""Where a table prints no heads: what models of those years had, a power of two by rule."""


def decoder(row: CsvRow, *, tied: bool = True) -> Spec:
    """A GPT of a row's widths: learned positions, biases, a plain feed-forward of its width."""
    width, heads = int(row["d_model"]), row["n_heads"]
    return hf.read({
        "model_type": "gpt2", "n_embd": width, "n_layer": int(row["n_layers"]),
        "n_head": int(heads) if heads else width // HEAD_WIDTH, "n_inner": int(row["ffn_dim"]),
        "vocab_size": int(row["vocab_size"]), "n_positions": int(row["seq_len"]),
        "tie_word_embeddings": tied,
    }).spec  # fmt: skip


def number(row: CsvRow, name: str, default: int = 1) -> int:
    """A whole number of a row, or a default where the cell is empty."""
    text = row.get(name) or ""
    return int(float(text)) if text else default


MPT_CHIPS = {"h100_80gb": "h100-sxm", "a100_80gb": "a100-sxm-80gb", "a100_40gb": "a100-sxm-40gb"}
MPT_NET = {"h100_80gb": "400Gb"}
"""The A100 rows state 1600 Gb/s a node; the H100 rows state nothing, eight 400 Gb/s ports are
what such nodes have."""


@runs("train_mpt_llmfoundry.csv")
def mpt(row: CsvRow) -> Run:
    """PyTorch FSDP, eager, first FlashAttention; ``PURE`` reduces in BF16, ``DEFAULT`` in FP32.

    One row is ruled out by the table's notes: 45.4 % between neighbours at 55.4 and 55.7 %.
    """
    gpu, n_gpu, context = row["gpu"], int(row["n_gpus"]), int(row["seq_len"])
    if (row["model"], gpu, n_gpu, context) == ("MPT-1b", "a100_40gb", 32, 2048):
        reason = "outlier named by the table's notes: 45.4 % MFU between 55.4 and 55.7 %"
        raise NotScoredError(reason, excluded=True)
    plan = Plan(
        dp=n_gpu, zero=3 if row["fsdp_sharding"] == "FULL_SHARD" else 2,
        micro_batch=int(row["micro_batch"]), n_micro_batch=int(row["grad_accum"]),
        recompute="full" if row["activation_checkpointing"] == "True" else "none",
    )  # fmt: skip
    recipe = Recipe(
        dtype="fp8" if row["precision"] == "amp_fp8" else "bf16", attention="flash", fused=False,
        reduce="bf16" if row["fsdp_mixed_precision"] == "PURE" else "fp32",
    )  # fmt: skip
    place = cluster(MPT_CHIPS[gpu], n_gpu, 8, MPT_NET.get(gpu, "200Gb"))
    return Run(spec=decoder(row), plan=plan, recipe=recipe, cluster=place, context=context,
               group=row["model"], convention="full")  # fmt: skip


def largest_divisor(n: int, most: int) -> int:
    """The largest divisor of a number that is at most another."""
    return max(d for d in range(1, most + 1) if n % d == 0)


MOST_CHUNKS = 8


@runs("train_megatron_weak_scaling.csv")
def megatron(row: CsvRow) -> Run:
    """Megatron-LM of 2021 (FP16) or of 2024 (BF16).

    2021: unfused attention, fused elementwise work, nothing overlapped. 2024: sequence parallel,
    FlashAttention 2, distributed optimizer, all overlapped.

    Micro-batches and interleaving are not printed. Taken: micro-batches of up to 2 that leave
    four to a stage; in 2021 of 1 with a pipeline, else of up to 4 (its paper finds 1 to 4 best).
    As many chunks to a stage as divide it, up to 8.
    """
    n_gpu, tp, pp = int(row["n_gpus"]), int(row["tp"]), int(row["pp"])
    dp = n_gpu // (tp * pp)
    each, layers = int(row["global_batch"]) // dp, int(row["n_layers"])
    modern = row["precision"] == "bf16"
    micro = 1 if pp > 1 and not modern else largest_divisor(each, 2 if modern else 4)
    micro = micro if each >= 4 * pp * micro else 1
    chunks = largest_divisor(layers // pp, MOST_CHUNKS) if pp > 1 and layers % pp == 0 else 1
    plan = Plan(
        tp=tp, pp=pp, dp=dp, virtual=chunks, zero=1 if modern else 0, sequence_parallel=modern,
        micro_batch=micro, n_micro_batch=each // micro,
        recompute="full" if row["recompute"].startswith("full") else "none", vocab_multiple=128,
    )  # fmt: skip
    recipe = Recipe(
        dtype=row["precision"], weights=row["precision"], reduce=row["precision"],
        attention="flash2" if modern else "unfused", overlap=modern, dropout=not modern,
    )  # fmt: skip
    place = cluster(row["gpu"], n_gpu, 8, "400Gb" if modern else "200Gb")
    return Run(spec=decoder(row, tied=not modern), plan=plan, recipe=recipe, cluster=place,
               context=int(row["seq_len"]), group=row["gpu"] + row["params_B"],
               convention="full")  # fmt: skip


@runs("train_korthikanti2022_itertime.csv")
def korthikanti(row: CsvRow) -> Run:
    """Megatron-LM of 2022: unfused attention, fused elementwise work, nothing overlapped."""
    n_gpu, dp = int(row["n_gpus"]), int(row["dp"])
    micro = int(row["micro_batch"])
    plan = Plan(
        tp=int(row["tp"]), pp=int(row["pp"]), dp=dp, virtual=number(row, "vp"), zero=0,
        sequence_parallel=row["sequence_parallel"] == "True", micro_batch=micro,
        n_micro_batch=int(row["global_batch"]) // (dp * micro),
        recompute="full" if row["recompute"] == "full" else "selective", vocab_multiple=128,
    )  # fmt: skip
    recipe = Recipe(dtype="fp16", weights="fp16", reduce="fp16", attention="unfused",
                    overlap=False, dropout=True)  # fmt: skip
    return Run(spec=decoder(row), plan=plan, recipe=recipe,
               cluster=cluster(row["gpu"], n_gpu, 8, "200Gb"), context=int(row["seq_len"]),
               group=row["model"], convention="full")  # fmt: skip


PRECISIONS = {
    "BF16": "bf16", "FP8": "fp8", "FP8-CS": "fp8", "FP8-MX": "mxfp8", "MXFP8": "mxfp8",
    "NVFP4": "nvfp4", "FP8-SC": "fp8-block",
}  # fmt: skip
SIZED_SINCE = "26.06"
ADAPTER_RANK = 32
"""Of LoRA where a table states none; its work is small whatever it is."""
DOMAIN = {"NVLink5 (72-GPU domain)": 64}
"""Chips of a node where the link says so: 64 of 72 are used, so that groups divide."""


def bridge_precision(text: str, hardware: Chip) -> str:
    """FP8 of the first release states no scales: one a tensor, its alternative one a block."""
    if text in PRECISIONS:
        return PRECISIONS[text]
    if "alt-granularity" in text:
        return "mxfp8" if hardware.rates.fp4 is not None else "fp8-block"
    return "fp8"


@runs("train_megatron_bridge.csv")
def bridge(row: CsvRow) -> Run:
    """Megatron-Core by its own recipes: all fused, all overlapped, distributed optimizer.

    Experts are not split by tensor. Modules that predict later tokens run unless a row says not.
    From release 26.06 on Blackwell runs transformers with experts 1.3 to 1.5 times as fast on the
    same plans, whatever the micro-batch: their kernels are taken for fused ones. Hybrids do not
    change with that release.
    """
    hardware = chip(row["system"])
    n_gpu, context = int(row["n_gpus"]), int(row["seq_len"])
    tp, pp, cp = number(row, "tp"), number(row, "pp"), number(row, "cp")
    dp, micro = n_gpu // (tp * pp * cp), int(row["micro_batch"])
    found = catalog.resolve(row["model"])
    plan = Plan(
        tp=tp, pp=pp, cp=cp, dp=dp, ep=number(row, "ep"), expert_tp=1, virtual=number(row, "vp"),
        zero=3 if number(row, "fsdp", 0) > 1 else 1, micro_batch=micro, vocab_multiple=128,
        n_micro_batch=max(1, int(row["global_batch"]) // (dp * micro)),
    )  # fmt: skip
    hybrid = any(op.kind == "scan" for op in operators(found.spec))
    sized = not hybrid and row["release"] >= SIZED_SINCE and hardware.rates.fp4 is not None
    recipe = Recipe(dtype=bridge_precision(row["precision"], hardware), fused_loss=True,
                    sized_experts=sized,
                    adapter=Adapter(rank=ADAPTER_RANK) if "LoRA" in row["task"] else None,
                    )  # fmt: skip
    node = min(n_gpu, DOMAIN.get(hardware.link_kind or "", 8))
    return Run(
        spec=found.spec, plan=plan, recipe=recipe, cluster=cluster(hardware, n_gpu, node),
        context=context, group=row["model"].split(" (")[0],
        mtp_passes=0 if "w/o MTP" in row["model"] else found.mtp_passes,
    )  # fmt: skip


@runs("train_torchtitan.csv")
def torchtitan(row: CsvRow) -> Run:
    """FSDP2, compiled or eager, SDPA with the second FlashAttention, full logits in FP32.

    Tensor parallelism hides its communication only where a row says that it is asynchronous. The
    board's peak is not published; it is that of the same die (the authors place it between
    two boards with that die), and what it reaches of it is fitted.
    """
    board = chip(row["gpu"])
    if not board.dtypes:
        board = replace(board, rates=chip("h100-sxm").rates)
    n_gpu = int(row["n_gpus"])
    tp, pp, cp = number(row, "tp"), number(row, "pp"), number(row, "cp")
    dp, micro = n_gpu // (tp * pp * cp), int(row["local_batch"])
    whole = number(row, "global_batch", micro * dp)
    if pp > 1:  # its schedules cut the local batch into as many micro-batches as there are stages
        micro = max(1, micro // pp)
    extra = (row.get("extra") or "").lower()
    chunks = 2 if "interleav" in extra else 1
    plan = Plan(
        tp=tp, pp=pp, cp=cp, dp=dp, zero=1 if pp > 1 else 3, shard=number(row, "fsdp", dp) * cp,
        micro_batch=micro, n_micro_batch=max(1, whole // (dp * micro)), virtual=chunks,
        recompute="full" if row["activation_ckpt"] == "full" else "products",
    )  # fmt: skip
    recipe = Recipe(
        dtype="fp8" if row["precision"].startswith("float8") else "bf16", attention="flash2",
        fused=row["torch_compile"] == "1", reduce="fp32", master=None, weights="bf16",
        overlap=tp == 1 or "async" in extra,
    )  # fmt: skip
    return Run(spec=catalog.resolve(row["model"]).spec, plan=plan, recipe=recipe,
               cluster=cluster(board, n_gpu), context=number(row, "seq_len", 8192),
               group=f"{row['model']} {row['precision']}")  # fmt: skip


@runs("train_simumax_b200.csv")
def simumax(row: CsvRow) -> Run:
    """Megatron-Core on one node, layers cut; fused loss, tensor communication not overlapped."""
    tp, pp, cp, dp = (int(row[k]) for k in ("tp", "pp", "cp", "dp"))
    plan = Plan(
        tp=tp, pp=pp, cp=cp, dp=dp, ep=number(row, "ep"), expert_tp=1,
        micro_batch=int(row["micro_batch"]), n_micro_batch=int(row["n_microbatches"]),
    )  # fmt: skip
    spec = vary(catalog.resolve(row["model"]).spec, n_layer=int(row["n_layers_kept"]))
    return Run(spec=spec, plan=plan, recipe=Recipe(overlap=False, fused_loss=True, reduce="fp32"),
               cluster=cluster(row["gpu"], int(row["n_gpus"])), context=int(row["seq_len"]),
               group=row["model"])  # fmt: skip


@runs("train_nemo_long_sequence.csv")
def nemo_long(row: CsvRow) -> Run:
    """NeMo, FP8 with a scale a tensor, context parallel; full recomputation is not needed."""
    tp, pp, cp = (int(row[k]) for k in ("tp", "pp", "cp"))
    n_gpu = int(row["n_gpus"])
    dp = n_gpu // (tp * pp * cp)
    plan = Plan(tp=tp, pp=pp, cp=cp, dp=dp, n_micro_batch=max(1, int(row["global_batch"]) // dp))
    return Run(spec=catalog.resolve(row["model"]).spec, plan=plan,
               recipe=Recipe(dtype="fp8", fused_loss=True),
               cluster=cluster(row["gpu"], n_gpu), context=int(row["seq_len"]),
               group=row["gpu"], convention="full")  # fmt: skip


@runs("train_maxtext_tpu.csv")
def maxtext(row: CsvRow) -> Run:
    """Fully sharded over all chips of all slices, recomputation by layer not counted."""
    n_chip = int(row["n_chips"])
    try:
        spec = catalog.resolve(row["model"]).spec
    except UnknownNameError as error:
        reason = f"the table gives no shape for {row['model']}"
        raise NotScoredError(reason, excluded=True) from error
    tokens = 8 * 1024
    context = int(row["seq_len"])
    plan = Plan(dp=n_chip, zero=3, micro_batch=max(1, tokens // context), recompute="full")
    return Run(spec=spec, plan=plan, recipe=Recipe(attention="flash2"),
               cluster=cluster(row["accelerator"], n_chip, min(n_chip, 256)), context=context,
               group=row["accelerator"], convention="full")  # fmt: skip


@runs("train_mleng_llama8b_seqsweep.csv")
def mleng_long(row: CsvRow) -> Run:
    """DeepSpeed with Liger kernels; the optimizer on the host where the row says so."""
    n_gpu = int(row["n_gpus"])
    plan = Plan(
        dp=n_gpu, zero=3 if row["sharding"] == "ZeRO-3" else 2,
        micro_batch=int(row["micro_batch"]),
        recompute="full" if row["activation_checkpointing"] == "True" else "none",
    )  # fmt: skip
    recipe = Recipe(
        attention="flash3" if row["attention"] == "FA3" else "flash2", fused_loss=True,
        offload=row["optimizer_offload"] not in {"", "none"}, reduce="bf16",
    )  # fmt: skip
    return Run(spec=catalog.resolve(row["model"]).spec, plan=plan, recipe=recipe,
               cluster=cluster(row["gpu"], n_gpu), context=int(row["seq_len"]),
               group=row["gpu"])  # fmt: skip


def measured_step(table: str, row: CsvRow, run: Run) -> float:
    """Seconds of a step that a row's figure says, by the table's own convention of FLOPs."""
    if table == "train_korthikanti2022_itertime.csv":
        return float(row["iter_time_s"])
    if table == "train_simumax_b200.csv":
        return float(row["iter_time_ms"]) / 1e3
    tokens = row.get("tokens_per_s_per_gpu") or row.get("tokens_per_s_per_chip")
    if tokens:
        return run.tokens_a_chip / float(tokens)
    column = next(c for c in FLOP_COLUMNS if row.get(c))
    return flops_a_chip(row, run) / (float(row[column]) * 1e12)


FLOP_COLUMNS = ("tflops_per_gpu", "tflops_per_gpu_with_cp", "model_tflops_per_gpu",
                "tflops_per_chip")  # fmt: skip


def flops_a_chip(row: CsvRow, run: Run) -> float:
    """FLOPs of a step for each chip as the table counts them."""
    work = Workload("prefill", 1, run.context)
    ops = operators(run.spec, work)
    forward: Any = forward_flops(ops, run.convention)
    if "counts full recompute" in row.get("tflops_kind", ""):
        head: Any = sum((op.flops() for op in ops if op.part == "lm_head"), start=0)
        forward = forward + (forward - head) / 3
    return float(3 * forward) * run.plan.global_batch / run.cluster.n_gpu


PASSES = {
    "forward": "forward", "forward+backward (checkpointed)": "both",
    "forward+backward+AdamW (checkpointed)": "step",
}  # fmt: skip


def single(row: CsvRow, *, compiled: bool) -> Run:
    """One chip, PyTorch eager or compiled, SDPA: its cuDNN kernel, layers computed again."""
    plan = Plan(zero=0, micro_batch=int(row["batch"]), recompute="full")
    recipe = Recipe(
        fused=compiled, optimizer="adamw" if PASSES[row["workload"]] == "step" else "none",
        master=None, gradients="bf16", moments="bf16",
    )  # fmt: skip
    return Run(spec=catalog.resolve(row["model"]).spec, plan=plan, recipe=recipe,
               cluster=cluster(row["gpu"], 1, 1), context=int(row["seq_len"]),
               group=row["model"])  # fmt: skip
