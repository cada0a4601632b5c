"""``scantling lab`` as it is typed: lists, runs to a verdict, explains, says what is wrong."""

import json
import pathlib
import re

import pytest
from click.testing import CliRunner

from scantling.cli import group
from scantling.errors import FieldError, ScantlingError
from scantling.lab.experiments import EXPERIMENTS
from scantling.messages import use_language
from scantling.sources import sources

pytest.importorskip("torch", reason="needs the extra lab")

from scantling.lab.grammar import buildable

STUDY = """
name = "tiny"
question = "One layer or two?"
data = "hops:nodes=4,hops=1"
tokens = 2_000
batch = 16
context = 9
rates = {n = 1, step = 2.0, extend = 0}
[iso]
n_layer = [1, 2]
body = 6_000
"""

MODELS = """
[[shapes]]
model = "qwen3-0.6b"
set = {{{}}}
{}
"""
TWO = "[[shapes]]\nname = 'other'\nmodel = 'qwen3-0.6b'\n"


@pytest.fixture
def typed(tmp_path, monkeypatch):
    """What a command prints, as JSON where it is asked for."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        found = CliRunner().invoke(group, list(words), standalone_mode=False)
        if found.exception is not None:
            raise found.exception
        return found

    yield run
    use_language("en")


@pytest.mark.parametrize("preset", ["quick", "standard"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_is_a_study_of_shapes_the_lab_builds_with_its_sources(name, preset):
    one = EXPERIMENTS[name]
    study = one.study(preset).check()
    assert study.name == name
    assert study.seeds >= 3
    assert study.expected
    assert study.sources
    assert set(study.sources) <= set(sources())
    assert one.page
    assert not any("," in arm or " and " in arm for arm in study.arms), "headlines list them"
    for shape in study.shapes:
        buildable(shape.spec)
        assert all(abs(off) < 0.03 for off in shape.matched.values()), shape.name


def test_the_experiments_are_listed_and_each_has_its_page(typed):
    listed = typed("lab").output
    assert all(name in listed for name in EXPERIMENTS)
    page = typed("lab", "list", "depth-width").output
    assert "Gemstones" in page
    rows = json.loads(typed("lab", "list", "--json").output)["experiments"]
    assert {r["name"] for r in rows} == set(EXPERIMENTS)


def test_a_study_of_ones_own_runs_to_a_verdict_and_is_explained(typed, tmp_path):
    (tmp_path / "tiny.toml").write_text(STUDY)
    ran = typed("lab", "run", "tiny.toml", "--engine", "here", "--device", "cpu")
    assert re.search(r"not separated|better|unresolved", ran.output)
    folder = tmp_path / "lab-runs" / "tiny"
    rows = [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    assert len(rows) == 6
    assert {r["depth"] for r in rows} == {1, 2}
    told = typed("lab", "report", str(folder)).output
    for part in ("The question", "One layer or two?", "How to read it", "do not transfer"):
        assert part in told
    page = (folder / "report.html").read_text()
    assert "<svg" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    again = json.loads(typed("lab", "run", "tiny.toml", "--engine", "here", "--device", "cpu",
                             "--json").output)  # fmt: skip
    kept = json.loads((folder / "result.json").read_text())
    assert again["verdicts"] == kept["verdicts"]
    assert [s["seeds"] for s in again["shapes"]] == [s["seeds"] for s in kept["shapes"]]


@pytest.mark.parametrize("ladder", [(), ("--ladder",)])
def test_a_plan_is_json_where_that_is_asked_for(typed, tmp_path, ladder):
    (tmp_path / "tiny.toml").write_text(STUDY)
    told = json.loads(typed("lab", "run", "tiny.toml", "--engine", "here", "--device", "cpu",
                            "--plan", "--json", *ladder).stdout)  # fmt: skip
    plans = told["plans"] if ladder else {"1": told["plan"]}
    assert [*plans] == (["1", "4", "16"] if ladder else ["1"])
    assert {p["tokens"] for p in plans.values()} == {2_000}
    assert not [*tmp_path.rglob("runs/*.json")]


def test_names_of_shapes_are_shown_as_they_are_written(typed, tmp_path):
    """Brackets are no markup, and what the catalogue of messages knows is still a name."""
    shape = "[[shapes]]\nname = '{}'\nmodel = 'llama-3.2-1b'\nset = {{n_layer = {}}}\n"
    (tmp_path / "tiny.toml").write_text(
        STUDY.partition("[iso]")[0] + "[scale]\nbody = 6_000\n"
        + shape.format("linear [/b]", 2) + shape.format("none", 4)
    )  # fmt: skip
    typed("lab", "run", "tiny.toml", "--engine", "here", "--device", "cpu")
    told = typed("lab", "report", "lab-runs/tiny", "--lang", "zh").output
    rows = [line.strip() for line in told.splitlines() if re.search(r"[+-]\d.\d%", line)]
    assert len(rows) == 2
    assert {row.startswith(("linear [/b] ", "none ")) for row in rows} == {True}
    assert re.search(r"^  (linear \[/b\] 与 none|none 与 linear \[/b\])：", told, re.MULTILINE)


def test_a_preset_beside_a_file_of_ones_own_is_refused(typed, tmp_path):
    (tmp_path / "tiny.toml").write_text(STUDY)
    with pytest.raises(FieldError, match=r"--preset standard is of experiments; tiny.toml has its"):
        typed("lab", "run", "tiny.toml", "--preset", "standard", "--plan")


@pytest.mark.parametrize("text", ["{}", "[1]"])
def test_a_result_of_something_else_is_one_clear_line(typed, tmp_path, text):
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(FieldError, match=r"holds a result.json that is of no study"):
        typed("lab", "report", str(tmp_path))


@pytest.mark.parametrize(("text", "says"), [
    (STUDY.replace("body", "bodies"), "iso.bodies is no key of a study; did you mean body?"),
    (STUDY.replace("tokens", "token"), "token is no key of a study; did you mean tokens?"),
    (STUDY.replace("[1, 2]", "3"), "iso.n_layer 3 must list depths; n_layer = [2, 4, 8]"),
    (STUDY.replace("[1, 2]", "[1]"), "shapes 1 compare nothing"),
    (STUDY + "params = 5_000\n", "must make one quantity equal"),
    (STUDY.replace("n = 1", "n = 'one'"), "rates.n one must be a whole number"),
    (STUDY.replace("n = 1", "n = 31"), "rates.n 31 must be 1 to 30"),
    (STUDY.replace("step = 2.0", "step = 1.0"), "rates.step 1.0 must be above 1"),
    (STUDY.replace("extend = 0", "extend = -1"), "rates.extend -1 must be 0 to 30"),
    (STUDY.replace("[1, 2]", "[1, 'two']"), "iso.n_layer two is not a number"),
    (STUDY.replace("body = 6_000", "time = 'soon'\nchip = 'h100'"), "iso.time soon"),
    ("shapes = [1]", "shapes [1] must be tables, each under [[shapes]]"),
    (MODELS.format("n_layer = 'one'", ""), "must be a table of numbers"),
    (MODELS.format("n_layer = 1", "param = 'mu'") + TWO, "param mu is not known; did you mean"),
    (MODELS.format("n_layer = 1", "rate = -1") + TWO, "rate -1.0 must be above 0 and finite"),
    ("name = ", "is no TOML"),
    ("name = 'a'\n[[shapes]]\nmodel = 'lama-3.1-8b'\n", "shapes.model lama-3.1-8b cannot be read"),
])  # fmt: skip
def test_a_study_file_with_a_fault_is_one_clear_line(typed, tmp_path, text, says):
    (tmp_path / "tiny.toml").write_text(text)
    with pytest.raises(ScantlingError) as caught:
        typed("lab", "run", "tiny.toml")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("words", "says"), [
    (["run", "depth-with"], "did you mean depth-width?"),
    (["run", "depth-width", "--seeds", "2"], "seeds 2 are too few"),
    (["run", "depth-width", "--preset", "slow"], "--preset slow is not known"),
    (["run", "depth-width", "--engine", "dask"], "engine dask is not known"),
    (["report", "nowhere"], "holds no study; give the folder of a study"),
    (["run", "none.toml"], "cannot be read"),
])  # fmt: skip
def test_a_muddled_command_is_one_clear_line(typed, words, says):
    with pytest.raises(ScantlingError) as caught:
        typed("lab", *words)
    assert says in str(caught.value)


def test_no_torch_is_one_clear_line(typed, monkeypatch):
    monkeypatch.setattr("scantling.lab.torch_needed.find_spec", lambda _: None)
    with pytest.raises(ScantlingError, match=r"needs torch; pip install 'scantling\[lab\]'"):
        typed("lab", "run", "depth-width")


def test_a_saved_design_trains_its_front_small(typed):
    typed("design", "--params", "20M", "--vocab", "8192", "--bound", "d_model=256:640", "--bound",
          "n_layer=4:24", "--save", "d", "--rows", "2")  # fmt: skip
    from scantling.lab.study.file import read_study

    study = read_study(pathlib.Path("d/study.toml"))
    depths = [int(s.spec.n_layer) for s in study.shapes]
    assert len(set(depths)) == len(depths) >= 3
    for shape in study.shapes:
        buildable(shape.spec)
        assert abs(shape.matched["body"]) < 0.02


SIZES = """
question = "Three sizes"
data = "hops:nodes=4,hops=1"
tokens = 2_000
rates = {n = 1, step = 2.0, extend = 0}
""" + "".join(f"""
[[shapes]]
name = "d{d}"
model = "qwen3-0.6b"
set = {{n_layer = 2, d_model = {d}, n_head = {d // 8}, n_kv_head = {d // 8}, d_head = 8, \
d_ff = {3 * d}, vocab_size = 256}}
""" for d in (16, 32, 64))  # fmt: skip


def test_the_loop_from_runs_to_a_law_to_a_design_to_runs_is_closed(typed, tmp_path):
    """Three sizes are trained, a law is fitted, a design made by it, and its study trained.

    The law knows no depth, so one shape is on the front: it stands beside itself at others.
    """
    pytest.importorskip("scipy", reason="needs the extra fit")
    (tmp_path / "sizes.toml").write_text(SIZES)
    here = ("--engine", "here", "--device", "cpu")
    runs = ""
    for tokens in ("2k", "6k"):
        typed("lab", "run", "sizes.toml", *here, "--tokens", tokens, "--out", tokens)
        runs += (tmp_path / tokens / "runs.jsonl").read_text()
    (tmp_path / "runs.jsonl").write_text(runs)
    typed("laws", "fit", "runs.jsonl", "--form", "over-training", "--out",
          "my.toml", "--bootstraps", "20")  # fmt: skip
    typed("design", "--params", "5M", "--vocab", "256", "--tokens", "30k", "--law", "my.toml",
          "--bound", "d_model=64:384", "--bound", "n_layer=2:24", "--save", "d", "--rows",
          "2")  # fmt: skip
    study = tmp_path / "d" / "study.toml"
    study.write_text(study.read_text().replace('"200k"', '"10k"').replace(
        "seeds = 3", "seeds = 3\nrates = {n = 1, step = 2.0, extend = 0}"))  # fmt: skip
    ran = typed("lab", "run", "d/study.toml", *here, "--data", "hops:nodes=4,hops=1",
                "--tokens", "2k", "--out", "again")  # fmt: skip
    told = json.loads((tmp_path / "again" / "result.json").read_text())
    assert len({s["n_layer"] for s in told["shapes"]}) == len(told["shapes"]) >= 2
    assert "my.toml" in told["study"]["expected"]
    assert {v["kind"] for v in told["verdicts"]} <= {"better", "not separated", "unresolved"}
    assert told["headline"] in ran.output.replace("\n", " ")
