"""Weights as schemes keep them, and whether a model can be split and served as asked."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import random_specs
from scantling import catalog
from scantling.costs.count import parameters
from scantling.costs.deployment import check, cuts, deployment, nearest_shape, valid_tp
from scantling.costs.deployment_mask import splits
from scantling.costs.pages import longest_cached, page_pool, rank_cache_bytes
from scantling.costs.parallel import tp_reasons
from scantling.costs.quantize import (
    Mixed,
    layers_of,
    require,
    scheme,
    scheme_of,
    schemes,
    support,
    typed_bytes,
)
from scantling.costs.weights import size_notes, weight_memory
from scantling.errors import FieldError, UnknownNameError
from scantling.formats.quantized import stored_elements
from scantling.hardware import chip, chips
from scantling.sources import read_data, sources
from scantling.spec import vary
from scantling.spec.plan import Plan

MEASURED = Path(__file__).parents[2] / "shared" / "data" / "measured"
LLAMA = catalog.model("llama-3.1-8b")
FILES = MEASURED / "infer_llamacpp_readme.csv"


# ---------------------------------------------------------------- bytes of a matrix


@pytest.mark.parametrize(("name", "bits"), [
    # bits of a weight: codes, then scales and zero points over their group
    ("awq-int4", 4 + (16 + 4) / 128), ("gptq-int4-g32", 4 + (16 + 4) / 32),
    ("gptq-int8", 8 + (16 + 8) / 128), ("int4", 4 + 16 / 128), ("mxfp4", 4 + 8 / 32),
    ("fp8-block", 8 + 32 / 128**2), ("fp8", 8 + 32 / 4096), ("int8", 8 + 32 / 4096),
    ("nvfp4", 4 + 8 / 16 + 64 / 4096**2), ("nf4", 4 + 32 / 64),
    ("nf4-dq", 4 + 8 / 64 + 32 / (64 * 256)), ("bf16", 16), ("q8_0", 8.5), ("q4_k_m", 4.5),
    ("q6_k", 6.5625), ("q5_k_s", 5.5), ("q3_k_s", 3.4375), ("iq4_xs", 4.25),
])  # fmt: skip
def test_bits_of_a_weight_follow_from_the_layout(name, bits):
    assert scheme(name).packing.matrix_bytes(4096, 4096) * 8 / 4096**2 == pytest.approx(bits, 1e-12)


def test_cut_blocks_at_the_edge_have_a_scale_of_their_own():
    """576 × 7168 in blocks of 128: five rows of 56 scales."""
    assert scheme("fp8-block").packing.matrix_bytes(576, 7168) == 576 * 7168 + 5 * 56 * 4


def test_packed_integers_of_a_checkpoint_take_what_the_scheme_says():
    """32-bit integers and 16-bit scales and the rest, as a hub counts the elements."""
    stored = stored_elements(LLAMA, {"bits": 4, "group_size": 128})
    found = weight_memory(LLAMA, "int4")
    integers = found.packed_elements // 8
    rest = stored.stored - integers - stored.scales
    assert found.bytes == 4 * integers + 2 * (stored.scales + rest)


def test_sixteen_bits_are_twice_the_parameters():
    for name in ("llama-3.1-8b", "gpt2", "deepseek-v3", "mixtral-8x7b", "gemma-3-27b"):
        spec = catalog.model(name)
        found = weight_memory(spec)
        assert found.bytes == found.loaded_bytes == 2 * found.elements
        assert found.elements >= parameters(spec).total


def test_all_experts_are_resident():
    spec = catalog.model("mixtral-8x7b")
    assert weight_memory(spec, "fp8").bytes > parameters(spec).total
    assert parameters(spec).active < parameters(spec).total / 3


# ---------------------------------------------------------------- GGUF


def gguf_rows():
    if not FILES.exists():
        return []
    with FILES.open(encoding="utf-8") as file:
        rows = {(r["model"], r["file_GiB"], r["params_B"]) for r in csv.DictReader(file)}
    return sorted(r for r in rows if r[1].replace(".", "", 1).isdigit())


def test_files_are_as_large_as_the_table_says():
    """Sizes of whole GGUF files, printed to 0.01 GiB."""
    if not FILES.exists():
        pytest.skip(f"{FILES} is not here: the tables are kept beside the project")
    for model, size, _ in gguf_rows():
        family, label, mix = model.split(" ")
        spec = catalog.model(f"{family}-{label.lower()}")
        found = weight_memory(spec, mix.replace("-", "_")).bytes / 2**30
        assert abs(found - float(size)) < 0.01, model


PUBLISHED = {
    # Files at Hugging Face, GB. bartowski/Meta-Llama-3-8B-Instruct-GGUF; bartowski's card of
    # Llama-3.1-70B with an importance matrix (its Q4_0 and IQ4_XS have rules of their own and are
    # left out); bartowski/gemma-2-9b-it-GGUF; TheBloke/CodeLlama-7B-GGUF and -13B-GGUF;
    # bartowski/Mixtral-8x22B-v0.1-GGUF.
    "llama-3.1-8b": {
        "q8_0": 8.54, "q6_k": 6.60, "q5_k_m": 5.73, "q5_k_s": 5.60, "q4_k_m": 4.92,
        "q4_k_s": 4.69, "q3_k_l": 4.32, "q3_k_m": 4.02, "q3_k_s": 3.66, "q2_k": 3.18,
    },
    "llama-3.1-70b": {
        "q8_0": 74.98, "q6_k": 57.89, "q5_k_m": 49.95, "q5_k_s": 48.66, "q4_k_m": 42.52,
        "q4_k_s": 40.35, "q3_k_l": 37.14, "q3_k_m": 34.27, "q3_k_s": 30.91,
    },
    "gemma-2-9b": {"q8_0": 9.83, "q6_k": 7.59, "q5_k_m": 6.65, "q4_k_m": 5.76},
    "codellama-7b": {"q8_0": 7.16, "q6_k": 5.53, "q5_k_m": 4.78, "q4_k_m": 4.08},
    "codellama-13b": {"q8_0": 13.83, "q6_k": 10.68, "q5_k_m": 9.23},
    "mixtral-8x22b": {
        "q5_k_m": 99.96, "q5_k_s": 96.97, "q4_k_m": 85.58, "q4_k_s": 80.47, "iq4_nl": 80.47,
        "iq4_xs": 76.35, "q3_k_l": 72.57, "q3_k_m": 67.78, "q3_k_s": 61.49, "q2_k": 52.10,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_files_are_as_large(name):
    """A file also holds the tokenizer (up to 12 MB), and sizes are printed to 0.01 GB."""
    for mix, size in PUBLISHED[name].items():
        found = weight_memory(catalog.model(name), mix).bytes / 1e9
        assert abs(found - size) <= 0.02, (mix, found)


def test_a_rule_holds_of_the_layers_that_its_definition_counts():
    for n in range(1, 130):
        more = [i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2 for i in range(n)]
        assert layers_of("more", n) == sum(more)
        assert layers_of("eighth", n) == sum(i < n // 8 for i in range(n))
        assert layers_of("first2", n) == min(n, 2)


def test_widths_that_no_block_divides_take_a_larger_type():
    """896 = 3.5 × 256: Q4_K becomes Q5_0, Q6_K becomes Q8_0; 2880 likewise; 100 becomes 16 bits."""
    assert typed_bytes("Q4_K", 10, 896, 896) == 10 * 896 * 22 / 32
    assert typed_bytes("Q6_K", 10, 2880, 2880) == 10 * 2880 * 34 / 32
    assert typed_bytes("Q4_K", 10, 100, 100) == 10 * 100 * 2
    small = weight_memory(catalog.model("qwen2.5-0.5b"), "q4_k_m")
    assert small.bits_per_weight > 6


def test_every_type_of_a_mix_is_known():
    for one in schemes().values():
        if isinstance(one.packing, Mixed):
            types = [one.packing.base, one.packing.output]
            types += [t for rules in (one.packing.value, one.packing.down) for _, t in rules]
            assert all(typed_bytes(t, 1, 256, 256) > 0 for t in types)


def test_what_is_larger_than_its_name_is_told():
    """896 inputs take no block of 256; a tied table is the head's type; experts of 2880 are padded.

    3072 / 2880 × 2944 / 2880 = 1.0904.
    """
    small = size_notes(catalog.model("qwen2.5-0.5b"), "q4_k_m")
    assert any(n.startswith("embedding:") and "becomes Q8_0" in n for n in small)
    assert any(n.startswith("q, k, v, o") and "Q4_K (4.5 bits) becomes Q5_0" in n for n in small)
    assert not any("lm_head" in n for n in small)
    assert not size_notes(LLAMA, "q4_k_m", Plan(tp=8))
    experts = size_notes(catalog.model("gpt-oss-20b"), "mxfp4")
    assert all("2880 × 2880" in n and "+9.0%" in n for n in experts)
    assert len(experts) == 3


# ---------------------------------------------------------------- ranks and columns


@pytest.mark.parametrize("quant", ["bf16", "awq", "fp8-block", "q4_k_m", "nvfp4"])
def test_ranks_together_hold_the_model_and_what_each_must_have(quant):
    """Eight KV heads on eight ranks: only norms are copied, 4 KiB a layer and norm."""
    whole = weight_memory(LLAMA, quant).bytes
    ranks = 8 * weight_memory(LLAMA, quant, Plan(tp=8)).bytes
    assert whole <= ranks < whole * 1.002


def test_kv_heads_that_ranks_copy_are_held_by_each():
    """On 16 ranks the 8 KV heads are held twice: 2 × 32 layers × 8 × 128 × 4096 more, and norms."""
    few, many = (n * weight_memory(LLAMA, "bf16", Plan(tp=n)).bytes for n in (8, 16))
    norms = 2 * 4096 * (2 * 32 + 1)
    assert many - few == 2 * 32 * 2 * (8 * 128) * 4096 + 8 * norms


def test_stages_hold_the_model_between_them():
    for quant in ("bf16", "awq"):
        parts = [weight_memory(LLAMA, quant, Plan(pp=4), s).bytes for s in range(4)]
        assert sum(parts) == weight_memory(LLAMA, quant).bytes


def test_padded_experts_are_counted_as_kernels_load_them():
    """2880 inputs are padded to 3072: gate, up and down of 24 layers and 32 experts."""
    spec = catalog.model("gpt-oss-20b")
    found = weight_memory(spec, "mxfp4")
    out, inner = 2944, 3072  # multiples of 128 and of 256
    matrices = 24 * 32 * 3
    assert found.loaded_bytes - found.bytes == matrices * (
        out * inner - 2880**2) * 17 // 32  # fmt: skip


@pytest.mark.parametrize("quant", sorted(schemes()))
def test_a_column_of_specs_weighs_what_its_members_do(quant):
    layers, widths = np.array([8, 31, 80, 30]), np.array([2048, 4096, 8192, 2880])
    column = vary(LLAMA, n_layer=layers, d_model=widths, d_ff=widths * 3)
    plan = Plan(tp=2)
    found = weight_memory(column, quant, plan)
    for i, (n, d) in enumerate(zip(layers, widths, strict=True)):
        one = vary(LLAMA, n_layer=int(n), d_model=int(d), d_ff=int(d) * 3)
        own = weight_memory(one, quant, plan)
        assert abs(np.broadcast_to(found.bytes, 4)[i] - own.bytes) <= 1
        assert abs(np.broadcast_to(found.loaded_bytes, 4)[i] - own.loaded_bytes) <= 1


@pytest.mark.parametrize("first", range(8))
def test_columns_of_every_kind_of_spec_weigh_what_their_members_do(first):
    for structure in range(first, 168, 24):
        members = [random_specs.spec(structure, row) for row in range(2)]
        column = random_specs.column(members)
        for quant in ("awq", "fp8-block", "q4_k_m", "nf4"):
            for plan in (Plan(), Plan(tp=2)):
                found = weight_memory(column, quant, plan)
                for i, one in enumerate(members):
                    alone = weight_memory(one, quant, plan)
                    held = np.broadcast_to(found.bytes, 2)[i]
                    assert held == pytest.approx(alone.bytes, abs=1), (structure, quant)
                    assert 0 < alone.bytes <= alone.loaded_bytes
                    assert alone.elements == weight_memory(one, "bf16", plan).elements


# ---------------------------------------------------------------- chips


def test_every_scheme_has_an_answer_on_every_chip():
    for one in chips().values():
        can = [s.name for s in schemes().values() if support(s, one).verdict != "no"]
        assert can, one.key
        for s in schemes().values():
            if s.name not in can:
                with pytest.raises(FieldError) as caught:
                    require(s, one)
                assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(("quant", "on", "verdict"), [
    ("fp8", "h100", "native"), ("fp8", "l4", "native"), ("fp8", "a100", "weights"),
    ("fp8", "v100", "no"), ("fp8", "mi300x", "native"), ("nvfp4", "b200", "native"),
    ("nvfp4", "h100", "weights"), ("awq", "a100", "weights"), ("awq", "v100", "no"),
    ("bf16", "v100", "no"), ("q4_k_m", "v100", "weights"), ("int8", "a100", "native"),
])  # fmt: skip
def test_a_chip_computes_in_a_scheme_or_unpacks_it_or_cannot_read_it(quant, on, verdict):
    assert support(scheme(quant), chip(on)).verdict == verdict


@pytest.mark.parametrize("name", ["", "int3", "awq-g", "q9_k", "nvfp4-g32", "awq-g0", "awq-g100",
                                  "fp8-g64", "x" * 300])  # fmt: skip
def test_a_scheme_that_is_none_is_one_line(name):
    with pytest.raises(FieldError) as caught:
        scheme(name)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 250


def test_an_unknown_scheme_names_what_is_near():
    with pytest.raises(UnknownNameError, match="did you mean"):
        weight_memory(LLAMA, "q4_k_n")


@pytest.mark.parametrize(("config", "name"), [
    ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq-int4"),
    ({"quant_method": "gptq", "bits": 8, "group_size": 32}, "gptq-int8-g32"),
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8-block"),
    ({"quant_method": "gptq", "bits": 4, "group_size": -1}, "gptq-int4-channel"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
    ({"quant_method": "fp8"}, "fp8-tensor"), ({"quant_method": "mxfp4"}, "mxfp4"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4"),
    ({"quant_method": "bitsandbytes", "bnb_4bit_use_double_quant": True}, "nf4-dq"),
    ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {
        "num_bits": 4, "type": "int", "group_size": 32}}}}, "int4-g32"),
    ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {
        "num_bits": 8, "type": "float", "strategy": "channel"}}}}, "fp8"),
])  # fmt: skip
def test_a_config_says_its_scheme(config, name):
    assert scheme_of({"quantization_config": config}).name == name
    assert scheme_of({"text_config": {"quantization_config": config}}).name == name


def test_a_scale_an_output_cuts_nothing():
    """11008 / 4 = 2752 inputs are 21.5 groups of 128; one group for all of them is not cut."""
    spec = catalog.model("llama-2-7b")
    assert not deployment(spec, chip("h100"), Plan(tp=4), "gptq-int4").valid
    assert deployment(spec, chip("h100"), Plan(tp=4), "gptq-int4-channel").valid


@pytest.mark.parametrize("junk", [None, "four", -1, 0, [], {}, 2**70, True, 3.5])
@pytest.mark.parametrize("method", ["awq", "gptq", "fp8", "bitsandbytes", "compressed-tensors"])
def test_a_config_with_junk_is_read_or_refused_in_one_line(method, junk):
    keys = ("bits", "group_size", "weight_block_size", "config_groups", "load_in_8bit")
    assert all(answered({"quant_method": method, key: junk}) for key in keys)


def answered(config):
    """Whether a config's scheme is found, or refused in one line."""
    try:
        return scheme_of({"quantization_config": config}) is not None
    except FieldError as error:
        return len(str(error).splitlines()) == 1


