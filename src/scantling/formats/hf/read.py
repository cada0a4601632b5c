"""A Hugging Face config into a spec."""

from __future__ import annotations

import difflib
import functools
import math
import re
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from scantling.arith import LARGEST
from scantling.errors import FieldError, UnknownNameError, nearest, shorten
from scantling.formats.hf.assemble import ASSEMBLERS
from scantling.formats.hf.expression import evaluate, parse
from scantling.formats.hf.types import ModelType, kinds, model_type, model_types, words_of
from scantling.formats.hf.unseen import doubts, guess
from scantling.ops import tensors
from scantling.spec import Spec, check
from scantling.spec.relations import swapped

LARGEST_DEPTH = 10_000

LARGEST_DOUBT = 0.01
"""Types that fit a config equally well may differ by so much of its parameters."""


class Imported(Struct, frozen=True):
    """A spec read from a config, with what was noticed on the way."""

    spec: Spec
    model_type: str
    notes: tuple[str, ...] = ()
    n_mtp: int = 0
    """Multi-token-prediction modules the config names; they are outside every count."""


def read(config: dict[str, Any], *, assume: bool = False) -> Imported:
    """Read a config.

    Args:
        config: The parsed ``config.json``.
        assume: Where its model type is in no table: go on past keys that are not understood.

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
    config, name = text_part(config)
    config = one_original(classic_rope(config))
    if name in model_types():
        return _read(config, model_type(name), [])
    try:
        return _guessed(config, name, assume=assume)
    except FieldError as error:
        raise _with_bound(error, config) from None


def _guessed(config: dict[str, Any], name: str, *, assume: bool) -> Imported:
    """Read a config of a type in no table as what it resembles most.

    What fits as well is read, too: a difference is told, and a large one is no answer.
    """
    found: list[tuple[Imported, ModelType]] = []
    refused = None
    for kind, notes, close in guess(config, name, assume=assume):
        if found and not close:
            break
        try:
            found.append((_read(config, kind, notes), kind))
        except FieldError as error:
            refused = refused or error
    if not found:
        assert refused is not None, "there is always one to try"
        raise refused
    best, kind = found[0]
    others = {f"whether it is built like {other.model_type}": _total(other.spec)
              for other, _ in found[1:]}  # fmt: skip
    others |= {
        what: _total(_read(config, changed, []).spec)
        for what, changed in doubts(config, kind).items()
    }
    total = _total(best.spec)
    notes = list(best.notes)
    for what, counted in others.items():
        if abs(counted - total) > LARGEST_DOUBT * total and not assume:
            both = f"{total:,} parameters or {counted:,}"
            rule = f"is not known, and no key says {what}: {both}"
            raise FieldError("model_type", name, rule, "--assume takes the first")
        if counted != total:
            notes.append(f"assumed: {total:,} parameters; no key says {what}: {counted:,} else")
    return replace(best, model_type=name, notes=tuple(notes))


def _total(spec: Spec) -> int:
    return sum(int(t.size()) for t in tensors(spec) if t.alias is None and not t.buffer)


def _read(config: dict[str, Any], kind: ModelType, notes: list[str]) -> Imported:
    """Read the text part of a config as one model type."""
    values = {}
    missing = []
    for key, default in kind.keys.items():
        found = [s for s in kind.spellings(key) if s in config]
        if not found:
            values[key] = default
            missing.append((key, default))
            continue
        values[key] = value_of(found[0], kinds()[key], config[found[0]], notes)
        if kinds()[key] in {"names", "words", "pattern"} and values[key] is not None:
            _check_words(found[0], values[key], words_of(kind, key))
        for other in found[1:]:
            if config[other] != config[found[0]]:
                text = f"{other} {shorten(config[other])} is not read: {found[0]} is"
                notes.append(f"{text} {shorten(config[found[0]])}")
    for key, default in missing:
        if kinds()[key] in {"size", "depth"} and default is not None and key in SHAPE_KEYS:
            notes.append(f"assumed: {key} is not given, the class default is {default}")
    notes += _without_effect(config, kind)
    if not _supported(kind, values):
        named = [k for k in kind.keys if k in parse(kind.supports)[1]]
        key = next((k for k in named if values[k] != kind.keys[k]), named[0])
        given = values[key]
        raise FieldError(kind.spellings(key)[0], given, "builds a model this reader cannot count")
    null = {key for key, value in values.items() if value is None} - {key for key, _ in missing}
    try:
        fields = _evaluate(kind, values, null)
    except FieldError as error:
        raise _with_slip(error, kind, values, {key for key, _ in missing}) from None
    _check_lists(fields, values, notes)
    spec = _framed(kind, fields)
    if not evaluate(kind.requires, values):
        notes.append(f"the class of {kind.name} needs {kind.requires}, which does not hold")
    return Imported(spec, kind.name, tuple(notes), fields.n_mtp)


SHAPE_KEYS = {
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "vocab_size", "moe_intermediate_size", "num_local_experts",
    "q_lora_rank", "kv_lora_rank", "embedding_size", "encoder_layers", "decoder_layers",
    "encoder_attention_heads", "decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim",
}  # fmt: skip
"""Keys so often present that a default filled in for one is worth a note."""


def _supported(kind: ModelType, values: dict[str, Any]) -> bool:
    """Whether the count of this config would be right."""
    try:
        return bool(evaluate(kind.supports, values))
    except TypeError:
        none = [k for k in kind.keys if k in parse(kind.supports)[1] and values[k] is None]
        raise FieldError(kind.spellings(none[0])[0], None, "must not be null") from None


def _with_bound(error: FieldError, config: dict[str, Any]) -> FieldError:
    """The error of a type nobody knows, with the most its cache can hold where that is bounded.

    Layers that compress keys and values over tokens keep less than 2 L K h elements a token, by an
    amount that depends on how: a bound is right where a number would be a guess.
    """
    sizes = [config.get(k) for k in ("num_hidden_layers", "num_key_value_heads", "head_dim")]
    if config.get("compress_ratios") is None or not all(type(n) is int and n > 0 for n in sizes):
        return error
    most = 2 * math.prod(n for n in sizes if type(n) is int)
    bound = (
        "compress_ratios says that its attention compresses what it keeps: no exact cache, "
        f"at most {2 * most:,} bytes a token in bf16"
    )
    return FieldError(
        error.path, error.value, error.rule, f"{error.hint}; {bound}" if error.hint else bound
    )


def text_part(config: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The text part of a multimodal config, and the name of its model type.

    A wrapper nobody has seen is read by the type of its text part.
    """
    name = config.get("model_type")
    inner = config.get("text_config")
    if name is None and inner is None:
        name = _type_of_architecture(config.get("architectures"))
    if name is not None and not isinstance(name, str):
        raise UnknownNameError("model type", shorten(name), model_types())
    kind = model_types().get(name) if name is not None else None
    if name is not None and not isinstance(inner, dict) and (kind is None or kind.text is None):
        return config, name
    inner = {} if inner is None else inner
    if not isinstance(inner, dict):
        raise FieldError("text_config", inner, "must be an object")
    own = name if kind is None else kind.text or kind.name
    inner = dict(inner)
    if inner.get("model_type") is None:
        inner["model_type"] = own or _type_of_architecture(config.get("architectures"))
    if "tie_word_embeddings" in config:
        inner.setdefault("tie_word_embeddings", config["tie_word_embeddings"])
    if not isinstance(inner["model_type"], str):
        raise UnknownNameError("model type", shorten(inner["model_type"]), model_types())
    text = model_types().get(inner["model_type"])
    if text is not None and text.text is not None:
        raise FieldError("text_config.model_type", text.name, "names no text model",
                         f"use {text.text}")  # fmt: skip
    return inner, inner["model_type"]


