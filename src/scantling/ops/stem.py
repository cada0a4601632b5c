"""Convolutions over neighbours: the stem that reads sound, and one beside an encoder's layer."""

from __future__ import annotations

from collections.abc import Iterator

from scantling.arith import Dim, Num
from scantling.ops.op import Op
from scantling.ops.site import Site
from scantling.spec import Audio, TokenConv


def audio(a: Audio, site: Site) -> Iterator[Op]:
    """Two convolutions from mel bands to the stream; the second steps over every other frame.

    The first makes 2 S frames of D numbers from D × bands × width weights, the second S tokens.
    """
    yield _conv("conv1", site, 2 * site.rows, a.n_mel, a.d_conv)
    yield _conv("conv2", site, site.rows, site.width, a.d_conv)


def token_conv(c: TokenConv, site: Site) -> Iterator[Op]:
    """One convolution of all channels, D × D × width weights, and its activation."""
    yield _conv("conv", site, site.rows, site.width, c.d_conv)
    yield site.light("elementwise", "conv_activation", "other", site.width)


def _conv(name: str, site: Site, rows: Num, channels: Dim, d_conv: Dim) -> Op:
    """A convolution as the product it is: each output row reads ``channels × d_conv`` numbers."""
    weights = (
        site.tensor(name, "other", site.width, channels, d_conv),
        site.tensor(f"{name}_bias", "other", site.width),
    )
    return Op(
        name=f"{site.path}.{name}", kind="matmul", part="other", m=rows, n=site.width,
        k=channels * d_conv, repeat=site.times, times=site.times, tensors=weights,
        elements=site.width + channels,
    )  # fmt: skip
