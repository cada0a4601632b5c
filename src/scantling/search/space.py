"""The space: which shapes there are for a budget, as column specs in chunks.

A structure (tied or not) is one column spec; its dimensions are columns. The attention part
(D, h, H, K) is listed once, every depth is put to each of its rows, and the FFN width is solved.
Axes that no objective prices keep to bounds with a reason (``laws.bounds`` and below).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from scantling.arith import round_up
from scantling.laws import bounds, law
from scantling.search.budget import Budget
from scantling.search.peers import peer_range
from scantling.spec import (
    Block,
    Branch,
    Dense,
    GroupedAttention,
    Layer,
    Norm,
    QKNorm,
    Rope,
    Run,
    Spec,
    Stack,
    vary,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HEAD_WIDTHS = (64, 96, 128, 192, 256)
"""Head widths attention kernels are built for (flashattention2)."""
ASPECT = (8, 320)
"""Width over depth the default law was fitted in."""
TIE_ABOVE = 0.15
"""Tie when the table is more than this share of all parameters (notes on tying, press2017)."""
ROUNDING = 1e-9
"""What floating point may miss of a whole number of heads or layers."""
CHUNK = 16_384
"""Rows evaluated at once: arrays of 128 KiB stay in cache."""


class Axis(Struct, frozen=True):
    """One unpriced axis: its bounds, where they come from, and whether the user opened it."""

    name: str
    low: float | None
    high: float | None
    why: str
    opened: bool = False


class Space(Struct, frozen=True):
    """All shapes of one budget: attention rows, depths, structures."""

    structures: tuple[Spec, ...]
    d_model: Any
    d_head: Any
    n_head: Any
    n_kv_head: Any
    shallowest: Any
    deepest: Any
    """First and last depth of each attention row."""
    depth_step: int
    multiple: int
    """Alignment of the FFN width."""
    fixed_width: int | None
    considered: int
    """Shapes before the limits on heads, which need no sweep."""
    removed: dict[str, int]
    """How many shapes each limit on heads removed."""

    @property
    def size(self) -> int:
        """Shapes in the space, all structures together."""
        return int(self._depths().sum()) * len(self.structures)

    def _depths(self) -> Any:
        """Depths of each attention row."""
        return (self.deepest - self.shallowest) // self.depth_step + 1

    def chunks(self, size: int = CHUNK) -> Iterator[tuple[int, Spec]]:
        """Column specs of at most ``size`` shapes, with the index of their structure.

        The order of shapes does not depend on the size of chunks.
        """
        import numpy as np

        counts = self._depths()
        ends = np.cumsum(counts)
        starts = ends - counts
        total = int(ends[-1]) if len(ends) else 0
        for index, structure in enumerate(self.structures):
            for start in range(0, total, size):
                stop = min(start + size, total)
                first, last = np.searchsorted(ends, [start, stop - 1], side="right")
                held = np.minimum(ends[first : last + 1], stop) - np.maximum(
                    starts[first : last + 1], start
                )
                row = np.repeat(np.arange(first, last + 1), held)
                nth = np.arange(start, stop) - starts[row]
                depth = self.shallowest[row] + self.depth_step * nth
                yield index, vary(
                    structure, d_model=self.d_model[row], n_layer=depth,
                    n_head=self.n_head[row], n_kv_head=self.n_kv_head[row],
                    d_head=self.d_head[row],
                )  # fmt: skip


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


def template(*, tied: bool, vocab_size: int, context: int, qk_norm: bool) -> Spec:
    """A dense decoder with grouped attention, gated feed-forward, RMSNorm and rotary position."""
    norm = Norm("rms")
    attention = GroupedAttention(
        n_head=1, n_kv_head=1, d_head=2, position=Rope(500_000.0),
        qk_norm=QKNorm("head") if qk_norm else None,
    )  # fmt: skip
    blocks = (
        Block((Branch(attention),), pre=norm),
        Block((Branch(Dense(1)),), pre=norm),
    )
    stack = Stack((Layer("layer", blocks),), (Run(("layer",), 1),), norm)
    return Spec(d_model=1, vocab_size=vocab_size, decoder=stack, tied=tied, max_context=context)


def space(b: Budget) -> Space:
    """The space of a budget.

    Width: multiples of the alignment. Depth: every integer, or every even one from a billion
    parameters up, with D/L in its bound. Query heads: every number with H h/D in its bound that
    splits over the GPUs of a node. KV heads: K = H/g for every whole group g.
    """
    import numpy as np

    context = max(b.train_context, b.serve_context)
    kinds = (False, True) if b.tied is None else (b.tied,)
    structures = tuple(
        template(tied=t, vocab_size=b.vocab_size, context=context, qk_norm=b.qk_norm) for t in kinds
    )
    none = np.empty((0, 4), dtype=np.int64)
    rows = np.concatenate([none, *(_attention_rows(b, width) for width in _widths(b))])
    step = depth_step(b)
    low, high = _depths(b, rows[:, 0], step)
    shapes = np.maximum((high - low) // step + 1, 0) * len(structures)
    limits = _head_limits(b, rows[:, 2], rows[:, 3])
    removed = {name: int(shapes[~mask].sum()) for name, mask in limits.items()}
    keep = np.logical_and.reduce([*limits.values(), high >= low])
    d_model, d_head, n_head, n_kv_head = (np.ascontiguousarray(rows[keep, i]) for i in range(4))
    return Space(
        structures=structures, d_model=d_model, d_head=d_head, n_head=n_head, n_kv_head=n_kv_head,
        shallowest=low[keep], deepest=high[keep], depth_step=step, multiple=b.multiple * b.tp,
        fixed_width=b.fixed.get("d_ff"), considered=int(shapes.sum()), removed=removed,
    )  # fmt: skip


def depth_step(b: Budget) -> int:
    """Depths are even from a billion parameters up, so that pipeline stages can be equal."""
    asked = "n_layer" in b.bounded and b.prior is None  # a prior narrows, it opens nothing
    free = "n_layer" not in b.fixed and not asked
    return 2 if free and b.params >= 10**9 else 1


def _depths(b: Budget, width: Any, step: int) -> tuple[Any, Any]:
    """First and last depth of each width: D/L in its bounds, or as the user set."""
    import numpy as np

    first, last = _span(b, "n_layer", 1, 2**40)
    aspect = limit(b, "aspect")
    low, high = np.full_like(width, first), np.full_like(width, last)
    if aspect.low is not None and aspect.high is not None:
        low = np.maximum(low, np.ceil(width / aspect.high - ROUNDING).astype(np.int64))
        high = np.minimum(high, np.floor(width / aspect.low + ROUNDING).astype(np.int64))
    return -(-low // step) * step, high // step * step


OPENED_BY = {
    "n_kv_head": "n_kv_head", "kv_group": "n_kv_head", "d_head": "d_head",
    "attention_width_ratio": "n_head", "mlp_attention_ratio": "d_ff", "ffn_width_ratio": "d_ff",
    "aspect": "n_layer",
}  # fmt: skip
"""The dimension that opens an axis when the user fixes it."""


def limit(b: Budget, name: str) -> Axis:
    """The bounds of one axis: the user's, an ablation's, the law's domain, or those of peers."""
    if name in b.bounded:
        return Axis(name, b.bounded[name].low, b.bounded[name].high, f"--bound {name}", opened=True)
    field = OPENED_BY[name]
    if field in b.fixed or (field in b.bounded and field in {"n_kv_head", "n_layer"}):
        return Axis(name, None, None, f"opened by --fix or --bound {field}", opened=True)
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


