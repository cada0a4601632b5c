"""Families of shapes: structures with the rows of dimensions that are enumerated for each.

A structure is one column spec: types, layout, tying and vocabulary. Its rows hold every dimension
but depth, which is put to each row, and the feed-forward width, which the size solves.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from scantling.arith import round_up
from scantling.costs.runtimes import runtime
from scantling.hardware import chip
from scantling.search.axes import (
    TIE_ABOVE,
    depths,
    depths_of,
    expert_counts,
    grouped_rows,
    head_limits,
    is_given,
    keeps,
    latent_rows,
    passed,
    split,
    values,
    widths,
)
from scantling.search.budget import Budget, ratio_of
from scantling.search.kinds import EVEN, PARTS, hybrids, schedule_of
from scantling.spec import (
    Block,
    Branch,
    Dense,
    Experts,
    Full,
    GatedDelta,
    GroupedAttention,
    LatentAttention,
    Layer,
    Mamba2,
    Norm,
    QKNorm,
    RelativeBias,
    Rope,
    Router,
    Run,
    SharedExpert,
    Spec,
    Stack,
    Window,
    has,
    masks,
    vary,
)
from scantling.spec.positions import Span

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

THETA = 500_000.0
"""Base of rotary positions; no count and no cost depends on it."""
DELTA_HEAD = 128
"""Head width of the gated delta rule, as Qwen3-Next and Qwen3.5 have it."""
MAMBA_HEAD = 64
"""Head width of Mamba-2, whose heads together are twice the width: Bamba, Nemotron-H, Granite 4."""
STATE = 128
"""State of each of its channels, likewise."""
FULL = Full()
SUNK: dict[str, Any] = {"qkv_bias": True, "out_bias": True, "sinks": True, "qk_norm": None}
"""Attention of gpt-oss."""
PART_NAMES = tuple(f"part_{n}" for n in range(1, PARTS + 1))
"""Kinds of layer of a schedule, first to last."""
HYBRID_RATIOS = (3, 7)
"""State layers to one of attention: 1 in 4 to 1 in 8."""

HEAD_FIELDS = ("n_head", "d_head", "kv_rank", "d_nope", "d_rope", "d_value")
"""What attention kernels look at."""


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
    first: NDArray[np.int64]
    """Place of the least depth of each row among the depths there may be."""
    counts: NDArray[np.int64]
    """Depths of each row."""
    considered: int
    """Shapes before the limits that rows alone decide."""
    removed: dict[str, int]
    """How many shapes each of these removed; one shape can break several."""

    parts: tuple[str, ...] = ()
    """Kinds of layer that share the depth equally, each with a width of its own."""

    @property
    def mean_width(self) -> float:
        """Mean width of the feed-forwards in units of the solved one."""
        return sum(self.solved.values()) / len(self.parts) if self.parts else 1

    def stacks(self, depth: Any) -> dict[str, Any]:
        """Every depth of shapes, under the names ``vary`` knows."""
        found = {"n_layer": depth}
        if self.encoder:
            found["n_encoder_layer"] = depth * self.encoder
        return found | {f"{name}__n_layer": depth // len(self.parts) for name in self.parts}

    @property
    def encoder(self) -> int:
        """Layers of the encoder to one of the decoder; 0 without one."""
        return 0 if self.spec.encoder is None else int(self.spec.encoder.n_layer)

    @property
    def columns(self) -> tuple[str, ...]:
        """The dimensions of a shape of this family."""
        return (
            *self.stacks(1),
            *self.rows,
            *(name for name in self.solved if name not in self.rows),
        )

    def dims(self, row: Any, depth: Any, width: Any) -> dict[str, Any]:
        """Dimensions of shapes: places in the rows, depths, and solved widths."""
        found = self.stacks(depth) | {name: column[row] for name, column in self.rows.items()}
        for name, times in self.solved.items():
            if name not in found:
                found[name] = width * (times[row] if hasattr(times, "dtype") else times)
        return found

    def some(self, low: int, high: int, skipped: int = 0, left_out: int = 0) -> Family:
        """The family of some neighbouring rows.

        Args:
            low: The first row.
            high: The row before which to end.
            skipped: Depths of the first row that are left out.
            left_out: Depths of the last row that are left out.
        """
        rows = slice(low, high)
        first, counts = self.first[rows].copy(), self.counts[rows].copy()
        first[:1] += skipped
        counts[:1] -= skipped
        counts[-1:] -= left_out
        solved = {name: times[rows] if hasattr(times, "dtype") else times
                  for name, times in self.solved.items()}  # fmt: skip
        return replace(self, rows={name: column[rows] for name, column in self.rows.items()},
                       solved=solved, first=first, counts=counts)  # fmt: skip


def families(b: Budget) -> Iterator[Family]:
    """Every structure a budget asks for, with all its rows."""
    rows = _mixer_rows(b)
    for spec, shared in templates(b):
        yield _family(b, spec, rows | _state_rows(b, spec, rows["d_model"]), shared)


def templates(b: Budget) -> Iterator[tuple[Spec, int]]:
    """Every structure with its shared experts; dimensions are 1 or 2 until they are varied."""
    context = max(b.train_context, b.serve_context)
    if b.kind != "decoder":
        for vocab_size in values(b, "vocab_size", (b.vocab_size,)):
            for ratio in values(b, "encoder_ratio", EVEN):
                encoder, decoder = _both(ratio)
                yield Spec(1, vocab_size, decoder, tied=bool(b.tied), encoder=encoder), 0
        return
    for vocab_size in values(b, "vocab_size", (b.vocab_size,)):
        for tied in (False, True) if b.tied is None else (b.tied,):
            for kinds, layout, shared in _structures(b):
                stack = Stack(kinds, layout, Norm())
                yield Spec(1, vocab_size, stack, tied=tied, max_context=context), shared


def _least_depth(spec: Spec) -> int:
    """Layers below which a kind of layer would be missing: those of one whole cycle."""
    *before, last = spec.decoder.layout
    return sum(int(run.n) for run in before) + len(last.pattern)


def _family(b: Budget, spec: Spec, rows: dict[str, NDArray[np.int64]], shared: int) -> Family:
    """The rows of a mixer that keep its limits, each with every choice of experts and widths."""
    import numpy as np

    ratio = 0 if spec.encoder is None else int(spec.encoder.n_layer)
    first, last = depths_of(b, rows["d_model"], ratio)
    first = np.maximum(first, np.searchsorted(depths(b), _least_depth(spec)))
    counts = np.maximum(last - first + 1, 0)
    limits = _limits(b, spec, rows)
    keep = np.flatnonzero(np.logical_and.reduce([*limits.values(), counts > 0]))
    lead, names, chosen = _choices(b, spec)
    n = len(chosen)
    every = {name: np.repeat(column[keep], n) for name, column in rows.items()}
    every |= {name: np.tile(chosen[:, i], len(keep)) for i, name in enumerate(names)}
    solved: dict[str, Any] = {lead: 1}
    parts = tuple(kind.name for kind in spec.decoder.kinds) if b.schedule is not None else ()
    if b.schedule is not None:
        widths_ = zip(parts, schedule_of(b.schedule), strict=True)
        solved = {f"{name}__d_ff": times for name, times in widths_}
    if lead == "d_expert":
        if shared:
            solved["d_shared"] = shared
        if len(spec.decoder.layout) > 1:  # as wide as all a token passes: DeepSeek-V2, V3
            solved["d_ff"] = every["top_k"] + shared
    return Family(
        spec, every, solved, lead, np.repeat(first[keep], n), np.repeat(counts[keep], n),
        int(counts.sum()) * n,
        {name: int(counts[~mask].sum()) * n for name, mask in limits.items()}, parts,
    )  # fmt: skip


def _choices(b: Budget, spec: Spec) -> tuple[str, tuple[str, ...], NDArray[np.int64]]:
    """Experts and given widths, which every row of a mixer can have.

    Returns:
        The width that leads, the names of what is chosen, and a table of every choice.
    """
    import numpy as np

    lead, names = "d_ff", list[str]()
    columns: list[list[tuple[int, ...]]] = []
    if b.moe:
        lead, names = "d_expert", ["n_expert", "top_k"]
        columns.append(list(expert_counts(b)))
    for name in ("d_ff", "d_expert", "d_shared"):
        if is_given(b, name) and has(spec, name):
            names.append(name)
            columns.append([(value,) for value in values(b, name, ())])
    table = [sum(choice, ()) for choice in itertools.product(*columns)]
    return lead, tuple(names), np.array(table, dtype=np.int64).reshape(len(table), len(names))


def _limits(b: Budget, spec: Spec, rows: dict[str, NDArray[np.int64]]) -> dict[str, Any]:
    """What the rows of a mixer alone decide: heads, relations of fields, tying, asked ranges."""
    import numpy as np

    found: dict[str, Any] = {}
    if "n_kv_head" in rows:
        found |= head_limits(b, rows["n_head"], rows["n_kv_head"])
    else:
        found[f"heads split over {split(b)}"] = rows["n_head"] % split(b) == 0
    if "n_ssm_head" in rows:
        found[f"state heads split over {split(b)}"] = rows["n_ssm_head"] % split(b) == 0
    for name, mask in masks(vary(spec, **rows)):
        found[name] = np.broadcast_to(mask, len(rows["n_head"]))
    if b.tied is None and spec.encoder is None:
        small = rows["d_model"] * spec.vocab_size <= TIE_ABOVE * passed(b)
        found["tying rule"] = ~small if spec.tied else small
    if b.runtime is not None:
        found[f"heads {b.runtime} runs on {b.serve_chip or b.chip}"] = _runs(b, spec, rows)
    for name in {*rows} & {*b.bounded} - {"n_kv_head", "n_head"}:
        found[f"{name} as bounded"] = keeps(b, name, rows[name])
    return found


def _runs(b: Budget, spec: Spec, rows: dict[str, NDArray[np.int64]]) -> NDArray[np.bool_]:
    """The rows whose heads the runtime takes: asked once for each shape of heads."""
    import numpy as np

    one, place = runtime(b.runtime or ""), chip(b.serve_chip or b.chip)
    names = [name for name in HEAD_FIELDS if name in rows]
    table = np.stack([rows[name] for name in names], axis=1)
    some, at = np.unique(table, axis=0, return_inverse=True)
    taken = [one.runs(vary(spec, **dict(zip(names, row, strict=True))), place) for row in some]
    found: NDArray[np.bool_] = np.array(taken, dtype=bool)[at.ravel()]
    return found


# ---------------------------------------------------------------- structures


Structure: TypeAlias = tuple[tuple[Layer, ...], tuple[Run, ...], int]
"""Layer kinds, their order, and shared experts."""


def _structures(b: Budget) -> Iterator[Structure]:
    """Layer kinds and layouts of a mixer and a feed-forward."""
    for name in hybrids(b):
        delta = name == "gated-delta"
        state, beside = (_delta(), _gated()) if delta else (_mamba(b), _half_turned(b))
        own, word = _experts(shared=1, gate=delta) if b.moe else Dense(1), name.replace("-", "_")
        kinds = (_layer(word, state, own), _layer("attention", beside, own))
        for n in HYBRID_RATIOS if b.layout == "full" else (ratio_of(b.layout),):
            yield kinds, (Run((word,) * n + ("attention",), 1),), int(b.moe)
    if hybrids(b):
        return
    mixer = _latent() if b.mixer == "mla" else _grouped(b)
    if b.layout != "full":
        n = ratio_of(b.layout)
        local, wide = _grouped(b, Window(b.window or 1)), _grouped(b)
        ffn: Any = Dense(1)
        if b.moe:  # gpt-oss, the one structure of both: biases and a sink of every head
            ffn = Experts(1, 1, 1, bias=True, router=Router(bias=True))
            local, wide = replace(local, **SUNK), replace(wide, **SUNK)
        kinds = (_layer("local", local, ffn), _layer("global", wide, ffn))
        yield kinds, (Run(("local",) * n + ("global",), 1),), 0
    elif b.schedule is not None:
        yield (tuple(_layer(name, mixer, Dense(1)) for name in PART_NAMES),
               tuple(Run((name,), 1) for name in PART_NAMES), 0)  # fmt: skip
    elif not b.moe:
        yield (_layer("layer", mixer, Dense(1)),), (Run(("layer",), 1),), 0
    else:
        yield from _sparse(b, mixer)


def _both(ratio: int) -> tuple[Stack, Stack]:
    """An encoder of so many layers and a decoder of one, of the blocks of T5 v1.1."""
    inside = GroupedAttention(1, 1, 2, position=RelativeBias(), causal=False, scale=1.0)
    own, cross = replace(inside, causal=True), replace(inside, position=None, cross=True)
    norm, ffn = Norm(), Dense(1, activation="gelu_new")
    encoder, decoder = (
        Layer("layer", tuple(Block((Branch(module),), pre=norm) for module in modules))
        for modules in ((inside, ffn), (own, cross, ffn))
    )
    return (Stack((encoder,), (Run(("layer",), ratio),), norm),
            Stack((decoder,), (Run(("layer",), 1),), norm))  # fmt: skip


def _sparse(b: Budget, mixer: Any) -> Iterator[Structure]:
    """Experts in every layer without a shared one, and behind dense layers with one.

    These are the structures runtimes know: Mixtral and Qwen3, DeepSeek and GLM-4.5. Dense first
    layers are one (Kimi K2, GLM-4.5-Air) or three (DeepSeek-V3, GLM-4.5).
    """
    for shared in values(b, "n_shared", (1,) if b.mixer == "mla" else (0, 1)):
        ffn = _experts(shared, groups=shared > 0)
        usual = (0,) if not shared else (1, 3) if b.mixer == "mla" else (1,)
        for dense in values(b, "n_dense", usual):
            if dense:
                kinds = (_layer("dense", mixer, Dense(1)), _layer("moe", mixer, ffn))
                yield kinds, (Run(("dense",), dense), Run(("moe",), 1)), shared
            else:
                yield (_layer("layer", mixer, ffn),), (Run(("layer",), 1),), shared


def _layer(name: str, mixer: Any, ffn: Any) -> Layer:
    norm = Norm()
    return Layer(name, (Block((Branch(mixer),), pre=norm), Block((Branch(ffn),), pre=norm)))


def _grouped(b: Budget, span: Span = FULL) -> GroupedAttention:
    qk_norm = QKNorm("head") if b.qk_norm else None
    return GroupedAttention(1, 1, 2, position=Rope(THETA), qk_norm=qk_norm, span=span)


def _gated() -> GroupedAttention:
    """Attention of a hybrid: normed queries and keys, an output gate, a quarter turned."""
    position = Rope(THETA, fraction=0.25)
    return GroupedAttention(1, 1, 4, position=position, qk_norm=QKNorm("head"), gate="element")


def _delta() -> GatedDelta:
    return GatedDelta(1, 1, d_key=DELTA_HEAD, d_state_value=DELTA_HEAD, d_conv=4)


def _half_turned(b: Budget) -> GroupedAttention:
    """Attention of Bamba, half of each head turned, or of Granite 4 with its experts.

    That has no positions and multiplies scores by 1/128, which no count depends on.
    """
    if b.moe:
        return GroupedAttention(1, 1, 4, scale=1 / 128)
    return GroupedAttention(1, 1, 4, position=Rope(THETA, fraction=0.5))


def _mamba(b: Budget) -> Mamba2:
    """Groups of keys that split like the heads: 8 in Nemotron-H, 1 in small models."""
    return Mamba2(2, 1, n_group=split(b), d_state=STATE, d_conv=4)


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
    return _columns(("d_model", "d_head", "n_head", "n_kv_head"), table)


def _state_rows(b: Budget, spec: Spec, width: Any) -> dict[str, Any]:
    """Dimensions of mixers with a state, which the width decides."""
    import numpy as np

    if has(spec, "n_key_head"):
        # keys as wide as the stream and values twice that, in heads that split like the others
        keys: Any = round_up(np.maximum(width // DELTA_HEAD, 1), split(b))
        return {"n_key_head": keys, "n_value_head": 2 * keys}
    if has(spec, "n_ssm_head"):
        return {"d_inner": 2 * width, "n_ssm_head": np.maximum(2 * width // MAMBA_HEAD, 1)}
    return {}


def _columns(names: tuple[str, ...], table: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    import numpy as np

    return {name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(names)}
