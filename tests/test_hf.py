"""A config.json is read as its class reads it, written so that it reads the same, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scantling import catalog
from scantling.costs.count import parameters
from scantling.errors import FieldError, ScantlingError, UnknownNameError
from scantling.formats import hf
from scantling.formats.json_file import parse_object, read_object
from scantling.search.budget import budget
from scantling.search.families import templates
from scantling.spec import Spec, check, vary

SHARED = Path(__file__).parents[2] / "shared"
CONFIGS = SHARED / "data" / "configs"
CASES = SHARED / "cases"


def llama(**keys: Any) -> dict[str, Any]:
    """A small config that leaves nothing out, with keys changed; ``...`` takes one away."""
    config = {
        "model_type": "llama", "vocab_size": 1000, "hidden_size": 512, "intermediate_size": 1376,
        "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
        "max_position_embeddings": 2048, "tie_word_embeddings": False,
    }  # fmt: skip
    return {k: v for k, v in (config | keys).items() if v is not ...}


def refusal(config: dict[str, Any]) -> FieldError:
    """The error a config is answered with."""
    with pytest.raises(FieldError) as caught:
        hf.read(config)
    return caught.value


def notes(config: dict[str, Any]) -> str:
    return "\n".join(hf.read(config).notes)


# ---------------------------------------------------------------- reading


def test_a_config_that_leaves_nothing_out_is_read_without_notes():
    assert hf.read(llama()).notes == ()


def test_a_missing_key_is_the_class_default_and_noted():
    """transformers: ``LlamaConfig().intermediate_size`` is 11008."""
    imported = hf.read(llama(intermediate_size=...))
    assert imported.spec.d_ff == 11008
    assert imported.notes == (
        "assumed: intermediate_size is not given, the class default is 11008",
    )


def test_a_missing_key_is_not_null():
    """DeepSeek-V2-Lite says ``q_lora_rank: null``; without the key the class has 1536.

    The difference is 27 layers of 1536 (2048 + 16 × 192 + 1) − 2048 × 16 × 192 parameters
    (notes/hf-configs.md counts 42,508,800 more).
    """
    config = dict(catalog.named()["deepseek-v2-lite"].config)
    assert config.pop("q_lora_rank") is None
    absent = hf.read(config).spec
    null = hf.read(config | {"q_lora_rank": None}).spec
    more = parameters(absent).total - parameters(null).total
    assert more == 27 * (1536 * (2048 + 16 * 192 + 1) - 2048 * 16 * 192) == 42_508_800


def test_null_kv_heads_are_all_heads_and_missing_ones_are_the_class_default():
    """Mistral's default is 8 KV heads; a null would be as many as query heads."""
    mistral = {"model_type": "mistral", "num_attention_heads": 32}
    assert hf.read(mistral).spec.n_kv_head == 8
    assert hf.read(mistral | {"num_key_value_heads": None}).spec.n_kv_head == 32


def test_a_whole_number_with_a_point_is_read_and_noted():
    imported = hf.read(llama(hidden_size=512.0))
    assert imported.spec == hf.read(llama()).spec
    assert isinstance(imported.spec.d_model, int)
    assert imported.notes == ("hidden_size is written as 512.0, read as 512",)


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_local_experts", 8), ("sliding_window", 4096), ("n_embd", 768), ("q_lora_rank", 64)],
)
def test_a_key_of_other_types_is_noted_as_without_effect(key, value):
    imported = hf.read(llama(**{key: value}))
    assert imported.spec == hf.read(llama()).spec
    assert imported.notes == (f"{key} has no effect on the shape of model type llama",)


def test_a_switch_that_is_off_needs_no_note():
    assert hf.read(llama(use_sliding_window=False, sliding_window=None)).notes == ()


def test_a_misspelled_key_is_noted_with_the_right_one():
    config = llama(num_key_value_heads=...) | {"num_key_value_head": 2}
    assert "num_key_value_head is not read; did you mean num_key_value_heads?" in notes(config)


def test_of_two_spellings_that_differ_one_counts_and_the_other_is_noted():
    config = {"model_type": "gpt2", "n_embd": 768, "hidden_size": 1024}
    assert hf.read(config).spec.d_model == 768
    assert "hidden_size 1024 is not read: n_embd is 768" in notes(config)


