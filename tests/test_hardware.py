"""The catalogue of chips says what the public table says, and no number in it is homeless."""

from __future__ import annotations

import csv
import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from scantling.errors import FieldError, UnknownNameError
from scantling.hardware import (
    Chip,
    Rates,
    chip,
    chips,
    network,
    node,
)
from scantling.sources import sources

SHARED = Path(__file__).parents[2] / "shared"
TABLE = SHARED / "data" / "hardware.csv"
needs_table = pytest.mark.skipif(not TABLE.exists(), reason=f"{TABLE} is not here")

SPARSE = {
    "a100-sxm-80gb": ("bf16", 624e12),
    "h100-sxm": ("bf16", 1979e12),
    "h200-sxm": ("fp8", 3958e12),
    "b200-sxm": ("bf16", 4500e12),
    "gb200": ("fp8", 10000e12),
    "l4": ("bf16", 242e12),
    "l40s": ("bf16", 733e12),
    "rtx-a6000": ("bf16", 309.7e12),
    "rtx-4090": ("fp16", 330.3e12),
    "rtx-5090": ("fp4", 3352e12),
    "h100-nvl": ("bf16", 1671e12),
    "jetson-agx-orin-64gb": ("int8", 170e12),
    "jetson-agx-thor": ("fp4", 2070e12),
    "rtx-6000-ada": ("fp8", 1457e12),
}
"""Headline numbers with 2:4 sparsity, or with FP16 accumulation on a consumer board."""

SCALED = {
    "sm_or_cu": ("sm_count", 1),
    "clock_mhz": ("clock_hz", 1e6),
    "mem_bw_GBps": ("memory_bytes_per_s", 1e9),
    "l2_mb": ("l2_bytes", 2**20),
    "l1_smem_kb_per_sm": ("shared_bytes", 2**10),
    "max_smem_kb_per_sm": ("shared_max_bytes", 2**10),
    "link_GBps_per_direction": ("link_bytes_per_s", 1e9),
    "tdp_w": ("tdp_w", 1),
    "measured_best_bf16_matmul_tflops": ("measured_best_bf16_flops_per_s", 1e12),
}
RATES = {
    "fp32_tflops": "fp32",
    "tf32_tflops": "tf32",
    "fp16_tensor_tflops": "fp16",
    "bf16_tensor_tflops": "bf16",
    "fp8_tflops": "fp8",
    "fp4_tflops": "fp4",
    "int8_tops": "int8",
}


def rows() -> list[dict[str, str]]:
    with TABLE.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def bibliography() -> set[str]:
    return set(sources())


def numbers(one: Chip) -> list[str]:
    """The fields of a chip that hold a number, rates as ``rates.bf16``."""
    own = [
        f
        for f in one.__struct_fields__
        if isinstance(getattr(one, f), int | float) and f not in {"devices", "datasheet_only"}
    ]
    return own + [f"rates.{d}" for d in one.dtypes]


@needs_table
def test_every_row_of_the_public_table_is_a_chip_with_its_numbers():
    found = set()
    for row in rows():
        one = chip(row["name"])
        found.add(one.key)
        assert one.vendor == row["vendor"]
        assert one.architecture == row["arch"]
        assert (one.compute_capability or "") == row["compute_capability"]
        assert one.confidence == row["confidence"]
        assert row["mem_type"].startswith(one.memory_kind)
        assert (one.link_kind or "") == row["link"]
        for column, (field, scale) in SCALED.items():
            want = float(row[column]) * scale if row[column] else None
            assert getattr(one, field) == (pytest.approx(want) if want else None), (one.key, field)
        for column, dtype in RATES.items():
            want = float(row[column]) * 1e12 if row[column] else None
            got = getattr(one.rates, dtype)
            assert got == (pytest.approx(want) if want else None), (one.key, dtype)
        assert float(row["mem_gb"]) * 1e9 <= one.memory_bytes <= float(row["mem_gb"]) * 2**30
    assert len(found) == len(rows())


@needs_table
def test_what_the_public_table_does_not_verify_is_unverified_here():
    for row in rows():
        one = chip(row["name"])
        if row["verified_fields"].startswith("all except max_smem"):
            assert one.unverified == ("shared_max_bytes",), one.key
        if row["unverified_fields"].startswith("all "):
            assert one.unverified == ("*",), one.key
        if row["confidence"] == "high":
            rate_gap = [f for f in one.unverified if f in {"rates.bf16", "memory_bytes_per_s"}]
            assert not rate_gap, one.key


