"""Rotary positions and longer contexts, against transformers, papers and public cases."""

import itertools
import json
import logging
import math
import random
import warnings

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from scantling import catalog, cli
from scantling.costs.rope import KINDS, evidence, stretch
from scantling.errors import FieldError, ScantlingError
from scantling.formats import hf
from scantling.formats.context import extend, far_rope, original_context
from scantling.formats.registry import export
from scantling.formats.scaling import judge, reading, scaling_kinds
from scantling.report.rope import rope
from scantling.sources import sources
from scantling.spec import GroupedAttention, Rope
from scantling.spec.rotation import (
    SCALINGS,
    frequencies,
    longrope_table,
    mscale,
    rotations,
    scaling_settings,
)
from scantling.spec.vary import nodes

STRETCHABLE = (
    "llama-2-7b", "qwen3-8b", "gemma-2-2b", "gemma-3-1b", "phi-2", "pythia-410m", "falcon-7b",
    "stablelm-2-1.6b", "mistral-7b-v0.3", "olmo2-7b", "mixtral-8x7b", "qwen3-30b-a3b",
    "moonlight-16b-a3b", "glm-4-9b-0414", "smollm3-3b", "mimo-v2-flash", "phi-3-mini",
    "qwen3-next-80b-a3b", "starcoder2-3b", "minimax-m3", "llama-4-maverick",
    "nemotron-4-15b", "glm-5.2",
)  # fmt: skip


def run(*args):
    """Run the command line in this process: status, output, error text."""
    found = CliRunner().invoke(cli.group, [str(a) for a in args], standalone_mode=False)
    if isinstance(found.exception, ScantlingError):
        return 2, found.stdout, f"error: {found.exception}"
    assert found.exception is None, repr(found.exception)
    return found.return_value, found.stdout, found.stderr


def rope_of(theta=10_000.0, fraction=1.0, **settings):
    """A rotary setting from keywords."""
    pairs = ((k, tuple(v) if isinstance(v, list) else v) for k, v in sorted(settings.items()))
    return Rope(theta, fraction, tuple(pairs))


# ---------------------------------------------------------------- frequencies


