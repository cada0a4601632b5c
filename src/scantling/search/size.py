"""How large a model a compute budget asks for."""

from __future__ import annotations

from typing import Any

from scantling.costs.count import parameters
from scantling.costs.estimate import DAY_S, reference_mfu, training_time
from scantling.errors import FieldError
from scantling.hardware import Chip
from scantling.laws import Features, law
from scantling.spec import Spec

REFERENCE_ASPECT = 64
"""D/L of the shape that stands for a size; the law's valley is flat around it."""
DECADES = (5, 14)
STEPS = 40
"""Sizes tried for a decade of body parameters."""


def flops_of(
    days: float, chip: Chip, n_gpu: int, dtype: str, like: Spec | None = None, context: int = 8192
) -> int:  # fmt: skip
    """Training FLOPs that so many days on so many chips allow.

    Days × chips × peak × a utilisation: attention in full at that of a 7B, or 6 N a token, N what
    a token passes, at that of a model that is like the one to come. Experts make of it about half.

    Example:
        >>> from scantling import catalog
        >>> from scantling.hardware import chip
        >>> one, sparse = chip("h100-sxm"), catalog.model("qwen3-30b-a3b")
        >>> flops_of(30, one, 64, "bf16", sparse) < flops_of(30, one, 64, "bf16")
        True
    """
    peak = days * DAY_S * n_gpu * chip.rate(dtype)
    if like is None:
        return int(peak * reference_mfu(chip, n_gpu, dtype))
    tokens = 10**9
    seconds = training_time(like, tokens, chip, n_gpu, context, dtype).value_s
    return int(peak * 6 * parameters(like).active * tokens / (seconds * n_gpu * chip.rate(dtype)))


def size_of(
    flops: int, tokens: int | None, vocab_size: int, context: int, law_name: str,
    tied: bool | None = None,
) -> tuple[int, int, str]:  # fmt: skip
    """Parameters and tokens for training FLOPs.

    A size is a body N with width 64 times its depth, so L = (N / (12 · 64²))^(1/3). A token costs
    6 (N + V D) for the weights, the head included, and 12 L D S for attention in full:

        tokens = FLOPs / (6 (N + V D) + 12 L D S)

    With ``tokens`` given, the size whose cost fits them; without, the one with the least loss.

    Returns:
        Total parameters, tokens, and why.

    Raises:
        FieldError: If the answer lies beyond the sizes tried.

    Example:
        >>> params, tokens, _ = size_of(10**22, None, 128256, 8192, "aspect")
        >>> 3e9 < params < 3e10, 1e11 < tokens < 1e12
        (True, True)
    """
    one = law(law_name)
    best: tuple[float, int, int] | None = None
    edge = False
    first, last = DECADES[0] * STEPS, DECADES[1] * STEPS
    for step in range(first, last + 1):
        body = 10 ** (step / STEPS)
        depth = (body / (12 * REFERENCE_ASPECT**2)) ** (1 / 3)
        width = REFERENCE_ASPECT * depth
        table = vocab_size * width
        alike = tied if tied is not None else table > 0.15 * (body + 2 * table)
        total = body + table * (1 if alike else 2)
        affordable = flops / (6 * (body + table) + 12 * depth * width * context)
        if tokens is None:
            shape: dict[str, Any] = {"width": width, "depth": depth}
            score = one.loss(Features(body=body, total=total, tokens=affordable, **shape))
        else:
            score = abs(affordable / tokens - 1)
        if best is None or score < best[0]:
            best, edge = (float(score), int(total), int(affordable)), step in {first, last}
    assert best is not None
    if edge or best[2] < 1:
        raise FieldError("flops", f"{flops:.3g}", "asks for a size beyond every model")
    if tokens is not None:
        return best[1], tokens, f"what {flops:.3g} FLOPs buy at {tokens:.3g} tokens"
    return best[1], best[2], f"where the {one.name} law has its least loss at {flops:.3g} FLOPs"
