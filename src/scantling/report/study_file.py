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
    """The study, or None where the choice has no config to be read.

    Shapes are of different depths: what else differs between them is soon within the noise of
    small models. Where the front has one depth, the choice stands beside itself at half and twice
    as many layers.
    """
    picked = _picked(front)
    if not picked:
        return None
    choice = front.chosen
    depths = [int(c.spec.n_layer) for c in picked]
    layers = _layers(depths)
    small = {max(round(d * layers / depths[0]), 1): c
             for d, c in reversed(list(zip(depths, picked, strict=True)))}  # fmt: skip
    picked = [c for c in picked if c in small.values()]
    shapes = [(c.name, c.name, "") for c in picked]
    said = [f"{c.name} {c.loss - choice.loss:+.4f}" for c in picked]
    if len(picked) < 2:
        own = int(choice.spec.n_layer)
        others = {max(own // 2, 1): "half-as-deep", 2 * own: "twice-as-deep"}
        others.pop(own, None)
        layers = _layers([own, *others])
        shapes += [(how, choice.name, f"set = {{n_layer = {n}}}") for n, how in others.items()]
        said = ["one depth is on its front, it tells no other from it"]
    expected = f"Law {front.budget.law}, nats a token: {'; '.join(said)}."
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
        f"expected = {json.dumps(expected)}",
        "",
        "[scale]",
        'body = "200k"',
        f"n_layer = {layers}",
    ]  # fmt: skip
    for name, folder, changed in shapes:
        lines += ["", "[[shapes]]", f"name = {json.dumps(name)}",
                  f"model = {json.dumps(f'{folder}/config.json')}"]  # fmt: skip
        lines += [changed] if changed else []
    return "\n".join(lines) + "\n"


def _layers(depths: list[int]) -> int:
    """Layers of the first when small."""
    return min(max(round(SHALLOWEST * depths[0] / min(depths)), 3), 12)


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