def settings_of(kind, chance, width, original):
    """Random settings of a kind, within what released models have."""
    factor = chance.choice([1.0, 2.0, 4.0, 8.0, 32.0, chance.uniform(1, 32)])
    found = {"rope_type": kind, "factor": factor}
    if kind in {"yarn", "llama3", "longrope"}:
        found["original_max_position_embeddings"] = original
    if kind == "llama3":
        low = chance.choice([1.0, chance.uniform(0.5, 2)])
        found |= {"low_freq_factor": low, "high_freq_factor": low * chance.uniform(3, 8)}
    if kind == "longrope":
        found |= {f"{name}_factor": [chance.uniform(1, 64) for _ in range(width // 2)]
                  for name in ("short", "long")}  # fmt: skip
    optional = {
        "yarn": {"mscale": 0.707, "mscale_all_dim": 0.9, "attention_factor": 1.3, "beta_fast": 48,
                 "beta_slow": 2, "truncate": False},
        "longrope": {"attention_factor": 1.2},
    }  # fmt: skip
    for key, value in optional.get(kind, {}).items():
        if chance.random() < 0.4:
            found[key] = value
    return found


@pytest.mark.oracle
@pytest.mark.parametrize("kind", [k for k in SCALINGS if k != "default"])
def test_frequencies_are_those_of_transformers(kind):
    """Random bases, widths, lengths and settings; 1e-6 of its 32-bit numbers.

    Where a ramp of llama3 begins, one bit of a power moves a frequency by factor · 4e-8, so that
    kind has room for it.
    """
    import torch
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    chance = random.Random(kind)
    for _ in range(60):
        head, fraction = chance.choice([32, 64, 80, 128, 192, 256]), chance.choice([1.0, 0.5, 0.75])
        original = chance.choice([2048, 4096, 8192, 32768, 131072])
        settings = settings_of(kind, chance, int(head * fraction), original)
        limit = int(original * settings["factor"])
        theta = math.exp(chance.uniform(math.log(1e3), math.log(1e8)))
        length = chance.choice([None, original, original + 1, 2 * limit])
        config = LlamaConfig(hidden_size=4 * head, num_attention_heads=4, head_dim=head,
                             max_position_embeddings=limit)  # fmt: skip
        config.rope_parameters = {**settings, "rope_theta": theta,
                                  "partial_rotary_factor": fraction}  # fmt: skip
        theirs, strength = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length)
        ours = frequencies(rope_of(theta, fraction, **settings), head, limit, length)

        assert ours.attention_factor == pytest.approx(strength, rel=1e-6)
        room = 1e-6 if kind != "llama3" else max(1e-6, 1e-7 * settings["factor"])
        assert ours.inverse == pytest.approx(theirs.tolist(), rel=room, abs=0)


def of_class(config, settings, layer):
    """Frequencies and factor of a class's config; the plain ones have no function of their own."""
    import torch
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if settings["rope_type"] == "default":
        head = getattr(config, "head_dim", None)
        head = head or config.hidden_size // config.num_attention_heads
        width = int(head * settings.get("partial_rotary_factor", 1.0))
        return settings["rope_theta"] ** -(torch.arange(0, width, 2) / width), 1.0
    layers = {} if layer is None else {"layer_type": layer}
    return ROPE_INIT_FUNCTIONS[settings["rope_type"]](config, torch.device("cpu"), **layers)


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:`rope_scaling` is deprecated")
def test_frequencies_of_real_configs_are_those_of_their_classes(shared):
    """Bases, widths, shares and scalings as read; the class of dbrx forgets its attn_config."""
    from transformers import AutoConfig

    compared = 0
    for path in sorted((shared / "data/configs").glob("*.json")):
        given = json.loads(path.read_text("utf-8"))
        try:
            spec = catalog.load(given).spec
            config = AutoConfig.for_model(**given)
        except (ScantlingError, ValueError, TypeError, KeyError, AttributeError):
            continue  # a reader's or a class's own affair, tested elsewhere
        config = getattr(config, "text_config", None) or config
        parameters, turning = getattr(config, "rope_parameters", None), rotations(spec)
        if not parameters or not turning or path.stem == "dbrx-base":
            continue
        layer = next((k for k in ("full_attention", "compress") if k in parameters), None)
        settings = parameters if layer is None else parameters[layer]
        if settings["rope_type"] in {"proportional", "gptj"}:
            continue  # Gemma 4 has its test below, GPT-J no function
        inverse, strength = of_class(config, settings, layer)
        ours = frequencies(turning[0].rope, turning[0].head, spec.max_context)
        assert ours.inverse == pytest.approx(inverse.tolist(), rel=1e-6), path.stem
        assert ours.attention_factor == pytest.approx(strength, rel=1e-6), path.stem
        compared += 1
    assert compared > 100


@pytest.mark.oracle
def test_gemma_4_turns_a_quarter_of_its_wide_heads():
    """Its class: 64 pairs of 256 of the whole head's spectrum, the others stand still."""
    from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig
    from transformers.models.gemma4.modeling_gemma4 import Gemma4TextRotaryEmbedding

    theirs = Gemma4TextRotaryEmbedding(Gemma4TextConfig())
    far, near = rotations(hf.read({"model_type": "gemma4_text"}).spec)
    for one, name in ((far, "full_attention"), (near, "sliding_attention")):
        inverse = getattr(theirs, f"{name}_inv_freq").tolist()
        assert frequencies(one.rope, one.head).inverse == pytest.approx(inverse, rel=1e-6)
    still = sum(f == 0 for f in frequencies(far.rope, far.head).inverse)
    assert (still, far.head) == (192, 512)


def test_plain_frequencies_are_powers_of_the_base():
    """θ^(−2i/r), by hand: base 10^4 and width 8 are 1, 0.1, 0.01, 0.001."""
    found = frequencies(Rope(10_000.0), 8)

    assert found.inverse == pytest.approx((1.0, 0.1, 0.01, 0.001), rel=1e-6)
    assert found.wavelengths[0] == pytest.approx(2 * math.pi)
    assert frequencies(Rope(10_000.0, 0.5), 16) == found


def test_linear_and_ntk_agree_on_the_slowest_pair():
    """Both turn it slower by the factor; NTK leaves the fastest alone (bloc97's derivation)."""
    plain = frequencies(Rope(10_000.0), 128).inverse
    linear = frequencies(rope_of(rope_type="linear", factor=4.0), 128).inverse
    ntk = extend(catalog.model("llama-2-7b"), 16_384, "ntk").spec
    stretched = frequencies(far_rope(ntk), 128).inverse

    assert plain[-1] / linear[-1] == pytest.approx(4.0, rel=1e-6)
    assert plain[-1] / stretched[-1] == pytest.approx(4.0, rel=1e-5)
    assert plain[0] == stretched[0]
    assert plain[0] / linear[0] == 4.0


def test_yarn_scales_attention_as_its_paper_says():
    """Equation 22: sqrt(1/t) = 0.1 ln s + 1; DeepSeek's two equal weights cancel."""
    assert mscale(32.0) == pytest.approx(1 + 0.1 * math.log(32))
    deepseek = rotations(catalog.model("deepseek-v3"))[0]
    assert frequencies(deepseek.rope, deepseek.head, 163_840).attention_factor == 1.0


def test_llama_3_keeps_fast_pairs_and_stretches_slow_ones():
    """Llama 3.1: wavelengths below 8192 / 4 as they were, those above 8192 eight times longer."""
    one = rotations(catalog.model("llama-3.1-8b"))[0]
    before = frequencies(replace(one.rope, scaling=None), one.head).wavelengths
    after = frequencies(one.rope, one.head).wavelengths

    for own, scaled in zip(before, after, strict=True):
        if own < 2048:
            assert scaled == own
        elif own > 8192:
            assert scaled / own == pytest.approx(8, rel=1e-6)
        else:
            assert 1 <= scaled / own <= 8


def test_longrope_uses_its_short_factors_up_to_the_original_length():
    spec = catalog.model("phi-3.5-mini")
    one = rotations(spec)[0]
    short, long = (frequencies(one.rope, one.head, 131_072, n) for n in (4096, 4097))
    settings = scaling_settings(one.rope)

    assert settings["original_max_position_embeddings"] == 4096  # beside its rope_scaling
    ratios = [a / b for a, b in zip(short.inverse, long.inverse, strict=True)]
    expected = [b / a for a, b in zip(settings["short_factor"], settings["long_factor"],
                                      strict=True)]  # fmt: skip
    assert ratios == pytest.approx(expected, rel=1e-6)
    assert long.attention_factor == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)))


