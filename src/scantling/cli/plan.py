"""``scantling plan``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from scantling.cli.options import CONTEXT, COUNT, apply_set, as_json, assumed, each, show_json
from scantling.errors import FieldError

AXES = ("tp", "pp", "dp", "cp", "ep", "expert_tp", "virtual", "zero", "micro_batch", "recompute")
QUESTION = (
    "gpus", "gpus_per_node", "net", "oversubscription", "tokens", "context", "batch", "phases",
    "dtype", "optimizer", "moments", "gradients", "finetune", "rank", "goodput", "price", "flops",
    "chunked_loss", "offload",
)  # fmt: skip


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL…]")
@click.option("--gpu", help="Chip (scantling chips); h100-sxm by default.")
@click.option("--gpus", type=COUNT, help="Chips; 8 by default, 1 to fine-tune.")
@click.option("--gpus-per-node", type=COUNT, default=8, help="Chips of a machine.")
@click.option("--net", default="400Gb", help="Network between nodes, per chip: 400Gb, 50GB.")
@click.option("--oversubscription", type=float, default=1.0, help="Of that network.")
@click.option("--tokens", type=COUNT, help="Training tokens; 20 an active parameter by default.")
@click.option("--context", type=CONTEXT, help="Tokens of a sequence: 8k is 8192.")
@click.option("--batch", help="Of a step: 2048 or 2048seqs are sequences, 16M are tokens.")
@click.option("--phases", metavar="T@C,…", help="15T@8k,800B@128k instead of both.")
@click.option("--dtype", default="bf16", help="bf16, fp8, fp8-block, mxfp8, nvfp4, fp16, fp32.")
@click.option("--optimizer", default="adamw", help="adamw, adamw8bit, adafactor, muon, sgd.")
@click.option("--moments", help="Dtype of the optimizer's moments.")
@click.option("--gradients", help="Dtype gradients are accumulated in.")
@click.option("--chunked-loss", is_flag=True, help="The loss never holds all logits at once.")
@click.option("--offload", is_flag=True, help="Optimizer states live on the host.")
@click.option("--finetune", metavar="full|lora|qlora", help="Fine-tune instead of pre-train.")
@click.option("--rank", type=COUNT, help="Of the adapters; 16 by default.")
@click.option("--targets", help="Matrices with adapters: q_proj,v_proj; all linear by default.")
@click.option("--tp", type=COUNT, help="Fix tensor parallelism.")
@click.option("--pp", type=COUNT, help="Fix pipeline stages.")
@click.option("--dp", type=COUNT, help="Fix data parallelism.")
@click.option("--cp", type=COUNT, help="Fix context parallelism.")
@click.option("--ep", type=COUNT, help="Fix expert parallelism.")
@click.option("--expert-tp", type=COUNT, help="Fix tensor parallelism of the experts.")
@click.option("--virtual", type=COUNT, help="Fix chunks of a stage (interleaving).")
@click.option("--zero", metavar="0|1|2|3", help="Fix ZeRO; 3 is FSDP.")
@click.option("--recompute", metavar="none|selective|products|full", help="Fix recomputation.")
@click.option("--micro-batch", type=COUNT, help="Fix sequences of one pass.")
@click.option("--goodput", type=float, help="Share of calendar time that trains: 0.9.")
@click.option("--price", type=float, help="Money for a GPU-hour.")
@click.option("--days", type=float, help="Deadline; without a MODEL: the largest that meets it.")
@click.option("--solve", metavar="batch|context|gpus|model", help="Ask the other way round: "
              "largest batch, longest context, fewest GPUs, largest model.")  # fmt: skip
@click.option("--flops", default="causal", metavar="full|unpadded|causal|palm",
              help="What MFU counts (docs/flops.md).")  # fmt: skip
@click.option("--set", "changes", multiple=True, metavar="FIELD=V", help="Change the model first.")
@click.option("--vary", "range_", metavar="FIELD=a:b:step", help="Repeat over a range of a field, "
              "gpus, batch, context or an axis.")  # fmt: skip
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Time against "
              "memory as a picture; with --vary, the range.")  # fmt: skip
@click.option("--rows", type=COUNT, default=8, help="Plans to print.")
@assumed
@as_json
def plan(models: tuple[str, ...], **given: Any) -> int:
    """Training: memory, time, price and the best split over chips.

    Exit status 1: nothing fits for certain, or the deadline is not met.

    Example: scantling plan llama-3.1-8b --gpu h100-sxm --gpus 64 --tokens 1T --context 8k
    """
    if given["days"] is not None and not 0 < given["days"] < 1e9:
        raise FieldError("--days", given["days"], "must be above zero")
    if given["plot"] is not None:
        from scantling.report.figure import check_path

        check_path(given["plot"])
    if not models:
        if given["days"] is None:
            raise FieldError("model", None, "is missing", "name one, or give --days and --tokens")
        return _solve(None, given, several=False)
    return each(models, _one, given)


def _one(name: str, given: dict[str, Any], *, several: bool) -> int:
    """One model: its plan, its range, or the inverse question."""
    from scantling import catalog
    from scantling.report import plan as report
    from scantling.report.plan_text import print_plan
    from scantling.report.text import console
    from scantling.search.plans import answer

    one = catalog.load(name, assume=given["assume"])
    one = replace(one, spec=apply_set(one.spec, given["changes"]))
    if given["solve"] is not None:
        return _solve(one, given, several=several)
    if given["range_"] is not None:
        return _vary(one, given, several=several)
    q = read(one, given)
    with Progress() as progress:
        found = answer(q, progress)
    met = given["days"] is None or (
        found.bill is not None and float(found.bill.calendar_days.high_s) <= given["days"]
    )
    if given["plot"] is not None and found.choice is not None:
        from scantling.report.plan_figure import save_plans

        click.echo(f"wrote {save_plans(found, given['plot'])}", err=True)
    if given["as_json"]:
        told = report.to_json(found)
        if given["days"] is not None:
            told["deadline"] = report.deadline_json(found, given["days"])
        show_json(told, lines=several)
    else:
        out = console()
        print_plan(out, found, given["rows"])
        if given["days"] is not None:
            out.print(report.deadline_text(found, given["days"]), markup=False)
    return 0 if found.fits and met else 1


def read(one: Any, given: dict[str, Any], **changes: Any) -> Any:
    """The question behind the options."""
    from scantling.search.plan_question import question

    asked = {k: given[k] for k in (*QUESTION, *AXES) if given[k] is not None} | changes
    targets = tuple(t.strip() for t in (given["targets"] or "").split(",") if t.strip())
    for name in ("targets", "rank"):
        if given[name] is not None and given["finetune"] not in {"lora", "qlora"}:
            raise FieldError(f"--{name}", given[name], "needs --finetune lora or qlora")
    if given["targets"] is not None and not targets:
        raise FieldError("--targets", given["targets"], "names no matrix", "write q_proj,v_proj")
    gpu = given["gpu"] or "h100-sxm"
    return question(one, gpu=gpu, targets=targets, **asked)


def _solve(one: Any, given: dict[str, Any], *, several: bool) -> int:
    """The inverse questions."""
    from scantling.report.plan_solve import print_solution, solution_json
    from scantling.report.text import console
    from scantling.search.plan_inverse import solve

    asked = {"context": "context", "batch": "micro_batch"}.get(given["solve"] or "")
    for name in (asked, "phases" if asked == "context" else None, "range_"):
        if name is not None and given[name] is not None:
            option = "--vary" if name == "range_" else f"--{name.replace('_', '-')}"
            rule = f"contradicts --solve {given['solve'] or 'model'}"
            raise FieldError(option, given[name], rule, "leave it out")

    def ask(**changes: Any) -> Any:
        return read(changes.pop("model", one), given, **changes)

    with Progress() as progress:
        found = solve(given["solve"] or "model", one, ask, days=given["days"], progress=progress,
                      sized=given["gpus"] is not None)  # fmt: skip
    if given["as_json"]:
        show_json(solution_json(found), lines=several)
    else:
        print_solution(console(), found)
    return 0 if found.plans is not None and found.plans.fits else 1


def _vary(one: Any, given: dict[str, Any], *, several: bool) -> int:
    """A row for every value of a range."""
    from scantling.report.plan_vary import print_varied, varied, varied_json
    from scantling.report.text import console

    with Progress() as progress:
        field, rows = varied(one, given["range_"], lambda m, **c: read(m, given, **c), progress)
    if given["plot"] is not None:
        from scantling.report.plan_figure import save_varied

        click.echo(f"wrote {save_varied(field, rows, given['plot'])}", err=True)
    if given["as_json"]:
        show_json(varied_json(one.name, field, rows), lines=several)
    else:
        print_varied(console(), one.name, field, rows)
    return 0 if any(r.answer is not None and r.answer.fits for r in rows) else 1


class Progress:
    """A progress bar on standard error for work over two seconds; silent when piped."""

    PATIENCE_S = 2.0

    def __init__(self) -> None:
        self.bar: Any = None
        self.task: Any = None

    def __enter__(self) -> Callable[[int, int], None] | None:
        import time

        if not sys.stderr.isatty():
            return None
        began = time.monotonic()

        def show(done: int, total: int) -> None:
            if self.bar is None:
                if time.monotonic() - began < self.PATIENCE_S:
                    return
                from rich.console import Console
                from rich.progress import Progress as Bar

                self.bar = Bar(console=Console(stderr=True), transient=True)
                self.bar.start()
                self.task = self.bar.add_task("plans", total=None)
            self.bar.update(self.task, completed=done, total=total or None)

        return show

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()
