"""The search of ``serve``: every split and quantisation on every chip asked about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from scantling.costs.deployment import cuts, deployment, nearest_shape, valid_tp
from scantling.costs.estimate import Estimate
from scantling.costs.money import TokenBill, token_bill
from scantling.costs.parallel import Degrees, valid_degrees
from scantling.costs.quantize import GROUPS, Grouped, Scheme
from scantling.costs.quantize import scheme as named
from scantling.costs.serve import Deployment, Times
from scantling.costs.serving_scheme import Numbers, all_numbers
from scantling.costs.serving_speed import Speed, first_token_under_load, speed
from scantling.errors import FieldError
from scantling.hardware import Chip
from scantling.search.serving_question import COUNTS, Question, Slo, question
from scantling.search.serving_space import (
    Held,
    Invalid,
    Layout,
    Verdict,
    held,
    layouts,
    longest,
    most_sequences,
)

Progress = Callable[[int, int], None]
ORDER: dict[Verdict, int] = {"fits": 0, "fits only if": 1, "does not fit": 2}
MOST_RUNNING = 1024
"""Sequences that one replica runs at once at most: the largest default of three engines."""
DEGREE = 64
"""The largest degree that is listed as valid."""
BUSIEST = 0.99
LOADS = 24
"""Points of a curve."""
NAMED = (1, 4, 16, 64, 256, 1024)
"""Loads that a picture names."""
FEW = 3
"""Splits of a chip whose load within limits is asked for, where there are many chips."""
DOZEN = 12
EQUAL = 0.08
"""Rates that differ by less are equal: the mean error of series that were left out of the fit."""


class Point(Struct, frozen=True, kw_only=True):
    """A deployment at a number of requests in flight."""

    concurrency: int
    running: int
    """Of them at once; the rest waits."""
    speed: Speed
    """Of one replica."""
    tokens_per_s: Times
    """Output tokens of all chips."""
    prefill_share: float
    """Utilisation of the queue for prefills."""
    ttft_queued_s: Times
    """To the first token where requests arrive at random at this rate: a wide range."""
    input_bill: TokenBill
    output_bill: TokenBill


class Capacity(Struct, frozen=True):
    """What a deployment takes within limits."""

    slo: Slo
    expected: Point | None
    """The most requests in flight at which the values keep the limits; None is not even one."""
    surely: Point | None
    """The same where the upper ends keep them."""


class Trial(Struct, frozen=True, kw_only=True):
    """One way to serve on one kind of chip."""

    chip: Chip
    layout: Layout
    scheme: Numbers
    held: Held
    points: tuple[Point, ...] = ()

    @property
    def n_gpu(self) -> int:
        """Chips."""
        return self.layout.n_gpu

    @property
    def rate(self) -> float:
        """Output tokens a second at the largest load; 0 where it cannot run."""
        return float(self.points[-1].tokens_per_s.value) if self.points else 0.0


class Row(Struct, frozen=True, kw_only=True):
    """The best way for one chip and one quantisation, with its limits."""

    trial: Trial
    max_context: int
    """Of every sequence of the batch, by memory alone."""
    max_batch: int
    """At the context."""
    saturation: Point | None
    capacity: Capacity | None


class Skipped(Struct, frozen=True):
    """A chip and a quantisation that do not go together, or that no layout suits."""

    chip: str
    scheme: str
    reason: str


class Served(Struct, frozen=True, kw_only=True):
    """The answer of ``serve``.

    Args:
        question: What was asked.
        choice: What is told in full: of the schemes in the order given the first that fits, on the
            chips of least memory; where none fits, what comes nearest. None where nothing is valid.
        rows: The best of every chip and quantisation, the choice first among equals.
        alternatives: Other layouts of the choice's chips and quantisation.
        skipped: What was not tried, and why.
        remedies: What would fit instead, where the choice does not.
        valid: Degrees the model allows.
        invalid: Degrees it does not, as far as they were tried.
        warnings: What of the choice costs memory or speed: copies, padding, kernels.
    """

    question: Question
    choice: Row | None
    rows: tuple[Row, ...]
    alternatives: tuple[Trial, ...]
    skipped: tuple[Skipped, ...]
    remedies: tuple[str, ...]
    valid: Degrees
    invalid: tuple[Invalid, ...]
    warnings: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Whether it fits; only the upper end of the memory's interval can say yes."""
        return "does not fit" if self.choice is None else self.choice.trial.held.verdict

    @property
    def fits(self) -> bool:
        """Whether it fits for certain."""
        return self.verdict == "fits"


