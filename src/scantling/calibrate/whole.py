"""Small whole models in plain torch: what a pass takes over its kernels shows only in one.

Imported only where one is built: torch costs seconds to load.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from scantling.calibrate.cases import Case


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions, halves against each other."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Mixer(nn.Module):
    """Causal attention."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        _, width, heads, kv_heads, self.d_head, *_ = case.shape
        self.gated, self.grouped = case.form == "gated", heads != kv_heads
        self.widths = [n * self.d_head for n in (heads, kv_heads, kv_heads)]
        self.qkv = nn.Linear(width, sum(self.widths), bias=not self.gated)
        self.out = nn.Linear(self.widths[0], width, bias=not self.gated)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The same shape back."""
        q, k, v = (
            part.unflatten(-1, (-1, self.d_head)).transpose(1, 2)
            for part in self.qkv(x).split(self.widths, -1)
        )
        if self.gated:
            q, k = _turned(q, cos, sin), _turned(k, cos, sin)
        y = functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=self.grouped
        )
        out: Tensor = self.out(y.transpose(1, 2).flatten(-2))
        return out


class Feed(nn.Module):
    """A feed-forward: SwiGLU, or GELU."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        width, d_ff, gated = case.shape[1], case.shape[5], case.form == "gated"
        self.up = nn.Linear(width, d_ff, bias=not gated)
        self.down = nn.Linear(d_ff, width, bias=not gated)
        self.gate = nn.Linear(width, d_ff, bias=False) if gated else None

    def forward(self, x: Tensor) -> Tensor:
        """The same shape back."""
        up: Tensor = self.up(x)
        hidden = functional.gelu(up) if self.gate is None else functional.silu(self.gate(x)) * up
        out: Tensor = self.down(hidden)
        return out


def _norm(case: Case) -> nn.Module:
    width = case.shape[1]
    return nn.RMSNorm(width) if case.form == "gated" else nn.LayerNorm(width)


class Layer(nn.Module):
    """Both around the stream, with their norms."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.before, self.mixer = _norm(case), Mixer(case)
        self.between, self.feed = _norm(case), Feed(case)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The stream after the layer."""
        x = x + self.mixer(self.before(x), cos, sin)
        fed: Tensor = self.feed(self.between(x))
        return x + fed


class Whole(nn.Module):
    """The model of a whole-model case, from tokens to logits.

    Gated models are of the kind of LLaMA: RMSNorm, rotary positions, SwiGLU, a head of their own.
    Plain ones are of the kind of GPT-2: LayerNorm, learned positions, biases, GELU, the table as
    head. Both call torch's own kernels, one an operation, as people write them.

    Example:
        >>> case = Case(kind="step", shape=(1, 16, 2, 1, 8, 24, 50, 1, 4), form="gated")
        >>> tuple(Whole(case)(torch.zeros(1, 4, dtype=torch.long)).shape)
        (1, 4, 50)
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, case: Case) -> None:
        super().__init__()
        layers, width, _, _, d_head, _, vocab, _, tokens = case.shape
        self.table = nn.Embedding(vocab, width)
        self.position = None if case.form == "gated" else nn.Embedding(tokens, width)
        self.layers = nn.ModuleList(Layer(case) for _ in range(layers))
        self.last, self.head = _norm(case), nn.Linear(width, vocab, bias=False)
        if self.position is not None:
            self.head.weight = self.table.weight
        turn = 1e4 ** (-torch.arange(0, d_head, 2) / d_head)
        angle = torch.cat((torch.arange(tokens)[:, None] * turn,) * 2, -1)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, numbers: Tensor) -> Tensor:
        """Logits of every position."""
        x: Tensor = self.table(numbers)
        if self.position is not None:
            x = x + self.position.weight
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits: Tensor = self.head(self.last(x))
        return logits