def extrapolated(b: Budget) -> bool:
    """Whether a size lies more than four times beyond the largest the law was fitted to."""
    one = law(b.law)
    return b.params > 4 * one.domain[one.counts][1]


def _span(b: Budget, axis: str, low: int, high: int) -> tuple[int, int]:
    """The range of an axis: fixed, bounded by the user, or by default."""
    if axis in b.fixed:
        return b.fixed[axis], b.fixed[axis]
    if axis in b.bounded:
        return math.ceil(b.bounded[axis].low), math.floor(b.bounded[axis].high)
    return low, high


WIDEST = 2**16
"""No wider model is looked at, whatever bound is given."""


def _widths(b: Budget) -> list[int]:
    """Widths whose body of about 12 L D² at W/L from 8 to 320 meets the budget.

    They are multiples of the alignment, and from 8192 up of the power of two at or below D/32,
    a step of at most 3 %.

    N = 12 L D² with L = D/a gives D = (N a / 12)^(1/3); the body may be a third of the total
    where embeddings are large, so the range starts at a third of N.
    """
    step = b.multiple
    low = int((b.params / 3 * ASPECT[0] / 12) ** (1 / 3))
    high = int((b.params * ASPECT[1] / 8) ** (1 / 3)) + step
    low, high = _span(b, "d_model", max(step, low // step * step), high)
    if "d_model" in b.fixed:
        return [low]
    widths = range(round_up(low, step), min(high, WIDEST) + 1, step)
    return [w for w in widths if w % max(step, power_of_two_below(w // 32)) == 0]


def power_of_two_below(value: int) -> int:
    """The largest power of two not above a number: wide models come in wider steps.

    Example:
        >>> power_of_two_below(128), power_of_two_below(300)
        (128, 256)
    """
    return 1 << max(value, 1).bit_length() - 1


def split(b: Budget) -> int:
    """The GPUs heads must split over: the given degree, else a node of 8 from a billion up.

    Heads a user fixed are taken as they are.
    """
    if b.tp > 1:
        return b.tp
    if "n_head" in b.fixed or "n_kv_head" in b.fixed:
        return 1
    return 8 if b.params >= 10**9 else 1


def _attention_rows(b: Budget, width: int) -> NDArray[np.int64]:
    """All (D, h, H, K) of one width: every H in its bound and every whole group H/K."""
    import numpy as np

    ratio, group = limit(b, "attention_width_ratio"), limit(b, "kv_group")
    low_head, high_head = _span(b, "d_head", 1, 2**40)
    head_widths = [h for h in HEAD_WIDTHS if low_head <= h <= high_head]
    if "d_head" in b.fixed:
        head_widths = [b.fixed["d_head"]]
    found = [np.empty((0, 4), dtype=np.int64)]
    for h in head_widths:
        low = max(1, math.ceil((ratio.low or 0) * width / h - ROUNDING))
        high = 2**40 if ratio.high is None else math.floor(ratio.high * width / h + ROUNDING)
        # a bound narrows the axis, only a fixed value opens it
        least, most = _span(b, "n_head", 1, 2**40)
        low, high = max(low, least), min(high, most)
        heads = np.arange(low, high + 1, dtype=np.int64)
        largest = int(group.high or heads.max(initial=1))
        for g in range(max(1, math.ceil(group.low or 1)), largest + 1):
            some = heads[heads % g == 0]
            if len(some):
                columns = (np.full_like(some, width), np.full_like(some, h), some, some // g)
                found.append(np.stack(columns, axis=1))
    return np.concatenate(found)


def _head_limits(b: Budget, n_head: Any, n_kv_head: Any) -> dict[str, Any]:
    """The limits on heads, each with the mask of rows that keep it.

    A model of fewer than four heads keeps as many KV heads as it has.
    """
    import numpy as np

    over = split(b)
    low, high = _span(b, "n_kv_head", int(bounds()["n_kv_head"].low or 1), 2**40)
    asked = "n_kv_head" in b.fixed or "n_kv_head" in b.bounded
    least = low if asked else np.minimum(low, n_head)
    shards = (n_kv_head % over == 0) | (over % n_kv_head == 0)
    kept = f"KV heads from {low}" + ("" if high == 2**40 else f" to {high}")
    return {
        f"heads split over {over}": (n_head % over == 0) & shards,
        kept: (n_kv_head >= least) & (n_kv_head <= high),
    }


def unpriced(b: Budget) -> list[Axis]:
    """The axes no objective prices, with their bounds and reasons."""
    rule = f"tied when the table is more than {TIE_ABOVE:.0%} of the parameters"
    over = split(b)
    heads = "any number of heads: small models run on one GPU"
    if over > 1:
        heads = f"query heads divide over {over} GPUs, KV heads divide or replicate"
    found = [limit(b, name) for name in OPENED_BY if name != "aspect"]
    if "r0" not in law(b.law).facts.constants or extrapolated(b) or "aspect" in b.bounded:
        found.append(limit(b, "aspect"))
    step = depth_step(b)
    return [
        *found,
        Axis("tied", None, None, "--tied or --untied" if b.tied is not None else rule,
             opened=b.tied is not None),
        Axis("layout", None, None, "every layer attends to the whole context"),
        Axis("heads_split_over", over, over, heads, opened=b.tp > 1),
        Axis("n_layer multiple", step, step, "even depths from a billion parameters up"
             if step > 1 else "every depth"),
    ]  # fmt: skip


def list_legal(d_model: int, tp: int = 1, b: Budget | None = None) -> list[dict[str, int | float]]:
    """Every legal (D, H, h, K) of one width, for ``design --list-legal``.

    Example:
        >>> rows = list_legal(4096)
        >>> {"d_model": 4096, "d_head": 128, "n_head": 32, "n_kv_head": 8} in [
        ...     {k: r[k] for k in ("d_model", "d_head", "n_head", "n_kv_head")} for r in rows]
        True
    """
    import numpy as np

    base = b or Budget(params=10**9, tokens=1, tp=tp, fixed={"d_model": d_model})
    rows = _attention_rows(base, d_model)
    limits = _head_limits(base, rows[:, 2], rows[:, 3])
    rows = rows[np.logical_and.reduce(list(limits.values()))]
    return [
        {"d_model": int(d), "d_head": int(h), "n_head": int(heads), "n_kv_head": int(kv),
         "attention_width_ratio": round(int(heads) * int(h) / int(d), 4)}
        for d, h, heads, kv in rows
    ]  # fmt: skip
