"""One field of a choice across its axis: what every value costs where it is the one fixed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from scantling.arith import round_up
from scantling.errors import FieldError, ScantlingError, nearest
from scantling.quantity import Quantity
from scantling.search import Front, design
from scantling.search.budget import Budget
from scantling.search.candidate import UNPRICED, Candidate, difference
from scantling.search.explain import FIELDS
from scantling.search.kinds import axes_of
from scantling.search.space import HEAD_WIDTHS, depth_step, split
from scantling.spec import has, read

FACTORS = (0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0)
"""Where a depth or a width is tried, as shares of the choice's."""


class AxisRow(Struct, frozen=True):
    """One value of a field, with the best that is left when it is fixed."""

    value: int | bool
    given: bool
    """Whether it is the choice's own."""
    choice: Candidate | None
    """The choice itself, or that of a search with this value fixed; None where none is feasible."""
    loss: Quantity | None
    """Its loss against that of the free choice; None where the law cannot price the step."""
    least: dict[str, float]
    """The least of each objective over the shapes of this value."""
    feasible: int
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """A row of ``values`` of ``explain`` in ``design --json``."""
        c = self.choice
        found: dict[str, Any] = {"value": self.value, "given": self.given,
                                 "feasible": self.feasible, "why": self.why}  # fmt: skip
        if c is not None:
            found |= {
                "name": c.name, "dims": c.dims(), "days": c.days,
                "kv_bytes_per_token": c.kv_growth,
                "tpot_seconds": float(c.decode.value_s), "least": self.least,
                "loss": None if self.loss is None else self.loss.to_json(),
            }  # fmt: skip
        return found


def along(
    front: Front, field: str, progress: Callable[[int, int], None] | None = None
) -> tuple[AxisRow, ...]:
    """Every value of a field near the choice, each with a search of its own.

    The other axes stay free, so a row is what the value costs once everything else has made room
    for it, where a neighbour (``explain``) only moves the FFN width.

    Args:
        front: A front with a choice.
        field: One of its dimensions, or ``tied``.
        progress: Called with (values done, values in all).

    Raises:
        FieldError: If the choice has no such field.
    """
    c = front.chosen
    known = [f for f in FIELDS if f == "tied" or has(c.spec, f)]
    if field not in known:
        alike = nearest(field, known, 1)
        hint = f"did you mean {alike[0]}?" if alike else f"use {', '.join(known)}"
        raise FieldError("--explain", field, "is no field of the choice", hint)
    given: Any = c.spec.tied if field == "tied" else int(read(c.spec, field))
    near = _values(front.budget, field, given) if _searched(front.budget, field) else ()
    values = sorted({given, *near})
    rows = []
    for n, value in enumerate(values):
        rows.append(_row(front, field, value, given))
        if progress is not None:
            progress(n + 1, len(values))
    return tuple(rows)


def _row(front: Front, field: str, value: Any, given: Any) -> AxisRow:
    c = front.chosen
    try:
        found = design(_fixed(front.budget, field, value), baselines=())
    except ScantlingError as error:
        return AxisRow(value, value == given, None, None, {}, 0, str(error))
    if not found.feasible:
        binding = max(found.swept.removed.items(), key=lambda pair: pair[1], default=("", 0))[0]
        return AxisRow(value, value == given, None, None, {}, 0,
                       f"no shape keeps every limit; most break: {binding}")  # fmt: skip
    best = c if value == given else found.chosen
    names = ("loss", "training_days", "kv_bytes_per_token", "decode_s")
    least = dict(zip(names, found.swept.objectives.min(axis=0).tolist(), strict=False))
    # nats of two vocabularies cannot be compared, and no law here sees experts or ranks
    unpriced = field in UNPRICED or not c.priced
    loss = None if unpriced else difference(best, c)
    if unpriced:
        del least["loss"]
    return AxisRow(value, value == given, best, loss, least, found.swept.feasible)


def _searched(b: Budget, field: str) -> bool:
    """Whether a field is an axis of its own: others follow from a rule, a ratio or a schedule."""
    if field in {"tied", "window"}:
        return True
    return field in axes_of(b) and not (field == "d_ff" and b.schedule is not None)


def _fixed(b: Budget, field: str, value: Any) -> Budget:
    """A budget with one value of a field, whatever it said of it before."""
    free = {
        name: {k: v for k, v in getattr(b, name).items() if k != field}
        for name in ("fixed", "bounded", "listed")
    }
    if field in {"tied", "vocab_size", "window"}:
        return replace(b, **{**free, field: value})
    return replace(b, **{**free, "fixed": {**free["fixed"], field: value}})


def _values(b: Budget, field: str, given: Any) -> Iterator[Any]:
    """The values worth a search: those that were listed, else some around the choice's."""
    if field in b.listed:
        yield from b.listed[field]
        return
    if field == "tied":
        yield not given
    elif field == "d_head":
        yield from HEAD_WIDTHS
    elif field in {"n_kv_head", "top_k"}:
        yield from (n for n in (1, 2, 4, 8, 16, 32) if n <= 4 * given)
    elif field == "vocab_size":
        yield from (round_up(given // 4, 128), round_up(given // 2, 128), round_up(given * 2, 128))
    else:
        step = {"n_layer": depth_step(b), "n_head": split(b), "n_expert": 8}.get(
            field, b.multiple * (b.tp if field == "d_ff" else 1))  # fmt: skip
        for factor in FACTORS:
            value = round(given * factor / step) * step
            if value > 0:
                yield value
        yield from (v for v in (given - step, given + step) if v > 0)
