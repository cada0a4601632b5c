"""Matrix products: dense, batched, and grouped by expert."""

from __future__ import annotations

from typing import Any, cast

from scantling.arith import Dim, Num, maximum, minimum, product, round_up
from scantling.costs.kernels.misaligned import misaligned
from scantling.costs.kernels.scatter import scattered
from scantling.costs.kernels.time import Time
from scantling.costs.remember import remembered
from scantling.hardware import Chip
from scantling.hardware.constants import ProductConstants
from scantling.hardware.constants.gemm import REFERENCE, TILE
from scantling.spec import dtype_bytes

VECTOR = 16
"""Triton loads vectors where widths are multiples of so many elements."""
OUTPUT_BYTES = 2
"""Products of narrow inputs leave 16-bit numbers."""
DROOPS = (1e7, 1e14)
"""FLOPs between which a longer product is slower; no measurement lies outside."""
NOTHING_S = 1e-30
"""Shorter than any time: what a layer that does not occur is divided by."""


@remembered(lambda chip, *given, **named: (id(chip), given, tuple(named.items())))
def gemm_time(
    chip: Chip, dtype: str, m: Num, n: Num, k: Num, groups: Num = 1, launches: Num = 1,
    cache_bytes: Num = 0, *, narrowed: bool = False,
    widths: tuple[Num, ...] | None = None,
) -> Time:  # fmt: skip
    """An (m × k) by (k × n) product, or ``groups`` of them in one kernel.

        FLOPs   = 2 m n k × groups
        bytes   = (s (m k + k n) + o m n) × groups        s of the inputs, o of the output
        waves   = m n × groups / (128² × SMs)
        shape   = 1 / (1 + k_half / k + wave_half / waves)
        droop   = (FLOPs / FLOPs of the reference)^−droop
        compute = FLOPs × lost / (peak × matmul × shape × droop / shape of the reference)
        memory  = bytes / (bandwidth factor × bandwidth)
        time    = ((compute^p + memory^p)^(1/p) + launch + k × step + quantising) × misaligned

    A short depth pays for filling and emptying the pipeline of each tile, a small output leaves
    SMs without work. The reference is 8192 × 8192 × 8192, so ``matmul`` is what that one reaches.
    Inputs that arrive in 16 bits are brought to a narrower dtype by a pass over the (m × k) of
    them: 2 bytes read, s written, and as much as ``quantise_row`` elements more for each row.
    ``lost`` is the work of unfilled tiles and waves with the best tile a library has (``tiling``).
    It is 1 but on chips where the term lowers the error on shapes left out: it does on A100 and
    B200, not on H100 and H200 (``benchmarks/fit_kernels.py`` prints both).

    Args:
        chip: Where.
        dtype: What its inputs are.
        m: Rows: tokens.
        n: Columns: the width that comes out.
        k: Depth: the width that goes in.
        groups: Products alike in one kernel.
        launches: Such kernels one after another.
        cache_bytes: What else one kernel reads.
        widths: What has to fill a load (``misaligned``); by default n and k, which products side
            by side in one kernel have for each.
        narrowed: Whether the rows already come in a narrow dtype, so that no pass brings them.

    Example:
        >>> from scantling.hardware import chip
        >>> one = gemm_time(chip("h100-sxm"), "bf16", 8192, 8192, 8192)
        >>> one.lower_s < one.low_s < one.value_s < one.high_s
        True
    """
    g = chip.constants.gemm.at(dtype)
    lower, value, upper = gemm_s(chip, dtype, m, n, k, groups, cache_bytes, narrowed=narrowed)
    time = scattered(g, m, lower, lower, value, upper)
    penalty = misaligned(chip, dtype, *((n, k) if widths is None else widths))
    return penalty.on(time).times(launches)


