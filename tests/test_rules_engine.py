"""The engine: what rules see, how they are chosen, and what holds of all of them."""

import dataclasses
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

import scantling
from illegal_configs import HARMS, HYBRID, LLAMA, MAMBA, MOE, changed
from scantling import analyze, catalog
from scantling.costs.backends import backends
from scantling.costs.runtimes import runtimes
from scantling.errors import FieldError
from scantling.formats.checkpoint import Checkpoint
from scantling.quantity import Quantity
from scantling.rules import Subject, find_rule, fix, lint, load_rules, select, setting, subject
from scantling.sources import sources
from scantling.spec import DeepNorm, Layer, vary

RULES = list(load_rules().values())


def codes(report):
    return {f.code for f in report.findings}


# ---------------------------------------------------------------- all rules


def test_there_are_forty_five_rules_or_more():
    assert len(RULES) >= 45


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.code)
def test_a_page_says_the_rule_its_exceptions_and_its_sources(rule):
    assert len(rule.title) <= 100
    assert rule.title.endswith(".")
    assert "Exceptions:" in rule.page
    assert rule.sources
    assert all(key in sources() for key in rule.sources)


def test_slugs_are_different_and_in_words():
    slugs = [r.slug for r in RULES]
    assert len(set(slugs)) == len(slugs)
    assert all(slug == slug.lower() and " " not in slug for slug in slugs)


def test_limits_of_kernels_and_runtimes_carry_a_source():
    for one in (*backends().values(), *runtimes().values()):
        assert one.sources
        assert all(key in sources() for key in one.sources)


def test_runtimes_name_kernels_that_there_are():
    assert all(name in backends() for r in runtimes().values() for name in r.kernels)


@pytest.mark.parametrize("harm", HARMS, ids=lambda h: h.code)
def test_every_finding_says_what_and_where_in_one_line(harm):
    config = changed(harm.base, harm.change)
    for f in lint(config, setting(**harm.setting), name=harm.name).findings:
        assert f.field
        assert len(f.message.splitlines()) == 1
        assert all(key in sources() for key in f.source)
        json.dumps(f.to_json())
        if f.gain is not None and f.gain.kind != "exact":
            assert isinstance(f.gain, Quantity)
            assert f.gain.low <= f.gain.value <= f.gain.high
            assert f.gain.why


# ---------------------------------------------------------------- what is read


def test_a_spec_is_linted_as_a_config_is():
    """But for keys, which it has not: fields have their own names."""
    spec = vary(catalog.model("gpt2"), vocab_size=50257)
    (found,) = [f for f in lint(spec).findings if f.level == "warning"]
    assert (found.code, found.field) == ("SC501", "vocab_size")


def test_an_illegal_spec_is_reported_on():
    spec = vary(catalog.model("llama-3-8b"), n_kv_head=6)
    report = lint(spec)

    assert not report.passed
    assert "must divide n_head 32" in report.findings[0].message


def test_several_things_wrong_are_all_told():
    config = changed(LLAMA, {"num_key_value_heads": 5, "vocab_size": "many", "pad_token_id": 99999})
    assert {"SC001", "SC101"} <= codes(lint(config))


def test_what_no_rule_explains_is_told_in_the_words_of_the_reader():
    config = {"model_type": "gemma3_text", "layer_types": ["full_attention"] * 3,
              "num_hidden_layers": 4}  # fmt: skip
    assert not lint(config).passed
    assert not lint({"model_type": "opt", "word_embed_proj_dim": 0}).passed


@pytest.mark.parametrize("config", [{}, {"hidden_size": 4}, {"model_type": "unheard-of"},
                                    {"model_type": ["llama"]}, {"text_config": 3}])  # fmt: skip
def test_what_is_no_model_at_all_cannot_be_linted(config):
    with pytest.raises(FieldError):
        lint(config)


def test_a_type_in_no_table_is_linted_as_what_it_resembles():
    report = lint(changed(LLAMA, {"model_type": "brand-new", "num_key_value_heads": 5,
                                  "architectures": None}))  # fmt: skip
    assert "SC101" in codes(report)
    sound = lint(changed(LLAMA, {"model_type": "brand-new", "architectures": None}))
    assert "SC013" in codes(sound)
    assert sound.passed


def test_a_config_is_not_written_to():
    config = changed(LLAMA, {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}})
    before = json.dumps(config)
    lint(config)
    assert json.dumps(config) == before


# ---------------------------------------------------------------- rules that need more


def checkpoint(names):
    @dataclasses.dataclass
    class Weight:
        name: str
        role: str = "weight"

    return Checkpoint(name="m", format="safetensors", file_bytes=0,
                      tensors=tuple(Weight(n) for n in names))  # fmt: skip


