"""The space: which shapes there are for a budget, in chunks.

A family (``families``) is one structure with the rows of its enumerated dimensions; every depth
is put to each row, and the feed-forward width is solved. Axes that no objective prices keep to
bounds with a reason (``axes``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from scantling.search.axes import (
    ASPECT,
    HEAD_WIDTHS,
    TIE_ABOVE,
    Axis,
    depth_step,
    depths,
    grouped_rows,
    head_limits,
    limit,
    limits,
    said,
    split,
    unpriced,
)
from scantling.search.budget import Budget
from scantling.search.families import PART_NAMES, Family, families
from scantling.spec import Spec, vary

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CHUNK = 65_536
"""Shapes at once: the arrays of a chunk stay in cache."""
ORDER = (
    "n_layer", "n_encoder_layer", "d_model", "d_head", "n_head", "n_kv_head", "kv_rank", "q_rank",
    "d_nope", "d_rope", "d_value", "n_key_head", "n_value_head", "d_inner", "n_ssm_head",
    "n_expert", "top_k", "d_expert", "d_shared", "d_ff",
    *(f"{name}__{field}" for name in PART_NAMES for field in ("n_layer", "d_ff")),
)  # fmt: skip
"""Columns of a table of shapes; those that no family has are left out."""


class Part(Struct, frozen=True):
    """Some shapes of one family: places in its rows, and depths."""

    index: int
    row: NDArray[np.int64]
    depth: NDArray[np.int64]


class Space(Struct, frozen=True):
    """All shapes of one budget."""

    families: tuple[Family, ...]
    depths: NDArray[np.int64]
    """Every depth there may be, in order."""

    @property
    def considered(self) -> int:
        """Shapes before the limits that rows alone decide."""
        return sum(family.considered for family in self.families)

    @property
    def removed(self) -> dict[str, int]:
        """How many shapes each of these limits removed."""
        found = dict[str, int]()
        for family in self.families:
            for name, count in family.removed.items():
                found[name] = found.get(name, 0) + count
        return found

    @property
    def structures(self) -> tuple[Spec, ...]:
        """The template of each family."""
        return tuple(family.spec for family in self.families)

    @property
    def size(self) -> int:
        """Shapes in the space, all structures together."""
        return sum(int(family.counts.sum()) for family in self.families)

    @property
    def columns(self) -> tuple[str, ...]:
        """What a row of numbers of this space says: a structure, its dimensions, the total."""
        known = {name for family in self.families for name in family.columns}
        return ("structure", *(name for name in ORDER if name in known), "total")

    def spec(self, row: Any) -> Spec:
        """The shape that a row of ``columns`` says."""
        named = {name: int(v) for name, v in zip(self.columns, row, strict=True)}
        family = self.families[named["structure"]]
        return vary(family.spec, **{name: named[name] for name in family.columns})

    def parts(self, size: int) -> Iterator[Space]:
        """The space in neighbouring pieces of one family each and of at most so many shapes."""
        import numpy as np

        none = tuple(family.some(0, 0) for family in self.families)
        for index, family in enumerate(self.families):
            ends = np.cumsum(family.counts)
            total = int(ends[-1]) if len(ends) else 0
            for start in range(0, total, size):
                stop = min(start + size, total)
                low, high = (int(n) for n in np.searchsorted(ends, [start, stop - 1], side="right"))
                skipped = start - int(ends[low] - family.counts[low])
                piece = family.some(low, high + 1, skipped, int(ends[high]) - stop)
                yield Space((*none[:index], piece, *none[index + 1 :]), self.depths)

    def chunks(self, size: int = CHUNK) -> Iterator[Part]:
        """All shapes, at most ``size`` at once; their order does not depend on that."""
        import numpy as np

        for index, family in enumerate(self.families):
            ends = np.cumsum(family.counts)
            starts = ends - family.counts
            total = int(ends[-1]) if len(ends) else 0
            for start in range(0, total, size):
                stop = min(start + size, total)
                first, last = np.searchsorted(ends, [start, stop - 1], side="right")
                held = np.minimum(ends[first : last + 1], stop) - np.maximum(
                    starts[first : last + 1], start
                )
                row = np.repeat(np.arange(first, last + 1), held)
                nth = np.arange(start, stop) - starts[row]
                yield Part(index, row, self.depths[family.first[row] + nth])


def space(b: Budget) -> Space:
    """The space of a budget.

    Width: multiples of the alignment. Depth: every integer, or every even one from a billion
    parameters up, with D/L in its bound. Query heads: every number with H h/D in its bound that
    splits over the GPUs of a node. KV heads: K = H/g for every whole group g. Experts: numbers
    that released models have, with k/E in its bound.
    """
    return Space(tuple(families(b)), depths(b))


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
    rows = grouped_rows(base, d_model)
    masks = head_limits(base, rows[:, 2], rows[:, 3])
    rows = rows[np.logical_and.reduce(list(masks.values()))]
    return [
        {"d_model": int(d), "d_head": int(h), "n_head": int(heads), "n_kv_head": int(kv),
         "attention_width_ratio": round(int(heads) * int(h) / int(d), 4)}
        for d, h, heads, kv in rows
    ]  # fmt: skip


__all__ = [
    "ASPECT", "CHUNK", "HEAD_WIDTHS", "TIE_ABOVE", "Axis", "Part", "Space", "depth_step", "limit",
    "limits", "list_legal", "said", "space", "split", "unpriced",
]  # fmt: skip
