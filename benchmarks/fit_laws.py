"""Fit scantling's own law to public runs, and print what it misses on runs held out.

Usage: python benchmarks/fit_laws.py TABLES [--write]

Only models below 0.6 B of the Gemstones are used, so that larger ones can judge the law.
"""

import csv
import sys
from pathlib import Path

import msgspec
import numpy as np

from scantling.laws.evaluate import evaluate, pairs_of_equal_size
from scantling.laws.files import law_text
from scantling.laws.fit import fit_runs
from scantling.laws.registry import FORMS
from scantling.laws.robust import constants_of, solve
from scantling.laws.runs import best_runs, read_runs

DATA = Path(__file__).parents[1] / "src" / "scantling" / "data"
COMMON = (
    "Dolma 1.7 validation, GPT-NeoX tokenizer padded to 50304, context 2048, gated feed-forward "
    "of 4 D, two query heads a KV head, head width 128, untied; "
)
OWN = {
    "shape": ("lr_note~cooled", "constant learning rate cooled to zero over 10 % extra tokens"),
    "shape-constant": ("lr_note~main suite", "constant learning rate after warm-up"),
}
FORM_TEXT = (
    "L = E + A n^-α exp(κ a²) + B n^δ d^-β + excess(h), n = (body + share V0 W)/N0, d = tokens/D0, "
    "a = ln(W/L) - ln r0 - ν ln n"
)
DRAWS = 24
HEADS = {"d_head": (64.0, 256.0)}  # the runs have 128; the excess of the head covers the rest


def left_out(runs, groups, form):
    """Errors and half-widths of runs whose group the fit did not see."""
    start, errors = solve(runs, form).vector, np.empty(len(runs))
    for i in np.unique(groups):
        out = groups == i
        vector = solve(runs.take(~out), form, start=start).vector
        values = constants_of(runs.take(~out), form, vector)
        errors[out] = FORMS[form](runs.take(out).features, values) - runs.loss[out]
    return errors


def line(what, errors, bar, more=""):
    mae = np.mean(np.abs(errors))
    print(f"{what:58} {mae:.4f}  bar {bar:.3f}  bias {np.mean(errors):+.4f}  {more}", flush=True)


def order(runs, errors):
    first, second, apart = pairs_of_equal_size(runs)
    predicted = runs.loss + errors
    right = np.sign(predicted[first] - predicted[second]) == np.sign(apart)
    return f"order right {np.mean(right):.3f} of {len(right)} pairs" if len(right) else ""


def ahead(small, large, form):
    found = fit_runs(small, form)
    told = evaluate(found.law, large)
    errors = np.asarray(found.law.loss(large.features)) - large.loss
    pairs = (
        "" if told.pair_accuracy is None else f", order {told.pair_accuracy:.3f} of {told.pairs}"
    )
    return errors, f"interval holds {told.interval_coverage:.2f}{pairs}"


def morph_sizes(path):
    rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    names = [row["run_id"].split("_")[0] for row in rows if float(row["params_total"]) < 6e8]
    return np.unique(names, return_inverse=True)[1]


def judge(tables, form):
    print(f"\n== {form}: mean absolute errors, nats a token")
    for name, where, bar in (("constant", "lr_note~main suite", 0.010),
                             ("cooled", "lr_note~cooled", 0.013)):  # fmt: skip
        runs = read_runs(tables / "gemstones.csv", [where, "params_total<6e8"])
        errors = left_out(runs, runs.shapes, form)
        line(f"Gemstones {name}, a shape left out", errors, bar, order(runs, errors))
        small = read_runs(tables / "gemstones.csv", [where, "params_total<1.3e8"])
        large = read_runs(tables / "gemstones.csv", [where, "params_total>4e8", "params_total<6e8"])
        errors, more = ahead(small, large, form)
        line(f"Gemstones {name}, fitted to 0.12 B, tested at 0.5 B", errors, 0.05, more)
    path = tables / "morph_shapes.csv"
    runs = read_runs(path, ["params_total<6e8"])
    errors = left_out(runs, morph_sizes(path), form)
    line("Morph, a size left out", errors, 0.010, order(runs, errors))
    for warm_up in ("400", "best"):
        # Widths below 1024 were tried with 100 to 400 steps, 1024 with 2000 too: the best of each
        # compares shapes tuned unequally; 400 is the longest that all have.
        where = ["run_id~-64-0.003", "head_dim>=50"] + ["warmup=400"] * (warm_up == "400")
        runs = best_runs(read_runs(tables / "openlm_grid_20x.csv", where))
        width = np.unique(runs.features.width, return_inverse=True)[1]
        for what, groups in (("shape", runs.shapes), ("width", width), ("octave", runs.sizes)):
            errors = left_out(runs, groups, form)
            line(f"open_lm grid, warm-up {warm_up}, h >= 50, left out: a {what}", errors, 0.008)
    small, large = (
        read_runs(tables / "olmo_ladder.csv", ["loss_kind~c4_en", *limits])
        for limits in (["params_total<2e9"], ["params_total>2e9", "params_total<4e9"])
    )
    errors, more = ahead(small, large, form)
    line("OLMo ladder on C4, fitted to 1.3 B, tested at 3 B", errors, 0.035, more)


def main(folder, *options):
    tables = Path(folder)
    for form in ("shape", "aspect", "width-depth", "body-tokens"):
        judge(tables, form)
    for name, (where, schedule) in OWN.items():
        runs = read_runs(tables / "gemstones.csv", [where, "params_total<6e8"])
        title = f"scantling's own: body, tokens, aspect ratio; {schedule}"
        found = fit_runs(
            runs, "shape", source="gemstones2025", recipe=COMMON + schedule, title=title
        )
        print(f"\n== {name}\n{msgspec.json.format(msgspec.json.encode(found.to_dict())).decode()}")
        draws = tuple(
            {k: float(f"{v:.6g}") for k, v in one.items()} for one in found.law.facts.draws
        )
        facts = msgspec.structs.replace(
            found.law.facts,
            form=FORM_TEXT,
            domain=found.law.domain | HEADS,
            draws=draws[:: len(draws) // DRAWS][:DRAWS],
        )
        if "--write" in options:
            text = "# Written by benchmarks/fit_laws.py; models below 0.6 B only.\n"
            (DATA / f"law_{name}.toml").write_text(text + law_text(facts), encoding="utf-8")


main(*sys.argv[1:])
