"""What plain PyTorch keeps and holds where every operation is written out, as the lab's model is.

Autograd keeps the storages that gradients need, a view all of what it is a view of. Letters: R
tokens, D width, b bytes; of attention H heads, h and v widths of a key and a value, S keys; of a
scan P = numbers of all pairs within chunks, C channels of its convolution, n the state's depth.

    RMS norm            its input and, where it is scaled, that of unit size: 2 R D; one 4-byte
                        statistic a vector
    layer norm          its input; two statistics
    product             x once, where several read the same
    gated feed-forward  gate and up side by side 2 R F, the activated gate, the hidden numbers
    experts             the same for each of a token's k experts, with the token's copy, what the
                        expert made, and 3 int64 to say where it belongs
    attention, kernel   queries and keys, turned; all that the product made, for values are a slice
                        of it; the output; 4 H R; a mask for each layer that has one
    attention, written  queries, keys, values repeated for all heads, H R S of softmax, as much of a
                        cap; a trained bias is written out as well: no kernel of a CPU takes it
    hyper-connections   n streams, n + 1 mixed, what the block made
    Mamba-2             z, x, B, C, dt; the convolution's output and its SiLU; B and C for all heads
                        in 5 copies, x in 3, 3 P, the chunks' states twice
    gated delta         as much, see ``_delta``

In the backward pass what is kept goes operator by operator, last first, while gradients come. So
each operator is a ``Step``: what it keeps, and the gradients that live at once in its own backward
pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from msgspec import Struct

from scantling.arith import maximum
from scantling.costs.ranks import Placed
from scantling.ops import Op
from scantling.spec import (
    Branch,
    Dense,
    Disentangled,
    Embeddings,
    Experts,
    GatedDelta,
    GroupedAttention,
    Handed,
    Head,
    HyperConnections,
    LatentAttention,
    Layer,
    Mamba2,
    Router,
    Spec,
    Stack,
)
from scantling.spec.vary import nodes

STREAM = frozenset({
    "pre_norm", "own_pre_norm", "own_post_norm", "post_norm", "after_norm", "residual",
    "depth_router", "hyper_static", "hyper_norm", "hyper_dynamic", "hyper_scale",
})  # fmt: skip
"""Operators around a module, on the residual stream."""
ONCE = frozenset({"relu", "sigmoid", "tanh"})
"""Activations whose gradient needs their output only."""
MORE = frozenset({"relu2", "quick_gelu"})
"""Activations with a number on the way that is kept as well."""


MODULES = (GroupedAttention, LatentAttention, Mamba2, GatedDelta, Dense, Experts)
"""Modules whose operators are known here."""
UNKNOWN: dict[type, tuple[str, ...]] = {
    GroupedAttention: ("d_input", "adapter_rank", "selector"),
    LatentAttention: ("indexer",),
    Dense: ("adapter_rank", "sparsity"),
    Experts: ("d_latent", "n_zero", "delayed"),
    Router: ("hashed", "norm", "expert_scale"),
    HyperConnections: ("constrained",),
    Stack: ("altup",),
    Layer: ("stored_scale",),
    Embeddings: ("n_token_type", "audio", "per_layer"),
    Head: ("transform", "buffer_bias"),
}
"""Fields that are not, where they are set."""


def unmodelled(spec: Spec) -> str | None:
    """The first part of a spec whose memory is not modelled here; None where all of it is.

    Example:
        >>> from scantling import catalog
        >>> unmodelled(catalog.model("deepseek-v3"))
        >>> unmodelled(catalog.model("deepseek-v3.2"))
        'decoder.dense.attention.indexer'
    """
    for path, node in nodes(spec):
        if isinstance(node, Branch) and not isinstance(node.module, MODULES):
            return f"{path}.{type(node.module).__name__}"
        if isinstance(node, Disentangled | Handed):
            return f"{path}.{type(node).__name__}"
        for field in UNKNOWN.get(type(node), ()):
            if getattr(node, field):
                return f"{path}.{field}"
    return None


class Step(Struct, frozen=True):
    """Bytes of one operator of one layer."""

    kept: Any
    """From its forward to its backward pass."""
    back: Any = 0
    """Gradients alive at once in its backward pass, that of the residual stream left out."""
    made: Any = 0
    """The gradient of its weights, which stays."""
    ahead: Any = 0
    """What its forward pass holds at most beside all that is kept, for a moment."""


def steps(placed: tuple[Placed, ...], b: int) -> Iterator[Step]:
    """The steps of one layer kind, or of what is outside of the layers, in forward order.

    Args:
        placed: Its operators.
        b: Bytes of a number.
    """
    flow = _Flow(b)
    for (around, _), group in groupby(placed, lambda p: (leaf(p.op) in STREAM, p.module)):
        ops = tuple(p.op for p in group)
        if around or not placed[0].layer:
            for op in ops:
                yield from flow.around(op)
        else:
            yield from flow.module(ops)


def leaf(op: Op) -> str:
    """The last part of an operator's name."""
    return op.name.rpartition(".")[2]


