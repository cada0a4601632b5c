"""Fitting a law to runs: what was put in comes out, and runs held out are met."""

import csv
import json
import math
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from scantling.cli import group
from scantling.errors import FieldError, UnknownNameError
from scantling.laws import Features, law
from scantling.laws.calibrated import calibrate_law
from scantling.laws.evaluate import evaluate, pairs_of_equal_size
from scantling.laws.files import law_text, read_law
from scantling.laws.fit import fit_runs
from scantling.laws.robust import fit_form, fit_forms, solve
from scantling.laws.runs import best_runs, columns, read_runs
from scantling.sources import sources

TABLES = Path(__file__).parents[2] / "shared" / "data" / "scaling"


def table(name, *where):
    path = TABLES / name
    if not path.exists():
        pytest.skip(f"the table of runs {name} is not beside this checkout")
    return read_runs(path, where)


TRUE = {"E": 1.6, "A": 1.1, "alpha": 0.15, "kappa": 0.012, "r0": 50.0, "B": 0.2, "beta": 0.5,
        "delta": 0.1, "N0": 3e8, "D0": 5e10}  # fmt: skip


def made(n=12, noise=0.0, seed=3):
    """Rows of n shapes at three numbers of tokens, of the aspect law with known constants."""
    draw = np.random.default_rng(seed)
    rows = []
    for depth, width in zip(
        draw.integers(4, 40, n), draw.choice([256, 512, 768, 1024, 2048], n), strict=True
    ):
        body = 12 * int(depth) * int(width) ** 2
        for tokens in (2e9, 2e10, 2e11):
            f = Features(body=body, total=body, width=int(width), depth=int(depth), tokens=tokens,
                         d_head=128)  # fmt: skip
            value = law("aspect").function(f, TRUE) + noise * draw.normal()
            rows.append({
                "params_nonemb": body, "params_total": body + 1e5 * int(width), "head_dim": 128,
                "width": int(width), "depth": int(depth), "tokens": tokens, "loss": value,
            })  # fmt: skip
    return rows


def write(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, rows[0].keys())
        out.writeheader()
        out.writerows(rows)
    return path


def run(*arguments):
    found = CliRunner().invoke(group, ["laws", *map(str, arguments)], standalone_mode=False)
    if found.exception is not None:
        raise found.exception
    return found


# ---------------------------------------------------------------- what went in comes out


def test_a_fit_finds_the_law_the_runs_were_made_with():
    runs = columns(made(30))
    found = solve(runs, "aspect")
    constants = fit_form("aspect").values(found.vector)
    for name in ("alpha", "beta", "delta"):
        assert constants[name] == pytest.approx(TRUE[name], abs=0.004), name
    assert constants["r0"] == pytest.approx(50, rel=0.05)
    predicted = law("aspect").function(runs.features, constants)
    assert np.abs(predicted - runs.loss).max() < 0.002


def test_a_few_broken_runs_do_not_move_a_robust_fit():
    rows = made(30)
    for row in rows[::17]:
        row["loss"] += 1.5
    constants = fit_form("aspect").values(solve(columns(rows), "aspect").vector)
    assert constants["beta"] == pytest.approx(0.5, abs=0.01)


def test_intervals_hold_the_constants_that_the_runs_were_made_with():
    found = fit_runs(columns(made(16, noise=0.004)), "aspect", bootstraps=40)
    held = [found.intervals[k][0] <= TRUE[k] <= found.intervals[k][1] for k in found.intervals]
    assert sum(held) >= len(held) - 1
    assert found.holdout["by_shape"].mae < 0.01
    assert 0.8 <= found.holdout["by_shape"].coverage <= 1


def test_a_law_file_says_what_the_fit_says(tmp_path):
    runs = columns(made(10))
    found = fit_runs(runs, "shape", bootstraps=20)
    path = tmp_path / "mine.toml"
    path.write_text(law_text(found.law.facts), encoding="utf-8")
    again = law(str(path))
    assert np.allclose(again.loss(runs.features), found.law.loss(runs.features), rtol=1e-12)
    assert np.allclose(again.interval(runs.features), found.law.interval(runs.features))
    assert msgspec.structs.asdict(again.errors) == {
        k: v if isinstance(v, str) else pytest.approx(v)
        for k, v in msgspec.structs.asdict(found.law.errors).items()
    }


