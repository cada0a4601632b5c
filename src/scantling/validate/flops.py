"""Counts in public tables: FLOPs per token, parameters, and the arithmetic of MFU.

No time enters here. A published rate is FLOPs that somebody counted over seconds; what is scored
is whether we count the same, by the table's own convention.
"""

from __future__ import annotations

import re

from scantling import catalog
from scantling.costs.count import flops, parameters
from scantling.costs.megatron import EARLY, megatron_flops
from scantling.formats import hf
from scantling.hardware import chip
from scantling.spec import Spec
from scantling.validate.table import CsvRow, Scored, reads

WITHOUT_PREDICTION = re.compile(r"w/o\s+mtp", re.IGNORECASE)


def _predicts(name: str) -> bool:
    """Whether a run trained the modules that predict later tokens; it says so where not."""
    return not WITHOUT_PREDICTION.search(name)


@reads("flops_per_token_megatron_bridge.csv", "model FLOPs per token, GFLOP")
def flops_per_token(row: CsvRow) -> Scored:
    """A model by name, counted as Megatron-Bridge counted; derived from printed TFLOP/s.

    A row pools releases from 2025 to 2026, of which most precede the corrections of windows and
    gates: their count is taken. It differs for gpt-oss and the gated delta rule alone.
    """
    model = catalog.resolve(row["model"])
    context = int(row["seq_len"])
    passes = model.mtp_passes if _predicts(row["model"]) else 0
    counted = megatron_flops(model.spec, context, passes, EARLY)
    return Scored(
        row=f"{row['model']} @ {context}", group=model.name,
        actual=float(row["gflops_per_token"]), predicted=float(counted / context / 1e9),
    )  # fmt: skip


def mpt_shape(row: CsvRow) -> Spec:
    """The GPT of a row of LLM Foundry's benchmark: learned positions, every bias, tied."""
    return hf.read({
        "model_type": "gpt2", "vocab_size": int(row["vocab_size"]),
        "n_positions": int(row["seq_len"]), "n_embd": int(row["d_model"]),
        "n_layer": int(row["n_layers"]), "n_head": int(row["n_heads"]),
        "n_inner": int(row["ffn_dim"]), "tie_word_embeddings": True,
    }).spec  # fmt: skip


@reads("train_mpt_llmfoundry.csv", "parameters", exact=True)
def mpt_parameters(row: CsvRow) -> Scored:
    """Positions are as many as the sequence is long, so the count grows with it."""
    return Scored(
        row=row["row_id"], group=row["model"], actual=float(row["params"]),
        predicted=float(parameters(mpt_shape(row)).total),
    )  # fmt: skip


@reads("train_mpt_llmfoundry.csv", "MFU by its own arithmetic, %")
def mpt_mfu(row: CsvRow) -> Scored:
    """(6 N + 12 L D S) × tokens a second and chip / peak: the printed rate in, no time of ours.

    The convention is PaLM's: all parameters, positions among them, and attention in full.
    """
    context = int(row["seq_len"])
    a_token = flops(mpt_shape(row), 1, context, "palm").train / context
    dtype = "fp8" if "fp8" in row["precision"] else "bf16"
    rate = float(row["tokens_per_s"]) / int(row["n_gpus"])
    mfu = float(a_token) * rate / chip(row["gpu"]).rate(dtype)
    return Scored(
        row=row["row_id"], group=row["model"], actual=float(row["mfu_pct"]), predicted=100 * mfu
    )
