"""Spaces of 10^5 to 10^8 shapes: seconds and memory grow in proportion, or less.

    python benchmarks/sweep_sizes.py            # here, up to 10^7
    python benchmarks/sweep_sizes.py pool 2     # two processes, up to 10^8

A mixture of 671 B with 37 B active, at ever more numbers of experts and of experts a token: every
pair of them adds 245,358 shapes. CPU seconds are of all processes, start-up and the space itself
included. What two cores printed, wall seconds with nothing else running beside, the rest with
other programs:

    shapes       wall s   CPU s   CPU us a shape   feasible   peak MiB
    245,358         0.3     0.4             1.68        556         62
    1,226,790       0.8     1.7             1.38      1,720        193
    12,267,900      1.4     2.7             0.22     15,730        311
    122,679,000     7.2    12.4             0.10     32,780       1111

With nothing beside, the last one took 13.7 CPU s and 1118 MiB.
"""

import os
import resource
import sys
import time

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

from scantling.search.budget import Range, budget
from scantling.search.space import space
from scantling.search.sweep import sweep

SIZES = {
    1: ((256,), (8,)),
    5: ((256,), range(6, 11)),
    50: (range(200, 280, 8), range(6, 11)),
    500: (range(104, 504, 8), range(4, 14)),
}
"""Numbers of experts and experts a token, by how many pairs there are."""


def cpu_s():
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def peak_mib(workers):
    """Of this process and as many as the largest it started."""
    own, child = (resource.getrusage(who).ru_maxrss for who in
                  (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))  # fmt: skip
    return (own + workers * child) / 1024


def main():
    engine = sys.argv[1] if len(sys.argv) > 1 else "here"
    workers = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    print("    shapes       wall s   CPU s   CPU us a shape   feasible   peak MiB")
    for pairs, (experts, top) in SIZES.items():
        if pairs > 100 and engine == "here":
            continue
        began, used = time.perf_counter(), cpu_s()
        b = budget(
            params=671 * 10**9, active=37 * 10**9, n_gpu=2048,
            bounded={"active_share": Range(0.001, 1)},
            listed={"n_expert": tuple(experts), "top_k": tuple(top)},
        )  # fmt: skip
        shapes = space(b)
        found = sweep(shapes, b, engine=engine, workers=workers)
        wall, cpu = time.perf_counter() - began, cpu_s() - used
        print(f"    {shapes.size:<11,}  {wall:6.1f}  {cpu:6.1f}   {cpu / shapes.size * 1e6:14.2f}"
              f"   {found.feasible:>8,}   {peak_mib(workers):8.0f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
