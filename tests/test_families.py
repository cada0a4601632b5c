"""Families of shapes: experts, latent attention, windows, hybrids: counted and found exactly."""

import functools
import itertools
import json
import math
import random

import moocore
import numpy as np
import pytest
from msgspec.structs import replace

from scantling import catalog
from scantling.costs.cache import kv_cache
from scantling.costs.count import attention_parameters, mlp_parameters, parameters
from scantling.costs.deployment import cuts, valid_tp
from scantling.costs.runtimes import runtime
from scantling.errors import FieldError
from scantling.formats import hf
from scantling.hardware import chip
from scantling.report.shape_cells import ffn_cell
from scantling.report.splits import price_splits
from scantling.report.text import console, print_front
from scantling.search import Range, budget, design
from scantling.search.axis import along
from scantling.search.candidate import candidate, findings, hf_config, to_json
from scantling.search.explain import explain
from scantling.search.forms import count, forms
from scantling.search.objectives import Costs
from scantling.search.space import space
from scantling.search.sweep import sweep
from scantling.spec import (
    Block,
    Branch,
    Dense,
    Experts,
    GatedDelta,
    GroupedAttention,
    LatentAttention,
    Layer,
    Mamba2,
    Norm,
    QKNorm,
    Rope,
    Router,
    Run,
    SharedExpert,
    Spec,
    Stack,
    Window,
    check,
    dimensions,
    read,
    vary,
)
from scantling.spec.plan import Plan

KINDS = {
    "experts": {"params": 2 * 10**9, "active": 4 * 10**8, "vocab_size": 32_000},
    "latent": {"params": 10**9, "mixer": "mla", "vocab_size": 32_000},
    "latent with experts": {"params": 3 * 10**9, "active": 6 * 10**8, "mixer": "mla",
                            "vocab_size": 32_000},
    "windows": {"params": 4 * 10**8, "layout": "5:1", "vocab_size": 32_000},
    "windows with experts": {"params": 2 * 10**9, "active": 4 * 10**8, "layout": "3:1",
                             "vocab_size": 32_000},
    "hybrid": {"params": 10**9, "mixer": "hybrid", "vocab_size": 32_000},
    "hybrid with experts": {"params": 4 * 10**9, "active": 5 * 10**8, "mixer": "hybrid",
                            "vocab_size": 32_000},
    "mamba": {"params": 10**9, "mixer": "mamba2", "vocab_size": 32_000},
    "mamba with experts": {"params": 4 * 10**9, "active": 5 * 10**8, "mixer": "mamba2",
                           "vocab_size": 32_000},
    "vocabularies": {"params": 10**8, "listed": {"vocab_size": (8192, 32_000)}},
}  # fmt: skip

BESIDE = {
    "encoder-decoder": {"params": 25 * 10**7, "kind": "encoder-decoder", "vocab_size": 32_128,
                        "listed": {"encoder_ratio": (1, 2, 12)}},
}  # fmt: skip
"""No law prices these, so cost alone thins their front."""


SCHEDULED = {"schedule": {"params": 10**9, "vocab_size": 32_000, "schedule": "linear-ffn:0.5-1.5"}}
"""No Hugging Face type says these."""
COUNTED = KINDS | BESIDE | SCHEDULED


@functools.cache
def front_of(kind):
    return design(**COUNTED[kind], baselines=())


# ---------------------------------------------------------------- counts


@pytest.mark.parametrize("kind", COUNTED)
def test_the_linear_forms_of_a_family_are_the_counts_of_each_shape(kind):
    """Total, active, feed-forward, attention and KV bytes, of shapes drawn from every family."""
    b = budget(**COUNTED[kind])
    tried = space(b)
    draw = random.Random(0)
    seen = 0
    for index, family in enumerate(tried.families):
        if not len(family.counts):
            continue
        row = np.array([draw.randrange(len(family.counts)) for _ in range(12)])
        nth = np.array([draw.randrange(int(family.counts[r])) for r in row])
        depth = tried.depths[family.first[row] + nth]
        found = count(family, forms(family, b), index, row, depth, b)
        dims = found.dims(np.arange(len(row)))
        for i in range(len(row)):
            spec = check(vary(family.spec, **{name: int(v[i]) for name, v in dims.items()}))
            p = parameters(spec)
            assert (found.total[i], found.active[i]) == (p.total, p.active)
            assert (found.mlp[i], found.attention[i]) == (mlp_parameters(p),
                                                          attention_parameters(p))  # fmt: skip
            assert found.kv[i] == kv_cache(spec, 1, b.serve_context).bytes
            seen += 1
    assert seen >= 12


