"""What a written rotary scaling means: legal or not, its effective numbers, what to warn about."""

from __future__ import annotations

import functools
from typing import Any

from msgspec import Struct

from scantling.errors import ScantlingError, nearest
from scantling.formats.hf.layout import freeze
from scantling.sources import read_data
from scantling.spec import Rope
from scantling.spec.rotation import frequencies, scaling_settings

WIDTH = 128
"""Of a head, where only the factor on attention is asked for: it does not depend on the width."""


BESIDE = {"type", "rope_type", "mrope_section", "mrope_interleaved", "llama_4_scaling_beta",
          "max_position_embeddings"}  # fmt: skip
"""Keys that say something else than how frequencies change."""


class Kind(Struct, frozen=True):
    """One kind of scaling, as transformers reads it."""

    since: str
    """The release that first reads it (source: transformers)."""
    needs: tuple[str, ...] = ()
    may: tuple[str, ...] = ()


@functools.cache
def scaling_kinds() -> dict[str, Kind]:
    """Every kind by its ``rope_type``.

    Example:
        >>> scaling_kinds()["llama3"].since
        '4.43'
    """
    return {
        name: Kind(one["since"], tuple(one["needs"]), tuple(one["may"]))
        for name, one in read_data("rope.toml")["kinds"].items()
    }


class Reading(Struct, frozen=True):
    """What a scaling means at run time."""

    effective_factor: float
    implicit_ratio: float | None
    """The ratio of the lengths; it should equal the factor."""
    attention_factor: float
    should_warn: bool


def reading(scaling: dict[str, Any], max_context: int | None) -> Reading:
    """The factor a runtime uses: an explicit one wins over the ratio of lengths.

    A model that reads more than it was stretched to, or less, is warned about; one whose length
    is still the original (a ratio of 1) was stretched by the factor alone.

    Raises:
        FieldError: If the kind is unknown, or one of its numbers is missing or impossible.

    Example:
        >>> scaling = {"rope_type": "yarn", "factor": 4.0}
        >>> scaling["original_max_position_embeddings"] = 32768
        >>> reading(scaling, 40960).should_warn
        True
    """
    rope = Rope(1e4, 1.0, freeze(scaling))
    kind = scaling_settings(rope).get("rope_type", "default")
    base = scaling.get("original_max_position_embeddings")
    ratio = None if not base or max_context is None else max_context / base
    factor = float(scaling.get("factor") or ratio or 1.0)
    strength = 1.0
    if kind in {"yarn", "longrope"}:
        tables = {"short_factor": (1.0,) * (WIDTH // 2), "long_factor": (1.0,) * (WIDTH // 2)}
        alone = {k: v for k, v in scaling.items() if k not in tables}
        found = frequencies(Rope(1e4, 1.0, freeze(alone | tables)), WIDTH, max_context)
        strength = found.attention_factor
    differ = ratio is not None and ratio != 1 and abs(factor / ratio - 1) > 1e-6
    differ = differ and kind != "llama3"  # Llama 3.2 has 32 where the lengths have 16
    return Reading(factor, ratio, strength, differ)


class Verdict(Struct, frozen=True):
    """Whether a scaling can be read, by which release, and what is doubtful about it."""

    valid: bool
    min_transformers: str
    """The first release whose Llama classes read it; empty where any does."""
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def judge(
    scaling: dict[str, Any] | None, max_context: int | None = None, *, head: int = WIDTH,
    fraction: float = 1.0,
) -> Verdict:  # fmt: skip
    """Judge a ``rope_scaling`` or ``rope_parameters`` by what its kind needs.

    Args:
        scaling: The object as written; its kind under ``rope_type`` or ``type``.
        max_context: The ``max_position_embeddings`` of the config.
        head: Numbers of a head, for kinds with a factor for each pair.
        fraction: The share of them that turns.

    Example:
        >>> judge({"rope_type": "yarn", "factor": 4.0}).problems
        ('original_max_position_embeddings is missing, which yarn needs',)
    """
    if not scaling:
        return Verdict(valid=True, min_transformers="")
    settings = {k: v for k, v in scaling.items() if k != "rope_theta" and v is not None}
    theta = scaling.get("rope_theta") or 1e4
    settings.pop("partial_rotary_factor", None)
    rope = Rope(float(theta), fraction, freeze(settings))
    kind = scaling_settings(rope).get("rope_type", "default")
    known = scaling_kinds()
    if kind not in known:
        near = nearest(str(kind), known, 1)
        hint = f"; did you mean {near[0]}" if near else f"; use {', '.join(known)}"
        return Verdict(valid=False, min_transformers="", problems=(f"no kind {kind}{hint}",))
    one = known[kind]
    problems = [f"{k} is missing, which {kind} needs" for k in one.needs if k not in settings]
    extra = set(settings) - {*BESIDE, *one.needs, *one.may}
    warnings = [f"{key} has no effect on {kind}" for key in sorted(extra)]
    one_name, other = scaling.get("rope_type"), scaling.get("type")
    if one_name is not None and other is not None and one_name != other:
        warnings.append(f"type {other} is not read: rope_type {one_name} is")
    if not problems:
        try:
            frequencies(rope, head, max_context)
        except ScantlingError as error:
            problems.append(str(error))
    if not problems and kind != "default":
        warnings += _doubts(kind, settings, max_context)
    return Verdict(not problems, one.since, tuple(problems), tuple(warnings))


def _doubts(kind: str, settings: dict[str, Any], max_context: int | None) -> list[str]:
    found = reading(settings, max_context)
    base = settings.get("original_max_position_embeddings")
    warnings = []
    if found.effective_factor < 1:
        warnings.append(f"factor {found.effective_factor:g} is below 1: it shortens the context")
    if found.should_warn:
        warnings.append(f"factor {found.effective_factor:g} is used, but {max_context} / {base} "
                        f"= {found.implicit_ratio:g}")  # fmt: skip
    if kind == "llama3":
        if settings["high_freq_factor"] <= settings["low_freq_factor"]:
            warnings.append("high_freq_factor must exceed low_freq_factor for a smooth range")
        if max_context is not None and base is not None and base >= max_context:
            warnings.append(f"original_max_position_embeddings {base} is not below {max_context}")
    if kind == "longrope" and "factor" not in settings:
        warnings.append("factor is not given: the ratio of the lengths is used")
    if kind == "dynamic" and base is not None and max_context is not None and max_context > base:
        warnings.append(
            f"dynamic stretches beyond max_position_embeddings {max_context} only: to it nothing "
            f"changes, so it must stay the trained length {base}"
        )
    return warnings
