"""GGUF headers are read like the gguf package reads them, within limits it does not have."""

import random
import struct
import tracemalloc

import numpy as np
import pytest

from refusals import one_line
from scantling.errors import FieldError
from scantling.formats import gguf, hf
from scantling.formats.checkpoint import describe, load_checkpoint
from scantling.formats.compare import compare
from scantling.formats.stored import block_types

oracle = pytest.importorskip("gguf", reason="needs the gguf package, the oracle")

D, L, H, K, F, V = 256, 2, 4, 2, 512, 320
NORMS = ("attn_norm", "ffn_norm")
LINEAR = {
    "attn_q": (D, D), "attn_k": (D * K // H, D), "attn_v": (D * K // H, D), "attn_output": (D, D),
    "ffn_gate": (F, D), "ffn_up": (F, D), "ffn_down": (D, F),
}  # fmt: skip


def zeros(shape, kind):
    """A tensor of zeros in a type, as the writer wants it: bytes by row."""
    block, n_byte = oracle.GGML_QUANT_SIZES[kind]
    return np.zeros((*shape[:-1], shape[-1] // block * n_byte), dtype=np.uint8)


def write_model(path, arch="llama", kind="Q4_K", extra=None, tensors=None, alignment=None):
    """A tiny model of an architecture, written by the gguf package."""
    writer = oracle.GGUFWriter(path, arch)
    if alignment:
        writer.add_custom_alignment(alignment)
    writer.add_block_count(L)
    writer.add_embedding_length(D)
    writer.add_feed_forward_length(F)
    writer.add_head_count(H)
    writer.add_head_count_kv(K)
    writer.add_context_length(512)
    writer.add_key_length(D // H)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list([f"word {i}" for i in range(V)])
    writer.add_token_scores([0.0] * V)
    for key, value in (extra or {}).items():
        writer.add_uint32(f"{arch}.{key}", value)
    kind = oracle.GGMLQuantizationType[kind]
    plain = oracle.GGMLQuantizationType.F32
    listed = {"token_embd.weight": (V, D), "output.weight": (V, D), "output_norm.weight": (D,)}
    for i in range(L):
        listed |= {f"blk.{i}.{name}.weight": (D,) for name in NORMS}
        listed |= {f"blk.{i}.{name}.weight": shape for name, shape in LINEAR.items()}
    for name, shape in {**listed, **(tensors or {})}.items():
        if shape is not None:
            dtype = kind if len(shape) > 1 else plain
            writer.add_tensor(name, zeros(shape, dtype), raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def test_block_sizes_are_those_of_the_gguf_package():
    found = {t.id: (t.name, t.block, t.bytes) for t in block_types().values()}

    expected = {k.value: (k.name, *v) for k, v in oracle.GGML_QUANT_SIZES.items()}
    assert {i: expected[i] for i in found if i in expected} == {
        i: found[i] for i in found if i in expected
    }
    assert set(expected) <= set(found)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q2_K", "Q6_K", "IQ4_XS"])
def test_names_shapes_types_and_bytes_are_those_of_the_gguf_package(tmp_path, kind):
    path = write_model(tmp_path / "m.gguf", kind=kind)

    found = {t.name: (t.shape, t.dtype, t.bytes) for t in gguf.read_file(path).tensors}

    reader = oracle.GGUFReader(path)
    expected = {
        t.name: (tuple(int(n) for n in reversed(t.shape)), t.tensor_type.name, int(t.n_bytes))
        for t in reader.tensors
    }
    assert found == expected


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "gemma"])
def test_a_file_tells_the_config_and_agrees_with_its_spec(tmp_path, arch):
    tensors = {}
    for i in range(L):
        if arch == "qwen2":
            tensors |= {f"blk.{i}.attn_{n}.bias": (LINEAR[f"attn_{n}"][0],) for n in "qkv"}
        if arch == "qwen3":
            tensors |= {f"blk.{i}.attn_{n}_norm.weight": (D // H,) for n in "qk"}
    if arch == "gemma":
        tensors["output.weight"] = None
    checkpoint = load_checkpoint(write_model(tmp_path / "m.gguf", arch, tensors=tensors))

    read = hf.read(checkpoint.config)
    found = compare(checkpoint, read.spec, read.model_type)

    assert found.lines() == []
    assert read.model_type == arch
    assert (read.spec.vocab_size, read.spec.n_layer, read.spec.n_kv_head) == (V, L, K)
    assert read.spec.tied == (arch == "gemma")


def test_a_llama_with_experts_is_a_mixtral(tmp_path):
    tensors = {f"blk.{i}.{name}.weight": None for i in range(L) for name in LINEAR if "ffn" in name}
    for i in range(L):
        tensors[f"blk.{i}.ffn_gate_inp.weight"] = (4, D)
        tensors |= {f"blk.{i}.{n}_exps.weight": (4, *s) for n, s in LINEAR.items() if "ffn" in n}
    extra = {"expert_count": 4, "expert_used_count": 2}

    checkpoint = load_checkpoint(write_model(tmp_path / "m.gguf", extra=extra, tensors=tensors))

    read = hf.read(checkpoint.config)
    assert read.model_type == "mixtral"
    assert compare(checkpoint, read.spec, "mixtral").lines() == []


def test_scales_inside_blocks_are_set_apart(tmp_path):
    found = describe(load_checkpoint(write_model(tmp_path / "m.gguf")))

    matrices = 2 * V * D + L * sum(a * b for a, b in LINEAR.values())
    assert found["logical_parameters"] == matrices + D * (2 * L + 1)
    assert found["quantized_tensors"] == {"Q4_K": 2 + L * len(LINEAR)}
    assert found["scales_bytes"] == matrices // 256 * 16  # d, dmin and 12 bytes of 6-bit scales
    assert found["tensor_bytes"] == matrices // 256 * 144 + 4 * D * (2 * L + 1)
    assert found["file_bytes"] == (tmp_path / "m.gguf").stat().st_size


def test_another_alignment_is_used(tmp_path):
    path = write_model(tmp_path / "m.gguf", alignment=128)

    assert gguf.read_file(path).keys["general.alignment"] == 128


def test_long_arrays_are_counted_and_skipped(tmp_path):
    keys = gguf.read_file(write_model(tmp_path / "m.gguf")).keys

    assert keys["tokenizer.ggml.tokens"] == gguf.Length(V)
    assert keys["tokenizer.ggml.scores"] == [0.0] * V


def test_an_architecture_that_cannot_be_translated_is_a_note(tmp_path):
    found = load_checkpoint(write_model(tmp_path / "m.gguf", "mamba"))

    assert found.config is None
    assert "general.architecture mamba is not known" in found.notes[0]


def test_numbers_that_differ_between_layers_are_told():
    keys = {"general.architecture": "llama", "llama.feed_forward_length": [3, 4]}

    with pytest.raises(FieldError, match="differs between the layers"):
        gguf.config(gguf.Gguf(keys, (), 0, 3))


def test_a_split_model_is_read_whole_from_any_part(tmp_path):
    names = [f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
    for i, name in enumerate(names):
        writer = oracle.GGUFWriter(tmp_path / name, "llama")
        writer.add_uint16("split.no", i)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", 2)
        writer.add_tensor(f"t{i}", np.zeros((3, 2), dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    for name in names:
        assert [t.name for t in gguf.read_all(tmp_path / name).tensors] == ["t0", "t1"]
    assert load_checkpoint(tmp_path).logical_parameters == 12
    (tmp_path / names[1]).unlink()
    with pytest.raises(FieldError, match="cannot be read"):
        load_checkpoint(tmp_path / names[0])


def header(n_tensor=0, n_key=0, version=3):
    return b"GGUF" + struct.pack("<IQQ", version, n_tensor, n_key)


def key(kind, raw, name="k"):
    return string(name) + struct.pack("<I", kind) + raw


def tensor(name="t", shape=(4,), kind=0, offset=0):
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return string(name) + dims + struct.pack("<IQ", kind, offset)


BAD = {
    "nothing": (b"", "truncated"),
    "another magic": (b"GGML" + bytes(40), "no GGUF file"),
    "version 1": (header(version=1) + bytes(64), "versions 2 and 3"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + bytes(64), "big-endian"),
    "tensor bomb": (header(n_tensor=2**60), "claims 1152921504606846976 tensors"),
    "key bomb": (header(n_key=2**40), "claims 0 tensors"),
    "counts past the end": (header(n_tensor=100_000), "truncated"),
    "string bomb": (header(n_key=1) + struct.pack("<Q", 2**50) + bytes(64), "claims"),
    "string past the end": (header(n_key=1) + struct.pack("<Q", 900) + bytes(64), "truncated"),
    "array bomb": (header(n_key=1) + key(9, struct.pack("<IQ", 4, 2**61)), "truncated"),
    "array of strings bomb": (header(n_key=1) + key(9, struct.pack("<IQ", 8, 2**58)), "truncated"),
    "nested arrays": (header(n_key=1) + key(9, struct.pack("<IQ", 9, 1)), "array of arrays"),
    "unknown value": (header(n_key=1) + key(99, bytes(8)), "no GGUF value type"),
    "unknown element": (header(n_key=1) + key(9, struct.pack("<IQ", 99, 1)), "no GGUF value type"),
    "key twice": (header(n_key=2) + key(4, bytes(4)) * 2, "twice"),
    "tensor twice": (header(n_tensor=2) + tensor() + tensor() + bytes(64), "twice"),
    "five dimensions": (header(n_tensor=1) + tensor(shape=(1,) * 5), "5 dimensions"),
    "no width": (header(n_tensor=1) + tensor(shape=(0,)) + bytes(64), "has the shape"),
    "huge width": (header(n_tensor=1) + tensor(shape=(2**60, 2**60)) + bytes(64), "has the shape"),
    "unknown type": (header(n_tensor=1) + tensor(kind=77) + bytes(64), "no GGUF tensor type"),
    "half a block": (header(n_tensor=1) + tensor(shape=(48,), kind=2) + bytes(64), "blocks of 32"),
    "odd offset": (header(n_tensor=1) + tensor(offset=5) + bytes(64), "multiple of 32"),
    "past the end": (header(n_tensor=1) + tensor(shape=(400,)) + bytes(64), "truncated"),
    "overlap": (header(n_tensor=2) + tensor(shape=(16,)) + tensor("u") + bytes(640),
                "inside the tensor"),
    "alignment 0": (header(n_key=1) + key(4, bytes(4), "general.alignment"), "power of two"),
    "alignment of text": (header(n_key=1) + key(8, string("x"), "general.alignment"),
                          "power of two"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_corrupt_file_is_one_line_of_error(tmp_path, name):
    raw, message = BAD[name]
    path = tmp_path / "x.gguf"
    path.write_bytes(raw)

    tracemalloc.start()
    with pytest.raises(FieldError, match=message) as error:
        load_checkpoint(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "\n" not in str(error.value)
    assert peak < 20 * 2**20


def test_a_file_cut_at_any_place_is_an_error(tmp_path):
    raw = header(1, 2) + key(8, string("llama"), "general.architecture") + key(
        9, struct.pack("<IQ", 8, 2) + string("a") + string("bc")) + tensor()  # fmt: skip
    path = tmp_path / "x.gguf"
    whole = raw + bytes(-len(raw) % 32) + bytes(16)

    path.write_bytes(whole)
    assert load_checkpoint(path).logical_parameters == 4
    for n in range(len(whole)):
        path.write_bytes(whole[:n])
        with pytest.raises(FieldError, match="truncated"):
            load_checkpoint(path)


@pytest.mark.parametrize("seed", range(5))
def test_mutated_headers_give_a_checkpoint_or_one_line(tmp_path, seed):
    chance = random.Random(seed)
    path = write_model(tmp_path / "x.gguf")
    raw = path.read_bytes()[:4000] + bytes(2**20)
    errors = 0
    tracemalloc.start()
    for _ in range(200):
        wrong = bytearray(raw)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(4000)
            wrong[at] = chance.choice((0, 1, 255, chance.randrange(256)))
        path.write_bytes(wrong)
        errors += one_line(path)
    assert tracemalloc.get_traced_memory()[1] < 50 * 2**20
    tracemalloc.stop()
    assert errors > 10
