"""What a quantised checkpoint of a spec would hold, from the config alone."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from scantling.arith import ceil_div
from scantling.errors import FieldError
from scantling.ops import tensors
from scantling.spec import Spec

QUANTIZED = {"attention", "mixer", "ffn", "shared_experts", "experts"}
"""Parts whose matrices are packed; embedding, head, router and norms stay as they are."""


class Packed(Struct, frozen=True):
    """Two readings of one checkpoint."""

    logical: int
    """Weights: what the model has."""
    stored: int
    """Elements: what a hub shows, several weights packed in one."""
    scales: int
    """Of the stored elements, those that are scales."""


def stored_elements(spec: Spec, quantization: dict[str, Any]) -> Packed:
    """Elements of a checkpoint packed into 32-bit integers, as GPTQ and AWQ do.

    A matrix of out × in weights in b bits becomes out × in × b / 32 integers, and one scale for
    each of ceil(in / g) groups of each output. Zero points are not counted: symmetric schemes
    need none.

    Args:
        spec: The model.
        quantization: ``quantization_config`` with ``bits`` and ``group_size`` (−1: one group).

    Raises:
        FieldError: If bits or group size are missing or no sizes.

    Example:
        >>> from scantling import catalog
        >>> stored_elements(catalog.model("llama-3.1-8b"), {"bits": 4, "group_size": 128}).stored
        1977880576
    """
    bits, group = quantization.get("bits"), quantization.get("group_size", -1)
    if type(bits) is not int or not 1 <= bits <= 32:
        raise FieldError("quantization_config.bits", bits, "must be 1 to 32")
    if type(group) is not int or (group != -1 and group < 1):
        raise FieldError("quantization_config.group_size", group, "must be positive, or -1")
    logical = stored = scales = 0
    for t in tensors(spec):
        if t.alias is not None or t.buffer:
            continue
        n = int(t.size())
        logical += n
        if t.part in QUANTIZED and len(t.shape) == 2:
            inner = int(t.shape[1])
            groups = 1 if group == -1 else int(ceil_div(inner, group))
            scales += n // inner * groups
            n = int(ceil_div(n * bits, 32))
        stored += n
    return Packed(logical, stored + scales, scales)
