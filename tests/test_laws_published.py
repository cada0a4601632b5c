"""Published laws: their constants, their optima, and what lies outside them."""

import csv
import math
from pathlib import Path
from statistics import fmean

import pytest

from scantling.errors import FieldError, UnknownNameError
from scantling.laws import LAWS, Features, law
from scantling.laws.experts import effective_body, efficiency_leverage
from scantling.laws.hyperparameters import hyperparameters
from scantling.laws.optimum import allocations, compute_optimal, shaped
from scantling.laws.registry import FORMS
from scantling.laws.robust import fit_form, solve
from scantling.laws.runs import columns
from scantling.laws.size_laws import effective_tokens
from scantling.sources import sources


def closed_form(e_a, alpha, b, beta, flops):
    """Hoffmann et al., equation 4: N = G (C/6)^(β/(α+β)), G = (αA/βB)^(1/(α+β))."""
    g = (alpha * e_a / (beta * b)) ** (1 / (alpha + beta))
    return g * (flops / 6) ** (beta / (alpha + beta))


@pytest.mark.parametrize(
    ("name", "constants"),
    [
        ("chinchilla-2022", (406.4, 0.3392, 410.7, 0.2849)),
        ("chinchilla-2024", (482.01, 0.3478, 2085.43, 0.3658)),
        ("sardana-2024", (33.66, 0.18, 138.9, 0.24)),
    ],
)
@pytest.mark.parametrize("flops", [1e19, 1e21, 1e23])
def test_the_optimum_is_that_of_equation_four(name, constants, flops):
    best = compute_optimal(name, flops)
    assert best.size == pytest.approx(closed_form(*constants, flops), rel=1e-3)
    assert 6 * best.size * best.tokens == pytest.approx(flops)


def test_chinchillas_budget_gives_the_published_size_of_approach_three():
    """Gopher's 5.76e23 FLOPs: 40.7 B with the exponents as published (table 3: a = 0.46)."""
    assert compute_optimal("chinchilla-2022", 5.76e23).size == pytest.approx(40e9, rel=0.25)


def test_the_optimum_of_deepseek_is_its_formula():
    best = compute_optimal("deepseek-2024", 1e21)
    assert best.size == pytest.approx(0.1715 * 1e21**0.5243, rel=2e-3)
    assert best.tokens == pytest.approx(5.8316 * 1e21**0.4757)
    assert best.outside  # beyond 3e20


def test_the_optimum_of_llama_three_is_the_one_it_was_built_on():
    """3.8e25 FLOPs: 16.55 T tokens and 402 B parameters, with attention in the FLOPs."""
    best = compute_optimal("llama-3-2024", 3.8e25)
    assert best.tokens == pytest.approx(16.55e12, rel=0.02)
    assert best.size == pytest.approx(402e9, rel=0.05)


def test_minicpm_spends_192_tokens_a_parameter():
    best = compute_optimal("minicpm-2024", 1e20)
    assert best.tokens / best.size == pytest.approx(192)


def test_muennighoffs_constants_want_twenty_tokens_a_parameter():
    """Both exponents 0.3527: D/N = (B/A)^(1/α) at every budget."""
    for flops in (1e20, 1e22):
        best = compute_optimal("muennighoff-2023", flops)
        expected = math.exp((7.3049974 - 6.255414) / 0.3526596)
        assert best.tokens / best.size == pytest.approx(expected, rel=0.01)


def test_the_valley_is_flat_and_holds_its_optimum():
    best = compute_optimal("aspect", 1e21)
    assert best.low < best.size < best.high
    assert best.high / best.low > 1.5
    at = shaped(best.low, 1e21 / (6 * best.low), 64.0)
    assert law("aspect").loss(at) == pytest.approx(best.loss + 0.005, abs=0.0005)


def test_serving_and_scarce_data_ask_for_a_smaller_model():
    """Scarce data: more epochs of a smaller model (Muennighoff et al., section 5)."""
    free = compute_optimal("sardana-2024", 1e22).size
    assert compute_optimal("sardana-2024", 1e22, served=2e12).size < 0.6 * free
    scarce = compute_optimal("muennighoff-2023", 1e22, unique=2e9)
    assert scarce.size < compute_optimal("muennighoff-2023", 1e22).size
    with pytest.raises(FieldError, match="do not pay"):
        compute_optimal("sardana-2024", 1e12, served=1e13)


def test_a_repeated_token_is_worth_what_the_paper_says():
    """Up to four epochs nearly as good as new; at R* repeats a fresh one adds 1/e."""
    assert effective_tokens(4e9, 1e9, 15.387756) > 3.7e9
    assert effective_tokens(1e15, 1e9, 15.387756) == pytest.approx(16.387756e9)