def test_a_tie_flag_is_held_against_the_checkpoint():
    def asked(names, tied):
        one = subject(changed(LLAMA, {"tie_word_embeddings": tied}))
        one.checkpoint = checkpoint(names)
        return [f.level for f in lint(one).findings if f.code == "SC012"]

    table, head = "model.embed_tokens.weight", "lm_head.weight"
    assert asked([table], tied=False) == ["warning"]
    assert asked([table, head], tied=True) == ["warning"]
    assert not asked([table, head], tied=False)
    assert not asked([table], tied=True)


@pytest.mark.parametrize(("layers", "alpha"), [(12, 24**0.25), (100, 200**0.25)])
def test_deepnorm_has_the_scale_of_its_paper(layers, alpha):
    """α = (2 L)^(1/4) of a decoder alone: table of Wang et al. (2022)."""

    def with_alpha(value):
        spec = vary(catalog.model("gpt2"), n_layer=layers)
        kind = spec.decoder.kinds[0]
        blocks = tuple(replace(b, residual=DeepNorm(value)) for b in kind.blocks)
        stack = replace(spec.decoder, kinds=(Layer(kind.name, blocks),))
        return replace(spec, decoder=stack)

    assert "SC952" not in codes(lint(with_alpha(alpha)))
    (found,) = [f for f in lint(with_alpha(1.0)).findings if f.code == "SC952"]
    assert f"{alpha:.4g}" in found.message


def test_a_model_without_attention_is_told_so_and_one_with_is_not():
    assert "SC123" in codes(lint(MAMBA))
    assert "SC123" not in codes(lint(HYBRID))


def test_weights_that_a_chip_unpacks_are_told_so():
    assert "SC407" in codes(lint("llama-3-8b", gpu="a100", quant="fp8"))
    assert "SC407" not in codes(lint("llama-3-8b", gpu="h100", quant="fp8"))


# ---------------------------------------------------------------- choice, setting


def test_rules_about_a_split_are_silent_where_none_is_asked():
    assert not {c for c in codes(lint(changed(LLAMA, {"num_hidden_layers": 29}))) if c[2] == "2"}


def test_a_longer_prefix_wins_over_a_shorter_one():
    assert set(select(["SC1"], ["SC101"])) == {c for c in load_rules() if c[:3] == "SC1"} - {
        "SC101"
    }
    assert "SC101" in select(["SC101"], ["SC1"])
    assert set(select([], ["SC1"])) == {c for c in load_rules() if c[:3] != "SC1"}


def test_a_wrong_rule_is_answered_with_the_nearest():
    with pytest.raises(FieldError, match="kv-heads-divide"):
        find_rule("kv-heads-divid")


def test_a_setting_knows_many_spellings():
    one = setting(gpu="H100", runtime="TensorRT LLM", dtype="torch.bfloat16", quant="AWQ")
    assert (one.runtime, one.dtype, one.quant) == ("tensorrt-llm", "bf16", "awq-int4")


def test_experts_are_spread_over_the_ranks_there_are():
    """EP 8 on TP 2 needs four data ranks: the plan takes the fewest that do."""
    assert setting(ep=8, tp=2).plan.dp == 4
    assert setting(ep=8, tp=2, gpus=32).plan.dp == 16
    assert lint(MOE, setting(ep=8, tp=2)).passed


def test_a_limit_belongs_to_its_runtime():
    """A head of 80 runs in FlashAttention and llama.cpp, and not in FlashInfer."""
    config = {**MOE, "head_dim": 80}
    for runtime, passes in (("flashinfer", False), ("vllm", True), ("llama.cpp", True)):
        assert lint(config, runtime=runtime).passed is passes


def test_lint_is_a_verb_of_the_package():
    assert scantling.lint("llama-3-8b").passed
    assert isinstance(scantling.lint("gpt2").subject, Subject)


@pytest.mark.parametrize("name", ["gpt2", "qwen2.5-7b", "gemma-3-1b", "deepseek-v3"])
def test_what_analyze_finds_is_what_the_rules_find(name):
    """One home for each fact: codes, levels and words are those of lint at the same context."""
    report = lint(catalog.model(name), setting(context=2048))
    told = analyze(name, context=2048).findings()
    own = [f for f in told if f["code"] != "UNSEEN"]
    assert [(f["code"], f["level"], f["message"]) for f in own] == [
        (f.code, f.level, f.message) for f in report.findings
    ]


