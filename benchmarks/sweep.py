"""Shapes a second on one core: parameters, FLOPs, KV bytes and loss, the FFN width solved.

    python benchmarks/sweep.py

The figure to read is the ratio to a plain NumPy pass in the same run (a multiply-add over the
same number of elements, 100 times), since machines differ; shapes a second and peak memory are
printed beside it.
"""

import os
import resource
import time

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

import numpy as np

from scantling.search.budget import budget
from scantling.search.space import CHUNK, space
from scantling.search.sweep import feasibility, price


def sweep_once(shapes, b):
    done = kept = 0
    for _, columns in shapes.chunks(CHUNK):
        priced = price(columns, b, shapes.multiple)
        keep = np.logical_and.reduce(list(feasibility(priced, b).values()))
        done += len(keep)
        kept += int(keep.sum())
    return done, kept


def plain_pass():
    a = np.arange(CHUNK, dtype=np.int64)
    for _ in range(100):
        a * 3 + 1


def best(function, *args, repeat=5):
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        result = function(*args)
        times.append(time.perf_counter() - start)
    return min(times), result


def main():
    b = budget(params=7_000_000_000, tokens=2 * 10**12, n_gpu=64)
    shapes = space(b)
    seconds, (done, kept) = best(sweep_once, shapes, b)
    yardstick, _ = best(plain_pass, repeat=20)
    per_chunk = seconds / (done / CHUNK)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{done:,} shapes, {kept:,} feasible: {done / seconds / 1e6:.2f} million shapes a second")
    print(f"a chunk of {CHUNK:,}: {per_chunk * 1e3:.2f} ms, {per_chunk / yardstick:.2f} × a plain "
          f"pass of 100 multiply-adds over it ({yardstick * 1e3:.2f} ms)")  # fmt: skip
    print(f"peak memory of the process {peak:.0f} MiB")


if __name__ == "__main__":
    main()
