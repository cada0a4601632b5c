"""Constants of matrix products, by the precision of their inputs."""

from __future__ import annotations

from scantling.hardware.constants.fitted import Scattered
from scantling.spec.workload import plain_dtype

REFERENCE = 8192
"""``matmul`` is the fraction that a product of so many rows, columns and depth reaches."""
TILE = 128
"""Edge of the output tile in which waves are counted."""
BLOCK_SCALED = {"fp8block", "mxfp8"}
"""Spellings of FP8 with a scale for each block, without punctuation."""


class ProductConstants(Scattered, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What products of one precision reach; ``costs.kernels.gemm`` has the formula.

    Args:
        matmul: Fraction of the peak that a product of 8192 × 8192 × 8192 reaches.
        matmul_error: Median absolute relative error of the time of products with at least 1024
            rows, of shapes the fit has not seen.
        small_error: The same with at most 256 rows.
        k_half: Depth at which half the rate of an endless one is reached.
        wave_half: Output, in waves of 128 × 128 tiles over all SMs, at which half is reached.
        droop: Power of the FLOPs by which a longer product is slower: a chip at its power limit.
        sharpness: p of the p-norm that joins compute and memory; a large one is their maximum.
        bandwidth_factor: Fraction of the memory bandwidth.
        launch_s: What each kernel costs beside.
        step_s: What each unit of depth costs one after another, in any product.
        quantise: Fraction of the bandwidth at which inputs are brought to this precision; 0 where
            they come in it.
        quantise_row: Elements that each row costs there beside its own.
        tiles: (rows, columns, rate) of the output tiles a library chooses among, their rates
            relative to the best; none where counting tiles did not lower the error.
        waste: Share of an unfilled tile and wave that is lost.
    """

    matmul: float
    matmul_error: float
    bandwidth_factor: float
    launch_s: float
    small_error: float = 0.15
    k_half: float = 0.0
    wave_half: float = 0.0
    droop: float = 0.0
    sharpness: float = 4.0
    step_s: float = 0.0
    quantise: float = 0.0
    quantise_row: float = 0.0
    tiles: tuple[tuple[int, int, float], ...] = ()
    waste: float = 0.0


class GroupedConstants(Scattered, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What products of routed experts reach, routing, gathering and scattering counted in.

    Args:
        matmul: Fraction of the peak.
        bandwidth_factor: Fraction of the memory bandwidth at which weights are read.
        launch_s: What each product costs beside.
        sharpness: p of the p-norm that joins compute and weights.
        pad_rows: Rows that each touched expert works out beside its own: an unfilled tile.
        passes: Times that the rows in and out of a product pass through memory.
        grain: Columns and depth are worked out in whole multiples of it.
        crooked: Factor on all of it where columns or depth are no multiples of 16 elements: what
            Triton cannot load as vectors.
        error: Median absolute relative error on models left out.
    """

    matmul: float
    bandwidth_factor: float
    launch_s: float
    sharpness: float
    pad_rows: float
    passes: float
    error: float
    grain: int = 1
    crooked: float = 1.0


class GemmConstants(ProductConstants, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What products reach: its own fields are those of 16-bit and wider inputs.

    Args:
        fp8: FP8 or INT8 with a scale for each tensor or row.
        fp8_block: FP8 with a scale for each block (DeepSeek-V3's 128 × 128, MXFP8).
        fp4: FP4 with a scale for each block.
        experts: Products of routed experts with 16-bit inputs.
        experts_fp8: The same with FP8 and a scale for each tensor.
        experts_fp8_block: The same with a scale for each block.
        experts_fp4: The same with FP4.
    """

    fp8: ProductConstants
    fp8_block: ProductConstants
    fp4: ProductConstants
    experts: GroupedConstants
    experts_fp8: GroupedConstants
    experts_fp8_block: GroupedConstants
    experts_fp4: GroupedConstants

    def at(self, dtype: str) -> ProductConstants:
        """The constants of products in a precision.

        Example:
            >>> from scantling.hardware import chip
            >>> g = chip("h100-sxm").constants.gemm
            >>> g.at("mxfp8") == g.fp8_block, g.at("fp8_e4m3") == g.fp8, g.at("fp16") == g
            (True, True, True)
        """
        name = precision(dtype)
        found: ProductConstants = getattr(self, name) if name else self
        return found

    def experts_at(self, dtype: str) -> GroupedConstants:
        """The constants of products of routed experts in a precision."""
        name = precision(dtype)
        found: GroupedConstants = getattr(self, f"experts_{name}" if name else "experts")
        return found

    def matmul_at(self, dtype: str) -> float:
        """The fraction of that dtype's peak a large product reaches."""
        return self.at(dtype).matmul

    def matmul_error_at(self, dtype: str) -> float:
        """The error of a product's time at that dtype."""
        return self.at(dtype).matmul_error


def precision(dtype: str) -> str:
    """Which narrow precision a dtype is: ``fp8``, ``fp8_block``, ``fp4``; empty for wider ones.

    Example:
        >>> [precision(dtype) for dtype in ("bf16", "fp8_e4m3", "fp8_block", "mxfp8", "nvfp4")]
        ['', 'fp8', 'fp8_block', 'fp8_block', 'fp4']
    """
    if "".join(c for c in dtype.lower() if c.isalnum()) in BLOCK_SCALED:
        return "fp8_block"
    return {"fp8": "fp8", "int8": "fp8", "fp4": "fp4", "int4": "fp4"}.get(plain_dtype(dtype), "")
