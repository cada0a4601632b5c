"""Softmax attention of the lab's model: grouped and latent."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from scantling.lab.parts import Linear, Normed, turned
from scantling.spec import (
    Alibi,
    Chunk,
    Full,
    GroupedAttention,
    LatentAttention,
    Rope,
    Window,
)

Watch = Callable[[str, Tensor], None]


def visible(span: Full | Window | Chunk, length: int, *, causal: bool) -> Tensor:
    """Which keys each query sees.

    Example:
        >>> visible(Window(2), 4, causal=True).int().tolist()
        [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
        >>> visible(Chunk(2), 4, causal=True).sum().item()
        6
    """
    at = torch.arange(length)
    behind = at[:, None] - at
    seen = behind >= 0 if causal else torch.ones(length, length, dtype=torch.bool)
    if isinstance(span, Window):
        reach = int(span.window) if causal else int(span.window) // 2 + 1
        seen = seen & (behind.abs() < reach)
    elif isinstance(span, Chunk):
        seen = seen & (at[:, None] // int(span.chunk) == at // int(span.chunk))
    return seen


def slopes(n_head: int) -> Tensor:
    """ALiBi's slope of each head, 2^(−8 i / H) (Press et al. 2022)."""
    return 2.0 ** (-8.0 * torch.arange(1, n_head + 1) / n_head)


def attend(
    q_BHTh: Tensor, k_BHTh: Tensor, v_BHTv: Tensor, seen_TT: Tensor, *, scale: float,
    softcap: float | None = None, sinks_H: Tensor | None = None, bias_HTT: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Softmax attention; a sink is one more logit a head, which takes weight and gives nothing."""
    logits_BHTT = q_BHTh @ k_BHTh.mT * scale
    if softcap is not None:
        logits_BHTT = softcap * torch.tanh(logits_BHTT / softcap)
    if bias_HTT is not None:
        logits_BHTT = logits_BHTT + bias_HTT
    logits_BHTT = logits_BHTT.masked_fill(~seen_TT, -torch.inf)
    if sinks_H is None:
        return logits_BHTT.softmax(-1) @ v_BHTv
    sink = sinks_H[:, None, None].expand(*logits_BHTT.shape[:-1], 1)
    weights_BHTT = torch.cat((logits_BHTT, sink), -1).softmax(-1)[..., :-1]
    return weights_BHTT @ v_BHTv


class Grouped(nn.Module):
    """MHA, GQA and MQA, with windows, sinks, gates, softcaps and norms of queries and keys."""

    def __init__(self, a: GroupedAttention, d_model: int) -> None:
        super().__init__()
        self.a, d_value = a, int(a.d_head if a.d_value is None else a.d_value)
        h, k, width = int(a.n_head), int(a.n_kv_head), int(a.d_head)
        gates = {None: 0, "head": h, "element": h * d_value}[a.gate]
        self.widths = [h * width, gates, k * width, 0 if a.key_is_value else k * d_value]
        self.qkv = Linear(d_model, sum(self.widths), bias=a.qkv_bias)
        self.o = Linear(h * d_value, d_model, bias=a.out_bias)
        self.sinks_H = nn.Parameter(torch.zeros(h)) if a.sinks else None
        self.scale = width**-0.5 if a.scale is None else a.scale
        self.q_norm: nn.Module = nn.Identity()
        self.k_norm: nn.Module = nn.Identity()
        if a.qk_norm is not None:
            scope, norm = a.qk_norm.scope, a.qk_norm.norm
            shapes = {"head": ((width,), (width,)), "each_head": ((h, width), (k, width)),
                      "width": ((h * width,), (k * width,))}[scope]  # fmt: skip
            self.q_norm, self.k_norm = (Normed(norm, *shape) for shape in shapes)

    def heads(self, x_BTw: Tensor, n: int, norm: nn.Module) -> Tensor:
        """Vectors of all heads, normed by their scope, heads before tokens."""
        whole = self.a.qk_norm is not None and self.a.qk_norm.scope == "width"
        x_BTw = norm(x_BTw) if whole else x_BTw
        x_BTnh = x_BTw.view(*x_BTw.shape[:-1], n, -1)
        x_BnTh: Tensor = (x_BTnh if whole else norm(x_BTnh)).transpose(1, 2)
        return x_BnTh

    def forward(self, x_BTD: Tensor, path: str, watch: Watch) -> Tensor:
        """The same shape back."""
        a, h, k = self.a, int(self.a.n_head), int(self.a.n_kv_head)
        qkv_BTw = self.qkv(x_BTD)
        watch(f"{path}.qkv", qkv_BTw)
        q_BTw, gate_BTw, k_BTw, v_BTw = qkv_BTw.split(self.widths, -1)
        q_BHTh, k_BKTh = self.heads(q_BTw, h, self.q_norm), self.heads(k_BTw, k, self.k_norm)
        v_BKTv = (k_BTw if a.key_is_value else v_BTw).unflatten(-1, (k, -1)).transpose(1, 2)
        length = x_BTD.shape[-2]
        bias_HTT = None
        if isinstance(a.position, Rope):
            turn = int(int(a.d_head) * a.position.fraction) // 2 * 2
            q_BHTh, k_BKTh = (turned(t, a.position.theta, turn) for t in (q_BHTh, k_BKTh))
        elif isinstance(a.position, Alibi):
            at = torch.arange(length)
            bias_HTT = -slopes(h)[:, None, None] * (at[:, None] - at)
        watch(f"{path}.heads", q_BHTh)
        out_BHTv = attend(
            q_BHTh, k_BKTh.repeat_interleave(h // k, 1), v_BKTv.repeat_interleave(h // k, 1),
            visible(a.span, length, causal=a.causal), scale=self.scale, softcap=a.softcap,
            sinks_H=self.sinks_H, bias_HTT=bias_HTT,
        )  # fmt: skip
        watch(f"{path}.attention", out_BHTv)
        if a.gate == "head":
            out_BHTv = out_BHTv * gate_BTw.sigmoid().transpose(1, 2)[..., None]
        out_BTw = out_BHTv.transpose(1, 2).flatten(-2)
        if a.gate == "element":
            out_BTw = out_BTw * gate_BTw.sigmoid()
        out_BTD: Tensor = self.o(out_BTw)
        watch(f"{path}.output", out_BTD)
        return out_BTD


class Latent(nn.Module):
    """Multi-head latent attention, expanded to H keys and values as in training."""

    def __init__(self, a: LatentAttention, d_model: int) -> None:
        super().__init__()
        self.a, h = a, int(a.n_head)
        query = h * int(a.d_nope + a.d_rope)
        if a.q_rank is None:
            self.q_down, self.q_norm = None, None
            self.q = Linear(d_model, query, bias=False)
        else:
            self.q_down = Linear(d_model, int(a.q_rank), bias=a.qkv_bias)
            self.q_norm = Normed(a.norm, int(a.q_rank))
            self.q = Linear(int(a.q_rank), query, bias=False)
        self.kv_down = Linear(d_model, int(a.kv_rank + a.d_rope), bias=a.qkv_bias)
        self.kv_norm = Normed(a.norm, int(a.kv_rank))
        self.kv_up = Linear(int(a.kv_rank), h * int(a.d_nope + a.d_value), bias=False)
        self.o = Linear(h * int(a.d_value), d_model, bias=a.out_bias)
        self.scale = int(a.d_nope + a.d_rope) ** -0.5 if a.scale is None else a.scale

    def forward(self, x_BTD: Tensor, path: str, watch: Watch) -> Tensor:
        """The same shape back."""
        a, h = self.a, int(self.a.n_head)
        nope, rope = int(a.d_nope), int(a.d_rope)
        q_in = x_BTD
        if self.q_down is not None and self.q_norm is not None:
            q_in = self.q_norm(self.q_down(x_BTD))
        q_BTw = self.q(q_in)
        latent_BTr, shared_BTr = self.kv_down(x_BTD).split([int(a.kv_rank), rope], -1)
        kv_BTw = self.kv_up(self.kv_norm(latent_BTr))
        watch(f"{path}.qkv", torch.cat((q_BTw, kv_BTw, shared_BTr), -1))
        q_BHTh = q_BTw.unflatten(-1, (h, -1)).transpose(1, 2)
        k_BHTn, v_BHTv = kv_BTw.unflatten(-1, (h, -1)).transpose(1, 2).split(
            [nope, int(a.d_value)], -1
        )  # fmt: skip
        q_nope, q_turn = q_BHTh.split([nope, rope], -1)
        k_turn = shared_BTr[:, None]
        if isinstance(a.position, Rope):
            q_turn, k_turn = (turned(t, a.position.theta, rope) for t in (q_turn, k_turn))
        q_BHTh = torch.cat((q_nope, q_turn), -1)
        k_BHTh = torch.cat((k_BHTn, k_turn.expand(-1, h, -1, -1)), -1)
        watch(f"{path}.heads", q_BHTh)
        seen_TT = visible(a.span, x_BTD.shape[-2], causal=True)
        out_BHTv = attend(q_BHTh, k_BHTh, v_BHTv, seen_TT, scale=self.scale)
        watch(f"{path}.attention", out_BHTv)
        out_BTD: Tensor = self.o(out_BHTv.transpose(1, 2).flatten(-2))
        watch(f"{path}.output", out_BTD)
        return out_BTD