def test_a_scaling_that_lacks_a_number_is_refused_in_one_line():
    cases = (
        ({"rope_type": "linear"}, "rope.factor is missing, which linear needs"),
        ({"rope_type": "yarn", "factor": "4"}, "rope.factor 4 must be a number above zero"),
        ({"rope_type": "llama3", "factor": 8.0}, "low_freq_factor is missing"),
        ({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}, "64 pairs"),
        ({"rope_type": "xpos"}, "rope_type xpos is not known"),
    )
    for settings, reason in cases:
        with pytest.raises(FieldError, match=reason) as refused:
            frequencies(rope_of(**settings), 128, 4096)
        assert "\n" not in str(refused.value)


def test_layers_are_listed_by_what_they_see():
    gemma = rotations(catalog.model("gemma-3-27b"))
    assert [(r.rope.theta, r.reach, r.n_layer) for r in gemma] == [
        (1e6, None, 10), (1e4, 1024, 52)
    ]  # fmt: skip
    scout = rotations(catalog.model("llama-4-scout"))
    assert [(r.reach, r.n_layer) for r in scout] == [(8192, 36)]  # full layers do not turn
    latent = rotations(catalog.model("deepseek-v3"))
    assert [(r.head, r.n_layer) for r in latent] == [(64, 61)]
    assert rotations(catalog.model("gpt2")) == ()


# ---------------------------------------------------------------- stretching


def built(config):
    """The class's own config of a written one, with Python's warnings as errors; what it logs."""
    from transformers import AutoConfig
    from transformers.utils import logging as theirs

    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logger = theirs.get_logger("transformers")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    theirs.get_logger("transformers.modeling_rope_utils").warning_once.__func__.cache_clear()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return AutoConfig.for_model(**config), said
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@pytest.mark.oracle
@pytest.mark.parametrize(("name", "kind"), list(itertools.product(STRETCHABLE, KINDS)))
def test_the_class_reads_a_stretched_config_without_a_warning(name, kind):
    """The class's own validation, its frequencies, and the way back to the same spec."""
    import torch
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    spec = catalog.model(name)
    longer = extend(spec, 4 * spec.max_context, kind)
    config = json.loads(export(longer.spec, "hf").text)
    assert hf.read(config).spec == longer.spec

    made, said = built(config)
    assert said == []

    settings, layer = made.rope_parameters, {}
    if "full_attention" in settings:
        settings, layer = settings["full_attention"], {"layer_type": "full_attention"}
    far, limit = rotations(longer.spec)[0], longer.spec.max_context
    ours = frequencies(far.rope, far.head, limit, 4 * spec.max_context)
    if kind == "ntk":
        assert settings["rope_type"] == "default"
        assert settings["rope_theta"] == far.rope.theta
        return
    inverse, strength = ROPE_INIT_FUNCTIONS[settings["rope_type"]](
        made, torch.device("cpu"), seq_len=4 * spec.max_context, **layer
    )
    assert ours.inverse == pytest.approx(inverse.tolist(), rel=1e-6)
    assert ours.attention_factor == pytest.approx(strength, rel=1e-6)


