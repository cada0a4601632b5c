"""The answer of ``plan`` as text for a terminal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from scantling.costs.count import parameters
from scantling.costs.estimate import Estimate
from scantling.messages import in_language
from scantling.report.plan import (
    PARTS,
    changes,
    finetune_json,
    hyperparameters,
    limits_json,
    notes,
    speed,
)
from scantling.report.text import show_table, table
from scantling.search.plan_question import Question
from scantling.search.plan_space import Rejected
from scantling.search.plans import Plans, Trial, run_bill, verdict
from scantling.spec.plan import Adapter, Plan
from scantling.units import bytes_text, count_text, seconds_text

if TYPE_CHECKING:
    from rich.console import Console

GIB = 2**30
AGAIN = {
    "none": "no recompute", "selective": "recompute of attention",
    "products": "recompute of all but attention and every other product",
    "full": "full recompute",
}  # fmt: skip
REASONS = 8
"""Reasons printed; the rest are counted."""


def print_plan(out: Console, found: Plans, rows: int = 8) -> None:
    """The question, the choice with its memory, time and price, and what else there is."""
    q = found.question
    _print_question(out, q)
    if found.choice is None:
        _print_nothing(out, found)
        _print_search(out, found)
        return
    _print_choice(out, found, found.choice)
    for i, phase in enumerate(found.phases):
        _print_phase(out, i, phase)
    _print_run(out, found)
    if q.method is not None:
        _print_finetune(out, found)
    if found.alternatives:
        out.print("[bold]Other splits[/bold], the fastest plan of each:")
        show_table(out, _trials_table((found.choice, *found.alternatives[: rows - 1]), q))
    _print_limits(out, found)
    if len(found.front) > 1:
        out.print("[bold]Less memory for more time[/bold], plans that no other beats in both:")
        show_table(out, _trials_table(_spread(found.front, rows), q))
    _print_advice(out, found)
    _print_search(out, found)
    for note in notes(found):
        out.print(f"note: {note}", style="dim", markup=False)


def plan_words(p: Plan) -> str:
    """A plan in one line, degrees of one left out.

    Example:
        >>> plan_words(Plan(tp=8, pp=16, dp=128, n_micro_batch=16, zero=1))
        'TP 8 · PP 16 · DP 128 · ZeRO-1 · micro-batch 1 × 16 · no recompute'
    """
    parts = [f"{name.upper()} {n}" for name in ("tp", "pp", "dp", "cp", "ep")
             if (n := getattr(p, name)) > 1]  # fmt: skip
    if p.expert_tp is not None and p.expert_tp != p.tp:
        parts.append(f"expert TP {p.expert_tp}")
    if p.virtual > 1:
        parts.append(f"{p.virtual} chunks a stage")
    if p.dp * p.cp > 1:
        parts.append(f"ZeRO-{p.zero}")
    parts.append(f"micro-batch {p.micro_batch} × {p.n_micro_batch}")
    layers = "" if p.recompute_layers is None else f" of {p.recompute_layers} layers a stage"
    parts.append(AGAIN[p.recompute] + layers)
    return " · ".join(parts)


def plan_brief(p: Plan) -> str:
    """The same in few letters, for a column of a table.

    Example:
        >>> plan_brief(Plan(tp=2, pp=2, dp=2, virtual=16, n_micro_batch=32, micro_batch=2, zero=1))
        'TP 2 · PP 2×16 · DP 2 · ZeRO-1 · 2×32'
    """
    parts = [f"{name.upper()} {n}" + (f"×{p.virtual}" if name == "pp" and p.virtual > 1 else "")
             for name in ("tp", "pp", "dp", "cp", "ep") if (n := getattr(p, name)) > 1]  # fmt: skip
    if p.dp * p.cp > 1:
        parts.append(f"ZeRO-{p.zero}")
    parts.append(f"{p.micro_batch}×{p.n_micro_batch}")
    if p.recompute != "none":
        parts.append(p.recompute)
    return " · ".join(parts)


def _print_question(out: Console, q: Question) -> None:
    n, each = q.cluster.n_gpu, q.cluster.node.n_gpu
    counted = parameters(q.spec)
    size = count_text(float(counted.total))
    if counted.active != counted.total:
        size += f", {count_text(float(counted.active))} active"
    where = f"{n:,} × {q.chip.key}"
    if n > each:
        net = q.cluster.network.bytes_per_s * 8 / 1e9
        over = (
            ""
            if q.cluster.oversubscription == 1
            else f", oversubscribed {q.cluster.oversubscription:g}:1"
        )
        where += (
            f" ({n // each:,} nodes of {each}, {net:.0f} Gb/s each between them{over}: assumed)"
        )
    out.print(f"[bold]{escape(q.name)}[/bold] ({size}) on {where}")
    r = q.recipe
    method = f", {q.method} fine-tuning" if q.method else ""
    if isinstance(r.adapter, Adapter):
        targets = ", ".join(r.adapter.targets) or "all linear layers"
        method += f" (rank {r.adapter.rank} on {targets}, base in {r.adapter.weights})"
    phases = ", then ".join(
        f"{count_text(p.tokens)} tokens at context {p.context:,}" for p in q.phases
    )
    out.print(
        f"  {phases}; batch {q.batch:,} sequences = {count_text(q.batch * q.context)} tokens; "
        f"{r.dtype}, {r.optimizer}{method}", markup=False,
    )  # fmt: skip
    for text in q.assumed:
        out.print(f"  assumed {text}", style="dim", markup=False)


def _print_choice(out: Console, found: Plans, t: Trial) -> None:
    q, m, s = found.question, t.memory, t.step
    usable = q.chip.usable_bytes
    state = verdict(m, q)
    words = {
        "fits": f"[green]fits[/green], {bytes_text(usable - float(m.high))} to spare at the upper "
        "end of the interval",
        "fits only if": f"[yellow]fits only if[/yellow] memory stays below the upper end of its "
        f"interval, which is {bytes_text(float(m.high) - usable)} over",
    }  # fmt: skip
    out.print(f"[bold]▶ {plan_words(t.plan)}[/bold]")
    out.print(f"  {words[state]}")
    held = ", ".join(f"{part} {bytes_text(float(getattr(m, part)))}" for part in PARTS
                     if float(getattr(m, part)) > 0)  # fmt: skip
    out.print(
        f"  memory  {bytes_text(float(m.total))} ({bytes_text(float(m.low))} to "
        f"{bytes_text(float(m.high))}) of {bytes_text(usable)}, peak at {m.moment}: {held}",
        markup=False,
    )
    value = float(s.step.value_s)
    parts = {
        "compute": s.compute_s, "exposed communication": s.communication_s,
        "bubble": s.bubble_s, "optimizer": s.optimizer_s,
    }  # fmt: skip
    whole = sum(float(v) for v in parts.values()) or value
    shares = ", ".join(f"{name} {float(v) / whole:.0%}" for name, v in parts.items())
    again = f" (of it {float(s.recompute_s) / whole:.0%} recompute)" if float(s.recompute_s) else ""
    out.print(f"  step    {interval(s.step, seconds_text)}: {shares}{again}", markup=False)
    out.print(
        f"  speed   {interval(speed(t, q), count_text)} tokens/s a GPU; MFU "
        f"{interval(s.mfu, percent)}, HFU {float(s.hfu.value_s):.0%} ({s.convention} FLOPs, "
        f"{q.recipe.dtype} peak)", markup=False,
    )  # fmt: skip


def _print_phase(out: Console, i: int, phase: Plans) -> None:
    q = phase.question
    line = f"phase {i + 1}, {count_text(q.tokens)} tokens at {q.context:,}"
    if phase.choice is None or phase.bill is None:
        out.print(f"  {line}: [red]does not fit[/red]; {'; '.join(changes(phase))}")
        return
    out.print(
        f"  {line}: {phase.verdict}, {plan_words(phase.choice.plan)}, MFU "
        f"{float(phase.choice.step.mfu.value_s):.0%}, {interval(phase.bill.days, number)} days",
        markup=False,
    )


def _print_run(out: Console, found: Plans) -> None:
    q, b = found.question, found.bill
    if b is None:
        return
    low, high = (seconds_text(float(v)) for v in (b.ideal_s.low_s, b.ideal_s.high_s))
    parts = [f"{seconds_text(float(b.ideal_s.value_s))} ideal ({low} to {high})"]
    if q.goodput is not None:
        parts.append(f"{seconds_text(float(b.calendar_s.value_s))} on the calendar at goodput "
                     f"{q.goodput:g}")  # fmt: skip
    parts.append(f"{interval(b.gpu_hours, count_text)} GPU-hours")
    if b.energy_kwh is not None:
        parts.append(f"{interval(b.energy_kwh, count_text)} kWh for the chips (assumed)")
    if b.cost is not None:
        parts.append(f"cost {interval(b.cost, count_text)} at {q.price:g} a GPU-hour")
    out.print(f"  run     {'; '.join(parts)}", markup=False)


def _print_finetune(out: Console, found: Plans) -> None:
    told = finetune_json(found)
    n = told["trainable_parameters"]
    line = f"{count_text(n)} trainable parameters"
    if "share" in told:
        line += f", {told['share']:.2%} of the model, on {', '.join(told['modules'])}"
    out.print(f"  tunes   {line}", markup=False)
    if told.get("skipped"):
        out.print(f"          not on {', '.join(told['skipped'])}", markup=False)
    if "seconds_per_million_tokens" in told:
        s = told["seconds_per_million_tokens"]
        low, high = seconds_text(s["low"]), seconds_text(s["high"])
        out.print(f"  1 M tokens take {seconds_text(s['value'])} ({low} to {high})", markup=False)


def _print_limits(out: Console, found: Plans) -> None:
    told = limits_json(found)
    if told is None:
        return
    context, batch = told["longest_context"], told["largest_micro_batch"]
    if context is None and batch is None:
        return
    longest = "none" if context is None else f"{context:,} tokens"
    largest = "none" if batch is None else f"{batch:,} sequences of {found.question.context:,}"
    out.print(f"  this split surely holds a context of at most {longest}, or a micro-batch of at "
              f"most {largest}", markup=False)  # fmt: skip


def _trials_table(trials: tuple[Trial, ...], q: Question) -> Any:
    columns = [
        ("TP", "right"), ("PP", "right"), ("DP", "right"), ("CP", "right"), ("EP", "right"),
        ("ZeRO", "right"), ("chunks", "right"), ("micro", "right"), ("recompute", "left"),
        ("memory", "right"), ("step", "right"), ("MFU", "right"), ("run", "right"),
        ("comm", "right"), ("bubble", "right"),
    ]  # fmt: skip
    if q.price is not None:
        columns.append(("cost", "right"))
    found = table(*columns)
    for i, t in enumerate(trials):
        p, s = t.plan, t.step
        b = run_bill(q, t, q.phases[0])
        value = float(s.step.value_s)
        flag = "" if verdict(t.memory, q) == "fits" else "?"
        row = [
            str(p.tp), str(p.pp), str(p.dp), str(p.cp), str(p.ep), str(p.zero), str(p.virtual),
            f"{p.micro_batch}×{p.n_micro_batch}", p.recompute,
            f"{float(t.memory.total) / GIB:.1f}{flag} GiB", seconds_text(value),
            percent(float(s.mfu.value_s)), seconds_text(float(b.ideal_s.value_s)),
            f"{float(s.communication_s) / value:.0%}", f"{float(s.bubble_s) / value:.0%}",
        ]  # fmt: skip
        if b.cost is not None:
            row.append(count_text(float(b.cost.value_s)))
        found.add_row(*row, style="bold" if i == 0 else None)
    return found


def _spread(trials: tuple[Trial, ...], rows: int) -> tuple[Trial, ...]:
    """Both ends of a front and an even spread between them."""
    if len(trials) <= rows:
        return trials
    if rows == 1:
        return trials[:1]
    last = len(trials) - 1
    return tuple(trials[i] for i in sorted({round(i * last / (rows - 1)) for i in range(rows)}))


def _print_nothing(out: Console, found: Plans) -> None:
    q = found.question
    if found.closest is None:
        out.print("[red]No plan is valid[/red]; the reasons are below.")
        return
    p, m = found.closest
    missing = float(m.high) - q.chip.usable_bytes
    out.print(
        f"[red]Does not fit[/red]: the plan that holds least needs {bytes_text(float(m.total))} "
        f"({bytes_text(float(m.low))} to {bytes_text(float(m.high))}) of "
        f"{bytes_text(q.chip.usable_bytes)}, {bytes_text(missing)} too much."
    )
    out.print(f"  {plan_words(p)}", markup=False)
    for part in PARTS:
        if float(getattr(m, part)) > 0:
            out.print(f"  {part:<12}{bytes_text(float(getattr(m, part))):>10}", markup=False)
    _print_limits(out, found)
    out.print("What would have to change:")
    for line in changes(found):
        out.print(f"  {line}", markup=False)


def _print_advice(out: Console, found: Plans) -> None:
    told = hyperparameters(found)
    out.print("[bold]Hyper-parameters[/bold] (advice; the interval is where the sources disagree):")
    rate, warmup = told["learning_rate"], told["warmup_steps"]
    out.print(f"  peak learning rate {rate['value']:.2g} ({rate['low']:.2g} to {rate['high']:.2g})")
    _print_why(out, rate)
    if "batch_tokens" in told:
        b = told["batch_tokens"]
        out.print(f"  batch {count_text(b['value'])} tokens ({count_text(b['low'])} to "
                  f"{count_text(b['high'])})")  # fmt: skip
        _print_why(out, b)
    out.print(f"  {told['steps']:,} steps, the first {warmup['value']:,} of them warmup "
              f"({warmup['low']:,} to {warmup['high']:,})")  # fmt: skip


def _print_why(out: Console, advised: dict[str, Any]) -> None:
    """What each source says of one number, below it."""
    for line in advised["why"]:
        out.print(f"    {line}", style="dim", markup=False)


def _print_search(out: Console, found: Plans) -> None:
    c = found.counts
    out.print(
        f"[dim]{c.considered:,} plans in {found.seconds:.1f} s: {c.invalid:,} invalid, "
        f"{c.too_large:,} too large, {c.slower:,} slower for certain, {c.timed:,} timed[/dim]"
    )
    alike = _alike(found)
    for reason, count, others in alike[:REASONS]:
        more = in_language(f" (and {others} like it)") if others else ""
        out.print(f"  {count:>9,}  {in_language(reason)}{more}", style="dim", markup=False)
    if len(alike) > REASONS:
        rest = sum(count for _, count, _ in alike[REASONS:])
        out.print(f"  {rest:>9,}  other reasons (--json)", style="dim", markup=False)


def _alike(found: Plans) -> list[tuple[str, int, int]]:
    """Reasons that differ in numbers alone as one: the most frequent, plans, how many others."""
    kinds: dict[str, list[Rejected]] = {}
    for r in found.rejected:
        kinds.setdefault(re.sub(r"\d+", "#", r.reason), []).append(r)
    rows = [(rs[0].reason, sum(r.count for r in rs), len(rs) - 1) for rs in kinds.values()]
    return sorted(rows, key=lambda row: -row[1])


def percent(value: float) -> str:
    """A share.

    Example:
        >>> percent(0.4123)
        '41.2 %'
    """
    return f"{value:.1%}".replace("%", " %")


def number(value: float) -> str:
    """Three digits."""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def interval(e: Estimate, show: Any) -> str:
    """A value with both ends."""
    return f"{show(float(e.value_s))} ({show(float(e.low_s))} to {show(float(e.high_s))})"
