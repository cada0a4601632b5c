"""What autograd keeps of the real classes, tensor by tensor, against the fold over operators."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from scantling import catalog
from scantling.costs.activations import KEPT_BY, kept
from scantling.costs.ranks import placed_operators
from scantling.formats import hf
from scantling.spec import vary
from scantling.spec.plan import Plan, Recipe

BATCH, TOKENS, WIDTH = 2, 128, 256
SIZE = {"hidden_size": WIDTH, "num_hidden_layers": 3, "num_attention_heads": 8, "vocab_size": 512}
GATED = {**SIZE, "intermediate_size": 704, "num_key_value_heads": 2}
PLAIN = {**SIZE, "intermediate_size": 1024}
GPT = {"n_embd": WIDTH, "n_layer": 3, "n_head": 8, "vocab_size": 512}
OPT = {**SIZE, "ffn_dim": 1024, "word_embed_proj_dim": WIDTH}
BLOOM = {"hidden_size": WIDTH, "n_layer": 3, "n_head": 8, "vocab_size": 512}
NONE = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
LATENT = {
    **SIZE, "num_key_value_heads": 8, "intermediate_size": 704, "moe_intermediate_size": 192,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
    "q_lora_rank": 96, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16,
    "v_head_dim": 32, "first_k_dense_replace": 1,
}  # fmt: skip
PLAIN_SOFTMAX = {"wide_scores": False}
WIDE = {"wide_norms": "rms"}

CLASSES = [
    ("Llama", GATED, {}),
    ("Llama", {**GATED, "hidden_act": "relu"}, {}),
    ("Llama", {**GATED, "hidden_act": "quick_gelu"}, {}),
    ("Mistral", {**GATED, "sliding_window": None}, {}),
    ("Qwen2", GATED, {}),
    ("Qwen3", {**GATED, "head_dim": 32}, {}),
    ("GPT2", {**GPT, **NONE}, PLAIN_SOFTMAX),
    ("GPT2", {**GPT, **NONE, "activation_function": "gelu_fast"}, PLAIN_SOFTMAX),
    ("GPT2", {**GPT, **NONE, "activation_function": "relu"}, PLAIN_SOFTMAX),
    ("GPT2", {**GPT, "embd_pdrop": 0.0}, {**PLAIN_SOFTMAX, "dropout": True}),
    ("GPTNeoX", PLAIN, {}),
    ("GPTNeoX", {**PLAIN, "attention_dropout": 0.1, "hidden_dropout": 0.1}, {"dropout": True}),
    ("OPT", {**OPT, "dropout": 0.0}, {}),
    ("OPT", {**OPT, "attention_dropout": 0.1}, {"dropout": True}),
    ("Bloom", BLOOM, {}),
    ("Falcon", SIZE, PLAIN_SOFTMAX),
    ("Falcon", {**SIZE, "parallel_attn": False, "multi_query": False}, PLAIN_SOFTMAX),
    ("Phi", PLAIN, {}),
    ("Phi", {**PLAIN, "attention_dropout": 0.1, "resid_pdrop": 0.1}, {"dropout": True}),
    ("StableLm", {**GATED, "num_key_value_heads": 8}, {}),
    ("Starcoder2", {**PLAIN, "num_key_value_heads": 2}, {}),
    ("Mpt", {"d_model": WIDTH, "n_layers": 3, "n_heads": 8, "vocab_size": 512}, {}),
    ("Cohere", GATED, {"wide_norms": "all"}),
    ("Olmo2", GATED, WIDE),
    ("Gemma", {**GATED, "head_dim": 32}, WIDE),
    ("Gemma2", {**GATED, "head_dim": 32, "sliding_window": 64}, WIDE),
    ("Gemma3Text", {**GATED, "head_dim": 32, "sliding_window": 64}, WIDE),
    ("Mixtral", {**GATED, "num_local_experts": 4}, {}),
    ("DeepseekV3", LATENT, {}),
]  # fmt: skip
"""A class, its config, and how its software differs from the recipe's defaults."""
FLASH = ["Llama", "Qwen2", "Qwen3", "Mistral", "Olmo2", "Starcoder2", "Gemma", "Mixtral"]
"""Classes whose fused attention is the kernel on a CPU too."""


