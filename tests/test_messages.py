"""The Chinese of what people read: nothing is missing, nothing is lost, JSON stays as it is."""

import ast
import json
import os
import pathlib
import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

import scantling
from scantling.cli import VERBS, group
from scantling.errors import FieldError, UnknownNameError
from scantling.messages import has_message, in_language, use_language
from scantling.report.glossary import find_term, terms
from scantling.rules import lint, load_rules, setting
from scantling.rules.examples import examples
from scantling.sources import read_data, source

ROOT = pathlib.Path(scantling.__file__).parent
FILES = [
    *sorted((ROOT / "rules").glob("*.py")),
    *(ROOT / "search" / f"{name}.py" for name in ("candidate", "explain", "shape_findings")),
    *(ROOT / "report" / f"{name}.py" for name in (
        "alignment_text", "attention_text", "depth_limits", "lab_html", "lab_ladder", "lab_probe",
        "lab_svg", "lab_text", "lint_text", "pair", "pair_text", "plan_text", "runtimes",
        "runtimes_text", "serve_text", "text", "trace_text", "trends", "trends_text",
    )),
    *(ROOT / "lab" / "study" / f"{name}.py" for name in ("answer", "ladder", "plan", "verdict")),
]  # fmt: skip
"""Files every text of which is in the catalogue: a new one is told here first."""

SAID = re.compile(r"[A-Za-z]{2,}[ ,:;]+\(?[A-Za-z{]")
"""Words, as against names, keys and units."""
NAMED = re.compile(r"--?[\w-]+ \S+|\w*_\w* \{\}|(TP|ep|cp|pp|factor) \{\}|--ep \{\}\{\}|2.43 ln D")
"""A key, an option or a formula with its value, alike in every language."""
MARKUP = re.compile(r"\s*(<|font-family=|body \{ font: )")
"""Of a picture or a page."""
NOT_SAID = {
    "{} {}, Python {}",  # a machine
    "bold red",  # a colour
    r"^the class of (\\S+) needs (.*), which does not hold$".replace("\\\\", "\\"),
    r"assumed: (\\S+) is not given, the class default is (\\S+)".replace("\\\\", "\\"),
    r"(\\S+) is written as (\\S+), read as (\\d+)".replace("\\\\", "\\"),
    r"(\\S+) (.+) is not read: (\\S+) is (.+)".replace("\\\\", "\\"),
}
"""What is matched against, not shown."""


@pytest.fixture
def chinese():
    """Text in Chinese for one test."""
    use_language("zh")
    yield
    use_language("en")


def template(node):
    """A string of the source as the catalogue writes it; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(v.value if isinstance(v, ast.Constant) else "{}" for v in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = template(node.left), template(node.right)
        return None if left is None or right is None else left + right
    return None


def said(node):
    """Every text below a node of the source, those within an f-string's fields too."""
    text = template(node)
    if text is not None:
        yield text
        if isinstance(node, ast.JoinedStr):
            for value in node.values:
                if isinstance(value, ast.FormattedValue):
                    yield from said(value.value)
        return
    for child in ast.iter_child_nodes(node):
        doc = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        if not doc and not isinstance(child, ast.Assert):
            yield from said(child)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_text_of_a_rule_or_a_report_is_missing(path):
    texts = {t for t in said(ast.parse(path.read_text("utf-8"))) if SAID.search(t)} - NOT_SAID
    texts = {t for t in texts if not (t.startswith("scantling.") or NAMED.fullmatch(t))}
    texts = {t for t in texts if not MARKUP.match(t)}

    assert {t for t in texts if not has_message(t)} == set()


@pytest.mark.usefixtures("chinese")
@pytest.mark.parametrize("example", examples(), ids=lambda e: e.code)
def test_a_finding_is_chinese_throughout_also_what_others_passed_on(example):
    """Refusals of the reader, sides of matrices, scalings: no two English words are left together.

    Names of kernels, schemes and classes stay, as do code and the title of a runtime.
    """
    for finding in lint(example.config, setting(**example.setting), name=example.name).findings:
        for text in (finding.message, finding.fix.text if finding.fix else ""):
            left = in_language(text)
            for name in ("SDPA flash", "memory-efficient", "CUDA flash attention",
                         "TensorRT-LLM masked attention"):  # fmt: skip
                left = left.replace(name, "")
            assert not re.search(r"(?<![\w-])(?!in )[a-z]{2,} [a-z]{2,}\b", left), text


