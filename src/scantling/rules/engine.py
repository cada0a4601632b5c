"""The engine: which rules are asked of a model, in what order, and what it comes to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from scantling.errors import FieldError
from scantling.rules.registry import LEVELS, Finding, Found, Rule, load_rules
from scantling.rules.setting import Setting, setting
from scantling.rules.subject import Subject, subject

REFUSED = "SC001"
"""The rule that tells what no other rule explains."""


class Report(Struct, frozen=True, kw_only=True):
    """What was found of one model, the gravest first."""

    model: str
    findings: tuple[Finding, ...]
    subject: Subject

    def count(self, level: str) -> int:
        """How many findings of a level there are."""
        return sum(f.level == level for f in self.findings)

    @property
    def passed(self) -> bool:
        """Whether there is no error."""
        return not self.count("error")

    def to_json(self) -> dict[str, Any]:
        """The contract of ``lint --json``."""
        return {
            "schema": 1, "model": self.model, "path": str(self.subject.path or "") or None,
            "passed": self.passed, "findings": [f.to_json() for f in self.findings],
        }  # fmt: skip


def select(chosen: Sequence[str] = (), ignored: Sequence[str] = ()) -> dict[str, Rule]:
    """The rules asked for: by code, prefix of a code, or slug; a longer one wins.

    Args:
        chosen: Which; all where none is named.
        ignored: Which not.

    Raises:
        FieldError: If a name fits no rule.

    Example:
        >>> list(select(["SC1"], ["SC102"]))[:2]
        ['SC101', 'SC103']
    """
    known = load_rules()
    wanted = [_code(name, "select") for name in chosen]
    unwanted = [_code(name, "ignore") for name in ignored]

    def longest(code: str, prefixes: list[str]) -> int:
        return max((len(p) for p in prefixes if code.startswith(p)), default=-1)

    found = {}
    for code, one in known.items():
        takes = longest(code, wanted) if wanted else 0
        if takes >= 0 and takes > longest(code, unwanted):
            found[code] = one
    return found


def _code(name: str, option: str) -> str:
    from scantling.rules.registry import find_rule

    plain = name.strip().upper()
    if plain in {"ALL", "SC"}:
        return "SC"
    if any(code.startswith(plain) for code in load_rules()) and plain.startswith("SC"):
        return plain
    try:
        return find_rule(name).code
    except FieldError as error:
        raise FieldError(option, name, "fits no rule", error.hint) from None


def lint(
    given: Any, where: Setting | None = None, *, rules: dict[str, Rule] | None = None,
    name: str | None = None, **options: Any,
) -> Report:  # fmt: skip
    """Ask every rule of a model.

    ``analyze`` and ``design`` can take their findings from here: a ``Spec`` is a model as well,
    and ``Finding.to_json`` has the keys theirs have (their level "note" is "info" here).

    Args:
        given: A ``Subject``, or a model as for ``catalog.load``.
        where: Where it is to run.
        rules: Of ``select``; all by default.
        name: What the model is called.
        options: Where it is to run, as the options of the command line: ``gpu="h100", tp=8``.

    Raises:
        FieldError: If the model cannot be read at all.

    Example:
        >>> [f.code for f in lint("qwen2.5-7b", tp=8).findings if f.level == "error"]
        ['SC201']
        >>> report = lint({"model_type": "llama", "num_key_value_heads": 5})
        >>> [(f.code, f.message) for f in report.findings if f.level == "error"]
        [('SC101', '5 KV heads do not divide 32 query heads: 2 heads would have none')]
    """
    where = setting(**options) if options else where
    one = given if isinstance(given, Subject) else subject(given, where, name=name)
    chosen = load_rules() if rules is None else rules
    found = [f for rule in chosen.values() if _applies(rule, one) for f in _ask(rule, one)]
    if one.refused is not None and not any(f.level == "error" for f in found):
        unexplained = load_rules()[REFUSED]
        if REFUSED in chosen:
            found += [_finding(unexplained, f) for f in refusal(one.refused)]
    order = {level: i for i, level in enumerate(LEVELS)}
    distinct = {(f.code, f.field, f.message): f for f in found}.values()
    ranked = sorted(distinct, key=lambda f: (order[f.level], f.code))
    return Report(model=one.name, findings=tuple(ranked), subject=one)


def refusal(error: FieldError) -> Iterator[Found]:
    """An error of the reader as a finding."""
    from scantling.rules.registry import Fix

    shown = "" if error.value is None else f" {error.value}"
    fix = Fix(text=error.hint) if error.hint else None
    yield Found("error", error.path, f"{error.path}{shown} {error.rule}", fix)


def _applies(rule: Rule, one: Subject) -> bool:
    return (one.part if rule.reads == "config" else one.spec) is not None


def _ask(rule: Rule, one: Subject) -> Iterator[Finding]:
    return (_finding(rule, f) for f in rule.check(one))


def _finding(rule: Rule, f: Found) -> Finding:
    return Finding(
        code=rule.code, slug=rule.slug, level=f.level, field=f.field, message=f.message,
        fix=f.fix, gain=f.gain, source=f.source or rule.sources,
    )  # fmt: skip
