"""What is asked of a design beside its front: each answer as JSON and as lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from scantling import catalog
from scantling.errors import FieldError
from scantling.laws import bounds
from scantling.quantity import Quantity
from scantling.report import depths, splits
from scantling.search import Budget, Front, budget, candidate, design, explain
from scantling.search.axis import AxisRow, along
from scantling.search.candidate import Candidate, to_json
from scantling.search.checked import LARGEST_MODEL
from scantling.search.ladder import ladder, ladder_lines
from scantling.search.like import like_budget, likeness
from scantling.search.origin import Origin, restricted
from scantling.search.shape_priors import PriorPrice, without
from scantling.search.tasks import TASKS, answer
from scantling.search.trail import trail_lines
from scantling.search.vocabulary import advice_lines, advised
from scantling.units import bytes_text

Progress = Callable[[int, int], None] | None


class Ask(Struct, frozen=True, kw_only=True):
    """What is asked beside the front."""

    explain: str | None = None
    """A field of the choice, or ``all`` for the way from budget to choice."""
    task: str | None = None
    like: str | None = None
    """A model whose size and costs are the budget."""
    origin: str | None = None
    """A model whose weights the shapes must come from."""
    ladder: tuple[int, ...] = ()
    depths: tuple[int, ...] | None = ()
    """Depths to price against the first; none of them a ladder beside the choice, None nothing."""


class Section(Struct, frozen=True):
    """One answer: its key and value in JSON, its lines as text."""

    key: str
    json: Any
    lines: list[str]
    rows: tuple[AxisRow, ...] = ()
    """Of an explained field, for a picture."""
    notes: tuple[str, ...] = ()
    """What to know of the question itself."""


def budget_of(ask: Ask, limits: Mapping[str, Any]) -> Budget:
    """The budget of a question: as typed, or what a model stands for or can become.

    Raises:
        FieldError: For contradictory or unreadable limits.
    """
    if ask.task is not None and ask.task not in TASKS:
        raise FieldError("--task", ask.task, "is not known", f"use {', '.join(TASKS)}")
    plain = limits.get("kind", "decoder") == "decoder" and not limits.get("schedule")
    if ask.ladder and not plain:
        raise FieldError("--ladder", None, "scales decoders whose layers are equally wide")
    for size in ask.ladder:
        if size > LARGEST_MODEL:
            raise FieldError("--ladder", f"{size:.3g}", "is beyond every model", "at most 20T")
    if ask.depths and limits.get("kind", "decoder") != "decoder":
        raise FieldError("--depths", None, "needs a law, and none prices encoder-decoders")
    if ask.like is not None and ask.origin is not None:
        raise FieldError("--like", ask.like, "contradicts --from", "give one of them")
    if ask.like is not None:
        return like_budget(catalog.load(ask.like), limits)
    if ask.origin is not None:
        return restricted(catalog.load(ask.origin), limits)
    return budget(**limits)


def sections(front: Front, ask: Ask, progress: Progress = None) -> list[Section]:
    """Every answer that was asked for, in the order of a report.

    Args:
        front: The answer of ``design``.
        ask: What else is asked.
        progress: Called with (searches done, searches in all) where an answer takes several.
    """
    return list(_sections(front, ask, progress))


def _sections(front: Front, ask: Ask, progress: Progress) -> Iterator[Section]:
    b = front.budget
    if ask.like is not None:
        found = likeness(front, catalog.load(ask.like))
        yield Section("like", found.to_json(), found.lines())
    if ask.origin is not None:
        choice = front.chosen if front.feasible else None
        origin = Origin(ask.origin, catalog.load(ask.origin).spec, choice)
        yield Section("from", origin.to_json(front.candidates), origin.lines())
    if b.prior is not None:
        free = design(without(b), baselines=())
        price = PriorPrice(b.prior, b, front.chosen if front.feasible else None,
                           free.chosen if free.feasible else None)  # fmt: skip
        yield Section("prior", price.to_json(), price.lines())
    priced = _depths(front, ask)
    lost = sorted(set(ask.depths or ()) - {row.candidate.spec.n_layer for row in priced})
    notes = tuple(f"no feasible shape of this size has {n} layers" for n in lost)
    if priced or notes:
        lines = depths.depth_lines(priced) if priced else []
        yield Section("depths", depths.depths_json(priced), lines, notes=notes)
    if ask.ladder:
        base = _recipe(front, ask)
        if base is None:
            raise FieldError("--ladder", None, "has no recipe to scale: nothing keeps every limit")
        rungs = ladder(base, ask.ladder)
        yield Section("ladder", [r.to_json() for r in rungs],
                      [f"recipe: {base.name}", *ladder_lines(rungs)])  # fmt: skip
    if not front.feasible:
        return
    if ask.task is not None:
        equal = [front.candidates[i] for i in front.equal]
        told = answer(ask.task, front.chosen, equal)
        yield Section("task", told.to_json(), told.lines())
    if ask.explain is not None and ask.explain != "all":
        yield explained(front, ask.explain, progress)
    elif ask.explain is not None:
        yield Section("explain", {"field": "all"}, trail_lines(front))
    if front.feasible and front.budget.kind != "decoder":
        rows = splits.price_splits(front.budget)
        yield Section("splits", [to_json(c) for c in rows], splits.split_lines(rows))


def _depths(front: Front, ask: Ask) -> list[depths.DepthPrice]:
    """The depths asked for, or a ladder of them beside the choice."""
    if front.budget.kind != "decoder":
        return []
    if ask.depths:
        return depths.price_depths(front.budget, ask.depths)
    if ask.depths is None or not front.feasible:
        return []
    rows = depths.price_depths(front.budget, depths.ladder(front.budget), front.chosen)
    return rows if len(rows) > 1 else []


def _recipe(front: Front, ask: Ask) -> Candidate | None:
    """What a ladder scales: the model that was named, else the choice."""
    if ask.like is not None:
        one = catalog.load(ask.like)
        b = replace(front.budget, bounded={}, fixed={}, tied=None)
        return candidate(one.spec, b, one.name)
    return front.chosen if front.feasible else None


def explained(front: Front, field: str, progress: Progress = None) -> Section:
    """The long reason of one field: what set it, its rules, and every value across its axis."""
    rows = along(front, field, progress)
    reason = explain(front.chosen, field)
    value = {True: "tied", False: "untied"}.get(reason.value, reason.value) if (
        isinstance(reason.value, bool)) else f"{reason.value:,}"  # fmt: skip
    lines = [f"why {field} is {value}: {reason.lines()[0]}"]
    lines += [f"    {text}" for text in reason.lines()[1:]]
    lines += [f"  rule: {text}" for text in reason.rules]
    lines += ["  every value, with everything else free to make room for it:", *_table(rows)]
    lines.append("  " + _valley(front, field, rows))
    found = {**reason.to_json(), "values": [r.to_json() for r in rows]}
    if field == "vocab_size":
        found["vocabulary"] = advised(front.chosen, [int(r.value) for r in rows])
        lines += [f"  {text}" for text in advice_lines(found["vocabulary"])]
    return Section("explain", found, lines, rows)


def _table(rows: tuple[AxisRow, ...]) -> list[str]:
    head = ("value", "best Δ loss", "Δ loss", "days", "KV/token", "ms/token", "choice")
    best = min((r.least["loss"] for r in rows if r.loss is not None), default=0.0)
    cells: list[tuple[str, ...]] = []
    for r in rows:
        name = {True: "tied", False: "untied"}[r.value] if isinstance(r.value, bool) else (
            f"{r.value:,}")  # fmt: skip
        mark = "▶ " if r.given else ""
        c = r.choice
        if c is None:
            cells.append((mark + name, "", "", "", "", "", r.why))
            continue
        loss = "" if r.loss is None else "0" if r.given else _loss(r.loss)
        least = "" if r.loss is None else f"{r.least['loss'] - best:+.4f}"
        cells.append((mark + name, least, loss, f"{c.days:.3g}", bytes_text(c.kv_bytes_per_token),
                      f"{float(c.decode.value_s) * 1e3:.2f}", c.name))  # fmt: skip
    filled = [i for i in range(len(head)) if any(row[i] for row in cells)]
    shown = [tuple(row[i] for i in filled) for row in (head, *cells)]
    wide = [max(len(row[i]) for row in shown) for i in range(len(filled))]
    return ["    " + "  ".join(
        text.ljust(n) if i == len(filled) - 1 else text.rjust(n)
        for i, (text, n) in enumerate(zip(row, wide, strict=True))).rstrip()
        for row in shown]  # fmt: skip


def _loss(loss: Quantity) -> str:
    return f"{loss.value:+.4f} ± {((loss.high or 0) - (loss.low or 0)) / 2:.4f}"


def _valley(front: Front, field: str, rows: tuple[AxisRow, ...]) -> str:
    """Over which values the law cannot tell the best shapes apart."""
    known = [r for r in rows if r.loss is not None]
    if len(known) < 2:
        return "the law cannot price this axis"
    best = min(r.least["loss"] for r in known)
    bound = bounds().get(field)
    flat = [r.value for r in known if r.least["loss"] <= best + front.equal_within
            and (bound is None or bound.holds(r.value))]  # fmt: skip
    if isinstance(known[0].value, bool):
        return f"{'both are' if len(flat) == 2 else 'one is not'} within the noise of the law"
    span = f"{min(flat):,} to {max(flat):,}"
    told = (
        f"flat valley: from {span} the best shape of each {field} is within the noise of the law "
        f"({front.equal_within:.4f} nats); cost decides there"
    )
    out = bound is not None and not all(bound.holds(r.value) for r in known)
    return f"{told}; outside its bound loss is not all that counts" if out else told
