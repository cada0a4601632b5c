"""Exporters: the words of other tools, checked against the tools themselves where they install."""

import contextlib
import importlib.util
import itertools
import json
import os
import pathlib
import re
import sys
import types
import warnings

import pytest
from click.testing import CliRunner

from scantling import catalog, cli, parameters, vary
from scantling.errors import FieldError, ScantlingError, UnknownNameError
from scantling.formats import hf
from scantling.formats.context import KINDS, extend
from scantling.formats.registry import FORMATS, MODULES, export, register
from scantling.formats.scaling import reading
from scantling.formats.target import DECODER, refuse_beyond
from scantling.spec import Alibi, GroupedAttention, Plain, Rope, fields
from scantling.spec.vary import nodes, rewrite

FAMILIES = (
    "gpt2", "llama-3.1-8b", "llama-3.2-1b", "qwen2.5-7b", "qwen3-0.6b", "qwen3-30b-a3b",
    "mixtral-8x7b", "gemma-3-1b", "deepseek-v3", "gpt-oss-20b", "falcon-7b", "pythia-160m",
    "mistral-7b-v0.1", "starcoder2-3b", "olmo2-7b", "phi-2", "nemotron-4-340b", "smollm3-3b",
)  # fmt: skip


def run(*args):
    """Run the command line in this process: status, output, error text."""
    found = CliRunner().invoke(cli.group, [str(a) for a in args], standalone_mode=False)
    if isinstance(found.exception, ScantlingError):
        return 2, found.stdout, f"error: {found.exception}"
    assert found.exception is None, repr(found.exception)
    return found.return_value, found.stdout, found.stderr


def small(name):
    """A model of the catalogue with few layers and experts: its structure, little to build."""
    spec = catalog.model(name)
    with contextlib.suppress(FieldError):  # the runs before the last are longer
        spec = vary(spec, n_layer=min(7, spec.n_layer))
    return vary(spec, n_expert=16) if "n_expert" in fields(spec) else spec


def exported(target):
    """Every model of the catalogue that a target can say, in its words."""
    for name in catalog.named():
        try:
            spec = small(name)
            yield name, spec, export(spec, target)
        except FieldError:
            continue


# ---------------------------------------------------------------- all targets


@pytest.mark.parametrize(("name", "target"), list(itertools.product(FAMILIES, MODULES)))
def test_a_target_says_a_model_or_refuses_in_one_line(name, target):
    refused = ""
    try:
        found = export(catalog.model(name), target)
    except ScantlingError as error:
        refused = str(error)
    if refused:
        assert "\n" not in refused
        assert re.search(r"cannot|must|needs|differ|is no", refused)
    else:
        assert found.text.endswith("\n")
        assert json.loads(json.dumps(found.values)) == found.values


def test_an_unknown_target_is_answered_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean megatron"):
        export(catalog.model("gpt2"), "megatro")


def test_a_third_party_can_add_a_target():
    try:
        register("own")(lambda spec: f"{spec.n_layer} layers")
        assert export(catalog.model("gpt2"), "own") == "12 layers"
    finally:
        del FORMATS["own"]


@pytest.mark.parametrize("target", [t for t in MODULES if t not in {"hf", "vllm"}])
def test_what_a_target_has_no_word_for_is_refused_not_dropped(target):
    """Changes of structure one at a time; the settings of the target must change, or it refuses."""
    base = catalog.model("llama-3.1-8b")
    plain = export(base, target).values

    def changed(cls, **values):
        from msgspec.structs import replace

        return rewrite(base, lambda n: replace(n, **values) if isinstance(n, cls) else n)

    variants = [
        changed(GroupedAttention, sinks=True), changed(GroupedAttention, gate="head"),
        changed(GroupedAttention, softcap=50.0), changed(GroupedAttention, qkv_bias=True),
        changed(GroupedAttention, position=Alibi()), changed(GroupedAttention, causal=False),
        changed(GroupedAttention, key_is_value=True), changed(GroupedAttention, scale=0.01),
        changed(GroupedAttention, d_value=64), changed(Plain, scale=0.5),
        changed(Rope, fraction=0.5), changed(Rope, scaling=(("rope_type", "longrope"),)),
    ]  # fmt: skip
    for spec in variants:
        with contextlib.suppress(FieldError):  # to refuse is as right as to say it
            assert export(spec, target).values != plain


