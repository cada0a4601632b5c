"""What a study asks: which shapes, on what, at which rates, with how many seeds, in what time."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Literal, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from scantling.errors import FieldError, UnknownNameError
from scantling.lab import stats
from scantling.lab.corpus import GENERATED
from scantling.lab.default_rate import Param, default_rate
from scantling.lab.study.trial import Trial
from scantling.lab.torch_needed import need_torch
from scantling.spec import Spec

LEAST_SEEDS = 3
"""Fewer give no interval worth the name."""
MOST_RATES, MOST_STEP = 30, 100.0


class Shape(Struct, frozen=True):
    """One arm of a study."""

    name: str
    spec: Spec
    param: Param = "sp"
    tokenizer: str | None = None
    """Its own where the study is about vocabularies."""
    share: float = 1.0
    """Tokens of its runs over those of the study: for equal FLOPs or time."""
    rate: float | None = None
    """The middle of its grid; None is that of ``default_rate``."""
    matched: dict[str, float] = {}
    """What was made equal, with how far it is from it: ``{"body": 0.012}``."""


class Rates(Struct, frozen=True):
    """A grid of learning rates, and how often it may grow where the best lies at its edge."""

    n: int = 3
    step: float = 2.5
    extend: int = 2

    def grid(self, middle: float) -> list[float]:
        """Rates around one, a factor apart.

        Example:
            >>> [round(r, 5) for r in Rates(3, 2.0).grid(0.004)]
            [0.002, 0.004, 0.008]
        """
        half = (self.n - 1) / 2
        return [middle * self.step ** (i - half) for i in range(self.n)]


class Measure(Struct, frozen=True):
    """What arms are judged by."""

    name: str = "loss"
    label: str = "loss, nats a token"
    better: Literal["lower", "higher"] = "lower"
    word: str = "better"
    """What a verdict calls it, where better would say too much."""
    ratio: bool = False
    """Compared as a factor: tests are on logarithms."""
    solved: float | None = None
    """A seed counts as solved from this value on; arms are then judged by the share of solved."""


class Probed(Struct, frozen=True):
    """Arms that are one trained model looked at in several ways, in place of several shapes."""

    arms: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]
    """What is compared, in the order of its weight: first what is expected to be better."""

    @staticmethod
    def key(arm: str, measure: str) -> str:
        """The name under which a probe tells a measure of an arm."""
        return f"{arm}|{measure}"


class Study(Struct, frozen=True):
    """A question to small models, and the design that answers it."""

    name: str
    question: str
    shapes: tuple[Shape, ...]
    """In the order of their weight: the last go first where the budget is short."""
    data: str
    tokens: int
    """Of a run, before a budget shrinks it."""
    batch: int = 16
    context: int = 64
    rates: Rates = Rates()
    seeds: int = 3
    measure: Measure = Measure()
    also: tuple[Measure, ...] = ()
    """Measures that are shown beside it."""
    tokenizer: str = "bytes"
    optimizer: str = "adamw"
    schedule: str = "cosine"
    probe: str | None = None
    """``module:function``, from (model, task, trial) to further measures of a trained model."""
    probed: Probed | None = None
    """Where one model is trained and ``probe`` measures every arm of it."""
    least_tokens: int | None = None
    """No budget shrinks a run below; a quarter of ``tokens`` unless given."""
    expected: str = ""
    """What published work leads to expect."""
    sources: tuple[str, ...] = ()
    caveat: str = ""

    def trial(self, shape: Shape, rate: float, seed: int, tokens: int) -> Trial:
        """One run."""
        return Trial(
            spec=shape.spec, data=self.data, rate=rate, seed=seed,
            tokens=max(round(tokens * shape.share), self.batch * self.context), batch=self.batch,
            context=self.context, tokenizer=shape.tokenizer or self.tokenizer, param=shape.param,
            optimizer=self.optimizer, schedule=self.schedule, probe=self.probe,
            keep=self.probed is not None,
        )  # fmt: skip

    def grid(self, shape: Shape, tokens: int) -> list[float]:
        """The rates of a shape, from low to high, as three digits that can be typed."""
        steps = self.trial(shape, 0.0, 0, tokens).steps
        middle = shape.rate or default_rate(shape.spec, steps, shape.param)
        return [float(f"{rate:.3g}") for rate in self.rates.grid(middle)]

    @property
    def pairs(self) -> int:
        """Comparisons it makes."""
        return math.comb(len(self.shapes), 2) if self.probed is None else len(self.probed.pairs)

    @property
    def least_seeds(self) -> int:
        """Seeds below which it can say nothing: shares of solved ones need more than means."""
        shares = self.measure.solved is not None
        return max(LEAST_SEEDS, stats.least_for_shares(self.pairs) if shares else 0)

    @property
    def hash(self) -> str:
        """Of the whole design: a folder holds runs of one study."""
        same = msgspec.json.decode(msgspec.json.encode(self), type=Study)  # 2 is 2.0 once read back
        told = json.dumps(msgspec.to_builtins(same), sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    def check(self) -> Study:
        """The study with the context of its data, if it can be answered.

        Raises:
            FieldError: If it has fewer than two shapes, fewer than three seeds, two shapes of one
                name, or a measure that says nothing of them.
        """
        own = context_of(self.data)
        if own not in {None, self.context}:
            return replace(self, context=own).check()
        if self.probed is not None:
            self._check_probed(self.probed)
        names = [s.name for s in self.shapes if self.probed is None] or list(self.arms)
        if len(names) < 2:
            raise FieldError("shapes", len(names), "compare nothing", "give at least 2")
        if len(set(names)) < len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise FieldError("shapes", twice, "is the name of two shapes", "give each its own")
        tokenizers = {s.tokenizer or self.tokenizer for s in self.shapes}
        if len(tokenizers) > 1 and self.measure.name == "loss":
            raise FieldError("measure", "loss", "is nats a token, and tokens of "
                             f"{' and '.join(sorted(tokenizers))} differ",
                             "use bits_per_byte")  # fmt: skip
        if self.measure.solved is not None and self.measure.better == "lower":
            raise FieldError("solved", self.measure.solved, "counts values from there on, but "
                             f"lower {self.measure.name} is better", "use accuracy")  # fmt: skip
        if self.seeds < LEAST_SEEDS:
            raise FieldError("seeds", self.seeds, "are too few for an interval",
                             f"at least {LEAST_SEEDS}")  # fmt: skip
        if self.seeds < self.least_seeds:
            raise FieldError("seeds", self.seeds, "are too few: not even all solved against none "
                             "would count as different",
                             f"at least {self.least_seeds}")  # fmt: skip
        self._check_rates()
        if self.tokens < self.batch * self.context:
            raise FieldError("tokens", self.tokens, "are less than one batch of "
                             f"{self.batch * self.context:,}")  # fmt: skip
        return self

    @property
    def arms(self) -> tuple[str, ...]:
        """What is compared, by name."""
        return tuple(s.name for s in self.shapes) if self.probed is None else self.probed.arms

    def _check_probed(self, probed: Probed) -> None:
        if len(self.shapes) != 1 or self.rates.n != 1 or self.rates.extend:
            raise FieldError("rates", self.rates.n, "must be one, of one shape, where a trained "
                             "model is looked at in several ways")  # fmt: skip
        assert self.probe is not None, "someone measures the arms"
        assert {a for pair in probed.pairs for a in pair} <= set(probed.arms), probed.pairs

    def _check_rates(self) -> None:
        rates = self.rates
        if not 1 <= rates.n <= MOST_RATES:
            raise FieldError("rates.n", rates.n, f"must be 1 to {MOST_RATES}")
        if not 1 < rates.step <= MOST_STEP:
            raise FieldError("rates.step", rates.step, f"must be above 1, and at most {MOST_STEP}: "
                             "a factor from rate to rate", "2 or 3")  # fmt: skip
        if not 0 <= rates.extend <= MOST_RATES:
            raise FieldError("rates.extend", rates.extend, f"must be 0 to {MOST_RATES}")
        for s in self.shapes:
            if s.param not in get_args(Param):
                raise UnknownNameError("param", s.param, get_args(Param))
            if s.rate is not None and not 0 < s.rate < math.inf:
                raise FieldError("rate", s.rate, "must be above 0 and finite")


def context_of(data: str) -> int | None:
    """Tokens of a sequence of a generated task; None of a text, which can be cut anyhow.

    Raises:
        FieldError: If there is no such task, or no torch to make it.
    """
    if data.partition(":")[0] not in GENERATED:
        return None
    need_torch()
    from scantling.lab.data import task

    return task(data).context
