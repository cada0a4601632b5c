"""Constants of products by chip and precision: the part of ``fit_kernels.py`` about them.

The time of each chip and precision is fitted by the product's own function, so what is fitted is
what is used. Errors are those of (n, k) pairs left out, in ten folds, and the intervals are
quantiles of the same residuals. A family is its chips fitted together, the default all chips
together; what a chip that was not measured may expect is the error of each chip by constants of
the others, and ``widen`` is what its interval then needs.
"""

import collections
import csv
import itertools
import statistics

import numpy as np
from fitting import folds, inside, lines, scale_of
from msgspec.structs import replace
from scipy.optimize import least_squares

from scantling.costs.kernels import gemm_time
from scantling.hardware import chip, chips
from scantling.validate.gemm import projection

FITTED = {
    "matmul": (0.2, 0.75, 1.0), "bandwidth_factor": (0.3, 0.85, 1.0),
    "launch_s": (3e-7, 3e-6, 2e-5), "k_half": (1.0, 100.0, 2000.0),
    "wave_half": (1e-4, 0.03, 2.0), "sharpness": (1.2, 4.0, 12.0),
    "step_s": (1e-12, 1e-10, 1e-9), "quantise": (0.02, 0.3, 2.0),
    "quantise_row": (1.0, 1e3, 2e4), "waste": (0.01, 0.3, 1.0),
}  # fmt: skip
"""What is fitted as a logarithm: least, start, most."""
DROOP = (0.0, 0.01, 0.06)
TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.9), (256, 64, 0.9), (64, 256, 0.9),
         (128, 64, 0.83), (64, 128, 0.83), (64, 64, 0.79))  # fmt: skip
"""The tiles libraries choose among; the rates by a fit on A100 of one rate for each area."""
DTYPES = {"bfloat16": "bf16", "fp8": "fp8"}
PROJECTIONS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
SUBSETS = {"large": (1024, 10**9), "small": (1, 256), "all": (1, 10**9)}
MEDIANS = {"l40s": (0.55, 0.62, 0.63, 0.57)}
"""Published medians of the fraction of the peak by smallest dimension, up to 1024, 2048, 4096 and
beyond, of a chip whose rows are not at hand."""


class Products:
    """Measured products of one chip and precision."""

    def __init__(self, of, dtype, rows):
        self.chip, self.dtype = chip(of), dtype
        self.m, self.n, self.k = (np.array([r[i] for r in rows]) for i in range(3))
        self.seconds = np.array([r[3] for r in rows])
        self.source = np.array([r[4] for r in rows])
        self.group = np.array([f"{r[1]}x{r[2]}" for r in rows])

    def time(self, found, keep=slice(None), of=None):
        """Times by constants, on the table's chip or another."""
        on = of or self.chip
        g = on.constants.gemm
        if self.dtype == "bf16":
            own = replace(g, **found)
        else:
            own = replace(g, **{self.dtype: replace(getattr(g, self.dtype), **found)})
        on = replace(on, constants=replace(on.constants, gemm=own))
        return gemm_time(on, self.dtype, self.m[keep], self.n[keep], self.k[keep])

    def weight(self):
        """How often each row counts, so that the sources of a table count alike."""
        sizes = {s: int((self.source == s).sum()) for s in set(self.source)}
        return np.array([round(max(sizes.values()) / sizes[s]) for s in self.source])

    def wrong(self, value):
        """Absolute relative errors."""
        return np.abs(value / self.seconds - 1)


