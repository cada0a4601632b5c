"""One run of a study: what is trained, what comes of it, and the key under which it is kept."""

from __future__ import annotations

import functools
import hashlib
import json
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
from msgspec import Struct

from scantling import __version__
from scantling.spec import Spec

LAB = Path(__file__).parents[1]


Param = Literal["sp", "mup", "completep"]


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
    """Entropy of single tokens, nats: a model that knows no context is not better."""
    floor_bits_per_byte: float | None = None


class Runner(Protocol):
    """How a trial is run; sent to every worker once."""

    name: str

    def data(self, trial: Trial) -> Data:
        """What its data is."""

    def pace(self, trial: Trial) -> Pace:
        """Seconds, from five steps."""

    def trained(self, trial: Trial) -> bool:
        """Whether its model is there, and only what looks at it is to be run."""

    def run(self, trial: Trial) -> Outcome:
        """Train and judge it."""


@functools.cache
def code_version(probe: str | None = None) -> str:
    """The version of what makes a run: the package's, and a hash of the sources that train.

    A run is only reused while neither has changed; studies themselves may.
    """
    found = hashlib.sha256(__version__.encode())
    for path in sorted([*LAB.glob("*.py"), LAB / "study" / "training.py"]):
        found.update(path.read_bytes())
    if probe is not None:
        source = import_module(probe.partition(":")[0]).__file__
        found.update(Path(source or "").read_bytes())
    return f"{__version__}+{found.hexdigest()[:12]}"


def key(trial: Trial, data: Data, runner: str) -> str:
    """The content hash of a run: spec, task, optimiser, seed, data and code version."""
    told = [msgspec.to_builtins(trial), data.hash, runner, code_version(trial.probe)]
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
