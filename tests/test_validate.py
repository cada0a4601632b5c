"""Predictions meet public tables: nothing is dropped in silence, and every figure is derivable."""

import csv
import itertools
import json
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import scantling
from scantling import catalog, cli
from scantling.costs import serve
from scantling.errors import FieldError, ScantlingError
from scantling.hardware import chip, chips
from scantling.report import validate as report
from scantling.report.validate_html import page
from scantling.spec import vary
from scantling.validate import readers, serving, table
from scantling.validate.score import Errors, complaint, errors, pooled, quantile
from scantling.validate.table import NotScoredError, Reader, Scored

SHARED = Path(__file__).parents[2] / "shared"
TABLES = SHARED / "data" / "measured"
needs_tables = pytest.mark.skipif(not TABLES.exists(), reason=f"{TABLES} is not here")

KEYS = {
    "table", "quantity", "rows", "scored", "skipped", "excluded", "mape", "median_ape", "p90_ape",
    "interval_coverage", "interval_width",
}  # fmt: skip


def double(row):
    """Predicts twice the column ``given``, within ±50 %; a fixture, no model."""
    if row["note"] == "bad":
        raise NotScoredError("measured badly", excluded=True)
    if row["note"] == "unknown":
        raise ScantlingError("nobody knows this one")
    if row["note"] == "strange":
        raise KeyError(row["id"])
    value = 2 * float(row["given"])
    return Scored(row=row["id"], group="g", actual=float(row["actual"]), predicted=value,
                  low=value / 2, high=value * 1.5, by=row["part"])  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of tables, and the one reader that knows one of them."""
    readers()
    monkeypatch.setattr(table, "TABLES", [Reader(table="doubles.csv", quantity="size, m",
                                                 predict=double)])  # fmt: skip
    rows = [
        "id,given,actual,note,part",
        "a,1,2,,x",  # right
        "b,1,4,,x",  # −50 %, above the interval of 1 to 3
        "c,2,3.2,,y",  # +25 %, inside 2 to 6
        "d,1,2,bad,x",
        "e,1,2,unknown,x",
        "f,one,2,,x",
        "g,,2,,x",
        "h,1,2,strange,x",
    ]
    (tmp_path / "doubles.csv").write_text("\n".join(rows) + "\n", "utf-8")
    (tmp_path / "strangers.csv").write_text("id,weight\n1,2\n2,3\n", "utf-8")
    (tmp_path / "empty.csv").write_text("id,given\n", "utf-8")
    (tmp_path / "INDEX.csv").write_text("file,rows\ndoubles.csv,8\n", "utf-8")
    return tmp_path


def run(*args):
    found = CliRunner().invoke(cli.group, [str(a) for a in args], standalone_mode=False)
    if isinstance(found.exception, ScantlingError):
        return 2, "", f"error: {found.exception}"
    assert found.exception is None, repr(found.exception)
    return found.return_value or 0, found.stdout, found.stderr


# ---------------------------------------------------------------- every row is accounted for


def test_every_row_is_scored_excluded_or_skipped_with_its_reason(folder):
    doubles, empty, strangers = scantling.validate(folder)

    assert (doubles.rows, doubles.errors.scored, doubles.skipped, doubles.excluded) == (8, 3, 4, 1)
    reasons = {text: (n, out) for text, n, out in doubles.reasons}
    assert reasons["measured badly"] == (1, True)
    assert reasons["nobody knows this one"] == (1, False)
    assert reasons["nothing is known of 'h'"] == (1, False)
    assert sum(n for n, _ in reasons.values()) == 5
    assert empty.reasons == (("the table is empty", 0, False),)
    assert strangers.skipped == strangers.rows == 2
    assert strangers.reasons[0][0] == "no reader knows this table"


def test_the_errors_are_those_worked_out_by_hand(folder):
    found = scantling.validate(folder, ["doubles"])[0].errors

    assert found.mape == pytest.approx((0 + 0.5 + 0.25) / 3)
    assert found.median_ape == pytest.approx(0.25)
    assert found.p90_ape == pytest.approx(0.25 + 0.8 * 0.25)
    assert found.bias == pytest.approx(0)
    assert found.interval_coverage == pytest.approx(2 / 3)
    assert found.interval_width == pytest.approx((1.5 - 0.5) / 2)
    assert found.equal == 1


def test_a_breakdown_is_that_of_its_own_rows(folder):
    parts = dict(scantling.validate(folder, ["doubles"])[0].by)

    assert parts["x"].scored == 2
    assert parts["x"].mape == pytest.approx(0.25)
    assert parts["y"].mape == pytest.approx(0.25)


def test_the_worst_row_comes_first(folder):
    assert [s.row for s in scantling.validate(folder, ["doubles"])[0].worst(2)] == ["b", "c"]


def test_a_missing_column_is_a_reason_and_not_a_traceback(folder):
    (folder / "doubles.csv").write_text("id,given,actual,note\na,1,2,\n", "utf-8")
    found = scantling.validate(folder, ["doubles"])[0]

    assert found.reasons == (("the table has no column 'part'", 1, False),)


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["nowhere"], "is no folder and no CSV file"),
        (["EMPTY"], "holds no CSV file"),
        (["FOLDER", "--table", "double"], "did you mean doubles?"),
        (["FOLDER", "--html", "no/such/x.html"], "lies in a folder that does not exist"),
    ],
)
def test_bad_input_is_one_clear_line(folder, args, line):
    (folder / "nothing").mkdir()
    places = {"FOLDER": str(folder), "EMPTY": str(folder / "nothing")}
    status, _, error = run("validate", "--tables", *(places.get(a, a) for a in args))

    assert status == 2
    assert line in error
    assert "\n" not in error.strip()


def test_a_file_that_is_no_text_is_refused(folder):
    (folder / "doubles.csv").write_bytes(b"id\xff\xfe\n\x80\n")

    with pytest.raises(FieldError, match="cannot be read"):
        scantling.validate(folder)


def test_progress_reaches_the_number_of_rows(folder):
    seen = []
    scantling.validate(folder, progress=lambda *state: seen.append(state))

    assert seen[-1] == ("doubles", 8, 8)


# ---------------------------------------------------------------- the report


def test_json_keeps_its_contract(folder):
    status, out, _ = run("validate", "--tables", folder, "--json", "--worst", 1)
    answer = json.loads(out)

    assert status == 0
    assert answer["schema"] == 1
    for entry in answer["tables"]:
        assert entry.keys() >= KEYS
        assert entry["rows"] == entry["scored"] + entry["skipped"] + entry["excluded"]
    assert [w["row"] for w in answer["tables"][0]["worst"]] == ["b"]


def test_where_nothing_can_be_scored_the_answer_is_no(folder):
    assert run("validate", "--tables", folder, "--table", "strangers")[0] == 1


def test_the_text_names_reasons_parts_and_worst_rows(folder):
    _, out, _ = run("validate", "--tables", folder)

    for text in ("no reader knows this table", "the table is empty", "excluded 1: measured badly",
                 "b [x] predicted 2 measured 4 (-50 %, outside)", "25.0 %"):  # fmt: skip
        assert text in out


def test_markdown_says_the_same(folder):
    text = report.markdown(scantling.validate(folder))

    assert "- excluded 1: measured badly" in text
    assert "| [doubles](#doubles-size-m) | size, m | 8 | 3 | 4 | 1 | 25.0 % |" in text


class Page(HTMLParser):
    """What a page refers to, and its labels."""

    def __init__(self):
        super().__init__()
        self.links, self.labels, self.scripts = [], [], 0

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.links += [v for k, v in given.items() if k in {"href", "src"}]
        self.scripts += tag == "script"
        if tag == "svg":
            self.labels.append(given["aria-label"])


def test_the_page_needs_nothing_beside_it(folder):
    html = page(scantling.validate(folder))
    found = Page()
    found.feed(html)

    assert not found.scripts
    assert all(link.startswith("#") for link in found.links)
    assert found.labels == ["Predicted against measured size, m", "Rows by error of size, m"]
    for start in range(html.count("<svg")):
        drawing = html.split("<svg")[start + 1].split("</svg>")[0]
        ET.fromstring(f"<svg{drawing}</svg>")


def test_every_scored_row_of_a_small_table_is_drawn(folder):
    html = page(scantling.validate(folder, ["doubles"]))

    assert html.count('class="hit" ') == 2 + 1  # and one in the legend
    assert html.count('class="miss" ') == 1 + 1


def test_intervals_that_break_their_promise_are_called_out():
    good = {"scored": 100, "median_ape": 0.1, "interval_width": 0.2}

    assert complaint(Errors(**good, interval_coverage=0.9)) == ""
    assert complaint(Errors(**good, interval_coverage=0.5)) == "too narrow"
    assert complaint(Errors(**good, interval_coverage=0.99)) == "too wide"
    wide = good | {"interval_width": 0.21, "interval_coverage": 0.9}
    assert complaint(Errors(**wide)) == "too wide"


def test_small_tables_are_judged_together(folder):
    found = pooled(scantling.validate(folder))

    assert found.scored == 3


def test_quantiles_are_numpys():
    values = sorted(np.random.default_rng(0).random(101).tolist())

    for share in (0.05, 0.5, 0.9, 1.0):
        assert quantile(values, share) == pytest.approx(float(np.quantile(values, share)))


def test_no_rows_have_no_errors():
    assert errors([]).mape is None


# ---------------------------------------------------------------- serving

LLAMA = "llama-3.1-70b"
EIGHT = serve.Deployment(tp=8, weights="fp8", cache="fp8")


def test_of_256_experts_of_which_8_are_chosen_64_tokens_reach_as_many_as_drawn_at_random():
    w = serve.demand(catalog.model("deepseek-v3"), chip("h200"), serve.Deployment(tp=8), 64, 1024)
    layers, size = 58, 3 * 2048 * 7168 * 2
    drawn = np.random.default_rng(1)
    reached = np.mean([
        len({int(e) for _ in range(64) for e in drawn.permutation(256)[:8]}) for _ in range(200)
    ])  # fmt: skip

    bytes_read = float(w.experts_s) * chip("h200").memory_bytes_per_s
    assert bytes_read * 8 / (layers * size) == pytest.approx(reached, rel=0.01)


def test_weights_of_a_chip_are_its_share_and_scales_count():
    spec = catalog.model(LLAMA)
    head = 2 * spec.vocab_size * spec.d_model
    body = scantling.parameters(spec).total - head

    assert serve.weights_bytes(spec, EIGHT) == pytest.approx((body + 2 * head) / 8)
    four = serve.Deployment(weights="fp4")
    assert serve.weights_bytes(spec, four) == pytest.approx(body * 0.5625 + 2 * head)


def test_a_kv_head_is_held_whole_where_chips_outnumber_them():
    spec = catalog.model(LLAMA)  # 8 KV heads of width 128, 80 layers
    one = 80 * 2 * 128 * 1000

    found = [serve.sequence_bytes(spec, serve.Deployment(tp=t, cache="fp8"), 1000)
             for t in (1, 8, 16)]  # fmt: skip
    assert found == [8 * one, one, one]


def test_a_latent_is_held_by_every_chip():
    spec = catalog.model("deepseek-v3")  # rank 512 and 64 rotary, 61 layers
    found = serve.sequence_bytes(spec, serve.Deployment(tp=8, cache="fp8"), 1000)

    assert found == 61 * 576 * 1000


@pytest.mark.parametrize("name", [LLAMA, "deepseek-v3", "gpt-oss-120b"])
def test_a_column_of_loads_is_each_load(name):
    spec, one = catalog.model(name), chip("b200")
    prompts, loads = np.array([1024, 8192, 1024]), np.array([1, 16, 256])
    many = serve.serving(spec, one, EIGHT, prompts, 1024, loads)

    for i, (prompt, n) in enumerate(zip(prompts, loads, strict=True)):
        alone = serve.serving(spec, one, EIGHT, int(prompt), 1024, int(n))
        for times in ("tpot_s", "ttft_s", "tokens_per_s"):
            column, value = getattr(many, times), getattr(alone, times)
            assert column.value[i] == pytest.approx(value.value, rel=1e-12)
            assert column.low[i] == pytest.approx(value.low, rel=1e-12)


def test_a_column_of_shapes_is_each_shape():
    spec = catalog.model("llama-3.1-8b")
    changes = {"n_layer": [24, 32, 48], "d_model": [2048, 4096, 5120], "d_ff": [6144, 14336, 8192]}
    many = serve.serving(
        vary(spec, **{k: np.array(v) for k, v in changes.items()}),
        chip("h100"),
        EIGHT,
        2048,
        512,
        8,
    )

    for i in range(3):
        shape = vary(spec, **{k: v[i] for k, v in changes.items()})
        alone = serve.serving(shape, chip("h100"), EIGHT, 2048, 512, 8)
        assert many.tpot_s.value[i] == pytest.approx(alone.tpot_s.value, rel=1e-12)
        assert many.cache_bytes[i] == pytest.approx(alone.cache_bytes, rel=1e-12)


def test_more_in_flight_take_longer_each_and_give_more_together():
    loads = np.array([1, 4, 16, 64, 256])
    found = serve.serving(catalog.model(LLAMA), chip("b200"), EIGHT, 1024, 1024, loads)

    assert (np.diff(found.tpot_s.value) > 0).all()
    assert (np.diff(found.tokens_per_s.value) > 0).all()


def test_no_time_lies_below_reading_the_weights_once():
    spec = catalog.model(LLAMA)
    for key, tp in itertools.product(("h100-sxm", "l40s", "mi300x"), (1, 8)):
        d = serve.Deployment(tp=tp, weights="fp8", cache="fp8")
        found = serve.serving(spec, chip(key), d, 128, 128, 1)
        reading = serve.weights_bytes(spec, d) / chip(key).memory_bytes_per_s
        head = 2 * spec.vocab_size * spec.d_model / tp / chip(key).memory_bytes_per_s
        assert found.tpot_s.low >= reading - head  # the embedding is looked up, not read
        assert found.tpot_s.low < found.tpot_s.value < found.tpot_s.high


def test_what_the_memory_does_not_hold_waits():
    spec, one = catalog.model("llama-3.1-8b"), chip("h100")
    few = serve.serving(spec, one, serve.Deployment(), 8192, 8192, 8)
    many = serve.serving(spec, one, serve.Deployment(), 8192, 8192, 10_000)

    assert not few.queues
    assert many.queues
    assert many.sequences == pytest.approx(
        (one.usable_bytes * 0.9 - many.weights_bytes) / (16384 * 131072)
    )


def test_every_chip_has_constants_of_serving():
    for one in chips().values():
        assert serve.serve_constants(one).kind in {"fitted", "assumed"}


ROW = {
    "row_id": "r", "model": "deepseek-ai/DeepSeek-R1", "system": "b200_sxm", "precision": "fp8",
    "gemm_quant_mode": "fp8_block", "moe_quant_mode": "fp8_block", "isl": "1024", "osl": "1024",
    "quality": "A", "ttft_ms": "100", "tpot_ms": "20", "batch_size": "32", "concurrency": "32",
}  # fmt: skip


@pytest.mark.parametrize(
    ("tp", "dp", "experts_tp", "ep", "batch", "expected"),
    [
        ("8", "1", "8", "1", "32", (8, 1, 32)),
        ("64", "1", "8", "8", "32", (8, 1, 32)),
        ("16", "1", "4", "4", "32", (4, 1, 32)),
        ("1", "8", "1", "8", "4", (1, 8, 32)),
        ("1", "64", "8", "8", "0.5", (1, 8, 32)),
        ("4", "4", "1", "16", "8", (1, 4, 32)),
        ("8", "", "1", "8", "4", (1, 8, 32)),
    ],
)
def test_degrees_that_name_the_same_chips_are_read_apart(tp, dp, experts_tp, ep, batch, expected):
    row = ROW | {"tp_size": tp, "attention_dp_size": dp, "moe_tp_size": experts_tp,
                 "moe_ep_size": ep, "batch_size": batch}  # fmt: skip

    assert serving.split(row, catalog.model("deepseek-v3")) == expected


def test_chips_of_several_workers_are_no_degree():
    row = ROW | {"tp_size": "72", "attention_dp_size": "1", "moe_tp_size": "72",
                 "moe_ep_size": "1"}  # fmt: skip

    with pytest.raises(NotScoredError, match="no degree of one model") as caught:
        serving.split(row, catalog.model("deepseek-v3"))
    assert caught.value.excluded


# ---------------------------------------------------------------- the public tables


def table_rows(name):
    with (TABLES / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@needs_tables
def test_a_measurement_that_stands_under_two_layouts_is_read_as_one():
    """One benchmark run, to the last digit of both times, is recorded with different degrees."""
    seen = {}
    for row in table_rows(serving.SERVING):
        if row["quality"].startswith("C") or row["system"] == "gb200":
            continue
        key = (row["system"], row["isl"], row["concurrency"], row["ttft_ms"], row["tpot_ms"])
        found = serving.split(row, catalog.resolve(row["model"]).spec)
        seen.setdefault(key, {})[row["tp_size"], row["attention_dp_size"]] = found
    twins = [found for found in seen.values() if len(found) > 1]

    assert len(twins) > 40
    assert all(len(set(found.values())) == 1 for found in twins)


@pytest.fixture(scope="module")
def scored():
    return {(t.table, t.quantity.split(",")[0]): t
            for t in scantling.validate(TABLES, [
                "serving_e2e_aiconfigurator", "infer_trtllm_fixed_batch",
                "infer_trtllm_max_throughput", "infer_llamacpp_readme"])}  # fmt: skip


@needs_tables
def test_time_per_token_keeps_its_bars(scored):
    found = scored["serving_e2e_aiconfigurator", "time per output token"]
    parts = dict(found.by)
    dense = [s for s in found.points if s.by.startswith("dense")]

    assert parts["dense A"].mape <= 0.14
    assert errors(dense).mape <= 0.20
    assert errors([s for s in found.points if s.by.startswith("MoE")]).mape <= 0.25
    assert 0.85 <= found.errors.interval_coverage <= 0.97


@needs_tables
def test_fixed_batches_keep_their_bar(scored):
    assert scored["infer_trtllm_fixed_batch", "output rate at a fixed batch"].errors.mape <= 0.20


@needs_tables
def test_all_rows_but_the_excluded_are_scored(scored):
    for found in scored.values():
        assert found.errors.scored >= 0.95 * (found.rows - found.excluded), found.reasons


@needs_tables
def test_no_reader_waits_for_a_table_that_does_not_exist():
    assert {reader.table for reader in readers()} <= {p.name for p in TABLES.glob("*.csv")}
