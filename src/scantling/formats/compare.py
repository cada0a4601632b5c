"""A checkpoint against a spec: what is missing, extra or of another shape.

Where the names of a model type are known (``data/hf_names.toml``) every tensor is looked up by its
name, else the multisets of logical shapes are compared. Both allow what real files do: q, k, v or
gate and up fused, experts stacked or one by one, matrices transposed (Conv1D), a tied head stored
again, constants of a class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct

from scantling.errors import FieldError, shorten
from scantling.formats.checkpoint import Checkpoint, names
from scantling.formats.packed import Weight
from scantling.formats.stored import size
from scantling.ops import Tensor, operators, tensors
from scantling.spec import Spec

Shape = tuple[int, ...]
MOST_ENTRIES = 2_000_000


class Difference(Struct, frozen=True):
    """Tensors that differ in the same way."""

    name: str
    """Canonical, or of the checkpoint with {i} for a layer and {e} for an expert."""
    expected: Shape | None
    found: Shape | None
    count: int
    example: str = ""
    """One of them, as the checkpoint names it."""

    def line(self) -> str:
        """In words: ``decoder.layer.ffn.up is (64, 32), not (128, 32) (2 tensors)``."""
        many = f" ({self.count} tensors)" if self.count > 1 else ""
        shown = shorten(self.example or self.name, 120)
        if self.found is None:
            return f"{shown} {self.expected} is missing{many}"
        if self.expected is None:
            return f"{shown} {self.found} is extra{many}"
        return f"{shown} is {self.found}, not {self.expected}{many}"


class Comparison(Struct, frozen=True, kw_only=True):
    """What a checkpoint and a spec do not share."""

    method: Literal["names", "shapes"]
    matched: int
    """Tensors of the checkpoint that are what the spec says."""
    transposed: int = 0
    missing: tuple[Difference, ...] = ()
    extra: tuple[Difference, ...] = ()
    different: tuple[Difference, ...] = ()
    stored_again: tuple[str, ...] = ()
    """Copies of tied weights."""
    beyond: int = 0
    """Parameters of layers past the last: modules that predict further tokens."""
    towers: int = 0
    """Parameters of vision and audio parts, which a spec leaves out."""
    constants: int = 0
    """Elements of masks and frequencies that are no parameters."""

    @property
    def agrees(self) -> bool:
        """Nothing is missing, extra or differently shaped."""
        return not (self.missing or self.extra or self.different)

    def lines(self) -> list[str]:
        """The differences in words."""
        return [d.line() for d in (*self.different, *self.missing, *self.extra)]

    def to_json(self) -> dict[str, Any]:
        """As plain data for a report."""
        lists = {
            key: [
                {"name": d.name, "expected": d.expected, "found": d.found, "count": d.count,
                 "example": d.example}
                for d in getattr(self, key)
            ]
            for key in ("missing", "extra", "different")
        }  # fmt: skip
        return {
            "agrees": self.agrees, "method": self.method, "matched": self.matched,
            "transposed": self.transposed, **lists, "stored_again": list(self.stored_again),
            "beyond_parameters": self.beyond, "tower_parameters": self.towers,
            "constant_elements": self.constants,
        }  # fmt: skip


class _Need(Struct):
    """A tensor of one layer that the checkpoint should hold; ``units`` is its experts, or 1."""

    tensor: Tensor
    shape: Shape
    units: int
    found: int = 0
    parts: int = 0


class _Place(Struct, frozen=True):
    """A checkpoint tensor's name taken apart."""

    rest: str
    layer: int = -1
    """-1 outside the layers."""
    expert: int | None = None
    pattern: str = ""


