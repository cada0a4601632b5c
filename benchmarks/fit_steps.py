"""Fit the constants of a training step in ``data/constants/step.toml``.

    python benchmarks/fit_steps.py ../shared/data/measured [--out] [--without CHIP]

The parts of a step (seconds of kernels and collectives alone) are made once a row; the constants
are what makes their sum the measured step. One set a family of chips, and small departures for
each chip, by the mean absolute logarithm of the ratio (rounded at its tip), with a prior on each
constant that says how far it may lie from the default. Prints the error on the rows fitted, on
groups left out (a model size, a model), and on the tables that no fit ever sees.
"""

import argparse
import collections
import csv
import pathlib
import sys

import numpy as np
from msgspec.structs import replace
from scipy.optimize import least_squares

from scantling.costs.train import assemble, terms
from scantling.errors import ScantlingError
from scantling.validate.runs import RUNS, measured_step

FITTED = (
    "train_mpt_llmfoundry.csv", "train_torchtitan.csv", "train_simumax_b200.csv",
    "train_megatron_bridge.csv", "train_nemo_long_sequence.csv",
    "train_mleng_llama8b_seqsweep.csv",
)  # fmt: skip
UNSEEN = ("train_megatron_weak_scaling.csv", "train_korthikanti2022_itertime.csv",
          "train_maxtext_tpu.csv")  # fmt: skip
"""Tables that only check."""

SPREAD = {
    "matmul": 0.15, "matmul_fp8": 0.3, "matmul_block": 0.3, "matmul_mxfp8": 0.3,
    "matmul_nvfp4": 0.4, "cold": 0.6, "experts": 0.4, "experts_fused": 0.4,
    "flash": 0.2, "flash2": 0.1,
    "flash3": 0.15, "scan": 0.3, "eager": 0.2,
    "fused": 0.2, "exposed": 0.5, "exposed_tensor": 0.3, "exposed_expert": 0.4, "serial": 0.3,
    "optimizer": 0.3, "gap_eager_s": 0.4, "gap_fused_s": 0.4, "wait_experts_s": 0.3,
    "offload_bytes_per_s": 0.7,
}  # fmt: skip
"""Standard deviation of the prior of each constant's logarithm."""
FAMILY_ONLY = {
    "scan",
    "experts",
    "gap_eager_s",
    "gap_fused_s",
    "wait_experts_s",
    "serial",
    "flash_width",
}
CHIP = 0.4
"""A chip's departure from its family, as a share of those."""
TIP = 0.03
"""Where the absolute value of an error is rounded."""


class Row:
    """One measured step with its parts."""

    def __init__(self, table, row, run):
        self.table, self.run = table, run
        self.id = row.get("row_id", "")
        self.actual = measured_step(table, row, run)
        self.group = run.group
        hardware = run.cluster.chip
        self.chip = hardware.key
        self.family = hardware.architecture
        self.base = hardware.constants.step
        self.terms = terms(run.spec, run.plan, run.recipe, run.context, run.cluster, run.mtp_passes)
        self.weight = 1.0

    def step(self, c):
        """Its predicted step with some constants."""
        return assemble(self.terms, self.run.plan, self.run.recipe, c).step_s


def load(folder, tables):
    """Rows of some tables, and why others are none."""
    found, reasons = [], collections.Counter()
    for table in tables:
        rows = list(csv.DictReader((folder / table).open()))
        for row in rows:
            if table == "train_torchtitan.csv" and int(row["cp"]) > 1:
                continue  # PyTorch's ring, 1.7 times as slow as its kernels, teaches no chip
            try:
                found.append(Row(table, row, RUNS[table](row)))
            except ScantlingError as error:
                reasons[f"{table}: {error}"[:110]] += 1
    per = collections.Counter((r.table, r.chip) for r in found)
    for r in found:
        r.weight = (per[r.table, r.chip] / 30 + 1) ** -0.5
    return found, reasons


def fit(rows, base, names, prior, share=1.0):
    """The constants that the rows ask for, none far from its prior without need."""
    names = [n for n in names if getattr(prior, n) > 0]
    x0 = np.log([getattr(prior, n) for n in names])
    sd = np.array([SPREAD[n] for n in names]) * share
    weight = np.array([r.weight for r in rows])
    actual = np.log([r.actual for r in rows])

    def residuals(x):
        c = replace(base, **dict(zip(names, np.exp(x), strict=True)))
        e = (np.log([r.step(c) for r in rows]) - actual) / TIP
        rounded = np.sqrt(2 * (np.sqrt(1 + e**2) - 1)) * weight
        return np.concatenate([rounded, (x - x0) / sd])

    shares = np.array([n.startswith("exposed") for n in names])
    most = np.where(shares, np.maximum(0.0, x0 + 1e-3), x0 + 3)  # no more shows than there is
    found = least_squares(residuals, x0, bounds=(x0 - 3, most), diff_step=1e-3, max_nfev=30)
    return replace(base, **dict(zip(names, map(float, np.exp(found.x)), strict=True)))


