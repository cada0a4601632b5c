"""What a page of the handbook shows beside its words: where released models lie on its axis."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import Struct

from scantling import catalog
from scantling.costs.backends import backends
from scantling.costs.count import Parameters, parameters
from scantling.costs.depth import published_depths, width_law
from scantling.costs.features import features
from scantling.costs.rope import smallest_base
from scantling.laws import Features, bounds
from scantling.laws.optimum import TOKENS_A_PARAMETER
from scantling.laws.vocabulary import best_vocabulary
from scantling.report import svg
from scantling.report.trends import Traits, released_traits
from scantling.rules.setting import facts
from scantling.rules.subject import cache_per_token
from scantling.spec import Experts, Full, GroupedAttention, Rope, Spec
from scantling.spec.vary import nodes


class Model(Struct, frozen=True, kw_only=True):
    """One released model, counted."""

    traits: Traits
    spec: Spec
    counted: Parameters
    features: Features

    def number(self, name: str) -> float | None:
        """One of its ``trends.NUMBERS``."""
        return self.traits.numbers.get(name)


@functools.cache
def released_models() -> tuple[Model, ...]:
    """The models of ``trends.released_traits``, each with counts and features."""
    found = []
    for one in released_traits():
        spec = catalog.loaded(one.name).spec
        counted = parameters(spec)
        seen = features(spec, TOKENS_A_PARAMETER * float(counted.total), counted)
        found.append(Model(traits=one, spec=spec, counted=counted, features=seen))
    return tuple(found)


class Distribution(NamedTuple):
    """An axis of a rule: what is read of a model, and where the rule draws lines."""

    label: str
    value: Callable[[Model], float | None]
    limits: Callable[[], Sequence[float]]
    log: bool = False


def _number(name: str) -> Callable[[Model], float | None]:
    return lambda m: m.number(name)


def _bound(key: str) -> Callable[[], Sequence[float]]:
    return lambda: [x for x in (bounds()[key].low, bounds()[key].high) if x is not None]


def _prior(name: str, part: str = "inner") -> Callable[[], Sequence[float]]:
    return lambda: facts()["prior"][name][part]


def _feature(name: str) -> Callable[[Model], float | None]:
    def read(m: Model) -> float | None:
        found = getattr(m.features, name)
        return None if found is None else float(found)

    return read


def _dense(m: Model) -> float | None:
    return m.number("ffn_ratio")


def _gated(*, gated: bool) -> Callable[[Model], float | None]:
    return lambda m: _dense(m) if m.traits.shares["gated"] == gated else None


def _tables(m: Model) -> float:
    return (float(m.counted.embedding) + float(m.counted.lm_head)) / float(m.counted.total)


def _untied(m: Model) -> float | None:
    return None if m.spec.tied or m.spec.head is None else float(m.counted.lm_head) / float(
        m.counted.total)  # fmt: skip


def _law_vocabulary(m: Model) -> float | None:
    body = float(m.counted.total) - float(m.counted.embedding) - float(m.counted.lm_head)
    best = best_vocabulary(body, float(m.spec.d_model))
    return None if body < 33e6 or m.spec.head is None else int(m.spec.vocab_size) / best.best


def _routed(m: Model) -> Experts | None:
    return next((node for _, node in nodes(m.spec) if isinstance(node, Experts)), None)


def _routed_share(m: Model) -> float | None:
    one = _routed(m)
    return None if one is None else int(one.top_k) / int(one.n_expert)


def _expert_width(m: Model) -> float | None:
    one = _routed(m)
    return None if one is None else float(int(one.d_expert))


def _cache(m: Model) -> float | None:
    kib = cache_per_token(m.spec) / 1024
    return kib if kib > 0 else None


def _lines(*values: float) -> Callable[[], Sequence[float]]:
    return lambda: values


DISTRIBUTIONS: dict[str, Distribution] = {
    "SC106": Distribution("H h / D", _number("attention_width"), _bound("attention_width_ratio")),
    "SC107": Distribution("query heads to a KV head", _number("kv_group"), _bound("kv_group")),
    "SC108": Distribution("query heads to a KV head", _number("kv_group"), _lines(1)),
    "SC109": Distribution("head width h", _number("d_head"), _bound("d_head")),
    "SC333": Distribution("head width h", _number("d_head"), _lines(64, 128, 256)),
    "SC502": Distribution("vocabulary over the law's best", _law_vocabulary, _lines(0.25, 4),
                          log=True),
    "SC503": Distribution("share of one of two tables", _untied, _lines(0.08, 0.25)),
    "SC504": Distribution("share of all tables", _tables, _lines(0.5)),
    "SC601": Distribution("F / D, gated and dense", _gated(gated=True), _prior("ffn_gated")),
    "SC602": Distribution("feed-forward over attention", _feature("mlp_attention_ratio"),
                          _bound("mlp_attention_ratio"), log=True),
    "SC603": Distribution("width over depth D / L", _number("aspect"), _prior("aspect"), log=True),
    "SC606": Distribution("layers", _number("n_layer"), _lines(2, 6), log=True),
    "SC607": Distribution("F / D, gated and dense", _gated(gated=True), _lines(8 / 3, 4)),
    "SC608": Distribution("F / D, dense", _dense, _lines(1)),
    "SC803": Distribution("experts a token passes, of all", _routed_share, _lines(0.01, 0.5),
                          log=True),
    "SC804": Distribution("width of an expert", _expert_width, _lines(128), log=True),
    "SC813": Distribution("width of an expert", _expert_width, _lines(128), log=True),
    "SC903": Distribution("KiB of cache a token, 16 bits", _cache, _lines(), log=True),
}  # fmt: skip
"""The axis of each rule that has one; its limits come from where the rule has them."""

POWERS: dict[str, tuple[str, Callable[[Model], Sequence[float]]]] = {
    "SC105": ("head width", lambda m: _only(m.number("d_head"))),
    "SC201": ("query heads", lambda m: _only(_heads(m))),
    "SC202": ("KV heads", lambda m: _only(m.number("n_kv_head"))),
    "SC206": ("layers", lambda m: _only(m.number("n_layer"))),
    "SC301": ("widths D and F", lambda m: [*_only(m.number("d_model")), *_only(_columns(m))]),
    "SC302": ("widths D and F", lambda m: [*_only(m.number("d_model")), *_only(_columns(m))]),
    "SC303": ("feed-forward width F", lambda m: _only(_columns(m))),
    "SC501": ("vocabulary", lambda m: _only(m.number("vocab_size"))),
    "SC806": ("experts", lambda m: _only(m.number("n_expert"))),
    "SC207": ("experts", lambda m: _only(m.number("n_expert"))),
}
"""Rules of multiples: the largest power of two that divides the numbers of each model."""


def _only(value: float | None) -> list[float]:
    return [] if value is None else [value]


def _columns(m: Model) -> float | None:
    ratio = _dense(m)
    return None if ratio is None else round(ratio * float(m.spec.d_model))


def _heads(m: Model) -> float | None:
    group, kv = m.number("kv_group"), m.number("n_kv_head")
    return None if group is None or kv is None else round(group * kv)


def figure(code: str) -> str:
    """The figure of a rule as SVG with a caption, or nothing.

    Example:
        >>> figure("SC603").count('class="limit"'), figure("SC001")
        (2, '')
    """
    if code in DISTRIBUTIONS:
        return _distribution(DISTRIBUTIONS[code])
    if code in POWERS:
        return _powers(*POWERS[code])
    if code in {"SC604", "SC605"}:
        return _depths(code)
    if code == "SC709":
        return _bases()
    return ""


def _captioned(picture: str, caption: str) -> str:
    return f"<figure>{picture}<figcaption>{caption}</figcaption></figure>"


def _distribution(one: Distribution) -> str:
    values = [v for m in released_models() if (v := one.value(m)) is not None]
    limits = list(one.limits())
    lines = "; the dashed lines are the rule's" if limits else ""
    return _captioned(svg.histogram(one.label, values, limits, log=one.log),
                      f"{len(values)} released models{lines}.")  # fmt: skip


def _powers(label: str, read: Callable[[Model], Sequence[float]]) -> str:
    """How many numbers each power of two is the largest divisor of, those above 512 together."""
    values = [int(v) for m in released_models() for v in read(m)]
    top = 9
    powers = [min(top, (v & -v).bit_length() - 1) for v in values if v > 0]
    last = max(powers)
    items = [(f"{2**p}" + ("+" if p == top else ""), float(powers.count(p)))
             for p in range(last + 1)]  # fmt: skip
    return _captioned(svg.bars(f"largest power of two in {label}", items),
                      f"{len(values)} numbers of released models.")  # fmt: skip


def _depths(code: str) -> str:
    found = [svg.Point(m.traits.name, float(m.spec.d_model), float(m.spec.n_layer))
             for m in released_models() if m.spec.encoder is None]  # fmt: skip
    levine = width_law()
    curves = {
        "SC604": [svg.Curve("16 (D/512)^0.44", lambda d: published_depths(int(d)).power),
                  svg.Curve("5 log2 D", lambda d: published_depths(int(d)).log2)],
        "SC605": [svg.Curve("Levine et al.", lambda d: (math.log(d) - levine["a"]) / levine["b"])],
    }  # fmt: skip
    return _captioned(svg.points("width D", "layers L", found, curves[code]),
                      f"{len(found)} released decoders under the published depths.")  # fmt: skip


def _bases() -> str:
    found = []
    for m in released_models():
        context = m.spec.max_context
        one = next((node for _, node in nodes(m.spec) if isinstance(node, GroupedAttention)), None)
        if one is None or context is None or not isinstance(one.span, Full):
            continue
        if isinstance(one.position, Rope) and not one.position.scaling:
            found.append(svg.Point(m.traits.name, float(context), float(one.position.theta)))
    curve = svg.Curve("0.0424 C^1.63", lambda c: smallest_base(int(c)))
    return _captioned(svg.points("context C", "base of the rotation", found, [curve]),
                      f"{len(found)} released models without a scaling.")  # fmt: skip


HEAD_WIDTHS = (64, 72, 80, 96, 100, 112, 128, 160, 192, 256, 512)


def kernels() -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """What each backend of attention does with common head widths: headings and rows."""
    rows = [
        (one.title, *(one.takes(w, w).verdict for w in HEAD_WIDTHS)) for one in backends().values()
    ]
    return ("kernel", *map(str, HEAD_WIDTHS)), rows
