"""Fronts from 0.1 B to 1 T, dense and with experts: how long, how exact, how fast.

python benchmarks/sizes.py
"""

import os
import time

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

from scantling.costs.count import parameters
from scantling.search import design

DENSE = (0.1, 0.5, 1, 3, 7, 13, 34, 70, 200, 400, 1000)
SPARSE = ((30, 3), (235, 22), (671, 37), (1000, 32))


def main():
    print("size        shapes tried   on the front  printed  worst total  worst active  choice, s")
    sizes = [(f"{n:g}B", {"params": n * 1e9}) for n in DENSE]
    sizes += [(f"{n}B-A{a}B", {"params": n * 1e9, "active": a * 1e9}) for n, a in SPARSE]
    for label, limits in sizes:
        started = time.perf_counter()
        front = design(**limits, runtime="vllm", baselines=())
        seconds = time.perf_counter() - started
        built = [parameters(c.spec) for c in front.candidates]
        total = max(abs(p.total / front.budget.params - 1) for p in built)
        active = "            "
        if "active" in limits:
            active = f"{max(abs(p.active / limits['active'] - 1) for p in built):12.2%}"
        counts = f"{front.swept.evaluated:13,} {len(front.swept.rows):14,} {len(built):8}"
        print(f"{label:10} {counts} {total:12.3%} {active}  {front.chosen.name}, {seconds:.1f}")


if __name__ == "__main__":
    main()
