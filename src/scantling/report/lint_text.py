"""Findings and rules for people."""

from __future__ import annotations

from typing import Any

from scantling.messages import in_language, language
from scantling.quantity import Quantity
from scantling.report.text import show_table, table
from scantling.rules import Finding, Fixed, Report, Rule
from scantling.sources import sources
from scantling.units import bytes_text

COLOUR = {"error": "bold red", "warning": "yellow", "info": "cyan"}
WORD = {"error": "error", "warning": "warning", "info": "note"}


def quantity_text(q: Quantity) -> str:
    """A gain with its interval and unit.

    Example:
        >>> from scantling.quantity import Quantity
        >>> quantity_text(Quantity(value=2**30, unit="bytes of padding", kind="exact"))
        '1 GiB of padding'
    """
    unit = q.unit
    if unit.startswith("bytes"):
        return f"{bytes_text(q.value)}{unit.removeprefix('bytes')}"
    if unit.startswith(("of ", "attention work", "tokens dropped")):
        unit = unit if unit.startswith("of ") else f"of {unit}" if "work" in unit else unit
        return f"{q.value:.1%} {unit}"
    value = f"{q.value:,.4g}" if abs(q.value) < 1e3 else f"{q.value:,.0f}"
    if q.unit == "nats/token":
        value = f"{q.value:+.4f}"
    between = "" if q.low is None or q.high is None else f" ({q.low:.4g} to {q.high:.4g})"
    return f"{value}{between} {unit}"


def print_report(out: Any, report: Report, least: str = "info") -> None:
    """The findings of one model, the gravest first."""
    levels = ["error", "warning", "info"]
    shown = [f for f in report.findings if levels.index(f.level) <= levels.index(least)]
    path = report.subject.path
    where = f" ({path})" if path is not None and str(path) != report.model else ""
    setting = report.subject.setting.words
    out.print(f"[bold]{report.model}[/bold]{where}{' on ' + setting if setting else ''}",
              highlight=False)  # fmt: skip
    for f in shown:
        _print_finding(out, f)
    counts = [f"{report.count(level)} {WORD[level]}{'s' if report.count(level) != 1 else ''}"
              for level in levels if report.count(level)]  # fmt: skip
    can = sum(f.fix is not None and f.fix.automatic and f.level != "info" for f in report.findings)
    hidden = len(report.findings) - len(shown)
    text = ", ".join(counts) or "nothing found"
    text += f" ({hidden} not shown: --level info)" if hidden else ""
    text += f"; {can} can be mended with --fix" if can else ""
    out.print(f"  {text}", highlight=False)


def _print_finding(out: Any, f: Finding) -> None:
    level = f"[{COLOUR[f.level]}]{in_language(WORD[f.level])}[/]"
    message = _safe(in_language(f.message))
    out.print(f"  {f.code} {level} [bold]{_safe(f.field)}[/bold]: {message}", highlight=False)
    if f.fix is not None:
        fix = in_language("fix: {}").replace("{}", in_language(f.fix.text))
        out.print(f"        {fix}", highlight=False, markup=False)
    if f.gain is not None:
        why = f" [{f.gain.why[0]}]" if f.gain.why else ""
        out.print(f"        {quantity_text(f.gain)}{why}", highlight=False, markup=False)


def _safe(text: str) -> str:
    return text.replace("[", r"\[")


def print_fixed(out: Any, found: Fixed) -> None:
    """What was done and what it changed; the config goes elsewhere."""
    for f in found.applied:
        text = f.fix.text if f.fix is not None else ""
        out.print(f"  {f.code} {_safe(f.field)}: {_safe(text)}", highlight=False)
    if not found.applied:
        out.print("  nothing to change", highlight=False)
    price = found.price
    if price:
        a, b = price["params"]
        c, d = price["train_flops_per_token"]
        e, g = price["kv_bytes_per_token"]
        out.print(f"  parameters {a:,} → {b:,} ({b / a - 1:+.2%}), training FLOPs a token "
                  f"{d / c - 1:+.2%}, cache a token {bytes_text(e)} → {bytes_text(g)}, loss "
                  f"{quantity_text(price['loss'])}", highlight=False)  # fmt: skip
    left = [f for f in found.after.findings if f.level == "error"]
    for f in left:
        _print_finding(out, f)


def print_rule(out: Any, rule: Rule) -> None:
    """A page of the handbook."""
    from rich.text import Text

    out.print(f"[bold]{rule.code} {rule.slug}[/bold] ({rule.theme})", highlight=False)
    out.print(rule.page, markup=False, highlight=False)
    if language() != "en":
        out.print("the text itself is in English")
    for key in rule.sources:
        one = sources()[key]
        out.print(Text(f"  {key}: {one.title}; {one.where}"))  # titles are not translated


def print_rules(out: Any, rules: list[Rule]) -> None:
    """All rules as a table."""
    found = table(("code", "left"), ("name", "left"), ("theme", "left"), ("rule", "left"))
    for rule in rules:
        found.add_row(rule.code, rule.slug, rule.theme.replace("_", " "), rule.title)
    show_table(out, found)
