"""What a table yields, and the registry of readers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from scantling.errors import ScantlingError

CsvRow = Mapping[str, str]


class Scored(Struct, frozen=True, kw_only=True):
    """One quantity of one row, predicted.

    Args:
        row: Its id in the table.
        group: What is left out together when constants are fitted: a model size, an (n, k) pair.
        actual: What was measured.
        predicted: What we say.
        low: The lower end of our 90 % interval; None where the number is exact.
        high: The upper end.
        by: What the report breaks the error of a table down by; empty is the chip, the precision
            and the subset, where the table has such columns.
    """

    row: str
    group: str
    actual: float
    predicted: float
    low: float | None = None
    high: float | None = None
    by: str = ""


class NotScoredError(ScantlingError):
    """A row that is not scored.

    ``excluded`` is true where the table's own notes rule it out (its quality), false where we
    cannot resolve it.
    """

    def __init__(self, reason: str, *, excluded: bool = False) -> None:
        super().__init__(reason)
        self.excluded = excluded


class MissingColumnError(ScantlingError):
    """A table lacks a column that its reader needs."""


class TableRow(dict[str, str]):
    """A row that answers a column it lacks with an error for people.

    Example:
        >>> TableRow({"m": "1024"})["n"]
        Traceback (most recent call last):
        ...
        scantling.validate.table.MissingColumnError: the table has no column 'n'
    """

    def __missing__(self, column: str) -> str:
        raise MissingColumnError(f"the table has no column {column!r}")


class Reader(Struct, frozen=True, kw_only=True):
    """How one quantity of one table is predicted.

    Args:
        table: The file, ``gemm_aiconfigurator.csv``.
        quantity: What is predicted, with its unit.
        predict: A row to its score; raises ``NotScoredError``.
        exact: Whether any error at all is ours.
    """

    table: str
    quantity: str
    predict: Callable[[CsvRow], Scored]
    exact: bool = False


TABLES: list[Reader] = []
"""Every reader, in the order of the report."""


def reads(table: str, quantity: str, *, exact: bool = False) -> Callable[[Any], Any]:
    """Register a function that predicts one quantity of one table's rows."""

    def register(predict: Callable[[CsvRow], Scored]) -> Callable[[CsvRow], Scored]:
        TABLES.append(Reader(table=table, quantity=quantity, predict=predict, exact=exact))
        return predict

    return register


def number(row: CsvRow, column: str) -> float:
    """A cell as a number.

    Raises:
        NotScoredError: If it is empty or none.

    Example:
        >>> number({"batch": "16.0"}, "batch")
        16.0
    """
    text = row[column]
    try:
        return float(text)
    except ValueError:
        shown = f"{text!r} is no number" if text else "is empty"
        raise NotScoredError(f"{column} {shown}") from None


def score(reader: Reader, row: CsvRow) -> Scored | NotScoredError:
    """One row's score, or why there is none.

    A cell that cannot be read must not cost the other rows their score, so it is a reason too.
    """
    try:
        found = reader.predict(row)
    except NotScoredError as reason:
        return reason
    except ScantlingError as error:
        return NotScoredError(str(error))
    except LookupError as error:
        return NotScoredError(f"nothing is known of {error}")
    except (
        ValueError,
        TypeError,
        ArithmeticError,
    ) as error:  # negative sizes end in complex numbers
        return NotScoredError(f"a cell cannot be used: {error}")
    ends = [found.actual, found.predicted]
    ends += [end for end in (found.low, found.high) if end is not None]
    if not all(math.isfinite(end) and end >= 0 for end in ends):
        return NotScoredError("the measured or the predicted value is not a number from zero up")
    return found


def scores(reader: Reader, rows: list[CsvRow]) -> Iterator[Scored | NotScoredError]:
    """Each row's score, or why there is none."""
    for row in rows:
        yield score(reader, row)
