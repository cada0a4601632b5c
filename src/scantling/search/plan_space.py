"""Every way to split a step over the chips: which are valid, and why the others are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from scantling.costs.parallel import problems
from scantling.search.plan_question import RECOMPUTE, Question
from scantling.spec import divisors, has
from scantling.spec.plan import Plan

ZERO = (0, 1, 2, 3)


class Rejected(Struct, frozen=True):
    """Why some plans cannot run: the degrees it is about, and how many plans it removes."""

    plan: dict[str, Any]
    reason: str
    count: int


class Tally:
    """Counts of what was considered and removed, by reason."""

    def __init__(self) -> None:
        self.considered = 0
        self.reasons: Counter[tuple[str, str]] = Counter()
        self.examples: dict[tuple[str, str], dict[str, Any]] = {}

    def reject(self, field: str, reason: str, plan: dict[str, Any], count: int) -> None:
        """Count plans that one reason removes; the first of them is its example."""
        self.reasons[field, reason] += count
        self.examples.setdefault((field, reason), plan)

    def rejected(self) -> tuple[Rejected, ...]:
        """Every reason, the most frequent first."""
        return tuple(
            Rejected(self.examples[key], key[1], count) for key, count in self.reasons.most_common()
        )

    @property
    def invalid(self) -> int:
        """Plans that cannot run."""
        return sum(self.reasons.values())


class Split(Struct, frozen=True):
    """What a plan shares with others: everything but ZeRO, recompute and micro-batch."""

    tp: int
    cp: int
    pp: int
    dp: int
    ep: int
    expert_tp: int | None
    virtual: int

    def degrees(self) -> dict[str, Any]:
        """Its degrees, those of one left out."""
        found = {name: getattr(self, name) for name in ("tp", "pp", "dp", "cp", "ep", "virtual")}
        return {k: v for k, v in found.items() if v > 1}


def splits(q: Question, tally: Tally) -> Iterator[tuple[Split, tuple[int, ...]]]:
    """Every valid split of the chips, with the micro-batches it can take.

    Degrees are all divisors: tp × cp × pp × dp is the number of chips, micro-batch × micro-batches
    × dp the batch. What does not divide, and what the model does not allow
    (``costs.parallel.problems``), is tallied with its reason.
    """
    for tp, cp, pp, dp in _degrees(q):
        leaves = len(recomputes(q)) * len(zeros(q, dp * cp))
        base = {k: v for k, v in (("tp", tp), ("pp", pp), ("dp", dp), ("cp", cp)) if v > 1}
        if q.batch % dp:
            tally.considered += leaves
            tally.reject(
                "dp", f"a batch of {q.batch} sequences cannot be split over DP {dp}", base, leaves
            )
            continue
        batches = micro_batches(q, q.batch // dp)
        if not batches:
            fixed, share = q.fixed["micro_batch"], q.batch // dp
            tally.considered += leaves
            tally.reject("micro_batch", f"{share} sequences of a replica cannot be cut into "
                         f"micro-batches of {fixed}", base, leaves)  # fmt: skip
            continue
        leaves *= len(batches)
        plain = Split(tp, cp, pp, dp, 1, None, 1)
        found = problem(q, plain)
        if found is not None:
            tally.considered += leaves
            tally.reject(*found, base, leaves)
            continue
        for split in _variants(q, plain):
            tally.considered += leaves
            found = None if split is plain else problem(q, split)
            if found is not None:
                tally.reject(*found, split.degrees(), leaves)
                continue
            usable = tuple(b for b in batches if interleaves(split, q.batch // dp // b))
            if len(usable) < len(batches):
                lost = leaves // len(batches) * (len(batches) - len(usable))
                reason = f"micro-batches are no multiple of PP {pp}, which interleaving needs"
                tally.reject("virtual", reason, split.degrees(), lost)
            if usable:
                yield split, usable


def interleaves(split: Split, n_micro_batch: int) -> bool:
    """Whether the schedule can be interleaved: its micro-batches come in groups of PP."""
    return split.virtual == 1 or n_micro_batch % split.pp == 0


def plan_of(q: Question, split: Split, zero: int, recompute: str, micro_batch: int) -> Plan:
    """A full plan; the micro-batches follow from the batch."""
    return Plan(
        tp=split.tp, pp=split.pp, dp=split.dp, cp=split.cp, ep=split.ep,
        expert_tp=split.expert_tp, virtual=split.virtual, zero=zero,  # type: ignore[arg-type]
        shard=q.fixed.get("shard"), sequence_parallel=split.tp > 1, micro_batch=micro_batch,
        n_micro_batch=q.batch // split.dp // micro_batch, recompute=recompute,  # type: ignore[arg-type]
    )  # fmt: skip


def zeros(q: Question, ranks: int) -> tuple[int, ...]:
    """The stages of ZeRO worth telling apart: with one rank there is nothing to share."""
    if "zero" in q.fixed:
        return (int(q.fixed["zero"]),)
    return ZERO if ranks > 1 else (0,)


def recomputes(q: Question) -> tuple[str, ...]:
    """What may be computed again, whole layers first.

    Fused attention never keeps its scores, so computing them again saves nothing: selective
    recompute is then no recompute with more work, and left out unless it is asked for.
    """
    if "recompute" in q.fixed:
        return (q.fixed["recompute"],)
    fused = q.recipe.attention != "unfused"
    return tuple(m for m in reversed(RECOMPUTE) if not (fused and m == "selective"))


def micro_batches(q: Question, sequences: int) -> tuple[int, ...]:
    """Sequences of one pass: all divisors of a replica's share of the batch."""
    found = divisors(sequences)
    if "micro_batch" in q.fixed:
        return tuple(b for b in found if b == q.fixed["micro_batch"])
    return tuple(found)


