"""The search finds what trying every shape finds, and says what it left out."""

import contextlib
import itertools
import json
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scantling.costs.cache import kv_cache
from scantling.costs.count import parameters
from scantling.costs.estimate import decode_time, training_time
from scantling.costs.features import features
from scantling.errors import FieldError
from scantling.laws import bounds, law, prior_terms
from scantling.rules import lint
from scantling.search import Range, binding_axes, budget, design, findings, front_json, infeasible
from scantling.search.front import epsilons, fold, knee, non_dominated, thin
from scantling.search.space import HEAD_WIDTHS, TIE_ABOVE, list_legal, space, unpriced
from scantling.search.sweep import sweep
from scantling.spec import (
    Block,
    Branch,
    Dense,
    GroupedAttention,
    Layer,
    Norm,
    Rope,
    Run,
    Spec,
    Stack,
)

SMALL = {"params": 20_000_000, "vocab_size": 8192}
NARROW = {
    **SMALL, "multiple": 64, "fixed": {"d_head": 64},
    "bounded": {"d_model": Range(256, 512), "n_layer": Range(4, 24)},
}  # fmt: skip
"""1,302 shapes, few enough to try each on its own."""


# ---------------------------------------------------------------- every shape, one by one


def count(tied, L, D, h, H, K, F, vocab):
    """Table once or twice; a layer is q, o, k, v, three FFN matrices and two norms; a last norm."""
    layer = 2 * D * H * h + 2 * D * K * h + 3 * D * F + 2 * D
    return vocab * D * (1 if tied else 2) + L * layer + D


def nearest_width(b, tied, L, D, h, H, K):
    """The multiple of the alignment that comes nearest to the budget, at least one of it."""
    step = b.multiple * b.tp
    left = b.params - count(tied, L, D, h, H, K, 0, b.vocab_size)
    below = left // (3 * L * D * step)
    return min(
        (max(n, 1) * step for n in (below, below + 1)),
        key=lambda F: abs(count(tied, L, D, h, H, K, F, b.vocab_size) - b.params),
    )


