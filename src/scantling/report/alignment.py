"""Why a model is fast or slow on a chip: products, attention, widths nearby, sources of times."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from scantling.costs.alignment import Heads, dimensions, head_splits, nearby
from scantling.costs.attentions import Attention, attentions, generates
from scantling.costs.kernels.measured import installed, tables
from scantling.costs.measured import sourced_kernels
from scantling.costs.roofline import Product, by_width, gemm_products, pruning_bounds
from scantling.costs.slowest import slowest
from scantling.errors import FieldError
from scantling.hardware import Chip
from scantling.hardware import chip as known_chip
from scantling.ops import operators
from scantling.quantity import Quantity
from scantling.spec import Spec, Workload, vary

Kernels = Literal["measured", "fitted", "both"]
WIDTHS = (4096, 8192, 16384)
"""Widths of models that each product is shown at, beside its own, half and twice of it."""
HEAD_WIDTHS = (64, 96, 128, 192, 256)
"""Head widths that splits at equal parameters are shown at."""
PHASES: tuple[Literal["prefill", "decode"], ...] = ("prefill", "decode")


def alignment(
    spec: Spec, gpu: str = "h100-sxm", batch: int = 1, context: int = 4096, dtype: str = "bf16",
    kv_dtype: str = "bf16", kernels: Kernels | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What the widths of a model cost on a chip, and what else makes it fast or slow.

    Args:
        spec: One model.
        gpu: A chip by name or file.
        batch: Sequences.
        context: Tokens of each.
        dtype: What is multiplied.
        kv_dtype: What keys and values are kept as.
        kernels: Which times of operators are listed; None lists none.

    Returns:
        ``slowest`` by phase, of which an encoder has one; ``products`` in order, each with its
        place at other widths; ``products_decode``; ``attention``, each distinct one;
        ``dimensions`` with their neighbours, priced for a forward and a backward pass; ``heads``,
        other splits at equal parameters with the time of their attention; ``pruning``, the most
        that pruning can gain in a prefill, and ``pruning_decode``; ``kernels`` if asked.

    Raises:
        UnknownNameError: If no chip has that name.
        FieldError: If the chip has no rate for the dtype, or measured times are asked for and the
            package that holds them is not installed.

    Example:
        >>> from scantling import catalog
        >>> found = alignment(catalog.model("gpt2"), "a100", batch=8, context=1024)
        >>> [d["field"] for d in found["dimensions"]]
        ['vocab_size', 'd_model', 'd_ff', 'd_head', 'n_head']
    """
    one = known_chip(gpu)
    if kernels in {"measured", "both"}:
        need_tables(kernels)
    work = Workload("train", batch, context, dtype=dtype)
    phases = {
        p: Workload(p, batch, context, dtype=dtype, kv_dtype=kv_dtype)
        for p in PHASES if p == "prefill" or generates(spec)
    }  # fmt: skip
    decode = phases.get("decode")
    width = int(spec.d_model)
    beside = tuple(sorted({width // 2, width, 2 * width, *WIDTHS}))
    products = gemm_products(spec, phases["prefill"], one)
    found: dict[str, Any] = {
        "chip": one.key, "peak_flops_per_s": one.rate(dtype),
        "memory_bytes_per_s": one.memory_bytes_per_s, "dtype": dtype, "batch": batch,
        "context": context, "d_model": width,
        "slowest": {p: _tree(slowest(spec, w, one)) for p, w in phases.items()},
        "products": [
            _product(p, one) | {"by_width": _tree(by_width(p, one, dtype, width, beside))}
            for p in products
        ],
        "products_decode": [
            _product(p, one) for p in (gemm_products(spec, decode, one) if decode else ())
        ],
        "attention": [
            _attention(a) for a in attentions(spec, batch, context, one, dtype, kv_dtype)
        ],
        "dimensions": [_tree(nearby(spec, field, work, one)) for field, _ in dimensions(spec)],
        "heads": [
            _heads(s, spec, one, (batch, context, dtype, kv_dtype))
            for s in head_splits(spec, HEAD_WIDTHS)
        ],
        "pruning": msgspec.to_builtins(pruning_bounds(spec, phases["prefill"], one)),
        "pruning_decode": msgspec.to_builtins(
            pruning_bounds(spec, decode, one) if decode else []
        ),
    }  # fmt: skip
    if kernels is not None:
        found["kernels"] = {p: times(spec, w, one, kernels) for p, w in phases.items()}
    return found


def speeds(
    spec: Spec, gpu: str, field: str, values: tuple[int, ...], workload: Workload
) -> dict[int, Any]:
    """Time of a training step now over that at each value of a field, as ``costs.alignment`` does.

    Values that a relation of the model forbids are left out.

    Raises:
        UnknownNameError: If no chip has that name.
        FieldError: If the model has no such dimension.

    Example:
        >>> from scantling import catalog
        >>> work = Workload("train", 8, 1024)
        >>> found = speeds(catalog.model("gpt2"), "a100", "vocab_size", (50257, 50304), work)
        >>> found[50257]["value"], found[50304]["kind"], found[50304]["low"] < 1.01
        (1.0, 'assumed', True)
    """
    found = nearby(spec, field, workload, known_chip(gpu), values)
    return {n.value: n.gain.to_json() for n in found.neighbours}


def need_tables(kernels: str) -> None:
    """Refuse where the measured tables are not installed.

    Raises:
        FieldError: With what to install.
    """
    if installed() is None:
        rule = f"needs the tables of {tables().package}, which is not installed"
        raise FieldError("--kernels", kernels, rule, "pip install 'scantling[kernels]'")


def times(spec: Spec, workload: Workload, chip: Chip, kernels: Kernels) -> dict[str, Any]:
    """The time of every product and attention by the sources asked for, labelled.

    Both products of a layer's routed experts are one line, as tables hold them.

    Args:
        spec: One model.
        workload: What is run.
        chip: Where.
        kernels: ``fitted``; ``measured``, the tables where they reach and fitted elsewhere; or
            ``both`` side by side.

    Returns:
        ``operators``, each with ``fitted`` and ``measured`` seconds (None where not asked or not
        in a table), ``used``, its ``source`` and fitted over measured; ``seconds`` of all that is
        used; ``measured_share`` of them; ``tabled``, whether the tables hold the chip; and
        ``ratio`` of those with both.

    Example:
        >>> from scantling import catalog
        >>> from scantling.hardware import chip
        >>> from scantling.spec import Workload
        >>> work = Workload("prefill", 1, 1024)
        >>> found = times(catalog.model("gpt2"), work, chip("h100"), "fitted")
        >>> {op["used"] for op in found["operators"]}, found["measured_share"]
        ({'fitted'}, 0.0)
    """
    ops = [op for op in operators(spec, workload) if op.kind in {"matmul", "attention"}]
    looked = sourced_kernels(ops, workload, chip)
    core = {op.name for op in ops if op.kind == "attention"}
    rows: list[dict[str, Any]] = []
    pairs: list[tuple[float, float | None]] = []
    for one in looked:
        t = one.fitted
        fit = chip.constants.attention.kind if one.op in core else chip.constants.gemm.kind
        fitted = Quantity(value=float(t.value_s), low=float(t.low_s), high=float(t.high_s),
                          unit="s", kind=fit, why=("costs.time",))  # fmt: skip
        found = None
        if kernels != "fitted" and one.kind == "measured":
            m = one.time
            found = Quantity(value=float(m.value_s), low=float(m.low_s), high=float(m.high_s),
                             unit="s", kind="measured", why=(one.source,))  # fmt: skip
        pairs.append((fitted.value, None if found is None else found.value))
        rows.append({
            "name": one.op, "used": "fitted" if found is None else "measured",
            "fitted": None if kernels == "measured" and found is not None else fitted.to_json(),
            "measured": None if found is None else found.to_json(),
            "source": "" if found is None else one.source,
            "ratio": None if found is None else fitted.value / found.value,
        })  # fmt: skip
    used = sum(f if m is None else m for f, m in pairs)
    measured = sum(m for _, m in pairs if m is not None)
    same = sum(f for f, m in pairs if m is not None)
    return {
        "tabled": chip.key in tables().system, "operators": rows, "seconds": used,
        "measured_share": measured / used if used else 0.0,
        "ratio": same / measured if measured else None,
    }  # fmt: skip


def _heads(split: Heads, spec: Spec, one: Chip, work: tuple[int, int, str, str]) -> dict[str, Any]:
    """Another split into heads, with the time of all attention and the tile of its width."""
    batch, context, dtype, kv_dtype = work
    other = vary(spec, n_head=split.n_head, n_kv_head=split.n_kv_head, d_head=split.d_head)
    tree: dict[str, Any] = msgspec.to_builtins(split)
    looks = attentions(other, batch, context, one, dtype, kv_dtype)
    for phase in PHASES:
        seconds = [getattr(a, phase).seconds.value for a in looks if getattr(a, phase) is not None]
        tree[f"{phase}_attention_seconds"] = sum(seconds) if seconds else None
    tree["tile"] = _tree(next((a.prefill.tile for a in looks if a.prefill is not None), None))
    return tree


def _product(p: Product, one: Chip) -> dict[str, Any]:
    """One product; rounds on SMs only where the chip says how many it has."""
    tree: dict[str, Any] = _tree(p)
    return tree if one.sm_count is not None else tree | {"waves": None}


def _attention(a: Attention) -> dict[str, Any]:
    """One attention; kernels by their name."""
    tree: dict[str, Any] = _tree(a)
    for phase in PHASES:
        if tree[phase] is not None:
            tree[phase]["kernels"] = dict(tree[phase]["kernels"])
    return tree


def _tree(value: Any) -> Any:
    """Structs as dictionaries, quantities as they are printed in JSON."""
    if isinstance(value, Quantity):
        return value.to_json()
    if isinstance(value, Struct):
        return {k: _tree(v) for k, v in msgspec.structs.asdict(value).items()}
    if isinstance(value, list | tuple):
        return [_tree(v) for v in value]
    return value


__all__ = ["Kernels", "alignment", "need_tables", "speeds", "times"]