@remembered(lambda chip, *given, **named: (id(chip), given, tuple(named.items())))
def gemm_s(
    chip: Chip, dtype: str, m: Num, n: Num, k: Num, groups: Num = 1, cache_bytes: Num = 0, *,
    narrowed: bool = False,
) -> tuple[Num, Num, Num]:  # fmt: skip
    """Seconds of one launch of ``gemm_time`` on aligned widths: least, fitted, most.

    Without an interval, for sums over many products and shapes.
    """
    g = chip.constants.gemm.at(dtype)
    rate, bandwidth = chip.rate(dtype), chip.memory_bytes_per_s
    flops = product(m, n, k, groups, 2)
    moved = product_bytes(dtype, m, n, k, groups) + cache_bytes
    waves = product(m, n, groups) / (TILE**2 * (chip.sm_count or 1))
    compute = flops / (rate * reached(chip, g, flops, waves, k))
    if g.tiles:
        compute = compute * lost(chip, g, m, n, groups)
    memory = moved / (bandwidth * g.bandwidth_factor)
    added = g.launch_s + k * g.step_s
    if g.quantise and not narrowed:
        brought = product(m, k + g.quantise_row, groups, OUTPUT_BYTES + dtype_bytes(dtype))
        added = added + brought / (bandwidth * g.quantise)
    value = _joined(compute, memory, g.sharpness) + added
    return maximum(flops / rate, moved / bandwidth), value, compute + memory + added


def product_bytes(dtype: str, m: Num, n: Num, k: Num, groups: Num = 1) -> Num:
    """Bytes a product reads and writes, each element once.

    Example:
        >>> product_bytes("fp8", 2, 3, 4)
        32.0
    """
    size = dtype_bytes(dtype)
    inputs: Any = product(m, k, groups) + product(n, k, groups)
    output: Any = product(m, n, groups)
    return inputs * size + output * max(size, OUTPUT_BYTES)  # type: ignore[no-any-return]


def reached(chip: Chip, g: ProductConstants, flops: Num, waves: Num, k: Num) -> Num:
    """The fraction of the peak a product's arithmetic reaches, were its data at hand."""
    reference = 2 * REFERENCE**3
    whole = 1 + g.k_half / REFERENCE
    whole = whole + g.wave_half * TILE**2 * (chip.sm_count or 1) / REFERENCE**2
    part = 1 + g.k_half / k + g.wave_half / waves
    flops = minimum(maximum(flops, DROOPS[0]), DROOPS[1])
    return minimum(g.matmul * whole / part * (flops / reference) ** -g.droop, 1.0)  # type: ignore[no-any-return]


@remembered(lambda chip, *given, **named: (id(chip), given, tuple(named.items())))
def grouped_time(
    chip: Chip, dtype: str, rows: Num, n: Num, k: Num, touched: Num, launches: Num = 1,
    passing: Num | None = None,
) -> Time:  # fmt: skip
    """Products of routed experts in one kernel: rows sorted by expert, each by its own weights.

        FLOPs   = 2 n k (rows + pad × touched)              n and k rounded up to the grain
        compute = FLOPs / (peak × matmul)
        weights = s n k × touched / (bandwidth factor × bandwidth)
        passed  = 2 (n + k) × passing rows × passes / bandwidth
        time    = ((compute^p + weights^p)^(1/p) + passed) × crooked + launch

    Each touched expert fills its last tile up. Rows are gathered before and scattered after, in
    memory, so they pass through it more than once and beside the products. Widths that are no
    multiples of 16, as of an expert split over too many ranks, are loaded one number at a time:
    704 / 16 = 44 was measured to take more than twice as long as its work. The gradient of
    weights is the same with the weights written.

    Args:
        chip: Where.
        dtype: What its inputs are.
        rows: (token, expert) pairs that are worked out here.
        n: Columns of an expert's matrix.
        k: Its depth.
        touched: Experts with at least one row.
        launches: Such products one after another.
        passing: Pairs that pass through memory, where more do than are worked out here.

    Example:
        >>> from scantling.hardware import chip
        >>> few, many = (grouped_time(chip("h100"), "bf16", 64, 4096, 2048, e) for e in (8, 64))
        >>> few.value_s < many.value_s
        True
    """
    g = chip.constants.gemm.experts_at(dtype)
    rate, bandwidth = chip.rate(dtype), chip.memory_bytes_per_s
    size = dtype_bytes(dtype)
    wide_n, wide_k = round_up(cast("Dim", n), g.grain), round_up(cast("Dim", k), g.grain)
    each = product(wide_n, wide_k, 2.0)
    compute = each * (rows + touched * g.pad_rows) / (rate * g.matmul)
    read = product(touched, wide_n, wide_k) * size / (bandwidth * g.bandwidth_factor)
    crossing = rows if passing is None else passing
    passed = product(crossing, n + k, OUTPUT_BYTES) / bandwidth * g.passes
    factor = crooked(chip, dtype, n, k)
    own = product(rows, n, k, 2)
    lower = maximum(own / rate, product(touched, n, k) * size / bandwidth)
    value = (_joined(compute, read, g.sharpness) + passed) * factor + g.launch_s
    upper = (compute + read + passed) * factor + g.launch_s
    return scattered(g, rows, lower, lower, value, upper).times(launches)


