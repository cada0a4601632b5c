"""``scantling lint`` and ``scantling rules``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scantling.cli.options import CONTEXT, COUNT, F, as_json, show_json
from scantling.errors import FieldError, ScantlingError
from scantling.messages import in_language

if TYPE_CHECKING:
    from scantling.rules import Report, Rule, Setting
    from scantling.rules.project import Project

SETTING = ("gpu", "gpus", "tp", "pp", "ep", "cp", "virtual", "dcp", "runtime", "quant", "dtype",
           "context", "batch", "phase")  # fmt: skip


def setting_options(function: F) -> F:
    """Where a model is to run: the options that make a ``rules.Setting``."""
    for option in (
        click.option("--phase", help="train or serve; rules of both without."),
        click.option("--batch", type=COUNT, help="Sequences; micro-batches of a training step."),
        click.option("--context", type=CONTEXT, help="Tokens of a sequence: 8k is 8192."),
        click.option("--dtype", help="What is computed in: bf16, fp16, fp8, mxfp8, nvfp4."),
        click.option("--quant", help="Scheme of the weights: fp8-block, awq-int4, q4_k_m, …"),
        click.option("--runtime", help="vllm, sglang, tensorrt-llm, llama.cpp, transformers, flex, "
                     "megatron, torchtitan, ulysses, deepep, cublas-10, …"),
        click.option("--dcp", type=COUNT, help="Decode-context-parallel degree (vLLM)."),
        click.option("--virtual", type=COUNT, help="Chunks of a pipeline stage (interleaving)."),
        click.option("--cp", type=COUNT, help="Context-parallel degree."),
        click.option("--ep", type=COUNT, help="Ranks that whole experts are spread over."),
        click.option("--pp", type=COUNT, help="Pipeline stages."),
        click.option("--tp", type=COUNT, help="Tensor-parallel degree."),
        click.option("--gpus", type=COUNT, help="Chips in all."),
        click.option("--gpu", help="Chip (scantling chips)."),
    ):  # fmt: skip
        function = option(function)
    return function


def _split(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())


@click.command()
@click.argument("models", nargs=-1, metavar="MODEL…")
@setting_options
@click.option("--select", multiple=True, metavar="CODE,…", help="Only these rules: codes, "
              "prefixes (SC1), names.")  # fmt: skip
@click.option("--ignore", multiple=True, metavar="CODE,…", help="Not these.")
@click.option("--level", type=click.Choice(["error", "warning", "info"]), help="Show down to here; "
              "info for one model, warning for several.")  # fmt: skip
@click.option("--strict", is_flag=True, help="Warnings fail, too.")
@click.option("--fix", "fix_", is_flag=True, help="Mend what can be, print the config.")
@click.option("--out", type=click.Path(path_type=Path), help="With --fix: write it here.")
@click.option("--explain", metavar="CODE", help="The page of a rule.")
@click.option("--format", "format_", type=click.Choice(["text", "json", "github", "sarif"]),
              default="text", help="How findings are told.")  # fmt: skip
@click.option("--isolated", is_flag=True, help="Read no scantling.toml or pyproject.toml.")
@as_json
def lint(models: tuple[str, ...], **given: Any) -> int:
    """Rules on a model's shape: what is illegal, slow, or does not fit, and what would be right.

    MODEL may also be a folder or a glob of configs. Exit status: 0 no errors, 1 errors, 2 a model
    that cannot be read at all.

    Example: scantling lint ./config.json --gpu h100-sxm --tp 8
    """
    from scantling.rules.files import expand
    from scantling.rules.project import Project, find_project
    from scantling.rules.setting import setting

    if given["explain"]:
        return _explain(given["explain"], as_json=given["as_json"])
    if not models:
        raise FieldError("MODEL", None, "is missing", "name a model, a config or a folder")
    form = "json" if given["as_json"] else given["format_"]
    project = Project() if given["isolated"] else find_project()
    asked = {k: given[k] for k in SETTING if given[k] is not None}
    try:
        where = setting(**{**project.setting, **asked})
    except FieldError as error:
        if asked or not project.setting:
            raise
        raise FieldError(f"{project.path}: {error.path}", error.value, error.rule,
                         error.hint) from None  # fmt: skip
    wanted = expand(models)
    if given["out"] is not None and (not given["fix_"] or len(wanted) != 1):
        raise FieldError("--out", given["out"], "needs --fix and one model")
    status, reports = 0, []
    for name in wanted:
        try:
            found = _one(name, given, where, project, form, several=len(wanted) > 1)
        except ScantlingError as error:
            if len(wanted) == 1:
                raise
            status = 2
            told = str(error) if name in str(error) else f"{name}: {error}"
            click.echo(in_language(f"error: {told}"), err=True)
            continue
        reports.append(found)
        status = max(status, _status(found, strict=given["strict"]))
    if form == "sarif":
        from scantling.report.lint import sarif

        show_json(sarif(reports))
    elif form == "text" and len(wanted) > 1 and not given["fix_"]:
        _total(reports)
    return status


def _status(report: Report, *, strict: bool) -> int:
    return int(not report.passed or (strict and report.count("warning") > 0))


def _rules(name: str, given: dict[str, Any], project: Project) -> dict[str, Rule]:
    from scantling.rules import select

    chosen = _split(given["select"]) or project.select
    return select(chosen, (*project.ignored(name), *_split(given["ignore"])))


def _one(
    name: str, given: dict[str, Any], where: Setting, project: Project, form: str, *, several: bool
) -> Report:  # fmt: skip
    from scantling.report import lint as told
    from scantling.report.lint_text import print_report
    from scantling.report.text import console
    from scantling.rules import lint as ask
    from scantling.rules import subject

    one = subject(name, where)
    if several and one.path is not None:
        one.name = str(one.path)
    chosen = _rules(name if one.path is None else str(one.path), given, project)
    if given["fix_"]:
        return _fix(one, chosen, given, form, several=several)
    found = ask(one, rules=chosen)
    if form == "json":
        show_json(found.to_json(), lines=several)
    elif form == "github":
        for line in told.github(found):
            click.echo(line)
    elif form == "text":
        least = given["level"] or ("warning" if several else "info")
        if not several or any(f.level != "info" for f in found.findings) or least == "info":
            print_report(console(), found, least)
    return found


def _fix(
    one: Any, chosen: dict[str, Rule], given: dict[str, Any], form: str, *, several: bool
) -> Report:  # fmt: skip
    from rich.console import Console

    from scantling.report.lint import config_text, fixed_json
    from scantling.report.lint_text import print_fixed
    from scantling.rules import fix

    found = fix(one, rules=chosen)
    if form == "json":
        show_json(fixed_json(found), lines=several)
    else:
        err = Console(stderr=True, width=400)
        err.print(f"[bold]{one.name}[/bold]", highlight=False)
        print_fixed(err, found)
        if given["out"] is None:
            click.echo(config_text(found.config), nl=False)
    if given["out"] is not None:
        try:
            given["out"].write_text(config_text(found.config), "utf-8")
        except OSError as error:
            raise FieldError(
                "--out", given["out"], f"cannot be written: {error.strerror}"
            ) from None
        click.echo(f"wrote {given['out']}", err=True)
    return found.after


def _total(reports: list[Report]) -> None:
    words = {"error": "error", "warning": "warning", "info": "note"}
    sums = {word: sum(r.count(level) for r in reports) for level, word in words.items()}
    counts = ", ".join(f"{n} {word}{'s' if n != 1 else ''}" for word, n in sums.items())
    click.echo(in_language(f"{len(reports)} model{'s' if len(reports) != 1 else ''}: {counts}"))


def _explain(name: str, *, as_json: bool) -> int:
    from scantling.report.lint import rule_json
    from scantling.report.lint_text import print_rule
    from scantling.report.text import console
    from scantling.rules import find_rule

    rule = find_rule(name)
    if as_json:
        show_json({"schema": 1, **rule_json(rule)})
    else:
        print_rule(console(), rule)
    return 0


@click.command()
@click.argument("names", nargs=-1, metavar="[CODE…]")
@click.option("--handbook", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Write the handbook, a page a rule: DIR/index.html.")  # fmt: skip
@as_json
def rules(names: tuple[str, ...], handbook: Path | None, as_json: bool) -> int:
    """The rules; with a code, prefix or name the page of each.

    Examples: scantling rules SC101

    scantling rules --handbook handbook/
    """
    from scantling.report.lint import rule_json
    from scantling.report.lint_text import print_rule, print_rules
    from scantling.report.text import console
    from scantling.rules import load_rules, select

    if handbook is not None:
        return _handbook(handbook, names, as_json=as_json)
    chosen = list(select(names).values()) if names else list(load_rules().values())
    if as_json:
        show_json({"schema": 1, "rules": [rule_json(r) for r in chosen]})
    elif names:
        for rule in chosen:
            print_rule(console(), rule)
    else:
        print_rules(console(), chosen)
    return 0


def _handbook(folder: Path, names: tuple[str, ...], *, as_json: bool) -> int:
    from rich.console import Console

    from scantling.report.handbook_html import write

    if names:
        raise FieldError("--handbook", str(folder), "is of all rules", "name no code")
    with Console(stderr=True).status("handbook") as status:
        files = write(folder, lambda step: status.update(f"handbook: {step}"))
    if as_json:
        show_json({"schema": 1, "files": [str(f) for f in files]})
    else:
        click.echo(f"wrote {files[0]} and {len(files) - 1} pages beside it")
    return 0
