"""Tables of training steps: predictions of what each row measured."""

from __future__ import annotations

from scantling.costs.train import Estimate, forward_time
from scantling.validate.runs import PASSES, RUNS, Run, flops_a_chip, single
from scantling.validate.table import CsvRow, NotScoredError, Scored, reads


def scored(row: CsvRow, group: str, actual: float, found: Estimate, name: str = "") -> Scored:
    """A row's score from an estimate of its quantity."""
    return Scored(
        row=row.get("row_id") or name, group=group, actual=actual,
        predicted=float(found.value_s), low=float(found.low_s), high=float(found.high_s),
    )  # fmt: skip


def speed(run: Run, amount: float) -> Estimate:
    """So much a step of each chip, in a second."""
    step = run.step().step
    return Estimate(amount / step.value_s, amount / step.high_s, amount / step.low_s)


def tokens(table: str, column: str = "tokens_per_s_per_gpu") -> None:
    """Score a column of tokens a second and chip."""

    @reads(table, "training tokens/s per GPU")
    def predict(row: CsvRow) -> Scored:
        run = RUNS[table](row)
        if not row.get(column):
            raise NotScoredError(f"no {column}", excluded=True)
        return scored(row, run.group, float(row[column]), speed(run, run.tokens_a_chip))


def rates(table: str, column: str) -> None:
    """Score a column of TFLOP/s and chip, by the table's own convention of FLOPs."""

    @reads(table, "training TFLOP/s per GPU")
    def predict(row: CsvRow) -> Scored:
        run = RUNS[table](row)
        if not row.get(column):
            raise NotScoredError(f"no {column}", excluded=True)
        tera = flops_a_chip(row, run) / 1e12
        return scored(row, run.group, float(row[column]), speed(run, tera))


def seconds(table: str, column: str, unit_s: float) -> None:
    """Score a column of times of a step."""

    @reads(table, f"training step, {'ms' if unit_s < 1 else 's'}")
    def predict(row: CsvRow) -> Scored:
        run = RUNS[table](row)
        return scored(row, run.group, float(row[column]), run.step().step.times(1 / unit_s))


def shares(table: str, column: str) -> None:
    """Score a column of MFU in percent."""

    @reads(table, "training MFU, %")
    def predict(row: CsvRow) -> Scored:
        run = RUNS[table](row)
        return scored(row, run.group, float(row[column]), run.step().mfu.times(100))


tokens("train_mpt_llmfoundry.csv")
tokens("train_megatron_bridge.csv")
tokens("train_torchtitan.csv")
rates("train_megatron_weak_scaling.csv", "tflops_per_gpu")
rates("train_nemo_long_sequence.csv", "tflops_per_gpu_with_cp")
rates("train_mleng_llama8b_seqsweep.csv", "model_tflops_per_gpu")
seconds("train_korthikanti2022_itertime.csv", "iter_time_s", 1.0)
seconds("train_simumax_b200.csv", "iter_time_ms", 1e-3)
shares("train_maxtext_tpu.csv", "mfu_pct")


def single_chip(column: str, *, compiled: bool) -> None:
    """Score a column of times of a pass or a step on one chip."""

    @reads("train_mleng_singlegpu_step.csv", f"{column.removesuffix('_ms')} pass or step, ms")
    def predict(row: CsvRow) -> Scored:
        run = single(row, compiled=compiled)
        kind = PASSES[row["workload"]]
        if kind == "forward":
            found = forward_time(run.spec, run.plan, run.recipe, run.context, run.cluster)
        else:
            whole = run.step()
            rest = whole.optimizer_s if kind == "both" else 0.0
            share = 1 - rest / whole.step.value_s
            found = whole.step.times(float(share))
        name = f"{row['model']} {row['workload']}"
        return scored(row, run.group, float(row[column]), found.times(1e3), name)


single_chip("eager_ms", compiled=False)
single_chip("compile_ms", compiled=True)
