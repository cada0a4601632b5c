"""What a table yields, and the registry of readers."""

from __future__ import annotations

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
    """

    row: str
    group: str
    actual: float
    predicted: float
    low: float | None = None
    high: float | None = None


class NotScoredError(ScantlingError):
    """A row that is not scored.

    ``excluded`` is true where the table's own notes rule it out (its quality), false where we
    cannot resolve it.
    """

    def __init__(self, reason: str, *, excluded: bool = False) -> None:
        super().__init__(reason)
        self.excluded = excluded


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


def scores(reader: Reader, rows: list[CsvRow]) -> Iterator[Scored | NotScoredError]:
    """Each row's score, or why there is none."""
    for row in rows:
        try:
            yield reader.predict(row)
        except NotScoredError as reason:
            yield reason
        except ScantlingError as error:
            yield NotScoredError(str(error))
