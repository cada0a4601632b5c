"""The size and the tokens that a compute budget is best spent on, and how flat that valley is."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from scantling.errors import FieldError, UnknownNameError
from scantling.laws.features import Features
from scantling.laws.registry import LAWS, Law, law
from scantling.sources import read_data

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SIZES = (1e3, 1e14)
"""The sizes looked through, in 6000 steps of 0.4 %; the least loss is then placed between them."""
TOKENS_A_PARAMETER = 20
"""Tokens of a run, and those losses are compared at, where none are asked for; of a mixture's run
for each parameter that a token passes (``chinchilla2022``)."""
REFERENCE_ASPECT = 64.0
"""D/L of the shape that stands for a size; the laws' valley is flat around it."""
FACTORS = (1 / 4, 1 / 2, 2.0, 4.0)
"""Sizes named beside an optimum, as multiples of it."""


class Allocation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published power law from FLOPs to the tokens to spend them on.

    ``tokens = factor · C^power``, and N follows from C = ``flops_per_token`` · N · D, where
    ``counts`` says what N is.
    """

    title: str
    factor: float
    power: float
    flops_per_token: float
    counts: Literal["body", "total", "flops"]
    domain: tuple[float, float]
    source: str


class Spending(Struct, frozen=True, kw_only=True):
    """A budget of FLOPs, what it pays for, and the shape that stands for each size.

    With W the width and L the depth of a size N, V the vocabulary and S the context, a trained
    token costs

        6 (N + V W) + 12 L W S

    the products of the weights, the head's among them, and those of the scores, forward and twice
    as much backward, with attention in full (``docs/flops.md``); a served token costs a third of
    that. V and S are 0 unless given, which is the C = 6 N D of the papers. N is what the law
    counts: where that is all parameters the head is in it (``of``).

    Args:
        flops: The budget C, for training and serving.
        served: Tokens served over the life of the model.
        unique: Unique tokens there are; all that are needed unless given.
        context: Tokens of a sequence, whose attention is to be paid.
        vocab_size: Vocabulary whose output product is to be paid beside N.
        aspect: Width over depth.

    Example:
        >>> s = Spending(flops=1e21)
        >>> s.tokens(1e9) == 1e21 / 6e9
        True
        >>> 0.5 < Spending(flops=1e21, context=8192).tokens(1e9) / s.tokens(1e9) < 0.6
        True
    """

    flops: float
    served: float = 0.0
    unique: float | None = None
    context: float = 0.0
    vocab_size: float = 0.0
    aspect: float = REFERENCE_ASPECT

    def of(self, counts: str) -> Spending:
        """The same for a law whose N ``counts`` the body, or more than that: the head then too."""
        return self if counts == "body" else msgspec.structs.replace(self, vocab_size=0.0)

    def cost(self, size: Any) -> Any:
        """FLOPs of a trained token, for one size or an array of them."""
        if not self.context and not self.vocab_size:
            return 6 * size
        f = shaped(size, 1.0, self.aspect)
        head, scores = self.vocab_size * f.width, f.depth * f.width * self.context
        return 6 * (size + head) + 12 * scores

    def tokens(self, size: Any) -> Any:
        """What the budget leaves to train a size on; below zero where serving takes it all."""
        return self.flops / self.cost(size) - self.served / 3

    def features(self, size: Any) -> Features:
        """The model of a size, trained on those tokens."""
        return shaped(size, self.tokens(size), self.aspect, self.unique)


class Optimum(NamedTuple):
    """The best size and tokens for a budget; ``low`` and ``high`` end the flat valley.

    ``loss`` and the valley are ``None`` for a law that says only where the optimum is;
    ``counts`` says what the size is: ``body``, ``total`` (embeddings and head included), or
    ``flops``, the FLOPs of a token.
    """

    size: float
    tokens: float
    loss: float | None
    low: float | None
    high: float | None
    outside: tuple[str, ...]
    counts: str


class Other(NamedTuple):
    """Another size for the same FLOPs: its tokens, and its loss over the least, nats a token."""

    factor: float
    size: float
    tokens: float
    penalty: float
    low: float
    high: float


@functools.cache
def allocations() -> dict[str, Allocation]:
    """Every published allocation by its name.

    Example:
        >>> sorted(allocations())
        ['deepseek-2024', 'llama-3-2024', 'minicpm-2024', 'twenty-tokens']
    """
    return msgspec.convert(read_data("laws.toml")["allocations"], dict[str, Allocation])


def compute_optimal(
    name: str, flops: float, *, served: float = 0.0, unique: float | None = None,
    context: float = 0.0, vocab_size: float = 0.0, aspect: float = REFERENCE_ASPECT,
    tolerance: float = 0.005,
) -> Optimum:  # fmt: skip
    """Size and tokens of the least loss for a number of FLOPs.

    What a token costs is ``Spending``'s. The loss along the line of equal FLOPs has one minimum in
    N, found on a grid of sizes and placed by the parabola through the three lowest points, which is
    exact to 1e-5 of N. An allocation has its own C and knows neither serving nor context.

    Args:
        name: A law of the loss, a law file, or an allocation.
        flops: The budget C; with ``served`` it pays for training and serving.
        served: Tokens served over the life of the model.
        unique: Unique tokens there are: only a law of repetition uses it.
        context: Tokens of a sequence, whose attention is to be paid.
        vocab_size: Vocabulary whose output product is to be paid.
        aspect: Width over depth of the shapes.
        tolerance: Loss over the least that still counts as the valley, nats a token.

    Raises:
        FieldError: If the budget is not positive, or too small for what is to be served.

    Example:
        >>> best = compute_optimal("chinchilla-2024", 5.76e23)  # Gopher's budget
        >>> f"{best.size:.3g} {best.tokens:.3g}"
        '7.22e+10 1.33e+12'
        >>> compute_optimal("chinchilla-2024", 1e23, served=1e13).size < 3e10
        True
        >>> best = compute_optimal("twenty-tokens", 1e21)
        >>> f"{best.size:.4g} {best.tokens:.4g}"
        '2.887e+09 5.774e+10'
    """
    if not flops > 0:
        raise FieldError("flops", flops, "must be above zero")
    if name in allocations():
        return _allocated(allocations()[name], flops)
    budget = Spending(flops=flops, served=served, unique=unique, context=context,
                      vocab_size=vocab_size, aspect=aspect)  # fmt: skip
    return least_loss(_known(name), budget, tolerance)


def _known(name: str) -> Law:
    if name not in LAWS and not name.endswith(".toml"):
        raise UnknownNameError("law", name, [*LAWS, *allocations()])
    return law(name)


def _allocated(one: Allocation, flops: float) -> Optimum:
    tokens = one.factor * flops**one.power
    low, high = one.domain
    outside = () if low <= flops <= high else (f"flops outside the fitted {low:g} to {high:g}",)
    size = flops / (one.flops_per_token * tokens)
    return Optimum(size, tokens, None, None, None, outside, one.counts)


def least_loss(one: Law, budget: Spending, tolerance: float = 0.005) -> Optimum:
    """The size of the least loss along the line of equal FLOPs; see ``compute_optimal``."""
    import numpy as np

    budget = budget.of(one.counts)
    logs = np.linspace(np.log(SIZES[0]), np.log(SIZES[1]), 6000)
    logs = logs[budget.tokens(np.exp(logs)) > 1.0]
    if len(logs) < 3:
        what = f"{budget.served:.3g} served tokens" if budget.served else "the training"
        rule = f"do not pay for {what} of any model"
        raise FieldError("flops", budget.flops, rule)
    values = np.asarray(one.loss(budget.features(np.exp(logs))))
    i = min(max(int(np.argmin(values)), 1), len(logs) - 2)
    left, here, right = values[i - 1 : i + 2]
    bend = left - 2 * here + right
    shift = 0.5 * (left - right) / bend if bend > 0 else 0.0
    ends = abs(shift) > 1  # the loss still falls where the sizes end
    shift = min(max(shift, -1.0), 1.0)
    size = float(np.exp(logs[i] + shift * (logs[1] - logs[0])))
    at = budget.features(size)
    least = float(one.loss(at))
    valley = np.append(np.exp(logs[values <= least + tolerance]), size)  # a steep one has no step
    outside = tuple(axis for axis, out in one.outside(at).items() if out)
    if ends:
        outside += (f"no least loss within {SIZES[0]:,.0f} to {SIZES[1]:.0e} parameters",)
    low, high = float(valley.min()), float(valley.max())
    return Optimum(size, float(budget.tokens(size)), least, low, high, outside, one.counts)


def others(
    name: str, budget: Spending, best: Optimum, factors: tuple[float, ...] = FACTORS
) -> list[Other]:
    """Smaller models on more tokens and larger ones on fewer, at the FLOPs of the optimum.

    The interval is the law's for a difference; empty for an allocation, which has no loss.

    Example:
        >>> budget = Spending(flops=1e21)
        >>> half = others("aspect", budget, compute_optimal("aspect", 1e21))[1]
        >>> half.factor, 0.001 < half.penalty < 0.05
        (0.5, True)
    """
    if best.loss is None:
        return []
    one, found = _known(name), []
    budget = budget.of(one.counts)
    for factor in factors:
        tokens = float(budget.tokens(best.size * factor))
        if tokens <= 1:
            continue
        d = one.difference(budget.features(best.size * factor), budget.features(best.size))
        ends = (float(d.value), min(max(float(d.low), 0.0), float(d.value)), float(d.high))
        found.append(Other(factor, best.size * factor, tokens, *ends))
    return found


ASKED = ("params", "tokens", "loss")
"""What may be given instead of FLOPs: the optimum has this size, these tokens, or this loss."""
BUDGETS = (1e14, 1e32)
ENDLESS = (1e120, 1e150)
"""Parameters and tokens of which no law's power has anything left."""


