"""A second source of kernel times: tables another package measured, interpolated.

The package ``aiconfigurator-core`` (Apache-2.0, extra ``kernels``) holds latencies of products,
attention, experts and collectives on a dozen chips. Its files are read; its code is never run, and
nothing here is imported unless asked for. What lies outside a table is None: the fitted model
answers there.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from scantling.costs.kernels.attention import Shape
from scantling.costs.kernels.time import Time
from scantling.errors import FieldError
from scantling.hardware import Chip
from scantling.sources import read_data

if TYPE_CHECKING:
    from numpy.typing import NDArray

Question = Literal[
    "gemm", "prefill", "decode", "latent_prefill", "latent_decode", "experts", "collective"
]
GAP = 4.0
"""Neighbours farther apart than this factor are not interpolated between."""
AT, BETWEEN = 1.06, 1.15
"""Factors of the interval at a measured point, where two serving stacks on one chip differ by 5
to 6 %, and between points: points of H100 that were taken out of the tables were met within 2 to
8 % in the mean and 7 to 17 % for nine in ten."""


class Table(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a question's table lies, and its columns."""

    path: str
    exact: tuple[str, ...]
    along: tuple[str, ...]


class Tables(Struct, frozen=True, forbid_unknown_fields=True):
    """What ``data/measured_tables.toml`` says of the package."""

    package: str
    module: str
    folder: str
    frameworks: tuple[str, ...]
    sources: tuple[str, ...]
    system: dict[str, str]
    dtype: dict[str, str]
    table: dict[str, Table]


class Measured(Struct, frozen=True, kw_only=True):
    """A time from a table.

    Args:
        time: The time; bounds are those of the interval, since nothing else is known of it.
        source: Package and table it is from.
        between: Whether it is interpolated between points.
        kind: ``measured``.
    """

    time: Time
    source: str
    between: bool
    kind: Literal["measured"] = "measured"


@functools.cache
def tables() -> Tables:
    """The layout of the package.

    Example:
        >>> tables().system["h100-sxm"]
        'h100_sxm'
    """
    return msgspec.convert(read_data("measured_tables.toml"), Tables)


@functools.cache
def installed() -> Path | None:
    """The folder the package's tables lie in; None where it is not installed."""
    t = tables()
    found = importlib.util.find_spec(t.module)
    if found is None or not found.submodule_search_locations:
        return None
    folder = Path(next(iter(found.submodule_search_locations))) / t.folder
    return folder if folder.is_dir() else None


def measured_time(
    chip: Chip, question: Question, framework: str | None = None, **at: Any
) -> Measured | None:
    """A kernel's time from the tables, by their own columns.

    Args:
        chip: Where.
        question: Which table.
        framework: ``vllm``, ``trtllm`` or ``sglang``; None is the first that has an answer.
        at: A value for each column of the table: those that must match, those between.

    Returns:
        None where the package is not installed, has no such chip, or no points near enough.

    Raises:
        FieldError: If a column is missing or unknown.
    """
    t = tables()
    table = t.table[question]
    wrong = sorted({*table.exact, *table.along} ^ set(at))
    if wrong:
        needs = ", ".join((*table.exact, *table.along))
        raise FieldError("column", wrong[0], f"does not fit the {question} table, with {needs}")
    root, system = installed(), t.system.get(chip.key)
    if root is None or system is None:
        return None
    for name in (framework,) if framework else t.frameworks:
        path = _newest(root / system, table.path.replace("{framework}", name))
        rows = None if path is None else _rows(path)
        if rows is None or path is None:
            continue
        keep = _matching(rows, {column: at[column] for column in table.exact})
        found = _between(keep, table.along, tuple(float(at[a]) for a in table.along))
        if found is not None:
            seconds, between = found[0] / 1e3, found[1]
            factor = BETWEEN if between else AT
            low, high = seconds / factor, seconds * factor
            where = f"{t.package}, {path.relative_to(root)}"
            time = Time(low, low, seconds, high, high)
            return Measured(time=time, source=where, between=between)
    return None


def measured_gemm(
    chip: Chip, dtype: str, m: int, n: int, k: int, framework: str | None = None
) -> Measured | None:
    """A product of m rows by k by n columns.

    Example:
        >>> from scantling.hardware import chip
        >>> measured_gemm(chip("mi300x"), "bf16", 1024, 4096, 4096) is None
        True
    """
    return measured_time(chip, "gemm", framework, gemm_dtype=_dtype(dtype), m=m, n=n, k=k)


