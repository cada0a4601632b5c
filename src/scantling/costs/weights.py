"""Weights in memory: by dtype and quantisation scheme, on one chip or on a rank of several."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from scantling.arith import Num, maximum, minimum, product, round_up
from scantling.costs.quantize import Mixed, Plain, Scheme, layers_of, replaced, scheme, typed_bytes
from scantling.costs.ranks import Placed, expert_tp, placed_operators
from scantling.formats.quantized import QUANTIZED
from scantling.ops import Tensor
from scantling.spec import Experts, GroupedAttention, Spec
from scantling.spec.plan import Plan
from scantling.spec.vary import nodes

REST = 2
"""Bytes of an element that is not packed."""
ALONE = Plan(sequence_parallel=False)


class WeightMemory(Struct, frozen=True):
    """Bytes of the weights that one rank holds."""

    bytes: Num
    """As stored: codes, scales, zero points, and what is not packed."""
    loaded_bytes: Num
    """With the padding that kernels add when they load them; at least ``bytes``."""
    packed_bytes: Num
    """Of ``bytes``, the packed matrices with their scales."""
    rest_bytes: Num
    """Of ``bytes``, what stays as it is: embedding, head, router, norms, biases."""
    packed_elements: Num
    elements: Num

    @property
    def bits_per_weight(self) -> Num:
        """Of all, packed or not."""
        found: Num = 8 * self.bytes / self.elements
        return found


def weight_memory(
    spec: Spec, quant: Scheme | str = "bf16", plan: Plan = ALONE, stage: int = 0
) -> WeightMemory:  # fmt: skip
    """The weights of one rank of a stage in a scheme.

    A matrix is packed where it is a product's, of a part that the scheme packs; embedding, head,
    router, norms and biases stay in 16 bits (GGUF packs both tables and keeps vectors and routers
    in 32). Experts are all resident, however few a token passes. KV heads that several ranks copy
    and what tensor parallelism does not divide count on each rank.

    Args:
        spec: A model, or a column spec.
        quant: A scheme or its name.
        plan: How it is split.
        stage: Pipeline stage.

    Raises:
        UnknownNameError: If no scheme has that name.

    Example:
        >>> from scantling import catalog
        >>> spec = catalog.model("llama-3.1-8b")
        >>> [round(weight_memory(spec, q).bytes / 1e9, 2) for q in ("bf16", "fp8", "awq", "q4_k_m")]
        [16.06, 9.09, 5.73, 4.91]
    """
    one = scheme(quant) if isinstance(quant, str) else quant
    fold: Any = _gguf_bytes if isinstance(one.packing, Mixed) else _bytes
    mix = _shares(spec) if isinstance(one.packing, Mixed) else None
    packed: Any = 0
    rest: Any = 0
    extra: Any = 0
    elements: Any = 0
    count: Any = 0
    for placed in placed_operators(spec, plan, 1, stage):
        for t in placed.op.tensors:
            if t.alias is not None:
                continue
            size: Any = t.size()
            held = fold(one, placed, t, plan, mix)
            elements = elements + size
            if held is None:
                rest = rest + product(size, rest_bytes(one, t))
                continue
            packed, count = packed + held, count + size
            extra = extra + _padding(one, t)
    total = packed + rest
    return WeightMemory(
        bytes=_int(total), loaded_bytes=_int(total + extra), packed_bytes=_int(packed),
        rest_bytes=_int(rest), packed_elements=count, elements=elements,
    )  # fmt: skip


SMALL = frozenset({
    "a", "b", "c", "dt", "dt_in", "dt_up", "dt_up_bias", "forget_a", "forget_b", "gate_a",
    "gate_b", "input_gate_bias", "recurrent_gate_bias", "hyper", "index_weight",
})  # fmt: skip
"""Steps, gates and low-rank parts of recurrences, and weights of an indexer: quantisers leave these
narrow matrices as they are (the FP8 releases of Qwen3-Next and DeepSeek-V3.2 list them)."""


def is_packed(
    one: Scheme, placed: Placed, t: Tensor, parts: Collection[str] | None = None
) -> bool:  # fmt: skip
    """Whether a scheme packs a tensor: a matrix of a product, of one of its parts, not narrow.

    Args:
        one: The scheme.
        placed: The product.
        t: The tensor.
        parts: Other parts than those of its packing.
    """
    matrix = placed.op.kind == "matmul" and len(t.shape) == 2
    narrow = t.part in {"mixer", "attention"} and t.name.rpartition(".")[2] in SMALL
    return one.quantised and matrix and t.part in (parts or one.parts) and not narrow


def rest_bytes(one: Scheme, t: Tensor) -> float:
    """Bytes of an element that a scheme leaves as it is.

    A scheme that packs nothing has its own; GGUF keeps vectors and routers in 32 bits.
    """
    if isinstance(one.packing, Plain):
        return one.packing.bits // 8
    if isinstance(one.packing, Mixed) and (len(t.shape) == 1 or t.part == "router"):
        return 4
    return REST


def _bytes(one: Scheme, placed: Placed, t: Tensor, _: Plan, __: Any) -> Any:
    if is_packed(one, placed, t):
        return _count(t) * one.packing.matrix_bytes(*t.shape)
    if one.others is not None and is_packed(one, placed, t, QUANTIZED):
        return _count(t) * one.others.matrix_bytes(*t.shape)
    return None


def _count(t: Tensor) -> Any:
    """How many equal matrices a tensor stands for."""
    return t.copies if t.experts is None else product(t.copies, t.experts)


def _padding(one: Scheme, t: Tensor) -> Any:
    """Bytes that kernels add to the experts of a rank."""
    if one.pad == (1, 1) or t.experts is None:
        return 0
    own: Any = one.packing.matrix_bytes(*t.shape)
    return _count(t) * (one.packing.matrix_bytes(*_padded(one, t)) - own)


def _padded(one: Scheme, t: Tensor) -> tuple[Any, Any]:
    """The shape to which kernels pad a matrix of experts: their width and D, each to a multiple."""
    width, stream = one.pad
    down = t.name.endswith("down")
    n, k = (stream, width) if down else (width, stream)
    return round_up(t.shape[0], n), round_up(t.shape[1], k)


def size_notes(spec: Spec, quant: Scheme | str, plan: Plan = ALONE) -> tuple[str, ...]:
    """What makes weights larger than the name of their scheme says, one line for each cause.

    GGUF types whose blocks do not divide the inputs of a matrix are replaced by larger ones, and
    kernels pad experts.

    Args:
        spec: One model.
        quant: A scheme or its name.
        plan: How it is split.

    Example:
        >>> from scantling import catalog
        >>> size_notes(catalog.model("qwen2.5-0.5b"), "q4_k_m")[0]
        'embedding: 896 inputs are 3.5 blocks of 256: Q6_K (6.5625 bits) becomes Q8_0 (8.5 bits)'
    """
    one = scheme(quant) if isinstance(quant, str) else quant
    mix = one.packing
    names: dict[tuple[str, int], dict[str, None]] = {}
    padded: dict[str, None] = {}
    for placed in placed_operators(spec, plan if plan.pp == 1 else replace(plan, pp=1), 1):
        for t in (t for t in placed.op.tensors if len(t.shape) == 2 and t.alias is None):
            leaf = t.name.rpartition(".")[2]
            if isinstance(mix, Mixed) and _in_mix(placed, t):
                width = int(t.shape[1]) * (_degree(t, plan) if placed.split == "in" else 1)
                kind = mix.output if _is_output(t, spec.tied) else mix.base
                names.setdefault((kind, width), {})[leaf] = None
            elif is_packed(one, placed, t) and _padding(one, t):
                n, k = _padded(one, t)
                share = n * k / (int(t.shape[0]) * int(t.shape[1])) - 1
                padded[f"{leaf}: kernels pad {t.shape[0]} × {t.shape[1]} of a rank to {n} × {k}, "
                       f"{share:+.1%}"] = None  # fmt: skip
    fallen = ((replaced(base, width), leaves) for (base, width), leaves in names.items())
    return (*(f"{', '.join(leaves)}: {text}" for text, leaves in fallen if text), *padded)


def _int(n: Any) -> Any:
    """Whole bytes of one model; an array stays as it is."""
    return round(n) if isinstance(n, float) else n


# ---------------------------------------------------------------- GGUF


class _Shares(Struct, frozen=True):
    """What of a model decides the types of a mix."""

    n_layer: Any
    shared: Any
    """1 where at least four query heads share a KV head."""
    eight: Any
    """1 where there are eight experts."""
    eighty: Any
    """1 where there are 80 layers."""
    tied: bool


def _shares(spec: Spec) -> _Shares:
    attention: Any = next((n for _, n in nodes(spec) if isinstance(n, GroupedAttention)), None)
    experts: Any = next((n.n_expert for _, n in nodes(spec) if isinstance(n, Experts)), 0)
    shared: Any = 0 if attention is None else minimum(
        1, attention.n_head // attention.n_kv_head // 4)  # fmt: skip
    return _Shares(spec.n_layer, shared, _equal(experts, 8), _equal(spec.n_layer, 80), spec.tied)


def _equal(a: Any, b: int) -> Any:
    """1 where two dimensions are equal, 0 elsewhere, on arrays too."""
    return 1 - minimum(1, maximum(a - b, b - a))


def _gguf_bytes(one: Scheme, placed: Placed, t: Tensor, plan: Plan, s: _Shares) -> Any:
    """A tensor in the types its mix gives to the layers that have it; None where it is not packed.

    Layers of one kind among several get their share of each rule: where rules ask for the first
    layers and kinds are not spread evenly, the total is off by the difference of two types there.
    """
    mix = one.packing
    assert isinstance(mix, Mixed)
    leaf = t.name.rpartition(".")[2]
    if not _in_mix(placed, t):
        return None
    out, inner = t.shape
    row: Any = inner * _degree(t, plan) if placed.split == "in" else inner
    n = _count(t)
    if _is_output(t, s.tied):
        return n * _output_bytes(mix, out, inner)
    rules = {"v": mix.value, "kv_up": mix.value, "o": mix.o}.get(leaf, ())
    if leaf in {"down", "experts_down", "shared_down"} and t.part != "attention":
        rules = mix.down
    found: Any = 0
    left: Any = 1
    for rule, name in rules:
        share: Any = minimum(layers_of(rule, s.n_layer, s.shared) / s.n_layer, left)
        found = found + share * _raised(name, leaf, out, inner, row, s)
        left = left - share
    found = found + left * _raised(mix.base, leaf, out, inner, row, s)
    if leaf in {"k", "v", "kv_up"} and t.part == "attention":
        found = found + s.eight * (typed_bytes("Q8_0", out, inner, row) - found)
    if leaf == "o":
        other = "Q5_K" if mix.eight else mix.base
        found = found + s.eight * (typed_bytes(other, out, inner, row) - found)
    return n * found


def _in_mix(placed: Placed, t: Tensor) -> bool:
    """Whether a GGUF file gives a tensor a block type: products and token tables."""
    if len(t.shape) != 2 or t.part in {"router", "norm"}:
        return False
    table = t.part == "embedding" and t.name.rpartition(".")[2] not in {"position", "token_type"}
    return table or placed.op.kind == "matmul"


def _is_output(t: Tensor, tied: bool) -> bool:
    return t.part == "lm_head" or (tied and t.name == "model.embedding")


def _degree(t: Tensor, plan: Plan) -> int:
    return expert_tp(plan) if t.experts is not None else plan.tp


def _raised(name: str, leaf: str, out: Any, inner: Any, row: Any, s: _Shares) -> Any:
    own: Any = typed_bytes(name, out, inner, row)
    if leaf != "v" or name not in {"Q3_K", "Q4_K"}:
        return own
    return own + s.eighty * (typed_bytes("Q5_K", out, inner, row) - own)


def _output_bytes(mix: Mixed, out: Any, inner: Any) -> Any:
    """The head: one type, or Q8_0 where the base type's blocks do not fit its width."""
    odd: Any = minimum(1, inner % (256 if mix.base.endswith("_K") or mix.base == "IQ4_XS" else 32))
    own: Any = typed_bytes(mix.output, out, inner, inner)
    return own + odd * (typed_bytes("Q8_0", out, inner, inner) - own)
