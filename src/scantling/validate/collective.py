"""Tables of collectives: within one node by size and ranks, and a few between nodes."""

from __future__ import annotations

import re

from scantling.costs.kernels.collective import Algorithm, Collective, collective_time
from scantling.hardware import Chip, chip, cluster
from scantling.validate.table import CsvRow, NotScoredError, Scored, reads

KINDS: dict[str, Collective] = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}  # fmt: skip
NODE = re.compile(r"(\d+)x (.+) NVLink\d")


@reads("comm_nccl_aiconfigurator.csv", "collective within a node, s")
def within_node(row: CsvRow) -> Scored:
    """``message_bytes`` is what the collective holds in all; the source counts elements."""
    one = chip(row["gpu"])
    if not _linked(one):
        reason = (
            "over PCIe through the host: bandwidth collapses to 1 to 5 GB/s, a fault of that box"
        )
        raise NotScoredError(reason, excluded=True)
    kind, ranks = KINDS[row["op_name"]], int(row["num_gpus"])
    group, actual = f"{row['op_name']} {ranks} {row['gpu']}", float(row["latency_us"]) / 1e6
    size = float(row["message_bytes"])
    return _scored(row["row_id"], group, one, kind, size, ranks, actual, None)


@reads("comm_allreduce_mleng.csv", "all-reduce, s")
def one_size(row: CsvRow) -> Scored:
    """``algbw`` is the message over the time."""
    named = NODE.fullmatch(row["system"])
    if named is None:
        raise NotScoredError("the table names neither chip nor network of it", excluded=True)
    algorithm: Algorithm | None = None if row["algo"] == "NVLS" else "ring"
    size, ranks = float(row["bytes"]), int(row["n_gpus"])
    actual = size / (float(row["algbw_GBps"]) * 1e9)
    name = f"{row['system']} {ranks} {row['algo']} {row['bytes']}"
    return _scored(name, row["algo"], chip(named[2]), KINDS[row["collective"]], size, ranks,
                   actual, algorithm)  # fmt: skip


def _linked(one: Chip) -> bool:
    """Whether chips reach each other without the host."""
    return one.link_kind is not None and not one.link_kind.startswith("PCIe")


def _scored(
    name: str, group: str, one: Chip, kind: Collective, size: float, ranks: int, actual: float,
    algorithm: Algorithm | None,
) -> Scored:  # fmt: skip
    time = collective_time(cluster(one, 8), kind, size, ranks, algorithm=algorithm)
    return Scored(row=name, group=group, actual=actual, predicted=float(time.value_s),
                  low=float(time.low_s), high=float(time.high_s))  # fmt: skip
