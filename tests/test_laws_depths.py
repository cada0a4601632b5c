"""The price of a depth at one size, on three bases."""

import json

import pytest
from click.testing import CliRunner

from scantling.cli import group
from scantling.costs.estimate import training_time
from scantling.errors import FieldError
from scantling.laws import law
from scantling.report.depths import depth_lines, ladder, price_depths
from scantling.search import Range, design
from scantling.search.budget import budget

BUDGET = budget(params="1.7B", n_gpu=8)


@pytest.fixture(scope="module")
def rows():
    return price_depths(BUDGET, (27, 12, 60))


def test_the_reference_costs_nothing_on_any_basis(rows):
    assert [row.candidate.spec.n_layer for row in rows] == [27, 12, 60]
    assert all(p == (0, 0, 0) for p in rows[0].prices)


def test_twelve_layers_cost_what_the_measured_pair_says(rows):
    """3072 × 12 against 2048 × 27, equal body: measured +0.0195, .0168, .0165, .0159."""
    price = rows[1].prices[0]
    assert price.low <= 0.0175 <= price.high
    assert price.value > 0


def test_wall_clock_forgives_wide_shapes_and_punishes_deep_ones(rows):
    """On the authors' chips wide models ran at 62 to 65 TFLOP/s, deep ones at 37 to 48."""
    twelve, sixty = rows[1].prices, rows[2].prices
    assert twelve[2].value < twelve[0].value
    assert sixty[2].value > sixty[0].value


def test_equal_time_is_equal_time(rows):
    """Tokens times the ratio of the days: then both train as long."""
    reference, other = rows[0].candidate, rows[1].candidate
    share = reference.train.value_s / other.train.value_s
    again = training_time(other.spec, BUDGET.tokens * share, BUDGET.hardware, 8, 8192)
    assert again.value_s == pytest.approx(reference.train.value_s)
    one = law("aspect")
    f = other.features
    moved = one.loss(type(f)(**{k: getattr(f, k) for k in f.__struct_fields__}
                             | {"tokens": f.tokens * share}))  # fmt: skip
    by = rows[1].prices[2].value - rows[1].prices[0].value
    assert by == pytest.approx(moved - one.loss(f))


def test_the_lines_say_who_wins_and_what_ties(rows):
    text = "\n".join(depth_lines(rows))
    assert "by FLOPs: 27 layers" in text
    assert "by wall-clock on 8 × h100-sxm: " in text
    assert "60 × " in text


def test_the_command_prints_the_same_as_json():
    arguments = ["laws", "depths", "--params", "350M", "--layers", "20", "--layers", "8", "--json"]
    said = json.loads(CliRunner().invoke(group, arguments, standalone_mode=False).stdout)
    assert [one["n_layer"] for one in said["depths"]] == [20, 8]
    assert {"tokens", "FLOPs", "wall-clock"} <= set(said["depths"][1])


def test_design_names_the_price_of_depths_it_is_asked_for():
    arguments = ["design", "--params", "350M", "--gpus", "8", "--depths", "20,8"]
    text = CliRunner().invoke(group, arguments, standalone_mode=False).stdout
    assert "by wall-clock on 8 × h100-sxm: " in text
    said = CliRunner().invoke(group, [*arguments, "--json"], standalone_mode=False).stdout
    assert [one["n_layer"] for one in json.loads(said)["depths"]] == [20, 8]


def test_design_prices_a_ladder_of_depths_unless_told_not_to():
    """12, 27 and 60 layers of 1.7 B, on three bases with intervals, and who wins on which."""
    text = run("design", "--params", "1.7B")
    for depth in (12, 27, 60):
        (line,) = (x for x in text.splitlines() if x.strip().startswith(f"{depth} × "))
        assert line.count("[") == 3
    assert "by FLOPs: " in text
    assert "by wall-clock on 8 × h100-sxm: " in text
    said = json.loads(run("design", "--params", "1.7B", "--json"))
    assert {12, 27, 60} < {one["n_layer"] for one in said["depths"]}
    (reference,) = (one for one in said["depths"] if one["reference"])
    assert reference["name"] == said["front"][said["choice"]]["name"]
    assert "What depth costs" not in run("design", "--params", "350M", "--no-depths")
    assert "depths" not in json.loads(run("design", "--params", "350M", "--no-depths", "--json"))


def test_the_ladder_keeps_to_the_depths_the_user_left_open():
    assert ladder(budget(params="1.7B", bounded={"n_layer": Range(20, 60)})) == (27, 40, 60)
    assert ladder(budget(params="1.7B", fixed={"n_layer": 24})) == ()
    with pytest.raises(FieldError, match="contradicts --no-depths"):
        run("design", "--params", "350M", "--depths", "8", "--no-depths")


def test_a_depth_that_no_shape_has_is_said():
    found = CliRunner().invoke(group, ["design", "--params", "350M", "--depths", "20,5000"])
    assert "no feasible shape of this size has 5000 layers" in found.stderr


def test_a_price_of_depth_is_none_of_tying():
    """A table of 15 % decides tying by rule, which a narrower shape would fall under."""
    front = design(BUDGET, baselines=())
    rows = price_depths(BUDGET, (40, 60), front.chosen)
    assert [row.is_reference for row in rows].count(True) == 1
    assert {row.candidate.spec.tied for row in rows} == {front.chosen.spec.tied}


def run(*arguments):
    return (
        CliRunner()
        .invoke(group, list(arguments), standalone_mode=False, catch_exceptions=False)
        .stdout
    )
