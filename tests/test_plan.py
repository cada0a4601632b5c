"""Plans of training: every split is looked at, nothing is said to fit that may not, and the
published runs lie inside the intervals."""

import itertools
import json
import random

import pytest
from click.testing import CliRunner

import scantling
from scantling import catalog, cli
from scantling.costs.count import parameters
from scantling.costs.estimate import Estimate
from scantling.costs.memory import training_memory
from scantling.costs.money import bill
from scantling.costs.parallel import problems
from scantling.costs.train import training_step
from scantling.errors import FieldError, ScantlingError
from scantling.hardware import chip
from scantling.laws.hyperparameters import advice
from scantling.search.plan_bounds import Bounds
from scantling.search.plan_inverse import chip_counts, limits_of, scaled, solve
from scantling.search.plan_question import RECOMPUTE, Phase, question
from scantling.search.plan_space import Tally, plan_of, recomputes, splits, zeros
from scantling.search.plans import answer, plan, verdict
from scantling.spec import divisors
from scantling.spec.plan import Plan


def run(*args):
    """The command line in this process: status, output, error line."""
    found = CliRunner().invoke(cli.group, ["plan", *map(str, args)], standalone_mode=False)
    if found.exception is not None:
        assert isinstance(found.exception, ScantlingError), repr(found.exception)
        return 2, found.stdout, str(found.exception)
    return found.return_value or 0, found.stdout, found.stderr


# ---------------------------------------------------------------- the search


def every_plan(q):
    """All plans of a question, by plain loops over what a plan consists of."""
    n = q.cluster.n_gpu
    experts = "n_expert" in scantling.spec.dimensions(q.spec)
    n_expert = int(q.spec.read("n_expert")) if experts else 1
    for tp, cp, pp in itertools.product(divisors(n), repeat=3):
        if n % (tp * cp * pp):
            continue
        dp = n // (tp * cp * pp)
        for ep, expert_tp in itertools.product(divisors(n_expert), {None, 1 if experts else None}):
            if expert_tp == 1 and tp == 1:
                continue
            for virtual, zero in itertools.product(range(1, int(q.spec.n_layer) + 1), range(4)):
                if (virtual > 1 and pp == 1) or (zero and dp * cp == 1) or q.batch % dp:
                    continue
                for micro_batch in divisors(q.batch // dp):
                    for recompute in RECOMPUTE:
                        yield Plan(
                            tp=tp, cp=cp, pp=pp, dp=dp, ep=ep, expert_tp=expert_tp, zero=zero,
                            virtual=virtual, sequence_parallel=tp > 1, micro_batch=micro_batch,
                            n_micro_batch=q.batch // dp // micro_batch, recompute=recompute,
                        )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "gpu", "asked"),
    [
        ("llama-3.2-1b", "h100-sxm", {"gpus": 4, "batch": 8, "context": 4096}),
        ("llama-3.1-8b", "a100-sxm-80gb", {"gpus": 8, "batch": 8, "context": 4096}),
        ("olmoe-1b-7b", "h100-sxm", {"gpus": 4, "batch": 4, "context": 4096}),
    ],
)
def test_the_choice_is_the_fastest_of_all_plans_that_fit(model, gpu, asked):
    q = question(model, gpu=gpu, tokens="1B", **asked)
    best = None
    for p in every_plan(q):
        if problems(q.spec, p, q.cluster, q.context):
            continue
        if verdict(training_memory(q.spec, p, q.recipe, q.context), q) != "fits":
            continue
        step = training_step(q.spec, p, q.recipe, q.context, q.cluster)
        if best is None or step.step.value_s < best:
            best = step.step.value_s

    found = answer(q)

    assert found.fits
    assert found.choice.step_s == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("llama-3.1-8b", {"gpus": 64}),
        ("llama-3.1-8b", {"gpu": "l40s", "gpus": 8}),  # fits none for certain
        ("qwen3-30b-a3b", {"gpus": 16}),
        ("qwen3-30b-a3b", {"gpus": 16, "tp": 2, "ep": 8}),
        ("llama-3.1-405b", {"gpus": 8}),  # fits nowhere
    ],
)
@pytest.mark.parametrize("like", [None, Plan(dp=8), Plan(tp=2, dp=8, ep=8, expert_tp=1, zero=1)])
def test_the_choice_alone_is_that_of_a_whole_search(model, asked, like):
    q = question(model, tokens="1T", context=8192, batch=64, cp=1, virtual=1, **asked)
    whole, alone = answer(q), answer(q, alone=True, like=like)
    chosen = [None if one.choice is None else one.choice.plan for one in (whole, alone)]
    assert chosen[0] == chosen[1]
    assert (alone.verdict, alone.counts.considered) == (whole.verdict, whole.counts.considered)
    assert alone.counts.timed <= whole.counts.timed


