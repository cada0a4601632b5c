"""Checkpoints are read from headers alone, expanded, and compared with what the model should be."""

import json
import os
import random
import struct
import tracemalloc

import pytest

from refusals import one_line
from scantling.errors import FieldError
from scantling.formats import hf, safetensors
from scantling.formats.checkpoint import describe, load_checkpoint
from scantling.formats.compare import compare
from scantling.formats.packed import expand
from scantling.formats.stored import Stored, safetensors_bits, size

TINY = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 64, "vocab_size": 96, "max_position_embeddings": 64,
}  # fmt: skip
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {
    "first_k_dense_replace": 1, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
    "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "num_key_value_heads": 4, "n_shared_experts": 1,
}  # fmt: skip
CLASSES = {
    "llama": {}, "mistral": {}, "qwen2": {}, "qwen3": {"head_dim": 8}, "gemma": {"head_dim": 8},
    "gemma2": {"head_dim": 8}, "gemma3_text": {"head_dim": 8}, "olmo2": {},
    "phi3": {"pad_token_id": 0}, "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {"num_experts": 4, "head_dim": 8, **MOE},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8},
    "deepseek_v2": {**MOE, **LATENT, "q_lora_rank": None},
    "deepseek_v3": {**MOE, **LATENT, "q_lora_rank": 12},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
}  # fmt: skip
BY_SHAPE = {
    "gpt_neox": {"vocab_size": 96, "hidden_size": 48, "num_hidden_layers": 2,
                 "num_attention_heads": 4, "intermediate_size": 80},
    "falcon": {"vocab_size": 96, "hidden_size": 48, "num_hidden_layers": 2,
               "num_attention_heads": 4, "multi_query": True, "new_decoder_architecture": False},
    "starcoder2": {**TINY, "intermediate_size": 80},
    "glm4": {**TINY, "head_dim": 8, "intermediate_size": 80, "pad_token_id": 0},
}  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Save the real class with random weights, once a type."""
    folder = tmp_path_factory.mktemp("models")

    def save(name):
        import transformers

        path = folder / name
        if not path.is_dir():
            given = {**TINY, **CLASSES[name]} if name in CLASSES and name != "gpt2" else {}
            given = given or CLASSES.get(name) or BY_SHAPE[name]
            config = transformers.AutoConfig.for_model(name, **{"vocab_size": 96, **given})
            model = transformers.AutoModelForCausalLM.from_config(config)
            model.save_pretrained(path)
        return path

    return save


def spec_of(path):
    return hf.read(json.loads((path / "config.json").read_text("utf-8")))


def write_file(path, tensors, metadata=None):
    """A safetensors file of zeros: (dtype, shape) by name."""
    header, at = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape) in tensors.items():
        n = size(tuple(shape)) * safetensors_bits()[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))
    return path


@pytest.mark.oracle
@pytest.mark.parametrize("name", CLASSES)
def test_the_file_the_real_class_saves_holds_what_the_spec_says(saved, name):
    path = saved(name)
    read = spec_of(path)

    found = compare(load_checkpoint(path), read.spec, name)

    assert found.lines() == []
    assert found.agrees
    assert found.method == "names"


@pytest.mark.oracle
@pytest.mark.parametrize("name", BY_SHAPE)
def test_a_type_without_known_names_is_compared_by_shape(saved, name):
    path = saved(name)

    found = compare(load_checkpoint(path), spec_of(path).spec, name)

    assert found.lines() == []
    assert found.method == "shapes"


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral", "gpt_oss", "phi3"])
def test_names_shapes_and_dtypes_are_those_of_the_safetensors_library(saved, name):
    from safetensors import safe_open

    path = saved(name) / "model.safetensors"
    found = {t.name: (list(t.shape), t.dtype) for t in safetensors.read_file(path).tensors}

    with safe_open(path, "pt") as file:
        expected = {
            key: (file.get_slice(key).get_shape(), file.get_slice(key).get_dtype())
            for key in file.keys()  # noqa: SIM118
        }
    assert found == expected


@pytest.mark.oracle
def test_a_sharded_model_is_its_index_and_the_folder_and_adds_up(saved, tmp_path):
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(saved("llama"))
    model.save_pretrained(tmp_path, max_shard_size="30KB")
    whole = load_checkpoint(saved("llama"))

    for given in (tmp_path, tmp_path / safetensors.INDEX):
        found = describe(load_checkpoint(given))

        assert found["files"] > 1
        assert found["logical_parameters"] == sum(p.numel() for p in model.parameters())
        assert found["tensor_bytes"] == whole.tensor_bytes
        assert found["notes"] == []
        sizes = sum(p.stat().st_size for p in tmp_path.glob("*.safetensors"))
        assert found["file_bytes"] == sizes


@pytest.mark.oracle
def test_a_config_of_another_model_is_told_by_what_differs(saved):
    path = saved("llama")
    config = json.loads((path / "config.json").read_text("utf-8"))
    wider = hf.read({**config, "intermediate_size": 80, "num_hidden_layers": 3}).spec
    shallow = hf.read({**config, "num_hidden_layers": 1}).spec

    found = compare(load_checkpoint(path), wider, "llama")

    assert "model.layers.0.mlp.gate_proj.weight is (64, 32), not (80, 32) (2 tensors)" in (
        found.lines()
    )
    assert "decoder.layer.attention.q (32, 32) is missing" in found.lines()
    beyond = compare(load_checkpoint(path), shallow, "llama")
    assert beyond.agrees
    assert beyond.beyond == 64 * 32 * 3 + 32 * 32 * 2 + 16 * 32 * 2 + 2 * 32


def test_a_tied_head_stored_again_is_no_new_parameter(tmp_path):
    config = {"model_type": "gpt2", "n_embd": 8, "n_layer": 0, "n_head": 2, "vocab_size": 96}
    spec = hf.read({**config, "n_layer": 1}).spec
    weights = {"wte.weight": ("F32", (96, 8)), "lm_head.weight": ("F32", (96, 8)),
               "h.0.attn.bias": ("F32", (1, 1, 16, 16)), "vision_tower.x": ("F32", (5,)),
               "strange": ("F32", (7, 7))}  # fmt: skip

    found = compare(load_checkpoint(write_file(tmp_path / "m.safetensors", weights)), spec, "gpt2")

    assert found.stored_again == ("lm_head.weight",)
    assert found.constants == 256
    assert found.towers == 5
    assert [d.line() for d in found.extra] == ["strange (7, 7) is extra"]


# Layouts of packed tensors, from the libraries' documentation; each holds one (4096, 1024) matrix.


def stored(name, shape, dtype):
    return Stored(name, shape, dtype, size(shape) * safetensors_bits()[dtype] // 8, "x.safetensors")


PACKED = {
    "gptq-4": (
        {"q.qweight": ("I32", (128, 4096)), "q.qzeros": ("I32", (8, 512)),
         "q.scales": ("F16", (8, 4096)), "q.g_idx": ("I32", (1024,))}, {}),
    "gptq-8": (
        {"q.qweight": ("I32", (256, 4096)), "q.qzeros": ("I32", (8, 1024)),
         "q.scales": ("F16", (8, 4096)), "q.g_idx": ("I32", (1024,))}, {}),
    "gptq-3": (
        {"q.qweight": ("I32", (96, 4096)), "q.qzeros": ("I32", (8, 384)),
         "q.scales": ("F16", (8, 4096))}, {}),
    "awq": (
        {"q.qweight": ("I32", (1024, 512)), "q.qzeros": ("I32", (8, 512)),
         "q.scales": ("F16", (8, 4096))}, {}),
    "awq-gemv": (
        {"q.qweight": ("I32", (4096, 128)), "q.qzeros": ("I32", (4096, 1)),
         "q.scales": ("F16", (4096, 8))}, {"quantization_config": {"version": "gemv", "bits": 4}}),
    "bitsandbytes-4bit": (
        {"q.weight": ("U8", (2097152, 1)), "q.weight.absmax": ("U8", (65536,)),
         "q.weight.quant_map": ("F32", (16,)), "q.weight.nested_absmax": ("F32", (256,)),
         "q.weight.nested_quant_map": ("F32", (256,)),
         "q.weight.quant_state.bitsandbytes__nf4": ("U8", (80,))}, {}),
    "bitsandbytes-8bit": (
        {"q.weight": ("I8", (4096, 1024)), "q.SCB": ("F32", (4096,)),
         "q.weight_format": ("U8", ())}, {}),
    "compressed-tensors-4": (
        {"q.weight_packed": ("I32", (4096, 128)), "q.weight_scale": ("BF16", (4096, 8)),
         "q.weight_zero_point": ("I32", (512, 8)), "q.weight_shape": ("I64", (2,))},
        {"quantization_config": {"config_groups": {"group_0": {"weights": {
            "num_bits": 4, "group_size": 128}}}}}),
    "compressed-tensors-8-channel": (
        {"q.weight_packed": ("I32", (4096, 256)), "q.weight_scale": ("BF16", (4096, 1)),
         "q.weight_shape": ("I64", (2,))},
        {"quantization_config": {"config_groups": {"group_0": {"weights": {
            "num_bits": 8, "group_size": None}}}}}),
    "nvfp4-compressed": (
        {"q.weight_packed": ("U8", (4096, 512)), "q.weight_scale": ("F8_E4M3", (4096, 64)),
         "q.weight_global_scale": ("F32", (1,)), "q.input_global_scale": ("F32", (1,))}, {}),
    "nvfp4-modelopt": (
        {"q.weight": ("U8", (4096, 512)), "q.weight_scale": ("F8_E4M3", (4096, 64)),
         "q.weight_scale_2": ("F32", ()), "q.input_scale": ("F32", ())}, {}),
    "fp8-block": (
        {"q.weight": ("F8_E4M3", (4096, 1024)), "q.weight_scale_inv": ("F32", (32, 8))}, {}),
    "fp8-tensor": (
        {"q.weight": ("F8_E4M3", (4096, 1024)), "q.weight_scale": ("F32", ()),
         "q.input_scale": ("F32", ())}, {}),
    "mxfp4": (
        {"q.weight_blocks": ("U8", (4096, 32, 16)), "q.weight_scales": ("U8", (4096, 32))}, {}),
    "mlx-4": (
        {"q.weight": ("U32", (4096, 128)), "q.scales": ("F16", (4096, 16)),
         "q.biases": ("F16", (4096, 16))}, {"quantization": {"bits": 4, "group_size": 64}}),
    "mlx-8-of-one-module": (
        {"q.weight": ("U32", (4096, 256)), "q.scales": ("F16", (4096, 32)),
         "q.biases": ("F16", (4096, 32))},
        {"quantization": {"bits": 4, "group_size": 64, "q": {"bits": 8, "group_size": 32}}}),
}  # fmt: skip


@pytest.mark.parametrize("layout", PACKED)
def test_a_packed_matrix_counts_its_logical_weights_and_scales_stand_apart(layout):
    tensors, config = PACKED[layout]

    found = expand([stored(k, s, d) for k, (d, s) in tensors.items()], config)

    weights = [w for w in found if w.role == "weight"]
    assert [(w.name, w.elements) for w in weights] == [("q.weight", 4096 * 1024)]
    assert layout.startswith("bitsandbytes-4") or weights[0].shape == (4096, 1024)
    assert any(w.role == "scale" for w in found)
    zeros = {"gptq": "q.qzeros", "awq": "q.qzeros", "mlx": "q.biases",
             "compressed-tensors-4": "q.weight_zero_point"}  # fmt: skip
    named = {v for k, v in zeros.items() if layout.startswith(k)}
    assert {w.name for w in found if w.role == "zero"} == named


def test_stacked_experts_in_mxfp4_and_fp8_are_expanded_too():
    gpt_oss = [stored("m.gate_up_proj_blocks", (32, 5760, 90, 16), "U8"),
               stored("m.gate_up_proj_scales", (32, 5760, 90), "U8")]  # fmt: skip
    fp8 = [stored("e.down_proj", (8, 512, 256), "F8_E4M3"),
           stored("e.down_proj_scale_inv", (8, 4, 2), "F32")]  # fmt: skip

    found = [w for w in expand(gpt_oss + fp8, {}) if w.role == "weight"]

    assert [w.shape for w in found] == [(32, 5760, 2880), (8, 512, 256)]


def test_the_two_billion_that_a_hub_shows_for_an_8b_model_are_eight():
    # 6,979,321,856 linear weights / 8, embeddings and norms as they are, one scale a group of 128
    config = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
              "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
              "vocab_size": 128256, "tie_word_embeddings": False}  # fmt: skip
    found = [stored("model.embed_tokens.weight", (128256, 4096), "F16"),
             stored("lm_head.weight", (128256, 4096), "F16"),
             stored("model.norm.weight", (4096,), "F16")]  # fmt: skip
    linear = {"self_attn.q_proj": (4096, 4096), "self_attn.k_proj": (1024, 4096),
              "self_attn.v_proj": (1024, 4096), "self_attn.o_proj": (4096, 4096),
              "mlp.gate_proj": (14336, 4096), "mlp.up_proj": (14336, 4096),
              "mlp.down_proj": (4096, 14336)}  # fmt: skip
    for i in range(32):
        layer = f"model.layers.{i}"
        found += [stored(f"{layer}.{n}_layernorm.weight", (4096,), "F16")
                  for n in ("input", "post_attention")]  # fmt: skip
        for name, (out, inner) in linear.items():
            found.append(stored(f"{layer}.{name}.qweight", (inner // 8, out), "I32"))
            found.append(stored(f"{layer}.{name}.scales", (inner // 128, out), "F16"))
    header = safetensors.Header(tuple(found), {}, 0)
    from scantling.formats.checkpoint import from_safetensors

    c = from_safetensors(header, config, "x", [])

    assert c.logical_parameters == 8_030_261_248
    assert c.stored_elements == pytest.approx(1_977_880_576, rel=0.001)
    assert compare(c, hf.read(config).spec, "llama").agrees


@pytest.mark.oracle
@pytest.mark.parametrize("layout", ["gptq-4", "awq", "fp8-block", "bitsandbytes-4bit", "mlx-4"])
def test_a_quantised_checkpoint_agrees_with_its_spec(saved, tmp_path, layout):
    path = saved("llama")
    wide = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 96}  # fmt: skip
    config = {**json.loads((path / "config.json").read_text("utf-8")), **wide}
    tensors = {"model.embed_tokens.weight": ("F16", (96, 256)), "lm_head.weight":
               ("F16", (96, 256)), "model.norm.weight": ("F16", (256,))}  # fmt: skip
    linear = {"self_attn.q_proj": (256, 256), "self_attn.k_proj": (128, 256),
              "self_attn.v_proj": (128, 256), "self_attn.o_proj": (256, 256),
              "mlp.gate_proj": (512, 256), "mlp.up_proj": (512, 256),
              "mlp.down_proj": (256, 512)}  # fmt: skip
    for i in range(2):
        layer = f"model.layers.{i}."
        tensors[layer + "input_layernorm.weight"] = ("F16", (256,))
        tensors[layer + "post_attention_layernorm.weight"] = ("F16", (256,))
        for name, (out, inner) in linear.items():
            packs = {
                "gptq-4": {"qweight": ("I32", (inner // 8, out)), "scales":
                           ("F16", (inner // 64, out)), "qzeros": ("I32", (inner // 64, out // 8))},
                "awq": {"qweight": ("I32", (inner, out // 8)), "scales":
                        ("F16", (inner // 64, out)), "qzeros": ("I32", (inner // 64, out // 8))},
                "fp8-block": {"weight": ("F8_E4M3", (out, inner)), "weight_scale_inv":
                              ("F32", (-(-out // 128), inner // 128))},
                "bitsandbytes-4bit": {"weight": ("U8", (out * inner // 2, 1)), "weight.absmax":
                                      ("F32", (out * inner // 64,))},
                "mlx-4": {"weight": ("U32", (out, inner // 8)), "scales":
                          ("F16", (out, inner // 64)), "biases": ("F16", (out, inner // 64))},
            }[layout]  # fmt: skip
            tensors |= {f"{layer}{name}.{k}": v for k, v in packs.items()}
    write_file(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    spec = hf.read(config).spec

    checkpoint = load_checkpoint(tmp_path)
    found = compare(checkpoint, spec, "llama")

    assert found.lines() == []
    assert describe(checkpoint)["quantized_tensors"] == {layout.removesuffix("-4"): 14}
    assert describe(checkpoint)["scales_bytes"] > 0


def test_a_packed_tensor_that_contradicts_its_scales_is_an_error():
    bad = [stored("q.qweight", (128, 4096), "I32"), stored("q.scales", (8, 4095), "F16")]
    mlx = [stored("q.weight", (16, 5), "U32"), stored("q.scales", (16, 3), "F16")]

    for tensors in (bad, mlx):
        with pytest.raises(FieldError, match="contradicts its scales"):
            expand(tensors, {})


# Corrupt files: one line each, little memory, no hang.


def entry(dtype="F32", shape=(2,), begin=0, end=8):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


CORRUPT = {
    "nothing": (b"", "is truncated"),
    "seven bytes": (b"1234567", "is truncated"),
    "huge length": (struct.pack("<Q", 2**62) + b"{}", "claims a header"),
    "length past the end": (struct.pack("<Q", 1000) + b"{}", "is truncated"),
    "no JSON": (struct.pack("<Q", 2) + b"{]", "no JSON"),
    "a list": (struct.pack("<Q", 2) + b"[]", "no JSON object"),
    "no text": (struct.pack("<Q", 2) + b"\xff\xfe", "no UTF-8"),
    "deep": (struct.pack("<Q", 200_000) + b'{"a":' + b"[" * 199_995, "nested too deeply"),
    "brackets": (struct.pack("<Q", 500_000) + b"[" * 500_000, "more than 200000 tensors"),
    "huge number": (struct.pack("<Q", 20_000) + b'{"a":' + b"9" * 19_994 + b"}", "no JSON"),
}
WRONG = {
    "unknown dtype": ({"a": entry("F7")}, "dtype F7 is not known"),
    "negative shape": ({"a": entry(shape=(-1,))}, "whole numbers"),
    "boolean shape": ({"a": entry(shape=(True, 2))}, "whole numbers"),
    "float shape": ({"a": entry(shape=(2.0,))}, "whole numbers"),
    "many dimensions": ({"a": entry(shape=(1,) * 17)}, "at most 16"),
    "overflow": ({"a": entry(shape=(2**62, 2**62))}, "spans 8 bytes"),
    "short span": ({"a": entry(end=4)}, "spans 4 bytes"),
    "overlap": ({"a": entry(), "b": entry()}, "offsets are wrong"),
    "hole": ({"a": entry(), "b": entry(begin=16, end=24)}, "offsets are wrong"),
    "no offsets": ({"a": {"dtype": "F32", "shape": [2]}}, "must have dtype"),
    "one key more": ({"a": {**entry(), "x": 1}}, "must have dtype"),
    "a number": ({"a": 3}, "must have dtype"),
    "metadata of numbers": ({"__metadata__": {"a": 1}}, "__metadata__"),
    "metadata a list": ({"__metadata__": []}, "__metadata__"),
    "long name": ({"a" * 5000: entry()}, "5000 characters"),
}


@pytest.mark.parametrize("name", [*CORRUPT, *WRONG])
def test_a_corrupt_file_is_one_line_of_error(tmp_path, name):
    path = tmp_path / "x.safetensors"
    if name in CORRUPT:
        raw, message = CORRUPT[name]
    else:
        header, message = WRONG[name]
        text = json.dumps(header).encode()
        raw = struct.pack("<Q", len(text)) + text + bytes(8)
    path.write_bytes(raw)

    with pytest.raises(FieldError, match=message) as error:
        load_checkpoint(path)
    assert "\n" not in str(error.value)


def test_a_tensor_named_twice_is_an_error(tmp_path):
    one = '"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}'
    text = f"{{{one}, {one}}}".encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))

    with pytest.raises(FieldError, match="names a twice"):
        load_checkpoint(path)


def test_a_file_cut_or_grown_at_any_place_is_an_error(tmp_path):
    path = write_file(tmp_path / "x.safetensors", {"a": ("F32", (2,)), "b": ("BF16", (3, 1))})
    raw = path.read_bytes()

    for wrong in [*(raw[:n] for n in range(len(raw))), raw + b"\0"]:
        path.write_bytes(wrong)
        with pytest.raises(FieldError, match=r"truncated|longer"):
            load_checkpoint(path)


def test_an_index_that_lies_is_an_error(tmp_path):
    write_file(tmp_path / "a.safetensors", {"a": ("F32", (2,))})
    write_file(tmp_path / "b.safetensors", {"a": ("F32", (2,)), "b": ("F32", (2,))})
    cases = {
        "has no weight_map": {},
        "must name a .safetensors file": {"weight_map": {"a": 3}},
        "without folders": {"weight_map": {"a": "../a.safetensors"}},
        "says that x is in a.safetensors": {"weight_map": {"x": "a.safetensors"}},
        "cannot be read": {"weight_map": {"a": "c.safetensors"}},
        "belongs to one file": {"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}},
    }
    for message, index in cases.items():
        (tmp_path / safetensors.INDEX).write_text(json.dumps(index), "utf-8")
        with pytest.raises(FieldError, match=message):
            load_checkpoint(tmp_path)


def test_totals_an_index_claims_are_not_trusted(tmp_path):
    write_file(tmp_path / "a.safetensors", {"a": ("F32", (2,))})
    index = {"metadata": {"total_parameters": 333312, "total_size": 8},
             "weight_map": {"a": "a.safetensors"}}  # fmt: skip
    (tmp_path / safetensors.INDEX).write_text(json.dumps(index), "utf-8")

    found = load_checkpoint(tmp_path)

    assert found.logical_parameters == 2
    assert len(found.notes) == 1
    assert "claims total_parameters 333312" in found.notes[0]


def test_what_is_no_checkpoint_is_told(tmp_path):
    (tmp_path / "x.bin").write_bytes(b"")
    for given, message in ((tmp_path, "without .safetensors"), (tmp_path / "no", "does not exist"),
                           (tmp_path / "x.bin", "is neither")):  # fmt: skip
        with pytest.raises(FieldError, match=message):
            load_checkpoint(given)
    for name in ("a", "b"):
        write_file(tmp_path / f"{name}.safetensors", {"a": ("F32", (2,))})
    with pytest.raises(FieldError, match="holds several"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("seed", range(5))
def test_mutated_headers_give_a_checkpoint_or_one_line(tmp_path, seed):
    chance = random.Random(seed)
    path = write_file(tmp_path / "x.safetensors", {f"t{i}": ("F16", (i, 3)) for i in range(5)},
                      {"format": "pt"})  # fmt: skip
    raw = path.read_bytes()
    errors = 0
    tracemalloc.start()
    for _ in range(300):
        wrong = bytearray(raw)
        for _ in range(chance.randint(1, 4)):
            wrong[chance.randrange(len(wrong))] = chance.randrange(256)
        path.write_bytes(wrong)
        errors += one_line(path)
    assert tracemalloc.get_traced_memory()[1] < 50 * 2**20
    tracemalloc.stop()
    assert errors > 100


def test_a_sparse_file_of_a_terabyte_is_read_by_its_header(tmp_path):
    n = 2**40
    text = json.dumps({"a": entry("U8", (n,), 0, n)}).encode()
    path = tmp_path / "x.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        try:
            os.truncate(file.fileno(), 8 + len(text) + n)
        except OSError:
            pytest.skip("the file system has no files of a terabyte")

    assert load_checkpoint(path).logical_parameters == n
