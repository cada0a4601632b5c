"""Products, routed experts and light work, row by row of the public tables."""

from __future__ import annotations

import math
from typing import Any

from scantling.arith import Num
from scantling.costs.kernels import Time, elementwise_time, gemm_time, grouped_time
from scantling.hardware import Chip, chip
from scantling.hardware.constants.elementwise import Light
from scantling.spec.workload import plain_dtype
from scantling.validate.table import CsvRow, NotScoredError, Scored, reads

US = 1e6
MS = 1e3
SKEWED_SHARE = 0.5
"""Routing by a power law: the busiest of r ranks works out r^−0.5 of all pairs. The table does not
say how it draws; this is what its times say."""
SKEWED_REACH = 0.75
"""And its experts are reached as by three quarters of the pairs."""


@reads("gemm_aiconfigurator.csv", "latency, µs")
def gemm(row: CsvRow) -> Scored:
    """The latency of one product."""
    m, n, k = (int(row[x]) for x in "mnk")
    time = gemm_time(chip(row["gpu"]), row["dtype"], m, n, k)
    return _scored(row, f"{n}x{k}", float(row["latency_us"]), time, US)


@reads("gemm_mamf_best_shape.csv", "rate, TFLOP/s")
def best_shape(row: CsvRow) -> Scored:
    """The rate of the best product that a search over shapes found: it leans above ours.

    Its inputs come in their dtype: nothing brings them there.
    """
    m, n, k = (int(row[x]) for x in "mnk")
    one = chip(row["accelerator"])
    if plain_dtype(row["dtype"]) not in one.dtypes:
        raise NotScoredError(f"{one.key} has no rate for {row['dtype']}")
    time = gemm_time(one, row["dtype"], m, n, k, narrowed=True)
    work = 2 * m * n * k / 1e12
    return Scored(
        row=row["row_id"], group=one.key, actual=float(row["achieved_tflops"]),
        predicted=work / float(time.value_s), low=work / float(time.high_s),
        high=work / float(time.low_s),
    )  # fmt: skip


@reads("moe_aiconfigurator.csv", "latency, µs")
def fused_experts(row: CsvRow) -> Scored:
    """The latency of a layer of routed experts on the busiest rank."""
    given = {name: int(row[name]) for name in EXPERT_FIELDS}
    skewed = row["distribution"] != "balanced"
    time = layer_of_experts(chip(row["gpu"]), row["moe_dtype"], given, skewed=skewed)
    group = f"{row['hidden_size']}x{row['inter_size']}x{row['num_experts']}"
    return _scored(row, group, float(row["latency_us"]), time, US)


EXPERT_FIELDS = (
    "num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size",
)  # fmt: skip


def layer_of_experts(
    one: Chip, dtype: str, given: dict[str, Any], *, skewed: bool | Any
) -> Time:  # fmt: skip
    """Both products of a layer of routed experts, gated, on the busiest rank; arrays alike.

    With N tokens, K of E experts each and r ranks, the busiest works out N K / r pairs of a
    balanced routing and N K r^−0.5 of one by a power law. All N K pairs pass through its memory:
    what falls to other ranks is masked there, not left out.
    """
    n, k, e = given["num_tokens"], given["topk"], given["num_experts"]
    ranks, inner = given["moe_ep_size"], given["inter_size"] / given["moe_tp_size"]
    pairs = n * k * ranks ** -(1.0 - (1.0 - SKEWED_SHARE) * skewed)
    local = e / ranks
    reach = 1.0 - (1.0 - SKEWED_REACH) * skewed
    touched: Num = local * (1 - math.e ** (-pairs / local * reach))
    width = given["hidden_size"]
    up = grouped_time(one, dtype, pairs, 2 * inner, width, touched, passing=n * k)
    return up + grouped_time(one, dtype, pairs, width, inner, touched, passing=n * k)


def _scored(row: CsvRow, group: str, actual: float, time: Time, factor: float) -> Scored:
    return Scored(
        row=row["row_id"], group=group, actual=actual, predicted=float(time.value_s) * factor,
        low=float(time.low_s) * factor, high=float(time.high_s) * factor,
    )  # fmt: skip


def light_work(row: CsvRow, name: str) -> tuple[Light, float, float]:
    """The kind of a column of the table of layers, the bytes it moves in BF16, and its width."""
    width = int(row["d_model"])
    head = width / int(row["n_head"])
    tp = int(row["tp"])
    heads = int(row["n_head"]) + int(row["n_kv_head"])
    passes = 3 if row["gated_mlp"] == "True" else 2
    kinds: dict[str, tuple[Light, float, float]] = {
        "input_layernorm": ("norm", 2, width),
        "post_attention_layernorm": ("norm", 2, width),
        "add": ("copy", 3, width),
        "mlp_act": ("activation", passes, int(row["ffn_dim"]) / tp),
        "attn_rope": ("rotary", 2, heads * head / tp),
    }
    kind, times, elements = kinds[name]
    return kind, 2 * times * elements * int(row["num_tokens"]), elements


def projection(row: CsvRow, name: str) -> tuple[int, int]:
    """The output columns and the depth of a column of products in the table of layers."""
    width, tp = int(row["d_model"]), int(row["tp"])
    head = width // int(row["n_head"])
    heads = int(row["n_head"]) + 2 * int(row["n_kv_head"])
    inner = int(row["ffn_dim"]) // tp
    gates = 2 if row["gated_mlp"] == "True" else 1
    return {
        "attn_pre_proj": (heads * head // tp, width),
        "attn_post_proj": (width, width // tp),
        "mlp_up_proj": (gates * inner, width),
        "mlp_down_proj": (width, inner),
    }[name]


def _light(name: str) -> None:
    """Register a column of light work."""

    def predict(row: CsvRow) -> Scored:
        kind, moved, width = light_work(row, name)
        time = elementwise_time(chip(row["gpu"]), moved, 1, kind, width)
        return _scored(row, row["model"], _measured(row, name), time, MS)

    reads("layer_ops_vidur.csv", f"{name}, ms")(predict)


def _projection(name: str) -> None:
    """Register a column of products: output columns and depth by the row's widths."""

    def predict(row: CsvRow) -> Scored:
        time = gemm_time(chip(row["gpu"]), "bf16", int(row["num_tokens"]), *projection(row, name))
        return _scored(row, row["model"], _measured(row, name), time, MS)

    reads("layer_ops_vidur.csv", f"{name}, ms")(predict)


def _measured(row: CsvRow, name: str) -> float:
    text = row[f"{name}_ms"]
    if not text or float(text) <= 0:
        raise NotScoredError(f"no time of {name} in this row", excluded=True)
    return float(text)


for _name in ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj"):
    _projection(_name)
for _name in ("input_layernorm", "post_attention_layernorm", "add", "mlp_act", "attn_rope"):
    _light(_name)
