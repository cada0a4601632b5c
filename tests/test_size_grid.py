"""Sizes from 0.1 B to 1 T: every front is long, exact, undominated and legal for a runtime."""

import pytest

from scantling.costs.cache import kv_cache
from scantling.costs.count import parameters
from scantling.search import Budget, budget, candidate, design
from scantling.search.space import list_legal
from scantling.spec import check, has, read

DENSE = (0.1, 0.5, 1, 3, 7, 13, 34, 70, 200, 400, 1000)
SPARSE = ((30, 3), (235, 22), (671, 37), (1000, 32))
"""Total and active billions: 30B-A3B, 235B-A22B, 671B-A37B, 1T-A32B."""

VLLM_HEAD_WIDTHS = {32, 64, 80, 96, 112, 120, 128, 160, 192, 224, 256}
"""Head sizes that vLLM's paged and flash attention are built for."""
LONG = 10


@pytest.fixture(scope="module", params=DENSE, ids=lambda b: f"{b}B")
def front(request):
    return design(params=request.param * 1e9, runtime="vllm", baselines=())


def objectives(c):
    """Loss with the upper prior, days, KV bytes a token, time per token, all of one spec."""
    return (c.loss_upper, c.days, float(c.kv_bytes_per_token), float(c.decode.value_s))


def undominated(rows):
    return not any(
        a != b and all(x <= y for x, y in zip(a, b, strict=True)) for a in rows for b in rows
    )


def test_a_front_has_ten_shapes_and_more(front):
    assert len(front.candidates) >= LONG


def test_every_count_is_built_and_lies_within_half_a_percent(front):
    for c in front.candidates:
        check(c.spec)
        total = parameters(c.spec).total
        assert abs(total / front.budget.params - 1) <= front.budget.tolerance
        assert total == c.counted.total


def test_no_shape_of_a_front_is_dominated_when_each_is_priced_alone(front):
    again = [candidate(c.spec, front.budget) for c in front.candidates]
    assert undominated([objectives(c) for c in again])


def test_every_shape_keeps_the_rules_of_its_size(front):
    """Whole groups, heads over a node, full tiles, kernels for the head width."""
    b = front.budget
    known: dict[int, set[tuple[int, ...]]] = {}
    for c in front.candidates:
        d = c.dims()
        assert d["n_head"] % d["n_kv_head"] == 0
        assert d["d_head"] in VLLM_HEAD_WIDTHS
        assert d["d_model"] % b.multiple == d["d_ff"] % b.multiple == 0
        if d["d_model"] not in known:
            rows = list_legal(d["d_model"], b.tp, b)
            known[d["d_model"]] = {(r["d_head"], r["n_head"], r["n_kv_head"]) for r in rows}
        assert (d["d_head"], d["n_head"], d["n_kv_head"]) in known[d["d_model"]]


def test_limits_on_costs_hold_on_the_whole_front():
    """Half-way between the cheapest and the dearest of the free front, for each cost at once."""
    free = design(params=1e9, baselines=())
    rows = [objectives(c) for c in free.candidates]
    days, kv, decode = (
        (min(column) + max(column)) / 2 for column in list(zip(*rows, strict=True))[1:]
    )
    tight = design(params=1e9, baselines=(), days=days, kv_bytes_per_token=int(kv), tpot_s=decode)
    assert tight.feasible
    for c in tight.candidates:
        assert c.days <= days
        assert c.decode.value_s <= decode
        assert kv_cache(c.spec).bytes_per_token <= kv


@pytest.mark.parametrize(("total", "active"), SPARSE, ids=lambda b: f"{b}B")
def test_a_mixture_of_experts_hits_both_its_sizes(total, active):
    """The total within 0.5 %, what a token passes within 2 %, ten shapes, none dominated."""
    b = budget(params=total * 1e9, active=active * 1e9, runtime="vllm")
    front = design(b, baselines=())
    if not front.feasible or not has(front.chosen.spec, "n_expert"):
        pytest.skip("the space has no experts yet")
    assert len(front.candidates) >= LONG
    for c in front.candidates:
        check(c.spec)
        counted = parameters(c.spec)
        assert abs(counted.total / b.params - 1) <= b.tolerance
        assert abs(counted.active / b.active - 1) <= b.active_tolerance
        assert read(c.spec, "top_k") <= read(c.spec, "n_expert")
    assert undominated([objectives(candidate(c.spec, b)) for c in front.candidates])
    assert isinstance(b, Budget)
