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
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from scantling.costs.features import features
from scantling.costs.train import Estimate
from scantling.errors import FieldError, UnknownNameError
from scantling.lab import run_folder
from scantling.lab.data import describe
from scantling.lab.data import task as task_of
from scantling.lab.distributed import World, spread, world
from scantling.lab.expected import check_memory, chip_of, step_seconds
from scantling.lab.model import Decoder
from scantling.lab.optimizers import SCHEDULES, factor, optimizers, whole
from scantling.lab.tasks import IGNORED, Task
from scantling.spec import Spec, check

Record = dict[str, Any]
DTYPES = ("fp32", "bf16", "auto")
DIVERGED = 2.0
"""A mean loss this many times the larger of the first loss and of a blind guess has diverged."""
FREE_STEPS = 2
"""Steps that no time is taken from: memory is still being found, and code compiled."""
WARMUP = 0.05


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """Everything a run depends on, and where it is kept.

    Args:
        spec: The model; its vocabulary holds that of the data.
        data: A task, or its name (see ``lab.data.task``).
        steps: Of the optimizer; or
        tokens: how many to train on, rounded down to whole steps.
        batch: Sequences of a step, over all processes; 16 unless the task says so.
        context: Tokens of a sequence; 128 unless the task says so.
        tokenizer: Where ``data`` is a name of a text: ``bytes`` or ``bpe:1024``.
        lr: Peak learning rate; 3e-3 · 64 / d_model by default under ``sp`` (near the best of
            models below a million parameters), 2⁻⁷ under the other parametrisations.
        schedule: ``cosine``, ``wsd`` or ``constant``.
        warmup: Steps; a twentieth of all by default.
        least: Where the schedule ends, as a share of the peak.
        optimizer: ``adamw`` or ``muon``.
        weight_decay: Decoupled, times the learning rate.
        clip: Norm the gradient is scaled down to; None for never.
        rates: Factors on the rate by the beginning of a parameter's name: layer-wise rates, and 0
            to freeze.
        seed: Of the weights and of the order of the data.
        param: ``sp``, ``mup`` or ``completep``.
        dtype: ``fp32``; ``bf16`` for products under autocast; ``auto`` takes bf16 where the device
            has it and d_model is at least 96, where it pays.
        compile: Whether torch.compile makes the step; on a CPU it pays from millions of tokens.
        micro_batch: Sequences of one pass; a step is so many passes as it takes.
        device: ``cpu`` or ``cuda``; a GPU where there is one, by default.
        chip: Chip or chip file that step times are predicted for.
        out: The run's folder; None keeps nothing.
        record_every: Steps between records; 20 records in all, or more, by default.
        judge_every: Steps between looks at the slice ``choose``; only at the end by default.
        checkpoint_s: Seconds between checkpoints.
    """

    spec: Spec
    data: Task | str
    steps: int | None = None
    tokens: int | None = None
    batch: int | None = None
    context: int | None = None
    tokenizer: str = "bytes"
    lr: float | None = None
    schedule: str = "cosine"
    warmup: int | None = None
    least: float = 0.0
    optimizer: str = "adamw"
    weight_decay: float = 0.1
    clip: float | None = 1.0
    rates: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    param: str = "sp"
    dtype: str = "fp32"
    compile: bool = False
    micro_batch: int | None = None
    device: str | None = None
    chip: str | None = None
    out: Path | None = None
    record_every: int | None = None
    judge_every: int | None = None
    checkpoint_s: float = 60.0

    @cached_property
    def task(self) -> Task:
        """What is trained on."""
        if isinstance(self.data, str):
            return task_of(self.data, self.batch, self.context, self.tokenizer)
        for name, own in (("batch", self.data.batch_size), ("context", self.data.context)):
            if getattr(self, name) not in {None, own}:
                raise FieldError(name, getattr(self, name), f"is {own} in the task given")
        return self.data

    @property
    def tokens_a_step(self) -> int:
        """Batch × context."""
        return self.task.batch_size * self.task.context

    @property
    def n_steps(self) -> int:
        """Steps of the whole run."""
        if (self.steps is None) == (self.tokens is None):
            raise FieldError("steps", self.steps, "or tokens must be given, and not both")
        if self.steps is not None:
            return self.steps
        assert self.tokens is not None
        if self.tokens < self.tokens_a_step:
            raise FieldError("tokens", f"{self.tokens:,}", "are fewer than the "
                             f"{self.tokens_a_step:,} of one batch", "give more, or lower batch "
                             "or context")  # fmt: skip
        return self.tokens // self.tokens_a_step

    @property
    def peak_lr(self) -> float:
        """The learning rate, given or by rule."""
        if self.lr is not None:
            return self.lr
        return 3e-3 * 64 / int(self.spec.d_model) if self.param == "sp" else 2.0**-7

    @property
    def warmup_steps(self) -> int:
        """Steps of warmup."""
        return round(WARMUP * self.n_steps) if self.warmup is None else self.warmup

    def settings(self, device: torch.device) -> dict[str, Any]:
        """All that decides the result, as written to ``run.json``."""
        return {
            "spec": msgspec.to_builtins(self.spec), "data": describe(self.task),
            "batch": self.task.batch_size, "context": self.task.context, "steps": self.n_steps,
            "lr": self.peak_lr, "schedule": self.schedule, "warmup": self.warmup_steps,
            "least": self.least, "optimizer": self.optimizer, "weight_decay": self.weight_decay,
            "clip": self.clip, "rates": dict(self.rates), "seed": self.seed, "param": self.param,
            "dtype": dtype_of(self, device), "compile": self.compile,
            "micro_batch": self.micro_batch,
        }  # fmt: skip

    def checked(self) -> TrainingRun:
        """The same run, whose values are possible.

        Raises:
            FieldError: If one is not.
        """
        check(self.spec)
        for name in ("steps", "tokens", "micro_batch", "record_every", "judge_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise FieldError(name, value, "must be at least 1")
        if not (self.peak_lr > 0 and math.isfinite(self.peak_lr)):
            raise FieldError("lr", self.peak_lr, "must be above 0 and finite")
        if self.clip is not None and not self.clip > 0:
            raise FieldError("clip", self.clip, "must be above 0")
        if self.schedule not in SCHEDULES:
            raise UnknownNameError("schedule", self.schedule, SCHEDULES)
        if self.dtype not in DTYPES:
            raise UnknownNameError("dtype", self.dtype, DTYPES)
        if self.optimizer == "muon" and self.param != "sp":
            raise FieldError("optimizer", "muon", f"has no rates for {self.param}", "use sp")
        if not 0 <= self.warmup_steps <= self.n_steps:
            raise FieldError("warmup", self.warmup, f"must be 0 to steps {self.n_steps}")
        if int(self.spec.vocab_size) < self.task.vocab_size:
            raise FieldError("vocab_size", self.spec.vocab_size, f"must be at least the "
                             f"{self.task.vocab_size} of {self.task.name}")  # fmt: skip
        return self


@dataclass(frozen=True, kw_only=True)
class Result:
    """A run that ended.

    Args:
        run: What was asked.
        model: As trained.
        records: The lines of ``metrics.jsonl``.
        losses: Training loss of every step, nats a token.
        judged: Loss, bits_per_byte and accuracy by slice.
        seconds: Of training, without judging and writing.
        step_s: Median time of a step.
        expected: The same as predicted; None where no chip is known.
        status: ``done`` or ``diverged``.
        why: Where it diverged.
        warning: What keeps a run that went on from being equal bit for bit.
    """

    run: TrainingRun
    model: nn.Module
    records: list[Record]
    losses: list[float]
    judged: dict[str, dict[str, float | None]]
    seconds: float
    step_s: float | None
    expected: Estimate | None
    status: str = "done"
    why: str = ""
    warning: str = ""

    @property
    def steps(self) -> int:
        """Steps that were taken."""
        return len(self.losses)

    @property
    def tokens(self) -> int:
        """Tokens that were trained on."""
        return self.steps * self.run.tokens_a_step

    def row(self) -> dict[str, Any]:
        """The run as ``laws fit`` reads one: shape, tokens, recipe, loss on ``report``."""
        run, one = self.run, self.run.task
        f = features(run.spec, self.tokens, context=one.context)
        judged = self.judged.get("report", {})
        return {
            "status": self.status, "why": self.why, "params_nonemb": int(f.body),
            "params_total": int(f.total), "width": int(f.width), "depth": int(f.depth),
            "head_dim": f.d_head, "heads": f.n_head, "kv_heads": f.n_kv_head,
            "n_experts": f.n_experts, "vocab": int(run.spec.vocab_size), "tokens": self.tokens,
            "unique_tokens": min(self.tokens, one.unique_tokens),
            "loss": judged.get("loss"), "bits_per_byte": judged.get("bits_per_byte"),
            "accuracy": judged.get("accuracy"),
            "loss_choose": self.judged.get("choose", {}).get("loss"),
            "tokens_per_byte": 1 / one.bytes_per_token if one.bytes_per_token else None,
            "dataset": f"{one.name} {one.hash[:12]}", "loss_kind": "report",
            "tokenizer": describe(one)["tokenizer"],
            "lr_note": f"{run.optimizer} {run.schedule} {run.param}", "lr": run.peak_lr,
            "seq_len": one.context, "batch": one.batch_size, "seed": run.seed,
            "seconds": round(self.seconds, 3), "step_s": self.step_s,
            "step_s_predicted": None if self.expected is None else float(self.expected.value_s),
        }  # fmt: skip


def dtype_of(run: TrainingRun, device: torch.device) -> str:
    """The dtype of products: bf16 pays from a width of about 96 where the device has it.

    On one thread with AVX-512 BF16 it took 0.88 of fp32's speed at 0.1 M parameters, 1.25 at
    0.5 M and 1.64 at 10 M.
    """
    if run.dtype != "auto":
        return run.dtype
    if device.type == "cuda":
        has = torch.cuda.is_bf16_supported()
    else:
        has = bool(torch.cpu._is_avx512_bf16_supported())  # noqa: SLF001 - torch has no public one
    return "bf16" if has and int(run.spec.d_model) >= 96 else "fp32"


def train(run: TrainingRun, on_step: Callable[[Record], None] | None = None) -> Result:
    """Train a model; go on where the run's folder holds a part of the same run.

    Args:
        run: What to train, on what, how long.
        on_step: Is told every record: ``step``, ``tokens``, ``loss`` (mean over the steps since
            the last record, nats a token), ``lr``, ``gradient_norm``, ``seconds``,
            ``tokens_per_s``, ``remaining_s``; and of each look at a slice ``slice``, ``loss``,
            ``bits_per_byte``, ``accuracy``.

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
    dtype = dtype_of(run, among.device)
    check_memory(run.spec, run.micro_batch or run.task.batch_size, run.task.context, dtype,
                 among.device)  # fmt: skip
    return _Training(run, among, dtype, on_step).result()


class _Training:
    """The state of a run, and its loop."""

    def __init__(
        self, run: TrainingRun, among: World, dtype: str,
        on_step: Callable[[Record], None] | None,
    ) -> None:  # fmt: skip
        self.run, self.among, self.on_step = run, among, on_step
        self.steps, self.every = run.n_steps, run.record_every or max(1, run.n_steps // 20)
        self.cast: Callable[[], AbstractContextManager[Any]] = nullcontext
        if dtype == "bf16":
            self.cast = lambda: torch.autocast(among.device.type, torch.bfloat16)
        self.model = Decoder(run.spec, param=run.param, seed=run.seed).to(among.device)
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
        self.expected = None if on is None else step_seconds(
            run.spec, run.task.batch_size, run.task.context, dtype, on, among.size
        )  # fmt: skip
        self.losses: list[float] = []
        self.times: list[float] = []
        self.seconds, self.why, self.warning = 0.0, "", ""
        self.records: list[Record] = []
        self.metrics: run_folder.Metrics | None = None
        self._open()

    def _open(self) -> None:
        """Make the folder, or go on from what it holds."""
        folder = self.run.out
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
        else:
            self.warning = ""
        if self.among.first:
            self.metrics = run_folder.Metrics(folder, len(self.losses))
            self.records = list(self.metrics.records)

    def result(self) -> Result:
        """Take the steps that are left, judge, and write the result."""
        saved = time.monotonic()
        while len(self.losses) < self.steps and not self.why:
            end = min(self.steps, (len(self.losses) // self.every + 1) * self.every)
            self._interval(end)
            done = len(self.losses)
            if not self.why and self.run.judge_every and done < self.steps:
                looks = done // self.run.judge_every
                if looks > (done - self.every) // self.run.judge_every:
                    self._judge("choose")
            due = self.run.out is not None and (
                self.why != "" or done == self.steps
                or time.monotonic() - saved >= self.run.checkpoint_s
            )  # fmt: skip
            if self.among.agreed(due):
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
            status="diverged" if self.why else "done",
        )  # fmt: skip
        if self.run.out is not None and self.among.first:
            row = run_folder.line(found.row())
            run_folder.write(self.run.out / "result.jsonl", row.encode())
        return found

    def _interval(self, end: int) -> None:
        """The steps up to a record, and the record."""
        began, begun = time.perf_counter(), len(self.losses)
        found: list[Tensor] = []
        norm = torch.zeros(())
        for step in range(begun, end):
            started = time.perf_counter()
            loss, norm = self._step(step)
            found.append(loss)
            self.times.append(time.perf_counter() - started)
        self.losses += torch.stack(found).tolist()
        took = time.perf_counter() - began
        self.seconds += took
        self.why = self._diverged(begun)
        n = end - begun
        mean = statistics.fmean(self.losses[begun:])
        if self.among.device.type == "cuda":  # steps only queue there; the wait is in the whole
            self.times[-n:] = [took / n] * n
        self._tell({
            "step": end, "tokens": end * self.run.tokens_a_step, "loss": _finite(mean),
            "bits_per_byte": _bits(mean, self.run.task), "lr": self._lr(end - 1),
            "gradient_norm": _finite(float(norm)), "seconds": round(self.seconds, 4),
            "tokens_per_s": round(n * self.run.tokens_a_step / took, 1),
            "remaining_s": round((self.steps - end) * statistics.median(self.times), 3),
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
        for tokens, targets, share in self._passes(step):
            with self.cast():
                loss = self.loss(tokens, targets) * share
            loss.backward()
            total += loss.detach()
        limit = math.inf if self.run.clip is None else self.run.clip
        norm = whole(nn.utils.clip_grad_norm_(self.model.parameters(), limit)).detach()
        for one in self.made:
            one.step()
            one.zero_grad()
        return self.among.mean(total), norm

    def _passes(self, step: int) -> Iterator[tuple[Tensor, Tensor, float]]:
        """This process's rows of a step in passes, each with its share of the step's targets.

        A pass has the mean over its own targets; weighted by targets in the pass / in the step,
        the sum is the mean over the step. FSDP takes the mean over processes, so each counts
        once more for every process.
        """
        tokens_BT, targets_BT = self.run.task.batch(step, self.run.seed)
        whole_count = int((targets_BT != IGNORED).sum())
        rank, size = self.among.rank, self.among.size
        rows, device = self.run.task.batch_size, self.among.device
        mine = slice(rank * rows // size, (rank + 1) * rows // size)
        tokens_BT, targets_BT = tokens_BT[mine], targets_BT[mine]
        each = self.run.micro_batch or rows
        for i in range(0, len(tokens_BT), each):
            targets = targets_BT[i : i + each]
            share = int((targets != IGNORED).sum()) / whole_count * size
            yield tokens_BT[i : i + each].to(device), targets.to(device), share

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
        found = self.run.task.evaluate(self.model, held)
        step = len(self.losses)
        self._tell({"step": step, "tokens": step * self.run.tokens_a_step, "slice": held, **found})
        return found

    def _tell(self, record: Record) -> None:
        if self.metrics is not None:
            self.metrics.add(record)
        self.records.append(record)
        if self.on_step is not None and self.among.first:
            self.on_step(record)

    def _save(self) -> None:
        progress = {"losses": self.losses, "seconds": self.seconds, "times": self.times,
                    "why": self.why}  # fmt: skip
        kept = run_folder.state(self.model, self.made, progress)
        if self.among.first:
            assert self.run.out is not None
            run_folder.save(self.run.out, kept)


def _finite(value: float) -> float | None:
    """JSON has no number for the rest."""
    return value if math.isfinite(value) else None


def _bits(nats: float, one: Task) -> float | None:
    """Bits a byte of a training loss, by the bytes a token has on average."""
    return _finite(nats / math.log(2) / one.bytes_per_token) if one.bytes_per_token else None
