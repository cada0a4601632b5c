"""``scantling lab train``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from scantling.cli.options import (
    CONTEXT,
    COUNT,
    apply_set,
    as_json,
    assumed,
    pairs,
    show_json,
)
from scantling.errors import FieldError, UnknownNameError

if TYPE_CHECKING:
    from rich.console import Console

    from scantling.lab.tasks import Task
    from scantling.lab.train import Result, TrainingRun
    from scantling.spec import Spec

T = TypeVar("T")

WARNED_S = 600.0
"""Seconds that a run may be predicted to take before it is said ahead."""
SILENT_S = 2.0
"""Seconds between lines of progress where no terminal shows a bar."""
BARS = "▁▂▃▄▅▆▇█"
TAKEN = ("tokens", "steps", "lr", "schedule", "warmup", "optimizer", "weight_decay", "seed",
         "param", "dtype", "compile", "micro_batch", "device", "out", "judge_every",
         "start")  # fmt: skip
"""Options that are fields of a run by the same name."""


@click.command()
@click.argument("model", metavar="[MODEL]", required=False)
@click.option("--from", "start", type=click.Path(path_type=Path), metavar="DIR", help="Begin from "
              "the weights of a run, of a model cut by lab probe --save, or of config.json and "
              "safetensors; its shape and its data unless others are given.")  # fmt: skip
@click.option("--data", metavar="NAME|FILE", help="code (the default), "
              "grammar, a file (.txt .jsonl .parquet .bin), or a task with knobs: recall:pairs=16, "
              "mqar, copy, addition:digits=4, hops.")  # fmt: skip
@click.option("--tokenizer", metavar="bytes|bpe:N", help="Of text, bytes by default; a BPE is "
              "trained on the training part.")  # fmt: skip
@click.option("--bytes-per-token", type=float, help="Of a .bin file, for bits per byte.")
@click.option("--tokens", type=COUNT, help="Tokens to train on; or --steps.")
@click.option("--steps", type=COUNT, help="Steps of the optimizer.")
@click.option("--batch", type=COUNT, help="Sequences of a step; 16 by default.")
@click.option("--context", type=CONTEXT, help="Tokens of a sequence; 128 by default.")
@click.option("--params", type=COUNT, help="Make the model smaller first, until it has at most so "
              "many parameters.")  # fmt: skip
@click.option("--set", "changes", multiple=True, metavar="FIELD=V", help="Change the model first; "
              "holds under --params.")  # fmt: skip
@click.option("--lr", type=float, help="Peak learning rate; by width and steps unless given.")
@click.option("--schedule", default="cosine", show_default=True, metavar="cosine|wsd|constant")
@click.option("--warmup", type=COUNT, help="Steps; a twentieth of all by default.")
@click.option("--optimizer", default="adamw", show_default=True, metavar="adamw|muon")
@click.option("--weight-decay", type=float, default=0.1, show_default=True)
@click.option("--clip", type=float, default=1.0, show_default=True, help="Largest norm of the "
              "gradient; 0 for none.")  # fmt: skip
@click.option("--rate", "rates", multiple=True, metavar="NAME=FACTOR", help="Factor on the rate of "
              "parameters whose name begins so: decoder.layers.0=0.5; 0 freezes.")  # fmt: skip
@click.option("--param", metavar="sp|mup|completep", help="How rates and initial sizes follow the "
              "shape; sp by default.")  # fmt: skip
@click.option("--dtype", default="fp32", show_default=True, metavar="fp32|bf16|auto")
@click.option("--compile", is_flag=True, help="Let torch.compile make the step.")
@click.option("--micro-batch", type=COUNT, help="Sequences of one pass.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--seeds", type=COUNT, metavar="N", help="Train so many seeds, from --seed on: at "
              "once where that is faster; with --out each in a folder of its own.")  # fmt: skip
@click.option("--device", metavar="cpu|cuda", help="A GPU where there is one, by default.")
@click.option("--threads", type=click.IntRange(1), help="Of the CPU; torch's own number by "
              "default.")  # fmt: skip
@click.option("--gpu", help="Chip or chip file (scantling calibrate) that step times are predicted "
              "for.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Keep the run here; "
              "the same command goes on where it stopped.")  # fmt: skip
@click.option("--judge-every", type=COUNT, metavar="STEPS", help="Also look at held-back data so "
              "often.")  # fmt: skip
@click.option("--mirror", "mirrors", multiple=True, metavar="tensorboard|wandb|trackio",
              help="Show the records there as well.")  # fmt: skip
@assumed
@as_json
def train(model: str | None, **given: Any) -> int:
    """Train a model of this shape, or go on with one that is trained, on this machine by default.

    The vocabulary becomes that of the data. Exit status 1 where the loss diverges.

    Example: scantling lab train qwen3-0.6b --params 300k --data grammar --tokens 500k

    Example: scantling lab train --from cut --lr 1e-3 --tokens 100k

    On several processes: torchrun --nproc-per-node 2 -m scantling lab train …
    """
    from scantling.lab import need_torch

    need_torch()
    import torch

    from scantling.lab.distributed import leave, world

    if given["threads"]:
        torch.set_num_threads(given["threads"])
    among = world(given["device"])
    run, name = _run(model, given)
    try:
        found = _all(run, given, name, first=among.first)
    finally:
        leave()
    if among.first:
        if given["seeds"] is None:
            _show(found[0], name, given)
        else:
            _show_seeds(found, name, given)
    return 0 if all(one.status == "done" for one in found) else 1


def _run(model: str | None, given: dict[str, Any]) -> tuple[TrainingRun, str]:
    """The run that is asked for, and the model's name."""
    from scantling.lab.train import TrainingRun

    spec, data, name = _begun(model, given) if given["start"] else _new(model, given)
    rates = {}
    for prefix, factor in pairs(given["rates"], "--rate").items():
        try:
            rates[prefix] = float(factor)
        except ValueError:
            raise FieldError("--rate", f"{prefix}={factor}", "is no number") from None
    fields = {field: given[field] for field in TAKEN}
    run = TrainingRun(spec=spec, data=data, rates=rates, clip=given["clip"] or None,
                      chip=given["gpu"], **fields)  # fmt: skip
    return run.checked(), name


