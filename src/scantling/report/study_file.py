"""``study.toml`` beside a saved design: its front, small, to be trained by ``lab run``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from scantling.search.candidate import hf_config
from scantling.units import count_text

if TYPE_CHECKING:
    from scantling.search import Candidate, Front

MOST = 5
"""Shapes that are trained: the choice, and others spread over the depths of the front."""
SHALLOWEST = 2
"""Layers of the shallowest when small; the others keep their ratio to it."""


def study_text(front: Front) -> str | None:
    """The study, or None where fewer than two shapes of the front have a config to be read.

    Shapes are of different depths: what else differs between them is soon within the noise of
    small models.
    """
    picked = _picked(front)
    if len(picked) < 2:
        return None
    choice = front.chosen
    depths = [int(c.spec.n_layer) for c in picked]
    layers = min(max(round(SHALLOWEST * depths[0] / min(depths)), 3), 12)
    small = {max(round(d * layers / depths[0]), 1): c
             for d, c in reversed(list(zip(depths, picked, strict=True)))}  # fmt: skip
    picked = [c for c in picked if c in small.values()]
    if len(picked) < 2:
        return None
    expected = "; ".join(f"{c.name} {c.loss - choice.loss:+.4f}" for c in picked)
    size = count_text(front.budget.params)
    question = f"Does what the law says of these {size} shapes hold when they are small?"
    lines = [
        "# The shapes of this front, small: scantling lab run study.toml --budget 20min",
        "# Depths keep their ratios, bodies are equal; widths follow.",
        f'name = "{choice.name}"',
        f'question = "{question}"',
        'data = "code"        # or a file of your own: .txt .jsonl .parquet .bin',
        "tokens = 400_000     # of a run; a budget lowers it",
        "seeds = 3",
        f"expected = {json.dumps(f'Law {front.budget.law}, nats a token: {expected}.')}",
        "",
        "[scale]",
        'body = "200k"',
        f"n_layer = {layers}",
    ]  # fmt: skip
    for c in picked:
        lines += ["", "[[shapes]]", f"name = {json.dumps(c.name)}",
                  f"model = {json.dumps(f'{c.name}/config.json')}"]  # fmt: skip
    return "\n".join(lines) + "\n"


def _picked(front: Front) -> list[Candidate]:
    """The choice, then one candidate of a depth, spread evenly from the shallowest to the deepest.

    The candidate of a depth is that with the lowest loss.
    """
    known = [c for c in front.candidates if hf_config(c.spec) is not None]
    choice = front.chosen
    if hf_config(choice.spec) is None:
        return []
    by_depth: dict[int, Candidate] = {}
    for c in sorted(known, key=lambda c: c.loss):
        by_depth.setdefault(int(c.spec.n_layer), c)
    by_depth.pop(int(choice.spec.n_layer), None)
    depths = sorted(by_depth)
    n = min(MOST - 1, len(depths))
    places = {round(i * (len(depths) - 1) / max(n - 1, 1)) for i in range(n)}
    return [choice, *(by_depth[depths[i]] for i in sorted(places))]
