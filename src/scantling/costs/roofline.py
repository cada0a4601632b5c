"""Why a product is fast or slow: its place on the roofline, its tiles and waves, bounds of gains.

Tiles and waves are shown for every product, whether or not a chip's fitted time has a term for
them: on H100 and H200 such a term did not lower the error on shapes left out.
"""

from __future__ import annotations

from typing import Any, Literal, cast

from msgspec import Struct

from scantling.arith import Num, ceil_div
from scantling.costs.kernels import gemm_time, grouped_time
from scantling.costs.kernels.gemm import crooked, product_bytes
from scantling.costs.kernels.misaligned import Penalty, misaligned
from scantling.costs.time import op_time, row_widths, total_time, touched
from scantling.hardware import Chip
from scantling.ops import Op, operators
from scantling.quantity import Quantity
from scantling.spec import Spec, Workload

BLOCKS = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 64))
"""Output tiles of libraries, largest first."""


class Waves(Struct, frozen=True):
    """Thread blocks on the multiprocessors of a chip.

    ``waves`` is how often each multiprocessor is filled, ``efficiency`` blocks / (waves × SMs).
    """

    blocks: int
    sms: int
    waves: int
    efficiency: float


def wave_waste(blocks: int, sms: int) -> Waves:
    """How well thread blocks fill whole waves.

    Example:
        >>> wave_waste(109, 108).waves, round(wave_waste(109, 108).efficiency, 4)
        (2, 0.5046)
    """
    waves = cast("int", ceil_div(blocks, sms))
    return Waves(blocks, sms, waves, blocks / (waves * sms))


class Product(Struct, frozen=True, kw_only=True):
    """One product of a model: where it stands on the roofline, and what its tiles waste.

    Args:
        name: The operator.
        m: Rows.
        n: Columns.
        k: Depth.
        groups: Products alike in one kernel.
        grouped: Whether they are those of routed experts, whose rows are gathered and scattered.
        seconds: All its occurrences.
        share: Of the time of all operators.
        intensity: FLOPs for each byte.
        ridge: FLOPs for each byte at which a chip's compute and memory take as long.
        bound: Which of them takes longer.
        fraction: Of the peak that it reaches.
        tile: Rows and columns of the tile that wastes least.
        filled: Share of those tiles that is output.
        waves: Those tiles on the chip.
        misaligned: What its widths cost: the factor on its time.
    """

    name: str
    m: float
    n: int
    k: float
    groups: float
    grouped: bool
    seconds: Quantity
    share: float
    intensity: float
    ridge: float
    bound: Literal["compute", "memory"]
    fraction: float
    tile: tuple[int, int]
    filled: float
    waves: Waves
    misaligned: Quantity
    grows: bool
    """Whether its columns grow with the width of the model: those of a vocabulary or a router do
    not."""


def gemm_products(spec: Spec, workload: Workload, chip: Chip) -> tuple[Product, ...]:
    """Every product of a model, in order: dense, batched, and grouped by expert.

    Of routed experts a row of the table is one expert that the batch touches: its even share of
    the rows, and as many ``groups`` as are touched.

    Args:
        spec: One model.
        workload: What is run; the default phases of ``Workload``.
        chip: Where.

    Example:
        >>> from scantling import catalog
        >>> from scantling.hardware import chip
        >>> from scantling.spec import Workload
        >>> found = gemm_products(catalog.model("gpt2"), Workload("prefill", 8, 1024), chip("h100"))
        >>> found[-1].n, found[-1].misaligned.value
        (50257, 1.4)
    """
    ops = operators(spec, workload)
    whole = total_time(ops, workload, chip).value_s
    found = [op for op in ops if op.kind == "matmul"]
    return tuple(_product(op, workload, chip, whole) for op in found)


