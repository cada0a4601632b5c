"""Two models together: what loads into what is what the real classes say."""

import json

import pytest
from click.testing import CliRunner

from case_files import case
from scantling import catalog
from scantling.cli import group
from scantling.errors import FieldError
from scantling.formats import hf
from scantling.formats.spelling import spelled
from scantling.formats.transfer import adapter_targets, transfer
from scantling.ops import tensors
from scantling.report.compare import compare
from scantling.report.pair import pair, tokenizers
from scantling.spec import dimensions, vary
from scantling.spec.differ import FUNCTION, differences

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

COMMON = {
    "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 96, "vocab_size": 320, "max_position_embeddings": 64,
    "pad_token_id": 0, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LLAMA_LIKE = [
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "olmo2", "phi3",
]  # fmt: skip


def small(model_type, **more):
    """A small config of a type, and the real class of it on the meta device."""
    config = {"model_type": model_type, **COMMON, **more}
    if model_type == "gpt2":
        config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 3, "n_head": 4,
                  "vocab_size": 320, "n_positions": 64, **more}  # fmt: skip
    own = transformers.AutoConfig.for_model(**config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(own)
    return hf.read(config), model


def stored(model):
    """Names and shapes of a real state dict, a tied head left out."""
    tied = model.config.tie_word_embeddings
    return {
        name: tuple(t.shape)
        for name, t in model.state_dict().items()
        if not (tied and name == "lm_head.weight")
    }


@pytest.mark.parametrize("model_type", [*LLAMA_LIKE, "gpt2", "gpt_oss"])
def test_names_and_shapes_of_a_checkpoint_are_those_of_the_real_state_dict(model_type):
    more = {"num_local_experts": 4, "num_experts_per_tok": 2} if model_type == "gpt_oss" else {}
    read, model = small(model_type, **more)

    found = spelled(read.spec, model_type)

    assert {s.name: s.shape for s in found.values()} == stored(model)


def test_a_type_whose_names_are_not_known_has_none():
    assert spelled(catalog.model("bloom-176b"), "bloom") is None


PAIRS = [
    (("llama", {}), ("llama", {"vocab_size": 384})),
    (("llama", {}), ("mistral", {"intermediate_size": 128})),
    (("llama", {}), ("qwen2", {})),
    (("qwen2", {}), ("llama", {})),
    (("llama", {"num_hidden_layers": 2}), ("llama", {})),
    (("qwen3", {}), ("llama", {"num_key_value_heads": 4})),
    (("llama", {"tie_word_embeddings": True}), ("llama", {})),
    (("gemma2", {}), ("gemma3_text", {})),
    (("gpt2", {}), ("gpt2", {"n_embd": 32})),
    (("phi3", {}), ("llama", {})),
]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_what_loads_by_name_is_what_torch_loads(one, other):
    (a, model_a), (b, model_b) = small(one[0], **one[1]), small(other[0], **other[1])
    left, right = stored(model_a), stored(model_b)
    loads = {name for name, shape in left.items() if right.get(name) == shape}

    found = transfer(a.spec, b.spec, a.model_type, b.model_type)

    names = {s.name: s for s in spelled(a.spec, a.model_type).values()}
    assert sum(len(names[name].holds) for name in loads) == found.counts()["loads"]["tensors"]
    size = sum(torch.Size(left[name]).numel() for name in loads)
    assert size == found.counts()["loads"]["parameters"]
    given = sum(n["parameters"] for n in found.counts().values())
    assert given == sum(torch.Size(shape).numel() for shape in left.values())
    assert found.needed == sum(torch.Size(shape).numel() for shape in right.values())


def test_fused_and_single_matrices_of_one_shape_are_renamed_not_loaded():
    (a, _), (b, _) = small("phi3"), small("llama")

    found = {line.role: line.status for line in
             transfer(a.spec, b.spec, "phi3", "llama").lines}  # fmt: skip

    assert found["attention.q"] == found["ffn.gate"] == "renames"
    assert found["attention.o"] == found["ffn.down"] == "loads"


def test_a_larger_vocabulary_resizes_and_its_new_rows_start_anew():
    a = catalog.model("llama-3.1-8b")

    found = transfer(a, vary(a, vocab_size=128320), "llama", "llama")

    assert found.counts()["resizes"]["tensors"] == 2
    assert sum(line.parameters for line in found.unfilled) == 2 * (128320 - 128256) * 4096


def test_a_tied_table_that_does_not_fit_starts_anew_once():
    found = compare({"model_type": "albert"}, {"model_type": "bert"}, weights=True)["weights"]

    bert = sum(int(t.size()) for t in tensors(hf.read({"model_type": "bert"}).spec) if not t.alias)
    assert 0 <= found["load"]["filled_share"] < 0.01
    assert bert - 30_522 < found["load"]["unfilled"]["parameters"] <= bert


def test_a_padded_vocabulary_of_megatron_loads_by_resizing():
    """Public case PL-09: 32,000 tokens and 2 more are padded to 32,256 at tensor parallel 2."""
    one = case("pl-09")
    wide, narrow = one["expected"]["padded_with_extra"], one["expected"]["padded_without_extra"]
    a = catalog.model("llama-2-7b")

    found = transfer(vary(a, vocab_size=wide), vary(a, vocab_size=narrow), "llama", "llama")

    odd = {line.role for line in found.lines if line.status != "loads"}
    assert odd == {"model.embedding", "model.lm_head"}
    assert {line.status for line in found.lines if line.role in odd} == {"resizes"}


def test_an_ffn_of_four_widths_cannot_take_the_matrices_of_llama_7b():
    """Public case CF-08: an article's LLaMA-7B has 16,384 where the model has 11,008."""
    one = case("cf-08")
    read = hf.read(one["input"]["hf_config"])

    found = transfer(catalog.model("llama-7b"), read.spec, "llama", "llama")

    cannot = {line.role for line in found.lines if line.status == "cannot"}
    assert cannot == {"ffn.gate", "ffn.up", "ffn.down"}


def test_fewer_experts_load_one_by_one_but_not_out_of_one_stacked_tensor():
    a = catalog.model("mixtral-8x7b")
    found = transfer(a, vary(a, n_expert=4), "mixtral", "mixtral").counts()
    oss = catalog.model("gpt-oss-20b")
    stacked = transfer(oss, vary(oss, n_expert=16), "gpt_oss", "gpt_oss").counts()

    assert found["no place"]["tensors"] == 32 * 3 * 4
    assert found["cannot"]["tensors"] == 32  # the routers
    assert stacked["no place"]["tensors"] == 0


def test_models_of_one_width_do_not_merge_for_that():
    """Audited claim A061: depth, heads, FFN, vocabulary and an ancestor must agree too."""
    found = compare("llama-3.1-8b", "qwen3-8b", weights=True)["weights"]

    assert not found["merge"]["possible"]
    fields = {text.split(":")[0] for text in found["merge"]["blocked_by"]}
    assert {"vocab_size", "decoder.n_layer", "decoder.ffn.d_ff"} <= fields
    assert "d_model" not in fields


def test_a_tuned_model_and_its_origin_merge_and_share_adapters():
    found = compare("llama-3.1-8b", "deepseek-r1-distill-llama-8b", weights=True)["weights"]

    assert found["merge"]["possible"]
    assert found["merge"]["common_ancestor"] == "llama-3.1-8b"
    assert found["adapters"]["all"]
    assert found["adapters"]["of"] == 32 * 7


def test_another_rotary_base_is_a_doubt_and_no_shape():
    a = catalog.load("llama-2-7b")
    config = dict(catalog.named()["llama-2-7b"].config, rope_theta=5e5)

    found = pair("a", "b", a, catalog.load(config))["merge"]

    assert found["possible"]
    assert any("theta: 10000 against 500000" in text for text in found["doubts"])


def test_two_scalings_that_look_alike_are_told_by_what_differs():
    """DeepSeek-V3 and V2 both stretch by 40 with yarn; mscale is 1 in one, 0.707 in the other."""
    found = compare("deepseek-v3", "deepseek-v2", weights=True)["weights"]["merge"]
    told = next(d for d in found["doubts"] if "scaling" in d)

    assert "mscale 1" in told
    assert "mscale 0.707" in told


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt2", "gemma-3-27b", "mixtral-8x7b",
                                  "deepseek-v3", "qwen3-next-80b-a3b"])  # fmt: skip
