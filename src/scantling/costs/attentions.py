"""Each distinct attention of a model on a chip: who computes it, in what tiles, what it moves."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from scantling.costs.flash import (
    Fill,
    Taken,
    Tile,
    Traffic,
    decode_fill,
    fused_kernels,
    prefill_fill,
    takes,
    tile,
    traffic,
)
from scantling.costs.kernels.attention import TILE, Shape
from scantling.costs.kernels.time import Time
from scantling.costs.time import attention_shape, op_time, total_time
from scantling.hardware import Chip
from scantling.ops import Op, operators
from scantling.quantity import Quantity
from scantling.spec import Spec, Workload, dtype_bytes


class Look(Struct, frozen=True, kw_only=True):
    """One attention in one phase.

    Args:
        shape: Its dimensions.
        seconds: All its layers.
        share: Of the time of all operators of the phase.
        intensity: FLOPs for each byte that one fused kernel has to move.
        ridge: FLOPs for each byte at which the chip's compute and memory take as long.
        bound: Which of them takes longer.
        fraction: Of the peak that it reaches, over the pairs that the mask lets through.
        bandwidth: Of the peak bandwidth that it reaches.
        kernels: (name, verdict) of every fused kernel of the table.
        tile: What a block holds on chip; None where none fits or the chip tells nothing of it.
        traffic: Bytes of one layer, fused and not.
        fill: Blocks against SMs; None where the chip's are not known.
    """

    shape: Shape
    seconds: Quantity
    share: float
    intensity: float
    ridge: float
    bound: Literal["compute", "memory"]
    fraction: float
    bandwidth: float
    kernels: tuple[tuple[str, Taken], ...]
    tile: Tile | None
    traffic: Traffic
    fill: Fill | None


class Attention(Struct, frozen=True, kw_only=True):
    """Layers whose attention has the same dimensions in every phase.

    Args:
        names: The operators.
        layers: How many.
        prefill: A prompt.
        decode: The next token of each sequence; None in an encoder.
    """

    names: tuple[str, ...]
    layers: int
    prefill: Look | None
    decode: Look | None


def attentions(
    spec: Spec, batch: int, context: int, chip: Chip, dtype: str = "bf16", kv_dtype: str = "bf16"
) -> tuple[Attention, ...]:
    """Every distinct attention of a model, in prefill and in decoding.

    Args:
        spec: One model.
        batch: Sequences.
        context: Tokens of each.
        chip: Where.
        dtype: What is multiplied.
        kv_dtype: What keys and values are kept as.

    Example:
        >>> from scantling import catalog
        >>> from scantling.hardware import chip
        >>> found = attentions(catalog.model("gpt-oss-20b"), 1, 4096, chip("h100"))
        >>> [(a.layers, a.prefill.shape.reach) for a in found if a.prefill]
        [(12, 128), (12, None)]
    """
    phases: tuple[Literal["prefill", "decode"], ...] = ("prefill", "decode")
    looks: dict[str, dict[str, tuple[Shape, Op]]] = {}
    whole: dict[str, float] = {}
    works = {p: Workload(p, batch, context, dtype=dtype, kv_dtype=kv_dtype) for p in phases}
    for phase, work in works.items():
        ops = operators(spec, work)
        whole[phase] = float(total_time(ops, work, chip).value_s)
        for op in ops:
            if op.kind == "attention":
                looks.setdefault(op.name, {})[phase] = attention_shape(op, work), op
    alike: dict[Any, list[str]] = {}
    for name, seen in looks.items():
        alike.setdefault(tuple((p, shape) for p, (shape, _) in seen.items()), []).append(name)
    found = []
    for shapes, names in alike.items():
        each = {
            phase: _look([looks[n][phase][1] for n in names], shape, works[phase], chip,
                         whole[phase])
            for phase, shape in shapes
        }  # fmt: skip
        layers = sum(int(looks[n][shapes[0][0]][1].times) for n in names)
        found.append(Attention(names=tuple(names), layers=layers, prefill=each.get("prefill"),
                               decode=each.get("decode")))  # fmt: skip
    return tuple(found)


def _look(ops: list[Op], shape: Shape, work: Workload, chip: Chip, whole: float) -> Look:
    time = Time(0.0, 0.0, 0.0, 0.0, 0.0)
    for op in ops:
        time = time + op_time(op, work, chip)
    layers = sum(int(op.times) for op in ops)
    value = float(time.value_s)
    flops, moved = float(shape.flops), float(shape.query_bytes + shape.cache_bytes)
    rate, bandwidth = attention_rate(chip, work.dtype), chip.memory_bytes_per_s
    d_key = int(shape.d_key)
    d_value = d_key if shape.d_value is None else int(shape.d_value)
    held = tile(chip, max(d_key, d_value))
    rows = TILE if held is None else held.queries
    decoding = work.phase == "decode"
    return Look(
        shape=shape,
        seconds=Quantity(value=value, low=float(time.low_s), high=float(time.high_s), unit="s",
                         kind=chip.constants.attention.kind,
                         why=("costs.kernels.attention", *chip.constants.attention.sources)),
        share=value / whole, intensity=flops / moved, ridge=rate / bandwidth,
        bound="compute" if flops / rate >= moved / bandwidth else "memory",
        fraction=flops * layers / value / rate, bandwidth=moved * layers / value / bandwidth,
        kernels=tuple((name, takes(name, chip, d_key, d_value)) for name in fused_kernels()),
        tile=held, traffic=traffic(shape, rows),
        fill=decode_fill(chip, shape) if decoding else prefill_fill(chip, shape, rows),
    )  # fmt: skip


def attention_rate(chip: Chip, dtype: str) -> float:
    """The peak that attention runs at: at least 16 bits, even where products run at 8 or 4.

    Example:
        >>> from scantling.hardware import chip
        >>> attention_rate(chip("h100"), "fp8") == chip("h100").rate("bf16")
        True
    """
    if dtype_bytes(dtype) >= 2:
        return chip.rate(dtype)
    return chip.rate("fp16" if chip.rates.bf16 is None else "bf16")