def test_a_plan_to_reckon_with_never_rules_itself_out():
    q = question("qwen3-30b-a3b", tokens="1T", context=8192, batch=64, gpus=16, cp=1, virtual=1)
    best = answer(q).choice.plan
    assert answer(q, alone=True, like=best).choice.plan == best


@pytest.fixture(scope="module")
def eight():
    return plan("llama-3.1-8b", gpus=16, batch=64, context="8k", tokens="100B")


def test_counts_add_up(eight):
    c = eight.counts

    assert c.considered == c.invalid + c.too_large + c.slower + c.timed
    assert c.invalid == sum(r.count for r in eight.rejected)


def test_no_plan_of_the_front_beats_another_in_time_and_memory(eight):
    for a, b in itertools.permutations(eight.front, 2):
        assert not (a.step_s <= b.step_s and a.bytes <= b.bytes)
    assert eight.choice in eight.front


def test_alternatives_are_other_splits_and_none_is_faster(eight):
    seen = {(t.plan.tp, t.plan.pp, t.plan.cp, t.plan.ep) for t in eight.alternatives}

    assert len(seen) == len(eight.alternatives) >= 5
    assert all(t.step_s >= eight.choice.step_s for t in eight.alternatives)


def test_what_is_said_to_fit_fits_at_the_upper_end_of_its_interval(eight):
    for t in (*eight.front, *eight.alternatives):
        assert t.memory.needed_high <= chip("h100-sxm").usable_bytes


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("llama-3.1-70b", {"gpus": 64, "batch": 128, "context": 8192}),
        ("deepseek-v3", {"gpu": "h800", "gpus": 256, "batch": 256, "dtype": "fp8-block"}),
        ("mixtral-8x7b", {"gpus": 16, "batch": 32, "finetune": "lora", "context": 4096}),
        ("gemma-2-9b", {"gpu": "a100", "gpus": 16, "batch": 32, "optimizer": "adamw8bit"}),
    ],
)
def test_the_bounds_of_time_and_memory_are_bounds(model, asked):
    q = question(model, tokens="1B", **asked)
    bounds = Bounds(q)
    found = list(splits(q, Tally()))
    for split, batches in random.Random(0).sample(found, min(40, len(found))):
        for zero in zeros(q, split.dp * split.cp):
            batch = batches[len(batches) // 2]
            count = q.batch // split.dp // batch
            least = bounds.least_bytes(split, zero, batch, count)
            floor = bounds.least_seconds(split, zero, batch, count)
            for mode in recomputes(q):
                p = plan_of(q, split, zero, mode, batch)
                if problems(q.spec, p, q.cluster, q.context):
                    continue
                memory = training_memory(q.spec, p, q.recipe, q.context)
                step = training_step(q.spec, p, q.recipe, q.context, q.cluster)
                assert least[mode] <= memory.total * (1 + 1e-9), p
                assert bounds.surely(least[mode]) <= memory.needed_high * (1 + 1e-9), p
                assert floor[mode] <= step.step.value_s * (1 + 1e-9), p


def test_a_fixed_axis_stays():
    found = plan("llama-3.1-8b", gpus=8, batch=16, context="4k", tokens="1B", tp=4, zero=1,
                 recompute="full", micro_batch=2)  # fmt: skip

    for t in (found.choice, *found.front, *found.alternatives):
        p = t.plan
        assert (p.tp, p.zero, p.recompute, p.micro_batch) == (4, 1, "full", 2)


def test_heads_that_do_not_split_are_the_reason():
    found = plan("llama-3.2-3b", gpus=6, gpus_per_node=6, tp=6, batch=6, context="4k", tokens="1B")

    assert found.choice is None
    assert any("8 KV heads cannot be split over TP 6" in r.reason for r in found.rejected)


# ---------------------------------------------------------------- published runs


def test_llama_405b_on_16384_h100_lies_inside_the_interval():
    """38 to 43 % MFU, Llama 3 Herd of Models, table 4."""
    found = plan("llama-3.1-405b", gpu="h100-sxm", gpus=16384, batch="16M", context="8k",
                 tokens="15.6T")  # fmt: skip

    mfu = found.choice.step.mfu
    assert found.fits
    assert mfu.low_s <= 0.38
    assert mfu.high_s >= 0.43


def test_deepseek_v3_on_2048_h800_lies_inside_the_interval():
    """2.664 M GPU-hours for 14.8 T tokens, DeepSeek-V3 Technical Report, table 1."""
    found = plan("deepseek-v3", gpu="h800", gpus=2048, batch=15360, context="4k",
                 tokens="14.8T", dtype="fp8-block")  # fmt: skip

    hours = found.bill.gpu_hours
    assert found.fits
    assert hours.low_s <= 2.664e6 <= hours.high_s


# ---------------------------------------------------------------- money and phases


def test_a_bill_is_seconds_times_chips_and_price():
    b = bill(Estimate(3600.0, 1800.0, 7200.0), 16, chip("h100-sxm"), goodput=0.8, price=3.0)

    assert b.gpu_hours.value_s == 16
    assert b.calendar_s.value_s == 4500
    assert b.cost.value_s == pytest.approx(16 / 0.8 * 3)
    assert b.energy_kwh.high_s == pytest.approx(2 * 16 * 0.7)  # 2 h at 700 W


def test_phases_are_planned_one_by_one_and_added():
    asked = {"gpus": 64, "batch": "4M"}
    both = plan("llama-3.1-8b", phases="1T@8k,100B@64k", **asked)
    first = plan("llama-3.1-8b", tokens="1T", context="8k", **asked)
    second = plan("llama-3.1-8b", tokens="100B", context="64k", **asked)

    assert both.question.phases == (Phase(10**12, 8192), Phase(10**11, 65536))
    whole = first.bill.ideal_s.value_s + second.bill.ideal_s.value_s
    assert both.bill.ideal_s.value_s == pytest.approx(whole)


def test_a_phase_that_does_not_fit_is_a_no():
    status, out, _ = run("llama-3.1-70b", "--gpus", 8, "--phases", "1B@2k,1B@1M", "--batch",
                         "8seqs", "--dtype", "bf16", "--optimizer", "sgd", "--json")  # fmt: skip
    told = json.loads(out)

    assert status == 1
    assert told["verdict"] == "does not fit"
    assert [p["verdict"] for p in told["phases"]][1] == "does not fit"


# ---------------------------------------------------------------- the question


@pytest.mark.parametrize(
    ("given", "context", "sequences"),
    [("16M", "8k", 2048), ("2048", "8k", 2048), ("64seqs", "4k", 64), ("4Mtokens", "4k", 1024),
     (15360, "4k", 15360)],
)  # fmt: skip
def test_a_batch_is_sequences_or_tokens(given, context, sequences):
    q = question("llama-3.1-8b", gpus=8, batch=given, context=context, tokens="1B")

    assert q.batch == sequences


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("llama-3.1-8b", "--gpus", "12"), "gpus 12 must be a multiple of the 8 of a node"),
        (("llama-3.1-8b", "--gpus", "0.5"), "must be a whole number"),
        (("llama-3.1-8b", "--gpu", "h1000"), "h1000 is not known"),
        (("llama-3.1-8b", "--gpu", "a100", "--dtype", "fp8"), "has no rate on a100-sxm-80gb"),
        (("llama-3.1-8b", "--dtype", "mxfp8"), "needs tensor cores with a scale a block"),
        (("gpt2", "--context", "2k"), "is more than the 1,024 positions"),
        (("llama-3.1-8b", "--net", "fast"), "is not a network speed"),
        (("llama-3.1-8b", "--tp", "3"), "tp 3 must divide gpus 8"),
        (("llama-3.1-8b", "--ep", "2"), "ep 2 needs a model with experts"),
        (("llama-3.1-8b", "--zero", "4"), "zero 4 must be 0, 1, 2 or 3"),
        (("llama-3.1-8b", "--recompute", "some"), "recompute some is not known"),
        (("llama-3.1-8b", "--goodput", "1.5"), "must be above 0 and at most 1"),
        (("llama-3.1-8b", "--phases", "1T"), "is no phase"),
        (("llama-3.1-8b", "--finetune", "some"), "finetune some is not known"),
        (("llama-3.1-8b", "--targets", "q_proj"), "needs --finetune lora or qlora"),
        (("llama-3.1-8b", "--solve", "time"), "solve time is no question"),
        (("llama-3.1-8b", "--vary", "gpus"), "is no range"),
        ((), "name one, or give --days and --tokens"),
    ],
)
def test_bad_input_is_one_line_and_exit_status_2(args, says):
    status, _, error = run(*args)

    assert status == 2
    assert says in error
    assert "\n" not in error


