"""Tables of training runs: what each says of model, plan, software and place."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from scantling.costs.count import CONVENTIONS, Convention, forward_flops
from scantling.costs.train import Step, training_step
from scantling.formats import hf
from scantling.hardware import Cluster, cluster
from scantling.ops import operators
from scantling.spec import Spec, Workload
from scantling.spec.plan import Plan, Recipe
from scantling.validate.table import CsvRow, NotScoredError, Scored, reads


class Run(Struct, frozen=True, kw_only=True):
    """One training run: everything a step's time depends on."""

    spec: Spec
    plan: Plan
    recipe: Recipe
    cluster: Cluster
    context: int
    group: str
    convention: Convention = "causal"

    def step(self) -> Step:
        """Its predicted step."""
        return training_step(self.spec, self.plan, self.recipe, self.context, self.cluster,
                             self.convention)  # fmt: skip


def decoder(row: CsvRow, **more: Any) -> Spec:
    """A GPT of a row's widths: learned positions, biases, a plain feed-forward of its width."""
    config = {
        "model_type": "gpt2", "n_embd": int(row["d_model"]), "n_layer": int(row["n_layers"]),
        "n_inner": int(row["ffn_dim"]), "vocab_size": int(row["vocab_size"]),
        "n_positions": int(row["seq_len"]),
    }  # fmt: skip
    return hf.read(config | more).spec


MPT_CHIPS = {"h100_80gb": "h100-sxm", "a100_80gb": "a100-sxm-80gb", "a100_40gb": "a100-sxm-40gb"}
MPT_NET = {"h100_80gb": "400Gb"}
"""The A100 rows state 1600 Gb/s a node; the H100 rows state nothing, eight 400 Gb/s ports are
what such nodes have."""


def mpt(row: CsvRow) -> Run:
    """PyTorch FSDP, eager, first FlashAttention; ``PURE`` reduces in BF16, ``DEFAULT`` in FP32."""
    gpu, n_gpu, context = row["gpu"], int(row["n_gpus"]), int(row["seq_len"])
    place = cluster(MPT_CHIPS[gpu], n_gpu, 8, MPT_NET.get(gpu, "200Gb"))
    checkpoints = row["activation_checkpointing"] == "True"
    plan = Plan(
        dp=n_gpu, zero=3 if row["fsdp_sharding"] == "FULL_SHARD" else 2,
        micro_batch=int(row["micro_batch"]), n_micro_batch=int(row["grad_accum"]),
        recompute="full" if checkpoints else "none",
    )  # fmt: skip
    recipe = Recipe(
        dtype="fp8" if row["precision"] == "amp_fp8" else "bf16", attention="flash", fused=False,
        reduce="bf16" if row["fsdp_mixed_precision"] == "PURE" else "fp32",
    )  # fmt: skip
    return Run(
        spec=decoder(row, n_head=int(row["n_heads"])), plan=plan, recipe=recipe, cluster=place,
        context=context, group=row["model"], convention="full",
    )  # fmt: skip


def is_outlier(row: CsvRow) -> bool:
    """The row the table's own notes name: 45.4 % between neighbours at 55.4 and 55.7 %."""
    named = ("MPT-1b", "a100_40gb", "32", "2048")
    return (row["model"], row["gpu"], row["n_gpus"], row["seq_len"]) == named
