"""Kinds of shapes, the dimensions each is searched over, and what a front may weigh."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scantling.errors import FieldError

if TYPE_CHECKING:
    from scantling.search.budget import Budget

AXES = ("n_layer", "d_model", "d_head", "n_head", "n_kv_head", "d_ff", "vocab_size")
"""The dimensions a dense shape is searched over; d_ff is solved, not enumerated."""
EXPERT_AXES = ("n_expert", "top_k", "d_expert", "n_shared", "d_shared", "n_dense")
"""Dimensions of a mixture of experts besides; d_expert is solved. Shared experts and dense first
layers are numbers."""
LATENT_AXES = ("n_layer", "d_model", "n_head", "d_ff", "vocab_size", "kv_rank", "q_rank", "d_nope",
               "d_rope", "d_value")  # fmt: skip
"""Dimensions where attention is latent."""

RATIOS = ("kv_group", "attention_width_ratio", "mlp_attention_ratio", "ffn_width_ratio", "aspect")
"""Bounded quantities that are no dimension: H/K, H h/D, MLP/attention, F/D, D/L."""
EXPERT_RATIOS = ("active_share", "expert_width_ratio", "active_width_ratio")
"""k/E, the width of an expert over D, and all feed-forward width a token passes over D."""

MIXERS = ("gqa", "mla", "hybrid")
WINDOW = 1024
"""Window of local layers where none is given: Gemma 3's, and no less than the eighth of a training
sequence that losses were measured down to."""


def axes_of(b: Budget) -> tuple[str, ...]:
    """The dimensions shapes of this kind are searched over.

    Example:
        >>> from scantling.search.budget import Budget
        >>> "n_expert" in axes_of(Budget(params=1, tokens=1, moe=True))
        True
    """
    found = LATENT_AXES if b.mixer == "mla" else AXES
    return (*found, *EXPERT_AXES) if b.moe else found


def ratio_of(layout: str) -> int:
    """Local layers to a global one.

    Raises:
        FieldError: If it says neither ``full`` nor such a ratio.

    Example:
        >>> ratio_of("5:1")
        5
    """
    local, sign, one = layout.partition(":")
    if layout == "full":
        return 0
    if not sign or one != "1" or not local.isdecimal() or not 1 <= int(local) <= 31:
        raise FieldError("layout", layout, "is no layout", "use full, or local:global as in 5:1")
    return int(local)


OBJECTIVES = ("loss", "training_days", "kv_bytes_per_token", "decode_s")
"""What every front weighs, all smaller is better."""

EQUAL = ("tokens", "flops", "wall-clock")
"""What two shapes may be given alike."""

WEIGHED = (*OBJECTIVES, "ttft_s", "memory_bytes", "kv_bytes", "cost_per_million",
            "tile_waste")  # fmt: skip
"""What a user may weigh beside."""
