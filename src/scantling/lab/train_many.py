"""Runs of one shape at once: other rates, other seeds, and each the run that it would be alone.

They differ from lone runs by rounding alone. Among themselves they are as exact as those: the same
runs begun together end with the same weights, bit for bit on one machine, wherever a kill cut in.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from scantling.errors import FieldError
from scantling.lab import run_folder
from scantling.lab.distributed import world
from scantling.lab.ensemble import Ensemble, together
from scantling.lab.expected import check_memory, memory
from scantling.lab.grammar import buildable, learnable
from scantling.lab.optimizers import moments, remember
from scantling.lab.run import Record, Result, TrainingRun, dtype_of
from scantling.lab.tasks import read
from scantling.lab.train import Running

OWN = {"lr", "seed"}
"""What runs that are trained together may differ in."""


def at_once(run: TrainingRun, n: int) -> bool:
    """Whether n runs of a shape are trained faster together; measured on CPUs, in fp32, alone.

    Example:
        >>> from scantling import catalog, vary
        >>> from scantling.lab.shrink import shrink
        >>> spec = vary(shrink(catalog.model("qwen3-0.6b"), 60_000), vocab_size=16)
        >>> run = TrainingRun(spec=spec, data="hops:nodes=4", steps=3, device="cpu")
        >>> at_once(run, 8), at_once(replace(run, micro_batch=4), 8)
        (True, False)
    """
    among = world(run.device)
    plain = among.size == 1 and among.device.type == "cpu" and run.micro_batch is None
    batch, context = run.task.batch_size, run.task.context
    return plain and dtype_of(run, among.device) == "fp32" and together(run.spec, batch, context, n)


def train_many(
    runs: Sequence[TrainingRun], keep: Path | None = None,
    on_step: Callable[[Record], None] | None = None,
) -> list[Result]:  # fmt: skip
    """Train runs that differ in rate and seed alone as one batched model.

    Each has its own data order, clipping and end: one that diverges is stopped as it would be
    alone, and the others go on.

    Args:
        runs: In one process, in fp32.
        keep: A folder for the state of all while they train; they go on from what it holds.
            The caller removes it once it has the results.
        on_step: Is told ``step``, ``steps``, and of those that still train ``loss``, their mean,
            ``tokens_per_s``, ``seconds`` and ``remaining_s``.

    Raises:
        FieldError: If the runs differ in more, or something asked cannot be.

    Example:
        >>> from scantling import catalog, vary
        >>> from scantling.lab.shrink import shrink
        >>> spec = vary(shrink(catalog.model("qwen3-0.6b"), 60_000), vocab_size=16)
        >>> run = TrainingRun(spec=spec, data="hops:nodes=4", steps=3, device="cpu")
        >>> found = train_many([replace(run, seed=s) for s in range(3)])
        >>> [one.status for one in found], [one.run.seed for one in found]
        (['done', 'done', 'done'], [0, 1, 2])
    """
    return _Many(runs, keep, on_step).results()


class _Many:
    """The states of runs, and the loop that they share."""

    def __init__(
        self, runs: Sequence[TrainingRun], keep: Path | None,
        on_step: Callable[[Record], None] | None,
    ) -> None:  # fmt: skip
        among = world(runs[0].device)
        one = runs[0].task
        runs = [replace(run, data=one, batch=None, context=None).checked() for run in runs]
        settings = [{**run.settings(among.device), "start": run.start} for run in runs]
        for name in settings[0].keys() - OWN:
            if any(s[name] != settings[0][name] for s in settings):
                raise FieldError("runs", name, "differs", "runs of one shape and recipe are "
                                 "trained together")  # fmt: skip
        first = self.first = runs[0]
        if among.size > 1 or first.micro_batch or dtype_of(first, among.device) != "fp32":
            raise FieldError("runs", len(runs), "are trained together in one process, in fp32, "
                             "without micro-batches")  # fmt: skip
        buildable(first.spec)
        learnable(first.spec)
        need = memory(first.spec, one.batch_size, one.context, "fp32", first.optimizer)
        check_memory(need, among.device, len(runs))
        self.keep, self.on_step, self.device = keep, on_step, among.device
        kept = None if keep is None else run_folder.saved(keep, ("runs",))
        states = {} if kept is None else kept["runs"]
        self.members = [Running(r, among, "fp32", kept=states.get(_name(r))) for r in runs]
        for member in self.members:
            member.members = len(runs)
        self.clock = self.members[0].clock

    def results(self) -> list[Result]:
        """Take all steps, judge each."""
        while left := [m for m in self.members if not m.ended]:
            at = len(left[0].losses)
            # what is compiled is for so many members: those that diverged are carried along
            self._stretch([m for m in self.members
                           if (m in left and len(m.losses) == at)
                           or (m.why and self.first.compile)])  # fmt: skip
        return [m.result() for m in self.members]

    def _stretch(self, group: list[Running]) -> None:
        """Train some until all have ended or, where nothing is compiled, one diverged."""
        run, alive = self.first, [m for m in group if not m.ended]
        ensemble = Ensemble(
            [m.model for m in group], [m.run.peak_lr for m in group], run.weight_decay,
            math.inf if run.clip is None else run.clip, run.optimizer, run.rates,
            compile=run.compile,
        )  # fmt: skip
        ensemble.remember([moments(m.model, m.made) for m in group])
        saved, over = time.monotonic(), False
        while not over:
            at = len(alive[0].losses)
            end = alive[0].next_stop(at)
            self._interval(ensemble, group, at, end)
            alive = [m for m in group if not m.ended]
            over = not alive or (not run.compile and len(alive) < len(group))
            looks = run.judge_every is not None and end % run.judge_every == 0
            due = over or looks or time.monotonic() - saved >= run.checkpoint_s
            if due:
                for i, m in enumerate(group):
                    ensemble.into(i, m.model)
                    remember(m.model, m.made, ensemble.moments(i))
                for m in alive if looks else ():
                    m.judge("choose")
                self._save(group if over else ())
                saved = time.monotonic()

    def _interval(self, ensemble: Ensemble, group: list[Running], at: int, end: int) -> None:
        """The steps up to a record of each member that goes on."""
        began, losses, ticks = time.perf_counter(), [], [self.clock.now()]
        for step in range(at, end):
            tokens, targets, source = self._batches(group, step)
            losses.append(ensemble.step(tokens, targets, group[0].factor(step), source))
            ticks.append(self.clock.now())
        losses_EN = torch.stack(losses, 1).tolist()
        n = len(group)
        times = [(after - before) / n for before, after in pairwise(ticks)]
        took = time.perf_counter() - began
        alive = [i for i, m in enumerate(group) if not m.ended]
        for i in alive:
            group[i].took(losses_EN[i], times, took / n, float(ensemble.norms_E[i]))
        if self.on_step is not None:
            seconds, steps = sum(m.seconds for m in self.members), self.members[0].steps
            last = [losses_EN[i][-1] for i in alive]
            per_s = n * (end - at) * self.first.tokens_a_step / took
            self.on_step({"step": end, "steps": steps, "loss": sum(last) / len(last),
                          "tokens_per_s": per_s, "seconds": seconds,
                          "remaining_s": (steps - end) * seconds / end})  # fmt: skip

    def _batches(self, group: list[Running], step: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Tokens, targets and source of a step, of each member by its seed."""
        found = {}
        for seed in {m.run.seed for m in group}:
            batch = (t.to(self.device) for t in self.first.task.batch(step, seed))
            found[seed] = read(group[0].model, *batch)
        tokens, targets, sources = zip(*(found[m.run.seed] for m in group), strict=True)
        has = sources[0] is not None
        return torch.stack(tokens), torch.stack(targets), torch.stack(sources) if has else None

    def _save(self, ended: Sequence[Running]) -> None:
        """Keep the state of all in one file, and that of those that ended in their own folders."""
        if self.keep is not None:
            self.keep.mkdir(parents=True, exist_ok=True)
            run_folder.save(self.keep, {"runs": {_name(m.run): m.state() for m in self.members}})
        for m in ended:
            if m.ended and m.run.folder is not None:
                m.save()


def _name(run: TrainingRun) -> str:
    """Of a run among those of one shape."""
    return f"lr {run.peak_lr!r} seed {run.seed}"
