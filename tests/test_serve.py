"""Serving: what a chip holds, whether that fits, how fast, at what price, and how it is told."""

import csv
import json
import math
import pathlib
import struct

import numpy as np
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

import scantling
from scantling import catalog, cli
from scantling.costs.money import token_bill
from scantling.costs.serve import Deployment, Times
from scantling.costs.serving_memory import (
    Beside,
    Split,
    cache_readings,
    pooled_context,
    serving_memory,
)
from scantling.costs.serving_scheme import numbers, stored_in
from scantling.costs.serving_speed import Factors, first_token_under_load, speed, touched_share
from scantling.costs.train import Estimate
from scantling.errors import FieldError, ScantlingError
from scantling.formats import hf
from scantling.formats.checkpoint import load_checkpoint
from scantling.hardware import chip
from scantling.ops import tensors
from scantling.search.serving import serve
from scantling.search.serving_question import question
from scantling.search.serving_space import held, judged, layouts
from scantling.spec import Experts, vary
from scantling.spec.plan import Plan
from scantling.validate.serving import SERVING, serving_load
from scantling.validate.table import NotScoredError

GIB = 2**30
LITGPT = (
    pathlib.Path(__file__).parents[2]
    / "shared"
    / "data"
    / "measured"
    / "memory_litgpt_finetune_infer.csv"
)
H100 = chip("h100-sxm")


def memory(name, split=None, quant="bf16", sequences=1, context=8192, **beside):
    return serving_memory(
        catalog.model(name), split or Split(), numbers(quant).rank_bytes, sequences, context,
        beside=Beside(**beside),
    )  # fmt: skip


def command(*words):
    """The verb's result: exit status, what it prints, its one line of error."""
    found = CliRunner().invoke(cli.group, ["serve", *words], standalone_mode=False)
    if isinstance(found.exception, ScantlingError):
        return 2, "", str(found.exception)
    assert found.exception is None, found.exception
    return found.return_value, found.stdout, found.stderr


# ---------------------------------------------------------------- memory


def test_the_weights_of_one_chip_are_two_bytes_a_parameter():
    spec = catalog.model("llama-3.1-8b")

    assert memory("llama-3.1-8b").weights == 2 * scantling.parameters(spec).total


def test_a_full_window_of_llama_takes_sixteen_gib():
    # 2 × 32 layers × 8 KV heads × 128 × 2 bytes × 131,072 tokens
    assert memory("llama-3.1-8b", context=131_072).cache == 16 * GIB


def test_gpt_oss_needs_six_gib_where_full_pages_take_twelve():
    # 24 layers × 2 × 8 × 64 × 2 bytes; half of the layers see 128 tokens: vllm's and hf-mem's sums
    found = cache_readings(catalog.model("gpt-oss-20b"), 32, 8192, "fp16")

    assert (found.ideal / GIB, found.full / GIB) == (6.09375, 12.0)


HANDMADE = {
    # 10 layers see all, 52 the last 1024; 16 KV heads of 128
    "gemma-3-27b": (131_072, (10 * 131_072 + 52 * 1024) * 2 * 16 * 128 * 2),
    # a latent of 512 and 64 rotary dimensions, once for all heads
    "deepseek-v3": (8192, 61 * (512 + 64) * 2 * 8192),
    # 12 of 48 layers attend, 2 KV heads of 256; the others keep 32 × 128 × 128 and 3 inputs of 8192
    "qwen3-next-80b-a3b": (
        8192,
        12 * 2 * 2 * 256 * 2 * 8192 + 36 * (32 * 128 * 128 + 3 * 8192) * 2,
    ),
}


@pytest.mark.parametrize("name", HANDMADE)
def test_a_cache_is_what_a_hand_derives(name):
    context, wanted = HANDMADE[name]

    assert cache_readings(catalog.model(name), 1, context).ideal == wanted


def test_the_cache_of_jamba_is_four_layers_of_keys_and_twenty_eight_states():
    spec = hf.read({"model_type": "jamba"}).spec
    keys, state = 4 * 2 * 8 * 128 * 2, 28 * 8192 * (16 + 3) * 2

    assert cache_readings(spec, 1, 65_536).ideal == keys * 65_536 + state
    assert cache_readings(spec, 1, 65_536).state == state


