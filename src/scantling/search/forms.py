"""Counts of a whole family as linear forms: what a sweep asks of every shape, cheaply.

Every weight lies outside the layers or in a layer of some kind, and a layer's are linear in the
feed-forward width F. So with n_k layers of kind k, all of it a column over the rows of a family:

    N = N_outside + Σ_k n_k (a_k + b_k F)

The coefficients are differences of counts by the operators, at no and one more layer of a kind
and at F = 0 and 1, so there is no second formula of what a model weighs. The rows of a family are
some thousands, its shapes millions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from scantling.arith import maximum
from scantling.costs.cache import kv_cache
from scantling.costs.count import attention_parameters, mlp_parameters, parameters
from scantling.costs.quantize import scheme
from scantling.search.budget import Budget
from scantling.search.families import Family
from scantling.spec import Run, Spec, vary

if TYPE_CHECKING:
    from numpy.typing import NDArray

QUANTITIES = ("total", "active", "mlp", "attention")


ENCODER = "encoder"
"""The one kind of layer of an encoder."""


class Form(Struct, frozen=True):
    """One quantity of a family: what lies outside layers, and by kind a and b of a + b F."""

    outside: NDArray[Any]
    by_kind: dict[str, tuple[NDArray[Any], NDArray[Any]]]

    def at(self, row: Any, layers: dict[str, Any]) -> tuple[Any, Any]:
        """The quantity of some shapes as (constant, slope) in F.

        Args:
            row: Place of each shape in the rows.
            layers: Layers of each kind.
        """
        constant: Any = self.outside[row]
        slope: Any = 0
        for name, (a, b) in self.by_kind.items():
            constant = constant + layers[name] * a[row]
            if b.any():
                slope = slope + layers[name] * b[row]
        return constant, slope


def forms(family: Family, b: Budget) -> dict[str, Form]:
    """Total, active, feed-forward and attention parameters of a family, and its cache.

    The cache is that of a sequence at the serving context of the budget, in bytes.
    """
    import numpy as np

    count = len(next(iter(family.rows.values())))
    every = np.arange(count)
    outside: dict[str, Any] = {}
    slopes: dict[str, dict[str, Any]] = {}
    kinds = [kind.name for kind in family.spec.decoder.kinds]
    for kind in (*kinds, *((ENCODER,) if family.encoder else ())):
        # outside and one layer, two layers, and both of a width more
        one, two, wider, widest = (
            _quantities(_only(family, kind, every, n, width), b)
            for width in (0, 1) for n in (1, 2)
        )  # fmt: skip
        for name, value in one.items():
            layer = two[name] - value
            # beside one layer of an encoder, which is no more outside than the decoder's is
            outside[name] = outside[name] - layer if kind == ENCODER else value - layer
            slope = widest[name] - wider[name] - layer
            slopes.setdefault(name, {})[kind] = (_column(layer, count), _column(slope, count))
    return {name: Form(_column(value, count), slopes[name]) for name, value in outside.items()}


def _only(family: Family, kind: str, row: Any, n: int, width: int) -> Spec:
    """The rows of a family with n layers of one kind alone, beside one of an encoder if any."""
    dims = {name: value for name, value in family.dims(row, n, width).items()
            if name not in family.stacks(n)}  # fmt: skip
    if family.encoder:
        dims["n_encoder_layer"] = n if kind == ENCODER else 1
    spec = vary(family.spec, **dims)
    if kind == ENCODER:
        return spec
    stack = replace(spec.decoder, kinds=(spec.decoder.kind(kind),), layout=(Run((kind,), n),))
    return replace(spec, decoder=stack)


def _quantities(spec: Spec, b: Budget) -> dict[str, Any]:
    p = parameters(spec)
    return {
        "total": p.total, "active": p.active, "mlp": mlp_parameters(p),
        "attention": attention_parameters(p),
        "kv": kv_cache(spec, 1, b.serve_context, b.kv_dtype).bytes,
    }  # fmt: skip


def _column(value: Any, count: int) -> Any:
    import numpy as np

    return np.ascontiguousarray(np.broadcast_to(value, count))


class Counted(Struct, frozen=True):
    """Shapes of one family with their solved width and cheap counts."""

    family: Family
    index: int
    """Of the family in its space."""
    row: NDArray[Any]
    depth: NDArray[Any]
    layers: dict[str, Any]
    """Layers of each kind."""
    forms: dict[str, Form]
    width: Any
    """The solved width, of the family's ``lead``."""
    total: Any
    active: Any

    @property
    def kv(self) -> Any:
        """Cache of a sequence at the serving context, bytes."""
        return self._of("kv")

    @property
    def mlp(self) -> Any:
        """Parameters of feed-forwards."""
        return self._of("mlp")

    @property
    def attention(self) -> Any:
        """Parameters of attention."""
        return self._of("attention")

    def _of(self, name: str) -> Any:
        constant, slope = self.forms[name].at(self.row, self.layers)
        return constant + slope * self.width

    def some(self, keep: NDArray[Any]) -> Counted:
        """Some of the shapes, by their places."""
        row, depth, width, total, active = (
            column[keep] for column in (self.row, self.depth, self.width, self.total, self.active)
        )
        layers = {name: n[keep] if hasattr(n, "dtype") else n for name, n in self.layers.items()}
        return replace(self, row=row, depth=depth, layers=layers, width=width, total=total,
                       active=active)  # fmt: skip

    def dims(self, keep: Any) -> dict[str, Any]:
        """Every dimension of some of the shapes."""
        return self.family.dims(self.row[keep], self.depth[keep], self.width[keep])


def count(
    family: Family, found: dict[str, Form], index: int, row: Any, depth: Any, b: Budget
) -> Counted:
    """Count shapes; the width brings the total nearest to the budget, as ``solve_width`` does."""
    spec = vary(family.spec, **family.stacks(depth))
    layers: dict[str, Any] = {**spec.decoder.occurrences()}
    if family.encoder:
        layers[ENCODER] = depth * family.encoder
    constant, slope = found["total"].at(row, layers)
    if family.lead in family.rows:
        width = family.rows[family.lead][row]
    else:
        multiple = width_multiple(b, family.lead)
        if family.parts:  # each of several widths is some units, so units are half as wide
            multiple = math.gcd(b.multiple, 64) * b.tp
        step = slope * multiple
        width = maximum((2 * (b.params - constant) + step) // (2 * step), 1) * multiple
    total = active = constant + slope * width
    if b.moe:
        constant, slope = found["active"].at(row, layers)
        active = constant + slope * width
    return Counted(family, index, row, depth, layers, found, width, total, active)


def width_multiple(b: Budget, lead: str) -> int:
    """What a solved width is a multiple of: the alignment on each rank of its split.

    Groups and blocks of a quantisation stay whole on each rank, which the alignment takes in.

    The feed-forwards of an encoder-decoder, whose heads follow the width, come in half steps: 2816
    in T5 v1.1 large. Experts that are spread whole over ranks are not cut; those of models below
    ten billion, some hundreds wide, come in half steps.
    """
    unit = b.multiple
    if b.quant is not None:
        one = scheme(b.quant)
        unit = math.lcm(unit, one.in_unit, one.out_unit, one.out_multiple, one.multiple)
    if lead == "d_ff":
        return (unit if b.kind == "decoder" else math.gcd(unit, 64)) * b.tp
    if b.params < 10**10 and b.quant is None:
        unit = math.gcd(unit, 64)
    return unit * (1 if b.ep > 1 else b.tp)
