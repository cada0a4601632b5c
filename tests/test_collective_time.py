"""Collectives take the time that was measured within a node, and what the ways allow between."""

from __future__ import annotations

import csv
import importlib
from pathlib import Path

import pytest

from scantling.costs.kernels.collective import ROUNDS, collective_time
from scantling.hardware import chip, cluster
from scantling.validate.table import TABLES, NotScoredError, scores

importlib.import_module("scantling.validate.collective")
MEASURED = Path(__file__).parents[2] / "shared" / "data" / "measured"
needs_tables = pytest.mark.skipif(not MEASURED.exists(), reason=f"{MEASURED} is not here")
KINDS = [*ROUNDS, "send"]
GIB = 2**30


def scored(table):
    reader = next(r for r in TABLES if r.table == table)
    with (MEASURED / table).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return list(zip(rows, scores(reader, rows), strict=True))


def error(found):
    return sum(abs(s.predicted / s.actual - 1) for s in found) / len(found)


@needs_tables
def test_large_collectives_within_a_node_take_what_was_measured():
    found = scored("comm_nccl_aiconfigurator.csv")
    kept = [(r, s) for r, s in found if not isinstance(s, NotScoredError)]
    for gpu in {r["gpu"] for r, _ in kept}:
        large = [s for r, s in kept if r["gpu"] == gpu and int(r["message_bytes"]) >= 2**24]
        assert error(large) <= 0.08
    held = sum(s.low <= s.actual <= s.high for _, s in kept) / len(kept)
    assert 0.85 <= held <= 0.97


@needs_tables
def test_rows_over_pcie_are_left_out_with_the_reason_and_no_others_are():
    found = scored("comm_nccl_aiconfigurator.csv")
    left = [(r, s) for r, s in found if isinstance(s, NotScoredError)]
    assert {r["gpu"] for r, _ in left} == {"L40S"}
    assert all(s.excluded and "PCIe" in str(s) for _, s in left)


@needs_tables
def test_rows_over_pcie_lie_in_the_wide_interval_of_a_chip_behind_its_host():
    """They are no score, but the interval has to say how bad it can get."""
    names = {"alltoall": "all_to_all"}
    held = []
    for row, _ in scored("comm_nccl_aiconfigurator.csv"):
        if row["gpu"] == "L40S" and int(row["message_bytes"]) >= 2**24:
            kind = names.get(row["op_name"], row["op_name"])
            size, ranks = float(row["message_bytes"]), int(row["num_gpus"])
            t = collective_time(cluster("l40s", 8), kind, size, ranks)
            held.append(t.low_s <= float(row["latency_us"]) / 1e6 <= t.high_s)
    assert sum(held) / len(held) >= 0.75


@needs_tables
def test_a_ring_and_a_switch_on_eight_h200_take_what_an_independent_table_says():
    found = [s for _, s in scored("comm_allreduce_mleng.csv")]
    kept = [s for s in found if not isinstance(s, NotScoredError)]
    assert len(kept) >= 10
    assert error(kept) <= 0.06
    assert all(s.excluded for s in found if isinstance(s, NotScoredError))


def test_eight_b200_reach_what_a_public_benchmark_reached():
    """839 GB/s by the count of a ring for 16 GiB (ml-engineering, network benchmarks)."""
    size = 16 * GIB
    time = collective_time(cluster("b200-sxm", 8), "all_reduce", size, 8).value_s
    assert 2 * 7 / 8 * size / time == pytest.approx(839e9, rel=0.03)


def test_four_nodes_reach_most_of_their_ways_into_the_network():
    """32 B200 with 400 Gb/s each reach 377 GB/s by the count of a ring (same source): 94 %."""
    size = 16 * GIB
    time = collective_time(cluster("b200-sxm", 32), "all_reduce", size, 32).value_s
    assert 2 * 31 / 32 * size / time == pytest.approx(377e9, rel=0.05)


@pytest.mark.parametrize("name", ["a100-sxm-80gb", "h100-sxm", "b200-sxm", "l40s", "mi300x"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("ranks", "stride"), [(2, 1), (8, 1), (2, 8), (16, 1), (8, 4)])
def test_bounds_hold_the_value_and_its_interval(name, kind, ranks, stride):
    if kind == "send" and ranks != 2:
        pytest.skip("a send has two ends")
    where = cluster(name, 64)
    for size in (2**10, 2**20, 2**30):
        t = collective_time(where, kind, size, ranks, stride)
        assert 0 < t.lower_s <= t.low_s < t.value_s < t.high_s <= t.upper_s


@pytest.mark.parametrize("kind", ROUNDS)
def test_more_bytes_never_take_less(kind):
    for where in (cluster("h100", 8), cluster("h100", 64)):
        times = [collective_time(where, kind, 2**n, where.n_gpu).value_s for n in range(8, 35)]
        assert times == sorted(times)


@pytest.mark.parametrize("kind", ROUNDS)
def test_a_group_that_spans_nodes_takes_longer_than_one_that_does_not(kind):
    inside = collective_time(cluster("h100", 16), kind, GIB, 8).value_s
    spread = collective_time(cluster("h100", 16), kind, GIB, 8, 2).value_s
    assert spread > 1.5 * inside


def test_ranks_that_share_a_node_share_the_work_between_nodes():
    """Sixteen neighbours have eight ways out of each node; sixteen one to a node have one each."""
    together = collective_time(cluster("h100", 128), "all_reduce", GIB, 16).value_s
    alone = collective_time(cluster("h100", 128), "all_reduce", GIB, 16, 8).value_s
    assert alone / together == pytest.approx(8, rel=0.1)


def test_oversubscription_slows_an_exchange_and_not_a_ring():
    full, thin = cluster("h100", 64), cluster("h100", 64, oversubscription=2.0)
    times = {
        kind: [collective_time(where, kind, GIB, 64).value_s for where in (full, thin)]
        for kind in ("all_reduce", "all_to_all")
    }
    assert times["all_reduce"][0] == times["all_reduce"][1]
    assert times["all_to_all"][1] / times["all_to_all"][0] == pytest.approx(2, rel=0.05)


def test_only_a_switch_that_reduces_beats_the_ring():
    for name, beats in (("a100-sxm-80gb", False), ("h100-sxm", True)):
        where = cluster(name, 8)
        assert (chip(name).constants.collective.multicast is not None) is beats
        best, ring = (
            collective_time(where, "all_reduce", GIB, 8, algorithm=a).value_s
            for a in (None, "ring")
        )
        assert (best < ring) is beats


def test_a_column_of_sizes_takes_what_each_takes():
    np = pytest.importorskip("numpy")
    sizes = np.array([2**10, 2**20, 2**26, 2**32], dtype=np.int64)
    for where in (cluster("h100", 8), cluster("h100", 32)):
        column = collective_time(where, "all_reduce", sizes, where.n_gpu)
        for i, size in enumerate(sizes):
            one = collective_time(where, "all_reduce", int(size), where.n_gpu)
            for field in ("lower_s", "low_s", "value_s", "high_s"):
                assert getattr(column, field)[i] == pytest.approx(getattr(one, field), rel=1e-12)
