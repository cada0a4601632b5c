"""One question asked over a range of one of its numbers: ``plan --vary`` and ``serve --vary``."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from scantling import catalog
from scantling.errors import ScantlingError
from scantling.report.vary import parse_range
from scantling.spec import check, vary

Q = TypeVar("Q")
A = TypeVar("A")


class Row(Struct, Generic[A], frozen=True):
    """One value of the range: its answer, or why there is none."""

    value: int
    answer: A | None
    error: str = ""


def asked_over(
    one: catalog.Loaded, text: str, ask: Callable[..., Q], answer: Callable[[Q], A],
    numbers: Collection[str], least: int = 1,
) -> tuple[str, list[Row[A]]]:  # fmt: skip
    """An answer for every value of a range; values that break a rule say which.

    Args:
        one: The model.
        text: ``gpus=64:512:64``, ``in=1024:8192:1024`` or ``n_layer=28:36:2``.
        ask: Makes the question for a model, with some of its numbers changed.
        answer: Answers it.
        numbers: Numbers of the question; every other name is a field of the model.
        least: The smallest value allowed.

    Raises:
        ScantlingError: If the range is none, or no value of it is legal.
    """
    field, values = parse_range(text, least=least)
    field = field.replace("-", "_")
    number = {"in": "prompt", "out": "answer"}.get(field, field)
    rows: list[Row[A]] = []
    problem: ScantlingError | None = None
    for value in values:
        try:
            if number in numbers:
                q = ask(one, **{number: value})
            else:
                q = ask(replace(one, spec=check(vary(one.spec, **{field: value}))))
            rows.append(Row(value, answer(q)))
        except ScantlingError as error:
            problem = error
            rows.append(Row(value, None, str(error)))
    if problem is not None and all(r.answer is None for r in rows):
        raise problem
    return field, rows
