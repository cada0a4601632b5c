"""How much of what a search found its readable front keeps, as dominated volume."""

import numpy as np
import pytest

from scantling.search import budget, design, front_json
from scantling.search.front import epsilons, thin
from scantling.search.space import space
from scantling.search.sweep import sweep
from test_search import NARROW, every_shape, limits, objectives_of, spec_of

SIZES = (1e8, 1e9, 7e9, 34e9)


def volume(values, scale):
    """The hypervolume of rows in the box of the whole front; a tenth beyond it the reference."""
    import moocore

    low, high = scale
    return moocore.hypervolume((values - low) / (high - low), ref=np.full(values.shape[1], 1.1))


def box(values):
    return values.min(axis=0), values.max(axis=0)


def test_the_front_has_the_very_volume_of_all_shapes_priced_one_by_one():
    b = budget(**NARROW)
    kept = [s for s in every_shape(b) if all(limits(b, s).values())]
    alone = np.array([objectives_of(b, spec_of(b, *s)) for s in kept], dtype=float)
    swept = sweep(space(b), b).objectives
    assert len(swept) > 10
    assert volume(swept, box(swept)) == pytest.approx(volume(alone, box(swept)), rel=1e-9)


@pytest.mark.parametrize("params", SIZES, ids=lambda p: f"{p:.0e}")
def test_a_thinned_front_keeps_99_percent_of_the_volume(params):
    b = budget(params=params)
    values = sweep(space(b), b).objectives
    few = values[thin(values, epsilons(values))]
    kept = volume(few, box(values)) / volume(values, box(values))
    assert len(few) <= len(values)
    assert kept >= 0.99


def test_no_row_of_the_answer_is_beaten_in_every_objective_it_was_judged_by():
    rows = front_json(design(params="350M", n_gpu=8, baselines=()), reasons=False)["front"]
    values = [tuple(row["objectives"].values()) for row in rows]
    assert len(values) >= 10
    assert not any(
        all(x <= y for x, y in zip(a, b, strict=True)) and a != b
        for a in values for b in values
    )  # fmt: skip