def test_the_experts_of_clark_saturate_at_both_ends():
    """Ê is 1.847 at one expert, so log L = −.082 n + (−.108 + .009 n) log 1.847 + 1.104."""
    f = Features(body=1e8, total=1e8, width=768, depth=12, tokens=1.3e11)
    by_hand = -0.082 * 8 + (-0.108 + 0.009 * 8) * math.log10(1.847) + 1.104
    assert law("clark-2022").loss(f) == pytest.approx(10**by_hand)


def test_abnar_and_krajewski_are_their_formulas():
    f = Features(body=1e9, total=1e9, width=1, depth=1, tokens=1e11, active_share=0.25,
                 all_parameters=4e9, granularity=4)  # fmt: skip
    abnar = 16612.5 * 4e9**-0.5962 + 5455.67 * 1e11**-0.3954 + 0.4598 * 0.25**0.1666
    abnar += 17.26 * 0.25**-0.1603 * 4e9**-0.1595 + 0.94
    assert law("abnar-2025").loss(f) == pytest.approx(abnar)
    krajewski = 0.47 + (2.1 / 4**0.58 + 18.1) * 4e9**-0.115 + 30.8 * 1e11**-0.147
    assert law("krajewski-2024").loss(f) == pytest.approx(krajewski)


@pytest.mark.parametrize("name", sorted(LAWS))
def test_every_law_falls_with_size_and_flags_and_widens_outside_its_domain(name):
    one = law(name)
    low, high = one.domain[one.counts]
    middle, far = math.sqrt(low * high), 20 * high
    tokens = math.sqrt(math.prod(one.domain["tokens"]))
    near, away = (shaped(n, tokens, 64.0) for n in (middle, far))
    assert one.loss(away) < one.loss(near)
    assert not one.outside(near)[one.counts]
    assert one.outside(away)[one.counts]
    assert one.interval(away) > one.interval(near)
    assert one.quantity(away).why[-1].startswith("extrapolated")


def test_every_source_of_an_allocation_is_in_the_bibliography():
    assert {one.source for one in allocations().values()} <= set(sources())


def test_an_unknown_law_has_no_optimum():
    with pytest.raises(UnknownNameError, match="llama-3-2024"):
        compute_optimal("llama-3", 1e21)
    with pytest.raises(FieldError, match="above zero"):
        compute_optimal("aspect", 0)


def table_of(name):
    path = Path(__file__).parents[2] / "shared" / "data" / "scaling" / name
    if not path.exists():
        pytest.skip(f"the table of runs {name} is not beside this checkout")
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def best_cells(name, key):
    """The least loss over learning rates and batches of each cell."""
    found = {}
    for row in table_of(name):
        cell = tuple(float(row[k]) for k in key)
        found[cell] = min(found.get(cell, math.inf), float(row["loss"]))
    return found


def test_the_geometric_mean_of_active_and_all_is_the_dense_body_of_a_model_with_experts():
    """Step-law runs from 8 B tokens on: half the error of counting active or all parameters."""
    dense = best_cells("steplaw_dense.csv", ("params_nonemb", "tokens"))
    rows = [{"params_nonemb": n, "tokens": d, "loss": loss} for (n, d), loss in dense.items()]
    constants = fit_form("body-tokens").values(solve(columns(rows), "body-tokens").vector)
    routed = best_cells("steplaw_moe.csv", ("params_active_nonemb", "params_nonemb", "tokens"))

    def error(power):
        off = []
        for (active, everything, tokens), loss in routed.items():
            if tokens >= 8e9:
                body = effective_body(active, everything, power)
                f = Features(body=body, total=body, width=1, depth=1, tokens=tokens)
                off.append(abs(FORMS["body-tokens"](f, constants) - loss))
        return fmean(off)

    assert error(0.5) < 0.03
    assert error(0.5) < 0.5 * error(0.0)
    assert error(0.5) < error(1.0)


def few_bits(body=1e8, tokens=2e10, **bits):
    return law("kumar-2024").loss(
        Features(body=body, total=body, width=768, depth=14, tokens=tokens, **bits)
    )


def trained_in(bits):
    return {"weight_bits": bits, "activation_bits": bits, "kv_bits": bits}


def test_seven_to_eight_bits_are_the_best_precision_to_train_in():
    """Kumar et al., 4.3.2: on a budget of N D P the best is 7 to 8 bits at every budget."""
    for tokens in (2e9, 2e10):
        losses = {
            p: min(few_bits(n * 16 / p * 1e8, tokens / n, **trained_in(p))
                   for n in (0.5, 0.7, 1, 1.4, 2, 2.8, 4, 5.6, 8))
            for p in (4, 5, 6, 7, 8, 9, 10, 12, 16)
        }  # fmt: skip
        assert min(losses, key=losses.get) in {7, 8}


