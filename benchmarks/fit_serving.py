"""Fit the constants of serving in ``data/constants/serve.toml``, and print errors left out.

    python benchmarks/fit_serving.py ../shared/data/measured

One set for all chips and engines, on the log of predicted over measured: time per token, and the
rates of TensorRT-LLM. A series (model, chip, engine, precision) counts by the root of its rows.
Left out together: a model on a chip for dense models, a model for mixtures of experts, a chip for
fixed batches; then each chip whole.
"""

import csv
import math
import pathlib
import sys

import numpy as np
from msgspec.structs import asdict, replace
from scipy.optimize import least_squares

from scantling.costs.serve import (
    Demand,
    Deployment,
    Load,
    batch_time,
    serve_constants,
    served,
    step_time,
)
from scantling.errors import ScantlingError
from scantling.hardware import chip
from scantling.validate import serving as tables
from scantling.validate.score import quantile

PRIOR = {
    "weights": 0.85, "experts": 0.75, "cache": 0.65, "narrow": 1.3, "matmul": 0.8,
    "grouped": 0.4, "attention": 0.5, "link": 0.6, "launch_s": 3e-6, "routed_s": 20e-6,
    "reduce_s": 6e-6, "step_s": 5e-4, "sequence_s": 2e-5, "own": 1.0,
}  # fmt: skip
"""What each constant is expected to be from kernels alone; the fit is drawn to it."""
FRACTIONS = ("weights", "experts", "cache", "matmul", "grouped", "attention", "link")
PULL = 0.5
"""Weight of the prior: a constant may move by a factor of e for as much as 0.5 of residuals."""
ENDS = (0.06, 0.94)
"""Quantiles of left-out errors that the intervals reach to: a little within the 90 % range, since
tails come of settings that the tables do not state."""


def samples(folder):
    """(kind, series, group, seconds, load, deployment, first token, chip) of each row
    that can be scored, once."""
    seen = set()
    for row in csv.DictReader((folder / tables.SERVING).open()):
        try:
            w, d, one = tables.serving_load(row)
        except ScantlingError:
            continue
        key = (row["model"], row["system"], row["ttft_ms"], row["tpot_ms"], d)
        if key in seen:
            continue
        seen.add(key)
        series = (row["model"], row["system"], row["backend"], row["precision"], row["quality"])
        group = row["model"] if w.routed else f"{row['model']} {row['system']}"
        kind = "MoE" if w.routed else f"dense {row['quality'][0]}"
        first = float(row["ttft_ms"]) / 1e3
        yield kind, series, group, float(row["tpot_ms"]) / 1e3, w, d, first, one.key
    for row in csv.DictReader((folder / tables.FIXED).open()):
        w, d, one = tables.fixed_load(row)
        value = float(row["value"])
        if row["metric"] == "output_tokens_per_s":
            scale = d.tp if row["unit_scope"] == "per_gpu" else 1
            value = float(row["batch"]) * float(row["osl"]) / (value * scale)
        else:
            value /= 1e3
        yield ("fixed " + row["metric"][:6], (row["model"], row["gpu"]), f"fixed {one.key}", value,
               w, d, math.nan, one.key)  # fmt: skip
    for row in csv.DictReader((folder / tables.OFFLINE).open()):
        w, d, one = tables.offline_load(row)
        yield ("offline", ("offline", row["model"], row["gpu"]), f"{row['model']} {one.key}",
               1 / float(row["output_tokens_per_s_total"]), w, d, math.nan, one.key)  # fmt: skip


class Stack:
    """All loads as one of arrays."""

    def __init__(self, rows):
        self.kind = np.array([r[0] for r in rows])
        self.series = [r[1] for r in rows]
        self.group = np.array([r[2] for r in rows])
        self.chip = np.array([r[7] for r in rows])
        self.actual = np.array([r[3] for r in rows])
        self.first = np.array([r[6] for r in rows])
        loads = [r[4] for r in rows]
        self.load = Load(**{
            f: column([getattr(w, f) for w in loads]) for f in Load.__struct_fields__
        })  # fmt: skip
        self.split = Deployment(**{
            f: np.array([float(getattr(r[5], f)) for r in rows]) for f in ("tp", "dp", "pp")
        })  # fmt: skip
        count = {s: self.series.count(s) for s in set(self.series)}
        self.weight = np.array([count[s] ** -0.25 for s in self.series])

    def predicted(self, c):
        found = served(self.load, self.split, c)
        fixed = batch_time(self.load, c)
        first = step_time(self.load.prefill, c)
        return np.select(
            [self.kind == "fixed output", self.kind == "fixed first_", self.kind == "offline"],
            [fixed, first, 1 / found.tokens_per_s.value], found.tpot_s.value,
        )  # fmt: skip


