"""Spaces of 10^5 to 10^8 shapes: seconds and memory grow in proportion, or less.

    python benchmarks/sweep_sizes.py            # here, up to 10^7
    python benchmarks/sweep_sizes.py pool 2     # two processes, up to 10^8

A mixture of 671 B with 37 B active, at ever more numbers of experts and of experts a token: every
pair of them adds 202,342 shapes. CPU seconds are of all processes, start-up and the space itself
included. What two cores printed with other programs running beside:

    shapes       wall s   CPU s   CPU us a shape   feasible   peak MiB
    202,342         1.2     0.5             2.34        538         60
    1,011,710       0.4     0.2             0.18      1,623         69
    10,117,100      6.7     3.1             0.31     15,195        282
    101,171,000    23.9    13.8             0.14     43,753        928
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
