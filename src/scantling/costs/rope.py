"""What a longer context asks of rotary positions: angles never seen, methods, evidence.

A pair of wavelength λ makes L/λ turns in a context of L tokens. One that makes a whole turn in
training has seen every angle, and no longer context shows it another. One that does not has seen
the angles up to L/λ turns only: beyond L it meets new ones, unless it is made slower. That is
exact. What a method does to a model's answers is not: it is told by evidence, with its source.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from scantling.errors import FieldError
from scantling.formats.context import KINDS, Original, extend, original_context
from scantling.formats.target import context_of, scaling_of
from scantling.sources import read_data
from scantling.spec import Spec
from scantling.spec.rotation import Frequencies, Rotation, frequencies, mscale, rotations

FAST_TURNS = 32
"""A pair with so many turns in the trained context tells near tokens apart (β fast; yarn2023)."""
SLACK = 1e-3
"""A share by which turns may exceed those seen: a ramp ends between two pairs."""


class Evidence(Struct, frozen=True):
    """What is known about stretching a model in one way."""

    kind: str
    grade: str
    """A, B or C, as ``data/rope.toml`` defines them."""
    source: str
    factor: float
    """The largest it speaks of."""
    trained: bool
    """Whether the model was trained at the new length."""
    says: str
    against: bool = False
    """It speaks against the method."""


@functools.cache
def evidence(kind: str) -> tuple[Evidence, ...]:
    """The evidence on one method, the best first.

    Example:
        >>> [(e.grade, e.source) for e in evidence("llama3")]
        [('A', 'llama3-herd')]
    """
    found = msgspec.convert(read_data("rope.toml")["evidence"], list[Evidence])
    return tuple(sorted((e for e in found if e.kind == kind), key=lambda e: e.grade))


class Pair(Struct, frozen=True):
    """One pair of numbers of a head."""

    index: int
    wavelength: float
    """Tokens of a turn before scaling; infinite for a pair that does not turn."""
    scaled: float
    """The same at the context asked for."""
    turns_trained: float
    """In the distances seen in training."""
    turns: float
    """At the context asked for."""

    @property
    def stretch(self) -> float:
        """How much slower it turns than before scaling."""
        return 1.0 if self.scaled == self.wavelength else self.scaled / self.wavelength

    @property
    def complete(self) -> bool:
        """Whether it makes a turn in training, so that it has seen every angle."""
        return self.turns_trained >= 1

    @property
    def unseen(self) -> bool:
        """Whether it meets angles at this context that the original length does not show."""
        return not self.complete and self.turns > self.turns_trained * (1 + SLACK)


def pairs_of(
    rotation: Rotation, trained: int, context: int, before: Frequencies, after: Frequencies
) -> tuple[Pair, ...]:
    """Every pair of a rotation: its wavelengths and turns before and after.

    Args:
        rotation: The setting and what its layers see.
        trained: Tokens of training.
        context: Tokens asked for.
        before: Frequencies in training.
        after: Frequencies at the context.

    Example:
        >>> from scantling import catalog
        >>> one = rotations(catalog.model("llama-2-7b"))[0]
        >>> plain = frequencies(one.rope, one.head)
        >>> found = pairs_of(one, 4096, 8192, plain, plain)
        >>> sum(p.complete for p in found), sum(p.unseen for p in found)
        (46, 18)
    """
    seen, far = rotation.distance(trained), rotation.distance(context)
    waves = zip(before.wavelengths, after.wavelengths, strict=True)
    return tuple(
        Pair(i, own, scaled, seen / own, far / scaled) for i, (own, scaled) in enumerate(waves)
    )


class Turning(Struct, frozen=True):
    """The wavelength table of one rotary setting of a model."""

    rotation: Rotation
    pairs: tuple[Pair, ...]
    attention_factor: float

    def counts(self) -> dict[str, int]:
        """How many pairs there are of each sort."""
        p = self.pairs
        return {
            "pairs": len(p), "complete": sum(one.complete for one in p),
            "never_complete": sum(not one.complete for one in p),
            "fast": sum(one.turns_trained >= FAST_TURNS for one in p),
            "stretched": sum(one.stretch > 1 + SLACK for one in p),
            "fast_stretched": sum(
                one.turns_trained >= FAST_TURNS and one.stretch > 1 + SLACK for one in p
            ),
            "unseen": sum(one.unseen for one in p),
        }  # fmt: skip


class Method(Struct, frozen=True):
    """One way to stretch a model to a context, or why it cannot be."""

    kind: str
    refused: str = ""
    factor: float = 1.0
    theta: float = 0.0
    settings: dict[str, Any] = {}
    """What a config says."""
    attention_factor: float = 1.0
    max_context: int | None = None
    slowest: float = 1.0
    """How much slower the slowest pair turns."""
    fastest: float = 1.0
    counts: dict[str, int] = {}
    wavelengths: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    searched: bool = True
    """Its factors are of the sort that the evidence is on: longrope's are YaRN's without tables."""

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """What is known about it."""
        return evidence(self.kind)

    def supported(self, *, trained: bool) -> float:
        """The largest factor that evidence speaks for, with or without training at the length."""
        return max((e.factor for e in self._supports(trained=trained)), default=1.0)

    def _supports(self, *, trained: bool) -> list[Evidence]:
        own = self.evidence if self.searched else ()
        return [e for e in own if e.trained is trained and not e.against]

    def _grade(self, *, trained: bool) -> str:
        grades = (e.grade for e in self._supports(trained=trained) if e.factor >= self.factor)
        return min(grades, default="none")

    @property
    def rank(self) -> tuple[Any, ...]:
        """What is preferred: no unseen angle, fast pairs as they were, evidence for the factor."""
        if self.refused:
            return (1,)
        return (
            0, self.counts["unseen"] > 0, self.counts["fast_stretched"] > 0,
            self._grade(trained=False), self._grade(trained=True), KINDS.index(self.kind),
        )  # fmt: skip


class Stretch(Struct, frozen=True):
    """What a context asks of the rotary positions of a model."""

    original: Original
    limit: int | None
    """The most the config lets it read."""
    context: int
    scaling: dict[str, Any]
    """What the model has already."""
    tables: tuple[Turning, ...]
    """As the model is, at the context."""
    methods: tuple[Method, ...]
    """Best first; empty where no frequency has to change."""
    advice: tuple[str, ...]

    @property
    def needed(self) -> bool:
        """Whether frequencies have to change for this context."""
        return bool(self.methods)


def stretch(
    spec: Spec, context: int | None = None, original: int | None = None,
    tables: Mapping[str, Sequence[float]] | None = None,
) -> Stretch:  # fmt: skip
    """The wavelengths of a model against a context, and the ways to reach it.

    Args:
        spec: The model.
        context: Tokens wanted; by default what the model reads, so that nothing is needed.
        original: Tokens it was trained on before any scaling, where its config says more.
        tables: Factors for ``longrope``, if a search found some.

    Raises:
        FieldError: If the model has no rotary positions, or the context is not longer than the
            original one.

    Example:
        >>> from scantling import catalog
        >>> found = stretch(catalog.model("llama-2-7b"), 32_768)
        >>> [(m.kind, m.counts["unseen"], m.counts["fast_stretched"]) for m in found.methods]
        ... # doctest: +NORMALIZE_WHITESPACE
        [('yarn', 0, 0), ('llama3', 0, 0), ('longrope', 0, 0), ('linear', 0, 21),
         ('dynamic', 0, 20), ('ntk', 17, 20)]
    """
    turning = rotations(spec)
    if not turning:
        rule = "are missing: nothing turns in this model"
        raise FieldError("rotary positions", None, rule)
    known = original_context(spec, original)
    if known is None:
        raise FieldError("original", None, "is not known of this model", "give --original-context")
    limit, scaling = context_of(spec), scaling_of(turning[0].rope)
    wanted = context or max(limit or 0, known.tokens)
    if context is not None and context <= known.tokens:
        raise FieldError("context", context, f"is not longer than the original {known.tokens}")
    covered = context is None or (bool(scaling) and limit is not None and context <= limit)
    if scaling.get("rope_type") == "dynamic":
        covered = context is None
    reach = turning[0].reach
    if reach is not None and reach <= known.tokens:
        covered = True
    found = tuple(_as_is(r, known.tokens, wanted, limit) for r in turning)
    ways = () if covered else tuple(
        sorted((_method(spec, wanted, kind, known.tokens, tables) for kind in KINDS),
               key=lambda m: m.rank)
    )  # fmt: skip
    words = tuple(_advice(found, known, wanted, ways, scaling))
    return Stretch(known, limit, wanted, scaling, found, ways, words)


def _trained(rotation: Rotation) -> Frequencies:
    """The frequencies before any scaling."""
    return frequencies(msgspec.structs.replace(rotation.rope, scaling=None), rotation.head)


def _as_is(rotation: Rotation, trained: int, context: int, limit: int | None) -> Turning:
    after = frequencies(rotation.rope, rotation.head, limit, context)
    before = _trained(rotation) if len(after.inverse) == _pairs(rotation) else after
    return Turning(rotation, pairs_of(rotation, trained, context, before, after),
                   after.attention_factor)  # fmt: skip


def _pairs(rotation: Rotation) -> int:
    """Pairs that turn without scaling; Gemma 4's kind lists those that stand still too."""
    return len(_trained(rotation).inverse)


