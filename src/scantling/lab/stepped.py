"""Mixers of the lab's model that work token by token: Mamba, RWKV, Griffin's, a short convolution.

Correct first: a loop over the tokens, as the recurrences are written down. Letters: i channels of
the mixer, n depth of their states.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from scantling.lab.flow import Flow
from scantling.lab.numerics import Numerics
from scantling.lab.parts import Fused, Named, by_block, by_head, maybe
from scantling.lab.recurrent import Convolution
from scantling.spec import ChannelMix, Mamba1, RgLru, Rwkv, ShortConv

if TYPE_CHECKING:
    from scantling.lab.param import Fill


class Selective(nn.Module):
    """Mamba: a state of d_inner × d_state, whose step, input and output the tokens choose."""

    def __init__(self, s: Mamba1, d_model: int, numerics: Numerics) -> None:
        super().__init__()
        self.s, self.inner, self.depth = s, int(s.d_inner), int(s.d_state)
        self.rank, n = int(s.dt_rank), self.depth
        self.into = Fused(d_model, {"x": self.inner, "z": self.inner}, bias=s.bias)
        self.conv = Convolution(self.inner, int(s.d_conv), bias=s.conv_bias)
        self.select: Fused | None = None
        if s.n_select_head is None:
            self.select = Fused(self.inner, {"dt": self.rank, "b": n, "c": n})
            self.dt_up = Fused(self.rank, {"dt_up": self.inner}, bias=True)
        else:
            heads, own = int(s.n_select_head), self.inner // int(s.n_select_head)
            self.select_hmi = nn.Parameter(torch.empty(heads, self.rank + 2 * n, own))
            self.dt_up_hir = nn.Parameter(torch.empty(heads, own, self.rank))
            self.dt_up_bias_hi = nn.Parameter(torch.zeros(heads, own))
        norm = s.inner_norm if s.n_select_head is None else None
        self.norms = nn.ModuleDict({
            name: made for name, width in (("dt", self.rank), ("b", n), ("c", n))
            if (made := maybe(norm, width, numerics.epsilon)) is not None
        })  # fmt: skip
        self.a_log_in = nn.Parameter(torch.empty(self.inner, n))
        self.skip_i = nn.Parameter(torch.ones(self.inner))
        self.out = Fused(self.inner, {"out": d_model}, bias=s.bias, role="out")

    def start(self, fill: Fill) -> None:
        """Decays of 1 to d_state, and steps of 0.001 to 0.1, as Mamba starts."""
        with torch.no_grad():
            self.a_log_in.copy_(torch.arange(1, self.depth + 1).float().log().expand_as(
                self.a_log_in))  # fmt: skip
            bias = self.dt_up_bias_hi if self.select is None else self.dt_up.bias
            low, high = math.log(1e-3), math.log(1e-1)
            step = torch.exp(torch.linspace(low, high, bias.numel())).view_as(bias)
            bias.copy_(step + torch.log(-torch.expm1(-step)))
        if self.select is None:
            fill(self.select_hmi, self.select_hmi.shape[-1])
            fill(self.dt_up_hir, self.rank)

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        for part in (self.into, self.conv, self.out):
            yield from part.named()
        if self.select is not None:
            yield from self.select.named()
            yield from self.dt_up.named()
        else:
            yield from (("select", self.select_hmi), ("dt_up", self.dt_up_hir))
            yield "dt_up_bias", self.dt_up_bias_hi
        for name, norm in self.norms.items():
            yield from norm.named(f"{name}_norm")  # type: ignore[operator]
        yield from (("a_log", self.a_log_in), ("skip", self.skip_i))

    def chosen(self, x_BTi: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Step, input and output weights: B × T × i, and two of B × T × i × n or × 1 × n."""
        if self.select is not None:
            parts = self.select.split(x_BTi)
            for name, norm in self.norms.items():
                parts[name] = norm(parts[name])
            return self.dt_up(parts["dt"]), parts["b"][..., None, :], parts["c"][..., None, :]
        heads = self.select_hmi.shape[0]
        x_BThi = by_head(x_BTi, heads)
        made = by_block(x_BThi, self.select_hmi.mT)
        dt, b, c = torch.split(made, [self.rank, self.depth, self.depth], -1)
        dt_BThi = by_block(dt, self.dt_up_hir.mT) + self.dt_up_bias_hi
        b, c = (t.repeat_interleave(self.inner // heads, -2) for t in (b, c))
        return dt_BThi.flatten(-2), b, c

    def forward(self, x_BTD: Tensor, flow: Flow, path: str) -> Tensor:
        """The same shape back: h ← exp(−a dt) h + dt b x, y = h · c."""
        made = self.into.split(x_BTD)
        x_BTi = self.conv(made["x"])
        dt_BTi, b_BTin, c_BTin = self.chosen(x_BTi)
        dt_BTi1 = functional.softplus(dt_BTi)[..., None]
        kept_BTin = (-self.a_log_in.exp() * dt_BTi1).exp()
        added_BTin = dt_BTi1 * b_BTin * x_BTi[..., None]
        states_BTin = running(kept_BTin, added_BTin)
        c_BTin = c_BTin.expand_as(states_BTin)
        y_BTi = (states_BTin[..., None, :] @ c_BTin[..., None]).flatten(-3)
        y_BTi = y_BTi + self.skip_i * x_BTi
        if flow.watch is not None:
            flow.watch(f"{path}.attention", y_BTi)
        out_BTD: Tensor = self.out(y_BTi * functional.silu(made["z"]))
        if flow.watch is not None:
            flow.watch(f"{path}.output", out_BTD)
        return out_BTD


def running(kept: Tensor, added: Tensor) -> Tensor:
    """The states h ← kept · h + added, over the second axis, from zero.

    Example:
        >>> running(torch.full((1, 3), 0.5), torch.ones(1, 3)).tolist()
        [[1.0, 1.5, 1.75]]
    """
    state, found = torch.zeros_like(added[:, 0]), []
    for one, more in zip(kept.unbind(1), added.unbind(1), strict=True):
        state = one * state + more
        found.append(state)
    return torch.stack(found, 1)


def before(x_BTD: Tensor) -> Tensor:
    """Each token's predecessor; zeros before the first."""
    return functional.pad(x_BTD, (0, 0, 1, 0))[..., :-1, :]


def mixed(x_BTD: Tensor, share_D: Tensor) -> Tensor:
    """Each token with a share of the one before it (RWKV's token shift)."""
    return x_BTD * share_D + before(x_BTD) * (1 - share_D)


def shares(d_model: int) -> nn.Parameter:
    """Half of either token."""
    return nn.Parameter(torch.full((1, 1, d_model), 0.5))


class TimeMix(nn.Module):
    """RWKV-4: a weighted mean of the past values, whose weights fade by channel."""

    def __init__(self, r: Rwkv, d_model: int) -> None:
        super().__init__()
        n = int(r.d_attention)
        self.mix_k, self.mix_v, self.mix_r = (shares(d_model) for _ in "kvr")
        self.k, self.v, self.r = (Fused(d_model, {name: n}) for name in "kvr")
        self.decay_i, self.first_i = nn.Parameter(torch.empty(n)), nn.Parameter(torch.empty(n))
        self.o = Fused(n, {"o": d_model}, role="out")

    def start(self, _: Fill) -> None:
        """Decays from slow to fast over the channels, as RWKV-4 starts."""
        with torch.no_grad():
            n = self.decay_i.numel()
            share = torch.arange(n) / max(n - 1, 1)
            self.decay_i.copy_(-5 + 8 * share**0.7)
            self.first_i.fill_(math.log(0.3))

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        for name in "kvr":
            yield f"mix_{name}", getattr(self, f"mix_{name}")
        for part in (self.k, self.v, self.r, self.o):
            yield from part.named()
        yield from (("decay", self.decay_i), ("first", self.first_i))

    def forward(self, x_BTD: Tensor, flow: Flow, path: str) -> Tensor:
        """The same shape back."""
        k, v, r = (getattr(self, n)(mixed(x_BTD, getattr(self, f"mix_{n}"))) for n in "kvr")
        y_BTi = faded_mean(k, v, self.decay_i, self.first_i)
        if flow.watch is not None:
            flow.watch(f"{path}.attention", y_BTi)
        out_BTD: Tensor = self.o(r.sigmoid() * y_BTi)
        if flow.watch is not None:
            flow.watch(f"{path}.output", out_BTD)
        return out_BTD


def faded_mean(k_BTi: Tensor, v_BTi: Tensor, decay_i: Tensor, first_i: Tensor) -> Tensor:
    """Σ exp(k) v / Σ exp(k) over the past, faded by exp(−exp(decay)) a token; its own with first.

    The largest exponent is carried beside both sums, so that none overflows.
    """
    fade_i = -decay_i.exp()
    top = torch.zeros_like(v_BTi[:, 0])
    bottom = torch.zeros_like(top)
    most = torch.full_like(top, -1e38)
    found = []
    for k, v in zip(k_BTi.unbind(1), v_BTi.unbind(1), strict=True):
        high = torch.maximum(most, k + first_i)
        old, new = (most - high).exp(), (k + first_i - high).exp()
        found.append((old * top + new * v) / (old * bottom + new))
        high = torch.maximum(most + fade_i, k)
        old, new = (most + fade_i - high).exp(), (k - high).exp()
        top, bottom, most = old * top + new * v, old * bottom + new, high
    return torch.stack(found, 1)


class Mixed(nn.Module):
    """RWKV-4's feed-forward: squared ReLU of a key, gated by a receptance."""

    def __init__(self, f: ChannelMix, d_model: int) -> None:
        super().__init__()
        self.mix_k, self.mix_r = shares(d_model), shares(d_model)
        self.key = Fused(d_model, {"key": int(f.d_ff)})
        self.receptance = Fused(d_model, {"receptance": d_model})
        self.value = Fused(int(f.d_ff), {"value": d_model}, role="out")

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        yield from (("mix_k", self.mix_k), ("mix_r", self.mix_r))
        for part in (self.key, self.receptance, self.value):
            yield from part.named()

    def forward(self, x_BTD: Tensor, flow: Flow, path: str) -> Tensor:
        """The same shape back."""
        key_BTF = functional.relu(self.key(mixed(x_BTD, self.mix_k))).square()
        gate_BTD = self.receptance(mixed(x_BTD, self.mix_r)).sigmoid()
        out_BTD: Tensor = gate_BTD * self.value(key_BTF)
        if flow.watch is not None:
            flow.watch(f"{path}.ffn", out_BTD)
        return out_BTD


class Gated(nn.Module):
    """Griffin's recurrent block: a real gated linear recurrence beside a gate branch."""

    def __init__(self, r: RgLru, d_model: int) -> None:
        super().__init__()
        n, blocks = int(r.d_rnn), int(r.n_gate_block)
        self.blocks, each = blocks, n // blocks
        self.into = Fused(d_model, {"x": n, "y": n}, bias=True)
        self.conv = Convolution(n, int(r.d_conv), bias=True, active=False)
        self.gates_gbij = nn.Parameter(torch.empty(2, blocks, each, each))
        self.gate_bias_gbj = nn.Parameter(torch.zeros(2, blocks, each))
        self.decay_i = nn.Parameter(torch.empty(n))
        self.out = Fused(n, {"out": d_model}, bias=True, role="out")

    def start(self, fill: Fill) -> None:
        """Decays whose square is from 0.9² to 0.999², as Griffin starts."""
        fill(self.gates_gbij, self.gates_gbij.shape[-1])
        with torch.no_grad():
            square = torch.linspace(0.9**2, 0.999**2, self.decay_i.numel())
            self.decay_i.copy_(torch.log(torch.expm1(-square.log() / 16)))

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        for part in (self.into, self.conv, self.out):
            yield from part.named()
        for i, name in enumerate(("input_gate", "recurrent_gate")):
            yield name, self.gates_gbij[i]
            yield f"{name}_bias", self.gate_bias_gbj[i]
        yield "decay", self.decay_i

    def forward(self, x_BTD: Tensor, flow: Flow, path: str) -> Tensor:
        """The same shape back."""
        made = self.into.split(x_BTD)
        x_BTi = self.conv(made["x"])
        x_BTbi = by_head(x_BTi, self.blocks)
        gate_BTi, fade_BTi = (
            (by_block(x_BTbi, weight) + bias).sigmoid().flatten(-2)
            for weight, bias in zip(self.gates_gbij, self.gate_bias_gbj, strict=True)
        )
        log_BTi = -8.0 * fade_BTi * functional.softplus(self.decay_i)
        # sqrt(1 − a²) keeps the variance; the first token comes whole
        scale_BTi = torch.sqrt((-torch.expm1(2 * log_BTi)).clamp(min=1e-6))
        first = torch.arange(x_BTi.shape[1], device=x_BTi.device)[:, None] == 0
        scale_BTi = torch.where(first, torch.ones_like(scale_BTi), scale_BTi)
        y_BTi = running(log_BTi.exp(), x_BTi * gate_BTi * scale_BTi)
        if flow.watch is not None:
            flow.watch(f"{path}.attention", y_BTi)
        out_BTD: Tensor = self.out(y_BTi * functional.gelu(made["y"], approximate="tanh"))
        if flow.watch is not None:
            flow.watch(f"{path}.output", out_BTD)
        return out_BTD


class Short(nn.Module):
    """LFM2: a short convolution between two gates."""

    def __init__(self, c: ShortConv, d_model: int) -> None:
        super().__init__()
        self.into = Fused(d_model, {"b": d_model, "c": d_model, "x": d_model}, bias=c.bias)
        self.conv = Convolution(d_model, int(c.d_conv), bias=c.bias, active=False)
        self.out = Fused(d_model, {"out": d_model}, bias=c.bias, role="out")

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        for part in (self.into, self.conv, self.out):
            yield from part.named()

    def forward(self, x_BTD: Tensor, flow: Flow, path: str) -> Tensor:
        """The same shape back."""
        made = self.into.split(x_BTD)
        y_BTD = made["c"] * self.conv(made["b"] * made["x"])
        if flow.watch is not None:
            flow.watch(f"{path}.attention", y_BTD)
        out_BTD: Tensor = self.out(y_BTD)
        if flow.watch is not None:
            flow.watch(f"{path}.output", out_BTD)
        return out_BTD
