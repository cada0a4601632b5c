"""Products, experts and light work take what public tables measured, and scale as they should."""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict

import pytest

from scantling import catalog
from scantling.costs.kernels import elementwise_time, gemm_time, grouped_time
from scantling.costs.kernels.gemm import product_bytes
from scantling.costs.time import op_time, total_time, touched
from scantling.hardware import chip, chips
from scantling.ops import operators
from scantling.spec import Workload, vary
from scantling.validate import gemm as readers
from scantling.validate.table import TABLES, Scored, scores

BARS = {
    "a100-sxm-80gb": (0.10, 0.13), "h100-sxm": (0.08, 0.13), "h200-sxm": (0.08, 0.13),
    "b200-sxm": (0.10, 0.13), "l40s": (0.14, 0.30),
}  # fmt: skip
"""Median error of large BF16 products, and mean error of small ones."""
WIDTHS = (96, 128, 576, 2048, 4096, 11008)


def table(shared, name):
    path = shared / "data" / "measured" / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def scored(shared, name):
    """Every score of a table by what is predicted."""
    rows = table(shared, name)
    found = {r.quantity: list(scores(r, rows)) for r in TABLES if r.table == name}
    return rows, found


# ---------------------------------------------------------------- against the tables


def test_large_and_small_products_of_each_chip_keep_the_bars(shared):
    rows, found = scored(shared, "gemm_aiconfigurator.csv")
    errors = defaultdict(list)
    for row, one in zip(rows, found["latency, µs"], strict=True):
        assert isinstance(one, Scored)
        if row["dtype"] == "bfloat16":
            size = "large" if int(row["m"]) >= 1024 else "small" if int(row["m"]) <= 256 else ""
            errors[chip(row["gpu"]).key, size].append(abs(one.predicted / one.actual - 1))
    assert len(errors) >= 8
    for (key, size), wrong in errors.items():
        if size == "large":
            assert statistics.median(wrong) <= BARS[key][0], key
        elif size == "small":
            assert statistics.mean(wrong) <= BARS[key][1], key


@pytest.mark.parametrize(
    "name", ["gemm_aiconfigurator.csv", "moe_aiconfigurator.csv", "layer_ops_vidur.csv"]
)
def test_nine_intervals_in_ten_hold_what_was_measured(shared, name):
    _, found = scored(shared, name)
    every = [one for of in found.values() for one in of if isinstance(one, Scored)]
    assert len(every) > 1000
    inside = sum(one.low <= one.actual <= one.high for one in every) / len(every)
    assert 0.85 <= inside <= 0.97


def test_projections_of_another_stack_are_met_without_a_refit(shared):
    _, found = scored(shared, "layer_ops_vidur.csv")
    for name in ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj"):
        wrong = [abs(one.predicted / one.actual - 1) for one in found[f"{name}, ms"]]
        assert statistics.median(wrong) <= 0.10, name


def test_large_light_work_takes_what_was_measured(shared):
    rows, found = scored(shared, "layer_ops_vidur.csv")
    for name in ("input_layernorm", "add", "mlp_act", "attn_rope"):
        wrong = [
            abs(one.predicted / one.actual - 1)
            for row, one in zip(rows, found[f"{name}, ms"], strict=True)
            if int(row["num_tokens"]) >= 4096 and isinstance(one, Scored)
        ]
        assert statistics.median(wrong) <= 0.15, name


def test_a_chip_known_by_four_medians_meets_them(shared):
    """Of L40S only medians of the fraction of the peak by smallest dimension are published."""
    one = chip("l40s")
    shapes = {
        tuple(int(row[x]) for x in "mnk")
        for row in table(shared, "gemm_aiconfigurator.csv")
        if row["dtype"] == "bfloat16" and int(row["m"]) >= 1024
    }
    bins = {(511, 1024): 0.55, (1024, 2048): 0.62, (2048, 4096): 0.63, (4096, 10**9): 0.57}
    for (low, high), median in bins.items():
        reached = [
            2 * m * n * k / float(gemm_time(one, "bf16", m, n, k).value_s) / one.rate("bf16")
            for m, n, k in shapes
            if low < min(m, n, k) <= high
        ]
        assert statistics.median(reached) == pytest.approx(median, abs=0.02)