def measured_prefill(
    chip: Chip, dtype: str, shape: Shape, framework: str | None = None
) -> Measured | None:
    """Causal attention of whole prompts; None for any other mask than a window."""
    if shape.queries != shape.keys:
        return None
    return measured_time(
        chip, "prefill", framework, attn_dtype=_dtype(dtype), kv_cache_dtype=_dtype(dtype),
        head_dim=shape.d_key, window_size=shape.reach or 0, step=0, beam_width=1,
        batch_size=shape.batch, isl=shape.queries, num_key_value_heads=shape.n_kv_head,
        num_heads=shape.n_head,
    )  # fmt: skip


def measured_decode(
    chip: Chip, kv_dtype: str, shape: Shape, framework: str | None = None
) -> Measured | None:
    """Attention of one new token on a cache of that dtype."""
    return measured_time(
        chip, "decode", framework, kv_cache_dtype=_dtype(kv_dtype), head_dim=shape.d_key,
        window_size=shape.reach or 0, beam_width=1, batch_size=shape.batch, keys=shape.keys,
        num_key_value_heads=shape.n_kv_head, num_heads=shape.n_head,
    )  # fmt: skip


def measured_collective(chip: Chip, kind: str, size: float, ranks: int) -> Measured | None:
    """A collective of so many bytes in all within a node; the table counts 16-bit elements."""
    name = "alltoall" if kind == "all_to_all" else kind
    return measured_time(
        chip, "collective", op_name=name, nccl_dtype="half", num_gpus=ranks, message_size=size / 2
    )


def _dtype(name: str) -> str:
    return tables().dtype.get(name, name)


def _newest(folder: Path, pattern: str) -> Path | None:
    """The file of the newest version, by its numbers."""

    def version(path: Path) -> tuple[int, ...]:
        parts = path.relative_to(folder).parts
        return tuple(int(n) for n in re.findall(r"\d+", parts[-2]))

    found = sorted(folder.glob(pattern.replace("{version}", "*")), key=version)
    return found[-1] if found else None


@functools.lru_cache(maxsize=16)
def _rows(path: Path) -> dict[str, NDArray[Any]]:
    """The columns of a file; ``keys`` is added where it has a query and a step behind it."""
    import pyarrow.parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]

    frame = pyarrow.parquet.read_table(path)
    rows = {n: frame.column(n).to_numpy(zero_copy_only=False) for n in frame.column_names}
    if "step" in rows and "isl" in rows:
        rows["keys"] = rows["isl"] + rows["step"]
    return rows


def _matching(rows: dict[str, NDArray[Any]], wanted: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """The rows in which every column has its value; a column the file lacks matches anything."""
    import numpy as np

    keep = np.ones(len(rows["latency"]), dtype=bool)
    for column, value in wanted.items():
        if column in rows:
            keep &= rows[column] == value
    return {name: values[keep] for name, values in rows.items()}


def _between(
    rows: dict[str, NDArray[Any]], along: tuple[str, ...], at: tuple[float, ...]
) -> tuple[float, bool] | None:
    """Latency at a point, straight in the logarithms between its neighbours on each axis in turn.

    Where several kernels were measured at one point a serving stack takes the fastest.
    """
    import numpy as np

    if not len(rows["latency"]):
        return None
    if not along:
        return float(np.min(rows["latency"])), False
    axis, x = rows[along[0]], at[0]
    values = np.unique(axis)

    def on(value: Any) -> tuple[float, bool] | None:
        keep = axis == value
        return _between({n: v[keep] for n, v in rows.items()}, along[1:], at[1:])

    if x in values:
        return on(x)
    after = int(np.searchsorted(values, x))
    if after in {0, len(values)} or values[after] > GAP * values[after - 1]:
        return None
    ends = [on(v) for v in values[after - 1 : after + 1]]
    if ends[0] is None or ends[1] is None:
        return None
    (left, right), ((low, _), (high, _)) = values[after - 1 : after + 1], (ends[0], ends[1])
    share = math.log(x / left) / math.log(right / left)
    return math.exp((1 - share) * math.log(low) + share * math.log(high)), True


__all__ = [
    "Measured",
    "installed",
    "measured_collective",
    "measured_decode",
    "measured_gemm",
    "measured_prefill",
    "measured_time",
    "tables",
]
