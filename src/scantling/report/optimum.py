"""Where compute is best spent, by several laws side by side, as text and JSON."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from scantling.costs.estimate import DAY_S
from scantling.errors import FieldError
from scantling.laws import DEFAULT
from scantling.laws.hyperparameters import advice, batch_tokens
from scantling.laws.optimum import (
    FACTORS,
    Optimum,
    Other,
    Repetition,
    Spending,
    allocations,
    compute_optimal,
    needed,
    others,
    repetition,
)
from scantling.search.candidate import counted_json, hf_config
from scantling.search.size import FULL
from scantling.search.spend import Machine, Spent, spend
from scantling.units import count_text, flops_text

LAWS = (DEFAULT, "chinchilla-2024")
REPEATING = ("shape", "muennighoff-2023")
"""The laws asked unless others are named; with scarce tokens those that see repetition."""

COUNTED = {
    "body": "N without embeddings and head",
    "total": "N of all parameters, embeddings and head included",
    "flops": "N is FLOPs of a token, not parameters: worth a sixth of that",
}
"""What the N of a law counts, in words."""


class Answer(Struct, frozen=True, kw_only=True):
    """One law's answer.

    Args:
        budget: What it spends; the same for all laws unless FLOPs are asked for.
        best: The optimum.
        others: Other sizes for the same FLOPs.
        repeated: Epochs and what repetition costs, where tokens are scarce.
        error: Why it has no answer.
    """

    budget: Spending
    best: Optimum | None
    others: tuple[Other, ...] = ()
    repeated: Repetition | None = None
    error: str = ""


class Answers(Struct, frozen=True, kw_only=True):
    """The answers of all laws, and the first one's as a shape with a machine and advice."""

    laws: dict[str, Answer]
    leading: str
    spent: Spent
    machine: Machine | None
    asked: tuple[str, float] | None

    @property
    def best(self) -> Optimum | None:
        """The optimum of the leading law."""
        return self.laws[self.leading].best


def ask(
    names: tuple[str, ...], budget: Spending, *, asked: tuple[str, float] | None = None,
    machine: Machine | None = None, vocab_size: int | None = None,
) -> Answers:  # fmt: skip
    """Ask several laws where compute is best spent; the first one named leads.

    Args:
        names: Laws, law files or allocations; the usual ones where empty.
        budget: FLOPs and what they pay for; ``flops`` is a placeholder for the inverse question
            and for days of a machine.
        asked: ``params``, ``tokens`` or ``loss`` and how much of it: which FLOPs give it?
        machine: Chips, and for how long.
        vocab_size: Of the shape.

    Example:
        >>> found = ask(("chinchilla-2024", "twenty-tokens"), Spending(flops=1e21))
        >>> [round(one.best.size / 1e9, 1) for one in found.laws.values()]
        [2.8, 2.9]
    """
    # an allocation knows neither serving, nor repetition, nor a loss
    plain = budget.unique is None and not budget.served and (asked is None or asked[0] != "loss")
    usual = (*(LAWS if budget.unique is None else REPEATING), *(allocations() if plain else ()))
    chosen = names or usual
    leading = chosen[0]
    budgets = dict.fromkeys(chosen, budget)
    failed: dict[str, Answer] = {}
    if asked is not None:
        budgets, failed = _inverted(chosen, budget, asked, several=len(chosen) > 1)
        if leading not in budgets:
            raise FieldError(asked[0], f"{asked[1]:g}", failed[leading].error)
    spent = spend(leading, budgets[leading], machine, vocab_size)
    if asked is None:
        budgets = dict.fromkeys(chosen, spent.budget)
    found = {name: failed.get(name) or _answer(name, budgets[name]) for name in chosen}
    return Answers(laws=found, leading=leading, spent=spent, machine=machine, asked=asked)


