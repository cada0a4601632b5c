"""What a config says of its weights beside their shapes: dtype and quantisation."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from scantling.sources import read_data
from scantling.spec import BITS
from scantling.spec.workload import plain_dtype

KEYS = ("quantization_config", "quantization", "compression_config")
"""Where tools write how weights are packed."""

METHOD_BITS = {"mxfp4": 4, "nvfp4": 4, "fp8": 8, "fbgemm_fp8": 8, "modelopt_fp8": 8}
"""Bits of methods that have one width only and so need not say it."""


class Quantized(Struct, frozen=True):
    """How a config says its weights are packed."""

    method: str
    bits: int | None
    """None where the config does not say."""


def parts(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A config and its text part: multimodal configs say some things in either."""
    yield config
    text = config.get("text_config")
    if isinstance(text, dict):
        yield text


def quantization(config: dict[str, Any]) -> dict[str, Any]:
    """The object that says how weights are packed, of the config or its text part; else empty.

    A config that says beside it in what its experts are (DeepSeek-V4) has that in it.
    """
    for part in parts(config):
        for key in KEYS:
            value = part.get(key)
            if isinstance(value, dict):
                experts = part.get("expert_dtype")
                return value if experts is None else {"expert_dtype": experts, **value}
    return {}


def unpacked_parts(quantization: dict[str, Any]) -> set[str]:
    """Parts of every layer that a config's patterns leave in 16 bits.

    Modules named with the number of a layer are few, and are not looked at.

    Example:
        >>> sorted(unpacked_parts({"ignore": ["lm_head", "re:.*self_attn.*"]}))
        ['attention']
    """
    ignored = quantization.get("ignore")
    patterns = [p for p in ignored if isinstance(p, str) and p.startswith("re:")] if isinstance(
        ignored, list) else []  # fmt: skip
    known: dict[str, str] = read_data("checkpoints.toml")["unpacked"]
    return {part for part, piece in known.items() if any(piece in p for p in patterns)}


@functools.cache
def _words() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = read_data("checkpoints.toml")["words"]
    return found


def said_by_name(name: str) -> dict[str, Any] | None:
    """What a name says of how weights are packed, as a config would; None where it says nothing.

    Example:
        >>> said_by_name("nvidia/DeepSeek-R1-NVFP4"), said_by_name("DeepSeek-V3-bf16")
        ({'quant_method': 'nvfp4'}, {})
        >>> said_by_name("deepseek-v3") is None
        True
    """
    known = _words()
    words = re.split(r"[-_/\s]+", name.lower())
    return next((known[word] for word in words if word in known), None)


def quantized(config: dict[str, Any]) -> Quantized | None:
    """Whether a config says that its weights are quantised, and to how many bits.

    Example:
        >>> quantized({"text_config": {"quantization_config": {"quant_method": "gptq", "bits": 4}}})
        Quantized(method='gptq', bits=4)
        >>> quantized({"model_type": "llama"}) is None
        True
    """
    found = quantization(config)
    if not found:
        return None
    method = str(found.get("quant_method") or found.get("quant_algo") or "quantized")
    return Quantized(method, _bits(found, method))


def _bits(found: dict[str, Any], method: str) -> int | None:
    groups = found.get("config_groups")
    weights = [g.get("weights") for g in groups.values() if isinstance(g, dict)] if isinstance(
        groups, dict) else []  # fmt: skip
    for place in (found, *weights):
        for key in ("bits", "num_bits", "w_bit", "weight_bits"):
            value = place.get(key) if isinstance(place, dict) else None
            if type(value) is int:
                return value
    for key, bits in (("load_in_4bit", 4), ("load_in_8bit", 8)):
        if found.get(key) is True:
            return bits
    return METHOD_BITS.get(method.lower())


def declared_dtype(config: dict[str, Any]) -> str | None:
    """The dtype a config names, under its old or its new key; None where only weights can tell.

    Example:
        >>> [declared_dtype(c) for c in ({"torch_dtype": "float16"}, {"dtype": "auto"}, {})]
        ['fp16', None, None]
    """
    for part in parts(config):
        for key in ("dtype", "torch_dtype"):
            value = part.get(key)
            if isinstance(value, str) and plain_dtype(value) in BITS:
                return plain_dtype(value)
    return None


def bytes_an_element(elements: float, file_bytes: float, bits: int) -> tuple[float, bool]:
    """Bytes of file for each element counted, and whether so many bits explain them.

    Packed weights take bits / 8 bytes each, and up to twice that with scales, zeros and the
    tensors that stay in 16 bits. More says that the elements are packed ones, several weights each.

    Example:
        >>> bytes_an_element(8_030_261_248, 5.7e9, 4)[1], bytes_an_element(2e9, 5.7e9, 4)[1]
        (True, False)
    """
    each = file_bytes / elements
    return each, bits / 8 <= each <= 2 * bits / 8
