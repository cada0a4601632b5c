"""Runtimes and the head widths their attention takes."""

from __future__ import annotations

import functools
from typing import Literal

import msgspec
from msgspec import Struct

from scantling.costs.deployment import common
from scantling.costs.flash import takes
from scantling.errors import UnknownNameError
from scantling.hardware import Chip
from scantling.sources import read_data
from scantling.spec import GroupedAttention, LatentAttention, Spec
from scantling.spec.vary import nodes


class Runtime(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What serves or runs a model, and which heads it takes.

    Args:
        name: ``vllm``.
        title: Its name for people.
        since: Year and month the rule was stated.
        sources: Keys of the bibliography.
        widths: Head widths taken, keys and values alike.
        pairs: (key, value) widths taken beside.
        kernels: Fused kernels that may take other widths, by the chip.
        latent: The forms of latent attention it runs fused: ``absorbed``, ``expanded`` or both.
        latent_heads: What query heads of latent attention must be a multiple of.
        note: What else there is to say.
    """

    name: str
    title: str
    since: str
    sources: tuple[str, ...]
    widths: tuple[int, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()
    kernels: tuple[str, ...] = ()
    latent: Literal["both", "absorbed", "expanded"] = "both"
    latent_heads: int = 1
    note: str = ""

    def takes(self, chip: Chip, d_key: int, d_value: int) -> bool:
        """Whether it runs heads of these widths with a fused kernel on a chip.

        Args:
            chip: Where.
            d_key: Width of queries and keys.
            d_value: Width of values.

        Example:
            >>> from scantling.hardware import chip
            >>> runtime("vllm").takes(chip("h100-sxm"), 128, 128)
            True
            >>> runtime("llama.cpp").takes(chip("h100-sxm"), 192, 192)
            False
        """
        if (d_key, d_value) in self.pairs or (d_key == d_value and d_key in self.widths):
            return True
        if chip.compute_capability is None and self.kernels:
            return d_key == d_value and common(d_key)
        return any(takes(name, chip, d_key, d_value).verdict == "yes" for name in self.kernels)

    def runs(self, spec: Spec, chip: Chip) -> bool:
        """Whether it runs the attention of every kind of layer of a model on a chip.

        Example:
            >>> from scantling import catalog
            >>> from scantling.hardware import chip
            >>> runtime("vllm").runs(catalog.model("deepseek-v3"), chip("h100-sxm"))
            True
        """
        for _, node in nodes(spec):
            if isinstance(node, GroupedAttention):
                value = node.d_head if node.d_value is None else node.d_value
                pairs = [(node.d_head, value)]
            elif isinstance(node, LatentAttention):
                if int(node.n_head) % self.latent_heads:
                    return False
                pairs = [(node.d_nope + node.d_rope, node.d_value)] * (self.latent != "absorbed")
                absorbed = (node.kv_rank + node.d_rope, node.kv_rank)
                pairs += [absorbed] * (self.latent != "expanded")
            else:
                continue
            if not all(self.takes(chip, int(key), int(value)) for key, value in pairs):
                return False
        return True


@functools.cache
def runtimes() -> dict[str, Runtime]:
    """Every runtime of the table by its name.

    Example:
        >>> sorted(runtimes())
        ['llama.cpp', 'sglang', 'tensorrt-llm', 'transformers', 'vllm']
    """
    found = msgspec.convert(read_data("runtimes.toml")["runtime"], list[Runtime])
    return {one.name: one for one in found}


def runtime(name: str) -> Runtime:
    """A runtime by its name.

    Raises:
        UnknownNameError: With the nearest names.

    Example:
        >>> runtime("TensorRT-LLM").title
        'TensorRT-LLM'
    """
    key = name.strip().lower()
    if key not in runtimes():
        raise UnknownNameError("runtime", name, runtimes())
    return runtimes()[key]
