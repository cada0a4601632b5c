"""Refit what is fitted in the memory of training, each group of rows left out in turn.

    python benchmarks/fit_memory.py ../shared/data/measured

A group is a model and a layout over chips, so rows that differ in micro-batches alone never stand
on both sides. Numbers are refitted on the other groups (the allocator's factor, the scratch of the
libraries, the widths of intervals); readings of software (how many copies of the logits live) are
chosen again among their neighbours. Prints the errors of rows that no fit saw.
"""

from __future__ import annotations

import argparse
import collections
import csv
import pathlib
from collections.abc import Callable, Iterable, Sequence
from unittest import mock

import numpy as np
from msgspec import Struct

from scantling.costs import memory
from scantling.costs.activations import item
from scantling.costs.buffers import constants
from scantling.errors import ScantlingError
from scantling.spec import dtype_bytes
from scantling.spec.plan import Recipe
from scantling.validate import memory as tables
from scantling.validate.table import CsvRow, Scored

GIB = 2**30
COVERED = 0.9
MEGATRON, TITAN = "train_simumax_b200.csv", "train_torchtitan.csv"
ADAPTERS, DEEPSPEED = "memory_litgpt_finetune_infer.csv", "train_mleng_llama8b_seqsweep.csv"
READERS: dict[str, tuple[Callable[[CsvRow], Scored], tuple[str, ...]]] = {
    MEGATRON: (tables.megatron_peak, ("model", "tp", "pp", "dp", "cp", "ep", "seq_len")),
    TITAN: (
        tables.torchtitan_peak,
        ("model", "fsdp", "tp", "pp", "cp", "activation_ckpt", "torch_compile"),
    ),
    ADAPTERS: (tables.litgpt_peak, ("model", "section", "n_gpus")),
    DEEPSPEED: (tables.deepspeed_peak, ("model", "gpu", "n_gpus", "seq_len")),
}
"""How each table is read, and the columns that make a group: of the last, lengths stand for
layouts, for there is one layout."""


