"""Blocks around the residual stream: plain, DeepNorm, handed on, mixture of depths."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from scantling.lab.flow import Flow
from scantling.lab.hyper import Constrained, Hyper
from scantling.lab.numerics import Numerics
from scantling.lab.parts import Fused, Named, maybe
from scantling.spec import (
    Block,
    Branch,
    DeepNorm,
    Experts,
    GroupedAttention,
    Handed,
    HyperConnections,
    Laurel,
    MixtureOfDepths,
    Plain,
)


def streams(x_BTD: Tensor, n: int) -> Tensor:
    """The residual stream as n equal ones, or as one where n is 0: the sum of all.

    So stands a block with hyper-connections beside one without.

    Example:
        >>> x = torch.ones(1, 2, 3)
        >>> streams(streams(x, 4), 0).unique().item(), streams(x, 0) is x
        (4.0, True)
    """
    now = x_BTD.shape[-2] if x_BTD.dim() == 4 else 0
    if now == n:
        return x_BTD
    one_BTD = x_BTD.sum(-2) if now else x_BTD
    return one_BTD[..., None, :].expand(*one_BTD.shape[:-1], n, -1) if n else one_BTD


class Side(nn.Module):
    """One branch: its module, with its own norms; shared whole where a spec shares it."""

    def __init__(self, branch: Branch, module: nn.Module, d_model: int, epsilon: float) -> None:
        super().__init__()
        self.module = module
        self.again = isinstance(branch.module, Laurel)
        """Whether its input is added to its output."""
        self.late = isinstance(branch.module, Experts) and branch.module.delayed
        """Whether its output joins the stream one layer later."""
        self.pre = maybe(branch.pre, d_model, epsilon)
        self.post = maybe(branch.post, d_model, epsilon)

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        yield from self.module.named()  # type: ignore[operator]
        for norm, label in ((self.pre, "own_pre_norm"), (self.post, "own_post_norm")):
            if norm is not None:
                yield from norm.named(label)

    def forward(self, x_BTD: Tensor, flow: Flow, path: str) -> Tensor:
        """What it adds."""
        if self.pre is not None:
            x_BTD = self.pre(x_BTD)
            if flow.watch is not None:
                flow.watch(f"{path}.norm", x_BTD)
        made_BTD: Tensor = self.module(x_BTD, flow, path)
        made_BTD = made_BTD if self.post is None else self.post(made_BTD)
        return made_BTD + x_BTD if self.again else made_BTD


OUTER = ("pre", "post", "after", "hyper", "depth_router")
"""What belongs to a block, not to a branch."""


class Branched(nn.Module):
    """Branches side by side around one residual.

    Args:
        block: What it is.
        names: Of its branches within the layer.
        sides: Its branches, made by the caller: some are shared between layers.
        d_model: Width of the stream.
        numerics: Small numbers.
        place: How many blocks come before it.
    """

    def __init__(
        self, block: Block, names: list[str], sides: list[Side], d_model: int,
        numerics: Numerics, place: int,
    ) -> None:  # fmt: skip
        super().__init__()
        epsilon = numerics.epsilon
        self.block, self.names, self.sides = block, names, nn.ModuleList(sides)
        first = block.branches[0].module
        self.wider = 0
        """What the block reads beside the stream: the embedding (Zamba)."""
        if isinstance(first, GroupedAttention) and first.d_input is not None:
            self.wider = int(first.d_input) - d_model if len(block.branches) == 1 else 0
        self.pre = maybe(block.pre, d_model + self.wider, epsilon)
        self.post = maybe(block.post, d_model, epsilon)
        self.after = maybe(block.after, d_model, epsilon)
        makers = [getattr(side.module, "adapter", None) for side in sides]
        added = [None if make is None else make(d_model) for make in makers]
        self.adapters = nn.ModuleDict({str(i): a for i, a in enumerate(added) if a is not None})
        """What this use of shared weights has of its own, by branch."""
        self.added_to = {int(i): adapter for i, adapter in self.adapters.items()}
        residual, self.hyper, self.depth_router = block.residual, None, None
        self.keep, self.add = 1.0, numerics.residual
        self.hands = isinstance(residual, Handed)
        self.n_stream = int(residual.n_stream) if isinstance(residual, HyperConnections) else 0
        self.root = any(side.again for side in sides)
        """Whether the sum is divided by √2 (LAuReL)."""
        if isinstance(residual, HyperConnections):
            self.hyper = (
                Constrained(residual, d_model, epsilon) if residual.constrained
                else Hyper(residual, d_model, epsilon, place)
            )  # fmt: skip
        elif isinstance(residual, MixtureOfDepths):
            self.depth_router = Fused(d_model, {"depth_router": 1}, role="router")
            self.permille = int(residual.capacity_permille)
        elif isinstance(residual, DeepNorm):
            self.keep = residual.alpha
        elif isinstance(residual, Plain):
            self.add *= residual.scale

    def share(self, other: Branched) -> None:
        """Use the norms and mixes of another block of the same kind."""
        for name in OUTER:
            setattr(self, name, getattr(other, name))

    def outer(self) -> Named:
        """Weights that stand with the first branch, as they belong to the block."""
        for part in (self.depth_router, self.hyper):
            if part is not None:
                yield from part.named()
        for name in ("pre", "post", "after"):
            norm = getattr(self, name)
            if norm is not None:
                yield from norm.named(f"{name}_norm")

    def added(self) -> Iterator[tuple[int, str, Tensor]]:
        """The weights of low-rank additions, by branch."""
        for i, adapter in self.adapters.items():
            parts = adapter.values() if isinstance(adapter, nn.ModuleDict) else [adapter]
            for part in parts:
                yield from ((int(i), name, t) for name, t in part.named())  # type: ignore[operator]

    def made(
        self, x_BTD: Tensor, flow: Flow, path: str, write: Tensor | None = None
    ) -> Tensor | None:
        """What the branches make of the stream now; None if all of it joins it later.

        What joins it later is weighed by how the block writes to each stream.
        """
        flow.stream_BTD = x_BTD
        if self.wider and self.pre is not None:
            assert flow.embedded_BTD is not None, "the decoder says what it embedded"
            x_BTD = torch.cat((x_BTD, flow.embedded_BTD), -1)
        if self.pre is not None:
            x_BTD = self.pre(x_BTD)
            if flow.watch is not None:
                flow.watch(f"{path}.{self.names[0]}.norm", x_BTD)
        total: Tensor | None = None
        for i, (name, side) in enumerate(zip(self.names, self.sides, strict=True)):
            flow.adapter = self.added_to.get(i)
            own_BTD = side(x_BTD, flow, f"{path}.{name}")
            if side.late:
                if self.post is not None and len(self.sides) == 1:
                    own_BTD = self.post(own_BTD)
                later = self.add * own_BTD
                later = later if write is None else write * later[..., None, :]
                flow.late.append((flow.layer + 1, later))
            else:
                total = own_BTD if total is None else total + own_BTD
        flow.adapter = None
        return total if self.post is None or total is None else self.post(total)

    def forward(self, x_BTD: Tensor, flow: Flow, path: str) -> Tensor:
        """The stream after the block; with hyper-connections its n streams, B × T × n × D."""
        x_BTD = streams(x_BTD, self.n_stream)
        if self.hands:
            reads_BTD = x_BTD if flow.handed_BTD is None else flow.handed_BTD
            flow.handed_BTD = self.made(reads_BTD, flow, path)
            return x_BTD if self.after is None else self.after(x_BTD)
        handed_BTD, flow.handed_BTD = flow.handed_BTD, None
        if self.hyper is not None:
            read_BTD, out, write = self.hyper.read(x_BTD)
            read_BTD = read_BTD if handed_BTD is None else read_BTD + handed_BTD
            made_BTD = self.made(read_BTD, flow, path, write)
            if made_BTD is not None:
                out = out + write * (self.add * made_BTD)[..., None, :]
        elif self.depth_router is not None:
            out = self.some(x_BTD, handed_BTD, flow, path)
        else:
            reads_BTD = x_BTD if handed_BTD is None else x_BTD + handed_BTD
            made_BTD = self.made(reads_BTD, flow, path)
            out = x_BTD if self.keep == 1.0 else self.keep * x_BTD
            if made_BTD is not None:
                out = out + (made_BTD if self.add == 1.0 else self.add * made_BTD)
            out = out * 0.5**0.5 if self.root else out
        return out if self.after is None else self.after(out)

    def some(self, x_BTD: Tensor, handed_BTD: Tensor | None, flow: Flow, path: str) -> Tensor:
        """Only the tokens with the highest weights pass, in their order; theirs is weighed.

        Chosen among all tokens of the sequence, as in training (Raposo et al. 2024): so a later
        token can push an earlier one out.
        """
        assert self.depth_router is not None, "only where tokens are chosen"
        weight_BT = self.depth_router(x_BTD).squeeze(-1)
        n = math.ceil(x_BTD.shape[-2] * self.permille / 1000)
        at_Bn = weight_BT.topk(n, -1).indices.sort(-1).values
        index = at_Bn[..., None].expand(-1, -1, x_BTD.shape[-1])
        reads_BTD = x_BTD if handed_BTD is None else x_BTD + handed_BTD
        made_BnD = self.made(reads_BTD.gather(-2, index), flow.chosen(at_Bn), path)
        assert made_BnD is not None, "the grammar refuses what joins the stream later"
        weighed = self.add * made_BnD * weight_BT.gather(-1, at_Bn)[..., None]
        return x_BTD.scatter_add(-2, index, weighed)
