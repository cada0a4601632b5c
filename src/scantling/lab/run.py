"""What a training run depends on, and what comes of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import msgspec
import torch
from torch import nn

from scantling.costs.features import features
from scantling.costs.memory import TrainingMemory
from scantling.costs.train import Estimate
from scantling.errors import FieldError, UnknownNameError
from scantling.lab.data import describe
from scantling.lab.data import task as task_of
from scantling.lab.default_rate import Param, default_rate
from scantling.lab.optimizers import SCHEDULES
from scantling.lab.tasks import Task
from scantling.spec import Spec, check

Record = dict[str, Any]
DTYPES = ("fp32", "bf16", "auto")
WARMUP = 0.05
"""Share of the steps."""


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
        lr: Peak learning rate; ``default_rate`` unless given.
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
        start: Folder of a run, a cut model or published weights to begin from, in place of random
            weights; its tensors must be those of ``spec``.
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
    param: Param = "sp"
    dtype: str = "fp32"
    compile: bool = False
    micro_batch: int | None = None
    device: str | None = None
    start: Path | str | None = None
    chip: str | None = None
    out: Path | str | None = None
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
    def folder(self) -> Path | None:
        """Where the run is kept."""
        return None if self.out is None else Path(self.out)

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
        return default_rate(self.spec, self.n_steps, self.param) if self.lr is None else self.lr

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
        self._check_numbers()
        self._check_names()
        if not 0 <= self.warmup_steps <= self.n_steps:
            raise FieldError("warmup", self.warmup, f"must be 0 to steps {self.n_steps}")
        if int(self.spec.vocab_size) < self.task.vocab_size:
            raise FieldError("vocab_size", self.spec.vocab_size, f"must be at least the "
                             f"{self.task.vocab_size} of {self.task.name}")  # fmt: skip
        return self

    def _check_numbers(self) -> None:
        for name in ("steps", "tokens", "micro_batch", "record_every", "judge_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise FieldError(name, value, "must be at least 1")
        if not (self.peak_lr > 0 and math.isfinite(self.peak_lr)):
            raise FieldError("lr", self.peak_lr, "must be above 0 and finite")
        for name in ("seed", "weight_decay", "least"):
            if getattr(self, name) < 0:
                raise FieldError(name, getattr(self, name), "must not be below 0")
        for prefix, rate in self.rates.items():
            if not (rate >= 0 and math.isfinite(rate)):
                raise FieldError(f"rates {prefix}", rate, "must not be below 0")
        if self.clip is not None and not self.clip > 0:
            raise FieldError("clip", self.clip, "must be above 0")

    def _check_names(self) -> None:
        if self.schedule not in SCHEDULES:
            raise UnknownNameError("schedule", self.schedule, SCHEDULES)
        if self.dtype not in DTYPES:
            raise UnknownNameError("dtype", self.dtype, DTYPES)
        if self.param not in get_args(Param):
            raise UnknownNameError("param", self.param, get_args(Param))
        if self.optimizer == "muon" and self.param != "sp":
            raise FieldError("optimizer", "muon", f"has no rates for {self.param}", "use sp")


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
        step_s: Median time of a step, by the clock that other programs disturb least.
        expected: The same as predicted; None where no chip is known.
        clock: ``thread``, the time one thread ran, or ``wall``.
        peak_bytes: The most memory held, from before the model was built to the first look at
            held-back data: on a GPU of tensors, else how far the process grew; None where no step
            was taken or the system does not say.
        memory: What tensors need by ``costs.memory``; None in bf16 or compiled, where other
            tensors are kept.
        status: ``done`` or ``diverged``.
        why: Where it diverged.
        warning: What keeps a run that went on from being equal bit for bit.
        members: Runs that were trained together with it, and itself; times are its share.
    """

    run: TrainingRun
    model: nn.Module
    records: list[Record]
    losses: list[float]
    judged: dict[str, dict[str, float | None]]
    seconds: float
    step_s: float | None
    expected: Estimate | None
    clock: str
    peak_bytes: int | None
    memory: TrainingMemory | None
    status: str = "done"
    why: str = ""
    warning: str = ""
    members: int = 1

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
            "seconds": round(self.seconds, 3), "step_s": self.step_s, "members": self.members,
            "step_s_predicted": None if self.expected is None else float(self.expected.value_s),
            "peak_bytes": self.peak_bytes,
            "peak_bytes_predicted":
                None if self.memory is None else round(float(self.memory.total)),
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