def test_the_refusal_names_the_part():
    for name, target, part in (
        ("mistral-7b-v0.1", "torchtitan", "attention.span Window"),
        ("falcon-7b", "megatron", "parallel blocks"),
        ("gpt-oss-20b", "litgpt", "attention.sinks True"),
        ("deepseek-v3", "nanotron", "LatentAttention"),
        ("mpt-7b", "litgpt", "Alibi"),
        ("olmo2-7b", "megatron", "post Norm"),
        ("llama-4-scout", "gguf", "Chunk"),
    ):
        with pytest.raises(FieldError, match=re.escape(part)):
            export(catalog.model(name), target)


def test_an_encoder_is_refused():
    spec = catalog.model("gpt2")
    from msgspec.structs import replace

    both = replace(spec, encoder=spec.decoder)
    with pytest.raises(FieldError, match="encoder cannot be said"):
        refuse_beyond(both, DECODER, "plain")


# ---------------------------------------------------------------- megatron


def test_megatron_arguments_of_llama_are_those_of_its_examples():
    """Names and values as in examples/llama of NVIDIA/Megatron-LM."""
    found = export(catalog.model("llama-3.1-8b"), "megatron").values

    assert found == {
        "num-layers": 32, "hidden-size": 4096, "num-attention-heads": 32, "kv-channels": 128,
        "group-query-attention": True, "num-query-groups": 8, "ffn-hidden-size": 14336,
        "swiglu": True, "disable-bias-linear": True, "normalization": "RMSNorm",
        "max-position-embeddings": 131072, "position-embedding-type": "rope",
        "rotary-base": 500000, "rotary-percent": 1.0, "use-rope-scaling": True,
        "rope-scaling-factor": 8, "untie-embeddings-and-output-weights": True,
        "vocab-size": 128256, "make-vocab-size-divisible-by": 128,
    }  # fmt: skip


def test_megatron_arguments_of_deepseek_v3():
    """Its layers, experts and latent ranks are those of the paper (DeepSeek-V3, section 4.2)."""
    found = export(catalog.model("deepseek-v3"), "megatron").values

    assert found["moe-layer-freq"] == "([0]*3+[1]*58)"
    assert found["multi-latent-attention"] is True
    assert (found["q-lora-rank"], found["kv-lora-rank"]) == (1536, 512)
    assert (found["moe-router-num-groups"], found["moe-router-group-topk"]) == (8, 4)
    assert found["moe-router-score-function"] == "sigmoid"
    assert found["moe-router-enable-expert-bias"] is True


def test_megatron_windows_count_the_tokens_to_the_left():
    found = export(catalog.model("mistral-7b-v0.1"), "megatron").values

    assert found["window-size"] == "4095,0"


def test_the_padded_vocabulary_is_noted():
    """50257 at 128 × 1, 2, 4, 8 ranks; NVIDIA/Megatron-LM pads up to a multiple."""
    notes = export(catalog.model("gpt2"), "megatron").notes

    assert [re.search(r"padded to (\d+)", n)[1] for n in notes] == [
        "50304", "50432", "50688", "51200"
    ]  # fmt: skip
    assert "36,096 parameters more" in notes[0]  # 47 rows of 768, the head is tied


