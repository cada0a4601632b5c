"""``scantling export``."""

from __future__ import annotations

from pathlib import Path

import click

from scantling.cli.options import CONTEXT, apply_set, as_json, assumed, show_assumed, show_json
from scantling.cli.rope import read_factors
from scantling.errors import FieldError


@click.command()
@click.argument("model", metavar="MODEL")
@click.option("--to", "target", required=True, metavar="FORMAT",
              help="hf, megatron, torchtitan, litgpt, nanotron, gguf, vllm.")  # fmt: skip
@click.option("--context", type=CONTEXT, help="Stretch the rotary positions to so many tokens.")
@click.option("--rope", metavar="KIND", help="How: yarn, linear, dynamic, llama3, longrope, "
              "ntk (scantling analyze --rope compares them).")  # fmt: skip
@click.option("--rope-factors", "factors", type=click.Path(path_type=Path), metavar="FILE",
              help="With --rope longrope: JSON with short_factor and long_factor.")  # fmt: skip
@click.option("--original-context", "original", type=CONTEXT,
              help="Tokens the model was trained on, where its config says more.")  # fmt: skip
@click.option("--set", "changes", multiple=True, metavar="FIELD=V", help="Change the model first.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write to a file.")
@assumed
@as_json
def export(
    model: str, target: str, context: int | None, rope: str | None, original: int | None,
    factors: Path | None, changes: tuple[str, ...], out: Path | None, assume: bool, as_json: bool,
) -> int:  # fmt: skip
    """Write a model as config of another tool.

    Example: scantling export qwen3-8b --to hf --context 128k --rope yarn
    """
    from scantling import catalog
    from scantling.formats.context import extend
    from scantling.formats.registry import export as write

    if (context is None) != (rope is None):
        given, other = ("--context", "--rope") if rope is None else ("--rope", "--context")
        raise FieldError(given, context or rope, f"needs {other}")
    if original is not None and context is None:
        raise FieldError("--original-context", original, "needs --context and --rope")
    if factors is not None and rope != "longrope":
        raise FieldError("--rope-factors", str(factors), "needs --context and --rope longrope")
    one = catalog.load(model, assume=assume)
    show_assumed(one.notes)
    spec = apply_set(one.spec, changes)
    notes: tuple[str, ...] = ()
    if context is not None and rope is not None:
        tables = None if factors is None else read_factors(factors)
        longer = extend(spec, context, rope, original, tables)
        spec, notes = longer.spec, longer.notes
    found = write(spec, target)
    notes = tuple(dict.fromkeys((*notes, *found.notes)))
    if out is not None:
        try:
            out.write_text(found.text, encoding="utf-8")
        except OSError as error:
            raise FieldError("--out", str(out), f"cannot be written: {error.strerror}") from None
        click.echo(f"wrote {out}", err=True)
    if as_json:
        show_json({"schema": 1, "model": one.name, "to": target, "values": found.values,
                   "text": found.text, "notes": list(notes)})  # fmt: skip
        return 0
    if out is None:
        click.echo(found.text, nl=False)
    for note in notes:
        click.echo(f"note: {note}", err=True)
    return 0
