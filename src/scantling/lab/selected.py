"""Selectors of the lab's model: small heads that choose the keys which attention reads.

A choice has no slope, so the loss teaches a selector nothing by itself; its makers train it to
agree with the attention it stands for. Here the scores of a selector pass the slope of the logits
they choose among straight through: they are added to them less their own value, which is nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from scantling.lab.flow import Flow, turned
from scantling.lab.parts import Fused, Named, Normed, by_head
from scantling.spec import BlockSelector, Indexer, Norm, Rope


def straight(scores: Tensor) -> Tensor:
    """Nothing, with the slope of the scores.

    Example:
        >>> x = torch.tensor([3.0], requires_grad=True)
        >>> y = straight(2 * x)
        >>> y.backward()
        >>> y.item(), x.grad.item()
        (0.0, 2.0)
    """
    return scores - scores.detach()


def turned_first(x_BTnh: Tensor, position: object, width: int, flow: Flow) -> Tensor:
    """Rotary positions of heads of another width on the first numbers of these."""
    if not isinstance(position, Rope):
        return x_BTnh
    pairs = x_BTnh.shape[-1] // 2
    turns = flow.places.turns(position, width)[..., :pairs, :]
    return turned(x_BTnh, turns) if turns.shape[-2] else x_BTnh


class Index(nn.Module):
    """DeepSeek-V3.2: Σ over heads of a weight times ReLU(q · k), whose best are read.

    Args:
        i: What it is.
        d_model: Width of the stream, which keys and weights are made of.
        inner: Width that queries are made of.
        d_rope: Numbers of a head that the attention turns.
    """

    def __init__(self, i: Indexer, d_model: int, inner: int, d_rope: int) -> None:
        super().__init__()
        self.i, self.h, self.width = i, int(i.n_index_head), int(i.d_index)
        self.d_rope = d_rope
        self.q = Fused(inner, {"index_q": self.h * self.width})
        self.kw = Fused(d_model, {"index_k": self.width, "index_weight": self.h})
        self.norm = Normed(Norm("layer", bias=True), self.width)

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        for part in (self.q, self.kw):
            yield from part.named()
        yield from self.norm.named("index_norm")

    def forward(
        self, x_BTD: Tensor, q_BTr: Tensor, position: object, flow: Flow
    ) -> tuple[Tensor, Tensor]:
        """Which keys each query reads, B × 1 × T × S, and nothing with their slope."""
        q_BTHh = by_head(self.q(q_BTr), self.h)
        made = self.kw.split(x_BTD)
        k_BTh = self.norm(made["index_k"])
        q_BTHh = turned_first(q_BTHh, position, self.d_rope, flow)
        k_BTh = turned_first(k_BTh[..., None, :], position, self.d_rope, flow).squeeze(-2)
        scores_BTHS = functional.relu(q_BTHh @ k_BTh[:, None].mT * self.width**-0.5)
        weight_BTH = made["index_weight"] * self.h**-0.5
        scores_BTS = (weight_BTH[..., None, :] @ scores_BTHS).squeeze(-2)
        seen = flow.places.causal()
        seen = seen if seen.dim() == 2 else seen[:, 0]
        open_BTS = best(scores_BTS, seen, int(self.i.index_top_k))
        return open_BTS[:, None], straight(scores_BTS)[:, None]


def best(scores_BTS: Tensor, seen: Tensor, top: int) -> Tensor:
    """The highest of the keys that are seen, and no other.

    Example:
        >>> scores = torch.tensor([[[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]])
        >>> seen = torch.tensor([[True, False, False], [True, True, True]])
        >>> best(scores, seen, 2).int().tolist()
        [[[1, 0, 0], [1, 1, 0]]]
    """
    ranked = scores_BTS.detach().masked_fill(~seen, -torch.inf)
    which = ranked.topk(min(top, ranked.shape[-1]), -1).indices
    return torch.zeros_like(ranked, dtype=torch.bool).scatter(-1, which, value=True) & seen


class Blocks(nn.Module):
    """MiniMax-M3: each small head chooses blocks of keys by the highest score in each."""

    def __init__(
        self, s: BlockSelector, d_model: int, d_head: int, epsilon: float, *, causal: bool
    ) -> None:
        super().__init__()
        self.s, self.h, self.width = s, int(s.n_index_head), int(s.d_index)
        self.d_head, self.causal = d_head, causal
        self.qk = Fused(d_model, {"index_q": self.h * self.width, "index_k": self.width})
        self.q_norm, self.k_norm = (Normed(s.norm, self.width, epsilon=epsilon) for _ in "qk")

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        yield from self.qk.named()
        yield from self.q_norm.named("index_q_norm")
        yield from self.k_norm.named("index_k_norm")

    def forward(
        self, x_BTD: Tensor, n_head: int, position: object, flow: Flow
    ) -> tuple[Tensor, Tensor]:
        """Which keys each query reads, B × H × T × S, and nothing with their slope."""
        made = self.qk.split(x_BTD)
        q_BThw = self.q_norm(by_head(made["index_q"], self.h))
        k_BT1w = self.k_norm(made["index_k"])[..., None, :]
        q_BThw, k_BT1w = (turned_first(t, position, self.d_head, flow) for t in (q_BThw, k_BT1w))
        scores_BhTS = q_BThw.transpose(1, 2) @ k_BT1w.transpose(1, 2).mT
        open_BhTS = self.open(scores_BhTS.detach(), flow)
        own = torch.arange(n_head, device=x_BTD.device) * self.h // n_head
        return open_BhTS[:, own], straight(scores_BhTS)[:, own] * self.width**-0.5

    def open(self, scores_BhTS: Tensor, flow: Flow) -> Tensor:
        """The blocks chosen for each query, key by key."""
        size, at = int(self.s.index_block), flow.places.at
        block_BS = (at // size).expand(scores_BhTS.shape[0], -1)
        n = -(-flow.places.length // size)
        if self.causal:
            seen = flow.places.causal()
            scores_BhTS = scores_BhTS.masked_fill(~seen, -torch.inf)
        index = block_BS[:, None, None].expand_as(scores_BhTS)
        empty = scores_BhTS.new_full((*scores_BhTS.shape[:-1], n), -torch.inf)
        found_BhTn = empty.scatter_reduce(-1, index, scores_BhTS, "amax")
        for back in range(int(self.s.n_local_block)):  # those before the query win a place
            near = (block_BS - back).clamp(min=0)[:, None, :, None].expand(-1, self.h, -1, 1)
            found_BhTn = found_BhTn.scatter(-1, near, torch.inf)
        which = found_BhTn.topk(min(int(self.s.index_top_k), n), -1).indices
        kept_BhTn = torch.zeros_like(found_BhTn, dtype=torch.bool).scatter(-1, which, value=True)
        return kept_BhTn.gather(-1, index)
