"""Rules of thumb against the tables of runs they are judged by."""

import csv
import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from scantling.cli import group
from scantling.errors import UnknownNameError
from scantling.laws.claims import claim, claims
from scantling.laws.optimum import compute_optimal
from scantling.sources import sources

TABLES = Path(__file__).parents[2] / "shared" / "data" / "scaling"


def test_loss_falls_with_depth_far_past_the_critical_depth():
    """Width 256, constant rate, nearest to 300 B tokens; critical depths 40 and 13.5 layers."""
    path = TABLES / "gemstones.csv"
    if not path.exists():
        pytest.skip("the table of Gemstones runs is not beside this checkout")
    found = {}
    for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
        if int(row["width"]) == 256 and "main suite" in row["lr_note"]:
            away = abs(float(row["tokens"]) - 3e11)
            found.setdefault(int(row["depth"]), []).append((away, float(row["loss"])))
    losses = [min(found[depth])[1] for depth in sorted(found)]
    assert max(found) > 5 * math.log2(256)
    assert len(losses) >= 3
    assert losses == sorted(losses, reverse=True)


def test_the_power_of_depth_gives_a_model_of_another_size():
    """L = 0.7 P^0.2, W = 0.9 P^0.4: 12 L W² at P = 7e9 is 47 B."""
    p = 7e9
    assert 12 * 0.7 * p**0.2 * (0.9 * p**0.4) ** 2 == pytest.approx(47e9, rel=0.05)


def test_the_best_size_does_not_move_width_and_depth_apart_at_a_constant_ratio():
    """By a law without r0(N) both grow as N^(1/3), so the ratio of exponents is 1, not 2.8."""
    one, ten = (compute_optimal("aspect", c).size for c in (1e20, 1e21))
    growth = math.log10(ten / one) / 3
    assert 0.1 < growth < 0.3  # the evidence: 0.17 to 0.27 and 0.15 to 0.31


def test_every_claim_has_evidence_and_known_sources():
    for one in claims().values():
        assert one.evidence
        assert set(one.sources) <= set(sources())
    with pytest.raises(UnknownNameError, match="did you mean hundred"):
        claim("hundreds")


def test_the_command_lists_them():
    said = CliRunner().invoke(group, ["laws", "claims", "--json"], standalone_mode=False)
    assert set(json.loads(said.stdout)["claims"]) == set(claims())
    text = CliRunner().invoke(group, ["laws", "claims"], standalone_mode=False).stdout
    assert "critical-depth: " in text
