"""Training time and decode time of one model or a column, for a search that asks no plan."""

from __future__ import annotations

from scantling.arith import Num
from scantling.costs.time import total_time
from scantling.costs.train import Estimate, training_step
from scantling.hardware import Chip, cluster
from scantling.ops import operators
from scantling.spec import Spec, Workload
from scantling.spec.plan import Plan, Recipe

DAY_S = 86_400
TOKENS_PER_MICRO_BATCH = 32_768
"""Tokens of one chip's micro-batch, the middle of the systems behind the step constants."""
NODE = 8


def training_time(spec: Spec, tokens: float, chip: Chip, n_gpu: int, context: int,
                  dtype: str = "bf16") -> Estimate:  # fmt: skip
    """The time to train on so many tokens, split evenly over equal chips.

    The plan is the plainest: weights, gradients and states shared by all chips (FSDP), one
    micro-batch of 32,768 tokens a chip and step. Memory limits and other splits are for ``plan``.

    Example:
        >>> from scantling import catalog
        >>> from scantling.hardware import chip
        >>> t = training_time(catalog.model("llama-3.1-8b"), 2e12, chip("h100-sxm"), 64, 8192)
        >>> 20 < t.value_s / 86400 < 80
        True
    """
    batch = max(1, TOKENS_PER_MICRO_BATCH // context)
    node = NODE if n_gpu % NODE == 0 else 1 if n_gpu > NODE else n_gpu
    plan = Plan(dp=n_gpu, zero=3, micro_batch=batch)
    place = cluster(chip, n_gpu, node)
    one = training_step(spec, plan, Recipe(dtype=dtype), context, place)
    return one.step.times(tokens / one.tokens)


def decode_time(spec: Spec, chip: Chip, batch: int = 1, context: int = 8192, dtype: str = "bf16",
                kv_dtype: str = "bf16", n_gpu: int = 1) -> Estimate:  # fmt: skip
    """The time of one output token at a batch and a context, on one chip.

    With ``n_gpu`` chips the kernels are split evenly; what all-reduces add is not modelled here.

    Example:
        >>> from scantling import catalog
        >>> from scantling.hardware import chip
        >>> t = decode_time(catalog.model("llama-3.1-8b"), chip("h100-sxm"))
        >>> 0.005 < t.value_s < 0.012
        True
    """
    work = Workload("decode", batch, context, dtype=dtype, kv_dtype=kv_dtype)
    kernels_s: Num = total_time(operators(spec, work), work, chip).value_s
    c = chip.constants.step
    return Estimate(kernels_s / n_gpu * c.decode, kernels_s / n_gpu * c.decode_low,
                    kernels_s / n_gpu * c.decode_high)  # fmt: skip


__all__ = ["DAY_S", "Estimate", "decode_time", "training_time"]
