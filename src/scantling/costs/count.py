"""Counts: parameters and FLOPs. Folds over the operators, exact on one spec.

Conventions: parameters are unique (a tied tensor once), without buffers. FLOPs count 2 per
multiply-add; see ``forward_flops``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from scantling.arith import Dim, Num, maximum, product
from scantling.costs.megatron import megatron_flops
from scantling.errors import FieldError
from scantling.ops import PARTS, Op, Tensor, operators, tensors, visible_pairs
from scantling.spec import Spec, Workload, vary

Convention = Literal["full", "unpadded", "causal", "palm", "megatron"]
CONVENTIONS: dict[str, str] = {
    "full": "2 per multiply-add; attention over all pairs; head at every position; chunked scans "
    "with the padding of their last chunk, convolutions with that of their ends",
    "unpadded": "as full, without the padding of scans and convolutions",
    "causal": "as unpadded, attention over the pairs the mask and the window let through",
    "palm": "2 per active parameter, lookups included, plus full attention (PaLM, appendix B)",
    "megatron": "what Megatron-Bridge logs: half of full attention, no routers, prediction modules "
    "included, its own estimates of state spaces (``costs.megatron``)",
}


class Parameters(Struct, frozen=True):
    """Parameters of a model; in a column spec every field is an array."""

    total: Dim
    """Unique parameters: tied tensors once, no buffers."""
    active: Dim
    """What one token uses: of the routed experts only ``top_k``."""
    body: Dim
    """Total without embedding and head."""
    buffers: Dim
    by_part: dict[str, Dim]
    """Total by part; the parts sum to the total."""

    @property
    def embedding(self) -> Dim:
        """Token, position and type tables."""
        return self.by_part["embedding"]

    @property
    def lm_head(self) -> Dim:
        """The output matrix and its bias; 0 new when tied."""
        return self.by_part["lm_head"]

    @property
    def active_body(self) -> Dim:
        """Active without embedding and head."""
        return self.active - self.embedding - self.lm_head


def parameters(spec: Spec) -> Parameters:
    """Count the parameters of a model.

    Every tensor adds out × in × copies × experts; a tied head adds nothing.

    Example:
        >>> from scantling import catalog
        >>> p = parameters(catalog.model("mixtral-8x7b"))
        >>> p.total, p.active
        (46702792704, 12879925248)
    """
    return count_tensors(tensors(spec))


def count_tensors(weights: Sequence[Tensor]) -> Parameters:
    """Count a list of weights."""
    by_part: dict[str, Any] = dict.fromkeys(PARTS, 0)
    buffers: Any = 0
    idle: Any = 0
    for t in weights:
        if t.alias is not None:
            continue
        size = t.size()
        if t.buffer:
            buffers = buffers + size
        else:
            by_part[t.part] = by_part[t.part] + size
            if t.experts is not None:
                idle = idle + (size - t.active())
    total = sum(by_part.values())
    body = total - by_part["embedding"] - by_part["lm_head"]
    return Parameters(total, total - idle, body, buffers, by_part)


def forward_flops(ops: Sequence[Op], convention: Convention = "full") -> Num:
    """FLOPs of a list of operators.

    ``full``, ``unpadded`` and ``causal`` sum over the operators. ``palm`` is 2 N + 4 L H h S a
    token forward (Chowdhery et al. 2022, appendix B, a third of 6 N + 12 L H Q T): all active
    parameters, looked-up tables included, and attention in full. ``megatron`` is no sum over
    operators: see ``flops``.

    Raises:
        FieldError: If the convention is unknown, or needs the spec.

    Example:
        >>> from scantling import catalog
        >>> from scantling.ops import operators
        >>> from scantling.spec import Workload
        >>> forward_flops(operators(catalog.model("llama-3.1-8b"), Workload(context=128)))
        1929782493184
    """
    if convention not in CONVENTIONS:
        raise FieldError("flops", convention, "is no convention", f"use {', '.join(CONVENTIONS)}")
    if convention == "megatron":
        rule = "is not counted by operators"
        raise FieldError("flops", convention, rule, "use full, unpadded, causal or palm here")
    if convention == "palm":
        rows = next(op.m for op in ops if op.kind == "lookup")
        weights = count_tensors([t for op in ops for t in op.tensors if not op.backward])
        factor = 6 if any(op.backward for op in ops) else 2
        core = sum((op.flops() for op in ops if op.kind == "attention"), start=0)
        return product(weights.active, rows, factor) + core
    return sum((op.flops(convention) for op in ops), start=0)


class Flops(Struct, frozen=True):
    """FLOPs of a batch, and per token."""

    forward: Num
    train: Num
    tokens: int
    convention: str


def flops(
    spec: Spec, batch: int = 1, context: int = 2048, convention: Convention = "full",
    mtp_passes: int = 0,
) -> Flops:  # fmt: skip
    """FLOPs of a forward pass and of a training step on ``batch × context`` tokens.

    Args:
        spec: A model.
        batch: Sequences.
        context: Tokens of each.
        convention: One of ``CONVENTIONS``.
        mtp_passes: Runs of the modules that predict later tokens; ``megatron`` counts them, the
            others know the model without them.

    Example:
        >>> from scantling import catalog
        >>> flops(catalog.model("gpt2"), context=128).forward
        32228179968
    """
    if convention == "megatron":
        train_flops = batch * megatron_flops(spec, context, mtp_passes)
        return Flops(train_flops // 3, train_flops, batch * context, convention)
    forward = operators(spec, Workload("prefill", batch, context))
    train = operators(spec, Workload("train", batch, context))
    return Flops(
        forward_flops(forward, convention), forward_flops(train, convention),
        batch * context, convention,
    )  # fmt: skip


def attention_flops(n_head: Dim, width: Dim, queries: Dim, keys: Dim) -> Num:
    """FLOPs of causal attention, one layer forward: 2 a pair, head and channel of both products.

    Args:
        n_head: Query heads H; keys shared by several heads save none of this.
        width: Width of a key and of a value together.
        queries: The last of the tokens.
        keys: All tokens.

    Example:
        >>> attention_flops(32, 256, 8192, 8192)
        549822922752
    """
    return product(visible_pairs(queries, keys, None, causal=True), n_head, width, 2)


def solve_width(spec: Spec, total: Dim, multiple: Dim = 1, field: str = "d_ff") -> Dim:
    """The FFN width that brings a model nearest to a total parameter count.

    The count is linear in F: N(F) = N(0) + F (N(1) − N(0)). So
    F = (total − N(0)) / (N(1) − N(0)), rounded to the nearest multiple, and at least one of it.

    Args:
        spec: A spec or column spec whose ``field`` is free.
        total: The wanted parameters.
        multiple: The alignment of the width.
        field: The width to solve, ``d_ff`` or ``d_expert``.

    Example:
        >>> from scantling import catalog
        >>> solve_width(catalog.model("llama-3.1-8b"), 8_030_261_248, 128)
        14336
    """
    return width_line(spec, field).width(total, multiple)


class WidthLine(NamedTuple):
    """The parameters of a model as a line over one of its widths, N(F) = base + F slope."""

    base: Dim
    slope: Dim

    def total(self, width: Dim) -> Dim:
        """The parameters at a width."""
        return self.base + width * self.slope

    def width(self, total: Dim, multiple: Dim = 1) -> Dim:
        """The multiple nearest to a total, at least one."""
        step = self.slope * multiple
        steps = (2 * (total - self.base) + step) // (2 * step)
        return maximum(steps, 1) * multiple  # type: ignore[no-any-return]


def width_line(spec: Spec, field: str = "d_ff") -> WidthLine:
    """N(0) and N(1) − N(0), which give the parameters at every width."""
    base = parameters(vary(spec, **{field: 0})).total
    return WidthLine(base, parameters(vary(spec, **{field: 1})).total - base)


def attention_parameters(p: Parameters) -> Dim:
    """Parameters of the mixers, for the ratio r of MLP to attention."""
    return p.by_part["attention"] + p.by_part["mixer"]


def mlp_parameters(p: Parameters) -> Dim:
    """Parameters of the feed-forwards a token passes or could pass."""
    return p.by_part["ffn"] + p.by_part["experts"] + p.by_part["shared_experts"]


__all__ = [
    "CONVENTIONS",
    "Convention",
    "Flops",
    "Parameters",
    "attention_flops",
    "attention_parameters",
    "count_tensors",
    "flops",
    "forward_flops",
    "mlp_parameters",
    "parameters",
    "solve_width",
    "width_line",
]