def compare(checkpoint: Checkpoint, spec: Spec, model_type: str) -> Comparison:
    """Compare tensor by tensor.

    Args:
        checkpoint: What the files hold.
        spec: What the model should be; one spec, not a column.
        model_type: Whose names to expect; a type that is not in the table is compared by shape.

    Raises:
        FieldError: If the spec is too large to walk.

    Example:
        >>> from scantling.formats import hf
        >>> from scantling.formats.stored import Stored
        >>> c = {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2}
        >>> wte = Stored("wte.weight", (50257, 8), "F32", 1608224, "x.safetensors")
        >>> w = Weight(wte.name, wte.shape, "weight", "", wte)
        >>> found = compare(Checkpoint(name="x", format="safetensors", tensors=(w,),
        ...                            file_bytes=0), hf.read(c).spec, "gpt2")
        >>> found.matched, found.missing[0].line()
        (1, 'model.position (1024, 8) is missing')
    """
    entries = int(spec.n_layer) * len(tensors(spec))
    if entries > MOST_ENTRIES:
        raise FieldError("n_layer", spec.n_layer, "has too many tensors to compare one by one")
    constants = sum(t.elements for t in checkpoint.tensors if t.role == "constant")
    if model_type in names()["types"] and spec.encoder is None:
        walk = _ByNames(spec)
        for w in checkpoint.weights():
            walk.add(w)
        found = walk.result(constants)
        if 2 * sum(d.count for d in found.extra) <= len(checkpoint.weights()):
            return found
    return _by_shapes(checkpoint.weights(), spec, constants)


def _needs(spec: Spec) -> dict[tuple[int, str], _Need]:
    found: dict[tuple[int, str], _Need] = {}
    by_kind: dict[str, list[tuple[str, Tensor]]] = {}
    for t in tensors(spec):
        where, _, rest = t.name.partition(".")
        kind, _, leaf = rest.partition(".")
        if where == "decoder" and leaf:
            by_kind.setdefault(kind, []).append((leaf, t))
        else:
            found[-1, t.name] = _need(t)
    for i, kind in enumerate(spec.decoder.expand()):
        for leaf, t in by_kind.get(kind, []):
            found[i, leaf] = _need(t)
    return found


def _need(t: Tensor) -> _Need:
    return _Need(t, _shape(t), 1 if t.experts is None else int(t.experts))


def _shape(t: Tensor) -> Shape:
    return tuple(int(width) for width in t.shape)


def _place(name: str) -> _Place | None:
    """Take a name apart; None if it stands under no known prefix."""
    table = names()
    parts = name.split(".")
    for i, part in enumerate(parts[:-2]):
        if part in table["layers"] and parts[i + 1].isdecimal() and len(parts[i + 1]) < 7:
            if ".".join(parts[:i]) not in table["prefixes"]:
                return None
            rest, expert = parts[i + 2 :], None
            for j, word in enumerate(rest):
                if j and rest[j - 1] == "experts" and word.isdecimal() and len(word) < 7:
                    rest[j], expert = "{e}", int(word)
                    break
            text = ".".join(rest)
            pattern = ".".join([*parts[: i + 1], "{i}", text])
            return _Place(text, int(parts[i + 1]), expert, pattern)
    for i in range(min(len(parts), 3)):
        if ".".join(parts[:i]) in table["prefixes"] and ".".join(parts[i:]) in table["top"]:
            return _Place(".".join(parts[i:]), pattern=name)
    return None


