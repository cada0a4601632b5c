"""A spec as flags of ``vllm serve``."""

from __future__ import annotations

import json
import shlex
from typing import Any

from msgspec import Struct

from scantling.formats import hf
from scantling.formats.context import far_rope
from scantling.formats.hf.layout import thaw
from scantling.formats.registry import Exported, register
from scantling.formats.target import context_of, scaling_of
from scantling.ops import operators
from scantling.spec import (
    Dense,
    Experts,
    GroupedAttention,
    LatentAttention,
    Spec,
    Workload,
    divisors,
)
from scantling.spec.vary import nodes

LARGEST_TP = 64
ONLINE = {"fp8": "fp8", "nf4": "bitsandbytes"}
"""Schemes that ``vllm serve`` makes of a checkpoint in 16 bits as it loads it."""


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
    lines = flag_lines({k: v for k, v in values.items() if not isinstance(v, list)})
    lines.insert(min(1, len(lines)), "--tensor-parallel-size 1")
    sizes = ", ".join(map(str, values["tensor-parallel-size"]))
    notes = (
        f"tensor-parallel sizes that divide heads and widths: {sizes}",
        f"it reads the config of {architecture}: write it with --to hf",
        *stack_notes(spec),
    )
    return Exported("vllm", values, " \\\n".join(lines) + "\n", notes)


def stack_notes(spec: Spec) -> tuple[str, ...]:
    """What the stacks of a model mean for an engine that is made for decoders.

    Example:
        >>> from scantling import catalog
        >>> stack_notes(catalog.model("llama-3.1-8b"))
        ()
    """
    if spec.encoder is not None:
        told = "an encoder beside a decoder: engines run few of this kind, most of them for speech"
        return (told,)
    if not any(op.cache is not None for op in operators(spec, Workload("decode", 1, 1))):
        return ("an encoder alone makes no tokens: --runner pooling serves its vectors and scores",)
    return ()


def flag_lines(values: dict[str, Any]) -> list[str]:
    """Each setting as a flag; True is the flag alone.

    Example:
        >>> flag_lines({"max-model-len": 8192, "enforce-eager": True})
        ['--max-model-len 8192', '--enforce-eager']
    """
    return [
        f"--{key}" if v is True else
        f"--{key} {shlex.quote(json.dumps(v) if isinstance(v, dict) else str(v))}"
        for key, v in values.items()
    ]  # fmt: skip


class Deployed(Struct, frozen=True, kw_only=True):
    """What ``vllm serve`` is told of one replica.

    Args:
        tp: Tensor-parallel degree.
        pp: Pipeline stages.
        dp: Groups with attention of their own.
        experts_whole: Whether experts are spread whole over the chips.
        context: Tokens of the longest sequence.
        sequences: At once, in each group.
        chunk: Tokens of one step.
        share: Of the memory that it may fill.
        cache: Dtype of keys and values.
        quant: Scheme of the weights.
        gguf: Whether that is a mix of llama.cpp, which comes as one file.
        eager: Whether no graphs are captured.
        adapters: Low-rank adapters at once.
        rank: Their rank.
        guesses: Tokens guessed ahead.
    """

    tp: int
    pp: int
    dp: int
    experts_whole: bool
    context: int
    sequences: int
    chunk: int
    share: float
    cache: str
    quant: str
    gguf: bool = False
    eager: bool = False
    adapters: int = 0
    rank: int = 16
    guesses: int = 0


def deployed_flags(d: Deployed) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The flags of a deployment, and what no flag says.

    Example:
        >>> flags, _ = deployed_flags(Deployed(
        ...     tp=4, pp=1, dp=2, experts_whole=True, context=32768, sequences=64, chunk=8192,
        ...     share=0.9, cache="fp8", quant="fp8-block"))
        >>> flags["tensor-parallel-size"], flags["enable-expert-parallel"], flags["max-num-seqs"]
        (4, True, 64)
    """
    values: dict[str, Any] = {
        "max-model-len": d.context, "max-num-seqs": d.sequences,
        "max-num-batched-tokens": d.chunk, "gpu-memory-utilization": d.share,
        "tensor-parallel-size": d.tp,
    }  # fmt: skip
    notes = []
    sizes = {"pipeline-parallel-size": d.pp, "data-parallel-size": d.dp}
    values |= {key: n for key, n in sizes.items() if n > 1}
    if d.experts_whole:
        values["enable-expert-parallel"] = True
    if d.cache.startswith("fp8"):
        values["kv-cache-dtype"] = "fp8"
    elif d.cache not in {"bf16", "fp16"}:
        notes.append(f"a cache in {d.cache} has no flag")
    if d.quant in ONLINE:
        values["quantization"] = ONLINE[d.quant]
    elif d.gguf:
        notes.append(
            f"serve one GGUF file in {d.quant} in place of the model's folder, with --tokenizer; "
            "this reader is experimental and knows few model types"
        )
    elif d.quant not in {"bf16", "fp16", "fp32"}:
        notes.append(f"serve a checkpoint that is packed in {d.quant}: its config says so")
    if d.quant == "fp16":
        values["dtype"] = "float16"
    if d.eager:
        values["enforce-eager"] = True
    if d.adapters:
        values |= {"enable-lora": True, "max-loras": d.adapters, "max-lora-rank": d.rank}
    if d.guesses:
        notes.append(f"{d.guesses} guessed tokens: --speculative-config names the method and model")
    return values, tuple(notes)


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
