"""A model made smaller until it fits, with the same structure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from scantling.costs.count import parameters
from scantling.errors import FieldError, ScantlingError
from scantling.spec import (
    Experts,
    GroupedAttention,
    Rope,
    Run,
    Spec,
    Stack,
    check,
    dimensions,
    fields,
)
from scantling.spec.vary import nodes, rewrite

if TYPE_CHECKING:
    from msgspec import Struct

FITS = 20_000_000
"""Parameters that run on any CPU in well under a second: 80 MB in fp32."""

FLOORS = {
    "d_model": 64, "vocab_size": 256, "d_ff": 64, "d_expert": 32, "d_shared": 32, "n_expert": 4,
    "n_head": 2, "n_kv_head": 1, "d_head": 16, "d_nope": 16, "d_rope": 8, "d_value": 16,
    "kv_rank": 16, "q_rank": 16, "d_embed": 32, "d_input": 128, "d_latent": 32, "d_inner": 64,
    "n_ssm_head": 2, "d_rnn": 64, "n_gate_block": 2, "d_attention": 64, "d_delta": 16,
    "n_delta_head": 2, "gate_rank": 8, "n_value_head": 2, "n_key_head": 1, "d_key": 16,
    "d_state_value": 16, "dt_rank": 4, "n_select_head": 1, "out_rank": 8, "n_out_group": 1,
}  # fmt: skip
"""No dimension is halved below these; one that is not listed stays."""


def shrink(spec: Spec, limit: int = FITS, context: int = 128) -> Spec:
    """Halve the largest dimensions until a model has at most ``limit`` parameters.

    Depth goes first, to one cycle of each run, so that every kind of layer is still there. Then
    the dimension that is furthest above its floor is halved, again and again. Kinds,
    windows, tying, biases and norms stay; so does every relation between dimensions.

    Args:
        spec: The model.
        limit: Parameters at most.
        context: Tokens it must be able to read: a table of learned positions keeps so many rows.

    Raises:
        FieldError: If it does not fit even at the smallest dimensions.

    Example:
        >>> from scantling import catalog
        >>> small = shrink(catalog.model("llama-3.1-8b"))
        >>> parameters(small).total <= FITS, small.n_head // small.n_kv_head
        (True, 4)
    """
    if parameters(spec).total <= limit:
        return spec
    before, spec = spec, _shallow(spec)
    while (total := int(parameters(spec).total)) > limit:
        square = _is_square(spec)
        best = _next(spec, context, total, square=square)
        if best is None and square:  # 71 heads cannot be halved with their width
            best = _next(spec, context, total, square=False)
        if best is None:
            raise FieldError("params", f"{limit:,}", f"are too few: this model does not fit, "
                             f"its smallest has {total:,}", f"allow {total:,}")  # fmt: skip
        spec = best
    return _followed(before, spec)


def changes(before: Spec, after: Spec) -> dict[str, tuple[int, int]]:
    """What became smaller: each dimension as it was and as it is.

    Example:
        >>> from scantling import catalog, vary
        >>> spec = catalog.model("gpt2")
        >>> changes(spec, vary(spec, n_layer=2))
        {'n_layer': (12, 2)}
    """
    old, new = dimensions(before), dimensions(after)
    return {k: (int(old[k]), int(new[k])) for k in fields(before) if old[k] != new[k]}


def _is_root(spec: Spec) -> bool:
    """Whether the embedding is scaled by the root of the width, as Gemma's is."""
    scale = spec.embeddings.scale
    return scale is not None and math.isclose(scale, math.sqrt(spec.d_model), rel_tol=0.01)


def _followed(before: Spec, spec: Spec) -> Spec:
    """What follows from dimensions: the embedding's scale, and the context of a learned table."""
    if _is_root(before):
        scaled = replace(spec.embeddings, scale=math.sqrt(spec.d_model))
        spec = replace(spec, embeddings=scaled)
    old, new = before.embeddings.position, spec.embeddings.position
    if old is not None and new is not None and spec.max_context is not None:
        spec = replace(spec, max_context=max(spec.max_context - (old.rows - new.rows), 1))
    return spec


def _next(spec: Spec, context: int, total: int, *, square: bool) -> Spec | None:
    """The legal smaller spec whose halved dimension was furthest above its floor."""
    ordered = sorted(_halved(spec, context, square=square), key=lambda pair: -pair[0])
    return next((s for _, s in ordered if parameters(s).total < total), None)


def _shallow(spec: Spec) -> Spec:
    def change(node: Struct) -> Struct:
        if isinstance(node, Stack):
            layout = tuple(Run(r.pattern, min(r.n, len(r.pattern))) for r in node.layout)
            return replace(node, layout=layout)
        return node

    found: Spec = rewrite(spec, change)
    return found


def _halved(spec: Spec, context: int, *, square: bool) -> Iterator[tuple[float, Spec]]:
    """Every legal spec with one dimension halved wherever it occurs, and how far it can still go.

    Query heads are halved with their key-value heads first, which keeps the group, then alone;
    with the width too, where it is heads times head width.
    """
    floors = {**FLOORS, "rows": context + 2}
    sets: list[tuple[str, ...]] = [
        ("n_head", "n_kv_head"), ("d_inner", "n_ssm_head"), ("n_value_head", "n_key_head"),
    ]  # fmt: skip
    follows = {"n_kv_head", "d_input"}  # their own size follows from another's
    sets += [(name,) for name in floors if name not in follows]
    if square:
        coupled = {"d_model", "n_head", "d_head"}
        sets = [s for s in sets if not coupled & set(s)]
        sets += [("d_model", "n_head", "n_kv_head"), ("d_model", "n_head"), ("d_model", "d_head")]
    for names in sets:
        if "d_model" in names:  # attention that reads the embedding too is twice as wide
            names = (*names, "d_input")  # noqa: PLW2901 - one more
        ratio, smaller = _halve(spec, {name: floors[name] for name in names})
        kept = not square or _is_square(smaller)
        if smaller != spec and kept and _legal(smaller):
            yield ratio, smaller


def _is_square(spec: Spec) -> bool:
    mixers = [n for _, n in nodes(spec) if isinstance(n, GroupedAttention)]
    return bool(mixers) and all(a.n_head * a.d_head == spec.d_model for a in mixers)


def _halve(spec: Spec, floors: dict[str, int]) -> tuple[float, Spec]:
    """A spec with some dimensions halved down to their floors, and the largest over its floor."""
    ratio = 0.0

    def change(node: Struct) -> Struct:
        nonlocal ratio
        halves = {}
        for field, floor in floors.items():
            value = getattr(node, field) if field in node.__struct_fields__ else None
            if isinstance(value, int) and value // 2 >= floor:
                halves[field] = value // 2
                ratio = max(ratio, value / floor)
        return replace(node, **halves) if halves else node

    smaller: Spec = rewrite(spec, change)
    return ratio, smaller


def _legal(spec: Spec) -> bool:
    """Relations hold, rotary widths are even, and the chosen groups hold enough experts."""
    try:
        check(spec)
    except ScantlingError:
        return False
    for _, node in nodes(spec):
        position = getattr(node, "position", None)
        if isinstance(position, Rope):
            width = node.d_rope if hasattr(node, "d_rope") else node.d_head  # type: ignore[attr-defined]
            turned = width if hasattr(node, "d_rope") else int(width * position.fraction)
            if turned % 2:
                return False
        if isinstance(node, Experts):
            groups = node.router.n_expert_group or 1
            chosen = node.router.top_k_group or groups
            if node.n_expert % groups or node.n_expert // groups * chosen < node.top_k:
                return False
    return True
