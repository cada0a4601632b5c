"""Attention tables: prefill and decode of serving engines, and training kernels by generation."""

from __future__ import annotations

from scantling.costs.kernels import Shape, Time, decode_time, prefill_time, training_time
from scantling.hardware import chip
from scantling.validate.table import CsvRow, NotScoredError, Scored, reads

KERNELS = {
    "PyTorch": "unfused",
    "FA1": "flash",
    "FA2": "flash2",
    "FA3": "flash3",
    "cuDNN": "cudnn",
}
"""What the charts call a generation of kernels."""


@reads("attention_prefill_aiconfigurator.csv", "attention of a prompt, s")
def prefill(row: CsvRow) -> Scored:
    """A prompt of ``isl`` tokens after ``step`` cached ones, causal."""
    queries, past = int(row["isl"]), int(row["step"])
    return _scored(
        row, prefill_time(chip(row["gpu"]), "bf16", _shape(row, queries, queries + past))
    )


@reads("attention_decode_aiconfigurator.csv", "attention of a new token, s")
def decode(row: CsvRow) -> Scored:
    """One new token of each sequence on ``kv_len`` keys."""
    return _scored(row, decode_time(chip(row["gpu"]), "bf16", _shape(row, 1, int(row["kv_len"]))))


@reads("attention_flashattention_figs.csv", "training attention, s")
def charts(row: CsvRow) -> Scored:
    """One pass, or forward and backward; the charts halve the FLOPs of a causal mask."""
    if row["impl"] not in KERNELS:
        raise NotScoredError(f"unknown kernel {row['impl']}")
    kernel, one = KERNELS[row["impl"]], chip(row["gpu"])
    tokens, queries, width = (int(row[f]) for f in ("total_tokens", "seq_len", "head_dim"))
    heads, causal = int(row["hidden_dim"]) // width, row["causal"] == "True"
    shape = Shape(
        batch=tokens // queries, queries=queries, keys=queries, n_head=heads, n_kv_head=heads,
        d_key=width, visible=queries * (queries + 1) // 2 if causal else None,
    )  # fmt: skip
    flops = 4 * tokens * queries * heads * width * (0.5 if causal else 1)
    passes = {"fwd": (False,), "bwd": (True,), "fwd+bwd": (False, True)}[row["pass"]]
    flops *= sum(2.5 if backward else 1 for backward in passes)
    found = [training_time(one, "bf16", shape, kernel, backward=b) for b in passes]
    time = found[0] if len(found) == 1 else found[0] + found[1]
    group = f"{row['gpu']} {row['impl']} {queries}"
    actual = flops / (float(row["tflops"]) * 1e12)
    return Scored(row=row["row_id"], group=group, actual=actual, predicted=float(time.value_s),
                  low=float(time.low_s), high=float(time.high_s))  # fmt: skip


def _shape(row: CsvRow, queries: int, keys: int) -> Shape:
    return Shape(
        batch=int(row["batch_size"]), queries=queries, keys=keys, n_head=int(row["num_heads"]),
        n_kv_head=int(row["num_key_value_heads"]), d_key=int(row["head_dim"]),
        visible=queries * keys - queries * (queries - 1) // 2,
    )  # fmt: skip


def _scored(row: CsvRow, time: Time) -> Scored:
    group = "/".join(row[f] for f in ("num_heads", "num_key_value_heads", "head_dim"))
    return Scored(
        row=row["row_id"], group=group, actual=float(row["latency_us"]) / 1e6,
        predicted=float(time.value_s), low=float(time.low_s), high=float(time.high_s),
    )  # fmt: skip