def test_what_two_shapes_share_cancels_in_the_scatter_of_their_difference():
    found = fit_runs(columns(made(10, noise=0.004)), "shape", bootstraps=20).law
    a = Features(body=3e9, total=3e9, width=2560, depth=38, tokens=1e11, d_head=128)
    b = Features(body=3.1e9, total=3e9, width=2560, depth=39, tokens=1e11, d_head=128)
    assert found.scatter(a, a) == 0
    assert found.scatter(a, b) < 0.2 * found.scatter(a)
    far = Features(body=3e11, total=3e11, width=12800, depth=150, tokens=1e11, d_head=128)
    assert found.interval(far) > 2 * found.interval(a)


def test_a_recipe_with_losses_of_another_scale_gives_the_same_law_scaled():
    """Code, or another tokenizer: every part of the loss is 0.4 of what it was."""
    rows = made(6, noise=0.003)
    found = {}
    for scale in (1.0, 0.4):
        runs = columns([r | {"loss": scale * r["loss"]} for r in rows])
        found[scale] = fit_form("shape").values(solve(runs, "shape").vector)
    for name in ("E", "A", "B"):
        assert found[0.4][name] == pytest.approx(0.4 * found[1.0][name], rel=0.01), name
    for name in ("alpha", "beta", "delta", "kappa"):
        assert found[0.4][name] == pytest.approx(found[1.0][name], rel=0.01), name


# ---------------------------------------------------------------- what is refused


def test_runs_without_a_loss_or_tokens_are_left_out_and_counted():
    rows = made(10)
    rows[0]["loss"], rows[1]["loss"], rows[2]["tokens"] = "nan", "inf", ""
    runs = columns(rows)
    assert len(runs) == len(rows) - 3
    assert runs.warnings == (
        "2 of 30 runs left out: a loss that is no positive number",
        "1 of 30 runs left out: unknown tokens",
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (made(2)[:4], "fewer than the 8 constants"),
        ([r | {"params_nonemb": 1e8, "params_total": 1e8} for r in made(10)], "all of one size"),
        ([r | {"tokens": 1e10} for r in made(10)], "all of one number of tokens"),
        ([{k: v for k, v in r.items() if k != "width"} for r in made(10)], "width is missing"),
    ],
)
def test_a_table_that_determines_no_law_is_refused(rows, message):
    with pytest.raises(FieldError, match=message):
        fit_runs(columns(rows), "aspect", bootstraps=20)


def test_too_few_runs_say_why_runs_were_left_out():
    rows = made(3)
    for row in rows[:4]:
        row["loss"] = "nan"
    with pytest.raises(FieldError, match=r"5 are fewer .*4 of 9 runs left out: a loss that is no"):
        fit_runs(columns(rows), "aspect", bootstraps=20)


def test_two_sizes_and_mixed_recipes_are_warned_of():
    rows = [r for r in made(12) if r["params_nonemb"] < 3e8]
    for i, row in enumerate(rows):
        row["params_nonemb"] = row["params_total"] = 1e8 * (1 + 3 * (i % 2))
        row["lr_note"] = "cosine" if i % 3 else "constant"
    found = fit_runs(columns(rows), "size-tokens", bootstraps=20)
    assert any("do not pin the floor" in w for w in found.warnings)
    assert any("mix 2 values of lr_note" in w for w in found.warnings)
    assert any("--where 'lr_note=constant'" in w for w in found.warnings)


