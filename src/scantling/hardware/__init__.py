"""Chips, links and nodes: the catalogue in ``data/chips.toml``, and names for its entries."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from scantling.errors import FieldError, UnknownNameError
from scantling.hardware.chip_file import chip_text, is_path, read_chip, write_chip
from scantling.hardware.constants import constants
from scantling.hardware.parts import Chip, Cluster, Error, Measured, Network, Node, Rates
from scantling.sources import read_data
from scantling.units import SI

__all__ = [
    "Chip",
    "Cluster",
    "Error",
    "Measured",
    "Network",
    "Node",
    "Rates",
    "chip",
    "chip_text",
    "chips",
    "network",
    "node",
    "read_chip",
    "write_chip",
]

NETWORK = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(b|bit|bps)(?:/s|ps)?\s*", re.IGNORECASE)
MACHINE = re.compile(r"^\d+\s*x\s+|\s+nvlink\d*$")
"""What a name of a machine says besides its chip: how many, and the link between them."""


@functools.cache
def chips() -> dict[str, Chip]:
    """Every chip of the catalogue by its key.

    Example:
        >>> len(chips()) > 50, chips()["mi300x"].vendor
        (True, 'AMD')
    """
    return {key: _read(key, entry) for key, entry in _data()["chip"].items()}


def chip(name: str) -> Chip:
    """A chip by key or alias; case, spaces, dashes, underscores and the brand do not matter.

    Nor do a number of chips before the name and a link after it: ``8x H200 NVLink4``.

    Args:
        name: ``h100-sxm``, ``H100 SXM``, a chip file (``./my-cpu.toml``), or what
            ``torch.cuda.get_device_name()`` says: ``NVIDIA H100 80GB HBM3``,
            ``Tesla V100-SXM2-32GB``.

    Raises:
        UnknownNameError: If no chip has that name; it names the nearest.
        FieldError: If a file is no chip.

    Example:
        >>> chip("NVIDIA A100-SXM4-80GB").key, chip("rtx_4090").memory_kind
        ('a100-sxm-80gb', 'GDDR6X')
    """
    if is_path(name.strip()):
        return read_chip(name.strip())
    known = _names()
    for spelling in _spellings(name):
        if spelling in known:
            return chips()[known[spelling]]
    raise UnknownNameError("gpu", name.strip().lower(), chips())


def node(of: Chip | str, n_gpu: int = 8) -> Node:
    """A machine of equal chips, joined by the chip's own links.

    Args:
        of: A chip or its name.
        n_gpu: How many.

    Raises:
        FieldError: If there is not at least one.
        UnknownNameError: If no chip has that name.

    Example:
        >>> node("h100").link
        Network(bytes_per_s=450000000000.0, latency_s=1.6e-05)
    """
    if n_gpu < 1:
        raise FieldError("gpus_per_node", n_gpu, "must be at least 1")
    one = chip(of) if isinstance(of, str) else of
    latency_s = _data()["default"]["link"]["latency_s"]
    speed = one.link_bytes_per_s
    link = None if speed is None else Network(bytes_per_s=speed, latency_s=latency_s)
    return Node(chip=one, n_gpu=n_gpu, link=link)


MOST_GPUS = 2**20
"""Chips of one run: several times the largest machine room anyone has built."""


def cluster(
    of: Chip | str, n_gpu: int = 8, gpus_per_node: int = 8, net: str = "400Gb",
    oversubscription: float = 1.0,
) -> Cluster:  # fmt: skip
    """Equal chips in equal machines, and a network between them.

    Args:
        of: A chip or its name.
        n_gpu: Chips in all.
        gpus_per_node: Chips of one machine; with fewer in all there is one machine of those.
        net: Speed of the network per chip and direction: ``400Gb``.
        oversubscription: See ``Cluster``.

    Raises:
        FieldError: If a number is below one or beyond ``MOST_GPUS``, or whole machines do not add
            up to ``n_gpu``.

    Example:
        >>> cluster("h100", 16).node.n_gpu
        8
    """
    if not 1 <= n_gpu <= MOST_GPUS:
        raise FieldError("gpus", n_gpu, f"must be 1 to {MOST_GPUS}")
    if oversubscription < 1:
        raise FieldError("oversubscription", oversubscription, "must be at least 1")
    machine = node(of, min(n_gpu, gpus_per_node))
    if n_gpu % machine.n_gpu:
        rule = f"must be a multiple of the {machine.n_gpu} of a node"
        raise FieldError("gpus", n_gpu, rule, "change gpus or gpus_per_node")
    return Cluster(node=machine, n_gpu=n_gpu, network=network(net),
                   oversubscription=oversubscription)  # fmt: skip


def network(text: str, latency_s: float | None = None) -> Network:
    """A network between nodes, per GPU and direction: ``400Gb`` is bits, ``50GB`` is bytes.

    Args:
        text: A speed; only the case of the b tells bits from bytes.
        latency_s: What a small message costs; by default the assumed one of the catalogue.

    Raises:
        FieldError: If the text is no speed above zero.

    Example:
        >>> network("400Gb").bytes_per_s, network("400 Gbit/s") == network("50GB/s")
        (50000000000.0, True)
    """
    match = NETWORK.fullmatch(text)
    if not match or float(match[1]) == 0:
        raise FieldError("net", text, "is not a network speed", "write 400Gb or 50GB")
    factor = 1.0 if match[3] == "B" else 1 / 8
    speed = float(match[1]) * 10.0 ** SI[match[2].lower()] * factor
    latency = _data()["default"]["network"]["latency_s"] if latency_s is None else latency_s
    return Network(bytes_per_s=speed, latency_s=latency)


@functools.cache
def _data() -> dict[str, Any]:
    return read_data("chips.toml")


def _read(key: str, entry: dict[str, Any]) -> Chip:
    """One chip, with the constants of its kernels."""
    families = (entry.get("compute_capability", ""), entry["architecture"])
    reached = constants(families, key, entry.get("constants"))
    fields = {"source_of": list(entry.get("source_of", {}).items()), "constants": reached}
    return msgspec.convert({"key": key} | entry | fields, Chip)


@functools.cache
def _names() -> dict[str, str]:
    """The key behind each plain spelling of a key or an alias; no two chips share one."""
    names: dict[str, str] = {}
    for key, entry in chips().items():
        for name in (key, entry.name, *entry.aliases):
            spelling = _spellings(name)[-1]
            assert names.setdefault(spelling, key) == key, f"{name} is {names[spelling]} and {key}"
    return names


def _spellings(name: str) -> list[str]:
    """A name without case and punctuation, then the same less each leading brand."""
    alone = MACHINE.sub("", name.strip().lower())
    return list(_shorten(re.sub(r"[\s_-]+", "", alone)))


def _shorten(plain: str) -> Iterator[str]:
    yield plain
    for brand in _data()["default"]["brands"]:
        if plain.startswith(brand) and plain != brand:
            yield from _shorten(plain.removeprefix(brand))