@pytest.fixture(scope="module")
def megatron():
    """Build Megatron's own model from exported arguments, on the meta device."""
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        from megatron.core import parallel_state
        from megatron.core.models.gpt import GPTModel
        from megatron.core.models.gpt import gpt_layer_specs as specs
        from megatron.core.transformer import MLATransformerConfig, TransformerConfig
        from megatron.core.transformer import multi_latent_attention as mla_module
        from megatron.core.transformer.dot_product_attention import DotProductAttention

    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": "29517"}  # fmt: skip
    patch = pytest.MonkeyPatch()
    patch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))
    plain = DotProductAttention.__init__

    def without_widths(self, *args, **kw):
        plain(self, *args, **{k: v for k, v in kw.items() if k not in {"k_channels", "v_channels"}})

    patch.setattr(DotProductAttention, "__init__", without_widths)
    patch.setattr(mla_module, "HAVE_TE", False)
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    parallel_state.initialize_model_parallel(1, 1)

    def build(v):
        mla, moe = "multi-latent-attention" in v, "num-experts" in v
        renamed = {
            "num-layers": "num_layers", "hidden-size": "hidden_size", "kv-channels": "kv_channels",
            "num-attention-heads": "num_attention_heads", "ffn-hidden-size": "ffn_hidden_size",
            "normalization": "normalization", "add-qkv-bias": "add_qkv_bias",
            "qk-layernorm": "qk_layernorm", "num-experts": "num_moe_experts",
            "softmax-type": "softmax_type", "kv-lora-rank": "kv_lora_rank",
            "qk-head-dim": "qk_head_dim", "qk-pos-emb-head-dim": "qk_pos_emb_head_dim",
            "v-head-dim": "v_head_dim", "rope-type": "rope_type",
            "moe-router-topk": "moe_router_topk", "moe-ffn-hidden-size": "moe_ffn_hidden_size",
            "moe-shared-expert-intermediate-size": "moe_shared_expert_intermediate_size",
            "moe-shared-expert-gate": "moe_shared_expert_gate",
            "moe-router-score-function": "moe_router_score_function",
            "moe-router-enable-expert-bias": "moe_router_enable_expert_bias",
            "moe-router-num-groups": "moe_router_num_groups",
            "moe-router-group-topk": "moe_router_group_topk",
        }  # fmt: skip
        given = {renamed[k]: x for k, x in v.items() if k in renamed}
        given |= {"add_bias_linear": "disable-bias-linear" not in v,
                  "gated_linear_unit": "swiglu" in v, "use_cpu_initialization": True,
                  "perform_initialization": False}  # fmt: skip
        if mla:
            given["q_lora_rank"] = v.get("q-lora-rank")
        else:
            given["num_query_groups"] = v.get("num-query-groups", v["num-attention-heads"])
        for key in ("moe-layer-freq", "no-rope-freq", "window-attn-skip-freq"):
            if key in v:
                given[key.replace("-", "_")] = eval(v[key])
        if "window-size" in v:
            given["window_size"] = tuple(int(x) for x in v["window-size"].split(","))
        config = (MLATransformerConfig if mla else TransformerConfig)(**given)
        layer = (
            specs.get_gpt_decoder_block_spec(config, use_transformer_engine=False) if moe else
            specs.get_gpt_layer_local_spec(
                qk_layernorm=config.qk_layernorm, multi_latent_attention=mla,
                normalization=config.normalization,
            )
        )  # fmt: skip
        with torch.device("meta"):
            return GPTModel(
                config, layer, vocab_size=v["vocab-size"],
                max_sequence_length=v.get("max-position-embeddings", 2048),
                position_embedding_type=v["position-embedding-type"],
                share_embeddings_and_output_weights="untie-embeddings-and-output-weights" not in v,
            )  # fmt: skip

    yield build
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()
    patch.undo()


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_megatron_builds_the_same_number_of_parameters(megatron):
    checked = 0
    for name, spec, found in exported("megatron"):
        built = sum(p.numel() for p in megatron(found.values).parameters())
        assert built == parameters(spec).total, name
        checked += 1
    assert checked > 80


# ---------------------------------------------------------------- litgpt


@pytest.fixture(scope="module")
def litgpt():
    """LitGPT's Config and GPT, without the rest of its package."""
    place = importlib.util.find_spec("litgpt")
    if place is None:
        pytest.skip("litgpt is not installed")
    bare = types.ModuleType("litgpt")
    bare.__path__ = list(place.submodule_search_locations)
    sys.modules["litgpt"] = bare
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = importlib.import_module("litgpt.config")
        try:
            model = importlib.import_module("litgpt.model")
        except ImportError as error:
            pytest.skip(f"litgpt.model needs {error.name}")
    return config.Config, model.GPT


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_litgpt_builds_the_same_number_of_parameters(litgpt):
    import torch

    config, gpt = litgpt
    checked = 0
    for name, spec, found in exported("litgpt"):
        with torch.device("meta"):
            built = sum(p.numel() for p in gpt(config(**found.values)).parameters())
        own_head = spec.vocab_size * spec.d_model if spec.tied else 0
        assert built == parameters(spec).total + own_head, name
        checked += 1
    assert checked > 100


