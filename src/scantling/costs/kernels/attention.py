"""Attention: scores, softmax and the weighted sum in one kernel.

Three questions, three functions: many queries at once (``prefill_time``), one query on a long cache
(``decode_time``), and forward or backward passes of training (``training_time``), where the kernel
is an axis of its own. All take dimensions as numbers or arrays of one shape.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from scantling.arith import Dim, Num, ceil_div, log2, maximum, minimum, product, round_up, wide
from scantling.costs.kernels.time import Terms, Time, spread, within
from scantling.costs.remember import remembered
from scantling.hardware import Chip
from scantling.hardware.curve import interpolate
from scantling.spec.workload import BITS, plain_dtype

TILE = 128
"""Queries a block of a fused kernel works on: 128 in FlashAttention 2 and 3 up to width 256."""
CACHE_TILE = 64
"""Keys a block reads at a time in decoding, and rows of queries that share them at most."""
OVERLAP = 4
"""Power of the norm that joins what blocks cost and what reading costs: nearly the larger."""


class Shape(Struct, frozen=True, kw_only=True):
    """One attention: what its time depends on.

    Args:
        batch: Sequences B.
        queries: Queries of each, Q.
        keys: Keys of each, S: the queries are the last of them.
        n_head: Query heads H.
        n_kv_head: Key and value heads K; 1 for an absorbed latent.
        d_key: Width of a query and a key.
        d_value: Width of a value, in the kernel's eyes; None is ``d_key``.
        visible: (query, key) pairs of one head and sequence that the mask lets through; None is
            all of them.
        reach: Keys one query sees at most, a window; None is all.
        kv_bytes: Bytes a key and a value of one token and head take together in the cache; None
            is 16 bits an element.

    Example:
        >>> Shape(batch=1, queries=256, keys=256, n_head=8, n_kv_head=8, d_key=128).width
        128
    """

    batch: Dim
    queries: Num
    keys: Num
    n_head: Dim
    n_kv_head: Dim
    d_key: Dim
    d_value: Dim | None = None
    visible: Num | None = None
    reach: Num | None = None
    kv_bytes: Num | None = None

    @property
    def both(self) -> Dim:
        """Width of a key and a value together: 2 × both FLOPs a pair."""
        return self.d_key + (self.d_key if self.d_value is None else self.d_value)

    @property
    def width(self) -> Dim:
        """The width kernels are measured by: the mean of key and value."""
        return self.both // 2

    @property
    def pairs(self) -> Num:
        """Visible pairs of one head and sequence."""
        return product(self.queries, self.keys) if self.visible is None else self.visible

    @property
    def flops(self) -> Num:
        """Operations over the visible pairs: two products, 2 a multiply-add."""
        return product(self.batch, self.n_head, self.pairs, self.both, 2)

    @property
    def query_bytes(self) -> Num:
        """Bytes of queries and outputs at 16 bits."""
        return product(self.batch, self.n_head, self.queries, self.both, 2)

    @property
    def cache_bytes(self) -> Num:
        """Bytes of the keys and values that are read: all, or those within reach."""
        each: Any = product(self.both, 2) if self.kv_bytes is None else self.kv_bytes
        held: Any = self.keys if self.reach is None else minimum(self.keys, self.reach)
        return product(self.batch, self.n_kv_head, held, each)

    @property
    def tiled_pairs(self) -> Num:
        """Pairs of one head and sequence that tiles cover.

        A row of tiles ends in one that the mask cuts, half of it wasted: Q × 128 / 2 pairs over
        all rows. Nothing covers more than all tiles.

        Example:
            >>> Shape(batch=1, queries=128, keys=128, n_head=1, n_kv_head=1, d_key=64,
            ...       visible=8256).tiled_pairs
            16384
        """
        every = product(round_up(self.queries, TILE), round_up(self.keys, TILE))  # type: ignore[arg-type]
        if self.visible is None:
            return every
        rows: Any = product(round_up(self.queries, TILE), TILE // 2)  # type: ignore[arg-type]
        return minimum(every, self.visible + rows)  # type: ignore[no-any-return]

    @property
    def blocks(self) -> Num:
        """Blocks of 128 queries."""
        tiles = ceil_div(self.queries, TILE)  # type: ignore[arg-type]
        return product(self.batch, self.n_head, tiles)


def prefill_time(chip: Chip, dtype: str, shape: Shape, launches: Num = 1) -> Time:
    """Attention of a prompt, or of a chunk of one, that leaves its keys in a cache.

        work    = 2 (h_k + h_v) × tiled pairs × B × H / (fraction(h) × rate)
        longest = the same of the block that sees most keys, on one SM of the chip's n
        memory  = (a × bytes of queries and outputs + b × bytes of keys and values) / bandwidth
        blocks  = (B × H × ⌈Q / 128⌉ × what a block costs + B × Q × what a token costs) / n
        time    = launch + work + tail × longest + memory + blocks

    The longest block is what a wave of blocks waits for: a greedy schedule of jobs ends at most
    one longest job after the even share (Graham 1966). Memory adds to the work since keys are
    written to a paged cache and read back before the kernel has them, token by token.

    Args:
        chip: Where.
        dtype: What the work around it runs at; attention itself at least at 16 bits.
        shape: Its dimensions.
        launches: Equal layers, each a call of its own.

    Example:
        >>> from scantling.hardware import chip
        >>> long = Shape(batch=1, queries=8192, keys=8192, n_head=32, n_kv_head=8, d_key=128,
        ...              visible=8192 * 8193 // 2)
        >>> t = prefill_time(chip("h100"), "bf16", long)
        >>> 0.5 < long.flops / t.value_s / 989e12 < 0.75
        True
    """
    c = chip.constants.attention
    terms = prefill_terms(chip, dtype, shape)
    value = sum(terms)
    wide_by = spread(terms, c.prefill_spread, c.widen)
    lower = maximum(shape.flops / _rate(chip, dtype), _passes(chip, shape, 1, 1))
    return within(lower, value, value * wide_by, wide_by, wide_by).times(launches)


def prefill_terms(chip: Chip, dtype: str, shape: Shape) -> Terms:
    """Seconds of launch, work, tail, memory and blocks, as ``prefill_time`` adds them."""
    c = chip.constants.attention
    work, longest = _compute(chip, dtype, shape, c.prefill_at(shape.width), shape.both)
    memory = _passes(chip, shape, c.prefill_query_passes, c.prefill_kv_passes)
    rows = product(shape.batch, shape.queries)
    blocks = (wide(shape.blocks) * c.prefill_block_s + rows * c.prefill_token_s) / _sms(chip)
    return c.prefill_launch_s, work, c.prefill_tail * longest, memory, blocks


def decode_time(chip: Chip, dtype: str, shape: Shape, launches: Num = 1) -> Time:
    """Attention of the newest token of each sequence on its cache.

        units   = B × K × ⌈S / 64⌉ pieces that can be read side by side
        reading = cache / (fraction × bandwidth) × (units + ramp × SMs) / units
        blocks  = B × K × ⌈H / K / 64⌉ / SMs × what a block costs
        compute = FLOPs, queries padded to 64 rows a KV head, / (fraction × rate)
        time    = launch + step × log₂(1 + S / 64) + queries and outputs
                  + (reading⁴ + blocks⁴ + compute⁴)^(1/4)

    Args:
        chip: Where.
        dtype: What the work around it runs at; attention itself at least at 16 bits.
        shape: Its dimensions, with one query or a few.
        launches: Equal layers, each a call of its own.

    Example:
        >>> from scantling.hardware import chip
        >>> one = Shape(batch=64, queries=1, keys=32768, n_head=32, n_kv_head=8, d_key=128)
        >>> t = decode_time(chip("h100"), "bf16", one)
        >>> 1.0 < t.value_s / t.lower_s < 1.4
        True
    """
    c = chip.constants.attention
    terms = decode_terms(chip, dtype, shape)
    value = sum(terms)
    wide_by = spread(terms, c.decode_spread, c.widen)
    lower = maximum(shape.flops / _rate(chip, dtype), _passes(chip, shape, 1, 1))
    return within(lower, value, value * wide_by, wide_by, wide_by).times(launches)


def decode_terms(chip: Chip, dtype: str, shape: Shape) -> Terms:
    """Seconds of launch, steps, reading, blocks and outputs; compute counts as reading.

    Of the joined three each has the share that its fourth power has.
    """
    c, sms, bandwidth = chip.constants.attention, _sms(chip), chip.memory_bytes_per_s
    held: Any = shape.keys if shape.reach is None else minimum(shape.keys, shape.reach)
    heads = product(shape.batch, shape.n_kv_head)
    rows = ceil_div(product(shape.n_head, shape.queries), shape.n_kv_head)  # type: ignore[arg-type]
    tiles = ceil_div(rows, CACHE_TILE)
    units = product(heads, ceil_div(held, CACHE_TILE))
    idle = 1 + c.decode_ramp * sms / units
    reading = shape.cache_bytes / (c.decode_bandwidth * bandwidth) * idle
    blocks = product(heads, tiles) / sms * interpolate(shape.width, c.decode_block_s)
    padded = product(heads, tiles, CACHE_TILE, held, shape.both, 2)
    compute = padded / (_rate(chip, dtype) * c.decode_compute)
    powers = reading**OVERLAP + compute**OVERLAP + blocks**OVERLAP
    joined = powers ** (1 / OVERLAP)
    waiting = joined * (blocks**OVERLAP / powers)
    outputs = shape.query_bytes * c.decode_query_passes / bandwidth
    steps = c.decode_step_s * log2(1 + held / CACHE_TILE)
    return c.decode_launch_s, steps, joined - waiting, waiting, outputs


@remembered(lambda chip, *given, **named: (id(chip), given, tuple(named.items())))
def training_time(
    chip: Chip, dtype: str, shape: Shape, kernel: str, *, backward: bool = False, launches: Num = 1
) -> Time:
    """One pass of attention in training, by the generation of the kernel.

    A fused backward pass makes the scores again: five products of the forward pass's size for
    two, 2.5 times its FLOPs. An unfused one has four, and moves every score through memory, all
    of them: it computes what a causal mask hides as well.

        work   = (1 or 2.5 or 2) × 2 (h_k + h_v) × tiled pairs × B × H / (fraction(h) × rate)
        scores = bytes a score × all pairs × B × H / bandwidth, unfused; twice backward
        time   = launches + work + tail × longest + scores + passes of queries to outputs

    Args:
        chip: Where.
        dtype: What the work around it runs at; attention itself at least at 16 bits.
        shape: Its dimensions.
        kernel: ``unfused``, ``flash``, ``flash2``, ``flash3`` or ``cudnn``.
        backward: Which pass.
        launches: Equal layers, each a call of its own.

    Example:
        >>> from scantling.hardware import chip
        >>> x = Shape(batch=2, queries=4096, keys=4096, n_head=16, n_kv_head=16, d_key=128,
        ...           visible=4096 * 4097 // 2)
        >>> slow, fast = (training_time(chip("h100"), "bf16", x, k) for k in ("unfused", "flash3"))
        >>> slow.value_s > 5 * fast.value_s
        True
    """
    c = chip.constants.attention
    passes = 2 if backward else 1
    terms = training_terms(chip, dtype, shape, kernel, backward=backward)
    value = sum(terms)
    error = spread(terms, c.kernel(kernel).spread, c.widen)
    lower = maximum(passes * shape.flops / _rate(chip, dtype), _passes(chip, shape, passes, passes))
    return within(lower, value, value * error, error, error).times(launches)


def training_terms(
    chip: Chip, dtype: str, shape: Shape, kernel: str, *, backward: bool = False
) -> Terms:
    """Seconds of what a kernel is for, work or scores; and of launches, tail and passes."""
    c = chip.constants.attention
    k = c.kernel(kernel)
    products, passes = (2.5, 2) if backward else (1, 1)
    fraction = interpolate(shape.width, k.backward if backward else k.forward)
    rest: Num = c.prefill_launch_s * k.launches * passes
    rest = rest + _passes(chip, shape, k.passes * passes, k.passes * passes)
    scores: Num = 0.0
    if k.scores:
        each = k.scores if shape.visible is None else k.scores + k.mask
        every = product(shape.batch, shape.n_head, shape.queries, shape.keys)
        scores = every * (each * passes) / chip.memory_bytes_per_s
        products, shape = passes, replace(shape, visible=None, reach=None)
    work, longest = _compute(chip, dtype, shape, fraction, shape.both * products)
    return work + scores, rest + k.tail * longest


def _compute(chip: Chip, dtype: str, shape: Shape, fraction: Num, width: Num) -> tuple[Num, Num]:
    """Seconds of the tiles on all SMs, and of the longest block on its own."""
    each = 2 * width / (_rate(chip, dtype) * fraction)
    work = product(shape.batch, shape.n_head, shape.tiled_pairs) * each
    seen: Any = shape.keys if shape.reach is None else minimum(shape.keys, shape.reach + TILE)
    longest = product(round_up(seen, TILE), TILE * _sms(chip)) * each
    return work, longest


def _passes(chip: Chip, shape: Shape, queries: float, keys: float) -> Num:
    """Seconds of moving queries and outputs, and keys and values, so many times."""
    moved = shape.query_bytes * queries + shape.cache_bytes * keys
    return moved / chip.memory_bytes_per_s


def _rate(chip: Chip, dtype: str) -> float:
    """Attention multiplies at 16 bits, even where the products around it run at 8 or 4."""
    if BITS.get(plain_dtype(dtype), 16) >= 16:
        return chip.rate(dtype)
    return chip.rate("fp16" if chip.rates.bf16 is None else "bf16")


def _sms(chip: Chip) -> int:
    """Blocks a chip works on at once; a chip that tells no number is taken for a large one."""
    return chip.sm_count or 128


__all__ = ["CACHE_TILE", "TILE", "Shape", "decode_time", "prefill_time", "training_time"]
