"""What a sweep counts beside its front: what each limit removed, needs at least, and just misses.

Counts of parts of a space merge into those of the whole, in the order of the parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from scantling.search.objectives import Costs, Limit

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    Row = Callable[[int], tuple[int, ...]]

NEAREST = 3
"""Shapes that are remembered where none keeps every limit."""


class Near(Struct, frozen=True):
    """A shape that keeps not every limit."""

    overrun: float
    """By how many times it misses the limit it misses most; of a size, how far off it is."""
    row: tuple[int, ...]
    needs: dict[str, float]
    """What each limit it breaks would have to be."""


class Tally(Struct):
    """The counts of a sweep, or of a part of it."""

    removed: dict[str, int]
    """How many shapes each limit removed; one shape can break several."""
    only: dict[str, int]
    """How many each limit alone removed of those that no cost was asked of."""
    least: dict[str, float]
    """For each limit on a cost, the least that a shape keeping every other limit needs."""
    near: list[Near]
    """Shapes of the right size and kind that miss limits on costs by least."""
    sized: list[Near]
    """Shapes that miss nothing but the size, the nearest first."""
    closest: list[Near]
    """Shapes nearest in size, whatever else they miss."""

    def remove(self, name: str, mask: NDArray[np.bool_]) -> None:
        """Count the shapes a limit removes."""
        self.drop(name, int(mask.size - mask.sum()))

    def drop(self, name: str, count: int) -> None:
        """Count so many shapes that a limit removes."""
        self.removed[name] = self.removed.get(name, 0) + count

    def alone(self, masks: Mapping[str, NDArray[np.bool_]]) -> NDArray[np.intp]:
        """Count the shapes that one limit alone removes; how many limits each shape breaks."""
        import numpy as np

        broken: NDArray[np.intp] = np.add.reduce([~mask for mask in masks.values()], dtype=np.intp)
        for name, mask in masks.items():
            n = int((~mask & (broken == 1)).sum())
            self.only[name] = self.only.get(name, 0) + n
        return broken

    def off_size(self, distance: NDArray[np.float64], misses: NDArray[np.bool_], row: Row) -> None:
        """Remember the shapes nearest in size, and those of them that miss nothing else."""
        import numpy as np

        _nearest(self.closest, distance, row)
        _nearest(self.sized, np.where(misses, distance, np.inf), row)

    def limit(
        self, costs: Costs, limits: tuple[Limit, ...], row: Row, counted: str = ""
    ) -> NDArray[np.bool_]:
        """Which shapes keep every limit on costs; counts and remembers what the others miss.

        What the limit named ``counted`` removes has been counted already.
        """
        import numpy as np

        n = len(costs.counted.total)  # type: ignore[arg-type]
        if not limits:
            return np.ones(n, dtype=bool)
        values = np.stack([
            np.broadcast_to(np.asarray(getattr(costs, one.of), dtype=float), n) for one in limits
        ])  # fmt: skip
        most = np.array([[one.most] for one in limits])
        kept = values <= most
        broken = (~kept).sum(axis=0)
        for one, value, mask in zip(limits, values, kept, strict=True):
            if one.name != counted:
                self.remove(one.name, mask)
            others = value[broken == ~mask]  # they break this one at most
            if len(others):
                least = float(others.min())
                self.least[one.name] = min(self.least.get(one.name, least), least)
        overrun = (values / most).max(axis=0)

        def needs(at: int) -> dict[str, float]:
            return {one.name: float(value[at])
                    for one, value, mask in zip(limits, values, kept, strict=True)
                    if not mask[at]}  # fmt: skip

        _nearest(self.near, np.where(broken > 0, overrun, np.inf), row, needs)
        found: NDArray[np.bool_] = broken == 0
        return found

    def merge(self, later: Tally) -> None:
        """Add the counts of the part of the space that comes next."""
        for own, other in ((self.removed, later.removed), (self.only, later.only)):
            for name, n in other.items():
                own[name] = own.get(name, 0) + n
        for name, least in later.least.items():
            self.least[name] = min(self.least.get(name, least), least)
        for mine, others in ((self.near, later.near), (self.sized, later.sized),
                             (self.closest, later.closest)):  # fmt: skip
            for one in others:
                _keep(mine, one)


def _nearest(
    found: list[Near], distance: NDArray[np.float64], row: Row,
    needs: Callable[[int], dict[str, float]] = lambda _: {},
) -> None:  # fmt: skip
    """Keep the shapes of least distance; those at no finite distance are none."""
    import numpy as np

    some = np.flatnonzero(distance < (found[-1].overrun if len(found) == NEAREST else np.inf))
    for at in some[np.argsort(distance[some], kind="stable")[:NEAREST]].tolist():
        _keep(found, Near(float(distance[at]), row(at), needs(at)))


def _keep(found: list[Near], one: Near) -> None:
    """Keep a shape if it is among the nearest; of equal ones those that came first."""
    if len(found) < NEAREST or one.overrun < found[-1].overrun:
        found.append(one)
        found.sort(key=lambda near: near.overrun)
        del found[NEAREST:]


def empty(removed: dict[str, int]) -> Tally:
    """Nothing but what a space has removed already."""
    return Tally(dict(removed), {}, {}, [], [], [])