def test_litgpt_arguments_of_gemma_3():
    """Windows, both rotary bases and all four norms (litgpt.config, Gemma-3-1b)."""
    found = export(catalog.model("gemma-3-1b"), "litgpt").values

    assert found["sliding_window_indices"][:7] == [1, 1, 1, 1, 1, 0, 1]
    assert found["rope_indices"] == found["sliding_window_indices"]
    assert (found["rope_base"], found["rope_local_base_freq"]) == (1_000_000, 10_000)
    assert all(found[k] for k in ("post_attention_norm", "post_mlp_norm", "scale_embeddings"))
    assert found["mlp_class_name"] == "GemmaMLP"


def test_litgpt_keeps_a_head_of_its_own_and_says_so():
    notes = export(catalog.model("llama-3.2-1b"), "litgpt").notes

    assert "262,668,288 parameters more" in notes[0]  # 128256 × 2048


# ---------------------------------------------------------------- torchtitan, nanotron


def test_torchtitan_has_one_of_three_models():
    names = {"llama-3.1-8b": "llama3", "qwen3-0.6b": "qwen3", "qwen3-30b-a3b": "qwen3",
             "deepseek-v3": "deepseek_v3"}  # fmt: skip
    for name, model in names.items():
        found = export(catalog.model(name), "torchtitan")
        assert found.values["model"] == model
        compile(found.text, name, "exec")


def test_torchtitan_arguments_are_those_of_its_builders():
    import ast

    place = importlib.util.find_spec("torchtitan")
    if place is None:
        pytest.skip("torchtitan is not installed")
    root = pathlib.Path(place.submodule_search_locations[0])
    for name in ("llama-3.1-8b", "qwen3-0.6b", "qwen3-30b-a3b", "deepseek-v3"):
        values = export(catalog.model(name), "torchtitan").values
        tree = ast.parse((root / "models" / values["model"] / "__init__.py").read_text("utf-8"))
        builder = {"_build_dsv3_layers": "build_mla_moe_layers"}.get(
            values["builder"], values["builder"]
        )
        function = next(n for n in ast.walk(tree)
                        if isinstance(n, ast.FunctionDef) and n.name == builder)  # fmt: skip
        assert set(values["layers"]) <= {a.arg for a in function.args.kwonlyargs}
        rope = ast.parse((root / "models" / "common" / "rope.py").read_text("utf-8"))
        known = {n.target.id for n in ast.walk(rope) if isinstance(n, ast.AnnAssign)
                 and isinstance(n.target, ast.Name)}  # fmt: skip
        assert set(values["rope"]) <= known


def test_torchtitan_s_own_671b_is_what_is_written():
    """The sizes of ``_671b`` in torchtitan/models/deepseek_v3/__init__.py (0.3)."""
    found = export(catalog.model("deepseek-v3"), "torchtitan").values["layers"]
    known = {
        "n_layers": 61, "n_dense_layers": 3, "dim": 7168, "n_heads": 128, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "mscale": 1.0, "dense_hidden_dim": 18432, "moe_hidden_dim": 2048, "num_experts": 256,
        "num_shared_experts": 1, "router_top_k": 8, "router_score_func": "sigmoid",
        "router_num_expert_groups": 8, "router_num_limited_groups": 4, "router_route_norm": True,
    }  # fmt: skip

    assert found == known


def test_nanotron_s_fragment_is_yaml_of_its_llama_config():
    yaml = pytest.importorskip("yaml")
    found = export(catalog.model("smollm2-135m"), "nanotron")
    config = yaml.safe_load(found.text)["model"]["model_config"]

    assert config == found.values["model_config"]
    assert (config["hidden_size"], config["num_attention_heads"]) == (576, 9)
    assert config["tie_word_embeddings"] is True
    assert config["is_llama_config"] is True