def read(folder):
    """Products by chip and precision: the table of them, and those of the table of layers."""
    found = collections.defaultdict(list)
    with (folder / "gemm_aiconfigurator.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            one = (*(int(row[x]) for x in "mnk"), float(row["latency_us"]) * 1e-6, "gemm")
            found[chip(row["gpu"]).key, DTYPES[row["dtype"]]].append(one)
    with (folder / "layer_ops_vidur.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            for name in PROJECTIONS:
                seconds = float(row[f"{name}_ms"] or 0) * 1e-3
                if seconds > 0:
                    shape = (int(row["num_tokens"]), *projection(row, name))
                    found[chip(row["gpu"]).key, "bf16"].append((*shape, seconds, "layers"))
    return {key: Products(*key, rows) for key, rows in sorted(found.items())}


def fit(tables, keeps=None, *, tiled=False):
    """One set of constants for tables together."""
    keeps = keeps or [slice(None)] * len(tables)
    left = {"quantise", "quantise_row"} if tables[0].dtype == "bf16" else set()
    names = sorted(set(FITTED) - left - (set() if tiled else {"waste"}))
    fixed = {"tiles": TILES if tiled else (), "widen": 1.0}

    def unpacked(x):
        logs = zip(names, x[:-1], strict=True)
        return fixed | {n: float(np.exp(v)) for n, v in logs} | {"droop": float(x[-1])}

    def residuals(x):
        found = unpacked(x)
        parts = [
            np.log(t.time(found, keep).value_s / t.seconds[keep])
            for t, keep in zip(tables, keeps, strict=True)
        ]
        return np.concatenate(parts)

    low, start, high = (
        [*np.log([FITTED[n][i] for n in names]), DROOP[i]] for i in range(3)
    )  # fmt: skip
    got = least_squares(
        residuals, start, bounds=(low, high), loss="soft_l1", f_scale=0.05, max_nfev=60
    )
    return unpacked(got.x)


def left_out(table, *, tiled=False):
    """Seconds of every row by constants that have not seen its (n, k) pair."""
    value = np.empty(len(table.seconds))
    for out in folds(table.group):
        value[out] = table.time(fit([table], [~out], tiled=tiled), out).value_s
    return value


def with_scale(tables, found, values):
    """Constants with the scale of residuals and the errors of the values.

    Each source of a table weighs the same in the scale: rows of a smaller one count repeatedly.
    """
    logs = np.concatenate([np.log(t.seconds / v) for t, v in zip(tables, values, strict=True)])
    rows = np.concatenate([t.m for t in tables])
    lower = np.concatenate([t.time(found).lower_s for t in tables])
    times = np.concatenate([t.weight() for t in tables])
    wrong = np.abs(np.exp(-logs) - 1)
    errors = {
        "matmul_error": float(np.median(wrong[rows >= 1024])),
        "small_error": float(np.median(wrong[rows <= 256])),
    }
    return found | scale_of(*(np.repeat(x, times) for x in (rows, lower, logs))) | errors


def show(name, table, found, value=None):
    """Errors by rows and source, and how the interval does."""
    time = table.time(found)
    value = time.value_s if value is None else value
    low, high = value * time.low_s / time.value_s, value * time.high_s / time.value_s
    for source in sorted(set(table.source)):
        of = table.source == source
        texts = []
        for subset, (least, most) in SUBSETS.items():
            keep = of & (table.m >= least) & (table.m <= most)
            e = table.wrong(value)[keep]
            texts.append(
                f"{subset} {np.median(e):.1%} / {e.mean():.1%} / {np.quantile(e, 0.9):.1%}"
            )
        held = inside(low[of], table.seconds[of], high[of], value[of])
        print(f"{name}, {source}: {'; '.join(texts)}; {held}")


def widening(table, found):
    """What intervals have to be widened by for nine rows in ten to lie inside."""
    for widen in np.arange(1.0, 8.0, 0.1):
        time = table.time(found | {"widen": float(widen)})
        inside = (time.low_s <= table.seconds) & (table.seconds <= time.high_s)
        if inside.mean() >= 0.9:
            return float(widen)
    return 8.0


def from_medians(of, shapes, like, medians):
    """Constants of a chip of which only medians by smallest dimension are published.

    The shapes are those of the table, the form that of ``like``; the fraction, the depth at
    which half is reached and the droop are fitted to the medians.
    """
    smallest = np.minimum(np.minimum(shapes.m, shapes.n), shapes.k)
    edges = (511, 1024, 2048, 4096, 10**9)
    bins = [
        (smallest > a) & (smallest <= b) & (shapes.m >= 1024) for a, b in itertools.pairwise(edges)
    ]
    on = chip(of)
    ideal = 2.0 * shapes.m * shapes.n * shapes.k / on.rate("bf16")

    def unpacked(x):
        return like | {"matmul": float(np.exp(x[0])), "k_half": float(np.exp(x[1])),
                       "droop": float(x[2]), "tiles": (), "waste": 0.0}  # fmt: skip

    def residuals(x):
        reached = ideal / shapes.time(unpacked(x), of=on).value_s
        off = [np.log(np.median(reached[b]) / m) for b, m in zip(bins, medians, strict=True)]
        return [*off, 0.02 * (x[1] - np.log(like["k_half"]))]

    start = [np.log(0.6), np.log(like["k_half"]), 0.02]
    bounds = [np.log(0.3), np.log(1.0), 0.0], [0.0, np.log(2000.0), 0.12]
    got = least_squares(residuals, start, bounds=bounds, diff_step=1e-3)
    print(of, "medians", np.round(np.array(medians) * np.exp(residuals(got.x)[:4]), 3))
    return unpacked(got.x)


def products(folder):
    """Every table of the file: default, families, chips."""
    tables = read(folder)
    chosen = {}
    for key, table in tables.items():
        whole = {tiled: left_out(table, tiled=tiled) for tiled in (False, True)}
        better = {t: table.wrong(v).mean() for t, v in whole.items()}
        tiled = better[True] < 0.99 * better[False]
        print(f"{key}: mean error {better[False]:.2%}, with tiles and waves {better[True]:.2%}")
        found = with_scale([table], fit([table], tiled=tiled), [whole[tiled]])
        chosen[key] = found
        show(f"{key} in fold", table, found)
        show(f"{key} left out", table, found, whole[tiled])
    return tables, chosen


def together(tables):
    """Constants of several chips at once, and what a chip that is none of them may expect."""
    found = fit(tables)
    values, widens = [], []
    for out in tables:
        rest = [t for t in tables if t is not out]
        other = fit(rest)
        other = with_scale(rest, other, [t.time(other).value_s for t in rest])
        show(f"{out.chip.key} {out.dtype} by {', '.join(t.chip.key for t in rest)}", out, other)
        values.append(out.time(other).value_s)
        widens.append(widening(out, other))
    scaled = with_scale(tables, found, [t.time(found).value_s for t in tables])
    errors = with_scale(tables, found, values)
    print("    widen", [round(w, 1) for w in widens])
    expected = {k: errors[k] for k in ("matmul_error", "small_error")}
    logs = [np.abs(np.log(t.seconds / v)) for t, v in zip(tables, values, strict=True)]
    expected["least"] = float(np.mean([np.quantile(each, 0.8) for each in logs]))
    return scaled, expected | {"widen": max(round(max(widens), 1), 1.0)}


def gemm_lines(folder):
    """The lines about products, in the order of the file."""
    tables, chosen = products(folder)
    of = {d: [t for (_, dtype), t in tables.items() if dtype == d] for d in ("bf16", "fp8")}
    default = {d: together(ts) for d, ts in of.items()}
    hopper = {d: together([t for t in ts if t.chip.architecture == "Hopper"])
              for d, ts in of.items()}  # fmt: skip
    fitted = {"kind": "fitted", "sources": ("aiconfigurator-gemm", "vidur-layers")}
    yield from lines("default", default["bf16"][0], **fitted, note=NOTES["default"])
    yield from lines("default.fp8", default["fp8"][0], **fitted, note=NOTES["fp8"])
    yield from derived("default", default["fp8"][0])
    for name, note in (("inherited", "inherited"), ("unseen", "unseen")):
        source = default if name == "unseen" else hopper
        assumed = {"kind": "assumed"}
        yield from lines(name, source["bf16"][1], **assumed, note=NOTES[note])
        yield from narrow(name, source["fp8"][1])
    families = {"9.0": {d: found[0] for d, found in hopper.items()}}
    families["8.0"] = {"bf16": chosen["a100-sxm-80gb", "bf16"]}
    families["10.0"] = {d: chosen["b200-sxm", d] for d in ("bf16", "fp8")}
    families["8.6"] = {"bf16": chosen["a40", "bf16"]}
    families["10.3"] = families["10.0"]
    medians = {key: from_medians(key, of["bf16"][0], default["bf16"][0], m)
               for key, m in MEDIANS.items()}  # fmt: skip
    families["8.9"] = {"bf16": medians["l40s"]}
    for name, found in families.items():
        yield from lines(f'family."{name}"', found["bf16"])
        if "fp8" in found:
            yield from lines(f'family."{name}".fp8', found["fp8"])
            yield from derived(f'family."{name}"', found["fp8"])
    for (key, dtype), found in chosen.items():
        title = f"chip.{key}" if dtype == "bf16" else f"chip.{key}.{dtype}"
        yield from lines(title, found, **fitted, note=NOTES["own"])
        if dtype == "fp8":
            yield from derived(f"chip.{key}", found)
    for key in medians:
        yield from lines(f"chip.{key}", {}, kind="assumed", note=NOTES["medians"],
                         **kept(default["bf16"][1]))  # fmt: skip
        yield from narrow(f"chip.{key}", default["fp8"][1])
    yield from searched(chosen, default["bf16"][1], default["fp8"][1])


def kept(expected):
    """What widens an interval."""
    return {k: expected[k] for k in ("widen", "least")}


def narrow(title, expected):
    """Narrow precisions of a chip of which no product in them is known."""
    for dtype in ("fp8", "fp8_block", "fp4"):
        yield from lines(f"{title}.{dtype}", kept(expected), kind="assumed")


def derived(title, fp8):
    """Precisions without a table of products: FP8 by block takes FP8's, FP4 a part of it."""
    same = fp8 | {"widen": 1.5}
    yield from lines(f"{title}.fp8_block", same, kind="assumed", sources=("aiconfigurator-gemm",),
                     note=NOTES["fp8_block"])  # fmt: skip
    less = same | {"matmul": FP4 * fp8["matmul"], "widen": 2.0}
    yield from lines(f"{title}.fp4", less, kind="assumed", sources=("aiconfigurator-gemm",),
                     note=NOTES["fp4"])  # fmt: skip


def searched(chosen, expected, expected_fp8):
    """Chips of which the best product found by search is known."""
    ratios = []
    for (key, dtype), found in chosen.items():
        best = chip(key).measured_best_bf16_flops_per_s
        if dtype == "bf16" and best:
            ratios.append(found["matmul"] * chip(key).rate("bf16") / best)
    middle = statistics.mean(ratios)
    print("fitted over best by search", np.round(ratios, 3), "mean", round(middle, 3))
    for key, one in chips().items():
        best = one.measured_best_bf16_flops_per_s
        if best and (key, "bf16") not in chosen:
            share = best / one.rate("bf16")
            spread = max(abs(r / middle - 1) for r in ratios)
            note = NOTES["searched"].format(middle, share, ", ".join(f"{r:.2f}" for r in ratios))
            yield from lines(f"chip.{key}", {"matmul": middle * share} | kept(expected),
                             kind="assumed", sources=("mleng-mamf", "aiconfigurator-gemm"),
                             matmul_error=0.06 + spread / 2, note=note)  # fmt: skip
            yield from narrow(f"chip.{key}", expected_fp8)


FP4 = 0.75
"""Of the fraction FP8 reaches; no product in FP4 is measured in public."""
NOTES = {
    "default": "A40, A100, H100, H200 and B200 together.",
    "fp8": "H100, H200 and B200 together; the time to bring inputs to FP8 is counted in.",
    "own": "Fitted to its own rows.",
    "inherited": "Those of its architecture, not measured on this chip; widened as H100 needs "
                 "where only H200 is known, and the reverse.",
    "unseen": "The default; errors and widening of each chip by constants of the others.",
    "fp8_block": "Those of FP8 with a scale for each tensor; no dense product by block is in the "
                 "table.",
    "fp4": "Those of FP8, three quarters of its fraction of a peak twice as high; not measured.",
    "medians": "No row of this chip is in the fit: only the published medians of the fraction of "
               "the peak by smallest dimension (.55 .62 .63 .57) are, with the form of the rest.",
    "searched": "{:.3f} of the best product found by search, {:.3f} of the peak; that is the "
                "mean of fitted over best on A100, B200, H100 and H200 ({}).",
}  # fmt: skip
