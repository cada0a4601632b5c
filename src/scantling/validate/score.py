"""From scored rows to the errors of a table."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from scantling.validate.table import (
    CsvRow,
    NotScoredError,
    Reader,
    Scored,
    score,
)

EQUAL = 1e-6
"""Relative distance within which an exact number is the table's: tables print six digits or so."""
MANY = 30
"""Rows from which on the coverage of a table says something of its own; smaller ones are pooled."""
COVERAGE = (0.85, 0.97)
"""What a 90 % interval should contain: less is a promise broken, more is an interval too wide."""

PARTS = ("gpu", "system", "accelerator", "dtype", "precision", "subset", "op_name", "section")
"""Columns that tell rows of different difficulty apart, for readers that name no parts."""
MOST_PARTS = 40
FEW = 1.5
"""Rows of a part at the least, on average: parts of one row say what the worst rows say."""

Progress = Callable[[str, int, int], None]
"""Called with a table, how many of all rows are done, and how many there are."""


class Errors(Struct, frozen=True, kw_only=True):
    """How far predictions lie from measurements.

    Errors are fractions, |predicted / actual − 1|: 0.08 is 8 %.

    Args:
        scored: Rows.
        mape: Mean absolute error.
        median_ape: Median absolute error.
        p90_ape: The error that nine of ten rows stay below.
        bias: Median of predicted / actual − 1: above zero we say too much.
        interval_coverage: Share of rows whose measured value lies in our 90 % interval; None where
            there is no interval.
        interval_width: Median of half the interval over the predicted value.
        equal: Rows predicted to the last digit, for exact quantities.
    """

    scored: int
    mape: float | None = None
    median_ape: float | None = None
    p90_ape: float | None = None
    bias: float | None = None
    interval_coverage: float | None = None
    interval_width: float | None = None
    equal: int = 0


class TableScore(Struct, frozen=True, kw_only=True):
    """One quantity of one table.

    Args:
        table: The file's name without its ending.
        quantity: What is predicted, with its unit; empty where no reader knows the table.
        exact: Whether any error at all is ours.
        rows: Rows of the file.
        skipped: Rows that could not be resolved.
        excluded: Rows that the table's own notes rule out.
        reasons: (reason, rows, excluded) of the rows that are not scored, the largest first.
        errors: Over all scored rows.
        by: (label, errors) of the parts the reader tells apart.
        points: Every scored row.
    """

    table: str
    quantity: str
    exact: bool
    rows: int
    skipped: int
    excluded: int
    reasons: tuple[tuple[str, int, bool], ...]
    errors: Errors
    by: tuple[tuple[str, Errors], ...] = ()
    points: tuple[Scored, ...] = ()

    def worst(self, n: int) -> list[Scored]:
        """The n rows with the largest errors, the worst first."""
        return sorted(self.points, key=ape, reverse=True)[:n]


def ape(s: Scored) -> float:
    """The absolute relative error of a row; of a yes or no (1 or 0) whether it is wrong.

    Example:
        >>> ape(Scored(row="a", group="a", actual=2.0, predicted=3.0))
        0.5
    """
    return abs(deviation(s))


def deviation(s: Scored) -> float:
    """The signed relative error of a row: above zero we say too much."""
    if s.actual == 0:
        return float(s.predicted > 0)
    return s.predicted / s.actual - 1


def inside(s: Scored) -> bool | None:
    """Whether the measured value lies in our interval; None where there is none."""
    if s.low is None or s.high is None:
        return None
    return s.low <= s.actual <= s.high


