"""Each distinct attention of a model on a chip: who computes it, in what tiles, what it moves."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from scantling.arith import Dim
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
from scantling.spec import GroupedAttention, LatentAttention, Spec, Workload, dtype_bytes
from scantling.spec.vary import nodes

CORE = ".core"
"""What the softmax attention of a mixer is called: the scores of an indexer, or of positions, are
products of their own that no fused kernel of the table computes."""


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
        tile: What a block of a prompt holds on chip; None where none fits, the chip tells nothing
            of it, or in decoding, where kernels have tiles of their own.
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
        if phase == "decode" and not generates(spec):
            continue
        ops = operators(spec, work)
        whole[phase] = float(total_time(ops, work, chip).value_s)
        for op in ops:
            if op.kind == "attention" and op.name.endswith(CORE):
                shape = split(spec, attention_shape(op, work))
                looks.setdefault(op.name, {})[phase] = shape, op
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
    d_key = int(shape.d_key)
    d_value = d_key if shape.d_value is None else int(shape.d_value)
    decoding = work.phase == "decode"
    known = chip.compute_capability is not None  # the rule of tiles is of NVIDIA's kernels
    held = tile(chip, max(d_key, d_value)) if known and not decoding else None
    rows = TILE if held is None else held.queries
    bytes_ = traffic(shape, rows)
    flops, moved = float(shape.flops), float(bytes_.fused)
    rate, bandwidth = attention_rate(chip, work.dtype), chip.memory_bytes_per_s
    return Look(
        shape=shape,
        seconds=Quantity(value=value, low=float(time.low_s), high=float(time.high_s), unit="s",
                         kind=chip.constants.attention.kind,
                         why=("costs.kernels.attention", *chip.constants.attention.sources)),
        share=value / whole, intensity=flops / moved, ridge=rate / bandwidth,
        bound="compute" if flops / rate >= moved / bandwidth else "memory",
        fraction=flops * layers / value / rate, bandwidth=moved * layers / value / bandwidth,
        kernels=tuple((name, takes(name, chip, d_key, d_value)) for name in fused_kernels()),
        tile=held, traffic=bytes_,
        fill=decode_fill(chip, shape) if decoding else prefill_fill(chip, shape, rows),
    )  # fmt: skip


def generates(spec: Spec) -> bool:
    """Whether a model keeps anything from token to token: an encoder has no decode step.

    Example:
        >>> from scantling import catalog
        >>> generates(catalog.model("gpt2"))
        True
    """
    return any(op.cache is not None for op in operators(spec, Workload("decode", 1, 2)))


def split(spec: Spec, shape: Shape) -> Shape:
    """A shape with its own widths of keys and of values, where an operator says only their sum.

    Of a latent they are d_nope + d_rope and d_value in a prompt, and absorbed kv_rank + d_rope and
    kv_rank.

    Example:
        >>> from scantling import catalog
        >>> absorbed = Shape(batch=1, queries=1, keys=9, n_head=128, n_kv_head=1, d_key=544)
        >>> found = split(catalog.model("deepseek-v3"), absorbed)
        >>> found.d_key, found.d_value
        (576, 512)
    """
    for stack in (spec.decoder, *((spec.encoder,) if spec.encoder is not None else ())):
        for kind in stack.kinds:
            for _, node in nodes(kind):
                for n_head, key, value in _widths(node):
                    if n_head == shape.n_head and key + value == shape.both:
                        return replace(shape, d_key=key, d_value=value)
    return shape


def _widths(node: Any) -> tuple[tuple[Dim, Dim, Dim], ...]:
    """Heads and widths of keys and values of a mixer, in a prompt and absorbed."""
    if isinstance(node, LatentAttention):
        return ((node.n_head, node.d_nope + node.d_rope, node.d_value),
                (node.n_head, node.kv_rank + node.d_rope, node.kv_rank))  # fmt: skip
    if isinstance(node, GroupedAttention):
        return ((node.n_head, node.d_head, node.d_head if node.d_value is None else node.d_value),)
    return ()


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