def test_kv_heads_are_copied_where_ranks_outnumber_them():
    eight, sixteen = (memory("llama-3.1-70b", Split(tp=tp)).cache for tp in (8, 16))

    assert eight == sixteen


def test_a_latent_is_held_by_every_rank():
    alone, eight = (memory("deepseek-v3", Split(tp=tp)).cache for tp in (1, 8))

    assert alone == eight


def test_stages_hold_their_layers_and_no_more():
    whole, half = (memory("llama-3.1-8b", Split(pp=pp), context=65_536) for pp in (1, 2))

    assert half.cache == whole.cache // 2
    assert half.weights < 0.6 * whole.weights


@pytest.mark.parametrize("ep", [1, 8])
def test_experts_are_spread_or_cut_over_all_chips_of_a_group(ep):
    one = memory("qwen3-30b-a3b", Split(tp=4, dp=2, ep=ep)).weights
    counted = scantling.parameters(catalog.model("qwen3-30b-a3b"))
    routed = counted.by_part["experts"]

    assert 2 * routed / 8 < one < 2 * (routed / 8 + (counted.total - routed) / 3)


def test_no_low_end_is_above_its_high_end():
    for name in ("llama-3.1-8b", "gemma-3-27b", "deepseek-v3", "qwen3-next-80b-a3b"):
        for split in (Split(), Split(tp=4), Split(pp=2)):
            m = memory(name, split, sequences=4)

            assert 0 < m.low <= m.total <= m.high


def test_adapters_and_a_draft_model_take_what_they_weigh():
    spec = catalog.model("llama-3.1-8b")
    plain, more = memory("llama-3.1-8b"), memory("llama-3.1-8b", adapters=4, rank=8)
    # q, o: 4096 + 4096; k, v: 4096 + 1024; gate, up, down: 4096 + 14,336; 32 layers
    linear = 32 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14_336))

    assert more.adapters == 4 * 8 * linear * 2
    small = catalog.model("llama-3.2-1b")
    both = memory("llama-3.1-8b", draft=small)
    assert both.draft == 2 * scantling.parameters(small).total + cache_readings(small, 1, 8192).full
    assert both.total == pytest.approx(plain.total + both.draft)
    assert spec.n_layer == 32


def test_chunks_bound_what_a_prompt_activates():
    long, short = memory("llama-3.1-8b", context=131_072), memory("llama-3.1-8b", chunk=1024)

    assert long.activations == memory("llama-3.1-8b", context=8192).activations
    assert short.activations == long.activations / 8


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-3-27b", "deepseek-v3"])
@pytest.mark.parametrize("split", [Split(), Split(tp=4)], ids=["one", "tp4"])
def test_a_column_holds_and_takes_what_its_members_do(name, split):
    """The search of shapes runs the same code over arrays."""
    layers = np.array([12, 24, 36, 60])
    widths = np.array([1024, 2048, 4096, 8192])
    base = catalog.model(name)
    column = vary(base, n_layer=layers, d_model=widths)
    rank = numbers("fp8").rank_bytes
    many = serving_memory(column, split, rank, 3, 8192)
    d = Deployment(tp=split.tp, weights="fp8")
    fast = speed(column, H100, d, 2048, 256, 4)
    for i, (n, w) in enumerate(zip(layers.tolist(), widths.tolist(), strict=True)):
        one = vary(base, n_layer=n, d_model=w)
        m = serving_memory(one, split, rank, 3, 8192)

        for field in ("weights", "cache_ideal", "cache_full", "activations", "logits"):
            assert np.broadcast_to(getattr(many, field), 4)[i] == pytest.approx(getattr(m, field))
        alone = speed(one, H100, d, 2048, 256, 4)
        assert np.broadcast_to(fast.tpot_s.value, 4)[i] == pytest.approx(alone.tpot_s.value)
        assert np.broadcast_to(fast.ttft_s.value, 4)[i] == pytest.approx(alone.ttft_s.value)


def test_lengths_are_pooled_as_a_simulation_of_them_is():
    """Sums of log-normal lengths, drawn: 95 % of them hold no more than the pooled context."""
    mean, p95, n = 2000.0, 6000.0, 64
    z = 1.6448536269514722
    sigma = z - math.sqrt(z * z - 2 * math.log(p95 / mean))
    draws = np.random.default_rng(0).lognormal(math.log(mean) - sigma**2 / 2, sigma, (20_000, n))

    assert np.quantile(draws[:, 0], 0.95) == pytest.approx(p95, rel=0.05)
    assert pooled_context(n, mean, p95) == pytest.approx(
        np.quantile(draws.mean(axis=1), 0.95), rel=0.03
    )


