"""A spec as flags of ``vllm serve``."""

from __future__ import annotations

import json
import shlex
from typing import Any

from scantling.formats import hf
from scantling.formats.context import far_rope
from scantling.formats.hf.layout import thaw
from scantling.formats.registry import Exported, register
from scantling.formats.target import context_of, scaling_of
from scantling.spec import Dense, Experts, GroupedAttention, LatentAttention, Spec, divisors
from scantling.spec.vary import nodes

LARGEST_TP = 64


@register("vllm")
def export(spec: Spec) -> Exported:
    """Flags to serve the model; the first tensor-parallel size is 1, the others that divide.

    The model must have a Hugging Face config, which ``vllm serve`` reads; the flags go on top.
    A rotary scaling is also given by ``--hf-overrides``, with the base it belongs to, since an
    override replaces the whole setting.

    Raises:
        ScantlingError: If no Hugging Face model type can say the model.

    Example:
        >>> from scantling import catalog
        >>> export(catalog.model("qwen2.5-7b")).values["tensor-parallel-size"]
        [1, 2, 4]
    """
    config = hf.write(spec)
    context = context_of(spec)
    values: dict[str, Any] = {} if context is None else {"max-model-len": context}
    values["tensor-parallel-size"] = parallel_sizes(spec)
    rope = far_rope(spec)
    settings = scaling_of(rope)
    if context is not None and settings.get("rope_type") == "dynamic":  # the limit stays as trained
        values["max-model-len"] = int(context * settings["factor"])
    if settings and rope is not None:
        values["hf-overrides"] = {
            "rope_scaling": thaw(settings.items()), "rope_theta": rope.theta,
            "max_position_embeddings": config.get("max_position_embeddings", context),
        }  # fmt: skip
    if any(isinstance(node, Experts) for _, node in nodes(spec)):
        values["enable-expert-parallel"] = [False, True]
    architecture = config["architectures"][0]
    lines = [
        f"--{key} {shlex.quote(json.dumps(v) if isinstance(v, dict) else str(v))}"
        for key, v in values.items() if not isinstance(v, list)
    ]  # fmt: skip
    lines.insert(min(1, len(lines)), "--tensor-parallel-size 1")
    sizes = ", ".join(map(str, values["tensor-parallel-size"]))
    notes = (
        f"tensor-parallel sizes that divide heads and widths: {sizes}",
        f"it reads the config of {architecture}: write it with --to hf",
    )
    return Exported("vllm", values, " \\\n".join(lines) + "\n", notes)


def parallel_sizes(spec: Spec) -> list[int]:
    """Tensor-parallel sizes that split heads and feed-forward widths without a rest.

    Query heads and widths must divide; key-value heads divide, or are repeated on several ranks.

    Example:
        >>> from scantling import catalog
        >>> parallel_sizes(catalog.model("llama-3.1-8b"))
        [1, 2, 4, 8, 16, 32]
    """
    heads: list[tuple[int, int]] = []
    widths: list[int] = []
    for _, node in nodes(spec):
        if isinstance(node, GroupedAttention):
            heads.append((int(node.n_head), int(node.n_kv_head)))
        elif isinstance(node, LatentAttention):
            heads.append((int(node.n_head), 1))
        elif isinstance(node, Dense):
            widths.append(int(node.d_ff))
        elif isinstance(node, Experts):
            widths.append(int(node.d_expert))
            widths += [] if node.shared is None else [int(node.shared.d_shared)]
    base = heads[0][0] if heads else int(spec.d_model)
    return [
        tp for tp in divisors(base, LARGEST_TP)
        if all(h % tp == 0 and (k % tp == 0 or tp % k == 0) for h, k in heads)
        and all(width % tp == 0 for width in widths)
    ]  # fmt: skip