# ---------------------------------------------------------------- the command line


def test_the_json_of_a_plan_keeps_its_contract():
    status, out, _ = run("llama-3.1-8b", "--gpus", 8, "--tokens", "1B", "--price", 2, "--json",
                         "--goodput", 0.9)  # fmt: skip
    told = json.loads(out)

    assert status == 0
    assert told["schema"] == 1
    assert {"tp", "pp", "dp", "cp", "ep", "zero", "micro_batch", "global_batch", "recompute",
            "precision"} <= set(told["plan"])  # fmt: skip
    held = told["per_gpu_memory"]
    assert {"weights", "gradients", "optimizer", "activations"} <= set(held)
    parts = ("weights", "gradients", "optimizer", "activations", "logits", "buffers")
    assert sum(held[p] for p in parts) == pytest.approx(held["total_bytes"]["value"], rel=1e-6)
    for name in ("step_seconds", "mfu", "tokens_per_second_per_gpu", "days"):
        assert {"value", "low", "high", "unit", "kind", "why"} <= set(told[name])
        assert told[name]["low"] <= told[name]["value"] <= told[name]["high"]
    assert sum(told["breakdown"][k] for k in ("compute", "exposed_communication", "bubble",
                                              "optimizer")) == pytest.approx(
        told["step_seconds"]["value"])  # fmt: skip
    assert told["gpu_hours"] == pytest.approx(told["days"]["value"] * 24 * 8)
    assert told["cost"]["value"] == pytest.approx(told["gpu_hours"] / 0.9 * 2)
    assert all({"plan", "reason"} <= set(r) for r in told["rejected"])
    assert told["alternatives"]


