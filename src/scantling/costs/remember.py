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


def remembered(key: Callable[..., Hashable]) -> Callable[[F], F]:
    """Keep the results of a function by a key made from its arguments.

    What cannot be hashed (a column of models) is computed anew. The arguments are kept with the
    result, so that a key may hold the ``id`` of one of them.

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
