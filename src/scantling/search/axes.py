"""The axes of a shape: what values each may have, and where its bounds come from."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from scantling.arith import ceil_div, round_up
from scantling.laws import bounds, law, vocabulary
from scantling.search.budget import LARGEST_DEPTH, Budget
from scantling.search.kinds import EVEN, PARTS, hybrids
from scantling.search.peers import expert_range, peer_range

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HEAD_WIDTHS = (64, 96, 128, 192, 256)
"""Head widths attention kernels are built for (flashattention2)."""
ASPECT = (8, 320)
"""Width over depth the default law was fitted in."""
TIE_ABOVE = vocabulary.TIE_ABOVE
"""Tie when the table is more than this share of all parameters (notes on tying, press2017)."""
ROUNDING = 1e-9
"""What floating point may miss of a whole number of heads or layers."""
WIDEST = 2**16
"""No wider model is looked at, whatever bound is given."""
LAYER_COST = {False: (8, 12), True: (8, 24)}
"""Least and most parameters a token passes in a layer, in D², dense and with experts: attention is
2 to 6 D² and a gated feed-forward 3 times its width over D."""


class Axis(Struct, frozen=True):
    """One unpriced axis: its bounds, where they come from, and whether the user opened it."""

    name: str
    low: float | None
    high: float | None
    why: str
    opened: bool = False


OPENED_BY = {
    "n_kv_head": "n_kv_head", "kv_group": "n_kv_head", "d_head": "d_head",
    "attention_width_ratio": "n_head", "mlp_attention_ratio": "d_ff", "ffn_width_ratio": "d_ff",
    "aspect": "n_layer", "expert_width_ratio": "d_expert", "active_width_ratio": "d_expert",
    "active_share": "n_expert",
}  # fmt: skip
"""The dimension that opens an axis when the user fixes it."""

BESIDE_ENCODER = {
    "kv_group": (1, 1, "T5's attention keeps a KV head for every query head"),
    "d_head": (64, 64, "heads of 64, as T5 has at every size"),
    "attention_width_ratio": (1, 1, "heads as wide as the stream together, as T5 v1.1"),
    "aspect": (42, 86, "width over the mean depth of both: the middle half of T5, UL2 and BART"),
}  # fmt: skip
"""Bounds of encoder-decoders: attention of T5, and released shapes (t5-configs)."""

OF_EXPERTS = ("expert_width_ratio", "active_width_ratio", "active_share")
"""Ratios that only a mixture of experts has; known models with experts bound them."""


def limits(low: float | None, high: float | None) -> str:
    """The bounds of an axis in words.

    Example:
        >>> limits(4, None), limits(1, 8), limits(8, 8)
        ('4 or more', '1 to 8', '8')
    """
    if low is None or high is None:
        return (
            ""
            if low is None and high is None
            else f"{low:g} or more"
            if high is None
            else (f"at most {high:g}")
        )
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def limit(b: Budget, name: str) -> Axis:
    """The bounds of one axis: the user's, an ablation's, the law's domain, or those of peers."""
    if name in b.bounded:
        low, high = b.bounded[name].low, b.bounded[name].high
        return Axis(name, low, high, said(b, name, "--bound"), opened=True)
    field = OPENED_BY[name]
    if is_given(b, field) or (field in b.bounded and field in {"n_kv_head", "n_layer"}):
        how = said(b, field, "--fix or --bound")
        return Axis(name, None, None, f"opened by {how}", opened=True)
    if b.kind != "decoder" and name in BESIDE_ENCODER:
        return Axis(name, *BESIDE_ENCODER[name])
    if name == "active_share":
        share = passed(b) / b.params
        why = f"what a token passes is {share:.3g} of all; experts are 0.3 to 1 of it: known models"
        return Axis(name, LEAST_ROUTED * share, share, why)
    if b.moe and name in {"expert_width_ratio", "active_width_ratio", "aspect",
                          "attention_width_ratio"}:  # fmt: skip
        # what finer experts are worth beyond a billion is inside its own error, so as peers do
        fine = name == "expert_width_ratio"
        low, high, n = expert_range(b.params, name, tail=0.25 if fine else 0.1)
        part = "the middle half" if fine else "all but a tenth at each end"
        why = f"{part} of {n} models with experts of this size class since 2023"
        return Axis(name, low, high, why)
    if name == "attention_width_ratio" and b.mixer == "mla":
        low, high, n = expert_range(b.params, "latent_width_ratio")
        return Axis(
            name, low, high, f"{n} models with latent attention since 2023, the ends left out"
        )
    if name in bounds():
        one = bounds()[name]
        return Axis(name, one.low, one.high, one.reason)
    priced = "r0" in law(b.law).facts.constants
    if name == "aspect" and priced and not extrapolated(b):
        return Axis(name, *ASPECT, "the range the law was fitted in; inside it the loss prices D/L")
    low, high, n = peer_range(b.params, name, tail=0.25)
    why = f"the middle half of {n} dense models of this size class since 2023; the law "
    why += "is extrapolated more than ×4" if priced else "does not see D/L"
    return Axis(name, low, high, why)