def test_the_best_products_by_search_lie_near_the_fitted_rates(shared):
    _, found = scored(shared, "gemm_mamf_best_shape.csv")
    every = [one for one in found["rate, TFLOP/s"] if isinstance(one, Scored)]
    assert len(every) >= 18
    assert statistics.median(abs(one.predicted / one.actual - 1) for one in every) <= 0.10


# ---------------------------------------------------------------- alone


@pytest.mark.parametrize("key", sorted(chips()))
def test_every_chip_times_a_product_between_its_bounds(key):
    one = chips()[key]
    for dtype in one.dtypes:
        for m, n, k in ((1, 4096, 4096), (4096, 4096, 4096), (32768, 16384, 65536)):
            time = gemm_time(one, dtype, m, n, k)
            assert 0 < time.lower_s <= time.low_s <= time.value_s <= time.high_s <= time.upper_s


def test_a_product_is_never_faster_than_its_bytes_or_its_flops():
    one = chip("h100")
    time = gemm_time(one, "bf16", 2, 4096, 4096)
    moved = 2 * (2 * 4096 + 4096 * 4096 + 2 * 4096)
    assert product_bytes("bf16", 2, 4096, 4096) == moved
    assert time.lower_s == pytest.approx(moved / 3.35e12)
    assert gemm_time(one, "bf16", 8192, 8192, 8192).lower_s == pytest.approx(2 * 8192**3 / 989e12)


@pytest.mark.parametrize("key", ["h100-sxm", "a100-sxm-80gb", "b200-sxm", "l40s"])
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_an_array_of_products_is_each_product(key, dtype):
    np = pytest.importorskip("numpy")
    one = chip(key)
    if dtype not in one.dtypes:
        pytest.skip(f"{key} has no rate for {dtype}")
    m, n, k = np.meshgrid([1, 100, 4096], WIDTHS, WIDTHS)
    m, n, k = (a.ravel().astype(np.int64) for a in (m, n, k))
    many = gemm_time(one, dtype, m, n, k, 3, 2)
    for i in range(0, len(m), 7):
        own = gemm_time(one, dtype, int(m[i]), int(n[i]), int(k[i]), 3, 2)
        for field in ("lower_s", "low_s", "value_s", "high_s", "upper_s"):
            assert getattr(many, field)[i] == pytest.approx(getattr(own, field), rel=1e-12)


def test_products_too_large_for_an_int64_do_not_wrap():
    np = pytest.importorskip("numpy")
    huge = np.array([2**22], dtype=np.int64)
    time = gemm_time(chip("h100"), "bf16", huge, huge, huge)
    assert time.lower_s[0] == pytest.approx(2 * 2.0**66 / 989e12)


def test_light_work_of_an_array_is_that_of_each():
    np = pytest.importorskip("numpy")
    moved = np.array([1e3, 1e6, 1e9])
    for kind in ("copy", "norm", "activation", "rotary"):
        many = elementwise_time(chip("a100"), moved, 2, kind)
        for i, one in enumerate(moved):
            alone = elementwise_time(chip("a100"), float(one), 2, kind)
            assert many.value_s[i] == pytest.approx(alone.value_s)
            assert many.high_s[i] == pytest.approx(alone.high_s)


def test_narrow_inputs_that_must_be_brought_there_take_longer():
    one = chip("h100")
    brought = gemm_time(one, "fp8", 4096, 1024, 4096)
    given = gemm_time(one, "fp8", 4096, 1024, 4096, narrowed=True)
    assert given.value_s < brought.value_s