def test_tokens_per_second_and_days_agree():
    _, out, _ = run("llama-3.1-8b", "--gpus", 8, "--tokens", "1B", "--json")
    told = json.loads(out)

    speed = told["tokens_per_second_per_gpu"]["value"] * 8
    assert told["days"]["value"] * 86400 == pytest.approx(1e9 / speed)


def test_nothing_fits_is_exit_status_1_with_what_would_have_to_change():
    status, out, _ = run("llama-3.1-70b", "--gpu", "rtx-4090")

    assert status == 1
    assert "Does not fit" in out
    assert "What would have to change" in out
    assert "fits," not in out


def test_a_deadline_is_met_only_at_the_upper_end():
    args = ("llama-3.1-8b", "--gpus", 8, "--tokens", "1B", "--json")
    high = json.loads(run(*args)[1])["days"]["high"]

    assert run(*args, "--days", high * 1.01)[0] == 0
    assert run(*args, "--days", high * 0.99)[0] == 1


def test_a_context_beyond_the_trained_length_is_a_note():
    status, out, _ = run("llama-2-7b", "--gpus", 8, "--tokens", "1B", "--context", "16k")

    assert status == 0
    assert "is beyond the" in out


def test_a_range_gives_a_row_a_value():
    status, out, _ = run("llama-3.2-1b", "--vary", "gpus=2:6:2", "--tokens", "1B", "--context",
                         "4k", "--batch", 12, "--json")  # fmt: skip
    told = json.loads(out)

    assert status == 0
    assert [row["value"] for row in told["rows"]] == [2, 4, 6]