# ---------------------------------------------------------------- verdicts


def test_what_is_above_the_room_at_the_upper_end_never_fits():
    m = memory("gemma-3-27b", context=131_072)
    for usable in np.linspace(40, 200, 81) * GIB:
        found = judged(m, float(usable), 0.9, by_kind=False)

        assert (found.verdict == "fits") == (m.high <= 0.9 * usable)
        assert (found.verdict == "does not fit") <= (m.low > usable)
        assert bool(found.conditions) == (found.verdict == "fits only if")


def test_a_window_fits_only_if_the_engine_uses_it():
    found = serve("gemma-3-27b", gpu="h100-sxm", context="128k")
    known = serve("gemma-3-27b", gpu="h100-sxm", context="128k", hybrid=True)

    assert (found.verdict, known.verdict) == ("fits only if", "fits")
    assert "window" in found.choice.trial.held.conditions[0]
    assert any(r.startswith("--hybrid") for r in found.remedies)


@pytest.mark.parametrize(
    ("name", "gpu", "quant"),
    [("llama-3.1-8b", "l4", "awq-int4"), ("qwen3-30b-a3b", "h100-sxm", "bf16")],
)
def test_the_longest_context_fits_and_the_next_page_does_not(name, gpu, quant):
    found = serve(name, gpu=gpu, quant=quant, batch=2)
    q, r = found.question, found.choice
    t = r.trial

    def verdict(**at):
        return held(q, t.chip, t.layout, t.scheme, **at).verdict

    assert verdict(context=r.max_context) == "fits" != verdict(context=r.max_context + 16)
    assert verdict(batch=r.max_batch) == "fits" != verdict(batch=r.max_batch + 1)


@pytest.mark.parametrize("remedy", range(3))
def test_what_is_said_to_fit_does(remedy):
    asked = {"gpu": "l4", "context": "32k", "batch": 8, "quant": "awq-int4"}
    found = serve("llama-3.1-8b", **asked)
    words = found.remedies[remedy].split()
    changed = asked | {words[0].removeprefix("--"): words[1]}

    assert found.verdict == "does not fit"
    assert serve("llama-3.1-8b", **changed).fits


def test_the_fewest_chips_of_several_numbers_are_taken():
    found = serve("llama-3.1-405b", gpu="h100-sxm", gpus="1,2,4,8", quant="fp8")

    assert found.fits
    assert found.choice.trial.n_gpu == 8  # 406 GB of weights are too much for four of 80


def test_without_a_chip_the_least_memory_comes_first():
    found = serve("llama-3.2-1b", gpus=1)
    sizes = [r.trial.chip.usable_bytes for r in found.rows if r.trial.held.verdict == "fits"]

    assert len(sizes) > 20
    assert sizes == sorted(sizes)


def test_of_several_quantisations_the_first_that_fits_is_told():
    found = serve("llama-3.1-70b", gpu="h100-sxm", quant="bf16,fp8,awq-int4")

    fitting = [r.trial.scheme.name for r in found.rows if r.trial.held.verdict == "fits"]
    assert found.fits
    assert found.choice.trial.scheme.name == fitting[0]
    assert "bf16" not in fitting  # 141 GB
    assert fitting == sorted(fitting, key=["bf16", "fp8", "awq-int4"].index)


def test_every_layout_uses_every_chip_and_only_valid_degrees():
    q = question("qwen3-30b-a3b", gpu="h100-sxm", gpus=16)
    found, _ = layouts(q, 16, numbers("bf16"))
    experts = [n for k in q.spec.decoder.kinds for b in k.blocks for n in
               (branch.module for branch in b.branches) if isinstance(n, Experts)]  # fmt: skip

    assert len(found) > 10
    for one in found:
        s = one.split
        assert one.n_gpu == 16
        assert s.tp * s.dp <= 8
        assert q.spec.n_head % s.tp == 0
        assert all(e.n_expert % s.ep == 0 for e in experts)


