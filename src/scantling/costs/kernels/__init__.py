"""What one kernel takes: products, attention, work that moves bytes, collectives."""

from scantling.costs.kernels.attention import Shape, decode_time, prefill_time, training_time
from scantling.costs.kernels.collective import collective_time
from scantling.costs.kernels.elementwise import elementwise_time
from scantling.costs.kernels.gemm import gemm_time
from scantling.costs.kernels.time import Time

__all__ = [
    "Shape",
    "Time",
    "collective_time",
    "decode_time",
    "elementwise_time",
    "gemm_time",
    "prefill_time",
    "training_time",
]
