"""Claims of widths, depths and heads: what models have, what divides, what a power law says."""

from __future__ import annotations

import math
from typing import Any

from scantling.arith import ceil_div, round_up
from scantling.catalog import loaded
from scantling.claims.plain import named, slot
from scantling.claims.records import Claim
from scantling.claims.registry import Checked, check, decide, judge
from scantling.costs.alignment import power_of_two
from scantling.costs.blocks import shard
from scantling.costs.count import parameters
from scantling.costs.depth import published_depths, width_law
from scantling.costs.ranks import padded_vocab
from scantling.errors import FieldError
from scantling.formats import hf
from scantling.spec.relations import head_fit


def dimension(model: Any, field: str) -> float:
    """A dimension of a model, its context, or its parameters."""
    spec = named(model)
    if field == "total":
        return float(parameters(spec).total)
    if field == "max_context":
        return float(spec.max_context or 0)
    return float(spec.read(field))


@check("dimensions")
def dimensions(one: Claim) -> Checked:
    """Dimensions of models, each number in ``given`` as [model, field]."""
    return judge(one, {name: dimension(*asked) for name, asked in one.given.items()})


@check("some")
def some(one: Claim) -> Checked:
    """One number said of several models: approximate if some have it and others do not."""
    numbers = {name: dimension(*asked) for name, asked in one.given.items()}
    hits = sum(n in one.said.values() for n in numbers.values())
    if hits == len(numbers):
        return Checked("correct", numbers)
    return Checked("approximate" if hits else "wrong", numbers)


@check("ratios")
def ratios(one: Claim) -> Checked:
    """Ratios of two dimensions of a model, each number in ``given`` as [model, field, field]."""
    return judge(
        one,
        {
            name: dimension(model, above) / dimension(model, below)
            for name, (model, above, below) in one.given.items()
        },
    )


@check("share-of-models")
def share_of_models(one: Claim) -> Checked:
    """The parameters of one model over those of another."""
    small, large = (dimension(one.given[key], "total") for key in ("small", "large"))
    return judge(one, {"share": small / large})


@check("differs")
def differs(one: Claim) -> Checked:
    """Correct if what is said to differ does, in ``given`` as [model, field]."""
    numbers = {name: dimension(*asked) for name, asked in one.given.items()}
    return decide("correct", numbers, holds=len(set(numbers.values())) == len(numbers))


@check("wider")
def wider(one: Claim) -> Checked:
    """Correct if D / L of every model in ``wide`` is above that of every one in ``narrow``."""
    found = {
        group: {
            slot(m): dimension(m, "d_model") / dimension(m, "n_layer") for m in one.given[group]
        }
        for group in ("wide", "narrow")
    }
    holds = min(found["wide"].values()) > max(found["narrow"].values())
    return decide("correct", found["wide"] | found["narrow"], holds=holds)


@check("depth-limit")
def depth_limit(one: Claim) -> Checked:
    """Layers over 5 log2 D: wrong as a limit if models that are held up as sound break it too."""
    numbers = {}
    for name in (*one.given["blamed"], *one.given["praised"]):
        spec = named(name)
        numbers[f"{slot(name)}_limit"] = published_depths(int(spec.d_model)).log2
        numbers[f"{slot(name)}_layers"] = float(spec.n_layer)
    broken = all(
        numbers[f"{slot(m)}_layers"] > numbers[f"{slot(m)}_limit"] for m in one.given["praised"]
    )
    return decide("wrong", numbers, holds=broken)


@check("critical-depth-of")
def critical_depth_of(one: Claim) -> Checked:
    """5 log2 D of a model, which is what the number was said to come from, and two other forms."""
    width = dimension(one.given["model"], "d_model")
    limits = published_depths(int(width))
    numbers = {"depth": limits.log2, "short_form": limits.ln, "power_form": limits.power}
    return judge(one, numbers)


@check("levine")
def levine(one: Claim) -> Checked:
    """D = exp(a + b L) at depths, the depths of widths, and log3 D, which theory says instead."""
    a, b = width_law()["a"], width_law()["b"]
    numbers = {f"width_{n}": math.exp(a + b * n) for n in one.given["depths"]}
    numbers |= {f"depth_{n}": (math.log(n) - a) / b for n in one.given["widths"]}
    numbers |= {f"theory_{n}": math.log(n, 3) for n in one.given["widths"]}
    holds = all(numbers[f"depth_{n}"] > 2 * numbers[f"theory_{n}"] for n in one.given["widths"])
    return decide("approximate", numbers, holds=holds)