@pytest.mark.parametrize(("name", "tp", "heads"), [
    ("gpt2-xl", 2, 20), ("gpt2", 8, 8), ("pythia-12b", 16, 32), ("opt-125m", 8, 8),
])  # fmt: skip
def test_where_the_class_derives_the_head_width_the_mended_heads_divide_the_width(name, tp, heads):
    """1600 = 20 × 80 and no multiple of 26; the parameters of the heads stay what they were."""
    found = fix(subject(name, setting(tp=tp)))

    assert found.after.passed
    assert found.spec.n_head == found.spec.n_kv_head == heads
    assert found.spec.d_model % heads == 0
    assert "kv" not in next(f for f in found.applied if f.code == "SC201").fix.text


def test_where_no_heads_divide_both_only_degrees_are_named():
    """4544 = 2^6 · 71: two ranks would need heads of 32 or of 568."""
    found = next(f for f in lint("falcon-7b", tp=2).findings if f.code == "SC201")

    assert not found.fix.automatic
    assert found.fix.text == "valid TP: 1"


def test_a_share_that_is_less_aligned_than_the_whole_is_told():
    """8208 / 8 = 1026 = 2 · 513, where 8208 is a multiple of 16."""
    config = {"model_type": "gpt_neox", "hidden_size": 2048, "num_attention_heads": 16,
              "num_hidden_layers": 16, "intermediate_size": 8208, "vocab_size": 50304}  # fmt: skip
    found = next(f for f in lint(config, tp=8).findings if f.code == "SC303")

    assert (found.level, found.field) == ("warning", "intermediate_size")
    assert "1026" in found.message


def test_the_key_that_a_scaling_lacks_is_the_one_that_is_asked_for():
    """Its frequency factors are missing; its factor is given, and right."""
    scaling = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
    config = {"model_type": "llama", "max_position_embeddings": 65536, "rope_scaling": scaling}
    found = [f for f in lint(config).findings if f.code == "SC701"]

    assert found
    assert all("low_freq_factor" in f.fix.text for f in found)


def test_an_error_says_what_the_weights_are_counted_in():
    """DeepSeek-V3 is 1.25 TiB in 16 bits, and fits 8 × H200 in the FP8 it is released in."""
    plain = lint(catalog.named()["deepseek-v3"].config, gpu="h200-sxm", tp=8)
    assert any(f.code == "SC901" and "in 16 bits" in f.message for f in plain.findings)
    assert lint("deepseek-v3", gpu="h200-sxm", tp=8).passed


@pytest.mark.parametrize(("model_type", "key"), [
    ("gpt_neox", "rotary_pct"), ("phi", "partial_rotary_factor"), ("glm", "partial_rotary_factor"),
])  # fmt: skip
def test_more_than_all_of_a_head_cannot_turn(model_type, key):
    """Told once, by the rule of rotary parts, under the key as it is spelled."""
    found = [f for f in lint({"model_type": model_type, key: 1.5}).findings if f.level == "error"]

    assert [(f.code, f.field) for f in found] == [("SC103", key)]


def test_a_dtype_inside_the_text_part_is_looked_up_too():
    config = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text",
                                                      "dtype": "bfloat17"}}  # fmt: skip
    assert any(f.code == "SC017" for f in lint(config).findings)


def test_a_constant_of_the_depth_guide_stands_in_one_table():
    """Levine et al. 2020: ln D = 5.039 + 0.0555 L, read by rule SC605, a claim and a prior."""
    tables = sorted((Path(catalog.__file__).parent / "data").glob("*.toml"))
    holding = [p.name for p in tables if "a = 5.039" in p.read_text("utf-8")]
    assert holding == ["shape_priors.toml"]
    deep = vary(catalog.model("smollm2-360m"), n_layer=96)
    assert any(f.code == "SC605" and "says 33" in f.message for f in lint(deep).findings)


@pytest.mark.parametrize(("key", "beside", "nested"), [
    ("partial_rotary_factor", 0.5, 0.25), ("rope_theta", 5000.0, 10000.0),
])  # fmt: skip
def test_a_rotary_value_beside_another_in_rope_parameters_is_told(key, beside, nested):
    """PhiConfig of transformers 5.24 keeps what rope_parameters hold and drops the one beside."""
    inside = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
    config = {"model_type": "phi", "rope_parameters": inside}

    told = [f for f in lint({**config, key: beside}).findings if f.code == "SC007"]

    assert [(f.field, f.fix.config) for f in told] == [(key, {key: nested})]
    assert not [f for f in lint({**config, key: nested}).findings if f.code == "SC007"]
    assert not [f for f in lint(config).findings if f.code == "SC007"]


def test_the_class_keeps_what_rope_parameters_hold():
    transformers = pytest.importorskip("transformers")
    inside = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
    read = transformers.PhiConfig(partial_rotary_factor=0.5, rope_theta=5.0, rope_parameters=inside)
    assert read.rope_parameters["partial_rotary_factor"] == 0.25
    assert read.rope_parameters["rope_theta"] == 10000.0
