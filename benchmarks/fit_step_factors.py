"""Fit the factors between kernel times and measured steps in ``data/time.toml``.

    python benchmarks/fit_step_factors.py ../shared/data/measured

Training: the MPT table of llm-foundry, bf16 rows. Decoding: dense Llama on one chip at a
concurrency of at most 32. Prints the median ratio measured / kernels, its 5 to 95 % range and
the mean absolute relative error that the median leaves.
"""

import collections
import csv
import pathlib
import statistics
import sys

from scantling import catalog
from scantling.costs.time import total_time
from scantling.errors import ScantlingError
from scantling.formats import hf
from scantling.hardware import chip
from scantling.ops import operators
from scantling.spec import Workload, has

GPUS = {"h100_80gb": "h100-sxm", "a100_80gb": "a100-sxm-80gb", "a100_40gb": "a100-sxm-40gb"}


def training_ratios(folder):
    found = collections.defaultdict(list)
    for row in csv.DictReader((folder / "train_mpt_llmfoundry.csv").open()):
        if "fp8" in row["precision"]:
            continue
        one = chip(GPUS[row["gpu"]])
        context, batch = int(row["seq_len"]), int(row["micro_batch"])
        spec = hf.read({
            "model_type": "gpt2", "n_embd": int(row["d_model"]), "n_layer": int(row["n_layers"]),
            "n_head": int(row["n_heads"]), "n_inner": int(row["ffn_dim"]),
            "vocab_size": int(row["vocab_size"]), "n_positions": context,
        }).spec  # fmt: skip
        train, forward = Workload("train", batch, context), Workload("prefill", batch, context)
        kernels_s = total_time(operators(spec, train), train, one).value_s
        if row["activation_checkpointing"] == "True":
            kernels_s += total_time(operators(spec, forward), forward, one).value_s
        measured_s = batch * context / float(row["tokens_per_s_per_gpu"])
        found[f"training.{one.architecture}"].append(measured_s / kernels_s)
    return found


def decode_ratios(folder):
    found = collections.defaultdict(list)
    for row in csv.DictReader((folder / "serving_e2e_aiconfigurator.csv").open()):
        batch = float(row["concurrency"] or 0)
        if (
            row["tp_size"] != "1.0"
            or not 0 < batch <= 32
            or row["precision"] not in {"fp8", "bf16"}
        ):
            continue
        name = row["model"].split("/")[-1].lower().replace("-instruct", "")
        try:
            spec, one = catalog.model(name), chip(row["system"])
            if has(spec, "n_expert"):
                continue
        except ScantlingError:
            continue
        context = int(float(row["isl"]) + float(row["osl"]) / 2)
        work = Workload("decode", int(batch), context, dtype=row["precision"])
        kernels_s = total_time(operators(spec, work), work, one).value_s
        found["decode"].append(float(row["tpot_ms"]) / 1e3 / kernels_s)
    return found


def main():
    folder = pathlib.Path(sys.argv[1])
    for name, ratios in {**training_ratios(folder), **decode_ratios(folder)}.items():
        middle = statistics.median(ratios)
        cuts = statistics.quantiles(ratios, n=20, method="inclusive")
        error = statistics.mean(abs(middle / r - 1) for r in ratios)
        print(f"{name}: factor {middle:.3g} low {cuts[0]:.3g} high {cuts[-1]:.3g} "
              f"error {error:.3g} rows {len(ratios)}")  # fmt: skip


if __name__ == "__main__":
    main()
