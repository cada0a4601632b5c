"""``scantling models`` and ``chips``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from scantling.cli.lint import setting_options
from scantling.cli.options import COUNT, ListFirst, as_json, show_json
from scantling.units import bytes_text

names = click.argument("names", nargs=-1, metavar="[NAME…]")


@click.group(cls=ListFirst, invoke_without_command=False)
def models() -> None:
    """The named models, and what they chose over the years.

    ``scantling models [NAME…]`` lists them, with configs and sources of those that are named.
    """


@models.command("list")
@names
@click.option("--type", "model_type", help="Only this Hugging Face model type.")
@click.option("--depth", is_flag=True, help="Each model's depth against the published limits, and "
              "the share of models beyond.")  # fmt: skip
@as_json
def listing(names: tuple[str, ...], model_type: str | None, depth: bool, as_json: bool) -> int:
    """The named models, or some of them with their configs and sources."""
    from scantling import catalog
    from scantling.report import text

    known = catalog.named()
    chosen = [known[catalog.loaded(n).name] for n in names] or list(known.values())
    if model_type is not None:
        chosen = [m for m in chosen if m.config["model_type"] == model_type]
    if depth and chosen:
        from scantling.report.depth_limits import depth_table, print_depths

        some = names or model_type is not None
        depths = depth_table(tuple(m.name for m in chosen) if some else ())
        if as_json:
            show_json({"schema": 1, **depths})
        else:
            print_depths(text.console(), depths)
        return 0
    if as_json:
        show_json({"schema": 1, "models": [msgspec.to_builtins(m) for m in chosen]})
        return 0 if chosen else 1
    out = text.console()
    found = text.table(
        ("model", "left"),
        ("type", "left"),
        ("released", "left"),
        ("parameters", "right"),
        ("layers × width", "right"),
        ("source", "left"),
    )
    for m in chosen:
        spec = catalog.loaded(m.name).spec
        found.add_row(m.name, m.config["model_type"], m.released, f"{m.parameters:,}",
                      f"{spec.n_layer} × {spec.d_model}", m.source)  # fmt: skip
    text.show_table(out, found)
    for m in chosen if names else ():
        out.print(f"{m.name}: {m.hub}\n  {m.config}")
    if not chosen:
        out.print(f"no model of the catalogue has the type {model_type}")
    return 0 if chosen else 1


@models.command("stats")
@click.option("--since", type=int, metavar="YEAR", help="First year of release.")
@click.option("--least", type=COUNT, metavar="PARAMS", help="Fewest parameters: 1B.")
@click.option("--most", type=COUNT, metavar="PARAMS", help="Most parameters.")
@click.option("--kind", help="Only dense, or moe.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.svg",
              help="Draw it (extra plot).")  # fmt: skip
@click.option("--rules", "rules_", is_flag=True, help="The share of models that follow each rule "
              "of lint, under the setting given.")  # fmt: skip
@click.option("--select", multiple=True, metavar="CODE,…", help="With --rules: only these, also "
              "those that all follow.")  # fmt: skip
@setting_options
@as_json
def stats(since: int | None, least: int | None, most: int | None, kind: str | None,
          plot: Path | None, select: tuple[str, ...], rules_: bool,
          as_json: bool, **given: Any) -> int:  # fmt: skip
    """What real models do: dimensions, layouts and rules followed, by year of release.

    Examples: scantling models stats --least 3B --most 15B --plot trends.svg

    scantling models stats --rules --tp 8 --runtime vllm --gpu h100-sxm
    """
    from scantling.errors import FieldError
    from scantling.report import text, trends, trends_text

    asked = {name: value for name, value in given.items() if value is not None}
    rules_ = rules_ or bool(select)
    if asked and not rules_:
        raise FieldError(f"--{min(asked)}", asked[min(asked)], "is about rules", "add --rules")
    if plot is not None:
        from scantling.report.figure import check_path

        check_path(plot)
    found = trends.selected(since, least, most, kind)
    rows = _followed(found, select, asked) if rules_ else None
    if plot is not None and found:
        from scantling.report.trends_figure import save_trends

        click.echo(f"wrote {save_trends(found, plot)}", err=True)
    if as_json:
        show_json(trends_text.trends_json(found, rows))
    elif not found:
        click.echo("no model of the catalogue is like that")
    elif rows is None:
        trends_text.print_trends(text.console(), found)
    else:
        trends_text.print_followed(text.console(), rows, every=bool(select))
    return 0 if found else 1


def _followed(found: Any, select: tuple[str, ...], asked: dict[str, Any]) -> Any:
    from scantling.report.trends import followed
    from scantling.rules import select as chosen
    from scantling.rules import setting

    codes = [part for text in select for part in text.split(",") if part.strip()]
    return followed(chosen(codes), found, setting(**asked))


@click.command()
@names
@as_json
def chips(names: tuple[str, ...], as_json: bool) -> int:
    """The chips, or some of them with every number's source."""
    from scantling import hardware
    from scantling.report import text

    chosen = [hardware.chip(n) for n in names] or list(hardware.chips().values())
    if as_json:
        show_json({"schema": 1, "chips": [msgspec.to_builtins(c) for c in chosen]})
        return 0
    out = text.console()
    found = text.table(("chip", "left"), ("architecture", "left"), ("bf16", "right"),
                       ("fp16", "right"), ("fp8", "right"), ("memory", "right"),
                       ("bandwidth", "right"), ("link", "right"),
                       ("confidence", "left"))  # fmt: skip
    for c in chosen:
        found.add_row(
            c.key, c.architecture, _rate(c.rates.bf16), _rate(c.rates.fp16), _rate(c.rates.fp8),
            bytes_text(c.memory_bytes), f"{c.memory_bytes_per_s / 1e9:,.0f} GB/s",
            f"{c.link_bytes_per_s / 1e9:,.0f} GB/s" if c.link_bytes_per_s else "",
            "datasheet only" if c.datasheet_only else c.confidence,
        )  # fmt: skip
    text.show_table(out, found)
    for c in chosen if names else ():
        _print_chip(out, c)
    return 0


def _rate(value: float | None) -> str:
    return f"{value / 1e12:,.4g} TF/s" if value else ""


def _print_chip(out: Any, c: Any) -> None:
    out.print(f"[bold]{c.name}[/bold]: dense rates, base units; sources {', '.join(c.sources)}")
    for name, value in msgspec.to_builtins(c).items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            where = ", ".join(c.sources_of(name)) or "unverified"
            out.print(f"  {name}: {value:,.6g} [{where}]", markup=False)
    e = c.constants.gemm
    out.print(f"  products ({e.kind}): matmul {e.matmul:g} ± {e.matmul_error:.0%}, bandwidth "
              f"{e.bandwidth_factor:g}, launch {e.launch_s * 1e6:g} µs")  # fmt: skip
    if c.notes:
        out.print(f"  {c.notes}", markup=False)
