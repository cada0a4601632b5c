"""Encoders and encoder-decoders count as their classes do, and survive writing and reading."""

import contextlib
import json
import random
from collections import Counter
from typing import Any

import pytest

from scantling.costs.cache import kv_cache
from scantling.costs.count import flops, parameters
from scantling.errors import FieldError
from scantling.formats import hf
from scantling.ops import tensors
from scantling.spec import Disentangled, Full, GroupedAttention, Spec, Window, check, vary

DEPTH = 5
LOCAL, GLOBAL = "sliding_attention", "full_attention"

BERT: list[dict[str, Any]] = [{"type_vocab_size": 0}, {"num_attention_heads": 2}]
RELATIVE = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
ASYMMETRIC = {"encoder_layers": 1, "decoder_layers": 3}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 8}
BART: list[dict[str, Any]] = [ASYMMETRIC, HEADS, {"scale_embedding": True}]
T5: list[dict[str, Any]] = [
    {"num_decoder_layers": 1},
    {"num_decoder_layers": None},
    {"feed_forward_proj": "gated-gelu"},
    {"feed_forward_proj": "gated-silu", "d_kv": 7},
    {"feed_forward_proj": "relu", "relative_attention_num_buckets": 12},
]

SWITCHES: dict[str, list[dict[str, Any]]] = {
    "bert": BERT,
    "roberta": [*BERT, {"type_vocab_size": 1}],
    "xlm-roberta": BERT,
    "camembert": BERT,
    "roberta-prelayernorm": BERT,
    "xlm-roberta-xl": BERT,
    "megatron-bert": BERT,
    "mpnet": [{"relative_attention_num_buckets": 12}],
    "distilbert": [],
    "albert": [
        {"type_vocab_size": 0},
        {"embedding_size": "hidden"},
        {"num_hidden_groups": 3},
        {"num_hidden_groups": 2, "inner_group_num": 2},
    ],
    "electra": [*BERT, {"embedding_size": "hidden"}, {"tie_word_embeddings": False}],
    "deberta-v2": [
        {"type_vocab_size": 2, "embedding_size": 6},
        {"type_vocab_size": 2, "embedding_size": 6, "position_biased_input": False},
        {**RELATIVE},
        {**RELATIVE, "share_att_key": True, "position_biased_input": False},
        {**RELATIVE, "share_att_key": True, "position_buckets": 9, "norm_rel_ebd": "layer_norm"},
        {**RELATIVE, "position_buckets": 9, "pos_att_type": "p2c|c2p"},
        {**RELATIVE, "pos_att_type": ["p2c"], "max_relative_positions": 30},
        {**RELATIVE, "pos_att_type": "c2p", "share_att_key": True},
        {**RELATIVE, "pos_att_type": []},
        {**RELATIVE, "conv_kernel_size": 3, "conv_act": "gelu"},
        {"conv_kernel_size": 5},
        {"legacy": False},
    ],
    "deberta": [
        {"type_vocab_size": 2, "embedding_size": 6},
        {**RELATIVE, "position_biased_input": False},
        {**RELATIVE, "max_relative_positions": 7},
        {**RELATIVE, "pos_att_type": "p2c", "max_relative_positions": 30},
        {**RELATIVE, "pos_att_type": ["c2p"]},
    ],
    "modernbert": [
        {"attention_bias": True},
        {"mlp_bias": True},
        {"norm_bias": True},
        {"decoder_bias": False},
        {"classifier_bias": True},
        {"global_attn_every_n_layers": 2},
        {"layer_types": [LOCAL, GLOBAL, GLOBAL, LOCAL, LOCAL]},
        {"layer_types": [LOCAL] * DEPTH},
        {"tie_word_embeddings": False},
    ],
    "t5": T5,
    "mt5": T5,
    "umt5": T5,
    "bart": BART,
    "mbart": BART,
    "plbart": BART,
    "blenderbot-small": BART,
    "pegasus": BART,
    "blenderbot": BART,
    "marian": BART,
    "m2m_100": BART,
    "whisper": [ASYMMETRIC, HEADS, {"num_mel_bins": 11}, {"tie_word_embeddings": False}],
}
"""Beside the plain shape: what flips structure. Widths are drawn."""

NOT_RUN: dict[str, dict[str, Any]] = {
    "the class looks a type up in a table of none": {"type_vocab_size": 0},
    "the class has 32 buckets in its forward pass": {"relative_attention_num_buckets": 12},
}
"""Switches that the class of an encoder builds and cannot run."""


