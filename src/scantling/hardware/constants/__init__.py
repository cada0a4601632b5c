"""What kernels reach on a chip: one frozen set of constants a chip, used for everything.

Each kind of kernel has a struct here and a file in ``data/constants``, with tables ``default``,
``family.NAME``, ``chip.KEY``, ``inherited`` and ``unseen``.
"""

from __future__ import annotations

import functools
from typing import Any

import msgspec
from msgspec import Struct

from scantling.hardware.constants.alignment import AlignmentConstants
from scantling.hardware.constants.attention import AttentionConstants
from scantling.hardware.constants.collective import CollectiveConstants
from scantling.hardware.constants.elementwise import ElementwiseConstants
from scantling.hardware.constants.fitted import (
    Fitted,
    Scattered,
    constants_file,
    inherit,
    overlaid,
)
from scantling.hardware.constants.gemm import GemmConstants, GroupedConstants, ProductConstants
from scantling.hardware.constants.step import StepConstants

__all__ = [
    "AlignmentConstants",
    "AttentionConstants",
    "CollectiveConstants",
    "Constants",
    "ElementwiseConstants",
    "Fitted",
    "GemmConstants",
    "GroupedConstants",
    "ProductConstants",
    "Scattered",
    "StepConstants",
    "constants",
]


class Constants(Struct, frozen=True, forbid_unknown_fields=True):
    """All constants of one chip."""

    gemm: GemmConstants
    attention: AttentionConstants
    elementwise: ElementwiseConstants
    collective: CollectiveConstants
    step: StepConstants
    alignment: AlignmentConstants


@functools.cache
def _files() -> dict[str, dict[str, Any]]:
    return {name: constants_file(name) for name in Constants.__struct_fields__}


def constants(
    families: tuple[str, ...], key: str, own: dict[str, dict[str, Any]] | None = None
) -> Constants:
    """The constants of a chip.

    Args:
        families: Its compute capability and its architecture: ``9.0``, ``Hopper``.
        key: ``h100-sxm``.
        own: Tables by kind that replace single constants, as a chip file of ``calibrate`` holds.

    Example:
        >>> constants(("9.0", "Hopper"), "h100-sxm").gemm.kind
        'fitted'
    """
    found = {}
    for field in msgspec.structs.fields(Constants):
        base = inherit(_files()[field.name], families, key, field.type)
        changed = overlaid(msgspec.to_builtins(base), (own or {}).get(field.name, {}))
        found[field.name] = msgspec.convert(changed, field.type)
    return Constants(**found)