def test_lengths_that_differ_hold_less_than_the_longest():
    asked = {"gpu": "h100-sxm", "context": "32k", "batch": 32}
    longest = serve("llama-3.1-8b", **asked)
    mixed = serve("llama-3.1-8b", context_mean="2k", context_p95="6k", **asked)

    assert (longest.fits, mixed.fits) == (False, True)


WEIGHTS = {"none": "bf16", "bnb.nf4": "nf4", "bnb.nf4-dq": "nf4-dq"}
NAMES = {"phi-1.5": "phi-1.5", "StableLM Alpha": "stablelm-base-alpha-3b", "Llama 2": "llama-2-7b",
         "CodeLlama": "codellama-34b", "Falcon": "falcon-40b"}  # fmt: skip


@pytest.mark.skipif(not LITGPT.exists(), reason="the measured tables are kept beside the project")
def test_no_run_that_ran_out_is_said_to_fit():
    text = LITGPT.read_text("utf-8")
    rows = [row for row in csv.DictReader(text.splitlines())
            if row["section"] == "Single-GPU Inference" and row["model"] in NAMES]  # fmt: skip
    found = [
        (row["oom"] == "True", serve(NAMES[row["model"]], gpu="a100-sxm-40gb", context=1304,
                                     quant=WEIGHTS[row["quantization"]]).fits)
        for row in rows
    ]  # fmt: skip

    assert sum(out for out, _ in found) >= 2
    assert not any(fits for out, fits in found if out)
    assert sum(not fits for out, fits in found if not out) <= 1


@pytest.mark.skipif(not LITGPT.exists(), reason="the measured tables are kept beside the project")
def test_no_deployment_that_was_measured_is_said_not_to_fit():
    """Every distinct deployment of the serving tables, with one sequence: its weights fitted."""
    kept = ("model", "system", "tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size",
            "gemm_quant_mode", "moe_quant_mode", "precision", "isl")  # fmt: skip
    rows = csv.DictReader(LITGPT.with_name(SERVING).read_text("utf-8").splitlines())
    verdicts = []
    for row in {tuple(row[f] for f in kept): row for row in rows}.values():
        try:
            w, d, one = serving_load(row)
        except NotScoredError:
            continue
        packed = d.experts or d.weights
        name = {"fp4": "mxfp4" if d.weights == "bf16" else "nvfp4"}.get(packed, packed)
        m = serving_memory(
            catalog.resolve(row["model"]).spec, Split(tp=d.tp, dp=d.dp), numbers(name).rank_bytes,
            1, int(w.prompt + w.answer), d.cache,
        )  # fmt: skip
        verdicts.append(judged(m, one.usable_bytes, 0.9, by_kind=False).verdict)

    assert len(verdicts) > 100
    assert "does not fit" not in verdicts
    assert verdicts.count("fits only if") < 0.05 * len(verdicts)


# ---------------------------------------------------------------- speed


def rates(**factors):
    return speed(catalog.model("llama-3.1-8b"), H100, Deployment(), 4096, 256, 8,
                 Factors(**factors))  # fmt: skip


def test_no_factor_is_what_the_plain_model_says():
    from scantling.costs.serve import serving

    plain = serving(catalog.model("llama-3.1-8b"), H100, Deployment(), 4096, 256, 8)
    found = rates()

    assert found.tpot_s.value == pytest.approx(plain.tpot_s.value)
    assert found.ttft_s.value == pytest.approx(plain.ttft_s.value)
    assert found.tokens_per_s.value == pytest.approx(plain.tokens_per_s.value)


def test_the_cost_of_input_and_output_is_all_the_time_there_is():
    s = rates()

    assert s.input_s * 4096 + s.output_s * 256 == pytest.approx(256 / s.tokens_per_s.value)


def test_cached_prefixes_save_prefill_and_nothing_else():
    plain, half = rates(), rates(prefix_hit=0.5)

    assert 0.4 < (half.ttft_s.value / plain.ttft_s.value) < 0.9
    assert half.output_s == pytest.approx(plain.output_s)


def test_guesses_that_are_never_right_only_cost():
    """A step that moves bytes has room to check them; one that computes has not."""
    busy = [speed(catalog.model("llama-3.1-8b"), H100, Deployment(), 512, 512, 256, f).output_s
            for f in (Factors(), Factors(guesses=4, accept=0.0))]  # fmt: skip

    assert rates(guesses=4, accept=0.0).output_s >= rates().output_s
    assert busy[1] > busy[0]