def every_shape(b):
    """All (tied, L, D, h, H, K, F) of a budget, by the words of ``space``.

    Bounds: H h/D from 0.75 to 1.5, H/K to 8, K from 4, or all heads of a model of fewer; D/L
    from 8 to 320. These budgets are below a billion, so every depth counts and any H splits.
    """
    widths = b.bounded["d_model"]
    heads = [b.fixed["d_head"]] if "d_head" in b.fixed else HEAD_WIDTHS
    for tied, D, h in itertools.product((False, True), range(1, widths.high + 1), heads):
        if widths.low > D or D % b.multiple:
            continue
        for H in range(1, D):
            if not 0.75 <= H * h / D <= 1.5:
                continue
            for K in (K for K in range(min(4, H), H + 1) if H % K == 0 and H // K <= 8):
                for L in range(1, D + 1):
                    depths = b.bounded.get("n_layer")
                    if depths.low <= L <= depths.high if depths else 8 <= D / L <= 320:
                        yield tied, L, D, h, H, K, nearest_width(b, tied, L, D, h, H, K)


def mlp_attention(D, h, H, K, F):
    return 3 * D * F / (2 * D * H * h + 2 * D * K * h)


def limits(b, shape):
    """The limits a shape must keep, by the names the sweep gives them."""
    tied, _, D, h, H, K, F = shape
    table = D * b.vocab_size > TIE_ABOVE * b.params
    return {
        "params within ±0.50%": abs(count(*shape, b.vocab_size) / b.params - 1) <= 0.005,
        "K divides H": True,
        "mlp_attention_ratio 1 to 5": 1 <= mlp_attention(D, h, H, K, F) <= 5,
        "ffn_width_ratio 2 to 5.4": 2 <= F / D <= 5.4,
        "tying rule": tied == table,
    }


def spec_of(b, tied, L, D, h, H, K, F):
    """A Llama of these dimensions, written here."""
    attention = GroupedAttention(n_head=H, n_kv_head=K, d_head=h, position=Rope())
    blocks = (Block((Branch(attention),), pre=Norm()), Block((Branch(Dense(F)),), pre=Norm()))
    stack = Stack((Layer("layer", blocks),), (Run(("layer",), L),))
    return Spec(d_model=D, vocab_size=b.vocab_size, decoder=stack, tied=tied)


def objectives_of(b, spec):
    """Loss with the upper prior, days, KV bytes, decode time: by the functions for one model."""
    one = law(b.law)
    f = features(spec, float(b.tokens))
    loss = one.loss(f)
    train = training_time(spec, b.tokens, b.hardware, b.n_gpu, b.train_context)
    decode = decode_time(spec, b.hardware, b.serve_batch, b.serve_context)
    return (
        loss + prior_terms(f, loss, one.reference_ratio).upper, train.value_s / 86400,
        kv_cache(spec).bytes_per_token, decode.value_s,
    )  # fmt: skip


def dominates(a, b):
    return all(x <= y for x, y in zip(a, b, strict=True)) and a != b


def shapes_of(swept, structures):
    """The rows of a sweep as (tied, L, D, h, H, K, F)."""
    found = {}
    assert swept.columns == (
        "structure", "n_layer", "d_model", "d_head", "n_head", "n_kv_head", "d_ff", "total"
    )  # fmt: skip
    for (structure, L, D, h, H, K, F, _), value in zip(
        swept.rows.tolist(), swept.objectives.tolist(), strict=True
    ):
        found[structures[structure].tied, L, D, h, H, K, F] = value
    return found


TRIED = [
    NARROW,
    {**NARROW, "fixed": {}, "bounded": {"d_model": Range(256, 384), "n_layer": Range(6, 14)}},
    {**SMALL, "bounded": {"d_model": Range(256, 400)}, "serve_batch": 8, "serve_context": 2048},
]


@pytest.mark.parametrize("limits_given", TRIED, ids=["one head width", "all head widths", "rules"])
def test_the_front_is_what_trying_every_shape_on_its_own_gives(limits_given):
    b = budget(**limits_given)
    limits_of = {name: (bound.low, bound.high) for name, bound in bounds().items()}
    assert limits_of["attention_width_ratio"] == (0.75, 1.5)
    assert limits_of["n_kv_head"] == (4, None)
    assert limits_of["kv_group"] == (1, 8)
    assert limits_of["mlp_attention_ratio"] == (1, 5)
    assert limits_of["ffn_width_ratio"] == (2, 5.4)
    shapes = list(every_shape(b))
    kept = {shape: limits(b, shape) for shape in shapes}
    feasible = [shape for shape in shapes if all(kept[shape].values())]
    values = {}
    for shape in feasible:
        spec = spec_of(b, *shape)
        assert parameters(spec).total == count(*shape, b.vocab_size)
        values[shape] = objectives_of(b, spec)
    front = {s for s in feasible if not any(dominates(v, values[s]) for v in values.values())}

    tried = space(b)
    swept = sweep(tried, b)
    found = shapes_of(swept, tried.structures)
    rightly_tied = [keeps for keeps in kept.values() if keeps["tying rule"]]
    assert (swept.evaluated, swept.feasible) == (len(rightly_tied), len(feasible))
    assert len(feasible) > 20
    assert swept.considered >= len(shapes)
    for name in kept[shapes[0]].keys() - {"tying rule"}:
        assert swept.removed[name] == sum(not keeps[name] for keeps in rightly_tied), name
    assert set(found) == front
    for shape, value in found.items():
        assert value == pytest.approx(values[shape], rel=1e-9)


@pytest.mark.parametrize("size", [7, 1000, 16_384])
def test_the_front_is_the_same_for_any_size_of_chunk(size):
    b = budget(**NARROW)
    whole, parts = sweep(space(b), b, 10**9), sweep(space(b), b, size)
    assert np.array_equal(parts.rows, whole.rows)
    assert np.array_equal(parts.objectives, whole.objectives)
    counted = ("evaluated", "feasible", "removed")
    assert [getattr(parts, n) for n in counted] == [getattr(whole, n) for n in counted]


def test_the_closest_shapes_are_the_three_nearest():
    b = budget(**NARROW)
    misses = sorted(
        abs(count(*shape, 8192) / b.params - 1) for shape in every_shape(b)
        if limits(b, shape)["tying rule"]
    )  # fmt: skip
    found = [abs(shape["total"] / b.params - 1) for shape in sweep(space(b), b).closest]
    assert found == pytest.approx(misses[:3])


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_chunks_hold_every_shape_once_and_in_order(size):
    b = budget(**NARROW)
    tried = space(b)
    whole, parts = [], []
    for found, chunk in ((whole, 10**9), (parts, size)):
        for part in tried.chunks(chunk):
            family = tried.families[part.index]
            assert len(part.row) <= chunk
            columns = [part.depth, *(column[part.row] for column in family.rows.values())]
            found += [(part.index, *row) for row in np.stack(columns, axis=1).tolist()]
    assert parts == whole
    assert len(set(whole)) == len(whole) == tried.size


# ---------------------------------------------------------------- candidates keep every limit


def dims(front):
    return [c.dims() for c in front.candidates]


def test_tokens_nobody_gave_are_those_of_a_plan_and_say_of_which_parameters():
    """Twenty for each parameter that a token passes, as ``scantling plan`` assumes."""
    sparse, dense = budget(params="30B", active="3B"), budget(params="3B")
    assert sparse.tokens == dense.tokens == 60 * 10**9
    assert "tokens: 20 per active parameter" in sparse.assumed
    assert "tokens: 20 per parameter" in dense.assumed


def test_every_candidate_is_within_the_tolerance_and_counted_exactly():
    for more, tolerance in (({}, 0.005), ({"tolerance": 0.001}, 0.001),
                            ({"tied": True, "tolerance": 0.05}, 0.05)):  # fmt: skip
        front = design(**SMALL, **more)
        assert front.feasible
        for c in front.candidates:
            d = c.dims()
            by_hand = count(c.spec.tied, d["n_layer"], d["d_model"], d["d_head"], d["n_head"],
                            d["n_kv_head"], d["d_ff"], 8192)  # fmt: skip
            assert c.counted.total == by_hand
            assert abs(by_hand / 20_000_000 - 1) <= tolerance


@pytest.mark.parametrize(
    ("axis", "value"),
    [("n_layer", 9), ("d_model", 256), ("d_model", 320), ("d_head", 80), ("n_head", 6),
     ("n_kv_head", 2), ("d_ff", 1152)],
)  # fmt: skip
def test_a_fixed_axis_has_its_value_in_every_candidate(axis, value):
    front = design(**SMALL, fixed={axis: value}, multiple=64)
    assert front.feasible
    assert {d[axis] for d in dims(front)} == {value}


@pytest.mark.parametrize(
    ("axis", "low", "high"),
    [("n_layer", 7, 9), ("d_model", 256, 330), ("d_head", 90, 130), ("n_head", 5, 6),
     ("n_kv_head", 1, 3), ("d_ff", 900, 1300)],
)  # fmt: skip
def test_a_bounded_axis_lies_in_its_range_in_every_candidate(axis, low, high):
    front = design(**SMALL, bounded={axis: Range(low, high)}, multiple=64)
    assert front.feasible
    assert all(low <= d[axis] <= high for d in dims(front))


@pytest.mark.parametrize(
    ("ratio", "low", "high", "fixed"),
    [
        ("kv_group", 2, 3, {}), ("kv_group", 1.5, 4, {}), ("attention_width_ratio", 0.501, 0.7, {}),
        ("attention_width_ratio", 1, 1.2, {"n_head": 6}), ("attention_width_ratio", 1.6, 2, {}),
        ("mlp_attention_ratio", 5, 7, {}), ("ffn_width_ratio", 5.5, 6, {}), ("aspect", 40, 60, {}),
        ("aspect", 20, 45, {"n_layer": 10}), ("ffn_width_ratio", 3, 4, {"d_ff": 1152}),
        ("kv_group", 2, 2, {"n_kv_head": 2}),
    ],
)  # fmt: skip
def test_a_bounded_ratio_lies_in_its_range_in_every_candidate(ratio, low, high, fixed):
    """Also beyond the bound of the ratio itself, and where a fixed dimension opens its axis."""
    front = design(**SMALL, fixed=fixed, bounded={ratio: Range(low, high)}, multiple=64)
    assert front.feasible
    for c in front.candidates:
        found = {**ratios_of(c), "aspect": c.dims()["d_model"] / c.dims()["n_layer"]}
        assert low <= found[ratio] <= high
    (row,) = (row for row in binding_axes(front) if row["axis"] == ratio)
    assert (row["bounds"], row["opened"], row["binding"]) == ([low, high], True, False)


def depths_of(**given):
    tried = space(budget(vocab_size=32_000, **given))
    found = [(int(L), D / L) for part in tried.chunks() for L, D in
             zip(part.depth, tried.families[part.index].rows["d_model"][part.row], strict=True)
             ]  # fmt: skip
    return {L for L, _ in found}, min(a for _, a in found), max(a for _, a in found)


def test_depths_are_even_from_a_billion_parameters_up_unless_asked_for():
    assert any(L % 2 for L in depths_of(params=999_999_999)[0])
    assert not any(L % 2 for L in depths_of(params=10**9)[0])
    assert depths_of(params=10**9, fixed={"n_layer": 23})[0] == {23}
    assert depths_of(params=10**9, bounded={"n_layer": Range(20, 23)})[0] == {20, 21, 22, 23}


def test_width_over_depth_is_the_laws_range_or_that_of_peers():
    """Inside ×4 of the law's 1.77 B the law prices D/L; beyond it, or without r0, peers bound it.

    The middle half of known models of 70 B lies around Llama's 8192 / 80 = 102.
    """
    _, low, high = depths_of(params=7 * 10**9)
    assert 8 <= low < 8.5
    assert 310 < high <= 320
    for asked in ({"params": 7 * 10**10}, {"params": 10**9, "law": "chinchilla-2024"}):
        _, low, high = depths_of(**asked)
        assert 40 < low < high < 160
    _, low, high = depths_of(params=7 * 10**10)
    assert low < 8192 / 80 < high
    (row,) = (a for a in unpriced(budget(params=7 * 10**10)) if a.name == "aspect")
    assert low >= row.low
    assert high <= row.high
    assert "middle half" in row.why
    assert not [a for a in unpriced(budget(params=10**9)) if a.name == "aspect"]


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_parallelism_divides_the_heads_and_keeps_the_alignment_of_each_part(tp):
    """KV heads divide over the chips or are copied to them; F/tp is a multiple of 128."""
    front = design(params=300_000_000, vocab_size=8192, tp=tp)
    assert front.feasible
    for d in dims(front):
        assert d["n_head"] % tp == 0
        assert d["n_kv_head"] % tp == 0 or tp % d["n_kv_head"] == 0
        assert d["d_ff"] % (128 * tp) == 0
        assert d["d_model"] % 128 == 0


@pytest.mark.parametrize("tied", [False, True])
def test_tying_is_as_asked(tied):
    assert {c.spec.tied for c in design(**SMALL, tied=tied).candidates} == {tied}


def test_a_limit_between_the_best_and_the_worst_of_a_front_is_kept():
    free = design(**SMALL)
    days = sorted(c.days for c in free.candidates)
    kv = sorted(c.kv_bytes_per_token for c in free.candidates)
    decode = sorted(float(c.decode.value_s) for c in free.candidates)
    assert days[0] < days[-1]
    assert kv[0] < kv[-1]
    middle = len(days) // 2
    for name, limit, value in (
        ("days", days[middle], lambda c: c.days),
        ("gpu_hours", days[middle] * 24 * 8, lambda c: c.days * 24 * 8),
        ("kv_bytes_per_token", int(kv[middle]), lambda c: c.kv_bytes_per_token),
        ("tpot_s", decode[middle], lambda c: float(c.decode.value_s)),
    ):
        front = design(**SMALL, **{name: limit})
        assert front.feasible, name
        assert all(value(c) <= limit * (1 + 1e-12) for c in front.candidates), name
        assert sum(front.swept.removed.values()) > sum(free.swept.removed.values()), name


def test_the_rows_of_a_sweep_and_the_candidates_do_not_dominate_each_other():
    front = design(**SMALL)
    rows = [tuple(row) for row in front.swept.objectives.tolist()]
    assert len(rows) > 10
    assert not any(dominates(a, b) for a, b in itertools.permutations(rows, 2))
    shapes = shapes_of(front.swept, space(front.budget).structures)
    for c in front.candidates:
        d = c.dims()
        shape = (c.spec.tied, *(d[k] for k in ("n_layer", "d_model", "d_head", "n_head",
                                               "n_kv_head", "d_ff")))  # fmt: skip
        assert shapes[shape] == pytest.approx(objectives_of(front.budget, c.spec), rel=1e-9)
    losses = [c.loss_upper for c in front.candidates]
    assert losses == sorted(losses)


def test_a_search_says_the_same_twice_and_reports_every_shape():
    done = []
    first = design(**SMALL, progress=lambda n, total: done.append((n, total)))
    second = design(**SMALL)
    assert [c.spec for c in first.candidates] == [c.spec for c in second.candidates]
    assert first.choice == second.choice
    assert done == sorted(done)
    assert done[-1] == (first.swept.evaluated, first.swept.evaluated)


# ---------------------------------------------------------------- the choice


@pytest.mark.parametrize("given", [{"params": "125M", "vocab_size": 50_304}, {"params": "7B"}])
def test_the_choice_does_not_depend_on_the_number_of_chips_of_a_few_nodes(given):
    """Beyond those, chips wait for each other, and wide shapes wait less: a true difference."""
    chosen = [design(**given, n_gpu=n, baselines=()).chosen.spec for n in (1, 8, 64)]
    assert chosen == [chosen[0]] * 3


def test_the_choice_is_the_knee_of_the_whole_front_among_equal_losses():
    """Nearest the ideal point of all four objectives, each scaled by its range over the equal."""
    front = design(**SMALL)
    values = front.swept.objectives.tolist()
    best = min(row[0] for row in values)
    pool = [row for row in values if row[0] <= best + front.equal_within]
    low, high = [min(c) for c in zip(*pool, strict=True)], [max(c) for c in zip(*pool, strict=True)]

    def distance(row):
        return sum(((x - a) / (z - a)) ** 2 for x, a, z in zip(row, low, high, strict=True))

    found = objectives_of(front.budget, front.chosen.spec)
    assert found == pytest.approx(min(pool, key=distance), rel=1e-9)


def test_the_choice_is_among_the_shapes_whose_loss_is_equal():
    front = design(**SMALL)
    losses = [c.loss_upper for c in front.candidates]
    equal = [i for i, loss in enumerate(losses) if loss <= min(losses) + front.equal_within]
    assert list(front.equal) == equal
    assert front.choice in equal
    assert front.chosen is front.candidates[front.choice]
    assert front.equal_within > 0


@pytest.mark.parametrize(
    ("weight", "value"),
    [
        ("loss", lambda c: c.loss_upper), ("training_days", lambda c: c.days),
        ("kv_bytes_per_token", lambda c: c.kv_bytes_per_token),
        ("decode_s", lambda c: float(c.decode.value_s)),
    ],
)  # fmt: skip
def test_with_one_weight_the_choice_is_the_best_of_it(weight, value):
    front = design(**SMALL, weights={weight: 1.0})
    assert value(front.chosen) == min(map(value, front.candidates))


def ratios_of(c):
    """Every bounded quantity of a shape, by hand."""
    d = c.dims()
    D, H, K, h, F = (d[k] for k in ("d_model", "n_head", "n_kv_head", "d_head", "d_ff"))
    return {
        "kv_group": H / K, "n_kv_head": K, "d_head": h, "attention_width_ratio": H * h / D,
        "mlp_attention_ratio": mlp_attention(D, h, H, K, F), "ffn_width_ratio": F / D,
    }  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [
        SMALL, {"params": 125_000_000, "vocab_size": 50_304}, {**SMALL, "serve_batch": 64},
        {**SMALL, "bounded": {"d_ff": Range(1024, 1024), "d_model": Range(512, 512)}},
        {**SMALL, "weights": {"kv_bytes_per_token": 1.0}}, {**SMALL, "weights": {"loss": 1.0}},
        {**SMALL, "weights": {"training_days": 1.0}}, {**SMALL, "fixed": {"n_head": 8}},
    ],
)  # fmt: skip
def test_a_choice_on_a_bound_says_so(given):
    """DESIGN, section 4: a choice that lies on the bound of an unpriced axis says so."""
    front = design(**given)
    said = {row["axis"] for row in binding_axes(front) if row["binding"]}
    noted = [f["message"] for f in findings(front.chosen) if f["code"] == "ON-BOUND"]
    ratios = ratios_of(front.chosen)
    if ratios["kv_group"] == 1:  # a KV head for every query head is the end of the axis, no bound
        assert "kv_group" not in said
        del ratios["kv_group"]
    for axis, value in ratios.items():
        limit = bounds()[axis]
        on = any(edge is not None and math.isclose(value, edge, rel_tol=1e-3)
                 for edge in (limit.low, limit.high))  # fmt: skip
        if not limit.holds(value):
            assert any(f["code"] == "OUTSIDE" and f["message"].startswith(f"{axis} ")
                       for f in findings(front.chosen)), axis  # fmt: skip
        elif on:
            assert any(message.startswith(f"{axis} ") for message in noted), axis
            opened = {row["axis"] for row in binding_axes(front) if row["opened"]}
            assert axis in said | opened, axis


