"""Why a design is what it is: reasons, trail, priors and tasks, each with its evidence."""

import json
import math

import pytest
from click.testing import CliRunner

from scantling import catalog, cli
from scantling.claims import claim
from scantling.costs.count import solve_width
from scantling.errors import FieldError, ScantlingError
from scantling.report.design_more import explained
from scantling.search import Range, budget, candidate, design, explain
from scantling.search.axis import along
from scantling.search.kept import limits_of, priced
from scantling.search.shape_priors import (
    PriorPrice,
    narrowed,
    shape_priors,
    without,
)
from scantling.search.space import depth_step
from scantling.search.tasks import TASKS, answer, full_attention_share, records
from scantling.search.trail import STEPS, trail
from scantling.sources import sources
from scantling.spec import vary

SMALL = {"params": 20_000_000, "vocab_size": 8192}


def run(*args):
    """Status and output, or the error line, as ``main`` gives them."""
    done = CliRunner().invoke(cli.group, ["design", *args], standalone_mode=False)
    if isinstance(done.exception, ScantlingError):
        return 2, f"error: {done.exception}"
    assert done.exception is None, repr(done.exception)
    return done.return_value or 0, done.stdout


@pytest.fixture(scope="module")
def front():
    return design(**SMALL, baselines=())


# ---------------------------------------------------------------- priors


def test_every_record_of_evidence_names_known_sources():
    from scantling.search.origin import changes

    found = [one.sources for one in shape_priors().values()]
    found += [one.sources for rows in records().values() for one in rows]
    found += [one.sources for one in changes().values()]
    assert {key for keys in found for key in keys} <= set(sources())


@pytest.mark.parametrize(
    ("body", "depth", "width"), [(1e9, 22.4, 1929), (7e9, 22.4 * 7**0.2, 1929 * 7**0.4)]
)
def test_the_fifth_root_of_size_makes_a_body_of_that_size(body, depth, width):
    """12 L D² is P with 22.4 and 1929, and D/L is 86 P^0.2 (claims, A130)."""
    axis, low, high = shape_priors()["depth-power"].range(body)
    assert axis == "n_layer"
    assert math.sqrt(low * high) == pytest.approx(depth)
    assert 12 * depth * width**2 == pytest.approx(body, rel=0.01)
    assert width / depth == pytest.approx(86 * (body / 1e9) ** 0.2, rel=0.01)


def test_the_depth_efficiency_law_gives_the_published_depths():
    """Depth 47 at width 2048 and 80 at about 13,100 (levine2020 as its notes read it)."""
    for depth, width in ((47, 2048), (80, 13_100)):
        body = 12 * depth * width**2
        axis, low, high = shape_priors()["levine"].range(body)
        assert axis == "n_layer"
        assert math.sqrt(low * high) == pytest.approx(depth, rel=0.02)


@pytest.mark.parametrize("name", sorted(shape_priors()))
def test_a_prior_keeps_every_shape_in_its_range(name):
    b = budget(params="350M", vocab_size=50_304, prior=name)
    axis, bound = next((k, v) for k, v in narrowed(b).bounded.items())
    found = design(b, baselines=())
    assert found.budget.bounded[axis] == bound
    for c in found.candidates:
        value = c.dims()["d_model"] / c.dims()["n_layer"] if axis == "aspect" else (
            c.dims()["n_layer"])  # fmt: skip
        assert bound.low * (1 - 1e-9) <= value <= bound.high * (1 + 1e-9)


def test_a_prior_opens_no_odd_depth_of_a_large_model():
    assert depth_step(narrowed(budget(params="7B", prior="depth-power"))) == 2
    assert depth_step(budget(params="7B", bounded={"n_layer": Range(29, 35)})) == 1


def test_no_prior_is_applied_unasked():
    b = budget(params="7B")
    assert narrowed(b) is b
    for name in shape_priors():
        assert without(narrowed(budget(params="7B", prior=name))) == b


