"""Options that mean the same on every verb, and how their values are read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from scantling.errors import FieldError, ScantlingError
from scantling.messages import in_language
from scantling.spec import Spec, check, vary
from scantling.units import (
    parse_bytes,
    parse_context,
    parse_count,
    parse_seconds,
    parse_share,
)

F = TypeVar("F", bound=Callable[..., Any])


class ListFirst(click.Group):
    """A group that lists where no command is named: ``scantling laws aspect``.

    Args:
        other: The command for what is no command, ``list`` by default.
    """

    def __init__(self, *args: Any, other: str = "list", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.other = other

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert ``list`` before options of the list, ``other`` before names."""
        if not args or args[0] not in {*self.commands, "-h", "--help"}:
            named = bool(args) and not args[0].startswith("-")
            args = [self.other if named else "list", *args]
        return super().parse_args(ctx, args)


class Unit(click.ParamType[Any]):
    """A value in human units."""

    def __init__(self, name: str, parse: Callable[..., Any]) -> None:
        self.name, self.parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002
        """Parse text; the error names the option."""
        if not isinstance(value, str):
            return value
        return self.parse(value, param.opts[0] if param and param.opts else "")


COUNT = Unit("count", parse_count)
BYTES = Unit("bytes", parse_bytes)
SECONDS = Unit("time", parse_seconds)
SHARE = Unit("share", parse_share)
CONTEXT = Unit("tokens", parse_context)

assumed = click.option("--assume", is_flag=True, help="A model type in no table: go on past fields "
                       "that are not understood.")  # fmt: skip

as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object (a line a model).")


def workload(function: F) -> F:
    """``--batch --context --dtype --kv-dtype --flops``."""
    for option in (
        click.option("--flops", default="full", metavar="full|unpadded|causal|palm|megatron",
                     help="FLOP convention (docs/flops.md)."),
        click.option("--kv-dtype", default="bf16", help="Dtype of the KV cache."),
        click.option("--dtype", default="bf16", help="Dtype of the weights."),
        click.option("--context", type=CONTEXT, help="Tokens of a sequence: 8k is 8192."),
        click.option("--batch", type=COUNT, default=1, help="Sequences."),
    ):  # fmt: skip
        function = option(function)
    return function


def hardware(function: F) -> F:
    """``--gpu --gpus --tokens``."""
    for option in (
        click.option(
            "--tokens", type=COUNT, help="Training tokens; 20 an active parameter by default."
        ),
        click.option("--gpus", type=COUNT, help="Chips for training; 8 by default."),
        click.option("--gpu", help="Chip (scantling chips); h100-sxm by default."),
    ):
        function = option(function)
    return function


def pairs(texts: tuple[str, ...], option: str) -> dict[str, str]:
    """``FIELD=VALUE`` options as a dictionary."""
    found = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name or not value:
            raise FieldError(option, text, "is no assignment", "write FIELD=VALUE")
        if name in found:
            raise FieldError(option, name, "is given twice")
        found[name] = value
    return found


def apply_set(spec: Spec, texts: tuple[str, ...]) -> Spec:
    """A spec with ``--set FIELD=VALUE`` applied and checked."""
    changes: dict[str, Any] = {}
    for name, value in pairs(texts, "--set").items():
        if name == "tied":
            if value.lower() not in {"true", "false"}:
                raise FieldError("--set tied", value, "must be true or false")
            changes[name] = value.lower() == "true"
        else:
            changes[name.replace(".", "__")] = parse_count(value, f"--set {name}")
    return check(vary(spec, **changes)) if changes else spec


def each(models: tuple[str, ...], one: Callable[..., int], given: dict[str, Any]) -> int:
    """Answer for every model; the worst exit status, and an error of one keeps no other back."""
    status = 0
    for name in models:
        try:
            status = max(status, one(name, given, several=len(models) > 1))
        except ScantlingError as error:
            if len(models) == 1:
                raise
            status = 2
            click.echo(in_language(f"error: {name}: {error}"), err=True)
    return status


def show_assumed(notes: Iterable[str]) -> None:
    """Print what was assumed about a model type in no table, where no report lists it."""
    told = [note for note in notes if note.startswith("assumed: ")]
    if any(note.startswith("assumed: model type ") for note in told):
        for note in told:
            click.echo(f"note: {note}", err=True)


def show_json(value: Any, *, lines: bool = False) -> None:
    """Print JSON: indented, or one line where several models follow each other."""
    click.echo(json.dumps(value, indent=None if lines else 1, ensure_ascii=False))
