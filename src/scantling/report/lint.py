"""Findings for machines: JSON, annotations of GitHub, SARIF."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scantling import __version__
from scantling.rules import Finding, Fixed, Report, Rule, load_rules
from scantling.sources import sources

SARIF = "https://json.schemastore.org/sarif-2.1.0.json"
SARIF_LEVEL = {"error": "error", "warning": "warning", "info": "note"}
GITHUB_LEVEL = {"error": "error", "warning": "warning", "info": "notice"}


def line_of(path: Path | None, key: str) -> int:
    """The line of a file that says a key; the first where none does."""
    if path is None:
        return 1
    quoted = f'"{key.rpartition(".")[2]}"'
    for i, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if quoted in line:
            return i
    return 1


def message_of(f: Finding) -> str:
    """The finding and its fix in one line."""
    return f"{f.message}; fix: {f.fix.text}" if f.fix is not None else f.message


def _escaped(text: str, *, inside: bool = False) -> str:
    for char, code in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A")):
        text = text.replace(char, code)
    if inside:
        text = text.replace(":", "%3A").replace(",", "%2C")
    return text


def github(report: Report) -> Iterable[str]:
    """Workflow commands: an annotation a finding, on the line of its key."""
    path = report.subject.path
    for f in report.findings:
        place = f"file={_escaped(str(path), inside=True)},line={line_of(path, f.field)}," if (
            path is not None) else ""  # fmt: skip
        title = _escaped(f"{f.code} {f.slug}", inside=True)
        text = _escaped(f"{report.model}: {message_of(f)}")
        yield f"::{GITHUB_LEVEL[f.level]} {place}title={title}::{text}"


def sarif(reports: Iterable[Report]) -> dict[str, Any]:
    """A SARIF 2.1.0 log of all models in one run."""
    rules = load_rules()
    index = {code: i for i, code in enumerate(rules)}
    return {
        "$schema": SARIF, "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "scantling", "version": __version__,
                "rules": [_sarif_rule(r) for r in rules.values()],
            }},
            "results": [_sarif_result(r, f, index) for r in reports for f in r.findings],
        }],
    }  # fmt: skip


def _sarif_rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.code, "name": rule.slug, "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.page}, "help": {"text": rule.page},
    }  # fmt: skip


def _sarif_result(report: Report, f: Finding, index: dict[str, int]) -> dict[str, Any]:
    path = report.subject.path
    place = {"artifactLocation": {"uri": (path or Path(report.model)).as_posix()},
             "region": {"startLine": line_of(path, f.field)}}  # fmt: skip
    return {
        "ruleId": f.code, "ruleIndex": index[f.code], "level": SARIF_LEVEL[f.level],
        "message": {"text": message_of(f)}, "locations": [{"physicalLocation": place}],
        "properties": {"model": report.model, "field": f.field, "source": list(f.source)},
    }  # fmt: skip


def fixed_json(found: Fixed) -> dict[str, Any]:
    """A report after its fixes, by the contract, with what was done and what it changed."""
    price = {k: v.to_json() if hasattr(v, "to_json") else v for k, v in found.price.items()}
    return {
        **found.after.to_json(),
        "fixed": {
            "applied": [f.to_json() for f in found.applied], "config": found.config,
            "price": price,
        },
    }  # fmt: skip


def rule_json(rule: Rule) -> dict[str, Any]:
    """One rule for programs."""
    return {
        "code": rule.code, "slug": rule.slug, "theme": rule.theme, "title": rule.title,
        "page": rule.page, "source": list(rule.sources),
        "references": {k: sources()[k].where for k in rule.sources},
    }  # fmt: skip


def config_text(config: dict[str, Any] | None) -> str:
    """A config as a file."""
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"