def test_a_dimension_is_called_shape_just_where_it_changes_a_weight(name):
    spec = catalog.model(name)
    for field, value in dimensions(spec).items():
        other = vary(spec, **{field: value + 2})
        shapes = [(t.name, t.shape, t.copies, t.experts) for t in tensors(spec)]
        weights = shapes != [(t.name, t.shape, t.copies, t.experts) for t in tensors(other)]
        kinds = {d.kind for d in differences(spec, other)}

        assert kinds == {"shape" if weights else "function"}, field
        assert weights == (field not in FUNCTION), field


def test_adapters_fit_layer_by_layer():
    a = catalog.model("llama-3.1-8b")

    found = adapter_targets(a, vary(a, n_layer=24, d_ff=8192), "llama")

    fits = {t.name: t.fits for t in found if t.other is not None}
    assert fits["self_attn.q_proj"] == 24
    assert fits["mlp.down_proj"] == 0


def test_the_best_guess_is_that_of_the_published_formula():
    """Leviathan et al. 2023, theorem 3.8: (1 − a^(k+1)) / ((1 − a)(k c + 1)), c the cost ratio.

    It takes a check of k + 1 tokens to cost one step, which at batch 1 is nearly so.
    """
    found = compare("llama-3.1-8b", "llama-3.2-1b", weights=True, accept=0.8)["weights"]["draft"]
    c, row = found["cost_ratio"]["value"], found["lengths"][0]

    def speedup(k):
        return (1 - 0.8 ** (k + 1)) / (0.2 * (k * c + 1))

    assert row["guesses"] == max(range(1, 17), key=speedup)
    assert row["speedup"] == pytest.approx(speedup(row["guesses"]), rel=0.03)


