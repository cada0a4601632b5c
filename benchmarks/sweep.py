"""Shapes a second on one core: through counts, through the whole cascade, and with every objective.

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
from scantling.search.forms import count, forms
from scantling.search.objectives import Costs
from scantling.search.space import space
from scantling.search.sweep import BATCH, feasibility, sweep
from scantling.spec import vary


def count_once(shapes, b):
    """Every count and cheap limit of every shape."""
    found = [forms(family, b) for family in shapes.families]
    for part in shapes.chunks():
        family = shapes.families[part.index]
        yield count(family, found[part.index], part.index, part.row, part.depth, b)


def masks_once(shapes, b):
    for counted in count_once(shapes, b):
        np.logical_and.reduce(list(feasibility(counted, b).values()))


def objectives_of(shapes, b, most):
    """Every objective of the first shapes of a space, whether they keep limits or not."""
    done = 0
    for counted in count_once(shapes, b):
        for start in range(0, len(counted.row), BATCH):
            dims = counted.dims(slice(start, start + BATCH))
            Costs(vary(counted.family.spec, **dims), b).values()
            done += len(dims["n_layer"])
            if done >= most:
                return done
    return done


def plain_pass():
    a = np.arange(BATCH, dtype=np.int64)
    for _ in range(100):
        a * 3 + 1


def best(function, *args, repeat=3):
    times = []
    for _ in range(repeat):
        start = time.process_time()
        result = function(*args)
        times.append(time.process_time() - start)
    return min(times), result


def main():
    yardstick, _ = best(plain_pass, repeat=20)
    for asked in ({"params": 7 * 10**9, "tokens": 2 * 10**12, "n_gpu": 64},
                  {"params": 30 * 10**9, "active": 3 * 10**9},
                  {"params": 671 * 10**9, "active": 37 * 10**9}):  # fmt: skip
        b = budget(**asked)
        shapes = space(b)
        counted_s, _ = best(masks_once, shapes, b)
        whole_s, swept = best(sweep, shapes, b)
        every_s, done = best(objectives_of, shapes, b, 200_000)
        print(asked)
        print(
            f"  {shapes.size:,} shapes, {swept.feasible:,} feasible, {len(swept.rows)} on the front"
        )
        for name, seconds, n in (("counts and cheap limits", counted_s, shapes.size),
                                 ("the whole cascade", whole_s, shapes.size),
                                 ("every objective of every shape", every_s, done)):  # fmt: skip
            batch = seconds / (n / BATCH)
            print(f"  {name}: {n / seconds / 1e6:.2f} million shapes a second; {BATCH:,} in "
                  f"{batch * 1e3:.2f} ms, {batch / yardstick:.2f} × a plain pass")  # fmt: skip
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of the process {peak:.0f} MiB")


if __name__ == "__main__":
    main()
