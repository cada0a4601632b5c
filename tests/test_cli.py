"""The command line: answers, exit statuses, and one clear line for bad input."""

import json
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner
from rich.console import Console

from scantling import catalog, cli
from scantling.errors import ScantlingError
from scantling.report import text as text_report
from scantling.spec import dimensions

JOB = [
    *("design", "--params", "7B", "--vocab", "128256", "--context", "8192"),
    *("--gpu", "h100-sxm", "--gpus", "64", "--tokens", "2T"),
]


def run(*args, text=None):
    """Run the command line in this process as ``main`` does: status, output, error line."""
    runner = CliRunner()
    found = runner.invoke(cli.group, [str(a) for a in args], input=text, standalone_mode=False)
    if isinstance(found.exception, ScantlingError):
        return 2, found.stdout, f"error: {found.exception}"
    if found.exception is not None:
        import click

        assert isinstance(found.exception, click.ClickException), repr(found.exception)
        return 2, found.stdout, f"error: {found.exception.format_message()}"
    return found.return_value or 0, found.stdout, found.stderr


@pytest.fixture(scope="module")
def job():
    """The main job as JSON."""
    status, out, _ = run(*JOB, "--json")
    assert status == 0
    return json.loads(out)


# ---------------------------------------------------------------- the main job


def test_the_front_has_ten_shapes_or_more_within_half_a_percent_of_7b(job):
    assert len(job["front"]) >= 10
    for row in job["front"]:
        assert abs(row["params"]["total"] / 7e9 - 1) <= 0.005


def test_the_choice_is_a_shape_engineers_would_build(job):
    c = job["front"][job["choice"]]
    d = c["dims"]

    assert 2.5 <= d["d_ff"] / d["d_model"] <= 5.5
    assert d["n_kv_head"] >= 4
    assert 0.75 <= d["n_head"] * d["d_head"] / d["d_model"] <= 1.5
    assert 40 <= d["d_model"] / d["n_layer"] <= 140


def test_llama_and_its_peers_stand_beside_the_front(job):
    names = [row["name"] for row in job["baselines"]]

    assert "llama-3.1-8b" in names
    assert len(names) == 3
    llama = next(r for r in job["baselines"] if r["name"] == "llama-3.1-8b")
    assert llama["params"]["total"] == 8_030_261_248
    assert llama["serve"]["kv_bytes_per_token"] == 131_072


def test_every_row_has_loss_days_cache_time_and_findings(job):
    for row in job["front"] + job["baselines"]:
        assert row["loss"]["low"] < row["loss"]["value"] < row["loss"]["high"]
        assert row["loss"]["difference"]["unit"] == "nats/token"
        assert row["train"]["days"]["low"] < row["train"]["days"]["value"]
        assert row["serve"]["kv_bytes_per_token"] > 0
        assert row["serve"]["tpot_seconds"]["value"] > 0
        assert isinstance(row["findings"], list)


def test_a_7b_is_labelled_as_extrapolated(job):
    for row in job["front"]:
        assert row["loss"]["extrapolated"] > 3
        assert "LAW-EXTRAPOLATED" in [f["code"] for f in row["findings"]]


def test_every_number_of_the_choice_has_a_reason_with_a_source(job):
    c = job["front"][job["choice"]]

    assert set(c["why"]) == {*c["dims"], "tied"}
    for lines in c["why"].values():
        assert lines[0].endswith("]")


def test_a_choice_on_a_bound_says_so(job):
    c = job["front"][job["choice"]]
    said = " ".join(f["field"] for f in c["findings"] if f["code"] == "ON-BOUND")
    for axis in job["unpriced"]:
        if axis["binding"]:
            assert said, axis


def test_the_text_names_what_is_exact_and_what_is_extrapolated():
    status, out, _ = run(*JOB)

    assert status == 0
    assert "Exact: parameters, FLOPs, KV bytes" in out
    assert "extrapolated" in out
    assert "llama-3.1-8b" in out