def test_of_two_spellings_that_agree_nothing_is_noted():
    config = {"model_type": "gpt2", "n_embd": 768, "hidden_size": 768}
    assert "is not read" not in notes(config)


def test_the_text_part_of_a_multimodal_config_is_read():
    """Gemma 3 4B as on the hub: sizes in text_config, the rest by default (case cf-01).

    transformers: ``Gemma3TextConfig().vocab_size`` is 262,208, the padded one of the family.
    """
    text = {"hidden_size": 2560, "num_hidden_layers": 34, "intermediate_size": 10240}
    vision = {"hidden_size": 1152, "num_hidden_layers": 27}
    config = {"model_type": "gemma3", "text_config": text, "vision_config": vision}
    imported = hf.read(config)
    assert imported.model_type == "gemma3_text"
    assert imported.spec.d_model == 2560
    assert imported.spec.n_layer == 34
    assert imported.spec.vocab_size == 262_208
    assert "assumed: vocab_size is not given, the class default is 262208" in imported.notes


def test_tying_may_stand_outside_the_text_part():
    untied = {"model_type": "gemma3", "text_config": {}, "tie_word_embeddings": False}
    assert hf.read(untied).spec.tied is False
    assert hf.read({"model_type": "gemma3", "text_config": {}}).spec.tied is True


@pytest.mark.parametrize("text", [None, {}])
def test_a_multimodal_config_without_a_text_part_is_all_defaults(text):
    assert hf.read({"model_type": "gemma3", "text_config": text}).spec == (
        hf.read({"model_type": "gemma3_text"}).spec
    )


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("LlamaForCausalLM", "llama"),
        ("Qwen3MoeForCausalLM", "qwen3_moe"),
        ("GPT2LMHeadModel", "gpt2"),
        ("DeepseekV3ForCausalLM", "deepseek_v3"),
    ],
)
def test_a_config_without_a_model_type_is_read_by_its_architecture(architecture, expected):
    assert hf.read({"architectures": [architecture]}).model_type == expected


def test_the_rotary_keys_of_transformers_5_are_those_of_4():
    scaling = {"rope_type": "yarn", "factor": 4.0}
    old = llama(rope_theta=5e5, rope_scaling=scaling)
    new = llama(rope_parameters={"rope_theta": 5e5, **scaling})
    assert hf.read(old).spec == hf.read(new).spec


