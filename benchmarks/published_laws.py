"""What each published law is off by on public tables of runs: raw, and after one offset.

Usage: python benchmarks/published_laws.py TABLES
"""

import sys
from pathlib import Path

import numpy as np

from scantling.laws import LAWS
from scantling.laws.runs import has, read_runs

TABLES = [
    ("Gemstones constant", "gemstones.csv", ["lr_note~main suite"]),
    ("Gemstones cooled", "gemstones.csv", ["lr_note~cooled"]),
    ("Morph", "morph_shapes.csv", []),
    ("open_lm grid", "openlm_grid_20x.csv", ["run_id~-64-0.003"]),
    ("OLMo ladder, C4", "olmo_ladder.csv", ["loss_kind~c4_en"]),
    (
        "open_lm over-trained, C4",
        "openlm_overtrain.csv",
        ["loss_kind~on C4", "dataset=c4_original"],
    ),
    ("Chinchilla, digitised", "chinchilla_epoch_with_shapes.csv", []),
    ("Misfitting", "misfitting_li2025.csv", []),
    ("repeated C4", "datablations_repeat.csv", []),
]


def main(folder):
    for name, law in LAWS.items():
        raw, offset = {}, {}
        for title, file, where in TABLES:
            runs = read_runs(Path(folder) / file, where)
            with np.errstate(all="ignore"):
                off = np.asarray(law.loss(runs.features)) - runs.loss
            if has(off):
                raw[title] = float(np.median(off))
                offset[title] = float(np.mean(np.abs(off - np.median(off))))
        if not raw:
            print(f"{name}: no table has its features")
            continue
        print(
            f"{name}: raw {min(raw.values()):+.2f} to {max(raw.values()):+.2f}; after one offset "
            f"{min(offset.values()):.3f} to {max(offset.values()):.3f} on {len(raw)} tables"
        )
        for title, value in raw.items():
            print(f"    {title}: {value:+.3f}, then {offset[title]:.4f}")


main(sys.argv[1])