def test_a_config_of_an_unknown_method_is_refused():
    with pytest.raises(FieldError, match="none whose size is known"):
        scheme_of({"quantization_config": {"quant_method": "magic"}})


def test_every_scheme_and_rule_has_a_source():
    table = read_data("quantization.toml")
    keys = [k for one in schemes().values() for k in one.sources]
    for entry in (*table["gemm"].values(), *table["tokens"], table["heads"], table["mix"]):
        keys += entry["sources"]
    assert set(keys) <= set(sources())


# ---------------------------------------------------------------- splits


def test_published_shapes_can_be_served_on_one_chip_in_fp8():
    """FP8 with a scale an output asks for multiples of 16, which every published shape is."""
    for name in ("llama-3.1-8b", "qwen2.5-7b", "gemma-3-27b", "mixtral-8x7b", "phi-4"):
        found = deployment(catalog.model(name), chip("h100"), quant="fp8")
        assert found.valid, (name, found.lines)


def test_a_split_without_quantisation_is_what_heads_and_columns_allow():
    for name in ("llama-3.1-8b", "qwen2.5-7b", "gpt-oss-20b", "deepseek-v3"):
        spec = catalog.model(name)
        allowed = [n for n in range(1, 65) if not any(tp_reasons(spec, n))]
        assert set(valid_tp(spec, most=64)) <= set(allowed)
        for n in valid_tp(spec, most=64):
            assert deployment(spec, chip("h100"), Plan(tp=n)).valid


