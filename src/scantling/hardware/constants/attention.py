"""Constants of attention kernels."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from scantling.arith import Num
from scantling.hardware.constants.fitted import Fitted
from scantling.hardware.curve import Points, interpolate

Kernel = Literal["unfused", "flash", "flash2", "flash3", "cudnn"]
"""Generations of training kernels."""


class TrainingKernel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one generation of kernels reaches in training.

    Args:
        name: Which.
        forward: (head width, fraction of the 16-bit peak) of the tiles it computes.
        backward: The same of the backward pass, five products for the forward pass's two.
        tail: Share of the longest block's time that no other block hides.
        launches: Kernels of a forward pass.
        passes: How often queries, outputs, keys and values pass through memory.
        scores: Bytes moved for each score, forward, without a mask; 0 where scores stay on chip.
        mask: Bytes more where a mask is applied as a kernel of its own.
        error: Mean absolute relative error.
        spread: How far work or scores, and the rest, may lie off: the logarithm of each one's
            factor, for a 90 % interval of their sum.
        kind: Whether it was fitted on such a chip, or carried over.
    """

    name: Kernel
    forward: Points
    backward: Points
    tail: float
    launches: float = 1.0
    passes: float = 1.0
    scores: float = 0.0
    mask: float = 0.0
    error: float = 0.1
    spread: tuple[float, float] = (0.2, 0.4)
    kind: Literal["fitted", "assumed"] = "fitted"


class AttentionConstants(Fitted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of a chip attention reaches; ``costs/kernels/attention.py`` has the formulas.

    Args:
        prefill: (head width, fraction of the 16-bit peak) over the tiles a kernel computes.
        prefill_tail: Share of the longest block's time that no other block hides.
        prefill_query_passes: How often queries and outputs pass through memory.
        prefill_kv_passes: How often keys and values do, their way into the cache counted in.
        prefill_block_s: What a block costs the SM it runs on.
        prefill_token_s: What writing a token into the cache costs an SM beside its bytes.
        prefill_launch_s: What a call costs.
        prefill_spread: How far launch, work, tail, memory and blocks may lie off: the logarithm
            of each one's factor, for a 90 % interval of their sum.
        prefill_error: Mean absolute relative error from 2048 queries on.
        decode_bandwidth: Fraction of the memory bandwidth that reading a long cache reaches.
        decode_compute: Fraction of the 16-bit peak over queries padded to tiles, which only many
            heads on one latent come near.
        decode_ramp: Tiles of 64 keys an SM needs to reach half of that.
        decode_query_passes: How often queries and outputs pass through memory, with the partial
            outputs of split caches.
        decode_block_s: (head width, seconds) one sequence and KV head costs the SM it runs on.
        decode_step_s: What each doubling of the keys beyond 64 adds.
        decode_launch_s: What a call costs.
        decode_spread: How far launch, steps, reading, blocks and outputs may lie off.
        decode_error: Mean absolute relative error.
        training: What each generation of training kernels reaches.
    """

    prefill: Points
    prefill_tail: float
    prefill_query_passes: float
    prefill_kv_passes: float
    prefill_block_s: float
    prefill_token_s: float
    prefill_launch_s: float
    prefill_spread: tuple[float, float, float, float, float]
    prefill_error: float
    decode_bandwidth: float
    decode_compute: float
    decode_ramp: float
    decode_query_passes: float
    decode_block_s: Points
    decode_step_s: float
    decode_launch_s: float
    decode_spread: tuple[float, float, float, float, float]
    decode_error: float
    training: tuple[TrainingKernel, ...]

    def prefill_at(self, d_head: Num) -> Num:
        """The fraction of the 16-bit peak prefill reaches at a head width, or an array of them."""
        return interpolate(d_head, self.prefill)

    def kernel(self, name: str) -> TrainingKernel:
        """A generation of training kernels."""
        return next(k for k in self.training if k.name == name)