def test_four_bits_cost_more_than_four_times_the_parameters():
    """The same section: below 4 bits the size must grow more than fourfold for the same loss."""
    assert few_bits(4e8, **trained_in(4)) > few_bits(1e8)
    assert few_bits(6e8, **trained_in(4)) < few_bits(1e8)


def test_quantizing_costs_more_after_longer_training_and_less_of_a_larger_model():
    def damage(body, tokens, bits):
        return few_bits(body, tokens, served_bits=bits) - few_bits(body, tokens)

    assert damage(1e8, 1e11, 4) / damage(1e8, 1e10, 4) == pytest.approx(10**0.5068)
    assert damage(1e9, 1e10, 4) / damage(1e8, 1e10, 4) == pytest.approx(10**-0.3439)
    assert damage(1e8, 1e10, 3) / damage(1e8, 1e10, 4) == pytest.approx(math.exp(1 / 0.5907))


def test_the_data_of_the_vocabulary_law_are_characters():
    """On the 1,200 runs of Tao et al.: with tokens it misses by 0.58, with characters by 0.13."""
    off = {"characters": [], "tokens": []}
    for row in table_of("vocab_tao2024.csv"):
        body, width, vocab, tokens, loss = (
            float(row[k]) for k in ("params_nonemb", "width", "vocab", "tokens", "loss")
        )
        f = Features(body=body, total=body, width=width, depth=1, tokens=tokens, vocab_size=vocab)
        said = law("tao-2024").loss(f)
        k = law("tao-2024").facts.constants
        v = math.log(vocab)
        characters = tokens / (k["f2"] * v * v + k["f1"] * v + k["f0"])
        data = k["B"] * ((tokens / 1e9) ** -k["beta"] - (characters / 1e9) ** -k["beta"])
        off["characters"].append(abs(said - loss))
        off["tokens"].append(abs(said + data - loss))
    assert len(off["tokens"]) >= 600
    assert fmean(off["characters"]) < 0.16
    assert fmean(off["tokens"]) > 3 * fmean(off["characters"])


def test_the_leverage_of_experts_has_the_published_value_and_optimum():
    """Ling team: 7.2 at 1e22 FLOPs, 3.1 % active and granularity 12; best granularity 11.3."""
    assert efficiency_leverage(0.031, 12, 1e22) == pytest.approx(7.2, abs=0.1)
    grid = [2 ** (i / 50) for i in range(50, 250)]
    assert max(grid, key=lambda g: efficiency_leverage(0.031, g, 1e22)) == pytest.approx(
        11.3, rel=0.02
    )


def test_the_law_of_over_training_is_gadres_in_compute_and_ratio():
    """E + (a M^η + b M^−η) C^−η with M = D/N and C = 6 N D, a and b from A and B."""
    c = law("gadre-2024").facts.constants
    eta = c["alpha"] / 2
    a, b = (6**eta * c[k] * c[unit] ** (2 * eta) for k, unit in (("A", "N0"), ("B", "D0")))
    for n, d in ((1e8, 2e9), (1.4e9, 9e11)):
        ratio, flops = d / n, 6 * n * d
        said = law("gadre-2024").loss(Features(body=n, total=n, width=1, depth=1, tokens=d))
        assert said == pytest.approx(c["E"] + (a * ratio**eta + b * ratio**-eta) * flops**-eta)


def test_the_advised_rate_and_batch_hold_the_best_of_nearly_every_public_grid():
    """17 grids of learning rate and batch; a step of a grid is 1.41."""
    best = {}
    for row in table_of("steplaw_dense.csv"):
        cell = (float(row["params_nonemb"]), float(row["tokens"]))
        run = (float(row["loss"]), float(row["lr"]), 2048 * float(row["bs"]))
        best[cell] = min(best.get(cell, run), run)
    rates, batches = [], []
    for (body, tokens), (_, rate, batch) in best.items():
        said = hyperparameters(body, tokens)
        for held, value, name in (
            (rates, rate, "learning_rate"), (batches, batch, "batch_tokens"),
        ):  # fmt: skip
            held.append(said[name]["low"] <= value <= said[name]["high"])
    assert fmean(rates) >= 0.85
    assert fmean(batches) >= 0.85
    near, far = hyperparameters(2.4e8, 1e10), hyperparameters(7e10, 1e13)
    widths = [h["learning_rate"]["high"] / h["learning_rate"]["low"] for h in (near, far)]
    assert widths[0] == pytest.approx(1.6**2, rel=0.01)
    assert widths[1] > 1.2 * widths[0]