def test_each_layer_type_of_gemma_3_has_its_own_base():
    nested = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    flat = {
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    base = {"model_type": "gemma3_text"}
    assert hf.read(base | {"rope_parameters": nested}).spec == hf.read(base | flat).spec


def test_a_list_over_the_layers_that_is_too_long_is_cut_and_noted():
    kinds = ["sliding_attention", "full_attention"]
    config = {"model_type": "gemma2", "num_hidden_layers": 4}
    long = config | {"layer_types": kinds * 3}
    assert hf.read(long).spec == hf.read(config | {"layer_types": kinds * 2}).spec
    assert "layer_types has 6 entries for 4 layers; the rest is cut" in notes(long)


def test_a_pattern_is_squeezed_to_a_prefix_and_a_cycle():
    """Gemma 3: five windows to one full layer; DeepSeek-V3: three dense layers, then experts."""
    gemma = catalog.model("gemma-3-27b").decoder
    assert [(run.pattern, run.n) for run in gemma.layout] == [(("local",) * 5 + ("global",), 62)]
    deepseek = catalog.model("deepseek-v3").decoder
    assert [(run.pattern, run.n) for run in deepseek.layout] == [(("dense",), 3), (("moe",), 58)]


def test_prediction_modules_are_named_and_not_counted():
    config = catalog.named()["deepseek-v3"].config | {"num_nextn_predict_layers": 1}
    one, none = hf.read(config), hf.read(config | {"num_nextn_predict_layers": 0})
    assert (one.n_mtp, none.n_mtp) == (1, 0)
    assert one.spec == none.spec


# ---------------------------------------------------------------- files as people have them


def test_a_byte_order_mark_is_accepted_and_noted(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("\ufeff" + json.dumps(llama()), "utf-8")
    config, found = read_object(path)
    assert config == llama()
    assert found == ["the file starts with a byte-order mark"]


def test_a_repeated_key_is_accepted_and_noted_at_any_depth():
    text = '{"a": 1, "b": {"c": 1, "c": 2}, "a": 3}'
    config, found = parse_object(text, "config.json")
    assert config == {"a": 3, "b": {"c": 2}}
    assert [note.split(";")[0] for note in found] == [
        "the key c is repeated",
        "the key a is repeated",
    ]


def test_infinity_in_a_field_no_shape_needs_is_accepted():
    config, _ = parse_object('{"model_type": "gpt2", "time_step_limit": [0.0, Infinity]}', "x")
    assert hf.read(config).spec == hf.read({"model_type": "gpt2"}).spec


def test_what_was_odd_in_a_file_is_noted_with_the_model(tmp_path):
    text = json.dumps(llama(hidden_size=512.0)).replace("{", '{"vocab_size": 5, ', 1)
    path = tmp_path / "config.json"
    path.write_text("\ufeff" + text, "utf-8")
    loaded = catalog.load(path)
    assert loaded.spec == hf.read(llama()).spec
    assert loaded.notes == (
        "the file starts with a byte-order mark",
        "the key vocab_size is repeated; the last value counts",
        "hidden_size is written as 512.0, read as 512",
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("[1, 2]", "holds a list"),
        ("3", "holds a int"),
        ('{"a": 1', "is no JSON"),
        ('{"a": ' + "[" * 100_000 + "}", "is nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "is no JSON"),
    ],
)
def test_what_is_no_config_is_refused_with_the_reason(text, says):
    with pytest.raises(FieldError, match=says):
        parse_object(text, "config.json")


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(FieldError, match="is no text file"):
        read_object(path)


# ---------------------------------------------------------------- errors


def test_hidden_512_with_6_heads_names_the_nearest_that_divide():
    """A docstring of a library had it; 512 / 6 is no whole head (case sh-01)."""
    error = refusal({"model_type": "llama", "hidden_size": 512, "num_attention_heads": 6})
    assert str(error).startswith("num_attention_heads 6 must divide hidden_size 512; use 4 or 8, ")


def test_case_sh_01():
    path = next(CASES.glob("sh-01-*.json"), None)
    if path is None:
        pytest.skip(f"{CASES} is not here: the cases are kept beside the project")
    case = json.loads(path.read_text("utf-8"))
    error = refusal(case["input"]["hf_config"])
    assert case["expected"]["valid"] is False
    near = "use " + " or ".join(map(str, case["expected"]["nearest_heads"]))
    assert error.hint.startswith(f"{near}, ")


def test_a_head_width_of_its_own_frees_the_heads():
    """``head_dim`` makes D, H and h three numbers; Qwen3 has 6 heads of 64 at width 500, too."""
    spec = hf.read(llama(model_type="qwen3", hidden_size=500, num_attention_heads=6,
                         num_key_value_heads=3, head_dim=64)).spec  # fmt: skip
    assert (spec.d_model, spec.n_head, spec.d_head) == (500, 6, 64)


def test_kv_heads_that_do_not_divide_are_told_in_the_configs_words():
    error = refusal(llama(num_key_value_heads=3))
    assert str(error) == "num_key_value_heads 3 must divide num_attention_heads 8; use 2 or 4"


@pytest.mark.parametrize("value", ["512", "", [512], {"a": 1}, True, 512.5, float("nan")])
def test_a_size_of_another_kind_is_refused(value):
    error = refusal(llama(hidden_size=value))
    assert error.path == "hidden_size"
    assert "whole number" in str(error) or "must lie between" in str(error)


def test_a_number_written_as_text_is_shown_as_text():
    assert str(refusal(llama(num_hidden_layers="32"))) == (
        "num_hidden_layers '32' (text) must be a whole number"
    )


@pytest.mark.parametrize("value", [-1, 0, 1e30, float("inf"), -float("inf"), 10**400, 2**40 + 1])
def test_a_size_out_of_every_range_is_refused(value):
    error = refusal(llama(vocab_size=value))
    assert error.path == "vocab_size"
    assert error.rule == "must lie between 1 and 1,099,511,627,776"


def test_a_depth_no_model_has_is_refused():
    assert refusal(llama(num_hidden_layers=1e6)).rule == "must lie between 1 and 10,000"


@pytest.mark.parametrize("value", ["true", 1, [], {}])
def test_a_flag_of_another_kind_is_refused(value):
    error = refusal(llama(tie_word_embeddings=value))
    assert (error.path, error.rule) == ("tie_word_embeddings", "must be true or false")


@pytest.mark.parametrize("value", ["1e4", [1e4], True])
def test_a_real_of_another_kind_is_refused(value):
    error = refusal(llama(rope_theta=value))
    assert (error.path, error.rule) == ("rope_theta", "must be a number")


@pytest.mark.parametrize("value", ["full_attention", {"0": "full_attention"}, 4, [1, 2, 3, 4]])
def test_layer_types_of_another_kind_are_refused(value):
    config = {"model_type": "gemma2", "num_hidden_layers": 4, "layer_types": value}
    assert refusal(config).path == "layer_types"


@pytest.mark.parametrize(
    "key",
    ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"],
)
def test_null_for_what_every_model_has_is_refused_by_its_own_name(key):
    assert str(refusal(llama(**{key: None}))) == f"{key} must not be null"


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"model_type": "deepseek_v2"}, "num_experts_per_tok"),  # the class's own default is null
        ({"model_type": "mixtral", "num_experts_per_tok": None}, "num_experts_per_tok"),
        ({"model_type": "qwen3_moe", "moe_intermediate_size": None}, "moe_intermediate_size"),
        ({"model_type": "deepseek_v3", "v_head_dim": None}, "v_head_dim"),
        ({"model_type": "gemma2", "query_pre_attn_scalar": None}, "query_pre_attn_scalar"),
    ],
)
def test_null_for_what_this_type_needs_is_refused_by_its_own_name(config, key):
    assert str(refusal(config)) == f"{key} must not be null"