@pytest.mark.parametrize(("plan", "field"), [
    (Plan(tp=0), "tp"), (Plan(tp=-2), "tp"), (Plan(pp=0), "pp"), (Plan(ep=0), "ep"),
    (Plan(tp=6), "tp"), (Plan(pp=33), "pp"), (Plan(ep=2, dp=2), "ep"),
])  # fmt: skip
def test_a_split_that_cannot_be_names_its_degree(plan, field):
    found = deployment(LLAMA, chip("h100"), plan)
    assert not found.valid
    assert found.problems[0].field == field
    with pytest.raises(FieldError) as caught:
        check(found, plan)
    assert len(str(caught.value).splitlines()) == 1


def test_a_valid_deployment_raises_nothing():
    check(deployment(LLAMA, chip("h100"), Plan(tp=8), "awq"), Plan(tp=8))


def test_copies_of_keys_are_told_with_their_factor():
    said = " ".join(deployment(LLAMA, chip("h100"), Plan(tp=16)).warnings)
    assert "each is held 2 times" in said
    one, many = (rank_cache_bytes(LLAMA, 4096, plan=Plan(tp=n)) * n for n in (1, 16))
    assert many == 2 * one
    latent = catalog.model("deepseek-v3")
    assert "is 8 times" in " ".join(deployment(latent, chip("h100"), Plan(tp=8)).warnings)
    assert rank_cache_bytes(latent, 4096, plan=Plan(tp=8)) == rank_cache_bytes(latent, 4096)


