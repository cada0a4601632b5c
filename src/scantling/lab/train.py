"""One training run: a spec, data and a rate in; losses that can be compared out.

A run is a function of its settings: batches depend on step and seed alone, so a run that was
killed goes on from its last checkpoint and ends with the same weights, bit for bit on one machine.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from scantling.calibrate.timing import clock
from scantling.costs.memory import TrainingMemory
from scantling.costs.plain import unmodelled
from scantling.costs.train import Estimate
from scantling.errors import FieldError
from scantling.lab import run_folder, whole_file
from scantling.lab.distributed import World, spread, world
from scantling.lab.expected import Watched, check_memory, chip_of, memory, step_seconds
from scantling.lab.grammar import buildable, learnable
from scantling.lab.model import Decoder
from scantling.lab.optimizers import factor, optimizers, whole
from scantling.lab.run import Record, Result, TrainingRun, dtype_of
from scantling.lab.tasks import IGNORED, Task, read

DIVERGED = 2.0
"""A mean loss this many times the larger of the first loss and of a blind guess has diverged."""
FREE_STEPS = 2
"""Steps that no time is taken from: memory is still being found, and code compiled."""


def train(run: TrainingRun, on_step: Callable[[Record], None] | None = None) -> Result:
    """Train a model; go on where the run's folder holds a part of the same run.

    Args:
        run: What to train, on what, how long.
        on_step: Is told every record: ``step``, ``tokens``, ``loss`` (mean over the steps since
            the last record, nats a token), ``lr``, ``gradient_norm``, ``seconds``,
            ``tokens_per_s``, ``remaining_s``; and of each look at a slice ``slice``, ``loss``,
            ``bits_per_byte``, ``accuracy``. Before the first step it is told ``steps`` and what is
            predicted of them.

    Raises:
        FieldError: If something asked cannot be.

    Example:
        >>> from scantling import catalog, vary
        >>> from scantling.lab.shrink import shrink
        >>> spec = vary(shrink(catalog.model("qwen3-0.6b"), 60_000), vocab_size=16)
        >>> found = train(TrainingRun(spec=spec, data="hops:nodes=4", steps=3, device="cpu"))
        >>> found.status, found.steps, found.tokens
        ('done', 3, 432)
    """
    among = world(run.device)
    run = run.checked()
    if run.task.batch_size % among.size:  # else some would wait for passes that others never make
        raise FieldError("batch", run.task.batch_size, f"must be a multiple of {among.size}, the "
                         "number of processes")  # fmt: skip
    dtype = dtype_of(run, among.device)
    buildable(run.spec)
    learnable(run.spec)
    need = memory(run.spec, run.task.batch_size, run.task.context, dtype, run.optimizer,
                  micro_batch=run.micro_batch, ranks=among.size)  # fmt: skip
    check_memory(need, among.device)
    return _Training(run, among, dtype, on_step, need).result()


class _Training:
    """The state of a run, and its loop."""

    def __init__(
        self, run: TrainingRun, among: World, dtype: str,
        on_step: Callable[[Record], None] | None, need: TrainingMemory,
    ) -> None:  # fmt: skip
        # casts and fused code keep other tensors
        known = dtype == "fp32" and not run.compile and unmodelled(run.spec) is None
        self.need, self.watched = need if known else None, Watched(among.device)
        self.peak_bytes: int | None = None
        self.run, self.among, self.on_step = run, among, on_step
        self.steps, self.every = run.n_steps, run.record_every or max(1, run.n_steps // 20)
        self.cast: Callable[[], AbstractContextManager[Any]] = nullcontext
        if dtype == "bf16":
            self.cast = lambda: torch.autocast(among.device.type, torch.bfloat16)
        self.model = Decoder(run.spec, param=run.param, seed=run.seed).to(among.device)
        if run.compile:
            tokens, _, source = read(self.model, *run.task.batch(0, run.seed))
            for one in (tokens, tokens if source is None else source):
                self.model.warm(one.shape[-1])
        names = {p: name for name, p in self.model.named_parameters()}
        groups = self.model.groups(run.peak_lr, run.weight_decay)
        grouped = [[names[p] for p in group["params"]] for group in groups]
        spread(self.model, among)
        spread_out = dict(self.model.named_parameters())
        for group, members in zip(groups, grouped, strict=True):
            group["params"] = [spread_out[name] for name in members]
        self.made = optimizers(self.model, groups, run.optimizer, run.rates)
        self.loss = self.model.loss
        if run.compile:
            self.loss = torch.compile(self.model.loss, dynamic=False)
        on = chip_of(among.device, run.chip)
        self.expected: Estimate | None = None
        if on is not None:
            self.expected = step_seconds(
                run.spec, run.task.batch_size, run.task.context, dtype, on, among.size
            )
        self.clock = clock(among.device.type, torch.get_num_threads())
        self.losses: list[float] = []
        self.times: list[float] = []
        self.seconds, self.why, self.warning = 0.0, "", ""
        self.records: list[Record] = []
        self.metrics: run_folder.Metrics | None = None
        self._open()

    def _open(self) -> None:
        """Make the folder, or go on from what it holds."""
        folder = self.run.folder
        if folder is None:
            return
        settings = self.run.settings(self.among.device)
        if self.among.first:
            self.warning = run_folder.begin(folder, settings, run_folder.machine(self.among.device))
        self.among.agreed(None)
        kept = run_folder.saved(folder)
        if kept is not None:
            progress = run_folder.restore(self.model, self.made, kept)
            self.losses, self.seconds = progress["losses"], progress["seconds"]
            self.times, self.why = progress["times"], progress["why"]
            self.peak_bytes = progress.get("peak_bytes")
        else:
            self.warning = ""
        if self.among.first:
            self.metrics = run_folder.Metrics(folder, len(self.losses))
            self.records = list(self.metrics.records)

    def result(self) -> Result:
        """Take the steps that are left, judge, and write the result."""
        if self.on_step is not None and self.among.first:
            left = self.steps - len(self.losses)
            s = None if self.expected is None else float(self.expected.value_s)
            self.on_step({"step": len(self.losses), "steps": self.steps, "predicted_step_s": s,
                          "predicted_peak_bytes": None if self.need is None else round(
                              float(self.need.total)),
                          "remaining_s": None if s is None else left * s})  # fmt: skip
        saved = time.monotonic()
        beats = [self.every, *([self.run.judge_every] if self.run.judge_every else [])]
        looked = False
        while len(self.losses) < self.steps and not self.why:
            at = len(self.losses)
            self._interval(min(self.steps, *((at // every + 1) * every for every in beats)))
            done = len(self.losses)
            if not looked:  # judging takes memory of its own
                self.peak_bytes = self.watched.peak()
            ended = done == self.steps or self.why != ""
            if self.run.judge_every and done % self.run.judge_every == 0 and not ended:
                self._judge("choose")
                looked = True
            due = ended or time.monotonic() - saved >= self.run.checkpoint_s
            if self.run.out is not None and self.among.agreed(due):
                self._save()
                saved = time.monotonic()
        judged = {}
        if not self.why:
            judged = {name: self._judge(name) for name in ("choose", "report")}
        timed = self.times[FREE_STEPS:] or self.times
        found = Result(
            run=self.run, model=self.model, records=self.records, losses=self.losses,
            judged=judged, seconds=self.seconds, why=self.why, warning=self.warning,
            step_s=statistics.median(timed) if timed else None, expected=self.expected,
            clock=self.clock.name, peak_bytes=self.peak_bytes, memory=self.need,
            status="diverged" if self.why else "done",
        )  # fmt: skip
        if self.run.folder is not None and self.among.first:
            row = run_folder.line(found.row())
            whole_file.write(self.run.folder / "result.jsonl", row.encode())
        return found

    def _interval(self, end: int) -> None:
        """The steps up to a record, and the record."""
        begun, began = len(self.losses), time.perf_counter()
        found: list[Tensor] = []
        norm = torch.zeros(())
        ticks = [self.clock.now()]
        for step in range(begun, end):
            loss, norm = self._step(step)
            found.append(loss)
            ticks.append(self.clock.now())
        self.losses += torch.stack(found).tolist()
        if self.clock.queued:  # steps only queue; what they take shows in the whole
            n = end - begun
            ticks = [ticks[0] + (self.clock.now() - ticks[0]) * i / n for i in range(n + 1)]
        self.times += [after - before for before, after in pairwise(ticks)]
        took = time.perf_counter() - began
        self.seconds += took
        self.why = self._diverged(begun)
        n = end - begun
        mean = statistics.fmean(self.losses[begun:])
        self._tell({
            "step": end, "tokens": end * self.run.tokens_a_step, "loss": _finite(mean),
            "bits_per_byte": _bits(mean, self.run.task), "lr": self._lr(end - 1),
            "gradient_norm": _finite(float(norm)), "seconds": round(self.seconds, 4),
            "tokens_per_s": round(n * self.run.tokens_a_step / took, 1),
            "remaining_s": round((self.steps - end) * self.seconds / end, 3),
        })  # fmt: skip

    def _lr(self, step: int) -> float:
        run = self.run
        return run.peak_lr * factor(step, self.steps, run.schedule, run.warmup_steps, run.least)

    def _step(self, step: int) -> tuple[Tensor, Tensor]:
        """One step of the optimizer: the mean loss over all processes, and the gradient's norm."""
        rate = self._lr(step) / self.run.peak_lr
        for one in self.made:
            for group in one.param_groups:
                group["lr"] = group["base"] * rate
        total = torch.zeros((), device=self.among.device)
        for tokens, targets, source, share in self._passes(step):
            with self.cast():
                loss = self.loss(tokens, targets, source) * share
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        limit = math.inf if self.run.clip is None else self.run.clip
        norm = whole(nn.utils.clip_grad_norm_(self.model.parameters(), limit)).detach()
        for one in self.made:
            one.step()
            one.zero_grad()
        return self.among.mean(total), norm

    def _passes(self, step: int) -> Iterator[tuple[Tensor, Tensor, Tensor | None, float]]:
        """This process's rows of a step in passes, each with its share of the step's targets.

        A pass has the mean over its own targets; weighted by targets in the pass / in the step,
        the sum is the mean over the step. FSDP takes the mean over processes, so each counts
        once more for every process.
        """
        run, rank, size = self.run, self.among.rank, self.among.size
        batch = run.task.batch(step, run.seed)
        tokens_BT, targets_BT, source = read(self.model, *(t.to(self.among.device) for t in batch))
        rows = run.task.batch_size
        each, last = run.micro_batch or rows, (rank + 1) * rows // size
        targets_in_all = int((targets_BT != IGNORED).sum())
        for first in range(rank * rows // size, last, each):
            some = slice(first, min(first + each, last))
            share = int((targets_BT[some] != IGNORED).sum()) / targets_in_all * size
            if share == 0 and size == 1:
                continue  # a mean over no target is no number
            yield (tokens_BT[some], targets_BT[some], None if source is None else source[some],
                   share)  # fmt: skip

    def _diverged(self, begun: int) -> str:
        """Why the run must stop; empty where it need not."""
        lr = f"at a learning rate of {self.run.peak_lr:g}"
        for i, loss in enumerate(self.losses[begun:], begun + 1):
            if not math.isfinite(loss):
                return f"the loss is {loss} at step {i} {lr}"
        mean = statistics.fmean(self.losses[begun:])
        start = max(self.losses[0], math.log(self.run.task.vocab_size))
        if mean > DIVERGED * start:
            return (f"the loss is {mean:.3g} at step {len(self.losses)} {lr}, "
                    f"where a guess without a model has {start:.3g}")  # fmt: skip
        return ""

    def _judge(self, held: str) -> dict[str, float | None]:
        """How good the model is on a slice now; what was asked before is not asked again."""
        step = len(self.losses)
        place = {"step": step, "tokens": step * self.run.tokens_a_step, "slice": held}
        known = [r for r in self.records if r.items() >= place.items()]
        if one := self.among.agreed(known[0] if known else None):
            return {name: value for name, value in one.items() if name not in place}
        found = self.run.task.evaluate(self.model, held)
        self._tell({**place, **found})
        return found

    def _tell(self, record: Record) -> None:
        if self.metrics is not None:
            self.metrics.add(record)
        self.records.append(record)
        if self.on_step is not None and self.among.first:
            self.on_step(record)

    def _save(self) -> None:
        progress = {"losses": self.losses, "seconds": self.seconds, "times": self.times,
                    "why": self.why, "peak_bytes": self.peak_bytes}  # fmt: skip
        kept = run_folder.state(self.model, self.made, progress)
        if self.among.first:
            assert self.run.folder is not None
            run_folder.save(self.run.folder, kept)


def _finite(value: float) -> float | None:
    """JSON has no number for the rest."""
    return value if math.isfinite(value) else None


def _bits(nats: float, one: Task) -> float | None:
    """Bits a byte of a training loss, by the bytes a token has on average."""
    return _finite(nats / math.log(2) / one.bytes_per_token) if one.bytes_per_token else None


__all__ = ["Record", "Result", "TrainingRun", "train"]
