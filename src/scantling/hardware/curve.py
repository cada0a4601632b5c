"""A curve of straight pieces through measured points."""

from __future__ import annotations

import itertools
from typing import TypeAlias

from scantling.arith import Num, maximum, minimum

Points: TypeAlias = tuple[tuple[float, float], ...]
"""Where a curve passes, in rising x."""


def interpolate(x: Num, points: Points) -> Num:
    """A curve of straight pieces through points, flat beyond its ends; elementwise on arrays.

    With points (x₀, y₀), (x₁, y₁), … in rising x, each piece adds its slope times the part of it
    that lies below x:

        y(x) = y₀ + Σ (yᵢ₊₁ − yᵢ) / (xᵢ₊₁ − xᵢ) × (clip(x, xᵢ, xᵢ₊₁) − xᵢ)

    Example:
        >>> round(interpolate(96, ((64, 0.43), (128, 0.53))), 3)
        0.48
        >>> interpolate(32, ((64, 0.43), (128, 0.53)))
        0.43
    """
    y: Num = points[0][1] + 0.0 * x
    for (left, low), (right, high) in itertools.pairwise(points):
        y = y + (high - low) / (right - left) * (maximum(minimum(x, right), left) - left)
    return y