def test_four_kv_heads_are_the_least_of_their_axis_and_so_a_choice_with_four_says_so():
    """Fixing the heads at four leaves the KV heads at their bound of four."""
    front = design(**SMALL, fixed={"n_head": 4})
    (row,) = (row for row in binding_axes(front) if row["axis"] == "n_kv_head")
    assert (row["bounds"][0], row["value"], row["binding"]) == (4, 4, True)
    codes = {(f["code"], f["field"]) for f in findings(front.chosen)}
    assert ("ON-BOUND", "n_kv_head") in codes


def test_bounding_the_number_of_heads_does_not_run_to_a_corner_of_their_width():
    """Evidence on H h/D ends at 1.5; four to eight heads of width 256 on D 256 are 4 to 8."""
    front = design(**SMALL, bounded={"n_head": Range(4, 8)})
    assert all(bounds()["attention_width_ratio"].holds(c.features.attention_width_ratio)
               for c in front.candidates)  # fmt: skip


@pytest.mark.parametrize(
    ("field", "low", "high"), [("n_kv_head", 1, 2), ("n_head", 12, 16), ("d_ff", 1024, 2048)]
)
def test_an_opened_axis_has_bounds_of_its_own_quantity(field, low, high):
    """The choice lies in the bounds of each axis: a group of 4 is not between 1 and 2 KV heads."""
    front = design(**SMALL, bounded={field: Range(low, high)}, multiple=64)
    assert front.feasible
    for row in binding_axes(front):
        least, most = row["bounds"]
        if row["value"] is not None:
            inside = (least or 0) <= row["value"] <= (most or math.inf)
            assert inside or row["binding"], row["axis"]  # three heads keep three KV heads


