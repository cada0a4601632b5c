"""The assemblers: neutral fields to a spec and back, by the name of their base table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from scantling.formats.hf import encoders, fields, layered
from scantling.spec import Spec


class Assembler(Struct, frozen=True):
    """One way from neutral fields to a spec and back."""

    fields: Any
    """The struct of its fields, with ``LISTS`` and ``needed()``."""
    to_spec: Callable[[Any], Spec]
    from_spec: Callable[[Spec], Any]
    """The fields of a spec, or None where they cannot say it."""


ASSEMBLERS: dict[str, Assembler] = {
    "decoder": Assembler(fields.Fields, fields.to_spec, fields.from_spec),
    "encoder": Assembler(encoders.Fields, encoders.to_spec, encoders.from_spec),
    "layered": Assembler(layered.Fields, layered.to_spec, layered.from_spec),
}
"""By the name of the base table in the tables of model types."""
