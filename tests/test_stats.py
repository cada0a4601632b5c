"""What real models do: traits as the audit's survey has them, years, rules followed."""

import json

import pytest
from click.testing import CliRunner

from scantling import catalog
from scantling.cli import group
from scantling.report.trends import (
    HEADS,
    LAYOUTS,
    NUMBERS,
    SHARES,
    Traits,
    by_year,
    followed,
    quartiles,
    released_traits,
    selected,
    traits,
)
from scantling.rules import load_rules, select, setting
from scantling.rules.registry import Found, Rule

SURVEY = {
    # D/L, H h / D, K, F / D or experts' F / D, vocabulary, tied, layout: audit, section 4
    "qwen3-0.6b": (37, 2.00, 8, 3.00, 151936, True, "full"),
    "qwen3-32b": (80, 1.60, 8, 5.00, 151936, False, "full"),
    "qwen3-235b-a22b": (44, 2.00, 4, 3.00, 151936, False, "full"),
    "qwen3-next-80b-a3b": (43, 2.00, 2, 2.75, 151936, False, "recurrent"),
    "gpt-oss-120b": (80, 1.42, 8, 4.00, 201088, False, "windows"),
    "deepseek-v3": (118, 2.29, None, 2.57, 129280, False, "latent"),
    "kimi-k2": (118, 1.14, None, 2.57, 163840, False, "latent"),
    "glm-4.5-air": (89, 3.00, 8, 3.09, 151552, False, "full"),
    "minimax-m2": (50, 2.00, 8, 4.00, 200064, False, "full"),
    "gemma-3-1b": (44, 0.89, 1, 6.00, 262144, True, "windows"),
    "gemma-3-27b": (87, 0.76, 16, 4.00, 262208, True, "windows"),
    "smollm3-3b": (57, 1.00, 4, 5.38, 128256, True, "full"),
    "llama-4-maverick": (107, 1.00, 8, 3.20, 202048, False, "windows"),
    "nemotron-h-8b": (79, 1.00, 8, 5.25, 131072, False, "recurrent"),
}


def invoke(*args):
    return CliRunner().invoke(group, ["models", "stats", *args], standalone_mode=False)


@pytest.mark.parametrize("name", SURVEY)
def test_traits_are_those_of_the_survey(name):
    aspect, width, kv, ffn, vocabulary, tied, layout = SURVEY[name]
    one = traits(name)
    n = one.numbers
    assert n["aspect"] == pytest.approx(aspect, abs=0.51)
    assert n["attention_width"] == pytest.approx(width, abs=0.005)
    assert n.get("n_kv_head") == kv
    assert n.get("expert_ratio", n.get("ffn_ratio")) == pytest.approx(ffn, abs=0.01)
    assert n["vocab_size"] == vocabulary
    assert (one.shares["tied"], one.layout) == (tied, layout)


def made(name, released, width, *, moe):
    shares = dict.fromkeys(SHARES, False) | {"moe": moe}
    return Traits(name=name, released=released, numbers={"d_model": width}, shares=shares,
                  layout="full", heads="MHA")  # fmt: skip


def test_years_have_quartiles_and_shares_of_their_models():
    """Widths 1 to 5 have quartiles 2, 3 and 4; two of five have experts."""
    group_ = [made(str(n), "2024-03", n, moe=n > 3) for n in range(1, 6)]
    first, second = by_year([*group_, made("later", "2025-12", 7, moe=True)])
    q = first.numbers["d_model"]
    assert (q.low, q.median, q.high, q.n) == (2, 3, 4, 5)
    assert (first.year, first.n, first.shares["moe"]) == (2024, 5, 0.4)
    assert first.layouts["full"] == first.heads["MHA"] == 1
    assert second.numbers["d_model"] == quartiles([7])
    assert "vocab_size" not in first.numbers


