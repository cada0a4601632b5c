"""Operators of mixers with a fixed state: linear attention, delta rule, state spaces, RWKV."""

from __future__ import annotations

from collections.abc import Iterator

from scantling.arith import Dim
from scantling.ops.op import Cache, Op, Tensor
from scantling.ops.site import Site
from scantling.spec import GatedDelta, LinearAttention, Mamba1, Mamba2, RgLru, Rwkv, ShortConv


def _conv(site: Site, channels: Dim, d_conv: Dim, bias: bool) -> Op:
    """A depthwise causal convolution: d_conv multiply-adds a channel; keeps d_conv − 1 inputs."""
    weights = [site.tensor("conv", "mixer", channels, 1, d_conv)]
    if bias:
        weights.append(site.tensor("conv_bias", "mixer", channels))
    return Op(
        name=f"{site.path}.conv", kind="scan", part="mixer", m=site.rows, n=channels, k=d_conv,
        repeat=site.times, times=site.times, tensors=tuple(weights), elements=2 * channels,
        cache=Cache(state=channels * (d_conv - 1), copies=site.times),
    )  # fmt: skip


def linear(a: LinearAttention, site: Site) -> Iterator[Op]:
    """Lightning attention: fused q k v, a recurrence on d_head × d_head, gate, norm, output."""
    width = a.n_head * a.d_head
    outs = [("q", width), ("k", width), ("v", width)]
    if a.gated:
        outs.append(("gate", width))
    yield site.matmul("qkv", "mixer", tuple(outs), site.width)
    cache = Cache(state=width * a.d_head, copies=site.times)
    yield site.scan("core", width, a.d_head, cache)
    if a.norm is not None:
        yield site.norm("norm", a.norm, width, "mixer")
    yield site.matmul("o", "mixer", (("o", site.width),), width)


def gated_delta(a: GatedDelta, site: Site) -> Iterator[Op]:
    """Gated delta rule: q, k, v, z; write strength and decay per value head; a convolution."""
    key, value = a.n_key_head * a.d_key, a.n_value_head * a.d_state_value
    yield site.matmul("qkvz", "mixer", (("q", key), ("k", key), ("v", value), ("z", value)),
                      site.width)  # fmt: skip
    yield site.matmul("ba", "mixer", (("b", a.n_value_head), ("a", a.n_value_head)), site.width)
    yield _conv(site, 2 * key + value, a.d_conv, bias=False)
    heads = (
        site.tensor("dt_bias", "mixer", a.n_value_head),
        site.tensor("decay", "mixer", a.n_value_head),
    )
    cache = Cache(state=value * a.d_key, copies=site.times)
    yield site.scan("core", value, a.d_key, cache, heads)
    yield site.norm("norm", a.norm, a.d_state_value, "mixer", heads=a.n_value_head)
    yield site.matmul("o", "mixer", (("o", site.width),), value)


def mamba1(s: Mamba1, site: Site) -> Iterator[Op]:
    """Mamba: in, convolution, data-dependent dt, B and C, selective scan, out."""
    both = (("x", s.d_inner), ("z", s.d_inner))
    yield site.matmul("in", "mixer", both, site.width, bias=s.bias)
    yield _conv(site, s.d_inner, s.d_conv, bias=s.conv_bias)
    chosen = (("dt", s.dt_rank), ("b", s.d_state), ("c", s.d_state))
    yield site.matmul("select", "mixer", chosen, s.d_inner)
    if s.inner_norms:
        scales: tuple[Tensor, ...] = tuple(
            site.tensor(f"{name}_norm", "mixer", width) for name, width in chosen
        )
        yield site.light("norm", "select_norm", "mixer", s.dt_rank + 2 * s.d_state, scales)
    yield site.matmul("dt_up", "mixer", (("dt_up", s.d_inner),), s.dt_rank, bias=True)
    weights = (
        site.tensor("a_log", "mixer", s.d_inner, s.d_state),
        site.tensor("skip", "mixer", s.d_inner),
    )
    cache = Cache(state=s.d_inner * s.d_state, copies=site.times)
    yield site.scan("core", s.d_inner, s.d_state, cache, weights)
    yield site.matmul("out", "mixer", (("out", site.width),), s.d_inner, bias=s.bias)


def mamba2(s: Mamba2, site: Site) -> Iterator[Op]:
    """Mamba-2: one projection for z, x, B, C and dt; scalar decay per head; gated norm."""
    group = s.n_group * s.d_state
    outs = (
        ("z", s.d_inner), ("x", s.d_inner), ("b", group), ("c", group), ("dt_in", s.n_ssm_head),
    )  # fmt: skip
    yield site.matmul("in", "mixer", outs, site.width, bias=s.bias)
    yield _conv(site, s.d_inner + 2 * group, s.d_conv, bias=s.conv_bias)
    weights = tuple(
        site.tensor(name, "mixer", s.n_ssm_head) for name in ("dt_bias", "a_log", "skip")
    )
    cache = Cache(state=s.d_inner * s.d_state, copies=site.times)
    yield site.scan("core", s.d_inner, s.d_state, cache, weights)
    if s.norm is not None:
        yield site.norm("norm", s.norm, s.d_inner, "mixer")
    yield site.matmul("out", "mixer", (("out", site.width),), s.d_inner, bias=s.bias)


def rwkv(r: Rwkv, site: Site) -> Iterator[Op]:
    """RWKV-4 time mixing: token-shift mixes, k v r, the recurrence, output."""
    mixes = tuple(site.tensor(f"mix_{x}", "mixer", site.width) for x in "kvr")
    yield site.light("elementwise", "shift", "mixer", site.width, mixes)
    outs = (("k", r.d_attention), ("v", r.d_attention), ("r", r.d_attention))
    yield site.matmul("kvr", "mixer", outs, site.width)
    weights = (
        site.tensor("decay", "mixer", r.d_attention),
        site.tensor("first", "mixer", r.d_attention),
    )
    cache = Cache(state=3 * r.d_attention + 2 * site.width, copies=site.times)
    yield site.scan("core", r.d_attention, 2, cache, weights)
    yield site.matmul("o", "mixer", (("o", site.width),), r.d_attention)


def rg_lru(r: RgLru, site: Site) -> Iterator[Op]:
    """Griffin: a gate branch and a recurrent branch with block-diagonal gates."""
    both = (("x", r.d_rnn), ("y", r.d_rnn))
    yield site.matmul("in", "mixer", both, site.width, bias=True)
    yield _conv(site, r.d_rnn, r.d_conv, bias=True)
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
    yield site.scan("core", r.d_rnn, 1, cache, (site.tensor("decay", "mixer", r.d_rnn),))
    yield site.matmul("out", "mixer", (("out", site.width),), r.d_rnn, bias=True)


def short_conv(c: ShortConv, site: Site) -> Iterator[Op]:
    """LFM2: three projections, a gated short convolution, output."""
    outs = (("b", site.width), ("c", site.width), ("x", site.width))
    yield site.matmul("in", "mixer", outs, site.width, bias=c.bias)
    yield _conv(site, site.width, c.d_conv, bias=c.bias)
    yield site.matmul("out", "mixer", (("out", site.width),), site.width, bias=c.bias)