def test_a_design_is_told_in_chinese_on_the_screen_and_in_its_report(tmp_path):
    """No two English words are left together; sections beside the front are not looked at."""
    done = CliRunner().invoke(group, ["design", "--params", "1B", "--no-depths", "--rows", "2",
                                      "--lang", "zh", "--save", str(tmp_path / "d")])  # fmt: skip
    assert done.exit_code == 0
    for told in (done.stdout, (tmp_path / "d" / "report.txt").read_text("utf-8")):
        assert "改为" in told
        assert re.findall(r"(?<![\w-])[a-z]{2,} [a-z]{2,}\b", told) == []


def commands(command):
    """A command and those below it."""
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name))


def test_no_help_of_a_verb_or_an_option_is_missing():
    texts = {text for _, text in VERBS.values()}
    for command in commands(group):
        paragraphs = (command.help or "").replace("\b", "").split("\n\n")
        texts |= {" ".join(p.split()) for p in paragraphs}
        texts |= {p.help for p in command.params if isinstance(p, click.Option) and p.help}
    shown = {t for t in texts if t and not t.startswith(("Example", "scantling "))}
    same = {t for t in shown if not re.search("[a-z]{2,} [a-z]{2,}", t)}

    assert {t for t in shown - same if not has_message(t)} == set()


def test_no_title_of_a_rule_is_missing():
    assert {r.title for r in load_rules().values() if not has_message(r.title)} == set()


def test_every_message_has_the_fields_of_its_english_and_is_chinese():
    for section in read_data("messages_zh.toml").values():
        for english, other in section.items():
            n = english.count("{}")
            numbered = sorted(set(re.findall(r"\{(\d+)\}", other)))
            assert other.count("{}") == n or numbered == [str(i) for i in range(n)], english
            assert not (other.count("{}") and numbered), english
            tags = re.findall(r"\[/?[a-z ]+\]", english)
            assert sorted(re.findall(r"\[/?[a-z ]+\]", other)) == sorted(tags), english


@pytest.mark.usefixtures("chinese")
def test_a_template_puts_its_fields_where_the_language_has_them():
    text = "28 KV heads do not divide 30 query heads: 28 or 14"

    assert in_language(text) == "28 个 KV 头不能整除 30 个查询头：28 或 14"
    assert in_language("  fix: heads of 128") == "  修法：头宽 128"


@pytest.mark.usefixtures("chinese")
def test_what_nobody_knows_stays_as_it_is():
    for text in ("quantum foam of the vacuum", "llama-3.1-8b", "model.layers.0.mlp", "", "3.2 ms"):
        assert in_language(text) == text


@pytest.mark.usefixtures("chinese")
def test_a_short_template_does_not_swallow_a_sentence():
    text = "the heart of the matter of the whole affair"

    assert in_language(text) == text


def test_english_is_not_touched():
    assert in_language("another shape") == "another shape"


def test_an_unknown_language_is_one_line():
    with pytest.raises(FieldError, match="--lang fr is not known; use en or zh"):
        use_language("fr")


