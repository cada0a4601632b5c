"""What a search weighs: the costs of a shape or a column of shapes, and limits on them.

Every cost is worked out by the costs' own code, once and only if something asks for it.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Struct

from scantling import catalog
from scantling.arith import Num, minimum, product, round_up
from scantling.costs.cache import KVCache, kv_cache
from scantling.costs.count import Parameters, flops, parameters
from scantling.costs.estimate import (
    DAY_S,
    Estimate,
    decode_time,
    plain_plan,
    serving_split,
    training_time,
)
from scantling.costs.features import features
from scantling.costs.memory import training_memory
from scantling.costs.money import token_bill
from scantling.costs.serve import Deployment, decode_step
from scantling.costs.serving_memory import ServingMemory, Split, serving_memory
from scantling.costs.serving_scheme import Numbers, numbers
from scantling.costs.serving_speed import speed
from scantling.hardware import Chip, chip
from scantling.laws import Features, Price, law, prior_terms
from scantling.laws.vocabulary import tokens_per_character
from scantling.ops import operators
from scantling.search.budget import OBJECTIVES, Budget
from scantling.search.serving_question import SHARE
from scantling.spec import Spec
from scantling.spec.plan import Plan, Recipe

if TYPE_CHECKING:
    from scantling.arith import Dim

HOUR_S = 3600
TILE = 128


class Serving(Struct, frozen=True):
    """How a budget serves: on what, split how, in what numbers."""

    chip: Chip
    split: Split
    numbers: Numbers

    @property
    def room_bytes(self) -> float:
        """What an engine may fill of each chip."""
        return self.chip.usable_bytes / self.chip.devices * SHARE


def serving(b: Budget) -> Serving:
    """The chips of one copy: those given, else as many as the tensor-parallel degree.

    Example:
        >>> from scantling.search.budget import budget
        >>> serving(budget(params="70B", serve_gpu="h200", serve_gpus=16)).split.pp
        2
    """
    tp, pp = serving_split(b.serve_gpus if b.serve_gpus > 1 else b.tp)
    kept = b.quant or {"mxfp8": "fp8"}.get(b.dtype, b.dtype)
    return Serving(chip(b.serve_chip or b.chip), Split(tp=tp, pp=pp), numbers(kept))


def serving_asked(b: Budget) -> bool:
    """Whether the chips that serve were named, so that a shape has to fit them."""
    return b.serve_chip is not None or b.serve_gpus > 1


def training_plans(b: Budget) -> tuple[Plan, ...]:
    """The plans that training is timed with: the fastest that fits of a few plain ones.

    The degrees given are kept. Without a limit on memory there is one plan, with nothing computed
    again. With one, micro-batches of one sequence stand beside it, and the same with all layers
    computed again, which holds least.
    """
    one = plain_plan(b.n_gpu, b.train_context, tp=b.tp, pp=b.pp, ep=b.ep)
    if b.memory is None and "memory_bytes" not in names(b):
        return (one,)
    whole = one.micro_batch * one.n_micro_batch
    small = msgspec.structs.replace(one, micro_batch=1, n_micro_batch=whole)
    found = (one, small, msgspec.structs.replace(small, recompute="full"))
    return tuple(dict.fromkeys(found))


def names(b: Budget) -> tuple[str, ...]:
    """The objectives of a budget's front: the four of every front, and what its user weighs."""
    asked = [n for n in (*b.weights, *b.lexicographic) if n not in OBJECTIVES]
    return (*OBJECTIVES, *dict.fromkeys(asked))


