"""Constants of products of routed experts: the part of ``fit_kernels.py`` about them.

Errors and intervals are those of models (width, expert width, experts) left out; a chip that was
not measured has those of the chips together.
"""

import csv

import numpy as np
from fitting import folds, inside, lines, scale_of
from msgspec.structs import replace
from scipy.optimize import least_squares

from scantling.hardware import chip
from scantling.validate.gemm import EXPERT_FIELDS, layer_of_experts

FITTED = {
    "matmul": (0.05, 0.5, 0.8), "bandwidth_factor": (0.1, 0.8, 1.0), "launch_s": (1e-6, 2e-5, 2e-4),
    "sharpness": (1.1, 2.0, 8.0), "pad_rows": (0.1, 20.0, 200.0), "passes": (0.05, 2.0, 20.0),
    "crooked": (1.0, 1.5, 4.0),
}  # fmt: skip
FIELDS = {"bfloat16": "experts", "fp8": "experts_fp8", "fp8_block": "experts_fp8_block"}
GRAINS = (1, 64, 128)


class Layers:
    """Measured layers of experts of one chip and precision."""

    def __init__(self, of, dtype, rows):
        self.chip, self.dtype = chip(of), dtype
        self.given = {f: np.array([float(r[f]) for r in rows]) for f in EXPERT_FIELDS}
        self.skewed = np.array([r["distribution"] != "balanced" for r in rows]) * 1.0
        self.seconds = np.array([float(r["latency_us"]) for r in rows]) * 1e-6
        self.group = np.array(
            [f"{r['hidden_size']}x{r['inter_size']}x{r['num_experts']}" for r in rows]
        )
        self.rows = self.given["num_tokens"]

    def time(self, found, keep=slice(None)):
        g = self.chip.constants.gemm
        own = replace(g, **{FIELDS[self.dtype]: replace(getattr(g, FIELDS[self.dtype]), **found)})
        on = replace(self.chip, constants=replace(self.chip.constants, gemm=own))
        given = {f: v[keep] for f, v in self.given.items()}
        return layer_of_experts(on, self.dtype, given, skewed=self.skewed[keep])


def fit(tables, keeps=None, grain=1):
    """One set of constants for tables together."""
    keeps = keeps or [slice(None)] * len(tables)
    fixed = {"widen": 1.0, "grain": grain}

    def unpacked(x):
        return {n: float(np.exp(v)) for n, v in zip(FITTED, x, strict=True)} | fixed

    def residuals(x):
        found = unpacked(x)
        parts = [
            np.log(t.time(found, keep).value_s / t.seconds[keep])
            for t, keep in zip(tables, keeps, strict=True)
        ]
        return np.concatenate(parts)

    low, start, high = (np.log([v[i] for v in FITTED.values()]) for i in range(3))
    got = least_squares(
        residuals, start, bounds=(low, high), loss="soft_l1", f_scale=0.15, max_nfev=100
    )
    return unpacked(got.x)


def left_out(tables, grain):
    """Seconds of every row by constants that have not seen its model."""
    values = [np.empty(len(t.seconds)) for t in tables]
    parts = folds(np.concatenate([t.group for t in tables]))
    ends = np.cumsum([len(t.seconds) for t in tables])[:-1]
    for out in (np.split(part, ends) for part in parts):
        found = fit(tables, [~o for o in out], grain)
        for t, value, o in zip(tables, values, out, strict=True):
            if o.any():
                value[o] = t.time(found, o).value_s
    return values


def finished(name, tables):
    """Constants with the scale of residuals on models left out."""
    tried = {grain: left_out(tables, grain) for grain in GRAINS}
    seconds = np.concatenate([t.seconds for t in tables])
    wrong = {g: np.mean(np.abs(np.concatenate(v) / seconds - 1)) for g, v in tried.items()}
    grain = min(wrong, key=wrong.get)
    print(
        f"experts {name}: mean error by grain {', '.join(f'{g} {e:.1%}' for g, e in wrong.items())}"
    )
    found, values = fit(tables, None, grain), tried[grain]
    logs = np.concatenate([np.log(t.seconds / v) for t, v in zip(tables, values, strict=True)])
    rows = np.concatenate([t.rows for t in tables])
    times = [t.time(found) for t in tables]
    lower = np.concatenate([t.lower_s for t in times]) / 2
    scale = scale_of(rows, lower, logs)
    wrong = np.abs(np.exp(-logs) - 1)
    found = found | scale | {"error": float(np.median(wrong))}
    for t, value in zip(tables, values, strict=True):
        time = t.time(found)
        low, high = value * time.low_s / time.value_s, value * time.high_s / time.value_s
        e = np.abs(value / t.seconds - 1)
        print(f"experts {name} {t.chip.key} {t.dtype}: {np.median(e):.1%} / {e.mean():.1%} / "
              f"{np.quantile(e, 0.9):.1%}; {inside(low, t.seconds, high, value)}")  # fmt: skip
    return found


def expert_lines(folder):
    """The lines about routed experts."""
    rows = {}
    with (folder / "moe_aiconfigurator.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            rows.setdefault((chip(row["gpu"]).key, row["moe_dtype"]), []).append(row)
    tables = {key: Layers(*key, found) for key, found in sorted(rows.items())}
    fitted = {"kind": "fitted", "sources": ("aiconfigurator-moe",)}
    assumed = {"kind": "assumed"}
    for dtype, field in FIELDS.items():
        both = [t for t in tables.values() if t.dtype == dtype]
        found = finished("together", both)
        yield from lines(f"default.{field}", found, **fitted, note="H100 and B200 together.")
        if field == "experts_fp8":
            yield from lines("default.experts_fp4", found | {"widen": 2.0}, **assumed,
                             sources=("aiconfigurator-moe",), note="Those of FP8.")  # fmt: skip
        yield from lines(f"inherited.{field}", {"widen": 1.3}, **assumed)
        yield from lines(f"unseen.{field}", {"widen": 1.5}, **assumed)
        for t in both:
            own = finished("alone", [t])
            for title in (f"chip.{t.chip.key}", f'family."{t.chip.compute_capability}"'):
                yield from lines(f"{title}.{field}", own, **fitted, note="Fitted to its own rows.")