class Row(Struct, frozen=True):
    """A measured peak and what is said of it."""

    group: str
    actual: float
    predicted: float
    half: float
    """Half-width of its interval."""
    cells: dict[str, str]

    @property
    def off(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted / self.actual - 1


def rows_of(folder: pathlib.Path, table: str) -> list[Row]:
    """The rows of a table that have a peak."""
    predict, columns = READERS[table]
    found = []
    with (folder / table).open(newline="", encoding="utf-8") as file:
        for cells in csv.DictReader(file):
            try:
                one = predict(cells)
            except ScantlingError:
                continue
            assert one.low is not None
            assert one.high is not None
            group = " ".join(cells[c] for c in columns)
            half = (one.high - one.low) / 2
            found.append(Row(group, one.actual, one.predicted, half, cells))
    return found


def folds(rows: Sequence[Row]) -> Iterable[tuple[list[Row], list[Row]]]:
    """All rows but a group's, and the group's."""
    for group in dict.fromkeys(row.group for row in rows):
        yield (
            [row for row in rows if row.group != group],
            [row for row in rows if row.group == group],
        )


def say(name: str, off: Sequence[float]) -> None:
    """Errors in percent."""
    sizes = np.abs(np.array(off)) * 100
    print(f"  {name:46} rows {len(sizes):3}  mean {sizes.mean():5.2f} %"
          f"  median {np.median(sizes):5.2f} %  largest {sizes.max():5.2f} %")  # fmt: skip


# ---------------------------------------------------------------- numbers


def widths(rows: Sequence[Row]) -> None:
    """The factor on all half-widths that covers nine rows in ten, and what it covers elsewhere."""
    inside, sizes, factors = [], [], []
    for others, own in folds(rows):
        needed = [abs(r.actual - r.predicted) / r.half for r in others]
        factor = float(np.quantile(needed, COVERED, method="higher"))
        factors.append(factor)
        inside += [abs(r.actual - r.predicted) <= factor * r.half for r in own]
        sizes += [factor * r.half / r.predicted for r in own]
    now = np.mean([abs(r.actual - r.predicted) <= r.half for r in rows])
    error = np.median([abs(r.off) for r in rows])
    as_is = np.median([r.half / r.predicted for r in rows])
    print(f"  intervals as they are cover {now:.0%}, half-width {as_is / error:.1f} × median error")
    print(f"  refitted (factors {min(factors):.2f} to {max(factors):.2f}) cover"
          f" {np.mean(inside):.0%} of rows left out, half-width"
          f" {np.median(sizes) / error:.1f} × median error")  # fmt: skip


def scratch(rows: Sequence[Row]) -> None:
    """The libraries' scratch, the median of what the other groups lack."""
    known = constants()["workspace"]["value_bytes"] / GIB
    found, off = [], []
    for others, own in folds(rows):
        by = collections.defaultdict(list)
        for row in others:
            by[row.group].append(row.actual - row.predicted + known)
        value = max(0.0, float(np.median([np.mean(v) for v in by.values()])))
        found.append(value)
        off += [(row.predicted - known + value) / row.actual - 1 for row in own]
    say(f"scratch {min(found):.2f} to {max(found):.2f} GiB (used {known:.2f})", off)


def allocator(rows: Sequence[Row], elsewhere: Sequence[Row]) -> None:
    """Reserved over allocated: the mean of groups, and what it makes of peaks reserved."""
    used = constants()["reserved"]["value"]
    found, off, other = [], [], []
    for others, own in folds(rows):
        by = {r.group: float(r.cells["peak_reserved_gib"]) / r.actual for r in others}
        factor = float(np.mean(list(by.values())))
        found.append(factor)
        off += [r.predicted * factor / float(r.cells["peak_reserved_gib"]) - 1 for r in own]
        other += [r.predicted / used * factor / r.actual - 1 for r in elsewhere]
    text = f"allocator {min(found):.3f} to {max(found):.3f} (used {used})"
    say(f"{text}, reserved", off)
    say("the same factors on torchtitan", other)


# ---------------------------------------------------------------- readings


def copies(folder: pathlib.Path, table: str, counts: Sequence[float]) -> None:
    """How many copies of the logits live beside what the head wrote, chosen without each group."""
    made = {}
    for count in counts:

        def live(recipe: Recipe, count: float = count) -> float:
            read = item(recipe) if recipe.fused_loss else dtype_bytes(recipe.logits)
            return item(recipe) + count * read

        with mock.patch.object(memory, "live_logits", live):
            made[count] = rows_of(folder, table)
    chosen: collections.Counter[float] = collections.Counter()
    off: list[float] = []
    for group in dict.fromkeys(r.group for r in made[counts[0]]):
        error = {
            c: np.mean([abs(r.off) for r in rows if r.group != group]) for c, rows in made.items()
        }
        best = min(error, key=lambda c: float(error[c]))
        chosen[best] += 1
        off += [r.off for r in made[best] if r.group == group]
    text = ", ".join(f"{c:g} in {n} folds" for c, n in chosen.items())
    say(f"further copies of logits: {text}", off)


def main() -> None:
    """Refit and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    rows = {table: rows_of(folder, table) for table in READERS}
    for table, own in rows.items():
        print(f"{table}, {len({r.group for r in own})} groups")
        say("as it is", [r.off for r in own])
        widths(own)
        if table == MEGATRON:
            scratch(own)
            allocator(own, rows[TITAN])
            copies(folder, table, (0, 1, 2))
        elif table in {TITAN, ADAPTERS}:
            copies(folder, table, (1, 2, 3, 4))
    small = [r for table in (MEGATRON, TITAN, DEEPSPEED) for r in rows[table]]
    print("the three tables of fewer than 30 rows together")
    say("as it is", [r.off for r in small])
    widths(small)


if __name__ == "__main__":
    main()
