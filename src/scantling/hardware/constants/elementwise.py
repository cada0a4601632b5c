"""Constants of work that only moves bytes: norms, activations, lookups, the optimizer."""

from __future__ import annotations

from typing import Literal

from scantling.arith import Num, log2
from scantling.hardware.constants.fitted import Scattered
from scantling.hardware.curve import interpolate

Light = Literal["copy", "norm", "activation", "rotary"]
"""Kinds of light work: what adds or copies, norms, activations, rotary positions."""


class ElementwiseConstants(Scattered, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of the bandwidth such kernels reach, and what a small one takes.

    Args:
        bandwidth_factor: Fraction of the memory bandwidth that additions and copies reach, and
            with them lookups and the optimizer.
        launch_s: What the smallest of them takes.
        norm: The fraction that a norm reaches.
        norm_s: What the smallest norm takes.
        activation: The fraction that an activation reaches, gated or not.
        activation_s: What the smallest activation takes.
        rotary: The fraction that turning queries and keys reaches.
        rotary_s: What the smallest of it takes.
        row_s: What each element of a row adds to the smallest addition: a block works it out alone.
        norm_row_s: The same of a norm.
        activation_row_s: The same of an activation.
        rotary_row_s: The same of turning queries and keys.
        sharpness: p of the p-norm that joins launch and bytes.
        copy_spread: How many times as far as the rest additions and copies are off.
        norm_spread: The same of norms.
        activation_spread: The same of activations.
        rotary_spread: The same of turning queries and keys.
        error: Median absolute relative error on models left out.
        slower: (log2 of the bytes one kernel moves, factor on their time): small pieces may stay
            in a cache, large ones be given memory that the system clears first. Empty where size
            does not count.
    """

    bandwidth_factor: float
    launch_s: float
    error: float
    norm: float
    norm_s: float
    activation: float
    activation_s: float
    rotary: float
    rotary_s: float
    row_s: float = 0.0
    norm_row_s: float = 0.0
    activation_row_s: float = 0.0
    rotary_row_s: float = 0.0
    sharpness: float = 2.0
    copy_spread: float = 1.0
    norm_spread: float = 1.0
    activation_spread: float = 1.0
    rotary_spread: float = 1.0
    slower: tuple[tuple[float, float], ...] = ()

    def at(self, kind: Light) -> tuple[float, float, float, float]:
        """The fraction of the bandwidth, the launch, an element's part of it, and the spread."""
        spread: float = getattr(self, f"{kind}_spread")
        if kind == "copy":
            return self.bandwidth_factor, self.launch_s, self.row_s, spread
        fraction: float = getattr(self, kind)
        launch_s: float = getattr(self, f"{kind}_s")
        row_s: float = getattr(self, f"{kind}_row_s")
        return fraction, launch_s, row_s, spread

    def slowed(self, piece_bytes: Num) -> Num:
        """The factor on the time of a kernel that moves so many bytes.

        Example:
            >>> from scantling.hardware import chip
            >>> chip("h100").constants.elementwise.slowed(2**30)
            1.0
        """
        return interpolate(log2(piece_bytes), self.slower) if self.slower else 1.0
