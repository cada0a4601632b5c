"""Configs nobody has seen, broken ones, and other ways to write the same one.

The configs are those of the catalogue and, where that folder is present, the real files beside the
project. ``SCANTLING_MUTATIONS`` sets how many broken ones are tried (20,000 for a full run; a tenth
of them keep the meaning).
"""

from __future__ import annotations

import copy
import json
import os
import random
import resource
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from scantling import analyze, catalog
from scantling.costs.cache import kv_cache
from scantling.costs.count import parameters
from scantling.errors import FieldError, ScantlingError, UnknownNameError
from scantling.formats import hf
from scantling.formats.hf.unseen import harmless

CONFIGS = Path(__file__).parents[2] / "shared" / "data" / "configs"
MUTATIONS = int(os.environ.get("SCANTLING_MUTATIONS", "2000"))


def configs() -> dict[str, dict[str, Any]]:
    """Every config at hand by name."""
    found = {name: entry.config for name, entry in catalog.named().items()}
    for path in sorted(CONFIGS.glob("*.json")):
        found[path.stem] = json.loads(path.read_text("utf-8"))
    return found


def hidden(config: dict[str, Any]) -> dict[str, Any]:
    """A config without the name of its type and of its class."""
    config = copy.deepcopy(config)
    for part in (config, text_part(config)):
        part["model_type"] = "nobody_has_seen"
        part.pop("architectures", None)
    return config


def text_part(config: dict[str, Any]) -> dict[str, Any]:
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


# ---------------------------------------------------------------- a type in no table

SIZES = {
    "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 100,
    "intermediate_size": 96, "hidden_act": "silu", "rms_norm_eps": 1e-6,
}  # fmt: skip
DENSE = {**SIZES, "num_key_value_heads": 2, "tie_word_embeddings": False}

KNOWN_PARTS = {
    "plain": ({}, {"model_type": "llama"}),
    "head_dim": ({"head_dim": 32}, {"model_type": "llama"}),
    "tied": ({"tie_word_embeddings": True}, {"model_type": "llama"}),
    "bias": ({"attention_bias": True}, {"model_type": "llama"}),
    "qk norm": ({"use_qk_norm": True, "head_dim": 16}, {"model_type": "qwen3"}),
    "experts": (
        {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
         "decoder_sparse_step": 1, "mlp_only_layers": [], "use_qk_norm": True, "head_dim": 16},
        {"model_type": "qwen3_moe"},
    ),
}  # fmt: skip
"""What is added to a dense config, and the type that builds the same."""


@pytest.mark.parametrize("part", KNOWN_PARTS)
def test_a_type_nobody_has_seen_is_built_from_known_parts(part):
    added, like = KNOWN_PARTS[part]
    config = {**DENSE, **added}
    found = hf.read({**config, "model_type": "nobody_has_seen"})
    assert found.model_type == "nobody_has_seen"
    assert any(note.startswith("assumed: model type nobody_has_seen") for note in found.notes)
    own = {k: v for k, v in config.items() if k != "use_qk_norm"}
    assert parameters(found.spec) == parameters(hf.read({**own, **like}).spec)


@pytest.mark.parametrize("name", sorted(catalog.named()))
def test_a_hidden_type_is_exact_or_refused_or_assumed(name):
    """What is wrong says that it is assumed, and is not far off."""
    config = catalog.named()[name].config
    own = parameters(catalog.model(name)).total
    try:
        found = hf.read(hidden(config))
    except FieldError as error:
        refused = ("nobody_has_seen", "null", "layer_types 'linear_attention'")
        assert any(words in str(error) for words in refused)  # noqa: PT017
        return
    assert any(note.startswith("assumed: ") for note in found.notes)
    assert parameters(found.spec).total == pytest.approx(own, rel=0.01)


@pytest.mark.parametrize("value", [3, True, ["a"], {"a": 1}, "word"])
def test_a_key_that_is_not_understood_is_named(value):
    """Unless one says to go on."""
    config = {**DENSE, "model_type": "nobody_has_seen", "altup_streams": value}
    with pytest.raises(FieldError, match="altup_streams"):
        hf.read(config)
    assumed = analyze(config, assume=True)
    assert any(n.startswith("assumed: altup_streams") for n in assumed.notes)
    assert assumed.params == parameters(hf.read({**DENSE, "model_type": "llama"}).spec)


