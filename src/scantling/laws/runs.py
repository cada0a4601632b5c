"""Tables of training runs, read into columns that a law can be asked about."""

from __future__ import annotations

import csv
import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scantling.errors import FieldError, nearest
from scantling.laws.features import Features

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Column = NDArray[np.float64]

COLUMNS = {
    "body": ("params_nonemb", "params_body", "body", "n_params_body", "non_embedding_params"),
    "total": ("params_total", "total", "params", "n_params", "total_params"),
    "width": ("width", "d_model", "hidden_size", "n_embd"),
    "depth": ("depth", "n_layer", "num_hidden_layers", "n_layers", "layers"),
    "d_head": ("head_dim", "d_head"),
    "n_head": ("heads", "n_head", "num_attention_heads"),
    "n_kv_head": ("kv_heads", "n_kv_head", "num_key_value_heads"),
    "vocab_size": ("vocab", "vocab_size"),
    "tokens": ("tokens", "train_tokens", "n_tokens", "tokens_seen"),
    "unique_tokens": ("unique_tokens",),
    "n_experts": ("n_experts", "n_expert"),
    "loss": ("loss", "val_loss", "validation_loss", "eval_loss", "final_loss"),
    "bits_per_byte": ("bits_per_byte", "bpb", "val_bpb"),
    "tokens_per_byte": ("tokens_per_byte",),
}
"""What is read, and the names of the column it may stand in; the first that is there counts.

Names are compared in small letters, with ``_`` for every other sign.
"""

RECIPE = ("dataset", "loss_kind", "tokenizer", "lr_note", "seq_len")
"""Columns whose values should be one in a table that one law is to fit."""

_CONDITION = re.compile(r"(?P<column>\w+)\s*(?P<sign><=|>=|!=|=|<|>|~)\s*(?P<value>.*)", re.DOTALL)

_SHAPE = re.compile(r"(?P<depth>\d+)x(?P<width>\d+)(-h(?P<head_dim>\d+)-)?")


@dataclass(frozen=True)
class Runs:
    """Runs as columns of equal length, in the order of the file.

    Args:
        features: What a law may know; ``None`` where the table lacks a value of any run.
        loss: Final losses, nats a token.
        warnings: What was left out, and what the table mixes.
    """

    features: Features
    loss: Column
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def size(self) -> Column:
        """The body where the table has it, else all parameters."""
        known: Any = self.features.body if has(self.features.body) else self.features.total
        return known  # type: ignore[no-any-return]

    @property
    def shapes(self) -> NDArray[np.int64]:
        """A number for each run; runs of one model have the same one."""
        import numpy as np

        known = [x for x in (self.features.body, self.features.total, self.features.width,
                             self.features.depth, self.features.d_head)
                 if x is not None and has(x)]  # fmt: skip
        _, found = np.unique(np.column_stack(known), axis=0, return_inverse=True)
        return found.reshape(-1)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """A number for each run, rising with its size.

        Sizes are parted where the next one is over 25 % larger, and a part that spans more than
        an octave into equal steps of at most one.
        """
        import numpy as np

        octaves = np.log2(self.size)
        order = np.argsort(octaves)
        ends = np.flatnonzero(np.diff(octaves[order]) > np.log2(1.25)) + 1
        found = np.empty(len(self), dtype=np.int64)
        next_number = 0
        for part in np.split(order, ends):
            low, span = octaves[part].min(), float(np.ptp(octaves[part]))
            steps = max(int(np.ceil(span)), 1)
            place = np.minimum((octaves[part] - low) / max(span, 1e-9) * steps, steps - 1)
            _, numbers = np.unique(place.astype(int), return_inverse=True)
            found[part] = next_number + numbers
            next_number += int(numbers.max()) + 1
        return found

    def take(self, chosen: Any) -> Runs:
        """The runs of a mask or of indices."""
        return Runs(take(self.features, chosen), self.loss[chosen], self.warnings)


def has(value: Any) -> bool:
    """Whether a column has a value for every run."""
    import numpy as np

    return value is not None and not bool(np.any(np.isnan(value)))


def take(features: Features, chosen: Any) -> Features:
    """The features of a mask or of indices of columns."""
    fields: dict[str, Any] = {name: getattr(features, name) for name in features.__struct_fields__}
    chosen_fields: dict[str, Any] = {k: v if v is None else v[chosen] for k, v in fields.items()}
    return Features(**chosen_fields)


