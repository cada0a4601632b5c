"""``scantling models`` and ``chips``."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from scantling.cli.options import as_json, show_json
from scantling.units import bytes_text

names = click.argument("names", nargs=-1, metavar="[NAME…]")


@click.command()
@names
@click.option("--type", "model_type", help="Only this Hugging Face model type.")
@click.option("--depth", is_flag=True, help="Each model's depth against the published limits, and "
              "the share of models beyond.")  # fmt: skip
@as_json
def models(names: tuple[str, ...], model_type: str | None, depth: bool, as_json: bool) -> int:
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
