"""Operators of mixers with a fixed state: state spaces, RWKV, Griffin's, a short convolution."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from scantling.ops.op import Cache, Op
from scantling.ops.scan import Chunked, chunked, convolution, step
from scantling.ops.site import Site
from scantling.spec import Mamba1, Mamba2, RgLru, Rwkv, ShortConv


def mamba1(s: Mamba1, site: Site) -> Iterator[Op]:
    """Mamba: in, convolution, data-dependent dt, B and C, selective scan, out.

    The scan runs token by token: the update of the state is elementwise, its product with C is
    d_state multiply-adds a channel.
    """
    both = (("x", s.d_inner), ("z", s.d_inner))
    yield site.matmul("in", "mixer", both, site.width, bias=s.bias)
    yield convolution(site, s.d_inner, s.d_conv, bias=s.conv_bias)
    yield from _selection(s, site)
    weights = (
        site.tensor("a_log", "mixer", s.d_inner, s.d_state),
        site.tensor("skip", "mixer", s.d_inner),
    )
    cache = Cache(state=s.d_inner * s.d_state, copies=site.times)
    yield step(site, s.d_inner, s.d_state, cache, weights)
    yield site.matmul("out", "mixer", (("out", site.width),), s.d_inner, bias=s.bias)


def _selection(s: Mamba1, site: Site) -> Iterator[Op]:
    """The products that choose dt, B and C: over all channels, or for each head over its own."""
    chosen = (("dt", s.dt_rank), ("b", s.d_state), ("c", s.d_state))
    if s.n_select_head is not None:
        heads, own = s.n_select_head, s.d_inner // s.n_select_head
        for name, n, k, biased in (
            ("select", s.dt_rank + 2 * s.d_state, own, False), ("dt_up", own, s.dt_rank, True),
        ):  # fmt: skip
            weights = [site.tensor(name, "mixer", heads, n, k)]
            if biased:
                weights.append(site.tensor(f"{name}_bias", "mixer", heads, n))
            op = site.matmul(name, "mixer", ((name, n),), k)
            yield replace(op, repeat=site.times * heads, tensors=tuple(weights))
        return
    yield site.matmul("select", "mixer", chosen, s.d_inner)
    if s.inner_norm is not None:
        for name, width in chosen:
            yield site.norm(f"{name}_norm", s.inner_norm, width, "mixer")
    yield site.matmul("dt_up", "mixer", (("dt_up", s.d_inner),), s.dt_rank, bias=True)


def mamba2(s: Mamba2, site: Site) -> Iterator[Op]:
    """Mamba-2: one projection for z, x, B, C and dt; scalar decay per head; gated norm.

    For each pair of tokens of a chunk and each head: C with B, d_state wide, and the values,
    d_inner / n_ssm_head wide; the state is read and written, and carried over the chunks.
    """
    group = s.n_group * s.d_state
    outs = (
        ("z", s.d_inner), ("x", s.d_inner), ("b", group), ("c", group), ("dt_in", s.n_ssm_head),
    )  # fmt: skip
    yield site.matmul("in", "mixer", outs, site.width, bias=s.in_bias)
    yield convolution(site, s.d_inner + 2 * group, s.d_conv, bias=s.conv_bias)
    weights = tuple(
        site.tensor(name, "mixer", s.n_ssm_head) for name in ("dt_bias", "a_log", "skip")
    )
    scan = Chunked(
        heads=s.n_ssm_head, width=s.d_inner, depth=s.d_state, chunk=s.scan_chunk,
        pair=s.d_state + s.d_inner // s.n_ssm_head, passes=2, carries=True,
        rule="state",
    )  # fmt: skip
    yield from chunked(scan, site, weights)
    if s.norm is not None:
        yield site.norm("norm", s.norm, s.d_inner, "mixer")
    yield site.matmul("out", "mixer", (("out", site.width),), s.d_inner, bias=s.out_bias)


def rwkv(r: Rwkv, site: Site) -> Iterator[Op]:
    """RWKV-4 time mixing: token-shift mixes, k v r, the recurrence (elementwise), output.

    The state is the last token, and numerator, denominator and largest exponent per channel.
    """
    mixes = tuple(site.tensor(f"mix_{x}", "mixer", 1, 1, site.width) for x in "kvr")
    yield site.light("elementwise", "shift", "mixer", site.width, mixes)
    outs = (("k", r.d_attention), ("v", r.d_attention), ("r", r.d_attention))
    yield site.matmul("kvr", "mixer", outs, site.width)
    weights = (
        site.tensor("decay", "mixer", r.d_attention),
        site.tensor("first", "mixer", r.d_attention),
    )
    cache = Cache(state=3 * r.d_attention + site.width, copies=site.times)
    yield step(site, r.d_attention, 0, cache, weights)
    yield site.matmul("o", "mixer", (("o", site.width),), r.d_attention)


def rg_lru(r: RgLru, site: Site) -> Iterator[Op]:
    """Griffin: a gate branch and a recurrent branch with block-diagonal gates."""
    both = (("x", r.d_rnn), ("y", r.d_rnn))
    yield site.matmul("in", "mixer", both, site.width, bias=True)
    yield convolution(site, r.d_rnn, r.d_conv, bias=True)
    block = r.d_rnn // r.n_gate_block
    gates = []
    for name in ("input_gate", "recurrent_gate"):
        gates.append(site.tensor(name, "mixer", r.n_gate_block, block, block))
        gates.append(site.tensor(f"{name}_bias", "mixer", r.n_gate_block, block))
    yield Op(
        name=f"{site.path}.gates", kind="matmul", part="mixer", m=site.rows, n=2 * block, k=block,
        repeat=site.times * r.n_gate_block, times=site.times, tensors=tuple(gates),
        elements=3 * block,
    )  # fmt: skip
    cache = Cache(state=r.d_rnn, copies=site.times)
    yield step(site, r.d_rnn, 0, cache, (site.tensor("decay", "mixer", r.d_rnn),))
    yield site.matmul("out", "mixer", (("out", site.width),), r.d_rnn, bias=True)


def short_conv(c: ShortConv, site: Site) -> Iterator[Op]:
    """LFM2: three projections, a gated short convolution, output."""
    outs = (("b", site.width), ("c", site.width), ("x", site.width))
    yield site.matmul("in", "mixer", outs, site.width, bias=c.bias)
    yield convolution(site, site.width, c.d_conv, bias=c.bias)
    yield site.matmul("out", "mixer", (("out", site.width),), site.width, bias=c.bias)
