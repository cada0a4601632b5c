"""Released models run: none has an error, and few have a warning."""

import pathlib
import statistics

import pytest

from scantling import catalog
from scantling.rules import fix, lint, setting, subject

CONFIGS = pathlib.Path(__file__).parents[2] / "shared" / "data" / "configs"
RELEASED = sorted(CONFIGS.glob("*.json"))


@pytest.fixture(scope="module")
def reports():
    if not RELEASED:
        pytest.skip("needs the public configs in ../shared, which are not part of the project")
    return [lint(path) for path in RELEASED]


def test_no_released_config_has_an_error(reports):
    """Every error on a model that runs is a mistake of the rule."""
    wrong = [(r.model, f.code, f.message) for r in reports for f in r.findings
             if f.level == "error"]  # fmt: skip
    assert not wrong


def test_half_of_the_released_configs_have_fewer_than_five_warnings(reports):
    assert statistics.median(r.count("warning") for r in reports) < 5


def test_no_model_of_the_catalogue_has_an_error():
    wrong = [(name, f.code) for name in catalog.named() for f in lint(name).findings
             if f.level == "error"]  # fmt: skip
    assert not wrong


def test_a_sound_model_is_left_as_it_is():
    found = fix(subject("llama-3-8b"))

    assert not found.applied
    assert found.config == dict(catalog.named()["llama-3-8b"].config)


def test_an_odd_vocabulary_is_padded_and_the_change_is_priced():
    found = fix(subject({"model_type": "gpt2", "vocab_size": 50257}))

    assert found.config["vocab_size"] == 50304
    assert found.price["params"][1] - found.price["params"][0] == 47 * 768
    gain = found.applied[0].gain
    assert gain.low < gain.value < gain.high


def test_28_heads_on_8_ranks_become_a_legal_shape_of_the_same_size():
    found = fix(subject("qwen2.5-7b", setting(tp=8)))

    assert found.after.passed
    assert found.spec.n_head % 8 == 0
    assert found.spec.n_head % found.spec.n_kv_head == 0
    assert found.spec.d_ff % (8 * 16) == 0
    was, now = found.price["params"]
    assert abs(now / was - 1) < 0.01
    assert found.price["loss"].low < found.price["loss"].value < found.price["loss"].high
