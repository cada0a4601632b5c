"""What widths that do not fill a load of 16 bytes cost a matrix product: a declared prior."""

from __future__ import annotations

from scantling.hardware.constants.fitted import Fitted


class AlignmentConstants(Fitted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Factors on the time of a product by what divides its widths.

    Each is (expected, least, most); every least is 1, because reports differ and newer libraries
    handle what older ones did not.

    Args:
        single: A width whose rows start at any element: of 16-bit numbers an odd one.
        pair: Rows that start at a multiple of 4 or 8 bytes.
        load: At a multiple of 16 bytes and not of 32: 2056 16-bit numbers.
        load_bytes: What a tensor core is loaded with at once.
        line_bytes: What a recommended width fills.
    """

    single: tuple[float, float, float]
    pair: tuple[float, float, float]
    load: tuple[float, float, float]
    load_bytes: int = 16
    line_bytes: int = 128
