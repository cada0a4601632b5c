"""``scantling glossary``: what the words of reports mean."""

from __future__ import annotations

import click

from scantling.cli.options import as_json, show_json


@click.command()
@click.argument("names", nargs=-1, metavar="[TERM…]")
@as_json
def glossary(names: tuple[str, ...], as_json: bool) -> int:
    """What the words mean: letter, field, formula, in English and Chinese.

    Example: scantling glossary kv-cache --lang zh
    """
    from scantling.report.glossary import find_term, glossary_json, print_glossary, terms
    from scantling.report.text import console

    chosen = [find_term(name) for name in names] or list(terms().values())
    if as_json:
        show_json({"schema": 1, "terms": [glossary_json(t) for t in chosen]})
    else:
        print_glossary(console(), chosen, whole=bool(names))
    return 0
