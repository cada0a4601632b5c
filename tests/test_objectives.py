"""Costs that a search weighs are those of the verbs; an impossible budget says what to relax."""

import io
import itertools
import json
import math
import re

import numpy as np
import pytest
from moocore import hypervolume

from scantling import catalog, plan, serve
from scantling.costs.count import flops
from scantling.costs.parallel import problems
from scantling.errors import FieldError, UnknownNameError
from scantling.hardware import chip
from scantling.laws import law
from scantling.laws.hyperparameters import hyperparameters
from scantling.report.text import console, print_front
from scantling.search import (
    Range,
    budget,
    chosen,
    design,
    front_json,
    infeasible,
    planned,
    row_plans,
)
from scantling.search.choice import equal_groups
from scantling.search.forms import count, forms
from scantling.search.front import epsilons, non_dominated
from scantling.search.objectives import Costs, limits, names, serving, training_plans
from scantling.search.space import space
from scantling.search.sweep import KV_LIMIT, feasibility
from scantling.spec import vary
from scantling.units import count_text

SMALL = {"params": 20_000_000, "vocab_size": 8192}
NARROW = {
    **SMALL, "multiple": 64,
    "bounded": {"d_model": Range(256, 512), "n_layer": Range(4, 24)},
}  # fmt: skip
EVERYTHING = {
    "serve_batch": 8, "serve_context": 4096, "serve_chip": "l4", "serve_gpus": 2, "price": 2.0,
    "quant": "int8", "memory": 2**33, "kv_dtype": "fp8",
}  # fmt: skip
DIMS = ("n_layer", "d_model", "n_head", "n_kv_head", "d_head", "d_ff")


def feasible(b):
    """All shapes of a budget of the right size and kind, one column a structure."""
    tried = space(b)
    for part in tried.chunks(10**9):
        family = tried.families[part.index]
        counted = count(family, forms(family, b), part.index, part.row, part.depth, b)
        masks = feasibility(counted, b)
        keep = np.flatnonzero(np.logical_and.reduce([masks[n] for n in masks if n != KV_LIMIT]))
        if len(keep):
            yield vary(family.spec, **counted.dims(keep))


def one_of(column, at):
    return vary(column, **{k: int(getattr(column, k)[at]) for k in DIMS})


COSTS = ("loss", "expected_loss", "training_days", "gpu_hours", "memory_bytes", "decode_s",
         "ttft_s", "tokens_per_s", "cost_per_million", "kv_bytes_per_token", "kv_bytes",
         "serving_bytes", "tokens", "tile_waste")  # fmt: skip