def run(*words):
    """The program as typed in a shell, with its own language."""
    env = os.environ | {"PYTHONPATH": str(ROOT.parent), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", "scantling", *words], capture_output=True, text=True, env=env,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


COVERED = [
    ["lint", "gpt2-xl", "--gpu", "h100-sxm"],
    ["lint", "qwen2.5-7b", "--tp", "8"],
    ["compare", "llama-3.1-8b", "llama-3.2-1b", "--weights"],
    ["compare", "gpt2", "llama-3.1-8b"],
    ["analyze", "gpt-oss-20b", "--runtimes"],
    ["analyze", "llama-3.1-8b"],
    ["models", "llama-3.1-8b", "--depth"],
    ["rules"],
]  # fmt: skip
PROPER = re.compile(
    r"masked attention|flash attention|memory-efficient|scantling laws claims|cpp with ggml"
)
"""Names of software, and commands."""


@pytest.mark.parametrize("words", COVERED, ids=" ".join)
def test_no_english_sentence_is_left_in_what_is_printed(words):
    status, out, err = run(*words, "--lang", "zh")

    left = [line for line in out.splitlines()
            if re.search("[a-z]{3,} [a-z]{3,} [a-z]{3,}", PROPER.sub("", line))]  # fmt: skip
    assert left == []
    assert status in {0, 1}
    assert err == ""


def test_json_is_never_translated():
    asked = ["lint", "gpt2-xl", "--gpu", "h100-sxm", "--json"]

    assert run(*asked, "--lang", "zh")[1] == run(*asked)[1]


def test_help_and_errors_are_told_in_the_language_wherever_it_is_named():
    _, before, _ = run("serve", "--help", "--lang", "zh")
    _, after, _ = run("--lang=zh", "serve", "--help")
    status, _, error = run("analyze", "llama-9b", "--lang", "zh")

    assert "推理：放得下吗" in before
    assert before == after
    assert status == 2
    assert error.startswith("错误：model llama-9b 未知")


def test_the_glossary_has_the_twelve_terms_of_the_founding_documents():
    founding = [t for t in terms().values() if t.founding]

    assert len(founding) == 12
    assert all(t.means_zh and t.zh and t.means for t in terms().values())
    assert all(source(key) for t in terms().values() for key in t.sources)


@pytest.mark.parametrize(("asked", "key"), [
    ("hidden_size", "width"), ("num_hidden_layers", "depth"), ("K", "kv-heads"),
    ("n_head", "heads"), ("intermediate_size", "ffn-width"), ("临界深度", "critical-depth"),
    ("KV cache", "kv-cache"), ("max_position_embeddings", "context"),
])  # fmt: skip
def test_a_word_is_found_by_its_field_key_letter_or_chinese(asked, key):
    assert find_term(asked).key == key


def test_an_unknown_word_is_answered_with_the_nearest():
    with pytest.raises(UnknownNameError, match="head-width"):
        find_term("headwidth")


def test_the_glossary_prints_json_with_both_languages():
    found = json.loads(CliRunner().invoke(group, ["glossary", "kv-cache", "--json"]).output)

    assert found["terms"][0]["zh"] == "KV 缓存"
    assert found["terms"][0]["name"] == "KV cache"


def test_a_language_lasts_for_one_command():
    def greeting(*options):
        return CliRunner().invoke(group, ["glossary", *options], standalone_mode=False).stdout

    before = greeting()
    assert greeting("--lang", "zh") != before
    assert greeting() == before


@pytest.mark.usefixtures("chinese")
def test_the_fixes_and_the_sums_of_lint_are_chinese_too(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text('{"model_type": "gpt2", "vocab_size": 50257}')
    told = CliRunner().invoke(group, ["lint", str(tmp_path), "--lang", "zh"]).stdout

    assert "修法：vocab_size 50304" in told
    assert "条未显示" in told
    assert "2 个模型：0 个错误，2 个警告" in told


@pytest.mark.usefixtures("chinese")
def test_the_titles_of_sources_are_cited_as_they_are():
    told = CliRunner().invoke(group, ["lint", "--explain", "SC101", "--lang", "zh"]).stdout

    for key in load_rules()["SC101"].sources:
        assert f"{key}: {source(key).title}" in " ".join(told.split())


@pytest.mark.parametrize("words", ["claims show A001", "rules SC901"])
def test_pages_have_their_headings_in_the_language_and_say_what_is_not(words):
    found = CliRunner().invoke(group, [*words.split(), "--lang", "zh"], standalone_mode=False)
    assert "正文为英文" in found.stdout
    assert not re.search("derivation:|evidence:|source:|made in|Exceptions:", found.stdout)
    plain = CliRunner().invoke(group, [*words.split(), "--lang", "en"], standalone_mode=False)
    assert "text itself" not in plain.stdout