class _Flow:
    """The residual stream through a layer: which of its tensors are kept already."""

    def __init__(self, b: int) -> None:
        self.b = b
        self.stream = False
        """Whether the stream is kept."""
        self.read = False
        """Whether what the block's branches read is kept."""
        self.own: bool | None = None
        """The same of what a branch normed for itself; None where it reads the block's."""
        self.streams: Any = 1
        """Residual streams."""
        self.skips = False
        """Whether only some tokens pass the block."""

    def around(self, op: Op) -> Iterator[Step]:
        """A norm, a mix, a router on the stream; an embedding's norm, the head."""
        b, name = self.b, leaf(op)
        n = op.m * op.n * b
        if name == "pre_norm":
            yield _norm(op, b, kept=self.stream)
            self.stream, self.read = True, False
        elif name == "own_pre_norm":
            yield _norm(op, b, kept=self.read)
            self.read, self.own = True, False
        elif op.kind == "norm" and name != "hyper_norm":
            one = _norm(op, b)
            each = self.streams if name == "after_norm" else 1
            yield Step(one.kept * each, one.back * each)
        elif name == "depth_router":
            yield Step(0 if self.stream else op.m * op.k * b, 2 * op.m * op.k * b)
            self.stream, self.skips = False, True
        elif name == "hyper_static":
            # the streams, and what they are mixed to; in the backward pass n (n + 1) D twice
            streams: Any = op.tensors[0].shape[0]
            self.streams = streams
            products = n * (streams + 1)
            yield Step(2 * n + n // streams, 2 * products, ahead=products)
            self.stream = self.read = True
        elif name == "hyper_norm":
            yield Step(n, 3 * n)
        elif name == "hyper_dynamic":
            yield Step(op.m * op.k * b + 3 * n, op.m * op.k * b)
        elif name == "residual":
            several = not isinstance(self.streams, int) or self.streams > 1
            grads = n * (3 * self.streams if several else self.skips)
            yield Step(n if several or self.skips else 0, grads)
            self.stream = self.read = self.skips = False
            self.own = None
        elif op.kind == "matmul":
            yield Step(op.m * op.k * b, op.m * (op.n + op.k) * b, weight(op, b))
        if name == "own_post_norm":
            self.own = None

    def reads(self, op: Op) -> Any:
        """The input of a product on the stream, unless it is kept."""
        known = self.read if self.own is None else self.own
        if self.own is None:
            self.read = True
        else:
            self.own = True
        return 0 if known else op.m * op.k * self.b

    def module(self, ops: tuple[Op, ...]) -> Iterator[Step]:
        """What one module keeps, by what its operators are called."""
        by = {leaf(op): op for op in ops}
        if "core" in by and by["core"].kind == "attention":
            yield from (_latent(by, self) if "kv_up" in by else _grouped(by, self))
        elif "pairs" in by:
            yield from (_delta(by, self) if "ba" in by else _state(by, self))
        elif "experts_up" in by:
            yield from _experts(by, self)
        else:
            yield from _dense(by, "", self)
        self.own = None


def weight(op: Op, b: int) -> Any:
    """The matrices of a product."""
    return op.n * op.k * b


def _norm(op: Op, b: int, *, kept: bool = False) -> Step:
    n = op.m * op.n * b
    if op.form == "layer":
        return Step((0 if kept else n) + 8 * op.m, 2 * n)
    return Step((0 if kept else n) + _inner(op, b) + 4 * op.m, 3 * n)


def _inner(op: Op | None, b: int) -> Any:
    """What a norm keeps besides its input: that of unit size, where it is scaled."""
    if op is None:
        return 0
    scaled = any(t.name.endswith("_scale") for t in op.tensors)
    return op.m * op.n * b if op.form == "rms" and scaled else 0


def _widths(op: Op | None) -> dict[str, Any]:
    """Outputs of each matrix of a product."""
    if op is None:
        return {}
    return {t.name.rpartition(".")[2]: t.shape[0] for t in op.tensors if len(t.shape) == 2}


# ---------------------------------------------------------------- attention


def _grouped(by: dict[str, Op], flow: _Flow) -> Iterator[Step]:
    b, core, qkv = flow.b, by["core"], by["qkv"]
    words, rows, width = core.form.split(), qkv.m, _widths(qkv) | _widths(by.get("kv"))
    sequences = rows // core.m
    heads = core.repeat // (maximum(core.times, 1) * sequences)
    value = by["o"].k // heads
    key = core.k - value
    source = sequences * core.n
    keys = width.get("k", heads * key)
    kv = keys // key
    made = [qkv.m * qkv.n * b] + ([by["kv"].m * by["kv"].n * b] if "kv" in by else [])
    q_n, k_n = rows * heads * key * b, source * keys * b
    yield Step(flow.reads(qkv), 2 * made[0], weight(qkv, b))
    if "kv" in by:  # the encoder's output is kept once for all layers
        back = 2 * made[1] + by["kv"].m * by["kv"].k * b
        yield Step(0, back, weight(by["kv"], b))
    left: Any = 0
    for name in ("q_norm", "k_norm", "v_norm"):
        left = left + _inner(by.get(name), b)
    written = {"softcap", "sinks", "relative"} & set(words)
    normed = "q_norm" in by
    if normed or "v_norm" in by or not written:
        left = left + sum(made)
    if written:
        yield Step(left, q_n + 2 * k_n)
        yield from _written(core, sequences, heads, key, value, b, words)
    else:
        if normed or "rope" in words:
            left = left + q_n + k_n
        left = left + (source * kv * value * b if "v_norm" in by else 0)
        yield Step(left, q_n + k_n)
        yield _kernel(core, sequences, heads, kv, key, value, b, words)
    yield from _out(by, b, fresh=bool(written) or key > value)


def _kernel(
    core: Op, sequences: Any, heads: Any, kv: Any, key: Any, value: Any, b: int, words: list[str]
) -> Step:
    """One kernel, whose keys and values are of one width: the narrower is filled with zeros."""
    wide = maximum(key, value)
    rows, source = sequences * core.m, sequences * core.n
    filled: Any = 0
    if key < value:
        filled = (rows * heads + source * kv) * value * b
    elif value < key:
        filled = source * kv * key * b
    mask: Any = 0
    if "alibi" in words:
        mask = heads * core.m * core.n * b
    elif "masked" in words:
        mask = core.m * core.n * b
    out = rows * heads * wide * b
    grads = out + rows * heads * wide * b + 2 * source * heads * wide * b
    return Step(filled + mask + out + rows * heads * 4, grads)


def _written(
    core: Op, sequences: Any, heads: Any, key: Any, value: Any, b: int, words: list[str]
) -> Iterator[Step]:
    """Queries, keys and values as they are multiplied, a cap, and the weights of all pairs."""
    pairs = sequences * heads * core.m * core.n * b
    read = sequences * heads * (core.m + core.n) * key * b
    values = sequences * heads * core.n * value * b
    mask = core.m * core.n if {"causal", "masked"} & set(words) else 0
    capped = "softcap" in words
    yield Step(read + pairs * capped, pairs + values + maximum(read, pairs * capped))
    back = pairs * (3 if "sinks" in words else 2) + values
    yield Step(values + mask + pairs, back, ahead=2 * pairs)


def _out(by: dict[str, Op], b: int, *, fresh: bool) -> Iterator[Step]:
    """Gate, norm and the last product; ``fresh`` where what attention made is not kept by it."""
    o = by["o"]
    n = o.m * o.k * b
    left: Any = 0
    gate = _widths(by["qkv"] if "qkv" in by else by.get("gate")).get("gate")
    if gate is not None:
        left = left + (n if fresh else 0) + o.m * gate * b
        fresh = True
    if "out_norm" in by:
        left = left + (n if fresh else 0) + _inner(by["out_norm"], b)
        fresh = True
    yield Step(left, 2 * n)
    yield Step(n if fresh else 0, n, weight(o, b))


def _latent(by: dict[str, Op], flow: _Flow) -> Iterator[Step]:
    b, core, up, o = flow.b, by["core"], by["kv_up"], by["o"]
    rows, sequences = up.m, up.m // core.m
    heads = core.repeat // (maximum(core.times, 1) * sequences)
    value = o.k // heads
    key = core.k - value
    down = by.get("down") or by["kv_down"]
    narrow = sum(n for name, n in _widths(down).items() if name != "q")  # queries come apart
    made = rows * narrow * b
    yield Step(flow.reads(down), 2 * made, narrow * down.k * b)
    left = made + _inner(by.get("q_norm"), b) + _inner(by["kv_norm"], b)
    q_up = by.get("q_up")
    left = left + rows * up.k * b + (0 if q_up is None else rows * q_up.k * b)
    query = heads * key * (down.k if q_up is None else q_up.k) * b
    yield Step(left, rows * (up.n + heads * key) * b, weight(up, b) + query)
    both = 2 * rows * heads * key * b
    yield Step(both * (1 if value <= key else 0) + (rows * up.n * b if value >= key else 0), both)
    yield _kernel(core, sequences, heads, heads, key, value, b, core.form.split())
    yield from _out(by, b, fresh=key > value)


# ---------------------------------------------------------------- feed-forward


def _dense(by: dict[str, Op], prefix: str, flow: _Flow) -> Iterator[Step]:
    b = flow.b
    act = by[f"{prefix}activation"]
    each = act.m * act.n * b
    gated = False
    for name in (f"{prefix}up", f"{prefix}up_a", f"{prefix}gate_b", f"{prefix}up_b"):
        if name in by:
            op = by[name]
            gated = gated or any("gate" in w for w in _widths(op))
            read = op.m * op.k * b
            kept = read if name.endswith("_b") else flow.reads(op)
            yield Step(kept, 2 * op.m * op.n * b, weight(op, b))
    yield Step(activated(act.form, each, gated=gated), (3 if gated else 2) * each)
    if f"{prefix}inner_norm" in by:
        yield _norm(by[f"{prefix}inner_norm"], b)
    for name in (f"{prefix}down", f"{prefix}down_a", f"{prefix}down_b"):
        if name in by:
            op = by[name]
            yield Step(op.m * op.k * b, op.m * op.k * b, weight(op, b))


def activated(form: str, each: Any, *, gated: bool) -> Any:
    """What an activation keeps, of so many bytes, besides what the next product reads."""
    more = form in MORE
    if gated:
        return each * (2 + more + (form != "linear"))
    return each * (0 if form in ONCE or form == "linear" else 1 + (form == "quick_gelu"))


def _experts(by: dict[str, Op], flow: _Flow) -> Iterator[Step]:
    b, router, up, down = flow.b, by["router"], by["experts_up"], by["experts_down"]
    rows, k, n = router.m, up.top_k, up.experts
    assert k is not None
    assert n is not None
    stream = rows * router.k * b
    # scores, their sum, weights and numbers of the chosen, and the order of all
    yield Step(flow.reads(router) + rows * ((router.n + k + 1) * 4 + 8 * k), stream)
    # gradients one by one, then as a stack: the larger one, the other has been stacked before
    weights = n * up.n * up.k * b
    yield Step(0, 2 * stream + weights, weights + n * down.n * down.k * b)
    inner = by["experts_activation"].n // k
    gated = any("gate" in name for name in _widths(up))
    passed = rows * k
    left = passed * (up.k + inner + down.n) * b
    form = by["experts_activation"].form
    left = left + activated(form, passed * inner * b, gated=gated) + passed * (8 * 2 + b)
    one = -(-passed // n)
    yield Step(left, 2 * stream + one * (3 * inner + 2 * down.n) * b)
    if "shared_activation" in by:
        yield from _dense(by, "shared_", flow)
        if "shared_expert_gate" in by:
            yield Step(stream + rows * b, 2 * stream)


# ---------------------------------------------------------------- scans


def _convolved(by: dict[str, Op], into: Op, b: int) -> tuple[Any, Any]:
    """The product before a convolution with its output and SiLU, and the channels of one copy."""
    conv = by["conv"]
    channels = into.m * conv.n * b
    return into.m * into.n * b + conv.m * conv.n * b + channels, channels


def _state(by: dict[str, Op], flow: _Flow) -> Iterator[Step]:
    """Mamba-2: see ``lab.recurrent.StateSpace``, whose operations these are."""
    b, into, pairs, core, carry = flow.b, by["in"], by["pairs"], by["core"], by["carry"]
    rows = into.m
    heads = pairs.repeat // maximum(pairs.times, 1)
    depth = core.k // 2
    inner, padded = core.n, pairs.m
    yield Step(flow.reads(into), 2 * rows * into.n * b, weight(into, b))
    conv, channels = _convolved(by, into, b)
    yield Step(conv, 2 * channels)
    p = padded * pairs.n * heads * b
    wide, x = padded * heads * depth * b, padded * inner * b
    state = inner * depth * b
    states = carry.m * state
    before = states - carry.m // carry.n * state
    small = (2 * rows + 2 * padded + carry.m * carry.n) * heads * b
    left = 5 * wide + 3 * x + 3 * p + states + before + small
    yield Step(left, 3 * p + 2 * wide + 2 * x, ahead=2 * states + x + wide)
    n = rows * inner * b
    yield Step(2 * n, 3 * n)
    if "norm" in by:
        yield _norm(by["norm"], b)
    yield Step(n, n, weight(by["out"], b))


def _delta(by: dict[str, Op], flow: _Flow) -> Iterator[Step]:
    """The gated delta rule: see ``lab.recurrent.delta_rule``, whose operations these are.

    Of queries and keys 9 copies for all heads, of values 2; 5 P; what solves the system, keys and
    values wide; a state for each chunk.
    """
    b, into, pairs, core = flow.b, by["qkvz"], by["pairs"], by["core"]
    rows = into.m
    heads = pairs.repeat // maximum(pairs.times, 1)
    depth, value, padded = core.k // 3, core.n, pairs.m
    yield Step(flow.reads(into), 2 * rows * into.n * b, weight(into, b))
    conv, channels = _convolved(by, into, b)
    yield Step(conv, 2 * channels)
    p = padded * pairs.n * heads * b
    key, v = padded * heads * depth * b, padded * value * b
    states = padded // pairs.n * value * depth * b
    one = rows * heads * depth * b
    left = one + 9 * key + 5 * p + key + v + v + states + 9 * rows * heads * b
    yield Step(left, 3 * p + 2 * key + 2 * v, ahead=2 * key + 2 * v)
    n = rows * value * b
    yield _norm(by["norm"], b)
    yield Step(2 * n, 3 * n)
    yield Step(n, n, weight(by["o"], b))
