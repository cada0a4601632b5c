"""Units as people write and read them: ``7B``, ``80GiB``, ``1e22``, ``3.2 ms``.

Everything inside the package is in base units (bytes, seconds, parameters, FLOPs); this module is
the only place that parses or prints a prefix.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal, InvalidOperation

from scantling.errors import FieldError

SI = {"": 0, "k": 3, "m": 6, "g": 9, "b": 9, "t": 12, "p": 15, "e": 18, "z": 21, "y": 24}
"""Powers of ten; ``b`` is a billion, as in 7B, and case does not matter for counts."""
BINARY = {"ki": 10, "mi": 20, "gi": 30, "ti": 40, "pi": 50}
SECONDS = {
    "ns": "1e-9", "us": "1e-6", "µs": "1e-6", "ms": "1e-3", "s": "1", "": "1",
    "min": "60", "h": "3600", "d": "86400", "day": "86400", "days": "86400", "hour": "3600",
    "hours": "3600",
}  # fmt: skip
NUMBER = re.compile(
    r"\s*([+-]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([^\d\s]*)\s*", re.IGNORECASE
)


def parse_count(text: str | float, field: str = "number") -> int:
    """A count of parameters, tokens, FLOPs or GPUs.

    Args:
        text: ``7B``, ``1.5T``, ``1e22``, ``128_256``, ``8k`` (8000) or ``8Ki`` (8192).
        field: The name to use in an error.

    Raises:
        FieldError: If the text is no positive number or its suffix is unknown.

    Example:
        >>> parse_count("7B"), parse_count("1e3"), parse_count("128_256")
        (7000000000, 1000, 128256)
    """
    value, suffix = _split(text, field)
    suffix = "?" if suffix == "e" else suffix.lower()  # 1e is an unfinished 1e22, 1E is exa
    if suffix in BINARY:
        value *= 2 ** BINARY[suffix]
    elif suffix in SI:
        value *= Decimal(10) ** SI[suffix]
    else:
        raise FieldError(field, text, "has an unknown suffix", "write 7B, 1.5T, 8k, 8Ki or 1e22")
    if value != value.to_integral_value():
        raise FieldError(field, text, "must be a whole number")
    return int(value)


def parse_context(text: str | float, field: str = "context") -> int:
    """A context length: ``8k`` and ``128k`` mean 8192 and 131072, as everybody writes them.

    Example:
        >>> parse_context("128k"), parse_context("1M"), parse_context(8000)
        (131072, 1048576, 8000)
    """
    plain = re.fullmatch(r"\s*([\d.]+)\s*([kKmM])\s*", str(text))
    return parse_count(f"{plain[1]}{plain[2]}i" if plain else text, field)


def parse_bytes(text: str | float, field: str = "bytes") -> int:
    """A size in bytes: ``80GB`` is 80e9, ``80GiB`` is 80 * 2**30.

    Example:
        >>> parse_bytes("80GiB"), parse_bytes("2 KiB"), parse_bytes("1.5GB")
        (85899345920, 2048, 1500000000)
    """
    value, suffix = _split(text, field)
    unit = suffix.lower().removesuffix("b") if suffix.lower() != "b" else ""
    if unit in BINARY:
        value *= 2 ** BINARY[unit]
    elif unit in SI and unit != "b":
        value *= Decimal(10) ** SI[unit]
    else:
        raise FieldError(field, text, "has an unknown unit", "write 80GB, 80GiB or 16KiB")
    if not unit and value != value.to_integral_value():
        raise FieldError(field, text, "must be a whole number of bytes")
    return round(value)


def parse_seconds(text: str | float, field: str = "time") -> float:
    """A duration in seconds: ``30ms``, ``2h``, ``14d``.

    Example:
        >>> parse_seconds("30ms"), parse_seconds("2h")
        (0.03, 7200.0)
    """
    value, suffix = _split(text, field)
    if suffix.lower() not in SECONDS:
        raise FieldError(field, text, "has an unknown unit", "write 30ms, 1.5s, 2h or 14d")
    return float(value * Decimal(SECONDS[suffix.lower()]))


def parse_share(text: str | float, field: str = "share") -> float:
    """A share: ``0.005`` or ``0.5%``.

    Example:
        >>> parse_share("5%"), parse_share(0.005)
        (0.05, 0.005)
    """
    value, suffix = _split(text, field)
    if suffix not in {"", "%"}:
        raise FieldError(field, text, "is no share", "write 0.005 or 0.5%")
    return float(value / 100 if suffix else value)


def _split(text: str | float, field: str) -> tuple[Decimal, str]:
    match = NUMBER.fullmatch(str(text))
    if not match or ("," in match[1] and not re.fullmatch(r"\d{1,3}(,\d{3})+", match[1])):
        raise FieldError(field, text, "is not a number", "write for example 7B, 1e22 or 80GiB")
    try:
        value = Decimal(match[1].replace("_", "").replace(",", ""))
    except InvalidOperation:
        raise FieldError(field, text, "is not a number") from None
    if value <= 0:
        raise FieldError(field, text, "must be above zero")
    if value.adjusted() > 40:
        raise FieldError(field, text, "is beyond every model", "at most 1e40")
    return value, match[2]


def count_text(value: float) -> str:
    """A count for reading: three significant digits and a prefix.

    Example:
        >>> count_text(8_030_261_248), count_text(124_439_808), count_text(512)
        ('8.03 B', '124 M', '512')
    """
    for power, name in ((24, "Y"), (21, "Z"), (18, "E"), (15, "P"), (12, "T"), (9, "B"), (6, "M")):
        if abs(value) >= 0.9995 * 10**power:
            return f"{_digits(value / 10**power)} {name}"
    if abs(value) >= 1e4:
        return f"{_digits(value / 1e3)} k"
    return f"{value:,.0f}" if float(value).is_integer() else _digits(value)


def flops_text(value: float) -> str:
    """FLOPs for reading, with the SI prefixes that FLOPs have.

    Example:
        >>> flops_text(46.6e9), flops_text(1.93e12)
        ('46.6 GFLOP', '1.93 TFLOP')
    """
    for power, name in ((24, "Y"), (21, "Z"), (18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M")):
        if abs(value) >= 0.9995 * 10**power:
            return f"{_digits(value / 10**power)} {name}FLOP"
    return f"{value:,.0f} FLOP"


def bytes_text(value: float) -> str:
    """A size for reading, in binary units.

    Example:
        >>> bytes_text(131072), bytes_text(16_060_522_496), bytes_text(100)
        ('128 KiB', '15 GiB', '100 B')
    """
    for power, name in ((50, "PiB"), (40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if abs(value) >= 0.9995 * 2**power:
            return f"{_digits(value / 2**power)} {name}"
    return f"{value:.0f} B"


def seconds_text(value: float) -> str:
    """A duration for reading.

    Example:
        >>> seconds_text(0.00512), seconds_text(7200), seconds_text(86400 * 42.3)
        ('5.12 ms', '2 h', '42.3 days')
    """
    if not math.isfinite(value):
        return "∞"
    for scale, name in ((86400 * 2, "days"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms")):
        if abs(value) >= scale:
            return f"{_digits(value / (86400 if name == 'days' else scale))} {name}"
    return f"{_digits(value * 1e6)} µs"


def _digits(value: float) -> str:
    """Three significant digits without an exponent or trailing zeros."""
    if value == 0:
        return "0"
    places = max(0, 2 - math.floor(math.log10(abs(value)) + 1e-9))
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
