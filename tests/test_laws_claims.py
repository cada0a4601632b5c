"""Rules of thumb: each verdict is computed again, and each measured number read again."""

import csv
import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from scantling.cli import group
from scantling.errors import UnknownNameError
from scantling.laws.claims import UNCHECKED, claim, claims
from scantling.report import claim_checks
from scantling.report.claim_checks import CHECKS, Checked, differences
from scantling.sources import sources

SHARED = Path(__file__).parents[2] / "shared" / "data"
TABLES = SHARED / "scaling"


def table(path):
    if not path.exists():
        pytest.skip(f"{path.name} is not beside this checkout")
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


@pytest.mark.parametrize("name", claims())
def test_verdict_and_numbers_of_a_record_are_what_its_check_computes(name):
    one = claim(name)
    if one.verdict in UNCHECKED:
        pytest.skip("nothing to compute decides it")
    assert one.check in CHECKS
    assert one.numbers
    assert differences(name) == []


def test_a_record_that_says_something_else_is_told_apart(monkeypatch):
    found = CHECKS["depth-power"](claim("depth-power"))
    changed = Checked("correct", found.numbers | {"units_layers": 60.0})
    monkeypatch.setitem(claim_checks.CHECKS, "depth-power", lambda _: changed)
    told = differences("depth-power")
    assert told[0] == "verdict wrong, recomputed correct"
    assert len(told) == 2
    said = CliRunner().invoke(group, ["laws", "claims", "depth-power", "--check"],
                              standalone_mode=False)  # fmt: skip
    assert said.return_value == 1
    assert "recomputed correct" in said.stdout


def runs_of(width, depth):
    """Tokens and loss of the constant-rate runs of a shape."""
    rows = table(TABLES / "gemstones.csv")
    return [(float(r["tokens"]), float(r["loss"])) for r in rows if "main suite" in r["lr_note"]
            and (int(r["width"]), int(r["depth"])) == (width, depth)]  # fmt: skip


def loss_at(width, depth, tokens):
    return min(runs_of(width, depth), key=lambda r: abs(r[0] - tokens))[1]


def test_loss_fell_with_depth_far_past_both_critical_depths():
    """Width 256, nearest to 300 B tokens; critical depths 40 and 13.5 layers."""
    said = claim("critical-depth").measured
    found = {int(name.removeprefix("layers_")): value for name, value in said.items()}
    for depth, value in found.items():
        assert loss_at(256, depth, 3e11) == pytest.approx(value, abs=0.0006)
    assert max(found) > 5 * math.log2(256)
    assert list(found.values()) == sorted(found.values(), reverse=True)


def test_an_aspect_of_about_a_hundred_lost_to_one_of_a_third():
    """1280 × 15 and 1792 × 7 against 1024 × 28, half a billion parameters each, 350 B tokens."""
    said, best = claim("hundred").measured, loss_at(1024, 28, 3.5e11)
    assert loss_at(1280, 15, 3.5e11) - best == pytest.approx(said["gap_85"], abs=0.0006)
    assert loss_at(1792, 7, 3.5e11) - best == pytest.approx(said["gap_256"], abs=0.0006)


def test_the_best_vocabulary_of_the_runs_rose_slower_than_the_root():
    """At the most FLOPs that all vocabularies of a size reach, losses between runs interpolated."""
    import numpy as np

    said = claim("vocabulary-root").measured
    found = {}
    for size in ("Nnv33M", "Nnv1129M"):
        curves = {}
        for row in table(TABLES / "vocab_tao2024.csv"):
            if row["run_id"].startswith(f"{size}_"):
                point = (math.log(float(row["flops"])), float(row["loss"]))
                curves.setdefault(int(float(row["vocab"])), []).append(point)
        flops = min(max(c for c, _ in curve) for curve in curves.values())
        losses = {v: np.interp(flops, *zip(*sorted(curve), strict=True))
                  for v, curve in curves.items()}  # fmt: skip
        found[size] = (flops, min(losses, key=losses.get))
    (low, small), (high, large) = found["Nnv33M"], found["Nnv1129M"]
    assert (small, large) == (said["best_33m"], said["best_1129m"])
    growth = math.log(large / small) / (high - low)
    assert growth == pytest.approx(said["growth"], abs=0.005)
    assert growth < 0.5


def test_tying_moved_the_loss_by_no_more_than_is_said():
    rows = [r for r in table(SHARED / "ablations.csv") if r["axis"] == "tying" and r["delta_nats"]]
    said = claim("tie-below").measured
    small = [abs(float(r["delta_nats"])) for r in rows if r["model_size"] == "17M"]
    moved = [abs(float(r["delta_nats"])) for r in rows if r["model_size"] != "17M"]
    assert len(moved) >= 4
    assert max(moved) == pytest.approx(said["largest"], abs=0.0005)
    assert max(small) == pytest.approx(said["largest_17m"], abs=0.0005)


def test_every_claim_has_evidence_and_known_sources():
    for one in claims().values():
        assert one.found
        assert "{" not in one.found
        assert one.made
        assert set(one.sources) <= set(sources())
    with pytest.raises(UnknownNameError, match="did you mean hundred"):
        claim("hundreds")


def test_the_command_lists_them():
    said = CliRunner().invoke(group, ["laws", "claims", "--json"], standalone_mode=False)
    assert set(json.loads(said.stdout)["claims"]) == set(claims())
    text = CliRunner().invoke(group, ["laws", "claims"], standalone_mode=False).stdout
    assert "critical-depth (depth): " in text
    one = CliRunner().invoke(group, ["laws", "claims", "hundred", "--check"], standalone_mode=False)
    assert "as recorded" in one.stdout
    assert "critical-depth" not in one.stdout
