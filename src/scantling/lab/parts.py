"""The small parts of the lab's model: products, norms, activations, rotation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from scantling.errors import FieldError
from scantling.spec import Norm

EPSILON = 1e-6


class Linear(nn.Linear):
    """A product whose weights are normal with variance 1 / inputs, and whose biases are zero."""

    def reset_parameters(self) -> None:
        """Keep the size of what flows through: Var(W x) = Var(x)."""
        nn.init.normal_(self.weight, std=self.in_features**-0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Normed(nn.Module):
    """RMSNorm or LayerNorm over the last axis, with the scale and bias its spec has."""

    def __init__(self, norm: Norm, *shape: int) -> None:
        super().__init__()
        self.kind = norm.kind
        self.scale = nn.Parameter(torch.ones(shape)) if norm.scale else None
        self.bias = nn.Parameter(torch.zeros(shape)) if norm.bias else None

    @staticmethod
    def maybe(norm: Norm | None, *shape: int) -> nn.Module:
        """A norm, or nothing where the spec has none."""
        return nn.Identity() if norm is None else Normed(norm, *shape)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape; each vector of unit size."""
        if self.kind == "layer":
            x = x - x.mean(-1, keepdim=True)
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON)
        if self.scale is not None:
            x = x * self.scale
        return x if self.bias is None else x + self.bias


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "swish": functional.silu,
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x).square(),
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_fast": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """An activation by its name in configs.

    Raises:
        FieldError: If the lab does not have it.
    """
    if name not in ACTIVATIONS:
        raise FieldError("ffn.activation", name, "is not known to the lab",
                         f"use {', '.join(ACTIVATIONS)}")  # fmt: skip
    return ACTIVATIONS[name]


def turned(x_BHTh: Tensor, theta: float, width: int) -> Tensor:
    """Rotate the first ``width`` of each head by position, halves against each other.

    Example:
        >>> x = torch.ones(1, 1, 2, 4)
        >>> y = turned(x, 10000.0, 4)
        >>> bool((y[..., 0, :] == 1).all()), bool(torch.isclose(y.norm(), x.norm()))
        (True, True)
    """
    if width == 0:
        return x_BHTh
    length, half = x_BHTh.shape[-2], width // 2
    frequency = theta ** (-torch.arange(half, device=x_BHTh.device) / half)
    angle = torch.arange(length, device=x_BHTh.device)[:, None] * frequency
    cos, sin = angle.cos(), angle.sin()
    a, b, rest = x_BHTh[..., :half], x_BHTh[..., half:width], x_BHTh[..., width:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)
