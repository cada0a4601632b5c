"""Feed-forwards of a trained model with less in them: of lower rank, or one for several layers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import cast

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor, nn

from scantling.errors import FieldError
from scantling.lab.anatomy import HeldLayer, HeldSide, known
from scantling.lab.feed import Feed, Routed
from scantling.lab.model import Decoder, Layered
from scantling.lab.stream import OUTER, Branched, Side
from scantling.spec import Dense, Spec


class LowRank(Struct, frozen=True, tag="low_rank"):
    """Each matrix of the feed-forwards is its best approximation of a rank.

    W = U S Vᵀ keeps its largest singular values: of all matrices of the rank the nearest one in
    the sum of squares (Eckart & Young 1936).
    """

    rank: int
    layers: tuple[int, ...] | None = None
    """None is all."""

    @contextlib.contextmanager
    def acts(self, model: Decoder, layers: Sequence[Layered]) -> Iterator[None]:  # noqa: ARG002
        """Other parameters in place of the model's, which nothing writes to."""
        kept: list[tuple[nn.Module, str, nn.Parameter]] = []
        chosen = self._chosen(len(layers))
        feeds = {id(m): m for at in chosen for m in _feeds(layers[at])}
        others = {id(m): at for at in set(range(len(layers))) - set(chosen)
                  for m in _feeds(layers[at])}  # fmt: skip
        for both in feeds.keys() & others.keys():
            raise FieldError("low_rank", self.rank, "would change the feed-forward of layer "
                             f"{others[both]} too, which shares it", "name both")  # fmt: skip
        if not feeds:
            raise FieldError("low_rank", self.rank, "finds no feed-forward in these layers")
        try:
            for module in feeds.values():
                self._approximate(module, kept)
            yield
        finally:
            for owner, name, parameter in kept:
                setattr(owner, name, parameter)

    def _approximate(
        self, module: nn.Module, kept: list[tuple[nn.Module, str, nn.Parameter]]
    ) -> None:
        for owner in list(module.modules()):
            for name, parameter in list(owner.named_parameters(recurse=False)):
                kept.append((owner, name, parameter))
                copied = parameter.detach().clone()
                setattr(owner, name, nn.Parameter(copied, parameter.requires_grad))
        with torch.no_grad():
            for name, weight in cast("Side", module).named():
                if _is_matrix(name):
                    b, a = factors(weight, _rank(self.rank, weight))
                    weight.copy_(b @ a)

    def cut(self, spec: Spec, layers: list[HeldLayer]) -> Spec:
        """Two thin matrices for each."""
        chosen, found = self._chosen(int(spec.n_layer)), False
        for layer in layers:
            for side in layer.sides("ffn") if layer.at in chosen else []:
                f, found = side.branch.module, True
                if not isinstance(f, Dense):
                    raise FieldError("low_rank", self.rank, "cannot be built of routed experts: no "
                                     "spec says so", "apply it only")  # fmt: skip
                if f.ff_rank is not None:
                    raise FieldError("low_rank", self.rank, f"is not needed: the feed-forward of "
                                     f"layer {layer.at} has rank {f.ff_rank}")  # fmt: skip
                side.become(
                    replace(f, ff_rank=self.rank), self._factored(side), ("rank", self.rank)
                )
        if not found:
            raise FieldError("low_rank", self.rank, "finds no feed-forward in these layers")
        return spec

    def _factored(self, side: HeldSide) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, tensor in side.tensors.items():
            if _is_matrix(name):
                rank = _rank(self.rank, tensor)
                found[f"{name}_b"], found[f"{name}_a"] = factors(tensor, rank)
            elif _is_matrix(name.removesuffix("_bias")):
                found[f"{name.removesuffix('_bias')}_b_bias"] = tensor
            else:
                found[name] = tensor
        return found

    def _chosen(self, n_layer: int) -> tuple[int, ...]:
        if self.layers is None:
            return tuple(range(n_layer))
        known("layer", set(self.layers), n_layer, "the model")
        return self.layers


def _feeds(layer: Layered) -> list[nn.Module]:
    modules = [cast("Side", s).module for b in layer.blocks for s in cast("Branched", b).sides]
    return [m for m in modules if isinstance(m, Feed | Routed)]


