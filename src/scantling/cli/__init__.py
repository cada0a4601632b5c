"""The command line: thin; parse, call one public function, print a report."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import click

from scantling import __version__
from scantling.errors import ScantlingError
from scantling.messages import LANGUAGES, in_language, language, use_language

VERBS = {
    "design": ("scantling.cli.design", "From a budget to the shapes worth training."),
    "analyze": ("scantling.cli.inspect", "Exact counts, memory and ratios of a model."),
    "compare": ("scantling.cli.inspect", "Models side by side, growth decomposed."),
    "plan": ("scantling.cli.plan", "Training: memory, time and the best split over chips."),
    "serve": ("scantling.cli.serve", "Inference: does it fit, how long, how fast, what price."),
    "lint": ("scantling.cli.lint", "Rules on a shape: illegal, slow, too large, with fixes."),
    "trace": ("scantling.cli.inspect", "The walk of a token through the shapes."),
    "export": ("scantling.cli.export", "Write a model as config of another tool."),
    "validate": ("scantling.cli.validate", "Predictions against public tables: every error."),
    "calibrate": ("scantling.cli.calibrate", "Measure this machine, write a chip file."),
    "lab": ("scantling.cli.lab", "Experiments with real training, on this machine."),
    "models": ("scantling.cli.catalogue", "The named models; what they chose over the years."),
    "chips": ("scantling.cli.catalogue", "The chips, with sources."),
    "claims": ("scantling.cli.claims", "What is said of dimensions, and what is right."),
    "rules": ("scantling.cli.lint", "The rules of lint, each with its page."),
    "glossary": ("scantling.cli.glossary", "What the words mean, in English and Chinese."),
    "laws": ("scantling.cli.laws", "The laws; fit one to your runs, evaluate one."),
}
"""Each verb with its module, imported when the verb is used, and its line of help."""


class Verbs(click.Group):
    """A group whose commands are imported on use, so that ``--help`` starts fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The verbs, in the order of the manual."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        """One verb."""
        if name not in VERBS:
            return None
        found: click.Command = getattr(import_module(VERBS[name][0]), name)
        return speaking(found)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The list of verbs in ``--help``, without importing them."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """A verb, or the nearest one in the error."""
        from scantling.errors import nearest

        if args and not args[0].startswith("-") and args[0] not in VERBS:
            near = nearest(args[0], VERBS, 1)
            hint = f"did you mean {near[0]}?" if near else f"verbs: {', '.join(VERBS)}"
            raise click.UsageError(f"no verb {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)


def _choose(ctx: click.Context, param: click.Parameter, value: str | None) -> None:  # noqa: ARG001
    if value is not None:
        before = language()
        use_language(value)
        ctx.find_root().call_on_close(lambda: use_language(before))


class Telling(click.HelpFormatter):
    """Help whose headings are told in the language, too."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """The line of usage."""
        super().write_usage(prog, args, in_language("Usage:") + " " if prefix is None else prefix)

    def write_heading(self, heading: str) -> None:
        """A heading: ``Options``."""
        super().write_heading(in_language(heading))

    def write_text(self, text: str) -> None:
        """Paragraphs, each of which the catalogue has as one line."""
        if language() != "en":
            lines = (" ".join(part.split()) for part in text.split("\n\n"))
            text = "\n\n".join(in_language(line) for line in lines)
        super().write_text(text)

    def write_dl(self, rows: Any, *more: Any, **options: Any) -> None:
        """Options and verbs with their line."""
        super().write_dl([(name, in_language(text)) for name, text in rows], *more, **options)


class Spoken(click.Context):
    """A context whose help is ``Telling``."""

    formatter_class = Telling


def speaking(command: click.Command) -> click.Command:
    """A command that takes ``--lang``, as do those below it, and tells its help in the language."""
    if not any(p.name == "lang" for p in command.params):
        told = "Language of what people read; JSON is never translated."
        command.params.append(
            click.Option(["--lang"], metavar="|".join(LANGUAGES), expose_value=False,
                         is_eager=True, callback=_choose, help=told)
        )  # fmt: skip
    if isinstance(command, click.Group) and not isinstance(command, Verbs):
        for below in command.commands.values():
            speaking(below)
    command.context_class = Spoken
    return command


def _first_language(words: list[str]) -> None:
    """The language before anything is read, so that ``--help`` and errors are told in it."""
    for i, word in enumerate(words):
        name = word.partition("=")[2] if word.startswith("--lang=") else None
        name = words[i + 1] if word == "--lang" and i + 1 < len(words) else name
        if name is not None:
            use_language(name)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="scantling")
def group() -> None:
    """Chooses, checks and tests the dimensions of language models.

    MODEL is a name of the catalogue (scantling models), a config.json, its folder, or - for JSON
    on standard input. Numbers take human units: 7B, 80GiB, 1e22, 8k, 30ms. Exit status: 0 yes,
    1 the answer is no, 2 bad input.
    """


def main() -> None:
    """Run the command line; an error is one line and exit status 2."""
    try:
        _first_language(sys.argv[1:])
        speaking(group)
        status = group(standalone_mode=False)
        sys.stdout.flush()
    except ScantlingError as error:
        click.echo(in_language(f"error: {error}"), err=True)
        sys.exit(2)
    except click.ClickException as error:
        click.echo(in_language(f"error: {error.format_message()}"), err=True)
        sys.exit(2)
    except click.Abort:
        click.echo(in_language("stopped"), err=True)
        sys.exit(130)
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    sys.exit(status if isinstance(status, int) else 0)
