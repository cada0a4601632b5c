"""Would ``design`` have found the shapes that were released? Every model, and a control.

    python benchmarks/backtest.py                # prints as it goes, then the page
    python benchmarks/backtest.py --write        # writes docs/backtest.md and docs/backtest.svg
    python benchmarks/backtest.py --every 10     # a tenth of it

For each model of ``data/backtest.toml`` the verdict on its shape (``search/backtest.py``), and on
20 random legal shapes of its size and blocks (``random_shapes``; the seed is the model's name).
"""

import argparse
import collections
import os
import pathlib
import random
import time

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

from scantling import catalog
from scantling.report.backtest import PLACES, shape_text
from scantling.report.figure import need_matplotlib
from scantling.search.backtest import (
    COSTS,
    backtest,
    cost_noise,
    judge,
    random_shapes,
    reasons,
    released,
    run_scatter,
)
from scantling.search.candidate import candidate

DOCS = pathlib.Path(__file__).parents[1] / "docs"
DRAWS = 20
NOISES = (0.01, 0.02, 0.03, 0.04, 0.05, 0.08)


HEAD = """\
# Back-test: would `design` have found the shapes that were released?

{models} dense models of 2022 to 2025, 0.1 to 405 B.
`design` is asked what their makers could have asked before training: so many parameters and
tokens, this context and vocabulary, on the chips of the year (A100 before July 2023, H100 after;
as many as train it in about a month).
No bound comes from known models, which would give the answer away; before grouped queries were
published (May 2023) every query head has a KV head.
Every legal shape made of the model's own blocks (norms, activation, biases, tying) is compared
with the released one: only dimensions differ.
Written by `make backtest`; one model: `scantling design --backtest MODEL`.

- **lower**: at no higher cost (training time, KV cache, time per token) the loss could be lower
  beyond the interval of the difference and the scatter of equal runs (± {scatter:.4f} nats).
- **cheaper**: at no higher loss *every* cost could be lower by more than {noise:.1%}; predicted
  step times are off by 2.6 to 5.1 % on average with the model left out of the fit; this width was
  chosen within that after the shares at several widths, below, had been seen.
- A loss counts as in a search, with the upper end of its prior terms.
- **on the front**: no legal shape is at least as good in all four and better in one;
  **in the band**: one is, but neither gap is beyond the noise; **dominated**: one of them is.
- Where a shape lies beyond the bounds of a search, they are opened as far as it lies.

![Released and random shapes by their two gaps](backtest.svg)

## What came out
"""
CONTROL = """
The control: {draws} random legal shapes for each model, of its size (± 0.5 %) and blocks, with
D/L from 8 to 320 and H h/D from 0.5 to 2 uniform in the logarithm, any head width that kernels
are built for, any K that divides H, MLP/attention from 0.5 to 12; widths in steps of 128, heads
over a node of eight from a billion parameters up.

How much hangs on the noise of costs, and on asking for *every* cost to be lower rather than any
single one (where the models fail whose KV cache could shrink for nothing):

| share of a cost that is noise | released | random | released, any one cost | random, any one |
| --- | --- | --- | --- | --- |"""
MISSES = """
## Every miss

What is better, and the reasons a reader can check: heads of 64 are GPT-2's, and were copied long
after kernels had wider ones; deep and narrow is chosen for tasks that the loss does not see
(mobilellm2024); attention of the model's own width (H h = D) was a habit, no rule.

| model | shape | better | saved in every cost | its loss | what it does differently |
| --- | --- | --- | --- | --- | --- |"""
EVERY = """
## Every model

| model | released | tokens | place | loss at no higher cost | every cost lower | one cost lower | bounds opened |
| --- | --- | --- | --- | --- | --- | --- | --- |"""  # noqa: E501 - a row of a table


def run(every):
    """Verdicts on released shapes by name, and on random ones."""
    found, control = {}, []
    for name in list(released())[::every]:
        started = time.perf_counter()
        verdict, others = backtest(name)
        found[name] = verdict
        chance = random.Random(name)  # noqa: S311 - shapes, no secrets
        shapes = random_shapes(catalog.model(name), others.budget, DRAWS, chance)
        drawn = [judge(candidate(one, others.budget), others) for one in shapes]
        control += drawn
        print(f"{name}: {verdict.place}, {sum(v.holds for v in drawn)} of {DRAWS} random ones "
              f"hold, {len(others.rows):,} shapes, {time.perf_counter() - started:.1f} s",
              flush=True)  # fmt: skip
    return found, control


def holds(verdict, noise):
    """Whether a shape would be on the front or in the band if that share of a cost were noise."""
    surely = verdict.lower is not None and verdict.lower.nats_high < 0
    return not surely and (verdict.cheaper is None or min(verdict.cheaper.saved) <= noise)


def holds_in_each(verdict, noise):
    """The same where a saving in any one cost counts, the others no higher."""
    single = verdict.single
    return holds(verdict, noise) and (single is None or max(single.saved) <= noise)


