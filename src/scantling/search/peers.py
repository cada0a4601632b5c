"""What known models of a size class look like: bounds where no law and no ablation reaches."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

from scantling import catalog
from scantling.costs import count
from scantling.spec import Spec, dimensions


@functools.cache
def ratios() -> tuple[tuple[int, float, float], ...]:
    """(parameters, F/D, D/L) of dense models since 2023, each shape once."""
    found = {}
    for parameters, _, name in catalog.recent_dense():
        d = dimensions(catalog.loaded(name).spec)
        if "d_ff" in d:
            width, depth, ffn = int(d["d_model"]), int(d["n_layer"]), int(d["d_ff"])
            found[parameters, width, depth, ffn] = (parameters, ffn / width, width / depth)
    return tuple(found.values())


def peer_range(total: int, which: str, tail: float = 0.05) -> tuple[float, float, int]:
    """The range of a ratio among models of a size class, and how many those are.

    The class reaches four times up and down, further where it holds fewer than eight shapes.

    Args:
        total: Parameters.
        which: ``ffn_width_ratio`` (F/D) or ``aspect`` (D/L).
        tail: Share of the models left out at each end.

    Example:
        >>> low, high, n = peer_range(7_000_000_000, "aspect")
        >>> 40 < low < high < 200, n >= 8
        (True, True)
    """
    column = 1 if which == "ffn_width_ratio" else 2
    reach = 4
    while True:
        values = sorted(r[column] for r in ratios() if total / reach <= r[0] <= total * reach)
        if len(values) >= 8 or reach > 10**6:
            break
        reach *= 2
    return quantile(values, tail), quantile(values, 1 - tail), len(values)


def width_ratios(d: Mapping[str, Any]) -> dict[str, float]:
    """Widths over D that dimensions say: of an expert, of all a token passes, of all heads.

    Args:
        d: Dimensions (``spec.dimensions``). Latent attention has its keys without the rotary part,
            an encoder-decoder its width over the mean depth of both.

    Example:
        >>> found = width_ratios(dimensions(catalog.model("deepseek-v3")))
        >>> [round(found[name], 3) for name in ("active_width_ratio", "attention_width_ratio")]
        [2.571, 2.286]
    """
    width, found = d["d_model"], dict[str, float]()
    if "n_encoder_layer" in d:
        found["aspect"] = 2 * width / (d["n_layer"] + d["n_encoder_layer"])
    if "d_expert" in d:
        found["expert_width_ratio"] = d["d_expert"] / width
        passed = d["top_k"] * d["d_expert"] + d.get("d_shared", 0)
        found["active_width_ratio"] = passed / width
    if "d_head" in d and "n_kv_head" in d:
        found["attention_width_ratio"] = d["n_head"] * d["d_head"] / width
    elif "d_nope" in d:
        found["attention_width_ratio"] = d["n_head"] * d["d_nope"] / width
        found["latent_width_ratio"] = found["attention_width_ratio"]
    return found


@functools.cache
def sparse() -> tuple[tuple[int, dict[str, float], str], ...]:
    """Parameters, ratios and name of models with experts since 2023, each shape once."""
    found: dict[tuple[Any, ...], tuple[int, dict[str, float], str]] = {}
    for name, entry in catalog.named().items():
        if not entry.hub or entry.tuned_from is not None or entry.released < "2023":
            continue
        spec = catalog.loaded(name).spec
        d: dict[str, Any] = dimensions(spec)
        if "n_expert" not in d:
            continue
        ratios = width_ratios(d) | {
            "aspect": d["d_model"] / d["n_layer"], "active_share": d["top_k"] / d["n_expert"],
            "active": float(count.parameters(spec).active) / entry.parameters,
        }  # fmt: skip
        found.setdefault(tuple(d.items()), (entry.parameters, ratios, name))
    return tuple(found.values())


def expert_range(total: int, which: str, tail: float = 0.1) -> tuple[float, float, int]:
    """The range of a ratio among models with experts, and how many those are.

    The class reaches four times up and down, further where it holds fewer than sixteen shapes: many
    of them are alike.

    Args:
        total: Parameters with all experts.
        which: ``aspect`` (D/L), ``active_share`` (k/E), ``expert_width_ratio`` (width of an expert
            over D), ``active_width_ratio`` (feed-forward width a token passes over D),
            ``active`` (active over all parameters), ``attention_width_ratio`` (H h/D), or
            ``latent_width_ratio``, that of latent attention alone.
        tail: Share of the models left out at each end.

    Example:
        >>> low, high, n = expert_range(30 * 10**9, "active_share")
        >>> 0.01 < low < 1 / 16 < high < 0.3, n >= 16
        (True, True)
    """
    reach = 4
    while True:
        values = sorted(
            ratios[which] for size, ratios, _ in sparse()
            if which in ratios and total / reach <= size <= total * reach
        )  # fmt: skip
        if len(values) >= 16 or reach > 10**6:
            break
        reach *= 2
    return quantile(values, tail), quantile(values, 1 - tail), len(values)


def usual_active(total: int) -> int:
    """Active parameters of a model with experts of a size: the median share of known ones.

    Example:
        >>> 0.04 < usual_active(10**11) / 10**11 < 0.2
        True
    """
    share, _, _ = expert_range(total, "active", tail=0.5)
    return int(total * share)


def usual_total(active: int) -> int:
    """All parameters of a model with experts whose active size is given: ``usual_active`` inverted.

    Example:
        >>> 20e9 < usual_total(3 * 10**9) < 60e9
        True
    """
    grid = [int(active * 10 ** (step / 20)) for step in range(4, 41)]
    return min(grid, key=lambda total: abs(math.log(usual_active(total) / active)))


def sparse_specs() -> list[Spec]:
    """The known models with experts.

    Example:
        >>> len(sparse_specs()) > 20
        True
    """
    return [catalog.loaded(name).spec for _, _, name in sparse()]


def nearest_sparse(total: int, active: int, n: int = 3) -> list[catalog.Loaded]:
    """The known models with experts nearest to a size: |ln of the total| + |ln of the active|.

    Example:
        >>> [m.name for m in nearest_sparse(30 * 10**9, 3 * 10**9, 1)]
        ['qwen3-30b-a3b']
    """

    def distance(one: tuple[int, dict[str, float], str]) -> float:
        size, ratios, _ = one
        return abs(math.log(size / total)) + abs(math.log(ratios["active"] * size / active))

    return [catalog.loaded(name) for _, _, name in sorted(sparse(), key=distance)[:n]]


def vocabulary_range(total: int, width: int) -> tuple[int, int, int]:
    """The vocabularies of dense models of a size class since 2023, and how many shapes those are.

    The middle half of them, and no larger than leaves the table the share of the parameters that
    nine of ten keep to: V D <= share · N. The class reaches four times up and down.

    Args:
        total: Parameters.
        width: ``d_model``.

    Example:
        >>> low, high, n = vocabulary_range(350_000_000, 1024)
        >>> 45_000 < low < 55_000, 100_000 < high < 130_000
        (True, True)
    """
    shapes = {
        (parameters, vocab_size, int(dimensions(catalog.loaded(name).spec)["d_model"]))
        for parameters, vocab_size, name in catalog.recent_dense()
    }
    reach = 4
    while True:
        some = [s for s in shapes if total / reach <= s[0] <= total * reach]
        if len(some) >= 8 or reach > 10**6:
            break
        reach *= 2
    sizes = sorted(float(v) for _, v, _ in some)
    share = quantile(sorted(v * w / n for n, v, w in some), 0.9)
    low, high = quantile(sizes, 0.25), quantile(sizes, 0.75)
    most = share * total / width
    return int(min(low, most)), int(min(high, most)), len(some)


def quantile(values: list[float], share: float) -> float:
    """A quantile between the two nearest values."""
    place = share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)