def test_bad_files_are_one_line(tmp_path):
    broken = tmp_path / "law.toml"
    for text, message in (("x = ", "no law file"), ('title = "a"', "no law file")):
        broken.write_text(text, encoding="utf-8")
        with pytest.raises(FieldError, match=message):
            read_law(broken)
    good = law_text(fit_runs(columns(made(10)), "aspect", bootstraps=20).law.facts)
    for change, message in (
        (("kappa = ", "other = "), "lacks the constant kappa"),
        (('function = "aspect"', 'function = "none"'), "unknown function"),
        (("N0 = 300000000.0", "N0 = 0.0"), "gives no loss"),
    ):
        broken.write_text(good.replace(*change), encoding="utf-8")
        with pytest.raises(FieldError, match=message):
            read_law(broken)
    with pytest.raises(FieldError, match="cannot be read"):
        law(str(tmp_path / "none.toml"))
    with pytest.raises(UnknownNameError, match="did you mean shape"):
        fit_form("shapes")
    empty = tmp_path / "runs.csv"
    empty.write_text("loss,tokens\n", encoding="utf-8")
    with pytest.raises(FieldError, match="no rows"):
        read_runs(empty)
    lines = tmp_path / "runs.jsonl"
    lines.write_text('{"loss": 3, "tokens"\n', encoding="utf-8")
    with pytest.raises(FieldError, match="line 1 is no JSON"):
        read_runs(lines)
    for condition, message in (("loss", "no condition"), ("colour=red", "no column")):
        with pytest.raises(FieldError, match=message):
            read_runs(write(tmp_path / "good.csv", made(3)), [condition])


def test_every_source_of_a_form_is_in_the_bibliography():
    assert {key for facts in fit_forms().values() for key in facts.sources} <= set(sources())


# ---------------------------------------------------------------- evaluation and calibration


def test_evaluation_counts_errors_order_and_coverage():
    """Four runs moved by +0.1, +0.1, −0.1 and +0.3 from what the law says."""
    f = {"params_nonemb": 3e8, "tokens": 5e10, "head_dim": 128}
    shapes = [(1024, 25), (768, 44), (2048, 6), (512, 100)]
    rows = [{**f, "width": w, "depth": d, "loss": 1.0} for w, d in shapes]
    losses = law("aspect").loss(columns(rows).features)
    for row, loss, moved in zip(rows, losses, (0.1, 0.1, -0.1, 0.3), strict=True):
        row["loss"] = loss - moved
    found = evaluate(law("aspect"), columns(rows))
    assert found.bias == pytest.approx(0.1)
    assert found.mae == pytest.approx(0.15)
    assert found.p90 == pytest.approx(0.24)  # between 0.1 and 0.3, seven tenths up
    assert found.interval_coverage == 0
    assert found.after_offset["offset"] == pytest.approx(0.1)
    assert found.after_offset["mae"] == pytest.approx(0.1)


def test_pairs_of_equal_size_are_counted_once_and_only_if_apart():
    rows = [
        {"params_total": n, "params_nonemb": n, "width": w, "depth": 9, "tokens": t, "loss": loss}
        for n, w, t, loss in (
            (1.0e8, 1, 1e9, 3.00), (1.1e8, 2, 1e9, 3.02), (1.1e8, 3, 1e9, 3.025),
            (5.0e8, 4, 1e9, 2.5), (1.0e8, 5, 2e9, 2.9),
        )
    ]  # fmt: skip
    first, second, apart = pairs_of_equal_size(columns(rows))
    pairs = {frozenset(x) for x in zip(first.tolist(), second.tolist(), strict=True)}
    assert pairs == {frozenset((0, 1)), frozenset((0, 2))}
    assert np.abs(apart).tolist() == pytest.approx([0.02, 0.025])


def test_one_run_moves_a_published_law_onto_itself():
    row = made(1)[0] | {"loss": 3.333}
    facts, told = calibrate_law(law("aspect"), columns([row]))
    assert "from 1 run" in told
    assert facts.errors.interval_base == 0.07
    runs = columns([row])
    moved = read_back(facts).loss(runs.features)
    assert float(moved[0]) == pytest.approx(3.333)


def read_back(facts):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "law.toml"
        path.write_text(law_text(facts), encoding="utf-8")
        return read_law(path)