def test_what_a_user_bounds_overrules_a_prior_and_the_answer_says_so():
    b = budget(**SMALL, prior="aspect-96", bounded={"aspect": Range(20, 40)})
    assert narrowed(b).bounded["aspect"] == Range(20, 40)
    status, out = run("--params", "20M", "--vocab", "8192", "--prior", "aspect-96", "--bound",
                      "aspect=20:60")  # fmt: skip
    assert status == 0
    assert "D/L 20 to 60, as you bounded it" in out


def test_a_prior_says_what_it_costs_against_the_free_choice():
    status, out = run("--params", "350M", "--vocab", "50304", "--prior", "levine", "--json")
    assert status == 0
    found = json.loads(out)
    prior = found["prior"]
    choice = found["front"][found["choice"]]
    assert prior["choice"]["name"] == choice["name"]
    low, high = prior["range"]
    assert low <= choice["dims"]["n_layer"] <= high
    free = design(params="350M", vocab_size=50_304, baselines=()).chosen
    assert prior["free"]["name"] == free.name
    cost = prior["cost"]
    assert cost["days"] == pytest.approx(choice["train"]["days"]["value"] / free.days - 1)
    assert cost["loss"]["low"] <= cost["loss"]["value"] <= cost["loss"]["high"]
    assert prior["verdict"] == "approximate"
    assert prior["evidence"]


def test_a_prior_that_fits_nothing_says_so():
    price = PriorPrice("kaplan", narrowed(budget(**SMALL, prior="kaplan")), None, None)
    assert "no shape keeps it" in "\n".join(price.lines())


def test_the_list_of_priors_has_every_one_with_its_verdict():
    status, out = run("--prior", "list", "--params", "7B")
    assert status == 0
    for name, one in shape_priors().items():
        assert f"{name}: {one.formula}" in out
        assert one.verdict in out
    _, out = run("--prior", "list", "--json")
    assert {row["name"] for row in json.loads(out)["priors"]} == set(shape_priors())


def test_an_unknown_prior_names_the_nearest():
    status, out = run("--params", "7B", "--prior", "aspect-69")
    assert (status, "did you mean aspect-96?" in out) == (2, True)


# ---------------------------------------------------------------- tasks


def test_a_task_without_a_published_comparison_is_answered_with_no_evidence(front):
    assert "classification" not in records()
    found = answer("classification", front.chosen, ())
    assert found.to_json() == {"task": "classification", "evidence": False, "records": []}
    assert "no evidence" in found.lines()[0]


def test_retrieval_asks_one_full_layer_in_four_of_a_hybrid_and_four_kv_heads():
    """Qwen3-Next has one full layer in four, MiniMax-01 one in eight (their configs)."""
    names = ("qwen3-next-80b-a3b", "minimax-text-01", "llama-3.1-8b", "gemma-3-27b")
    shares = {name: full_attention_share(catalog.model(name)) for name in names}
    assert shares["qwen3-next-80b-a3b"] == 0.25
    assert shares["minimax-text-01"] == 0.125
    assert shares["llama-3.1-8b"] is None
    assert shares["gemma-3-27b"] is None
    b = budget(params="50B")
    rows = answer("retrieval", candidate(catalog.model("minimax-text-01"), b), ())
    rows = rows.to_json()["records"]
    assert rows[0]["verdict"].startswith("NOT kept")
    rows = answer("retrieval", candidate(catalog.model("falcon-7b"), b), ()).to_json()["records"]
    heads = next(row for row in rows if row["axis"] == "n_kv_head")
    assert heads["verdict"] == "NOT kept (1)"


def test_reasoning_speaks_for_the_deepest_shape_of_equal_loss(front):
    equal = [front.candidates[i] for i in front.equal]
    rows = answer("reasoning", front.chosen, equal).to_json()["records"]
    named = next(row["speaks_for"] for row in rows if row["prefers"] == "deeper")
    deepest = max(c.dims()["n_layer"] for c in equal)
    assert {c.dims()["n_layer"] for c in equal if c.name == named} == {deepest}


