"""What a config says: values that are none, keys nobody reads, classes that refuse (SC001 on)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from scantling.errors import nearest, shorten
from scantling.formats.hf.types import kinds, model_types, words_of
from scantling.rules.heads import share_above_one
from scantling.rules.registry import Fix, Found, Level, rule
from scantling.rules.setting import facts
from scantling.rules.subject import Subject
from scantling.spec.workload import BITS, plain_dtype

LISTS = ("layer_types", "no_rope_layers", "moe_layers_list", "mlp_layer_types", "layers_block_type",
         "compress_ratios")  # fmt: skip
"""Keys that hold an entry for every layer."""

SHAPES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
          "vocab_size")  # fmt: skip


@rule("SC001", "value-refused", "transformers", reads="config")
def value_refused(s: Subject) -> Iterator[Found]:
    """Every value is of the kind its key holds: whole, above zero, true or false, a list.

    0 layers, −1 heads, "many" tokens, null where a size must be. What the reader refuses and no
    other rule explains is told here, too, in its own words.

    Exceptions: 4096.0 for an integer is read, and noted (SC006).
    """
    for key, error in s.raw.refused.items():
        if error is share_above_one(s.raw):
            continue  # SC103
        shown = "" if error.value is None else f" {shorten(error.value)}"
        fix = Fix(text=error.hint) if error.hint else None
        yield Found("error", key, f"{error.path}{shown} {error.rule}", fix)


@rule("SC002", "class-refuses", "transformers", reads="config")
def class_refuses(s: Subject) -> Iterator[Found]:
    """The class of the model type takes what its config says.

    The shape is legal, but the class is written for less: LlamaConfig and BERT insist on D mod H =
    0 though a head width is given; OLMo's on H h = D; Mamba 2's on heads × head = expansion × D.
    transformers 5.24 raises. Another model type may say the same shape.

    Exceptions: other runtimes that read the config themselves.
    """
    found = next((n for n in s.notes if n.startswith("the class of ") and " needs " in n), None)
    if found is None:
        return
    needs = re.sub(r"^the class of (\S+) needs (.*), which does not hold$", r"\2", found)
    needs = re.sub(r"pick\((\w+), '(\w+)', .*\)(?= in )", r"\1.\2", needs)
    keys = [k for k in s.raw.kind.keys if re.search(rf"\b{k}\b", needs)]
    key = next((s.raw.given[k] for k in keys if k in s.raw.given), "model_type")
    held = ", ".join(f"{k} {shorten(s.raw.values.get(k))}" for k in keys)
    yield Found("error", key, f"the class of {s.raw.kind.name} needs {needs}; here {held}",
                Fix(text="a shape that holds it, or a model type that does not ask"))  # fmt: skip


@rule("SC003", "key-without-effect", "transformers", reads="config")
def key_without_effect(s: Subject) -> Iterator[Found]:
    """A key that shapes other model types shapes this one.

    ``num_key_value_heads`` of GPT-2 or ``head_dim`` of a class that derives it is read by nobody,
    and who reads the file believes it.

    Exceptions: keys that releases carry along (``moe_layer_freq``, ``sliding_window`` null).
    """
    for note in s.notes:
        if " has no effect on the shape of model type " in note:
            key = note.partition(" ")[0]
            if not (key == "head_dim" and _contradicts(s, key)):
                yield Found("info", key, note, Fix(text=f"take {key} away"))


def _contradicts(s: Subject, key: str) -> bool:
    given, own = s.raw.config.get(key), s.raw.whole("d_head")
    return isinstance(given, int) and own is not None and given != own


@rule("SC004", "key-misspelled", "transformers", reads="config")
def key_misspelled(s: Subject) -> Iterator[Found]:
    """A key that is almost one the class reads is meant to be it.

    ``num_key_value_head`` leaves the class default in silence: a model of other KV heads.

    Exceptions: keys of the same spelling in other libraries.
    """
    for note in s.notes:
        key, middle, right = note.partition(" is not read; did you mean ")
        if middle:
            right = right.rstrip("?")
            value = s.raw.config.get(key)
            yield Found("warning", key, note, Fix(text=f"{right} {shorten(value)}",
                        config={key: None, right: value}))  # fmt: skip


@rule("SC005", "size-left-out", "transformers", reads="config")
def size_left_out(s: Subject) -> Iterator[Found]:
    """A config says every size that makes its shape.

    What is left out is the class default, which belongs to the model the class was written for: a
    Llama of width 2048 without ``intermediate_size`` has 11008. Loading weights then fails late.

    Exceptions: configs that are all defaults; ``num_key_value_heads`` where it follows the heads.
    """
    part = s.raw
    own = [k for k in SHAPES if k in part.kind.keys and part.says(k)]
    changed = any(part.values[k] != part.kind.keys[k] for k in own)
    for note in s.notes:
        match = re.fullmatch(r"assumed: (\S+) is not given, the class default is (\S+)", note)
        if match is None or match[1] == "head_dim":
            continue
        level: Level = "warning" if changed else "info"
        key = part.kind.spellings(match[1])[0]
        yield Found(level, key, f"{key} is not given: the class takes {match[2]}",
                    Fix(text=f"say {key}"))  # fmt: skip


@rule("SC006", "odd-spelling", "transformers", reads="config")
def odd_spelling(s: Subject) -> Iterator[Found]:
    """Whole numbers are written as such, keys stand once, files begin with a brace.

    4096.0, a byte-order mark and a repeated key are read here; strict parsers stop.

    Exceptions: none needed.
    """
    for note in s.notes:
        match = re.fullmatch(r"(\S+) is written as (\S+), read as (\d+)", note)
        if match is not None:
            yield Found("info", match[1], note, Fix(text=f"{match[1]} {match[3]}",
                        config={match[1]: int(match[3])}))  # fmt: skip
        elif "byte-order mark" in note:
            yield Found("info", "file", note, Fix(text="write it as UTF-8 without"))
        elif "is repeated" in note:
            yield Found("warning", note.split(" ")[2], note, Fix(text="write it once"))


@rule("SC007", "spellings-disagree", "transformers", reads="config")
def spellings_disagree(s: Subject) -> Iterator[Found]:
    """Two spellings of one key say the same.

    GPT-2's ``n_positions`` and ``n_ctx``, ``dtype`` and ``torch_dtype``: one is read, the other
    misleads. So is a base or a rotary share beside ``rope_parameters`` that say another.

    Exceptions: none.
    """
    for note in s.notes:
        match = re.match(r"(\S+) (.+) is not read: (\S+) is (.+)", note)
        if match is not None and not note.startswith("the class"):
            value = s.raw.config.get(match[3])
            yield Found("warning", match[1], note, Fix(text=f"{match[1]} {match[4]}",
                        config={match[1]: value}))  # fmt: skip
    outer = s.config or {}
    one, other = outer.get("dtype"), outer.get("torch_dtype")
    if isinstance(one, str) and isinstance(other, str) and one != other:
        yield Found("warning", "torch_dtype", f"torch_dtype {other} is not read: dtype is {one}",
                    Fix(text=f"torch_dtype {one}"))  # fmt: skip
    inner = outer.get("text_config")
    place = inner if isinstance(inner, dict) else outer
    for key in ("rope_theta", "partial_rotary_factor"):
        beside, taken = place.get(key), s.raw.config.get(key)
        if "rope_parameters" in place and beside is not None and beside != taken:
            yield Found("warning", key, f"{key} {beside} is not read: rope_parameters say {taken}",
                        Fix(text=f"{key} {taken}", config={key: taken}))  # fmt: skip
    if isinstance(inner, dict):
        tie, own = outer.get("tie_word_embeddings"), inner.get("tie_word_embeddings")
        if isinstance(tie, bool) and isinstance(own, bool) and tie != own:
            yield Found("warning", "tie_word_embeddings", "tie_word_embeddings is "
                        f"{str(tie).lower()}"
                        f" outside and {str(own).lower()} inside text_config",
                        Fix(text="say it once"))  # fmt: skip


@rule("SC008", "layer-list-length", "transformers", reads="config")
def layer_list_length(s: Subject) -> Iterator[Found]:
    """A list over the layers has an entry for each of them.

    Too short, and the last layers are of no kind; too long, and the rest is cut, or counted by a
    class that takes the depth from the list.

    Exceptions: DeepSeek-V4, whose list has one more for its prediction module.
    """
    part = s.raw
    layers = part.whole("n_layer")
    for key, name in part.given.items():
        listed = part.values.get(key)
        if kinds().get(key) != "layers" or not isinstance(listed, list) or layers is None:
            continue
        beyond = [n for n in listed if isinstance(n, int) and n >= layers]
        if beyond:
            yield Found("warning", name, f"{name} names layer {beyond[0]} of {layers}: there is "
                        "none", Fix(text=f"layers 0 to {layers - 1}"))  # fmt: skip
    for key in LISTS:
        value = part.values.get(key)
        if key not in part.given or not isinstance(value, list) or layers is None:
            continue
        n, name = len(value), part.given[key]
        if n in {0, layers}:
            continue
        level: Level = "error" if n < layers else "warning"
        rest = "the last layers are of no kind" if n < layers else "the rest is cut"
        cut = {name: value[:layers]} if n > layers else {}
        text = f"{layers} entries, or {part.key('n_layer')} {n}"
        yield Found(level, name, f"{name} has {n} entries for {layers} layers: {rest}",
                    Fix(text=text, config=cut))  # fmt: skip


@rule("SC009", "layer-kind-known", "transformers", reads="config")
def layer_kind_known(s: Subject) -> Iterator[Found]:
    """Every word of a list over the layers is a kind of layer the class knows.

    ``sliding`` for ``sliding_attention`` builds a model that counts as something else, or none.

    Exceptions: each type has its own words: ``mamba`` and ``attention`` of Granite 4 and Jamba.
    """
    part = s.raw
    for key, spelling in part.given.items():
        kind, value = kinds().get(key), part.values.get(key)
        if kind not in {"names", "words", "pattern"} or not isinstance(value, list):
            continue
        known = words_of(part.kind, key)
        wrong = sorted({str(w) for w in value if w not in known})
        for word in wrong[:3]:
            near = nearest(word, known, 1)
            right = [near[0] if near and str(w) == word else w for w in value]
            fix = Fix(text=f"{near[0]}", config={spelling: right}) if near else Fix(
                text=f"one of {', '.join(known)}")  # fmt: skip
            yield Found("error", spelling, f"{spelling}: {shorten(word)} is no kind of layer of "
                        f"{part.kind.name}", fix)  # fmt: skip


@rule("SC010", "head-width-said", "transformers", reads="config")
def head_width_said(s: Subject) -> Iterator[Found]:
    """The head width is said where the class would not derive it, and means something where it is.

    Two traps. A class with a default of its own (Qwen3: 128) does not take D/H when ``head_dim``
    is missing. A class that always takes D/H reads no ``head_dim``.

    Exceptions: none; H h ≠ D itself is SC015.
    """
    part = s.raw
    width, heads, head = part.whole("d_model"), part.whole("n_head"), part.whole("d_head")
    if width is None or heads is None or head is None or part.field("kv_rank") is not None:
        return
    if "num_attention_heads" not in part.kind.keys:
        return
    derived = width / heads
    given = part.config.get("head_dim")
    if "head_dim" not in part.kind.keys:
        if isinstance(given, int) and given != head:
            yield Found("warning", "head_dim", f"head_dim {given} is not read by "
                        f"{part.kind.name}: its heads are {width} / {heads} = {head} wide",
                        Fix(text=f"head_dim {head}", config={"head_dim": head}))  # fmt: skip
        return
    if not part.says("head_dim") and part.kind.keys.get("head_dim") is not None and head != derived:
        right = Fix(text=f"head_dim {head}, or {derived:g} if that was meant",
                    config={"head_dim": head})  # fmt: skip
        yield Found("warning", "head_dim", f"head_dim is not given: {part.kind.name} takes {head}, "
                    f"and not {width} / {heads} = {derived:g}", right)  # fmt: skip


@rule("SC015", "head-width-free", "transformers", reads="config")
def head_width_free(s: Subject) -> Iterator[Found]:
    """Heads × head width is the width of attention, and need not be that of the model.

    D, H and h are three numbers; W_q is D × H h. Where H h ≠ D the config is right, and tools that
    take D/H for the head width are wrong.

    Exceptions: 37 of 182 released models have H h ≠ D.
    """
    part = s.raw
    width, heads, head = part.whole("d_model"), part.whole("n_head"), part.whole("d_head")
    if width is None or heads is None or head is None or not part.says("head_dim"):
        return
    if part.field("kv_rank") is None and head * heads != width:
        yield Found("info", part.given["head_dim"], f"{heads} heads of {head} are "
                    f"{heads * head / width:.3g} times the width {width}: three free numbers"
        )  # fmt: skip


@rule("SC011", "class-and-type", "transformers", reads="config")
def class_and_type(s: Subject) -> Iterator[Found]:
    """``architectures`` names a class of the model type.

    Loaders that go by class (vLLM, SGLang) and those that go by type (AutoModel) build different
    models from one file otherwise.

    Exceptions: classes in no table, and remote code.
    """
    named = (s.config or {}).get("architectures")
    own = (s.config or {}).get("model_type")
    if not isinstance(named, list) or not named or not isinstance(named[0], str):
        return
    types = [n for n, k in model_types().items() if k.architecture == named[0]]
    if not types or own in types or own not in model_types():
        return
    kind = model_types()[str(own)]
    if kind.architecture == named[0] or (kind.text or own) in types or s.raw.kind.name in types:
        return
    yield Found("warning", "architectures", f"{named[0]} is the class of {types[0]}, and "
                "model_type "
                f"is {own}", Fix(text=f"{kind.architecture}" if kind.architecture else
                                 f"model_type {types[0]}"))  # fmt: skip


@rule("SC012", "tie-and-checkpoint", "safetensors-dtypes", reads="config")
def tie_and_checkpoint(s: Subject) -> Iterator[Found]:
    """A tied model stores one table, an untied one two.

    Untied without a stored head, the head is drawn at random; tied with one stored, it is dropped.
    Asked where the weights were given.

    Exceptions: checkpoints that store the tied table twice, equal; those of a body alone.
    """
    if s.checkpoint is None or s.spec is None or s.spec.head is None:
        return
    names = {w.name for w in s.checkpoint.weights()}
    ends = ("lm_head.weight", "output.weight", "embed_out.weight", "lm_head", "head.weight")
    stored = any(n.endswith(ends) and "attn" not in n and "attention" not in n for n in names)
    key = s.raw.key("tied")
    if s.spec.tied and stored:
        yield Found("warning", key, "the model is tied and its checkpoint stores a head: "
                    "loaders drop"
                    " it", Fix(text=f"{key} false if they differ", config={}))  # fmt: skip
    elif not s.spec.tied and not stored:
        fix = Fix(text=f"{key} true", config={key: True})
        yield Found("warning", key, "the model is untied and its checkpoint stores no head: it "
                    "would begin at random", fix)  # fmt: skip


@rule("SC013", "assumed-type", "transformers", reads="config")
def assumed_type(s: Subject) -> Iterator[Found]:
    """The model type is one of the table.

    Another is read like the known type its fields fit best, and rules that rest on its structure
    are as good as that guess.

    Exceptions: new types whose fields say everything.
    """
    guess = next((n for n in s.notes if n.startswith("assumed: model type ")), None)
    if guess is None:
        return
    given = s.raw.config.get("model_type")
    meant = _class_of(s)
    if meant is not None and meant in nearest(str(given), model_types(), 3):
        yield Found("warning", "model_type", f"model_type {given} is not known, and architectures "
                    f"names the class of {meant}", Fix(text=f"model_type {meant}",
                    config={"model_type": meant}))  # fmt: skip
        return
    yield Found("info", "model_type", guess.removeprefix("assumed: "))


def _class_of(s: Subject) -> str | None:
    """The model type whose class the config names."""
    named = (s.config or {}).get("architectures")
    first = named[0] if isinstance(named, list) and named else None
    return next((n for n, k in model_types().items() if k.architecture == first and first), None)


@rule("SC014", "values-possible", "transformers", reads="config")
def values_possible(s: Subject) -> Iterator[Found]:
    """Sizes are what a model can have: a vocabulary over ten, a width below a million.

    A typed zero more or less passes every relation and every class: 500000 layers wide, 3 tokens.

    Exceptions: none in released models.
    """
    part = s.raw
    for field, low, high in (("d_model", 8, 200_000), ("n_layer", 1, 1_000), ("n_head", 1, 4_096),
                             ("d_ff", 8, 1_000_000), ("vocab_size", 10, 5_000_000),
                             ("max_context", 8, 200_000_000), ("d_head", 4, 1_024)):  # fmt: skip
        value: Any = part.whole(field)
        if field == "d_head" and "num_attention_heads" not in part.kind.keys:
            continue
        if value is not None and not low <= value <= high:
            key = part.key(field)
            yield Found("warning", key, f"{key} {value:,} is no size of a model; released ones "
                        "have "
                        f"{low:,} to {high:,}")  # fmt: skip


@rule("SC016", "activation-known", "transformers", reads="config")
def activation_known(s: Subject) -> Iterator[Found]:
    """The activation is one that classes know.

    transformers looks it up by name and raises where there is none. Names that single classes
    read for themselves (``swigluoai`` of gpt-oss-like models, ``xielu`` of Apertus, T5's
    ``gated-gelu``) are known here, too.

    Exceptions: remote code with functions of its own: a warning, and no error.
    """
    part = s.raw
    key = part.given.get("hidden_act")
    name = part.values.get("hidden_act")
    known = facts()["activations"]
    if key is None or not isinstance(name, str) or name.removeprefix("gated-") in known:
        return
    near = nearest(name, known, 1)
    fix = Fix(text=f"{key} {near[0]}", config={key: near[0]}) if near else None
    yield Found("warning", key, f"{key} {shorten(name)} is no activation that classes know", fix)


@rule("SC017", "dtype-known", "safetensors-dtypes", reads="config")
def dtype_known(s: Subject) -> Iterator[Found]:
    """The dtype a config names is one that weights can be in.

    Loaders look it up in torch and raise.

    Exceptions: none.
    """
    outer = s.config or {}
    inner = outer.get("text_config")
    said = {**(inner if isinstance(inner, dict) else {}), **outer}
    for key in ("torch_dtype", "dtype"):
        name = said.get(key)
        if isinstance(name, str) and name != "auto" and plain_dtype(name) not in BITS:
            near = nearest(name, facts()["dtypes"], 1)
            fix = Fix(text=f"{key} {near[0]}", config={key: near[0]}) if near else None
            yield Found("warning", key, f"{key} {shorten(name)} is no dtype of weights", fix)