def test_an_unpriced_axis_has_bounds_and_a_reason():
    front = design(**SMALL)
    rows = {row["axis"]: row for row in binding_axes(front)}
    searched = {axis: limit for axis, limit in bounds().items() if axis in rows}
    assert set(searched) == {"kv_group", "n_kv_head", "ffn_width_ratio", "mlp_attention_ratio",
                             "attention_width_ratio", "d_head"}  # fmt: skip
    for axis, limit in searched.items():
        assert rows[axis]["bounds"] == [limit.low, limit.high]
        assert rows[axis]["why"] == limit.reason
        assert rows[axis]["value"] == pytest.approx(ratios_of(front.chosen)[axis])
        assert limit.holds(rows[axis]["value"]) or front.chosen.dims()["n_head"] < 4


# ---------------------------------------------------------------- nothing feasible, nonsense asked


def test_a_limit_nothing_keeps_is_named_with_all_it_removed():
    """One byte a token: two KV heads of 64 alone are 512 bytes a layer."""
    front = design(**SMALL, kv_bytes_per_token=1)
    assert not front.feasible
    assert front.swept.removed["KV bytes per token"] == front.swept.evaluated
    assert [row["limit"] for row in infeasible(front)["binding"]] == ["KV bytes per token"]
    said = json.loads(json.dumps(front_json(front)))
    assert said["feasible"] is False
    assert said["removed"] == front.swept.removed
    assert said["closest"]