def _type_of_architecture(architectures: object) -> str:
    """The model type whose class is named, for a config without ``model_type``."""
    if isinstance(architectures, list):
        for name, kind in model_types().items():
            if kind.architecture and kind.architecture in architectures:
                return name
    raise FieldError(
        "model_type", None, "is missing", f"write one of {', '.join(sorted(model_types()))}"
    )


def classic_rope(config: dict[str, Any]) -> dict[str, Any]:
    """The rotary keys in one spelling: ``rope_theta``, ``rope_scaling``, ``rope_local_base_freq``.

    transformers 5 nests them in ``rope_parameters``, by layer type in Gemma 3.
    """
    nested = config.get("rope_parameters")
    if not isinstance(nested, dict):
        return config
    flat = {k: v for k, v in config.items() if k != "rope_parameters"}
    if isinstance(nested.get("full_attention"), dict):
        local = nested.get("sliding_attention") or {}
        if not isinstance(local, dict):
            raise FieldError("rope_parameters.sliding_attention", local, "must be an object")
        if "rope_theta" in local:
            flat.setdefault("rope_local_base_freq", local["rope_theta"])
        nested = nested["full_attention"]
    elif isinstance(nested.get("compress"), dict):  # DeepSeek-V4: by what a layer remembers
        main = nested.get("main")
        if isinstance(main, dict) and "rope_theta" in main:
            flat.setdefault("rope_theta", main["rope_theta"])
        nested = dict(nested["compress"])
        if "rope_theta" in nested:
            flat.setdefault("compress_rope_theta", nested.pop("rope_theta"))
    nested = dict(nested)
    for key in ("rope_theta", "partial_rotary_factor"):
        if nested.get(key) is not None:  # transformers takes it before one beside
            flat[key] = nested.pop(key)
    if nested.get("rope_type", "default") != "default":
        flat.setdefault("rope_scaling", nested)
    else:
        flat.setdefault("rope_scaling", None)  # said to be plain, whatever the class's default
    return flat


