"""Products and the light work between them, row by row of the public tables."""

from __future__ import annotations

from scantling.costs.kernels import gemm_time
from scantling.hardware import chip
from scantling.spec.workload import plain_dtype
from scantling.validate.table import CsvRow, NotScoredError, Scored, reads

US = 1e6


@reads("gemm_aiconfigurator.csv", "latency, µs")
def gemm(row: CsvRow) -> Scored:
    """The latency of one product."""
    m, n, k = (int(row[x]) for x in "mnk")
    time = gemm_time(chip(row["gpu"]), row["dtype"], m, n, k)
    return Scored(
        row=row["row_id"], group=f"{n}x{k}", actual=float(row["latency_us"]),
        predicted=float(time.value_s) * US, low=float(time.low_s) * US,
        high=float(time.high_s) * US,
    )  # fmt: skip


@reads("gemm_mamf_best_shape.csv", "rate, TFLOP/s")
def best_shape(row: CsvRow) -> Scored:
    """The rate of the best product that a search over shapes found: a ceiling of ours."""
    m, n, k = (int(row[x]) for x in "mnk")
    one = chip(row["accelerator"])
    if plain_dtype(row["dtype"]) not in one.dtypes:
        raise NotScoredError(f"{one.key} has no rate for {row['dtype']}")
    time = gemm_time(one, row["dtype"], m, n, k)
    work = 2 * m * n * k / 1e12
    return Scored(
        row=row["row_id"], group=one.key, actual=float(row["achieved_tflops"]),
        predicted=work / float(time.value_s), low=work / float(time.high_s),
        high=work / float(time.low_s),
    )  # fmt: skip