def test_a_family_lends_its_constants_with_a_wider_interval():
    """H800 is of the family that H100 and H200 were measured of; V100 of none."""
    known, like, unseen = chip("h100-sxm"), chip("h800-sxm"), chip("v100")
    assert (known.constants.gemm.kind, like.constants.gemm.kind) == ("fitted", "assumed")
    assert known.constants.gemm.widen < like.constants.gemm.widen
    assert known.constants.gemm.fp8.widen < like.constants.gemm.fp8.widen

    def width(one, dtype):
        time = gemm_time(one, dtype, 8192, 8192, 8192)
        return float(time.high_s) / float(time.low_s)

    assert width(known, "bf16") < width(like, "bf16")
    assert width(known, "fp16") < width(unseen, "fp16")
    assert like.constants.gemm.least < unseen.constants.gemm.least


def test_experts_cost_by_those_that_are_touched():
    """Of 128 experts, 8 a token: one token touches 8, many touch all."""
    assert touched(128, 8, 1) == pytest.approx(8)
    assert touched(128, 8, 10_000) == pytest.approx(128)
    one = chip("h100")
    few, all_ = (grouped_time(one, "bf16", 64, 4096, 2048, e) for e in (8, 64))
    weights = 2 * 4096 * 2048 * 8
    assert few.lower_s == pytest.approx(weights / 3.35e12)
    assert few.value_s < all_.value_s


def test_experts_split_into_odd_widths_took_twice_as_long(shared):
    """704 wide over 16 ranks is 44, over 8 ranks 88: half the work that takes as long or longer."""
    found = defaultdict(dict)
    for row in table(shared, "moe_aiconfigurator.csv"):
        if row["moe_dtype"] == "bfloat16" and row["moe_ep_size"] == "1":
            inner = int(row["inter_size"]) / int(row["moe_tp_size"])
            found[inner % 16 != 0][row["row_id"]] = row
    for crooked_width in (False, True):
        ratios = []
        for row in found[crooked_width].values():
            one = readers.fused_experts(row)
            ratios.append(one.predicted / one.actual)
        assert statistics.median(ratios) == pytest.approx(1.0, abs=0.15)


def test_the_three_products_of_routed_experts_work_out_the_same_flops():
    """Forward, and the gradients of inputs and of weights: 2 m n k each, so bounds are equal."""
    spec, one = catalog.model("mixtral-8x7b"), chip("h100")
    work = Workload("train", 4, 4096)
    up = [op for op in operators(spec, work) if "experts_up" in op.name]
    assert [op.backward for op in up] == [False, True, True]
    lowers = [float(op_time(op, work, one).lower_s) for op in up]
    flops = 2 * 16384 * 2 * 4096 * 2 * 14336 * 32
    assert lowers == pytest.approx([flops / 989e12] * 3)


def test_a_column_of_models_is_timed_as_each_model():
    np = pytest.importorskip("numpy")
    work, one = Workload("train", 2, 2048), chip("a100")
    for name, field, values in (
        ("llama-3.1-8b", "d_ff", [10922, 14336, 11008]),
        ("mixtral-8x7b", "n_expert", [8, 16, 64]),
    ):
        spec = catalog.model(name)
        column = vary(spec, **{field: np.array(values)})
        many = total_time(operators(column, work), work, one)
        for i, value in enumerate(values):
            each = vary(spec, **{field: value})
            alone = total_time(operators(each, work), work, one)
            assert many.value_s[i] == pytest.approx(float(alone.value_s), rel=1e-9)
            assert many.high_s[i] == pytest.approx(float(alone.high_s), rel=1e-9)


def test_readers_name_what_they_cannot_score():
    row = {"row_id": "x", "accelerator": "A100 SXM", "dtype": "fp8_e4m3", "m": "8", "n": "8",
           "k": "8", "achieved_tflops": "1"}  # fmt: skip
    reader = next(r for r in TABLES if r.predict is readers.best_shape)
    assert "no rate" in str(next(iter(scores(reader, [row]))))
