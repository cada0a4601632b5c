"""Linear attention of the lab's model in chunks: lightning attention and Kimi's delta rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from scantling.lab.flow import Flow
from scantling.lab.numerics import Numerics
from scantling.lab.parts import Fused, Named, Normed, by_head, maybe
from scantling.lab.recurrent import Convolution, carried, chunks, recurrent_start, unit
from scantling.spec import KimiDelta, LinearAttention

if TYPE_CHECKING:
    from scantling.lab.param import Fill


class Lightning(nn.Module):
    """MiniMax: a state that fades by a fixed factor a head, which is slower in later layers.

    Args:
        a: What it is.
        d_model: Width of the stream.
        numerics: Small numbers.
        depth: Its layer over the last one's, 0 to 1.
    """

    def __init__(self, a: LinearAttention, d_model: int, numerics: Numerics, depth: float) -> None:
        super().__init__()
        self.a, self.h, self.chunk = a, int(a.n_head), int(a.scan_chunk)
        width = self.h * int(a.d_head)
        self.qkv = Fused(d_model, {"q": width, "k": width, "v": width})
        self.norm = maybe(a.norm, width, numerics.epsilon)
        self.gate = Fused(d_model, {"gate": width}) if a.gated else None
        self.o = Fused(width, {"o": d_model}, role="out")
        self.slope: Tensor
        self.query_decay: Tensor
        self.key_decay: Tensor
        self.pair_decay: Tensor
        for name, table in self.decays(1 - depth + 1e-5).items():
            self.register_buffer(name, table, persistent=a.stored_decay)

    def decays(self, factor: float) -> dict[str, Tensor]:
        """The slope 2^(−8 (i + 1) / H) of each head, and its powers within a block."""
        c = self.chunk
        at = torch.arange(1, c + 1)[:, None]
        slope_H11 = 2.0 ** (-8.0 * torch.arange(1, self.h + 1) / self.h)[:, None, None] * factor
        ahead = at - at.mT
        fading = torch.where(ahead >= 0, -slope_H11 * ahead, -torch.inf)
        return {
            "slope": slope_H11,
            "query_decay": torch.exp(-slope_H11 * at),
            "key_decay": torch.exp(-slope_H11 * (c - at)),
            "pair_decay": fading.exp(),
        }

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        for part in (self.qkv, self.gate, self.o):
            if part is not None:
                yield from part.named()
        if self.norm is not None:
            yield from self.norm.named("norm")
        if self.a.stored_decay:
            for name in ("slope", "query_decay", "key_decay", "pair_decay"):
                yield name, getattr(self, name)

    def forward(self, x_BTD: Tensor, flow: Flow, path: str) -> Tensor:
        """The same shape back; the last block is as long as what is left."""
        q, k, v = (
            by_head(t, self.h).transpose(1, 2)
            for t in functional.silu(self.qkv(x_BTD)).chunk(3, -1)
        )
        state, out = q.new_zeros(*q.shape[:2], q.shape[-1], q.shape[-1]), []
        for q_c, k_c, v_c in zip(*(torch.split(t, self.chunk, 2) for t in (q, k, v)), strict=True):
            n = q_c.shape[2]
            within = ((q_c @ k_c.mT) * self.pair_decay[:, :n, :n]) @ v_c
            out.append(within + (q_c * self.query_decay[:, :n]) @ state)
            added = (k_c * self.key_decay[:, self.chunk - n :]).mT @ v_c
            state = state * torch.exp(-self.slope * n) + added
        y_BTw = torch.cat(out, 2).transpose(1, 2).flatten(-2)
        if flow.watch is not None:
            flow.watch(f"{path}.attention", y_BTw)
        if self.norm is not None:
            y_BTw = self.norm(y_BTw)
        if self.gate is not None:
            y_BTw = y_BTw * self.gate(x_BTD).sigmoid()
        out_BTD: Tensor = self.o(y_BTw)
        if flow.watch is not None:
            flow.watch(f"{path}.output", out_BTD)
        return out_BTD


class Kimi(nn.Module):
    """Kimi delta attention: the delta rule with a decay for each channel of each key."""

    def __init__(self, a: KimiDelta, d_model: int, numerics: Numerics) -> None:
        super().__init__()
        self.a, self.h, self.width = a, int(a.n_delta_head), int(a.n_delta_head * a.d_delta)
        w = self.width
        self.qkv = Fused(d_model, {"q": w, "k": w, "v": w})
        self.conv = Convolution(3 * w, int(a.d_conv), bias=False)
        rank = None if a.gate_rank is None else int(a.gate_rank)
        self.forget, self.gate = (_gate(name, d_model, w, rank) for name in ("forget", "gate"))
        self.b = Fused(d_model, {"b": self.h})
        self.dt_bias_H = nn.Parameter(torch.empty(w))
        self.a_log_H = nn.Parameter(torch.empty(self.h))
        self.norm = Normed(a.norm, int(a.d_delta), epsilon=numerics.epsilon)
        self.o = Fused(w, {"o": d_model}, role="out")

    def start(self, fill: Fill) -> None:
        """Steps and decays as Mamba-2 starts."""
        recurrent_start(self.dt_bias_H, self.a_log_H, fill.generator)

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        for part in (self.qkv, self.conv, *self.forget, *self.gate, self.b, self.o):
            yield from cast("Fused", part).named()
        yield from (("dt_bias", self.dt_bias_H), ("decay", self.a_log_H))
        yield from self.norm.named("norm")

    def forward(self, x_BTD: Tensor, flow: Flow, path: str) -> Tensor:
        """The same shape back."""
        q, k, v = (by_head(t, self.h) for t in self.conv(self.qkv(x_BTD)).chunk(3, -1))
        step = functional.softplus(self.forget(x_BTD) + self.dt_bias_H)
        decay_BTHk = -self.a_log_H.exp()[:, None] * by_head(step, self.h)
        y_BTHv = channel_delta_rule(
            unit(q) * int(self.a.d_delta) ** -0.5, unit(k), v, self.b(x_BTD).sigmoid(),
            decay_BTHk, int(self.a.scan_chunk),
        )  # fmt: skip
        if flow.watch is not None:
            flow.watch(f"{path}.attention", y_BTHv.flatten(-2))
        gate = by_head(self.gate(x_BTD), self.h).sigmoid()
        out_BTD: Tensor = self.o((self.norm(y_BTHv) * gate).flatten(-2))
        if flow.watch is not None:
            flow.watch(f"{path}.output", out_BTD)
        return out_BTD


def _gate(name: str, d_model: int, width: int, rank: int | None) -> nn.Sequential:
    """A projection of the stream, straight or through a narrow width."""
    if rank is None:
        return nn.Sequential(Fused(d_model, {name: width}))
    return nn.Sequential(Fused(d_model, {f"{name}_a": rank}), Fused(rank, {f"{name}_b": width}))


def channel_delta_rule(
    q_BTHk: Tensor, k_BTHk: Tensor, v_BTHv: Tensor, strength_BTH: Tensor, decay_BTHk: Tensor,
    chunk: int,
) -> Tensor:  # fmt: skip
    """S ← (I − β k kᵀ) diag(e^g) S + β k vᵀ, y = Sᵀ q, in chunks (Kimi Linear, 2025).

    As ``recurrent.delta_rule``, but scores weigh each channel on its own, so they are sums of
    products written out, and the inverse of the triangular system is made first.
    """
    length = q_BTHk.shape[1]
    b = strength_BTH[..., None]
    q, k, kb, vb, g = (
        chunks(t, chunk).permute(0, 3, 1, 2, 4)
        for t in (q_BTHk, k_BTHk, k_BTHk * b, v_BTHv * b, decay_BTHk)
    )
    sums = g.cumsum(-2)
    n = sums.shape[-2]
    late = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)[..., None]
    between = (sums[..., :, None, :] - sums[..., None, :, :]).masked_fill(late, -torch.inf).exp()
    system = (kb[..., :, None, :] * k[..., None, :, :] * between).sum(-1)
    scores = (q[..., :, None, :] * k[..., None, :, :] * between).sum(-1)
    one = torch.eye(n, dtype=q.dtype, device=q.device).expand_as(system)
    inverse = torch.linalg.solve_triangular(system, one, upper=False, unitriangular=True)
    u, read = inverse @ vb, inverse @ (kb * sums.exp())
    q, k = q * sums.exp(), k * (sums[..., -1:, :] - sums).exp()
    kept = sums[..., -1, :].exp()[..., None]
    return carried(q, k, u, read, scores, kept)[:, :length]
