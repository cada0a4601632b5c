"""What stands beside attention and feed-forward: LAuReL, per-layer embeddings, AltUp, convolutions.

As Gemma 3n has them, and DeBERTa-v2 its convolution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from scantling.lab.flow import Flow
from scantling.lab.parts import Fused, Named, Normed, activation
from scantling.spec import AltUp, Audio, Laurel, PerLayerInput, PerLayerTables, TokenConv

if TYPE_CHECKING:
    from scantling.lab.param import Fill


class LowRank(nn.Module):
    """LAuReL: two matrices through a low rank; its block adds the input once more."""

    def __init__(self, a: Laurel, d_model: int) -> None:
        super().__init__()
        self.left = Fused(d_model, {"left": int(a.rank)})
        self.right = Fused(int(a.rank), {"right": d_model}, role="out")

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        yield from self.left.named()
        yield from self.right.named()

    def forward(self, x_BTD: Tensor, flow: Flow, path: str) -> Tensor:
        """The same shape back."""
        out_BTD: Tensor = self.right(self.left(x_BTD))
        if flow.watch is not None:
            flow.watch(f"{path}.output", out_BTD)
        return out_BTD


class Projected(nn.Module):
    """One matrix on the stream (Zamba)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.projection = Fused(d_model, {"projection": d_model}, role="out")

    def named(self) -> Named:
        """Its weight by its name in ``ops``."""
        yield from self.projection.named()

    def forward(self, x_BTD: Tensor, flow: Flow, path: str) -> Tensor:
        """The same shape back."""
        out_BTD: Tensor = self.projection(x_BTD)
        if flow.watch is not None:
            flow.watch(f"{path}.output", out_BTD)
        return out_BTD


class OwnEmbedding(nn.Module):
    """A layer's own embedding of each token, gated by the stream."""

    def __init__(self, p: PerLayerInput, d_model: int) -> None:
        super().__init__()
        width = int(p.d_per_layer)
        self.gate = Fused(d_model, {"gate": width})
        self.projection = Fused(width, {"projection": d_model}, role="out")
        self.act = activation(p.activation)

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        yield from self.gate.named()
        yield from self.projection.named()

    def forward(self, x_BTD: Tensor, flow: Flow, path: str) -> Tensor:
        """The same shape back."""
        assert flow.own_BTLp is not None, "the grammar refuses it without tables"
        own_BTp = flow.own_BTLp[..., flow.layer, :]
        out_BTD: Tensor = self.projection(self.act(self.gate(x_BTD)) * own_BTp)
        if flow.watch is not None:
            flow.watch(f"{path}.output", out_BTD)
        return out_BTD


class OwnTables(nn.Module):
    """The embeddings of all layers: a table's, and what the token's embedding is projected to."""

    def __init__(self, p: PerLayerTables, n_layer: int, d_model: int, epsilon: float) -> None:
        super().__init__()
        self.n_layer, self.width = n_layer, int(p.d_per_layer)
        self.table = nn.Embedding(int(p.rows), n_layer * self.width)
        self.table.inputs = self.width  # type: ignore[assignment] # the root of which scales it
        self.project = Fused(d_model, {"per_layer_project": n_layer * self.width})
        self.norm = Normed(p.norm, self.width, epsilon=epsilon)

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        yield "per_layer_embedding", self.table.weight
        yield from self.project.named()
        yield from self.norm.named("per_layer_norm")

    def forward(self, tokens_BT: Tensor, embedded_BTD: Tensor) -> Tensor:
        """B × T × L × p; tokens beyond the table read its first row."""
        known = tokens_BT < self.table.num_embeddings
        looked = self.table(torch.where(known, tokens_BT, 0)) * self.width**0.5
        made = self.project(embedded_BTD) * embedded_BTD.shape[-1] ** -0.5
        looked, made = (t.unflatten(-1, (self.n_layer, self.width)) for t in (looked, made))
        sums: Tensor = (looked + self.norm(made)) * 2**-0.5
        return sums


