"""Kinds of shapes, the dimensions each is searched over, and what a front may weigh."""

from __future__ import annotations

import math
from fractions import Fraction
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

KINDS = ("decoder", "encoder-decoder")
ENCODER_AXES = (*AXES, "encoder_ratio")
"""Dimensions beside an encoder; the ratio is its layers to one of the decoder."""
EVEN = (1,)
"""As many layers on both sides, as T5 has; nothing prices another split, so it is asked for."""
ENCODER_RATIOS = (1, 2, 3, 6, 12)
"""From there to the deepest encoder that was published (kasai2020)."""

HYBRIDS = ("gated-delta", "mamba2")
"""Mixers with a state beside attention; ``hybrid`` is both, and each is a structure."""
MIXERS = ("gqa", "mla", "hybrid", *HYBRIDS)
WINDOW = 1024
"""Window of local layers where none is given: Gemma 3's, and no less than the eighth of a training
sequence that losses were measured down to."""


def hybrids(b: Budget) -> tuple[str, ...]:
    """The mixers with a state that a budget asks for."""
    return HYBRIDS if b.mixer == "hybrid" else tuple(m for m in HYBRIDS if m == b.mixer)


def axes_of(b: Budget) -> tuple[str, ...]:
    """The dimensions shapes of this kind are searched over.

    Example:
        >>> from scantling.search.budget import Budget
        >>> "n_expert" in axes_of(Budget(params=1, tokens=1, moe=True))
        True
    """
    if b.kind != "decoder":
        return ENCODER_AXES
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


PARTS = 4
"""Runs of layers of a schedule, equally many layers each."""


def schedule_of(text: str) -> tuple[int, ...]:
    """Widths of each run of layers, first to last, in whole multiples of one unit.

    ``linear-ffn:a-b`` goes from a to b of the mean in equal steps, a + (b − a) j/3 for run j of
    four; ``linear-ffn:a-m-b`` from a to m at half the depth and on to b, so 1.5-0.5-1.5 has wide
    ends and a narrow middle. Times the least common denominator those are whole.

    Raises:
        FieldError: If it says no such thing.

    Example:
        >>> schedule_of("linear-ffn:0.5-1.5"), schedule_of("linear-ffn:1.25-0.5")
        ((3, 5, 7, 9), (5, 4, 3, 2))
        >>> schedule_of("linear-ffn:1.5-0.5-1.5")
        (9, 5, 5, 9)
    """
    name, _, ends = text.partition(":")
    points = ends.split("-")
    hint = "write linear-ffn:0.5-1.5, first to last layers in shares of the mean, or 1.5-0.5-1.5"
    if name != "linear-ffn" or len(points) not in {2, 3}:
        raise FieldError("schedule", text, "is no schedule", hint)
    try:
        first, *between, last = (Fraction(end) for end in points)
    except (ValueError, ZeroDivisionError):
        raise FieldError("schedule", text, "has an end that is no number", hint) from None
    if not all(Fraction(1, 10) <= end <= 10 for end in (first, *between, last)):
        raise FieldError("schedule", text, "has an end outside 0.1 to 10", hint)
    middle = between[0] if between else (first + last) / 2
    places = [Fraction(2 * j, PARTS - 1) for j in range(PARTS)]  # 1 is half the depth
    shares = [first + (middle - first) * x if x < 1 else middle + (last - middle) * (x - 1)
              for x in places]  # fmt: skip
    unit = math.lcm(*(share.denominator for share in shares))
    whole = [int(share * unit) for share in shares]
    common = math.gcd(*whole)
    if max(whole) // common > MOST_UNITS:
        raise FieldError("schedule", text, "has steps too fine to be whole multiples of 64", hint)
    return tuple(n // common for n in whole)


MOST_UNITS = 24
"""More units than this in one width and no size is met within half a per cent."""

OBJECTIVES = ("loss", "training_days", "kv_bytes_per_token", "decode_s")
"""What every front weighs, all smaller is better."""

EQUAL = ("tokens", "flops", "wall-clock")
"""What two shapes may be given alike."""

WEIGHED = (*OBJECTIVES, "ttft_s", "memory_bytes", "kv_bytes", "cost_per_million",
            "tile_waste")  # fmt: skip
"""What a user may weigh beside."""