@pytest.fixture
def one_thread():
    """Products of a few dozen rows are faster on one thread than handed to several."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def encoders() -> list[hf.ModelType]:
    return [kind for kind in hf.model_types().values() if kind.assemble == "encoder"]


def small(kind: hf.ModelType, seed: int) -> dict[str, Any]:
    """A small config with widths drawn from a seed; 4 heads, 5 layers (3 and 5 in two stacks)."""
    draw = random.Random(f"{kind.name} {seed}")
    sizes = {
        "hidden_size": 8 * draw.randint(3, 6),
        "num_hidden_layers": DEPTH,
        "encoder_layers": 3,
        "decoder_layers": DEPTH,
        "num_attention_heads": 4,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "intermediate_size": draw.randint(30, 90),
        "encoder_ffn_dim": draw.randint(30, 90),
        "decoder_ffn_dim": draw.randint(30, 90),
        "head_dim": draw.randint(5, 20),
        "embedding_size": draw.randint(5, 20),
        "vocab_size": draw.randint(60, 200),
        "max_position_embeddings": draw.randint(40, 90),
        "max_source_positions": draw.randint(10, 30),
        "num_mel_bins": draw.randint(5, 20),
        "sliding_window": 2 * draw.randint(3, 8),
    }
    config: dict[str, Any] = {"model_type": kind.name}
    optional = {"embedding_size", "max_position_embeddings"}
    for key, default in kind.keys.items():
        if key in sizes and not (default is None and key in optional):
            config[kind.spellings(key)[0]] = sizes[key]
    return config


def with_switch(config: dict[str, Any], switch: dict[str, Any]) -> dict[str, Any]:
    found = config | switch
    if found.get("embedding_size") == "hidden":
        found["embedding_size"] = found["hidden_size"]
    return found


def variants(*names: str, run: bool = False) -> list[Any]:
    found = []
    for kind in encoders():
        if names and kind.name not in names:
            continue
        for i, switch in enumerate([{}, *SWITCHES[kind.name]]):
            if run and switch in NOT_RUN.values():
                continue
            words = ",".join(f"{k}={v}" for k, v in switch.items()).replace(" ", "")
            config = with_switch(small(kind, i), switch)
            found.append(pytest.param(config, id=f"{kind.name}-{words or 'plain'}"))
    return found


def build(config: dict[str, Any], device: str = "meta") -> Any:
    """The real class, with its head; on the meta device it has shapes and no weights."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    if config["model_type"] == "modernbert":
        ids |= {"cls_token_id": 1, "sep_token_id": 2}
    rest = {k: v for k, v in config.items() if k not in {"model_type", "architectures"}}
    own = transformers.AutoConfig.for_model(config["model_type"], **ids | rest)
    own._attn_implementation = "eager"
    with torch.device(device):
        return getattr(transformers, hf.model_type(config["model_type"]).architecture)(own)


def persistent(model: Any) -> int:
    """Elements in the checkpoint that are no parameters."""
    known = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return sum(t.numel() for name, t in model.state_dict().items() if name not in known)


HEAD = (
    "cls.", "lm_head", "predictions", "vocab_", "generator_", "head.", "decoder.weight",
    "decoder.bias", "proj_out", "lm_predictions",
)  # fmt: skip
"""How the names of a head's parts start in a class that has it."""


def head(model: Any) -> int:
    """Elements of the head that are not the table's: transform, bias, and an untied matrix."""
    table = model.get_input_embeddings().weight
    return sum(
        p.numel() for n, p in model.named_parameters() if n.startswith(HEAD) and p is not table
    )


def norms(model: Any) -> int:
    """Elements of norms outside the head."""
    return sum(
        p.numel()
        for name, module in model.named_modules()
        if "LayerNorm" in type(module).__name__ and not name.startswith(HEAD)
        for p in module.parameters(recurse=False)
    )


# ---------------------------------------------------------------- the real classes, small


def test_every_type_has_its_switches():
    assert set(SWITCHES) == {kind.name for kind in encoders()}


@pytest.mark.oracle
@pytest.mark.parametrize("config", variants())
def test_the_count_of_a_spec_is_the_count_of_the_same_class_on_the_meta_device(config):
    """Unique parameters, persistent buffers, the head, and the norms."""
    model = build(config)
    counted = parameters(hf.read(config).spec)
    assert counted.total == counted.active == sum(p.numel() for p in model.parameters())
    assert counted.buffers == persistent(model)
    assert counted.lm_head == head(model)
    assert counted.by_part["norm"] == norms(model)
    assert counted.by_part["mixer"] == 0