def test_longrope_s_own_factors_are_those_of_yarn():
    """Beyond the original length the same frequencies; within it, those of training."""
    spec = catalog.model("qwen3-8b")
    long = rotations(extend(spec, 131_072, "longrope", 32_768).spec)[0]
    yarn = rotations(extend(spec, 131_072, "yarn", 32_768).spec)[0]
    plain = rotations(spec)[0]

    beyond = frequencies(long.rope, 128, 131_072, 131_072).inverse
    assert beyond == pytest.approx(frequencies(yarn.rope, 128).inverse, rel=1e-5)
    assert frequencies(long.rope, 128, 131_072, 32_768).inverse == (
        frequencies(plain.rope, 128).inverse
    )


def test_longrope_takes_factors_that_a_search_found():
    spec = catalog.model("phi-3.5-mini")
    tables = {"short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    longer = extend(spec, 262_144, "longrope", tables=tables)

    assert longer.factor == 64.0
    assert scaling_settings(far_rope(longer.spec))["long_factor"] == (2.0,) * 48
    for wrong, reason in (
        ({"short_factor": [1.0] * 48}, "must be an object of short_factor and long_factor"),
        (tables | {"long_factor": [1.0] * 47}, "factor for each of the 48 pairs"),
        (tables | {"long_factor": [0.0] * 48}, "numbers above zero"),
        (tables | {"long_factor": 3}, "factor for each of the 48 pairs"),
    ):
        with pytest.raises(FieldError, match=reason):
            extend(spec, 262_144, "longrope", tables=wrong)
    with pytest.raises(FieldError, match="has no factor for each pair"):
        extend(catalog.model("qwen3-8b"), 131_072, "yarn", tables=tables)


def test_dynamic_keeps_the_trained_length_and_says_how_far_it_stretches():
    """The class stretches from max_position_embeddings; f² − f + 1 at f times it, here 13."""
    longer = extend(catalog.model("qwen3-8b"), 131_072, "dynamic", 32_768)

    assert longer.spec.max_context == 32_768
    assert any("×13 slower, not ×4" in note for note in longer.notes)


def test_what_was_assumed_is_said():
    assert any(n.startswith("assumed: trained on 40960") for n in
               extend(catalog.model("qwen3-8b"), 131_072, "yarn").notes)  # fmt: skip
    given = extend(catalog.model("qwen3-8b"), 131_072, "yarn", 32_768).notes
    assert not any(n.startswith("assumed") for n in given)
    assert not original_context(catalog.model("llama-3.1-8b")).assumed
    assert original_context(catalog.model("gemma-3-4b")).assumed


def test_a_phi_3_config_says_the_original_length_where_its_class_reads_it():
    config = hf.write(catalog.model("phi-4-mini"))

    assert config["model_type"] == "phi3"
    assert config["original_max_position_embeddings"] == 4096
    assert config["rope_scaling"]["original_max_position_embeddings"] == 4096


def test_a_class_that_reads_no_scaling_is_no_home_for_one():
    longer = extend(catalog.model("gpt-j-6b"), 8192, "yarn").spec
    with pytest.raises(FieldError, match="rope_scaling yarn cannot be written"):
        export(longer, "hf")


def test_vllm_is_told_the_length_that_was_asked_for():
    """Also where max_position_embeddings stays the trained length."""
    for kind in KINDS:
        values = export(
            extend(catalog.model("qwen3-8b"), 131_072, kind, 32_768).spec, "vllm"
        ).values
        assert values["max-model-len"] == 131_072, kind
        assert json.loads(json.dumps(values)) == values


# ---------------------------------------------------------------- what a context needs


def test_pairs_of_llama_2_that_never_complete_a_turn():
    """2π·10^(4i/64) > 4096 from i = 64 log10(4096/2π) / 4 = 45.03 on: 18 of 64."""
    first = math.ceil(64 * math.log10(4096 / (2 * math.pi)) / 4)
    found = stretch(catalog.model("llama-2-7b"), 16_384)

    counts = found.tables[0].counts()
    assert (first, counts["never_complete"], counts["unseen"]) == (46, 64 - first, 64 - first)
    assert [p.index for p in found.tables[0].pairs if p.unseen] == list(range(first, 64))


def test_interpolation_shows_no_new_angle_and_extrapolation_does():
    """Chen et al.: linear scaling keeps every position in the trained range; NTK does not quite."""
    for name in ("llama-2-7b", "qwen3-8b", "phi-2", "olmo2-7b", "moonlight-16b-a3b"):
        spec = catalog.model(name)
        ways = {m.kind: m for m in stretch(spec, 4 * spec.max_context).methods}
        assert ways["linear"].counts["unseen"] == 0
        assert ways["yarn"].counts["unseen"] == 0
        assert ways["llama3"].counts["unseen"] == 0
        assert ways["linear"].counts["fast_stretched"] == ways["linear"].counts["fast"]
        assert ways["yarn"].counts["fast_stretched"] == 0
        assert ways["yarn"].rank < ways["linear"].rank < ways["ntk"].rank


def test_windows_bound_the_distances_that_turn():
    local = stretch(catalog.model("mistral-7b-v0.1"), 65_536)
    assert not local.needed
    assert any("no layer sees farther than 4096" in line for line in local.advice)
    near = stretch(catalog.model("gemma-3-1b"), 131_072).tables[1]
    assert near.counts()["unseen"] == 0


def test_a_scaling_that_reaches_the_context_needs_nothing():
    found = stretch(catalog.model("llama-3.1-8b"), 65_536)
    assert not found.needed
    assert found.tables[0].counts()["unseen"] == 0
    beyond = stretch(catalog.model("llama-3.1-8b"), 262_144)
    assert [m.kind for m in beyond.methods if not m.refused] == ["llama3"]


def test_a_cache_grows_with_the_context():
    """Llama-2-7B keeps 2 · 32 · 32 · 128 numbers a token: 512 KiB in bf16."""
    found = rope("llama-2-7b", "32k")

    assert found.after.bytes_per_token == 2 * 32 * 32 * 128 * 2
    assert found.after.bytes == 8 * found.before.bytes == 32_768 * 524_288


def test_evidence_is_graded_and_has_a_source():
    for kind in KINDS:
        assert evidence(kind)
        for one in evidence(kind):
            assert one.source in sources()
            assert one.grade in "ABC"
            assert one.factor >= 1
    assert set(scaling_kinds()) == set(SCALINGS)


@pytest.mark.oracle
def test_latent_attention_multiplies_its_scores_as_its_class_does():
    """transformers, deepseek_v3: yarn_apply_mscale on a scale of 1."""
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import yarn_apply_mscale

    found = stretch(catalog.model("deepseek-v3"))
    theirs = yarn_apply_mscale(found.scaling, 1.0)
    assert any(f"scores by {theirs:.4f}" in line for line in found.advice)


def test_advice_promises_nothing():
    words = stretch(catalog.model("qwen3-8b"), 131_072, 32_768).advice
    assert any("none of this promises quality" in line for line in words)
    far = stretch(catalog.model("llama-2-7b"), 131_072).advice
    assert any("no evidence speaks for ×32 without training" in line for line in far)


# ---------------------------------------------------------------- public cases


def case(shared, number):
    """A case of the public questions."""
    path = next((shared / "cases").glob(f"ro-{number:02}-*.json"))
    return json.loads(path.read_text("utf-8"))


def matches(asked, found):
    """Every required key within its tolerance."""
    assert set(found) == set(asked["required"])
    for key, value in found.items():
        wanted = asked["expected"][key]
        if isinstance(wanted, dict):
            assert value == pytest.approx(wanted["value"], rel=wanted["rtol"] or 1e-12), key
        else:
            assert value == wanted, key


def test_case_ro_01_llama3_scaling_is_valid_and_the_version_is_said(shared):
    asked = case(shared, 1)
    given = asked["input"]
    found = judge(given["rope_scaling"], given["max_position_embeddings"])
    matches(asked, {"valid": found.valid, "min_transformers": found.min_transformers})

    config = {"model_type": "llama", "max_position_embeddings": given["max_position_embeddings"],
              "rope_scaling": given["rope_scaling"]}  # fmt: skip
    assert asked["expected"]["min_transformers"] in export(hf.read(config).spec, "hf").notes[0]


def test_case_ro_03_an_explicit_factor_wins_and_is_warned_about(shared):
    asked = case(shared, 3)
    config = asked["input"]["config"]
    found = reading(config, config["max_position_embeddings"])
    matches(asked, {key: getattr(found, key) for key in asked["required"]})

    turned = rope_of(config["rope_theta"], **{k: v for k, v in config.items() if k in {
        "rope_type", "factor", "original_max_position_embeddings"}})  # fmt: skip
    plain = frequencies(Rope(config["rope_theta"]), 128).inverse[-1]
    slow = frequencies(turned, 128, config["max_position_embeddings"]).inverse[-1]
    assert plain / slow == pytest.approx(asked["expected"]["effective_factor"]["value"])


def test_case_ro_05_the_base_survives_an_extension(shared):
    asked = case(shared, 5)
    spec = hf.read({"model_type": "qwen3", "max_position_embeddings": 40960,
                    **asked["input"]["base"]}).spec  # fmt: skip
    override = asked["input"]["override"]
    original = override["original_max_position_embeddings"]
    longer = extend(spec, int(override["factor"] * original), override["rope_type"], original)
    config = hf.write(longer.spec)

    matches(asked, {"theta": config["rope_theta"]})
    assert {k: config["rope_scaling"][k] for k in override} == override


def test_case_ro_07_longrope_switches_at_the_original_length(shared):
    asked = case(shared, 7)
    original = asked["input"]["config"]["original_max_position_embeddings"]
    matches(asked, {"table": [longrope_table(n, original) for n in asked["input"]["lengths"]]})


def test_case_ro_09_gemma_3_has_two_bases(shared):
    asked = case(shared, 9)
    spec = hf.read({"model_type": asked["input"]["model_type"]}).spec
    far, near = rotations(spec)
    matches(asked, {"sliding": near.rope.theta, "full": far.rope.theta})
    assert {n.position.theta for _, n in nodes(spec) if isinstance(n, GroupedAttention)} == {
        far.rope.theta, near.rope.theta
    }  # fmt: skip


def test_every_rope_case_is_tested(shared):
    numbers = {int(p.name[3:5]) for p in (shared / "cases").glob("ro-*.json")}
    tested = {int(name[13:15]) for name in globals() if name.startswith("test_case_ro_")}
    assert numbers <= tested


def test_a_written_scaling_is_judged_by_what_its_kind_needs():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
    cases = (
        (None, 4096, True, ""),
        (yarn, 131_072, True, ""),
        (yarn, 40_960, True, "40960 / 32768 = 1.25"),
        (yarn | {"type": "yarn"}, 131_072, True, ""),
        (yarn | {"low_freq_factor": 1.0}, 131_072, True, "low_freq_factor has no effect on yarn"),
        ({"type": "linear", "factor": 2.0}, 8192, True, ""),
        ({"type": "linear"}, 8192, False, "factor is missing"),
        ({"type": "linear", "factor": -1.0}, 8192, False, "must be a number above zero"),
        ({"type": "liner", "factor": 2.0}, 8192, False, "did you mean linear"),
        ({"type": "dynamic", "factor": 0.5}, 8192, True, "below 1"),
        (
            {"type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 2048},
            8192,
            True,
            "must stay the trained length 2048",
        ),
        (
            {"type": "linear", "rope_type": "dynamic", "factor": 4.0},
            8192,
            True,
            "type linear is not read: rope_type dynamic is",
        ),
        ({"type": "mrope", "mrope_section": [16, 24, 24]}, 8192, True, ""),
    )
    for scaling, limit, valid, word in cases:
        found = judge(scaling, limit)
        told = " ".join((*found.problems, *found.warnings))
        assert found.valid is valid, scaling
        assert (word in told) if word else told == "", (scaling, told)


@pytest.mark.oracle
def test_the_class_does_warn_of_a_factor_that_is_no_ratio():
    """So silence in the tests above means something (transformers, validate_rope)."""
    config = hf.write(extend(catalog.model("qwen3-8b"), 131_072, "yarn", 32_768).spec)
    config["max_position_embeddings"] = 40_960

    _, said = built(config)
    assert any("implicit factor" in text for text in said)


@pytest.mark.oracle
def test_a_base_in_rope_parameters_is_read_before_one_beside_it():
    config = {"model_type": "llama", "rope_theta": 1e4,
              "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}  # fmt: skip

    theirs, _ = built(config)
    assert far_rope(hf.read(config).spec).theta == theirs.rope_parameters["rope_theta"] == 5e5


def test_released_scalings_are_valid():
    """Every scaling of the catalogue is one that its class accepts."""
    for name in catalog.named():
        spec = catalog.model(name)
        for one in rotations(spec):
            settings = scaling_settings(one.rope)
            found = judge(hf.write(spec).get("rope_scaling") if settings else None,
                          spec.max_context, head=one.head, fraction=one.rope.fraction)  # fmt: skip
            assert found.valid, (name, found)


# ---------------------------------------------------------------- the command line


def test_analyze_rope_prints_the_table_the_ways_and_the_advice():
    status, out, _ = run("analyze", "llama-2-7b", "--rope", "--context", "32k")

    assert status == 0
    for words in ("18 with no turn at the original length", "unseen angles", "yarn", "ntk",
                  "16 GiB at 32,768", "none of this promises quality", "A qwen3-long"):  # fmt: skip
        assert words in out


def test_analyze_rope_as_json_has_every_pair():
    _, out, _ = run("analyze", "gemma-3-1b", "--rope", "--context", "128k", "--json")
    answer = json.loads(out)

    assert answer["schema"] == 1
    assert [len(t["pairs"]) for t in answer["tables"]] == [128, 128]
    assert {m["rope"] for m in answer["methods"]} == set(KINDS)
    yarn = next(m for m in answer["methods"] if m["rope"] == "yarn")
    assert yarn["rope_scaling"]["factor"] == 4.0
    assert yarn["evidence"][0]["source"] in sources()
    assert answer["original_context"]["kind"] == "assumed"


def test_analyze_rope_draws(tmp_path):
    pytest.importorskip("matplotlib")
    place = tmp_path / "rope.svg"
    status, _, err = run("analyze", "llama-3.1-8b", "--rope", "--context", "256k", "--plot", place)

    assert status == 0
    assert f"wrote {place}" in err
    assert "<svg" in place.read_text("utf-8")


def test_bad_input_is_answered_in_one_line(tmp_path):
    factors = tmp_path / "factors.json"
    factors.write_text('{"long_factor": [1]}', "utf-8")
    hf_ = ("export", "qwen3-8b", "--to", "hf")
    cases = (
        (("analyze", "llama-2-7b", "--rope", "--context", "2k"), "is not longer than the original"),
        (("analyze", "gpt2", "--rope"), "nothing turns in this model"),
        (("analyze", "gpt2", "--rope", "--context", "4k"), "nothing turns in this model"),
        (("analyze", "llama-2-7b", "--rope", "--why", "d_model"), "does not go with --why"),
        (("analyze", "llama-2-7b", "--original-context", "2k"), "needs --rope"),
        ((*hf_, "--context", "32k", "--rope", "yarn"), "must exceed the original 40960"),
        ((*hf_, "--context", "128k", "--rope", "yarm"), "did you mean yarn"),
        (("export", "gpt2", "--to", "hf", "--context", "4k", "--rope", "yarn"), "needs rotary"),
        ((*hf_, "--context", "128k", "--rope", "yarn", "--rope-factors", factors), "longrope"),
        ((*hf_, "--context", "128k", "--rope", "longrope", "--rope-factors", factors),
         "must be an object of short_factor and long_factor"),
        ((*hf_, "--context", "128k", "--rope", "longrope", "--rope-factors", tmp_path / "no"),
         "cannot be read"),
    )  # fmt: skip
    for args, text in cases:
        status, _, err = run(*args)
        assert status == 2, args
        assert text in err, (args, err)
        assert "\n" not in err


@pytest.mark.parametrize("kind", KINDS)
def test_export_writes_what_reads_as_the_same_model(tmp_path, kind):
    place = tmp_path / "config.json"
    status, _, _ = run("export", "qwen3-8b", "--to", "hf", "--context", "128k", "--rope", kind,
                       "--original-context", "32k", "--out", place)  # fmt: skip

    assert status == 0
    assert catalog.load(place).spec == (
        extend(catalog.model("qwen3-8b"), 131_072, kind, 32_768).spec
    )
