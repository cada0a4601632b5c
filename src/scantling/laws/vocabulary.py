"""The vocabulary of least loss, how flat it is there, and losses that vocabularies can share."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

from scantling.errors import FieldError
from scantling.sources import read_data

SMALLEST, LARGEST = 1024, 2_000_000


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
    best = min(max(parameters / width, SMALLEST), LARGEST)
    low, high = c["domain"]
    at, below, above = (-(-int(x) // multiple) * multiple for x in (best, best / 2, best * 2))
    return Vocabulary(at, below, above, outside=not low <= non_vocabulary <= high)
