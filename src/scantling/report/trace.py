"""The walk of a token through the shapes of a model."""

from __future__ import annotations

from typing import Any

from scantling import catalog
from scantling.ops import Op, operators
from scantling.spec import Workload


def trace(given: Any, *, batch: int = 1, context: int = 128) -> dict[str, Any]:
    """Every stage of a forward pass with its shapes, weights and FLOPs.

    Equal layers are one stage with a count; FLOPs and parameters are of all of them together.

    Args:
        given: A model, as for ``analyze``.
        batch: Sequences B.
        context: Tokens of each, S.

    Example:
        >>> stages = trace("gpt2", context=128)["stages"]
        >>> stages[0]["name"], stages[0]["out_shape"]
        ('model.embedding', [1, 128, 768])
    """
    one = catalog.load(given)
    work = Workload("prefill", batch, context)
    stages = [_stage(op, batch) for op in operators(one.spec, work)]
    return {
        "schema": 1, "model": one.name, "batch": batch, "context": context,
        "layout": [{"pattern": list(run.pattern), "layers": run.n}
                   for run in one.spec.decoder.layout],
        "stages": stages,
    }  # fmt: skip


def _stage(op: Op, batch: int) -> dict[str, Any]:
    rows: Any = op.m
    weights = [
        {"name": t.name, "shape": list(t.shape), "copies": t.copies, "experts": t.experts,
         "new": 0 if t.alias or t.buffer else t.size(), "alias": t.alias}
        for t in op.tensors
    ]  # fmt: skip
    if op.kind == "attention":
        heads: Any = op.repeat
        heads = heads // (batch * op.times)
        into = [batch, heads, rows, op.k]
        out = [batch, heads, rows, op.n]
    elif op.kind == "lookup":
        into, out = [batch, rows // batch], [batch, rows // batch, op.n]
    elif op.kind in {"matmul", "scan"}:
        passes: Any = op.repeat
        inner = [passes // op.times] if passes != op.times else []
        into = [batch, rows // batch, *inner, op.k]
        out = [batch, rows // batch, *inner, op.n]
    else:
        into = out = [batch, rows // batch, op.n]
    return {
        "name": op.name, "kind": op.kind, "layers": op.times, "in_shape": into, "out_shape": out,
        "weights": weights, "params": sum(w["new"] for w in weights), "flops": op.flops(),
        "statistics": None,
    }  # fmt: skip
