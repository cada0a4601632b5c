"""Operators beside attention and feed-forward: LAuReL, per-layer embeddings, AltUp."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from scantling.arith import Dim
from scantling.ops.op import Op
from scantling.ops.site import Site
from scantling.spec import AltUp, Laurel, PerLayerInput, PerLayerTables


def laurel(a: Laurel, site: Site) -> Iterator[Op]:
    """Down to the rank and up again."""
    yield site.matmul("left", "other", (("left", a.rank),), site.width)
    yield site.matmul("right", "other", (("right", site.width),), a.rank)


def per_layer_input(p: PerLayerInput, site: Site) -> Iterator[Op]:
    """Down, activation and the product with this layer's embedding, up."""
    yield site.matmul("gate", "other", (("gate", p.d_per_layer),), site.width)
    yield site.light("elementwise", "gated", "other", p.d_per_layer)
    yield site.matmul("projection", "other", (("projection", site.width),), p.d_per_layer)


def per_layer_tables(p: PerLayerTables, n_layer: Dim, site: Site) -> Iterator[Op]:
    """The rows of all layers in one lookup, and the token's embedding projected to as many."""
    width = n_layer * p.d_per_layer
    table = site.tensor("per_layer_embedding", "embedding", p.rows, width)
    yield site.light("lookup", "per_layer_embedding", "embedding", width, (table,))
    yield site.matmul("per_layer_project", "other", (("per_layer_project", width),), site.width)
    yield site.norm("per_layer_norm", p.norm, p.d_per_layer, heads=n_layer)
    yield site.light("elementwise", "per_layer_sum", "embedding", width)


def streams(a: AltUp, name: str, site: Site) -> Iterator[Op]:
    """The n - 1 matrices that make the further streams of the first one, or bring them back."""
    more = a.n_stream - 1
    place = replace(site, times=more, copies=more)
    yield place.matmul(name, "other", ((name, site.width),), site.width)


def predict(a: AltUp, site: Site) -> Iterator[Op]:
    """Before a layer: n x n coefficients a token from its router, times the n streams.

    The last product is (D x n) by (n x n) for each token.
    """
    n: Any = a.n_stream
    yield from _route(a, site)
    yield site.matmul("coefficients", "other", (("coefficients", n * n),), n)
    mix = site.matmul("mix", "other", (("mix", n),), n, rows=site.rows * site.width)
    yield replace(mix, tensors=())


def correct(a: AltUp, site: Site) -> Iterator[Op]:
    """After a layer: n factors a token on what the layer changed; then the scale of the output.

    The router is that of the prediction. The scale is an output's and counts as feed-forward.
    """
    for op in _route(a, site):
        yield replace(op, tensors=())
    yield site.matmul("factors", "other", (("factors", a.n_stream),), a.n_stream)
    yield site.light("elementwise", "mix", "other", a.n_stream * site.width)
    scale = site.tensor("output_scale", "ffn", site.width)
    yield site.light("elementwise", "output_scale", "ffn", site.width, (scale,))


def _route(a: AltUp, site: Site) -> Iterator[Op]:
    """The norm and the product of the router of the streams."""
    yield site.norm("router_norm", a.norm, site.width)
    yield site.matmul("stream_router", "router", (("stream_router", a.n_stream),), site.width)
