"""Kernels of attention by engine and chip, and which of them take a head (data, with versions)."""

from __future__ import annotations

import functools
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct

from scantling.costs.flash import FusedKernel, fits, fused_kernels
from scantling.hardware import Chip
from scantling.sources import read_data


class Backend(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kernel of attention as an engine has it.

    Args:
        name: ``flashinfer``.
        title: Its name and version.
        sources: Keys of the bibliography.
        like: A kernel of ``costs.flash`` whose rule holds here.
        vendors: Whose chips it runs on.
        capabilities: NVIDIA's compute capabilities, the first and the last.
        least: The narrowest head.
        multiple: Heads are multiples of it up to ``most``; None takes ``pairs`` alone.
        most: The widest.
        pairs: (key, value) widths taken beside.
        uneven: Whether values may be narrower than keys.
        rounds: Widths that work is rounded up to.
        groups: Query heads to a KV head that its fast decoding takes; none is all.
        power_of_two_groups: Whether these must be powers of two.
        general: Whether any engine may take it, so that it stands where none is named.
        slow: Whether it is what is left where no faster one takes a head.
    """

    name: str
    title: str
    sources: tuple[str, ...]
    like: str | None = None
    vendors: tuple[str, ...] = ("NVIDIA",)
    capabilities: tuple[float, float] = (0.0, 99.0)
    least: int = 8
    multiple: int | None = None
    most: int = 0
    pairs: tuple[tuple[int, int], ...] = ()
    uneven: bool = False
    rounds: tuple[int, ...] = ()
    groups: tuple[int, ...] = ()
    power_of_two_groups: bool = False
    general: bool = False
    slow: bool = False

    @property
    def kernel(self) -> FusedKernel | None:
        """The kernel whose rule holds here, too."""
        return None if self.like is None else fused_kernels()[self.like]

    @property
    def range(self) -> tuple[float, float]:
        """Compute capabilities it runs on, the first and the last."""
        own = self.kernel
        if own is None:
            return self.capabilities
        return own.least_capability, own.most_capability or self.capabilities[1]

    def runs_on(self, chip: Chip | None) -> bool:
        """Whether it runs on a chip at all; without one it may."""
        if chip is None:
            return True
        if chip.vendor not in self.vendors:
            return False
        if chip.vendor != "NVIDIA" or chip.compute_capability is None:
            return True
        low, high = self.range
        return low <= float(chip.compute_capability) <= high

    def takes(self, key: int, value: int) -> Taken:
        """Whether it takes a head, and at which width, where it runs.

        Example:
            >>> backends()["flashinfer"].takes(80, 80).verdict
            'no'
            >>> backends()["flash2"].takes(80, 80)
            Taken(verdict='yes', width=96)
        """
        own = self.kernel
        pairs = self.pairs if own is None else (*self.pairs, *own.widths)
        multiple, most = (self.multiple, self.most) if own is None else (own.multiple, own.most)
        verdict, width = fits(key, value, multiple, most, pairs, uneven=self.uneven)
        if width is None or key < self.least:
            return Taken("no", None)
        if (key, value) in pairs:
            return Taken(verdict, key)
        return Taken(verdict, next((w for w in self.rounds if w >= width), width))


class Taken(NamedTuple):
    """Whether a backend takes a head, and the width it works at."""

    verdict: Literal["yes", "padded", "no"]
    width: int | None


@functools.cache
def backends() -> dict[str, Backend]:
    """Every backend by its name.

    Example:
        >>> backends()["trtllm-mmha"].takes(100, 100).verdict
        'no'
    """
    found = msgspec.convert(read_data("attention_kernels.toml")["backend"], list[Backend])
    return {b.name: b for b in found}
