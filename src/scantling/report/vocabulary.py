"""What vocabularies cost a model and are worth on a text, as text and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from scantling.errors import FieldError
from scantling.laws import DEFAULT, Difference, law
from scantling.laws.features import Features
from scantling.laws.measured_text import Measured, measure_text
from scantling.laws.optimum import REFERENCE_ASPECT, TOKENS_A_PARAMETER
from scantling.laws.vocabulary import (
    SMALLEST,
    TIE_ABOVE,
    Option,
    Vocabulary,
    best_for_compute,
    best_vocabulary,
    bits_per_byte,
    option,
    padded,
)
from scantling.report.optimum import aligned
from scantling.search.peers import vocabulary_range
from scantling.units import count_text

OPTIONS = (32_768, 49_152, 65_536, 98_304, 131_072, 262_144)
ALIGNMENT = 128
"""Rows of the table, for each rank, are a multiple of this: full tiles, and Megatron's padding."""


class Judged(NamedTuple):
    """A vocabulary with what it was padded from, and what the smaller body costs.

    ``cost`` is against the first option, at equal tokens; ``None`` for it, and where no layer is
    left.
    """

    asked: int
    option: Option
    cost: Difference | None


class Compared(NamedTuple):
    """A loss in nats a token as bits a byte."""

    name: str
    loss: float
    tokens_per_byte: float
    bits_per_byte: float


class Answer(Struct, frozen=True, kw_only=True):
    """Options for a size, the recommended range, and what was measured of a text."""

    params: int | None = None
    width: int | None = None
    tp: int = 1
    options: tuple[Judged, ...] = ()
    english: Vocabulary | None = None
    by_compute: Vocabulary | None = None
    practice: tuple[int, int, int] | None = None
    """The range to look in, and how many models it comes from."""
    measured: tuple[Measured, ...] = ()
    compared: tuple[Compared, ...] = ()

    @property
    def missing(self) -> str:
        """The input that decides inside the range and was not given; empty where it was."""
        if self.measured:
            return ""
        return (
            "tokens a byte (fertility) of your text, in each of its languages: "
            "measure candidates with --text FILE --tokenizer FILE"
        )


