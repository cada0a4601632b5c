"""Text from a seeded grammar whose entropy rate is known: the floor of any loss on it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from scantling.errors import FieldError

MOST_CHILDREN = 0.85
"""Mean symbols a rule leaves to be said: below 1, else sentences never end."""
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"


class Rule(NamedTuple):
    """One way to say a symbol: a word, then these symbols."""

    word: str
    children: tuple[int, ...]
    probability: float


@dataclass(frozen=True)
class Grammar:
    """A probabilistic grammar in which every symbol is told by the next word.

    A sentence is the first symbol; each symbol is a word followed by no, one or two symbols.
    The rules of one symbol begin with different words, so a sentence has one derivation, and its
    probability is the product of its rules'. What comes next is known only to a reader who
    remembers which symbols are still to be said: a stack. Python's own generator draws, which is
    the same on every machine.

    Args:
        seed: Of the rules and of the text.
        n_symbol: Symbols.
        n_rule: Rules of each.
        n_word: Words they share.

    Raises:
        FieldError: If a number is below 1, or there are fewer words than rules.

    Example:
        >>> Grammar().text(50).decode().splitlines()
        ['suva tizo mili', 'nesogu gudula deteta', 'suva tizo tuta']
    """

    seed: int = 0
    n_symbol: int = 8
    n_rule: int = 6
    n_word: int = 48

    def __post_init__(self) -> None:
        for name in ("n_symbol", "n_rule", "n_word"):
            if getattr(self, name) < 1:
                raise FieldError(name, getattr(self, name), "must be at least 1")
        if self.n_word < self.n_rule:
            raise FieldError("n_word", self.n_word, f"must be at least n_rule {self.n_rule}")

    @functools.cached_property
    def rules(self) -> tuple[tuple[Rule, ...], ...]:
        """The rules of each symbol, the likely ones first."""
        draw = Random(self.seed).random  # noqa: S311 - a model of language, no secret
        words = _words(draw, self.n_word)
        return tuple(tuple(self._symbol(draw, words)) for _ in range(self.n_symbol))

    def _symbol(self, draw: Callable[[], float], words: list[str]) -> Iterator[Rule]:
        """Rules with Zipf's probabilities; the children that the mean leaves room for."""
        total = sum(1 / (i + 1) for i in range(self.n_rule))
        left, room = list(words), MOST_CHILDREN
        for i in range(self.n_rule):
            p = 1 / (i + 1) / total
            n = min(int(draw() * 3), int(room / p))
            room -= n * p
            word = left.pop(int(draw() * len(left)))
            yield Rule(word, tuple(int(draw() * self.n_symbol) for _ in range(n)), p)

    def sentences(self) -> Iterator[tuple[str, float]]:
        """Sentences without end, each with its probability in bits, −log₂ p."""
        draw = Random(f"{self.seed} text").random  # noqa: S311 - the same
        while True:
            said, stack, bits = [], [0], 0.0
            while stack:
                rules, at = self.rules[stack.pop()], draw()
                for rule in rules:
                    at -= rule.probability
                    if at < 0:
                        break
                said.append(rule.word)
                bits -= math.log2(rule.probability)
                stack += reversed(rule.children)
            yield " ".join(said) + "\n", bits

    def text(self, n_bytes: int) -> bytes:
        """The first bytes of the text, one sentence a line."""
        parts, n = [], 0
        for sentence, _ in self.sentences():
            parts.append(sentence)
            n += len(sentence)
            if n >= n_bytes:
                break
        return "".join(parts).encode()[:n_bytes]

    @property
    def bits_per_byte(self) -> float:
        """The entropy rate, exact.

        With A → w α of probability p, the bits H and bytes B of what a symbol becomes are means:
        H(A) = Σ p (−log₂ p + Σ_{C in α} H(C)) and B(A) = Σ p (|w| + 1 + Σ_{C in α} B(C)), each a
        linear system. A word is followed by one byte, blank or end of line, which the stack tells.
        Sentences are independent, so the rate is H / B of the first symbol.
        """
        import numpy as np

        mean = np.zeros((self.n_symbol, self.n_symbol))
        own = np.zeros((self.n_symbol, 2))
        for symbol, rules in enumerate(self.rules):
            for rule in rules:
                own[symbol] += (-rule.probability * math.log2(rule.probability),
                                rule.probability * (len(rule.word) + 1))  # fmt: skip
                for child in rule.children:
                    mean[symbol, child] += rule.probability
        bits, n_bytes = np.linalg.solve(np.eye(self.n_symbol) - mean, own)[0]
        return float(bits / n_bytes)


def _words(draw: Callable[[], float], n: int) -> list[str]:
    """Different words of one to three syllables."""
    found: dict[str, None] = {}
    while len(found) < n:
        syllables = 1 + int(draw() * 3)
        word = "".join(letters[int(draw() * len(letters))]
                       for _ in range(syllables) for letters in (CONSONANTS, VOWELS))  # fmt: skip
        found[word] = None
    return list(found)
