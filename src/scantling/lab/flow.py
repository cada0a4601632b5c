"""What all layers of one forward pass share: positions, rotations, masks, kept keys, the encoder.

A rotation is one complex multiply: a head's numbers 2i and 2i + 1 are one complex number, which
position t turns by t times the frequency of pair i. Frequencies are ``spec.rotation``'s, the ones
of transformers under every scaling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from scantling.spec import Chunk, Full, RelativeBias, Rope, Window
from scantling.spec.positions import Span
from scantling.spec.rotation import frequencies

Watch = Callable[[str, Tensor], None]
"""Called with the name of a stage, as the trace has it, and what comes out of it."""

Kernel = Callable[[Tensor, Tensor, Tensor, Tensor | None, bool, float], Tensor]
"""Attention in one: queries, keys, values, mask or None, whether plain causal, scale."""


class Places:
    """Tables that depend on where the tokens stand, made once for each length.

    Args:
        at: Positions, T of them or B × T.
        length: Tokens of the sequence they were taken from.
        max_context: Tokens the model was made for, which some scalings need.
    """

    def __init__(self, at: Tensor, length: int, max_context: int | None) -> None:
        self.at, self.length, self.max_context = at, length, max_context
        self.made: dict[Hashable, Tensor] = {}

    def once(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """A table made the first time it is asked for; outside of any inference mode."""
        if key not in self.made:
            if torch.compiler.is_compiling():  # what is traced cannot be kept: see Decoder.warm
                return make()
            with torch.inference_mode(mode=False), torch.no_grad():
                self.made[key] = make()
        return self.made[key]

    def turns(self, rope: Rope, head: int) -> Tensor:
        """How far each pair turns at each position: cosine and sine, (…, T, 1, pairs, 2)."""

        def make() -> Tensor:
            found = frequencies(rope, head, self.max_context, self.length)
            inverse = torch.tensor(found.inverse, dtype=torch.float32, device=self.at.device)
            angle = self.at.to(torch.float32)[..., None, None] * inverse
            return torch.stack((angle.cos(), angle.sin()), -1) * found.attention_factor

        # keys of plain values: a compiler cannot trace how a struct is hashed
        return self.once((rope.theta, rope.fraction, rope.scaling, head), make)

    def seen(self, span: Span, *, causal: bool) -> Tensor | None:
        """Which keys each query sees; None where that is all, or all before it."""
        reach = self.length if isinstance(span, Full) else int(
            span.window if isinstance(span, Window) else span.chunk
        )  # fmt: skip
        if isinstance(span, Full) or (causal and reach >= self.length):
            return None
        key = (isinstance(span, Window), reach, causal)
        return self.once(key, lambda: visible(span, self.at, causal=causal))

    def distance(self, keys: Places | None = None) -> Tensor:
        """How far each key is behind each query; of another sequence, where keys are."""
        at = (keys or self).at
        return self.once(("distance", at.shape), lambda: self.at[..., :, None] - at[..., None, :])

    def causal(self) -> Tensor:
        """The plain causal mask, for attention that cannot be told so."""
        return self.once("causal", lambda: visible(Full(), self.at, causal=True))

    def buckets(self, bias: RelativeBias, keys: Places | None = None, *, causal: bool) -> Tensor:
        """T5's bucket of each distance."""
        away = self.distance(keys)
        return self.once(
            ("buckets", bias.n_bucket, causal, away.shape),
            lambda: buckets(-away, int(bias.n_bucket), causal=causal),
        )


class Flow:
    """One forward pass: its places, who watches, and what modules read beside the stream.

    Args:
        places: Where the tokens stand.
        watch: Sees what comes out of each stage, or None.
        source_BSD: The encoder's output, for cross attention.
        kernel: Attention in one; written out where there is none.
    """

    def __init__(
        self, places: Places, watch: Watch | None = None, source_BSD: Tensor | None = None, *,
        kernel: Kernel | None = None,
    ) -> None:  # fmt: skip
        self.places, self.watch, self.source_BSD, self.kernel = places, watch, source_BSD, kernel
        self.source: Places | None = None
        """Where the encoder's tokens stand."""
        self.kept: dict[Hashable, tuple[Tensor, Tensor]] = {}
        self.once: dict[str, Any] = {}
        """What a stack keeps once and every layer reads: a table of relative positions."""
        self.tokens_BT: Tensor | None = None
        self.embedded_BTD: Tensor | None = None
        self.own_BTLp: Tensor | None = None
        """Each layer's own embedding of the tokens."""
        self.handed_BTD: Tensor | None = None
        """What the block before hands to the next one in place of adding it."""
        self.entered_BTD: Tensor | None = None
        """The stream as it entered this layer."""
        self.stream_BTD: Tensor | None = None
        """The stream that a block reads, before any norm."""
        self.layer = 0
        self.adapter: Any = None
        """The low-rank addition that this use of shared weights has."""
        self.late: list[tuple[int, Tensor]] = []
        """What joins the stream behind a later layer, and behind which."""

    def chosen(self, at_BT: Tensor) -> Flow:
        """The same pass for tokens that stand at some of its positions."""
        places = Places(at_BT, self.places.length, self.places.max_context)
        inner = Flow(places, self.watch, self.source_BSD, kernel=self.kernel)
        inner.once, inner.layer, inner.source = self.once, self.layer, self.source
        for name in ("tokens_BT", "embedded_BTD", "own_BTLp", "entered_BTD"):
            whole = getattr(self, name)
            if whole is not None:
                index = at_BT.view(*at_BT.shape, *[1] * (whole.dim() - 2))
                index = index.expand(*at_BT.shape, *whole.shape[2:])
                setattr(inner, name, whole.gather(1, index))
        return inner


