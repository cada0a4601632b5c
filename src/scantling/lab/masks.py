"""Heads that give nothing: masked in a model as it is, sliced out of one that is built anew."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from msgspec import Struct
from torch import Tensor, nn

from scantling.errors import FieldError
from scantling.lab.anatomy import HeldBlock, HeldLayer, HeldSide, known
from scantling.lab.attention import Grouped, Latent
from scantling.lab.heads import keep_heads
from scantling.lab.model import Decoder, Layered
from scantling.lab.stream import Branched, Side
from scantling.spec import GroupedAttention, Handed, LatentAttention, Plain, Spec


class MaskHeads(Struct, frozen=True, tag="mask_heads"):
    """Some heads give nothing: what the output projection reads of them is zero."""

    heads: tuple[tuple[int, int], ...]
    """(layer, head) pairs."""
    branch: str = "attention"
    """Or ``cross_attention``."""

    def by_layer(self) -> dict[int, set[int]]:
        """The masked heads of each layer that has some."""
        found: dict[int, set[int]] = {}
        for layer, head in self.heads:
            found.setdefault(layer, set()).add(head)
        return found

    @contextlib.contextmanager
    def acts(self, model: Decoder, layers: Sequence[Layered]) -> Iterator[None]:  # noqa: ARG002
        """Hooks on the output projections."""
        masks: dict[int, Tensor] = {}
        for at, heads in self.by_layer().items():
            a = attention_of(layers, at, self.branch)
            known("head", heads, int(a.h), f"layer {at}")
            mask = torch.ones(int(a.h))
            mask[list(heads)] = 0
            masks[at] = mask
        with masked(layers, masks, self.branch):
            yield

    def cut(self, spec: Spec, layers: list[HeldLayer]) -> Spec:
        """Slice heads out."""
        known("layer", self.by_layer(), int(spec.n_layer), "the model")
        for at, heads in self.by_layer().items():
            for place, layer in enumerate(layers):
                if layer.at == at:
                    later = layers[place + 1 :]
                    before = layers[place - 1].blocks[-1] if place else None
                    self._slice(layer, heads, before, read_later=_read_by(later))
        return spec

    def _slice(
        self, layer: HeldLayer, heads: set[int], before: HeldBlock | None, *, read_later: bool
    ) -> None:
        where = _one_side(layer.sides(self.branch), layer.at, self.branch)
        module = where.branch.module
        if not isinstance(module, GroupedAttention | LatentAttention):
            raise _headless(layer.at)
        n = int(module.n_head)
        known("head", heads, n, f"layer {layer.at}")
        kept = [i for i in range(n) if i not in heads]
        if kept:
            keep_heads(where, kept, read_later=read_later)
            return
        if not read_later and _removed(layer, where, before):
            return
        keep_heads(where, [0], read_later=read_later)
        where.tensors["o"] = torch.zeros_like(where.tensors["o"])


def merged(masks: Sequence[MaskHeads]) -> list[MaskHeads]:
    """One mask for each branch: all of a layer's heads are sliced at once.

    Example:
        >>> merged([MaskHeads(((0, 1),)), MaskHeads(((0, 2),))])
        [MaskHeads(heads=((0, 1), (0, 2)), branch='attention')]
    """
    branches = dict.fromkeys(one.branch for one in masks)
    return [MaskHeads(tuple(h for m in masks if m.branch == b for h in m.heads), b)
            for b in branches]  # fmt: skip


def _removed(layer: HeldLayer, side: HeldSide, before: HeldBlock | None) -> bool:
    """Take a silent branch out where nothing of it would be left; whether that was possible.

    A block that is handed what the one before makes uses it up, silent or not.
    """
    block = next(b for b in layer.blocks if any(s is side for s in b.sides))
    for one in layer.blocks:
        if one is block:
            break
        before = one
    biased = any(n == "o_bias" or n.endswith("post_norm_bias") for n in side.tensors)
    alone = len(block.sides) == 1
    handed = before is not None and isinstance(before.block.residual, Handed)
    if biased or (alone and (handed or not _passes(block))) or (alone and len(layer.blocks) == 1):
        return False
    if alone:
        layer.blocks.remove(block)
    else:
        block.sides.remove(side)
    return True


def _passes(block: HeldBlock) -> bool:
    """Whether a block whose branches make zeros leaves the stream as it is."""
    plain = isinstance(block.block.residual, Plain) and block.block.after is None
    return plain and "post_norm_bias" not in block.outer


def _read_by(later: Sequence[HeldLayer]) -> bool:
    modules = [s.branch.module for one in later for b in one.blocks for s in b.sides]
    return any(isinstance(m, GroupedAttention) and m.shares_kv for m in modules)


@contextlib.contextmanager
def masked(
    layers: Sequence[Layered], masks: dict[int, Tensor], branch: str = "attention"
) -> Iterator[None]:
    """Multiply what the output projection reads of each head by the masks of its layer.

    Args:
        layers: Of a model.
        masks: For each layer that has one, H numbers; they may require gradients.
        branch: Or ``cross_attention``.
    """
    current: list[int] = [-1]
    handles = []

    def enter(at: int) -> Callable[..., None]:
        def note(*_: Any) -> None:
            current[0] = at

        return note

    def silence(_: nn.Module, given: tuple[Tensor]) -> tuple[Tensor] | None:
        mask = masks.get(current[0])
        if mask is None:
            return None
        x_BTw = given[0]
        mask = mask.to(x_BTw.device, x_BTw.dtype)
        return (x_BTw * mask.repeat_interleave(x_BTw.shape[-1] // len(mask)),)

    try:
        for at, layer in enumerate(layers):
            handles.append(layer.register_forward_pre_hook(enter(at)))
        outs = {id(a.o): a.o for at in masks for a in [attention_of(layers, at, branch)]}
        handles += [o.register_forward_pre_hook(silence) for o in outs.values()]  # shared ones once
        yield
    finally:
        for handle in handles:
            handle.remove()


def attention_of(layers: Sequence[Layered], at: int, branch: str = "attention") -> Grouped | Latent:
    """The one attention of a layer.

    Raises:
        FieldError: If there is no such layer, or not one attention with heads in it.
    """
    known("layer", {at}, len(layers), "the model")
    found = [
        cast("Side", side).module for block in layers[at].blocks
        for name, side in zip(cast("Branched", block).names, cast("Branched", block).sides,
                              strict=True)
        if name.rstrip("0123456789") == branch
    ]  # fmt: skip
    module = _one_side(found, at, branch)
    if not isinstance(module, Grouped | Latent):
        raise _headless(at)
    return module


def _headless(at: int) -> FieldError:
    return FieldError("layer", at, "has attention whose outputs are of groups of heads", "its "
                      "heads cannot be taken one by one")  # fmt: skip


def _one_side(found: Sequence[Any], at: int, branch: str) -> Any:
    if len(found) != 1:
        what = "no" if not found else f"{len(found)} modules of"
        raise FieldError("layer", at, f"has {what} {branch.replace('_', ' ')}")
    return found[0]