def fit_all(rows, default):
    """Constants by family and by chip."""
    families, chips = {}, {}
    for family in sorted({r.family for r in rows}):
        own = [r for r in rows if r.family == family]
        families[family] = fit(own, default, list(SPREAD), default)
        for key in sorted({r.chip for r in own}):
            names = [n for n in SPREAD if n not in FAMILY_ONLY]
            mine = [r for r in own if r.chip == key]
            chips[key] = fit(mine, families[family], names, families[family], CHIP)
    return families, chips


def errors(rows, families, chips, default):
    """Predicted over measured speed less 1; families and chips without constants inherit."""
    found = []
    for r in rows:
        c = chips.get(r.chip) or families.get(r.family) or default
        found.append(r.actual / r.step(c) - 1)
    return np.array(found)


def left_out(rows, default, key=lambda r: r.group):
    """Errors of each row with its group left out of every fit."""
    found = {}
    for group in sorted({key(r) for r in rows}):
        families, chips = fit_all([r for r in rows if key(r) != group], default)
        held = [r for r in rows if key(r) == group]
        for r, e in zip(held, errors(held, families, chips, default), strict=True):
            found[id(r)] = e
    return np.array([found[id(r)] for r in rows])


def tell(title, rows, e, by=lambda r: (r.table, r.chip)):
    """Print errors by table and chip."""
    print(title)
    for name in sorted({by(r) for r in rows}):
        mine = np.array([x for r, x in zip(rows, e, strict=True) if by(r) == name])
        size = np.abs(mine)
        print(
            f"  {' '.join(name):58} {len(mine):4} mean {size.mean():.3f} median "
            f"{np.median(size):.3f} p90 {np.quantile(size, 0.9):.3f} bias {mine.mean():+.3f}"
        )


SOURCES = {
    "train_mpt_llmfoundry.csv": "llm-foundry", "train_torchtitan.csv": "torchtitan-llama3-h100",
    "train_simumax_b200.csv": "simumax-b200", "train_megatron_bridge.csv": "megatron-bridge",
    "train_nemo_long_sequence.csv": "nemo-long-sequence",
    "train_mleng_llama8b_seqsweep.csv": "mleng-gpu-upgrade",
}  # fmt: skip


def write(path, rows, families, chips, default):
    """Rewrite the families and chips of a constants file, its default tables as they stand."""
    head = path.read_text().partition("# Fitted by")[0].rstrip()
    lines = [
        head,
        "",
        "# Fitted by benchmarks/fit_steps.py; what a table leaves out is inherited.",
        "",
    ]

    def table(name, c, base, own):
        lines.append(f"[{name}]")
        for n in SPREAD:
            value = float(f"{getattr(c, n):.3g}")
            if abs(np.log(value / getattr(base, n))) > 0.005:
                lines.append(f"{n} = {value:.3g}")
        sources = sorted({SOURCES[r.table] for r in own})
        lines.extend(['kind = "fitted"', f"sources = {sources}".replace("'", '"'),
                      f'note = "{len(own)} rows."', ""])  # fmt: skip

    for name, c in families.items():
        table(f'family."{name}"', c, default, [r for r in rows if r.family == name])
    for key, c in chips.items():
        mine = [r for r in rows if r.chip == key]
        table(f"chip.{key}", c, families[mine[0].family], mine)
    path.write_text("\n".join(lines).rstrip() + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true", help="no groups left out")
    parser.add_argument("--groups", action="store_true", help="errors by group")
    parser.add_argument("--without", help="predict chips whose key starts so")
    parser.add_argument("--write", type=pathlib.Path, help="the constants file to rewrite")
    asked = parser.parse_args()
    rows, reasons = load(asked.folder, FITTED)
    for reason, n in reasons.items():
        print(f"  {n} rows without a run: {reason}")
    default = rows[0].base.default()
    if asked.without:
        families, chips = fit_all(
            [r for r in rows if not r.chip.startswith(asked.without)], default
        )
        held = [r for r in rows if r.chip.startswith(asked.without)]
        e = errors(held, families, chips, default)
        tell(f"without any row of {asked.without}", held, e)
        tell("  by group", held, e, lambda r: (r.table, r.group))
        return
    families, chips = fit_all(rows, default)
    if asked.write:
        write(asked.write, rows, families, chips, default)
    for name, c in {**families, **chips}.items():
        print(f"[{name}] " + " ".join(f"{n}={getattr(c, n):.4g}" for n in SPREAD))
    tell("in sample", rows, errors(rows, families, chips, default))
    check, _ = load(asked.folder, UNSEEN)
    tell("tables never fitted", check, errors(check, families, chips, default))
    if not asked.quick:
        e = left_out(rows, default)
        tell("group left out", rows, e)
        if asked.groups:
            tell("group left out, by group", rows, e, lambda r: (r.table, r.chip, r.group))


if __name__ == "__main__":
    sys.exit(main())
