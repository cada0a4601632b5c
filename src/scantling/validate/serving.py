"""Tables of serving: time per output token, time to first token, throughput."""

from __future__ import annotations

import functools
import math

from scantling import catalog
from scantling.costs.serve import (
    Deployment,
    Load,
    Serving,
    Times,
    batch_time,
    load,
    sequence_bytes,
    serve_constants,
    served,
    step_time,
    weights_bytes,
)
from scantling.hardware import Chip, chip
from scantling.spec import Spec
from scantling.validate.table import CsvRow, NotScoredError, Scored, number, reads

SERVING = "serving_e2e_aiconfigurator.csv"
FIXED = "infer_trtllm_fixed_batch.csv"
OFFLINE = "infer_trtllm_max_throughput.csv"
LLAMA_CPP = "infer_llamacpp_readme.csv"

MOST_TP = 16
"""The largest tensor-parallel degree that engines run: two machines of eight."""
LOW_LOAD = 4
"""Requests in flight per group up to which a first token hardly queues."""
MOST_SEQUENCES = 2048
"""Sequences that an offline run keeps in flight: the default of its benchmark script."""
QUANTISED = (
    ("fp4", "fp4"), ("int4", "int4"), ("w4", "int4"), ("fp8", "fp8"), ("int8", "int8"),
    ("bf16", "bf16"), ("bfloat16", "bf16"), ("fp16", "fp16"), ("float16", "fp16"),
)  # fmt: skip
"""Parts of a quantisation's name and the dtype of its weights; the first part found counts."""


def quantised(text: str) -> str:
    """The dtype weights are kept in, of a quantisation as tables spell it.

    Raises:
        NotScoredError: If its name holds no dtype.

    Example:
        >>> [quantised(t) for t in ("nvfp4", "fp8_block", "int4_wo", "w4a16_mxfp4", "bfloat16")]
        ['fp4', 'fp8', 'int4', 'fp4', 'bf16']
    """
    for part, dtype in QUANTISED:
        if part in text.lower():
            return dtype
    raise NotScoredError(f"quantisation {text!r} is not known")


class Layout:
    """How a row splits the model, read out of columns that multiply degrees of the same chips."""

    def __init__(self, row: CsvRow) -> None:
        tp = number(row, "tp_size")
        experts_tp, ep = (number(row, f) if row[f] else 1.0 for f in ("moe_tp_size", "moe_ep_size"))
        loaded = number(row, "concurrency") if row["concurrency"] else 0.0
        batch = number(row, "batch_size")
        if row["attention_dp_size"]:
            dp = number(row, "attention_dp_size")
        else:  # a row without it says how many sequences each group has; its chips are then tp
            dp = max(round(loaded / batch), 1) if ep > 1 else 1.0
            dp = min(dp, tp)
            tp = tp / dp
        total = min(batch * dp, loaded or math.inf)  # replicas share a load, so may groups
        if experts_tp == ep > 1 and experts_tp * ep == tp * dp:
            tp, dp = (tp / ep, 1.0) if dp == 1 else (1.0, dp / ep)
        elif tp == dp > 1 and ep == tp * dp:
            tp = 1.0
        self.tp, self.dp, self.concurrency = int(tp), int(dp), total


def split(row: CsvRow, spec: Spec) -> tuple[int, int, float]:
    """Tensor-parallel degree, groups and sequences of a row.

    Degrees that name the same chips are multiplied in the table: a run on 8 chips with TP 8 and EP
    8 stands there as 64 chips, moe_tp 8 and moe_ep 8, and the same measurement also as 8 chips, TP
    8 and EP 8 (47 measurements stand under both layouts). So where moe_tp = moe_ep = q and their
    product is the chips, there are q chips; where tp = dp = q and ep = q², there are q groups of
    one chip. Other degrees that do not divide the heads are sums over the workers of a
    disaggregated run.

    Raises:
        NotScoredError: If the degrees cannot be those of one model.
    """
    found = Layout(row)
    if int(spec.n_head) % found.tp or found.tp > MOST_TP:
        reason = "tp_size is no degree of one model: the chips of several workers together"
        raise NotScoredError(reason, excluded=True)
    return found.tp, found.dp, found.concurrency


@functools.lru_cache(4096)
def _load(
    model: str, system: str, d: Deployment, prompt: int, answer: int, concurrency: float | None
) -> Load:
    one = chip(system)
    return load(catalog.resolve(model).spec, one, d, prompt, answer, concurrency,
                serve_constants(one))  # fmt: skip


def serving_load(row: CsvRow) -> tuple[Load, Deployment, Chip]:
    """What a row of the serving table asks of which chips.

    Caches are taken to be FP8 where weights are 8 bits or fewer: the table does not say.

    Raises:
        NotScoredError: If the row cannot be scored.
    """
    if row["quality"].startswith("C") or not row["precision"]:
        raise NotScoredError("the table does not state the precision (quality C)", excluded=True)
    spec = catalog.resolve(row["model"]).spec
    tp, dp, concurrency = split(row, spec)
    wide = row["precision"] == "bf16"
    dense, experts = ("bf16" if wide else quantised(row[c] or row["precision"])
                      for c in ("gemm_quant_mode", "moe_quant_mode"))  # fmt: skip
    d = Deployment(tp=tp, dp=dp, weights=dense, experts=experts, cache="bf16" if wide else "fp8")
    prompt, answer = int(number(row, "isl")), int(number(row, "osl"))
    w = _load(row["model"], row["system"], d, prompt, answer, concurrency)
    return w, d, chip(row["system"])


