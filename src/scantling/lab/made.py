"""Each module of a spec as the module of the lab's model that runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from scantling.lab.attention import Grouped, Latent
from scantling.lab.augmented import LowRank, Neighbours, OwnEmbedding, Projected
from scantling.lab.compressed import Compressed
from scantling.lab.feed import Feed, Routed
from scantling.lab.linear import Kimi, Lightning
from scantling.lab.numerics import Numerics
from scantling.lab.recurrent import Delta, StateSpace
from scantling.lab.stepped import Gated, Mixed, Selective, Short, TimeMix
from scantling.spec import (
    ChannelMix,
    CompressedAttention,
    Dense,
    Experts,
    GatedDelta,
    GroupedAttention,
    KimiDelta,
    LatentAttention,
    Laurel,
    LinearAttention,
    Mamba1,
    Mamba2,
    PerLayerInput,
    Projection,
    RgLru,
    Rwkv,
    ShortConv,
    TokenConv,
)

if TYPE_CHECKING:
    from torch import nn

WITH_NUMERICS: dict[type, Callable[[Any, int, Numerics], nn.Module]] = {
    LatentAttention: Latent, CompressedAttention: Compressed, Mamba1: Selective,
    Mamba2: StateSpace, GatedDelta: Delta, KimiDelta: Kimi, Dense: Feed,
}  # fmt: skip
BY_WIDTH: dict[type, Callable[[Any, int], nn.Module]] = {
    Rwkv: TimeMix, RgLru: Gated, ShortConv: Short, ChannelMix: Mixed, Laurel: LowRank,
    PerLayerInput: OwnEmbedding,
}  # fmt: skip


class Parts(Struct, frozen=True):
    """What modules of a stack are made with."""

    d_model: int
    numerics: Numerics
    vocab_size: int
    n_layer: int
    causal: bool
    """Whether no attention of the stack sees later tokens."""

    def module(self, module: Any, layer: int, *, first: bool) -> nn.Module:
        """The module of a branch.

        Args:
            module: What it is.
            layer: The first layer that has it.
            first: Whether no layer before has the stack's table of relative positions.
        """
        kind = type(module)
        if kind in WITH_NUMERICS:
            return WITH_NUMERICS[kind](module, self.d_model, self.numerics)
        if kind in BY_WIDTH:
            return BY_WIDTH[kind](module, self.d_model)
        if isinstance(module, GroupedAttention):
            return Grouped(module, self.d_model, self.numerics, first=first)
        if isinstance(module, Experts):
            return Routed(module, self.d_model, self.numerics, self.vocab_size)
        if isinstance(module, LinearAttention):
            depth = layer / (self.n_layer - 1 + 1e-5)  # as the class divides
            return Lightning(module, self.d_model, self.numerics, depth)
        if isinstance(module, TokenConv):
            return Neighbours(module, self.d_model, causal=self.causal)
        assert isinstance(module, Projection), "the grammar refuses others"
        return Projected(self.d_model)