def test_other_vocabularies_cannot_be_drafted_for_nor_taught_by_logits():
    found = compare("llama-3.1-8b", "gpt2", weights=True)["weights"]

    assert not found["draft"]["possible"]
    assert found["draft"]["lengths"] == []
    assert not found["distil"]["logits"]["possible"]
    assert found["distil"]["hidden"]["projection"]["shape"] == [4096, 768]


def folder(path, tokens, config):
    path.mkdir()
    (path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": tokens}}))
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def test_equal_sizes_with_other_tokens_block_merging(tmp_path):
    config = {"model_type": "llama", **COMMON}
    one = folder(tmp_path / "one", {"a": 0, "b": 1}, config)
    two = folder(tmp_path / "two", {"a": 0, "c": 1}, config)
    a, b = catalog.load(one), catalog.load(two)

    found = pair(one, two, a, b)

    assert found["tokenizer"]["same"] is False
    assert found["tokenizer"]["shared"] == 1
    assert not found["merge"]["possible"]
    assert not found["draft"]["possible"]
    assert tokenizers(one, one, a.spec, a.spec)["same"] is True


def test_a_broken_tokenizer_is_one_clear_line(tmp_path):
    one = folder(tmp_path / "one", {}, {"model_type": "llama", **COMMON})
    (tmp_path / "one" / "tokenizer.json").write_text("[")
    a = catalog.load(one)

    with pytest.raises(FieldError, match=r"tokenizer\.json .* cannot be read"):
        pair(one, one, a, a)


def test_the_command_line_prints_json_under_weights():
    found = CliRunner().invoke(group, ["compare", "gpt2", "gpt2-xl", "--weights", "--json"])

    read = json.loads(found.output)["weights"]
    assert read["load"]["cannot"]["bytes"] == 2 * 124_439_808
    assert read["load"]["filled_share"] == 0


@pytest.mark.parametrize(("line", "says"), [
    ("gpt2 gpt2-xl llama-3.1-8b --weights", "two"),
    ("gpt2 gpt2-xl --accept 0.5", "needs --weights"),
    ("gpt2 gpt2-xl --weights --accept 2", "between 0 and 1"),
    ("gpt2 gpt2-xl --weights --gpu h1000", "h100"),
])  # fmt: skip
def test_wrong_questions_are_answered_in_one_line(line, says):
    found = CliRunner().invoke(group, ["compare", *line.split()])

    assert says in str(found.exception)
    assert isinstance(found.exception, FieldError)
