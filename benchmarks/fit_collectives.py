"""Fits the constants of collectives to a folder of public tables, and says how wrong they are.

    python benchmarks/fit_collectives.py FOLDER

One set a family of chips, by robust least squares on the logarithm of the time, through the
function that predicts. Message sizes are left out in turn for a chip that was measured; whole
chips for one that was not. Chips over PCIe are left out: their bandwidth collapses with the ranks.
"""

import csv
import sys
from pathlib import Path

import numpy as np
from fit_attention import spread
from msgspec.structs import asdict, replace
from scipy.optimize import least_squares

from scantling.costs.kernels.collective import _inside, collective_time
from scantling.hardware import chip, cluster
from scantling.hardware.constants.collective import Multicast, Rings

KINDS = {"all_reduce": "all_reduce", "all_gather": "all_gather",
         "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all"}  # fmt: skip
FAMILIES = {"8.0": ["A100-SXM-80GB"], "9.0": ["H100-SXM-80GB", "H200-SXM"]}
LIMITS = {
    "latency_s": (5e-6, 5e-7, 1e-4), "hop_s": (1e-6, 1e-8, 2e-5), "quick": (0.3, 0.02, 1.2),
    "chunk_s": (1e-5, 1e-8, 1e-4), "chunk_hop_s": (1e-6, 1e-9, 2e-5), "plain": (0.78, 0.3, 1.2),
    "own": (0.7, 0.1, 1.0001),
}  # fmt: skip
SWITCH = {"latency_s": (4e-5, 1e-6, 1e-4), "factor": (0.58, 0.2, 1)}
LARGE = 2**24


def read(folder):
    path = Path(folder) / "comm_nccl_aiconfigurator.csv"
    with path.open(encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if not r["gpu"].startswith("L40S")]
    return {
        "gpu": np.array([r["gpu"] for r in rows]),
        "kind": np.array([KINDS[r["op_name"]] for r in rows]),
        "ranks": np.array([int(r["num_gpus"]) for r in rows]),
        "size": np.array([int(r["message_bytes"]) for r in rows]),
        "actual": np.array([float(r["latency_us"]) for r in rows]) / 1e6,
    }


def take(t, mask):
    return {field: values[mask] for field, values in t.items()}


def predicted(t, constants):
    out = np.empty(len(t["actual"]))
    parts = np.empty((4, len(out)))
    keys = sorted({*zip(t["gpu"], t["kind"], t["ranks"], strict=True)})
    for gpu, kind, ranks in keys:
        mask = (t["gpu"] == gpu) & (t["kind"] == kind) & (t["ranks"] == ranks)
        one = chip(str(gpu))
        own = asdict(one.constants.collective) | constants
        if not has_switch(gpu):
            own["multicast"] = None
        one = replace(one, constants=replace(one.constants, collective=replace(
            one.constants.collective, **own)))  # fmt: skip
        c = cluster(one, 8)
        sizes, link = t["size"][mask].astype(float), one.link_bytes_per_s
        out[mask] = collective_time(c, str(kind), sizes, int(ranks)).value_s
        terms, _ = _inside(one.constants.collective, str(kind), sizes, int(ranks), link, None)
        for row, term in zip(parts, terms, strict=True):
            row[mask] = term
    return out, parts


def has_switch(gpu):
    """Whether the switch of its family reduces."""
    return float(chip(str(gpu)).compute_capability) >= 9


def unpack(x):
    x = np.exp(x)
    n = len(LIMITS)
    found = {kind: Rings(**dict(zip(LIMITS, x[i * n : i * n + n], strict=True)))
             for i, kind in enumerate(KINDS.values())}  # fmt: skip
    return found | {"multicast": Multicast(**dict(zip(SWITCH, x[-2:], strict=True)))}


def fit(t):
    limits = np.log([*LIMITS.values()] * len(KINDS) + [*SWITCH.values()])
    weight = np.where(t["size"] >= LARGE, 1.5, 1)
    actual = np.log(t["actual"])
    return unpack(least_squares(
        lambda x: weight * (np.log(predicted(t, unpack(x))[0]) - actual), limits[:, 0],
        bounds=limits[:, 1:].T, loss="soft_l1", f_scale=0.1,
    ).x)  # fmt: skip


def show(name, ratio, size):
    error, large, small = np.abs(ratio - 1), size >= LARGE, size < 2**20
    middle = error[~large & ~small].mean()
    print(f"{name}: from 16 MiB mean {error[large].mean():.1%}, median "
          f"{np.median(error[large]):.1%}; below 1 MiB {error[small].mean():.1%}; "
          f"between {middle:.1%}")  # fmt: skip


def main():
    t = read(sys.argv[1])
    for family, gpus in FAMILIES.items():
        own = take(t, np.isin(t["gpu"], gpus))
        ratio = np.empty(len(own["actual"]))
        for i in range(4):
            mask = np.log2(own["size"]).astype(int) % 4 == i
            ratio[mask] = predicted(take(own, mask), fit(take(own, ~mask)))[0] / own["actual"][mask]
        found = fit(own)
        show(f"{family}, sizes left out", ratio, own["size"])
        print("  spread, inside, half-width:", spread(ratio, predicted(own, found)[1], 0.88))
        for kind, r in found.items():
            print(f"  {kind!r}: {[float(f'{v:.3g}') for v in asdict(r).values()]},")
    print("\nall:", {k: [float(f"{v:.3g}") for v in asdict(r).values()] for k, r in fit(t).items()})
    for gpu in np.unique(t["gpu"]):
        left = t["gpu"] == gpu
        part = take(t, left)
        found = fit(take(t, ~left))
        value, parts = predicted(part, found)
        show(f"{gpu}, left out", value / part["actual"], part["size"])
        print("  spread, inside, half-width:", spread(value / part["actual"], parts, 0.88))


if __name__ == "__main__":
    main()
