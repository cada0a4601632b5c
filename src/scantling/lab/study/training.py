"""How a trial is really run: by ``lab.train``, in one thread, with probes on what was trained."""

from __future__ import annotations

import functools
import math
import time
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from scantling.errors import FieldError
from scantling.lab.study.trial import Data, Outcome, Pace, Trial

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
    """

    def __init__(self, device: str | None = None, threads: int = 1) -> None:
        self.device, self.threads = device, threads

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

    def pace(self, trial: Trial) -> Pace:
        """Time five steps, building and judging apart."""
        begun = time.perf_counter()
        self._begin(trial)
        first = self._train(trial, steps=TIMED_STEPS)  # it also loads what a process loads once
        once_s = time.perf_counter() - begun
        begun = time.perf_counter()
        steps = math.ceil(TIMED_S / float(first.step_s))
        found = self._train(trial, steps=min(max(steps, TIMED_STEPS), MOST_STEPS))
        step_s = found.seconds / found.steps
        all_s = time.perf_counter() - begun
        if trial.probe is not None:
            begun = time.perf_counter()
            _probed(trial, found)
            all_s += time.perf_counter() - begun
        return Pace(0.0, step_s, max(all_s - found.seconds, 0.0), once_s)

    def run(self, trial: Trial) -> Outcome:
        """Train, judge on both slices, probe."""
        begun = time.perf_counter()
        self._begin(trial)
        found = self._train(trial, steps=trial.steps)
        row = found.row()
        if found.why:
            seconds = time.perf_counter() - begun
            return Outcome({}, found.tokens, seconds, found.why, row)
        judged = found.judged
        measures = {"choose": judged["choose"]["loss"], **judged["report"]}
        if trial.probe is not None:
            measures |= _probed(trial, found)
        known = {k: float(v) for k, v in measures.items() if v is not None}
        return Outcome(known, found.tokens, time.perf_counter() - begun, row=row)

    def _begin(self, trial: Trial) -> None:
        """One thread, and the data cut into tokens."""
        import torch

        if self.device != "cuda":
            torch.set_num_threads(self.threads)
        _task(trial)

    def _train(self, trial: Trial, **length: Any) -> Any:
        from scantling.lab.train import TrainingRun, train

        return train(TrainingRun(
            spec=trial.spec, lr=trial.rate, schedule=trial.schedule, optimizer=trial.optimizer,
            seed=trial.seed, param=trial.param, device=self.device, data=_task(trial), **length,
        ))  # fmt: skip


def _task(trial: Trial) -> Any:
    """The task of a trial, whose data is what the study began with.

    Raises:
        FieldError: If it is not: changed since, or another on this machine.
    """
    one = _kept_task(trial.data, trial.batch, trial.context, trial.tokenizer)
    if trial.data_hash not in {None, one.hash}:
        raise FieldError("data", trial.data, "is not what this study began with",
                         "all runs of a study read the same")  # fmt: skip
    return one


@functools.lru_cache(4)
def _kept_task(data: str, batch: int, context: int, tokenizer: str) -> Any:
    """A task, kept: cutting a corpus into tokens takes longer than a small run."""
    from scantling.lab.data import TextTask, task

    one = task(data, batch, context, tokenizer)
    return replace(one, judged_tokens=JUDGED) if isinstance(one, TextTask) else one


def _probed(trial: Trial, found: Any) -> dict[str, float]:
    module, _, function = str(trial.probe).partition(":")
    probe = getattr(import_module(module), function)
    measures: dict[str, float] = probe(found.model, found.run.task, trial)
    return measures
