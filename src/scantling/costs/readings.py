"""Readings of one count: why the same model has several numbers of parameters."""

from __future__ import annotations

import math
from typing import Any

from msgspec.structs import replace

from scantling.costs.count import count_tensors, parameters
from scantling.ops import tensors
from scantling.spec import Norm, Run, Spec, Stack

READINGS = {
    "unique": "each tensor once, no buffers",
    "with_buffers": "unique, and what a checkpoint holds besides parameters",
    "state_dict": "elements of a checkpoint that stores a tied head again, with buffers",
    "body": "unique, without embedding and head",
    "active_body": "body, of the routed experts only those one token passes",
    "embedding_share": "embedding / unique",
    "lm_head_new": "what the head adds: 0 when tied",
    "lm_head_shared": "elements the head shares with the embedding: counted there",
    "with_lm_head_again": "unique, and a tied head a second time",
    "with_mtp": "unique, and the modules that predict later tokens, on the model's own tables",
    "with_mtp_tables": "as with_mtp, each module with an embedding and a head of its own",
    "mtp_modules_not_counted": "modules that predict later tokens: in with_mtp only",
    "towers_not_counted": "parts of a multimodal config that are in no reading",
}
"""What each reading counts."""

TOTALS = ("unique", "with_buffers", "state_dict", "with_lm_head_again", "with_mtp",
          "with_mtp_tables")  # fmt: skip
"""Readings that someone may call the size of a model."""


CLAIM_TOLERANCE = 0.15
"""Share by which names round a size: 6.74 billion are sold as 7B, 7.62 billion too."""


def mtp_module(spec: Spec) -> int:
    """Parameters of one module that predicts a later token, its embedding and head not counted.

    One layer as the last of the stack, a projection from the norms of the stream and of the next
    token's embedding side by side (2 D × D), and three norms: those two and one before the head
    (DeepSeek-AI 2024, section 2.2).

    Example:
        >>> from scantling import catalog
        >>> deepseek = catalog.model("deepseek-v3")
        >>> mtp_module(deepseek) + 2 * 129280 * 7168  # with copies of embedding and head
        13463426048
    """
    norm = spec.decoder.final_norm or Norm()
    last = spec.decoder.expand()[-1]
    alone = Stack((spec.decoder.kind(last),), (Run((last,), 1),), norm)
    width = int(spec.d_model)
    body = int(parameters(replace(spec, decoder=alone, encoder=None)).body)
    scales = width * (norm.scale + norm.bias)
    return body + 2 * width * width + 2 * scales


def readings(spec: Spec, n_mtp: int = 0, towers: tuple[str, ...] = ()) -> dict[str, Any]:
    """Every reading of a model's count; ``READINGS`` says what each counts.

    Args:
        spec: The model.
        n_mtp: Modules that predict later tokens, as its config names them.
        towers: Parts of its config beside the text part.

    Example:
        >>> from scantling import catalog
        >>> found = readings(catalog.model("gpt2"))
        >>> [found[name] for name in ("unique", "lm_head_new", "with_lm_head_again")]
        [124439808, 0, 163037184]
    """
    weights = tensors(spec)
    p = count_tensors(weights)
    total: Any = p.total
    shared: Any = sum(t.size() for t in weights if t.alias is not None)
    stored = count_tensors([replace(t, alias=None, buffer=False) for t in weights]).total
    found: dict[str, Any] = {
        "unique": total, "with_buffers": total + p.buffers, "state_dict": stored, "body": p.body,
        "active_body": p.active_body, "embedding_share": p.embedding / total,
        "lm_head_new": p.lm_head, "lm_head_shared": shared, "with_lm_head_again": total + shared,
    }  # fmt: skip
    if n_mtp:
        table = int(spec.vocab_size) * int(spec.d_model)
        found["with_mtp"] = total + n_mtp * mtp_module(spec)
        found["with_mtp_tables"] = found["with_mtp"] + n_mtp * 2 * table
    return found | {
        "mtp_modules_not_counted": n_mtp, "towers_not_counted": list(towers),
    }  # fmt: skip


def claimed(found: dict[str, Any], size: float) -> tuple[str | None, float]:
    """Which reading a stated size may be, and the stated size over the nearest reading.

    The name is None where no reading lies within what names round: then shape and size disagree.

    Example:
        >>> from scantling import catalog
        >>> claimed(readings(catalog.model("deepseek-v3"), 1), 685e9)[0]
        'with_mtp_tables'
        >>> claimed(readings(catalog.model("llama-3.1-8b")), 405e9)[0] is None
        True
    """
    sizes = {k: v for k, v in found.items() if k in TOTALS}
    name = min(sizes, key=lambda k: abs(math.log(size / sizes[k])))
    ratio = size / sizes[name]
    return (name if abs(ratio - 1) <= CLAIM_TOLERANCE else None), ratio