def test_layer_types_that_are_too_short_are_refused_with_both_lengths():
    config = {"model_type": "gemma2", "num_hidden_layers": 4, "layer_types": ["full_attention"] * 3}
    assert str(refusal(config)) == "layer_types has 3 entries for 4 layers; write 4"


def test_more_experts_a_token_than_there_are_is_refused():
    error = refusal({"model_type": "mixtral", "num_experts_per_tok": 9})
    assert error.path == "num_experts_per_tok"
    assert error.value == 9
    assert "must be at most" in str(error)


@pytest.mark.parametrize(
    ("name", "near"),
    [("lama", "llama"), ("qwen3-moe", "qwen3_moe"), ("deepseek_v33", "deepseek_v3")],
)
def test_an_unknown_model_type_is_answered_with_the_nearest(name, near):
    with pytest.raises(UnknownNameError, match=f"{name} is not known; did you mean .*{near}"):
        hf.read({"model_type": name})


@pytest.mark.parametrize("config", [{}, {"architectures": ["NoSuchModel"]}, {"architectures": "x"}])
def test_without_model_type_and_known_architecture_the_types_are_listed(config):
    error = refusal(config)
    assert error.path == "model_type"
    assert all(name in error.hint for name in ("llama", "qwen3_moe", "gemma3"))


def test_a_text_part_that_is_no_object_is_refused():
    assert str(refusal({"model_type": "gemma3", "text_config": [1]})) == (
        "text_config [1] must be an object"
    )


ODD = (
    "12", "", [], [1], ["a"], [None], [[1]], {}, {"a": {"b": 1}}, True, False, None, -1, 0, 0.5,
    1e30, float("nan"), float("inf"), 10**400,
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(n for n, k in hf.model_types().items() if k.text is None))
def test_whatever_stands_in_a_key_the_answer_is_a_model_or_an_error_of_ours(name):
    """Every key of the type with every odd value: never a traceback of Python's own."""
    kind = hf.model_type(name)
    for key in kind.keys:
        for value in ODD:
            config = {"model_type": name, kind.spellings(key)[0]: value}
            try:
                parameters(hf.read(config).spec)
            except ScantlingError as error:
                assert str(error)  # noqa: PT017 - both outcomes are right


