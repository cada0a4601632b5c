"""``scantling laws``: list them, fit one to runs, evaluate one, and where compute is best spent."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Self

import click
import msgspec

from scantling.cli.law_questions import depths, optimum, vocabulary
from scantling.cli.options import ListFirst, as_json, show_json
from scantling.units import count_text

runs_argument = click.argument("runs", type=click.Path(dir_okay=False, path_type=Path))
where = click.option("--where", multiple=True, metavar="CONDITION", help="Only runs that meet it: "
                     "column=value, !=, ~ (contains), < <= > >=. Repeatable.")  # fmt: skip
best = click.option("--best", is_flag=True, help="Of runs of one shape and number of tokens keep "
                    "the lowest loss (a sweep of learning rates).")  # fmt: skip


@click.group(cls=ListFirst, invoke_without_command=False)
def laws() -> None:
    """The laws of the loss: list them, fit one to your runs, or evaluate one.

    ``scantling laws [NAME…]`` lists them with form, domain, recipe and measured errors.
    """


@laws.command("list")
@click.argument("names", nargs=-1, metavar="[NAME…]")
@as_json
def listing(names: tuple[str, ...], as_json: bool) -> int:
    """The laws of the loss, with form, domain, recipe and measured errors."""
    from scantling import laws as known
    from scantling.report import text
    from scantling.sources import source

    chosen = [known.law(n) for n in names] or list(known.LAWS.values())
    if as_json:
        rows = [{"name": one.name, **msgspec.to_builtins(one.facts)} for one in chosen]
        priors = {k: msgspec.to_builtins(v) for k, v in known.priors().items()}
        bounds = {k: msgspec.to_builtins(v) for k, v in known.bounds().items()}
        show_json({"schema": 1, "laws": rows, "priors": priors, "bounds": bounds})
        return 0
    out = text.console()
    for one in chosen:
        out.print(f"[bold]{one.name}[/bold]: {one.title}")
        out.print(f"  {one.form}", markup=False)
        out.print(f"  N counts the {one.counts}; recipe: {one.recipe}", markup=False)
        for axis, (low, high) in one.domain.items():
            out.print(f"  {axis}: {count_text(low)} to {count_text(high)}")
        out.print(f"  {one.errors.text}", markup=False)
        out.print(f"  source: {source(one.source).title}, {source(one.source).where}", markup=False)
    return 0


@laws.command("fit")
@runs_argument
@click.option("--form", default="shape", help="Form to fit: shape, aspect, width-depth, "
              "body-tokens, size-tokens, over-training.")  # fmt: skip
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), metavar="LAW.toml",
              help="Write the law file that --law takes.")  # fmt: skip
@where
@best
@click.option("--bootstraps", type=click.IntRange(20, 2000), default=200, help="Refits behind "
              "the intervals.")  # fmt: skip
@click.option("--seed", type=int, default=0, help="Seed of starts and refits.")
@click.option("--calibrate", metavar="LAW", help="Fit no constants: move this law by one offset.")
@click.option("--recipe", default="", help="What the runs have in common, shown with each loss.")
@click.option("--report", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Write report.html, one page with plots (extra report).")  # fmt: skip
@as_json
def fit(runs: Path, form: str, out: Path | None, where: tuple[str, ...], best: bool,
        bootstraps: int, seed: int, calibrate: str | None, recipe: str, report: Path | None,
        as_json: bool) -> int:  # fmt: skip
    """Fit a law to a table of runs (CSV, or JSONL with one run a line).

    Columns: loss, tokens, params_total and params_nonemb (one is enough for some forms), width,
    depth, head_dim, unique_tokens. Losses that are no number and unknown tokens are left out.
    """
    from scantling.laws.files import law_text
    from scantling.laws.fit import fit_runs
    from scantling.laws.runs import best_runs, read_runs

    table = read_runs(runs, where)
    table = best_runs(table) if best else table
    if calibrate is not None:
        return _calibrate(calibrate, table, recipe, out, as_json=as_json)
    with _Progress() as progress:
        found = fit_runs(table, form, bootstraps=bootstraps, seed=seed, recipe=recipe,
                         progress=progress)  # fmt: skip
    if out is not None:
        _write(out, law_text(found.law.facts))
    if report is not None:
        from scantling.report.fitting_html import save_page

        click.echo(f"wrote {save_page(found, table, report)}", err=True)
    if as_json:
        show_json({"schema": 1, **found.to_dict()})
        return 0
    from scantling.report.fitting import fit_lines

    click.echo("\n".join(fit_lines(found)))
    return 0


def _calibrate(name: str, table: Any, recipe: str, out: Path | None, *, as_json: bool) -> int:
    from scantling import laws as known
    from scantling.laws.calibrated import calibrate_law
    from scantling.laws.files import law_text

    facts, told = calibrate_law(known.law(name), table, recipe)
    if out is not None:
        _write(out, law_text(facts))
    if as_json:
        show_json({"schema": 1, "form": facts.function, "rows": len(table),
                   "constants": facts.constants, "intervals": {}, "holdout": {}, "calibrates": name,
                   "told": told, "warnings": list(table.warnings)})  # fmt: skip
    else:
        for line in (*(f"warning: {w}" for w in table.warnings), told):
            click.echo(line)
    return 0


@laws.command("evaluate")
@click.argument("law_name", metavar="LAW")
@runs_argument
@where
@best
@as_json
def evaluate(law_name: str, runs: Path, where: tuple[str, ...], best: bool, as_json: bool) -> int:
    """How wrong LAW, a name or a law file, is on a table of runs."""
    from scantling import laws as known
    from scantling.laws.evaluate import evaluate as measure
    from scantling.laws.runs import best_runs, read_runs

    one = known.law(law_name)
    table = read_runs(runs, where)
    found = measure(one, best_runs(table) if best else table)
    if as_json:
        show_json({"schema": 1, **found.to_dict()})
        return 0
    for warning in found.warnings:
        click.echo(f"warning: {warning}")
    order = "no pairs of equal size"
    if found.pair_accuracy is not None:
        order = f"{found.pair_accuracy:.1%} of {found.pairs} pairs of equal size in the right order"
    after = found.after_offset
    click.echo(
        f"{found.law} on {found.rows} runs, nats a token, predicted minus measured\n"
        f"  bias {found.bias:+.4f}, mean absolute error {found.mae:.4f}, nine of ten within "
        f"{found.p90:.4f}\n"
        f"  90 % interval holds {found.interval_coverage:.1%}; {found.outside} runs outside the "
        f"fitted domain\n  {order}\n"
        f"  after one offset of {-after['offset']:+.4f}: {after['mae']:.4f}, nine of ten within "
        f"{after['p90']:.4f}, interval holds {after['interval_coverage']:.1%}"
    )
    return 0


@laws.command("priors")
@click.argument("axes", nargs=-1, metavar="[AXIS…]")
@as_json
def priors(axes: tuple[str, ...], as_json: bool) -> int:
    """What published ablations say of the axes that no law prices; AXIS shows one in full."""
    from scantling.report.priors import print_priors, priors_json

    if as_json:
        show_json(priors_json(axes))
    else:
        print_priors(axes)
    return 0


for asked in (optimum, vocabulary, depths):
    laws.add_command(asked)


def _write(path: Path, text: str) -> None:
    from scantling.errors import FieldError

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FieldError("--out", str(path), f"cannot be written: {error.strerror}") from error
    click.echo(f"wrote {path}", err=True)


class _Progress:
    """A bar on a terminal; a line for each stage elsewhere, on standard error."""

    def __init__(self) -> None:
        self.bar: Any = None
        self.tasks: dict[str, Any] = {}
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self.bar = Progress(console=Console(stderr=True), transient=True)

    def __enter__(self) -> Self:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        if self.bar is None:
            if what not in self.tasks:
                click.echo(f"{what} …", err=True)
            self.tasks[what] = None
            return
        if what not in self.tasks:
            self.tasks[what] = self.bar.add_task(what, total=total)
        self.bar.update(self.tasks[what], completed=done)
