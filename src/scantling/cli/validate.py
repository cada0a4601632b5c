"""``scantling validate``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from scantling.cli.options import as_json, show_json
from scantling.errors import FieldError

PATIENCE_S = 2.0
"""A run that is not over by then shows its progress."""


@click.command()
@click.option("--tables", "folder", type=click.Path(path_type=Path), required=True, metavar="DIR",
              help="Holds the CSV files, in the layout of data/measured.")  # fmt: skip
@click.option("--table", "names", multiple=True, metavar="NAME", help="Only this table.")
@click.option("--worst", type=click.IntRange(0), default=5, help="Worst rows to list of each.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write a page with "
              "predicted against measured.")  # fmt: skip
@click.option("--markdown", "page", type=click.Path(path_type=Path), metavar="FILE",
              help="Write the errors as Markdown.")  # fmt: skip
@as_json
def validate(
    folder: Path, names: tuple[str, ...], worst: int, html: Path | None, page: Path | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Predictions against public tables: every error, also the bad ones.

    Exit status 1 where no row at all could be scored.

    Example: scantling validate --tables ../shared/data/measured --table gemm_aiconfigurator
    """
    from scantling.report import validate as report
    from scantling.validate import validate as measure

    for path in (html, page):
        if path is not None and not path.parent.is_dir():
            raise FieldError("file", str(path), "lies in a folder that does not exist")
    with _progress() as progress:
        tables = measure(folder, names, progress=progress)
    if html is not None:
        from scantling.report.validate_html import page as write

        _write(html, write(tables, worst))
    if page is not None:
        _write(page, report.markdown(tables))
    if as_json:
        show_json(report.to_json(tables, worst))
    else:
        from scantling.report import text

        report.print_validation(text.console(), tables, worst)
    return 0 if any(t.errors.scored for t in tables) else 1


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FieldError("file", str(path), f"cannot be written: {error.strerror}") from None
    click.echo(f"wrote {path}", err=True)


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar on standard error that appears after two seconds; nothing where nobody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    began = time.monotonic()
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", visible=False)

        def show(name: str, done: int, total: int) -> None:
            late = time.monotonic() - began > PATIENCE_S
            bar.update(task, description=name, completed=done, total=total, visible=late)

        yield show