# ---------------------------------------------------------------- known gaps


def test_a_text_part_that_is_multimodal_again_is_refused():
    refusal({"model_type": "gemma3", "text_config": {"model_type": "gemma3"}})


def test_rotary_settings_of_a_layer_type_that_are_no_object_are_refused():
    nested = {"full_attention": {}, "sliding_attention": 5}
    refusal({"model_type": "gemma3_text", "rope_parameters": nested})


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama4_text", "no_rope_layers": [1]},
        {
            "model_type": "smollm3",
            "no_rope_layers": [1],
            "use_sliding_window": True,
            "sliding_window": 8,
        },
    ],
    ids=lambda config: config["model_type"],
)
def test_no_rope_layers_that_are_too_short_are_refused_by_their_own_name(config):
    assert refusal(config).path == "no_rope_layers"


def test_a_layer_type_nobody_knows_is_refused():
    """The class refuses it, too; as full attention the cache would be wrong in silence."""
    kinds = ["slidin_attention", "full_attention"]
    error = refusal({"model_type": "gemma2", "num_hidden_layers": 2, "layer_types": kinds})
    assert error.path == "layer_types"


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3"])
def test_latent_attention_without_a_rank_is_refused(name):
    config = {"model_type": name, "num_experts_per_tok": 6, "kv_lora_rank": None}
    assert refusal(config).path == "kv_lora_rank"


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("llama", "rope_theta", -1.0),
        ("phi", "partial_rotary_factor", 1.5),
        ("gptj", "rotary_dim", 5000),
    ],
)
def test_a_rotation_no_head_can_have_is_refused(name, key, value):
    assert refusal({"model_type": name, key: value}).path == key


# ---------------------------------------------------------------- writing


@pytest.mark.parametrize("name", sorted(catalog.named()))
def test_what_is_written_reads_as_the_same_model(name):
    """As the first type that can say it, and as the type it came from."""
    loaded = catalog.loaded(name)
    assert hf.read(hf.write(loaded.spec)).spec == loaded.spec
    own = hf.write(loaded.spec, like=loaded.model_type)
    assert own["model_type"] == loaded.model_type
    assert hf.read(own).spec == loaded.spec


def shared_configs() -> list[Any]:
    """Configs of the types we read; one skipped stand-in where the folder is absent."""
    if not CONFIGS.exists():
        skip = pytest.mark.skip(reason=f"{CONFIGS} is not here: real configs are kept beside us")
        return [pytest.param(Path(), marks=skip, id="no-configs")]
    paths = [
        path
        for path in sorted(CONFIGS.glob("*.json"))
        if json.loads(path.read_text("utf-8")).get("model_type") in hf.model_types()
    ]
    return [pytest.param(path, id=path.stem) for path in paths]


@pytest.mark.parametrize("path", shared_configs())
def test_a_real_config_is_written_as_it_was_read(path):
    imported = hf.read(json.loads(path.read_text("utf-8")))
    assert hf.read(hf.write(imported.spec)).spec == imported.spec
    assert hf.read(hf.write(imported.spec, like=imported.model_type)).spec == imported.spec


def test_what_is_written_is_json_and_survives_it():
    for name in catalog.named():
        spec = catalog.model(name)
        assert hf.read(json.loads(json.dumps(hf.write(spec)))).spec == spec


def test_what_is_written_assumes_nothing():
    """Every size stands in the file, so no reader fills in a default of its own."""
    for name in catalog.named():
        written = hf.read(hf.write(catalog.model(name)))
        assert not [note for note in written.notes if note.startswith("assumed")], name


def design(*, tied: bool, qk_norm: bool, **sizes: int) -> Spec:
    """A shape of the search space."""
    asked = {"tied": tied, "vocab_size": 50_304, "qk_norm": qk_norm}
    ((shape, _),) = templates(budget(params=10**8, train_context=4096, serve_context=4096, **asked))
    return check(vary(shape, **sizes))


