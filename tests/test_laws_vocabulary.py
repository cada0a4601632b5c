"""Vocabularies: the published derivative, and what its own table of runs says."""

import csv
import json
import math
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from case_files import cases
from scantling.cli import group
from scantling.errors import FieldError
from scantling.laws.measured_text import measure_text
from scantling.laws.vocabulary import (
    best_for_compute,
    best_vocabulary,
    bits_per_byte,
    option,
    tokens_per_character,
)
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


# ---------------------------------------------------------------- options, texts and losses


def run(*arguments):
    return CliRunner().invoke(
        group, ["laws", "vocabulary", *map(str, arguments)], standalone_mode=False,
        catch_exceptions=False,
    ).stdout  # fmt: skip


@pytest.mark.parametrize("one", cases("design"))
def test_a_vocabulary_for_a_budget_met_in_public(one):
    """Shares, layers left, tied, a multiple, a range to look in, and what is missing."""
    given = one["input"]
    if "vocab_options" not in given:
        pytest.skip("asks something else")
    asked = ["--params", int(given["budget_params"]), "--width", given["d_model"], "--options",
             ",".join(map(str, given["vocab_options"]))]  # fmt: skip
    said = json.loads(run(*asked, "--json"))
    for row, wanted in zip(said["options"], one["expected"]["share"], strict=True):
        assert row["share"] == pytest.approx(wanted["value"], rel=wanted["rtol"])
        left = given["budget_params"] - row["vocab_size"] * given["d_model"]
        assert row["left_tied"] == left
        assert row["layers_tied"] == pytest.approx(left / (12 * given["d_model"] ** 2))
        assert set(row["padded"]) >= {"64", "128"}
    assert 48_000 <= said["recommended"]["low"] < said["recommended"]["high"] <= 128_000
    assert "fertility" in said["missing"]
    text = run(*asked)
    assert "tie from" in text
    assert "87.9 M" in text  # "256k leaves 88M for layers"


def test_untied_tables_count_twice_and_more_ranks_pad_further():
    one = option(1e9, 2048, 32_000)
    assert not one.tied  # 6.6 %
    assert one.left == 10**9 - 2 * 32_000 * 2048
    assert one.total_untied - one.total_tied == one.table
    assert option(1e9, 2048, 128_256).tied  # 26 %
    said = json.loads(run("--params", "1B", "--options", "50257", "--tp", 8, "--json"))
    assert said["options"][0]["padded"] == {"64": 50_304, "128": 50_304, "1024": 51_200}


def test_the_best_vocabulary_for_compute_is_the_published_power():
    """N_v = e^-1.589 C^0.4164, C in 1e15, N_v in millions."""
    wanted = 1e6 * math.exp(-1.589) * 1e6**0.4164 / 2048
    assert best_for_compute(1e21, 2048, 1).best == pytest.approx(wanted, abs=1)
    assert best_for_compute(1e21, 2048).outside  # their largest runs took 3.7e20
    assert not best_for_compute(1e20, 2048).outside


def test_losses_of_two_vocabularies_are_compared_in_bits_a_byte():
    """2.9 nats of 4 bytes and 3.1 of 5: the higher loss a token is the better model of the text."""
    text = run("--loss", 2.9, "--tokens-per-byte", 0.25, "--loss", 3.1, "--tokens-per-byte", 0.2)
    assert f"{2.9 * 0.25 / math.log(2):.4f}" in text
    assert f"{(2.9 * 0.25) / (3.1 * 0.2) - 1:+.2%}" in text
    assert "cannot be compared" in text
    assert "time too" in text
    for wrong in (["--loss", 2.9], ["--tokens-per-byte", 0.2, "--loss", 1, "--loss", 2], [],
                  ["--options", "32k"], ["--text", "x.txt"]):  # fmt: skip
        with pytest.raises(FieldError):
            run(*wrong)


@pytest.fixture
def tokenizers_of(tmp_path):
    """One tokenizer of bytes, which has a token a byte by construction, and one of words."""
    library = pytest.importorskip("tokenizers")
    models, parts = library.models, library.pre_tokenizers
    alphabet = {c: i for i, c in enumerate(sorted(parts.ByteLevel.alphabet()))}
    one = library.Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    one.pre_tokenizer = parts.ByteLevel(add_prefix_space=False, use_regex=False)
    two = library.Tokenizer(models.WordLevel({"[UNK]": 0, "ein": 1, "Haus": 2}, unk_token="[UNK]"))
    two.pre_tokenizer = parts.WhitespaceSplit()
    for name, tokenizer in (("bytes", one), ("words", two)):
        (tmp_path / name).mkdir()
        tokenizer.save(str(tmp_path / name / "tokenizer.json"))
    return tmp_path


def test_tokens_a_byte_are_measured_on_the_users_text(tokenizers_of):
    text = tokenizers_of / "text.txt"
    text.write_text("ein schönes Haus\n" * 10_000, encoding="utf-8")  # 18 bytes, 17 characters
    found = {name: measure_text(text, tokenizers_of / name) for name in ("bytes", "words")}
    assert found["bytes"].n_bytes == 180_000
    assert found["bytes"].n_characters == 170_000
    assert found["bytes"].tokens_per_byte == 1.0
    assert found["words"].n_tokens == 30_000
    assert found["words"].tokens_per_word == 1.0
    assert found["words"].bits_per_byte_of_a_nat == pytest.approx(1 / 6 / math.log(2))
    said = json.loads(run(
        "--params", "350M", "--text", text, "--tokenizer", tokenizers_of / "bytes", "--tokenizer",
        tokenizers_of / "words" / "tokenizer.json", "--loss", 1.0, "--loss", 6.0, "--json",
    ))  # fmt: skip
    assert [m["name"] for m in said["measured"]] == ["bytes", "words"]
    a, b = said["compared"]
    assert a["bits_per_byte"] == pytest.approx(b["bits_per_byte"])
    assert said["missing"] is None


def test_a_bad_text_or_tokenizer_is_one_line(tokenizers_of, monkeypatch):
    text = tokenizers_of / "text.txt"
    text.write_bytes(b"")
    one = tokenizers_of / "bytes"
    for path, tokenizer, message in (
        (text, one, "has no text"),
        (tokenizers_of / "none.txt", one, "cannot be read"),
        (Path(__file__), tokenizers_of / "none.json", "is no file"),
        (Path(__file__), Path(__file__), "is no tokenizer.json"),
    ):
        with pytest.raises(FieldError, match=message):
            measure_text(path, tokenizer)
    text.write_bytes(bytes(range(128, 256)) * 50)
    with pytest.raises(FieldError, match="is no UTF-8"):
        measure_text(text, one)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(FieldError, match=r"needs the tokenizers library; pip install"):
        measure_text(Path(__file__), one)
