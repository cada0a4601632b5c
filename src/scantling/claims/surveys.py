"""Claims of what models have in common, counted over the recent ones that the audit surveyed."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable

from scantling.claims.plain import named
from scantling.claims.records import Claim
from scantling.claims.registry import Checked, check, decide
from scantling.costs.alignment import power_of_two
from scantling.costs.count import parameters
from scantling.spec import GroupedAttention, LatentAttention, Spec
from scantling.spec.vary import attention

SURVEY = (
    "qwen3-0.6b", "qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen3-32b", "qwen3-30b-a3b",
    "qwen3-235b-a22b", "qwen3-next-80b-a3b", "gpt-oss-20b", "gpt-oss-120b", "deepseek-v3",
    "kimi-k2", "glm-4.5-air", "glm-4.5", "minimax-m2", "gemma-3-1b", "gemma-3-4b", "gemma-3-12b",
    "gemma-3-27b", "smollm3-3b", "llama-4-scout", "llama-4-maverick", "nemotron-h-8b",
    "nemotron-3-nano-30b-a3b",
)  # fmt: skip
"""24 of the 26 recent open models of the audit's survey; OLMo 3 is not in the catalogue."""


@functools.cache
def surveyed() -> tuple[Spec, ...]:
    """The models of the survey."""
    return tuple(named(name) for name in SURVEY)


def count(holds: Callable[[Spec], bool]) -> float:
    """How many models of the survey a condition holds for."""
    return float(sum(holds(spec) for spec in surveyed()))


def aspect(spec: Spec) -> float:
    """D / L."""
    return float(spec.d_model) / float(spec.n_layer)


def head_width(spec: Spec) -> int:
    """The width of a query head."""
    one = attention(spec)
    if isinstance(one, LatentAttention):
        return int(one.d_nope + one.d_rope)
    assert isinstance(one, GroupedAttention)
    return int(one.d_head)


@check("survey-head-width")
def survey_head_width(one: Claim) -> Checked:
    """Heads of 64 to 128, of 128, of 192: approximate if a range holds for most, not for all."""
    numbers = {f"at_{h}": count(lambda s, h=h: head_width(s) == h) for h in (64, 128, 192, 256)}  # type: ignore[misc]
    low, high = one.given["low"], one.given["high"]
    inside = count(lambda s: head_width(s) in {low, high})
    return decide("approximate", {**numbers, "inside": inside}, holds=0 < inside < len(SURVEY))


@check("survey-power-of-two")
def survey_power_of_two(one: Claim) -> Checked:
    """Widths that are no power of two: wrong if most are none and all fill a line."""
    numbers = {
        "others": count(lambda s: power_of_two(int(s.d_model)) != int(s.d_model)),
        "aligned": count(lambda s: power_of_two(int(s.d_model)) >= one.given["line"]),
        "models": float(len(SURVEY)),
    }
    holds = numbers["others"] > numbers["models"] / 2 and numbers["aligned"] == numbers["models"]
    return decide("wrong", numbers, holds=holds)


@check("survey-aspect")
def survey_aspect(one: Claim) -> Checked:
    """Models whose D / L is in a range: wrong if most are outside."""
    low, high = one.given["low"], one.given["high"]
    numbers = {
        "inside": count(lambda s: low <= aspect(s) <= high), "models": float(len(SURVEY)),
        "least": min(map(aspect, surveyed())), "most": max(map(aspect, surveyed())),
    }  # fmt: skip
    return decide("wrong", numbers, holds=numbers["inside"] < numbers["models"] / 2)


@check("survey-small-deeper")
def survey_small_deeper(one: Claim) -> Checked:
    """Median D / L of dense models below and above a size: approximate if it grows with size."""
    dense = [s for s in surveyed() if not parameters(s).by_part["experts"]]
    below = [aspect(s) for s in dense if float(parameters(s).total) < one.given["size"]]
    above = [aspect(s) for s in dense if float(parameters(s).total) >= one.given["size"]]
    numbers = {"small": statistics.median(below), "large": statistics.median(above)}
    return decide("approximate", numbers, holds=numbers["small"] < numbers["large"])