def best_runs(runs: Runs) -> Runs:
    """Of runs of one shape and one number of tokens only that of the lowest loss, in their order.

    For sweeps of learning rate and batch, whose worse runs say nothing of the shape.
    Where some shapes had more tries than others a warning says so: more tries reach lower.
    """
    import numpy as np

    tokens = np.round(np.log(runs.features.tokens), 3)
    _, cells = np.unique(np.column_stack([runs.shapes, tokens]), axis=0, return_inverse=True)
    order = np.lexsort((runs.loss, cells.reshape(-1)))
    _, first, tries = np.unique(cells.reshape(-1)[order], return_index=True, return_counts=True)
    best = runs.take(np.sort(order[first]))
    if tries.min() == tries.max():
        return best
    told = (
        f"the best of {tries.min()} to {tries.max()} tries: more tries reach lower, --where keeps "
        "what all shapes have"
    )
    return replace(best, warnings=(*best.warnings, told))


def read_runs(path: Path, where: Sequence[str] = ()) -> Runs:
    """A CSV, or a JSONL file of one run a line, as columns.

    The columns are those of ``COLUMNS``; only the loss, the tokens and one size are needed.
    Runs without a finite loss or without known tokens are left out, with a warning.

    Args:
        path: The file, ``.csv`` or ``.jsonl``.
        where: Conditions that a run must meet: ``column=value``, ``!=``, ``~`` (contains), and
            ``< <= > >=`` on numbers.

    Raises:
        FieldError: If the file has no runs, or lacks a column that every law needs.
    """
    rows = [row for row in _rows(path) if row]
    if not rows:
        raise FieldError("runs", str(path), "has no rows", "one run a line, with column names")
    for condition in where:
        rows = _matching(rows, condition)
    return columns(rows, str(path))


def columns(rows: Sequence[dict[str, Any]], name: str = "runs") -> Runs:
    """Rows of named values as columns.

    Example:
        >>> rows = [{"params_total": 1e8, "tokens": 2e9, "loss": 3.4},
        ...         {"params_total": 1e8, "tokens": "", "loss": 3.3}]
        >>> runs = columns(rows)
        >>> len(runs), runs.warnings
        (1, ('1 of 2 runs left out: unknown tokens',))
    """
    import numpy as np

    if not rows:
        raise FieldError("runs", name, "has no run that meets the conditions")
    rows = [{_plain(k): v for k, v in row.items() if k is not None} for row in rows]
    found = {field: _column(rows, names) for field, names in COLUMNS.items()}
    bits, rate = found.pop("bits_per_byte"), found.pop("tokens_per_byte")
    if found["loss"] is None and bits is not None:
        found["loss"] = _nats(bits, rate, name)
    there = ", ".join(dict.fromkeys(k for row in rows[:100] for k in row))
    for field in ("loss", "tokens"):
        if found[field] is None:
            raise FieldError("runs", name, f"has no column {COLUMNS[field][0]}",
                             f"one of {', '.join(COLUMNS[field])}; there are {there}")  # fmt: skip
    if found["body"] is None and found["total"] is None:
        raise FieldError("runs", name, "says no size",
                         f"give params_nonemb or params_total; there are {there}")  # fmt: skip
    loss, tokens = found.pop("loss"), found["tokens"]
    assert loss is not None
    assert tokens is not None
    warnings = []
    good = np.ones(len(rows), dtype=bool)
    for what, fine in (
        ("a loss that is no positive number", np.isfinite(loss) & (loss > 0)),
        ("unknown tokens", np.isfinite(tokens) & (tokens > 0)),
    ):
        if lost := int(np.sum(good & ~fine)):
            warnings.append(f"{lost} of {len(rows)} runs left out: {what}")
        good &= fine
    if not good.any():
        raise FieldError("runs", name, "has no run with a loss and known tokens",
                         "; ".join(warnings))  # fmt: skip
    warnings += _mixed([row for row, fine in zip(rows, good, strict=True) if fine])
    blank = np.full(len(rows), np.nan)
    required = ("body", "total", "width", "depth", "tokens")
    fields: dict[str, Any] = {}
    for field, values in found.items():
        if field in required:
            fields[field] = (blank if values is None else values)[good]
        elif values is not None and has(values[good]):
            fields[field] = values[good]
    return Runs(Features(**fields), loss[good], tuple(warnings))