def test_a_size_no_shape_reaches_is_named_with_what_is_allowed_and_needed():
    """Two layers of width 128 and F 128 with the table of 8192 are 1.4 M: 20 M is out of reach."""
    front = design(**SMALL, fixed={"d_model": 128, "n_layer": 2, "d_ff": 128})
    assert not front.feasible
    (row,) = (r for r in infeasible(front)["binding"] if r["limit"].startswith("params"))
    assert row["allowed"] == 20_000_000
    nearest = max(count(tied, 2, 128, h, H, K, 128, 8192) for tied, h, H, K in
                  itertools.product((False, True), HEAD_WIDTHS, range(1, 4), range(1, 4))
                  if H * h <= 192 and K <= H)  # fmt: skip
    assert row["needed"] <= nearest < 2_500_000


def test_a_limit_of_the_cache_is_named_with_what_is_allowed_and_needed():
    (row,) = infeasible(design(**SMALL, kv_bytes_per_token=1))["binding"]
    assert row["allowed"] == 1
    assert row["needed"] >= 2 * 4 * 64 * 2  # one layer, four KV heads of 64, bf16


@pytest.mark.parametrize("given", [{"days": 1e-6}, {"gpu_hours": 1}, {"tpot_s": 1e-9}])
def test_a_limit_of_time_nothing_keeps_is_named(given):
    front = design(params=125_000_000, vocab_size=50_304, **given)
    assert not front.feasible
    ((name, limit),) = given.items()
    (row,) = infeasible(front)["binding"]
    assert row["allowed"] == limit
    reached = design(params=125_000_000, vocab_size=50_304, **{name: row["needed"] * 1.001})
    assert reached.feasible