def needed(name: str, asked: str, value: float, **given: Any) -> float:
    """The FLOPs whose optimum has a size, tokens or a loss: the inverse of ``compute_optimal``.

    More FLOPs ask for a larger model and more tokens, and end at less loss, so the answer is
    closed in by halves of the logarithm.

    Args:
        name: A law of the loss, a law file, or an allocation.
        asked: ``params`` (as the law counts them), ``tokens`` or ``loss``.
        value: How much of it.
        **given: As in ``compute_optimal``.

    Raises:
        FieldError: If no budget gives it, or an allocation is asked for a loss.

    Example:
        >>> flops = needed("twenty-tokens", "params", 7e9)  # 6 · 7e9 · 140e9
        >>> f"{flops:.4g}"
        '5.88e+21'
    """
    if asked == "loss" and name in allocations():
        raise FieldError("loss", value, f"is nothing that {name} knows", "ask a law of the loss")

    def at(flops: float) -> float:
        best = compute_optimal(name, flops, **given)
        if asked == "loss":
            assert best.loss is not None
            return best.loss
        size = best.size / 6 if best.counts == "flops" else best.size
        return size if asked == "params" else best.tokens

    def reaches(flops: float) -> bool:
        return at(flops) <= value if asked == "loss" else at(flops) >= value

    low, high = BUDGETS[0] + 6e5 * given.get("served", 0.0), BUDGETS[1]
    if reaches(low) or not reaches(high):
        ends = f"{at(low):.4g} at {low:.0e} FLOPs and {at(high):.4g} at {high:.0e}"
        if asked == "loss":
            least = floor(_known(name), given.get("aspect", 64.0), given.get("unique"))
            ends += f", and never below {least:.4g}"
        rule = f"is the optimum of no budget by {name}, which has {ends}"
        raise FieldError(asked, f"{value:g}", rule)
    while high / low > 1 + 1e-6:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high