@pytest.mark.parametrize("value", [None, False, 0, [], {}])
def test_a_part_that_is_switched_off_is_none(value):
    hf.read({**DENSE, "model_type": "nobody_has_seen", "altup_streams": value})


def test_a_negation_that_is_false_is_a_part():
    with pytest.raises(FieldError, match="no_bias"):
        hf.read({**DENSE, "model_type": "nobody_has_seen", "no_bias": False})


def test_a_size_is_never_borrowed():
    config = {**DENSE, "model_type": "nobody_has_seen"}
    del config["intermediate_size"]
    with pytest.raises(FieldError, match="intermediate_size must not be null"):
        hf.read(config)


def test_without_sizes_a_name_is_a_slip_of_the_pen():
    with pytest.raises(UnknownNameError, match="did you mean llama"):
        hf.read({"model_type": "lama", "hidden_size": 64})


def test_the_class_of_a_known_type_says_what_it_is():
    config = {**SIZES, "num_key_value_heads": 2, "architectures": ["Olmo2ForCausalLM"]}
    found = hf.read({**config, "model_type": "nobody_has_seen"})
    assert parameters(found.spec) == parameters(hf.read({**config, "model_type": "olmo2"}).spec)


def test_what_no_type_reads_is_listed_as_harmless_once():
    assert harmless("attention_dropout")
    assert not harmless("hidden_size")


# ---------------------------------------------------------------- broken configs

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 0.5, 1e30, 10**400, 2**40, 10**6, "", "a", "12", "auto", [],
    [1], [None], ["a"], [[1, 2]], [0] * 100, {}, {"a": 1}, {"rope_type": "yarn", "factor": "x"},
    float("nan"), float("inf"),
)  # fmt: skip