def _inverted(
    names: tuple[str, ...], budget: Spending, asked: tuple[str, float], *, several: bool
) -> tuple[dict[str, Spending], dict[str, Answer]]:
    """The FLOPs each law wants; with several laws one without an answer says so in its row."""
    budgets, failed = {}, {}
    given: dict[str, Any] = {
        "served": budget.served, "unique": budget.unique, "context": budget.context,
        "aspect": budget.aspect,
    }  # fmt: skip
    for name in names:
        try:
            budgets[name] = replace(budget, flops=needed(name, *asked, **given))
        except FieldError as error:
            if not several:
                raise
            failed[name] = Answer(budget=budget, best=None, error=error.rule)
    return budgets, failed


def _answer(name: str, budget: Spending) -> Answer:
    best = compute_optimal(
        name, budget.flops, served=budget.served, unique=budget.unique, context=budget.context,
        vocab_size=budget.vocab_size, aspect=budget.aspect,
    )  # fmt: skip
    return Answer(budget=budget, best=best, others=tuple(others(name, budget, best)),
                  repeated=repetition(name, budget, best))  # fmt: skip


def hyperparameters_of(found: Answers) -> dict[str, Any]:
    """Peak learning rate and batch for the optimum, each with its interval."""
    best = found.best
    if best is None:
        return {}
    size = parameters(best)
    if found.spent.shape is not None:
        size = float(found.spent.shape.features.body)
    return advice(size, best.tokens, batch_tokens(best.tokens))


def optimum_json(found: Answers) -> dict[str, Any]:
    """The answers as ``laws optimum --json`` prints them."""
    leading = found.laws[found.leading]
    rows = {name: _answer_json(one) for name, one in found.laws.items()}
    told: dict[str, Any] = {
        "schema": 1, "flops": leading.budget.flops, "leading": found.leading,
        "served": leading.budget.served, "unique": leading.budget.unique,
        "context": leading.budget.context or None,
        "vocab_size": int(leading.budget.vocab_size) or None, "laws": rows,
    }  # fmt: skip
    if found.asked is not None:
        told["asked"] = dict([found.asked])
    told["hyperparameters"] = hyperparameters_of(found)
    spent = found.spent
    if spent.shape is not None:
        shape = spent.shape
        told["shape"] = {"name": shape.name, "dims": shape.dims(), "shape": shape.shape(),
                         "params": counted_json(shape.counted),
                         "hf_config": hf_config(shape.spec)}  # fmt: skip
    if found.machine is not None and spent.time_s is not None:
        told["machine"] = {
            "gpu": found.machine.gpu, "gpus": found.machine.n_gpu,
            "days": _days(spent), "gpu_hours": spent.time_s.value_s / 3600 * found.machine.n_gpu,
            "share_of_peak": spent.share, "fits": bool(spent.plans and spent.plans.fits),
            "planned": spent.plans is not None,
        }  # fmt: skip
    return told


def _days(spent: Spent) -> dict[str, Any]:
    assert spent.time_s is not None
    t = spent.time_s.times(1 / DAY_S)
    why = ["the fastest plan for the shape" if spent.plans else "the plainest split"]
    return {"value": float(t.value_s), "low": float(t.low_s), "high": float(t.high_s),
            "unit": "days", "kind": "fitted", "why": why}  # fmt: skip


def _answer_json(one: Answer) -> dict[str, Any]:
    if one.best is None:
        return {"error": one.error}
    told: dict[str, Any] = {
        "flops": one.budget.flops, **one.best._asdict(),
        "counted": COUNTED[one.best.counts], "others": [o._asdict() for o in one.others],
    }  # fmt: skip
    if one.repeated is not None:
        told["repetition"] = one.repeated._asdict()
    return told


def optimum_lines(found: Answers) -> list[str]:
    """The answers as text."""
    return [*_head(found), *_law_table(found), *_disagreement(found), *_other_sizes(found),
            *_machine_lines(found), *_advice_lines(found)]  # fmt: skip


