"""A longer context by rotary scaling: what ``--context 32k --rope yarn`` writes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from scantling.errors import FieldError, UnknownNameError
from scantling.formats.target import context_of, number, scaling_of
from scantling.spec import Rope, Spec
from scantling.spec.rotation import (
    Rotation,
    frequencies,
    longrope_table,
    mscale,
    rotations,
    stretched_base,
)
from scantling.spec.vary import rewrite

__all__ = ["KINDS", "Extended", "Original", "extend", "far_rope", "longrope_table",
           "original_context"]  # fmt: skip

KINDS = ("yarn", "linear", "dynamic", "llama3", "longrope", "ntk")

LLAMA3_FREQUENCIES = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
"""What Llama 3.1 was released with: wavelengths above the original context are scaled in full,
below a quarter of it not at all."""

TABLES = ("short_factor", "long_factor")


class Original(Struct, frozen=True):
    """Tokens a model was trained on before it was stretched, as far as its config tells."""

    tokens: int
    why: str
    assumed: bool
    """No field says it: it is taken to be the limit."""


class Extended(Struct, frozen=True):
    """A spec with a longer context, and what to know about it."""

    spec: Spec
    factor: float
    notes: tuple[str, ...] = ()


def original_context(spec: Spec, given: int | None = None) -> Original | None:
    """The length before any stretching; None where nothing tells.

    Example:
        >>> from scantling import catalog
        >>> original_context(catalog.model("llama-3.1-8b")).tokens
        8192
        >>> original_context(catalog.model("qwen3-8b"))
        Original(tokens=40960, why='its max_position_embeddings', assumed=True)
    """
    if given is not None:
        return Original(given, "given", assumed=False)
    known, limit = scaling_of(far_rope(spec)), context_of(spec)
    written = known.get("original_max_position_embeddings")
    if written is not None:
        return Original(int(written), "original_max_position_embeddings", assumed=False)
    if limit is None:
        return None
    if known.get("rope_type") == "linear":
        factor = float(known["factor"])
        shown = f"its max_position_embeddings {limit} over the factor {number(factor)}"
        return Original(int(limit / factor), shown, assumed=True)
    return Original(limit, "its max_position_embeddings", assumed=True)


def extend(
    spec: Spec, context: int, kind: str, original: int | None = None,
    tables: Mapping[str, Sequence[float]] | None = None,
) -> Extended:  # fmt: skip
    """Stretch the rotary positions of a model to a longer context.

    The factor is the ratio of the new context to the original one, so that ``factor`` and the
    ratio of lengths, of which different runtimes use different ones, agree. The base ``theta``
    and the layers with a base of their own (local layers of Gemma 3) stay as they are; ``ntk``
    alone has no setting but another base.

    Args:
        spec: The model.
        context: Tokens wanted.
        kind: ``yarn``, ``linear``, ``dynamic``, ``llama3``, ``longrope`` or ``ntk``.
        original: Tokens the model was trained on; by default its own limit, or that written in
            the scaling it already has.
        tables: For ``longrope``: ``short_factor`` and ``long_factor``, a number for each pair,
            as a search found them; by default the short ones are 1 and the long ones YaRN's.

    Raises:
        FieldError: If the model has no rotary positions, is already stretched another way, is
            not made longer, or the tables do not fit.

    Example:
        >>> from scantling import catalog
        >>> extend(catalog.model("qwen3-8b"), 131072, "yarn", 32768).factor
        4.0
    """
    if kind not in KINDS:
        raise UnknownNameError("rope", kind, KINDS)
    if tables is not None and kind != "longrope":
        raise FieldError("rope", kind, "has no factor for each pair", "use longrope")
    turning = rotations(spec)
    if not turning:
        raise FieldError("rope", kind, "needs rotary positions, which this model does not have")
    far = turning[0]
    known = scaling_of(far.rope)
    if known and known["rope_type"] != kind:
        again = known["rope_type"]
        hint = f"use --rope {again}" if again in KINDS else ""
        raise FieldError(
            "rope", kind, f"cannot follow the {again} scaling the model already has", hint
        )
    found = original_context(spec, original)
    if found is None:
        raise FieldError("original", None, "is not known of this model", "give --original-context")
    base = found.tokens
    if context <= base:
        raise FieldError("context", context, f"must exceed the original {base}")
    factor = float(context / base)
    if kind == "ntk":
        width = int(far.head * far.rope.fraction)
        stretched = replace(far.rope, theta=stretched_base(far.rope.theta, width, factor))
    else:
        settings = _settings(kind, factor, base, far, tables)
        settings |= {k: v for k, v in known.items() if k not in settings}
        stretched = replace(far.rope, scaling=tuple(sorted(settings.items())))

    def change(node: Struct) -> Struct:
        return stretched if node == far.rope else node

    changed: Spec = rewrite(spec, change)
    longer = replace(changed, max_context=base if kind == "dynamic" else context)
    notes = (*_notes(kind, factor, found, context, tables), *_layers(turning, base))
    return Extended(longer, factor, notes)


def _settings(
    kind: str, factor: float, base: int, far: Rotation, tables: Mapping[str, Sequence[float]] | None
) -> dict[str, Any]:
    """The numbers of one kind of scaling, as transformers names them."""
    settings: dict[str, Any] = {"rope_type": kind, "factor": factor}
    if kind in {"yarn", "llama3", "longrope"}:
        settings["original_max_position_embeddings"] = base
    if kind == "llama3":
        return settings | LLAMA3_FREQUENCIES
    if kind != "longrope":
        return settings
    plain = frequencies(replace(far.rope, scaling=None), far.head).inverse
    if tables is not None:
        return settings | _checked(tables, len(plain))
    if scaling_of(far.rope):
        raise FieldError("rope", kind, "has factors that a search found for the length the model "
                         "has", "give new ones with --rope-factors")  # fmt: skip
    yarn = (("factor", factor), ("original_max_position_embeddings", base), ("rope_type", "yarn"))
    slow = frequencies(replace(far.rope, scaling=yarn), far.head).inverse
    ratios = tuple(float(f"{a / b:.6g}") for a, b in zip(plain, slow, strict=True))
    return settings | {"short_factor": (1.0,) * len(plain), "long_factor": ratios}


def _checked(tables: Mapping[str, Sequence[float]], n: int) -> dict[str, tuple[float, ...]]:
    if not isinstance(tables, Mapping) or set(tables) != set(TABLES):
        names = (
            ", ".join(map(str, tables)) if isinstance(tables, Mapping) else type(tables).__name__
        )
        raise FieldError("rope factors", names, "must be an object of short_factor and long_factor")
    for name, values in tables.items():
        if not isinstance(values, list | tuple) or len(values) != n:
            given = len(values) if isinstance(values, list | tuple) else None
            raise FieldError(name, given, f"must have a factor for each of the {n} pairs")
        for value in values:
            real = isinstance(value, int | float) and not isinstance(value, bool)
            if not real or not 0 < value < math.inf:
                raise FieldError(name, value, "must hold numbers above zero")
    return {name: tuple(float(v) for v in tables[name]) for name in TABLES}


def _notes(
    kind: str, factor: float, original: Original, context: int,
    tables: Mapping[str, Sequence[float]] | None,
) -> list[str]:  # fmt: skip
    times, base = number(round(factor, 4)), original.tokens
    found = {
        "yarn": f"yarn ×{times} from {base}: attention is scaled by "
        f"0.1 ln {times} + 1 = {mscale(factor):.4f}, in short texts too",
        "dynamic": f"max_position_embeddings stays {base}: the class stretches from it as a "
        f"sequence grows, up to {context}, where the slowest pair turns "
        f"×{number(round(factor * factor - factor + 1, 4))} slower, not ×{times}",
        "llama3": "rope_type llama3 needs transformers 4.43 or newer",
        "linear": f"linear ×{times}: quality returns with some fine-tuning only",
        "ntk": f"another base is all: a config does not say that it was trained on {base}",
        "longrope": "short texts keep their frequencies and get the factor on attention too"
        + ("" if tables else "; the long factors are YaRN's, where a search would begin"),
    }
    notes = [found[kind]]
    if original.assumed:
        notes.append(f"assumed: trained on {base} tokens, {original.why}; --original-context says "
                     "otherwise")  # fmt: skip
    return notes


def _layers(turning: tuple[Rotation, ...], base: int) -> list[str]:
    """What the spans of the layers mean for their rotation."""
    far, *others = turning
    if far.reach is not None and far.reach <= base:
        seen = f"no layer sees farther than {far.reach} tokens, which it was trained on"
        return [f"{seen}: its rotation needs no stretching, only the limit"]
    notes = []
    near = [r for r in others if r.reach is not None]
    for same in (True, False):
        layers = [r for r in near if (r.rope == far.rope) is same]
        n = sum(r.n_layer for r in layers)
        seen = " or ".join(str(w) for w in sorted({r.reach for r in layers if r.reach}))
        if n and same:
            notes.append(f"{n} layers that see {seen} tokens share the setting, and are stretched")
        elif n:
            notes.append(f"{n} layers that see {seen} tokens keep a setting of their own")
    return notes


def far_rope(spec: Spec) -> Rope | None:
    """The rotary setting of the layers that see far: of full layers, else of any."""
    found = rotations(spec)
    return found[0].rope if found else None