def share(verdicts, keep):
    verdicts = list(verdicts)
    return f"{sum(map(keep, verdicts)) / len(verdicts):.0%}"


def grouped(found, key):
    groups = collections.defaultdict(list)
    for name, verdict in found.items():
        groups[key(name)].append(verdict)
    return groups


def table(title, groups):
    lines = [f"| {title} | models | on the front | in the band | dominated | hold |",
             "| --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for name, verdicts in groups:
        places = collections.Counter(v.place for v in verdicts)
        kept = (len(verdicts) - places["dominated"]) / len(verdicts)
        lines.append(f"| {name} | {len(verdicts)} | {places['front']} | {places['band']} | "
                     f"{places['dominated']} | {kept:.1%} |")  # fmt: skip
    return lines


def gap_cell(gap):
    return "" if gap is None else f"{gap.nats:+.4f} ± {gap.nats_high - gap.nats:.4f}"


def single_cell(verdict):
    if verdict.single is None:
        return ""
    saved = verdict.single.saved
    at = max(range(len(saved)), key=saved.__getitem__)
    return f"{COSTS[at]} -{saved[at]:.0%}"


def page(found, control, seconds):
    everyone = list(found.values())
    year = grouped(found, lambda name: catalog.named()[name].released[:4])
    family = grouped(found, lambda name: released()[name].family)
    lines = HEAD.format(models=len(found), scatter=run_scatter(), noise=cost_noise()).split("\n")
    lines += table("", [("released", everyone), ("random legal shapes", control)])
    lines += CONTROL.format(draws=DRAWS).split("\n")
    for noise in NOISES:
        cells = [
            share(verdicts, lambda v, rule=rule, noise=noise: rule(v, noise))
            for rule in (holds, holds_in_each) for verdicts in (everyone, control)
        ]  # fmt: skip
        lines.append(f"| {noise:.1%} | {' | '.join(cells)} |")
    lines += ["", "## By year", "", *table("year", sorted(year.items()))]
    lines += ["", "## By family", "", *table("family", sorted(family.items()))]
    lines += MISSES.split("\n")
    for name, v in found.items():
        if not v.holds:
            gap = v.gap
            lines.append(f"| {name} | {shape_text(v.shape)} | {shape_text(gap.better)} | "
                         f"{min(gap.saved):.1%} | {gap_cell(gap)} | "
                         f"{'; '.join(reasons(v))} |")  # fmt: skip
    lines += EVERY.split("\n")
    for name, v in found.items():
        every = "" if v.cheaper is None else f"{min(v.cheaper.saved):.1%}"
        lines.append(f"| {name} | {catalog.named()[name].released} | "
                     f"{released()[name].tokens / 1e12:.3g} T | {PLACES[v.place]} | "
                     f"{gap_cell(v.lower)} | {every} | {single_cell(v)} | "
                     f"{', '.join(v.outside)} |")  # fmt: skip
    lines += ["", "Tokens and their sources: `src/scantling/data/backtest.toml`.",
              f"The run took {seconds / 60:.0f} minutes on one core.", ""]  # fmt: skip
    return "\n".join(lines)


def figure(found, control, path):
    """Each shape by what its loss and its costs could lose: released ones over random ones."""
    picture = need_matplotlib()(figsize=(8, 4.6), layout="constrained")
    axes = picture.subplots()
    drawn = (
        (control, "#bdbdbd", 8, f"random legal shapes ({len(control)})"),
        (found.values(), "#d95f0e", 18, f"released ({len(found)})"),
    )
    for verdicts, color, size, label in drawn:
        x = [100 * min(v.cheaper.saved) if v.cheaper else 0 for v in verdicts]
        y = [max(0.0, -v.lower.nats) if v.lower else 0 for v in verdicts]
        axes.scatter(x, y, s=size, color=color, linewidths=0, label=label, alpha=0.8)
    axes.axvline(100 * cost_noise(), color="#2c7fb8", linewidth=1, label="noise of costs")
    axes.set_xscale("symlog", linthresh=1)
    axes.set_yscale("symlog", linthresh=0.005)
    axes.set_xlabel("% every cost could be lower, at no higher loss")
    axes.set_ylabel("nats the loss could be lower, at no higher cost")
    axes.legend(fontsize=8, loc="lower right")
    picture.savefig(path, metadata={"Date": None})


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--write", action="store_true", help="write the page and its figure")
    options.add_argument("--every", type=int, default=1, metavar="N", help="every Nth model")
    given = options.parse_args()
    started = time.perf_counter()
    found, control = run(given.every)
    text = page(found, control, time.perf_counter() - started)
    if given.write:
        (DOCS / "backtest.md").write_text(text, encoding="utf-8")
        figure(found, control, DOCS / "backtest.svg")
    else:
        print(text)


if __name__ == "__main__":
    main()
