"""How a model is used: phase, batch, context, dtypes. Keeps ``Spec`` pure."""

from __future__ import annotations

import functools
import re
from typing import Literal

from msgspec import Struct

from scantling.errors import UnknownNameError

Phase = Literal["train", "prefill", "decode"]

BITS = {
    "fp32": 32, "tf32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "fp4": 4, "int4": 4,
}  # fmt: skip
"""Bits of one element by dtype."""

SPELLINGS = {
    "float32": "fp32", "float": "fp32", "tfloat32": "tf32", "float16": "fp16", "half": "fp16",
    "f32": "fp32", "f16": "fp16",
    "bfloat16": "bf16", "float8": "fp8", "fp8e4m3": "fp8", "fp8e5m2": "fp8", "e4m3": "fp8",
    "float8e4m3fn": "fp8", "float8e5m2": "fp8", "fp8block": "fp8", "mxfp8": "fp8",
    "nvfp4": "fp4", "mxfp4": "fp4", "float4": "fp4",
}  # fmt: skip
"""Other spellings of a dtype, without punctuation."""

BLOCKS = {
    "q8_0": (32, 34), "q5_1": (32, 24), "q5_0": (32, 22), "q4_1": (32, 20), "q4_0": (32, 18),
    "iq4_nl": (32, 18),
}  # fmt: skip
"""Elements and bytes of a block, its 16-bit scale and minimum included: the types llama.cpp keeps
a cache in."""

SCALED = re.compile(r"(int8|int4|fp8|fp4)g([1-9]\d{0,5})")
SCALE_BITS = 16
STATE_BITS = 16
"""The fewest bits of an element of a recurrent state."""


@functools.cache
def plain_dtype(name: str) -> str:
    """The short name of a dtype from any common spelling; an unknown one stays as it is.

    Example:
        >>> plain_dtype("torch.bfloat16"), plain_dtype("FP8_E4M3"), plain_dtype("int8")
        ('bf16', 'fp8', 'int8')
    """
    plain = "".join(c for c in name.lower().removeprefix("torch.") if c.isalnum())
    return SPELLINGS.get(plain, plain)


def dtype_name(name: str) -> str:
    """The short name of a dtype.

    Raises:
        UnknownNameError: If it is none that a size is known of.

    Example:
        >>> dtype_name("torch.bfloat16")
        'bf16'
    """
    plain = plain_dtype(name)
    if plain not in BITS:
        raise UnknownNameError("dtype", name, BITS)
    return plain


@functools.cache
def dtype_bytes(name: str) -> float:
    """Bytes of one element.

    Example:
        >>> dtype_bytes("bf16"), dtype_bytes("int4")
        (2.0, 0.5)
    """
    return BITS[dtype_name(name)] / 8


@functools.cache
def kv_dtype_bytes(name: str) -> float:
    """Bytes of one element of a cache, its share of the scales included.

    A plain dtype has no scales (or one a tensor, which is nothing); ``q8_0`` and its like are
    llama.cpp's blocks of 32; ``int4-g64`` is 4 bits and a 16-bit scale for each 64 elements.

    Raises:
        UnknownNameError: If it is none of these.

    Example:
        >>> [kv_dtype_bytes(name) for name in ("fp8", "q8_0", "q4_0", "int4-g64")]
        [1.0, 1.0625, 0.5625, 0.53125]
    """
    name = kv_dtype_name(name)
    if name in BLOCKS:
        elements, size = BLOCKS[name]
        return size / elements
    scaled = SCALED.fullmatch(plain_dtype(name))
    if scaled:
        return (BITS[scaled[1]] + SCALE_BITS / int(scaled[2])) / 8
    return dtype_bytes(name)


def kv_dtype_name(name: str) -> str:
    """The short name of a dtype of a cache.

    Raises:
        UnknownNameError: If it is none that a size is known of.

    Example:
        >>> kv_dtype_name("Q8_0"), kv_dtype_name("torch.float16"), kv_dtype_name("INT4_G64")
        ('q8_0', 'fp16', 'int4-g64')
    """
    plain = plain_dtype(name)
    block = {"".join(c for c in known if c.isalnum()): known for known in BLOCKS}.get(plain)
    scaled = SCALED.fullmatch(plain)
    if scaled:
        return f"{scaled[1]}-g{scaled[2]}"
    if block is None and plain not in BITS:
        raise UnknownNameError("KV dtype", name, [*BITS, *BLOCKS, "int4-g64"])
    return plain if block is None else block


def state_dtype_bytes(kv_dtype: str) -> float:
    """Bytes of one element of a recurrent state beside a cache of some dtype.

    Engines quantise keys and values; a state, which every token rewrites, keeps 16 bits.

    Example:
        >>> state_dtype_bytes("fp32"), state_dtype_bytes("q8_0")
        (4.0, 2.0)
    """
    return max(kv_dtype_bytes(kv_dtype), STATE_BITS / 8)


class Workload(Struct, frozen=True, forbid_unknown_fields=True):
    """What is run: ``batch`` sequences of ``context`` tokens, or one new token for each.

    In the decode phase ``context`` tokens are in the cache, the new one included.
    """

    phase: Phase = "prefill"
    batch: int = 1
    context: int = 1
    source_context: int | None = None
    """Length of the encoder's input; None is ``context``."""
    dtype: str = "bf16"
    kv_dtype: str = "bf16"

    @property
    def new_tokens(self) -> int:
        """Tokens of one sequence that pass through the layers."""
        return 1 if self.phase == "decode" else self.context