def test_a_chip_without_kernels_for_a_scheme_cannot_serve_it():
    found = deployment(LLAMA, chip("v100"), quant="fp8")
    assert not found.valid
    assert found.problems[-1].field == "quant"


def test_widths_of_every_cut_add_up():
    for c in cuts(LLAMA, "awq", Plan(tp=4)):
        assert c.ok
        assert c.per_rank * c.degree == c.width
        assert c.units_per_rank * c.unit == c.per_rank


def test_what_is_valid_needs_no_change():
    assert nearest_shape(LLAMA, 8, "awq") == {}


# ---------------------------------------------------------------- caches backwards


def test_the_longest_sequence_fits_and_one_more_does_not():
    for name in ("llama-3.1-8b", "gemma-3-27b", "deepseek-v3", "gpt-oss-20b"):
        spec, room = catalog.model(name), 4 * 2**30
        for batch in (1, 8):
            found = longest_cached(spec, room, batch)
            assert rank_cache_bytes(spec, found.tokens, batch) <= room
            assert rank_cache_bytes(spec, found.tokens + 1, batch) > room
            assert found.paged_tokens <= found.tokens


def test_no_room_is_no_token():
    found = longest_cached(LLAMA, 0)
    assert (found.tokens, found.paged_tokens) == (0, 0)