def _head(found: Answers) -> list[str]:
    one = found.laws[found.leading].budget
    pays = "C = 6 N D"
    if one.context:
        weights = f"6 (N + W {one.vocab_size:,.0f})" if one.vocab_size else "6 N"
        pays = f"C = ({weights} + 12 L W {one.context:,.0f}) D"
    m = found.machine
    if m is not None and m.days is not None:
        pays += f", what {m.days:.3g} days on {m.n_gpu} × {m.gpu} do, {FULL}"
    more = [f"{count_text(one.served)} served tokens paid at a third each"] if one.served else []
    more += [f"{count_text(one.unique)} unique tokens"] if one.unique else []
    if found.asked is not None:
        what, value = found.asked
        said = f"{value:g} nats a token" if what == "loss" else count_text(value)
        subject = {
            "params": "{} parameters, as each law counts them, are",
            "tokens": "{} tokens are",
        }
        said = subject.get(what, "the least loss is {}").format(said)
        return [f"FLOPs for which {said}" + (" best" if what != "loss" else "")
                + "".join(f"; {m}" for m in (pays, *more))]  # fmt: skip
    return [f"{one.flops:.3g} FLOPs" + "".join(f"; {m}" for m in (pays, *more))]


def _law_table(found: Answers) -> list[str]:
    inverse = found.asked is not None
    scarce = found.laws[found.leading].budget.unique is not None
    heads = [
        "law", *(["FLOPs"] if inverse else []), "N", "counts", "tokens D", "D/N", "loss",
        "N within 0.005 nats", *(["epochs"] if scarce else []), "outside its domain",
    ]  # fmt: skip
    rows = [heads]
    for name, one in found.laws.items():
        best = one.best
        if best is None:
            rows.append([name, *(["none"] if inverse else []), *[""] * (len(heads) - 2 - inverse),
                         one.error])  # fmt: skip
            continue
        valley = ""
        if best.low is not None and best.high is not None:
            valley = f"{count_text(best.low)} to {count_text(best.high)}"
        in_flops = best.counts == "flops"
        size = flops_text(best.size) if in_flops else count_text(best.size)
        rows.append([
            name, *([f"{one.budget.flops:.3g}"] if inverse else []), size,
            best.counts, count_text(best.tokens),
            "" if in_flops else f"{best.tokens / best.size:.0f}",
            "" if best.loss is None else f"{best.loss:.3f}", valley,
            *([_epochs(one)] if scarce else []), ", ".join(best.outside),
        ])  # fmt: skip
    return aligned(rows, left=(0, len(heads) - 1))


def _epochs(one: Answer) -> str:
    r = one.repeated
    if r is None:
        return "1 or less"
    if r.cost is None or r.worth is None:
        return f"{r.epochs:.2g}, not priced"
    return f"{r.epochs:.2g}, worth {count_text(r.worth)} fresh, +{r.cost:.3f} nats"


def _disagreement(found: Answers) -> list[str]:
    known = {name: one for name, one in found.laws.items() if one.best is not None}
    counts = [one.best.counts for one in known.values() if one.best is not None]
    lines = [f"  {key}: {text}" for key, text in COUNTED.items() if key in counts]
    own = [name for name in known if name in allocations()]
    if own and found.laws[found.leading].budget.context:
        lines.append(f"  {', '.join(own)}: C is counted as in their papers")
    if len(known) < 2:
        return lines
    if found.asked is not None:
        values = [one.budget.flops for one in known.values()]
        ends = f"FLOPs from {min(values):.2g} to {max(values):.2g}"
    else:
        values = [parameters(one.best) for one in known.values() if one.best is not None]
        ends = f"N from {count_text(min(values))} to {count_text(max(values))}"
    times = f"the laws disagree ×{max(values) / min(values):.2g}: {ends}"
    worst = _worst_choice(found, values) if found.asked is None else None
    if worst is not None:
        times += f"; by {found.leading} the worst of these sizes costs {worst:.3f} nats"
    return [*lines, times]


def parameters(best: Optimum) -> float:
    """The parameters of an optimum, 6 FLOPs a token each where its size is in FLOPs."""
    return best.size / 6 if best.counts == "flops" else best.size


def _worst_choice(found: Answers, sizes: list[float]) -> float | None:
    """What the size that another law wants costs by the leading one, read as its own N."""
    leading = found.laws[found.leading]
    if leading.best is None or leading.best.loss is None:
        return None
    factors = tuple(size / leading.best.size for size in sizes)
    return max(o.penalty for o in others(found.leading, leading.budget, leading.best, factors))


