"""What ``serve`` says of odd questions: options without effect, misfits, kinds of model."""

import json

import pytest
from click.testing import CliRunner

from scantling import catalog, cli
from scantling.costs.serving_memory import Beside, Split, serving_memory
from scantling.costs.serving_scheme import numbers
from scantling.errors import FieldError
from scantling.formats import hf
from scantling.formats.vllm import export
from scantling.report.serve import notes, vllm_flags
from scantling.search.serving import serve
from scantling.search.serving_question import question

WHISPER = {
    "model_type": "whisper", "d_model": 384, "encoder_layers": 4, "decoder_layers": 4,
    "encoder_attention_heads": 6, "decoder_attention_heads": 6, "encoder_ffn_dim": 1536,
    "decoder_ffn_dim": 1536, "vocab_size": 51865, "max_source_positions": 1500,
    "max_target_positions": 448, "num_mel_bins": 80,
}  # fmt: skip
T5 = {
    "model_type": "t5", "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6,
    "num_decoder_layers": 6, "num_heads": 8, "vocab_size": 32128,
}  # fmt: skip
BERT = {
    "model_type": "bert", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "vocab_size": 30522, "max_position_embeddings": 512,
}  # fmt: skip


def tpot(found):
    return found.choice.trial.points[-1].speed.tpot_s


def printed(*words):
    return CliRunner().invoke(cli.group, ["serve", *words], standalone_mode=False).output


def test_a_scheme_that_packs_nothing_of_a_model_takes_as_long_as_none_and_says_so():
    plain, packed = (serve("llama-3.1-8b", gpu="rtx-4090", quant=q) for q in ("bf16", "mxfp4"))
    assert tpot(packed) == tpot(plain)
    assert any(n.startswith("mxfp4 packs experts alone") for n in notes(packed))


def test_the_fast_end_of_dense_weights_that_are_unpacked_leaves_the_unpacking_out():
    # what unpacking costs was measured in experts alone; bytes alone would allow four times bf16
    wide, packed = (serve("llama-3.1-8b", gpu="l4", quant=q, prompt=64, answer=64, context=128)
                    for q in ("bf16", "awq-int4"))  # fmt: skip
    assert tpot(packed).low / tpot(packed).value < tpot(wide).low / tpot(wide).value
    assert any("measured in experts only" in n for n in notes(packed))
    assert not any("measured in experts only" in n for n in notes(wide))


def test_where_nothing_fits_the_nearest_to_fitting_is_told():
    found = serve("mixtral-8x7b", gpu="rtx-3090", quant="bf16,awq-int4,fp8")
    assert not found.fits
    assert found.choice.trial.scheme.name == "awq-int4"
    missing = [float(r.trial.held.memory.low) for r in found.rows]
    assert missing == sorted(missing)


def test_a_mean_length_sets_the_request_and_a_percentile_the_context():
    q = question("llama-3.1-8b", gpu="l4", context_mean="2k", context_p95="16k")
    assert (q.context, q.prompt + q.answer) == (16384, 2048)
    assert question("llama-3.1-8b", gpu="l4", context_mean="1k", context_p95="2k").context == 8192


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"context_mean": "4k", "context_p95": "2k"}, "at least the mean 4096"),
        ({"context": "4k", "context_mean": "2k", "context_p95": "8k"}, "longest sequence, 4096"),
        ({"gpus": ","}, "empty list"),
        ({"quant": ""}, "empty list"),
        ({"concurrency": ","}, "empty list"),
        ({"slo": ","}, "empty list"),
        ({"slo": "tpot=30ms,tpot=40ms"}, "gives tpot twice"),
    ],
)
def test_what_cannot_be_read_is_refused(given, rule):
    with pytest.raises(FieldError, match=rule):
        question("llama-3.1-8b", gpu="l4", **given)