def test_guesses_that_are_always_right_give_a_token_each():
    assert Factors(guesses=4, accept=1.0).tokens_per_step == 5
    assert Factors(guesses=4, accept=0.5).tokens_per_step == pytest.approx((1 - 0.5**5) / 0.5)
    assert rates(guesses=4, accept=1.0).output_s < rates().output_s / 3


def test_a_draft_model_costs_its_steps():
    free = rates(guesses=4)
    small = rates(guesses=4, draft=catalog.model("llama-3.2-1b"))

    assert small.output_s > free.output_s


def test_smaller_chunks_start_more_kernels():
    assert rates(chunk=512).ttft_s.value > rates(chunk=8192).ttft_s.value


def test_a_queue_for_one_server_waits_as_pollaczek_and_khinchine_say():
    idle = first_token_under_load(Times(1.0, 1.0, 1.0), 0.5, 0.0)
    busy = first_token_under_load(Times(1.0, 1.0, 1.0), 0.5, 0.8)

    assert (idle.low, idle.value, idle.high) == (1.0, 1.0, 1.0)
    assert busy.value == pytest.approx(1.0 + 0.5 * 0.8 / (2 * 0.2))  # M/D/1
    assert busy.low == 1.0
    assert busy.high > 2 * busy.value - 1


def test_the_price_of_a_million_tokens_is_chip_hours_times_price():
    bill = token_bill(Estimate(0.01, 0.005, 0.02), 8, H100, 0.5, 2.5)

    assert bill.cost.value_s == pytest.approx(0.01 * 8 / 3600 / 0.5 * 2.5 * 1e6)
    assert bill.joules.high_s == pytest.approx(0.02 * 8 * 700)  # the whole TDP


def test_one_request_keeps_one_replica_busy():
    found = serve("llama-3.2-1b", gpu="h100-sxm", gpus=8, tp=1, pp=1, concurrency="1,8")
    one, eight = found.choice.trial.points

    assert eight.tokens_per_s.value == pytest.approx(8 * one.tokens_per_s.value)


def test_capacity_keeps_its_limits_and_one_more_request_would_not():
    found = serve("llama-3.1-8b", gpu="h100-sxm", prompt=2048, answer=256,
                  slo="ttft=1s,tpot=20ms")  # fmt: skip
    c = found.choice.capacity

    assert c.expected.speed.tpot_s.value <= 0.020
    assert c.expected.ttft_queued_s.value <= 1.0
    assert c.surely.speed.tpot_s.high <= 0.020
    assert c.surely.concurrency <= c.expected.concurrency < found.choice.max_batch


# ---------------------------------------------------------------- the verb

SCREEN = "llama-3.1-70b --gpu h100-sxm --gpus 8 --in 4096 --out 512 --concurrency 1,8,64"
CONTRACT = {"schema", "model", "fits", "memory", "max_context", "max_batch", "ttft_seconds",
            "tpot_seconds", "tokens_per_second", "valid"}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("llama-3.1-8b --gpu l4 --context 32k --batch 1 --quant awq-int4", 0),
        ("llama-3.1-8b --gpu l4 --context 32k --batch 8 --quant awq-int4", 1),
        ("llama-3.1-8b --gpu h100-sxm --slo tpot=1us", 1),
        (SCREEN, 0),
        ("deepseek-v3 --gpu h200 --gpus 8 --quant fp8 --price 3", 0),
    ],
)
def test_the_exit_status_is_the_answer(words, status):
    assert command(*words.split())[0] == status


def test_the_json_keeps_the_contract():
    _, text, _ = command(*SCREEN.split(), "--json", "--price", "2")
    told = json.loads(text)

    assert set(told) >= CONTRACT
    assert set(told["valid"]) >= {"tp", "ep", "pp"}
    assert told["fits"] is True
    assert len(told["loads"]) == 3
    for name in ("ttft_seconds", "tpot_seconds", "tokens_per_second", "ttft_queued_seconds"):
        assert told[name]["low"] <= told[name]["value"] <= told[name]["high"]
        assert told[name]["why"]
    assert told["ttft_queued_seconds"]["kind"] == "assumed"


