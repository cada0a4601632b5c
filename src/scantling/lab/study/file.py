"""A study as a file that people write, and that ``design --save`` writes: ``study.toml``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from scantling.catalog import load
from scantling.errors import FieldError, ScantlingError, nearest
from scantling.lab.match import iso
from scantling.lab.scaled import scaled
from scantling.lab.study.design import Measure, Rates, Shape, Study
from scantling.lab.study.trial import Param
from scantling.spec import check, vary
from scantling.units import parse_count, parse_seconds

MEASURES = {
    "loss": Measure(),
    "bits_per_byte": Measure("bits_per_byte", "bits a byte"),
    "accuracy": Measure("accuracy", "share of targets hit", "higher"),
}
COUNTS = ("tokens", "least_tokens", "batch", "context", "seeds")
TEXTS = ("name", "question", "data", "tokenizer", "optimizer", "schedule", "expected", "caveat")
KEYS = (*TEXTS, *COUNTS, "measure", "solved", "rates", "iso", "scale", "shapes")
REST: dict[str, tuple[Any, str]] = {
    "param": (Param, "use sp, mup or completep"),
    "tokenizer": (str, "use bytes or bpe:1024"),
    "rate": (Annotated[float, Meta(gt=0)], "the middle of its grid of learning rates"),
}
SHAPE_KEYS = ("model", "name", "set", *REST)
WORDS = {"Expected": "must be", "object": "a table", "array": "a list", "int": "a whole number",
         "float": "a number", "bool": "true", "str": "a text", " | null": "",
         "Invalid enum value": "is not known:"}  # fmt: skip
"""How the decoder's words are said in terms of TOML."""
Count = Annotated[int, Meta(ge=1)]


def read_study(path: Path) -> Study:
    """A study from a file.

    Shapes are those of ``[iso]`` (``n_layer`` and one quantity), or models listed under
    ``[[shapes]]``: a name of the catalogue or a config beside the file. ``[scale]`` makes them
    small, equal in ``body``.

    Raises:
        FieldError: With the key that is wrong.
    """
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise FieldError("study", str(path), f"cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FieldError("study", str(path), f"is no TOML: {error}") from None
    _known(told, KEYS, "")
    fields: dict[str, Any] = {k: str(told[k]) for k in TEXTS if k in told}
    fields |= {k: _count(told[k], k) for k in COUNTS if k in told}
    fields.setdefault("name", path.stem)
    fields.setdefault("question", "Which of these shapes has the lowest loss?")
    fields.setdefault("data", "code")
    fields.setdefault("tokens", 300_000)
    if "rates" in told:
        rates = _table(told, "rates")
        _known(rates, Rates.__struct_fields__, "rates.")
        fields["rates"] = _typed(rates, Rates, "rates", "rates = {n = 3, step = 2.5, extend = 2}")
    name = told.get("measure", "accuracy" if "solved" in told else "loss")
    if name not in MEASURES:
        raise FieldError("measure", name, "is not known", f"use {', '.join(MEASURES)}")
    solved = _typed(told.get("solved"), float | None, "solved", "solved = 0.9")
    fields["measure"] = replace(MEASURES[name], solved=solved)
    return Study(shapes=_shapes(told, path, fields), **fields).check()


def _shapes(told: dict[str, Any], path: Path, fields: dict[str, Any]) -> tuple[Shape, ...]:
    if ("iso" in told) == ("shapes" in told):
        raise FieldError("study", str(path), "must have either [iso] or [[shapes]]")
    if "iso" in told:
        given = _table(told, "iso")
        _known(given, ("n_layer", "body", "params", "flops", "time", "chip"), "iso.")
        depths = _typed(given.get("n_layer"), list[Count], "iso.n_layer", "n_layer = [2, 4, 8]")
        wanted: dict[str, Any] = {
            k: _count(given[k], f"iso.{k}") for k in ("body", "params", "flops") if k in given
        }
        if "time" in given:
            wanted["time"] = parse_seconds(given["time"], "iso.time")
        chip = _typed(given.get("chip"), str | None, "iso.chip", "the name of a chip, or its file")
        return iso(depths, context=fields.get("context", 64), batch=fields.get("batch", 16),
                   chip=chip, **wanted)  # fmt: skip
    listed = _typed(told["shapes"], list[dict[str, Any]], "shapes", "write [[shapes]] tables")
    shapes = tuple(_shape(one, path.parent) for one in listed)
    if "scale" in told:
        given = _table(told, "scale")
        _known(given, ("body", "n_layer", "vocab_size"), "scale.")
        return scaled(shapes, **{k: _count(v, f"scale.{k}") for k, v in given.items()})
    return shapes


def _shape(one: dict[str, Any], folder: Path) -> Shape:
    _known(one, SHAPE_KEYS, "shapes.")
    if "model" not in one:
        raise FieldError("shapes.model", None, "must name a model or a config beside the file")
    beside = folder / str(one["model"])
    model = str(beside) if beside.exists() else str(one["model"])
    changes = _typed(one.get("set", {}), dict[str, int | float | bool | None], "shapes.set",
                     "set = {n_layer = 2}")  # fmt: skip
    try:
        spec = load(model).spec
        if changes:
            spec = check(vary(spec, **changes))
    except ScantlingError as error:
        raise FieldError("shapes.model", one["model"], f"cannot be read: {error}") from None
    rest = {k: _typed(one[k], kind, f"shapes.{k}", hint) for k, (kind, hint) in REST.items()
            if k in one}  # fmt: skip
    return Shape(str(one.get("name", Path(str(one["model"])).stem)), spec, **rest)


def _count(value: Any, field: str) -> int:
    return int(parse_count(value, field))


def _typed(value: Any, kind: Any, field: str, hint: str) -> Any:
    """A value of a kind.

    Raises:
        FieldError: If it is of another.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `$")
        rule = text.partition(", got")[0].replace("`", "")
        for theirs, ours in WORDS.items():
            rule = rule.replace(theirs, ours)
        raise FieldError(field + where.strip("`"), value if not where else None, rule,
                         hint) from None  # fmt: skip


def _table(told: dict[str, Any], key: str) -> dict[str, Any]:
    if not isinstance(told[key], dict):
        raise FieldError(key, told[key], "must be a table", f"write [{key}]")
    return dict(told[key])


def _known(told: dict[str, Any], keys: tuple[str, ...], prefix: str) -> None:
    for key in told:
        if key not in keys:
            near = nearest(key, keys, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(keys)}"
            raise FieldError(f"{prefix}{key}", None, "is no key of a study", hint)
