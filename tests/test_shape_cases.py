"""Shapes that cannot be, models that must fit, as people met them: each case's answer is ours."""

from __future__ import annotations

import re
from typing import Any

import pytest

from case_files import CASES, cases, holds, read
from scantling.costs.buffers import logits_bytes
from scantling.costs.cache import kv_cache
from scantling.costs.deployment import deployment, head_notes, head_widths
from scantling.costs.flash import takes
from scantling.costs.pages import longest_cached, page_pool, rank_cache_bytes, told_weights
from scantling.errors import FieldError
from scantling.formats import hf
from scantling.hardware import chip
from scantling.ops import tensors
from scantling.spec import Spec
from scantling.spec.plan import Plan
from scantling.spec.relations import head_fit, swapped

GB, GIB = 10**9, 2**30
Case = dict[str, Any]


@pytest.mark.parametrize("one", cases("shape_validity", "serving_fit"))
def test_a_case_met_in_public(one):
    """Every required key has the expected value; what must be mentioned is said by the product."""
    answers = ANSWERS[one["id"]](one["input"])
    said = " · ".join(answers.pop("says", ()))
    assert set(one["required"]) <= set(answers) | {"must_mention"}
    holds(one, **answers)
    for phrase in one["expected"].get("must_mention", ()):
        assert phrase in said


def refused(config: Case) -> FieldError:
    with pytest.raises(FieldError) as caught:
        hf.read(config)
    assert len(str(caught.value).splitlines()) == 1
    return caught.value


def arch(given: Case) -> Spec:
    """A spec of a case told in neutral names; what is not told does not matter to it."""
    names = {
        "d_model": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
        "n_kv_heads": "num_key_value_heads", "head_dim": "head_dim",
    }  # fmt: skip
    config = {names[k]: v for k, v in given.items() if k in names}
    return hf.read({"model_type": "llama", "vocab_size": 32000, **config}).spec


def shape(spec: Spec, leaf: str) -> list[int]:
    named = (t for t in tensors(spec) if t.part == "attention" and t.name.endswith(f".{leaf}"))
    return list(next(named).shape)


def numbers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", text)]


# ---------------------------------------------------------------- shapes


def docstring(given: Case) -> Case:
    error = refused(given["hf_config"])
    near = re.search(r"use (\d+) or (\d+)", error.hint)
    return {"valid": False, "nearest_heads": [int(n) for n in near.groups()]}


def slip(given: Case) -> Case:
    """The error proposes the exchange; read with it, the config is what was meant."""
    config = given["hf_config"]
    said = re.search(r"look swapped: (\w+) (\d+) of (\d+) and (\w+) (\d+)", str(refused(config)))
    heads, n_head, d_head, layers, n_layer = said.groups()
    fixed = hf.read(config | {heads: int(n_head), layers: int(n_layer)}).spec
    total = sum(t.size() for t in tensors(fixed) if t.alias is None and not t.buffer)
    return {
        "valid": False,
        "suggest": {"n_head": int(n_head), "n_layer": int(n_layer), "head_dim": int(d_head)},
        "params_after_fix": total,
    }


def floored(given: Case) -> Case:
    said = re.search(
        r"heads of (\d+) would leave (\d+) dimensions out", str(refused(given["hf_config"]))
    )
    return {"valid": False, "floor_head_dim": int(said[1]), "lost_dims": int(said[2])}


def projections(given: Case) -> Case:
    spec = read(given["hf_config"])
    return {leaf: shape(spec, leaf) for leaf in "qkvo"}


def wide_attention(given: Case) -> Case:
    spec = arch(given["arch"] | {"n_kv_heads": given["arch"]["n_heads"]})
    return {"valid": True, "q_proj": shape(spec, "q")}


def wide_value(given: Case) -> Case:
    spec = arch(given["arch"])
    return {"v_proj": shape(spec, "v"), "ratio": spec.n_head * spec.d_head / spec.d_model}


def pruned(given: Case) -> Case:
    told = given["arch"]
    error = refused({
        "model_type": "llama", "hidden_size": told["d_model"],
        "num_attention_heads": told["n_heads"], "num_key_value_heads": told["n_kv_heads"],
    })  # fmt: skip
    below = re.search(r"hidden_size (\d+) or", error.hint)
    return {"valid": False, "nearest_multiple_of_28x8_below": int(below[1])}


def flash(given: Case) -> Case:
    widths = [int(n) for n in re.findall(r"\b\d{2,3}\b", given["question"].partition(" for ")[0])]
    fa2: Case = {}
    for width in widths:
        found = takes("flash2", chip("a100"), width)
        same = takes("flash2", chip("h100"), width)
        assert found.verdict == same.verdict
        rule = re.search(r"multiples? of \d+", found.reason)
        assert rule is not None
        padded = f"needs padding to {rule[0].replace('multiples', 'multiple')}"
        fa2[f"hd{width}"] = {"yes": True, "no": False, "padded": padded}[found.verdict]
    first = chip("h100")
    taken = [w for w in range(8, 520, 8) if takes("flash3-first", first, w).verdict == "yes"]
    return {"fa2": fa2, "fa3_initial_supported": taken}


def absorbed(given: Case) -> Case:
    spec = read(given["hf_config"])
    key, value = next(w for w, where in head_widths(spec).items() if where.endswith(", decode"))
    assert any(", decode: head width 576" in n for n in head_notes(spec, chip(given["hardware"])))
    assert not any(", decode:" in n for n in head_notes(spec, chip("h100")))
    return {
        "fa3_hopper": takes("flash3", chip("h100"), key, value).verdict == "yes",
        "fa3_a100": takes("flash3", chip(given["hardware"]), key, value).verdict == "yes",
        "k_width": key, "v_width": value,
    }  # fmt: skip


