"""What the laws may know of a model, measured from its spec."""

from __future__ import annotations

from typing import Any

from scantling.arith import Num
from scantling.costs.axes import design_axes, expert_axes, unfolded
from scantling.costs.count import (
    Parameters,
    attention_parameters,
    mlp_parameters,
    parameters,
)
from scantling.laws import Features
from scantling.spec import Dense, GroupedAttention, LatentAttention, Spec, attention


def features(
    spec: Spec, tokens: Num, counted: Parameters | None = None, context: Num | None = None,
    unique_tokens: Num | None = None,
) -> Features:  # fmt: skip
    """Plain features of a spec or a column spec.

    The size of a model is what one token passes: of experts the active ones, of weights that
    layers share each use. Heads are those of the layer kind that occurs last; latent attention has
    no KV heads to group, and a mixer with no softmax attention has none of these features.
    How a decoder is built is measured by ``axes``.

    Args:
        spec: The model, or a column of models.
        tokens: Training tokens.
        counted: Its parameters, where they are known already.
        context: Tokens of a training sequence; without it windows have no price.
        unique_tokens: Unique tokens among the training tokens, where they repeat.

    Example:
        >>> from scantling import catalog
        >>> f = features(catalog.model("llama-3.1-8b"), 15e12)
        >>> f.body, f.aspect, f.kv_group
        (6979588096, 128.0, 4.0)
        >>> f = features(catalog.model("mixtral-8x7b"), 2e12)
        >>> f.body, f.all_body, f.n_experts, f.granularity
        (12617781248, 46440648704, 8, 2.0)
    """
    p = parameters(spec) if counted is None else counted
    a = attention(spec)
    found: dict[str, Any] = design_axes(spec) | expert_axes(spec, p)
    if isinstance(a, GroupedAttention):
        found |= {"d_head": a.d_head, "n_head": a.n_head, "n_kv_head": a.n_kv_head}
    elif isinstance(a, LatentAttention):
        found |= {"d_head": a.d_nope + a.d_rope, "kv_rank": a.kv_rank, "q_rank": a.q_rank}
    if _modules(spec) == {GroupedAttention, Dense}:
        found |= {
            "mlp_parameters": mlp_parameters(p),
            "attention_parameters": attention_parameters(p),
        }
    body = p.active_body
    passed = unfolded(spec)
    if passed is not None:
        found["reuse"], body = passed / body, passed
    return Features(
        body=body, total=p.active, width=spec.d_model, depth=spec.n_layer, tokens=tokens,
        vocab_size=spec.vocab_size, context=context, unique_tokens=unique_tokens, **found,
    )  # fmt: skip


def _modules(spec: Spec) -> set[type]:
    """The types of module a decoder is made of: structure, so the same for a whole column."""
    return {
        type(branch.module)
        for kind in spec.decoder.kinds for block in kind.blocks for branch in block.branches
    }  # fmt: skip
