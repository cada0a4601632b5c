"""Units as people write and read them."""

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scantling.errors import FieldError
from scantling.units import (
    bytes_text,
    count_text,
    parse_bytes,
    parse_context,
    parse_count,
    parse_seconds,
    seconds_text,
)

fixed = settings(derandomize=True, deadline=None, max_examples=400, database=None)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7B", 7 * 10**9), ("7b", 7 * 10**9), ("7 B", 7 * 10**9), ("7G", 7 * 10**9),
        ("1.5T", 1_500 * 10**9), ("125M", 125 * 10**6), ("125m", 125 * 10**6), ("0.5k", 500),
        ("1e22", 10**22), ("1E22", 10**22), ("1.5e3", 1500), ("6.02e+23", 602 * 10**21),
        ("128_256", 128_256), ("128,256", 128_256), ("8k", 8000), ("8Ki", 8192),
        ("1Mi", 2**20), (".5M", 500_000), ("3P", 3 * 10**15), ("2E", 2 * 10**18), ("1Z", 10**21),
        (7_000_000_000, 7 * 10**9), (1e22, 10**22), (512.0, 512), (" 42 ", 42), ("+3", 3),
    ],
)  # fmt: skip
def test_a_count_is_read_as_it_is_written(text, value):
    """SI prefixes are powers of ten, B is a billion, Ki and Mi powers of two (IEC 80000-13)."""
    assert parse_count(text) == value
    assert isinstance(parse_count(text), int)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8k", 8192), ("8K", 8192), ("128k", 131_072), ("1M", 2**20), ("8000", 8000),
        (4096, 4096), ("8Ki", 8192), ("32_768", 32_768),
    ],
)  # fmt: skip
def test_a_context_counts_in_powers_of_two_as_everybody_writes_it(text, value):
    """Llama 3.1's 128k is max_position_embeddings 131072."""
    assert parse_context(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("80GB", 80 * 10**9), ("80 GB", 80 * 10**9), ("80G", 80 * 10**9), ("80GiB", 80 * 2**30),
        ("80gib", 80 * 2**30), ("128KiB", 2**17), ("16kB", 16_000), ("1TB", 10**12),
        ("1TiB", 2**40), ("512", 512), ("512B", 512), ("512 b", 512), ("1.5KiB", 1536),
    ],
)  # fmt: skip
def test_a_size_is_decimal_unless_its_unit_has_an_i(text, value):
    assert parse_bytes(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("30ms", 0.03), ("3.2 ms", 0.0032), ("500us", 0.0005), ("500µs", 0.0005), ("20ns", 2e-8),
        ("2", 2.0), ("2s", 2.0), ("1.5 min", 90.0), ("2h", 7200.0), ("14d", 1_209_600.0),
        ("1 day", 86_400.0), ("3 days", 259_200.0), ("2 hours", 7200.0), (0.25, 0.25),
    ],
)  # fmt: skip
def test_a_duration_is_read_in_seconds(text, value):
    assert parse_seconds(text) == value


PARSERS = (parse_count, parse_context, parse_bytes, parse_seconds)


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize(
    "text", ["", " ", "B", "seven", "7BB", "7 B B", "--3", "1..5", "nan", "inf", "0x10",
             "7q", "7 parameters", "1/2"],
)  # fmt: skip
def test_what_is_no_number_with_a_unit_is_an_error_that_shows_how_to_write_one(parse, text):
    with pytest.raises(FieldError) as caught:
        parse(text, "limit")
    assert caught.value.path == "limit"
    assert "write" in caught.value.hint


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize("text", ["0", "-3", "-1e3", 0, -1.5, "0.0"])
def test_nothing_and_less_is_an_error(parse, text):
    with pytest.raises(FieldError, match="must be above zero"):
        parse(text)


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize("text", ["1e41", "9" * 42, "1e400"])
def test_a_number_beyond_every_model_is_an_error(parse, text):
    with pytest.raises(FieldError, match="at most 1e40"):
        parse(text)


