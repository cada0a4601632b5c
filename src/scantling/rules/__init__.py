"""A linter for model shapes: rules with codes, each finding with its fix, its gain, its source."""

from __future__ import annotations

from scantling.rules.engine import Report, lint, select
from scantling.rules.fixing import Fixed, fix, mend
from scantling.rules.registry import RULES, Finding, Fix, Rule, find_rule, load_rules
from scantling.rules.setting import Setting, setting
from scantling.rules.subject import Subject, subject

__all__ = [
    "RULES", "Finding", "Fix", "Fixed", "Report", "Rule", "Setting", "Subject", "find_rule", "fix",
    "lint", "load_rules", "mend", "select", "setting", "subject",
]  # fmt: skip