def factors(weight: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The two matrices, n × rank and rank × k, whose product is nearest to one of n × k.

    Example:
        >>> b, a = factors(torch.tensor([[3.0, 0.0], [0.0, 1.0]]), 1)
        >>> (b @ a).round(decimals=5).abs().tolist()
        [[3.0, 0.0], [0.0, 0.0]]
    """
    u, s, v = torch.linalg.svd(weight.double(), full_matrices=False)
    root = s[..., :rank].sqrt()
    b, a = u[..., :rank] * root[..., None, :], root[..., None] * v[..., :rank, :]
    return b.to(weight.dtype), a.to(weight.dtype)


MATRICES = {
    f"{prefix}{side}" for prefix in ("", "shared_", "experts_") for side in ("gate", "up", "down")
}
"""Names of the matrices of feed-forwards."""


def _is_matrix(name: str) -> bool:
    return name in MATRICES


def _rank(rank: int, weight: Tensor) -> int:
    n, k = weight.shape[-2:]
    if not 1 <= rank <= min(n, k):
        raise FieldError("low_rank", rank, f"must be 1 to {min(n, k)}, the rank of a matrix of "
                         f"{n} × {k}")  # fmt: skip
    return rank


class ShareFfn(Struct, frozen=True, tag="share_ffn"):
    """All layers of a group use the feed-forward of the first of them that is there.

    Where the feed-forward is a block of its own, its norms go with it, as in a spec that shares.
    """

    groups: tuple[tuple[int, ...], ...]

    @staticmethod
    def neighbours(n_layer: int, n: int) -> ShareFfn:
        """Groups of n neighbouring layers.

        Example:
            >>> ShareFfn.neighbours(5, 2).groups
            ((0, 1), (2, 3), (4,))
        """
        return ShareFfn(tuple(
            tuple(range(i, min(i + n, n_layer))) for i in range(0, n_layer, n)
        ))  # fmt: skip

    @contextlib.contextmanager
    def acts(self, model: Decoder, layers: Sequence[Layered]) -> Iterator[None]:
        """The first layer's modules in place of the others'."""
        with contextlib.ExitStack() as stack:
            there = {id(one) for one in model.layers}
            groups = [[at for at in g if id(layers[at]) in there] for g in self.groups]
            for first, *others in filter(None, groups):
                for at in others:
                    pairs = zip(layers[at].blocks, layers[first].blocks, strict=True)
                    for own, led in pairs:
                        stack.enter_context(_led(cast("Branched", own), cast("Branched", led)))
            yield

    def cut(self, spec: Spec, layers: list[HeldLayer]) -> Spec:
        """One set of weights a group."""
        numbers = [at for group in self.groups for at in group]
        known("layer", set(numbers), int(spec.n_layer), "the model")
        if len(numbers) != len(set(numbers)):
            raise FieldError("share_ffn", self.groups, "must name each layer once")
        if not any(len(group) > 1 for group in self.groups):
            raise FieldError(
                "share_ffn", None, "shares nothing", "name two layers or more together"
            )
        by = {one.at: one for one in layers}
        for group in self.groups:
            present = [by[at] for at in group if at in by]
            for one in present[1:]:
                _follow(present[0], one)
        return spec


def _follow(leader: HeldLayer, layer: HeldLayer) -> None:
    pairs = [(b, i) for b in layer.blocks for i, s in enumerate(b.sides) if s.branch.name == "ffn"]
    led = [(b, i) for b in leader.blocks for i, s in enumerate(b.sides) if s.branch.name == "ffn"]
    if not led or len(pairs) != len(led):
        raise FieldError("share_ffn", layer.at, f"has not the feed-forwards of layer {leader.at}")
    for (own, i), (of, j) in zip(pairs, led, strict=True):
        alone = len(own.sides) == 1
        whole = replace(own.block, branches=()) == replace(of.block, branches=())
        alike = own.sides[i].branch == of.sides[j].branch and len(of.sides) == len(own.sides)
        if not alike or (alone and not whole):
            raise FieldError("share_ffn", layer.at, "has a feed-forward of another shape than "
                             f"layer {leader.at}", "share layers of one kind")  # fmt: skip
        own.sides[i].tensors, own.sides[i].key = of.sides[j].tensors, of.sides[j].key
        if alone:
            own.outer = of.outer


@contextlib.contextmanager
def _led(own: Branched, leader: Branched) -> Iterator[None]:
    """A block that uses the feed-forward of another."""
    sides, parts = list(own.sides), {name: getattr(own, name) for name in OUTER}
    try:
        for i, branch in enumerate(own.block.branches):
            if branch.name == "ffn":
                own.sides[i] = leader.sides[i]
                if len(sides) == 1:
                    own.share(leader)
        yield
    finally:
        for i, side in enumerate(sides):
            own.sides[i] = side
        for name, part in parts.items():
            setattr(own, name, part)
