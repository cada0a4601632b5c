"""``scantling analyze``, ``compare`` and ``trace``."""

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
    each,
    hardware,
    show_assumed,
    show_json,
    workload,
)
from scantling.cli.rope import show_rope
from scantling.errors import FieldError
from scantling.spec import read

OWN = {"range_": "vary", "why": "why", "baseline": "baseline"}
"""Options that ask another question than --rope and --runtimes."""

given_models = click.argument("models", nargs=-1, required=True, metavar="MODEL…")


@click.command()
@given_models
@workload
@hardware
@click.option("--set", "changes", multiple=True, metavar="FIELD=V", help="Change the model first.")
@click.option("--why", metavar="FIELD", help="Explain one number.")
@click.option("--alignment", "aligned", is_flag=True, help="What its widths cost on --gpu: each "
              "product's roofline and tiles, better values nearby.")  # fmt: skip
@click.option("--kernels", type=click.Choice(["measured", "fitted", "both"]), help="With "
              "--alignment: list the times of operators from measured tables (extra kernels), "
              "fitted, or side by side.")  # fmt: skip
@click.option("--vary", "range_", metavar="FIELD=a:b:step", help="Repeat over a range.")
@click.option("--hold", metavar="params|flops|time", help="With --vary: keep this equal.")
@click.option("--rope", "rope_", is_flag=True, help="Wavelengths of the rotary positions, and what "
              "--context needs beyond the trained length.")  # fmt: skip
@click.option("--original-context", "original", type=CONTEXT, help="With --rope: tokens the model "
              "was trained on, where its config says more.")  # fmt: skip
@click.option("--runtimes", "runtimes_", is_flag=True, help="Which runtime takes each kind of "
              "layer, and each head width on --gpu.")  # fmt: skip
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="With --vary, "
              "--rope or --alignment: the picture.")  # fmt: skip
@click.option("--baseline", multiple=True, metavar="MODEL", help="Compare with these.")
@assumed
@as_json
def analyze(models: tuple[str, ...], **given: Any) -> int:
    """Exact counts, memory and ratios of a model.

    Example: scantling analyze llama-3.1-8b --why d_model
    """
    _refuse(given)
    return each(models, _analyze_one, given)


def _refuse(given: dict[str, Any]) -> None:
    """Options that need another, or do not go with it, before any work."""
    if given["hold"] and not given["range_"]:
        raise FieldError("--hold", given["hold"], "needs --vary")
    if given["plot"] and not (given["range_"] or given["rope_"] or given["aligned"]):
        raise FieldError("--plot", str(given["plot"]), "needs --vary, --rope or --alignment")
    if given["kernels"] and not given["aligned"]:
        raise FieldError("--kernels", given["kernels"], "needs --alignment")
    if given["kernels"] and given["range_"]:
        raise FieldError("--kernels", given["kernels"], "does not go with --vary")
    if given["original"] and not given["rope_"]:
        raise FieldError("--original-context", given["original"], "needs --rope")
    for asked in ("rope", "runtimes"):
        for name, option in OWN.items():
            if given[f"{asked}_"] and given[name]:
                raise FieldError(f"--{asked}", None, f"does not go with --{option}")
    if given["rope_"] and given["runtimes_"]:
        raise FieldError("--runtimes", None, "does not go with --rope")
    if given["plot"] and given["aligned"]:
        from scantling.report.figure import check_path

        check_path(given["plot"])


def _analyze_one(name: str, given: dict[str, Any], *, several: bool) -> int:
    from scantling import catalog
    from scantling.report.analyze import analyze as count

    one = catalog.load(name, assume=given["assume"])
    changed = apply_set(one.spec, given["changes"])
    if given["rope_"]:
        show_rope(replace(one, spec=changed), given, several=several)
        return 0
    if given["runtimes_"]:
        _runtimes(one.name, changed, given, several=several)
        return 0
    options = {k: given[k] for k in ("batch", "context", "dtype", "kv_dtype", "flops")}
    before = count(name, loaded=one, **options)
    after = before
    if given["changes"]:
        after = count(name, loaded=replace(one, spec=changed), **options)
    if given["range_"]:
        _vary(after, given)
        return 0
    reasons = _why(after, given) if given["why"] else []
    if given["as_json"]:
        show_json(_answer(after, before, reasons, given), lines=several)
        return 0
    _print(one.name, changed, before if given["changes"] else None, after, reasons, given)
    return 0


