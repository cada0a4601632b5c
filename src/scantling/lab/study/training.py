"""How a trial is really run: by ``lab.train``, in one thread, with probes on what was trained."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from scantling.errors import FieldError
from scantling.lab.study.trial import Data, Outcome, Pace, Stop, Trial
from scantling.lab.version import code_version

if TYPE_CHECKING:
    from scantling.lab.run import Result, TrainingRun

TIMED_STEPS, TIMED_S, MOST_STEPS = 5, 3.0, 150
"""Steps that are timed, more of them until so many seconds are sampled: what else the machine does
comes in bursts longer than a step."""
JUDGED = {"choose": 2**14, "report": 2**15}
"""Tokens that slices of a text are judged on in a study: the same ones for all runs, so that what
chance put in them is in no difference. Judging more would take as long as a small run."""


class Training:
    """Trains for real.

    Args:
        device: ``cpu`` or ``cuda``; a GPU where there is one, by default.
        threads: Of each process on a CPU.
        compile: Whether steps of trials that train together are compiled where that pays; what
            they come to then differs by rounding.
        models: Where models are kept that several studies look at; each is the folder of a run,
            which ``lab probe`` and ``lab train --from`` take too. None keeps nothing.
    """

    def __init__(
        self, device: str | None = None, threads: int = 1, *,
        compile: bool = False,  # noqa: A002 - torch's word
        models: Path | None = None,
    ) -> None:  # fmt: skip
        self.device, self.threads, self.compile = device, threads, compile
        self.models = None if models is None else models.absolute()

    def place(self, trial: Trial) -> Path | None:
        """The folder of its model, by what the model depends on: not by what looks at it."""
        if self.models is None or not trial.keep:
            return None
        told = msgspec.to_builtins(msgspec.structs.replace(trial, probe=None, data_hash=None))
        text = json.dumps([told, self.data_hash(trial), self.name, code_version()], sort_keys=True)
        return self.models / hashlib.sha256(text.encode()).hexdigest()[:24]

    def trained(self, trial: Trial) -> bool:
        """Whether its model is kept, trained to the end."""
        place = self.place(trial)
        return place is not None and (place / "result.jsonl").exists()

    @property
    def name(self) -> str:
        """The device and the versions of libraries: other ones give other numbers."""
        import torch

        from scantling.lab.distributed import world

        device = world(self.device).device
        on = f"{self.threads} threads"
        if device.type == "cuda":
            on = torch.cuda.get_device_name(device)
        tokenizers = version("tokenizers") if find_spec("tokenizers") else None
        return f"train {device.type} {on} torch {torch.__version__} tokenizers {tokenizers}"

    def data(self, trial: Trial) -> Data:
        """The data's hash, and what a model without context would lose on it."""
        from scantling.lab.unigram import unigram_loss

        one = _task(trial)
        return Data(one.hash, one.vocab_size, one.bytes_per_token, unigram_loss(one),
                    one.floor_bits_per_byte)  # fmt: skip

    def data_hash(self, trial: Trial) -> str:
        """The hash alone; a text is not cut into tokens for it."""
        from scantling.lab.data import text_hash

        return text_hash(trial.data, trial.tokenizer) or str(_task(trial).hash)

    def at_once(self, trial: Trial, n: int) -> bool:
        """Whether n trials of its shape are trained faster together; a kept model is made alone."""
        from scantling.lab.train_many import at_once

        return not trial.keep and at_once(self._asked(trial, steps=1), n)

    def pace(self, trial: Trial) -> Pace:
        """Time five steps, building and judging apart."""
        return self.pace_group([trial])

    def pace_group(self, trials: Sequence[Trial]) -> Pace:
        """The same of trials that are trained together, of which each takes its share."""
        n, begun = len(trials), time.perf_counter()
        self._begin(trials[0])
        first = self._train(trials, steps=TIMED_STEPS)[0]  # it also loads what is loaded once
        once_s = time.perf_counter() - begun
        begun = time.perf_counter()
        steps = math.ceil(TIMED_S / n / float(first.step_s or TIMED_S))
        found = self._train(trials, steps=min(max(steps, TIMED_STEPS), MOST_STEPS))
        trained_s = sum(one.seconds for one in found)
        step_s = trained_s / n / found[0].steps
        if found[0].run.compile:  # what the compiler takes is in the time of the first step
            step_s = float(found[0].step_s or step_s)
        all_s = time.perf_counter() - begun
        if trials[0].probe is not None:
            begun = time.perf_counter()
            _probed(trials[0], found[0])
            all_s += n * (time.perf_counter() - begun)
        return Pace(0.0, step_s, max(all_s - trained_s, 0.0) / n, once_s)

    def run(self, trial: Trial) -> Outcome:
        """Train, judge on both slices, probe."""
        return self._outcomes([trial])[0]

    def run_group(
        self, trials: Sequence[Trial], keep: Path | None, stop: Stop
    ) -> list[Outcome] | None:
        """The same of trials of one shape, trained together; None where it was stopped."""
        try:
            return self._outcomes(trials, keep, stop)
        except _StoppedError:
            return None

    def _outcomes(
        self, trials: Sequence[Trial], keep: Path | None = None, stop: Stop = lambda *_: False
    ) -> list[Outcome]:
        begun, one = time.perf_counter(), trials[0]
        self._begin(one)

        def told(record: Mapping[str, Any]) -> None:
            share = record["step"] / record["steps"]
            if share < 1 and stop(share, record["seconds"]):
                raise _StoppedError

        trained = self._train(trials, keep, told, steps=one.steps, out=self.place(one))
        shared_s = (time.perf_counter() - begun) / len(trials)
        outcomes = []
        for trial, found in zip(trials, trained, strict=True):
            begun, measures = time.perf_counter(), {}
            if not found.why:
                judged = found.judged
                measures = {"choose": judged["choose"]["loss"], **judged["report"]}
                if trial.probe is not None:
                    measures |= _probed(trial, found)
            given = {k: float(v) for k, v in measures.items() if v is not None}
            known = {k: v for k, v in given.items() if math.isfinite(v)}
            broken = (f"{k} is {v}" for k, v in given.items() if k not in known)
            why = found.why or next(broken, None)
            seconds = shared_s + time.perf_counter() - begun
            outcomes.append(Outcome(known, found.tokens, seconds, why, found.row()))
        return outcomes

    def _begin(self, trial: Trial) -> None:
        """One thread, and the data cut into tokens."""
        import torch

        if self.device != "cuda":
            torch.set_num_threads(self.threads)
        _task(trial)

    def _asked(self, trial: Trial, steps: int) -> TrainingRun:
        from scantling.lab.run import TrainingRun

        return TrainingRun(
            spec=trial.spec, lr=trial.rate, schedule=trial.schedule, optimizer=trial.optimizer,
            seed=trial.seed, param=trial.param, device=self.device,
            data=_task(trial), steps=steps,
        )  # fmt: skip

    def _train(
        self, trials: Sequence[Trial], keep: Path | None = None,
        on_step: Callable[[dict[str, Any]], None] | None = None, *, steps: int,
        out: Path | None = None,
    ) -> list[Result]:  # fmt: skip
        """One as it is, kept in ``out``, several together."""
        from scantling.lab.ensemble import compiles
        from scantling.lab.train import train
        from scantling.lab.train_many import train_many

        n = len(trials)
        compiled = self.compile and n > 1 and compiles(n * trials[0].tokens)
        runs = [replace(self._asked(trial, steps), compile=compiled) for trial in trials]
        return [train(replace(runs[0], out=out))] if n == 1 else train_many(runs, keep, on_step)


class _StoppedError(Exception):
    """The time of a group was up."""


def _task(trial: Trial) -> Any:
    """The task of a trial, whose data is what the study began with.

    Raises:
        FieldError: If it is not: changed since, or another on this machine.
    """
    one = task_of(trial.data, trial.batch, trial.context, trial.tokenizer)
    if trial.data_hash not in {None, one.hash}:
        raise FieldError("data", trial.data, "is not what this study began with",
                         "all runs of a study read the same")  # fmt: skip
    return one


@functools.lru_cache(8)
def task_of(data: str, batch: int, context: int, tokenizer: str) -> Any:
    """A task, kept: cutting a corpus into tokens takes longer than a small run."""
    from scantling.lab.data import TextTask, task

    one = task(data, batch, context, tokenizer)
    return replace(one, judged_tokens=JUDGED) if isinstance(one, TextTask) else one


def _probed(trial: Trial, found: Any) -> dict[str, float]:
    module, _, function = str(trial.probe).partition(":")
    probe = getattr(import_module(module), function)
    measures: dict[str, float] = probe(found.model, found.run.task, trial)
    return measures
