"""The README is true: its commands run, and what it shows is what they print."""

import doctest
import pathlib
import re
import struct

import pytest
from click.testing import CliRunner

from scantling import catalog, cli, hardware
from scantling.formats import hf

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")


@pytest.fixture(scope="module")
def printed():
    """What the command of the first screen prints, spaces folded."""
    command = re.search(r"^\$ scantling (design .*)$", README, re.MULTILINE)[1]
    found = CliRunner().invoke(cli.group, command.split(), standalone_mode=False)
    assert found.exception is None
    return [" ".join(line.split()) for line in found.stdout.splitlines()]


def test_every_line_of_the_first_screen_is_printed_by_its_command(printed):
    block = README.split("```")[3].splitlines()[3:]
    lines = [" ".join(line.split()) for line in block if line.strip() and "───" not in line]

    assert len(lines) >= 19
    for line in lines:
        assert any(line in p for p in printed), line


def test_the_python_examples_run():
    found = doctest.testfile(str(ROOT / "README.md"), module_relative=False)

    assert found.attempted >= 5
    assert found.failed == 0


def test_the_numbers_in_the_text_are_those_of_the_data():
    assert f"{len(hf.model_types())} Hugging Face model types" in README
    assert f"{len(catalog.named())} named models" in README
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert f"{len(hardware.chips())} chips" in changelog


def test_the_commands_of_the_second_screen_are_understood(tmp_path):
    pytest.importorskip("torch")  # trace --run
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    header = b'{"wte.weight": {"dtype": "F16", "shape": [2, 2], "data_offsets": [0, 8]}}'
    data = struct.pack("<Q", len(header)) + header + bytes(8)
    (tmp_path / "model.safetensors").write_bytes(data)
    block = next(b for b in README.split("```") if "analyze ./config.json" in b)
    for line in block.strip().splitlines():
        words = line.split("#")[0].split()[1:]
        words = [str(tmp_path / w) if w.startswith("./") else w for w in words]
        words = [str(tmp_path / w) if w in {"kv.svg", "out/"} else w for w in words]
        words = ["125M" if w == "7B" else w for w in words]
        found = CliRunner().invoke(cli.group, words, standalone_mode=False)
        assert found.exception is None, line
