"""Training memory and splits as people met them in public: each case's answer is ours."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace

from case_files import cases, holds, read
from scantling import catalog
from scantling.costs.activations import kept
from scantling.costs.adapters import adapted, rank_reading
from scantling.costs.cache import kv_cache
from scantling.costs.fit import (
    activation_ratio,
    fits,
    notes,
    room,
    sharing_helps,
    smallest_memory,
)
from scantling.costs.memory import logits_bytes, states, training_memory
from scantling.costs.parallel import (
    kv_replication,
    padded_heads,
    padded_vocab,
    placed_operators,
    rank_spec,
    split_layers,
    ulysses_degrees,
    valid_degrees,
    valid_ep,
)
from scantling.hardware import chip
from scantling.spec import Block, Branch, GroupedAttention, Layer, Run, Spec, Stack, vary
from scantling.spec.plan import Adapter, Plan, Recipe
from scantling.validate.memory import PAPER, gpt

GB, GIB = 10**9, 2**30
Case = dict[str, Any]

FP32 = Recipe(dtype="fp32", weights="fp32", master=None)
MIXED = Recipe(gradients="bf16")
PURE = Recipe(gradients="bf16", master=None, moments="bf16")
UNFUSED = Recipe(weights="fp32", master=None, attention="unfused", fused=False)


@pytest.mark.parametrize("one", cases("train_memory", "parallelism"))
def test_a_case_met_in_public(one):
    """Every required key has the expected value; what must be mentioned is said by the product."""
    if one["id"] not in OWN:
        pytest.skip(f"no question of {one['id']} is known here")
    answers = OWN[one["id"]](one)
    said = " · ".join(answers.pop("says", ()))
    assert set(one["required"]) <= set(answers) | {"must_mention"}
    lists = {k: v for k, v in answers.items() if _is_list_of_numbers(one, k)}
    for key, values in lists.items():
        for found, wanted in zip(values, one["expected"][key], strict=True):
            assert found == pytest.approx(wanted["value"], rel=max(wanted["rtol"], 1e-12)), key
    holds(one, **{k: v for k, v in answers.items() if k not in lists})
    for phrase in one["expected"].get("must_mention", ()):
        assert re.sub(r" \([^)]*\)", "", phrase) in said


def _is_list_of_numbers(one: Case, key: str) -> bool:
    wanted = one["expected"].get(key)
    return isinstance(wanted, list) and isinstance(wanted[0], dict)


def held(spec: Spec, plan: Plan, recipe: Recipe) -> Any:
    return states(placed_operators(spec, plan, 1), plan, recipe)


def fit_on(spec: Spec, plan: Plan, recipe: Recipe, context: int, gpu: str) -> str:
    return fits(training_memory(spec, plan, recipe, context), chip(gpu).memory_bytes)


# ---------------------------------------------------------------- training memory


def alpaca(one: Case) -> dict[str, Any]:
    """fp32 weights, gradients and two moments, on one chip and shared by two."""
    spec, context = read(one["input"]["hf_config"]), one["input"]["seq"]
    alone, two = Plan(zero=0), Plan(dp=2, zero=3)
    gpu = one["input"]["hardware"]["gpu"]
    return {
        "states": held(spec, alone, FP32).total / GB,
        "fits_1": fit_on(spec, alone, FP32, context, gpu) != "no",
        "states_per_gpu_2": held(spec, two, FP32).total / GB,
        "fits_2": fit_on(spec, two, FP32, context, gpu) == "yes",
    }


def full_13b(one: Case) -> dict[str, Any]:
    spec, context = read(one["input"]["hf_config"]), one["input"]["seq"]
    whole, gpu = held(spec, Plan(zero=0), MIXED), one["input"]["hardware"]["gpu"]
    return {
        "master_plus_adam": whole.optimizer / GB,
        "all_states": whole.total / GB,
        "fits_2": fit_on(spec, Plan(dp=2, zero=3), MIXED, context, gpu) != "no",
        "per_gpu_4": held(spec, Plan(dp=4, zero=3), MIXED).total / GB,
        "fits_4": fit_on(spec, Plan(dp=4, zero=3), MIXED, context, gpu) == "yes",
    }


def pure_bf16(one: Case) -> dict[str, Any]:
    spec, alone = read(one["input"]["hf_config"]), Plan(zero=0)
    return {
        "no_foreach": held(spec, alone, PURE).at_step / GB,
        "foreach": held(spec, alone, replace(PURE, foreach=True)).at_step / GB,
        "adam8bit": held(spec, alone, replace(PURE, optimizer="adamw8bit")).at_step / GB,
    }


def gathered(one: Case) -> dict[str, Any]:
    """All states on the host: what stays on the chip does not fall with the number of chips."""
    recipe = Recipe(offload=True, offload_weights=True)
    spec = catalog.model("gpt-j-6b")
    two, four = (training_memory(spec, Plan(dp=n, zero=3), recipe, 512) for n in (2, 4))
    largest = max(
        t.each() for p in placed_operators(spec, Plan(), 1) for t in p.op.tensors if not t.alias
    )
    rows, width = (int(n) for n in re.findall(r"\d+", one["input"]["largest_layer"]))
    assert largest == rows * width
    return {"estimate": 4 * largest / GIB, "scales_with_gpus": bool(four.total < two.total)}


def mixed_7b(one: Case) -> dict[str, Any]:
    spec = read(one["input"]["hf_config"])
    return {"needed_mixed": held(spec, Plan(zero=0), Recipe()).total / GIB}


def low_rank_70b(one: Case) -> dict[str, Any]:
    spec = read(one["input"]["hf_config"])
    trainable = []
    for lora in one["input"]["lora"]:
        targets = () if lora["targets"] == "all-linear" else tuple(lora["targets"])
        trainable.append(adapted(spec, Adapter(rank=lora["r"], targets=targets)).parameters)
    return {"trainable": trainable}


def low_rank_experts(one: Case) -> dict[str, Any]:
    reading = rank_reading({r["r"]: r["trainable"] for r in one["input"]["reported"]})
    return {
        "linear_in_r": reading.linear,
        "per_rank": reading.per_rank,
        "says": adapted(catalog.model("qwen3-30b-a3b"), Adapter(rank=32)).notes,
    }


def packed_70b(one: Case) -> dict[str, Any]:
    """With layers computed again, as that software does by default."""
    spec, given = read(one["input"]["hf_config"]), one["input"]
    quantised = given["hf_config"]["quantization_config"]
    adapter = Adapter(rank=8, weights=f"int{quantised['bits']}-g{quantised['group_size']}")
    recipe = Recipe(gradients="bf16", adapter=adapter)
    plan = Plan(dp=given["hardware"]["count"], zero=0, recompute="full")
    peak = training_memory(spec, plan, recipe, 512)
    return {
        "weights_per_gpu": held(spec, plan, recipe).weights / GB,
        "fits": fits(peak, chip(given["hardware"]["gpu"]).memory_bytes) != "no",
        "more_gpus_help_in_ddp": sharing_helps(spec, plan, recipe, 512),
        "min_gpu_GB": smallest_memory(peak) // GIB,
    }


def longest_batch(one: Case) -> dict[str, Any]:
    spec = read(one["input"]["hf_config"])
    recipe = Recipe(adapter=Adapter(rank=64, weights="nf4-dq"))
    short, long = (training_memory(spec, Plan(), recipe, n) for n in (512, 4096))
    assert long.total > short.total
    return {"says": notes(spec, Plan(), recipe, 4096)}


def logits(one: Case) -> dict[str, Any]:
    names = {4: "fp32", 2: "bf16"}
    return {
        "GiB": [
            logits_bytes(c["tokens"], c["vocab"], names[c["bytes"]]) / GIB
            for c in one["input"]["cases"]
        ]
    }


def selective(one: Case) -> dict[str, Any]:
    """A width, heads and a length for which 5 a s / h is what the case says."""
    width, heads = 2048, 16
    context = one["input"]["five_as_over_h"] * width // (5 * heads)
    spec = gpt(width, heads, 4)
    flash = replace(PAPER, attention="flash", dropout=False)
    return {
        "ratio_unfused": activation_ratio(spec, Plan(), PAPER, context),
        "ratio_flash": activation_ratio(spec, Plan(), flash, context),
    }


def attention_only(one: Case) -> dict[str, Any]:
    given = one["input"]
    width, heads, s = given["d_model"], given["n_heads"], given["seq"]
    module = GroupedAttention(n_head=heads, n_kv_head=heads, d_head=width // heads)
    layer = Layer("layer", (Block((Branch(module),)),))
    spec = Spec(width, 32000, Stack((layer,), (Run(("layer",), 1),), None))

    def left(plan: Plan, recipe: Recipe, tokens: int) -> Any:
        return kept(placed_operators(spec, plan, tokens), width, plan, recipe, tokens).layers

    whole = left(Plan(), PAPER, s)
    flash = replace(PAPER, attention="flash")
    return {
        "unfused": whole / GB,
        "quadratic_part": (whole - left(Plan(recompute="selective"), PAPER, s)) / GB,
        "fused_quadratic": left(Plan(), flash, 2 * s) - 2 * left(Plan(), flash, s),
    }


def alpaca_40gb(one: Case) -> dict[str, Any]:
    """Micro-batch 8 against 2, of sequences of 512 as that recipe has them."""
    spec, found = read(one["input"]["hf_config"]), {"per_gpu": []}
    memory = chip(one["input"]["hardware"]["gpu"]).memory_bytes
    for n in one["input"]["hardware"]["count"]:
        plan = Plan(dp=n, zero=3)
        found["per_gpu"].append(held(spec, plan, UNFUSED).total / GB)
        found[f"verdict_{n}"] = room(spec, plan, UNFUSED, 512, memory, (8, 2)).text
    return found


# ---------------------------------------------------------------- splits


def heads(one: Case) -> dict[str, Any]:
    arch = one["input"]["arch"]
    spec = vary(
        catalog.model("llama-3.1-8b"), n_head=arch["n_heads"], n_kv_head=arch["n_kv_heads"],
        d_ff=arch["ffn"],
    )  # fmt: skip
    valid = valid_degrees(spec).tp
    claimed = one["expected"].get("claimed_in_issue")
    return {
        "valid_tp": valid, "tp3": 3 in valid, "tp8": 8 in valid,
        "claim_is_correct": claimed == valid,
    }  # fmt: skip


def only_asked(answer: Any) -> Any:
    """Answers of a shared question, of which a case asks some."""
    return lambda one: {k: v for k, v in answer(one).items() if k in one["expected"]}


def vocabulary(one: Case) -> dict[str, Any]:
    rows, degrees = one["input"]["vocab"], one["input"]["tp"]
    return {
        "ok": [padded_vocab(rows, tp) == rows for tp in degrees],
        "padded": padded_vocab(rows, degrees[-1]),
    }


def padded_checkpoint(one: Case) -> dict[str, Any]:
    given = one["input"]
    rows, tp, multiple = given["vocab"], given["tp"], given["divisible_by"]
    return {
        "padded_without_extra": padded_vocab(rows, tp, multiple),
        "padded_with_extra": padded_vocab(rows + given["extra_tokens"], tp, multiple),
    }


def padded_gpt2(one: Case) -> dict[str, Any]:
    given = one["input"]
    return {"padded": [padded_vocab(given["vocab"], t, given["divisible_by"]) for t in given["tp"]]}


def replicated(one: Case) -> dict[str, Any]:
    found = [kv_replication(a["n_kv_heads"], a["tp"]) for a in one["input"]["archs"].values()]
    return {"per_rank": [f.per_rank for f in found], "replication": [f.copies for f in found]}


def latent(one: Case) -> dict[str, Any]:
    spec = read(one["input"]["hf_config"])
    split = kv_cache(rank_spec(spec, Plan(tp=one["input"]["tp"]))).bytes_per_token
    return {"per_gpu": split, "divided_by_tp": split != kv_cache(spec).bytes_per_token}


def pipeline(one: Case) -> dict[str, Any]:
    found = split_layers(one["input"]["n_layers"], one["input"]["pp"])
    return {
        "divisible": found.even, "floor_total": found.floor_total, "balanced": list(found.stages),
        "divisor_pp": list(found.divisors),
    }  # fmt: skip


def ulysses(one: Case) -> dict[str, Any]:
    return {"valid_sp": ulysses_degrees(one["input"]["n_heads"], one["input"]["n_kv_heads"])}


def odd_heads(one: Case) -> dict[str, Any]:
    found = padded_heads(one["input"]["n_heads"], one["input"]["tp"])
    return {"padded": found.heads, "waste": found.waste}


def expert_degrees(one: Case) -> dict[str, Any]:
    valid = valid_ep(one["input"]["n_experts"], one["input"]["world_size"])
    return {"valid_ep": valid, "ep64": 64 in valid}


OWN = {
    "TM-01": alpaca, "TM-02": full_13b, "TM-04": pure_bf16, "TM-06": gathered, "TM-07": mixed_7b,
    "TM-09": low_rank_70b, "TM-11": low_rank_experts, "TM-12": packed_70b, "TM-14": longest_batch,
    "TM-16": logits, "TM-17": selective, "TM-19": attention_only, "TM-21": alpaca_40gb,
    "PL-02": only_asked(heads), "PL-04": only_asked(heads), "PL-05": only_asked(heads),
    "PL-07": vocabulary, "PL-09": padded_checkpoint, "PL-10": padded_gpt2, "PL-12": replicated,
    "PL-14": latent, "PL-15": only_asked(pipeline), "PL-17": only_asked(pipeline),
    "PL-19": ulysses, "PL-21": odd_heads, "PL-22": expert_degrees,
}  # fmt: skip
