"""Constants of matrix products, by the precision of their inputs."""

from __future__ import annotations

from scantling.hardware.constants.fitted import Fitted
from scantling.spec.workload import plain_dtype

REFERENCE = 8192
"""``matmul`` is the fraction that a product of so many rows, columns and depth reaches."""
TILE = 128
"""Edge of the output tile in which waves are counted."""
BLOCK_SCALED = {"fp8block", "mxfp8", "fp8b", "fp8blockwise"}
"""Spellings of FP8 with a scale for each block, without punctuation."""


class ProductConstants(Fitted, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
        spread_rows: (rows, log2 of a scale): how far off products of so many rows are.
        spread_s: (seconds of the lower bound, log2 of a scale): the same by length.
        below: The 90 % interval reaches down to time / exp(below × both scales).
        above: And up to time × exp(above × both scales).
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
    spread_rows: tuple[tuple[float, float], ...] = ((1, 0.0),)
    spread_s: tuple[tuple[float, float], ...] = ((1e-4, 0.0),)
    below: float = 0.2
    above: float = 0.2


class GemmConstants(ProductConstants, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What products reach: its own fields are those of 16-bit and wider inputs.

    Args:
        fp8: FP8 or INT8 with a scale for each tensor or row.
        fp8_block: FP8 with a scale for each block (DeepSeek-V3's 128 × 128, MXFP8).
        fp4: FP4 with a scale for each block.
    """

    fp8: ProductConstants
    fp8_block: ProductConstants
    fp4: ProductConstants

    def at(self, dtype: str) -> ProductConstants:
        """The constants of a precision.

        Example:
            >>> from scantling.hardware import chip
            >>> g = chip("h100-sxm").constants.gemm
            >>> g.at("mxfp8") == g.fp8_block, g.at("fp8_e4m3") == g.fp8, g.at("fp16") == g
            (True, True, True)
        """
        if "".join(c for c in dtype.lower() if c.isalnum()) in BLOCK_SCALED:
            return self.fp8_block
        plain = plain_dtype(dtype)
        if plain in {"fp8", "int8"}:
            return self.fp8
        return self.fp4 if plain in {"fp4", "int4"} else self

    def matmul_at(self, dtype: str) -> float:
        """The fraction of that dtype's peak a large product reaches."""
        return self.at(dtype).matmul

    def matmul_error_at(self, dtype: str) -> float:
        """The error of a product's time at that dtype."""
        return self.at(dtype).matmul_error