def one_original(config: dict[str, Any]) -> dict[str, Any]:
    """The length before a context extension where the extension is.

    Phi-3 and others write it beside; transformers then takes it before that of the extension.
    """
    settings, original = config.get("rope_scaling"), config.get("original_max_position_embeddings")
    if not isinstance(settings, dict) or not settings or original is None:
        return config
    kind = settings.get("rope_type", settings.get("type"))
    if kind not in {"llama3", "yarn", "longrope", "su"}:
        return config
    key = "original_max_position_embeddings"
    original = _integer(key, "size", original, [])
    rest = {k: v for k, v in config.items() if k != key}
    return {**rest, "rope_scaling": {**settings, key: original}}


def value_of(key: str, kind: str, value: object, notes: list[str]) -> Any:
    """One config value, checked against what its key holds."""
    if value is None or (kind == "auto" and value == "auto"):
        return None
    if kind in {"size", "count", "depth", "signed", "auto"}:
        return _integer(key, kind, value, notes)
    if kind == "flag":
        if not isinstance(value, bool):
            raise FieldError(key, _shown(value), "must be true or false")
        return value
    if kind in {"real", "positive", "share"}:
        return _real(key, kind, value)
    if kind == "list" and isinstance(value, int | str) and not isinstance(value, bool):
        return value  # a pattern may be a period, a word or a list
    if kind == "pattern" and isinstance(value, str):
        return list(value)  # a letter for each layer
    if kind == "words" and isinstance(value, str):
        return [word.strip() for word in value.lower().split("|")]
    expected = {"text": str, "object": dict}.get(kind, list)
    if not isinstance(value, expected):
        names = {"text": "text", "object": "an object", "pattern": "a letter for each layer"}
        rule = f"must be {names.get(kind, 'a list over the layers')}"
        raise FieldError(key, _shown(value), rule)
    if kind in {"flags", "layers"}:
        return [_integer(key, "count", int(v) if isinstance(v, bool) else v, notes) for v in value]
    return value


