"""Vocabularies: the published derivative, and what its own table of runs says."""

import csv
import math
from pathlib import Path

import pytest

from scantling.errors import FieldError
from scantling.laws.vocabulary import best_vocabulary, bits_per_byte, tokens_per_character
from scantling.sources import read_data, sources

TABLES = Path(__file__).parents[2] / "shared" / "data" / "scaling"


def rows():
    path = TABLES / "vocab_tao2024.csv"
    if not path.exists():
        pytest.skip("the table of runs with vocabularies is not beside this checkout")
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def test_tokens_a_character_are_those_of_the_tokenizers_of_the_runs():
    for row in rows()[::37]:
        tokens = float(row["num_characters"]) * tokens_per_character(float(row["vocab"]))
        assert tokens == pytest.approx(float(row["tokens"]), rel=1e-3)


def test_the_best_vocabulary_lies_in_the_valley_that_was_measured():
    """Best V rises from 4 k at 33 M to 32 k at 1.13 B; there 16 k to 64 k is nearly flat."""
    large, small = best_vocabulary(1.13e9, 2048), best_vocabulary(33e6, 512)
    assert 16_384 <= large.best <= 65_536
    assert small.low <= 4096 <= small.high
    assert large.low <= 32_768 <= large.high


def test_vocabulary_parameters_grow_with_the_published_power():
    one, ten = best_vocabulary(1e9, 2048, 1), best_vocabulary(1e10, 2048, 1)
    assert ten.best / one.best == pytest.approx(10**0.8354, rel=1e-3)
    assert ten.outside
    assert not one.outside
    assert best_vocabulary(1e9, 2048, 64).best % 64 == 0


def test_one_nat_a_token_of_four_bytes_is_a_quarter_nat_a_byte():
    assert bits_per_byte(1.0, 0.25) == pytest.approx(0.25 / math.log(2))


def test_bad_numbers_are_refused_and_the_source_is_known():
    with pytest.raises(FieldError, match="above zero"):
        best_vocabulary(0, 512)
    assert read_data("laws.toml")["vocabulary"]["source"] in sources()