def _runtimes(name: str, spec: Any, given: dict[str, Any], *, several: bool) -> None:
    from scantling.report.runtimes import support

    found = support(spec, given["gpu"] or "h100-sxm")
    if given["as_json"]:
        show_json({"schema": 1, "model": name, "runtimes": found}, lines=several)
        return
    from scantling.report import text
    from scantling.report.runtimes_text import print_support

    print_support(text.console(), name, found)


def _print(
    name: str, spec: Any, before: Any, after: Any, reasons: list[str], given: dict[str, Any]
) -> None:
    """An analysis as text; ``before`` is what it was without ``--set``."""
    from scantling.report import text

    out = text.console()
    if reasons:
        value = after.spec.tied if given["why"] == "tied" else read(after.spec, given["why"])
        out.print(f"[bold]{after.name}: {given['why']} {value}[/bold]")
        for line in reasons:
            out.print(f"  {line}", markup=False)
        return
    if given["baseline"]:
        from scantling.report.compare import compare as side_by_side

        found = side_by_side(*given["baseline"], spec, context=after.workload.context,
                             batch=after.workload.batch, assume=given["assume"])  # fmt: skip
        text.print_analysis(out, after, before)
        found["models"][-1] = name
        for step in found["decomposition"]:
            step["to"] = name if step["to"] == "spec" else step["to"]
        text.print_compare(out, found)
        return
    aligned = _aligned(after, given) if given["aligned"] else None
    text.print_analysis(out, after, before)
    if aligned is not None:
        from scantling.report.alignment_text import print_alignment

        print_alignment(out, aligned)


def _answer(after: Any, before: Any, reasons: list[str], given: dict[str, Any]) -> dict[str, Any]:
    """What ``--json`` prints."""
    answer: dict[str, Any] = after.to_json()
    if given["changes"]:
        answer["before"] = before.to_json()
    if reasons:
        answer["why"] = {given["why"]: reasons}
    if given["aligned"]:
        answer["alignment"] = _aligned(after, given)
    return answer


def _aligned(a: Any, given: dict[str, Any]) -> dict[str, Any]:
    from scantling.report.alignment import alignment

    gpu = given["gpu"] or "h100-sxm"
    found = alignment(a.spec, gpu, a.workload.batch, a.workload.context, given["dtype"],
                      given["kv_dtype"], given["kernels"])  # fmt: skip
    if given["plot"] is not None:
        from scantling.report.roofline_figure import save_roofline

        click.echo(f"wrote {save_roofline(found, given['plot'], a.name)}", err=True)
    return found


