"""Ways to serve a model on so many chips, and whether one holds what is asked."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from scantling.costs.deployment import cuts
from scantling.costs.fit import largest
from scantling.costs.parallel import tp_reasons
from scantling.costs.serving_memory import (
    Beside,
    ServingMemory,
    Split,
    serving_memory,
    shared_sequences,
)
from scantling.costs.serving_scheme import Numbers
from scantling.hardware import Chip
from scantling.search.serving_question import Question
from scantling.spec import Experts, Spec, divisors
from scantling.spec.vary import nodes

Verdict = Literal["fits", "fits only if", "does not fit"]
PAGE = 16
MOST_CONTEXT = 2**24
MOST_SEQUENCES = 2**16


class Layout(Struct, frozen=True):
    """Equal replicas, each split the same way."""

    split: Split
    replicas: int

    @property
    def n_gpu(self) -> int:
        """Chips in all."""
        return self.split.n_gpu * self.replicas

    @property
    def groups(self) -> int:
        """Groups among which sequences are divided."""
        return self.split.dp * self.replicas


class Held(Struct, frozen=True):
    """What a layout holds on the fullest chip, and whether that fits."""

    memory: ServingMemory
    room_bytes: float
    """What the engine may fill."""
    verdict: Verdict
    conditions: tuple[str, ...]
    """Of ``fits only if``."""

    @property
    def margin_bytes(self) -> float:
        """Left at the upper end of the interval; below zero where it is missing."""
        return self.room_bytes - float(self.memory.high)


class Invalid(Struct, frozen=True):
    """A degree that a model does not allow."""

    degree: str
    reason: str


def layouts(
    q: Question, n_gpu: int, scheme: Numbers, *, linked: bool = True
) -> tuple[list[Layout], list[Invalid]]:
    """Every way to use so many chips: TP × attention DP × PP × replicas, experts spread or cut.

    No group or block of the quantisation may be cut. A tensor group with its attention groups
    stays inside a machine: between machines only stages and replicas talk. Chips that no link is
    known of (``linked`` false) are replicas, unless the user fixed a degree.
    """
    experts = [n for _, n in nodes(q.spec) if isinstance(n, Experts)]
    found, wrong = [], list(_out_of_reach(q, n_gpu))
    for tp in divisors(n_gpu, min(n_gpu, q.gpus_per_node)):
        if q.fixed.get("tp", tp) != tp or (tp > 1 and not linked and "tp" not in q.fixed):
            continue
        reason = next(iter(tp_reasons(q.spec, tp)), None)
        if reason is not None:
            wrong.append(Invalid(f"TP {tp}", reason))
            continue
        for dp in divisors(n_gpu // tp, q.gpus_per_node // tp) if experts else [1]:
            for pp in divisors(n_gpu // (tp * dp), min(n_gpu, int(q.spec.n_layer))):
                if q.fixed.get("dp", dp) != dp or q.fixed.get("pp", pp) != pp:
                    continue
                if not linked and not q.fixed and dp * pp > 1:
                    continue
                if pp > 1 and q.spec.encoder is not None:
                    continue
                for ep in _expert_degrees(q, experts, tp * dp, wrong):
                    split = Split(tp=tp, pp=pp, dp=dp, ep=ep)
                    cut = _cut(q.spec, scheme, replace(split, pp=1))
                    if cut is not None:
                        part, n = ("experts over", tp * dp // ep) if "expert" in cut else ("TP", tp)
                        wrong.append(Invalid(f"{scheme.name}, {part} {n}", cut))
                        continue
                    found.append(Layout(split, n_gpu // split.n_gpu))
    return found, list(dict.fromkeys(wrong))


def _out_of_reach(q: Question, n_gpu: int) -> Iterator[Invalid]:
    """Degrees that the user fixed and that so many chips in such machines cannot have."""
    for axis in ("tp", "dp", "pp", "ep"):
        n = q.fixed.get(axis, 1)
        if n_gpu % n:
            yield Invalid(f"{axis.upper()} {n}", f"does not divide {n_gpu} chips")
    group = q.fixed.get("tp", 1) * q.fixed.get("dp", 1)
    if group > q.gpus_per_node:
        yield Invalid(f"{group} chips in a group", f"a machine has {q.gpus_per_node}, and a group "
                      "that talks at every layer stays inside one (--gpus-per-node)")  # fmt: skip
    experts = any(isinstance(n, Experts) for _, n in nodes(q.spec))
    if q.fixed.get("ep", 1) > 1 and not experts:
        yield Invalid(f"EP {q.fixed['ep']}", "the model has no routed experts to spread")
    if q.fixed.get("dp", 1) > 1 and not experts:
        yield Invalid(f"DP {q.fixed['dp']}", "groups with attention of their own share experts, "
                      "which this model has not: more chips are replicas")  # fmt: skip


@functools.lru_cache(4096)
def _cut(spec: Spec, scheme: Numbers, split: Split) -> str | None:
    """A group or block that a split would cut, in words; None is none."""
    return next((c.text for c in cuts(spec, scheme.scheme, split.plan()) if not c.ok), None)


def _expert_degrees(
    q: Question, experts: list[Experts], group: int, wrong: list[Invalid]
) -> Iterator[int]:
    """Whole experts on each chip of a group, or every expert cut over it."""
    for ep in dict.fromkeys((group, 1)) if experts else (1,):
        if q.fixed.get("ep", ep) != ep:
            continue
        bad = next((e for e in experts if int(e.n_expert) % ep), None)
        if bad is not None:
            wrong.append(Invalid(f"EP {ep}", f"{bad.n_expert} experts cannot be split over {ep}"))
            continue
        width = next((e for e in experts if int(e.d_expert) % (group // ep)), None)
        if width is not None:
            wrong.append(Invalid(f"TP {group} of experts", f"d_expert {width.d_expert} cannot be "
                                 f"split over {group}"))  # fmt: skip
            continue
        yield ep


def held(q: Question, chip: Chip, layout: Layout, scheme: Numbers, batch: int | None = None,
         context: int | None = None) -> Held:  # fmt: skip
    """What the fullest chip holds at a batch and a context, those of the question unless given.

    It fits where the upper end of the interval is within the share of memory that the engine may
    fill. ``fits only if`` names what would have to be so; without any such thing it does not fit.
    """
    n = q.batch if batch is None else batch
    each = shared_sequences(n, layout.groups)
    tokens = q.held_context(each) if context is None else context
    m = _memory(q.spec, layout.split, scheme, each, tokens, q.cache, q.beside)
    usable = chip.usable_bytes / chip.devices
    return judged(m, usable, q.share, by_kind=q.beside.by_kind)


@functools.lru_cache(16384)
def _memory(
    spec: Spec, split: Split, scheme: Numbers, each: int, tokens: int, cache: str, beside: Beside
) -> ServingMemory:  # fmt: skip
    """Remembered, since every chip asks for the same."""
    return serving_memory(spec, split, scheme.rank_bytes, each, tokens, cache, beside)


def judged(m: ServingMemory, usable: float, share: float, *, by_kind: bool) -> Held:
    """Whether a memory fits a chip.

    Args:
        m: Of the fullest chip.
        usable: What the chip has.
        share: Of it that the engine may fill.
        by_kind: Whether the engine pages each kind of layer by its need, so that the upper end
            counts so already.
    """
    room = usable * share
    high = float(m.high)
    saved = 0.0 if by_kind else max(float(m.cache_full) - float(m.cache), 0.0)
    pages = "the engine keeps only the window of windowed layers (--hybrid)"
    fill = f"the engine may fill {math.ceil(100 * high / usable)} % of the memory (--share)"
    both = (
        f"the engine may fill {math.ceil(100 * (high - saved) / usable)} % of the memory (--share)"
    )
    lucky = "what the engine takes beside stays below the upper end of its interval: it may run out"
    if float(m.low) > room:
        lucky = (
            f"the engine may fill {math.ceil(100 * float(m.low) / usable)} % of the memory or more "
            "(--share) and takes the least beside: it may run out"
        )
    if high <= room:
        return Held(m, room, "fits", ())
    if high - saved <= room:
        return Held(m, room, "fits only if", (pages,))
    if high <= usable:
        return Held(m, room, "fits only if", (fill,))
    if high - saved <= usable:
        return Held(m, room, "fits only if", (pages, both))
    if float(m.low) <= usable:
        return Held(m, room, "fits only if", ((pages, lucky) if saved else (lucky,)))
    return Held(m, room, "does not fit", ())


def longest(q: Question, chip: Chip, layout: Layout, scheme: Numbers) -> int:
    """The longest context of every sequence that surely fits, in whole pages; 0 is none."""
    return PAGE * largest(
        lambda n: held(q, chip, layout, scheme, context=PAGE * n).verdict == "fits",
        MOST_CONTEXT // PAGE,
    )


def most_sequences(
    q: Question, chip: Chip, layout: Layout, scheme: Numbers, context: int | None = None
) -> int:
    """The most sequences at a context that surely fit, all groups together; 0 is none."""
    groups = layout.groups
    return groups * largest(
        lambda n: held(q, chip, layout, scheme, n * groups, context).verdict == "fits",
        MOST_SEQUENCES,
    )
