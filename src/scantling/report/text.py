"""Answers as text for a terminal, with rich."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from scantling.costs.readings import READINGS
from scantling.messages import in_language, translated
from scantling.report.shape_cells import ffn_cell, heads_cell, layers_cell
from scantling.search import (
    Candidate,
    Front,
    binding_axes,
    difference,
    explain_all,
    infeasible,
    plan_cell,
    plan_text,
    row_plans,
)
from scantling.search.candidate import findings, plans_text, served_text
from scantling.search.space import limits
from scantling.units import bytes_text, count_text, flops_text, seconds_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from scantling.report.analyze import Analysis
    from scantling.search.plans import Plans


@functools.cache
def _in_language() -> tuple[type[Console], type[Table]]:
    """A console and a table that tell everything in the language chosen."""
    from rich.console import Console
    from rich.table import Table

    class Teller(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            super().print(*map(translated, objects), **options)

    class Told(Table):
        def add_row(self, *cells: Any, **options: Any) -> None:
            super().add_row(*map(translated, cells), **options)

        def add_column(self, header: Any = "", *more: Any, **options: Any) -> None:
            super().add_column(translated(header), *more, **options)

    return Teller, Told


def console(**options: Any) -> Console:
    """A console that wraps nothing and loses its colours when piped."""
    teller, _ = _in_language()
    found = teller(highlight=False, soft_wrap=True, **options)
    if not found.is_terminal:
        plain: dict[str, Any] = {"width": 240, "no_color": True, **options}
        found = teller(highlight=False, soft_wrap=True, **plain)
    return found


def table(*columns: tuple[str, str], title: str = "") -> Table:
    """A table with (heading, justification) columns."""
    from rich import box

    _, told = _in_language()
    found = told(title=translated(title) or None, title_justify="left", box=box.SIMPLE_HEAD,
                 pad_edge=False)  # fmt: skip
    for name, justify in columns:
        found.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    return found


def show_table(out: Console, found: Table) -> None:
    """Print a table; columns that do not fit are left out from the right and named, never cut."""
    hidden = []
    wide = out.options.update(max_width=10_000)
    while len(found.columns) > 2 and out.measure(found, options=wide).maximum > out.width:
        hidden.append(str(found.columns.pop().header) or "the last")
    out.print(found)
    if hidden:
        out.print(f"[dim]too narrow for: {', '.join(reversed(hidden))}[/dim]")


def print_front(
    out: Console, front: Front, rows: int = 12, plans: dict[str, Plans | None] | None = None
) -> None:
    """The front, the choice with a reason for every number, and what was not priced.

    Plans are ``search.row_plans`` unless given.
    """
    plans = row_plans(front, rows) if plans is None else plans
    b, swept = front.budget, front.swept
    out.print(
        f"[bold]{count_text(b.params)} parameters, {count_text(b.tokens)} tokens, "
        f"{b.n_gpu} × {b.chip}[/bold]: {swept.evaluated:,} shapes in {front.seconds:.1f} s, "
        f"{swept.feasible:,} feasible, {len(front.candidates)} on the front"
    )
    for text in b.assumed:
        out.print(f"[dim]assumed {text}[/dim]")
    c = front.chosen
    shown = [*(front.candidates[i] for i in front.spread(rows)), *front.baselines]
    codes = {id(one): dict.fromkeys(f["code"].lower() for f in findings(one)) for one in shown}
    common = [code for code in codes[id(c)] if all(code in own for own in codes.values())]
    show_table(out, _front_table(front, rows, plans, {
        at: [code for code in own if code not in common] for at, own in codes.items()
    }))  # fmt: skip
    if common:
        far = [one.extrapolation for one in shown]
        said = f"extrapolated ×{min(far):.1f} to ×{max(far):.1f}"
        found = ", ".join(common).replace("law-extrapolated", said)
        out.print(f"[dim]every row: {found}[/dim]")
    how = "planned: days by the fastest split that fits" if b.chips_given else (
        "only ▶ is planned, --gpus plans every row")  # fmt: skip
    out.print(
        f"[dim]days on {b.n_gpu} × {b.chip}, {plans_text(b)}; {how}; "
        f"KV/token is the cache of a sequence of "
        f"{b.serve_context:,} over its tokens; ms/token there on {served_text(b)}, batch "
        f"{b.serve_batch}; Δ loss against ▶ at equal {_alike(front)}[/dim]"
    )
    if "vocab_size" in b.listed:
        out.print(f"[dim]every vocabulary reads the same text, {count_text(b.tokens)} tokens of "
                  f"{b.vocab_size:,}; Δ loss has its size and its tokens alone[/dim]")  # fmt: skip
    equal = len(front.equal)
    how = (f"the least of {', then of '.join(b.lexicographic)}" if b.lexicographic else
           f"knee of the front by your weights {b.weights}" if b.weights else
           f"the knee of cost among the {equal} shapes whose loss the law cannot tell from the "
           f"best (within {front.equal_within:.3f} nats)")  # fmt: skip
    if not (c.priced or b.weights or b.lexicographic):
        how = "the knee of all costs: no law prices its loss"
    out.print(f"[bold]▶ {c.name}[/bold] is {how}.")
    ratios = ", ".join(f"{k} {v:.3g}" for k, v in c.shape().items())
    out.print(f"  {c.counted.total:,} parameters, body {c.counted.body:,}; {ratios}")
    plan = plans[c.name]
    if plan is not None:
        out.print(f"  training {plan_text(plan)}")
    for field, lines in explain_all(c).items():
        value = c.spec.tied if field == "tied" else c.dims()[field]
        out.print(f"  [bold]{field} {value}[/bold]: {escape(lines[0])}")
        for line in lines[1:]:
            out.print(f"      {escape(line)}")
    for finding in findings(c):
        out.print(f"  [yellow]{finding['code']}[/yellow] {in_language(finding['message'])}")
    out.print("[dim]" + _honest(front) + "[/dim]")
    _print_axes(out, front)


def _alike(front: Front) -> str:
    """What the shapes of a front are given alike."""
    b = front.budget
    if b.alike is None:
        return "tokens"
    if b.equal == "flops":
        return f"FLOPs ({b.alike:.3g})"
    return f"wall-clock ({b.alike / 86400:.3g} days)"


def _front_table(
    front: Front, rows: int, plans: dict[str, Plans | None], codes: dict[int, list[str]]
) -> Table:
    params = "params / active" if front.budget.moe else "params"
    listed = [("vocab", "right")] if "vocab_size" in front.budget.listed else []
    heads = "H×h, rank" if front.budget.mixer == "mla" else "H/K×h"
    planned = [("planned", "left")] if front.budget.chips_given else []
    found = table(
        ("", "left"), *listed, ("layers × width", "right"), (heads, "right"), ("FFN", "right"),
        (params, "right"), ("Δ loss", "right"), ("days", "right"), *planned,
        ("KV/token", "right"), ("ms/token", "right"), ("D/L", "right"), ("F/D", "right"),
        ("findings", "left"),
    )  # fmt: skip
    for i in front.spread(rows):
        style = "bold" if i == front.choice else None
        row = _row(front.candidates[i], front.chosen, plans, codes)
        found.add_row("▶" if i == front.choice else "", *row[1 - len(listed) :], style=style)
    found.add_section()
    for c in front.baselines:
        row = _row(c, front.chosen, plans, codes)
        found.add_row(c.name, *row[1 - len(listed) :], style="dim")
    return found


def _row(
    c: Candidate,
    reference: Candidate,
    plans: dict[str, Plans | None],
    codes: dict[int, list[str]],
) -> list[str]:
    own = [plan_cell(plans.get(c.name))] if c.budget.chips_given else []
    delta = "0" if c is reference else "not priced"
    if c.priced and reference.priced and c is not reference:
        loss = difference(c, reference)
        half = ((loss.high or 0) - (loss.low or 0)) / 2
        delta = f"{loss.value:+.4f} ± {half:.3f}"
    params = count_text(float(c.counted.total))
    if c.counted.active != c.counted.total:
        params += f" / {count_text(float(c.counted.active))}"
    shape = c.shape()
    said = ", ".join(codes[id(c)])
    if c.extrapolation > 1:
        said = said.replace("law-extrapolated", f"extrapolated ×{c.extrapolation:.1f}")
    return [
        f"{int(c.spec.vocab_size):,}", layers_cell(c.spec), heads_cell(c.spec), ffn_cell(c.spec),
        params, delta, f"{c.days:.3g}", *own,
        bytes_text(c.kv_bytes_per_token), f"{float(c.decode.value_s) * 1e3:.2f}",
        f"{shape['D/L']:.0f}", f"{shape['F/D']:.2f}" if "F/D" in shape else "", said,
    ]  # fmt: skip


def _honest(front: Front) -> str:
    c, b = front.chosen, front.budget
    train, decode = c.train, c.decode
    loss = f"Δ loss is nats/token at equal {_alike(front)}, law '{b.law}'"
    loss = f"{loss}; " if c.priced else ""
    text = (
        f"Exact: parameters, FLOPs, KV bytes. ±: {loss}days {float(train.low_s) / 86400:.3g} to "
        f"{float(train.high_s) / 86400:.3g} and {float(decode.low_s) * 1e3:.3g} to "
        f"{float(decode.high_s) * 1e3:.3g} ms for the choice (90 % of public measurements, for a "
        f"plain split)."
    )
    if c.extrapolation > 1:
        text += f" The loss is extrapolated ×{c.extrapolation:.1f} beyond the largest fitted model."
    return text


def _print_axes(out: Console, front: Front) -> None:
    out.print("Not priced by any objective, so kept to bounds:")
    for axis in binding_axes(front):
        where = limits(*axis["bounds"])
        on = " [yellow]← the choice lies on it[/yellow]" if axis["binding"] else ""
        out.print(f"  {axis['axis']}{' ' if where else ''}{where}: {axis['why']}{on}", style="dim")


def print_infeasible(out: Console, front: Front) -> None:
    """Why no shape keeps every limit: what to relax first, then what each limit removed."""
    swept, b = front.swept, front.budget
    out.print(f"[bold]No shape is feasible[/bold] among {swept.considered:,}.")
    found = infeasible(front)
    _print_relaxations(out, found)
    for shape in found["closest"][:1]:
        table_size = b.vocab_size * shape["d_model"]
        if table_size > b.params:
            out.print(
                f"The embedding table alone is {b.vocab_size:,} × {shape['d_model']} = "
                f"{count_text(table_size)} parameters: give a smaller --vocab or more --params."
            )
    if found["closest"]:
        out.print("Closest:")
    for shape in found["closest"]:
        out.print(f"  {shape['name']}: {count_text(float(shape['total']))} parameters, "
                  f"{shape['training_days']:.3g} days, {seconds_text(shape['decode_s'])} a token, "
                  f"{bytes_text(shape['kv_bytes_per_token'])} KV a token")  # fmt: skip
    out.print("Each limit removed, one shape by one or several:")
    for name, count in sorted(swept.removed.items(), key=lambda pair: -pair[1]):
        if count:
            out.print(f"  {count:>14,}  {name}")


def _print_relaxations(out: Console, found: dict[str, Any]) -> None:
    """What would make a shape feasible, and which limits bind beside."""
    alone = [row for row in found["binding"] if row["alone"] and row["option"]]
    if alone:
        out.print("One of these alone would make a shape feasible, the other limits kept:")
    elif found["together"]:
        out.print("No single limit suffices; the smallest joint change:")
    for row in alone or found["together"]:
        out.print(f"  [bold]{row['option']}[/bold] {_relaxed(row)}")
    if found["size"] is not None:
        size = count_text(float(found["size"]))
        out.print(f"Or another size: {size} parameters keep every limit as it is (--params).")
    for row in found["binding"]:
        if row not in alone and row not in found["together"]:
            out.print(_relaxed(row))


def _relaxed(row: dict[str, Any]) -> str:
    """A limit as it is and as it would have to be; in the unit of its option."""
    if row["needed"] is None:
        return str(row["limit"])
    return (f"{row['limit']}: {_amount(row['unit'], row['allowed'])} allowed, at least "
            f"{_amount(row['unit'], row['needed'])} needed")  # fmt: skip


def _amount(unit: str, value: float) -> str:
    """An amount of a limit in its unit."""
    if unit == "bytes":
        return bytes_text(value)
    if unit == "s":
        return seconds_text(value)
    if unit == "parameters":
        return f"{value:,.0f} parameters"
    return f"{value:,.4g} {({'hours': 'GPU-hours', 'money': 'of money'}).get(unit, unit)}"


def print_analysis(out: Console, a: Analysis, before: Analysis | None = None) -> None:
    """One model; with ``before``, each number also as it was without ``--set``."""
    out.print(f"[bold]{a.name}[/bold] ({a.model_type}): {', '.join(_spans(a))}")
    columns = [("before", "right"), ("after", "right")] if before else [("value", "right")]
    found = table(("quantity", "left"), *columns, ("note", "left"))
    old = {name: value for name, value, _ in _lines(before)} if before else {}
    for name, value, note in _lines(a):
        same = before and old.get(name) == value
        found.add_row(name, *([old.get(name, "")] if before else []), "=" if same else value, note)
    show_table(out, found)
    rules = table(
        ("rule of thumb", "left"), ("says", "right"), ("exact", "right"), ("error", "right")
    )
    for name, rule in a.approximations().items():
        show = bytes_text if name.startswith("kv") else count_text
        show = flops_text if "per_token" in name else show
        rules.add_row(name, show(rule["value"]), show(rule["exact"]), f"{rule['error']:+.1%}")
    show_table(out, rules)
    if a.checkpoint is not None:
        _print_checkpoint(out, a)
    for finding in a.findings():
        out.print(f"[yellow]{finding['code']}[/yellow] {in_language(finding['message'])}")
    for note in a.notes:
        out.print(f"[dim]note: {note}[/dim]")


def _spans(a: Analysis) -> list[str]:
    from scantling.report.analyze import spans

    return spans(a.spec)


def _lines(a: Analysis) -> list[tuple[str, str, str]]:
    p, f, w, tokens = a.params, a.flops, a.workload, a.flops.tokens
    total: Any = p.total
    found = [("shape " + n, f"{v:,}", "") for n, v in a.dims.items()]
    found += [(n, f"{v:.4g}", "") for n, v in a.shape().items() if n not in a.dims]
    found += [("parameters", f"{p.total:,}", "unique, no buffers")]
    if p.active != p.total:
        found += [("  active", f"{p.active:,}", "what one token uses")]
    found += [("  body", f"{p.body:,}", "without embedding and head")]
    for part, size in p.by_part.items():
        if size or part == "lm_head":
            note = ""
            if part == "lm_head" and a.spec.tied:
                note = "beside the matrix, tied to the embedding" if size else (
                    "0 new: tied to the embedding")  # fmt: skip
            found.append((f"  {part}", f"{size:,}", note or f"{size / total:.1%}"))
    if p.buffers:
        found.append(("buffers", f"{p.buffers:,}", "in the checkpoint, not parameters"))
    found += _reading_lines(a)
    at = f"{w.batch} × {w.context:,} tokens"
    unpadded = []
    if a.unpadded != f.forward and f.convention == "full":
        unpadded = [("  unpadded", f"{a.unpadded:,.0f}", "without the padding of chunked scans")]
    found += [
        ("FLOPs forward", f"{f.forward:,.0f}", f"{at}, {f.convention}"),
        ("  MACs forward", f"{float(f.forward) / 2:,.0f}", "one multiply-add each: half"),
        *unpadded, ("FLOPs train", f"{f.train:,.0f}", "forward and backward"),
        ("  per token", flops_text(float(f.train) / tokens), "train"),
    ]  # fmt: skip
    found += _cache_lines(a)
    found.append(("weights", bytes_text(a.weights_bytes), w.dtype))
    if a.released is not None and a.released_bytes is not None:
        found.append(("  as released", bytes_text(a.released_bytes), a.released.name))
    return found


def _reading_lines(a: Analysis) -> list[tuple[str, str, str]]:
    """The other counts of the same model, and what is in none of them."""
    counts = a.readings()
    names = ["lm_head_shared", "with_lm_head_again"] if a.spec.tied else []
    names += ["with_mtp", "with_mtp_tables"] if "with_mtp" in counts else []
    found = [(f"reading {name}", f"{counts[name]:,}", READINGS[name]) for name in names]
    if a.towers:
        found.append(("not counted", ", ".join(a.towers), READINGS["towers_not_counted"]))
    return found


def _cache_lines(a: Analysis) -> list[tuple[str, str, str]]:
    """What is kept, needed and as engines reserve it; equal readings once."""
    k, w, paged = a.cache, a.workload, a.paged
    found = [
        ("KV per token", bytes_text(float(k.bytes_per_token)),
         f"{k.bytes_per_token:,} bytes, {w.kv_dtype}"),
        ("KV cache", bytes_text(float(k.bytes)), f"{w.batch} × {w.context:,} tokens"),
    ]  # fmt: skip
    if k.allocated_bytes != k.bytes:
        found.append(("  allocated", bytes_text(float(k.allocated_bytes)),
                      "by engines that give every layer full length"))  # fmt: skip
    if paged is not None and paged.bytes != k.bytes:
        padded = sum(g.padding for g in paged.groups)
        how = f"{paged.group_layers} layers a group, {padded} of padding"
        how += f", {paged.page_tokens} tokens a page" if paged.page_tokens else ""
        found.append(("  paged", bytes_text(float(paged.bytes)), f"by kind of layer: {how}"))
    if k.expanded_bytes != k.bytes:
        found.append(("  unabsorbed", bytes_text(float(k.expanded_bytes)),
                      "full keys and values of all heads in place of the latent"))  # fmt: skip
    if k.cross_bytes:
        found.append(("  cross", bytes_text(float(k.cross_bytes)), "of an encoder's output"))
    if k.state_bytes:
        found.append(("  fixed state", bytes_text(float(k.state_bytes)), "does not grow"))
    return found


def _print_checkpoint(out: Console, a: Analysis) -> None:
    """What the files hold, and each tensor that the config does not explain."""
    w = a.weights()
    found = a.compared()
    verdict = "agrees" if found.agrees else "DISAGREES"
    out.print(
        f"checkpoint ({w['format']}, {w['files']} files): {w['logical_parameters']:,} parameters "
        f"in {w['tensors']:,} tensors, {bytes_text(w['tensor_bytes'])}, "
        f"{w['bits_per_weight']:.4g} bits per weight with scales; {verdict} with its config"
    )
    for line in found.lines():
        out.print(f"  {line}", markup=False)


def print_compare(out: Console, found: dict[str, Any]) -> None:
    """Models side by side with ratios to the first."""
    names = found["models"]
    columns = [("", "left"), (names[0], "right")]
    for name in names[1:]:
        columns += [(name, "right"), ("×", "right")]
    shown = table(*columns)
    for row in found["rows"]:
        cells = [row["quantity"], _number(row["quantity"], row["values"][0])]
        for value, ratio in zip(row["values"][1:], row["ratio"][1:], strict=True):
            cells += [_number(row["quantity"], value), "" if ratio is None else f"{ratio:.3g}"]
        shown.add_row(*cells)
    show_table(out, shown)
    for step in found["decomposition"]:
        out.print(f"{step['from']} → {step['to']}: [bold]{step['text']}[/bold]")


def _number(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    if "bytes" in name.lower():
        return bytes_text(value)
    if "FLOPs" in name:
        return flops_text(value)
    if float(value).is_integer() and abs(value) < 1e7:
        return f"{int(value):,}"
    return count_text(value) if abs(value) >= 1e4 else f"{value:.4g}"


def print_varied(out: Console, field: str, hold: str | None, rows: list[dict[str, Any]]) -> None:
    """A range of one field as a table."""
    shown = table((field, "right"), ("FFN", "right"), ("params", "right"), ("Δ loss", "right"),
                  ("FLOPs/token", "right"), ("days", "right"), ("KV/token", "right"),
                  ("ms/token", "right"))  # fmt: skip
    priced = "speed" in rows[0]
    if priced:
        shown.add_column("speed (90 % of a prior)", justify="right", no_wrap=True)
    for row in rows:
        mark = " ◀" if row["given"] else ""
        loss = row["loss_difference"]
        delta = "not priced" if loss is None else f"{loss['value']:+.4f}"
        if loss is not None:
            delta += f" ± {(loss['high'] - loss['low']) / 2:.3f}"
        shown.add_row(
            f"{row['value']}{mark}", str(row["d_ff"] or ""), count_text(row["params"]), delta,
            flops_text(row["flops_per_token_train"]), f"{row['days']['value']:.3g}",
            bytes_text(row["kv_bytes_per_token"]), f"{row['tpot_seconds']['value'] * 1e3:.2f}",
            *([_speed(row["speed"])] if priced else []),
        )  # fmt: skip
    show_table(out, shown)
    if hold:
        out.print(f"[dim]{hold} held by the FFN width; values where it cannot are left out[/dim]")
    if priced:
        out.print("[dim]speed: of kernels of a training step; its interval is that of a declared "
                  "prior on alignment, not of a measurement[/dim]")  # fmt: skip
    for why in rows[0]["days"]["why"][:1] + rows[0]["tpot_seconds"]["why"][:1]:
        out.print(f"[dim]{why}[/dim]")


def _speed(gain: dict[str, Any] | None) -> str:
    if gain is None:
        return "not priced"
    return f"×{gain['value']:.3f} ({gain['low']:.3f} to {gain['high']:.3f})"


__all__ = [
    "console", "print_analysis", "print_compare", "print_front", "print_infeasible",
    "print_varied", "show_table", "table",
]  # fmt: skip
