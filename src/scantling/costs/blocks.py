"""Widths against what must stay whole: groups and blocks on ranks, products in 8 and 4 bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from scantling.arith import Dim, Num, round_up
from scantling.errors import UnknownNameError
from scantling.sources import read_data

# ---------------------------------------------------------------- one width


class Shard(Struct, frozen=True):
    """A width cut into equal parts for ranks, against units that must stay whole."""

    units: Num
    """In the whole width."""
    per_rank: Num
    units_per_rank: Num
    ok: Any
    """Whether each rank has a whole number of units: a bool, or an array of them."""


def shard(width: Dim, degree: int, unit: int) -> Shard:
    """A width over ranks: units must be whole on each.

    Args:
        width: Inputs or outputs of a matrix.
        degree: Ranks.
        unit: What shares a scale: a group, or a side of a block.

    Example:
        >>> shard(896, 2, 128).units_per_rank, shard(896, 2, 64).ok
        (3.5, True)
    """
    each: Any = width / degree
    part: Any = width / (degree * unit)
    whole: Any = width / unit
    return Shard(
        whole_number(whole), whole_number(each), whole_number(part), width % (degree * unit) == 0
    )


def whole_number(n: Any) -> Any:
    """A whole number as an int; what is none, and an array, stays as it is."""
    return int(n) if isinstance(n, float) and n.is_integer() else n


class Padded(Struct, frozen=True):
    """The widths on both sides that every one of some degrees can split."""

    padded: Dim
    """The next above: zeros are added and nothing is lost."""
    trimmed: Dim
    """The next below: weights are dropped, which changes the model."""
    text: str


def padded_width(width: int, unit: int, degrees: Sequence[int]) -> Padded:
    """The nearest widths that keep units whole at every one of some degrees.

    Example:
        >>> padded_width(29568, 128, (2, 4, 8)).text
        'pad 29568 with zeros to 29696 (232 units of 128); 28672 would drop weights, which is lossy'
    """
    step = unit * math.lcm(*degrees)
    above, below = round_up(width, step), width // step * step
    text = f"pad {width} with zeros to {above} ({above // unit} units of {unit})"
    if above == width:
        text = (
            f"{width} is {width // unit} units of {unit}, whole at {', '.join(map(str, degrees))}"
        )
    elif below:
        text += f"; {below} would drop weights, which is lossy"
    return Padded(above, below, text)


# ---------------------------------------------------------------- shapes of one product


class Product(Struct, frozen=True):
    """A matrix against what a dtype's products ask."""

    rows_ok: Any
    columns_ok: Any
    padded_rows: Dim
    padded_columns: Dim
    advised: int
    """The multiple of columns that the library's authors advise."""
    advised_columns: Dim
    text: str


def gemm_shape(rows: Dim, columns: Dim, dtype: str = "fp8") -> Product:
    """Whether a matrix can enter a product in a dtype, and what it is padded to.

    Tokens are a dimension, too: a batch of 1 or 50 is refused in FP8 unless it is padded.

    Args:
        rows: The product of all dimensions but the last: outputs of a weight, or batch × tokens.
        columns: The last dimension.
        dtype: ``fp8``, ``mxfp8``, ``nvfp4``, ``fp8-torch``, or a kernel: ``marlin``, ``machete``,
            ``w4a8``.

    Raises:
        UnknownNameError: If no rule of the dtype is known.

    Example:
        >>> gemm_shape(896, 712).text
        '896 rows are a multiple of 8; 712 columns are no multiple of 16 (712 mod 16 = 8): pad to \
720, or to 736 (a multiple of 32), or keep the matrix in bf16'
    """
    known = read_data("quantization.toml")["gemm"]
    if dtype not in known:
        raise UnknownNameError("dtype", dtype, known)
    r, c, advised = known[dtype]["rows"], known[dtype]["columns"], known[dtype]["advised"]
    tall, wide, best = round_up(rows, r), round_up(columns, c), round_up(columns, advised)
    text = ""
    if isinstance(rows, int) and isinstance(columns, int):
        text = f"{rows} rows are a multiple of {r}"
        if rows % r:
            text = f"{_odd(rows, 'rows', r)}: pad to {tall}"
        if columns % c:
            text += f"; {_odd(columns, 'columns', c)}: pad to {wide}, or to {best} (a multiple of "
            text += f"{advised}), or keep the matrix in bf16"
        else:
            text += f"; {columns} columns are a multiple of {c}"
    return Product(rows % r == 0, columns % c == 0, tall, wide, advised, best, text)


def _odd(n: int, name: str, multiple: int) -> str:
    return f"{n} {name} are no multiple of {multiple} ({n} mod {multiple} = {n % multiple})"


class Tokens(Struct, frozen=True):
    """A multiple to which a grouped product pads the tokens of each expert."""

    dtype: str
    multiple: int
    since: str
    """The release or change that has it."""
    sources: tuple[str, ...] = ()


def token_groups(dtype: str) -> tuple[Tokens, ...]:
    """What grouped products ask of the tokens of an expert, one entry a release.

    Raises:
        UnknownNameError: If no rule of the dtype is known.

    Example:
        >>> [(t.multiple, t.since) for t in token_groups("bf16")]
        [(1, 'torchtitan PR 2255 (2026)'), (8, 'torchtitan before PR 2255')]
    """
    rows = [
        Tokens(e["dtype"], e["multiple"], e["since"], tuple(e["sources"]))
        for e in read_data("quantization.toml")["tokens"]
    ]
    found = tuple(sorted((t for t in rows if t.dtype == dtype), key=lambda t: t.multiple))
    if not found:
        raise UnknownNameError("dtype", dtype, {t.dtype for t in rows})
    return found
