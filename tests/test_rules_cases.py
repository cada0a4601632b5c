"""Cases met in public, answered by ``lint``: legal or not, which degrees, what would be right."""

import pytest

from case_files import case
from scantling.costs.backends import backends
from scantling.rules import fix, lint, setting, subject

QUIET = {
    "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 11008, "vocab_size": 32000, "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}  # fmt: skip
NEUTRAL = {
    "d_model": "hidden_size", "hidden": "hidden_size", "n_heads": "num_attention_heads",
    "heads": "num_attention_heads", "n_kv_heads": "num_key_value_heads", "head_dim": "head_dim",
    "ffn": "intermediate_size", "n_layers": "num_hidden_layers", "vocab": "vocab_size",
    "n_experts": "num_experts", "moe_ffn": "moe_intermediate_size",
}  # fmt: skip


def config_of(arch, **more):
    """A config of the neutral names of a case, over one that no rule has anything to say of."""
    found = {NEUTRAL[k]: v for k, v in arch.items() if k in NEUTRAL}
    if "num_attention_heads" in found and "num_key_value_heads" not in found:
        found["num_key_value_heads"] = found["num_attention_heads"]
    return {**QUIET, **found, **more}


def errors(config, **options):
    report = lint(config, setting(**options))
    return [f for f in report.findings if f.level == "error"]


def legal_tp(config, most=64, **options):
    return [n for n in range(1, most + 1) if not errors(config, tp=n, **options)]


# ---------------------------------------------------------------- shapes


@pytest.mark.parametrize("name", ["sh-01", "sh-03", "sh-04"])
def test_heads_that_do_not_divide_the_width_are_an_error(name):
    found = errors(case(name)["input"]["hf_config"])

    assert {f.code for f in found} == {"SC102"}


def test_the_nearest_heads_are_named():
    one = case("sh-01")
    (found,) = errors(one["input"]["hf_config"])
    below, above = one["expected"]["nearest_heads"]

    assert f"use {below} or {above}" in found.fix.text


def test_swapped_heads_and_layers_are_recognised_and_mended():
    one = case("sh-03")
    mended = fix(subject(one["input"]["hf_config"]))

    assert mended.config["n_head"] == one["expected"]["suggest"]["n_head"]
    assert mended.config["n_layer"] == one["expected"]["suggest"]["n_layer"]
    assert (
        mended.after.subject.counted.total - 1600 * (mended.config["vocab_size"] - 50257)
        == (one["expected"]["params_after_fix"]["value"])
    )


def test_what_flooring_would_lose_is_told():
    one = case("sh-04")
    (found,) = errors(one["input"]["hf_config"])

    assert f"heads of {one['expected']['floor_head_dim']}" in found.message
    assert f"leave {one['expected']['lost_dims']['value']} dimensions" in found.message


@pytest.mark.parametrize("name", ["sh-06", "sh-08", "sh-09"])
def test_an_attention_of_another_width_than_the_model_is_no_error(name):
    given = case(name)["input"]
    assert not errors(given.get("hf_config") or config_of(given["arch"]))


def test_a_pruned_width_that_heads_do_not_divide_is_an_error():
    arch = case("sh-11")["input"]["arch"]
    config = {k: v for k, v in config_of(arch).items() if k != "head_dim"}

    assert "SC102" in {f.code for f in errors({**config, "model_type": "llama"})}


def test_which_head_widths_flash_attention_takes():
    expected = case("sh-13")["expected"]["fa2"]
    takes = {f"hd{w}": backends()["flash2"].takes(w, w).verdict
             for w in (80, 96, 100, 256, 320)}  # fmt: skip

    assert {k for k, v in takes.items() if v == "yes"} == {k for k, v in expected.items()
                                                           if v is True}  # fmt: skip
    assert takes["hd320"] == "no"
    assert takes["hd100"] == "padded"


def test_no_kernel_reads_an_absorbed_latent_on_ampere():
    config = case("sh-15")["input"]["hf_config"]

    def told(gpu):
        report = lint(config, setting(gpu=gpu))
        return [f.message for f in report.findings if f.code == "SC331"]

    assert any("576 with values of 512" in text for text in told("a100"))
    assert not told("h100")


def test_heads_of_512_are_warned_of_on_a_consumer_board():
    one = case("sh-16")
    report = lint(config_of({"head_dim": 512, "n_heads": 8, "n_kv_heads": 4}),
                  setting(gpu="rtx-5090"))  # fmt: skip
    (found,) = [f for f in report.findings if f.code == "SC331"]

    assert found.level == "warning"
    for words in one["expected"]["must_mention"]:
        assert words in found.message


# ---------------------------------------------------------------- splits


