"""Models side by side, and what the difference in size is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scantling import catalog
from scantling.errors import FieldError
from scantling.report.analyze import Analysis, analyze, as_candidate
from scantling.report.pair import pair


def compare(
    *given: Any, context: int | None = None, batch: int = 1, assume: bool = False,
    weights: bool = False, **of_pair: Any,
) -> dict[str, Any]:  # fmt: skip
    """Compare models; ratios are to the first.

    Args:
        given: Two models or more, each as for ``analyze``.
        context: Tokens of a sequence, one for all.
        batch: Sequences.
        assume: For a model type in no table: go on past fields that are not understood.
        weights: Of two models: what of the first the second can load, merge, adapt or distil.
        of_pair: ``dtype``, ``gpu`` and ``accept`` of that question (``report.pair``).

    Raises:
        FieldError: For fewer than two models, or with ``weights`` more than two.

    Example:
        >>> found = compare("gpt2", "llama-3.1-405b")
        >>> found["decomposition"][0]["text"]
        '×3261 = depth ×10.5 · width² ×455 · rest ×0.683; body ×4722'
    """
    if len(given) < 2:
        raise FieldError("compare", None, "needs two models or more")
    if weights and len(given) > 2:
        raise FieldError("compare", len(given), "models, but --weights is of two")
    loaded = [catalog.load(g, assume=assume) for g in given]
    if context is None:
        context = min(8192, *(int(m.spec.max_context or 8192) for m in loaded))
    found = [analyze(m.name, context=context, batch=batch, loaded=m) for m in loaded]
    return {
        "schema": 1,
        "models": [a.name for a in found],
        "notes": [list(a.notes) for a in found],
        "workload": {"context": context, "batch": batch},
        "rows": _rows(found),
        "decomposition": [growth(found[0], a) for a in found[1:]],
        "weights": pair(given[0], given[1], loaded[0], loaded[1], context=context, batch=batch,
                        **of_pair) if weights else None,
    }  # fmt: skip


def _rows(found: list[Analysis]) -> list[dict[str, Any]]:
    names = list(dict.fromkeys(k for a in found for k in a.shape()))
    rows = [_row(name, [a.shape().get(name) for a in found]) for name in names]
    quantities: dict[str, Callable[[Analysis], Any]] = {
        "parameters": lambda a: a.params.total,
        "active": lambda a: a.params.active,
        "body": lambda a: a.params.body,
        "FLOPs forward per token": lambda a: a.flops.forward / a.flops.tokens,
        "FLOPs train per token": lambda a: a.flops.train / a.flops.tokens,
        "KV bytes per token": lambda a: a.cache.bytes_per_token,
        "KV bytes": lambda a: a.cache.bytes,
        "weights bytes": lambda a: a.weights_bytes,
        "decode ms per token": lambda a: float(as_candidate(a).decode.value_s) * 1e3,
    }
    rows += [_row(name, [get(a) for a in found]) for name, get in quantities.items()]
    for part in found[0].params.by_part:
        rows.append(_row(f"part {part}", [a.params.by_part[part] for a in found]))
    return [r for r in rows if any(v not in (None, 0) for v in r["values"])]


def _row(name: str, values: list[Any]) -> dict[str, Any]:
    first = values[0]
    ratio = [None if v is None or not first else v / first for v in values]
    return {"quantity": name, "values": values, "ratio": ratio}


def growth(a: Analysis, b: Analysis) -> dict[str, Any]:
    """The ratio of two totals as depth × width² × rest.

    A body is about 12 L D², so the ratio of totals is the depth ratio, times the square of the
    width ratio, times what embeddings, heads, FFN ratio and experts make of it.
    """
    total = float(b.params.total / a.params.total)
    body = float(b.params.body / a.params.body)
    depth = b.dims["n_layer"] / a.dims["n_layer"]
    width = (b.dims["d_model"] / a.dims["d_model"]) ** 2
    rest = total / (depth * width)
    text = (
        f"×{_short(total)} = depth ×{_short(depth)} · width² ×{_short(width)} · "
        f"rest ×{_short(rest)}; body ×{_short(body)}"
    )
    return {"from": a.name, "to": b.name, "total": total, "depth": depth, "width_squared": width,
            "rest": rest, "body": body, "text": text}  # fmt: skip


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
