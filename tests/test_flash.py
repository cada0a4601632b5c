"""Why attention is fast or slow: widths, tiles, traffic and blocks, by what is published."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scantling.costs.flash import (
    decode_fill,
    fill,
    fused_kernels,
    kept_scores_bytes,
    prefill_fill,
    takes,
    tile,
    traffic,
)
from scantling.costs.kernels.attention import Shape
from scantling.errors import UnknownNameError
from scantling.hardware import chip
from scantling.sources import sources

CASES = Path(__file__).parents[2] / "shared" / "cases"


def case(prefix):
    found = sorted(CASES.glob(f"{prefix}-*.json"))
    if not found:
        pytest.skip(f"{CASES}/{prefix}-*.json is not here")
    return json.loads(found[0].read_text(encoding="utf-8"))["expected"]


def test_flash_attention_2_takes_multiples_of_8_up_to_256():
    expected = case("sh-13")["fa2"]
    for name in ("a100", "h100"):
        verdicts = {w: takes("flash2", chip(name), w).verdict for w in (80, 96, 100, 256, 320)}
        assert verdicts == {80: "yes", 96: "yes", 100: "padded", 256: "yes", 320: "no"}
    assert [expected[f"hd{w}"] for w in (80, 96, 256, 320)] == [True, True, True, False]
    assert "multiple of 8" in expected["hd100"]
    assert takes("flash2", chip("a100"), 100).width == 104


def test_the_first_flash_attention_3_took_three_widths():
    taken = [w for w in range(8, 400, 8) if takes("flash3-first", chip("h100"), w).verdict == "yes"]
    assert taken == [64, 128, 256]
    assert taken == case("sh-13")["fa3_initial_supported"]


def test_an_absorbed_latent_has_a_fused_kernel_on_hopper_and_not_on_an_a100():
    expected = case("sh-15")
    widths = expected["k_width"], expected["v_width"]
    for name, verdict in (("h100", expected["fa3_hopper"]), ("a100", expected["fa3_a100"])):
        assert (takes("flash3", chip(name), *widths).verdict == "yes") is verdict


def test_a_width_of_512_is_taken_by_no_common_kernel_and_fits_no_consumer_chip():
    """99 KiB of shared memory a block on an RTX 5090 (case sh-16)."""
    one = chip("rtx-5090")
    assert "up to 256" in takes("flash2", one, 512).reason
    assert tile(one, 512) is None


def test_every_rule_of_a_kernel_has_a_date_and_a_source():
    for kernel in fused_kernels().values():
        assert kernel.since
        assert set(kernel.sources) <= set(sources())
    with pytest.raises(UnknownNameError):
        takes("flash9", chip("h100"), 128)


@pytest.mark.parametrize(
    ("name", "width", "tile_of", "kib"),
    [
        ("a100", 128, (128, 64), 64),
        ("h100", 128, (128, 64), 64),
        ("rtx-4090", 128, (64, 64), 48),
        ("a100", 256, (128, 64), 128),
        ("h100", 256, (64, 64), 96),
        ("rtx-4090", 256, (64, 64), 96),
    ],
)
def test_tiles_are_those_of_the_launch_template(name, width, tile_of, kib):
    """flash_fwd_launch_template.h of FlashAttention 2, its comments at widths 128 and 256."""
    got = tile(chip(name), width)
    assert (got.queries, got.keys) == tile_of
    assert got.shared_bytes == kib * 1024


def test_a_chip_that_tells_nothing_of_its_memory_has_no_tile():
    assert tile(chip("tpu-v4"), 128) is None
    assert prefill_fill(chip("tpu-v4"), Shape(batch=1, queries=8, keys=8, n_head=1, n_kv_head=1,
                                              d_key=64)) is None  # fmt: skip


def test_unfused_attention_moves_four_times_the_scores_and_fused_none():
    """Standard attention of the FlashAttention paper, algorithm 0, counted by its loads and stores:
    Q, K in, S out; S in, P out; P, V in, O out."""
    n, d = 1024, 64
    got = traffic(Shape(batch=1, queries=n, keys=n, n_head=1, n_kv_head=1, d_key=d))
    loads_and_stores = (2 * n * d + n * n) + (n * n + n * n) + (n * n + n * d + n * d)
    assert got.unfused == 2 * loads_and_stores
    assert got.fused == 2 * (4 * n * d)
    assert got.reread == 2 * (2 * n * d + (n // 128) * 2 * n * d)


def test_the_quadratic_part_of_the_activations_is_gone_once_fused():
    expected = case("tm-19")
    quadratic = expected["quadratic_part"]
    assert kept_scores_bytes(1, 4096, 32, fused=False) == pytest.approx(
        quadratic["value"] * 1e9, rel=quadratic["rtol"]
    )
    assert kept_scores_bytes(1, 4096, 32, fused=True) == expected["fused_quadratic"]["value"]


def test_one_block_too_many_costs_half_the_chip():
    expected = case("sp-08")
    got = fill(109, chip("a100").sm_count)
    assert got.waves == expected["waves"]
    efficiency = expected["efficiency"]
    assert got.efficiency == pytest.approx(efficiency["value"], rel=efficiency["rtol"])


def test_a_long_prompt_fills_a_chip_and_one_cache_does_not():
    h100 = chip("h100")
    shape = Shape(batch=1, queries=8192, keys=8192, n_head=32, n_kv_head=8, d_key=128)
    assert prefill_fill(h100, shape).efficiency > 0.9
    one = decode_fill(h100, Shape(batch=1, queries=1, keys=8192, n_head=32, n_kv_head=8, d_key=128))
    assert one.efficiency == 8 / 132
    assert one.splits * one.blocks >= 132
    short = Shape(batch=1, queries=1, keys=100, n_head=32, n_kv_head=8, d_key=128)
    assert decode_fill(h100, short).splits == 2
