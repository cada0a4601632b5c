"""The registry of rules, what a rule finds, and how a finding is mended."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from msgspec import Struct

from scantling.errors import FieldError, nearest
from scantling.quantity import Quantity

if TYPE_CHECKING:
    from scantling.rules.subject import Subject

Level = Literal["error", "warning", "info"]

LEVELS: tuple[Level, ...] = ("error", "warning", "info")
"""The gravest first."""

MODULES = (
    "semantics", "label", "heads", "widths", "state", "parallel", "gemm", "attention_kernels",
    "quantisation", "vocabulary", "shape", "rope", "experts", "memory", "training",
)  # fmt: skip
"""The files of rules, one a theme."""


class Fix(Struct, frozen=True, kw_only=True):
    """What would be right.

    Args:
        text: In one line.
        spec: Dimensions to change, through ``vary``.
        config: Keys of the config to change; None takes a key away.
        keeps: What the change promises to keep: dimensions, or ``params`` within 1 %.
    """

    text: str
    spec: dict[str, Any] = {}
    config: dict[str, Any] = {}
    keeps: tuple[str, ...] = ()

    @property
    def automatic(self) -> bool:
        """Whether ``--fix`` can make the change."""
        return bool(self.spec or self.config)


class Found(NamedTuple):
    """What a rule says of a model; the engine adds the code."""

    level: Level
    field: str
    message: str
    fix: Fix | None = None
    gain: Quantity | None = None
    source: tuple[str, ...] = ()
    """Where it is another than the rule's."""


class Finding(Struct, frozen=True, kw_only=True):
    """One finding on one model.

    Args:
        code: ``SC101``.
        slug: ``kv-heads-divide``.
        level: ``error``: cannot run, or illegal on the chip and runtime named; ``warning``: costs
            time, memory or quality; ``info``: worth knowing.
        field: The key of the config, or the field or option, that it is about.
        message: One line with the numbers.
        fix: What would be right.
        gain: What that is worth.
        source: Keys of the bibliography.
    """

    code: str
    slug: str
    level: Level
    field: str
    message: str
    fix: Fix | None
    gain: Quantity | None
    source: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The contract of ``lint --json``: ``fix`` is text, ``changes`` what ``--fix`` does."""
        changes = {} if self.fix is None else {**self.fix.spec, **self.fix.config}
        return {
            "code": self.code, "slug": self.slug, "level": self.level, "field": self.field,
            "message": self.message, "fix": None if self.fix is None else self.fix.text,
            "changes": changes, "gain": None if self.gain is None else self.gain.to_json(),
            "source": list(self.source),
        }  # fmt: skip


Check = Callable[["Subject"], Iterator[Found]]


class Rule(Struct, frozen=True, kw_only=True):
    """One rule.

    Args:
        code: ``SC`` and three digits; the first is the theme.
        slug: A name in words.
        check: What finds.
        reads: ``config``: it needs no legal model; ``spec``: it does.
        sources: Keys of the bibliography.
    """

    code: str
    slug: str
    check: Check
    reads: Literal["config", "spec"]
    sources: tuple[str, ...]

    @property
    def page(self) -> str:
        """Its page of the handbook: derivation, exceptions, source."""
        return inspect.getdoc(self.check) or ""

    @property
    def title(self) -> str:
        """Its first line."""
        return self.page.partition("\n")[0]

    @property
    def theme(self) -> str:
        """The file it is in."""
        return self.check.__module__.rpartition(".")[2]


RULES: dict[str, Rule] = {}
"""Every rule by its code, filled by ``@rule`` when its file is read."""


def rule(
    code: str, slug: str, *sources: str, reads: Literal["config", "spec"] = "spec"
) -> Callable[[Check], Check]:
    """Register a function as a rule; its docstring is its page."""

    def add(check: Check) -> Check:
        assert code not in RULES, code
        RULES[code] = Rule(code=code, slug=slug, check=check, reads=reads, sources=sources)
        return check

    return add


def load_rules() -> dict[str, Rule]:
    """Every rule by its code, in order.

    Example:
        >>> load_rules()["SC101"].slug
        'kv-heads-divide'
    """
    if not RULES:
        for name in MODULES:
            import_module(f"scantling.rules.{name}")
        for code in sorted(RULES):
            RULES[code] = RULES.pop(code)
    return RULES


def find_rule(name: str) -> Rule:
    """A rule by its code or its slug.

    Raises:
        FieldError: If there is none; the hint names the nearest.

    Example:
        >>> find_rule("kv-heads-divide").code
        'SC101'
    """
    known = load_rules()
    plain = name.strip()
    for one in known.values():
        if plain.upper() == one.code or plain.lower() == one.slug:
            return one
    names = [*known, *(one.slug for one in known.values())]
    near = nearest(plain.lower(), names, 1) or nearest(plain.upper(), names, 1)
    hint = f"did you mean {near[0]}?" if near else "scantling rules lists them"
    raise FieldError("rule", name, "is not known", hint)