@pytest.mark.parametrize(
    ("given", "name"),
    [({"skew": 1.0}, "skew"), ({"rank": 8}, "rank"), ({"accept": 0.5}, "accept"),
     ({"utilisation": 0.5}, "utilisation")],
)  # fmt: skip
def test_an_option_without_effect_is_told(given, name):
    found = serve("llama-3.1-8b", gpu="l4", **given)
    assert any(n.startswith(f"no effect: --{name}") for n in notes(found))


def test_options_with_an_effect_are_not():
    given = {"skew": 1.0, "adapters": 2, "rank": 8, "guesses": 2, "accept": 0.5, "price": 1.0,
             "utilisation": 0.5}  # fmt: skip
    found = serve("qwen3-30b-a3b", gpu="h100-sxm", gpus=2, **given)
    assert not any(n.startswith("no effect") for n in notes(found))


def test_a_limit_without_a_unit_is_said_to_be_in_seconds():
    assert "ttft of 2 is in seconds" in question("gpt2", gpu="l4", slo="ttft=2").assumed
    assert not any("seconds" in a for a in question("gpt2", gpu="l4", slo="ttft=2s").assumed)


def test_experts_of_a_model_that_has_none_cannot_be_spread():
    found = serve("llama-3.1-8b", gpu="h100-sxm", gpus=8, ep=8)
    assert found.choice is None
    assert [w.degree for w in found.invalid] == ["EP 8"]


def test_a_condition_names_the_share_where_even_the_low_end_is_above_it():
    found = serve("llama-3.1-8b", gpu="l4", quant="fp8", batch=3, context=32768)
    memory, room = found.choice.trial.held.memory, found.choice.trial.held.room_bytes
    assert memory.low > room
    assert found.verdict == "fits only if"
    assert "--share" in found.choice.trial.held.conditions[0]


def test_a_piece_of_sound_passes_the_encoder_once_however_many_tokens_are_asked_for():
    # the widest product over the 1500 rows: 384 in, 1536 out, beside two streams of 384; 2 bytes
    spec = hf.read(WHISPER).spec
    for context in (1, 448):
        m = serving_memory(spec, Split(), numbers("bf16").rank_bytes, 2, context)
        assert m.activations == 2 * 1500 * (384 + 1536 + 2 * 384) * 2


def test_kinds_of_model_that_engines_serve_otherwise_are_told():
    assert any("encoder beside a decoder" in n for n in export(hf.read(T5).spec).notes)
    assert any("--runner pooling" in n for n in export(hf.read(BERT).spec).notes)
    assert not any("encoder" in n for n in export(catalog.model("gpt2")).notes)


def test_a_mix_of_llama_cpp_is_served_as_one_file():
    found = serve("llama-3.1-8b", gpu="l4", quant="q4_k_m")
    assert any("GGUF file" in n for n in vllm_flags(found.choice, found.question)[1])


def test_few_tokens_a_second_and_many_joules_are_told_in_whole():
    text = printed("llama-3.1-405b", "--gpu", "h100-sxm", "--gpus", "8", "--quant", "fp8")
    assert "e+0" not in text


def test_what_the_user_says_of_the_traffic_is_repeated():
    text = printed("llama-3.1-70b", "--gpu", "h100-sxm", "--gpus", "4", "--prefix-hit", "0.5",
                   "--draft", "llama-3.2-1b", "--adapters", "2")  # fmt: skip
    for words in ("50 % of a prompt is cached", "4 tokens guessed ahead by the draft model",
                  "2 adapters of rank 16"):  # fmt: skip
        assert words in text


def test_a_limit_that_the_search_did_not_reach_is_not_told_as_one(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({
        "model_type": "mamba", "hidden_size": 768, "num_hidden_layers": 24, "vocab_size": 50280,
        "state_size": 16, "architectures": ["MambaForCausalLM"],
    }))  # fmt: skip
    assert "memory alone 16,777,216 or more" in printed(str(path), "--gpu", "h100-sxm")


def test_what_was_asked_for_stands_before_what_was_not():
    text = printed("qwen3-8b", "--gpu", "l4,h100-sxm", "--slo", "tpot=50ms", "--price", "2")
    header = next(line for line in text.splitlines() if line.lstrip().startswith("chips"))
    assert header.index("within") < header.index("M out") < header.index("context")


