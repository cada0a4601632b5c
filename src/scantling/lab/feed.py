"""Feed-forwards of the lab's model: dense, gated, and experts."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from scantling.lab.flow import Flow
from scantling.lab.numerics import Numerics
from scantling.lab.parts import Fused, Named, Normed, activation, product
from scantling.spec import Dense, Experts


class Feed(nn.Module):
    """down(act(gate x) · up x), or down(act(up x)); gate and up are one product."""

    def __init__(self, f: Dense, d_model: int, epsilon: float, *, prefix: str = "") -> None:
        super().__init__()
        self.f, d_ff = f, int(f.d_ff)
        outs = {f"{prefix}gate": d_ff if f.gated else 0, f"{prefix}up": d_ff}
        rank = None if f.ff_rank is None else int(f.ff_rank)
        self.up = product(d_model, outs, rank, bias=f.in_bias)
        self.down = product(d_ff, {f"{prefix}down": d_model}, rank, bias=f.out_bias, role="out")
        self.act, self.gated = activation(f.activation), f.gated
        self.inner = None
        if f.inner_norm is not None:
            self.inner = Normed(f.inner_norm, d_ff, epsilon=epsilon)

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        yield from self.up.named()
        if self.inner is not None:
            yield from self.inner.named("inner_norm")
        yield from self.down.named()

    def hidden(self, x_BTD: Tensor) -> Tensor:
        """What the last product reads, F numbers a token."""
        if self.gated:
            gate_BTF, up_BTF = self.up(x_BTD).chunk(2, -1)
            hidden_BTF = self.act(gate_BTF) * up_BTF
        else:
            hidden_BTF = self.act(self.up(x_BTD))
        normed_BTF: Tensor = hidden_BTF if self.inner is None else self.inner(hidden_BTF)
        return normed_BTF

    def forward(self, x_BTD: Tensor, flow: Flow, path: str) -> Tensor:
        """The same shape back."""
        out_BTD: Tensor = self.down(self.hidden(x_BTD))
        if flow.watch is not None:
            flow.watch(f"{path}.ffn", out_BTD)
        return out_BTD


class Routed(nn.Module):
    """Routed experts: each token passes ``top_k`` of them; all weights of a side in one tensor."""

    def __init__(self, e: Experts, d_model: int, numerics: Numerics) -> None:
        super().__init__()
        self.e, self.numerics, n, f = e, numerics, int(e.n_expert), int(e.d_expert)
        self.router = Fused(d_model, {"router": n}, bias=e.router.bias, role="router")
        self.width, sides = f, 2 if e.gated else 1
        self.up_EFD = nn.Parameter(torch.empty(n, sides * f, d_model))
        self.down_EDF = nn.Parameter(torch.empty(n, d_model, f))
        self.up_bias_EF = nn.Parameter(torch.zeros(n, sides * f)) if e.bias else None
        self.down_bias_ED = nn.Parameter(torch.zeros(n, d_model)) if e.bias else None
        if e.router.correction == "parameter":
            self.correction_E = nn.Parameter(torch.zeros(n))
        elif e.router.correction:
            self.register_buffer("correction_E", torch.zeros(n))
        self.act = activation(e.activation)
        s = e.shared
        self.shared = None if s is None else Feed(
            Dense(int(s.d_shared), e.gated, e.activation, s.bias, s.bias), d_model,
            numerics.epsilon, prefix="shared_",
        )  # fmt: skip
        gated = s is not None and s.gate
        self.shared_gate = Fused(d_model, {"shared_expert_gate": 1}) if gated else None

    def named(self) -> Named:
        """Its weights by their names in ``ops``; an expert's are rows of the first axis."""
        yield from self.router.named()
        if self.e.router.correction:
            yield "router_correction", self.correction_E
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

    def chosen(self, x_ND: Tensor) -> tuple[Tensor, Tensor]:
        """The weight and the number of each token's experts."""
        r = self.e.router
        logits_NE = self.router(x_ND).float()
        scores_NE = {  # type: ignore[no-untyped-call]
            "softmax": lambda x: x.softmax(-1), "sigmoid": torch.sigmoid,
            "sqrtsoftplus": lambda x: functional.softplus(x).sqrt(),
        }[r.scoring](logits_NE)  # fmt: skip
        rank_NE = scores_NE + self.correction_E if r.correction else scores_NE
        groups = int(r.n_expert_group or 1)
        if groups > 1:
            by_group_NGE = rank_NE.view(len(rank_NE), groups, -1)
            best_NG = by_group_NGE.topk(min(2, by_group_NGE.shape[-1]), -1).values.sum(-1)
            kept = best_NG.topk(int(r.top_k_group or 1), -1).indices
            open_NG = torch.zeros_like(best_NG, dtype=torch.bool).scatter(-1, kept, value=True)
            rank_NE = by_group_NGE.masked_fill(~open_NG[..., None], -torch.inf).flatten(-2)
        which_Nk = rank_NE.topk(int(self.e.top_k), -1).indices
        weight_Nk = scores_NE.gather(-1, which_Nk)
        if self.numerics.renormalise:
            weight_Nk = weight_Nk / weight_Nk.sum(-1, keepdim=True)
        return (weight_Nk * self.numerics.routed_scale).to(x_ND.dtype), which_Nk

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
        limit = self.numerics.limit
        up = functional.linear(x_nD, matrix_FD, bias_F)
        if not self.e.gated:
            return self.act(up)
        gate, up = up.chunk(2, -1)
        if limit is None:
            return self.act(gate) * up
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)  # gpt-oss
        return (up + 1) * gate * torch.sigmoid(gate * self.numerics.steepness)

    def forward(self, x_BTD: Tensor, flow: Flow, path: str) -> Tensor:
        """The weighted sum of each token's experts, and the shared expert.

        Tokens are sorted by expert, so each expert is one product. With a capacity the tokens
        that come to an expert when it is full pass it by.
        """
        x_ND = x_BTD.flatten(0, -2)
        weight_Nk, which_Nk = self.chosen(x_ND)
        k, n = int(self.e.top_k), int(self.e.n_expert)
        most = x_ND.shape[0]
        if self.numerics.capacity is not None:
            most = math.ceil(self.numerics.capacity * k * x_ND.shape[0] / n)
        order = which_Nk.flatten().sort(stable=True)
        counts = torch.bincount(order.values, minlength=n).tolist()
        out_ND = torch.zeros_like(x_ND)
        parts = zip(torch.split(order.indices, counts), self.weights(), strict=True)
        for places, (up_FD, up_bias_F, down_DF, down_bias_D) in parts:
            if len(places):
                slots = places[:most]
                token = slots // k
                hidden_nF = self.inside(x_ND[token], up_FD, up_bias_F)
                down = functional.linear(hidden_nF, down_DF, down_bias_D)
                down = down * weight_Nk.view(-1)[slots, None]
                # which keeps no copy of what it adds, as index_add does
                out_ND = out_ND.scatter_add(0, token[:, None].expand_as(down), down)
        if self.shared is not None:
            shared_ND = self.shared.down(self.shared.hidden(x_ND))
            if self.shared_gate is not None:
                shared_ND = self.shared_gate(x_ND).sigmoid() * shared_ND
            out_ND = out_ND + shared_ND
        out_BTD = out_ND.view_as(x_BTD)
        if flow.watch is not None:
            flow.watch(f"{path}.experts", out_BTD)
        return out_BTD
