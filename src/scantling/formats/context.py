"""A longer context by rotary scaling: what ``--context 32k --rope yarn`` writes."""

from __future__ import annotations

import math
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from scantling.errors import FieldError, UnknownNameError
from scantling.formats.target import context_of, number, scaling_of
from scantling.spec import Full, GroupedAttention, LatentAttention, Rope, Spec
from scantling.spec.vary import nodes, rewrite

KINDS = ("yarn", "linear", "dynamic", "llama3", "longrope")

LLAMA3_FREQUENCIES = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
"""What Llama 3.1 was released with: wavelengths above the original context are scaled in full,
below a quarter of it not at all."""


class Extended(Struct, frozen=True):
    """A spec with a longer context, and what to know about it."""

    spec: Spec
    factor: float
    notes: tuple[str, ...] = ()


def extend(spec: Spec, context: int, kind: str, original: int | None = None) -> Extended:
    """Stretch the rotary positions of a model to a longer context.

    The factor is the ratio of the new context to the original one, so that ``factor`` and the
    ratio of lengths, of which different runtimes use different ones, agree. The base ``theta``
    and the layers with a base of their own (local layers of Gemma 3) stay as they are.

    Args:
        spec: The model.
        context: Tokens wanted.
        kind: ``yarn``, ``linear``, ``dynamic`` or ``llama3``.
        original: Tokens the model was trained on; by default its own limit, or that written in
            the scaling it already has.

    Raises:
        FieldError: If the model has no rotary positions, is already stretched another way, is
            not made longer, or the kind needs numbers that only training gives (longrope).

    Example:
        >>> from scantling import catalog
        >>> extend(catalog.model("qwen3-8b"), 131072, "yarn", 32768).factor
        4.0
    """
    if kind not in KINDS:
        raise UnknownNameError("rope", kind, KINDS)
    if kind == "longrope":
        why = "needs a short and a long factor for every frequency, found by a search per model"
        raise FieldError("rope", kind, why, "use yarn, linear, dynamic or llama3")
    far = far_rope(spec)
    if far is None:
        raise FieldError("rope", kind, "needs rotary positions, which this model does not have")
    known = scaling_of(far)
    if known and known["rope_type"] != kind:
        raise FieldError("rope", kind, f"cannot follow the {known['rope_type']} scaling the model "
                         "already has", f"use --rope {known['rope_type']}")  # fmt: skip
    base = original or known.get("original_max_position_embeddings")
    if base is None and kind in {"linear", "dynamic"} and known:
        stretched = 1 if kind == "dynamic" else known["factor"]
        base = None if spec.max_context is None else int(spec.max_context / stretched)
    base = base or context_of(spec)
    if base is None:
        raise FieldError("original", None, "is not known of this model", "give --original-context")
    if context <= base:
        raise FieldError("context", context, f"must exceed the original {base}")
    factor = float(context / base)
    settings: dict[str, Any] = {"rope_type": kind, "factor": factor}
    if kind in {"yarn", "llama3"}:
        settings["original_max_position_embeddings"] = int(base)
    if kind == "llama3":
        settings |= LLAMA3_FREQUENCIES
    kept = {k: v for k, v in known.items() if k not in settings and k != "type"}
    settings |= kept
    scaled = tuple(sorted(settings.items()))

    def change(node: Struct) -> Struct:
        return replace(node, scaling=scaled) if node == far else node

    stretched_spec: Spec = rewrite(spec, change)
    limit = int(base) if kind == "dynamic" else context
    notes = _notes(kind, factor, int(base), context)
    return Extended(replace(stretched_spec, max_context=limit), factor, tuple(notes))


def _notes(kind: str, factor: float, base: int, context: int) -> list[str]:
    if kind == "yarn":
        times = number(round(factor, 4))
        strength = f"0.1 ln {times} + 1 = {attention_factor(factor):.4f}"
        return [f"yarn ×{times} from {base}: attention is scaled by {strength}"]
    if kind == "dynamic":
        why = "the class stretches from it as a sequence grows"
        return [f"max_position_embeddings stays {base}: {why}, up to {context}"]
    if kind == "llama3":
        return ["rope_type llama3 needs transformers 4.43 or newer"]
    return [f"linear ×{number(round(factor, 4))}: quality returns with some fine-tuning only"]


def far_rope(spec: Spec) -> Rope | None:
    """The rotary setting of the layers that see far: of full layers, else of any."""
    mixers = [n for _, n in nodes(spec) if isinstance(n, GroupedAttention | LatentAttention)]
    roped = [(m.position, isinstance(m.span, Full)) for m in mixers if isinstance(m.position, Rope)]
    ordered = sorted(roped, key=lambda pair: not pair[1])
    return ordered[0][0] if ordered else None


def attention_factor(factor: float) -> float:
    """YaRN's scale on the rotated queries and keys: 0.1 ln factor + 1 (Peng et al. 2023).

    Example:
        >>> round(attention_factor(4.0), 4)
        1.1386
    """
    return 0.1 * math.log(factor) + 1


class Reading(Struct, frozen=True):
    """What a scaling means at run time."""

    effective_factor: float
    implicit_ratio: float | None
    """The ratio of the lengths; it should equal the factor."""
    attention_factor: float
    should_warn: bool


def reading(scaling: dict[str, Any], max_context: int | None) -> Reading:
    """The factor a runtime uses: an explicit one wins over the ratio of lengths.

    Example:
        >>> scaling = {"rope_type": "yarn", "factor": 4.0}
        >>> scaling["original_max_position_embeddings"] = 32768
        >>> reading(scaling, 40960).should_warn
        True
    """
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    base = scaling.get("original_max_position_embeddings")
    ratio = None if not base or max_context is None else max_context / base
    factor = float(scaling.get("factor") or ratio or 1.0)
    strong = attention_factor(factor) if kind == "yarn" else 1.0
    given = scaling.get("attention_factor")
    differ = ratio is not None and abs(factor / ratio - 1) > 1e-6
    return Reading(factor, ratio, strong if given is None else float(given), differ)


def longrope_table(length: int, original: int) -> str:
    """Which factors longrope uses for a sequence: the long ones beyond the original length.

    Example:
        >>> longrope_table(4096, 4096), longrope_table(4097, 4096)
        ('short', 'long')
    """
    return "long" if length > original else "short"
