"""Claims: each verdict is computed again, each measured number read again, against the audit."""

import csv
import json
import math
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

import scantling
from scantling.claims import CHECKS, claim, claims, differences, load_checks, registry
from scantling.claims import cache as cache_checks
from scantling.cli import group
from scantling.costs.cache import kv_cache
from scantling.errors import UnknownNameError
from scantling.report import claims as report
from scantling.sources import sources

SHARED = Path(__file__).parents[2] / "shared"
TABLES = SHARED / "data" / "scaling"
DOCS = Path(__file__).parents[1] / "docs"

COMPUTED = [one.id for one in claims().values() if one.check]

OVERRULED = {"A108": "wrong"}
"""Verdicts of the first audit that its second pass changed: plain SVD has published numbers now."""


def table(path):
    if not path.exists():
        pytest.skip(f"{path.name} is not beside this checkout")
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def invoke(*args):
    return CliRunner().invoke(group, ["claims", *args], standalone_mode=False)


@pytest.mark.parametrize("key", COMPUTED)
def test_verdict_and_numbers_of_a_record_are_what_its_check_computes(key):
    assert claim(key).numbers
    assert differences(key) == []


def correct_by_its_numbers(one):
    return one.verdict == "correct" and one.said


@pytest.mark.parametrize("key", [k for k in COMPUTED if correct_by_its_numbers(claim(k))])
def test_a_correct_claim_turns_when_it_says_half_as_much_again(key):
    one = claim(key)
    changed = replace(one, said={name: 1.5 * value for name, value in one.said.items()})
    assert load_checks()[one.check](changed).verdict != "correct"


def wrong_by_its_numbers(one):
    """Whether what a claim says is what is wrong, and not a condition or heads left over."""
    differ = any(one.numbers.get(name, value) != value for name, value in one.said.items())
    return one.verdict == "wrong" and differ and not one.numbers.get("rest")


@pytest.mark.parametrize("key", [k for k in COMPUTED if wrong_by_its_numbers(claim(k))])
def test_a_wrong_claim_turns_when_it_says_what_is_right(key):
    one = claim(key)
    changed = replace(one, said={name: one.numbers[name] for name in one.said})
    assert load_checks()[one.check](changed).verdict == "correct"


def test_a_claim_turns_when_the_product_counts_otherwise(monkeypatch):
    """A cache that kept a key only would make 2 L H h twice too much, grouped or not."""

    def half(*args, **named):
        found = kv_cache(*args, **named)
        return replace(found, bytes=found.bytes // 2, bytes_per_token=found.bytes_per_token // 2)

    monkeypatch.setattr(cache_checks, "kv_cache", half)
    assert differences("kv-formula")[0] == "verdict convention, recomputed wrong"
    assert len(differences("kv-2gb")) == 3


def test_a_record_that_says_something_else_is_told_apart(monkeypatch):
    found = load_checks()["depth-power"](claim("depth-power"))
    changed = registry.Checked("correct", found.numbers | {"units_layers": 60.0})
    monkeypatch.setitem(CHECKS, "depth-power", lambda _: changed)
    told = differences("depth-power")
    assert told[0] == "verdict wrong, recomputed correct"
    assert len(told) == 2
    said = invoke("check", "depth-power")
    assert said.return_value == 1
    assert "recomputed correct" in said.stdout


def audit():
    """The verdict of each row of the audit, by its id."""
    path = SHARED / "notes" / "claims.md"
    if not path.exists():
        pytest.skip("the audit is not beside this checkout")
    words = {"approx": "approximate", "unverif": "unverifiable"}
    rows = re.findall(r"^\| (A\d{3}) \|(.*)\|$", path.read_text("utf-8"), re.MULTILINE)
    found = {}
    for key, row in rows:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)]
        word = re.match(r"correct|convention|approx|wrong|unverif", cells[2])
        assert word, (key, cells)
        found[key] = words.get(word[0], word[0])
    return found


def test_the_records_are_the_audit_and_have_its_verdicts():
    rows = audit()
    assert len(rows) == 180
    assert len(set(claims()) & set(rows)) >= 170
    assert {k: one.verdict for k, one in claims().items()} == rows | OVERRULED


def test_half_of_the_claims_are_computed_again():
    assert len(COMPUTED) >= 90
    assert {one.check for one in claims().values() if one.check} == set(load_checks())


def test_what_a_second_pass_left_to_be_confirmed_is_marked():
    path = SHARED / "notes" / "confirmed.md"
    if not path.exists():
        pytest.skip("the second pass is not beside this checkout")
    text = path.read_text("utf-8").partition("## 2.")[2].partition("## 3.")[0]
    memory = re.search(r"- (A035.*?): interpretive", text)[1]
    marked = {one.id for one in claims().values() if one.to_be_confirmed}
    assert set(re.findall(r"A\d{3}", memory)) <= marked
    assert {"A044", "A059", "A115", "A180"} <= marked


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
    rows = [
        r
        for r in table(SHARED / "data" / "ablations.csv")
        if r["axis"] == "tying" and r["delta_nats"]
    ]
    said = claim("tie-below").measured
    small = [abs(float(r["delta_nats"])) for r in rows if r["model_size"] == "17M"]
    moved = [abs(float(r["delta_nats"])) for r in rows if r["model_size"] != "17M"]
    assert len(moved) >= 4
    assert max(moved) == pytest.approx(said["largest"], abs=0.0005)
    assert max(small) == pytest.approx(said["largest_17m"], abs=0.0005)


def test_no_rule_rests_on_a_claim_of_memory():
    package = Path(scantling.__file__).parent
    files = [*(package / "rules").glob("*.py"), package / "data" / "rules.toml"]
    text = "".join(file.read_text("utf-8") for file in files)
    assert len(files) > 10
    for one in claims().values():
        if one.to_be_confirmed:
            assert not re.search(rf"\b{one.id}\b|\"{one.name}\"", text), one.id


def test_every_claim_has_evidence_and_known_sources():
    names = [one.name for one in claims().values()]
    assert len(set(names)) == len(names)
    for one in claims().values():
        assert "{" not in one.found
        assert one.right
        assert one.made
        assert set(one.sources) <= set(sources())
    with pytest.raises(UnknownNameError, match="did you mean hundred"):
        claim("hundreds")


def test_a_claim_with_neither_source_nor_check_is_one_that_reading_decides():
    """No number stands alone: without a source and a check no evidence in numbers is wrong."""
    bare = [o for o in claims().values() if not o.sources and not o.check and not o.to_be_confirmed]
    assert all(not one.numbers and not one.said for one in bare)
    assert len(bare) < 25


def test_the_command_lists_shows_and_checks():
    said = invoke("list", "--json")
    assert set(json.loads(said.stdout)["claims"]) == set(claims())
    assert invoke().stdout.splitlines()[0].startswith("A001  convention")
    few = invoke("list", "--about", "recipes", "--verdict", "wrong").stdout.splitlines()
    assert [line[:4] for line in few[:-1]] == ["A147", "A149", "A151", "A153", "A154", "A156"]
    one = invoke("hundred").stdout
    assert "A129 hundred (depth)" in one
    assert "derivation" in invoke("A130").stdout
    again = invoke("check", "hundred", "A137").stdout
    assert "A129 hundred: approximate, as recorded" in again
    assert "A137 latent-code: wrong; nothing computes it" in again
    assert invoke("list", "no such word").return_value == 1


def test_the_page_of_the_documentation_is_what_the_records_say():
    assert (DOCS / "claims.md").read_text("utf-8") == report.page()
