"""A spec as a Hugging Face config."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from scantling.errors import FieldError, ScantlingError
from scantling.formats.hf.assemble import ASSEMBLERS
from scantling.formats.hf.expression import evaluate
from scantling.formats.hf.layout import squeeze
from scantling.formats.hf.read import read
from scantling.formats.hf.types import ModelType, kinds, model_type, model_types, table
from scantling.spec import Spec

WRITE_ORDER = (
    "llama", "qwen2", "qwen3", "olmo2", "mistral", "smollm3", "granite", "qwen3_moe", "mixtral",
    "deepseek_v3", "deepseek_v2", "gpt_oss", "gemma3_text", "gpt2", "qwen3_next",
    "bert", "roberta", "t5", "bart", "pegasus",
)  # fmt: skip
"""Types tried first when a spec is written: the ones most runtimes know."""


def write(spec: Spec, like: str | None = None) -> dict[str, Any]:
    """Write a spec as a config of the first model type that says exactly the same.

    The proof is the way back: the config that is returned reads as a spec equal to the one given.

    Args:
        spec: The spec.
        like: The model type to use; by default the first that fits.

    Raises:
        ScantlingError: If no model type of the table (or not the one asked for) can say it.

    Example:
        >>> from scantling import catalog
        >>> write(catalog.model("qwen3-8b"))["model_type"]
        'qwen3'
    """
    spec = _squeezed(spec)
    described = {name: one.from_spec(spec) for name, one in ASSEMBLERS.items()}
    known = sorted(model_types(), key=lambda name: (model_type(name).remote, name))
    order = [like] if like else list(dict.fromkeys((*WRITE_ORDER, *known)))
    for name in sorted(order, key=lambda name: _is_other(model_type(name), described)):
        kind = model_type(name)
        fields = described[kind.assemble]
        if fields is None or kind.text is not None:
            continue
        config = write_as(kind, fields)
        try:
            if config is not None and read(config).spec == spec:
                return config
        except ScantlingError:
            continue
    what = f"model type {like}" if like else "any Hugging Face model type of the table"
    raise FieldError("spec", None, f"cannot be written as {what}")


def _squeezed(spec: Spec) -> Spec:
    """The spec with its order of layers in the words a reader uses; the layers are the same.

    Sixteen layers of five local to one global are few enough to be read as a list of runs.
    """
    layout = squeeze(spec.decoder.expand(), spec.n_layer)
    return replace(spec, decoder=replace(spec.decoder, layout=layout))


def _is_other(kind: ModelType, described: dict[str, Any]) -> bool:
    """Whether one of a type and a spec is made for experts and the other not: tried last."""
    sparse = kind.expressions.get("n_expert", "None") != "None"
    has = getattr(described[kind.assemble], "n_expert", None) is not None
    return sparse != has


def write_as(kind: ModelType, fields: Any) -> dict[str, Any] | None:
    """The config of one model type that neutral fields are written as; None where it has none."""
    neutral = msgspec.to_builtins(fields)
    config: dict[str, Any] = {"architectures": [kind.architecture], "model_type": kind.name}
    for key, default in kind.keys.items():
        value = default
        if key in kind.write:
            try:
                value = evaluate(kind.write[key], neutral)
            except (TypeError, ZeroDivisionError, LookupError):
                continue
        if value is None and key not in table()["nullable"]:
            value = default
        if value is None and default is None:
            continue
        if kinds()[key] in {"size", "depth"} and value == 0:
            return None
        if isinstance(value, float) and isinstance(default, int) and value.is_integer():
            value = int(value)  # the class is strict about 256.0
        elif isinstance(value, int) and isinstance(default, float):
            value = float(value)
        config[kind.spellings(key)[0]] = value
    keys = {key: config.get(kind.spellings(key)[0]) for key in kind.keys}
    try:
        if not evaluate(kind.requires, keys):
            return None
    except TypeError:  # it compares what this model does not have
        return None
    config |= _no_such_token(kind, neutral)
    config["torch_dtype"] = "bfloat16"
    return _nested_rope(config) if kind.nested_rope else config


def _no_such_token(kind: ModelType, neutral: dict[str, Any]) -> dict[str, None]:
    """The ids of special tokens that the class would add and a smaller vocabulary does not have."""
    vocabulary, usual = neutral.get("vocab_size"), table()["token_ids"].get(kind.name, {})
    if not isinstance(vocabulary, int):
        return {}
    return {key: None for key, token in usual.items() if vocabulary <= token}


def _nested_rope(config: dict[str, Any]) -> dict[str, Any]:
    """The rotary keys by kind of layer, for classes that read them in no other place."""
    full = dict(config.pop("rope_scaling", None) or {"rope_type": "default"})
    for key in ("rope_theta", "partial_rotary_factor"):
        full[key] = config.pop(key)
    local: dict[str, Any] = {"rope_type": "default"}
    if "swa_rope_theta" in config:  # windowed layers turn as much of a head as the others
        local["rope_theta"] = config.pop("swa_rope_theta")
        local["partial_rotary_factor"] = full["partial_rotary_factor"]
    else:
        local["rope_theta"] = config.pop("rope_local_base_freq", full["rope_theta"])
    config["rope_parameters"] = {"full_attention": full, "sliding_attention": local}
    return config
