"""A saved design: configs that count the same, launch fragments, one report; and no mixed runs."""

import json
import os
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from scantling import cli
from scantling.costs.count import parameters
from scantling.errors import FieldError, ScantlingError
from scantling.formats import hf
from scantling.formats.registry import export
from scantling.report.design_html import page, plotly_script
from scantling.report.design_more import Ask, sections
from scantling.report.save import FRAGMENTS, check_folder, save
from scantling.search import design

SMALL = {"params": 20_000_000, "vocab_size": 8192}


@pytest.fixture(scope="module")
def front():
    return design(**SMALL)


@pytest.fixture(scope="module")
def saved(front, tmp_path_factory):
    folder = tmp_path_factory.mktemp("out")
    more = sections(front, Ask(task="reasoning", explain="all"))
    return folder, save(front, folder, more=more)


def test_every_config_counts_what_was_predicted(front, saved):
    folder, _ = saved
    for c in front.candidates:
        config = json.loads((folder / c.name / "config.json").read_text("utf-8"))
        assert parameters(hf.read(config).spec).total == c.counted.total


def test_a_shape_has_the_fragment_of_every_tool_that_can_say_it(front, saved):
    folder, _ = saved
    for c in front.candidates[::7]:
        for target, name in FRAGMENTS.items():
            path = folder / c.name / name
            try:
                text = export(c.spec, target).text
            except ScantlingError:
                assert not path.exists()
                continue
            assert path.read_text("utf-8") == text


def test_the_report_needs_nothing_beside_it(saved):
    pytest.importorskip("plotly")
    folder, _ = saved
    text = (folder / "report.html").read_text("utf-8").replace(plotly_script(), "")
    assert text.count("Plotly.newPlot(") == 2
    assert not re.findall(r"(?:src|href)=[\"']?https?:", text)
    for heading in ("The front", "Why the choice has these numbers", "task",
                    "From the question to the answer", "What no objective prices"):  # fmt: skip
        assert f"<h2>{heading}</h2>" in text
    data = [
        json.loads(found)
        for found in re.findall(r"newPlot\('plot\d', \.\.\.(\[.*?\]), \{res", text)
    ]
    for traces, _ in data:
        chosen = next(t for t in traces if t["name"] == "choice")
        assert len(chosen["x"]) == 1
        assert sum(len(t["x"]) for t in traces[:2]) > 10


def test_without_plotly_the_report_keeps_its_tables(front, monkeypatch):
    from scantling.report import design_html

    monkeypatch.setattr(design_html, "find_spec", lambda _: None)
    text = page(front)
    assert "plotly is missing" in text
    assert front.chosen.name in text


def test_markup_in_a_name_is_shown_and_not_run(front):
    from msgspec.structs import replace

    odd = replace(front.chosen, name="<script>alert(1)</script>")
    text = page(replace(front, baselines=(odd,))).replace(plotly_script(), "")
    assert "<script>alert" not in text


def test_a_later_save_replaces_an_earlier_one_and_nothing_else(front, tmp_path):
    first = save(front, tmp_path)
    fewer = design(**SMALL, fixed={"n_layer": 8})
    second = save(fewer, tmp_path)
    here = {p for p in tmp_path.rglob("*") if p.is_file()}
    assert here == set(second)
    assert set(first) != set(second)
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(FieldError, match=r"mine\.txt, which no save wrote"):
        save(front, tmp_path)
    assert (tmp_path / "mine.txt").read_text("utf-8") == "mine"
    assert {p for p in tmp_path.rglob("*") if p.is_file()} == here | {tmp_path / "mine.txt"}


@pytest.mark.parametrize("manifest", ["{", "[]", '{"files": 3}', '{"files": ["../other.txt"]}'])
def test_a_folder_whose_list_is_broken_is_refused(tmp_path, manifest):
    place = tmp_path / "out"
    place.mkdir()
    (tmp_path / "other.txt").write_text("other", encoding="utf-8")
    (place / "manifest.json").write_text(manifest, encoding="utf-8")
    with pytest.raises(FieldError, match="which no save wrote"):
        check_folder(place)


def test_a_used_folder_is_refused_before_the_search(tmp_path):
    (tmp_path / "notes.md").write_text("mine", encoding="utf-8")
    done = CliRunner().invoke(cli.group, ["design", "--params", "7B", "--save", str(tmp_path)],
                              standalone_mode=False)  # fmt: skip
    assert isinstance(done.exception, FieldError)
    assert "runs must not mix" in str(done.exception)


QUESTIONS = [
    ["--params", "20M", "--vocab", "8192", "--explain", "n_kv_head", "--task", "retrieval"],
    ["--like", "gpt2", "--ladder", "125M,350M", "--prior", "kaplan"],
]


@pytest.mark.parametrize("question", QUESTIONS, ids=["explain", "like"])
def test_the_same_question_has_the_same_answer_in_every_process(question):
    answers = []
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "scantling", "design", *question, "--json"],
            capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )  # fmt: skip
        found = json.loads(done.stdout)
        for key in ("seconds", "shapes_per_second"):
            del found["search"][key]
        answers.append(json.dumps(found))
    assert answers[0] == answers[1]
