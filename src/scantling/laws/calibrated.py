"""A law moved by one offset to the user's recipe."""

from __future__ import annotations

import msgspec

from scantling.errors import FieldError
from scantling.laws.evaluate import evaluate
from scantling.laws.registry import FORMS, Facts, Law
from scantling.laws.runs import Runs

ONE_OFFSET = 0.07
"""What is left of the error of a law in another recipe after one offset, nats a token.

Four laws on nine tables of runs: 0.016 to 0.15, typically 0.03 to 0.07.
"""

ENOUGH_SIZES = 3
"""Runs of fewer sizes say nothing of how wrong the slope is."""


def calibrate_law(law: Law, runs: Runs, recipe: str = "") -> tuple[Facts, str]:
    """The facts of a law moved so that its median error on the runs is zero, and what that buys.

    One number cannot mend a slope. With runs of fewer than three sizes the interval is that of
    published laws after one offset; with more it is what the runs show, and never narrower than
    the law's own.

    Args:
        law: A law, or a law file's.
        runs: The user's runs; one is enough.
        recipe: What the runs have in common.

    Raises:
        FieldError: If the law is of a form that a file cannot name.

    Example:
        >>> from scantling.laws import law as known
        >>> from scantling.laws.runs import columns
        >>> run = {"params_nonemb": 4.4e8, "width": 1024, "depth": 28, "tokens": 1e10, "loss": 3.2}
        >>> facts, told = calibrate_law(known("aspect"), columns([run]))
        >>> facts.errors.interval_base, told
        (0.07, 'offset +0.158 from 1 run: an absolute loss was off by up to ±0.7, now by ±0.07')
    """
    name = law.facts.function or law.name
    if name not in FORMS:
        raise FieldError("law", law.name, "is of another package and cannot be written to a file")
    found = evaluate(law, runs)
    offset = -found.after_offset["offset"]
    errors = law.errors
    sizes = int(runs.sizes.max()) + 1
    left = ONE_OFFSET if sizes < ENOUGH_SIZES else found.after_offset["p90"]
    base = max(errors.interval_base, left)
    count = f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
    told = (
        f"offset {offset:+.3f} from {count}: an absolute loss was off by up to "
        f"±{errors.other_recipe:g}, now by ±{base:.2g}"
    )
    constants = dict(law.facts.constants)
    constants["offset"] = constants.get("offset", 0.0) + offset
    moved = msgspec.structs.replace(
        law.facts, title=f"{law.title}, moved by {offset:+.3f}", function=name,
        constants=constants, recipe=recipe or "the recipe of the runs",
        errors=msgspec.structs.replace(
            errors, interval_base=base, text=f"{told}; before: {errors.text}",
        ),
    )  # fmt: skip
    return moved, told
