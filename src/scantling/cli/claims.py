"""``scantling claims``: what is said of dimensions, what is right, and computing it again."""

from __future__ import annotations

from pathlib import Path

import click

from scantling.cli.options import ListFirst, as_json, show_json

which = click.option(
    "--verdict",
    "verdicts",
    multiple=True,
    metavar="VERDICT",
    help="Only these: correct, convention, approximate, wrong, unverifiable. Repeatable.",
)
topic = click.option(
    "--about",
    multiple=True,
    metavar="TOPIC",
    help="Only these: alignment, compute, context, depth, experts, feedforward, heads, memory, "
    "models, parameters, recipes, training, vocabulary. Repeatable.",
)


@click.group(cls=ListFirst, other="show", invoke_without_command=False)
def claims() -> None:
    """What is said of the dimensions of models, and what is right.

    ``scantling claims`` lists them, ``scantling claims A037`` shows one.
    """


@claims.command("list")
@click.argument("words", nargs=-1, metavar="[WORD…]")
@which
@topic
@as_json
def listing(words: tuple[str, ...], verdicts: tuple[str, ...], about: tuple[str, ...],
            as_json: bool) -> int:  # fmt: skip
    """The claims, or those that have every WORD; a line each."""
    from scantling.report.claims import chosen, claim_json, list_lines

    found = chosen(verdicts, about, words)
    if as_json:
        show_json({"schema": 1, "claims": {one.id: claim_json(one) for one in found}})
    else:
        click.echo("\n".join(list_lines(found)))
    return 0 if found else 1


@claims.command("show")
@click.argument("names", nargs=-1, required=True, metavar="CLAIM…")
@as_json
def show(names: tuple[str, ...], *, as_json: bool) -> int:
    """One claim with its derivation, evidence and sources; CLAIM is an id or a name."""
    from scantling.claims import claim
    from scantling.report.claims import claim_json, claim_lines

    found = [claim(name) for name in names]
    if as_json:
        show_json({"schema": 1, "claims": {one.id: claim_json(one) for one in found}})
    else:
        click.echo("\n\n".join("\n".join(claim_lines(one)) for one in found))
    return 0


@claims.command("check")
@click.argument("names", nargs=-1, metavar="[CLAIM…]")
@which
@topic
@as_json
def check(names: tuple[str, ...], verdicts: tuple[str, ...], about: tuple[str, ...],
          as_json: bool) -> int:  # fmt: skip
    """Compute verdicts and numbers again; exit status 1 where one differs from its record."""
    from scantling.claims import claim, differences, load_checks
    from scantling.report.claims import checked_lines, chosen, claim_json

    found = [claim(name) for name in names] or chosen(verdicts, about)
    computed = [one for one in found if one.check]
    told = {one.id: differences(one.id) for one in computed}
    if as_json:
        checks = load_checks()
        rows = {one.id: claim_json(one, checks[one.check](one), told[one.id]) for one in computed}
        show_json({"schema": 1, "claims": rows})
    else:
        for one in found if names else ():
            if not one.check:
                click.echo(f"{one.id} {one.name}: {one.verdict}; nothing computes it")
        click.echo("\n".join(checked_lines(told, each=bool(names))))
    return 1 if any(told.values()) else 0


@claims.command("page")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
def page(path: Path) -> int:
    """Write all of them as one page of Markdown."""
    from scantling.errors import FieldError
    from scantling.report import claims as report

    try:
        path.write_text(report.page(), encoding="utf-8")
    except OSError as error:
        raise FieldError("path", str(path), f"cannot be written: {error.strerror}") from error
    click.echo(f"wrote {path}", err=True)
    return 0