def crooked(chip: Chip, dtype: str, n: Num, k: Num) -> Num:
    """What products of routed experts cost more where a width is no multiple of 16.

    Example:
        >>> from scantling.hardware import chip
        >>> crooked(chip("h100"), "bf16", 2048, 704), crooked(chip("h100"), "bf16", 2048, 44) > 2
        (1.0, True)
    """
    g = chip.constants.gemm.experts_at(dtype)
    return 1.0 + (g.crooked - 1.0) * ((n % VECTOR != 0) | (k % VECTOR != 0))


def lost(chip: Chip, g: ProductConstants, m: Num, n: Num, groups: Num = 1) -> Num:
    """The work of unfilled tiles and waves over the work that is asked, with the best tile.

        tiles  = ceil(m / rows) ceil(n / columns) × groups
        padded = tiles × rows × columns / (m n × groups)
        waves  = tiles / SMs
        idle   = waste × (ceil(waves) − waves) / max(waves, 1)
        lost   = padded × (1 + idle) / rate of the tile           the least over tiles

    Below one wave a library splits the depth, so little is idle.
    """
    best: Any = None
    sms = chip.sm_count or 1
    for rows, columns, rate in g.tiles:
        tiles: Any = -(-m // rows) * -(-n // columns) * groups
        waves = tiles / sms
        idle = g.waste * (-(-tiles // sms) - waves) / maximum(waves, 1.0)
        padded = tiles * float(rows * columns) / product(m, n, groups)
        found = padded * (1 + idle) / rate
        best = found if best is None else minimum(best, found)
    return cast("Num", best)


@remembered(lambda chip, *given, **named: (id(chip), given, tuple(named.items())))
def stream_time(chip: Chip, dtype: str, flops: Num, moved: Num, launches: Num = 1) -> Time:
    """Work of many small products, as a recurrence in chunks: bounds by FLOPs and bytes alone.

    Args:
        chip: Where.
        dtype: What its inputs are.
        flops: Its operations.
        moved: Bytes of weights and activations read and written.
        launches: Kernels.
    """
    g = chip.constants.gemm.at(dtype)
    rate, bandwidth = chip.rate(dtype), chip.memory_bytes_per_s
    compute = flops / (rate * g.matmul)
    memory = moved / (bandwidth * g.bandwidth_factor)
    launch = launches * g.launch_s
    value = _joined(compute, memory, g.sharpness) + launch
    lower = maximum(flops / rate, moved / bandwidth)
    return scattered(g, TILE, lower, lower, value, compute + memory + launch)


def _joined(compute: Num, memory: Num, p: float) -> Num:
    """The p-norm of two times, by their ratio so that no power overflows."""
    longer: Num = maximum(compute, memory)
    shorter: Num = minimum(compute, memory)
    return longer * (1 + (shorter / maximum(longer, NOTHING_S)) ** p) ** (1 / p)  # type: ignore[no-any-return]
