"""Families of shapes: structures with the rows of dimensions that are enumerated for each.

A structure is one column spec: types, layout, tying and vocabulary. Its rows hold every dimension
but depth, which is put to each row, and the feed-forward width, which the size solves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from scantling.arith import round_up
from scantling.search.axes import (
    TIE_ABOVE,
    expert_counts,
    grouped_rows,
    head_limits,
    is_given,
    keeps,
    latent_rows,
    split,
    values,
    widths,
)
from scantling.search.budget import Budget, ratio_of
from scantling.spec import (
    Block,
    Branch,
    Dense,
    Experts,
    GatedDelta,
    GroupedAttention,
    LatentAttention,
    Layer,
    Norm,
    QKNorm,
    Rope,
    Router,
    Run,
    SharedExpert,
    Spec,
    Stack,
    Window,
    masks,
    vary,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

THETA = 500_000.0
"""Base of rotary positions; no count and no cost depends on it."""
DELTA_HEAD = 128
"""Head width of the gated delta rule, as Qwen3-Next and Qwen3.5 have it."""
HYBRID_RATIOS = (3, 7)
"""State layers to one of attention: 1 in 4 to 1 in 8."""


class Family(Struct, frozen=True):
    """One structure with its rows."""

    spec: Spec
    """The template; its dimensions in ``rows`` and ``solved`` are free."""
    rows: dict[str, NDArray[np.int64]]
    """Enumerated dimensions, equally long columns."""
    solved: dict[str, Any]
    """Dimensions that are the solved width times a number, or times a column of the rows."""
    lead: str
    """The width that is solved, or given in ``rows``: ``d_ff`` or ``d_expert``."""
    limits: dict[str, Any]
    """Limits that rows alone decide, each with the mask of rows that keep it."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The dimensions of a shape of this family."""
        return ("n_layer", *self.rows, *(name for name in self.solved if name not in self.rows))

    def dims(self, row: Any, depth: Any, width: Any) -> dict[str, Any]:
        """Dimensions of shapes: places in the rows, depths, and solved widths."""
        found = {"n_layer": depth} | {name: column[row] for name, column in self.rows.items()}
        for name, times in self.solved.items():
            if name not in found:
                found[name] = width * (times[row] if hasattr(times, "dtype") else times)
        return found

    def take(self, keep: Any) -> Family:
        """The family of some of its rows."""
        import numpy as np

        some = {name: np.ascontiguousarray(column[keep]) for name, column in self.rows.items()}
        times = {
            name: value[keep] if hasattr(value, "dtype") else value
            for name, value in self.solved.items()
        }
        return Family(self.spec, some, times, self.lead, {})


def families(b: Budget) -> Iterator[Family]:
    """Every structure a budget asks for, with all its rows."""
    rows = _mixer_rows(b)
    for vocab_size in values(b, "vocab_size", (b.vocab_size,)):
        for tied in (False, True) if b.tied is None else (b.tied,):
            for kinds, layout, shared in _structures(b):
                context = max(b.train_context, b.serve_context)
                spec = Spec(
                    d_model=1, vocab_size=vocab_size, decoder=Stack(kinds, layout, Norm()),
                    tied=tied, max_context=context,
                )  # fmt: skip
                yield _family(b, spec, rows, shared)


def _family(b: Budget, spec: Spec, rows: dict[str, NDArray[np.int64]], shared: int) -> Family:
    """A structure with its rows: those of its mixer, times those of its experts."""
    import numpy as np

    lead = "d_ff"
    solved: dict[str, Any] = {"d_ff": 1}
    if b.moe:
        lead = "d_expert"
        pairs = np.array(expert_counts(b), dtype=np.int64).reshape(-1, 2)
        n = len(pairs)
        count = len(next(iter(rows.values())))
        rows = {name: np.repeat(column, n) for name, column in rows.items()}
        rows |= {"n_expert": np.tile(pairs[:, 0], count), "top_k": np.tile(pairs[:, 1], count)}
        solved = {"d_expert": 1}
        if shared:
            solved["d_shared"] = shared
        if len(spec.decoder.layout) > 1:  # as wide as all a token passes: DeepSeek-V2, V3
            solved["d_ff"] = rows["top_k"] + shared
    rows = _with_given(b, rows, solved)
    return Family(spec, rows, solved, lead, _limits(b, spec, rows))


def _with_given(
    b: Budget, rows: dict[str, NDArray[np.int64]], solved: dict[str, Any]
) -> dict[str, NDArray[np.int64]]:
    """Rows with the widths a user fixed or listed, in place of solved ones."""
    import numpy as np

    for name in [name for name in solved if is_given(b, name)]:
        some = np.array(values(b, name, ()), dtype=np.int64)
        count = len(next(iter(rows.values())))
        rows = {field: np.repeat(column, len(some)) for field, column in rows.items()}
        rows[name] = np.tile(some, count)
        for field, times in solved.items():
            if hasattr(times, "dtype"):
                solved[field] = np.repeat(times, len(some))
    return rows