class Costs:
    """The costs of one shape, or of a column of shapes; each is worked out when asked for.

    Args:
        spec: The shape or the column.
        b: The budget.
        counted: Its parameters, where they are known already.

    Example:
        >>> from scantling.search.budget import budget
        >>> found = Costs(catalog.model("llama-3.1-8b"), budget(params="8B", serve_context="8k"))
        >>> found.kv_bytes, round(found.tokens_per_s * found.decode_s)
        (1073741824, 1)
    """

    def __init__(self, spec: Spec, b: Budget, counted: Parameters | None = None) -> None:
        self.spec, self.budget = spec, b
        self.counted = parameters(spec) if counted is None else counted

    # ------------------------------------------------------------ tokens and loss

    @cached_property
    def tokens(self) -> Num:
        """Training tokens: those of the budget, or what the shape gets of equal work or time."""
        b = self.budget
        if b.alike is None:
            return float(b.tokens) * self.text_share
        if b.equal == "flops":
            one = flops(self.spec, 1, b.train_context)
            return b.alike * one.tokens / one.train
        return b.alike / self.token.value_s

    @property
    def text_share(self) -> float:
        """Tokens of a text in the shape's vocabulary over those in the budget's.

        Shapes of several vocabularies are given the same text, and the laws the tokens that are in
        it in the one vocabulary; what a vocabulary does to the loss beside its size stays unpriced.
        """
        b = self.budget
        if "vocab_size" not in b.listed:
            return 1.0
        own = tokens_per_character(int(self.spec.vocab_size))
        return own / tokens_per_character(b.vocab_size)

    @cached_property
    def features(self) -> Features:
        """What the laws may know of it."""
        b, tokens = self.budget, self.tokens / self.text_share
        unique = None if b.unique_tokens is None else minimum(tokens, float(b.unique_tokens))
        return features(self.spec, tokens, self.counted, b.train_context, unique)

    @cached_property
    def raw_loss(self) -> Num:
        """The law's own; of an encoder-decoder, which none prices, the same for all."""
        if self.spec.encoder is not None:
            return 0.0
        return law(self.budget.law).loss(self.features)

    @cached_property
    def prior(self) -> Any:
        """What the axes add that no law prices."""
        if self.spec.encoder is not None:
            return Price(0.0, 0.0)
        one = law(self.budget.law)
        return prior_terms(self.features, self.raw_loss, one.reference_ratio, one.form_name)

    @property
    def expected_loss(self) -> Num:
        """With the centre of the prior terms."""
        found: Num = self.raw_loss + self.prior.expected
        return found

    @property
    def loss(self) -> Num:
        """With their upper end: what makes a shape cheaper at an unknown price has to beat that."""
        found: Num = self.raw_loss + self.prior.upper
        return found

    # ------------------------------------------------------------ training

    @cached_property
    def token(self) -> Estimate:
        """Seconds of one training token with the fastest plan that fits."""
        return self._training[0]

    @cached_property
    def memory_bytes(self) -> Num:
        """Bytes of a training chip with that plan, at the upper end of their interval."""
        held = self._training[1]
        return self._held(training_plans(self.budget)[0]) if held is None else held

    @cached_property
    def _training(self) -> tuple[Estimate, Num | None]:
        """Time of a token and memory, with the fastest plan that fits, else that which holds least.

        Plans of a budget come by falling memory, so the last one that can be is of the least.
        """
        b = self.budget
        plans = training_plans(b)
        if len(plans) == 1:
            return self._timed(plans[0]), None
        most = b.memory or b.hardware.usable_bytes
        time, held = self._timed(plans[-1]), self._held(plans[-1])
        for plan in reversed(plans[:-1]):
            other, bytes_ = self._timed(plan), self._held(plan)
            better: Any = (bytes_ <= most) & (other.value_s < time.value_s)
            time = Estimate(*(_where(better, new, old) for new, old in (
                (other.value_s, time.value_s), (other.low_s, time.low_s),
                (other.high_s, time.high_s))))  # fmt: skip
            held = _where(better, bytes_, held)
        return time, held

    def _timed(self, plan: Plan) -> Estimate:
        b = self.budget
        return training_time(self.spec, 1.0, b.hardware, b.n_gpu, b.train_context, b.dtype, plan)

    def _held(self, plan: Plan) -> Num:
        b = self.budget
        return training_memory(self.spec, plan, Recipe(dtype=b.dtype), b.train_context).needed_high

    @cached_property
    def training(self) -> Estimate:
        """Seconds of the whole run; at equal wall-clock every shape's own, to the last digit."""
        found = self.token.times(self.tokens)
        if self.budget.alike is None or self.budget.equal != "wall-clock":
            return found
        return Estimate(self.budget.alike + 0.0 * found.value_s, found.low_s, found.high_s)

    @property
    def training_days(self) -> Num:
        """Days of the run."""
        return self.training.value_s / DAY_S

    @property
    def gpu_hours(self) -> Num:
        """Chip-hours of the run."""
        return self.training.value_s * (self.budget.n_gpu / HOUR_S)

    # ------------------------------------------------------------ serving

    @cached_property
    def decode(self) -> Estimate:
        """Seconds of one output token of each sequence."""
        b, s = self.budget, serving(self.budget)
        if b.quant is None:
            return decode_time(self.spec, s.chip, b.serve_batch, b.serve_context, s.numbers.name,
                               b.kv_dtype, s.split.n_gpu)  # fmt: skip
        d = self._deployment
        found = decode_step(self.spec, s.chip, d, b.serve_batch, b.serve_context,
                            s.numbers.read_share(self.spec, d))  # fmt: skip
        return Estimate(found.value, found.low, found.high)

    @cached_property
    def _deployment(self) -> Deployment:
        s = serving(self.budget)
        wide = "bf16" if "bf16" in s.chip.dtypes else "fp16"
        return Deployment(tp=s.split.tp, pp=s.split.pp, weights=s.numbers.dense, head=wide,
                          experts=s.numbers.dtype, cache=self.budget.kv_dtype)  # fmt: skip

    @property
    def decode_s(self) -> Num:
        """The value of it."""
        return self.decode.value_s

    @cached_property
    def first_token(self) -> Estimate:
        """Seconds to the first token of a prompt as long as the serving context, alone."""
        b, s = self.budget, serving(self.budget)
        d = self._deployment
        found = speed(self.spec, s.chip, d, b.serve_context, 1, 1,
                      read=s.numbers.read_share(self.spec, d)).ttft_s  # fmt: skip
        return Estimate(found.value, found.low, found.high)

    @property
    def ttft_s(self) -> Num:
        """The value of it."""
        return self.first_token.value_s

    @property
    def tokens_per_s(self) -> Num:
        """Output tokens a second of one copy, all sequences together."""
        return self.budget.serve_batch / self.decode_s

    @cached_property
    def cost_per_million(self) -> Num:
        """Money a million output tokens take of one copy, prompts left out."""
        b, s = self.budget, serving(self.budget)
        each = self.decode.times(1 / b.serve_batch)
        cost = token_bill(each, s.split.n_gpu, s.chip, price=b.price).cost
        assert cost is not None, "a budget weighs money only with a price"
        return cost.value_s

    @cached_property
    def _cache(self) -> KVCache:
        b = self.budget
        return kv_cache(self.spec, 1, b.serve_context, b.kv_dtype)

    @property
    def kv_bytes_per_token(self) -> Num:
        """The cache of one sequence at the serving context over its tokens, which is what is paid.

        Where every layer attends to all, what a token adds. A layer with a window w holds
        min(S, w) of S tokens, and a recurrent one a state that S tokens share.
        """
        return self._cache.bytes / self.budget.serve_context

    @property
    def kv_growth(self) -> Num:
        """What a token adds to it while no window is full."""
        return self._cache.bytes_per_token

    @cached_property
    def kv_bytes(self) -> Num:
        """The cache of all sequences at the context; windowed layers keep their window."""
        b = self.budget
        return kv_cache(self.spec, b.serve_batch, b.serve_context, b.kv_dtype).bytes

    @cached_property
    def serving_memory(self) -> ServingMemory:
        """What the fullest serving chip holds."""
        b, s = self.budget, serving(self.budget)
        return serving_memory(self.spec, s.split, s.numbers.rank_bytes, b.serve_batch,
                              b.serve_context, b.kv_dtype)  # fmt: skip

    @property
    def serving_bytes(self) -> Num:
        """The upper end of it: what surely suffices."""
        return self.serving_memory.high

    # ------------------------------------------------------------ all of them

    @cached_property
    def tile_waste(self) -> Num:
        """Share of columns that GEMM tiles of 128 compute for nothing, by weight.

        Each product's n is rounded up to the tile and its k to 32; the excess is weighted by n k.
        An explanation of alignment, not a time: measured waste is smaller (kernels choose among
        tiles).
        """
        useful: Any = 0.0
        padded: Any = 0.0
        for op in operators(self.spec):
            if op.kind == "matmul":
                columns, depth = cast("tuple[Dim, Dim]", (op.n, op.k))
                useful = useful + product(op.n, op.k, op.repeat)
                n, k = round_up(columns, TILE), round_up(depth, TILE // 4)
                padded = padded + product(n, k, op.repeat)
        found: Num = padded / useful - 1
        return found

    def values(self) -> dict[str, Num]:
        """The objectives of the budget's front, all smaller is better."""
        return {name: getattr(self, name) for name in names(self.budget)}


def _where(mask: Any, one: Any, other: Any) -> Any:
    """One where a mask holds, else the other; for a column of each."""
    if not hasattr(mask, "dtype") or not hasattr(mask, "shape") or mask.shape == ():
        return one if mask else other
    import numpy as np

    return np.where(mask, one, other)


class Limit(Struct, frozen=True):
    """A hard limit on a cost.

    Args:
        name: In words.
        of: The cost, a property of ``Costs``.
        most: The most allowed.
        unit: ``days``, ``hours``, ``s``, ``bytes``, ``money`` or ``nats``.
        option: What sets it on the command line.
    """

    name: str
    of: str
    most: float
    unit: str
    option: str


LIMITS = (
    ("training days", "training_days", "days", "days", "--days"),
    ("GPU-hours", "gpu_hours", "gpu_hours", "hours", "--gpu-hours"),
    ("training memory", "memory_bytes", "memory", "bytes", "--memory"),
    ("KV bytes per token", "kv_bytes_per_token", "kv_bytes_per_token", "bytes",
     "--kv-bytes-per-token"),
    ("KV bytes", "kv_bytes", "kv_bytes", "bytes", "--kv-bytes"),
    ("time per token", "decode_s", "tpot_s", "s", "--tpot"),
    ("time to first token", "ttft_s", "ttft_s", "s", "--ttft"),
    ("cost per million tokens", "cost_per_million", "cost_per_million", "money",
     "--cost-per-million"),
)  # fmt: skip
"""Name, cost, field of the budget, unit, option."""


def limits(b: Budget) -> tuple[Limit, ...]:
    """The hard limits of a budget on costs.

    A shape that beats a model reaches its loss even at the upper end of its own priors, and costs
    less both to train and to run.

    Example:
        >>> from scantling.search.budget import budget
        >>> [one.name for one in limits(budget(params="7B", days=30, serve_gpus=2))]
        ['training days', 'serving memory of a chip']
    """
    given = {field for _, _, field, _, _ in LIMITS if getattr(b, field) is not None}
    if b.equal == "wall-clock":  # what every shape is given
        given -= {"days", "gpu_hours"}
    found = [Limit(name, of, float(getattr(b, field)), unit, option)
             for name, of, field, unit, option in LIMITS if field in given]  # fmt: skip
    if serving_asked(b):
        room = serving(b).room_bytes
        found.append(Limit("serving memory of a chip", "serving_bytes", room, "bytes",
                           "--serve-gpus"))  # fmt: skip
    if b.beat is not None:
        model = catalog.load(b.beat)
        rival = Costs(model.spec, b)
        found.append(Limit(f"loss of {model.name}", "loss", float(rival.expected_loss), "nats",
                           "--beat"))  # fmt: skip
        for what, of, unit in (("training days", "training_days", "days"),
                               ("time per token", "decode_s", "s")):  # fmt: skip
            below = math.nextafter(float(getattr(rival, of)), 0)
            found.append(Limit(f"{what} of {model.name}", of, below, unit, "--beat"))
    return tuple(found)


__all__ = ["Costs", "Limit", "Serving", "limits", "names", "serving", "serving_asked",
           "training_plans"]  # fmt: skip