@pytest.mark.parametrize("kind", KINDS | SCHEDULED)
def test_every_shape_of_a_front_is_of_the_size_and_kind_asked_for(kind):
    front = front_of(kind)
    b = front.budget
    assert len(front.candidates) >= 10
    for c in front.candidates:
        spec = check(c.spec)
        p = parameters(spec)
        assert abs(p.total / b.params - 1) <= b.tolerance
        if b.active is not None:
            assert abs(p.active / b.active - 1) <= b.active_tolerance
        assert ("n_expert" in dimensions(spec)) == b.moe
        assert ("kv_rank" in dimensions(spec)) == (b.mixer == "mla")
        states = {"n_value_head", "n_ssm_head"} & {*dimensions(spec)}
        assert bool(states) == (b.mixer in {"hybrid", "mamba2"})
        assert b.mixer != "mamba2" or states == {"n_ssm_head"}
    assert len({c.name for c in front.candidates}) == len(front.candidates)


@pytest.mark.oracle
@pytest.mark.parametrize("kind", KINDS | BESIDE)
def test_transformers_builds_shapes_of_every_family_and_counts_the_same(kind, tmp_path):
    """Of each front the first, the choice and the last, built on the meta device."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    front = front_of(kind)
    assert all(hf_config(c.spec) is not None for c in front.candidates)
    for c in (front.candidates[0], front.chosen, front.candidates[-1]):
        config = hf_config(c.spec)
        assert parameters(hf.read(config).spec) == parameters(c.spec)
        (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
        own = transformers.AutoConfig.from_pretrained(tmp_path)
        with torch.device("meta"):
            auto = transformers.AutoModelForCausalLM
            auto = auto if c.spec.encoder is None else transformers.AutoModelForSeq2SeqLM
            model = auto.from_config(own)
            if c.spec.encoder is not None:  # transformers 5 ties T5 whatever its config says
                model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
        assert sum(p.numel() for p in model.parameters()) == c.counted.total


def test_layers_that_end_within_a_cycle_are_written_as_they_are():
    """16 layers of five local to one global read as a list of runs: the same layers in order."""
    b = budget(params=10**8, layout="5:1")
    spec = vary(next(f for f in space(b).families if len(f.counts)).spec, n_layer=16, d_model=512,
                n_head=8, n_kv_head=4, d_head=64, d_ff=2048)  # fmt: skip
    again = hf.read(hf.write(spec)).spec
    assert again.decoder.expand() == spec.decoder.expand()
    assert parameters(again) == parameters(spec)


# ---------------------------------------------------------------- brute force


def layer(name, mixer, ffn):
    return Layer(name, (Block((Branch(mixer),), pre=Norm()), Block((Branch(ffn),), pre=Norm())))


def model(b, D, kinds, layout):
    return Spec(d_model=D, vocab_size=b.vocab_size, decoder=Stack(kinds, layout), tied=True)


def heads(D, h):
    """H h/D from 0.75 to 1.5, K dividing H at most twice, from four KV heads or all of fewer."""
    for H in range(1, D):
        if 0.75 <= H * h / D <= 1.5:
            yield from ((H, K) for K in range(min(4, H), H + 1) if H % K == 0 and H // K <= 2)


def experts(b):
    """One shared expert and one dense layer as wide as a token's experts; E 8 or 16, k 2 or 4."""
    router = Router("sigmoid", correction="buffer", n_expert_group=1, top_k_group=1)
    for D, L, E, k in itertools.product((256, 320, 384), range(5, 9), (8, 16), (2, 4)):
        for H, K in heads(D, 64):
            attention = GroupedAttention(H, K, 64, position=Rope())

            def spec(F, D=D, L=L, E=E, k=k, attention=attention):
                ffn = Experts(E, k, F, router=router, shared=SharedExpert(F))
                kinds = (layer("dense", attention, Dense((k + 1) * F)),
                         layer("moe", attention, ffn))  # fmt: skip
                return model(b, D, kinds, (Run(("dense",), 1), Run(("moe",), L - 1)))

            yield spec


