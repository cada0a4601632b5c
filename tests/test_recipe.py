"""The article's recipe and its generator, counted; and the same labels answered by design."""

import importlib.util
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


recipe = load("recipe")

AUDITED = {
    "1B": 1.280, "3B": 3.212, "7B": 8.030, "13B": 12.321, "34B": 23.788, "70B": 70.554,
    "200B": 150.519, "400B+": 265.117,
}  # fmt: skip
"""Totals of the article's rows in billions, norms included (the audit's detail of the table)."""

GENERATED = {
    0.5: (24, 896, 7, 7, 2304, True, 0.340), 1: (24, 1408, 11, 11, 3840, True, 0.760),
    1.5: (24, 1792, 14, 14, 4864, True, 1.165), 3: (28, 2560, 20, 8, 6912, False, 2.656),
    7: (32, 3840, 30, 8, 13_312, False, 7.086), 13: (36, 5120, 40, 8, 17_920, False, 13.485),
    34: (44, 7680, 60, 8, 26_880, False, 35.098), 70: (52, 10_368, 81, 8, 36_352, False, 73.734),
    200: (64, 15_872, 124, 8, 55_552, False, 207.68),
    400: (74, 20_992, 164, 8, 73_472, False, 416.17),
}  # fmt: skip
"""What the audit found the restored generator to return (claim A156), totals in billions."""


@pytest.mark.parametrize("row", recipe.ROWS, ids=lambda r: r.label)
def test_the_article_s_rows_count_what_the_audit_counted(row):
    assert recipe.total(row.article) / 1e9 == pytest.approx(AUDITED[row.label], abs=6e-4)


def test_the_article_s_34b_is_the_only_row_whose_heads_do_not_split():
    assert [r.label for r in recipe.ROWS if not recipe.legal(r.article)] == ["34B"]


@pytest.mark.parametrize("billions", GENERATED)
def test_the_generator_returns_what_the_audit_ran(billions):
    *shape, total = GENERATED[billions]
    found = recipe.generated(billions * 1e9)
    assert list(found[:6]) == shape
    norms = (2 * found.n_layer + 1) * found.d_model  # the audit left them out here
    assert (recipe.total(found) - norms) / 1e9 == pytest.approx(total, abs=6e-4)


def test_the_generator_misses_by_a_third_and_breaks_groups_from_3b_up():
    """Illegal at 3, 7, 34, 70, 200, 400, 500 and 1000 B (headline 8 of the audit)."""
    sizes = (0.5, 1, 1.5, 3, 7, 13, 34, 70, 200, 400, 500, 1000)
    broken = [b for b in sizes if not recipe.legal(recipe.generated(b * 1e9))]
    assert broken == [3, 7, 34, 70, 200, 400, 500, 1000]
    half = recipe.generated(0.5e9)
    assert recipe.miss(recipe.total(half), 0.5e9) == pytest.approx(-0.319, abs=1e-3)


@pytest.mark.parametrize("row", recipe.ROWS, ids=lambda r: r.label)
def test_design_hits_every_label_of_the_recipe(row):
    """Within 0.5 % of the label, whole groups, heads over the GPUs of a node, full tiles."""
    c = recipe.ours(row)
    d = c.dims()
    assert abs(recipe.miss(int(c.counted.total), row.params)) <= recipe.WITHIN
    assert d["n_head"] % d["n_kv_head"] == 0
    assert recipe.aligned(c)
    assert d["vocab_size"] == row.article.vocab_size
