"""Which heads and which expert widths split over so many GPUs, and what they cost in parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scantling.costs.count import parameters
from scantling.costs.deployment import cuts, expert_reasons, valid_tp
from scantling.costs.quantize import scheme
from scantling.errors import FieldError
from scantling.search.budget import Budget
from scantling.search.space import list_legal
from scantling.spec import (
    Block,
    Branch,
    Experts,
    GroupedAttention,
    Layer,
    Rope,
    Run,
    Spec,
    Stack,
    has,
    vary,
)
from scantling.spec.plan import Plan


def legal_heads(spec: Spec, tp: int) -> list[dict[str, Any]]:
    """Head layouts of a model's width and head width that split over ``tp``, nearest in size first.

    Args:
        spec: A model with grouped attention.
        tp: GPUs that share each layer.

    Returns:
        Rows with the dimensions, the change in parameters, and whether a config must state the
        head width because H h is not D.

    Raises:
        FieldError: If the model has no KV heads to choose.

    Example:
        >>> from scantling import catalog
        >>> rows = legal_heads(catalog.model("qwen2.5-7b"), 8)  # 28 heads, 4 KV heads of 128
        >>> [(r["n_head"], r["n_kv_head"], r["difference"]) for r in rows[:2]]
        [(24, 8, 14336), (24, 4, -102774784)]
    """
    if not has(spec, "n_kv_head") or not has(spec, "d_head"):
        raise FieldError("--list-legal", None, "needs a model with query and KV heads")
    width, head = int(spec.d_model), int(spec.d_head)
    before = int(parameters(spec).total)
    asked = Budget(params=10**9, tokens=1, tp=tp, fixed={"d_model": width, "d_head": head})
    rows: list[dict[str, Any]] = []
    for row in list_legal(width, tp, asked):
        heads = int(row["n_head"])
        after = int(parameters(vary(spec, n_head=heads, n_kv_head=int(row["n_kv_head"]))).total)
        rows.append({
            **row, "params": after, "difference": after - before,
            "explicit_head_dim": heads * head != width,
        })  # fmt: skip
    return sorted(rows, key=lambda r: (abs(r["difference"]), r["n_head"], -r["n_kv_head"]))


def legal_expert_widths(
    widths: Sequence[int], tp: int, quant: str = "bf16"
) -> list[dict[str, Any]]:  # fmt: skip
    """Which expert widths a tensor split and a quantisation's blocks allow, each with its reason.

    What does not split can be spread whole by expert parallelism, which cuts no expert.

    Args:
        widths: Widths d_expert of one expert.
        tp: GPUs that share each expert.
        quant: A scheme (scantling serve --quant).

    Example:
        >>> rows = legal_expert_widths([512, 1024], 8, "fp8-block")
        >>> [(r["d_expert"], r["ok"]) for r in rows]
        [(512, False), (1024, True)]
    """
    one = scheme(quant)
    rows: list[dict[str, Any]] = []
    for width in widths:
        spec = _experts(width)
        reasons = list(expert_reasons(spec, tp))
        if not reasons:
            reasons = [c.text for c in cuts(spec, one, Plan(tp=tp)) if not c.ok and c.degree == tp
                       and ".experts_" in c.tensor]  # fmt: skip
        rows.append({
            "d_expert": width, "per_gpu": width / tp, "ok": not reasons,
            "valid_tp": valid_tp(spec, one, most=tp),
            "why": reasons[0] if reasons else f"{width} / {tp} fills whole blocks",
        })  # fmt: skip
    return rows


def _experts(width: int) -> Spec:
    """A layer of experts of one width, every other dimension a multiple of 1,024."""
    attention = GroupedAttention(n_head=64, n_kv_head=64, d_head=128, position=Rope())
    experts = Experts(n_expert=128, top_k=8, d_expert=width)
    stack = Stack((Layer("layer", (Block((Branch(attention),)), Block((Branch(experts),)))),),
                  (Run(("layer",), 1),))  # fmt: skip
    return Spec(d_model=8192, vocab_size=131_072, decoder=stack)
