"""What the laws may know of a model, measured from its spec."""

from __future__ import annotations

from typing import Any

from scantling.arith import Num
from scantling.costs.count import (
    Parameters,
    attention_parameters,
    mlp_parameters,
    parameters,
)
from scantling.laws import Features
from scantling.spec import Dense, GroupedAttention, LatentAttention, Spec, attention


def features(spec: Spec, tokens: Num, counted: Parameters | None = None) -> Features:
    """Plain features of a spec or a column spec.

    The size of a model with experts is its active body: what one token passes. Heads are those of
    the layer kind that occurs last; latent attention has no KV heads to group, and a mixer with
    no softmax attention has none of these features.

    Args:
        spec: The model, or a column of models.
        tokens: Training tokens.
        counted: Its parameters, where they are known already.

    Example:
        >>> from scantling import catalog
        >>> f = features(catalog.model("llama-3.1-8b"), 15e12)
        >>> f.body, f.aspect, f.kv_group
        (6979588096, 128.0, 4.0)
    """
    p = parameters(spec) if counted is None else counted
    a = attention(spec)
    heads: dict[str, Any] = {}
    if isinstance(a, GroupedAttention):
        heads = {"d_head": a.d_head, "n_head": a.n_head, "n_kv_head": a.n_kv_head}
    elif isinstance(a, LatentAttention):
        heads = {"d_head": a.d_nope + a.d_rope}
    ratio: dict[str, Any] = {}
    if _modules(spec) == {GroupedAttention, Dense}:
        ratio = {
            "mlp_parameters": mlp_parameters(p),
            "attention_parameters": attention_parameters(p),
        }
    return Features(
        body=p.active_body, total=p.active, width=spec.d_model, depth=spec.n_layer,
        tokens=tokens, **heads, **ratio,
    )  # fmt: skip


def _modules(spec: Spec) -> set[type]:
    """The types of module a decoder is made of: structure, so the same for a whole column."""
    return {
        type(branch.module)
        for kind in spec.decoder.kinds for block in kind.blocks for branch in block.branches
    }  # fmt: skip