def saved_bytes(monkeypatch, config):
    """Bytes of distinct storages that autograd keeps of a forward pass, weights left out.

    Dropout is the operation that a GPU runs, whose mask has a byte an element; a CPU's own has the
    dtype of its input.
    """
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")

    def dropout(x, p=0.5, training=True, *_, **__):
        return torch.native_dropout(x, p, train=True)[0] if training and p else x

    monkeypatch.setattr(torch.nn.functional, "dropout", dropout)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).train()
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    found, alive = {}, []

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    ids = torch.randint(0, 500, (BATCH, TOKENS))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.base_model(ids, use_cache=False)
    return sum(found.values())


def predicted(config, **software):
    """What the fold says, without the input of the head, before which the pass above stops."""
    spec = hf.read(config.to_dict()).spec
    plan = Plan(micro_batch=BATCH)
    ops = placed_operators(spec, plan, TOKENS)
    recipe = Recipe(fused=False, **software)
    return kept(ops, WIDTH, plan, recipe, BATCH * TOKENS).total - BATCH * TOKENS * WIDTH * 2


def config_of(name, given, attention):
    transformers = pytest.importorskip("transformers")
    made = getattr(transformers, f"{name}Config", None)
    if made is None:
        pytest.skip(f"this version of transformers has no {name}Config")
    return made(attn_implementation=attention, **given)


@pytest.mark.parametrize(("name", "given", "software"), CLASSES)
def test_unfused_activations_are_what_autograd_keeps_of_the_real_class(
    monkeypatch, name, given, software
):
    """Up to the statistics of norms, ids and rotary tables: under 1 %."""
    config = config_of(name, given, "eager")

    found = predicted(config, attention="unfused", **software)

    assert found == pytest.approx(saved_bytes(monkeypatch, config), rel=0.01)


@pytest.mark.parametrize(("name", "given", "software"), [c for c in CLASSES if c[0] in FLASH])
def test_flash_attention_keeps_no_scores_of_the_real_class(monkeypatch, name, given, software):
    config = config_of(name, given, "sdpa")

    found = predicted(config, attention="flash", **software)

    assert found == pytest.approx(saved_bytes(monkeypatch, config), rel=0.01)


@pytest.mark.parametrize("name", [*KEPT_BY, "gelu", "silu", "gelu_pytorch_tanh", "mish", "relu2"])
def test_an_activation_keeps_what_its_formula_makes(name):
    torch = pytest.importorskip("torch")
    activations = pytest.importorskip("transformers.activations")
    x = torch.ones(64, 64, requires_grad=True) * 1
    found, alive = {}, []

    def pack(tensor):
        found[tensor.untyped_storage().data_ptr()] = tensor
        alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = activations.ACT2FN[name](x)
    found.pop(out.untyped_storage().data_ptr(), None)

    assert sum(t.numel() == x.numel() for t in found.values()) == KEPT_BY.get(name, 1)


def test_a_kernel_of_its_own_keeps_the_input_of_an_activation_only():
    spec = catalog.model("gpt2")
    ops = placed_operators(spec, Plan(), 64)

    def layers(**software):
        return kept(ops, spec.d_model, Plan(), Recipe(fused=False, **software), 64).layers

    each = 64 * 4 * 768 * 2 * 12  # tokens × width × bytes × layers
    assert layers() - layers(composed=False) == (4 - 1) * each


@pytest.mark.parametrize("name", ["gemma-2-9b", "gpt2", "mixtral-8x7b", "deepseek-v3"])
def test_unfused_activations_of_a_column_are_those_of_its_members(name):
    spec = catalog.model(name)
    widths = np.array([1024, 2048, 4096])
    recipe = Recipe(fused=False, attention="unfused", dropout=True, wide_norms="rms")
    plan = Plan(tp=2, pp=2)

    def total(one, width):
        return kept(placed_operators(one, plan, 256), width, plan, recipe, 256).total

    found = total(vary(spec, d_model=widths), widths)

    alone = [total(vary(spec, d_model=int(w)), int(w)) for w in widths]
    assert np.allclose(found, alone, rtol=1e-12)


def test_fused_software_keeps_nothing_of_how_the_classes_are_written():
    spec = catalog.model("gemma-2-9b")
    ops = placed_operators(spec, Plan(), 256)
    plain = Recipe(attention="unfused")
    written = replace(plain, wide_norms="all", wide_scores=False, composed=False)

    found = [kept(ops, spec.d_model, Plan(), r, 256).total for r in (plain, written)]

    assert found[0] == found[1]
