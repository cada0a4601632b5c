"""Shapes like a model, the same recipe at other sizes, and what weights can become."""

import json
import math

import pytest
from click.testing import CliRunner

from scantling import catalog, cli
from scantling.costs.count import parameters
from scantling.errors import FieldError, ScantlingError
from scantling.search import Range, budget, candidate, design, difference, explain
from scantling.search.ladder import REACH, ladder
from scantling.search.like import COST_TOLERANCE, like_budget, likeness
from scantling.search.origin import changes, restricted, steps
from scantling.spec import vary


def run(*args):
    """Status and output, or the error line, as ``main`` gives them."""
    done = CliRunner().invoke(cli.group, ["design", *args], standalone_mode=False)
    if isinstance(done.exception, ScantlingError):
        return 2, f"error: {done.exception}"
    assert done.exception is None, repr(done.exception)
    return done.return_value or 0, done.stdout


# ---------------------------------------------------------------- like


@pytest.fixture(scope="module")
def like_gpt2():
    model = catalog.load("gpt2")
    return model, design(like_budget(model, {}), baselines=("gpt2",))


def test_a_model_is_its_size_vocabulary_and_costs(like_gpt2):
    """GPT-2: 124,439,808 parameters, vocabulary 50,257, context 1024, 36,864 bytes a token."""
    model, front = like_gpt2
    b = front.budget
    assert (b.params, b.vocab_size, b.train_context) == (124_439_808, 50_257, 1024)
    own = candidate(model.spec, b)
    assert own.kv_bytes_per_token == 12 * 2 * 768 * 2
    assert b.kv_bytes_per_token == int(36_864 * (1 + COST_TOLERANCE))
    for c in front.candidates:
        assert c.days <= own.days * (1 + COST_TOLERANCE) * (1 + 1e-9)
        assert c.kv_bytes_per_token <= own.kv_bytes_per_token * (1 + COST_TOLERANCE)
        assert c.decode.value_s <= own.decode.value_s * (1 + COST_TOLERANCE) * (1 + 1e-9)


def test_what_is_given_beside_a_model_wins():
    b = like_budget(catalog.load("llama-3.1-8b"), {"tokens": 15 * 10**12, "n_gpu": 64, "days": 9.0})
    assert (b.tokens, b.n_gpu, b.days) == (15 * 10**12, 64, 9.0)
    assert not any(text.startswith("days") for text in b.assumed)
    assert any(text.startswith("tpot_s: at most that of llama-3.1-8b") for text in b.assumed)


def test_better_is_beyond_the_interval_of_the_difference(like_gpt2):
    model, front = like_gpt2
    found = likeness(front, model)
    own = candidate(model.spec, front.budget, "gpt2")
    better = [c.name for c in front.candidates if difference(c, own).high < 0]
    assert sorted(c.name for c in found.beyond) == sorted(better)
    assert found.lower == sum(difference(c, own).value < 0 for c in front.candidates)
    one = found.cheaper
    assert difference(one, own).low <= 0
    assert one.days <= own.days
    assert one.kv_bytes_per_token <= own.kv_bytes_per_token
    assert one.decode.value_s <= own.decode.value_s


def test_a_model_far_from_any_good_shape_is_beaten_beyond_the_noise():
    """Two hundred layers of width 512 lie at D/L 2.6: 0.05 nats is what W/L 3 costs (claims)."""
    spec = vary(catalog.model("llama-3.2-1b"), d_model=512, n_layer=200, n_head=8, n_kv_head=8,
                d_ff=2048)  # fmt: skip
    model = catalog.load(spec)
    found = likeness(design(like_budget(model, {}), baselines=()), model)
    assert found.beyond
    assert "better: " in "\n".join(found.lines())


