"""``scantling calibrate``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from scantling.cli.options import as_json, show_json

if TYPE_CHECKING:
    from scantling.calibrate import Calibration

BUSY = 0.5
"""Programs per core beyond which a measurement by the wall clock is disturbed."""


@click.command()
@click.option("--device", default="cpu", metavar="cpu|cuda", help="What to measure.")
@click.option("--threads", type=int, help="Threads of the CPU; torch's own number by default. "
              "With 1, a shared machine can be measured.")  # fmt: skip
@click.option("--out", metavar="FILE", default="chip.toml", show_default=True,
              help="The chip file to write.")  # fmt: skip
@click.option("--quick", is_flag=True, help="A third of the cases, in a third of the time.")
@as_json
def calibrate(device: str, threads: int | None, out: str, quick: bool, as_json: bool) -> int:
    """Measure this machine and write a chip file, which --gpu takes for a chip's name.

    Takes one to two minutes and needs torch. The file is written whole, at the end.

    Example: scantling calibrate --out my-cpu.toml
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from scantling.calibrate import calibrate as run
    from scantling.report import text

    # No thread of its own refreshes the bar: it would be measured with the rest.
    bar = Progress(TextColumn("measure"), BarColumn(), TextColumn("{task.description}"),
                   TimeElapsedColumn(), console=text.console(stderr=True), auto_refresh=False,
                   transient=True)  # fmt: skip
    with bar:
        task = bar.add_task("", total=None)

        def told(done: int, total: int, kind: str) -> None:
            bar.update(task, completed=done, total=total, description=kind)
            if done % 20 == 0:
                bar.refresh()

        found = run(device, threads=threads, quick=quick, out=out, progress=told)
    if as_json:
        show_json({
            "schema": 1, "file": out, "chip": msgspec.to_builtins(found.chip),
            "samples": msgspec.to_builtins(found.samples),
        })  # fmt: skip
        return 0
    _show(found, out)
    return 0


def _show(found: Calibration, out: str) -> None:
    """The rates, the errors and where the file is."""
    from scantling.report import text

    one, m = found.chip, found.measured
    console = text.console()
    rates = ", ".join(f"{d} {one.rate(d) / 1e9:,.0f} GFLOP/s" for d in one.dtypes)
    console.print(
        f"[bold]{one.name}[/bold]: {rates}, copies {one.memory_bytes_per_s / 1e9:,.1f} GB/s; "
        f"{len(found.samples)} cases in {m.seconds:.0f} s, {m.clock} clock"
    )
    table = text.table(
        ("kind", "left"), ("fitted on", "right"), ("error", "right"), ("held out", "right"),
        ("error", "right"), ("in interval", "right"),
    )  # fmt: skip
    for e in m.errors:
        table.add_row(e.kind, str(e.n_fitted), _percent(e.fitted), str(e.n_held),
                      _percent(e.held), _percent(e.inside, 0))  # fmt: skip
    text.show_table(console, table)
    console.print("mean absolute errors; each step held out is predicted with constants from the "
                  "other models")  # fmt: skip
    ratios = ", ".join(f"{n} ×{ratio:.2f}" for n, ratio in m.alignment)
    console.print("time of a product by the largest power of two that divides its widths, "
                  f"over 64: {ratios}")  # fmt: skip
    if m.clock == "wall" and m.load > BUSY:
        console.print(f"[yellow]the machine was busy ({m.load:.1f} programs a core): run again "
                      "when it is idle, or with --threads 1[/yellow]")  # fmt: skip
    console.print(f"written: {out}; use it as --gpu {out if '/' in out else './' + out}")


def _percent(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:.{digits}%}"