def test_the_text_says_what_is_asked():
    _, text, _ = command(*SCREEN.split(), "--price", "2")

    for word in ("fits", "to spare", "first token", "per token", "limits", "valid"):
        assert word in text


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("llama-2-7b --context 32k", "beyond the 4,096 tokens"),
        ("gpt2 --context 4k", "no rotary positions"),
        ("llama-2-7b --gpu v100 --quant fp8", "fp8"),
        ("llama-2-7b --quant fp7", "did you mean"),
        ("llama-2-7b --gpu h100 --gpus 0.5", "whole number"),
        ("llama-2-7b --gpu h100 --slo foo=3", "write ttft="),
        ("llama-2-7b --gpu h100 --share 2", "share"),
        ("llama-2-7b --in 4000 --out 4000", "beyond the 4,096"),
        ("llama-2-7b --context 2k --in 4000 --out 40", "more than the context"),
        ("llama-3.1-8b --draft gpt2", "could not be checked"),
        ("llama-3.1-8b --context-mean 2k", "needs both"),
        ("llama-3.1-8b --rope yarn", "not needed"),
    ],
)
def test_bad_input_is_one_clear_line(words, error):
    status, _, line = command(*words.split())

    assert status == 2
    assert error in line
    assert "\n" not in line


def test_a_longer_context_is_served_where_it_is_asked_for():
    found = serve("llama-2-7b", gpu="h100-sxm", context="8k", rope="yarn")

    assert found.fits
    assert any("extended from 4,096 to 8,192" in n for n in found.question.notes)


def test_an_encoder_is_not_served():
    with pytest.raises(FieldError, match="needs a decoder"):
        serve({"model_type": "bert"})


def test_the_picture_is_written(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "serve.svg"

    assert command(*SCREEN.split(), "--plot", str(path))[0] == 0
    assert "requests in flight" in path.read_text("utf-8") or path.stat().st_size > 10_000


def test_the_model_can_be_changed_first():
    q = question("llama-3.1-8b", gpu="l4")

    assert replace(q, batch=2).batch == 2
    assert command("llama-3.1-8b", "--gpu", "l4", "--set", "n_layer=8", "--context", "8k")[0] == 0


def test_any_quantisation_takes_the_widest_that_fits():
    """70.6 B parameters: 16 and 8 bits are too much for one H100, 6 and less are not."""
    found = serve("llama-3.1-70b", gpu="h100-sxm", quant="any")
    sizes = [r.trial.held.memory.weights for r in found.rows if r.trial.held.verdict == "fits"]

    assert found.fits
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 0.5 * 70e9


def test_the_json_of_what_does_not_fit_has_every_key():
    _, text, _ = command("llama-3.1-70b", "--gpu", "l4", "--json")
    told = json.loads(text)

    assert set(told) >= CONTRACT
    assert told["fits"] is False
    assert told["tpot_seconds"] is None
    assert told["memory"]["margin_bytes"] < 0


def test_vllm_is_told_what_was_chosen():
    words = "export llama-3.1-70b --to vllm --gpu h100-sxm --gpus 8 --batch 16 --context 16k --json"
    found = CliRunner().invoke(cli.group, words.split(), standalone_mode=False)
    flags = json.loads(found.stdout)["values"]
    chips = flags["tensor-parallel-size"] * flags.get("pipeline-parallel-size", 1)

    assert flags["max-model-len"] == 16_384
    assert flags["max-num-seqs"] * (8 // chips) >= 16
    assert 8 % chips == 0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("llama-3.1-70b --to vllm --gpu h100-sxm", "does not fit"),
        ("llama-3.1-8b --to hf --gpu h100-sxm", "is for --to vllm"),
        ("llama-3.1-8b --to vllm --batch 4", "needs --gpu"),
    ],
)
def test_flags_are_refused_where_nothing_would_run(words, error):
    found = CliRunner().invoke(cli.group, ["export", *words.split()], standalone_mode=False)

    assert isinstance(found.exception, ScantlingError)
    assert error in str(found.exception)


def test_a_split_that_cuts_a_group_is_left_out_with_the_shape_that_would_do():
    found = serve("qwen2.5-0.5b", gpu="h100-sxm", tp=2, quant="gptq-int4")

    assert found.choice is None
    assert any("3.5 units of 128" in w.reason for w in found.invalid)
    assert any("n_head 16" in line for line in found.remedies)