@pytest.mark.parametrize(("model", "finer"), [("qwen2.5-0.5b", 64), ("qwen2.5-72b", 64)])
def test_a_split_that_cuts_a_group_is_told_the_groups_that_it_would_not_cut(model, finer):
    # 896 / 2 = 448 inputs are 3.5 groups of 128 and 7 of 64; 29568 / 2 = 14784 are 115.5 and 231
    found = serve(model, gpu="a100-sxm-80gb", gpus=2, tp=2, quant="gptq-int4")
    assert found.choice is None
    assert f"TP 2 is valid as it is with --quant gptq-int4-g{finer}" in found.remedies
    assert serve(model, gpu="a100-sxm-80gb", gpus=2, tp=2, quant=f"gptq-int4-g{finer}").choice


def test_no_shape_is_advised_where_the_degree_does_not_divide_the_chips():
    found = serve("llama-3.1-8b", gpu="h100-sxm", gpus=8, tp=3)
    assert (found.choice, found.remedies) == (None, ())


def test_where_nothing_that_was_tried_fits_that_is_said():
    found = serve("deepseek-v3", gpu="l4", quant="fp8-block")
    assert found.remedies == ("nothing that was tried, up to 16 of these chips",)


def test_a_mac_holds_three_quarters_of_its_memory():
    # 128 GiB × 3/4 × 0.9 = 86.4 GiB; the weights alone are 70.6e9 × 8.5 / 8 bytes = 69.8 GiB
    found = serve("llama-3.1-70b", gpu="m4-max", quant="q8_0", context="64k")
    assert found.choice.trial.held.room_bytes == 0.9 * 0.75 * 128 * 2**30
    assert not found.fits


def test_a_value_that_is_refused_does_not_widen_the_table():
    text = printed("llama-3.1-8b", "--gpu", "h100-sxm", "--vary", "n_kv_head=8:24:8",
                   "--in", "1000", "--out", "200")  # fmt: skip
    assert "n_kv_head 24: " in text
    assert max(len(line.rstrip()) for line in text.splitlines() if "one chip" in line) < 120


def test_a_longer_context_is_served_with_the_override_it_needs():
    found = serve("qwen3-8b", gpu="h100-sxm", context="128k", rope="yarn")
    assert any("--hf-overrides" in n for n in vllm_flags(found.choice, found.question)[1])
    found = serve("qwen3-8b", gpu="h100-sxm", context="8k")
    assert not any("--hf-overrides" in n for n in vllm_flags(found.choice, found.question)[1])
    words = ["export", "qwen3-8b", "--to", "vllm", "--gpu", "h100-sxm", "--context", "131072",
             "--rope", "yarn"]  # fmt: skip
    done = CliRunner().invoke(cli.group, words, standalone_mode=False)
    assert "--hf-overrides" in done.stdout
    assert "needs --hf-overrides" not in done.stderr


def test_adapters_of_experts_count_at_the_upper_end():
    # 32 layers × 8 experts × 3 matrices of 4096 × 14336, rank 16, 16 bits, three adapters
    on_experts = 32 * 8 * 3 * (4096 + 14336) * 16 * 2 * 3
    spec = catalog.model("mixtral-8x7b")
    with_, without = (
        serving_memory(spec, Split(), numbers("bf16").rank_bytes, 1, 8192, beside=beside)
        for beside in (Beside(adapters=3, rank=16), Beside())
    )
    assert with_.high - without.high - with_.adapters == on_experts
    assert with_.low - without.low == with_.adapters


def test_an_engine_is_told_to_run_as_many_as_keep_the_limits():
    found = serve("llama-3.1-8b", gpu="h100-sxm", slo="tpot=30ms", prompt=1024, answer=128)
    most = found.choice.capacity.expected.concurrency
    assert most > 1
    assert vllm_flags(found.choice, found.question)[0]["max-num-seqs"] == most