@pytest.mark.parametrize("text", ["1.5", "0.0001k", "1e-3", "1.2345k", "0.3"])
def test_a_count_is_whole(text):
    with pytest.raises(FieldError, match="must be a whole number"):
        parse_count(text)


@pytest.mark.parametrize("text", ["0.3", "0.5B", "1.5"])
def test_a_size_is_whole(text):
    with pytest.raises(FieldError):
        parse_bytes(text)


@pytest.mark.parametrize(("text", "value"), [("1.5k", 1536), ("0.5M", 524_288), ("2.0k", 2048)])
def test_a_context_with_a_fraction_counts_in_powers_of_two_too(text, value):
    assert parse_context(text) == value


def test_one_hour_is_read_like_two_hours():
    assert parse_seconds("1 hour") == 3600.0


# ---------------------------------------------------------------- printing


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"), (512, "512"), (1234, "1,234"), (9999, "9,999"), (10_000, "10 k"),
        (12_345, "12.3 k"), (128_256, "128 k"), (999_400, "999 k"), (999_600, "1 M"),
        (124_439_808, "124 M"), (8_030_261_248, "8.03 B"), (10**12, "1 T"), (15 * 10**12, "15 T"),
        (3.8e25, "38 Y"), (0, "0"), (1.5, "1.5"), (-8_030_261_248, "-8.03 B"),
    ],
)  # fmt: skip
def test_a_count_is_printed_with_three_digits(value, text):
    assert count_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (100, "100 B"), (1023, "1023 B"), (1024, "1 KiB"), (131_072, "128 KiB"),
        (80 * 2**30, "80 GiB"), (1536, "1.5 KiB"), (2**40, "1 TiB"), (2**50, "1 PiB"),
        (2**20 - 1, "1 MiB"), (0, "0 B"),
    ],
)  # fmt: skip
def test_a_size_is_printed_in_binary_units(value, text):
    assert bytes_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.00512, "5.12 ms"), (1, "1 s"), (59, "59 s"), (90, "1.5 min"), (7200, "2 h"),
        (36 * 3600, "36 h"), (86400 * 42.3, "42.3 days"), (12e-6, "12 µs"), (0, "0 µs"),
        (math.inf, "∞"),
    ],
)  # fmt: skip
def test_a_duration_is_printed_in_the_unit_one_would_say(value, text):
    assert seconds_text(value) == text


@fixed
@given(st.integers(1, 10**23))
@example(9_999)
@example(999_499)
@example(999_500)
def test_a_printed_count_reads_as_itself_to_three_digits(value):
    """Half a unit of the third digit is at most 1/200 of the value."""
    assert abs(parse_count(count_text(value)) / value - 1) <= 1 / 200


def test_a_count_of_yotta_reads_as_itself():
    """Llama 3 405B took 3.8e25 FLOPs (Dubey et al. 2024, section 3.2)."""
    assert parse_count(count_text(3.8e25)) == 38 * 10**24


@fixed
@given(st.integers(1, 2**60))
def test_a_printed_size_reads_as_itself_to_three_digits(value):
    assert abs(parse_bytes(bytes_text(value)) / value - 1) <= 1 / 200


@fixed
@given(st.floats(1e-6, 1e9))
def test_a_printed_duration_reads_as_itself_to_three_digits(value):
    assert abs(parse_seconds(seconds_text(value)) / value - 1) <= 1 / 200


@fixed
@given(st.integers(1, 10**18))
def test_a_whole_number_reads_as_itself_in_every_spelling(value):
    for text in (value, str(value), f"{value:,}", f"{value:_}", f" {value} "):
        assert parse_count(text) == value
    assert parse_context(value) == parse_bytes(value) == value
    assert parse_bytes(f"{value}KiB") == value * 1024
    assert parse_count(f"{value}k") == value * 1000
