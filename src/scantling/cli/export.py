"""``scantling export``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from scantling.cli.options import (
    CONTEXT,
    COUNT,
    apply_set,
    as_json,
    assumed,
    show_assumed,
    show_json,
)
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
@click.option("--gpu", help="vllm: the flags for this chip, as scantling serve chooses them.")
@click.option("--gpus", type=COUNT, help="vllm: chips in all.")
@click.option("--batch", type=COUNT, help="vllm: sequences at once.")
@click.option("--quant", help="vllm: quantisation of the weights.")
@click.option("--kv-dtype", help="vllm: dtype of the cache.")
@click.option("--set", "changes", multiple=True, metavar="FIELD=V", help="Change the model first.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write to a file.")
@assumed
@as_json
def export(
    model: str, target: str, context: int | None, rope: str | None, original: int | None,
    factors: Path | None, changes: tuple[str, ...], out: Path | None, assume: bool, as_json: bool,
    gpu: str | None, **deployed: Any,
) -> int:  # fmt: skip
    """Write a model as config of another tool.

    Example: scantling export qwen3-8b --to hf --context 128k --rope yarn
    """
    from scantling import catalog
    from scantling.formats.context import extend
    from scantling.formats.registry import export as write

    served = {k: v for k, v in deployed.items() if v is not None}
    _check_deployed(gpu, served, target)
    _check_stretch(context, rope, original, served_on=gpu)
    if factors is not None and rope != "longrope":
        raise FieldError("--rope-factors", str(factors), "needs --context and --rope longrope")
    one = catalog.load(model, assume=assume)
    show_assumed(one.notes)
    spec = apply_set(one.spec, changes)
    notes: tuple[str, ...] = ()
    if gpu is not None:
        asked = served if context is None else served | {"context": context}
        spec, found = _deployed(replace(one, spec=spec), gpu, rope, asked)
    elif context is not None and rope is not None:
        tables = None if factors is None else read_factors(factors)
        longer = extend(spec, context, rope, original, tables)
        spec, notes = longer.spec, longer.notes
    if gpu is None:
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


def _check_deployed(gpu: str | None, served: dict[str, Any], target: str) -> None:
    """Options of a deployment go together, and with one target."""
    if (gpu is not None or served) and target != "vllm":
        raise FieldError("--gpu", gpu, "is for --to vllm")
    if served and gpu is None:
        name, value = next(iter(served.items()))
        raise FieldError(f"--{name.replace('_', '-')}", value, "needs --gpu")


def _check_stretch(
    context: int | None, rope: str | None, original: int | None, served_on: str | None
) -> None:
    """A context needs a way to reach it, unless it is what a deployment serves."""
    if (context is None) != (rope is None) and (served_on is None or context is None):
        given, other = ("--context", "--rope") if rope is None else ("--rope", "--context")
        raise FieldError(given, context or rope, f"needs {other}")
    if original is not None and context is None:
        raise FieldError("--original-context", original, "needs --context and --rope")


def _deployed(one: Any, gpu: str, rope: str | None, asked: dict[str, Any]) -> tuple[Any, Any]:
    """The flags of what ``serve`` chooses for a chip.

    Raises:
        FieldError: If it does not fit there for certain.
    """
    from scantling.formats.registry import export as write
    from scantling.formats.vllm import flag_lines
    from scantling.report.serve import LONGER, vllm_flags
    from scantling.search.serving import answer
    from scantling.search.serving_question import question

    q = question(one, gpu=gpu, rope=rope, **asked)
    found = answer(q)
    if found.choice is None or not found.fits:
        hint = " or ".join(found.remedies) or "see scantling serve"
        raise FieldError("gpu", gpu, f"{found.verdict}: no flags make it run for certain", hint)
    values, notes = vllm_flags(found.choice, q)
    plain = write(q.spec, "vllm")
    if "hf-overrides" in plain.values:
        values["hf-overrides"] = plain.values["hf-overrides"]
    text = " \\\n".join(flag_lines(values)) + "\n"
    told = tuple(dict.fromkeys(n for n in (*notes, *plain.notes[1:]) if n != LONGER))
    return q.spec, replace(plain, values=values, text=text, notes=told)