def _new(model: str | None, given: dict[str, Any]) -> tuple[Spec, Task, str]:
    """The shape of a model, with the vocabulary of the data."""
    from scantling import catalog
    from scantling.lab.data import task

    if model is None:
        raise FieldError("MODEL", None, "is not given", "name one, or --from a run")
    one = catalog.load(model, assume=given["assume"])
    data = task(given["data"] or "code", given["batch"], given["context"],
                given["tokenizer"] or "bytes", given["bytes_per_token"])  # fmt: skip
    given["param"] = given["param"] or "sp"
    return _fitted(one.spec, data.vocab_size, data.context, given), data, one.name


def _begun(model: str | None, given: dict[str, Any]) -> tuple[Spec, Task, str]:
    """The shape of a model that is trained, or another one of the same tensors."""
    from scantling import catalog
    from scantling.lab.kept import kept
    from scantling.spec import vary

    if given["params"]:
        raise FieldError("--params", given["params"], "does not go with --from, whose shape is "
                         "what it is")  # fmt: skip
    one = kept(given["start"])
    data, note = one.task(given["data"], given["context"], given["batch"], given["tokenizer"],
                          given["bytes_per_token"])  # fmt: skip
    if note:
        click.echo(f"note: {note}", err=True)
    spec = one.model.spec
    if model is not None:
        asked = catalog.load(model, assume=given["assume"]).spec
        spec = vary(asked, vocab_size=spec.vocab_size)
    given["param"] = given["param"] or one.model.param.kind
    return apply_set(spec, given["changes"]), data, f"from {given['start']}"