def _other_sizes(found: Answers) -> list[str]:
    one = found.laws[found.leading]
    if one.best is None or not one.others:
        return []
    rows = [["N", "", "tokens D", "D/N", "loss over the least"]]
    for o in one.others:
        what = "smaller, over-trained" if o.factor < 1 else "larger, under-trained"
        rows.append([
            f"{count_text(o.size)}", f"×{o.factor:g} {what}", count_text(o.tokens),
            f"{o.tokens / o.size:.3g}", f"{o.penalty:+.3f} [{o.low:.3f}, {o.high:.3f}]",
        ])  # fmt: skip
    if len(one.others) < len(FACTORS):
        more = next(f for f in FACTORS if f not in {o.factor for o in one.others})
        rows.append([f"{count_text(one.best.size * more)}", f"×{more:g} and larger", "none", "",
                     "the budget does not pay for serving it"])  # fmt: skip
    title = f"Other sizes for the same FLOPs, by {found.leading} (nats a token, 90 % interval):"
    return ["", title, *("  " + line for line in aligned(rows, left=(1,)))]


def _machine_lines(found: Answers) -> list[str]:
    spent = found.spent
    if spent.shape is None:
        rate = (
            "; the FLOPs are those of a 7B's rate" if found.machine and found.machine.days else ""
        )
        return [
            "",
            f"No shape of the optimum by {found.leading} is feasible in design's bounds{rate}.",
        ]
    s = spent.shape
    d = s.dims()
    tied = "tied" if s.spec.tied else "untied"
    lines = ["", (
        f"Shape by {found.leading}: {d['n_layer']} layers × {d['d_model']}, {d['n_head']} heads of "
        f"{d['d_head']}, {d['n_kv_head']} KV heads, FFN {d['d_ff']:,}, vocabulary "
        f"{d['vocab_size']:,} {tied}"
    ), (
        f"  {count_text(int(s.counted.total))} parameters in all, body "
        f"{count_text(float(s.features.body))}, W/L {float(s.features.aspect):.0f}"
    )]  # fmt: skip
    m = found.machine
    if m is None or spent.time_s is None:
        return lines
    t = spent.time_s.times(1 / DAY_S)
    how = f"by the plainest split: {spent.note}" if spent.plans is None else _split(spent)
    hours = float(spent.time_s.value_s) / 3600 * m.n_gpu
    lines.append(
        f"  {count_text(found.best.tokens) if found.best else ''} tokens on {m.n_gpu} × {m.gpu}: "
        f"{t.value_s:.3g} days [{t.low_s:.3g}, {t.high_s:.3g}], {count_text(round(hours))} "
        f"GPU-hours, {spent.share:.0%} of peak by C; {how}"
    )
    return lines


def _split(spent: Spent) -> str:
    assert spent.plans is not None
    if spent.plans.choice is None:
        return "it does not fit; the time is that of the plainest split"
    p = spent.plans.choice.plan
    fits = "" if spent.plans.fits else f", {spent.plans.verdict} its memory is at the low end"
    return f"TP {p.tp}, PP {p.pp}, DP {p.dp}, ZeRO {p.zero}{fits}"


def _advice_lines(found: Answers) -> list[str]:
    told = hyperparameters_of(found)
    if not told:
        return []
    rate, batch = told["learning_rate"], told["batch_tokens"]
    return [(
        f"  peak learning rate {rate['value']:.2g} [{rate['low']:.2g}, {rate['high']:.2g}], batch "
        f"{count_text(batch['value'])} tokens [{count_text(batch['low'])}, "
        f"{count_text(batch['high'])}]"
        + ("; outside the domain of both laws" if told["extrapolated"] else "")
    )]  # fmt: skip


def aligned(rows: list[list[str]], left: tuple[int, ...] = ()) -> list[str]:
    """Rows of text in columns, numbers to the right.

    Example:
        >>> aligned([["a", "b"], ["cc", "1"]], left=(0,))
        ['a   b', 'cc  1']
    """
    wide = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(n) if i in left else cell.rjust(n)
                  for i, (cell, n) in enumerate(zip(row, wide, strict=True))).rstrip()
        for row in rows
    ]  # fmt: skip