def places(config: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The path of every key, in objects as well."""
    found = []
    for key, value in config.items():
        found.append((*path, key))
        if isinstance(value, dict):
            found += places(value, (*path, key))
    return found


def broken(config: dict[str, Any], random_: random.Random) -> dict[str, Any]:
    """A config with one to three keys that somebody spoilt."""
    config = copy.deepcopy(config)
    for _ in range(random_.randint(1, 3)):
        keys = places(config)
        if not keys:
            break
        *path, key = random_.choice(keys)
        inside = config
        for name in path:
            inside = inside[name]
        value = inside[key]
        way = random_.choice(("drop", "value", "rename", "negate", "nest", "huge", "text"))
        if way in {"drop", "rename", "nest"}:
            del inside[key]
        if way == "rename":
            new = key.replace("num_", "n_") if random_.random() < 0.5 else f"{key}x"
            inside[new] = value
        elif way == "nest":
            place = random_.choice(("text_config", "rope_parameters", "model", key))
            inside[place] = {key: value}
        elif way == "value":
            inside[key] = copy.deepcopy(random_.choice(VALUES))
        elif way == "text":
            inside[key] = str(value)
        elif way in {"negate", "huge"} and isinstance(value, int | float):
            inside[key] = -value if way == "negate" else value * 10 ** random_.randint(3, 12)
        elif way in {"negate", "huge"} and isinstance(value, list):
            inside[key] = value[1:] if way == "negate" else value * 50
        elif way in {"negate", "huge"}:
            inside[key] = {key: value}
    return config


def test_a_broken_config_is_a_count_or_one_line():
    """No other exception, never over a second, never much memory."""
    known = configs()
    names = sorted(known)
    random_ = random.Random(20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    slowest, counted = 0.0, 0
    for number in range(MUTATIONS):
        whole = known[random_.choice(names)]
        config = broken(hidden(whole) if number % 3 == 0 else whole, random_)
        start = time.process_time()
        try:
            parameters(hf.read(config, assume=number % 4 == 0).spec)
            counted += 1
        except ScantlingError as error:
            assert len(str(error).splitlines()) == 1, config  # noqa: PT017 - both are right
        except Exception as error:
            error.add_note(json.dumps(config)[:3000])
            raise
        taken = time.process_time() - start
        assert taken < 1, (taken, json.dumps(config)[:3000])
        slowest = max(slowest, taken)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    told = f"{counted} of {MUTATIONS} counted, slowest {slowest:.3f} s, {grown / 1024:.0f} MB"
    sys.stdout.write(f"{told}\n")
    assert grown < 500 * 1024, told


# ---------------------------------------------------------------- other ways to write the same


def respelled(config: dict[str, Any], random_: random.Random) -> dict[str, Any]:
    """Another spelling of a key that its type knows."""
    part = text_part(config)
    kind = hf.model_type(part.get("model_type", config["model_type"]))
    kind = hf.model_type(kind.text) if kind.text else kind
    ways = [
        (given, other)
        for key in kind.keys
        for given in kind.spellings(key) if given in part
        for other in kind.spellings(key) if other not in part
    ]  # fmt: skip
    if ways:
        given, other = random_.choice(ways)
        part[other] = part.pop(given)
    return config


def with_defaults(config: dict[str, Any], random_: random.Random) -> dict[str, Any]:
    """A default of the class written out."""
    part = text_part(config)
    kind = hf.model_type(part.get("model_type", config["model_type"]))
    kind = hf.model_type(kind.text) if kind.text else kind
    missing = [k for k in kind.keys if not any(s in part for s in kind.spellings(k))]
    if "tie_word_embeddings" in config and "tie_word_embeddings" in missing:
        missing.remove("tie_word_embeddings")
    if "rope_parameters" in part:
        missing = [k for k in missing if "rope" not in k and "rotary" not in k]
    for key in random_.sample(missing, min(3, len(missing))):
        part[kind.spellings(key)[0]] = kind.keys[key]
    return config


def nested(config: dict[str, Any], _: random.Random) -> dict[str, Any]:
    """The config as the text part of a multimodal one."""
    if "text_config" in config:
        return config
    return {"model_type": "some_vision_model", "vision_config": {"hidden_size": 9},
            "text_config": config}  # fmt: skip


def reordered(config: dict[str, Any], random_: random.Random) -> dict[str, Any]:
    """The same keys in another order."""
    keys = list(config)
    random_.shuffle(keys)
    return {key: config[key] for key in keys}


def dtype_renamed(config: dict[str, Any], _: random.Random) -> dict[str, Any]:
    """``torch_dtype`` as ``dtype``, and the other way."""
    for old, new in (("torch_dtype", "dtype"), ("dtype", "torch_dtype")):
        if old in config:
            config[new] = config.pop(old)
            return config
    return {**config, "dtype": "bfloat16"}


def rope_renamed(config: dict[str, Any], _: random.Random) -> dict[str, Any]:
    """RoPE settings as transformers 5 nests them, and as they were before."""
    part = text_part(config)
    rope = part.get("rope_parameters")
    if isinstance(rope, dict):
        if "rope_theta" not in rope:
            return config
        part["rope_theta"] = rope.pop("rope_theta")
        if "partial_rotary_factor" in rope:
            part["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
        del part["rope_parameters"]
        if rope.get("rope_type", "default") != "default":
            part["rope_scaling"] = rope
        return config
    if "rope_theta" not in part or "rope_local_base_freq" in part:
        return config
    scaling = part.pop("rope_scaling", None)
    part["rope_parameters"] = {
        "rope_type": "default", **(scaling or {}), "rope_theta": part.pop("rope_theta"),
    }  # fmt: skip
    if scaling and "rope_type" not in scaling:
        part["rope_parameters"]["rope_type"] = scaling["type"]
    return config


SAME = (respelled, with_defaults, nested, reordered, dtype_renamed, rope_renamed)


def test_another_way_to_write_a_config_counts_the_same():
    known = {n: c for n, c in configs().items() if c["model_type"] in hf.model_types()}
    names = sorted(known)
    random_ = random.Random(21)
    for _ in range(MUTATIONS // 10):
        name = random_.choice(names)
        ways = random_.sample(SAME, random_.randint(1, 3))
        ways.sort(key=lambda way: way is nested)
        config = copy.deepcopy(known[name])
        for way in ways:
            config = way(config, random_)
        told = (name, [way.__name__ for way in ways], config)
        try:
            spec = hf.read(config).spec
        except ScantlingError as error:
            pytest.fail(f"{error}: {told}")
        as_it_was = hf.read(known[name]).spec
        assert parameters(spec) == parameters(as_it_was), told
        assert kv_cache(spec) == kv_cache(as_it_was), told
