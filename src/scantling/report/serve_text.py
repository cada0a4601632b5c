"""The answer of ``serve`` as text for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.markup import escape

from scantling.costs.count import parameters
from scantling.costs.serve import Times
from scantling.formats.vllm import flag_lines
from scantling.report.serve import (
    PARTS,
    energy_why,
    notes,
    percent,
    usable_context,
    vllm_flags,
)
from scantling.report.text import show_table, table
from scantling.search.serving import Capacity, Point, Row, Served, Trial
from scantling.search.serving_question import Question
from scantling.search.serving_space import MOST_CONTEXT, MOST_SEQUENCES, Layout
from scantling.units import bytes_text, count_text, seconds_text

if TYPE_CHECKING:
    from rich.console import Console

REASONS = 4
"""Reasons printed; the rest are counted."""
TOLD = 1.02
"""Readings of a cache that differ by less are one."""
COLOURS = {"fits": "green", "fits only if": "yellow", "does not fit": "red"}


def print_serve(out: Console, found: Served, rows: int = 12) -> None:
    """The question, the verdict with memory, limits and speed, and what else there is."""
    q, r = found.question, found.choice
    _print_question(out, q)
    if r is None:
        out.print("[red]No split of so many chips is valid[/red]:")
        _print_invalid(out, found, len(found.invalid))
        for line in found.remedies:
            out.print(f"  {line}", markup=False)
        return
    if len(found.rows) > 1:
        _print_rows(out, found, rows)
    _print_choice(out, q, r)
    if found.remedies:
        out.print("  what would fit: " + "; or ".join(found.remedies), markup=False)
    if r.trial.points:
        _print_loads(out, q, r)
    if r.capacity is not None:
        _print_capacity(out, q, r.trial, r.capacity)
    several = distinct(r.trial, found.alternatives)
    if several:
        out.print(f"[bold]Other splits[/bold] of the same chips, {_order(q)}:")
        show_table(out, _splits((r.trial, *several[: rows - 1]), q))
    _print_valid(out, found)
    if found.fits:
        flags, more = vllm_flags(r, q)
        out.print("  vllm    " + " ".join(flag_lines(flags)), style="dim", markup=False)
        for text in more:
            out.print(f"          {text}", style="dim", markup=False)
    for note in notes(found):
        out.print(f"note: {note}", style="dim", markup=False)


def distinct(choice: Trial, others: tuple[Trial, ...]) -> list[Trial]:
    """Splits that are timed, one of those that differ in EP alone: no time tells them apart."""
    kept: dict[tuple[int, ...], Trial] = {}
    for t in (choice, *others):
        s = t.layout.split
        if t.points:
            kept.setdefault((s.tp, s.pp, s.dp), t)
    return [t for t in kept.values() if t is not choice]


def _order(q: Question) -> str:
    if q.slo is not None:
        return "those that take most load within the limits first"
    return f"the most tokens/s at {q.loads[-1]:,} in flight first; within 8 % they count as equal"


def layout_words(one: Layout) -> str:
    """A layout in a few words, degrees of one left out.

    Example:
        >>> from scantling.costs.serving_memory import Split
        >>> layout_words(Layout(Split(tp=4, dp=2, ep=8), 2)), layout_words(Layout(Split(), 1))
        ('TP 4 · attention DP 2 · EP 8 · 2 replicas', 'one chip')
    """
    s = one.split
    named = (("TP", s.tp), ("attention DP", s.dp), ("PP", s.pp), ("EP", s.ep))
    parts = [f"{name} {n}" for name, n in named if n > 1]
    if one.replicas > 1:
        parts.append(f"{one.replicas} replicas")
    return " · ".join(parts) or "one chip"


def _print_question(out: Console, q: Question) -> None:
    counted = parameters(q.spec)
    size = count_text(float(counted.total))
    if counted.active != counted.total:
        size += f", {count_text(float(counted.active))} active"
    where = ", ".join(c.key for c in q.chips) if q.given else "any chip"
    n = f"{q.gpus[-1]:,}" if len(q.gpus) == 1 else f"{q.gpus[0]} to {q.gpus[-1]}"
    out.print(f"[bold]{escape(q.name)}[/bold] ({size}) on {n} × {where}")
    plural = "s" if q.batch > 1 else ""
    out.print(
        f"  {q.batch:,} sequence{plural} of {q.context:,} tokens in memory, {q.prompt:,} in and "
        f"{q.answer:,} out; cache {q.cache}", markup=False,
    )  # fmt: skip
    told = _traffic(q)
    if told:
        out.print(f"  {told}", markup=False)
    for text in q.assumed:
        out.print(f"  assumed {text}", style="dim", markup=False)


def _traffic(q: Question) -> str:
    """What the user said of the traffic and of what is served beside."""
    f, b = q.factors, q.beside
    parts = []
    if f.prefix_hit:
        parts.append(f"{percent(f.prefix_hit)} of a prompt is cached")
    if f.guesses:
        small = "" if f.draft is None else " by the draft model"
        parts.append(f"{f.guesses} tokens guessed ahead{small}, each right with {f.accept:g}")
    if f.skew:
        parts.append(f"experts chosen unevenly, skew {f.skew:g}")
    if b.adapters:
        parts.append(f"{b.adapters} adapters of rank {b.rank}")
    return "; ".join(parts)


def _print_choice(out: Console, q: Question, r: Row) -> None:
    t = r.trial
    h, m = t.held, t.held.memory
    out.print(f"[bold]▶ {t.n_gpu} × {t.chip.key}, {t.scheme.name}: {layout_words(t.layout)}[/bold]")
    words = {
        "fits": f"{bytes_text(h.margin_bytes)} to spare at the upper end of the interval",
        "fits only if": " and ".join(h.conditions),
        "does not fit": f"{bytes_text(float(m.low) - t.chip.usable_bytes)} too much even at the "
        "lower end",
    }[h.verdict]  # fmt: skip
    between = "" if h.verdict == "fits only if" else ","
    out.print(f"  [{COLOURS[h.verdict]}]{h.verdict}[/]{between} {escape(words)}")
    parts = ", ".join(f"{part} {bytes_text(float(getattr(m, part)))}" for part in PARTS
                      if float(getattr(m, part)) > 0)  # fmt: skip
    out.print(
        f"  memory  {bytes_text(float(m.total))} a chip ({bytes_text(float(m.low))} to "
        f"{bytes_text(float(m.high))}) of {bytes_text(h.room_bytes)} = {percent(q.share)} of "
        f"{bytes_text(t.chip.usable_bytes)}: {parts}", markup=False,
    )  # fmt: skip
    if max(float(m.cache_full), float(m.cache)) > TOLD * float(m.cache_ideal):
        out.print(
            f"  cache   needs {bytes_text(float(m.cache_ideal))}; paged by kind of layer "
            f"{bytes_text(float(m.cache))}; with pages for the full length in every layer "
            f"{bytes_text(float(m.cache_full))}", markup=False,
        )  # fmt: skip
    if r.max_context or r.max_batch:
        each = "" if q.batch == 1 else f" for each of {q.batch}"
        trained = "" if q.trained is None else f"; the model was made for {q.trained:,}"
        out.print(
            f"  limits  context {usable_context(r, q):,}{each} (memory alone "
            f"{_capped(r.max_context, MOST_CONTEXT)}{trained}); batch "
            f"{_capped(r.max_batch, MOST_SEQUENCES * r.trial.layout.groups)} at {q.context:,}",
            markup=False,
        )  # fmt: skip
    else:
        out.print("  limits  not even one short sequence surely fits", markup=False)


def _capped(n: int, most: int) -> str:
    """A limit, or that the search went no further."""
    return f"{n:,}" if n < most else f"{n:,} or more"


def _print_loads(out: Console, q: Question, r: Row) -> None:
    columns = [
        ("in flight", "right"), ("first token", "right"), ("queued", "right"),
        ("per token", "right"), ("90 %", "right"), ("tokens/s", "right"), ("a chip", "right"),
        ("a user", "right"),
    ]  # fmt: skip
    if q.price is not None:
        columns += [("M in", "right"), ("M out", "right")]
    columns.append(("J/token", "right"))
    found = table(*columns)
    points = [(p, f"{p.concurrency:,}") for p in r.trial.points]
    if r.saturation is not None and r.saturation.running > r.trial.points[-1].concurrency:
        points.append((r.saturation, f"full: {r.saturation.running:,}"))
    for p, name in points:
        found.add_row(*_load_row(p, name, r.trial, q))
    show_table(out, found)
    out.print("  first token: alone; queued: where requests come at random at this rate, a wide "
              "range since bursts decide", style="dim", markup=False)  # fmt: skip
    out.print("  90 %: the interval of the time per token; tokens/s of answers, all chips, a chip "
              "and a user", style="dim", markup=False)  # fmt: skip
    if q.price is not None:
        out.print(f"  M in, M out: a million tokens of prompts and of answers, at {q.price:g} a "
                  f"chip-hour, chips busy {percent(q.utilisation)} of it",
                  style="dim", markup=False)  # fmt: skip
    if any(p.output_bill.joules is not None for p, _ in points):
        out.print(f"  J/token: of an answer; {energy_why()}", style="dim", markup=False)


def _load_row(p: Point, name: str, t: Trial, q: Question) -> list[str]:
    s = p.speed
    row = [
        name, seconds_text(float(s.ttft_s.value)), _span(p.ttft_queued_s),
        seconds_text(float(s.tpot_s.value)), _span(s.tpot_s),
        count_text(float(p.tokens_per_s.value)), count_text(float(p.tokens_per_s.value) / t.n_gpu),
        _short(1 / float(s.tpot_s.value)),
    ]  # fmt: skip
    if q.price is not None:
        row += [_money(b.cost) for b in (p.input_bill, p.output_bill)]
    joules = p.output_bill.joules
    row.append("" if joules is None else _short(float(joules.value_s)))
    return row


def _short(value: float) -> str:
    """A number in two digits, whole where it has more.

    Example:
        >>> _short(0.278), _short(7.04), _short(326.2), _short(1110.0)
        ('0.28', '7', '326', '1,110')
    """
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"


def _money(cost: Any) -> str:
    return f"{float(cost.value_s):.3g}"


def _span(t: Times) -> str:
    low, high = seconds_text(float(t.low)), seconds_text(float(t.high))
    if low.partition(" ")[2] == high.partition(" ")[2]:
        low = low.partition(" ")[0]
    return f"{low} to {high}"


def _print_capacity(out: Console, q: Question, t: Trial, c: Capacity) -> None:
    limits = [f"{name} {seconds_text(v)}" for name, v in (
        ("first token", c.slo.ttft_s), ("per token", c.slo.tpot_s)) if v is not None]  # fmt: skip
    if c.expected is None:
        out.print(f"  [red]not even one request keeps {escape(' and '.join(limits))}[/red]")
        return
    sure = "none for certain" if c.surely is None else f"{c.surely.concurrency:,} for certain"
    rate = float(c.expected.tokens_per_s.value)
    out.print(
        f"  within {' and '.join(limits)}: {c.expected.concurrency:,} requests in flight ({sure}), "
        f"{rate / q.answer:.3g} requests/s, {count_text(rate)} tokens/s, "
        f"{count_text(rate / t.n_gpu)} a chip{_capacity_cost(c.expected)}", markup=False,
    )  # fmt: skip


def _capacity_cost(p: Point) -> str:
    if p.output_bill.cost is None or p.input_bill.cost is None:
        return ""
    return (f"; a million tokens cost {_money(p.input_bill.cost)} in, "
            f"{_money(p.output_bill.cost)} out")  # fmt: skip


def _print_rows(out: Console, found: Served, rows: int) -> None:
    q = found.question
    fitting = [r for r in found.rows if r.trial.held.verdict != "does not fit"]
    shown = (fitting if not q.given and fitting else list(found.rows))[:rows]
    title = "Chips that fit" if not q.given else "Side by side"
    out.print(
        f"[bold]{title}[/bold], {'the least memory first' if not q.given else 'the best first'}:"
    )
    columns = [
        ("chips", "left"), ("quant", "left"), ("split", "left"), ("", "left"), ("spare", "right"),
    ]  # fmt: skip
    if q.slo is not None:  # what was asked for stands where a narrow terminal does not cut it off
        columns += [("within", "right"), ("requests/s", "right")]
    if q.price is not None:
        columns.append(("M out", "right"))
    columns += [
        ("context", "right"), ("batch", "right"), ("first token", "right"), ("per token", "right"),
        ("full, a chip", "right"),
    ]  # fmt: skip
    listed = table(*columns)
    for i, r in enumerate(shown):
        listed.add_row(*_side(r, q), style="bold" if i == 0 else None)
    show_table(out, listed)
    fit = sum(r.trial.held.verdict == "fits" for r in found.rows)
    rest = len(found.rows) - len(shown)
    more = f"; {rest} more with --rows or --json" if rest > 0 else ""
    out.print(f"  {fit} of {len(found.rows)} fit for certain{more}", style="dim", markup=False)
    told = []
    if q.slo is not None:
        told.append(
            "within: requests in flight that keep the limits; requests/s: their rate a chip"
        )
    if q.price is not None:
        told.append("M out: money for a million tokens of answers")
    if any(r.saturation is not None for r in shown):
        told.append("full, a chip: tokens/s of answers at the most sequences that fit")
    for line in told:
        out.print(f"  {line}", style="dim", markup=False)
    for s in (s for s in found.skipped if q.given):
        out.print(f"  {s.chip}: {s.reason}", style="dim", markup=False)


def _side(r: Row, q: Question) -> list[str]:
    t, p = r.trial, r.trial.points[-1] if r.trial.points else None
    full = r.saturation
    row = [
        f"{t.n_gpu} × {t.chip.key}", t.scheme.name, layout_words(t.layout),
        {"fits": "fits", "fits only if": "only if", "does not fit": "no"}[t.held.verdict],
        bytes_text(t.held.margin_bytes) if t.held.margin_bytes > 0 else "",
    ]  # fmt: skip
    c = r.capacity
    if q.slo is not None:
        row += ["none", ""] if c is None or c.expected is None else [
            f"{c.expected.concurrency:,}",
            _short(float(c.expected.tokens_per_s.value) / q.answer / t.n_gpu),
        ]  # fmt: skip
    if q.price is not None:
        best = (c.expected if c is not None else None) or full
        row.append("" if best is None or best.output_bill.cost is None else
                   _money(best.output_bill.cost))  # fmt: skip
    row += [
        f"{usable_context(r, q):,}", f"{r.max_batch:,}",
        "" if p is None else seconds_text(float(p.speed.ttft_s.value)),
        "" if p is None else seconds_text(float(p.speed.tpot_s.value)),
        "" if full is None else count_text(float(full.tokens_per_s.value) / t.n_gpu),
    ]  # fmt: skip
    return row


def _splits(trials: tuple[Trial, ...], q: Question) -> Any:
    first, last = q.loads[0], q.loads[-1]
    columns = [("split", "left"), ("memory", "right"), (f"per token at {first:,}", "right"),
               ("first token", "right")]  # fmt: skip
    if last != first:
        columns.append((f"per token at {last:,}", "right"))
    columns.append((f"tokens/s at {last:,}", "right"))
    found = table(*columns)
    for i, t in enumerate(trials):
        a, b = t.points[0], t.points[-1]
        row = [
            layout_words(t.layout), bytes_text(float(t.held.memory.total)),
            seconds_text(float(a.speed.tpot_s.value)), seconds_text(float(a.speed.ttft_s.value)),
        ]  # fmt: skip
        if last != first:
            row.append(seconds_text(float(b.speed.tpot_s.value)))
        row.append(count_text(float(b.tokens_per_s.value)))
        found.add_row(*row, style="bold" if i == 0 else None)
    return found


def _print_valid(out: Console, found: Served) -> None:
    v = found.valid
    ep = f"; EP {_few(v.ep)}" if v.ep != [1] else ""
    out.print(f"  valid   TP {_few(v.tp)}{ep}; PP {_few(v.pp)} (equal stages)", markup=False)
    _print_invalid(out, found, REASONS)


def _few(numbers: list[int], n: int = 12) -> str:
    more = f" … {numbers[-1]}" if len(numbers) > n else ""
    return ", ".join(map(str, numbers[:n])) + more


def _print_invalid(out: Console, found: Served, n: int) -> None:
    reasons: dict[str, list[str]] = {}
    for w in found.invalid:
        reasons.setdefault(w.reason, []).append(w.degree)
    for reason, degrees in list(reasons.items())[:n]:
        out.print(f"  invalid {', '.join(degrees)}: {reason}", style="dim", markup=False)