def _product(op: Op, workload: Workload, chip: Chip, whole: Num) -> Product:
    time = op_time(op, workload, chip)
    m, n, k = float(op.m), cast("int", op.n), float(op.k)
    groups = float(op.repeat / op.times)
    factor = misaligned(chip, workload.dtype, *row_widths(op))
    why = chip.constants.alignment.sources
    grouped = op.experts is not None and op.top_k is not None
    if op.experts is not None and op.top_k is not None:
        groups = float(touched(op.experts, op.top_k, op.m))
        m = m * float(op.top_k) / groups
        slow = crooked(chip, workload.dtype, n, k)
        factor, why = Penalty(slow, 1.0, slow), ("costs.kernels.gemm.crooked",)
    tile, filled, waves = tiles(m, n, groups, chip)
    rate, place = chip.rate(workload.dtype), roofline(chip, workload.dtype, m, n, k)
    flops = float(op.flops())
    return Product(
        name=op.name, m=m, n=n, k=k, groups=groups, grouped=grouped,
        seconds=Quantity(value=float(time.value_s), low=float(time.low_s),
                         high=float(time.high_s), unit="s", kind=chip.constants.gemm.kind,
                         why=("costs.kernels.gemm",)),
        share=float(time.value_s / whole), intensity=place.intensity, ridge=place.ridge,
        bound=place.bound, fraction=flops / float(time.value_s) / rate, tile=tile, filled=filled,
        waves=waves, grows=op.part not in {"lm_head", "router"},
        misaligned=Quantity(value=float(factor.value), low=float(factor.low),
                            high=float(factor.high), unit="ratio", kind="assumed", why=why),
    )  # fmt: skip