@pytest.mark.parametrize(
    ("key", "flops_per_clock"),
    [("v100-sxm2-32gb", 1024), ("a100-sxm-80gb", 2048), ("h100-sxm", 4096), ("rtx-4090", 512)],
)
def test_the_16_bit_rate_is_sms_times_flops_a_clock_times_clock(key, flops_per_clock):
    """White papers: 8 tensor cores × 64 FMA on Volta; 4 × 256 on A100; 4 × 512 on H100."""
    one = chip(key)
    assert one.sm_count * flops_per_clock * one.clock_hz == pytest.approx(
        one.rate("fp16"), rel=4e-3
    )


def test_h100_is_132_sms_of_4096_flops_at_1830_mhz():
    assert chip("h100").rate("bf16") == pytest.approx(132 * 4096 * 1830e6, rel=1e-3)
    assert chip("h100").rate("bf16") != pytest.approx(132 * 4096 * 1980e6, rel=0.05)


def test_no_rate_is_a_headline_number_with_sparsity():
    for key, (dtype, headline) in SPARSE.items():
        assert chips()[key].rate(dtype) == pytest.approx(headline / 2, rel=0.25), key
        assert chips()[key].rate(dtype) < 0.7 * headline, key


def test_halving_the_width_at_most_doubles_the_rate():
    """A larger ratio between neighbours would be a sparse number that slipped in.

    By design FP4 is three times FP8 on Blackwell Ultra, and four times on GeForce Blackwell, whose
    FP8 rate with FP32 accumulation is halved.
    """
    exempt = {"b300-sxm", "gb300", "rtx-5090"}
    for one in chips().values():
        for wide, narrow in itertools.pairwise(["bf16", "fp8", "fp4"]):
            if {wide, narrow} <= set(one.dtypes) and one.key not in exempt:
                ratio = one.rate(narrow) / one.rate(wide)
                assert 0.99 <= ratio <= 2.03, (one.key, narrow)


def test_every_number_has_a_source_or_says_that_it_is_unverified():
    known = bibliography()
    for one in chips().values():
        assert one.sources, one.key
        keys = {*one.sources, *(k for _, k in one.source_of), *one.constants.gemm.sources}
        assert keys <= known, (one.key, keys - known)
        fields = numbers(one)
        stray = [f for f in one.unverified if f != "*" and f not in fields]
        stray += [f for f, _ in one.source_of if f not in fields]
        assert not stray, (one.key, stray)
        for field in fields:
            unverified = field in one.unverified or "*" in one.unverified
            assert one.sources_of(field) or unverified, (one.key, field)


def test_names_are_unique_and_every_alias_resolves():
    for key, one in chips().items():
        for name in (key, key.upper(), key.replace("-", "_"), one.name, *one.aliases):
            assert chip(name).key == key, name


@pytest.mark.parametrize(
    ("said", "key"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("h100", "h100-sxm"),
        ("H100-SXM-80GB", "h100-sxm"),
        ("H100 SXM", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA B200", "b200-sxm"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B300 SXM6 AC", "b300-sxm"),
        ("NVIDIA GH200 480GB", "gh200-sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("A100 80GB", "a100-sxm-80gb"),
        ("A100 40GB", "a100-sxm-40gb"),
        ("A800 80GB", "a800-sxm-80gb"),
        ("A10G 24GB", "a10g"),
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32gb"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-server"),
        ("AMD Instinct MI300X", "mi300x"),
        ("Apple M2 Ultra", "m2-ultra"),
        ("TPU v5 lite", "tpu-v5e"),
    ],
)
def test_a_chip_answers_to_what_people_and_torch_call_it(said, key):
    assert chip(said).key == key


@pytest.mark.parametrize(
    ("said", "near"), [("h100-sxn", "h100-sxm"), ("MI300", "mi300x"), ("RTX-4080", "rtx-4090")]
)
def test_an_unknown_chip_is_an_error_that_names_the_nearest(said, near):
    with pytest.raises(UnknownNameError, match=near):
        chip(said)


@pytest.mark.parametrize("said", ["", "  ", "nvidia", "abacus"])
def test_a_name_like_no_chip_is_an_error_that_lists_some(said):
    with pytest.raises(UnknownNameError, match="known: "):
        chip(said)


@pytest.mark.parametrize("key", ["v100-sxm2-32gb", "t4"])
def test_bf16_on_volta_and_turing_is_an_error_that_says_fp16(key):
    with pytest.raises(FieldError, match="use fp16"):
        chip(key).rate("bfloat16")