def _method(
    spec: Spec, context: int, kind: str, original: int,
    tables: Mapping[str, Sequence[float]] | None,
) -> Method:  # fmt: skip
    try:
        longer = extend(spec, context, kind, original, tables if kind == "longrope" else None)
    except FieldError as error:
        return Method(kind, refused=str(error))
    before, after = rotations(spec)[0], rotations(longer.spec)[0]
    turned = frequencies(after.rope, after.head, context_of(longer.spec), context)
    table = Turning(after, pairs_of(after, original, context, _trained(before), turned),
                    turned.attention_factor)  # fmt: skip
    stretches = [p.stretch for p in table.pairs]
    return Method(
        kind, factor=longer.factor, theta=float(after.rope.theta), settings=scaling_of(after.rope),
        attention_factor=turned.attention_factor, max_context=context_of(longer.spec),
        slowest=stretches[-1], fastest=stretches[0], counts=table.counts(),
        wavelengths=turned.wavelengths, notes=longer.notes,
        searched=kind != "longrope" or tables is not None,
    )  # fmt: skip


def _advice(
    tables: tuple[Turning, ...], original: Original, context: int, methods: tuple[Method, ...],
    scaling: dict[str, Any],
) -> list[str]:  # fmt: skip
    far = tables[0]
    counts, reach = far.counts(), far.rotation.reach
    said = "taken to be" if original.assumed else "is"
    found = [f"the original context {said} {original.tokens} tokens ({original.why})"]
    if reach is not None and reach <= original.tokens:
        far_enough = f"no layer sees farther than {reach} tokens: no distance is new"
        return [*found, f"{far_enough}, and the limit of the config is all that has to change"]
    found.append(f"{counts['never_complete']} of {counts['pairs']} pairs never complete a turn in "
                 f"{original.tokens} tokens")  # fmt: skip
    if counts["unseen"]:
        found.append(f"as it is, {counts['unseen']} of them reach angles at {context} tokens that "
                     f"{original.tokens} tokens do not show")  # fmt: skip
    weight = scaling.get("mscale_all_dim")
    if weight and scaling.get("factor"):
        times = mscale(float(scaling["factor"]), float(weight)) ** 2
        found.append(f"classes of latent attention also multiply its scores by {times:.4f} "
                     f"(mscale_all_dim {weight:g})")  # fmt: skip
    if not methods:
        kind = scaling.get("rope_type")
        return [*found, f"its {kind} scaling reaches {context} tokens"] if kind else found
    best = methods[0]
    if best.refused:
        return [*found, "no method can stretch it further: see the reasons"]
    found.append(f"{best.kind} ranks first: {_why(best)}")
    if best.factor > best.supported(trained=False):
        least = f"no evidence speaks for ×{best.factor:.4g} without training at the new length"
        most = best.supported(trained=True)
        found.append(least + (f" (with it, up to ×{most:.4g})" if most >= best.factor else ""))
    elif best.counts["fast_stretched"] or best.attention_factor != 1:
        found.append("short texts are read otherwise than in training: take the smallest factor "
                     "that is needed (qwen3-long)")  # fmt: skip
    bound = f"a base of {smallest_base(context):.2g} or more"
    found.append(f"for training anew at this length: {bound} (men2024, a fit for heads of 128)")
    found.append("none of this promises quality: measure loss and retrieval at the length")
    return found


def _why(best: Method) -> str:
    seen = "no pair reaches an angle that is new to it" if not best.counts["unseen"] else (
        f"{best.counts['unseen']} pairs reach angles that are new to them")  # fmt: skip
    fast = best.counts["fast_stretched"]
    kept = "no fast pair is slower" if not fast else f"{fast} fast pairs are slower"
    return f"{seen}, {kept}"


def smallest_base(context: int) -> float:
    """The base below which trained models retrieved poorly at a context: 0.0424 C^1.628.

    A fit of men2024 (figure 1) for heads of 128, to the smallest base under which tokens alike
    attract each other at every distance up to C.

    Example:
        >>> f"{smallest_base(32_768):.2g}"
        '9.5e+05'
    """
    return float(0.0424 * context**1.628)
