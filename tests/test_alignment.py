"""What widths cost: a prior that promises nothing, shown beside tiles, waves and the roofline."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from scantling import catalog, cli
from scantling.costs.alignment import head_splits, nearby, recommended_multiple
from scantling.costs.count import parameters
from scantling.costs.kernels import gemm_time
from scantling.costs.kernels.misaligned import misaligned
from scantling.costs.roofline import (
    Pruning,
    by_width,
    decode_ceiling,
    gemm_products,
    pruning_bounds,
    roofline,
    tiles,
    wave_waste,
)
from scantling.errors import FieldError, ScantlingError
from scantling.hardware import chip, chips
from scantling.sources import sources
from scantling.spec import Workload, vary

WORK = Workload("train", 8, 1024)


def test_every_prior_may_be_no_cost_at_all_and_names_its_sources():
    for one in chips().values():
        a = one.constants.alignment
        assert set(a.sources) <= set(sources())
        for value, low, high in (a.single, a.pair, a.load):
            assert 1.0 == low <= value <= high


def test_multiples_of_a_line_cost_nothing():
    for width in (64, 576, 4096, 10944, 50304, 151936):
        for one in (chip("h100"), chip("a100"), chip("rtx-4090")):
            factor = misaligned(one, "bf16", width)
            assert (factor.value, factor.low, factor.high) == (1.0, 1.0, 1.0)


def test_the_worst_width_counts_once():
    one = chip("h100")
    assert misaligned(one, "bf16", 50257, 10922) == misaligned(one, "bf16", 50257)


def test_narrow_dtypes_need_wider_multiples():
    """16 bytes are 8 numbers of 16 bits and 16 of 8 bits."""
    one = chip("h100")
    assert misaligned(one, "bf16", 4104).value < misaligned(one, "fp8", 4104).value
    assert recommended_multiple(one, "fp4") == 256


def test_misalignment_of_an_array_is_that_of_each():
    np = pytest.importorskip("numpy")
    widths = np.array([50257, 10922, 10924, 2056, 2064, 4096])
    many = misaligned(chip("a100"), "bf16", widths)
    for i, width in enumerate(widths):
        one = misaligned(chip("a100"), "bf16", int(width))
        assert (many.value[i], many.low[i], many.high[i]) == (one.value, one.low, one.high)


def test_a_misaligned_product_keeps_its_physical_bound():
    aligned = gemm_time(chip("h100"), "bf16", 4096, 10944, 4096)
    crooked = gemm_time(chip("h100"), "bf16", 4096, 10922, 4096)
    assert crooked.lower_s < aligned.lower_s < aligned.value_s < crooked.value_s
    assert crooked.low_s == pytest.approx(aligned.low_s, rel=0.01)


def test_a_neighbour_that_is_no_better_aligned_gains_only_by_its_size():
    spec = catalog.model("llama-3.1-8b")
    found = nearby(spec, "d_ff", Workload("train", 1, 4096), chip("h100"), (14208, 14464))
    smaller, larger = found.neighbours
    assert larger.gain.value < 1 < smaller.gain.value
    for one in found.neighbours:
        assert one.gain.low == pytest.approx(one.gain.value) == one.gain.high
    assert smaller.parameters == -larger.parameters == -3 * 128 * 4096 * 32


def test_what_padding_adds_is_counted():
    """A row of the table is D wide, and GPT-2's head is tied to it."""
    found = nearby(catalog.model("gpt2"), "vocab_size", WORK, chip("a100"), (50304,))
    assert found.neighbours[0].parameters == (50304 - 50257) * 768


def test_values_that_break_a_relation_are_no_neighbours():
    spec = catalog.model("llama-3.1-8b")
    found = nearby(spec, "n_head", WORK, chip("h100"), (30, 32, 40))
    assert [n.value for n in found.neighbours] == [32, 40]


def test_a_dimension_that_a_model_lacks_is_an_error():
    with pytest.raises(FieldError, match="d_expert"):
        nearby(catalog.model("gpt2"), "d_expert", WORK, chip("h100"))


def test_splits_into_heads_keep_the_parameters():
    spec = vary(catalog.model("gpt2"), d_model=2560, n_head=32, n_kv_head=32, d_head=80)
    for split in head_splits(spec, (40, 64, 128, 160)):
        other = vary(spec, n_head=split.n_head, n_kv_head=split.n_kv_head, d_head=split.d_head)
        assert parameters(other).total == split.parameters == parameters(spec).total