def serve(model: Any, *, progress: Progress | None = None, **given: Any) -> Served:
    """Serve a model: does it fit, how long a context, how fast, what does it cost.

    Args:
        model: A catalogue name, a path, a parsed config or a spec.
        progress: Called with the chips done and in all.
        **given: As in ``search.serving_question.question``: gpu, gpus, context, batch, quant, …

    Raises:
        ScantlingError: If the question breaks a rule.

    Example:
        >>> found = serve("llama-3.1-8b", gpu="l4", context="32k", batch=1, quant="awq-int4")
        >>> found.fits, serve("llama-3.1-70b", gpu="l4", quant="awq-int4").fits
        (True, False)
    """
    return answer(question(model, **given), progress)


def answer(q: Question, progress: Progress | None = None) -> Served:
    """Everything asked, for every chip and quantisation."""
    skipped: list[Skipped] = []
    invalid: list[Invalid] = []
    rows: list[Row] = []
    others: dict[tuple[str, str], list[Trial]] = {}
    for i, chip in enumerate(q.chips):
        for scheme in q.schemes:
            try:
                scheme.on(chip)
            except FieldError as error:
                if q.given and len(q.chips) * len(q.schemes) == 1:
                    raise
                skipped.append(Skipped(chip.key, scheme.name, str(error)))
                continue
            trials = _trials(q, chip, scheme, invalid)
            if not trials:
                skipped.append(Skipped(chip.key, scheme.name, "no split of so many chips is valid"))
                continue
            row, others[chip.key, scheme.name] = _best_row(q, trials)
            rows.append(row)
        if progress is not None:
            progress(i + 1, len(q.chips))
    if not rows and skipped and not invalid:
        first = skipped[0]
        raise FieldError("quant", first.scheme, first.reason)
    rows.sort(key=lambda r: _preference(q, r))
    choice = rows[0] if rows else None
    more: tuple[Trial, ...] = ()
    remedies: tuple[str, ...] = ()
    if choice is None and any(n % q.fixed.get("tp", n + 1) == 0 for n in q.gpus):
        remedies = tuple(_shapes(q))
    if choice is not None:
        t = choice.trial
        more = tuple(o for o in others[t.chip.key, t.scheme.name] if o.layout != t.layout)
        if t.held.verdict != "fits":
            remedies = tuple(_remedies(q, choice))
    return Served(
        question=q, choice=choice, rows=tuple(rows), alternatives=more, skipped=tuple(skipped),
        remedies=remedies, valid=_valid(q, q.schemes[0] if choice is None else choice.trial.scheme),
        invalid=tuple(dict.fromkeys(invalid)),
        warnings=() if choice is None else _warnings(q, choice.trial),
    )  # fmt: skip


def _valid(q: Question, scheme: Numbers) -> Degrees:
    """Degrees that the model allows, TP in a quantisation and where experts stay whole."""
    found = valid_degrees(q.spec, DEGREE)
    whole = 1 if found.ep != [1] else None
    return replace(found, tp=valid_tp(q.spec, scheme.scheme, DEGREE, expert_tp=whole))


def _warnings(q: Question, t: Trial) -> tuple[str, ...]:
    """What ``costs.deployment`` says of the choice."""
    plan = t.layout.split.plan()
    return deployment(q.spec, t.chip, plan, t.scheme.scheme, q.context).warnings