def tiles(m: float, n: float, groups: float, chip: Chip) -> tuple[tuple[int, int], float, Waves]:
    """The tile that wastes least of a product's output, how full its tiles are, and its waves.

    A larger tile is taken where it wastes as little: it reads less.
    """
    best: Any = None
    for rows, columns in BLOCKS:
        blocks = int(-(-m // rows) * -(-n // columns) * groups)
        waves = wave_waste(blocks, chip.sm_count or 1)
        filled = m * n * groups / (blocks * rows * columns)
        if best is None or filled * waves.efficiency > best[1] * best[2].efficiency + 1e-9:
            best = (rows, columns), filled, waves
    return best  # type: ignore[no-any-return]


class Place(Struct, frozen=True):
    """Where a product stands on a chip's roofline."""

    width: int
    """Of the model: what a product reads in its first layer."""
    intensity: float
    """FLOPs for each byte."""
    ridge: float
    """Where compute takes as long as memory."""
    bound: Literal["compute", "memory"]
    ceiling: float
    """Fraction of the peak that the roofline allows."""
    reached: float
    """Fraction of the peak that the fitted time reaches."""


def roofline(
    chip: Chip, dtype: str, m: float, n: float, k: float, width: int | None = None
) -> Place:
    """A product's place on the roofline.

    Args:
        chip: Where.
        dtype: What is multiplied.
        m: Rows.
        n: Columns.
        k: Depth.
        width: The width of the model it is of; None is k.

    Example:
        >>> from scantling.hardware import chip
        >>> roofline(chip("h100"), "bf16", 1, 4096, 4096).bound
        'memory'
    """
    return _place(chip, dtype, (m, n, k), int(k) if width is None else width,
                  float(gemm_time(chip, dtype, m, n, k).value_s))  # fmt: skip


def _place(
    chip: Chip, dtype: str, mnk: tuple[float, float, float], width: int, seconds: float
) -> Place:
    m, n, k = mnk
    flops = 2.0 * m * n * k
    intensity = float(flops / product_bytes(dtype, m, n, k))
    ridge = chip.rate(dtype) / chip.memory_bytes_per_s
    return Place(
        width=width, intensity=intensity, ridge=ridge,
        bound="compute" if intensity >= ridge else "memory", ceiling=min(1.0, intensity / ridge),
        reached=flops / seconds / chip.rate(dtype),
    )  # fmt: skip


def by_width(
    p: Product, chip: Chip, dtype: str, d_model: int,
    widths: tuple[int, ...] = (4096, 8192, 16384),
) -> tuple[Place, ...]:  # fmt: skip
    """The same product in models of other widths, everything that grows with the width scaled.

    Depth, and columns unless they are a vocabulary or experts to choose from, are multiplied by
    width / d_model. Scaled widths are rounded to multiples of 128, for no one would build another:
    what a crooked width costs is not what this shows. Rows stay.

    Args:
        p: The product.
        chip: Where.
        dtype: What is multiplied.
        d_model: The width of the model the product is of.
        widths: Widths of the others.

    Example:
        >>> from scantling import catalog
        >>> from scantling.hardware import chip
        >>> from scantling.spec import Workload
        >>> work = Workload("decode", 8, 4096)
        >>> one = gemm_products(catalog.model("llama-3.1-8b"), work, chip("h100"))[0]
        >>> [place.bound for place in by_width(one, chip("h100"), "bf16", 4096)]
        ['memory', 'memory', 'memory']
    """

    def scaled(value: float, width: int) -> int:
        if width == d_model:
            return round(value)
        return max(128, round(value * width / d_model / 128) * 128)

    found = []
    for w in widths:
        n = scaled(p.n, w) if p.grows else p.n
        k = scaled(p.k, w)
        if p.grouped:
            time = grouped_time(chip, dtype, p.m * p.groups, n, k, p.groups)
        else:
            time = gemm_time(chip, dtype, p.m, n, k, p.groups)
        seconds = float(time.value_s) / p.groups
        found.append(_place(chip, dtype, (p.m, n, k), w, seconds))
    return tuple(found)


class Pruning(Struct, frozen=True):
    """What pruning can gain at most, by Amdahl's law: 1 / (1 − share)."""

    part: str
    share: float
    """Of the time of all operators."""
    most: float
    """The gain if all of it were gone."""

    def at(self, fraction: float) -> float:
        """The gain if a fraction of it goes: 1 / (1 − fraction × share).

        Example:
            >>> Pruning("layers", 0.5, 2.0).at(0.5)
            1.3333333333333333
        """
        return 1 / (1 - fraction * self.share)


def pruning_bounds(spec: Spec, workload: Workload, chip: Chip) -> tuple[Pruning, ...]:
    """The bound of pruning heads, feed-forward widths, and whole layers.

    Example:
        >>> from scantling import catalog
        >>> from scantling.hardware import chip
        >>> from scantling.spec import Workload
        >>> work = Workload("prefill", 8, 1024)
        >>> found = pruning_bounds(catalog.model("gpt2"), work, chip("h100"))
        >>> [p.part for p in found], found[0].share < found[2].share < 1
        (['heads', 'feed-forward', 'layers'], True)
    """
    ops = operators(spec, workload)
    seconds = [float(op_time(op, workload, chip).value_s) for op in ops]
    whole = sum(seconds)
    parts = {
        "heads": {"attention", "mixer"},
        "feed-forward": {"ffn", "experts", "shared_experts", "router"},
    }
    shares = {
        name: sum(s for op, s in zip(ops, seconds, strict=True) if op.part in part) / whole
        for name, part in parts.items()
    }
    outside = {"embedding", "lm_head"}
    rest = sum(s for op, s in zip(ops, seconds, strict=True) if op.part not in outside)
    shares["layers"] = rest / whole
    return tuple(Pruning(name, share, 1 / (1 - share)) for name, share in shares.items())


def decode_ceiling(chip: Chip, read_bytes: float, batch: int = 1) -> Quantity:
    """Tokens a second that the bandwidth allows: bandwidth / bytes read for a step, times batch.

    A loop that reads all weights for each token cannot be faster; 50 to 85 % of it is what
    engines reach, and far less points at the software, not at the chip.

    Example:
        >>> from scantling.hardware import chip
        >>> found = decode_ceiling(chip("rtx-4090"), 16.8e9)
        >>> found.value, found.low, found.high
        (60.0, 30.0, 51.0)
    """
    ceiling = chip.memory_bytes_per_s / read_bytes * batch
    return Quantity(value=ceiling, low=0.5 * ceiling, high=0.85 * ceiling, unit="tokens/s",
                    kind="assumed", why=(
                        f"{chip.memory_bytes_per_s / 1e9:,.0f} GB/s / {read_bytes / 1e9:,.3g} GB",
                        "value is the bound; low to high, 50 to 85 % of it, what engines reach",
                    ))  # fmt: skip
