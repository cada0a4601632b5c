"""``scantling design``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

from scantling.cli import design_options
from scantling.cli.design_options import (
    check_shown,
    legal_takes,
    parsed,
    read_depths,
    read_fixed,
    read_limits,
    refuse_beside,
)
from scantling.cli.options import as_json, show_json
from scantling.errors import FieldError

SLOW_SHAPES = 3_000_000
"""A sweep of more shapes takes over two seconds and shows its progress."""


@click.command()
@design_options.limits
@design_options.questions
@as_json
def design(**given: Any) -> int:
    """From a budget to the shapes worth training.

    Example: scantling design --params 7B --vocab 128256 --context 8192 --gpu h100-sxm --gpus 64
    --tokens 2T
    """
    from scantling import search
    from scantling.report import design_more

    for asked, answer, takes in (
        (given["list_legal"], _list_legal, legal_takes(given)),
        (given["backtest"], _backtest, {"backtest", "tokens"}),
        (given["prior"] == "list", _list_priors, None),
    ):
        if asked:
            refuse_beside("--list-legal" if given["list_legal"] else "--backtest", takes)
            return answer(given)
    limits = read_limits(given)
    check_shown(given)
    ask = design_more.Ask(
        explain=given["explain"], task=given["task"], like=given["like"], origin=given["origin"],
        ladder=parsed(given["ladder"], "--ladder"), depths=read_depths(given),
    )  # fmt: skip
    b = design_more.budget_of(ask, limits)
    if given["plot"] is not None:
        from scantling.report.figure import check_path

        check_path(given["plot"])
    if given["save"] is not None:
        from scantling.report.save import check_folder

        check_folder(given["save"])
    names = given["baseline"] or ((given["like"],) if given["like"] else None)
    with _progress(b) as progress:
        front = search.design(b, baselines=names, progress=progress, engine=given["engine"],
                              workers=given["workers"])  # fmt: skip
    _say_stopped(front)
    with _steps("searches") as step:
        more = design_more.sections(front, ask, step)
    for note in (note for one in more for note in one.notes):
        click.echo(f"note: {note}", err=True)
    _write(front, more, given)
    _show(front, more, given)
    return _status(front)


def _show(front: Any, more: list[Any], given: dict[str, Any]) -> None:
    """The answer as text or JSON."""
    from scantling import search
    from scantling.report import text

    plans = None
    if front.feasible:
        with _steps("plans") as step:
            n = search.ROWS if given["as_json"] else given["rows"]
            plans = search.row_plans(front, n, step)
    if given["as_json"]:
        show_json(search.front_json(front, plans=plans) | {one.key: one.json for one in more})
        return
    out = text.console()
    if front.feasible:
        text.print_front(out, front, given["rows"], plans)
    elif not front.swept.stopped:
        text.print_infeasible(out, front)
    for one in more:
        if one.lines:
            click.echo("\n" + "\n".join(one.lines))


def _say_stopped(front: Any) -> None:
    """That an interrupt left the answer partial, on standard error."""
    if front.swept.stopped:
        best = "what follows is the best of those" if front.feasible else "none feasible so far"
        seen = f"{front.swept.evaluated:,} shapes"
        click.echo(f"stopped after {seen}: {best}", err=True)


def _status(front: Any) -> int:
    """0 yes, 1 nothing is feasible, 130 (as shells say) an interrupt left the answer partial."""
    if front.swept.stopped:
        return 130
    return 0 if front.feasible else 1


def _write(front: Any, more: Any, given: dict[str, Any]) -> None:
    """The folder and the picture that were asked for."""
    if not front.feasible:
        return
    if given["save"] is not None:
        from scantling.report.save import save

        written = save(front, given["save"], lambda text: click.echo(text, err=True), more)
        click.echo(f"wrote {len(written)} files to {given['save']}", err=True)
    if given["plot"] is not None:
        from scantling.report.figure import save_axis, save_front

        rows = next((one.rows for one in more if one.rows), ())
        path = save_axis(rows, given["explain"], given["plot"]) if rows else (
            save_front(front, given["plot"]))  # fmt: skip
        click.echo(f"wrote {path}", err=True)


def _list_priors(given: dict[str, Any]) -> int:
    """The shape priors of the field, with what each gives at a size where one is named."""
    from scantling import search
    from scantling.search.shape_priors import prior_lines, priors_json

    limits = {k: v for k, v in read_limits(given).items() if k != "prior"}
    b = search.budget(**limits) if {"params", "flops", "days", "gpu_hours"} & set(limits) else None
    if given["as_json"]:
        show_json({"schema": 1, "priors": priors_json(b)})
    else:
        click.echo("\n".join(prior_lines(b)))
    return 0


def _backtest(given: dict[str, Any]) -> int:
    from scantling.report.backtest import backtest_json, backtest_lines
    from scantling.search.backtest import backtest

    if sys.stderr.isatty():
        click.echo("pricing every legal shape of this size, up to half a minute ...", err=True)
    verdict, others = backtest(given["backtest"], given["tokens"])
    if given["as_json"]:
        show_json(backtest_json(verdict, len(others.rows)))
    else:
        click.echo("\n".join(backtest_lines(verdict, len(others.rows))))
    return 0 if verdict.holds else 1


def _list_legal(given: dict[str, Any]) -> int:
    """Legal heads of a width or of a model, or expert widths that split."""
    from scantling import catalog, search
    from scantling.report import text
    from scantling.search import legal

    fixed, listed = read_fixed(given["fix"])
    tp = given["tp"] or 1
    widths = listed.get("d_expert", (fixed["d_expert"],) if "d_expert" in fixed else ())
    rows: list[dict[str, Any]]
    if widths:
        rows = legal.legal_expert_widths(widths, tp, given["quant"] or "bf16")
    elif given["like"]:
        rows = legal.legal_heads(catalog.load(given["like"]).spec, tp)
    elif "d_model" in fixed:
        b = search.Budget(params=given["params"] or 10**9, tokens=1, tp=tp, fixed=fixed)
        rows = search.list_legal(fixed["d_model"], tp, b)
    else:
        hint = "add --fix d_model=4096, --like MODEL or --fix d_expert=768,1024"
        raise FieldError("--list-legal", None, "needs a width", hint)
    good = [row for row in rows if row.get("ok", True)]
    if given["as_json"]:
        ok = {"ok": [row["d_expert"] for row in good]} if widths else {}
        show_json({"schema": 1, "legal": rows, **ok})
        return 0 if good else 1
    names = {"attention_width_ratio": "H h/D", "explicit_head_dim": "explicit head_dim"}
    shown = rows[0] if rows else {}
    found = text.table(*((names.get(n, n), "left" if isinstance(v, str) else "right")
                         for n, v in shown.items()))  # fmt: skip
    for row in rows:
        found.add_row(*(_cell(v) for v in row.values()))
    text.show_table(text.console(), found)
    if len(good) < len(rows):
        click.echo(f"what TP {tp} cuts can be spread whole: --ep (expert parallelism)")
    return 0 if good else 1


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


@contextlib.contextmanager
def _steps(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error for searches that follow the first; silent when piped."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None, visible=False)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)


class _progress:  # noqa: N801 - used as a function
    """A progress bar on standard error for sweeps over two seconds; silent when piped."""

    def __init__(self, b: Any) -> None:
        from scantling.search.space import space

        self.bar: Any = None
        if sys.stderr.isatty() and space(b).size > SLOW_SHAPES:
            from rich.console import Console
            from rich.progress import Progress

            self.bar = Progress(console=Console(stderr=True), transient=True)

    def __enter__(self) -> Callable[[int, int], None] | None:
        if self.bar is None:
            return None
        self.bar.start()
        task = self.bar.add_task("shapes", total=None)
        return lambda done, total: self.bar.update(task, completed=done, total=total)

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()