@check("units")
def units(one: Claim) -> Checked:
    """How many units of ``given.unit`` each width is."""
    unit = one.given["unit"]
    return judge(one, {f"of_{n}": float(shard(n, 1, unit).units) for n in one.given["widths"]})


@check("aligned-to")
def aligned_to(one: Claim) -> Checked:
    """The widths near 8/3 D at a multiple, and what multiple the claimed width is of."""
    near = ceil_div(8 * one.given["width"], 3)
    unit = int(one.said["multiple"])
    numbers = {
        "multiple": float(power_of_two(one.given["taken"])), "exact": float(near),
        "below": float(near // unit * unit), "above": float(round_up(near, unit)),
    }  # fmt: skip
    return judge(one, numbers)


@check("bad-widths")
def bad_widths(one: Claim) -> Checked:
    """The power of two in widths that are said to be misaligned: wrong if each fills a line."""
    numbers = {f"of_{n}": float(power_of_two(n)) for n in one.given["widths"]}
    return decide("wrong", numbers, holds=min(numbers.values()) >= one.given["line"])


@check("whole-heads")
def whole_heads(one: Claim) -> Checked:
    """A convention if heads must divide the width in one class of model and not in another."""
    width, heads = one.given["width"], one.given["heads"]
    fit = head_fit(width, heads)
    numbers = {"quotient": fit.floor + fit.lost / heads}
    return decide(
        "convention",
        numbers,
        holds=not _legal(one.given["strict"]) and _legal(one.given["free"]),
    )


@check("refused")
def refused(one: Claim) -> Checked:
    """Correct if the config in ``given`` is refused and the one that divides is not."""
    numbers = {name: float(_legal(config)) for name, config in one.given.items()}
    return decide("correct", numbers, holds=numbers == {"uneven": 0.0, "even": 1.0})


def _legal(config: dict[str, Any]) -> bool:
    try:
        hf.read(config)
    except FieldError:
        return False
    return True


@check("head-widths")
def head_widths(one: Claim) -> Checked:
    """The width of a head at a number of heads."""
    numbers = {}
    for heads in one.given["heads"]:
        fit = head_fit(one.given["width"], heads)
        numbers[f"heads_{heads}"] = fit.floor + fit.lost / heads
    return judge(one, numbers)


@check("vocabulary-units")
def vocabulary_units(one: Claim) -> Checked:
    """Units of 128 in a vocabulary; it is a multiple where padding to 128 adds nothing."""
    size = one.given["vocab"]
    return judge(
        one,
        {
            "units": float(shard(size, 1, 128).units), "padded": float(padded_vocab(size, 1, 128)),
        },
    )  # fmt: skip


@check("sparsity-law")
def sparsity_law(one: Claim) -> Checked:
    """0.72 r^−0.38 T^−0.15 at the F / D of models, and what doubling r changes."""
    numbers = {"doubled": 2**-0.38 - 1}
    for name in one.given["models"]:
        ratio = dimension(name, "d_ff") / dimension(name, "d_model")
        numbers[slot(name)] = 0.72 * ratio**-0.38 * one.given["temperature"] ** -0.15
    return judge(one, numbers)


@check("capacity")
def capacity(one: Claim) -> Checked:
    """Slots an expert needs for all tokens if the router is even: T k / E."""
    g = one.given
    return judge(one, {"slots": float(ceil_div(g["tokens"] * g["top_k"], g["experts"]))})


@check("indivisible")
def indivisible(one: Claim) -> Checked:
    """Correct if the recommended width is a multiple of what it is said to have to be.

    Beside it the widths of real experts, F / D, none of which is.
    """
    unit = one.given["unit"]
    numbers = {"unit": float(unit), "rest": float(one.given["width"] % unit)}
    for name in one.given["models"]:
        spec = loaded(name).spec
        numbers[slot(name)] = float(spec.read("d_expert")) / float(spec.d_model)
    return decide("correct", numbers, holds=numbers["rest"] == 0)
