"""The size and the tokens that a compute budget is best spent on, and how flat that valley is."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
from msgspec import Struct

from scantling.errors import FieldError, UnknownNameError
from scantling.laws.features import Features
from scantling.laws.registry import LAWS, Law, law
from scantling.sources import read_data

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SIZES = (1e5, 1e14)
"""The sizes looked through, in 5000 steps of 0.4 %; the least loss is then placed between them."""


class Allocation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published power law from FLOPs to the tokens to spend them on.

    ``tokens = factor · C^power``, and N follows from C = ``flops_per_token`` · N · D, where
    ``counts`` says what N is.
    """

    title: str
    factor: float
    power: float
    flops_per_token: float
    counts: Literal["body", "total", "flops"]
    domain: tuple[float, float]
    source: str


class Optimum(NamedTuple):
    """The best size and tokens for a budget; ``low`` and ``high`` end the flat valley.

    ``loss`` and the valley are ``None`` for a law that says only where the optimum is.
    """

    size: float
    tokens: float
    loss: float | None
    low: float | None
    high: float | None
    outside: tuple[str, ...]


@functools.cache
def allocations() -> dict[str, Allocation]:
    """Every published allocation by its name.

    Example:
        >>> sorted(allocations())
        ['deepseek-2024', 'llama-3-2024', 'minicpm-2024']
    """
    return msgspec.convert(read_data("laws.toml")["allocations"], dict[str, Allocation])


def compute_optimal(
    name: str, flops: float, *, served: float = 0.0, unique: float | None = None,
    aspect: float = 64.0, tolerance: float = 0.005,
) -> Optimum:  # fmt: skip
    """Size and tokens of the least loss for a number of FLOPs.

    A parameter costs 6 FLOPs a trained token and 2 a served one, so on a budget C

        C = 6 N D + 2 N S,    D = (C/N − 2 S)/6

    and the loss along that line has one minimum in N. It is found on a grid of sizes and placed
    by the parabola through the three lowest points, which is exact to 1e-5 of N.

    Args:
        name: A law of the loss, a law file, or an allocation.
        flops: The budget C; with ``served`` it pays for training and serving.
        served: Tokens served over the life of the model, S.
        unique: Unique tokens there are: only a law of repetition uses it.
        aspect: Width over depth of the shapes, for a law that sees shape.
        tolerance: Loss over the least that still counts as the valley, nats a token.

    Raises:
        FieldError: If the budget is not positive, or too small for what is to be served.

    Example:
        >>> best = compute_optimal("chinchilla-2024", 5.76e23)  # Gopher's budget
        >>> f"{best.size:.3g} {best.tokens:.3g}"
        '7.22e+10 1.33e+12'
        >>> compute_optimal("chinchilla-2024", 1e23, served=1e13).size < 3e10
        True
    """
    if not flops > 0:
        raise FieldError("flops", flops, "must be above zero")
    if name in allocations():
        return _allocated(allocations()[name], flops)
    if name not in LAWS and not name.endswith(".toml"):
        raise UnknownNameError("law", name, [*LAWS, *allocations()])
    return _searched(law(name), flops, served, unique, aspect, tolerance)


def _allocated(one: Allocation, flops: float) -> Optimum:
    tokens = one.factor * flops**one.power
    low, high = one.domain
    outside = () if low <= flops <= high else (f"flops outside the fitted {low:g} to {high:g}",)
    return Optimum(flops / (one.flops_per_token * tokens), tokens, None, None, None, outside)


def _searched(
    one: Law, flops: float, served: float, unique: float | None, aspect: float, tolerance: float,
) -> Optimum:  # fmt: skip
    import numpy as np

    logs = np.linspace(np.log(SIZES[0]), np.log(SIZES[1]), 5000)
    tokens = (flops / np.exp(logs) - 2 * served) / 6
    logs = logs[tokens > 1.0]
    if len(logs) < 3:
        raise FieldError("flops", flops, f"do not pay for {served:.3g} served tokens of any model")

    def loss(s: NDArray[np.float64]) -> NDArray[np.float64]:
        d = (flops / np.exp(s) - 2 * served) / 6
        return np.asarray(one.loss(shaped(np.exp(s), d, aspect, unique)))

    values = loss(logs)
    i = min(max(int(np.argmin(values)), 1), len(logs) - 2)
    left, here, right = values[i - 1 : i + 2]
    bend = left - 2 * here + right
    shift = 0.5 * (left - right) / bend if bend > 0 else 0.0
    best = np.array([logs[i] + shift * (logs[1] - logs[0])])
    least = float(loss(best)[0])
    valley = np.exp(logs[values <= least + tolerance])
    size, d = float(np.exp(best[0])), float((flops / np.exp(best[0]) - 2 * served) / 6)
    at = shaped(size, d, aspect, unique)
    outside = tuple(axis for axis, out in one.outside(at).items() if out)
    return Optimum(size, d, least, float(valley[0]), float(valley[-1]), outside)


def shaped(
    size: float | NDArray[np.float64], tokens: float | NDArray[np.float64], aspect: float,
    unique: float | None = None,
) -> Features:  # fmt: skip
    """A model of a size whose width over depth is given: body = 12 L W², so L³ = N/(12 aspect²).

    Example:
        >>> f = shaped(12 * 20 * 1280**2, 1e10, 64)
        >>> round(f.depth, 6), round(f.width, 6)
        (20.0, 1280.0)
    """
    depth = (size / (12 * aspect**2)) ** (1 / 3)
    more = {} if unique is None else {"unique_tokens": unique}
    return Features(body=size, total=size, width=aspect * depth, depth=depth, tokens=tokens, **more)
