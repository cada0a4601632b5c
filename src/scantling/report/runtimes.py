"""Which runtime takes the layers and the heads of a model on a chip, and what is not known."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
from msgspec import Struct

from scantling.costs.backends import Backend
from scantling.costs.deployment import head_widths
from scantling.costs.runtimes import runtime
from scantling.hardware import Chip, chip
from scantling.sources import read_data
from scantling.spec import (
    Branch,
    GroupedAttention,
    Layer,
    Spec,
)
from scantling.spec.vary import nodes

NOTHING_SPECIAL = {"none", "rope", "full", "plain", "handed", "deep_norm"}
"""Positions, spans and residuals that need no kernel or class of their own."""


class Layers(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The kinds of layer a runtime has.

    Args:
        title: Its name, and what was read.
        whole: Whether its list was read to the end.
        sources: Keys of the bibliography.
        shown: A model or file that has each kind.
        unread: Kinds whose list was not read, and why.
    """

    title: str
    whole: bool
    sources: tuple[str, ...]
    shown: dict[str, str]
    unread: dict[str, str] = {}


@functools.cache
def layer_support() -> dict[str, Layers]:
    """Every runtime of the table by its name.

    Example:
        >>> layer_support()["vllm"].shown["kimi_delta"]
        'KimiLinearForCausalLM'
    """
    return msgspec.convert(read_data("runtimes.toml")["layer"], dict[str, Layers])


def kinds(spec: Spec) -> dict[str, int]:
    """What a runtime must know to run a model, and in how many layers of its stacks each occurs.

    Example:
        >>> from scantling import catalog
        >>> kinds(catalog.model("gpt-oss-20b"))
        {'attention': 24, 'sinks': 24, 'window': 12, 'experts': 24}
    """
    found: dict[str, int] = {}
    stacks = [spec.decoder] if spec.encoder is None else [spec.encoder, spec.decoder]
    for stack in stacks:
        for name, n in stack.occurrences().items():
            for word in dict.fromkeys(_words(stack.kind(name))):
                found[word] = found.get(word, 0) + int(n)
    return found


def _words(layer: Layer) -> list[str]:
    found = []
    for _, node in nodes(layer):
        tag = node.__struct_config__.tag
        if isinstance(node, Branch) or tag is None:
            continue
        if isinstance(node, GroupedAttention):
            found += ["attention"] * (not node.cross) + ["cross"] * node.cross
            found += ["sinks"] * node.sinks + ["encoder"] * (not (node.causal or node.cross))
        elif tag not in NOTHING_SPECIAL and tag not in PARTS_OF_OTHERS:
            found.append(str(tag))
    return found


PARTS_OF_OTHERS = {"norm", "qk_norm", "router", "shared"}
"""Structs of a module that no runtime lists apart."""


def support(spec: Spec, gpu: str | Chip = "h100-sxm") -> dict[str, Any]:
    """Whether each runtime takes each kind of layer, and each head width on a chip.

    A kind is ``yes`` (with a model that shows it), ``not listed`` where the whole list of a
    runtime was read and has none, or ``unknown``. A head width is ``yes`` with the fused kernels
    that take it, ``padded``, ``slow`` where only a fallback does, ``no``, or ``unknown`` where no
    kernel of the table is for the chip.

    Args:
        spec: The model.
        gpu: The chip.

    Raises:
        UnknownNameError: If the chip is not known.

    Example:
        >>> from scantling import catalog
        >>> found = support(catalog.model("llama-3.1-8b"))
        >>> found["runtimes"]["vllm"]["takes"], found["heads"]
        ('yes', [[128, 128]])
    """
    where = gpu if isinstance(gpu, Chip) else chip(gpu)
    needed, heads = kinds(spec), head_widths(spec)
    found: dict[str, Any] = {}
    for name, one in layer_support().items():
        layers = {word: _layer(one, runtime(name).vendors, word, where) for word in needed}
        widths = [_head(name, key, value, place, where) for (key, value), place in heads.items()]
        found[name] = {
            "title": one.title, "kernels_of": runtime(name).title,
            "takes": _takes(layers, widths), "layers": layers, "heads": widths,
            "sources": [*one.sources, *runtime(name).sources],
        }  # fmt: skip
    return {"gpu": where.key, "kinds": needed, "heads": [list(pair) for pair in heads],
            "places": list(heads.values()), "runtimes": found}  # fmt: skip


def _layer(
    one: Layers, vendors: tuple[str, ...], word: str, where: Chip
) -> dict[str, str]:  # fmt: skip
    if vendors and where.vendor not in vendors:
        return {"verdict": "no", "why": f"runs on {', '.join(vendors)} alone"}
    if word in one.shown:
        return {"verdict": "yes", "why": one.shown[word]}
    if word in one.unread or not one.whole:
        return {"verdict": "unknown", "why": one.unread.get(word, "its list was not read whole")}
    return {"verdict": "not listed", "why": f"in none of {one.title}"}


def _head(name: str, key: int, value: int, place: str, where: Chip) -> dict[str, Any]:
    own = runtime(name)
    form = {"prefill": "expanded", "decode": "absorbed"}.get(place.rpartition(", ")[2])
    if form is not None and own.latent not in {"both", form}:
        return _said("yes", (), f"not met: it runs latents {own.latent}")
    able = own.on(where)
    if not able:
        return _said("unknown", (), f"no kernel of the table is for {where.name}")
    taken = [(b, b.takes(key, value)) for b in able if _meets(b, key, value, form)]
    for verdict in ("yes", "padded"):
        fast = [b for b, t in taken if t.verdict == verdict and not b.slow]
        if fast:
            return _said(verdict, fast, "")
    if (key, value) in own.latents:
        return _said("yes", (), f"in the list of {own.title}")
    slow = [b for b, t in taken if t.verdict != "no" and b.slow]
    if slow and all(b.slow for b in able):
        return _said("unknown", slow, f"its fused kernels for {where.name} are in no table")
    if slow:
        return _said("slow", slow, "no fused kernel; a slower one is left")
    if own.fallback:
        return _said("slow", (), "no fused kernel; scores go through memory")
    return _said("no", (), "no kernel takes it, and it has no other way")


EXPANDS = {"sdpa-efficient"}
"""Kernels that meet latents only as full keys and values of all heads."""


def _meets(b: Backend, key: int, value: int, form: str | None) -> bool:
    """Whether a kernel can meet a pair at all: unequal widths are listed, or any are taken."""
    uneven = key == value or b.uneven or (key, value) in b.pairs
    return uneven and not (form == "absorbed" and b.name in EXPANDS)


def _said(verdict: str, kernels: Any, why: str) -> dict[str, Any]:
    shown: list[Backend] = list(kernels)
    return {"verdict": verdict, "kernels": [b.title for b in shown], "why": why}


def _takes(layers: dict[str, dict[str, str]], heads: list[dict[str, Any]]) -> str:
    """The worst of all: no, not listed, unknown, slow, padded, yes."""
    verdicts = [one["verdict"] for one in (*layers.values(), *heads)]
    return next(v for v in (*ORDER, "yes") if v in verdicts or v == "yes")


ORDER = ("no", "not listed", "unknown", "slow", "padded")

__all__ = ["kinds", "layer_support", "support"]