def latent(b):
    """The latent is 4 h, rotary keys h/2, the rank of queries D/2 in steps of 128."""
    for D, L in itertools.product((256, 320, 384), range(6, 15)):
        for H in range(1, D):
            if 0.75 <= H * 64 / D <= 1.5:
                rank = 128 * -(-D // 256)
                attention = LatentAttention(H, 256, 64, 32, 64, rank, position=Rope())

                def spec(F, D=D, L=L, attention=attention):
                    return model(
                        b, D, (layer("layer", attention, Dense(F)),), (Run(("layer",), L),)
                    )

                yield spec


def windows(b):
    """Two layers with a window of 512 to one without."""
    for D, L in itertools.product((256, 320, 384), range(6, 15)):
        for H, K in heads(D, 64):
            full = GroupedAttention(H, K, 64, position=Rope())
            local = GroupedAttention(H, K, 64, position=Rope(), span=Window(512))

            def spec(F, D=D, L=L, full=full, local=local):
                kinds = (layer("local", local, Dense(F)), layer("global", full, Dense(F)))
                return model(b, D, kinds, (Run(("local", "local", "global"), L),))

            yield spec


def hybrid(b):
    """Three gated delta layers to one of gated attention; D/128 key heads, twice as many values."""
    for D, L in itertools.product((256, 384), range(4, 13)):
        for H, K in heads(D, 64):
            attention = GroupedAttention(H, K, 64, position=Rope(fraction=0.25), gate="element",
                                         qk_norm=QKNorm("head"))  # fmt: skip
            delta = GatedDelta(D // 128, 2 * (D // 128), 128, 128, 4)

            def spec(F, D=D, L=L, attention=attention, delta=delta):
                kinds = (layer("delta", delta, Dense(F)), layer("attention", attention, Dense(F)))
                return model(b, D, kinds, (Run((*["delta"] * 3, "attention"), L),))

            yield spec


def mamba(b):
    """Three Mamba-2 layers to one of attention; twice the width in heads of 64, a state of 128."""
    for D, L in itertools.product((256, 384), range(4, 13)):
        for H, K in heads(D, 64):
            attention = GroupedAttention(H, K, 64, position=Rope(fraction=0.5))
            state = Mamba2(2 * D, D // 32, n_group=1, d_state=128, d_conv=4)

            def spec(F, D=D, L=L, attention=attention, state=state):
                kinds = (layer("state", state, Dense(F)), layer("attention", attention, Dense(F)))
                return model(b, D, kinds, (Run((*["state"] * 3, "attention"), L),))

            yield spec


def schedule(b):
    """Four runs of equally many layers, 3, 5, 7 and 9 units of 64 wide: 0.5 to 1.5 of the mean."""
    for D, n in itertools.product((256, 320, 384), (2, 3)):
        for H, K in heads(D, 64):
            attention = GroupedAttention(H, K, 64, position=Rope())

            def spec(F, D=D, n=n, attention=attention):
                kinds = tuple(layer(f"run{w}", attention, Dense(w * F)) for w in (3, 5, 7, 9))
                return model(b, D, kinds, tuple(Run((kind.name,), n) for kind in kinds))

            yield spec


FREE = {"attention_width_ratio": Range(0.75, 1.5), "aspect": Range(1, 1000)}
SMALL = {"vocab_size": 8192, "tied": True, "multiple": 64}
REDUCED = {
    "experts": (experts, {
        **SMALL, "tolerance": 0.05, "params": 40_000_000, "active": 14_000_000,
        "active_tolerance": 0.2,
        "fixed": {"d_head": 64, "n_shared": 1, "n_dense": 1},
        "listed": {"n_expert": (8, 16), "top_k": (2, 4), "d_model": (256, 320, 384)},
        "bounded": {**FREE, "n_layer": Range(5, 8), "kv_group": Range(1, 2),
                    "active_share": Range(0.01, 1), "expert_width_ratio": Range(0.1, 8),
                    "active_width_ratio": Range(0.1, 32)},
    }),
    "latent": (latent, {
        **SMALL, "params": 15_000_000, "mixer": "mla", "fixed": {"d_nope": 64},
        "listed": {"d_model": (256, 320, 384)},
        "bounded": {**FREE, "n_layer": Range(6, 14), "ffn_width_ratio": Range(1, 8)},
    }),
    "windows": (windows, {
        **SMALL, "params": 15_000_000, "layout": "2:1", "window": 512, "fixed": {"d_head": 64},
        "listed": {"d_model": (256, 320, 384)},
        "bounded": {**FREE, "n_layer": Range(6, 14), "kv_group": Range(1, 2),
                    "ffn_width_ratio": Range(1, 8), "mlp_attention_ratio": Range(0.1, 50)},
    }),
    "hybrid": (hybrid, {
        **SMALL, "tolerance": 0.02, "params": 15_000_000, "mixer": "gated-delta",
        "layout": "3:1",
        "multiple": 128,
        "fixed": {"d_head": 64}, "listed": {"d_model": (256, 384)},
        "bounded": {**FREE, "n_layer": Range(4, 12), "kv_group": Range(1, 2),
                    "ffn_width_ratio": Range(1, 8)},
    }),
}  # fmt: skip
REDUCED["schedule"] = (schedule, {
    **SMALL, "params": 15_000_000, "schedule": "linear-ffn:0.5-1.5", "tolerance": 0.15,
    "fixed": {"d_head": 64}, "listed": {"d_model": (256, 320, 384)},
    "bounded": {**FREE, "n_layer": Range(6, 14), "kv_group": Range(1, 2),
                "ffn_width_ratio": Range(1, 8), "mlp_attention_ratio": Range(0.1, 50)},
})  # fmt: skip
REDUCED["mamba"] = (mamba, REDUCED["hybrid"][1] | {"mixer": "mamba2"})


def best_width(spec, b):
    """The multiple of 64 (128) whose count comes nearest to the size: N(F) is linear."""
    base = parameters(spec(0)).total
    slope = parameters(spec(1)).total - base
    below = int((b.params - base) // (slope * b.multiple))
    return min((max(n, 1) * b.multiple for n in (below, below + 1)),
               key=lambda F: abs(base + slope * F - b.params))  # fmt: skip


def kept(spec, b):
    """Whether a shape keeps the limits that the reduced budgets leave on."""
    p = parameters(spec)
    if abs(p.total / b.params - 1) > b.tolerance:
        return False
    if b.active is not None:
        width = read(spec, "d_expert")
        passed = (read(spec, "top_k") + 1) * width / spec.d_model
        inside = 0.1 <= width / spec.d_model <= 8 and 0.1 <= passed <= 32
        return inside and abs(p.active / b.active - 1) <= b.active_tolerance
    mean = p.by_part["ffn"] / (3 * spec.d_model * spec.n_layer)  # F, of gated feed-forwards
    return 1 <= mean / spec.d_model <= 8


@pytest.mark.parametrize("kind", REDUCED)
def test_the_front_of_a_family_is_what_trying_every_shape_on_its_own_gives(kind):
    """The hypervolume is that of all shapes, and every point of it is found."""
    shapes, limits = REDUCED[kind]
    b = budget(**limits)
    tried = list(shapes(b))
    swept = sweep(space(b), b)
    assert swept.evaluated == len(tried)
    built = [spec(best_width(spec, b)) for spec in tried]
    feasible = [spec for spec in built if kept(spec, b)]
    assert swept.feasible == len(feasible) > 20
    values = np.array([
        [float(v) for v in Costs(spec, b).values().values()] for spec in feasible
    ])  # fmt: skip
    best = values[moocore.is_nondominated(values, keep_weakly=False)]
    found = swept.objectives
    assert np.sort(best, axis=0) == pytest.approx(np.sort(found, axis=0), rel=1e-9)
    worst = values.max(axis=0) * 1.01
    assert moocore.hypervolume(found, ref=worst) == pytest.approx(
        moocore.hypervolume(values, ref=worst), rel=1e-9
    )


@pytest.mark.parametrize("kind", ["experts", "latent with experts", "hybrid"])
@pytest.mark.parametrize("size", [999, 20_000])
def test_the_front_of_a_family_is_the_same_for_any_size_of_chunk(kind, size):
    b = budget(**KINDS[kind], bounded={"d_model": Range(1024, 1536)})
    whole, parts = sweep(space(b), b, 10**9), sweep(space(b), b, size)
    assert np.array_equal(parts.rows, whole.rows)
    assert np.array_equal(parts.objectives, whole.objectives)
    assert (parts.feasible, parts.removed) == (whole.feasible, whole.removed)


@pytest.mark.parametrize("kind", ["experts", "latent with experts"])
def test_mixtures_far_from_their_active_size_are_left_out_and_nothing_else_changes(kind):
    b = budget(**KINDS[kind])
    found, every = sweep(space(b), b), sweep(space(b), b, far=math.inf)
    assert np.array_equal(found.rows, every.rows)
    assert (found.feasible, found.evaluated) == (every.feasible, every.evaluated)
    active = next(name for name in found.removed if name.startswith("active"))
    assert found.removed[active] == every.removed[active]
    other = next(name for name in found.removed if name.startswith("active_width"))
    assert found.removed[other] < every.removed[other]  # of those left out nobody asks


def test_an_active_size_that_no_mixture_is_near_still_has_closest_shapes():
    b = budget(params="30B", active="29B")
    found = sweep(space(b), b)
    assert not found.feasible
    assert found.closest


# ---------------------------------------------------------------- axes


@pytest.mark.parametrize(
    ("axis", "values"),
    [("n_expert", (64, 96)), ("top_k", (2, 4)), ("d_expert", (384, 512)), ("n_layer", (16, 20)),
     ("d_model", (1024, 1280)), ("n_kv_head", (4, 8)), ("n_head", (16,)), ("d_head", (64,))],
)  # fmt: skip
def test_a_listed_axis_has_only_its_values(axis, values):
    front = design(**KINDS["experts"], listed={axis: values}, baselines=())
    assert front.feasible
    assert {read(c.spec, axis) for c in front.candidates} <= set(values)


def test_shared_experts_and_dense_layers_are_as_many_as_asked_for():
    front = design(
        params=8 * 10**9, active=10**9, baselines=(), fixed={"n_shared": 2, "n_dense": 3}
    )
    for c in front.candidates:
        d = dimensions(c.spec)
        assert d["d_shared"] == 2 * d["d_expert"]
        assert c.spec.decoder.layout[0] == Run(("dense",), 3)
        assert d["d_ff"] == (d["top_k"] + 2) * d["d_expert"]
    bare = design(params=8 * 10**9, active=10**9, baselines=(), fixed={"n_shared": 0})
    assert {"d_shared" in dimensions(c.spec) for c in bare.candidates} == {False}


def test_a_listed_vocabulary_is_an_axis():
    front = front_of("vocabularies")
    assert {c.spec.vocab_size for c in front.candidates} == {8192, 32_000}
    text = {c.spec.vocab_size: c.features.tokens for c in front.candidates}
    assert text[8192] == text[32_000] == front.budget.tokens  # the same text, in one vocabulary
    small, large = (Costs(vary(front.chosen.spec, vocab_size=v), front.budget).tokens
                    for v in (8192, 32_000))  # fmt: skip
    assert small > large  # more tokens to read it in
    one = budget(params=10**8, fixed={"vocab_size": 32_000})
    assert (one.vocab_size, one.fixed) == (32_000, {})


def test_ranks_are_set_by_rule_unless_asked_for():
    for c in front_of("latent").candidates:
        d = dimensions(c.spec)
        assert (d["kv_rank"], d["d_nope"], d["d_rope"], d["d_value"]) == (512, 128, 64, 128)
        assert d["q_rank"] >= d["d_model"] / 2
    asked = {"kv_rank": 256, "d_nope": 64}
    front = design(**KINDS["latent"], fixed=asked, baselines=())
    assert {(read(c.spec, "kv_rank"), read(c.spec, "d_nope")) for c in front.candidates} == {
        (256, 64)
    }


# ---------------------------------------------------------------- caches and tables


def test_a_layout_of_windows_pays_for_its_windows_and_a_sixth_of_the_context():
    """Of 6 n layers n keep S tokens and 5 n keep w: (1 + 5 w/S)/6 of what a full one keeps."""
    limits = {"params": 4 * 10**8, "vocab_size": 32_000, "serve_context": 32_768}
    full, local = budget(**limits), budget(**limits, layout="5:1", window=1024)
    dims = {"n_layer": 24, "d_model": 1024, "n_head": 16, "n_kv_head": 4, "d_head": 64}
    one, other = (
        candidate(vary(next(iter(space(b).families)).spec, **dims, d_ff=4096), b)
        for b in (full, local)
    )
    assert one.kv_bytes_per_token == one.kv_growth == 24 * 2 * 4 * 64 * 2
    assert other.kv_growth == one.kv_growth
    assert other.kv_bytes_per_token == one.kv_growth * (1 + 5 * 1024 / 32_768) / 6
    served = to_json(other)["serve"]
    assert served["kv_bytes_per_token"] == other.kv_growth
    assert served["kv_bytes"] == other.kv_bytes_per_token * 32_768


def test_a_limit_on_the_cache_of_a_token_counts_what_windows_leave_out():
    """Shapes that grow by more than the limit keep it at the serving context."""
    limits = {**KINDS["windows"], "window": 1024, "serve_context": 65_536}
    front = design(**limits, kv_bytes_per_token=16 * 1024, baselines=())
    assert front.feasible
    assert all(kv_cache(c.spec, 1, 65_536).bytes <= 2**30 for c in front.candidates)
    assert any(c.kv_growth > 16 * 1024 for c in front.candidates)


def test_the_table_says_the_width_a_token_passes_and_the_vocabulary(capsys):
    """Qwen3-30B-A3B passes 8 experts of 768 beside a width of 2048: F/D 3."""
    front = design(**KINDS["experts"], baselines=("qwen3-30b-a3b",))
    assert front.baselines[0].shape()["F/D"] == 8 * 768 / 2048
    for c in front.candidates:
        d = c.dims()
        width = d["top_k"] * d["d_expert"] + d.get("d_shared", 0)
        assert c.shape()["F/D"] == pytest.approx(width / d["d_model"], abs=1e-3)
    print_front(console(), front_of("vocabularies"), 4)
    table = capsys.readouterr().out
    assert "vocab   layers × width" in table
    assert "32,000 " in table
    assert "8,192 " in table


def test_a_step_of_the_experts_a_token_passes_says_that_it_leaves_the_active_size():
    chosen = front_of("experts").chosen
    for near in explain(chosen, "top_k").neighbours:
        assert any("active size" in text for text in near.breaks)


# ---------------------------------------------------------------- mixers with a state


def test_a_hybrid_is_searched_with_both_kinds_of_state():
    names = {name for name, _ in ((f.spec.decoder.kinds[0].name, f) for f in
                                  space(budget(**KINDS["hybrid"])).families)}  # fmt: skip
    assert names == {"gated_delta", "mamba2"}


@pytest.mark.parametrize("name", ["nemotron-h-8b", "nemotron-h-47b"])
def test_the_state_of_mamba_is_what_nemotron_h_has(name):
    """Twice the width in heads of 64 and 8 groups; its state is 128, at 8192 wide 256."""
    known = catalog.loaded(name).spec
    front = design(params=7 * 10**9, mixer="mamba2", baselines=())
    for spec in (known, *(c.spec for c in front.candidates)):
        d = dimensions(spec)
        assert d["d_inner"] == 2 * d["d_model"] == 64 * d["n_ssm_head"]
        assert d["n_group"] == 8


def test_heads_with_a_state_split_over_a_node():
    front = design(params=7 * 10**9, mixer="mamba2", baselines=())
    assert all(read(c.spec, "n_ssm_head") % 8 == 0 for c in front.candidates)


# ---------------------------------------------------------------- encoder-decoders


def test_the_structure_of_an_encoder_decoder_is_that_of_t5():
    """Flan-T5-base, 12 + 12 layers of 768, is 247,577,856 parameters."""
    (family,) = space(budget(params=25 * 10**7, kind="encoder-decoder", vocab_size=32_128)).families
    base = vary(family.spec, n_layer=12, n_encoder_layer=12, d_model=768, n_head=12, n_kv_head=12,
                d_head=64, d_ff=2048)  # fmt: skip
    assert parameters(base).total == 247_577_856
    assert hf.read(hf.write(base)).spec == base


def test_t5_is_on_the_front_of_its_own_size():
    """T5 v1.1 XL: 24 + 24 layers of 2048, 32 heads of 64, a feed-forward of 5120."""
    front = design(params=2_849_757_184, kind="encoder-decoder", vocab_size=32_128, baselines=())
    assert "24+24x2048-h64-32q32kv-f5120" in {c.name for c in front.candidates}


def test_layers_of_an_encoder_come_in_the_ratio_asked_for():
    front = design(**{**BESIDE["encoder-decoder"], "listed": {}}, fixed={"encoder_ratio": 3},
                   baselines=())  # fmt: skip
    assert front.feasible
    for c in front.candidates:
        d = c.dims()
        assert d["n_encoder_layer"] == 3 * d["n_layer"]
        assert abs(c.counted.total / 25e7 - 1) <= 0.005
        assert 42 <= d["d_model"] / ((d["n_layer"] + d["n_encoder_layer"]) / 2) <= 86


def test_no_loss_is_claimed_of_an_encoder_decoder(capsys):
    """No law was fitted to them; what was published of the split is printed (kasai2020)."""
    front = front_of("encoder-decoder")
    assert to_json(front.chosen, front.candidates[-1])["loss"] is None
    assert len(front.groups) == 1
    assert all(n.loss is None for n in explain(front.chosen, "d_ff").neighbours)
    assert "NOT-PRICED" in {one["code"] for one in findings(front.chosen)}
    print_front(console(), front, 4)
    out = capsys.readouterr().out
    assert "±: days" in out
    assert "Δ loss is" not in out
    assert "34.71" in out


def test_a_shallow_decoder_is_faster_and_keeps_less():
    """24 + 2 layers against 9 + 9: each new token passes the decoder alone (kasai2020)."""
    rows = price_splits(budget(**{**BESIDE["encoder-decoder"], "listed": {}}))
    assert len(rows) == 5
    even, deep = rows[0], rows[-1]
    assert even.dims()["n_layer"] == even.dims()["n_encoder_layer"]
    assert deep.dims()["n_encoder_layer"] == 12 * deep.dims()["n_layer"]
    assert float(deep.decode.value_s) < 0.7 * float(even.decode.value_s)
    assert deep.kv_bytes_per_token < even.kv_bytes_per_token


@pytest.mark.parametrize(
    "more", [{"mixer": "mla"}, {"active": 10**8}, {"pp": 2}, {"layout": "5:1"}, {"beat": "gpt2"}]
)
def test_what_is_not_worked_out_beside_an_encoder_is_refused(more):
    with pytest.raises(FieldError, match="beside an encoder"):
        budget(params=10**9, kind="encoder-decoder", **more)


def test_a_field_that_follows_a_rule_is_explained_by_its_own_value_alone():
    """Its depth follows the ratio: a search with another value of it would be the same search."""
    (row,) = along(front_of("encoder-decoder"), "n_encoder_layer")
    assert row.given
    assert len(along(front_of("windows"), "window")) > 4


# ---------------------------------------------------------------- widths over depth


def test_widths_of_a_schedule_go_in_equal_steps_over_equal_runs():
    """0.5 to 1.5 of the mean in four runs is 3, 5, 7 and 9 sixths."""
    front = front_of("schedule")
    for c in front.candidates:
        widths = [read(replace(c.spec, decoder=replace(c.spec.decoder, layout=(run,))), "d_ff")
                  for run in c.spec.decoder.layout]  # fmt: skip
        unit = widths[0] // 3
        assert widths == [3 * unit, 5 * unit, 7 * unit, 9 * unit]
        assert len({run.n for run in c.spec.decoder.layout}) == 1
        assert c.dims()["d_ff"] == 6 * unit
        assert 2 <= 6 * unit / c.spec.d_model <= 5.4
    (told,) = (axis.why for axis in front.axes if axis.name == "schedule")
    assert "the loss does not see it" in told


def test_a_schedule_may_have_wide_ends_and_a_narrow_middle():
    """Through 1.5 at both ends and 0.5 at half the depth, a third and two thirds of it are 5/6."""
    front = design(**{**SCHEDULED["schedule"], "schedule": "linear-ffn:1.5-0.5-1.5"}, baselines=())
    assert front.feasible
    for c in front.candidates:
        widths = [read(replace(c.spec, decoder=replace(c.spec.decoder, layout=(run,))), "d_ff")
                  for run in c.spec.decoder.layout]  # fmt: skip
        unit = widths[0] // 9
        assert widths == [9 * unit, 5 * unit, 5 * unit, 9 * unit]
        assert parameters(c.spec).total == pytest.approx(10**9, rel=0.005)
        assert c.dims()["d_ff"] == 7 * unit
        assert c.name.endswith(f"-f{9 * unit}to{5 * unit}to{9 * unit}")
        assert ffn_cell(c.spec) == f"{9 * unit:,} to {5 * unit:,} to {9 * unit:,}"


SCHEDULES = [
    ({"schedule": "linear-ffn:1-2-3-4"}, "linear-ffn:0.5-1.5"),
    ({"schedule": "linear:0.5-1.5"}, "linear-ffn:0.5-1.5"),
    ({"schedule": "linear-ffn:0.5"}, "linear-ffn:0.5-1.5"),
    ({"schedule": "linear-ffn:a-b"}, "no number"),
    ({"schedule": "linear-ffn:0-2"}, "outside 0.1 to 10"),
    ({"schedule": "linear-ffn:0.501-1.5"}, "too fine"),
    ({"schedule": "linear-ffn:0.5-1.5", "mixer": "mla"}, "mixer mla"),
    ({"schedule": "linear-ffn:0.5-1.5", "fixed": {"d_ff": 4096}}, "several widths"),
]


@pytest.mark.parametrize(("given", "says"), SCHEDULES)
def test_a_schedule_that_makes_no_sense_is_one_line(given, says):
    with pytest.raises(FieldError, match=says):
        budget(params=10**9, **given)


# ---------------------------------------------------------------- legality


@pytest.mark.parametrize(
    "name", ["llama.cpp", "sglang", "tensorrt-llm", "transformers", "vllm", "megatron"]
)
@pytest.mark.parametrize("kind", [{"params": 7 * 10**9}, {"params": 7 * 10**9, "mixer": "mla"}])
def test_every_shape_runs_on_the_runtime_that_was_named(name, kind):
    front = design(**kind, runtime=name, baselines=())
    assert front.feasible
    place = chip("h100-sxm")
    assert all(runtime(name).runs(c.spec, place) for c in front.candidates)


def test_a_runtime_refuses_heads_its_kernels_have_not():
    """TensorRT-LLM lists 192, llama.cpp's tensor cores 256 but not 192; both refuse 72."""
    place = chip("h100-sxm")
    assert runtime("tensorrt-llm").takes(place, 192, 192)
    assert not runtime("llama.cpp").takes(place, 192, 192)
    assert not runtime("tensorrt-llm").takes(place, 72, 72)
    assert not runtime("flashinfer").takes(place, 72, 72)
    assert runtime("vllm").takes(place, 72, 72)  # 0.33: FlashAttention's multiples of 8
    wide = design(params=7 * 10**9, runtime="llama.cpp", baselines=(), fixed={"d_head": 192})
    assert not wide.feasible


@pytest.mark.parametrize(
    ("kind", "quant", "tp"),
    [({"params": 7 * 10**9}, "fp8-block", 8), ({"params": 7 * 10**9}, "awq-int4", 4),
     ({"params": 3 * 10**10, "active": 3 * 10**9}, "fp8-block", 4)],
)  # fmt: skip
def test_groups_and_blocks_stay_whole_on_every_rank(kind, quant, tp):
    front = design(**kind, quant=quant, tp=tp, baselines=())
    assert len(front.candidates) >= 10
    for c in front.candidates:
        assert tp in valid_tp(c.spec, quant)
        assert all(cut.ok for cut in cuts(c.spec, quant, Plan(tp=tp)))


def test_stages_and_expert_ranks_divide_what_they_split():
    front = design(params=3 * 10**10, active=3 * 10**9, pp=4, ep=16, baselines=())
    assert front.feasible
    for c in front.candidates:
        assert c.spec.n_layer % 4 == 0
        assert read(c.spec, "n_expert") % 16 == 0


# ---------------------------------------------------------------- sizes and errors


def test_a_mixture_without_an_active_size_takes_the_share_known_models_have():
    b = budget(params="100B", moe=True)
    assert 0.03 < b.active / b.params < 0.25  # 3.2 % (Kimi K2) to 28 % (Mixtral)
    assert any(text.startswith("active: ") for text in b.assumed)


@pytest.mark.parametrize(
    "given", [{"days": 30, "gpus": 64, "moe": True}, {"days": 30, "gpus": 1024, "active": "3B"}]
)
def test_days_on_chips_size_a_mixture_that_can_be_trained_in_them(given):
    front = design(budget(**given), baselines=())
    assert front.feasible
    assert all(0.5 * given["days"] < c.days <= given["days"] for c in front.candidates)


def test_flops_count_what_a_token_passes():
    """6 N D with the active 3 B: 1.8e22 FLOPs are 1e12 tokens."""
    assert budget(params="30B", active="3B", flops=1.8e22).tokens == 10**12


WRONG = [
    ({"params": 10**9, "mixer": "mlp"}, "mixer", "use gqa, mla, hybrid, gated-delta, mamba2"),
    ({"params": 10**9, "layout": "5-1"}, "layout", "5:1"),
    ({"params": 10**9, "layout": "5:1", "mixer": "mla"}, "layout", "latent attention is full"),
    ({"params": 10**9, "window": 512}, "window", "give a layout"),
    ({"params": 10**9, "active": 2 * 10**9}, "active", "below the 1,000,000,000"),
    ({"params": 10**9, "fixed": {"n_expert": 8}}, "n_expert", "without experts"),
    ({"params": 10**9, "mixer": "mla", "fixed": {"d_head": 64}}, "d_head", "with mixer mla"),
    ({"params": 10**9, "ep": 8}, "ep", "needs experts"),
    ({"params": 10**9, "runtime": "vlm"}, "runtime", "did you mean vllm"),
    ({"params": 10**9, "quant": "fp9-block"}, "quant", "did you mean"),
    ({"params": 10**9, "pp": 3, "fixed": {"n_layer": 32}}, "pp", "use 2 or 4"),
    ({"params": 10**9, "listed": {"n_layer": (8, 9)}, "fixed": {"n_layer": 8}}, "n_layer", "both"),
    ({"params": 10**9, "listed": {"d_model": (0, 512)}}, "d_model", "must lie between"),
]


@pytest.mark.parametrize(("given", "path", "says"), WRONG)
def test_a_kind_or_a_limit_that_makes_no_sense_is_one_line(given, path, says):
    with pytest.raises(FieldError) as caught:
        budget(**given)
    assert caught.value.path == path
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