# ---------------------------------------------------------------- gguf, vllm


def test_gguf_keys_are_those_of_its_own_package():
    gguf = pytest.importorskip("gguf")
    classes = [c for c in vars(gguf.Keys).values() if isinstance(c, type)]
    known = {v for c in classes for v in vars(c).values() if isinstance(v, str)}
    architectures = set(gguf.MODEL_ARCH_NAMES.values())
    for name, _, found in exported("gguf"):
        arch = found.values["general.architecture"]
        assert arch in architectures, name
        keys = {k.replace(f"{arch}.", "{arch}.", 1) for k in found.values}
        assert keys <= known, name


def test_gguf_keys_of_llama_2():
    """As the header of llama-2-7b.gguf has them (llama.cpp's convert_hf_to_gguf.py)."""
    found = export(catalog.model("llama-2-7b"), "gguf").values

    assert found["general.architecture"] == "llama"
    assert found["llama.block_count"] == 32
    assert found["llama.embedding_length"] == 4096
    assert found["llama.feed_forward_length"] == 11008
    assert found["llama.attention.head_count"] == found["llama.attention.head_count_kv"] == 32
    assert found["llama.rope.dimension_count"] == 128


def test_gguf_keeps_latent_attention_as_one_shared_head():
    found = export(catalog.model("deepseek-v3"), "gguf").values

    assert found["deepseek2.attention.head_count_kv"] == 1
    assert found["deepseek2.attention.key_length"] == 512 + 64
    assert found["deepseek2.attention.key_length_mla"] == 128 + 64
    assert found["deepseek2.leading_dense_block_count"] == 3


def test_vllm_sizes_divide_heads_and_widths():
    """Qwen2.5-7B: 4 key-value heads forbid 7 and 14, the width 18944 = 2^9 · 37 forbids 28."""
    known = {"llama-3.1-8b": [1, 2, 4, 8, 16, 32], "qwen2.5-7b": [1, 2, 4], "gemma-3-1b": [1, 2, 4]}
    for name, sizes in known.items():
        assert export(catalog.model(name), "vllm").values["tensor-parallel-size"] == sizes


def test_vllm_overrides_keep_the_base_of_the_rotation():
    """An override replaces the whole setting (NVIDIA-NeMo/Megatron-Bridge PR 3077)."""
    longer = extend(catalog.model("qwen3-8b"), 131072, "yarn", 32768).spec
    values = export(longer, "vllm").values

    assert values["max-model-len"] == 131072
    assert values["hf-overrides"]["rope_theta"] == 1_000_000
    assert values["hf-overrides"]["rope_scaling"]["factor"] == 4.0


# ---------------------------------------------------------------- longer contexts


def test_yarn_writes_the_factor_that_is_the_ratio_of_lengths():
    longer = extend(catalog.model("qwen3-8b"), 131072, "yarn", 32768)
    config = hf.write(longer.spec)

    assert config["max_position_embeddings"] == 131072
    assert config["rope_scaling"] == {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768
    }  # fmt: skip
    assert config["rope_theta"] == 1_000_000
    assert not reading(config["rope_scaling"], config["max_position_embeddings"]).should_warn


@pytest.mark.oracle
@pytest.mark.parametrize("kind", ["yarn", "linear", "dynamic", "llama3"])
def test_the_class_turns_the_slowest_frequency_by_the_factor(kind):
    """transformers itself on the written config: no warning, and 1/4 of the lowest frequency."""
    import torch
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = hf.write(extend(catalog.model("qwen3-8b"), 131072, kind, 32768).spec)
    built = AutoConfig.for_model(**config)
    length = 131072 if kind == "dynamic" else None
    stretched, strength = ROPE_INIT_FUNCTIONS[kind](built, torch.device("cpu"), seq_len=length)
    plain = 1e6 ** -(torch.arange(0, 128, 2) / 128)

    factor = float(plain[-1] / stretched[-1])
    if kind == "dynamic":  # the base grows by (4·4 − 3)^(128/126), the lowest frequency by 13
        assert factor == pytest.approx(4 * 4 - 3, rel=1e-3)
    else:
        assert factor == pytest.approx(4, rel=1e-5)
    if kind == "yarn":
        assert strength == pytest.approx(1.13863, rel=1e-4)