def _served(row: CsvRow) -> tuple[Serving, Load]:
    w, d, one = serving_load(row)
    return served(w, d, serve_constants(one)), w


def _scored(row: CsvRow, group: str, by: str, actual: float, found: Times, scale: float = 1.0
            ) -> Scored:  # fmt: skip
    return Scored(row=row["row_id"], group=group, by=by, actual=actual,
                  predicted=float(found.value) * scale, low=float(found.low) * scale,
                  high=float(found.high) * scale)  # fmt: skip


def _kind(w: Load) -> str:
    return "MoE" if w.routed else "dense"


@reads(SERVING, "time per output token, ms")
def time_per_token(row: CsvRow) -> Scored:
    """Weights, cache, all-reduces, and the prefills of others in between."""
    found, w = _served(row)
    quality = row["quality"][:1]
    return _scored(row, f"{row['model']} {row['system']}", f"{_kind(w)} {quality}",
                   number(row, "tpot_ms"), found.tpot_s, 1e3)  # fmt: skip


@reads(SERVING, "time to first token at low load, ms")
def time_to_first(row: CsvRow) -> Scored:
    """Without a queue only: what a queue adds is not in the row."""
    found, w = _served(row)
    if float(w.sequences) > LOW_LOAD or bool(w.queues):
        reason = f"more than {LOW_LOAD} requests in flight: the first token queues"
        raise NotScoredError(reason, excluded=True)
    return _scored(row, f"{row['model']} {row['system']}", _kind(w), number(row, "ttft_ms"),
                   found.ttft_s, 1e3)  # fmt: skip


def fixed_load(row: CsvRow) -> tuple[Load, Deployment, Chip]:
    """What a row of the fixed-batch table asks: its batch runs together from start to end."""
    one = chip(row["gpu"])
    dtype = quantised(row["precision"])
    cache = "fp8" if dtype == "fp8" else "fp16"
    tp = int(number(row, "tp"))
    d = Deployment(tp=tp, weights=dtype, cache=cache, head="fp16", in_flight=False)
    sizes = (int(number(row, f)) for f in ("isl", "osl"))
    return _load(row["model"], row["gpu"], d, *sizes, number(row, "batch")), d, one


@reads(FIXED, "output rate at a fixed batch, tokens/s")
def fixed_batch(row: CsvRow) -> Scored:
    """Batch × answer / (prefill of the batch + a decode step for each token)."""
    if row["metric"] != "output_tokens_per_s":
        raise NotScoredError("another quantity of this table", excluded=True)
    w, d, one = fixed_load(row)
    c = serve_constants(one)
    share = float(d.tp) if row["unit_scope"] == "per_gpu" else 1.0
    rate = float(w.sequences) * float(w.answer) / float(batch_time(w, c)) / share
    times = Times(rate / c.decode_high**c.widen, rate, rate / c.decode_low**c.widen)
    return _scored(row, f"{row['model']} {row['gpu']}", row["gpu"], number(row, "value"), times)


@reads(FIXED, "time to first token at batch 1, ms")
def first_token(row: CsvRow) -> Scored:
    """A prompt alone in the engine, without a server in front."""
    if row["metric"] != "first_token_latency_ms":
        raise NotScoredError("another quantity of this table", excluded=True)
    w, _, one = fixed_load(row)
    c = serve_constants(one)
    value = float(step_time(w.prefill, c))
    times = Times(value * c.prompt_low**c.widen, value, value * c.prompt_high**c.widen)
    return _scored(row, f"{row['model']} {row['gpu']}", row["gpu"], number(row, "value"), times,
                   1e3)  # fmt: skip


def offline_load(row: CsvRow) -> tuple[Load, Deployment, Chip]:
    """What a row of the offline table asks: as many sequences as memory holds, 2048 at most.

    Raises:
        NotScoredError: If the weights do not fit.
    """
    one = chip(row["gpu"])
    d = Deployment(tp=int(number(row, "tp")), pp=int(number(row, "pp")),
                   weights=quantised(row["weights"]), cache="fp8")  # fmt: skip
    spec = catalog.resolve(row["model"]).spec
    prompt, answer = int(number(row, "isl")), int(number(row, "osl"))
    free = one.usable_bytes * serve_constants(one).memory - float(weights_bytes(spec, d))
    if free <= 0:
        raise NotScoredError("the weights do not fit")
    held = free / float(sequence_bytes(spec, d, prompt + answer))
    return _load(row["model"], row["gpu"], d, prompt, answer, min(held, MOST_SEQUENCES)), d, one


@reads(OFFLINE, "output rate offline, tokens/s")
def offline(row: CsvRow) -> Scored:
    """All requests are queued."""
    w, d, one = offline_load(row)
    found = served(w, d, serve_constants(one))
    group = f"{row['model']} {row['gpu']}"
    actual = number(row, "output_tokens_per_s_total")
    return _scored(row, group, group, actual, found.tokens_per_s)


@reads(LLAMA_CPP, "tokens/s")
def llama_cpp(row: CsvRow) -> Scored:
    """Not scored: the device is not stated."""
    raise NotScoredError(f"the device is {row['device']}: only ratios of rows mean anything",
                         excluded=True)  # fmt: skip
