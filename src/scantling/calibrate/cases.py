"""What is measured: shapes of kernels and of whole small models, and which of them are held out."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct

from scantling.catalog import load
from scantling.spec import Spec

Kind = Literal[
    "gemm", "attention", "unfused", "trained", "copy", "norm", "activation", "add", "loss",
    "optimizer", "launch", "forward", "step",
]  # fmt: skip

WIDTHS = (64, 128, 256, 384, 500, 511, 512, 640, 768, 1000, 1023, 1024, 1408, 1536, 2048, 2304,
          3072, 4090, 4096, 8192, 11008, 16384, 28672, 50257)  # fmt: skip
"""Widths and tokens of products; 500, 511, 1000, 1023, 4090 and 50257 are no multiples of 16."""
ROWS = (1, 8, 32, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
HEAD_WIDTHS = (32, 64, 96, 128, 256)
FORMS = ("forward", "grad_input", "grad_weight")
"""The three products of a linear layer: x Wᵀ, y W and yᵀ x; they differ in which side lies
transposed in memory."""
ACCELERATOR = 5e12
"""FLOPs per second that no CPU reaches in a product."""
LIGHT: tuple[tuple[Kind, str], ...] = (
    ("norm", "rms"),
    ("norm", "layer"),
    ("activation", "gated"),
    ("activation", "plain"),
    ("add", ""),
)
"""Light work by kind and form."""
KINDS: tuple[Kind, ...] = ("forward", "step")
SMALL: tuple[tuple[tuple[int, ...], str], ...] = (
    ((2, 320, 5, 5, 64, 1280, 6000, 2, 192), "plain"),
    ((3, 384, 6, 2, 64, 1024, 24000, 1, 320), "gated"),
    ((8, 192, 6, 3, 32, 512, 2048, 4, 160), "gated"),
    ((2, 512, 4, 4, 128, 2048, 12000, 1, 640), "plain"),
    ((4, 256, 2, 1, 128, 704, 48000, 1, 256), "gated"),
    ((1, 640, 10, 10, 64, 2560, 40000, 1, 384), "plain"),
)
"""Whole models for a CPU: a step takes below a second on one core."""
LARGE: tuple[tuple[tuple[int, ...], str], ...] = (
    ((4, 2048, 16, 16, 128, 8192, 32000, 4, 1024), "plain"),
    ((4, 2048, 16, 4, 128, 5632, 96000, 2, 2048), "gated"),
    ((16, 1024, 16, 8, 64, 2816, 16000, 8, 1024), "gated"),
    ((4, 3072, 24, 24, 128, 12288, 50304, 2, 4096), "plain"),
    ((6, 1536, 12, 4, 128, 4096, 128000, 4, 1024), "gated"),
)
"""The same for an accelerator."""
LONGEST_S, SHORTEST_S = 0.08, 2e-5
"""A product takes between these at the rate of a first one: longer ones eat the two minutes,
shorter ones are all launch."""


class Case(Struct, frozen=True, kw_only=True):
    """One thing to measure.

    Args:
        kind: What; ``unfused`` is attention as products, mask and softmax, ``trained`` either
            one as a pass of training, measured under its own name.
        shape: ``gemm`` (m, n, k); attention of any kind (batch, query heads, key-value heads,
            tokens, head width); ``norm``, ``activation``, ``add`` and ``loss`` (rows, width);
            ``copy`` (elements,); ``optimizer`` (parameters, tensors); ``forward`` and ``step``
            (layers, width, query heads, key-value heads, head width, FFN width, vocabulary, batch,
            tokens).
        dtype: What numbers.
        form: Of a product, one of ``FORMS``; of a norm, ``rms`` or ``layer``; of an activation and
            a model, ``gated`` or ``plain``.
        backward: Whether the backward pass alone is timed.
        held: Whether it is kept out of the fit, to tell the error on shapes not seen.
    """

    kind: Kind
    shape: tuple[int, ...] = ()
    dtype: str = "fp32"
    form: str = ""
    backward: bool = False
    held: bool = False

    @property
    def flops(self) -> float:
        """Operations of a product; 0 for the rest."""
        m, n, k = self.shape if self.kind == "gemm" else (0, 0, 0)
        return 2.0 * m * n * k


def spec_of(case: Case) -> Spec:
    """The spec of a whole-model case.

    Example:
        >>> spec_of(Case(kind="step", shape=(2, 64, 4, 2, 16, 96, 512, 1, 32), form="gated")).d_ff
        96
    """
    layers, width, heads, kv_heads, d_head, d_ff, vocab, _, tokens = case.shape
    return load(config_of(layers, width, heads, kv_heads, d_head, d_ff, vocab, tokens,
                          gated=case.form == "gated")).spec  # fmt: skip


def config_of(
    layers: int, width: int, heads: int, kv_heads: int, d_head: int, d_ff: int, vocab: int,
    tokens: int, *, gated: bool,
) -> dict[str, Any]:  # fmt: skip
    """A configuration of the plain kind that reads as such a model."""
    if gated:
        return {
            "model_type": "llama", "num_hidden_layers": layers, "hidden_size": width,
            "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": d_head,
            "intermediate_size": d_ff, "vocab_size": vocab, "tie_word_embeddings": False,
            "hidden_act": "silu", "max_position_embeddings": tokens,
        }  # fmt: skip
    return {
        "model_type": "gpt2", "n_layer": layers, "n_embd": width, "n_head": heads,
        "n_inner": d_ff, "vocab_size": vocab, "n_positions": tokens,
        "activation_function": "gelu", "tie_word_embeddings": True,
    }  # fmt: skip


def kernels(rate: float, memory_bytes: float, dtypes: Iterable[str], *, quick: bool) -> list[Case]:
    """The kernels to measure on a device.

    Args:
        rate: Operations per second that a first product reached: it sets how large they get.
        memory_bytes: Of the device: none of the shapes takes more than a hundredth of it.
        dtypes: In which products and attention are measured, the first for all the rest.
        quick: A third of them.
    """
    dtypes = tuple(dtypes)
    draw = random.Random(0)  # noqa: S311 - the same shapes on every machine
    found: list[Case] = [Case(kind="launch", dtype=dtypes[0])]
    for dtype in dtypes:
        n = 12 if quick else 42 if dtype == dtypes[0] else 18
        found += _products(rate, memory_bytes, dtype, n, draw)
        found += _narrow(rate, dtype, n // 6)
        found += _attention(rate, dtype, 6 if quick else 16 if dtype == dtypes[0] else 8, draw)
    found += aligned(rate, dtypes[0]).values()
    found += _light(memory_bytes, dtypes[0], quick=quick)
    return found


def _products(rate: float, memory: float, dtype: str, n: int, draw: random.Random) -> list[Case]:
    """Products drawn from the grid, each third one held out."""
    grid = [
        (m, b, k)
        for m in (*ROWS[3:], *WIDTHS)
        for b in WIDTHS
        for k in WIDTHS
        if SHORTEST_S * rate < 2.0 * m * b * k < LONGEST_S * rate
        and 4 * (m * b + b * k + m * k) < memory / 100
    ]
    shapes = draw.sample(sorted(set(grid)), min(n, len(set(grid))))
    return [
        Case(kind="gemm", shape=shape, dtype=dtype, form=FORMS[i % 3], held=i % 3 == i // 3 % 3)
        for i, shape in enumerate(shapes)
    ]


def _narrow(rate: float, dtype: str, n: int) -> list[Case]:
    """Products of few rows, as in decoding: their time is that of reading the weights."""
    found = []
    for i, (m, width) in enumerate(((1, 4096), (8, 2048), (32, 3072), (1, 2048), (8, 4096),
                                    (4, 3072), (16, 2048))[: max(n, 2)]):  # fmt: skip
        if 2.0 * m * width * width < LONGEST_S * rate:
            found.append(Case(kind="gemm", shape=(m, width, width), dtype=dtype, form=FORMS[0],
                              held=i % 3 == 2))  # fmt: skip
    return found


def _attention(rate: float, dtype: str, n: int, draw: random.Random) -> list[Case]:
    """Causal attention of some lengths and head widths, forward and backward."""
    grid = [
        (batch, heads, heads // group, length, d_head)
        for batch in (1, 2, 4, 8)
        for heads in (2, 4, 8, 12)
        for group in (1, 2)
        for length in LENGTHS
        for d_head in HEAD_WIDTHS
        if SHORTEST_S * rate < 2.0 * batch * heads * length**2 * d_head < LONGEST_S * rate / 4
    ]
    # Each head width in turn, so that a short list still has all of them.
    shapes: list[tuple[int, ...]] = []
    for i in range(n):
        d_head = HEAD_WIDTHS[i % len(HEAD_WIDTHS)]
        shapes.append(draw.choice([s for s in grid if s[-1] == d_head and s not in shapes]))
    # Unfused attention is measured on every other shape: products and softmax vary less.
    kinds: tuple[tuple[Kind, int], ...] = (("attention", 1), ("unfused", 2))
    return [
        Case(kind=kind, shape=shape, dtype=dtype, backward=backward, held=i % 3 == 2)
        for kind, each in kinds
        for i, shape in enumerate(shapes[::each])
        for backward in (False, True)
    ]


def _light(memory: float, dtype: str, *, quick: bool) -> list[Case]:
    """Norms, activations, additions, losses, copies and optimizer steps."""
    sides = ((256, 256), (1024, 512), (2048, 1024), (4096, 1536), (4096, 3072), (8192, 2560))
    found = []
    for i, side in enumerate(sides[::2] if quick else sides):
        if 12 * side[0] * side[1] > memory / 20:
            continue
        found.append(Case(kind="copy", shape=(side[0] * side[1],), dtype=dtype))
        found += [
            Case(kind=kind, shape=side, dtype=dtype, form=form, backward=backward,
                 held=(i + j) % 3 == 2)
            for j, (kind, form) in enumerate(LIGHT)
            for backward in (False, True)
            if kind != "add" or not backward
        ]  # fmt: skip
    losses = ((256, 1024), (512, 8192), (512, 32000), (1024, 16384), (256, 50257))
    found += [
        Case(kind="loss", shape=shape, dtype=dtype, held=i in {1, 3})
        for i, shape in enumerate(losses[::2] if quick else losses)
    ]
    found += [
        Case(kind="optimizer", shape=shape, dtype=dtype, held=i == 1)
        for i, shape in enumerate(
            ((2_000_000, 20), (8_000_000, 40), (24_000_000, 60), (12_000_000, 1))
        )
    ]
    return found


def aligned(rate: float, dtype: str) -> dict[int, Case]:
    """Products of one width, by the largest power of two that divides it.

    The width that 64 divides is the reference. The rest are its neighbours: 1023, 1022, 1020,
    1016 and 1008 beside 1024, no multiples of 2, 4, 8, 16 and 64.
    """
    base = 4096 if rate > ACCELERATOR else 1024
    return {
        off: Case(kind="gemm", shape=(base // 2, base - off % 64, base - off % 64), dtype=dtype,
                  form=FORMS[0], held=off in {8, 16})
        for off in (64, 1, 2, 4, 8, 16)
    }  # fmt: skip


def models(rate: float, dtype: str, *, quick: bool) -> list[Case]:
    """Whole small models, that tell what a pass takes over its kernels.

    They differ in which part of a step weighs most: products, attention, light work, the
    vocabulary, the optimizer.

    Args:
        rate: As in ``kernels``: an accelerator gets larger ones.
        dtype: What numbers.
        quick: Only two.
    """
    shapes = LARGE if rate > ACCELERATOR else SMALL
    return [
        Case(kind=kind, shape=shape, form=form, dtype=dtype, held=kind == "forward" and i % 2 == 1)
        for i, (shape, form) in enumerate(shapes[1:3] if quick else shapes)
        for kind in KINDS
    ]
