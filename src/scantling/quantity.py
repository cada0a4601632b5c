"""No number travels alone: a value, its unit, its kind, its interval, and why.

Inside hot loops plain numbers are used; a Quantity is made at the edge, where a person reads it.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

Kind = Literal["exact", "measured", "fitted", "assumed"]


class Quantity(Struct, frozen=True, kw_only=True):
    """A number a user sees.

    ``low`` and ``high`` bound it (90 % unless ``why`` says otherwise); an exact one has neither.

    Example:
        >>> Quantity(value=8_030_261_248, unit="parameters", kind="exact").to_json()
        8030261248
        >>> Quantity(value=2.0, low=1.0, high=3.0, unit="s", kind="fitted", why=("law",)).to_json()
        {'value': 2.0, 'low': 1.0, 'high': 3.0, 'unit': 's', 'kind': 'fitted', 'why': ['law']}
    """

    value: float
    unit: str
    kind: Kind
    low: float | None = None
    high: float | None = None
    why: tuple[str, ...] = ()

    def to_json(self) -> Any:
        """A plain number when exact; otherwise an object with its interval and reasons."""
        if self.kind == "exact":
            return self.value
        return {
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "unit": self.unit,
            "kind": self.kind,
            "why": list(self.why),
        }
