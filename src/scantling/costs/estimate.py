"""Training time and decode time of one model or a column, for a search that asks no plan."""

from __future__ import annotations

import math

from scantling.arith import Num, round_up
from scantling.costs.count import flops
from scantling.costs.serve import Deployment, decode_step
from scantling.costs.time import total_time
from scantling.costs.train import Estimate, step_time
from scantling.hardware import Chip, cluster
from scantling.ops import operators
from scantling.spec import (
    Block,
    Branch,
    Dense,
    GroupedAttention,
    Layer,
    Norm,
    Rope,
    Run,
    Spec,
    Stack,
    Workload,
)
from scantling.spec.plan import Plan, Recipe

DAY_S = 86_400
REFERENCE_LAYERS, REFERENCE_WIDTH, REFERENCE_CONTEXT = 32, 4096, 4096
"""A plain decoder in the middle of sizes, whose MFU stands for a chip where no shape is known."""
TOKENS_PER_MICRO_BATCH = 32_768
"""Tokens of one chip's micro-batch, the middle of the systems behind the step constants."""
NODE = 8


def plain_plan(n_gpu: int, context: int, *, tp: int = 1, pp: int = 1, ep: int = 1) -> Plan:
    """A plan that asks no search: 32,768 tokens a chip and step, whatever the split.

    Alone it is the plainest: weights, gradients and states shared by all chips (FSDP), one
    micro-batch a step. With stages or a tensor group, optimizer states are shared by the replicas,
    and as many micro-batches of one sequence pass as the step's tokens make. Experts that are
    spread stay whole.

    Example:
        >>> plain_plan(64, 8192).micro_batch, plain_plan(64, 8192, tp=8, pp=2).n_micro_batch
        (4, 64)
    """
    batch = max(1, TOKENS_PER_MICRO_BATCH // context)
    if tp * pp == 1:
        return Plan(dp=n_gpu, zero=3, micro_batch=batch, ep=ep)
    return Plan(tp=tp, pp=pp, dp=n_gpu // (tp * pp), ep=ep, expert_tp=1 if ep > 1 else None,
                zero=1, n_micro_batch=batch * tp * pp)  # fmt: skip


def training_time(
    spec: Spec, tokens: Num, chip: Chip, n_gpu: int, context: int, dtype: str = "bf16",
    plan: Plan | None = None,
) -> Estimate:  # fmt: skip
    """The time to train on so many tokens with a plan: ``plain_plan`` unless given.

    Memory limits and the best of all splits are for ``plan``.

    Example:
        >>> from scantling import catalog
        >>> from scantling.hardware import chip
        >>> t = training_time(catalog.model("llama-3.1-8b"), 2e12, chip("h100-sxm"), 64, 8192)
        >>> 20 < t.value_s / 86400 < 80
        True
    """
    how = plain_plan(n_gpu, context) if plan is None else plan
    node = NODE if n_gpu % NODE == 0 else math.gcd(n_gpu, NODE)
    place = cluster(chip, n_gpu, n_gpu if n_gpu < NODE else node)
    return step_time(spec, how, Recipe(dtype=dtype), context, place).times(
        tokens / (how.global_batch * context)
    )


def reference_mfu(chip: Chip, n_gpu: int, dtype: str = "bf16") -> float:
    """The share of a chip's peak that training a 7B Llama on it reaches, attention in full.

    Example:
        >>> from scantling.hardware import chip
        >>> 0.3 < reference_mfu(chip("h100-sxm"), 64) < 0.6
        True
    """
    width = REFERENCE_WIDTH
    attention = GroupedAttention(width // 128, width // 128, 128, position=Rope())
    blocks = (Block((Branch(attention),), pre=Norm()),
              Block((Branch(Dense(round_up(8 * width // 3, 256))),), pre=Norm()))  # fmt: skip
    stack = Stack((Layer("layer", blocks),), (Run(("layer",), REFERENCE_LAYERS),))
    spec = Spec(d_model=width, vocab_size=32_000, decoder=stack)
    return training_mfu(spec, chip, n_gpu, REFERENCE_CONTEXT, dtype)


def training_mfu(spec: Spec, chip: Chip, n_gpu: int, context: int, dtype: str = "bf16") -> float:
    """The share of a chip's peak that training a model by the plainest plan reaches.

    FLOPs with attention in full and the head (``docs/flops.md``) over what the chips could do in
    the time of ``training_time``.
    """
    tokens = 10**9
    seconds = training_time(spec, tokens, chip, n_gpu, context, dtype).value_s
    one = flops(spec, 1, context)
    return float(one.train / one.tokens * tokens / (seconds * n_gpu * chip.rate(dtype)))


def decode_time(spec: Spec, chip: Chip, batch: int = 1, context: int = 8192, dtype: str = "bf16",
                kv_dtype: str = "bf16", n_gpu: int = 1) -> Estimate:  # fmt: skip
    """The time of one output token at a batch and a context, no prefills between.

    What ``serve`` says of it, on one copy of ``n_gpu`` chips (``serving_split``). Where a chip has
    no rate in 16 bits no engine of ``costs.serve`` runs: kernels one after another, on one chip.

    Example:
        >>> from scantling import catalog
        >>> from scantling.hardware import chip
        >>> t = decode_time(catalog.model("llama-3.1-8b"), chip("h100-sxm"))
        >>> 0.005 < t.value_s < 0.012
        True
    """
    if {"bf16", "fp16"} & set(chip.dtypes):
        tp, pp = serving_split(n_gpu)
        found = decode_step(spec, chip, Deployment(tp=tp, pp=pp, weights=dtype, cache=kv_dtype),
                            batch, context)  # fmt: skip
        return Estimate(found.value, found.low, found.high)
    work = Workload("decode", batch, context, dtype=dtype, kv_dtype=kv_dtype)
    kernels_s: Num = total_time(operators(spec, work), work, chip).value_s / n_gpu
    c = chip.constants.step
    return Estimate(kernels_s * c.decode, kernels_s * c.decode_low, kernels_s * c.decode_high)


def serving_split(n_gpu: int) -> tuple[int, int]:
    """Tensor group and stages of one copy on so many chips: a group stays inside a node of 8.

    Example:
        >>> serving_split(4), serving_split(16), serving_split(12)
        ((4, 1), (8, 2), (4, 3))
    """
    tp = n_gpu if n_gpu < NODE else math.gcd(n_gpu, NODE)
    return tp, n_gpu // tp


__all__ = ["DAY_S", "Estimate", "decode_time", "plain_plan", "reference_mfu", "serving_split",
           "training_mfu", "training_time"]  # fmt: skip
