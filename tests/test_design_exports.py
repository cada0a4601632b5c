"""Every shape a front offers can be written for every tool that knows its blocks, and is read back.

The tools themselves judge where they install: transformers builds the class on the meta device,
the gguf package knows the keys; the rest is parsed as the tool would parse it.
"""

import contextlib
import functools
import itertools
import shlex

import pytest

from scantling.errors import FieldError
from scantling.formats.registry import MODULES, export
from scantling.search import Range, design
from scantling.spec import fields

SIZES = (1e8, 1e9, 7e9)
FAMILIES = {
    "square": {"bounded": {"attention_width_ratio": Range(1, 1)}},
    "grouped": {},
    "tied": {"tied": True},
    "qk-norm": {"qk_norm": True},
    "latent": {"mixer": "mla"},
    "hybrid": {"mixer": "hybrid"},
    "local-global": {"layout": "5:1", "window": 1024},
    "experts": {"moe": True},
}  # fmt: skip
BLOCKS = {"latent": "kv_rank", "hybrid": "n_value_head", "local-global": "window",
          "experts": "n_expert"}  # fmt: skip
"""A dimension that only a shape of the family has."""
NEEDS_SQUARE = {"torchtitan", "nanotron"}
"""Targets that have no word for a head width: D / H is theirs."""


def must_say(family, target):
    """Whether a target has a word for every block of a family."""
    return family == "square" or (family in {"grouped", "tied"} and target not in NEEDS_SQUARE)


@functools.cache
def found(size, family):
    """The lowest loss, the choice and the fastest of a front; none where it has no such blocks."""
    active = {"active": size / 5} if family == "experts" else {}
    front = design(params=size, baselines=(), **active, **FAMILIES[family])
    shapes = [front.candidates[0], front.chosen, front.candidates[-1]] if front.feasible else []
    return [c for c in shapes if BLOCKS.get(family) in {None, *fields(c.spec)}]


every_family = pytest.mark.parametrize("family", FAMILIES)
every_size = pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s:.0e}")


def written(family, size, target):
    """A sample in the words of a target; a family it has no word for is refused in one line."""
    shapes = found(size, family)
    if not shapes:
        pytest.skip(f"the space has no {family} shapes of {size:.0e} parameters")
    for c in shapes:
        if must_say(family, target):
            yield c, export(c.spec, target)
            continue
        refused = ""
        try:
            yield c, export(c.spec, target)
        except FieldError as error:
            refused = str(error)
        assert "\n" not in refused


@every_size
@every_family
@pytest.mark.parametrize("target", MODULES)
def test_a_shape_of_a_front_is_written_or_refused_in_one_line(size, family, target):
    for _, said in written(family, size, target):
        assert said.text.endswith("\n")


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@every_size
@every_family
def test_the_real_class_of_a_written_config_has_the_parameters_of_the_shape(size, family):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    for c, said in written(family, size, "hf"):
        values = dict(said.values)
        config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
        with torch.device("meta"), contextlib.suppress(FutureWarning):
            model = transformers.AutoModelForCausalLM.from_config(config)
        assert sum(p.numel() for p in model.parameters()) == c.counted.total, c.name


@every_size
@every_family
def test_written_gguf_keys_are_those_of_its_package(size, family):
    gguf = pytest.importorskip("gguf")
    classes = [k for k in vars(gguf.Keys).values() if isinstance(k, type)]
    known = {v for k in classes for v in vars(k).values() if isinstance(v, str)}
    for c, said in written(family, size, "gguf"):
        arch = said.values["general.architecture"]
        assert arch in gguf.MODEL_ARCH_NAMES.values()
        assert {k.replace(f"{arch}.", "{arch}.", 1) for k in said.values} <= known
        assert said.values[f"{arch}.block_count"] == c.spec.n_layer
        assert said.values[f"{arch}.embedding_length"] == c.spec.d_model


@every_size
@every_family
def test_written_arguments_of_megatron_parse_to_the_dimensions_of_the_shape(size, family):
    for c, said in written(family, size, "megatron"):
        words = shlex.split(said.text.replace("\\\n", " "))
        pairs = dict(itertools.pairwise(words))
        assert int(pairs["--num-layers"]) == c.spec.n_layer
        assert int(pairs["--hidden-size"]) == c.spec.d_model
        if "n_head" in fields(c.spec):
            assert int(pairs["--num-attention-heads"]) == c.spec.n_head


@every_size
@every_family
@pytest.mark.parametrize(
    ("target", "depth", "width"),
    [("litgpt", ("n_layer",), ("n_embd",)),
     ("nanotron", ("model", "model_config", "num_hidden_layers"),
      ("model", "model_config", "hidden_size"))],
)  # fmt: skip
def test_written_yaml_parses_to_the_dimensions_of_the_shape(size, family, target, depth, width):
    yaml = pytest.importorskip("yaml")
    for c, said in written(family, size, target):
        read = yaml.safe_load(said.text)
        assert functools.reduce(lambda d, k: d[k], depth, read) == c.spec.n_layer
        assert functools.reduce(lambda d, k: d[k], width, read) == c.spec.d_model


@every_size
@every_family
def test_a_written_torchtitan_builder_compiles(size, family):
    for c, said in written(family, size, "torchtitan"):
        compile(said.text, c.name, "exec")
        assert f"n_layers={c.spec.n_layer}" in said.text


@every_size
@every_family
def test_written_vllm_flags_shard_the_heads(size, family):
    for c, said in written(family, size, "vllm"):
        words = shlex.split(said.text.replace("\\\n", " "))
        assert words[words.index("--tensor-parallel-size") + 1] == "1"
        if "n_head" in fields(c.spec):
            sizes = said.values["tensor-parallel-size"]
            assert all(c.spec.n_head % n == 0 for n in sizes)