def test_the_kinds_of_a_model_are_those_of_the_search():
    kinds = {"deepseek-v3": ("mixer", "mla"), "qwen3-next-80b-a3b": ("mixer", "gated-delta"),
             "nemotron-h-8b": ("mixer", "mamba2"),
             "gemma-3-27b": ("layout", "5:1"), "llama-3.1-8b": ("layout", "full")}  # fmt: skip
    for name, (field, value) in kinds.items():
        assert getattr(like_budget(catalog.load(name), {}), field) == value
    for name in ("gemma-3-4b", "gemma-3-27b"):  # 34 and 62 layers of a cycle of six
        b = like_budget(catalog.load(name), {})
        assert (b.layout, b.window) == ("5:1", 1024)
    b = like_budget(catalog.load("qwen3-30b-a3b"), {})
    assert b.moe
    assert b.active == parameters(catalog.model("qwen3-30b-a3b")).active


def test_like_is_a_row_and_an_answer_on_the_command_line():
    status, out = run("--like", "gpt2", "--json")
    found = json.loads(out)
    assert status == 0
    assert [row["name"] for row in found["baselines"]] == ["gpt2"]
    assert found["like"]["model"] == "gpt2"
    assert found["like"]["shapes"] == len(found["front"])
    status, out = run("--like", "gpt2", "--rows", "3")
    assert f"{found['like']['lower_loss']} of {len(found['front'])} shapes" in out


@pytest.mark.parametrize(
    ("args", "says"),
    [(["--like", "gpt-9"], "model gpt-9"),
     (["--like", "gpt2", "--from", "gpt2"], "contradicts --from"),
     (["--from", "llama-3.1-8b"], "add --params"),
     (["--from", "llama-3.1-8b", "--params", "12B"], "a dense model can only shrink"),
     (["--from", "deepseek-v3", "--params", "12B"], "no dense decoder"),
     (["--from", "llama-3.1-8b", "--params", "4B", "--fix", "n_layer=40"], "more than the 32"),
     (["--from", "llama-3.1-8b", "--params", "4B", "--fix", "n_kv_head=3"], "1, 2, 4, 8"),
     (["--params", "20M", "--vocab", "8192", "--ladder", "lots"], "is not a number")],
)  # fmt: skip
def test_muddled_questions_are_one_line(args, says):
    status, out = run(*args)
    assert status == 2
    assert says in out
    assert "\n" not in out


# ---------------------------------------------------------------- ladder

SIZES = (125 * 10**6, 350 * 10**6, 10**9, 7 * 10**9)


@pytest.mark.parametrize(
    "name",
    ["llama-3.1-8b", "gpt2", "gemma-3-27b", "qwen3-30b-a3b", "deepseek-v3", "mistral-7b-v0.3"],
)
def test_a_rung_is_the_recipe_at_its_size(name):
    spec = catalog.model(name)
    base = candidate(spec, budget(params=int(parameters(spec).total)), name)
    ratios = base.shape()
    built = 0
    for rung in ladder(base, (*SIZES, 70 * 10**9)):
        c = rung.candidate
        if c is None:
            assert "no shape of" in rung.advice["note"]
            continue
        built += 1
        d = c.dims()
        assert abs(parameters(c.spec).total / rung.size - 1) <= 0.005
        assert d["vocab_size"] == spec.vocab_size
        for key in ("D/L", "Hh/D", "F/D"):
            if key in ratios and key in c.shape():
                assert abs(math.log(c.shape()[key] / ratios[key])) <= math.log(REACH) * 1.2
        if "n_kv_head" in d:
            assert d["n_head"] % d["n_kv_head"] == 0
        if rung.size >= 10**9 and spec.n_head % 8 == 0:
            assert d["n_head"] % 8 == 0
            kv = d.get("n_kv_head", 8)
            assert kv % 8 == 0 or 8 % kv == 0
        assert d["d_model"] % 64 == 0
    assert built >= 3


