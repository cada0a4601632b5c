"""Hyper-connections of the lab's model: n residual streams, read, written and mixed by weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scantling.lab.parts import Fused, Named, Normed
from scantling.spec import HyperConnections, Norm

MIXED = tuple[Tensor, Tensor, Tensor]
"""What the block reads, the mixed streams, and how it writes to each."""

ROUNDS, LEAST = 20, 1e-6
"""Sinkhorn's rounds and the least weight, as in DeepSeek-V4."""


class Hyper(nn.Module):
    """n residual streams, read, written and mixed by learned weights (Zhu et al. 2024).

    Static: a read weight for each stream, n × n to mix, a write weight each. Dynamic: the same
    from each stream's own content, by tanh of a product of its norm, times a small scale.
    """

    def __init__(self, h: HyperConnections, d_model: int, epsilon: float, place: int) -> None:
        super().__init__()
        n = self.n = int(h.n_stream)
        self.beta_n = nn.Parameter(torch.ones(n))
        read = torch.zeros(n, 1)
        read[place % n] = 1.0  # the paper's start: each block reads one stream, and adds to all
        self.alpha_nm = nn.Parameter(torch.cat((read, torch.eye(n)), 1))
        self.norm = None
        if h.dynamic:
            self.norm = Normed(Norm("rms"), d_model, epsilon=epsilon)
            outs = {"hyper_beta_dynamic": 1, "hyper_alpha_dynamic": n + 1}
            self.dynamic = Fused(d_model, outs, role="zero")
            self.scale_2 = nn.Parameter(torch.full((2,), 0.01))

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        yield from (("hyper_beta", self.beta_n), ("hyper_alpha", self.alpha_nm))
        if self.norm is not None:
            yield from self.norm.named("hyper_norm")
            yield from self.dynamic.named()
            yield "hyper_scale", self.scale_2

    def weights(self, x_BTnD: Tensor) -> tuple[Tensor, Tensor]:
        """Write weights (…, n), and read and mix weights (…, n, n + 1)."""
        if self.norm is None:
            return self.beta_n, self.alpha_nm
        write, read = self.dynamic(self.norm(x_BTnD)).tanh().split([1, self.n + 1], -1)
        beta = self.beta_n + self.scale_2[0] * write.squeeze(-1)
        return beta, self.alpha_nm + self.scale_2[1] * read

    def read(self, x_BTnD: Tensor) -> MIXED:
        """What the block reads, the mixed streams, and how it writes to each."""
        beta, alpha = self.weights(x_BTnD)
        # sums of products written out: they are small, and counted as elementwise work
        mixed = (alpha[..., None] * x_BTnD[..., :, None, :]).sum(-3)
        return mixed[..., 0, :], mixed[..., 1:, :], beta[..., None]


def flat(x_BTnD: Tensor, epsilon: float) -> Tensor:
    """All streams of a token as one vector of unit size."""
    wide = x_BTnD.flatten(-2)
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)


class Constrained(nn.Module):
    """One product of all streams gives every weight; the mix is doubly stochastic (Xie 2026).

    It starts near a plain residual: reading the mean, adding to all, mixing little.
    """

    def __init__(self, h: HyperConnections, d_model: int, epsilon: float) -> None:
        super().__init__()
        n, self.epsilon = int(h.n_stream), epsilon
        self.n = n
        self.product = Fused(n * d_model, {"hyper": (2 + n) * n})
        mix = 6.0 * torch.eye(n)
        self.base = nn.Parameter(torch.cat((torch.zeros(2 * n), mix.flatten())))
        self.scale_3 = nn.Parameter(torch.full((3,), 0.01))

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        yield from self.product.named()
        yield from (("hyper_base", self.base), ("hyper_scale", self.scale_3))

    def read(self, x_BTnD: Tensor) -> MIXED:
        """What the block reads, the mixed streams, and how it writes to each."""
        n = self.n
        made = self.product(flat(x_BTnD, self.epsilon)).split([n, n, n * n], -1)
        read, write, mix = (
            weights * scale + base for weights, scale, base in
            zip(made, self.scale_3, torch.split(self.base, [n, n, n * n]), strict=True)
        )  # fmt: skip
        read = read.sigmoid() + LEAST
        mix_nn = stochastic(mix.unflatten(-1, (n, n)))
        collapsed = (read[..., None] * x_BTnD).sum(-2)
        return collapsed, mix_nn.mT @ x_BTnD, 2 * write.sigmoid()[..., None]


def stochastic(logits_nn: Tensor) -> Tensor:
    """A matrix whose rows and columns sum to one (Sinkhorn and Knopp 1967).

    Example:
        >>> m = stochastic(torch.tensor([[1.0, 2.0], [3.0, 0.0]]))
        >>> bool(torch.allclose(m.sum(0), torch.ones(2), atol=1e-3))
        True
    """
    m = logits_nn.softmax(-1) + LEAST
    m = m / (m.sum(-2, keepdim=True) + LEAST)
    for _ in range(ROUNDS - 1):
        m = m / (m.sum(-1, keepdim=True) + LEAST)
        m = m / (m.sum(-2, keepdim=True) + LEAST)
    return m


class Merge(nn.Module):
    """The last mix: one stream of n."""

    def __init__(self, n: int, d_model: int, epsilon: float) -> None:
        super().__init__()
        self.n, self.epsilon = n, epsilon
        self.product = Fused(n * d_model, {"hyper_head": n})
        self.base_n = nn.Parameter(torch.zeros(n))
        self.scale_1 = nn.Parameter(torch.full((1,), 0.01))

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        yield from self.product.named()
        yield from (("hyper_head_base", self.base_n), ("hyper_head_scale", self.scale_1))

    def forward(self, x_BTnD: Tensor) -> Tensor:
        """B × T × D."""
        weights = self.product(flat(x_BTnD, self.epsilon)) * self.scale_1 + self.base_n
        merged: Tensor = ((weights.sigmoid() + LEAST)[..., None] * x_BTnD).sum(-2)
        return merged
