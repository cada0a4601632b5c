"""Constants of light work: the part of ``fit_kernels.py`` about norms, activations and the like.

Errors and intervals are those of models left out; what a chip that was not measured may expect
is the error of each chip by constants of the others.
"""

import csv
import statistics

import numpy as np
from fitting import folds, hats, inside, lines, shortest
from msgspec.structs import replace
from scipy.optimize import least_squares

from scantling.costs.kernels import elementwise_time
from scantling.hardware import chip
from scantling.validate.gemm import light_work

COLUMNS = ("input_layernorm", "post_attention_layernorm", "add", "mlp_act", "attn_rope")
FRACTIONS = {"copy": "bandwidth_factor", "norm": "norm", "activation": "activation",
             "rotary": "rotary"}  # fmt: skip
SECONDS = (1e-6, 2e-6, 4e-6, 8e-6, 1.6e-5, 6.4e-5, 2.56e-4)


def launch(kind):
    return "launch_s" if kind == "copy" else f"{kind}_s"


def row(kind):
    return "row_s" if kind == "copy" else f"{kind}_row_s"


class Light:
    """Measured light work of one chip."""

    def __init__(self, of, rows):
        self.chip = chip(of)
        found = []
        for each in rows:
            for name in COLUMNS:
                seconds = float(each[f"{name}_ms"] or 0) * 1e-3
                if seconds > 0:
                    found.append((*light_work(each, name), seconds, each["model"]))
        self.kind, self.moved, self.width, self.seconds, self.group = map(
            np.array, zip(*found, strict=True)
        )  # fmt: skip

    def time(self, found, keep=slice(None)):
        """(value, low, high) by constants."""
        e = replace(self.chip.constants.elementwise, **found)
        on = replace(self.chip, constants=replace(self.chip.constants, elementwise=e))
        kinds, moved, width = self.kind[keep], self.moved[keep], self.width[keep]
        parts = np.empty((3, len(moved)))
        for kind in FRACTIONS:
            of = kinds == kind
            time = elementwise_time(on, moved[of], 1, kind, width[of])
            parts[:, of] = time.value_s, time.low_s, time.high_s
        return parts


def fit(tables, keeps=None):
    keeps = keeps or [slice(None)] * len(tables)
    names = [*FRACTIONS.values(), *(launch(kind) for kind in FRACTIONS),
             *(row(kind) for kind in FRACTIONS), "sharpness"]  # fmt: skip

    def unpacked(x):
        return {n: float(np.exp(v)) for n, v in zip(names, x, strict=True)} | {"widen": 1.0}

    def residuals(x):
        found = unpacked(x)
        parts = [
            np.log(t.time(found, keep)[0] / t.seconds[keep])
            for t, keep in zip(tables, keeps, strict=True)
        ]
        return np.concatenate(parts)

    start = np.log([0.6] * 4 + [2e-6] * 4 + [1e-10] * 4 + [2.0])
    low = np.log([0.1] * 4 + [5e-7] * 4 + [1e-13] * 4 + [1.2])
    high = np.log([1.0] * 4 + [2e-5] * 4 + [2e-9] * 4 + [8.0])
    got = least_squares(residuals, start, bounds=(low, high), loss="soft_l1", f_scale=0.1)
    return unpacked(got.x)


def with_scale(value, seconds, kinds, found):
    """Constants with the scale of log residuals: by length around knots, then by kind."""
    logs = np.log(seconds / value)
    near = hats(value, SECONDS)
    points = np.full(len(SECONDS), np.quantile(np.abs(logs), 0.88))
    for i in range(len(SECONDS)):
        of = near[:, i] > 0.35
        if of.sum() > 20:
            points[i] = np.quantile(np.abs(logs[of]), 0.88)
    scale = 2 ** (near @ np.log2(points))
    spreads = {}
    for kind in FRACTIONS:
        of = kinds == kind
        spreads[f"{kind}_spread"] = float(np.quantile(np.abs(logs[of]) / scale[of], 0.88))
        scale[of] *= spreads[f"{kind}_spread"]
    below, above = shortest(logs / scale)
    error = np.median(np.abs(value / seconds - 1))
    knots = tuple(zip(SECONDS, np.log2(points).tolist(), strict=True))
    spreads |= {"spread_rows": ((1, 0.0),), "spread_s": knots}
    return found | spreads | {
        "below": float(-below), "above": float(above), "error": float(error),
    }  # fmt: skip


def show(name, t, value, low, high):
    e = np.abs(value / t.seconds - 1)
    texts = [f"{kind} {np.median(e[t.kind == kind]):.1%}" for kind in FRACTIONS]
    print(f"{name}: {np.median(e):.1%} / {e.mean():.1%}; {', '.join(texts)}; "
          f"{inside(low, t.seconds, high, value)}")  # fmt: skip


def widening(t, found):
    for widen in np.arange(1.0, 6.0, 0.1):
        _, low, high = t.time(found | {"widen": float(widen)})
        if ((low <= t.seconds) & (t.seconds <= high)).mean() >= 0.9:
            return float(widen)
    return 6.0


def elementwise_lines(folder):
    """The lines of the file about light work."""
    rows = {}
    with (folder / "layer_ops_vidur.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            rows.setdefault(chip(row["gpu"]).key, []).append(row)
    tables = [Light(key, found) for key, found in sorted(rows.items())]
    fitted = {"kind": "fitted", "sources": ("vidur-layers",)}
    widens = []
    for t in tables:
        rest = [other for other in tables if other is not t]
        others = fit(rest)
        value = np.concatenate([r.time(others)[0] for r in rest])
        others = with_scale(
            value,
            np.concatenate([r.seconds for r in rest]),
            np.concatenate([r.kind for r in rest]),
            others,
        )
        show(f"light work {t.chip.key} by the others", t, *t.time(others))
        widens.append(widening(t, others))
    print("    widen", [round(w, 1) for w in widens])
    found = fit(tables)
    value = np.concatenate([t.time(found)[0] for t in tables])
    found = with_scale(
        value,
        np.concatenate([t.seconds for t in tables]),
        np.concatenate([t.kind for t in tables]),
        found,
    )
    yield from lines("default", found, **fitted, note="A40, A100 and H100 together.")
    widen = max(1.0, round(statistics.mean(widens), 1))
    yield from lines("inherited", {"widen": max(1.0, 1 + (widen - 1) / 2)}, kind="assumed")
    yield from lines("unseen", {"widen": widen}, kind="assumed")
    for t in tables:
        value = np.empty(len(t.seconds))
        for out in folds(t.group):
            value[out] = t.time(fit([t], [~out]), out)[0]
        own = with_scale(value, t.seconds, t.kind, fit([t]))
        now, low, high = t.time(own)
        show(f"light work {t.chip.key} left out", t, value, value * low / now, value * high / now)
        for title in (f'family."{t.chip.compute_capability}"', f"chip.{t.chip.key}"):
            yield from lines(title, own, **fitted, note="Fitted to its own rows.")