def errors(points: Sequence[Scored]) -> Errors:
    """The errors over some rows.

    Example:
        >>> rows = [Scored(row="a", group="a", actual=1.0, predicted=1.1, low=1.0, high=1.2),
        ...         Scored(row="b", group="b", actual=1.0, predicted=0.7, low=0.6, high=0.8)]
        >>> found = errors(rows)
        >>> round(found.mape, 6), found.interval_coverage, round(found.interval_width, 3)
        (0.2, 0.5, 0.117)
    """
    if not points:
        return Errors(scored=0)
    apes = sorted(map(ape, points))
    ends = [(s.low, s.high, s.predicted) for s in points]
    widths = [(high - low) / 2 / value for low, high, value in ends
              if low is not None and high is not None and value > 0]  # fmt: skip
    hits = [found for found in map(inside, points) if found is not None]
    return Errors(
        scored=len(points),
        mape=statistics.fmean(apes),
        median_ape=statistics.median(apes),
        p90_ape=quantile(apes, 0.9),
        bias=statistics.median(map(deviation, points)),
        interval_coverage=statistics.fmean(hits) if hits else None,
        interval_width=statistics.median(widths) if widths else None,
        equal=sum(e <= EQUAL for e in apes),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """A quantile of ordered numbers, between neighbours by straight line.

    Example:
        >>> quantile([0.0, 1.0, 2.0], 0.75)
        1.5
    """
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def score_table(
    reader: Reader, rows: Sequence[CsvRow], tick: Callable[[], None] = lambda: None
) -> TableScore:
    """Score one quantity of a table: every row is scored, excluded or skipped with a reason."""
    points: list[Scored] = []
    reasons: Counter[tuple[str, bool]] = Counter()
    for row in rows:
        found = score(reader, row)
        if isinstance(found, NotScoredError):
            reasons[str(found), found.excluded] += 1
        else:
            points.append(found if found.by else replace(found, by=part(row)))
        tick()
    labels = dict.fromkeys(sorted(s.by for s in points if s.by))
    if not 1 < len(labels) <= min(MOST_PARTS, len(points) / FEW):
        labels = {}
    return TableScore(
        table=reader.table.removesuffix(".csv"), quantity=reader.quantity, exact=reader.exact,
        rows=len(rows),
        skipped=sum(n for (_, out), n in reasons.items() if not out),
        excluded=sum(n for (_, out), n in reasons.items() if out),
        reasons=tuple((text, n, out) for (text, out), n in reasons.most_common()),
        errors=errors(points),
        by=tuple((label, errors([s for s in points if s.by == label])) for label in labels),
        points=tuple(points),
    )  # fmt: skip


def part(row: CsvRow) -> str:
    """What a row's errors are put together with: its chip, its precision, its subset.

    Example:
        >>> part({"gpu": "L40S", "dtype": "bfloat16", "m": "8", "subset": "small-m"})
        'L40S bfloat16 small-m'
    """
    return " ".join(row[c] for c in PARTS if row.get(c))


def unread(table: str, n_rows: int, reason: str) -> TableScore:
    """A table that is not scored at all, and why."""
    reasons = ((reason, n_rows, False),)
    return TableScore(table=table.removesuffix(".csv"), quantity="", exact=False, rows=n_rows,
                      skipped=n_rows, excluded=0, reasons=reasons,
                      errors=Errors(scored=0))  # fmt: skip


def pooled(tables: Sequence[TableScore]) -> Errors:
    """The errors over all tables of fewer rows than say something of their own coverage."""
    few = [
        t for t in tables if 0 < t.errors.scored < MANY and t.errors.interval_coverage is not None
    ]
    return errors([s for t in few for s in t.points])


def complaint(found: Errors) -> str:
    """What is wrong with intervals, in words; empty where they keep their promise.

    Too narrow: fewer than 85 % of rows lie inside. Too wide: more than 97 % do, or the median
    half-width is more than twice the median error.

    Example:
        >>> complaint(Errors(scored=100, mape=0.1, median_ape=0.08, interval_coverage=0.7))
        'too narrow'
    """
    if found.interval_coverage is None or found.scored < MANY:
        return ""
    if found.interval_coverage < COVERAGE[0]:
        return "too narrow"
    if found.interval_coverage > COVERAGE[1]:
        return "too wide"
    if (found.interval_width or 0) > 2 * (found.median_ape or 0):
        return "too wide"
    return ""