SHAPES = {
    "multiple heads": {"d_model": 768, "n_head": 12, "n_kv_head": 4, "d_head": 64},
    "heads beside the width": {"d_model": 2560, "n_head": 48, "n_kv_head": 8, "d_head": 64},
    "one kv head": {"d_model": 1024, "n_head": 16, "n_kv_head": 1, "d_head": 128},
}


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("qk_norm", [True, False], ids=["qk_norm", "plain"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_design_of_the_search_can_be_written(shape, qk_norm, tied):
    """With QK norms it is a Qwen3, without one a Llama, or a Mistral where D / H is not whole."""
    spec = design(tied=tied, qk_norm=qk_norm, n_layer=2, d_ff=1000, **SHAPES[shape])
    config = hf.write(spec)
    whole = SHAPES[shape]["d_model"] % SHAPES[shape]["n_head"] == 0
    assert config["model_type"] == ("qwen3" if qk_norm else "llama" if whole else "mistral")
    assert hf.read(config).spec == spec


def test_a_type_that_cannot_say_a_model_is_refused():
    """GPT-2 has no rotation, no gate and no grouped keys."""
    with pytest.raises(FieldError, match="cannot be written as model type gpt2"):
        hf.write(catalog.model("llama-3.1-8b"), like="gpt2")


def test_a_model_of_two_families_is_refused():
    """Nobody has sinks in a Llama: sinks come with gpt-oss's experts and biases."""
    with pytest.raises(FieldError, match="cannot be written as any Hugging Face model type"):
        hf.write(vary(catalog.model("llama-3.1-8b"), sinks=True))


def test_an_unknown_type_to_write_is_answered_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean llama"):
        hf.write(catalog.model("llama-3.1-8b"), like="lama")


def loads(config: dict[str, Any], folder: Path) -> int:
    """Unique parameters of the class that transformers takes for a folder with this config."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    if config["model_type"] not in transformers.models.auto.configuration_auto.CONFIG_MAPPING:
        pytest.skip(f"transformers has no {config['model_type']}: its class is remote code")
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    own = transformers.AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(own)
    assert type(model).__name__ == config["architectures"][0]
    return sum(p.numel() for p in model.parameters())


def smallest() -> list[Any]:
    """The smallest model of the catalogue of each type."""
    found: dict[str, str] = {}
    for entry in sorted(catalog.named().values(), key=lambda entry: entry.parameters):
        found.setdefault(catalog.loaded(entry.name).model_type, entry.name)
    return [pytest.param(name, id=f"{kind}-{name}") for kind, name in sorted(found.items())]


@pytest.mark.oracle
@pytest.mark.parametrize("name", smallest())
def test_transformers_loads_a_model_written_as_its_own_type(name, tmp_path):
    loaded = catalog.loaded(name)
    config = hf.write(loaded.spec, like=loaded.model_type)
    assert loads(config, tmp_path) == parameters(loaded.spec).total


@pytest.mark.oracle
@pytest.mark.parametrize("name", smallest())
def test_transformers_loads_a_model_written_as_the_first_type_that_fits(name, tmp_path):
    spec = catalog.model(name)
    assert loads(hf.write(spec), tmp_path) == parameters(spec).total


@pytest.mark.oracle
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("qk_norm", [True, False], ids=["qk_norm", "plain"])
@pytest.mark.parametrize("shape", SHAPES)
def test_transformers_loads_a_design_and_counts_the_same(shape, qk_norm, tied, tmp_path):
    spec = design(tied=tied, qk_norm=qk_norm, n_layer=3, d_ff=1000, **SHAPES[shape])
    assert loads(hf.write(spec), tmp_path) == parameters(spec).total


@pytest.mark.parametrize("asked", [144, 168, 224, 256])
def test_the_attention_scale_of_gemma_is_written_as_the_whole_number_it_was(asked):
    """The class refuses 144.00000000000003, which is what 144 ** -0.5 ** -2 gives."""
    config = {"model_type": "gemma2", "query_pre_attn_scalar": asked}
    written = hf.write(hf.read(config).spec)["query_pre_attn_scalar"]
    assert written == asked
    assert type(written) is int


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v2-lite", "glm-4.7-flash"])
def test_latent_attention_is_written_with_a_key_for_every_query_head(name):
    """The class repeats keys by H/K, and its own K is 128 whatever H is."""
    config = hf.write(catalog.model(name))
    assert config["num_key_value_heads"] == config["num_attention_heads"]