def test_the_best_of_a_sweep_is_kept():
    rows = [r | {"loss": r["loss"] + bad} for r in made(6) for bad in (0.3, 0.0, 0.1)]
    kept = best_runs(columns(rows))
    assert sorted(kept.loss) == pytest.approx(sorted({r["loss"] for r in made(6)}))
    assert kept.warnings == ()
    assert best_runs(columns(rows[1:])).warnings[0].startswith("the best of 2 to 3 tries")


# ---------------------------------------------------------------- the command line


def test_fit_writes_a_law_that_evaluate_and_design_take(tmp_path):
    runs = write(tmp_path / "runs.csv", made(10, noise=0.003))
    path = tmp_path / "law.toml"
    found = run("fit", runs, "--form", "aspect", "--out", path, "--bootstraps", 20, "--json",
                "--where", "depth>4")  # fmt: skip
    said = json.loads(found.stdout)
    assert {"form", "rows", "constants", "intervals", "mae", "holdout"} <= set(said)
    assert said["constants"].keys() == said["intervals"].keys()
    judged = json.loads(run("evaluate", path, runs, "--json").stdout)
    assert {"law", "rows", "bias", "mae", "p90", "interval_coverage", "pair_accuracy"} <= set(
        judged
    )
    assert judged["mae"] == pytest.approx(said["mae"], abs=0.003)


def test_runs_of_the_lab_are_read(tmp_path):
    """A line a run: spec, seed, tokens, bits a byte or a loss, params; names taken leniently."""
    path = tmp_path / "lab.jsonl"
    records = [
        {"spec": {"d_model": 256, "n_layer": n, "d_head": 64}, "seed": 0, "tokens": 1e8 * n,
         "bits_per_byte": 1.2, "tokens_per_byte": 0.25,
         "params": {"total": n * 1e6, "body": n * 8e5}}
        for n in (4, 8)
    ]  # fmt: skip
    records.append({"spec": "12x256-h64-4q2kv-f1024", "Train-Tokens": 1e9, "val_loss": 3.0,
                    "params_total": 12e6, "params_body": 1e7, "tokens": 1e9, "loss": 3.0,
                    "bits_per_byte": 1, "tokens_per_byte": 1})  # fmt: skip
    write_lines(path, records[:2])
    found = read_runs(path)
    assert list(found.features.width) == [256, 256]
    assert list(found.features.depth) == [4, 8]
    assert list(found.features.body) == [3.2e6, 6.4e6]
    assert found.loss == pytest.approx(1.2 * math.log(2) / 0.25)
    write_lines(path, records[2:])
    found = read_runs(path)
    assert (found.features.width[0], found.features.depth[0]) == (256, 12)
    assert found.features.d_head[0] == 64
    assert found.loss[0] == 3.0
    for record, message in (
        ({"bits_per_byte": 1.2, "tokens": 1, "params_total": 1}, "add the column tokens_per_byte"),
        ({"tokens": 1, "params_total": 1}, "one of loss, val_loss.*there are tokens, params_total"),
        ({"loss": 1, "tokens": 1}, "says no size.*there are loss, tokens"),
    ):
        write_lines(path, [record])
        with pytest.raises(FieldError, match=message):
            read_runs(path)


def write_lines(path, records):
    path.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")


def test_the_report_is_one_page_with_its_plots(tmp_path):
    """Plotly's script is in the page: nothing is fetched; a title cannot end the script."""
    pytest.importorskip("plotly")
    runs = write(tmp_path / "runs.csv", made(10))
    run("fit", runs, "--form", "aspect", "--bootstraps", 20, "--report", tmp_path / "out",
        "--recipe", "</script>")  # fmt: skip
    (path,) = (tmp_path / "out").iterdir()
    text = path.read_text(encoding="utf-8")
    ours = text[: text.index("<script>")] + text[text.rindex("<script>") :]
    assert not re.search(r"(src|href)=", ours)
    assert "&lt;/script&gt;" in text
    drawn = re.findall(r'draw\("(plot\d)", (\[.*?\])\);(?=draw|\n)', ours)
    assert len(drawn) == 5
    for _, data in drawn:
        traces, layout = json.loads(data)
        assert traces
        assert layout["xaxis"]["title"]["text"] is not None
    measured = json.loads(dict(drawn)["plot2"])[0][0]
    assert len(measured["x"]) == len(measured["error_y"]["array"]) == len(made(10))