def _real(key: str, kind: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FieldError(key, _shown(value), "must be a number")
    if not -1e30 < value < 1e30:
        raise FieldError(key, value, "is beyond every model")
    if (kind == "positive" and value <= 0) or (kind == "share" and not 0 < value <= 1):
        rule = "must be above zero" if kind == "positive" else "must lie between 0 and 1"
        raise FieldError(key, value, rule)
    return float(value)


def _check_words(key: str, value: Any, words: list[str]) -> None:
    """A list of names may hold known words only: another would count as something else."""
    for word in value:
        if word not in words:
            near = nearest(str(word), words, 1)
            hint = f"did you mean {near[0]}?" if near else f"use {', '.join(words)}"
            raise FieldError(key, _shown(word), "is no kind of layer of this type", hint)


def _integer(key: str, kind: str, value: object, notes: list[str]) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FieldError(key, _shown(value), "must be a whole number")
    low = {"count": 0, "signed": -1}.get(kind, 1)
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


@functools.lru_cache(maxsize=4096)
def _near(key: str, read_keys: frozenset[str]) -> list[str]:
    """The key of a type that another is almost; the same keys come with every config."""
    return difflib.get_close_matches(key, sorted(read_keys), 1, cutoff=0.88)


def _without_effect(config: dict[str, Any], kind: ModelType) -> list[str]:
    """Keys that shape other model types and that this one does not read."""
    read_keys = frozenset(s for key in kind.keys for s in kind.spellings(key))
    shaping = set(kinds()) | {
        s for other in model_types().values() for names in other.spelled.values() for s in names
    }
    notes = []
    for key, value in config.items():
        if key in read_keys or value in (None, False):
            continue
        near = _near(key, read_keys)
        if key in shaping:
            notes.append(f"{key} has no effect on the shape of model type {kind.name}")
        elif near and near[0] not in config:
            notes.append(f"{key} is not read; did you mean {near[0]}?")
    return notes


def _with_slip(
    error: FieldError, kind: ModelType, values: dict[str, Any], missing: set[str]
) -> FieldError:
    """The same error, with what was probably meant where heads and layers look exchanged."""
    width, layers = values.get("hidden_size"), values.get("num_hidden_layers")
    given = error.path == "num_attention_heads" and not {
        "hidden_size", "num_attention_heads", "num_hidden_layers"
    } & missing  # fmt: skip
    n = error.value
    if not given or not (isinstance(width, int) and isinstance(layers, int) and isinstance(n, int)):
        return error
    found = swapped(width, n, layers)
    if not found:
        return error
    heads, depth = (kind.spellings(k)[0] for k in ("num_attention_heads", "num_hidden_layers"))
    slip = (
        f"heads and layers look swapped: {heads} {found['n_head']} of {found['d_head']} and "
        f"{depth} {found['n_layer']} would do"
    )
    return FieldError(error.path, error.value, error.rule, f"{slip}; {error.hint}")


def _evaluate(kind: ModelType, values: dict[str, Any], null: set[str]) -> Any:
    found = {}
    for field, text in kind.expressions.items():
        try:
            found[field] = evaluate(text, values)
        except IndexError:
            raise _too_short(kind, text, values) from None
        except (TypeError, ZeroDivisionError) as error:
            names = sorted(parse(text)[1])
            none = [k for k in names if values.get(k) is None]
            wrong = [k for k in names if k in null] or none or names
            what = "must not be null" if values.get(wrong[0]) is None else f"is unusable: {error}"
            raise FieldError(kind.spellings(wrong[0])[0], None, what) from None
    try:
        return msgspec.convert(found, ASSEMBLERS[kind.assemble].fields)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$.")
        field = path.rstrip("`").split("[")[0].split(".")[0]
        names = [n for n in sorted(parse(kind.expressions[field])[1]) if n in kind.keys]
        names = [n for n in names if n in null] or [n for n in names if values[n] is None] or names
        key = kind.spellings(names[0])[0] if names else field
        value = values.get(names[0]) if names else found[field]
        rule = "must not be null" if value is None else f"is wrong for {field}: {text}"
        raise FieldError(key, value, rule) from None


def _too_short(kind: ModelType, text: str, values: dict[str, Any]) -> FieldError:
    """The error of a list over the layers that ends before they do."""
    lists = [k for k in sorted(parse(text)[1]) if isinstance(values.get(k), list)]
    n_layer = values["num_hidden_layers"]
    key = min(lists, key=lambda k: len(values[k]))
    what = f"has {len(values[key])} entries for {n_layer} layers"
    return FieldError(kind.spellings(key)[0], None, what, f"write {n_layer}")


def _check_lists(f: Any, values: dict[str, Any], notes: list[str]) -> None:
    """Lists over the layers: too short is an error, too long is cut with a note."""
    for field in f.LISTS:
        flags = getattr(f, field)
        if isinstance(flags, list) and len(flags) != f.n_layer:
            named = ("layer_types", "no_rope_layers", "moe_layers", "mlp_layer_types",
                     "layers_block_type", "compress_ratios")  # fmt: skip
            same = [k for k in named if values.get(k) and len(values[k]) == len(flags)]
            same += [k for k, v in values.items() if isinstance(v, dict) for x in v.values()
                     if isinstance(x, list) and len(x) == len(flags)]  # fmt: skip
            key = same[0] if same else field
            if len(flags) < f.n_layer:
                what = f"has {len(flags)} entries for {f.n_layer} layers"
                raise FieldError(key, None, what, f"write {f.n_layer}")
            notes.append(f"{key} has {len(flags)} entries for {f.n_layer} layers; the rest is cut")
            setattr(f, field, flags[: f.n_layer])


def _framed(kind: ModelType, fields: Any) -> Spec:
    """Assemble and check; an error in a spec's field is told in the config's own key."""
    if not 0 < getattr(fields, "rope_fraction", 1.0) <= 1:
        rotary = parse(kind.expressions["rope_fraction"])[1]
        rotary -= parse(kind.expressions["d_head"])[1]
        key = next(k for k in kind.keys if k in rotary)
        share = f"rotates {fields.rope_fraction:g} of each head"
        raise FieldError(kind.spellings(key)[0], None, share, "at most all of it")
    needed = fields.needed()
    if not kind.expressions.get("kv_rank", "None").endswith("None"):
        needed.append("kv_rank")
    for field in needed:
        if getattr(fields, field) is None:
            names = [n for n in sorted(parse(kind.expressions[field])[1]) if n in kind.keys]
            raise FieldError(kind.spellings(names[0])[0] if names else field, None,
                             "must not be null")  # fmt: skip
    try:
        return check(ASSEMBLERS[kind.assemble].to_spec(fields))
    except FieldError as error:
        field = error.path.rsplit(".", 1)[-1]
        own = {
            re.sub(r"^mixers\['\w+'\]\['(\w+)'\]$", r"\1", text): kind.spellings(k)[0]
            for k, text in kind.write.items() if k in kind.keys
        }  # fmt: skip
        if field not in own:
            raise
        rule = " ".join(own.get(word, word) for word in error.rule.split())
        raise FieldError(own[field], error.value, rule, error.hint) from None