@pytest.mark.parametrize("task", TASKS)
def test_a_task_moves_no_number(front, task):
    status, out = run("--params", "20M", "--vocab", "8192", "--task", task, "--json")
    found = json.loads(out)
    assert status == 0
    assert found["task"]["task"] == task
    assert found["front"][found["choice"]]["name"] == front.chosen.name


def test_an_unknown_task_is_refused_before_the_search():
    status, out = run("--params", "7B", "--task", "poetry")
    assert (status, "reasoning, retrieval" in out) == (2, True)


# ---------------------------------------------------------------- reasons of a field


def test_a_neighbour_has_every_objective_and_the_limits_it_breaks(front):
    c = design(
        **SMALL, kv_bytes_per_token=int(front.chosen.kv_bytes_per_token), baselines=()
    ).chosen
    for field in ("n_layer", "n_kv_head", "d_ff"):
        for near in explain(c, field).neighbours:
            over = (1 + near.kv) * c.kv_bytes_per_token > c.budget.kv_bytes_per_token
            assert any(text.startswith("KV bytes") for text in near.breaks) is over
            wide = abs((c.counted.total + near.params) / c.budget.params - 1) > 0.005
            assert any(text.startswith("the size") for text in near.breaks) is wide


@pytest.mark.parametrize(
    ("given", "cost"),
    [({"ttft_s": 1.0}, "ttft_s"), ({"memory": 80 * 2**30}, "memory_bytes"),
     ({"weights": {"loss": 1.0, "ttft_s": 1.0}}, "ttft_s"),
     ({"price": 2.0, "cost_per_million": 100.0}, "cost_per_million")],
)  # fmt: skip
def test_costs_that_are_limited_or_weighed_are_priced_at_every_step(given, cost):
    c = design(**SMALL, **given, baselines=()).chosen
    for near in explain(c, "n_kv_head").neighbours:
        spec = vary(c.spec, n_kv_head=near.value)
        spec = vary(spec, d_ff=solve_width(spec, int(c.counted.total), 128))
        other = candidate(spec, c.budget)
        change = getattr(other.costs, cost) / getattr(c.costs, cost) - 1
        assert near.more[cost] == pytest.approx(change)
        assert near.to_json()[cost] == near.more[cost]


def test_a_shape_of_the_front_keeps_every_limit_and_a_broken_one_is_named(front):
    for c in front.candidates:
        assert [one.name for one in limits_of(c) if not one.kept] == []
        assert priced(c)["loss"] == pytest.approx(c.loss_upper)
    b = budget(params="7.6B", tp=8, kv_bytes_per_token=50_000)
    names = {one.name for one in limits_of(candidate(catalog.model("qwen2.5-7b"), b))
             if not one.kept}  # fmt: skip
    assert {"split of query heads over 8", "KV bytes per token"} <= names
    assert "split of KV heads over 8" not in names  # four heads, each on two GPUs


def test_a_field_has_its_rules_with_their_verdicts(front):
    told = explain(front.chosen, "n_layer").rules
    assert any(claim("hundred").verdict in text for text in told)
    assert any(text.startswith(claim("critical-depth").statement) for text in told)
    (first, _) = explain(front.chosen, "n_kv_head").rules
    assert first.startswith("n_kv_head 4 or more: kept")
    gone = candidate(catalog.model("falcon-7b"), budget(params="7B"))
    assert explain(gone, "n_kv_head").rules[0].startswith("n_kv_head 4 or more: not kept at 1")


def test_a_mixture_has_a_reason_for_its_experts():
    c = design(params="8B", active="1.5B", baselines=()).chosen
    d = c.dims()
    found = {field: explain(c, field) for field in ("n_expert", "top_k", "d_expert")}
    share = d["top_k"] / d["n_expert"]
    assert f"passes {share:.1%} of the experts" in found["n_expert"].set_by
    assert [near.value for near in found["n_expert"].neighbours] == [
        v for v in (d["n_expert"] - 8, d["n_expert"] + 8) if v >= d["top_k"]
    ]  # fmt: skip
    assert all(near.params for near in found["d_expert"].neighbours)
    assert f"{d['d_expert'] / d['d_model']:.3g} of D" in found["d_expert"].set_by