def floor(one: Law, aspect: float = REFERENCE_ASPECT, unique: float | None = None) -> float:
    """The loss that endless parameters and tokens would leave, nats a token.

    Example:
        >>> floor(law("chinchilla-2024"))  # its E
        1.8172
    """
    return float(one.loss(shaped(*ENDLESS, aspect, unique)))


class Repetition(NamedTuple):
    """Passes over scarce tokens, and what they are worth; ``None`` where a law does not see it.

    ``cost`` is the loss over that on as many fresh tokens, and ``worth`` how many fresh ones would
    give the same loss.
    """

    epochs: float
    cost: float | None = None
    worth: float | None = None


def repetition(name: str, budget: Spending, best: Optimum) -> Repetition | None:
    """What repeating the unique tokens means at an optimum; ``None`` where they are enough.

    Example:
        >>> budget = Spending(flops=1e21, unique=1e10)
        >>> best = compute_optimal("muennighoff-2023", 1e21, unique=1e10)
        >>> found = repetition("muennighoff-2023", budget, best)
        >>> found.epochs > 4, budget.unique < found.worth < best.tokens
        (True, True)
    """
    if budget.unique is None or best.tokens <= budget.unique:
        return None
    epochs = best.tokens / budget.unique
    if best.loss is None:
        return Repetition(epochs)
    one = _known(name)

    def fresh(tokens: float) -> float:
        return float(one.loss(shaped(best.size, tokens, budget.aspect)))

    cost = best.loss - fresh(best.tokens)
    if cost <= 0:
        return Repetition(epochs)
    low, high = budget.unique * 1e-3, best.tokens
    while high / low > 1 + 1e-6:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if fresh(middle) > best.loss else (low, middle)
    return Repetition(epochs, cost, high)


def shaped(
    size: float | NDArray[np.float64], tokens: float | NDArray[np.float64], aspect: float,
    unique: float | None = None,
) -> Features:  # fmt: skip
    """A model of a size whose width over depth is given: body = 12 L W², so L³ = N/(12 aspect²).

    Example:
        >>> f = shaped(12 * 20 * 1280**2, 1e10, 64)
        >>> round(f.depth, 6), round(f.width, 6)
        (20.0, 1280.0)
    """
    depth = (size / (12 * aspect**2)) ** (1 / 3)
    more = {} if unique is None else {"unique_tokens": unique}
    return Features(body=size, total=size, width=aspect * depth, depth=depth, tokens=tokens, **more)
