"""``scantling serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from scantling.cli.options import CONTEXT, COUNT, apply_set, as_json, assumed, each, show_json
from scantling.cli.plan import Progress

QUESTION = (
    "gpu", "gpus", "gpus_per_node", "context", "context_mean", "context_p95", "batch", "prompt",
    "answer", "concurrency", "quant", "kv_dtype", "share", "hybrid", "eager", "chunk", "adapters",
    "rank", "draft", "guesses", "accept", "prefix_hit", "skew", "slo", "price", "utilisation",
    "rope", "tp", "pp", "dp", "ep",
)  # fmt: skip


@click.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL…")
@click.option("--gpu", help="Chip, or several: l4,h100-sxm; without one, the chips that fit.")
@click.option("--gpus", help="Chips in all; 1,2,4,8 is the fewest of these that fit.")
@click.option("--gpus-per-node", type=COUNT, default=8, help="Chips of a machine.")
@click.option("--context", type=CONTEXT, help="Tokens of the longest sequence: 32k is 32768.")
@click.option("--context-mean", type=CONTEXT, help="Mean length, where sequences differ.")
@click.option("--context-p95", type=CONTEXT, help="Their 95th percentile.")
@click.option("--batch", type=COUNT, help="Sequences in memory at once.")
@click.option("--in", "prompt", type=CONTEXT, help="Tokens of a prompt.")
@click.option("--out", "answer", type=CONTEXT, help="Tokens of an answer.")
@click.option("--concurrency", metavar="N,…", help="Requests in flight at which speed is told.")
@click.option("--quant", metavar="NAME,…", help="bf16, fp8, awq-int4, …: the first that "
              "fits; any: all that the chip has kernels for, the widest first.")  # fmt: skip
@click.option("--kv-dtype", default="bf16", help="Dtype of the cache: bf16, fp8, q8_0.")
@click.option("--share", type=float, default=0.9, help="Of the memory that the engine may fill.")
@click.option("--hybrid", is_flag=True, help="The engine keeps only the window of windowed layers.")
@click.option("--eager", is_flag=True, help="The engine captures no graphs.")
@click.option("--chunk", type=CONTEXT, help="Tokens of prompts in one step; 8k by default.")
@click.option("--adapters", type=COUNT, help="Low-rank adapters loaded at once.")
@click.option("--rank", type=COUNT, default=16, help="Their rank.")
@click.option("--draft", metavar="MODEL", help="A smaller model that guesses ahead.")
@click.option("--guesses", type=COUNT, help="Tokens guessed for each step; 4 with --draft.")
@click.option("--accept", type=float, default=0.7, help="Chance that a guess is right.")
@click.option("--prefix-hit", type=float, default=0.0, help="Share of a prompt that is cached.")
@click.option("--skew", type=float, default=0.0, help="How unevenly experts are chosen: "
              "the i-th in proportion to i^-skew.")  # fmt: skip
@click.option("--slo", metavar="ttft=500ms,tpot=30ms", help="Limits: how much load keeps them.")
@click.option("--price", type=float, help="Money for a chip-hour.")
@click.option("--utilisation", type=float, default=1.0, help="Share of paid time at the load.")
@click.option("--rope", metavar="KIND", help="How a context beyond the trained one is reached: "
              "yarn, linear, dynamic, llama3.")  # fmt: skip
@click.option("--tp", type=COUNT, help="Fix tensor parallelism.")
@click.option("--pp", type=COUNT, help="Fix pipeline stages.")
@click.option("--dp", type=COUNT, help="Fix groups with attention of their own.")
@click.option("--ep", type=COUNT, help="Fix chips that whole experts are spread over.")
@click.option("--set", "changes", multiple=True, metavar="FIELD=V", help="Change the model first.")
@click.option("--vary", "range_", metavar="FIELD=a:b:step", help="Repeat over a range of a field, "
              "context, batch, gpus, in, out, concurrency or a degree.")  # fmt: skip
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE",
              help="Latency against throughput as a picture.")  # fmt: skip
@click.option("--rows", type=COUNT, default=12, help="Rows to print.")
@assumed
@as_json
def serve(models: tuple[str, ...], **given: Any) -> int:
    """Inference: does it fit, how long a context, how fast, at what price.

    Exit status 1: it does not fit for certain, or no load keeps the limits of --slo.

    Example: scantling serve llama-3.1-8b --gpu l4 --context 32k --batch 8 --quant awq-int4
    """
    if given["plot"] is not None:
        from scantling.report.figure import check_path

        check_path(given["plot"])
    return each(models, _one, given)


def _one(name: str, given: dict[str, Any], *, several: bool) -> int:
    """One model."""
    from scantling import catalog
    from scantling.report.serve import to_json
    from scantling.report.serve_text import print_serve
    from scantling.report.text import console
    from scantling.search.serving import answer
    from scantling.search.serving_question import question

    one = catalog.load(name, assume=given["assume"])
    one = replace(one, spec=apply_set(one.spec, given["changes"]))
    asked = {key: given[key] for key in QUESTION if given[key] is not None}
    if given["range_"] is not None:
        return _vary(one, given, asked, several=several)
    q = question(one, **asked)
    with Progress() as progress:
        found = answer(q, progress)
    if (
        given["plot"] is not None
        and found.choice is not None
        and found.choice.saturation is not None
    ):
        from scantling.report.serve_figure import save_serve

        click.echo(f"wrote {save_serve(found, given['plot'])}", err=True)
    if given["as_json"]:
        show_json(to_json(found), lines=several)
    else:
        print_serve(console(), found, given["rows"])
    kept = all(r.capacity is None or r.capacity.expected is not None
               for r in (found.choice,) if r is not None)  # fmt: skip
    return 0 if found.fits and kept else 1


def _vary(one: Any, given: dict[str, Any], asked: dict[str, Any], *, several: bool) -> int:
    """A row for every value of a range."""
    from scantling.report.serve_vary import print_varied, save_varied, varied, varied_json
    from scantling.report.text import console
    from scantling.search.serving_question import question

    field, rows = varied(one, given["range_"], lambda m, **more: question(m, **(asked | more)))
    if given["plot"] is not None:
        click.echo(f"wrote {save_varied(field, rows, given['plot'])}", err=True)
    if given["as_json"]:
        show_json(varied_json(one.name, field, rows), lines=several)
    else:
        print_varied(console(), one.name, field, rows)
    return 0 if any(r.answer is not None and r.answer.fits for r in rows) else 1
