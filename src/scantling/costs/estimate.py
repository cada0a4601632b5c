"""Training time and decode time of one model or a column: kernels times a measured factor."""

from __future__ import annotations

import functools

import msgspec
from msgspec import Struct

from scantling.arith import Num
from scantling.costs.time import total_time
from scantling.hardware import Chip
from scantling.ops import operators
from scantling.sources import read_data
from scantling.spec import Spec, Workload

DAY_S = 86_400
TOKENS_PER_MICRO_BATCH = 32_768
"""Tokens of one chip's micro-batch, the middle of the systems behind the step factor."""


class StepFactor(Struct, frozen=True, forbid_unknown_fields=True):
    """What a whole step takes over its kernels, with the range it was measured in."""

    factor: float
    low: float
    high: float
    error: float
    rows: int
    source: str


@functools.cache
def step_factors() -> dict[str, dict[str, StepFactor]]:
    """The factors by phase and architecture."""
    return msgspec.convert(read_data("time.toml"), dict[str, dict[str, StepFactor]])


def step_factor(phase: str, chip: Chip) -> StepFactor:
    """The factor of a phase on a chip; an unmeasured architecture has the default, wider."""
    by_architecture = step_factors()[phase]
    return by_architecture.get(chip.architecture, by_architecture["default"])


class Estimate(Struct, frozen=True):
    """A time in seconds with its interval."""

    value_s: Num
    low_s: Num
    high_s: Num

    def times(self, factor: float) -> Estimate:
        """The same for another amount of work."""
        return Estimate(self.value_s * factor, self.low_s * factor, self.high_s * factor)


def training_time(spec: Spec, tokens: float, chip: Chip, n_gpu: int, context: int,
                  dtype: str = "bf16") -> Estimate:  # fmt: skip
    """The time to train on so many tokens, split evenly over equal chips.

    Kernels of one micro-batch, forward and backward, times the factor a step takes over them,
    times the micro-batches each chip runs. Splitting itself costs what it cost on the systems
    behind the factor; memory limits and other splits are not modelled here.

    Example:
        >>> from scantling import catalog
        >>> from scantling.hardware import chip
        >>> t = training_time(catalog.model("llama-3.1-8b"), 2e12, chip("h100-sxm"), 64, 8192)
        >>> 20 < t.value_s / 86400 < 80
        True
    """
    batch = max(1, TOKENS_PER_MICRO_BATCH // context)
    work = Workload("train", batch, context, dtype=dtype)
    kernels_s = total_time(operators(spec, work), work, chip).value_s
    share = tokens / (batch * context * n_gpu)
    return _scaled(kernels_s * share, step_factor("training", chip))


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
    kernels_s = total_time(operators(spec, work), work, chip).value_s
    return _scaled(kernels_s / n_gpu, step_factor("decode", chip))


def _scaled(kernels_s: Num, f: StepFactor) -> Estimate:
    return Estimate(kernels_s * f.factor, kernels_s * f.low, kernels_s * f.high)
