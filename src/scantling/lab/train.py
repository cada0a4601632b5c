"""One training run: a spec, data and a rate in; losses that can be compared out.

A run is a function of its settings: batches depend on step and seed alone, so a run that was
killed goes on from its last checkpoint and ends with the same weights, bit for bit on one machine.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import msgspec
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
TOLD_S = 2.0
"""Seconds between words to ``on_step`` while no record is due."""
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
            predicted of them, and between records ``steps`` and how far it is.

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
    return Running(run, among, dtype, on_step, need=need).result()


class Running:
    """The state of a run, and its loop.

    Args:
        run: That is checked.
        among: The processes of it.
        dtype: Of products.
        on_step: As of ``train``.
        kept: A state to go on from, in place of the one in the run's folder.
        need: The memory it is predicted to take.
    """

    def __init__(
        self, run: TrainingRun, among: World, dtype: str,
        on_step: Callable[[Record], None] | None = None, kept: Mapping[str, Any] | None = None,
        need: TrainingMemory | None = None,
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
        self.model = _begun(run).to(among.device)
        self.start = None if run.start is None else run_folder.fingerprint(self.model)
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
        if on is not None and (among.size == 1 or among.device.type == "cuda"):
            self.expected = step_seconds(
                run.spec, run.task.batch_size, run.task.context, dtype, on, among.size
            )
        self.clock = clock(among.device.type, torch.get_num_threads())
        self.losses: list[float] = []
        self.times: list[float] = []
        self.seconds, self.why, self.warning, self.members = 0.0, "", "", 1
        self.records: list[Record] = []
        self.metrics: run_folder.Metrics | None = None
        self.saved = time.monotonic()
        self._open(kept)

    def _open(self, kept: Mapping[str, Any] | None) -> None:
        """Make the folder, and go on from what is kept."""
        folder = self.run.folder
        if folder is not None:
            settings = {**self.run.settings(self.among.device), "start": self.start}
            if self.start is not None:  # a cut model keeps the multipliers of what it was cut from
                settings["numerics"] = msgspec.to_builtins(self.model.numerics)
            if self.among.first:
                where = run_folder.machine(self.among.device)
                self.warning = run_folder.begin(folder, settings, where, self.run.task.asked)
            self.among.agreed(None)
            kept = kept or run_folder.saved(folder)
        if kept is not None:
            progress = run_folder.restore(self.model, self.made, kept)
            self.losses, self.seconds = progress["losses"], progress["seconds"]
            self.times, self.why = progress["times"], progress["why"]
            self.peak_bytes = progress.get("peak_bytes")
        else:
            self.warning = ""
        if self.among.first and folder is not None:
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
        looked = False
        while not self.ended:
            self._interval(self.next_stop(len(self.losses)))
            done = len(self.losses)
            if not looked:  # judging takes memory of its own
                self.peak_bytes = self.watched.peak()
            if self.run.judge_every and done % self.run.judge_every == 0 and not self.ended:
                self.judge("choose")
                looked = True
            if self.run.out is not None and self.among.agreed(self.ended or self._due):
                self.save()
        judged = {}
        if not self.why:
            judged = {name: self.judge(name) for name in ("choose", "report")}
            if any(one["loss"] is None for one in judged.values()):  # the last step broke it
                self.why = (f"the loss on held-back data is no number after step {self.steps} at "
                            f"a learning rate of {self.run.peak_lr:g}")  # fmt: skip
                judged = {}
        timed = self.times[FREE_STEPS:] or self.times
        found = Result(
            run=self.run, model=self.model, records=self.records, losses=self.losses,
            judged=judged, seconds=self.seconds, why=self.why, warning=self.warning,
            step_s=statistics.median(timed) if timed else None, expected=self.expected,
            clock=self.clock.name, peak_bytes=self.peak_bytes, memory=self.need,
            status="diverged" if self.why else "done", members=self.members,
        )  # fmt: skip
        if self.run.folder is not None and self.among.first:
            row = run_folder.line(found.row())
            whole_file.write(self.run.folder / "result.jsonl", row.encode())
        return found

    @property
    def _due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return time.monotonic() - self.saved >= self.run.checkpoint_s

    def _interval(self, end: int) -> None:
        """The steps that are left up to a record, and the record of all since the last one.

        A checkpoint in between ends it early, without a record, so does a loss that is no number.
        """
        first, began = len(self.losses), time.perf_counter()
        told = began
        found: list[Tensor] = []
        norm = torch.zeros(())
        ticks = [self.clock.now()]
        for step in range(first, end):
            loss, norm = self._step(step)
            found.append(loss)
            ticks.append(self.clock.now())
            if self.among.size == 1 and time.perf_counter() - told >= TOLD_S:
                told = time.perf_counter()
                if not math.isfinite(float(loss)) or (self.run.out is not None and self._due):
                    break
                self._mention(step + 1, float(loss), (step + 1 - first) / (told - began))
        losses = torch.stack(found).tolist()
        if self.clock.queued:  # steps only queue; what they take shows in the whole
            n = len(losses)
            ticks = [ticks[0] + (self.clock.now() - ticks[0]) * i / n for i in range(n + 1)]
        times = [after - before for before, after in pairwise(ticks)]
        self.took(losses, times, time.perf_counter() - began, float(norm))

    def took(self, losses: list[float], times: list[float], took: float, norm: float) -> None:
        """Note steps that were taken, and look at whether the run goes on.

        What comes up to a record makes it, of all steps since the last one.

        Args:
            losses: Of each step.
            times: Of each step, by the clock.
            took: Seconds of all of them, on the wall.
            norm: Of the gradient of the last one.
        """
        n, begun = len(losses), self._last_stop(len(self.losses))
        end = self.next_stop(begun)
        self.losses += losses
        self.times += times
        self.seconds += took
        self.why = self._diverged(begun, end)
        if len(self.losses) < end and not self.why:
            return
        end = len(self.losses)
        mean, lr = statistics.fmean(self.losses[begun:]), self.run.peak_lr * self.factor(end - 1)
        self._tell({
            "step": end, "tokens": end * self.run.tokens_a_step, "loss": _finite(mean),
            "bits_per_byte": _bits(mean, self.run.task), "lr": lr,
            "gradient_norm": _finite(norm), "seconds": round(self.seconds, 4),
            "tokens_per_s": round(n * self.run.tokens_a_step / took, 1),
            "remaining_s": round((self.steps - end) * self.seconds / end, 3),
        })  # fmt: skip

    def next_stop(self, at: int) -> int:
        """The step at which a record or a look comes next."""
        return min(self.steps, *((at // every + 1) * every for every in self._beats))

    def _last_stop(self, at: int) -> int:
        """The step at which one came last."""
        return max(at // every * every for every in self._beats)

    @property
    def _beats(self) -> list[int]:
        return [self.every, *([self.run.judge_every] if self.run.judge_every else [])]

    def _mention(self, step: int, loss: float, steps_per_s: float) -> None:
        if self.on_step is not None:
            self.on_step({
                "step": step, "steps": self.steps, "loss": _finite(loss),
                "tokens_per_s": round(steps_per_s * self.run.tokens_a_step, 1),
                "remaining_s": round((self.steps - step) / steps_per_s, 3),
            })  # fmt: skip

    def factor(self, step: int) -> float:
        """On the rate, by the schedule."""
        run = self.run
        return factor(step, self.steps, run.schedule, run.warmup_steps, run.least)

    def _step(self, step: int) -> tuple[Tensor, Tensor]:
        """One step of the optimizer: the mean loss over all processes, and the gradient's norm."""
        rate = self.factor(step)
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

    def _diverged(self, begun: int, end: int) -> str:
        """Why the run must stop; empty where it need not, and before the record is due."""
        lr = f"at a learning rate of {self.run.peak_lr:g}"
        for i, loss in enumerate(self.losses[begun:], begun + 1):
            if not math.isfinite(loss):
                del self.losses[i:], self.times[i:]  # the steps that were under way
                return f"the loss is {loss} at step {i} {lr}"
        if len(self.losses) < end:
            return ""
        mean = statistics.fmean(self.losses[begun:])
        start = max(self.losses[0], math.log(self.run.task.vocab_size))
        if mean > DIVERGED * start:
            return (f"the loss is {mean:.3g} at step {len(self.losses)} {lr}, "
                    f"where a guess without a model has {start:.3g}")  # fmt: skip
        return ""

    def judge(self, held: str) -> dict[str, float | None]:
        """How good the model is on a slice now; what was asked before is not asked again."""
        step = len(self.losses)
        place = {"step": step, "tokens": step * self.run.tokens_a_step, "slice": held}
        known = [r for r in self.records if r.items() >= place.items()]
        if one := self.among.agreed(known[0] if known else None):
            return {name: value for name, value in one.items() if name not in place}
        asked = self.run.task.evaluate(self.model, held)
        found = {name: None if v is None else _finite(v) for name, v in asked.items()}
        self._tell({**place, **found})
        return found

    def _tell(self, record: Record) -> None:
        if self.metrics is not None:
            self.metrics.add(record)
        self.records.append(record)
        if self.on_step is not None and self.among.first:
            self.on_step(record)

    @property
    def ended(self) -> bool:
        """Whether no step is left to take."""
        return len(self.losses) == self.steps or self.why != ""

    def state(self) -> dict[str, Any]:
        """All that the run needs to go on."""
        progress = {"losses": self.losses, "seconds": self.seconds, "times": self.times,
                    "why": self.why, "peak_bytes": self.peak_bytes}  # fmt: skip
        return run_folder.state(self.model, self.made, progress)

    def save(self) -> None:
        """Keep the state in the run's folder."""
        kept = self.state()
        self.saved = time.monotonic()
        if self.among.first:
            assert self.run.folder is not None
            run_folder.save(self.run.folder, kept)


def _begun(run: TrainingRun) -> Decoder:
    """The model before its first step."""
    if run.start is None:
        return Decoder(run.spec, param=run.param, seed=run.seed)
    from scantling.lab.kept import reshaped

    return reshaped(run.start, run.spec, run.param)


def _finite(value: float) -> float | None:
    """JSON has no number for the rest."""
    return value if math.isfinite(value) else None


def _bits(nats: float, one: Task) -> float | None:
    """Bits a byte of a training loss, by the bytes a token has on average."""
    return _finite(nats / math.log(2) / one.bytes_per_token) if one.bytes_per_token else None


__all__ = ["Record", "Result", "TrainingRun", "train"]