@pytest.mark.parametrize(
    "given",
    [
        {"bounded": {"d_model": Range(100, 120)}}, {"bounded": {"d_head": Range(97, 127)}},
        {"tp": 8, "fixed": {"n_kv_head": 3}},
    ],
)  # fmt: skip
def test_a_space_without_shapes_says_why(given):
    """No multiple of 128 from 100 to 120, no head width from 97 to 127, K 3 over 8 chips."""
    with contextlib.suppress(FieldError):
        front = design(**{**SMALL, **given})
        assert not front.feasible
        assert infeasible(front)["binding"]


CONTRADICTIONS = [
    ({"params": 10**9, "tokens": 10**9, "flops": 10**22}, "flops", "contradicts"),
    ({}, "budget", "has no size"),
    ({"params": 0}, "params", "must be above zero"),
    ({**SMALL, "tokens": 0}, "tokens", "must be above zero"),
    ({**SMALL, "gpus": 0}, "gpus", "must be above zero"),
    ({**SMALL, "vocab_size": -1}, "vocab_size", "must be above zero"),
    ({"days": -3}, "days", "must be above zero"),
    ({"days": math.nan}, "days", "must be above zero"),
    ({"params": "7Q"}, "params", "unknown suffix"),
    ({"params": "7,5B"}, "params", "is not a number"),
    ({**SMALL, "train_context": "long"}, "train_context", "is not a number"),
    ({**SMALL, "vocabulary": 5}, "vocabulary", "is no limit of a budget"),
    ({**SMALL, "tolerance": 1.5}, "tolerance", "between 0 and 1"),
    ({**SMALL, "chip": "h1000"}, "gpu", "is not known"),
    ({**SMALL, "dtype": "bf61"}, "dtype", "is not known"),
    ({**SMALL, "fixed": {"n_heads": 4}}, "n_heads", "no axis of the search"),
    ({**SMALL, "fixed": {"n_layer": 0}}, "n_layer", ""),
    ({**SMALL, "bounded": {"n_layer": Range(9, 4)}}, "n_layer", "empty range"),
    ({**SMALL, "bounded": {"n_layer": Range(math.nan, 4)}}, "n_layer", "empty range"),
    ({**SMALL, "bounded": {"d_model": Range(1, math.inf)}}, "d_model", "empty range"),
    ({**SMALL, "fixed": {"kv_group": 4}}, "kv_group", "no axis of the search"),
    ({**SMALL, "fixed": {"n_layer": 4}, "bounded": {"n_layer": Range(3, 5)}}, "n_layer", "both"),
    ({**SMALL, "fixed": {"n_head": 6, "n_kv_head": 4}}, "n_kv_head", "must divide n_head 6"),
    ({**SMALL, "fixed": {"n_head": 6}, "tp": 4}, "tp", "must divide n_head 6"),
    ({**SMALL, "weights": {"speed": 1.0}}, "objective", "is not known"),
    ({**SMALL, "weights": {"loss": -1.0}}, "objective", "below 0"),
    ({"params": 10**16}, "params", "beyond every model"),
]


@pytest.mark.parametrize(("given", "path", "says"), CONTRADICTIONS)
def test_a_budget_that_contradicts_itself_is_an_error_that_says_how(given, path, says):
    with pytest.raises(FieldError) as caught:
        budget(**given)
    assert caught.value.path == path
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "given", [{"multiple": 0}, {"serve_batch": 0}, {"days": -1.0}, {"gpu_hours": 0.0},
              {"kv_bytes_per_token": 0}, {"tpot_s": -1.0}],
)  # fmt: skip
def test_a_limit_below_anything_is_an_error(given):
    with pytest.raises(FieldError):
        budget(**SMALL, **given)


# ---------------------------------------------------------------- budgets of FLOPs


def per_token(body, b):
    """Training FLOPs of a token for a body of width 64 L, so 12 L D² = 49,152 L³.

    6 for each weight of the body and the head, and 12 L D S for attention over S tokens.
    """
    depth = (body / 49_152) ** (1 / 3)
    head = b.vocab_size * 64 * depth
    return 6 * (body + head) + 12 * depth * 64 * depth * b.train_context


def total_of(body, b):
    """A body with its table, tied where two tables would be over 15 % of the parameters each."""
    table = b.vocab_size * 64 * (body / 49_152) ** (1 / 3)
    return body + (table if table > 0.15 * (body + 2 * table) else 2 * table)


BODIES = [10 ** (i / 500) for i in range(2500, 7001)]


def test_flops_and_tokens_give_the_size_that_costs_them():
    b = budget(flops=12 * 10**17, tokens=10**10)
    assert b.tokens == 10**10
    body = min(BODIES, key=lambda n: abs(per_token(n, b) * 10**10 / (12 * 10**17) - 1))
    assert abs(math.log10(b.params / total_of(body, b))) <= 1 / 40
    assert any(text.startswith("params: ") and "FLOPs buy" in text for text in b.assumed)


def test_flops_and_size_give_the_tokens():
    """6 N D: 1.2e18 FLOPs on 20 M parameters are 1e10 tokens."""
    b = budget(flops=12 * 10**17, params=20_000_000)
    assert (b.params, b.tokens) == (20_000_000, 10**10)


