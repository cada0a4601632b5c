"""What the time of a machine is best spent on: the optimum of a law as a shape with a plan."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from scantling.costs.estimate import DAY_S, Estimate
from scantling.errors import FieldError
from scantling.hardware import chip
from scantling.laws import DEFAULT, LAWS
from scantling.laws.optimum import REFERENCE_ASPECT, Optimum, Spending, compute_optimal
from scantling.laws.vocabulary import embedding_parameters
from scantling.search import Candidate, budget, chosen
from scantling.search.budget import LARGEST_MODEL
from scantling.search.plan_question import question
from scantling.search.plans import Plans, answer
from scantling.search.size import flops_of

ROUNDS = 4
"""Times the rate of the shape found is put back into the budget; two or three are enough."""
CLOSE = 0.01
"""A budget that moves by less has settled."""


class Machine(Struct, frozen=True, kw_only=True):
    """Chips and the context they train with; ``days`` is ``None`` where FLOPs are given.

    Args:
        gpu: The chip.
        n_gpu: How many.
        days: For how long.
        context: Tokens of a sequence.
        dtype: Dtype of the products.
    """

    gpu: str = "h100-sxm"
    n_gpu: int = 8
    days: float | None = None
    context: int = 8192
    dtype: str = "bf16"


class Spent(Struct, frozen=True, kw_only=True):
    """An optimum with a shape of its size, and how a machine trains that.

    Args:
        budget: What is spent: given, or what the machine's time came to.
        best: The optimum.
        shape: The shape that the search chooses at its size; None where it finds none.
        plans: The split of it over the chips; None where no chips were named, or none fits.
        time_s: Seconds that training takes; by ``plans``, else by the plainest split.
        share: FLOPs of the budget over what the chips could do in that time.
    """

    budget: Spending
    best: Optimum
    shape: Candidate | None
    plans: Plans | None = None
    time_s: Estimate | None = None
    share: float | None = None
    note: str = ""
    """Why there is no plan, where chips were named."""


def spend(
    name: str, given: Spending, machine: Machine | None = None, vocab_size: int | None = None
) -> Spent:
    """The optimum of a law, a shape for it, and the time it takes.

    Days on chips become FLOPs by the rate at which the optimum itself trains there: a first guess
    from the MFU of a 7B is replaced by the rate of the plan for the shape that it leads to, until
    the budget no longer moves. The FLOPs counted are all that the chips do, as ``design`` counts
    those of days: attention in full and the head (``Spending.cost``), so

        C = cost of a token · tokens a second · seconds

    Args:
        name: A law of the loss, a law file, or an allocation.
        given: The budget; its ``flops`` is a placeholder where the machine has days.
        machine: The chips.
        vocab_size: Of the shape; 128,256, or 50,304 below a billion parameters.

    Raises:
        FieldError: If serving is to be paid from days, or the budget buys nothing.

    Example:
        >>> found = spend("aspect", Spending(flops=1e21))
        >>> 0.9 < found.best.size / found.shape.features.body < 1.1
        True
    """
    if machine is not None:
        chip(machine.gpu).rate(machine.dtype)  # an unknown chip or dtype is an error here
    else:
        best = _optimum(name, given)
        return Spent(budget=given, best=best, shape=shape_of(name, best, vocab_size))
    if machine.days is None:
        return _timed(name, given, machine, vocab_size)
    if given.served:
        raise FieldError("served", f"{given.served:g}", "is not paid for by days of training",
                         "serving runs at another rate: give FLOPs")  # fmt: skip
    whole = machine.days * DAY_S
    work = flops_of(machine.days, chip(machine.gpu), machine.n_gpu, machine.dtype)
    vocab_size = vocab_size or (50_304 if work < 10**20 else 128_256)
    known = replace(given, flops=float(work), context=given.context or machine.context,
                    vocab_size=vocab_size)  # fmt: skip
    for _ in range(ROUNDS):
        found = _timed(name, known, machine, vocab_size)
        if found.time_s is None:
            break
        moved = whole / float(found.time_s.value_s)
        known = replace(known, flops=known.flops * moved)
        if abs(moved - 1) < CLOSE:
            break
    return found


def _optimum(name: str, given: Spending) -> Optimum:
    return compute_optimal(
        name, given.flops, served=given.served, unique=given.unique, context=given.context,
        vocab_size=given.vocab_size, aspect=given.aspect,
    )  # fmt: skip


def _timed(name: str, given: Spending, machine: Machine, vocab_size: int | None) -> Spent:
    best = _optimum(name, given)
    shape = shape_of(name, best, vocab_size, machine)
    if shape is None:
        return Spent(budget=given, best=best, shape=None)
    plans, note = None, ""
    try:
        plans = answer(question(
            shape.spec, gpu=machine.gpu, gpus=machine.n_gpu, tokens=int(best.tokens),
            context=machine.context, dtype=machine.dtype,
        ))  # fmt: skip
    except FieldError as error:  # such as a batch smaller than the chips
        note = str(error)
    time_s = shape.train
    if plans is not None and plans.bill is not None:
        time_s = plans.bill.ideal_s
    rate = chip(machine.gpu).rate(machine.dtype) * machine.n_gpu
    trained = float(given.of(best.counts).cost(best.size)) * best.tokens
    return Spent(budget=given, best=best, shape=shape, plans=plans, time_s=time_s,
                 share=trained / (float(time_s.value_s) * rate), note=note)  # fmt: skip


def total_of(
    best: Optimum, vocab_size: int | None, aspect: float = REFERENCE_ASPECT
) -> tuple[int, int]:
    """All parameters of an optimum whose N may be the body, and the vocabulary meant.

    The table has V W parameters, twice where it is not tied, with W of ``laws.optimum.shaped``.

    Example:
        >>> best = compute_optimal("aspect", 1e21)
        >>> total, vocab_size = total_of(best, None)
        >>> vocab_size, 1.1 < total / best.size < 1.3
        (128256, True)
    """
    size = best.size / 6 if best.counts == "flops" else best.size
    vocab = vocab_size or (50_304 if size < 1e9 else 128_256)
    if best.counts == "total":
        return int(size), vocab
    width = aspect * (size / (12 * aspect**2)) ** (1 / 3)
    return int(size) + embedding_parameters(size, width, vocab), vocab


def shape_of(
    name: str, best: Optimum, vocab_size: int | None, machine: Machine | None = None
) -> Candidate | None:
    """The shape that ``design`` chooses for an optimum; ``None`` where none is feasible."""
    total, vocab = total_of(best, vocab_size)
    if not 1 <= total <= LARGEST_MODEL:
        return None
    law_name = name if name in LAWS or name.endswith(".toml") else DEFAULT
    more: dict[str, Any] = {}
    if machine is not None:
        more = {"chip": machine.gpu, "n_gpu": machine.n_gpu, "dtype": machine.dtype,
                "train_context": machine.context}  # fmt: skip
    return chosen(budget(params=total, tokens=int(best.tokens), vocab_size=vocab, law=law_name,
                         **more))  # fmt: skip