def test_a_config_that_is_packed_is_served_as_it_is():
    packed = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    config = catalog.named()["qwen2.5-7b"].config | {"quantization_config": packed}
    found = serve(config, gpu="l4")

    assert found.choice.trial.scheme.name == "gptq-int4-g32"
    assert any("as released" in text for text in found.question.assumed)


def test_a_file_weighs_what_it_holds(tmp_path):
    """One matrix of a tiny model in another type changes the bytes, and so does the answer."""
    spec = catalog.model("qwen2.5-0.5b")
    path = tmp_path / "model.safetensors"
    header, start = {}, 0
    for t in tensors(spec):
        if t.alias is None and not t.buffer:
            size = 2 * int(t.size())
            header[f"{t.name}.weight"] = {"dtype": "BF16", "shape": [int(t.size())],
                                          "data_offsets": [start, start + size]}  # fmt: skip
            start += size
    text = json.dumps(header).encode()
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + start)
    file = replace(load_checkpoint(path), config={})
    one = stored_in(spec, file)

    assert one.name == "bf16"
    assert one.rank_bytes(spec, Plan()) == pytest.approx(start)


def test_a_range_is_a_row_for_every_value(tmp_path):
    pytest.importorskip("matplotlib")
    words = ["llama-3.1-8b", "--gpu", "l4", "--quant", "fp8", "--vary", "context=8192:65536:8192"]
    status, text, _ = command(*words, "--json", "--plot", str(tmp_path / "vary.svg"))
    rows = json.loads(text)["rows"]
    held_bytes = [r["memory"]["cache_bytes"] for r in rows]

    assert status == 0
    assert [r["value"] for r in rows] == list(range(8192, 65_537, 8192))
    assert held_bytes == [b * held_bytes[0] for b in range(1, 9)]
    assert command(*words)[1].count("fits") >= 1


def test_a_range_of_a_field_changes_the_model():
    words = [
        "llama-3.1-8b",
        "--gpu",
        "h100-sxm",
        "--context",
        "32k",
        "--vary",
        "n_kv_head=1:32",
        "--json",
    ]
    rows = json.loads(command(*words)[1])["rows"]
    legal = [r for r in rows if "error" not in r]

    assert [r["value"] for r in legal] == [1, 2, 4, 8, 16, 32]
    # 2 × 32 layers × 128 × 2 bytes × 32,768 tokens a KV head
    assert [r["memory"]["cache_bytes"] for r in legal] == [r["value"] * 2**29 for r in legal]


@pytest.mark.parametrize("dp", [1, 8])
def test_no_queue_is_busier_than_all_the_time_there_is(dp):
    """In a closed loop prefills and steps share the time, so prefills never take all of it."""
    found = serve("deepseek-v3", gpu="h200-sxm", gpus=8, quant="fp8", prompt=4096, answer=512,
                  dp=dp, pp=1, concurrency="1,16,64,256")  # fmt: skip
    shares = [p.prefill_share for p in found.choice.trial.points]

    assert shares == sorted(shares)
    assert all(0 < share < 0.97 for share in shares)


def test_chips_that_no_link_joins_are_replicas():
    found = serve("llama-3.1-8b", gpu="m3-ultra", gpus=2)

    assert found.choice.trial.layout.replicas == 2
    assert not found.alternatives


@pytest.mark.parametrize("skew", [0.5, 1.0])
def test_the_experts_that_are_touched_are_those_of_a_draw(skew):
    """Tokens that each draw eight of 128 experts by weight, without putting any back."""
    spec = catalog.model("qwen3-30b-a3b")
    draw = np.random.default_rng(0)
    weights = np.arange(1, 129) ** -skew
    keys = draw.exponential(size=(40, 32, 128)) / weights
    chosen = np.argsort(keys, axis=2)[:, :, :8]
    distinct = np.mean([len(np.unique(step)) for step in chosen])
    even = 128 * (1 - (1 - 8 / 128) ** 32)

    assert touched_share(spec, 32, skew) == pytest.approx(distinct / even, rel=0.06)


def test_uneven_experts_are_read_less():
    asked = {"gpu": "h100-sxm", "concurrency": 16, "prompt": 512, "answer": 512}
    even, uneven = (serve("qwen3-30b-a3b", skew=s, **asked).choice.trial for s in (0.0, 1.2))

    assert uneven.points[0].speed.output_s < even.points[0].speed.output_s
