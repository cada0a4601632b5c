"""Operators of feed-forwards: dense, and routed with or without shared experts."""

from __future__ import annotations

from collections.abc import Iterator

from scantling.arith import Dim
from scantling.ops.op import Op, Part, Tensor
from scantling.ops.site import Site
from scantling.spec import Dense, Experts


def dense(f: Dense, site: Site) -> Iterator[Op]:
    """Up (and gate), activation, down."""
    yield from _feedforward(f.d_ff, f.gated, f.in_bias, f.out_bias, "ffn", "", site)


def _feedforward(
    width: Dim, gated: bool, in_bias: bool, out_bias: bool, part: Part, prefix: str, site: Site
) -> Iterator[Op]:
    up: tuple[tuple[str, Dim], ...] = ((f"{prefix}up", width),)
    if gated:
        up = ((f"{prefix}gate", width), *up)
    yield site.matmul(f"{prefix}up", part, up, site.width, bias=in_bias)
    yield site.light("elementwise", f"{prefix}activation", part, width)
    down = ((f"{prefix}down", site.width),)
    yield site.matmul(f"{prefix}down", part, down, width, bias=out_bias)


def experts(f: Experts, site: Site) -> Iterator[Op]:
    """Router, the routed experts as one grouped product each way, and the shared expert.

    Each token passes ``top_k`` experts, so a product over m tokens runs ``top_k`` times; the
    tensors say among how many experts those are spread.
    """
    router = site.matmul("router", "router", (("router", f.n_expert),), site.width,
                         bias=f.router.bias)  # fmt: skip
    yield router
    if f.router.correction:
        bias = site.tensor("router_correction", "router", f.n_expert, buffer=True)
        yield site.light("elementwise", "router_correction", "router", f.n_expert, (bias,))
    inner = site.width if f.d_latent is None else f.d_latent
    if f.d_latent is not None:
        yield site.matmul("latent_down", "experts", (("latent_down", inner),), site.width)
    up: tuple[tuple[str, Dim], ...] = (("up", f.d_expert),)
    if f.gated:
        up = (("gate", f.d_expert), *up)
    yield _grouped("experts_up", up, inner, f, site)
    yield site.light("elementwise", "experts_activation", "experts", f.d_expert * f.top_k)
    yield _grouped("experts_down", (("down", inner),), f.d_expert, f, site)
    if f.d_latent is not None:
        yield site.matmul("latent_up", "experts", (("latent_up", site.width),), inner)
    if f.shared is not None:
        s = f.shared
        part: Part = "shared_experts"
        yield from _feedforward(s.d_shared, f.gated, s.bias, s.bias, part, "shared_", site)
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
    )  # fmt: skip
