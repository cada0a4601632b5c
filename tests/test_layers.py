"""Arrows point one way: a module imports only from the lines above its own."""

import ast
import pathlib

import pytest

import scantling

ROOT = pathlib.Path(scantling.__file__).parent

LINES = [
    {"units", "errors", "arith", "sources", "quantity", "executor", "messages", "data"},
    {"spec"},
    {"ops"},
    {"formats"},
    {"catalog"},
    {"hardware", "laws"},
    {"costs"},
    {"calibrate", "validate", "rules"},
    {"claims"},
    {"search"},
    {"report"},
    {"lab"},
    {"cli", "web"},
    {"__main__"},
]
"""The plan's diagram, top to bottom; modules of one line do not import each other."""

RANK = {name: i for i, line in enumerate(LINES) for name in line}
FILES = sorted(p for p in ROOT.rglob("*.py") if p.parent != ROOT or p.name != "__init__.py")


def package_of(path):
    """The top-level name of a module: ``spec`` for ``spec/model.py``."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path):
    """The top-level names of scantling that a file imports at run time, examples left out."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "scantling":
                names = [f"scantling.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {n.split(".")[1] for n in names if n.startswith("scantling.")}
    return found - {"__version__"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_imports_only_from_the_lines_above_its_own(path):
    own = package_of(path)
    for other in imports(path) - {own}:
        first_line = RANK[other] == RANK[own] == 0
        assert RANK[other] < RANK[own] or first_line, f"{own} must not import {other}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_module_is_longer_than_500_lines(path):
    assert len(path.read_text("utf-8").splitlines()) <= 500


def test_the_median_module_is_shorter_than_200_lines():
    lengths = sorted(len(p.read_text("utf-8").splitlines()) for p in FILES)

    assert lengths[len(lengths) // 2] < 200


def test_no_module_is_a_drawer_for_everything():
    names = {part for p in FILES for part in p.relative_to(ROOT).with_suffix("").parts}

    assert not names & {"utils", "util", "helpers", "common", "base", "misc"}