def test_a_recipe_at_its_own_size_is_itself():
    for name in ("gpt2", "llama-3.1-8b", "mistral-7b-v0.3"):
        spec = catalog.model(name)
        size = int(parameters(spec).total)
        base = candidate(spec, budget(params=size, vocab_size=int(spec.vocab_size)), name)
        (rung,) = ladder(base, (size,))
        assert rung.candidate.dims() == base.dims()


def test_matrices_learn_slower_in_proportion_to_width():
    """muP for Adam: hidden matrices 1/width, embeddings constant, output 1/width (mup2022)."""
    base = candidate(catalog.model("mistral-7b-v0.3"), budget(params="7B", vocab_size=32_768))
    small, middle, large = (r for r in ladder(base, (350 * 10**6, 10**9, 7 * 10**9)))
    first = small.advice["hyperparameters"]
    for rung in (middle, large):
        wider = rung.candidate.dims()["d_model"] / small.candidate.dims()["d_model"]
        h = rung.advice["hyperparameters"]
        for end in ("value", "low", "high"):
            inside = first["learning_rate_matrices"][end] / wider
            assert h["learning_rate_matrices"][end] == pytest.approx(inside)
            assert h["learning_rate_embeddings"][end] == first["learning_rate_embeddings"][end]
        assert h["init_std_matrices"] == pytest.approx(first["init_std_matrices"] / wider**0.5)
        assert h["output_multiplier"] == pytest.approx(1 / wider)
        assert h["base"] == small.candidate.name
    ratio = [r.candidate.budget.tokens / r.candidate.counted.total for r in (small, middle, large)]
    assert ratio == pytest.approx([ratio[0]] * 3, rel=1e-6)


def test_a_ladder_keeps_the_tokens_of_a_parameter_that_the_shape_is_given():
    """At equal FLOPs each shape has its own tokens; a rung of its size has those again."""
    b = budget(params="1B", tokens="20B", vocab_size=32_000, equal="flops", alike=1e20)
    own = candidate(vary(catalog.model("llama-2-7b"), d_model=2048, n_layer=16, n_head=16,
                         n_kv_head=16, d_ff=5504), b)  # fmt: skip
    assert own.features.tokens < 0.9 * b.tokens
    (rung,) = ladder(own, (10**9,))
    c = rung.candidate
    assert c.features.tokens == c.budget.tokens
    wanted = own.features.tokens / own.counted.total
    assert c.budget.tokens / c.counted.total == pytest.approx(wanted)


def test_a_recipe_of_billions_has_rungs_of_trillions():
    spec = catalog.model("llama-3.1-8b")
    base = candidate(spec, budget(params=int(parameters(spec).total)))
    for rung in ladder(base, (10**12, 20 * 10**12)):
        assert abs(parameters(rung.candidate.spec).total / rung.size - 1) <= 0.005
        assert rung.candidate.dims()["d_ff"] % 128 == 0


def test_the_ladder_of_a_choice_and_of_a_model():
    _, out = run("--params", "7B", "--ladder", "125M,350M,1B,7B", "--json")
    found = json.loads(out)
    rows = found["ladder"]
    assert [row["size"] for row in rows] == list(SIZES)
    assert all(row["feasible"] for row in rows)
    assert all(abs(row["params"] / row["size"] - 1) <= 0.005 for row in rows)
    assert all(row["hf_config"]["hidden_size"] == row["dims"]["d_model"] for row in rows)
    status, out = run("--like", "gpt2", "--ladder", "125M,1B", "--rows", "2")
    assert status == 0
    assert "recipe: gpt2" in out
    assert "125 M: 12 × 768, 12/12 heads, FFN 3,072" in out


# ---------------------------------------------------------------- from