def _limits(b: Budget, spec: Spec, rows: dict[str, NDArray[np.int64]]) -> dict[str, Any]:
    """What rows alone decide: heads, relations between fields, tying, ranges asked for."""
    import numpy as np

    found: dict[str, Any] = {}
    if "n_kv_head" in rows:
        found |= head_limits(b, rows["n_head"], rows["n_kv_head"])
    else:
        found[f"heads split over {split(b)}"] = rows["n_head"] % split(b) == 0
    count = len(rows["n_head"])
    for name, mask in masks(vary(spec, **rows)):
        found[name] = np.broadcast_to(mask, count)
    if b.tied is None:
        small = rows["d_model"] * spec.vocab_size <= TIE_ABOVE * b.params
        found["tying rule"] = ~small if spec.tied else small
    for name in {*rows} & {*b.bounded} - {"n_kv_head", "n_head"}:
        found[f"{name} as bounded"] = keeps(b, name, rows[name])
    return found


# ---------------------------------------------------------------- structures


Structure: TypeAlias = tuple[tuple[Layer, ...], tuple[Run, ...], int]
"""Layer kinds, their order, and shared experts."""


def _structures(b: Budget) -> Iterator[Structure]:
    """Layer kinds and layouts of a mixer and a feed-forward."""
    if b.mixer == "hybrid":
        ratios = HYBRID_RATIOS if b.layout == "full" else (ratio_of(b.layout),)
        for n in ratios:
            ffn = _experts(shared=1, gate=True, groups=False) if b.moe else Dense(1)
            kinds = (_layer("gated_delta", _delta(), ffn), _layer("attention", _gated(), ffn))
            yield kinds, (Run(("gated_delta",) * n + ("attention",), 1),), int(b.moe)
        return
    mixer = _latent() if b.mixer == "mla" else _grouped(b)
    if b.layout != "full":
        n = ratio_of(b.layout)
        ffn = _experts(shared=0) if b.moe else Dense(1)
        local = _grouped(b, Window(b.window or 1))
        kinds = (_layer("local", local, ffn), _layer("global", mixer, ffn))
        yield kinds, (Run(("local",) * n + ("global",), 1),), 0
    elif not b.moe:
        yield (_layer("layer", mixer, Dense(1)),), (Run(("layer",), 1),), 0
    else:
        yield from _sparse(b, mixer)


def _sparse(b: Budget, mixer: Any) -> Iterator[Structure]:
    """Experts in every layer without a shared one, and behind dense layers with one.

    These are the two structures runtimes know: Mixtral and Qwen3, DeepSeek and GLM-4.5.
    """
    for shared in values(b, "n_shared", (1,) if b.mixer == "mla" else (0, 1)):
        ffn = _experts(shared, groups=shared > 0)
        for dense in values(b, "n_dense", (min(shared, 1),)):
            if dense:
                kinds = (_layer("dense", mixer, Dense(1)), _layer("moe", mixer, ffn))
                yield kinds, (Run(("dense",), dense), Run(("moe",), 1)), shared
            else:
                yield (_layer("layer", mixer, ffn),), (Run(("layer",), 1),), shared


def _layer(name: str, mixer: Any, ffn: Any) -> Layer:
    norm = Norm()
    return Layer(name, (Block((Branch(mixer),), pre=norm), Block((Branch(ffn),), pre=norm)))


def _grouped(b: Budget, span: Any = None) -> GroupedAttention:
    qk_norm = QKNorm("head") if b.qk_norm else None
    found = GroupedAttention(1, 1, 2, position=Rope(THETA), qk_norm=qk_norm)
    if span is None:
        return found
    return GroupedAttention(1, 1, 2, position=Rope(THETA), qk_norm=qk_norm, span=span)


def _gated() -> GroupedAttention:
    """Attention of a hybrid: normed queries and keys, an output gate, a quarter turned."""
    position = Rope(THETA, fraction=0.25)
    return GroupedAttention(1, 1, 4, position=position, qk_norm=QKNorm("head"), gate="element")


def _delta() -> GatedDelta:
    return GatedDelta(1, 1, d_key=DELTA_HEAD, d_state_value=DELTA_HEAD, d_conv=4)


def _latent() -> LatentAttention:
    return LatentAttention(
        n_head=1, kv_rank=1, d_nope=1, d_rope=2, d_value=1, q_rank=1, position=Rope(THETA)
    )


def _experts(shared: int, *, gate: bool = False, groups: bool = False) -> Experts:
    """Experts; with ``groups`` the router of DeepSeek-V3: sigmoid, a correction bias, one group."""
    router = Router("sigmoid", correction="buffer", n_expert_group=1, top_k_group=1)
    return Experts(
        1, 1, 1, router=router if groups else Router(),
        shared=SharedExpert(1, gate=gate) if shared else None,
    )  # fmt: skip


# ---------------------------------------------------------------- rows of mixers


def _mixer_rows(b: Budget) -> dict[str, NDArray[np.int64]]:
    import numpy as np

    if b.mixer == "mla":
        names = ("d_model", "n_head", "kv_rank", "q_rank", "d_nope", "d_rope", "d_value")
        found = [row for width in widths(b) for row in latent_rows(b, width)]
        return _columns(names, np.array(found, dtype=np.int64).reshape(-1, len(names)))
    none = np.empty((0, 4), dtype=np.int64)
    table = np.concatenate([none, *(grouped_rows(b, width) for width in widths(b))])
    rows = _columns(("d_model", "d_head", "n_head", "n_kv_head"), table)
    if b.mixer != "hybrid":
        return rows
    # keys as wide as the stream and values twice that, in heads that split like the others
    keys: Any = round_up(np.maximum(rows["d_model"] // DELTA_HEAD, 1), split(b))
    return rows | {"n_key_head": keys, "n_value_head": 2 * keys}


def _columns(names: tuple[str, ...], table: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    import numpy as np

    return {name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(names)}
