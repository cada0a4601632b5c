"""Operators of feed-forwards: dense, and routed with or without shared experts."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from scantling.arith import Dim
from scantling.ops.attention import adapters
from scantling.ops.op import Cache, Op, Part, Tensor
from scantling.ops.site import Site
from scantling.spec import ChannelMix, Dense, Experts, Projection


def dense(f: Dense, site: Site) -> Iterator[Op]:
    """Up (and gate), activation, down."""
    part: Part = "shared_experts" if f.shared else "ffn"
    if f.adapter_rank is not None:
        up = 2 * f.d_ff if f.gated else f.d_ff
        yield from adapters(part, (("up", up),), site.width, f.adapter_rank, site)
    for op in _feedforward(
        f.d_ff, f.gated, f.in_bias, f.out_bias, part, "", site, f.activation, f.ff_rank
    ):
        if f.activation == "xielu" and op.name.endswith(".activation"):
            alphas = site.tensor("alphas", "ffn", 2)  # one for each side of 0
            fixed = site.tensor("constants", "ffn", 2, buffer=True)
            op = replace(op, tensors=(alphas, fixed))  # noqa: PLW2901 - the same one, with weights
        if f.inner_norm is not None and op.name.endswith((".down", ".down_a")):
            yield site.norm("inner_norm", f.inner_norm, f.d_ff)
        yield op


def _feedforward(
    width: Dim, gated: bool, in_bias: bool, out_bias: bool, part: Part, prefix: str, site: Site,
    activation: str, rank: Dim | None = None,
) -> Iterator[Op]:  # fmt: skip
    up: tuple[tuple[str, Dim], ...] = ((f"{prefix}up", width),)
    if gated:
        up = ((f"{prefix}gate", width), *up)
    yield from _product(f"{prefix}up", part, up, site.width, in_bias, rank, site)
    yield site.light("elementwise", f"{prefix}activation", part, width, form=activation)
    down = ((f"{prefix}down", site.width),)
    yield from _product(f"{prefix}down", part, down, width, out_bias, rank, site)


def _product(
    name: str, part: Part, outs: tuple[tuple[str, Dim], ...], k: Dim, bias: bool,
    rank: Dim | None, site: Site,
) -> Iterator[Op]:  # fmt: skip
    """One product with matrices side by side, or each as b (n × r) times a (r × k)."""
    if rank is None:
        yield site.matmul(name, part, outs, k, bias=bias)
        return
    yield site.matmul(f"{name}_a", part, tuple((f"{out}_a", rank) for out, _ in outs), k)
    for out, n in outs:
        yield site.matmul(f"{out}_b", part, ((f"{out}_b", n),), rank, bias=bias)


def channel_mix(f: ChannelMix, site: Site) -> Iterator[Op]:
    """RWKV's feed-forward: mixes with the token before, key and value, a receptance beside them."""
    mixes = tuple(site.tensor(f"mix_{x}", "ffn", 1, 1, site.width) for x in "kr")
    shift = site.light("elementwise", "shift", "ffn", site.width, mixes)
    yield replace(shift, cache=Cache(state=site.width, copies=site.times))
    yield site.matmul("key", "ffn", (("key", f.d_ff),), site.width)
    yield site.light("elementwise", "activation", "ffn", f.d_ff)
    yield site.matmul("receptance", "ffn", (("receptance", site.width),), site.width)
    yield site.matmul("value", "ffn", (("value", site.width),), f.d_ff)


def projection(_: Projection, site: Site) -> Iterator[Op]:
    """One matrix on the stream."""
    yield site.matmul("projection", "other", (("projection", site.width),), site.width)


def experts(f: Experts, site: Site) -> Iterator[Op]:
    """Router, the routed experts as one grouped product each way, and the shared expert.

    Each token passes ``top_k`` experts, so a product over m tokens runs ``top_k`` times; the
    tensors say among how many experts those are spread.
    """
    if f.router.norm is not None:
        yield site.norm("router_norm", f.router.norm, site.width, "router")
    known = f.n_expert if f.n_zero is None else f.n_expert + f.n_zero
    router = site.matmul("router", "router", (("router", known),), site.width,
                         bias=f.router.bias)  # fmt: skip
    yield replace(router, form=f.router.scoring)
    if f.router.hashed:
        table = site.tensor("router_table", "router", site.vocab, f.top_k, buffer=True)
        yield site.light("lookup", "router_table", "router", f.top_k, (table,))
    if f.router.correction is not None:
        buffer = f.router.correction == "buffer"
        part: Part = "router" if buffer else "ffn"
        bias = site.tensor("router_correction", part, known, buffer=buffer)
        yield site.light("elementwise", "router_correction", part, known, (bias,))
    if f.router.expert_scale:
        scale = site.tensor("router_expert_scale", "router", f.n_expert)
        yield site.light("elementwise", "router_expert_scale", "router", f.top_k, (scale,))
    inner = site.width if f.d_latent is None else f.d_latent
    if f.d_latent is not None:
        yield site.matmul("latent_down", "ffn", (("latent_down", inner),), site.width,
                          bias=f.latent_bias)  # fmt: skip
    up: tuple[tuple[str, Dim], ...] = (("up", f.d_expert),)
    if f.gated:
        up = (("gate", f.d_expert), *up)
    yield _grouped("experts_up", up, inner, f, site)
    wide = f.d_expert * f.top_k
    yield site.light("elementwise", "experts_activation", "experts", wide, form=f.activation)
    yield _grouped("experts_down", (("down", inner),), f.d_expert, f, site)
    if f.d_latent is not None:
        yield site.matmul("latent_up", "ffn", (("latent_up", site.width),), inner,
                          bias=f.latent_bias)  # fmt: skip
    if f.shared is not None:
        s = f.shared
        part = "shared_experts"
        yield from _feedforward(
            s.d_shared, f.gated, s.bias, s.bias, part, "shared_", site, f.activation
        )
        if s.gate:
            yield site.matmul(
                "shared_expert_gate", "router", (("shared_expert_gate", 1),), site.width
            )


def _grouped(name: str, outs: tuple[tuple[str, Dim], ...], k: Dim, f: Experts, site: Site) -> Op:
    """A product with the matrices of all experts, ``top_k`` of them for each token."""
    tensors: list[Tensor] = []
    n: Dim = 0
    for out, width in outs:
        n = width + n
        shapes: tuple[tuple[Dim, ...], ...] = ((width, k), (width,)) if f.bias else ((width, k),)
        for shape in shapes:
            suffix = "" if len(shape) == 2 else "_bias"
            tensors.append(
                site.tensor(f"experts_{out}{suffix}", "experts", *shape,
                            experts=f.n_expert, top_k=f.top_k)
            )  # fmt: skip
    return Op(
        name=f"{site.path}.{name}", kind="matmul", part="experts", m=site.rows, n=n, k=k,
        repeat=site.times * f.top_k, times=site.times, tensors=tuple(tensors), elements=n + k,
        experts=f.n_expert, top_k=f.top_k,
    )  # fmt: skip
