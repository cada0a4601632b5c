"""Small whole models in plain torch: what a pass takes over its kernels shows only in one."""

from __future__ import annotations

from typing import Any

from scantling.calibrate.cases import Case


def model_of(case: Case) -> Any:
    """The model of a whole-model case, as a ``torch.nn.Module`` from tokens to logits.

    Gated models are of the kind of LLaMA: RMSNorm, rotary positions, SwiGLU, own head. Plain ones
    are of the kind of GPT-2: LayerNorm, learned positions, biases, GELU, tied head. Both call
    torch's own kernels, one an operation, as people write them.
    """
    import torch
    from torch import Tensor, nn
    from torch.nn import functional

    layers, width, heads, kv_heads, d_head, d_ff, vocab, _, tokens = case.shape
    gated = case.form == "gated"

    def norm() -> nn.Module:
        return nn.RMSNorm(width) if gated else nn.LayerNorm(width)

    def linear(n: int, k: int) -> nn.Linear:
        return nn.Linear(k, n, bias=not gated)

    def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    class Mixer(nn.Module):
        """Causal attention."""

        def __init__(self) -> None:
            super().__init__()
            self.widths = [heads * d_head, kv_heads * d_head, kv_heads * d_head]
            self.qkv, self.out = linear(sum(self.widths), width), linear(width, heads * d_head)

        def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            q, k, v = (
                part.unflatten(-1, (-1, d_head)).transpose(1, 2)
                for part in self.qkv(x).split(self.widths, -1)
            )
            if gated:
                q, k = turned(q, cos, sin), turned(k, cos, sin)
            y = functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=heads != kv_heads
            )
            out: Tensor = self.out(y.transpose(1, 2).flatten(-2))
            return out

    class Feed(nn.Module):
        """A feed-forward."""

        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = linear(d_ff, width), linear(width, d_ff)
            self.gate = linear(d_ff, width) if gated else None

        def forward(self, x: Tensor) -> Tensor:
            if self.gate is None:
                hidden = functional.gelu(self.up(x))
            else:
                hidden = functional.silu(self.gate(x)) * self.up(x)
            out: Tensor = self.down(hidden)
            return out

    class Layer(nn.Module):
        """Both, with their norms."""

        def __init__(self) -> None:
            super().__init__()
            self.before, self.mixer = norm(), Mixer()
            self.between, self.feed = norm(), Feed()

        def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            x = x + self.mixer(self.before(x), cos, sin)
            return x + self.feed(self.between(x))

    class Whole(nn.Module):
        """Tokens to logits."""

        cos: Tensor
        sin: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(vocab, width)
            self.position = None if gated else nn.Embedding(tokens, width)
            self.layers = nn.ModuleList(Layer() for _ in range(layers))
            self.last, self.head = norm(), nn.Linear(width, vocab, bias=False)
            if not gated:
                self.head.weight = self.table.weight
            turn = 1e4 ** (-torch.arange(0, d_head, 2) / d_head)
            angle = torch.cat((torch.arange(tokens)[:, None] * turn,) * 2, -1)
            self.register_buffer("cos", angle.cos())
            self.register_buffer("sin", angle.sin())

        def forward(self, numbers: Tensor) -> Tensor:
            x = self.table(numbers)
            if self.position is not None:
                x = x + self.position.weight
            for layer in self.layers:
                x = layer(x, self.cos, self.sin)
            logits: Tensor = self.head(self.last(x))
            return logits

    return Whole()
