"""Fits what each generation of training attention kernels reaches to the published bar charts.

    python benchmarks/fit_attention_training.py FOLDER

The charts hold 16384 tokens and 2048 columns of heads fixed. Launch is the chip's own. Sequence
lengths are left out in turn for the printed error.
"""

import csv
import sys
from pathlib import Path

import numpy as np
from fit_attention import spread
from msgspec.structs import replace
from scipy.optimize import least_squares

from scantling.costs.kernels.attention import Shape, training_terms
from scantling.hardware import chip
from scantling.hardware.constants.attention import TrainingKernel

KERNELS = {"PyTorch": "unfused", "FA1": "flash", "FA2": "flash2", "FA3": "flash3",
           "cuDNN": "cudnn"}  # fmt: skip
FUSED = [(0.5, 0.1, 1), (0.6, 0.1, 1), (0.4, 0.1, 1), (0.5, 0.1, 1), (0.5, 0.02, 3),
         (0.8, 0.2, 1.5), (0.7, 0.05, 1.5)]  # fmt: skip
UNFUSED = [(10, 1, 40), (4, 0.1, 20), (2.5, 0.5, 4), (12, 1, 30)]


def kernel(name, x):
    if name == "unfused":
        return TrainingKernel(name=name, forward=((64, 0.8),), backward=((64, 0.8),), tail=0.0,
                              scores=x[0], mask=x[1], passes=x[2], launches=x[3])  # fmt: skip
    return TrainingKernel(name=name, forward=((64, x[0]), (128, x[1])),
                          backward=((64, x[2]), (128, x[3])), tail=x[4], passes=x[5],
                          launches=x[6])  # fmt: skip


def seconds(gpu, rows, name, x):
    one = chip(gpu)
    attention = replace(one.constants.attention, training=(kernel(name, x),))
    one = replace(one, constants=replace(one.constants, attention=attention))
    out = []
    for r in rows:
        s, h = int(r["seq_len"]), int(r["head_dim"])
        heads, causal = int(r["hidden_dim"]) // h, r["causal"] == "True"
        shape = Shape(batch=int(r["total_tokens"]) // s, queries=s, keys=s, n_head=heads,
                      n_kv_head=heads, d_key=h,
                      visible=s * (s + 1) // 2 if causal else None)  # fmt: skip
        t = np.array(training_terms(one, "bf16", shape, name))
        if "bwd" in r["pass"]:
            t += training_terms(one, "bf16", shape, name, backward=True)
        out.append(t)
    return np.array(out).T


def measured(rows):
    """The charts count 4 S^2 h a head forward, half of it where causal, 3.5 times with backward."""
    out = []
    for r in rows:
        s, tokens, columns = (int(r[f]) for f in ("seq_len", "total_tokens", "hidden_dim"))
        passes = 3.5 if "bwd" in r["pass"] else 1
        flops = 4 * s * tokens * columns * passes * (0.5 if r["causal"] == "True" else 1)
        out.append(flops / (float(r["tflops"]) * 1e12))
    return np.array(out)


def fit(gpu, rows, name):
    limits = np.log(UNFUSED if name == "unfused" else FUSED)
    actual = np.log(measured(rows))

    def residual(x):
        return np.log(seconds(gpu, rows, name, np.exp(x)).sum(axis=0)) - actual

    found = least_squares(residual, limits[:, 0], bounds=limits[:, 1:].T, loss="soft_l1",
                          f_scale=0.05)  # fmt: skip
    return np.exp(found.x)


def main():
    path = Path(sys.argv[1]) / "attention_flashattention_figs.csv"
    with path.open(encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    for gpu, impl in sorted({(r["gpu"], r["impl"]) for r in table}):
        rows, name = [r for r in table if (r["gpu"], r["impl"]) == (gpu, impl)], KERNELS[impl]
        ratio, terms = [], []
        for length in sorted({r["seq_len"] for r in rows}):
            left = [r for r in rows if r["seq_len"] == length]
            x = fit(gpu, [r for r in rows if r["seq_len"] != length], name)
            ratio.extend(seconds(gpu, left, name, x).sum(axis=0) / measured(left))
            terms.append(seconds(gpu, left, name, x))
        error = np.abs(np.array(ratio) - 1)
        found = np.round(fit(gpu, rows, name), 3).tolist()
        said = f"mean {error.mean():.1%} p90 {np.quantile(error, 0.9):.1%}"
        print(f"{gpu} {name}: {found} over {len(rows)} rows; lengths left out: {said}")
        print("  spread, inside, half-width:", spread(np.array(ratio), np.hstack(terms), 0.88))


if __name__ == "__main__":
    main()
