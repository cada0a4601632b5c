"""Hugging Face ``config.json``, both ways; the facts are data in ``data/hf_types.toml``."""

from __future__ import annotations

import difflib
import functools
from typing import Any

import msgspec
from msgspec import Struct

from scantling.arith import LARGEST
from scantling.errors import FieldError, ScantlingError, UnknownNameError, shorten
from scantling.formats.hf.expression import evaluate, parse
from scantling.formats.hf.fields import Fields, from_spec, to_spec
from scantling.sources import read_data
from scantling.spec import Spec, check

LARGEST_DEPTH = 100_000


class ModelType(Struct, frozen=True):
    """One model type of the table."""

    name: str
    text: str | None = None
    """The model type of the text part, for a multimodal type."""
    architecture: str = ""
    keys: dict[str, Any] = {}
    spelled: dict[str, list[str]] = {}
    expressions: dict[str, str] = {}
    write: dict[str, str] = {}
    requires: str = "True"
    """What the class of this type refuses to be without, beyond what a spec needs."""

    def spellings(self, key: str) -> list[str]:
        """How a key may be written, the usual way first."""
        spelled = list(self.spelled.get(key, []))
        return spelled if key in spelled else [*spelled, key]


class Imported(Struct, frozen=True):
    """A spec read from a config, with what was noticed on the way."""

    spec: Spec
    model_type: str
    notes: tuple[str, ...] = ()
    n_mtp: int = 0
    """Multi-token-prediction modules the config names; they are outside every count."""


@functools.cache
def kinds() -> dict[str, str]:
    """What each config key holds."""
    kinds: dict[str, str] = read_data("hf_types.toml")["kinds"]
    return kinds


@functools.cache
def model_types() -> dict[str, ModelType]:
    """Every model type of the table by name."""
    table = read_data("hf_types.toml")
    found = {}
    for name, entry in table["type"].items():
        own = dict(entry)
        keys = {k: None if v == "null" else v for k, v in own.pop("keys", {}).items()}
        fixed = {
            "text": own.pop("text", None), "architecture": own.pop("class", ""),
            "spelled": own.pop("spelled", {}), "write": {**table["write"], **own.pop("write", {})},
            "requires": own.pop("requires", "True"),
        }  # fmt: skip
        unknown = set(own) - set(table["decoder"])
        assert not unknown, f"{name}: {unknown} are no fields of [decoder]"
        found[name] = ModelType(name, keys=keys, expressions={**table["decoder"], **own}, **fixed)
    return found


def model_type(name: object) -> ModelType:
    """One model type by name; an unknown one is an error that lists the nearest."""
    if not isinstance(name, str) or name not in model_types():
        raise UnknownNameError("model_type", str(name), model_types())
    return model_types()[name]


def read(config: dict[str, Any]) -> Imported:
    """Read a config.

    Args:
        config: The parsed ``config.json``.

    Returns:
        The spec, its model type, and notes: class defaults that were filled in, keys that have
        no effect on this type, numbers written as 4096.0.

    Raises:
        FieldError: Naming the field, the value and what would be right.

    Example:
        >>> config = {"model_type": "llama", "num_key_value_heads": 8, "intermediate_size": 14336}
        >>> read(config).spec.d_ff
        14336
    """
    config, kind = _text_part(config)
    notes: list[str] = []
    config = _classic_rope(config)
    values = {}
    missing = []
    for key, default in kind.keys.items():
        found = [s for s in kind.spellings(key) if s in config]
        if not found:
            values[key] = default
            missing.append((key, default))
            continue
        values[key] = _value(found[0], kinds()[key], config[found[0]], notes)
        for other in found[1:]:
            if config[other] != config[found[0]]:
                text = f"{other} {shorten(config[other])} is not read: {found[0]} is"
                notes.append(f"{text} {shorten(config[found[0]])}")
    for key, default in missing:
        if kinds()[key] in {"size", "depth"} and default is not None and key in SHAPE_KEYS:
            notes.append(f"assumed: {key} is not given, the class default is {default}")
    notes += _without_effect(config, kind)
    fields = _evaluate(kind, values, {k for k in kind.keys if config.get(k, 0) is None})
    _check_lists(fields, values, notes)
    spec = _framed(kind, fields)
    if not evaluate(kind.requires, values):
        notes.append(f"the class of {kind.name} itself refuses this: it needs {kind.requires}")
    return Imported(spec, kind.name, tuple(notes), fields.n_mtp)


SHAPE_KEYS = {
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "vocab_size", "moe_intermediate_size", "num_local_experts",
    "q_lora_rank", "kv_lora_rank",
}  # fmt: skip
"""Keys so often present that a default filled in for one is worth a note."""


