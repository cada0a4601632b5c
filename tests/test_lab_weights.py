"""Weights in and out: the lab's model computes what each class computes from the same files."""

import json

import pytest

torch = pytest.importorskip("torch", reason="the lab's model needs torch")
torch.set_num_threads(1)
pytest.importorskip("safetensors", reason="weights are read by safetensors")

from scantling.errors import FieldError  # noqa: E402 - only where torch is
from scantling.lab import weights  # noqa: E402
from scantling.lab.model import Decoder  # noqa: E402

SIZE = {
    "vocab_size": 97, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 80, "max_position_embeddings": 64,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
LONG = {"rope_type": "longrope", "original_max_position_embeddings": 16, "rope_theta": 1e4,
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
        "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 4.5]}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16,
        "rope_theta": 1e4}  # fmt: skip
ROPES = [
    {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
    {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
    YARN, {**YARN, "beta_fast": 8.0, "beta_slow": 2.0, "attention_factor": 1.3}, LONG,
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 16, "rope_theta": 1e4},
]  # fmt: skip
CASES = [
    ("Llama", {}), ("Llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 16}),
    ("Llama", {"tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
    *(("Llama", {"rope_parameters": rope}) for rope in ROPES),
    ("Qwen2", {}), ("Qwen2", {"use_sliding_window": True, "sliding_window": 7,
                              "max_window_layers": 1}),
    ("Qwen3", {"head_dim": 20}), ("Mistral", {"sliding_window": 5}), ("Mistral", {"head_dim": 8}),
    ("Gemma2", {"sliding_window": 5, "query_pre_attn_scalar": 20, "head_dim": 16}),
    ("Gemma3Text", {"sliding_window": 5, "head_dim": 16, "layer_types": [
        "sliding_attention", "full_attention", "sliding_attention"]}),
    ("GPT2", {}), ("GPT2", {"tie_word_embeddings": False, "activation_function": "gelu"}),
    ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    ("DeepseekV3", {"q_lora_rank": 24}),
    ("DeepseekV3", {"q_lora_rank": None, "rope_interleave": False, "attention_bias": True}),
    ("DeepseekV3", {"q_lora_rank": 24, "norm_topk_prob": False, "rope_parameters": {
        **YARN, "mscale": 1.0, "mscale_all_dim": 0.8}}),
    ("GptOss", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 6,
                "head_dim": 16}),
]  # fmt: skip
LATENT = {
    "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10,
    "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2,
    "moe_intermediate_size": 20, "n_shared_experts": 2, "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
}  # fmt: skip
GPT = {"n_embd": 48, "n_layer": 3, "n_head": 4, "vocab_size": 97, "n_positions": 64,
       "bos_token_id": None, "eos_token_id": None}  # fmt: skip


def real(name, given):
    """A class of transformers with random weights of all kinds, norms and biases too."""
    transformers = pytest.importorskip("transformers")
    base = GPT if name == "GPT2" else {**SIZE, **(LATENT if name == "DeepseekV3" else {})}
    config = getattr(transformers, f"{name}Config")(**{**base, **given})
    config._attn_implementation = "eager"
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config).eval().float()
    with torch.no_grad():
        corrections = [b for n, b in model.named_buffers() if n.endswith("correction_bias")]
        for p in (*model.parameters(), *corrections):
            if p.numel() > 1:
                p.add_(torch.randn(p.shape) * (0.1 if p.dim() == 1 else 0.02))
    return model


def logits_of(model, tokens):
    with torch.no_grad():
        return model(tokens, use_cache=False).logits


@pytest.mark.oracle
@pytest.mark.parametrize(("name", "given"), CASES, ids=lambda v: v if isinstance(v, str) else "")
def test_loaded_weights_give_the_logits_of_the_class(tmp_path, name, given):
    model = real(name, given)
    model.save_pretrained(tmp_path)
    ours = weights.load(tmp_path).eval()
    tokens = torch.randint(97, (2, 30), generator=torch.Generator().manual_seed(1))

    with torch.no_grad():
        difference = (logits_of(model, tokens) - ours(tokens)).abs().max()

    assert float(difference) < 1e-5 * max(1.0, float(logits_of(model, tokens).abs().max()))


@pytest.mark.oracle
@pytest.mark.parametrize(("name", "given"), [
    ("Llama", {}), ("Qwen2", {}), ("Qwen3", {"head_dim": 16}), ("Gemma2", {"head_dim": 16}),
    ("GPT2", {}), ("Mixtral", {"num_local_experts": 4}), ("DeepseekV3", {}), ("GptOss", {
        "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}),
], ids=lambda v: v if isinstance(v, str) else "")  # fmt: skip
def test_saved_weights_are_what_the_class_reads(tmp_path, name, given):
    """Through the files and back: the class built from what the lab wrote gives its logits."""
    transformers = pytest.importorskip("transformers")
    real(name, given).save_pretrained(tmp_path / "theirs")
    ours = weights.load(tmp_path / "theirs").eval()
    weights.save(ours, tmp_path / "ours", like=ours_type(tmp_path / "theirs"))
    back = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", attn_implementation="eager"
    )  # fmt: skip
    tokens = torch.arange(20)[None]

    with torch.no_grad():
        difference = (logits_of(back.eval().float(), tokens) - ours(tokens)).abs().max()

    assert float(difference) < 1e-5 * max(1.0, float(logits_of(back, tokens).abs().max()))


def ours_type(folder):
    return json.loads((folder / "config.json").read_text())["model_type"]


def test_what_is_saved_is_what_is_loaded(tmp_path):
    from scantling import catalog
    from scantling.lab.shrink import shrink

    model = Decoder(shrink(catalog.model("qwen3-0.6b"), 200_000, 16), seed=5)
    weights.save(model, tmp_path)
    again = weights.load(tmp_path)

    for one, two in zip(model.named(), again.named(), strict=True):
        assert one.name == two.name
        assert torch.equal(one.tensor, two.tensor)


def test_faults_of_a_folder_are_one_line_each(tmp_path):
    from safetensors.torch import load_file, save_file

    from scantling import catalog
    from scantling.lab.shrink import shrink

    with pytest.raises(FieldError, match=r"has no config\.json"):
        weights.load(tmp_path)
    model = Decoder(shrink(catalog.model("llama-3.2-1b"), 200_000, 16))
    weights.save(model, tmp_path)
    file = tmp_path / weights.FILE
    good = load_file(file)
    for change, words in (
        ({"model.norm.weight": None}, "model.norm.weight is missing"),
        ({"model.norm.weight": torch.ones(3)}, "another shape"),
        ({"model.more.weight": torch.ones(3)}, "has no place in this llama"),
    ):
        save_file({k: v for k, v in {**good, **change}.items() if v is not None}, file)
        with pytest.raises(FieldError, match=words):
            weights.load(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "olmo2"}))
    with pytest.raises(FieldError, match="has no weight layout in the lab"):
        weights.load(tmp_path)
