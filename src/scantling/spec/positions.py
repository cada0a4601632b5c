"""Norms, positions and spans: what layers of every kind are made with."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from scantling.arith import Dim


class Norm(Struct, frozen=True, tag="norm", forbid_unknown_fields=True):
    """A normalisation over a width w: w scales and w biases, as far as it has them.

    RMSNorm has a scale; LayerNorm usually both; OLMo-1 neither; MPT and Cohere no bias.
    """

    kind: Literal["rms", "layer"] = "rms"
    scale: bool = True
    bias: bool = False


class Rope(Struct, frozen=True, tag="rope", forbid_unknown_fields=True):
    """Rotary position on a fraction of each head. No parameters."""

    theta: float = 10000.0
    fraction: float = 1.0
    scaling: tuple[tuple[str, Setting], ...] | None = None
    """Context extension, as (name, value) pairs: kind, factor, original_context, …"""


Setting: TypeAlias = bool | int | float | str | tuple[float, ...] | None


class Alibi(Struct, frozen=True, tag="alibi", forbid_unknown_fields=True):
    """Linear bias by distance. No parameters."""


class RelativeBias(Struct, frozen=True, tag="relative", forbid_unknown_fields=True):
    """T5: one learned bias per bucket and head, in the first layer of a stack only."""

    n_bucket: Dim = 32
    each_layer: bool = False
    """Every layer has its own (UMT5)."""


class Disentangled(Struct, frozen=True, tag="disentangled", forbid_unknown_fields=True):
    """DeBERTa: scores between contents and a table of relative positions, one a stack.

    The table passes the projections of queries and keys in every layer.
    """

    n_relative: Dim
    """Rows of the table: both directions."""
    norm: Norm | None = None
    """On the table."""
    content_to_position: bool = True
    position_to_content: bool = True
    shared: bool = False
    """Positions use the projections of the contents; else they have their own."""
    key_bias: bool = True
    """Their own key projection has a bias."""
    trimmed: bool = False
    """Only the rows within reach of the context are projected (DeBERTa-v1)."""


Position: TypeAlias = Rope | Alibi | RelativeBias | Disentangled | None


class Full(Struct, frozen=True, tag="full", forbid_unknown_fields=True):
    """Each query sees every earlier position."""


class Window(Struct, frozen=True, tag="window", forbid_unknown_fields=True):
    """Each query sees the last ``window`` positions, itself included."""

    window: Dim


class Chunk(Struct, frozen=True, tag="chunk", forbid_unknown_fields=True):
    """Each query sees the positions of its own chunk (Llama 4)."""

    chunk: Dim


Span: TypeAlias = Full | Window | Chunk
