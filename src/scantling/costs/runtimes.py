"""Runtimes: what each does with shapes, and the head widths its attention takes."""

from __future__ import annotations

import functools
from typing import Any, Literal

import msgspec
from msgspec import Struct

from scantling.costs.backends import Backend, backends
from scantling.costs.deployment import common
from scantling.errors import UnknownNameError
from scantling.hardware import Chip
from scantling.sources import read_data
from scantling.spec import GroupedAttention, LatentAttention, Spec
from scantling.spec.vary import nodes


class Runtime(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A runtime, framework or kernel library, and what it does with shapes.

    Args:
        name: ``vllm``.
        title: Its name and version.
        sources: Keys of the bibliography.
        trains: Whether models are trained in it.
        pads_vocabulary: The multiple it pads a vocabulary to; 0 where it does not.
        per_rank: Whether that is a multiple on each tensor-parallel rank.
        layers: Whether stages must be equal: ``equal``, or ``any``.
        experts: The same of experts over ranks.
        page: Tokens of a page of the cache; 0 where it has none.
        kernels: Kernels of attention it may choose among, keys of ``backends``.
        fallback: Whether it has a way without any of them.
        vendors: Whose chips it is alone for; none is not known.
        latents: (key, value) widths it has kernels of its own for.
        latent: The forms of latent attention it runs fused: ``absorbed``, ``expanded`` or both.
        latent_heads: What query heads of latent attention must be a multiple of.
        aliases: Other names.
    """

    name: str
    title: str
    sources: tuple[str, ...]
    trains: bool = False
    pads_vocabulary: int = 0
    per_rank: bool = False
    layers: Literal["equal", "any"] = "any"
    experts: Literal["equal", "any"] = "equal"
    page: int = 0
    kernels: tuple[str, ...] = ()
    fallback: bool = True
    vendors: tuple[str, ...] = ()
    latents: tuple[tuple[int, int], ...] = ()
    latent: Literal["both", "absorbed", "expanded"] = "both"
    latent_heads: int = 1
    aliases: tuple[str, ...] = ()

    def on(self, chip: Chip | None) -> list[Backend]:
        """Its kernels of attention that run on a chip; without one, all."""
        return [backends()[name] for name in self.kernels if backends()[name].runs_on(chip)]

    def takes(self, chip: Chip, d_key: int, d_value: int) -> bool:
        """Whether it runs heads of these widths with a fused kernel on a chip, unpadded.

        On a chip that no fused kernel of the table is for, the widths all kernels have in common
        are taken, unless the runtime is for other chips alone.

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
        if self.vendors and chip.vendor not in self.vendors:
            return False
        fused = [b for b in self.on(chip) if not b.slow]
        if (d_key, d_value) in self.latents:
            return True
        if not fused:
            return self.fallback and d_key == d_value and common(d_key)
        return any(b.takes(d_key, d_value).verdict == "yes" for b in fused)

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
        >>> runtimes()["megatron"].pads_vocabulary
        128
    """
    table: dict[str, dict[str, Any]] = read_data("runtimes.toml")["runtime"]
    named = [{"name": name, **entry} for name, entry in table.items()]
    return {one.name: one for one in msgspec.convert(named, list[Runtime])}


def runtime(name: str) -> Runtime:
    """A runtime by its name, or one of its other names.

    Raises:
        UnknownNameError: With the nearest names.

    Example:
        >>> runtime("TRT-LLM").name, runtime("ollama").name
        ('tensorrt-llm', 'llama.cpp')
    """
    plain = name.strip().lower().replace("_", "-").replace(" ", "-")
    for one in runtimes().values():
        if plain in {one.name, *one.aliases}:
            return one
    raise UnknownNameError("runtime", name, runtimes())
