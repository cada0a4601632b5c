"""Questions about speed and shapes as people met them in public: each case's answer is ours.

A runner reads the usual fields of a case and answers what they ask, so a case that is added
beside the project is checked as far as its fields say what is asked.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from case_files import cases, read
from scantling import catalog
from scantling.arith import round_up
from scantling.costs.alignment import (
    MEASURE,
    head_splits,
    nearby,
    recommended_multiple,
)
from scantling.costs.count import parameters
from scantling.costs.kernels import gemm_time
from scantling.costs.kernels.misaligned import misaligned
from scantling.costs.roofline import decode_ceiling, gemm_products, roofline, wave_waste
from scantling.hardware import chip
from scantling.ops import tensors
from scantling.spec import Workload, dtype_bytes, vary

Case = dict[str, Any]
Answers = dict[str, Any]


@pytest.mark.parametrize("one", cases("speed_shape"))
def test_a_case_about_speed_met_in_public(one):
    """Every required key is what the case expects."""
    given = one["input"]
    answers: Answers = {}
    for key, answer in FIELDS.items():
        if key in given:
            answers |= answer(one)
    asked = [key for key in one["required"] if key in answers]
    for key in asked:
        check(key, one["expected"][key], answers[key])
    missing = sorted(set(one["required"]) - set(asked))
    if missing:
        pytest.skip(f"asked in words that no field answers: {', '.join(missing)}")


def check(key: str, wanted: Any, found: Any) -> None:
    """A number within its tolerance, a range that holds ours, words that ours hold."""
    if isinstance(wanted, dict) and "value" in wanted:
        assert math.isclose(found, wanted["value"], rel_tol=wanted["rtol"]), key
    elif key.endswith("range") or key == "realistic":
        low, high = found
        assert wanted[0] - 1e-2 * wanted[0] <= low <= high, key
        assert high <= wanted[1] * (1.0 if key.endswith("range") else 1.07), key
    elif key == "must_mention":
        assert callable(found)
        for words in wanted:
            assert found(words), words
    elif callable(found):
        assert found(wanted), key
    else:
        assert found == wanted, key


# ---------------------------------------------------------------- what a field asks


def padding(one: Case) -> Answers:
    """A vocabulary and a multiple: GPT-2 with it, on the two chips that were told of."""
    size, multiple = one["input"]["vocab"], one["input"]["multiple"]
    padded = round_up(size, multiple)
    spec = vary(catalog.model("gpt2"), vocab_size=size)
    gains = [
        nearby(spec, "vocab_size", Workload("train", 8, 1024), chip(key), (padded,)).neighbours[0]
        for key in ("rtx-3090", "a100")
    ]
    assert {g.value for g in gains} == {padded}
    low, high = min(g.gain.low for g in gains), max(g.gain.high for g in gains)
    assert low < 1.04 < high, "the 4 % that were measured on RTX 3090"
    assert all("nanogpt-vocabulary" in g.gain.why for g in gains)
    return {"padded": padded, "speedup_range": (low, high)}


def promise(one: Case) -> Answers:
    """What is asked of padding in words: whether its gain is promised."""
    if "padding" not in one["input"]["question"]:
        return {}
    found = nearby(catalog.model("gpt2"), "vocab_size", Workload("train", 8, 1024), chip("a100"))
    assert found.why[-1] == MEASURE
    return {"guaranteed": found.guaranteed, "must_mention": lambda words: words in MEASURE}


def widths(one: Case) -> Answers:
    """Feed-forward widths of one model width, gated, by their rate on H100."""
    given = one["input"]
    d, h100 = given["d_model"], chip("h100")
    base = vary(catalog.model("llama-3.1-8b"), d_model=d)
    rate, size = {}, {}
    for f in given["candidates"]:
        spec = vary(base, d_ff=f)
        rate[f] = 2 * 8192 * d * f / float(gemm_time(h100, "bf16", 8192, f, d).value_s)
        size[str(f)] = sum(t.each() for t in tensors(spec) if t.part == "ffn" and len(t.shape) == 2)
    measured = {int(f): v for f, v in one["expected"]["measured_tflops"].items()}
    best = max(measured, key=measured.get)
    slow = [f for f, v in measured.items() if v < 0.9 * measured[best]]

    def ordered(_: str) -> bool:
        """Ours and the measured ratio lie on the same side, and theirs in our interval."""
        for f in slow:
            factor = misaligned(h100, "bf16", f)
            told = measured[best] / measured[f]
            if not (factor.low <= told <= factor.high and rate[best] / rate[f] > 1.2):
                return False
        rest = [rate[f] for f in measured if f not in slow]
        return max(rest) / min(rest) < 1.01

    return {"order": ordered, "mlp_params": size}


def multiples(one: Case) -> Answers:
    """Columns that were measured: whether a multiple of 8 is enough, by what was slower."""
    one_chip = chip("rtx-4090")
    eights = [n for n in one["input"]["N"] if n % 8 == 0 and n % 16]
    risk = max(misaligned(one_chip, "bf16", n).high for n in eights)
    return {
        "multiple_of_8_is_enough": risk == 1.0,
        "recommended_multiple": recommended_multiple(one_chip, "bf16"),
    }


def blocks(one: Case) -> Answers:
    found = wave_waste(one["input"]["blocks"], one["input"]["sms"])
    return {"waves": found.waves, "efficiency": found.efficiency}


def heads(one: Case) -> Answers:
    """A width and a count of heads: the width of each, and splits at equal parameters."""
    arch = one["input"]["arch"]
    d, n = arch["d_model"], arch["n_heads"]
    spec = vary(catalog.model("gpt2"), d_model=d, n_layer=arch["n_layers"], n_head=n, n_kv_head=n,
                d_head=d // n, d_ff=4 * d)  # fmt: skip
    found = {s.n_head: s.d_head for s in head_splits(spec)}
    same = {
        parameters(vary(spec, n_head=h, n_kv_head=h, d_head=w)).total for h, w in found.items()
    } == {parameters(spec).total}
    return {
        "head_dim": d // n, "params_unchanged": same,
        "suggest_heads": lambda wanted: set(wanted) <= set(found),
        "head_dims": lambda wanted: set(wanted) <= set(found.values()),
    }  # fmt: skip


def weights(one: Case) -> Answers:
    """Weights read for each token over the bandwidth of a chip with that bandwidth."""
    given = one["input"]
    size = given["weights_GB"] * 1e9 if "weights_GB" in given else given["weights_GiB"] * 2**30
    found = decode_ceiling(of_bandwidth(given["bandwidth_GBs"]), size, given.get("batch", 1))
    answers = {"ceiling": found.value, "bound": found.value, "realistic": (found.low, found.high)}
    if "measured" in given:
        answers["fraction"] = given["measured"] / found.value
    return answers


def of_bandwidth(gigabytes: float) -> Any:
    """A chip of the catalogue by its bandwidth."""
    known = {"rtx-4090": chip("rtx-4090"), "rtx-5090": chip("rtx-5090"), "a6000": chip("rtx-a6000")}
    return next(c for c in known.values() if math.isclose(c.memory_bytes_per_s, gigabytes * 1e9))


def bandwidths(one: Case) -> Answers:
    """Two chips by name, their bandwidths and what was measured."""
    given = one["input"]["bandwidth_GBs"]
    if not isinstance(given, dict):
        return {}
    fast, slow = chip("rtx-4090"), chip("rtx-a6000")
    answers: Answers = {"bandwidth_ratio": fast.memory_bytes_per_s / slow.memory_bytes_per_s}
    facts = {
        "decode is bandwidth bound": roofline(slow, "bf16", 1, 4096, 4096).bound == "memory",
        "VRAM size is not speed": slow.memory_bytes > fast.memory_bytes
        and slow.memory_bytes_per_s < fast.memory_bytes_per_s,
        "A6000 (sm86) has no FP8 units": "fp8" not in slow.dtypes and "fp8" in fast.dtypes,
    }
    answers["must_mention"] = lambda words: facts[words]
    return answers


def decode_of_config(one: Case) -> Answers:
    """A config at batch 1: which bound holds, the ceiling, and how near the measured came."""
    spec, rtx = read(one["input"]["hf_config"]), chip("rtx-4090")
    found = decode_ceiling(rtx, parameters(spec).total * dtype_bytes("bf16"))
    products = gemm_products(spec, Workload("decode", 1, 1024), rtx)
    bound_by_compute = sum(p.share for p in products if p.bound == "compute")
    answers: Answers = {"claim_is_correct": bound_by_compute > 0.5, "ceiling_4090": found.value}
    measured = one["input"].get("tok_s", {}).get("rtx4090")
    if measured is not None:
        answers["fraction_of_ceiling"] = measured / found.value
    return answers


def peak(one: Case) -> Answers:
    """The rate of a chip: dense, and what a data sheet prints with 2:4 sparsity."""
    rate = chip(one["input"]["gpu"]).rate(one["input"]["dtype"]) / 1e12
    return {"dense": rate, "sparse": 2 * rate, "use": "dense"}


FIELDS = {
    "vocab": padding, "question": promise, "candidates": widths, "N": multiples, "blocks": blocks,
    "arch": heads, "weights_GB": weights, "weights_GiB": weights, "bandwidth_GBs": bandwidths,
    "hf_config": decode_of_config, "gpu": peak,
}  # fmt: skip
