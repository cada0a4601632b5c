"""The small parts of the lab's model: fused products, norms, activations.

Every part names the weights it holds as ``ops.tensors`` does, whatever is stored side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from scantling.errors import FieldError
from scantling.spec import Norm

EPSILON = 1e-6

Named = Iterator[tuple[str, Tensor]]
"""Weights by their names in ``ops.tensors``, as views of what is stored."""


class Fused(nn.Linear):
    """One product with one or several matrices side by side (q, k, v; gate, up).

    Example:
        >>> qkv = Fused(8, {"q": 8, "k": 4, "v": 4}, bias=True)
        >>> [(name, tuple(weight.shape)) for name, weight in qkv.named()][:4]
        [('q', (8, 8)), ('q_bias', (8,)), ('k', (4, 8)), ('k_bias', (4,))]
        >>> qkv = Fused(8, {"q": 8, "k": 4, "v": 4}, bias=True, plain="k")
        >>> qkv.bias.shape[0], tuple(qkv(torch.ones(2, 8)).shape)
        (12, (2, 16))

    Args:
        d_in: Inputs.
        outs: Outputs of each matrix; one of none is left out.
        bias: Whether they have biases.
        role: What ``param`` sets their size and rate by.
        plain: The one that has no bias where the others have (a key's, in Whisper).
    """

    def __init__(
        self, d_in: int, outs: Mapping[str, int], *, bias: bool = False, role: str = "hidden",
        plain: str = "",
    ) -> None:  # fmt: skip
        self.outs = {name: int(n) for name, n in outs.items() if n}
        self.role = role
        self.plain = plain if bias and plain in self.outs else ""
        super().__init__(int(d_in), sum(self.outs.values()), bias=bias)
        if self.plain:
            biased = self.out_features - self.outs[self.plain]
            self.register_parameter("bias", nn.Parameter(torch.zeros(biased)) if biased else None)

    def reset_parameters(self) -> None:
        """Nothing: all weights are set at once, from one seed, by ``param``."""

    def forward(self, x: Tensor) -> Tensor:
        """What all of them make, side by side."""
        return functional.linear(x, self.weight, self.whole_bias())

    def whole_bias(self) -> Tensor | None:
        """A bias for every output, zeros where one has none."""
        if self.bias is None or not self.plain:
            return self.bias
        before = 0
        for name in self.outs:
            if name == self.plain:
                break
            before += self.outs[name]
        zeros = self.bias.new_zeros(self.outs[self.plain])
        return torch.cat((self.bias[:before], zeros, self.bias[before:]))

    def named(self) -> Named:
        """Each matrix and its bias."""
        at = bias_at = 0
        for name, n in self.outs.items():
            yield name, self.weight[at : at + n]
            if self.bias is not None and name != self.plain:
                yield f"{name}_bias", self.bias[bias_at : bias_at + n]
                bias_at += n
            at += n

    def split(self, x: Tensor) -> dict[str, Tensor]:
        """What each matrix made, by its name."""
        return dict(zip(self.outs, self(x).split(list(self.outs.values()), -1), strict=True))


class Factored(nn.Module):
    """As ``Fused``, each matrix kept as b (n × rank) times a (rank × inputs).

    Example:
        >>> [(name, tuple(weight.shape)) for name, weight in Factored(8, {"up": 6}, 2).named()]
        [('up_a', (2, 8)), ('up_b', (6, 2))]
    """

    def __init__(
        self, d_in: int, outs: Mapping[str, int], rank: int, *, bias: bool = False,
        role: str = "hidden",
    ) -> None:  # fmt: skip
        super().__init__()
        outs = {name: int(n) for name, n in outs.items() if n}
        self.a = Fused(d_in, {f"{name}_a": int(rank) for name in outs})
        self.b = nn.ModuleList(
            Fused(int(rank), {f"{name}_b": n}, bias=bias, role=role) for name, n in outs.items()
        )

    def named(self) -> Named:
        """Both factors of each matrix, and its bias."""
        yield from self.a.named()
        for one in self.b:
            yield from one.named()  # type: ignore[operator]

    def forward(self, x: Tensor) -> Tensor:
        """What the matrices make, side by side."""
        parts = zip(self.b, self.a(x).chunk(len(self.b), -1), strict=True)
        return torch.cat([b(part) for b, part in parts], -1)


def product(
    d_in: int, outs: Mapping[str, int], rank: int | None, *, bias: bool = False,
    role: str = "hidden",
) -> Fused | Factored:  # fmt: skip
    """One product, of full rank or factored."""
    if rank is None:
        return Fused(d_in, outs, bias=bias, role=role)
    return Factored(d_in, outs, rank, bias=bias, role=role)


def by_head(x_BTw: Tensor, n: int) -> Tensor:
    """The last axis as n vectors: B × T × n × h."""
    return x_BTw.reshape(*x_BTw.shape[:-1], n, -1)


def by_block(x_BTbi: Tensor, weight_bij: Tensor) -> Tensor:
    """Each block of numbers through a matrix of its own: B × T × b × j.

    Example:
        >>> by_block(torch.ones(1, 2, 3, 4), torch.ones(3, 4, 5)).shape
        torch.Size([1, 2, 3, 5])
    """
    made_bNj = x_BTbi.flatten(0, 1).transpose(0, 1) @ weight_bij
    return made_bNj.transpose(0, 1).reshape(*x_BTbi.shape[:-1], -1)


class Normed(nn.Module):
    """RMSNorm or LayerNorm over the last axis, with the scale and bias its spec has.

    Args:
        norm: What it is.
        shape: Of one vector; all of it has a scale, only the last axis is one vector.
        epsilon: What is added to the variance.
        groups: Parts of the last axis that are normed apart (Mamba-2).
    """

    def __init__(self, norm: Norm, *shape: int, epsilon: float = EPSILON, groups: int = 1) -> None:
        super().__init__()
        self.kind, self.epsilon, self.groups = norm.kind, epsilon, groups
        self.width = (shape[-1] // groups,)
        self.one = len(shape) == 1 and groups == 1
        """Whether the kernel applies the scale itself."""
        self.scale = nn.Parameter(torch.ones(shape)) if norm.scale else None
        self.bias = nn.Parameter(torch.zeros(shape)) if norm.bias else None

    def named(self, name: str) -> Named:
        """Its scale and bias, as far as it has them."""
        if self.scale is not None:
            yield f"{name}_scale", self.scale.view(-1)
        if self.bias is not None:
            yield f"{name}_bias", self.bias.view(-1)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape; each vector of unit size."""
        if self.one and self.kind == "layer":
            return functional.layer_norm(x, self.width, self.scale, self.bias, self.epsilon)
        shape = x.shape
        x = x if self.groups == 1 else x.view(*shape[:-1], self.groups, -1)
        if self.kind == "layer":
            x = functional.layer_norm(x, self.width, None, None, self.epsilon)
        elif x.dtype == torch.float32:  # 1.4 times as fast as the kernel, on a CPU
            square = torch.linalg.vecdot(x, x) / self.width[0]
            x = x * torch.rsqrt(square + self.epsilon)[..., None]
        else:  # which sums in 32 bits
            x = functional.rms_norm(x, self.width, None, self.epsilon)
        x = x.view(shape)
        if self.scale is not None:
            x = x * self.scale
        return x if self.bias is None else x + self.bias


def maybe(norm: Norm | None, width: int, epsilon: float) -> Normed | None:
    """A norm, or nothing where the spec has none."""
    return None if norm is None else Normed(norm, width, epsilon=epsilon)


def _tanh_gelu(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "swish": functional.silu,
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x).square(),
    "gelu": functional.gelu,
    "gelu_new": _tanh_gelu,
    "gelu_fast": _tanh_gelu,
    "gelu_pytorch_tanh": _tanh_gelu,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "mish": functional.mish,
    "linear": lambda x: x,
    "swigluoai": lambda x: x * torch.sigmoid(1.702 * x),  # with a clamp: see feed.gated
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


def waves(x_BTD: Tensor) -> Tensor:
    """Sine waves of the position, T × D: sines of D/2 wavelengths, then their cosines.

    Wavelengths are a geometric row from 2π to 20000π, as in tensor2tensor; positions count from 2,
    as in the classes of fairseq's models (XGLM, M2M-100).
    """
    length, width = x_BTD.shape[-2:]
    half = width // 2
    step = math.log(10000) / max(half - 1, 1)
    rate = torch.exp(torch.arange(half, device=x_BTD.device) * -step)
    angle = (torch.arange(length, device=x_BTD.device) + 2)[:, None] * rate
    found = torch.cat([angle.sin(), angle.cos()], dim=1)
    return functional.pad(found, (0, width % 2)).to(x_BTD.dtype)