def said(b: Budget, field: str, option: str) -> str:
    """What of the command line set an axis: an option of its own, or the model of ``--from``.

    Example:
        >>> b = Budget(params=10**9, tokens=1, fixed={"d_head": 64}, origin={"d_head": "gpt2"})
        >>> said(b, "d_head", "--fix"), said(b, "n_head", "--fix")
        ('--from gpt2', '--fix n_head')
    """
    return f"--from {b.origin[field]}" if field in b.origin else f"{option} {field}"


def extrapolated(b: Budget) -> bool:
    """Whether a size lies more than four times beyond the largest the law was fitted to."""
    one = law(b.law)
    return b.params > 4 * one.domain[one.counts][1]


def passed(b: Budget) -> int:
    """Parameters that a token passes: all of a dense model's."""
    return b.active or b.params


def is_given(b: Budget, axis: str) -> bool:
    """Whether the user fixed an axis or listed its values."""
    return axis in b.fixed or axis in b.listed


def span(b: Budget, axis: str, low: int, high: int) -> tuple[int, int]:
    """The range of an axis: fixed, listed, bounded by the user, or by default."""
    if axis in b.fixed:
        return b.fixed[axis], b.fixed[axis]
    if axis in b.listed:
        return min(b.listed[axis]), max(b.listed[axis])
    if axis in b.bounded:
        return math.ceil(b.bounded[axis].low), math.floor(b.bounded[axis].high)
    return low, high


def values(b: Budget, axis: str, usual: tuple[int, ...]) -> tuple[int, ...]:
    """The values of an axis: the user's, or the usual ones within the user's bounds.

    Example:
        >>> b = Budget(params=10**9, tokens=1, listed={"top_k": (2, 8)})
        >>> values(b, "top_k", (4, 6, 8)), values(b, "d_head", (64, 128))
        ((2, 8), (64, 128))
    """
    if axis in b.fixed:
        return (b.fixed[axis],)
    if axis in b.listed:
        return tuple(sorted(set(b.listed[axis])))
    low, high = span(b, axis, 0, 2**40)
    return tuple(v for v in usual if low <= v <= high)


def keeps(b: Budget, axis: str, column: Any) -> Any:
    """The mask of values of an axis the user allows."""
    import numpy as np

    if axis in b.listed:
        return np.isin(column, b.listed[axis])
    low, high = span(b, axis, 0, 2**40)
    return (column >= low) & (column <= high)


# ---------------------------------------------------------------- depth and width


def depth_step(b: Budget) -> int:
    """Depths are even from a billion parameters up, so that pipeline stages can be equal.

    Not those of mixtures with latent attention, whose first layers are dense: 27, 47, 61 layers.
    """
    asked = "n_layer" in b.bounded and b.prior is None  # a prior narrows, it opens nothing
    free = not is_given(b, "n_layer") and not asked
    uneven = (b.moe and b.mixer == "mla") or b.kind != "decoder"  # a decoder may have one layer
    step = 2 if free and not uneven and passed(b) >= 10**9 else 1
    return math.lcm(step, b.pp, PARTS if b.schedule is not None else 1)


def depths(b: Budget) -> NDArray[np.int64]:
    """Every depth there may be, in order; D/L bounds them for each width."""
    import numpy as np

    step = depth_step(b)
    every = np.arange(step, LARGEST_DEPTH + 1, step, dtype=np.int64)
    if is_given(b, "n_layer"):
        every = np.array(values(b, "n_layer", ()), dtype=np.int64)
        every = every[every % math.lcm(b.pp, PARTS if b.schedule is not None else 1) == 0]
    kept: NDArray[np.int64] = every[keeps(b, "n_layer", every)]
    return kept


