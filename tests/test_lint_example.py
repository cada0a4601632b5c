"""``examples/lint-ci`` does what its files say: every command in them is run in a copy of it."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "lint-ci"
WORKFLOW = EXAMPLE / ".github" / "workflows" / "shapes.yml"
COMMANDS = re.findall(r"- run: (scantling .+)", WORKFLOW.read_text("utf-8"))


@pytest.fixture
def project(tmp_path):
    return Path(shutil.copytree(EXAMPLE, tmp_path / "project"))


def typed(line, folder):
    """Run a line of the shell in which ``scantling`` is this package."""
    text = f'scantling() {{ "{sys.executable}" -m scantling "$@"; }}; {line}'
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        ["bash", "-ec", text], cwd=folder, env=env, capture_output=True, text=True, check=False
    )


def spoil(project):
    """24 heads do not divide a width of 4096."""
    path = project / "configs" / "base" / "config.json"
    config = path.read_text("utf-8").replace(
        '"num_attention_heads": 32', '"num_attention_heads": 24'
    )
    path.write_text(config, "utf-8")
    return path


def test_the_workflow_passes_as_it_stands(project):
    assert len(COMMANDS) == 2
    for line in COMMANDS:
        found = typed(line, project)
        assert found.returncode == 0, found.stderr
    assert json.loads((project / "shapes.sarif").read_text())["version"] == "2.1.0"


def test_a_spoilt_config_fails_the_last_step_alone_on_its_line(project):
    path = spoil(project)
    log, notes = (typed(line, project) for line in COMMANDS)

    assert log.returncode == 0, "findings are uploaded before the job fails"
    results = json.loads((project / "shapes.sarif").read_text())["runs"][0]["results"]
    assert [r["ruleId"] for r in results if r["level"] == "error"] == ["SC102"]
    assert notes.returncode == 1
    line = 1 + path.read_text().splitlines().index('  "num_attention_heads": 24,')
    assert f"::error file=configs/base/config.json,line={line},title=SC102" in notes.stdout


def test_a_file_that_is_no_config_fails_the_upload_step_too(project):
    (project / "configs" / "base" / "config.json").write_text("{")
    assert typed(COMMANDS[0], project).returncode != 0


def test_the_legacy_model_is_silent_only_where_the_project_says_so(project):
    line = "scantling lint configs/legacy"
    assert typed(line, project).returncode == 0
    assert "SC201" in typed(f"{line} --isolated --tp 8", project).stdout


def test_the_hook_of_pre_commit_takes_the_configs_that_changed(project):
    hook = (ROOT / ".pre-commit-hooks.yaml").read_text("utf-8")
    (wanted,) = re.findall(r"- id: (\S+)", (EXAMPLE / ".pre-commit-config.yaml").read_text("utf-8"))
    assert f"- id: {wanted}\n" in hook
    (pattern,) = re.findall(r"files: (.+)", hook)
    (entry,) = re.findall(r"entry: (.+)", hook)
    names = [str(p.relative_to(project)) for p in sorted(project.rglob("*")) if p.is_file()]
    taken = [name for name in names if re.search(pattern, name)]
    assert taken == ["configs/base/config.json", "configs/legacy/config.json"]
    assert typed(f"{entry} {' '.join(taken)}", project).returncode == 0
    spoil(project)
    assert typed(f"{entry} {' '.join(taken)}", project).returncode == 1


def test_what_the_readme_types_mends_a_spoilt_config(project):
    spoil(project)
    block = (project / "README.md").read_text("utf-8").split("```")[1]
    lines = [line.partition("#")[0] for line in block.strip().splitlines()]
    assert [typed(line, project).returncode for line in lines] == [1, 1, 0]
    assert typed(lines[0], project).returncode == 0
