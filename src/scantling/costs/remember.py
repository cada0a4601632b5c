"""Results kept for plans that share them.

Plans of one search differ in a few degrees; what a rank does with one micro-batch depends on fewer
still. A function marked here keeps its results by a key of what it really depends on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

MOST = 4096
"""Results kept of one function; then all are dropped."""


class Shared(tuple[Any, ...]):
    """Operators of one model that several plans share, so that what follows may be kept.

    Those of a column of models are plain tuples: each chunk of a sweep has its own, once.
    """

    __slots__ = ()


def remembered(key: Callable[..., Hashable]) -> Callable[[F], F]:
    """Keep the results of a function by a key made from its arguments.

    What cannot be hashed, and what follows from operators that are not ``Shared``, is computed
    anew. The arguments are kept with the result, so that a key may hold the ``id`` of one.

    Args:
        key: From the arguments to what the result depends on.

    Example:
        >>> calls = []
        >>> @remembered(lambda a, b: a)
        ... def double(a, b):
        ...     calls.append(a)
        ...     return 2 * a
        >>> double(3, 1), double(3, 2), calls
        (6, 6, [3])
    """

    def mark(function: F) -> F:
        kept: dict[Hashable, tuple[Any, Any]] = {}

        @functools.wraps(function)
        def found(*args: Any, **kwargs: Any) -> Any:
            if isinstance(args[0], tuple) and not isinstance(args[0], Shared):
                return function(*args, **kwargs)
            try:
                known = key(*args, **kwargs)
                hit = kept.get(known)
            except TypeError:  # an array has no hash
                return function(*args, **kwargs)
            if hit is None:
                if len(kept) >= MOST:
                    kept.clear()
                hit = kept[known] = function(*args, **kwargs), (args, kwargs)
            return hit[0]

        return found  # type: ignore[return-value]

    return mark