def test_weights_can_be_pruned_and_merged_but_not_grown():
    spec = catalog.model("llama-3.1-8b")
    b = restricted(catalog.load("llama-3.1-8b"), {"params": "4B"})
    assert b.fixed["d_head"] == spec.d_head
    assert b.listed["n_kv_head"] == (1, 2, 4, 8)
    assert b.listed["n_layer"] == tuple(range(2, 33, 2))
    for field in ("d_model", "n_head", "d_ff"):
        assert b.bounded[field] == Range(1, getattr(spec, field))
    assert b.vocab_size == spec.vocab_size
    tight = restricted(catalog.load("llama-3.1-8b"),
                       {"params": "4B", "bounded": {"n_layer": Range(16, 99)}})  # fmt: skip
    assert tight.bounded["n_layer"] == Range(16, 32)


def test_what_the_weights_set_is_said_to_be_theirs_and_keeps_the_split_of_heads():
    b = restricted(catalog.load("llama-3.1-8b"), {"params": "4B", "fixed": {"n_layer": 24}})
    front = design(b, baselines=())
    assert explain(front.chosen, "d_head").set_by == "fixed by --from llama-3.1-8b"
    assert explain(front.chosen, "n_layer").set_by == "fixed by --fix n_layer=24"
    assert {axis.why for axis in front.axes if axis.name == "kv_group"} == {
        "opened by --from llama-3.1-8b"
    }
    assert all(c.dims()["n_head"] % 8 == 0 for c in front.candidates)


def test_experts_start_as_copies_of_the_feed_forward():
    b = restricted(catalog.load("llama-3.1-8b"), {"params": "40B", "active": "13B"})
    assert b.fixed["d_expert"] == 14_336
    assert "d_ff" not in b.bounded


def test_every_shape_can_come_from_the_model():
    spec = catalog.model("llama-3.2-1b")
    front = design(restricted(catalog.load("llama-3.2-1b"), {"params": "500M"}), baselines=())
    assert front.feasible
    for c in front.candidates:
        d = c.dims()
        assert d["n_layer"] <= spec.n_layer
        assert d["d_model"] <= spec.d_model
        assert d["n_head"] <= spec.n_head
        assert d["d_ff"] <= spec.d_ff
        assert d["d_head"] == spec.d_head
        assert spec.n_kv_head % d["n_kv_head"] == 0


def test_the_steps_from_a_model_are_what_differs_with_what_each_was_seen_to_lose():
    spec = catalog.model("llama-3.1-8b")
    found = [s.to_json() for s in steps(spec, vary(spec, n_layer=24, d_ff=9216, n_kv_head=4))]
    assert [(s["from"], s["to"]) for s in found] == [(32, 24), (8, 4), (14_336, 9216)]
    assert all(s["kind"] == "measured" and s["sources"] for s in found)
    (one,) = [s.to_json() for s in steps(spec, vary(spec, vocab_size=64_000))]
    assert (one["kind"], one["to"]) == ("assumed", 64_000)
    assert steps(spec, spec) == ()
    for change in changes().values():
        assert bool(change.measured) != bool(change.assumed)


def test_an_answer_from_weights_lists_the_steps_of_every_shape():
    _, out = run("--from", "llama-3.2-1b", "--params", "500M", "--json")
    found = json.loads(out)
    assert set(found["from"]["steps"]) == {row["name"] for row in found["front"]}
    assert "from scratch" in found["from"]["note"]
    for row in found["front"]:
        moved = {(s["from"], s["to"]) for s in found["from"]["steps"][row["name"]]}
        if row["dims"]["n_layer"] != 16:
            assert (16, row["dims"]["n_layer"]) in moved


def test_an_encoder_decoder_is_like_no_decoder():
    with pytest.raises(FieldError, match="no decoder"):
        like_budget(catalog.load({"model_type": "t5"}), {})


def test_only_a_dense_decoder_with_grouped_attention_is_pruned():
    for name in ("mixtral-8x7b", "deepseek-v3", "nemotron-h-8b"):
        with pytest.raises(FieldError, match="no dense decoder"):
            restricted(catalog.load(name), {"params": "1B"})
