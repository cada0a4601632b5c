"""What real models do: dimensions and kinds of the catalogue's models by the year of release."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from scantling import catalog
from scantling.costs.axes import design_axes
from scantling.costs.count import parameters
from scantling.errors import FieldError
from scantling.rules import Finding, Rule, Setting, lint
from scantling.spec import GroupedAttention, LatentAttention, Spec
from scantling.spec.modules import CompressedAttention
from scantling.spec.vary import attention, dimensions, nodes

NUMBERS = {
    "parameters": "parameters",
    "d_model": "width D",
    "n_layer": "layers L",
    "aspect": "D / L",
    "d_head": "head width h",
    "attention_width": "H h / D",
    "n_kv_head": "KV heads K",
    "kv_group": "H / K",
    "ffn_ratio": "F / D",
    "expert_ratio": "experts' F / D",
    "vocab_size": "vocabulary V",
    "n_expert": "experts E",
    "active_share": "active of all",
}
"""Each number with its heading. F / D is of dense models; that of experts is what a token passes,
shared ones included. KV heads are of grouped attention only."""

SHARES = {
    "moe": "experts",
    "tied": "tied",
    "gated": "gated F",
    "power_of_two": "D a power of 2",
    "free_heads": "H h ≠ D",
    "qk_norm": "QK norm",
}
"""Each yes or no with its heading."""

LAYOUTS = ("full", "windows", "latent", "recurrent")
"""Attention over all positions in every layer; in some or all over a window or a chunk; latent or
compressed; or a recurrent mixer in some or all layers. Of several the last counts."""

HEADS = ("MHA", "GQA", "MQA", "latent", "none")
"""A KV head for every head, for a group, for all; a latent; or no softmax attention."""


class Traits(Struct, frozen=True, kw_only=True):
    """What one model chose.

    Args:
        name: Its name in the catalogue.
        released: Year and month.
        numbers: Those of ``NUMBERS`` that it has.
        shares: Whether it is each of ``SHARES``.
        layout: One of ``LAYOUTS``.
        heads: One of ``HEADS``.
    """

    name: str
    released: str
    numbers: dict[str, float]
    shares: dict[str, bool]
    layout: str
    heads: str

    @property
    def year(self) -> int:
        """The year of release."""
        return int(self.released[:4])

    @property
    def when(self) -> float:
        """The release as a fraction of a year, in the middle of its month."""
        month = int(self.released[5:7] or 6)
        return self.year + (month - 0.5) / 12


class Quartiles(Struct, frozen=True):
    """A number over some models."""

    low: float
    median: float
    high: float
    n: int


class Year(Struct, frozen=True, kw_only=True):
    """The models of one year; shares are of all of them.

    Args:
        year: Which.
        n: How many models.
        numbers: Quartiles over the models that have the number.
        shares: Of the models.
        layouts: Share of each layout.
        heads: Share of each kind of heads.
    """

    year: int
    n: int
    numbers: dict[str, Quartiles]
    shares: dict[str, float]
    layouts: dict[str, float]
    heads: dict[str, float]


def traits(name: str) -> Traits:
    """What a model of the catalogue chose; dimensions are of the layer kind that occurs last.

    Example:
        >>> found = traits("qwen3-0.6b")
        >>> round(found.numbers["aspect"], 1), found.numbers["attention_width"], found.heads
        (36.6, 2.0, 'GQA')
    """
    spec = catalog.loaded(name).spec
    entry = catalog.named()[name]
    d: dict[str, Any] = dimensions(spec)
    counted = parameters(spec)
    axes = design_axes(spec)
    width = d["d_model"]
    numbers: dict[str, float] = {
        "parameters": float(counted.total), "d_model": width, "n_layer": d["n_layer"],
        "aspect": width / d["n_layer"], "vocab_size": d["vocab_size"],
    }  # fmt: skip
    one = attention(spec)
    heads = "none"
    if isinstance(one, LatentAttention):
        heads = "latent"
        numbers["d_head"] = float(one.d_nope + one.d_rope)
        numbers["attention_width"] = float(one.n_head * one.d_value) / width
    elif isinstance(one, GroupedAttention):
        query, keys = int(one.n_head), int(one.n_kv_head)
        heads = "MHA" if keys == query else "MQA" if keys == 1 else "GQA"
        numbers |= {"d_head": float(one.d_head), "n_kv_head": keys, "kv_group": query / keys,
                    "attention_width": query * int(one.d_head) / width}  # fmt: skip
    elif "d_head" in d and "n_head" in d:
        heads = "latent" if _compressed(spec) else "none"
        numbers["d_head"] = d["d_head"]
    if "n_expert" in d:
        passed = d["top_k"] * d["d_expert"] + d.get("d_shared", 0)
        numbers |= {"n_expert": d["n_expert"], "expert_ratio": passed / width,
                    "active_share": float(counted.active) / float(counted.total)}  # fmt: skip
    elif "d_ff" in d:
        numbers["ffn_ratio"] = d["d_ff"] / width
    shares = {
        "moe": "n_expert" in d, "tied": spec.tied,
        "gated": not {"ungated_share", "squared_relu_share"} & set(axes),
        "power_of_two": width & -width == width,
        "free_heads": numbers.get("attention_width", 1.0) != 1.0,
        "qk_norm": isinstance(one, GroupedAttention) and one.qk_norm is not None,
    }  # fmt: skip
    return Traits(name=name, released=entry.released, numbers=numbers, shares=shares,
                  layout=_layout(spec, axes), heads=heads)  # fmt: skip


def _compressed(spec: Spec) -> bool:
    return any(isinstance(node, CompressedAttention) for _, node in nodes(spec))


def _layout(spec: Spec, axes: Mapping[str, Any]) -> str:
    if axes.get("attention_share", 1.0) < 1:
        return "recurrent"
    if "latent_share" in axes or _compressed(spec):
        return "latent"
    return "windows" if "local_share" in axes else "full"


@functools.cache
def released_traits() -> tuple[Traits, ...]:
    """Every model of the catalogue that was released with a shape of its own, the oldest first.

    Left out are shapes that were only timed, models tuned from another, and later releases of a
    shape: of equal dimensions and kinds the first stands for all.
    """
    found: dict[Any, Traits] = {}
    for name, entry in sorted(catalog.named().items(), key=lambda item: item[1].released):
        if entry.hub and entry.tuned_from is None:
            one = traits(name)
            spec = catalog.loaded(name).spec
            shape = (*dimensions(spec).items(), one.layout, spec.tied)
            found.setdefault(shape, one)
    return tuple(found.values())


def selected(
    since: int | None = None, least: float | None = None, most: float | None = None,
    kind: str | None = None,
) -> tuple[Traits, ...]:  # fmt: skip
    """The released models of some years, sizes and kind.

    Args:
        since: First year.
        least: Fewest parameters.
        most: Most parameters.
        kind: ``dense`` or ``moe``; both by default.

    Raises:
        FieldError: If the kind is not known.
    """
    if kind not in {None, "dense", "moe"}:
        raise FieldError("kind", kind, "is not known", "use dense or moe")
    return tuple(
        one
        for one in released_traits()
        if (since is None or one.year >= since)
        and (least is None or one.numbers["parameters"] >= least)
        and (most is None or one.numbers["parameters"] <= most)
        and (kind is None or one.shares["moe"] == (kind == "moe"))
    )


def by_year(found: Iterable[Traits]) -> list[Year]:
    """Quartiles and shares of each year.

    Example:
        >>> years = by_year(selected(since=2023))
        >>> [y.year for y in years][:2], years[0].n > 20
        ([2023, 2024], True)
    """
    groups: dict[int, list[Traits]] = {}
    for one in found:
        groups.setdefault(one.year, []).append(one)
    return [_year(year, group) for year, group in sorted(groups.items())]


def _year(year: int, group: Sequence[Traits]) -> Year:
    return Year(
        year=year,
        n=len(group),
        numbers={
            name: quartiles(values)
            for name in NUMBERS
            if (values := [one.numbers[name] for one in group if name in one.numbers])
        },
        shares={name: _share(group, lambda one, n=name: one.shares[n]) for name in SHARES},  # type: ignore[misc]
        layouts={v: _share(group, lambda one, v=v: one.layout == v) for v in LAYOUTS},  # type: ignore[misc]
        heads={v: _share(group, lambda one, v=v: one.heads == v) for v in HEADS},  # type: ignore[misc]
    )


def _share(group: Sequence[Traits], holds: Callable[[Traits], bool]) -> float:
    return sum(map(holds, group)) / len(group)


def quartiles(values: Sequence[float]) -> Quartiles:
    """Quartiles of some numbers, between two of them in proportion.

    Example:
        >>> quartiles([1, 2, 3, 4, 5])
        Quartiles(low=2.0, median=3.0, high=4.0, n=5)
    """
    import numpy as np

    low, median, high = (float(q) for q in np.percentile(values, (25, 50, 75)))
    return Quartiles(low, median, high, len(values))


class Followed(Struct, frozen=True, kw_only=True):
    """How many models a rule has nothing to say of; one that it does not apply to is among them.

    Args:
        code: ``SC204``.
        slug: Its name in words.
        title: Its first line.
        share: Of all models.
        by_year: Of the models of each year.
        broken: The models it speaks of, the latest last.
    """

    code: str
    slug: str
    title: str
    share: float
    by_year: dict[int, float]
    broken: tuple[str, ...]


def spoken(
    rules: Mapping[str, Rule], found: Sequence[Traits], setting: Setting | None = None
) -> dict[str, dict[str, Finding]]:
    """What each rule says of the models it speaks of: the gravest finding by model, by code."""
    known = catalog.named()
    told: dict[str, dict[str, Finding]] = {code: {} for code in rules}
    for one in found:
        report = lint(known[one.name].config, setting, rules=dict(rules), name=one.name)
        for finding in report.findings:
            told[finding.code].setdefault(one.name, finding)
    return told


def followed(
    rules: Mapping[str, Rule], found: Sequence[Traits], setting: Setting | None = None,
    told: Mapping[str, Mapping[str, Finding]] | None = None,
) -> list[Followed]:  # fmt: skip
    """The share of models that follow each rule, by year of release.

    A rule is broken where it has a finding, whatever its level. Rules that need a chip, a runtime
    or a degree are silent without one, so that all models follow them.

    Args:
        rules: Of ``rules.load_rules`` or ``rules.select``.
        found: The models.
        setting: Where they are to run.
        told: What ``spoken`` found, where it was asked already.
    """
    told = spoken(rules, found, setting) if told is None else told
    years = {one.name: one.year for one in found}
    counts = {year: list(years.values()).count(year) for year in sorted(set(years.values()))}
    rows = []
    for code, rule in rules.items():
        of = [years[name] for name in told[code]]
        rows.append(Followed(
            code=code, slug=rule.slug, title=rule.title,
            share=1 - len(of) / len(years) if years else 1.0,
            by_year={year: 1 - of.count(year) / n for year, n in counts.items()},
            broken=tuple(told[code]),
        ))  # fmt: skip
    return rows
