"""How large a model a compute budget asks for."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from scantling.costs.estimate import DAY_S, reference_mfu, training_mfu
from scantling.errors import FieldError
from scantling.hardware import Chip
from scantling.laws import law
from scantling.laws.optimum import REFERENCE_ASPECT, Spending, shaped
from scantling.laws.vocabulary import embedding_parameters
from scantling.search.peers import quantile
from scantling.spec import Spec

FULL = "attention in full and the head counted"
"""What FLOPs of a budget pay for, where they come from days or give the size."""
DECADES = (5, 14)
STEPS = 40
"""Sizes tried for a decade of body parameters."""


def flops_of(
    days: float, chip: Chip, n_gpu: int, dtype: str, like: Sequence[Spec] = (), context: int = 8192
) -> int:  # fmt: skip
    """Training FLOPs that so many days on so many chips allow, attention in full and the head.

    Days × chips × peak × the MFU of a 7B, or the lower quartile of that of models that are like
    the one to come: experts make of it about two thirds, and of the models a half to four thirds.

    Example:
        >>> from scantling import catalog
        >>> from scantling.hardware import chip
        >>> one, sparse = chip("h100-sxm"), [catalog.model("qwen3-30b-a3b")]
        >>> flops_of(30, one, 64, "bf16", sparse) < flops_of(30, one, 64, "bf16")
        True
    """
    mfu = reference_mfu(chip, n_gpu, dtype)
    if like:
        mfu = quantile(sorted(training_mfu(m, chip, n_gpu, context, dtype) for m in like), 0.25)
    return int(days * DAY_S * n_gpu * chip.rate(dtype) * mfu)


def body_of(total: float, vocab_size: int, tied: bool | None = None) -> float:
    """What embedding and head leave of all parameters, before any shape is known.

    The table is that of a width 64 times the depth; wrong by as much as a shape's width differs
    from that: an eighth of the body at most from 1 B up.

    Example:
        >>> 5.5e9 < body_of(7e9, 128_256) < 6.6e9
        True
    """
    body = total
    for _ in range(STEPS):
        width = float(shaped(body, 1.0, REFERENCE_ASPECT).width)
        tables = embedding_parameters(body, width, vocab_size, tied=tied)
        body = max(total - tables, 0.05 * total)
    return body


def tokens_of(flops: int, passed: int, vocab_size: int, context: int) -> int:
    """Training tokens that such FLOPs are, for so many parameters that a token passes.

    Example:
        >>> round(10**22 / tokens_of(10**22, 7 * 10**9, 32_000, 4096) / (6 * 7e9), 2)  # over 6 N
        1.18
    """
    spent = Spending(flops=flops, vocab_size=vocab_size, context=context, aspect=REFERENCE_ASPECT)
    return max(1, int(spent.tokens(body_of(passed, vocab_size))))


def size_of(
    flops: int, tokens: int | None, vocab_size: int, context: int, law_name: str,
    tied: bool | None = None,
) -> tuple[int, int, str]:  # fmt: skip
    """Parameters and tokens for training FLOPs.

    A size is a body with width 64 times its depth, and a token costs what
    ``laws.optimum.Spending`` says, attention in full and the head.
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
    spent = Spending(flops=flops, vocab_size=vocab_size, context=context, aspect=REFERENCE_ASPECT)
    best: tuple[float, int, int] | None = None
    edge = False
    first, last = DECADES[0] * STEPS, DECADES[1] * STEPS
    for step in range(first, last + 1):
        body = 10 ** (step / STEPS)
        shape = spent.features(body)
        tables = embedding_parameters(body, float(shape.width), vocab_size, tied=tied)
        total = body + tables
        affordable = float(shape.tokens)
        if tokens is None:
            score = one.loss(replace(shape, total=total))
        else:
            score = abs(affordable / tokens - 1)
        if best is None or score < best[0]:
            best, edge = (float(score), int(total), int(affordable)), step in {first, last}
    assert best is not None
    if edge or best[2] < 1:
        raise FieldError("flops", f"{flops:.3g}", "asks for a size beyond every model")
    if tokens is not None:
        return best[1], tokens, f"what {flops:.3g} FLOPs buy at {tokens:.3g} tokens, {FULL}"
    why = f"where the {one.name} law has its least loss at {flops:.3g} FLOPs, {FULL}"
    return best[1], best[2], why