# ---------------------------------------------------------------- roofline


def test_blocks_that_fill_their_waves_waste_nothing():
    assert wave_waste(216, 108).efficiency == 1.0
    assert wave_waste(1, 108).efficiency == pytest.approx(1 / 108)


def test_tiles_cover_the_output():
    for m, n in ((1, 4096), (129, 257), (8192, 8192)):
        (rows, columns), filled, waves = tiles(m, n, 1, chip("a100"))
        assert waves.blocks * rows * columns * filled == pytest.approx(m * n)
        assert 0 < filled <= 1
        assert waves.sms == 108


def test_the_ridge_is_the_rate_over_the_bandwidth():
    """989 TFLOP/s over 3.35 TB/s; a square of w has 2 w³ FLOPs and 6 w² bytes."""
    place = roofline(chip("h100"), "bf16", 4096, 4096, 4096)
    assert place.ridge == pytest.approx(989e12 / 3.35e12)
    assert place.intensity == pytest.approx(2 * 4096**3 / (6 * 4096**2))
    assert place.bound == "compute"


def test_wider_models_lie_further_right_on_the_roofline():
    work, one = Workload("prefill", 1, 512), chip("h100")
    for p in gemm_products(catalog.model("llama-3.1-8b"), work, one):
        places = by_width(p, one, "bf16", 4096)
        assert [place.width for place in places] == [4096, 8192, 16384]
        assert places[0].intensity < places[1].intensity < places[2].intensity
        assert all(place.reached <= place.ceiling for place in places)


def test_shares_of_products_add_to_less_than_the_whole():
    for name in ("gpt2", "llama-3.1-8b", "deepseek-v3"):
        found = gemm_products(catalog.model(name), Workload("prefill", 1, 2048), chip("h100"))
        assert 0 < sum(p.share for p in found) < 1
        assert all(p.n > 0 and 0 < p.fraction < 1 for p in found)


def test_amdahl_bounds_a_gain_by_the_share():
    """Half of a part that takes half the time: 1 / (1 − 1/4)."""
    assert Pruning("layers", 0.5, 2.0).at(0.5) == pytest.approx(4 / 3)
    found = pruning_bounds(catalog.model("gpt2"), Workload("prefill", 8, 1024), chip("h100"))
    parts = {p.part: p for p in found}
    assert parts["layers"].share >= parts["heads"].share + parts["feed-forward"].share
    assert all(p.most == pytest.approx(1 / (1 - p.share)) for p in found)


def test_a_batch_shares_the_weights_it_reads():
    one = chip("h100")
    assert decode_ceiling(one, 16e9, 8).value == pytest.approx(8 * decode_ceiling(one, 16e9).value)


# ---------------------------------------------------------------- the command


def run(*args):
    """Status and output, or the error line, as ``main`` gives them."""
    done = CliRunner().invoke(cli.group, args, standalone_mode=False)
    if isinstance(done.exception, ScantlingError):
        return 2, f"error: {done.exception}"
    assert done.exception is None, repr(done.exception)
    return done.return_value or 0, done.stdout


def test_analyze_shows_what_alignment_costs_as_json():
    status, out = run("analyze", "gpt2", "--alignment", "--gpu", "a100", "--batch", "8", "--json")
    assert status == 0
    found = json.loads(out)["alignment"]
    assert found["chip"] == "a100-sxm-80gb"
    head = found["products"][-1]
    assert (head["n"], head["k"]) == (50257, 768)
    assert head["misaligned"]["low"] == 1.0 < head["misaligned"]["high"]
    vocabulary = found["dimensions"][0]
    assert (vocabulary["field"], vocabulary["now"]) == ("vocab_size", 50257)
    assert 50304 in {n["value"] for n in vocabulary["neighbours"]}


def test_analyze_shows_what_alignment_costs_as_text():
    status, out = run("analyze", "gpt2", "--alignment", "--batch", "8")
    assert status == 0
    assert "alignment on h100-sxm" in out
    assert "50,304" in out
    assert "a gain is not promised" in out


def test_a_dtype_without_a_rate_is_one_line():
    status, out = run("analyze", "gpt2", "--alignment", "--gpu", "v100")
    assert status == 2
    assert "no rate" in out
    assert "\n" not in out