def _plain(name: str) -> str:
    """A column's name in small letters, with ``_`` for every other sign.

    Example:
        >>> _plain(" Val-Loss"), _plain("params.total")
        ('val_loss', 'params_total')
    """
    return re.sub(r"[^0-9a-z]+", "_", name.strip().lower())


def _nats(bits: Column, rate: Column | None, name: str) -> Column:
    """Nats a token from bits a byte: bits · ln 2 / tokens a byte."""
    if rate is None:
        raise FieldError(
            "runs", name, "has bits_per_byte but no loss",
            "add the column tokens_per_byte: a law is in nats a token",
        )  # fmt: skip
    return bits * math.log(2) / rate


def _column(rows: Sequence[dict[str, Any]], names: tuple[str, ...]) -> Column | None:
    import numpy as np

    for name in names:
        if any(row.get(name) not in {None, ""} for row in rows):
            return np.array([_number(row.get(name)) for row in rows])
    return None


def _number(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return float("nan")


def _mixed(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    for name in RECIPE:
        values = {str(row[name]) for row in rows if row.get(name)}
        if 1 < len(values) <= max(8, len(rows) // 4):
            shown = "; ".join(sorted(values)[:3])
            yield (
                f"the runs mix {len(values)} values of {name} ({shown}): one law fits one recipe, "
                f"choose with --where '{name}={min(values)}'"
            )


def _rows(path: Path) -> Iterable[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise FieldError("runs", str(path), f"cannot be read: {why}") from error
    if path.suffix.lower() in {".jsonl", ".ndjson"}:
        return [
            _flat(_line(line, i, path))
            for i, line in enumerate(text.splitlines(), 1)
            if line.strip()
        ]
    return list(csv.DictReader(text.splitlines()))


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """A record with the values of nested ones in it, as a run of the lab writes its spec.

    Values inside ``params`` are named after it, others keep their own name; a shape written as a
    name, ``26x2048-h128-…``, gives layers, width and head width. What a record says itself counts.

    Example:
        >>> row = _flat({"spec": {"d_model": 64, "n_layer": 2}, "params": {"total": 5}, "loss": 3})
        >>> row["d_model"], row["params_total"], row["loss"]
        (64, 5, 3)
        >>> _flat({"spec": "26x2048-h128-16q4kv-f7296"})["width"]
        2048
    """
    found: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            named = f"{key}_" if _plain(key) == "params" else ""
            found |= {f"{named}{k}": v for k, v in _flat(value).items()}
        elif key == "spec" and isinstance(value, str) and (match := _SHAPE.match(value)):
            found |= {k: int(v) for k, v in match.groupdict().items() if v is not None}
    return found | {k: v for k, v in row.items() if not isinstance(v, dict)}


def _line(line: str, i: int, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FieldError("runs", str(path), f"line {i} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise FieldError("runs", str(path), f"line {i} is no JSON object")
    return found


def _matching(rows: Sequence[dict[str, Any]], condition: str) -> list[dict[str, Any]]:
    match = _CONDITION.fullmatch(condition.strip())
    if match is None:
        raise FieldError("--where", condition, "is no condition", "write column=value")
    column, sign, value = match["column"], match["sign"], match["value"].strip()
    if not any(column in row for row in rows):
        there = sorted({key for row in rows for key in row})
        near = " or ".join(nearest(column, there))
        hint = f"did you mean {near}?" if near else f"there are {', '.join(there)}"
        raise FieldError("--where", column, "is no column of the runs", hint)
    if sign in {"=", "!=", "~"}:
        given = [str(row.get(column, "")) for row in rows]
        met = {"=": [text == value for text in given], "!=": [text != value for text in given],
               "~": [value.lower() in text.lower() for text in given]}[sign]  # fmt: skip
        return [row for row, fine in zip(rows, met, strict=True) if fine]
    limit = _number(value)
    orders: dict[str, Callable[[float, float], bool]]
    orders = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
    order = orders[sign]
    return [row for row in rows if order(_number(row.get(column)), limit)]
