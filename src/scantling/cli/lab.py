"""``scantling lab``: experiments with real training."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from scantling.cli.lab_probe import probe
from scantling.cli.lab_train import train
from scantling.cli.options import COUNT, SECONDS, ListFirst, as_json, show_json
from scantling.errors import FieldError
from scantling.messages import in_language, with_names

if TYPE_CHECKING:
    from rich.console import Console

    from scantling.lab.study import Runner, Study

FOLDER = Path("lab-runs")
"""Where studies are kept unless a folder is given."""
ANSWER_FILES = ("report.html", "report.txt", "figure.svg")


@click.group(cls=ListFirst, other="run", invoke_without_command=False)
def lab() -> None:
    """Experiments with real training: put a rule to the test on this machine (extra lab).

    ``scantling lab`` lists the experiments, ``lab run NAME`` runs one, ``lab report DIR`` explains
    what it found, ``lab train MODEL`` trains one shape, ``lab probe RUN`` looks
    inside it.
    """


@lab.command("list")
@click.argument("names", nargs=-1, metavar="[NAME…]")
@as_json
def listing(names: tuple[str, ...], as_json: bool) -> int:
    """The experiments; NAME shows one in full."""
    from scantling.lab.experiments.registry import EXPERIMENTS, PRESETS, experiment_of

    chosen = [experiment_of(n) for n in names] or list(EXPERIMENTS.values())
    if as_json:
        rows = [{"name": e.name, "title": e.title, "page": e.page, "minutes": e.minutes,
                 "expected": e.study().expected, "sources": e.study().sources,
                 "shapes": {p: list(e.study(p).arms) for p in PRESETS}}
                for e in chosen]  # fmt: skip
        show_json({"schema": 1, "experiments": rows})
        return 0
    if names:
        for e in chosen:
            click.echo("\n".join(_page(e)))
        return 0
    wide = max(len(e.name) for e in chosen)
    for e in chosen:
        click.echo(f"{e.name:<{wide}}  {in_language(f'{e.title} (about {e.minutes:g} min)')}")
    end = "\nscantling lab run depth-width --budget 8min; minutes are of two idle cores"
    click.echo(in_language(end))
    return 0


def _page(e: Any) -> Iterator[str]:
    from scantling.sources import source

    study, say = e.study(), in_language
    sources = "; ".join(f"{one.title}, {one.where}" for one in map(source, study.sources))
    yield f"{e.name}: {say(e.title)}\n"
    yield e.page + "\n"
    yield say("Shapes: {}" if study.probed is None else "Arms: {}").format(", ".join(study.arms))
    yield say("Expected: {}").format(say(study.expected))
    yield say("Sources: {}").format(sources)
    yield say(study.caveat) + "\n"


@lab.command("run")
@click.argument("name", metavar="NAME|STUDY.toml")
@click.option("--budget", type=SECONDS, help="Time it may take, 8min: tokens are given up first, "
              "then shapes, never the third seed.")  # fmt: skip
@click.option("--preset", help="quick or standard, of an experiment; quick by default.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR",
              help=f"Where runs are kept, {FOLDER}/NAME-PRESET unless given; a study that was "
              "stopped goes on there.")  # fmt: skip
@click.option("--fresh", is_flag=True, help="Forget the runs that are kept there.")
@click.option("--ladder", is_flag=True, help="Ask it at three sizes, each four times the last, "
              "with the budget divided: is the sign stable?")  # fmt: skip
@click.option("--plan", "only_plan", is_flag=True, help="Time five steps, show the plan, stop.")
@click.option("--data", metavar="NAME|FILE", help="Train on this instead: code, grammar, a file.")
@click.option("--tokens", type=COUNT, help="Tokens of a run.")
@click.option("--seeds", type=COUNT, help="Seeds of every shape; at least 3.")
@click.option("--rates", type=COUNT, help="Learning rates of every shape.")
@click.option("--engine", default="pool", help="here, pool, ray or slurm.", show_default=True)
@click.option("--workers", type=COUNT, help="Processes; all cores unless given.")
@click.option("--device", metavar="cpu|cuda", help="A GPU where there is one, by default.")
@click.option("--compile", "compiled", is_flag=True, help="Let torch.compile make the steps of "
              "runs that train together, where that pays: from 3M tokens of all.")  # fmt: skip
@as_json
def run(name: str, out: Path | None, **given: Any) -> int:
    """Run an experiment, or a study of your own, to a verdict.

    Exit status 0 where shapes could be told apart, 1 where they could not.

    Example: scantling lab run depth-width --budget 8min
    """
    from scantling.lab.torch_needed import need_torch

    if given["ladder"]:
        return _ladder(name, out, given)
    study, own = _study(name, given["preset"])
    study = _changed(study, given)
    need_torch()
    from scantling.lab.study.answer import answer, planned, result_json

    runner = _runner(given)
    folder = out or FOLDER / own
    say = _teller(study, given)
    how = {k: given[k] for k in ("engine", "workers", "fresh")}
    if given["only_plan"]:
        one, _, _ = planned(study, runner, folder, budget_s=given["budget"], say=say, **how)
        return _planned({"study": study.name, "plan": one}, given)
    with _progress() as progress:
        found = answer(study, runner, folder, budget_s=given["budget"], say=say,
                       progress=progress, **how)  # fmt: skip
    told = json.loads(json.dumps(result_json(found)))
    written = _write(folder, told)
    if given["as_json"]:
        show_json(told)
    else:
        _show(told)
        end = f"\n{written[0]} explains it; {folder / 'runs.jsonl'} is for laws fit"
        click.echo(in_language(end), err=True)
    return 0 if found.resolved else 1


def _runner(given: dict[str, Any]) -> Runner:
    from scantling.lab.study.training import Training
    from scantling.lab.torch_needed import need_compiler

    if given["compiled"]:
        need_compiler()
    return Training(given["device"], compile=given["compiled"], models=FOLDER / "models")


def _ladder(name: str, out: Path | None, given: dict[str, Any]) -> int:
    """The same at three sizes: exit status 0 where a sign is stable, or turns."""
    from scantling.lab.study.ladder import SEPARATE, SIZES, climb, plans
    from scantling.lab.torch_needed import need_torch

    studies = {times: _changed(_study(name, given["preset"], times)[0], given) for times in SIZES}
    need_torch()
    folder = out or FOLDER / f"{_study(name, given['preset'])[1]}-ladder"
    say = _teller(studies[1], given)
    how = {k: given[k] for k in ("engine", "workers", "fresh")}
    if given["only_plan"]:
        each = plans(studies, _runner(given), folder, budget_s=given["budget"], say=say, **how)
        return _planned({"study": studies[1].name, "plans": each}, given)
    with _progress() as progress:
        told = climb(studies, _runner(given), folder, budget_s=given["budget"], say=say,
                     progress=progress, **how)  # fmt: skip
    told = json.loads(json.dumps(told))
    written = _write(folder, told)
    if given["as_json"]:
        show_json(told)
    else:
        _show(told)
        end = f"\n{written[0]} explains it; each size has its own folder in {folder}"
        click.echo(in_language(end), err=True)
    return 0 if any(pair["kind"] in SEPARATE for pair in told["pairs"]) else 1


def _planned(told: dict[str, Any], given: dict[str, Any]) -> int:
    """A plan that is not run; people have been told its lines."""
    from msgspec import to_builtins

    if given["as_json"]:
        show_json({"schema": 1, **to_builtins(told, str_keys=True)})
    return 0


def _study(name: str, preset: str | None, times: int = 1) -> tuple[Study, str]:
    """A study and the name of its folder."""
    if name.endswith(".toml"):
        if preset is not None:
            raise FieldError("--preset", preset, f"is of experiments; {name} has its own tokens "
                             "and seeds", "give --tokens and --seeds")  # fmt: skip
        from scantling.lab.study.file import read_study

        return read_study(Path(name), times), Path(name).stem
    from scantling.lab.experiments.registry import experiment_of

    preset = preset or "quick"
    return experiment_of(name).study(preset, times), f"{name}-{preset}"


def _changed(study: Study, given: dict[str, Any]) -> Study:
    """With what was asked otherwise."""
    from msgspec.structs import replace

    changes = {k: given[k] for k in ("data", "tokens", "seeds") if given[k] is not None}
    if "tokens" in changes and study.least_tokens is not None:
        changes["least_tokens"] = min(study.least_tokens, changes["tokens"])
    if given["rates"] is not None:
        changes["rates"] = replace(study.rates, n=given["rates"])
    return replace(study, **changes).check()


def _teller(study: Study, given: dict[str, Any]) -> Callable[[str], None]:
    """Tells people what a study does; nobody where JSON is asked for."""
    names = {name: name for name in study.arms}
    if given["as_json"]:
        return lambda _: None
    return lambda line: click.echo(with_names(line, names), err=True)


def _show(told: dict[str, Any]) -> None:
    from scantling.report import text

    _told_as(told).show(text.console(), told)


class _As(NamedTuple):
    """How a result is shown."""

    show: Callable[[Console, dict[str, Any]], None]
    page: Callable[[dict[str, Any]], str]
    figure: Callable[[dict[str, Any]], str]
    explained: Callable[[dict[str, Any]], list[tuple[str, list[str]]]]


def _told_as(told: dict[str, Any]) -> _As:
    """As a study, or as a ladder of them."""
    from scantling.report import lab_html, lab_ladder, lab_svg, lab_text

    if lab_ladder.is_ladder(told):
        return _As(lab_ladder.print_ladder, lab_ladder.page, lab_ladder.figure,
                   lab_ladder.explained)  # fmt: skip
    return _As(lab_text.print_study, lab_html.page, lab_svg.figure, lab_text.explained)


def _write(folder: Path, told: dict[str, Any]) -> list[Path]:
    """The report beside the runs: a page, a text, a figure."""
    from scantling.report.text import console

    how = _told_as(told)
    html, text, svg = (folder / name for name in ANSWER_FILES)
    try:
        html.write_text(how.page(told), encoding="utf-8")
        svg.write_text(how.figure(told), encoding="utf-8")
        with text.open("w", encoding="utf-8") as sink:
            how.show(console(file=sink, width=200, no_color=True), told)
            for title, paragraphs in how.explained(told):
                sink.write("\n".join(["", in_language(title), *(f"  {p}" for p in paragraphs), ""]))
    except OSError as error:
        raise FieldError("--out", str(folder), f"cannot be written: {error.strerror}") from None
    return [html, text, svg]


@lab.command("report")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.html",
              help="Write the page here as well.")  # fmt: skip
@as_json
def report(folder: Path, out: Path | None, as_json: bool) -> int:
    """Explain what a study found to someone who did not run it.

    Writes report.html (one page, nothing beside it), report.txt and figure.svg into DIR.
    """
    try:
        told = json.loads((folder / "result.json").read_text("utf-8"))
    except FileNotFoundError:
        begun = any(folder.glob("study.json")) or any(folder.glob("x*/study.json"))
        hint = "lab run goes on with it" if begun else "give the folder of a study"
        rule = "holds a study that has not ended" if begun else "holds no study"
        raise FieldError("lab report", str(folder), rule, hint) from None
    except (OSError, ValueError) as error:
        raise FieldError("lab report", str(folder), f"cannot be read: {error}") from None
    if not isinstance(told, dict) or not told.keys() >= {"study", "headline"}:
        raise FieldError("lab report", str(folder), "holds a result.json that is of no study",
                         "give the folder of a study")  # fmt: skip
    if as_json:
        show_json(told)
        return 0
    written = _write(folder, told)
    if out is not None:
        try:
            out.write_text(_told_as(told).page(told), encoding="utf-8")
        except OSError as error:
            raise FieldError("--out", str(out), f"cannot be written: {error.strerror}") from None
        written.append(out)
    for title, paragraphs in _told_as(told).explained(told):
        click.echo(in_language(title))
        for paragraph in paragraphs:
            click.echo(f"  {paragraph}")
        click.echo()
        if title == "What was found":
            _show(told)
            click.echo()
    click.echo(in_language(f"wrote {', '.join(map(str, written))}"), err=True)
    return 0


lab.add_command(train)
lab.add_command(probe)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """A bar on a terminal; a line a minute elsewhere, on standard error."""
    import time

    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress, TimeElapsedColumn, TimeRemainingColumn

        columns = (*Progress.get_default_columns()[:-1], TimeElapsedColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("runs", total=None)
            yield lambda done, total: bar.update(task, completed=done, total=max(done, total))
        return
    told = [time.monotonic()]

    def line(done: int, total: int) -> None:
        if time.monotonic() - told[0] >= 60:
            told[0] = time.monotonic()
            grown = ", as grids grew" if done > total else ""
            click.echo(in_language(f"{done} of {total} planned runs{grown}"), err=True)

    yield line