class _Tally:
    """Differences of one kind, equal ones counted together."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, Shape | None, Shape | None], list[Any]] = {}

    def add(self, name: str, expected: Shape | None, found: Shape | None, example: str,
            n: int = 1) -> None:  # fmt: skip
        one = self.found.setdefault((name, expected, found), [0, example])
        one[0] += n

    def differences(self) -> tuple[Difference, ...]:
        return tuple(Difference(*key, n, example) for key, (n, example) in self.found.items())


class _ByNames:
    """Looks every tensor up by its name, and keeps the tallies."""

    def __init__(self, spec: Spec) -> None:
        self.table = names()
        self.needs = _needs(spec)
        self.depth = int(spec.n_layer)
        self.extra, self.different, self.missing = _Tally(), _Tally(), _Tally()
        self.again: list[str] = []
        self.matched = self.transposed = self.beyond = self.towers = 0

    def add(self, w: Weight) -> None:
        """Account for one tensor of the checkpoint."""
        place = _place(w.name)
        if _is_tower(w):
            self.towers += w.elements
        elif w.name.split(".")[0] in self.table["beyond"] or (place and place.layer >= self.depth):
            self.beyond += w.elements
        elif place is None:
            self.extra.add(w.name, None, w.shape, "")
        elif (place.layer, part := self.table["part"].get(place.rest)) in self.needs:
            self.needs[place.layer, part].parts += w.elements
            self.matched += 1
        else:
            self._place(w, place)

    def _place(self, w: Weight, place: _Place) -> None:
        chosen, fit = _choose(w, place, self.needs)
        if not chosen:
            self.extra.add(place.pattern, None, w.shape, w.name)
            return
        for need in chosen:
            need.found += 1 if place.expert is not None else need.units
        if chosen[0].tensor.alias is not None:
            self.again.append(w.name)
        if fit is None:
            expected = _layouts(chosen, place.expert)[0]
            self.different.add(place.pattern, expected, w.shape, w.name)
        else:
            self.matched += 1
            self.transposed += fit

    def result(self, constants: int) -> Comparison:
        """What is left over."""
        for need in self.needs.values():
            lacking = need.units - need.found
            if need.parts and not need.found:
                if need.parts != size(need.shape):
                    self.different.add(need.tensor.name, need.shape, (need.parts,), "")
            elif lacking > 0 and need.tensor.alias is None:
                self.missing.add(need.tensor.name, need.shape, None, "", lacking)
            elif lacking < 0:
                self.extra.add(need.tensor.name, None, need.shape, "", -lacking)
        return Comparison(
            method="names", matched=self.matched, transposed=self.transposed,
            missing=self.missing.differences(), extra=self.extra.differences(),
            different=self.different.differences(), stored_again=tuple(self.again),
            beyond=self.beyond, towers=self.towers, constants=constants,
        )  # fmt: skip


def _is_tower(w: Weight) -> bool:
    """Whether a tensor belongs to what sees or hears."""
    return not set(w.name.split(".")).isdisjoint(names()["towers"])


def _choose(
    w: Weight, place: _Place, needs: dict[tuple[int, str], _Need]
) -> tuple[list[_Need], bool | None]:
    """What a tensor holds, and whether it is transposed; None where its shape is another."""
    table = names()["top" if place.layer < 0 else "layer"]
    possible: list[list[_Need]] = []
    for text in table.get(place.rest, []):
        chosen = [needs.get((place.layer, name)) for name in text.split(" + ")]
        found = [need for need in chosen if need is not None]
        if len(found) < len(chosen):
            continue
        possible.append(found)
        fit = _fit(w, found, place.expert)
        if fit is not None:
            return found, fit
    return (possible[0], None) if possible else ([], None)


def _layouts(chosen: list[_Need], expert: int | None) -> list[Shape]:
    """Shapes that hold these tensors: as they are first, then transposed or flat."""
    rows = sum(need.shape[0] for need in chosen)
    one = (rows, *chosen[0].shape[1:])
    turned = one[::-1]
    n = chosen[0].units
    if expert is not None or n == 1:
        stack = [(1, *one), (1, *turned)] if expert is None and n == 1 else []
        return [one, turned, *stack]
    return [(n, *one), (n, *turned), (n * one[0], *one[1:])]


def _fit(w: Weight, chosen: list[_Need], expert: int | None) -> bool | None:
    if expert is not None and expert >= chosen[0].units:
        return None
    layouts = _layouts(chosen, expert)
    if w.scheme == "bitsandbytes-4bit":
        return False if w.elements == _even(layouts[0]) else None
    squeezed = _squeeze(w.shape)
    if squeezed == _squeeze(layouts[0]):
        return False
    return True if any(squeezed == _squeeze(s) for s in layouts[1:]) else None


def _squeeze(shape: Shape) -> Shape:
    return tuple(width for width in shape if width != 1)


def _normal(shape: Shape) -> Shape:
    """A shape without ones, the last two dimensions in order: a matrix and its transpose agree."""
    found = _squeeze(shape)
    return found if len(found) < 2 else (*found[:-2], *sorted(found[-2:]))


class _ByShapes:
    """Takes equal shapes from both sides until nothing can be taken."""

    def __init__(self, weights: tuple[Weight, ...], spec: Spec) -> None:
        self.called: dict[Shape, str] = {}
        self.need: Counter[Shape] = Counter()
        self.aliases: Counter[Shape] = Counter()
        for t in tensors(spec):
            shape = _normal(_shape(t))
            self.called.setdefault(shape, t.name)
            side = self.need if t.alias is None else self.aliases
            side[shape] += int(t.copies) * _need(t).units
        own = [w for w in weights if not _is_tower(w)]
        self.towers = sum(w.elements for w in weights) - sum(w.elements for w in own)
        self.flat = [w.elements for w in own if w.scheme == "bitsandbytes-4bit"]
        self.have = Counter(_normal(w.shape) for w in own if w.scheme != "bitsandbytes-4bit")
        self.examples = {_normal(w.shape): w.name for w in reversed(own)}
        self.matched = 0

    def take(self, found: Shape, members: list[tuple[Shape, int]]) -> None:
        """Let tensors of a shape stand for members, each so many times, as often as possible."""
        wanted: Counter[Shape] = Counter()
        for member, n in members:
            wanted[member] += n
        n = min([self.have[found], *(self.need[shape] // k for shape, k in wanted.items())])
        if n > 0:
            self.have[found] -= n
            self.matched += n
            for shape, k in wanted.items():
                self.need[shape] -= k * n

    def take_flat(self) -> None:
        """Let packed tensors of unknown shape stand for any of their size."""
        for n in self.flat:
            same = next((s for s, k in self.need.items() if k > 0 and _even(s) == n), None)
            if same is None:
                self.have[n,] += 1
            else:
                self.need[same] -= 1
                self.matched += 1

    def result(self, constants: int) -> Comparison:
        """What is left on both sides; a tied weight may be there again."""
        again = []
        for shape, n in self.aliases.items():
            if self.have[shape]:
                again.append(self.called[shape])
                self.have[shape] -= min(n, self.have[shape])
        missing, extra = _Tally(), _Tally()
        for shape, n in self.need.items():
            if n:
                missing.add(self.called[shape], shape, None, "", n)
        for shape, n in self.have.items():
            if n:
                extra.add(self.examples.get(shape, "packed weight"), None, shape, "", n)
        return Comparison(
            method="shapes", matched=self.matched, missing=missing.differences(),
            extra=extra.differences(), stored_again=tuple(again), towers=self.towers,
            constants=constants,
        )  # fmt: skip


def _even(shape: Shape) -> int:
    """Elements, rounded up to whole bytes of two."""
    return size(shape) + size(shape) % 2


def _by_shapes(weights: tuple[Weight, ...], spec: Spec, constants: int) -> Comparison:
    """Single tensors first, or fused ones first: whichever leaves less, as a shape may be both."""
    found = []
    single = [(shape, [(shape, 1)]) for shape in _ByShapes((), spec).need]
    combined = list(_combined(spec))
    for order in ([*single, *combined], [*combined, *single]):
        both = _ByShapes(weights, spec)
        for shape, members in order:
            both.take(shape, members)
        both.take_flat()
        found.append(both.result(constants))
    return min(found, key=lambda c: sum(d.count for d in (*c.missing, *c.extra)))


def _combined(spec: Spec) -> Iterable[tuple[Shape, list[tuple[Shape, int]]]]:
    """Shapes that hold several tensors of one product: stacked, fused, or both."""
    for op in operators(spec):
        for rank in (2, 1):
            group = [t for t in op.tensors if len(t.shape) == rank and t.alias is None]
            for i in range(len(group)):
                for j in range(len(group), i, -1):
                    run = group[i:j]
                    if len({t.shape[1:] for t in run}) > 1 or len({t.experts for t in run}) > 1:
                        continue
                    shapes = [_shape(t) for t in run]
                    one = (sum(s[0] for s in shapes), *shapes[0][1:])
                    experts = run[0].experts
                    if experts is not None:
                        n = int(experts)
                        members = [(_normal(s), n) for s in shapes]
                        yield _normal((n, *one)), members
                        yield _normal((n * one[0], *one[1:])), members
                    if len(run) > 1:
                        yield _normal(one), [(_normal(s), 1) for s in shapes]


__all__ = ["Comparison", "Difference", "compare"]
