"""The cells of a table that say a shape, for every kind of model."""

from __future__ import annotations

from scantling.search.candidate import scheduled, turns
from scantling.spec import GroupedAttention, Spec, attention, dimensions, has
from scantling.spec.modules import SharedExpert
from scantling.spec.vary import nodes

STATES = {"n_key_head": "delta", "n_ssm_head": "mamba"}
"""What a mixer with a state is called, by a dimension it alone has."""


def layers_cell(spec: Spec) -> str:
    """Layers, width, and the pattern of kinds where there is one; an encoder's layers first.

    Example:
        >>> from scantling import catalog
        >>> layers_cell(catalog.model("llama-3.1-8b")), layers_cell(catalog.model("gemma-3-12b"))
        ('32 × 4096', '48 × 3840 5:1')
    """
    depth = spec.n_layer if spec.encoder is None else f"{spec.encoder.n_layer}+{spec.n_layer}"
    found = f"{depth} × {spec.d_model}"
    pattern = spec.decoder.layout[-1].pattern
    last = pattern[-1]
    if len(set(pattern)) == 2 and pattern.count(last) == 1:
        found += f" {len(pattern) - 1}:1"
        found += next((f" {word}" for field, word in STATES.items() if has(spec, field)), "")
    return found


def heads_cell(spec: Spec) -> str:
    """Heads as H/K×h; of latent attention, without KV heads, as H×h and the rank it keeps.

    Example:
        >>> from scantling import catalog
        >>> heads_cell(catalog.model("llama-3.1-8b")), heads_cell(catalog.model("deepseek-v3"))
        ('32/8×128', '128×128 r512')
    """
    one, d = attention(spec), dimensions(spec)
    if isinstance(one, GroupedAttention):
        return f"{one.n_head}/{one.n_kv_head}×{one.d_head}"
    if "kv_rank" in d:
        return f"{d['n_head']}×{d['d_nope']} r{d['kv_rank']}"
    return f"{d['n_head']}" if "n_head" in d else ""


def ffn_cell(spec: Spec) -> str:
    """The width of a feed-forward, or experts as E/k×width, with how many are shared.

    Example:
        >>> from scantling import catalog
        >>> [ffn_cell(catalog.model(n)) for n in ("llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3")]
        ['14,336', '128/8×768', '256/8+1×2048']
    """
    d = dimensions(spec)
    if scheduled(spec):
        return " to ".join(f"{n:,}" for n in turns(spec))
    if "n_expert" not in d:
        return f"{d['d_ff']:,}" if "d_ff" in d else ""
    shared = [node for _, node in nodes(spec) if isinstance(node, SharedExpert)]
    more = f"+{float(shared[-1].d_shared / d['d_expert']):g}" if shared else ""
    return f"{d['n_expert']}/{d['top_k']}{more}×{d['d_expert']}"
