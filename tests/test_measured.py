"""The second source of kernel times: another package's tables, where it is installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from scantling import catalog
from scantling.costs.kernels.attention import Shape, decode_time, prefill_time
from scantling.costs.kernels.collective import collective_time
from scantling.costs.kernels.measured import (
    _between,
    installed,
    measured_collective,
    measured_decode,
    measured_gemm,
    measured_prefill,
    measured_time,
    tables,
)
from scantling.costs.measured import sourced_times
from scantling.errors import FieldError
from scantling.hardware import chip, chips, cluster
from scantling.ops import operators
from scantling.sources import sources
from scantling.spec import Workload

np = pytest.importorskip("numpy")
needs_package = pytest.mark.skipif(
    installed() is None, reason="aiconfigurator-core (extra kernels) is not installed"
)


def prompt(queries, width=128):
    return Shape(batch=2, queries=queries, keys=queries, n_head=32, n_kv_head=8, d_key=width)


def test_nothing_is_imported_unless_asked():
    code = (
        "import sys, scantling.costs.time; "
        "bad = {'scantling.costs.kernels.measured', 'pyarrow', 'aiconfigurator_core'}; "
        "sys.exit(len(bad & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_the_package_there_is_no_answer(monkeypatch):
    monkeypatch.setattr("scantling.costs.kernels.measured.installed", lambda: None)
    assert measured_gemm(chip("h100"), "bf16", 4096, 4096, 4096) is None


def test_every_system_is_a_chip_and_every_source_an_entry():
    assert set(tables().system) <= set(chips())
    assert set(tables().sources) <= set(sources())


def test_a_column_that_no_table_has_is_an_error():
    with pytest.raises(FieldError, match="rows does not fit the gemm table"):
        measured_time(chip("h100"), "gemm", gemm_dtype="bfloat16", rows=1, n=1, k=1, m=1)


def test_between_points_the_time_is_straight_in_the_logarithms():
    """Times of 2 m n are a plane in the logarithms: any point between is met exactly."""
    grid = [(m, n) for m in (1, 4, 16) for n in (2, 8)]
    rows = {
        "m": np.array([m for m, _ in grid]),
        "n": np.array([n for _, n in grid]),
        "latency": np.array([2.0 * m * n for m, n in grid]),
    }
    assert _between(rows, ("m", "n"), (4.0, 8.0)) == (64.0, False)
    value, between = _between(rows, ("m", "n"), (7.0, 3.0))
    assert between
    assert value == pytest.approx(42.0)
    for outside in ((32.0, 4.0), (0.5, 4.0), (4.0, 16.0)):
        assert _between(rows, ("m", "n"), outside) is None


def test_the_fastest_kernel_at_a_point_is_taken_and_gaps_are_not_bridged():
    rows = {"m": np.array([1, 1, 64]), "latency": np.array([3.0, 2.0, 9.0])}
    assert _between(rows, ("m",), (1.0,)) == (2.0, False)
    assert _between(rows, ("m",), (8.0,)) is None


@needs_package
def test_a_measured_product_names_its_table_and_runs_below_the_peak():
    for name in ("a100", "h100", "h200-sxm", "b200", "l40s"):
        got = measured_gemm(chip(name), "bf16", 4096, 4096, 4096)
        assert got.kind == "measured"
        assert "aiconfigurator-core" in got.source
        assert "gemm_perf" in got.source
        assert 0.3 < 2 * 4096**3 / got.time.value_s / chip(name).rate("bf16") < 1


@needs_package
def test_what_lies_between_points_says_so_and_is_less_sure():
    at = measured_gemm(chip("h100"), "bf16", 4096, 4096, 4096)
    between = measured_gemm(chip("h100"), "bf16", 4000, 4096, 4096)
    assert not at.between
    assert between.time.value_s < at.time.value_s * 1.1
    if between.between:
        assert between.time.high_s / between.time.value_s > at.time.high_s / at.time.value_s


@needs_package
def test_outside_the_tables_there_is_no_answer():
    assert measured_gemm(chip("h100"), "bf16", 10**7, 4096, 4096) is None
    assert measured_gemm(chip("mi300x"), "bf16", 4096, 4096, 4096) is None
    assert measured_prefill(chip("h100"), "bf16", prompt(2048, 80)) is None


@needs_package
def test_the_fitted_model_is_near_the_tables_where_both_answer():
    """Not a score: the public tables the model was fitted on come from the same measurements."""
    h100 = chip("h100")
    shape = prompt(4096)
    fitted = prefill_time(h100, "bf16", shape)
    assert 0.5 < measured_prefill(h100, "bf16", shape).time.value_s / fitted.value_s < 2
    one = Shape(batch=64, queries=1, keys=4096, n_head=32, n_kv_head=8, d_key=128)
    fitted = decode_time(h100, "bf16", one)
    assert 0.5 < measured_decode(h100, "bf16", one).time.value_s / fitted.value_s < 2
    fitted = collective_time(cluster("h100", 8), "all_gather", 2**28, 8)
    got = measured_collective(h100, "all_gather", 2**28, 8)
    assert 0.7 < got.time.value_s / fitted.value_s < 1.4


@needs_package
@pytest.mark.parametrize("question", ["latent_prefill", "latent_decode"])
def test_latents_of_a_deepseek_shape_are_there(question):
    length = "isl" if question == "latent_prefill" else "keys"
    at = {"mla_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "num_heads": 128,
          "batch_size": 8, length: 4096}  # fmt: skip
    if question == "latent_prefill":
        at["step"] = 0
    assert measured_time(chip("h100"), question, **at).time.value_s > 0


@needs_package
def test_experts_take_longer_the_more_tokens_there_are():
    at = {"moe_dtype": "bfloat16", "hidden_size": 4096, "inter_size": 14336, "topk": 2,
          "num_experts": 8, "moe_tp_size": 1, "moe_ep_size": 1,
          "distribution": "balanced"}  # fmt: skip
    got = [measured_time(chip("h100"), "experts", num_tokens=n, **at) for n in (512, 4096, 16384)]
    times = [g.time.value_s for g in got]
    assert times == sorted(times)


@pytest.mark.parametrize("phase", ["prefill", "decode", "train"])
def test_every_operator_has_a_time_and_says_where_it_is_from(phase):
    spec, work = catalog.model("llama-3.1-8b"), Workload(phase, 4, 4096)
    found = sourced_times(operators(spec, work), work, chip("h100"))
    kinds = {s.kind for s in found}
    assert "fitted" in kinds
    if installed() is not None:
        assert "measured" in kinds
    for s in found:
        assert s.time.lower_s <= s.time.low_s <= s.time.value_s <= s.time.high_s <= s.time.upper_s
        assert (s.kind == "measured") is bool(s.source)


@needs_package
@pytest.mark.parametrize(("name", "phase"), [("llama-3.1-8b", "decode"), ("deepseek-v3", "decode")])
def test_attention_of_a_served_model_is_measured(name, phase):
    spec, work = catalog.model(name), Workload(phase, 8, 4096)
    cores = [op for op in operators(spec, work) if op.kind == "attention"]
    assert {s.kind for s in sourced_times(cores, work, chip("h100"))} == {"measured"}