def test_only_released_shapes_count_and_each_once():
    names = {one.name for one in released_traits()}
    assert {"llama-3.1-70b", "llama-3.3-70b"} - names  # one shape
    assert "gpt3-175b" not in names  # only timed
    assert not any(catalog.named()[name].tuned_from for name in names)
    assert len(names) > 150
    years = by_year(released_traits())
    assert sum(y.n for y in years) == len(names)
    for y in years:
        assert sum(y.layouts.values()) == pytest.approx(1)
        assert sum(y.heads.values()) == pytest.approx(1)


def test_every_model_has_a_layout_and_the_numbers_that_all_have():
    for one in released_traits():
        assert one.layout in LAYOUTS
        assert one.heads in HEADS
        assert set(one.numbers) <= set(NUMBERS)
        assert {"d_model", "aspect", "vocab_size", "parameters"} <= set(one.numbers)
        assert ("expert_ratio" in one.numbers) == one.shares["moe"]


def test_models_can_be_chosen_by_year_size_and_kind():
    assert {one.year for one in selected(since=2025)} == {2025, 2026}
    few = selected(least=6e9, most=9e9, kind="dense")
    assert "llama-3-8b" in {one.name for one in few}
    assert all(6e9 <= one.numbers["parameters"] <= 9e9 for one in few)
    assert not any(one.shares["moe"] for one in few)
    assert all(one.shares["moe"] for one in selected(kind="moe"))


def odd_width(s):
    """The width is a power of two."""
    width = int(s.legal.d_model)
    if width & -width != width:
        yield Found("info", "d_model", f"{width} is no power of two")


def test_a_rule_is_followed_by_the_models_it_has_nothing_to_say_of():
    """GPT-2's 768 and 1600 against its 1024, all of 2019, and Llama 2 70B's 8192 of 2023."""
    rule = Rule(code="SC999", slug="odd", check=odd_width, reads="spec", sources=())
    models = [traits(n) for n in ("gpt2", "gpt2-medium", "gpt2-xl", "llama-2-70b")]
    load_rules()
    (row,) = followed({"SC999": rule}, models)
    assert row.share == 0.5
    assert row.by_year == {2019: pytest.approx(1 / 3), 2023: 1.0}
    assert row.broken == ("gpt2", "gpt2-xl")


def test_rules_are_asked_under_the_setting_given():
    """28 heads of Qwen2 7B do not divide by 8; without a degree nobody asks."""
    models = [traits("qwen2-7b"), traits("llama-3.1-8b")]
    rules = select(["SC201"])
    assert followed(rules, models)[0].share == 1
    assert followed(rules, models, setting(tp=8))[0].broken == ("qwen2-7b",)


def test_gpt2s_vocabulary_breaks_the_rule_of_padding_and_llamas_does_not():
    rows = followed(select(["SC501"]), [traits("gpt2"), traits("llama-3.1-8b")])
    assert rows[0].broken == ("gpt2",)


def test_the_command_prints_years_json_and_a_figure(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "trends.svg"
    said = invoke("--plot", str(path), "--json")
    told = json.loads(said.stdout)
    assert path.read_text("utf-8").lstrip().startswith("<?xml")
    assert [y["year"] for y in told["years"]] == sorted({one.year for one in released_traits()})
    assert "rules" not in told
    assert "D / L" in invoke("--since", "2024").stdout


def test_the_command_prints_the_share_that_follows_each_rule():
    told = json.loads(invoke("--rules", "--since", "2025", "--json").stdout)["rules"]
    assert {row["code"] for row in told} == set(load_rules())
    assert all(0 <= row["share"] <= 1 for row in told)
    assert "SC501" in invoke("--select", "SC501", "--kind", "dense").stdout


@pytest.mark.parametrize(
    ("args", "text"),
    [(["--kind", "dence"], "use dense or moe"), (["--tp", "8"], "add --rules"),
     (["--plot", "no/x.svg"], "does not exist"), (["--select", "SC77777"], "SC77777")],
)  # fmt: skip
def test_wrong_input_is_one_line(args, text):
    found = invoke(*args)
    assert text in str(found.exception)


def test_no_model_is_the_answer_no():
    assert invoke("--least", "900T").return_value == 1
