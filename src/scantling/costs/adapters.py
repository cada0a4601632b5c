"""Fine-tuning by low-rank adapters: how many parameters, in what the frozen weights are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from scantling.arith import Num, maximum, minimum, product
from scantling.costs.ranks import Placed, placed_operators
from scantling.ops import Tensor
from scantling.spec import Spec, dtype_bytes, kv_dtype_bytes
from scantling.spec.plan import Adapter, Plan, Prompt

SCALE = 32
NF4_BLOCK = 64
SCALES_BLOCK = 256


def packed_bytes(name: str) -> float:
    """Bytes of an element of a frozen weight, its share of the scales included.

        nf4      4 bits + 32/64: an fp32 scale for 64 elements            0.5625
        nf4-dq   4 bits + 8/64 + 32/(64 × 256): scales in 8 bits, and their own  0.51587
        int8     1, and an fp32 scale a row, which is left out

    Example:
        >>> packed_bytes("nf4"), round(packed_bytes("nf4-dq"), 5), packed_bytes("int4-g128")
        (0.5625, 0.51587, 0.515625)
    """
    if name == "nf4":
        return (4 + SCALE / NF4_BLOCK) / 8
    if name == "nf4-dq":
        return (4 + 8 / NF4_BLOCK + SCALE / (NF4_BLOCK * SCALES_BLOCK)) / 8
    return kv_dtype_bytes(name)


def frozen_bytes(t: Tensor, placed: Placed, adapter: Adapter | Prompt) -> float:
    """Bytes of an element of one frozen tensor: products are packed, the rest stays in 16 bits.

    The head is a product that ``packs_head`` may leave out.
    """
    product_of_layers = placed.op.kind == "matmul" and len(t.shape) == 2
    if product_of_layers and (placed.op.part != "lm_head" or adapter.packs_head):
        return packed_bytes(adapter.weights)
    return max(2.0, dtype_bytes(adapter.weights) if not adapter.packed else 2.0)


def unpacked_bytes(ops: tuple[Placed, ...], adapter: Adapter | Prompt) -> Any:
    """Scratch in which the largest packed matrix is unpacked: twice, in 16 bits.

    Four-bit weights become fp16 first, the dtype they were packed from, then that of the input.
    """
    if not adapter.packed:
        return 0
    largest: Any = 0
    for placed in ops:
        op = placed.op
        if op.kind == "matmul" and (op.part != "lm_head" or adapter.packs_head):
            for t in op.tensors:
                largest = maximum(largest, t.each() * minimum(op.times, 1))
    return largest * 4


# ---------------------------------------------------------------- adapters

ALIASES = {
    "q_a_proj": ("q_down",), "q_b_proj": ("q_up",), "kv_a_proj_with_mqa": ("kv_down",),
    "kv_b_proj": ("kv_up",), "query_key_value": ("q", "k", "v"), "qkv_proj": ("q", "k", "v"),
    "Wqkv": ("q", "k", "v"), "c_attn": ("q", "k", "v"), "dense": ("o",), "fc1": ("up",),
    "fc2": ("down",), "gate_up_proj": ("gate", "up"), "dense_h_to_4h": ("up",),
    "dense_4h_to_h": ("down",),
    "w1": ("gate",), "w2": ("down",), "w3": ("up",), "wi_0": ("gate",), "wi_1": ("up",),
    "wi": ("up",), "c_fc": ("up",), "c_proj": ("o", "down"), "out_proj": ("o",), "fc_in": ("up",),
    "fc_out": ("down",), "query": ("q",), "key": ("k",), "value": ("v",),
}  # fmt: skip
"""Matrices behind other names that a target goes by."""


class Adapted(Struct, frozen=True):
    """What a set of adapters trains."""

    parameters: Num
    modules: tuple[str, ...]
    """Names of the matrices that get one."""
    skipped: tuple[str, ...]
    """Matrices that match and get none: experts stacked in one 3-D tensor."""
    notes: tuple[str, ...]


def adapted(spec: Spec, adapter: Adapter, *, wrap_experts: bool = False) -> Adapted:
    """What an adapter trains: rank × (out + in) for each matrix it is put on.

    Args:
        spec: The model.
        adapter: Rank and targets.
        wrap_experts: Whether the software puts adapters on stacked experts too; by default
            (PEFT) it wraps linear modules only, and experts that are one 3-D tensor are none.

    Example:
        >>> from scantling import catalog
        >>> spec = catalog.model("llama-2-70b")
        >>> adapted(spec, Adapter(rank=8, targets=("q_proj", "v_proj"))).parameters
        16384000
        >>> adapted(spec, Adapter(rank=8)).parameters
        103546880
    """
    ops = placed_operators(spec, Plan(), 1)
    names: dict[str, None] = {}
    skipped: dict[str, None] = {}
    total: Any = 0
    for t, hit in _matched(ops, adapter):
        plain = t.name.rpartition(".")[2]
        if t.experts is not None and not wrap_experts:
            skipped[plain] = None
            continue
        names[plain] = None
        total = total + hit
    notes = [f"adapters on {', '.join(names) or 'nothing'}"]
    if skipped:
        notes.append(
            f"no adapter on {', '.join(skipped)}: expert weights are 3-D tensors and not wrapped "
            "by default, so the count leaves them out"
        )
    return Adapted(total, tuple(names), tuple(skipped), tuple(notes))


def adapter_parameters(ops: tuple[Placed, ...], adapter: Adapter | Prompt) -> Any:
    """Trained parameters on one rank: Σ rank × (out + in) over its adapted matrices.

    Experts, as stacked tensors, get none.
    """
    total: Any = 0
    if isinstance(adapter, Prompt):
        return prompt_parameters(ops, adapter)
    for t, hit in _matched(ops, adapter):
        if t.experts is None:
            total = total + hit
    return total


def prompt_parameters(ops: tuple[Placed, ...], adapter: Prompt) -> Any:
    """Trained parameters of prompts: rows × D and a gate for each head, for each adapted layer.

    With scales also 2 × out for every product, the head's among them, and all norms.
    """
    total: Any = 0
    for placed in ops:
        op = placed.op
        if op.kind == "attention":
            layers = maximum(op.times - adapter.first_layer, 0)
            total = total + layers * (op.repeat // maximum(op.times, 1))
        elif op.name.endswith(".o"):
            total = total + maximum(op.times - adapter.first_layer, 0) * adapter.n_prompt * op.n
        if adapter.scales and op.kind == "matmul":
            total = total + 2 * op.n * (op.times if placed.layer else 1)
        elif adapter.scales and op.kind == "norm":
            for t in op.tensors:
                total = total + t.size()
    return total


def _matched(ops: tuple[Placed, ...], adapter: Adapter) -> Iterator[tuple[Tensor, Any]]:
    """Each matrix that a target names, with the parameters of its adapters in the whole model."""
    for placed in ops:
        for t in placed.op.tensors:
            if adapts(placed, t, adapter):
                copies = t.copies if t.experts is None else product(t.copies, t.experts)
                yield t, product(adapter.rank * (t.shape[0] + t.shape[1]), copies)


def adapts(placed: Placed, t: Tensor, adapter: Adapter) -> bool:
    """Whether a target names a matrix; without targets every product of the layers is one.

    The router is no target of its own, nor is the head.
    """
    if placed.op.kind != "matmul" or not placed.layer or len(t.shape) != 2:
        return False
    if not adapter.targets:
        return placed.op.part != "router"
    own = t.name.rpartition(".")[2]
    leaf = own.removeprefix("experts_").removeprefix("shared_")
    return any(own in names or leaf in names for names in map(_plain, adapter.targets))


def _plain(target: str) -> tuple[str, ...]:
    if target in ALIASES:
        return ALIASES[target]
    return (target.removesuffix("_proj"),)


class RankReading(Struct, frozen=True):
    """What reported counts of trained parameters say about the set of adapters."""

    linear: bool
    """Whether they grow with the rank alone: then the same matrices are adapted at every rank."""
    per_rank: float
    """Parameters for each unit of rank: Σ (out + in)."""


def rank_reading(reported: Mapping[int, int]) -> RankReading:
    """Read counts reported for several ranks.

    Example:
        >>> rank_reading({8: 16384000, 16: 32768000})
        RankReading(linear=True, per_rank=2048000.0)
    """
    ratios = {n / rank for rank, n in reported.items()}
    return RankReading(len(ratios) == 1, min(ratios))
