"""Shapes a second on one core: memory of a chip, time per token and to the first one.

    python benchmarks/serving.py

The figure to read is the ratio to a plain NumPy pass in the same run (a multiply-add over the
same number of elements, 100 times), since machines differ; shapes a second are printed beside it.
"""

import os
import time

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

import numpy as np

from scantling import catalog
from scantling.costs.serve import Deployment
from scantling.costs.serving_memory import Split, serving_memory
from scantling.costs.serving_scheme import numbers
from scantling.costs.serving_speed import speed
from scantling.hardware import chip
from scantling.spec import vary

CHUNK = 16_384
MODELS = ("llama-3.1-8b", "gemma-3-27b", "qwen3-30b-a3b", "deepseek-v3", "qwen3-next-80b-a3b")
"""Grouped, windowed, routed, latent and recurrent."""


def column(name):
    """Shapes of a kind: depth and width drawn."""
    draw = np.random.default_rng(0).integers
    return vary(catalog.model(name), n_layer=draw(16, 96, CHUNK), d_model=64 * draw(16, 128, CHUNK))


def serve_once(spec, one, tp):
    serving_memory(spec, Split(tp=tp), numbers("fp8").rank_bytes, 8, 32_768)
    speed(spec, one, Deployment(tp=tp, weights="fp8"), 4096, 512, 8)


def plain_pass():
    a = np.arange(CHUNK, dtype=np.int64)
    for _ in range(100):
        a * 3 + 1


def best(function, *args, repeat=5):
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        function(*args)
        times.append(time.perf_counter() - start)
    return min(times)


def main():
    one = chip("h100-sxm")
    yardstick = best(plain_pass, repeat=20)
    for name in MODELS:
        spec = column(name)
        for tp in (1, 8):
            seconds = best(serve_once, spec, one, tp)
            rate = f"{CHUNK / seconds:>10,.0f} shapes a second"
            plain = f"{seconds / yardstick:.1f} × a plain pass of {yardstick * 1e3:.2f} ms"
            print(f"{name:<20} TP {tp}: {rate}, {plain}")


main()
