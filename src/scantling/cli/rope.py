"""``scantling analyze --rope``, and the factors of a file for longrope."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scantling.cli.options import show_assumed, show_json

if TYPE_CHECKING:
    from scantling.catalog import Loaded


def show_rope(one: Loaded, given: dict[str, Any], *, several: bool) -> None:
    """Print the wavelengths of a model, and what a context needs."""
    from scantling.report.rope import print_rope, rope, save_rope

    if given["plot"] is not None:
        from scantling.report.figure import check_path

        check_path(given["plot"])
    show_assumed(one.notes)
    found = rope(one.name, given["context"], given["original"], batch=given["batch"],
                 kv_dtype=given["kv_dtype"], loaded=one)  # fmt: skip
    if given["plot"] is not None:
        click.echo(f"wrote {save_rope(found, given['plot'])}", err=True)
    if given["as_json"]:
        show_json(found.to_json(), lines=several)
        return
    from scantling.report import text

    print_rope(text.console(), found)


def read_factors(path: Path) -> dict[str, Any]:
    """The ``short_factor`` and ``long_factor`` of a JSON file, alone or in a whole config.

    Raises:
        FieldError: If the file cannot be read; what it holds is judged by ``extend``.
    """
    from scantling.formats.json_file import read_object

    found, _ = read_object(path)
    for key in ("rope_scaling", "rope_parameters"):
        if isinstance(found.get(key), dict):
            found = found[key]
    tables = ("short_factor", "long_factor")
    return {name: found[name] for name in tables} if set(tables) <= set(found) else found