def global_layers(given: Case) -> Case:
    one = chip(given["hardware"].partition(" (")[0])
    spec = arch({"d_model": 2048, "n_heads": 8, "n_kv_heads": 1, **given["arch"]})
    found = deployment(spec, one)
    wide = [w for w in found.warnings if str(given["arch"]["head_dim"]) in w]
    return {"verdict": "warn" if found.valid and wide else "error", "says": wide}


# ---------------------------------------------------------------- what fits


def one_sequence(given: Case) -> Case:
    spec = read(given["hf_config"])
    most = longest_cached(spec, given["available_GiB"] * GIB, kv_dtype=given["kv_dtype"])
    return {
        "kv": rank_cache_bytes(spec, given["max_len"], kv_dtype=given["kv_dtype"]) / GIB,
        "max_tokens": most.tokens,
    }


def per_rank(given: Case) -> Case:
    spec, plan = arch(given["arch"] | {"n_heads": 40}), Plan(tp=given["parallel"]["tp"])
    kv = given["kv_dtype"]
    most = longest_cached(spec, given["available_GiB"] * GIB, kv_dtype=kv, plan=plan)
    return {
        "kv_per_gpu": rank_cache_bytes(spec, given["max_len"], kv_dtype=kv, plan=plan) / GIB,
        "max_tokens": most.tokens,
    }


def pool_of(context: int) -> Any:
    def answer(given: Case) -> Case:
        spec, kv = read(given["hf_config"]), given["kv_dtype"]
        found = page_pool(spec, given["blocks"], given["block"], kv, context)
        return {
            "tokens": found.tokens, "kv": found.bytes / GIB, "missing": found.missing_bytes / GIB,
            "kv_total": found.bytes / GIB, "kv_8192": kv_cache(spec, 1, 8192, kv).bytes / GIB,
        }  # fmt: skip

    return answer


def only(answer: Any, *keys: str) -> Any:
    return lambda given: {k: answer(given)[k] for k in keys}


def all_experts(given: Case) -> Case:
    found = told_weights(
        given["total_params"], given["bytes_per_param"], given["memory_GB"] * GB,
        given["active_params"],
    )  # fmt: skip
    assert "all 125.1 B parameters must be resident" in found.text
    return {"weights": found.bytes / GB, "fits": found.fits}


def few_full_layers(given: Case) -> Case:
    spec = read(given["hf_config"])
    zero = kv_cache(spec, 1, 1, given["kv_dtype"]).state_bytes
    short, long = (
        kv_cache(spec, 1, n, given["kv_dtype"]).bytes - zero for n in given["ctx_options"]
    )
    return {"kv_8192": short / GIB, "kv_262144": long / GIB}


def growth(given: Case) -> Case:
    spec = read(given["hf_config"])
    measured = given["measured_GB"]
    kv = kv_cache(spec, 1, 30720).bytes / GB
    return {
        "kv_30720": kv,
        "logits_fp32_30720": logits_bytes(30720, spec.vocab_size) / GB,
        "kv_explains_all": kv >= measured["l30720"] - measured["l1"],
    }


ANSWERS = {
    "SH-01": docstring, "SH-03": slip, "SH-04": floored, "SH-06": projections,
    "SH-08": wide_attention, "SH-09": wide_value, "SH-11": pruned, "SH-13": flash,
    "SH-15": absorbed, "SH-16": global_layers, "SF-02": one_sequence, "SF-03": one_sequence,
    "SF-05": per_rank, "SF-07": only(pool_of(4096), "tokens", "kv", "missing"),
    "SF-08": only(pool_of(8192), "tokens", "kv_total", "kv_8192"), "SF-10": all_experts,
    "SF-11": few_full_layers, "SF-13": growth,
}  # fmt: skip


def test_every_case_of_these_kinds_is_asked():
    if CASES.exists():
        assert {p.values[0]["id"] for p in cases("shape_validity", "serving_fit")} == set(ANSWERS)


# ---------------------------------------------------------------- the same faults elsewhere


def test_a_slip_is_not_seen_where_heads_divide_or_layers_give_no_head():
    assert swapped(4096, 32, 32) == {}
    assert swapped(1024, 12, 24) == {}
    assert "swapped" not in str(refused({
        "model_type": "gpt_neox", "hidden_size": 1024, "num_attention_heads": 12,
    }))  # fmt: skip


def test_near_heads_and_widths_are_whole():
    for width in range(64, 4096, 200):
        for heads in (3, 6, 7, 12, 28, 48):
            if width % heads:
                found = head_fit(width, heads)
                assert found.floor * heads + found.lost == width
                assert all(width % n == 0 for n in found.heads)
                assert all(w % (8 * heads) == 0 for w in found.widths)


def test_a_layer_that_is_not_the_first_is_looked_at():
    """Gemma-4's global layers are wider than its windowed ones."""
    spec = hf.read({
        "model_type": "gemma4_text", "head_dim": 256, "global_head_dim": 512,
    }).spec  # fmt: skip
    assert {(256, 256), (512, 512)} <= set(head_widths(spec))
    notes = head_notes(spec, chip("rtx-5090"))
    assert [n for n in notes if "512" in n and "256 is" not in n]