def test_saving_writes_a_config_for_every_shape_that_counts_the_same(tmp_path):
    from scantling.costs.count import parameters
    from scantling.formats import hf

    status, out, _ = run(
        "design", "--params", "125M", "--vocab", "50304", "--json", "--save", tmp_path
    )

    assert status == 0
    front = json.loads(out)["front"]
    for row in front:
        config = json.loads((tmp_path / row["name"] / "config.json").read_text())
        assert parameters(hf.read(config).spec).total == row["params"]["total"]
    assert "<svg" in (tmp_path / "report.html").read_text("utf-8")
    assert json.loads((tmp_path / "front.json").read_text())["choice"] is not None


@pytest.mark.oracle
def test_saved_configs_load_in_transformers_and_count_as_predicted(tmp_path):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    _, out, _ = run(*JOB, "--json", "--save", tmp_path)
    front = json.loads(out)["front"]
    for row in front[:: max(1, len(front) // 12)]:
        config = AutoConfig.from_pretrained(tmp_path / row["name"])
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        assert sum(p.numel() for p in model.parameters()) == row["params"]["total"]


# ---------------------------------------------------------------- what the answer no looks like


def test_an_impossible_budget_exits_1_and_says_what_removed_how_many():
    status, out, _ = run("design", "--params", "100", "--vocab", "128256")

    assert status == 1
    assert out.count("params within ±0.50%: 100 parameters allowed") == 1
    assert "within ±0.50%: params within" not in out
    assert "embedding table alone is 128,256" in out


def test_a_limit_that_nothing_keeps_says_what_would_be_needed():
    status, out, _ = run("design", "--params", "125M", "--vocab", "50304", "--days", "0.0001",
                         "--json")  # fmt: skip

    assert status == 1
    answer = json.loads(out)
    assert answer["feasible"] is False
    [limit] = answer["binding"]
    assert limit["limit"] == "training days"
    assert limit["needed"] > limit["allowed"] == 0.0001
    assert answer["removed"]["training days"] > 0


# ---------------------------------------------------------------- bad input

BAD_CONFIGS = {
    "": "is empty",
    "hello": "is no JSON",
    "[1, 2]": "holds a list",
    "[" * 100_000: "nested too deeply",
    '{"model_type": "llama", "hidden_size": -4}': "hidden_size -4 must lie between 1",
    '{"model_type": "llama", "hidden_size": 1e30}': "hidden_size 1e+30 must lie between 1",
    '{"model_type": "llama", "hidden_size": Infinity}': "hidden_size inf must lie between 1",
    '{"model_type": "llama", "hidden_size": NaN}': "hidden_size nan must lie between 1",
    '{"model_type": "llama", "hidden_size": "4096"}': "'4096' (text) must be a whole number",
    '{"model_type": "llama", "hidden_size": null}': "hidden_size must not be null",
    '{"model_type": "llama", "hidden_size": 4096.5}': "must be a whole number",
    '{"model_type": "llama", "attention_bias": "yes"}': "must be true or false",
    '{"model_type": "llama", "num_key_value_heads": 6}':
        "num_key_value_heads 6 must divide num_attention_heads 32; use 4 or 8",
    '{"model_type": "llama", "hidden_size": 512, "num_attention_heads": 6}':
        "num_attention_heads 6 must divide hidden_size 512; use 4 or 8",
    '{"model_type": "lama"}': "did you mean llama",
    '{"model_type": ["a"]}': "is not known",
    '{"hidden_size": 4096}': "model_type is missing",
    '{"model_type": "gpt_oss", "layer_types": ["full_attention"]}': "1 entries for 36 layers",
    '{"model_type": "qwen3_moe", "num_experts_per_tok": 500}': "must be at most",
    '{"model_type": "deepseek_v2", "moe_intermediate_size": 1408}':
        "num_experts_per_tok must not be null",
    '{"model_type": "gemma3", "text_config": 4}': "text_config 4 must be an object",
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), BAD_CONFIGS.items(), ids=lambda t: t[:40])
def test_a_bad_config_is_one_clear_line_and_exit_2(tmp_path, text, said):
    path = tmp_path / "config.json"
    path.write_text(text, "utf-8")

    status, out, err = run("analyze", path)

    assert status == 2
    assert said in err
    assert len(err.splitlines()) == 1
    assert not out


def test_a_file_that_is_no_text_is_one_clear_line(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(bytes(range(256)) * 9)

    assert run("analyze", path)[0] == 2
    assert "no text file" in run("analyze", path)[2]


BAD_CALLS = {
    "design": "has no size",
    "design --params abc": "--params abc is not a number",
    "design --params -7B": "must be above zero",
    "design --params 7Q": "unknown suffix",
    "design --params 1e30": "beyond every model",
    "design --params 7B --gpu h1000": "did you mean h100-sxm",
    "design --params 7B --gpu t4": "has no rate on t4",
    "design --params 7B --tied --untied": "contradicts --untied",
    "design --params 7B --tokens 1T --flops 1e20": "contradicts params and tokens",
    "design --params 7B --fix n_heads=32": "did you mean n_head",
    "design --params 7B --fix n_head=32 --fix n_kv_head=5": "must divide n_head 32; use 4 or 8",
    "design --params 7B --fix n_head=32 --bound n_head=8:64": "both fixed and bounded",
    "design --params 7B --bound n_head=64:8": "n_head 64:8 is an empty range",
    "design --params 7B --active 3B --dense": "--active contradicts --dense",
    "design --params 7B --active 8B": "active 8,000,000,000 must be above 0 and below",
    "design --params 125M --engine spark": "known: auto, here, pool, ray, slurm",
    "design --params 7B --law best": "law best is not known",
    "design --params 7B --objective speed=1": "use loss, training_days",
    "design --params 7B --tolerance 2": "must lie between 0 and 1",
    "design --params 7B --tolerance 5ms": "is no share",
    "design --list-legal": "needs a width",
    "analyze nosuch": "is not known",
    "analyze org/repo": "org/repo/config.json cannot be fetched",
    "analyze nosuch.json": "does not exist",
    "analyze llama-3.1-8b --set n_kv_head=5": "must divide n_head 32; use 4 or 8",
    "analyze llama-3.1-8b --set n_heads=5": "did you mean n_head",
    "analyze llama-3.1-8b --set n_head": "is no assignment",
    "analyze llama-3.1-8b --why n_expert": "is no field of this model",
    "analyze llama-3.1-8b --vary n_layer=5:1": "is an empty range",
    "analyze llama-3.1-8b --vary n_layer=1:5 --hold money": "cannot be held",
    "analyze llama-3.1-8b --hold params": "needs --vary",
    "analyze llama-3.1-8b --flops none": "use full, unpadded, causal, palm",
    "analyze llama-3.1-8b --dtype fp12": "is not known",
    "analyze gpt2 --context 1e30": "must be at least 1",
    "analyze gpt2 --batch 0": "must be above zero",
    "analyze gpt2 --batch 1,8": "--batch 1,8 is not a number",
    "analyze gpt2 --plot v.svg": "needs --vary",
    "analyze llama-3.1-8b --why hidden_size": "did you mean d_model",
    "design --params 125M --days 0": "must be above zero",
    "design --params 125M --bound n_layer=nan:9": "is an empty range",
    "design --params 125M --bound d_model=1:inf": "is an empty range",
    "compare gpt2": "needs two models",
    "chips h1000": "did you mean",
    "analize gpt2": "did you mean analyze",
    "design --parms 7B": "--params",
}


@pytest.mark.parametrize(("call", "said"), BAD_CALLS.items(), ids=BAD_CALLS)
def test_a_bad_call_is_one_clear_line_and_exit_2(call, said):
    status, _, err = run(*call.split())

    assert status == 2
    assert said in err
    assert len(err.splitlines()) == 1


def test_the_real_process_prints_the_line_on_standard_error_and_no_traceback():
    found = subprocess.run(
        [sys.executable, "-m", "scantling", "analyze", "nosuch"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert found.returncode == 2
    assert found.stderr.startswith("error: model nosuch is not known")
    assert "Traceback" not in found.stderr
    assert not found.stdout


def test_one_bad_model_does_not_hide_the_others(tmp_path):
    (tmp_path / "bad.json").write_text("{}")

    status, out, err = run("analyze", "gpt2", tmp_path / "bad.json", "qwen3-8b", "--json")

    assert status == 2
    assert [json.loads(line)["model"] for line in out.splitlines()] == ["gpt2", "qwen3-8b"]
    assert "bad.json" in err


# ---------------------------------------------------------------- the other verbs


def test_analyze_follows_the_contract():
    _, out, _ = run("analyze", "mixtral-8x7b", "--batch", "1", "--context", "128", "--json")
    answer = json.loads(out)

    assert answer["schema"] == 1
    assert set(answer["params"]["by_part"]) == {
        "embedding", "lm_head", "attention", "mixer", "ffn", "shared_experts", "experts",
        "router", "norm", "other",
    }  # fmt: skip
    assert sum(answer["params"]["by_part"].values()) == answer["params"]["total"] == 46_702_792_704
    assert answer["params"]["active"] == 12_879_925_248
    assert answer["flops"]["macs_forward"] * 2 == answer["flops"]["forward"] == 3_272_228_208_640
    assert set(answer["kv_cache"]) >= {
        "bytes_per_token", "bytes", "allocated_bytes", "state_bytes"
    }  # fmt: skip


def test_a_config_on_standard_input_is_read():
    status, out, _ = run("analyze", "-", "--json", text='\ufeff{"model_type": "gpt2"}')

    assert status == 0
    assert json.loads(out)["params"]["total"] == 124_439_808
    assert "byte-order mark" in json.loads(out)["notes"][0]


def test_set_shows_the_answer_before_and_after():
    _, out, _ = run("analyze", "llama-3.1-8b", "--set", "n_kv_head=4", "--json")
    answer = json.loads(out)

    assert answer["before"]["kv_cache"]["bytes_per_token"] == 131_072
    assert answer["kv_cache"]["bytes_per_token"] == 65_536


def test_vary_holds_the_parameters():
    _, out, _ = run("analyze", "llama-3.1-8b", "--vary", "n_kv_head=1:32", "--hold", "params",
                    "--json")  # fmt: skip
    rows = json.loads(out)["rows"]

    assert [row["value"] for row in rows] == [1, 2, 4, 8, 16, 32]  # the divisors of 32
    for row in rows:
        assert abs(row["params"] / 8_030_261_248 - 1) < 0.004
    assert [row["kv_bytes_per_token"] for row in rows] == [16_384 * row["value"] for row in rows]


def test_vary_draws_a_picture(tmp_path):
    status, _, _ = run("analyze", "gpt2", "--vary", "n_layer=6:18:6", "--plot", tmp_path / "v.svg")

    assert status == 0
    assert "<svg" in (tmp_path / "v.svg").read_text("utf-8")


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-3-4b", "gpt2", "qwen3-8b"])
@pytest.mark.parametrize("field", ["n_layer=8:64:7", "n_head=8:64:8", "d_model=1024:8192:512"])
def test_held_parameters_are_within_one_percent_in_every_row(name, field):
    status, out, _ = run("analyze", name, "--vary", field, "--hold", "params", "--json")

    assert status == 0
    total = catalog.named()[name].parameters
    rows = json.loads(out)["rows"]
    assert rows
    assert all(abs(row["params"] / total - 1) <= 0.01 for row in rows)


SAMPLE = [
    *sorted(catalog.named())[::13], "deepseek-v3", "deepseek-v2-lite", "mixtral-8x7b",
    "gpt-oss-20b", "llama-4-scout", "opt-350m", "gemma-3-4b", "gpt2",
]  # fmt: skip
"""Every thirteenth model, and experts, latent attention, windows, chunks, learned positions."""
NOT_PRICED = {
    "vocab_size", "top_k", "n_expert_group", "top_k_group", "kv_rank", "q_rank", "d_nope", "d_rope",
    "d_value", "rows",
}  # fmt: skip


def test_the_sample_has_twenty_models_of_every_kind():
    fields = {f for name in SAMPLE for f in dimensions(catalog.loaded(name).spec)}

    assert len(set(SAMPLE)) >= 20
    assert fields >= NOT_PRICED


@pytest.mark.parametrize("name", SAMPLE)
def test_why_explains_every_dimension_of_a_model(name):
    for field, value in dimensions(catalog.loaded(name).spec).items():
        status, out, _ = run("analyze", name, "--why", field)
        lines = out.splitlines()

        assert status == 0, field
        assert lines[0] == f"{name}: {field} {int(value)}"
        assert lines[1].endswith("]")
        for line in lines[2:]:
            if "instead:" in line:
                assert ("loss not priced" in line) == (field in NOT_PRICED), line


def test_why_explains_a_number_of_an_existing_model_with_prices():
    _, out, _ = run("analyze", "llama-3.1-8b", "--why", "d_model")

    assert "4095 instead" in out
    assert "4224 instead" in out
    assert "as in" in out


def test_compare_decomposes_growth():
    """GPT-1 (12 × 768) against a model of 8 times the depth and 16 times the width."""
    _, out, _ = run("compare", "gpt2", "llama-3.1-405b", "--json")
    step = json.loads(out)["decomposition"][0]

    assert step["depth"] == 126 / 12
    assert step["width_squared"] == (16384 / 768) ** 2
    assert step["total"] == pytest.approx(405_853_388_800 / 124_439_808)
    assert step["depth"] * step["width_squared"] * step["rest"] == pytest.approx(step["total"])


def test_trace_adds_up_to_the_model():
    for name in ("gpt2", "gemma-3-1b", "deepseek-v3", "gpt-oss-20b"):
        _, out, _ = run("trace", name, "--context", "128", "--json")
        stages = json.loads(out)["stages"]
        _, counted, _ = run("analyze", name, "--context", "128", "--json")
        counted = json.loads(counted)

        assert sum(s["params"] for s in stages) == counted["params"]["total"]
        assert sum(s["flops"] for s in stages) == counted["flops"]["forward"]


def test_lists_answer_in_text_and_json():
    for verb, key in (("models", "models"), ("chips", "chips"), ("laws", "laws")):
        status, out, _ = run(verb, "--json")
        assert status == 0
        assert json.loads(out)[key]
        assert run(verb)[0] == 0
    assert run("chips", "NVIDIA H100 80GB HBM3")[0] == 0
    assert run("models", "llama-3.1-8b")[0] == 0


def test_legal_heads_are_listed():
    status, out, _ = run("design", "--list-legal", "--fix", "d_model=3584", "--tp", "8", "--json")
    rows = json.loads(out)["legal"]

    assert status == 0
    assert all(r["n_head"] % 8 == 0 for r in rows)
    assert all(r["n_kv_head"] % 8 == 0 or 8 % r["n_kv_head"] == 0 for r in rows)
    assert any(r["n_head"] == 32 and r["n_kv_head"] == 8 for r in rows)


# ---------------------------------------------------------------- sizes, files, narrow terminals


@pytest.mark.parametrize("path", ["front.txt", "front", "nosuch/front.svg"])
@pytest.mark.parametrize("call", [["design", "--params", "7B"],
                                  ["analyze", "gpt2", "--vary", "n_layer=6:18"]])  # fmt: skip
def test_a_picture_that_cannot_be_written_is_an_error_before_any_search(
    tmp_path, monkeypatch, path, call
):
    def never(*_args, **_kwargs):
        pytest.fail("the search ran first")

    monkeypatch.setattr("scantling.search.sweep", never)
    monkeypatch.setattr("scantling.search.space", never)
    monkeypatch.setattr("scantling.report.vary.varied", never)
    status, out, err = run(*call, "--plot", tmp_path / path)

    assert status == 2
    assert "--plot" in err
    assert not out
    assert not list(tmp_path.iterdir())


def test_days_on_chips_give_a_size():
    status, out, _ = run("design", "--days", "30", "--gpus", "64", "--json")
    answer = json.loads(out)

    assert status == 0
    assert 10e9 < answer["budget"]["params"] < 60e9
    assert all(row["train"]["days"]["value"] <= 30 for row in answer["front"])
    assert any(text.startswith("flops: ") and "30 days on 64 × h100-sxm" in text
               for text in answer["budget"]["assumed"])  # fmt: skip


def test_what_the_command_line_assumes_is_listed():
    _, out, _ = run("design", "--params", "125M")
    assumed = [line.split()[1] for line in out.splitlines() if line.startswith("assumed ")]

    assert assumed == ["vocab:", "tokens:", "context:", "gpu:", "gpus:"]
    assert "assumed" not in run(*JOB)[1]


def test_a_ratio_is_bounded_on_the_command_line():
    _, out, _ = run("design", "--params", "125M", "--bound", "attention_width_ratio=1:1.2",
                    "--json")  # fmt: skip

    for row in json.loads(out)["front"]:
        d = row["dims"]
        assert 1 <= d["n_head"] * d["d_head"] / d["d_model"] <= 1.2


TABLES = [
    ["design", "--params", "125M", "--rows", "8"],
    ["design", "--list-legal", "--fix", "d_model=1024"],
    ["analyze", "deepseek-v3"],
    ["analyze", "llama-3.1-8b", "--set", "n_kv_head=4"],
    ["analyze", "llama-3.1-8b", "--vary", "n_kv_head=1:32", "--hold", "params"],
    ["compare", "gpt2", "llama-3.1-405b", "deepseek-v3", "mixtral-8x7b"],
    ["models", "--type", "llama"],
    ["chips"],
]


def tables_at(width, call, monkeypatch):
    """The cells of every table a call prints on a terminal of a width, a list of lines a table."""
    found = []

    def terminal(**options):
        return Console(highlight=False, soft_wrap=True, force_terminal=True, color_system=None,
                       width=width, **options)  # fmt: skip

    def show(out, table):
        with out.capture() as capture:
            real(out, table)
        lines = [line.rstrip() for line in capture.get().splitlines()]
        hidden = [line for line in lines if line.startswith("too narrow for: ")]
        lines = [line for line in lines if line not in hidden and line.strip(" ─")]
        assert all(len(line) <= width for line in lines)
        found.append(([re.split(r"\s{2,}", line.strip()) for line in lines], hidden))

    real = text_report.show_table
    with monkeypatch.context() as patch:
        patch.setattr(text_report, "console", terminal)
        patch.setattr(text_report, "show_table", show)
        assert run(*call)[0] == 0
    return found


@pytest.mark.parametrize("call", TABLES, ids=" ".join)
def test_a_narrow_terminal_never_cuts_a_cell(call, monkeypatch):
    whole = tables_at(2000, call, monkeypatch)

    assert whole
    assert not any(hidden for _, hidden in whole)
    for width in (80, 100, 120):
        narrow = tables_at(width, call, monkeypatch)
        assert len(narrow) == len(whole)
        for (lines, hidden), (full, _) in zip(narrow, whole, strict=True):
            assert len(lines) == len(full)
            for cells, known in zip(lines, full, strict=True):
                assert not any("…" in cell for cell in cells)
                assert cells == known[: len(cells)]
            assert hidden or lines == full


def test_help_and_version_need_no_numpy():
    code = (
        "import sys, scantling, scantling.cli; "
        "from click.testing import CliRunner; "
        "assert CliRunner().invoke(scantling.cli.group, ['--help']).exit_code == 0; "
        "sys.exit('numpy' in sys.modules or 'rich' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
