"""A study as a file that people write, and that ``design --save`` writes: ``study.toml``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from scantling.catalog import load
from scantling.errors import FieldError, ScantlingError, UnknownNameError, nearest
from scantling.lab.match import iso
from scantling.lab.scaled import BODY, scaled
from scantling.lab.study.design import Measure, Rates, Shape, Study, context_of
from scantling.spec import check, vary
from scantling.units import parse_count, parse_seconds

MEASURES = {
    "loss": Measure(),
    "bits_per_byte": Measure("bits_per_byte", "bits a byte"),
    "accuracy": Measure("accuracy", "share of targets hit", "higher"),
}
COUNTS = ("tokens", "least_tokens", "batch", "context", "seeds")
TEXTS = ("name", "question", "data", "tokenizer", "optimizer", "schedule", "expected", "caveat")
WORDS = {
    str: "a text", int: "a whole number", float: "a number",
    dict[str, int | float | bool]: "a table of numbers",
    list[dict[str, Any]]: "tables, each under [[shapes]]",
}  # fmt: skip
"""What a key takes, for those who wrote something else."""
KEYS = (*TEXTS, *COUNTS, "measure", "solved", "rates", "iso", "scale", "shapes")
SHAPE_KEYS = ("model", "name", "set", "param", "rate", "tokenizer")


def read_study(path: Path, times: int = 1) -> Study:
    """A study from a file.

    Args:
        path: Of the file.
        times: How many times larger ``[iso]`` or ``[scale]`` make the shapes than it says.

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
    fields: dict[str, Any] = {k: _as(told[k], str, k) for k in TEXTS if k in told}
    fields |= {k: _count(told[k], k) for k in COUNTS if k in told}
    fields.setdefault("name", path.stem)
    fields.setdefault("question", "Which of these shapes has the lowest loss?")
    fields.setdefault("data", "code")
    fields.setdefault("tokens", 300_000)
    own = context_of(fields["data"])
    if own is not None and fields.setdefault("context", own) != own:
        raise FieldError("context", fields["context"], f"is {own} with the knobs of data",
                         "change the knobs")  # fmt: skip
    if "rates" in told:
        rates = _table(told, "rates")
        _known(rates, Rates.__struct_fields__, "rates.")
        kinds = {"n": int, "step": float, "extend": int}
        fields["rates"] = Rates(**{k: _as(v, kinds[k], f"rates.{k}") for k, v in rates.items()})
    fields["measure"] = _measure(told)
    return Study(shapes=_shapes(told, path, fields, times), **fields).check()


def _measure(told: dict[str, Any]) -> Measure:
    name = _as(told.get("measure", "accuracy" if "solved" in told else "loss"), str, "measure")
    if name not in MEASURES:
        raise UnknownNameError("measure", name, MEASURES)
    if "solved" not in told:
        return MEASURES[name]
    solved = _as(told["solved"], float, "solved")
    if not 0 < solved <= 1:
        raise FieldError("solved", solved, "must be a share, above 0 and at most 1")
    return replace(MEASURES[name], solved=solved)


def _shapes(
    told: dict[str, Any], path: Path, fields: dict[str, Any], times: int
) -> tuple[Shape, ...]:
    if ("iso" in told) == ("shapes" in told):
        raise FieldError("study", str(path), "must have either [iso] or [[shapes]]")
    if "iso" in told and "scale" in told:
        raise FieldError("scale", None, "makes [[shapes]] small, and [iso] makes shapes of its own",
                         "give one of the two")  # fmt: skip
    if "iso" in told:
        given = _table(told, "iso")
        _known(given, ("n_layer", "body", "params", "flops", "time", "chip"), "iso.")
        if not isinstance(given.get("n_layer"), list):
            raise FieldError("iso.n_layer", given.get("n_layer"), "must list depths",
                             "n_layer = [2, 4, 8]")  # fmt: skip
        depths = [_count(n, "iso.n_layer") for n in given["n_layer"]]
        wanted: dict[str, Any] = {
            k: times * _count(given[k], f"iso.{k}")
            for k in ("body", "params", "flops")
            if k in given
        }
        if "time" in given:
            wanted["time"] = times * parse_seconds(given["time"], "iso.time")
        if "chip" in given:
            wanted["chip"] = _as(given["chip"], str, "iso.chip")
        runs = {k: fields[k] for k in ("batch", "context") if k in fields}
        return iso(depths, **runs, **wanted)
    shapes = tuple(
        _shape(one, path.parent) for one in _as(told["shapes"], list[dict[str, Any]], "shapes")
    )
    if "scale" in told:
        given = _table(told, "scale")
        _known(given, ("body", "n_layer", "vocab_size"), "scale.")
        counts = {k: _count(v, f"scale.{k}") for k, v in given.items()}
        return scaled(shapes, **counts | {"body": times * counts.get("body", BODY)})
    if times > 1:
        raise FieldError("--ladder", str(path), "has shapes of one size", "give [iso] or [scale]")
    return shapes


def _shape(one: dict[str, Any], folder: Path) -> Shape:
    _known(one, SHAPE_KEYS, "shapes.")
    if "model" not in one:
        raise FieldError("shapes.model", None, "must name a model or a config beside the file")
    kinds = {"set": dict[str, int | float | bool], "param": str, "tokenizer": str, "rate": float}
    given = {k: _as(one[k], kind, f"shapes.{k}") for k, kind in kinds.items() if k in one}
    name = _as(one["model"], str, "shapes.model")
    beside = folder / name
    try:
        spec = load(str(beside) if beside.exists() else name).spec
        if "set" in given:
            spec = check(vary(spec, **given.pop("set")))
    except ScantlingError as error:
        raise FieldError("shapes.model", name, f"cannot be read: {error}") from None
    own = beside.stem if beside.is_file() else beside.name
    return Shape(_as(one.get("name", own), str, "shapes.name"), spec, **given)


def _count(value: Any, field: str) -> int:
    return int(parse_count(value, field))


def _as(value: Any, kind: Any, field: str) -> Any:
    """A value as what a key takes; numbers may be written as text."""
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError:
        raise FieldError(field, value, f"must be {WORDS[kind]}") from None


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
