"""Blocks around the residual stream: plain, DeepNorm, hyper-connections, mixture of depths."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from scantling.lab.flow import Flow
from scantling.lab.numerics import Numerics
from scantling.lab.parts import Fused, Named, Normed, maybe
from scantling.spec import Block, Branch, DeepNorm, HyperConnections, MixtureOfDepths, Norm, Plain


class Hyper(nn.Module):
    """n residual streams, read, written and mixed by learned weights (Zhu et al. 2024).

    Static: a read weight for each stream, n × n to mix, a write weight each. Dynamic: the same
    from each stream's own content, by tanh of a product of its norm, times a small scale.
    """

    def __init__(self, h: HyperConnections, d_model: int, epsilon: float, place: int) -> None:
        super().__init__()
        n = self.n = int(h.n_stream)
        self.beta_n = nn.Parameter(torch.ones(n))
        read = torch.zeros(n, 1)
        read[place % n] = 1.0  # the paper's start: each block reads one stream, and adds to all
        self.alpha_nm = nn.Parameter(torch.cat((read, torch.eye(n)), 1))
        self.norm = None
        if h.dynamic:
            self.norm = Normed(Norm("rms"), d_model, epsilon=epsilon)
            outs = {"hyper_beta_dynamic": 1, "hyper_alpha_dynamic": n + 1}
            self.dynamic = Fused(d_model, outs, role="zero")
            self.scale_2 = nn.Parameter(torch.full((2,), 0.01))

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        yield from (("hyper_beta", self.beta_n), ("hyper_alpha", self.alpha_nm))
        if self.norm is not None:
            yield from self.norm.named("hyper_norm")
            yield from self.dynamic.named()
            yield "hyper_scale", self.scale_2

    def weights(self, x_BTnD: Tensor) -> tuple[Tensor, Tensor]:
        """Write weights (…, n), and read and mix weights (…, n, n + 1)."""
        if self.norm is None:
            return self.beta_n, self.alpha_nm
        write, read = self.dynamic(self.norm(x_BTnD)).tanh().split([1, self.n + 1], -1)
        beta = self.beta_n + self.scale_2[0] * write.squeeze(-1)
        return beta, self.alpha_nm + self.scale_2[1] * read

    def read(self, x_BTnD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the block reads, the mixed streams, and how it writes to each."""
        beta, alpha = self.weights(x_BTnD)
        # sums of products written out: they are small, and counted as elementwise work
        mixed = (alpha[..., None] * x_BTnD[..., :, None, :]).sum(-3)
        return mixed[..., 0, :], mixed[..., 1:, :], beta[..., None]


class Side(nn.Module):
    """One branch: its module, with its own norms; shared whole where a spec shares it."""

    def __init__(self, branch: Branch, module: nn.Module, d_model: int, epsilon: float) -> None:
        super().__init__()
        self.module = module
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
        return made_BTD if self.post is None else self.post(made_BTD)


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
        self.pre = maybe(block.pre, d_model, epsilon)
        self.post = maybe(block.post, d_model, epsilon)
        self.after = maybe(block.after, d_model, epsilon)
        residual, self.hyper, self.depth_router = block.residual, None, None
        self.keep, self.add = 1.0, numerics.residual
        if isinstance(residual, HyperConnections):
            self.hyper = Hyper(residual, d_model, epsilon, place)
        elif isinstance(residual, MixtureOfDepths):
            self.depth_router = Fused(d_model, {"depth_router": 1}, role="router")
            self.permille = int(residual.capacity_permille)
        elif isinstance(residual, DeepNorm):
            self.keep = residual.alpha
        else:
            assert isinstance(residual, Plain), "the grammar refuses others"
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

    def made(self, x_BTD: Tensor, flow: Flow, path: str) -> Tensor:
        """What the branches make of the stream."""
        if self.pre is not None:
            x_BTD = self.pre(x_BTD)
            if flow.watch is not None:
                flow.watch(f"{path}.{self.names[0]}.norm", x_BTD)
        total: Tensor | None = None
        for name, side in zip(self.names, self.sides, strict=True):
            own_BTD = side(x_BTD, flow, f"{path}.{name}")
            total = own_BTD if total is None else total + own_BTD
        assert total is not None, "a block has a branch"
        return total if self.post is None else self.post(total)

    def forward(self, x_BTD: Tensor, flow: Flow, path: str) -> Tensor:
        """The stream after the block; with hyper-connections its n streams, B × T × n × D."""
        if self.hyper is not None:
            read_BTD, mixed_BTnD, write = self.hyper.read(x_BTD)
            made_BTD = self.made(read_BTD, flow, path)
            out = mixed_BTnD + write * (self.add * made_BTD)[..., None, :]
        elif self.depth_router is not None:
            out = self.some(x_BTD, self.depth_router(x_BTD).squeeze(-1), flow, path)
        else:
            made_BTD = self.made(x_BTD, flow, path)
            made_BTD = made_BTD if self.add == 1.0 else self.add * made_BTD
            out = (x_BTD if self.keep == 1.0 else self.keep * x_BTD) + made_BTD
        return out if self.after is None else self.after(out)

    def some(self, x_BTD: Tensor, weight_BT: Tensor, flow: Flow, path: str) -> Tensor:
        """Only the tokens with the highest weights pass, in their order; theirs is weighed.

        Chosen among all tokens of the sequence, as in training (Raposo et al. 2024): so a later
        token can push an earlier one out.
        """
        n = math.ceil(x_BTD.shape[-2] * self.permille / 1000)
        at_Bn = weight_BT.topk(n, -1).indices.sort(-1).values
        index = at_Bn[..., None].expand(-1, -1, x_BTD.shape[-1])
        made_BnD = self.made(x_BTD.gather(-2, index), flow.chosen(at_Bn), path)
        weighed = self.add * made_BnD * weight_BT.gather(-1, at_Bn)[..., None]
        return x_BTD.scatter_add(-2, index, weighed)