@pytest.mark.parametrize("call", [
    lambda: longest_cached(LLAMA, 2**30, batch=0), lambda: page_pool(LLAMA, 0),
    lambda: page_pool(LLAMA, 1, page=0),
])  # fmt: skip
def test_less_than_one_is_refused(call):
    with pytest.raises(FieldError, match="must be at least 1"):
        call()


def test_a_plan_of_stages_is_as_deep_as_its_deepest():
    plan = replace(Plan(), pp=4)
    assert rank_cache_bytes(LLAMA, 1024, plan=plan) * 4 == rank_cache_bytes(LLAMA, 1024)


# ---------------------------------------------------------------- columns of splits


@pytest.mark.parametrize("quant", ["bf16", "awq", "gptq-int4-g32", "fp8-block", "mxfp4", "nvfp4"])
def test_a_mask_says_of_each_member_what_a_deployment_says(quant):
    draw = np.random.default_rng(7)
    dense, experts = LLAMA, catalog.model("qwen3-30b-a3b")
    for first, field in ((dense, "d_ff"), (experts, "d_expert")):
        heads = draw.choice([12, 14, 16, 28, 32], 24)
        kv = np.array([draw.choice([k for k in (1, 2, 4, 7, 8) if h % k == 0]) for h in heads])
        widths = draw.integers(4, 90, 24) * draw.choice([32, 64, 128], 24)
        columns = {"n_head": heads, "n_kv_head": kv, field: widths}
        column = vary(first, **columns)
        for tp in (1, 2, 4, 8):
            found = np.broadcast_to(splits(column, quant, Plan(tp=tp)), 24)
            for i in range(24):
                one = vary(first, **{k: int(v[i]) for k, v in columns.items()})
                alone = deployment(one, chip("b200"), Plan(tp=tp), quant)
                assert found[i] == alone.valid, alone.lines
                assert splits(one, quant, Plan(tp=tp)) == alone.valid


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("quant", ["bf16", "awq", "fp8-block"])
def test_published_models_are_masked_as_they_are_judged(quant, tp):
    for name in ("gpt2", "deepseek-v3", "qwen3-next-80b-a3b", "gemma-3-27b", "gpt-oss-20b",
                 "kimi-linear-48b-a3b", "nemotron-h-8b", "deepseek-v2-lite"):  # fmt: skip
        spec = catalog.model(name)
        judged = deployment(spec, chip("b200"), Plan(tp=tp), quant)
        assert splits(spec, quant, Plan(tp=tp)) == judged.valid, (name, judged.lines)