def test_fp8_on_a100_is_an_error_not_the_bf16_rate():
    with pytest.raises(FieldError, match="it has fp32, tf32, fp16, bf16, int8"):
        chip("a100").rate("fp8")


def test_a_chip_whose_peak_is_not_published_has_no_rate():
    with pytest.raises(FieldError, match="none is published"):
        chip("h100-sxm-96gb-hbm2e").rate("bf16")


def test_the_printed_gigabytes_are_gib_and_a_driver_never_shows_more():
    assert chip("a100-sxm-80gb").usable_bytes == 80 * 2**30 == 81920 * 2**20
    assert chip("h100").memory_bytes == 80 * 2**30
    assert chip("h100").usable_bytes == 81559 * 2**20
    assert chip("b300").memory_bytes == pytest.approx(288e9, rel=2e-3)
    for one in chips().values():
        least = 0.74 if one.vendor == "Apple" else 0.9  # shared memory: the system keeps a part
        assert least * one.memory_bytes < one.usable_bytes <= one.memory_bytes, one.key


def test_a_gpu_that_shares_memory_gets_the_part_that_the_system_gives_it():
    # 49152 MB recommended of 64 GB, as llama.cpp prints (its issue 1870)
    assert chip("m1-max").usable_bytes == 49152 * 2**20


def test_b200_holds_both_its_printed_capacities():
    """180 in GiB is 192 in GB less what the driver keeps."""
    assert chip("b200").memory_bytes == 180 * 2**30
    assert chip("b200").usable_bytes == pytest.approx(192e9, rel=3e-3)


def test_efficiency_stays_below_the_best_matmul_found_by_search():
    """Two sources: the fitted rate of H100 lies 0.8 % above the best that the other found."""
    for one in chips().values():
        best = one.measured_best_bf16_flops_per_s
        if best:
            assert one.constants.gemm.matmul <= 1.01 * best / one.rate("bf16"), one.key


def test_only_the_chips_of_the_fit_claim_to_be_fitted():
    fitted = {k for k, one in chips().items() if one.constants.gemm.kind == "fitted"}
    assert fitted == {"a40", "a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200-sxm"}
    assert chip("tpu-v5p").constants.gemm.widen > chip("h100").constants.gemm.widen


def test_attention_gains_what_was_measured_from_head_width_64_to_128():
    """About +25 % on H100 and +59 % on B200, by the medians of the public table.

    The medians mix batches and heads, launch and memory; a fraction of the work alone is near them.
    """
    h100, b200 = chip("h100").constants.attention, chip("b200").constants.attention
    assert h100.prefill_at(128) / h100.prefill_at(64) == pytest.approx(1.25, abs=0.03)
    assert b200.prefill_at(128) / b200.prefill_at(64) == pytest.approx(1.59, abs=0.15)
    assert chip("rtx-5090").constants.attention.kind == "assumed"


def test_attention_of_an_array_is_attention_of_each():
    np = pytest.importorskip("numpy")
    widths = [16, 64, 80, 96, 128, 160, 192, 256, 384, 512, 1024]
    got = chip("h100").constants.attention.prefill_at(np.array(widths))
    want = [chip("h100").constants.attention.prefill_at(w) for w in widths]
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_a_node_takes_its_link_from_the_chip_and_may_have_none():
    assert node("h800").link.bytes_per_s == 200e9
    assert node("m2-ultra", 1).link is None
    with pytest.raises(FieldError, match="at least 1"):
        node("h100", 0)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("400Gb", 50e9),
        ("400 Gbps", 50e9),
        ("50GB/s", 50e9),
        ("3.2Tb/s", 400e9),
        ("100gbit", 12.5e9),
    ],
)
def test_a_network_speed_in_bits_is_an_eighth_of_one_in_bytes(text, bytes_per_s):
    assert network(text).bytes_per_s == pytest.approx(bytes_per_s)


@pytest.mark.parametrize("text", ["", "fast", "0Gb", "-1Gb", "400"])
def test_what_is_no_network_speed_is_an_error(text):
    with pytest.raises(FieldError, match="net"):
        network(text)


def test_chips_are_hashable_and_cached():
    assert len({*chips().values()}) == len(chips())
    assert chips() is chips()
    assert set(chip("h100").dtypes) <= set(Rates.__struct_fields__)


def test_importing_hardware_imports_no_numpy():
    code = "import sys, scantling.hardware as h; h.chip('h100'); print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
