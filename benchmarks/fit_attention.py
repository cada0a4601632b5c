"""Fits the constants of attention to a folder of public tables, and says how wrong they are.

    python benchmarks/fit_attention.py FOLDER [--folds 10]

One set a family of chips, fitted by robust least squares on the logarithm of the time, through the
same functions that predict. Groups, one (heads, KV heads, head width) each, are left out in turn:
the residuals of the groups left out give the printed errors and the factors of the intervals.
"""

import argparse
import csv
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from scipy.optimize import differential_evolution, least_squares

from scantling.costs.kernels.attention import (
    Shape,
    decode_terms,
    decode_time,
    prefill_terms,
    prefill_time,
)
from scantling.hardware import chip

FAMILIES = {"8.0": ["A100-SXM-80GB"], "9.0": ["H100-SXM-80GB", "H200-SXM"], "10.0": ["B200-SXM"]}
PHASES = {"prefill": (prefill_time, prefill_terms), "decode": (decode_time, decode_terms)}
SCALARS = {
    "prefill": {
        "prefill_launch_s": (12e-6, 1e-7, 1e-4),
        "prefill_tail": (0.6, 0.01, 3),
        "prefill_query_passes": (1, 0.05, 10),
        "prefill_kv_passes": (4.5, 0.2, 20),
        "prefill_block_s": (1e-6, 1e-9, 1e-4),
        "prefill_token_s": (1e-7, 1e-10, 1e-5),
    },
    "decode": {
        "decode_launch_s": (10e-6, 1e-7, 1e-4),
        "decode_bandwidth": (0.8, 0.1, 1),
        "decode_ramp": (0.5, 1e-3, 20),
        "decode_query_passes": (1.5, 0.05, 20),
        "decode_step_s": (3e-7, 1e-9, 1e-5),
    },
}
"""(start, least, most) of each constant that is one number."""
INSIDE = {("prefill", "8.0"): 0.914, ("prefill", "9.0"): 0.868, ("prefill", "10.0"): 0.863}
"""Shares of rows that intervals hold, where not 88 %: over the whole table it is 88 %, and
the median interval is narrowest so."""
CURVES = {"prefill": ("prefill", 0.6, 0.02, 1.0), "decode": ("decode_block_s", 3e-6, 1e-8, 6e-5)}
"""(field, start, least, most) of the one that is a curve over head widths."""


def read(folder, phase):
    name = f"attention_{phase}_aiconfigurator.csv"
    with (Path(folder) / name).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))

    def column(field):
        return np.array([int(r[field]) for r in rows])

    table = {f: column(f) for f in ("batch_size", "num_heads", "num_key_value_heads", "head_dim")}
    table["queries"] = column("isl")
    table["keys"] = column("kv_len") if phase == "decode" else column("isl") + column("step")
    table["gpu"] = np.array([r["gpu"] for r in rows])
    table["actual"] = np.array([float(r["latency_us"]) for r in rows]) / 1e6
    return table


def take(table, mask):
    return {field: values[mask] for field, values in table.items()}


