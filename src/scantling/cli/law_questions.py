"""Questions that the laws answer: where compute is best spent, on which vocabulary and depth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from scantling.cli.options import CONTEXT, COUNT, as_json, hardware, show_json
from scantling.errors import FieldError
from scantling.units import parse_count


@click.command("optimum")
@click.argument("flops", type=COUNT, required=False)
@click.option("--params", type=COUNT, help="Instead of FLOPs: for which are so many parameters "
              "the optimum?")  # fmt: skip
@click.option("--loss", type=float, help="Instead of FLOPs: the least that reach this loss.")
@click.option("--days", type=float, help="Instead of FLOPs: days on --gpus of --gpu.")
@click.option("--gpu-hours", type=COUNT, help="The same in GPU-hours.")
@click.option("--law", "names", multiple=True, help="A law, a law file or an allocation; several. "
              "The first one leads.")  # fmt: skip
@click.option("--served", type=COUNT, default=0, help="Tokens served over the model's life; the "
              "budget pays for them too.")  # fmt: skip
@click.option("--unique", type=COUNT, help="Unique tokens there are; more are repeated.")
@click.option("--context", type=CONTEXT, help="Tokens of a sequence: its attention is paid for.")
@click.option("--vocab", type=COUNT, help="Vocabulary of the shape.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="The valley as a "
              "picture: valley.svg.")  # fmt: skip
@hardware
@as_json
def optimum(flops: float | None, params: int | None, loss: float | None, days: float | None,
            gpu_hours: float | None, names: tuple[str, ...], served: float, unique: float | None,
            context: int | None, vocab: int | None, tokens: int | None, gpu: str | None,
            gpus: int | None, plot: Path | None, as_json: bool) -> int:  # fmt: skip
    """Size, tokens and shape that FLOPS, or days on chips, are best spent on, by several laws.

    Examples: scantling laws optimum 1e21

    scantling laws optimum --days 10 --gpu h100-sxm --gpus 64 --context 8k

    scantling laws optimum --params 7B
    """
    from scantling.laws.optimum import Spending
    from scantling.report.optimum import ask, optimum_json, optimum_lines

    given = {"FLOPS": flops, "--params": params, "--tokens": tokens, "--loss": loss,
             "--days": days, "--gpu-hours": gpu_hours}  # fmt: skip
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        told = "is missing" if not named else f"is given with {' and '.join(named[1:])}"
        raise FieldError(named[0] if named else "FLOPS", None, told,
                         f"give one of {', '.join(given)}")  # fmt: skip
    for name, value in (("--days", days), ("--loss", loss)):
        if value is not None and not 0 < value < 1e9:
            raise FieldError(name, value, "must be above zero")
    inverse = {"params": params, "tokens": tokens, "loss": loss}
    asked = next(((k, float(v)) for k, v in inverse.items() if v is not None), None)
    if plot is not None:
        from scantling.report.figure import check_path

        check_path(plot)
    budget = Spending(flops=flops or 1.0, served=served, unique=unique, context=context or 0.0)
    found = ask(names, budget, asked=asked, vocab_size=vocab,
                machine=_machine(gpu, gpus, days, gpu_hours, context))  # fmt: skip
    if plot is not None:
        from scantling.report.optimum_figure import save_optimum

        click.echo(f"wrote {save_optimum(found, plot)}", err=True)
    if as_json:
        show_json(optimum_json(found))
    else:
        click.echo("\n".join(optimum_lines(found)))
    return 0


def _machine(gpu: str | None, gpus: int | None, days: float | None, gpu_hours: float | None,
             context: int | None) -> Any:  # fmt: skip
    """The chips, where any were named or days are to be spent on some."""
    from scantling.search.spend import Machine

    if gpu is None and gpus is None and days is None and gpu_hours is None:
        return None
    known: dict[str, Any] = {"gpu": gpu, "n_gpu": gpus, "context": context}
    one = Machine(**{k: v for k, v in known.items() if v is not None})
    if gpu_hours is not None:
        days = gpu_hours / 24 / one.n_gpu
    return msgspec.structs.replace(one, days=days)


@click.command("vocabulary")
@click.option("--params", type=COUNT, help="All parameters: 350M.")
@click.option("--width", type=COUNT, help="d_model; that of width 64 times depth by default.")
@click.option("--options", metavar="V,V,…", help="Vocabularies: 32k,64k,128k,256k.")
@click.option("--flops", type=COUNT, help="Training FLOPs: the best vocabulary for them too.")
@click.option("--tp", type=COUNT, default=1, help="Tensor-parallel degree the table splits over.")
@click.option("--text", type=click.Path(path_type=Path), metavar="FILE", help="Your text: tokens "
              "a byte are measured with --tokenizer.")  # fmt: skip
@click.option(
    "--tokenizer",
    "tokenizers",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A tokenizer.json or its folder; several to compare.",
)
@click.option(
    "--loss",
    "losses",
    multiple=True,
    type=float,
    help="A loss in nats a token, one a "
    "tokenizer or --tokens-per-byte, in their order: compared in bits a byte.",
)
@click.option("--tokens-per-byte", "rates", multiple=True, type=float, help="Measured elsewhere.")
@as_json
def vocabulary(params: int | None, width: int | None, options: str | None, flops: float | None,
               tp: int, text: Path | None, tokenizers: tuple[Path, ...],
               losses: tuple[float, ...], rates: tuple[float, ...],
               as_json: bool) -> int:  # fmt: skip
    """What a vocabulary costs a model, which are worth it, and tokens a byte of your text.

    Examples: scantling laws vocabulary --params 350M --width 1024 --options 32k,64k,128k,256k

    scantling laws vocabulary --text corpus.txt --tokenizer a.json --tokenizer b.json

    scantling laws vocabulary --loss 2.9 --tokens-per-byte 0.25 --loss 3.1 --tokens-per-byte 0.22
    """
    from scantling.report.vocabulary import ask, vocabulary_json, vocabulary_lines

    sizes = [] if options is None else [parse_count(v, "--options") for v in options.split(",")]
    found = ask(params=params, width=width, options=sizes, flops=flops, tp=tp, text=text,
                tokenizers=tokenizers, losses=losses, rates=rates)  # fmt: skip
    if as_json:
        show_json(vocabulary_json(found))
    else:
        click.echo("\n".join(vocabulary_lines(found)))
    return 0


@click.command("depths")
@click.option("--params", required=True, help="Total parameters: 1.7B.")
@click.option("--layers", type=COUNT, multiple=True, help="A depth; repeat it. The first is the "
              "reference. 27, 12 and 60 by default.")  # fmt: skip
@click.option("--law", "law_name", help="Law or law file.")
@hardware
@as_json
def depths(params: str, layers: tuple[int, ...], law_name: str | None, tokens: int | None,
           gpus: int | None, gpu: str | None, as_json: bool) -> int:  # fmt: skip
    """What a depth costs at one size: at equal tokens, equal FLOPs and equal wall-clock."""
    from scantling.report.depths import depth_lines, depths_json, price_depths
    from scantling.search.budget import budget

    given: dict[str, Any] = {"n_gpu": gpus, "chip": gpu, "law": law_name}
    known = {k: v for k, v in given.items() if v is not None}
    rows = price_depths(budget(params=params, tokens=tokens, **known),
                        layers or (27, 12, 60))  # fmt: skip
    if as_json:
        show_json({"schema": 1, "depths": depths_json(rows)})
    else:
        click.echo("\n".join(depth_lines(rows)) if rows else "no depth has a feasible shape")
    return 0 if rows else 1