def test_latent_attention_has_a_reason_for_its_rank():
    c = design(params="3B", mixer="mla", baselines=()).chosen
    reason = explain(c, "kv_rank")
    assert "which kernels decode" in reason.set_by
    assert reason.value == c.dims()["kv_rank"]


# ---------------------------------------------------------------- a field across its axis


def test_every_value_of_a_field_is_a_search_with_it_fixed(front):
    rows = along(front, "n_layer")
    assert [r.value for r in rows] == sorted({r.value for r in rows})
    assert [r.value for r in rows if r.given] == [front.chosen.dims()["n_layer"]]
    for r in rows:
        fixed = design(**SMALL, fixed={"n_layer": r.value}, baselines=())
        assert r.feasible == fixed.swept.feasible
        assert r.least["loss"] == fixed.swept.objectives[:, 0].min()
        if not r.given:
            assert r.choice.spec == fixed.chosen.spec
    assert next(r.loss.value for r in rows if r.given) == 0


def test_a_value_nothing_keeps_says_what_most_shapes_break(front):
    rows = {r.value: r for r in along(front, "n_kv_head")}
    wide = design(**SMALL, fixed={"n_layer": 12}, baselines=())
    found = along(wide, "d_head")
    assert all(r.choice is not None or r.why for r in (*rows.values(), *found))


def test_a_flat_valley_is_said_with_its_ends(front):
    found = explained(front, "n_layer")
    known = [r for r in found.rows if r.loss is not None]
    best = min(r.least["loss"] for r in known)
    flat = [r.value for r in known if r.least["loss"] <= best + front.equal_within]
    assert f"from {min(flat)} to {max(flat)}" in found.lines[-1]


def test_a_field_the_choice_has_not_is_one_line():
    status, out = run("--params", "20M", "--vocab", "8192", "--explain", "n_layers")
    assert status == 2
    assert "did you mean n_layer?" in out
    with pytest.raises(FieldError, match="use n_layer"):
        along(design(**SMALL, baselines=()), "zzz")


def test_an_explained_field_is_a_picture(tmp_path):
    status, _ = run("--params", "20M", "--vocab", "8192", "--explain", "n_layer", "--plot",
                    str(tmp_path / "depth.svg"))  # fmt: skip
    assert status == 0
    assert "n_layer" in (tmp_path / "depth.svg").read_text("utf-8")


# ---------------------------------------------------------------- the trail


def test_the_trail_goes_from_the_question_to_the_choice(front):
    told = {one["step"]: one["lines"] for one in trail(front)}
    assert tuple(told) == STEPS
    assert "params: 20,000,000" in told["given"]
    assert not any(text.startswith("tokens") for text in told["given"])
    assert any(text.startswith("tokens: 20 per parameter") for text in told["assumed"])
    removed = {text.partition(" by ")[2]: text.partition(" by ")[0] for text in told["removed"]}
    for name, count in front.swept.removed.items():
        assert removed.get(name, "0") == f"{count:,}"
    assert told["front"][0].startswith(f"{front.swept.feasible:,} shapes keep every limit")
    assert told["equal"][0].startswith(f"{len(front.equal)} of the {len(front.candidates)}")
    assert told["choice"][0].startswith(front.chosen.name)


def test_a_binding_limit_is_named_in_the_trail(front):
    least = int(min(c.kv_bytes_per_token for c in front.candidates))
    found = trail(design(**SMALL, kv_bytes_per_token=least, baselines=()))
    assert "KV bytes per token" in found[-1]["lines"][-1]


def test_a_trail_without_an_answer_ends_at_what_was_removed():
    found = trail(design(**SMALL, kv_bytes_per_token=1, baselines=()))
    assert [one["step"] for one in found] == ["given", "assumed", "space", "removed"]


def test_the_trail_is_text_on_demand():
    status, out = run("--params", "20M", "--vocab", "8192", "--explain", "all", "--bound",
                      "n_layer=6:12")  # fmt: skip
    assert status == 0
    assert "\nremoved\n" in out
    assert "bounded: n_layer 6 to 12" in out
