"""Constants of matrix products."""

from __future__ import annotations

from scantling.hardware.constants.fitted import Fitted
from scantling.spec.workload import plain_dtype


class GemmConstants(Fitted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of a chip a matrix product reaches.

    A product takes max(FLOPs / (matmul × rate), bytes / (bandwidth_factor × bandwidth)) +
    launch_s.

    Args:
        matmul: Fraction of the 16-bit peak.
        matmul_error: Mean absolute relative error of that time on large BF16 products.
        matmul_fp8: Fraction of the FP8 peak, scaling work counted in.
        matmul_fp8_error: Its error.
        bandwidth_factor: Fraction of the memory bandwidth.
        launch_s: What each kernel costs beside.
    """

    matmul: float
    matmul_error: float
    matmul_fp8: float
    matmul_fp8_error: float
    bandwidth_factor: float
    launch_s: float

    def matmul_at(self, dtype: str) -> float:
        """The fraction of that dtype's peak a large product reaches; FP4 is taken as FP8."""
        return self.matmul_fp8 if plain_dtype(dtype) in {"fp8", "fp4"} else self.matmul

    def matmul_error_at(self, dtype: str) -> float:
        """The error of a product's time at that dtype."""
        return self.matmul_fp8_error if plain_dtype(dtype) in {"fp8", "fp4"} else self.matmul_error