def test_the_verb_still_lists_laws():
    assert "aspect" in run().stdout
    assert json.loads(run("chinchilla-2024", "--json").stdout)["laws"][0]["counts"] == "total"
    assert "llama-3-2024" in run("optimum", "1e21").stdout


# ---------------------------------------------------------------- against tables of runs


def left_out(runs, groups, form="shape"):
    start = solve(runs, form).vector
    errors = np.empty(len(runs))
    for i in np.unique(groups):
        out = groups == i
        vector = solve(runs.take(~out), form, start=start).vector
        found = law_of(form)(runs.take(out).features, fit_form(form).values(vector))
        errors[out] = found - runs.loss[out]
    return errors


def law_of(form):
    from scantling.laws.registry import FORMS

    return FORMS[form]


@pytest.mark.parametrize(("schedule", "bar"), [("main suite", 0.010), ("cooled", 0.013)])
def test_a_shape_left_out_of_the_gemstones_is_met(schedule, bar):
    runs = table("gemstones.csv", f"lr_note~{schedule}", "params_total<6e8")
    assert np.mean(np.abs(left_out(runs, runs.shapes))) <= bar


@pytest.mark.parametrize("schedule", ["main suite", "cooled"])
def test_small_models_alone_foretell_half_a_billion(schedule):
    """Two sizes do not pin the floor: a plain fit misses by 0.06."""
    small = table("gemstones.csv", f"lr_note~{schedule}", "params_total<1.3e8")
    large = table("gemstones.csv", f"lr_note~{schedule}", "params_total>4e8", "params_total<6e8")
    found = evaluate(fit_runs(small, "shape", bootstraps=40).law, large)
    assert found.mae < 0.05
    assert found.interval_coverage >= 0.85
    assert found.pair_accuracy >= 0.97


def test_a_size_left_out_of_morph_is_met():
    runs = table("morph_shapes.csv", "params_total<6e8")
    text = (TABLES / "morph_shapes.csv").read_text(encoding="utf-8")
    names = [r["run_id"].split("_")[0] for r in csv.DictReader(text.splitlines())
             if float(r["params_total"]) < 6e8]  # fmt: skip
    assert np.mean(np.abs(left_out(runs, np.unique(names, return_inverse=True)[1]))) <= 0.0105


def test_a_shape_and_an_octave_of_sizes_left_out_of_the_grid_are_met():
    """A warm-up of 400 steps is the longest that was tried at every width."""
    runs = table("openlm_grid_20x.csv", "run_id~-64-0.003", "head_dim>=50", "warmup=400")
    assert np.mean(np.abs(left_out(runs, runs.shapes))) <= 0.008
    assert np.mean(np.abs(left_out(runs, runs.sizes))) <= 0.0085
    mixed = best_runs(table("openlm_grid_20x.csv", "run_id~-64-0.003", "head_dim>=50"))
    assert any("tries" in w for w in mixed.warnings)


@pytest.mark.parametrize(
    ("name", "where"),
    [("gemstones.csv", ("lr_note~main suite", "params_total<6e8")),
     ("gemstones.csv", ("lr_note~cooled", "params_total<6e8")),
     ("morph_shapes.csv", ("params_total<6e8",))],
)  # fmt: skip
def test_intervals_hold_nine_of_ten_runs_of_shapes_and_sizes_held_out(name, where):
    found = fit_runs(table(name, *where), "shape", bootstraps=20)
    for situation in ("by_shape", "by_size"):
        assert 0.82 <= found.holdout[situation].coverage <= 0.98, situation


def test_a_law_fitted_without_a_size_holds_its_runs_in_its_interval():
    """The whole fit is repeated without each size; 90 % meant, three sizes of correlated runs."""
    runs = table("gemstones.csv", "lr_note~cooled", "params_total<6e8")
    inside = []
    for size in range(runs.sizes.max() + 1):
        out = runs.sizes == size
        one = fit_runs(runs.take(~out), "shape", bootstraps=20).law
        held = runs.take(out)
        inside += list(np.abs(one.loss(held.features) - held.loss) <= one.interval(held.features))
    assert np.mean(inside) >= 0.85


