"""Alignment of one model on one chip: its products, its dimensions and their neighbours."""

from __future__ import annotations

from typing import Any

import msgspec

from scantling.costs.alignment import Nearby, dimensions, head_splits, nearby
from scantling.costs.roofline import Product, by_width, gemm_products, pruning_bounds
from scantling.hardware import chip as known_chip
from scantling.quantity import Quantity
from scantling.spec import Spec, Workload


def alignment(
    spec: Spec, gpu: str = "h100-sxm", batch: int = 1, context: int = 4096, dtype: str = "bf16"
) -> dict[str, Any]:
    """What the widths of a model cost on a chip, in a forward and a backward pass.

    Args:
        spec: One model.
        gpu: A chip by name.
        batch: Sequences.
        context: Tokens of each.
        dtype: What is multiplied.

    Returns:
        ``products`` in order, each with its place at the widths 4096, 8192 and 16384;
        ``dimensions`` with their neighbours; ``heads``, other splits at equal parameters;
        ``pruning``, the most that pruning can gain.

    Raises:
        UnknownNameError: If no chip has that name.
        FieldError: If the chip has no rate for the dtype.

    Example:
        >>> from scantling import catalog
        >>> found = alignment(catalog.model("gpt2"), "a100", batch=8, context=1024)
        >>> [d["field"] for d in found["dimensions"]]
        ['vocab_size', 'd_model', 'd_ff', 'd_head', 'n_head']
    """
    one = known_chip(gpu)
    work = Workload("train", batch, context, dtype=dtype)
    forward = Workload("prefill", batch, context, dtype=dtype)
    products = gemm_products(spec, forward, one)
    return {
        "chip": one.key, "dtype": dtype, "batch": batch, "context": context,
        "products": [
            _product(p) | {"by_width": msgspec.to_builtins(by_width(p, one, dtype))}
            for p in products
        ],
        "dimensions": [_nearby(nearby(spec, field, work, one)) for field, _ in dimensions(spec)],
        "heads": msgspec.to_builtins(head_splits(spec)),
        "pruning": msgspec.to_builtins(pruning_bounds(spec, forward, one)),
    }  # fmt: skip


def _product(p: Product) -> dict[str, Any]:
    found = msgspec.structs.asdict(p)
    return {
        name: value.to_json() if isinstance(value, Quantity) else msgspec.to_builtins(value)
        for name, value in found.items()
    }


def _nearby(found: Nearby) -> dict[str, Any]:
    tree: dict[str, Any] = msgspec.structs.asdict(found)
    tree["why"] = list(found.why)
    tree["neighbours"] = [
        msgspec.structs.asdict(n) | {"gain": n.gain.to_json()} for n in found.neighbours
    ]
    return tree