def _fitted(spec: Spec, vocab_size: int, context: int, given: dict[str, Any]) -> Spec:
    """The model with the data's vocabulary, the changes asked for, and small enough."""
    from scantling.costs.count import parameters
    from scantling.lab.shrink import changes, shrink
    from scantling.spec import vary

    spec = apply_set(vary(spec, vocab_size=vocab_size), given["changes"])
    if not given["params"]:
        return spec
    small = shrink(spec, limit := given["params"], context)
    undone = changes(spec, small)
    held = (*given["changes"], f"vocab_size={int(spec.vocab_size)}")
    lost = tuple(c for c in held if c.partition("=")[0].strip() in undone)
    while lost and parameters(small := apply_set(small, lost)).total > given["params"]:
        limit //= 2
        try:
            small = shrink(spec, limit, context)
        except FieldError:
            raise FieldError(
                "--params", f"{given['params']:,}", "are fewer than the "
                f"{int(parameters(small).total):,} of this model made as small as it goes with "
                f"{', '.join(lost)}",
            ) from None  # fmt: skip
    return small


def _all(run: TrainingRun, given: dict[str, Any], name: str, *, first: bool) -> list[Result]:
    """The run, or one for each seed: at once where that is faster, else one after another."""
    import shutil

    from scantling.lab.train_many import at_once, train_many

    n = given["seeds"]
    if n is None:
        return [_trained(run, given, name, first=first)]
    runs = [
        replace(run, seed=seed, out=None if run.folder is None else run.folder / f"seed-{seed}")
        for seed in range(run.seed, run.seed + n)
    ]
    if n == 1 or given["mirrors"] or not at_once(run, n):
        return [_trained(one, given, name, first=first) for one in runs]
    keep = None if run.folder is None else run.folder / "together"
    found = _behind_bar(lambda told: train_many(runs, keep, told), run.n_steps, [], first=first)
    if keep is not None:
        shutil.rmtree(keep, ignore_errors=True)
    return found


def _trained(run: TrainingRun, given: dict[str, Any], name: str, *, first: bool) -> Result:
    """Train one, with mirrors."""
    from scantling.lab.mirrors import MIRRORS, mirror
    from scantling.lab.train import train as run_it

    for which in given["mirrors"]:
        if which not in MIRRORS:
            raise UnknownNameError("--mirror", which, MIRRORS)
    if given["mirrors"] and run.out is None:
        raise FieldError("--mirror", given["mirrors"][0], "needs --out")
    asked = {"model": name, "lr": run.peak_lr, "seed": run.seed, "steps": run.n_steps}
    told = [mirror(which, run.folder, asked) for which in given["mirrors"] if first and run.folder]
    return _behind_bar(lambda on_step: run_it(run, on_step), run.n_steps, told, first=first)


def _behind_bar(
    train: Callable[[Callable[[dict[str, Any]], None]], T], steps: int,
    told: Sequence[Callable[[dict[str, Any]], None]], *, first: bool,
) -> T:  # fmt: skip
    """Train behind a bar, which says how fast it goes and how long it will take."""
    from rich.progress import BarColumn, Progress, TextColumn

    from scantling.report import text

    bar = Progress(TextColumn("train"), BarColumn(), TextColumn("{task.description}"),
                   console=text.console(stderr=True), auto_refresh=False, transient=True,
                   disable=not (first and sys.stderr.isatty()))  # fmt: skip
    spoken = time.monotonic()
    with bar:
        work = bar.add_task("", total=steps)

        def on_step(record: dict[str, Any]) -> None:
            nonlocal spoken
            if "steps" not in record:
                for one in told:
                    one(record)
            if "slice" in record:
                return
            if record["step"] == 0:
                _say_ahead(steps, record["remaining_s"])
            words = _words(record, steps)
            if bar.disable and "loss" not in record:
                return
            if bar.disable:  # a log: a line now and then
                if time.monotonic() - spoken >= SILENT_S:
                    spoken = time.monotonic()
                    click.echo(f"train {words}", err=True)
                return
            bar.update(work, completed=record["step"], description=words)
            bar.refresh()

        return train(on_step)