def ask(
    *, params: int | None = None, width: int | None = None, options: Sequence[int] = (),
    flops: float | None = None, tp: int = 1, text: Path | None = None,
    tokenizers: Sequence[Path] = (), losses: Sequence[float] = (), rates: Sequence[float] = (),
) -> Answer:  # fmt: skip
    """Answer what is asked of a size, of a text, or of losses.

    Raises:
        FieldError: If nothing is asked, or a part of it lacks another.

    Example:
        >>> found = ask(params=350_000_000, width=1024, options=[256_000])
        >>> f"{found.options[0].option.share:.3f}", found.practice[0] > 40_000
        ('0.749', True)
    """
    if params is None and text is None and not losses:
        raise FieldError("vocabulary", None, "has no question",
                         "give --params, --text with --tokenizer, or --loss")  # fmt: skip
    if (text is None) != (not tokenizers):
        name = "--tokenizer" if text is not None else "--text"
        raise FieldError(name, None, "is missing", "tokens a byte need a text and a tokenizer")
    for name, value in (("--width", width), ("--options", options or None), ("--flops", flops)):
        if value is not None and params is None:
            raise FieldError(name, None, "needs --params")
    measured = tuple(measure_text(text, one) for one in tokenizers) if text is not None else ()
    compared = _compared(measured, losses, rates)
    if params is None:
        return Answer(measured=measured, compared=compared)
    wide = width or round((params * REFERENCE_ASPECT / 12) ** (1 / 3) / ALIGNMENT) * ALIGNMENT
    wide = max(wide, ALIGNMENT)
    if SMALLEST * wide > params:
        rule = f"leaves no layer: a table of {SMALLEST:,} rows alone has {SMALLEST * wide:,}"
        raise FieldError("--params", params, f"at width {wide:,} {rule}")
    sizes = sorted(set(options) or {*OPTIONS, *(m.vocab_size for m in measured)})
    judged = _judged(params, wide, sizes)
    low, high, n = vocabulary_range(params, wide)
    body = max(option(params, wide, low).left, params // 10)
    return Answer(
        params=params, width=wide, tp=tp, options=judged, measured=measured, compared=compared,
        english=best_vocabulary(body, wide, ALIGNMENT * tp),
        by_compute=None if flops is None else best_for_compute(flops, wide, ALIGNMENT * tp),
        practice=(padded(low, ALIGNMENT * tp), padded(high, ALIGNMENT * tp), n),
    )  # fmt: skip


def _judged(params: int, width: int, sizes: Sequence[int]) -> tuple[Judged, ...]:
    one, found = law(DEFAULT), list[Judged]()
    first: Features | None = None
    for asked in sizes:
        o = option(params, width, asked)
        if o.left < 12 * width * width:
            found.append(Judged(asked, o, None))
            continue
        f = Features(body=o.left, total=params, width=width, depth=o.left / (12 * width * width),
                     tokens=TOKENS_A_PARAMETER * params)  # fmt: skip
        cost = None if first is None else one.difference(f, first)
        first = first or f
        found.append(Judged(asked, o, cost))
    return tuple(found)


def _compared(
    measured: Sequence[Measured], losses: Sequence[float], rates: Sequence[float]
) -> tuple[Compared, ...]:
    if not losses and not rates:
        return ()
    known = [(m.name, m.tokens_per_byte) for m in measured]
    known += [(f"{rate:g} tokens a byte", rate) for rate in rates]
    if len(known) != len(losses):
        raise FieldError(
            "--loss", f"{len(losses)} given", f"for {len(known)} tokenizers or rates",
            "a loss in nats a token can be compared only with its own tokens a byte",
        )  # fmt: skip
    for name, values in (("--loss", losses), ("--tokens-per-byte", rates)):
        for value in values:
            if not 0 < value < 1e3:
                raise FieldError(name, value, "must be above zero")
    return tuple(
        Compared(name, loss, rate, bits_per_byte(loss, rate))
        for (name, rate), loss in zip(known, losses, strict=True)
    )


def vocabulary_json(found: Answer) -> dict[str, Any]:
    """The answer as ``laws vocabulary --json`` prints it."""
    told: dict[str, Any] = {"schema": 1}
    if found.params is not None:
        told |= {
            "params": found.params, "d_model": found.width,
            "options": [_option_json(j, found.tp) for j in found.options],
            "english": _vocabulary_json(found.english),
            "by_compute": _vocabulary_json(found.by_compute), "tie_above": TIE_ABOVE,
        }  # fmt: skip
        if found.practice is not None:
            low, high, n = found.practice
            told["recommended"] = {"low": low, "high": high, "models": n,
                                   "multiple": ALIGNMENT * found.tp}  # fmt: skip
    if found.measured:
        told["measured"] = [
            m._asdict() | {"tokens_per_byte": m.tokens_per_byte,
                           "tokens_per_word": m.tokens_per_word,
                           "bits_per_byte_of_a_nat": m.bits_per_byte_of_a_nat}
            for m in found.measured
        ]  # fmt: skip
    if found.compared:
        told["compared"] = [c._asdict() for c in found.compared]
    if found.params is not None:
        told["missing"] = found.missing or None
    return told


def _option_json(j: Judged, tp: int) -> dict[str, Any]:
    cost = None
    if j.cost is not None:
        cost = {"value": j.cost.value, "low": j.cost.low, "high": j.cost.high,
                "unit": "nats/token", "kind": "fitted",
                "why": ["a smaller body at equal tokens, against the first option"]}  # fmt: skip
    return {**j.option._asdict(), "padded": _paddings(j.asked, tp), "smaller_body_cost": cost}


def _paddings(vocab_size: int, tp: int) -> dict[str, int]:
    return {str(m): padded(vocab_size, m) for m in sorted({64, ALIGNMENT, ALIGNMENT * tp})}


def _vocabulary_json(one: Vocabulary | None) -> dict[str, Any] | None:
    return None if one is None else one._asdict()


def vocabulary_lines(found: Answer) -> list[str]:
    """The answer as text."""
    lines = []
    if found.params is not None:
        lines += _option_lines(found) + _advice(found)
    if found.measured:
        lines += ["", *_measured_lines(found.measured)] if lines else _measured_lines(
            found.measured)  # fmt: skip
    if found.compared:
        lines += ["", *_compared_lines(found.compared)] if lines else _compared_lines(
            found.compared)  # fmt: skip
    return lines


def _option_lines(found: Answer) -> list[str]:
    assert found.params is not None
    multiple = ALIGNMENT * found.tp
    rows = [[
        "vocabulary", f"to ×{multiple}", "table", "share", "tie?", "tied: left", "layers",
        "untied: left", "layers", "untied total", "smaller body costs",
    ]]  # fmt: skip
    for j in found.options:
        o = j.option
        cost = "" if o.left > 12 * (found.width or 1) ** 2 else "no layer is left"
        if j.cost is not None:
            cost = f"{j.cost.value:+.3f} [{j.cost.low:+.3f}, {j.cost.high:+.3f}]"
        rows.append([
            f"{o.vocab_size:,}", f"{padded(o.vocab_size, multiple):,}", count_text(o.table),
            f"{o.share:.2%}", "tied" if o.tied else "untied", _left(o.left_tied),
            f"{o.layers_tied:.1f}", _left(o.left_untied), f"{o.layers_untied:.1f}",
            count_text(o.total_untied), cost,
        ])  # fmt: skip
    title = f"{count_text(found.params)} parameters at width {found.width:,}: what the table leaves"
    share = (
        f"share: one table of all parameters, tied above {TIE_ABOVE:.0%}; untied total: two tables "
        "on the layers of the tied model; layers of 12 D²."
    )
    price = (
        f"smaller body, tied or not as said: nats a token over the first option, at "
        f"{TOKENS_A_PARAMETER} tokens a parameter [90 %], by {DEFAULT}; what shorter text gains is "
        "not in it."
    )
    return [title, *aligned(rows), share, price]


def _left(parameters: int) -> str:
    return count_text(parameters) if parameters > 0 else "none"


def _advice(found: Answer) -> list[str]:
    assert found.practice is not None
    assert found.english is not None
    low, high, n = found.practice
    where = f"between {count_text(low)} and {count_text(high)}"
    where = where if low < high else f"at about {count_text(low)}"
    e = found.english
    multiple = ALIGNMENT * found.tp
    tie = TIE_ABOVE * (found.params or 0) / (found.width or 1)
    lines = ["", (
        f"Look {where}: the middle half of {n} recent "
        "models of this size class, up to the table share that nine of ten of them keep to"
    )]  # fmt: skip
    words = "; outside the sizes it was fitted to" if e.outside else ""
    lines.append(
        f"  English web text alone is served by less: {count_text(e.best)}, flat from "
        f"{count_text(e.low)} to {count_text(e.high)} (Tao et al.{words}); more languages need more"
    )
    if found.by_compute is not None:
        c = found.by_compute
        words = "; outside its budgets" if c.outside else ""
        lines.append(f"  by FLOPs: {count_text(c.best)}, flat from {count_text(c.low)} to "
                     f"{count_text(c.high)} (their isoFLOP fit{words})")  # fmt: skip
    lines.append(f"  tie from {count_text(tie)} up; a multiple of 64 or {ALIGNMENT}"
                 + (f", of {multiple} for TP {found.tp}" if found.tp > 1 else ""))  # fmt: skip
    if found.missing:
        lines.append(f"  missing: {found.missing}")
    return lines


def _measured_lines(measured: Sequence[Measured]) -> list[str]:
    least = min(m.tokens_per_byte for m in measured)
    rows = [["tokenizer", "vocabulary", "tokens", "tokens/byte", "bytes/token", "tokens/word",
             "1 nat/token in bits/byte", "FLOPs a byte"]]  # fmt: skip
    rows += [
        [m.name, f"{m.vocab_size:,}", f"{m.n_tokens:,}", f"{m.tokens_per_byte:.4f}",
         f"{1 / m.tokens_per_byte:.3f}", f"{m.tokens_per_word:.2f}",
         f"{m.bits_per_byte_of_a_nat:.4f}", f"×{m.tokens_per_byte / least:.3f}"]
        for m in measured
    ]  # fmt: skip
    first = measured[0]
    title = f"{first.n_bytes:,} bytes, {first.n_characters:,} characters, {first.n_words:,} words"
    note = "FLOPs a byte: of the layers for the same text, over the tokenizer of fewest tokens"
    return [title, *aligned(rows, left=(0,)), note]


def _compared_lines(compared: Sequence[Compared]) -> list[str]:
    best = min(compared, key=lambda c: c.bits_per_byte)
    rows = [["", "nats/token", "tokens/byte", "bits/byte", "over the least"]]
    for c in compared:
        over = "" if c is best else f"{c.bits_per_byte / best.bits_per_byte - 1:+.2%}"
        rows.append([c.name, f"{c.loss:.4f}", f"{c.tokens_per_byte:.4f}",
                     f"{c.bits_per_byte:.4f}", over])  # fmt: skip
    note = (
        "Nats a token of different vocabularies cannot be compared; bits a byte of the same text "
        "can. Compare time too, not parameters alone: fewer tokens a byte train faster."
    )
    return [*aligned(rows, left=(0,)), note]