def _limits(a: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The budget that prices an existing model."""
    context = a.workload.context
    asked = {"tokens": given["tokens"], "chip": given["gpu"], "n_gpu": given["gpus"]}
    return {k: v for k, v in asked.items() if v is not None} | {
        "train_context": context, "serve_context": context, "serve_batch": a.workload.batch,
        "dtype": given["dtype"], "kv_dtype": given["kv_dtype"],
    }  # fmt: skip


def _why(a: Any, given: dict[str, Any]) -> list[str]:
    from scantling.report.analyze import why

    return why(a, given["why"], **_limits(a, given))


def _vary(a: Any, given: dict[str, Any]) -> None:
    from scantling.report.vary import parse_range, varied
    from scantling.search import budget

    if given["plot"] is not None:
        from scantling.report.figure import check_path

        check_path(given["plot"])
    field, values = parse_range(given["range_"])
    b = budget(params=int(a.params.total), vocab_size=a.dims["vocab_size"], **_limits(a, given))
    rows = varied(a.spec, b, field, values, given["hold"], a.name)
    if given["aligned"]:
        from scantling.report.alignment import speeds
        from scantling.spec import Workload

        work = Workload("train", a.workload.batch, a.workload.context, dtype=given["dtype"])
        at = tuple(row["value"] for row in rows)
        priced = speeds(a.spec, given["gpu"] or "h100-sxm", field, at, work)
        for row in rows:
            row["speed"] = priced.get(row["value"])
    if given["plot"] is not None:
        from scantling.report.figure import save_varied

        click.echo(f"wrote {save_varied(rows, given['plot'])}", err=True)
    if given["as_json"]:
        show_json({"schema": 1, "model": a.name, "vary": field, "hold": given["hold"],
                   "rows": rows})  # fmt: skip
        return
    from scantling.report import text

    text.print_varied(text.console(), field, given["hold"], rows)


@click.command()
@given_models
@click.option("--context", type=CONTEXT, help="Tokens of a sequence.")
@click.option("--batch", type=COUNT, default=1, help="Sequences.")
@click.option("--weights", is_flag=True, help="Of two models: what of the first the second can "
              "load, merge, adapt, distil or draft for.")  # fmt: skip
@click.option("--dtype", help="With --weights: dtype of the weights, bf16 by default.")
@click.option("--gpu", help="With --weights: chip that drafting is priced on, h100-sxm by default.")
@click.option("--accept", type=float, help="With --weights: chance that a guess is right.")
@assumed
@as_json
def compare(
    models: tuple[str, ...], context: int | None, batch: int, weights: bool, dtype: str | None,
    gpu: str | None, accept: float | None, assume: bool, as_json: bool,
) -> int:  # fmt: skip
    """Models side by side, growth decomposed; --weights: what one can give the other.

    Example: scantling compare llama-3.1-8b llama-3.2-1b --weights
    """
    from scantling.report.compare import compare as side_by_side

    asked = {"dtype": dtype, "gpu": gpu, "accept": accept}
    own = {name: value for name, value in asked.items() if value is not None}
    for name, value in own.items():
        if not weights:
            raise FieldError(f"--{name}", value, "needs --weights")
    found = side_by_side(*models, context=context, batch=batch, assume=assume, weights=weights,
                         **own)  # fmt: skip
    for notes in found["notes"]:
        show_assumed(notes)
    if as_json:
        show_json(found)
        return 0
    from scantling.report import text

    if weights:
        from scantling.report.pair_text import print_pair

        print_pair(text.console(), found["weights"])
        return 0
    text.print_compare(text.console(), found)
    return 0


@click.command()
@given_models
@click.option("--context", type=CONTEXT, default=128, help="Tokens of a sequence.")
@click.option("--batch", type=COUNT, default=1, help="Sequences.")
@click.option("--set", "changes", multiple=True, metavar="FIELD=V", help="Change the model first.")
@click.option("--run", "run_", is_flag=True, help="Run it in torch at a size that fits: measured "
              "activations beside the shapes.")  # fmt: skip
@assumed
@as_json
def trace(
    models: tuple[str, ...], context: int, batch: int, changes: tuple[str, ...], run_: bool,
    assume: bool, as_json: bool,
) -> int:  # fmt: skip
    """The walk of a token through the shapes.

    Example: scantling trace deepseek-v3 --context 4096
    """
    from scantling import catalog
    from scantling.report.trace import trace as walk

    if run_:
        from scantling.lab import need_torch

        need_torch()
        from scantling.lab.probe import run as walk  # type: ignore[assignment]
    for name in models:
        one = catalog.load(name, assume=assume)
        show_assumed(one.notes)
        found = walk(apply_set(one.spec, changes), batch=batch, context=context)
        found["model"] = one.name
        if as_json:
            show_json(found, lines=len(models) > 1)
            continue
        from scantling.report import text, trace_text

        trace_text.print_trace(text.console(), found)
    return 0