def depths_of(b: Budget, width: Any, encoder: int = 0) -> tuple[Any, Any]:
    """Of the depths there may be, the first and last of each width: D/L keeps its bounds.

    With e layers of an encoder to one of the decoder, L is the mean of both, (1 + e)/2 times the
    decoder's.

    Returns:
        Places in ``depths``; the last lies before the first where there is none.
    """
    import numpy as np

    known, aspect = depths(b), limit(b, "aspect")
    low, high = np.zeros_like(width), np.full_like(width, LARGEST_DEPTH)
    if aspect.low is not None and aspect.high is not None:
        share = 2 / (1 + encoder) if encoder else 1
        low = np.ceil(width / aspect.high * share - ROUNDING)
        high = np.floor(width / aspect.low * share + ROUNDING)
    return np.searchsorted(known, low, "left"), np.searchsorted(known, high, "right") - 1


def widths(b: Budget) -> list[int]:
    """Widths whose layers of about 12 D² parameters, at a D/L in its bounds, meet the budget.

    They are multiples of the alignment, and from 8192 up of the power of two at or below D/32,
    a step of at most 3 %; of D/16 where experts multiply the shapes of grouped heads.

    With c D² parameters a layer that a token passes, N = c L D² and L = D/a give
    D = (N a / c)^(1/3); the body may be a third of the total where embeddings are large, so the
    range starts at a third of N.
    """
    step, size = b.multiple, passed(b)
    least, most = LAYER_COST[b.moe]
    aspect = ASPECT
    if b.moe:
        one = limit(b, "aspect")
        aspect = (one.low or ASPECT[0], one.high or ASPECT[1])  # type: ignore[assignment]
    low = int((size / 3 * aspect[0] / most) ** (1 / 3))
    high = int((size * aspect[1] / least) ** (1 / 3)) + step
    if is_given(b, "d_model"):
        return list(values(b, "d_model", ()))
    low, high = span(b, "d_model", max(step, low // step * step), high)
    every = range(round_up(low, step), min(high, WIDEST) + 1, step)
    part = 16 if b.moe and b.mixer != "mla" else 32
    return [w for w in every if w % max(step, power_of_two_below(w // part)) == 0]


def power_of_two_below(value: int) -> int:
    """The largest power of two not above a number: wide models come in wider steps.

    Example:
        >>> power_of_two_below(128), power_of_two_below(300)
        (128, 256)
    """
    return 1 << max(value, 1).bit_length() - 1


# ---------------------------------------------------------------- heads


def split(b: Budget) -> int:
    """The GPUs heads must split over: the given degree, else a node of 8 from a billion up.

    Heads a user fixed are taken as they are; those that weights could become are not.
    """
    if b.tp > 1:
        return b.tp
    if any(is_given(b, field) and field not in b.origin for field in ("n_head", "n_kv_head")):
        return 1
    return 8 if passed(b) >= 10**9 else 1


def heads_of(b: Budget, width: int, d_head: int) -> NDArray[np.int64]:
    """Every number of query heads of one width and head width, H h/D in its bound."""
    import numpy as np

    ratio = limit(b, "attention_width_ratio")
    low = max(1, math.ceil((ratio.low or 0) * width / d_head - ROUNDING))
    high = 2**40 if ratio.high is None else math.floor(ratio.high * width / d_head + ROUNDING)
    # a bound narrows the axis, only a fixed value opens it
    least, most = span(b, "n_head", 1, 2**40)
    found = np.arange(max(low, least), min(high, most) + 1, dtype=np.int64)
    kept: NDArray[np.int64] = found[keeps(b, "n_head", found)]
    return kept


def grouped_rows(b: Budget, width: int) -> NDArray[np.int64]:
    """All (D, h, H, K) of one width: every H in its bound and every whole group H/K."""
    import numpy as np

    group = limit(b, "kv_group")
    found = [np.empty((0, 4), dtype=np.int64)]
    for h in values(b, "d_head", HEAD_WIDTHS if b.kind == "decoder" else (64,)):
        heads = heads_of(b, width, h)
        largest = int(group.high or heads.max(initial=1))
        for g in range(max(1, math.ceil(group.low or 1)), largest + 1):
            some = heads[heads % g == 0]
            if len(some):
                columns = (np.full_like(some, width), np.full_like(some, h), some, some // g)
                found.append(np.stack(columns, axis=1))
    return np.concatenate(found)


def head_limits(b: Budget, n_head: Any, n_kv_head: Any) -> dict[str, Any]:
    """The limits on heads, each with the mask of rows that keep it.

    A model of fewer than four heads keeps as many KV heads as it has.
    """
    import numpy as np

    over = split(b)
    low, high = span(b, "n_kv_head", int(bounds()["n_kv_head"].low or 1), 2**40)
    asked = is_given(b, "n_kv_head") or "n_kv_head" in b.bounded
    least = low if asked else np.minimum(low, n_head)
    shards = (n_kv_head % over == 0) | (over % n_kv_head == 0)
    kept = f"KV heads from {low}" + ("" if high == 2**40 else f" to {high}")
    found = {
        f"heads split over {over}": (n_head % over == 0) & shards,
        kept: (n_kv_head >= least) & (n_kv_head <= high),
    }
    if "n_kv_head" in b.listed:
        found["KV heads as listed"] = keeps(b, "n_kv_head", n_kv_head)
    return found


# ---------------------------------------------------------------- experts and ranks

EXPERTS = (*range(8, 128, 8), *range(128, 256, 16), *range(256, 513, 32))
"""Numbers of experts: multiples of 8, and of an eighth of the power of two below."""
TOP_K = (4, 6, 8)
"""Experts a token passes; 1 and 2 are of coarse experts, which lose (notes on granularity)."""
LEAST_ROUTED = 0.3
"""Least k/E over active/total: 0.36 in Llama 4 Maverick, 0.43 in Qwen3-Next, 0.9 in Mixtral."""
LATENT_HEAD = 128
"""Head width of latent attention without its rotary half: every released model but two."""


def expert_counts(b: Budget) -> list[tuple[int, int]]:
    """All (E, k): numbers of experts that split over the ranks, k/E within that of peers."""
    share = limit(b, "active_share")
    return [
        (e, k) for e in values(b, "n_expert", EXPERTS) for k in values(b, "top_k", TOP_K)
        if k <= e and e % b.ep == 0
        and (share.low or 0) - ROUNDING <= k / e <= (share.high or 1) + ROUNDING
    ]  # fmt: skip


def latent_rows(b: Budget, width: int) -> list[tuple[int, ...]]:
    """All (D, H, kv_rank, q_rank, d_nope, d_rope, d_value) of one width.

    The latent is 4 h, the one width fused kernels decode, doubled where that would be below D/16,
    where the one table of ranks falls off a cliff; rotary keys are h/2, values as wide as keys,
    and queries pass a rank of D/2, the least that was measured to cost nothing (notes on MLA).
    Ranks are no axis: nothing prices them, and the cache does.
    """
    found: list[tuple[int, ...]] = []
    for h in values(b, "d_nope", (LATENT_HEAD,)):
        rank = 4 * h if 4 * h >= width / 16 else 8 * h
        ranks = values(b, "kv_rank", (rank,)) if "kv_rank" not in b.bounded else values(
            b, "kv_rank", tuple(range(256, 2049, 128)))  # fmt: skip
        queries = values(b, "q_rank", (128 * int(ceil_div(width, 2 * 128)),))
        rotary, value = values(b, "d_rope", (h // 2,)), values(b, "d_value", (h,))
        found += [
            (width, int(heads), kv, q, h, r, v)
            for heads in heads_of(b, width, h)
            for kv in ranks for q in queries for r in rotary for v in value
        ]  # fmt: skip
    return found


def unpriced(b: Budget) -> list[Axis]:
    """The axes no objective prices, with their bounds and reasons."""
    rule = f"tied when the table is more than {TIE_ABOVE:.0%} of the parameters"
    over = split(b)
    heads = "any number of heads: small models run on one GPU"
    if over > 1:
        heads = f"query heads divide over {over} GPUs, KV heads divide or replicate"
    step = depth_step(b)
    return [
        *(limit(b, name) for name in bounded_axes(b)),
        Axis("tied", None, None, "--tied or --untied" if b.tied is not None else
             rule if b.kind == "decoder" else OWN_HEAD,
             opened=b.tied is not None),
        Axis("layout", None, None, _layout_reason(b), opened=b.layout != "full"),
        *([Axis("schedule", None, None, f"{b.schedule} of the mean feed-forward width, in {PARTS} "
                "runs of equally many layers: the loss does not see it", opened=True)]
          if b.schedule is not None else []),
        *_rank_axes(b), *_state_axes(b), *_encoder_axes(b),
        *([Axis("vocab_size", None, None, "as listed, each with the same text: only its size and "
                "its tokens are priced", opened=True)] if "vocab_size" in b.listed else []),
        Axis("heads_split_over", over, over, heads, opened=b.tp > 1),
        Axis("n_layer multiple", step, step, f"pipeline stages: pp {b.pp}" if b.pp > 1 else
             f"{PARTS} runs of equally many layers" if b.schedule is not None else
             "even depths from a billion parameters up" if step > 1 else "every depth"),
    ]  # fmt: skip


def bounded_axes(b: Budget) -> list[str]:
    """The ratios and counts that have bounds in this kind of model."""
    found = ["n_kv_head", "kv_group", "d_head"] if b.mixer != "mla" else []
    found.append("attention_width_ratio")
    if b.moe:
        found += OF_EXPERTS
    else:
        decoder = b.kind == "decoder"
        found += ["mlp_attention_ratio"] if b.mixer == "gqa" and decoder else []
        found.append("ffn_width_ratio")
    priced = "r0" in law(b.law).facts.constants and not b.moe
    if not priced or extrapolated(b) or "aspect" in b.bounded or b.kind != "decoder":
        found.append("aspect")
    return found


def _layout_reason(b: Budget) -> str:
    if b.kind != "decoder":
        return "every layer attends to all of its input, and the decoder's to all of the encoder's"
    if hybrids(b):
        return "attention in one layer of 4 to 8: losses are flat between (kimi linear, mamba-2)"
    if b.layout == "full":
        return "every layer attends to the whole context"
    return f"{b.layout} layers with a window of {b.window:,} to those without: asked for"


OWN_HEAD = "T5 v1.1 has a head of its own"
DEEP_ENCODER = (
    "12 and 1 layers kept the BLEU of 6 and 6 (35.06 and 24.19 to 34.71 and 24.22, WMT17 EN-ZH and "
    "back) at 2.7 to 2.9 times the speed; 6 and 1, merely cut, lost about 1 (27.4 for 28.3)"
)
"""What was published of the depth split, of translation alone (kasai2020)."""


def _encoder_axes(b: Budget) -> list[Axis]:
    if b.kind == "decoder":
        return []
    ratios = values(b, "encoder_ratio", EVEN)
    return [Axis("encoder_ratio", min(ratios, default=None), max(ratios, default=None),
                 f"layers of the encoder to one of the decoder: as many, as T5, unless asked for; "
                 f"{DEEP_ENCODER}", opened=is_given(b, "encoder_ratio")),
            Axis("loss", None, None, "no law was fitted to encoder-decoders: shapes of this size "
                 "count as equal and are ranked by cost", opened=True)]  # fmt: skip


STATES = {
    "gated-delta": "keys as wide as the stream in heads of 128, values twice that: Qwen3-Next",
    "mamba2": "twice the width in heads of 64, a state of 128, groups that split like the heads: "
    "Bamba, Nemotron-H, Granite 4",
}
"""How wide a mixer with a state is, by rule."""


def _state_axes(b: Budget) -> list[Axis]:
    return [Axis(f"{name} state", None, None, STATES[name]) for name in hybrids(b)]


def _rank_axes(b: Budget) -> list[Axis]:
    if b.mixer != "mla":
        return []
    return [
        Axis("kv_rank", None, None, "4 h, which kernels decode; 8 h below D/16",
             opened=is_given(b, "kv_rank") or "kv_rank" in b.bounded),
        Axis("q_rank", None, None, "D/2, the least that was measured to cost nothing",
             opened=is_given(b, "q_rank")),
        Axis("d_nope", None, None, "keys of 128 without rotary positions, as released models have",
             opened=is_given(b, "d_nope")),
        Axis("d_rope", None, None, "half of that for the rotary key all heads share",
             opened=is_given(b, "d_rope")),
        Axis("d_value", None, None, "values as wide as keys", opened=is_given(b, "d_value")),
    ]  # fmt: skip