def test_a_picture_is_written(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "plan.svg"
    status, _, _ = run("llama-3.2-1b", "--gpus", 4, "--tokens", "1B", "--plot", path)

    assert status == 0
    assert path.stat().st_size > 1000


# ---------------------------------------------------------------- the other way round


def test_the_limits_of_a_plan_hold_and_one_step_more_does_not():
    q = question("llama-3.1-8b", gpu="rtx-4090", finetune="qlora")
    p = Plan(recompute="full", sequence_parallel=False)
    found = limits_of(q, p)

    def fits(plan, context):
        return verdict(training_memory(q.spec, plan, q.recipe, context), q) == "fits"

    assert fits(p, found.context)
    assert not fits(p, found.context + 64)
    assert fits(Plan(recompute="full", micro_batch=found.micro_batch), q.context)
    assert not fits(Plan(recompute="full", micro_batch=found.micro_batch + 1), q.context)


def asker(name, **fixed):
    """What the command line gives to ``solve``."""
    one = catalog.load(name)

    def ask(**changes):
        return question(changes.pop("model", one), **(fixed | changes))

    return one, ask


def test_the_fewest_gpus_are_the_first_that_fit():
    one, ask = asker("llama-3.1-8b", tokens="1B", context="4k", batch=64)
    found = solve("gpus", one, ask, sized=False)

    smaller = [n for n in chip_counts(8) if n < found.value]
    assert found.plans.fits
    assert all(not plan("llama-3.1-8b", gpus=n, tokens="1B", context="4k", batch=64).fits
               for n in smaller)  # fmt: skip


def test_the_largest_model_meets_its_deadline():
    one, ask = asker("llama-3.2-1b", tokens="20B", gpus=8, context="4k", batch=64)
    found = solve("model", one, ask, days=3.0)

    assert found.plans.fits
    assert found.plans.bill.calendar_days.high_s <= 3.0
    assert found.value == parameters(found.plans.question.spec).total


def test_a_scaled_model_keeps_its_head_width():
    small = scaled(catalog.model("qwen3-30b-a3b"), 1024)

    assert small.d_head == catalog.model("qwen3-30b-a3b").d_head
    assert small.d_model == 1024


def test_gpus_cannot_be_asked_for_and_given():
    one, ask = asker("llama-3.1-8b", gpus=8)
    with pytest.raises(FieldError, match="is what is asked"):
        solve("gpus", one, ask, sized=True)


# ---------------------------------------------------------------- fine-tuning and advice


def test_adapters_train_rank_times_the_sides_of_their_matrices():
    _, out, _ = run("llama-3.1-8b", "--finetune", "qlora", "--rank", 16, "--gpu", "rtx-4090",
                    "--json")  # fmt: skip
    told = json.loads(out)

    d, kv, f = 4096, 1024, 14336
    sides = 2 * (d + d) + 2 * (d + kv) + 3 * (d + f)
    assert told["finetune"]["trainable_parameters"] == 16 * 32 * sides
    assert told["per_gpu_memory"]["weights"] < 8.03e9  # four bits and scales, not 16


def test_advice_reaches_over_its_sources():
    a = advice(6.5e9, 2e12, 4e6)  # Llama 2 7B: 3e-4, 4 M tokens, 2 T tokens, 2,000 steps of warmup

    assert a["learning_rate"]["low"] <= 3e-4 <= a["learning_rate"]["high"]
    assert a["batch_tokens"]["low"] <= 4e6 <= a["batch_tokens"]["high"]
    assert a["steps"] == 500_000
    assert a["warmup_steps"]["value"] == 2000
    assert len(a["learning_rate"]["why"]) == 3


def test_the_step_law_is_in_the_advice_to_its_letter():
    rate = 1.78 * 1e9**-0.712 * 1e11**0.307

    assert f"{rate:.3g}: Step law" in advice(1e9, 1e11, 1e6)["learning_rate"]["why"][0]


def test_the_public_function_is_the_verb():
    found = scantling.plan("llama-3.2-1b", gpus=1, tokens="1B", context="2k", batch=8)

    assert found.choice.plan.n_gpu == 1
