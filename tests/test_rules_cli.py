"""``lint`` and ``rules`` as typed: exit status, formats, folders, settings of a project."""

import contextlib
import json
from typing import NamedTuple

import click
import pytest
from click.testing import CliRunner

from illegal_configs import GEMMA3, GPT2, LLAMA, changed
from scantling import cli
from scantling.errors import ScantlingError
from scantling.rules import load_rules
from scantling.sources import sources


class Ran(NamedTuple):
    """What a command came to."""

    returncode: int
    stdout: str
    stderr: str


def run(*words, cwd=".", given=None):
    """Run the command line in this process as ``main`` does."""
    with contextlib.chdir(cwd):
        found = CliRunner().invoke(cli.group, words, input=given, standalone_mode=False)
    if isinstance(found.exception, ScantlingError):
        return Ran(2, found.stdout, f"{found.stderr}error: {found.exception}\n")
    if found.exception is not None:
        assert isinstance(found.exception, click.ClickException), repr(found.exception)
        return Ran(2, found.stdout, f"error: {found.exception.format_message()}\n")
    return Ran(found.return_value or 0, found.stdout, found.stderr)


@pytest.fixture
def folder(tmp_path):
    """Two models, one of them illegal, and a file that is no model."""
    (tmp_path / "good").mkdir()
    (tmp_path / "bad").mkdir()
    (tmp_path / "good" / "config.json").write_text(json.dumps(LLAMA, indent=2))
    bad = changed(LLAMA, {"num_key_value_heads": 6})
    (tmp_path / "bad" / "config.json").write_text(json.dumps(bad, indent=2))
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


def test_a_sound_model_is_exit_status_0_an_illegal_one_1_and_no_model_2(folder):
    assert run("lint", "good", cwd=folder).returncode == 0
    assert run("lint", "bad", cwd=folder).returncode == 1
    found = run("lint", "tokenizer.json", cwd=folder)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith("error: ")
    assert "Traceback" not in found.stderr


def test_json_has_the_keys_of_the_contract(folder):
    found = json.loads(run("lint", "bad", "--json", cwd=folder).stdout)

    assert found["model"] == "bad"
    (error,) = [f for f in found["findings"] if f["level"] == "error"]
    assert {"code", "level", "field", "message", "fix", "gain", "source"} <= set(error)
    assert error["code"] == "SC101"
    assert error["field"] == "num_key_value_heads"
    assert error["changes"] == {"num_key_value_heads": 8}
    assert all(key in sources() for key in error["source"])


def test_a_folder_is_searched_for_configs_and_a_line_is_printed_for_each(folder):
    found = run("lint", ".", "--format", "json", cwd=folder)
    reports = [json.loads(line) for line in found.stdout.splitlines()]

    assert found.returncode == 1
    assert {r["path"]: r["passed"] for r in reports} == {
        "bad/config.json": False, "good/config.json": True,
    }  # fmt: skip
    assert run("lint", "*/config.json", "--json", cwd=folder).stdout == found.stdout


def test_annotations_of_github_stand_on_the_line_of_the_key(folder):
    found = run("lint", "bad", "--format", "github", cwd=folder)
    lines = (folder / "bad" / "config.json").read_text().splitlines()
    at = next(i for i, line in enumerate(lines, 1) if "num_key_value_heads" in line)

    assert f"::error file=bad/config.json,line={at},title=SC101 kv-heads-divide::" in found.stdout