def test_gemma_3_stretches_its_full_layers_only():
    spec = extend(catalog.model("gemma-3-1b"), 131072, "linear").spec
    ropes = {(n.position.theta, n.position.scaling) for _, n in nodes(spec)
             if isinstance(n, GroupedAttention)}  # fmt: skip

    assert (10_000.0, None) in ropes
    assert any(theta == 1_000_000 and scaling for theta, scaling in ropes)
    assert hf.read(hf.write(spec)).spec == spec


def test_what_cannot_be_stretched_is_refused_with_the_reason():
    cases = {
        ("gpt2", 32768, "yarn"): "needs rotary positions",
        ("llama-3.1-8b", 262144, "yarn"): "cannot follow the llama3 scaling",
        ("qwen3-8b", 32768, "yarn"): "must exceed the original 40960",
        ("phi-3.5-mini", 262144, "longrope"): "a search found for the length the model has",
        ("qwen3-8b", 131072, "yarm"): "did you mean yarn",
    }
    for (name, context, kind), reason in cases.items():
        with pytest.raises(FieldError, match=reason):
            extend(catalog.model(name), context, kind)


def test_stretching_again_counts_from_the_same_original():
    once = extend(catalog.model("qwen3-8b"), 65536, "yarn", 32768).spec
    assert extend(once, 131072, "yarn").factor == 4.0
    linear = extend(catalog.model("qwen3-8b"), 81920, "linear").spec
    assert extend(linear, 163840, "linear").factor == 4.0
    llama = extend(catalog.model("llama-3.1-8b"), 262144, "llama3")
    assert llama.factor == 32.0  # from 8192, the original its config names


# ---------------------------------------------------------------- the command line


def test_export_writes_a_file_that_reads_as_the_same_model(tmp_path):
    place = tmp_path / "config.json"
    status, out, err = run("export", "qwen3-8b", "--to", "hf", "--out", place)

    assert (status, out) == (0, "")
    assert f"wrote {place}" in err
    assert catalog.load(place).spec == catalog.model("qwen3-8b")


def test_export_stretches_and_changes_first():
    _, out, err = run("export", "qwen3-8b", "--to", "hf", "--set", "n_layer=30", "--context",
                      "128k", "--rope", "yarn", "--original-context", "32k")  # fmt: skip
    config = json.loads(out)

    assert config["num_hidden_layers"] == 30
    assert config["rope_scaling"]["factor"] == 4.0
    assert "0.1 ln 4 + 1 = 1.1386" in err


def test_export_as_json_has_values_text_and_notes():
    _, out, _ = run("export", "gpt2", "--to", "megatron", "--json")
    answer = json.loads(out)

    assert answer["schema"] == 1
    assert answer["values"]["position-embedding-type"] == "learned_absolute"
    assert "--num-layers 12" in answer["text"]
    assert "padded to 50304" in answer["notes"][0]


def test_export_refuses_in_one_line():
    for args, text in (
        (("gpt2", "--to", "nanotron"), "attention.qkv_bias True cannot be said in nanotron"),
        (("gpt2", "--to", "megatro"), "did you mean megatron"),
        (("qwen3-8b", "--to", "hf", "--rope", "yarn"), "--rope yarn needs --context"),
        (("qwen3-8b", "--to", "hf", "--context", "64k"), "--context 65536 needs --rope"),
        (("qwen3-8b", "--to", "hf", "--original-context", "4k"), "needs --context and --rope"),
    ):
        status, _, err = run("export", *args)
        assert status == 2
        assert text in err


def test_every_kind_of_scaling_is_named_in_the_error():
    with pytest.raises(UnknownNameError, match=KINDS[0]):
        extend(catalog.model("qwen3-8b"), 131072, "xpos")
