"""The vocabulary of least loss, how flat it is there, and losses that vocabularies can share."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

from scantling.errors import FieldError
from scantling.sources import read_data

SMALLEST, LARGEST = 1024, 2_000_000
TIE_ABOVE = 0.15
"""Tie when the table is more than this share of all parameters (notes on tying, press2017)."""


class Option(NamedTuple):
    """What a vocabulary takes of a model of so many parameters in all, tied and untied.

    ``table`` is V D and ``share`` its share of all parameters; ``tied`` is what the rule says and
    ``left`` what it leaves, in parameters; layers are of about 12 D² each.
    ``total_untied`` is all parameters of the tied model's layers with two tables.
    """

    vocab_size: int
    table: int
    share: float
    tied: bool
    left: int
    left_tied: int
    layers_tied: float
    left_untied: int
    layers_untied: float
    total_tied: int
    total_untied: int


class Vocabulary(NamedTuple):
    """The best vocabulary of a model, and the range within a tolerance of its loss."""

    best: int
    low: int
    high: int
    outside: bool


@functools.cache
def _constants() -> dict[str, Any]:
    found: dict[str, Any] = read_data("laws.toml")["vocabulary"]
    return found


def tokens_per_character(vocab_size: float) -> float:
    """Tokens a character of English web text: 0.00639 ln²V − 0.1581 ln V + 1.2047 (``tao2024``).

    Example:
        >>> round(1 / tokens_per_character(32768), 1)  # characters a token
        4.0
    """
    a, b, c = _constants()["tokens_per_character"]
    x = math.log(vocab_size)
    return float(a * x * x + b * x + c)


def bits_per_byte(loss: float, tokens_per_byte: float) -> float:
    """A loss in nats a token as bits a byte of text, which vocabularies can share.

        bits a byte = loss · tokens a byte / ln 2

    Args:
        loss: Nats a token.
        tokens_per_byte: Of this vocabulary on the text meant, measured.

    Example:
        >>> bits_per_byte(math.log(2), 1.0)
        1.0
    """
    return loss * tokens_per_byte / math.log(2)


def best_vocabulary(non_vocabulary: float, width: float, multiple: int = 128) -> Vocabulary:
    """The vocabulary for a body by the derivative approach of Tao et al.

    The parameters of the best vocabulary grow slower than the rest,

        V d = 3 145 728 · (N_nv/33 M)^0.8354

    The loss of the same paper (``tao-2024``) is not used: it misses the paper's own table of runs
    by 0.13 nats, and a refit missed held-out sizes by 0.13.
    The range is what the measured valley was flat in: between 0.63 and 1.13 B, 16 k to 64 k, a
    factor of two to either side, lay within 0.015 to 0.073 nats.

    Args:
        non_vocabulary: Parameters without embeddings and head, N_nv.
        width: ``d_model``.
        multiple: The best is rounded up to one of these.

    Raises:
        FieldError: If a number is not positive.

    Example:
        >>> best_vocabulary(33e6, 512)  # where the formula starts: 3145728 / 512 = 6144
        Vocabulary(best=6144, low=3072, high=12288, outside=False)
        >>> best_vocabulary(7e9, 4096).best
        67456
    """
    for name, value in (("non_vocabulary", non_vocabulary), ("width", width)):
        if not value > 0:
            raise FieldError(name, value, "must be above zero")
    c = _constants()
    parameters = c["start"] * (non_vocabulary / c["start_size"]) ** c["growth"]
    low, high = c["domain"]
    outside = not low <= non_vocabulary <= high
    return _valley(parameters / width, multiple, outside=outside)


def best_for_compute(flops: float, width: float, multiple: int = 128) -> Vocabulary:
    """The vocabulary for a number of training FLOPs by the isoFLOP approach of Tao et al.

        V d = 1e6 · e^−1.589 · (C / 1e15)^0.4164

    Args:
        flops: Training FLOPs, C.
        width: ``d_model``.
        multiple: The best is rounded up to one of these.

    Raises:
        FieldError: If a number is not positive.

    Example:
        >>> best_for_compute(2.5e17, 512).best  # their smallest runs: 4 k was best
        4096
    """
    for name, value in (("flops", flops), ("width", width)):
        if not value > 0:
            raise FieldError(name, value, "must be above zero")
    c = _constants()["isoflop"]
    parameters = c["parameters"] * math.exp(c["intercept"]) * (flops / c["unit"]) ** c["power"]
    low, high = _constants()["isoflop_domain"]
    return _valley(parameters / width, multiple, outside=not low <= flops <= high)


def _valley(best: float, multiple: int, *, outside: bool) -> Vocabulary:
    middle = min(max(best, SMALLEST), LARGEST)
    at, below, above = (padded(x, multiple) for x in (middle, middle / 2, middle * 2))
    return Vocabulary(at, below, above, outside)


def padded(vocab_size: float, multiple: int) -> int:
    """A vocabulary rounded up to a multiple, so that the table splits and its products are full.

    Example:
        >>> padded(50257, 64), padded(50257, 128), padded(50257, 128 * 8)
        (50304, 50304, 51200)
    """
    return -(-int(vocab_size) // multiple) * multiple


def embedding_parameters(
    body: float, width: float, vocab_size: int, *, tied: bool | None = None
) -> int:
    """Parameters of embedding and head beside a body: one table where it is large, else two.

    Tied where one table is over ``TIE_ABOVE`` of what the model would be with two, unless said.

    Example:
        >>> embedding_parameters(7e9, 4096, 128256), embedding_parameters(1e9, 2048, 128256)
        (1050673152, 262668288)
    """
    table = int(vocab_size * width)
    alike = table > TIE_ABOVE * (body + 2 * table) if tied is None else tied
    return table if alike else 2 * table


def option(total: float, width: float, vocab_size: int, *, tied: bool | None = None) -> Option:
    """What a vocabulary takes of a budget of parameters in all.

    One table is V D parameters. Tied it is counted once, untied twice, and the rest is layers of
    about 12 D² each. Tied where one table is over ``TIE_ABOVE`` of the total, unless said.

    Args:
        total: All parameters.
        width: ``d_model``.
        vocab_size: The vocabulary.
        tied: Whether embedding and head share the table; by the rule where ``None``.

    Raises:
        FieldError: If a number is not positive.

    Example:
        >>> big = option(350e6, 1024, 256_000)
        >>> round(big.share, 3), big.tied, big.left, round(big.layers_tied, 1)
        (0.749, True, 87856000, 7.0)
    """
    for name, value in (("total", total), ("width", width), ("vocab_size", vocab_size)):
        if not value > 0:
            raise FieldError(name, value, "must be above zero")
    table, layer, whole = int(vocab_size * width), 12 * width * width, int(total)
    share = table / total
    alike = share > TIE_ABOVE if tied is None else tied
    once, twice = whole - table, whole - 2 * table
    return Option(
        vocab_size, table, share, alike, once if alike else twice, once, max(once, 0) / layer,
        twice, max(twice, 0) / layer, whole, whole + table,
    )  # fmt: skip