def shape(t):
    q, k = t["queries"], t["keys"]
    return Shape(batch=t["batch_size"], queries=q, keys=k, n_head=t["num_heads"],
                 n_kv_head=t["num_key_value_heads"], d_key=t["head_dim"],
                 visible=q * k - q * (q - 1) // 2)  # fmt: skip


def changed(one, fields):
    attention = replace(one.constants.attention, **fields)
    return replace(one, constants=replace(one.constants, attention=attention))


def fields(phase, widths, values):
    names = list(SCALARS[phase])
    found = dict(zip(names, values[: len(names)], strict=True))
    curve = zip(widths.tolist(), values[len(names) :], strict=True)
    return found | {CURVES[phase][0]: tuple(curve)}


def predicted(phase, t, constants):
    """Predictions, and the terms they are made of."""
    out, parts = np.empty(len(t["actual"])), np.empty((5, len(t["actual"])))
    for gpu in np.unique(t["gpu"]):
        mask = t["gpu"] == gpu
        one, part = changed(chip(str(gpu)), constants), shape(take(t, mask))
        time, terms = PHASES[phase]
        out[mask] = time(one, "bf16", part).value_s
        for row, term in zip(parts, terms(one, "bf16", part), strict=True):
            row[mask] = term
    return out, parts


def fit(phase, t, start=None):
    widths = np.unique(t["head_dim"])
    _, first, least, most = CURVES[phase]
    limits = np.array([*SCALARS[phase].values(), *[(first, least, most)] * len(widths)])
    x0 = limits[:, 0] if start is None else start
    actual = np.log(t["actual"])

    def residual(x):
        return np.log(predicted(phase, t, fields(phase, widths, np.exp(x)))[0]) - actual

    found = least_squares(residual, np.log(x0), loss="soft_l1", f_scale=0.1,
                          bounds=np.log(limits[:, 1:]).T)  # fmt: skip
    return np.exp(found.x), widths


def left_out(phase, t, folds):
    """Predictions of each row by constants fitted without its group."""
    keys = np.stack([t["num_heads"], t["num_key_value_heads"], t["head_dim"]], axis=1)
    _, group = np.unique(keys, axis=0, return_inverse=True)
    fold = np.random.default_rng(0).permutation(group.max() + 1)[group.ravel()] % folds
    out = np.empty(len(t["actual"]))
    for i in range(folds):
        mask = fold == i
        x, widths = fit(phase, take(t, ~mask))
        out[mask] = predicted(phase, take(t, mask), fields(phase, widths, x))[0]
    return out


def spread(ratio, terms, inside):
    """What each term may be off by, so that a share of the rows lies inside their sum.

    Of all such errors those with the narrowest median interval, and a narrow mean one beside it.
    """
    shares = (terms / terms.sum(axis=0)).T
    off = np.abs(np.log(ratio))

    def cost(x):
        half = np.sinh(shares @ x)
        missing = max(0, inside - np.mean(off <= shares @ x))
        return np.median(half) + half.mean() / 4 + 20 * missing

    found = differential_evolution(cost, [(0.02, 1.2)] * len(terms), rng=0, maxiter=150,
                                   popsize=10, tol=1e-6, polish=False).x  # fmt: skip
    return found, np.mean(off <= shares @ found), np.median(np.sinh(shares @ found))


def show(error):
    return (
        f"mean {error.mean():.1%} median {np.median(error):.1%} p90 {np.quantile(error, 0.9):.1%}"
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--folds", type=int, default=10)
    given = parser.parse_args()
    for phase in PHASES:
        whole = read(given.folder, phase)
        for family, gpus in FAMILIES.items():
            t = take(whole, np.isin(whole["gpu"], gpus))
            x, widths = fit(phase, t)
            constants = fields(phase, widths, x)
            ratio = left_out(phase, t, given.folds) / t["actual"]
            error = np.abs(ratio - 1)
            print(f"\n{phase} {family}: {len(error)} rows, groups left out: {show(error)}")
            if phase == "prefill":
                long = t["queries"] >= 2048
                print(f"  from 2048 queries: {show(error[long])}; below: {show(error[~long])}")
            else:
                big = t["actual"] > 4 * constants["decode_launch_s"]
                print(f"  over 4 launches: {show(error[big])}; below: {show(error[~big])}")
            terms = predicted(phase, t, constants)[1]
            off_by, inside, half = spread(ratio, terms, INSIDE.get((phase, family), 0.88))
            print(f"  inside {inside:.1%}, median half-width {half:.1%}")
            for name, value in constants.items():
                rounded = (
                    [[w, float(f"{v:.3g}")] for w, v in value]
                    if isinstance(value, tuple)
                    else f"{value:.3g}"
                )
                print(f"{name} = {rounded}")
            print(f"{phase}_spread = {np.round(off_by, 3).tolist()}")
            print(
                f"{phase}_error = {error[long].mean() if phase == 'prefill' else error.mean():.3f}"
            )


if __name__ == "__main__":
    main()