def _text_part(config: dict[str, Any]) -> tuple[dict[str, Any], ModelType]:
    """The text part of a multimodal config, with its model type."""
    name = config.get("model_type")
    if name is None:
        name = _type_of_architecture(config.get("architectures"))
    kind = model_type(name)
    if kind.text is None:
        return config, kind
    inner = config.get("text_config")
    inner = {} if inner is None else inner
    if not isinstance(inner, dict):
        raise FieldError("text_config", inner, "must be an object")
    inner = {"model_type": kind.text, **inner}
    if "tie_word_embeddings" in config:
        inner.setdefault("tie_word_embeddings", config["tie_word_embeddings"])
    return inner, model_type(inner["model_type"])


def _type_of_architecture(architectures: object) -> str:
    """The model type whose class is named, for a config without ``model_type``."""
    if isinstance(architectures, list):
        for name, kind in model_types().items():
            if kind.architecture and kind.architecture in architectures:
                return name
    raise FieldError(
        "model_type", None, "is missing", f"write one of {', '.join(sorted(model_types()))}"
    )


def _classic_rope(config: dict[str, Any]) -> dict[str, Any]:
    """The rotary keys in one spelling: ``rope_theta``, ``rope_scaling``, ``rope_local_base_freq``.

    transformers 5 nests them in ``rope_parameters``, by layer type in Gemma 3.
    """
    nested = config.get("rope_parameters")
    if not isinstance(nested, dict):
        return config
    flat = {k: v for k, v in config.items() if k != "rope_parameters"}
    if isinstance(nested.get("full_attention"), dict):
        local = nested.get("sliding_attention") or {}
        if "rope_theta" in local:
            flat.setdefault("rope_local_base_freq", local["rope_theta"])
        nested = nested["full_attention"]
    nested = dict(nested)
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in nested:
            flat.setdefault(key, nested.pop(key))
    if nested.get("rope_type", "default") != "default":
        flat.setdefault("rope_scaling", nested)
    return flat


def _value(key: str, kind: str, value: object, notes: list[str]) -> Any:
    """One config value, checked against what its key holds."""
    if value is None:
        return None
    if kind in {"size", "count", "depth"}:
        return _integer(key, kind, value, notes)
    if kind == "flag":
        if not isinstance(value, bool):
            raise FieldError(key, _shown(value), "must be true or false")
        return value
    if kind == "real":
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise FieldError(key, _shown(value), "must be a number")
        if not -1e30 < value < 1e30:
            raise FieldError(key, value, "is beyond every model")
        return float(value)
    expected = {"text": str, "object": dict}.get(kind, list)
    if not isinstance(value, expected):
        name = {"text": "text", "object": "an object"}.get(kind, "a list over the layers")
        raise FieldError(key, _shown(value), f"must be {name}")
    if kind in {"flags", "layers"}:
        return [_integer(key, "count", int(v) if isinstance(v, bool) else v, notes) for v in value]
    if kind == "names" and not all(isinstance(v, str) for v in value):
        raise FieldError(key, _shown(value), "must be a list of names")
    return value


def _integer(key: str, kind: str, value: object, notes: list[str]) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FieldError(key, _shown(value), "must be a whole number")
    low = 0 if kind == "count" else 1
    high = LARGEST_DEPTH if kind == "depth" else LARGEST
    if not low <= value <= high:
        raise FieldError(key, value, f"must lie between {low} and {high:,}")
    if value != int(value):
        raise FieldError(key, value, "must be a whole number")
    if isinstance(value, float):
        notes.append(f"{key} is written as {value}, read as {int(value)}")
    return int(value)


def _shown(value: object) -> str:
    return f"'{value}' (text)" if isinstance(value, str) else f"{shorten(value)}"


def _without_effect(config: dict[str, Any], kind: ModelType) -> list[str]:
    """Keys that shape other model types and that this one does not read."""
    read_keys = {s for key in kind.keys for s in kind.spellings(key)}
    shaping = set(kinds()) | {
        s for other in model_types().values() for names in other.spelled.values() for s in names
    }
    notes = []
    for key, value in config.items():
        if key in read_keys or value in (None, False):
            continue
        near = difflib.get_close_matches(key, read_keys, 1, cutoff=0.88)
        if key in shaping:
            notes.append(f"{key} has no effect on the shape of model type {kind.name}")
        elif near and near[0] not in config:
            notes.append(f"{key} is not read; did you mean {near[0]}?")
    return notes


