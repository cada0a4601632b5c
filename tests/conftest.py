"""Shared places and switches of the tests."""

import os
import pathlib

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

SHARED = pathlib.Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session")
def shared():
    """The folder of public tables beside the project; tests that need it skip without."""
    if not SHARED.is_dir():
        pytest.skip("needs the public tables in ../shared, which are not part of the project")
    return SHARED