def _preference(q: Question, r: Row) -> tuple[Any, ...]:
    """What fits and keeps the limits first; then the first scheme given, the least memory.

    Of what does not fit, that which lacks least.
    """
    t = r.trial
    lacks = 0.0
    if t.held.verdict == "does not fit":
        lacks = float(t.held.memory.low) / t.chip.usable_bytes
    keeps = q.slo is None or _load_within(r.capacity) > 0
    order = [s.name for s in q.schemes].index(t.scheme.name)
    size = t.chip.usable_bytes * t.n_gpu
    return ORDER[t.held.verdict], lacks, not keeps, order, size, -t.rate


def _trials(q: Question, chip: Chip, scheme: Numbers, invalid: list[Invalid]) -> list[Trial]:
    """Ways to use the fewest of the numbers of chips asked for that suffices, the best first.

    Times are made of those that fit best alone: the others are no answer. Where no chip was named,
    only a dozen of fewest stages are timed on each.
    """
    best: list[Trial] = []
    for n in q.gpus:
        if n > q.gpus_per_node and n % q.gpus_per_node:
            continue
        found, wrong = layouts(q, n, scheme, linked=linked(chip))
        invalid += wrong
        trials = [Trial(chip=chip, layout=one, scheme=scheme, held=held(q, chip, one, scheme))
                  for one in found]  # fmt: skip
        rank = min((ORDER[t.held.verdict] for t in trials), default=3)
        if trials and (not best or rank < ORDER[best[0].held.verdict]):
            best = trials
        if rank == 0:
            break
    rank = min((ORDER[t.held.verdict] for t in best), default=3)
    timed = _timed(q, best, rank)
    ordered = sorted(
        timed, key=lambda t: (ORDER[t.held.verdict], -t.rate, float(t.held.memory.high))
    )
    return _plainest_first(ordered)


def linked(chip: Chip) -> bool:
    """Whether a way between chips of this kind is known."""
    return chip.link_bytes_per_s is not None


def _plainest_first(trials: list[Trial]) -> list[Trial]:
    """Of the fastest, whose rates no model tells apart, the one of fewest stages goes first.

    What stages send is not timed. Of as many stages that which answers one request sooner.
    """
    if not trials or not trials[0].points:
        return trials
    same = [t for t in trials if t.rate >= trials[0].rate * (1 - EQUAL)
            and t.held.verdict == trials[0].held.verdict]  # fmt: skip
    first = min(same, key=lambda t: (t.layout.split.pp, float(t.points[0].speed.tpot_s.value)))
    return [first, *(t for t in trials if t is not first)]


def _timed(q: Question, trials: list[Trial], rank: int) -> list[Trial]:
    """Trials with their times, if they fit as well as the best; EP alone changes no time."""
    good = [t for t in trials if ORDER[t.held.verdict] == rank < ORDER["does not fit"]]
    good.sort(key=lambda t: t.layout.split.pp)
    known: dict[tuple[int, int, int], tuple[Point, ...]] = {}
    found = [t for t in trials if t not in good]
    for t in good:
        s = t.layout.split
        degrees = s.tp, s.pp, s.dp
        if degrees not in known and (q.given or len(known) < DOZEN):
            points = (point(q, t.chip, t.layout, t.scheme, n) for n in q.loads)
            known[degrees] = tuple(p for p in points if p is not None)
        found.append(replace(t, points=known.get(degrees, ())))
    return found