def test_size_alone_takes_twenty_tokens_a_parameter():
    """Hoffmann et al. 2022, table 3: about 20 tokens a parameter."""
    assert budget(params=20_000_000).tokens == 400_000_000


@pytest.mark.parametrize("flops", [10**19, 10**21, 10**23])
def test_flops_alone_give_the_size_where_the_law_is_least(flops):
    """1.8172 + 482.01 N^-0.3478 + 2085.43 D^-0.3658 (Besiroglu et al. 2024), tokens D = C / cost;

    sizes are tried in steps of 10^(1/40), so the loss is least within one such step.
    """
    b = budget(flops=flops, law="chinchilla-2024")

    def loss(body):
        tokens = flops / per_token(body, b)
        return 1.8172 + 482.01 * total_of(body, b) ** -0.3478 + 2085.43 * tokens**-0.3658

    best = min(BODIES, key=loss)
    body = min(BODIES, key=lambda n: abs(total_of(n, b) - b.params))
    assert abs(math.log10(body / best)) <= 1 / 40 + 1 / 500 or loss(body) - loss(best) < 1e-4
    assert b.tokens == pytest.approx(flops / per_token(body, b), rel=0.02)


def test_a_budget_of_flops_is_searched_at_its_size():
    front = design(flops=12 * 10**17, tokens=10**10, vocab_size=8192)
    assert front.feasible
    size = front.budget.params
    assert all(abs(c.counted.total / size - 1) <= 0.005 for c in front.candidates)


def test_days_on_chips_give_a_size_that_can_be_trained_in_them():
    """30 days on 64 H100s: at most 30 · 86,400 · 64 · 989.5e12 FLOPs, a third to a half of it."""
    b = budget(days=30, gpus=64)
    most = 30 * 86_400 * 64 * 989.5e12
    assert 0.25 * most < 6 * b.params * b.tokens < 0.6 * most
    assert b.days == 30
    assert budget(gpu_hours=30 * 24 * 64, gpus=64).params == b.params
    front = design(b)
    assert front.feasible
    assert all(c.days <= 30 for c in front.candidates)
    assert front.chosen.days > 20


# ---------------------------------------------------------------- what a budget reads and assumes


def test_amounts_are_read_in_human_units():
    words = budget(params="7B", tokens="2T", vocab="128_256", train_context="8k", gpus="64",
                   serve_context="128k", kv_bytes_per_token="128KiB", tpot="10ms", days="1.5",
                   gpu_hours="10k")  # fmt: skip
    numbers = budget(params=7 * 10**9, tokens=2 * 10**12, vocab_size=128_256, train_context=8192,
                     n_gpu=64, serve_context=131_072, kv_bytes_per_token=131_072, tpot_s=0.01,
                     days=1.5, gpu_hours=10_000)  # fmt: skip
    assert words == numbers


def test_hours_and_days_need_not_be_whole():
    b = budget(**SMALL, gpu_hours=1.5, days=0.25)
    assert (b.gpu_hours, b.days) == (1.5, 0.25)


def test_what_was_not_given_is_listed_and_nothing_else():
    def names(b):
        return {text.partition(":")[0] for text in b.assumed}

    assert names(budget(params="7B")) == {"tokens", "vocab", "context", "gpu", "gpus"}
    given = {"vocab": "32k", "tokens": "1T", "train_context": "4k", "gpu": "h100-sxm", "gpus": 8}
    assert not names(budget(params="7B", **given))
    assert names(budget(flops=1e21, **{**given, "tokens": None})) == {"params", "tokens"}
    assert budget(params="7B").vocab_size == 128_256
    assert budget(params="125M").vocab_size == 50_304


# ---------------------------------------------------------------- what others read


def test_the_json_of_a_front_holds_specs_that_count_what_it_says():
    front = design(**SMALL)
    said = json.loads(json.dumps(front_json(front, reasons=False)))
    assert said["schema"] == 1
    assert said["search"]["evaluated"] == front.swept.evaluated
    assert said["choice"] == front.choice
    assert len(said["front"]) == len(front.candidates)
    for row, c in zip(said["front"], front.candidates, strict=True):
        spec = msgspec.convert(row["spec"], Spec)
        assert spec == c.spec
        assert (
            parameters(spec).total
            == row["params"]["total"]
            == sum(row["params"]["by_part"].values())
        )
    assert [row["name"] for row in said["baselines"]]


@pytest.mark.parametrize("width", [256, 1024, 2048])
def test_legal_heads_are_all_that_keep_the_bounds(width):
    """H h/D from 0.75 to 1.5, K divides H at most 8 times, K is at least 4 or all of fewer heads.

    Of width 2048 there are 32 heads of 64 with 4 KV heads: both bounds at once.
    """
    found = {tuple(row[k] for k in ("d_head", "n_head", "n_kv_head")) for row in
             list_legal(width, 1, budget(params=10**8, fixed={"d_model": width}))}  # fmt: skip
    by_hand = {
        (h, H, K) for h in HEAD_WIDTHS for H in range(1, 100) for K in range(min(4, H), H + 1)
        if 0.75 <= H * h / width <= 1.5 and H % K == 0 and H // K <= 8
    }  # fmt: skip
    assert found == by_hand
    assert ((64, 32, 4) in found) == (width == 2048)


