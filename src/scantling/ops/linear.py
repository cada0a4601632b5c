"""Operators of linear attention: lightning attention, and the delta rule in its two forms."""

from __future__ import annotations

from collections.abc import Iterator

from scantling.arith import Dim
from scantling.ops.op import Op
from scantling.ops.scan import Chunked, chunked, convolution
from scantling.ops.site import Site
from scantling.spec import GatedDelta, KimiDelta, LinearAttention


def linear(a: LinearAttention, site: Site) -> Iterator[Op]:
    """Lightning attention: q k v, a recurrence on d_head × d_head, norm, gate, output.

    For each pair of tokens of a block a score and a value, h each; the state is read and
    written once. The last block is not padded. Four tables of decays may be stored: the slope,
    its powers for queries and for keys, and for each pair of a block.
    """
    width = a.n_head * a.d_head
    yield site.matmul("qkv", "mixer", (("q", width), ("k", width), ("v", width)), site.width)
    weights = []
    if a.stored_decay:
        c = a.scan_chunk
        shapes = {"slope": (1, 1), "query_decay": (c, 1), "key_decay": (c, 1), "pair_decay": (c, c)}
        weights = [
            site.tensor(name, "mixer", a.n_head, *shape, buffer=True)
            for name, shape in shapes.items()
        ]
    scan = Chunked(
        heads=a.n_head, width=width, depth=a.d_head, chunk=a.scan_chunk, pair=2 * a.d_head,
        passes=2, pads=False,
    )  # fmt: skip
    yield from chunked(scan, site, tuple(weights))
    if a.norm is not None:
        yield site.norm("norm", a.norm, width, "mixer")
    if a.gated:
        yield site.matmul("gate", "mixer", (("gate", width),), site.width)
    yield site.matmul("o", "mixer", (("o", site.width),), width)


def gated_delta(a: GatedDelta, site: Site) -> Iterator[Op]:
    """Gated delta rule: q, k, v, z; write strength and decay per value head; a convolution.

    For each pair of tokens of a chunk and each value head: keys with keys, queries with keys,
    and the new values; the state is read for keys and for queries, and written.
    """
    key, value = a.n_key_head * a.d_key, a.n_value_head * a.d_state_value
    yield site.matmul("qkvz", "mixer", (("q", key), ("k", key), ("v", value), ("z", value)),
                      site.width)  # fmt: skip
    yield site.matmul("ba", "mixer", (("b", a.n_value_head), ("a", a.n_value_head)), site.width)
    yield convolution(site, 2 * key + value, a.d_conv, bias=False)
    weights = (
        site.tensor("dt_bias", "mixer", a.n_value_head),
        site.tensor("decay", "mixer", a.n_value_head),
    )
    scan = Chunked(
        heads=a.n_value_head, width=value, depth=a.d_key, chunk=a.scan_chunk,
        pair=2 * a.d_key + a.d_state_value, passes=3, rule="delta",
    )  # fmt: skip
    yield from chunked(scan, site, weights)
    yield site.norm("norm", a.norm, a.d_state_value, "mixer", heads=a.n_value_head)
    yield site.matmul("o", "mixer", (("o", site.width),), value)


def kimi_delta(a: KimiDelta, site: Site) -> Iterator[Op]:
    """Kimi delta attention: the delta rule with a decay for each channel of each key.

    Scores of a chunk weigh each channel on its own and count zero, as elementwise work; the
    inverse times values and times keys, and the scores times new values, are products.
    """
    width = a.n_delta_head * a.d_delta
    yield site.matmul("qkv", "mixer", (("q", width), ("k", width), ("v", width)), site.width)
    yield convolution(site, 3 * width, a.d_conv, bias=False)
    yield from _gate("forget", width, a.gate_rank, site)
    yield site.matmul("b", "mixer", (("b", a.n_delta_head),), site.width)
    weights = (
        site.tensor("dt_bias", "mixer", width),
        site.tensor("decay", "mixer", a.n_delta_head),
    )
    scan = Chunked(
        heads=a.n_delta_head, width=width, depth=a.d_delta, chunk=a.scan_chunk, pair=3 * a.d_delta,
        passes=3,
    )  # fmt: skip
    yield from chunked(scan, site, weights)
    yield from _gate("gate", width, a.gate_rank, site)
    yield site.norm("norm", a.norm, a.d_delta, "mixer", heads=a.n_delta_head)
    yield site.matmul("o", "mixer", (("o", site.width),), width)


def _gate(name: str, width: Dim, rank: Dim | None, site: Site) -> Iterator[Op]:
    """A projection of the stream, straight or through a narrow width."""
    if rank is None:
        yield site.matmul(name, "mixer", ((name, width),), site.width)
    else:
        yield site.matmul(f"{name}_a", "mixer", ((f"{name}_a", rank),), site.width)
        yield site.matmul(f"{name}_b", "mixer", ((f"{name}_b", width),), rank)