@pytest.mark.parametrize(
    "more",
    [{"price": 1.0}, EVERYTHING, {"price": 1.0, "tp": 2, "pp": 2},
     {"price": 1.0, "equal": "wall-clock", "alike": 1e4},
     {"price": 1.0, "equal": "flops", "alike": 1e17, "unique_tokens": 10**8}],
    ids=["plain", "everything", "tp and pp", "wall-clock", "flops"],
)  # fmt: skip
def test_a_cost_of_a_column_is_that_of_each_of_its_shapes(more):
    b = budget(**NARROW, **more)
    column = next(iter(feasible(b)))
    whole = Costs(column, b)
    n = len(column.n_layer)
    for at in range(0, n, max(1, n // 7)):
        alone = Costs(one_of(column, at), b)
        for name in COSTS:
            value = np.broadcast_to(np.asarray(getattr(whole, name), dtype=float), n)[at]
            assert value == pytest.approx(float(getattr(alone, name)), rel=1e-9), name


# ---------------------------------------------------------------- the same as the other verbs


@pytest.mark.parametrize(
    ("model", "given"),
    [("llama-3.1-8b", {"gpu": "h100-sxm", "gpus": 1}),
     ("llama-3.1-70b", {"gpu": "h200", "gpus": 4}), ("llama-3.1-8b", {"gpu": "l4", "gpus": 1}),
     ("mixtral-8x7b", {"gpu": "h100-sxm", "gpus": 2}), ("gpt2", {"gpu": "t4", "gpus": 1})],
)  # fmt: skip
def test_time_per_token_and_memory_are_those_of_serve(model, given):
    """At one request nothing is prefilled between, so serve's time per token is a decode step."""
    dtype = "bf16" if "bf16" in chip(given["gpu"]).dtypes else "fp16"
    context = 1023 if model == "gpt2" else 8191
    b = budget(params="8B", serve_gpu=given["gpu"], serve_gpus=given["gpus"],
               serve_context=context, serve_batch=1, quant=dtype)  # fmt: skip
    spec = catalog.model(model)
    costs = Costs(spec, b)
    found = serve(model, **given, context=context, batch=1, tp=given["gpus"], quant=dtype)
    held = found.choice.trial.held
    assert float(costs.serving_bytes) == pytest.approx(float(held.memory.high), rel=1e-9)
    assert serving(b).room_bytes == pytest.approx(held.room_bytes)
    assert (costs.serving_bytes <= serving(b).room_bytes) == found.fits
    if found.choice.trial.points:
        # serve asks at the mean length of an answer, design at the context
        point = serve(model, **given, prompt=context - 1, answer=2, concurrency=1,
                      tp=given["gpus"], quant=dtype)  # fmt: skip
        tpot = float(point.choice.trial.points[0].speed.tpot_s.value)
        assert float(costs.decode_s) == pytest.approx(tpot, rel=1e-3)


def test_training_days_and_memory_are_those_of_plan_with_the_same_plan():
    b = budget(params="8B", tokens="1T", gpus=64, tp=4, pp=2)
    (mine,) = training_plans(b)
    assert (mine.tp, mine.pp, mine.dp, mine.n_gpu) == (4, 2, 8, 64)
    costs = Costs(catalog.model("llama-3.1-8b"), b)
    found = plan("llama-3.1-8b", gpu="h100-sxm", gpus=64, tokens=10**12, context=8192,
                 batch=f"{mine.global_batch}seqs", tp=4, pp=2, cp=1, virtual=1, zero=1,
                 micro_batch=1, recompute="none")  # fmt: skip
    trial = found.choice or found.alternatives[0]
    assert trial.plan.n_micro_batch == mine.n_micro_batch
    assert float(costs.training_days) == pytest.approx(float(found.bill.days.value_s), rel=1e-6)
    assert float(costs.memory_bytes) == pytest.approx(trial.bytes, rel=1e-6)


@pytest.mark.parametrize(
    ("given", "told"),
    [({"tp": 3, "gpus": 8}, "tp 3 must divide gpus 8; use 2 or 4"),
     ({"pp": 3, "gpus": 8}, "pp 3 must divide gpus 8; use 2 or 4"),
     ({"tp": 8, "pp": 2, "gpus": 8}, "tp 8 must divide the 4 gpus of a stage (8 over pp 2); use 4"),
     ({"ep": 16, "gpus": 8, "active": "1B"}, "ep 16 must divide gpus 8; use 8"),
     ({"tp": 3}, "tp 3 must divide the context 8192 in training; use 2 or 4")],
)  # fmt: skip
def test_a_split_that_cannot_be_is_refused(given, told):
    """Ranks are tp × pp × dp, and the ranks of a stage spread the experts (Megatron-LM)."""
    with pytest.raises(FieldError) as error:
        budget(params="7B", **given)
    assert str(error.value) == told


def test_degrees_without_chips_are_given_enough_whole_nodes():
    assert budget(params="7B", pp=4, ep=16, active="1B").n_gpu == 64
    assert budget(params="7B", tp=3, train_context=6144).n_gpu == 24
    assert budget(params="7B", tp=4).n_gpu == 8


@pytest.mark.parametrize("given", [
    {"tp": 4}, {"tp": 1}, {"tp": 2, "pp": 2}, {"tp": 8, "ep": 8, "active": "1B"},
    {"tp": 3, "gpus": 24, "train_context": 6144}, {"tp": 1, "train_context": 6000},
])  # fmt: skip
def test_the_plan_of_a_choice_keeps_every_degree_given(given):
    b = budget(params="7B", tokens="1T", **{"gpus": 64, **given})
    c = chosen(b)
    found = planned(c.spec, b, float(c.features.tokens))
    degrees = {name: given[name] for name in ("tp", "pp", "ep") if name in given}
    assert {name: getattr(found.choice.plan, name) for name in degrees} == degrees
    (plain,) = training_plans(b)
    assert {name: getattr(plain, name) for name in degrees} == degrees
    assert not problems(c.spec, plain, found.question.cluster, b.train_context)


@pytest.mark.parametrize("kind", [{}, {"active": "700M"}])
def test_every_row_that_is_shown_has_its_own_plan_where_chips_are_given(kind):
    """Each is what ``planned`` finds for its shape alone; without chips only the choice has one."""
    given = {"params": "3B", "tokens": "200B", **kind}
    front = design(**given, gpus=16, baselines=("llama-3.2-3b",))
    plans = row_plans(front, 6)
    shown = [*(front.candidates[i] for i in front.spread(6)), *front.baselines]
    assert {c.name for c in shown} == set(plans)
    for c in shown:
        own = planned(c.spec, front.budget, float(c.features.tokens))
        assert plans[c.name].choice.plan == own.choice.plan
        assert plans[c.name].bill == own.bill
    bare = design(**given, baselines=())
    assert set(row_plans(bare, 6)) == {bare.chosen.name}
    rows = front_json(front, plans=plans)
    with_plan = {row["name"] for row in (*rows["front"], *rows["baselines"])
                 if "plan" in row["train"]}  # fmt: skip
    assert with_plan == set(plans)


def test_the_table_of_a_front_says_the_plan_of_every_row_or_that_only_one_has_it():
    front = design(params="3B", tokens="200B", gpus=16, baselines=("llama-3.2-3b", "gpt2"))
    told = printed(front)
    split = re.compile(r"\d: (TP|DP|PP)\d+ .*ZeRO\d")
    rows = [line for line in told.splitlines() if " × " in line and "KiB" in line]
    assert len(rows) == len(front.spread(6)) + 2
    assert [bool(split.search(line)) for line in rows] == [True] * (len(rows) - 1) + [False]
    assert "planned: days by the fastest split that fits" in told
    told = printed(design(params="3B", tokens="200B", baselines=()))
    assert "only ▶ is planned, --gpus plans every row" in told
    assert not split.search(told)


def test_a_price_is_paid_for_in_the_line_of_the_plan():
    """Days × 24 × chips × the price of a chip-hour; no money without a price."""
    given = {"params": "1B", "tokens": "200B", "gpus": 16, "baselines": ()}
    front = design(**given, price=2.5)
    days = row_plans(front, 3)[front.chosen.name].bill.ideal_s.value_s / 86_400
    cost = count_text(float(days * 24 * 16 * 2.5))
    assert f" days, cost {cost} at 2.5 a GPU-hour" in printed(front)
    assert "GPU-hour" not in printed(design(**given))


def printed(front):
    sink = io.StringIO()
    print_front(console(file=sink), front, 6)
    return sink.getvalue()


def test_of_days_and_gpu_hours_the_fewer_size_a_model_and_are_what_every_shape_is_given():
    hours = 5 * 24 * 64  # five days of 64 chips
    asked = {"gpus": 64, "vocab_size": 128_256}
    both = budget(days=30, gpu_hours=hours, **asked)
    assert both.params == budget(days=5, **asked).params
    assert both.params == budget(days=5, gpu_hours=10 * hours, **asked).params
    front = design(
        params="1B", gpus=64, days=2, gpu_hours=64 * 24, equal="wall-clock", baselines=()
    )
    assert front.budget.alike == 86_400


def test_advice_and_warnings_are_of_the_tokens_a_shape_gets():
    """At equal wall-clock each shape has its own; the Step law's batch grows with them."""
    front = design(params="1B", gpus=64, days=2, equal="wall-clock", baselines=())
    for row, c in zip(front_json(front, reasons=False)["front"], front.candidates, strict=True):
        tokens = float(c.features.tokens)
        assert row["train"]["workload"]["tokens"] == row["train"]["tokens"] == tokens
        assert tokens > 2 * front.budget.tokens
        assert row["hyperparameters"] == hyperparameters(float(c.features.body), tokens)
        (told,) = (f["message"] for f in row["findings"] if f["message"].startswith("tokens "))
        assert told.startswith(f"tokens {count_text(tokens)} lies")


def test_a_limit_on_memory_takes_the_fastest_plan_within_it():
    """More memory is never slower, and what is needed keeps the limit wherever a plan can."""
    spec = catalog.model("llama-3.1-8b")
    days = []
    for memory in ("24GiB", "40GiB", "60GiB", "80GiB", "2000GiB"):
        b = budget(params="8B", tokens="1T", gpus=64, memory=memory)
        costs = Costs(spec, b)
        days.append(float(costs.training_days))
        least = min(float(costs._held(p)) for p in training_plans(b))
        assert (costs.memory_bytes <= b.memory) == (least <= b.memory)
    assert days == sorted(days, reverse=True)
    assert days[0] > days[-1]
    assert days[-1] == pytest.approx(
        float(Costs(spec, budget(params="8B", tokens="1T", gpus=64)).training_days)
    )


def test_money_is_price_times_chips_times_time():
    """2 a chip-hour, 4 chips, a step of t seconds for 8 sequences: 2 · 4 t / 8 · 10^6 / 3600."""
    b = budget(params="8B", serve_gpus=4, serve_batch=8, price=2)
    costs = Costs(catalog.model("llama-3.1-8b"), b)
    t = float(costs.decode_s)
    assert costs.cost_per_million == pytest.approx(2 * 4 * t / 8 * 1e6 / 3600)
    assert costs.tokens_per_s == pytest.approx(8 / t)


def test_the_cache_of_windowed_layers_stops_at_their_window():
    """Gemma 3 27B: 52 layers keep 1024 tokens, 10 all; 16 KV heads of 128, keys and values."""
    b = budget(params="27B", serve_context="32k", serve_batch=3)
    costs = Costs(catalog.model("gemma-3-27b"), b)
    token = 2 * 16 * 128 * 2
    assert costs.kv_bytes == 3 * token * (52 * 1024 + 10 * 32_768)


def test_waste_of_tiles_is_what_padding_each_product_to_them_adds():
    """GPT-2 small: only the head's 50,257 columns are no multiple of 128, padded to 50,304."""
    costs = Costs(catalog.model("gpt2"), budget(params="125M"))
    body, head = 12 * 12 * 768**2, 768 * 50_257
    padded = body + 768 * 50_304
    assert costs.tile_waste == pytest.approx(padded / (body + head) - 1)


def test_unique_tokens_reach_the_laws():
    spec = catalog.model("llama-3.1-8b")
    f = Costs(spec, budget(params="8B", tokens="1T", unique_tokens="100B")).features
    assert (f.tokens, f.unique_tokens) == (1e12, 1e11)
    assert Costs(spec, budget(params="8B", tokens="1T")).features.unique_tokens is None
    assert Costs(spec, budget(params="8B", tokens="1T", unique_tokens="5T")).features \
        .unique_tokens == 1e12  # fmt: skip


# ---------------------------------------------------------------- limits

MIDDLE = ("training_days", "gpu_hours", "memory_bytes", "kv_bytes_per_token", "kv_bytes",
          "decode_s", "ttft_s", "cost_per_million")  # fmt: skip
FIELDS = dict(zip(MIDDLE, ("days", "gpu_hours", "memory", "kv_bytes_per_token", "kv_bytes",
                           "tpot_s", "ttft_s", "cost_per_million"), strict=True))  # fmt: skip


def middles(b, of, share):
    """A value that so large a share of the feasible shapes keeps."""
    values = np.concatenate([
        np.broadcast_to(np.asarray(getattr(Costs(c, b), of), dtype=float), len(c.n_layer))
        for c in feasible(b)
    ])  # fmt: skip
    return float(np.quantile(values, share))


@pytest.mark.parametrize("of", MIDDLE)
def test_a_limit_is_kept_by_every_candidate_and_removes_what_breaks_it(of):
    free = budget(**NARROW, price=1.0, memory=2**40)
    most = middles(free, of, 0.5)
    most = int(most) if of in {"memory_bytes", "kv_bytes_per_token", "kv_bytes"} else most
    given = {"price": 1.0} | ({"memory": 2**40} if of != "memory_bytes" else {})
    front = design(**NARROW, **given, **{FIELDS[of]: most})
    b = front.budget
    assert front.feasible
    assert all(float(getattr(c.costs, of)) <= most * (1 + 1e-12) for c in front.candidates)
    (limit,) = (one for one in limits(b) if one.of == of)
    broken = kept = 0
    for column in feasible(b):
        value = np.broadcast_to(
            np.asarray(getattr(Costs(column, b), of), dtype=float), len(column.n_layer)
        )
        broken += int((value > most).sum())
        kept += int((value <= most).sum())
    assert front.swept.feasible == kept
    if of != "kv_bytes_per_token":  # which is counted of every shape
        assert front.swept.removed[limit.name] == broken


def test_a_shape_that_does_not_fit_the_chips_that_serve_it_is_no_answer():
    """70 B in 16 bits are 130 GiB: two H100 have 2 × 80, of which an engine fills nine tenths."""
    given = {"params": "70B", "serve_context": "8k", "tokens": "1T", "gpus": 64, "baselines": ()}
    assert not design(**given, serve_gpus=2, tp=2, serve_batch=64).feasible
    front = design(**given, serve_gpus=4, tp=4)
    assert front.feasible
    room = 0.9 * chip("h100-sxm").usable_bytes
    assert all(c.costs.serving_bytes <= room for c in front.candidates)


# ---------------------------------------------------------------- nothing feasible


def test_one_limit_that_alone_would_do_says_by_how_much():
    free = design(**NARROW)
    days = min(c.days for c in free.candidates)
    front = design(**NARROW, days=days / 2, tpot_s=1.0)
    (row,) = infeasible(front)["binding"]
    assert (row["limit"], row["option"], row["alone"]) == ("training days", "--days", True)
    assert row["needed"] == pytest.approx(days)
    assert not infeasible(front)["together"]
    assert design(**NARROW, days=row["needed"], tpot_s=1.0).feasible
    assert not design(**NARROW, days=row["needed"] * 0.999, tpot_s=1.0).feasible


def test_of_two_limits_each_alone_keeps_the_other():
    """The least days among shapes that keep the time per token, and the other way round."""
    larger = {"params": "125M", "vocab_size": 50_304, "bounded": {"d_model": Range(512, 1024)}}
    b = budget(**larger)
    rows = np.concatenate([
        np.stack([Costs(c, b).training_days, Costs(c, b).decode_s], axis=1) for c in feasible(b)
    ])  # fmt: skip
    front = rows[non_dominated(rows)]
    assert len(front) > 3
    at = front[np.argsort(front[:, 0])][len(front) // 2]
    days, tpot = (float(v) * 0.9999 for v in at)
    given = {"days": days, "tpot_s": tpot}
    found = {row["limit"]: row for row in infeasible(design(**larger, **given))["binding"]}
    keeps = {"training days": rows[rows[:, 1] <= tpot][:, 0],
             "time per token": rows[rows[:, 0] <= days][:, 1]}  # fmt: skip
    for name, values in keeps.items():
        assert found[name]["alone"]
        assert found[name]["needed"] == pytest.approx(values.min(), rel=1e-9)


def test_where_no_single_limit_suffices_the_smallest_joint_change_is_given():
    b = budget(**NARROW)
    rows = np.concatenate([
        np.stack([Costs(c, b).training_days, Costs(c, b).decode_s], axis=1) for c in feasible(b)
    ])  # fmt: skip
    given = {"days": float(rows[:, 0].min()) / 2, "tpot_s": float(rows[:, 1].min()) / 2}
    found = infeasible(design(**NARROW, **given))
    assert not any(row["alone"] for row in found["binding"])
    needed = {row["limit"]: row["needed"] for row in found["together"]}
    worst = (rows / [given["days"], given["tpot_s"]]).max(axis=1)
    best = rows[worst.argmin()]
    assert [needed["training days"], needed["time per token"]] == pytest.approx(best.tolist())
    assert design(**NARROW, days=needed["training days"], tpot_s=needed["time per token"]).feasible
    for only in ({**given, "days": needed["training days"]},
                 {**given, "tpot_s": needed["time per token"]}):  # fmt: skip
        assert not design(**NARROW, **only).feasible


def test_the_closest_shapes_are_built_and_miss_least():
    front = design(**NARROW, days=1e-9, tpot_s=1e-9)
    found = json.loads(json.dumps(front_json(front)))
    assert len(found["closest"]) == len(front.closest) == 3
    missed = [max(c.days, float(c.decode.value_s)) / 1e-9 for c in front.closest]
    assert missed == sorted(missed)
    for row, c in zip(found["closest"], front.closest, strict=True):
        assert abs(row["total"] / 20e6 - 1) <= 0.005
        assert set(row["needs"]) == {"training days", "time per token"}
        assert row["needs"]["training days"] == pytest.approx(c.days)
        assert row["hf_config"]["hidden_size"] == row["d_model"]


def test_a_size_out_of_reach_names_the_nearest_size_that_keeps_everything_else():
    fixed = {"d_model": 1024, "n_layer": 3, "d_ff": 3072}
    front = design(**SMALL, fixed=fixed, tied=True)
    (row,) = infeasible(front)["binding"]
    assert row["alone"]
    assert design(params=row["needed"], vocab_size=8192, fixed=fixed, tied=True).feasible


def test_another_size_that_keeps_every_limit_is_named_and_does():
    given = {"params": "125M", "vocab_size": 50_304, "tokens": "2.5B"}
    days = min(c.days for c in design(**given).candidates)
    size = infeasible(design(**given, days=days / 2))["size"]
    assert size < 125e6
    assert design(**{**given, "params": size}, days=days / 2).feasible
    assert infeasible(design(**given, days=1e-9))["size"] is None


# ---------------------------------------------------------------- equal what


def test_at_equal_wall_clock_each_shape_sees_the_tokens_its_speed_allows():
    given = {"params": "125M", "vocab_size": 50_304, "baselines": ()}
    front = design(**given, equal="wall-clock")
    b = front.budget
    plain = design(**given)
    assert b.alike == pytest.approx(float(plain.chosen.train.value_s))
    losses = []
    for c in front.candidates:
        assert float(c.train.value_s) == b.alike
        alone = Costs(c.spec, plain.budget)
        tokens = b.alike / float(alone.training.value_s) * b.tokens
        assert float(c.features.tokens) == pytest.approx(tokens, rel=1e-9)
        again = Costs(c.spec, budget(params="125M", vocab_size=50_304, tokens=round(tokens)))
        assert float(c.costs.loss) == pytest.approx(float(again.loss), rel=1e-6)
        losses.append(float(c.costs.loss))
    assert losses == sorted(losses)
    assert len({round(float(c.features.tokens)) for c in front.candidates}) > 3


def test_days_are_the_wall_clock_that_is_equal():
    front = design(**NARROW, equal="wall-clock", days=0.01)
    assert front.feasible
    assert front.budget.alike == 864
    assert {c.days for c in front.candidates} == {0.01}


def test_at_equal_flops_tokens_times_flops_a_token_is_the_same():
    front = design(**NARROW, equal="flops", tokens=10**9)
    work = {
        float(c.features.tokens) * float(one.train) / one.tokens
        for c in front.candidates
        for one in [flops(c.spec, 1, front.budget.train_context)]
    }
    assert max(work) == pytest.approx(min(work), rel=1e-9)
    plain = design(**NARROW, tokens=10**9).chosen
    one = flops(plain.spec, 1, 8192)
    assert max(work) == pytest.approx(one.train / one.tokens * 1e9)


def test_what_is_equal_is_checked():
    with pytest.raises(UnknownNameError):
        budget(**SMALL, equal="time")


# ---------------------------------------------------------------- the front and the choice


@pytest.mark.parametrize(
    "given",
    [SMALL, {"params": "125M", "vocab_size": 50_304}, {"params": "1B"},
     {"params": "7B", "gpus": 64}, {"params": "400B", "gpus": 2048},
     {**SMALL, "serve_batch": 64, "weights": {"loss": 1.0, "ttft_s": 1.0}}],
)  # fmt: skip
def test_a_thinned_front_keeps_99_percent_of_the_hypervolume(given):
    front = design(**given, baselines=())
    values, named = front.swept.objectives, names(front.budget)
    low, high = values.min(axis=0), values.max(axis=0)
    scaled = (values - low) / np.where(high > low, high - low, 1)
    kept = np.array([[float(getattr(c.costs, name)) for name in named] for c in front.candidates])
    kept = (kept - low) / np.where(high > low, high - low, 1)
    reference = np.full(len(named), 1.1)
    share = hypervolume(kept, ref=reference) / hypervolume(scaled, ref=reference)
    assert share >= 0.99
    assert len(kept) < len(values)


def test_shapes_inside_the_noise_are_one_group_each_and_the_choice_leads_the_first():
    front = design(**SMALL)
    groups = front.groups
    assert sorted(itertools.chain(*groups)) == list(range(len(front.candidates)))
    losses = [c.loss_upper for c in front.candidates]
    for group in groups:
        own = [losses[i] for i in group]
        assert max(own) - min(own) <= front.equal_within
    for one, later in itertools.pairwise(groups):
        assert max(losses[i] for i in one) <= min(losses[i] for i in later)
    assert groups[0][0] == front.choice
    assert json.loads(json.dumps(front_json(front, reasons=False)))["equal"] == [
        list(group) for group in groups
    ]


def test_groups_start_at_the_first_row_beyond_the_noise_of_the_first():
    values = np.array([[1.0, 5.0], [1.04, 1.0], [1.05, 9.0], [1.06, 2.0], [1.2, 0.0]])
    assert [sorted(g) for g in equal_groups(values, 0.05, (1, 1))] == [[0, 1, 2], [3], [4]]


def test_an_order_takes_the_least_of_each_objective_among_equals_of_those_before():
    front = design(**SMALL, lexicographic=("loss", "kv_bytes_per_token", "decode_s"))
    values = front.swept.objectives
    sides = epsilons(values)
    pool = values[values[:, 0] <= values[:, 0].min() + front.equal_within]
    pool = pool[pool[:, 2] <= pool[:, 2].min() + sides[2]]
    c = front.chosen
    assert float(c.decode.value_s) == pytest.approx(pool[:, 3].min())
    cheapest = design(**SMALL, lexicographic=("decode_s",)).chosen
    assert float(cheapest.decode.value_s) == pytest.approx(values[:, 3].min())


def test_a_user_may_weigh_what_is_not_on_every_front():
    front = design(**SMALL, weights={"ttft_s": 1.0})
    assert names(front.budget) == ("loss", "training_days", "kv_bytes_per_token", "decode_s",
                                   "ttft_s")  # fmt: skip
    assert front.swept.objectives.shape[1] == 5
    fastest = min(float(c.costs.ttft_s) for c in front.candidates)
    assert float(front.chosen.costs.ttft_s) == fastest


def test_money_without_a_price_is_an_error():
    for given in ({"cost_per_million": 1.0}, {"weights": {"cost_per_million": 1.0}}):
        with pytest.raises(FieldError, match="--price"):
            budget(**SMALL, **given)


# ---------------------------------------------------------------- better than a model


def test_beating_a_model_is_reaching_its_loss_at_less_cost():
    """The upper end of the prior of a shape is held against what is expected of the model."""
    front = design(params="6.74B", vocab_size=32_000, beat="llama-2-7b", tokens="2T", gpus=64)
    b = front.budget
    rival = Costs(catalog.model("llama-2-7b"), b)
    assert front.feasible
    for c in front.candidates:
        assert c.loss_upper <= float(rival.expected_loss)
        assert c.days < float(rival.training_days)
        assert float(c.decode.value_s) < float(rival.decode_s)
    free = design(params="6.74B", vocab_size=32_000, tokens="2T", gpus=64)
    assert front.swept.feasible < free.swept.feasible


def test_a_larger_model_is_not_beaten_and_the_answer_says_in_what():
    front = design(params="1B", vocab_size=32_000, beat="llama-2-7b", tokens="2T", gpus=64)
    assert not front.feasible
    (row,) = infeasible(front)["binding"]
    assert (row["limit"], row["unit"], row["option"]) == ("loss of llama-2-7b", "nats", "--beat")
    assert row["needed"] > row["allowed"] > law("aspect").facts.constants.get("E", 1.0)


def test_the_law_cannot_compare_vocabularies():
    with pytest.raises(FieldError, match="--vocab"):
        budget(params="7B", vocab_size=128_256, beat="llama-2-7b")


def test_without_a_size_or_vocabulary_the_model_to_beat_gives_them():
    b = budget(beat="llama-2-7b")
    assert (b.params, b.vocab_size) == (6_738_415_616, 32_000)
    assert math.isclose(b.tokens, 20 * b.params)
