"""Positions of sine waves: no parameters, and not no positions (XGLM, M2M-100)."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from scantling import cli
from scantling.costs.axes import design_axes
from scantling.costs.count import parameters
from scantling.formats import hf
from scantling.rules import lint

SMALL = {"model_type": "xglm", "vocab_size": 64, "d_model": 32, "num_layers": 1,
         "attention_heads": 2, "ffn_dim": 64}  # fmt: skip


def test_xglm_has_sine_waves_that_hold_no_parameters():
    """564,463,616 of the real class on the meta device: no table of positions among them."""
    spec = hf.read({"model_type": "xglm"}).spec
    assert spec.embeddings.sines
    assert parameters(spec).total == 564_463_616
    assert hf.read({"model_type": "m2m_100"}).spec.embeddings.sines
    assert not hf.read({"model_type": "jamba"}).spec.embeddings.sines


def test_a_model_with_sine_waves_is_priced_as_one_with_positions():
    assert "nope_share" not in design_axes(hf.read({"model_type": "xglm"}).spec)


def test_a_config_with_sine_waves_survives_the_round_trip():
    spec = hf.read(SMALL).spec
    assert hf.read(hf.write(spec)).spec == spec


def test_trace_says_that_positions_are_waves(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "xglm"}')
    shown = CliRunner().invoke(cli.group, ["trace", str(tmp_path)], standalone_mode=False).stdout
    assert "sine waves" in shown
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    shown = CliRunner().invoke(cli.group, ["trace", str(tmp_path)], standalone_mode=False).stdout
    assert "sine waves" not in shown


def test_beyond_the_trained_length_waves_go_on_and_are_new():
    """XGLM was trained on 2048 tokens; its class makes waves of any length."""
    told = [f for f in lint({"model_type": "xglm"}, context=4096).findings if "sine" in f.message]
    assert [f.level for f in told] == ["warning"]


def test_the_waves_of_the_lab_are_those_of_the_class():
    torch = pytest.importorskip("torch")
    modeling = pytest.importorskip("transformers.models.xglm.modeling_xglm")
    from scantling.lab.parts import waves

    for width in (32, 33):
        theirs = modeling.XGLMSinusoidalPositionalEmbedding(64, width, 1)
        ids = torch.arange(20)[None]
        torch.testing.assert_close(waves(torch.zeros(1, 20, width)), theirs(ids)[0])