def column(values):
    if isinstance(values[0], Demand):
        return Demand(**{f: column([getattr(v, f) for v in values])
                         for f in Demand.__struct_fields__})  # fmt: skip
    return np.array([float(v) for v in values])


def fit(stack, start, kept):
    """The constants that fit the kept rows."""
    names = list(PRIOR)
    centre = np.log([PRIOR[n] for n in names])
    top = np.log([0.95 if n in FRACTIONS else 1e3 for n in names])

    def residuals(x):
        c = replace(start, **dict(zip(names, np.exp(x), strict=True)))
        off = np.log(stack.predicted(c) / stack.actual)[kept] * stack.weight[kept]
        return np.concatenate([off, PULL * (x - centre)])

    bottom = np.log([1.0 if n == "narrow" else 1e-9 for n in names])
    found = least_squares(residuals, centre, bounds=(bottom, top), loss="soft_l1", f_scale=0.05)
    return replace(start, **dict(zip(names, map(float, np.exp(found.x)), strict=True)))


def show(name, ratio):
    off = np.abs(ratio - 1)
    print(f"{name}: {len(off)} rows, mean {off.mean():.1%}, median {np.median(off):.1%}, "
          f"p90 {np.quantile(off, 0.9):.1%}, bias {np.median(ratio) - 1:+.1%}")  # fmt: skip


def without(stack, start, groups):
    """Predicted over measured of each row, by constants that have not seen its group."""
    found = np.full(len(stack.actual), np.nan)
    for group in sorted(set(groups)):
        rows = groups == group
        c = fit(stack, start, ~rows)
        found[rows] = stack.predicted(c)[rows] / stack.actual[rows]
        for kind in sorted(set(stack.kind[rows])):
            show(f"left out {kind} {group}", found[rows & (stack.kind == kind)])
    return found


def main():
    folder = pathlib.Path(sys.argv[1])
    start = serve_constants(chip("h100-sxm"))
    stack = Stack(list(samples(folder)))
    everything = np.ones(len(stack.actual), bool)
    c = fit(stack, start, everything)
    ratio = stack.predicted(c) / stack.actual
    for kind in sorted(set(stack.kind)):
        show(f"fitted {kind}", ratio[stack.kind == kind])
    without(stack, start, stack.chip)
    left_out = without(stack, start, stack.group)
    for kind in sorted(set(stack.kind)):
        show(f"left out {kind}", left_out[stack.kind == kind])
    found = served(stack.load, stack.split, c)
    low_load = (stack.load.sequences <= tables.LOW_LOAD) & ~stack.load.queues.astype(bool)
    low_load &= np.isfinite(stack.first)
    launches = stack.load.prefill.launches[low_load]
    alone = found.prefill_s[low_load]
    c = replace(c, eager_s=float(np.median((stack.first[low_load] - alone) / launches)))
    first = stack.first[low_load] / (alone + launches * c.eager_s)
    ranges = {
        "decode": 1 / left_out[np.isin(stack.kind, ["dense A", "fixed output"])],
        "experts": 1 / left_out[stack.kind == "MoE"], "first": first,
        "prompt": 1 / left_out[stack.kind == "fixed first_"],
        "rate": left_out[np.isin(stack.kind, ["offline"])],
    }  # fmt: skip
    for name, values in ranges.items():
        ordered = sorted(values)
        low, high = (quantile(ordered, end) for end in ENDS)
        ends = {f"{name}_low": min(low, 0.95), f"{name}_high": max(high, 1.05)}
        c = replace(c, **{k: float(v) for k, v in ends.items()})
    for name, value in asdict(c).items():
        if isinstance(value, float):
            print(f"{name} = {value:.3g}")


if __name__ == "__main__":
    main()