def point(
    q: Question, chip: Chip, layout: Layout, scheme: Numbers, concurrency: int,
    running: int | None = None,
) -> Point | None:  # fmt: skip
    """A layout at a load; None where the chip has no rate that times could be made of."""
    at_once = concurrency if running is None else min(concurrency, running)
    split = layout.split
    d = Deployment(
        tp=split.tp, dp=split.dp, pp=split.pp, weights=scheme.dense, experts=scheme.dtype,
        cache=q.cache, head="bf16" if "bf16" in chip.dtypes else "fp16",
    )  # fmt: skip
    try:
        one = speed(q.spec, chip, d, q.prompt, q.answer, max(at_once / layout.replicas, 1.0),
                    q.factors, scheme.read_share(q.spec, d))  # fmt: skip
    except FieldError:
        return None
    filled = min(1.0, at_once / (float(one.sequences) * layout.groups))
    r = one.tokens_per_s
    by = layout.replicas * filled
    rate = Times(r.low * by, r.value * by, r.high * by)
    prompts_s = float(r.value) * filled / q.answer / split.dp  # each group has its own queue
    share = min(prompts_s * float(one.prompt_s), BUSIEST)
    input_bill, output_bill = (
        token_bill(Estimate(each, each * float(r.value / r.high), each * float(r.value / r.low)),
                   split.n_gpu / filled, chip, q.utilisation, q.price)
        for each in (float(one.input_s), float(one.output_s))
    )  # fmt: skip
    return Point(
        concurrency=concurrency, running=at_once, speed=one, tokens_per_s=rate,
        prefill_share=share,
        ttft_queued_s=first_token_under_load(one.ttft_s, float(one.prompt_s), share),
        input_bill=input_bill, output_bill=output_bill,
    )  # fmt: skip


def _best_row(q: Question, trials: list[Trial]) -> tuple[Row, list[Trial]]:
    """The first split, or where limits are given that which takes most load within them.

    Of many chips only the fastest few splits are asked for their load. Beside the row all splits,
    in that order.
    """
    rank = trials[0].held.verdict
    if q.slo is None or not trials[0].points:
        return _row(q, trials[0]), trials
    asked = [t for t in trials if t.held.verdict == rank and t.points]
    rows = [_row(q, t) for t in asked[: len(asked) if q.given else FEW]]
    rows.sort(key=lambda r: -_load_within(r.capacity))
    first = [r.trial for r in rows]
    return rows[0], [*first, *(t for t in trials if t not in first)]


def _load_within(c: Capacity | None) -> float:
    return 0.0 if c is None or c.expected is None else float(c.expected.tokens_per_s.value)


def _row(q: Question, t: Trial) -> Row:
    """A trial with its limits: memory alone decides the longest context and the largest batch."""
    if t.held.verdict == "does not fit":
        small = held(q, t.chip, t.layout, t.scheme, t.layout.groups, 16).verdict == "fits"
        if not small:
            return Row(trial=t, max_context=0, max_batch=0, saturation=None, capacity=None)
    most = most_sequences(q, t.chip, t.layout, t.scheme)
    whole = min(q.context, q.prompt + q.answer)
    each = q.held_context(q.batch) if q.mean_context is not None else whole
    running = min(most_sequences(q, t.chip, t.layout, t.scheme, each),
                  MOST_RUNNING * t.layout.groups)  # fmt: skip
    full = point(q, t.chip, t.layout, t.scheme, running) if running else None
    limits = None if q.slo is None else _capacity(q, t, running)
    return Row(trial=t, max_context=longest(q, t.chip, t.layout, t.scheme), max_batch=most,
               saturation=full, capacity=limits)  # fmt: skip


def curve(q: Question, t: Trial, most: int) -> list[Point]:
    """A trial at loads from one request to as many as run, in equal ratios and powers of 4."""
    steps = {round(most ** (i / (LOADS - 1))) for i in range(LOADS)} if most else set()
    steps |= {n for n in NAMED if n <= most}
    found = [point(q, t.chip, t.layout, t.scheme, n) for n in sorted(steps)]
    return [p for p in found if p is not None]


def _capacity(q: Question, t: Trial, most: int) -> Capacity:
    assert q.slo is not None
    slo = q.slo
    found: list[Point | None] = []
    for end in ("value", "high"):

        def keeps(p: Point | None, end: str = end) -> bool:
            return p is not None and _within(p, slo, end)

        low, high = 0, most + 1
        while high - low > 1:
            middle = (low + high) // 2
            one = point(q, t.chip, t.layout, t.scheme, middle)
            low, high = (middle, high) if keeps(one) else (low, middle)
        found.append(point(q, t.chip, t.layout, t.scheme, low) if low else None)
    return Capacity(slo, *found)


