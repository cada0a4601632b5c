"""One run of a study: what is trained, what comes of it, and the key under which it is kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec
from msgspec import Struct

from scantling.lab.default_rate import Param
from scantling.lab.version import code_version
from scantling.spec import Spec


class Trial(Struct, frozen=True):
    """One training run: a shape, a learning rate, a seed, and the recipe around them."""

    spec: Spec
    data: str
    rate: float
    seed: int
    tokens: int
    batch: int
    context: int
    tokenizer: str = "bytes"
    param: Param = "sp"
    optimizer: str = "adamw"
    schedule: str = "cosine"
    probe: str | None = None
    """``module:function``, from (model, task, trial) to further measures of the trained model."""
    keep: bool = False
    """Whether the trained model is kept for other probes."""
    data_hash: str | None = None
    """What its data must be; None where the study only asks for it."""

    @property
    def steps(self) -> int:
        """Steps of the run."""
        return max(self.tokens // (self.batch * self.context), 1)


class Outcome(Struct, frozen=True):
    """What a run came to."""

    measures: dict[str, float]
    """``choose`` is the loss on the slice that the rate is chosen on, ``loss`` that on the slice
    that is reported, in nats a token; others by name."""
    tokens: int
    seconds: float
    failed: str | None = None
    """Why it came to nothing: a loss that is no number."""
    row: dict[str, Any] = {}
    """The run as ``laws fit`` reads one."""


class Pace(Struct, frozen=True):
    """Seconds a run takes, measured on a few steps: to begin, a step, to judge."""

    start_s: float
    step_s: float
    judge_s: float
    once_s: float = 0.0
    """Once for all runs of a shape: to cut the data into tokens."""

    def seconds(self, steps: int) -> float:
        """Seconds of a whole run."""
        return self.start_s + steps * self.step_s + self.judge_s


class Data(Struct, frozen=True):
    """What goes with every result about its data."""

    hash: str
    vocab_size: int
    bytes_per_token: float | None = None
    unigram: float | None = None
    """Loss on held-out data of a model that knows how often each token is, and no context."""
    floor_bits_per_byte: float | None = None


class Runner(Protocol):
    """How a trial is run; sent to every worker once."""

    @property
    def name(self) -> str:
        """What makes its results its own, beside trial and code."""

    def data(self, trial: Trial) -> Data:
        """What its data is."""

    def data_hash(self, trial: Trial) -> str:
        """The hash of its data as it is now."""

    def pace(self, trial: Trial) -> Pace:
        """Seconds, from five steps."""

    def trained(self, trial: Trial) -> bool:
        """Whether its model is there, and only what looks at it is to be run."""

    def run(self, trial: Trial) -> Outcome:
        """Train and judge it."""


Stop = Callable[[float, float], bool]
"""From the share of a group's steps that is done, and its seconds, to whether it must stop."""


@runtime_checkable
class GroupRunner(Runner, Protocol):
    """One that can run trials of one shape together where that is faster.

    A trial that is run in a group comes to the same but for rounding, so its key is the same.
    """

    def at_once(self, trial: Trial, n: int) -> bool:
        """Whether n trials of its shape are better run together."""

    def pace_group(self, trials: Sequence[Trial]) -> Pace:
        """Seconds that one of a group takes, all divided by their number."""

    def run_group(
        self, trials: Sequence[Trial], keep: Path | None, stop: Stop
    ) -> list[Outcome] | None:
        """Train and judge all; None where it was stopped.

        Args:
            trials: The whole group, whatever is known of some: what comes of a trial must not
                depend on what was done before.
            keep: A folder for their state while they train, from which they go on.
            stop: Asked now and then.
        """


def code_of(trial: Trial) -> str:
    """The version of the code that makes a run, its probe included."""
    return code_version(trial.probe and trial.probe.partition(":")[0])


def key(trial: Trial, data: Data, runner: str) -> str:
    """The content hash of a run: spec, task, optimiser, seed, data, code and machine."""
    told = [msgspec.to_builtins(trial), data.hash, runner, code_of(trial)]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:24]


class Record(Struct, frozen=True):
    """A run that is done, as it is kept."""

    key: str
    shape: str
    trial: Trial
    outcome: Outcome
    code: str

    @property
    def row(self) -> dict[str, Any]:
        """The run as ``laws fit`` reads one, with where it comes from."""
        return {"shape": self.shape, **self.outcome.row, "code": self.code, "key": self.key}
