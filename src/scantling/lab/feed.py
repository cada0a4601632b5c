"""Feed-forwards of the lab's model: dense, gated, and experts."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import zip_longest
from statistics import NormalDist
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from scantling.lab.flow import Flow
from scantling.lab.numerics import Numerics
from scantling.lab.parts import Factored, Fused, Named, Normed, activation, maybe, product
from scantling.spec import Dense, Experts

if TYPE_CHECKING:
    from scantling.lab.param import Fill


LIMIT = 7.0
"""Clamp of the activation ``swigluoai``, where no config says another (gpt-oss, MiniMax-M3)."""
LEAST = 1e-20
"""Added to the sum of a token's weights, as in DeepSeek's classes."""


def gated(name: str, gate: Tensor, up: Tensor, numerics: Numerics) -> Tensor:
    """act(gate) · up; ``swigluoai`` clamps both and adds 1 to the latter."""
    limit = numerics.limit
    if limit is None and name != "swigluoai":
        return activation(name)(gate) * up
    limit = LIMIT if limit is None else limit
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1) * gate * torch.sigmoid(gate * numerics.steepness)


def cut_off(gate_BTF: Tensor, share: float) -> Tensor:
    """What a gate has above a cut-off: its mean and deviation as if normal, so that a share is 0.

    Example:
        >>> cut_off(torch.tensor([-1.0, 1.0, 3.0]), 0.5).tolist()
        [0.0, 0.0, 2.0]
    """
    if not share:
        return gate_BTF
    spread = gate_BTF.std(-1, keepdim=True, unbiased=False)
    level = gate_BTF.mean(-1, keepdim=True) + NormalDist().inv_cdf(share) * spread
    return functional.relu(gate_BTF - level)


class Xielu(nn.Module):
    """An activation with a learned curve on each side of zero (Apertus; Huang 2024)."""

    def __init__(self) -> None:
        super().__init__()
        self.constants_2: Tensor
        self.alphas_2 = nn.Parameter(torch.expm1(torch.tensor([0.8, 0.3])).log())
        self.register_buffer("constants_2", torch.tensor([0.5, -1e-6]))

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        yield from (("alphas", self.alphas_2), ("constants", self.constants_2))

    def forward(self, x: Tensor) -> Tensor:
        """α x² + β x above zero; (β + α') (e^x − 1 − x) + β x below."""
        beta, least = self.constants_2.unbind()
        above, below = functional.softplus(self.alphas_2).unbind()
        curve = torch.where(
            x > 0, above * x * x, (beta + below) * (torch.expm1(torch.minimum(x, least)) - x)
        )
        return curve + beta * x


class Feed(nn.Module):
    """down(act(gate x) · up x), or down(act(up x)); gate and up are one product."""

    def __init__(self, f: Dense, d_model: int, numerics: Numerics, *, prefix: str = "") -> None:
        super().__init__()
        self.f, self.numerics, d_ff = f, numerics, int(f.d_ff)
        outs = {f"{prefix}gate": d_ff if f.gated else 0, f"{prefix}up": d_ff}
        rank = None if f.ff_rank is None else int(f.ff_rank)
        self.up = product(d_model, outs, rank, bias=f.in_bias)
        self.down = product(d_ff, {f"{prefix}down": d_model}, rank, bias=f.out_bias, role="out")
        self.gated = f.gated
        own = f.activation == "xielu"
        self.act: Callable[[Tensor], Tensor] = Xielu() if own else activation(f.activation)
        self.inner = None
        if f.inner_norm is not None:
            self.inner = Normed(f.inner_norm, d_ff, epsilon=numerics.epsilon)

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        yield from self.up.named()
        if isinstance(self.act, Xielu):
            yield from self.act.named()
        if self.inner is not None:
            yield from self.inner.named("inner_norm")
        yield from self.down.named()

    def adapter(self, d_model: int) -> Factored | None:
        """The low-rank addition to the up product that one use of these weights has."""
        if self.f.adapter_rank is None:
            return None
        sides = 2 if self.gated else 1
        return Factored(d_model, {"up_adapter": sides * int(self.f.d_ff)},
                        int(self.f.adapter_rank), role="zero")  # fmt: skip

    def hidden(self, x_BTD: Tensor, adapter: Factored | None = None) -> Tensor:
        """What the last product reads, F numbers a token."""
        up_BTF = self.up(x_BTD)
        if adapter is not None:
            up_BTF = up_BTF + adapter(x_BTD)
        if not self.gated:
            hidden_BTF = self.act(cut_off(up_BTF, self.f.sparsity))
        else:
            gate_BTF, up_BTF = up_BTF.chunk(2, -1)
            gate_BTF = cut_off(gate_BTF, self.f.sparsity)
            if self.f.activation == "swigluoai":
                hidden_BTF = gated(self.f.activation, gate_BTF, up_BTF, self.numerics)
            else:
                hidden_BTF = self.act(gate_BTF) * up_BTF
        normed_BTF: Tensor = hidden_BTF if self.inner is None else self.inner(hidden_BTF)
        return normed_BTF

    def forward(self, x_BTD: Tensor, flow: Flow, path: str) -> Tensor:
        """The same shape back."""
        out_BTD: Tensor = self.down(self.hidden(x_BTD, flow.adapter))
        if flow.watch is not None:
            flow.watch(f"{path}.ffn", out_BTD)
        return out_BTD


class Routed(nn.Module):
    """Routed experts: each token passes ``top_k`` of them; all weights of a side in one tensor.

    Where they are latent, tokens come to them through a narrow product and go back by another.
    Numbers from E on are experts that hand back what they read.
    """

    def __init__(self, e: Experts, d_model: int, numerics: Numerics, vocab_size: int = 0) -> None:
        super().__init__()
        self.e, self.numerics, n, f = e, numerics, int(e.n_expert), int(e.d_expert)
        r, known = e.router, n + int(e.n_zero or 0)
        self.router_norm = maybe(r.norm, d_model, numerics.epsilon)
        self.router = Fused(d_model, {"router": known}, bias=r.bias, role="router")
        self.width, sides = f, 2 if e.gated else 1
        inner, self.latent_down, self.latent_up = d_model, None, None
        if e.d_latent is not None:
            inner, bias = int(e.d_latent), e.latent_bias
            self.latent_down = Fused(d_model, {"latent_down": inner}, bias=bias)
            self.latent_up = Fused(inner, {"latent_up": d_model}, bias=bias, role="out")
        self.up_EFD = nn.Parameter(torch.empty(n, sides * f, inner))
        self.down_EDF = nn.Parameter(torch.empty(n, inner, f))
        self.up_bias_EF = nn.Parameter(torch.zeros(n, sides * f)) if e.bias else None
        self.down_bias_ED = nn.Parameter(torch.zeros(n, inner)) if e.bias else None
        if r.correction == "parameter":
            self.correction_E = nn.Parameter(torch.zeros(known))
        elif r.correction:
            self.register_buffer("correction_E", torch.zeros(known))
        self.expert_scale_E = nn.Parameter(torch.ones(n)) if r.expert_scale else None
        if r.hashed:  # neighbouring tokens of the vocabulary differ in one expert
            table = torch.arange(vocab_size)[:, None] + torch.arange(int(e.top_k))
            self.table_Vk: Tensor
            self.register_buffer("table_Vk", table % n)
        self.act = activation(e.activation)
        s = e.shared
        self.shared = None if s is None else Feed(
            Dense(int(s.d_shared), e.gated, e.activation, s.bias, s.bias), d_model,
            numerics, prefix="shared_",
        )  # fmt: skip
        gated = s is not None and s.gate
        self.shared_gate = Fused(d_model, {"shared_expert_gate": 1}) if gated else None

    def start(self, fill: Fill) -> None:
        """Each expert as a feed-forward of its own."""
        fill(self.up_EFD, self.up_EFD.shape[-1])
        fill(self.down_EDF, self.width, "out" if self.latent_up is None else "hidden")

    def named(self) -> Named:
        """Its weights by their names in ``ops``; an expert's are rows of the first axis."""
        if self.router_norm is not None:
            yield from self.router_norm.named("router_norm")
        for part in (self.router, self.latent_down, self.latent_up):
            if part is not None:
                yield from part.named()
        if self.e.router.hashed:
            yield "router_table", self.table_Vk
        if self.e.router.correction:
            yield "router_correction", self.correction_E
        if self.expert_scale_E is not None:
            yield "router_expert_scale", self.expert_scale_E
        sides = ["gate", "up"] if self.e.gated else ["up"]
        for i, side in enumerate(sides):
            own = slice(i * self.width, (i + 1) * self.width)
            yield f"experts_{side}", self.up_EFD[:, own]
            if self.up_bias_EF is not None:
                yield f"experts_{side}_bias", self.up_bias_EF[:, own]
        yield "experts_down", self.down_EDF
        if self.down_bias_ED is not None:
            yield "experts_down_bias", self.down_bias_ED
        if self.shared is not None:
            yield from self.shared.named()
        if self.shared_gate is not None:
            yield from self.shared_gate.named()

    def chosen(self, x_ND: Tensor, tokens_N: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The weight and the number of each token's experts."""
        r = self.e.router
        logits_NE = self.router(x_ND).float()
        scores_NE = {  # type: ignore[no-untyped-call]
            "softmax": lambda x: x.softmax(-1), "sigmoid": torch.sigmoid,
            "sqrtsoftplus": lambda x: functional.softplus(x).sqrt(),
        }[r.scoring](logits_NE)  # fmt: skip
        if r.hashed:
            assert tokens_N is not None, "the decoder says which tokens these are"
            which_Nk = self.table_Vk[tokens_N]
        else:
            which_Nk = self.highest(scores_NE).topk(int(self.e.top_k), -1).indices
        weight_Nk = scores_NE.gather(-1, which_Nk)
        if self.numerics.renormalise:
            # scores of experts that were not chosen by them may all be nothing
            weight_Nk = weight_Nk / (weight_Nk.sum(-1, keepdim=True) + LEAST)
        if self.expert_scale_E is not None:
            idle = int(self.e.n_zero or 0)
            weight_Nk = weight_Nk * functional.pad(self.expert_scale_E, (0, idle), value=1.0)[
                which_Nk]  # fmt: skip
        return (weight_Nk * self.numerics.routed_scale).to(x_ND.dtype), which_Nk

    def highest(self, scores_NE: Tensor) -> Tensor:
        """What experts are chosen by: scores with their correction, in the best groups only."""
        r = self.e.router
        rank_NE = scores_NE + self.correction_E if r.correction else scores_NE
        groups = int(r.n_expert_group or 1)
        if groups > 1:
            by_group_NGE = rank_NE.view(len(rank_NE), groups, -1)
            best_NG = by_group_NGE.topk(min(2, by_group_NGE.shape[-1]), -1).values.sum(-1)
            kept = best_NG.topk(int(r.top_k_group or groups), -1).indices
            open_NG = torch.zeros_like(best_NG, dtype=torch.bool).scatter(-1, kept, value=True)
            rank_NE = by_group_NGE.masked_fill(~open_NG[..., None], -torch.inf).flatten(-2)
        return rank_NE

    def weights(self) -> list[tuple[Tensor, Tensor | None, Tensor, Tensor | None]]:
        """Of each expert the matrix and the bias into it, and out of it.

        Taken apart at once: the gradient of a part alone would be as large as that of all.
        """
        stacks = (self.up_EFD, self.up_bias_EF, self.down_EDF, self.down_bias_ED)
        n = int(self.e.n_expert)
        parts = [(None,) * n if one is None else one.unbind(0) for one in stacks]
        return list(zip(*parts, strict=True))

    def inside(self, x_nD: Tensor, matrix_FD: Tensor, bias_F: Tensor | None) -> Tensor:
        """What the last product of one expert reads, F numbers a token."""
        up = functional.linear(x_nD, matrix_FD, bias_F)
        if not self.e.gated:
            return self.act(up)
        gate, up = up.chunk(2, -1)
        return gated(self.e.activation, gate, up, self.numerics)

    def forward(self, x_BTD: Tensor, flow: Flow, path: str) -> Tensor:
        """The weighted sum of each token's experts, and the shared expert.

        Tokens are sorted by expert, so each expert is one product. With a capacity the tokens
        that come to an expert when it is full pass it by.
        """
        x_ND = whole_ND = x_BTD.flatten(0, -2)
        reads_ND = x_ND
        if self.router_norm is not None:
            assert flow.stream_BTD is not None, "a block says what it reads"
            stream_ND = self.router_norm(flow.stream_BTD.flatten(0, -2))
            reads_ND = stream_ND * stream_ND.shape[-1] ** -0.5  # as in Gemma 4
        tokens = flow.tokens_BT
        weight_Nk, which_Nk = self.chosen(reads_ND, None if tokens is None else tokens.flatten())
        if self.latent_down is not None:
            x_ND = self.latent_down(x_ND)
        k, n = int(self.e.top_k), int(self.e.n_expert)
        most = x_ND.shape[0]
        if self.numerics.capacity is not None:
            most = math.ceil(self.numerics.capacity * k * x_ND.shape[0] / n)
        order = which_Nk.flatten().sort(stable=True)
        counts = torch.bincount(order.values, minlength=n + int(self.e.n_zero or 0)).tolist()
        out_ND = torch.zeros_like(x_ND)
        for places, weights in zip_longest(torch.split(order.indices, counts), self.weights()):
            if len(places):
                slots = places if weights is None else places[:most]
                token = slots // k
                down = x_ND[token]
                if weights is not None:  # idle experts, the last ones, hand back their input
                    up_FD, up_bias_F, down_DF, down_bias_D = weights
                    hidden_nF = self.inside(down, up_FD, up_bias_F)
                    down = functional.linear(hidden_nF, down_DF, down_bias_D)
                down = down * weight_Nk.view(-1)[slots, None]
                # which keeps no copy of what it adds, as index_add does
                out_ND = out_ND.scatter_add(0, token[:, None].expand_as(down), down)
        if self.latent_up is not None:
            out_ND = self.latent_up(out_ND)
        if self.shared is not None:
            shared_ND = self.shared.down(self.shared.hidden(whole_ND))
            if self.shared_gate is not None:
                shared_ND = self.shared_gate(whole_ND).sigmoid() * shared_ND
            out_ND = out_ND + shared_ND
        out_BTD = out_ND.view_as(x_BTD)
        if flow.watch is not None:
            flow.watch(f"{path}.experts", out_BTD)
        return out_BTD
