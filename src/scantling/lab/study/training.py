"""How a trial is really run: by ``lab.train``, in one thread, with probes on what was trained."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from scantling.errors import FieldError
from scantling.lab.study.trial import Data, Outcome, Pace, Trial
from scantling.lab.version import code_version

if TYPE_CHECKING:
    from scantling.lab.data import Windows

TIMED_STEPS, TIMED_S, MOST_STEPS = 5, 3.0, 150
"""Steps that are timed, more of them until so many seconds are sampled: what else the machine does
comes in bursts longer than a step."""
JUDGED = {"choose": 2**14, "report": 2**15}
"""Tokens that slices of a text are judged on: the same ones for all runs, so that what chance put
in them is in no difference. Judging all of a slice would take as long as a small run."""


class Training:
    """Trains for real.

    Args:
        device: ``cpu`` or ``cuda``; a GPU where there is one, by default.
        threads: Of each process on a CPU.
        models: Where models are kept that several studies look at; each is the folder of a run,
            which ``lab probe`` and ``lab train --from`` take too. None keeps nothing.
    """

    def __init__(
        self, device: str | None = None, threads: int = 1, models: Path | None = None
    ) -> None:
        self.device, self.threads = device, threads
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
        found = self._train(trial, steps=trial.steps, out=self.place(trial))
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

    def _train(self, trial: Trial, **more: Any) -> Any:
        from scantling.lab.train import TrainingRun, train

        return train(TrainingRun(
            spec=trial.spec, lr=trial.rate, schedule=trial.schedule, optimizer=trial.optimizer,
            seed=trial.seed, param=trial.param, device=self.device, data=_task(trial), **more,
        ))  # fmt: skip


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
    return replace(one, slices=_fewer(one.slices, context)) if isinstance(one, TextTask) else one


def _fewer(slices: Mapping[str, Windows], context: int) -> dict[str, Windows]:
    """The slices that are judged on thinned out evenly."""
    found = dict(slices)
    for name, tokens in JUDGED.items():
        starts = slices[name].starts
        every = max(len(starts) * context // tokens, 1)
        found[name] = replace(slices[name], starts=starts[::every])
    return found


def _probed(trial: Trial, found: Any) -> dict[str, float]:
    module, _, function = str(trial.probe).partition(":")
    probe = getattr(import_module(module), function)
    measures: dict[str, float] = probe(found.model, found.run.task, trial)
    return measures
