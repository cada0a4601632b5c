"""Fixes made: one at a time, each kept only if it helps, written back into the config."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from scantling.errors import FieldError, ScantlingError
from scantling.formats import hf
from scantling.formats.hf.assemble import ASSEMBLERS
from scantling.formats.hf.write import write_as
from scantling.quantity import Quantity
from scantling.rules.engine import Report, lint
from scantling.rules.price import changed, exact, loss_of_change
from scantling.rules.registry import Finding, Rule
from scantling.rules.subject import Subject, cache_per_token, subject
from scantling.spec import Spec

ROUNDS = 32
"""Fixes that are made at most."""


class Fixed(Struct, frozen=True, kw_only=True):
    """A model with its fixes made.

    Args:
        before: What was found first.
        after: What is left.
        applied: The findings whose fix was made, in order.
        config: The whole config; None for a spec.
        spec: The model; None where errors are left.
        price: What the fixes changed, by name: before and after, and the loss between.
    """

    before: Report
    after: Report
    applied: tuple[Finding, ...]
    config: dict[str, Any] | None
    spec: Spec | None
    price: dict[str, Any]


def fix(given: Subject, *, rules: dict[str, Rule] | None = None) -> Fixed:
    """Make the fixes of errors and warnings that can be made, one at a time.

    A fix is kept where its finding is gone, no error came in its place, and what it promised to
    keep is kept. Notes change nothing: they weigh loss against cost, and that is the user's.

    Args:
        given: The model.
        rules: Of ``select``.

    Example:
        >>> found = fix(subject({"model_type": "llama", "num_key_value_heads": 5}))
        >>> found.config["num_key_value_heads"], [f.code for f in found.applied]
        (4, ['SC101'])
    """
    before = report = lint(given, rules=rules)
    applied: list[Finding] = []
    tried: set[tuple[str, str, str]] = set()
    for _ in range(ROUNDS):
        todo = [f for f in report.findings if f.level != "info" and f.fix is not None
                and f.fix.automatic and (f.code, f.field, f.message) not in tried]  # fmt: skip
        if not todo:
            break
        one = todo[0]
        tried.add((one.code, one.field, one.message))
        new = mend(report.subject, one)
        if new is None:
            continue
        after = lint(new, rules=rules)
        gone = not any((f.code, f.field) == (one.code, one.field) for f in after.findings)
        if (gone or _fewer(after, report, one)) and after.count("error") <= report.count("error"):
            applied.append(one)
            report = after
    last = report.subject
    return Fixed(before=before, after=report, applied=tuple(applied), config=last.config,
                 spec=last.spec, price=_price(given.spec, last.spec))  # fmt: skip


def _fewer(after: Report, before: Report, one: Finding) -> bool:
    """Whether fewer findings of a code are left."""
    count = [sum(f.code == one.code for f in r.findings) for r in (after, before)]
    return count[0] < count[1]


def mend(one: Subject, finding: Finding) -> Subject | None:
    """The subject with the fix of one finding made, or None where that is no model."""
    if finding.fix is None or not finding.fix.automatic:
        return None
    try:
        if finding.fix.spec:
            return _with_spec(one, finding.fix.spec)
        return _with_config(one, finding.fix.config)
    except ScantlingError:
        return None


def _with_spec(one: Subject, changes: dict[str, Any]) -> Subject | None:
    if one.spec is None:
        return None
    new = changed(one.spec, **changes)
    if new is None:
        return None
    if one.config is None:
        return subject(new, one.setting, name=one.name)
    assert one.part is not None
    for keys in _keys(one, new):
        found = _with_config(one, keys)
        if found is not None and found.spec == new:
            return found
    try:
        whole = hf.write(new)
    except FieldError:
        return None
    return subject(whole, one.setting, name=one.name)


def _keys(one: Subject, new: Spec) -> Iterator[dict[str, Any]]:
    """Keys of the config that say another spec: those its type writes differently.

    Then those, too, that it leaves to the class: a head width, once heads no longer divide.
    """
    assert one.part is not None
    assert one.spec is not None
    part, kind = one.part, one.part.kind
    assembler = ASSEMBLERS[kind.assemble]
    was, now = (assembler.from_spec(spec) for spec in (one.spec, new))
    if was is None or now is None:
        return
    before, after = write_as(kind, was), write_as(kind, now)
    if before is None or after is None:
        return
    keys = {kind.spellings(key)[0]: key for key in kind.keys}
    spelled = {k: part.given.get(keys.get(k, k), k) for k in after}
    changes = {spelled[k]: v for k, v in after.items() if v != before.get(k)}
    yield changes
    if "head_dim" in after:
        yield {**changes, spelled["head_dim"]: after["head_dim"]}


def _with_config(one: Subject, changes: dict[str, Any]) -> Subject | None:
    """The subject with keys of the text part changed; None takes a key away."""
    if one.config is None or not changes:
        return None
    inner = one.config.get("text_config")
    nested = isinstance(inner, dict) and one.part is not None and _is_inside(one, changes)
    own = dict(inner) if nested and isinstance(inner, dict) else dict(one.config)
    for key, value in changes.items():
        _put(own, key, value)
    config = {**one.config, "text_config": own} if nested else own
    new = subject(config, one.setting, name=one.name)
    new.path, new.checkpoint = one.path, one.checkpoint
    return new


def _is_inside(one: Subject, changes: dict[str, Any]) -> bool:
    """Whether the keys are of the text part and not of the whole."""
    assert one.config is not None
    return not all(key in one.config and key != "text_config" for key in changes)


def _put(config: dict[str, Any], key: str, value: Any) -> None:
    nested = config.get("rope_parameters")
    if key == "rope_scaling" and isinstance(nested, dict) and "rope_scaling" not in config:
        base = {k: nested[k] for k in ("rope_theta", "partial_rotary_factor") if k in nested}
        config["rope_parameters"] = {**base, **(value or {"rope_type": "default"})}
    elif value is None:
        config.pop(key, None)
    else:
        config[key] = value


def _price(before: Spec | None, after: Spec | None) -> dict[str, Any]:
    """What the fixes changed: parameters, cache, and the expected loss."""
    if before is None or after is None or before == after:
        return {}
    from scantling.costs.count import flops, parameters

    sizes = [int(parameters(spec).total) for spec in (before, after)]
    work = [float(flops(spec, context=1024).train) / 1024 for spec in (before, after)]
    loss: Quantity = loss_of_change(before, after)
    return {
        "params": sizes, "train_flops_per_token": work,
        "kv_bytes_per_token": [cache_per_token(spec) for spec in (before, after)],
        "loss": loss, "share": exact(sizes[1] / sizes[0] - 1, "of the parameters"),
    }  # fmt: skip