def _evaluate(kind: ModelType, values: dict[str, Any], null: set[str]) -> Fields:
    found = {}
    for field, text in kind.expressions.items():
        try:
            found[field] = evaluate(text, values)
        except (TypeError, IndexError, ZeroDivisionError) as error:
            names = sorted(parse(text)[1])
            none = [k for k in names if values.get(k) is None]
            wrong = [k for k in names if k in null] or none or names
            what = "must not be null" if values.get(wrong[0]) is None else f"is unusable: {error}"
            raise FieldError(kind.spellings(wrong[0])[0], None, what) from None
    try:
        return msgspec.convert(found, Fields)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$.")
        field = path.rstrip("`").split("[")[0]
        names = [n for n in sorted(parse(kind.expressions[field])[1]) if n in kind.keys]
        key = kind.spellings(names[0])[0] if names else field
        value = values.get(names[0]) if names else found[field]
        rule = "must not be null" if value is None else f"is wrong for {field}: {text}"
        raise FieldError(key, value, rule) from None


def _check_lists(f: Fields, values: dict[str, Any], notes: list[str]) -> None:
    """Lists over the layers: too short is an error, too long is cut with a note."""
    for field in ("windowed", "roped", "sparse"):
        flags = getattr(f, field)
        if isinstance(flags, list) and len(flags) != f.n_layer:
            named = ("layer_types", "no_rope_layers", "moe_layers")
            same = [k for k in named if values.get(k) and len(values[k]) == len(flags)]
            key = same[0] if same else field
            if len(flags) < f.n_layer:
                what = f"has {len(flags)} entries for {f.n_layer} layers"
                raise FieldError(key, None, what, f"write {f.n_layer}")
            notes.append(f"{key} has {len(flags)} entries for {f.n_layer} layers; the rest is cut")
            setattr(f, field, flags[: f.n_layer])


def _framed(kind: ModelType, fields: Fields) -> Spec:
    """Assemble and check; an error in a spec's field is told in the config's own key."""
    needed = {"d_ff": fields.n_expert is None or fields.sparse is not True}
    if fields.n_expert is not None:
        needed |= {"top_k": True, "d_expert": True}
    if fields.kv_rank is not None:
        needed |= {"d_nope": True, "d_rope": True, "d_value": True}
    if isinstance(fields.sparse, list) and fields.n_expert is not None:
        needed["d_ff"] = not all(fields.sparse)
    for field, wanted in needed.items():
        if wanted and getattr(fields, field) is None:
            names = [n for n in sorted(parse(kind.expressions[field])[1]) if n in kind.keys]
            raise FieldError(kind.spellings(names[0])[0] if names else field, None,
                             "must not be null")  # fmt: skip
    try:
        return check(to_spec(fields))
    except FieldError as error:
        field = error.path.rsplit(".", 1)[-1]
        key = next((k for k, text in kind.write.items() if text == field and k in kind.keys), None)
        if key is None:
            raise
        own = {text: kind.spellings(k)[0] for k, text in kind.write.items() if k in kind.keys}
        rule = " ".join(own.get(word, word) for word in error.rule.split())
        raise FieldError(kind.spellings(key)[0], error.value, rule, error.hint) from None


WRITE_ORDER = (
    "llama", "qwen2", "qwen3", "olmo2", "mistral", "qwen3_moe", "mixtral", "deepseek_v3",
    "deepseek_v2", "gpt_oss", "gemma3_text", "gpt2",
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
    fields = from_spec(spec)
    order = [like] if like else list(dict.fromkeys((*WRITE_ORDER, *sorted(model_types()))))
    for name in order:
        kind = model_type(name)
        if fields is None or kind.text is not None:
            continue
        config = _write_as(kind, fields)
        try:
            if config is not None and read(config).spec == spec:
                return config
        except ScantlingError:
            continue
    what = f"model type {like}" if like else "any Hugging Face model type of the table"
    raise FieldError("spec", None, f"cannot be written as {what}")


def _write_as(kind: ModelType, fields: Fields) -> dict[str, Any] | None:
    neutral = msgspec.structs.asdict(fields)
    config: dict[str, Any] = {"architectures": [kind.architecture], "model_type": kind.name}
    for key, default in kind.keys.items():
        value = default
        if key in kind.write:
            try:
                value = evaluate(kind.write[key], neutral)
            except (TypeError, ZeroDivisionError):
                continue
        if value is None and default is None:
            continue
        if kinds()[key] in {"size", "depth"} and value == 0:
            return None
        if kinds()[key] == "real" and value is not None and float(value).is_integer():
            value = float(value)
        config[kind.spellings(key)[0]] = value
    keys = {key: config.get(kind.spellings(key)[0]) for key in kind.keys}
    if not evaluate(kind.requires, keys):
        return None
    config["torch_dtype"] = "bfloat16"
    return config
