"""What recurrent mixers share: the short convolution, and a recurrence worked out in chunks.

A recurrence over S tokens is a matrix-vector step for each of them, or, in a prefill, a few
products for each chunk of c tokens. With nc = ceil(S / c) chunks, H heads, a state of
``width × depth`` numbers in all (width = H P) and w multiply-adds for each pair of tokens of a
chunk and each head:

    pairs   nc c² × w × H            scores of a chunk's tokens with one another, times values
    states  nc c × width × depth × passes   what enters a chunk is read, what it adds is written
    carry   (nc + 1)² × P × depth × H       Mamba-2 only: states of all chunks from one another

each times 2. The last chunk is padded to c, which ``full`` counts as the reference code runs it
and ``unpadded`` does not: pairs (S // c) c² + (S mod c)², rows S. (Dao and Gu 2024, section 6;
the classes of transformers 5.24.) Work on single numbers, decays and gates among it, counts zero
as everywhere; so does the triangular solve of the delta rule, which no counter sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from scantling.arith import Dim, Num, ceil_div, wide
from scantling.ops.op import Cache, Op, Tensor
from scantling.ops.site import Site


def convolution(site: Site, channels: Dim, d_conv: Dim, *, bias: bool) -> Op:
    """A depthwise causal convolution: d_conv multiply-adds a channel; keeps d_conv − 1 inputs.

    A prefill pads both ends with d_conv − 1 zeros and cuts the end off again: S + d_conv − 1
    rows are worked out for S.
    """
    weights = [site.tensor("conv", "mixer", channels, 1, d_conv)]
    if bias:
        weights.append(site.tensor("conv_bias", "mixer", channels))
    rows: Num = site.rows
    if site.phase != "decode":
        rows = rows + site.batch * (d_conv - 1)
    return Op(
        name=f"{site.path}.conv", kind="scan", part="mixer", m=rows, n=channels, k=d_conv,
        repeat=site.times, times=site.times, tensors=tuple(weights), elements=2 * channels,
        visible=wide(channels) * site.rows,
        cache=Cache(state=channels * (d_conv - 1), copies=site.times),
    )  # fmt: skip


def step(
    site: Site, width: Dim, products: Num, cache: Cache, tensors: tuple[Tensor, ...] = ()
) -> Op:
    """A recurrence token by token: ``products`` multiply-adds for each of ``width`` channels."""
    return Op(
        name=f"{site.path}.core", kind="scan", part="mixer", m=site.rows, n=width, k=products,
        repeat=site.times, times=site.times, tensors=tensors, cache=cache, elements=2 * width,
    )  # fmt: skip


class Chunked(Struct, frozen=True, kw_only=True):
    """A recurrence that a prefill works out in chunks; letters as at the top of this module."""

    heads: Dim
    width: Dim
    depth: Dim
    chunk: Dim
    pair: Dim
    """w: multiply-adds for each pair of tokens and each head."""
    passes: int
    """Products of a row of tokens with the state, for each chunk and for each decoded token."""
    carries: bool = False
    """Whether the states of all chunks are worked out from one another at once."""
    pads: bool = True
    """Whether the last chunk is filled up."""
    rule: str = ""
    """``state`` of state spaces, ``delta`` of the gated delta rule."""


def chunked(c: Chunked, site: Site, tensors: tuple[Tensor, ...] = ()) -> Iterator[Op]:
    """The operators of a recurrence in chunks, or of its step where tokens are decoded."""
    cache = Cache(state=c.width * c.depth, copies=site.times)
    core = step(site, c.width, c.passes * c.depth, cache, tensors)
    if site.phase == "decode":
        yield core
        return
    tokens: Any = site.queries
    chunks = ceil_div(tokens, c.chunk)
    whole, rest = tokens // c.chunk, tokens % c.chunk
    pairs = wide(c.chunk) * c.chunk * whole + wide(rest) * rest
    rows: Any = c.chunk * chunks if c.pads else tokens
    yield Op(
        name=f"{site.path}.pairs", kind="scan", part="mixer", m=site.batch * rows if c.pads else
        site.batch * pairs, n=c.chunk if c.pads else 1, k=c.pair, repeat=site.times * c.heads,
        times=site.times, visible=site.batch * pairs, form=c.rule,
    )  # fmt: skip
    yield Op(
        name=core.name, kind="scan", part="mixer", m=site.batch * rows, n=core.n, k=core.k,
        repeat=site.times, times=site.times, tensors=tensors, cache=cache, elements=core.elements,
        visible=wide(c.width) * site.rows,
    )  # fmt: skip
    if c.carries:
        yield Op(
            name=f"{site.path}.carry", kind="scan", part="mixer", m=site.batch * (chunks + 1),
            n=chunks + 1, k=c.width * c.depth, repeat=site.times, times=site.times,
        )  # fmt: skip