def test_sarif_names_every_rule_and_places_every_finding(folder):
    log = json.loads(run("lint", ".", "--format", "sarif", cwd=folder).stdout)
    (one,) = log["runs"]
    (result,) = [r for r in one["results"] if r["level"] == "error"]

    assert log["version"] == "2.1.0"
    assert [r["id"] for r in one["tool"]["driver"]["rules"]] == list(load_rules())
    assert one["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "SC101"
    where = result["locations"][0]["physicalLocation"]
    assert where["artifactLocation"]["uri"] == "bad/config.json"


def test_rules_are_selected_and_ignored_by_prefix_code_and_name(folder):
    def codes(*words):
        found = json.loads(run("lint", "bad", "--json", *words, cwd=folder).stdout)
        return {f["code"] for f in found["findings"]}

    assert codes("--select", "SC1") == {"SC101"}
    assert codes("--ignore", "kv-heads-divide", "--select", "SC1") == set()
    assert codes("--select", "SC101", "--ignore", "SC1") == {"SC101"}
    assert run("lint", "bad", "--select", "SC999", cwd=folder).returncode == 2


def test_an_ignored_error_is_not_told_by_another_rule(folder):
    """What the reader refuses is an error still: the catch-all says it, unless ignored too."""
    found = run("lint", "bad", "--ignore", "SC101", "--json", cwd=folder)
    assert {f["code"] for f in json.loads(found.stdout)["findings"]} == {"SC001"}


def test_a_project_settles_rules_and_setting_and_options_win(folder):
    (folder / "scantling.toml").write_text(
        'ignore = ["SC101", "SC001"]\n[setting]\ntp = 3\n[per-file-ignores]\n"bad/*" = ["SC2"]\n'
    )
    assert run("lint", "bad", cwd=folder).returncode == 0
    assert run("lint", "bad", "--isolated", cwd=folder).returncode == 1
    assert run("lint", "good", cwd=folder).returncode == 1
    assert run("lint", "good", "--tp", "4", cwd=folder).returncode == 0


def test_a_project_may_say_it_in_pyproject_and_a_wrong_key_is_told(folder):
    (folder / "pyproject.toml").write_text('[tool.scantling]\nselect = ["SC5"]\n')
    assert run("lint", "bad", cwd=folder).returncode == 0
    (folder / "pyproject.toml").write_text('[tool.scantling]\nselekt = ["SC5"]\n')
    found = run("lint", "bad", cwd=folder)
    assert found.returncode == 2
    assert "selekt" in found.stderr


def test_a_fix_is_printed_as_a_config_and_written_where_it_is_told(folder):
    found = run("lint", "bad", "--fix", cwd=folder)
    out = run("lint", "bad", "--fix", "--out", "new.json", cwd=folder)

    assert found.returncode == out.returncode == 0
    assert json.loads(found.stdout) == {**LLAMA, "num_key_value_heads": 8}
    assert json.loads((folder / "new.json").read_text()) == json.loads(found.stdout)
    assert "num_key_value_heads 8" in found.stderr


def test_a_fix_inside_a_text_config_leaves_what_is_beside_it(folder):
    given = changed(GEMMA3, {"text_config.num_key_value_heads": 3})
    found = run("lint", "-", "--fix", cwd=folder, given=json.dumps(given))

    assert json.loads(found.stdout) == GEMMA3


def test_warnings_fail_where_they_are_asked_to(folder):
    (folder / "gpt.json").write_text(json.dumps({**GPT2, "vocab_size": 50257}))
    assert run("lint", "gpt.json", cwd=folder).returncode == 0
    assert run("lint", "gpt.json", "--strict", cwd=folder).returncode == 1


def test_a_rule_is_explained_by_code_and_by_name():
    found = run("lint", "--explain", "SC101")
    assert found.stdout == run("rules", "kv-heads-divide").stdout
    assert "H mod K" in found.stdout
    assert run("rules", "SC000").returncode == 2


def test_the_rules_are_listed():
    found = json.loads(run("rules", "--json").stdout)["rules"]
    assert [r["code"] for r in found] == list(load_rules())


def test_a_file_that_is_no_json_is_told_in_one_line(folder):
    (folder / "broken.json").write_text("{")
    found = run("lint", "broken.json", cwd=folder)
    assert found.returncode == 2
    assert len(found.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("words", [
    ["--tp", "0"], ["--gpu", "h1000"], ["--runtime", "vlm"], ["--quant", "awq-int3"],
    ["--dtype", "fp7"], ["--phase", "rest"], ["--out", "x.json"], [],
])  # fmt: skip
def test_a_wrong_option_is_told_in_one_line(folder, words):
    models = ["good"] if words else []
    found = run("lint", *models, *words, cwd=folder)
    assert found.returncode == 2
    assert len(found.stderr.strip().splitlines()) == 1
    assert "Traceback" not in found.stderr