def test_the_ladder_to_a_billion_foretells_three():
    small = table("olmo_ladder.csv", "loss_kind~c4_en", "params_total<2e9")
    large = table("olmo_ladder.csv", "loss_kind~c4_en", "params_total>2e9", "params_total<4e9")
    found = evaluate(fit_runs(small, "shape", bootstraps=40).law, large)
    assert found.mae <= 0.035
    assert found.interval_coverage >= 0.85
    assert not math.isnan(found.bias)


@pytest.mark.parametrize(
    ("name", "schedule"), [("shape", "cooled"), ("shape-constant", "main suite")]
)
def test_the_laws_of_the_package_are_what_a_refit_gives(name, schedule):
    """``benchmarks/fit_laws.py`` wrote them: models below 0.6 B of the Gemstones."""
    runs = table("gemstones.csv", f"lr_note~{schedule}", "params_total<6e8")
    again = fit_form("shape").values(solve(runs, "shape").vector)
    kept = law(name).facts.constants
    assert again == pytest.approx({k: kept[k] for k in again}, rel=0.02)
    assert len(law(name).facts.draws) == 24


def test_the_own_law_prefers_thirty_to_fifty_widths_a_depth_at_the_size_of_its_runs():
    """Direct comparison at 0.5 B: 1024 × 28 (37) ahead of 768 × 45 (17) and 1280 × 15 (85)."""
    one = law("shape-constant")
    models = ((768, 45, 3.98e8), (1024, 28, 4.40e8), (1280, 15, 3.69e8), (1792, 7, 3.37e8))
    losses = [one.loss(Features(body=n, total=n, width=w, depth=d, tokens=3.5e11, d_head=128))
              for w, d, n in models]  # fmt: skip
    measured = [0.021, 0.0, 0.039, 0.080]
    assert [x - losses[1] for x in losses] == pytest.approx(measured, abs=0.01)


def test_repeated_tokens_are_worth_less_in_a_fit_of_repetition_runs():
    """Runs of one to eight epochs on C4: discounting repeats leaves a smaller error."""
    runs = table("datablations_repeat.csv", "loss<5", "tokens>1e9", "epochs<=8")
    with_repeats = fit_form("size-tokens").values(solve(runs, "size-tokens").vector)
    blind = columns_without_repeats(runs)
    without = fit_form("size-tokens").values(solve(blind, "size-tokens").vector)
    law = law_of("size-tokens")
    discounted = np.median(np.abs(law(runs.features, with_repeats) - runs.loss))
    counted = np.median(np.abs(law(blind.features, without) - runs.loss))
    assert discounted < 0.9 * counted


def columns_without_repeats(runs):
    features = msgspec.structs.replace(runs.features, unique_tokens=None)
    return type(runs)(features, runs.loss)


def test_a_shape_that_a_table_does_not_know_is_not_outside_the_domain():
    """Digitised runs have sizes and tokens alone; the law's domain has an aspect ratio too."""
    rows = [{"params_total": n, "tokens": 2e10, "loss": 3.0} for n in (1e8, 1e9, 1e11)]
    assert evaluate(law("chinchilla-2024"), columns(rows)).outside == 1  # 100 B is beyond 16 B


def test_a_table_without_a_usable_run_says_what_was_wrong_with_its_runs():
    rows = [{"params_total": 1e8, "tokens": 2e9, "loss": -1.3}] * 2  # a normalised loss
    with pytest.raises(FieldError, match="2 of 2 runs left out: a loss that is no positive"):
        columns(rows)


def test_a_condition_on_an_unknown_column_names_the_nearest(tmp_path):
    runs = tmp_path / "runs.csv"
    runs.write_text("loss,tokens,params_total,width\n3,1e9,1e8,64\n")
    with pytest.raises(FieldError, match="did you mean width"):
        read_runs(runs, where=["widht=64"])