def _within(p: Point, slo: Slo, end: str) -> bool:
    """Whether a load keeps the limits: at the value, or at the upper ends of all intervals."""
    token, first = getattr(p.speed.tpot_s, end), getattr(p.ttft_queued_s, end)
    return (slo.tpot_s is None or float(token) <= slo.tpot_s) and (
        slo.ttft_s is None or float(first) <= slo.ttft_s
    )


def _shapes(q: Question) -> Iterator[str]:
    """The nearest change of shape that would make the degree asked for valid, for each scheme."""
    for scheme in q.schemes:
        near = nearest_shape(q.spec, q.fixed["tp"], scheme.scheme)
        if near:
            told = ", ".join(f"{field} {n}" for field, n in near.items())
            yield f"TP {q.fixed['tp']} in {scheme.name} would be valid with {told}"
        finer = next((s for s in _finer(scheme) if q.fixed["tp"] in valid_tp(
            q.spec, s, q.fixed["tp"])), None)  # fmt: skip
        if finer is not None:
            yield f"TP {q.fixed['tp']} is valid as it is with --quant {finer.name}"


def _finer(scheme: Numbers) -> list[Scheme]:
    """The same scheme with smaller groups, where its groups are a choice."""
    p = scheme.scheme.packing
    if not isinstance(p, Grouped) or scheme.name.partition("-g")[0] not in GROUPS:
        return []
    return [named(f"{scheme.name.partition('-g')[0]}-g{n}") for n in (64, 32) if n < p.group]


def _remedies(q: Question, r: Row) -> list[str]:
    """What would fit for certain: a shorter context, fewer at once, more chips, fewer bits."""
    t, told = r.trial, []
    kind = replace(q, beside=replace(q.beside, by_kind=True))
    if not q.beside.by_kind and held(kind, t.chip, t.layout, t.scheme).verdict == "fits":
        most = min(longest(kind, t.chip, t.layout, t.scheme), max(q.trained or 2**40, q.context))
        told.append(f"--hybrid, with context up to {most:,} and batch up to "
                    f"{most_sequences(kind, t.chip, t.layout, t.scheme):,}")  # fmt: skip
    if r.max_context:
        told.append(f"--context {r.max_context} at batch {q.batch}")
    if r.max_batch and r.max_batch < q.batch:
        told.append(f"--batch {r.max_batch} at context {q.context:,}")
    for n in (c for c in COUNTS if c > t.n_gpu):
        found, _ = layouts(q, n, t.scheme, linked=linked(t.chip))
        if any(held(q, t.chip, one, t.scheme).verdict == "fits" for one in found):
            told.append(f"--gpus {n}")
            break
    widest = _widest(q, t)
    if widest is not None:
        told.append(f"--quant {widest.name}")
    return told or [f"nothing that was tried, up to {max(COUNTS[-1], t.n_gpu)} of these chips"]


def _widest(q: Question, t: Trial) -> Numbers | None:
    """The scheme of most bits that surely fits: those of servers where the chip has any.

    Schemes of llama.cpp are asked where there is no other.
    """
    sizes = {s: float(s.rank_bytes(q.spec, t.layout.split.plan())) for s in all_numbers()
             if s.scheme.quantised and s.runs_on(t.chip)}  # fmt: skip
    ordered = sorted(sizes, key=lambda s: (s.mixed, -sizes[s]))
    own = float(t.held.memory.weights)
    return next((s for s in ordered if sizes[s] < own and not _wrong(q, t, s)
                 and held(q, t.chip, t.layout, s).verdict == "fits"), None)  # fmt: skip


def _wrong(q: Question, t: Trial, scheme: Numbers) -> bool:
    return not all(c.ok for c in cuts(q.spec, scheme.scheme, t.layout.split.plan()))