def visible(span: Span, at: Tensor, *, causal: bool) -> Tensor:
    """Which keys each query sees, T × T for each row of positions.

    Example:
        >>> visible(Window(2), torch.arange(4), causal=True).int().tolist()
        [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
        >>> visible(Chunk(2), torch.arange(4), causal=True).sum().item()
        6
    """
    behind = at[..., :, None] - at[..., None, :]
    seen = behind >= 0 if causal else torch.ones_like(behind, dtype=torch.bool)
    if isinstance(span, Window):
        reach = int(span.window) if causal else int(span.window) // 2 + 1
        seen = seen & (behind.abs() < reach)
    elif isinstance(span, Chunk):
        own = at // int(span.chunk)
        seen = seen & (own[..., :, None] == own[..., None, :])
    return seen if at.dim() == 1 else seen[:, None]


def turned(x_BTnh: Tensor, turns_T1p2: Tensor) -> Tensor:
    """Rotate the first pairs of each head by position.

    Example:
        >>> places = Places(torch.arange(2), 2, None)
        >>> x = torch.ones(1, 2, 1, 4)
        >>> y = turned(x, places.turns(Rope(), 4))
        >>> bool((y[:, 0] == 1).all()), bool(torch.isclose(y.norm(), x.norm()))
        (True, True)
    """
    width = 2 * turns_T1p2.shape[-2]
    whole = width == x_BTnh.shape[-1]
    x = x_BTnh if whole else x_BTnh[..., :width]
    x = x.float()
    if any(stride % 2 for stride in x.stride()[:-1]):  # beside an odd number of gates
        x = x.contiguous()
    pairs = x.view(*x.shape[:-1], -1, 2)
    if torch.compiler.is_compiling():  # inductor makes no code for complex numbers
        cos, sin = turns_T1p2.unbind(-1)
        a, b = pairs.unbind(-1)
        turned_pairs = torch.stack((a * cos - b * sin, b * cos + a * sin), -1)
    else:
        turns = torch.view_as_complex(turns_T1p2)
        turned_pairs = torch.view_as_real(torch.view_as_complex(pairs) * turns)
    out = turned_pairs.flatten(-2).to(x_BTnh.dtype)
    return out if whole else torch.cat((out, x_BTnh[..., width:]), -1)


def slopes(n_head: int) -> Tensor:
    """ALiBi's slope of each head (Press et al. 2022): 2^(−8 i / H) where H is a power of two.

    Else those of the power n below H, then every other one of 2 n.

    Example:
        >>> slopes(4).tolist(), slopes(3).tolist()
        ([0.25, 0.0625, 0.015625, 0.00390625], [0.0625, 0.00390625, 0.25])
    """
    n = 2 ** math.floor(math.log2(n_head))
    first = 2.0 ** (-8.0 * torch.arange(1, n + 1) / n)
    more = 2.0 ** (-8.0 * torch.arange(1, 2 * n + 1, 2) / (2 * n))
    return torch.cat((first, more))[:n_head]


def buckets(ahead: Tensor, n_bucket: int, *, causal: bool) -> Tensor:
    """T5's bucket of a distance: half of them exact, half logarithmic up to 128 (Raffel 2020).

    Example:
        >>> buckets(torch.tensor([0, -1, -7, -200]), 16, causal=True).tolist()
        [0, 1, 7, 15]
    """
    n = n_bucket
    first = torch.zeros_like(ahead)
    if causal:
        away = (-ahead).clamp(min=0)
    else:
        n //= 2
        first = (ahead > 0).long() * n
        away = ahead.abs()
    exact = max(n // 2, 1)
    grown = torch.log(away.clamp(min=1).float() / exact) / math.log(128 / exact)
    far = (exact + (grown * (n - exact)).long()).clamp(max=n - 1)
    return first + torch.where(away < exact, away, far)