@pytest.mark.parametrize("name", ["pl-02", "pl-04", "pl-05"])
def test_the_degrees_without_an_error_are_the_valid_ones(name):
    one = case(name)
    expected = one["expected"]["valid_tp"]

    assert legal_tp(config_of(one["input"]["arch"])) == expected


@pytest.mark.parametrize("name", ["pl-10"])
def test_the_padded_vocabulary_of_megatron_is_told_for_each_degree(name):
    one = case(name)
    for tp, padded in zip(one["input"]["tp"], one["expected"]["padded"], strict=True):
        report = lint(config_of({"vocab": one["input"]["vocab"]}),
                      setting(tp=tp, runtime="megatron"))  # fmt: skip
        code = "SC501" if tp == 1 else "SC213"
        (found,) = [f for f in report.findings if f.code == code]
        assert f"padded to {padded} " in found.message


def test_a_vocabulary_is_padded_to_the_degree():
    one = case("pl-07")
    told = [[f.message for f in lint(config_of(one["input"]), setting(tp=tp)).findings
             if f.code == "SC213"] for tp in one["input"]["tp"]]  # fmt: skip

    assert [not found for found in told] == one["expected"]["ok"]
    assert f"padded to {one['expected']['padded']['value']} " in told[-1][0]


def test_two_tokens_more_are_a_whole_padding_more():
    one = case("pl-09")
    vocab, extra, tp = (one["input"][k] for k in ("vocab", "extra_tokens", "tp"))

    def told(n):
        return [f.message for f in lint(config_of({"vocab": n}), setting(
            tp=tp, runtime="megatron")).findings if f.code == "SC213"]  # fmt: skip

    assert one["expected"]["padded_without_extra"] == vocab
    assert not told(vocab)
    assert f"padded to {one['expected']['padded_with_extra']} " in told(vocab + extra)[0]


def test_kv_heads_that_ranks_copy_are_told_with_their_number():
    one = case("pl-12")
    for arch, times in zip(one["input"]["archs"].values(), one["expected"]["replication"],
                           strict=True):  # fmt: skip
        report = lint(config_of(arch), setting(tp=arch["tp"]))
        (found,) = [f for f in report.findings if f.code == "SC203"]
        assert f"held {times} times" in found.message


def test_a_latent_is_not_divided_by_tensor_parallelism():
    one = case("pl-14")
    report = lint(one["input"]["hf_config"], setting(tp=8))
    (found,) = [f for f in report.findings if f.code == "SC204"]

    assert found.gain.value == 7 * one["expected"]["per_gpu"]["value"]


@pytest.mark.parametrize("name", ["pl-15", "pl-17"])
def test_layers_that_stages_do_not_divide_are_told_with_a_balanced_split(name):
    one = case(name)
    report = lint(config_of({"n_layers": one["input"]["n_layers"]}),
                  setting(pp=one["input"]["pp"]))  # fmt: skip
    (found,) = [f for f in report.findings if f.code == "SC206"]

    assert "/".join(map(str, one["expected"]["balanced"])) in found.message
    if "floor_total" in one["expected"]:
        assert f"would build {one['expected']['floor_total']} layers" in found.message


def test_degrees_of_all_to_all_sequence_parallelism():
    one = case("pl-19")
    given = one["input"]
    config = config_of({"n_heads": given["n_heads"], "n_kv_heads": given["n_kv_heads"]})
    good = [n for n in range(1, 41) if not errors(config, cp=n, runtime="ulysses")]

    assert good == one["expected"]["valid_sp"]


def test_padded_heads_are_told_with_their_waste():
    one = case("pl-21")
    config = config_of({"n_heads": one["input"]["n_heads"]}, intermediate_size=11000)
    (found,) = [f for f in errors(config, tp=one["input"]["tp"]) if f.code == "SC201"]

    assert f"padded to {one['expected']['padded']} " in found.message
    assert found.gain.value == pytest.approx(one["expected"]["waste"]["value"], rel=1e-3)


def test_degrees_of_expert_parallelism():
    one = case("pl-22")
    config = {**QUIET, "model_type": "qwen3_moe", "num_experts": one["input"]["n_experts"],
              "num_experts_per_tok": 8, "moe_intermediate_size": 1024}  # fmt: skip
    world = one["input"]["world_size"]
    good = [n for n in (1, 2, 4, 8, 16, 32, 64) if not errors(config, ep=n, gpus=world)]

    assert good == one["expected"]["valid_ep"]


# ---------------------------------------------------------------- quantised weights


def test_a_ffn_of_an_odd_number_of_groups_cannot_be_split():
    one = case("qa-01")
    right = one["expected"]
    rows = ((one["input"]["ffn"], right["valid"]), (right["padded_ffn"], right["padded_valid"]))
    for ffn, expected in rows:
        config = config_of({"ffn": ffn, "d_model": 8192, "n_heads": 64})
        found = [not errors(config, tp=tp, quant=f"gptq-int4-g{one['input']['group']}")
                 for tp in one["input"]["tp"]]  # fmt: skip
        assert found == expected