@pytest.mark.oracle
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("config", variants(run=True))
def test_flops_are_what_the_counter_sees_when_the_real_class_runs(config):
    """Eager attention over 24 tokens in both stacks on the CPU; Whisper hears what it must."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    model = build(config, "cpu").eval().requires_grad_(requires_grad=False)
    spec = hf.read(config).spec
    tokens = 3 + torch.arange(24)[None] % 50
    inputs: dict[str, Any] = {"input_ids": tokens}
    if spec.encoder is not None:
        inputs |= {"decoder_input_ids": tokens, "use_cache": False}
    if config["model_type"] == "whisper":
        frames = 2 * config["max_source_positions"]
        inputs["input_features"] = torch.zeros(1, config["num_mel_bins"], frames)
        del inputs["input_ids"]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(**inputs)
    assert flops(spec, context=24).forward == counter.get_total_flops()


def shapes(spec: Spec) -> Counter[tuple[int, ...]]:
    """The tensors of a spec, each copy once."""
    found: Counter[tuple[int, ...]] = Counter()
    for t in tensors(spec):
        if t.alias is None and not t.buffer:
            found[tuple(int(n) for n in t.shape)] += int(t.copies)
    return found


@pytest.mark.oracle
@pytest.mark.parametrize(
    "config", variants("bert", "t5", "umt5", "bart", "electra", "whisper", "mpnet", "deberta-v2")
)
def test_the_shapes_of_a_spec_are_those_of_the_named_parameters(config):
    """As a multiset; these classes keep every projection apart."""
    model = build(config)
    assert shapes(hf.read(config).spec) == Counter(
        tuple(p.shape) for p in model.parameters() if p.numel()
    )


@pytest.mark.oracle
@pytest.mark.parametrize("kind", encoders(), ids=lambda kind: kind.name)
def test_a_config_that_says_nothing_counts_as_the_class_without_arguments(kind):
    config = {"model_type": kind.name}
    model = build(config)
    assert parameters(hf.read(config).spec).total == sum(p.numel() for p in model.parameters())


NO_FIELD = {
    "embedding_size": "deberta: read when a config has it, else the width",
    "position_embedding_type": "gone from the classes; old configs say absolute",
    "max_position_embeddings": "t5: no limit",
    "layer_types": "null is filled in layer by layer",
    "decoder_layers": "t5: null is as deep as the encoder",
    "decoder_vocab_size": "marian: null is the vocabulary of both",
}
"""Keys that a class has no field for or replaces."""
UNSET = {
    "position_buckets": -1, "share_att_key": False, "norm_rel_ebd": "none", "conv_kernel_size": 0,
    "conv_groups": 1, "conv_act": "tanh", "talking_head": False, "global_attn_every_n_layers": 3,
    "tie_word_embeddings": True,
}  # fmt: skip
"""Keys the classes read with this default when a config has them."""


@pytest.mark.oracle
@pytest.mark.parametrize("kind", encoders(), ids=lambda kind: kind.name)
def test_each_default_of_the_table_is_the_default_of_the_class(kind):
    transformers = pytest.importorskip("transformers")
    own = transformers.AutoConfig.for_model(kind.name)
    for key, ours in kind.keys.items():
        if key in NO_FIELD:
            continue
        spelled = [s for s in kind.spellings(key) if hasattr(own, s)]
        if key in {"rope_theta", "rope_local_base_freq"}:
            name = GLOBAL if key == "rope_theta" else LOCAL
            assert ours == own.rope_parameters[name]["rope_theta"]
        elif not spelled:
            assert ours == UNSET.get(key), key
        elif key != "rope_scaling":
            assert ours == getattr(own, spelled[0]), key


# ---------------------------------------------------------------- writing


@pytest.mark.parametrize("config", variants())
def test_what_is_written_reads_as_the_same_model(config):
    spec = hf.read(config).spec
    own = hf.write(spec, like=config["model_type"])
    assert hf.read(own).spec == check(spec)
    assert not [note for note in hf.read(own).notes if note.startswith("assumed")]
    assert hf.read(json.loads(json.dumps(hf.write(spec)))).spec == spec


@pytest.mark.oracle
@pytest.mark.parametrize("config", variants())
def test_transformers_builds_what_is_written_and_counts_the_same(config):
    spec = hf.read(config).spec
    for written in (hf.write(spec), hf.write(spec, like=config["model_type"])):
        assert sum(p.numel() for p in build(written).parameters()) == parameters(spec).total


# ---------------------------------------------------------------- what the numbers mean


def t5(**more: Any) -> dict[str, Any]:
    sizes = {"d_model": 64, "d_kv": 8, "d_ff": 96, "num_layers": 3, "num_heads": 8}
    return {"model_type": "t5", "vocab_size": 128, **sizes, **more}


def test_a_t5_whose_config_says_untied_has_a_head_of_its_own():
    """flan-t5-base holds 247,577,856 numbers, 24,674,304 of them in its head (notes, trap 1)."""
    sizes = {"d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 12, "num_heads": 12}
    config = {"model_type": "t5", "vocab_size": 32128, **sizes, "feed_forward_proj": "gated-gelu"}
    tied = parameters(hf.read(config).spec)
    untied = parameters(hf.read(config | {"tie_word_embeddings": False}).spec)
    assert (tied.total, untied.total) == (222_903_552, 247_577_856)
    assert (tied.lm_head, untied.lm_head) == (0, 32128 * 768)


def test_the_decoder_of_a_t5_is_as_deep_as_its_encoder_unless_it_says_otherwise():
    cases: list[tuple[dict[str, Any], int]] = [
        ({}, 3), ({"num_decoder_layers": None}, 3), ({"num_decoder_layers": 1}, 1),
    ]  # fmt: skip
    for given, depth in cases:
        spec = hf.read(t5(**given)).spec
        assert spec.encoder is not None
        assert (spec.encoder.n_layer, spec.n_layer) == (3, depth)


def test_the_other_spellings_of_a_width_and_a_depth_count_the_same():
    """The class maps hidden_size, num_attention_heads, num_hidden_layers and head_dim itself."""
    other = {"d_model": "hidden_size", "num_heads": "num_attention_heads",
             "num_layers": "num_hidden_layers", "d_kv": "head_dim"}  # fmt: skip
    renamed = {other.get(key, key): value for key, value in t5().items()}
    assert hf.read(renamed).spec == hf.read(t5()).spec


def test_three_attentions_of_equal_length_cost_three_times_one():
    """Encoder, decoder and cross attention at S = 128, 3 layers each, 8 heads of 8 numbers."""
    spec = hf.read(t5()).spec
    weights = parameters(vary(spec, tied=True))
    lookups = weights.embedding
    small_ones = weights.by_part["norm"] + 2 * 32 * 8
    products = weights.total - small_ones - lookups + 128 * 64
    attention = 3 * (4 * 128**2 * 8 * 8 * 3)
    assert flops(spec, context=128).forward == 2 * 128 * products + attention


def test_the_cache_of_an_encoder_decoder_grows_with_the_answer_only():
    """Self attention: 2 × 8 × 8 numbers a token and layer; cross attention: as many a source token.

    At bf16, a batch of 2 and 100 tokens on both sides.
    """
    cache = kv_cache(hf.read(t5()).spec, 2, 100, "bf16")
    assert cache.bytes_per_token == 3 * 128 * 2
    assert cache.state_bytes == 3 * 128 * 100 * 2 * 2
    assert cache.bytes == 2 * cache.state_bytes


def test_the_cross_cache_of_whisper_is_that_of_thirty_seconds():
    """1500 positions of the encoder whatever was said: 2 × 384 numbers each in 4 layers."""
    spec = hf.read({"model_type": "whisper"}).spec
    for context in (1, 448):
        assert kv_cache(spec, 1, context, "fp16").state_bytes == 4 * 1500 * 2 * 384 * 2


def test_an_encoder_keeps_nothing():
    cache = kv_cache(hf.read({"model_type": "bert"}).spec, 4, 512)
    assert (cache.bytes, cache.bytes_per_token) == (0, 0)


def test_albert_runs_twelve_layers_and_holds_one():
    """Weights do not grow with depth, work does."""
    kind = hf.model_type("albert")
    one, two = (hf.read(small(kind, 0) | {"num_hidden_layers": n}).spec for n in (6, 12))
    assert parameters(one) == parameters(two)
    first, second = flops(one, context=8).forward, flops(two, context=8).forward
    rest = 2 * first - second
    assert 0 < rest < first


def test_modernbert_looks_around_itself_in_two_of_three_layers():
    spec = hf.read({"model_type": "modernbert"}).spec
    spans = [_attention(spec, name).span for name in spec.decoder.expand()]
    assert [isinstance(span, Full) for span in spans] == [i % 3 == 0 for i in range(22)]
    assert {span.window for span in spans if isinstance(span, Window)} == {128}
    first = spec.decoder.kind(spec.decoder.expand()[0])
    assert first.blocks[0].pre is None
    assert first.blocks[1].pre is not None


def test_deberta_v3_shares_the_projections_of_its_table():
    config = {"model_type": "deberta-v2", "position_buckets": 256, "share_att_key": True,
              **RELATIVE, "pos_att_type": "p2c|c2p"}  # fmt: skip
    position = _attention(hf.read(config).spec, "layer").position
    assert isinstance(position, Disentangled)
    assert position.shared
    assert position.n_relative == 512


def _attention(spec: Spec, name: str) -> GroupedAttention:
    module = spec.decoder.kind(name).blocks[0].branches[0].module
    assert isinstance(module, GroupedAttention)
    return module


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"model_type": "bert", "hidden_size": 100, "num_attention_heads": 12},
         "num_attention_heads 12 must divide hidden_size 100; use 10 or 20"),
        ({"model_type": "bert", "is_decoder": True}, "is_decoder True builds a model"),
        ({"model_type": "bert", "position_embedding_type": "relative_key"},
         "position_embedding_type relative_key builds a model"),
        ({"model_type": "bert", "type_vocab_size": -1}, "type_vocab_size -1 must lie between 0"),
        ({"model_type": "albert", "num_hidden_groups": 13}, "num_hidden_groups 13 builds"),
        ({"model_type": "albert", "inner_group_num": 2**30}, "inner_group_num 1073741824 builds"),
        ({"model_type": "electra", "embedding_size": None}, "embedding_size must not be null"),
        ({"model_type": "albert", "embedding_size": None}, "embedding_size must not be null"),
        ({"model_type": "deberta-v2", "pos_att_type": "c2p|p2p"}, "pos_att_type 'p2p'"),
        ({"model_type": "deberta-v2", "pos_att_type": 3}, "pos_att_type 3 must be"),
        ({"model_type": "deberta-v2", "position_buckets": -2}, "position_buckets -2 must lie"),
        ({"model_type": "deberta-v2", "conv_kernel_size": 3, "conv_groups": 2},
         "conv_groups 2 builds a model"),
        ({"model_type": "deberta-v2", "norm_rel_ebd": "layer_norm"}, "norm_rel_ebd"),
        ({"model_type": "modernbert", "layer_types": [LOCAL]}, "layer_types has 1 entries for 22"),
        ({"model_type": "modernbert", "layer_types": ["mamba"] * 22}, "is no kind of layer"),
        ({"model_type": "t5", "num_layers": 0}, "num_layers 0 must lie between 1"),
        ({"model_type": "t5", "d_kv": None}, "d_kv must not be null"),
        ({"model_type": "t5", "feed_forward_proj": 4}, "feed_forward_proj 4 must be text"),
        ({"model_type": "bart", "encoder_attention_heads": 7},
         "encoder_attention_heads 7 must divide hidden_size 1024"),
        ({"model_type": "bart", "decoder_ffn_dim": None}, "decoder_ffn_dim must not be null"),
        ({"model_type": "bart", "encoder_ffn_dim": None}, "encoder_ffn_dim must not be null"),
        ({"model_type": "marian", "decoder_vocab_size": 7}, "decoder_vocab_size 7 builds"),
        ({"model_type": "whisper", "max_source_positions": None},
         "max_source_positions must not be null"),
        ({"model_type": "whisper", "num_mel_bins": 0}, "num_mel_bins 0 must lie between 1"),
    ],
)  # fmt: skip
def test_what_no_model_has_is_refused_by_its_own_name(config, says):
    with pytest.raises(FieldError) as caught:
        hf.read(config)
    assert says in str(caught.value)


def test_a_class_that_cannot_be_untied_is_noted():
    notes = hf.read({"model_type": "bart", "tie_word_embeddings": False}).notes
    assert "the class of bart needs tie_word_embeddings, which does not hold" in notes


def test_a_decoder_is_not_written_as_an_encoder():
    spec = hf.read({"model_type": "gpt2"}).spec
    with pytest.raises(FieldError, match="cannot be written as model type bert"):
        hf.write(spec, like="bert")


@pytest.mark.parametrize("kind", encoders(), ids=lambda kind: kind.name)
def test_whatever_stands_in_a_key_the_answer_is_a_model_or_an_error_of_ours(kind):
    for key in kind.keys:
        for value in (None, 0, -1, 3, 2**70, 1.5, "x", "", [], [1], {}, True, False):
            config = {"model_type": kind.name, kind.spellings(key)[0]: value}
            with contextlib.suppress(FieldError):
                assert parameters(hf.read(config).spec).total > 0