class Alternate(nn.Module):
    """AltUp of one layer: streams predicted from one another, corrected by what a layer changed."""

    def __init__(self, a: AltUp, d_model: int, epsilon: float) -> None:
        super().__init__()
        n = self.n = int(a.n_stream)
        self.norm = Normed(a.norm, d_model, epsilon=epsilon)
        self.router = Fused(d_model, {"stream_router": n}, role="router")
        self.coefficients = Fused(n, {"coefficients": n * n}, role="zero")
        self.factors = Fused(n, {"factors": n}, role="zero")
        self.scale_D = nn.Parameter(torch.ones(d_model))

    def named(self, path: str) -> Named:
        """Its weights by their names in ``ops``, under a layer's path."""
        before = (self.norm.named("router_norm"), self.router.named(), self.coefficients.named())
        for part in before:
            for name, tensor in part:
                yield f"{path}altup_predict.{name}", tensor
        for name, tensor in self.factors.named():
            yield f"{path}altup_correct.{name}", tensor
        yield f"{path}altup_correct.output_scale", self.scale_D

    def routed(self, x_BTD: Tensor) -> Tensor:
        """How much of each stream's way a token takes, n numbers from −1 to 1."""
        routed: Tensor = self.router(self.norm(x_BTD) / x_BTD.shape[-1]).tanh()
        return routed

    def predict(self, x_BTnD: Tensor) -> Tensor:
        """All streams, each with a mix of all added."""
        mix_BTnn = self.coefficients(self.routed(x_BTnD[..., 0, :])).unflatten(-1, (self.n, -1))
        added_BTnD: Tensor = (x_BTnD.mT @ mix_BTnn.mT).mT
        return x_BTnD + added_BTnD

    def correct(self, predicted_BTnD: Tensor, made_BTD: Tensor) -> Tensor:
        """All streams, each with its factor of what the layer changed in the first."""
        factor_BTn: Tensor = self.factors(self.routed(made_BTD)) + 1.0
        change_BTD = made_BTD - predicted_BTnD[..., 0, :]
        return predicted_BTnD + factor_BTn[..., None] * change_BTD[..., None, :]


class Streams(nn.Module):
    """AltUp of a stack: matrices make the streams and merge them, each of the first one's size."""

    def __init__(self, a: AltUp, d_model: int) -> None:
        super().__init__()
        more = int(a.n_stream) - 1
        self.make, self.merge = (
            nn.ModuleList(Fused(d_model, {name: d_model}) for _ in range(more))
            for name in ("altup_make", "altup_merge")
        )

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        for one in (*self.make, *self.merge):
            yield from cast("Fused", one).named()

    @staticmethod
    def sized(x_BTD: Tensor, like_BTD: Tensor) -> Tensor:
        """Of the root mean square of another."""
        target = like_BTD.square().mean(-1, keepdim=True).sqrt()
        return x_BTD * target / x_BTD.square().mean(-1, keepdim=True).clamp(min=1e-5).sqrt()

    def made(self, x_BTD: Tensor) -> Tensor:
        """The streams."""
        more = [self.sized(one(x_BTD), x_BTD) for one in self.make]
        return torch.stack([x_BTD, *more], -2)

    def merged(self, x_BTnD: Tensor) -> Tensor:
        """Their mean, when each is brought back."""
        first, *others = x_BTnD.unbind(-2)
        back = [self.sized(one(x), first) for one, x in zip(self.merge, others, strict=True)]
        return torch.stack([first, *back]).mean(0)


class Neighbours(nn.Module):
    """A convolution over neighbouring tokens and all channels, of the stream as a layer got it.

    Where attention sees the past only, so does it.
    """

    def __init__(self, c: TokenConv, d_model: int, *, causal: bool) -> None:
        super().__init__()
        self.act, wide = activation(c.activation), int(c.d_conv) - 1
        self.padding = (wide, 0) if causal else (wide // 2, wide - wide // 2)
        self.near_cDD = nn.Parameter(torch.empty(int(c.d_conv), d_model, d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def start(self, fill: Fill) -> None:
        """As the product it is."""
        fill(self.near_cDD, self.near_cDD[:, 0].numel(), "out")

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        yield from (("conv", self.near_cDD.permute(1, 2, 0)), ("conv_bias", self.bias))

    def forward(self, x_BTD: Tensor, flow: Flow, path: str) -> Tensor:
        """The same shape back."""
        entered_BTD = x_BTD if flow.entered_BTD is None else flow.entered_BTD
        made_BDT = functional.conv1d(
            functional.pad(entered_BTD.mT, self.padding), self.near_cDD.permute(1, 2, 0), self.bias
        )
        out_BTD: Tensor = self.act(made_BDT.mT)
        if flow.watch is not None:
            flow.watch(f"{path}.output", out_BTD)
        return out_BTD


class Stem(nn.Module):
    """Whisper's: two convolutions from mel bands to the stream; the second halves the frames."""

    def __init__(self, a: Audio, d_model: int) -> None:
        super().__init__()
        wide = int(a.d_conv) - 1
        self.padding, self.n_mel = (wide // 2, wide - wide // 2), int(a.n_mel)
        self.weights = nn.ParameterList(
            torch.empty(d_model, n, int(a.d_conv)) for n in (self.n_mel, d_model)
        )
        self.biases = nn.ParameterList(torch.zeros(d_model) for _ in range(2))

    def start(self, fill: Fill) -> None:
        """As the products they are."""
        for weight in self.weights:
            fill(weight, weight[0].numel())

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True), 1):
            yield f"conv{i}", weight
            yield f"conv{i}_bias", bias

    def forward(self, frames_BFm: Tensor) -> Tensor:
        """Tokens from twice as many frames, B × S × D."""
        x_BDF = frames_BFm.mT
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True), 1):
            padded = functional.pad(x_BDF, self.padding)
            x_BDF = functional.gelu(functional.conv1d(padded, weight, bias, stride=i))
        return x_BDF.mT
