"""DeepSeek-V4's attention in the lab's model: a window, and entries that stand for many tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from scantling.lab.attention import attend
from scantling.lab.flow import Flow, Places, turned
from scantling.lab.numerics import Numerics
from scantling.lab.parts import Fused, Named, Normed, by_block, by_head
from scantling.lab.selected import best, straight
from scantling.spec import CompressedAttention, Norm, Rope, Window

if TYPE_CHECKING:
    from scantling.lab.param import Fill


def turned_last(
    x_BTnh: Tensor, position: object, width: int, places: Places, *, back: bool = False
) -> Tensor:
    """Rotary positions of heads of a width on the last numbers of these; or the other way."""
    if not isinstance(position, Rope):
        return x_BTnh
    turns = places.turns(position, width)[..., : x_BTnh.shape[-1] // 2, :]
    n = 2 * turns.shape[-2]
    if not n or not x_BTnh.numel():  # no entry is complete
        return x_BTnh
    if back:
        turns = turns * turns.new_tensor([1.0, -1.0])
    kept, last = x_BTnh[..., :-n], x_BTnh[..., -n:].contiguous()
    return torch.cat((kept, turned(last, turns.contiguous())), -1)


class Entries(nn.Module):
    """One vector for every so many tokens: a mean of theirs, weighed number by number.

    With overlap each is made of two stretches: of the one before by the first half of what the
    tokens make, of its own by the second.
    """

    def __init__(
        self, name: str, width: int, a: CompressedAttention, d_model: int, epsilon: float
    ) -> None:
        super().__init__()
        assert a.compress is not None, "only made where tokens are compressed"
        self.name, self.width, self.stride = name, width, int(a.compress)
        self.overlap, self.position, self.d_head = a.overlap, a.position, int(a.d_head)
        each = 2 * width if a.overlap else width
        self.made = Fused(d_model, {f"{name}_value": each, f"{name}_gate": each})
        self.place_cw = nn.Parameter(torch.zeros(self.stride, each))
        self.norm = Normed(a.norm, width, epsilon=epsilon)

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        yield from self.made.named()
        yield f"{self.name}_place", self.place_cw
        yield from self.norm.named(f"{self.name}_norm")

    def forward(self, x_BTD: Tensor, flow: Flow) -> Tensor:
        """The entries that are complete, B × E × width, turned by where they begin."""
        made = self.made(x_BTD)
        n = x_BTD.shape[1] // self.stride
        stretches = made[:, : n * self.stride].unflatten(1, (n, self.stride))
        value_BEcw, gate_BEcw = stretches.chunk(2, -1)
        gate_BEcw = gate_BEcw + self.place_cw
        if self.overlap:
            value_BEcw = self.both(value_BEcw, 0.0)
            gate_BEcw = self.both(gate_BEcw, -torch.inf)
        entry_BEw = self.norm((value_BEcw * gate_BEcw.softmax(2)).sum(2))
        at = flow.places.at[..., : n * self.stride : self.stride]
        places = Places(at, flow.places.length, flow.places.max_context)
        return turned_last(entry_BEw[..., None, :], self.position, self.d_head, places).squeeze(-2)

    def both(self, x_BEcw: Tensor, empty: float) -> Tensor:
        """The first half of the stretch before, then the second half of this one."""
        first, second = x_BEcw.chunk(2, -1)
        shifted = functional.pad(first, (0, 0, 0, 0, 1, 0), value=empty)[:, :-1]
        return torch.cat((shifted, second), 2)


class EntryIndex(nn.Module):
    """Chooses the entries a query reads, by scores with entries of its own."""

    def __init__(self, a: CompressedAttention, d_model: int, epsilon: float) -> None:
        super().__init__()
        i = a.indexer
        assert i is not None, "only made where there is one"
        self.h, self.width, self.top = int(i.n_index_head), int(i.d_index), int(i.index_top_k)
        self.position, self.d_head = a.position, int(a.d_head)
        self.entries = Entries("index", self.width, a, d_model, epsilon)
        self.q = Fused(int(a.q_rank), {"index_q": self.h * self.width})
        self.weight = Fused(d_model, {"index_weight": self.h})

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        for part in (self.entries, self.q, self.weight):
            yield from part.named()

    def forward(
        self, x_BTD: Tensor, q_BTr: Tensor, seen_TE: Tensor, flow: Flow
    ) -> tuple[Tensor, Tensor]:
        """Which entries each query reads, B × T × E, and nothing with their slope."""
        entry_BEh = self.entries(x_BTD, flow)
        q_BTHh = by_head(self.q(q_BTr), self.h)
        q_BTHh = turned_last(q_BTHh, self.position, self.d_head, flow.places)
        scores_BTHE = functional.relu(q_BTHh @ entry_BEh[:, None].mT) * self.width**-0.5
        weight_BTH = self.weight(x_BTD) * self.h**-0.5
        scores_BTE = (scores_BTHE * weight_BTH[..., None]).sum(-2)
        return best(scores_BTE, seen_TE, self.top), straight(scores_BTE)


class Compressed(nn.Module):
    """Narrow queries, one key that is also the value of all heads, a grouped output."""

    attend = staticmethod(attend)

    def __init__(self, a: CompressedAttention, d_model: int, numerics: Numerics) -> None:
        super().__init__()
        self.a, self.h, self.width, epsilon = a, int(a.n_head), int(a.d_head), numerics.epsilon
        self.down = Fused(d_model, {"q_down": int(a.q_rank), "kv": self.width})
        self.q_norm = Normed(a.norm, int(a.q_rank), epsilon=epsilon)
        self.kv_norm = Normed(a.norm, self.width, epsilon=epsilon)
        self.head_norm = Normed(Norm(scale=False), self.width, epsilon=epsilon)
        self.q = Fused(int(a.q_rank), {"q_up": self.h * self.width})
        self.entries = self.index = None
        if a.compress is not None:
            self.entries = Entries("entry", self.width, a, d_model, epsilon)
            if a.indexer is not None:
                self.index = EntryIndex(a, d_model, epsilon)
        self.sinks_H = nn.Parameter(torch.zeros(self.h))
        groups, rank = int(a.n_out_group), int(a.out_rank)
        self.group_gro = nn.Parameter(torch.empty(groups, rank, self.h * self.width // groups))
        self.o = Fused(groups * rank, {"o": d_model}, role="out")
        self.scale = numerics.attention_scale(self.width)

    def start(self, fill: Fill) -> None:
        """Each group's product by its own inputs."""
        fill(self.group_gro, self.group_gro.shape[-1])

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        for part in (self.down, self.q, self.entries, self.index, self.o):
            if part is not None:
                yield from part.named()
        yield from self.q_norm.named("q_norm")
        yield from self.kv_norm.named("kv_norm")
        yield from (("sinks", self.sinks_H), ("o_group", self.group_gro.flatten(0, 1)))

    def beyond(
        self, x_BTD: Tensor, q_BTr: Tensor, flow: Flow
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The entries, B × E × h, which of them each query reads, and the selector's slope."""
        assert self.entries is not None, "only where tokens are compressed"
        entry_BEh = self.entries(x_BTD, flow)
        tokens, n = x_BTD.shape[1], entry_BEh.shape[1]
        complete = (torch.arange(tokens, device=x_BTD.device) + 1) // self.entries.stride
        seen_TE = torch.arange(n, device=x_BTD.device) < complete[:, None]
        if self.index is None:
            return entry_BEh, seen_TE, None
        open_BTE, slope_BTE = self.index(x_BTD, q_BTr, seen_TE, flow)
        return entry_BEh, open_BTE[:, None], slope_BTE[:, None]

    def forward(self, x_BTD: Tensor, flow: Flow, path: str) -> Tensor:
        """The same shape back; what comes out is turned back by where the query stands."""
        a, watch = self.a, flow.watch
        down = self.down.split(x_BTD)
        q_BTr = self.q_norm(down["q_down"])
        q_BTHh = self.head_norm(by_head(self.q(q_BTr), self.h))
        q_BTHh = turned_last(q_BTHh, a.position, self.width, flow.places)
        kv_BT1h = self.kv_norm(down["kv"])[..., None, :]
        kv_BT1h = turned_last(kv_BT1h, a.position, self.width, flow.places)
        kv_B1Sh = kv_BT1h.transpose(1, 2)
        if watch is not None:
            watch(f"{path}.heads", q_BTHh.transpose(1, 2))
        seen = flow.places.seen(Window(a.window), causal=True)
        seen = flow.places.causal() if seen is None else seen
        bias = None
        if self.entries is not None:
            entry_BEh, open_, slope = self.beyond(x_BTD, q_BTr, flow)
            kv_B1Sh = torch.cat((kv_B1Sh, entry_BEh[:, None]), 2)
            lead = max(seen.shape[:-2], open_.shape[:-2], key=len)  # none, or B × 1
            seen = torch.cat([t.expand(*lead, *t.shape[-2:]) for t in (seen, open_)], -1)
            if slope is not None:
                bias = functional.pad(slope, (x_BTD.shape[1], 0))
        out_BHTh = self.attend(
            q_BTHh.transpose(1, 2), kv_B1Sh, kv_B1Sh, seen, scale=self.scale, causal=True,
            kernel=flow.kernel, sinks_H=self.sinks_H, bias=bias,
        )  # fmt: skip
        if watch is not None:
            watch(f"{path}.attention", out_BHTh)
        back = turned_last(out_BHTh.transpose(1, 2), a.position, self.width, flow.places, back=True)
        by_group = by_head(back.flatten(-2), self.group_gro.shape[0])
        grouped = by_block(by_group, self.group_gro.mT).flatten(-2)
        out_BTD: Tensor = self.o(grouped)
        if watch is not None:
            watch(f"{path}.output", out_BTD)
        return out_BTD
