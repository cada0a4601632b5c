"""Why attention is fast or slow: widths a kernel takes, its tiles, its traffic, blocks and SMs."""

from __future__ import annotations

import functools
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from scantling.arith import Dim, Num, ceil_div, minimum, product
from scantling.costs.kernels.attention import CACHE_TILE, TILE, Shape
from scantling.errors import UnknownNameError
from scantling.hardware import Chip
from scantling.sources import read_data

REGISTERS = 255
"""The most 32-bit registers a thread can use, on every NVIDIA chip since Kepler."""


class FusedKernel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fused attention kernel and the head widths it takes.

    Args:
        name: ``flash2``.
        title: Its name for people.
        since: Year and month the rule was stated.
        sources: Keys of the bibliography.
        least_capability: The oldest compute capability it runs on.
        most_capability: The newest; None is no limit known.
        multiple: Widths that are multiples of it are taken, up to ``most``; None takes only those
            in ``widths``.
        most: The largest of them.
        widths: (key, value) widths taken beside.
        note: What else there is to say.
    """

    name: str
    title: str
    since: str
    sources: tuple[str, ...]
    least_capability: float
    most_capability: float | None = None
    multiple: int | None = None
    most: int = 0
    widths: tuple[tuple[int, int], ...] = ()
    note: str = ""


class Taken(Struct, frozen=True, kw_only=True):
    """Whether a kernel takes a head width on a chip.

    Args:
        verdict: ``yes``; ``padded``: once padded to ``width``; ``no``; or ``unknown``: the rules
            speak of compute capabilities, and the chip has none.
        width: The width it runs at; None where it does not.
        reason: One line that says why, with the date of the rule.
    """

    verdict: Literal["yes", "padded", "no", "unknown"]
    width: int | None
    reason: str


@functools.cache
def fused_kernels() -> dict[str, FusedKernel]:
    """Every kernel of the table by its name.

    Example:
        >>> sorted(fused_kernels())
        ['flash2', 'flash3', 'flash3-first', 'flashmla']
    """
    found = msgspec.convert(read_data("attention_kernels.toml")["kernel"], list[FusedKernel])
    return {k.name: k for k in found}


def takes(name: str, chip: Chip, d_key: int, d_value: int | None = None) -> Taken:
    """Whether a kernel takes a head width on a chip.

    Args:
        name: A kernel of the table.
        chip: Where.
        d_key: Width of queries and keys.
        d_value: Width of values; None is that of the keys.

    Raises:
        UnknownNameError: If there is no such kernel.

    Example:
        >>> from scantling.hardware import chip
        >>> takes("flash2", chip("a100"), 100).reason
        'FlashAttention 2 takes multiples of 8 up to 256: 100 runs padded to 104 (2023-07)'
        >>> takes("flash3", chip("a100"), 576, 512).verdict
        'no'
    """
    if name not in fused_kernels():
        raise UnknownNameError("kernel", name, fused_kernels())
    k, value = fused_kernels()[name], d_key if d_value is None else d_value
    if chip.compute_capability is None:
        return Taken(verdict="unknown", width=None, reason=f"{k.title}: its rule is of NVIDIA's "
                     f"chips ({k.since}), none is known of {chip.name}")  # fmt: skip
    capability = float(chip.compute_capability)
    newest = float("inf") if k.most_capability is None else k.most_capability
    if not k.least_capability <= capability <= newest:
        return Taken(verdict="no", width=None, reason=f"{k.title} does not run on {chip.name}, "
                     f"compute capability {chip.compute_capability} ({k.since})")  # fmt: skip
    shown = str(d_key) if value == d_key else f"{d_key} with values of {value}"
    verdict, width = fits(d_key, value, k.multiple, k.most, k.widths)
    if (d_key, value) in k.widths:
        return Taken(verdict="yes", width=d_key, reason=f"{k.title} takes {shown} ({k.since})")
    if width is None:
        some = ", ".join(str(a) if a == b else f"{a} with values of {b}" for a, b in k.widths)
        rule = f"multiples of {k.multiple} up to {k.most}" if k.multiple else ""
        says = " and ".join(part for part in (rule, some) if part)
        return Taken(verdict="no", width=None,
                     reason=f"{k.title} takes {says}, not {shown} ({k.since})")  # fmt: skip
    rule = f"{k.title} takes multiples of {k.multiple} up to {k.most}"
    if verdict == "yes":
        return Taken(verdict="yes", width=d_key, reason=f"{rule} ({k.since})")
    return Taken(verdict="padded", width=width,
                 reason=f"{rule}: {shown} runs padded to {width} ({k.since})")  # fmt: skip


def fits(
    d_key: int, d_value: int, multiple: int | None, most: int,
    pairs: tuple[tuple[int, int], ...], *, uneven: bool = False,
) -> tuple[Literal["yes", "padded", "no"], int | None]:  # fmt: skip
    """Whether a rule takes a head, and the width it runs at.

    A kernel of one width for keys and values takes narrower values once they are padded to the
    keys: FlashAttention's ``flash_api`` checks that both are equal.

    Args:
        d_key: Width of queries and keys.
        d_value: Width of values.
        multiple: Widths that are multiples of it are taken; None takes only ``pairs``.
        most: The largest of them.
        pairs: (key, value) widths taken beside.
        uneven: Whether values may be narrower than keys.

    Example:
        >>> fits(128, 128, 8, 256, ()), fits(100, 100, 8, 256, ()), fits(192, 128, 8, 256, ())
        (('yes', 128), ('padded', 104), ('padded', 192))
        >>> fits(192, 128, 8, 256, ((192, 128),)), fits(80, 80, None, 0, ((64, 64),))
        (('yes', 192), ('no', None))
    """
    if (d_key, d_value) in pairs:
        return "yes", d_key
    if multiple is None or d_value > d_key or d_key > most:
        return "no", None
    width = d_key + -d_key % multiple
    same = width == d_key and (uneven or d_value == d_key)
    return ("yes" if same else "padded"), width


class Tile(Struct, frozen=True, kw_only=True):
    """What a block of a fused kernel holds on chip.

    Args:
        queries: Rows of queries.
        keys: Keys and values at a time.
        threads: Threads that share the work.
        shared_bytes: Shared memory of a block.
        registers: Registers of a thread for outputs and scores, both in FP32.
        blocks_per_sm: Blocks that fit into the shared memory of one SM at once.
    """

    queries: int
    keys: int
    threads: int
    shared_bytes: int
    registers: int
    blocks_per_sm: int


def tile(chip: Chip, d_head: int) -> Tile | None:
    """The tile of a fused forward pass at a head width, by the choices of FlashAttention 2.

    A block keeps its queries and one step of keys and values in shared memory at 16 bits, and its
    outputs and scores in registers at 32:

        shared    = 2 bytes × h × (queries + 2 × keys)
        registers = queries × (h + keys) / threads

    of which an SM has ``shared_max_bytes`` (1 KiB of it goes with each block) and a thread 255.
    64 queries take 128 threads, and so do 128 of up to 128 wide; wider ones take 256. Of
    128 × 128 (up to width 64), 128 × 64 and 64 × 64 it is the first of which two blocks fit on an
    SM, for one computes while another waits; else the first of these or 64 × 32 of which one does.

    Its source says so at 128 (128 × 64 in 64 KiB; 48 KiB where an SM has 100) and at 256
    (128 × 64 in 128 KiB on A100, 64 × 64 in 96 KiB on H100, for two to fit). At 192 it takes
    128 × 64 on all, where this rule says 64 × 64.

    Args:
        chip: Where; its shared memory must be known.
        d_head: Head width h.

    Returns:
        The tile, or None where none fits or the chip's shared memory is not known.

    Example:
        >>> from scantling.hardware import chip
        >>> [(t.queries, t.keys) for t in (tile(chip("a100"), h) for h in (64, 128, 256)) if t]
        [(128, 128), (128, 64), (128, 64)]
        >>> tile(chip("rtx-4090"), 512) is None
        True
    """
    if chip.shared_max_bytes is None:
        return None
    found = []
    for queries, keys in ((128, 128), (128, 64), (64, 64), (64, 32)):
        threads = 128 if queries == 64 or d_head <= 128 else 256
        shared = 2 * d_head * (queries + 2 * keys)
        registers = queries * (d_head + keys) // threads
        blocks = chip.shared_max_bytes // (shared + 1024)
        if blocks and registers < REGISTERS and (keys < 128 or d_head <= 64):
            found.append(Tile(
                queries=queries, keys=keys, threads=threads, shared_bytes=shared,
                registers=registers, blocks_per_sm=blocks,
            ))  # fmt: skip
    twice = (t for t in found if t.blocks_per_sm > 1 and t.keys >= 64)
    return next(twice, found[0] if found else None)


class Traffic(Struct, frozen=True, kw_only=True):
    """Bytes of one forward pass of attention.

    Args:
        unfused: What three kernels move through memory.
        fused: What one kernel has to move through memory.
        reread: What it asks of the second-level cache: keys and values once a row of blocks.
    """

    unfused: Num
    fused: Num
    reread: Num


def traffic(shape: Shape, queries: int = 128) -> Traffic:
    """What attention moves, with the scores and without.

    Unfused, of Q queries and S keys a head: Q and K in, scores out (Q S); scores in, weights out
    (2 Q S); weights and V in, O out (Q S): 4 Q S elements beside the inputs and outputs, each 16
    bits. A mask or dropout of its own adds 2 Q S each. Fused, the scores never leave the chip:
    only inputs and outputs move (Dao et al. 2022, theorem 2 bounds it by Q S h² / M for an
    on-chip memory of M elements). Each block of queries reads all keys and values again, but
    blocks of one head run side by side, so the second reading comes from the cache. With a window
    w the Q queries see Q + w − 1 keys between them, and a block of q queries q + w − 1.

    Args:
        shape: The dimensions.
        queries: Queries of a block.

    Example:
        >>> t = traffic(Shape(batch=1, queries=4096, keys=4096, n_head=32, n_kv_head=32, d_key=128))
        >>> round(t.unfused / t.fused)
        33
    """
    seen, block = _seen(shape, shape.queries), _seen(shape, queries)
    once: Any = shape.query_bytes + replace(shape, reach=seen).cache_bytes
    scores = product(shape.batch, shape.n_head, shape.queries, shape.keys, 4, 2)
    rows = product(ceil_div(shape.queries, queries), shape.batch, shape.n_head)  # type: ignore[arg-type]
    again = product(rows, block, shape.both, 2)
    return Traffic(unfused=once + scores, fused=once, reread=shape.query_bytes + again)


def _seen(shape: Shape, queries: Num) -> Num:
    """Keys that neighbouring queries see between them."""
    if shape.reach is None:
        return shape.keys
    last: Any = queries + shape.reach - 1
    return minimum(shape.keys, last)  # type: ignore[no-any-return]


class Fill(Struct, frozen=True, kw_only=True):
    """Blocks against SMs.

    Args:
        blocks: Blocks of the kernel.
        sms: Blocks that run at once, one an SM.
        waves: Rounds it takes if all blocks last equally long.
        efficiency: Blocks / (waves × SMs): what the last round leaves of the chip.
        splits: In decoding: parts a cache has to be split into for a block an SM; 1 elsewhere.
    """

    blocks: Num
    sms: int
    waves: Num
    efficiency: Num
    splits: Num


def fill(blocks: Num, sms: int, splits: Num = 1) -> Fill:
    """Blocks on SMs in rounds.

    Example:
        >>> fill(109, 108).waves, round(fill(109, 108).efficiency, 4)
        (2, 0.5046)
    """
    waves: Any = ceil_div(blocks, sms)  # type: ignore[arg-type]
    return Fill(blocks=blocks, sms=sms, waves=waves, efficiency=blocks / (waves * sms),
                splits=splits)  # fmt: skip


def prefill_fill(chip: Chip, shape: Shape, queries: int = TILE) -> Fill | None:
    """A prompt's blocks, one for each 128 queries of each head and sequence, on a chip's SMs.

    A chip whose shared memory holds a smaller tile has one for each ``queries`` of that tile.

    Under a causal mask blocks are not equally long, so the rounds are a worst case.

    Returns:
        None where the chip's SMs are not known.

    Example:
        >>> from scantling.hardware import chip
        >>> f = prefill_fill(chip("h100"), Shape(batch=1, queries=512, keys=512, n_head=32,
        ...                                      n_kv_head=8, d_key=128))
        >>> f.blocks, f.waves
        (128, 1)
    """
    if chip.sm_count is None:
        return None
    rows = ceil_div(shape.queries, queries)  # type: ignore[arg-type]
    return fill(product(shape.batch, shape.n_head, rows), chip.sm_count)


def decode_fill(chip: Chip, shape: Shape) -> Fill | None:
    """A decode step's blocks, and the splits that would fill a chip.

    A block works for 64 query heads of one KV head and sequence at most: an absorbed latent, one
    head that 128 share, has two. A kernel that splits the keys cannot make parts shorter than a
    tile of 64.

    Returns:
        None where the chip's SMs are not known.

    Example:
        >>> from scantling.hardware import chip
        >>> f = decode_fill(chip("h100"), Shape(batch=1, queries=1, keys=8192, n_head=32,
        ...                                     n_kv_head=8, d_key=128))
        >>> f.blocks, f.splits
        (8, 17)
    """
    if chip.sm_count is None:
        return None
    rows = ceil_div(product(shape.n_head, shape.queries), shape.n_kv_head)  # type: ignore[arg-type]
    blocks = product(shape.batch, shape.n_kv_head, ceil_div(rows, CACHE_TILE))
    wanted, most = ceil_div(chip.sm_count, blocks), ceil_div(shape.keys, CACHE_TILE)  # type: ignore[arg-type]
    return fill(blocks, chip.sm_count, minimum(wanted, most))


def kept_scores_bytes(batch: Dim, context: Dim, n_head: Dim, *, fused: bool) -> Num:
    """Bytes a layer keeps of its scores for the backward pass, at 16 bits with dropout.

    Unfused 5 a S² B: scores before the softmax 2, the dropout mask 1, weights after dropout 2, for
    each of a S² B pairs (Korthikanti et al. 2022, section 4.1). Fused 0: they are made again.

    Example:
        >>> kept_scores_bytes(1, 4096, 32, fused=False)
        2684354560
    """
    return 0 if fused else product(context, context, batch, n_head, 5)
