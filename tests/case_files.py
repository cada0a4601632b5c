"""Cases met in public, kept beside the project: how a test finds one and holds an answer to it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from scantling.formats import hf
from scantling.spec import Spec

CASES = Path(__file__).parents[2] / "shared" / "cases"


def case(name: str) -> dict[str, Any]:
    """One case by its id."""
    found = sorted(CASES.glob(f"{name}-*.json"))
    if not found:
        pytest.skip(f"{CASES} is not here: the cases are kept beside the project")
    return json.loads(found[0].read_text("utf-8"))


def cases(*kinds: str) -> list[Any]:
    """Every case of these kinds; one skipped stand-in where there are none."""
    if not CASES.exists():
        reason = f"{CASES} is not here: the cases are kept beside the project"
        return [pytest.param({}, marks=pytest.mark.skip(reason=reason), id="no-cases")]
    found = [json.loads(path.read_text("utf-8")) for path in sorted(CASES.glob("*.json"))]
    return [pytest.param(one, id=one["id"].lower()) for one in found if one["kind"] in kinds]


def holds(one: dict[str, Any], **answers: Any) -> None:
    """Each answer is what the case expects, within its tolerance."""
    for key, found in answers.items():
        wanted = one["expected"][key]
        if isinstance(wanted, dict) and "value" in wanted:
            assert math.isclose(found, wanted["value"], rel_tol=wanted["rtol"]), key
        else:
            assert found == wanted, key


def read(config: dict[str, Any]) -> Spec:
    """The spec of a case's config; a pattern told in words is the class's own."""
    told = {k: v for k, v in config.items() if not (k == "layer_types" and isinstance(v, str))}
    return hf.read(told).spec
