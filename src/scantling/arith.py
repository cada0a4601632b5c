"""Arithmetic that works alike on an int and on an array of ints.

A cost function never tests a dimension: it uses ``+ * //`` and the four functions below. So one
formula serves one model, exactly, and a column of a million models.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, cast

from msgspec import Meta

LARGEST = 2**40
"""No dimension of a model is larger: 1.1e12, a thousand times the largest vocabulary."""
MOST_CONTEXT = 2**32
MOST_TOKENS = 10**18
"""Of a sequence and of a run that anyone asks about: hundreds of times what was ever trained."""

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Dim: TypeAlias = int | NDArray[np.int64]
    """A dimension: an int in a spec, an int64 array in a column spec."""
    Num: TypeAlias = int | float | NDArray[Any]
    """A number or an array of numbers: what a cost is."""
else:
    Dim = Annotated[int, Meta(ge=1, le=LARGEST)]
    Num = float


def is_array(value: object) -> bool:
    """Whether a value is an array. Only edges ask: a cost formula does not need to know."""
    return hasattr(value, "dtype")


def ceil_div(a: Dim, b: Dim) -> Dim:
    """The smallest integer not below a / b.

    Example:
        >>> ceil_div(50257, 128)
        393
    """
    return -(-a // b)


def round_up(a: Dim, multiple: Dim) -> Dim:
    """The smallest multiple not below a.

    Example:
        >>> round_up(50257, 128)
        50304
    """
    return ceil_div(a, multiple) * multiple


def minimum(a: Any, b: Any) -> Any:
    """The smaller of two numbers, elementwise on arrays.

    Example:
        >>> minimum(8192, 1024)
        1024
    """
    if is_array(a) or is_array(b):
        import numpy as np

        return np.minimum(a, b)
    return min(a, b)


def maximum(a: Any, b: Any) -> Any:
    """The larger of two numbers, elementwise on arrays.

    Example:
        >>> maximum(0, 3)
        3
    """
    if is_array(a) or is_array(b):
        import numpy as np

        return np.maximum(a, b)
    return max(a, b)


def log2(a: Num) -> Num:
    """The logarithm to base 2, elementwise on arrays.

    Example:
        >>> log2(4096)
        12.0
    """
    if is_array(a):
        import numpy as np

        return cast("Num", np.log2(a))
    return math.log2(cast("float", a))


def product(*factors: Num) -> Num:
    """The product of numbers that may be large: exact on ints, float64 once any is an array.

    NumPy keeps an int times an int64 array in int64, which wraps silently.

    Example:
        >>> product(2**40, 2**40) == 2**80
        True
    """
    if any(is_array(f) for f in factors):
        factors = tuple(wide(f) if is_array(f) else float(f) for f in factors)
    found = factors[0]
    for factor in factors[1:]:
        found = found * factor
    return found


def wide(value: Num) -> Num:
    """A dimension about to be multiplied by batch, context squared or tokens.

    An int stays an int, which Python keeps exact at any size. An int64 array becomes float64: it
    would wrap silently at 405 B parameters times 2 M tokens of context.

    Example:
        >>> wide(7) * 2**62 * 2**62 == 7 * 2**124
        True
    """
    return cast("Num", value.astype("float64")) if not isinstance(value, int | float) else value