def _degrees(q: Question) -> Iterator[tuple[int, int, int, int]]:
    """(tp, cp, pp, dp) whose product is the number of chips."""
    n = q.cluster.n_gpu
    for tp in _axis(q, "tp", n):
        for cp in _axis(q, "cp", n // tp):
            for pp in _axis(q, "pp", n // tp // cp):
                dp = n // tp // cp // pp
                if q.fixed.get("dp", dp) == dp:
                    yield tp, cp, pp, dp


def _axis(q: Question, name: str, n: int) -> list[int]:
    return [d for d in divisors(n) if q.fixed.get(name, d) == d]


def _variants(q: Question, plain: Split) -> Iterator[Split]:
    """One split with every expert-parallel degree and every interleaving."""
    experts = has(q.spec, "n_expert")
    groups: list[tuple[int, int | None]] = [(1, None)]
    if experts:
        n_expert = int(q.spec.read("n_expert"))
        ranks = plain.dp * plain.cp
        groups = [(ep, None) for ep in divisors(n_expert) if ranks % ep == 0]
        if plain.tp > 1:  # experts kept whole: the tensor-parallel ranks hold experts too
            groups += [(ep, 1) for ep in divisors(n_expert) if ranks * plain.tp % ep == 0]
    groups = [(ep, etp) for ep, etp in groups if q.fixed.get("ep", ep) == ep
              and q.fixed.get("expert_tp", etp) == etp]  # fmt: skip
    for ep, expert_tp in groups:
        for virtual in _chunks(q, plain.pp):
            one = Split(plain.tp, plain.cp, plain.pp, plain.dp, ep, expert_tp, virtual)
            yield plain if one == plain else one


def _chunks(q: Question, pp: int) -> list[int]:
    """Chunks a stage can hold, all of equally many layers; two tables may stand for a layer."""
    if "virtual" in q.fixed:
        return [int(q.fixed["virtual"])]
    layers = int(q.spec.n_layer)
    places = [(layers + tables) // pp for tables in range(3) if (layers + tables) % pp == 0]
    return sorted({1, *(n for each in places for n in divisors(each))}) if pp > 1 else [1]


def problem(q: Question, split: Split, zero: int | None = None) -> tuple[str, str] | None:
    """The first reason why a split cannot run, at a micro-batch of one."""
    mildest = zeros(q, split.dp * split.cp)[:2][-1]
    plan = plan_of(q, split, mildest if zero is None else zero, recomputes(q)[-1], 1)
    for found in problems(q.spec, plan, q.cluster, q.context):
        return found.field, found.reason
    return None