# ---------------------------------------------------------------- fronts by brute force

fixed = settings(derandomize=True, deadline=None, max_examples=200, database=None)
points = st.integers(1, 4).flatmap(
    lambda width: st.lists(
        st.tuples(*[st.integers(0, 9)] * width), min_size=1, max_size=40
    )
)  # fmt: skip


@fixed
@given(points)
def test_non_dominated_rows_are_those_nothing_beats_each_value_once(rows):
    kept = non_dominated(np.array(rows, dtype=float))
    front = {row for row in rows if not any(dominates(other, row) for other in rows)}
    found = [row for row, keep in zip(rows, kept.tolist(), strict=True) if keep]
    assert sorted(found) == sorted(front)


@fixed
@given(points, st.data())
def test_a_front_is_the_same_folded_in_any_order_and_in_any_parts(rows, data):
    order = data.draw(st.permutations(range(len(rows))))
    size = data.draw(st.integers(1, len(rows)))
    values = np.array(rows, dtype=float)
    at, front = np.empty((0, 1), dtype=np.int64), np.empty((0, values.shape[1]))
    for start in range(0, len(rows), size):
        some = order[start : start + size]
        at, front = fold(at, front, np.array(some)[:, None], values[some])
    assert np.array_equal(values[at[:, 0]], front)
    best = {row for row in rows if not any(dominates(other, row) for other in rows)}
    assert sorted(map(tuple, front.astype(int).tolist())) == sorted(best)


@fixed
@given(points, st.data())
def test_the_knee_is_the_row_nearest_the_ideal_point(rows, data):
    width = len(rows[0])
    weights = tuple(data.draw(st.sampled_from((0.5, 1.0, 3.0))) for _ in range(width))

    def distance(row):
        total = 0.0
        for i in range(width):
            column = [other[i] for other in rows]
            span = max(column) - min(column) or 1
            total += (weights[i] * (row[i] - min(column)) / span) ** 2
        return total

    found = knee(np.array(rows, dtype=float), weights)
    assert distance(rows[found]) == pytest.approx(min(map(distance, rows)), abs=1e-12)


@fixed
@given(st.lists(st.tuples(*[st.integers(0, 19)] * 3), min_size=1, max_size=40))
def test_a_thinned_front_keeps_the_best_of_each_box_no_box_beats(rows):
    """Boxes of 4 units from points at tenths and fifths: no point lies on an edge."""
    eps = (4.0, 2.0, 8.0)
    values = [tuple(x + 0.3 for x in row) for row in rows]
    box = {v: tuple(math.floor(x / e) for x, e in zip(v, eps, strict=True)) for v in values}
    corner = {v: sum((x / e - n) ** 2 for x, e, n in zip(v, eps, box[v], strict=True))
              for v in values}  # fmt: skip
    boxes = {b for b in box.values() if not any(dominates(o, b) for o in box.values())}
    found = [values[i] for i in thin(np.array(values), eps)]
    assert sorted(box[v] for v in found) == sorted(boxes)
    for v in found:
        least = min(corner[other] for other in values if box[other] == box[v])
        assert corner[v] == pytest.approx(least, abs=1e-12)


def test_a_thinned_front_is_no_further_from_the_whole_than_its_boxes():
    """Each row of the sweep has a candidate at most one epsilon worse in each objective."""
    front = design(**SMALL)
    eps = np.array(epsilons(front.swept.objectives))
    medians = np.median(front.swept.objectives, axis=0)
    medians[0] = math.inf
    spans = np.ptp(front.swept.objectives, axis=0)
    assert eps.tolist() == [
        min(e, 0.02 * m, s / 40)
        for e, m, s in zip((0.002, 0.2, 2048, 20e-6), medians, spans, strict=True)
    ]
    kept = np.array([objectives_of(front.budget, c.spec) for c in front.candidates])
    for row in front.swept.objectives:
        assert np.any(np.all(kept <= row + eps * (1 + 1e-6), axis=1))


@pytest.mark.parametrize(("name", "told"), [
    ("aspect", "law 'aspect' does not see it"), ("muennighoff-2023", "nats over as many fresh"),
])  # fmt: skip
def test_scarce_tokens_are_counted_in_passes_whether_or_not_the_law_sees_them(name, told):
    front = design(**SMALL | {"tokens": 2_500_000_000}, unique_tokens=500_000_000, law=name)
    (found,) = [f for f in findings(front.chosen) if f["code"] == "REPEATS"]
    assert found["message"].startswith("5 passes over 500 M unique tokens: ")
    assert told in found["message"]


def test_tokens_that_are_all_unique_are_no_finding():
    front = design(**SMALL | {"tokens": 2_500_000_000}, unique_tokens=2_500_000_000)
    assert "REPEATS" not in [f["code"] for f in findings(front.chosen)]


def test_findings_of_a_chosen_shape_are_those_that_lint_has_of_it():
    """One mechanism: the same codes, and none of design's own beside the rules of alignment."""
    front = design(params=10**9, vocab_size=50_257, baselines=())
    told = {f["code"] for f in findings(front.chosen)}
    ruled = {f.code for f in lint(front.chosen.spec, context=front.budget.train_context).findings}

    assert "SC501" in ruled  # 50257 is odd
    assert ruled <= told
    assert "ALIGN" not in told
