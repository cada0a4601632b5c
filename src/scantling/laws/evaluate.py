"""How wrong a law is on a table of runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scantling.errors import FieldError
from scantling.laws.registry import Law
from scantling.laws.runs import Runs, has

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

EQUAL_SIZE, EQUAL_TOKENS, APART = 1.2, 1.03, 0.01
"""A pair counts in the order of shapes if sizes and tokens differ by less, and losses by more."""


@dataclass(frozen=True)
class Evaluation:
    """Errors of a law on runs, predicted minus measured, nats a token.

    ``after_offset`` has the errors left once the median error was taken off, which is what one
    calibrating run is worth; ``pairs`` says how many pairs stand behind ``pair_accuracy``.
    """

    law: str
    rows: int
    bias: float
    mae: float
    p90: float
    interval_coverage: float
    pair_accuracy: float | None
    pairs: int
    outside: int
    after_offset: dict[str, float]
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The evaluation as ``laws evaluate --json`` prints it."""
        return {**vars(self), "warnings": list(self.warnings)}


def evaluate(law: Law, runs: Runs) -> Evaluation:
    """Bias, error, coverage and order of a law on runs.

    Args:
        law: The law.
        runs: The runs, with the features the law needs.

    Raises:
        FieldError: If the law cannot be asked about these runs, or a loss is not finite.

    Example:
        >>> from scantling.laws import law as known
        >>> from scantling.laws.runs import columns
        >>> rows = [{"params_total": n, "tokens": 2e9, "loss": loss}
        ...         for n, loss in ((1e8, 3.6), (4e8, 3.3))]
        >>> found = evaluate(known("chinchilla-2024"), columns(rows))
        >>> found.rows, found.pair_accuracy is None, found.mae < 0.4
        (2, True, True)
    """
    import numpy as np

    with np.errstate(invalid="ignore"):
        predicted = np.broadcast_to(np.asarray(law.loss(runs.features), float), runs.loss.shape)
        half = np.broadcast_to(np.asarray(law.interval(runs.features), float), runs.loss.shape)
    if not has(predicted):
        lacking = [
            k for k in ("body", "total", "width", "depth") if not has(getattr(runs.features, k))
        ]
        raise FieldError(
            "runs", ", ".join(lacking), f"are missing in some runs, and law {law.name} needs them"
        )
    errors = predicted - runs.loss
    shifted = errors - np.median(errors)
    first, second, apart = pairs_of_equal_size(runs)
    right = np.sign(predicted[first] - predicted[second]) == np.sign(apart)
    out = np.zeros(len(runs), dtype=bool)
    for flags in law.outside(runs.features).values():
        out |= flags
    return Evaluation(
        law=law.name, rows=len(runs), bias=float(np.mean(errors)),
        mae=float(np.mean(np.abs(errors))), p90=float(np.percentile(np.abs(errors), 90)),
        interval_coverage=float(np.mean(np.abs(errors) <= half)),
        pair_accuracy=float(np.mean(right)) if len(right) else None, pairs=len(right),
        outside=int(out.sum()), warnings=runs.warnings,
        after_offset={
            "offset": float(np.median(errors)), "mae": float(np.mean(np.abs(shifted))),
            "p90": float(np.percentile(np.abs(shifted), 90)),
            "interval_coverage": float(np.mean(np.abs(shifted) <= half)),
        },
    )  # fmt: skip


def pairs_of_equal_size(
    runs: Runs, apart: float = APART
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Pairs of different shapes of nearly equal size and tokens, and how far apart they came out.

    Returns:
        Indices of the first and of the second, and the measured difference of their losses.
    """
    import numpy as np

    size = runs.features.total if has(runs.features.total) else runs.features.body
    logs, tokens, shapes = np.log(size), np.log(runs.features.tokens), runs.shapes
    order = np.argsort(tokens, kind="stable")
    found: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    ends = np.searchsorted(tokens[order], tokens[order] + np.log(EQUAL_TOKENS), side="right")
    for i, end in enumerate(ends):
        later = order[i + 1 : end]
        here = order[i]
        alike = np.abs(logs[later] - logs[here]) < np.log(EQUAL_SIZE)
        alike &= shapes[later] != shapes[here]
        alike &= np.abs(runs.loss[later] - runs.loss[here]) > apart
        chosen = later[alike]
        found.append((np.full(len(chosen), here), chosen))
    first, second = (
        np.concatenate(x) if x else np.array([], int) for x in zip(*found, strict=True)
    )
    return first, second, runs.loss[first] - runs.loss[second]