def _words(record: dict[str, Any], steps: int) -> str:
    """How far a run is."""
    from scantling.units import count_text, seconds_text

    words = [f"step {record['step']:,} of {steps:,}"]
    if "loss" in record:
        loss = record["loss"]
        words += [f"loss {'nan' if loss is None else format(loss, '.3f')}",
                  f"{count_text(record['tokens_per_s'])} tokens/s"]  # fmt: skip
    if record["remaining_s"] is not None:
        words.append(f"{seconds_text(record['remaining_s'])} left")
    return ", ".join(words)


def _say_ahead(steps: int, seconds: float | None) -> None:
    """That a run will take long, where it will."""
    from scantling.units import seconds_text

    if seconds is not None and seconds >= WARNED_S:
        click.echo(f"train: {steps:,} steps will take about {seconds_text(seconds)} as "
                   "predicted; fewer --tokens or --params take less", err=True)  # fmt: skip


def _show(found: Result, name: str, given: dict[str, Any]) -> None:
    if given["as_json"]:
        show_json({"schema": 1, "model": name, **found.row(), "judged": found.judged})
        return
    from scantling.report import text

    out = text.console()
    out.print(_asked(found, name))
    out.print(f"training loss {_sparkline(found.losses)} {found.losses[0]:.3f} to "
              f"{found.losses[-1]:.3f} nats/token")  # fmt: skip
    if found.why:
        asked, usual = found.run.peak_lr, replace(found.run, lr=None).peak_lr
        better = f"{usual:g}, the usual one here" if asked > 3 * usual else "a third of the rate"
        out.print(f"[bold]diverged[/bold]: {found.why}; try {better}")
    else:
        _print_judged(out, found)
    _print_speed(out, found)
    if found.warning:
        out.print(f"note: {found.warning}")
    if found.run.out is not None:
        out.print(f"kept in {found.run.out}: the same command goes on there; laws fit reads its "
                  "result.jsonl")  # fmt: skip


def _show_seeds(found: list[Result], name: str, given: dict[str, Any]) -> None:
    """Every seed by itself, and their mean."""
    from scantling.lab.stats import mean_interval
    from scantling.report import text

    if given["as_json"]:
        runs = [{**one.row(), "judged": one.judged} for one in found]
        show_json({"schema": 1, "model": name, "runs": runs})
        return
    out = text.console()
    out.print(_asked(found[0], name, f"{len(found)} seeds"))
    table = text.table(("seed", "right"), ("nats/token", "right"), ("bits/byte", "right"),
                       ("accuracy", "right"), ("", "left"))  # fmt: skip
    for one in found:
        row = one.judged.get("report")
        bits = None if row is None else row["bits_per_byte"]
        table.add_row(str(one.run.seed), "" if row is None else f"{row['loss']:.4f}",
                      "" if bits is None else f"{bits:.4f}",
                      "" if row is None else f"{row['accuracy']:.1%}", one.why)  # fmt: skip
    text.show_table(out, table)
    losses = [float(one.judged["report"]["loss"] or 0.0) for one in found if one.judged]
    if len(losses) > 1:
        i = mean_interval(losses)
        out.print(f"held back to report: {i.value:.4f} nats/token, 95 % between {i.low:.4f} and "
                  f"{i.high:.4f}")  # fmt: skip
    together = found[0].members
    if together > 1:
        out.print(f"trained {together} at once: {sum(one.seconds for one in found):.1f} s")
    if given["out"] is not None:
        out.print(f"kept in {given['out']}/seed-…: the same command goes on there; laws fit reads "
                  "each result.jsonl")  # fmt: skip