def test_the_output_projection_is_blamed_and_smaller_groups_pass():
    one = case("qa-03")
    given = one["input"]
    config = config_of({"d_model": given["hidden"], "ffn": given["ffn"], "n_heads": 14,
                        "n_kv_heads": 2, "head_dim": 64})  # fmt: skip
    valid = [not errors(config, tp=given["tp"], quant=f"gptq-int4-g{g}") for g in given["groups"]]
    (found,) = errors(config, tp=given["tp"], quant="gptq-int4-g128")

    assert valid == one["expected"]["valid"]
    assert "3.5 units of 128" in found.message
    assert "attention.o" in found.message


@pytest.mark.parametrize("name", ["qa-05", "qa-06"])
def test_experts_that_blocks_cut_are_an_error(name):
    one = case(name)
    given = one["input"]
    config = {**QUIET, "model_type": "qwen3_moe", "num_experts": 128, "num_experts_per_tok": 8,
              "hidden_size": 2048, "moe_intermediate_size": given["moe_ffn"]}  # fmt: skip
    valid = [not errors(config, tp=tp, quant="fp8-block") for tp in given["tp"]]

    assert valid == one["expected"]["valid"]


def test_the_largest_degree_that_keeps_blocks_whole():
    one = case("qa-08")
    good = [n for n in (1, 2, 4, 8, 16, 32)
            if not [f for f in errors(one["input"]["hf_config"], tp=n, quant="fp8-block")
                    if f.code == "SC402"]]  # fmt: skip

    assert max(good) == one["expected"]["max_tp"]


def test_the_scheme_a_config_says_is_checked_where_it_is_split():
    config = {**case("qa-08")["input"]["hf_config"], "quantization_config": {
        "quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"}}  # fmt: skip
    assert "SC402" in {f.code for f in errors(config, tp=32)}
    assert not errors(config, tp=16)


def test_a_width_that_fp8_does_not_take_is_an_error():
    wide = case("qa-10")["input"]["matrix"][1]
    (found,) = errors(config_of({"ffn": wide, "d_model": 896, "n_heads": 7, "n_kv_heads": 7}),
                      dtype="fp8")  # fmt: skip

    assert found.code == "SC304"
    assert f"{wide} is no multiple of 16" in found.message


def test_tokens_that_fp8_does_not_take_are_padded():
    one = case("qa-11")
    for (rows, _), padded in zip(one["input"]["matrices"], one["expected"]["padded_rows"],
                                 strict=True):  # fmt: skip
        (found,) = errors(QUIET, dtype="fp8", context=rows, phase="train")
        assert found.code == "SC305"
        assert f"pad to {padded}" in found.message


# ---------------------------------------------------------------- rotary positions


def test_the_scaling_of_llama_3_1_is_legal():
    given = case("ro-01")["input"]
    config = {**QUIET, "model_type": "llama", "rope_theta": 5e5} | {
        k: given[k] for k in ("rope_scaling", "max_position_embeddings")}  # fmt: skip
    assert not lint(config).findings


def test_a_factor_that_the_lengths_contradict_is_warned_of():
    one = case("ro-03")
    settings = dict(one["input"]["config"])
    theta = settings.pop("rope_theta")
    limit = settings.pop("max_position_embeddings")
    config = {**QUIET, "rope_scaling": settings, "rope_theta": theta,
              "max_position_embeddings": limit}  # fmt: skip
    (found,) = [f for f in lint(config).findings if f.level == "warning"]

    assert found.code == "SC704"
    assert f"= {one['expected']['implicit_ratio']['value']:g}" in found.message


def test_a_base_that_an_override_drops_is_warned_of():
    given = case("ro-05")["input"]
    whole = {**QUIET, "rope_scaling": given["override"], "max_position_embeddings": 131072}

    assert "SC706" in {f.code for f in lint(whole).findings}
    assert "SC706" not in {f.code for f in lint({**whole, **given["base"]}).findings}


def test_two_tables_and_two_bases_are_legal():
    given = case("ro-07")["input"]["config"]
    tables = {"short_factor": [1.0] * 64, "long_factor": [2.0] * 64}
    settings = {k: v for k, v in given.items() if k != "max_position_embeddings"}
    config = {**QUIET, "model_type": "llama", "rope_theta": 10000.0,
              "rope_scaling": {**settings, **tables},
              "max_position_embeddings": given["max_position_embeddings"]}  # fmt: skip
    assert not errors(config)
    assert not errors({"model_type": case("ro-09")["input"]["model_type"]})
