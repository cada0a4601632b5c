"""Shapes that are said to be equal in time are equal in the time that ``costs`` predicts."""

import re
from importlib.resources import files

import pytest

from scantling.calibrate.predict import recipe_of
from scantling.costs.count import parameters
from scantling.costs.train import training_step
from scantling.errors import FieldError
from scantling.hardware import cluster
from scantling.hardware.chip_file import read_chip
from scantling.lab.match import iso, small
from scantling.spec.plan import Plan

CPU = str(files("scantling.data") / "reference_cpu.toml")


def predicted_s(spec, context=64, batch=16):
    """The step as ``costs.train`` predicts it on one thread, asked without the lab."""
    place = cluster(read_chip(CPU), 1, 1)
    return training_step(spec, Plan(zero=0, micro_batch=batch), recipe_of("fp32"), context,
                         place).step.value_s  # fmt: skip


@pytest.mark.parametrize(("depths", "seconds"), [([2, 4, 8], 0.04), ([1, 2, 16], 0.1)])
def test_shapes_of_one_time_take_it_by_the_costs(depths, seconds):
    shapes = iso(depths, time=seconds, chip=CPU)
    for shape, depth in zip(shapes, depths, strict=True):
        assert shape.spec.n_layer == depth
        assert predicted_s(shape.spec) == pytest.approx(seconds, rel=0.02)
        off = float(predicted_s(shape.spec)) / seconds - 1
        assert shape.matched["time"] == pytest.approx(off, abs=1e-4)


def test_equal_time_is_not_equal_parameters():
    """A deep narrow step has more calls and less to do in each, so it has fewer parameters."""
    wide, deep = (parameters(s.spec).body for s in iso([2, 16], time=0.04, chip=CPU))
    assert wide > 1.3 * deep


def test_a_longer_context_or_a_larger_batch_leaves_less_of_the_time_for_parameters():
    base = iso([4], time=0.05, chip=CPU)[0]
    for more in ({"context": 128}, {"batch": 32}):
        other = iso([4], time=0.05, chip=CPU, **more)[0]
        assert parameters(other.spec).body < parameters(base.spec).body
        size = {"context": 64, "batch": 16} | more
        assert predicted_s(other.spec, **size) == pytest.approx(0.05, rel=0.02)


def test_a_chip_with_half_the_products_gets_smaller_shapes(tmp_path):
    text = (files("scantling.data") / "reference_cpu.toml").read_text("utf-8")
    rate = re.search(r"(?m)^fp32 = (.*)$", text)
    path = tmp_path / "slow.toml"
    path.write_text(text.replace(rate[0], f"fp32 = {float(rate[1]) / 2}"))
    fast, slow = (iso([4], time=0.05, chip=chip)[0].spec for chip in (CPU, str(path)))
    assert parameters(slow).body < 0.8 * parameters(fast).body


@pytest.mark.parametrize(("given", "says"), [
    ({"time": 0.05}, "chip must be given to make times equal"),
    ({"time": 0.05, "chip": "abacus"}, "abacus"),
    ({"time": 1e-9, "chip": CPU}, "is met by no shape of 4 layers"),
    ({"time": 0.05, "body": 1e5, "chip": CPU}, "must make one quantity equal"),
])  # fmt: skip
def test_a_time_that_cannot_be_is_one_clear_line(given, says):
    with pytest.raises(Exception, match=says) as caught:
        iso([4], **given)
    assert isinstance(caught.value, FieldError) or "known" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_shapes_are_otherwise_like_is_kept():
    base = small(1, 64, 172, d_head=16, gated=False, activation="gelu")
    (shape,) = iso([3], time=0.05, chip=CPU, base=base)
    assert predicted_s(shape.spec) == pytest.approx(0.05, rel=0.02)
    feed = shape.spec.decoder.kinds[0].blocks[1].branches[0].module
    assert (feed.gated, feed.activation) == (False, "gelu")
