"""The prior terms as people read them: a table of the axes, and one axis in full."""

from __future__ import annotations

from typing import Any

import msgspec

from scantling.errors import FieldError, UnknownNameError, nearest
from scantling.laws import Bound, Prior, bounds, priors, unseen_texts
from scantling.report import text
from scantling.search.space import limits
from scantling.sources import source
from scantling.units import count_text

COUNTED = {
    "search": "in every price",
    "difference": "only between two models",
    "law": "by the law; only its error counts",
    "bound": "nothing but the bounds",
}


def chosen_priors(names: tuple[str, ...]) -> dict[str, Prior]:
    """The priors of some axes, or all.

    Raises:
        FieldError: If no axis has a name, with the axes that price or bound what is named so.

    Example:
        >>> list(chosen_priors(("kv_group",)))
        ['kv_group']
    """
    known = priors()
    for name in names:
        if name not in known:
            words = _words()
            if name in words:
                raise FieldError("axis", name, "is no axis of its own",
                                 f"see {' or '.join(words[name])}")  # fmt: skip
            near = dict.fromkeys(axis for word in nearest(name, words) for axis in words[word])
            if not near:
                raise UnknownNameError("axis", name, known)
            raise FieldError("axis", name, "is not known", f"did you mean {' or '.join(near)}?")
    return {name: known[name] for name in names or known}


def _words() -> dict[str, list[str]]:
    """What axes may be asked for by: their names, features, bounds, and the fields those bound."""
    found = dict[str, list[str]]()
    for axis, prior in priors().items():
        fields = (bounds()[key].field for key in prior.bounds)
        for word in dict.fromkeys((axis, prior.feature, *prior.bounds, *fields)):
            if word:
                found.setdefault(word, []).append(axis)
    return found


def priors_json(names: tuple[str, ...]) -> dict[str, Any]:
    """Priors with their bounds and the text of what loss does not see."""
    rows = {}
    for axis, prior in chosen_priors(names).items():
        row = msgspec.to_builtins(prior)
        row["bounds"] = {key: msgspec.to_builtins(bounds()[key]) for key in prior.bounds}
        row["warning"] = unseen_texts()[prior.warning].text if prior.warning else ""
        rows[axis] = row
    notes = {key: msgspec.to_builtins(one) for key, one in unseen_texts().items()}
    return {"schema": 1, "priors": rows, "unseen": notes}


def print_priors(names: tuple[str, ...]) -> None:
    """The table of all axes with what loss does not see, or some axes in full."""
    out = text.console()
    if names:
        for axis, prior in chosen_priors(names).items():
            out.print("\n".join(_in_full(axis, prior)), markup=False, highlight=False)
        return
    found = text.table(
        ("axis", "left"), ("zero at", "left"), ("nats", "right"), ("5 to 95 %", "right"),
        ("hard bounds", "left"), ("body to", "right"), ("grade", "left"), ("sources", "left"),
    )  # fmt: skip
    for axis, prior in priors().items():
        found.add_row(
            axis, _reference(prior), f"{prior.centre:+.3f}", _interval(prior), _bounds(prior, ", "),
            count_text(prior.largest), prior.grade + ("*" if prior.warning else ""),
            f"{prior.sources[0]}" + (f" +{len(prior.sources) - 1}" if prior.sources[1:] else ""),
        )  # fmt: skip
    text.show_table(out, found)
    lines = [
        "nats a token at about 1 B, equal body and tokens; positive is worse.",
        "mlp_attention_ratio: the weight of its law, not nats.",
        "A benefit whose interval holds zero counts as 0. * Loss does not see:",
        *(f"  {key}: {one.text}" for key, one in unseen_texts().items()),
        "One axis in full, with form and sources: scantling laws priors AXIS",
    ]
    out.print("\n".join(lines), markup=False, highlight=False)


def _in_full(axis: str, prior: Prior) -> list[str]:
    lines = [
        f"{axis}: {prior.title}",
        f"  {prior.form}",
        f"  zero at {_reference(prior)}; coefficient {prior.centre:+g} {_interval(prior)}",
        f"  grade {prior.grade}, bodies to {count_text(prior.largest)}",
        f"  counted: {COUNTED[prior.priced]}",
    ]
    if prior.laws:
        lines.append(f"  priced by the law itself in {', '.join(prior.laws)}")
    for key in prior.bounds:
        one = bounds()[key]
        lines.append(f"  bound {_bound(key, one)}: {one.reason}")
    if prior.warning:
        lines.append(f"  loss does not see: {unseen_texts()[prior.warning].text}")
    return lines + [f"  source: {source(k).title}, {source(k).where}" for k in prior.sources]


def _reference(prior: Prior) -> str:
    value = prior.reference
    return value if isinstance(value, str) else f"{value:g}"


def _interval(prior: Prior) -> str:
    return f"[{prior.low:+.3f}, {prior.high:+.3f}]"


def _bounds(prior: Prior, between: str) -> str:
    return between.join(_bound(key, bounds()[key]) for key in prior.bounds)


def _bound(key: str, one: Bound) -> str:
    return f"{key} {limits(one.low, one.high)}"
