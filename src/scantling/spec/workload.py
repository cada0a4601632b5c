"""How a model is used: phase, batch, context, dtypes. Keeps ``Spec`` pure."""

from __future__ import annotations

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
    "bfloat16": "bf16", "float8": "fp8", "fp8e4m3": "fp8", "fp8e5m2": "fp8", "e4m3": "fp8",
    "float8e4m3fn": "fp8", "float8e5m2": "fp8", "mxfp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp4",
    "float4": "fp4",
}  # fmt: skip
"""Other spellings of a dtype, without punctuation."""


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


def dtype_bytes(name: str) -> float:
    """Bytes of one element.

    Example:
        >>> dtype_bytes("bf16"), dtype_bytes("int4")
        (2.0, 0.5)
    """
    return BITS[dtype_name(name)] / 8


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