def _asked(found: Result, name: str, seeds: str = "") -> str:
    """The shape and the recipe in one line."""
    from scantling.costs.count import parameters
    from scantling.units import count_text

    run, spec = found.run, found.run.spec
    total = int(parameters(spec).total)
    per = found.tokens / total
    return (
        f"[bold]{name}[/bold] {_layers(spec)}, {total:,} parameters, "
        f"vocabulary {int(spec.vocab_size):,}: {count_text(found.tokens)} tokens of "
        f"{run.task.name} ({per:.2g} a parameter) in {found.steps} steps, {run.optimizer} "
        f"{run.schedule}, learning rate {run.peak_lr:g}, {seeds or f'seed {run.seed}'}"
    )


def _layers(spec: Spec) -> str:
    """Depth and width in words."""
    n = int(spec.n_layer)
    return f"{n} {'layer' if n == 1 else 'layers'} of width {int(spec.d_model)}"


def _print_judged(out: Console, found: Result) -> None:
    from scantling.report import text

    table = text.table(("held back to", "left"), ("nats/token", "right"), ("bits/byte", "right"),
                       ("accuracy", "right"))  # fmt: skip
    for held, row in found.judged.items():
        bits = row["bits_per_byte"]
        table.add_row(held, f"{row['loss']:.4f}", "" if bits is None else f"{bits:.4f}",
                      f"{row['accuracy']:.1%}")  # fmt: skip
    text.show_table(out, table)
    floor = found.run.task.floor_bits_per_byte
    if floor is not None:
        out.print(f"no model can be below {floor:.4f} bits/byte here")


def _print_speed(out: Console, found: Result) -> None:
    """Measured beside predicted."""
    from scantling.units import seconds_text

    if found.step_s is None:
        return
    told = f"step {seconds_text(found.step_s)} by the {found.clock} clock"
    if found.expected is not None:
        e = found.expected
        told += (
            f", {seconds_text(float(e.value_s))} predicted ({seconds_text(float(e.low_s))} to "
            f"{seconds_text(float(e.high_s))}): ×{found.step_s / float(e.value_s):.2f}"
        )
        if found.run.chip is None and found.clock == "thread":
            told += " on the reference CPU; scantling calibrate --threads 1 measures yours"
    out.print(told)
    if found.peak_bytes:
        out.print(_memory(found, found.peak_bytes))


def _memory(found: Result, measured: int) -> str:
    """The peak of memory beside what tensors need."""
    from scantling.units import bytes_text

    on_gpu = next(found.model.parameters()).is_cuda
    if found.memory is None:
        return (f"memory {bytes_text(measured)} at most" if on_gpu
                else f"memory: the process grew by {bytes_text(measured)} at most")  # fmt: skip
    said = float(found.memory.total)
    if on_gpu:
        return (f"memory {bytes_text(measured)} at most, {bytes_text(said)} predicted: "
                f"×{measured / said:.2f}")  # fmt: skip
    return (f"memory: the process grew by {bytes_text(measured)} at most, its tensors need "
            f"{bytes_text(said)} as predicted")  # fmt: skip


def _sparkline(losses: list[float], width: int = 40) -> str:
    """The losses as bars, each the mean of its share of the steps.

    Example:
        >>> _sparkline([3.0, 2.0, 1.0], 3)
        '█▅▁'
    """
    import math

    n = min(width, len(losses))
    cut = [losses[i * len(losses) // n : (i + 1) * len(losses) // n] for i in range(n)]
    means = [sum(part) / len(part) for part in cut]
    fine = [m for m in means if math.isfinite(m)] or [0.0]
    low, span = min(fine), max(fine) - min(fine) or 1.0
    last = len(BARS) - 1
    return "".join(BARS[round((m - low) / span * last)] if math.isfinite(m) else "×" for m in means)
