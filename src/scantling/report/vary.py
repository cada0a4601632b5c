"""One field over a range, everything else held: the table and plot behind ``--vary``."""

from __future__ import annotations

from typing import Any

from scantling.costs.alignment import power_of_two
from scantling.costs.count import forward_flops, parameters, solve_width
from scantling.errors import FieldError, ScantlingError
from scantling.ops import operators
from scantling.search import Budget, Candidate, candidate, difference
from scantling.search.candidate import UNPRICED, days_quantity, decode_quantity
from scantling.spec import Spec, Workload, check, has, vary
from scantling.units import parse_count

HOLD = ("params", "flops", "time")
LARGEST_TABLE = 2000


def parse_range(text: str, least: int = 1) -> tuple[str, list[int]]:
    """``d_ff=8192:16384:1024`` as a field and its values, both ends included, none below the least.

    Example:
        >>> parse_range("n_layer=30:34:2")
        ('n_layer', [30, 32, 34])
    """
    field, _, rest = text.partition("=")
    parts = rest.split(":")
    if not field or len(parts) not in {2, 3}:
        raise FieldError("--vary", text, "is no range", "write FIELD=low:high:step")
    try:
        low, high, step = (_whole(p) for p in (*parts, "1")[:3])
    except FieldError:
        raise FieldError("--vary", text, "holds something that is no number") from None
    if step < 1 or high < low or low < least:
        raise FieldError("--vary", text, "is an empty range", "write FIELD=low:high:step")
    if (high - low) // step >= LARGEST_TABLE:
        raise FieldError(
            "vary", text, f"has more than {LARGEST_TABLE} values", "take a larger step"
        )
    return field, list(range(low, high + 1, step))


def _whole(text: str) -> int:
    return 0 if text.strip() == "0" else parse_count(text, "--vary")


def varied(spec: Spec, b: Budget, field: str, values: list[int], hold: str | None = None,
           name: str = "") -> list[dict[str, Any]]:  # fmt: skip
    """A row for every value, differences against the spec as given.

    Args:
        spec: The model.
        b: The budget that prices it.
        field: The dimension to vary.
        values: Its values; those that break a relation (K divides H) are left out.
        hold: Keep ``params``, ``flops`` (training, per token) or ``time`` (training) equal, by
            the FFN width.
        name: The name of the model.

    Raises:
        FieldError: If the field is unknown, cannot be held, or no value is legal.
    """
    if hold is not None and hold not in HOLD:
        raise FieldError("--hold", hold, "cannot be held", f"use {', '.join(HOLD)}")
    if hold is not None and (field == "d_ff" or not has(spec, "d_ff") or has(spec, "n_expert")):
        raise FieldError("--hold", hold, "needs a dense FFN width that is free to move")
    reference = candidate(spec, b, name)
    rows = []
    problem: ScantlingError | None = None
    for value in values:
        try:
            other = vary(spec, **{field: value})
            if hold is not None:
                other = _held(other, reference, hold)
            check(other)
        except ScantlingError as error:
            problem = error
            continue
        rows.append(_row(candidate(other, b), reference, field, value, spec))
    if not rows:
        raise problem or FieldError("--vary", field, "has no legal value")
    return rows


def _held(spec: Spec, reference: Candidate, hold: str) -> Spec:
    """The FFN width that keeps a quantity, found on its line (params) or by bisection."""
    step = min(power_of_two(int(reference.spec.d_ff)), 128)
    if hold == "params":
        held = vary(spec, d_ff=solve_width(spec, reference.counted.total, step))
        off = float(parameters(held).total / reference.counted.total) - 1
        if abs(off) > 0.01:
            raise FieldError("--hold", hold, f"cannot be held: the size is off by {off:+.0%}")
        return held
    wanted = _amount(reference, hold)
    low, high = 1, 2**20 // step
    while low < high:
        middle = (low + high) // 2
        if _amount(candidate(vary(spec, d_ff=middle * step), reference.budget), hold) < wanted:
            low = middle + 1
        else:
            high = middle
    return vary(spec, d_ff=low * step)


def _amount(c: Candidate, hold: str) -> float:
    return float(c.days) if hold == "time" else train_flops_per_token(c)


def train_flops_per_token(c: Candidate) -> float:
    """Training FLOPs of a token at the training context, attention in full."""
    context = c.budget.train_context
    return float(forward_flops(operators(c.spec, Workload("train", 1, context)))) / context


def _row(c: Candidate, reference: Candidate, field: str, value: int, given: Spec) -> dict[str, Any]:
    return {
        "field": field, "value": value, "given": c.spec == given,
        "d_ff": c.dims().get("d_ff"), "params": int(c.counted.total),
        "loss_difference": None if field in UNPRICED else difference(c, reference).to_json(),
        "flops_per_token_train": train_flops_per_token(c),
        "days": days_quantity(c.train, c.budget).to_json(),
        "kv_bytes_per_token": c.kv_growth,
        "tpot_seconds": decode_quantity(c.decode, c.budget).to_json(),
    }  # fmt: skip
