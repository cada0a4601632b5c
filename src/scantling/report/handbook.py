"""The handbook: what a page of each rule says, worked out when it is built."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from scantling.costs.runtimes import runtimes
from scantling.report.trends import Followed, Traits, followed, released_traits, spoken
from scantling.rules import Finding, Rule, lint, load_rules, setting
from scantling.rules.examples import Example, examples


class Case(Struct, frozen=True, kw_only=True):
    """A way to run that released models are asked about."""

    title: str
    options: dict[str, Any]


CASES = (
    Case(title="without options", options={}),
    Case(
        title="served on 8 H100 by vLLM, FP8 blocks",
        options={"gpu": "h100-sxm", "gpus": 8, "tp": 8, "runtime": "vllm", "quant": "fp8-block",
                 "context": 8192, "batch": 16, "phase": "serve"},
    ),
    Case(
        title="trained on 64 H100 in Megatron, TP 8, PP 4",
        options={"gpu": "h100-sxm", "gpus": 64, "tp": 8, "pp": 4, "runtime": "megatron",
                 "dtype": "bf16", "context": 8192, "batch": 64, "phase": "train"},
    ),
)  # fmt: skip
"""Under each of them every released model is linted."""


class Shown(Struct, frozen=True, kw_only=True):
    """The example of a page.

    Args:
        example: The made-up config.
        findings: What the rule says of it.
        needs: Options without which it says nothing; None where it needs none of those given.
        mended: What makes it silent, in one line; empty where the fix says so.
    """

    example: Example
    findings: tuple[Finding, ...]
    needs: tuple[str, ...]
    mended: str


class Told(Struct, frozen=True, kw_only=True):
    """What a rule says of released models in one case.

    Args:
        case: Which.
        followed: The share that follows it.
        findings: The gravest of each model it speaks of, the oldest first.
        counts: Models of each year.
    """

    case: Case
    followed: Followed
    findings: dict[str, Finding]
    counts: dict[int, int]


class Page(Struct, frozen=True, kw_only=True):
    """One rule.

    Args:
        rule: The rule.
        body: Paragraphs after the statement: derivation, evidence, when it applies.
        exceptions: What breaks it on purpose.
        shown: Its example; None for rules that need more than a config.
        told: Cases in which it speaks of some released model; the first case always.
    """

    rule: Rule
    body: tuple[str, ...]
    exceptions: str
    shown: Shown | None
    told: tuple[Told, ...]

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels seen in the example and on released models, the gravest first."""
        seen = {f.level for f in (self.shown.findings if self.shown else ())}
        seen |= {f.level for one in self.told for f in one.findings.values()}
        return tuple(level for level in ("error", "warning", "info") if level in seen)

    @property
    def needs(self) -> tuple[str, ...]:
        """Options that it asks for."""
        return self.shown.needs if self.shown else ()


def parts(page: str) -> tuple[str, tuple[str, ...], str]:
    r"""A docstring as statement, paragraphs and exceptions.

    Example:
        >>> parts("Heads divide.\n\nWhy so.\n\nExceptions: none.")
        ('Heads divide.', ('Why so.',), 'none.')
    """
    first, *rest = [block for block in page.split("\n\n") if block.strip()]
    mark = "Exceptions:"
    exceptions = next((b.removeprefix(mark).strip() for b in rest if b.startswith(mark)), "")
    return first, tuple(b for b in rest if not b.startswith(mark)), exceptions


@functools.cache
def first_examples() -> dict[str, Example]:
    """The first example of each rule."""
    found: dict[str, Example] = {}
    for one in examples():
        found.setdefault(one.code, one)
    return found


def shown(rule: Rule) -> Shown | None:
    """The example of a rule, linted.

    Example:
        >>> from scantling.rules import find_rule
        >>> one = shown(find_rule("SC201"))
        >>> one.needs, one.findings[0].level
        (('tp',), 'error')
    """
    one = first_examples().get(rule.code)
    if one is None:
        return None

    def ask(options: Mapping[str, Any]) -> tuple[Finding, ...]:
        report = lint(one.config, setting(**options), rules={rule.code: rule}, name=one.name)
        return report.findings

    def without(option: str) -> dict[str, Any]:
        return {k: v for k, v in one.setting.items() if k != option}

    needs = tuple(name for name in one.setting if not ask(without(name)))
    changes = {**(one.mend or {}), **(one.mend_setting or {})}
    mended = ", ".join(f"{k} {'left out' if v is None else v}" for k, v in changes.items())
    return Shown(example=one, findings=ask(one.setting), needs=needs, mended=mended)


def pages(
    rules: Mapping[str, Rule] | None = None, found: Sequence[Traits] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Page]:  # fmt: skip
    """Every page, with the catalogue linted under each case.

    Args:
        rules: Which; all by default.
        found: Which models; every released one by default.
        progress: Told what is being worked out.

    Example:
        >>> from scantling.rules import select
        >>> (one,) = pages(select(["SC603"]), released_traits()[:20])
        >>> one.rule.slug, one.shown.findings[0].field, len(one.told)
        ('aspect-ratio', 'num_hidden_layers', 1)
    """
    chosen = load_rules() if rules is None else rules
    models = released_traits() if found is None else found
    counts = dict(sorted(Counter(one.year for one in models).items()))
    told: dict[str, list[Told]] = {code: [] for code in chosen}
    for case in CASES:
        progress(f"{len(models)} models {case.title}")
        where = setting(**case.options)
        findings = spoken(chosen, models, where)
        for row in followed(chosen, models, where, findings):
            of = findings[row.code]
            if not case.options or (of and not _same(of, told[row.code])):
                told[row.code].append(Told(case=case, followed=row, findings=of, counts=counts))
    progress("examples")
    return [_page(rule, tuple(told[code])) for code, rule in chosen.items()]


def _same(found: Mapping[str, Finding], before: Sequence[Told]) -> bool:
    """Whether options change nothing of what a rule says of which model."""
    return any(set(one.findings) == set(found) for one in before)


def _page(rule: Rule, told: tuple[Told, ...]) -> Page:
    _, body, exceptions = parts(rule.page)
    return Page(rule=rule, body=body, exceptions=exceptions, shown=shown(rule), told=told)


def option_words(options: Mapping[str, Any]) -> str:
    """Options as they are typed.

    Example:
        >>> option_words({"gpu": "h100", "tp": 8})
        '--gpu h100 --tp 8'
    """
    return " ".join(f"--{k} {v}" for k, v in options.items())


def runtime_rows() -> list[tuple[str, ...]]:
    """What each runtime does with shapes, for the index: name, vocabulary, stages, page."""
    rows: list[tuple[str, ...]] = []
    for key, one in runtimes().items():
        share = " a rank" if one.per_rank else ""
        pads = f"{one.pads_vocabulary}{share}" if one.pads_vocabulary else "not"
        rows.append((key, one.title, pads, one.layers, str(one.page or "none"),
                     ", ".join(one.kernels)))  # fmt: skip
    return rows
