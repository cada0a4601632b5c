"""DeBERTa's positions in the lab's model: scores between contents and a table of distances."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from scantling.lab.flow import Flow
from scantling.lab.parts import Fused, Named, by_head, maybe
from scantling.spec import Disentangled


class Distances(nn.Module):
    """The table of a stack, one row a distance, in both directions; and its norm."""

    def __init__(self, p: Disentangled, width: int, epsilon: float) -> None:
        super().__init__()
        self.table = nn.Embedding(int(p.n_relative), width)
        self.norm = maybe(p.norm, width, epsilon)

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        yield "relative_table", self.table.weight
        if self.norm is not None:
            yield from self.norm.named("relative_table_norm")

    def forward(self) -> Tensor:
        """All rows, normed."""
        every = torch.arange(self.table.num_embeddings, device=self.table.weight.device)
        rows: Tensor = self.table(every)
        return rows if self.norm is None else self.norm(rows)


class Relative(nn.Module):
    """A layer's scores of contents with distances (He et al. 2021, equation 4).

    Args:
        p: What they are.
        n_head: Query heads.
        d_head: Their width.
        d_in: Width of the table.
        table: The table, if this layer has it; one a stack.
    """

    def __init__(
        self, p: Disentangled, n_head: int, d_head: int, d_in: int, table: Distances | None
    ) -> None:
        super().__init__()
        self.p, self.h, self.width, self.table = p, n_head, d_head, table
        outs = n_head * d_head
        both = {"position_key": p.content_to_position, "position_query": p.position_to_content}
        self.own = nn.ModuleDict({
            name: Fused(d_in, {name: outs}, bias=name == "position_query" or p.key_bias)
            for name, wanted in both.items() if wanted and not p.shared
        })  # fmt: skip

    @property
    def terms(self) -> int:
        """Kinds of scores that are summed, that of contents among them."""
        return 1 + self.p.content_to_position + self.p.position_to_content

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        if self.table is not None:
            yield from self.table.named()
        for one in self.own.values():
            yield from one.named()  # type: ignore[operator]

    def rows(self, flow: Flow) -> Tensor:
        """The rows within reach of the context."""
        if self.table is not None:
            flow.once["distances"] = self.table()
        table: Tensor = flow.once["distances"]
        n, keep = len(table), len(table)
        if self.p.trimmed:
            keep = min(n, 2 * flow.places.at.shape[-1])
        first = (n - keep) // 2
        return table[first : first + keep]

    def projected(self, name: str, rows_Rw: Tensor, qkv: Fused) -> Tensor:
        """Rows as keys or queries by head: H × R × h; by the contents' product where shared."""
        if not self.p.shared:
            made_Rw = self.own[name](rows_Rw)
        else:
            stored = dict(qkv.named())
            leaf = "k" if name == "position_key" else "q"
            made_Rw = functional.linear(rows_Rw, stored[leaf], stored.get(f"{leaf}_bias"))
        return by_head(made_Rw, self.h).transpose(0, 1)

    def forward(self, q_BHTh: Tensor, k_BHSh: Tensor, qkv: Fused, flow: Flow) -> Tensor:
        """What distances add to the logits before they are scaled, B × H × T × S."""
        rows = self.rows(flow)
        at_TS = self.bucket(flow, len(rows))
        at_TS = at_TS if at_TS.dim() == 2 else at_TS[:, None]
        total = q_BHTh.new_zeros(*q_BHTh.shape[:-1], k_BHSh.shape[-2])
        for name, wanted, contents in (
            ("position_key", self.p.content_to_position, q_BHTh),
            ("position_query", self.p.position_to_content, k_BHSh),
        ):
            if not (wanted or self.p.shared):
                continue
            made_HRh = self.projected(name, rows, qkv)
            if not wanted:
                continue
            scores_BHnR = contents @ made_HRh.mT
            mine = name == "position_key"
            index = (at_TS if mine else at_TS.mT).expand(*scores_BHnR.shape[:-1], -1)
            picked = scores_BHnR.gather(-1, index)
            total = total + (picked if mine else picked.mT)
        return total

    def bucket(self, flow: Flow, rows: int) -> Tensor:
        """The row of each distance, T × S."""
        places, reach = flow.places, rows // 2
        longest = places.max_context or places.length
        log = not self.p.trimmed and longest > reach

        def make() -> Tensor:
            far = places.distance()
            far = buckets(far, 2 * reach, longest) if log else far
            return (far + reach).clamp(0, rows - 1)

        return places.once(("disentangled", rows, log), make)


def buckets(far: Tensor, rows: int, longest: int) -> Tensor:
    """DeBERTa-v2's bucket of a distance: up to a quarter of the rows exact, then logarithmic.

    Example:
        >>> buckets(torch.tensor([0, 3, -5, 30, -511]), 16, 512).tolist()
        [0, 3, -5, 6, -7]
    """
    exact = max(rows // 4, 1)
    away = far.abs().clamp(min=exact)
    span = math.log(max((longest - 1) / exact, 1 + 1e-6))
    steps = torch.ceil(torch.log(away.float() / exact) / span * (exact - 1)).long() + exact
    return torch.where(far.abs() <= exact, far, steps * far.sign())
