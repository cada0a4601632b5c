"""Training memory and step time of columns of shapes, on one core.

    python benchmarks/columns.py

Shapes of one structure in chunks of 16,384, a plan for each line; the ratio to a plain NumPy pass
of 100 multiply-adds over a chunk is the figure to read, since machines differ.
"""

import os
import time

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

import numpy as np

from scantling import catalog
from scantling.costs.memory import training_memory
from scantling.costs.train import training_step
from scantling.hardware import cluster
from scantling.search.sweep import BATCH as CHUNK
from scantling.spec import vary
from scantling.spec.plan import Plan, Recipe

CONTEXT = 8192
MACHINES = cluster("h100-sxm", 64)
DENSE, ROUTED = "llama-3.1-8b", "mixtral-8x7b"
PLANS = {
    "dense, DP 64, ZeRO-3": (DENSE, Plan(dp=64, zero=3, recompute="full")),
    "dense, TP 8, DP 8": (DENSE, Plan(tp=8, dp=8)),
    "dense, TP 4, PP 4, DP 4": (DENSE, Plan(tp=4, pp=4, dp=4, n_micro_batch=16)),
    "experts, PP 4, DP 16, EP 8": (ROUTED, Plan(pp=4, dp=16, ep=8, n_micro_batch=16)),
}


def column(rng, name):
    """A chunk of shapes of one structure; the chunks differ, so that nothing is remembered."""
    heads = 8 * rng.integers(2, 9, CHUNK)
    width = {"d_ff" if name == DENSE else "d_expert": 512 * rng.integers(8, 65, CHUNK)}
    return vary(catalog.model(name), n_layer=4 * rng.integers(4, 25, CHUNK), n_head=heads,
                d_model=128 * heads, **width)  # fmt: skip


def best(function, arguments):
    times = []
    for argument in arguments:
        start = time.process_time()
        function(argument)
        times.append(time.process_time() - start)
    return min(times)


def plain_pass(_):
    a = np.arange(CHUNK, dtype=np.int64)
    for _ in range(100):
        a * 3 + 1


def main():
    rng = np.random.default_rng(0)
    yardstick = best(plain_pass, range(20))
    recipe = Recipe()
    for name, (model, plan) in PLANS.items():
        memory = best(lambda s, p=plan: training_memory(s, p, recipe, CONTEXT),
                      [column(rng, model) for _ in range(5)])  # fmt: skip
        step = best(lambda s, p=plan: training_step(s, p, recipe, CONTEXT, MACHINES),
                    [column(rng, model) for _ in range(5)])  # fmt: skip
        print(f"{name}: memory {CHUNK / memory / 1e3:,.0f} and time {CHUNK / step / 1e3:,.0f} "
              f"thousand shapes a second, both {CHUNK / (memory + step) / 1e3:,.0f}; "
              f"{(memory + step) / yardstick:.1f} × a plain pass")  # fmt: skip


if __name__ == "__main__":
    main()
