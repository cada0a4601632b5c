"""Recurrent mixers of the lab's model in plain torch: Mamba-2 and the gated delta rule.

Both work in chunks, with the products that ``ops.scan`` counts: within a chunk each token reads
the earlier ones by scores, as attention does; between chunks a state is carried. Letters: c
chunks, l and s places within one, n the state's depth, p the width of a head.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from scantling.lab.flow import Flow
from scantling.lab.numerics import Numerics
from scantling.lab.parts import Fused, Named, Normed
from scantling.spec import GatedDelta, Mamba2

if TYPE_CHECKING:
    from scantling.lab.param import Fill


class Convolution(nn.Module):
    """A depthwise causal convolution of d_conv tokens, and SiLU where it is active."""

    def __init__(self, channels: int, d_conv: int, *, bias: bool, active: bool = True) -> None:
        super().__init__()
        self.active = active
        self.weight = nn.Parameter(torch.empty(channels, 1, d_conv))
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        yield "conv", self.weight
        if self.bias is not None:
            yield "conv_bias", self.bias

    def forward(self, x_BTC: Tensor) -> Tensor:
        """The same shape: both ends are padded, and the end cut off again."""
        channels, d_conv = self.weight.shape[0], self.weight.shape[-1]
        x_BCT = functional.conv1d(
            x_BTC.mT, self.weight, self.bias, padding=d_conv - 1, groups=channels
        )
        made_BCT = x_BCT[..., : x_BTC.shape[-2]]
        return (functional.silu(made_BCT) if self.active else made_BCT).mT


def chunks(x_BTw: Tensor, chunk: int) -> Tensor:
    """Tokens in chunks, B × c × l × …; the last one is filled with zeros."""
    short = -x_BTw.shape[1] % chunk
    padding = [0, 0] * (x_BTw.dim() - 2) + [0, short]
    padded = functional.pad(x_BTw, padding)
    return padded.view(padded.shape[0], -1, chunk, *padded.shape[2:])


def decays(log_BHcl: Tensor) -> Tensor:
    """The exponential of sums of logarithms between two places, s to l; 0 where s is later.

    Example:
        >>> decays(torch.log(torch.tensor([0.5, 0.5]))).tolist()
        [[1.0, 0.0], [0.5, 1.0]]
    """
    sums = log_BHcl.cumsum(-1)
    between = sums[..., :, None] - sums[..., None, :]
    n = log_BHcl.shape[-1]
    late = torch.ones(n, n, dtype=torch.bool, device=log_BHcl.device).triu(1)
    return between.masked_fill(late, -torch.inf).exp()


class StateSpace(nn.Module):
    """Mamba-2: z, x, B, C and dt of one product, a convolution, the scan, a gated norm."""

    def __init__(self, s: Mamba2, d_model: int, numerics: Numerics) -> None:
        super().__init__()
        self.s, self.h, self.inner = s, int(s.n_ssm_head), int(s.d_inner)
        group = int(s.n_group) * int(s.d_state)
        self.group = group
        self.into = Fused(
            d_model, {"z": self.inner, "x": self.inner, "b": group, "c": group, "dt_in": self.h},
            bias=s.in_bias,
        )  # fmt: skip
        self.conv = Convolution(self.inner + 2 * group, int(s.d_conv), bias=s.conv_bias)
        self.dt_bias_H = nn.Parameter(torch.empty(self.h))
        self.a_log_H = nn.Parameter(torch.empty(self.h))
        self.skip_H = nn.Parameter(torch.ones(self.h))
        self.norm = None
        if s.norm is not None:
            self.norm = Normed(s.norm, self.inner, epsilon=numerics.epsilon, groups=int(s.n_group))
        self.out = Fused(self.inner, {"out": d_model}, bias=s.out_bias, role="out")

    def start(self, fill: Fill) -> None:
        """Steps and decays as Mamba-2 starts."""
        recurrent_start(self.dt_bias_H, self.a_log_H, fill.generator)

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        yield from self.into.named()
        yield from self.conv.named()
        yield from (("dt_bias", self.dt_bias_H), ("a_log", self.a_log_H), ("skip", self.skip_H))
        if self.norm is not None:
            yield from self.norm.named("norm")
        yield from self.out.named()

    def forward(self, x_BTD: Tensor, flow: Flow, path: str) -> Tensor:
        """The same shape back."""
        made = self.into(x_BTD)
        z_BTi, mixed, dt_BTH = made.split([self.inner, self.inner + 2 * self.group, self.h], -1)
        x_BTi, b_BTg, c_BTg = self.conv(mixed).split([self.inner, self.group, self.group], -1)
        each = self.h // int(self.s.n_group)
        b_BTHn, c_BTHn = (
            t.unflatten(-1, (int(self.s.n_group), -1)).repeat_interleave(each, -2)
            for t in (b_BTg, c_BTg)
        )
        x_BTHp = x_BTi.unflatten(-1, (self.h, -1))
        dt_BTH = functional.softplus(dt_BTH + self.dt_bias_H)
        y_BTHp = self.scan(x_BTHp, dt_BTH, b_BTHn, c_BTHn) + self.skip_H[:, None] * x_BTHp
        y_BTi = y_BTHp.flatten(-2)
        if flow.watch is not None:
            flow.watch(f"{path}.attention", y_BTi)
        y_BTi = y_BTi * functional.silu(z_BTi)
        if self.norm is not None:
            y_BTi = self.norm(y_BTi)
        out_BTD: Tensor = self.out(y_BTi)
        if flow.watch is not None:
            flow.watch(f"{path}.output", out_BTD)
        return out_BTD

    def scan(self, x_BTHp: Tensor, dt_BTH: Tensor, b_BTHn: Tensor, c_BTHn: Tensor) -> Tensor:
        """The recurrence h ← exp(−a dt) h + dt b xᵀ, y = hᵀ c (Dao and Gu 2024, section 6)."""
        chunk, length = int(self.s.scan_chunk), x_BTHp.shape[1]
        a_BTH = -self.a_log_H.exp() * dt_BTH
        x, b, c = (chunks(t, chunk) for t in (x_BTHp * dt_BTH[..., None], b_BTHn, c_BTHn))
        a_BHcl = chunks(a_BTH, chunk).permute(0, 3, 1, 2)
        sums = a_BHcl.cumsum(-1)
        scores = torch.einsum("bclhn,bcshn->bhcls", c, b) * decays(a_BHcl)
        within = torch.einsum("bhcls,bcshp->bclhp", scores, x)
        left = (sums[..., -1:] - sums).exp().permute(0, 2, 3, 1)[..., None]
        states = torch.einsum("bclhn,bclhp->bchpn", b * left, x)
        states = torch.cat((torch.zeros_like(states[:, :1]), states), 1)
        carried = decays(functional.pad(sums[..., -1], (1, 0)))
        entering = torch.einsum("bhcz,bzhpn->bchpn", carried, states)[:, :-1]
        across = torch.einsum("bclhn,bchpn->bclhp", c, entering)
        y = within + across * sums.exp().permute(0, 2, 3, 1)[..., None]
        return y.flatten(1, 2)[:, :length]


class Delta(nn.Module):
    """The gated delta rule (Qwen3-Next): each token replaces what the state says of its key."""

    def __init__(self, a: GatedDelta, d_model: int, numerics: Numerics) -> None:
        super().__init__()
        self.a = a
        self.key, self.value = int(a.n_key_head * a.d_key), int(a.n_value_head * a.d_state_value)
        self.qkvz = Fused(d_model, {"q": self.key, "k": self.key, "v": self.value, "z": self.value})
        heads = int(a.n_value_head)
        self.ba = Fused(d_model, {"b": heads, "a": heads})
        self.conv = Convolution(2 * self.key + self.value, int(a.d_conv), bias=False)
        self.dt_bias_H = nn.Parameter(torch.empty(heads))
        self.a_log_H = nn.Parameter(torch.empty(heads))
        self.norm = Normed(a.norm, int(a.d_state_value), epsilon=numerics.epsilon)
        self.o = Fused(self.value, {"o": d_model}, role="out")

    def start(self, fill: Fill) -> None:
        """Steps and decays as Mamba-2 starts."""
        recurrent_start(self.dt_bias_H, self.a_log_H, fill.generator)

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        for part in (self.qkvz, self.ba, self.conv, self.o):
            yield from part.named()
        yield from (("dt_bias", self.dt_bias_H), ("decay", self.a_log_H))
        yield from self.norm.named("norm")

    def forward(self, x_BTD: Tensor, flow: Flow, path: str) -> Tensor:
        """The same shape back."""
        a = self.a
        mixed, z_BTv = self.qkvz(x_BTD).split([2 * self.key + self.value, self.value], -1)
        q, k, v = self.conv(mixed).split([self.key, self.key, self.value], -1)
        each = int(a.n_value_head) // int(a.n_key_head)
        q_BTHk, k_BTHk = (
            unit(t.unflatten(-1, (int(a.n_key_head), -1))).repeat_interleave(each, -2)
            for t in (q, k)
        )
        v_BTHv = v.unflatten(-1, (int(a.n_value_head), -1))
        strength, step = self.ba(x_BTD).chunk(2, -1)
        decay_BTH = -self.a_log_H.exp() * functional.softplus(step + self.dt_bias_H)
        y_BTHv = delta_rule(
            q_BTHk * int(a.d_key) ** -0.5, k_BTHk, v_BTHv, strength.sigmoid(), decay_BTH,
            int(a.scan_chunk),
        )  # fmt: skip
        if flow.watch is not None:
            flow.watch(f"{path}.attention", y_BTHv.flatten(-2))
        y_BTHv = self.norm(y_BTHv) * functional.silu(z_BTv.view_as(y_BTHv))
        out_BTD: Tensor = self.o(y_BTHv.flatten(-2))
        if flow.watch is not None:
            flow.watch(f"{path}.output", out_BTD)
        return out_BTD


def recurrent_start(dt_bias: Tensor, a_log: Tensor, generator: torch.Generator) -> None:
    """Decays of 1 to 16 times a step of 0.001 to 0.1, as Mamba-2 starts."""
    with torch.no_grad():
        a_log.copy_(torch.log(1 + 15 * torch.rand(a_log.shape, generator=generator)))
        low, high = math.log(1e-3), math.log(1e-1)
        step = torch.exp(low + (high - low) * torch.rand(dt_bias.shape, generator=generator))
        dt_bias.copy_(step + torch.log(-torch.expm1(-step)))


def unit(x: Tensor) -> Tensor:
    """Vectors of length one."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def delta_rule(
    q_BTHk: Tensor, k_BTHk: Tensor, v_BTHv: Tensor, strength_BTH: Tensor, decay_BTH: Tensor,
    chunk: int,
) -> Tensor:  # fmt: skip
    """S ← e^g (I − β k kᵀ) S + β k vᵀ, y = Sᵀ q, in chunks (Yang et al. 2024).

    Within a chunk the new values u solve a unit lower triangular system: what a token writes is
    its value less what the state and the tokens before it in the chunk already say of its key.
    """
    length = q_BTHk.shape[1]
    b = strength_BTH[..., None]
    q, k, kb, vb = (
        chunks(t, chunk).permute(0, 3, 1, 2, 4) for t in (q_BTHk, k_BTHk, k_BTHk * b, v_BTHv * b)
    )
    g_BHcl = chunks(decay_BTH, chunk).permute(0, 3, 1, 2)
    sums, between = g_BHcl.cumsum(-1), decays(g_BHcl)
    system = (kb @ k.mT) * between
    scores = (q @ k.mT) * between
    grown = sums.exp()[..., None]
    both = torch.linalg.solve_triangular(
        system, torch.cat((vb, kb * grown), -1), upper=False, unitriangular=True
    )
    u, read = both.split([vb.shape[-1], k.shape[-1]], -1)
    q, k = q * grown, k * (sums[..., -1:] - sums).exp()[..., None]
    kept = sums[..., -1].exp()[..., None, None]
    return carried(q, k, u, read, scores, kept)[:, :length]


def carried(q: Tensor, k: Tensor, u: Tensor, read: Tensor, scores: Tensor, kept: Tensor) -> Tensor:
    """What a delta rule puts out, from chunk to chunk: B × T × H × v.

    Args:
        q: Queries, grown by what their chunk keeps, B × H × c × l × k.
        k: Keys, by what is left of them at the end of their chunk.
        u: Values to write, if the state were empty, B × H × c × l × v.
        read: What is taken off them for each number of the state, B × H × c × l × k.
        scores: Of the tokens of a chunk with one another, B × H × c × l × l.
        kept: The share of the state that a chunk keeps, of a head or each of its channels.
    """
    state = k.new_zeros(*k.shape[:2], k.shape[-1], u.shape[-1])
    out = []
    for i in range(k.shape[2]):
        new = u[:, :, i] - read[:, :, i] @ state
        out.append(q[:, :, i] @ state + scores[:, :, i] @ new)
        state = state * kept[:, :, i] + k[:, :, i].mT @ new
    return torch.cat(out, 2).transpose(1, 2)
